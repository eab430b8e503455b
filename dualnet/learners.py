"""Learners: many readers of one model, each with a small memory of its own."""

import contextlib
import copy
import dataclasses
import functools
import io
import itertools
import json
import math
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import keras
import numpy as np

from dualnet._checks import ArgumentError, StrPath, check_count
from dualnet._columns import Column, ManyTexts, Results, texts_of
from dualnet._files import open_regular, write_whole
from dualnet._optimizers import LEAST_WEIGHTS, num_weights
from dualnet._types import Tensors
from dualnet.adaptation.adapted_copy import not_finite
from dualnet.adaptation.dynamic import DynamicEvaluation, result_of
from dualnet.adaptation.lesson import SETTINGS, Lesson
from dualnet.adaptation.statistics import GradientStatistics, in_order
from dualnet.adaptation.step_size import segments_of, with_own_settings
from dualnet.adaptation.surprisals import Record, surprisals
from dualnet.adaptation.weights import adapted
from dualnet.builders import (
    LanguageModel,
    TranslationModel,
    bucket_length,
    check_model,
    checksum_of,
    names_in,
)
from dualnet.builders.wrapping import copy_weights
from dualnet.corpora.sentence_batches import PADDING_ID
from dualnet.evaluation.arguments import check_tokens
from dualnet.generation import generate, translate
from dualnet.generation.completion import words_of_run
from dualnet.layers.ngram_cache import WEIGHTS
from dualnet.requests import AUTO, LearnerRule, LearnerRuleArguments, Surprising
from dualnet.text.pieces import words_in
from dualnet.text.plain_text import check_line, check_text

__all__ = ["Learner", "read_many"]

FORMAT = 1  # of files
CACHE = 4000  # tokens that a learner remembers by default
# What a learner reads: a text, or ids; for a translator a pair of source and target, or several.
Text = str | Sequence[int] | np.ndarray | tuple[str, str] | Sequence[tuple[str, str]]
Rule = Mapping[str, Any]  # the settings of a rule


class _State(NamedTuple):
    """All that a learner has read and learnt; it is replaced whole."""

    memory: np.ndarray  # (size,)
    moments: list[np.ndarray]
    states: list[np.ndarray]  # the recurrent state, (size,) each; none for pairs
    last: int | None  # the last token read, after which the next text begins
    tokens: int = 0
    skipped: int = 0
    mark: list[str] | None = None  # of the model at the first text; none before
    words: frozenset[str] = frozenset()


class _Segment(NamedTuple):
    """What a learner reads in one step."""

    tokens: np.ndarray
    targets: np.ndarray
    source: np.ndarray | None = None


class _Kind:
    """What all learners have in common that learn the same of a model by the same rule."""

    def __init__(
        self,
        model: LanguageModel,
        items: tuple[str, ...],
        rule: str,
        has_momentum: bool,
        cache: int,
    ) -> None:
        which = adapted(model, items, cache=cache)
        self.items, self.cache = which.items, cache
        self.lesson = Lesson(model, which, rule, has_momentum=has_momentum)
        self.of_one = self.lesson
        # A step of one row is many small operations, whose overhead exceeds the work. Not for
        # pairs, of many shapes.
        is_large = num_weights(which.graph.core.variables) >= LEAST_WEIGHTS
        if is_large and which.graph.encoder is None and keras.config.backend() == "tensorflow":
            self.of_one = Lesson(model, which, rule, has_momentum=has_momentum)
            self.of_one.compile(jit_compile=True)
        self.lock = threading.Lock()
        self.twin: LanguageModel | None = None  # made when it is to write

    def taught(self, model: LanguageModel, memory: np.ndarray) -> LanguageModel:
        """Return a copy of `model` that has learnt `memory`, valid until the next call."""
        if self.twin is None:
            twin = type(model).from_config(model.get_config())
            which = adapted(twin, self.items or None, cache=self.cache)
            self.twin = twin.without_optimizer(which.graph)
            self.twin.has_more = which.adds
            for name in twin.tokenisers:
                setattr(self.twin, name, getattr(twin, name))
            self.twin.run, self.twin.sum_of_run = model.run, model.run and model.sum_of_run
        own = names_in(self.twin.graph.core)
        ends = np.cumsum(self.lesson.sizes)[:-1]
        learnt = self.lesson.which.weights.items()
        copy_weights(model, self.twin)
        for (name, weight), part in zip(learnt, np.split(memory, ends)):
            own[name].assign(keras.ops.convert_to_numpy(weight) + part.reshape(weight.shape))
        return self.twin


