"""The work of a case in PyTorch, on the CPU."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from peers.torch_layers import (
    LSTM,
    DirectOutputConnection,
    MogrifierLSTM,
    PlainLSTM,
    PlainMogrifierLSTM,
    RewiredLSTM,
    Softmax,
    dropped,
)
from peers.torch_translator import Translator
from peers.work import Work


class Model(nn.Module):
    """Embedding, recurrent layers, dual connection, output; the state comes and goes."""

    def __init__(self, config, options):
        super().__init__()
        self.config = config
        size = config["embedding_units"]
        self.embedding = nn.Parameter(torch.empty(config["vocabulary_size"], size))
        kinds = {
            False: {
                "lstm": LSTM,
                "mogrifier_lstm": MogrifierLSTM,
                "rewired_lstm": RewiredLSTM,
            },
            True: {"lstm": PlainLSTM, "mogrifier_lstm": PlainMogrifierLSTM},
        }
        kind = kinds[options.get("plain", False)][config.get("cell", "lstm")]
        self.cells = nn.ModuleList()
        for units in config["layers"]:
            self.cells.append(kind(size, units, config, options))
            size = units
        if config["dual_units"]:
            self.dual_input = nn.Parameter(torch.empty(config["dual_units"], self._width()))
            self.dual_hidden = nn.Linear(size, config["dual_units"])
            size = config["dual_units"]
        output = DirectOutputConnection if config.get("experts") else Softmax
        self.output = output(config, options)
        if not config["tied"]:
            self.matrix = nn.Parameter(torch.empty(config["vocabulary_size"], size))
        self._initialise()

    def _width(self):
        return self.embedding.shape[1]

    def _initialise(self):
        config = self.config
        scale = config.get("initializer_range", 0.0)
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                continue
            if config.get("initializer") == "by_units" and "cells" in name:
                nn.init.uniform_(weight, *(np.array([-1, 1]) / math.sqrt(weight.shape[0] / 4)))
            elif scale:
                nn.init.uniform_(weight, -scale, scale)
            elif name == "embedding":
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
            else:
                nn.init.xavier_uniform_(weight)

    def weights(self):
        return [weight for weight in self.parameters() if weight.requires_grad]

    def zeros(self, batch):
        return [torch.zeros(batch, units) for units in self.config["layers"] for _ in "hc"]

    def forward(self, tokens, targets, states):
        """Return the losses of the targets, the penalties, and the new states.

        `tokens` and `targets` are `(time, batch)`.
        """
        config, training = self.config, self.training
        rate = lambda place: config.get(f"{place}_dropout", 0.0)  # noqa: E731
        embedded = F.embedding(tokens, self.embedding)
        if training and rate("embedding"):  # whole words, one draw for all rows
            kept = torch.empty(len(self.embedding), 1).bernoulli_(1 - rate("embedding"))
            embedded = embedded * F.embedding(tokens, kept / (1 - rate("embedding")))
        x = dropped(embedded, rate("input"), "input", config, training)
        levels, new_states = [x], []
        for i, cell in enumerate(self.cells):
            if i > 0:
                x = dropped(x, rate("internal"), "internal", config, training)
                levels.append(x)
            x, h, c = cell(x, *states[2 * i : 2 * i + 2])
            new_states += [h.detach().float(), c.detach().float()]
        raw = x
        x = dropped(x, rate("output"), "output", config, training)
        levels.append(x)
        penalty = self._penalties(raw, x) if training else 0.0
        if config["dual_units"]:
            word = dropped(embedded, rate("dual_input"), "dual_input", config, training)
            x = torch.relu(F.linear(word, self.dual_input) + self.dual_hidden(x))
            x = dropped(x, rate("dual_output"), "dual_output", config, training)
            levels.append(x)
        matrix = self.embedding if config["tied"] else self.matrix
        losses, more = self.output(levels, targets.flatten(), matrix)
        return losses, penalty + more, new_states

    def _penalties(self, raw, x):
        config, found = self.config, 0.0
        if rate := config.get("activation_regularization"):
            found = found + rate * x.float().square().mean()
        if rate := config.get("temporal_activation_regularization"):
            found = found + rate * (raw[1:] - raw[:-1]).float().square().mean()
        if rate := config.get("embedding_l2"):
            found = found + rate * self.embedding.square().sum()
        if rate := config.get("dual_l2"):
            matrices = self.dual_input, self.dual_hidden.weight
            found = found + rate * sum(matrix.square().sum() for matrix in matrices)
        return found


def as_tensor(tokens):
    """Return int `(batch, time)` as int64 `(time, batch)`."""
    return torch.from_numpy(tokens.T.astype(np.int64))


class TorchWork(Work):
    """Steps of training, of dynamic evaluation, or of evaluation."""

    def prepare(self):
        options, case = dict(self.setting["options"]), self.case
        self.autocast = self.setting["precision"] == "bfloat16"
        torch.manual_seed(0)
        kind = Translator if case["source"] else Model
        self.model = kind(case["config"], {**options, "autocast": self.autocast})
        self.compiled = bool(options.get("compile"))
        self.run = self.model
        if options.get("compile") == "whole":
            self.run = torch.compile(self.model, dynamic=False)
        elif self.compiled and isinstance(self.model.output, Softmax):
            # The steps of the cell are compiled, and here the output with its loss.
            self.model.output = torch.compile(self.model.output, dynamic=False)
        self.parameters = sum(weight.numel() for weight in self.model.weights())
        self.versions = {"torch": torch.__version__}
        if case["kind"] == "evaluation":
            self.model.eval()
            return
        self.model.train(case["kind"] == "training")
        self.optimizer = self._optimizer()
        update = self.optimizer.step
        self.update = torch.compile(update) if self.compiled else update
        self.states = self.model.zeros(case["batch"])

    def _optimizer(self):
        recipe, weights = self.case["recipe"], self.model.weights()
        if self.case["kind"] == "dynamic":
            return torch.optim.NAdam(weights, lr=3e-5, betas=(0.0, 0.999), foreach=True)
        if recipe["optimizer"] == "nadam":
            return torch.optim.NAdam(weights, lr=recipe["learning_rate"], foreach=True)
        decay = recipe.get("weight_decay", 0.0)
        # Inductor compiles the loop over weights; run as it is, the fused one is the fastest.
        kind = {"foreach": True} if self.compiled else {"fused": True}
        if recipe["optimizer"] == "adam":
            return torch.optim.Adam(weights, lr=recipe["learning_rate"], **kind)
        return torch.optim.SGD(weights, lr=recipe["learning_rate"], weight_decay=decay, **kind)

    def step(self):
        inputs, targets = self.batch()
        if isinstance(inputs, dict):
            tokens = [as_tensor(inputs[name]) for name in ("source", "target")]
        else:
            tokens = as_tensor(inputs)
        targets = as_tensor(targets)
        recipe = self.case["recipe"]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            losses, penalty, self.states = self.run(tokens, targets, self.states)
        nll = losses.mean()
        summed = recipe.get("loss_reduction") == "sum" and self.case["kind"] == "training"
        (nll * (len(targets) if summed else 1) + penalty).backward()
        clip = recipe.get("global_clipnorm")
        if clip and self.case["kind"] == "training":
            nn.utils.clip_grad_norm_(self.model.weights(), clip, foreach=True)
        self.update()
        self.optimizer.zero_grad(set_to_none=True)
        return nll.item()

    def evaluate(self, streams, steps):
        inputs, targets = map(as_tensor, streams)
        states, total = self.model.zeros(inputs.shape[1]), 0.0
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            for start in range(0, len(inputs), steps):
                part = slice(start, start + steps)
                losses, _, states = self.run(inputs[part], targets[part], states)
                total += losses.sum(dtype=torch.float64).item()
        return total / inputs.numel()
