"""Alignments: which source tokens a translator attends to for each token of a translation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dualnet._checks import ArgumentError, check_texts
from dualnet.builders import TranslationModel
from dualnet.builders.reader import ClearsAllGradients
from dualnet.generation import translating
from dualnet.generation.translating import Translation, check_translators, padded
from dualnet.layers import without_gradients
from dualnet.text.plain_text import check_text

ROWS = 64  # pairs that are read side by side


@dataclasses.dataclass(frozen=True)
class Alignment:
    """The attention of a translator while it writes one translation.

    Attributes:
        source: tuple of str, the tokens of the text.
        target: tuple of str, the tokens of the translation, `<eos>` included if it ended.
        weights: float32 `(target, source)`. Row t holds the weight of each source token when
            target token t is predicted, and sums to 1.

    Example: see `alignments`.

    >>> import numpy as np
    >>> from dualnet.generation import Alignment
    >>> Alignment(("4", "2"), ("forty", "two"), np.eye(2, dtype="float32")).weights.shape
    (2, 2)
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: np.ndarray

    def plot(self, path: str | Path) -> None:
        """Draw the weights as a PNG, one row for each target token."""
        from dualnet.plots import plot_attention

        plot_attention(self.source, self.target, self.weights, path)


def alignments(
    model: TranslationModel,
    texts: str | Sequence[str],
    translations: str | Sequence[str | Translation] | None = None,
    **settings: Any,
) -> list[Alignment]:
    """Return what a translator attends to: source tokens, target tokens and their weights.

    Args:
        model: `TranslationModel` with vocabularies.
        texts: str, or a sequence of them.
        translations: One for each text: a `Translation`, or a str, which is read as complete.
            None: those that `translate` finds.
        **settings: `beam`, `length_normalization`, `max_tokens` and `allow_unknown` of
            `translate`; without `translations` only.

    Returns:
        An `Alignment` for each text.

    Raises:
        ValueError: if the model is no translator, if the numbers of texts and translations
            differ, or if a setting does not apply.

    Example: an untrained model, so the weights mean nothing.

    >>> from dualnet import corpora, zoo
    >>> from dualnet.generation import alignments
    >>> words = corpora.load_pairs("numbers").vocabulary
    >>> model = zoo.build("encdec", vocabulary_size=len(words), units=4)
    >>> model.vocabulary = model.source_vocabulary = words
    >>> [found] = alignments(model, "4 0 2", "four hundred two")
    >>> found.target, found.weights.shape
    (('four', 'hundred', 'two', '<eos>'), (4, 3))

    Reference: Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473, section 5.2.1
    """
    check_translators([model])
    texts = [check_text("texts", text) for text in check_texts("texts", texts)]
    if translations is None:
        translations = [best for [best] in translating.translations(model, texts, **settings)]
    elif settings:
        raise ArgumentError(
            next(iter(settings)), "cannot be combined with `translations`. Leave it out."
        )
    translations = (
        [translations] if isinstance(translations, (str, Translation)) else list(translations)
    )
    if len(translations) != len(texts):
        raise ArgumentError(
            "translations",
            f"must be one for each text. Received: {len(translations)} for {len(texts)}.",
        )
    vocabulary = model.vocabulary
    targets = [_ids(translation, vocabulary) for translation in translations]
    sources = [model.source_vocabulary.encode(text) for text in texts]
    reader = AttentionReader(model)
    order = sorted(range(len(texts)), key=lambda i: (len(sources[i]), len(targets[i])))
    aligned: list[Any] = [None] * len(texts)
    lengths = [max(map(len, pair)) for pair in zip(sources, targets)]
    for batch in translating.batches_by_length(order, lengths, rows=ROWS):
        inputs = [np.concatenate([[vocabulary.eos_id], targets[i][:-1]]) for i in batch]
        weights = reader.predict_on_batch(
            {"source": padded([sources[i] for i in batch]), "target": padded(inputs)}
        )
        for i, rows in zip(batch, weights):
            aligned[i] = Alignment(
                tuple(model.source_vocabulary.words[k] for k in sources[i]),
                tuple(vocabulary.words[k] for k in targets[i]),
                rows[: len(targets[i]), : len(sources[i])],
            )
    return aligned


def _ids(translation: str | Translation, vocabulary: Any) -> np.ndarray:
    """Return the tokens of a translation, `<eos>` included if it ended."""
    if isinstance(translation, Translation):
        ids, ended = translation.ids, translation.ended
    else:
        [text] = check_texts("translations", translation)
        ids, ended = vocabulary.encode(check_text("translations", text)), True
    return np.array([*ids, *[vocabulary.eos_id] * ended], "int32")


class AttentionReader(ClearsAllGradients):
    """Reads pairs: `predict_on_batch` returns the weights `(batch, target, source)`."""

    def __init__(self, translator: TranslationModel) -> None:
        super().__init__()
        self.translator = translator
        graph = translator.graph
        self.decoder = graph.core.get_layer("decoder")
        self.outputs_of = keras.Model([graph.tokens, *graph.states], self.decoder.output[0])
        self.built = True
        self.compile()

    def call(self, inputs: dict[str, Any]) -> Any:
        state = self.translator.encoder(inputs["source"], training=False)
        outputs = self.outputs_of([inputs["target"], *state], training=False)
        _, keys, mask, *states = state
        cell = self.decoder.cell
        return cell.alignments(cell.queries(outputs, states), keys, mask)

    def predict_step(self, *args: Any) -> Any:
        with without_gradients():
            return super().predict_step(*args)
