"""Kills commands at random moments, recovers, and compares the results bit for bit.

Usage: python benchmarks/kill.py [--kills 30] [--seed 0]
The tests kill `train` and `tune` at moments that are known to be delicate; here chance chooses.
`train`, `train --pairs`, `gate`, `tune` and `score --output` are resumed and must end as
undisturbed ones do; `export` must leave all or nothing; `adapt`, which keeps a rate in the
`learning.json` of a RUN, must find what an undisturbed one finds. Prints a line per kill; exits
with 1 if anything was lost. Needs `.[test]`.
"""

import csv
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
from options import options_of

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.searches import write_job
from tests.test_resume import assert_equal, ends

RUN = ["--quiet", "--checkpoint-steps", "10", "--seed", "1", "--epochs", "3"]
SETTINGS = ["units=64", "batch_size=32", "sequence_length=25", "learning_rate=0.002"]
OF_PAIRS = ["units=32", "depth=1", "batch_size=100", "watch=bleu", "learning_rate=0.5"]
OF_GATE = ["gate_units=16"]


def main():
    options = options_of(__doc__, kills=30, seed=0)
    random.seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="dualnet-kill-") as name:
        sys.exit(1 if kill_all(Path(name), options.kills) else 0)


def kill_all(folder, kills):
    """Return the number of kills with a loss."""
    corpus = ["--corpus", "python-reference"]
    (folder / "text.txt").write_text("".join(f"the {i} of a text\n" for i in range(20_000)))
    commands = {  # the folder to write comes last
        "train": ["train", "dual_lstm", *corpus, *RUN, "--set", *SETTINGS, "--output"],
        "pairs": ["train", "attention_gru", "--pairs", "numbers", *RUN, "--set", *OF_PAIRS,
                  "--output"],
        "gate": ["gate", folder / "train", *RUN, "--set", *OF_GATE, "--output"],
        "tune": ["tune", write_job(folder), *corpus, "--quiet", "--output"],
        "score": ["score", folder / "train", folder / "text.txt", "--output"],
        "adapt": ["adapt", "--rule", "sgd", "--json"],
    }  # fmt: skip
    if keras.backend.backend() == "tensorflow":
        commands["export"] = ["export", folder / "train"]
    seconds = {}
    for name, command in commands.items():
        place = prepared(folder, name)
        began = time.perf_counter()
        finish(start([*command, place]))
        seconds[name] = time.perf_counter() - began
    losses = 0
    for i in range(kills):
        name = list(commands)[i % len(commands)]
        place, after = prepared(folder, name, f"-{i}"), random.uniform(0, seconds[name])
        process = start([*commands[name], place])
        time.sleep(after)
        process.kill()
        process.communicate()
        left = sorted(str(path.relative_to(place)) for path in place.glob("checkpoints/*"))
        wrong = CHECKS.get(name, check_run)([*commands[name], place], prepared(folder, name))
        losses += bool(wrong)
        print(
            f"{name:6} killed after {after:5.1f} s, {left}: {wrong or 'nothing lost'}", flush=True
        )
    print(f"{kills} kills, {losses} with a loss")
    return losses


def prepared(folder, name, number=""):
    """Return the place that a command writes to; of `adapt`, a copy of the RUN."""
    place = folder / f"{name}{number}{'.jsonl' * (name == 'score')}"
    if name == "adapt" and not place.exists():
        shutil.copytree(folder / "train", place)
    return place


def check_run(command, undisturbed):
    """Resume a killed training; return how it ends differently, or ""."""
    place = command[-1]
    if not (place / "results.json").exists():
        finish(start([*command, *["--resume"] * place.exists()]))
    try:
        assert_equal(ends(place), ends(undisturbed))
    except AssertionError as error:
        return str(error)
    return ""


def check_export(command, undisturbed):
    """Repeat a killed export; return what was left in parts, or ""."""
    place = command[-1]
    if not place.exists():
        finish(start(command))
    wrong = [path.name for path in place.parent.glob(f".*{place.name}*")]
    files = {path.relative_to(undisturbed) for path in undisturbed.rglob("*")}
    wrong += [str(path) for path in sorted(files) if not (place / path).exists()]
    return ", ".join(wrong)


def check_score(command, undisturbed):
    """Resume a killed scoring; return how its rows differ, or ""."""
    finish(start([*command, "--resume"]))
    return "" if command[-1].read_bytes() == undisturbed.read_bytes() else "other rows"


def check_search(command, undisturbed):
    """Resume a killed search; return how its trials differ, or ""."""
    finish(start([*command, *["--resume"] * command[-1].exists()]))
    mine, others = map(trials_of, (command[-1], undisturbed))
    return "" if mine == others else f"other trials: {mine} for {others}"


def trials_of(folder):
    with (folder / "trials.csv").open() as file:
        return [
            {name: row[name] for name in row if "second" not in name}
            for row in csv.DictReader(file)
        ]


def check_rates(command, undisturbed):
    """Adapt again after a kill; return how what is kept of the rates differs, or ""."""
    finish(start(command))
    mine, others = (
        json.loads((at / "learning.json").read_text()) for at in (command[-1], undisturbed)
    )
    wrong = [path.name for path in command[-1].glob("*unfinished*")]
    return ", ".join(wrong) or ("" if mine == others else f"other rates: {mine} for {others}")


CHECKS = {
    "export": check_export,
    "score": check_score,
    "tune": check_search,
    "adapt": check_rates,
}


def start(command):
    return subprocess.Popen(
        [sys.executable, "-m", "dualnet", *map(str, command)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process):
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(process.args)} failed: {errors}")


if __name__ == "__main__":
    main()
