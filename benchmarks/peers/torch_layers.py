"""Layers for the peers in PyTorch: LSTM, Mogrifier LSTM, dropouts, outputs.

Written from the papers, for speed: gates in one product, states explicit, time first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

CHUNK = 96  # tokens of a mixture at a time


def locked(x, rate, training):
    """Return `x`, `(time, batch, units)`, with one mask per row for all steps."""
    if not training or rate == 0:
        return x
    mask = torch.empty(1, *x.shape[1:], dtype=x.dtype).bernoulli_(1 - rate).div_(1 - rate)
    return x * mask


def dropped(x, rate, place, config, training):
    """Return `x` with the dropout of `place`, locked or fresh, as the card has it."""
    kept = config.get("locked_dropouts", ("input", "recurrent", "mogrifier", "latent"))
    return locked(x, rate, training) if place in kept else F.dropout(x, rate, training)


class LSTM(nn.Module):
    """The kernel of `nn.LSTM`, with dropout of single recurrent weights (one draw a segment).

    Of the two biases of `nn.LSTM` one is no weight but zero, as in all else that is measured.
    """

    def __init__(self, size, units, config, options):
        super().__init__()
        if config.get("recurrent_dropout"):
            raise ValueError("nn.LSTM knows no dropout of the recurrent h")
        self.weight_dropout = config.get("weight_dropout", 0.0)
        self.input_kernel = nn.Parameter(torch.empty(4 * units, size))
        self.recurrent_kernel = nn.Parameter(torch.empty(4 * units, units))
        self.bias = nn.Parameter(torch.zeros(4 * units))
        self.register_buffer("no_bias", torch.zeros(4 * units), persistent=False)

    def forward(self, x, h, c):
        recurrent = F.dropout(self.recurrent_kernel, self.weight_dropout, self.training)
        weights = [self.input_kernel, recurrent, self.bias, self.no_bias]
        out, h, c = torch.lstm(
            x, (h[None], c[None]), weights, True, 1, 0.0, self.training, False, False
        )
        return out, h[0], c[0]


class PlainLSTM(nn.Module):
    """`nn.LSTM` as it is; of its two biases one is zero and stays so."""

    def __init__(self, size, units, config, options):
        super().__init__()
        if config.get("recurrent_dropout") or config.get("weight_dropout"):
            raise ValueError("nn.LSTM knows no dropout of the recurrent h or matrix")
        self.lstm = nn.LSTM(size, units)
        _one_bias(self.lstm.bias_ih_l0, self.lstm.bias_hh_l0)

    def forward(self, x, h, c):
        out, (h, c) = self.lstm(x, (h[None].to(x.dtype), c[None].to(x.dtype)))
        return out, h[0], c[0]


class PlainMogrifierLSTM(nn.Module):
    """The Mogrifier as a user of PyTorch writes it: `nn.Linear` for rounds, `nn.LSTMCell`."""

    def __init__(self, size, units, config, options):
        super().__init__()
        self.rates = config.get("recurrent_dropout", 0.0), config.get("mogrifier_dropout", 0.0)
        self.cell = nn.LSTMCell(size, units)
        _one_bias(self.cell.bias_ih, self.cell.bias_hh)
        self.left, self.right = nn.ModuleList(), nn.ModuleList()
        for turn in range(1, config["rounds"] + 1):
            reads, gates = (units, size) if turn % 2 else (size, units)
            self.left.append(nn.Linear(reads, config["rank"], bias=False))
            self.right.append(nn.Linear(config["rank"], gates))
            nn.init.zeros_(self.right[-1].bias)

    def forward(self, x, h, c):
        recurrent, mogrifier = self.rates
        mask, masks = None, [None] * len(self.left)
        if self.training:
            mask = _mask(h, h.shape[1], recurrent)
            masks = [_mask(h, left.out_features, mogrifier) for left in self.left]
        outputs = []
        for each in x.unbind(0):
            dropped_h = h if mask is None else h * mask
            for turn, (left, right, kept) in enumerate(zip(self.left, self.right, masks), start=1):
                low = left(dropped_h if turn % 2 else each)
                gate = 2.0 * torch.sigmoid(right(low if kept is None else low * kept))
                if turn % 2:
                    each = gate * each
                else:
                    dropped_h = gate * dropped_h
            h, c = self.cell(each, (dropped_h, c))
            outputs.append(h)
        return torch.stack(outputs), h, c


def _one_bias(bias, other):
    nn.init.zeros_(bias)
    nn.init.zeros_(other).requires_grad_(False)


class MogrifierLSTM(nn.Module):
    """Rounds of low rank between x and h, then an LSTM step with one product for all gates."""

    def __init__(self, size, units, config, options):
        super().__init__()
        self.rates = config.get("recurrent_dropout", 0.0), config.get("mogrifier_dropout", 0.0)
        self.autocast = options.get("autocast", False)
        self.step = mogrifier_step
        if options.get("compile") == "parts":
            self.step = torch.compile(mogrifier_step, dynamic=False)
        self.kernels = nn.ParameterList(torch.empty(shape) for shape in self.shapes(size, units))
        self.bias = nn.Parameter(torch.zeros(4 * units))
        self.left, self.right, self.gate_bias = (nn.ParameterList() for _ in range(3))
        rank = config["rank"]
        for turn in range(1, config["rounds"] + 1):
            reads, gates = (units, size) if turn % 2 else (size, units)
            self.left.append(torch.empty(reads, rank))
            self.right.append(torch.empty(rank, gates))
            self.gate_bias.append(torch.zeros(gates))

    def shapes(self, size, units):
        return [(size + units, 4 * units)]

    def forward(self, x, h, c):
        recurrent, mogrifier = self.rates
        mask, masks = None, [None] * len(self.left)
        if self.training:
            mask = _mask(h, h.shape[1], recurrent)
            masks = [_mask(h, left.shape[1], mogrifier) for left in self.left]
        # Once per segment: autocast would do so too, but not through a compiled step.
        kind = torch.bfloat16 if self.autocast else torch.float32
        rounds = [
            [each.to(kind) for each in (*parts[:3],)] + [parts[3]]
            for parts in zip(self.left, self.right, self.gate_bias, masks)
        ]
        kernels, bias = [kernel.to(kind) for kernel in self.kernels], self.bias.to(kind)
        outputs = []
        for each in x.unbind(0):
            h, c = self.step(each, h, c, kernels, bias, rounds, mask)
            outputs.append(h)
        return torch.stack(outputs), h, c


class RewiredLSTM(MogrifierLSTM):
    """The same rounds, then a step of the rewired LSTM."""

    def shapes(self, size, units):
        return [(size + units, 2 * units), (2 * units, units), (units, units)]


def _mask(like, size, rate):
    if rate == 0:
        return None
    mask = torch.empty(like.shape[0], size, dtype=like.dtype)
    return mask.bernoulli_(1 - rate).div_(1 - rate)


def mogrifier_step(x, h, c, kernels, bias, rounds, mask):
    kind = bias.dtype
    if mask is not None:
        h = h * mask
    x, h = x.to(kind), h.to(kind)
    for turn, (left, right, gate_bias, between) in enumerate(rounds, start=1):
        low = torch.mm(h if turn % 2 else x, left)
        if between is not None:
            low = low * between.to(kind)
        gate = 2.0 * torch.sigmoid(torch.addmm(gate_bias, low, right))
        if turn % 2:
            x = gate * x
        else:
            h = gate * h
    if len(kernels) > 1:
        return rewired_gates(x, h, c, kernels, bias, mask)
    i, f, j, o = torch.addmm(bias, torch.cat((x, h), 1), *kernels).float().chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(j)
    return torch.sigmoid(o) * torch.tanh(c), c


def rewired_gates(x, h, c, kernels, bias, mask):
    gates, forget, output = kernels
    b_ij, b_f, b_o = bias.split([2 * h.shape[1], h.shape[1], h.shape[1]])
    i, j = torch.addmm(b_ij, torch.cat((x, h), 1), gates).float().chunk(2, 1)
    i, j = torch.sigmoid(i), torch.tanh(j)
    f = torch.addmm(b_f, torch.cat(((i * j).to(h.dtype), h), 1), forget).float().sigmoid()
    c = f * c + torch.minimum(i, 1 - f) * j
    shown = c if mask is None else c * mask
    o = torch.addmm(b_o, shown.to(h.dtype), output).float().sigmoid()
    return o * torch.tanh(c), c


class Softmax(nn.Module):
    """-log p of the targets of one softmax."""

    def __init__(self, config, options):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(config["vocabulary_size"]))
        self.bias.requires_grad_(bool(config.get("output_bias")))

    def forward(self, levels, targets, matrix):
        x = levels[-1].flatten(0, 1)
        logits = F.linear(x, matrix, self.bias if self.bias.requires_grad else None)
        return F.cross_entropy(logits.float(), targets, reduction="none"), 0.0


class DirectOutputConnection(nn.Module):
    """-log p of the targets of a mixture of softmaxes fed by several layers (DOC).

    `head`: "all", the probabilities of all words, their mean, its logarithm; "targets", the
    cross-entropy of each expert, and the mean of the targets' probabilities; "chunked", the
    same for few tokens at a time, whose logits the backward pass computes again.
    """

    def __init__(self, config, options):
        super().__init__()
        self.head = options.get("head") or "targets"
        self.experts = config["experts"]
        self.rate = config.get("latent_dropout", 0.0)
        self.balance = config.get("balance_regularization", 0.0)
        self.units = config.get("latent_units") or config["embedding_units"]
        sizes = [config["embedding_units"], *config["layers"]]
        self.prior = nn.Parameter(torch.empty(sum(self.experts), sizes[-1]))
        self.kernels, self.biases = nn.ParameterList(), nn.ParameterList()
        for size, count in zip(sizes, self.experts):
            if count:
                self.kernels.append(torch.empty(count * self.units, size))
                self.biases.append(torch.zeros(count * self.units))
        self.bias = nn.Parameter(torch.zeros(config["vocabulary_size"]))
        self.mix = torch.compile(_of_targets) if options.get("compile") else _of_targets

    def forward(self, levels, targets, matrix):
        read = [level for level, count in zip(levels, self.experts) if count]
        latents = [
            torch.tanh(F.linear(level, kernel, bias))
            for level, kernel, bias in zip(read, self.kernels, self.biases)
        ]
        steps, batch = levels[-1].shape[:2]
        latents = torch.cat(latents, -1).view(steps, batch, sum(self.experts), self.units)
        if self.training:  # one mask for all steps and experts
            mask = torch.empty(1, batch, 1, self.units, dtype=latents.dtype)
            latents = latents * mask.bernoulli_(1 - self.rate).div_(1 - self.rate)
        log_prior = F.log_softmax(F.linear(levels[-1], self.prior).float(), -1)
        penalty = self.balance * _variation(log_prior.exp()) if self.training else 0.0
        latents, log_prior = latents.flatten(0, 1), log_prior.flatten(0, 1)
        if self.head == "all":
            logits = F.linear(latents, matrix, self.bias).float()
            found = torch.einsum("nj,njv->nv", log_prior.exp(), F.softmax(logits, -1))
            losses = F.nll_loss(torch.log(found + 1e-8), targets, reduction="none")
        elif self.head == "targets":
            losses = self.mix(latents, log_prior, targets, matrix, self.bias)
        else:
            if torch.is_autocast_enabled("cpu"):  # once, and not in every chunk
                matrix = matrix.to(torch.bfloat16)
            parts = zip(*(each.split(CHUNK) for each in (latents, log_prior, targets)))
            losses = torch.cat(
                [
                    checkpoint(self.mix, *part, matrix, self.bias, use_reentrant=False)
                    for part in parts
                ]
            )
        return losses, penalty


def _of_targets(latents, log_prior, targets, matrix, bias):
    tokens, experts = log_prior.shape
    logits = F.linear(latents, matrix, bias).float().flatten(0, 1)
    each = F.cross_entropy(logits, targets.repeat_interleave(experts), reduction="none")
    return -torch.logsumexp(log_prior - each.view(tokens, experts), -1)


def _variation(priors):
    """Return the squared coefficient of variation of use, as released with the DOC paper."""
    used = priors.sum(0)  # (batch, experts)
    return (used.shape[-1] - 1) * used.var() / used.mean().square()
