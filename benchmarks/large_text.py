"""Measures the time and memory that reading a large text and training on it take.

Usage: python benchmarks/large_text.py [--gigabytes 1] [--steps 1000] [--folder FOLDER]
       python benchmarks/large_text.py --score FILE [--run RUN] [--workers 1 2] [--suffix jsonl]
Generates a text of 50,000 made-up words, runs each part of the work in a process of its own, and
prints one table. "processor" is the time that all cores together took for the part, its imports
included. Fails if the peak memory of a part exceeds 1 GB.

With --score, a RUN scores FILE instead, in one process and in two, each of which has a shard of its
own; "processor" and "peak MB" are those of the process that has most.
"""

import functools
import json
import math
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import numpy as np
from options import options_of
from peers.worker import memory

NUM_WORDS, VOCABULARY_SIZE = 50_000, 10_000
BATCH_SIZE, SEQUENCE_LENGTH = 20, 35  # small logits, 28 MB: this measures the text
SHARES = {"train": 0.98, "valid": 0.01, "test": 0.01}
BLOCK_WORDS = 1 << 20
LIMIT_MB = 1000
FILE = "tokenizer.json"


def write_text(folder: Path, num_bytes: int) -> None:
    """Write the three splits; word number r has a probability of about 1 / r."""
    random = np.random.default_rng(1)
    words: dict[str, None] = {}  # frequent words are short, as in a language
    while len(words) < NUM_WORDS:
        length = 2 + int(np.log2(len(words) + 1) / 2)
        words["".join(map(chr, random.integers(ord("a"), ord("z") + 1, size=length)))] = None
    listed = np.array(list(words), dtype=object)
    for split, share in SHARES.items():
        missing = int(share * num_bytes)
        with open(folder / f"{split}.txt", "wb") as file:
            while missing > 0:
                ranks = (NUM_WORDS ** random.random(BLOCK_WORDS)).astype(int) - 1
                drawn = listed[ranks]
                drawn[::20] = "\n"
                missing -= file.write((" ".join(drawn)[:missing] + "\n").encode())


# Each part yields before and after what is measured; the second time how much it did, in a unit,
# and a note.


def imports(folder, steps):
    yield
    import keras

    keras.ops.zeros(1)
    yield 0, "", "dualnet, Keras and its backend"


def versions():
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    packages = [f"{name} {metadata.version(name)}" for name in ("keras", backend, "numpy")]
    return " ".join([f"python {platform.python_version()}", *packages])


def read(folder, steps, **settings):
    from dualnet import corpora

    yield
    corpus = corpora.load(folder, **(settings or {"vocabulary_size": VOCABULARY_SIZE}))
    assert "keras" not in sys.modules
    size = sum(path.stat().st_size for path in folder.glob("*.txt"))
    yield size / 1e6, "MB/s", repr(corpus)


def learn(folder, steps):
    from dualnet.text import plain_text, train_tokenizer

    yield
    blocks = plain_text.blocks(folder / "train.txt")
    tokenizer = train_tokenizer(blocks, "bpe", size=8000)
    yield (folder / "train.txt").stat().st_size / 1e6, "MB/s", repr(tokenizer)
    tokenizer.save(folder / FILE)


def batches(folder, steps):
    from dualnet import corpora

    corpus = corpora.load(folder, vocabulary_size=VOCABULARY_SIZE)
    all_batches = corpus.batches("train", batch_size=BATCH_SIZE, sequence_length=SEQUENCE_LENGTH)
    yield
    predicted = sum(targets.size for _, targets in all_batches)
    assert predicted == all_batches.num_tokens
    yield predicted, "tokens/s", f"{len(all_batches)} batches"


