"""The contents of `results.json`."""

from __future__ import annotations

import collections
import platform
import statistics
from importlib import metadata
from typing import Any

import keras

from dualnet import corpora
from dualnet.builders import LanguageModel
from dualnet.corpora import Corpus, PairCorpus
from dualnet.evaluation import Evaluation, evaluate
from dualnet.evaluation.pair_perplexity import PairEvaluation, evaluate_pairs
from dualnet.training.schedule import watched


def results_of(
    model: LanguageModel,
    corpus: Corpus | PairCorpus,
    history: list[dict[str, Any]],
    *,
    seed: int | None,
    by_sentence: bool,
) -> dict[str, Any]:
    """Evaluate `model` with batch size 1 and return the results of its run."""
    valid: Evaluation | PairEvaluation
    test: Evaluation | PairEvaluation
    if isinstance(corpus, PairCorpus):
        valid, test = (evaluate_pairs(model, corpus, split) for split in ("valid", "test"))
    else:
        valid, test = (
            evaluate(model, corpus.split(split), by_sentence=by_sentence)
            for split in ("valid", "test")
        )
    best = min(history, key=watched)
    steady = history[1:] or history  # the first epoch includes compilation
    return {
        "name": model.name,
        "parameters": model.count_params(),
        "valid_perplexity": valid.perplexity,
        "test_perplexity": test.perplexity,
        **{f"valid_{key}": value for key, value in valid.figures().items()},
        **{f"test_{key}": value for key, value in test.figures().items()},
        "batch_size": 1,  # of these figures
        "by_sentence": by_sentence,  # each sentence from the zero state
        "tokens_per_second": statistics.median(row["tokens_per_second"] for row in steady),
        "best_epoch": int(best["epoch"]),
        "epochs": len(history),
        "phases": dict(collections.Counter(row["phase"] for row in history)),  # epochs of each
        "seed": seed,
        "corpus": {
            "name": corpus.name,
            "lowercase": corpus.lowercase,
            "sha256": corpus.sha256,
            "pairs" if isinstance(corpus, PairCorpus) else "tokens": {
                split: len(corpus.split(split)) for split in corpora.SPLITS
            },
        },
        "vocabulary": {"size": len(corpus.vocabulary), "sha256": corpus.vocabulary.sha256},
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, dualnet, Keras, its backend and NumPy.

    Example:

    >>> from dualnet import training
    >>> sorted({"python", "backend", "dualnet", "keras", "numpy"} - training.versions().keys())
    []
    """
    backend = keras.config.backend()
    result = {"python": platform.python_version(), "backend": backend}
    for package in dict.fromkeys(["dualnet", "keras", backend, "numpy"]):
        try:
            result[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from a checkout that is not installed
            result[package] = "not installed"
    return result
