"""What the tests of searches share: a job of their own, trials in one process, what they left."""

import contextlib
import csv
import signal

import keras_tuner
import pytest
import tomli_w

from dualnet.training.interrupts import Stopped
from dualnet.tuning import trial_process
from dualnet.tuning.engine import processes
from dualnet.tuning.trial import DISK_FULL, STOPPED, read_outcome

SPACE = {
    "learning_rate": {"min_value": 1e-3, "max_value": 1e-1, "sampling": "log"},
    "output_dropout": {"min_value": 0.0, "max_value": 0.3},
}


def write_job(folder, *, space=SPACE, epochs=2, batch_size=20, sequence_length=9, **top):
    """Write a job into `folder`, with `top` at the top of the file; return its path."""
    fixed = {"units": 6, "epochs": epochs, "batch_size": batch_size}
    fixed["sequence_length"] = sequence_length
    fixed = {key: fixed[key] for key in fixed if key not in space}
    limits = {"max_trials": 2, "early_stopping": "none", "seed": 3}
    table = {"model": "lstm", **limits, **top, "fixed": fixed, "space": space}
    path = folder / "small.toml"
    path.write_text(tomli_w.dumps(table))
    return path


def objective():
    return keras_tuner.Objective("val_perplexity", "min")


def declared(job):
    hp = keras_tuner.HyperParameters()
    job.declare(hp)
    return hp


def draws(job, count, seed=0):
    """Yield the values of `count` random trials, as KerasTuner's random search draws them."""
    oracle = keras_tuner.oracles.RandomSearchOracle(
        objective(), max_trials=count, hyperparameters=declared(job), seed=seed + 1
    )
    for i in range(count):
        drawn = oracle.populate_space(str(i))
        if drawn["status"] == "STOPPED":  # the space has no more
            return
        yield drawn["values"]


@contextlib.contextmanager
def in_this_process(after=lambda folder: None):
    """Run trials in this process, where nothing has to be imported anew; yield their folders.

    Args:
        after: called with the folder of each trial that has ended.
    """
    begun = []

    def run(folder, poll, beat=None):
        outcome = read_outcome(folder)
        if outcome is not None:
            return outcome
        if poll():
            raise Stopped("Stopped.")
        begun.append(folder)
        before = signal.getsignal(signal.SIGTERM)
        try:
            code = trial_process.main(folder)
        finally:
            signal.signal(signal.SIGTERM, before)
        if code == STOPPED:
            raise Stopped("Stopped.")
        if code == DISK_FULL:
            raise processes.disk_full(folder)
        after(folder)
        return read_outcome(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial_process, "end_with_parent", lambda: None)
        patch.setattr(processes, "run_task", run)
        yield begun


def rows(path):
    """Return the lines of a table as dictionaries."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def epochs_of(folder):
    """Return the epochs that a trial's RUN has, as its table counts them."""
    return [int(row["epoch"]) for row in rows(folder / "run" / "metrics.csv")]


def history_of(folder):
    """Return what a trial's RUN measured, but for the time that it took."""
    return [
        {key: row[key] for key in row if key not in ("seconds", "tokens_per_second")}
        for row in rows(folder / "run" / "metrics.csv")
    ]
