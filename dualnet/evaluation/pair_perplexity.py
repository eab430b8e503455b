"""The perplexity of targets, given their sources."""

import dataclasses

import numpy as np

from dualnet.builders import TranslationModel, questions
from dualnet.builders.reader import reader_of
from dualnet.corpora import PairCorpus
from dualnet.evaluation.arguments import perplexity_of
from dualnet.evaluation.comparison import Comparable, figures_of

POSITIONS = 8192  # of source and target that are read at a time


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
    reader = reader_of(model, questions.losses)
    batches = corpus.batches(split, tokens_per_batch=POSITIONS, shuffle=False)
    pairs = corpus.split(split)
    totals = np.zeros(len(pairs))
    for index in range(len(batches)):
        inputs, targets, weights = batches[index]
        segment = {"source": inputs["source"], "tokens": inputs["target"], "targets": targets}
        losses = reader.predict_on_batch(segment)["losses"]
        totals[batches.pairs_of(index)] = np.sum(losses.astype(np.float64) * weights, axis=1)
    eos_id = corpus.vocabulary.require_eos()
    ids = [np.append(pairs.target(i), eos_id) for i in range(len(pairs))]
    tokens = batches.num_tokens
    return PairEvaluation(
        perplexity=perplexity_of(np.array([totals.sum() / tokens])),
        tokens=tokens,
        pair_losses=totals,
        **figures_of(model, np.concatenate(ids), float(totals.sum())),
    )
