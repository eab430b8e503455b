"""Language models for sherpa-onnx: one step as an ONNX file, in the ids of a recogniser.

Source: `OnlineRnnLM` of sherpa-onnx, https://github.com/k2-fsa/sherpa-onnx.
"""

import dataclasses
import os
import re
from collections.abc import Sequence

import numpy as np

from dualnet._checks import ArgumentError, StrPath
from dualnet._types import Tensor, Tensors
from dualnet.builders import LanguageModel
from dualnet.builders.model import check_exports
from dualnet.layers import LSTMCell, PerGateLSTMCell, Recurrence
from dualnet.runs.shipped import licences_of
from dualnet.text import Tokenizer
from dualnet.text.files import lines

STARTS = ("<sos/eos>", "<sos>", "<s>", "<bos>", "<eos>", "</s>")  # what is read first, best first
UNKNOWN = ("<unk>", "<UNK>", "[UNK]", "<oov>")
SILENT = re.compile(r"<blk>|<blank>|<eps>|<pad>|#\d+")  # a recogniser never writes these
NEVER = -1e30  # finite, so that a recogniser's weight of 0 gives no nan


@dataclasses.dataclass(frozen=True)
class TokenMap:
    """The result of `token_map`: the tokens of a recogniser as those of a model.

    Attributes:
        read: The model's token that each token is read as, and at last that of the start of a
            text: int64 `(tokens + 1,)`.
        scored: The model's token whose log-probability each token has: int64 `(tokens,)`. The
            model's number of tokens for one that is never written.
        sos_id: int. The token that stands for the start of a text.
        unknown: tuple of str. The tokens that the model does not know, which are `<unk>`.
        unused: tuple of str. The model's tokens that the recogniser lacks.
    """

    read: np.ndarray
    scored: np.ndarray
    sos_id: int
    unknown: tuple[str, ...]
    unused: tuple[str, ...]

    def summary(self) -> str:
        """Return a line about the tokens that recogniser and model do not share."""
        unknown = f"unknown to the model: {len(self.unknown)}{_some(self.unknown)}"
        unused = f"Tokens that the recogniser lacks: {len(self.unused)}{_some(self.unused)}"
        return f"Tokens: {len(self.scored)}; {unknown}. {unused}."


def token_map(tokens: StrPath, tokenizer: Tokenizer) -> TokenMap:
    """Return the map from the tokens of a recogniser to those of a model.

    - A token is the model's of the same spelling, lower-cased first if the tokeniser does so.
    - `<sos/eos>`, `<sos>`, `<s>`, `<bos>`, `<eos>` and `</s>` are `<eos>`. The first of them that
      the file has is the start of a text; if it has none, an id behind the last is.
    - A token that the model does not know is read and scored as `<unk>`.
    - `<blk>`, `<blank>`, `<eps>`, `<pad>`, `#0`, `#1` and so on, and `<unk>` of a file where the
      model has none, are never written: their log-probability is -1e30.

    Tokens that the recogniser lacks keep their share of the probability, so that scores are those
    of `dualnet.score`.

    Args:
        tokens: the file `tokens.txt` of the recogniser, in UTF-8: a token and its id on each
            line; ids from 0 on, in any order. A line with an id alone is the space.
        tokenizer: of the model; with `<eos>`.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is no such file, has no token of the model, or has unknown ones and the
            model no `<unk>`.

    Example:

    >>> import pathlib, tempfile
    >>> from dualnet import serving
    >>> from dualnet.text import Vocabulary
    >>> vocabulary = Vocabulary(("the", "cat", "<eos>", "<unk>"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "tokens.txt")
    ...     _ = path.write_text("<blk> 0\\n<sos/eos> 1\\n<unk> 2\\ncat 3\\nzebra 4\\n")
    ...     tokens = serving.token_map(path, vocabulary)
    >>> tokens.read.tolist(), tokens.sos_id
    ([2, 2, 3, 1, 3, 2], 1)
    >>> tokens.unknown, tokens.unused
    (('zebra',), ('the',))
    """
    eos_id = tokenizer.require_eos("model", "must know <eos>, which begins a text.")
    unk_id = tokenizer.unk_id
    names = _read_tokens(tokens)
    units = {word: i for i, word in reversed([*enumerate(tokenizer.words)])}
    read, scored, unknown, matched = [], [], [], 0
    for name in names:
        unit = units.get(name.lower() if tokenizer.lowercase else name)
        matched += unit not in (None, eos_id, unk_id)
        if unit is None and name in STARTS:
            unit = eos_id
        is_silent = SILENT.fullmatch(name) or (unk_id is None and name in UNKNOWN)
        if unit is None and is_silent:
            scored.append(len(tokenizer))
            unit = eos_id
        else:
            if unit is None:
                unknown += [name] if name not in UNKNOWN else []
                unit = eos_id if unk_id is None else unk_id
            scored.append(unit)
        read.append(unit)
    if not matched or (unknown and unk_id is None):
        strangers = [name for name in names if name not in units]
        raise ArgumentError(
            "tokens",
            f"must be a file with tokens of the model, such as {tokenizer.words[:3]}. Received: "
            f"{os.fspath(tokens)!r}, where {strangers[:3]} are none.",
            " Train the model on text in the recogniser's tokens.",
        )
    used = {*scored, eos_id, unk_id}
    return TokenMap(
        read=np.array([*read, eos_id], "int64"),
        scored=np.array(scored, "int64"),
        sos_id=next((names.index(name) for name in STARTS if name in names), len(names)),
        unknown=tuple(unknown),
        unused=tuple(word for i, word in enumerate(tokenizer.words) if i not in used),
    )


