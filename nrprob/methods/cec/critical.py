"""Critical weight of the labels, below which two classes merge."""

from __future__ import annotations

import numpy as np

from nrprob.information import entropy
from nrprob.methods.cec.inputs import Prepared

# Critical weight of two halves of one normal distribution: 1 + ln(1 - 2/pi) / ln 4, equation (15).
BETA0_GAUSSIAN_CUT = 0.26977
_RIDGE = 1e-6  # part of the columns' variances that is added to covariances, as theorem 4.2 demands


def critical_betas(prepared: Prepared, fixed: np.ndarray, covariance: str) -> np.ndarray:
    r"""For all pairs of c classes, the smallest weight of labels that keeps the classes apart.

    From this weight on, merging the two classes does not lower the objective:

    .. math:: \beta_0 = 1 + \frac{\sum_i p_i (G_i - G)}{H(p)}

    The sum runs over the two classes; :math:`p_i` is the share of class i among their labelled
    rows, and H(p) the entropy of these shares. :math:`G_i` is half the log determinant of the
    covariance of class i, and G the same for both classes together. Covariance families other than
    "full" use the analogous term. This is equation (14) of Śmieja and Geiger (2017).

    Parameters
    ----------
    prepared : the rows
    fixed : (n,) class of every row, -1 where unknown
    covariance : covariance family

    Returns
    -------
    ndarray of shape (c, c)
        Values of at most 1; NaN on the diagonal, and for classes without rows.
    """
    n_classes = int(fixed.max()) + 1
    # Sizes, means and scatters of the classes.
    masses = [np.where(fixed == c, prepared.mass, 0) for c in range(n_classes)]
    sizes = np.array([mass.sum() for mass in masses])
    means = np.stack([mass @ prepared.x / (mass.sum() or 1) for mass in masses])
    scatters = np.stack(
        [
            (mass[:, None] * (prepared.x - mean)).T @ (prepared.x - mean)
            for mass, mean in zip(masses, means, strict=True)
        ]
    )
    ridge = np.diag(_RIDGE / prepared.metric)

    def half_log_det(scatter: np.ndarray, size: float) -> float:
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
            # Scatter of the merged class: within both classes, and between their means.
            both = sizes[i] + sizes[j]
            p = sizes[[i, j]] / both
            apart = means[i] - means[j]
            merged = scatters[i] + scatters[j] + both * p.prod() * np.outer(apart, apart)
            # Equation (14).
            parts = p @ [half_log_det(scatters[c], sizes[c]) for c in (i, j)]
            out[i, j] = out[j, i] = 1 + (parts - half_log_det(merged, both)) / entropy(p)
    return out
