"""What the layers that use the matrix of an embedding have in common."""

import keras


def with_embedding(config):
    """Return the `config` of a layer with the embedding that it is `tied_to` made again."""
    tied_to = config["tied_to"]
    if isinstance(tied_to, dict):
        tied_to = keras.saving.deserialize_keras_object(tied_to)
    return {**config, "tied_to": tied_to}
