"""Ctrl-C and SIGTERM: the step under way is finished and saved first."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """Raised where a training was stopped on request; its text says how to go on."""


class Interrupts:
    """While entered, turns the first Ctrl-C or SIGTERM into a wish, the second into `Stopped`.

    Attributes:
        asked: bool. Whether a stop was asked for.
        at_once: str. If not empty, already the first raises `Stopped` with this text.
    """

    def __init__(self) -> None:
        self.asked = False
        self.at_once = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # Python allows no other
            self._before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.at_once or self.asked:
            raise Stopped(
                self.at_once
                or "Stopped at once. The last checkpoint is whole: go on from it with --resume."
            )
        self.asked = True
        print(
            "\nStopping: finishing the step and saving. Once more stops at once.",
            file=sys.stderr,
            flush=True,
        )
