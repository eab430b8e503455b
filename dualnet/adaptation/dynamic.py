"""Dynamic evaluation: the weights keep learning from the text that they are scored on."""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from keras import ops

from dualnet._backend import assign_all, restoring
from dualnet._checks import ArgumentError
from dualnet._fields import documented
from dualnet.adaptation.learner import SegmentLearner, make_learner
from dualnet.adaptation.rules import DecayToPrior, Nadam, NadamWithoutMomentum, Rule
from dualnet.adaptation.statistics import GradientStatistics, in_order, statistics_of
from dualnet.adaptation.step_size import StepSize, segments_of, with_own_settings
from dualnet.adaptation.weights import Adapted, adapted, unfrozen
from dualnet.builders import LanguageModel, bucket_length, check_language_model
from dualnet.builders.sharing import changing
from dualnet.devices import num_devices, whole_batches
from dualnet.evaluation.arguments import check_sentences, check_tokens, perplexity_of
from dualnet.evaluation.comparison import Comparable, figures_of
from dualnet.requests import DynamicEvaluating, Learning


@dataclasses.dataclass(frozen=True)
class DynamicEvaluation(Comparable):
    """The result of `dynamic_evaluation`: `Comparable`, and the trace of its segments.

    Attributes:
        perplexity: exp of the mean loss over all tokens.
        tokens: Number of tokens predicted: all but the first; by sentence, all.
        segment_losses: float64 `(segments,)`, mean loss of each segment in nats, before the
            model learnt from it.
        segment_lengths: int `(segments,)`, tokens of each segment.
        rule: Name of the rule.
        settings: The values that the rule ran with.
        by_sentence: Whether each segment was a sentence, read from the zero state.
        token_losses: float32 `(tokens,)`, -log p of each token in nats, as in `Evaluation`.

    Example:

    >>> import numpy as np
    >>> from dualnet.adaptation import DynamicEvaluation
    >>> DynamicEvaluation(5.0, 4, np.array([1.7, 1.5]), np.array([3, 1]), "sgd", {"decay": 0.1})
    DynamicEvaluation(perplexity=5.0, tokens=4, rule='sgd', settings={'decay': 0.1},
    by_sentence=False)
    """

    perplexity: float
    tokens: int
    segment_losses: np.ndarray = dataclasses.field(repr=False)
    segment_lengths: np.ndarray = dataclasses.field(repr=False)
    rule: str
    settings: dict[str, Any]
    by_sentence: bool = False
    token_losses: np.ndarray = dataclasses.field(
        default_factory=lambda: np.zeros(0, np.float32), repr=False
    )

    @property
    def surprisals(self) -> np.ndarray:
        """-log2 p of each token, in bits: `token_losses` in another unit."""
        return self.token_losses / math.log(2)

    def plot(
        self, path: str | Path, *, static_losses: Sequence[float] | np.ndarray | None = None
    ) -> None:
        """Draw perplexity against position as a PNG.

        `static_losses`, the `Evaluation.token_losses` of the same text, are drawn beside it.
        """
        from dualnet.plots import plot_positions

        curves = {f"dynamic ({self.rule})": np.repeat(self.segment_losses, self.segment_lengths)}
        if static_losses is not None:
            static = np.asarray(static_losses)
            if static.ndim != 1 or not len(static) or static.dtype.kind not in "fiu":
                raise ArgumentError("static_losses", "must be numbers, at least one.")
            curves = {"static": static, **curves}
        plot_positions(curves, path)


def result_of(
    model: Any, targets: Iterable[np.ndarray], losses: Sequence[np.ndarray], **how: Any
) -> DynamicEvaluation:
    """Return the result of segments with these targets, int, and losses, float32, `(tokens,)`.

    `how` are the fields that do not follow from them.
    """
    ids = np.concatenate([np.zeros(0, np.int32), *targets])
    token_losses = np.concatenate([np.zeros(0, np.float32), *losses])
    return DynamicEvaluation(
        perplexity=perplexity_of(token_losses),
        tokens=len(token_losses),
        segment_losses=np.array([part.mean(dtype=np.float64) for part in losses]),
        segment_lengths=np.array([len(part) for part in losses], int),
        token_losses=token_losses,
        **figures_of(model, ids, float(token_losses.sum(dtype=np.float64))),
        **how,
    )


