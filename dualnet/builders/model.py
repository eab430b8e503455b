"""`LanguageModel`: a graph with explicit state, and the state that training carries along."""

import numbers
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from dualnet._checks import ArgumentError, check_choice, check_count
from dualnet.allocator import keep_freed_memory
from dualnet.builders.batches import as_state, as_tokens
from dualnet.builders.graph import Perplexity
from dualnet.builders.stream_state import StreamState
from dualnet.builders.stream_trainer import StreamTrainer
from dualnet.layers import without_gradients
from dualnet.text import from_config

BUILDERS: dict[str, Callable[..., Any]] = {}  # by name: a saved model names its own
LOSS_REDUCTIONS = ("mean", "sum")


@keras.saving.register_keras_serializable("dualnet")
class LanguageModel(StreamTrainer):
    """A recurrent language model: int32 `(batch, time)` to float32 logits `(batch, time, words)`.

    The graph's `core` is a pure function `[tokens, *states] -> [logits, *states]`. A plain
    call starts from the zero state. `fit` and `evaluate` read their batches as parallel
    streams: row b of a batch continues row b of the batch before, from zeros at the start of
    each epoch. Training and evaluation carry separate states, so that validation leaves
    training untouched. `fit` never shuffles, since streams have an order.

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
        state_size: list of int, the sizes of the states.
        loss_reduction: "mean" over all tokens of a batch (the default), or "sum" over time of
            the mean over rows, as some papers have it: their learning rates and penalties
            belong to it. Saved with the model.
        label_smoothing: float, at least 0 and below 1; 0 by default. Share of the training loss
            that is the mean of -log p over all words, instead of the target alone (Szegedy et
            al., 2016). `perplexity` leaves it out. Not saved.
        padded: bool. Whether tokens below 0 are padding.
        gated: bool. Whether the model is a gate on a frozen model: `fit` trains the gate only.
        cache_size: int. Words that its neural cache remembers, or the largest of those of its
            members; 0 without one.

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
        self.cache_size = _cache_size(arguments)
        self.state_size = [int(state.shape[-1]) for state in graph.states[graph.constants :]]
        self.vocabulary_size = int(graph.word_logits.shape[-1])
        # The names are those of files: Keras saves by attribute.
        self.training_rows = StreamState(self.state_size, name="training_rows")
        self.evaluation_rows = StreamState(self.state_size, name="evaluation_rows")
        self.perplexity_metric = Perplexity(name="perplexity")
        self.loss_reduction = "mean"
        self.label_smoothing = 0.0
        fraternal = self.arguments.get("fraternal_regularization", 0.0)
        self._fraternal = 0.0 if self.gated else float(fraternal)  # off in a frozen model
        self._masked_graph: Any = graph if graph.padded else None  # made when needed
        self._vocabulary = None
        self.built = True

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
        named = keras.Model(self.core.inputs, self.core.outputs, name=self.name)
        named.summary(*args, **kwargs)

    def export(self, filepath, format="tf_saved_model", verbose=None, **kwargs):
        """Write a SavedModel with one endpoint `serve`, tokens to logits; see `dualnet.export`.

        `dualnet.export` writes endpoints that score texts, generate them and continue states,
        and the other formats.
        """
        if format != "tf_saved_model":
            raise ArgumentError(
                "format",
                f"must be 'tf_saved_model'. Received: format={format!r}. Use "
                "dualnet.export(model, path, format=...) for 'onnx' and 'litert'.",
            )
        if keras.config.backend() != "tensorflow":
            raise ImportError(
                "`export` needs the TensorFlow backend. Received: the backend "
                f"{keras.config.backend()!r}. Save the model as .keras, then load and export it "
                "in a process with KERAS_BACKEND=tensorflow."
            )
        kwargs.setdefault("input_signature", [keras.InputSpec("int32", (None, None))])
        with without_gradients():
            super().export(filepath, format=format, verbose=verbose, **kwargs)

    # --- the pure function

    def call(self, inputs, training=False):
        """Return the logits of tokens, or what a step of `fit` and `evaluate` computes."""
        if isinstance(inputs, dict):
            return self._call_step(**inputs, training=training)
        inputs = _as_tensor(inputs)
        states = self.initial_state(ops.shape(inputs)[0])
        logits, _ = self.graph.logits(inputs, states, training=training)
        return logits

    def _call_step(self, tokens, targets=None, training=False):
        """Read a batch with carried state; return the losses of `targets`, else the logits.

        With fraternal dropout, a training step returns the logits of two readings. The penalties
        are those of the one whose state is carried on.
        """
        tokens = _as_tensor(tokens)
        stream = self.training_rows if training else self.evaluation_rows
        graph = self._masked_graph if stream.bucketed else self.graph
        if stream.carried:
            states = stream.read(tokens.shape[0])
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

    def initial_state(self, batch_size):
        """Return the zero state for `batch_size` rows: a list of `(batch_size, size)`, float32."""
        if isinstance(batch_size, numbers.Number):  # else a tensor, inside of a graph
            check_count("batch_size", batch_size, least=0)
        return [ops.zeros((batch_size, size), "float32") for size in self.state_size]

    def advance(self, tokens, state, *, training=False):
        """Return the logits of `tokens` read in `state`, and the state after them.

        Pure: the model keeps nothing.

        Args:
            tokens: int `(batch, time)`, both at least 1; ids of the vocabulary, or -1 for the
                padding of a model with `padded`.
            state: list of `(batch, size)`, from `initial_state` or `advance`.
            training: bool. Whether dropouts are active, and penalties on activations are in
                `model.losses` afterwards: for a training step of your own.

        Returns:
            `(logits, state)`: float32 `(batch, time, words)`, and a list like `state`.

        Raises:
            ValueError: if a token is no id of the vocabulary, or `state` does not fit. The
                values of symbolic tensors are not checked.
        """
        tokens, state = self._as_inputs(tokens, () if state is None else state)
        return self.graph.logits(tokens, state, training=training)

    def hidden_states(self, tokens, state=None):
        """Return the output of the recurrence for each token, without dropout.

        This is the output of the last recurrent layer, or with `skip_connections` the sum over
        all of them, before any dual connection. For an ensemble, the vectors of its members
        stand side by side.

        Args:
            tokens: As in `advance`.
            state: As in `advance`, or None for the zero state.

        Returns:
            float32 `(batch, time, units)`; if `state` is given, a pair of this and the state
            after the tokens.

        Raises:
            ValueError: as `advance`.

        Example:

        >>> from dualnet import zoo
        >>> model = zoo.build("dual_lstm", vocabulary_size=9, units=4)
        >>> tuple(model.hidden_states([[1, 2, 3]]).shape)
        (1, 3, 4)
        """
        tokens, start = self._as_inputs(tokens, state)
        hidden, end = self.graph.hidden_states(tokens, start)
        return hidden if state is None else (hidden, end)

    def _as_inputs(self, tokens, state):
        """Return `tokens` and `state`, the zero state if it is None, as tensors that fit."""
        tokens = as_tokens(tokens, -1 if self.padded else 0, self.vocabulary_size)
        if state is None:
            return tokens, self.initial_state(ops.shape(tokens)[0])
        return tokens, as_state(state, tokens.shape[0], self.state_size)

    # --- loss and words

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

    # --- saving

    def without_optimizer(self):
        """Return a model of the same layers without an optimizer.

        Keras would write the optimizer's state, twice as large, into a file of weights.
        """
        settings = {"builder": self.builder, "arguments": self.arguments, "name": self.name}
        return LanguageModel(self.graph, **settings)

    def get_config(self):
        vocabulary = self.vocabulary
        return {
            "name": self.name,
            "builder": self.builder,
            "arguments": self.arguments,
            "loss_reduction": self.loss_reduction,
            "vocabulary": None if vocabulary is None else vocabulary.get_config(),
        }

    @classmethod
    def from_config(cls, config):
        model = BUILDERS[config["builder"]](**config["arguments"], name=config["name"])
        model.loss_reduction = config["loss_reduction"]
        vocabulary = config["vocabulary"]
        if vocabulary is not None:
            model.vocabulary = from_config(vocabulary)
        return model


def _cache_size(arguments):
    members = [member["arguments"] for member in arguments.get("members", ())]
    return max(int(arguments.get("cache_size", 0)), *map(_cache_size, members), 0)


def _as_tensor(tokens):
    """Return `tokens` as a tensor; JAX hands NumPy arrays over outside of compiled functions."""
    return ops.convert_to_tensor(tokens, "int32") if isinstance(tokens, np.ndarray) else tokens
