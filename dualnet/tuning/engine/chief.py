"""A chief that gives out trials to workers of other machines."""

import os
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, Self

import grpc
from keras_tuner.src import protos
from keras_tuner.src.distribute.oracle_chief import OracleServicer
from keras_tuner.src.engine import conditions

SILENCE_SECONDS = 600.0  # after which a worker is given up
VARIABLES = ("KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT")

# KerasTuner prints the value of a condition whenever it is sent.
setattr(conditions, "print", lambda *values: None)  # noqa: B010


def role() -> str:
    """Return the role that KerasTuner's environment variables give: "chief", "worker" or ""."""
    missing = [name for name in VARIABLES if not os.environ.get(name)]
    if len(missing) == len(VARIABLES):
        return ""
    if missing:
        raise ValueError(
            f"{', '.join(VARIABLES)} must be set together. Received: an environment without "
            f"{', '.join(missing)}."
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
    """Serves an oracle to workers at "IP:PORT", as a context manager."""

    def __init__(self, oracle: Any, address: str) -> None:
        self.oracle = oracle
        self.servicer = _Servicer(oracle)
        # KerasTuner's lock is held by a thread's name: one thread serves all workers.
        pool = futures.ThreadPoolExecutor(max_workers=1)
        # Without the option, two chiefs could share a port.
        self.server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        protos.get_service_grpc().add_OracleServicer_to_server(self.servicer, self.server)
        try:
            self.server.add_insecure_port(address)
        except RuntimeError:
            raise OSError(
                f"{' and '.join(VARIABLES[1:])} must be a free address of this machine. Received: "
                f"{address}. Choose another port."
            ) from None

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.server.stop(grace=1.0).wait()


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
                f"No worker has been heard from for {SILENCE_SECONDS / 60:.0f} minutes, and "
                "trials are left. Check the workers, then resume the search with --resume."
            )
