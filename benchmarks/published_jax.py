"""Trains one published model on a GPU, as long as there is time, and packs what it learnt.

Usage: DUALNET_DATA=FOLDER_WITH_ptb python benchmarks/published_jax.py OUTPUT MODEL
           [--minutes 25] [--corpus ptb] [--dtype-policy mixed_bfloat16] [--set units=200 ...]
       python benchmarks/published_jax.py OUTPUT MODEL --restore MODEL.keras

One call of the compiled function reads `--segments` segments, so that launches do not rule. A GPU
has room for several models at once: start one process for each, with
XLA_PYTHON_CLIENT_MEM_FRACTION=0.15. Ctrl-C, SIGTERM and the end of the minutes end the training
after the calls under way. OUTPUT then holds MODEL.json, with a row per epoch, the test figures of
the best weights by validation, tokens per second, and their share of the largest product that the
machine computes in this policy, at 6 operations per weight and token; and the best weights in
float16, MODEL.0.npy and on, of at most 15 MiB each, which `--restore` puts together again.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
from jax import numpy as jnp

import dualnet
from dualnet import corpora, training, zoo
from dualnet._files import write_whole
from dualnet.cli.console import settings_of

PART = 15 * 2**20  # bytes
SEGMENTS = 64


class Reader:
    """Reads stacked segments with one step of `model` after another, in one compiled call."""

    def __init__(self, model, *, training):
        self.model = model
        self.training = training
        step = model.train_step if training else model.test_step

        def scan(state, segments):
            def read(state, segment):
                _, state = step(state, segment)
                return state, None

            return jax.lax.scan(read, state, segments)[0]

        self.scan = jax.jit(scan, donate_argnums=0)

    def variables(self):
        model = self.model
        parts = [model.trainable_variables, model.non_trainable_variables]
        parts += [model.optimizer.variables] if self.training else []
        return [*parts, model.metrics_variables]

    def read(self, stacks, stopped=lambda: False):
        """Read all of `stacks`, or those before `stopped`; return perplexity and its tokens."""
        model, groups, tokens = self.model, self.variables(), 0
        rows = model.training_rows if self.training else model.evaluation_rows
        rows.restart()
        model.reset_metrics()
        state = tuple([jnp.copy(variable.value) for variable in group] for group in groups)
        for inputs, targets in stacks:
            if stopped():
                break
            state = self.scan(state, (inputs, targets))
            jax.block_until_ready(state)
            tokens += targets.size
        for group, values in zip(groups, state):
            for variable, value in zip(group, values):
                variable.assign(value)
        return float(model.perplexity_metric.result()), tokens


def stacked(batches, segments):
    """Return `batches` as stacks of at most `segments` batches of one shape, on the device."""
    stacks, group = [], []
    pairs = [tuple(map(np.asarray, batches[i])) for i in range(len(batches))]
    for i, pair in enumerate(pairs):
        group.append(pair)
        last = i + 1 == len(pairs) or pairs[i + 1][0].shape != pair[0].shape
        if last or len(group) == segments:
            stacks.append(tuple(jnp.asarray(np.stack(part)) for part in zip(*group)))
            group = []
    return stacks


def fastest_product(dtype, size=4096, repeats=20):
    """Return the operations per second of a large product of matrices on this machine."""
    size = size if jax.default_backend() == "gpu" else 1024
    left = jnp.ones((size, size), dtype)
    product = jax.jit(lambda a, b: a @ b)
    product(left, left).block_until_ready()
    began = time.perf_counter()
    for _ in range(repeats):
        found = product(left, left)
    found.block_until_ready()
    return 2 * size**3 * repeats / (time.perf_counter() - began)


def pack(weights, output, name):
    """Write `weights` as float16, in parts that fit; all or nothing for each part."""
    flat = np.concatenate([np.ravel(weight) for weight in weights]).astype("float16")
    for i, start in enumerate(range(0, len(flat), PART // 2)):
        part = output / f"{name}.{i}.npy"
        np.save(part.with_suffix(".part.npy"), flat[start : start + PART // 2])
        part.with_suffix(".part.npy").rename(part)


def unpack(model, output, name):
    """Give `model` the weights that `pack` wrote."""
    parts, flat = [], np.zeros(0, "float16")
    while (output / f"{name}.{len(parts)}.npy").is_file():
        parts.append(np.load(output / f"{name}.{len(parts)}.npy"))
    flat = np.concatenate([flat, *parts])
    sizes = [int(np.prod(weight.shape)) for weight in model.weights]
    if len(flat) != sum(sizes):
        raise SystemExit(
            f"{output} must hold all parts of {name}, {sum(sizes):,} weights. Received: "
            f"{len(flat):,} in {len(parts)} files. Give the --corpus and --set of the training."
        )
    pieces = np.split(flat, np.cumsum(sizes)[:-1])
    model.set_weights([p.reshape(w.shape) for p, w in zip(pieces, model.weights)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("model")
    parser.add_argument("--corpus", default="ptb")
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--segments", type=int, default=SEGMENTS, help=f"default: {SEGMENTS}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype-policy", default="float32")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--restore", type=Path, metavar="FILE", help="write the parts to a .keras")
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    asked = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.append(True))
    options.output.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy("float32" if options.restore else options.dtype_policy)
    card = zoo.card(options.model, options.corpus)
    arguments, recipe = training.split_overrides(card, settings_of(options.set))
    corpus = corpora.load(options.corpus, lowercase=card.lowercase)
    arguments["vocabulary_size"] = len(corpus.vocabulary)
    model = dualnet.zoo.build(options.model, **arguments)
    model.vocabulary = corpus.vocabulary
    if options.restore:
        unpack(model, options.output, options.model)
        return model.save(options.restore)

    model.compile(optimizer=recipe.make_optimizer())
    sizes = {"batch_size": recipe.batch_size, "sequence_length": recipe.sequence_length}
    train, valid = (corpus.batches(split, **sizes) for split in ("train", "valid"))
    model.train_on_batch(*train[0])  # makes every variable; one step more than the epochs have
    model.test_on_batch(*valid[0])
    train, valid = (stacked(batches, options.segments) for batches in (train, valid))
    learner, judge = Reader(model, training=True), Reader(model, training=False)
    limit = fastest_product("bfloat16" if "bfloat16" in options.dtype_policy else "float32")
    weights = sum(v.value.size for v in model.trainable_variables if v.value.ndim == 2)
    epochs, packed = [], False
    stopped = lambda: asked or time.monotonic() > ends  # noqa: E731
    while len(epochs) < recipe.epochs and not stopped():
        began = time.monotonic()
        perplexity, tokens = learner.read(train, stopped)
        seconds = time.monotonic() - began
        if stopped() and tokens < sum(targets.size for _, targets in train):
            break  # an epoch cut short is none
        row = {
            "epoch": len(epochs) + 1, "perplexity": perplexity,
            "val_perplexity": judge.read(valid)[0], "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "share_of_limit": 6 * weights * tokens / seconds / limit,
        }  # fmt: skip
        epochs.append(row)
        print(json.dumps({"model": options.model, **row}), flush=True)
        if row["val_perplexity"] == min(each["val_perplexity"] for each in epochs):
            pack(model.get_weights(), options.output, options.model)
            packed = True
        found = {
            "model": options.model, "corpus": options.corpus, "published": card.published,
            "device": str(jax.devices()[0]), "dtype_policy": options.dtype_policy,
            "seed": options.seed, "settings": settings_of(options.set), "limit": limit,
            "epochs": epochs,
        }  # fmt: skip
        write_whole(options.output / f"{options.model}.json", json.dumps(found, indent=1) + "\n")
    if not packed:
        raise SystemExit(
            "no epoch has a finite perplexity: lower the learning rate" if epochs
            else "not one epoch was finished: give more --minutes"
        )  # fmt: skip
    unpack(model, options.output, options.model)  # as they are kept, in float16
    for split in ("valid", "test"):
        found[f"{split}_perplexity"] = dualnet.perplexity(model, corpus.split(split))
    write_whole(options.output / f"{options.model}.json", json.dumps(found, indent=1) + "\n")
    print(json.dumps({key: found[key] for key in ("valid_perplexity", "test_perplexity")}))


if __name__ == "__main__":
    main()
