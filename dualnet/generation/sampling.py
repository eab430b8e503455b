"""Continues prompts by a language model: token by token, or by the likeliest text."""

import functools
import itertools
import math
import secrets
from collections.abc import Callable
from typing import Any, Unpack, overload

import keras
import numpy as np
from keras import ops

from dualnet import layers
from dualnet._backend import compiled, double_precision
from dualnet._checks import ArgumentError
from dualnet._columns import Column, ManyTexts, Results, TextResults, texts_of
from dualnet._fields import documented
from dualnet._types import Tensors
from dualnet.builders import Graph, LanguageModel, Question, Reader, questions, reader_of
from dualnet.evaluation.arguments import vocabulary_of
from dualnet.evaluation.scoring import WORK
from dualnet.generation.beam import (
    HYPOTHESES,
    Hypothesis,
    batches_by_length,
    check_logits,
    compiled_search,
)
from dualnet.generation.drawing import Draw, draw_tokens
from dualnet.requests import Beaming, Drawing, DrawingArguments
from dualnet.text import EOS, Tokenizer
from dualnet.text.plain_text import check_text

ROWS = 64  # texts that are continued in parallel
# Tokens of a block: a call of the compiled function costs as much as ten of them.
BLOCK = 64
PIECE = 16  # where each piece of the text is awaited
LONG = 32  # tokens of a text for which XLA compiles the block, in about half a second
WIDE = 8  # rows from which XLA compiles the draw of a shorter text: of fewer it gains nothing
Begun = tuple[np.ndarray, list[np.ndarray]]  # logits and states after what was read
PLAIN = (  # layers that XLA is known to compile, in float32
    keras.layers.InputLayer, keras.layers.Embedding, layers.DualConnection,
    layers.EmbeddingDropout, layers.LockedDropout, layers.OutputProjection, layers.Recurrence,
    layers.StepDropout,
)  # fmt: skip


def continuations(
    model: LanguageModel,
    streams: list[np.ndarray],
    request: Drawing,
    on_tokens: Callable[[int, list[int], bool], object] | None = None,
) -> list[list[int]]:
    """Return the ids that are drawn after each of `streams`, which has its own generator.

    A row ends before `<eos>` if `request` says so, or after its `max_tokens`. `on_tokens` is called
    with the position of a stream, all ids drawn for it so far, and whether it has ended, each time
    that some are new. A row ends if it returns True.
    """
    seed = secrets.randbits(64) if request.seed is None else request.seed
    eos_id = model.vocabulary.eos_id
    first = 0 if eos_id is None else 1  # after the `<eos>` that texts begin after
    size = BLOCK if on_tokens is None else PIECE
    settings = {
        "temperature": request.temperature or 1.0,
        "top_p": request.top_p or 1.0,
        "min_p": -math.inf if request.min_p is None else math.log(request.min_p),
        "penalty": request.repetition_penalty,
    }

    drawn: list[list[int]] = [[] for _ in streams]
    for batch in batches_by_length([*map(len, streams)], rows=ROWS):
        reader = _reader(model, request, len(batch))
        ended = np.zeros(len(batch), bool)
        randoms = [np.random.default_rng([seed, i]) for i in batch]
        logits, states = read(model, [streams[i] for i in batch])
        segment: Tensors = {n: np.full((len(batch), 1), float(x)) for n, x in settings.items()}
        stop_id = eos_id if request.stop_at_eos else -1
        segment["stop_id"] = np.full((len(batch), 1), stop_id, "int32")
        for start in range(0, request.max_tokens, size):
            limits = np.where(ended, 0, min(size, request.max_tokens - start)).astype("int32")
            segment |= {"logits": logits, "states": states, "limits": limits[:, None]}
            segment["randoms"] = np.stack([random.random(size) for random in randoms])
            if request.repetition_penalty != 1:
                segment["seen"] = np.zeros(logits.shape, bool)
                for row, i in enumerate(batch):
                    segment["seen"][row, [*streams[i][first:], *drawn[i]]] = True
            with double_precision():
                answer = reader.predict_on_batch(segment)
            logits, states = answer["logits"], answer["states"]
            for row in np.flatnonzero(~ended).tolist():
                length, i = int(answer["lengths"][row]), batch[row]
                check_logits(answer["values"][row, : length + 1].sum())
                drawn[i] += answer["ids"][row, :length].tolist()
                ended[row] = length < size or start + size >= request.max_tokens
                if on_tokens is not None and on_tokens(i, drawn[i], bool(ended[row])):
                    ended[row] = True
            if ended.all():
                break
    return drawn