_kinds: weakref.WeakKeyDictionary[LanguageModel, dict[tuple[object, ...], _Kind]] = (
    weakref.WeakKeyDictionary()
)
_kinds_lock = threading.Lock()


class Learner:
    """A reader of a model that learns from what it reads, while the model itself never changes.

    What it has learnt is a small difference from the model's weights, its memory: with
    `adapt="connection"`, a few hundred kilobytes. With a `cache`, it also remembers the last
    tokens, in at most 2 bytes each, 4 above 65,535 words; the weights learn as if that were not
    there. Any number of learners share one model, one compiled step for each kind, and each equals
    itself alone, also in several threads.

    `read` scores a text and learns from it, segment by segment, as `dualnet.dynamic_evaluation`
    does. It goes on where the text before ended; a vocabulary's first text begins after `<eos>`.
    An update that is not finite is not applied, but counted in `skipped`, and said. An error or an
    interrupt leaves a learner as it was before the text.

    A learner of a `TranslationModel` reads a pair `(source, target)`, or a list of pairs, each in
    one step. The weights of its decoder can learn.

    A copy has the same model, and learns by itself. A pickle contains the model.

    Args:
        model: `LanguageModel` or `TranslationModel`.
        adapt: str or list of str. Which weights learn, as for `dualnet.dynamic_evaluation`.
            Learners of "connection", "output_bias" and the matrices are read in one batch. None for
            "matrix:16" ("output_bias" where no output layer makes the logits) with a `cache` of
            4,000 tokens and a `clipnorm` of 1; for a translator, for "connection" alone, or
            "matrix:16" where it has none.
        statistics: For the rule "rms", the result of `gradient_statistics` with the same `adapt`.
        **settings: `rule`, `learning_rate`, `decay` (to the model's weights), `epsilon`, `beta_1`,
            `clipnorm`, `sequence_length` and `cache`, as for `dualnet.dynamic_evaluation`. By
            default those of a shipped model's own figures, and the rule "sgd" for any other.

    Attributes:
        model, rule, cache: As given.
        settings: dict, the values that the rule runs with.
        tokens: int. Number of tokens that were read.
        skipped: int. Number of updates that were not finite.
        words: frozenset of str. Words of several tokens that it has read, without those of the
            model's RUN: `complete` offers them.
        size: int. Bytes of what the learner holds: memory, state of the rule, recurrent state,
            words.

    Example:

    >>> import numpy as np
    >>> import dualnet
    >>> model = dualnet.zoo.build("dual_lstm", vocabulary_size=9, units=4)
    >>> learner = dualnet.Learner(model, learning_rate=0.3)
    >>> first, again = (learner.read(np.arange(8)).perplexity for _ in range(2))
    >>> again < first, learner.tokens, learner.size
    (True, 15, 4544)
    """

    def __init__(
        self,
        model: LanguageModel,
        adapt: str | Sequence[str] | None = None,
        *,
        statistics: GradientStatistics | None = None,
        **settings: Unpack[LearnerRuleArguments],
    ) -> None:
        check_model("model", model)
        request = with_own_settings(model, LearnerRule.of(settings), by_text=False)
        request = dataclasses.replace(request, rule=request.rule or "sgd")
        if request.learning_rate == AUTO:
            way_out = " dynamic_evaluation(..., adapt=...) finds one."
            raise ArgumentError("learning_rate", "must be a number for a learner.", way_out)
        cache = request.cache or 0
        if adapt is None and isinstance(model, TranslationModel):
            adapt = "connection" if model.graph.layer("connection") else "matrix:16"
        elif adapt is None:
            adapt = "output_bias" if model.graph.head is None else "matrix:16"
            if request.cache is None and not model.cache_size:
                cache = CACHE
            request = dataclasses.replace(request, clipnorm=request.clipnorm or 1.0)
        self._begin(model, adapt, request.rule or "", request.of_rule(), cache)
        if (statistics is None) == (self.rule == "rms"):
            required = "must be given for the rule 'rms', else not: of gradient_statistics(...)."
            raise ArgumentError("statistics", f"{required} Received: rule={self.rule!r}.")
        if statistics is not None:
            roots = in_order(statistics, self._kind.lesson.which).roots
            flat = np.concatenate([root.ravel() for root in roots]).astype(np.float32)
            self._state = self._start([flat])

    def _begin(
        self,
        model: LanguageModel,
        adapt: str | Sequence[str],
        rule: str,
        settings: Rule,
        cache: int = 0,
    ) -> None:
        self.model, self.rule, self.settings = model, rule, dict(settings)
        items = (adapt,) if isinstance(adapt, str) else tuple(adapt)
        key = items, rule, bool(settings.get("beta_1")), cache
        with _kinds_lock:
            kinds = _kinds.setdefault(model, {})
            if key not in kinds:
                kinds[key] = _Kind(model, *key)
            self._kind = kinds[key]
        self._state = self._start()
        self._lock = threading.Lock()

    def _start(self, roots: list[np.ndarray] | None = None) -> _State:
        """Return the state before the first text; `roots` are those of the rule "rms"."""
        model, lesson = self.model, self._kind.lesson
        translates = isinstance(model, TranslationModel)
        memory, moments = np.zeros(lesson.size, np.float32), roots or lesson.fresh_moments()
        states = [] if translates else [np.zeros(n, np.float32) for n in model.state_size]
        if self.cache:  # ids plus 1
            states.append(np.zeros(self.cache, np.min_scalar_type(model.vocabulary_size)))
        vocabulary = None if translates else model.vocabulary
        return _State(memory, moments, states, None if vocabulary is None else vocabulary.eos_id)

    # What is shared, and the lock, are no part of a copy or a pickle.
    def __getstate__(self) -> tuple[object, ...]:
        return self._state, self.model, self.adapt, self.rule, self.settings, self.cache

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        kept, *settings = state
        self._begin(*settings)
        self._state = kept

    def __deepcopy__(self, _: object) -> "Learner":
        return copy.copy(self)  # the arrays of a state never change

    def __repr__(self) -> str:
        names = ("adapt", "rule", "tokens", "size")
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"Learner({self.model.name!r}, {values})"

    adapt = property(lambda self: self._kind.items or ["all"], doc="list of str: what learns.")
    cache = property(lambda self: self._kind.cache)
    tokens = property(lambda self: self._state.tokens)
    skipped = property(lambda self: self._state.skipped)
    words = property(lambda self: self._state.words)

    @property
    def size(self) -> int:
        state = self._state
        arrays = (state.memory, *state.moments, *state.states)
        words = sum(len(word.encode()) for word in state.words)
        return words + sum(array.nbytes for array in arrays)

    def _cache_of(self, state: _State) -> np.ndarray:
        """Return the cache with the last token, unless it is the `<eos>` that a text follows."""
        own, last = state.states[-1], state.last
        if last in (None, self._start().last):
            return own
        return np.append(own[1:], own.dtype.type(last + 1))

    def _rewound(self, state: _State) -> _State:
        """Return `state` at the beginning of a text: what was learnt and the cache stay."""
        start = self._start()
        states = [*start.states[:-1], self._cache_of(state)] if self.cache else start.states
        return state._replace(states=states, last=start.last)

    def read(self, text: Text) -> DynamicEvaluation:
        """Score `text`, and learn from it.

        Args:
            text: str, or int ids; for a translator a pair of str, or a list of them.

        Returns:
            `DynamicEvaluation`, of every token: `perplexity`, `token_losses`, `surprisals` and
            others. The first id is not predicted if the model has no `<eos>` to begin after.
        """
        return _read([self], [text])[0]

    def score(self, text: Text) -> DynamicEvaluation:
        """Score `text` as `read` would, without learning; the learner does not change."""
        return _read([self], [text], learn=False)[0]

    def surprisal(
        self,
        texts: Any,
        *,
        column: Column | None = None,
        words: bool = False,
        split_punctuation: bool = False,
    ) -> Results[Record]:
        """Return the surprisal of each token or word of `texts`, read in order while learning.

        As `dualnet.surprisal`: each text is read after `<eos>` in the zero state. What the learner
        has learnt, and its cache, stay. Calls from several threads take turns, text by text.

        There is no `entropy` and no `bow_correction`: both need the probabilities of all words,
        and a learner's step computes those of the words read alone. `dualnet.surprisal` has them,
        with `adapt=True`, and then learns once from each text.

        Example:

        >>> import dualnet
        >>> from dualnet.text import ByteTokenizer
        >>> model = dualnet.zoo.build("dual_lstm", vocabulary_size=257, units=4)
        >>> model.vocabulary = ByteTokenizer()
        >>> reader = dualnet.Learner(model, "connection", learning_rate=0.3)
        >>> first, again = reader.surprisal(["a b", "a b"], words=True)[::2]
        >>> again["surprisal"] < first["surprisal"]
        True
        """

        def score(text: str) -> np.ndarray:
            [result] = _read([self], [text], by_text=True)
            return result.token_losses.astype(np.float64)[:, None]

        request = Surprising(words=words, split_punctuation=split_punctuation)
        text_list, labels, _ = texts_of("texts", texts, column)
        with surprisals(self.model, request, score=score) as of_texts:
            return Results((row for rows, _ in of_texts(text_list) for row in rows), labels)

    def reset(self) -> None:
        """Forget everything: the memory, the state of the rule, and where the text was."""
        with self._lock:
            self._state = self._start(self._state.moments if self.rule == "rms" else None)

    def move(self, model: LanguageModel, *, forget: bool = False) -> "Learner":
        """Return a learner of `model`, such as this one's after more training, that goes on.

        It has what needs no weights: the tokens in the cache, the words, and what "output_bias" has
        learnt, if nothing else learns. It begins in the zero state.

        Args:
            model: `LanguageModel`, which reads text as this learner's model does.
            forget: bool. Whether what other weights have learnt, of the old model, may go.

        Raises:
            ValueError: if `model` reads otherwise; if other weights have learnt and `forget` is
                False, or their rule is "rms", which has statistics of the old model.

        Example:

        >>> import dualnet
        >>> old, new = (dualnet.zoo.build("lstm", vocabulary_size=9, units=4) for _ in range(2))
        >>> learner = dualnet.Learner(old, "output_bias", learning_rate=0.3, cache=20)
        >>> perplexity = learner.read([1, 2, 3, 4]).perplexity
        >>> moved = learner.move(new)
        >>> moved.model is new, moved.tokens
        (True, 3)
        """
        own, expected = ([one.vocabulary_size, *_mark(one)[1:]] for one in (model, self.model))
        if own != expected:
            required = f"must read as the learner's does: words and vocabularies {expected}."
            raise ArgumentError("model", f"{required} Received: {own}.")
        moved = copy.copy(self)
        moved._begin(model, self.adapt, self.rule, self.settings, self.cache)
        start, state = moved._state, self._state
        fits = self.adapt == ["output_bias"]
        if not fits and (self.rule == "rms" or (state.memory.any() and not forget)):
            raise ArgumentError(
                "forget",
                "must be True, and the rule not 'rms': 'output_bias' and a cache alone fit other "
                f"weights. Received: adapt={self.adapt}, rule={self.rule!r}.",
                " Or let a new learner read the texts again.",
            )
        learnt = state if fits else start
        moved._state = moved._rewound(state._replace(last=None))._replace(
            memory=learnt.memory, moments=learnt.moments, last=state.last, mark=_mark(model)
        )
        return moved

    @contextlib.contextmanager
    def taught(self) -> Iterator[Any]:
        """Return a context with the model that has learnt; others of its kind wait meanwhile.

        Example:

        >>> import numpy as np
        >>> import dualnet
        >>> model = dualnet.zoo.build("dual_lstm", vocabulary_size=9, units=4)
        >>> learner = dualnet.Learner(model, "connection", learning_rate=0.3)
        >>> with learner.taught() as taught:
        ...     dualnet.perplexity(taught, np.arange(8)) == dualnet.perplexity(model, np.arange(8))
        True
        """
        with self._kind.lock:
            state = self._state
            model = self._kind.taught(self.model, state.memory)
            if self.cache:
                model.graph.remember(self._cache_of(state), np.array([], int))
            yield model

    def generate(self, prompt: str | ManyTexts, **settings: Any) -> Any:
        """Return `dualnet.generate` of the model that has learnt; it starts at the prompt."""
        with self.taught() as model:
            return generate(model, prompt, **settings)

    def translate(self, texts: str | ManyTexts, **settings: Any) -> Any:
        """Return `dualnet.translate` of the translator that has learnt."""
        with self.taught() as model:
            return translate(model, texts, **settings)

    # --- files

    def save(self, path: StrPath, *, half: bool = False) -> None:
        """Write the learner into one file, whole or not at all: arrays and JSON, no pickle.

        It belongs to the weights and vocabulary that the model had at the first text, since the
        beginning or the last `reset`. With `half`, memory and states are written in float16, which
        halves them and rounds each number to 3 digits.
        """
        state = self._state
        checksum, *reads = state.mark or _mark(self.model)
        about = {
            "format": FORMAT, "model": self.model.name, "checksum": checksum, "reads": reads,
            "adapt": self.adapt, "rule": self.rule, "settings": self.settings,
            "last": state.last, "tokens": state.tokens, "skipped": state.skipped,
            "words": sorted(state.words), "cache": self.cache, "cache_weights": WEIGHTS,
        }  # fmt: skip
        header = np.frombuffer(json.dumps(about).encode(), np.uint8)
        arrays = _named(state)
        for name, array in arrays.items():
            if half and array.dtype == np.float32 and not name.startswith("moment"):
                arrays[name] = array.astype(np.float16)  # squares of gradients would be zero
        file = io.BytesIO()
        np.savez(file, about=header, **arrays)  # type: ignore[arg-type]
        write_whole(path, file.getvalue())

    @classmethod
    def load(cls, path: StrPath, model: LanguageModel) -> "Learner":
        """Return the learner that `save` wrote; `model` must be as when it was taught."""
        with open_regular(path) as file:
            whole = io.BytesIO(file.read())
        mark = _mark(model)
        try:
            with np.load(whole, allow_pickle=False) as data:
                arrays = {**data}
            for key, array in arrays.items():
                if array.dtype == np.float16:
                    arrays[key] = array.astype(np.float32)
            about = json.loads(arrays.pop("about").tobytes())
            if about["format"] != FORMAT:
                required = f"must have format {FORMAT}, which this version of dualnet reads."
                raise ArgumentError("path", f"{required} Received: format {about['format']}.")
            # 0.2.0 wrote no "reads".
            name, taught = about["model"], [about["checksum"], *about.get("reads", mark[1:])]
            if taught != mark:
                required = f"must be the model that the learner belongs to, {name!r} with {taught}."
                raise ArgumentError("model", f"{required} Received: {model.name!r} with {mark}.")
            learner = cls.__new__(cls)
            settings = LearnerRule.of({"rule": about["rule"], **about["settings"]}).of_rule()
            learner._begin(model, about["adapt"], about["rule"], settings, about.get("cache", 0))
            start, last = learner._state, about["last"]
            if last is not None:
                check_tokens([last], model.vocabulary_size, least=1, name="last")
            expected = _named(start)
            stored, own = (
                [f"{name} {array.dtype}{array.shape}" for name, array in table.items()]
                for table in (arrays, expected)
            )
            if stored != own or not all(np.isfinite(array).all() for array in arrays.values()):
                raise ArgumentError(
                    "path",
                    f"must hold finite arrays for this model and its cache: {own}.",
                    arrays=stored,
                )
            memory, *rest = (arrays[name] for name in expected)
            moments, states = rest[: len(start.moments)], rest[len(start.moments) :]
            if learner.cache:
                check_tokens(states[-1], model.vocabulary_size + 1, least=1, name="cache")
            tokens, skipped = (
                check_count(name, about[name], least=0) for name in ("tokens", "skipped")
            )
            words = frozenset(check_text("words", word) for word in about.get("words", ()))
            learner._state = _State(memory, moments, states, last, tokens, skipped, mark, words)
            return learner
        except Exception as error:  # of a damaged file, any
            if isinstance(error, ArgumentError) and error.argument in ("path", "model"):
                raise
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ArgumentError(
                "path",
                f"must be a file that Learner.save wrote. Received: {str(path)!r} ({reason}).",
            ) from None

    # --- what it reads

    def _new_words(self, text: Text) -> set[str]:
        """Return the words of `text`, if it is one, that neither a token nor the RUN has."""
        vocabulary = self.model.vocabulary
        if not isinstance(text, str) or vocabulary.kind == "words":
            return set()
        words = {*words_in(text.lower() if vocabulary.lowercase else text)}
        return words.difference(vocabulary.pieces.words, words_of_run(self.model) or ())

    def _segments(self, text: Text, last: int | None) -> tuple[list[_Segment], int | None]:
        """Return the segments of `text` after the token `last`, and its own last token."""
        vocabulary = self.model.vocabulary
        translates = isinstance(self.model, TranslationModel)
        if vocabulary is None and (isinstance(text, str) or translates):
            raise ArgumentError("model", "must have a vocabulary to read texts. Give ids.")
        if translates:
            pairs = list(text) if np.iterable(text) and not isinstance(text, tuple) else [text]
            return [self._pair(pair) for pair in pairs], None
        if isinstance(text, list | tuple) and any(isinstance(part, str) for part in text):
            way_out = " Read each by itself; read_many takes a text for each learner."
            raise ArgumentError("text", f"must be one text. Received: {len(text)}.", way_out)
        if isinstance(text, str):
            ids = vocabulary.encode(check_text("text", text))
        elif np.size(text):
            ids = check_tokens(text, self.model.vocabulary_size, least=1, name="text")
        else:
            ids = np.zeros(0, np.int32)
        stream = np.append([] if last is None else [last], ids).astype(np.int32)
        parts = segments_of(self.model, stream, self.settings["sequence_length"])
        segments = [_Segment(part[:-1], part[1:]) for part in parts]
        return segments, int(stream[-1]) if len(stream) else None

    def _pair(self, pair: object) -> _Segment:
        model = self.model
        if not (isinstance(pair, tuple) and len(pair) == 2):
            pairs = "a pair (source, target) of str, or a list of them, for a translator"
            raise ArgumentError("text", f"must be {pairs}. Received: {type(pair).__name__}.")
        source, target = (check_line("text", part) for part in pair)
        eos = np.int32(model.vocabulary.require_eos("model", "must have a vocabulary with <eos>."))
        ids, source_ids = model.vocabulary.encode(target), model.source_vocabulary.encode(source)
        return _Segment(np.append(eos, ids), np.append(ids, eos), source_ids)

    def _lengths(self, segment: _Segment) -> tuple[int, ...]:
        """Return the lengths that ids are padded to, so that few shapes are compiled."""
        lengths = tuple(len(ids) for ids in segment[1:] if ids is not None)
        if not self._kind.lesson.masked:
            return lengths
        longest = math.inf if segment.source is not None else self.settings["sequence_length"]
        return tuple(min(bucket_length(max(1, length)), longest) for length in lengths)


