"""The user's callbacks: their names, and their state in checkpoints."""

import json
import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from dualnet._checks import ArgumentError

DIRECTIONS = {"loss": "min", "perplexity": "min", "bleu": "max"}  # of figures, for `mode="auto"`
# What a callback cannot do here, where the recipe does it.
UNSUITABLE = {
    keras.callbacks.LearningRateScheduler: "Set `decay`, `hold_epochs` or `square_root_decay`.",
    keras.callbacks.ReduceLROnPlateau: "Set `plateau_decay` of the recipe.",
    keras.callbacks.SwapEMAWeights: "Set `averaging` of the recipe.",
    keras.callbacks.BackupAndRestore: "`resume=True` goes on from the last checkpoint.",
}
State = dict[str, dict[str, Any]]  # attributes of each callback


class UserCallbacks:
    """The callbacks of the user, by names, and their state.

    The state is each attribute that is a number, text, a truth value, or a list or dict of
    these, and has changed since `on_train_begin`. Nothing else of them is kept.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback] | None) -> None:
        self.named: dict[str, keras.callbacks.Callback] = {}
        self.at_first: dict[str, dict[str, str]] = {}  # attributes after `on_train_begin`
        for callback in callbacks or ():
            name = type(callback).__name__
            if not isinstance(callback, keras.callbacks.Callback):
                raise ArgumentError(
                    "callbacks", f"must hold Keras callbacks, not classes. Received: {callback!r}."
                )
            for unsuitable, way_out in UNSUITABLE.items():
                if isinstance(callback, unsuitable):
                    raise ArgumentError("callbacks", f"must not hold a {name}. {way_out}")
            same = sum(name == type(other).__name__ for other in self.named.values())
            self.named[f"{name}-{same}" if same else name] = callback

    def set_directions(self) -> None:
        """Set `mode`, "min" or "max", where it is "auto" and Keras does not know the figure."""
        for callback in self.named.values():
            if getattr(callback, "monitor_op", callback) is None:
                figure = re.sub("^val_|_(plain|short|long)$", "", str(callback.monitor))
                if callback.mode == "auto":
                    callback.mode = DIRECTIONS.get(figure, "auto")
                if callback.mode != "auto":
                    # After the first epoch it would negate `min_delta` again in a resumed run.
                    callback._set_monitor_op()

    def note_beginning(self) -> None:
        self.at_first = {name: _plain(callback) for name, callback in self.named.items()}

    @property
    def state(self) -> State:
        states = {}
        for name, callback in self.named.items():
            changed = _plain(callback).items() - self.at_first[name].items()
            states[name] = {key: json.loads(text) for key, text in sorted(changed)}
        return states

    @state.setter
    def state(self, states: State) -> None:
        for name, callback in self.named.items():
            changed = {key: json.dumps(value) for key, value in states.get(name, {}).items()}
            present = _plain(callback)
            for key, text in (self.at_first[name] | changed).items():
                if present.get(key) != text:
                    vars(callback)[key] = json.loads(text)


def _plain(callback: keras.callbacks.Callback) -> dict[str, str]:
    """Return the attributes of `callback` that JSON gives back as they are, in JSON."""
    texts = {}
    for key, value in vars(callback).items():
        if key != "params":  # of the training, not of the callback
            try:
                text = json.dumps(value, default=np.generic.item)
                read = json.loads(text)
                if value != value or read == value or repr(read) == repr(value):  # nan in a list
                    texts[key] = text
            except (TypeError, ValueError, RecursionError):
                continue
    return texts
