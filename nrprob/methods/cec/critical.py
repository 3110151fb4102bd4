"""Critical weight of the labels, below which classes merge."""

from __future__ import annotations

import numpy as np

from nrprob.information import entropy
from nrprob.methods.cec.inputs import Prepared

BETA0_GAUSSIAN_CUT = 0.26977  # of two halves of one normal distribution: 1 + ln(1 - 2/pi) / ln 4
_RIDGE = 1e-6  # of the columns' variances; added to covariances, as the theorem's bound asks


def critical_betas(prepared: Prepared, fixed: np.ndarray, covariance: str) -> np.ndarray:
    r"""Weights of labels (c, c) from which on it does not pay to merge two classes.

    .. math:: \beta_0 = 1 + \frac{\sum_i p_i (G_i - G)}{H(p)}

    with the shares p of the two among their labelled rows, and half the log determinants G of the
    covariances of each and of both together, or what other families have for it (the source's
    equation (14)). It is at most 1. NaN on the diagonal, and for classes without rows.

    Parameters
    ----------
    prepared : the rows
    fixed : (n,) class of every row, or -1
    covariance : the family
    """
    n_classes = int(fixed.max()) + 1
    members = [prepared.x[fixed == c] for c in range(n_classes)]
    sizes = np.array([len(rows) for rows in members])
    means = np.stack([rows.mean(0) if len(rows) else prepared.ridge for rows in members])
    scatters = np.stack(
        [(rows - mean).T @ (rows - mean) for rows, mean in zip(members, means, strict=True)]
    )
    ridge = np.diag(_RIDGE / prepared.metric)

    def model(scatter: np.ndarray, size: float) -> float:
        spread = scatter / size + ridge
        if covariance == "full":
            return 0.5 * float(np.linalg.slogdet(spread)[1])
        if covariance == "diag":
            return 0.5 * float(np.log(np.diag(spread)).sum())
        if covariance == "spherical":
            return 0.5 * len(spread) * float(np.log(np.trace(spread)))
        return 0.5 * float(np.trace(spread))

    out = np.full((n_classes, n_classes), np.nan)
    for i in range(n_classes):
        for j in range(i):
            if not sizes[i] or not sizes[j]:
                continue
            both = sizes[i] + sizes[j]
            p = sizes[[i, j]] / both
            apart = means[i] - means[j]
            merged = scatters[i] + scatters[j] + both * p.prod() * np.outer(apart, apart)
            parts = p @ [model(scatters[c], sizes[c]) for c in (i, j)]
            out[i, j] = out[j, i] = 1 + (parts - model(merged, both)) / entropy(p)
    return out
