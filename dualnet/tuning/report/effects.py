"""Which settings of a card have an effect."""

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from dualnet.builders import BUILDERS
from dualnet.builders.stations import STATIONS
from dualnet.training import Recipe

OFF = (0, "none", "plain")  # defaults that stand for nothing


def config_with_effect(
    builder: str, config: Mapping[str, Any], *, searched: Collection[str]
) -> dict[str, Any]:
    """Return those entries of a card's `config` that have an effect on the model.

    Left out is what another setting turns off, and what is off by default, unless it was
    `searched`.
    """
    parameters = inspect.signature(BUILDERS[builder]).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    defaults["rounds"] = 0  # of the Mogrifier
    full = {**defaults, **config}
    idle = {name for station in STATIONS.values() for name in station.idle(full)}
    alone = {"connection": "plain", "tied": True, "recurrent_layers": 1, "experts": 0}
    if all(full.get(name) == value for name, value in alone.items()):
        idle.add("recurrent_units")  # the only layer is as wide as the embedding
    return _with_effect(config, defaults, idle, searched)


def recipe_with_effect(recipe: Mapping[str, Any], *, searched: Collection[str]) -> dict[str, Any]:
    """Return those entries of a card's `recipe` that have an effect, as `config_with_effect`."""
    return _with_effect(recipe, Recipe().arguments(), Recipe.idle(recipe), searched)


def _with_effect(
    settings: Mapping[str, Any],
    defaults: Mapping[str, Any],
    idle: Collection[str],
    searched: Collection[str],
) -> dict[str, Any]:
    return {
        name: value
        for name, value in settings.items()
        if name not in idle
        and (name in searched or value not in OFF or value != defaults.get(name))
    }
