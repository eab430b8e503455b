"""Tokenisers of Hugging Face's library `tokenizers`: read, used and trained."""

import contextlib
import functools
import hashlib
import json
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dualnet._checks import ArgumentError, StrPath
from dualnet._files import sha256_of_data, write_whole
from dualnet.text.plain_text import END, ENDS, EOS, MORE_BLANK_LINES, UNK
from dualnet.text.tokenizer import Span, Tokenizer

END_NAMES = (EOS, "</s>", "<|endoftext|>", "<|end_of_text|>", "[EOS]", "[SEP]")
READABLE = "The text must be one that the tokeniser can read"
LOWERCASE = {"type": "Lowercase"}  # the step of a `tokenizer.json` that lower-cases the text
BYTE_EOS = 256  # the id of `<eos>` among the bytes
MARK = 0xFF  # no byte of UTF-8


@dataclass(frozen=True, repr=False)
class LibraryTokenizer(Tokenizer):
    """A tokeniser of Hugging Face's library `tokenizers`, with `<eos>` between documents.

    Documents are encoded one by one, without the special tokens that the file would add, and
    text that spells a special token is read as text. `<eos>` is the first of `END_NAMES` that
    the file has; if it has none, `<eos>` is added as the last token.

    Args:
        json: str. The text of a `tokenizer.json`.
        documents: "line", "blank-line" or "file": what ends a document, and is read as `<eos>`.
        lowercase: bool. Whether text is lower-cased first.

    Raises:
        ValueError: if `json` is not that of a tokeniser, or makes no ids.

    Example:

    >>> from dualnet.text import train_tokenizer
    >>> tokenizer = train_tokenizer(["the cat sat on the mat"], "bpe", size=300)
    >>> ids = tokenizer.encode("the cat\\n")
    >>> [tokenizer.words[i] for i in ids], tokenizer.decode(ids)
    (['the', ' cat', '<eos>'], 'the cat\\n')
    """

    json: str
    documents: str = "line"
    lowercase: bool = False
    file_name: ClassVar[str] = "tokenizer.json"

    def __post_init__(self) -> None:
        super().__post_init__()
        tokenizer = parsed(self.json)
        has_end = any(tokenizer.token_to_id(name) is not None for name in END_NAMES)
        if not has_end:
            tokenizer.add_special_tokens([EOS])
        draws = getattr(tokenizer.model, "dropout", None) is not None
        if not has_end or tokenizer.truncation or tokenizer.padding or draws:
            tokenizer.no_truncation()  # `json` is what is in use
            tokenizer.no_padding()
            if draws:  # one text would have other ids each time
                tokenizer.model.dropout = None
            object.__setattr__(self, "json", tokenizer.to_str())
        size, ids = tokenizer.get_vocab_size(), sorted(tokenizer.get_vocab().values())
        if ids != [*range(size)]:
            raise ArgumentError(
                "tokenizer",
                f"must give each token an id of its own, from 0 on without gaps. Received: {size} "
                f"tokens with ids up to {max(ids)}.",
            )
        for token in self._added.values() if self._byte_level else ():
            text = token["content"]
            if text in self._data["model"]["vocab"] and _bytes_of(text) != text.encode():
                message = f"tokens must not be spelt as a byte is. Received: {text!r}, which is "
                raise ArgumentError("special", f"{message}also {_bytes_of(text)!r}. Leave it out.")

    def __eq__(self, other: object) -> bool:
        facts = operator.attrgetter("sha256", "documents", "lowercase")
        return isinstance(other, LibraryTokenizer) and facts(self) == facts(other)

    def __hash__(self) -> int:
        return hash(self.sha256)

    @functools.cached_property
    def _library(self) -> Any:
        tokenizer = parsed(self.json)
        tokenizer.encode_special_tokens = True  # of a text that spells one
        return tokenizer

    @functools.cached_property
    def _data(self) -> dict[str, Any]:
        return json.loads(self._library.to_str())  # with every key

    @functools.cached_property
    def _steps(self) -> list[dict[str, Any]]:
        """What divides a document into words, step by step."""
        whole = self._data["pre_tokenizer"]
        return [] if whole is None else whole.get("pretokenizers", [whole])

    @property
    def kind(self) -> str:
        """ "bpe", "unigram", "word-piece", "characters", or the library's name of the model."""
        model = self._data["model"]["type"]
        single = {"Regex": r"[\s\S]"}, "Isolated"
        steps = [(step.get("pattern"), step.get("behavior")) for step in self._steps]
        if model == "WordLevel" and steps == [single]:
            return "characters"
        return {"BPE": "bpe", "Unigram": "unigram", "WordPiece": "word-piece"}.get(model, model)

    @functools.cached_property
    def _tokens(self) -> list[str]:
        """The tokens in the library's own spelling."""
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        return sorted(vocabulary, key=vocabulary.__getitem__)

    @functools.cached_property
    def words(self) -> tuple[str, ...]:  # type: ignore[override]
        """The tokens as they are shown."""
        shown = [token.decode(errors="backslashreplace") for token in self._spelt]
        special = {self.eos_id: EOS, self.unk_id: UNK}
        return tuple(special.get(i, token) for i, token in enumerate(shown))

    @functools.cached_property
    def sha256(self) -> str:
        keys = ("normalizer", "pre_tokenizer", "model", "added_tokens")
        return sha256_of_data([self._data[key] for key in keys])

    @functools.cached_property
    def eos_id(self) -> int:
        ids = (self._library.token_to_id(name) for name in END_NAMES)
        return next(i for i in ids if i is not None)

    @functools.cached_property
    def unk_id(self) -> int | None:
        model = self._data["model"]
        if isinstance(number := model.get("unk_id"), int):  # of Unigram
            return number
        number = self._library.token_to_id(model.get("unk_token") or UNK)
        return number if number != self.eos_id else None

    @functools.cached_property
    def _writes_bytes(self) -> bool:
        """Whether each token is a string of bytes, written in the characters of `alphabet`."""
        is_marked = self.kind == "bpe" and any(step["type"] == "ByteLevel" for step in self._steps)
        return is_marked and alphabet().keys() <= self._data["model"]["vocab"].keys()

    @functools.cached_property
    def _byte_level(self) -> bool:
        """Whether the bytes of the tokens spell out every text."""
        *others, last = self._steps or [{}]
        return (
            self._writes_bytes
            and self._data["normalizer"] in (None, LOWERCASE)
            and last["type"] == "ByteLevel"
            and not last["add_prefix_space"]
            and all(step["type"] in ("Split", "Digits", "Punctuation") for step in others)
            and all(step.get("behavior") != "Removed" for step in others)
        )

    @functools.cached_property
    def loses(self) -> str:
        """What the ids of a text do not tell; "" for files of a kind that spells every text."""
        model, normalizer = self._data["model"], self._data["normalizer"]
        if self.lowercase or normalizer == LOWERCASE:
            return "the text is lower-cased"
        if normalizer is not None:
            return "the tokeniser changes the text before it reads it"
        marks = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
        spells = self.kind == "characters" or (self._byte_level and not marks)
        end_is_special = self._added.get(self.eos_id, {}).get("special", False)
        strips = any(
            (token["lstrip"] or token["rstrip"]) and not token["special"]  # one is read as text
            for token in self._added.values()
        )
        if spells and end_is_special and not strips:
            return MORE_BLANK_LINES * (self.documents == "blank-line")
        return f"the tokens of this {self.kind} tokeniser need not spell the text byte by byte"

    @functools.cached_property
    def _added(self) -> dict[int, dict[str, Any]]:
        """The tokens that the file adds to those of the model, by id."""
        return {token["id"]: token for token in self._data["added_tokens"]}

    @functools.cached_property
    def _spelt(self) -> list[bytes]:
        return [
            _bytes_of(token) if self._writes_bytes and i not in self._added else token.encode()
            for i, token in enumerate(self._tokens)
        ]

    def encode_marked(self, text: str) -> np.ndarray:
        with library_errors(READABLE):
            encodings = self._library.encode_batch_fast(text.split(END), add_special_tokens=False)
        ids = [i for encoding in encodings for i in (*encoding.ids, self.eos_id)]
        return np.array(ids[:-1], "int32")

    def _spans(self, text: str) -> Iterable[Span]:
        with library_errors(READABLE):
            encoding = self._library.encode(text, add_special_tokens=False)
        return zip(encoding.ids, encoding.offsets)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become the replacement character."""
        ids = self._checked(ids)
        if self._writes_bytes and (self._data["decoder"] or {}).get("type") == "ByteLevel":
            # The library would read the letters of an added token as bytes, too.
            end = ENDS[self.documents].encode()
            spelt = (end if i == self.eos_id else self._spelt[i] for i in ids)
            return b"".join(spelt).decode(errors="replace")
        if not self.unspelt and self.unk_id not in ids:
            return super().decode(ids)
        texts = self._library.decode_batch(self._documents(ids), skip_special_tokens=False)
        return ENDS[self.documents].join(texts)

    def save(self, path: StrPath) -> None:
        """Write the `tokenizer.json`, which the library reads, too; all or nothing."""
        write_whole(path, self.json)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "kind": "library"}


def parsed(text: str) -> Any:
    """Return the library's tokeniser of a `tokenizer.json`."""
    import tokenizers

    with library_errors("The file must be a tokenizer.json"):
        return tokenizers.Tokenizer.from_str(text)


