"""A folder that Hugging Face's library `transformers` opens, by way of `dualnet.transformers`."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from dualnet._checks import extra
from dualnet.builders import LanguageModel
from dualnet.builders.weights import names_in
from dualnet.runs.loading import run_of
from dualnet.runs.shipped import LICENCES
from dualnet.text import UNK, Tokenizer, Vocabulary

CLASSES = {
    "AutoConfig": "DualnetConfig",
    "AutoModel": "DualnetModel",
    "AutoModelForCausalLM": "DualnetForCausalLM",
    "AutoModelForSequenceClassification": "DualnetForSequenceClassification",
}
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
    ids = {
        "bos_token_id": eos_id,
        "eos_token_id": eos_id,
        "pad_token_id": model.vocabulary_size,  # a token of its own, which no logit favours
    }
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
    weights = names_in(model.graph.without_past_decode().core)
    arrays = {
        f"weights.{name}": np.ascontiguousarray(ops.convert_to_numpy(weight))  # as is written
        for name, weight in weights.items()
    }
    (folder / "model.safetensors").write_bytes(save(arrays, metadata={"format": "pt"}))
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", drawing)
    write_modeling(folder)
    if tokenizer is not None:
        _write_tokenizer(folder, tokenizer)
    (folder / "README.md").write_text(_model_card(model), "utf-8")
    run = run_of(model)
    if run is not None and (run.path / LICENCES).is_file():
        (folder / LICENCES).write_bytes((run.path / LICENCES).read_bytes())


def write_modeling(folder: Path) -> None:
    """Write the module that `trust_remote_code` imports."""
    names = ", ".join(CLASSES.values())
    text = "# Needs `pip install dualnet[transformers]` and KERAS_BACKEND=torch.\n"
    (folder / f"{MODELING}.py").write_text(f"{text}from dualnet.transformers import {names}\n")


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


# --- the tokeniser


def _write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Write `tokenizer` as a `PreTrainedTokenizerFast`, whose ids are the same."""
    library = _library(tokenizer)
    data = json.loads(library.to_str())
    names: dict[int | None, str] = {i: unit for unit, i in library.get_vocab().items()}
    pad_id, pad = len(tokenizer), "<pad>"
    while pad in names.values():
        pad = f"<{pad}>"
    names[pad_id] = pad
    added = {token["id"]: token for token in data["added_tokens"]}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "special": True}
    added[pad_id] = {"id": pad_id, "content": pad, "normalized": False, **flags}
    if (eos_id := tokenizer.eos_id) is not None:
        # It is found in the normalised text, into which the normaliser writes it.
        added[eos_id] = {"id": eos_id, "content": names[eos_id], "normalized": True, **flags}
    data["added_tokens"] = [added[i] for i in sorted(added)]
    data["normalizer"] = _normalizer(tokenizer, data["normalizer"], names.get(eos_id))
    data["post_processor"] = None  # `add_bos_token` makes one that begins texts with `<eos>`
    _write_json(folder / "tokenizer.json", data)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names.get(eos_id),
        "eos_token": names.get(eos_id),
        "unk_token": names.get(tokenizer.unk_id),
        "pad_token": pad,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
    }
    known = {key: value for key, value in config.items() if value is not None}
    _write_json(folder / "tokenizer_config.json", known)


def _library(tokenizer: Tokenizer) -> Any:
    """Return `tokenizer` as one of the library `tokenizers`, which reads a single line."""
    import tokenizers
    from tokenizers import models, pre_tokenizers

    if isinstance(tokenizer, Vocabulary):
        ids = {word: i for i, word in enumerate(tokenizer.words)}
        library: Any = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=UNK))
        library.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(WHITE_SPACE), "removed")
        return library
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        return tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")


def _normalizer(tokenizer: Tokenizer, own: Any, eos: str | None) -> Any:
    """Return the normaliser `own` of a file, after steps that write `<eos>` and lower-case."""
    steps: list[Any] = []
    if eos is not None and tokenizer.documents in ENDS:
        pattern = {"Regex": ENDS[tokenizer.documents]}
        steps.append({"type": "Replace", "pattern": pattern, "content": eos})
    if tokenizer.lowercase:
        steps.append({"type": "Lowercase"})
    steps += [] if own is None else [own]
    return {"type": "Sequence", "normalizers": steps} if steps else None


# --- the model card


def _model_card(model: LanguageModel) -> str:
    """Return the text of `README.md`: what the model is, read and scored, and its licence."""
    run = run_of(model)
    results, trained_on = ({}, {}) if run is None else (run.results, run.trained_on)
    licence = None if run is None else run.path / LICENCES
    licensed = licence is not None and licence.is_file()
    name = model.name if run is None or not run.is_folder else run.path.name
    front = ["library_name: transformers", "pipeline_tag: text-generation", "tags: [dualnet]"]
    front += ["license: other", f"license_link: {LICENCES}"] * licensed
    table = {} if run is None else run.table
    paper = table.get("paper")
    lines = ["---", *front, "---", "", f"# {name}", ""]
    lines += [f"A recurrent language model of {model.count_params():,} parameters, from dualnet."]
    lines += [f"Its architecture, `{table['name']}`, is that of {paper}."] if paper else []
    lines += ["", USE, "", "## Training text", ""]
    if trained_on:
        lines += [f"The corpus `{trained_on['name']}`, SHA-256 `{trained_on['sha256']}`."]
    else:
        lines += ["Not recorded: the model did not come from a RUN folder."]
    if (tokenizer := model.vocabulary) is not None:
        case = ", of lower-cased text" * tokenizer.lowercase
        lines += [f"The tokeniser ({tokenizer.kind}) has {len(tokenizer):,} units{case}."]
    lines += ["", "## Figures", "", *_figures(results), "", "## Licence", ""]
    if licence is not None and licensed:
        lines += ["```text", licence.read_text("utf-8").rstrip(), "```"]
    else:
        lines += ["Not stated. The licence of the training text may bind the weights, too."]
    return "\n".join(lines) + "\n"


USE = """```python
import dualnet.transformers  # KERAS_BACKEND=torch must be set; or give trust_remote_code=True
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(".")
tokenizer = AutoTokenizer.from_pretrained(".", add_bos_token=True)
inputs = tokenizer("The ship", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs)[0]))
```"""
SPLITS = ("valid", "test")
MEASURES = {"perplexity": "perplexity per token", "bits_per_byte": "bits per byte"}


def _figures(results: dict[str, Any]) -> list[str]:
    """Return a table of the `results.json` of a RUN or of a shipped model."""
    splits = results.get("static") or {
        split: {key: results[f"{split}_{key}"] for key in MEASURES if f"{split}_{key}" in results}
        for split in SPLITS
    }
    rows = [
        f"| {split} | " + " | ".join(_shown(splits[split].get(key)) for key in MEASURES) + " |"
        for split in SPLITS
        if splits.get(split)
    ]
    header = [f"| text | {' | '.join(MEASURES.values())} |", "|---" * (1 + len(MEASURES)) + "|"]
    return [*header, *rows] if rows else ["Not measured."]


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
