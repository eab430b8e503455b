"""`StreamTrainer`: how a language model trains on parallel streams and evaluates them."""

import inspect
import warnings
from typing import Any

import keras
from keras import ops

from dualnet._checks import ArgumentError
from dualnet.builders.batches import as_state, look_ahead
from dualnet.builders.bucketing import BucketedBatches
from dualnet.builders.graph import Graph, Perplexity, token_losses
from dualnet.builders.stream_state import StreamState
from dualnet.devices import check_rows, divided, num_devices
from dualnet.layers import without_gradients


class ClearsAllGradients(keras.Model):
    """A model that, on torch, starts each step without gradients.

    Keras keeps the parameters there by path, and so clears those of one member of an ensemble
    only, where two weights have the same path; the gradients of the others would add up.
    """

    def zero_grad(self, set_to_none=True):
        for variable in self.trainable_variables:
            variable.value.grad = None


class StreamTrainer(ClearsAllGradients):
    """What `LanguageModel` does in `fit` and `evaluate`; see there."""

    graph: Graph
    training_rows: StreamState
    evaluation_rows: StreamState
    perplexity_metric: Perplexity
    vocabulary: Any
    label_smoothing: float
    _masked_graph: Any
    _validation_layout: tuple[Any, ...] | None  # of the streams that `fit` validates on

    # --- loss and metric

    @property
    def loss(self):
        """The loss given to `compile`, or None for the default."""
        return self._loss

    @loss.setter
    def loss(self, loss):
        # Not in `compile`: Keras would not compile a loaded model if that were overridden.
        for part in keras.tree.flatten(loss):
            _check_takes_logits(part)
        self._loss = loss

    def compile_from_config(self, config):
        try:
            super().compile_from_config(config)
        except ArgumentError as error:  # an old file with such a loss
            warnings.warn(
                f"The model is loaded without its compile settings: {error}", stacklevel=2
            )

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        two_readings = isinstance(y_pred, dict)
        logits = y_pred["logits"] if two_readings else y_pred
        fused = isinstance(x, dict) and "targets" in x
        nll = y_pred if fused else token_losses(logits, y)
        weight = ops.ones_like(nll) if sample_weight is None else ops.cast(sample_weight, nll.dtype)
        weight = ops.broadcast_to(weight, ops.shape(nll))
        self.perplexity_metric.update_state(nll, weight)
        if training and self.label_smoothing:
            uniform = -ops.mean(ops.log_softmax(ops.cast(logits, "float32"), axis=-1), axis=-1)
            nll = (1.0 - self.label_smoothing) * nll + self.label_smoothing * uniform
        if self.loss is not None:  # one given to `compile`
            return super().compute_loss(x, y, logits, sample_weight, training)
        penalties = [ops.cast(loss, nll.dtype) for loss in self.losses]
        tokens = ops.sum(weight)
        if two_readings:
            nll = (nll + token_losses(y_pred["second_logits"], y)) / 2
            gaps = ops.mean(ops.square(logits - y_pred["second_logits"]), axis=-1)
            penalties.append(self._fraternal * ops.sum(gaps * weight) / tokens)
        counted = tokens if self.loss_reduction == "mean" else ops.shape(nll)[0]
        return sum(penalties, ops.sum(nll * weight) / ops.cast(counted, nll.dtype))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        y_pred = y_pred["logits"] if isinstance(y_pred, dict) else y_pred
        return super().compute_metrics(x, y, y_pred, sample_weight)

    # --- streams

    def reset_state(self, state=None, *, training=None):
        """Start the streams again, from `state` or from zeros.

        The streams of `fit` start from it at each epoch, those of `evaluate` at each
        evaluation, until you call `reset_state` again. `train_on_batch` and `test_on_batch`
        continue from it. It is not saved with the model.

        Args:
            state: list of `(rows, size)`, such as the state that `advance` returns, with one
                row for all streams, or one for each; None for zeros.
            training: bool. True: for the streams of `fit` only; False: for those of `evaluate`
                only; None: for both.

        Raises:
            ValueError: if the state does not fit the model, or the number of streams.

        Example:

        >>> from dualnet import zoo
        >>> model = zoo.build("lstm", vocabulary_size=9, units=4)
        >>> _, state = model.advance([[1, 2, 3]], model.initial_state(1))
        >>> model.reset_state(state)
        """
        if state is not None:
            state = as_state(state, None, self.state_size)
            state = tuple(ops.convert_to_numpy(part) for part in state)
        for stream, chosen in ((self.training_rows, True), (self.evaluation_rows, False)):
            if training in (None, chosen):
                stream.first = state
                stream.restart()

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
                "must be False: the batches of a language model are streams, read in order. "
                f"Received: shuffle={shuffle!r}.",
            )
        self._prepare_training()
        x = self._open(self.training_rows, x, batch_size)
        self._validation_layout = None
        if validation_data is not None:
            data, *rest = _as_tuple(validation_data)
            size = kwargs.get("validation_batch_size") or batch_size
            validation_data = (self._open(self.evaluation_rows, data, size), *rest)
            validation_data = validation_data if rest else validation_data[0]
            self._validation_layout = self.evaluation_rows.layout
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = [_RestartAtEpochStart(), *(_as_tuple(callbacks) if callbacks else ())]
            for callback in callbacks:
                # Keras infers the mode only for metrics given to `compile`.
                watched = str(getattr(callback, "monitor", "")).removeprefix("val_")
                if watched == "perplexity" and getattr(callback, "mode", None) == "auto":
                    callback.mode = "min"
        with self.training_rows.raises_faults(), self.evaluation_rows.raises_faults():
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
        """`keras.Model.evaluate` over parallel streams, from their first state; see the class."""
        if not kwargs.get("_use_cached_eval_dataset"):
            x = self._open(self.evaluation_rows, x, batch_size)
        elif self._validation_layout:  # `fit` has opened its data, but a callback may have others
            self._arrange(self.evaluation_rows, *self._validation_layout)
        self.evaluation_rows.restart()
        with self.evaluation_rows.raises_faults():
            return super().evaluate(x, y, batch_size=batch_size, **kwargs)

    def train_on_batch(self, x, *args, **kwargs):
        self._prepare_training()
        self._open(self.training_rows, x, len(x))
        return super().train_on_batch(x, *args, **kwargs)

    def test_on_batch(self, x, *args, **kwargs):
        self._open(self.evaluation_rows, x, len(x))
        return super().test_on_batch(x, *args, **kwargs)

    def train_step(self, *args):
        return super().train_step(*args[:-1], self._step_data(args[-1], training=True))

    def test_step(self, *args):
        with without_gradients():
            return super().test_step(*args[:-1], self._step_data(args[-1]))

    def _step_data(self, data, training=False):
        """Return the data of a step, its inputs in the form that `call` takes for a step."""
        tokens, targets, weight = keras.utils.unpack_x_y_sample_weight(divided(data))
        inputs = {"tokens": tokens}
        # A step that needs no logits of other words hands the targets over with the tokens.
        smoothed = training and self.label_smoothing > 0
        own_loss = self.loss is None and not self._fraternal and not smoothed
        if own_loss and self._compile_metrics is None:
            inputs["targets"] = targets
        return inputs, targets, weight

    def _prepare_training(self):
        """Check what is trainable, and make the optimizer's variables.

        TensorFlow would trace a step that makes variables twice.
        """
        if self.gated:
            below = [w.path for w in self.trainable_variables if not w.path.startswith("gate")]
            if below:
                raise ValueError(
                    "A gate is trained on a frozen model. Received: a gated model in which "
                    f"{below[0]!r} is trainable. Set trainable = False on all layers of "
                    "model.core whose name does not begin with 'gate'."
                )
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)

    def _uses_buckets(self):
        """Return whether to bucket: each length is compiled, and padding is masked out."""
        exact = self.loss is None and self._compile_metrics is None and not self.cache_size
        return exact and keras.config.backend() != "torch" and bool(self.jit_compile)

    def _open(self, stream, data, batch_size):
        """Prepare `stream` for the batches of `data`; return `data`, unread."""
        if getattr(data, "pads", False) and not self.padded:
            raise ArgumentError(
                "x",
                "must hold no padding, which this model would read as words. Received: "
                f"{type(data).__name__}. Build the model with padded=True.",
            )
        lowest = -1 if self.padded else 0
        size = self.vocabulary_size
        stream.faults.clear()
        data, batch_size = look_ahead(data, batch_size, lowest, size, faults=stream.faults)
        vocabulary = getattr(data, "vocabulary", None)
        if self.vocabulary is None:
            self.vocabulary = vocabulary
        elif vocabulary is not None and vocabulary.sha256 != self.vocabulary.sha256:
            raise ArgumentError(
                "x",
                "must have the vocabulary of the model, whose ids mean other words. Received: "
                f"{vocabulary!r}, where the model has {self.vocabulary!r}. Load the corpus with "
                "vocabulary=model.vocabulary.",
            )
        carried = getattr(data, "carried", True)
        bucketed = getattr(data, "lengths_vary", False) and self._uses_buckets()
        if bucketed:
            data = BucketedBatches(data)
            self._masked_graph = self._masked_graph or self.graph.with_masks()
        if stream is self.training_rows and carried:
            check_rows(batch_size)
        self._arrange(stream, carried, bucketed, batch_size)
        return data

    def _arrange(self, stream, carried, bucketed, batch_size):
        """Give `stream` a layout; drop the compiled step if it was traced with another."""
        changed = (stream.carried, stream.bucketed) != (carried, bucketed)
        stream.carried, stream.bucketed = carried, bucketed
        if carried:  # else the number of rows may vary
            changed |= stream.resize(batch_size)
        if num_devices() > 1:  # Keras fixes the layout of each variable when it makes a step
            changed |= stream.known != len(self.variables)
            stream.known = len(self.variables)
        if changed:
            # Compiled steps hold the variables that they were traced with.
            if stream is self.training_rows:
                self.train_function = None
            else:
                self.test_function = None


class _RestartAtEpochStart(keras.callbacks.Callback):
    """Starts every epoch's streams from their first state."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.training_rows.restart()


def _check_takes_logits(loss):
    """Raise `ArgumentError` for a loss of probabilities, which the model does not compute."""
    resolved = keras.losses.get(loss) if isinstance(loss, str) else loss
    if isinstance(resolved, keras.losses.Loss):
        takes_logits = resolved.get_config().get("from_logits", True)
    else:  # a function, whose `from_logits` is False by default
        takes_logits = "from_logits" not in _parameters_of(resolved)
    if not takes_logits:
        raise ArgumentError(
            "loss",
            f"must take logits, the output of the model. Received: loss={loss!r}. Leave it out, "
            "or give keras.losses.SparseCategoricalCrossentropy(from_logits=True).",
        )


def _parameters_of(function):
    return inspect.signature(function).parameters if callable(function) else ()


def _as_tuple(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
