"""How many sentences does a beam search translate in a second, in dualnet and in PyTorch?

Usage: python benchmarks/beam.py [--sentences 256] [--repeats 7] [--beside CHECKOUT] [--quick]
       [--output FILE]

The translator is `encdec` with 256 units and 4,000 words, its weights random; sources have 6 to 22
tokens, translations 20. dualnet's `translate`, from text to text, and a search in PyTorch, from ids
to ids, take turns, each in a process of its own, with a beam of 5 and greedily. Printed: the median
seconds of all sentences, with their interquartile range; sentences per second; and the seconds of
the first turn, which compiles, less that median. With `--beside` dualnet runs a second time, with
that of another checkout. With `--quick` sizes are tiny and say nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import time
from pathlib import Path

import numpy as np
from peers.cases import CASES, described, tiny
from peers.products import parameters
from peers.report import commit, processor, threads
from peers.worker import Worker

BEAMS = (5, 1)
TOKENS = 20  # of a translation
SECONDS = 600.0  # the longest that a turn may take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another dualnet")
    parser.add_argument("--output", type=Path, help="a file for the table")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    options = parser.parse_args()
    case = tiny(CASES["encdec"]) if options.quick else CASES["encdec"]
    sentences = 8 if options.quick else options.sentences
    about = {**described(dataclasses.replace(case, tokens=TOKENS)), "sentences": sentences}
    one_thread = {"TF_NUM_INTEROP_THREADS": "1"}
    kinds = {"dualnet-tensorflow": ("dualnet-search", "tensorflow", one_thread)}
    if options.beside:
        path = {"PYTHONPATH": str(options.beside.resolve())}
        kinds["dualnet-beside"] = ("dualnet-search", "tensorflow", one_thread | path)
    kinds["torch"] = ("torch-search", "", {})
    seconds: dict[str, list[float]] = {}
    cores: dict[str, list[float]] = {}
    first, lengths, versions, workers = {}, {}, {}, {}
    try:
        for name, kind in kinds.items():
            for beam in BEAMS:
                worker = workers[f"{name}, beam {beam}"] = Worker(*kind)
                began = time.perf_counter()
                found = worker.ask(SECONDS, case={**about, "beam": beam}, setting={})
                first[f"{name}, beam {beam}"] = time.perf_counter() - began
                lengths[f"{name}, beam {beam}"] = found["first_loss"]
                versions |= found["versions"]
                if found["parameters"] != parameters(about["config"]):
                    raise SystemExit(f"{name}: {found['parameters']:,} weights, not the model's")
        for turn in range(options.repeats):
            for name, worker in workers.items():
                found = worker.ask(SECONDS, turn=turn)
                seconds.setdefault(name, []).append(found["seconds"])
                cores.setdefault(name, []).append(found["cores"])
    finally:
        for worker in workers.values():
            worker.close()
    versions = {key: versions[key] for key in sorted(versions.keys() - {"backend", "dualnet"})}
    told = " ".join(f"{name} {version}" for name, version in versions.items())
    config = about["config"]
    lines = [
        f"{datetime.date.today()}, {sentences} sentences of 6 to 22 tokens, {config['units']} "
        f"units, {config['vocabulary_size']:,} words; dualnet at {commit()}",
        f"{processor()}, {threads()} threads; {told}; median of {options.repeats} turns",
        "",
        f"{'setting':28} {'seconds':>9} {'iqr':>7} {'sentences/s':>12} {'cores':>6} {'start':>7} "
        f"{'tokens':>7}",
    ]
    for name, each in seconds.items():
        median, spread = np.median(each), np.subtract(*np.percentile(each, [75, 25]))
        lines.append(
            f"{name:28} {median:9.3f} {spread:7.3f} {sentences / median:12.1f} "
            f"{np.median(cores[name]):6.2f} {first[name] - median:7.1f} {lengths[name]:7.1f}"
        )
    lines += [
        "",
        "cores: how many were in use, user time over wall time;",
        "start: s until the first turn is done, less a turn: imports, weights, compilation;",
        "tokens: mean length of the translations",
    ]
    print("\n".join(lines))
    if options.output:
        options.output.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
