"""The rank of what a model can say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dualnet import plots
from dualnet._checks import ArgumentError, check_count, check_penalty
from dualnet.analysis.reading import check_some, read
from dualnet.builders import LanguageModel
from dualnet.evaluation import check_tokens


@dataclasses.dataclass(frozen=True)
class Rank:
    """What `rank` found.

    Attributes:
        rank: Number of singular values above `tolerance`.
        singular_values: float64 `(min(shape),)`, the largest first.
        tolerance: What counts as zero.
        shape: Contexts and words of the matrix.
    """

    rank: int
    singular_values: np.ndarray = dataclasses.field(repr=False)
    tolerance: float
    shape: tuple[int, int]


def rank(
    model: LanguageModel,
    tokens: Any,
    *,
    tolerance: float | None = None,
    rows: int | None = None,
    sequence_length: int | None = None,
) -> Rank:
    """Return the numeric rank of the log-probabilities of all words over the contexts of a text.

    Row t of the matrix is log p of every word after the first t tokens, read as one stream
    with carried state, dropouts off. A softmax of `units` inputs gives rank `units + 2`
    at most (one for its bias, one for the normaliser), a mixture of them may give full rank.

    The matrix is float64: log-softmax on the host, of float32 logits. The rank depends on
    the tolerance. Rounding to float32 alone adds singular values of up to
    eps |log p| (sqrt(contexts) + sqrt(words)), with eps = 1.2e-7: the default of NumPy for
    float64 would count them, and call every softmax of full rank. The default here
    is NumPy's rule with the eps of float32, max(shape) eps times the largest singular value,
    which is well above that noise, and counts no weak direction of a large mixture: for 10,000
    contexts and words all below a thousandth of the largest. Look at `plot_singular_values`,
    and compare models at one tolerance.

    The singular values are those of the matrix itself; the square of it (its Gram matrix)
    would lose all below 1e-8 of the largest. Of more contexts than twice the words a
    triangle with the same singular values is kept, by QR. Memory is up to 60 words^2 bytes, 6 GB
    for 10,000 words, and the decomposition of 10,000 x 10,000 takes minutes on two
    cores: `rows` limits both.

    Args:
        model: `LanguageModel`.
        tokens: int array `(num_tokens,)`, in reading order, at least one.
        tolerance: float, at least 0. Singular values up to it count as zero.
        rows: int, at least 1. Contexts that are read, from the first on; default all.
        sequence_length: int. Tokens per call, without influence on the values; default 256.

    Raises:
        ValueError: if `tokens` holds no ids of the model's vocabulary, if an argument is
            out of range, or if the logits are not numbers.

    Differs from the paper: it does not tell its tolerance.

    Reference: Takase et al., 2018, https://arxiv.org/abs/1808.10143, Table 5.
    """
    tokens = check_tokens(tokens, model.vocabulary_size, least=1)
    if rows is not None:
        tokens = tokens[: check_count("rows", rows, least=1)]
    if tolerance is not None:
        check_penalty("tolerance", tolerance)
    words = model.vocabulary_size
    kept = np.empty((min(len(tokens), 2 * words), words))
    filled = 0
    for logits in read(model.core, model, tokens, sequence_length):
        if not np.isfinite(logits).all():
            raise ArgumentError(
                "model",
                "must give logits that are numbers. Received: one that gives nan or "
                "infinite ones. Train it again with a smaller learning_rate.",
            )
        logits -= logits.max(-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        while len(logits):
            if filled == len(kept):
                kept[:words] = np.linalg.qr(kept, mode="r")
                filled = words
            part = logits[: len(kept) - filled]
            kept[filled : filled + len(part)] = part
            filled += len(part)
            logits = logits[len(part) :]
    values = np.linalg.svd(kept[:filled], compute_uv=False)
    if tolerance is None:
        tolerance = max(len(tokens), words) * float(np.finfo(np.float32).eps) * float(values[0])
    return Rank(
        rank=int(np.sum(values > tolerance)),
        singular_values=values,
        tolerance=float(tolerance),
        shape=(len(tokens), words),
    )


def plot_singular_values(ranks: Mapping[str, Rank], path: str | Path) -> None:
    """Draw the singular values of several models as a PNG, with the tolerance of each.

    Args:
        ranks: dict of a name to what `rank` returned. All values are divided by the largest.
        path: file to write.

    Raises:
        ValueError: if `ranks` is empty.
        OSError: if the file cannot be written.
    """
    check_some("ranks", ranks)
    plots.plot_spectra(
        {f"{name}: rank {each.rank:,} of {min(each.shape):,}": each.singular_values
         for name, each in ranks.items()},
        [each.tolerance for each in ranks.values()],
        path,
    )  # fmt: skip
