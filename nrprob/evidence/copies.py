"""Detect exact copies of samples, so that a set of copies counts as one sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nrprob.exceptions import warn

_WARN_SHARE = 0.05  # share of copies among the samples
# Values lie on a grid if the smallest spacing exceeds that of continuous values by this factor.
_GRID_RATIO = 10.0


@dataclass(frozen=True)
class Copies:
    """Sets of samples that are exact copies of each other.

    Attributes
    ----------
    first : (n_distinct,) index of the first sample of every set, ascending
    set_index : (n,) set of every sample; ``first[set_index]`` maps every sample to its first copy
    """

    first: np.ndarray
    set_index: np.ndarray

    @classmethod
    def no_copies(cls, n: int) -> Copies:
        """Build sets of one sample each."""
        return cls(np.arange(n), np.arange(n))

    @classmethod
    def from_samples(cls, rows: np.ndarray, groups: np.ndarray) -> Copies:
        """Find samples (n, m) that agree in every feature and in the known group (n,).

        Rounded values agree by chance as well. If chance explains the samples that agree, these are
        separate samples and no copies.
        """
        first, set_index = _group_equal_rows(np.column_stack([groups, rows]))
        if first.size == len(rows) or _rounding_explains(rows, groups):
            return cls.no_copies(len(rows))
        return cls(first, set_index)

    def warn_if_many(self) -> None:
        """Warn if 5 % of the samples or more are copies of an earlier sample."""
        n = self.set_index.size
        n_copies = n - self.first.size
        if n_copies >= _WARN_SHARE * n:
            warn(
                "samples are exact copies of other samples, and a set of copies counts as one "
                f"sample here; got {n_copies} copies among {n} samples; drop the copies before "
                "the fit unless it is meant to give them more weight"
            )


def _group_equal_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sets of equal rows: first row of each set, ascending, and the set of every row."""
    table = np.ascontiguousarray(table)
    table += 0.0  # so that -0.0 has the bytes of 0.0
    as_bytes = table.view(np.dtype((np.void, table.shape[1] * table.itemsize))).ravel()
    _, first, set_index = np.unique(as_bytes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[set_index.ravel()]


def _rounding_explains(rows: np.ndarray, groups: np.ndarray) -> bool:
    """Whether rounding explains the samples (n, m) that agree in every feature.

    A rounded value lies on a grid. Neighbours differ by one step on the grid of one feature, and
    agree in all other features. If the density is smooth, there are about twice as many neighbours
    as equal samples. Copies have no such neighbours. The grid of the feature with the most distinct
    values is used, since the density is smoothest there. Features without a grid do not agree by
    chance.
    """
    # Feature with the finest grid.
    finest = int(np.argmax([np.unique(column).size for column in rows.T]))
    values, rank = np.unique(rows[:, finest], return_inverse=True)
    spacing = np.diff(values)
    # The smallest of u spacings of continuous values is about the median over u.
    if not spacing.size or spacing.min() * spacing.size <= _GRID_RATIO * np.median(spacing):
        return False
    # Cells of samples that agree in all features; cells of neighbours have successive numbers.
    others = _group_equal_rows(np.column_stack([groups, np.delete(rows, finest, 1)]))[1]
    cells, counts = np.unique(others * values.size + rank, return_counts=True)
    neighbours = (np.diff(cells) == 1) & (cells[1:] % values.size > 0)
    # Pairs of equal samples, and pairs of neighbours.
    n_equal = (counts * (counts - 1)).sum() / 2
    n_neighbours = (counts[1:] * counts[:-1])[neighbours].sum()
    return bool(n_equal <= n_neighbours)
