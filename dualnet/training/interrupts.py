"""Graceful stops: on Ctrl-C or SIGTERM, the current step is finished and saved first."""

import signal
import sys
import threading
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """Raised when a training stops on request; the message says how to resume."""


class Interrupts:
    """Context in which the first Ctrl-C or SIGTERM sets `asked` and the second raises `Stopped`."""

    def __init__(self) -> None:
        self.asked = False
        self.at_once = ""  # if not empty, the first signal already raises `Stopped`, with this text
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # a requirement of Python
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.at_once or self.asked:
            message = "Stopped at once. Resume from the last checkpoint with --resume."
            raise Stopped(self.at_once or message)
        self.asked = True
        message = "\nStopping after the current step, once it is saved. Repeat to stop at once."
        print(message, file=sys.stderr, flush=True)
