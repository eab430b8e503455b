"""The stations over a whole model: a gate on its logits, and a cache of its words."""

import keras
from keras import ops

from dualnet import layers
from dualnet._checks import check_fraction
from dualnet._fields import choice, field
from dualnet._types import Tensor
from dualnet.builders.stations import Station, state_inputs
from dualnet.layers.neural_cache import SCALE, STARTS, WEIGHT

KINDS = ("neural", "ngram")
GATES = ("none", "input", "input_and_hidden", "lstm")


class Gate(Station):
    """The input-to-output gate on the logits of a trained, frozen model."""

    gate: str = choice("none", GATES)
    """"none"; "input" (`IOGate`); or its variants "input_and_hidden" and "lstm" (an LSTM over the
    gate's own embedding; the paper is silent on its forget bias, here 1, and its initial weights,
    those of `LSTMCell`). The model below is frozen, its dropouts and penalties are off. See
    `dualnet.with_gate`."""

    gate_units: int = 300
    """int. Size of the gate's embedding (and LSTM)."""

    gate_dropout: float = 0.0
    """On the gate's embedding, a fresh mask at each step."""

    gate_initializer_range: float = 0.05
    """The gate's matrices start uniform within it."""

    @property
    def is_used(self) -> bool:
        """Whether there is a gate."""
        return self.gate != "none"

    def apply(
        self,
        tokens: Tensor,
        logits: list[Tensor],
        hidden: list[Tensor],
        *,
        padded: bool,
        states: int,
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return the gated logits of each model, and the gate's states before and after.

        `logits` and `hidden` are those of each model; the gate's states are numbered behind the
        `states` of the models.
        """
        words, scale = logits[0].shape[-1], self.gate_initializer_range
        if self.gate != "lstm":
            use_hidden = self.gate == "input_and_hidden"
            gate = layers.IOGate(
                words,
                self.gate_units,
                dropout=self.gate_dropout,
                use_hidden=use_hidden,
                initializer_range=scale,
                name="gate",
            )
            read = hidden if use_hidden else []
            return keras.tree.flatten(gate([tokens, *read, *logits])), [], []
        embedding = keras.layers.Embedding(
            words,
            self.gate_units,
            embeddings_initializer=keras.initializers.RandomUniform(-scale, scale),
            name="gate_embedding",
        )
        embedded = embedding(ops.maximum(tokens, 0) if padded else tokens)
        embedded = layers.StepDropout(self.gate_dropout, name="gate_dropout")(embedded)
        cell = layers.LSTMCell(self.gate_units, name="gate_cell")
        before = state_inputs(cell.state_size, after=states)
        recurrence = layers.Recurrence(cell, name="gate_recurrence")
        mask = tokens >= 0 if padded else None
        features, *after = recurrence(embedded, initial_state=before, mask=mask)
        gated = layers.FeatureGate(words, initializer_range=scale, name="gate")([features, *logits])
        return keras.tree.flatten(gated), before, after


class Cache(Station):
    """The cache on top of everything else. It has no weights."""

    cache_size: int = 0
    """int. Words that the cache remembers, 0 for none. See `dualnet.with_cache`. Past decoding is
    left out beside it."""

    cache_kind: str = choice(KINDS[0], KINDS)
    """"neural" (`NeuralCache`), or "ngram" (`NGramCache`), to which the other settings do not
    apply."""

    cache_weight: float = field(WEIGHT, check_fraction)
    """Of the cache's probabilities, at least 0 and below 1 (lambda)."""

    cache_scale: float = SCALE
    """Of the products of hidden vectors in the cache (theta)."""

    cache_start: str = choice(STARTS[0], STARTS)
    """"at_once" or "when_full"."""

    excludes = {"cache_kind": ["cache_weight", "cache_scale", "cache_start"]}  # if not the default

    @property
    def is_used(self) -> bool:
        """Whether there is a cache."""
        return self.cache_size > 0

    def check_padding(self, padded: bool) -> None:
        """Raise `ArgumentError` for a cache over a model of padded sentences."""
        if self.is_used and padded:
            self.refuse(
                "cache_size",
                "must be 0 for a model of padded sentences, which it would reach across.",
            )

    def apply(
        self, tokens: Tensor, hidden: Tensor, logits: Tensor, *, states: int
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return the log-probabilities with the cache, and its states before and after.

        The cache's keys are `hidden`; its states are numbered behind the model's `states`.
        """
        if self.cache_kind == "ngram":
            [before] = state_inputs([self.cache_size], after=states)
            cache = layers.NGramCache(self.cache_size, name="ngrams")
            log_probabilities, after = cache([tokens, logits], initial_state=before)
            return log_probabilities, [before], [after]
        cache = layers.NeuralCache(
            self.cache_size,
            weight=self.cache_weight,
            scale=self.cache_scale,
            start=self.cache_start,
            name="cache",
        )
        before = state_inputs(cache.state_sizes(hidden.shape[-1]), after=states)
        log_probabilities, *after = cache([tokens, hidden, logits], initial_state=before)
        return log_probabilities, before, after
