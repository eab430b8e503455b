"""Kills commands at random moments, recovers, and compares the results bit for bit.

Usage: python benchmarks/kill.py [--kills 30] [--seed 0]
The tests kill `train` and `tune` at moments that are known to be delicate; here chance chooses.
`train`, `train --pairs` and `gate` are resumed and must end as undisturbed ones do; `export` must
leave all or nothing. Prints a line per kill; exits with 1 if anything was lost. Needs `.[test]`.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
from options import options_of

sys.path.insert(0, str(Path(__file__).parents[1]))

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
    commands = {  # the folder to write comes last
        "train": ["train", "dual_lstm", *corpus, *RUN, "--set", *SETTINGS, "--output"],
        "pairs": ["train", "attention_gru", "--pairs", "numbers", *RUN, "--set", *OF_PAIRS,
                  "--output"],
        "gate": ["gate", folder / "train", *RUN, "--set", *OF_GATE, "--output"],
    }  # fmt: skip
    if keras.backend.backend() == "tensorflow":
        commands["export"] = ["export", folder / "train"]
    seconds = {}
    for name, command in commands.items():
        began = time.perf_counter()
        finish(start([*command, folder / name]))
        seconds[name] = time.perf_counter() - began
    losses = 0
    for i in range(kills):
        name = list(commands)[i % len(commands)]
        place, after = folder / f"{name}-{i}", random.uniform(0, seconds[name])
        process = start([*commands[name], place])
        time.sleep(after)
        process.kill()
        process.communicate()
        left = sorted(str(path.relative_to(place)) for path in place.glob("checkpoints/*"))
        check = check_export if name == "export" else check_run
        wrong = check([*commands[name], place], folder / name)
        losses += bool(wrong)
        print(
            f"{name:6} killed after {after:5.1f} s, {left}: {wrong or 'nothing lost'}", flush=True
        )
    print(f"{kills} kills, {losses} with a loss")
    return losses


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
