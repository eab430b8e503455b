"""KerasTuner's oracles, which draw the trials, made to survive kills and to end."""

import math
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner import oracles
from keras_tuner.engine.oracle import Oracle
from keras_tuner.engine.trial import Trial, TrialStatus

from dualnet._checks import ArgumentError
from dualnet._files import write_json
from dualnet.tuning.job import Job

OBJECTIVE = "val_perplexity"
MAX_TRIALS = 100
FAILURES = 5  # a search is over if its first trials all fail
FINISHED = (TrialStatus.COMPLETED, TrialStatus.FAILED)


class SafeOracle(Oracle):
    """Base of all oracles here.

    Differs from KerasTuner:

    - files are written atomically;
    - a trial that has ended is never run again, and one that no worker received is drawn anew;
    - the best trials are completed ones;
    - no trial starts once the first trials have all failed;
    - workers wait until the last trial has ended, and take over the trial of one that dies;
    - no failure raises inside a call, which would lock out the other workers.

    Attributes:
        unwritten: Why a file could not be written, after which no other is: the files stay as
            they would be after a kill. None if all were written.
    """

    unwritten: OSError | None = None
    trials: dict[str, Any]
    ongoing_trials: dict[str, Any]
    _retry_queue: list[str]
    _ongoing_before_reload: dict[str, str] = {}

    @property
    def all_failed(self) -> bool:
        """Whether enough trials have ended, none of them completed, to give up."""
        statuses = [self.trials[trial_id].status for trial_id in self.end_order]
        return len(statuses) >= FAILURES and TrialStatus.COMPLETED not in statuses

    @property
    def retries(self) -> list[str]:
        """The trials that wait to be run again."""
        return list(self._retry_queue)

    @keras_tuner.synchronized
    def create_trial(self, tuner_id):
        if self.all_failed and tuner_id not in self.ongoing_trials:
            self.tuner_ids.discard(tuner_id)
            return Trial(hyperparameters=self.get_space(), status=TrialStatus.STOPPED)
        trial = super().create_trial(tuner_id)
        if trial.status == TrialStatus.STOPPED and self.ongoing_trials:
            self.tuner_ids.add(tuner_id)  # it takes over if another worker dies
            trial.status = TrialStatus.IDLE
        return trial

    @keras_tuner.synchronized
    def end_trial(self, trial):
        if trial.trial_id in self.end_order:
            return  # from a worker that was given up
        if trial.trial_id in self._retry_queue:
            self._retry_queue.remove(trial.trial_id)
        super().end_trial(trial)

    @keras_tuner.synchronized
    def release(self, tuner_id: str) -> None:
        """Let another worker run the trial of a worker that is gone."""
        trial = self.ongoing_trials.pop(tuner_id, None)
        self.tuner_ids.discard(tuner_id)
        if trial is not None and trial.trial_id not in self.end_order:
            self._retry_queue.append(trial.trial_id)
            self.save()

    def adopt(self) -> list[str]:
        """Assume that the workers at work before `reload` are alive; return their names."""
        for tuner_id, trial_id in self._ongoing_before_reload.items():
            if trial_id in self._retry_queue:
                self._retry_queue.remove(trial_id)
                self.ongoing_trials[tuner_id] = self.trials[trial_id]
                self.tuner_ids.add(tuner_id)
        return list(self.ongoing_trials)

    def get_best_trials(self, num_trials=1):
        completed = [t for t in self.trials.values() if t.status == TrialStatus.COMPLETED]
        return sorted(completed, key=lambda trial: trial.score)[:num_trials]

    def save(self):
        self._write(self._get_oracle_fname, self.get_state())

    def _save_trial(self, trial):
        folder = self._get_trial_dir
        self._write(lambda: Path(folder(trial.trial_id)) / "trial.json", trial.get_state())

    def _write(self, path: Callable[[], Any], state: dict[str, Any]) -> None:
        """Write `state` to the file that `path` returns, whose folder it may create."""
        if self.unwritten is None:
            try:
                write_json(path(), state)
            except OSError as error:
                self.unwritten = error

    def set_state(self, state):
        super().set_state(state)
        self._ongoing_before_reload = dict(state["ongoing_trials"])

    def reload(self):
        super().reload()  # queues all trials under way to be run again
        for trial_id in self.trials.keys() - {*self.start_order}:
            # Killed between writing the trial's file and the oracle's: no worker received it.
            shutil.rmtree(self._get_trial_dir(trial_id))
            del self.trials[trial_id]
        queue = dict.fromkeys(self._retry_queue)
        self._retry_queue = [i for i in queue if self.trials[i].status not in FINISHED]
        for trial_id in self.start_order:  # killed between these two files when a trial ended
            if self.trials[trial_id].status in FINISHED and trial_id not in self.end_order:
                self.end_order.append(trial_id)


