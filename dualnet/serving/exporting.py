"""`export`: checks the path, writes the model in the chosen format, all or nothing."""

import contextlib
import functools
import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Unpack

import keras
import numpy as np

from dualnet._checks import ArgumentError, StrPath
from dualnet._fields import documented
from dualnet._files import flush, folder_beside, workplace_beside
from dualnet._formats import ADDED, Writer
from dualnet.builders import LanguageModel, TranslationModel, check_model
from dualnet.builders.model import check_exports
from dualnet.evaluation.arguments import vocabulary_with_eos
from dualnet.requests import SUFFIXES, Exporting, ExportingArguments, format_of
from dualnet.runs.shipped import LICENCES, licences_of
from dualnet.text import EOS, UNK, SentencePieceTokenizer, Vocabulary
from dualnet.text.byte_level import why_no_parts
from dualnet.text.files import lines
from dualnet.text.loading import TOKENIZER_FILES

# The formats that some settings are for.
ONLY_FOR = {
    "learn": ("saved_model", "onnx", "litert"),
    "quantize": ("onnx", "litert"),
    "dtype": ("litert",),
    "check_file": ("onnx", "litert"),
    "cache": ("onnx", "litert"),
}
CHECK = "check.json"  # beside a file, what was measured of it
READER = "reader.npz"  # beside a file that learns, a `Learner` that has read nothing
BESIDE = (*TOKENIZER_FILES, LICENCES, CHECK, READER, "learn.onnx", "weights")
MOST_CHECKED = 10_000  # tokens


def endpoints(
    model: LanguageModel, *, format: str = "saved_model", learn: str | Sequence[str] | None = None
) -> list[str]:
    """Return the names of the endpoints that `export` writes for `model`.

    Example:
        >>> from dualnet import serving, zoo
        >>> from dualnet.text import Vocabulary
        >>> model = zoo.build("lstm", vocabulary_size=3, units=4)
        >>> serving.endpoints(model)
        ['score', 'step', 'predict_next']
        >>> model.vocabulary = Vocabulary(("<eos>", "the", "cat"))
        >>> serving.endpoints(model)[3:]
        ['score_text', 'generate_text', 'predict_next_text', 'complete_text']
        >>> serving.endpoints(model, learn="connection")[-2:]
        ['learn', 'learn_text']
        >>> serving.endpoints(model, format="onnx")
        ['step']
        >>> serving.endpoints(model, format="litert", learn="matrix:16")
        ['step', 'learn']
        >>> translator = zoo.build("encdec", vocabulary_size=3, units=4)
        >>> translator.vocabulary = translator.source_vocabulary = model.vocabulary
        >>> serving.endpoints(translator)
        ['encode', 'step', 'translate']
    """
    check_model("model", model)
    if isinstance(model, TranslationModel):
        has_end = getattr(model.vocabulary, "eos_id", None) is not None
        return ["encode", "step", *["translate"] * has_end]
    if format != "saved_model":
        return ["step", *["learn"] * (learn is not None)] if SUFFIXES[format] else []
    text = ["score_text", "generate_text", "predict_next_text", "complete_text"]
    text = [] if why_no_text(model) else text
    learning = ["learn", *["learn_text"] * bool(text)] if learn is not None else []
    return ["score", "step", "predict_next", *text, *learning]


def why_no_text(model: LanguageModel) -> str:
    """Return the reason why `export` writes no endpoint that reads text, or "".

    Example:
        >>> from dualnet import serving, zoo
        >>> serving.why_no_text(zoo.build("lstm", vocabulary_size=3, units=4))
        'they need a tokeniser, and the model has none.'
    """
    tokenizer = model.vocabulary
    if isinstance(model, TranslationModel):
        if "translate" not in endpoints(model):
            return f"a translator takes ids, and `translate` needs a tokeniser with {EOS}."
        return "a translator takes ids, which the tokenisers in assets.extra make."
    if tokenizer is None:
        return "they need a tokeniser, and the model has none."
    if reason := why_no_parts(tokenizer):
        package = "sentencepiece" if isinstance(tokenizer, SentencePieceTokenizer) else "tokenizers"
        return (
            "a TensorFlow graph holds tokenisers of words, of bytes and of byte-level BPE, and the "
            f"model's {reason}. Send ids, which the package `{package}` makes with "
            f"assets.extra/{tokenizer.file_name}."
        )
    if tokenizer.eos_id is None:
        return f"they need {EOS}, which the vocabulary does not hold."
    return ""


