"""Tables of the spelling of tokens: which of them begin, continue and end a word."""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

LONGEST = 48  # bytes of what is typed of a word, with its space; bytes and tokens of a word
APOSTROPHES = "'\u2019"  # within a word
# Letters of scripts that write no spaces: Thai and Lao, Myanmar, Khmer, kana, Han.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
SPACES = " \t\r\n"
NOT_OF_A_WORD = LONGEST + 1
MOST_WORDS = 50_000  # of a list


class Typed(NamedTuple):
    """A text up to the word that has begun, and what is typed of it."""

    before: str
    word: str  # as far as it is typed; "" after a space, and where no letter has begun
    spelt: bytes  # what the next tokens must begin with
    may_space: bool  # whether they may begin with a space that is not typed


class Pieces:
    """What each token spells, and tables of it.

    A word is a run of letters, marks and digits, and of apostrophes within it. In scripts that
    write no spaces, the word is a token.

    Args:
        spelt: The bytes that each token adds to a text, such as b" the"; b"" for one that spells
            nothing.
        begins_spaced: Whether a word at the start of a document is spelt with a space.
        always_spaced: Whether every word is.
        lowercase: Whether text is lower-cased first.

    Attributes:
        table: uint8 `(LONGEST, tokens)`, the bytes of each token, and zeros.
        lengths: int32 `(tokens,)`. Their number; 0 for a token that is too long for a word.
        heads: int32 `(tokens,)`. How many bytes are before the part of a word that the token ends
            with: 0, 1 for a space, or `NOT_OF_A_WORD`.
        ends: bool `(tokens,)`. Whether a word before the token has ended.
        is_spaced: Whether tokens hold the space before their word.
        words: frozenset of str. The words that are one token, with its space.
    """

    def __init__(
        self, spelt: Sequence[bytes], *, begins_spaced: bool, always_spaced: bool, lowercase: bool
    ) -> None:
        self.spelt, self.lowercase = spelt, lowercase
        self.begins_spaced, self.always_spaced = begins_spaced, always_spaced
        self.is_spaced = any(len(piece) > 1 and piece[:1] == b" " for piece in spelt)
        begins = [piece[1:] for piece in spelt if piece[:1] == b" "]
        self.words = frozenset(piece.decode(errors="ignore") for piece in begins)
        short = [piece if len(piece) <= LONGEST else b"" for piece in spelt]
        self.lengths = np.array([*map(len, short)], np.int32)
        padded = b"".join(piece.ljust(LONGEST, b"\0") for piece in short)
        self.table = np.frombuffer(padded, np.uint8).reshape(-1, LONGEST).T
        heads, ends = zip(*map(_kind, spelt))
        self.heads, self.ends = np.array(heads, np.int32), np.array(ends)

    def typed(self, text: str) -> Typed:
        """Divide a text where the word that has begun begins.

        Example:

        >>> from dualnet.text import ByteTokenizer, Vocabulary
        >>> ByteTokenizer().pieces.typed("The sh")
        Typed(before='The ', word='sh', spelt=b'sh', may_space=False)
        >>> Vocabulary(("The", "<eos>")).pieces.typed("The sh")
        Typed(before='The', word='sh', spelt=b' sh', may_space=False)
        """
        begun = re.search(rf"{patterns()[0]}\Z", text)
        before = text[: begun.start()] if begun else text
        word = text[len(before) :]
        begins = before[-1:] in ("", "\n")
        has_space = self.always_spaced or (self.begins_spaced and begins)
        if (has_space or self.is_spaced) and before[-1:] == " ":
            before, has_space = before[:-1], True
        may_space = not (word or has_space or begins or before[-1] in SPACES)
        spelt = word.lower() if self.lowercase else word
        return Typed(before, word, b" " * has_space + spelt.encode(), may_space)


@functools.cache
def patterns() -> tuple[str, str, str]:
    """Return patterns of a word that has begun, of a whole word, and of its inner characters.

    They are for `re` and RE2; letters are those that this Python knows, the first two kinds of
    which are of scripts with spaces.
    """
    known = "".join(c for c in map(chr, range(0x110000)) if unicodedata.category(c)[0] in "LMN")
    codes = np.array([*map(ord, re.sub(f"[{UNSPACED}]", "", known))])
    runs = np.split(codes, np.flatnonzero(np.diff(codes) > 1) + 1)
    spaced = "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in runs)
    letter, inner = f"[{spaced}{UNSPACED}]", f"[{spaced}{UNSPACED}{APOSTROPHES}]"
    return f"[{spaced}][{spaced}{APOSTROPHES}]*", f"{letter}(?:{inner}*{letter})?", inner


def words_in(text: str) -> list[str]:
    """Return the words of a text, without punctuation.

    Example:

    >>> from dualnet.text.pieces import words_in
    >>> words_in("'I don't,' she said.")
    ['I', "don't", 'she', 'said']
    """
    return re.findall(patterns()[1], text)


def common_words(counts: Counter[str], known: Collection[str]) -> list[str]:
    """Return the commonest words of `counts`, twice or more, that are not `known`, in order.

    Nor numbers, and words that `with_capitals` adds to them.
    """
    letters = Counter({word: count for word, count in counts.items() if word[0].isalpha()})
    common = {word for word, count in letters.most_common(MOST_WORDS) if count > 1}
    lower = {word: word[:1].lower() + word[1:] for word in common.difference(known)}
    return sorted(word for word, own in lower.items() if own == word or own not in common)


def with_capitals(words: Iterable[str]) -> frozenset[str]:
    """Return words, and those that begin with a capital letter, as a sentence does."""
    return frozenset(form for word in words for form in (word, word[:1].upper() + word[1:]))


def _kind(piece: bytes) -> tuple[int, bool]:
    """Return `heads` and `ends` of a token."""
    begun, _, inner = patterns()
    text = piece.decode(errors="replace").replace("\ufffd", "a")  # part of a letter, probably
    head = int(text[:1] == " ")
    is_of_word = re.fullmatch(f"{inner}*", text[head:])
    goes_on = re.match(f"{begun}|[{APOSTROPHES}]", text)
    return head if is_of_word else NOT_OF_A_WORD, not goes_on
