"""What stands over whole models: one gate, the mean of several, a cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from dualnet._checks import (
    ArgumentError,
    check_choice,
    check_count,
    check_fraction,
    check_penalty,
    check_rate,
)
from dualnet.builders.model import LanguageModel
from dualnet.layers import (
    FeatureGate,
    IOGate,
    LSTMCell,
    MeanOfProbabilities,
    NeuralCache,
    PastDecode,
    Recurrence,
    StepDropout,
)
from dualnet.layers.neural_cache import STARTS

GATES = ("none", "input", "input_and_hidden", "lstm")
# The arguments of every builder that are about these, and what leaves them away.
WRAPPERS: dict[str, Any] = {
    "gate": "none",
    "gate_units": 300,
    "gate_dropout": 0.0,
    "gate_initializer_range": 0.05,
    "cache_size": 0,
    "cache_weight": 0.2,
    "cache_scale": 0.3,
    "cache_start": "at_once",
}


@dataclasses.dataclass
class Parts:
    """What a gate, a mean and a cache are put upon.

    Attributes:
        tokens: input, `(batch, time)`.
        states: inputs, `(batch, size)`.
        new_states: outputs, as `states`.
        logits: of each model, `(batch, time, words)`.
        hidden: of each model, the output of its recurrence, `(batch, time, units)`.
        padded: bool. Whether tokens below 0 are padding.
        features: as of `LanguageModel`, of one model.
    """

    tokens: Any
    states: list[Any]
    new_states: list[Any]
    logits: list[Any]
    hidden: list[Any]
    padded: bool
    features: Any = None

    @classmethod
    def of(cls, model: LanguageModel) -> Parts:
        """Return the parts of one model, without what is for its training alone."""
        tokens, *states = model.core.inputs
        logits, *new_states = model.core.outputs
        last = logits._keras_history.operation
        if isinstance(last, PastDecode):
            logits = last.input[1]
        return cls(
            tokens, states, new_states, [logits], [model.hidden], model.padded, model.features
        )

    def add_states(self, sizes: Sequence[int]) -> list[Any]:
        """Return new inputs of these sizes, which stand behind those that there are."""
        first = len(self.states) + 1
        inputs = [
            keras.Input((size,), dtype="float32", name=f"state_{i}")
            for i, size in enumerate(sizes, start=first)
        ]
        self.states = self.states + inputs
        return inputs


def side_by_side(members: Sequence[LanguageModel]) -> Parts:
    """Return the parts of several models that read the same tokens."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    parts = Parts(tokens, [], [], [], [], any(member.padded for member in members))
    for i, member in enumerate(members, start=1):
        own = Parts.of(member)
        body = keras.Model(
            [own.tokens, *own.states],
            [*own.logits, *own.hidden, *own.new_states],
            name=f"member_{i}",
        )
        states = parts.add_states(member.state_size)
        logits, hidden, *new_states = body([tokens, *states])
        parts.logits.append(logits)
        parts.hidden.append(hidden)
        parts.new_states += new_states
    return parts


def wrap(parts: Parts, *, builder: str, arguments: Mapping[str, Any], name: str) -> LanguageModel:
    """Return a model of `parts` with the gate, the mean and the cache that they need.

    Args:
        parts: of one model, or of several.
        builder, arguments, name: of the model; among the arguments those of `WRAPPERS`,
            already checked.
    """
    words = parts.logits[0].shape[-1]
    logits = parts.logits
    if arguments["gate"] != "none":
        for layer in keras.Model([parts.tokens, *parts.states], logits).layers:
            layer.trainable = False
        logits = _gated(parts, words, arguments)
    together = MeanOfProbabilities(name="mean")(logits) if len(logits) > 1 else logits[0]
    hidden = parts.hidden[0]
    if len(parts.hidden) > 1:
        hidden = keras.layers.Concatenate(name="hidden")(parts.hidden)
    if arguments["cache_size"]:
        cache = NeuralCache(
            arguments["cache_size"],
            weight=arguments["cache_weight"],
            scale=arguments["cache_scale"],
            start=arguments["cache_start"],
            name="cache",
        )
        states = parts.add_states(cache.state_sizes(hidden.shape[-1]))
        together, *final = cache([parts.tokens, hidden, together], initial_state=states)
        parts.new_states = parts.new_states + final
    core = keras.Model([parts.tokens, *parts.states], [together, *parts.new_states], name="core")
    return LanguageModel(
        core,
        builder=builder,
        arguments=arguments,
        hidden=hidden,
        features=parts.features,
        name=name,
    )


def _gated(parts: Parts, words: int, arguments: Mapping[str, Any]) -> list[Any]:
    """Return the logits of each model through one gate."""
    kind, units = arguments["gate"], arguments["gate_units"]
    scale = arguments["gate_initializer_range"]
    if kind == "lstm":
        embedded = keras.layers.Embedding(
            words,
            units,
            embeddings_initializer=keras.initializers.RandomUniform(-scale, scale),
            name="gate_embedding",
        )(keras.ops.maximum(parts.tokens, 0) if parts.padded else parts.tokens)
        embedded = StepDropout(arguments["gate_dropout"], name="gate_dropout")(embedded)
        cell = LSTMCell(units, name="gate_cell")
        features, *final = Recurrence(cell, name="gate_recurrence")(
            embedded,
            initial_state=parts.add_states(cell.state_size),
            mask=parts.tokens >= 0 if parts.padded else None,
        )
        parts.new_states = parts.new_states + final
        gated = FeatureGate(words, initializer_range=scale, name="gate")([features, *parts.logits])
    else:
        use_hidden = kind == "input_and_hidden"
        gate = IOGate(
            words,
            units,
            dropout=arguments["gate_dropout"],
            use_hidden=use_hidden,
            initializer_range=scale,
            name="gate",
        )
        gated = gate([parts.tokens, *(parts.hidden if use_hidden else []), *parts.logits])
    return list(gated) if isinstance(gated, (list, tuple)) else [gated]


def check_wrappers(arguments: Mapping[str, Any]) -> None:
    """Refuse values of `WRAPPERS` that are out of range."""
    check_choice("gate", arguments["gate"], GATES)
    check_count("gate_units", arguments["gate_units"], least=1)
    check_rate("gate_dropout", arguments["gate_dropout"])
    check_penalty("gate_initializer_range", arguments["gate_initializer_range"])
    check_count("cache_size", arguments["cache_size"], least=0)
    check_fraction("cache_weight", arguments["cache_weight"])
    check_penalty("cache_scale", arguments["cache_scale"])
    check_choice("cache_start", arguments["cache_start"], STARTS)
    if arguments["cache_size"] and arguments.get("padded"):
        raise ArgumentError(
            "cache_size",
            "must be 0 for a model of padded sentences, which a cache would reach "
            f"across. Received: cache_size={arguments['cache_size']!r}, padded=True.",
        )


def quiet(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return `arguments` of a builder without dropouts and penalties, for a base under a gate."""
    off = ("_dropout", "_l2", "_regularization")
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if name == "members":
            found[name] = [{**each, "arguments": quiet(each["arguments"])} for each in value]
        elif name.endswith(off):
            found[name] = 0.0
        else:
            found[name] = value
    return found
