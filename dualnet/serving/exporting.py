"""`export`: checks the path, writes the model in the chosen format, all or nothing."""

import contextlib
import glob
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
from filelock import FileLock

from dualnet._checks import ArgumentError, StrPath, check_choice
from dualnet._fields import documented
from dualnet._files import LOCK, flush
from dualnet._formats import ADDED
from dualnet.builders import LanguageModel, TranslationModel
from dualnet.builders.model import check_exports
from dualnet.requests import FORMATS, SUFFIXES, Exporting, format_of
from dualnet.text import EOS, UNK, SentencePieceTokenizer, Vocabulary
from dualnet.text.byte_level import why_no_parts
from dualnet.text.loading import TOKENIZER_FILES
from dualnet.text.plain_text import check_text


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
        >>> serving.endpoints(model)
        ['score', 'step', 'predict_next', 'score_text', 'generate_text', 'predict_next_text']
        >>> serving.endpoints(model, learn="connection")[-2:]
        ['learn', 'learn_text']
        >>> serving.endpoints(model, format="onnx")
        ['step']
        >>> translator = zoo.build("encdec", vocabulary_size=3, units=4)
        >>> translator.vocabulary = translator.source_vocabulary = model.vocabulary
        >>> serving.endpoints(translator)
        ['encode', 'step', 'translate']
    """
    check_choice("format", format, FORMATS)
    if isinstance(model, TranslationModel):
        return ["encode", "step", *([] if _has_no_end(model) else ["translate"])]
    if format != "saved_model":
        return ["step"] if SUFFIXES[format] else []
    text = [] if why_no_text(model) else ["score_text", "generate_text", "predict_next_text"]
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
        if _has_no_end(model):
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


def _is_closed(tokenizer: Any) -> bool:
    return isinstance(tokenizer, Vocabulary) and tokenizer.unk_id is None


def _has_no_end(model: TranslationModel) -> bool:
    return model.vocabulary is None or model.vocabulary.eos_id is None


@documented(Exporting)
def export(model: LanguageModel, path: StrPath, **settings: Any) -> Path:
    """Export `model` to a format that needs neither dualnet nor Keras, or for `transformers`.

    `format="saved_model"` writes a folder: a TensorFlow SavedModel with up to six endpoints.
    Endpoints keep no state between requests, so clients cannot affect each other.

    - `score` maps `ids` int32 `(batch, time)` and `lengths` int32 `(batch,)` to
      `log_probabilities` float32 `(batch, time)`: the log-probability in nats of each token given
      the tokens before it, read from the zero state. It is 0 for the first token, which has no
      context, and for padding from `lengths` on, which may hold any ids.
    - `step` maps `ids` int32 `(batch, time)` and `state_1` ... `state_n` float32 `(batch, size)`
      to `logits` float32 `(batch, time, words)` and the new `state_1` ... `state_n`; `time` is at
      least 1. Start a text with states of zeros. `n` is `len(model.state_size)`.
    - `predict_next` maps `ids` and `lengths` as of `score`, each of at least 1, `k` int32
      `(batch,)`, from 1 to the number of words, and `state_1` ... `state_n` to the likeliest next
      tokens after the last id of each row: `ids` int32 and `probabilities` float32 `(batch,
      largest k)`, likeliest first, with -1 and 0 beyond the `k` of a row; `words` string, the
      same tokens, if the graph holds the tokeniser; and the new `state_1` ... `state_n`.
    - `score_text` maps `texts` string `(batch,)` to `words` string `(batch, time)`, the tokens as
      read, a byte beyond ASCII as in "\\xe4"; `log_probabilities` float32 `(batch, time)` in nats;
      `lengths` int32 `(batch,)`, the number of tokens; and `perplexity` float32 `(batch,)`, the
      exponential of a text's mean negative log-probability. Each text is read from the zero state
      after `<eos>`, so its first token is scored too. Rows are padded with "" and 0. The
      perplexity of an empty text is 1, as in `dualnet.score`. Perplexities are capped at the
      largest float32, since JSON has no infinity.
    - `generate_text` continues prompts. Its inputs, all `(batch,)`: `prompts` string; `max_tokens`
      int32, from 0 to the `max_tokens` of the export; `temperature` float32, finite and at least
      0 (0: greedy); `top_k` int32, at least 0 (0: all tokens); `top_p` float32, above 0 and at most
      1 (1: all tokens); `seed` int32; `stop_at_eos` bool. Its outputs: `texts` string `(batch,)`,
      each prompt with its continuation; `log_probabilities` float32 `(batch, time)`, those of the
      drawn tokens at temperature 1, in nats, padded with 0; `lengths` int32 `(batch,)`, the number
      of tokens drawn. `temperature` is applied first, then `top_k`, then `top_p`; `<unk>` is never
      drawn. With `stop_at_eos` a row ends before the first `<eos>`, which appears in no output.
      Each row draws with its own seed, independently of the rest of the batch.
    - `predict_next_text` maps `prompts` string and `k` int32, both `(batch,)`, to the outputs of
      `predict_next` after each prompt, which is read as by `generate_text`.

    With `learn`, requests teach the model, each row on its own, while the model never changes: a
    client keeps a `memory` as it keeps states, float32 `(batch, size)`, which every endpoint takes
    as a further input. Zeros, or rows without any number, are the plain model. There are two more
    endpoints:

    - `learn` scores `ids` and `lengths` as `score` does, read from `state_1` ... `state_n`, and
      then takes one step on each row's mean loss, as `dualnet.Learner` does by the rule "sgd". Its
      further inputs are `learning_rate`, `decay` and `clipnorm` float32 `(batch,)`, where a value
      below 0 is the default of the export, and a `clipnorm` of 0 clips nothing. Its outputs are the
      `log_probabilities` from before the step; `memory` and the states after it, to which the last
      id is not read yet, as the next `ids` begin with it; and `applied` bool `(batch,)`: False
      where the step was not finite, and the memory is as it was.
    - `learn_text` reads `texts` string `(batch,)` as a `Learner` does, a step for every
      `sequence_length` tokens, and answers as `score_text`. Its further inputs are those of
      `learn`, and `last` int32 `(batch,)`, the last id that was read, or -1 for the start of a
      text, `<eos>`; its further outputs the new `last`, `memory` and states, and `skipped` int32
      `(batch,)`, the number of steps that were not finite.

    The last number of a memory is the mark of its model; that of another model, and one whose
    scores are not finite, fail the request.

    `score_text`, `generate_text` and `predict_next_text` read text as the tokeniser of the model
    does, if that is one of words, of bytes or of byte-level BPE as `train_tokenizer` and GPT-2 have
    it. A word that is unknown or not UTF-8 is `<unk>`, or fails the request if the vocabulary has
    no `<unk>`, of which a warning tells. Bytes are read as they are; `texts` are UTF-8 all the
    same, as JSON must be: where a text ends within a character, it has the replacement character.
    The three endpoints are omitted for other tokenisers, of which `why_no_text` says the reason,
    for a vocabulary without `<eos>` and for a model without vocabulary. `score` and `score_text`
    read in chunks, so long texts need little memory. For clients that send ids, the tokeniser is
    also a file: the words in `assets.extra/vocabulary.txt`, a SentencePiece file in
    `assets.extra/tokenizer.model`, any other in `assets.extra/tokenizer.json`, which the package
    `tokenizers` reads.

    A `TranslationModel` has other endpoints, which take and give ids:

    - `encode` maps `ids` int32 `(batch, source)` and `lengths` int32 `(batch,)` to what was read
      of the source, `memory` and `keys` float32 `(batch, source, size)` and `mask` bool
      `(batch, source)`, and to the states that the target begins in, `state_1` ... `state_n`
      float32 `(batch, size)`. Ids beyond `lengths` are not read.
    - `step` maps target `ids` int32 `(batch, time)`, `memory`, `keys`, `mask` and `state_1` ...
      `state_n` to `logits` float32 `(batch, time, words)` and the new `state_1` ... `state_n`. A
      target begins with `<eos>`.
    - `translate` finds the likeliest translations, as `dualnet.generation.translations` does. Its
      inputs are those of `encode` and, all `(batch,)`: `beam` int32, from 1 (greedy) to the number
      of target words; `n_best` int32, from 1 to the beam; `max_tokens` int32, from 0 to the
      `max_tokens` of the export, `<eos>` included (0: twice the length of the source, and 10, or
      the bound if that is less); `length_normalization` float32, finite and at least 0. Its outputs
      have a row for each source and a column for each translation, best first, as many as the
      largest `n_best`: `ids` int32 `(batch, n, time)`, without `<eos>` and padded with it;
      `lengths` int32, `scores` and `normalized_scores` float32, all `(batch, n)`; and `counts`
      int32 `(batch,)`, how many translations each row has. What stands beyond is padding. An empty
      source has one translation, which is empty. `<unk>` is never taken. Rows do not depend on
      each other beyond float rounding; each is searched with as many rows as the widest beam. The
      endpoint is omitted if the target has no tokeniser or no `<eos>`.

    The tokeniser of the source alone, if it has one, is the file `source-vocabulary.txt`,
    `source-tokenizer.json` or `source-tokenizer.model` in `assets.extra`.

    A request with an id outside the vocabulary, a setting out of range, or inputs of different
    numbers of rows fails with `INVALID_ARGUMENT` and a sentence that names the input.

    `format="onnx"` and `format="litert"`, for language models, write one file with a single step
    and no loop: `ids` int32 `(batch, 1)` and `state_1` ... `state_n` float32 `(batch, size)` to
    `logits` float32 `(batch, 1, words)` and the new states. In LiteRT these are `state_1` ...
    `state_n` under the signature `step`; in ONNX, where an output cannot share the name of an
    input, `new_state_1` ... `new_state_n`. Both compute in float32, whatever the model's dtype
    policy. An id outside the vocabulary is an error of the runtime, as is a batch of no rows in
    ONNX. The tokeniser is written beside it: for `model.onnx`, words to
    `model.onnx.vocabulary.txt`, in UTF-8, one word a line, that of id 0 first; a SentencePiece
    file to `model.onnx.tokenizer.model`, any other to `model.onnx.tokenizer.json`.

    `format="transformers"` writes a folder that Hugging Face's library opens with
    `dualnet.transformers`: `config.json`, `model.safetensors`, the tokeniser and a model card.

    `format="sherpa-onnx"` writes an ONNX file for the shallow fusion of the speech recogniser
    sherpa-onnx, from a model whose layers are plain LSTMs of one size. It maps `token` int64
    `(batch, 1)`, `h` and `c` float32 `(layers, batch, size)` to `score` float32 `(batch, tokens)`,
    the log-probabilities in nats of the next token, and the new states `new_h` and `new_c`. Its
    metadata are `num_layers`, `hidden_size` and `sos_id`, the token that is read first. Ids are
    those of `tokens`; `serving.token_map` says how tokens become units of the model.

    Batch and time are dynamic. Dropout is off.

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
    check_text("path", os.fspath(path))
    path = Path(path).resolve()
    if format != "saved_model":
        if request.learn is not None:
            required = f"must be None for format={format!r}, which does not learn."
            raise ArgumentError("learn", required, " Export a SavedModel.", learn=request.learn)
        if isinstance(model, TranslationModel):
            required = "must be 'saved_model' for a model that translates."
            raise ArgumentError("format", required, " Export it as a SavedModel.", format=format)
    if SUFFIXES[format]:
        _export_file(model, path, format, request)
    else:
        _export_folder(model, path, format, request)
    return path


