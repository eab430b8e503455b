"""The builders by name: a saved model names the one that rebuilds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BUILDERS: dict[str, Callable[..., Any]] = {}


def builder(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that builds a `LanguageModel`: enter it into `BUILDERS` as `name`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        BUILDERS[name] = function
        return function

    return register
