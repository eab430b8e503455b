"""How `fit` and `evaluate` of a language model read batches: as streams with carried state."""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from dualnet._backend import untuned
from dualnet._checks import ArgumentError
from dualnet._types import Tensor
from dualnet.builders.batches import Data, as_state, check_targets, check_tokens, look_ahead
from dualnet.builders.bucketing import BucketedBatches
from dualnet.builders.graph import Graph, Perplexity, token_losses
from dualnet.builders.stream_state import StreamState
from dualnet.devices import check_rows, divided, num_devices
from dualnet.layers import without_gradients

LOSS_REDUCTIONS = ("mean", "sum")


class ClearsAllGradients(keras.Model):
    """A model that, on torch, starts each step without gradients.

    Keras keeps the parameters there by path, and so clears those of one member of an ensemble
    only, where two weights have the same path; the gradients of the others would add up.
    """

    def zero_grad(self, set_to_none=True):
        for variable in self.trainable_variables:
            variable.value.grad = None


class StreamModel(ClearsAllGradients):
    """The training of a `LanguageModel`, whose manual describes it."""

    graph: Graph
    core: keras.Model
    vocabulary_size: int
    padded: bool
    gated: bool
    can_mask: bool
    tokenisers: tuple[str, ...]  # the attributes that hold them

    def __setattr__(self, name, value):
        if name in ("loss_reduction", "label_smoothing", "dropout_samples"):
            self.train_function = self.test_function = None  # they are traced with it
        # Not in `compile`, without which Keras would not compile a loaded model.
        if name == "loss" and value is not None:
            _check_takes_logits(value)
        super().__setattr__(name, value)

    def _make_streams(self, sizes: list[int], fraternal: float) -> None:
        # The names are those of files: Keras saves by attribute.
        self.training_rows = StreamState(sizes, name="training_rows")
        self.evaluation_rows = StreamState(sizes, name="evaluation_rows")
        self.perplexity_metric = Perplexity()
        self.loss_reduction = "mean"
        self.label_smoothing = 0.0
        self.dropout_samples = 1
        self._fraternal = fraternal
        self._masked_graph: Any = self.graph if self.graph.padded else None  # made when needed
        self._validation_layout: tuple[bool, bool, int] | None = None  # of the data of `fit`

    # --- the step

    def _call_step(self, tokens, targets=None, training=False):
        """Read a batch with carried state; return the losses of `targets`, else the logits.

        With fraternal dropout, a training step returns the logits of two readings. The penalties
        are those of the one whose state is carried on.
        """
        if isinstance(tokens, np.ndarray):  # from JAX, outside of compiled functions
            tokens = ops.convert_to_tensor(tokens, "int32")
        stream = self.training_rows if training else self.evaluation_rows
        graph = self._masked_graph if stream.bucketed else self.graph
        if stream.carried:
            states = stream.read(tokens.shape[0])
            # Where a step is compiled for any batch size, the layers of Keras still want that of
            # the states.
            tokens = ops.reshape(tokens, (states[0].shape[0], ops.shape(tokens)[1]))
        else:
            states = self.initial_state(ops.shape(tokens)[0])
        if targets is not None:
            output, states = graph.losses(tokens, states, targets, training=training)
        elif self._fraternal and training:
            second, _ = graph.logits(tokens, states, training=True)
            # Nested in a call, the next reading would add its penalties to those of this one;
            # on JAX, it is not nested.
            graph.core._clear_losses()
            logits, states = graph.logits(tokens, states, training=True)
            output = {"logits": logits, "second_logits": second}
        else:
            output, states = graph.logits(tokens, states, training=training)
        if stream.carried:
            stream.write(states)
        return output

    def initial_state(self, batch_size: int) -> list[Tensor]:
        """Return the zero state for `batch_size` rows: a list of `(batch_size, size)`, float32."""
        column = ops.zeros((batch_size, 1), "float32")
        return [column + ops.convert_to_tensor(first) for first in self.graph.begin(1)]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        two_readings = isinstance(y_pred, dict)
        logits = y_pred["logits"] if two_readings else y_pred
        fused = isinstance(x, dict) and "targets" in x
        targets = ops.maximum(y, 0)
        nll = y_pred if fused else token_losses(logits, targets)
        if fused and training and self.dropout_samples > 1:
            of_samples = ops.reshape(nll, (self.dropout_samples, *ops.shape(y)))
            nll = math.log(self.dropout_samples) - ops.logsumexp(-of_samples, axis=0)
        weight = _counted(y, sample_weight)
        self.perplexity_metric.update_state(nll, weight)
        if training and self.label_smoothing:
            uniform = -ops.mean(ops.log_softmax(ops.cast(logits, "float32"), axis=-1), axis=-1)
            nll = (1.0 - self.label_smoothing) * nll + self.label_smoothing * uniform
        if self.loss is not None:  # one given to `compile`
            return super().compute_loss(x, y, logits, sample_weight, training)
        penalties = [ops.cast(loss, nll.dtype) for loss in self.losses]
        tokens = ops.maximum(ops.sum(weight), 1e-30)  # a batch may be padding alone
        if two_readings:
            nll = (nll + token_losses(y_pred["second_logits"], targets)) / 2
            gaps = ops.mean(ops.square(logits - y_pred["second_logits"]), axis=-1)
            penalties.append(self._fraternal * ops.sum(gaps * weight) / tokens)
        counted = {"mean": tokens, "sum": ops.shape(nll)[0]}[self.loss_reduction]
        return sum(penalties, ops.sum(nll * weight) / ops.cast(counted, nll.dtype))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        y_pred = y_pred["logits"] if isinstance(y_pred, dict) else y_pred
        # Those below 0 have the weight 0, but some metrics cannot look them up.
        return super().compute_metrics(x, ops.maximum(y, 0), y_pred, sample_weight)

    def train_step(self, *args):
        return super().train_step(*args[:-1], self._step_data(args[-1], training=True))

    def test_step(self, *args):
        with without_gradients():
            return super().test_step(*args[:-1], self._step_data(args[-1]))

    def _step_data(self, data, training=False):
        """Return the data of a step, its inputs in the form that `call` takes for a step."""
        tokens, targets, weight = keras.utils.unpack_x_y_sample_weight(divided(data))
        if targets is None:
            raise ArgumentError("y", "must be the targets, unless the batches of `x` have them.")
        inputs = {"tokens": tokens}
        read = tokens["target"] if isinstance(tokens, dict) else tokens
        [targets] = targets if isinstance(targets, list | tuple) else [targets]
        targets = ops.reshape(targets, ops.shape(read))  # Keras may have another axis, of 1
        if self.loss is None:  # one of your own has its own way of counting
            weight = _counted(targets, weight, read if self.padded else None)
        # A step that needs no logits of other words hands the targets over with the tokens.
        if self._needs_no_logits(training):
            inputs["targets"] = ops.maximum(targets, 0)
        if training and self.dropout_samples > 1:
            times = (self.dropout_samples, 1)
            inputs = keras.tree.map_structure(lambda rows: ops.tile(rows, times), inputs)
        return inputs, targets, weight

    def _needs_no_logits(self, training: bool) -> bool:
        """Return True if a step needs only the losses of the targets, no logits."""
        smoothed = training and self.label_smoothing > 0
        plain = self.loss is None and not self._fraternal and not smoothed
        return plain and self._compile_metrics is None

    def check_training(self) -> None:
        """Raise `ValueError` unless what is trainable, the loss and the samples fit together."""
        below = [w.path for w in self.trainable_variables if not w.path.startswith("gate")]
        if self.gated and below:
            raise ValueError(
                f"A gate is trained on a frozen model. Received: {below[0]!r} is trainable. Set "
                "trainable = False on the layers of model.core that are not its gate."
            )
        if self.loss is not None and (self.label_smoothing or self._fraternal):
            raise ArgumentError(
                "loss",
                "must be left out with `label_smoothing` and `fraternal_regularization`.",
                loss=self.loss,
            )
        if self.dropout_samples > 1 and not self._needs_no_logits(training=True):
            raise ArgumentError(
                "dropout_samples",
                "must be 1 with a loss or metrics of your own, with `label_smoothing`, and with "
                f"`fraternal_regularization`. Received: {self.dropout_samples}.",
            )

    # --- Keras's methods, over streams

    def fit(
        self,
        x: Data = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: str | int = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = False,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """`keras.Model.fit` over parallel streams, in order; see the class."""
        if validation_split:
            raise ArgumentError(
                "validation_split",
                "must be 0: the last rows of the data continue the streams of the first.",
                " Give validation_data.",
            )
        if shuffle:
            raise ArgumentError("shuffle", "must be False: the batches are streams, read in order.")
        kwargs["sample_weight"] = _weight_of_tokens(x, **kwargs)
        self._prepare_training()
        x = untuned(self._open(self.training_rows, x, batch_size, y), y, kwargs["sample_weight"])
        self._validation_layout = None
        if validation_data is not None:
            is_tuple = isinstance(validation_data, tuple | list)
            data, *rest = validation_data if is_tuple else (validation_data,)
            size = kwargs.get("validation_batch_size") or batch_size
            data = self._open(self.evaluation_rows, data, size, *rest[:1])
            if len(rest) > 1:
                rest[1] = _weight_of_tokens(data, sample_weight=rest[1])
            validation_data = (data, *rest) if rest else untuned(data)
            self._validation_layout = self.evaluation_rows.layout
        restarts = _Restart()
        restarts.set_model(self)
        is_list = isinstance(callbacks, keras.callbacks.CallbackList)
        listed = callbacks.callbacks if is_list else keras.tree.flatten(callbacks or [])
        listed[:] = [restarts, *(c for c in listed if not isinstance(c, _Restart))]
        for callback in listed:
            # Keras infers the mode only for metrics given to `compile`.
            watched = str(getattr(callback, "monitor", "")).removeprefix("val_")
            if watched == "perplexity" and getattr(callback, "mode", None) == "auto":
                callback.mode = "min"
        return super().fit(
            x,
            y,
            batch_size,
            epochs,
            verbose,
            callbacks if is_list else listed,
            validation_data=validation_data,
            shuffle=False,
            **kwargs,
        )

    def evaluate(
        self, x: Data = None, y: Any = None, batch_size: int | None = None, **kwargs: Any
    ) -> Any:
        """`keras.Model.evaluate` over parallel streams, from their first state; see the class."""
        kwargs["sample_weight"] = _weight_of_tokens(x, **kwargs)
        if not kwargs.get("_use_cached_eval_dataset"):
            x = untuned(
                self._open(self.evaluation_rows, x, batch_size, y), y, kwargs["sample_weight"]
            )
        elif self._validation_layout:  # `fit` has opened its data, but a callback may have others
            self._arrange(self.evaluation_rows, *self._validation_layout)
        self.evaluation_rows.restart()
        return super().evaluate(x, y, batch_size=batch_size, **kwargs)

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, **kwargs):
        weight = _weight_of_tokens(x, sample_weight, class_weight)
        self._prepare_training()
        self._open(self.training_rows, x, len(x), y)
        return super().train_on_batch(x, y, weight, **kwargs)

    def test_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        self._open(self.evaluation_rows, x, len(x), y)
        return super().test_on_batch(x, y, _weight_of_tokens(x, sample_weight), **kwargs)

    # --- streams

    def reset_state(
        self, state: Sequence[Tensor] | None = None, *, training: bool | None = None
    ) -> None:
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
        first = None
        if state is not None:
            tensors = as_state(state, None, self.training_rows.sizes)
            first = tuple(ops.convert_to_numpy(tensor) for tensor in tensors)
        for stream, is_training in ((self.training_rows, True), (self.evaluation_rows, False)):
            if training in (None, is_training):
                stream.first = first
                stream.restart()

    def _prepare_training(self) -> None:
        """Check the trainable weights, and build the optimizer.

        TensorFlow would trace a step that makes variables twice.
        """
        self.check_training()
        optimizer = getattr(self, "optimizer", None)  # none before `compile`, which Keras tells
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.trainable_variables)

    def _uses_buckets(self) -> bool:
        """Bucket where each new length is compiled, and where padding can be masked out."""
        exact = self.loss is None and self._compile_metrics is None and self.can_mask
        return exact and keras.config.backend() != "torch" and bool(self.jit_compile)

    def _open(
        self, stream: StreamState, data: Data, batch_size: int | None, targets: Any = None
    ) -> Data:
        """Prepare `stream` for the batches of `data`; return `data`, unread.

        `targets` are those of arrays; batches have their own.
        """
        if getattr(data, "pads", False) and not self.padded:
            raise ArgumentError(
                "x",
                "must hold no padding, which this model would read as words.",
                " Build the model with padded=True.",
            )
        data, tokens, targets, batch_size = look_ahead(data, batch_size, targets)
        self._check_batch(tokens, targets)
        self.check_words("x", data)
        for name in self.tokenisers:
            if getattr(self, name) is None:
                setattr(self, name, getattr(data, name, None))
        carried = getattr(data, "carried", True)
        bucketed = getattr(data, "lengths_vary", False) and self._uses_buckets()
        if bucketed:
            data = BucketedBatches(data)
            self._masked_graph = self._masked_graph or self.graph.with_masks()
        if stream is self.training_rows and carried:
            check_rows(batch_size)
        self._arrange(stream, carried, bucketed, batch_size)
        return data

    def check_words(self, argument: str, data: Data) -> None:
        """Raise `ArgumentError` if `data`, of a corpus, has other tokenisers than the model."""
        for name in self.tokenisers:
            ours, theirs = getattr(self, name), getattr(data, name, None)
            if ours is not None and theirs is not None and theirs != ours:
                required = "must have the vocabulary of the model, and read text as it does."
                received = f"Received: {theirs!r}, where the model has {ours!r}."
                keyword = "vocabulary=model.vocabulary"
                if len(self.tokenisers) > 1:
                    keyword = "tokenizer=(model.source_vocabulary, model.vocabulary)"
                raise ArgumentError(
                    argument, f"{required} {received}", f" Load the corpus with {keyword}."
                )

    def _check_batch(self, tokens, targets):
        """Raise `ArgumentError` for tokens or targets beyond the vocabulary; reads no symbols."""
        check_tokens("x", tokens, -1 if self.padded else 0, self.vocabulary_size)
        check_targets(targets, tuple(tokens.shape), self.vocabulary_size)

    def _arrange(self, stream: StreamState, carried: bool, bucketed: bool, batch_size: int) -> None:
        """Give `stream` a layout; drop the compiled step if it was traced with another."""
        changed = (stream.carried, stream.bucketed) != (carried, bucketed)
        stream.carried, stream.bucketed = carried, bucketed
        if carried:  # else the number of rows may vary
            samples = self.dropout_samples if stream is self.training_rows else 1
            changed |= stream.resize(samples * batch_size, samples)
        if num_devices() > 1:  # Keras fixes the layout of each variable when it makes a step
            changed |= stream.num_variables != len(self.variables)
            stream.num_variables = len(self.variables)
        if changed:
            # Compiled steps hold the variables that they were traced with.
            if stream is self.training_rows:
                self.train_function = None
            else:
                self.test_function = None


