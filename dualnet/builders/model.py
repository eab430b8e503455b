"""`LanguageModel`: a graph with explicit state, and how it trains on parallel streams."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops
from numpy.typing import ArrayLike

from dualnet._backend import sum_of
from dualnet._checks import ArgumentError, check_choice
from dualnet._types import Tensor
from dualnet.allocator import keep_freed_memory
from dualnet.builders.batches import as_state, as_tokens, check_tokens
from dualnet.builders.graph import Graph
from dualnet.builders.parts import check_imported, modules_of
from dualnet.builders.stream_training import StreamModel
from dualnet.cards import Arguments, all_arguments
from dualnet.layers import without_gradients
from dualnet.text import Tokenizer, from_config

BUILDERS: dict[str, Callable[..., Any]] = {}  # by name: a saved model names its own


@keras.saving.register_keras_serializable("dualnet")
class LanguageModel(StreamModel):
    """A recurrent language model: int32 `(batch, time)` to float32 logits `(batch, time, words)`.

    The graph's `core` is a pure function `[tokens, *states] -> [logits, *states]`. A plain call
    starts from the zero state, and refuses ids beyond the vocabulary; inside a compiled function,
    where values are unknown, the backend may clip or wrap them. `fit` and `evaluate` read their
    batches as parallel streams: row b of a batch continues row b of the batch before, from zeros at
    the start of each epoch. Training and evaluation carry separate states, so that validation
    leaves training untouched. `fit` never shuffles, since streams have an order. A target below 0
    counts for nothing, and neither does what `padded` takes for padding, but in unweighted
    `metrics` of your own, as in Keras: give them as `weighted_metrics`.

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
        cache_size: int. Words that its cache remembers, or the largest of those of its
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

    tokenisers: tuple[str, ...] = ("vocabulary",)
    vocabulary: Tokenizer | Any  # None without one, which most functions refuse at once
    run: Any  # a `dualnet.runs.Run`, which is of a room above
    has_more = False  # weights than its builder makes, of what a learner has learnt

    def __init__(self, graph: Graph, *, builder: str, arguments: Arguments, **kwargs: Any) -> None:
        if keras.config.backend() == "tensorflow":  # the others have allocators of their own
            keep_freed_memory()
        super().__init__(**kwargs)
        self.graph = graph
        self.core = graph.core
        self.builder = builder
        self.arguments = dict(arguments)
        self.padded = graph.padded
        self.gated = self.arguments.get("gate", "none") != "none"
        of_members = list(all_arguments(arguments))
        self.cache_size = max(int(member.get("cache_size", 0)) for member in of_members)
        self.can_mask = not self.cache_size and not any("core" in member for member in of_members)
        self.state_size = [int(state.shape[-1]) for state in graph.states[graph.constants :]]
        self.vocabulary_size = int(graph.word_logits.shape[-1])
        fraternal = 0.0 if self.gated else self.arguments.get("fraternal_regularization", 0.0)
        self._make_streams(self.state_size, float(fraternal))
        self.run = self.vocabulary = None
        self.built = True

    def __setattr__(self, name, value):
        if name in self.tokenisers and value is not None:
            self._check_tokeniser(name, value)
        if name == "run":
            self.sum_of_run = value and sum_of(self.core.weights)
        super().__setattr__(name, value)

    def _check_tokeniser(self, name: str, tokeniser: Any) -> None:
        if not isinstance(tokeniser, Tokenizer):
            way_out = " For a list of words, give dualnet.text.Vocabulary(words)."
            raise ArgumentError(name, "must be a tokeniser of dualnet.text.", way_out)
        if len(tokeniser) != (size := getattr(self, f"{name}_size")):
            raise ArgumentError(
                name,
                f"must have the {size} words of the model. Received: {len(tokeniser)} words.",
                f" Build the model with {name}_size={len(tokeniser)}.",
            )

    @classmethod
    def from_core(cls, core: keras.Model, *, name: str = "core_model") -> "LanguageModel":
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
            ValueError: if `core` is none, or with random weights reads ahead, or gives other logits
                in parts.

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
    def hidden(self) -> Tensor:
        """Symbolic output of the recurrence, without dropout, `(batch, time, units)`."""
        return self.graph.hidden

    # --- what Keras users look at

    @property
    def inputs(self) -> list[Tensor]:
        """Symbolic inputs of `core`, `[tokens, *states]`: for models that reuse its layers."""
        return self.core.inputs

    @property
    def outputs(self) -> list[Tensor]:
        """Symbolic outputs of `core`, `[logits, *states]`."""
        return self.core.outputs

    @property
    def input_shape(self):
        """Shape of the tokens, `(None, None)`."""
        return self.graph.tokens.shape

    @property
    def output_shape(self) -> tuple[int | None, ...]:
        """Shape of the logits, `(None, None, words)`."""
        return self.graph.word_logits.shape

    def get_layer(self, name: str | None = None, index: int | None = None) -> keras.layers.Layer:
        """Return a layer of `core` by name or index, such as "embedding"."""
        return self.core.get_layer(name, index)

    def summary(self, *args, **kwargs):
        """Print the summary of the graph; arguments as for `keras.Model.summary`."""
        keras.Model(self.core.inputs, self.core.outputs, name=self.name).summary(*args, **kwargs)

    def export(self, filepath: str, format: str = "tf_saved_model", **kwargs: Any) -> None:
        """Write a SavedModel with one endpoint `serve`, tokens to logits; see `dualnet.export`.

        `dualnet.export` writes endpoints that score texts, generate them and continue states,
        the other formats, and models that translate.
        """
        if self.graph.constants:
            raise ArgumentError("model", "translates.", " Use dualnet.export(model, path).")
        if format != "tf_saved_model":
            way_out = " Use dualnet.export(model, path, format=...) for 'onnx' and 'litert'."
            raise ArgumentError("format", "must be 'tf_saved_model'.", way_out, format=format)
        check_exports()
        kwargs.setdefault("input_signature", [keras.InputSpec("int32", (None, None))])
        with without_gradients():
            super().export(filepath, format=format, **kwargs)

    def quantize(self, mode=None, **kwargs):
        """Raise `ValueError`: a tied matrix would be rounded for one of its uses alone."""
        raise ArgumentError(
            "quantize",
            "must not be called, since matrices may be tied.",
            " Export it: the tools of 'onnx' and 'litert' quantize files.",
            mode=mode,
        )

    # --- the pure function

    def call(self, inputs, training=False):
        """Return the logits of tokens, or what a step of `fit` and `evaluate` computes."""
        if isinstance(inputs, dict):
            return self._call_step(**inputs, training=training)
        check_tokens("inputs", inputs, -1 if self.padded else 0, self.vocabulary_size)
        tokens = ops.convert_to_tensor(inputs)
        states = self.initial_state(ops.shape(tokens)[0])
        logits, _ = self.graph.logits(tokens, states, training=training)
        return logits

    def compute_output_spec(self, inputs, training=False):
        if isinstance(inputs, dict):
            return super().compute_output_spec(inputs, training=training)
        # JAX has no zero states of symbols.
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), "float32")

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.vocabulary_size)

    def advance(
        self, tokens: ArrayLike, state: Sequence[Tensor], *, training: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
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
        ids, before = self._as_inputs(tokens, state)
        logits, after = self.graph.logits(ids, before, training=training)
        return logits, [*before[: self.graph.constants], *after]

    def hidden_states(
        self, tokens: ArrayLike, state: Sequence[Tensor] | None = None, layers: str = "last"
    ) -> Any:
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
        start = self.initial_state(ops.shape(tokens)[0]) if state is None else state
        ids, before = self._as_inputs(tokens, start)
        hidden, after = self.graph.hidden_states(ids, before)
        if layers == "last":
            outputs = self.graph.layer_outputs
            [hidden] = [hidden[name] for name in hidden if outputs[name] is self.hidden]
        return hidden if state is None else (hidden, [*before[: self.graph.constants], *after])

    def _as_inputs(self, tokens: ArrayLike, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return `tokens` and `state` as tensors, which must fit."""
        ids = as_tokens(tokens, -1 if self.padded else 0, self.vocabulary_size)
        return ids, as_state(state, ids.shape[0], self.state_size)

    # --- saving

    def without_optimizer(self, graph: Graph | None = None) -> "LanguageModel":
        """Return a model of the same layers, or of another `graph`, without an optimizer.

        Keras would write the optimizer's state, twice as large, into a file of weights.
        """
        return LanguageModel(graph or self.graph, **self._settings())

    def _settings(self) -> dict[str, Any]:
        if self.has_more:
            required = "must have the weights of its builder alone, without those that a learner"
            raise ArgumentError("model", f"{required} added. `Learner.save` keeps these.")
        return {"name": self.name, "builder": self.builder, "arguments": self.arguments}

    def get_config(self):
        modules, vocabulary = modules_of(self.arguments), self.vocabulary
        return {
            **self._settings(),
            **({"parts": modules} if modules else {}),
            "loss_reduction": self.loss_reduction,
            "trainable": [weight.trainable for weight in self.core.weights],
            "vocabulary": None if vocabulary is None else vocabulary.get_config(),
        }

    @classmethod
    def from_config(cls, config):
        check_imported(config.get("parts", {}))
        model = BUILDERS[config["builder"]](**config["arguments"], name=config["name"])
        model.loss_reduction = config["loss_reduction"]
        if config["vocabulary"] is not None:
            model.vocabulary = from_config(config["vocabulary"])
        # 0.2.0 wrote no "trainable".
        for weight, trainable in zip(model.core.weights, config.get("trainable", [])):
            weight.trainable = trainable
        return model


def check_exports() -> None:
    """Raise `ImportError` for a backend that writes no SavedModel."""
    if (backend := keras.config.backend()) != "tensorflow":
        raise ImportError(
            f"`export` needs the TensorFlow backend. Received: the backend {backend!r}. Export "
            "its RUN, or the model saved as .keras, in a process with KERAS_BACKEND=tensorflow."
        )
