"""Translation: texts encoded by an encoder-decoder, and decoded by beam search."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack, overload

import keras
import numpy as np
from keras import ops

from dualnet._columns import Column, ManyTexts, Results, TextResults, texts_of
from dualnet._fields import documented
from dualnet._types import Tensor, Tensors
from dualnet.builders import Graph, TranslationModel, bucket_length, questions, reader_of
from dualnet.corpora.sentence_batches import PADDING_ID
from dualnet.evaluation.arguments import check_translators
from dualnet.generation.beam import (
    HYPOTHESES,
    States,
    Step,
    batches_by_length,
    beam_search,
    compiled_search,
    ensemble_step,
)
from dualnet.requests import Beaming, Translating, TranslatingArguments, TranslationsArguments
from dualnet.text.plain_text import check_line


@dataclasses.dataclass(frozen=True)
class Translation:
    """One of the translations of a text.

    Attributes:
        text: str.
        score: Its log-probability in nats, that of `<eos>` included if it ended.
        normalized_score: The score by which translations of a text are ranked.
        ids: Its tokens, without `<eos>`.
        ended: Whether it ended with `<eos>`; if not, `max_tokens` cut it off.

    Example: see `translations`.

    >>> from dualnet.generation import Translation
    >>> Translation("forty two", -0.5, -0.25, ids=(7, 3), ended=True).text
    'forty two'
    """

    text: str
    score: float
    normalized_score: float
    ids: tuple[int, ...]
    ended: bool


EMPTY = Translation("", 0.0, 0.0, (), ended=True)
Models = TranslationModel | Sequence[TranslationModel]
OnText = Callable[..., object]  # of a translation, and of the position of its text


class _Arguments(TranslatingArguments, total=False):
    """The arguments of `translate` that do not change the type of its result."""

    column: Column | None
    on_text: OnText | None


@overload
def translate(
    model: Models, texts: str, *, n_best: None = None, **settings: Unpack[_Arguments]
) -> str: ...


@overload
def translate(
    model: Models, texts: str, *, n_best: int, **settings: Unpack[_Arguments]
) -> list[str]: ...


@overload
def translate(
    model: Models, texts: ManyTexts, *, n_best: None = None, **settings: Unpack[_Arguments]
) -> Results[str]: ...


@overload
def translate(
    model: Models, texts: ManyTexts, *, n_best: int, **settings: Unpack[_Arguments]
) -> Results[list[str]]: ...


def translate(
    model: Models,
    texts: str | ManyTexts,
    *,
    n_best: int | None = None,
    column: Column | None = None,
    on_text: OnText | None = None,
    **settings: Unpack[TranslatingArguments],
) -> str | list[str] | Results[str] | Results[list[str]]:
    """Return the translation of each text; an empty text gives an empty one.

    Args:
        model: `TranslationModel` with vocabularies, or a list of them with one target vocabulary,
            whose probabilities are averaged.
        texts: str; a sequence, NumPy array or pandas column of str, a sentence each; or a table
            with `column`.
        n_best: int, from 1 to `beam`. Return a list of so many translations of each text, the
            likeliest first; `translations` also has their scores.
        column: str or int. The column that holds the texts, if `texts` is a table: a DataFrame or
            a dict of columns.
        on_text: Function that is called with the translation of each text as soon as it is found,
            those of short texts first, and with the position of the text if there are several.
        **settings: `beam` (default 5), `length_normalization` (1.0), `max_tokens` and
            `allow_unknown`, as for `translations`.

    Returns:
        str for a str, else a list in the same order, whose method `to_frame()` makes a
        `pandas.DataFrame`. With `n_best`, there is a list in place of each str.

    Example: an untrained model, so the words mean nothing.

    >>> import dualnet
    >>> from dualnet import corpora, zoo
    >>> words = corpora.load_pairs("numbers").vocabulary
    >>> model = zoo.build("encdec", vocabulary_size=len(words), units=4)
    >>> model.vocabulary = model.source_vocabulary = words
    >>> len(dualnet.translate(model, ["1 2", ""], beam=2))
    2

    Reference: Sutskever et al., 2014, https://arxiv.org/abs/1409.3215
    """
    sources, labels, is_one = texts_of("texts", texts, column)
    request = Translating.of({"n_best": 1 if n_best is None else n_best, **settings})
    lines: list[Any] = [None] * len(sources)
    for i, several in _translated(model, sources, request):
        lines[i] = several[0].text if n_best is None else [one.text for one in several]
        if on_text is not None:
            on_text(lines[i], *[i] * (not is_one))
    return lines[0] if is_one else TextResults(lines, labels)


@documented(Translating)
def translations(
    model: Models, texts: str | Sequence[str], **settings: Unpack[TranslationsArguments]
) -> list[list[Translation]]:
    """Return the `n_best` likeliest translations of each text that a beam search finds.

    Texts are encoded once, those of similar length side by side. The state is carried, so that
    each token is read once. `<unk>` is never taken unless `allow_unknown`.

    Args:
        model: As for `translate`.
        texts: str, or a sequence of them.
        {arguments}

    Returns:
        A list of at most `n_best` `Translation` for each text, best first. An empty text has one,
        which is empty, with a score of 0.

    Raises:
        ValueError: if a model is no translator or has no vocabularies, or `beam` is wider than
            the target vocabulary.

    Example:

    >>> from dualnet import corpora, zoo
    >>> from dualnet.generation import translations
    >>> words = corpora.load_pairs("numbers").vocabulary
    >>> model = zoo.build("encdec", vocabulary_size=len(words), units=4)
    >>> model.vocabulary = model.source_vocabulary = words
    >>> [found] = translations(model, "4 2", n_best=3)
    >>> len(found)
    3
    """
    texts = texts_of("texts", texts).texts
    by_position = dict(_translated(model, texts, Translating.of(settings)))
    return [by_position[i] for i in range(len(texts))]


def _translated(
    model: Models, texts: Sequence[str], request: Translating
) -> Iterator[tuple[int, list[Translation]]]:
    """Yield the position of each text and its translations, as soon as they are found."""
    models, beam = list(model) if isinstance(model, Sequence) else [model], request.beam
    check_translators(models)
    target = models[0].vocabulary
    request.check_width(len(target))
    texts = [check_line("texts", text) for text in texts]
    ids = [[one.source_vocabulary.encode(text) for text in texts] for one in models]
    lengths = [max(len(of_model[i]) for of_model in ids) for i in range(len(texts))]
    yield from ((i, [EMPTY]) for i, length in enumerate(lengths) if not length)
    excluded_ids = () if request.allow_unknown else target.unknown_ids
    for batch in batches_by_length(lengths, rows=max(1, HYPOTHESES // beam), copies=beam):
        sources = [[of_model[i] for i in batch] for of_model in ids]
        settings = {
            "first_ids": np.full(len(batch), target.eos_id),
            "max_tokens": np.array([request.max_tokens or 2 * lengths[i] + 10 for i in batch]),
            "eos_id": target.eos_id,
            "excluded_ids": excluded_ids,
            **request.given(Beaming.names()),
        }
        if len(models) == 1:
            hypotheses = compiled_search(models[0], {"source": padded(sources[0])}, **settings)
        else:
            steps, states = zip(*(_begin(*pair, beam) for pair in zip(models, sources)))
            hypotheses = beam_search(ensemble_step(steps), list(states), **settings)
        for i, several in zip(batch, hypotheses):
            yield i, [Translation(target.decode(one.ids), **vars(one)) for one in several]


def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Return `rows` of ids as one int32 array, padded on the right to a bucket length."""
    width = bucket_length(max(map(len, rows)) or 1)
    return keras.utils.pad_sequences(rows, width, "int32", padding="post", value=PADDING_ID)


def _first_states(graph: Graph, segment: Tensors) -> Tensors:
    """Answer with `states`, those in which translations begin."""
    return {"states": list(segment["states"])}


def _begin(
    model: TranslationModel, sources: Sequence[np.ndarray], beam: int
) -> tuple[Step, list[np.ndarray]]:
    """Return the step of `beam_search` for these sources, and the states that it begins in."""
    source = ops.convert_to_tensor(padded(sources))
    states = reader_of(model, _first_states).predict_on_batch({"source": source})["states"]
    reader, count = reader_of(model, questions.logits), model.graph.constants
    # All hypotheses of a sentence share what was read of its source.
    constants = [ops.convert_to_tensor(np.repeat(part, beam, axis=0)) for part in states[:count]]

    def step(tokens: np.ndarray, states: States) -> tuple[Tensor, States]:
        # Convert everything: on torch, Keras rejects a mix of tensors and arrays.
        tokens, *states = map(ops.convert_to_tensor, [tokens, *constants, *states])
        answer = reader.predict_on_batch({"tokens": tokens, "states": states})
        return ops.log_softmax(answer["logits"][:, -1]), answer["states"]

    return step, states[count:]
