"""No peer of the benchmarks is held back: workers use all cores."""

import os
import sys
from pathlib import Path

import keras
import pytest

from tests.checks import once

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")
CORES = len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else os.cpu_count()

pytestmark = [once, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")]


@pytest.mark.slow
def test_a_worker_uses_every_core_whatever_the_variables_of_its_parent_say(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from peers.worker import Worker

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        monkeypatch.setenv(name, "1")
    worker = Worker("products", keras.config.backend())
    try:
        message = {"product": [2000, 2000, 2000], "precision": "float32", "form": "plain"}
        answers = [worker.ask(300.0, **message) for _ in range(3)]
    finally:
        worker.close()
    assert max(answer["threads"] for answer in answers) >= CORES
    assert all(0 < answer["cores"] < CORES + 0.5 for answer in answers)
