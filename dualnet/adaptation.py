"""Dynamic evaluation: the weights go on learning from the text that they are scored on."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from dualnet._checks import ArgumentError, check_choice, check_count, check_fraction, check_penalty
from dualnet._optimizers import LEAST_WEIGHTS, CompiledUpdates, num_weights
from dualnet.builders import LanguageModel
from dualnet.builders.reader import SegmentReader
from dualnet.corpora import streams
from dualnet.devices import whole_batches
from dualnet.evaluation import check_cache, check_temperature, check_tokens, perplexity_of

# What each rule takes where the caller says nothing. The step sizes of "nadam" (within the
# paper's range) and "sgd" are our choice, found on PTB's validation text with 200 units; those
# of "rms" are the released defaults of Krause et al.
RULES: dict[str, dict[str, Any]] = {
    "nadam": {"learning_rate": 3e-5, "beta_1": 0.0, "sequence_length": 50},
    "sgd": {"learning_rate": 0.1, "decay": 0.0, "sequence_length": 20},
    "rms": {"learning_rate": 5e-5, "decay": 0.002, "epsilon": 2e-5, "sequence_length": 5},
}


@dataclasses.dataclass(frozen=True)
class DynamicEvaluation:
    """What `dynamic_evaluation` found, with the trace of its segments.

    Attributes:
        perplexity: exp of the mean loss over all tokens.
        tokens: Number of tokens predicted: all but the first.
        segment_losses: float64 `(segments,)`, mean loss of each segment in nats,
            before the segment was learnt from.
        segment_lengths: int `(segments,)`, tokens of each segment.
        rule: Name of the rule.
        settings: The values that the rule ran with.
    """

    perplexity: float
    tokens: int
    segment_losses: np.ndarray = dataclasses.field(repr=False)
    segment_lengths: np.ndarray = dataclasses.field(repr=False)
    rule: str
    settings: dict[str, Any]

    def plot(self, path: str | Path, *, static_losses: Any = None) -> None:
        """Draw perplexity against position, as a PNG, beside a static evaluation.

        Args:
            path: file to write.
            static_losses: `Evaluation.token_losses` of the same text, if to be compared.
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

    The text is read as one stream with carried state, dropouts off. Each segment
    is scored before it is learnt from, by one step on its mean loss (without
    penalties). All weights take part that are trainable and have a part in the
    logits: those of `PastDecode` alone have none. In a model with a gate the model
    below it, which stands still in training, moves too, also in members of an ensemble.
    They are restored bit for bit on return and on error; `keep` leaves them as adapted.
    The rule's own state (moments) starts fresh. Rules:

    - "nadam", as Oliva and Lago-Fernandez: `keras.optimizers.Nadam`.
    - "sgd", as Krause et al.: w <- w - learning_rate g + decay (w0 - w), with
      w0 the weights at the start.
    - "rms", as Krause et al.: w <- w - learning_rate g / (R + epsilon)
      + min(decay D, 1) (w0 - w), where R is the root of the mean squared gradient
      over the training text and D is R divided by its mean (the mean over tensors
      of each tensor's mean, as in their code).

    Args:
        model: `LanguageModel`.
        tokens: int array `(num_tokens,)`, in reading order.
        rule: "nadam", "sgd" or "rms".
        learning_rate: float above 0; default by rule, see `RULES`. Worth tuning
            on the validation text for each model.
        sequence_length: int, tokens per update; default by rule.
        decay: float, at least 0: pull to the prior ("sgd", "rms").
        epsilon: float above 0 ("nadam", "rms").
        beta_1: float, at least 0 and below 1: momentum ("nadam"), default 0.
        clipnorm: float above 0: each weight's gradient is clipped to this norm.
        temperature: float above 0; logits are divided by it, in score and step.
        statistics: for "rms": what `gradient_statistics` returned, or the int
            tokens of the training text, for it to be called with.
        keep: bool. Leave the adapted weights in the model.

    Raises:
        ValueError: for an unknown rule, an argument that the rule does not take,
            a value out of range, or fewer than two tokens.

    References: Krause et al., 2018, https://arxiv.org/abs/1709.07432; Oliva and
    Lago-Fernandez, 2021, https://arxiv.org/abs/2112.11776, section 3.3.
    """
    check_choice("rule", rule, RULES)
    tokens = check_tokens(tokens, model.vocabulary_size, least=2)
    check_cache(model, tokens)
    check_temperature(temperature)
    given = {
        "learning_rate": learning_rate,
        "sequence_length": sequence_length,
        "decay": decay,
        "epsilon": epsilon,
        "beta_1": beta_1,
        "clipnorm": clipnorm,
    }
    settings = rule_settings(rule, given)
    length = settings.pop("sequence_length")
    with _thawed(model):
        weights = model.graph.without_past_decode().core.trainable_variables
    before = [ops.convert_to_numpy(weight).copy() for weight in weights]
    if rule == "rms":
        if statistics is None:
            raise ArgumentError(
                "statistics",
                "must be given for the rule 'rms': the int tokens of the training "
                "text, or what `gradient_statistics(model, tokens)` returned. Received: None.",
            )
        if not isinstance(statistics, GradientStatistics):
            statistics = gradient_statistics(model, statistics, sequence_length=length)
        if [root.shape for root in statistics.roots] != [value.shape for value in before]:
            raise ArgumentError(
                "statistics",
                "must be of this model's trainable weights. Received: statistics of "
                f"{len(statistics.roots)} weights of other shapes. Call gradient_statistics with "
                "this model.",
            )
        optimizer: keras.optimizers.Optimizer = _Rule(statistics=statistics, **settings)
    elif statistics is not None:
        raise ArgumentError(
            "statistics", f"is for the rule 'rms' alone. Received: statistics with rule={rule!r}."
        )
    elif rule == "sgd":
        optimizer = _Rule(**settings)
    else:
        kind = _Nadam if settings["beta_1"] else _NadamWithoutMomentum
        optimizer = kind(name="nadam", **settings)

    pairs = len(tokens) - 1
    starts = range(0, pairs, length)
    losses, lengths = np.zeros(len(starts)), np.zeros(len(starts), np.int64)
    finished = False
    try:
        with _thawed(model), whole_batches():
            learner = _learner(model, optimizer, batch_size=1)
            for i, start in enumerate(starts):
                end = min(start + length, pairs)
                inputs, targets = tokens[None, start:end], tokens[None, start + 1 : end + 1]
                segment = {"tokens": inputs, "targets": targets}
                if temperature != 1:
                    segment["temperature"] = np.full((1, 1), temperature, np.float32)
                losses[i] = learner.train_on_batch(segment)
                lengths[i] = end - start
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
    )


@dataclasses.dataclass(frozen=True)
class GradientStatistics:
    """Root mean square of the gradient of each trainable weight, over the training text.

    Attributes:
        roots: list of float32 arrays, in the order of the weights.
        batches: Number of gradients in the mean.
    """

    roots: list[np.ndarray] = dataclasses.field(repr=False)
    batches: int


def gradient_statistics(
    model: LanguageModel,
    tokens: Any,
    *,
    batch_size: int = 100,
    sequence_length: int = 5,
) -> GradientStatistics:
    """Return the gradient statistics of the rule "rms" from the training text.

    For each batch of `batch_size` streams of `sequence_length` tokens, with
    carried state and dropouts off, the gradient of the mean loss is squared;
    the root of the mean over all batches is returned. The weights stay as they are.

    Raises:
        ValueError: if `tokens` holds less than one batch.

    Reference: Krause et al., 2018, https://arxiv.org/abs/1709.07432, section 5.
    """
    check_count("batch_size", batch_size, least=1)
    check_count("sequence_length", sequence_length, least=1)
    tokens = check_tokens(tokens, model.vocabulary_size, least=batch_size * sequence_length + 1)
    inputs, targets = streams(tokens, batch_size)
    optimizer = _SquaredGradients()
    batches = inputs.shape[1] // sequence_length
    with _thawed(model), whole_batches():
        learner = _learner(model, optimizer, batch_size=batch_size)
        for start in range(0, batches * sequence_length, sequence_length):
            segment = slice(start, start + sequence_length)
            learner.train_on_batch({"tokens": inputs[:, segment], "targets": targets[:, segment]})
    squares = [ops.convert_to_numpy(total) / batches for total in optimizer.totals]
    return GradientStatistics([np.sqrt(square) for square in squares], batches)


def rule_settings(rule: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `rule`: its defaults, and what was given and is fitting."""
    takes = {*RULES[rule], "clipnorm"} | ({"epsilon"} if rule == "nadam" else set())
    settings = dict(RULES[rule])
    for name, value in given.items():
        if value is None:
            continue
        if name not in takes:
            raise ArgumentError(
                name,
                f"is not a setting of the rule {rule!r}, which takes {sorted(takes)}. "
                f"Received: {name}={value!r}.",
            )
        settings[name] = value
    check_count("sequence_length", settings["sequence_length"], least=1)
    for name in ("learning_rate", "epsilon", "clipnorm"):
        if name in settings and check_penalty(name, settings[name]) == 0:
            raise ArgumentError(name, f"must be above 0. Received: {name}={settings[name]!r}.")
    if "decay" in settings:
        check_penalty("decay", settings["decay"])
    if "beta_1" in settings:
        check_fraction("beta_1", settings["beta_1"])
    return settings


@contextlib.contextmanager
def _thawed(model: LanguageModel) -> Iterator[None]:
    """Let all weights below gates be trainable meanwhile."""
    still = _below_gates(model.core, model.arguments)
    for layer in still:
        layer.trainable = True
    try:
        yield
    finally:
        for layer in still:
            layer.trainable = False


def _below_gates(graph: keras.Model, arguments: Mapping[str, Any]) -> list[keras.layers.Layer]:
    """Return the layers of `graph` that stand still below a gate, its own or one of a member."""
    if arguments.get("gate", "none") != "none":
        return [layer for layer in graph.layers if not layer.trainable]
    return [
        layer
        for i, member in enumerate(arguments.get("members", ()), start=1)
        for layer in _below_gates(graph.get_layer(f"member_{i}"), member["arguments"])
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


class _Nadam(CompiledUpdates, keras.optimizers.Nadam):
    """`keras.optimizers.Nadam`."""


class _NadamWithoutMomentum(CompiledUpdates):
    """`keras.optimizers.Nadam` with `beta_1=0`, whose momentum is the gradient: it keeps none."""

    def __init__(self, learning_rate, *, beta_1, epsilon=1e-7, beta_2=0.999, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.squares = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient, variable, learning_rate):
        square = self.squares[self._get_variable_index(variable)]
        dtype = variable.dtype
        gradient, rate = ops.cast(gradient, dtype), ops.cast(learning_rate, dtype)
        power = ops.power(ops.cast(self.beta_2, dtype), ops.cast(self.iterations + 1, dtype))
        self.assign_add(square, (ops.square(gradient) - square) * (1 - self.beta_2))
        root = ops.sqrt(square / (1 - power)) + self.epsilon
        self.assign_sub(variable, rate * gradient / root)


class _Rule(CompiledUpdates):
    """Krause et al.'s update with decay to the weights at the start; "rms" with statistics."""

    def __init__(self, learning_rate, *, decay, epsilon=None, statistics=None, **kwargs):
        super().__init__(learning_rate=learning_rate, name="dynamic_rule", **kwargs)
        self.decay = decay
        self.epsilon = epsilon
        self.statistics = statistics

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.priors = self._constants(variables, "prior", [ops.copy(v) for v in variables])
        if self.statistics is not None:
            roots = self.statistics.roots
            mean = np.mean([root.mean(dtype=np.float64) for root in roots])
            self.steps = self._constants(
                variables, "step", [1.0 / (root + self.epsilon) for root in roots]
            )
            pulls = [np.minimum(self.decay * (root / mean), 1.0) for root in roots]
            self.pulls = self._constants(variables, "pull", pulls)

    def update_step(self, gradient, variable, learning_rate):
        i = self._get_variable_index(variable)
        gradient = ops.cast(gradient, variable.dtype)
        learning_rate = ops.cast(learning_rate, variable.dtype)
        to_prior = self.priors[i] - variable
        if self.statistics is None:
            update = self.decay * to_prior - learning_rate * gradient
        else:
            update = self.pulls[i] * to_prior - learning_rate * gradient * self.steps[i]
        self.assign_add(variable, update)

    def _constants(self, variables, name, values):
        made = [self.add_variable_from_reference(v, name=name) for v in variables]
        for constant, value in zip(made, values):
            constant.assign(value)
        return made


class _SquaredGradients(CompiledUpdates):
    """Changes no weight; adds up the squares of the gradients."""

    def __init__(self):
        super().__init__(learning_rate=0.0, name="squared_gradients")

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.totals = [self.add_variable_from_reference(v, name="total") for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        total = self.totals[self._get_variable_index(variable)]
        self.assign_add(total, ops.square(ops.cast(gradient, total.dtype)))
