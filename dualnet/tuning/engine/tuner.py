"""KerasTuner's tuner, which runs each trial in a process of its own."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
from keras_tuner.engine.base_tuner import BaseTuner
from keras_tuner.engine.trial import TrialStatus
from keras_tuner.errors import FailedTrialError

from dualnet._files import folder_beside
from dualnet.runs import load
from dualnet.training.interrupts import Stopped
from dualnet.tuning.engine import processes
from dualnet.tuning.engine.oracles import OBJECTIVE, make_oracle
from dualnet.tuning.search_folder import Search
from dualnet.tuning.trial import RUN, TRIALS

SEARCH = "search"  # the folder of KerasTuner's own files


class Tuner(BaseTuner):
    """A KerasTuner tuner whose trials are `Task`s, each done by a process of its own.

    `shared` is the search that its trials belong to; those so far are read from its folder.
    `poll`, called several times a second, returns True to stop and leave the trials under way
    for later.
    """

    def __init__(self, shared: Search, poll: Callable[[], bool], hypermodel: Any = None) -> None:
        oracle = make_oracle(shared.job, epochs=shared.epochs)
        self.shared = shared
        self.folder = shared.folder
        self.poll = poll
        with open(os.devnull, "w") as devnull, contextlib.redirect_stdout(devnull):
            super().__init__(
                oracle, hypermodel, directory=str(self.folder), project_name=SEARCH, overwrite=False
            )

    @property
    def is_worker(self) -> bool:
        """Whether a chief in another process gives out the trials."""
        return self._is_worker()

    def search(self, workers: int = 1) -> None:
        """Run trials, `workers` at a time, until there are no more.

        If `poll` returns true, the trials under way save and end, and `Stopped` is raised.
        """
        if workers == 1:
            return self._work(self.tuner_id, self.poll)
        stop = threading.Event()
        with futures.ThreadPoolExecutor(workers) as pool:
            names = [f"worker-{i}" for i in range(workers)]
            left = {pool.submit(self._work, name, stop.is_set) for name in names}
            try:
                while left and not self.poll():
                    done, left = futures.wait(left, 0.3, futures.FIRST_EXCEPTION)
                    for worker in done:
                        worker.result()  # raises what has ended it
            finally:
                stop.set()
        if left:
            raise Stopped("Stopped.")

    def _work(self, name: str, poll: Callable[[], bool]) -> None:
        """Run one trial after the other as the worker `name`."""
        while True:
            if poll():
                raise Stopped("Stopped.")
            trial = self.oracle.create_trial(name)
            if trial.status == TrialStatus.STOPPED:
                return
            if trial.status == TrialStatus.IDLE:
                time.sleep(0.5)  # the next trial depends on others under way
                continue
            self.on_trial_begin(trial)
            try:  # KerasTuner would print the whole traceback
                self._run_and_update_trial(trial, poll)
                trial.status = TrialStatus.COMPLETED
            except FailedTrialError as error:
                trial.status, trial.message = TrialStatus.FAILED, str(error)
            self.on_trial_end(trial)

    def run_trial(self, trial, poll):
        """Return the result of `trial`, which may have begun, or ended, in an earlier process."""
        values = trial.hyperparameters.values
        folder = self.folder / TRIALS / trial.trial_id
        folder.mkdir(parents=True, exist_ok=True)
        previous, run = values.get("tuner/trial_id"), folder / RUN
        if previous is not None and not run.exists():  # Hyperband continues an earlier trial
            source, ignore = self.folder / TRIALS / previous / RUN, shutil.ignore_patterns(".lock")
            with folder_beside(run) as copy:
                shutil.copytree(source, copy, ignore=ignore, dirs_exist_ok=True)
        self.shared.task(values).write(folder)
        outcome = processes.run_task(folder, poll, lambda: self._beat(trial.trial_id))
        if outcome.status == "failed":
            raise FailedTrialError(outcome.message)
        return {OBJECTIVE: outcome.val_perplexity}

    def _beat(self, trial_id: str) -> None:
        """Tell the chief that the trial is under way, without waiting for an answer."""

        def ask() -> None:
            with contextlib.suppress(grpc.RpcError):
                self.oracle.get_trial(trial_id)

        if self.is_worker:
            threading.Thread(target=ask, daemon=True).start()

    def load_model(self, trial):
        """Return the trained model of a trial of the kind "training" or "gate"."""
        return load(self.folder / TRIALS / trial.trial_id / RUN)

    def save(self):
        """Write nothing: a tuner has no state, and the oracle saves itself, under its lock."""

    def reload(self):
        if not self.is_worker:
            self.oracle.reload()

    def _get_tuner_fname(self):
        return str(self.folder / SEARCH / "oracle.json")  # KerasTuner reloads if it exists

    def _populate_initial_space(self):
        """Build no model: the oracle has the whole space declared."""
