"""`fit` and predictions of estimators without known structure."""

from __future__ import annotations

from typing import Any, ClassVar

from nrprob.estimator.capabilities import Capabilities


class UnconditionalMixin:
    """Mixin with `fit` and predictions without ``known``; bases list it before `Clusterer`."""

    capabilities: ClassVar[Capabilities] = Capabilities(known=())

    def fit(self, X, y=None):
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like, sparse matrix, JAX array, frame or AnnData of shape (n_samples, n_features)
            Float32 input is computed in float32, and all other input in float64. Some estimators
            also take rows that do not fit into memory; see `nrprob.stored`.
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown. Cluster i corresponds to the i-th of the sorted
            labels; further clusters have no label.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data are invalid, or do not suit the parameters.
        """
        model: Any = self
        return model._fit(X, y)

    def predict(self, X):
        """Predict the cluster of new rows.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
            New rows, or `nrprob.stored` rows if `fit` accepts them.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X)  # type: ignore[misc]

    def predict_proba(self, X):
        """Predict the probabilities of all clusters, given a new row; 0 or 1 for hard labels.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
            New rows, or `nrprob.stored` rows if `fit` accepts them.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return super().predict_proba(X)  # type: ignore[misc]


class WeightedUnconditionalMixin(UnconditionalMixin):
    """Mixin with `fit` and predictions without ``known``; `fit` takes ``sample_weight``."""

    def fit(self, X, y=None, *, sample_weight=None):
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like, sparse matrix, JAX array, frame or AnnData of shape (n_samples, n_features)
            Float32 input is computed in float32, and all other input in float64. Some estimators
            also take rows that do not fit into memory; see `nrprob.stored`.
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown. Cluster i corresponds to the i-th of the sorted
            labels; further clusters have no label.
        sample_weight : array-like of shape (n_samples,), optional
            Frequency weights, from 0 to 1e9: a sample of weight 2 counts as two equal samples, and
            all sizes are sums of weights. Scale weights of another type to a mean of 1. A
            sample of weight 0 takes no part in the fit and gets the label of `predict`. By default,
            all weights are 1.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data are invalid, or do not suit the parameters.
        """
        model: Any = self
        return model._fit(X, y, sample_weight=sample_weight)
