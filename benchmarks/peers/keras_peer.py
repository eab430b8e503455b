"""The work of a case in stock Keras: `keras.layers.LSTM`, or a cell in `keras.layers.RNN`.

Written as a Keras user would: layers of Keras, a model with `call`, its carried state in
variables, `compile` and `train_on_batch`. The masks that a cell needs for a whole segment are
drawn before its loop, as Keras's own cells have it.
"""

from __future__ import annotations

import importlib.metadata
import math

import keras
from keras import layers, ops, regularizers

from peers.work import Work


class LSTMCell(layers.Layer):
    """An LSTM step whose recurrent matrix lost single weights (one draw a segment)."""

    def __init__(self, units, config, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.rate = config.get("weight_dropout", 0.0)
        self.state_size, self.output_size = [units, units], units
        self.dropped = None

    def build(self, shape):
        self.kernel = self.add_weight((shape[-1], 4 * self.units), name="kernel")
        self.recurrent_kernel = self.add_weight((self.units, 4 * self.units), name="recurrent")
        self.bias = self.add_weight((4 * self.units,), "zeros", name="bias")

    def draw(self, x, training, generator):
        """Draw what holds for the segment; return the masked input."""
        self.dropped = ops.cast(self.recurrent_kernel, self.compute_dtype)
        if training and self.rate:
            self.dropped = keras.random.dropout(self.dropped, self.rate, seed=generator)
        return x

    def call(self, x, states, training=False):
        h, c = states
        sums = ops.matmul(x, self.kernel) + ops.matmul(h, self.dropped) + self.bias
        return self._out(sums, c)

    def _out(self, sums, c):
        i, f, j, o = ops.split(sums, 4, axis=-1)
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(j)
        h = ops.sigmoid(o) * ops.tanh(c)
        return h, [h, c]


class MogrifierCell(LSTMCell):
    """Rounds of low rank between x and h, then an LSTM step with one product for all gates."""

    def __init__(self, units, config, **kwargs):
        super().__init__(units, config, **kwargs)
        self.rounds, self.rank = config["rounds"], config["rank"]
        self.rates = config.get("recurrent_dropout", 0.0), config.get("mogrifier_dropout", 0.0)
        self.mask, self.masks = None, [None] * self.rounds

    def build(self, shape):
        size = shape[-1]
        self.bias = self.add_weight((4 * self.units,), "zeros", name="bias")
        self.build_gates(size)
        self.parts = []
        for turn in range(1, self.rounds + 1):
            reads, gates = (self.units, size) if turn % 2 else (size, self.units)
            self.parts.append(
                (
                    self.add_weight((reads, self.rank), name=f"left_{turn}"),
                    self.add_weight((self.rank, gates), name=f"right_{turn}"),
                    self.add_weight((gates,), "zeros", name=f"bias_{turn}"),
                )
            )

    def build_gates(self, size):
        self.kernel = self.add_weight((size + self.units, 4 * self.units), name="kernel")

    def draw(self, x, training, generator):
        recurrent, between = self.rates
        self.mask, self.masks = None, [None] * self.rounds
        if training:
            rows = ops.shape(x)[0]
            one = lambda size, rate: keras.random.dropout(  # noqa: E731
                ops.ones((rows, size), self.compute_dtype), rate, seed=generator
            )
            self.mask = one(self.units, recurrent) if recurrent else None
            self.masks = [one(self.rank, between) if between else None for _ in self.masks]
        return x

    def call(self, x, states, training=False):
        h, c = states
        h = h if self.mask is None else h * self.mask
        for turn, ((left, right, bias), mask) in enumerate(zip(self.parts, self.masks), start=1):
            low = ops.matmul(h if turn % 2 else x, left)
            low = low if mask is None else low * mask
            gate = 2.0 * ops.sigmoid(ops.matmul(low, right) + bias)
            if turn % 2:
                x = gate * x
            else:
                h = gate * h
        return self.gated(x, h, c)

    def gated(self, x, h, c):
        return self._out(ops.matmul(ops.concatenate([x, h], -1), self.kernel) + self.bias, c)


class RewiredCell(MogrifierCell):
    """The same rounds, then a step of the rewired LSTM."""

    def build_gates(self, size):
        units = self.units
        self.kernel = self.add_weight((size + units, 2 * units), name="kernel")
        self.forget_kernel = self.add_weight((2 * units, units), name="forget")
        self.output_kernel = self.add_weight((units, units), name="output")

    def gated(self, x, h, c):
        b_i, b_f, b_j, b_o = ops.split(self.bias, 4)
        i, j = ops.split(ops.matmul(ops.concatenate([x, h], -1), self.kernel), 2, axis=-1)
        i, j = ops.sigmoid(i + b_i), ops.tanh(j + b_j)
        f = ops.matmul(ops.concatenate([i * j, h], -1), self.forget_kernel)
        f = ops.sigmoid(f + b_f)
        c = f * c + ops.minimum(i, 1.0 - f) * j
        shown = c if self.mask is None else c * self.mask
        h = ops.sigmoid(ops.matmul(shown, self.output_kernel) + b_o) * ops.tanh(c)
        return h, [h, c]


CELLS = {"mogrifier_lstm": MogrifierCell, "rewired_lstm": RewiredCell}


class Model(keras.Model):
    def __init__(self, config, options, rows):
        super().__init__()
        self.config = config
        self.generator = keras.random.SeedGenerator(0)
        size = config["embedding_units"]
        scale = config.get("initializer_range", 0.0)
        start = (
            keras.initializers.RandomUniform(-scale, scale)
            if scale
            else keras.initializers.RandomNormal(stddev=size**-0.5)
        )
        self.embedding = layers.Embedding(
            config["vocabulary_size"],
            size,
            embeddings_initializer=start,
            embeddings_regularizer=regularizers.L2(config.get("embedding_l2", 0.0)),
        )
        self.embedding.build()
        unroll, flags = options.get("unroll", False), {"return_sequences": True}
        flags |= {"return_state": True, "unroll": unroll}
        self.recurrent, self.cells, self.rows = [], [], []
        for units in config["layers"]:
            cell = None
            if kind := CELLS.get(config.get("cell")):
                cell = kind(units, config)
            elif config.get("recurrent_dropout"):
                raise ValueError("written without dropout of the recurrent h of a plain LSTM")
            elif config.get("weight_dropout"):
                cell = LSTMCell(units, config)
            self.cells.append(cell)
            self.recurrent.append(
                layers.RNN(cell, **flags) if cell else layers.LSTM(units, **flags)
            )
            self.rows.append(
                [
                    self.add_weight(
                        (rows, units), "zeros", trainable=False, dtype="float32", name=name
                    )
                    for name in ("h", "c")
                ]
            )
        self.dual = [
            layers.Dense(
                config["dual_units"],
                use_bias=bias,
                kernel_regularizer=regularizers.L2(config.get("dual_l2", 0.0)),
            )
            for bias in (False, True)
            if config["dual_units"]
        ]
        words = config["vocabulary_size"]
        self.matrix = None
        if not config["tied"]:
            self.matrix = self.add_weight((size, words), start, name="matrix")
        self.output_bias = None
        if config.get("output_bias"):
            self.output_bias = self.add_weight((words,), "zeros", name="output_bias")
        self.experts = [
            (n, count, layers.Dense(count * size, "tanh"))
            for n, count in enumerate(config.get("experts") or [])
            if count
        ]
        self.prior = None
        if self.experts:
            self.prior = layers.Dense(sum(config["experts"]), use_bias=False)

    def dropped(self, x, place, training):
        rate = self.config.get(f"{place}_dropout", 0.0)
        if not training or not rate:
            return x
        kept = self.config.get("locked_dropouts", ("input", "recurrent", "mogrifier", "latent"))
        shape = (x.shape[0], *[1] * (len(x.shape) - 2), x.shape[-1]) if place in kept else None
        return keras.random.dropout(x, rate, noise_shape=shape, seed=self.generator)

    def call(self, tokens, training=False):
        embedded = self.embedding(tokens)
        rate = self.config.get("embedding_dropout", 0.0)
        if training and rate:
            words = ops.ones((self.embedding.input_dim,), embedded.dtype)
            words = keras.random.dropout(words, rate, seed=self.generator)
            embedded = embedded * ops.take(words, tokens)[..., None]
        x = self.dropped(embedded, "input", training)
        levels = [x]
        for i, (cell, layer, rows) in enumerate(zip(self.cells, self.recurrent, self.rows)):
            if i > 0:
                x = self.dropped(x, "internal", training)
                levels.append(x)
            if cell is not None:
                if not layer.built:
                    layer.build(x.shape)
                x = cell.draw(x, training, self.generator)
            x, *states = layer(x, initial_state=[ops.copy(row) for row in rows])
            for row, state in zip(rows, states):
                row.assign(ops.cast(state, "float32"))
        raw, x = x, self.dropped(x, "output", training)
        levels.append(x)
        if training:
            self._regularize(raw, x)
        if self.dual:
            word = self.dropped(embedded, "dual_input", training)
            x = ops.relu(self.dual[0](word) + self.dual[1](x))
            x = self.dropped(x, "dual_output", training)
        if self.experts:
            return self._mixture(levels, training)
        return self._logits(x)

    def _logits(self, x):
        matrix = self.matrix
        if matrix is None:
            matrix = ops.transpose(ops.cast(self.embedding.embeddings, x.dtype))
        logits = ops.cast(ops.matmul(x, ops.cast(matrix, x.dtype)), "float32")
        if self.output_bias is None:
            return logits
        return logits + ops.cast(self.output_bias, "float32")  # Keras casts it as it is read

    def _mixture(self, levels, training):
        """Return log p of all words: what the loss of Keras asks for."""
        size, (rows, steps) = self.embedding.output_dim, levels[-1].shape[:2]
        latents = [layer(levels[n]) for n, _, layer in self.experts]
        latents = ops.reshape(ops.concatenate(latents, -1), (rows, steps, -1, size))
        latents = self.dropped(latents, "latent", training)
        prior = ops.softmax(ops.cast(self.prior(levels[-1]), "float32"))
        if training:
            used = ops.sum(prior, axis=1)
            values = math.prod(used.shape)
            spread = ops.var(used) * values / (values - 1) * (used.shape[-1] - 1)
            rate = self.config.get("balance_regularization", 0.0)
            self.add_loss(rate * spread / ops.square(ops.mean(used)))
        each = ops.softmax(self._logits(latents))
        return ops.log(ops.einsum("btj,btjv->btv", prior, each) + 1e-8)

    def _regularize(self, raw, x):
        raw, x = ops.cast(raw, "float32"), ops.cast(x, "float32")
        if rate := self.config.get("activation_regularization"):
            self.add_loss(rate * ops.mean(ops.square(x)))
        if rate := self.config.get("temporal_activation_regularization"):
            self.add_loss(rate * ops.mean(ops.square(raw[:, 1:] - raw[:, :-1])))


def nll(targets, logits):
    return ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)


