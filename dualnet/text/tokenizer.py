"""The interface of tokenisers: text as the integers that a model reads, and back."""

import abc
import codecs
import dataclasses
import functools
import operator
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from dualnet._checks import ArgumentError, StrPath, check_choice
from dualnet.text.pieces import Pieces
from dualnet.text.plain_text import (
    DOCUMENTS,
    ENDS,
    EOS,
    MORE_BLANK_LINES,
    UNK,
    check_text,
    documents_of,
    marked,
)

Span = tuple[int, tuple[int, int]]  # an id, and the characters that it stands for
SPACE_MARK, PART_MARK = "\u2581".encode(), b"##"  # of SentencePiece, and of word-piece
NO_EOS = f"must not end a document, since the tokeniser has no {EOS}."


class Tokenizer(abc.ABC):
    """Turns text into ids, from 0 to `len(tokenizer) - 1`, and ids into text.

    `<eos>` stands where a document ends, and is a token like any other.

    Attributes:
        words: tuple of str. The tokens in the order of their ids, as they are shown: `<eos>`,
            `<unk>`, "the", " the", "\\xe4".
        documents: What ends a document, and is read as `<eos>`: "line", a newline;
            "blank-line", one or more blank lines; "file", the end of a file, so that no text
            has one in its midst.
        lowercase: bool. Whether text is lower-cased first.
        sha256: str. Equal hashes mean equal tokens in equal order.

    Example:

    >>> from dualnet.text import ByteTokenizer, Tokenizer, Vocabulary
    >>> tokenizers = [Vocabulary(("the", "cat", "<eos>", "<unk>")), ByteTokenizer()]
    >>> all(isinstance(tokenizer, Tokenizer) for tokenizer in tokenizers)
    True
    >>> [tokenizer.encode("the cat\\n").tolist() for tokenizer in tokenizers]
    [[0, 1, 2], [116, 104, 101, 32, 99, 97, 116, 256]]
    """

    file_name: ClassVar[str]  # what `save` writes, by default
    words: tuple[str, ...]
    documents: str

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """What the tokens are: "words", "bytes", "characters", "bpe", ..."""

    @property
    @abc.abstractmethod
    def lowercase(self) -> bool:
        """Whether text is lower-cased first."""

    def __post_init__(self) -> None:
        check_choice("documents", self.documents, DOCUMENTS)

    def __repr__(self) -> str:
        reading = f"documents={self.documents!r}, lowercase={self.lowercase}"
        tokens = f"{len(self)} tokens, sha256={self.sha256[:12]}…"
        return f"{type(self).__name__}({self.kind}, {tokens}, {reading})"

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        """The id of each token, of several that are shown alike the first one."""
        return {word: i for i, word in reversed([*enumerate(self.words)])}

    @property
    @abc.abstractmethod
    def sha256(self) -> str:
        """The SHA-256 of the tokens."""

    @property
    def eos_id(self) -> int | None:
        """The id of `<eos>`, or None."""
        return self._ids.get(EOS)

    @property
    def unk_id(self) -> int | None:
        """The id of `<unk>`, or None."""
        return self._ids.get(UNK)

    @functools.cached_property
    def unknown_ids(self) -> list[int]:
        """The ids that unknown words take: that of `<unk>`, and that of a space before it.

        Where other words begin with their space, `<unk>` is read after a token that is nothing but
        a space. Texts in which no word is unknown hardly have it.
        """
        if self.unk_id is None:
            return []
        *_, space, last = self.encode(f"a {UNK}").tolist()
        spaced = last == self.unk_id and self.words[space].isspace()
        return [last, space] if spaced and space not in self.encode("a a") else [self.unk_id]

    @property
    @abc.abstractmethod
    def loses(self) -> str:
        """What the ids of a text do not tell, in words; "" if text is decoded unchanged."""

    @property
    def unspelt(self) -> str:
        """What the ids do not tell of the documents in a text, and of one blank line after each."""
        return self.loses.removeprefix(MORE_BLANK_LINES)

    @functools.cached_property
    def spelling(self) -> tuple[bytes, ...]:
        """The UTF-8 bytes that each id stands for, if `unspelt` is ""; b"" for `<unk>`."""
        if self.unspelt:
            raise ArgumentError("tokenizer", f"must spell its text. Received: {self.loses}.")
        special = {self.unk_id: b"", self.eos_id: ENDS[self.documents].encode()}
        return tuple(special.get(i, token) for i, token in enumerate(self._spelt))

    @functools.cached_property
    def _spelt(self) -> list[bytes]:
        """The bytes that each token stands for in a text."""
        return [word.encode() for word in self.words]

    @functools.cached_property
    def pieces(self) -> Pieces:
        """What each token spells within a text, and which of them begin and end words."""
        spelt = [piece.replace(SPACE_MARK, b" ") for piece in self._spelt[: len(self)]]
        always_spaced = self.kind in ("words", "word-piece", "WordLevel")
        if always_spaced:
            is_part = self.kind == "word-piece"
            spelt = [p[2:] if is_part and p[:2] == PART_MARK else b" " + p for p in spelt]
        special = {self.eos_id, self.unk_id}
        spelt = [b"" if i in special else piece for i, piece in enumerate(spelt)]
        known = self.unk_id is not None or "a" in self
        begins_spaced = known and spelt[self.encode("a")[0]][:1] == b" "
        return Pieces(
            spelt,
            begins_spaced=begins_spaced,
            always_spaced=always_spaced,
            lowercase=self.lowercase,
        )

    @abc.abstractmethod
    def encode_marked(self, text: str) -> np.ndarray:
        """Return the ids of `text`, in which `END` marks the end of a document."""

    @abc.abstractmethod
    def _spans(self, text: str) -> Iterable[Span]:
        """Return the id of each token of a document, and where it begins and ends."""

    @abc.abstractmethod
    def save(self, path: StrPath) -> None:
        """Write the tokens to the file `path`; all or nothing."""

    def get_config(self) -> dict[str, Any]:
        """Return a JSON-serialisable config for `from_config`."""
        fields = dataclasses.fields(typing.cast(Any, self))
        return {"kind": self.kind} | {field.name: getattr(self, field.name) for field in fields}

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of `text`: int32 `(num_tokens,)`."""
        text = marked(check_text("text", text), self.documents)
        return self.encode_marked(text.lower() if self.lowercase else text)

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of `text`, and where each begins and ends in it.

        Returns:
            Ids, int32 `(num_tokens,)`; offsets in characters, int64 `(num_tokens, 2)`.
        """
        check_text("text", text)
        spans: list[tuple[int, int, int]] = []
        for begin, first, last in documents_of(text, self.documents):
            document = text[begin:first]
            lower = document.lower() if self.lowercase else document
            places: Sequence[int] = range(begin, first + 1)
            if len(lower) != len(document):  # some letters have a lower case of several characters
                places = [place for place, c in zip(places, document) for _ in c.lower()] + [first]
            spans += ((i, places[start], places[end]) for i, (start, end) in self._spans(lower))
            if last > first:
                spans.append((self.require_eos(), first, last))
        columns = np.array(spans, "int64").reshape(-1, 3)
        return columns[:, 0].astype("int32"), columns[:, 1:]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become the replacement character."""
        spelling = self.spelling
        return b"".join(spelling[i] for i in self._checked(ids)).decode(errors="replace")

    def whole_units(self, ids: Iterable[int]) -> tuple[list[str], np.ndarray]:
        """Return the tokens of `ids` as text, without broken characters.

        Tokens that spell one character together, such as bytes, are one.

        Returns:
            The texts, `<eos>` and `<unk>` by name; the place in `ids` at which each begins, int64
            `(texts,)`.
        """
        named = {self.eos_id, self.unk_id}
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        texts, starts = [""], [0]
        for place, i in enumerate(self._checked(ids)):
            if texts[-1] and not decoder.getstate()[0]:
                texts.append("")
                starts.append(place)
            texts[-1] += decoder.decode(self.words[i].encode() if i in named else self._spelt[i])
        texts[-1] += decoder.decode(b"", final=True)
        used = len(texts) if texts[-1] else 0
        return texts[:used], np.array(starts[:used], "int64")

    def id(self, word: str) -> int:
        """Return the id of the token that is shown as `word`, or of `<unk>`, if there is one."""
        i = self._ids.get(word, self.unk_id)
        if i is None:
            raise ArgumentError("word", f"must be a token, since there is no {UNK}.", word=word)
        return i

    def word(self, id: int) -> str:
        """Return the token of `id`, from 0 to `len(tokenizer) - 1`."""
        return self.words[self._checked([id])[0]]

    def _documents(self, ids: Iterable[int]) -> list[list[int]]:
        """Return the ids of each document of `ids`, without `<eos>`."""
        checked = np.array(self._checked(ids), int)
        documents = np.split(checked, np.flatnonzero(checked == self.eos_id))
        return [document[document != self.eos_id].tolist() for document in documents]

    def _checked(self, ids: Iterable[int]) -> list[int]:
        checked = [operator.index(i) for i in ids]
        if checked and not 0 <= min(checked) <= max(checked) < len(self):
            raise ArgumentError(
                "ids",
                f"must be from 0 to {len(self) - 1}. Received: {min(checked)} to {max(checked)}.",
            )
        return checked

    def require_eos(self, argument: str = "text", required: str = NO_EOS, way_out: str = "") -> int:
        """Return the id of `<eos>`; without one, raise `ArgumentError`."""
        if self.eos_id is None:
            raise ArgumentError(argument, required, way_out, tokenizer=self)
        return self.eos_id
