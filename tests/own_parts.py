"""Parts as a user writes them, each with one equation; `test_own_parts` builds models of them."""

import keras
from keras import ops

from dualnet.layers import LSTMCell, RecurrentCell, product
from dualnet.layers.output_projection import OutputProjection


@keras.saving.register_keras_serializable("own")
class DiagonalCell(RecurrentCell):
    """h' = slope * tanh(x W + u * h + b)."""

    def __init__(self, units, *, slope=1.0, **kwargs):
        super().__init__(units, **kwargs)
        self.slope = slope

    def build(self, input_shape):
        self.kernel = self.add_input_kernel("kernel", (input_shape[-1], self.units))
        self.u = self.add_weight(name="u", shape=(self.units,), initializer="ones")
        self.bias = self.add_bias("bias", self.units)

    def input_projection(self, inputs, masks):
        return product(inputs, self.kernel, masks.get("input")) + self.bias

    def step(self, projection, states, masks):
        h = self.slope * ops.tanh(projection + self.u * states[0])
        return h, [h]


@keras.saving.register_keras_serializable("own")
class KerasStyleCell(keras.layers.Layer):
    """h' = tanh(x W + h U), as the documentation of Keras has it: states may be an int."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = self.state_size = units

    def build(self, input_shape):
        self.kernel = self.add_weight(name="kernel", shape=(input_shape[-1], self.units))
        self.recurrent_kernel = self.add_weight(
            name="recurrent_kernel", shape=(self.units, self.units)
        )

    def call(self, inputs, states):
        h = ops.matmul(inputs, self.kernel) + ops.matmul(states[0], self.recurrent_kernel)
        return ops.tanh(h), [ops.tanh(h)]


@keras.saving.register_keras_serializable("own")
class Gated(keras.layers.Layer):
    """d = gain * (sigmoid(e G) * e V + h U), units wide."""

    def __init__(self, units, *, gain=1.0, **kwargs):
        super().__init__(**kwargs)
        self.units, self.gain = units, gain

    def build(self, input_shape):
        embedded, hidden = (shape[-1] for shape in input_shape)
        self.gate = self.add_weight(name="gate", shape=(embedded, self.units))
        self.value = self.add_weight(name="value", shape=(embedded, self.units))
        self.hidden = self.add_weight(name="hidden", shape=(hidden, self.units))

    def call(self, inputs):
        embedded, hidden = inputs
        gate = ops.sigmoid(ops.matmul(embedded, self.gate))
        value = gate * ops.matmul(embedded, self.value)
        return self.gain * (value + ops.matmul(hidden, self.hidden))


@keras.saving.register_keras_serializable("own")
class Scaled(keras.layers.Layer):
    """Logits sharpness * (h E'), E the embedding."""

    def __init__(self, vocabulary_size, *, tied_to, sharpness=1.0, **kwargs):
        super().__init__(**kwargs)
        self.tied_to, self.sharpness = tied_to, sharpness

    def call(self, inputs):
        return self.sharpness * ops.matmul(inputs, ops.transpose(self.tied_to.embeddings))


@keras.saving.register_keras_serializable("own")
class Counted(OutputProjection):
    """An output that computes losses itself, and says how often it was asked."""

    asked = 0

    def call(self, inputs, targets=None, temperature=None):
        type(self).asked += targets is not None
        return super().call(inputs, targets, temperature)


@keras.saving.register_keras_serializable("own")
class Layered(keras.layers.Layer):
    """d = tanh(e A + h B) + h C, of layers without names."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.embedded, self.hidden = keras.layers.Dense(units), keras.layers.Dense(units)
        self.past = keras.Sequential([keras.layers.Dense(units)])
        self.past.supports_masking = True

    def build(self, input_shape):
        for layer, shape in zip((self.embedded, self.hidden), input_shape):
            layer.build(shape)
        self.past.build(input_shape[1])

    def call(self, inputs):
        embedded, hidden = inputs
        return ops.tanh(self.embedded(embedded) + self.hidden(hidden)) + self.past(hidden)


@keras.saving.register_keras_serializable("own")
class Narrow(keras.layers.Layer):
    """A connection that does not return the size that it was made for."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)

    def call(self, inputs):
        return inputs[1][..., :1]


class Unregistered(LSTMCell):
    """A cell that no file can name."""


def core(words=9, units=4, embedding=3):
    """Return a Keras model `[tokens, state] -> [logits, state]`."""
    tokens = keras.Input((None,), dtype="int32")
    state = keras.Input((units,))
    gru = keras.layers.GRU(units, return_sequences=True, return_state=True)
    embedded = keras.layers.Embedding(words, embedding)(tokens)
    hidden, after = gru(embedded, initial_state=state)
    return keras.Model([tokens, state], [keras.layers.Dense(words)(hidden), after])
