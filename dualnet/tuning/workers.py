"""A chief that gives out trials over the network, and the workers that run them."""

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

from dualnet.tuning.trial import read_outcome
from dualnet.tuning.tuner import TRIALS, begin, end

SILENCE = 600.0  # seconds after which a worker of another machine is given up
DEATHS = 5  # of a worker in a row, while no trial ends
LOOPBACK = "127.0.0.1"

# It prints the value of a condition whenever that is sent.
setattr(conditions, "print", lambda *values: None)  # noqa: B010


class _Servicer(OracleServicer):
    """KerasTuner's, which notes when it last heard of each worker."""

    def __init__(self, oracle: Any) -> None:
        super().__init__(oracle)
        self.heard: dict[str, float] = {}
        self.was_heard = False

    def CreateTrial(self, request, context):  # noqa: N802
        self.heard[request.tuner_id] = time.monotonic()
        self.was_heard = True
        return super().CreateTrial(request, context)

    def GetTrial(self, request, context):  # noqa: N802
        for tuner_id, trial in list(self.oracle.ongoing_trials.items()):
            if trial.trial_id == request.trial_id:
                self.heard[tuner_id] = time.monotonic()
        return super().GetTrial(request, context)


class Chief:
    """Serves an oracle to workers while it is entered.

    Args:
        oracle: one of `make_oracle`.
        address: "IP:PORT"; port 0 for a free one.

    Raises:
        OSError: if the port is in use.
    """

    def __init__(self, oracle: Any, address: str) -> None:
        self.oracle = oracle
        self.servicer = _Servicer(oracle)
        # KerasTuner's lock is held by name of thread: one thread serves all.
        self.server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=1),
            options=[("grpc.so_reuseport", 0)],  # else two chiefs could share a port
        )
        protos.get_service_grpc().add_OracleServicer_to_server(self.servicer, self.server)
        try:
            self.port = self.server.add_insecure_port(address)
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise OSError(
                f"`KERASTUNER_ORACLE_IP` and `KERASTUNER_ORACLE_PORT` must be a free address of "
                f"this machine. Received: {address}. Choose another port."
            )

    def __enter__(self) -> Chief:
        self.server.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.server.stop(grace=1.0).wait()


def supervise(chief: Chief, folder: Path, count: int, poll: Callable[[], bool]) -> None:
    """Keep `count` workers on this machine at work until there are no more trials.

    A worker that dies is begun again under its name, and gets its trial back. They are stopped
    as soon as `poll` is true.

    Raises:
        ChildProcessError: if a worker keeps dying.
    """
    (folder / "workers").mkdir(exist_ok=True)
    workers = [_Worker(f"worker-{i}", folder, chief.port) for i in range(count)]
    try:
        for worker in workers:
            worker.begin()
        while not poll() and any([worker.is_at_work() for worker in workers]):
            time.sleep(0.3)
    finally:
        begun = [worker.process for worker in workers if worker.process is not None]
        for process in begun:
            if process.poll() is None:
                process.terminate()  # all at once, before any is waited for
        for process in begun:
            end(process)


class _Worker:
    def __init__(self, name: str, folder: Path, port: int) -> None:
        self.name = name
        self.folder = folder
        self.environment = {
            "KERASTUNER_TUNER_ID": name,
            "KERASTUNER_ORACLE_IP": LOOPBACK,
            "KERASTUNER_ORACLE_PORT": str(port),
            "no_proxy": ",".join(filter(None, [os.environ.get("no_proxy"), LOOPBACK])),
        }
        self.log = folder / "workers" / f"{name}.log"
        self.process: subprocess.Popen | None = None
        self.deaths = 0
        self.ended = -1

    def begin(self) -> None:
        with open(self.log, "ab") as log:
            self.process = begin(
                ["dualnet.tuning.worker", str(self.folder)], log, **self.environment
            )

    def is_at_work(self) -> bool:
        """Return whether it has something to do; begin it again if it died."""
        code = self.process.poll() if self.process else 0
        if code is None:
            return True
        if code == 0:
            return False
        ended = sum(read_outcome(each) is not None for each in (self.folder / TRIALS).glob("*"))
        self.deaths = self.deaths + 1 if ended == self.ended else 1
        self.ended = ended
        if self.deaths > DEATHS:
            raise ChildProcessError(
                f"{self.name} has died {self.deaths} times while no trial ended (exit code {code})."
                f" What it printed is in {str(self.log)!r}."
            )
        self.begin()
        return True


def serve(chief: Chief, poll: Callable[[], bool]) -> None:
    """Serve workers of other machines until there are no more trials, or `poll` is true.

    A worker of which nothing was heard for `SILENCE` seconds is given up: another one gets
    its trial.

    Raises:
        ConnectionError: if all workers are given up, and trials are left.
    """
    oracle, heard = chief.oracle, chief.servicer.heard
    heard.update(dict.fromkeys(oracle.adopt(), time.monotonic()))
    while not poll():
        time.sleep(0.3)
        now = time.monotonic()
        for name in [name for name, last in list(heard.items()) if now - last > SILENCE]:
            del heard[name]
            oracle.release(name)
        if oracle.tuner_ids or oracle.ongoing_trials:
            continue
        if chief.servicer.stop_triggered and not oracle.retries:
            return
        if chief.servicer.was_heard and not heard:
            raise ConnectionError(
                f"Nothing was heard of any worker for {SILENCE / 60:.0f} minutes, and trials are "
                "left. Look at the workers, then go on with --resume."
            )