class _Bayesian(SafeOracle, oracles.BayesianOptimizationOracle):
    def populate_space(self, trial_id):
        with warnings.catch_warnings(action="ignore"):  # a regression on few points warns
            self._fit()
            drawn = super().populate_space(trial_id)
        if drawn["status"] == TrialStatus.RUNNING and self._duplicate(drawn["values"]):
            return self._random_populate_space()
        return drawn

    def _vectorize_trials(self) -> Any:
        # The logarithm: one perplexity of 1e20 would hide what all others differ by.
        scores = {i: trial.score for i, trial in self.trials.items() if trial.score is not None}
        for trial_id, score in scores.items():
            self.trials[trial_id].score = math.log(score)
        try:
            return super()._vectorize_trials()
        finally:
            for trial_id, score in scores.items():
                self.trials[trial_id].score = score

    def _fit(self) -> None:
        # For trials under way, KerasTuner uses the prediction of the last fit. Before the first
        # fit, also after a resume, it is zero: better than any perplexity.
        trials, ongoing = self.trials, self.ongoing_trials
        completed = {i: t for i, t in trials.items() if t.status == TrialStatus.COMPLETED}
        initial = self.num_initial_points or max(3 * len(self.hyperparameters.space), 3)
        if ongoing and len(completed) >= initial:
            try:
                self.trials, self.ongoing_trials = completed, {}
                self.gpr.fit(*self._vectorize_trials())
            finally:
                self.trials, self.ongoing_trials = trials, ongoing


class _Random(SafeOracle, oracles.RandomSearchOracle): ...


class _Hyperband(SafeOracle, oracles.HyperbandOracle): ...


class _Grid(SafeOracle, oracles.GridSearchOracle): ...


ORACLES = {"random": _Random, "bayesian": _Bayesian, "hyperband": _Hyperband, "grid": _Grid}


def make_oracle(job: Job, *, epochs: int) -> SafeOracle:
    """Return the oracle of `job`, with its whole space declared.

    Hyperband gives a trial at most `epochs`.
    """
    space = keras_tuner.HyperParameters()
    job.declare(space)
    if not space.space:
        way_out = " Fix one less, or train the model with `dualnet train`."
        raise ArgumentError("space", "must leave a parameter to search.", way_out)
    settings = {
        "objective": keras_tuner.Objective(OBJECTIVE, direction="min"),
        "hyperparameters": space,
        "seed": job.seed + 1,  # KerasTuner takes 0 for none
        "max_consecutive_failed_trials": 10**9,  # it would raise and lock out other workers
        **job.tuner_options,
    }
    if job.tuner == "hyperband":
        settings["max_epochs"] = epochs
    elif job.tuner == "grid":
        settings["max_trials"] = job.max_trials
    else:
        settings["max_trials"] = job.max_trials or MAX_TRIALS
    try:
        oracle = ORACLES[job.tuner](**settings)
    except TypeError as error:
        raise ArgumentError("tuner_options", f"must fit the tuner {job.tuner!r}: {error}") from None
    oracle.verbose = 0
    return oracle
