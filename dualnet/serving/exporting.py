"""`export`: checks the path, writes the model in the chosen format, all or nothing."""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import keras

from dualnet._checks import ArgumentError, check_choice
from dualnet._files import folder_beside, write_whole
from dualnet.builders import LanguageModel

SUFFIXES = {"onnx": ".onnx", "litert": ".tflite"}  # of the single-file formats
FORMATS = ("saved_model", *SUFFIXES)
ABANDONED_AFTER_SECONDS = 24 * 60 * 60


def endpoints(model: LanguageModel, *, format: str = "saved_model") -> list[str]:
    """Return the names of the endpoints that `export` writes for `model`.

    Example:
        >>> from dualnet import serving, zoo
        >>> from dualnet.text import Vocabulary
        >>> model = zoo.build("lstm", vocabulary_size=3, units=4)
        >>> serving.endpoints(model)
        ['score', 'step']
        >>> model.vocabulary = Vocabulary(("<eos>", "the", "cat"))
        >>> serving.endpoints(model)
        ['score', 'step', 'score_text', 'generate_text']
        >>> serving.endpoints(model, format="onnx")
        ['step']
    """
    if format != "saved_model":
        return ["step"]
    reads_text = model.vocabulary is not None and model.vocabulary.eos_id is not None
    return ["score", "step", *(["score_text", "generate_text"] if reads_text else [])]


def export(
    model: LanguageModel, path: str | os.PathLike[str], *, format: str = "saved_model"
) -> Path:
    """Export `model` to a format that needs neither dualnet nor Keras.

    `format="saved_model"` writes a folder: a TensorFlow SavedModel with up to four endpoints.
    Endpoints keep no state between requests, so clients cannot affect each other.

    - `score` maps `ids` int32 `(batch, time)` and `lengths` int32 `(batch,)` to
      `log_probabilities` float32 `(batch, time)`: the log-probability in nats of each token given
      the tokens before it, read from the zero state. It is 0 for the first token, which has no
      context, and for padding from `lengths` on.
    - `step` maps `ids` int32 `(batch, time)` and `state_1` ... `state_n` float32 `(batch, size)`
      to `logits` float32 `(batch, time, words)` and the new `state_1` ... `state_n`. Start a
      text with states of zeros.
    - `score_text` maps `texts` string `(batch,)` to `words` string `(batch, time)`, the words as
      read; `log_probabilities` float32 `(batch, time)` in nats; `lengths` int32 `(batch,)`, the
      number of words; and `perplexity` float32 `(batch,)`, the exponential of a text's mean
      negative log-probability. Each text is read from the zero state after `<eos>`, so its first
      word is scored too. Rows are padded with "" and 0. The perplexity of an empty text is 1, and
      perplexities are capped at the largest float32, since JSON has neither NaN nor infinity.
    - `generate_text` continues prompts. Its inputs, all `(batch,)`: `prompts` string; `max_tokens`
      int32, at least 0; `temperature` float32, finite and at least 0 (0: greedy); `top_k` int32,
      at least 0 (0: all words); `top_p` float32, above 0 and at most 1 (1: all words); `seed`
      int32; `stop_at_eos` bool. Its outputs: `texts` string `(batch,)`, each prompt with its
      continuation; `log_probabilities` float32 `(batch, time)`, those of the drawn words at
      temperature 1, in nats, padded with 0; `lengths` int32 `(batch,)`, the number of words drawn.
      `temperature` is applied first, then `top_k`, then `top_p`; `<unk>` is never drawn. With
      `stop_at_eos` a row ends before the first `<eos>`, which appears in no output. Each row draws
      with its own seed, independently of the rest of the batch.

    `score_text` and `generate_text` read text as `Vocabulary.encode` does: words are separated by
    white space, a newline is `<eos>`, and a word that is unknown or not UTF-8 is `<unk>`, or fails
    the request if the vocabulary has no `<unk>`. They are omitted if the model has no vocabulary,
    or one without `<eos>`. `score` and `score_text` read in chunks, so long texts need little
    memory.

    `format="onnx"` and `format="litert"` write one file with a single step and no loop: `ids` int32
    `(batch, 1)` and `state_1` ... `state_n` float32 `(batch, size)` to `logits` float32
    `(batch, 1, words)` and the new states. In LiteRT these are `state_1` ... `state_n` under the
    signature `step`; in ONNX, where an output cannot share the name of an input, `new_state_1` ...
    `new_state_n`. Both compute in float32, whatever the model's dtype policy.

    Batch and time are dynamic. Dropout is off.

    Args:
        model: `LanguageModel`.
        path: the folder to write, new or empty; or the file, ending in .onnx or .tflite, which
            is overwritten.
        format: "saved_model", "onnx" or "litert".

    Returns:
        The absolute path of the folder or file.

    Raises:
        ImportError: if the backend is not TensorFlow, or packages that `format` needs are missing.
        FileExistsError: if the folder holds files or is a file.

    Example:
        >>> import tempfile, dualnet
        >>> from dualnet import zoo
        >>> model = zoo.build("lstm", vocabulary_size=3, units=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     dualnet.export(model, f"{folder}/model.tflite", format="litert").name
        'model.tflite'
    """
    check_choice("format", format, FORMATS)
    if keras.config.backend() != "tensorflow":
        raise ImportError(
            "`export` needs the TensorFlow backend. Received: the backend "
            f"{keras.config.backend()!r}. Save the model as .keras, then load and export it in a "
            "process with KERAS_BACKEND=tensorflow."
        )
    path = Path(path).resolve()
    if format == "saved_model":
        _export_folder(model, path)
    else:
        _export_file(model, path, format)
    return path


