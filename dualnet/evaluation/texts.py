"""Scores of texts, word by word."""

import dataclasses
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from dualnet._checks import ArgumentError
from dualnet._columns import Column, ManyTexts, Results, columns_of, texts_of
from dualnet.builders import LanguageModel, TranslationModel, questions, reader_of
from dualnet.evaluation import scoring
from dualnet.evaluation.arguments import check_translators, perplexity_of, vocabulary_with_eos
from dualnet.evaluation.comparison import Comparable, Totals, totals_of
from dualnet.evaluation.pair_perplexity import pair_answers
from dualnet.evaluation.words import words_of
from dualnet.requests import Scoring
from dualnet.text.plain_text import check_line


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

    def __repr__(self) -> str:
        words = reprlib.repr(self.words)
        return f"Score(words={words}, perplexity={self.perplexity:.4g}, tokens={self.tokens})"

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each token; needs the extra `pandas`."""
        return Scores([self]).to_frame()


class Scores(Results[Score]):
    """A list of `Score`, of which `to_frame` makes a table with a row for each token."""

    def rows(self) -> Iterator[dict[str, Any]]:
        for sentence_id, score in enumerate(self, 1):
            pairs = zip(score.words, score.log_probabilities.tolist())
            for token_id, (token, log_probability) in enumerate(pairs, 1):
                ids = {"sentence_id": sentence_id, "token_id": token_id, "token": token}
                yield {**ids, "log_probability": log_probability}


@overload
def score(
    model: LanguageModel, text: str, *, temperature: float = 1.0, source: str | None = None
) -> Score: ...


@overload
def score(
    model: LanguageModel,
    text: ManyTexts,
    *,
    temperature: float = 1.0,
    column: Column | None = None,
    source: ManyTexts | Column | None = None,
) -> Scores: ...


def score(
    model: LanguageModel,
    text: ManyTexts,
    *,
    temperature: float = 1.0,
    column: Column | None = None,
    source: ManyTexts | Column | None = None,
) -> Score | Scores:
    """Return the log-probability of each word of a text, or of each of several texts.

    A text begins after `<eos>`, in the zero state, so that its first word is scored, too; each
    newline in it, or whatever ends a document, is one `<eos>`, which is scored. Texts of similar
    length are read together, padded; the scores of a text do not depend on the others beyond
    float rounding.

    A model that translates scores each text as a translation of its `source`: as a whole, so that
    `<eos>` is its last token. The sum of the log-probabilities is the score of `translations`.

    Args:
        model: `LanguageModel` with a vocabulary that has `<eos>`, or `TranslationModel`.
        text: str; a sequence, NumPy array or pandas column of str; or a table with `column`.
        temperature: float above 0; logits are divided by it.
        column: str or int. The column that holds the texts, if `text` is a table: a DataFrame or
            a dict of columns.
        source: What `text` translates, for a model that translates, and for no other: a str; a
            sequence, NumPy array or pandas column with one for each text; or, if `text` is a
            table, the name of its column.

    Returns:
        `Score` for a str; for any other a list of them, in its order. `to_frame()` of either is a
        `pandas.DataFrame` with a row for each token, under the labels of the texts.

    Example:

    >>> import dualnet
    >>> from dualnet.text import Vocabulary
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=4, units=4)
    >>> model.vocabulary = Vocabulary(("the", "cat", "<unk>", "<eos>"))
    >>> dualnet.score(model, "the cat sat").words
    ('the', 'cat', '<unk>')
    """
    texts, labels, is_one = texts_of("text", text, column)
    Scoring(temperature=temperature)
    sources = _source_ids(model, text, texts, source)
    scored = [of_text for of_text, _ in scores_of(model, texts, sources, temperature)]
    return scored[0] if is_one else Scores(scored, labels)


def scores_of(
    model: LanguageModel, texts: Sequence[str], sources: list[np.ndarray], temperature: float
) -> Iterator[tuple[Score, Totals]]:
    """Yield the score of each text, and its part in the totals of all.

    For a model that translates, `sources` are the ids of what each text translates; for any other
    there are none.
    """
    if isinstance(model, TranslationModel):
        vocabulary = model.vocabulary
        words = [words_of(vocabulary, check_line("text", item)) for item in texts]
        losses = pair_answers(model, sources, [item.ids for item in words], temperature=temperature)
        words = [item.ended(vocabulary.require_eos()) for item in words]
    else:
        vocabulary, eos_id = vocabulary_with_eos(model)
        words = [words_of(vocabulary, item) for item in texts]
        streams = [np.append(np.int32(eos_id), item.ids) for item in words]
        reader = reader_of(model, questions.losses)
        losses = scoring.read(reader, streams, temperature=temperature)["losses"]
    for item, row in zip(words, losses):
        totals = totals_of(vocabulary, item.ids, row.sum(dtype=np.float64))
        score = Score(
            words=tuple(vocabulary.words[i] for i in item.ids),
            log_probabilities=-row,
            perplexity=perplexity_of(row),
            tokens=len(row),
            whole_words=item.words,
            whole_word_log_probabilities=-item.sums(row),
            **vars(totals.comparable()),
        )
        yield score, totals


def _source_ids(
    model: LanguageModel, text: ManyTexts, texts: list[str], source: ManyTexts | Column | None
) -> list[np.ndarray]:
    """Return the ids of the source of each of `texts`; [] for a language model.

    `text` and `source` are the arguments of `score`.
    """
    if isinstance(model, TranslationModel) != (source is not None):
        raise ArgumentError(
            "source",
            "must be what `text` translates, for a model that translates and for no other.",
            model=getattr(model, "name", model),
        )
    if not isinstance(model, TranslationModel):
        return []
    check_translators([model])
    is_column = columns_of(text) is not None and isinstance(source, Column)
    table_or_texts = (text, source) if is_column else (source,)
    source_texts = texts_of("source", *table_or_texts, called="source").texts
    if len(source_texts) != len(texts):
        raise ArgumentError(
            "source", f"must be one for each text. Received: {len(source_texts)} for {len(texts)}."
        )
    encode = model.source_vocabulary.encode
    return [encode(check_line("source", item)) for item in source_texts]
