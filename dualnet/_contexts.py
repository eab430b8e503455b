"""Contexts: temporary values of variables and policies, hidden standard error, progress bars."""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
_STANDARD_ERROR = threading.RLock()  # held while it is redirected


@contextlib.contextmanager
def override(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set `variable` to `value` inside the `with` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextlib.contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Let Keras build layers of this dtype policy inside the `with` block."""
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextlib.contextmanager
def hidden_stderr() -> Iterator[None]:
    """Hide standard error, also of code in C++ and Rust; show it if an exception is raised."""
    with _STANDARD_ERROR, contextlib.ExitStack() as stack:
        try:
            stderr = os.dup(2)
        except OSError:  # it is closed
            yield
            return
        stack.callback(os.close, stderr)
        buffer = stack.enter_context(tempfile.TemporaryFile())
        os.dup2(buffer.fileno(), 2)
        failed = False
        try:
            yield
        except Exception:
            failed = True
            raise
        finally:
            os.dup2(stderr, 2)
            if failed:
                buffer.seek(0)
                os.write(stderr, buffer.read())


def progress_bar(*, show: bool, auto_refresh: bool = True) -> "Progress":
    """Return a bar of tasks with a description and the field `figures`, on a terminal alone.

    It is written to standard error.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    return Progress(
        "{task.description}",
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        "left  {task.fields[figures]}",
        console=Console(stderr=True, force_jupyter=False),
        auto_refresh=auto_refresh,
        transient=True,
        disable=not show or sys.stderr is None or not sys.stderr.isatty(),
        redirect_stdout=False,  # else it would end up on standard error
    )
