"""Batches of few lengths, where each is compiled: padded, and read so that results are exact."""

import keras
import numpy as np
from keras import ops

from dualnet.corpora.sentence_batches import PADDING_ID
from dualnet.layers import Recurrence

FINEST = 4  # the smallest distance between two lengths


def rounded(length):
    """Return the least of few lengths that is not below `length`.

    Up to 64 these are the multiples of 4, above them eight in each octave (72, 80, 88 ..):
    padding takes 4 % of the time where lengths are about 70, never more than an eighth
    above 32.
    """
    step = max(FINEST, 1 << max(0, (length - 1).bit_length() - 4))
    return -(-length // step) * step


class FewLengths(keras.utils.PyDataset):
    """The batches of `batches`, each padded on the right to one of few lengths.

    Inputs are -1 on padding, targets and weights 0. On TensorFlow the first two differ
    in length, from which Keras sees that it varies.

    Args:
        batches: `keras.utils.PyDataset` of `(inputs, targets)` or `(inputs, targets,
            sample_weight)`, each `(rows, time)`.

    Items:
        `(inputs, targets, sample_weight)`.
    """

    def __init__(self, batches):
        super().__init__(workers=1, use_multiprocessing=False)
        self.batches = batches
        self.vocabulary = getattr(batches, "vocabulary", None)

    def __len__(self):
        return len(self.batches)

    def on_epoch_begin(self):
        self.batches.on_epoch_begin()

    def on_epoch_end(self):
        self.batches.on_epoch_end()

    def __getitem__(self, index):
        taken = None
        if index == 0 and len(self) > 1 and keras.config.backend() == "tensorflow":
            taken = rounded(self.batches[1][0].shape[1])
        inputs, targets, *weight = self.batches[index]
        weight = weight[0] if weight else np.ones(inputs.shape, "float32")
        length = rounded(inputs.shape[1])
        if length == taken:
            length = rounded(length + 1)
        missing = length - inputs.shape[1]
        return tuple(
            np.pad(each, ((0, 0), (0, missing)), constant_values=value)
            for each, value in ((inputs, PADDING_ID), (targets, 0), (weight, 0.0))
        )


def knowing_padding(core, features):
    """Return `core` and `features` of a `LanguageModel`, of the same layers, but as with `padded`.

    Every recurrence gets a mask, which it passes on; every embedding reads a word where
    padding is. Other layers that look at the tokens themselves know padding already, but for
    `NeuralCache`.
    """
    several = isinstance(features, (list, tuple))
    more = list(features) if several else [features] * (features is not None)
    whole = _with_masks(keras.Model(core.inputs, [*core.outputs, *more]))
    count = len(core.outputs)
    outputs, more = whole.outputs[:count], whole.outputs[count:]
    return keras.Model(whole.inputs, outputs), more if several else next(iter(more), None)


def _with_masks(graph):
    mask = graph.inputs[0] >= 0

    def member(layer):
        return _with_masks(layer) if isinstance(layer, keras.Model) else layer

    def call(layer, *args, **kwargs):
        if isinstance(layer, Recurrence):
            kwargs["mask"] = mask
        elif isinstance(layer, keras.layers.Embedding):
            args = (ops.maximum(args[0], 0),)
        return layer(*args, **kwargs)

    return keras.models.clone_model(
        graph, input_tensors=graph.inputs, clone_function=member, call_function=call
    )
