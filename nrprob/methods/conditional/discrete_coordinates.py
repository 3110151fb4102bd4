"""Numeric coordinates of discrete columns, for location effects and for initial k-means.

Sizes: n samples, L known groups, V values of a column. E[t|z] is the mean of t in known group z.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nrprob.methods.conditional.table import DiscreteColumn
from nrprob.statistics.groups import group_sums
from nrprob.statistics.weighted import column_variances

_CONSTANT = 1e-9  # standard deviation up to which a design column counts as constant
_PSEUDO = 2.0  # pseudo-samples, which shrink the marginal of a group to the overall marginal


def group_marginal(column: DiscreteColumn, groups: np.ndarray, n_groups: int) -> np.ndarray:
    """Shares (L, V) of the V values of a column in L known groups, shrunk to the overall shares.

    ``groups`` (n,) are the known groups of the samples.
    """
    seen = column.codes >= 0
    table = np.zeros((n_groups, column.n_values))
    mass = 1 if column.mass is None else column.mass[seen]
    np.add.at(table, (groups[seen], column.codes[seen]), mass)
    return (table + _PSEUDO * column.marginal) / (table.sum(1, keepdims=True) + _PSEUDO)


def chi_square_coordinates(column: DiscreteColumn, groups: np.ndarray, n_groups: int) -> np.ndarray:
    """Coordinates of a discrete column relative to its distribution in the known group.

    A categorical column y has V coordinates (1[y = v] - p(v|z)) / sqrt(p_v (V - 1)), the chi-square
    metric of multiple correspondence analysis. Here p_v is the share of value v, and p(v|z) is the
    share of value v in known group z. An ordered or count column has one coordinate t(y) - E[t|z],
    with standardised scores t. The variances of the coordinates of a column add up to about 1.

    Returns
    -------
    (n, V) or (n, 1) coordinates, 0 where missing
    """
    seen = column.codes >= 0
    p = group_marginal(column, groups, n_groups)
    codes = np.maximum(column.codes, 0)
    if column.scores is not None:
        score = column.standard_scores
        out = (score[codes] - (p @ score)[groups])[:, None]
    else:
        indicator = np.eye(column.n_values)[codes]
        unit = np.sqrt(column.marginal * max(column.n_values - 1, 1))
        out = (indicator - p[groups]) / unit
    return np.where(seen[:, None], out, 0.0)


@dataclass(frozen=True)
class LocationDesign:
    """Design matrix of the location effects, learnt from the samples of a fit.

    A categorical column y has one design column 1[y = v] - p(v|z) for every value v but the first.
    Here p(v|z) is the share of value v in known group z. An ordered or count column has one design
    column t(y) - E[t|z], with standardised scores t. Entries are 0 for missing values. Design
    columns are centred within known groups and standardised. Constant design columns are left out;
    s of the s' design columns remain.

    Attributes
    ----------
    marginals : list of (L, V) smoothed marginals of every column by known group
    scores : list of (V,) standardised scores, or None for categorical columns
    means : (L, s) means of the design columns by known group
    scale : (s,) standard deviations of the design columns
    varies : (s',) whether a design column is retained
    """

    marginals: list[np.ndarray]
    scores: list[np.ndarray | None]
    means: np.ndarray
    scale: np.ndarray
    varies: np.ndarray

    @classmethod
    def learn(
        cls, columns: list[DiscreteColumn], groups: np.ndarray, n_groups: int,
        weights: np.ndarray | None = None,
    ) -> LocationDesign:  # fmt: skip
        """Learn the design from the discrete columns of a fit.

        Parameters
        ----------
        columns : discrete columns
        groups : (n,) known group of every sample
        n_groups : number of known groups
        weights : (n,) weights of the samples; by default 1
        """
        marginals = [group_marginal(c, groups, n_groups) for c in columns]
        scores = [None if c.scores is None else c.standard_scores for c in columns]
        q = _raw_design(marginals, scores, [c.codes for c in columns], groups)
        size = np.bincount(groups, weights, minlength=n_groups)
        means = group_sums(q, groups, n_groups, weights) / np.where(size > 0, size, 1)[:, None]
        deviation = np.sqrt(column_variances(q - means[groups], weights))
        varies = deviation > _CONSTANT
        return cls(marginals, scores, means[:, varies], deviation[varies], varies)

    def __call__(self, columns: list[DiscreteColumn], groups: np.ndarray) -> np.ndarray:
        """Design matrix (n, s) of samples with discrete values ``columns`` in ``groups`` (n,).

        All groups must have occurred in the fit.
        """
        codes = [c.codes for c in columns]
        q = _raw_design(self.marginals, self.scores, codes, groups)[:, self.varies]
        return (q - self.means[groups]) / self.scale

    def for_new_groups(self, columns: list[DiscreteColumn]) -> np.ndarray:
        """Design matrix (n, s) of samples in new groups, which did not occur in the fit.

        The overall marginals of the fit replace the marginals of the groups.
        """
        marginals = [column.marginal[None] for column in columns]
        means = np.zeros((1, len(self.scale)))
        design = LocationDesign(marginals, self.scores, means, self.scale, self.varies)
        return design(columns, np.zeros(len(columns[0].codes), int))


def _raw_design(
    marginals: list[np.ndarray], scores: list[np.ndarray | None], codes: list[np.ndarray],
    groups: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Design matrix (n, s') of `LocationDesign`, before centring and scaling.

    ``marginals``, ``scores`` and ``codes`` have one entry per column: shares (L, V) of its values
    by known group, standardised scores (V,) or None, and codes (n,) of the samples.
    """
    parts = [np.zeros((len(groups), 0))]
    for p, score, column in zip(marginals, scores, codes, strict=True):
        observed = np.maximum(column, 0)
        if score is not None:
            part = (score[observed] - (p @ score)[groups])[:, None]
        else:
            part = (np.eye(p.shape[1])[observed] - p[groups])[:, 1:]
        parts.append(np.where((column >= 0)[:, None], part, 0.0))
    return np.concatenate(parts, 1)
