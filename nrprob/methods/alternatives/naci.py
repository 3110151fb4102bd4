"""NACI: alternative clusters of any shape by quadratic mutual information."""

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
    squares,
)
from nrprob.metrics import contingency
from nrprob.settings import standard
from nrprob.statistics.rows import bucket

# Rule -> width of n rows of d features of mean variance 1, to the power of d + 4.
RULES = {"seed": lambda n, d: 4 / (n * (2 * d + 1)), "normal": lambda n, d: 4 / (n * (d + 2))}

_MOST = 8  # clusters of which all groupings are tried
_SOME = 256  # rows whose potentials stand for those of all
_MANY = 512  # the same, where a width is chosen by them
# Weights of the known labelings that are tried.
_WEIGHTS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_NOTHING = 1e-30  # potential of rows that do not interact


def _check_eta(name: str, value: Any) -> None:
    if isinstance(value, str):
        check_choice(name, value, ("auto",), "or a number")
        return
    several = isinstance(value, list | tuple | np.ndarray) and np.ndim(value) == 1
    for one in value if several else [value]:
        check_number(name, one, low=0, high=1e6)


@jit_by_size("apart")
def _tables(
    rows: Padded, sigma: jax.Array, eta: jax.Array, *, apart: bool
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """Share of every pair of rows in the objective, and the trace of the centred potentials.

    The table is that of the data less those of the known labelings by ``eta`` (m,): all divided by
    their traces, so that entries are of size 1/n, and each by itself where ``apart``. Constants of
    the Gaussian cancel, and are left out: they would overflow.
    """
    x, alive, codes = rows
    n = alive.sum()
    both = alive[:, None] & alive
    wide = jnp.float64

    def centred(table):
        table = jnp.where(both, table, 0)
        mean = table.sum(1, dtype=wide) / n
        grand = (mean.sum() / n).astype(x.dtype)
        mean = mean.astype(x.dtype)
        return jnp.where(both, table - mean[:, None] - mean + grand, 0)

    def scaled(table):
        table = centred(table)
        trace = jnp.diagonal(table).sum(dtype=wide)
        # A labeling of one group has none, and nothing to avoid.
        return table / jnp.maximum(trace, jnp.finfo(x.dtype).tiny).astype(x.dtype), trace

    data, trace = scaled(jnp.exp(squares(x) / (-4 * sigma**2)))
    known = [scaled((z[:, None] == z).astype(x.dtype))[0] for z in codes]
    if apart:
        return (data, *known), trace
    return (sum((-e * table for e, table in zip(eta, known, strict=True)), data),), trace


@jit_by_size("current")
def _join(
    tables: tuple[jax.Array, ...], alive: jax.Array, eta: jax.Array, *, current: bool
) -> tuple[jax.Array, jax.Array]:
    """Pairs that are joined (n - 1, 2), and what each adds to the objective (n - 1,)."""

    def score(rows, size, sizes, totals):
        if not current:
            return rows[0][None]
        # What is left of the information at the start; nothing at all where there is one cluster.
        data, *known = jnp.maximum(1 + 2 * totals, 1e-12)
        terms = zip(eta, rows[1:], known, strict=True)
        return (rows[0] / data - sum(e * row / left for e, row, left in terms))[None]

    result = merge.agglomerate_pairs(tables, alive, score, drifting=current)
    weights = jnp.concatenate([jnp.ones(1, eta.dtype), -eta])[: len(tables)]
    return result.pairs, 2 * result.entries @ weights


_move = jax.jit(merge.move_rows, static_argnames="n_clusters")


def _contrast_width(x: np.ndarray) -> float:
    """Width at which the rows (n, d) have the most quadratic information about themselves.

    That is the sum of squares of their centred potentials, which is small where windows are so
    narrow that no row meets another, and so wide that all rows are alike.
    """
    square = squareform(pdist(x.astype(float), "sqeuclidean"))
    apart = square[square > 0]

    def minus_information(log_width: float) -> float:
        table = np.exp(square * (-0.25 * np.exp(-2 * log_width)))
        table -= table.mean(0)
        return -float(np.sum((table - table.mean(1, keepdims=True)) ** 2))

    # From windows that hardly reach the nearest row to such as hold all of them.
    low, high = np.log(max(apart.min(), 1e-8 * apart.max())) / 2 - 1, np.log(apart.max()) / 2 + 1
    tried = np.linspace(low, high, 25)
    best = int(np.argmin([minus_information(width) for width in tried]))
    bounds = tried[max(best - 1, 0)], tried[min(best + 1, 24)]
    return float(np.exp(minimize_scalar(minus_information, bounds=bounds, method="bounded").x))


def _information(labels: np.ndarray, known: np.ndarray) -> float:
    """I(C;Z) of clusters and groups: how far their joint distribution is from independence."""
    joint = contingency(labels, known) / len(labels)
    return float(((joint - joint.sum(1, keepdims=True) * joint.sum(0)) ** 2).sum())


@cache
def _groupings(n: int, k: int) -> np.ndarray:
    """All ways (ways, n) to put n things into k groups, numbered by the first of them."""
    ways = [[0]]
    for _ in range(n - 1):
        ways = [[*way, c] for way in ways for c in range(min(max(way) + 2, k))]
    return np.array([way for way in ways if max(way) == k - 1])


def _best_grouping(sums: np.ndarray, k: int) -> np.ndarray:
    """Group (n,) of n clusters in k groups whose inner sums (n, n) are largest."""
    ways = _groupings(len(sums), k)
    member = (ways[:, :, None] == np.arange(k)).astype(float)
    return ways[np.einsum("pac,ab,pbc->p", member, sums, member).argmax()]


@parameters.constructor
class NACI(PairClusterer):
    r"""NACI: merge rows into clusters of any shape that are unlike the known ones.

    From single rows on, NACI joins the two clusters that raise most

    .. math:: J(C) = \frac{I(C;X)}{I_0(X)} - \sum_m \eta_m \frac{I(C;Z_m)}{I_0(Z_m)},
        \qquad I(C;Z) = \sum_{c,z} [p(c,z) - p(c)\, p(z)]^2

    where Z_m are the known labelings, I(C;X) is the same quadratic information about the rows,
    whose densities are sums of Gaussians of width sigma around the rows (Parzen windows), and I_0
    is what single rows have of each. I(C;X) is the biased HSIC of labels and rows, and all of J
    the sum of one table over the pairs of rows that share a cluster. Clusters need not be convex.

    Parameters
    ----------
    <n_clusters>
    eta : float, sequence of float or "auto", default=0.2
        Weight of the known labelings, from 0 to 10**6: one for all, or one for each; 0 ignores what
        is known. Where what is sought depends on what is known, or what is known has many groups,
        0.01 to 0.1 is better; with wide windows, about 1. "auto" merges with 0, 0.01, 0.02, 0.05,
        0.1, 0.2, 0.5 and 1, which takes eight times as long, and keeps the clusters of which
        I(C;X), over the largest found, less I(C;Z_m) / I(Z_m;Z_m) of every labeling, is largest.
    bandwidth : {"seed", "normal", "contrast"} or float, default="seed"
        Width sigma of the windows, in the units of ``X``, or a rule for it, with n rows of d
        features of the mean variance s^2: "seed" is s (4 / (n (2 d + 1)))^(1 / (d + 4)), as
        published, and "normal" has d + 2 for 2 d + 1, which is the optimum for normal rows.
        "contrast" is the width at which the potentials of rows differ most, by the sum of the
        squares of the centred ones: wider than either, the more so the more features there are, and
        too wide for some curved clusters that lie close, in the plane.
    bandwidth_scale : float, default=1.5
        Factor of "seed" and "normal", from 1e-3 to 1e3. 1, which is published, is at the lower end
        of what works; clusters that are close and curved need it. In ten dimensions and more, where
        few rows are near another, 3 to 4 is better, with a larger ``eta``; ``bandwidth="contrast"``
        and ``eta="auto"`` choose both without looking at what is sought.
    normaliser : {"initial", "current"}, default="initial"
        Whether gains are divided by the information of single rows, or by that of the clusters so
        far, the other way to read the source: it changes all gains with every merge, takes
        O(n ** 3), so that 1,000 rows are many, and makes independence of what is known ever more
        important.
    refine : bool, default=True
        Whether to improve on the merges, which cannot be undone, by what is not in the source:
        single rows move as long as J rises; and for up to 7 clusters, rows are also merged to 8 as
        if nothing were known, of which all groupings are tried. The best J is kept.
    approx : {"subsample"}, optional
        "subsample" merges ``n_subsample`` rows, from all known groups alike, and places the others
        as `predict` does. None does so with a warning where there are more than ``max_exact`` rows.
    max_exact : int, default=10000
        Most rows that are merged exactly, from 2 to 10**6; the table of pairs of 10,000 rows takes
        800 MB in float64, and a fit twice that.
    n_subsample : int, default=1000
        Rows of a sample, from 2 to 10**6.
    max_iter : int, default=10000
        Most moves of single rows, at most 10**6.
    random_state : int, RandomState instance or None, default=None
        Determines the sample. All else is deterministic.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot; for the posterior of every row see `predict_proba`.
    <n_clusters_>
    linkage_ : ndarray of shape (n_merged - 1, 4)
        All merges in SciPy's form. Gains rise and fall, so that heights are ranks of merges.
    merge_gains_ : ndarray of shape (n_merged - 1,)
        What every merge added to J.
    objective_path_ : ndarray of shape (n_merged,)
        J, larger is better, of the n_merged - t clusters after t merges. It mostly peaks at a
        small number of clusters, which is one worth looking at.
    qmi_data_path_ : ndarray of shape (n_merged,)
        I(C;X) / I_0(X), likewise.
    qmi_reference_path_ : ndarray of shape (n_merged, n_labelings)
        I(C;Z) / I_0(Z) for every known labeling, likewise.
    merged_samples_ : ndarray of shape (n_merged,)
        Rows that were merged, the leaves of ``linkage_``: all, unless it is an approximation.
    bandwidth_ : float
        Width sigma, in the units of ``X``.
    eta_ : ndarray of shape (n_labelings,)
        Weights of the known labelings.
    n_moves_ : int
        Moves of single rows that led to the labels.
    objective_ : float
        -J of the rows that were merged. It has no unit.
    objective_trace_ : ndarray
        The same after every merge down to ``n_clusters``, and of the labels.
    n_iter_ : int
        Merges and moves.
    converged_ : bool
        Whether moves came to an end before ``max_iter``.
    restarts_ : xarray.Dataset
        Labels and objective: there is one start.
    <n_features_in_>
    <feature_names_in_>

    Notes
    -----
    One width serves all features: standardise those of unlike scales beforehand. Merging takes
    O(n ** 2) in practice. Rows that are alike make ties, which fall by the order of the rows.

    Several labelings are penalised one by one. To be unlike their combinations, pass these as one
    labeling.

    References
    ----------
    Dang and Bailey (2010), eqs. (6) to (16). I(C;X) is T_in + T_all - 2 T_btw; what the source
    divides the gains by is not stated; its rule for the width takes a variance for a standard
    deviation. Gretton, Bousquet, Smola and Schoelkopf (2005): HSIC.

    Examples
    --------
    >>> from nrprob import NACI
    >>> from nrprob.datasets import make_planar_shapes
    >>> X, labels = make_planar_shapes(200, "moons", random_state=0)
    >>> model = NACI(2).fit(X, known=labels[:, 0])
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
        """Check the input; see `Clusterer.prepare`."""
        task = super().prepare(X, y, known)
        m = task.codes.shape[1]
        automatic = isinstance(self.eta, str)
        weights = np.asarray(_WEIGHTS[: None if m else 1] if automatic else self.eta, float)
        if not automatic and weights.ndim and weights.shape != (m,):
            raise ValueError(
                f"eta must hold one number per known labeling; got {weights.size} for {m} "
                "labeling(s); pass that many, or one for all"
            )
        if self._alike:
            raise ValueError(
                "all features are constant, so that windows have no width; got "
                f"n_samples={len(task.x)} rows alike; pass rows that differ"
            )
        self._tried = [np.broadcast_to(w, m) for w in (weights if automatic else [weights])]
        self._set_width(task.x[task.merged])
        return task

    def _set_width(self, x: np.ndarray) -> None:
        """Choose sigma, and say where it is so small that nothing but what is known decides."""
        n, d = x.shape
        if self.bandwidth == "contrast":
            self._sigma = _contrast_width(x[:: -(-n // _MANY)])
        elif isinstance(self.bandwidth, str):
            # The rows have mean variance 1, with n for a denominator.
            rule = RULES[self.bandwidth](n, d) ** (1 / (d + 4)) * np.sqrt(n / (n - 1))
            self._sigma = float(rule * self.bandwidth_scale)
        else:
            self._sigma = float(self.bandwidth) / self._scale
        self.bandwidth_ = self._sigma * self._scale
        some = x[:: -(-n // _SOME)].astype(float)
        distance = np.median(pdist(some)) if len(some) > 1 else 0.0
        if distance > self._sigma * np.sqrt(-4 * np.log(_NOTHING)):
            warn(
                "the bandwidth is so small that most rows do not interact, and what is known "
                f"decides alone; got {self.bandwidth_:.3g}, and a median distance of "
                f"{distance * self._scale:.3g}; raise bandwidth or bandwidth_scale"
            )

    def compute(self, task):
        """Merge, and improve on it; see `Clusterer.compute`."""
        rows = Padded.of(task.x[task.merged], task.codes[task.merged])
        self._free_pairs = None
        if self.refine and any(eta.any() for eta in self._tried):
            self._free_pairs, _ = self._joined(rows, np.zeros_like(self._tried[0]))
        fits = []
        for eta in self._tried:
            self._eta = eta
            self._pairs, gains = self._joined(rows, eta)
            moved = self._labels_at(rows, self.n_clusters, bool(self.refine))
            fits.append((eta, self._pairs, gains, moved))
        self._eta, pairs, gains, moved = fits[self._best(task.codes[task.merged], fits)]
        self._keep_merges(task, pairs)
        return [(gains, moved)]

    def _best(self, codes: np.ndarray, fits: list) -> int:
        """The fit whose terms are best, each as a share of the most that there is of it."""
        if len(fits) == 1 or self.n_clusters == 1:
            return 0
        data, shared = np.zeros(len(fits)), np.zeros(len(fits))
        for i, (eta, _, _, moved) in enumerate(fits):
            data[i] = moved.value
            for weight, z in zip(eta, codes.T, strict=True):
                if z.any():  # there is more than one group
                    information = _information(moved.labels, z)
                    data[i] += weight * information / _information(np.arange(len(z)), z)
                    shared[i] += information / _information(z, z)
        return int(np.argmax(data / data.max() - shared))

    def _tables(
        self, rows: Padded, eta: np.ndarray, *, apart: bool = False
    ) -> tuple[tuple[jax.Array, ...], np.ndarray]:
        """Tables of the rows, and the weights as compiled programs take them."""
        if apart:  # where every table costs as much as the first, there are none of padding
            rows = rows._replace(codes=rows.codes[: eta.size])
        weights = np.zeros(len(rows.codes), rows.x.dtype)
        weights[: eta.size] = eta
        sigma = np.asarray(self._sigma, rows.x.dtype)
        tables, trace = _tables(rows, sigma, weights, apart=apart)
        if trace < 64 * np.finfo(rows.x.dtype).eps * len(rows.x):
            raise ValueError(
                "the bandwidth is so large that all rows are alike; got "
                f"{self.bandwidth_:.3g} for rows of standard deviation {self._scale:.3g}; lower it"
            )
        return tables, weights

    def _joined(self, rows: Padded, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Merges (s - 1, 2) of the rows, and what they add to the objective (s - 1,)."""
        current = self.normaliser == "current" and bool(eta.any())
        tables, weights = self._tables(rows, eta, apart=current)
        pairs, gains = jax.device_get(_join(tables, rows.alive, weights, current=current))
        merges = int(rows.alive.sum()) - 1
        if self.verbose:
            print(f"merged {merges + 1} rows")
        return pairs[:merges], gains[:merges].astype(float)

    def _labels_at(self, rows: Padded, n_clusters: int, refine: bool) -> merge.RowMoveResult:
        """Labels (s,) of the rows that are merged, at a number of clusters."""
        n = int(rows.alive.sum())

        def moved(table, labels, k, max_moves):
            padded = np.zeros(len(rows.alive), np.int32)
            padded[:n] = labels
            most = np.asarray(max_moves, np.int32)
            result = _move(table, rows.alive, padded, most, n_clusters=max(bucket(k, 64), _MOST))
            result = jax.device_get(result)
            return result._replace(labels=result.labels[:n], sums=result.sums[:k, :k])

        starts, grouped = [merge.cut_merges(self._pairs, n, n_clusters)], None
        if refine and self._free_pairs is not None and 1 < n_clusters < min(_MOST, n):
            few = min(_MOST, n)
            (free,), _ = self._tables(rows, 0 * self._eta)
            labels = merge.cut_merges(self._free_pairs, n, few)
            grouped = moved(free, labels, few, self.max_iter).labels
            del free  # of the size of the other table
        (table,), _ = self._tables(rows, self._eta)
        if grouped is not None:
            sums = moved(table, grouped, few, 0).sums
            starts.append(_best_grouping(sums, n_clusters)[grouped])
        result = [moved(table, start, n_clusters, self.max_iter * refine) for start in starts]
        return max(result, key=lambda one: one.value)

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        gains, moved = result[0]
        self.eta_, self.merge_gains_ = self._eta, gains
        codes = task.codes[task.merged]
        shares = [merge.quadratic_information_shares(self._pairs, z) for z in codes.T]
        path = np.stack(shares, 1) if shares else np.zeros((len(codes), 0))
        weights = self._eta * path[0]
        self.qmi_reference_path_ = path
        self.objective_path_ = 1 - weights.sum() + np.cumsum([0.0, *gains])
        self.qmi_data_path_ = self.objective_path_ + path @ self._eta
        steps = len(gains) + 1 - self.n_clusters
        self.n_moves_ = int(moved.n_moves)
        self._found(
            moved.labels,
            -moved.value,
            np.append(-self.objective_path_[: steps + 1], -moved.value),
            n_iter=max(steps, 0) + self.n_moves_,
            converged=not self.refine or bool(moved.done),
        )
        return self

    # Reading the result

    def cut(self, n_clusters, *, refine=True):
        """Labels at another number of clusters, of the same merges.

        Parameters
        ----------
        n_clusters : int
            At most the number of rows that were merged.
        refine : bool, default=True
            Whether to improve on the merges: to move single rows, and to try groupings if `fit` had
            ``refine``. If not, the clusters of a cut are unions of those of any cut into more.

        Returns
        -------
        ndarray of shape (n_samples,)
            Numbered by first row.

        Raises
        ------
        ValueError, TypeError
            If there are fewer rows than clusters, or ``refine`` is not True or False.
        """
        self._check_cut(n_clusters)
        check_flag("refine", refine)
        merged = self.merged_samples_
        with standard():
            rows = Padded.of(self._x[merged], self._codes[merged])
            labels = self._labels_at(rows, n_clusters, refine).labels
        return self._extended(labels, n_clusters)

    # New rows

    def _scores(self, square, labels, n_clusters):
        """Log of the share (b, n_clusters) that every cluster has in the windows at a row."""
        with np.errstate(over="ignore"):
            log = np.maximum(square / (-2 * self._sigma**2), -1e300)
        weight = np.exp(log - log.max(1, keepdims=True))
        share = weight @ np.eye(n_clusters)[labels]
        with np.errstate(divide="ignore"):
            return np.log(share / share.sum(1, keepdims=True))

    def predict_proba(self, X, *, known=None):
        r"""Posterior of the clusters of new rows, by the windows around the rows of the fit.

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
        X, known = self._take_out(X, known)
        return np.exp(self._log_membership(X, known))
