"""Wrappers of whole models: a gate, an ensemble, a cache."""

from collections.abc import Sequence
from typing import Any

import keras

from dualnet._checks import ArgumentError, check_choice, check_count
from dualnet._fields import documented
from dualnet._types import Tensor
from dualnet.builders.composing import without_regularization
from dualnet.builders.graph import Graph
from dualnet.builders.model import BUILDERS, LanguageModel
from dualnet.builders.stations import state_inputs
from dualnet.builders.weights import check_language_model, copy_weight, weight_names
from dualnet.builders.wrapping_stations import GATES, Cache, Gate
from dualnet.cards import Arguments, with_members
from dualnet.layers import MeanOfProbabilities


def wrap(model: LanguageModel | Sequence[LanguageModel], gate: Gate, cache: Cache) -> Graph:
    """Return the graph of a model, or of the mean of several, with the gate and the cache."""
    if isinstance(model, LanguageModel):
        graph = model.graph
        tokens, states, new_states = graph.tokens, list(graph.states), list(graph.new_states)
        logits, hidden, padded = [graph.word_logits], [graph.hidden], graph.padded
    else:
        tokens, states, new_states, logits, hidden, padded = _side_by_side(model)
    if gate.is_used:
        for layer in keras.Model([tokens, *states], logits).layers:
            layer.trainable = False
        logits, before, after = gate.apply(
            tokens, logits, hidden, padded=padded, states=len(states)
        )
        states, new_states = states + before, new_states + after
    mean = MeanOfProbabilities(name="mean")(logits) if len(logits) > 1 else logits[0]
    keys = keras.layers.Concatenate(name="hidden")(hidden) if len(hidden) > 1 else hidden[0]
    graph = Graph(tokens, states, new_states, hidden=keys, word_logits=mean, padded=padded)
    return cached(graph, cache) if cache.is_used else graph


def cached(graph: Graph, cache: Cache) -> Graph:
    """Return `graph` with the cache of a station on its logits."""
    count = len(graph.states)
    logits, before, after = cache.apply(graph.tokens, graph.hidden, graph.word_logits, states=count)
    return graph.with_logits(
        logits,
        states=graph.states + before,
        new_states=graph.new_states + after,
        is_normalised=cache.cache_kind == "ngram",
    )


