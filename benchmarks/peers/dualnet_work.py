"""The work of a case in dualnet, through its public names alone."""

from __future__ import annotations

import math
import statistics
import time

import keras

import dualnet
from dualnet import zoo
from dualnet.training import Recipe, versions
from peers.work import WARM_UP, Work

SKIPPED = 3  # segments of a call, the first of which compiles


class DualnetWork(Work):
    def prepare(self):
        case = self.case
        if self.setting["precision"] == "bfloat16":
            keras.config.set_dtype_policy("mixed_bfloat16")
        keras.utils.set_random_seed(0)
        self.model = zoo.build(case["model"], corpus=case["corpus"], **case["arguments"])
        recipe = Recipe(**case["recipe"])
        self.model.loss_reduction = recipe.loss_reduction
        self.model.compile(optimizer=recipe.make_optimizer())
        weights = self.model.trainable_variables
        self.parameters = sum(math.prod(weight.shape) for weight in weights)
        self.versions = versions()

    def step(self):
        inputs, targets = self.batch()
        found = self.model.train_on_batch(inputs, targets, return_dict=True)
        return math.log(float(found["perplexity"]))

    def evaluate(self, streams, steps):
        rows, length = streams[0].shape
        # One text, which dualnet cuts into as many streams.
        text = self.tokens(rows * length + 1)
        found = dualnet.perplexity(self.model, text, batch_size=rows, sequence_length=steps)
        return math.log(found)

    # --- dynamic evaluation: each call makes its step anew, which is no part of a segment's time

    def warm_up(self):
        if self.case["kind"] != "dynamic":
            return super().warm_up()
        first = self._call(SKIPPED + 1)[1]
        self._check(first)
        self.setup = 0.0
        if self._each() is None:
            self.setup = statistics.median(self._call(SKIPPED)[0] for _ in range(WARM_UP))
            self.notes.append(f"a call of {SKIPPED} segments, {self.setup:.1f} s, taken off")
        self.steps = 10
        seconds = max(self.turn(), 1e-4)
        # Where a call is taken off, three times as long, so that its noise counts little.
        self.steps = int(min(max(3 * self.setup, 1.0) / seconds, 1000)) + 10
        return first

    def turn(self):
        if self.case["kind"] != "dynamic":
            return super().turn()
        whole, _ = self._call(SKIPPED + self.steps)
        each = self._each()
        return (whole - self.setup) / self.steps if each is None else each

    def _call(self, segments):
        """Return the seconds of a call over `segments`, and its mean loss."""
        length = self.case["time"]
        text = self.tokens(segments * length + 1)
        self.ends, train_on_batch = [], keras.Model.train_on_batch

        def marked(model, *arguments, **named):
            found = train_on_batch(model, *arguments, **named)
            self.ends.append(time.perf_counter())
            return found

        keras.Model.train_on_batch = marked
        try:
            began = time.perf_counter()
            found = dualnet.dynamic_evaluation(
                self.model, text, rule="nadam", sequence_length=length
            )
            return time.perf_counter() - began, math.log(found.perplexity)
        finally:
            keras.Model.train_on_batch = train_on_batch

    def _each(self):
        """Return the seconds of a segment after the first few; None if Keras took no steps."""
        if len(self.ends) <= SKIPPED:
            return None
        return (self.ends[-1] - self.ends[SKIPPED - 1]) / (len(self.ends) - SKIPPED)
