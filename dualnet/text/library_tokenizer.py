"""Tokenisers of Hugging Face's library `tokenizers`: read, used and trained."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dualnet._checks import ArgumentError, check_choice, check_count
from dualnet._files import TooLargeError, read_bounded, write_whole
from dualnet.text.plain_text import DOCUMENTS, END, ENDS, EOS, UNK
from dualnet.text.tokenizer import Tokenizer

KINDS = ("bpe", "unigram", "word-piece")  # that `train_tokenizer` makes of a given size
MOST_UNITS = 10**6  # for which the library reserves memory
END_NAMES = (EOS, "</s>", "<|endoftext|>", "<|end_of_text|>", "[EOS]", "[SEP]")
LOWERCASE = {"type": "Lowercase"}  # the step of a `tokenizer.json` that lower-cases the text
LARGEST_FILE = 64 * 10**6  # bytes; that of a vocabulary of 250,000 has 17 million


@dataclass(frozen=True)
class LibraryTokenizer(Tokenizer):
    """A tokeniser of Hugging Face's library `tokenizers`, with `<eos>` between documents.

    Documents are encoded one by one, without the special tokens that the file would add, and
    text that spells a special token is read as text. `<eos>` is the first of `END_NAMES` that
    the file has; if it has none, `<eos>` is added as the last unit.

    Args:
        json: str. The text of a `tokenizer.json`.
        documents: "line", "blank-line" or "file": what ends a document, and is read as `<eos>`.
        lowercase: bool. Whether text is lower-cased first.

    Raises:
        ValueError: if `json` is not that of a tokeniser, or makes no ids.

    Example:

    >>> from dualnet.text import train_tokenizer
    >>> tokenizer = train_tokenizer(["the cat sat on the mat"], "bpe", size=265)
    >>> ids = tokenizer.encode("the cat\\n")
    >>> [tokenizer.words[i] for i in ids], tokenizer.decode(ids)
    (['the', ' ', 'cat', '<eos>'], 'the cat\\n')
    """

    json: str
    documents: str = "line"
    lowercase: bool = False
    file_name: ClassVar[str] = "tokenizer.json"

    def __post_init__(self) -> None:
        check_choice("documents", self.documents, DOCUMENTS)
        tokenizer = _parsed(self.json)
        if not any(tokenizer.token_to_id(name) is not None for name in END_NAMES):
            import tokenizers

            tokenizer.add_special_tokens([tokenizers.AddedToken(EOS, special=True)])
            object.__setattr__(self, "json", tokenizer.to_str())
        if tokenizer.get_vocab_size() != 1 + max(tokenizer.get_vocab().values()):
            raise ArgumentError(
                "tokenizer",
                "must have the ids from 0 on, without gaps. Received: "
                f"{tokenizer.get_vocab_size()} units, the last of which has the id "
                f"{max(tokenizer.get_vocab().values())}.",
            )

    def __repr__(self) -> str:
        return f"LibraryTokenizer({self.kind}, {len(self)} units, sha256={self.sha256[:12]}…)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LibraryTokenizer):
            return NotImplemented
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("sha256", "documents", "lowercase")
        )

    def __hash__(self) -> int:
        return hash(self.sha256)

    @functools.cached_property
    def _library(self) -> Any:
        tokenizer = _parsed(self.json)
        tokenizer.encode_special_tokens = True  # of a text that spells one
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @functools.cached_property
    def _data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.json)
        return data

    @property
    def kind(self) -> str:
        """ "bpe", "unigram", "word-piece", "characters", or the library's name of the model."""
        model = self._data["model"].get("type", "BPE")
        if model == "WordLevel" and _splits_characters(self._data["pre_tokenizer"]):
            return "characters"
        return {"BPE": "bpe", "Unigram": "unigram", "WordPiece": "word-piece"}.get(model, model)

    @functools.cached_property
    def _units(self) -> list[str]:
        """The units in the library's own spelling."""
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        return sorted(vocabulary, key=vocabulary.__getitem__)

    @functools.cached_property
    def words(self) -> tuple[str, ...]:  # type: ignore[override]
        """The units as they are shown."""
        if self._byte_level:
            shown = [unit.decode(errors="backslashreplace") for unit in self._bytes]
        else:
            shown = list(self._units)
        for i, name in ((self.eos_id, EOS), (self.unk_id, UNK)):
            if i is not None:
                shown[i] = name
        return tuple(shown)

    @functools.cached_property
    def sha256(self) -> str:
        keys = ("normalizer", "pre_tokenizer", "model", "added_tokens")
        parts = [self._data[key] for key in keys]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @functools.cached_property
    def eos_id(self) -> int | None:
        found = (self._library.token_to_id(name) for name in END_NAMES)
        return next(i for i in found if i is not None)

    @functools.cached_property
    def unk_id(self) -> int | None:
        model = self._data["model"]
        if isinstance(number := model.get("unk_id"), int):  # of Unigram
            return number
        number = self._library.token_to_id(model.get("unk_token") or UNK)
        return number if number != self.eos_id else None

    @functools.cached_property
    def _byte_level(self) -> bool:
        """Whether each unit is a string of bytes, so that every text is spelt out."""
        data = self._data
        steps = _steps(data["pre_tokenizer"])
        return (
            data["model"].get("type", "BPE") == "BPE"
            and data["normalizer"] in (None, LOWERCASE)
            and bool(steps)
            and steps[-1]["type"] == "ByteLevel"
            and not steps[-1]["add_prefix_space"]
            and all(step["type"] in ("Split", "Digits", "Punctuation") for step in steps[:-1])
            and all(step.get("behavior", "isolated").lower() != "removed" for step in steps[:-1])
            and not _alphabet().keys() - data["model"]["vocab"].keys()
        )

    @functools.cached_property
    def loses(self) -> str:
        if self.lowercase or self._data["normalizer"] == LOWERCASE:
            return "the text is lower-cased"
        if self._byte_level or self.kind == "characters":
            return ""
        if self._data["normalizer"] is not None:
            return "the tokeniser changes the text before it reads it"
        return f"the units of this {self.kind} tokeniser do not spell the text byte by byte"

    @functools.cached_property
    def _bytes(self) -> list[bytes]:
        alphabet = _alphabet()
        added = {token["id"]: token["content"] for token in self._data["added_tokens"]}
        return [
            added[i].encode() if i in added else bytes(alphabet[character] for character in unit)
            for i, unit in enumerate(self._units)
        ]

    @functools.cached_property
    def spelling(self) -> tuple[bytes, ...]:
        if self.loses:
            raise ArgumentError("tokenizer", f"must spell its text. Received: {self.loses}.")
        spelling = self._bytes if self._byte_level else [unit.encode() for unit in self._units]
        if self.unk_id is not None:
            spelling[self.unk_id] = b""
        if self.eos_id is not None:
            spelling[self.eos_id] = ENDS[self.documents].encode()
        return tuple(spelling)

    def encode_marked(self, text: str) -> np.ndarray:
        documents = text.split(END)
        ended = len(documents) - 1
        found = self._library.encode_batch_fast(
            documents[: -1 if not documents[-1] else None], add_special_tokens=False
        )
        ids: list[int] = []
        for i, encoding in enumerate(found):
            ids += encoding.ids
            if i < ended:
                ids.append(self.require_eos())
        return np.array(ids, "int32")

    def _spans(self, text: str) -> Iterator[tuple[int, int, int]]:
        lower = text.lower() if self.lowercase else text
        encoding = self._library.encode(lower, add_special_tokens=False)
        if len(lower) == len(text):
            places = None
        else:  # where each character of the lower-cased text comes from
            places = [i for i, character in enumerate(text) for _ in character.lower()]
            places.append(len(text))
        for unit, (start, end) in zip(encoding.ids, encoding.offsets):
            yield (unit, start, end) if places is None else (unit, places[start], places[end])

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become the replacement character."""
        ids = self._checked(ids)
        if not self.loses and self.unk_id not in ids:
            return super().decode(ids)
        parts: list[list[int]] = [[]]
        for i in ids:
            if i == self.eos_id:
                parts.append([])
            else:
                parts[-1].append(i)
        texts = self._library.decode_batch(parts, skip_special_tokens=False)
        return ENDS[self.documents].join(texts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the `tokenizer.json`, which the library reads, too; all or nothing."""
        write_whole(path, self.json)

    def get_config(self) -> dict[str, Any]:
        return {
            "kind": "library",
            "json": self.json,
            "documents": self.documents,
            "lowercase": self.lowercase,
        }


