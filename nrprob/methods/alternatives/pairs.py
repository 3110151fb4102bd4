"""Base class of agglomerative estimators that start from a matrix of pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob.data.validation import check_choice, check_random_state
from nrprob.engines.optimise import merge
from nrprob.estimator import parameters
from nrprob.estimator.base import Restarts
from nrprob.exceptions import warn
from nrprob.known import factorize, names_of
from nrprob.methods.alternatives.inputs import AlternativeClusterer
from nrprob.statistics.features import spread, standardised
from nrprob.statistics.rows import bucket, rounded

_SMALL = 256  # rows up to which programs are compiled for one size
_FEW = 8  # columns of which squares of differences are summed as they are
_ENTRIES = 2**22  # of the tables that place new rows, at once


def _check_approx(name: str, value: Any) -> None:
    if value is not None:
        check_choice(name, value, ("subsample",), "or None")


# Parameters of all of them.
Approximation = Annotated[str | None, parameters.Checked(_check_approx)]
Size = Annotated[int, parameters.Number(2, 10**6, integer=True)]


@dataclass
class PairTask:
    """Checked input of one fit; nothing of it is compiled ahead.

    Attributes
    ----------
    x : (n, d) rows in units of their spread
    codes : (n, m) known groups in every labeling
    merged : (s,) rows that are merged; the others follow
    """

    x: np.ndarray
    codes: np.ndarray
    merged: np.ndarray
    calls: tuple = ()


class Padded(NamedTuple):
    """Rows that are merged, as compiled programs take them.

    Attributes
    ----------
    x : (N, D) rows; zeros on padding
    alive : (N,) False on padding
    codes : (m, N) known groups in every labeling; on padding, every row its own
    """

    x: np.ndarray
    alive: np.ndarray
    codes: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, codes: np.ndarray) -> Padded:
        """Pad, so that problems of nearly the same size share programs."""
        n, d = x.shape
        size = bucket(max(n, _SMALL), 2048)
        rows = np.zeros((size, bucket(max(d, _FEW), 1024)), x.dtype)
        rows[:n, :d] = x
        m = max(codes.shape[1], 1)
        m = rounded(m, 1) if size <= _SMALL else m
        groups = np.tile(np.arange(size, dtype=np.int32), (m, 1))
        groups[: codes.shape[1], :n] = codes.T
        return cls(rows, np.arange(size) < n, groups)


def squares(x: jax.Array) -> jax.Array:
    """Squared distances (n, n) of rows; symmetric to the last bit."""
    if x.shape[1] <= _FEW:  # exact for rows that are alike
        return ((x[:, None] - x[None]) ** 2).sum(-1)
    norm = (x**2).sum(1)
    product = jnp.matmul(x, x.T, precision=jax.lax.Precision.HIGHEST)
    square = jnp.maximum(norm[:, None] + norm - 2 * product, 0)
    return (square + square.T) / 2


def by_block(
    x: np.ndarray, others: np.ndarray, scores: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Scores of new rows: ``scores`` of their squared distances (b, n) to others, by blocks."""
    from scipy.spatial.distance import cdist

    step = max(1, _ENTRIES // len(others))
    wide = others.astype(np.float64)
    blocks = [
        # Of rows far out, larger squares would be infinite, and differences of them nothing.
        scores(np.minimum(cdist(x[i : i + step].astype(np.float64), wide, "sqeuclidean"), 1e280))
        for i in range(0, len(x), step)
    ]
    return np.concatenate(blocks)


class PairClusterer(AlternativeClusterer):
    """Clusterer of dense rows that merges from tables of all pairs, or of those of a sample.

    A class that derives from it has the parameters ``approx``, ``max_exact`` and ``n_subsample``
    too, and gives

    ``compute(task)``
        The merges, and the labels of the rows that are merged.
    ``_scores(square, labels, n_clusters)``
        Of squared distances (b, s) of rows to those that were merged, and the labels of these, the
        scores (b, n_clusters).
    """

    approx: Any
    max_exact: int
    n_subsample: int
    random_state: Any

    def prepare(self, X, y, known=None) -> PairTask:
        """Check the input; see `Clusterer.prepare`."""
        X, known = self._read_rows(X, y, known)
        random, codes = check_random_state(self.random_state), known.columns()
        self._tell_known(codes, names_of(known.given))
        self._centre, self._scale = spread(X)
        self._alike = bool((X == X[:1]).all())
        merged = self._sample(known.groups.codes, random, X.dtype.itemsize)
        return PairTask(standardised(X, self._centre, self._scale), codes, merged)

    def _tell_known(self, codes: np.ndarray, names: list[Any]) -> None:
        n = len(codes)
        for j, n_groups in enumerate(codes.max(0) + 1 if n > 1 else ()):
            where = f" in {names[j]!r}" if names else ""
            if n_groups == 1:
                self._degenerate(
                    "known has one group only, so there is nothing to avoid; got a constant "
                    f"labeling{where}, which is ignored; leave it out"
                )
            elif n_groups == n:
                self._degenerate(
                    "every row has its own known group, so no two rows are to be kept apart; got "
                    f"{n_groups} groups for {n} rows{where}; pass fewer groups"
                )

    def _sample(self, groups: np.ndarray, random: np.random.RandomState, width: int) -> np.ndarray:
        """Rows that are merged, from all known groups alike."""
        n, m = len(groups), min(self.n_subsample, len(groups))
        if self.approx is None and n <= self.max_exact:
            return np.arange(n)
        if m < self.n_clusters:
            raise ValueError(
                "a sample must have as many rows as there are clusters; got "
                f"n_subsample={m} for n_clusters={self.n_clusters}; raise n_subsample"
            )
        if self.approx is None:
            warn(
                f"a table of all pairs would take {n**2 * width / 1e6:.0f} MB; got n_samples={n}, "
                f"of which {m} are merged and the others follow; pass approx='subsample' to agree, "
                "or raise max_exact"
            )
        # Every n/m-th row of an order that has the groups one after the other.
        order = np.lexsort((random.random_sample(n), groups))
        return np.sort(order[((np.arange(m) + random.random_sample()) * n / m).astype(int)])

    # Results

    def _keep_merges(self, task: PairTask, pairs: np.ndarray) -> None:
        """Keep what was merged, and the tree."""
        self.merged_samples_ = task.merged
        self._pairs, self._x, self._codes = pairs, task.x, task.codes
        self.linkage_ = merge.linkage_matrix(pairs, np.ones(len(pairs)), np.ones(len(task.merged)))

    def _found(self, labels: np.ndarray, objective: float, trace: np.ndarray, **more: Any) -> None:
        """Set what every estimator has, from the labels of the rows that were merged."""
        labels = self._extended(labels, self.n_clusters)
        self._store(
            Restarts(labels[None], np.array([objective]), np.array([more.pop("converged", True)])),
            membership=np.eye(self.n_clusters)[labels],
            trace=trace,
            **more,
        )

    def _extended(self, labels: np.ndarray, n_clusters: int) -> np.ndarray:
        """Labels (n,) of all rows, numbered by first row, from those (s,) that were merged."""
        merged = self.merged_samples_
        if len(merged) < len(self._x):
            others = by_block(
                self._x, self._x[merged], lambda square: self._scores(square, labels, n_clusters)
            )
            every = others.argmax(1)
            every[merged] = labels
            labels = every
        return factorize(labels)[0]

    def _check_cut(self, n_clusters: int) -> None:
        check_is_fitted(self)
        most = len(self.merged_samples_)
        self._check_number("n_clusters", n_clusters, low=1, high=most, integer=True)

    # New rows

    def _scores(self, square: np.ndarray, labels: np.ndarray, n_clusters: int) -> np.ndarray:
        raise NotImplementedError

    def _log_membership(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        x = standardised(self._validate(X, reset=False), self._centre, self._scale)
        merged = self.merged_samples_
        labels = self.labels_[merged]
        return by_block(
            x, self._x[merged], lambda square: self._scores(square, labels, self.n_clusters)
        )

    def predict(self, X, *, known=None):
        """Cluster of new rows: the one that the rows of the fit near them have.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        known : ignored
            What is known decides the clusters of the fit, and not where new rows belong.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X, known=known)
