"""What do few weights keep of the gain of dynamic evaluation, and how fast do learners read?

Usage: python benchmarks/learners.py [--run RUN] [--corpus CORPUS] [--genre GENRE]
       [--tokens 16000] [--adapt WEIGHTS ...] [--cache 0 ...] [--clipnorm 0] [--rule sgd]
       [--rate 0.3] [--rows 1 8 64] [--repeats 5] [--dtype-policy mixed_bfloat16] [--output FILE]

The validation text of the corpus (by default python-reference) is read with fixed weights, with a
neural cache of 500 words, its weight and scale the best of a few, and with learners of each choice
of weights by `rule`, a step every 20 tokens, at learning rates a factor of about 3 apart, from
`rate` up, or down if that is worse, until one is worse: printed are the best perplexity, its rate,
and the share of the gain in nats of all weights with the rule "sgd".
A choice is one of `adapt`, several of them joined by "+", and one of `cache`, tokens in a cache of
n-grams. With `genre`, the corpus is a folder with valid.txt, whose documents a blank line ends, and
valid.genres, a line for each: only that genre is read. Then the bytes of a learner, and
the tokens per second of so many learners side by side, each with a text of its own, beside today's
loop over all weights (`dynamic_evaluation`): median of the repeats after a warm-up, with their
interquartile range, all choices in turn; with `--repeats 0` no speeds.
"""

from __future__ import annotations

import datetime
import re
import time
from pathlib import Path

import keras
import numpy as np
from options import options_of
from peers.report import commit, processor, threads

import dualnet
from dualnet.adaptation.step_size import best_rate
from dualnet.learners import Learner, read_many

CHOICES = [
    "output_bias", "matrix:16", "matrix", "connection", "connection+output_bias",
    "connection+matrix", "recurrence", "connection+recurrence", "output",
]  # fmt: skip
LENGTH = 20
WEIGHTS, SCALES = (0.1, 0.2), (0.1, 0.3, 1.0, 2.0)  # of a neural cache


def text_of(folder: Path, genre: str) -> str:
    """Return the validation text of a genre."""
    documents = re.split(r"\n\s*\n", (folder / "valid.txt").read_text("utf-8").strip("\n"))
    genres = (folder / "valid.genres").read_text("utf-8").split()
    pairs = zip(documents, genres, strict=True)
    return "".join(f"{document}\n\n" for document, own in pairs if own == genre)


def main() -> None:
    options = options_of(
        __doc__, run="dual_lstm.wikitext-2", corpus=str, genre=str, tokens=16000, adapt=CHOICES,
        cache=[0], clipnorm=0.0, rule="sgd", rate=0.3, rows=[1, 8, 64], repeats=5,
        dtype_policy="float32", output=Path,
    )  # fmt: skip
    keras.config.set_dtype_policy(options.dtype_policy)
    model = dualnet.load(options.run)
    corpus = options.corpus or "python-reference"
    if options.genre:
        tokens = model.vocabulary.encode(text_of(Path(corpus), options.genre))
        corpus = options.genre
    else:
        tokens = dualnet.corpora.load(corpus, vocabulary=model.vocabulary).valid
    tokens = tokens[: options.tokens + 1]
    rows = [int(number) for number in options.rows]
    sizes = [int(size) for size in options.cache]
    choices = [(choice.split("+"), size) for choice in options.adapt for size in sizes]

    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    def learner(choice, rate):
        adapt, size = choice
        settings = {"rule": options.rule, "learning_rate": rate, "sequence_length": LENGTH}
        clipnorm = options.clipnorm or None
        return Learner(model, adapt, cache=size, clipnorm=clipnorm, **settings)

    def best(read, rate):
        return best_rate(lambda rate: perplexity_of(read, rate), rate)

    fixed = dualnet.perplexity(model, tokens)
    cached, *cache = min(
        (dualnet.perplexity(dualnet.with_cache(model, weight=weight, scale=scale), tokens), weight,
         scale)
        for weight in WEIGHTS
        for scale in SCALES
    )  # fmt: skip
    rate, learnt = best(lambda rate: dynamic(model, tokens, rate), 0.1)
    number = sum(np.prod(weight.shape, dtype=int) for weight in model.trainable_weights)
    say(f"{datetime.date.today()}, {options.run} on {options.tokens:,} tokens of {corpus}; "
        f"{options.rule}, a step every {LENGTH} tokens, {options.dtype_policy}; dualnet at "
        f"{commit()}")  # fmt: skip
    say(f"{processor()}, {threads()} threads\n")
    say(f"{'what learns':28} {'weights':>10} {'bytes':>10} {'rate':>6} {'perplexity':>10} "
        f"{'share':>6}")  # fmt: skip
    say(f"{'nothing':28} {0:10,} {0:10,} {'':6} {fixed:10.2f} {0:6.0%}")
    say(f"{f'nothing, cache {cache[0]:g} {cache[1]:g}':28} {0:10,} {'':10} {'':6} {cached:10.2f} "
        f"{share(cached, fixed, learnt):6.0%}")  # fmt: skip
    say(f"{'all, sgd':28} {number:10,} {'':10} {rate:6g} {learnt:10.2f} {1:6.0%}")
    for choice in choices:
        rate, found = best(lambda rate: learner(choice, rate).read(tokens), options.rate)  # noqa: B023
        one = learner(choice, rate)
        say(f"{name_of(choice):28} {len(one._state.memory):10,} {one.size:10,} {rate:6g} "
            f"{found:10.2f} {share(found, fixed, learnt):6.0%}")  # fmt: skip
    if options.repeats:
        say(f"\ntokens/s, median (iqr) of {options.repeats}, for so many learners:")
        say("\n".join(speeds(model, learner, choices, rows, tokens, options.repeats)))
    if options.output:
        options.output.write_text("\n".join(lines) + "\n", "utf-8")


