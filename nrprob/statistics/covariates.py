"""Warn of clusters that depend on known covariates, whose effects may not be linear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nrprob.exceptions import warn
from nrprob.statistics.groups import association_test, cross_table

_N_INTERVALS, _LEAST_SAMPLES = 8, 5  # intervals of a covariate, and minimum samples per interval
_LEVEL, _LEAST_ASSOCIATION = 1e-4, 0.3  # level of the chi-square test, and minimum of Cramer's V


def warn_of_covariates(covariates: np.ndarray, names: Sequence[Any], labels: np.ndarray) -> None:
    """Warn of the covariate on which the clusters depend most, if this dependence is strong.

    The clusters are compared with intervals of the covariate that have equally many samples. The
    dependence is strong if independence is rejected and Cramer's V is above 0.3.

    Parameters
    ----------
    covariates : (n, q) known covariates
    names : (q,) names of the covariates
    labels : (n,) clusters, negative for samples without a cluster
    """
    assigned = labels >= 0
    codes = np.unique(labels[assigned], return_inverse=True)[1]
    n_intervals = min(_N_INTERVALS, codes.size // _LEAST_SAMPLES)
    if n_intervals < 2 or codes.max() == 0:
        return
    strongest, name = 0.0, None
    for j in range(covariates.shape[1]):
        values = covariates[assigned, j]
        edges = np.unique(np.quantile(values, np.arange(1, n_intervals) / n_intervals))
        intervals = np.searchsorted(edges, values, side="right")
        association, p = association_test(
            cross_table(intervals, codes, (len(edges) + 1, int(codes.max()) + 1))
        )
        if p < _LEVEL and association > max(strongest, _LEAST_ASSOCIATION):
            strongest, name = association, names[j]
    if strongest:
        warn(
            "clusters depend on a known covariate, whose effect may not be linear; got Cramer's V "
            f"of {strongest:.2f} between the clusters and intervals of {name!r}; plot the clusters "
            "against it, and add its square to known, or pass its intervals as labels"
        )
