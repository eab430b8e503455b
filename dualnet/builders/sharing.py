"""Who may use a model's weights while they change, where several threads share the model."""

import collections
import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from dualnet._checks import ArgumentError

_changes = threading.Condition()
_learners: dict[int, int] = {}  # by weight, as `id`, which thread changes it
_readers: collections.Counter[int] = collections.Counter()  # by first weight
# On JAX, a step of Keras takes the arrays of all weights away, and gives them back at its end.
_alone = threading.RLock()


@contextlib.contextmanager
def changing(weights: Sequence[Any]) -> Iterator[None]:
    """Let this thread alone use `weights` for the duration of the context.

    It begins when other threads have finished the batch that they are reading.

    Raises:
        ArgumentError: if somebody changes one of the weights already.
    """
    ids = [id(weight) for weight in weights]
    with _changes:
        if any(i in _learners for i in ids):
            reason = "each would restore what the other has changed."
            received = "Received: a model that adapts to another text. Load it twice."
            raise ArgumentError("model", f"must not be learning already: {reason} {received}")
        _learners.update(dict.fromkeys(ids, threading.get_ident()))
    try:
        with _changes:
            _changes.wait_for(lambda: not any(_readers[i] for i in ids))
        yield
    finally:
        with _changes:
            for i in ids:
                del _learners[i]


@contextlib.contextmanager
def reading(weights: Sequence[Any]) -> Iterator[None]:
    """Leave `weights` unchanged by other threads for the duration of the context.

    Raises:
        ArgumentError: if another thread changes one of them.
    """
    first = id(weights[0])
    thread = threading.get_ident()
    with _changes:
        if any(_learners.get(id(weight), thread) != thread for weight in weights):
            reason = "which changes its weights until it has finished."
            received = "Received: a model that adapts to a text. Wait, or load it twice."
            required = f"must not be learning in another thread, {reason}"
            raise ArgumentError("model", f"{required} {received}")
        _readers[first] += 1
    try:
        with _alone if keras.config.backend() == "jax" else contextlib.nullcontext():
            yield
    finally:
        with _changes:
            _readers[first] -= 1
            _changes.notify_all()


def predict(core: Any, inputs: Any) -> Any:
    """Return `core.predict_on_batch(inputs)`, with weights that no other thread changes."""
    with reading(core.weights):
        return core.predict_on_batch(inputs)
