"""Calls the Keras callbacks of a training, and keeps their state in its checkpoints."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from dualnet._checks import ArgumentError

DIRECTIONS = {"perplexity": "min", "val_perplexity": "min", "val_bleu": "max"}  # by what it is of
State = dict[str, dict[str, Any]]  # attributes of each callback
# What a callback cannot do here, where the recipe does it.
UNSUITABLE = {
    "LearningRateScheduler": "Set `decay`, `hold_epochs` or `square_root_decay` of the recipe.",
    "ReduceLROnPlateau": "Set `plateau_decay` of the recipe.",
    "SwapEMAWeights": "Set `averaging` of the recipe.",
    "BackupAndRestore": "Checkpoints are written already: `resume=True` goes on from the last one.",
}


class Callbacks:
    """Keras callbacks, called in their order as one `fit` over all epochs would call them.

    Their state is each attribute that is a number, text, a truth value, or a list or dict of
    these, and has changed since `on_train_begin`. Nothing else of them is kept.
    """

    def __init__(self, callbacks: Sequence[Any] | None) -> None:
        self.named: dict[str, keras.callbacks.Callback] = {}
        for callback in () if callbacks is None else callbacks:
            kinds = callback.__mro__ if isinstance(callback, type) else type(callback).__mro__
            name, received = kinds[0].__name__, repr(callback)
            if not isinstance(callback, keras.callbacks.Callback):
                if keras.callbacks.Callback in kinds:
                    received = f"the class {name}. Give an instance, {name}(...)"
                message = f"must hold Keras callbacks. Received: {received}."
                raise ArgumentError("callbacks", message)
            for kind in kinds:
                if kind.__module__.startswith("keras.") and kind.__name__ in UNSUITABLE:
                    message = f"must not hold a {name}. {UNSUITABLE[kind.__name__]}"
                    raise ArgumentError("callbacks", message)
            same = sum(name == type(other).__name__ for other in self.named.values())
            self.named[f"{name}-{same}" if same else name] = callback
        self.at_first: dict[str, dict[str, str]] = {}  # attributes after `on_train_begin`

    def begin(self, model: keras.Model, **params: Any) -> None:
        """Give the callbacks the model and `params`, and tell them that training begins."""
        self.params = params
        for callback in self.named.values():
            callback.set_model(model)
            callback.set_params(params)
            if hasattr(callback, "_set_monitor_op") and callback.monitor_op is None:
                if callback.mode == "auto":
                    watched = re.sub("_(plain|short|long)$", "", str(callback.monitor))
                    callback.mode = DIRECTIONS.get(watched, "auto")
                # After the first epoch it would negate `min_delta` again in a resumed run.
                with contextlib.suppress(ValueError):  # of a figure that Keras does not know
                    callback._set_monitor_op()
        self.tell("on_train_begin")
        self.at_first = {name: _plain(callback) for name, callback in self.named.items()}

    def tell(self, hook: str, *arguments: Any, logs: Mapping[str, Any] | None = None) -> None:
        """Call the method `hook` of each callback."""
        logs = {} if logs is None else logs  # one for all, as in Keras
        for name, callback in self.named.items():
            try:
                getattr(callback, hook)(*arguments, logs)
            except Exception as error:
                note = f"Raised in {hook} of the callback {name}. The run is saved up to its last "
                error.add_note(f"{note}checkpoint: mend the callback, then go on with resume=True.")
                raise

    @property
    def state(self) -> State:
        state: State = {}
        for name, callback in self.named.items():
            changed = _plain(callback).items() - self.at_first[name].items()
            state[name] = {key: json.loads(text) for key, text in sorted(changed)}
        return state

    @state.setter
    def state(self, state: State) -> None:
        for name, callback in self.named.items():
            changed = {key: json.dumps(value) for key, value in state.get(name, {}).items()}
            present = _plain(callback)
            for key, text in {**self.at_first[name], **changed}.items():
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
