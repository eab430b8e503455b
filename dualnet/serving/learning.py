"""What an export that learns adds: `learn`, `learn_text`, and a `memory` for other endpoints."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator

import tensorflow as tf

from dualnet._checks import ArgumentError
from dualnet._types import Tensor, Tensors
from dualnet.adaptation.lesson import SETTINGS, Lesson
from dualnet.adaptation.step_size import with_own_settings
from dualnet.adaptation.weights import ADDED, adapted
from dualnet.builders import LanguageModel, TranslationModel, checksum_of
from dualnet.corpora.sentence_batches import PADDING_ID
from dualnet.learners import CACHE, Learner
from dualnet.requests import Exporting, LearnerRule
from dualnet.serving import requests
from dualnet.serving.requests import Endpoint, Input
from dualnet.serving.served_reader import ServedReader, TextReader, begun, by_windows, scored_text

Learnt = tuple[list[Tensor], Tensor]  # states, and the differences of each row
REQUESTED = ("learning_rate", "decay", "clipnorm")  # of a request, `(batch,)`


class Learning:
    """What requests teach a model, for each row of a batch, and by which settings.

    Attributes:
        lesson: `Lesson`, whose rule is "sgd".
        settings: dict, the defaults of requests.
    """

    def __init__(self, model: LanguageModel, request: Exporting) -> None:
        if isinstance(model, TranslationModel):
            raise ArgumentError(
                "learn",
                "must be None for a translator, whose export does not learn.",
                " dualnet.Learner does.",
                learn=request.learn,
            )
        self.lesson = Lesson(model, adapted(model, request.learn, name="learn"), "sgd")
        if not (self.lesson.by_row and self.lesson.masked):
            names = ", ".join(map(repr, ["connection", *ADDED]))
            raise ArgumentError(
                "learn",
                f"must name weights that learn for each row of a batch: {names}, 'matrix:8' with "
                "a rank, or several, in a model without a cache or a core of your own.",
                learn=request.learn,
            )
        self.settings = new_learner(model, request).settings

    def settings_of(self, inputs: Tensors) -> Tensor:
        """Return the settings of each row, `(batch, 5)`; below 0 is the default of the export."""
        zeros = tf.zeros_like(inputs[REQUESTED[0]])
        columns = {name: zeros + value for name, value in SETTINGS.items()}
        for name in REQUESTED:
            columns[name] = tf.where(inputs[name] < 0, self.settings.get(name, 0.0), inputs[name])
        return tf.stack([*columns.values()], axis=1)


def new_learner(model: LanguageModel, request: Exporting) -> Learner:
    """Return a learner that learns as the readers of an export do, if they name no settings."""
    settings = {name: getattr(request, name) for name in (*REQUESTED, "sequence_length")}
    learner_rule = with_own_settings(model, LearnerRule.of(settings), by_text=False)
    if learner_rule.rule not in (None, "sgd"):  # a shipped model's own; moments do not travel
        learner_rule = LearnerRule.of(settings)
    settings = dataclasses.replace(learner_rule, rule="sgd").of_rule()
    cache = CACHE if request.cache is None else request.cache
    return Learner(model, request.learn, rule="sgd", cache=cache, **settings)


class Memories(Learning):
    """The memories that requests carry, and the steps that they learn by, as `dualnet.Learner`'s.

    A memory is a row: the differences of the weights that learn, and last the mark of the model
    that it belongs to. Zeros, or no columns at all, are the plain model.

    Attributes:
        reader: `ServedReader` of the model, with the weights that were added to it.
        size: int. Length of a memory.
    """

    def __init__(self, model: LanguageModel, request: Exporting) -> None:
        super().__init__(model, request)
        which = self.lesson.which
        self.reader = ServedReader(model, which.graph)
        self.size = self.lesson.size + 1
        names = " ".join([checksum_of(model), *which.weights])
        # At most 2^24: exact in float32.
        self.mark = float(int(hashlib.sha256(names.encode()).hexdigest()[:6], 16) + 1)
        required = "zeros, or what this very model has learnt:"
        required += (
            f" {self.size} numbers, of which the last, the mark of the model, is {self.mark:.0f}"
        )
        # Of any size, so that a wrong one is reported.
        self.input = {"memory": Input(tf.float32, (None,), required, self._is_own)}

    def _is_own(self, memory: Tensor, _: Tensors) -> Tensor:
        width = tf.shape(memory)[1]
        is_marked = tf.reduce_any(tf.equal(memory[:, -1:], self.mark), axis=1)
        is_zero = tf.reduce_all(tf.equal(memory, 0.0), axis=1)
        is_finite = tf.reduce_all(tf.math.is_finite(memory), axis=1)
        return (is_marked | is_zero) & is_finite & ((width == self.size) | (width == 0))

    def read_with(self, endpoint: Endpoint) -> Endpoint:
        """Return `endpoint` with a further input, `memory`, with which each row is read."""
        function, declared = endpoint

        def remembering(inputs):
            with self.reading(inputs, 1):
                answer = function(inputs)
            return _finite(answer, self._count(inputs))

        return remembering, declared | self.input

    @contextlib.contextmanager
    def reading(self, inputs: Tensors, times: int) -> Iterator[None]:
        """Return a context in which so many rows are read with each memory of a request."""
        count = self._count(inputs)
        memory = tf.repeat(self._memory(inputs["memory"][:count]), times, axis=0)
        self.reader.differing = count > 0, self.lesson.differing(self.lesson.values(), memory)
        yield
        self.reader.differing = None

    def learn(self) -> Endpoint:
        """Return the endpoint `learn`: one step of each row on its ids."""

        def learn(inputs):
            in_row = requests.in_row(inputs)
            time = tf.shape(in_row)[1]
            missing = [[0, 0], [0, tf.maximum(0, 2 - time)]]  # a step reads at least one token
            ids, read = tf.pad(tf.where(in_row, inputs["ids"], 0), missing), tf.pad(in_row, missing)
            log_p, learnt, applied = self._step(ids, read, self._begun(inputs), inputs)
            scores = tf.pad(log_p, [[0, 0], [1, 0]])[:, :time]  # the first token has none
            return self._answer(learnt, {"log_probabilities": scores, "applied": applied})

        return learn, requests.rows_of(self.reader.words) | self._inputs()

    def learn_text(self, tokenizer: TextReader) -> Endpoint:
        """Return the endpoint `learn_text`: a step for each segment of a text, as a `Learner`."""
        length, words = self.settings["sequence_length"], self.reader.words

        def learn_text(inputs):
            last = tf.where(inputs["last"] < 0, tokenizer.eos_id, inputs["last"])
            texts = tokenizer.encode(inputs["texts"], "texts")
            ids, lengths = begun(texts, tokenizer.eos_id, last)
            time = tf.shape(ids)[1] - 1
            count = tf.maximum(1, -(-time // length))
            stream = tf.pad(ids, [[0, 0], [0, count * length - time]])
            in_row = tf.sequence_mask(lengths, count * length + 1)

            def read(first, carry):
                window, (learnt, skipped) = slice(first, first + length + 1), carry
                log_p, learnt, applied = self._step(
                    stream[:, window], in_row[:, window], learnt, inputs
                )
                return log_p, (learnt, skipped + tf.cast(~applied, tf.int32))

            start = self._begun(inputs), tf.zeros_like(lengths)
            scores, (learnt, skipped) = by_windows(read, count, length, start)
            last = tf.gather(ids, lengths - 1, batch_dims=1)
            scored = scored_text(tokenizer, ids, lengths, scores[:, :time])
            return self._answer(learnt, {**scored, "last": last, "skipped": skipped})

        limits = f"-1, for the start of a text, or an id, 0 to {words - 1}"
        last = requests.whole(-1, words - 1, limits)
        return learn_text, {"texts": Input(tf.string), "last": last, **self._inputs()}

    def _inputs(self) -> dict[str, Input]:
        rates = dict.fromkeys(REQUESTED, requests.finite())
        return self.reader.inputs | self.input | rates

    def _count(self, inputs: Tensors) -> Tensor:
        """Return the number of rows, or 0 if none has a memory."""
        memory = inputs["memory"]
        return tf.where(tf.reduce_any(tf.not_equal(memory, 0.0)), tf.shape(memory)[0], 0)

    def _memory(self, memory: Tensor) -> Tensor:
        """Return the differences of each row, `(batch, size - 1)`; of no columns, zeros."""
        missing = self.size - tf.shape(memory)[1]
        return tf.ensure_shape(tf.pad(memory, [[0, 0], [0, missing]]), (None, self.size))[:, :-1]

    def _begun(self, inputs: Tensors) -> Learnt:
        return self.reader.before(inputs), self._memory(inputs["memory"])

    def _step(
        self, ids: Tensor, in_row: Tensor, learnt: Learnt, inputs: Tensors
    ) -> tuple[Tensor, Learnt, Tensor]:
        """Score all ids but the first of each row, `(batch, time + 1)`, and learn from them.

        Returns log p `(batch, time)`, what is learnt, and whether it was applied.
        """
        read, (states, memory) = in_row[:, 1:], learnt
        segment = {
            "tokens": tf.where(read, ids[:, :-1], PADDING_ID), "targets": ids[:, 1:],
            "weights": tf.cast(read, tf.float32), "states": states, "memory": memory,
            "moments": [], "settings": self.settings_of(inputs),
        }  # fmt: skip
        answer = self.lesson.learn(self.lesson.graph, segment)
        states = [tf.cast(state, tf.float32) for state in answer["states"]]
        log_p = tf.where(read, -answer["losses"], 0.0)
        return log_p, (states, answer["memory"]), answer["applied"]

    def _answer(self, learnt: Learnt, answer: Tensors) -> Tensors:
        """Return `answer` with the memories and the states after what was read."""
        states, memory = learnt
        memory = tf.pad(memory, [[0, 0], [0, 1]], constant_values=self.mark)
        return _finite({**answer, "memory": memory, **dict(zip(self.reader.inputs, states))})


def _finite(answer: Tensors, count: Tensor | None = None) -> Tensors:
    """Return `answer` with an assertion that its scores are finite, those of `count` rows."""
    required = "such that scores are finite; take an earlier one, or a smaller learning_rate"
    checks = []
    # In one order in every export.
    for name in ("log_probabilities", "probabilities", "logits"):
        if name in answer:
            scores = answer[name][:count]
            valid = tf.math.is_finite(scores)
            if name == "logits":  # some may be impossible
                valid |= tf.math.is_inf(scores)
            checks.append(requests.all_valid("memory", scores, valid, required))
    return requests.after(checks, answer)
