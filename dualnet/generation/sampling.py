"""Continues prompts by a language model: token by token, or by the likeliest text."""

import itertools
import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any, overload

import keras
import numpy as np

from dualnet._checks import ArgumentError
from dualnet._columns import Column, Results, TextResults, texts_of
from dualnet._fields import documented
from dualnet.builders import LanguageModel
from dualnet.builders.sharing import predict
from dualnet.evaluation.arguments import vocabulary_of
from dualnet.evaluation.scoring import WORK
from dualnet.generation.beam import HYPOTHESES, Hypothesis, check_logits, compiled_search
from dualnet.generation.blocks import BLOCK, PIECE, Batch, Drawn, blocks
from dualnet.requests import Beaming, Drawing
from dualnet.text import EOS, UNK, Tokenizer
from dualnet.text.plain_text import check_text

ROWS = 64  # texts that are continued in parallel


def continuations(
    model: LanguageModel,
    streams: list[np.ndarray],
    request: Drawing,
    *,
    ends: Callable[[np.ndarray, list[int]], bool] | None = None,
    on_tokens: Callable[[int, list[int], bool], None] | None = None,
) -> list[list[int]]:
    """Return the ids that are drawn after each of `streams`, which has its own generator.

    A row ends before `<eos>` if `request` says so, after its `max_tokens`, or when `ends` of its
    stream and the ids drawn is True. `on_tokens` is called with the position of a stream, all ids
    drawn for it so far, and whether it has ended, each time that some are new.
    """
    seed = secrets.randbits(64) if request.seed is None else request.seed
    excluded_ids = excluded(model, request)
    stop_id = model.vocabulary.eos_id if request.stop_at_eos else None
    first = 0 if model.vocabulary.eos_id is None else 1  # after the `<eos>` that texts begin after
    in_steps = {"torch": True, "jax": request.sorts_slowly}  # on JAX, XLA compiles all
    draw_in = _single_tokens if in_steps.get(keras.backend.backend()) else blocks
    size = PIECE if ends or on_tokens else BLOCK

    def continue_batch(batch: list[int]) -> list[list[int]]:
        drawn: list[list[int]] = [[] for _ in batch]
        ended = [False] * len(batch)
        seen = [{*streams[i][first:].tolist()} for i in batch]
        randoms = [np.random.default_rng([seed, i]) for i in batch]
        rows = Batch(model, request, randoms, excluded_ids, stop_id, seen, ended)
        for ids, highest in draw_in(rows, *read(model, [streams[i] for i in batch]), size):
            for row, i in enumerate(batch):
                if ended[row]:
                    continue
                for word_id, logit in zip(ids[row].tolist(), highest[row].tolist()):
                    check_logits(logit)
                    if word_id != stop_id:
                        drawn[row].append(word_id)
                        seen[row].add(word_id)
                    ended[row] = word_id == stop_id or len(drawn[row]) == request.max_tokens
                    ended[row] |= ends is not None and ends(streams[i], drawn[row])
                    if ended[row]:
                        break
                if on_tokens is not None:
                    on_tokens(i, drawn[row], ended[row])
            if all(ended):
                break
        return drawn

    return _in_batches(continue_batch, streams, ROWS)


def _single_tokens(batch: Batch, logits: np.ndarray, states: list[np.ndarray], size: int) -> Drawn:
    """Yield what `blocks` does, one token at a time, without the loop inside the function."""
    how = batch.request.given(["temperature", "top_k", "top_p", "min_p"])
    penalty = batch.request.repetition_penalty
    while True:
        tokens = np.zeros((len(logits), 1), np.int32)  # rows that have ended read padding
        highest = np.zeros(tokens.shape)
        for row in np.flatnonzero(~np.array(batch.ended)):
            scores = logits[row].astype(np.float64)
            if penalty != 1:
                ids = [*batch.seen[row]]
                scores[ids] *= np.where(scores[ids] > 0, 1 / penalty, penalty)
            scores[batch.excluded_ids] = -np.inf
            highest[row] = scores.max()
            tokens[row] = draw(scores, batch.randoms[row], **how)
        yield tokens, highest
        logits, *states = predict(batch.model.core, [tokens, *states])
        logits = logits[:, -1]


def _in_batches(
    function: Callable[[list[int]], list[Any]], streams: list[np.ndarray], rows: int
) -> list[Any]:
    """Return the results of `function` of indices, for all `streams`, `rows` at a time."""
    results: list[Any] = [None] * len(streams)
    order = sorted(range(len(streams)), key=lambda i: len(streams[i]))  # similar lengths together
    for first in range(0, len(order), rows):
        batch = order[first : first + rows]
        for i, result in zip(batch, function(batch)):
            results[i] = result
    return results


