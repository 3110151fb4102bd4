"""Arrange a mixed table for the joint EM.

Samples with the same missing pattern and the same known group form a cell. The samples of every
cell are in blocks of equal size. Sizes of arrays are padded, so that tables of similar size use one
compiled program. There are n samples, d numeric columns, and s design columns of location effects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nrprob.methods.conditional.discrete_block import Values, score_moments
from nrprob.methods.conditional.gaussian_block import Numbers
from nrprob.methods.conditional.joint import Table
from nrprob.methods.conditional.precisions import missing_columns
from nrprob.statistics.rows import Layout, bucket_size, make_layout


@dataclass(frozen=True)
class DiscreteColumn:
    """One discrete column, with V values.

    Attributes
    ----------
    codes : (n,) index of the value of every sample, below V; -1 for missing values
    n_values : number of values, V
    scores : (V,) numeric scores of the values of an ordered or count column; None for a categorical
        column
    fitted_marginal : (V,) shares of the values in the fit, for new samples and for a subsample of
        stored rows; else None
    mass : (n,) weights of the samples; None if all are 1
    """

    codes: np.ndarray
    n_values: int
    scores: np.ndarray | None = None
    fitted_marginal: np.ndarray | None = None
    mass: np.ndarray | None = None

    @property
    def marginal(self) -> np.ndarray:
        """Shares (V,) of the values among the samples of the fit.

        The result is ``fitted_marginal``. If ``fitted_marginal`` is None, the shares are computed
        from the samples, with half a sample added to every value.
        """
        if self.fitted_marginal is not None:
            return self.fitted_marginal
        seen = self.codes >= 0
        mass = None if self.mass is None else self.mass[seen]
        count = np.bincount(self.codes[seen], mass, minlength=self.n_values) + 0.5
        return count / count.sum()

    @property
    def standard_scores(self) -> np.ndarray:
        """Scores (V,) with mean 0 and variance 1 under the marginal; 0 for categorical columns."""
        if self.scores is None:
            return np.zeros(self.n_values)
        p = self.marginal
        centred = self.scores - p @ self.scores
        return centred / np.sqrt(p @ centred**2)


def take_rows(columns: list[DiscreteColumn], rows: np.ndarray) -> list[DiscreteColumn]:
    """Restrict every discrete column to the samples with the indices ``rows``."""
    return [replace(column, codes=column.codes[rows]) for column in columns]


def padded_size(size: int) -> int:
    """Padded length of an axis of length ``size``; few distinct lengths need few compilations."""
    return bucket_size(max(size, 1), 1 << 20)


def lay_out_values(columns: list[DiscreteColumn], layout: Layout, dtype: type) -> Values:
    """Arrange discrete columns in blocks of samples, as `Values`.

    The axis of all values is padded; the padding belongs to an additional column without samples.

    Parameters
    ----------
    columns : discrete columns
    layout : positions of the samples in blocks
    dtype : floating-point type
    """
    sizes = [column.n_values for column in columns]
    n_values = padded_size(sum(sizes) + 1)
    spare = n_values - sum(sizes)
    n_columns = padded_size(len(columns) + 1)
    most = padded_size(max([*sizes, spare]))
    first = np.cumsum([0, *sizes])
    column = np.repeat(np.arange(len(columns) + 1), [*sizes, spare])
    slots = np.full((n_columns, most), n_values)
    for j, size in enumerate([*sizes, spare]):
        slots[j, :size] = first[j] + np.arange(size)
    curvature = np.zeros((n_columns, most))
    score, marginal = np.zeros(n_values), np.full(n_values, 1 / spare)
    n = len(columns[0].codes)
    indicators: np.ndarray = np.zeros((n, n_values), dtype)
    for j, column_j in enumerate(columns):
        where = slice(first[j], first[j + 1])
        marginal[where], score[where] = column_j.marginal, column_j.standard_scores
        moments = score_moments(column_j.marginal, column_j.scores is not None)
        curvature[j, : len(moments)] = moments
        seen = np.flatnonzero(column_j.codes >= 0)
        indicators[seen, first[j] + column_j.codes[seen]] = 1
    tilted = np.zeros(n_columns, bool)
    tilted[: len(columns)] = [c.scores is not None for c in columns]
    return Values(
        layout.to_blocks(indicators), column.astype(np.int32), slots.astype(np.int32), tilted,
        score.astype(dtype), marginal.astype(dtype), curvature.astype(dtype),
    )  # fmt: skip


def lay_out_table(
    x: np.ndarray | None,
    columns: list[DiscreteColumn],
    groups: np.ndarray,
    n_groups: int,
    q: np.ndarray | None = None,
    mass: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
) -> tuple[Table, Layout]:
    """Arrange a table in blocks; all samples of a block have one missing pattern and known group.

    Parameters
    ----------
    x : (n, d) numeric values, NaN where missing; None without numeric columns
    columns : discrete columns
    groups : (n,) known group of every sample
    n_groups : number of known groups
    q : (n, s) design of the location effects; None without location effects
    mass : (n,) weights of the samples; by default 1
    labels : (n,) cluster of labelled samples, else -1; None without labels
    sizes : (n_groups,) masses of the known groups in a whole table, if the samples are a part of
        this table. Without missing values, every known group is then a cell, also a group without
        samples, so that sums over parts can be added.

    Returns
    -------
    table : the table in blocks
    layout : position of every sample in the blocks
    """
    n = len(groups)
    dtype = np.dtype(np.float64 if x is None else x.dtype).type
    if x is None:
        seen, pattern = np.ones((1, 0), bool), np.zeros(n, int)
    else:
        seen, pattern = np.unique(~np.isnan(x), axis=0, return_inverse=True)
    cells, cell = np.unique(
        np.column_stack([pattern.reshape(-1), groups]), axis=0, return_inverse=True
    )
    if sizes is not None:
        cells = np.column_stack([np.zeros(n_groups, int), np.arange(n_groups)])
        cell = groups
    n_cells = padded_size(len(cells))
    # Cells of few samples have small blocks, which need less padding.
    least_rows = int(np.clip(1 << int(np.log2(max(n / n_cells, 1))), 2, 16))
    layout = make_layout(cell.reshape(-1), n_cells, least_rows=least_rows)
    group = np.zeros(n_cells, np.int32)
    group[: len(cells)] = cells[:, 1]
    mass = np.ones(n) if mass is None else mass
    total = np.bincount(groups, mass, minlength=n_groups) if sizes is None else sizes
    total = np.pad(total, (0, padded_size(n_groups) - n_groups))
    numeric = None
    if x is not None:
        d, width = x.shape[1], padded_size(x.shape[1])
        wide = np.pad(np.nan_to_num(x), ((0, 0), (0, width - d)))
        # A table without missing values has one pattern; every other table has two or more, though
        # the second may have no samples.
        n_patterns = padded_size(len(seen) if seen.all() else max(len(seen), 2))
        observed = np.zeros((n_patterns, width), dtype)
        observed[: len(seen), :d] = seen
        cell_pattern = np.zeros(n_cells, np.int32)
        cell_pattern[: len(cells)] = cells[:, 0]
        q = np.zeros((n, 0), dtype) if q is None else q.astype(dtype)
        numeric = Numbers(
            layout.to_blocks(wide.astype(dtype)), layout.to_blocks(q), observed,
            missing_columns(seen, n_patterns, width), cell_pattern, np.arange(width) < d,
        )  # fmt: skip
    weights = layout.to_blocks(mass.astype(dtype))
    table = Table(
        numeric,
        lay_out_values(columns, layout, dtype) if columns else None,
        weights,
        layout.block_group,
        group,
        total.astype(dtype),
        np.zeros_like(weights),
        None if labels is None else layout.to_blocks(labels, -1),
    )
    return table, layout
