"""What a worker does: a timed step of one setting, or of the evaluation of a part of a text."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

LEAST_SECONDS = 0.25  # of a turn: small models take several steps
WARM_UP = 3
CHUNK = 2048  # tokens of one call in evaluation, as dualnet's own


class Work:
    """One setting at the work of one case; each library has a subclass.

    Args:
        case: of `cases.described`.
        setting: the fields of `cases.Setting`.

    Attributes, set by `prepare`:
        parameters: Number of weights that are trained.
        versions: Versions of the libraries, by name.
        notes: What the table should say.
    """

    parameters = 0

    def __init__(self, case: dict[str, Any], setting: dict[str, Any]):
        self.case = case
        self.setting = setting
        self.versions: dict[str, str] = {}
        self.notes: list[str] = []
        self.rng = np.random.default_rng(0)
        self.steps = 1
        self.rows = case["batch"]
        self.prepare()

    # --- of each library

    def prepare(self) -> None:
        raise NotImplementedError

    def step(self) -> float:
        """Take one step of training or dynamic evaluation; return the mean loss in nats.

        Without penalties. What the step does is done when it returns.
        """
        raise NotImplementedError

    def evaluate(self, streams: tuple[np.ndarray, np.ndarray], steps: int) -> float:
        """Return the mean loss of a text, `steps` tokens of each row at a time."""
        raise NotImplementedError

    # --- the same for all

    def tokens(self, *shape: int) -> np.ndarray:
        return self.rng.integers(0, self.case["config"]["vocabulary_size"], shape, dtype=np.int32)

    def batch(self) -> tuple[Any, np.ndarray]:
        """Return inputs and targets of one step, `(batch, time)`.

        The inputs of a translation are a dict with its `source` and its `target`.
        """
        both = self.tokens(self.case["batch"], self.case["time"] + 1)
        inputs, targets = both[:, :-1], both[:, 1:]
        if self.case["source"]:
            source = self.tokens(self.case["batch"], self.case["source"])
            return {"source": source, "target": inputs}, targets
        return inputs, targets

    def streams(self, rows: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
        both = self.tokens(rows, tokens // rows + 1)
        return both[:, :-1], both[:, 1:]

    def warm_up(self) -> float:
        """Compile, choose the number of steps of a turn; return the first loss."""
        if self.case["kind"] == "evaluation":
            return self._choose_rows()
        first = self.step()
        self._check(first)
        seconds = []
        for _ in range(WARM_UP - 1):
            began = time.perf_counter()
            self.step()
            seconds.append(time.perf_counter() - began)
        self.steps = max(1, math.ceil(LEAST_SECONDS / min(seconds)))
        return first

    def turn(self) -> float:
        """Do the work of one turn; return the seconds of a step, or of the whole text."""
        if self.case["kind"] == "evaluation":
            streams = self.streams(self.rows, self.case["tokens"])
            began = time.perf_counter()
            self.evaluate(streams, self.chunk(self.rows))
            return time.perf_counter() - began
        began = time.perf_counter()
        for _ in range(self.steps):
            loss = self.step()
        seconds = (time.perf_counter() - began) / self.steps
        if not math.isfinite(loss):
            raise ValueError("the loss is no number")
        return seconds

    def chunk(self, rows: int) -> int:
        return max(1, min(CHUNK, self.case["tokens"]) // rows)

    def _choose_rows(self) -> float:
        """Take the fastest of several numbers of rows, by a part of the text."""
        found = {}
        for rows in self.case["rows"]:
            part = max(CHUNK, rows) if rows > 1 else self.case["tokens"]
            streams = self.streams(rows, part)
            loss = self.evaluate(streams, self.chunk(rows))
            self._check(loss)
            seconds = []
            for _ in range(WARM_UP - 1):
                began = time.perf_counter()
                self.evaluate(streams, self.chunk(rows))
                seconds.append(time.perf_counter() - began)
            found[rows] = min(seconds)
        self.rows = min(found, key=found.__getitem__)
        if len(found) > 1:
            self.notes.append(f"batch {self.rows}")
        return loss

    def _check(self, loss: float) -> None:
        """A model that knows nothing has a loss of about log V, whoever wrote it."""
        expected = math.log(self.case["config"]["vocabulary_size"])
        if not abs(loss - expected) < 1.0:
            raise ValueError(f"the first loss is {loss:.2f} nats, not about {expected:.2f}")
