"""Alignments: which source tokens a translator attends to for each token of a translation."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from dualnet._checks import ArgumentError
from dualnet._columns import texts_of
from dualnet._types import Tensors
from dualnet.builders import Graph, TranslationModel
from dualnet.evaluation.arguments import check_translators
from dualnet.evaluation.pair_perplexity import pair_answers
from dualnet.generation import translation
from dualnet.generation.translation import Translation
from dualnet.requests import TranslatingArguments
from dualnet.text import Tokenizer
from dualnet.text.plain_text import check_line


@dataclasses.dataclass(frozen=True)
class Alignment:
    """The attention of a translator while it writes one translation.

    Attributes:
        source: tuple of str, the tokens of the text. Tokens that spell a character between them,
            such as bytes, are one: its weight is their sum.
        target: tuple of str, the tokens of the translation, `<eos>` included if it ended. Tokens
            of one character are one here, too: its weights are their mean.
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

    def __repr__(self) -> str:
        return f"Alignment(source={len(self.source)} tokens, target={len(self.target)} tokens)"

    def plot(self, path: str | Path) -> None:
        """Draw the weights as a PNG, one row for each target token."""
        from dualnet.plots import plot_attention

        plot_attention(self.source, self.target, self.weights, path)


def alignments(
    model: TranslationModel,
    texts: str | Sequence[str],
    translations: str | Sequence[str | Translation] | None = None,
    **settings: Unpack[TranslatingArguments],
) -> list[Alignment]:
    """Return the attention of a translator: source tokens, target tokens and their weights.

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
    texts = [check_line("texts", text) for text in texts_of("texts", texts).texts]
    if translations is None:
        translations = [best for best, *_ in translation.translations(model, texts, **settings)]
    elif settings:
        raise ArgumentError(
            next(iter(settings)), "cannot be combined with `translations`. Leave it out."
        )
    if isinstance(translations, str | Translation):
        translations = [translations]
    translations = list(translations)
    if len(translations) != len(texts):
        raise ArgumentError(
            "translations",
            f"must be one for each text. Received: {len(translations)} for {len(texts)}.",
        )
    vocabulary = model.vocabulary
    targets = [_ids(target, vocabulary) for target in translations]
    sources = [model.source_vocabulary.encode(text) for text in texts]
    weights = pair_answers(model, sources, targets, _weights, "weights")
    aligned = []
    for source_ids, target_ids, rows in zip(sources, targets, weights):
        source, columns = model.source_vocabulary.whole_units(source_ids)
        target, starts = vocabulary.whole_units(target_ids)
        counts = np.diff(starts, append=len(target_ids))
        rows = np.add.reduceat(rows[: len(target_ids), : len(source_ids)], starts)
        rows = np.add.reduceat(rows / counts[:, None], columns, axis=1)
        aligned.append(Alignment(tuple(source), tuple(target), rows.astype("float32")))
    return aligned


def _ids(translation: str | Translation, vocabulary: Tokenizer) -> np.ndarray:
    """Return the tokens of a translation, `<eos>` included if it ended."""
    if isinstance(translation, str):
        ids = [*vocabulary.encode(check_line("translations", translation)), vocabulary.eos_id]
    else:
        ids = [*translation.ids, *[vocabulary.eos_id] * translation.ended]
    return np.array(ids, "int32")


def _weights(graph: Graph, segment: Tensors) -> Tensors:
    """Answer with `weights`, those of all source positions, for each token of a target."""
    _, keys, mask, *states = segment["states"]
    outputs = graph.decoder_outputs([segment["tokens"], *segment["states"]], training=False)
    cell = graph.core.get_layer("decoder").cell
    return {"weights": cell.alignments(cell.queries(outputs, states), keys, mask)}