def _reader(model: LanguageModel, request: Drawing, rows: int) -> Reader:
    """Return the reader that draws a block of tokens for each row as `request` says."""
    top_k = 1 if request.temperature == 0 else request.top_k
    is_long = request.max_tokens >= LONG
    choices = top_k, request.top_p not in (None, 1), is_long, rows >= WIDE
    reader = reader_of(model, _block(tuple(excluded(model, request)), *choices))
    # JAX compiles each reader, PyTorch none.
    if is_long and keras.config.backend() == "tensorflow" and not reader.compiled:
        parts = model.core.layers
        if all(isinstance(part, PLAIN) and part.compute_dtype == "float32" for part in parts):
            reader.compile(jit_compile=True)
    return reader


@functools.cache
def _block(
    excluded_ids: tuple[int, ...],
    top_k: int | None,
    has_top_p: bool,
    is_long: bool,  # of which there is a reader of its own
    is_wide: bool,
) -> Question:
    """Return a question whose answer is the `Drawn` of a block of tokens.

    A segment has the `logits` and `states` before it, `randoms`, `(rows, columns)`, and what each
    row needs, `(rows, 1)`.
    """

    def block(graph: Graph, segment: Tensors) -> Tensors:
        words = graph.word_logits.shape[-1]
        is_excluded = np.isin(range(words), excluded_ids)
        draw_one = Draw(
            temperature=segment["temperature"],
            top_p=segment["top_p"] if has_top_p else None,
            min_p=segment["min_p"],
            top_k=top_k and min(top_k, words),
        )
        if is_wide and top_k is None:
            draw_one = compiled(draw_one)

        def draw(i, logits, seen):
            for of_text in seen:
                penalty = ops.cast(segment["penalty"], "float32")
                factor = ops.where(logits > 0, 1 / penalty, penalty)
                logits = ops.where(of_text, logits * factor, logits)
            logits = ops.where(is_excluded, -math.inf, logits)
            random = ops.take(segment["randoms"], [i], axis=1)
            return draw_one(logits, random), ops.max(logits, axis=-1)

        drawn = draw_tokens(
            draw,
            graph.logits,
            segment["logits"],
            segment["states"],
            columns=ops.shape(segment["randoms"])[1],
            limits=segment["limits"][:, 0],
            stop_ids=segment["stop_id"][:, 0],
            seen=[segment["seen"]] if "seen" in segment else [],
        )
        return drawn._asdict()

    return block


def excluded(model: LanguageModel, request: Drawing) -> list[int]:
    """Return the ids that must not be drawn."""
    return [] if request.allow_unknown else model.vocabulary.unknown_ids


