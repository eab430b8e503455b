from __future__ import annotations

from typing import Any

import keras

from dualnet.builders.stations.station import Station
from dualnet.layers import EmbeddingDropout
from dualnet.layers._configured import l2_regularizer


class Embedding(Station):
    """Word vectors.

    Args:
        padded: bool. Whether tokens below 0 are padding, which changes no state and counts
            for nothing. Batches of sentences need it; it costs some speed.
        embedding_dropout: Rate at which whole words are dropped, at every place in the
            segment where they stand.
        embedding_dropout_per_row: bool. Whether each row draws its own words (variational
            LSTM); else all rows share one draw (AWD-LSTM).
        embedding_l2: Penalty: times the sum of squares of the embedding (and output) matrix.
    """

    padded: bool = False
    embedding_dropout: float = 0.0
    embedding_dropout_per_row: bool = False
    embedding_l2: float = 0.0

    def embed(
        self, tokens: Any, vocabulary_size: int, units: int, *, name: str = "embedding"
    ) -> tuple[Any, Any]:
        """Return the embedding layer, and its vectors `(batch, time, units)`."""
        layer = keras.layers.Embedding(
            vocabulary_size,
            units,
            # The logits of a fresh tied model then vary by about 1 per unit of its input, as in
            # the reference code of Melis et al. Keras's default, a third of that, starts far
            # slower.
            embeddings_initializer=keras.initializers.RandomNormal(stddev=units**-0.5),
            embeddings_regularizer=l2_regularizer(self.embedding_l2),
            name=name,
        )
        return layer, self.vectors(tokens, layer, name=name)

    def vectors(
        self, tokens: Any, layer: keras.layers.Embedding, *, name: str = "embedding"
    ) -> Any:
        """Return the vectors of `tokens`, `(batch, time, units)`, with dropout."""
        embedded = layer(keras.ops.maximum(tokens, 0) if self.padded else tokens)
        if self.embedding_dropout > 0:
            embedded = EmbeddingDropout(
                self.embedding_dropout,
                vocabulary_size=layer.input_dim,
                per_row=self.embedding_dropout_per_row,
                name=f"{name}_dropout",
            )([tokens, embedded])
        return embedded

    def mask(self, tokens: Any) -> Any:
        """Return the mask of `tokens`, bool `(batch, time)`, or None without padding."""
        return tokens >= 0 if self.padded else None
