"""`LanguageModel`: a graph with explicit state, and the rows of state that training carries."""

from typing import Any

import keras
import numpy as np
from keras import ops

from dualnet._checks import ArgumentError, check_choice
from dualnet.builders.carried_state import CarriedState
from dualnet.builders.few_lengths import FewLengths, knowing_padding
from dualnet.builders.losses import Perplexity, losses_of, token_losses
from dualnet.devices import check_rows, divided, num_devices
from dualnet.layers import without_gradients
from dualnet.text import Vocabulary

LOSS_REDUCTIONS = ("mean", "sum")


class ClearsAllGradients(keras.Model):
    """A model that, on torch, begins each step without gradients.

    Keras keeps the parameters there by path, and so clears those of one member of an
    ensemble alone, where weights of two have one path; those of the others would add up.
    """

    def zero_grad(self, set_to_none=True):
        for variable in self.trainable_variables:
            variable.value.grad = None


@keras.saving.register_keras_serializable("dualnet")
class LanguageModel(ClearsAllGradients):
    """A recurrent language model: int32 `(batch, time)` to float32 logits `(batch, time, words)`.

    The graph, `core`, is a pure function `[tokens, *states] -> [logits, *states]`.
    A plain call starts from the zero state. `fit` and `evaluate` read their
    batches as parallel streams: row b of a batch goes on where row b of the
    batch before ended, from zeros at the start of each epoch; training and
    evaluation each have rows of their own, so that validation disturbs nothing.
    A stream has no order but its own: `fit` never shuffles.

    `compile` needs no loss: the default is the mean negative log-likelihood of
    the targets, in nats per token, plus the penalties; one that is given takes
    the place of all of these but the penalties. The metric `perplexity`
    leaves the penalties out. Data with an attribute `carried` that is False, such
    as batches of sentences, start every batch from zeros instead.

    Where a step is compiled for each length (`jit_compile`, always so on JAX), data with
    an attribute `lengths_vary` that is True, such as those batches and random lengths, are
    padded on the right to few lengths and read with masks: the same losses, gradients and
    states, to rounding (fresh masks of dropouts are other draws). Not so with a `loss` or
    `metrics` given to `compile`, or with a cache, which would count the padding.

    Args:
        core: `keras.Model`, `[tokens, *states] -> [logits, *states]`.
        builder: str. Name of the builder that made `core`.
        arguments: dict. The builder's arguments: with `builder` all that is
            needed to make the model again.
        hidden: symbolic tensor of `core`, `(batch, time, units)`: the output of the
            recurrence, without dropout; None where nothing is to be built upon it.
        features: symbolic tensor of `core` or list of them: what enters the mixture that
            is its layer "output"; None without one.
        **kwargs: Passed to `keras.Model`, e.g. `name`.

    Attributes:
        vocabulary: `dualnet.corpora.Vocabulary` or None. Saved with the model;
            `fit` takes it from the batches of a corpus.
        vocabulary_size: int.
        state_size: list of int, the sizes of the states.
        loss_reduction: "mean" over all tokens of a batch (the default), or "sum", over
            time, of the mean over rows, as some papers have it: their learning rates
            and penalties are meant for it. Saved with the model.
        padded: bool. Whether tokens below 0 are padding.
        gated: bool. Whether the model is a gate on a frozen model: `fit` trains the gate
            alone.
        cache_size: int. Words that its neural cache remembers, or the largest of those of
            its members; 0 without one.
    """

    def __init__(self, core, *, builder, arguments, hidden=None, features=None, **kwargs):
        super().__init__(**kwargs)
        self.core = core
        self.builder = builder
        self.arguments = dict(arguments)
        self.hidden = hidden
        self.features = features
        self.padded = _is_padded(arguments)
        self.gated = self.arguments.get("gate", "none") != "none"
        self.cache_size = _cache_size(arguments)
        self.state_size = [int(state.shape[-1]) for state in core.inputs[1:]]
        self.vocabulary_size = int(core.outputs[0].shape[-1])
        self.training_rows = CarriedState(self.state_size, name="training_rows")
        self.evaluation_rows = CarriedState(self.state_size, name="evaluation_rows")
        self.perplexity_metric = Perplexity(name="perplexity")
        self.loss_reduction = "mean"
        self._rows = None  # those that the step under way carries
        fraternal = self.arguments.get("fraternal_regularization", 0.0)
        self._fraternal = 0.0 if self.gated else float(fraternal)  # off, as all of a base
        self._step_under_way = False
        self._second = None  # logits of the second reading of the step under way
        self._targets = None  # those of the step under way, if it asks for nothing but their losses
        find_losses = losses_of(core, features, padded=self.padded)
        self._graphs = self._own_graphs = lambda: (core, find_losses)
        self._padded_graphs: Any = self._own_graphs if self.padded else None  # made when needed
        self._vocabulary = None
        self.built = True

    # --- the pure function

    def call(self, tokens, training=False):
        if isinstance(tokens, np.ndarray):  # of JAX where it compiles nothing
            tokens = ops.convert_to_tensor(tokens, "int32")
        rows = self._rows
        if rows is None:
            states = self.initial_state(ops.shape(tokens)[0])
        else:
            states = rows.read(tokens.shape[0])
        core, find_losses = self._graphs()
        if self._fraternal and self._step_under_way and training:
            self._second, *_ = core([tokens, *states], training=True)
        if self._targets is None:
            found, *states = core([tokens, *states], training=training)
        else:
            found, *states = find_losses([tokens, *states], self._targets, training)
        if rows is not None:
            rows.write(states)
        return found

    def initial_state(self, batch_size):
        """Return the zero state for `batch_size` rows: a list of `(batch_size, size)`, float32."""
        return [ops.zeros((batch_size, size), "float32") for size in self.state_size]

    def advance(self, tokens, state):
        """Return the logits of `tokens` read in `state`, and the state after them.

        Pure: nothing is kept in the model. Dropouts are off.

        Args:
            tokens: int `(batch, time)`.
            state: list of `(batch, size)`, from `initial_state` or `advance`.

        Returns:
            `(logits, state)`: float32 `(batch, time, words)`, and a list like `state`.
        """
        tokens = ops.convert_to_tensor(tokens, "int32")
        state = [ops.convert_to_tensor(each, "float32") for each in state]
        logits, *state = self.core([tokens, *state], training=False)
        return logits, state

    # --- loss reduction and words

    @property
    def loss_reduction(self):
        return self._loss_reduction

    @loss_reduction.setter
    def loss_reduction(self, reduction):
        self._loss_reduction = check_choice("loss_reduction", reduction, LOSS_REDUCTIONS)

    @property
    def vocabulary(self):
        return self._vocabulary

    @vocabulary.setter
    def vocabulary(self, vocabulary):
        if vocabulary is not None and len(vocabulary) != self.vocabulary_size:
            raise ArgumentError(
                "vocabulary",
                f"must have as many words as the model, {self.vocabulary_size}. "
                f"Received: a vocabulary of {len(vocabulary)} words. Build the model with "
                f"vocabulary_size={len(vocabulary)}.",
            )
        self._vocabulary = vocabulary

    # --- loss and metric

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        nll = token_losses(y_pred, y) if self._targets is None else y_pred
        weight = ops.ones_like(nll) if sample_weight is None else ops.cast(sample_weight, nll.dtype)
        weight = ops.broadcast_to(weight, ops.shape(nll))
        self.perplexity_metric.update_state(nll, weight)
        if self.loss is not None:  # one given to `compile`
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        penalties = [ops.cast(loss, nll.dtype) for loss in self.losses]
        tokens = ops.sum(weight)
        if self._second is not None:
            nll = (nll + token_losses(self._second, y)) / 2
            gaps = ops.mean(ops.square(y_pred - self._second), axis=-1)
            penalties.append(self._fraternal * ops.sum(gaps * weight) / tokens)
        counted = tokens if self.loss_reduction == "mean" else ops.shape(nll)[0]
        return sum(penalties, ops.sum(nll * weight) / ops.cast(counted, nll.dtype))

    # --- streams

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        shuffle=False,
        **kwargs,
    ):
        """`keras.Model.fit` over parallel streams, in order; see the class."""
        if shuffle:
            raise ArgumentError(
                "shuffle",
                "must be False: the batches of a language model are streams, read in "
                f"order. Received: shuffle={shuffle!r}.",
            )
        self._check_trainable()
        x = self._open(self.training_rows, x, batch_size)
        if validation_data is not None:
            data, *rest = _as_tuple(validation_data)
            size = kwargs.get("validation_batch_size") or batch_size
            validation_data = (self._open(self.evaluation_rows, data, size), *rest)
            validation_data = validation_data if rest else validation_data[0]
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = [_FromZeros(), *(_as_tuple(callbacks) if callbacks else ())]
            for callback in callbacks:
                # Keras finds out by itself for the metrics given to `compile` alone.
                watched = str(getattr(callback, "monitor", "")).removeprefix("val_")
                if watched == "perplexity" and getattr(callback, "mode", None) == "auto":
                    callback.mode = "min"
        return super().fit(
            x,
            y,
            batch_size=batch_size,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_split=validation_split,
            validation_data=validation_data,
            shuffle=False,
            **kwargs,
        )

    def evaluate(self, x=None, y=None, batch_size=None, **kwargs):
        """`keras.Model.evaluate` over parallel streams, from the zero state; see the class."""
        if not kwargs.get("_use_cached_eval_dataset"):  # else `fit` has looked ahead already
            x = self._open(self.evaluation_rows, x, batch_size)
        self.evaluation_rows.zero()
        return super().evaluate(x, y, batch_size=batch_size, **kwargs)

    def train_on_batch(self, x, *args, **kwargs):
        self._check_trainable()
        self._open(self.training_rows, x, len(x))
        return super().train_on_batch(x, *args, **kwargs)

    def test_on_batch(self, x, *args, **kwargs):
        self._open(self.evaluation_rows, x, len(x))
        return super().test_on_batch(x, *args, **kwargs)

    def train_step(self, *args):
        return self._carrying(self.training_rows, super().train_step, *args)

    def test_step(self, *args):
        with without_gradients():
            return self._carrying(self.evaluation_rows, super().test_step, *args)

    def _carrying(self, rows, step, *args):
        *state, data = args  # the state on JAX alone
        data = divided(data)
        self._rows = rows if rows.carried else None
        self._step_under_way = True
        self._graphs = self._padded_graphs if rows.in_few_lengths else self._own_graphs
        if self._asks_for_losses_alone():
            _, self._targets, _ = keras.utils.unpack_x_y_sample_weight(data)
        try:
            return step(*state, data)
        finally:
            self._rows = self._second = self._targets = None
            self._step_under_way = False
            self._graphs = self._own_graphs

    def _asks_for_losses_alone(self):
        """Return whether a step needs -log p of the targets, and no logits of other words."""
        return self.loss is None and not self._fraternal and self._compile_metrics is None

    def _check_trainable(self):
        if self.gated:
            moving = [w.path for w in self.trainable_variables if not w.path.startswith("gate")]
            if moving:
                raise ValueError(
                    "A gate is trained on a model that stands still. Received: a gated model "
                    f"whose {moving[0]!r} would move, too. Set trainable = False on all layers of "
                    "model.core but those named 'gate...'."
                )

    def _compiles_each_length(self):
        """Return whether a length is compiled, which takes seconds, and padding would not count."""
        exact = self.loss is None and self._compile_metrics is None and not self.cache_size
        return exact and keras.config.backend() != "torch" and bool(self.jit_compile)

    def _open(self, rows, data, batch_size):
        """Make `rows` fit the batches of `data`; return `data`, unread."""
        if getattr(data, "pads", False) and not self.padded:
            raise ArgumentError(
                "x",
                "must hold no padding, which this model would read as words. Received: "
                f"{type(data).__name__}. Build the model with padded=True.",
            )
        lowest = -1 if self.padded else 0
        data, batch_size = _look_ahead(data, batch_size, lowest, self.vocabulary_size)
        vocabulary = getattr(data, "vocabulary", None)
        if self.vocabulary is None:
            self.vocabulary = vocabulary
        elif vocabulary is not None and vocabulary.words != self.vocabulary.words:
            raise ArgumentError(
                "x",
                "must have the vocabulary of the model, whose ids mean other words. Received: "
                f"{vocabulary!r}, where the model has {self.vocabulary!r}. Load the corpus with "
                "vocabulary=model.vocabulary.",
            )
        changed = rows.carries(getattr(data, "carried", True))
        pads = getattr(data, "lengths_vary", False) and self._compiles_each_length()
        changed |= rows.in_few_lengths != pads
        rows.in_few_lengths = pads
        if pads:
            data = FewLengths(data)
            if self._padded_graphs is None:
                core, features = knowing_padding(self.core, self.features)
                find_losses = losses_of(core, features, padded=True)
                self._padded_graphs = lambda: (core, find_losses)
        if rows is self.training_rows and rows.carried:
            check_rows(batch_size)
        if rows.carried:  # else none are read, and their number may vary
            changed |= rows.resize(batch_size)
        if num_devices() > 1:  # Keras says for each variable where it lies when it makes a step
            changed |= rows.known != len(self.variables)
            rows.known = len(self.variables)
        if changed:
            # Compiled steps hold the variables that they were traced with.
            if rows is self.training_rows:
                self.train_function = None
            else:
                self.test_function = None
        return data

    # --- saving

    def get_config(self):
        vocabulary = self.vocabulary
        return {
            "name": self.name,
            "builder": self.builder,
            "arguments": self.arguments,
            "loss_reduction": self.loss_reduction,
            "vocabulary": None if vocabulary is None else list(vocabulary.words),
            "lowercase": vocabulary is not None and vocabulary.lowercase,
        }

    @classmethod
    def from_config(cls, config):
        from dualnet.builders import BUILDERS

        model = BUILDERS[config["builder"]](**config["arguments"], name=config["name"])
        model.loss_reduction = config.get("loss_reduction", "mean")
        if config["vocabulary"] is not None:
            model.vocabulary = Vocabulary(
                config["vocabulary"], lowercase=config.get("lowercase", False)
            )
        return model


