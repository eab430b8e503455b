"""A worker: one setting of one case in a process of its own, and the parent's end of it.

The parent writes one line of JSON, what is to be done, and gets one line back; in between the
worker waits and takes no time of a core. `python -m peers.worker` is started by `Worker`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
TICK = os.sysconf("SC_CLK_TCK")
# Whoever sets one of these for the parent would hold back one library and not the others.
THREAD_VARIABLES = (
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "TF_NUM_INT", "XLA_FLAGS",
)  # fmt: skip
BUSY = 0.05  # of a turn: a thread that had less of a core did no work


class WorkerError(Exception):
    """A worker could not do what it was asked for; the message says why."""


class Worker:
    """The parent's end: a process that does one setting, or measures products.

    Args:
        library: "dualnet", "torch" or "keras", or "products".
        backend: Of Keras, or what multiplies.
        environment: Variables of the process.
    """

    def __init__(self, library: str, backend: str = "", environment: dict[str, str] | None = None):
        variables = {
            key: value for key, value in os.environ.items() if not key.startswith(THREAD_VARIABLES)
        }
        path = [str(HERE), str(HERE.parent), variables.get("PYTHONPATH", "")]
        variables |= {
            "KERAS_BACKEND": backend or "torch",
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_ENABLE_ONEDNN_OPTS": "1",  # as dualnet sets it; stock Keras is faster with it, too
            "JAX_PLATFORMS": "cpu",
            "CUDA_VISIBLE_DEVICES": "",
            **(environment or {}),
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, open as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "peers.worker", library, backend],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=variables,
            cwd=HERE,  # no checkout, whose dualnet would come before that of PYTHONPATH
            bufsize=0,
        )

    def ask(self, seconds: float, **message: Any) -> dict[str, Any]:
        """Return the answer to `message`.

        Raises:
            WorkerError: if the worker says so, ends, or takes longer than `seconds`.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
        except OSError:
            raise WorkerError(self._last_words()) from None
        answer, end = b"", time.monotonic() + seconds
        while not answer.endswith(b"\n"):
            left = max(0, end - time.monotonic())
            ready, _, _ = select.select([self.process.stdout], [], [], left)
            if not ready:
                raise WorkerError(f"no answer within {seconds:.0f} s")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise WorkerError(self._last_words())
            answer += more
        found = json.loads(answer)
        if "error" in found:
            raise WorkerError(found["error"])
        return found

    def core_seconds(self) -> float:
        """Return how long the process has been on a core so far, all its threads together."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / TICK

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def _last_words(self) -> str:
        self.process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "nothing said")
        return f"ended with {self.process.returncode}: {last}"


class CoreUse:
    """How much of the cores this process uses from now on, and with how many threads."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.user = os.times().user
        self.threads = _seconds_of_threads()

    def since(self) -> dict[str, float]:
        """Return `cores`, user time over wall time, and `threads`, the number that worked."""
        wall = time.perf_counter() - self.began
        used = {
            number: seconds - self.threads.get(number, 0.0)
            for number, seconds in _seconds_of_threads().items()
        }
        return {
            "cores": (os.times().user - self.user) / wall,
            "threads": sum(seconds > BUSY * wall for seconds in used.values()),
        }


def _seconds_of_threads() -> dict[str, float]:
    """Return how long each thread of this process has been on a core."""
    seconds = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            seconds[task.name] = (int(fields[11]) + int(fields[12])) / TICK
    return seconds


def memory(key: str, file: str = "/proc/self/status") -> float:
    """Return the MiB of a line of `file`: VmHWM is the peak of this process, VmRSS what it has now.

    MemAvailable of /proc/meminfo is what no process has.
    """
    for line in Path(file).read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return float("nan")


def main() -> None:
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    library, backend = sys.argv[1:]
    served = _serve_products(backend) if library == "products" else _serve_work(library)
    next(served)
    for line in sys.stdin:
        try:
            answer = served.send(json.loads(line))
        except Exception as error:
            said = " ".join(str(error).split())
            answer = {"error": f"{type(error).__name__}: {said[:300]}"}
        channel.write(json.dumps(answer) + "\n")
        if "error" in answer:  # the generator is done
            return


def _serve_work(library: str) -> Any:
    message = yield
    began = time.perf_counter()
    if library == "dualnet":
        from peers.dualnet_work import DualnetWork as Kind
    elif library == "keras":
        from peers.keras_peer import KerasWork as Kind
    else:
        from peers.torch_peer import TorchWork as Kind
    imported = memory("VmRSS")
    work = Kind(message["case"], message["setting"])
    loss = work.warm_up()
    message = yield {
        "parameters": work.parameters,
        "first_loss": loss,
        "import_mb": imported,
        "start_seconds": time.perf_counter() - began,
        "versions": work.versions,
        "rows": work.rows,
        "notes": work.notes,
    }
    while True:
        use = CoreUse()
        seconds = work.turn()
        message = yield {"seconds": seconds, "peak_mb": memory("VmHWM"), **use.since()}


def _serve_products(backend: str) -> Any:
    from peers.products import Product, product_maker

    seconds_of = product_maker(backend)
    answer = None
    while True:
        message = yield answer
        product = Product(*message["product"])
        use = CoreUse()
        answer = {"seconds": seconds_of(product, message["precision"], message["form"])}
        answer |= use.since()


if __name__ == "__main__":
    main()
