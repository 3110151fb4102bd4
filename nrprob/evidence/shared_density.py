"""Gaussian mixture with one covariance, for clusterers without a density.

Shapes: n samples, m features, k clusters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, clone

from nrprob.evidence.held_out import default_init
from nrprob.evidence.null_model import shrunk_inverse_root
from nrprob.statistics.groups import group_sums

# Clusters are flexible if the smallest share of samples is below this multiple of 1 / n_clusters: a
# small cluster can adapt to a few samples.
_SMALL_SHARE = 0.5
_SHARED_PARAMETERS = ("n_clusters", "n_init", "random_state")


class SharedCovarianceMixture(BaseEstimator):
    """Gaussian mixture with one covariance, whose components are the clusters of any clusterer.

    The means of the known groups are subtracted from the samples. The component means and weights
    are the means and shares of the clusters. The covariance within clusters is shrunk by the rule
    of Ledoit and Wolf. `predict` returns the most probable component, so the clusterer needs no
    method `predict`. The class implements `nrprob.estimator.density.DensityEstimator`.

    Parameters
    ----------
    estimator : unfitted clusterer, whose ``fit(X, known=...)`` sets ``labels_``
    n_clusters, n_init, random_state : replace the parameters of the clusterer with these names
    """

    def __init__(
        self, estimator: Any, n_clusters: int = 2, n_init: int = 1, random_state: Any = None
    ):
        self.estimator = estimator
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.random_state = random_state

    @classmethod
    def from_estimator(cls, estimator: Any) -> SharedCovarianceMixture:
        """Build the mixture for a fitted or unfitted clusterer.

        The parameters ``n_clusters``, ``n_init`` and ``random_state`` are taken from the clusterer.
        """
        unfitted = clone(estimator)
        parameters = unfitted.get_params(deep=False)
        return cls(
            unfitted,
            parameters["n_clusters"],
            parameters.get("n_init", 1),
            parameters.get("random_state"),
        )

    def clone_for_tests(self) -> SharedCovarianceMixture:
        """Return an unfitted copy."""
        return clone(self)

    def fit(self, X: np.ndarray, y: Any = None, *, known: np.ndarray | None = None) -> Any:
        """Cluster samples ``X`` (n, m), and estimate the parameters of the mixture.

        ``known`` (n,) are known groups as integers.
        """
        labels = np.zeros(len(X), int)
        if self.n_clusters > 1:
            model = clone(self.estimator)
            parameters = model.get_params(deep=False)
            shared = {
                name: getattr(self, name) for name in _SHARED_PARAMETERS if name in parameters
            }
            model.set_params(**default_init(model), **shared).fit(
                X, **({} if known is None else {"known": known})
            )
            labels = np.unique(model.labels_, return_inverse=True)[1]
        # Means of the known groups, then weights, means and covariance of the components.
        groups = np.zeros(len(X), int) if known is None else known
        self._effects = group_sums(X, groups) / np.maximum(np.bincount(groups), 1)[:, None]
        residuals = X - self._effects[groups]
        membership = np.eye(labels.max() + 1)[labels]
        self._weights = membership.mean(0)
        self._centres = membership.T @ residuals / membership.sum(0)[:, None]
        self._inverse_root = shrunk_inverse_root(residuals - self._centres[labels])
        return self

    def residuals_of(self, X: np.ndarray, *, known: np.ndarray | None = None) -> np.ndarray:
        """Residuals (n, m): samples minus the mean of their known group."""
        return X - self._effects[np.zeros(len(X), int) if known is None else known]

    def _log_joint(self, y: np.ndarray) -> np.ndarray:
        """Joint log density (n, k) of residuals ``y`` (n, m) and each cluster."""
        white, centres = y @ self._inverse_root, self._centres @ self._inverse_root
        squares = ((white[:, None] - centres) ** 2).sum(2)
        log_det = np.linalg.slogdet(self._inverse_root)[1]
        return (
            np.log(self._weights) - 0.5 * squares + (log_det - y.shape[1] / 2 * np.log(2 * np.pi))
        )

    def log_density_of(
        self, X: np.ndarray, *, known: np.ndarray | None = None, scale: np.ndarray | None = None
    ) -> np.ndarray:
        """Log density (n,) of samples (n, m); ``scale`` (n,) multiplies their residuals."""
        y = self.residuals_of(X, known=known)
        y = y if scale is None else y * scale[:, None]
        return logsumexp(self._log_joint(y), axis=1)

    def predict(self, X: np.ndarray, *, known: np.ndarray | None = None) -> np.ndarray:
        """Return the most probable cluster (n,) of samples under the mixture."""
        return self._log_joint(self.residuals_of(X, known=known)).argmax(1)

    def mixture_covariance(self) -> np.ndarray:
        """Covariance (m, m) of the mixture."""
        root = np.linalg.inv(self._inverse_root)
        return root.T @ root + (self._centres.T * self._weights) @ self._centres

    def has_flexible_clusters(self) -> bool:
        """Return whether there are more than two clusters, or a cluster with few samples."""
        k = self._weights.size
        return k > 2 or bool(self._weights.min() < _SMALL_SHARE / k)
