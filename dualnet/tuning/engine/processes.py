"""Processes of trials: started, restarted if killed, and stopped with a checkpoint."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from dualnet.training.interrupts import Stopped
from dualnet.tuning.trial import DISK_FULL, STOPPED, Outcome, read_outcome

ATTEMPTS = 3  # of a trial whose process is killed
HEARTBEAT_SECONDS = 10.0
PATIENCE_SECONDS = 60.0  # how long a process may take to save and end


def run_task(
    folder: Path, poll: Callable[[], bool], beat: Callable[[], None] = lambda: None
) -> Outcome:
    """Run the task in `folder` in a process of its own, and return its outcome.

    A process that is killed is started again and continues from its last checkpoint. `poll` is
    called several times a second; if it returns true, the process saves and ends. `beat` is
    called every `HEARTBEAT_SECONDS`.

    Raises:
        OSError: if the disk is full. The trial has not ended then.
    """
    for _ in range(ATTEMPTS):
        if outcome := read_outcome(folder):
            return outcome
        with (
            open(folder / "log.txt", "ab") as log,
            start(["dualnet.tuning.trial_process", str(folder)], log) as process,
        ):
            try:
                code = _wait(process, poll, beat)
            except BaseException:
                stop(process)
                raise
        if code == STOPPED and poll():  # the whole group received the signal
            raise Stopped("Stopped.")
        if code == DISK_FULL:
            raise disk_full(folder)
    if outcome := read_outcome(folder):
        return outcome
    hint = " It may need more memory than there is." if code == -signal.SIGKILL else ""
    output = f"Its output is in {str(folder / 'log.txt')!r}."
    message = f"Its process ended with code {code}, {ATTEMPTS} times.{hint} {output}"
    outcome = Outcome(status="failed", message=message)
    outcome.write(folder)  # for the reports
    return outcome


def disk_full(folder: Path) -> OSError:
    """Return the error of a process that could not write its files in `folder`."""
    return OSError(f"Files in {str(folder)!r} could not be written ({os.strerror(errno.ENOSPC)}).")


def start(module: list[str], log: BinaryIO) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE ARGUMENTS`; it ends when this process does."""
    path = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    # One thread between operations makes runs equal bit for bit.
    defaults = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTEROP_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", *module],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env={**defaults, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask `process` to save and end; kill it if it does not."""
    process.terminate()  # does nothing to a process that has ended
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    with process:  # closes its pipe
        process.wait()


def _wait(
    process: subprocess.Popen[bytes], poll: Callable[[], bool], beat: Callable[[], None]
) -> int:
    """Return the exit code of `process`; raise `Stopped` as soon as `poll` returns true."""
    last = time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(0.2)
        if poll():
            raise Stopped("Stopped.")
        if time.monotonic() - last > HEARTBEAT_SECONDS:
            last = time.monotonic()
            beat()