def train(folder, steps):
    import keras

    from dualnet import corpora, zoo

    class Spread(keras.utils.PyDataset):
        """`steps` batches of equal length, spread over the whole text."""

        def __len__(self):
            return steps

        def __getitem__(self, index):
            return every[1 + index * (len(every) - 2) // max(steps - 1, 1)]

    keras.utils.set_random_seed(0)
    corpus = corpora.load(folder, vocabulary_size=VOCABULARY_SIZE)
    every = corpus.batches("train", batch_size=BATCH_SIZE, sequence_length=SEQUENCE_LENGTH)
    model = zoo.build("lstm", vocabulary_size=len(corpus.vocabulary), units=64)
    model.compile(optimizer="adam")
    yield
    history = model.fit(Spread(), epochs=1, verbose=0).history
    note = f"{steps} steps over the whole text, loss {history['loss'][0]:.3f}"
    yield steps * BATCH_SIZE * SEQUENCE_LENGTH, "tokens/s", note


PARTS = {
    "imports": imports,
    "load, first": read,
    "load, again": read,
    "load as bytes": functools.partial(read, tokenizer="bytes"),
    "learn bpe:8000": learn,
    "load with it, first": lambda folder, steps: read(folder, steps, tokenizer=folder / FILE),
    "load with it, again": lambda folder, steps: read(folder, steps, tokenizer=folder / FILE),
    "all batches, no model": batches,
    "train": train,
}


def measured(name, folder, steps):
    """Return the row of a part of the work, and the peak memory of this process, which does it."""
    part = PARTS[name](folder, steps)
    next(part)
    began = time.perf_counter()
    amount, unit, note = next(part)
    seconds = time.perf_counter() - began
    next(part, None)  # what comes after it
    peak = memory("VmHWM") * 1.048576
    return (f"{name:<22}{seconds:>8.1f}{time.process_time():>10.1f}{amount / seconds:>12,.0f} "
            f"{unit:<9}{peak:>8.0f}  {note}"), peak  # fmt: skip


def score(options):
    """Score a text with so many processes as asked for, and print a row for each number."""
    size = options.score.stat().st_size / 1e6
    print(f"{size:.1f} MB of text by {options.run}; {os.cpu_count()} cores, {versions()}")
    print(f"{'workers':<8}{'seconds':>8}{'processor':>10}{'tokens':>13}{'tokens/s':>10}"
          f"{'perplexity':>11}{'peak MB':>8}{'output MB':>10}", flush=True)  # fmt: skip
    for workers in options.workers:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            began = time.perf_counter()
            processes = []
            for i in range(1, workers + 1):
                command = [sys.executable, "-m", "dualnet", "score", options.run, options.score]
                command += ["--shard", f"{i}/{workers}", "--json"]
                command += ["--output", f"{folder}/{i}.{options.suffix}"]
                processes.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            totals = [json.loads(process.stdout.read()) for process in processes]
            used = [os.wait4(process.pid, 0)[2] for process in processes]
            seconds = time.perf_counter() - began
            written = sum(each.stat().st_size for each in Path(folder).rglob("*") if each.is_file())
        tokens = sum(each["tokens"] for each in totals)
        perplexity = math.exp(-sum(each["log_probability"] for each in totals) / tokens)
        processor = max(each.ru_utime + each.ru_stime for each in used)
        peak = max(each.ru_maxrss for each in used) * 1024 / 1e6
        speed = f"{tokens:>13,}{tokens / seconds:>10,.0f}{perplexity:>11.4f}"
        memory_used = f"{peak:>8.0f}{written / 1e6:>10.1f}"
        print(f"{workers:<8}{seconds:>8.1f}{processor:>10.1f}{speed}{memory_used}", flush=True)


def main():
    options = options_of(
        __doc__, gigabytes=1.0, steps=1000, folder=Path, score=Path, run="dual_lstm.wikitext-2",
        workers=[1, 2], suffix="jsonl",
    )  # fmt: skip
    if options.score:
        options.workers = [*map(int, options.workers)]
        score(options)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        text = Path(folder) / "text"
        text.mkdir()
        write_text(text, int(options.gigabytes * 1e9))
        size = sum(path.stat().st_size for path in text.iterdir())
        print(f"{size / 1e9:.2f} GB of text, {NUM_WORDS:,} different words, one run each; ", end="")
        print(f"{os.cpu_count()} cores, {platform.machine()}; {versions()}")
        heads = f"{'part':<22}{'seconds':>8}{'processor':>10}{'rate':>12} {'unit':<9}"
        print(f"{heads}{'peak MB':>8}  note", flush=True)
        os.environ |= {"XDG_CACHE_HOME": folder, "TF_CPP_MIN_LOG_LEVEL": "3"}
        peaks = {}
        for part in PARTS:
            with multiprocessing.get_context("spawn").Pool(1) as process:
                row, peaks[part] = process.apply(measured, (part, text, options.steps))
            print(row, flush=True)
    worst = max(peaks, key=lambda part: peaks[part])
    if peaks[worst] > LIMIT_MB:
        raise SystemExit(f"{worst!r} took {peaks[worst]:.0f} MB, more than {LIMIT_MB} MB")


if __name__ == "__main__":
    main()
