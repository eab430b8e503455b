"""Does the memory of a searching process grow with its trials?

Usage: python benchmarks/search.py [--trials 50]
Prints the resident memory of `dualnet tune` after every five of many tiny trials; the exit code is
1 if it grew by more than a tenth. Linux only.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from options import options_of

JOB = """
model = "dual_lstm"
max_trials = {trials}
[fixed]
units = 4
epochs = 1
batch_size = 4
sequence_length = 9
[space]
learning_rate = {{ min_value = 1e-4, max_value = 1e-2, sampling = "log" }}
output_dropout = {{ min_value = 0.0, max_value = 0.5 }}
"""


def main():
    options = options_of(__doc__, trials=50)
    with tempfile.TemporaryDirectory(prefix="dualnet-search-") as name:
        sizes = search(Path(name), options.trials)
    for count, size in sizes.items():
        print(f"after {count:3} trials: {size / 1024:.1f} MiB")
    growth = sizes[max(sizes)] / sizes[min(sizes)] - 1
    print(f"growth from trial {min(sizes)} to trial {max(sizes)}: {growth:.1%}")
    sys.exit(1 if growth > 0.1 else 0)


def search(folder, trials):
    """Return the resident memory in KiB after every five trials."""
    (folder / "job.toml").write_text(JOB.format(trials=trials))
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("the cat sees the dog\n" * 40)
    corpus = ["--corpus", ".", "--min-count", "1"]
    command = ["tune", "job.toml", *corpus, "--output", "DIR", "--quiet"]
    process = subprocess.Popen([sys.executable, "-m", "dualnet", *command], cwd=folder)
    sizes = {}
    while process.poll() is None:
        count = len(list(folder.glob("DIR/trials/*/outcome.json")))
        if count and count % 5 == 0 and (size := resident(process.pid)):
            sizes[count] = size
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(f"The search failed with exit code {process.returncode}.")
    return sizes


def resident(pid):
    """Return the resident memory of a process in KiB, 0 if it has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


if __name__ == "__main__":
    main()
