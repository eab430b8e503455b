"""`LanguageModel`: a graph with explicit state, and how it trains on parallel streams."""

import inspect
import math
import operator
import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from dualnet._checks import ArgumentError, check_choice, check_count, check_flag, check_fraction
from dualnet.allocator import keep_freed_memory
from dualnet.builders.batches import as_state, as_tokens, check_call, check_targets, look_ahead
from dualnet.builders.bucketing import BucketedBatches
from dualnet.builders.graph import Perplexity, token_losses
from dualnet.builders.parts import check_imported, modules_of
from dualnet.builders.stream_state import StreamState
from dualnet.cards import all_arguments
from dualnet.devices import check_rows, divided, num_devices
from dualnet.layers import without_gradients
from dualnet.text import Tokenizer, from_config

BUILDERS: dict[str, Callable[..., Any]] = {}  # by name: a saved model names its own
LOSS_REDUCTIONS = ("mean", "sum")


class ClearsAllGradients(keras.Model):
    """A model that, on torch, starts each step without gradients.

    Keras keeps the parameters there by path, and so clears those of one member of an ensemble
    only, where two weights have the same path; the gradients of the others would add up.
    """

    def zero_grad(self, set_to_none=True):
        for variable in self.trainable_variables:
            variable.value.grad = None


def checked_attribute(name, check):
    """Return the property `name` of models; `check(model, value)` refuses what it must not be."""

    def assign(model, value):
        check(model, value)
        setattr(model, f"_{name}", value)

    return property(operator.attrgetter(f"_{name}"), assign, doc="See the attributes of the class.")


def tokeniser_attribute(name):
    """Return the property `name` of models: a tokeniser of as many words as they have, or None."""

    def check(model, vocabulary):
        size = getattr(model, f"{name}_size")
        if not isinstance(vocabulary, (Tokenizer, type(None))):
            received = f"Received: {type(vocabulary).__name__}."
            way_out = " For a list of words, give dualnet.text.Vocabulary(words)."
            raise ArgumentError(name, f"must be a tokeniser of dualnet.text. {received}", way_out)
        if vocabulary is not None and (own := len(vocabulary)) != size:
            required = f"must have as many words as the model, {size}."
            way_out = f" Build the model with {name}_size={own}."
            raise ArgumentError(name, f"{required} Received: a vocabulary of {own} words.{way_out}")

    return checked_attribute(name, check)


def step_attribute(name, check, *settings, **bounds):
    """Return the property `name` of models, with which a step is traced."""

    def check_anew(model, value):
        check(name, value, *settings, **bounds)
        model.train_function = model.test_function = None

    return checked_attribute(name, check_anew)


def _note_weights(model, run):
    """Note the checksum of the weights that are those of `run`, from which they may change."""
    model.sum_of_run = run and model.sum_of_weights()


def _check_losses(_, losses):
    """Raise `ArgumentError` for a loss of probabilities, which the model does not compute."""
    for loss in keras.tree.flatten(losses):
        resolved = keras.losses.get(loss) if isinstance(loss, str) else loss
        if isinstance(resolved, keras.losses.Loss):
            takes_logits = resolved.get_config().get("from_logits", True)
        else:  # a function, whose `from_logits` is False by default
            parameters = inspect.signature(resolved).parameters if callable(resolved) else {}
            flag = parameters.get("from_logits")
            takes_logits = flag is None or flag.default is not False
        if not takes_logits:
            other = "keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
            required = "must take logits, the output of the model."
            raise ArgumentError("loss", required, f" Leave it out, or give {other}.", loss=loss)


