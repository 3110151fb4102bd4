"""Base class of estimators that search for labels under pairwise constraints."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax

from nrprob.engines.placement import small_steps_on_cpu
from nrprob.estimator.calls import at_once
from nrprob.estimator.pairs import PairEstimator
from nrprob.methods.mdl.codes import Nodes
from nrprob.methods.mdl.search import SearchResult
from nrprob.statistics.rows import coarse_bucket


class ConstrainedSearch(PairEstimator):
    """Estimator whose restarts are one compiled search over must-link components."""

    def _run_restarts(
        self, search: Callable[..., SearchResult], nodes: Nodes, k: int, per_cell: int, n_iter: int
    ) -> SearchResult:
        """Run all restarts of a search, as many in parallel as fit into memory.

        Parameters
        ----------
        search : the compiled search, without its arguments ``together`` and ``n_trace``
        nodes : must-link components
        k : number of clusters
        per_cell : number of values that a restart stores per component and cluster
        n_iter : maximum number of iterations
        """
        size = (nodes.mass.size * per_cell + nodes.near.size * 6) * coarse_bucket(k, 4)
        together = at_once(self.n_init, size * nodes.mean.dtype.itemsize)
        # Traces are padded to multiples of 64, so that similar lengths share a program.
        with small_steps_on_cpu():
            return jax.device_get(search(together=together, n_trace=64 * math.ceil(n_iter / 64)))
