"""`SegmentLearner`: the compiled step that adapts a model."""

from typing import Any

import keras
from keras import ops

from dualnet._optimizers import LEAST_WEIGHTS, num_weights
from dualnet.builders import Graph, questions
from dualnet.builders.stream_state import StreamState
from dualnet.builders.stream_training import ClearsAllGradients


class SegmentLearner(ClearsAllGradients):
    """Learns from segments of streams, dropouts off; `train_on_batch` takes a step.

    It takes a dict with `tokens` and `targets`, int `(batch, time)`, and, where the logits are to
    be divided by one, `temperature`, float32 `(batch, 1)`, the same in all rows. The state is
    carried from step to step. A step minimises the mean loss, without penalties; with `weights`,
    float32 `(batch, time)`, 0 for padding at the end, the weighted mean.

    Args:
        graph: `Graph`; its layer of past decoding is left out.
        batch_size: int. Number of streams.
    """

    def __init__(self, graph: Graph, batch_size: int, **kwargs: Any) -> None:
        # `temperature` and states stay float32, whatever the global policy.
        super().__init__(dtype="float32", autocast=False, **kwargs)
        self.graph = graph.without_past_decode()
        self.core = self.graph.core
        self.stream_state = StreamState([int(state.shape[-1]) for state in graph.states])
        self.stream_state.resize(batch_size)
        self.built = True

    @property
    def state(self) -> list[Any]:
        """All variables that a step changes, beside the weights."""
        return [*self.stream_state.variables, *self.optimizer.variables]

    def call(self, inputs: dict[str, Any]) -> Any:
        answer = questions.losses(self.graph, {**inputs, "states": self.stream_state.read(None)})
        self.stream_state.write(answer["states"])
        return answer["losses"]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if "weights" not in x:
            return ops.mean(y_pred)
        weights = ops.convert_to_tensor(x["weights"])
        return ops.sum(y_pred * weights) / ops.sum(weights)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "losses": ops.stop_gradient(y_pred)}


def make_learner(
    graph: Graph, optimizer: keras.optimizers.Optimizer, *, batch_size: int
) -> SegmentLearner:
    """Return the learner of `batch_size` streams, compiled with `optimizer`."""
    learner = SegmentLearner(graph, batch_size, name="learner")
    # Now, and not inside the first compiled step, which would build it anew at every step.
    optimizer.build(learner.trainable_variables)
    # A step of one row is many small operations: on TensorFlow their overhead exceeds the work.
    # Keras by itself compiles no steps on a CPU.
    is_large = num_weights(learner.trainable_variables) >= LEAST_WEIGHTS
    compiled = keras.config.backend() == "tensorflow" and batch_size == 1 and is_large
    learner.compile(optimizer=optimizer, jit_compile=compiled or "auto")
    return learner