@documented(DynamicEvaluating)
def dynamic_evaluation(
    model: LanguageModel,
    tokens: Any,
    *,
    statistics: Any = None,
    valid: Any = None,
    keep: bool = False,
    **settings: Any,
) -> DynamicEvaluation:
    """Return the loss of `model` on `tokens` while it keeps learning from them.

    The text is read as one stream with carried state, dropouts off. Each segment is scored
    first, then the model takes one step on its mean loss, without penalties. By default, all
    trainable weights that the logits depend on are adapted, which excludes those of `PastDecode`;
    in a model with a gate, also the model below, which is frozen in training, and likewise in the
    members of an ensemble. `adapt` chooses fewer. The weights are restored bit for bit on return
    and on error, unless `keep`. The rule's own state (moments) starts fresh.

    By sentence, each segment is a sentence, which ends with `<eos>`, the last one where the text
    ends. Each is read after `<eos>` from the zero state, scored, and learnt from in one step;
    the weights go on. Every token is predicted once, the first one included.

    Rules:

    - "nadam", as Oliva and Lago-Fernandez: `keras.optimizers.Nadam`.
    - "sgd", as Krause et al.: w <- w - learning_rate g + decay (w0 - w), with w0 the weights
      at the start.
    - "rms", as Krause et al.: w <- w - learning_rate g / (R + epsilon) + min(decay D, 1)
      (w0 - w), where R is the root of the mean squared gradient over the training text and D
      is R divided by its mean (the mean over tensors of each tensor's mean, as in their code).

    Args:
        model: `LanguageModel`.
        tokens: int array `(num_tokens,)`, in reading order.
        {arguments}
        statistics: for "rms", the result of `gradient_statistics`, for this model or another
            one with the same names and shapes of weights, or the int tokens of the training
            text, from which it is computed.
        valid: int array `(num_tokens,)`. A validation text, on which to find the learning rate if
            that is not given or "auto"; by default that of the model's RUN.
        keep: bool. Whether to leave the adapted weights in the model, which has no place for an
            output bias or a matrix of `adapt`.

    Example:

    >>> import numpy as np
    >>> import dualnet
    >>> model = dualnet.zoo.build("dual_lstm", vocabulary_size=9, units=4)
    >>> result = dualnet.dynamic_evaluation(
    ...     model, np.arange(8), rule="sgd", learning_rate=0.1, sequence_length=5
    ... )
    >>> result.segment_lengths
    array([5, 2])

    References: Krause et al., 2018, https://arxiv.org/abs/1709.07432; Oliva and
    Lago-Fernandez, 2021, https://arxiv.org/abs/2112.11776, section 4.2.
    """
    check_language_model("model", model)
    request = DynamicEvaluating.of(settings)
    by_sentence = request.by_sentence
    tokens = check_tokens(tokens, model.vocabulary_size, least=1 if by_sentence else 2)
    if by_sentence:
        check_sentences(model)
    with learning(
        model, request, temperature=request.temperature, statistics=statistics, keep=keep,
        by_text=by_sentence, valid=valid,
    ) as (learn, used, _):  # fmt: skip
        rule, length = used.pop("rule"), used.pop("sequence_length")
        length = None if by_sentence else length
        segments = segments_of(model, tokens, length)
        losses = [learn(ids, alone=by_sentence) for ids in segments]
        result = result_of(
            model,
            [ids[1:] for ids in segments],
            losses,
            rule=rule,
            settings={**used, "sequence_length": length, "temperature": request.temperature},
            by_sentence=bool(by_sentence),
        )
        # The first segment is read before anything is learnt.
        if np.isinf(result.perplexity) and np.isfinite(perplexity_of(losses[0])):
            raise not_finite("perplexity", rule, used)
    return result