def excluded(model: LanguageModel, request: Drawing) -> list[int]:
    """Return the ids that must not be drawn."""
    return [] if request.allow_unknown else model.vocabulary.unknown_ids


def read(model: LanguageModel, streams: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the logits and the states after the last token of each of `streams`, side by side.

    What all are long enough for is read at once, the rest token by token. Before the first token,
    logits and states are zeros.
    """
    rows, lengths = len(streams), np.array([len(stream) for stream in streams])
    common, longest = int(lengths.min()), int(lengths.max())
    tokens = keras.utils.pad_sequences(streams, longest, padding="post")  # int32
    logits = np.zeros((rows, model.vocabulary_size), np.float32)
    states = [np.zeros((rows, size), np.float32) for size in model.state_size]
    steps = max(1, WORK // rows)  # bounds the memory of a long prompt
    ends = [*range(steps, common, steps), *range(common, longest + 1)]
    for start, end in itertools.pairwise([0, *ends]):
        if end > start:
            unread = (start < lengths)[:, None]
            new_logits, *new = predict(model.core, [tokens[:, start:end], *states])
            logits = np.where(unread, new_logits[:, -1], logits)
            states = [np.where(unread, *pair) for pair in zip(new, states)]
    return logits, states


def draw(
    scores: np.ndarray,
    random: np.random.Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> int:
    """Return the id of one token drawn from `random`; see `generate`.

    `scores` are logits, float64 `(tokens,)`; -inf for one that must not be drawn.
    """
    likeliest = int(np.argmax(scores))  # the lower id in a tie; nan before everything
    check_logits(scores[likeliest])
    if temperature == 0:
        return likeliest
    with np.errstate(over="ignore"):  # an overflow to infinity does no harm
        scores = (scores - scores[likeliest]) / temperature
    if min_p is not None:
        scores[scores < math.log(min_p)] = -np.inf
    ids = None
    if top_k is not None and top_k < len(scores):
        threshold = np.partition(scores, -top_k)[-top_k]
        ids = np.flatnonzero(scores >= threshold)  # more than top_k if there are ties
        ids = ids[np.argsort(-scores[ids], kind="stable")[:top_k]]
    elif top_p is not None and top_p < 1:
        ids = np.argsort(-scores, kind="stable")  # ties go to the lower id
    sums = np.cumsum(np.exp(scores if ids is None else scores[ids]))
    if ids is not None and top_p is not None:
        sums = sums[: 1 + np.searchsorted(sums[:-1], top_p * sums[-1])]
    # side="right" never draws a word of probability 0, which does not increase the sum.
    index = int(np.searchsorted(sums, random.random() * sums[-1], side="right"))
    return index if ids is None else int(ids[index])


# --- the likeliest continuations


def likeliest_continuations(
    model: LanguageModel, streams: list[np.ndarray], request: Drawing
) -> list[list[Hypothesis]]:
    """Return the hypotheses of `beam_search` after each of `streams`, of at least one id each."""
    settings = request.given(Beaming.names())
    settings |= {"max_tokens": request.max_tokens, "eos_id": model.vocabulary.eos_id}
    settings["excluded_ids"] = excluded(model, request)

    def search(batch: list[int]) -> list[list[Hypothesis]]:
        how = {**settings, "first_ids": np.array([streams[i][-1] for i in batch])}
        _, states = read(model, [streams[i][:-1] for i in batch])
        return compiled_search(model, {"states": states}, **how)

    return _in_batches(search, streams, max(1, HYPOTHESES // settings["beam"]))


@overload
def generate(model: LanguageModel, prompt: str, *, n_best: None = None, **settings: Any) -> str: ...


@overload
def generate(
    model: LanguageModel, prompt: Sequence[str] | Any, *, n_best: None = None, **settings: Any
) -> Results[str]: ...


@overload
def generate(model: LanguageModel, prompt: str, *, n_best: int, **settings: Any) -> list[str]: ...


@overload
def generate(
    model: LanguageModel, prompt: Sequence[str] | Any, *, n_best: int, **settings: Any
) -> Results[list[str]]: ...


@documented(Drawing)
def generate(
    model: LanguageModel,
    prompt: Any,
    *,
    column: Column | None = None,
    on_text: Callable[..., object] | None = None,
    **settings: Any,
) -> str | list[str] | Results[str] | Results[list[str]]:
    """Return each prompt, continued by up to `max_tokens` tokens drawn one by one.

    With `beam`, return each prompt with its likeliest continuation instead, as `beam_search` finds
    it: nothing is drawn, and the text ends before its first `<eos>`.

    Tokens are the units of the model's tokeniser: words, or parts of words, or bytes.
    A text begins after `<eos>`, in the zero state. The state is carried, so each token is read
    once. Prompts are read in parallel. Each has its own random generator, made from `seed` and
    the prompt's position, so its continuation does not depend on the other prompts. `<unk>` is
    never drawn unless `allow_unknown`.

    Logits are divided by `temperature`. Then `min_p` keeps the tokens that are likely enough beside
    the likeliest one, `top_k` keeps the likeliest, and of these `top_p` keeps the fewest, likeliest
    first, whose probabilities reach it. One is drawn from the rest with its renormalised
    probability. All of this is float64.

    Args:
        model: `LanguageModel` with a vocabulary.
        prompt: str; a sequence, NumPy array or pandas column of at least one str; or a table
            with `column`. The tokeniser reads them: a newline, or what else ends its documents,
            is `<eos>`. An empty prompt starts a document.
        column: str or int. The column that holds the prompts, if `prompt` is a table: a
            DataFrame or a dict of columns.
        on_text: Function that is called with each piece of the text, up to 16 tokens, as soon as
            it is drawn. The first begins with the prompt; together they are the text. With several
            prompts, which are continued side by side, it is called with a piece and the position
            of its prompt. Excludes `beam`: a search knows its text at the end.
        {arguments}

    Returns:
        str for a str: the tokens of the prompt and those drawn, decoded as one text. Words have
        spaces between them, what is unknown is `<unk>`, and `<eos>` is a newline (an empty line
        if blank lines end documents). The tokeniser of bytes, and byte-level BPE, give the prompt
        back unchanged; a character of which the last bytes are missing becomes the replacement
        character. For a sequence, a list in the same order, whose method `to_frame()` makes a
        `pandas.DataFrame` under the labels of the prompts. With `n_best`, there is a list of at
        most `n_best` texts, the likeliest first, in place of each text.

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
        >>> pieces = []
        >>> text == dualnet.generate(model, "the", max_tokens=5, seed=0, on_text=pieces.append)
        True
        >>> text == "".join(pieces)
        True
        >>> len(dualnet.generate(model, "the", max_tokens=5, beam=3, n_best=2))
        2
    """
    prompts, labels, is_one = texts_of("prompt", prompt, column)
    if not prompts:
        raise ArgumentError("prompt", "must hold at least one string. Received: an empty sequence.")
    request = Drawing.of(settings)
    if on_text is not None and request.beam is not None:
        required = "cannot be combined with `beam`, whose text is known at the end."
        raise ArgumentError("on_text", required, " Leave one of them out.", beam=request.beam)
    vocabulary = vocabulary_of(model)
    if vocabulary.words == (UNK,) and not request.allow_unknown:
        message = f"must know a word to draw. Received: a vocabulary of {UNK} only."
        raise ArgumentError("model", message)
    streams = _streams(vocabulary, prompts, request.stop_at_eos)
    start = 0 if vocabulary.eos_id is None else 1
    if request.beam is None:
        shown = [""] * len(streams)  # of each text

        def show(i: int, ids: list[int], has_ended: bool) -> None:
            text = vocabulary.decode([*streams[i][start:], *ids])
            # A character of which bytes are missing may become another.
            known = text if has_ended else text.rstrip("\ufffd")
            if on_text is not None and known != shown[i]:
                on_text(known[len(shown[i]) :], *[i] * (not is_one))
                shown[i] = known

        on_tokens = None if on_text is None else show
        generated = [[ids] for ids in continuations(model, streams, request, on_tokens=on_tokens)]
    else:
        request.check_width(len(vocabulary))
        hypotheses = likeliest_continuations(model, streams, request)
        generated = [[list(item.ids) for item in several] for several in hypotheses]
    texts = [
        [vocabulary.decode([*stream[start:], *ids]) for ids in several]
        for stream, several in zip(streams, generated)
    ]
    results: list[Any] = [first for first, *_ in texts] if request.n_best is None else texts
    return results[0] if is_one else TextResults(results, labels)


def _streams(vocabulary: Tokenizer, prompts: list[str], stop_at_eos: bool) -> list[np.ndarray]:
    """Return the int32 ids to read for each prompt before one is drawn, `<eos>` first."""
    eos_id = vocabulary.eos_id
    if eos_id is None and stop_at_eos:
        required = f"must be False for a vocabulary without {EOS}."
        way_out = " Set max_tokens instead."
        raise ArgumentError("stop_at_eos", required, way_out, stop_at_eos=stop_at_eos)
    encoded = [vocabulary.encode(check_text("prompt", prompt)) for prompt in prompts]
    if eos_id is not None:
        return [np.insert(ids, 0, eos_id) for ids in encoded]
    for prompt, ids in zip(prompts, encoded):
        if not len(ids):
            required = f"must hold a word if the vocabulary has no {EOS} to start from."
            raise ArgumentError("prompt", f"{required} Received: {prompt!r}. Give the first word.")
    return encoded
