"""A chief that gives out trials over the network, and the supervision of its workers."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from keras_tuner.src import protos
from keras_tuner.src.distribute.oracle_chief import OracleServicer
from keras_tuner.src.engine import conditions

from dualnet.tuning.engine import processes
from dualnet.tuning.trial import DISK_FULL, TRIALS, read_outcome

SILENCE_SECONDS = 600.0  # after which a worker of another machine is given up
DEATHS = 5  # deaths of a worker in a row, with no trial ended between them
LOOPBACK = "127.0.0.1"
VARIABLES = ("KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT")

# KerasTuner prints the value of a condition whenever it is sent.
setattr(conditions, "print", lambda *values: None)  # noqa: B010


def role() -> str:
    """Return the role that KerasTuner's environment variables give: "chief", "worker" or ""."""
    present = [name for name in VARIABLES if os.environ.get(name)]
    if not present:
        return ""
    missing = [name for name in VARIABLES if name not in present]
    if missing:
        raise ValueError(
            f"{', '.join(VARIABLES)} must be set together. Received: {', '.join(present)} without "
            f"{', '.join(missing)}. Set all of them, or none to search on this machine only."
        )
    return "chief" if "chief" in os.environ["KERASTUNER_TUNER_ID"] else "worker"


def chief_address() -> str:
    """Return the address of the chief in KerasTuner's environment variables."""
    return ":".join(os.environ[name] for name in VARIABLES[1:])


class _Servicer(OracleServicer):
    """KerasTuner's, which also notes when it last heard from each worker."""

    def __init__(self, oracle: Any) -> None:
        super().__init__(oracle)
        self.last_heard: dict[str, float] = {}
        self.has_heard = False

    def CreateTrial(self, request, context):  # noqa: N802
        self.last_heard[request.tuner_id] = time.monotonic()
        self.has_heard = True
        return super().CreateTrial(request, context)

    def GetTrial(self, request, context):  # noqa: N802
        for tuner_id, trial in list(self.oracle.ongoing_trials.items()):
            if trial.trial_id == request.trial_id:
                self.last_heard[tuner_id] = time.monotonic()
        return super().GetTrial(request, context)


class Chief:
    """Serves an oracle to workers at "IP:PORT", as a context manager; port 0 is a free one."""

    def __init__(self, oracle: Any, address: str) -> None:
        self.oracle = oracle
        self.servicer = _Servicer(oracle)
        # KerasTuner's lock is held by a thread's name: one thread serves all workers.
        self.server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=1),
            options=[("grpc.so_reuseport", 0)],  # otherwise two chiefs could share a port
        )
        protos.get_service_grpc().add_OracleServicer_to_server(self.servicer, self.server)
        try:
            self.port = self.server.add_insecure_port(address)
        except RuntimeError:
            raise OSError(
                "`KERASTUNER_ORACLE_IP` and `KERASTUNER_ORACLE_PORT` must be a free address of "
                f"this machine. Received: {address}. Choose another port."
            ) from None

    def __enter__(self) -> Chief:
        self.server.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.server.stop(grace=1.0).wait()


def supervise(chief: Chief, folder: Path, count: int, poll: Callable[[], bool]) -> None:
    """Keep `count` workers on this machine running until there are no more trials.

    A worker that dies is started again under its name and gets its trial back. All are
    stopped as soon as `poll` returns true, or if one keeps dying.
    """
    (folder / "workers").mkdir(exist_ok=True)
    workers: list[_Worker] = []
    try:
        for i in range(count):
            workers.append(_Worker(f"worker-{i}", folder, chief.port))
        while not poll() and any([worker.is_running() for worker in workers]):
            time.sleep(0.3)
    finally:
        for worker in workers:
            worker.process.terminate()  # all at once, before waiting for any
        for worker in workers:
            processes.stop(worker.process)


class _Worker:
    """A worker process on this machine."""

    def __init__(self, name: str, folder: Path, port: int) -> None:
        self.name = name
        self.folder = folder
        no_proxy = ",".join(filter(None, [os.environ.get("no_proxy"), LOOPBACK]))
        address = dict(zip(VARIABLES, (name, LOOPBACK, str(port))))
        self.environment = {**address, "no_proxy": no_proxy}
        self.log = folder / "workers" / f"{name}.log"
        self.process = self.start()
        self.deaths = 0
        self.ended_trials = -1  # at the last death

    def start(self) -> subprocess.Popen:
        module = ["dualnet.tuning.worker_process", str(self.folder)]
        with open(self.log, "ab") as log:
            return processes.start(module, log, **self.environment)

    def is_running(self) -> bool:
        """Return whether the worker has trials to run; start it again if it has died."""
        code = self.process.poll()
        if code in (None, 0):
            return code is None
        processes.stop(self.process)
        if code == DISK_FULL:
            raise processes.disk_full(self.folder)
        ended = sum(read_outcome(path) is not None for path in (self.folder / TRIALS).glob("*"))
        self.deaths = self.deaths + 1 if ended == self.ended_trials else 1
        self.ended_trials = ended
        if self.deaths > DEATHS:
            raise ChildProcessError(
                f"{self.name} has died {self.deaths} times while no trial ended (exit code {code})."
                f" Its output is in {str(self.log)!r}."
            )
        self.process = self.start()
        return True


def serve(chief: Chief, poll: Callable[[], bool]) -> None:
    """Serve workers of other machines until there are no more trials or `poll` returns true.

    A worker that has been silent for `SILENCE_SECONDS` is given up, and another gets its trial.
    """
    oracle, last_heard = chief.oracle, chief.servicer.last_heard
    last_heard.update(dict.fromkeys(oracle.adopt(), time.monotonic()))
    while not poll():
        time.sleep(0.3)
        now = time.monotonic()
        for name, last in list(last_heard.items()):
            if now - last > SILENCE_SECONDS:
                del last_heard[name]
                oracle.release(name)
        if oracle.tuner_ids or oracle.ongoing_trials:
            continue
        if chief.servicer.stop_triggered and not oracle.retries:
            return
        if chief.servicer.has_heard and not last_heard:
            raise ConnectionError(
                f"No worker has been heard from for {SILENCE_SECONDS / 60:.0f} minutes, and trials "
                "are left. Check the workers, then resume the search with --resume."
            )
