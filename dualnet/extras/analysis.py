"""What the papers examine besides perplexity: gates, experts, rank and learning curves.

Beside them what each layer computes for the words of a text. Numbers are NumPy float64 on the
host, vectors float32; figures are PNG files.
"""

import csv
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from dualnet import plots
from dualnet._checks import (
    ArgumentError,
    as_texts,
    check_choice,
    check_count,
    check_penalty,
    did_you_mean,
    extra,
)
from dualnet._types import Tensors
from dualnet.builders import (
    Graph,
    LanguageModel,
    Question,
    TranslationModel,
    check_language_model,
    questions,
    reader_of,
)
from dualnet.corpora import PairSplit
from dualnet.corpora.pair_batches import PairBatches
from dualnet.evaluation.arguments import (
    check_tokens,
    check_translators,
    vocabulary_of,
    vocabulary_with_eos,
)
from dualnet.evaluation.inside import parts_of_logits, read_inside
from dualnet.evaluation.scoring import segments
from dualnet.evaluation.words import Words, words_of
from dualnet.layers import DOCOutput, IOGate, MixtureSoftmax
from dualnet.text.plain_text import check_text

if TYPE_CHECKING:
    import pandas

__all__ = [
    "HiddenStates", "Rank", "Shares", "contributions", "expert_shares", "favoured_words",
    "hidden_states", "inside", "learning_curves", "plot_contributions", "plot_expert_shares",
    "plot_favoured_words", "plot_inside", "plot_learning_curves", "plot_singular_values", "rank",
]  # fmt: skip

SEGMENT = 256  # tokens per call, each of which yields a row as wide as the vocabulary


def read_outputs(
    model: LanguageModel, question: Question, tokens: np.ndarray
) -> Iterator[np.ndarray]:
    """Read `tokens` with carried state; yield the answer to `question`, float64 `(segment, n)`.

    `question` asks for one vector, of n numbers, for each token.
    """
    steps = min(SEGMENT, len(tokens))
    reader = reader_of(model, question)
    for [(_, _, start)], answer in segments(reader, [tokens], [len(tokens)], 1, steps):
        [vectors] = answer.values()
        yield vectors[0, : len(tokens) - start].astype(np.float64)


# --- gates


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
        words: str, or a sequence of str: tokens of the model, as `vocabulary.words`
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
    check_count("count", count)
    gate = model.graph.layer("gate")
    if not isinstance(gate, IOGate) or gate.use_hidden:
        message = "must have a gate that reads the current token alone."
        raise ArgumentError("model", f"{message} Build or train a model with gate='input'.")
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
) -> None:
    """Draw the result of `favoured_words` as a PNG: a panel per word, a bar per value.

    Args:
        found: result of `favoured_words`.
        path: file to write.

    Example:
        >>> import tempfile
        >>> from dualnet import analysis
        >>> favoured = {"the": [("cat", 0.9), ("dog", 0.8)]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     analysis.plot_favoured_words(favoured, f"{folder}/words.png")
    """
    title = "Words favoured by the gate"
    plots.plot_bars(found, path, title=title, axis="gate value")


# --- experts


POSITIONS = 8192  # of source and target that are read at a time


@dataclasses.dataclass(frozen=True)
class Shares:
    """How much a model uses each expert, as `expert_shares` returns it.

    Attributes:
        shares: float64 `(experts,)`, the prior of each expert averaged over all tokens. They
            sum to 1.
        coefficient_of_variation: Population standard deviation over mean of the priors summed
            over the text. 0 if all experts are used equally.
        layers: Name of the layer that each expert reads; in a translator, "recurrence_1" and so on
            are the layers of the decoder.
        tokens: Number of tokens read, in a translator those of the target, `<eos>` included.

    Example:
        >>> import numpy as np
        >>> from dualnet.analysis import Shares
        >>> used = Shares(np.array([0.75, 0.25]), 0.5, ("recurrence_1",) * 2, tokens=8)
        >>> used.shares.max().item()
        0.75
    """

    shares: np.ndarray
    coefficient_of_variation: float
    layers: tuple[str, ...]
    tokens: int


