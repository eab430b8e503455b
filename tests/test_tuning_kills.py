"""Searches whose processes are killed, stopped or spread over machines: nothing is lost."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tensorflow as tf
from matplotlib.image import imread

from dualnet import tuning
from dualnet.tuning import load_job
from tests.checks import once
from tests.searches import epochs_of, history_of, in_this_process, rows, write_job

pytestmark = [once, pytest.mark.slow]

TOO_LONG = 300  # seconds, after which what should have happened has not


@pytest.fixture(scope="module", autouse=True)
def graphs_are_optimised():
    """As in the processes of trials, whose numbers are compared with those of this one."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def until(reached, *processes):
    """Wait until `reached` returns something true; return that."""
    end = time.monotonic() + TOO_LONG
    while time.monotonic() < end:
        if result := reached():
            return result
        assert all(process.poll() is None for process in processes), "it ended too early"
        time.sleep(0.1)
    raise AssertionError("It took too long.")


def begin(job, output, *arguments, **environment):
    """Begin the command `dualnet tune` in a process of its own."""
    command = [sys.executable, "-m", "dualnet", "tune", job, "--output", output, *arguments]
    with open(output.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE, stderr=log, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def processes_of(folder):
    """Return the processes that have `folder` in their command."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in pids if str(folder) in command_of(pid)]


def listening(pid):
    """Return the addresses, in hexadecimals, of the sockets at which a process listens."""
    sockets = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.append(os.readlink(file))
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in sockets:
                addresses.append(cells[1].partition(":")[0])
    return addresses


def begun(folder, epochs=1):
    """Return the trials under way that have some epochs, by their names."""
    trials = [
        path for path in sorted(folder.glob("trials/*")) if (path / "run/metrics.csv").exists()
    ]
    return [
        path.name
        for path in trials
        if len(epochs_of(path)) >= epochs and not (path / "outcome.json").exists()
    ]


def state_of(folder):
    return json.loads((folder / "search" / "oracle.json").read_text())


@pytest.fixture(scope="module")
def killed(folder, tmp_path_factory):
    """A search of which a trial was killed, then the search, and which then went on."""
    path = tmp_path_factory.mktemp("killed")
    output = path / "DIR"
    job = write_job(path, batch_size=4, max_trials=2, epochs=10)
    options = ("--corpus", folder, "--workers", 2, "--checkpoint-steps", 5, "--json", "--quiet")
    noted = {"folder": output}
    search = begin(job, output, *options)
    try:
        first = until(lambda: begun(output), search)[0]
        noted["at a time"] = len(until(lambda: processes_of(output / "trials")[1:], search)) + 1
        noted["listening"] = listening(search.pid)
        (trial,) = processes_of(output / "trials" / first)
        os.kill(trial, signal.SIGKILL)
        noted["first"] = first
        before = rows(output / "trials" / first / "run/metrics.csv")
        noted["before the trial's death"] = before
        until(lambda: first in begun(output, len(before) + 2), search)
        os.kill(search.pid, signal.SIGKILL)
        with search:  # closes its pipe
            search.wait(TOO_LONG)
        noted["before the search's death"] = {
            name: rows(output / "trials" / name / "run/metrics.csv") for name in begun(output)
        }
        until(lambda: not processes_of(output))
        noted["started"] = state_of(output)["start_order"]
        search = begin(job, output, *options, "--resume")
        noted["out"], _ = search.communicate(timeout=TOO_LONG)
        noted["code"] = search.returncode
        noted["err"] = output.with_suffix(".log").read_text()
        until(lambda: not processes_of(output))
    finally:
        search.kill()
        search.stdout.close()
        search.wait()
        for pid in processes_of(output):
            os.kill(pid, signal.SIGKILL)
    return noted


def test_a_search_goes_on_after_kills_with_nothing_lost_and_nothing_twice(killed):
    assert killed["code"] == 0, killed["err"]
    state = state_of(killed["folder"])
    assert sorted(state["start_order"]) == sorted(state["end_order"]) == ["0", "1"]
    table = rows(killed["folder"] / "trials.csv")
    assert [row["status"] for row in table] == ["completed"] * 2
    assert [row["epochs"] for row in table] == ["10"] * 2
    for row in table:
        assert epochs_of(killed["folder"] / "trials" / row["trial"]) == list(range(1, 11))


def test_a_killed_trial_goes_on_from_its_checkpoint(killed):
    """Its epochs are those that it had, with the time that they took then."""
    trials = killed["folder"] / "trials"
    before = killed["before the trial's death"]
    assert rows(trials / killed["first"] / "run/metrics.csv")[: len(before)] == before
    assert killed["first"] in killed["before the search's death"]
    for name, had in killed["before the search's death"].items():
        assert rows(trials / name / "run/metrics.csv")[: len(had)] == had


def test_workers_run_trials_side_by_side_without_a_port(killed):
    assert killed["at a time"] == 2 and killed["listening"] == []


def test_standard_output_holds_the_results_alone(killed):
    results = json.loads(killed["out"])
    assert results == json.loads((killed["folder"] / "results.json").read_text())
    assert results["trials"] == {"completed": 2} and results["seed"] == 3
    table = rows(killed["folder"] / "trials.csv")
    least = min(table, key=lambda row: float(row["val_perplexity"]))
    assert results["best"]["trial"] == least["trial"]
    assert f"{results['best']['val_perplexity']}" == least["val_perplexity"]
    assert imread(killed["folder"] / "search.png").shape[0] > 100
    assert (killed["folder"] / "best.toml").is_file()


def test_what_was_killed_is_what_was_left_alone(killed, corpus, tmp_path):
    job = load_job(killed["folder"] / "job.toml")
    with in_this_process():
        tuning.search(job, corpus, output=tmp_path / "DIR", max_trials=1, progress=False)
    assert history_of(tmp_path / "DIR/trials/0") == history_of(killed["folder"] / "trials/0")


# --- stopped


def test_ctrl_c_saves_the_trials_and_says_how_to_go_on(folder, tmp_path, cli):
    output = tmp_path / "DIR"
    job = write_job(tmp_path, batch_size=4, max_trials=1, epochs=10)
    tune = f"tune {job} --corpus {folder} --output {output}"

    def stop():
        try:
            until(lambda: begun(output, 2))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        code, _, err = cli.call(tune)
    finally:
        thread.join(TOO_LONG)
    message = "0 trials completed and 1 begun. Continue with the same command and --resume."
    assert code == 2 and message in err
    assert processes_of(output) == []
    (row,) = rows(output / "trials.csv")
    assert row["status"] == "unfinished" and not (output / "results.json").exists()
    before = rows(output / "trials/0/run/metrics.csv")
    assert 2 <= len(before) < 10
    with in_this_process():
        told = cli(f"{tune} --resume")
    assert told.startswith("small: 1 completed\nbest: trial 0, validation perplexity ")
    assert "\n  learning_rate = 0." in told and f"Saved in {output}" in told
    assert rows(output / "trials/0/run/metrics.csv")[: len(before)] == before
    assert epochs_of(output / "trials/0") == list(range(1, 11))


# --- several machines


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def test_a_worker_of_another_machine_runs_the_trial_of_a_chief(
    folder, corpus, tmp_path, monkeypatch
):
    output = tmp_path / "DIR"
    job = write_job(tmp_path, batch_size=4, max_trials=1, epochs=1)
    address = {"KERASTUNER_ORACLE_IP": "127.0.0.1", "KERASTUNER_ORACLE_PORT": free_port()}
    for name, value in {**address, "KERASTUNER_TUNER_ID": "chief"}.items():
        monkeypatch.setenv(name, value)
    worker = begin(
        job, output, "--corpus", folder, "--json", **address, KERASTUNER_TUNER_ID="another"
    )
    timer = threading.Timer(TOO_LONG, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        tuner = tuning.search(job, str(folder), output=output, progress=False)
        out, _ = worker.communicate(timeout=TOO_LONG)
    finally:
        timer.cancel()
        worker.kill()
        worker.stdout.close()
        worker.wait()
    assert worker.returncode == 0 and json.loads(out) == {"worker": "another"}
    assert len(tuner.get_best_hyperparameters(9)) == 1
    for name in address:
        monkeypatch.delenv(name)
    monkeypatch.delenv("KERASTUNER_TUNER_ID")
    with in_this_process():
        tuning.search(job, corpus, output=tmp_path / "alone", progress=False)
    assert history_of(tmp_path / "alone/trials/0") == history_of(output / "trials/0")
