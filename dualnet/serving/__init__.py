"""Models for other programs: a SavedModel with text endpoints, ONNX and LiteRT files."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import keras

from dualnet._checks import ArgumentError, check_choice
from dualnet._files import write_whole
from dualnet.builders import LanguageModel

SUFFIXES = {"onnx": ".onnx", "litert": ".tflite"}  # of the formats that are one file
FORMATS = ("saved_model", *SUFFIXES)
UNFINISHED = ".unfinished"
KILLED_AFTER_SECONDS = 24 * 60 * 60


def export(
    model: LanguageModel, path: str | os.PathLike[str], *, format: str = "saved_model"
) -> Path:
    """Write `model` for programs that know neither dualnet nor Keras.

    `format="saved_model"` writes a folder, a TensorFlow SavedModel with up to four
    endpoints. No client shares state with another: it goes in and comes out, or
    lives in one request alone.

    - `score`: `ids` int32 `(batch, time)` and `lengths` int32 `(batch,)` to
      `log_probabilities` float32 `(batch, time)`: the log-probability in nats of
      each token given those before it, read from the zero state. It is 0 for
      the first token, which nothing comes before, and from `lengths` on.
    - `step`: `ids` int32 `(batch, time)` and `state_1` ... `state_n` float32
      `(batch, size)` to `logits` float32 `(batch, time, words)` and the new
      `state_1` ... `state_n`. A text begins with states of zeros.
    - `score_text`: `texts` string `(batch,)` to `words` string `(batch, time)`, the
      words as they were read, `log_probabilities` float32 `(batch, time)` in nats,
      `lengths` int32 `(batch,)`, the number of words, and `perplexity` float32
      `(batch,)`, exp of the mean of -log p over a text's words. Each text is read
      from the zero state after `<eos>`, so that its first word is scored too.
      Beyond its length a row is "" and 0. The perplexity of an empty text is 1,
      and none is above the largest float32: JSON has neither NaN nor infinity.
    - `generate_text`: `prompts` string, `max_tokens` int32 of at least 0,
      `temperature` float32, finite and at least 0 (0: always the likeliest word),
      `top_k` int32 of at least 0 (0: all words), `top_p` float32 above 0 and at
      most 1 (1: all words), `seed` int32 and `stop_at_eos` bool, all `(batch,)`,
      to `texts` string `(batch,)`, prompt and continuation, `log_probabilities`
      float32 `(batch, time)` of the drawn words under the model, in nats at
      temperature 1, 0 beyond the end, and `lengths` int32 `(batch,)`, how many were
      drawn. The temperature comes first, then `top_k`, then `top_p`; `<unk>` is
      never drawn. With `stop_at_eos` a row ends before the first `<eos>`, which is in
      none of the outputs. A row draws with its own seed, whatever is beside it.

    The last two read text as `Vocabulary.encode` does: words stand between white
    space, a newline is `<eos>`, an unknown word, or one that is not UTF-8, is
    `<unk>`, and fails the request if the vocabulary has no `<unk>`. They are left out
    if the model has no vocabulary, or one without `<eos>`. `score` and `score_text`
    read in chunks, so that a long text needs little memory.

    `format="onnx"` and `format="litert"` write one file that holds one step without
    a loop: `ids` int32 `(batch, 1)` and `state_1` ... `state_n` float32 `(batch, size)` to
    `logits` float32 `(batch, 1, words)` and the new states, which are called
    `state_1` ... `state_n` in LiteRT, under its signature `step`, and `new_state_1`
    ... `new_state_n` in ONNX, where no output can bear the name of an input. They
    compute in float32, whatever the model's dtype policy.

    Batch and time are free where they are named. Dropouts are off.

    Args:
        model: `LanguageModel`.
        path: the folder to write, new or empty; or the file, which is replaced, and
            ends in .onnx or .tflite.
        format: "saved_model", "onnx" or "litert".

    Returns:
        The folder or file, absolute.

    Raises:
        ImportError: on another backend than TensorFlow, which alone can export, or
            if `format` needs packages that are not installed.
        FileExistsError: if the folder holds files, or is a file.
        OSError: if it cannot be written to.
        ValueError: if `format` is not known, or `path` ends in another suffix.
    """
    check_choice("format", format, FORMATS)
    if keras.config.backend() != "tensorflow":
        raise ImportError(
            "`export` needs the TensorFlow backend. Received: the backend "
            f"{keras.config.backend()!r}. Save the model as .keras, and load and export it in a "
            "process with KERAS_BACKEND=tensorflow."
        )
    path = Path(path).resolve()
    if format == "saved_model":
        _export_folder(model, path)
        return path
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
            "must be 'saved_model' for a model with a cache, which a file of one step "
            f"cannot hold. Received: format={format!r}, a cache of {model.cache_size} words. "
            "Export it without the cache, or as a SavedModel.",
        )
    from dualnet.serving import one_step

    data = one_step.onnx_bytes(model) if format == "onnx" else one_step.litert_bytes(model)
    with _explained("path", path):
        write_whole(path, data)
    return path


def endpoints(model: LanguageModel, *, format: str = "saved_model") -> list[str]:
    """Return the names of the endpoints that `export` writes for `model`."""
    if format != "saved_model":
        return ["step"]
    speaks = model.vocabulary is not None and model.vocabulary.eos_id is not None
    return ["score", "step", *(["score_text", "generate_text"] if speaks else [])]


def _export_folder(model: LanguageModel, directory: Path) -> None:
    """Write the SavedModel under another name beside `directory`, then rename it."""
    _check_new_or_empty(directory)
    with _explained("directory", directory):
        _make_parent(directory)
        _remove_killed(directory)
        # A name of its own, so that two exports at once never write into one folder.
        unfinished = tempfile.mkdtemp(
            prefix=f".{directory.name}.{_here(os.getpid())}.",
            suffix=UNFINISHED,
            dir=directory.parent,
        )
    try:
        from dualnet.serving.saved_model import write_saved_model

        write_saved_model(model, unfinished)
        os.chmod(unfinished, 0o755)  # mkdtemp hides it from others, such as a server
        _check_new_or_empty(directory)  # another export may have come first
        with _explained("directory", directory):
            if directory.is_dir():
                directory.rmdir()  # not every system replaces an empty folder
            os.replace(unfinished, directory)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _check_new_or_empty(directory: Path) -> None:
    if directory.is_dir():
        with _explained("directory", directory):
            what = "which holds files" if any(directory.iterdir()) else None
    else:
        what = "which is a file" if directory.exists() else None
    if what is not None:
        raise FileExistsError(
            f"`directory` must be new or empty. Received: {str(directory)!r}, {what}."
        )


def _make_parent(path: Path) -> None:
    nearest = next(parent for parent in path.parents if parent.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"{str(nearest)!r} is a file")
    path.parent.mkdir(parents=True, exist_ok=True)


def _remove_killed(directory: Path) -> None:
    """Remove what exports to `directory` left that were killed: of no process, or old."""
    for folder in directory.parent.glob(f".*{UNFINISHED}"):
        if folder.name.startswith(f".{directory.name}."):
            with contextlib.suppress(OSError):
                old = time.time() - folder.stat().st_mtime > KILLED_AFTER_SECONDS
                if old or _is_dead(folder.name.split(".")[-3]):
                    shutil.rmtree(folder, ignore_errors=True)


def _here(process: int) -> str:
    """Return a name for a process of this machine."""
    return f"{platform.node().replace('.', '_')}-{process}"


def _is_dead(name: str) -> bool:
    """Return whether `name`, of `_here`, is that of a process of this machine that has ended."""
    process = name.rpartition("-")[2]
    if os.name != "posix" or not process.isdecimal() or name != _here(int(process)):
        return False  # of another machine, maybe
    try:
        os.kill(int(process), 0)  # sends nothing
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's
        return False
    return False


@contextlib.contextmanager
def _explained(name: str, path: Path) -> Iterator[None]:
    """Turn an error of the file system into a sentence about the argument `name`."""
    try:
        yield
    except OSError as error:
        raise type(error)(
            f"`{name}` must be where files can be written. Received: {str(path)!r} "
            f"({error.strerror or error}). Choose another place."
        ) from None
