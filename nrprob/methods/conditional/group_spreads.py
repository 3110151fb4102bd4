"""Warn of known groups that differ in the spread of their samples.

The model has one covariance of the errors for all known groups. If one group has larger errors than
other groups, its samples may form separate clusters.

Sizes: n samples, d numeric columns, L known groups, K clusters.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import kruskal

from nrprob.exceptions import warn
from nrprob.statistics.groups import group_means

_MAX_SAMPLES = 1 << 14  # largest number of samples, evenly spaced, that are compared
_LEAST_SIZE = 20  # smaller groups are not compared
_LEAST_RATIO = 2.0  # smallest ratio of the spreads of two groups for a warning
_LEVEL = 1e-4  # largest p-value for a warning
_ROUNDING = 1e-9  # largest error of samples that agree up to rounding, in standard deviations


def warn_of_group_spreads(residuals: np.ndarray, labels: np.ndarray, codes: np.ndarray) -> None:
    """Warn if some known groups have errors that are twice as large as in other groups.

    The error of a sample is its distance from the centre of its cluster and known group, with
    columns divided by their standard deviations. The spread of a group is the median error of its
    samples. The difference must be significant in the test of Kruskal and Wallis. Groups without
    any errors, such as copies of one sample, get a separate warning.

    Parameters
    ----------
    residuals : (n, d) samples minus the effects of their known groups
    labels : (n,) clusters of the samples, from 0 to K - 1
    codes : (n,) known groups of the samples, from 0 to L - 1
    """
    rows = np.linspace(0, len(labels) - 1, min(len(labels), _MAX_SAMPLES)).astype(int)
    residuals, labels, codes = residuals[rows], labels[rows], codes[rows]
    scale = residuals.std(0)
    if not scale.any():
        return
    errors = residuals[:, scale > 0] / scale[scale > 0]
    # Measure distances from centres within groups, so that wrong group effects do not add to them.
    _, pair = np.unique(labels * (codes.max() + 1) + codes, return_inverse=True)
    sizes = np.bincount(pair)
    centres = group_means(errors, pair, len(sizes))
    distance = np.sqrt(((errors - centres[pair]) ** 2).mean(1))
    # A sample alone in its cluster and group has no error.
    counted = sizes[pair] > 1
    distance, codes = distance[counted], codes[counted]
    groups = np.flatnonzero(np.bincount(codes) >= _LEAST_SIZE)
    if len(groups) < 2:
        return
    by_group = [distance[codes == g] for g in groups]
    # Groups of equal samples have no spread to compare.
    n_equal = sum(group.max() <= _ROUNDING for group in by_group)
    if 0 < n_equal < len(by_group):
        warn(
            f"{n_equal} known group(s) have the same values in all samples of a cluster; got one "
            "covariance for all groups, which these samples make too small; leave these groups out"
        )
        return
    spreads = np.array([np.median(group) for group in by_group])
    low, high = spreads.min(), spreads.max()
    if low <= _ROUNDING or high < _LEAST_RATIO * low or kruskal(*by_group).pvalue > _LEVEL:
        return
    warn(
        f"samples of some known groups vary {high / low:.1f} times as much as samples of other "
        "groups; got one covariance for all groups; compare with a fit of columns that are divided "
        "by their standard deviations within known groups"
    )
