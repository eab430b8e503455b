"""Old names that work for one more release, with a `DeprecationWarning`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def warn(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that `old` is deprecated in favour of `new`."""
    warnings.warn(f"{old} is deprecated. Use {new}.", DeprecationWarning, stacklevel=stacklevel)


def renamed_arguments(**names: str) -> Callable[[Function], Function]:
    """Decorate a function whose keyword arguments were renamed, old name to new name."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for old, new in names.items():
                if old in kwargs:
                    warn(f"The argument `{old}`", f"`{new}`")
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate
