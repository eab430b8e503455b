"""What an export that learns adds: `learn`, `learn_text`, and a `memory` for other endpoints."""

import dataclasses
import hashlib

import tensorflow as tf

from dualnet._checks import ArgumentError
from dualnet._types import Tensor, Tensors
from dualnet.adaptation.lesson import SETTINGS, Lesson
from dualnet.adaptation.step_size import with_own_settings
from dualnet.adaptation.weights import ADDED, adapted
from dualnet.builders import LanguageModel, TranslationModel, checksum_of
from dualnet.corpora.sentence_batches import PADDING_ID
from dualnet.requests import Exporting, LearnerRule
from dualnet.serving import requests
from dualnet.serving.requests import Endpoint, Input
from dualnet.serving.served_reader import ServedReader, TextReader, scored_text

REQUESTED = ("learning_rate", "decay", "clipnorm")  # of a request, `(batch,)`
MEMORY = {"memory": requests.finite(None)}  # of any size, so that a wrong one is told


class Memories:
    """The memories that requests carry, and the steps that they learn by, as `dualnet.Learner`'s.

    A memory is a row: the differences of the weights that learn, and last the mark of the model
    that it belongs to. Zeros, or no columns at all, are the plain model.

    Attributes:
        graph: `Graph` of the model, with the weights that were added to it.
        size: int. Length of a memory.
    """

    def __init__(self, model: LanguageModel, request: Exporting) -> None:
        if isinstance(model, TranslationModel):
            required = "must be None for a translator, whose export does not learn."
            raise ArgumentError("learn", required, " dualnet.Learner does.", learn=request.learn)
        which = adapted(model, request.learn, name="learn")
        self.graph, self.lesson = which.graph, Lesson(model, which, "sgd")
        if not (self.lesson.by_row and self.lesson.masked):
            names = ", ".join(map(repr, ["connection", *ADDED]))
            required = f"must name weights that learn for each row of a batch: {names}, 'matrix:8'"
            others = "with a rank, or several, in a model without a cache or a core of your own."
            raise ArgumentError("learn", f"{required} {others}", learn=request.learn)
        settings = {name: getattr(request, name) for name in (*REQUESTED, "sequence_length")}
        learner_rule = with_own_settings(model, LearnerRule.of(settings), by_text=False)
        if learner_rule.rule not in (None, "sgd"):  # a shipped model's own; moments do not travel
            learner_rule = LearnerRule.of(settings)
        self.settings = dataclasses.replace(learner_rule, rule="sgd").of_rule()
        self.size = self.lesson.size + 1
        names = " ".join([checksum_of(model), *which.weights])
        # At most 2^24: exact in float32.
        self.mark = float(int(hashlib.sha256(names.encode()).hexdigest()[:6], 16) + 1)

    def read_with(self, endpoint: Endpoint) -> Endpoint:
        """Return `endpoint` with a further input, `memory`, with which each row is read."""
        function, declared = endpoint

        def remembering(inputs: Tensors) -> Tensors:
            memory, inputs = self._checked(inputs)
            with self.lesson.differing(self.lesson.values(), memory):
                return _finite(function(inputs))

        return remembering, {**declared, **MEMORY}

    def learn(self, reader: ServedReader) -> Endpoint:
        """Return the endpoint `learn`: one step of each row on its ids."""

        def learn(inputs: Tensors) -> Tensors:
            memory, inputs = self._checked(inputs)
            in_row = requests.in_row(inputs)
            time = tf.shape(in_row)[1]
            missing = [[0, 0], [0, tf.maximum(0, 2 - time)]]  # a step reads at least one token
            ids, read = tf.pad(tf.where(in_row, inputs["ids"], 0), missing), tf.pad(in_row, missing)
            states = [inputs[name] for name in reader.inputs]
            settings = self._settings(inputs)
            log_p, states, memory, applied = self._step(ids, read, states, memory, settings)
            scores = tf.pad(log_p, [[0, 0], [1, 0]])[:, :time]  # the first token has none
            return _finite({
                "log_probabilities": tf.where(in_row, scores, 0.0), "applied": applied,
                "memory": self._marked(memory), **dict(zip(reader.inputs, states)),
            })  # fmt: skip

        return learn, {**requests.rows_of(reader.words), **self._inputs(reader)}

    def learn_text(self, reader: ServedReader, tokenizer: TextReader) -> Endpoint:
        """Return the endpoint `learn_text`: a step for each segment of a text, as a `Learner`."""
        length = self.settings["sequence_length"]

        def learn_text(inputs: Tensors) -> Tensors:
            memory, inputs = self._checked(inputs)
            text = tokenizer.encode(inputs["texts"], "texts")
            lengths = tf.cast(text.row_lengths(), tf.int32)
            ids = text.to_tensor(tokenizer.eos_id)
            time, settings = tf.shape(ids)[1], self._settings(inputs)
            last = tf.where(inputs["last"] < 0, tokenizer.eos_id, inputs["last"])
            count = tf.maximum(1, (time + length - 1) // length)
            stream = tf.concat([last[:, None], ids], axis=1)
            stream = tf.pad(stream, [[0, 0], [0, count * length - time]])
            in_row = tf.sequence_mask(lengths + 1, count * length + 1)

            def read(
                i: Tensor, scores: Tensor, states: Tensor, memory: Tensor, skipped: Tensor
            ) -> Tensor:
                window = slice(i * length, (i + 1) * length + 1)
                parts = stream[:, window], in_row[:, window]
                log_p, states, memory, applied = self._step(*parts, states, memory, settings)
                scores = scores.write(i, tf.transpose(log_p))
                return i + 1, scores, states, memory, skipped + tf.cast(~applied, tf.int32)

            states = [inputs[name] for name in reader.inputs]
            array = tf.TensorArray(tf.float32, size=count)
            start = (0, array, states, memory, tf.zeros_like(lengths))
            _, array, states, memory, skipped = tf.while_loop(
                lambda i, *_: i < count, read, start, parallel_iterations=1
            )
            scores = tf.transpose(array.concat())[:, :time]
            return _finite({
                **scored_text(tokenizer, ids, lengths, scores),
                "last": tf.gather(stream, lengths, batch_dims=1), "skipped": skipped,
                "memory": self._marked(memory), **dict(zip(reader.inputs, states)),
            })  # fmt: skip

        limits = f"-1, for the start of a text, or an id, 0 to {reader.words - 1}"
        last = requests.whole(-1, reader.words - 1, limits)
        return learn_text, {"texts": Input(tf.string), "last": last, **self._inputs(reader)}

    def _inputs(self, reader: ServedReader) -> dict[str, Input]:
        return {**reader.inputs, **MEMORY, **dict.fromkeys(REQUESTED, requests.finite())}

    def _step(
        self, ids: Tensor, in_row: Tensor, states: Tensor, memory: Tensor, settings: Tensor
    ) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
        """Score all ids but the first of each row, `(batch, time + 1)`, and learn from them.

        Returns log p `(batch, time)`, the new states, the new memory, and whether it was applied.
        """
        read = in_row[:, 1:]
        segment = {
            "tokens": tf.where(read, ids[:, :-1], PADDING_ID), "targets": ids[:, 1:],
            "weights": tf.cast(read, tf.float32), "states": states, "memory": memory,
            "moments": [], "settings": settings,
        }  # fmt: skip
        answer = self.lesson.learn(self.lesson.graph, segment)
        learns = tf.reduce_any(read, axis=1)  # else not even a decay
        memory = tf.where(learns[:, None], answer["memory"], memory)
        states = [tf.cast(state, tf.float32) for state in answer["states"]]
        log_p = tf.where(read, -answer["losses"], 0.0)
        return log_p, states, memory, answer["applied"] | ~learns

    def _checked(self, inputs: Tensors) -> tuple[Tensor, Tensors]:
        """Return the differences of each row, checked, and all other inputs."""
        width = tf.shape(inputs["memory"])[1]
        required = f"`memory` must have {self.size} numbers in each row, or none. Received:"
        fits = tf.equal(width, self.size) | tf.equal(width, 0)
        inputs = requests.after([tf.debugging.Assert(fits, [required, width])], inputs)
        missing = [[0, 0], [0, tf.where(tf.equal(width, 0), self.size, 0)]]
        memory = tf.ensure_shape(tf.pad(inputs.pop("memory"), missing), (None, self.size))
        mark = memory[:, -1]
        is_own = tf.equal(mark, self.mark) | tf.reduce_all(tf.equal(memory, 0.0), axis=1)
        last = f"whose last number, the mark of the model, is {self.mark:.0f}"
        required = f"zeros, or what this very model has learnt, {last}"
        check = requests.all_valid("memory", mark, is_own, required)
        return requests.after([check], {"memory": memory[:, :-1]})["memory"], inputs

    def _marked(self, memory: Tensor) -> Tensor:
        return tf.pad(memory, [[0, 0], [0, 1]], constant_values=self.mark)

    def _settings(self, inputs: Tensors) -> Tensor:
        """Return the settings of each row, `(batch, 5)`; below 0 is the default of the export."""
        columns = {
            name: tf.where(inputs[name] < 0, self.settings.get(name, 0.0), inputs[name])
            for name in REQUESTED
        }
        first = columns[REQUESTED[0]]
        columns = {n: columns.get(n, tf.fill(tf.shape(first), v)) for n, v in SETTINGS.items()}
        return tf.stack([*columns.values()], axis=1)


def _finite(answer: Tensors) -> Tensors:
    """Return `answer` with an assertion that its scores are finite."""
    required = "such that scores are finite; take an earlier one, or a smaller learning_rate"
    checks = []
    # In one order in every export.
    for name in ("log_probabilities", "perplexity", "probabilities", "logits"):
        if name in answer:
            valid = tf.math.is_finite(answer[name])
            if name == "perplexity":  # at most the largest number
                valid &= answer[name] < tf.float32.max
            if name == "logits":  # some may be impossible
                valid |= tf.math.is_inf(answer[name])
            checks.append(requests.all_valid("memory", answer[name], valid, required))
    return requests.after(checks, answer)