def _export_folder(model: LanguageModel, directory: Path) -> None:
    with _explained("directory", directory):
        _check_new_or_empty(directory)
        _make_parent(directory)
        # Killed exports leave unfinished folders beside the path that they were to become, where
        # exports to other paths may be under way, so their names tell the path and the process. A
        # leading dot: a model server takes a name that begins with a digit for a version to serve.
        prefix = f".{directory.name}.unfinished-"
        _remove_leftovers(directory.parent, prefix)
        prefix = f"{prefix}{_owner(os.getpid())}."
        with folder_beside(directory, replace=False, prefix=prefix) as unfinished:
            from dualnet.serving import saved_model

            saved_model.write_saved_model(model, str(unfinished), endpoints(model))
            _check_new_or_empty(directory)  # another export may have finished first


def _export_file(model: LanguageModel, path: Path, format: str) -> None:
    if path.suffix != SUFFIXES[format] or path.is_dir():
        raise ArgumentError(
            "path",
            f"must be a file that ends in {SUFFIXES[format]!r} for format={format!r}. "
            f"Received: path={str(path)!r}.",
        )
    with _explained("path", path):  # before the slow work
        _make_parent(path)
        tempfile.TemporaryFile(dir=path.parent).close()
    if model.cache_size:
        raise ArgumentError(
            "format",
            "must be 'saved_model' for a model with a cache, which a single step cannot hold. "
            f"Received: format={format!r} with a cache of {model.cache_size} words. "
            "Export the model without the cache, or as a SavedModel.",
        )
    from dualnet.serving import one_step

    data = one_step.onnx_bytes(model) if format == "onnx" else one_step.litert_bytes(model)
    with _explained("path", path):
        write_whole(path, data)


def _check_new_or_empty(directory: Path) -> None:
    is_folder = directory.is_dir()
    if any(directory.iterdir()) if is_folder else directory.exists():
        problem = "which holds files" if is_folder else "which is a file"
        raise FileExistsError(
            f"`directory` must be new or empty. Received: {str(directory)!r}, {problem}."
        )


def _make_parent(path: Path) -> None:
    nearest = next(parent for parent in path.parents if parent.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"{str(nearest)!r} is a file")
    path.parent.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def _explained(name: str, path: Path) -> Iterator[None]:
    """Turn a file-system error into one sentence about the argument `name`."""
    try:
        yield
    except FileExistsError:  # of `_check_new_or_empty`, a sentence already
        raise
    except OSError as error:
        raise type(error)(
            f"`{name}` must be a place where files can be written. Received: {str(path)!r} "
            f"({error.strerror or error}). Choose another place."
        ) from None


def _owner(process: int) -> str:
    """Return a name for a process of this machine."""
    return f"{platform.node().replace('.', '_')}-{process}"


def _remove_leftovers(parent: Path, prefix: str) -> None:
    """Remove folders of exports whose process has ended, or that are a day old."""
    for folder in parent.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError):
            old = time.time() - folder.stat().st_mtime > ABANDONED_AFTER_SECONDS
            if old or _has_ended(folder.name.removeprefix(prefix).partition(".")[0]):
                shutil.rmtree(folder, ignore_errors=True)


def _has_ended(owner: str) -> bool:
    """Return whether `owner` names a process of this machine that has ended."""
    process = owner.rpartition("-")[2]
    if os.name != "posix" or not process.isdecimal() or owner != _owner(int(process)):
        return False  # perhaps of another machine
    try:
        os.kill(int(process), 0)  # sends no signal, only checks; denied for another user's process
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False
