"""Kills commands at random moments, recovers, and compares the results bit for bit.

Usage: python benchmarks/kill.py [--kills 30] [--seed 0] [--folder FOLDER] [--skip-cost]
Of twelve kills, five hit `train`, two `train --pairs`, two `gate` and one `tune`, which are then
resumed; two hit `export`, which is then repeated: a SavedModel and a LiteRT file with its
vocabulary in turn.
Prints one line per kill, what was lost, and the cost of checkpoints in tokens per second. Exits
with 1 if anything was lost. No `export` with KERAS_BACKEND=jax.
"""

import argparse
import csv
import functools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

MODEL = "dual_lstm"
SETTINGS = ["units=64", "batch_size=32", "sequence_length=25", "learning_rate=0.002"]
EPOCHS, INTERVAL = 3, 10
TURNS = (
    "train", "gate", "train", "export", "pairs", "train", "tune", "train", "export", "train",
    "gate", "pairs",
)  # fmt: skip
JOB = """\
model = "lstm"
tuner = "random"
max_trials = 3
early_stopping = "none"
seed = 3

[fixed]
units = 16
batch_size = 32
sequence_length = 25
epochs = 2

[space]
learning_rate = { min_value = 1e-3, max_value = 1e-2, sampling = "log" }
output_dropout = { min_value = 0.0, max_value = 0.3 }
"""
WRITING = {"": 3.0, ".tflite": 0.002}  # by suffix: seconds from the first file to the last
INTERVALS = (10**9, 500, 100, 10)  # to time; the first saves only at the end of an epoch

