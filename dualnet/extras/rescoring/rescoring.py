"""N-best lists rescored by language models and translators."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from dualnet._checks import ArgumentError
from dualnet._fields import documented
from dualnet.adaptation.adapted_copy import Adaptation, AdaptedCopy
from dualnet.adaptation.dynamic import adapting
from dualnet.builders import LanguageModel, TranslationModel, questions, reader_of
from dualnet.evaluation import scoring
from dualnet.evaluation.arguments import check_sentences, check_translators, vocabulary_with_eos
from dualnet.evaluation.pair_perplexity import pair_answers
from dualnet.extras.rescoring.lists import Hypothesis, NBest, numbered, weighted, with_scores
from dualnet.extras.rescoring.tuning import check_lists
from dualnet.requests import Rescoring, RescoringArguments
from dualnet.text import Tokenizer
from dualnet.text.plain_text import check_line, check_text

DIGITS = 6  # of a log-probability, so that a written list has the numbers that were used

Readable = LanguageModel | AdaptedCopy
Pair = tuple[NBest, str | None]  # a list and its source
Models = LanguageModel | Sequence[LanguageModel] | Mapping[str, LanguageModel]


@documented(Rescoring)
def rescore(
    models: Models,
    nbest: Iterable[NBest],
    *,
    weights: Mapping[str, float] | None = None,
    sources: Iterable[str] | None = None,
    statistics: Any = None,
    **settings: Unpack[RescoringArguments],
) -> list[NBest]:
    """Return n-best lists with the scores of models as new features, and a new score.

    The features of a hypothesis are those that it came with, its old score as `base`, its number
    of words as `length` (a list that has features of these names keeps them), and for each model
    its log-probability in nats, that of the `<eos>` at its end included. The new score is the sum
    of the features times their weights, where a feature that a hypothesis lacks is `missing`. The
    order of the hypotheses stays; `NBest.best` is the one of the highest score.

    Each hypothesis is read from the zero state, after `<eos>`; with `carry`, in the state in which
    the best hypothesis of the list before left the model, as in running text. With `adapt`, the
    language models learn from the best hypothesis of a list, in one step, before they score the
    next list, by the rules of `dynamic_evaluation`, each in a copy of its weights. Both read the
    lists one by one, in their order, and so are slower.

    Args:
        models: a `LanguageModel` with a vocabulary, several, or a dict of the name of a feature to
            a model. A `TranslationModel` scores its target given the source. May be empty.
        nbest: `NBest`, any iterable, such as what `read_nbest` returns.
        weights: dict of a feature, which some hypothesis has, to its weight, such as `tune`
            returns; a feature that is not there has 0. By default each model has 1.
        sources: str for each list: the texts that were translated. For translators alone.
        {arguments}
        statistics: As for `dynamic_evaluation`; only with `adapt`. May be a dict by the name of
            the feature.

    Returns:
        A list of `NBest`.

    Raises:
        ValueError: if a name is taken by a feature of the lists, if no hypothesis has the feature
            of a weight, or if sources are missing.

    Example:

    >>> import dualnet
    >>> from dualnet.rescoring import Hypothesis, NBest
    >>> from dualnet.text import Vocabulary
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=4, units=4)
    >>> model.vocabulary = Vocabulary(("the", "cat", "<unk>", "<eos>"))
    >>> lists = [NBest(0, (Hypothesis("the cat", score=-2.0), Hypothesis("the the cat")))]
    >>> [found] = dualnet.rescore({"lm": model}, lists, weights={"length": 1.0})
    >>> found.best.text, list(found.hypotheses[0].features)
    ('the the cat', ['base', 'length', 'lm'])

    References: Yao et al., 2015, https://arxiv.org/abs/1508.03790, Table 2; Takase et al., 2018,
    https://aclanthology.org/D18-1489, section 7
    """
    request = Rescoring.of(settings)
    if not isinstance(models, Mapping):
        models = [models] if isinstance(models, LanguageModel) else list(models)
        models = dict(zip(numbered(model.name for model in models), models))
    lists = list(nbest)
    check_lists(lists, models, weights)  # before anything is scored
    if sources is not None:
        sources = list(sources)
        if len(sources) != len(lists):
            raise ArgumentError(
                "sources",
                f"must be one for each list. Received: {len(sources)} for {len(lists)} lists.",
            )
    return list(rescored(models, lists, request, weights, sources, statistics))


def rescored(
    models: Mapping[str, LanguageModel],
    nbest: Iterable[NBest],
    request: Rescoring,
    weights: Mapping[str, float] | None = None,
    sources: Iterable[str] | None = None,
    statistics: Any = None,
) -> Iterator[NBest]:
    """Yield the lists of `rescore`; with `carry` or `adapt` each before the next is read."""
    request.check_adapts(statistics=statistics)
    carry, adapt = request.carry, request.adapt
    scorers = [_Scorer(name, model) for name, model in models.items()]
    readers = [scorer for scorer in scorers if not scorer.translates] if carry or adapt else []
    if weights is None:
        weights = dict.fromkeys(models, 1.0)
    translators = [scorer.name for scorer in scorers if scorer.translates]
    if bool(translators) != (sources is not None):
        received = f"{translators[0]!r}, which does" if translators else "no model that does"
        raise ArgumentError(
            "sources", f"must be given if a model translates, else not. Received: {received}."
        )
    if (carry or adapt) and not readers:
        raise ArgumentError(
            "adapt" if adapt else "carry", "must be False without a language model. Received: True."
        )
    pairs = zip(nbest, itertools.repeat(None) if sources is None else sources)
    with contextlib.ExitStack() as stack:
        for scorer in readers if adapt else []:
            check_sentences(scorer.model, "adapt")
            of_model = statistics
            if isinstance(statistics, Mapping):
                of_model = statistics.get(scorer.name)
            context = adapting(scorer.model, request, statistics=of_model, by_text=True)
            scorer.adaptation = stack.enter_context(context)
        for block in ([pair] for pair in pairs) if readers else [list(pairs)]:
            columns = {scorer.name: iter(scorer.score(block).tolist()) for scorer in scorers}
            for one_list, _ in block:
                rescored = weighted(with_scores(one_list, columns), weights, request.missing)
                yield rescored
            for scorer in readers:
                scorer.read(rescored.best, carry=carry)


class _Scorer:
    """A model, the name of its feature, and the states that its next hypotheses begin in."""

    def __init__(self, name: str, model: LanguageModel) -> None:
        self.name, self.model = name, model
        self.translates = isinstance(model, TranslationModel)
        self.vocabulary: Tokenizer
        if isinstance(model, TranslationModel):
            check_translators([model])
            self.vocabulary = model.vocabulary
            self.eos_id = self.vocabulary.require_eos()
        else:
            self.vocabulary, self.eos_id = vocabulary_with_eos(model)
        self.states: list[np.ndarray] | None = None
        self.adaptation: Adaptation | None = None

    @property
    def adapted(self) -> Readable:
        """What `reader_of` reads: the model, or the copy that adapts."""
        return self.model if self.adaptation is None else self.adaptation.copy

    def stream(self, text: str) -> np.ndarray:
        ids = self.vocabulary.encode(check_text("nbest", text))
        return np.concatenate([[self.eos_id], ids, [self.eos_id]]).astype(np.int32)

    def score(self, block: Sequence[Pair]) -> np.ndarray:
        """Return the log-probability, in nats, of each hypothesis, float64 `(hypotheses,)`."""
        streams = [self.stream(item.text) for nbest, _ in block for item in nbest.hypotheses]
        if isinstance(self.model, TranslationModel):
            encode = self.model.source_vocabulary.encode
            sources = []
            for nbest, source in block:
                sources += [encode(check_line("sources", source or ""))] * len(nbest.hypotheses)
            losses = pair_answers(self.model, sources, [stream[1:-1] for stream in streams])
        else:
            reader = reader_of(self.adapted, questions.losses)
            losses = scoring.read(reader, streams, begin=self.states)["losses"]
        return np.round([-row.sum(dtype=np.float64) for row in losses], DIGITS)

    def read(self, best: Hypothesis, *, carry: bool) -> None:
        """Learn from the best hypothesis of a list, and carry the state over it."""
        stream = self.stream(best.text)
        states = state_after(self.adapted, stream[:-1], self.states) if carry else None
        if self.adaptation is not None:
            self.adaptation.learn(stream, alone=True, states=self.states)
        self.states = states


def state_after(
    model: Readable, ids: np.ndarray, states: Sequence[np.ndarray] | None = None
) -> list[np.ndarray]:
    """Return the states `(1, size)` of a language model after it read `ids`.

    Powers of two, and `WORK` at most, are read at a time, without padding: few shapes are compiled.
    """
    reader = reader_of(model, questions.losses)
    if states is None:
        states = reader.graph.begin(1)
    while len(ids):
        tokens = ids[None, : min(1 << (len(ids).bit_length() - 1), scoring.WORK)]
        segment = {"tokens": tokens, "targets": tokens, "states": list(states)}
        states = reader.predict_on_batch(segment)["states"]
        ids = ids[tokens.shape[1] :]
    return list(states)
