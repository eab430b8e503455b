"""The words that an input-to-output gate favours."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from dualnet import plots
from dualnet._checks import ArgumentError, as_texts, did_you_mean
from dualnet.builders import LanguageModel, check_language_model
from dualnet.evaluation.arguments import check_tokens, vocabulary_of
from dualnet.extras.analysis.model_outputs import find_layer
from dualnet.layers import IOGate


def favoured_words(
    model: LanguageModel,
    words: str | Sequence[str],
    *,
    count: int = 5,
    corpus_tokens: ArrayLike | None = None,
    least_occurrences: int = 100,
) -> dict[str, list[tuple[str, float]]]:
    """Return, for each of `words`, the next words to which the gate gives the largest values.

    Args:
        model: `LanguageModel` with a vocabulary and a gate on tokens alone (`IOGate`), whose
            values depend only on the current word.
        words: str, or a sequence of str: units of the model's tokeniser, as `vocabulary.words`
            shows them: "the", or " the" with its space.
        count: int, at least 1. Number of words to return for each.
        corpus_tokens: int array `(num_tokens,)`, ids of the training text, to leave out rare
            words; None keeps all words.
        least_occurrences: int, at least 0. Words that occur less often in `corpus_tokens` are
            left out, as in the paper.

    Returns:
        dict of each word to a list of `(word, value)`, the largest value first; ties go to the
        lower id. The list is shorter than `count` if fewer words are left.

    Example:
        >>> from dualnet import analysis, builders
        >>> from dualnet.text import Vocabulary
        >>> model = builders.with_gate(builders.language_model(3, units=4), 2)
        >>> model.vocabulary = Vocabulary(("<eos>", "the", "cat"))
        >>> favoured = analysis.favoured_words(model, "the", count=2)
        >>> [len(pairs) for pairs in favoured.values()]
        [2]

    Reference: Takase et al., 2017, https://arxiv.org/abs/1709.08907, Table 5.
    """
    check_language_model("model", model)
    gate = _gate_of(model)
    vocabulary = vocabulary_of(model)
    words = as_texts(words)
    ids = []
    for word in words:
        listed = word.lower() if vocabulary.lowercase else word
        if listed not in vocabulary:
            message = f"must be in the vocabulary of the model. Received: {word!r}."
            raise ArgumentError("words", message + did_you_mean(listed, vocabulary.words))
        ids.append(vocabulary.id(listed))
    candidates = np.arange(len(vocabulary))
    if corpus_tokens is not None:
        corpus_tokens = check_tokens(corpus_tokens, len(vocabulary), least=1, name="corpus_tokens")
        counts = np.bincount(corpus_tokens, minlength=len(vocabulary))
        candidates = np.flatnonzero(counts >= least_occurrences)
    favoured = {}
    for word, i in zip(words, ids):  # one by one: a row is as wide as the vocabulary
        tokens = ops.convert_to_tensor(np.array([[i]], np.int32))
        values = ops.convert_to_numpy(gate.gates(tokens)).reshape(-1).astype(np.float64)[candidates]
        best = np.argsort(-values, kind="stable")[:count]
        favoured[word] = [(vocabulary.words[candidates[k]], float(values[k])) for k in best]
    return favoured


def plot_favoured_words(
    found: Mapping[str, Sequence[tuple[str, float]]],
    path: str | Path,
    *,
    published: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Draw the result of `favoured_words` as a PNG: a panel per word, a bar per value.

    Args:
        found: result of `favoured_words`.
        path: file to write.
        published: dict of a word to the words that a paper reports for it. They are listed
            below the panel, and bars of words among them have another colour.

    Example:
        >>> import tempfile
        >>> from dualnet import analysis
        >>> favoured = {"the": [("cat", 0.9), ("dog", 0.8)]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     analysis.plot_favoured_words(favoured, f"{folder}/words.png")
    """
    title = "Words favoured by the gate"
    plots.plot_bars(found, path, title=title, axis="gate value", compared=published)


def _gate_of(model: LanguageModel) -> IOGate:
    """Return the layer that gates by the current token alone."""
    gate = find_layer(model, "gate")
    if not isinstance(gate, IOGate) or gate.use_hidden:
        message = "must have a gate that reads the current token alone."
        raise ArgumentError("model", f"{message} Build or train a model with gate='input'.")
    return gate
