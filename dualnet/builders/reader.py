"""`Reader`: asks a model a question about each segment of a text, outside of `fit`."""

import contextlib
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np

from dualnet import _backend
from dualnet._checks import ArgumentError
from dualnet.builders.graph import Graph
from dualnet.builders.weight_copy import WeightCopy
from dualnet.layers import without_gradients

# From a graph and a segment to the answer, both as in `Reader`.
Question = Callable[[Graph, dict[str, Any]], dict[str, Any]]


class Reader(keras.Model):
    """Asks a graph a question about segments of text; `predict_on_batch` answers, compiled.

    A segment is a dict. Those of a text have `tokens` and `targets`, int `(batch, time)`,
    `states`, and, where the logits are to be divided by one, `temperature`, float32
    `(batch, 1)`, the same in all rows. The answer is a dict as well: an array
    `(batch, time, ...)` for each number, or vector, that is asked of a token, and the `states`
    after the segment. One more number for each token is one more question.

    For a translator, the tokens are those of a target. In place of `states`, a segment may have
    the `source`; a question finds the states after it.

    Args:
        graph: `Graph`; its layer of past decoding is left out.
        question: function of the graph and a segment that returns the answer.
        weights: `WeightCopy` of the graph that it is read with; None for its own weights.

    Attributes:
        is_pure: bool. Whether no answer changes a variable.
    """

    is_pure = True

    def __init__(self, graph: Graph, question: Question, weights: WeightCopy | None = None) -> None:
        # States and values of weights stay float32, whatever the global policy.
        super().__init__(dtype="float32", autocast=False)
        self.graph = graph.without_past_decode()
        self.weight_copy = weights
        if weights is None:
            self.core, self.encoder = self.graph.core, self.graph.encoder
        self.question = question
        self._compiled: Callable[..., Any] | None = None
        self.built = True

    def call(self, inputs: dict[str, Any]) -> dict[str, Any]:
        with contextlib.nullcontext() if self.weight_copy is None else self.weight_copy.scope():
            return self.question(self.graph, self.begun(inputs))

    def begun(self, segment: dict[str, Any]) -> dict[str, Any]:
        """Return a segment with the states after its source, if it has one."""
        if "source" not in segment:
            return segment
        return {**segment, "states": self.encoder(segment["source"], training=False)}

    def predict_on_batch(self, x: dict[str, Any]) -> dict[str, Any]:
        if keras.config.backend() == "jax" and self.is_pure:
            answer = self._predict_purely(x)
        else:
            answer = super().predict_on_batch(x)
        if not np.isfinite(answer.get("losses", 0.0)).all():
            raise ArgumentError(
                "model",
                "must compute finite log-probabilities. Received: a model that does not. Train it "
                "again, or let it adapt, with a smaller learning_rate.",
            )
        return answer

    def predict_step(self, *args: Any) -> Any:
        with without_gradients():
            return super().predict_step(*args)

    def _predict_purely(self, x: dict[str, Any]) -> dict[str, Any]:
        """Answer by a compiled function of the weights.

        Keras's function takes the arrays of all weights away, and assigns them at its end, which
        undoes what another thread, such as that of a `fit`, has assigned in the meantime.
        """
        if self._compiled is None:
            self._compiled = _backend.jitted(
                lambda weights, segment: self.predict_step(weights, (segment,))[0]
            )
        variables = self.trainable_variables, self.non_trainable_variables
        answer = _backend.read_weights(self._compiled, variables, x)
        return keras.tree.map_structure(np.array, answer)


_readers: WeakKeyDictionary[Any, dict[Question, Reader]] = WeakKeyDictionary()


def reader_of(model: Any, question: Question) -> Reader:
    """Return the reader that asks a model `question`; it is kept as long as the model.

    The model may be anything with a `graph`, and with the `weight_copy` that it is read with.
    """
    readers = _readers.setdefault(model, {})
    if question not in readers:
        readers[question] = Reader(model.graph, question, getattr(model, "weight_copy", None))
    return readers[question]
