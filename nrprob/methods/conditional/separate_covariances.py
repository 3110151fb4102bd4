"""Warn if one covariance per cluster would fit much better, and change the clusters.

Sizes: n samples, d numeric columns, K clusters, q principal components.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.stats import skew
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from nrprob.exceptions import warn

_MAX_SAMPLES = 2000  # largest number of samples, evenly spaced, that are fitted
_SAMPLES_PER_COMPONENT = 8  # smallest number of samples per cluster and principal component
_RIDGE = 0.02  # added to the variances of whitened samples
_MAX_ITER = 60
# A fit warns if separate covariances gain more than this times their BIC penalty, and if the new
# clusters have a smaller adjusted Rand index with the clusters of the fit.
_LEAST_GAIN, _LEAST_AGREEMENT = 2.0, 0.7
# More skewed residuals resemble clusters of different covariances. Skewed columns have a warning of
# their own (`skewed_features`).
_MOST_SKEWED = 1.5


def warn_of_separate_covariances(
    residuals: np.ndarray, labels: np.ndarray, n_clusters: int
) -> None:
    """Warn if a covariance matrix per cluster fits much better, and changes the clusters.

    Two Gaussian mixtures continue from the clusters of the fit: one with a common covariance, and
    one with a covariance per cluster.

    Parameters
    ----------
    residuals : (n, d) samples minus the effects of their known groups
    labels : (n,) clusters of the fit, from 0 to K - 1
    n_clusters : number K of clusters
    """
    sizes = np.bincount(labels, minlength=n_clusters)
    if n_clusters < 2 or sizes.min() < 2:
        return
    rows = np.linspace(0, len(labels) - 1, min(len(labels), _MAX_SAMPLES)).astype(int)
    y, labels = _whiten(residuals[rows], n_clusters), labels[rows]
    q = y.shape[1]
    if q == 0 or np.abs(skew(residuals[rows], axis=0)).max() > _MOST_SKEWED:
        return
    common, _ = _continue_fit(y, labels, n_clusters, "tied")
    separate, new_labels = _continue_fit(y, labels, n_clusters, "full")
    penalty = (n_clusters - 1) * q * (q + 1) / 4 * np.log(len(y))
    agreement = adjusted_rand_score(labels, new_labels)
    if separate - common > _LEAST_GAIN * penalty and agreement < _LEAST_AGREEMENT:
        warn(
            f"a covariance matrix per cluster gains {separate - common:.0f} nats over one common "
            f"matrix and changes the clusters (adjusted Rand index {agreement:.2f}); got one "
            "matrix for all clusters; compare with the clusters of MixtureEM for transform(X, "
            "known=known)"
        )


def _whiten(residuals: np.ndarray, n_clusters: int) -> np.ndarray:
    """Leading principal components (n, q) of the standardised residuals, with unit variance.

    At most max(1, n / (8 K)) components remain.
    """
    n, d = residuals.shape
    centred = residuals - residuals.mean(0)
    scale = centred.std(0)
    left, singular, _ = np.linalg.svd(centred / np.where(scale > 0, scale, 1), full_matrices=False)
    rank = int((singular > 1e-6 * max(singular[0], 1e-300)).sum())
    q = min(d, rank, max(1, n // (_SAMPLES_PER_COMPONENT * n_clusters)))
    return left[:, :q] * np.sqrt(n)


def _continue_fit(
    y: np.ndarray, labels: np.ndarray, n_clusters: int, covariance: str
) -> tuple[float, np.ndarray]:
    """Log likelihood and labels (n,) of a Gaussian mixture that starts from given clusters.

    ``y`` (n, q) are whitened samples, and ``covariance`` is "tied" or "full".
    """
    n, q = y.shape
    member = np.eye(n_clusters)[labels]
    sizes = np.maximum(member.sum(0), 1)
    means = member.T @ y / sizes[:, None]
    within = y - means[labels]
    pooled = within.T @ within / n
    scatter = np.stack([(within * column[:, None]).T @ within for column in member.T])
    # The initial covariance of a cluster is shrunk towards the pooled covariance, with the weight
    # of q + 2 samples.
    separate = (scatter + (q + 2) * pooled) / (sizes + q + 2)[:, None, None]
    initial = pooled if covariance == "tied" else separate
    mixture = GaussianMixture(
        n_clusters, covariance_type=covariance, reg_covar=_RIDGE, max_iter=_MAX_ITER,
        weights_init=sizes / sizes.sum(), means_init=means,
        precisions_init=np.linalg.inv(initial + _RIDGE * np.eye(q)),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(y)
    return float(mixture.score(y) * n), mixture.predict(y)