@contextlib.contextmanager
def library_errors(requirement: str) -> Iterator[None]:
    """Raise what a library raises, often a bare `Exception`, as a `ValueError`."""
    try:
        yield
    except (ValueError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{requirement}. Received: {reason}.") from None


@functools.cache
def alphabet() -> dict[str, int]:
    """Return the byte for which each character stands in the tokens of a byte-level tokeniser.

    Printable characters of Latin-1 stand for their own codes, the others follow from 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    codes = [*printable, *range(256, 256 + len(others))]
    return {chr(code): byte for code, byte in zip(codes, printable + others)}


def _bytes_of(token: str) -> bytes:
    """Return the bytes that a token of a byte-level tokeniser stands for."""
    byte_of = alphabet()
    if any(character not in byte_of for character in token):  # which no text leads to
        return token.encode()
    return bytes(byte_of[character] for character in token)


@dataclass(frozen=True)
class ByteTokenizer(Tokenizer):
    """The 256 bytes of UTF-8, each its own id, and `<eos>`, which is 256.

    No text is unknown, and decoding gives it back unchanged.

    Args:
        documents: "line", "blank-line" or "file": what ends a document, and is read as `<eos>`.

    Example:

    >>> from dualnet.text import ByteTokenizer
    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("a\\u00e4\\n").tolist()
    [97, 195, 164, 256]
    >>> tokenizer.decode([97, 195, 164])
    'aä'
    """

    documents: str = "line"
    lowercase: ClassVar[bool] = False
    kind: ClassVar[str] = "bytes"
    file_name: ClassVar[str] = "tokenizer.json"
    eos_id: ClassVar[int] = BYTE_EOS
    unk_id: ClassVar[None] = None
    sha256: ClassVar[str] = hashlib.sha256(b"dualnet bytes 1").hexdigest()

    @property
    def loses(self) -> str:
        return MORE_BLANK_LINES * (self.documents == "blank-line")

    @functools.cached_property
    def words(self) -> tuple[str, ...]:  # type: ignore[override]
        """The bytes as they are shown: those of ASCII as characters, others as in "\\xe4"."""
        return (*(bytes([i]).decode(errors="backslashreplace") for i in range(256)), EOS)

    @functools.cached_property
    def _spelt(self) -> list[bytes]:
        return [*(bytes([i]) for i in range(256)), ENDS[self.documents].encode()]

    def encode_marked(self, text: str) -> np.ndarray:
        data = bytes([MARK]).join(part.encode() for part in text.split(END))
        ids = np.frombuffer(data, "uint8").astype("int32")
        ids[ids == MARK] = BYTE_EOS
        return ids

    def _spans(self, text: str) -> Iterable[Span]:
        for i, character in enumerate(text):
            for byte in character.encode():
                yield byte, (i, i + 1)

    def save(self, path: StrPath) -> None:
        """Write a `tokenizer.json` of Hugging Face's `tokenizers` with the same ids."""
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers

        tokenizer = tokenizers.Tokenizer(models.BPE(vocab=byte_units(), merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([EOS])
        write_whole(path, tokenizer.to_str())


def byte_units() -> dict[str, int]:
    """Return the tokens of the file of a `ByteTokenizer`."""
    return {**alphabet(), EOS: BYTE_EOS}
