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

import dataclasses
import datetime
from pathlib import Path

from options import options_of
from parts import median_and_spread, take_turns
from peers.cases import CASES, described, tiny
from peers.products import parameters
from peers.report import commit, processor, threads

BEAMS = (5, 1)
TOKENS = 20  # of a translation


def main() -> None:
    options = options_of(__doc__, sentences=256, repeats=7, beside=Path, output=Path, quick=False)
    case = tiny(CASES["encdec"]) if options.quick else CASES["encdec"]
    sentences = 8 if options.quick else options.sentences
    about = {**described(dataclasses.replace(case, tokens=TOKENS)), "sentences": sentences}
    one_thread = {"TF_NUM_INTEROP_THREADS": "1"}
    libraries = {"dualnet-tensorflow": ("dualnet-search", "tensorflow", one_thread)}
    if options.beside:
        path = {"PYTHONPATH": str(options.beside.resolve())}
        libraries["dualnet-beside"] = ("dualnet-search", "tensorflow", one_thread | path)
    libraries["torch"] = ("torch-search", "", {})
    kinds, messages = {}, {}
    for library, kind in libraries.items():
        for beam in BEAMS:
            kinds[f"{library}, beam {beam}"] = kind
            messages[f"{library}, beam {beam}"] = {"case": {**about, "beam": beam}, "setting": {}}
    started, answers = take_turns(kinds, messages, options.repeats)
    versions = {}
    for name, found in started.items():
        versions |= found["versions"]
        if found["parameters"] != parameters(about["config"]):
            raise SystemExit(f"{name}: {found['parameters']:,} weights, not the model's")
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
    for name, own in answers.items():
        median, spread = median_and_spread(own)
        cores, _ = median_and_spread(own, "cores")
        start, tokens = started[name]["start_seconds"], started[name]["first_loss"]
        lines.append(
            f"{name:28} {median:9.3f} {spread:7.3f} {sentences / median:12.1f} {cores:6.2f} "
            f"{start - median:7.1f} {tokens:7.1f}"
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
