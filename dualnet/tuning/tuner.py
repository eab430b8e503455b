"""Runs the trials that an oracle draws, each in a process of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from keras_tuner.engine.base_tuner import BaseTuner
from keras_tuner.engine.trial import TrialStatus
from keras_tuner.errors import FailedTrialError

from dualnet.runs import load
from dualnet.training.interrupts import Stopped
from dualnet.tuning.oracles import OBJECTIVE
from dualnet.tuning.trial import RUN, STOPPED, Task, read_outcome, write_task

ATTEMPTS = 3  # of a trial whose process is killed
SEARCH, TRIALS = "search", "trials"
HEARTBEAT = 10.0  # seconds between two signs of life to the chief
PATIENCE = 60.0  # seconds that a process has to save and end


class Tuner(BaseTuner):
    """A tuner of KerasTuner, whose trials are `Task`s, done in processes of their own.

    Args:
        oracle: draws the trials.
        hypermodel: declares the space; `HyperModel` for jobs of the kind "training".
        folder: the folder of the search.
        make_task: the `Task` of a trial's values, as they are in `HyperParameters.values`.
        poll: called several times a second; returns whether to stop, with the trial under way
            left for later.
    """

    def __init__(
        self,
        oracle: Any,
        hypermodel: Any,
        folder: Path,
        make_task: Callable[[dict[str, Any]], Task],
        poll: Callable[[], bool],
    ) -> None:
        self.folder = folder
        self.make_task = make_task
        self.poll = poll
        self._asking: threading.Thread | None = None
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            super().__init__(
                oracle, hypermodel, directory=str(folder), project_name=SEARCH, overwrite=False
            )

    @property
    def is_worker(self) -> bool:
        """Whether a chief elsewhere gives out the trials."""
        return self._is_worker()

    def search(self) -> None:
        """Run trials until there are no more.

        Raises:
            Stopped: if `poll` said so; the trial under way can go on later.
        """
        while True:
            if self.poll():
                raise Stopped("Stopped.")
            trial = self.oracle.create_trial(self.tuner_id)
            if trial.status == TrialStatus.STOPPED:
                return
            if trial.status == TrialStatus.IDLE:
                time.sleep(0.5)  # others have to end first
                continue
            self.on_trial_begin(trial)
            try:  # KerasTuner would print the whole traceback
                self._run_and_update_trial(trial)
                trial.status = TrialStatus.COMPLETED
            except FailedTrialError as error:
                trial.status, trial.message = TrialStatus.FAILED, str(error)
            self.on_trial_end(trial)

    def run_trial(self, trial, *fit_args, **fit_kwargs):
        """Return the outcome of `trial`, which may have been begun, or ended, before."""
        values = trial.hyperparameters.values
        folder = self.trial_folder(trial.trial_id)
        folder.mkdir(parents=True, exist_ok=True)
        past = values.get("tuner/trial_id")
        if past is not None and not (folder / RUN).exists():
            _copy(self.trial_folder(past) / RUN, folder / RUN)
        write_task(folder, self.make_task(values))
        outcome = run_task(folder, self.poll, lambda: self._beat(trial.trial_id))
        if outcome["status"] == "failed":
            raise FailedTrialError(outcome["message"])
        return {OBJECTIVE: outcome["val_perplexity"]}

    def _beat(self, trial_id: str) -> None:
        """Let the chief know that the trial is under way; it may be away for a while."""
        if self._is_worker() and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, args=(trial_id,), daemon=True)
            self._asking.start()

    def _ask(self, trial_id: str) -> None:
        with contextlib.suppress(grpc.RpcError):
            self.oracle.get_trial(trial_id)

    def load_model(self, trial):
        """Return the trained model of a trial of the kinds "training" and "gate"."""
        return load(self.trial_folder(trial.trial_id) / RUN)

    def trial_folder(self, trial_id: str) -> Path:
        """Return the folder of a trial: its task, outcome and RUN."""
        return self.folder / TRIALS / trial_id

    def save(self):
        if not self._is_worker():
            self.oracle.save()  # a tuner has nothing of its own to save

    def reload(self):
        if not self._is_worker():
            self.oracle.reload()

    def _get_tuner_fname(self):
        return str(self.folder / SEARCH / "oracle.json")  # if it is there, KerasTuner reloads

    def _populate_initial_space(self):
        """Build no model: the oracle has the whole space declared."""


def run_task(
    folder: Path, poll: Callable[[], bool], beat: Callable[[], Any] = lambda: None
) -> dict[str, Any]:
    """Run the task in `folder` in a process of its own, and return the outcome.

    A process that is killed is begun again, and goes on from its last checkpoint.

    Args:
        folder: of the task.
        poll: called several times a second; if it is true, the process saves and ends.
        beat: called every `HEARTBEAT` seconds.

    Raises:
        Stopped: if `poll` said so.
    """
    for _ in range(ATTEMPTS):
        outcome = read_outcome(folder)
        if outcome is not None:
            return outcome
        with (
            open(folder / "log.txt", "ab") as log,
            begin(["dualnet.tuning.trial", str(folder)], log) as process,
        ):
            try:
                code = _wait(process, poll, beat)
            except BaseException:
                end(process)
                raise
        if code == STOPPED and poll():  # the signal was for all of us
            raise Stopped("Stopped.")
    outcome = read_outcome(folder)
    if outcome is not None:
        return outcome
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    why = " It may need more memory than there is." if code == -9 else ""
    message = (
        f"Its process ended {how}, {ATTEMPTS} times.{why} What it printed is in "
        f"{str(folder / 'log.txt')!r}."
    )
    return {"status": "failed", "message": message, "val_perplexity": None}


def begin(module: list[str], log: Any, **environment: str) -> subprocess.Popen:
    """Begin `python -m MODULE ARGUMENTS`, which ends when this process does."""
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    settings = {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTEROP_THREADS": "1",  # the same bits in every run
    }
    return subprocess.Popen(
        [sys.executable, "-m", *module],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env={**settings, **os.environ, "PYTHONPATH": settings["PYTHONPATH"], **environment},
        start_new_session=True,  # Ctrl-C is for us alone, who tell it
    )


def end(process: subprocess.Popen) -> None:
    """Let `process` save and end, at last by force."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen, poll: Callable[[], bool], beat: Callable[[], Any]) -> int:
    """Return the exit code of `process`; raise `Stopped` as soon as `poll` says so."""
    last = time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(0.2)
        if poll():
            raise Stopped("Stopped.")
        if time.monotonic() - last > HEARTBEAT:
            last = time.monotonic()
            beat()


def _copy(source: Path, target: Path) -> None:
    """Copy a RUN folder whole, for another trial to go on with."""
    beside = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=target.parent))
    try:
        shutil.copytree(source, beside / RUN, ignore=shutil.ignore_patterns(".lock"))
        os.replace(beside / RUN, target)
    finally:
        shutil.rmtree(beside)
