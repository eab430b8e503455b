"""Bucketing: pads batches to a small set of lengths, so that few steps are compiled."""

import keras
import numpy as np

from dualnet.corpora.sentence_batches import PADDING_ID

FINEST = 4  # the smallest distance between two bucket lengths


def bucket_length(length):
    """Return the smallest bucket length that is at least `length`.

    Up to 64 these are the multiples of 4, above them eight in each octave (72, 80, 88, ...):
    padding takes 4 % of the time at lengths of about 70, and never more than an eighth above 32.
    """
    step = max(FINEST, 1 << max(0, (length - 1).bit_length() - 4))
    return -(-length // step) * step


class BucketedBatches(keras.utils.PyDataset):
    """Pads each batch on the right to a bucket length.

    Padding is -1 in inputs, and 0 in targets and weights. On TensorFlow the first two batches
    differ in length, which tells Keras that the length varies. Items are `(inputs, targets,
    sample_weight)`; those of `batches` may lack weights.
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
        inputs, targets, *weight = self.batches[index]
        weight = weight[0] if weight else np.ones(inputs.shape, "float32")
        length = bucket_length(inputs.shape[1])
        differs = index == 0 and len(self) > 1 and keras.config.backend() == "tensorflow"
        if differs and length == bucket_length(self.batches[1][0].shape[1]):
            length = bucket_length(length + 1)
        missing = length - inputs.shape[1]
        return tuple(
            np.pad(array, ((0, 0), (0, missing)), constant_values=value)
            for array, value in ((inputs, PADDING_ID), (targets, 0), (weight, 0.0))
        )