def _export_folder(model: LanguageModel, directory: Path, format: str, request: Exporting) -> None:
    if directory == Path.cwd():  # a new folder would take its place, and leave the shell nowhere
        raise ArgumentError("path", "must not be the current folder.", path=str(directory))
    with _explained("path", directory):
        _check_new_or_empty(directory)
        _make_parent(directory)
        with _unfinished(directory) as folder:
            unfinished = folder / directory.name
            unfinished.mkdir(mode=0o755)  # a server may run as another user
            if format in ADDED:
                ADDED[format].prepare(model, request)(unfinished)
            else:
                _write_saved_model(model, unfinished, request)
            _check_new_or_empty(directory)  # another export may have finished first
            if directory.exists():
                directory.rmdir()  # not every system replaces an empty folder
            os.replace(unfinished, directory)


def _write_saved_model(model: LanguageModel, folder: Path, request: Exporting) -> None:
    from dualnet.serving import learning, saved_model

    names = endpoints(model, learn=request.learn)
    memories = learning.Memories(model, request) if request.learn is not None else None
    if "score_text" in names and _is_closed(model.vocabulary):
        warnings.warn(
            f"The vocabulary of this model is closed: it has no {UNK}, so the endpoints "
            "that read text refuse one with any other word. Train on byte-level BPE, "
            "the default for a text of your own, or on words, which then have one.",
            stacklevel=6,
        )
    saved_model.write_saved_model(model, str(folder), names, request.max_tokens, memories)


