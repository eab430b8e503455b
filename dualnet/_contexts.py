"""Context variables with a temporary value."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def override(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set `variable` to `value` inside the `with` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