@documented(Exporting)
def export(model: LanguageModel, path: StrPath, **settings: Unpack[ExportingArguments]) -> Path:
    """Export `model` to a format that needs neither dualnet nor Keras, or for `transformers`.

    - "saved_model" writes a folder: a TensorFlow SavedModel with up to seven endpoints, `score`,
      `step`, `predict_next` and, if the graph can hold the tokeniser, `score_text`,
      `generate_text`, `predict_next_text` and `complete_text`. With `learn` each takes a `memory`,
      and there are `learn` and `learn_text`. A `TranslationModel` has `encode`, `step` and
      `translate`. The tokeniser is also a file in `assets.extra`.
    - "onnx" and "litert" write one file with a single step of a language model, in float32, from
      `ids` int32 `(batch, 1)` and `state_1` ... `state_n` float32 `(batch, size)` to `logits`
      float32 `(batch, 1, words)` and the new states: `state_1` ... `state_n` of the signature
      `step` in LiteRT, `new_state_1` ... `new_state_n` in ONNX, where an output cannot share the
      name of an input. The tokeniser is written beside it, such as `model.onnx.vocabulary.txt`.
      With `learn` the step takes a `memory`, and a second graph, the signature `learn` or the file
      `model.onnx.learn.onnx`, returns a new one. Both ONNX files then read `model.onnx.weights`.
      `model.onnx.reader.npz` is the file of a `dualnet.Learner` that has read nothing.
    - "transformers" writes a folder that Hugging Face's library opens with `dualnet.transformers`.
    - "sherpa-onnx" writes an ONNX file for the speech recogniser sherpa-onnx, from a model whose
      layers are plain LSTMs of one size, in the ids of `tokens`.

    `LICENSES_SOURCES` of a shipped model comes along: in `assets.extra`, in the folder of
    transformers, beside a file and in the metadata of ONNX.

    Endpoints keep no state between requests, so clients cannot affect each other. The guide "Serve
    and export" lists the inputs and outputs of each endpoint, their types and shapes, and what they
    refuse; "Learners" those of `learn`. Batch and time are dynamic. Dropout is off.

    Args:
        model: `LanguageModel`, or `TranslationModel` for a SavedModel.
        path: the folder to write, new or empty; or the file, ending in .onnx or .tflite, which
            is overwritten, as is the tokeniser beside it. A kill at that moment may leave the
            tokeniser alone, never with the model of another.
        {arguments}

    Returns:
        The absolute path of the folder or file.

    Raises:
        ValueError: if an argument is out of range, or `format` cannot hold the model.
        ImportError: if the backend is not TensorFlow, which all but "transformers" need, or
            packages that `format` needs are missing.
        FileExistsError: if the folder holds files or is a file.
        OSError: if the disk is full or cannot be written to; nothing is left behind.

    Example:
        >>> import tempfile, dualnet
        >>> from dualnet import zoo
        >>> model = zoo.build("lstm", vocabulary_size=3, units=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     dualnet.export(model, f"{folder}/model.tflite").name
        'model.tflite'
    """
    request = Exporting.of(settings)
    format = request.format or format_of(path)
    if format not in ADDED:
        check_exports()
    path = Path(path).resolve()
    for name, formats in ONLY_FOR.items():
        if getattr(request, name) is not None and format not in formats:
            others = " and ".join(map(repr, formats))
            raise ArgumentError(
                name,
                f"must be None for format={format!r}, and is for {others}.",
                **{name: getattr(request, name)},
            )
    if format != "saved_model" and isinstance(model, TranslationModel):
        raise ArgumentError(
            "format",
            "must be 'saved_model' for a model that translates.",
            " Export it as a SavedModel.",
            format=format,
        )
    write = _export_file if SUFFIXES[format] else _export_folder
    write(model, path, format, request)
    return path


def _writer(model: LanguageModel, format: str, request: Exporting) -> Writer:
    """Return the writer of the format; raise `ArgumentError` for a model that it cannot hold."""
    if format == "saved_model":
        return functools.partial(_write_saved_model, model, request)
    check_model("model", model)
    if format in ADDED:
        return ADDED[format].prepare(model, request)
    if model.cache_size:
        raise ArgumentError(
            "format",
            "must be 'saved_model' for a model with a cache, which no single step can hold. "
            f"Received: format={format!r} with a cache of {model.cache_size} words.",
            " Export the model without the cache, or as a SavedModel.",
        )
    from dualnet.serving import one_step

    files = one_step.onnx_files if format == "onnx" else one_step.litert_files
    return functools.partial(files, model, request)


def _export_folder(model: LanguageModel, directory: Path, format: str, request: Exporting) -> None:
    if directory == Path.cwd():  # a new folder would take its place, and leave the shell nowhere
        raise ArgumentError("path", "must not be the current folder.", path=str(directory))
    with _explained("path", directory):
        _check_new_or_empty(directory)
        directory.parent.mkdir(parents=True, exist_ok=True)
        with folder_beside(directory) as unfinished:
            unfinished.chmod(0o755)  # a server may run as another user
            _writer(model, format, request)(unfinished)
            _check_new_or_empty(directory)  # another export may have finished first


