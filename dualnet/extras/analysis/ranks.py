"""The rank of the matrix of log-probabilities that a model can express."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from dualnet import plots
from dualnet._checks import ArgumentError
from dualnet.builders import LanguageModel, check_language_model, questions
from dualnet.evaluation.arguments import check_tokens
from dualnet.extras.analysis.model_outputs import read_outputs


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
    sequence_length: int | None = None,
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
        sequence_length: int. Tokens per call, default 256. It does not affect the result.

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
        tokens = tokens[:rows]
    words = model.vocabulary_size
    matrix = np.empty((min(len(tokens), 2 * words), words))
    filled = 0
    for logits in read_outputs(model, questions.logits, tokens, sequence_length):
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
    return Rank(int(np.sum(values > tolerance)), values, float(tolerance), (len(tokens), words))


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
