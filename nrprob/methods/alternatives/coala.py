"""COALA: average linkage under cannot-links between samples of the same known group."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.optimise import merge
from nrprob.estimator import parameters
from nrprob.methods.alternatives.pairs import (
    Approximation,
    Padded,
    PairClusterer,
    Size,
    squares,
)
from nrprob.statistics.features import ALIKE


@jax.jit
def _join(rows: Padded, omega: jax.Array) -> merge.PairMergeResult:
    """Merge; the first table of the entries has the sums of distances."""
    x, alive, codes = rows
    distances = jnp.sqrt(squares(x))
    together = (codes[:, :, None] == codes[:, None]).any(0)

    def score(rows, size, sizes, totals):
        distance = rows[0] / (size * sizes)
        return -jnp.stack([distance, jnp.where(rows[1], jnp.inf, distance)])

    def choose(best):
        # Infinite where no pair is allowed, and then never chosen.
        closest, allowed = -best
        return jnp.where(closest < omega * allowed, 0, 1)

    return merge.agglomerate_pairs((distances, together), alive, score, choose)


@parameters.constructor
class COALA(PairClusterer):
    """COALA: average linkage that keeps rows of one known group apart where that costs little.

    All rows of a known group are pairs that should not share a cluster. At every step, the two
    clusters that are nearest, by the mean distance of their rows, are joined if they are nearer
    than ``omega`` times the nearest two that have no such pair between them; else these are.

    Parameters
    ----------
    <n_clusters>
    omega : float, default=0.6
        How much nearer a merge must be that joins rows of a known group, from 1e-6 to 1. Small
        values ask for clusters unlike the known ones; 1 is average linkage.
    approx : {"subsample"}, optional
        "subsample" merges ``n_subsample`` rows, from all known groups alike, and places the others
        as `predict` does. None does so with a warning where there are more than ``max_exact`` rows.
    max_exact : int, default=10000
        Most rows that are merged exactly, from 2 to 10**6; the tables of pairs of 10,000 rows take
        900 MB in float64, and a fit twice that.
    n_subsample : int, default=1000
        Rows of a sample, from 2 to 10**6.
    random_state : int, RandomState instance or None, default=None
        Determines the sample. All else is deterministic.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot.
    <n_clusters_>
    linkage_ : ndarray of shape (n_merged - 1, 4)
        All merges in SciPy's form. Distances rise and fall, so that heights are ranks of merges.
    merge_distances_ : ndarray of shape (n_merged - 1,)
        Mean distance of the rows of the two clusters of every merge, in the units of ``X``.
    merged_samples_ : ndarray of shape (n_merged,)
        Rows that were merged, the leaves of ``linkage_``: all, unless it is an approximation.
    n_forced_ : int
        Merges down to ``n_clusters`` that joined rows of a known group.
    objective_ : float
        Sum of the distances of the pairs of rows that share a cluster, among those that were
        merged, in the units of ``X``: a yardstick, which the merges do not minimise.
    objective_trace_ : ndarray
        The same after every merge down to ``n_clusters``.
    n_iter_ : int
        Merges down to ``n_clusters``.
    converged_ : bool
        True.
    restarts_ : xarray.Dataset
        Labels and objective: there is one start.
    <n_features_in_>
    <feature_names_in_>

    Notes
    -----
    With r known groups, clusters of more than r rows cannot be without a pair that should be apart:
    what is known acts in the first merges only. Pairs of several labelings are all to be kept
    apart.

    References
    ----------
    Bae and Bailey (2006), as Dang and Bailey (2010) compare with it. The default of ``omega`` is
    this package's own.

    Examples
    --------
    >>> from nrprob import COALA
    >>> from nrprob.datasets import make_planar_shapes
    >>> X, labels = make_planar_shapes(200, random_state=0)
    >>> model = COALA(2).fit(X, known=labels[:, 0])
    >>> bool((model.labels_ == labels[:, 1]).mean() in (0, 1))
    True
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    omega: Annotated[float, parameters.Number(1e-6, 1)] = 0.6
    approx: Approximation = None
    max_exact: Size = 10_000
    n_subsample: Size = 1000
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    # Fitting

    def compute(self, task):
        """Merge; see `Clusterer.compute`."""
        rows = Padded.of(task.x[task.merged], task.codes[task.merged])
        omega = np.asarray(self.omega, rows.x.dtype)
        result = jax.device_get(_join(rows, omega))
        if self.verbose:
            print(f"merged {len(task.merged)} rows")
        return [result]

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        merges = len(task.merged) - 1
        pairs, (sums, forced) = result[0].pairs[:merges], result[0].entries[:merges].T.astype(float)
        self._keep_merges(task, pairs)
        sums = sums * self._scale
        size = np.append(np.ones(merges + 1), self.linkage_[:, 3])
        self.merge_distances_ = sums / size[self.linkage_[:, :2].astype(int)].prod(1)
        steps = max(merges + 1 - self.n_clusters, 0)
        self.n_forced_ = int(forced[:steps].sum())
        trace = np.cumsum([0.0, *sums[:steps]])
        self._found(
            merge.cut_merges(pairs, merges + 1, self.n_clusters),
            trace[-1],
            trace,
            n_iter=steps,
            nothing_left=ALIKE if self._alike else "",
        )
        return self

    # Reading the result

    def cut(self, n_clusters):
        """Labels at another number of clusters, of the same merges.

        Parameters
        ----------
        n_clusters : int
            At most the number of rows that were merged.

        Returns
        -------
        ndarray of shape (n_samples,)
            Numbered by first row. The clusters are unions of those of any cut into more.

        Raises
        ------
        ValueError
            If there are fewer rows than clusters.
        """
        self._check_cut(n_clusters)
        labels = merge.cut_merges(self._pairs, len(self.merged_samples_), n_clusters)
        return self._extended(labels, n_clusters)

    # New rows

    def _scores(self, square, labels, n_clusters):
        """Minus the mean distance (b, n_clusters) from the rows of every cluster."""
        member = np.eye(n_clusters)[labels]
        return -(np.sqrt(square) @ (member / member.sum(0)))
