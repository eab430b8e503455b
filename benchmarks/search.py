"""Kills the processes of a search and compares the result with a search left alone; its memory.

Usage: python benchmarks/search.py kills [--trials 12] [--folder FOLDER]
       python benchmarks/search.py memory [--trials 50] [--folder FOLDER]

`kills` searches `dual_lstm` on the embedded corpus three times: with one worker; with two; and
with two, where SIGKILL ends one worker half-way and then the chief, with all its processes, and
the search is resumed. It prints the wall time of each search and any loss: trials that are
missing, not completed or run twice, epochs that are missing or repeated, and perplexities that
differ from those of the first search in any bit. `memory` prints the resident memory of the
searching process after every five of many tiny trials. The exit code is 1 after a loss, or if
memory grew by more than a tenth. Linux only.
"""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOB = """
model = "dual_lstm"
max_trials = {trials}
early_stopping = "none"  # pruning depends on the order in which trials end
[fixed]
units = {units}
epochs = {epochs}
[space]
learning_rate = {{ min_value = 1e-4, max_value = 1e-2, sampling = "log" }}
input_dropout = {{ min_value = 0.0, max_value = 0.5 }}
output_dropout = {{ min_value = 0.0, max_value = 0.5 }}
connection = ["plain", "dual"]
dual_output_dropout = {{ min_value = 0.0, max_value = 0.5, when = {{ connection = ["dual"] }} }}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("kills", "memory"))
    parser.add_argument("--trials", type=int)
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="dualnet-search-"))
    folder.mkdir(parents=True, exist_ok=True)
    return {"kills": kills, "memory": memory}[options.part](folder, options.trials)


def kills(folder, trials):
    job = write_job(folder, trials or 12, units=64, epochs=4)
    began = time.monotonic()
    wait(begin(job, folder / "one"))
    one = time.monotonic() - began
    print(f"one worker: {one:.0f} s", flush=True)
    began = time.monotonic()
    wait(begin(job, folder / "two", "--workers", "2"))
    two = time.monotonic() - began
    print(f"two workers: {two:.0f} s, {one / two:.2f} times as fast", flush=True)
    began = time.monotonic()
    killed = folder / "killed"
    chief = begin(job, killed, "--workers", "2")
    count = trials or 12
    until(lambda: ended(killed) >= count // 2, chief)
    worker = next(pid for pid in children(chief.pid) if "tuning.worker_process" in command(pid))
    os.kill(worker, signal.SIGKILL)
    print(f"a worker killed after {ended(killed)} trials", flush=True)
    until(lambda: ended(killed) >= count * 2 // 3, chief)
    os.kill(chief.pid, signal.SIGKILL)
    chief.wait()
    time.sleep(5)
    left = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
            if str(killed) in command(pid)]  # fmt: skip
    print(f"the chief killed after {ended(killed)} trials; processes left: {len(left)}", flush=True)
    wait(begin(job, killed, "--workers", "2", "--resume"))
    print(f"two workers, with both kills: {time.monotonic() - began:.0f} s", flush=True)
    lost = [f"{len(left)} processes were left"] if left else []
    for name in ("two", "killed"):
        lost += [f"{name}: {what}" for what in compare(folder / "one", folder / name, count)]
    print("\n".join(lost) or f"nothing lost: {count} trials in each, equal bit for bit")
    return 1 if lost else 0


def compare(reference, folder, count):
    """Return the differences between two searches of `count` trials."""
    state = json.loads((folder / "search" / "oracle.json").read_text())
    lost = []
    for key in ("start_order", "end_order"):
        if sorted(state[key]) != sorted(set(state[key])) or len(state[key]) != count:
            lost.append(f"{key} is {state[key]}")
    before, after = rows(reference / "trials.csv"), rows(folder / "trials.csv")
    if len(after) != count:
        lost.append(f"{len(after)} trials")
    for one, other in zip(before, after):
        different = [key for key in one if key != "seconds" and one[key] != other[key]]
        if different or other["status"] != "completed":
            lost.append(f"trial {other['trial']} ({other['status']}) differs in {different}")
        history = rows(folder / "trials" / other["trial"] / "run" / "metrics.csv")
        epochs = [int(float(row["epoch"])) for row in history]
        if epochs != list(range(1, int(other["epochs"]) + 1)):
            lost.append(f"trial {other['trial']} has the epochs {epochs}")
    return lost


def memory(folder, trials):
    trials = trials or 50
    job = write_job(folder, trials, units=4, epochs=1)
    (folder / "text").mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        (folder / "text" / f"{split}.txt").write_text("the cat sees the dog\n" * 40)
    settings = ("--set", "batch_size=4", "sequence_length=9")
    process = begin(job, folder / "memory", *settings, corpus=str(folder / "text"))
    sizes = {}
    while process.poll() is None:
        count = ended(folder / "memory")
        if count and count % 5 == 0:
            sizes[count] = resident(process.pid) or sizes.get(count)
        time.sleep(0.2)
    wait(process)
    for count, size in sizes.items():
        print(f"after {count:3} trials: {size / 2**20:.1f} MiB")
    growth = sizes[max(sizes)] / sizes[5] - 1
    print(f"growth from trial 5 to trial {max(sizes)}: {growth:.1%}")
    return 1 if growth > 0.1 else 0


def write_job(folder, trials, *, units, epochs):
    path = folder / "job.toml"
    path.write_text(JOB.format(trials=trials, units=units, epochs=epochs))
    return path


def begin(job, output, *arguments, corpus="python-reference"):
    command = [sys.executable, "-m", "dualnet", "tune", str(job), "--corpus", corpus, "--output",
               str(output), *arguments]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def wait(process):
    if process.wait() != 0:
        raise SystemExit(f"The search failed with exit code {process.returncode}.")


def until(reached, process):
    while not reached():
        if process.poll() is not None:
            raise SystemExit("The search ended before it could be killed.")
        time.sleep(0.2)


def ended(folder):
    return len(list(folder.glob("trials/*/outcome.json")))


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def resident(pid):
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return None


if __name__ == "__main__":
    sys.exit(main())
