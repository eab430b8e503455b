"""An encoder-decoder in PyTorch: Luong's general attention with input feeding.

Written from the papers, for speed: stacks of `nn.LSTM` read the source in both directions, what
the decoder reads of the words is one product for all its steps, the gates of a step are another,
and the output is one for all steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pad_packed_sequence,
    pad_sequence,
)

from peers.torch_layers import Softmax


class Stack(nn.Module):
    """The kernel of `nn.LSTM` with several layers, and one bias each."""

    def __init__(self, size, layers, dropout):
        super().__init__()
        self.dropout = dropout
        self.kernels, self.biases = nn.ParameterList(), nn.ParameterList()
        for units in layers:
            self.kernels.append(torch.empty(4 * units, size))
            self.kernels.append(torch.empty(4 * units, units))
            self.biases.append(torch.zeros(4 * units))
            size = units
        self.register_buffer("no_bias", torch.zeros(4 * units), persistent=False)

    def forward(self, x):
        """Read sentences of one length, for which packed sequences are slower."""
        options = len(self.biases), self.dropout, self.training, False
        return torch.lstm(
            x, self._zeros(x.shape[1], x.dtype), self._weights(), True, *options, False
        )

    def read(self, x, lengths):
        """Read sentences of different `lengths`, longest first."""
        packed = pack_padded_sequence(x, lengths)
        options = len(self.biases), self.dropout, self.training, False
        out, h, c = torch.lstm(
            packed.data, packed.batch_sizes, self._zeros(x.shape[1], x.dtype), self._weights(),
            True, *options,
        )  # fmt: skip
        return pad_packed_sequence(PackedSequence(out, packed.batch_sizes))[0], h, c

    def _weights(self):
        weights = []
        for i, bias in enumerate(self.biases):
            weights += [self.kernels[2 * i], self.kernels[2 * i + 1], bias, self.no_bias]
        return weights

    def _zeros(self, batch, dtype):
        zeros = torch.zeros(len(self.biases), batch, len(self.no_bias) // 4, dtype=dtype)
        return zeros, zeros


class Translator(nn.Module):
    """Two stacks whose outputs and last states are summed, and a decoder that starts in these."""

    def __init__(self, config, options):
        super().__init__()
        self.config = config
        words, size, layers = (config[k] for k in ("vocabulary_size", "embedding_units", "layers"))
        self.autocast = options.get("autocast", False)
        self.step = decoder_step
        if options.get("compile") == "parts":
            self.step = torch.compile(decoder_step, dynamic=False)
        self.source_embedding = nn.Parameter(torch.empty(words, size))
        self.embedding = nn.Parameter(torch.empty(words, size))
        dropout = config["internal_dropout"]
        self.stacks = nn.ModuleList(Stack(size, layers, dropout) for _ in range(2))
        units = layers[-1]
        self.keys = nn.Parameter(torch.empty(units, units))
        self.word_kernel = nn.Parameter(torch.empty(size, 4 * layers[0]))
        self.kernels, self.biases = nn.ParameterList(), nn.ParameterList()
        below = size
        for number in layers:
            self.kernels.append(torch.empty(below + number, 4 * number))
            self.biases.append(torch.zeros(4 * number))
            below = number
        self.attention = nn.Parameter(torch.empty(2 * units, size))
        self.matrix = nn.Parameter(torch.empty(words, size))
        self.output = Softmax(config, options)
        scale = config["initializer_range"]
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.uniform_(weight, -scale, scale)

    def weights(self):
        return list(self.parameters())

    def zeros(self, batch):
        return []

    def forward(self, tokens, targets, states):
        """Return the losses of the targets, no penalty, and no states.

        `tokens` are `[source, target]`; these and the targets are `(time, batch)`.
        """
        config, training = self.config, self.training
        source, target = tokens
        x = self._embedded(source, self.source_embedding)
        forward, h, c = self.stacks[0](x)
        backward, backward_h, backward_c = self.stacks[1](x.flip(0))
        memory = (forward + backward.flip(0)).transpose(0, 1).contiguous()  # batch first
        keys = memory @ self.keys
        hidden, cells = list((h + backward_h).float()), list((c + backward_c).float())
        padding = (source < 0).t()
        # Once for all steps: autocast would do so too, but not through a compiled step.
        kind = torch.bfloat16 if self.autocast else torch.float32
        memory, keys = memory.to(kind), keys.to(kind)
        kernels = [kernel.to(kind) for kernel in self.kernels]
        biases, attention = [bias.to(kind) for bias in self.biases[1:]], self.attention.to(kind)
        embedded = self._embedded(target, self.embedding)
        words = torch.addmm(
            self.biases[0].to(kind), embedded.flatten(0, 1).to(kind), self.word_kernel.to(kind)
        )
        rate, fed, outputs = config["internal_dropout"] * training, torch.zeros_like(hidden[0]), []
        # Dropout between the cells, for all steps at once.
        kept = torch.ones(len(target), len(kernels) - 1, *hidden[0].shape)
        kept = F.dropout(kept, rate, training)
        for word, masks in zip(words.view(*target.shape, -1).unbind(0), kept.unbind(0)):
            fed, hidden, cells = self.step(
                word, fed, hidden, cells, kernels, biases, attention, memory, keys, padding, masks
            )
            outputs.append(fed)
        x = F.dropout(torch.stack(outputs), config["output_dropout"], training)
        losses, _ = self.output([x], targets.flatten(), self.matrix)
        return losses, 0.0, []

    def encoded(self, sources):
        """Return memory, keys, padding, and the first h and c, of sources, longest first."""
        lengths = torch.tensor([len(each) for each in sources])
        sources = [torch.from_numpy(each).long() for each in sources]
        directions = sources, [each.flip(0) for each in sources]
        rows = [F.embedding(pad_sequence(each), self.source_embedding) for each in directions]
        forward, h, c = self.stacks[0].read(rows[0], lengths)
        backward, backward_h, backward_c = self.stacks[1].read(rows[1], lengths)
        # From the end of each sentence to its start.
        positions = (lengths - 1 - torch.arange(len(backward))[:, None]).clamp(min=0)
        backward = backward.gather(0, positions[..., None].expand_as(backward))
        memory = (forward + backward).transpose(0, 1).contiguous()
        padding = torch.arange(memory.shape[1]) >= lengths[:, None]
        return memory, memory @ self.keys, padding, list(h + backward_h), list(c + backward_c)

    def _embedded(self, tokens, matrix):
        x = F.embedding(tokens.clamp(min=0), matrix)
        return F.dropout(x, self.config["input_dropout"], self.training)


def decoder_step(word, x, hidden, cells, kernels, biases, attention, memory, keys, padding, masks):
    """Return the attentional vector, and the new h and c of all layers."""
    kind, new_hidden, new_cells = kernels[0].dtype, [], []
    for number, (h, c, kernel) in enumerate(zip(hidden, cells, kernels)):
        if number:
            x = x * masks[number - 1]
        start = biases[number - 1] if number else word
        sums = torch.addmm(start, torch.cat((x, h), 1).to(kind), kernel)
        i, f, j, o = sums.float().chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(j)
        x = torch.sigmoid(o) * torch.tanh(c)
        new_hidden.append(x)
        new_cells.append(c)
    scores = torch.bmm(keys, x.to(kind)[:, :, None])[:, :, 0].float()
    weights = torch.softmax(scores.masked_fill(padding, -1e30), 1)
    context = torch.bmm(weights.to(kind)[:, None], memory)[:, 0]
    x = torch.tanh(torch.mm(torch.cat((x.to(kind), context), 1), attention).float())
    return x, new_hidden, new_cells
