"""The settings of evaluation, generation and export, and their checks, which load no Keras."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dualnet._checks import (
    ArgumentError,
    check_choice,
    check_count,
    check_factor,
    check_flag,
    check_fraction,
    check_penalty,
    is_number,
)

# Default settings of the rules of dynamic evaluation. The step sizes of "nadam" (within the
# paper's range) and "sgd" are our choice, tuned on PTB's validation text with 200 units; those of
# "rms" are the released defaults of Krause et al.
RULES: dict[str, dict[str, Any]] = {
    "nadam": {"learning_rate": 3e-5, "beta_1": 0.0, "sequence_length": 50},
    "sgd": {"learning_rate": 0.1, "decay": 0.0, "sequence_length": 20},
    "rms": {"learning_rate": 5e-5, "decay": 0.002, "epsilon": 2e-5, "sequence_length": 5},
}

# Of the single-file formats of export; of those of one suffix, the last is the default.
SUFFIXES = {"sherpa-onnx": ".onnx", "onnx": ".onnx", "litert": ".tflite"}
FORMATS = ("saved_model", *SUFFIXES)


def check_temperature(temperature: float) -> None:
    """Raise `ValueError` unless `temperature` is finite and at least 1e-6."""
    # Logits divided by much less overflow float32.
    if not is_number(temperature) or not 1e-6 <= temperature < math.inf:
        raise ArgumentError(
            "temperature",
            "must be a finite number above 0, of at least 1e-6. Received: "
            f"temperature={temperature!r}.",
        )


def check_evaluation(
    *,
    temperature: float = 1.0,
    batch_size: int = 1,
    sequence_length: int | None = None,
    by_sentence: bool = False,
    window: int | None = None,
    mc_dropout_samples: int = 0,
    dropout_scale: float = 1.0,
    seed: int = 0,
    top_k: Sequence[int] = (),
) -> None:
    """Check the settings of `dualnet.evaluate`."""
    check_temperature(temperature)
    check_count("batch_size", batch_size, least=1)
    check_count("mc_dropout_samples", mc_dropout_samples, least=0)
    check_count("seed", seed, least=0)
    check_factor("dropout_scale", dropout_scale)
    if mc_dropout_samples == 0 and dropout_scale != 1:
        raise ArgumentError(
            "dropout_scale",
            "needs `mc_dropout_samples` of at least 1. Received: dropout_scale="
            f"{dropout_scale!r}, mc_dropout_samples=0.",
        )
    if by_sentence or window is not None:
        mode = "by sentence" if by_sentence else "with a window"
        _check_read_alone(mode, batch_size, sequence_length)
    if by_sentence and window is not None:
        raise ArgumentError(
            "window",
            "must be None by sentence, since every sentence starts from the zero state. Received: "
            f"window={window!r}.",
        )
    if not isinstance(top_k, (list, tuple)):
        raise ArgumentError("top_k", f"must be a list of integers. Received: top_k={top_k!r}.")
    for k in top_k:
        check_count("top_k", k, least=1)
    if top_k and mc_dropout_samples:
        raise ArgumentError(
            "top_k",
            "cannot be combined with MC dropout, whose passes rank the units differently. "
            f"Received: top_k={list(top_k)}, mc_dropout_samples={mc_dropout_samples}.",
        )
    if window is not None:
        check_count("window", window, least=1)
    if sequence_length is not None:
        check_count("sequence_length", sequence_length, least=1)


def _check_read_alone(mode: str, batch_size: int, sequence_length: int | None) -> None:
    """Raise `ValueError` for settings of streams where each part of a text is read for itself."""
    if batch_size != 1:
        raise ArgumentError(
            "batch_size",
            f"must be 1 {mode}, since each starts from the zero state. Received: "
            f"batch_size={batch_size}.",
        )
    if sequence_length is not None:
        raise ArgumentError(
            "sequence_length",
            f"must be None {mode}, since each is read whole. Received: "
            f"sequence_length={sequence_length!r}.",
        )


def check_dynamic(
    *,
    rule: str = "nadam",
    learning_rate: float | None = None,
    sequence_length: int | None = None,
    decay: float | None = None,
    epsilon: float | None = None,
    beta_1: float | None = None,
    clipnorm: float | None = None,
    temperature: float = 1.0,
    by_sentence: bool = False,
) -> dict[str, Any]:
    """Check the settings of `dualnet.dynamic_evaluation`; return those of its rule."""
    check_choice("rule", rule, RULES)
    check_temperature(temperature)
    if by_sentence:
        _check_read_alone("by sentence", 1, sequence_length)
    return rule_settings(
        rule,
        {
            "learning_rate": learning_rate,
            "sequence_length": sequence_length,
            "decay": decay,
            "epsilon": epsilon,
            "beta_1": beta_1,
            "clipnorm": clipnorm,
        },
    )


def rule_settings(rule: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default settings of `rule`, updated by those in `given` that are not None.

    Example:

    >>> from dualnet._settings import rule_settings
    >>> rule_settings("sgd", {"decay": 0.1, "learning_rate": None})
    {'learning_rate': 0.1, 'decay': 0.1, 'sequence_length': 20}
    """
    takes = {*RULES[rule], "clipnorm"} | ({"epsilon"} if rule == "nadam" else set())
    settings = dict(RULES[rule])
    for name, value in given.items():
        if value is None:
            continue
        if name not in takes:
            raise ArgumentError(
                name,
                f"is not a setting of the rule {rule!r}, which takes {sorted(takes)}. "
                f"Received: {name}={value!r}.",
            )
        settings[name] = value
    check_count("sequence_length", settings["sequence_length"], least=1)
    for name in ("learning_rate", "epsilon", "clipnorm"):
        if name in settings and check_penalty(name, settings[name]) == 0:
            raise ArgumentError(name, f"must be above 0. Received: {name}={settings[name]!r}.")
    settings["learning_rate"] = float(settings["learning_rate"])  # Keras takes no int
    if "decay" in settings:
        check_penalty("decay", settings["decay"])
    if "beta_1" in settings:
        check_fraction("beta_1", settings["beta_1"])
    return settings


