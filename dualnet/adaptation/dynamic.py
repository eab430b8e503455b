"""Dynamic evaluation: the weights keep learning from the text that they are scored on."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from dualnet._checks import ArgumentError, check_count
from dualnet._optimizers import LEAST_WEIGHTS, num_weights
from dualnet._settings import check_dynamic
from dualnet.adaptation.rules import (
    DecayToPrior,
    Nadam,
    NadamWithoutMomentum,
    SquaredGradients,
)
from dualnet.builders import LanguageModel, weight_names
from dualnet.builders.reader import SegmentReader
from dualnet.corpora import streams
from dualnet.devices import whole_batches
from dualnet.evaluation.arguments import check_tokens, perplexity_of
from dualnet.evaluation.comparison import Comparable, figures_of


@dataclasses.dataclass(frozen=True)
class DynamicEvaluation(Comparable):
    """The result of `dynamic_evaluation`: `Comparable`, and the trace of its segments.

    Attributes:
        perplexity: exp of the mean loss over all tokens.
        tokens: Number of tokens predicted: all but the first.
        segment_losses: float64 `(segments,)`, mean loss of each segment in nats, before the
            model learnt from it.
        segment_lengths: int `(segments,)`, tokens of each segment.
        rule: Name of the rule.
        settings: The values that the rule ran with.

    Example:

    >>> import numpy as np
    >>> from dualnet.adaptation import DynamicEvaluation
    >>> DynamicEvaluation(5.0, 4, np.array([1.7, 1.5]), np.array([3, 1]), "sgd", {"decay": 0.1})
    DynamicEvaluation(perplexity=5.0, tokens=4, rule='sgd', settings={'decay': 0.1})
    """

    perplexity: float
    tokens: int
    segment_losses: np.ndarray = dataclasses.field(repr=False)
    segment_lengths: np.ndarray = dataclasses.field(repr=False)
    rule: str
    settings: dict[str, Any]

    def plot(self, path: str | Path, *, static_losses: Any = None) -> None:
        """Draw perplexity against position as a PNG.

        `static_losses`, the `Evaluation.token_losses` of the same text, are drawn beside it.
        """
        from dualnet.plots import plot_positions

        losses = np.repeat(self.segment_losses, self.segment_lengths)
        curves = {f"dynamic ({self.rule})": losses}
        if static_losses is not None:
            curves = {"static": np.asarray(static_losses), **curves}
        plot_positions(curves, path)


def dynamic_evaluation(
    model: LanguageModel,
    tokens: Any,
    *,
    rule: str = "nadam",
    learning_rate: float | None = None,
    sequence_length: int | None = None,
    decay: float | None = None,
    epsilon: float | None = None,
    beta_1: float | None = None,
    clipnorm: float | None = None,
    temperature: float = 1.0,
    statistics: Any = None,
    keep: bool = False,
) -> DynamicEvaluation:
    """Return the loss of `model` on `tokens` while it keeps learning from them.

    The text is read as one stream with carried state, dropouts off. Each segment is scored
    first, then the model takes one step on its mean loss, without penalties. All trainable
    weights that the logits depend on are adapted, which excludes those of `PastDecode`; in a
    model with a gate, also the model below, which is frozen in training, and likewise in the
    members of an ensemble. The weights are restored bit for bit on return and on error, unless
    `keep`. The rule's own state (moments) starts fresh. Rules:

    - "nadam", as Oliva and Lago-Fernandez: `keras.optimizers.Nadam`.
    - "sgd", as Krause et al.: w <- w - learning_rate g + decay (w0 - w), with w0 the weights
      at the start.
    - "rms", as Krause et al.: w <- w - learning_rate g / (R + epsilon) + min(decay D, 1)
      (w0 - w), where R is the root of the mean squared gradient over the training text and D
      is R divided by its mean (the mean over tensors of each tensor's mean, as in their code).

    Args:
        model: `LanguageModel`.
        tokens: int array `(num_tokens,)`, in reading order.
        rule: "nadam", "sgd" or "rms".
        learning_rate: float above 0; default by rule, see `RULES`. Tune it on the validation
            text for each model.
        sequence_length: int. Tokens per update; default by rule.
        decay: float, at least 0. Pull to the initial weights ("sgd", "rms").
        epsilon: float above 0 ("nadam", "rms").
        beta_1: float, at least 0 and below 1. Momentum ("nadam"), 0 by default.
        clipnorm: float above 0. Each weight's gradient is clipped to this norm.
        temperature: float above 0. Logits are divided by it, in the score and in the step.
        statistics: for "rms", the result of `gradient_statistics`, for this model or another
            one with the same names and shapes of weights, or the int tokens of the training
            text, from which it is computed.
        keep: bool. Whether to leave the adapted weights in the model.

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
    Lago-Fernandez, 2021, https://arxiv.org/abs/2112.11776, section 3.3.
    """
    settings = check_dynamic(
        rule=rule,
        learning_rate=learning_rate,
        sequence_length=sequence_length,
        decay=decay,
        epsilon=epsilon,
        beta_1=beta_1,
        clipnorm=clipnorm,
        temperature=temperature,
    )
    tokens = check_tokens(tokens, model.vocabulary_size, least=2)
    length = settings.pop("sequence_length")
    with _unfrozen(model):
        weights = model.graph.without_past_decode().core.trainable_variables
    before = [ops.convert_to_numpy(weight).copy() for weight in weights]
    if rule == "rms":
        if statistics is None:
            raise ArgumentError(
                "statistics",
                "must be given for the rule 'rms': the int tokens of the training text, or the "
                "result of `gradient_statistics(model, tokens)`. Received: None.",
            )
        if not isinstance(statistics, GradientStatistics):
            statistics = gradient_statistics(model, statistics, sequence_length=length)
        statistics = _in_order(statistics, _names(model, weights), before)
        optimizer: keras.optimizers.Optimizer = DecayToPrior(statistics=statistics, **settings)
    elif statistics is not None:
        raise ArgumentError(
            "statistics", f"is for the rule 'rms' only. Received: statistics with rule={rule!r}."
        )
    elif rule == "sgd":
        optimizer = DecayToPrior(**settings)
    else:
        kind = Nadam if settings["beta_1"] else NadamWithoutMomentum
        optimizer = kind(name="nadam", **settings)

    pairs = len(tokens) - 1
    starts = range(0, pairs, length)
    lengths = np.array([min(length, pairs - start) for start in starts])
    losses = np.zeros(len(starts))
    finished = False
    try:
        with _unfrozen(model), whole_batches():
            learner = _learner(model, optimizer, batch_size=1)
            for i, start in enumerate(starts):
                end = start + lengths[i]
                inputs, targets = tokens[None, start:end], tokens[None, start + 1 : end + 1]
                segment = {"tokens": inputs, "targets": targets}
                if temperature != 1:
                    segment["temperature"] = np.full((1, 1), temperature, np.float32)
                losses[i] = learner.train_on_batch(segment)
        finished = True
    finally:
        if not (keep and finished):
            for weight, value in zip(weights, before):
                weight.assign(value)
    return DynamicEvaluation(
        perplexity=perplexity_of(np.repeat(losses, lengths)),
        tokens=pairs,
        segment_losses=losses,
        segment_lengths=lengths,
        rule=rule,
        settings={**settings, "sequence_length": length, "temperature": temperature},
        **figures_of(model, tokens[len(tokens) - pairs :], losses @ lengths),
    )


@dataclasses.dataclass(frozen=True)
class GradientStatistics:
    """The result of `gradient_statistics`: the root mean square of each weight's gradient.

    Attributes:
        roots: list of float32 arrays of the weights' shapes.
        batches: Number of gradients in the mean.
        names: list of the weights' names, as in `dualnet.weight_names`, in the order of `roots`.
            Without names, `roots` are in the order of the model's trainable weights.

    Example:

    >>> import numpy as np
    >>> from dualnet.adaptation import GradientStatistics
    >>> roots = [np.full((2, 3), 0.5, "float32")]
    >>> statistics = GradientStatistics(roots, batches=7, names=["embedding/embeddings"])
    >>> statistics.by_name["embedding/embeddings"].mean()
    np.float32(0.5)
    """

    roots: list[np.ndarray] = dataclasses.field(repr=False)
    batches: int
    names: list[str] = dataclasses.field(default_factory=list, repr=False)

    @property
    def by_name(self) -> dict[str, np.ndarray]:
        """The roots by the names of the weights."""
        return dict(zip(self.names, self.roots))


def gradient_statistics(
    model: LanguageModel, tokens: Any, *, batch_size: int = 100, sequence_length: int = 5
) -> GradientStatistics:
    """Return the gradient statistics of the rule "rms" from the training text.

    For each batch of `batch_size` streams of `sequence_length` tokens, with carried state and
    dropouts off, the gradient of the mean loss is squared; the result is the root of the mean
    over all batches. The weights are left untouched.

    Args:
        model: `LanguageModel`.
        tokens: int array `(num_tokens,)`, the training text.
        batch_size: int. Number of streams.
        sequence_length: int. Tokens of each stream per gradient.

    Example:

    >>> import numpy as np
    >>> import dualnet
    >>> model = dualnet.zoo.build("dual_lstm", vocabulary_size=9, units=4)
    >>> dualnet.gradient_statistics(model, np.arange(9), batch_size=2, sequence_length=2).batches
    2

    Reference: Krause et al., 2018, https://arxiv.org/abs/1709.07432, section 5.
    """
    check_count("batch_size", batch_size, least=1)
    check_count("sequence_length", sequence_length, least=1)
    tokens = check_tokens(tokens, model.vocabulary_size, least=batch_size * sequence_length + 1)
    inputs, targets = streams(tokens, batch_size)
    optimizer = SquaredGradients()
    batches = inputs.shape[1] // sequence_length
    with _unfrozen(model), whole_batches():
        learner = _learner(model, optimizer, batch_size=batch_size)
        for start in range(0, batches * sequence_length, sequence_length):
            segment = slice(start, start + sequence_length)
            learner.train_on_batch({"tokens": inputs[:, segment], "targets": targets[:, segment]})
        names = _names(model, learner.trainable_variables)
    squares = [ops.convert_to_numpy(total) / batches for total in optimizer.totals]
    return GradientStatistics([np.sqrt(square) for square in squares], batches, names)


def _names(model: LanguageModel, weights: Iterable[keras.Variable]) -> list[str]:
    """Return the name of each of `weights` in `model`."""
    names = {id(weight): name for name, weight in weight_names(model).items()}
    return [names[id(weight)] for weight in weights]


def _in_order(
    statistics: GradientStatistics, names: list[str], values: list[np.ndarray]
) -> GradientStatistics:
    """Return `statistics` in the order of the weights with these names and values."""
    there = statistics.names or names  # without names, in the order of the weights
    shapes = {name: value.shape for name, value in zip(names, values)}
    faults = [
        f"{len(statistics.roots)} roots for {len(there)} weights"
        if len(there) != len(statistics.roots)
        else "",
        *[f"{name} is missing" for name in names if name not in there],
        *[f"{name} is not in this model" for name in there if name not in shapes],
        *[
            f"{name} {root.shape} for {shapes[name]}"
            for name, root in zip(there, statistics.roots)
            if root.shape != shapes.get(name, root.shape)
        ],
    ]
    if any(faults):
        raise ArgumentError(
            "statistics",
            "must be those of this model's trainable weights, by name and shape. Received: "
            f"{'; '.join(filter(None, faults))}. Call gradient_statistics with this model.",
        )
    roots = dict(zip(there, statistics.roots))
    return GradientStatistics([roots[name] for name in names], statistics.batches, names)


@contextlib.contextmanager
def _unfrozen(model: LanguageModel) -> Iterator[None]:
    """Make the layers that are frozen below a gate trainable for the duration of the context."""
    frozen = _frozen_layers(model.core, model.arguments)
    for layer in frozen:
        layer.trainable = True
    try:
        yield
    finally:
        for layer in frozen:
            layer.trainable = False


def _frozen_layers(graph: keras.Model, arguments: Mapping[str, Any]) -> list[keras.layers.Layer]:
    """Return the layers of `graph` that are frozen below its gate or that of a member."""
    if arguments.get("gate", "none") != "none":
        return [layer for layer in graph.layers if not layer.trainable]
    return [
        layer
        for i, member in enumerate(arguments.get("members", ()), start=1)
        for layer in _frozen_layers(graph.get_layer(f"member_{i}"), member["arguments"])
    ]


def _learner(
    model: LanguageModel, optimizer: keras.optimizers.Optimizer, *, batch_size: int
) -> SegmentReader:
    """Return a reader of the model, dropouts off, that learns with `optimizer`."""
    reader = SegmentReader(model.graph, batch_size=batch_size, name="learner")
    # Now, and not inside the first compiled step, which would build it anew at every step.
    optimizer.build(reader.trainable_variables)
    # A step of one row is many small operations: on TensorFlow their overhead exceeds the work.
    # Keras by itself compiles no steps on a CPU.
    compiled = keras.config.backend() == "tensorflow" and batch_size == 1
    compiled = compiled and num_weights(reader.trainable_variables) >= LEAST_WEIGHTS
    reader.compile(optimizer=optimizer, jit_compile=compiled or "auto")
    return reader