def read_many(learners: Sequence[Learner], texts: Sequence[Text]) -> list[DynamicEvaluation]:
    """Let each learner read its own text, those of a kind side by side, as `Learner.read`.

    The results equal those of one by one up to rounding. Learners of one kind have the same
    model, `adapt` and rule; settings may differ. After an error, all are as they were.

    Args:
        learners: list of `Learner`, no two the same.
        texts: list of what each reads; lengths may differ, and a text may be empty.

    Example:

    >>> import dualnet
    >>> model = dualnet.zoo.build("dual_lstm", vocabulary_size=9, units=4)
    >>> learners = [dualnet.Learner(model) for _ in range(3)]
    >>> [result.tokens for result in dualnet.read_many(learners, [[1, 2, 3, 4], [], [5, 6]])]
    [3, 0, 1]
    """
    learners, texts = list(learners), list(texts)
    if len(learners) != len(texts):
        raise ArgumentError(
            "texts",
            f"must have one text for each learner. Received: {len(texts)} for {len(learners)}.",
        )
    if len({*map(id, learners)}) != len(learners):
        raise ArgumentError("learners", "must be different ones. Received: one of them twice.")
    return _read(learners, texts)


def _read(
    learners: list[Learner], texts: list[Text], *, learn: bool = True, by_text: bool = False
) -> list[DynamicEvaluation]:
    """Let learners read; `by_text`, each text begins after `<eos>` in the zero state."""
    with contextlib.ExitStack() as stack:
        for learner in sorted(learners, key=id):  # in one order: two threads never wait in a circle
            stack.enter_context(learner._lock)
        states = [learner._state for learner in learners]
        if by_text:
            states = [learner._rewound(state) for learner, state in zip(learners, states)]
        mark_of = functools.cache(_mark)  # of each model once: all its weights are read
        readings = [
            learner._segments(text, state.last)
            for learner, text, state in zip(learners, texts, states)
        ]
        losses: list[list[np.ndarray]] = [[] for _ in learners]
        for column in itertools.zip_longest(*(segments for segments, _ in readings)):
            groups: dict[tuple[Lesson, int | None, tuple[int, ...]], list[int]] = {}
            for i, segment in enumerate(column):
                if segment is not None:
                    lesson, lengths = learners[i]._kind.lesson, learners[i]._lengths(segment)
                    groups.setdefault((lesson, None if lesson.by_row else i, lengths), []).append(i)
            for (lesson, _, lengths), rows in groups.items():
                if len(rows) == 1:
                    lesson = learners[rows[0]]._kind.of_one
                batch = _batch(
                    [(column[i], states[i], learners[i].settings) for i in rows], lengths
                )
                answer = lesson.predict_on_batch(batch)
                for row, i in enumerate(rows):
                    after = _row(answer, row)
                    losses[i].append(after["losses"][: len(column[i].targets)])
                    if column[i].source is None:
                        pairs = zip(after["states"], states[i].states)
                        new = [array.astype(old.dtype, copy=False) for array, old in pairs]
                        states[i] = states[i]._replace(states=new)
                    if learn:
                        skipped = states[i].skipped + (not after["applied"])
                        learnt = {name: after[name] for name in ("memory", "moments")}
                        states[i] = states[i]._replace(skipped=skipped, **learnt)
        results = []
        for learner, (segments, _), parts in zip(learners, readings, losses):
            settings = {**learner.settings, "adapt": learner.adapt, "cache": learner.cache}
            targets = [segment.targets for segment in segments]
            result = result_of(learner.model, targets, parts, rule=learner.rule, settings=settings)
            if np.isinf(result.perplexity):
                raise not_finite("perplexity", learner.rule, learner.settings)
            results.append(result)
        if learn:
            before = sum(learner.skipped for learner in learners)
            skipped = sum(state.skipped for state in states) - before
            if skipped:
                warnings.warn(
                    f"{skipped} of the updates were not finite, and changed nothing. Take a "
                    "smaller learning_rate, or set clipnorm.",
                    stacklevel=3,
                )
            for learner, (_, last), state, result, text in zip(
                learners, readings, states, results, texts
            ):
                mark = state.mark if state.tokens else mark_of(learner.model)
                tokens = state.tokens + result.tokens
                words = state.words | learner._new_words(text)
                learner._state = state._replace(last=last, tokens=tokens, mark=mark, words=words)
    return results