def check_reading(text: str) -> None:
    """Raise `ValueError` unless `text`, of `dualnet.look`, holds more than white space."""
    if not isinstance(text, str):
        raise ArgumentError("text", f"must be a string. Received: {type(text).__name__}.")
    if not text.strip():
        raise ArgumentError("text", f"must hold at least one word. Received: {text[:20]!r}.")


def check_generation(
    *,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    stop_at_eos: bool,
    allow_unknown: bool,
    beam: int | None,
    n_best: int | None,
    length_normalization: float,
) -> None:
    """Check the settings of `dualnet.generate`."""
    check_count("max_tokens", max_tokens, least=1)
    check_penalty("temperature", temperature)
    if top_k is not None:
        check_count("top_k", top_k, least=1)
    if top_p is not None:
        check_factor("top_p", top_p)
    if seed is not None:
        check_count("seed", seed, least=0)
    check_flag("stop_at_eos", stop_at_eos)
    check_flag("allow_unknown", allow_unknown)
    if beam is None:
        _check_defaults(
            {"n_best": (n_best, None), "length_normalization": (length_normalization, 0)},
            "needs a beam. Received: {}. Set beam, the number of hypotheses to keep.",
        )
        return
    check_beam(
        beam=beam,
        n_best=1 if n_best is None else n_best,
        length_normalization=length_normalization,
    )
    _check_defaults(
        {
            "temperature": (temperature, 1),
            "top_k": (top_k, None),
            "top_p": (top_p, None),
            "seed": (seed, None),
        },
        f"cannot be combined with beam, which draws nothing. Received: {{}}, beam={beam!r}. "
        "Leave one of them out.",
    )


def _check_defaults(settings: Mapping[str, tuple[Any, Any]], message: str) -> None:
    """Raise `ValueError` for the first of `settings`, value and default, that differ."""
    for name, (value, default) in settings.items():
        if value != default:
            raise ArgumentError(name, message.format(f"{name}={value!r}"))


def check_beam(*, beam: int, n_best: int, length_normalization: float) -> None:
    """Check the settings of a beam search."""
    check_count("beam", beam, least=1)
    check_penalty("length_normalization", length_normalization)
    if check_count("n_best", n_best, least=1) > beam:
        raise ArgumentError(
            "n_best",
            f"must be at most beam. Received: n_best={n_best!r}, beam={beam!r}. Widen the beam.",
        )


def check_beam_width(beam: int, vocabulary_size: int) -> None:
    """Raise `ValueError` if `beam` is wider than the vocabulary of a model."""
    if beam > vocabulary_size:
        raise ArgumentError(
            "beam",
            f"must be at most the number of tokens that the model knows, {vocabulary_size}. "
            f"Received: beam={beam!r}.",
        )


def check_export(
    *, format: str | None, max_tokens: int, tokens: str | os.PathLike[str] | None = None
) -> None:
    """Check the settings of `dualnet.export`."""
    if format is not None:
        check_choice("format", format, FORMATS)
    check_count("max_tokens", max_tokens, least=1)
    if (tokens is None) == (format == "sherpa-onnx"):
        raise ArgumentError(
            "tokens",
            "must be the file tokens.txt of the recogniser for format='sherpa-onnx', and None for "
            f"other formats. Received: tokens={tokens!r}, format={format!r}.",
        )
    if tokens is not None and not Path(tokens).is_file():
        raise FileNotFoundError(f"`tokens` must name an existing file. Received: {str(tokens)!r}.")


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the format that `export` takes from the suffix of `path`.

    Example:
        >>> from dualnet import serving
        >>> serving.format_of("model.onnx"), serving.format_of("models/dual/1")
        ('onnx', 'saved_model')
    """
    formats = {suffix: format for format, suffix in SUFFIXES.items()}
    return formats.get(Path(path).suffix.lower(), "saved_model")