def _export_file(model: LanguageModel, path: Path, format: str, request: Exporting) -> None:
    if path.suffix.lower() != SUFFIXES[format] or path.is_dir():
        required = f"must be a file that ends in {SUFFIXES[format]!r} for format={format!r}."
        raise ArgumentError("path", required, path=str(path))
    data_of = ADDED[format].prepare(model, request) if format in ADDED else None
    with _explained("path", path):  # before the slow work
        _make_parent(path)
        tempfile.TemporaryFile(dir=path.parent).close()
    if model.cache_size:
        required = "must be 'saved_model' for a model with a cache, which no single step can hold."
        received = f"Received: format={format!r} with a cache of {model.cache_size} words."
        way_out = " Export the model without the cache, or as a SavedModel."
        raise ArgumentError("format", f"{required} {received}", way_out)

    with _explained("TMPDIR", Path(tempfile.gettempdir())):  # where converters write
        data = data_of() if data_of else _one_step(model, format)
    beside = {name: path.with_name(f"{path.name}.{name}") for name in TOKENIZER_FILES}
    with _explained("path", path), _unfinished(path) as unfinished:
        if model.vocabulary is not None and data_of is None:
            model.vocabulary.save(unfinished / beside[model.vocabulary.file_name].name)
        (unfinished / path.name).write_bytes(data)
        flush(unfinished / path.name)
        new = {file: _bytes_of(unfinished / file.name) for file in beside.values()}
        if any(_bytes_of(file) != content for file, content in new.items()):
            # Killed from here on, it leaves no model, rather than one beside another's tokeniser.
            path.unlink(missing_ok=True)
        for file, content in new.items():
            if content is None:
                file.unlink(missing_ok=True)
            else:
                os.replace(unfinished / file.name, file)
        os.replace(unfinished / path.name, path)


