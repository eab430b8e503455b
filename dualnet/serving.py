"""SavedModel export: state goes in and comes out, so that clients never share any."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import keras

from dualnet.builders import LanguageModel


def export(model: LanguageModel, directory: str | os.PathLike[str]) -> Path:
    """Write `model` to `directory` as a TensorFlow SavedModel with two endpoints.

    - `score`: `ids` int32 `(batch, time)` and `lengths` int32 `(batch,)` to
      `log_probabilities` float32 `(batch, time)`: the log-probability in nats of
      each token given those before it, read from the zero state. It is 0 for
      the first token, which nothing comes before, and from `lengths` on.
    - `step`: `ids` int32 `(batch, time)` and `state_1` ... `state_n` float32
      `(batch, size)` to `logits` float32 `(batch, time, words)` and the new
      `state_1` ... `state_n`. A text begins with states of zeros.

    Batch and time are free. Dropouts are off.

    Args:
        model: `LanguageModel`.
        directory: folder to write, new or empty.

    Returns:
        The folder.

    Raises:
        ImportError: on another backend than TensorFlow, which alone can export.
        FileExistsError: if `directory` holds files.
    """
    if keras.config.backend() != "tensorflow":
        raise ImportError(
            "`export` needs the TensorFlow backend. Received: the backend "
            f"{keras.config.backend()!r}. Save the model as .keras, and load and export it in a "
            "process with KERAS_BACKEND=tensorflow."
        )
    import tensorflow as tf

    directory = Path(directory).resolve()
    if directory.is_dir() and any(directory.iterdir()):
        raise FileExistsError(
            f"`directory` must be new or empty. Received: {str(directory)!r}, which holds files."
        )
    core, sizes = model.core, model.state_size
    states = {f"state_{i}": size for i, size in enumerate(sizes, start=1)}

    def score(inputs: dict[str, Any]) -> dict[str, Any]:
        ids, lengths = inputs["ids"], inputs["lengths"]
        batch, time = tf.shape(ids)[0], tf.shape(ids)[1]
        zeros = [tf.zeros((batch, size)) for size in sizes]
        logits = core([ids, *zeros], training=False)[0]
        chosen = tf.gather(tf.nn.log_softmax(logits)[:, :-1], ids[:, 1:], batch_dims=2)
        # One column more in front, cut to the time there is, so that an empty text is answered.
        scores = tf.concat([tf.zeros((batch, 1)), chosen], axis=1)[:, :time]
        inside = tf.sequence_mask(lengths, time, dtype=tf.float32)
        return {"log_probabilities": scores * inside}

    def step(inputs: dict[str, Any]) -> dict[str, Any]:
        logits, *new = core([inputs["ids"], *(inputs[name] for name in states)], training=False)
        return {"logits": logits, **dict(zip(states, new))}

    ids = tf.TensorSpec((None, None), tf.int32, name="ids")
    lengths = tf.TensorSpec((None,), tf.int32, name="lengths")
    state_specs = {
        name: tf.TensorSpec((None, size), tf.float32, name=name) for name, size in states.items()
    }
    archive = keras.export.ExportArchive()
    archive.track(core)
    archive.add_endpoint("score", score, [{"ids": ids, "lengths": lengths}])
    archive.add_endpoint("step", step, [{"ids": ids, **state_specs}])
    unfinished = directory.with_name(directory.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of an export that was killed
    archive.write_out(str(unfinished), verbose=False)
    if directory.is_dir():
        directory.rmdir()
    os.replace(unfinished, directory)
    return directory