def read_library_file(path: str | os.PathLike[str]) -> str:
    """Return the text of the `tokenizer.json` at `path`."""
    try:
        text = read_bounded(path, LARGEST_FILE).decode()
        _parsed(text)
    except (OSError, TooLargeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArgumentError(
            "tokenizer", f"must be a file that can be read. Received: {os.fspath(path)!r}: {reason}"
        ) from None
    except ValueError as error:
        raise ArgumentError(
            "tokenizer",
            "must be the file tokenizer.json of Hugging Face's `tokenizers`. Received: "
            f"{os.fspath(path)!r}, which is none ({str(error)[:200]}).",
        ) from None
    return text


def train_tokenizer(
    texts: Iterable[str],
    kind: str = "bpe",
    *,
    size: int | None = None,
    documents: str = "line",
    lowercase: bool = False,
    special: Iterable[str] = (),
) -> LibraryTokenizer:
    """Return a tokeniser whose units are learnt from `texts` by the library `tokenizers`.

    "bpe" is byte-level: its units are strings of bytes within a word, with the space before
    it, so that no text is unknown and decoding gives every text back unchanged. The units of
    "unigram" and "word-piece" are parts of words of characters, and those of "characters" are
    characters; what `texts` do not hold is `<unk>`. The same texts give the same units again,
    except that "unigram" and "word-piece" put units of equal frequency in any order.

    Args:
        texts: Strings, read once. With `documents="line"`, no unit spans a newline.
        kind: "bpe", "unigram", "word-piece" or "characters".
        size: int, at most a million. Number of units, `<eos>` included; at least 257 for "bpe".
            Fewer are learnt if the texts have too few words. None for "characters": all.
        documents: See `LibraryTokenizer`.
        lowercase: bool. Whether text is lower-cased first, here and later.
        special: Strings that are one unit each wherever a text has them, e.g. "<unk>" in
            WikiText.

    Example:

    >>> from dualnet.text import train_tokenizer
    >>> tokenizer = train_tokenizer(["abc"], "characters")
    >>> tokenizer.words, tokenizer.encode("cab!").tolist()
    (('<eos>', '<unk>', 'a', 'b', 'c'), [4, 2, 3, 1])
    """
    import tokenizers
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

    special = [special] if isinstance(special, str) else list(special)
    if len({*special, "", EOS}) != len(special) + 2 or "\n" in "".join(special):
        required = f"different strings of one line, not empty, and none of them {EOS}"
        raise ArgumentError("special", f"must be {required}. Received: special={special!r}.")
    learnt = check_size(kind, size, special=len(special))
    ends = [END, "\n"] if documents == "line" else [END]
    split = re.compile("|".join(map(re.escape, [*ends, *special]))).split
    tokenizer: Any
    first = [EOS] if kind == "bpe" else [EOS, UNK]
    options: dict[str, Any] = {"show_progress": False, "special_tokens": first}
    if kind == "bpe":
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        options |= {"vocab_size": learnt, "initial_alphabet": sorted(_alphabet())}
        trainer: Any = trainers.BpeTrainer(**options)
    elif kind == "unigram":
        tokenizer = tokenizers.Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=learnt, unk_token=UNK, **options)
    elif kind == "word-piece":
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token=UNK))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(cleanup=False)
        trainer = trainers.WordPieceTrainer(vocab_size=learnt, **options)
    else:
        tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token=UNK))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
        trainer = trainers.WordLevelTrainer(**options)
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()  # so that the file alone says it, too
    pieces = (piece for text in texts for piece in split(text.lower() if lowercase else text))
    tokenizer.train_from_iterator(filter(None, pieces), trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in special])
    return LibraryTokenizer(tokenizer.to_str(), documents=documents, lowercase=lowercase)


