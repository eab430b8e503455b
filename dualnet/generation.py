"""Text from a model, word by word, with carried state."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import overload

import numpy as np

from dualnet._checks import ArgumentError, check_count, check_flag, check_texts, is_number
from dualnet.builders import LanguageModel
from dualnet.corpora import EOS, UNK, Vocabulary
from dualnet.evaluation import WORK, vocabulary_of

ROWS = 64  # texts that are continued side by side


@overload
def generate(  # type: ignore[overload-overlap]  # a str is a sequence of str
    model: LanguageModel,
    prompt: str,
    *,
    max_tokens: int = 50,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop_at_eos: bool = False,
) -> str: ...


@overload
def generate(
    model: LanguageModel,
    prompt: Sequence[str],
    *,
    max_tokens: int = 50,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop_at_eos: bool = False,
) -> list[str]: ...


def generate(
    model: LanguageModel,
    prompt: str | Sequence[str],
    *,
    max_tokens: int = 50,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop_at_eos: bool = False,
) -> str | list[str]:
    """Return each prompt with up to `max_tokens` words drawn after it, one by one.

    A text begins after `<eos>`, in the zero state. The state is carried: each
    token is read once. Several prompts are read side by side, and each draws
    from a generator of its own, made from `seed` and its place: what follows it
    does not depend on the other prompts. `<unk>` is never drawn.

    The logits are divided by `temperature`; of the words, `top_k` are left, and
    of these the likeliest whose probabilities together reach `top_p`; one is
    drawn by its probability among those left. All of it in float64.

    Args:
        model: `LanguageModel` with a vocabulary.
        prompt: str, or a sequence of at least one str: words between spaces;
            newlines are `<eos>`. An empty prompt begins a line.
        max_tokens: int, at least 1. Words drawn for each prompt.
        temperature: float, at least 0. 0 takes the likeliest word, the one of lowest
            id among equals.
        top_k: int, at least 1, or None. Number of likeliest words left.
        top_p: float above 0 and at most 1, or None. Probability of the words left.
        seed: int, at least 0, for the same draw again; None for a new one each time.
        stop_at_eos: bool. Whether a text ends before the first `<eos>` drawn.

    Returns:
        str for a str: the prompt as read, an unknown word as `<unk>`, and what was drawn,
        with spaces between words and newlines for `<eos>`. For a sequence a list, in its order.

    Raises:
        ValueError: if the model has no vocabulary; if a word of the prompt is unknown
            and there is no `<unk>`; if `<eos>` is needed and not in the vocabulary;
            if the logits are not numbers; or if an argument is out of range.
    """
    prompts = check_texts("prompt", prompt)
    if not prompts:
        raise ArgumentError("prompt", "must hold at least one string. Received: an empty sequence.")
    check_count("max_tokens", max_tokens, least=1)
    if not is_number(temperature) or not 0 <= temperature < math.inf:
        raise ArgumentError(
            "temperature",
            "must be a finite number of at least 0, which takes the likeliest word. "
            f"Received: temperature={temperature!r}.",
        )
    if top_k is not None:
        check_count("top_k", top_k, least=1)
    if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
        raise ArgumentError(
            "top_p", f"must be a number above 0 and at most 1. Received: top_p={top_p!r}."
        )
    seed = secrets.randbits(64) if seed is None else check_count("seed", seed, least=0)
    check_flag("stop_at_eos", stop_at_eos)
    vocabulary = vocabulary_of(model)
    streams = _streams(vocabulary, prompts, stop_at_eos)

    texts = [""] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(streams[i]))  # little to wait for
    for first in range(0, len(order), ROWS):
        batch = order[first : first + ROWS]
        drawn = _continue(
            model,
            [streams[i] for i in batch],
            [np.random.default_rng([seed, i]) for i in batch],
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            stop_id=vocabulary.eos_id if stop_at_eos else None,
        )
        for i, ids in zip(batch, drawn):
            begin = 0 if vocabulary.eos_id is None else 1
            texts[i] = vocabulary.decode([*streams[i][begin:], *ids])
    return texts[0] if isinstance(prompt, str) else texts


def _streams(vocabulary: Vocabulary, prompts: list[str], stop_at_eos: bool) -> list[np.ndarray]:
    """Return what is read of each prompt before a word is drawn: int32 ids, `<eos>` first."""
    eos_id = vocabulary.eos_id
    if vocabulary.words == (UNK,):
        raise ArgumentError(
            "model", f"must know a word to draw. Received: a vocabulary of {UNK} alone."
        )
    if eos_id is None and stop_at_eos:
        raise ArgumentError(
            "stop_at_eos",
            f"must be False for a vocabulary without {EOS}, which cannot be drawn. "
            f"Received: stop_at_eos={stop_at_eos!r}. Set max_tokens instead.",
        )
    encoded = [vocabulary.encode(prompt) for prompt in prompts]
    if eos_id is not None:
        return [np.concatenate([np.array([eos_id], np.int32), ids]) for ids in encoded]
    for prompt, ids in zip(prompts, encoded):
        if not len(ids):
            raise ArgumentError(
                "prompt",
                f"must hold a word for a vocabulary without {EOS}, after which a text "
                f"begins. Received: {prompt!r}. Give the first word.",
            )
    return encoded


def _continue(
    model: LanguageModel,
    streams: list[np.ndarray],
    randoms: list[np.random.Generator],
    *,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    stop_id: int | None,
) -> list[list[int]]:
    """Return the ids drawn after each of `streams`, by the generator in its place.

    What all streams have is read at once; then each step reads one token of each:
    the next of its stream, or the one drawn last.
    """
    rows = len(streams)
    drawn: list[list[int]] = [[] for _ in streams]
    ended = [False] * rows
    states = [np.zeros((rows, size), np.float32) for size in model.state_size]
    position = min(map(len, streams))  # tokens of each row that were read
    start = np.stack([stream[:position] for stream in streams])
    steps = max(1, WORK // rows)  # of a long prompt, for the sake of memory
    for first in range(0, position, steps):
        piece = start[:, first : first + steps]
        logits, *states = model.core.predict_on_batch([piece, *states])
    while True:
        tokens = np.zeros((rows, 1), np.int32)  # a row that has ended reads padding
        for row, stream in enumerate(streams):
            if position < len(stream):
                tokens[row] = stream[position]
            elif not ended[row]:
                scores = logits[row, -1].astype(np.float64)
                if model.vocabulary.unk_id is not None:
                    scores[model.vocabulary.unk_id] = -np.inf
                tokens[row] = chosen = draw(scores, randoms[row], temperature, top_k, top_p)
                if chosen != stop_id:
                    drawn[row].append(chosen)
                ended[row] = chosen == stop_id or len(drawn[row]) == max_tokens
        if all(ended):
            return drawn
        logits, *states = model.core.predict_on_batch([tokens, *states])
        position += 1


def draw(
    scores: np.ndarray,
    random: np.random.Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> int:
    """Return the id of a word, drawn once from `random`; see `generate`.

    Args:
        scores: float64 `(words,)`, logits; -inf for a word that must not be drawn.

    Raises:
        ValueError: if a score is nan, or none is finite.
    """
    likeliest = int(np.argmax(scores))  # the lowest id among equals; nan comes first
    if not math.isfinite(scores[likeliest]):
        raise ArgumentError(
            "model",
            "must give logits that are numbers. Received: "
            f"{scores[likeliest]}. Train it again with a smaller learning_rate.",
        )
    if temperature == 0:
        return likeliest
    with np.errstate(over="ignore"):  # beyond the greatest number is as good as infinite
        scores = (scores - scores[likeliest]) / temperature
    ids = None
    if top_k is not None and top_k < len(scores):
        least = np.partition(scores, -top_k)[-top_k]
        ids = np.flatnonzero(scores >= least)  # more than top_k where some are equal
        ids = ids[np.argsort(-scores[ids], kind="stable")[:top_k]]
    elif top_p is not None and top_p < 1:
        ids = np.argsort(-scores, kind="stable")  # the likeliest first, the lowest id of equals
    sums = np.cumsum(np.exp(scores if ids is None else scores[ids]))
    if ids is not None and top_p is not None:
        left = 1 + np.searchsorted(sums[:-1], top_p * sums[-1])
        sums = sums[:left]
    # On the right: never a word of probability 0, which adds nothing to the sum.
    place = int(np.searchsorted(sums, random.random() * sums[-1], side="right"))
    return place if ids is None else int(ids[place])
