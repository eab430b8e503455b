"""Checks of what needs no model, made before TensorFlow is loaded, which takes seconds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualnet import zoo
from dualnet._checks import ArgumentError, check_count, check_rate, is_number
from dualnet._files import check_new
from dualnet.corpora import NAMES
from dualnet.corpora.corpus import choose_tokenizer, locate
from dualnet.runs import Run
from dualnet.runs.folder import EARLY_FILES
from dualnet.tuning.job import CORPUS, JOB
from dualnet.tuning.job_files import load_job

COUNTS = ("epochs", "batch_size", "sequence_length")
READING = ("tokenizer", "documents", "fractions")  # options of `train`, `tune` and `data`


def check_training(options: argparse.Namespace, settings: Mapping[str, Any]) -> None:
    """Check the options that `train` and `gate` share."""
    check_settings({"epochs": options.epochs, **settings})
    _check_counts(options, {"checkpoint_steps": 1, "seed": 0})
    if not options.resume:
        check_new(Path(options.output), holds="run", may_hold=EARLY_FILES)
    check_corpus(options.corpus, reading(options), resume=options.resume)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check the sizes, counts and rates among the settings of `--set`, which names tell."""
    for name, value in settings.items():
        if is_number(value) and (name in COUNTS or name.endswith(("units", "_layers"))):
            check_count(name, value, least=1)
        elif is_number(value) and name.endswith("_dropout"):
            check_rate(name, value)


def open_language_model(
    path: str, *, name: str = "path", way_out: str = "dualnet translate"
) -> Run:
    """Open the RUN of a language model, or a .keras file."""
    run = Run.open(path, name=name)
    if run.translates:
        raise ArgumentError(
            "RUN",
            f"must be of a language model. Received: {path!r}, which translates. Use `{way_out}`.",
        )
    return run


def reading(options: argparse.Namespace) -> dict[str, Any]:
    """Return how a corpus is to be read: the arguments of `corpora.load` that are set."""
    arguments = {name: getattr(options, name, None) for name in READING}
    return {name: value for name, value in arguments.items() if value is not None}


def check_corpus(
    corpus: str | None, read_as: Mapping[str, Any] | None = None, *, resume: bool = False
) -> None:
    """Check that the files of a corpus exist, and how it is to be read.

    A named corpus may be downloaded: that comes later. With `resume`, the tokeniser is at hand.
    """
    read_as = read_as or {}
    if not resume:
        choose_tokenizer(read_as.get("tokenizer"), None, read_as.get("documents"), False)
    fractions = read_as.get("fractions")
    if corpus is not None and (corpus not in NAMES or fractions is not None):
        locate(corpus, fractions=fractions)


def check_search(options: argparse.Namespace) -> None:
    """Check the options of `tune`."""
    if not zoo.is_file(options.job):  # the check of your own job needs Keras
        load_job(options.job)
    _check_counts(options, {"max_trials": 1, "workers": 1, "checkpoint_steps": 1, "seed": 0})
    if options.run_folder is not None:
        open_language_model(options.run_folder, name="run")
    if not options.resume and "KERASTUNER_TUNER_ID" not in os.environ:
        check_new(Path(options.output), holds="search", may_hold=(JOB, CORPUS))
    check_corpus(options.corpus, reading(options), resume=options.resume)


def _check_counts(options: argparse.Namespace, least: Mapping[str, int]) -> None:
    for name, minimum in least.items():
        value = getattr(options, name)
        if value is not None:
            check_count(name, value, least=minimum)
