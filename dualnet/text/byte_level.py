"""A byte-level BPE in parts, for programs that read text without the library."""

import functools
from dataclasses import dataclass

import numpy as np

from dualnet.text.library_tokenizer import ByteTokenizer, LibraryTokenizer, alphabet
from dualnet.text.plain_text import ENDS
from dualnet.text.tokenizer import Tokenizer
from dualnet.text.vocabulary import Vocabulary

# What `ByteLevel` tells apart when it divides a document into words.
LETTER, NUMBER, SPACE, OTHER = range(4)
PATTERNS = {LETTER: r"\p{L}", NUMBER: r"\p{N}", SPACE: r"\s"}
PRIVATE = "\U000f0000"  # from here on, characters are free for programs to use
FLAGS = ("single_word", "lstrip", "rstrip")  # of an added token: what it needs or takes around it
# Keys of the model that make it more than merges of bytes.
CHANGES = ("dropout", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")


@dataclass(frozen=True)
class ByteLevelBPE:
    """The parts of a `LibraryTokenizer` for which `why_no_parts` has no reason.

    Attributes:
        byte_ids: The id of each of the 256 bytes.
        merges: Left, right and merged id of each merge, in the order of their ranks.
        divides: Whether a document is divided into words first.
        lowercases: Whether the file itself lower-cases text, between the two steps of `added`.
        added: Texts that are tokens of their own, and their ids; those of the first dictionary
            are found first. Those that are special have None: they are read as text.
        spelling: The bytes that each id stands for.
    """

    byte_ids: list[int]
    merges: list[tuple[int, int, int]]
    divides: bool
    lowercases: bool
    added: tuple[dict[str, int | None], dict[str, int | None]]
    spelling: list[bytes]

    @classmethod
    def of(cls, tokenizer: LibraryTokenizer) -> "ByteLevelBPE":
        """Return the parts of `tokenizer`."""
        data, normalizer = tokenizer._data, tokenizer._library.normalizer
        vocabulary, merges = data["model"]["vocab"], data["model"]["merges"]
        added: tuple[dict[str, int | None], dict[str, int | None]] = ({}, {})
        for i, token in tokenizer._added.items():
            text = token["content"]
            if token["normalized"] and normalizer is not None:
                text = normalizer.normalize_str(text)
            added[token["normalized"]][text] = None if token["special"] else i
        spelling = [*tokenizer._spelt]
        spelling[tokenizer.require_eos()] = ENDS[tokenizer.documents].encode()
        return cls(
            byte_ids=[vocabulary[c] for c in sorted(alphabet(), key=alphabet().__getitem__)],
            merges=[(vocabulary[a], vocabulary[b], vocabulary[a + b]) for a, b in merges],
            divides=tokenizer._steps[-1]["use_regex"],
            lowercases=normalizer is not None,
            added=added,
            spelling=spelling,
        )


def why_no_parts(tokenizer: Tokenizer) -> str:
    """Return the reason why no TensorFlow graph can hold `tokenizer`, or ""."""
    if isinstance(tokenizer, Vocabulary | ByteTokenizer):
        return ""
    if not isinstance(tokenizer, LibraryTokenizer) or not tokenizer._byte_level:
        return f"is {tokenizer.kind!r}, and not byte-level"
    data = tokenizer._data
    unlike = [f"the step {step['type']!r}" for step in tokenizer._steps[:-1]]
    unlike += [f"{key!r}" for key in CHANGES if data["model"].get(key)]
    if (data["decoder"] or {}).get("type") != "ByteLevel":
        unlike.append("a decoder that is not `ByteLevel`")
    for token in tokenizer._added.values():
        flags = [name for name in FLAGS if token[name] and not token["special"]]
        if flags or any(c == "\0" or c >= PRIVATE for c in token["content"]):
            unlike.append(f"the token {token['content']!r}")
    return f"has {', '.join(unlike)}" if unlike else ""


@functools.cache
def character_classes() -> tuple[list[int], list[int]]:
    """Return the codes at which a run of characters of one class begins, and their classes.

    They are those of the library's regular expressions, whose Unicode is not that of Python.
    """
    from tokenizers import Regex, normalizers

    classes = np.full(0x110000, OTHER)
    for number, pattern in PATTERNS.items():
        others = normalizers.Replace(Regex(f"[^{pattern}]+"), "")
        classes[[ord(c) for c in others.normalize_str(characters())]] = number
    starts = np.flatnonzero(np.diff(classes, prepend=-1))
    return starts.tolist(), classes[starts].tolist()


@functools.cache
def lower_case() -> dict[str, str]:
    """Return the lower case of the characters that the library's `Lowercase` changes."""
    from tokenizers import normalizers

    letters = characters().replace("\n", "")
    lower = normalizers.Lowercase().normalize_str("\n".join(letters)).split("\n")
    return {c: changed for c, changed in zip(letters, lower) if c != changed}


@functools.cache
def characters() -> str:
    """Return every character that UTF-8 can encode."""
    return "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
