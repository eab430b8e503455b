"""`TranslationModel`: a language model of the target whose first state comes from a source."""

from collections.abc import Sequence
from typing import Any, NoReturn

import keras
from keras import ops
from numpy.typing import ArrayLike

from dualnet._checks import ArgumentError
from dualnet._types import Tensor
from dualnet.builders.batches import as_tokens, check_targets, check_tokens
from dualnet.builders.graph import Graph
from dualnet.builders.model import LanguageModel
from dualnet.cards import Arguments
from dualnet.layers import without_gradients
from dualnet.text import Tokenizer, from_config


@keras.saving.register_keras_serializable("dualnet")
class TranslationModel(LanguageModel):
    """An encoder-decoder: source and target ids to float32 logits `(batch, time, words)`.

    It is called with a dict: `source`, int `(batch, source)`, without markers, and `target`,
    int `(batch, time)`, which begins with `<eos>`; -1 is padding in both. The logits at a
    position are those of the next target word, so the targets of `fit` are the words, then
    `<eos>`. Every batch starts anew; `fit` takes the batches of `dualnet.corpora.load_pairs`.

    To translate step by step, `encode` the source and `advance` from the state that it returns.

    Args:
        encoder: `keras.Model`, source to `[memory, keys, mask, *states]`.
        graph: `Graph` of the decoder, whose first states are those three.
        core: `keras.Model`, `[source, target]` to logits.
        builder, arguments, **kwargs: As for `LanguageModel`.

    Attributes:
        source_vocabulary: `dualnet.text.Tokenizer` of the source or None.
        source_vocabulary_size: int.
        vocabulary, vocabulary_size, loss_reduction: Of the target, as in `LanguageModel`.

    Example:

    >>> import numpy as np
    >>> from dualnet.builders import encoder_decoder
    >>> model = encoder_decoder(9, units=4)
    >>> state = model.encode([[3, 4, 5], [6, 7, -1]])
    >>> logits, state = model.advance([[0], [0]], state)
    >>> tuple(logits.shape)
    (2, 1, 9)
    """

    tokenisers = ("vocabulary", "source_vocabulary")
    source_vocabulary: Tokenizer | Any

    def __init__(
        self,
        encoder: keras.Model,
        graph: Graph,
        core: keras.Model,
        *,
        builder: str,
        arguments: Arguments,
        **kwargs: Any,
    ) -> None:
        super().__init__(graph, builder=builder, arguments=arguments, **kwargs)
        self.encoder = graph.encoder = encoder
        self.core = core
        self.source_vocabulary_size = int(arguments["source_vocabulary_size"])
        self.source_vocabulary = None

    @property
    def input_shape(self):
        """Shapes of source and target, by name."""
        return {"source": (None, None), "target": (None, None)}

    def compute_output_shape(self, input_shape):
        return super().compute_output_shape(input_shape["target"])

    def call(self, inputs, training=False):
        """Return the logits of a target, or what a step of `fit` and `evaluate` computes."""
        if "tokens" in inputs:
            return self._call_step(**inputs, training=training)
        self._check_batch(inputs, None)
        return self._call_step(inputs, training=training)

    def _call_step(self, tokens, targets=None, training=False):
        source, target = (ops.convert_to_tensor(tokens[k], "int32") for k in ("source", "target"))
        states = self.encoder(source, training=training)
        if targets is None:
            return self.graph.logits(target, states, training=training)[0]
        return self.graph.losses(target, states, targets, training=training)[0]

    def encode(self, source: ArrayLike) -> list[Tensor]:
        """Return the state in which the translation of each source begins.

        Args:
            source: int `(batch, source)`, -1 for padding.

        Returns:
            A list: memory, keys and mask of the source, which `advance` hands on unchanged, and
            the recurrent states `(batch, size)`.

        Raises:
            ValueError: if a token is no id of the source vocabulary.
        """
        ids = as_tokens(source, -1, self.source_vocabulary_size)
        with without_gradients():
            return list(self.encoder(ids, training=False))

    def initial_state(self, batch_size: int) -> NoReturn:
        """Raise `ValueError`: the first state of a translation is that of `encode`."""
        raise ArgumentError(
            "state", "must come from `encode(source)`: a translation has no state without a source."
        )

    def _as_inputs(self, tokens: ArrayLike, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        ids = as_tokens(tokens, -1, self.vocabulary_size)
        before = [ops.convert_to_tensor(array) for array in state]
        rows, count = ids.shape[0], len(self.graph.states)
        if [array.shape[0] for array in before] != [rows] * count:
            required = f"must hold the {count} arrays that `encode` returns, of {rows} rows."
            raise ArgumentError("state", f"{required} Received: {len(before)} arrays.")
        return ids, before

    # --- steps of fit

    def _uses_buckets(self) -> bool:
        return False  # the batches of pairs have few lengths already

    def _open(self, stream, data, batch_size, targets=None):
        if isinstance(data, dict):  # arrays, whose rows are pairs
            self._check_batch(data, targets)
            self._arrange(stream, carried=False, bucketed=False, batch_size=len(data["target"]))
            return data
        return super()._open(stream, data, batch_size, targets)

    def _check_batch(self, tokens, targets):
        check_tokens("source", tokens["source"], -1, self.source_vocabulary_size)
        check_tokens("target", tokens["target"], -1, self.vocabulary_size)
        check_targets(targets, tuple(tokens["target"].shape), self.vocabulary_size)

    # --- saving

    def without_optimizer(self, graph: Graph | None = None) -> "TranslationModel":
        return TranslationModel(self.encoder, graph or self.graph, self.core, **self._settings())

    def get_config(self):
        vocabulary = self.source_vocabulary
        if vocabulary is not None:
            vocabulary = "target" if vocabulary is self.vocabulary else vocabulary.get_config()
        return {**super().get_config(), "source_vocabulary": vocabulary}

    @classmethod
    def from_config(cls, config):
        model, source = super().from_config(config), config["source_vocabulary"]
        if source is not None:
            source = model.vocabulary if source == "target" else from_config(source)
            model.source_vocabulary = source
        return model
