"""The perplexity of targets, given their sources."""

import dataclasses

import numpy as np

from dualnet.builders import Question, TranslationModel, questions, reader_of
from dualnet.corpora import PairCorpus, PairSplit
from dualnet.corpora.pair_batches import PairBatches
from dualnet.evaluation.arguments import perplexity_of
from dualnet.evaluation.comparison import Comparable, figures_of

POSITIONS = 8192  # of source and target that are read at a time
Rows = list[np.ndarray]  # one for each pair


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairEvaluation(Comparable):
    """The result of `evaluate_pairs`, with the figures of `Comparable` for the target.

    Attributes:
        perplexity: exp of the mean loss of all target tokens, `<eos>` included.
        tokens: Number of tokens predicted.
        pair_losses: float64 `(pairs,)`, -log p of each target in nats, in the order of the
            split.
    """

    perplexity: float
    tokens: int
    pair_losses: np.ndarray = dataclasses.field(repr=False)


def evaluate_pairs(model: TranslationModel, corpus: PairCorpus, split: str) -> PairEvaluation:
    """Return the perplexity of the targets of a split, each given its source.

    Args:
        model: `TranslationModel`.
        corpus: `PairCorpus` with the vocabularies of the model.
        split: "train", "valid" or "test".

    Example:

    >>> from dualnet import corpora
    >>> from dualnet.builders import encoder_decoder
    >>> from dualnet.evaluation.pair_perplexity import evaluate_pairs
    >>> corpus = corpora.load_pairs("numbers")
    >>> model = encoder_decoder(len(corpus.vocabulary), units=4)
    >>> model.vocabulary = corpus.vocabulary
    >>> evaluate_pairs(model, corpus, "test").tokens == corpus.batches("test").num_tokens
    True
    """
    model.check_words("corpus", corpus)
    batches = corpus.batches(split, tokens_per_batch=POSITIONS, shuffle=False)
    pairs = corpus.split(split)
    losses = _answers(model, batches, questions.losses, "losses", 1.0)
    totals = np.array([row.sum(dtype=np.float64) for row in losses])
    eos_id = corpus.vocabulary.require_eos()
    ids = [np.append(pairs.target(i), eos_id) for i in range(len(pairs))]
    tokens = batches.num_tokens
    return PairEvaluation(
        perplexity=perplexity_of(np.array([totals.sum() / tokens])),
        tokens=tokens,
        pair_losses=totals,
        **figures_of(model, np.concatenate(ids), float(totals.sum())),
    )


def pair_answers(
    model: TranslationModel,
    sources: Rows,
    targets: Rows,
    question: Question = questions.losses,
    name: str = "losses",
    temperature: float = 1.0,
) -> Rows:
    """Return the answer `name` to `question` for the ids of each target and `<eos>` after them.

    By default, that is -log p in nats. `sources` and `targets` are int arrays; logits are divided
    by the `temperature`.
    """
    assert model.vocabulary is not None
    if not sources:
        return []
    pairs = PairSplit.of([sources, targets])
    batches = PairBatches(
        pairs, vocabulary=model.vocabulary, tokens_per_batch=POSITIONS, shuffle=False
    )
    return _answers(model, batches, question, name, temperature)


def _answers(
    model: TranslationModel, batches: PairBatches, question: Question, name: str, temperature: float
) -> Rows:
    """Return the answer for the tokens of each target, `<eos>` included, in the order of pairs."""
    reader = reader_of(model, question)
    answers: dict[int, np.ndarray] = {}
    for index in range(len(batches)):
        inputs, targets, weights = batches[index]
        segment = {"source": inputs["source"], "tokens": inputs["target"], "targets": targets}
        if temperature != 1:
            segment["temperature"] = np.full((len(targets), 1), temperature, np.float32)
        answer = reader.predict_on_batch(segment)[name]
        answers |= {
            pair: row[: int(count)]
            for pair, row, count in zip(batches.pairs_of(index), answer, weights.sum(axis=1))
        }
    return [answers[pair] for pair in range(len(answers))]
