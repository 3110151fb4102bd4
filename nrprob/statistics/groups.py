"""Sums, means and counts of samples by group, in NumPy.

Shapes: n samples of m features. Groups are integers, one per sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.stats import binom, chi2

_DETERMINED = 1e-7  # smaller singular values of a scaled design within groups count as 0
_LEVEL = 1e-4  # shares can count as different only if the p-value is smaller
_ASSOCIATION = 0.1  # shares can count as different only if Cramer's V is larger
# A cluster lies in one known group if three conditions hold. The group has at least the first share
# of the cluster. This share exceeds the share of the group among all samples by the second number.
# The p-value of the difference is below the third number.
_SINGLE_SHARE, _SINGLE_EXCESS, _SINGLE_LEVEL = 0.95, 0.1, 1e-3


def group_sums(
    x: Any, codes: np.ndarray, n_groups: int = 0, weights: np.ndarray | None = None
) -> np.ndarray:
    """Sums (n_groups, m), in float64, of samples ``x`` (n, m) over groups ``codes`` (n,).

    ``x`` may be sparse. ``weights`` (n,) are weights of the samples. The result has a row for every
    code up to the largest one, and at least ``n_groups`` rows.
    """
    n, size = len(codes), max(n_groups, codes.max(initial=-1) + 1)
    mass = np.ones(n) if weights is None else weights
    member = sparse.csr_array((mass, (codes, np.arange(n))), shape=(size, n))
    sums = member @ x
    return np.asarray(sums.toarray() if sparse.issparse(sums) else sums)


def group_means(
    x: Any, codes: np.ndarray, n_groups: int = 0, weights: np.ndarray | None = None
) -> np.ndarray:
    """Means (n_groups, m) of samples by group; NaN for empty groups.

    See `group_sums` for the parameters.
    """
    sizes = np.bincount(codes, weights, minlength=n_groups)
    return group_sums(x, codes, n_groups, weights) / sizes[:, None]


def within_group_inverse(design: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Pseudo-inverse (m, n) of a design matrix (n, m) whose columns are centred within groups.

    The product of the pseudo-inverse and samples (n, p) has the coefficients (m, p) of a
    least-squares fit with a constant per group. Columns that the ``groups`` (n,) determine get
    coefficients of 0.
    """
    centred = design - group_means(design, groups)[groups]
    scale = np.sqrt((design**2).sum(0))
    scale[scale == 0] = 1
    left, values, right = np.linalg.svd(centred / scale, full_matrices=False)
    inverse = np.divide(1, values, out=np.zeros_like(values), where=values > _DETERMINED)
    return (right.T * inverse) @ left.T / scale[:, None]


def observed_means(x: Any, codes: np.ndarray, n_groups: int = 0) -> np.ndarray:
    """Means (n_groups, m) of the observed values (not NaN) of samples (n, m) by group.

    A group without observed values has the mean NaN.
    """
    if sparse.issparse(x) or not (missing := np.isnan(x)).any():
        return group_means(x, codes, n_groups)
    sums = group_sums(np.where(missing, 0.0, x), codes, n_groups)
    with np.errstate(invalid="ignore"):
        return sums / group_sums(~missing, codes, n_groups)


def cross_table(
    first: np.ndarray,
    second: np.ndarray,
    shape: tuple[int, int],
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Contingency table of two labelings ``first`` and ``second`` (n,), integers from 0.

    ``shape`` are the numbers of labels of both labelings. ``weights`` (n,) are weights of the
    samples.
    """
    cells = np.bincount(first * shape[1] + second, weights, minlength=shape[0] * shape[1])
    return cells.reshape(shape)


def merge_small_groups(
    names: Sequence[str], codes: np.ndarray, most: int
) -> tuple[list[str], np.ndarray]:
    """Merge the smallest groups into one; return names and codes (n,) of at most ``most`` groups.

    ``names`` are the names of all groups, and ``codes`` (n,) the groups of the samples.
    """
    if len(names) <= most:
        return [*names], codes
    retained = np.sort(np.argsort(-np.bincount(codes), kind="stable")[: most - 1])
    new_code = np.full(len(names), most - 1)
    new_code[retained] = np.arange(most - 1)
    return [*(names[g] for g in retained), f"{len(names) - most + 1} others"], new_code[codes]


def shares_differ(table: np.ndarray) -> bool:
    """Whether cluster shares differ between known groups, significantly and by a relevant amount.

    The shares differ if the p-value of a chi-square test of independence is below 1e-4, and if
    Cramer's V is above 0.1.

    Parameters
    ----------
    table : (L, K) number of samples in L known groups and K clusters
    """
    association, p = association_test(table)
    return p < _LEVEL and association > _ASSOCIATION


def describe_single_groups(table: np.ndarray) -> str:
    """Message on clusters that lie, except for a few samples, in one known group; else empty.

    Such a cluster has at least 95 % of its samples in one group, significantly and clearly more
    than the share of the group among all samples.

    Parameters
    ----------
    table : (L, K) number of samples in L known groups and K clusters
    """
    sizes, shares = table.sum(0), table.sum(1) / max(table.sum(), 1)
    if min((sizes > 0).sum(), (shares > 0).sum()) < 2:
        return ""
    group, most = table.argmax(0), table.max(0)
    inside = most / np.maximum(sizes, 1)
    p = binom.sf(np.rint(most) - 1, np.rint(sizes), shares[group])
    clear = (inside >= _SINGLE_SHARE) & (inside - shares[group] >= _SINGLE_EXCESS)
    alone = np.flatnonzero(clear & (p < _SINGLE_LEVEL))
    if not alone.size:
        return ""
    some = f" (at least {100 * _SINGLE_SHARE:.0f} % of their samples)"
    return (
        f"{alone.size} cluster(s) lie in one known group only"
        f"{some * bool((inside[alone] < 1).any())}, such as cluster {alone[0]}; such a cluster may "
        "be a part of the known structure; compare clusters and groups in a contingency table"
    )


def association_test(table: np.ndarray) -> tuple[float, float]:
    """Cramer's V of a contingency table (L, K), and the p-value of independence (chi-square)."""
    table = table[table.sum(1) > 0][:, table.sum(0) > 0].astype(float)
    rank = min(table.shape) - 1
    if rank < 1:
        return 0.0, 1.0
    n = table.sum()
    expected = table.sum(1, keepdims=True) * table.sum(0) / n
    statistic = float(((table - expected) ** 2 / expected).sum())
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return float(np.sqrt(statistic / (n * rank))), float(chi2.sf(statistic, freedom))