@keras.saving.register_keras_serializable("dualnet")
class LanguageModel(ClearsAllGradients):
    """A recurrent language model: int32 `(batch, time)` to float32 logits `(batch, time, words)`.

    The graph's `core` is a pure function `[tokens, *states] -> [logits, *states]`. A plain call
    starts from the zero state, and refuses ids beyond the vocabulary; inside a compiled function,
    where values are unknown, the backend may clip or wrap them. `fit` and `evaluate` read their
    batches as parallel streams: row b of a batch continues row b of the batch before, from zeros at
    the start of each epoch. Training and evaluation carry separate states, so that validation
    leaves training untouched. `fit` never shuffles, since streams have an order. A target below 0
    counts for nothing, and neither does what `padded` takes for padding.

    `compile` needs no loss: the default is the mean negative log-likelihood of the targets,
    in nats per token, plus the penalties. A loss given to `compile` replaces it, but not the
    penalties. The metric `perplexity` excludes the penalties. Batches whose attribute
    `carried` is False, such as batches of sentences, each start from zeros.

    Bucketing: where a step is compiled for each length (`jit_compile`, always on JAX), data
    whose attribute `lengths_vary` is True, such as sentences and random lengths, are padded on
    the right to a small set of lengths and read with masks. Losses, gradients and states are
    unchanged, up to rounding (dropouts with fresh masks draw differently). Not with a `loss`
    or `metrics` given to `compile`, or with a cache, which would count the padding.

    Args:
        graph: `dualnet.builders.graph.Graph`.
        builder: str. Name of the builder that made it.
        arguments: dict. The arguments of the builder, from which the model is rebuilt.
        **kwargs: Passed to `keras.Model`, e.g. `name`.

    Attributes:
        core: `keras.Model`, `[tokens, *states] -> [logits, *states]`; holds all weights.
        vocabulary: `dualnet.text.Tokenizer` or None. Saved with the model; `fit` takes it
            from the batches of a corpus.
        vocabulary_size: int.
        run: `dualnet.runs.Run` or None. The RUN folder that has its weights. Not saved.
        state_size: list of int, the sizes of the states.
        loss_reduction: "mean" over all tokens of a batch (the default), or "sum" over time of
            the mean over rows, as some papers have it: their learning rates and penalties
            belong to it. Saved with the model.
        loss: The loss given to `compile`, or None for the default.
        label_smoothing: float, at least 0 and below 1; 0 by default. Share of the training loss
            that is the mean of -log p over all words, instead of the target alone (Szegedy et
            al., 2016). `perplexity` leaves it out. Not saved.
        dropout_samples: int, at least 1; 1 by default. A training step reads each batch so many
            times, with masks and states of their own, and trains -log of the mean of the
            probabilities of each word (Melis, 2022). `perplexity` is of that mean. Not saved.
        padded: bool. Whether tokens below 0 are padding.
        gated: bool. Whether the model is a gate on a frozen model: `fit` trains the gate only.
        cache_size: int. Words that its neural cache remembers, or the largest of those of its
            members; 0 without one.
        can_mask: bool. Whether padding can be masked, which a cache and a core of your own cannot.

    Example:

    >>> import numpy as np
    >>> from dualnet import zoo
    >>> model = zoo.build("dual_lstm", vocabulary_size=9, units=4)
    >>> tokens = np.array([[1, 2, 3]])
    >>> tuple(model(tokens).shape)
    (1, 3, 9)
    >>> logits, state = model.advance(tokens, model.initial_state(1))
    >>> logits, state = model.advance([[4]], state)  # continues where the first call ended
    """

    def __init__(self, graph, *, builder, arguments, **kwargs):
        if keras.config.backend() == "tensorflow":  # the others have allocators of their own
            keep_freed_memory()
        super().__init__(**kwargs)
        self.graph = graph
        self.core = graph.core
        self.builder = builder
        self.arguments = dict(arguments)
        self.padded = graph.padded
        self.gated = self.arguments.get("gate", "none") != "none"
        every = list(all_arguments(arguments))
        self.cache_size = max(int(own.get("cache_size", 0)) for own in every)
        self.can_mask = not self.cache_size and not any("core" in own for own in every)
        self.state_size = [int(state.shape[-1]) for state in graph.states[graph.constants :]]
        self.vocabulary_size = int(graph.word_logits.shape[-1])
        # The names are those of files: Keras saves by attribute.
        self.training_rows = StreamState(self.state_size, name="training_rows")
        self.evaluation_rows = StreamState(self.state_size, name="evaluation_rows")
        self.perplexity_metric = Perplexity(name="perplexity")
        self._run: Any = None  # a `dualnet.runs.Run`, which is of a room above
        self.loss_reduction = "mean"
        self.label_smoothing = 0.0
        self.dropout_samples = 1
        fraternal = self.arguments.get("fraternal_regularization", 0.0)
        self._fraternal = 0.0 if self.gated else float(fraternal)  # off in a frozen model
        self._masked_graph: Any = graph if graph.padded else None  # made when needed
        self._vocabulary = None
        self._validation_layout = None  # of the streams that `fit` validates on
        self.built = True

    @classmethod
    def from_core(cls, core, *, name="core_model"):
        """Return a language model around a Keras model of your own, with its layers and weights.

        It can then do what other models can: `perplexity`, `dynamic_evaluation`, training,
        generation, export. Read by segments or token by token, a text must get the same logits:
        what the model knows of the past is in its states, which start as zeros. A gate, a cache
        and padded sentences need a model of a builder. Layers of your own need a `get_config`,
        and are registered with `keras.saving.register_keras_serializable`.

        Args:
            core: functional `keras.Model`, `[tokens, *states] -> [logits, *new_states]`: int32
                tokens `(batch, time)`, at least one state `(batch, size)`, logits `(batch, time,
                words)`. It is built again from its configuration, to be sure that files can be.
            name: str. Name of the model.

        Raises:
            ValueError: if `core` is none, or gives other logits token by token.

        Example:

        >>> import keras
        >>> from dualnet.builders import LanguageModel
        >>> tokens, state = keras.Input((None,), dtype="int32"), keras.Input((4,))
        >>> embedded = keras.layers.Embedding(9, 3)(tokens)
        >>> gru = keras.layers.GRU(4, return_sequences=True, return_state=True)
        >>> hidden, after = gru(embedded, initial_state=state)
        >>> core = keras.Model([tokens, state], [keras.layers.Dense(9)(hidden), after])
        >>> model = LanguageModel.from_core(core)
        >>> model.vocabulary_size, model.state_size
        (9, [4])
        """
        return BUILDERS["core"](core, name=name)

    @property
    def hidden(self):
        """Symbolic output of the recurrence, without dropout, `(batch, time, units)`."""
        return self.graph.hidden

    # --- what Keras users look at

    @property
    def inputs(self):
        """Symbolic inputs of `core`, `[tokens, *states]`: for models that reuse its layers."""
        return self.core.inputs

    @property
    def outputs(self):
        """Symbolic outputs of `core`, `[logits, *states]`."""
        return self.core.outputs

    @property
    def input_shape(self):
        """Shape of the tokens, `(None, None)`."""
        return self.graph.tokens.shape

    @property
    def output_shape(self):
        """Shape of the logits, `(None, None, words)`."""
        return self.graph.word_logits.shape

    def get_layer(self, name=None, index=None):
        """Return a layer of `core` by name or index, such as "embedding"."""
        own = {layer.name: layer for layer in self.layers}
        return own[name] if name in own else self.core.get_layer(name, index)

    def summary(self, *args, **kwargs):
        """Print the summary of the graph; arguments as for `keras.Model.summary`."""
        keras.Model(self.core.inputs, self.core.outputs, name=self.name).summary(*args, **kwargs)

    def export(self, filepath, format="tf_saved_model", verbose=None, **kwargs):
        """Write a SavedModel with one endpoint `serve`, tokens to logits; see `dualnet.export`.

        `dualnet.export` writes endpoints that score texts, generate them and continue states,
        and the other formats.
        """
        if self.graph.constants:
            required = f"must be a language model. Received: {self.name!r}, which translates."
            raise ArgumentError("model", required, " Use dualnet.export(model, path).")
        if format != "tf_saved_model":
            way_out = " Use dualnet.export(model, path, format=...) for 'onnx' and 'litert'."
            raise ArgumentError("format", "must be 'tf_saved_model'.", way_out, format=format)
        check_exports()
        kwargs.setdefault("input_signature", [keras.InputSpec("int32", (None, None))])
        with without_gradients():
            super().export(filepath, format=format, verbose=verbose, **kwargs)

    def quantize(self, mode=None, **kwargs):
        """Raise `ValueError`: a tied matrix would be rounded for one of its uses alone."""
        way_out = " Export it: the tools of 'onnx' and 'litert' quantize files."
        required = "must not be called, since matrices may be tied."
        raise ArgumentError("quantize", required, way_out, mode=mode)

    # --- the pure function

    def call(self, inputs, training=False):
        """Return the logits of tokens, or what a step of `fit` and `evaluate` computes."""
        if isinstance(inputs, dict):
            return self._call_step(**inputs, training=training)
        check_call("inputs", inputs, -1 if self.padded else 0, self.vocabulary_size)
        inputs = _as_tensor(inputs)
        states = self.initial_state(ops.shape(inputs)[0])
        logits, _ = self.graph.logits(inputs, states, training=training)
        return logits

    def compute_output_spec(self, inputs, training=False):  # JAX has no zero states of symbols
        if isinstance(inputs, dict):
            return super().compute_output_spec(inputs, training=training)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), "float32")

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.vocabulary_size)

    def _call_step(self, tokens, targets=None, training=False):
        """Read a batch with carried state; return the losses of `targets`, else the logits.

        With fraternal dropout, a training step returns the logits of two readings. The penalties
        are those of the one whose state is carried on.
        """
        tokens = _as_tensor(tokens)
        stream = self.training_rows if training else self.evaluation_rows
        graph = self._masked_graph if stream.bucketed else self.graph
        carried, rows = stream.carried, tokens.shape[0]
        states = stream.read(rows) if carried else self.initial_state(ops.shape(tokens)[0])
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
        if carried:
            stream.write(states)
        return output

    def initial_state(self, batch_size):
        """Return the zero state for `batch_size` rows: a list of `(batch_size, size)`, float32."""
        if not ops.is_tensor(batch_size):  # inside of a graph, it is one
            check_count("batch_size", batch_size, least=0)
        return [ops.zeros((batch_size, size), "float32") for size in self.state_size]

    def advance(self, tokens, state, *, training=False):
        """Return the logits of `tokens` read in `state`, and the state after them.

        Pure: the model keeps nothing.

        Args:
            tokens: int `(batch, time)`, both at least 1; ids of the vocabulary, or -1 for the
                padding of a model with `padded`.
            state: list of `(batch, size)`, from `initial_state` or `advance`; the first one of a
                translation is that of `encode`.
            training: bool. Whether dropouts are active, and penalties on activations are in
                `model.losses` afterwards: for a training step of your own.

        Returns:
            `(logits, state)`: float32 `(batch, time, words)`, and a list like `state`.

        Raises:
            ValueError: if a token is no id of the vocabulary, or `state` does not fit. The
                values of symbolic tensors are not checked.
        """
        check_flag("training", training)
        tokens, state = self._as_inputs(tokens, () if state is None else state)
        logits, after = self.graph.logits(tokens, state, training=training)
        return logits, [*state[: self.graph.constants], *after]

    def hidden_states(self, tokens, state=None, layers="last"):
        """Return the output of the recurrence for each token, without dropout.

        This is the output of the last recurrent layer, or with `skip_connections` the sum over
        all of them, before any dual connection. For an ensemble, the vectors of its members
        stand side by side.

        Args:
            tokens: As in `advance`.
            state: As in `advance`, or None for the zero state.
            layers: "last", or "all" for the outputs of embedding, recurrent layers and dual
                connection.

        Returns:
            float32 `(batch, time, units)`, with "all" a dict of them by the names of layers; if
            `state` is given, a pair of this and the state after the tokens.
            `dualnet.analysis.hidden_states` reads texts, and aligns them with words.

        Raises:
            ValueError: as `advance`.

        Example:

        >>> from dualnet import zoo
        >>> model = zoo.build("dual_lstm", vocabulary_size=9, units=4)
        >>> tuple(model.hidden_states([[1, 2, 3]]).shape)
        (1, 3, 4)
        """
        check_choice("layers", layers, ("last", "all"))
        tokens, start = self._as_inputs(tokens, state)
        hidden, end = self.graph.hidden_states(tokens, start)
        if layers == "last":
            outputs = self.graph.layer_outputs
            [hidden] = [hidden[name] for name in hidden if outputs[name] is self.hidden]
        return hidden if state is None else (hidden, [*start[: self.graph.constants], *end])

    def _as_inputs(self, tokens, state):
        """Return `tokens` and `state`, the zero state if it is None, as tensors that fit."""
        tokens = as_tokens(tokens, -1 if self.padded else 0, self.vocabulary_size)
        if state is None:
            return tokens, self.initial_state(ops.shape(tokens)[0])
        return tokens, as_state(state, tokens.shape[0], self.state_size)

    # --- words and the loss

    tokenisers: tuple[str, ...] = ("vocabulary",)  # the attributes that hold them
    vocabulary = tokeniser_attribute("vocabulary")
    run = checked_attribute("run", _note_weights)
    loss_reduction = step_attribute("loss_reduction", check_choice, LOSS_REDUCTIONS)
    label_smoothing = step_attribute("label_smoothing", check_fraction)
    dropout_samples = step_attribute("dropout_samples", check_count, least=1)
    # Not in `compile`: Keras would not compile a loaded model if that were overridden.
    loss = checked_attribute("loss", _check_losses)

    # --- the step of `fit` and `evaluate`

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        two_readings = isinstance(y_pred, dict)
        logits = y_pred["logits"] if two_readings else y_pred
        fused = isinstance(x, dict) and "targets" in x
        targets = ops.maximum(y, 0)
        nll = y_pred if fused else token_losses(logits, targets)
        if fused and training and self.dropout_samples > 1:
            of_samples = ops.reshape(nll, (self.dropout_samples, *ops.shape(y)))
            nll = math.log(self.dropout_samples) - ops.logsumexp(-of_samples, axis=0)
        weight = ops.ones_like(nll) if sample_weight is None else ops.cast(sample_weight, nll.dtype)
        if len(weight.shape) == 1:  # of each row
            weight = ops.expand_dims(weight, -1)
        weight = weight * ops.cast(y >= 0, nll.dtype)
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
        if training is not None:
            check_flag("training", training)
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
        if validation_split:
            reason = "the last rows of the data continue the streams of the first ones."
            received = f"Received: {validation_split!r}. Give validation_data."
            raise ArgumentError("validation_split", f"must be 0: {reason} {received}")
        if shuffle:
            required = "must be False: the batches of a language model are streams, read in order."
            raise ArgumentError("shuffle", required, shuffle=shuffle)
        kwargs = {**kwargs, "sample_weight": _weight_of_tokens(x, **kwargs)}
        self._prepare_training()
        x = self._open(self.training_rows, x, batch_size, y)
        self._validation_layout = None
        if validation_data is not None:
            is_tuple = isinstance(validation_data, (tuple, list))
            data, *rest = validation_data if is_tuple else (validation_data,)
            size = kwargs.get("validation_batch_size") or batch_size
            data = self._open(self.evaluation_rows, data, size, *rest[:1])
            validation_data = (data, *rest) if rest else data
            self._validation_layout = self.evaluation_rows.layout
        restarts = _RestartWithData(kwargs.get("steps_per_epoch"), _num_batches(x, batch_size))
        if isinstance(callbacks, keras.callbacks.CallbackList):
            own = [c for c in callbacks.callbacks if not isinstance(c, _RestartWithData)]
            callbacks.callbacks = [restarts, *own]
            restarts.set_model(self)
        else:
            callbacks = own = [restarts, *keras.tree.flatten(callbacks or [])]
        for callback in own:
            # Keras infers the mode only for metrics given to `compile`.
            watched = str(getattr(callback, "monitor", "")).removeprefix("val_")
            if watched == "perplexity" and getattr(callback, "mode", None) == "auto":
                callback.mode = "min"
        with self.training_rows.raises_faults(), self.evaluation_rows.raises_faults():
            return super().fit(
                x, y, batch_size, epochs, verbose, callbacks, validation_split, validation_data,
                shuffle=False, **kwargs,
            )  # fmt: skip

    def evaluate(self, x=None, y=None, batch_size=None, **kwargs):
        """`keras.Model.evaluate` over parallel streams, from their first state; see the class."""
        kwargs = {**kwargs, "sample_weight": _weight_of_tokens(x, **kwargs)}
        if not kwargs.get("_use_cached_eval_dataset"):
            x = self._open(self.evaluation_rows, x, batch_size, y)
        elif self._validation_layout:  # `fit` has opened its data, but a callback may have others
            self._arrange(self.evaluation_rows, *self._validation_layout)
        self.evaluation_rows.restart()
        with self.evaluation_rows.raises_faults():
            return super().evaluate(x, y, batch_size=batch_size, **kwargs)

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, **kwargs):
        sample_weight = _weight_of_tokens(x, sample_weight, class_weight)
        self._prepare_training()
        self._open(self.training_rows, x, len(x), y)
        return super().train_on_batch(x, y, sample_weight, **kwargs)

    def test_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        sample_weight = _weight_of_tokens(x, sample_weight)
        self._open(self.evaluation_rows, x, len(x), y)
        return super().test_on_batch(x, y, sample_weight, **kwargs)

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
        [targets] = targets if isinstance(targets, (list, tuple)) else [targets]
        targets = ops.reshape(targets, ops.shape(read))  # Keras may have another axis, of 1
        if self.loss is None:  # one of your own has its own way of counting
            counted = targets >= 0
            if self.padded:
                counted = ops.logical_and(counted, read >= 0)
            counted = ops.cast(counted, "float32")
            if weight is not None:
                rows = weight if len(weight.shape) > 1 else ops.expand_dims(weight, -1)
                counted = counted * ops.cast(rows, "float32")
            weight = counted
        # A step that needs no logits of other words hands the targets over with the tokens.
        if self._is_own_loss(training):
            inputs["targets"] = ops.maximum(targets, 0)
        if training and self.dropout_samples > 1:
            times = (self.dropout_samples, 1)
            inputs = keras.tree.map_structure(lambda rows: ops.tile(rows, times), inputs)
        return inputs, targets, weight

    def _is_own_loss(self, training):
        """Tell whether a step needs the losses of the targets alone, and no logits."""
        smoothed = training and self.label_smoothing > 0
        plain = self.loss is None and not self._fraternal and not smoothed
        return plain and self._compile_metrics is None

    def _prepare_training(self):
        """Check what is trained, and make the optimizer's variables.

        TensorFlow would trace a step that makes variables twice.
        """
        self.check_training()
        optimizer = getattr(self, "optimizer", None)  # none before `compile`, which Keras tells
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.trainable_variables)

    def check_training(self):
        """Raise `ValueError` unless what is trainable, the loss and the samples fit together."""
        below = [w.path for w in self.trainable_variables if not w.path.startswith("gate")]
        if self.gated and below:
            received = f"a gated model in which {below[0]!r} is trainable"
            way_out = "on all layers of model.core whose name does not begin with 'gate'."
            what = f"A gate is trained on a frozen model. Received: {received}."
            raise ValueError(f"{what} Set trainable = False {way_out}")
        if self.loss is not None and (self.label_smoothing or self._fraternal):
            required = "must be left out with `label_smoothing` and `fraternal_regularization`,"
            raise ArgumentError("loss", f"{required} parts of the default.", loss=self.loss)
        if self.dropout_samples > 1 and not self._is_own_loss(training=True):
            required = "must be 1 with a loss or metrics of your own, with `label_smoothing`, and"
            received = f"with `fraternal_regularization`. Received: {self.dropout_samples}."
            raise ArgumentError("dropout_samples", f"{required} {received}")

    def _uses_buckets(self):
        """Bucket where each new length is compiled, and where padding can be masked out."""
        exact = self.loss is None and self._compile_metrics is None and self.can_mask
        return exact and keras.config.backend() != "torch" and bool(self.jit_compile)

    def _open(self, stream, data, batch_size, targets=None):
        """Prepare `stream` for the batches of `data`; return `data`, unread.

        `targets` are those of arrays; batches have their own.
        """
        if getattr(data, "pads", False) and not self.padded:
            required = "must hold no padding, which this model would read as words."
            received = f"Received: {type(data).__name__}. Build the model with padded=True."
            raise ArgumentError("x", f"{required} {received}")
        stream.faults.clear()
        if batch_size is not None:
            check_count("batch_size", batch_size, least=1)
        try:
            data, batch_size = look_ahead(
                data, targets, batch_size, check=self._check_batch, faults=stream.faults
            )
        except (AttributeError, IndexError, StopIteration, TypeError) as error:
            message = "must be integers of shape (batch, time), or batches of them. Received:"
            raise ArgumentError("x", f"{message} {type(data).__name__}, {error}.") from error
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

    def sum_of_weights(self):
        """Return a number that tells whether the weights have changed."""
        return sum(zlib.crc32(weight.tobytes()) for weight in self.core.get_weights())

    def check_words(self, argument, data):
        """Raise `ArgumentError` if `data`, of a corpus, has other tokenisers than the model."""
        for name in self.tokenisers:
            own, theirs = getattr(self, name), getattr(data, name, None)
            if own is not None and theirs is not None and theirs.sha256 != own.sha256:
                required = "must have the vocabulary of the model, whose ids mean other words."
                received = f"Received: {theirs!r}, where the model has {own!r}."
                keyword = "vocabulary=model.vocabulary"
                if len(self.tokenisers) > 1:
                    keyword = "tokenizer=(model.source_vocabulary, model.vocabulary)"
                way_out = f" Load the corpus with {keyword}."
                raise ArgumentError(argument, f"{required} {received}", way_out)

    def _check_batch(self, tokens, targets):
        """Raise `ArgumentError` for tokens or targets beyond the vocabulary; reads no symbols."""
        check_call("x", tokens, -1 if self.padded else 0, self.vocabulary_size)
        check_targets(targets, tuple(tokens.shape), self.vocabulary_size)

    def _arrange(self, stream, carried, bucketed, batch_size):
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

    # --- saving

    def without_optimizer(self, graph=None):
        """Return a model of the same layers, or of another `graph`, without an optimizer.

        Keras would write the optimizer's state, twice as large, into a file of weights.
        """
        return LanguageModel(graph or self.graph, **self._settings())

    def _settings(self):
        return {"name": self.name, "builder": self.builder, "arguments": self.arguments}

    def get_config(self):
        modules, vocabulary = modules_of(self.arguments), self.vocabulary
        vocabulary = None if vocabulary is None else vocabulary.get_config()
        config = {**self._settings(), **({"parts": modules} if modules else {})}
        return {**config, "loss_reduction": self.loss_reduction, "vocabulary": vocabulary}

    @classmethod
    def from_config(cls, config):
        check_imported(config.get("parts", {}))
        model = BUILDERS[config["builder"]](**config["arguments"], name=config["name"])
        model.loss_reduction = config["loss_reduction"]
        if config["vocabulary"] is not None:
            model.vocabulary = from_config(config["vocabulary"])
        return model


