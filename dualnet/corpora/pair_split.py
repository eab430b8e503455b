"""One split of a corpus of pairs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True, eq=False)
class PairSplit:
    """The pairs of a split: their lines, and the ids of both sides.

    The ids of a side are those of its lines in order, without `<eos>`; line k has the ids
    from `offsets[k]` to `offsets[k + 1]`.

    Attributes:
        source_lines, target_lines: tuple of str, as in the files; empty if they are not known.
        source_ids, target_ids: int32 `(num_tokens,)`.
        source_offsets, target_offsets: int64 `(num_pairs + 1,)`.
        too_long: int. Pairs that were left out because a side exceeds `max_tokens`.
        empty: int. Pairs that were left out because a side has no token.

    Example:

    >>> from dualnet import corpora
    >>> split = corpora.load_pairs("numbers").train
    >>> len(split), split.source_lines[0], split.target_lines[0]
    (4000, '1 0 3 9', 'one thousand thirty nine')
    """

    source_lines: tuple[str, ...]
    target_lines: tuple[str, ...]
    source_ids: np.ndarray
    target_ids: np.ndarray
    source_offsets: np.ndarray
    target_offsets: np.ndarray
    too_long: int = 0
    empty: int = 0

    @classmethod
    def of(
        cls,
        ids: Sequence[Sequence[np.ndarray]],
        lines: Iterable[Iterable[str]] = ((), ()),
        *left_out: int,
    ) -> Self:
        """Return the pairs with the `ids` of each line of both sides, and their texts, if known."""
        source_lines, target_lines = map(tuple, lines)
        source_ids, target_ids = (np.concatenate([np.zeros(0, np.int32), *side]) for side in ids)
        starts, ends = (np.cumsum([0, *map(len, side)]) for side in ids)
        return cls(source_lines, target_lines, source_ids, target_ids, starts, ends, *left_out)

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    def __repr__(self) -> str:
        sizes = f"source={len(self.source_ids)}, target={len(self.target_ids)}"
        return f"PairSplit({len(self)} pairs, {sizes})"

    def source(self, index: int) -> np.ndarray:
        """Return the ids of source line `index`: int32 `(length,)`."""
        return self.source_ids[self.source_offsets[index] : self.source_offsets[index + 1]]

    def target(self, index: int) -> np.ndarray:
        """Return the ids of target line `index`: int32 `(length,)`."""
        return self.target_ids[self.target_offsets[index] : self.target_offsets[index + 1]]
