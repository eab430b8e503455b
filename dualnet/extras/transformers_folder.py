"""A folder that Hugging Face's library `transformers` opens, by way of `dualnet.transformers`."""

import itertools
import json
import tempfile
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from dualnet._checks import extra
from dualnet.builders import LanguageModel, names_in
from dualnet.runs.model_cards import README, model_card
from dualnet.runs.shipped import copy_licences
from dualnet.text import EOS, UNK, SentencePieceTokenizer, Tokenizer, Vocabulary

CLASSES = {
    "AutoConfig": "DualnetConfig",
    "AutoModel": "DualnetModel",
    "AutoModelForCausalLM": "DualnetForCausalLM",
    "AutoModelForSequenceClassification": "DualnetForSequenceClassification",
}
TOKENIZER = "DualnetTokenizer"  # of SentencePiece files, which `tokenizers` reads otherwise
MODELING = "modeling_dualnet"  # the module that `trust_remote_code` imports
# The white space that separates words, as `str.split` has it.
WHITE_SPACE = "[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
ENDS = {"line": "\n", "blank-line": r"\n(?:[ \t\r\f\x0b]*\n)+"}  # expressions of what `<eos>` is


def write_transformers_folder(model: LanguageModel, folder: Path) -> None:
    """Write `model` and its tokeniser, if it has one, into the empty `folder`."""
    with extra("transformers", "Export for transformers needs the package safetensors"):
        from safetensors.numpy import save

    tokenizer = model.vocabulary
    eos_id = None if tokenizer is None else tokenizer.eos_id
    # For padding, a token of its own, which no logit favours.
    ids = {"bos_token_id": eos_id, "eos_token_id": eos_id, "pad_token_id": model.vocabulary_size}
    config = {
        "architectures": [CLASSES["AutoModelForCausalLM"]],
        "auto_map": {key: f"{MODELING}.{name}" for key, name in CLASSES.items()},
        "model_type": "dualnet",
        "dtype": "float32",
        "vocab_size": model.vocabulary_size + 1,
        "hidden_size": int(model.hidden.shape[-1]),
        "network": {**model.get_config(), "vocabulary": None},
        **ids,
    }
    unknown = [] if tokenizer is None else tokenizer.unknown_ids
    drawing = {**ids, "suppress_tokens": unknown or None}
    arrays = {
        f"weights.{name}": np.ascontiguousarray(ops.convert_to_numpy(weight))  # as is written
        for name, weight in names_in(model.graph.without_past_decode().core).items()
    }
    (folder / "model.safetensors").write_bytes(save(arrays, metadata={"format": "pt"}))
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", drawing)
    write_modeling(folder)
    if tokenizer is not None:
        _write_tokenizer(folder, tokenizer)
    (folder / README).write_text(model_card(model, model.run, library="transformers"), "utf-8")
    copy_licences(folder, model.run)


def write_modeling(folder: Path) -> None:
    """Write the module that `trust_remote_code` imports."""
    names = ", ".join([*CLASSES.values(), TOKENIZER])
    text = "# Needs `pip install dualnet[transformers]` and KERAS_BACKEND=torch.\n"
    (folder / f"{MODELING}.py").write_text(f"{text}from dualnet.transformers import {names}\n")


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


# --- the tokeniser


def _write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Write `tokenizer` as a `PreTrainedTokenizerFast`, whose ids are the same."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return _write_sentencepiece(folder, tokenizer)
    from tokenizers import AddedToken, Regex, normalizers

    library = _library(tokenizer)
    names = {i: unit for unit, i in library.get_vocab().items()}
    eos, pad = names.get(tokenizer.eos_id), _padding(names.values())
    steps = [] if library.normalizer is None else [library.normalizer]
    if tokenizer.lowercase:
        steps.insert(0, normalizers.Lowercase())
    if eos is not None and tokenizer.documents in ENDS:
        steps.insert(0, normalizers.Replace(Regex(ENDS[tokenizer.documents]), eos))
    library.normalizer = normalizers.Sequence(steps) if steps else None
    library.post_processor = None  # `add_bos_token` makes one that begins texts with `<eos>`
    if eos is not None:  # found in the normalised text, into which the normaliser writes it
        library.add_special_tokens([AddedToken(eos, normalized=True)])
    library.add_special_tokens([AddedToken(pad, normalized=False)])
    probe = "a b\nc d\n\ne"
    if library.encode(probe, add_special_tokens=False).ids != [*tokenizer.encode(probe)]:
        message = "In transformers, the ids of a text of several lines are not those of dualnet: "
        warnings.warn(f"{message}give lines one by one, each without its newline.", stacklevel=2)
    library.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    _write_config(folder, config, eos, names.get(tokenizer.unk_id), pad)


def _write_sentencepiece(folder: Path, tokenizer: SentencePieceTokenizer) -> None:
    """Write `tokenizer` as a `DualnetTokenizer`."""
    tokenizer.save(folder / tokenizer.file_name)
    config = {
        "tokenizer_class": TOKENIZER,
        "auto_map": {"AutoTokenizer": [f"{MODELING}.{TOKENIZER}", None]},
        "documents": tokenizer.documents,
        "lowercase": tokenizer.lowercase,
    }
    _write_config(folder, config, EOS, UNK, _padding(tokenizer))


def _padding(units: Collection[str]) -> str:
    """Return "<pad>", or "<<pad>>" and so on, which is none of `units`."""
    pads = ("<" * depth + "pad" + ">" * depth for depth in itertools.count(1))
    return next(pad for pad in pads if pad not in units)


def _write_config(
    folder: Path, config: dict[str, Any], eos: str | None, unk: str | None, pad: str
) -> None:
    tokens = {"bos_token": eos, "eos_token": eos, "unk_token": unk, "pad_token": pad}
    config |= {key: token for key, token in tokens.items() if token is not None}
    config |= {"add_bos_token": False, "clean_up_tokenization_spaces": False}
    _write_json(folder / "tokenizer_config.json", config)


def _library(tokenizer: Tokenizer) -> Any:
    """Return `tokenizer` as one of the library `tokenizers`, which reads a single line."""
    import tokenizers
    from tokenizers import models, pre_tokenizers

    if isinstance(tokenizer, Vocabulary):
        ids = {word: i for i, word in enumerate(tokenizer.words)}
        library = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=UNK))
        library.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(WHITE_SPACE), "removed")
        return library
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        return tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