def expert_shares(model: LanguageModel, tokens: ArrayLike | PairSplit) -> Shares:
    """Return the share of each expert of a mixture in the predictions for a text.

    The text is read as one stream with carried state, dropout off; of pairs, each target is
    read with its source. The prior of each expert is summed over all tokens in float64.

    Args:
        model: `LanguageModel` or `TranslationModel` with a mixture as output, built with
            `experts`.
        tokens: int array `(num_tokens,)`, in reading order, at least one; for a
            `TranslationModel`, a `PairSplit` such as `corpus.test`.

    Returns:
        `Shares`.

    Example:
        >>> import numpy as np
        >>> from dualnet import analysis, builders
        >>> model = builders.language_model(9, units=4, experts=3)
        >>> used = analysis.expert_shares(model, np.arange(8))
        >>> used.shares.shape, used.layers, used.tokens
        ((3,), ('recurrence_1', 'recurrence_1', 'recurrence_1'), 8)

    Differs from the paper: its Table 4 does not say which standard deviation it uses.

    Reference: Takase et al., 2018, https://arxiv.org/abs/1808.10143, Table 4, which prints
    `coefficient_of_variation`.
    """
    output = model.graph.layer("output")
    if not isinstance(output, DOCOutput):
        raise ArgumentError(
            "model",
            f"must have a mixture as output. Received: the output {type(output).__name__}.",
            " Build or train a model with `experts`.",
        )
    if isinstance(tokens, PairSplit):
        sums, count = _sums_over_pairs(model, tokens)
    else:
        check_language_model("model", model)
        tokens = check_tokens(tokens, model.vocabulary_size, least=1)
        sums = sum(part.sum(0) for part in read_outputs(model, _priors, tokens))
        count = len(tokens)
    variation = float(np.std(sums) / np.mean(sums))
    return Shares(sums / count, variation, _layers_of_experts(model, output), count)


def _priors(graph: Graph, segment: Tensors) -> Tensors:
    """Answer with `priors`, those of all experts."""
    features, *states = graph.body([segment["tokens"], *segment["states"]])
    return {"priors": graph.head.priors(features), "states": states}


def _sums_over_pairs(model: LanguageModel, pairs: PairSplit) -> tuple[np.ndarray, int]:
    """Return the sums of the priors over all target tokens of `pairs`, and their number."""
    check_translators([model])
    reader = reader_of(model, _priors)
    batches = PairBatches(
        pairs,
        vocabulary=model.vocabulary,
        tokens_per_batch=POSITIONS,
        shuffle=False,
    )
    sums = np.zeros(sum(model.graph.head.experts))
    for index in range(len(batches)):
        inputs, _, weights = batches[index]
        segment = {"source": inputs["source"], "tokens": inputs["target"]}
        priors = reader.predict_on_batch(segment)["priors"].astype(np.float64)
        sums += np.einsum("bte,bt->e", priors, weights)
    return sums, batches.num_tokens


def plot_expert_shares(shares: Shares, path: str | Path) -> None:
    """Draw the share of each expert as a PNG, coloured by layer, with a line at equal use.

    Args:
        shares: result of `expert_shares`.
        path: file to write.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from dualnet import analysis
        >>> used = analysis.Shares(np.array([0.75, 0.25]), 0.5, ("recurrence_1",) * 2, tokens=8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     analysis.plot_expert_shares(used, f"{folder}/shares.png")
    """
    title = f"Use of experts (coefficient of variation: {shares.coefficient_of_variation:.3f})"
    plots.plot_shares(shares.shares, shares.layers, path, title=title)


def _layers_of_experts(model: LanguageModel, output: DOCOutput) -> tuple[str, ...]:
    names = [layer.name for layer in model.core.layers]
    connection = ["connection"] * ("connection" in names)
    if isinstance(model, TranslationModel):
        cells = len(output.experts) - 2 - len(connection)
        stations = ["embedding", *(f"recurrence_{i + 1}" for i in range(cells))]
        stations += ["attentional_vector", *connection]
    else:
        recurrences = (name for name in names if name.startswith("recurrence_"))
        stations = ["embedding", *recurrences, *connection]
    if isinstance(output, MixtureSoftmax):
        return (stations[-1],) * sum(output.experts)
    return tuple(name for name, count in zip(stations, output.experts) for _ in range(count))


