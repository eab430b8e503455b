"""Perplexity, token-exact, whatever the batch size and the sequence length; scores of texts."""

from __future__ import annotations

import dataclasses
import itertools
import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, overload

import keras
import numpy as np
from keras import ops

from dualnet._checks import check_count, check_texts, is_number
from dualnet.builders import LanguageModel, token_losses
from dualnet.corpora import EOS, Vocabulary

WORK = 2048  # tokens that one call reads, about
SHORTEST, LONGEST = 8, 512  # tokens of a text that one call of `score` reads


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


@dataclasses.dataclass(frozen=True)
class Score:
    """What `score` found in one text.

    Attributes:
        words: The tokens as they were read: `<unk>` for an unknown word, `<eos>` for
            a newline.
        log_probabilities: float32 `(tokens,)`, log p of each token in nats, given
            those before it.
        perplexity: exp of the mean of -log p, summed in float64; nan without tokens.
        tokens: Number of tokens.
    """

    words: tuple[str, ...]
    log_probabilities: np.ndarray = dataclasses.field(repr=False, compare=False)
    perplexity: float
    tokens: int


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
        tokens: int array `(num_tokens,)`, in reading order. An int32 array, which may
            be memory-mapped, is read piece by piece and never copied whole.
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
        sequence_length = max(16, WORK // batch_size)
    check_count("sequence_length", sequence_length, least=1)
    pairs = len(tokens) - 1
    length = math.ceil(pairs / batch_size)
    sequence_length = min(sequence_length, length)
    losses = np.empty(pairs, np.float32)
    ends = [min(row * length, pairs) for row in range(batch_size + 1)]
    streams = [tokens[start : end + 1] for start, end in itertools.pairwise(ends)]
    found = [losses[start:end] for start, end in itertools.pairwise(ends)]
    _read(model, streams, found, rows=batch_size, steps=sequence_length, temperature=temperature)
    return Evaluation(
        perplexity=perplexity_of(losses),
        tokens=pairs,
        batch_size=batch_size,
        sequence_length=sequence_length,
        temperature=temperature,
        token_losses=losses,
    )


@overload
def score(  # type: ignore[overload-overlap]  # a str is a sequence of str
    model: LanguageModel, text: str, *, temperature: float = 1.0
) -> Score: ...


@overload
def score(
    model: LanguageModel, text: Sequence[str], *, temperature: float = 1.0
) -> list[Score]: ...


def score(
    model: LanguageModel, text: str | Sequence[str], *, temperature: float = 1.0
) -> Score | list[Score]:
    """Return the log-probability of each word of a text, or of each of several texts.

    A text begins after `<eos>`, in the zero state, so that its first word is
    scored too; each newline in it is one `<eos>`, which is scored. Texts of
    about the same length are read together, padded; a text's numbers do not
    depend on the others beyond float rounding.

    Args:
        model: `LanguageModel` with a vocabulary that has `<eos>`.
        text: str, or a sequence of str.
        temperature: float above 0; logits are divided by it.

    Returns:
        `Score` for a str; for a sequence a list of them, in its order.

    Raises:
        ValueError: if the model has no vocabulary, or one without `<eos>`; if a word
            is unknown and there is no `<unk>`; if `text` holds anything but str, or
            `temperature` is out of range.
    """
    texts = check_texts("text", text)
    check_temperature(temperature)
    vocabulary = vocabulary_of(model)
    if vocabulary.eos_id is None:
        raise ValueError(
            f"`model` must have a vocabulary with {EOS}, after which a text begins. Received: "
            f"{vocabulary!r} without it. Use `evaluate` for a stream of ids."
        )
    start = np.array([vocabulary.eos_id], np.int32)
    streams = [np.concatenate([start, vocabulary.encode(each)]) for each in texts]
    losses = [np.empty(len(stream) - 1, np.float32) for stream in streams]
    for rows, steps, batch in _batches([len(each) for each in losses]):
        several = [[arrays[i] for i in batch] for arrays in (streams, losses)]
        _read(model, *several, rows=rows, steps=steps, temperature=temperature)
    scores = [
        Score(
            words=tuple(vocabulary.words[i] for i in stream[1:]),
            log_probabilities=-found,
            perplexity=perplexity_of(found),
            tokens=len(found),
        )
        for stream, found in zip(streams, losses)
    ]
    return scores[0] if isinstance(text, str) else scores


def perplexity_of(losses: Any) -> float:
    """Return exp of the mean of `losses`, in nats, summed in float64; nan for none."""
    if len(losses) == 0:
        return math.nan
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
    return tokens.astype(np.int32, copy=False)


def check_temperature(temperature: float) -> None:
    """Raise `ValueError` unless `temperature` is a finite number above 0, and not next to it."""
    # Logits divided by much less than this are no float32 any more.
    if not is_number(temperature) or not 1e-6 <= temperature < math.inf:
        raise ValueError(
            "`temperature` must be a finite number above 0, of at least 1e-6. Received: "
            f"temperature={temperature!r}."
        )


def vocabulary_of(model: Any) -> Vocabulary:
    """Return the vocabulary of `model`, or raise `ValueError` if it has none."""
    vocabulary = getattr(model, "vocabulary", None)
    if vocabulary is None:
        raise ValueError(
            "`model` must be a LanguageModel with a vocabulary. Received: one without. Set "
            "model.vocabulary, or train it on a corpus."
        )
    return vocabulary


def _batches(lengths: Sequence[int]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield rows, steps per call and places, shortest first, of texts to be read together.

    Texts of about one length are read in about eight pieces, so that little is
    padding, and many side by side. Rows and steps are powers of two: few shapes,
    since JAX compiles each.
    """

    def pieces(i: int) -> int:
        return min(max(SHORTEST, _power_of_two(lengths[i]) // 8), LONGEST)

    order = sorted((i for i, n in enumerate(lengths) if n), key=lengths.__getitem__)
    for steps, group in itertools.groupby(order, key=pieces):
        while batch := list(itertools.islice(group, WORK // steps)):
            rows = _power_of_two(len(batch))  # fewer, and longer pieces, in the last batch
            longest = max(SHORTEST, _power_of_two(lengths[batch[-1]]))
            yield rows, min(WORK // rows, longest, LONGEST), batch


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def _read(
    model: LanguageModel,
    streams: Sequence[np.ndarray],
    found: Sequence[np.ndarray],
    *,
    rows: int,
    steps: int,
    temperature: float,
) -> None:
    """Read `streams` side by side from the zero state, with carried state; fill `found`.

    Args:
        streams: int arrays `(n + 1,)` with an n of their own, at most `rows` of them.
        found: float32 arrays `(n,)`: -log p of each token but the first of a stream,
            in nats, is written here.
        rows: int. Rows of a call; those without a stream are padding.
        steps: int. Tokens of a row in one call.
        temperature: float. Logits are divided by it.
    """
    scorer = _scorer(model)
    divisor = np.full((rows, 1), temperature, np.float32)
    states = [np.zeros((rows, size), np.float32) for size in model.state_size]
    for start in range(0, max(map(len, found)), steps):
        inputs, targets = np.zeros((2, rows, steps), np.int32)  # what lies beyond is not counted
        ends = [min(start + steps, len(each)) for each in found]
        for row, (stream, end) in enumerate(zip(streams, ends)):
            if end > start:
                inputs[row, : end - start] = stream[start:end]
                targets[row, : end - start] = stream[start + 1 : end + 1]
        losses, *states = scorer.predict_on_batch([inputs, targets, divisor, *states])
        for row, (each, end) in enumerate(zip(found, ends)):
            if end > start:
                each[start:end] = losses[row, : end - start]


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
