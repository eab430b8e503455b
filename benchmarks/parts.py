"""Which form of a part of a model is faster, and what memory does it take?

Usage: python benchmarks/parts.py [PART ...] [--repeats 9] [--policies float32 mixed_bfloat16]
       [--backend tensorflow]
Each form of a case runs in a process of its own, and the forms take turns. Prints the median of
the milliseconds of a step, with its interquartile range; their ratio to those of the first form;
and peak memory, of which imports take the part shown. CUDA_VISIBLE_DEVICES and JAX_PLATFORMS let
the processes see a GPU.

    gates       an LSTM with one product per gate, or a single one. Pojer's course report
                has 26.61 s and 20.81 s in PyTorch, a ratio of 0.78, for sizes it does not give.
    cells       the rewired LSTM beside the Mogrifier LSTM of the same size, rounds and rank; or,
                without rounds, beside the LSTM
    samples     the training of `lstm` with 2 layers of 200 units that reads each batch D times
                (`dropout_samples`), by the kind of its output; the ratio over D is that of a sample
    outputs     the cross-entropy of a tied output, as one writes it down, or fused with the output
    experts     the losses of DOCOutput with all logits of the experts kept, or computed again in
                the backward pass; and a step of the whole `awd_lstm_doc`
    products    a product of few rows on TensorFlow, as it is, or of the transposed factors:
                `dualnet._backend.matmul` chooses by it
    allocator   the training of a model that leaves the allocator as the system has it, or not
    rescoring   `dual_lstm` reads lists of 100 hypotheses of about 20 words, which differ in up to
                three places: each alone, all by `dualnet.score`, which pads them to similar lengths
                but does not share what is equal, or by `dualnet.rescore`, one list at a time or all
"""

from __future__ import annotations

import os

import keras
import numpy as np
from keras import ops
from options import options_of
from peers.work import Work
from peers.worker import Worker

import dualnet
from dualnet import layers, training, zoo
from dualnet.rescoring import Hypothesis, NBest
from dualnet.text import Vocabulary

START_SECONDS = 600.0  # the longest that an answer may take
LEAST_REPEATS = 7
TURNS = 20  # products of a step, each waiting for the one before
BATCH, TIME, LATENT_UNITS, WORDS = 12, 70, 280, 10_000  # of `experts`


def gates(form, units, passes, batch=64, time=35):
    kind = layers.LSTMCell if form == "a single one" else layers.PerGateLSTMCell
    return recurrent_step(kind(units), passes, batch, time)


def cells(form, units, rounds, rank, batch=32, time=25):
    kind = layers.MogrifierLSTMCell if rounds else layers.LSTMCell
    if form == "rewired":
        kind = layers.RewiredLSTMCell
    options = {"rounds": rounds, "rank": rank} if rounds else {}
    return recurrent_step(kind(units, capped_input_gate=True, **options), "training", batch, time)


def recurrent_step(cell, passes, batch, time):
    """Return a function that reads a segment with `cell`, and trains it in a training pass."""
    units = cell.units
    sequence = keras.Input((time, units))
    outputs, *_ = layers.Recurrence(cell)(sequence)
    # The mean over time needs every output, and little of it goes to the host.
    model = keras.Model(sequence, keras.layers.GlobalAveragePooling1D()(outputs))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=is_jax())
    inputs = ops.convert_to_tensor(normal(batch, time, units))  # on the device once for all
    targets = ops.zeros((batch, units))
    if passes == "forward":
        return lambda: model.predict_on_batch(inputs)
    return lambda: model.train_on_batch(inputs, targets)


def outputs(form, words, tokens=800, units=850):
    hidden = keras.Input((tokens, units))
    targets = keras.Input((tokens,), dtype="int32")
    scaled = keras.layers.Dense(units, use_bias=False)(hidden)  # with a gradient below the output
    layer = layers.OutputProjection(tied_to=keras.layers.Embedding(words, units))
    if form == "fused":
        losses = layer(scaled, targets)
    else:
        losses = ops.sparse_categorical_crossentropy(targets, layer(scaled), True)
    data = [normal(1, tokens, units), ids(words, 1, tokens)]
    return training_step(keras.Model([hidden, targets], losses), data)


def samples(form, output, rows=32, columns=25):
    experts = {"mixture": {"experts": 4}, "doc": {"experts": [0, 2, 2]}}.get(output, {})
    model = zoo.build("lstm", units=200, recurrent_layers=2, **experts)
    model.dropout_samples = int(form)
    model.compile(keras.optimizers.Adam(), jit_compile=is_jax())
    inputs, targets = (ids(WORDS, rows, columns) for _ in range(2))
    return lambda: model.train_on_batch(inputs, targets)