def name_of(choice) -> str:
    adapt, size = choice
    return "+".join(adapt) + (f", cache {size:,}" if size else "")


def dynamic(model, tokens, rate):
    settings = {"rule": "sgd", "learning_rate": rate, "sequence_length": LENGTH}
    return dualnet.dynamic_evaluation(model, tokens, **settings)


def perplexity_of(read, rate) -> float:
    try:
        return read(rate).perplexity
    except dualnet.ArgumentError:  # it has diverged
        return float("inf")


def share(perplexity, fixed, learnt) -> float:
    """Return the share of the gain in nats."""
    return float(np.log(fixed / perplexity) / np.log(fixed / learnt))


def speeds(model, learner, choices, rows, tokens, repeats):
    """Return a line for each choice: tokens per second by the number of learners."""
    steps = max(1, min(50, len(tokens) // LENGTH))
    turns = {}
    for choice in choices:
        for number in rows:
            several = [learner(choice, 0.1) for _ in range(number)]
            length = LENGTH * max(1, steps // number)
            texts = [np.roll(tokens, 7 * i)[:length] for i in range(number)]
            turns[name_of(choice), number] = several, texts
    seconds = {key: [] for key in [*turns, ("dynamic_evaluation, all", 1)]}
    for _ in range(repeats + 1):  # the first warms up
        for key, (several, texts) in turns.items():
            seconds[key].append(sum(map(len, texts)) / timed(lambda: read_many(several, texts)))  # noqa: B023
    for length in (steps, 3 * steps):  # less what compiling takes, which each call does anew
        stream = np.resize(tokens, LENGTH * length + 1)
        taken = timed(lambda: dynamic(model, stream, 0.1))  # noqa: B023
        seconds["dynamic_evaluation, all", 1].append(taken)
    once, thrice = seconds["dynamic_evaluation, all", 1]
    seconds["dynamic_evaluation, all", 1] = [2 * steps * LENGTH / max(thrice - once, 1e-9)] * 2
    lines = [f"{'':28}" + "".join(f"{number:>18}" for number in rows)]
    for name in dict.fromkeys(name for name, _ in seconds):
        cells = [told(seconds[name, number][1:]) if (name, number) in seconds else ""
                 for number in rows]  # fmt: skip
        lines.append(f"{name:28}" + "".join(f"{cell:>18}" for cell in cells))
    return lines


def told(values) -> str:
    return f"{np.median(values):,.0f} ({np.subtract(*np.percentile(values, [75, 25])):,.0f})"


def timed(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