# --- rank


@dataclasses.dataclass(frozen=True)
class Rank:
    """Numeric rank of a matrix of log-probabilities, as `rank` returns it.

    Attributes:
        rank: Number of singular values above `tolerance`.
        singular_values: float64 `(min(shape),)`, the largest first.
        tolerance: Singular values up to it count as zero.
        shape: Number of contexts and number of words.

    Example:
        >>> import numpy as np
        >>> from dualnet.analysis import Rank
        >>> Rank(2, np.array([4.0, 1.0, 0.0]), tolerance=1e-6, shape=(5, 3))
        Rank(rank=2, tolerance=1e-06, shape=(5, 3))
    """

    rank: int
    singular_values: np.ndarray = dataclasses.field(repr=False)
    tolerance: float
    shape: tuple[int, int]


def rank(
    model: LanguageModel,
    tokens: ArrayLike,
    *,
    tolerance: float | None = None,
    rows: int | None = None,
) -> Rank:
    """Return the numeric rank of the log-probabilities of all words in the contexts of a text.

    Row t of the matrix is log p of every word after the first t tokens, read as one stream with
    carried state, dropout off. A softmax with `units` inputs has rank `units + 2` at most (one
    for the bias, one for the normaliser); a mixture of softmaxes can have full rank.

    The rank depends on the tolerance. The matrix is float64, a log-softmax on the host of
    float32 logits, whose rounding alone adds singular values of up to
    eps |log p| (sqrt(contexts) + sqrt(words)), with eps = 1.2e-7. NumPy's default for float64
    would count them and report full rank for every softmax. The default here is NumPy's rule with
    the eps of float32: max(shape) eps times the largest singular value. This is well above the
    noise, but ignores the weak directions of a large mixture: with 10,000 contexts and words, all
    below a thousandth of the largest. Look at `plot_singular_values`, and compare models at
    the same tolerance.

    The singular values are computed from the matrix itself: its Gram matrix would lose all below
    1e-8 of the largest. Beyond twice as many contexts as words, a QR decomposition reduces the
    rows to a triangle with the same singular values. Memory is up to 60 words^2 bytes, 6 GB for
    10,000 words, and the decomposition of a 10,000 x 10,000 matrix takes minutes on two cores;
    `rows` limits both.

    Args:
        model: `LanguageModel`.
        tokens: int array `(num_tokens,)`, in reading order, at least one.
        tolerance: float, at least 0. Singular values up to it count as zero.
        rows: int, at least 1. Number of contexts, from the start of the text; default all.

    Returns:
        `Rank`.

    Example:
        >>> import numpy as np
        >>> from dualnet import analysis, builders
        >>> model = builders.language_model(9, units=3)
        >>> analysis.rank(model, np.arange(9) % 5).shape
        (9, 9)

    Differs from the paper: the paper does not state its tolerance.

    Reference: Takase et al., 2018, https://arxiv.org/abs/1808.10143, Table 5.
    """
    check_language_model("model", model)
    tokens = check_tokens(tokens, model.vocabulary_size, least=1)
    if rows is not None:
        tokens = tokens[: check_count("rows", rows)]
    if tolerance is not None:
        tolerance = check_penalty("tolerance", tolerance)
    words = model.vocabulary_size
    matrix = np.empty((min(len(tokens), 2 * words), words))
    filled = 0
    for logits in read_outputs(model, questions.logits, tokens):
        if not np.isfinite(logits).all():
            message = "must compute finite logits. Received: a model with nan or infinite logits."
            raise ArgumentError("model", f"{message} Train it again with a smaller learning_rate.")
        logits -= logits.max(-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        while len(logits):
            if filled == len(matrix):
                matrix[:words] = np.linalg.qr(matrix, mode="r")
                filled = words
            block, logits = np.split(logits, [len(matrix) - filled])
            matrix[filled : filled + len(block)] = block
            filled += len(block)
    values = np.linalg.svd(matrix[:filled], compute_uv=False)
    if tolerance is None:
        tolerance = max(len(tokens), words) * float(np.finfo(np.float32).eps) * float(values[0])
    return Rank(int(np.sum(values > tolerance)), values, tolerance, (len(tokens), words))


def plot_singular_values(ranks: Mapping[str, Rank], path: str | Path) -> None:
    """Draw the singular values of several models as a PNG, with the tolerance of each.

    Args:
        ranks: dict of a name to the result of `rank`. Each model's values are divided by its
            largest.
        path: file to write.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from dualnet import analysis
        >>> softmax = analysis.Rank(2, np.array([4.0, 1.0, 0.0]), tolerance=1e-6, shape=(5, 3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     analysis.plot_singular_values({"softmax": softmax}, f"{folder}/values.png")
    """
    label = "{}: rank {:,} of {:,}".format
    spectra = {label(n, r.rank, min(r.shape)): r.singular_values for n, r in ranks.items()}
    plots.plot_spectra(spectra, [result.tolerance for result in ranks.values()], path)


# --- hidden states


@dataclasses.dataclass(frozen=True)
class HiddenStates:
    """The outputs of layers after each token of a text, as `hidden_states` returns them.

    Attributes:
        words: The words of the text, whatever the tokens; `<eos>` where a document ends.
        ids: int32 `(num_tokens,)`.
        starts: int64 `(num_words,)`, the index of the first token of each word.
        layers: dict from the names of layers to float32 `(num_tokens, units)`.
        tokens: The tokens by name, as `vocabulary.words` has them.

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
    layers: dict[Any, np.ndarray] = dataclasses.field(repr=False)
    tokens: tuple[str, ...] = dataclasses.field(default=(), repr=False)

    def of_words(self, how: str = "last") -> dict[Any, np.ndarray]:
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

    def to_frame(self, each: str = "word") -> "pandas.DataFrame":
        """Return a `pandas.DataFrame`, a row for each word or token; needs the extra `pandas`.

        `each` is "word", for the vector after its last token, or "token". A column is a unit of a
        layer: `frame["recurrence_1"]` has those of one. `frame.melt(ignore_index=False)` is long.
        """
        with extra("pandas", "`to_frame` needs pandas"):
            import pandas
        is_word = check_choice("each", each, ("word", "token")) == "word"
        layers, index = (self.of_words(), self.words) if is_word else (self.layers, self.tokens)
        frames = {name: pandas.DataFrame(vectors, list(index)) for name, vectors in layers.items()}
        frame = pandas.concat(frames, axis=1)
        levels = ["layer", "name", "unit"] if frame.columns.nlevels == 3 else ["layer", "unit"]
        return frame.rename_axis(index=each, columns=levels)


def hidden_states(
    model: LanguageModel,
    text: str,
    *,
    split_punctuation: bool = False,
) -> HiddenStates:
    """Return the outputs of all layers of `model` for the words of `text`, without dropout.

    The text is read after `<eos>`, as `dualnet.surprisal` does. The vector of a token is from
    after it was read: it predicts the next one.

    Args:
        model: `LanguageModel` with a vocabulary.
        text: str, with at least one word.
        split_punctuation: bool. Marks before and after a word are words of their own.

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
    words, tokens, stream = _stream_of(model, text, split_punctuation)
    vectors = np.concatenate([*read_outputs(model, _vectors, stream)])
    outputs = model.graph.layer_outputs
    ends = np.cumsum([output.shape[-1] for output in outputs.values()])
    layers = dict(zip(outputs, np.split(vectors[1:].astype("float32"), ends[:-1], axis=1)))
    return HiddenStates(words.words, words.ids, words.starts, layers, tokens)


def _stream_of(
    model: LanguageModel, text: str, split_punctuation: bool
) -> tuple[Words, tuple[str, ...], np.ndarray]:
    """Return the words of `text`, the names of its tokens, and their ids after `<eos>`."""
    check_language_model("model", model)
    vocabulary, eos_id = vocabulary_with_eos(model, way_out="Train it on a corpus with one.")
    words = words_of(vocabulary, check_text("text", text), split_punctuation=split_punctuation)
    if not words.words:
        raise ArgumentError("text", "must hold at least one word.", text=text)
    tokens = tuple(vocabulary.words[i] for i in words.ids)
    return words, tokens, np.append(np.int32(eos_id), words.ids)


def _vectors(graph: Graph, segment: Tensors) -> Tensors:
    outputs, states = graph.hidden_states(segment["tokens"], segment["states"])
    return {"vectors": ops.concatenate([*outputs.values()], axis=-1), "states": states}


# --- inside a layer


def inside(model: LanguageModel, text: str, *, split_punctuation: bool = False) -> HiddenStates:
    """Return gates, memories and outputs of each layer for the words of `text`, without dropout.

    Each layer has its "output". The cells add, by the letters of their equations: an LSTM the
    gates i, f and o, the candidate j and the memory c; a Mogrifier the modulated x and h, too
    ("modulated_x"); a GRU z, r and n; a highway cell h_k, t_k and s_k of each micro-step; a stack
    with depth gates i_k, f_k, j_k, o_k, c_k, h_k and d_k of each layer. Of a dual connection,
    "from_input" is e W and "from_recurrence" h U. Cells of your own in a `Recurrence` show what
    they give to `dualnet.layers.record`; of `keras.layers.RNN` there is the output alone.

    The text is read one token at a time, after `<eos>`; the values of a token are from when it
    was read.

    Args:
        model: `LanguageModel` with a vocabulary. Of an ensemble, look at a member.
        text, split_punctuation: As for `hidden_states`.

    Returns:
        `HiddenStates`, whose `layers` have the names of layer and value: `("recurrence_1", "f")`.

    Example:

    >>> import dualnet
    >>> from dualnet.text import ByteTokenizer
    >>> model = dualnet.zoo.build("dual_lstm", vocabulary_size=257, units=4)
    >>> model.vocabulary = ByteTokenizer()
    >>> states = dualnet.analysis.inside(model, "a cat")
    >>> states.layers["recurrence_1", "f"].shape, states.of_words()["recurrence_1", "c"].shape
    ((5, 4), (2, 4))
    """
    words, tokens, stream = _stream_of(model, text, split_punctuation)
    values = {key: vectors[1:] for key, vectors in read_inside(model, stream).items()}
    return HiddenStates(words.words, words.ids, words.starts, values, tokens)


def plot_inside(
    states: HiddenStates,
    path: str | Path,
    *,
    layer: str = "recurrence_1",
    values: Sequence[str] | None = None,
    units: int = 24,
) -> None:
    """Draw the gates and memory of a layer over a sentence as a PNG: a heat map of each.

    Args:
        states: result of `inside`.
        path: file to write.
        layer: str.
        values: list of names, such as ["i", "f", "c"]; by default all.
        units: int. How many units to show of each: those that change most in the text.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from dualnet import analysis
        >>> gates = {("recurrence_1", "f"): np.eye(3, 4)}
        >>> states = analysis.HiddenStates(("a", "b", "c"), np.arange(3), np.arange(3), gates)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     analysis.plot_inside(states, f"{folder}/inside.png")
    """
    layers = states.of_words()
    check_choice("layer", layer, {name for name, _ in layers})
    panels = {name: vectors.T for (owner, name), vectors in layers.items() if owner == layer}
    shown = [check_choice("values", name, panels) for name in values or panels]
    plots.plot_heat({name: panels[name] for name in shown}, states.words, units, path, title=layer)


def contributions(
    model: LanguageModel, text: str, *, all_words: bool = False
) -> dict[str, np.ndarray]:
    """Return the parts of the logits of a text: of the word before, the recurrence and the biases.

    The parts add up to the logit minus the mean of all logits, of which a softmax sees no more.
    They are cut at the sums of the dual connection: relu lets a unit through with all of its
    summands, or with none. So the parts say what this prediction is made of, and not what the
    model would predict without one of them.

    Args:
        model: `LanguageModel` with a vocabulary, a dual connection and one softmax.
        text: As for `hidden_states`. The first token is predicted from `<eos>`.
        all_words: bool. Whether to return the parts of all logits at each token, and not of its
            own alone.

    Returns:
        dict of "token", `(num_tokens,)`, and "input", "recurrence" and "bias", float64
        `(num_tokens,)`, which `pandas.DataFrame` takes as it is; with `all_words`
        `(num_tokens, words)`.

    Raises:
        ValueError: if the model has another connection or output.

    Example:

    >>> import dualnet
    >>> from dualnet.text import ByteTokenizer
    >>> model = dualnet.zoo.build("dual_lstm", vocabulary_size=257, units=4)
    >>> model.vocabulary = ByteTokenizer()
    >>> parts = dualnet.analysis.contributions(model, "a cat")
    >>> list(parts), parts["input"].shape
    (['token', 'input', 'recurrence', 'bias'], (5,))
    """
    words, tokens, stream = _stream_of(model, text, split_punctuation=False)
    values = read_inside(model, stream[:-1])
    parts = parts_of_logits(model, values, None if all_words else words.ids)
    return {"token": np.array(tokens), **parts}


def plot_contributions(parts: Mapping[str, np.ndarray], path: str | Path) -> None:
    """Draw the result of `contributions` as a PNG: bars for the parts of each token's logit.

    Args:
        parts: result of `contributions`, without `all_words`.
        path: file to write.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from dualnet import analysis
        >>> one = np.ones(2)
        >>> parts = {"token": np.array(["a", "b"]), "input": one, "recurrence": -one, "bias": one}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     analysis.plot_contributions(parts, f"{folder}/parts.png")
    """
    plots.plot_parts({name: parts[name] for name in parts if name != "token"}, parts["token"], path)


# --- learning curves

COLUMNS = {"val": "val_perplexity", "train": "perplexity"}  # of metrics.csv


def learning_curves(runs: Mapping[str, str | Path], *, split: str = "val") -> dict[str, np.ndarray]:
    """Return the perplexity per epoch of several RUN folders, read from their metrics.csv.

    Args:
        runs: dict of a name to a RUN folder.
        split: "val", the validation text, or "train", the training text as seen during the
            epoch (with dropout).

    Returns:
        dict of each name to a float64 array `(epochs,)`.

    Raises:
        FileNotFoundError: if a folder holds no metrics.csv.
        ValueError: if `split` is unknown.

    Example:
        >>> import pathlib, tempfile
        >>> from dualnet import analysis
        >>> with tempfile.TemporaryDirectory() as run:
        ...     table = "epoch,perplexity,val_perplexity\\n1,90.5,80.5\\n2,70.5,75.5\\n"
        ...     _ = pathlib.Path(run, "metrics.csv").write_text(table)
        ...     analysis.learning_curves({"lstm": run})
        {'lstm': array([80.5, 75.5])}
    """
    column = COLUMNS[check_choice("split", split, COLUMNS)]
    curves = {}
    for name, run in runs.items():
        path = Path(run) / "metrics.csv"
        if not path.is_file():
            raise FileNotFoundError(
                "`runs` must be RUN folders of trainings, which write metrics.csv. Received: "
                f"{str(run)!r}, without it. Of an ensemble, name the members."
            )
        rows = csv.DictReader(path.read_text("utf-8").splitlines())
        curves[name] = np.array([row[column] for row in rows], np.float64)
    return curves


def plot_learning_curves(
    runs: Mapping[str, str | Path], path: str | Path, *, split: str = "val"
) -> None:
    """Draw the perplexity per epoch of several RUN folders as a PNG.

    The scale is logarithmic. It ends above the first epochs, whose perplexities are far above
    the lowest, and the axis label says where.

    Args:
        runs: dict of a name to a RUN folder.
        path: file to write.
        split: "val", "train" or "both"; curves in training are dashed.

    Example:
        >>> import pathlib, tempfile
        >>> from dualnet import analysis
        >>> with tempfile.TemporaryDirectory() as run:
        ...     table = "epoch,perplexity,val_perplexity\\n1,90.5,80.5\\n2,70.5,75.5\\n"
        ...     _ = pathlib.Path(run, "metrics.csv").write_text(table)
        ...     analysis.plot_learning_curves({"lstm": run}, f"{run}/curves.png", split="both")

    Reference: Takase et al., 2018, https://arxiv.org/abs/1808.10143, Figure 2.
    """
    check_choice("split", split, [*COLUMNS, "both"])
    splits = list(COLUMNS) if split == "both" else [split]
    curves = {
        f"{name} {split.replace('val', 'valid')}": values.tolist()
        for name, run in runs.items()
        for split in splits
        for values in learning_curves({name: run}, split=split).values()
    }
    plots.plot_curves(curves, path, cut=True)