def _counted(targets: Tensor, weight: Tensor | None, read: Tensor | None = None) -> Tensor:
    """Return the weight of each token, float32: 0 where the target, or what is `read`, is below 0.

    `weight` is that of tokens or of rows, or None.
    """
    is_counted = targets >= 0 if read is None else ops.logical_and(targets >= 0, read >= 0)
    counted = ops.cast(is_counted, "float32")
    if weight is None:
        return counted
    weight = ops.expand_dims(weight, -1) if len(weight.shape) == 1 else weight
    return counted * ops.cast(weight, "float32")


def _check_takes_logits(losses: Any) -> None:
    """Raise `ArgumentError` for a loss of probabilities, which the model does not compute."""
    for loss in keras.tree.flatten(losses):
        function = keras.losses.get(loss) if isinstance(loss, str) else loss
        if isinstance(function, keras.losses.Loss):
            takes_logits = function.get_config().get("from_logits", True)
        else:  # a function, whose `from_logits` is False by default
            flag = inspect.signature(function).parameters.get("from_logits")
            takes_logits = flag is None or flag.default
        if not takes_logits:
            raise ArgumentError(
                "loss",
                "must take logits.",
                " Leave it out, or give "
                "keras.losses.SparseCategoricalCrossentropy(from_logits=True).",
                loss=loss,
            )


class _Restart(keras.callbacks.Callback):
    """Starts the streams from their first state at each epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.training_rows.restart()


def _weight_of_tokens(
    x: Data, sample_weight: Any = None, class_weight: object = None, **_: object
) -> Any:
    """Return a weight for each token of `x` from those of rows or tokens, or None."""
    if class_weight is not None:
        raise ArgumentError(
            "class_weight",
            "must be None: Keras takes the last axis of targets (batch, time) for classes.",
            " Give sample_weight, one per token.",
        )
    tokens_shape = tuple(getattr(x, "shape", ()))
    if sample_weight is None or not tokens_shape:
        return sample_weight
    values = np.asarray(sample_weight, "float32")
    if values.shape not in (tokens_shape, tokens_shape[:1]):
        required = f"must hold a weight per row or per token of `x`, of shape {tokens_shape}."
        raise ArgumentError("sample_weight", f"{required} Received: shape {values.shape}.")
    return np.broadcast_to(values[:, None] if values.ndim == 1 else values, tokens_shape)