class KeepsAllLogits(layers.DOCOutput):
    """The equations of `DOCOutput`, as one writes them down."""

    def call(self, inputs, targets=None, mask=None, training=False):
        embeddings = ops.cast(self.tied_to.embeddings, self.compute_dtype)
        s = ops.matmul(self._latents(inputs, training), ops.transpose(embeddings))
        s = ops.cast(s, "float32") + ops.cast(self.bias, "float32")
        log_p = ops.log_softmax(s, axis=-1) + self._log_priors(inputs)[..., None]
        log_p = ops.logsumexp(log_p, axis=-2)
        return -ops.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]


def experts(form, count):
    counts = [count // 4, count - count // 4]
    if form == "whole model":
        model = zoo.build("awd_lstm_doc", experts=[0, 0, *counts])
        model.compile(keras.optimizers.SGD(0.1), jit_compile=is_jax())
        return lambda: model.train_on_batch(ids(WORDS, BATCH, TIME), ids(WORDS, BATCH, TIME))
    features, targets = keras.Input((TIME, 8)), keras.Input((TIME,), dtype="int32")
    hidden = [keras.layers.Dense(units)(features) for units in (960, 620)]
    kind = layers.DOCOutput if form == "computed again" else KeepsAllLogits
    embedding = keras.layers.Embedding(WORDS, LATENT_UNITS)
    losses = kind(WORDS, counts, LATENT_UNITS, tied_to=embedding)(hidden, targets)
    data = [normal(BATCH, TIME, 8), ids(WORDS, BATCH, TIME)]
    return training_step(keras.Model([features, targets], losses), data)


def products(form, rows, units):
    import tensorflow as tf

    from dualnet._backend import _transpose

    dtype = keras.config.dtype_policy().compute_dtype
    left, matrix = (tf.cast(normal(*shape), dtype) for shape in ((rows, units), (units, 4 * units)))
    if form == "transposed":
        matrix = tf.transpose(matrix)

    @tf.function
    def step(left, matrix):
        def multiply(i, before):
            rows = left + 0 * before
            if form == "transposed":
                product = _transpose(tf.matmul(matrix, _transpose(rows)))
            else:
                product = tf.matmul(rows, matrix)
            return i + 1, tf.reduce_sum(product[:1, :1])

        start = 0, tf.zeros((), dtype)
        return tf.while_loop(lambda i, _: i < TURNS, multiply, start, parallel_iterations=1)[1]

    return lambda: tf.cast(step(left, matrix), "float32").numpy()


def allocator(form, model, rows, columns, **arguments):
    if form == "freed":
        os.environ["MALLOC_PERTURB_"] = "0"  # changes nothing, but a model leaves the rest alone
    recipe = training.Recipe(**zoo.card(model).recipe)
    model = zoo.build(model, **arguments)
    model.compile(optimizer=recipe.make_optimizer(), jit_compile=is_jax())
    inputs, targets = (ids(model.vocabulary_size, rows, columns) for _ in range(2))
    return lambda: model.train_on_batch(inputs, targets)


def rescoring(form, lists, words=10_000):
    model = zoo.build("dual_lstm", vocabulary_size=words, units=200)
    model.vocabulary = Vocabulary((*(f"w{i}" for i in range(words - 2)), "<unk>", "<eos>"))
    random = np.random.default_rng(0)
    share = 1 / np.arange(1, words - 1)  # Zipf's law
    share /= share.sum()
    nbests = []
    for number in range(lists):
        sentence = random.choice(words - 2, random.integers(10, 31), p=share)
        hypotheses = []
        for _ in range(100):
            changed = sentence.copy()
            places = random.choice(len(sentence), random.integers(1, 4), replace=False)
            changed[places] = random.choice(words - 2, len(places), p=share)
            hypotheses.append(Hypothesis(" ".join(f"w{word}" for word in changed)))
        nbests.append(NBest(number, tuple(hypotheses)))
    each = [hypothesis for nbest in nbests for hypothesis in nbest.hypotheses]
    if form == "padded batches":
        return lambda: len(dualnet.score(model, [hypothesis.text for hypothesis in each]))
    calls = {
        "each alone": [[NBest(0, (hypothesis,))] for hypothesis in each],
        "list by list": [[nbest] for nbest in nbests],
        "all lists": [nbests],
    }[form]
    return lambda: sum(len(dualnet.rescore(model, call)) for call in calls)


def is_jax():
    return keras.backend.backend() == "jax"  # without jit, it runs each operation by itself


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def ids(words, *shape):
    return np.random.default_rng(1).integers(0, words, shape, dtype=np.int32)


def training_step(model, data):
    """Return a function that trains a model of losses for a step and returns their mean."""
    model.compile(
        keras.optimizers.SGD(0.0), lambda _, losses: ops.mean(losses), jit_compile=is_jax()
    )
    return lambda: model.train_on_batch(data, np.zeros(data[1].shape, "float32"))


# By part: what makes a step, its forms, and the sizes of its cases.
PARTS = {
    "gates": (gates, ("one per gate", "a single one"), [
        {"units": units, "passes": passes}
        for units in (200, 650, 1500) for passes in ("training", "forward")
    ]),
    "cells": (cells, ("the other", "rewired"), [
        {"units": units, "rounds": rounds, "rank": rank}
        for units, rank in ((200, 40), (650, 80), (912, 84)) for rounds in (5, 0)
    ]),
    "samples": (samples, ("1", "2", "4", "8"), [
        {"output": output} for output in ("softmax", "mixture", "doc")
    ]),
    "outputs": (outputs, ("written down", "fused"), [
        {"words": words} for words in (10_000, 33_278, 267_735)
    ]),
    "experts": (experts, ("all kept", "computed again", "whole model"), [
        {"count": count} for count in (5, 10, 20)
    ]),
    "products": (products, ("as it is", "transposed"), [
        {"rows": rows, "units": units}
        for rows in (1, 12, 20, 32, 64) for units in (200, 600, 850, 1150)
    ]),
    "allocator": (allocator, ("freed", "kept"), [
        {"model": "lstm", "vocabulary_size": 8000, "units": 224, "rows": 32, "columns": 50},
        {"model": "lstm", "rows": 32, "columns": 25},
        {"model": "dual_mdlstm", "rows": 32, "columns": 25},
        {"model": "awd_lstm", "rows": 20, "columns": 70},
    ]),
    "rescoring": (rescoring, ("each alone", "list by list", "padded batches", "all lists"), [
        {"lists": 10},
    ]),
}  # fmt: skip


class PartWork(Work):
    """A step of one form of a part."""

    def prepare(self):
        keras.config.set_dtype_policy(self.setting["policy"])
        keras.utils.set_random_seed(0)
        make_step, *_ = PARTS[self.case["part"]]
        self.take_step = make_step(self.setting["form"], **self.case["sizes"])
        self.versions = training.versions()

    def step(self):
        return float(np.ravel(self.take_step())[0])

    def _check(self, loss):
        """The losses of parts have nothing in common."""


def main():
    backends = ("tensorflow", "jax", "torch")
    options = options_of(__doc__, "parts*", repeats=9, policies=["float32"], backend=backends)
    if unknown := {*options.parts} - {*PARTS}:
        raise SystemExit(f"no part {unknown.pop()!r}; there are {', '.join(PARTS)}")
    if options.repeats < LEAST_REPEATS:
        raise SystemExit(f"--repeats must be at least {LEAST_REPEATS}")
    for part in options.parts or PARTS:
        for sizes in PARTS[part][2]:
            for policy in options.policies:
                print(f"\n{part}: {sizes}, {policy}", flush=True)
                compare(part, sizes, policy, options)


def take_turns(kinds, messages, repeats):
    """Let workers take turns; return what each said of itself, and its answers.

    Args:
        kinds: The arguments of each `Worker`, by name.
        messages: What each is asked for, by name.
        repeats: Number of turns, without the first, which is not counted.
    """
    workers, about, answers = {}, {}, {name: [] for name in kinds}
    try:
        for name, kind in kinds.items():
            workers[name] = Worker(*kind)
            about[name] = workers[name].ask(START_SECONDS, **messages[name])
        for turn in range(repeats + 1):
            for name, worker in workers.items():
                answer = worker.ask(START_SECONDS, turn=turn)
                answers[name] += [answer] * (turn > 0)
    finally:
        for worker in workers.values():
            worker.close()
    return about, answers


def median_and_spread(answers, key="seconds"):
    """Return the median of a number of all answers, and its interquartile range."""
    low, median, high = np.percentile([answer[key] for answer in answers], [25, 50, 75])
    return median, high - low


def compare(part, sizes, policy, options):
    """Print a line for each form of a case."""
    case = {"kind": "training", "batch": 0, "part": part, "sizes": sizes}
    names = ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    forms = PARTS[part][1]
    messages = {form: {"case": case, "setting": {"form": form, "policy": policy}} for form in forms}
    kinds = dict.fromkeys(forms, ("parts", options.backend, environment))
    about, answers = take_turns(kinds, messages, options.repeats)
    about = about[forms[0]]
    versions = " ".join(f"{name} {version}" for name, version in about["versions"].items())
    print(f"{versions}; imports take {about['import_mb']:.0f} MB")
    print(f"{'form':15}{'ms (IQR)':>20}{'ratio':>7}{'peak MB':>9}")
    first, _ = median_and_spread(answers[forms[0]])
    for form, own in answers.items():
        median, spread = median_and_spread(own)
        shown = f"{1000 * median:.2f} ({1000 * spread:.2f})"
        print(f"{form:15}{shown:>20}{median / first:>7.2f}{own[-1]['peak_mb']:>9.0f}", flush=True)


if __name__ == "__main__":
    main()
