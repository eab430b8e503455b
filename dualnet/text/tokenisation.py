"""Tells a text that white space does not separate into words."""

from __future__ import annotations

from collections.abc import Sequence

from dualnet.text.plain_text import EOS, UNK

LONG = 12  # characters; the mean is about 5 in English and 8 in Finnish
UNKNOWN = 1 / 3


def tokenisation_warning(words: Sequence[str], *, what: str) -> str:
    """Return a warning if the text does not look tokenised, else "".

    Args:
        words: Words as a model reads them, `<eos>` and `<unk>` among them.
        what: What the warning calls the text.

    Example:

    >>> from dualnet.text.tokenisation import tokenisation_warning
    >>> tokenisation_warning("the cat sat on the <unk> <eos>".split(), what="this text")
    ''
    >>> tokenisation_warning(["<unk>", "<eos>"], what="this text").split(":")[0]
    'Warning'
    """
    words = [word for word in words if word != EOS]
    if not words:
        return ""
    known = [word for word in words if word != UNK]
    length = sum(map(len, known)) / max(1, len(known))
    unknown = 1 - len(known) / len(words)
    if unknown > UNKNOWN:
        finding = f"{unknown:.0%} of the words are unknown"
    elif length > LONG:
        finding = f"the words have {length:.0f} characters on average"
    elif len(words) > 100 and len({*known}) < 2:
        finding = "there is only one word"
    else:
        return ""
    return (
        f"Warning: in {what}, {finding}. White space separates words. Tokenise the text first, so "
        "that it has white space between its words."
    )