def check_size(kind: str, size: int | None, *, special: int = 0) -> int:
    """Return how many units of `size` are learnt, `special` not counted; 0 for characters."""
    if check_choice("kind", kind, (*KINDS, "characters")) == "characters":
        if size is None:
            return 0
        raise ArgumentError("size", f"must be None for characters: all. Received: size={size!r}.")
    if check_count("size", size, least=(257 if kind == "bpe" else 3) + special) > MOST_UNITS:
        raise ArgumentError("size", f"must be at most {MOST_UNITS:,}. Received: size={size}.")
    return int(size or 0) - special


def write_bytes_tokenizer(path: str | os.PathLike[str]) -> None:
    """Write a `tokenizer.json` whose ids are those of `ByteTokenizer`."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    vocabulary = {**_alphabet(), EOS: 256}
    tokenizer: Any = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    write_whole(path, tokenizer.to_str())


def is_bytes_tokenizer(text: str) -> bool:
    """Return whether `text` is that of a file of `write_bytes_tokenizer`."""
    model = json.loads(text)["model"]
    return model.get("vocab") == {**_alphabet(), EOS: 256} and not model.get("merges")


def _parsed(text: str) -> Any:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises Exception itself
        raise ValueError(str(error)) from None


@functools.cache
def _alphabet() -> dict[str, int]:
    """Return the byte for which each character stands in the units of a byte-level tokeniser.

    Printable characters of Latin-1 stand for their own codes, the others follow from 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    codes = {byte: byte for byte in printable} | {b: 256 + i for i, b in enumerate(others)}
    return {chr(codes[byte]): byte for byte in range(256)}


def _steps(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre_tokenizer is None:
        return []
    steps: list[dict[str, Any]] = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    return steps


def _splits_characters(pre_tokenizer: dict[str, Any] | None) -> bool:
    pattern = {"Regex": r"[\s\S]"}
    return [(step["type"], step.get("pattern")) for step in _steps(pre_tokenizer)] == [
        ("Split", pattern)
    ]
