"""The gradient statistics of the rule "rms"."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from dualnet._checks import ArgumentError, check_count
from dualnet.adaptation.adapted_copy import AdaptedCopy
from dualnet.adaptation.rules import SquaredGradients
from dualnet.adaptation.weights import Adapted, adapted
from dualnet.builders import LanguageModel, check_language_model
from dualnet.corpora import streams
from dualnet.devices import whole_batches
from dualnet.evaluation.arguments import check_tokens


@dataclasses.dataclass(frozen=True)
class GradientStatistics:
    """The result of `gradient_statistics`: the root mean square of each weight's gradient.

    Attributes:
        roots: list of float32 arrays of the weights' shapes.
        batches: Number of gradients in the mean.
        names: list of the weights' names, as in `dualnet.weight_names`, in the order of `roots`.
            Without names, `roots` are in the order of the model's trainable weights.

    Example:

    >>> import numpy as np
    >>> from dualnet.adaptation import GradientStatistics
    >>> roots = [np.full((2, 3), 0.5, "float32")]
    >>> statistics = GradientStatistics(roots, batches=7, names=["embedding/embeddings"])
    >>> statistics.by_name["embedding/embeddings"].mean()
    np.float32(0.5)
    """

    roots: list[np.ndarray] = dataclasses.field(repr=False)
    batches: int
    names: list[str] = dataclasses.field(default_factory=list, repr=False)

    @property
    def by_name(self) -> dict[str, np.ndarray]:
        """The roots by the names of the weights."""
        return dict(zip(self.names, self.roots))


Statistics = GradientStatistics | ArrayLike  # for the rule "rms", or the text they are of


def gradient_statistics(
    model: LanguageModel,
    tokens: ArrayLike,
    *,
    batch_size: int = 100,
    sequence_length: int = 5,
    adapt: str | Sequence[str] | None = None,
) -> GradientStatistics:
    """Return the gradient statistics of the rule "rms" from the training text.

    For each batch of `batch_size` streams of `sequence_length` tokens, with carried state and
    dropouts off, the gradient of the mean loss is squared; the result is the root of the mean
    over all batches. The weights are left untouched.

    Args:
        model: `LanguageModel`.
        tokens: int array `(num_tokens,)`, the training text.
        batch_size: int. Number of streams.
        sequence_length: int. Tokens of each stream per gradient.
        adapt: str or list of str. Which weights the statistics are of, as in
            `dynamic_evaluation`; by default all.

    Example:

    >>> import numpy as np
    >>> import dualnet
    >>> model = dualnet.zoo.build("dual_lstm", vocabulary_size=9, units=4)
    >>> dualnet.gradient_statistics(model, np.arange(9), batch_size=2, sequence_length=2).batches
    2

    Reference: Krause et al., 2018, https://arxiv.org/abs/1709.07432, section 5.
    """
    check_language_model("model", model)
    check_count("batch_size", batch_size)
    check_count("sequence_length", sequence_length)
    which = adapted(model, adapt)
    return statistics_of(which, tokens, batch_size=batch_size, sequence_length=sequence_length)


def statistics_of(
    which: Adapted,
    tokens: ArrayLike,
    *,
    batch_size: int = 100,
    sequence_length: int,
    name: str = "tokens",
) -> GradientStatistics:
    """Return the `gradient_statistics` of the weights of a model that adapt."""
    words = int(which.graph.word_logits.shape[-1])
    tokens = check_tokens(tokens, words, least=batch_size * sequence_length + 1, name=name)
    inputs, targets = streams(tokens, batch_size)
    optimizer = SquaredGradients()
    batches = inputs.shape[1] // sequence_length
    with whole_batches():
        copy = AdaptedCopy(which, optimizer, batch_size=batch_size)
        for start in range(0, batches * sequence_length, sequence_length):
            segment = slice(start, start + sequence_length)
            copy.train_on_batch({"tokens": inputs[:, segment], "targets": targets[:, segment]})
    squares = [ops.convert_to_numpy(total) / batches for total in optimizer.totals]
    if not all(np.isfinite(square).all() for square in squares):
        received = "Received: a model that does not. Train it again with a smaller learning_rate."
        raise ArgumentError("model", f"must have finite gradients. {received}")
    return GradientStatistics([np.sqrt(s) for s in squares], batches, [*which.weights])


def in_order(statistics: GradientStatistics, which: Adapted) -> GradientStatistics:
    """Return the `statistics` of the weights that learn, in their order."""
    # Without names, in the order of the weights.
    there = statistics.names or [*which.trainable]
    roots = dict(zip(there, statistics.roots))
    faults = []
    if len(there) != len(statistics.roots):
        faults = [f"{len(statistics.roots)} roots for {len(there)} weights"]
    faults += [f"{name} is missing" for name in which.weights if name not in roots]
    for name, root in roots.items():
        weight = which.trainable.get(name)
        if weight is None:
            faults.append(f"{name} is not in this model")
        elif root.shape != tuple(weight.shape):
            faults.append(f"{name} {root.shape} for {tuple(weight.shape)}")
    if faults:
        raise ArgumentError(
            "statistics",
            "must be those of this model's trainable weights, by name and shape. Received: "
            f"{'; '.join(faults)}. Call gradient_statistics with this model.",
        )
    names = [*which.weights]
    return GradientStatistics([roots[name] for name in names], statistics.batches, names)
