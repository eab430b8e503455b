"""How many tokens do dualnet and PyTorch generate in a second, and how long does a step take?

Usage: python benchmarks/generation.py [--model dual_lstm.wikitext-2] [--repeats 9] [--output FILE]

The shipped model continues one prompt by 128 tokens, and 64 prompts by 32: drawn, greedily, and by
a beam search with 5 hypotheses, which ends when no text can be likelier. `draw one` calls the
compiled step for each token, and `top-k` draws from the 40 likeliest tokens. dualnet on TensorFlow
and on JAX, and PyTorch with the same weights, take turns, each in a process of its own. PyTorch is
the fastest of a step written by hand and `nn.LSTMCell`, each with the output matrix as it is and
transposed, with one thread and with all, in inference mode. Then a step of the SavedModel, ONNX
Runtime and LiteRT, beside PyTorch and ONNX Runtime of its export. Printed: the median tokens per
second, and the median of the ratios to PyTorch of the same round with its quartiles.
"""

from __future__ import annotations

import datetime
import os
import tempfile
from pathlib import Path

import numpy as np
from options import options_of
from peers.generation_work import TOKENS, WEIGHTS
from peers.report import commit, processor, threads
from peers.worker import Worker

SECONDS = 600  # for an answer
GENERATED = ("draw", "draw one", "top-k", "greedy", "beam")


def main() -> None:
    options = options_of(
        __doc__, model="dual_lstm.wikitext-2", repeats=9, output=Path,
    )  # fmt: skip
    before = os.getloadavg()[0]
    kinds = {
        "tensorflow": ("tensorflow", {"TF_NUM_INTEROP_THREADS": "1"}),
        "jax": ("jax", {}),
        "torch": ("", {}),
        "runtimes": ("tensorflow", {"TF_NUM_INTEROP_THREADS": "1"}),
    }
    workers, about = {}, {}
    measured: dict[tuple[str, int, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for library, (backend, environment) in kinds.items():
                workers[library] = Worker("generation", backend, environment)
                about[library] = workers[library].ask(
                    SECONDS, library=library, model=options.model, folder=folder
                )
                if library == "tensorflow":
                    np.save(Path(folder) / "prompt.npy", about[library]["ids"])
                    assert (Path(folder) / WEIGHTS).exists()
            agree(workers, about)
            for turn in range(options.repeats + 1):
                for batch in TOKENS:
                    for form in GENERATED:
                        for library in ("tensorflow", "jax", "torch"):
                            answer = workers[library].ask(
                                SECONDS, form=form, batch=batch, turn=turn
                            )
                            if turn:
                                measured.setdefault((form, batch, library), []).append(
                                    answer["seconds"]
                                )
                    for library, form in [
                        ("torch", "step"), *(("runtimes", f) for f in about["runtimes"]["forms"])
                    ]:  # fmt: skip
                        answer = workers[library].ask(SECONDS, form=form, batch=batch, turn=turn)
                        if turn:
                            name = "torch" if library == "torch" else form
                            measured.setdefault(("step", batch, name), []).append(answer["seconds"])
        finally:
            for worker in workers.values():
                worker.close()
    versions = {k: v for each in about.values() for k, v in each["versions"].items()}
    told = " ".join(f"{k} {v}" for k, v in sorted(versions.items()) if k not in ("backend",))
    lines = [
        f"{datetime.date.today()}, {options.model}; dualnet at {commit()}; median of "
        f"{options.repeats} rounds",
        f"{processor()}, {threads()} threads; load {before:.1f} before and {os.getloadavg()[0]:.1f}"
        f" after; {told}",
        "",
        f"{'form':8} {'batch':>5} {'by':32} {'tokens/s':>9} {'x PyTorch':>10} {'quartiles':>12}",
    ]
    for (form, batch, name), seconds in measured.items():
        ratios = np.array(measured[form, batch, "torch"]) / np.array(seconds)
        low, median, high = np.percentile(ratios, [25, 50, 75])
        lines.append(
            f"{form:8} {batch:5} {name.removeprefix('step, '):32} {1 / np.median(seconds):9.0f} "
            f"{median:10.2f} {f'{low:.2f}-{high:.2f}':>12}"
        )
    print("\n".join(lines))
    if options.output:
        options.output.write_text("\n".join(lines) + "\n", "utf-8")


def agree(workers: dict[str, Worker], about: dict[str, dict]) -> None:
    """Exit unless all libraries generate the same text greedily, and so have the same weights."""
    answers = {
        library: workers[library].ask(SECONDS, form="greedy", batch=64, turn=0)["text"]
        for library in ("tensorflow", "jax", "torch")
    }
    words = about["tensorflow"]["words"]
    if answers["tensorflow"] != answers["jax"]:
        raise SystemExit(f"TensorFlow and JAX differ: {answers}")
    # Units are told without the white space between them.
    drawn = "".join(words[int(i)] for i in answers["torch"].split()).replace("<eos>", "")
    text = "".join(answers["tensorflow"].removeprefix("The").split())
    if text != "".join(drawn.split()):
        raise SystemExit(f"PyTorch differs: {text!r}, not {drawn!r}")


if __name__ == "__main__":
    main()
