"""Perplexity, token-exact, whatever the batch size and the sequence length."""

from __future__ import annotations

import dataclasses
import math
import weakref
from typing import Any

import keras
import numpy as np
from keras import ops

from dualnet._checks import check_count, is_number
from dualnet.builders import LanguageModel, token_losses


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found.

    Attributes:
        perplexity: exp of the mean loss.
        tokens: Number of tokens predicted: all but the first.
        batch_size: Number of streams. 1 is the reference; more streams start as
            many times from the zero state, which costs a little perplexity.
        sequence_length: Tokens per step; without influence on the value.
        temperature: What the logits were divided by.
        token_losses: float32 `(tokens,)`, -log p of each token in nats, in reading order.
    """

    perplexity: float
    tokens: int
    batch_size: int
    sequence_length: int
    temperature: float
    token_losses: np.ndarray = dataclasses.field(repr=False)


def perplexity(
    model: LanguageModel,
    tokens: Any,
    *,
    temperature: float = 1.0,
    batch_size: int = 1,
    sequence_length: int | None = None,
) -> float:
    """Return the perplexity of `model` on `tokens`; arguments and errors as for `evaluate`."""
    return evaluate(
        model,
        tokens,
        temperature=temperature,
        batch_size=batch_size,
        sequence_length=sequence_length,
    ).perplexity


def evaluate(
    model: LanguageModel,
    tokens: Any,
    *,
    temperature: float = 1.0,
    batch_size: int = 1,
    sequence_length: int | None = None,
) -> Evaluation:
    """Return the loss of `model` on `tokens`, every token but the first predicted once.

    The stream is cut into `batch_size` streams of equal length (the last may be
    shorter), read side by side with carried state. The first token of a stream
    is predicted from the zero state and the token before it. Losses are summed
    in float64.

    Args:
        model: `LanguageModel`.
        tokens: int array `(num_tokens,)`, in reading order.
        temperature: float above 0; logits are divided by it.
        batch_size: int. Number of streams.
        sequence_length: int. Tokens per step; default about 2048 / batch_size.

    Raises:
        ValueError: if `tokens` holds fewer than `batch_size + 1` tokens or ids
            beyond the model's vocabulary, or if an argument is out of range.
    """
    tokens = check_tokens(tokens, model.vocabulary_size, least=2)
    check_temperature(temperature)
    check_count("batch_size", batch_size, least=1)
    if batch_size > len(tokens) - 1:
        raise ValueError(
            f"`batch_size` must be at most the {len(tokens) - 1} predicted tokens. "
            f"Received: batch_size={batch_size}."
        )
    if sequence_length is None:
        sequence_length = max(16, 2048 // batch_size)
    check_count("sequence_length", sequence_length, least=1)
    pairs = len(tokens) - 1
    length = math.ceil(pairs / batch_size)
    sequence_length = min(sequence_length, length)
    # Pad to a rectangle of whole segments: what lies beyond the text is never counted.
    steps = math.ceil(length / sequence_length)
    inputs = np.zeros((batch_size, steps * sequence_length), np.int32)
    targets = np.zeros_like(inputs)
    for row in range(batch_size):
        start, end = min(row * length, pairs), min((row + 1) * length, pairs)
        inputs[row, : end - start] = tokens[start:end]
        targets[row, : end - start] = tokens[start + 1 : end + 1]

    scorer = _scorer(model)
    divisor = np.full((batch_size, 1), temperature, np.float32)
    states = [np.zeros((batch_size, size), np.float32) for size in model.state_size]
    columns = []
    for start in range(0, inputs.shape[1], sequence_length):
        segment = slice(start, start + sequence_length)
        losses, *states = scorer.predict_on_batch(
            [inputs[:, segment], targets[:, segment], divisor, *states]
        )
        columns.append(losses)
    losses = np.concatenate(columns, axis=1)[:, :length].reshape(-1)[:pairs]
    return Evaluation(
        perplexity=perplexity_of(losses),
        tokens=pairs,
        batch_size=batch_size,
        sequence_length=sequence_length,
        temperature=temperature,
        token_losses=losses,
    )


def perplexity_of(losses: Any) -> float:
    """Return exp of the mean of `losses`, in nats, summed in float64."""
    mean = float(np.mean(losses, dtype=np.float64))
    return math.inf if mean > 700 else math.exp(mean)


def check_tokens(tokens: Any, vocabulary_size: int, *, least: int) -> np.ndarray:
    """Return `tokens` as int32 if they are one stream of ids of the vocabulary."""
    tokens = np.asarray(tokens)
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(
            "`tokens` must be a one-dimensional array of integer ids. Received: shape "
            f"{tokens.shape}, {tokens.dtype}."
        )
    if len(tokens) < least:
        raise ValueError(f"`tokens` must hold at least {least} tokens. Received: {len(tokens)}.")
    if tokens.min() < 0 or tokens.max() >= vocabulary_size:
        raise ValueError(
            f"`tokens` must be ids of the model's vocabulary, 0 to {vocabulary_size - 1}. "
            f"Received: {tokens.min()} to {tokens.max()}. Load the corpus with "
            "vocabulary=model.vocabulary."
        )
    return tokens.astype(np.int32)


def check_temperature(temperature: float) -> None:
    """Raise `ValueError` unless `temperature` is a finite number above 0."""
    if not is_number(temperature) or not 0 < temperature < math.inf:
        raise ValueError(
            f"`temperature` must be a finite number above 0. Received: temperature={temperature!r}."
        )


_scorers: weakref.WeakKeyDictionary[LanguageModel, keras.Model] = weakref.WeakKeyDictionary()


def _scorer(model: LanguageModel) -> keras.Model:
    """Return `[tokens, targets, temperature, *states] -> [losses, *states]`, kept for the model."""
    if model not in _scorers:
        core = model.core
        tokens, *states = (keras.Input(x.shape[1:], dtype=x.dtype) for x in core.inputs)
        targets = keras.Input((None,), dtype="int32")
        temperature = keras.Input((1,), dtype="float32")
        logits, *new_states = core([tokens, *states])
        losses = TokenLoss(dtype="float32")([logits, targets, temperature])
        inputs = [tokens, targets, temperature, *states]
        _scorers[model] = keras.Model(inputs, [losses, *new_states])
    return _scorers[model]


class TokenLoss(keras.layers.Layer):
    """-log p(target) in nats, from `[logits, targets, temperature]`; logits are divided."""

    def call(self, inputs):
        logits, targets, temperature = inputs
        return token_losses(logits / ops.expand_dims(temperature, -1), targets)
