"""No peer of the benchmarks is held back: workers use all cores, and no unfair ratio is printed."""

import os
import sys
from pathlib import Path

import keras
import pytest

from tests.checks import once

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")
CORES = len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else os.cpu_count()

pytestmark = [once, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")]


@pytest.fixture
def peers(monkeypatch):
    """The modules of the benchmarks, as their scripts import them."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import speed
    from peers import cases, report, worker

    return {"speed": speed, "cases": cases, "report": report, "worker": worker}


@pytest.mark.slow
def test_a_worker_uses_every_core_whatever_the_variables_of_its_parent_say(monkeypatch, peers):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        monkeypatch.setenv(name, "1")
    worker = peers["worker"].Worker("products", keras.config.backend())
    try:
        message = {"product": [2000, 2000, 2000], "precision": "float32", "form": "plain"}
        answers = [worker.ask(300.0, **message) for _ in range(3)]
    finally:
        worker.close()
    assert max(answer["threads"] for answer in answers) >= CORES
    assert all(0 < answer["cores"] < CORES + 0.5 for answer in answers)


@pytest.mark.parametrize(
    ("own", "peer", "printed"),
    [(1.9, 1.8, True), (1.9, 1.0, False), (1.0, 1.0, True), (1.2, 1.9, True), (1.5, 1.49, False)],
)
def test_no_ratio_is_printed_against_a_peer_that_was_held_back(
    monkeypatch, peers, own, peer, printed
):
    speed, report = peers["speed"], peers["report"]
    monkeypatch.setattr(report, "threads", lambda: 2)
    facts = {"rows": 32, "import_mb": 1.0, "first_loss": 1.0, "start_seconds": 1.0, "notes": []}
    measured = [
        speed.Measured(
            peers["cases"].Setting(f"{library}-x-float32", library, "float32"),
            seconds=[seconds] * 7, core_use=[cores] * 7, threads=2, peak_mb=100.0, facts=facts,
        )
        for library, seconds, cores in (("dualnet", 1.0, own), ("torch", 2.0, peer))
    ]  # fmt: skip
    told = "\n".join(report.ratios(measured))
    assert ("2.00 x as fast" in told) is printed
    assert (f"torch-x-float32 used {peer:.2f} of 2 cores" in told) is not printed
    limits = {("float32", 32): speed.Limit(1, 1.0, 1.0, 1.0, [])}
    rows = report.rows(peers["cases"].CASES["lstm"], measured, limits, 7)
    assert [row["ratio"] for row in rows] == ["1.00", "2.00" if printed else ""]
    assert [row["cores"] for row in rows] == [f"{own:.2f}", f"{peer:.2f}"]