def check_sherpa(model: LanguageModel, tokens: StrPath) -> TokenMap:
    """Return `token_map` for a model that sherpa-onnx can run; raise `ValueError` for others."""
    check_exports()
    _layers(model)
    if model.vocabulary is None:
        raise ArgumentError(
            "model", "must have a vocabulary to find `tokens` in. Received: one without."
        )
    return token_map(tokens, model.vocabulary)


def sherpa_files(model: LanguageModel, mapping: TokenMap, _: str) -> dict[str, bytes]:
    """Return one step of `model` as an ONNX file for sherpa-onnx, see `export`."""
    import tensorflow as tf

    from dualnet.layers._mixture import in_one_piece
    from dualnet.serving import one_step

    layers, units = _layers(model)
    model = one_step.in_float32(model)

    def step(token: Tensor, h: Tensor, c: Tensor) -> Tensors:
        ids = tf.gather(tf.constant(mapping.read, tf.int32), token)
        states = [state[i] for i in range(layers) for state in (h, c)]
        with in_one_piece():
            logits, *new_states = model.core([ids, *states], training=False)
        scores = tf.pad(tf.nn.log_softmax(logits[:, 0]), [[0, 0], [0, 1]], constant_values=NEVER)
        return {
            "score": tf.gather(scores, mapping.scored, axis=1),  # (batch, tokens)
            "new_h": tf.stack(new_states[::2]),  # (layers, batch, units)
            "new_c": tf.stack(new_states[1::2]),
        }

    specs = [tf.TensorSpec((None, 1), tf.int64, name="token")]
    specs += [tf.TensorSpec((layers, None, units), tf.float32, name=name) for name in "hc"]
    sizes = {"num_layers": layers, "hidden_size": units, "sos_id": mapping.sos_id}
    metadata = sizes | licences_of(model.run)
    # sherpa-onnx knows inputs and outputs by their order.
    outputs = "score", "new_h", "new_c"
    variables = model.core.variables
    return {"": one_step.to_onnx(step, specs, variables, outputs=outputs, metadata=metadata)}


def _layers(model: LanguageModel) -> tuple[int, int]:
    """Return number and size of the LSTM layers of `model`; raise `ValueError` for others."""
    layers = [layer for layer in model.core._flatten_layers() if isinstance(layer, Recurrence)]
    plain = [type(layer.cell) in (LSTMCell, PerGateLSTMCell) for layer in layers]
    sizes = model.state_size
    if layers and all(plain) and len(set(sizes)) == 1 and len(sizes) == 2 * len(layers):
        return len(layers), sizes[0]
    cells = sorted({type(layer.cell).__name__ for layer in layers})
    raise ArgumentError(
        "format",
        "must be another for a model whose layers are not all plain LSTMs of one size. Received: "
        f"format='sherpa-onnx', layers of {cells} with states of sizes {sizes}.",
    )


def _read_tokens(path: StrPath) -> list[str]:
    """Return the tokens of the file `path` in the order of their ids."""
    names = {}
    for line in lines(path):
        words = re.findall(r"[^\s]+", line.text, re.ASCII)  # white space as of sherpa-onnx
        if not words:
            continue
        *name, last = words
        if len(name) > 1 or not last.isdecimal() or int(last) in names:
            raise ArgumentError(
                "tokens",
                "must hold a token and its id on each line, each id once. Received: "
                f"{line.place}: {line.text.strip()!r}.",
            )
        names[int(last)] = name[0] if name else " "
    if not names or max(names) >= len(names):
        received = f"Received: {os.fspath(path)!r} with {len(names)} tokens."
        raise ArgumentError("tokens", f"must number its tokens from 0 on, without gaps. {received}")
    return [names[i] for i in range(len(names))]


def _some(words: Sequence[str]) -> str:
    return f" ({', '.join(words[:3])}{', ...' if len(words) > 3 else ''})" if words else ""