@contextlib.contextmanager
def learning(
    model: LanguageModel,
    request: Learning,
    *,
    temperature: float = 1.0,
    statistics: Any = None,
    keep: bool = False,
    by_text: bool = False,
    valid: Any = None,
) -> Iterator[tuple[Callable[..., np.ndarray], dict[str, Any], Any]]:
    """Yield the function that learns a segment, the rule and settings that it learns with, and
    what `reader_of` reads to see what was learnt: the model, or that with the weights added to it.

    `learn(ids, alone=False, states=None)` scores the ids but the first, takes one step on their
    mean loss, and returns the loss of each, float32 `(ids - 1,)`. State is carried from segment to
    segment, or if `alone` is that of `states`, by default zero. Only the last segment may be
    shorter than one before, unless it is `alone`. When the context ends, the weights are restored,
    unless `keep` and there was no error.

    `by_text` says that every segment is `alone`; `valid` is as for `dynamic_evaluation`.
    """
    request = with_own_settings(model, request, by_text=by_text)
    which = adapted(model, request.which())
    if keep and which.adds:
        message = "must be False with weights that are added to the model."
        raise ArgumentError("keep", f"{message} Received: keep=True, adapt={which.items}.")
    step_size = StepSize(model, request, by_text=by_text, temperature=temperature, valid=valid)
    rule, settings = step_size.rule, step_size.settings
    weights = list(which.weights.values())
    with changing(which.graph.core.weights), restoring(weights, keep=keep):
        with unfrozen(model), which.learning(), whole_batches():
            optimizer = _optimizer(which, rule, settings, statistics)
            learner = make_learner(which.graph, optimizer, batch_size=1)
            step = [rule, {**settings, "learning_rate": None}, [*map(id, weights)], num_devices()]
            # The last learner, if it has compiled this step. After an error, none is kept.
            last_step, last = _learners.pop(model, (None, learner))
            if last_step == step:
                assign_all(last.state, learner.state)
                learner = last
            longest = 0

            def learn(ids: np.ndarray, *, alone: bool = False, states: Any = None) -> np.ndarray:
                nonlocal longest
                count = len(ids) - 1
                if alone:
                    learner.stream_state.restart()
                    if states is not None:
                        learner.stream_state.write(states)
                # Each length is compiled. What follows a word has no part in its loss, so that
                # padding may be any word, if it does not count.
                longest = bucket_length(count) if alone else max(longest, count)
                weights, pads = np.ones((1, count), np.float32), ((0, 0), (0, longest - count))
                segment = {"tokens": ids[None, :-1], "targets": ids[None, 1:], "weights": weights}
                segment = {name: np.pad(array, pads) for name, array in segment.items()}
                if temperature != 1:
                    segment["temperature"] = np.full((1, 1), temperature, np.float32)
                logs = learner.train_on_batch(segment, return_dict=True)
                if not math.isfinite(float(logs["loss"])):
                    raise not_finite("losses", rule, settings)
                return ops.convert_to_numpy(logs["losses"])[0, :count]

            if step_size.is_open:
                settings["learning_rate"] = step_size.rate(learner, learn)
                learner.optimizer.learning_rate = settings["learning_rate"]
            of_weights = {"adapt": which.items} if which.items else {}
            used = {"rule": rule, **settings, **of_weights}
            yield learn, used, which if which.adds else model
        if keep and not all(np.isfinite(ops.convert_to_numpy(w)).all() for w in weights):
            raise not_finite("weights", rule, settings)
        _learners[model] = step, learner
        if skipped := int(learner.optimizer.skipped):
            message = f"{skipped} of the updates had gradients that are not finite, and changed"
            way_out = "Take a smaller learning_rate, or set clipnorm."
            warnings.warn(f"{message} nothing. {way_out}", stacklevel=3)


def not_finite(what: str, rule: str, settings: Mapping[str, Any]) -> ArgumentError:
    received = f"Received: rule={rule!r}, learning_rate={settings['learning_rate']:g},"
    message = f"must keep the {what} finite. {received} which does not."
    return ArgumentError("learning_rate", message, " Take a smaller one, or set clipnorm.")


# The last learner of each model, and what its step is made of.
_learners: WeakKeyDictionary[LanguageModel, tuple[list[Any], SegmentLearner]] = WeakKeyDictionary()


def _optimizer(which: Adapted, rule: str, settings: Mapping[str, Any], statistics: Any) -> Rule:
    """Return the optimizer of `rule` for the weights that learn."""
    settings = dict(settings)
    length = settings.pop("sequence_length")
    if rule == "rms":
        if statistics is None:
            kinds = "the int tokens of the training text, or `gradient_statistics(model, tokens)`"
            message = f"must be given for the rule 'rms': {kinds}. Received: None."
            raise ArgumentError("statistics", message)
        if not isinstance(statistics, GradientStatistics):
            statistics = statistics_of(which, statistics, sequence_length=length, name="statistics")
        return DecayToPrior(statistics=in_order(statistics, which), **settings)
    if statistics is not None:
        required = "is for the rule 'rms' only."
        raise ArgumentError("statistics", f"{required} Received: statistics with rule={rule!r}.")
    if rule == "sgd":
        return DecayToPrior(**settings)
    kind = Nadam if settings["beta_1"] else NadamWithoutMomentum
    return kind(name="nadam", **settings)
