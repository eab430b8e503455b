"""Continues prompts by drawn text."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Sequence
from typing import TypedDict, Unpack, overload

import numpy as np

from dualnet._checks import ArgumentError, check_texts
from dualnet._settings import check_generation
from dualnet.builders import LanguageModel
from dualnet.evaluation.arguments import vocabulary_of
from dualnet.generation.sampling import continuations, draw
from dualnet.text import EOS, UNK, Tokenizer
from dualnet.text.plain_text import check_text


class Settings(TypedDict, total=False):
    """Arguments of `generate`."""

    max_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int | None
    stop_at_eos: bool
    allow_unknown: bool


@overload
def generate(  # type: ignore[overload-overlap]  # a str is a sequence of str
    model: LanguageModel, prompt: str, **settings: Unpack[Settings]
) -> str: ...


@overload
def generate(
    model: LanguageModel, prompt: Sequence[str], **settings: Unpack[Settings]
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
    allow_unknown: bool = False,
) -> str | list[str]:
    """Return each prompt, continued by up to `max_tokens` tokens drawn one by one.

    Tokens are the units of the model's tokeniser: words, or parts of words, or bytes.
    A text begins after `<eos>`, in the zero state. The state is carried, so each token is read
    once. Prompts are read in parallel. Each has its own random generator, made from `seed` and
    the prompt's position, so its continuation does not depend on the other prompts. `<unk>` is
    never drawn unless `allow_unknown`.

    Logits are divided by `temperature`. Then `top_k` keeps the likeliest tokens, and of these
    `top_p` keeps the fewest, likeliest first, whose probabilities reach it. One is drawn from
    the rest with its renormalised probability. All of this is float64.

    Args:
        model: `LanguageModel` with a vocabulary.
        prompt: str, or a sequence of at least one str, which the tokeniser reads: a newline, or
            what else ends its documents, is `<eos>`. An empty prompt starts a document.
        max_tokens: int, at least 1. Tokens to draw for each prompt.
        temperature: float, at least 0. 0 is greedy: it takes the likeliest token; ties go to the
            lower id.
        top_k: int, at least 1, or None. Number of tokens to draw from.
        top_p: float above 0 and at most 1, or None. Total probability of the tokens to draw from.
        seed: int, at least 0, for reproducible draws; None for new ones each time.
        stop_at_eos: bool. Whether a text ends before the first `<eos>` drawn.
        allow_unknown: bool. Whether `<unk>` may be drawn like any other token, as in papers that
            take the argmax of all words.

    Returns:
        str for a str: the tokens of the prompt and those drawn, decoded as one text. Words have
        spaces between them, what is unknown is `<unk>`, and `<eos>` is a newline (an empty line
        if blank lines end documents). The tokeniser of bytes, and byte-level BPE, give the prompt
        back unchanged; a character of which the last bytes are missing becomes the replacement
        character. For a sequence, a list in the same order.

    Raises:
        ValueError: if a word of the prompt is unknown and there is no `<unk>`; if a prompt holds
            half of a surrogate pair; if `<eos>` is needed but not in the vocabulary; or if the
            logits are not finite.

    Example:
        >>> import dualnet
        >>> from dualnet import zoo
        >>> from dualnet.text import Vocabulary
        >>> model = zoo.build("lstm", vocabulary_size=3, units=4)
        >>> model.vocabulary = Vocabulary(("<eos>", "the", "cat"))
        >>> text = dualnet.generate(model, "the", max_tokens=5, seed=0)
        >>> text.startswith("the"), len(model.vocabulary.encode(text))
        (True, 6)
    """
    prompts = check_texts("prompt", prompt)
    if not prompts:
        raise ArgumentError("prompt", "must hold at least one string. Received: an empty sequence.")
    check_generation(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop_at_eos=stop_at_eos,
        allow_unknown=allow_unknown,
    )
    seed = secrets.randbits(64) if seed is None else seed
    vocabulary = vocabulary_of(model)
    if vocabulary.words == (UNK,) and not allow_unknown:
        message = f"must know a word to draw. Received: a vocabulary of {UNK} only."
        raise ArgumentError("model", message)
    streams = _streams(vocabulary, prompts, stop_at_eos)
    choose = functools.partial(draw, temperature=temperature, top_k=top_k, top_p=top_p)
    stop_id = vocabulary.eos_id if stop_at_eos else None
    excluded_id = None if allow_unknown else vocabulary.unk_id
    start = 0 if vocabulary.eos_id is None else 1
    drawn = continuations(
        model, streams, choose, max_tokens, seed=seed, stop_id=stop_id, excluded_id=excluded_id
    )
    texts = [vocabulary.decode([*stream[start:], *ids]) for stream, ids in zip(streams, drawn)]
    return texts[0] if isinstance(prompt, str) else texts


def _streams(vocabulary: Tokenizer, prompts: list[str], stop_at_eos: bool) -> list[np.ndarray]:
    """Return the int32 ids to read for each prompt before one is drawn, `<eos>` first."""
    eos_id = vocabulary.eos_id
    if eos_id is None and stop_at_eos:
        raise ArgumentError(
            "stop_at_eos",
            f"must be False for a vocabulary without {EOS}. "
            f"Received: stop_at_eos={stop_at_eos!r}. Set max_tokens instead.",
        )
    encoded = [vocabulary.encode(check_text("prompt", prompt)) for prompt in prompts]
    if eos_id is not None:
        return [np.insert(ids, 0, eos_id) for ids in encoded]
    for prompt, ids in zip(prompts, encoded):
        if not len(ids):
            raise ArgumentError(
                "prompt",
                f"must hold a word if the vocabulary has no {EOS} to start from. "
                f"Received: {prompt!r}. Give the first word.",
            )
    return encoded
