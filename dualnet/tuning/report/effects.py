"""Which settings of a card have an effect."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Mapping
from typing import Any

from dualnet.builders import BUILDERS
from dualnet.builders.cells import CELLS, arguments_of
from dualnet.training import Recipe

# A setting, the value with which it turns others off, and the others.
TURNED_OFF: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("connection", "plain", ("dual_units", "dual_input_dropout", "dual_output_dropout", "dual_l2")),
    ("rounds", 0, ("rank", "mogrifier_dropout", "mogrifier_l2")),
    ("recurrent_layers", 1, ("internal_dropout", "skip_connections")),
    ("experts", 0, ("latent_units", "latent_activation", "latent_dropout",
                    "latent_dropout_per_expert", "balance_regularization", "balance_form")),
    ("tied", True, ("dual_units", "latent_units")),
    ("gate", "none", ("gate_units", "gate_dropout", "gate_initializer_range")),
    ("cache_size", 0, ("cache_weight", "cache_scale", "cache_start")),
    ("optimizer", "sgd", ("beta_1", "epsilon")),
    ("length_deviation", 0, ("longest_length",)),
    ("decay", 1, ("hold_epochs",)),
    ("averaging", "none", ("average_interval", "average_from")),
    ("finetune", "none", ("finetune_epochs", "finetune_learning_rate")),
)  # fmt: skip
NONE = (0, "none", "plain")  # values that stand for nothing
FACTORS = ("decay", "plateau_decay")  # by default 1


def config_with_effect(
    builder: str, config: Mapping[str, Any], *, searched: Collection[str]
) -> dict[str, Any]:
    """Return those entries of a card's `config` that have an effect on the model.

    Left out is what another setting turns off, and what is off by default, unless it was
    `searched`.
    """
    parameters = inspect.signature(BUILDERS[builder]).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    defaults |= {"rounds": 0, "rank": 0}  # of the Mogrifier
    used = _with_effect(config, defaults, searched)
    full = {**defaults, **config}
    is_stack = "internal_dropout" in arguments_of(CELLS[full.get("cell", "lstm")])  # in one cell
    if is_stack and config.get("internal_dropout"):
        used["internal_dropout"] = config["internal_dropout"]
    alone = {"connection": "plain", "tied": True, "recurrent_layers": 1, "experts": 0}
    if all(full.get(name) == value for name, value in alone.items()):
        used.pop("recurrent_units", None)  # the only layer is as wide as the embedding
    return {name: config[name] for name in config if name in used}


def recipe_with_effect(recipe: Mapping[str, Any], *, searched: Collection[str]) -> dict[str, Any]:
    """Return those entries of a card's `recipe` that have an effect, as `config_with_effect`."""
    defaults = {field.name: field.default for field in dataclasses.fields(Recipe)}
    return _with_effect(recipe, defaults, searched)


def _with_effect(
    settings: Mapping[str, Any], defaults: Mapping[str, Any], searched: Collection[str]
) -> dict[str, Any]:
    full = {**defaults, **settings}
    idle = {
        name
        for switch, off, others in TURNED_OFF
        if switch in full and full[switch] == off
        for name in others
    }
    for name in settings.keys() & defaults.keys() - {*searched}:
        value = settings[name]
        if value == defaults[name] and (value in NONE or name in FACTORS):
            idle.add(name)
    return {name: value for name, value in settings.items() if name not in idle}
