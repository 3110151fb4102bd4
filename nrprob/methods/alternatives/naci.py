"""NACI: hierarchical alternative clustering by quadratic mutual information.

The objective is J(C) = I(C;X) / I_0(X) - sum_m eta_m I(C;Z_m) / I_0(Z_m), for clusters C, rows X
and known labelings Z_m. I is the quadratic mutual information, and I_0 its value if every row is a
cluster. J is a sum over pairs of rows that share a cluster. Sizes: n rows of d features, of which s
are merged; m labelings; k clusters.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from functools import cache
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import pdist, squareform

from nrprob.data.validation import LARGEST, check_choice, check_flag, check_number
from nrprob.engines.optimise import merge
from nrprob.engines.programs import jit_by_size
from nrprob.estimator import parameters
from nrprob.exceptions import warn
from nrprob.methods.alternatives.pairs import (
    Approximation,
    Padded,
    PairClusterer,
    PairTask,
    Size,
    squared_distances,
)
from nrprob.metrics import contingency
from nrprob.settings import standard
from nrprob.statistics.rows import bucket_size

# Rule -> (d + 4)-th power of the bandwidth, for n rows of d features of mean variance 1.
RULES = {"seed": lambda n, d: 4 / (n * (2 * d + 1)), "normal": lambda n, d: 4 / (n * (d + 2))}

_MAX_GROUPED = 8  # maximum number of clusters of which all groupings are enumerated
_MAX_DISTANCE_ROWS = 256  # maximum number of rows for the median distance
_MAX_WIDTH_ROWS = 512  # maximum number of rows for bandwidth="contrast"
# Candidates of eta="auto".
_AUTO_ETAS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_MIN_POTENTIAL = 1e-30  # rows with a smaller potential do not interact


def _check_eta(name: str, value: Any) -> None:
    if isinstance(value, str):
        check_choice(name, value, ("auto",), "or a number")
        return
    several = isinstance(value, list | tuple | np.ndarray) and np.ndim(value) == 1
    for weight in value if several else [value]:
        check_number(name, weight, low=0, high=1e6)


@jit_by_size("apart")
def _objective_tables(
    rows: Padded, sigma: jax.Array, eta: jax.Array, *, apart: bool
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """Table of the contributions of all pairs of rows to J, and the trace of the kernel matrix.

    The kernel matrix has the Gaussian kernels of the distances of rows, for the bandwidth
    ``sigma``. The table of a known labeling is 1 for rows of the same group, else 0. Every table is
    centred and divided by its trace. The contributions are the kernel matrix minus ``eta`` (m,)
    times the tables of the labelings. With ``apart``, the kernel matrix and the tables of the
    labelings are returned separately and without ``eta``. The returned trace is computed after
    centring. Constants of the Gaussian cancel and would overflow, so they are omitted.
    """
    x, alive, codes = rows
    n = alive.sum()
    pair_alive = alive[:, None] & alive
    float64 = jnp.float64

    def center_table(table):
        table = jnp.where(pair_alive, table, 0)
        mean = table.sum(1, dtype=float64) / n
        grand = (mean.sum() / n).astype(x.dtype)
        mean = mean.astype(x.dtype)
        return jnp.where(pair_alive, table - mean[:, None] - mean + grand, 0)

    def normalise_table(table):
        table = center_table(table)
        trace = jnp.diagonal(table).sum(dtype=float64)
        # The trace of a labeling with one group is 0.
        return table / jnp.maximum(trace, jnp.finfo(x.dtype).tiny).astype(x.dtype), trace

    data, trace = normalise_table(jnp.exp(squared_distances(x) / (-4 * sigma**2)))
    known = [normalise_table((z[:, None] == z).astype(x.dtype))[0] for z in codes]
    if apart:
        return (data, *known), trace
    return (sum((-e * table for e, table in zip(eta, known, strict=True)), data),), trace


@jit_by_size("current")
def _merge_clusters(
    tables: tuple[jax.Array, ...], alive: jax.Array, eta: jax.Array, *, current: bool
) -> tuple[jax.Array, jax.Array]:
    """Merge all rows; return the merged pairs (s - 1, 2), and the increase (s - 1,) of J by merges.

    ``tables`` are the result of `_objective_tables`, and ``alive`` is False for padding rows. With
    ``current``, a merge is chosen by gains that are divided by the information of the current
    clusters instead of the initial clusters. The tables are then separate, and ``eta`` (m,) are the
    penalty weights of the known labelings.
    """

    def score(rows, size, sizes, totals):
        if not current:
            return rows[0][None]
        # Information of the current clusters relative to the initial ones; 0 for one cluster.
        data, *known = jnp.maximum(1 + 2 * totals, 1e-12)
        terms = zip(eta, rows[1:], known, strict=True)
        return (rows[0] / data - sum(e * row / left for e, row, left in terms))[None]

    result = merge.agglomerate_pairs(tables, alive, score, drifting=current)
    weights = jnp.concatenate([jnp.ones(1, eta.dtype), -eta])[: len(tables)]
    return result.pairs, 2 * result.entries @ weights


_move_rows = jax.jit(merge.move_rows, static_argnames="n_clusters")


def _contrast_width(x: np.ndarray) -> float:
    """Bandwidth sigma that maximises the sum of squares of the centred kernel matrix of the rows.

    ``x`` (n, d) are the rows. The kernel of two rows at distance t is exp(-t^2 / (4 sigma^2)). The
    sum is small for a small sigma, where all kernels of distinct rows are near 0. The sum is also
    small for a large sigma, where all kernels are near 1.
    """
    square = squareform(pdist(x.astype(float), "sqeuclidean"))
    apart = square[square > 0]

    def minus_information(log_width: float) -> float:
        table = np.exp(square * (-0.25 * np.exp(-2 * log_width)))
        table -= table.mean(0)
        return -float(np.sum((table - table.mean(1, keepdims=True)) ** 2))

    # Grid search from below the smallest to above the largest distance, then Brent's method.
    low, high = np.log(max(apart.min(), 1e-8 * apart.max())) / 2 - 1, np.log(apart.max()) / 2 + 1
    log_widths = np.linspace(low, high, 25)
    best = int(np.argmin([minus_information(width) for width in log_widths]))
    bounds = log_widths[max(best - 1, 0)], log_widths[min(best + 1, 24)]
    return float(np.exp(minimize_scalar(minus_information, bounds=bounds, method="bounded").x))


def _quadratic_information(labels: np.ndarray, known: np.ndarray) -> float:
    """Quadratic mutual information I(C;Z) of clusters C and known groups Z.

    ``labels`` and ``known`` (s,) are the clusters and the known groups of s rows.
    """
    joint = contingency(labels, known) / len(labels)
    return float(((joint - joint.sum(1, keepdims=True) * joint.sum(0)) ** 2).sum())


@cache
def _all_groupings(n: int, k: int) -> np.ndarray:
    """All partitions (partitions, n) of n items into k groups.

    A partition is an array of labels, numbered by first occurrence.
    """
    ways = [[0]]
    for _ in range(n - 1):
        ways = [[*way, c] for way in ways for c in range(min(max(way) + 2, k))]
    return np.array([way for way in ways if max(way) == k - 1])


def _best_grouping(sums: np.ndarray, k: int) -> np.ndarray:
    """Partition (n,) of n clusters into k groups that maximises the objective.

    ``sums`` (n, n) are the contributions of pairs of clusters to the objective. The objective of a
    partition is the sum over all pairs of clusters in the same group.
    """
    ways = _all_groupings(len(sums), k)
    member = (ways[:, :, None] == np.arange(k)).astype(float)
    return ways[np.einsum("pac,ab,pbc->p", member, sums, member).argmax()]


@parameters.constructor
class NACI(PairClusterer):
    r"""Hierarchical alternative clustering by quadratic mutual information (NACI).

    NACI finds clusters of any shape that are informative about the rows and not about the known
    groups. Starting from single rows, NACI merges the two clusters with the largest increase of

    .. math:: J(C) = \frac{I(C;X)}{I_0(X)} - \sum_m \eta_m \frac{I(C;Z_m)}{I_0(Z_m)},
        \qquad I(C;Z) = \sum_{c,z} [p(c,z) - p(c)\, p(z)]^2,

    where C are the clusters, :math:`Z_m` the known labelings and :math:`\eta_m` their penalty
    weights. I(C;X) is the same quadratic mutual information with the rows. The density of the rows
    is a Parzen estimate with Gaussian windows of bandwidth :math:`\sigma`. :math:`I_0` is the
    information of the initial clusters, which are single rows.

    Parameters
    ----------
    <n_clusters>
    eta : float, sequence of float or "auto", default=0.2
        Penalty weight of the known labelings: a number for all, or one per labeling. Lower it to
        between 0.01 and 0.1 if the target clusters depend on the known groups, or if there are many
        known groups. Raise it to about 1 for large bandwidths. With 0, NACI ignores the known
        labels. "auto" runs NACI with 0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5 and 1. "auto" selects the
        result with the largest score: I(C;X), relative to the largest I(C;X) of the results, minus
        the sum of I(C;Z_m) / I(Z_m;Z_m). From 0 to 10**6.
    bandwidth : {"seed", "normal", "contrast"} or float, default="seed"
        Bandwidth :math:`\sigma` in the units of ``X``, or a rule for n rows of d features with mean
        variance s^2. "seed" is the published rule, s (4 / (n (2 d + 1)))^(1 / (d + 4)). "normal" is
        the normal reference rule, s (4 / (n (d + 2)))^(1 / (d + 4)). "contrast" maximises the sum
        of squares of the centred matrix of Gaussian kernels of all pairs of rows. The resulting
        bandwidth is larger than by both rules, above all for many features, and can be too large
        for close curved clusters in two dimensions.
    bandwidth_scale : float, default=1.5
        Factor of the rules "seed" and "normal"; 1 is the published value. Raise it to between 3 and
        4, with a larger ``eta``, for ten features or more. Alternatively use
        ``bandwidth="contrast"`` with ``eta="auto"``, which need no target labels. From 1e-3 to 1e3.
    normaliser : {"initial", "current"}, default="initial"
        Whether gains are divided by the information of the initial or of the current clusters. The
        text of Dang and Bailey (2010) allows both. "current" takes O(n^3) time, and its penalty
        grows with every merge.
    refine : bool, default=True
        Whether to improve the clusters of the greedy merges: moves of single rows increase J
        further, from the merged clusters and from a second initialisation (step 3 of the Notes).
    approx : {"subsample"}, optional
        "subsample" merges ``n_subsample`` rows, stratified by known group, and assigns the other
        rows as `predict` does. With None, NACI merges all rows; if there are more than
        ``max_exact`` rows, it merges a subsample, with a warning.
    max_exact : int, default=10000
        Largest number of rows that NACI merges exactly. The table of pairs of 10,000 rows takes 800
        MB in float64, and a fit twice as much. From 2 to 10**6.
    n_subsample : int, default=1000
        Number of rows of the subsample, from 2 to 10**6.
    max_iter : int, default=10000
        Maximum number of moves of single rows in the refinement, at most 10**6.
    random_state : int, RandomState instance or None, default=None
        Determines the subsample; the merges are deterministic.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot form of ``labels_``; `predict_proba` returns posterior probabilities.
    <n_clusters_>
    linkage_ : ndarray of shape (n_merged - 1, 4)
        All merges in SciPy's format. Heights are ranks of merges, since gains are not monotone.
    merge_gains_ : ndarray of shape (n_merged - 1,)
        Increase of J by each merge.
    objective_path_ : ndarray of shape (n_merged,)
        J after t merges, at n_merged - t clusters. Its maximum suggests a number of clusters.
    qmi_data_path_ : ndarray of shape (n_merged,)
        I(C;X) / I_0(X) after t merges.
    qmi_reference_path_ : ndarray of shape (n_merged, n_labelings)
        I(C;Z) / I_0(Z) of each known labeling after t merges.
    merged_samples_ : ndarray of shape (n_merged,)
        Indices of the merged rows, which are the leaves of ``linkage_``.
    bandwidth_ : float
        Bandwidth :math:`\sigma` in the units of ``X``.
    eta_ : ndarray of shape (n_labelings,)
        Penalty weights of the known labelings.
    n_moves_ : int
        Number of moves of single rows in the refinement.
    objective_ : float
        -J of the merged rows, without a unit.
    objective_trace_ : ndarray of shape (n_merged - n_clusters + 2,)
        Objective after each merge down to ``n_clusters``, and after the refinement.
    n_iter_ : int
        Number of merges and moves.
    converged_ : bool
        Whether the refinement ended before ``max_iter``.
    restarts_ : xarray.Dataset
        Labels and objective of the single run.
    <n_features_in_>
    <feature_names_in_>

    See Also
    --------
    COALA : Average linkage under cannot-links from the known groups.
    ConditionalMixture : Gaussian mixture of the residuals from known structure.
    Orthogonalization : Removes the directions of the known means.

    Notes
    -----
    Algorithm:

    1. Compute the Gaussian kernels (potentials) of all pairs of rows with bandwidth
       :math:`\sqrt 2 \sigma`. The table of a known labeling is 1 for rows of the same group, else
       0. Centre all tables, and divide each by its trace.
    2. Merge the pair of clusters with the largest gain, eqs. (15) and (16), until one cluster
       remains. I(C;X) equals the biased HSIC of clusters and rows, so J is a sum over pairs of rows
       that share a cluster, and gains add up under merging.
    3. Refine the cut at ``n_clusters``: move single rows as long as J increases. For 2 to 7
       clusters and a positive ``eta``, there is a second initialisation: merge to 8 clusters with
       ``eta=0``, refine them, and enumerate all their groupings into ``n_clusters`` clusters. Keep
       the result with the larger J.

    Merging takes O(n^2) time in practice and O(n^2) memory for n merged rows. Ties are resolved by
    the order of the rows.

    One bandwidth serves all features, so standardise features of different scales. Each labeling
    has a separate penalty. To penalise the combinations of several labelings, pass these as one
    labeling.

    References
    ----------
    Dang, X. H. and Bailey, J. (2010), "A hierarchical information theoretic technique for the
    discovery of non linear alternative clusterings", ACM SIGKDD, 573-582,
    doi:10.1145/1835804.1835878. Eqs. (6) to (16). NACI corrects the printed decomposition to I(C;X)
    = T_in + T_all - 2 T_btw, and the printed bandwidth rule, which uses a variance as a standard
    deviation. The refinement is specific to this package.

    Gretton, A., Bousquet, O., Smola, A. and Schoelkopf, B. (2005), "Measuring statistical
    dependence with Hilbert-Schmidt norms", Algorithmic Learning Theory, 63-77,
    doi:10.1007/11564089_7.

    Examples
    --------
    >>> from nrprob import NACI, metrics
    >>> from nrprob.datasets import make_planar_shapes
    >>> X, labels = make_planar_shapes(200, "moons", random_state=0)
    >>> model = NACI(2).fit(X, known=labels[:, 0])
    >>> print(f"{metrics.normalized_mutual_information(model.labels_, labels[:, 1]):.2f}")
    0.83
    >>> model.linkage_.shape, int(model.cut(4).max())
    ((199, 4), 3)
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    eta: Annotated[Any, parameters.Checked(_check_eta)] = 0.2
    bandwidth: Annotated[
        float | str, parameters.Number(1 / LARGEST, LARGEST, words=(*RULES, "contrast"))
    ] = "seed"
    bandwidth_scale: Annotated[float, parameters.Number(1e-3, 1e3)] = 1.5
    normaliser: Annotated[str, parameters.Choice(("initial", "current"))] = "initial"
    refine: parameters.Flag = True
    approx: Approximation = None
    max_exact: Size = 10_000
    n_subsample: Size = 1000
    max_iter: parameters.Count = 10_000
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    _unit = "the moves of single rows"

    # Fitting

    def prepare(self, X, y, known=None) -> PairTask:
        """Validate the input; see `Clusterer.prepare`."""
        task = super().prepare(X, y, known)
        m = task.codes.shape[1]
        automatic = isinstance(self.eta, str)
        weights = np.asarray(_AUTO_ETAS[: None if m else 1] if automatic else self.eta, float)
        if not automatic and weights.ndim and weights.shape != (m,):
            raise ValueError(
                f"eta must hold one number per known labeling; got {weights.size} for {m} "
                "labeling(s); pass that many, or one for all"
            )
        if self._alike:
            raise ValueError(
                "all features are constant, so the bandwidth is undefined; got "
                f"n_samples={len(task.x)} equal rows; pass rows that differ"
            )
        self._eta_candidates = [
            np.broadcast_to(w, m) for w in (weights if automatic else [weights])
        ]
        self._set_width(task.x[task.merged])
        return task

    def _set_width(self, x: np.ndarray) -> None:
        """Set the bandwidth; warn if it is so small that only the known labels matter."""
        n, d = x.shape
        if self.bandwidth == "contrast":
            self._sigma = _contrast_width(x[:: -(-n // _MAX_WIDTH_ROWS)])
        elif isinstance(self.bandwidth, str):
            # The standardised rows have a mean variance of 1 with denominator n.
            rule = RULES[self.bandwidth](n, d) ** (1 / (d + 4)) * np.sqrt(n / (n - 1))
            self._sigma = float(rule * self.bandwidth_scale)
        else:
            self._sigma = float(self.bandwidth) / self._scale
        self.bandwidth_ = self._sigma * self._scale
        some = x[:: -(-n // _MAX_DISTANCE_ROWS)].astype(float)
        distance = np.median(pdist(some)) if len(some) > 1 else 0.0
        if distance > self._sigma * np.sqrt(-4 * np.log(_MIN_POTENTIAL)):
            warn(
                "the bandwidth is so small that most rows do not interact, and only the known "
                f"labels matter; got {self.bandwidth_:.3g}, and a median distance of "
                f"{distance * self._scale:.3g}; raise bandwidth or bandwidth_scale"
            )

    def compute(self, task):
        """Run and refine the merges; see `Clusterer.compute`."""
        rows = Padded.from_rows(task.x[task.merged], task.codes[task.merged])
        self._free_pairs = None
        if self.refine and any(eta.any() for eta in self._eta_candidates):
            self._free_pairs, _ = self._run_merges(rows, np.zeros_like(self._eta_candidates[0]))
        fits = []
        for eta in self._eta_candidates:
            self._eta = eta
            self._pairs, gains = self._run_merges(rows, eta)
            refined = self._refine_labels(rows, self.n_clusters, bool(self.refine))
            fits.append((eta, self._pairs, gains, refined))
        self._eta, pairs, gains, refined = fits[self._select_eta(task.codes[task.merged], fits)]
        self._keep_merges(task, pairs)
        return [(gains, refined)]

    def _select_eta(self, codes: np.ndarray, fits: list) -> int:
        """Index of the best fit among ``fits``, which have different penalty weights ``eta``.

        The score of a fit is I(C;X) relative to the largest I(C;X) of the fits, minus the sum of
        I(C;Z_m) / I(Z_m;Z_m) over labelings. ``codes`` (s, m) are the known labels. A fit is a
        tuple of ``eta``, the pairs of merged clusters, their gains, and the refinement.
        """
        if len(fits) == 1 or self.n_clusters == 1:
            return 0
        data, shared = np.zeros(len(fits)), np.zeros(len(fits))
        for i, (eta, _, _, refined) in enumerate(fits):
            data[i] = refined.value
            for weight, z in zip(eta, codes.T, strict=True):
                if z.any():  # the labeling has more than one group
                    information = _quadratic_information(refined.labels, z)
                    data[i] += weight * information / _quadratic_information(np.arange(len(z)), z)
                    shared[i] += information / _quadratic_information(z, z)
        return int(np.argmax(data / data.max() - shared))

    def _build_tables(
        self, rows: Padded, eta: np.ndarray, *, apart: bool = False
    ) -> tuple[tuple[jax.Array, ...], np.ndarray]:
        """Result of `_objective_tables`, and penalty weights with equal padding of labelings.

        ``eta`` (m,) are the penalty weights, and ``apart`` is as in `_objective_tables`.
        """
        if apart:  # omit the tables of padding labelings
            rows = rows._replace(codes=rows.codes[: eta.size])
        weights = np.zeros(len(rows.codes), rows.x.dtype)
        weights[: eta.size] = eta
        sigma = np.asarray(self._sigma, rows.x.dtype)
        tables, trace = _objective_tables(rows, sigma, weights, apart=apart)
        if trace < 64 * np.finfo(rows.x.dtype).eps * len(rows.x):
            raise ValueError(
                "the bandwidth is so large that it does not distinguish rows; got "
                f"{self.bandwidth_:.3g} for rows of standard deviation {self._scale:.3g}; lower it"
            )
        return tables, weights

    def _run_merges(self, rows: Padded, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Merge the rows; return the merged pairs (s - 1, 2) and the gains (s - 1,) in J."""
        current = self.normaliser == "current" and bool(eta.any())
        tables, weights = self._build_tables(rows, eta, apart=current)
        pairs, gains = jax.device_get(_merge_clusters(tables, rows.alive, weights, current=current))
        merges = int(rows.alive.sum()) - 1
        if self.verbose:
            print(f"merged {merges + 1} rows")
        return pairs[:merges], gains[:merges].astype(float)

    def _refine_labels(self, rows: Padded, n_clusters: int, refine: bool) -> merge.RowMoveResult:
        """Cut the tree at ``n_clusters`` clusters, and refine the labels (s,) of the merged rows.

        Without ``refine``, the labels of the cut remain.
        """
        n = int(rows.alive.sum())

        def move_rows(table, labels, k, max_moves):
            padded = np.zeros(len(rows.alive), np.int32)
            padded[:n] = labels
            most = np.asarray(max_moves, np.int32)
            result = _move_rows(
                table, rows.alive, padded, most, n_clusters=max(bucket_size(k, 64), _MAX_GROUPED)
            )
            result = jax.device_get(result)
            return result._replace(labels=result.labels[:n], sums=result.sums[:k, :k])

        # First start: the cut of the merges.
        starts, grouped = [merge.cut_merges(self._pairs, n, n_clusters)], None
        if refine and self._free_pairs is not None and 1 < n_clusters < min(_MAX_GROUPED, n):
            few = min(_MAX_GROUPED, n)
            (free,), _ = self._build_tables(rows, 0 * self._eta)
            labels = merge.cut_merges(self._free_pairs, n, few)
            grouped = move_rows(free, labels, few, self.max_iter).labels
            del free  # frees the memory for the next table
        # Second start: the best grouping of 8 clusters that ignore the known labels.
        (table,), _ = self._build_tables(rows, self._eta)
        if grouped is not None:
            sums = move_rows(table, grouped, few, 0).sums
            starts.append(_best_grouping(sums, n_clusters)[grouped])
        # Move single rows from both starts, and keep the better result.
        result = [move_rows(table, start, n_clusters, self.max_iter * refine) for start in starts]
        return max(result, key=lambda refined: refined.value)

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        gains, refined = result[0]
        self.eta_, self.merge_gains_ = self._eta, gains
        codes = task.codes[task.merged]
        shares = [merge.quadratic_information_shares(self._pairs, z) for z in codes.T]
        path = np.stack(shares, 1) if shares else np.zeros((len(codes), 0))
        weights = self._eta * path[0]
        self.qmi_reference_path_ = path
        self.objective_path_ = 1 - weights.sum() + np.cumsum([0.0, *gains])
        self.qmi_data_path_ = self.objective_path_ + path @ self._eta
        steps = len(gains) + 1 - self.n_clusters
        self.n_moves_ = int(refined.n_moves)
        self._store_result(
            refined.labels,
            -refined.value,
            np.append(-self.objective_path_[: steps + 1], -refined.value),
            n_iter=max(steps, 0) + self.n_moves_,
            converged=not self.refine or bool(refined.done),
        )
        return self

    # Reading the result

    def cut(self, n_clusters, *, refine=True):
        """Cut the tree of merges at another number of clusters.

        Parameters
        ----------
        n_clusters : int
            From 1 to the number of merged rows.
        refine : bool, default=True
            Whether to refine the cut as `fit` does. Without refinement, cuts are nested.

        Returns
        -------
        ndarray of shape (n_samples,)
            Clusters are numbered by first occurrence.

        Raises
        ------
        ValueError, TypeError
            If there are fewer merged rows than clusters, or ``refine`` is not a boolean.
        """
        self._check_cut(n_clusters)
        check_flag("refine", refine)
        merged = self.merged_samples_
        with standard():
            rows = Padded.from_rows(self._x[merged], self._codes[merged])
            labels = self._refine_labels(rows, n_clusters, refine).labels
        return self._extend_labels(labels, n_clusters)

    # New rows

    def _cluster_scores(self, square, labels, n_clusters):
        """Log posterior probabilities (b, n_clusters) of the clusters of b rows, by Parzen windows.

        ``square`` (b, s) are squared distances from s merged rows with ``labels`` (s,).
        """
        with np.errstate(over="ignore"):
            log = np.maximum(square / (-2 * self._sigma**2), -1e300)
        weight = np.exp(log - log.max(1, keepdims=True))
        share = weight @ np.eye(n_clusters)[labels]
        with np.errstate(divide="ignore"):
            return np.log(share / share.sum(1, keepdims=True))

    def predict_proba(self, X, *, known=None):
        r"""Posterior probabilities of clusters for new rows, by Parzen windows.

        .. math:: p(c|x) = \frac{\sum_{l \in c} N(x; x_l, \sigma^2)}{\sum_l N(x; x_l, \sigma^2)}

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        known : ignored
            As in `predict`.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        X, known = self._split_known(X, known)
        return np.exp(self._log_membership(X, known))
