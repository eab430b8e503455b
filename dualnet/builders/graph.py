"""`Graph`: a language model as a body, which computes features, and a head, which reads them."""

import dataclasses
import functools
import inspect
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from dualnet._types import Tensor
from dualnet.layers import DOCOutput, DualConnection, PastDecode, Recurrence


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -log p(target) in nats, float32 `(batch, time)`.

    Args:
        logits: `(batch, time, words)`.
        targets: int `(batch, time)`.

    Example:

    >>> import numpy as np
    >>> from dualnet.builders import token_losses
    >>> losses = token_losses(np.zeros((1, 2, 4), "float32"), np.array([[0, 3]]))
    >>> bool(np.allclose(losses, np.log(4)))
    True
    """
    logits, targets = ops.cast(logits, "float32"), ops.cast(targets, "int32")
    return ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)


@dataclasses.dataclass(eq=False)
class Graph:
    """The symbolic tensors of a language model, and the two questions that a step asks it.

    `logits` answers with the logits of all words, `losses` with -log p of given words. Where
    there is a head, `losses` runs the body and a cross-entropy that is fused with the head.

    Attributes:
        tokens: Input, int `(batch, time)`.
        states: Inputs, `(batch, size)` each; before them, what a translator has read of the
            source, which no step changes.
        new_states: The states after the last token, like `states`.
        hidden: Output of the recurrence without dropout, `(batch, time, units)`.
        word_logits: Logits of all words, `(batch, time, words)`.
        features: What the head reads, a tensor or a list of them; None without a head.
        head: The output layer, such as `OutputProjection` or `DOCOutput`; None if it cannot
            compute losses, or the logits come from elsewhere: a gate, the mean of several models,
            a cache.
        past_decode: `PastDecode`, which adds a penalty to the loss in training, or None.
        padded: bool. Whether tokens below 0 are padding.
        is_normalised: bool. Whether the logits are log-probabilities whose gradient is not theirs:
            those with a cache of n-grams.
        constants: int. How many of the `states`, counted from the first, no step changes: they
            are not among the `new_states`.
        remembered: The last state before a text, float32 `(size,)`; None for zeros.
        encoder: `keras.Model` of a translator, source to `states`; None in a language model.
        core: The pure function `[tokens, *states] -> [logits, *new_states]`, which holds all
            weights.
    """

    tokens: Tensor
    states: list[Tensor]
    new_states: list[Tensor]
    hidden: Tensor
    word_logits: Tensor
    features: Tensor | list[Tensor] | None = None
    head: keras.layers.Layer = None
    past_decode: PastDecode | None = None
    padded: bool = False
    is_normalised: bool = False
    constants: int = 0
    remembered: np.ndarray | None = None
    encoder: keras.Model = None
    core: keras.Model = None

    def __post_init__(self):
        inputs = [self.tokens, *self.states]
        if self.core is None:
            logits = self.word_logits
            if self.past_decode is not None:
                logits = self.past_decode([self.tokens, logits])
            self.core = keras.Model(inputs, [logits, *self.new_states], name="core")
        self.body: keras.Model = None
        if self.head is not None:
            if {"targets", "temperature"} <= {*inspect.signature(self.head.call).parameters}:
                self.body = keras.Model(inputs, [self.features, *self.new_states], name="body")
            else:  # it computes logits alone
                self.head = None

    def begin(self, rows: int) -> list[np.ndarray]:
        """Return the states before a text, float32 `(rows, size)`."""
        sizes = [int(state.shape[-1]) for state in self.states[self.constants :]]
        states = [np.zeros((rows, size), np.float32) for size in sizes]
        if self.remembered is not None:
            states[-1] += self.remembered
        return states

    def remember(self, before: np.ndarray, ids: np.ndarray) -> None:
        """Let a text begin with `ids` in its cache of n-grams, after the state `before`."""
        self.remembered = np.append(before, ids + 1)[len(ids) :].astype(np.float32)

    def logits(
        self, tokens: Tensor, states: Sequence[Tensor], *, training: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the logits of all words, float32 `(batch, time, words)`, and the new states."""
        logits, *after = self.core([tokens, *states], training=training)
        return logits, after

    def losses(
        self,
        tokens: Tensor,
        states: Sequence[Tensor],
        targets: Tensor,
        *,
        training: bool = False,
        temperature: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return -log p of `targets` in nats, float32 `(batch, time)`, and the new states.

        The logits are divided by `temperature`, unless that is None.
        """
        if self.head is None or (training and self.past_decode is not None):
            logits, after = self.logits(tokens, states, training=training)
            if self.is_normalised and temperature is None:
                places = ops.cast(targets, "int32")[..., None]
                return -ops.take_along_axis(logits, places, axis=-1)[..., 0], after
            logits = logits if temperature is None else logits / temperature
            return token_losses(logits, targets), after
        features, *after = self.body([tokens, *states], training=training)
        arguments = {"targets": targets, "temperature": temperature}
        if isinstance(self.head, DOCOutput):
            mask = tokens >= 0 if self.padded else None
            if isinstance(features, list | tuple):
                mask = [mask] * len(features)
            arguments |= {"mask": mask, "training": training}
        return self.head(features, **arguments), after

    def hidden_states(self, tokens, states):
        """Return `layer_outputs` for tokens, float32 `(batch, time, units)`, and the new states."""
        outputs, states = self._reader_of_layers([tokens, *states], training=False)
        # In order: not every backend keeps it.
        return {n: ops.cast(outputs[n], "float32") for n in self.layer_outputs}, states

    @functools.cached_property
    def layer_outputs(self):
        """Return the outputs of embedding, recurrent layers and dual connection, by their names.

        They are without dropout. Where `hidden` is none of them it is there, too, as "hidden".
        """
        kinds = (keras.layers.Embedding, Recurrence, DualConnection)
        layers = [layer for layer in self.core.layers if isinstance(layer, kinds)]
        outputs = {layer.name: keras.tree.flatten(layer.output)[0] for layer in layers}
        if not any(output is self.hidden for output in outputs.values()):
            outputs["hidden"] = self.hidden
        return outputs

    def layer(self, name):
        """Return the layer of this name, or None."""
        return next((layer for layer in self.core.layers if layer.name == name), None)

    @functools.cached_property
    def _reader_of_layers(self):
        inputs = [self.tokens, *self.states]
        return keras.Model(inputs, (self.layer_outputs, self.new_states), name="layers")

    @functools.cached_property
    def decoder_outputs(self):
        """Return the model that computes the outputs of all cells of a decoder."""
        return keras.Model([self.tokens, *self.states], self.core.get_layer("decoder").output[0])

    def without_past_decode(self) -> "Graph":
        """Return this graph without the layer of past decoding, whose weights no logit needs."""
        if self.past_decode is None:
            return self
        return dataclasses.replace(self, past_decode=None, core=None)

    def with_logits(self, logits, **changes):
        """Return this graph with other logits, which no head makes, and with `changes`."""
        changes |= {"word_logits": logits, "features": None, "head": None, "core": None}
        return dataclasses.replace(self, **changes)

    def with_masks(self) -> "Graph":
        """Return a graph of the same layers that reads padding as with `padded`.

        Every recurrence gets a mask, which it passes on; every embedding reads a word where
        padding is. Other layers that look at the tokens themselves know padding already, except
        `NeuralCache`.
        """
        return dataclasses.replace(self._cloned(with_masks), padded=True)

    def with_adapted_recurrence(self, name, matrix):
        """Return a graph of the same layers whose recurrence `name` is adapted.

        `matrix` is a layer that returns the factors of an adaptation matrix for each row.
        """

        def call(layer, *args, **kwargs):
            if layer.name == name:
                kwargs["adaptation"] = matrix(self.tokens)
            return layer(*args, **kwargs)

        return self._cloned(functools.partial(_clone, call=call))

    def _cloned(self, clone):
        """Return this graph with what `clone` returns of a `keras.Model` of all its outputs."""
        features = self.features if isinstance(self.features, list) else [self.features]
        features = features if self.head is not None else []
        whole = clone(keras.Model(self.core.inputs, [*self.core.outputs, *features]))
        count = len(self.core.outputs)
        outputs, features = whole.outputs[:count], whole.outputs[count:]
        return dataclasses.replace(
            self,
            new_states=outputs[1:],
            word_logits=outputs[0],
            features=features if isinstance(self.features, list) else next(iter(features), None),
            core=keras.Model(whole.inputs, outputs),
        )


def with_masks(model):
    """Return a functional model of the same layers; every recurrence has a mask."""
    mask = model.inputs[0] >= 0

    def member(layer):
        return with_masks(layer) if isinstance(layer, keras.Model) else layer

    def call(layer, *args, **kwargs):
        if isinstance(layer, Recurrence):
            kwargs["mask"] = mask
        elif isinstance(layer, keras.layers.Embedding):
            args = (ops.maximum(args[0], 0),)
        return layer(*args, **kwargs)

    return _clone(model, call, member)


def _clone(model, call, member=lambda layer: layer):
    """Return a graph of the same inputs and layers, which are called by `call`."""
    functions = {"clone_function": member, "call_function": call}
    return keras.models.clone_model(model, input_tensors=model.inputs, **functions)


class Perplexity(keras.metrics.Metric):
    """exp of the mean loss of all tokens since the last reset.

    A running mean: a float32 sum would stop growing on a large corpus.
    """

    def __init__(self, name="perplexity", **kwargs):
        super().__init__(name=name, **kwargs)
        self.mean = self.add_variable((), initializer="zeros", name="mean", dtype="float32")
        self.count = self.add_variable((), initializer="zeros", name="count", dtype="float32")

    def update_state(self, losses, weight):
        tokens = ops.sum(weight)
        self.count.assign_add(tokens)
        difference = ops.sum(losses * weight) - tokens * self.mean
        self.mean.assign_add(ops.divide_no_nan(difference, self.count))

    def result(self):
        return ops.exp(self.mean)
