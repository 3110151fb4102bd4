"""Base class of multi-view estimators: validation of the input, and fitted attributes.

n is the number of rows, and d the number of features of a view.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob import metrics
from nrprob.estimator.base import Clusterer
from nrprob.estimator.capabilities import Capabilities
from nrprob.methods.mdl.views import check_tables, cut_views, is_view_list


class ViewClusterer(Clusterer):
    """Base class of clusterers of the same rows in several views.

    The views are a list of tables, or one table with the views side by side. Subclasses have the
    parameter ``views``. Subclasses set ``alternatives_`` (labels by view) and `_single` (whether
    the input is one table with one view). Subclasses also set `_runs`, which has every variable of
    ``restarts_`` as an array over all restarts.
    """

    capabilities = Capabilities(
        pairs=True, predicts_classes=False, views=True, finds_number=True, alone=True
    )
    _many_clusters = False
    alternatives_: np.ndarray
    _single: bool
    _runs: dict[str, np.ndarray]

    def fit(self, X, y=None, *, known=None, must_link=None, cannot_link=None):  # type: ignore[override]
        """Cluster the rows of all views.

        Parameters
        ----------
        X : list of array-like of shape (n_samples, n_features), one per view
            The same rows in every view. A single table is one view; with ``views``, it holds
            several views side by side. Computation is in float32 if all input is float32, and
            otherwise in float64.
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown: classes that the clusters of the first view encode. A
            class may have several clusters. Few labels decide between descriptions of nearly equal
            length, and rarely overrule the features.
        known : array-like of shape (n_samples,) or (n_samples, n_labelings), optional
            Known groups. Continuous features have additive effects of the groups, which are fitted
            together with the clusters. Binary features and counts have separate frequencies in
            every pair of a cluster and a group.
        must_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows that share a cluster of the first view.
        cannot_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows in different clusters of the first view.

        Returns
        -------
        self

        Raises
        ------
        InfeasibleConstraints
            A ValueError, if no clustering satisfies the hard constraints.
        ValueError
            If the data do not fit the parameters; the message says what to change.
        """
        return self._fit(X, y, known=known, must_link=must_link, cannot_link=cannot_link)

    def _split_views(self, X: Any, *, reset: bool) -> list[np.ndarray]:
        """Check the input ``X``; return the rows (n, d) of every view as arrays of one dtype.

        ``reset`` states whether to store the number of features, as in a fit.
        """
        if not is_view_list(X):
            x = self._check_rows(X, reset=reset)
            return [x] if self.views is None else cut_views(x, self.views)
        if self.views is not None:
            raise ValueError(f"views splits a single table; got {len(X)} tables; leave views out")
        tables = check_tables(X, self)
        if reset:
            self.n_features_in_ = sum(x.shape[1] for x in tables)
        return tables

    def _sizes_per_view(self, name: str, value: Any, n_views: int, most: int) -> tuple[int, ...]:
        """Check the parameter ``name``, and return one number of clusters per view.

        ``value`` is one number for all views, or one number per view, at most ``most``.
        """
        if isinstance(value, np.ndarray | list | tuple):
            sizes = tuple(value)
            if len(sizes) != n_views:
                raise ValueError(
                    f"{name} must hold one number per view; got {len(sizes)} for {n_views} "
                    "view(s); pass that many, or one for all"
                )
        else:
            sizes = (value,) * n_views
        for size in sizes:
            self._check_number(name, size, low=1, high=most, integer=True)
        return tuple(int(size) for size in sizes)

    @property
    def labels_(self):  # type: ignore[override]
        """Cluster of every row in the first view."""
        if "alternatives_" not in vars(self):
            raise AttributeError("labels_ is an attribute of fitted models; call fit first")
        return self.alternatives_[:, 0]

    @property
    def restarts_(self):
        """All restarts of the selected configuration: an `xarray.Dataset`."""
        check_is_fitted(self)
        import xarray

        dims: Any = {"labels": ("restart", "sample", "view")}
        data = {name: (dims.get(name, ("restart",)), a) for name, a in self._runs.items()}
        return xarray.Dataset(data)

    def matching_rate(self):
        """Share of rows with the same cluster in two views, after the labels are matched.

        Returns
        -------
        float, or ndarray of shape (n_views, n_views) for more than two views
            See `nrprob.metrics.matching_rate`.
        """
        check_is_fitted(self)
        labels = self.alternatives_
        n_views = labels.shape[1]
        if n_views == 2:
            return metrics.matching_rate(*labels.T)
        rates = np.ones((n_views, n_views))
        for v, u in itertools.combinations(range(n_views), 2):
            rates[v, u] = rates[u, v] = metrics.matching_rate(labels[:, v], labels[:, u])
        return rates

    def predictive_rate(self, truth) -> float:
        """Share of rows whose class is the most frequent class in their combination of clusters.

        A combination has one cluster of every view.

        Parameters
        ----------
        truth : sequence of shape (n_samples,)
            Classes of the rows of `fit`.

        Returns
        -------
        float
            See `nrprob.metrics.predictive_rate`.
        """
        check_is_fitted(self)
        return metrics.predictive_rate(self.alternatives_, truth)

    def predict_proba(self, X, *, known=None):  # type: ignore[override]
        """One-hot encoding of the labels that `predict` returns.

        Parameters
        ----------
        X, known : as in `predict`

        Returns
        -------
        list of ndarray of shape (n_samples, n_clusters), one per view
            For a single table, one ndarray.
        """
        labels = self.predict(X, known=known)
        sizes = [m.size for m in self.margins_]
        if self._single:
            return np.eye(sizes[0])[labels]
        return [np.eye(k)[z] for k, z in zip(sizes, labels.T, strict=True)]