def _one_step(model: LanguageModel, format: str) -> bytes:
    from dualnet.serving import one_step

    return one_step.onnx_bytes(model) if format == "onnx" else one_step.litert_bytes(model)


def _bytes_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _check_new_or_empty(directory: Path) -> None:
    is_folder = directory.is_dir()
    if any(directory.iterdir()) if is_folder else directory.exists():
        problem = "which holds files" if is_folder else "which is a file"
        received = f"Received: {str(directory)!r}, {problem}."
        raise FileExistsError(f"`path` must be new or empty. {received} Choose another.")


def _make_parent(path: Path) -> None:
    nearest = next(parent for parent in path.parents if parent.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"{str(nearest)!r} is a file")
    path.parent.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def _explained(name: str, path: Path) -> Iterator[None]:
    """Turn a file-system error into one sentence about the argument `name`."""
    kinds: tuple[type[Exception], ...] = (OSError,)
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        kinds += (tf.errors.OpError,)
    try:
        yield
    except FileExistsError:  # of `_check_new_or_empty`, a sentence already
        raise
    except kinds as error:
        # Of TensorFlow: "{{node ...}} FILE; No space left on device [Op:SaveV2]"
        text = str(getattr(error, "message", error))
        reason = getattr(error, "strerror", None) or re.sub(r"(?s).*; | \[Op:.*", "", text)
        required = f"`{name}` must be a place where files can be written."
        message = f"{required} Received: {str(path)!r} ({reason}). Choose another place."
        raise (type(error) if isinstance(error, OSError) else OSError)(message) from None


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """Yield a folder for an export to `path` to write in; remove those of killed exports.

    It stands beside `path`, with a leading dot: a model server takes a name that begins with a
    digit for a version to serve. An export that is under way holds the lock in its folder.
    """
    prefix = f".{path.name}.unfinished-"
    for folder in path.parent.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError), FileLock(folder / LOCK, timeout=0):
            shutil.rmtree(folder, ignore_errors=True)
    settings: Any = {"prefix": prefix, "dir": path.parent, "ignore_cleanup_errors": True}
    with tempfile.TemporaryDirectory(**settings) as name, FileLock(Path(name, LOCK)):
        yield Path(name)
