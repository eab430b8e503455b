"""KerasTuner's oracles, which draw the trials, made to survive kills and to end."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner import oracles
from keras_tuner.engine.oracle import Oracle
from keras_tuner.engine.trial import Trial, TrialStatus

from dualnet._checks import ArgumentError
from dualnet._files import write_whole
from dualnet.tuning.jobs import Job

OBJECTIVE = "val_perplexity"
FAILURES = 5  # a search is over if its first trials all fail
FINISHED = (TrialStatus.COMPLETED, TrialStatus.FAILED)


class _Safe(Oracle):
    """What all oracles here have in common.

    Differs from KerasTuner: files are written whole; a trial that ended is never run again,
    and one that was never given out is drawn anew; the best trials are completed ones; the
    oracle stops at `deadline`, and where the first trials all fail; workers wait until the
    last trial has ended, and take over those of one that dies; and no failure raises in the
    midst of a call, which would lock all others out.

    Attributes:
        deadline: Time, as `time.time()`, from which no trial is given out.
    """

    deadline = float("inf")
    trials: dict[str, Any]
    ongoing_trials: dict[str, Any]
    _retry_queue: list[str]
    _before: dict[str, str] = {}

    @property
    def all_failed(self) -> bool:
        """Whether trials have ended, none of them completed, and no more should be tried."""
        ended = [self.trials[trial_id].status for trial_id in self.end_order]
        return len(ended) >= FAILURES and TrialStatus.COMPLETED not in ended

    @property
    def retries(self) -> list[str]:
        """The trials that wait to be run again."""
        return list(self._retry_queue)

    @keras_tuner.synchronized
    def create_trial(self, tuner_id):
        if tuner_id not in self.ongoing_trials and (
            self.all_failed or time.time() >= self.deadline
        ):
            self.tuner_ids.discard(tuner_id)
            return Trial(hyperparameters=self.get_space(), status=TrialStatus.STOPPED)
        trial = super().create_trial(tuner_id)
        if trial.status == TrialStatus.STOPPED and self.ongoing_trials:
            self.tuner_ids.add(tuner_id)  # which is needed if the worker of one of them dies
            trial.status = TrialStatus.IDLE
        return trial

    @keras_tuner.synchronized
    def end_trial(self, trial):
        if trial.trial_id in self.end_order:
            return  # of a worker that was thought dead
        if trial.trial_id in self._retry_queue:
            self._retry_queue.remove(trial.trial_id)
        super().end_trial(trial)

    @keras_tuner.synchronized
    def release(self, tuner_id: str) -> None:
        """Let the trial of a worker that is gone be run by another."""
        trial = self.ongoing_trials.pop(tuner_id, None)
        self.tuner_ids.discard(tuner_id)
        if trial is not None and trial.trial_id not in self.end_order:
            self._retry_queue.append(trial.trial_id)
            self.save()

    def adopt(self) -> list[str]:
        """Take the workers for alive that were at work before `reload`; return their names."""
        for tuner_id, trial_id in self._before.items():
            if trial_id in self._retry_queue:
                self._retry_queue.remove(trial_id)
                self.ongoing_trials[tuner_id] = self.trials[trial_id]
                self.tuner_ids.add(tuner_id)
        return list(self.ongoing_trials)

    def get_best_trials(self, num_trials=1):
        completed = [t for t in self.trials.values() if t.status == TrialStatus.COMPLETED]
        return sorted(completed, key=lambda trial: trial.score)[:num_trials]

    def save(self):
        write_whole(self._get_oracle_fname(), json.dumps(self.get_state()))

    def _save_trial(self, trial):
        folder = Path(self._get_trial_dir(trial.trial_id))
        write_whole(folder / "trial.json", json.dumps(trial.get_state()))

    def set_state(self, state):
        super().set_state(state)
        self._before = dict(state["ongoing_trials"])

    def reload(self):
        super().reload()  # which lets all trials under way be run again
        known = set(self.start_order)
        for trial_id in [trial_id for trial_id in self.trials if trial_id not in known]:
            # Killed between the trial's file and the oracle's: nobody was given it.
            shutil.rmtree(self._get_trial_dir(trial_id))
            del self.trials[trial_id]
        again = dict.fromkeys(self._retry_queue)
        self._retry_queue = [i for i in again if self.trials[i].status not in FINISHED]
        for trial_id in self.start_order:  # killed between these two files at a trial's end
            if self.trials[trial_id].status in FINISHED and trial_id not in self.end_order:
                self.end_order.append(trial_id)


class _Random(_Safe, oracles.RandomSearchOracle):
    pass


class _Bayesian(_Safe, oracles.BayesianOptimizationOracle):
    def populate_space(self, trial_id):
        # Warnings of a regression with few points, about which a user can do nothing.
        with warnings.catch_warnings(action="ignore"):
            self._fit()
            found = super().populate_space(trial_id)
        if found["status"] == TrialStatus.RUNNING and self._duplicate(found["values"]):
            return self._random_populate_space()  # the same trial once more would tell nothing
        return found

    def _fit(self) -> None:
        # For trials under way KerasTuner takes the guess of the regression as it was last fitted;
        # before the first fit, also after a resume, that is zero, the best perplexity of all.
        every, ongoing = self.trials, self.ongoing_trials
        completed = {i: t for i, t in every.items() if t.status == TrialStatus.COMPLETED}
        first = self.num_initial_points or max(3 * len(self.hyperparameters.space), 3)
        if ongoing and len(completed) >= first:
            try:
                self.trials, self.ongoing_trials = completed, {}
                self.gpr.fit(*self._vectorize_trials())
            finally:
                self.trials, self.ongoing_trials = every, ongoing


class _Hyperband(_Safe, oracles.HyperbandOracle):
    pass


class _Grid(_Safe, oracles.GridSearchOracle):
    pass


def make_oracle(job: Job, *, epochs: int) -> _Safe:
    """Return the oracle of `job`, all of its space declared.

    Args:
        job: `Job`.
        epochs: int. Of a whole training, which Hyperband shares out.

    Raises:
        ValueError: if `job` leaves nothing to search.
        ImportError: if a package is missing that the tuner needs.
    """
    space = keras_tuner.HyperParameters()
    job.declare(space)
    if not space.space:
        raise ArgumentError(
            "space",
            f"must leave a parameter to search. Received: the job {job.name!r} with all "
            "of them fixed. Set one less, or train the model with `dualnet train`.",
        )
    settings: dict[str, Any] = {
        "objective": keras_tuner.Objective(OBJECTIVE, direction="min"),
        "hyperparameters": space,
        "seed": job.seed + 1,  # KerasTuner takes 0 for none
        "max_consecutive_failed_trials": 10**9,  # it would raise while others are locked out
        **job.tuner_options,
    }
    if job.tuner == "hyperband":
        oracle: _Safe = _Hyperband(max_epochs=epochs, **settings)
    else:
        kind = {"random": _Random, "bayesian": _Bayesian, "grid": _Grid}[job.tuner]
        oracle = kind(max_trials=job.max_trials, **settings)
    oracle.verbose = 0
    return oracle


def count_trials(oracle: _Safe) -> int | None:
    """Return how many trials `oracle` will give out at most, None if it does not know."""
    if not isinstance(oracle, _Hyperband):
        return oracle.max_trials
    brackets = range(oracle._get_num_brackets())
    once = sum(oracle._get_size(b, r) for b in brackets for r in range(b + 1))
    return once * int(oracle.hyperband_iterations)
