"""Gaussian density of rows whose inverse-Wishart covariance is integrated out."""

import numpy as np
from scipy.special import multigammaln


def nats(X, between, variance, freedom, power=1.0):
    """Minus the log density of rows (n, d) with covariance ``between`` (n, n).

    ``power`` is the exponent of the density given everything else; ``between`` is already divided
    by it.
    """
    n, d = X.shape
    v, n = d + 1 + freedom, power * n
    scatter = variance * freedom * np.eye(d) + X.T @ np.linalg.solve(between, X)
    return -(
        multigammaln((v + n) / 2, d)
        - multigammaln(v / 2, d)
        - 0.5 * n * d * np.log(np.pi)
        + 0.5 * v * d * np.log(variance * freedom)
        - 0.5 * d * np.linalg.slogdet(between)[1]
        - 0.5 * (v + n) * np.linalg.slogdet(scatter)[1]
    )


def sum_of_offsets(labels, design, kappa, omega):
    """Covariance (n, n) of rows from clusters and known structure, in units of the noise."""
    between = (labels[:, None] == labels) / kappa
    if design.n_groups > 1:
        between = between + (design.codes[:, None] == design.codes) / omega
    if design.columns is not None:
        between = between + design.columns @ design.columns.T / omega
    return between


def nats_of_clusters(covariance, X, each, labels, design, prior, power=1.0):
    """Minus the log density of rows (n, d) given labels; ``each`` (n, n) is their own covariance.

    With "tied", clusters and known structure share a covariance; with "full" and "diag" every
    cluster has its own. ``prior`` has the precisions of centres and of known effects, and the prior
    of the covariance.
    """
    kappa, omega, *rest = prior
    if covariance == "tied":
        return nats(X, each + sum_of_offsets(labels, design, kappa, omega), *rest, power)
    total = 0.0
    for c in np.unique(labels):
        own = np.flatnonzero(labels == c)
        between = each[np.ix_(own, own)] + 1 / kappa
        columns = [X[own]] if covariance == "full" else np.split(X[own], X.shape[1], axis=1)
        total += sum(nats(x, between, *rest, power) for x in columns)
    return total
