"""Puts a gate or a cache over a model that is there, or several models side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dualnet._checks import ArgumentError, check_count
from dualnet.builders.ensembles import ensemble_model
from dualnet.builders.functional import language_model
from dualnet.builders.model import LanguageModel
from dualnet.builders.weights import check_model, copy_weight, weight_names

BUILDERS: dict[str, Callable[..., LanguageModel]] = {
    "ensemble": ensemble_model,
    "language_model": language_model,
}


def with_gate(
    model: LanguageModel, units: int = 300, *, dropout: float = 0.5, gate: str = "input"
) -> LanguageModel:
    """Return a model whose logits are those of `model` times an input-to-output gate.

    It has a copy of the weights of `model`, which stand still, without its dropouts and
    penalties: `fit` trains the gate alone. Takase et al. do so for five epochs with Adam,
    its rate divided by the root of the epoch. One gate serves all members of an ensemble.

    Args:
        model: `LanguageModel`, trained.
        units: int. Size of the gate's embedding.
        dropout: of that embedding, a fresh mask at each step.
        gate: "input"; or the variants "input_and_hidden" and "lstm", see `language_model`.

    Raises:
        ValueError: if `model` has a gate, or a value is out of range.

    Reference: Takase et al., 2017, https://arxiv.org/abs/1709.08907
    """
    check_model("model", model)
    if model.gated:
        raise ArgumentError(
            "model",
            "must have no gate. Received: one with gate="
            f"{model.arguments['gate']!r}. Train that gate on, with fit.",
        )
    if gate == "none":
        raise ArgumentError(
            "gate", "must be 'input', 'input_and_hidden' or 'lstm'. Received: 'none'."
        )
    return _again(model, {"gate": gate, "gate_units": units, "gate_dropout": dropout})


def with_cache(
    model: LanguageModel,
    size: int = 500,
    *,
    weight: float = 0.2,
    scale: float = 0.3,
    start: str = "at_once",
) -> LanguageModel:
    """Return a copy of `model` with a neural cache, in place of one that it may have.

    The cache is state, as that of the recurrence is, so that all that takes a model takes
    this one, too; it is meant for a trained model, which would learn through it in `fit`.
    It is worth tuning on the validation text. The defaults are those of
    Takase et al., 2017; those of AWD-LSTM are on PTB size=500, weight=0.1, scale=1.0, on
    WikiText-2 size=3785, weight=0.1279, scale=0.662, and start="when_full".

    Args:
        model: `LanguageModel`.
        size: int. Words that the cache remembers.
        weight: float, at least 0 and below 1, of its probabilities (lambda).
        scale: float, at least 0, of the products of hidden vectors (theta).
        start: "at_once", or "when_full": used once more than `size` words were read.

    Raises:
        ValueError: if a value is out of range, or `model` reads padded sentences.

    Reference: Grave et al., 2017, https://arxiv.org/abs/1612.04426
    """
    check_model("model", model)
    check_count("size", size, least=1)
    return _again(
        model,
        {"cache_size": size, "cache_weight": weight, "cache_scale": scale, "cache_start": start},
    )


def ensemble(models: Sequence[LanguageModel]) -> LanguageModel:
    """Return one model whose probabilities are the mean of those of `models`.

    It has copies of their weights.

    Raises:
        ValueError: if there are none, or their vocabularies differ.
    """
    models = list(models)
    for model in models:
        check_model("models", model)
    words = [
        (model.vocabulary_size, model.vocabulary and model.vocabulary.words) for model in models
    ]
    if any(each != words[0] for each in words):
        sizes = [f"{model.name!r} with {model.vocabulary_size} words" for model in models]
        raise ArgumentError(
            "models",
            f"must have one vocabulary, since ids mean words. Received: "
            f"{', '.join(sizes)}. Train them on one corpus.",
        )
    members = [{"builder": each.builder, "arguments": each.arguments} for each in models]
    made = ensemble_model(members=members)
    for i, model in enumerate(models, start=1):
        _copy_weights(model, made, f"member_{i}/")
    made.vocabulary = models[0].vocabulary
    return made


def _again(model: LanguageModel, changes: Mapping[str, Any]) -> LanguageModel:
    """Return `model` built once more with `changes`, and its weights."""
    made = BUILDERS[model.builder](**{**model.arguments, **changes}, name=model.name)
    made.vocabulary = model.vocabulary
    made.loss_reduction = model.loss_reduction
    _copy_weights(model, made)
    return made


def _copy_weights(source: LanguageModel, target: LanguageModel, prefix: str = "") -> None:
    places = weight_names(target)
    for name, weight in weight_names(source).items():
        if prefix + name in places:  # past decoding has no part in the logits
            copy_weight(weight, places[prefix + name])
