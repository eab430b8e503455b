"""The hidden states of all layers for a text, aligned with its words."""

import dataclasses
from typing import Any

import numpy as np
from keras import ops

from dualnet._checks import ArgumentError, check_choice
from dualnet.builders import Graph, LanguageModel, check_language_model
from dualnet.evaluation.arguments import vocabulary_with_eos
from dualnet.evaluation.words import words_of
from dualnet.extras.analysis.model_outputs import read_outputs
from dualnet.text.plain_text import check_text


@dataclasses.dataclass(frozen=True)
class HiddenStates:
    """The outputs of layers after each token of a text, as `hidden_states` returns them.

    Attributes:
        words: The words of the text, whatever the tokens; `<eos>` where a document ends.
        ids: int32 `(num_tokens,)`.
        starts: int64 `(num_words,)`, the index of the first token of each word.
        layers: dict from the names of layers to float32 `(num_tokens, units)`.

    Example:

    >>> import numpy as np
    >>> from dualnet.analysis import HiddenStates
    >>> vectors = np.array([[1.0], [2.0], [5.0]], "float32")
    >>> hidden = HiddenStates(("un", "done"), np.arange(3), np.array([0, 1]), {"x": vectors})
    >>> hidden.of_words()["x"].tolist(), hidden.of_words("mean")["x"].tolist()
    ([[1.0], [5.0]], [[1.0], [3.5]])
    """

    words: tuple[str, ...]
    ids: np.ndarray = dataclasses.field(repr=False)
    starts: np.ndarray = dataclasses.field(repr=False)
    layers: dict[str, np.ndarray] = dataclasses.field(repr=False)

    def of_words(self, how: str = "last") -> dict[str, np.ndarray]:
        """Return float32 `(num_words, units)` for each layer.

        `how` is "last" for the vector after the last token of a word, or "mean" for that of all.
        """
        check_choice("how", how, ("last", "mean"))
        ends = np.append(self.starts[1:], len(self.ids))
        if how == "last":
            return {name: vectors[ends - 1] for name, vectors in self.layers.items()}
        counts = (ends - self.starts)[:, None].astype("float32")
        layers = self.layers.items()
        return {name: np.add.reduceat(vectors, self.starts) / counts for name, vectors in layers}


def hidden_states(
    model: LanguageModel,
    text: str,
    *,
    split_punctuation: bool = False,
    sequence_length: int | None = None,
) -> HiddenStates:
    """Return the outputs of all layers of `model` for the words of `text`, without dropout.

    The text is read after `<eos>`, as `dualnet.surprisal` does. The vector of a token is from
    after it was read: it predicts the next one.

    Args:
        model: `LanguageModel` with a vocabulary.
        text: str, with at least one word.
        split_punctuation: bool. Marks before and after a word are words of their own.
        sequence_length: int. Tokens per call, default 256. It does not affect the result.

    Returns:
        `HiddenStates`: embedding, recurrent layers and dual connection.

    Example:

    >>> import dualnet
    >>> from dualnet.text import ByteTokenizer
    >>> model = dualnet.zoo.build("dual_lstm", vocabulary_size=257, units=4)
    >>> model.vocabulary = ByteTokenizer()
    >>> hidden = dualnet.analysis.hidden_states(model, "a cat")
    >>> hidden.words, {name: vectors.shape for name, vectors in hidden.of_words().items()}
    (('a', 'cat'), {'embedding': (2, 4), 'recurrence_1': (2, 4), 'connection': (2, 4)})
    """
    check_language_model("model", model)
    vocabulary, eos_id = vocabulary_with_eos(model, way_out="Train it on a corpus with one.")
    words = words_of(vocabulary, check_text("text", text), split_punctuation=split_punctuation)
    if not words.words:
        raise ArgumentError("text", "must hold at least one word.", text=text)
    stream = np.append(np.int32(eos_id), words.ids)
    vectors = np.concatenate([*read_outputs(model, _vectors, stream, sequence_length)])
    outputs = model.graph.layer_outputs
    ends = np.cumsum([output.shape[-1] for output in outputs.values()])
    layers = dict(zip(outputs, np.split(vectors[1:].astype("float32"), ends[:-1], axis=1)))
    return HiddenStates(words.words, words.ids, words.starts, layers)


def _vectors(graph: Graph, segment: dict[str, Any]) -> dict[str, Any]:
    outputs, states = graph.hidden_states(segment["tokens"], segment["states"])
    return {"vectors": ops.concatenate([*outputs.values()], axis=-1), "states": states}