def read(model: LanguageModel, streams: list[np.ndarray], before: Begun | None = None) -> Begun:
    """Return the logits and the states after the last token of each of `streams`, side by side.

    What all are long enough for is read at once, the rest token by token. Logits and states are
    those `before` the first token, or zeros.
    """
    rows, lengths = len(streams), np.array([len(stream) for stream in streams])
    common, longest = int(lengths.min()), int(lengths.max())
    tokens = keras.utils.pad_sequences(streams, longest, padding="post")  # int32
    if before is None:
        before = np.zeros((rows, model.vocabulary_size), np.float32), model.graph.begin(rows)
    logits, states = before
    steps = max(1, WORK // rows)  # bounds the memory of a long prompt
    reader = reader_of(model, questions.logits)
    ends = [*range(steps, common, steps), *range(common, longest + 1)]
    for start, end in itertools.pairwise([0, *ends]):
        if end > start:
            unread = (start < lengths)[:, None]
            answer = reader.predict_on_batch({"tokens": tokens[:, start:end], "states": states})
            logits = np.where(unread, answer["logits"][:, -1], logits)
            states = [np.where(unread, *pair) for pair in zip(answer["states"], states)]
    return logits, states


# --- the likeliest continuations


def likeliest_continuations(
    model: LanguageModel, streams: list[np.ndarray], request: Drawing
) -> list[list[Hypothesis]]:
    """Return the hypotheses of `beam_search` after each of `streams`, of at least one id each."""
    settings = request.given(Beaming.names())
    settings |= {"max_tokens": request.max_tokens, "eos_id": model.vocabulary.eos_id}
    settings["excluded_ids"] = excluded(model, request)
    hypotheses: dict[int, list[Hypothesis]] = {}
    rows = max(1, HYPOTHESES // settings["beam"])
    for batch in batches_by_length([*map(len, streams)], rows=rows):
        first_ids = np.array([streams[i][-1] for i in batch])
        _, states = read(model, [streams[i][:-1] for i in batch])
        search = compiled_search(model, {"states": states}, first_ids=first_ids, **settings)
        hypotheses |= zip(batch, search)
    return [hypotheses[i] for i in range(len(streams))]


OnText = Callable[..., object]  # of a piece of text, and of the position of its prompt


class _Arguments(DrawingArguments, total=False):
    """The arguments of `generate` that do not change the type of its result."""

    column: Column | None
    on_text: OnText | None


@overload
def generate(
    model: LanguageModel,
    prompt: str,
    *,
    n_best: None = None,
    **settings: Unpack[_Arguments],
) -> str: ...


@overload
def generate(
    model: LanguageModel, prompt: str, *, n_best: int, **settings: Unpack[_Arguments]
) -> list[str]: ...


@overload
def generate(
    model: LanguageModel,
    prompt: ManyTexts,
    *,
    n_best: None = None,
    **settings: Unpack[_Arguments],
) -> Results[str]: ...


@overload
def generate(
    model: LanguageModel, prompt: ManyTexts, *, n_best: int, **settings: Unpack[_Arguments]
) -> Results[list[str]]: ...


@documented(Drawing)
def generate(
    model: LanguageModel,
    prompt: str | ManyTexts,
    *,
    column: Column | None = None,
    on_text: OnText | None = None,
    **settings: Any,
) -> str | list[str] | Results[str] | Results[list[str]]:
    """Return each prompt, continued by up to `max_tokens` tokens drawn one by one.

    With `beam`, return each prompt with its likeliest continuation instead, as `beam_search` finds
    it: nothing is drawn, and the text ends before its first `<eos>`.

    Tokens are what the model's tokeniser makes: words, or parts of words, or bytes.
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
        raise ArgumentError(
            "on_text",
            "cannot be combined with `beam`, whose text is known at the end.",
            " Leave one of them out.",
            beam=request.beam,
        )
    vocabulary = vocabulary_of(model)
    streams = streams_of(vocabulary, prompts, request.stop_at_eos)
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
    results = [first for first, *_ in texts] if request.n_best is None else texts
    return results[0] if is_one else TextResults(results, labels)


def streams_of(vocabulary: Tokenizer, prompts: list[str], stop_at_eos: bool) -> list[np.ndarray]:
    """Return the int32 ids to read for each prompt before one is drawn, `<eos>` first."""
    eos_id = vocabulary.eos_id
    if eos_id is None and stop_at_eos:
        raise ArgumentError(
            "stop_at_eos",
            f"must be False for a vocabulary without {EOS}.",
            " Set max_tokens instead.",
            stop_at_eos=stop_at_eos,
        )
    encoded = [vocabulary.encode(check_text("prompt", prompt)) for prompt in prompts]
    if eos_id is not None:
        return [np.insert(ids, 0, eos_id) for ids in encoded]
    for prompt, ids in zip(prompts, encoded):
        if not len(ids):
            required = f"must hold a word if the vocabulary has no {EOS} to start from."
            raise ArgumentError("prompt", f"{required} Received: {prompt!r}. Give the first word.")
    return encoded