def _write_saved_model(model: LanguageModel, request: Exporting, folder: Path) -> None:
    from dualnet.serving import learning, saved_model

    names = endpoints(model, learn=request.learn)
    memories = learning.Memories(model, request) if request.learn is not None else None
    vocabulary = model.vocabulary if "score_text" in names else None
    if isinstance(vocabulary, Vocabulary) and vocabulary.unk_id is None:
        warnings.warn(
            f"The vocabulary of this model is closed: it has no {UNK}, so the endpoints "
            "that read text refuse one with any other word. Train on byte-level BPE, "
            "the default for a text of your own, or on words, which then have one.",
            stacklevel=6,
        )
    saved_model.write_saved_model(model, str(folder), names, request.max_tokens, memories)


def _export_file(model: LanguageModel, path: Path, format: str, request: Exporting) -> None:
    if path.suffix.lower() != SUFFIXES[format] or path.is_dir():
        raise ArgumentError(
            "path",
            f"must be a file that ends in {SUFFIXES[format]!r} for format={format!r}.",
            path=str(path),
        )
    files_of = _writer(model, format, request)
    from dualnet.serving import learning, one_step

    with _explained("path", path):  # before the slow work
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    ids = _ids_to_check(model, request) if format not in ADDED else None
    with _explained("TMPDIR", Path(tempfile.gettempdir())):  # where converters write
        files = files_of(path.name)
    with _explained("path", path), workplace_beside(path) as unfinished:
        if model.vocabulary is not None and format not in ADDED:
            model.vocabulary.save(unfinished / f"{path.name}.{model.vocabulary.file_name}")
        for name, text in licences_of(model.run).items():
            (unfinished / f"{path.name}.{name}").write_text(text, "utf-8")
        for suffix, data in files.items():
            (unfinished / f"{path.name}{suffix}").write_bytes(data)
            flush(unfinished / f"{path.name}{suffix}")
        if request.learn is not None:
            learning.new_learner(model, request).save(unfinished / f"{path.name}.{READER}")
        if ids is not None:
            figures = one_step.figures(model, unfinished / path.name, ids)
            (unfinished / f"{path.name}.{CHECK}").write_text(json.dumps(figures))
        # Killed from here on, it leaves no model, rather than one beside another's tokeniser.
        path.unlink(missing_ok=True)
        for beside in (path.with_name(f"{path.name}.{name}") for name in BESIDE):
            beside.unlink(missing_ok=True)
            if (unfinished / beside.name).exists():
                os.replace(unfinished / beside.name, beside)
        os.replace(unfinished / path.name, path)


def _ids_to_check(model: LanguageModel, request: Exporting) -> np.ndarray | None:
    """Return the ids of the text that the file is measured on; None for none."""
    if request.check_file is not None:
        vocabulary, eos_id = vocabulary_with_eos(model)
        text = "".join(line.text for line in lines(request.check_file))
        ids = np.append(eos_id, vocabulary.encode(text))
        if len(ids) < 2:
            raise ArgumentError("check_file", "must hold text.", file=str(request.check_file))
    elif model.run is not None and (request.quantize or request.dtype):
        try:
            ids = model.run.corpus(download=False).valid
        except (FileNotFoundError, ValueError):  # as of a shipped model, or it has changed
            return None
    else:
        return None
    return ids[: MOST_CHECKED + 1]


def _check_new_or_empty(directory: Path) -> None:
    is_folder = directory.is_dir()
    if any(directory.iterdir()) if is_folder else directory.exists():
        problem = "which holds files" if is_folder else "which is a file"
        raise FileExistsError(
            f"`path` must be new or empty. Received: {str(directory)!r}, {problem}. Choose another."
        )


@contextlib.contextmanager
def _explained(name: str, path: Path) -> Iterator[None]:
    """Turn a file-system error into one sentence about the argument `name`."""
    kinds: tuple[type[Exception], ...] = (OSError,)
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        kinds += (tf.errors.OpError,)
    try:
        yield
    except kinds as error:
        if isinstance(error, OSError) and error.errno is None:
            raise  # a sentence already
        # Of TensorFlow: "{{node ...}} FILE; No space left on device [Op:SaveV2]"
        text = str(getattr(error, "message", error))
        reason = getattr(error, "strerror", None) or re.sub(r"(?s).*; | \[Op:.*", "", text)
        kind = type(error) if isinstance(error, OSError) else OSError
        raise kind(
            f"`{name}` must be a place where files can be written. Received: {str(path)!r} "
            f"({reason}). Choose another place."
        ) from None
