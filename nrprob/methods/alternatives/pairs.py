"""Base class of agglomerative estimators, which merge clusters by a table of all pairs of rows.

Sizes: n rows of d features, s merged rows (all rows, or a subsample), m known labelings, b new
rows, k clusters; N and D are s and d with padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob.data.labels import factorize
from nrprob.data.validation import check_choice, check_random_state
from nrprob.engines.optimise import merge
from nrprob.estimator import parameters
from nrprob.estimator.base import Restarts
from nrprob.estimator.capabilities import Capabilities
from nrprob.exceptions import warn
from nrprob.methods.alternatives.inputs import AlternativeClusterer
from nrprob.statistics.features import fit_centre_and_scale, standardise
from nrprob.statistics.rows import bucket_size, padded_count

_SINGLE_SIZE_ROWS = 256  # below this number of rows, all problems share one compiled size
_MAX_DIRECT_FEATURES = 8  # up to this number of features, squared differences are summed directly
_BLOCK_ENTRIES = 2**22  # entries of a block of the distances between new and merged rows


def _check_approx(name: str, value: Any) -> None:
    if value is not None:
        check_choice(name, value, ("subsample",), "or None")


# Parameter types of all subclasses.
Approximation = Annotated[str | None, parameters.Checked(_check_approx)]
Size = Annotated[int, parameters.Number(2, 10**6, integer=True)]


@dataclass
class PairTask:
    """Validated input of one fit.

    Attributes
    ----------
    x : (n, d) standardised rows
    codes : (n, m) known group of every row in each labeling
    merged : (s,) indices of the rows that are merged; `fit` assigns all other rows to the clusters
        afterwards
    calls : empty; tasks of other estimators list the calls of compiled programs here
    """

    x: np.ndarray
    codes: np.ndarray
    merged: np.ndarray
    calls: tuple = ()


class Padded(NamedTuple):
    """Merged rows, padded to sizes that share compiled programs.

    Attributes
    ----------
    x : (N, D) rows; 0 on padding
    alive : (N,) False on padding
    codes : (m, N) known group of every row in each labeling; a padding row is a group by itself
    """

    x: np.ndarray
    alive: np.ndarray
    codes: np.ndarray

    @classmethod
    def from_rows(cls, x: np.ndarray, codes: np.ndarray) -> Padded:
        """Pad rows (s, d) and codes (s, m), so that similar sizes share compiled programs."""
        n, d = x.shape
        size = bucket_size(max(n, _SINGLE_SIZE_ROWS), 2048)
        rows = np.zeros((size, bucket_size(max(d, _MAX_DIRECT_FEATURES), 1024)), x.dtype)
        rows[:n, :d] = x
        m = max(codes.shape[1], 1)
        m = padded_count(m, 1) if size <= _SINGLE_SIZE_ROWS else m
        groups = np.tile(np.arange(size, dtype=np.int32), (m, 1))
        groups[: codes.shape[1], :n] = codes.T
        return cls(rows, np.arange(size) < n, groups)


def squared_distances(x: jax.Array) -> jax.Array:
    """Squared Euclidean distances (n, n) between rows x (n, d); exactly symmetric."""
    if x.shape[1] <= _MAX_DIRECT_FEATURES:  # exactly 0 for equal rows
        return ((x[:, None] - x[None]) ** 2).sum(-1)
    norm = (x**2).sum(1)
    product = jnp.matmul(x, x.T, precision=jax.lax.Precision.HIGHEST)
    square = jnp.maximum(norm[:, None] + norm - 2 * product, 0)
    return (square + square.T) / 2


def score_by_block(
    x: np.ndarray, others: np.ndarray, scores: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Scores of rows ``x`` (n, d), from their squared distances to ``others`` (s, d).

    ``x`` is split into blocks, which bounds the memory for distances. The function ``scores`` maps
    the squared distances (b, s) of the b rows of a block to scores (b, ...). The result
    concatenates the scores of all blocks.
    """
    from scipy.spatial.distance import cdist

    step = max(1, _BLOCK_ENTRIES // len(others))
    wide = others.astype(np.float64)
    blocks = [
        # Cap the squares of outliers: infinite squares would have NaN differences.
        scores(np.minimum(cdist(x[i : i + step].astype(np.float64), wide, "sqeuclidean"), 1e280))
        for i in range(0, len(x), step)
    ]
    return np.concatenate(blocks)


class PairClusterer(AlternativeClusterer):
    """Base class of clusterers that merge clusters by a table of all pairs of rows.

    For many rows, the table has the pairs of a subsample only. A subclass has the parameters
    ``approx``, ``max_exact`` and ``n_subsample``, and implements

    ``compute(task)``
        Return the result of the merges, which ``finish`` reads.
    ``_cluster_scores(square, labels, n_clusters)``
        Return scores (b, n_clusters) of b rows, from their squared distances (b, s) to the merged
        rows, and the labels (s,) of the merged rows. A row joins the cluster of the largest score.
    """

    capabilities = Capabilities(
        labels=False, singleton_groups=True, alone=True, arrays=("ss", "nk")
    )

    approx: Any
    max_exact: int
    n_subsample: int
    random_state: Any

    def prepare(self, X, y, known=None) -> PairTask:
        """Validate the input; see `Clusterer.prepare`."""
        X, design = self._read_rows(X, y, known)
        random, codes = check_random_state(self.random_state), design.labelings
        self._warn_of_known(codes, design.label_names)
        self._centre, self._scale = fit_centre_and_scale(X)
        self._alike = bool((X == X[:1]).all())
        merged = self._sample_rows(design.codes, random, X.dtype.itemsize)
        return PairTask(standardise(X, self._centre, self._scale), codes, merged)

    def _warn_of_known(self, codes: np.ndarray, names: list[Any]) -> None:
        n = len(codes)
        for j, n_groups in enumerate(codes.max(0) + 1 if n > 1 else ()):
            where = f" in {names[j]!r}" if names else ""
            if n_groups == 1:
                self._warn_degenerate(
                    "known has one group only, which the clusters cannot repeat; got a constant "
                    f"labeling{where}, which is ignored; leave it out"
                )
            elif n_groups == n:
                self._warn_degenerate(
                    "every row has its own known group, so no two rows share a group; got "
                    f"{n_groups} groups for {n} rows{where}; pass fewer groups"
                )

    def _sample_rows(
        self, groups: np.ndarray, random: np.random.RandomState, width: int
    ) -> np.ndarray:
        """Indices (s,) of the rows to merge: all rows, or a subsample stratified by known group.

        ``groups`` (n,) are the known groups, and ``width`` is the number of bytes of a table entry.
        """
        n, m = len(groups), min(self.n_subsample, len(groups))
        if self.approx is None and n <= self.max_exact:
            return np.arange(n)
        if m < self.n_clusters:
            raise ValueError(
                "a subsample must have at least as many rows as clusters; got "
                f"n_subsample={m} for n_clusters={self.n_clusters}; raise n_subsample"
            )
        if self.approx is None:
            warn(
                f"a table of all pairs would take {n**2 * width / 1e6:.0f} MB; got n_samples={n}, "
                f"of which {m} are merged and the others are assigned afterwards; pass "
                "approx='subsample' to accept this, or raise max_exact"
            )
        # Systematic sampling: every (n/m)-th row of an order sorted by group.
        order = np.lexsort((random.random_sample(n), groups))
        return np.sort(order[((np.arange(m) + random.random_sample()) * n / m).astype(int)])

    # Results

    def _keep_merges(self, task: PairTask, pairs: np.ndarray) -> None:
        """Store the merged rows, the merges ``pairs`` (s - 1, 2), and the linkage matrix."""
        self.merged_samples_ = task.merged
        self._pairs, self._x, self._codes = pairs, task.x, task.codes
        self.linkage_ = merge.linkage_matrix(pairs, np.ones(len(pairs)), np.ones(len(task.merged)))

    def _store_result(
        self, labels: np.ndarray, objective: float, trace: np.ndarray, **more: Any
    ) -> None:
        """Set the common fitted attributes from the labels (s,) of the merged rows."""
        labels = self._extend_labels(labels, self.n_clusters)
        self._store_results(
            Restarts(labels[None], np.array([objective]), np.array([more.pop("converged", True)])),
            membership=np.eye(self.n_clusters)[labels],
            trace=trace,
            **more,
        )

    def _extend_labels(self, labels: np.ndarray, n_clusters: int) -> np.ndarray:
        """Extend labels (s,) of the merged rows to all rows (n,), numbered by first occurrence."""
        merged = self.merged_samples_
        if len(merged) < len(self._x):
            others = score_by_block(
                self._x,
                self._x[merged],
                lambda square: self._cluster_scores(square, labels, n_clusters),
            )
            assigned = others.argmax(1)
            assigned[merged] = labels
            labels = assigned
        return factorize(labels)[0]

    def _check_cut(self, n_clusters: int) -> None:
        check_is_fitted(self)
        n_merged = len(self.merged_samples_)
        self._check_number("n_clusters", n_clusters, low=1, high=n_merged, integer=True)

    # New rows

    def _cluster_scores(
        self, square: np.ndarray, labels: np.ndarray, n_clusters: int
    ) -> np.ndarray:
        raise NotImplementedError

    def _log_membership(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        x = standardise(self._validate(X, reset=False), self._centre, self._scale)
        merged = self.merged_samples_
        labels = self.labels_[merged]
        return score_by_block(
            x, self._x[merged], lambda square: self._cluster_scores(square, labels, self.n_clusters)
        )

    def predict(self, X, *, known=None):
        """Assign new rows to clusters by their distances to the merged training rows.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        known : ignored
            Known labels influence the clusters in `fit`, and not the assignment of new rows.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X, known=known)
