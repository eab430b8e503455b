"""Completes the word that is being typed: a small beam over tokens, in Python and a SavedModel."""

import contextlib
import functools
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple, Protocol, Unpack, runtime_checkable

import numpy as np
from keras import ops

from dualnet._backend import like
from dualnet._checks import as_texts
from dualnet._fields import documented
from dualnet._types import Tensor, Tensors
from dualnet.builders import Graph, LanguageModel, Question, reader_of
from dualnet.evaluation.arguments import vocabulary_of
from dualnet.generation.beam import NONE, rows_of, taken, top_columns
from dualnet.generation.drawing import Advance
from dualnet.generation.sampling import Begun, read, streams_of
from dualnet.requests import BEAM, Completing, CompletingArguments
from dualnet.text.pieces import LONGEST, Pieces, words_in
from dualnet.text.plain_text import check_text

KEPT = 4 * BEAM  # spellings of words


class Completion(NamedTuple):
    """A word that `complete` offers.

    Attributes:
        word: The whole word, which begins with what is typed of it.
        probability: That of the word, given the text and what is typed of the word.

    Example:

    >>> from dualnet.generation import Completion
    >>> Completion("the", 0.5).word
    'the'
    """

    word: str
    probability: float


def spellings(
    pieces: Pieces, advance: Advance, logits: Tensor, states: list[Tensor], typed: Tensors
) -> Tensors:
    """Return the likeliest ways to spell a word that begins as is typed.

    A hypothesis is a row of tokens. Each step extends those of a word by every token that agrees
    with what is typed, and beyond it holds letters alone, and keeps the `BEAM` likeliest. As a
    word, one has the probability of its tokens and of a next token that does not go on with the
    word. The search ends when nothing can be among the `2 k` likeliest: some may not be offered.

    Args:
        pieces: Tables of the tokens.
        advance: The step of the model.
        logits, states: After the text before the word, `(rows, words)` and `(rows, size)`.
        typed: int32: the bytes "spelt" `(rows, LONGEST)`, and zeros; and `(rows, 1)` their number,
            "length", "may_space" of `Typed`, and "k".

    Returns:
        "ids", int32 `(rows, KEPT, LONGEST)`, with -1 after the tokens of a word; and "log_p",
        float32 `(rows, KEPT)`, in nats, given what is typed, likeliest first; -inf for none.
    """
    tables = pieces.table.astype("int32"), pieces.lengths, pieces.heads, pieces.ends
    table, lengths, heads, ends = map(ops.convert_to_tensor, tables)
    words, length = len(pieces.lengths), typed["length"]

    def step(i, log_p, totals, left, ids, states, word_ids, word_scores, mass):
        is_first, missing = i == 0, left[..., None]  # bytes that are typed, but not spelt

        def agree(j, fits):
            place = ops.minimum(length - left + j, LONGEST - 1)
            byte = ops.take_along_axis(typed["spelt"], place, axis=1)[..., None]
            is_equal = ops.take(table, j, axis=0) == byte
            return fits & (is_equal | (j >= lengths) | (j >= missing))

        fits = ops.broadcast_to(lengths > 0, ops.shape(log_p))
        fits = ops.fori_loop(0, ops.max(left), agree, fits)  # one by one, to save memory
        covers = fits & (lengths >= missing)
        log_p = log_p + totals[..., None]
        begun = ops.where(covers & (missing > 0), log_p, NONE)
        mass = ops.logaddexp(mass, ops.logsumexp(begun, axis=(1, 2)))
        may_begin = (missing > 0) | is_first
        head = missing + ops.where(is_first, typed["may_space"][..., None], 0)
        goes_on = (heads <= head) & (may_begin | ~ends)
        log_p = ops.where(ops.where(covers, goes_on, fits), log_p, NONE)
        totals, places = top_columns(ops.reshape(log_p, (-1, BEAM * words)), BEAM)
        parents, tokens = rows_of(places // words, left), places % words
        left = ops.maximum(taken(left, parents) - ops.take(lengths, tokens), 0)
        ids = ops.where(ops.arange(LONGEST) == i, tokens[..., None], taken(ids, parents))

        parents = ops.reshape(parents, (-1,))
        states = [ops.take(state, parents, axis=0) for state in states]
        logits, states = advance(ops.reshape(tokens, (-1, 1)), states)
        log_p = ops.reshape(ops.log_softmax(logits[:, -1]), (-1, BEAM, words))
        ending = ops.logsumexp(ops.where(ends, log_p, NONE), axis=-1)
        is_word = (left == 0) & (ops.take(lengths, tokens) > ops.take(heads, tokens))
        finished = ops.where(is_word, totals + ending, NONE)
        word_scores, places = top_columns(ops.concatenate([word_scores, finished], axis=1), KEPT)
        word_ids = ops.concatenate([word_ids, ids], axis=1)
        word_ids = taken(word_ids, rows_of(places, word_ids))
        bound = ops.take_along_axis(word_scores, ops.minimum(2 * typed["k"], KEPT) - 1, axis=1)
        longer = ops.max(ops.where(ends, NONE, log_p), axis=-1)
        likeliest = totals + ops.where(left > 0, 0.0, longer)
        totals = ops.where(likeliest > bound, totals, NONE)
        return i + 1, log_p, totals, left, ids, states, word_ids, word_scores, mass

    row = ops.zeros_like(length)
    none = ops.zeros((BEAM + KEPT, LONGEST), "int32") - 1 + row[..., None]
    start = (
        ops.zeros((), "int32"),
        ops.repeat(ops.log_softmax(logits)[:, None], BEAM, axis=1),
        ops.where(ops.arange(BEAM) == row, 0.0, NONE),  # the first alone
        ops.repeat(length, BEAM, axis=1),
        none[:, :BEAM],
        [ops.repeat(state, BEAM, axis=0) for state in states],
        none[:, BEAM:],
        ops.repeat(ops.cast(row, "float32") + NONE, KEPT, axis=1),
        ops.where(length[:, 0] > 0, NONE, 0.0),
    )
    *_, ids, log_p, mass = ops.while_loop(
        lambda i, log_p, totals, *_: (i < LONGEST) & ops.any(totals > NONE),
        lambda *carry: like(carry, step(*carry)),
        start,
    )
    return {"ids": ids, "log_p": log_p - mass[:, None]}


def words_of_run(model: LanguageModel) -> Collection[str] | None:
    """Return the words that the RUN of a model lists, or None."""
    return None if model.run is None else model.run.words


@functools.cache
def _question(pieces: Pieces) -> Question:
    """Return a question whose answer is `spellings`."""

    def question(graph: Graph, segment: Tensors) -> Tensors:
        return spellings(pieces, graph.logits, segment["logits"], segment["states"], segment)

    return question


@runtime_checkable
class Taught(Protocol):
    """A reader that has adapted a model, such as a `dualnet.Learner`."""

    words: frozenset[str]

    def taught(self) -> contextlib.AbstractContextManager[LanguageModel]: ...

    def read(self, text: str) -> object: ...


class Completer:
    """Completes a text as it is typed: what it has read of the text is not read again.

    The weights of the model must not change meanwhile.

    Args:
        model: `LanguageModel` with a vocabulary.
        **settings: As for `complete`.

    Example:

    >>> from dualnet import zoo
    >>> from dualnet.generation import Completer
    >>> from dualnet.text import Vocabulary
    >>> model = zoo.build("lstm", vocabulary_size=3, units=4)
    >>> model.vocabulary = Vocabulary(("<eos>", "the", "cat"))
    >>> complete = Completer(model, k=1)
    >>> [complete(text)[0].word for text in ("t", "the", "the c")]
    ['the', 'the', 'cat']
    """

    def __init__(self, model: LanguageModel, **settings: Unpack[CompletingArguments]) -> None:
        request = Completing.of(settings)
        self.model, self._vocabulary, self._k = model, vocabulary_of(model), request.k
        self._stop_words = {word.lower() for word in as_texts(request.stop_words or ())}
        of_run = words_of_run(model)
        own = None if request.words is None else {*as_texts(request.words)}
        self.lists: list[Collection[str]] = [words for words in (of_run, own) if words is not None]
        self._read: tuple[np.ndarray, Begun | None] = np.zeros(0, "int32"), None

    def __call__(self, text: str) -> list[Completion]:
        """Return the likeliest words, as `complete` does."""
        pieces = self._vocabulary.pieces
        before, begun, spelt, may_space = pieces.typed(check_text("text", text))
        logits, states = self._state_after(before)
        length = len(spelt.decode().removeprefix(" "))
        spelt = spelt[:LONGEST]  # no word is longer
        numbers = {"length": [len(spelt)], "may_space": [may_space], "k": [self._k]}
        numbers["spelt"] = [*spelt.ljust(LONGEST, b"\0")]
        typed: Tensors = {name: np.array([row], "int32") for name, row in numbers.items()}
        typed |= {"logits": logits, "states": states}
        answer = reader_of(self.model, _question(pieces)).predict_on_batch(typed)

        words: dict[str, float] = defaultdict(float)
        for ids, log_p in zip(answer["ids"][0].tolist(), answer["log_p"][0].tolist()):
            word = b"".join(pieces.spelt[i] for i in ids if i >= 0).removeprefix(b" ")
            words[word.decode(errors="replace")] += float(np.exp(log_p))
        lists: list[Collection[str]] = [pieces.words, *self.lists]
        if self.lists:
            lists.append(words_in(text.lower() if pieces.lowercase else text))
        completions = [
            Completion(begun + word[length:], probability)
            for word, probability in words.items()
            if words_in(word) == [word]
            and (not self.lists or any(word in known for known in lists))
            and word.lower() not in self._stop_words
        ]
        return sorted(completions, key=lambda one: -one.probability)[: self._k]

    def _state_after(self, text: str) -> Begun:
        """Return logits and states after `text`; only what follows the previous text is read."""
        [ids] = streams_of(self._vocabulary, [text], False)
        before, begun = self._read
        if not np.array_equal(ids[: len(before)], before):
            before, begun = before[:0], None
        begun = read(self.model, [ids[len(before) :]], begun)
        self._read = ids, begun
        return begun


@documented(Completing)
def complete(
    model: LanguageModel | Taught, text: str, **settings: Unpack[CompletingArguments]
) -> list[Completion]:
    """Return the likeliest words at the end of `text`: the one that has begun, or the next.

    The last letters of the text are a word that has begun, and may be all of it. After a space,
    and where no letter has begun, the words are those that may come next. The probability of a word
    is summed over the ways to spell it that a small beam finds, with the probability that it ends
    there, and divided by that of what is typed. Words of several tokens are offered if they are
    known: to the RUN of the model, by `words`, or from the text. Without a list of words, as that
    of a RUN, all are.

    Args:
        model: `LanguageModel` with a vocabulary, or a `dualnet.Learner`.
        text: str. It begins after `<eos>`.
        {arguments}

    Returns:
        list of `Completion`, the likeliest first; fewer than `k` if there are no more.

    Example:
        >>> import dualnet
        >>> model = dualnet.load("dual_lstm.english")
        >>> [found.word for found in dualnet.complete(model, "I do not know what you m", k=2)]
        ['mean', 'may']
        >>> [found.word for found in dualnet.complete(model, "The President of the United ")]
        ['States', 'Kingdom', 'Nations']
    """
    with completer_of(model, settings) as completer:
        return completer(text)


@contextlib.contextmanager
def completer_of(
    model: LanguageModel | Taught, settings: CompletingArguments
) -> Iterator[Completer]:
    """Return a context with the completer of a model, or of a learner's adapted model."""
    if not isinstance(model, Taught):
        yield Completer(model, **settings)
        return
    with model.taught() as taught:
        completer = Completer(taught, **settings)
        if completer.lists:  # else it knows all words
            completer.lists.append(model.words)
        yield completer
