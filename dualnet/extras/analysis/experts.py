"""Shares: how much a mixture uses each of its experts."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dualnet import plots
from dualnet._checks import ArgumentError
from dualnet.builders import Graph, LanguageModel, TranslationModel, reader_of
from dualnet.corpora import PairSplit
from dualnet.corpora.pair_batches import PairBatches
from dualnet.evaluation.arguments import check_tokens, check_translators
from dualnet.extras.analysis.model_outputs import find_layer, read_outputs
from dualnet.layers import DOCOutput, MixtureSoftmax

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


def expert_shares(
    model: LanguageModel, tokens: ArrayLike | PairSplit, *, sequence_length: int | None = None
) -> Shares:
    """Return the share of each expert of a mixture in the predictions for a text.

    The text is read as one stream with carried state, dropout off; of pairs, each target is
    read with its source. The prior of each expert is summed over all tokens in float64.

    Args:
        model: `LanguageModel` or `TranslationModel` with a mixture as output, built with
            `experts`.
        tokens: int array `(num_tokens,)`, in reading order, at least one; for a
            `TranslationModel`, a `PairSplit` such as `corpus.test`.
        sequence_length: int. Tokens per call, default 256. It does not affect the result, and
            does not apply to pairs.

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
    output = find_layer(model, "output")
    if not isinstance(output, DOCOutput):
        way_out = " Build or train a model with `experts`."
        received = f"Received: the output {type(output).__name__}."
        raise ArgumentError("model", f"must have a mixture as output. {received}", way_out)
    if isinstance(model, TranslationModel):
        if not isinstance(tokens, PairSplit):
            raise ArgumentError("tokens", "must be a `PairSplit` for a model that translates.")
        sums, count = _sums_over_pairs(model, tokens)
    else:
        tokens = check_tokens(tokens, model.vocabulary_size, least=1)
        sums = sum(part.sum(0) for part in read_outputs(model, _priors, tokens, sequence_length))
        count = len(tokens)
    variation = float(np.std(sums) / np.mean(sums))
    return Shares(sums / count, variation, _layers_of_experts(model, output), count)


def _priors(graph: Graph, segment: dict[str, Any]) -> dict[str, Any]:
    """Answer with `priors`, those of all experts."""
    features, *states = graph.body([segment["tokens"], *segment["states"]])
    return {"priors": graph.head.priors(features), "states": states}


def _sums_over_pairs(model: TranslationModel, pairs: PairSplit) -> tuple[np.ndarray, int]:
    """Return the sums of the priors over all target tokens of `pairs`, and their number."""
    check_translators([model])
    reader = reader_of(model, _priors)
    batches = PairBatches(
        pairs,
        vocabulary=model.vocabulary,
        source_vocabulary=model.source_vocabulary,
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
