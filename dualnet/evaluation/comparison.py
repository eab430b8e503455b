"""Figures that compare models whatever their tokenisers: per byte, character and word."""

import codecs
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dualnet._checks import checked, finite
from dualnet.evaluation.arguments import check_tokens
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


@checked
def comparable(
    tokenizer: Tokenizer, ids: np.ndarray | Sequence[np.ndarray], total_nats: float
) -> Comparable:
    """Return the loss of a text per byte, per character and per word.

    There are no such figures where the ids do not tell the text: if `tokenizer.loses` is not
    "", or with `<unk>` among the ids, whose text the model has not predicted. `<eos>` counts as
    what it stands for, one newline or two.

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
    if tokenizer.loses:
        return Comparable(not_comparable=tokenizer.loses)
    several = isinstance(ids, (list, tuple)) and any(map(np.ndim, ids))
    counts = np.zeros(3, np.int64)
    for text in ids if several else [ids]:
        if len(text):
            text = check_tokens(text, len(tokenizer), least=1, name="ids")
            if (of_text := _counts(tokenizer, text)) is None:
                return Comparable(not_comparable=UNPAID)
            counts += of_text
    num_bytes, num_characters, num_words = counts.tolist()
    if not num_bytes:
        return Comparable(not_comparable="the text is empty")
    bits = float(total_nats) / math.log(2)
    per_word = None
    if num_words:
        nats = float(total_nats) / num_words
        per_word = math.inf if nats > 700 else math.exp(nats)
    return Comparable(
        bits_per_byte=bits / num_bytes,
        bits_per_character=bits / num_characters if num_characters else None,
        perplexity_per_word=per_word,
        not_comparable="",
    )


def figures_of(model: Any, ids: np.ndarray, total_nats: float) -> dict[str, Any]:
    """Return the fields of the `Comparable` of predicted `ids` of the vocabulary of `model`."""
    if model.vocabulary is None:
        return {"not_comparable": "the model has no vocabulary"}
    return vars(comparable(model.vocabulary, ids, total_nats))


def _counts(tokenizer: Tokenizer, ids: np.ndarray) -> tuple[int, int, int] | None:
    """Return the number of bytes, characters and words of the text of `ids`; None with `<unk>`."""
    spelling = tokenizer.spelling
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    num_bytes = num_characters = num_words = 0
    in_word = False  # whether the text so far ends within a word
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        if tokenizer.unk_id is not None and (chunk == tokenizer.unk_id).any():
            return None
        data = b"".join([spelling[i] for i in chunk.tolist()])
        num_bytes += len(data)
        # A byte 10xxxxxx continues a character: below -64 as a signed integer.
        num_characters += int(np.count_nonzero(np.frombuffer(data, np.int8) >= -64))
        text = decoder.decode(data, final=start + CHUNK >= len(ids))
        if text:
            num_words += len(text.split()) - (in_word and not text[0].isspace())
            in_word = not text[-1].isspace()
    return num_bytes, num_characters, num_words
