"""Compiled steps over segments of text, outside of `fit`."""

import keras
from keras import ops

from dualnet._checks import ArgumentError
from dualnet.builders.stream_state import StreamState
from dualnet.layers import without_gradients


class ClearsAllGradients(keras.Model):
    """A model that, on torch, starts each step without gradients.

    Keras keeps the parameters there by path, and so clears those of one member of an ensemble
    only, where two weights have the same path; the gradients of the others would add up.
    """

    def zero_grad(self, set_to_none=True):
        for variable in self.trainable_variables:
            variable.value.grad = None


class SegmentReader(ClearsAllGradients):
    """Reads segments with a graph: `predict_on_batch` scores them, `train_on_batch` learns.

    Both take a dict with `tokens` and `targets`, int `(batch, time)`, and, where the logits are
    to be divided by one, `temperature`, float32 `(batch, 1)`, the same in all rows. Scoring also
    takes `states` and returns a dict of `losses`, float32 `(batch, time)`, and `states`, and with
    `ranks` those of the targets; learning carries the state in the reader and minimises the mean
    loss, without penalties. With `weights`, float32 `(batch, time)`, 0 for padding at the end, that
    is the weighted mean.

    Args:
        graph: `Graph`; its layer of past decoding is left out.
        training: bool. Whether dropouts are active.
        batch_size: int. Number of streams to learn from; None only to score.
        ranks: bool. Whether scoring, without dropouts, also returns `Graph.losses_and_ranks`.
    """

    def __init__(self, graph, *, training=False, batch_size=None, ranks=False, **kwargs):
        super().__init__(**kwargs)
        if graph.constants:
            raise ArgumentError(
                "model", "must be a language model. Received: one that translates a source."
            )
        self.graph = graph.without_past_decode()
        self.core = self.graph.core
        self.training = training
        self.ranks = ranks
        self.state_size = [int(state.shape[-1]) for state in graph.states]
        self.stream_state = StreamState(self.state_size)
        if batch_size is not None:
            self.stream_state.resize(batch_size)
        self.built = True

    def call(self, inputs):
        states = inputs.get("states")
        temperature = inputs["temperature"][0, 0] if "temperature" in inputs else None
        if self.ranks:
            losses, ranks, new_states = self.graph.losses_and_ranks(
                inputs["tokens"], states, inputs["targets"], temperature=temperature
            )
            return {"losses": losses, "ranks": ranks, "states": new_states}
        losses, new_states = self.graph.losses(
            inputs["tokens"],
            self.stream_state.read(None) if states is None else states,
            inputs["targets"],
            training=self.training,
            temperature=temperature,
        )
        if states is None:
            self.stream_state.write(new_states)
            return losses
        return {"losses": losses, "states": new_states}

    def predict_step(self, *args):
        with without_gradients():
            return super().predict_step(*args)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if "weights" not in x:
            return ops.mean(y_pred)
        weights = ops.convert_to_tensor(x["weights"])
        return ops.sum(y_pred * weights) / ops.sum(weights)
