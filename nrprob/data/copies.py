"""Detect exact copies of samples; every set of copies then counts as one sample.

A sample without copies is a set of one. Shapes: n samples, m features.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nrprob.exceptions import warn

_NOTE = "rows are exact copies of earlier rows"
_WARNING = "samples are exact copies of other samples"
_MANY = 0.05  # minimum share of copies among the samples for a note or a warning
# Values of a feature lie on a grid (rounded values) if their smallest spacing exceeds the smallest
# spacing that is typical of continuous values by this factor.
_GRID_RATIO = 10.0


@dataclass(frozen=True)
class Copies:
    """Sets of exact copies among n samples.

    Attributes
    ----------
    first : (n_distinct,) index of the first sample of every set, in ascending order
    set_index : (n,) index of the set of every sample; ``first[set_index]`` is the index of its
        first copy
    """

    first: np.ndarray
    set_index: np.ndarray

    @classmethod
    def no_copies(cls, n: int) -> Copies:
        """Make sets for ``n`` samples without copies: every sample is a set of one."""
        return cls(np.arange(n), np.arange(n))

    @classmethod
    def from_samples(cls, rows: np.ndarray, groups: np.ndarray) -> Copies:
        """Find samples that agree in every feature and in the known group.

        Rounded values can agree by chance. If rounding explains the number of equal samples, all
        samples count as distinct.

        Parameters
        ----------
        rows : (n, m) features
        groups : (n,) known groups as integers
        """
        first, set_index = _group_equal_rows(np.column_stack([groups, rows]))
        if first.size == len(rows) or _rounding_explains(rows, groups):
            return cls.no_copies(len(rows))
        return cls(first, set_index)

    @classmethod
    def from_table(cls, values: np.ndarray, groups: np.ndarray) -> Copies:
        """Find samples that agree in every column and in the known group.

        Samples with missing values do not count as copies.

        Parameters
        ----------
        values : (n, m) numbers and codes of discrete values, NaN where missing
        groups : (n,) known groups as integers
        """
        incomplete = np.isnan(values).any(1)
        # An additional column makes all incomplete samples different.
        number = np.where(incomplete, np.arange(len(values)) + 1, 0)
        return cls.from_samples(np.column_stack([np.nan_to_num(values), number]), groups)

    @property
    def n_copies(self) -> int:
        """Number of samples that are copies of an earlier sample."""
        return self.set_index.size - self.first.size

    @property
    def note(self) -> str:
        """Note for the user that reports the copies in a table."""
        return (
            f"{self.n_copies} of {self.set_index.size} {_NOTE}; the fit counts every row, and "
            "tests count equal rows once; drop the copies unless they should have more weight"
        )

    @property
    def are_many(self) -> bool:
        """Whether 5 % of the samples or more are copies of an earlier sample."""
        return self.n_copies >= _MANY * self.set_index.size

    def warn_if_many(self) -> None:
        """Warn if 5 % of the samples or more are copies of an earlier sample."""
        if self.are_many:
            warn(
                f"{_WARNING}, and each set of copies is tested as one sample; got {self.n_copies} "
                f"copies among {self.set_index.size} samples; drop the copies before the fit, "
                "unless the fit should give them more weight"
            )


def unreported(messages: Sequence[str], notes: Sequence[str]) -> list[str]:
    """Return the messages of warnings without the warning of copies that a note has reported."""
    is_reported = any(_NOTE in note for note in notes)
    return [m for m in messages if not (is_reported and m.startswith(_WARNING))]


@contextlib.contextmanager
def ignore_reported_copies(notes: Sequence[str]) -> Iterator[None]:
    """Ignore the warning of copies inside the ``with`` if a note has reported the copies."""
    with warnings.catch_warnings():
        if not unreported([_WARNING], notes):
            warnings.filterwarnings("ignore", _WARNING)
        yield


def _group_equal_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find sets of equal rows of a table of n rows.

    Returns the indices of the first row of every set, ascending, and the index (n,) of the set of
    every row.
    """
    table = np.ascontiguousarray(table)
    table += 0.0  # replaces -0.0 by 0.0, whose bytes differ
    as_bytes = table.view(np.dtype((np.void, table.shape[1] * table.itemsize))).ravel()
    _, first, set_index = np.unique(as_bytes, return_index=True, return_inverse=True)
    # Number the sets in the order of their first rows.
    order = np.argsort(first)
    return first[order], np.argsort(order)[set_index.ravel()]


def _rounding_explains(rows: np.ndarray, groups: np.ndarray) -> bool:
    """Return whether rounding explains the samples (n, m) that agree in every feature.

    Rounded values lie on a grid. Two samples are neighbours if they agree in all features but the
    one with the most distinct values, and have successive distinct values of this feature. This
    feature is used since the density is smoothest on its grid. With rounding and a smooth density,
    there are about twice as many pairs of neighbours as pairs of equal samples. Exact copies add
    equal pairs without neighbours. If the feature has no grid, samples do not agree by chance.
    """
    # Feature with the most distinct values: the finest grid.
    finest = int(np.argmax([np.unique(column).size for column in rows.T]))
    values, rank = np.unique(rows[:, finest], return_inverse=True)
    spacing = np.diff(values)
    # Without a grid: the smallest of u spacings of continuous values is about the median over u.
    if not spacing.size or spacing.min() * spacing.size <= _GRID_RATIO * np.median(spacing):
        return False
    # A cell contains the samples that agree in all features and in the known group. Cells of
    # neighbours have successive numbers. The last cell of a grid and the first cell of the next
    # grid are no neighbours.
    others = _group_equal_rows(np.column_stack([groups, np.delete(rows, finest, 1)]))[1]
    cells, counts = np.unique(others * values.size + rank, return_counts=True)
    neighbours = (np.diff(cells) == 1) & (cells[1:] % values.size > 0)
    # Numbers of pairs of equal samples and of pairs of neighbours.
    n_equal = (counts * (counts - 1)).sum() / 2
    n_neighbours = (counts[1:] * counts[:-1])[neighbours].sum()
    return bool(n_equal <= n_neighbours)
