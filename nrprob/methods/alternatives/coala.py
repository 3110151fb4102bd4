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
    squared_distances,
)
from nrprob.statistics.features import ALIKE


@jax.jit
def _merge_clusters(rows: Padded, omega: jax.Array) -> merge.PairMergeResult:
    """Merge all rows by COALA with the threshold ``omega``.

    The result has two entries for every merge: the sum of the distances between the two clusters,
    and whether the merge violates a cannot-link.
    """
    x, alive, codes = rows
    distances = jnp.sqrt(squared_distances(x))
    together = (codes[:, :, None] == codes[:, None]).any(0)

    def merge_scores(rows, size, sizes, totals):
        distance = rows[0] / (size * sizes)
        return -jnp.stack([distance, jnp.where(rows[1], jnp.inf, distance)])

    def choose_merge(best):
        # If every merge violates a cannot-link, ``allowed`` is infinite and never chosen.
        closest, allowed = -best
        return jnp.where(closest < omega * allowed, 0, 1)

    return merge.agglomerate_pairs((distances, together), alive, merge_scores, choose_merge)


@parameters.constructor
class COALA(PairClusterer):
    r"""Average linkage under cannot-links between rows of the same known group (COALA).

    Two rows of the same known group form a cannot-link: they should not share a cluster. COALA
    starts from single rows. With the average-linkage distance

    .. math::
        D(a, b) = \frac{1}{|a| |b|} \sum_{i \in a} \sum_{j \in b} \| x_i - x_j \|

    of clusters a and b, every step compares two candidates: the pair with the smallest distance
    :math:`D_q`, and the pair with the smallest distance :math:`D_o` among those without a
    cannot-link. COALA merges the first pair if :math:`D_q < \omega D_o`, and otherwise the second
    pair.

    Parameters
    ----------
    <n_clusters>
    omega : float, default=0.6
        Threshold :math:`\omega`. Lower it for clusters that differ more from the known groups,
        raise it for more compact clusters; 1 is average linkage. From 1e-6 to 1.
    approx : {"subsample"}, optional
        "subsample" merges ``n_subsample`` rows, stratified by known group, and assigns the other
        rows as `predict` does. With None, COALA merges all rows; if there are more than
        ``max_exact`` rows, it merges a subsample, with a warning.
    max_exact : int, default=10000
        Largest number of rows that COALA merges exactly. The tables of pairs of 10,000 rows take
        900 MB in float64, and a fit twice as much. From 2 to 10**6.
    n_subsample : int, default=1000
        Number of rows of the subsample, from 2 to 10**6.
    random_state : int, RandomState instance or None, default=None
        Determines the subsample; the merges are deterministic.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot form of ``labels_``.
    <n_clusters_>
    linkage_ : ndarray of shape (n_merged - 1, 4)
        All merges in SciPy's format. Heights are ranks of merges, since distances are not monotone.
    merge_distances_ : ndarray of shape (n_merged - 1,)
        Average-linkage distance of each merge, in the units of ``X``.
    merged_samples_ : ndarray of shape (n_merged,)
        Indices of the merged rows, which are the leaves of ``linkage_``.
    n_forced_ : int
        Number of merges down to ``n_clusters`` that violate a cannot-link.
    objective_ : float
        Sum of within-cluster distances over pairs of merged rows, in the units of ``X``. The sum
        serves for comparisons; the merges do not minimise the sum.
    objective_trace_ : ndarray of shape (n_iter + 1,)
        Objective after each merge down to ``n_clusters``.
    n_iter_ : int
        Number of merges down to ``n_clusters``.
    converged_ : bool
        Always True, since all merges are made.
    restarts_ : xarray.Dataset
        Labels and objective of the single run.
    <n_features_in_>
    <feature_names_in_>

    See Also
    --------
    NACI : Hierarchical alternative clustering for clusters of any shape.
    ADFT : Alternative clustering by an inverted metric.

    Notes
    -----
    Merging takes O(n^2) time in practice and O(n^2) memory for n merged rows.

    With r known groups, every cluster of more than r rows violates a cannot-link. Known labels
    therefore influence the early merges only. With several known labelings, rows that share a label
    in any labeling form a cannot-link.

    References
    ----------
    Bae, E. and Bailey, J. (2006), "COALA: a novel approach for the extraction of an alternate
    clustering of high quality and high dissimilarity", IEEE International Conference on Data
    Mining, 53-62, doi:10.1109/ICDM.2006.37.

    The default of ``omega`` is specific to this package.

    Examples
    --------
    >>> from nrprob import COALA, metrics
    >>> from nrprob.datasets import make_planar_shapes
    >>> X, labels = make_planar_shapes(200, random_state=0)
    >>> model = COALA(2).fit(X, known=labels[:, 0])
    >>> print(f"{metrics.normalized_mutual_information(model.labels_, labels[:, 1]):.2f}")
    1.00
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
        """Run all merges; see `Clusterer.compute`."""
        rows = Padded.from_rows(task.x[task.merged], task.codes[task.merged])
        omega = np.asarray(self.omega, rows.x.dtype)
        result = jax.device_get(_merge_clusters(rows, omega))
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
        self._store_result(
            merge.cut_merges(pairs, merges + 1, self.n_clusters),
            trace[-1],
            trace,
            n_iter=steps,
            nothing_left=ALIKE if self._alike else "",
        )
        return self

    # Reading the result

    def cut(self, n_clusters):
        """Cut the tree of merges at another number of clusters.

        Parameters
        ----------
        n_clusters : int
            From 1 to the number of merged rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Clusters are numbered by first occurrence. Cuts are nested.

        Raises
        ------
        ValueError
            If there are fewer merged rows than clusters.
        """
        self._check_cut(n_clusters)
        labels = merge.cut_merges(self._pairs, len(self.merged_samples_), n_clusters)
        return self._extend_labels(labels, n_clusters)

    # New rows

    def _cluster_scores(self, square, labels, n_clusters):
        """Scores (b, n_clusters) of b rows: minus their mean distances from the rows of a cluster.

        ``square`` (b, s) are squared distances from s merged rows with ``labels`` (s,).
        """
        member = np.eye(n_clusters)[labels]
        return -(np.sqrt(square) @ (member / member.sum(0)))