def _batch(rows: list[tuple[_Segment, _State, Rule]], lengths: tuple[int, ...]) -> Tensors:
    """Return the batch of one step of a `Lesson`: a segment of each row, padded to `lengths`."""
    segments, states, settings = zip(*rows)

    def padded(sequences: Iterable[np.ndarray], length: int, value: int) -> np.ndarray:
        return keras.utils.pad_sequences([*sequences], length, "int32", padding="post", value=value)

    counts = np.array([len(segment.targets) for segment in segments])
    # In one array: what takes time is their number.
    values = [[own.get(name, default) for name, default in SETTINGS.items()] for own in settings]
    batch = {
        "tokens": padded((segment.tokens for segment in segments), lengths[0], PADDING_ID),
        "targets": padded((segment.targets for segment in segments), lengths[0], 0),
        "weights": (np.arange(lengths[0]) < counts[:, None]).astype(np.float32),
        "memory": np.stack([state.memory for state in states]),
        "moments": [np.stack(moments) for moments in zip(*(state.moments for state in states))],
        "settings": np.array(values, np.float32),
    }
    if segments[0].source is None:
        columns = zip(*(state.states for state in states))
        batch["states"] = [np.stack(parts, dtype=np.float32) for parts in columns]
    else:
        batch["source"] = padded((segment.source for segment in segments), lengths[1], PADDING_ID)
    return batch


def _row(answer: Tensors, row: int) -> Tensors:
    """Return copies of one row: a view would hold the whole batch."""
    copies = keras.tree.map_structure(lambda array: array[row].copy(), answer)
    return copies


def _named(state: _State) -> dict[str, np.ndarray]:
    """Return the arrays of a learner by their names in a file."""
    moments = {f"moment_{i}": moment for i, moment in enumerate(state.moments)}
    states = {f"state_{i}": part for i, part in enumerate(state.states)}
    return {"memory": state.memory, **moments, **states}


def _mark(model: LanguageModel) -> list[str]:
    """Return the checksum of the weights, and a description of how each vocabulary reads text."""
    vocabularies = [getattr(model, name) for name in model.tokenisers]
    reads = [
        f"{words.sha256[:12]} documents={words.documents} lowercase={words.lowercase}"
        for words in vocabularies
        if words is not None
    ]
    return [checksum_of(model), *reads]