class _FromZeros(keras.callbacks.Callback):
    """Starts every epoch's streams from the zero state."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.training_rows.zero()


def _is_padded(arguments):
    members = [each["arguments"] for each in arguments.get("members", ())]
    return bool(arguments.get("padded", False)) or any(map(_is_padded, members))


def _cache_size(arguments):
    members = [each["arguments"] for each in arguments.get("members", ())]
    return max(int(arguments.get("cache_size", 0)), *map(_cache_size, members), 0)


def _look_ahead(data, batch_size, lowest, vocabulary_size):
    """Return `data` and the number of rows of its batches, given or found in the first."""
    if hasattr(data, "shape"):  # an array: Keras cuts it into batches, of 32 by default
        rows, batch_size = len(data), batch_size or 32
        if rows < batch_size or rows % batch_size:
            raise ArgumentError(
                "x",
                f"must hold a multiple of `batch_size` rows, since each row goes on the "
                f"stream of the row `batch_size` before. Received: {rows} rows, "
                f"batch_size={batch_size}.",
            )
        if isinstance(data, np.ndarray) and data.size:
            low, high = data.min(), data.max()
            if low < lowest or high >= vocabulary_size:  # JAX and XLA would read another word
                or_padding = "" if lowest == 0 else ", or -1 for padding"
                raise ArgumentError(
                    "x",
                    f"must hold ids of the model's vocabulary, 0 to {vocabulary_size - 1}"
                    f"{or_padding}. Received: {low} to {high}.",
                )
        return data, batch_size
    if isinstance(data, keras.utils.PyDataset):
        first = data[0]
    elif iter(data) is data:  # a generator: put back what was taken out
        first = next(data)
        data = _chain(first, data)
    else:
        first = next(iter(data))
    tokens = first[0] if isinstance(first, (tuple, list)) else first
    return data, int(tokens.shape[0])


def _chain(first, rest):
    # A generator again: Keras takes no other iterator.
    yield first
    yield from rest


def _as_tuple(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
