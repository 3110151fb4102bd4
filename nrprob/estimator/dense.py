"""Base classes of clusterers of dense rows."""

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
    """Clusterer of dense rows without known structure.

    `predict` assigns new rows to the nearest of ``cluster_centers_``, unless a class overrides
    `_log_membership`.
    """

    cluster_centers_: np.ndarray

    def predict(self, X):  # type: ignore[override]
        """Predict the best cluster of every new row by the criterion of `fit`.

        Predictions ignore partial labels and pairs. Rows of `fit` may therefore get another cluster
        than in ``labels_``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
            New rows.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._log_membership(X, None).argmax(1)

    def predict_proba(self, X):  # type: ignore[override]
        """Predict one-hot memberships: 1 for the cluster of `predict`, and 0 for all others.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
            New rows.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return np.eye(self.n_clusters)[self.predict(X)]

    def _log_membership(self, X, known) -> np.ndarray:
        """Negative squared distances (n_samples, n_clusters) from the cluster centres.

        Empty clusters have the score -inf.
        """
        check_is_fitted(self)
        X = self._validate(X, reset=False).astype(np.float64)
        square = cdist(X, self.cluster_centers_, "sqeuclidean")
        return np.where(self._holds_rows, -square, -np.inf)
