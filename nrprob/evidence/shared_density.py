"""Gaussian density with one covariance for clusterers that define no density."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, clone

from nrprob.evidence.held_out import without_starts
from nrprob.evidence.null_model import shrunk_root
from nrprob.statistics.groups import group_sums

_FEW = (
    0.5  # of an equal share of the rows: a cluster that holds less may be there for a few of them
)


class LabelledClouds(BaseEstimator):
    """The clusters of any clusterer as a `nrprob.estimator.density.DensityEstimator`.

    Of what the means of the known groups leave of the rows it takes the centres of the clusters,
    their shares, and one covariance about them, shrunk as that of a cloud is. New rows are placed
    by this model, so that clusterers that cannot place them are no exception.

    Parameters
    ----------
    estimator : unfitted clusterer, whose ``fit(X, known=...)`` sets ``labels_``
    n_clusters, n_init, random_state : of the clusterer, as far as it has them
    """

    def __init__(
        self, estimator: Any, n_clusters: int = 2, n_init: int = 1, random_state: Any = None
    ):
        self.estimator = estimator
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.random_state = random_state

    @classmethod
    def of(cls, estimator: Any) -> LabelledClouds:
        """As the clusterer is, fitted or not."""
        bare = clone(estimator)
        own = bare.get_params(deep=False)
        return cls(bare, own["n_clusters"], own.get("n_init", 1), own.get("random_state"))

    def fit(self, X: np.ndarray, y: Any = None, *, known: np.ndarray | None = None) -> Any:
        """Cluster rows, and describe the clusters."""
        labels = np.zeros(len(X), int)
        if self.n_clusters > 1:
            model = clone(self.estimator)
            own = model.get_params(deep=False)
            wanted = {name: getattr(self, name) for name in _SHARED if name in own}
            model.set_params(**without_starts(model), **wanted).fit(
                X, **({} if known is None else {"known": known})
            )
            labels = np.unique(model.labels_, return_inverse=True)[1]
        groups = np.zeros(len(X), int) if known is None else known
        self._effects = group_sums(X, groups) / np.maximum(np.bincount(groups), 1)[:, None]
        r = X - self._effects[groups]
        hits = np.eye(labels.max() + 1)[labels]
        self._shares = hits.mean(0)
        self._centres = hits.T @ r / hits.sum(0)[:, None]
        self._root = shrunk_root(r - self._centres[labels])
        return self

    def residuals_of(self, X: np.ndarray, *, known: np.ndarray | None = None) -> np.ndarray:
        """Samples (n, m) less the mean of their known group."""
        return X - self._effects[np.zeros(len(X), int) if known is None else known]

    def _log_densities(self, y: np.ndarray) -> np.ndarray:
        white, centres = y @ self._root, self._centres @ self._root
        squares = ((white[:, None] - centres) ** 2).sum(2)
        log_unit = np.linalg.slogdet(self._root)[1] - y.shape[1] / 2 * np.log(2 * np.pi)
        return np.log(self._shares) - 0.5 * squares + log_unit

    def log_density_of(
        self, X: np.ndarray, *, known: np.ndarray | None = None, scale: np.ndarray | None = None
    ) -> np.ndarray:
        """Log density (n,) of the mixture at samples; ``scale`` multiplies residuals."""
        y = self.residuals_of(X, known=known)
        y = y if scale is None else y * scale[:, None]
        return logsumexp(self._log_densities(y), axis=1)

    def predict(self, X: np.ndarray, *, known: np.ndarray | None = None) -> np.ndarray:
        """Cluster of rows by the model."""
        return self._log_densities(self.residuals_of(X, known=known)).argmax(1)

    def mixture_covariance(self) -> np.ndarray:
        """Covariance (m, m) of the mixture."""
        inverse = np.linalg.inv(self._root)
        return inverse.T @ inverse + (self._centres.T * self._shares) @ self._centres

    def has_flexible_clusters(self) -> bool:
        """Whether there are more than two clusters, or one of them holds few samples."""
        k = self._shares.size
        return k > 2 or bool(self._shares.min() < _FEW / k)


_SHARED = ("n_clusters", "n_init", "random_state")
