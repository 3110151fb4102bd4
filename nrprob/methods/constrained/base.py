"""What the estimators that take pairs of rows have in common."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from nrprob.estimator.terms import TermEstimator
from nrprob.exceptions import DegenerateClusterWarning
from nrprob.methods.constrained.links import check_cannot_link, check_pairs
from nrprob.validation import check_same_order

Pair = tuple[np.ndarray, np.ndarray]


class PairEstimator(TermEstimator):
    """Clusterer of dense rows whose ``fit`` takes ``must_link`` and ``cannot_link``."""

    # What the base class reads; there is nothing to choose.
    solver = "sequential"
    _solvers: tuple[str, ...] = ()
    _takes_known = False

    def _validate(self, X: Any, *, reset: bool) -> np.ndarray:
        X = np.asarray(X) if isinstance(X, jax.Array) else X
        return self._checked(X, reset=reset)

    def _read(
        self, X: Any, y: Any, must_link: Any, cannot_link: Any
    ) -> tuple[np.ndarray, np.ndarray | None, Pair]:
        """Checked rows, wanted clusters, and pairs."""
        self._check_one_device()
        check_same_order(X, y=y)
        X = self._validate(X, reset=True)
        n = X.shape[0]
        self._check_size(n)
        fixed = self._wanted(y, n)
        return X, fixed, (check_pairs(must_link, n, "must_link"), check_cannot_link(cannot_link, n))

    def _store_labels(self, labels: np.ndarray) -> None:
        self.labels_ = labels
        self.membership_ = np.eye(self.n_clusters)[labels]
        self.n_clusters_ = int(np.unique(labels).size)

    def _warn_of(self, alike: bool) -> None:
        """Warn of too few clusters, and of a run that did not end."""
        k = self.n_clusters
        if alike and k > 1:
            message = "there is no structure in X; all rows are alike"
            warnings.warn(message, DegenerateClusterWarning, stacklevel=4)
        elif self.n_clusters_ < k:
            message = f"found {self.n_clusters_} clusters, fewer than n_clusters={k}"
            warnings.warn(message, DegenerateClusterWarning, stacklevel=4)
        if not self.converged_:
            warnings.warn(
                f"the best restart did not converge; got max_iter={self.max_iter}; raise max_iter",
                ConvergenceWarning,
                stacklevel=4,
            )

    def predict(self, X):  # type: ignore[override]
        """Cluster of new rows, which take part in no pair: the nearest by the measure of `fit`.

        Rows of `fit` may be given another cluster than theirs, since no pair is heeded here.

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
