"""Workers and processes that end otherwise than they should: given up, restarted or refused."""

import re
import socket
import subprocess
import sys
import time

import pytest

from dualnet import tuning
from dualnet.tuning import load_job
from dualnet.tuning.engine import chief as chiefs
from dualnet.tuning.engine import processes
from dualnet.tuning.engine.oracles import make_oracle
from dualnet.tuning.trial import DISK_FULL, STOPPED, read_outcome
from tests.checks import once
from tests.searches import write_job

pytestmark = once


def test_a_port_in_use_is_refused_with_a_way_out(corpus, tmp_path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for name, value in zip(chiefs.VARIABLES, ("chief", "127.0.0.1", port)):
            monkeypatch.setenv(name, value)
        with pytest.raises(OSError, match="must be a free address"):
            tuning.search(write_job(tmp_path), corpus, output=tmp_path / "DIR", progress=False)


def test_a_worker_that_falls_silent_is_given_up(tmp_path, monkeypatch):
    oracle = make_oracle(load_job(write_job(tmp_path)), epochs=2)
    oracle._set_project_dir(str(tmp_path), "search")
    monkeypatch.setattr(chiefs, "SILENCE_SECONDS", 0.0)
    chief = chiefs.Chief(oracle, "127.0.0.1:0")
    given = oracle.create_trial("another")
    chief.servicer.has_heard = True
    with pytest.raises(ConnectionError, match="resume the search with --resume"):
        chief.servicer.last_heard["another"] = time.monotonic() - 1
        chiefs.serve(chief, lambda: False)
    assert oracle.retries == [given.trial_id] and oracle.tuner_ids == set()
    again = oracle.create_trial("a third")
    assert again.trial_id == given.trial_id
    chief.server.stop(None)


def ending_with(monkeypatch, code):
    """Let each process run `code` instead of its program; return the list of their programs."""
    calls = []

    def start(words, log, **environment):
        calls.append(words)
        return subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=log, stderr=log
        )

    monkeypatch.setattr(processes, "start", start)
    return calls


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os.kill(os.getpid(), 9)", "with code -9, 3 times. It may need more memory"),
        (f"raise SystemExit({STOPPED})", f"with code {STOPPED}, 3 times."),  # it alone
    ],
)
def test_a_trial_whose_process_keeps_ending_has_failed(tmp_path, monkeypatch, code, how):
    calls = ending_with(monkeypatch, code)
    outcome = processes.run_task(tmp_path, lambda: False)
    assert outcome.status == "failed" and how in outcome.message
    assert str(tmp_path / "log.txt") in outcome.message and len(calls) == processes.ATTEMPTS
    assert read_outcome(tmp_path) == outcome  # which the reports read


def test_a_process_that_meets_a_full_disk_ends_the_search(tmp_path, monkeypatch):
    calls = ending_with(monkeypatch, f"raise SystemExit({DISK_FULL})")
    message = re.escape(f"{str(tmp_path)!r} could not be written (No space left on device)")
    with pytest.raises(OSError, match=message):
        processes.run_task(tmp_path, lambda: False)
    assert len(calls) == 1


def test_a_process_that_does_not_listen_ends_by_force(tmp_path, monkeypatch):
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    code += "; time.sleep(600)"
    ending_with(monkeypatch, code)
    monkeypatch.setattr(processes, "PATIENCE_SECONDS", 0.1)
    log = tmp_path / "log.txt"
    with pytest.raises(KeyboardInterrupt):
        processes.run_task(tmp_path, lambda: log.read_text() == "1\n")
