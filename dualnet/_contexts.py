"""Values of context variables for a while."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def held(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Let `variable` have `value` meanwhile."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
