"""The main job: train, adapt, compare, generate and serve two small models on embedded text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dualnet import corpora, serving
from dualnet._files import make_folder, write_whole
from dualnet.adaptation import DynamicEvaluation, dynamic_evaluation
from dualnet.evaluation import evaluate
from dualnet.generation import generate
from dualnet.plots import plot_curves, plot_positions
from dualnet.training import Run, train

MODELS = ("lstm", "dual_lstm")
PROMPTS = ("the", "if the object", "a class")
MARK = ".written-by-dualnet-demo"
# Our choice, for a few minutes on two cores: equal sizes, and for both the same recipe.
SETTINGS: dict[str, Any] = {
    "units": 128,
    "epochs": 12,
    "batch_size": 32,
    "sequence_length": 25,
    "learning_rate": 0.002,
    "input_dropout": 0.3,
    "recurrent_dropout": 0.0,
    "output_dropout": 0.3,
    "dual_input_dropout": 0.0,
    "dual_output_dropout": 0.0,
    "embedding_l2": 0.0,
    "dual_l2": 0.0,
}
DYNAMIC: dict[str, Any] = {"rule": "nadam", "sequence_length": 20}
DYNAMIC_RATES = (1e-4, 3e-4, 1e-3)  # within the paper's range; the best on validation is taken

# What a client does, in a process that knows neither dualnet nor Keras.
CLIENT = """
import json, sys
import tensorflow as tf
served = tf.saved_model.load(sys.argv[1])
ids = tf.constant([json.loads(sys.argv[2])], tf.int32)
lengths = tf.constant([ids.shape[1]], tf.int32)
scores = served.signatures["score"](ids=ids, lengths=lengths)["log_probabilities"]
print(json.dumps([float(x) for x in scores[0]]))
"""


def run(output: str | os.PathLike[str] = "demo", *, settings: dict[str, Any] | None = None) -> dict:
    """Run the demo into the folder `output`, print its table, and return its numbers.

    Args:
        output: folder; replaced if an earlier demo wrote it, refused if it holds
            anything else.
        settings: overrides of `SETTINGS`, for a quicker run.

    Raises:
        FileExistsError: if `output` holds files that no demo wrote.
    """
    folder = Path(output)
    try:
        _clear(folder)
        return _run(folder, {**SETTINGS, **(settings or {})})
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Stopped. The next `dualnet demo` begins anew.") from None


def _run(folder: Path, chosen: dict[str, Any]) -> dict:
    began = time.perf_counter()
    corpus = corpora.load("python-reference")
    _say(f"Corpus python-reference (embedded in Python): {len(corpus.train):,} / "
         f"{len(corpus.valid):,} / {len(corpus.test):,} tokens, "
         f"{len(corpus.vocabulary):,} words.")  # fmt: skip
    runs: dict[str, Run] = {}
    dynamic: dict[str, dict[str, DynamicEvaluation]] = {}
    for name in MODELS:
        _say(f"\nTraining {name}, {chosen['units']} units, {chosen['epochs']} epochs:")
        runs[name] = train(name, corpus, output=folder / name, seed=1, **chosen)
    for name in MODELS:
        length = DYNAMIC["sequence_length"]
        _say(f"\nDynamic evaluation of {name}: each {length} tokens are scored, then learnt from.")
        dynamic[name] = _adapt(runs[name].model, corpus)
    results = {
        name: {
            "parameters": run.results["parameters"],
            "valid": run.results["valid_perplexity"],
            "test": run.results["test_perplexity"],
            "valid_dynamic": dynamic[name]["valid"].perplexity,
            "test_dynamic": dynamic[name]["test"].perplexity,
            "tokens_per_second": run.results["tokens_per_second"],
        }
        for name, run in runs.items()
    }
    _draw(folder, corpus, runs, dynamic)
    _show(results)
    model = runs["dual_lstm"].model
    _say("\nThree lines by dual_lstm, temperature 0.8:")
    for seed, prompt in enumerate(PROMPTS):
        text = generate(model, prompt, max_tokens=25, temperature=0.8, seed=seed)
        _say("  " + text.split("\n")[0])
    served = _serve(folder, model, corpus)
    minutes, seconds = divmod(time.perf_counter() - began, 60)
    files = ["lstm/", "dual_lstm/", "curves.png", "dynamic.png", *(["saved_model/"] * served)]
    _say(f"\nDone in {minutes:.0f} min {seconds:.0f} s. In {folder}/: {', '.join(files)}.")
    write_whole(folder / "results.json", json.dumps(results, indent=2) + "\n")
    return results


def _adapt(model: Any, corpus: Any) -> dict[str, DynamicEvaluation]:
    """Return dynamic evaluations of valid and test, with the rate that is best on valid."""
    tried = []
    for rate in DYNAMIC_RATES:
        tried.append(dynamic_evaluation(model, corpus.valid, learning_rate=rate, **DYNAMIC))
        _say(f"  learning rate {rate:g}: validation perplexity {tried[-1].perplexity:.2f}")
    best = min(tried, key=lambda result: result.perplexity)
    rate = best.settings["learning_rate"]
    return {
        "valid": best,
        "test": dynamic_evaluation(model, corpus.test, learning_rate=rate, **DYNAMIC),
    }


def _clear(folder: Path) -> None:
    """Make `folder` empty if a demo wrote it; refuse it if it holds anything else."""
    if folder.is_dir() and any(folder.iterdir()):
        known = {*MODELS, MARK, "curves.png", "dynamic.png", "saved_model", "results.json"}
        foreign = sorted(path.name for path in folder.iterdir() if path.name not in known)
        if not (folder / MARK).exists() or foreign:
            raise FileExistsError(
                f"`output` must be new, empty or written by the demo. Received: {str(folder)!r}, "
                f"which holds {foreign or 'other files'}. Choose another with --output."
            )
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    make_folder("output", folder)
    (folder / MARK).touch()


def _draw(folder: Path, corpus: Any, runs: dict[str, Run], dynamic: dict) -> None:
    curves = {}
    for name, finished in runs.items():
        curves[f"{name} valid"] = [row["val_perplexity"] for row in finished.history]
        curves[f"{name} train"] = [row["perplexity"] for row in finished.history]
    plot_curves(curves, folder / "curves.png", title="Learning curves, python-reference")
    positions = {}
    for name, finished in runs.items():
        found = dynamic[name]["test"]
        positions[f"{name} static"] = evaluate(finished.model, corpus.test).token_losses
        positions[f"{name} dynamic"] = np.repeat(found.segment_losses, found.segment_lengths)
    plot_positions(positions, folder / "dynamic.png", title="Test perplexity by position")


def _show(results: dict[str, dict[str, float]]) -> None:
    print(f"\n{'':12}{'':>12}  {'static perplexity':>19}  {'dynamic perplexity':>19}{'':>11}")
    print(f"{'model':12}{'parameters':>12}  {'validation':>11}{'test':>8}  "
          f"{'validation':>11}{'test':>8}{'tokens/s':>11}")  # fmt: skip
    for name, row in results.items():
        print(f"{name:12}{row['parameters']:>12,}  {row['valid']:>11.2f}{row['test']:>8.2f}  "
              f"{row['valid_dynamic']:>11.2f}{row['test_dynamic']:>8.2f}"
              f"{row['tokens_per_second']:>11,.0f}")  # fmt: skip
    plain, dual = (results[name] for name in MODELS)
    claims = {
        "dual below plain": dual["test"] < plain["test"]
        and dual["test_dynamic"] < plain["test_dynamic"],
        "dynamic below static": all(row["test_dynamic"] < row["test"] for row in results.values()),
    }
    for claim, holds in claims.items():
        print(f"The paper's claim, {claim}: {'holds' if holds else 'does NOT hold'} here (test).")


def _serve(folder: Path, model: Any, corpus: Any) -> bool:
    """Export `model`, ask it for scores in a fresh process, and compare; False if it cannot be."""
    if keras.config.backend() != "tensorflow":
        _say(f"\nNo export: it needs TensorFlow, and the backend is {keras.config.backend()}.")
        return False
    directory = serving.export(model, folder / "saved_model")
    ids = corpus.test[:20]
    client = subprocess.run(
        [sys.executable, "-c", CLIENT, str(directory), json.dumps(ids.tolist())],
        capture_output=True,
        text=True,
        check=False,
    )
    if client.returncode:
        raise RuntimeError(f"The fresh process could not query the SavedModel:\n{client.stderr}")
    served = np.array(json.loads(client.stdout.splitlines()[-1]))
    ours = -evaluate(model, ids).token_losses
    _say(f"\nServed from {directory} in a fresh process: 20 tokens, log-probability "
         f"{served.sum():.4f}; here {ours.sum():.4f}; largest difference "
         f"{np.abs(served[1:] - ours).max():.1e}.")  # fmt: skip
    return True


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
