"""`Reader`: asks a model a question about each segment of a text, outside of `fit`."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np

from dualnet._checks import ArgumentError
from dualnet.builders.graph import Graph
from dualnet.builders.sharing import reading
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
    """

    def __init__(self, graph: Graph, question: Question, **kwargs: Any) -> None:
        # States and values of weights stay float32, whatever the global policy.
        super().__init__(dtype="float32", autocast=False, **kwargs)
        self.graph = graph.without_past_decode()
        self.core, self.encoder = self.graph.core, self.graph.encoder
        self.question = question
        self.state_size = [int(state.shape[-1]) for state in graph.states[graph.constants :]]
        self.built = True

    def call(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return self.question(self.graph, self.begun(inputs))

    def begun(self, segment: dict[str, Any]) -> dict[str, Any]:
        """Return a segment with the states after its source, if it has one."""
        if "source" not in segment:
            return segment
        return {**segment, "states": self.encoder(segment["source"], training=False)}

    def predict_on_batch(self, x: dict[str, Any]) -> dict[str, Any]:
        with reading(self.core.weights):
            answer = super().predict_on_batch(x)
        if not np.isfinite(answer.get("losses", 0.0)).all():
            required = "must compute finite log-probabilities."
            way_out = "Train it again, or let it adapt, with a smaller learning_rate."
            raise ArgumentError("model", f"{required} Received: a model that does not. {way_out}")
        return answer

    def predict_step(self, *args: Any) -> Any:
        with without_gradients():
            return super().predict_step(*args)


_readers: WeakKeyDictionary[Any, dict[Question, Reader]] = WeakKeyDictionary()


def reader_of(model: Any, question: Question) -> Reader:
    """Return the reader that asks a model `question`; it is kept as long as the model.

    The model may be anything with a `graph`.
    """
    readers = _readers.setdefault(model, {})
    if question not in readers:
        readers[question] = Reader(model.graph, question)
    return readers[question]
