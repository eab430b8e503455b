"""How fast is training when the process keeps the memory that it frees?

Usage: python benchmarks/allocator.py [--models lstm awd_lstm] [--rounds 5] [--steps 10]
Prints for each model the median of the seconds of a step, with the interquartile range, and peak
memory, with the allocator of the system as it is and after `dualnet.keep_freed_memory()`. The two
take turns, each in a process of its own.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np

# Arguments of the builder; rows and columns of a batch.
CASES = {
    "lstm_small": ("lstm", {"vocabulary_size": 8_000, "units": 224}, (32, 50)),
    "lstm": ("lstm", {"vocabulary_size": 10_000}, (32, 25)),
    "dual_mdlstm": ("dual_mdlstm", {"vocabulary_size": 10_000}, (32, 25)),
    "awd_lstm": ("awd_lstm", {"vocabulary_size": 10_000}, (20, 70)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        return print(json.dumps(measure(*options.row, options.steps)))
    print(f"{'model':<12}{'as it is':>20}{'kept':>20}{'ratio':>8}{'MB':>8}{'kept':>8}")
    for model in options.models:
        found = {"system": [], "kept": []}
        for _ in range(options.rounds):
            for form, rows in found.items():
                command = [sys.executable, __file__, "--row", model, form]
                command += ["--steps", str(options.steps)]
                environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
                done = subprocess.run(command, capture_output=True, env=environment, check=True)
                rows.append(json.loads(done.stdout.splitlines()[-1]))
        seconds = {form: [row["seconds"] for row in rows] for form, rows in found.items()}
        megabytes = [np.median([row["megabytes"] for row in rows]) for rows in found.values()]
        ratio = np.median(seconds["system"]) / np.median(seconds["kept"])
        cells = "".join(f"{told(times):>20}" for times in seconds.values())
        memory = "".join(f"{each:>8,.0f}" for each in megabytes)
        print(f"{model:<12}{cells}{ratio:>8.2f}{memory}", flush=True)


def told(seconds):
    low, median, high = np.percentile(seconds, [25, 50, 75])
    return f"{median:.3f} ({high - low:.3f})"


def measure(name, form, steps):
    """Return the median of the seconds of a step, and peak memory."""
    import dualnet
    from dualnet import training, zoo

    if form == "kept" and not dualnet.keep_freed_memory():
        raise SystemExit("the allocator of this system cannot be set")
    model_name, arguments, shape = CASES[name]
    model = zoo.build(model_name, **arguments)
    model.compile(optimizer=training.Recipe(**zoo.card(model_name).recipe).make_optimizer())
    tokens = np.random.default_rng(0).integers(0, model.vocabulary_size, (*shape, 2))
    seconds = []
    for _ in range(steps + 3):
        began = time.perf_counter()
        model.train_on_batch(tokens[..., 0], tokens[..., 1])
        seconds.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": float(np.median(seconds[3:])), "megabytes": peak}


if __name__ == "__main__":
    main()
