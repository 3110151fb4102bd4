"""Test whether missing values of a column differ between clusters beyond chance.

Shapes: n samples, k clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nrprob.exceptions import short_repr, warn
from nrprob.statistics.groups import group_means

LEVEL = 1e-3  # significance level of the smallest p-value, after Bonferroni correction


def warn_of_missing(
    missing: Mapping[Any, np.ndarray], membership: np.ndarray, groups: np.ndarray
) -> None:
    """Warn if missing values of a column differ between clusters; see `missing_p_values`.

    Parameters
    ----------
    missing : by column name, mask (n,) of missing values
    membership : (n, k) membership probabilities
    groups : (n,) known groups as integers
    """
    missing = {name: mask for name, mask in missing.items() if mask.any()}
    if not missing or membership.shape[1] < 2:
        return
    # Smallest p-value of all columns and clusters, with Bonferroni correction.
    p = np.array([missing_p_values(mask, membership, groups) for mask in missing.values()])
    j, cluster = np.unravel_index(p.argmin(), p.shape)
    if p[j, cluster] * p.size > LEVEL:
        return
    name, mask = list(missing.items())[j]
    weight = membership[:, cluster]
    share = np.average(mask, weights=weight), np.average(mask, weights=1 - weight)
    warn(
        f"missing values differ between clusters beyond chance; got {100 * share[0]:.0f} % of "
        f"{short_repr(name)} missing in cluster {cluster} and {100 * share[1]:.0f} % elsewhere; "
        "compare with a fit without this column, since the reason for missing values may differ "
        "between clusters"
    )


def missing_p_values(mask: np.ndarray, membership: np.ndarray, groups: np.ndarray) -> np.ndarray:
    r"""Upper bounds (k,) of p-values for the independence of missing values and clusters.

    Under the null hypothesis, the samples with missing values are drawn at random without
    replacement within every known group. Let S be the sum of the memberships of these samples in a
    cluster, each minus the mean membership of its known group. S has mean 0, and Bernstein's
    inequality gives

    .. math:: P(|S| \ge t) \le 2 \exp\left(-\frac{t^2}{2 (v + t b / 3)}\right).

    Here t is any positive number, and b the largest absolute value of a centred membership. v is
    the variance of S for draws with replacement (Hoeffding, 1963). Within a known group, S is also
    minus the sum over the samples without missing values. v uses the smaller one of these two
    numbers of draws. Memberships are better than hard labels. Samples whose observed values say
    little about their cluster have centred memberships near 0. With hard labels, such samples would
    all count for the largest cluster.

    Parameters
    ----------
    mask : (n,) whether the value is missing
    membership : (n, k) membership probabilities
    groups : (n,) known groups as integers
    """
    sizes, n_missing = np.bincount(groups), np.bincount(groups, mask)
    centred = membership - group_means(membership, groups)[groups]
    variance = group_means(centred**2, groups)
    total = mask @ centred
    v = np.minimum(n_missing, sizes - n_missing) @ variance
    bound = np.abs(centred).max(0)
    scale = 2 * (v + np.abs(total) * bound / 3)
    exponent = np.divide(total**2, scale, out=np.zeros_like(scale), where=scale > 0)
    return np.minimum(2 * np.exp(-exponent), 1.0)
