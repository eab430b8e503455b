"""Figures that compare models whatever their tokenisers: per byte, character and word."""

import codecs
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dualnet._checks import finite
from dualnet.builders import LanguageModel
from dualnet.evaluation.arguments import check_tokens, perplexity_of_mean
from dualnet.text import UNK, Tokenizer

CHUNK = 1 << 16  # tokens that are decoded at once
UNPAID = f"the model reads {UNK} for text that its tokeniser does not know"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparable:
    """The result of `comparable`: figures that compare models with different tokenisers.

    Perplexities per token cannot be compared, since tokens hold different amounts of text. These
    figures share the loss of a text out among its bytes, characters and words.

    Attributes:
        bits_per_byte: Total of -log2 p, divided by the number of bytes of the text in UTF-8.
        bits_per_character: The same, divided by the number of its Unicode characters.
        perplexity_per_word: exp of the total of -log p, divided by the number of its words,
            which white space separates; None for a text without words.
        not_comparable: Why the three are None; "" otherwise.
    """

    bits_per_byte: float | None = dataclasses.field(default=None, repr=False)
    bits_per_character: float | None = dataclasses.field(default=None, repr=False)
    perplexity_per_word: float | None = dataclasses.field(default=None, repr=False)
    not_comparable: str = dataclasses.field(default="the text was not counted", repr=False)

    def figures(self) -> dict[str, float | str | None]:
        """Return the attributes above as values of JSON: None for an infinite one, and for ""."""
        names = [field.name for field in dataclasses.fields(Comparable)]
        figures = {name: finite(getattr(self, name)) for name in names}
        return {**figures, "not_comparable": self.not_comparable or None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over texts, from which the figures of all of them follow. They can be added.

    Attributes:
        texts: int. Number of texts.
        nats: float. The sum of -log p of their tokens.
        tokens, num_bytes, characters, words: int. What the texts have of each.
        not_comparable: Why bytes, characters and words were not counted; "" if they were.

    Example:

    >>> from dualnet.evaluation.comparison import Totals
    >>> (Totals(texts=1, nats=2.5, tokens=3) + Totals(texts=1, nats=0.5, tokens=1)).nats
    3.0
    """

    texts: int = 0
    nats: float = 0.0
    tokens: int = 0
    num_bytes: int = 0
    characters: int = 0
    words: int = 0
    not_comparable: str = ""

    def __add__(self, other: "Totals") -> "Totals":
        sums = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return Totals(**{**sums, "not_comparable": self.not_comparable or other.not_comparable})

    @property
    def perplexity(self) -> float:
        return perplexity_of_mean(self.nats / self.tokens) if self.tokens else 1.0

    def comparable(self) -> Comparable:
        """Return the figures of all texts together."""
        if self.not_comparable or not self.num_bytes:
            return Comparable(not_comparable=self.not_comparable or "the text is empty")
        bits = self.nats / math.log(2)
        return Comparable(
            bits_per_byte=bits / self.num_bytes,
            bits_per_character=bits / self.characters if self.characters else None,
            perplexity_per_word=perplexity_of_mean(self.nats / self.words) if self.words else None,
            not_comparable="",
        )


def comparable(
    tokenizer: Tokenizer, ids: np.ndarray | Sequence[np.ndarray], total_nats: float
) -> Comparable:
    """Return the loss of a text per byte, per character and per word.

    There are no such figures where the ids do not tell the text: if `tokenizer.unspelt` is not
    "", or with `<unk>` among the ids, whose text the model has not predicted. `<eos>` counts as
    what it stands for, one newline or two: further blank lines are not predicted, nor counted.

    Args:
        tokenizer: `Tokenizer` of the ids.
        ids: int array `(num_tokens,)`, the tokens that were predicted; or a list of them, texts
            whose words end where they do. A memory-mapped one is read piece by piece.
        total_nats: float. The sum of -log p of the tokens, in nats.

    Example:

    >>> import math
    >>> from dualnet.evaluation import comparable
    >>> from dualnet.text import ByteTokenizer
    >>> ids = ByteTokenizer().encode("läuft")
    >>> figures = comparable(ByteTokenizer(), ids, 12 * math.log(2))
    >>> figures.bits_per_byte, figures.bits_per_character, round(figures.perplexity_per_word)
    (2.0, 2.4, 4096)
    """
    is_one = not isinstance(ids, list | tuple) or not any(map(np.ndim, ids))
    texts = (totals_of(tokenizer, text, 0.0) for text in ([ids] if is_one else ids))
    return sum(texts, Totals(nats=float(total_nats), not_comparable=tokenizer.unspelt)).comparable()


def totals_of(tokenizer: Tokenizer, ids: ArrayLike, nats: float) -> Totals:
    """Return the totals of a text, of which `ids` were predicted with a loss of `nats` in all."""
    array = np.asarray(ids)
    totals = Totals(texts=1, nats=float(nats), tokens=len(array), not_comparable=tokenizer.unspelt)
    if tokenizer.unspelt or not len(array):
        return totals
    array = check_tokens(array, len(tokenizer), least=1, name="ids")
    spelling = tokenizer.spelling
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    num_bytes = characters = words = 0
    in_word = False  # whether the text so far ends within a word
    for start in range(0, len(array), CHUNK):
        chunk = array[start : start + CHUNK]
        if tokenizer.unk_id is not None and (chunk == tokenizer.unk_id).any():
            return dataclasses.replace(totals, not_comparable=UNPAID)
        data = b"".join([spelling[i] for i in chunk.tolist()])
        num_bytes += len(data)
        # A byte 10xxxxxx continues a character: below -64 as a signed integer.
        characters += int(np.count_nonzero(np.frombuffer(data, np.int8) >= -64))
        text = decoder.decode(data, final=start + CHUNK >= len(array))
        if text:
            words += len(text.split()) - (in_word and not text[0].isspace())
            in_word = not text[-1].isspace()
    return dataclasses.replace(totals, num_bytes=num_bytes, characters=characters, words=words)


def figures_of(model: LanguageModel, ids: np.ndarray, total_nats: float) -> dict[str, Any]:
    """Return the fields of the `Comparable` of predicted `ids` of the vocabulary of `model`."""
    if model.vocabulary is None:
        return {"not_comparable": "the model has no vocabulary"}
    return vars(comparable(model.vocabulary, ids, total_nats))
