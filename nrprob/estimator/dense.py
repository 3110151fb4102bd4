"""Base class of clusterers of dense rows, with optional labels and pairs."""

from __future__ import annotations

import jax
import numpy as np
from scipy.spatial.distance import cdist
from sklearn.utils.validation import check_is_fitted

from nrprob.estimator.base import Clusterer
from nrprob.estimator.unconditional import UnconditionalMixin


class DenseClusterer(Clusterer):
    """Clusterer of dense rows in host memory."""

    def _validate(self, X, *, reset: bool) -> np.ndarray:
        X = np.asarray(X) if isinstance(X, jax.Array) else X
        return self._check_rows(X, reset=reset)


class PlainClusterer(UnconditionalMixin, DenseClusterer):  # type: ignore[misc]
    """Clusterer of dense rows without known structure to avoid; predictions need new rows only.

    New rows are assigned to the nearest of ``cluster_centers_``, unless a class overrides this.
    """

    cluster_centers_: np.ndarray

    def predict(self, X):  # type: ignore[override]
        """Cluster of new rows without labels and pairs: the best by the criterion of `fit`.

        Rows of `fit` may be assigned to another cluster, since predictions ignore labels and pairs.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._log_membership(X, None).argmax(1)

    def predict_proba(self, X):  # type: ignore[override]
        """One-hot form of `predict`.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return np.eye(self.n_clusters)[self.predict(X)]

    def _log_membership(self, X, known) -> np.ndarray:
        """Negative squared distances (n, n_clusters) from the centres of non-empty clusters."""
        check_is_fitted(self)
        X = self._validate(X, reset=False).astype(np.float64)
        square = cdist(X, self.cluster_centers_, "sqeuclidean")
        return np.where(self._holds_rows, -square, -np.inf)
