"""Deprecated: import `Recurrence` and `without_gradients` from `dualnet.layers`."""

import warnings
from typing import Any

from dualnet import layers


def __getattr__(name: str) -> Any:
    if name not in ("Recurrence", "without_gradients"):
        raise AttributeError(f"module 'dualnet.recurrence' has no attribute {name!r}")
    warnings.warn(
        f"dualnet.recurrence.{name} is deprecated. Use dualnet.layers.{name}.",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(layers, name)
