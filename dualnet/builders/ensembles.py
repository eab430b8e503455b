"""Several models in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dualnet._checks import ArgumentError, checked
from dualnet._fields import documented
from dualnet.builders.memory import check_memory
from dualnet.builders.model import BUILDERS, LanguageModel
from dualnet.builders.stations import WRAPPERS, Cache, Gate, without_regularization
from dualnet.builders.weights import check_language_model
from dualnet.builders.wrapping import copy_weights, wrap


@documented(Gate, Cache)
def ensemble_model(
    *, members: Sequence[Mapping[str, Any]], name: str = "ensemble", **arguments: Any
) -> LanguageModel:
    """Return several models in one, whose probabilities are the mean of theirs.

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
    for key in arguments:
        if key not in WRAPPERS:
            raise TypeError(f"ensemble_model() got an unexpected keyword argument {key!r}")
    gate, cache = Gate(**Gate.fields_of(arguments)), Cache(**Cache.fields_of(arguments))
    members = list(members)
    if not members:
        raise ArgumentError("members", "must be a list of at least one model.", members=members)
    if gate.gate == "input_and_hidden":
        reason = "whose members have hidden states of their own. Received: gate='input_and_hidden'."
        raise ArgumentError("gate", f"must be 'input' or 'lstm' for an ensemble, {reason}")
    arguments = {**gate.arguments(), **cache.arguments()}
    arguments["members"] = [
        {"builder": member["builder"], "arguments": dict(member["arguments"])} for member in members
    ]
    used = without_regularization(arguments) if gate.is_used else arguments
    models = [
        BUILDERS[member["builder"]](**member["arguments"], name=f"member_{number}")
        for number, member in enumerate(used["members"], start=1)
    ]
    sizes = [model.vocabulary_size for model in models]
    if len(set(sizes)) > 1:
        required = "must have one vocabulary."
        way_out = "Give vocabulary_size, which all of them take."
        raise ArgumentError("members", f"{required} Received: models of {sizes} words. {way_out}")
    hidden = sum(model.graph.hidden.shape[-1] for model in models)
    check_memory([*gate.floats(sizes[0]), *cache.floats(hidden)], [], arguments)
    cache.check_padding(any(model.padded for model in models))
    return LanguageModel(
        wrap(models, gate, cache), builder="ensemble", arguments=arguments, name=name
    )


BUILDERS["ensemble"] = ensemble_model


@checked
def ensemble(models: Sequence[LanguageModel]) -> LanguageModel:
    """Return one model whose probabilities are the mean of those of `models`.

    It has copies of their weights.

    Args:
        models: list of `LanguageModel`, with one vocabulary.

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
    vocabularies = [
        (model.vocabulary_size, model.vocabulary and model.vocabulary.sha256) for model in models
    ]
    if any(vocabulary != vocabularies[0] for vocabulary in vocabularies):
        sizes = [f"{model.name!r} with {model.vocabulary_size} words" for model in models]
        received = f"Received: {', '.join(sizes)}. Train them on one corpus."
        raise ArgumentError("models", f"must have one vocabulary, since ids mean words. {received}")
    members = [{"builder": model.builder, "arguments": model.arguments} for model in models]
    combined = ensemble_model(members=members)
    for number, model in enumerate(models, start=1):
        copy_weights(model, combined, f"member_{number}/")
    combined.vocabulary = models[0].vocabulary
    return combined
