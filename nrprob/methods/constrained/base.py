"""What the estimators that take pairs of rows have in common."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from nrprob.estimator.base import DenseClusterer, Renamed
from nrprob.estimator.calls import at_once
from nrprob.methods.constrained.codes import Nodes
from nrprob.methods.constrained.links import (
    Pairs,
    check_cannot_link,
    check_pairs,
    pairs_from_labels,
)
from nrprob.methods.constrained.search import SearchResult
from nrprob.statistics.rows import coarse


@dataclass
class PairTask:
    """Checked input of one fit; nothing of it is compiled ahead.

    Attributes
    ----------
    X : (n, m) rows
    fixed : (n,) clusters of the rows whose cluster is given, else -1; or None
    must_link, cannot_link : (p, 2) rows
    """

    X: np.ndarray
    fixed: np.ndarray | None
    must_link: np.ndarray
    cannot_link: np.ndarray
    calls: tuple = ()

    def kept(self, hard: bool = True) -> tuple[list[Pairs], list[Pairs]]:
        """Must-links and cannot-links that must be kept: the given ones if ``hard``, and labels."""
        must, cannot = [], []
        if hard:
            must.append(Pairs(self.must_link, "must_link"))
            cannot.append(Pairs(self.cannot_link, "cannot_link"))
        if self.fixed is not None:
            same, different = pairs_from_labels(self.fixed)
            must.append(Pairs(same, "y"))
            cannot.append(Pairs(different, "y"))
        return must, cannot


class PairEstimator(DenseClusterer):
    """Clusterer of dense rows whose ``fit`` takes ``must_link`` and ``cannot_link``."""

    centroids_ = Renamed("cluster_centers_")

    def prepare(self, X, y, known=None, *, must_link=None, cannot_link=None) -> PairTask:
        """Check the input; see `Clusterer.prepare`."""
        X, fixed = self._take_in(X, y)
        must_link = check_pairs(must_link, len(X), "must_link")
        return PairTask(X, fixed, must_link, check_cannot_link(cannot_link, len(X)))

    def _run(
        self, search: Callable[..., SearchResult], nodes: Nodes, each: int, n_iter: int
    ) -> SearchResult:
        """All restarts of a search, ``each`` numbers a node and cluster, of so many iterations."""
        size = (nodes.mass.size * each + nodes.near.size * 6) * coarse(self.n_clusters, 4)
        together = at_once(self.n_init, size * nodes.mean.dtype.itemsize)
        # Traces of nearly the same length share a program.
        return jax.device_get(search(together=together, n_trace=64 * math.ceil(n_iter / 64)))

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