def check_exports():
    """Raise `ImportError` for a backend that writes no SavedModel."""
    if (backend := keras.config.backend()) != "tensorflow":
        required = f"`export` needs the TensorFlow backend. Received: the backend {backend!r}."
        way_out = "Save the model as .keras, then load and export it in a process with"
        raise ImportError(f"{required} {way_out} KERAS_BACKEND=tensorflow.")


def _as_tensor(tokens):
    """Return `tokens` as a tensor; JAX hands NumPy arrays over outside of compiled functions."""
    return ops.convert_to_tensor(tokens, "int32") if isinstance(tokens, np.ndarray) else tokens


class _RestartWithData(keras.callbacks.Callback):
    """Starts the streams from their first state whenever the data begin anew.

    Without `steps_per_epoch`, that is at each epoch. Otherwise Keras goes on where it was, until
    it has read all `num_batches`, or has run out of data whose number is None.
    """

    def __init__(self, steps_per_epoch, num_batches):
        super().__init__()
        self.steps_per_epoch = steps_per_epoch
        self.num_batches = num_batches
        self.num_read = 0
        self.in_epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.num_read += self.in_epoch
        ran_out = self.in_epoch < (self.steps_per_epoch or math.inf)
        if ran_out or self.num_read >= (self.num_batches or math.inf):
            self.num_read = 0
            self.model.training_rows.restart()
        self.in_epoch = 0

    def on_train_batch_end(self, batch, logs=None):
        self.in_epoch = batch + 1


def _weight_of_tokens(x, sample_weight=None, class_weight=None, **_):
    """Return a weight for each token of `x` from those of rows or tokens, or None."""
    if class_weight is not None:
        required = "must be None: Keras takes the last axis of targets (batch, time) for classes."
        received = f"Received: {type(class_weight).__name__}. Give sample_weight, one per token."
        raise ArgumentError("class_weight", f"{required} {received}")
    wanted = tuple(getattr(x, "shape", ()))
    if sample_weight is None or not wanted:
        return sample_weight
    shape = np.shape(sample_weight)
    if shape not in (wanted, wanted[:1]):
        required = f"must hold a weight per row, shape {wanted[:1]}, or per token, shape {wanted}."
        raise ArgumentError("sample_weight", f"{required} Received: shape {shape}.")
    weights = np.asarray(sample_weight, "float32")
    return np.broadcast_to(weights[:, None] if weights.ndim == 1 else weights, wanted)


def _num_batches(data, batch_size):
    """Return the number of batches of `data`, arrays or a dataset, or None if it has no end."""
    if hasattr(data, "shape"):
        return len(data) // (batch_size or 32)
    try:
        return data.num_batches if isinstance(data, keras.utils.PyDataset) else len(data)
    except TypeError:
        return None
