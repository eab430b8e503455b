"""Losses of given words, in nats, and their perplexity."""

import keras
from keras import ops

from dualnet.layers import DOCOutput, OutputProjection, PastDecode


def token_losses(logits, targets):
    """Return -log p(target) in nats, float32 `(batch, time)`.

    Args:
        logits: `(batch, time, words)`.
        targets: int `(batch, time)`.
    """
    logits, targets = ops.cast(logits, "float32"), ops.cast(targets, "int32")
    return ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)


def losses_of(core, features=None, *, padded=False):
    """Return what finds -log p of given words, without the logits of all where it can.

    Args:
        core, features: as those of `LanguageModel`.
        padded: bool. Whether tokens below 0 are padding.

    Returns:
        A function of the inputs of `core`, the int targets `(batch, time)`, `training` and
        `temperature`, by which the logits are divided (a float, a scalar tensor, or None for
        1), which returns the losses in nats, float32 `(batch, time)`, and the new states.
    """
    output = core.outputs[0]._keras_history.operation
    mixture = isinstance(output, DOCOutput)
    if not mixture and not isinstance(output, OutputProjection):  # a gate, a mean, a cache

        def losses_of_logits(inputs, targets, training=False, temperature=None):
            logits, *states = core(inputs, training=training)
            logits = logits if temperature is None else logits / temperature
            return [token_losses(logits, targets), *states]

        return losses_of_logits
    below = keras.Model(core.inputs, [features if mixture else output.input, *core.outputs[1:]])

    def losses(inputs, targets, training=False, temperature=None):
        found, *states = below(inputs, training=training)
        if not mixture:
            return [output(found, targets=targets, temperature=temperature), *states]
        mask = inputs[0] >= 0 if padded else None
        if isinstance(found, (list, tuple)):
            mask = [mask] * len(found)
        own = {"mask": mask, "training": training, "temperature": temperature}
        return [output(found, targets=targets, **own), *states]

    return losses  # a function: Keras would save a model that is an attribute once more


def core_of_logits(core):
    """Return `core` without `PastDecode`, whose weights the logits do not know."""
    last = core.outputs[0]._keras_history.operation
    if not isinstance(last, PastDecode):
        return core
    return keras.Model(core.inputs, [last.input[1], *core.outputs[1:]])


class Perplexity(keras.metrics.Metric):
    """exp of the mean loss of all tokens seen since the last reset.

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