def _side_by_side(models: Sequence[LanguageModel]) -> tuple[Any, ...]:
    """Return tokens, states, new states, logits, hidden and padding of models on one input."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    states: list[Tensor] = []
    new_states: list[Tensor] = []
    logits, hidden = [], []
    padded = any(model.padded for model in models)
    for number, model in enumerate(models, start=1):
        graph = model.graph.without_past_decode()
        graph = graph.with_masks() if padded and not model.padded else graph
        outputs = [graph.word_logits, graph.hidden, *graph.new_states]
        member = keras.Model([graph.tokens, *graph.states], outputs, name=f"member_{number}")
        member_states = state_inputs(model.state_size, after=len(states))
        member_logits, member_hidden, *new_member_states = member([tokens, *member_states])
        logits.append(member_logits)
        hidden.append(member_hidden)
        states, new_states = states + member_states, new_states + new_member_states
    return tokens, states, new_states, logits, hidden, padded


def with_gate(
    model: LanguageModel, units: int = 300, *, dropout: float = 0.5, gate: str = "input"
) -> LanguageModel:
    """Return a model whose logits are those of `model` times an input-to-output gate.

    It has a copy of the weights of `model`, frozen, without its dropouts and penalties: `fit`
    trains the gate only. Takase et al. do so for five epochs with Adam, its rate divided by
    the root of the epoch. All members of an ensemble share one gate.

    Args:
        model: `LanguageModel`, trained.
        units: int. Size of the gate's embedding.
        dropout: On that embedding, a fresh mask at each step.
        gate: "input"; or the variants "input_and_hidden" and "lstm", see `language_model`.

    Example:

    >>> from dualnet import zoo
    >>> from dualnet.builders import with_gate
    >>> gated = with_gate(zoo.build("lstm", vocabulary_size=9, units=4), 3)
    >>> sorted(weight.path for weight in gated.trainable_variables)
    ['gate/bias', 'gate/embeddings', 'gate/kernel']

    Reference: Takase et al., 2017, https://arxiv.org/abs/1709.08907
    """
    check_language_model("model", model)
    if model.gated:
        raise ArgumentError(
            "model",
            f"must have no gate. Received: one with gate={model.arguments['gate']!r}. Continue to "
            "train that gate with fit.",
        )
    check_choice("gate", gate, GATES[1:])  # not "none"
    return _rebuild(model, {"gate": gate, "gate_units": units, "gate_dropout": dropout})


def with_cache(
    model: LanguageModel,
    size: int = 500,
    *,
    kind: str = Cache.cache_kind,
    weight: float = Cache.cache_weight,
    scale: float = Cache.cache_scale,
    start: str = Cache.cache_start,
) -> LanguageModel:
    """Return a copy of `model` with a cache, which replaces one that it has.

    The cache is part of the state, so that all functions that take a model take this one. It
    is meant for a trained model: `fit` would learn through a neural cache. Weights below a cache of
    n-grams learn as if it were not there. Tune a neural cache on the validation text. Its default
    weight and scale are fixed in the released code of Takase et al., 2017; their paper is silent
    about them. AWD-LSTM has size=500, weight=0.1, scale=1.0 on PTB, size=3785, weight=0.1279,
    scale=0.662 on WikiText-2, and start="when_full".

    Args:
        model: `LanguageModel`.
        size: int. Words that the cache remembers.
        kind: "neural": words that followed similar hidden vectors (`NeuralCache`), which it keeps;
            or "ngram": words that followed the same last one to three (`NGramCache`), at a number
            for each word. The other settings are those of a neural cache.
        weight: float, at least 0 and below 1, of its probabilities (lambda).
        scale: float, at least 0, of the products of hidden vectors (theta).
        start: "at_once", or "when_full": used once more than `size` words were read.

    Example:

    >>> from dualnet import zoo
    >>> from dualnet.builders import with_cache
    >>> model = with_cache(zoo.build("lstm", vocabulary_size=9, units=4), 5)
    >>> model.cache_size, model.state_size
    (5, [4, 4, 20, 5, 1])

    Reference: Grave et al., 2017, https://arxiv.org/abs/1612.04426
    """
    check_language_model("model", model)
    check_count("size", size)
    cache = Cache(
        cache_size=size,
        cache_kind=kind,
        cache_weight=weight,
        cache_scale=scale,
        cache_start=start,
    )
    copy = _rebuild(model, cache.arguments())
    copy.run, copy.sum_of_run = model.run, model.run and model.sum_of_run
    return copy


def _rebuild(model: LanguageModel, changes: Arguments) -> LanguageModel:
    """Return `model`, with its weights, built again with `changes` of its arguments."""
    rebuilt = BUILDERS[model.builder](**{**model.arguments, **changes}, name=model.name)
    rebuilt.vocabulary, rebuilt.loss_reduction = model.vocabulary, model.loss_reduction
    copy_weights(model, rebuilt)
    return rebuilt


def copy_weights(source: LanguageModel, target: LanguageModel, prefix: str = "") -> None:
    """Copy the weights of `source` to those of `target` that have its names behind `prefix`."""
    places = weight_names(target)
    for name, weight in weight_names(source).items():
        if prefix + name in places:
            copy_weight(weight, places[prefix + name])
        elif "past_decode/" not in name:  # which the logits do not need
            required = "must have the weights of its builder alone."
            raise ArgumentError("model", f"{required} Received: {name}, which a learner added.")


@documented(Gate, Cache)
def ensemble_model(
    *, members: Sequence[Arguments], name: str = "ensemble", **arguments: Any
) -> LanguageModel:
    """Return an ensemble: one model that averages the probabilities of its members.

    One gate serves all members: the mean over members m of softmax(g * s_m) (Takase et al.,
    2017, equation 9). One cache serves all, with the members' hidden vectors side by side as
    keys (our choice: no paper has it). What only the training of a member needs, past decoding
    and the fraternal penalty, is left out.

    Args:
        members: A table per member, `{"builder": name, "arguments": {...}}`.
        {arguments}
        name: str. Name of the model.

    Returns:
        `LanguageModel`, each member randomly initialised. Its graph holds them as layers
        `member_1`, `member_2` and so on.

    Example:

    >>> from dualnet.builders import ensemble_model
    >>> arguments = {"vocabulary_size": 9, "units": 4}
    >>> member = {"builder": "language_model", "arguments": arguments}
    >>> ensemble_model(members=[member, member]).state_size
    [4, 4, 4, 4]

    Reference: Takase et al., 2017, https://arxiv.org/abs/1709.08907, section 4.3
    """
    gate = Gate(**Gate.fields_of(arguments))
    cache = Cache(**{key: arguments[key] for key in arguments if key not in Gate.names()})
    members = list(members)
    if not members:
        raise ArgumentError("members", "must be a list of at least one model.", members=members)
    if gate.gate == "input_and_hidden":
        reason = "whose members have hidden states of their own. Received: gate='input_and_hidden'."
        raise ArgumentError("gate", f"must be 'input' or 'lstm' for an ensemble, {reason}")
    arguments = {**gate.arguments(), **cache.arguments(), "members": members}
    arguments = with_members(arguments, dict)  # copies
    used = without_regularization(arguments) if gate.is_used else arguments
    models = [
        BUILDERS[member["builder"]](**member["arguments"], name=f"member_{number}")
        for number, member in enumerate(used["members"], start=1)
    ]
    sizes = sorted({model.vocabulary_size for model in models})
    if len(sizes) > 1:
        raise ArgumentError(
            "members",
            f"must have one vocabulary. Received: models of {sizes} words.",
            " Give vocabulary_size, which all of them take.",
        )
    padded = [model.padded for model in models]
    if any(padded) and not all(model.can_mask for model in models):
        raise ArgumentError(
            "members",
            "must not mix models of padded sentences, of batching='sentences', with one from "
            "LanguageModel.from_core or with a cache, which knows no padding.",
            padded=padded,
        )
    cache.check_padding(any(padded))
    graph = wrap(models, gate, cache)
    return LanguageModel(graph, builder="ensemble", arguments=arguments, name=name)


BUILDERS["ensemble"] = ensemble_model


def ensemble(models: Sequence[LanguageModel]) -> LanguageModel:
    """Return one model whose probabilities are the mean of those of `models`.

    It has copies of their weights.

    Args:
        models: list of `LanguageModel`, with one vocabulary that reads text in one way.

    Example:

    >>> from dualnet import zoo
    >>> from dualnet.builders import ensemble
    >>> models = [zoo.build("lstm", vocabulary_size=9, units=units) for units in (4, 5)]
    >>> ensemble(models).state_size
    [4, 4, 5, 5]
    """
    models = list(models)
    for model in models:
        check_language_model("models", model)
    if len({(model.vocabulary_size, model.vocabulary) for model in models}) > 1:
        sizes = [f"{model.name!r} with {model.vocabulary_size} words" for model in models]
        received = f"Received: {', '.join(sizes)}. Train them on one corpus, read in one way."
        raise ArgumentError("models", f"must have one vocabulary, since ids mean words. {received}")
    members = [{"builder": model.builder, "arguments": model.arguments} for model in models]
    combined = ensemble_model(members=members)
    for number, model in enumerate(models, start=1):
        copy_weights(model, combined, f"member_{number}/")
    combined.vocabulary = models[0].vocabulary
    return combined
