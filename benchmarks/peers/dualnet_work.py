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

SHORT = 1  # segments of the call that is taken off another


class DualnetWork(Work):
    def prepare(self):
        case = self.case
        if self.setting["precision"] == "bfloat16":
            keras.config.set_dtype_policy("mixed_bfloat16")
        keras.utils.set_random_seed(0)
        self.model = zoo.build(case["model"], **case["arguments"])
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

    # --- dynamic evaluation: a call makes its step anew, which a short call measures

    def warm_up(self):
        if self.case["kind"] != "dynamic":
            return super().warm_up()
        first = self._segments(SHORT)[1]
        self._check(first)
        self.setup = statistics.median(self._segments(SHORT)[0] for _ in range(WARM_UP))
        seconds = self._segments(SHORT + 10)[0] - self.setup
        # As long again as what is taken off, so that its noise counts little.
        wanted = max(self.setup, 0.5) / max(seconds / 10, 1e-4)
        self.steps = int(min(max(wanted, 10), 400))
        self.notes.append(f"{self.setup:.1f} s more for each call")
        return first

    def turn(self):
        if self.case["kind"] != "dynamic":
            return super().turn()
        return (self._segments(SHORT + self.steps)[0] - self.setup) / self.steps

    def _segments(self, number):
        """Return the seconds of a call over `number` segments, and its mean loss."""
        length = self.case["time"]
        text = self.tokens(number * length + 1)
        began = time.perf_counter()
        found = dualnet.dynamic_evaluation(self.model, text, rule="nadam", sequence_length=length)
        return time.perf_counter() - began, math.log(found.perplexity)