class KerasWork(Work):
    def prepare(self):
        case = self.case
        if self.setting["precision"] == "bfloat16":
            keras.config.set_dtype_policy("mixed_bfloat16")
        keras.utils.set_random_seed(0)
        self.versions = {
            name: importlib.metadata.version(name) for name in ("keras", keras.backend.backend())
        }
        if case["kind"] != "evaluation":
            self.model = self._model(case["batch"], case["time"])
            self._count()

    def _model(self, rows, steps):
        case, recipe = self.case, self.case["recipe"]
        model = Model(case["config"], self.setting["options"], rows)
        if case["kind"] != "training":
            optimizer = keras.optimizers.Nadam(3e-5, beta_1=0.0)
        elif recipe["optimizer"] == "nadam":
            optimizer = keras.optimizers.Nadam(recipe["learning_rate"])
        else:
            optimizer = keras.optimizers.SGD(
                recipe["learning_rate"],
                global_clipnorm=recipe.get("global_clipnorm"),
                weight_decay=recipe.get("weight_decay"),
            )
        jit = self.setting["backend"] == "jax"
        self.factor = 1.0
        if recipe.get("loss_reduction") == "sum" and case["kind"] == "training":
            self.factor = float(steps)
        loss = (lambda y, p: self.factor * nll(y, p)) if self.factor != 1 else nll
        model.compile(optimizer, loss, metrics=[nll], jit_compile=jit)
        model(self.tokens(rows, steps))  # makes the weights
        return model

    def _count(self):
        weights = self.model.trainable_variables
        self.parameters = sum(math.prod(weight.shape) for weight in weights)

    def step(self):
        inputs, targets = self.batch()
        found = self.model.train_on_batch(inputs, targets, return_dict=True)
        return float(found["nll"])

    def evaluate(self, streams, steps):
        inputs, targets = streams
        if not self.parameters or self.model.rows[0][0].shape[0] != len(inputs):
            self.model = self._model(len(inputs), steps)
            self._count()
        for pair in self.model.rows:
            for row in pair:
                row.assign(ops.zeros(row.shape, row.dtype))
        losses, counted = 0.0, 0
        for start in range(0, inputs.shape[1], steps):
            x, y = (each[:, start : start + steps] for each in (inputs, targets))
            losses += x.size * self.model.test_on_batch(x, y, return_dict=True)["nll"]
            counted += x.size
        return float(losses) / counted
