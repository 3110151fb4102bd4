"""Cross-partition clustering in plain NumPy: an independent reference for tests.

This module does not import the package. One cycle is written out by hand, row by row and in logs,
from Marx, PhD thesis, figures 5.5 and 5.7, with their errata corrected.

Conventions
-----------
* ``counts`` (n, m) and ``subsets`` (n, V), rows of which sum to 1 and may be soft.
* ``log_q`` (n, k): log p(c|x). ``log_weight`` (k,): log p*(c), for the variants that carry it.
* A feature that does not occur in a subset is omitted from the geometric mean.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

VARIANTS = {"CP": (False, False), "I": (True, False), "II": (False, True), "III": (True, True)}


class Data(NamedTuple):
    """p(x), p(y|x) and p(w|x)."""

    mass: np.ndarray
    rows: np.ndarray
    subsets: np.ndarray


class Cycle(NamedTuple):
    """The four distributions of a cycle, all in logs."""

    projected: np.ndarray  # (V, k, m) log p(y|c,w), NaN for a feature that the subset lacks
    feature: np.ndarray  # (k, m) log p*(c|y)
    weight: np.ndarray  # (k,) log p*(c)
    centroid: np.ndarray  # (k, m) log p*(y|c)
    log_q: np.ndarray  # (n, k) the new memberships


def data(counts, subsets):
    counts = np.asarray(counts, float)
    totals = counts.sum(1)
    return Data(totals / totals.sum(), counts / totals[:, None], np.asarray(subsets, float))


def _log(a):
    with np.errstate(divide="ignore"):
        return np.log(a)


def projections(d, log_q):
    """CP2: p(y|c,w)."""
    n_subsets, k = d.subsets.shape[1], log_q.shape[1]
    out = np.full((n_subsets, k, d.rows.shape[1]), np.nan)
    for w in range(n_subsets):
        member = _log(d.mass) + _log(d.subsets[:, w])
        present = (d.rows[d.subsets[:, w] > 0] > 0).any(0)
        for c in range(k):
            log_r = member + log_q[:, c]
            log_r = log_r - logsumexp(log_r)
            out[w, c, present] = logsumexp(log_r[:, None] + _log(d.rows[:, present]), axis=0)
    return out


def feature_step(d, projected, eta, log_weight=None):
    """CP*1: p*(c|y)."""
    logit = eta * np.nansum((d.mass @ d.subsets)[:, None, None] * projected, axis=0)
    if log_weight is not None:
        logit = logit + log_weight[:, None]
    return logit - logsumexp(logit, axis=0)


def centroid_step(d, feature):
    """CP*2: p*(c), and p*(y|c)."""
    joint = feature + _log(d.mass @ d.rows)
    weight = logsumexp(joint, axis=1)
    return weight, joint - weight[:, None]


def row_step(d, centroid, beta, log_prior=None):
    """CP1: p(c|x)."""
    log_r = beta * d.rows @ np.where(np.isfinite(centroid), centroid, 0).T
    if log_prior is not None:
        log_r = log_r + log_prior
    return log_r - logsumexp(log_r, axis=1, keepdims=True)


def cycle(d, log_q, beta, eta, *, variant="CP", log_weight=None):
    feature_prior, row_prior = VARIANTS[variant]
    projected = projections(d, log_q)
    feature = feature_step(d, projected, eta, log_weight if feature_prior else None)
    weight, centroid = centroid_step(d, feature)
    prior = logsumexp(_log(d.mass)[:, None] + log_q, axis=0) if row_prior else None
    return Cycle(projected, feature, weight, centroid, row_step(d, centroid, beta, prior))


def term_rows(d, log_q, centroid, beta, log_prior=None):
    """F of CP1 for any memberships: -H(C|X) + beta times cross entropy, minus the prior."""
    q = d.mass[:, None] * np.exp(log_q)
    cost = log_q - beta * d.rows @ np.where(np.isfinite(centroid), centroid, 0).T
    return (q * (cost if log_prior is None else cost - log_prior)).sum()


def term_projections(d, log_q, projected):
    """F of CP2 for any p(y|c,w)."""
    total = 0.0
    for w in range(d.subsets.shape[1]):
        joint = ((d.mass * d.subsets[:, w])[:, None] * np.exp(log_q)).T @ d.rows
        total -= (joint * np.nan_to_num(projected[w])).sum()
    return total


def term_features(d, feature, projected, eta, log_weight=None):
    """F of CP*1 for any p*(c|y)."""
    joint = np.exp(feature) * (d.mass @ d.rows)
    cost = feature - eta * np.nansum((d.mass @ d.subsets)[:, None, None] * projected, axis=0)
    return (joint * (cost if log_weight is None else cost - log_weight[:, None])).sum()


def term_centroids(d, feature, centroid):
    """F of CP*2 for any p*(y|c)."""
    joint = np.exp(feature) * (d.mass @ d.rows)
    return -(joint * np.where(np.isfinite(centroid), centroid, 0)).sum()


def split_operator(d, log_q, cluster, eta):
    """Effect of one cycle at beta = 1 on the log ratio (n,) of two copies of a cluster."""
    projected = projections(d, log_q)
    feature = feature_step(d, projected, eta)
    m = np.exp(centroid_step(d, feature)[1][cluster])
    total = np.zeros((d.rows.shape[1], len(d.rows)))
    weights = d.mass @ d.subsets
    for w, weight in enumerate(weights):
        pi = d.mass * np.exp(log_q[:, cluster]) * d.subsets[:, w]
        pi = pi / pi.sum()
        p = np.exp(projected[w, cluster])
        centred = np.diag(pi) - np.outer(pi, pi)
        total += np.where(np.isnan(p), 0, weight / p)[:, None] * (d.rows.T @ centred)
    return eta * d.rows @ (total - m @ total)
