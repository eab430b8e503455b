"""Dynamic evaluation: the weights keep learning from the text that they are scored on."""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack
from weakref import WeakKeyDictionary

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from dualnet._backend import assign_all, restoring, sum_of
from dualnet._checks import ArgumentError
from dualnet._fields import documented
from dualnet.adaptation.adapted_copy import Adaptation, AdaptedCopy, not_finite
from dualnet.adaptation.rules import DecayToPrior, Nadam, NadamWithoutMomentum, Rule
from dualnet.adaptation.statistics import (
    GradientStatistics,
    Statistics,
    in_order,
    statistics_of,
)
from dualnet.adaptation.step_size import found_rate, is_open, segments_of, with_own_settings
from dualnet.adaptation.weights import Adapted, adapted
from dualnet.builders import LanguageModel, check_language_model, names_in
from dualnet.devices import num_devices, whole_batches
from dualnet.evaluation.arguments import check_sentences, check_tokens, perplexity_of
from dualnet.evaluation.comparison import Comparable, figures_of
from dualnet.requests import (
    AdaptationRule,
    AdaptingTexts,
    DynamicEvaluating,
    DynamicEvaluatingArguments,
)


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
            curves = {"static": np.asarray(static_losses), **curves}
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
    tokens: ArrayLike,
    *,
    statistics: Statistics | None = None,
    valid: ArrayLike | None = None,
    keep: bool = False,
    **settings: Unpack[DynamicEvaluatingArguments],
) -> DynamicEvaluation:
    """Return the loss of `model` on `tokens` while it keeps learning from them.

    The text is read as one stream with carried state, dropouts off. Each segment is scored
    first, then the model takes one step on its mean loss, without penalties. By default, all
    trainable weights that the logits depend on are adapted, which excludes those of `PastDecode`;
    in a model with a gate, also the model below, which is frozen in training, and likewise in the
    members of an ensemble. `adapt` chooses fewer. A copy of the weights adapts; the model itself
    never changes, unless `keep`. The rule's own state (moments) starts fresh.

    By sentence, each segment is a sentence, which ends with `<eos>`, the last one where the text
    ends. Each is read after `<eos>` from the zero state, scored, and learnt from in one step;
    the weights go on. Every token is predicted once, the first one included.

    Rules:

    - "nadam", as Oliva and Lago-Fernandez: `keras.optimizers.Nadam`; its defaults are ours.
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
            text, from which it is computed; by default the text of the model's RUN.
        valid: int array `(num_tokens,)`. A validation text, on which to find the learning rate if
            that is not given or "auto"; by default that of the model's RUN.
        keep: bool. Whether to assign the adapted weights to the model at the end, which has no
            place for an output bias or a matrix of `adapt`, and must not have changed meanwhile.

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
    with adapting(
        model,
        request,
        temperature=request.temperature,
        statistics=statistics,
        keep=keep,
        by_text=by_sentence,
        valid=valid,
    ) as adaptation:
        length = None if by_sentence else int(adaptation.settings["sequence_length"])
        segments = segments_of(model, tokens, length)
        losses = [adaptation.learn(ids, alone=by_sentence) for ids in segments]
        result = result_of(
            model,
            [ids[1:] for ids in segments],
            losses,
            rule=adaptation.rule,
            settings={
                **adaptation.used(),
                "sequence_length": length,
                "temperature": request.temperature,
            },
            by_sentence=bool(by_sentence),
        )
        # The first segment is read before anything is learnt.
        if np.isinf(result.perplexity) and np.isfinite(perplexity_of(losses[0])):
            raise not_finite("perplexity", adaptation.rule, adaptation.settings)
    return result


# Of each model, a copy that nobody adapts, and what its compiled step is made of.
_idle: WeakKeyDictionary[LanguageModel, tuple[list[Any], AdaptedCopy]] = WeakKeyDictionary()


@contextlib.contextmanager
def adapting(
    model: LanguageModel,
    request: AdaptationRule,
    *,
    temperature: float = 1.0,
    statistics: Statistics | None = None,
    keep: bool = False,
    by_text: bool = False,
    valid: ArrayLike | None = None,
) -> Iterator[Adaptation]:
    """Yield the adaptation of a copy of the weights of `model`, which never changes itself.

    With `keep`, the model has what was learnt when the context ends without an error. `by_text`
    says that every segment is `alone`; `valid` is as for `dynamic_evaluation`.
    """
    request = with_own_settings(model, request, by_text=by_text)
    name = "adapt_weights" if isinstance(request, AdaptingTexts) else "adapt"
    which = adapted(model, request.which(), cache=request.cache, name=name)
    if keep and which.adds:
        message = "must be False with weights that are added to the model."
        raise ArgumentError("keep", f"{message} Received: keep=True, {name}={which.items}.")
    rule, settings = request.rule or "nadam", request.of_rule()
    finds_rate = is_open(model, request, valid)
    if rule == "rms" and statistics is None and model.run is not None:
        statistics = model.run.training_text()
    with whole_batches():
        optimizer = _optimizer(which, rule, settings, statistics)
        parts = which.items, [*which.weights], which.cache
        compiled = [rule, {**settings, "learning_rate": None}, parts, num_devices()]
        idle_compiled, copy = _idle.pop(model, (None, None))
        if copy is None or idle_compiled != compiled:
            copy = AdaptedCopy(which, optimizer, batch_size=1)
        else:
            copy.begin(optimizer)
        before = sum_of(copy.weight_copy.copies.values()) if keep else 0
        adaptation = Adaptation(copy, rule, settings, which.items, temperature)
        if finds_rate:
            is_asked = valid is not None or request.learning_rate is not None
            rate = found_rate(model, adaptation, by_text=by_text, valid=valid, is_asked=is_asked)
            settings["learning_rate"] = copy.optimizer.learning_rate = rate
        yield adaptation
        if keep:
            _keep(adaptation, which.weights, before)
        _idle[model] = compiled, copy
    if skipped := int(copy.optimizer.skipped):
        message = f"{skipped} of the updates had gradients that are not finite, and changed"
        way_out = "Take a smaller learning_rate, or set clipnorm."
        warnings.warn(f"{message} nothing. {way_out}", stacklevel=3)


def _keep(adaptation: Adaptation, weights: Mapping[str, keras.Variable], before: int) -> None:
    """Assign to `weights` what their copies learnt, if the `sum_of` all is as `before`."""
    learnt = [adaptation.copy.weight_copy.copies[name] for name in weights]
    if not all(np.isfinite(ops.convert_to_numpy(copy)).all() for copy in learnt):
        raise not_finite("weights", adaptation.rule, adaptation.settings)
    if sum_of(names_in(adaptation.copy.graph.core).values()) != before:
        required = "must be False where the model itself changes meanwhile."
        raise ArgumentError("keep", f"{required} Received: a model with other weights than before.")
    with restoring(weights.values(), keep=True):  # all of them, or none
        assign_all(weights.values(), [ops.copy(copy) for copy in learnt])


def _optimizer(
    which: Adapted,
    rule: str,
    settings: Mapping[str, float],
    statistics: Statistics | None,
) -> Rule:
    """Return the optimizer of `rule` for the weights that adapt."""
    settings = dict(settings)
    length = int(settings.pop("sequence_length"))
    if rule == "rms":
        if statistics is None:
            raise ArgumentError(
                "statistics",
                "must be given for the rule 'rms', which needs the text that the model was "
                "trained on: its int tokens, or `gradient_statistics(model, tokens)`. Received: "
                "None.",
            )
        if not isinstance(statistics, GradientStatistics):
            statistics = statistics_of(which, statistics, sequence_length=length, name="statistics")
        return DecayToPrior(statistics=in_order(statistics, which), **settings)
    if statistics is not None:
        raise ArgumentError(
            "statistics", f"is for the rule 'rms' only. Received: statistics with rule={rule!r}."
        )
    if rule == "sgd":
        return DecayToPrior(**settings)
    kind = Nadam if settings["beta_1"] else NadamWithoutMomentum
    return kind(name="nadam", **settings)