# Hashes the answers of SavedModels to a fixed request, in a separate process.
ANSWERS = """
import hashlib, json, sys
import numpy as np
import tensorflow as tf
for directory in sys.argv[1:]:
    step = tf.saved_model.load(directory).signatures["step"]
    inputs = {}
    for name, spec in step.structured_input_signature[1].items():
        size = spec.shape[-1] or 3
        value = np.arange(2 * size).reshape(2, size)
        inputs[name] = tf.constant(value if name == "ids" else value / 100, spec.dtype)
    outputs = step(**inputs)
    digest = hashlib.sha256()
    for name in sorted(outputs):
        digest.update(outputs[name].numpy().tobytes())
    print(digest.hexdigest())
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--skip-cost", action="store_true", help="do not time checkpoints")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="dualnet-kill-"))
    folder.mkdir(parents=True, exist_ok=True)
    random.seed(options.seed)
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    turns = [TURNS[i % len(TURNS)] for i in range(options.kills)]
    exports = turns.count("export") if backend == "tensorflow" else 0

    reference = folder / "undisturbed-train"
    (folder / "job.toml").write_text(JOB)
    commands = {
        "train": train,
        "pairs": pairs,
        "gate": functools.partial(gate, reference),
        "tune": functools.partial(tune, folder / "job.toml"),
    }
    seconds = {}
    for name, command in commands.items():
        seconds[name] = run(command(folder / f"undisturbed-{name}"))
        print(f"{backend}: an uninterrupted {name}: {seconds[name]:.1f} s")
    head = f"{'command':8} {'killed after':>13}  {'state on disk':34} {'after recovery'}"
    print(head, flush=True)
    lost = running = 0
    for i, name in enumerate(turns):
        if name == "export":
            continue
        place = folder / f"{name}-{i}"
        after = random.uniform(0, seconds[name])
        running += kill(commands[name](place), after)
        there = newest(place)
        if not finished(place):
            begun = (place / "search.json").exists() if name == "tune" else place.exists()
            run([*commands[name](place), *["--resume"] * begun])
        found, expected = (ends(path, name) for path in (place, folder / f"undisturbed-{name}"))
        lost += found != expected
        print(f"{name:8} {after:11.1f} s  {there:34} {verdict(found == expected)}", flush=True)
        shutil.rmtree(place)
    if exports:
        killed, unequal = kill_exports(reference, folder, exports)
        running, lost = running + killed, lost + unequal
    kills = options.kills - turns.count("export") + exports
    print(f"{kills} kills ({running} before the command had ended), {lost} with a loss")
    if not options.skip_cost:
        cost(folder)
    if options.folder is None:
        shutil.rmtree(folder)
    sys.exit(1 if lost else 0)


def verdict(same):
    return "same bits" if same else "DIFFERS"


def train(output):
    return [
        "train", MODEL, "--corpus", "python-reference", "--output", output, "--quiet",
        "--checkpoint-steps", INTERVAL, "--seed", 1, "--epochs", EPOCHS, "--set", *SETTINGS,
    ]  # fmt: skip


def pairs(output):
    return [
        "train", "attention_gru", "--pairs", "numbers", "--output", output, "--quiet",
        "--checkpoint-steps", INTERVAL, "--seed", 1, "--epochs", EPOCHS, "--set", "units=32",
        "depth=1", "batch_size=100", "watch=bleu", "learning_rate=0.5", "patience=2",
    ]  # fmt: skip


def gate(run_folder, output):
    return [
        "gate", run_folder, "--output", output, "--quiet", "--checkpoint-steps", INTERVAL,
        "--seed", 1, "--epochs", EPOCHS, "--set", "gate_units=16",
    ]  # fmt: skip


def tune(job, output):
    return [
        "tune", job, "--corpus", "python-reference", "--output", output, "--quiet",
        "--checkpoint-steps", INTERVAL,
    ]  # fmt: skip


def export(run_folder, directory):
    return ["export", run_folder, directory]


def kill_exports(reference, folder, exports):
    """Kill `exports` exports of the RUN `reference`; return how many were running, and lost."""
    lost = running = 0
    references = {suffix: folder / f"undisturbed-export{suffix}" for suffix in WRITING}
    seconds = {suffix: run(export(reference, path)) for suffix, path in references.items()}
    places = []
    for i in range(exports):
        suffix = list(WRITING)[i % 2]
        place = folder / f"export-{i}{suffix}"
        # Half of the kills wait for the first file: imports take most of the time.
        first = f".{place.name}.unfinished-*" if i // 2 % 2 else None
        after = random.uniform(0, WRITING[suffix] if first else seconds[suffix])
        running += kill(export(reference, place), after, folder, first)
        whole = (place if suffix else place / "saved_model.pb").exists()
        part = not whole and (place.exists() or words_of(place).exists())
        there = "whole" if whole else "a part" if part else "nothing"
        there += " (killed while writing)" if first else ""
        if not whole:
            run(export(reference, place))
        left = sorted(p.name for p in folder.glob(f".*{place.name}*"))
        places.append((after, there, place, left))
        lost += part
    answers = digests([*references.values(), *(place for _, _, place, _ in places)])
    for after, there, place, left in places:
        same = answers[place] == answers[references[place.suffix]] and not left
        lost += not same
        print(f"{'export':8} {after:11.1f} s  {there:34} {verdict(same)}")
    return running, lost


def words_of(path):
    """Return the vocabulary beside the exported file `path`."""
    return path.with_name(f"{path.name}.vocabulary.txt")


def digests(paths):
    """Return for each path a hash of the answers of a SavedModel, or of the bytes of files."""
    folders = [path for path in paths if path.is_dir()]
    found = {p: p.read_bytes() + words_of(p).read_bytes() for p in paths if p.is_file()}
    answers = subprocess.run(
        [sys.executable, "-c", ANSWERS, *map(str, folders)],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return {**found, **dict(zip(folders, answers, strict=True))}


def start(command):
    return subprocess.Popen(
        [sys.executable, "-m", "dualnet", *map(str, command)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(command):
    """Run a command to its end; return its seconds."""
    began = time.perf_counter()
    process = start(command)
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"dualnet {' '.join(map(str, command))} failed: {errors}")
    return time.perf_counter() - began


def kill(command, after, folder=None, first=None):
    """Start a command and kill it `after` seconds; return whether it was still running.

    With `first`, the seconds count from the first file in `folder` that matches it.
    """
    process = start(command)
    while first and not any(folder.glob(first)) and process.poll() is None:
        time.sleep(0.0001)
    time.sleep(after)
    running = process.poll() is None
    process.kill()  # SIGKILL
    process.communicate()
    return running


def newest(folder):
    if finished(folder):
        return "everything"
    if checkpoints := sorted((folder / "checkpoints").glob("epoch-*")):
        return checkpoints[-1].name
    if trials := list((folder / "trials").glob("*")):
        return f"{len(trials)} trials begun"
    return "the card" if (folder / "card.toml").exists() else "nothing"


def finished(folder):
    return (folder / "results.json").exists()


def ends(folder, name):
    """Return what a command ends with, without times: of a search, its table of trials; of a
    run, all variables, best weights, and metrics.
    """
    if name == "tune":
        with (folder / "trials.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [{key: row[key] for key in row if "seconds" not in key} for row in rows]
    state = sorted((folder / "checkpoints").glob("epoch-*"))[-1] / "state.npz"
    with np.load(state) as stored:
        variables = [stored[name].tobytes() for name in stored.files]
    rows = (folder / "metrics.csv").read_text().splitlines()
    results = json.loads((folder / "results.json").read_text())
    results.pop("tokens_per_second")
    metrics = [row.split(",")[:-2] for row in rows]
    return variables, best_weights(folder), metrics, results


def best_weights(folder):
    import h5py

    weights = {}

    def add(name, item):
        if isinstance(item, h5py.Dataset):
            weights[name] = item[()].tobytes()

    with h5py.File(folder / "model.weights.h5") as file:
        file.visititems(add)
    return weights


def cost(folder):
    """Print tokens per second, including saving, for each interval between checkpoints."""
    from dualnet import corpora
    from dualnet.training import checkpoints, versions
    from dualnet.training import train as train_here

    corpus = corpora.load("python-reference")
    saving = []
    save = checkpoints.save

    def timed(*arguments):
        began = time.perf_counter()
        save(*arguments)
        saving.append(time.perf_counter() - began)

    checkpoints.save = timed
    print(f"\ncost of checkpoints; {versions()}")
    print(
        f"{'interval':>12} {'tokens/s (range)':>22} {'per checkpoint':>15}   dual_lstm, 200 units"
    )
    speeds = {interval: [] for interval in INTERVALS}
    times = {interval: [] for interval in INTERVALS}
    for repeat in range(3):  # alternating
        for interval in INTERVALS:
            saving.clear()
            place = folder / f"cost-{repeat}-{interval}"
            run = train_here(
                MODEL, corpus, output=place, units=200, epochs=3, batch_size=32,
                sequence_length=25, checkpoint_steps=interval, progress=False,
            )  # fmt: skip
            rows = run.history[1:]  # the first epoch compiles
            per_epoch = len(saving) // len(run.history)
            spent = sum(row["seconds"] for row in rows) + sum(saving[per_epoch:])
            tokens = sum(row["seconds"] * row["tokens_per_second"] for row in rows)
            speeds[interval].append(tokens / spent)
            times[interval] += saving
            size = sum(p.stat().st_size for p in (place / "checkpoints").rglob("*")) / 2
            shutil.rmtree(place)
    for interval in INTERVALS:
        name = "epoch's end" if interval == INTERVALS[0] else f"{interval} steps"
        rates = speeds[interval]
        print(f"{name:>12} {statistics.median(rates):>9,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"
              f"{1000 * statistics.median(times[interval]):>13.0f} ms")  # fmt: skip
    print(f"one checkpoint: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
