"""Scores of texts, word by word."""

import dataclasses
from collections.abc import Sequence
from typing import overload

import numpy as np

from dualnet._checks import as_texts, checked
from dualnet.builders import LanguageModel, questions
from dualnet.builders.reader import reader_of
from dualnet.evaluation import scoring
from dualnet.evaluation.arguments import perplexity_of, vocabulary_with_eos
from dualnet.evaluation.comparison import Comparable, figures_of
from dualnet.evaluation.words import words_of
from dualnet.requests import Scoring


@dataclasses.dataclass(frozen=True)
class Score(Comparable):
    """The result of `score` for one text, with the figures of `Comparable`.

    Attributes:
        words: The tokens as the model read them, words or parts of words: `<unk>` for an
            unknown one, `<eos>` for a document's end, by default a newline.
        log_probabilities: float32 `(tokens,)`, log p of each token in nats, given those
            before it.
        perplexity: exp of the mean of -log p, summed in float64. 1 without tokens: an empty
            text has probability 1, the empty product, and JSON has no nan.
        tokens: Number of tokens.
        whole_words: The words of the text as it has them, which white space separates, and
            `<eos>`; `surprisal` says which tokens belong to each.
        whole_word_log_probabilities: float64 `(whole_words,)`, the sum of `log_probabilities`
            over the tokens of each word; of a model of words, these themselves.
    """

    words: tuple[str, ...]
    log_probabilities: np.ndarray = dataclasses.field(repr=False, compare=False)
    perplexity: float
    tokens: int
    whole_words: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    whole_word_log_probabilities: np.ndarray = dataclasses.field(
        default_factory=lambda: np.zeros(0), repr=False, compare=False
    )


@overload
def score(  # type: ignore[overload-overlap]  # a str is a sequence of str
    model: LanguageModel, text: str, *, temperature: float = 1.0
) -> Score: ...


@overload
def score(
    model: LanguageModel, text: Sequence[str], *, temperature: float = 1.0
) -> list[Score]: ...


@checked
def score(
    model: LanguageModel, text: str | Sequence[str], *, temperature: float = 1.0
) -> Score | list[Score]:
    """Return the log-probability of each word of a text, or of each of several texts.

    A text begins after `<eos>`, in the zero state, so that its first word is scored, too; each
    newline in it, or whatever ends a document, is one `<eos>`, which is scored. Texts of similar
    length are read together, padded; the scores of a text do not depend on the others beyond
    float rounding.

    Args:
        model: `LanguageModel` with a vocabulary that has `<eos>`.
        text: str, or a sequence of str.
        temperature: float above 0; logits are divided by it.

    Returns:
        `Score` for a str; for a sequence a list of them, in its order.

    Example:

    >>> import dualnet
    >>> from dualnet.text import Vocabulary
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=4, units=4)
    >>> model.vocabulary = Vocabulary(("the", "cat", "<unk>", "<eos>"))
    >>> dualnet.score(model, "the cat sat").words
    ('the', 'cat', '<unk>')
    """
    texts = as_texts(text)
    Scoring(temperature=temperature)
    vocabulary, eos_id = vocabulary_with_eos(model)
    start = np.array([eos_id], np.int32)
    words = [words_of(vocabulary, item) for item in texts]
    streams = [np.concatenate([start, item.ids]) for item in words]
    reader = reader_of(model, questions.losses)
    losses = scoring.read(reader, streams, temperature=temperature)["losses"]
    scores = [
        Score(
            words=tuple(vocabulary.words[i] for i in stream[1:]),
            log_probabilities=-row,
            perplexity=perplexity_of(row),
            tokens=len(row),
            whole_words=item.words,
            whole_word_log_probabilities=-item.sums(row),
            **figures_of(model, stream[1:], row.sum(dtype=np.float64)),
        )
        for item, stream, row in zip(words, streams, losses)
    ]
    return scores[0] if isinstance(text, str) else scores
