"""Base class of estimators that search for labels under pairwise constraints."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax

from nrprob.engines.placement import small_steps_on_cpu
from nrprob.estimator.base import Renamed
from nrprob.estimator.calls import at_once
from nrprob.estimator.pairs import PairEstimator
from nrprob.methods.constrained.codes import Nodes
from nrprob.methods.constrained.search import SearchResult
from nrprob.statistics.rows import coarse_bucket


class ConstrainedSearch(PairEstimator):
    """Estimator whose restarts are one compiled search over the components of must-links."""

    centroids_ = Renamed("cluster_centers_")

    def _run(
        self, search: Callable[..., SearchResult], nodes: Nodes, each: int, n_iter: int
    ) -> SearchResult:
        """All restarts of a search, ``each`` numbers a node and cluster, of so many iterations."""
        size = (nodes.mass.size * each + nodes.near.size * 6) * coarse_bucket(self.n_clusters, 4)
        together = at_once(self.n_init, size * nodes.mean.dtype.itemsize)
        # Traces of nearly the same length share a program.
        with small_steps_on_cpu():
            return jax.device_get(search(together=together, n_trace=64 * math.ceil(n_iter / 64)))
