"""Several views of the same rows, clustered together by description length."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from nrprob import codelength, metrics
from nrprob.engines import solve
from nrprob.estimator.base import Clusterer, labelings, read_labels
from nrprob.estimator.calls import at_once
from nrprob.exceptions import warn
from nrprob.methods.multiview.solver import SMOOTHING, Design, Numbers, Runs, solve_multiview
from nrprob.statistics.features import check_range
from nrprob.statistics.rows import Layout, Rows, arrange, bucket, cluster_means, make_rows
from nrprob.validation import MOST, check_random_state, check_rows, check_same_order

__all__ = ["MDLMultiView"]

GEOMETRIES = ("gauss", "exp")
SIGMAS = ("view", "cluster")
E_STEPS = ("stochastic", "mean-field")
CENTRE_CODES = ("half_log", "none")
STARTS = (1.0, 0.4, 0.16)  # of the restarts in turn, in units of the temperature of the first split

_END = 0.05  # temperature at which annealing gives way to the best cell of every row
_CELLS = 4096  # of a joint table


@dataclass
class View:
    """How the rows of a view are scaled."""

    mean: np.ndarray
    scale: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Centre and scale rows (n, d)."""
        return (x - self.mean.astype(x.dtype)) / x.dtype.type(self.scale)


@dataclass
class Configuration:
    """Numbers of clusters and coding of one candidate, and where its runs are.

    Attributes
    ----------
    sizes : clusters of every view
    dependent : whether labels are coded jointly
    constant : what the complete length has besides that of labels and distances
    """

    sizes: tuple[int, ...]
    dependent: bool
    constant: float


@dataclass
class Views:
    """Checked and laid out input of one fit, and the calls that remain to be made."""

    scaled: list[np.ndarray]
    rows: Rows
    layout: Layout
    configurations: list[Configuration]
    calls: list[solve.Call] = field(default_factory=list)


class MDLMultiView(Clusterer):
    r"""Cluster the same rows in several views at once, by description length.

    Every view has clusters of its own. A row is sent as its clusters in all views, and its squared
    distance r to the centre in each. Sending the clusters jointly is short where the views agree,
    so that views inform each other as far as that saves more than it costs in distances. With a
    table of counts n over the cells of all views, and views v of N rows, it minimises, in nats,

    .. math:: L = \log C(\textstyle\prod_v K_v, N) - \sum_{cells} n \log \frac{n}{N}
        + \sum_v \left[w_v \left(N \log s_v + \frac{R_v}{s_v}\right) + PC_v
        + \frac{K_v d_v}{2} \log \frac{N}{2 \pi}\right], \qquad s_v = R_v / N

    Parameters
    ----------
    n_clusters : int, tuple of int or "auto", default=2
        Number of clusters, of all views or of each. "auto" tries all combinations from 1 to
        ``max_clusters``, in one compiled program, and keeps the one of the shortest length.
    views : sequence of int, optional
        Numbers of columns of the views, where `fit` gets one table with the views side by side.
    dependent : bool or "auto", default=True
        Whether the clusters of a row are sent jointly; False clusters every view by itself. "auto"
        does both and keeps the shorter code.
    sigma : {"view", "cluster"}, default="view"
        Whether a view has one scale s, or one for every cluster, which is what the thesis's tables
        were made with. The length has very small clusters for its optima then, and chooses too
        many of them.
    geometry : {"gauss", "exp"}, default="gauss"
        "gauss" codes rows by an isotropic normal density, w = d/2. "exp" codes their squared
        distances by an exponential one, w = 1, as published: the same for two features, and too
        little weight to views of many.
    e_step : {"stochastic", "mean-field"}, default="stochastic"
        Whether annealing draws a cell for every row, as published, or keeps all of them by their
        probabilities. The latter is monotone and nearly free of its start, so that restarts differ
        little.
    max_clusters : int or tuple of int, default=5
        Largest numbers that ``n_clusters="auto"`` tries, at most 256. Every combination has
        ``n_init`` restarts.
    centre_code : {"half_log", "none"}, default="half_log"
        Whether the complete length includes the coordinates of the centres, the last term above.
        Without effect unless numbers of clusters are compared.
    scale_range : tuple of float, default=(1e-3, 10.0)
        Bounds of s, in units of the view's total variance, from 1e-12 to 1e12. Clusters that are
        tighter are coded as if they were not.
    start : "auto" or float or sequence of float, default="auto"
        First temperatures of the restarts, in turn. "auto" is 1, 0.4 and 0.16 times the sum over
        the views of the temperatures at which a view first splits, plus a fifth; a number is from
        1e-9 to 10**9.
    cooling : float, default=1.11
        Ratio of successive temperatures, down to 0.05; from 1.01 to 10**6. Runs with a lower start
        wait there.
    n_steps : int, default=4
        Steps at every temperature, at most 10,000.
    n_init : int, default=10
        Number of restarts, at most 10**6; the one with the shortest complete length is kept.
    max_iter : int, default=100
        Most steps of the descent that ends every restart; at most 10**6.
    random_state : int, RandomState instance or None, default=None
        Determines starts and draws.
    verbose : int, default=0
        Whether to print progress.

    Attributes
    ----------
    alternatives_ : ndarray of shape (n_samples, n_views)
        Cluster of every row in every view.
    labels_ : ndarray of shape (n_samples,), or (n_samples, n_views) for several views
        The same. From the next release on those of the first view alone: until then it warns where
        there are several.
    membership_ : list of ndarray of shape (n_samples, n_clusters), or one of them
        One-hot form of the labels.
    n_clusters_ : tuple of int, or int
        Numbers of clusters that hold rows.
    dependent_ : bool
        Whether the labels are coded jointly.
    pdl_, cdl_, tdl_ : float
        Length of the labels at their own frequencies, length of the distances without constants
        (``w n log s`` unless a bound of s is active), and their sum: what the thesis's tables give.
    complexity_ : float
        What completes ``tdl_``: parametric complexities, constants and the code of the centres.
    objective_ : float
        ``tdl_ + complexity_``, the complete length in nats. Comparable between numbers of clusters
        and codings of the same rows, at one geometry.
    dependence_gain_ : float
        What joint coding of these labels saves over separate coding, in nats: N times their
        (multi-)information less the additional parametric complexity. Positive where the views
        depend on each other. NaN if a joint table would have too many cells.
    cluster_centers_ : list of ndarray of shape (n_clusters, n_features), or one of them
        Means; that of all rows where a cluster is empty.
    scales_ : list of ndarray of shape (n_clusters,), or one of them
        Scale s of every cluster, a mean squared distance.
    joint_ : ndarray of shape (n_clusters of view 1, n_clusters of view 2, ...) or None
        Shares of the cells; None if coded separately.
    margins_ : list of ndarray of shape (n_clusters,)
        Shares of the clusters of every view.
    selection_ : pandas.DataFrame
        Best run of every combination that was tried: numbers of clusters, coding, and lengths.
    temperatures_ : ndarray
        Temperature of every entry of ``objective_trace_``; 0 during the final descent.
    objective_trace_ : ndarray
        ``tdl_`` of the best restart after every step.
    n_iter_, converged_
        Steps of all restarts side by side; whether the best one came to rest.
    restarts_ : xarray.Dataset
        Labels, lengths and convergence of all restarts of the chosen combination.
    view_sizes_ : tuple of int
        Numbers of features of the views.
    n_features_in_ : int
        Their sum.

    Notes
    -----
    Lengths of "gauss" leave out ``w N log(2 pi / d)``, which depends on nothing that is chosen. The
    lengths change by ``2 w N log(a)`` if a view is multiplied by a, and by nothing if it is moved
    or rotated. Joint tables have at most 4096 cells.

    References
    ----------
    Yin (2007), "Inferring informed clustering problems with minimum description length principle",
    chapter 3: (3.1) to (3.5), (3.10) to (3.13), theorem 3.1. Printed lengths are reproduced by
    ``sigma="cluster", geometry="exp"``: (3.10) is the objective of one scale per view, the updates
    (3.13) and the tables belong to one per cluster. Theorem 3.2 does not hold for drawn cells.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import MDLMultiView
    >>> rng = np.random.default_rng(0)
    >>> z = rng.integers(2, size=100)
    >>> views = [4 * z[:, None] + rng.normal(size=(100, d)) for d in (2, 3)]
    >>> model = MDLMultiView(2, random_state=0).fit(views)
    >>> model.alternatives_.shape, model.matching_rate() > 0.9
    ((100, 2), True)
    """

    _rarely_finite = ("dependence_gain_",)

    def __init__(
        self,
        n_clusters=2,
        *,
        views=None,
        dependent=True,
        sigma="view",
        geometry="gauss",
        e_step="stochastic",
        max_clusters=5,
        centre_code="half_log",
        scale_range=(1e-3, 10.0),
        start="auto",
        cooling=1.11,
        n_steps=4,
        n_init=10,
        max_iter=100,
        random_state=None,
        verbose=0,
    ):
        self.n_clusters = n_clusters
        self.views = views
        self.dependent = dependent
        self.sigma = sigma
        self.geometry = geometry
        self.e_step = e_step
        self.max_clusters = max_clusters
        self.centre_code = centre_code
        self.scale_range = scale_range
        self.start = start
        self.cooling = cooling
        self.n_steps = n_steps
        self.n_init = n_init
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    _many_clusters = False

    # Parameters and input

    def check_parameters(self):
        """Refuse parameters that are wrong whatever the data."""
        self._check_limits()
        self._check_number("n_steps", self.n_steps, low=1, high=10_000, integer=True)
        self._check_number("cooling", self.cooling, low=1.01, high=1e6)
        for name, choices in (
            ("sigma", SIGMAS),
            ("geometry", GEOMETRIES),
            ("e_step", E_STEPS),
            ("centre_code", CENTRE_CODES),
        ):
            self._check_choice(name, getattr(self, name), choices)
        if isinstance(self.dependent, str):
            self._check_choice("dependent", self.dependent, ("auto",), "or True or False")
        elif not isinstance(self.dependent, bool | np.bool_):
            raise TypeError(
                f"dependent must be True, False or 'auto'; got {self.dependent!r}; pass one of them"
            )
        if isinstance(self.start, str):
            self._check_choice("start", self.start, ("auto",), "or temperatures")
        else:
            for value in np.ravel(self.start).tolist():
                self._check_number("start", value, low=1e-9, high=1e9)
        self._scale_bounds()

    def _numbers(self, name: str, value: Any, n_views: int, most: int) -> tuple[int, ...]:
        """Numbers of clusters of all views."""
        if isinstance(value, np.ndarray | list | tuple):
            numbers = tuple(value)
            if len(numbers) != n_views:
                raise ValueError(
                    f"{name} must hold one number per view; got {len(numbers)} for {n_views} "
                    "view(s); pass that many, or one for all"
                )
        else:
            numbers = (value,) * n_views
        for number in numbers:
            self._check_number(name, number, low=1, high=most, integer=True)
        return tuple(int(number) for number in numbers)

    def _split(self, X: Any, *, reset: bool) -> list[np.ndarray]:
        """Checked rows of every view, in one dtype."""
        if not _several(X):
            x = self._checked(X, reset=reset)
            if self.views is None:
                return [x]
            sizes = self._sizes(x.shape[1])
            return np.split(x, np.cumsum(sizes)[:-1], axis=1)
        for v, x in enumerate(X[1:], 1):
            check_same_order(X[0], **{f"X[{v}]": x})
        if self.views is not None:
            raise ValueError(
                f"views says how to cut one table; got {len(X)} tables; leave views out"
            )
        kinds = {np.dtype(getattr(x, "dtype", float)) for x in X}
        dtype = np.float32 if kinds == {np.dtype(np.float32)} else np.float64
        found = [
            check_rows(x, check_array, dtype=dtype, input_name=f"view {v}", estimator=self)
            for v, x in enumerate(X)
        ]
        rows = [x.shape[0] for x in found]
        if len(set(rows)) > 1:
            raise ValueError(
                f"views have different numbers of rows; got {rows}; pass the same rows in each"
            )
        if reset:
            self.n_features_in_ = sum(x.shape[1] for x in found)
        return found

    def _sizes(self, n_columns: int) -> tuple[int, ...]:
        if np.ndim(self.views) != 1 or len(self.views) == 0:
            raise ValueError(
                f"views must be numbers of columns; got {self.views!r}; pass one for every view"
            )
        for size in self.views:
            self._check_number("views", size, low=1, high=MOST, integer=True)
        sizes = tuple(int(size) for size in self.views)
        if sum(sizes) != n_columns:
            raise ValueError(
                f"views must add up to the columns of X; got {sizes} for {n_columns} columns; "
                "correct them"
            )
        return sizes

    def fit(self, X, y=None, *, known=None):
        """Cluster the rows of all views.

        Parameters
        ----------
        X : list of array-like of shape (n_samples, n_features), one per view
            The same rows in each. A single table is one view, or several side by side if ``views``
            says so. All float32 input is computed in float32, all else in float64.
        y : array-like of shape (n_samples,), optional
            Present for the sake of pipelines: what it says is ignored.
        known : None
            This method takes no known structure.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data do not fit the parameters; the message says what to change.
        """
        return super().fit(X, y, known=known)

    def prepare(self, X, y, known=None) -> Views:
        """Check the input and lay it out; see `Clusterer.prepare`."""
        self.check_parameters()
        if known is not None:
            raise ValueError(
                "MDLMultiView takes no known structure; got known=...; give it as a view of its "
                "own, or use CCIB or IBSI"
            )
        self._check_one_device()
        found = self._split(X, reset=True)
        n, n_views = found[0].shape[0], len(found)
        if y is not None:
            read_labels(y, n)
        self._single = n_views == 1 and not _several(X) and self.views is None
        self.view_sizes_ = tuple(x.shape[1] for x in found)
        candidates, largest = self._candidates(n, n_views)
        self._views = []
        for v, x in enumerate(found):
            check_range(x)
            mean = x.mean(0, dtype=np.float64)
            scale = math.sqrt(float(((x - mean) ** 2).sum() / n))
            if not scale > 1e-150 + 1e-14 * float(np.abs(mean).max()):
                raise ValueError(
                    f"view {v} has no variance; got n_samples={n} equal rows; leave the view out"
                )
            self._views.append(View(mean, scale))
        scaled = [view(x) for view, x in zip(self._views, found, strict=True)]
        self._weights = np.asarray(
            [1.0 if self.geometry == "exp" else d / 2 for d in self.view_sizes_]
        )
        layout = arrange(np.zeros(n, int), 1)
        rows = make_rows(self._statistics(scaled), layout, 1)
        task = Views(scaled, rows, layout, [])
        for dependent in self._codings():
            self._add(task, candidates, largest, dependent)
        return task

    def _statistics(self, scaled: list[np.ndarray]) -> np.ndarray:
        """Features of all views, and their squared norms last, but for the 1 of every row."""
        n, n_views = scaled[0].shape[0], len(scaled)
        width = sum(self.view_sizes_)
        size = bucket(width + n_views + 1, 1024 if n <= 16384 else 1) - 1
        x = np.zeros((n, size), scaled[0].dtype)
        x[:, :width] = np.concatenate(scaled, 1)
        x[:, -n_views:] = np.stack([(view * view).sum(1) for view in scaled], 1)
        return x

    def _columns(self, n_statistics: int, dtype: Any) -> np.ndarray:
        """Which statistics are the features of a view, (V, p)."""
        columns = np.zeros((len(self.view_sizes_), n_statistics), dtype)
        ends = np.cumsum(self.view_sizes_)
        for v, (end, size) in enumerate(zip(ends, self.view_sizes_, strict=True)):
            columns[v, end - size : end] = 1
        return columns

    def _codings(self) -> tuple[bool, ...]:
        return (True, False) if self.dependent == "auto" else (bool(self.dependent),)

    def _candidates(self, n: int, n_views: int) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
        """Numbers of clusters to try, and the largest of every view."""
        if isinstance(self.n_clusters, str):
            self._check_choice("n_clusters", self.n_clusters, ("auto",), "or numbers")
            bounds = self._numbers("max_clusters", self.max_clusters, n_views, 256)
            largest = tuple(min(bound, n) for bound in bounds)
            candidates = list(itertools.product(*(range(1, k + 1) for k in largest)))
        else:
            largest = self._numbers("n_clusters", self.n_clusters, n_views, MOST)
            candidates = [largest]
        if max(largest) > n:
            raise ValueError(
                f"n_samples={n} should be >= n_clusters={max(largest)}; "
                "lower n_clusters or pass more rows"
            )
        if any(self._codings()) and math.prod(largest) > _CELLS:
            raise ValueError(
                f"a joint table may have {_CELLS} cells; got {' x '.join(map(str, largest))} "
                "clusters; use fewer, or dependent=False"
            )
        return candidates, largest

    def _add(self, task: Views, candidates, largest, dependent: bool) -> None:
        """Calls of one coding."""
        n = task.scaled[0].shape[0]
        dtype = task.rows.mass.dtype
        n_views = len(largest)
        everything = tuple(range(n_views))
        groups = (everything,) if dependent else tuple((v,) for v in everything)
        task.configurations += [
            Configuration(sizes, dependent, self._constant(sizes, groups, n))
            for sizes in candidates
        ]
        starts = self._starts(task.scaled)
        # Below this, probabilities of the rarest cells are no numbers any more.
        rarest = -math.log(SMOOTHING / (n + SMOOTHING * math.prod(largest)))
        end = max(_END, rarest / (80 if dtype == np.float32 else 600))
        low, high = self._scale_bounds()
        numbers = Numbers(
            columns=self._columns(task.rows.x.n_statistics, dtype),
            weights=self._weights.astype(dtype),
            low=np.asarray(low, dtype),
            high=np.asarray(high, dtype),
            per_cluster=np.asarray(self.sigma == "cluster"),
            cooling=np.asarray(self.cooling, dtype),
            top=np.asarray(starts.max(), dtype),
            n_anneal=np.asarray(self.n_steps * self._levels(starts.max(), end), np.int32),
            n_steps=np.asarray(self.n_steps, np.int32),
            max_iter=np.asarray(self.max_iter, np.int32),
        )
        total = len(candidates) * self.n_init
        random = check_random_state(self.random_state)
        runs = Runs(
            seed=random.randint(2**31 - 1, size=total).astype(np.uint32),
            active=np.repeat(np.asarray(candidates, np.int32), self.n_init, 0),
            start=np.tile(np.resize(starts, self.n_init), len(candidates)).astype(dtype),
            constant=np.repeat([c.constant for c in task.configurations], self.n_init)[-total:],
        )
        padded = n <= 16384 and len(candidates) == 1
        sizes = tuple(max(bucket(k, 64), 2) if padded else k for k in largest)
        if dependent and math.prod(sizes) > _CELLS:
            sizes = largest
        design = Design(sizes, groups, self.e_step)
        table = math.prod(sizes[:-1]) if dependent and n_views > 2 else 0
        each = task.rows.mass.size * (6 * sum(sizes) + 2 * table) * dtype.itemsize
        size = at_once(total, each)
        data = sum(a.nbytes for a in jax.tree.leaves(task.rows))
        for first in range(0, total, size):
            some = Runs(*(values[first : first + size] for values in runs))
            task.calls.append(
                solve.Call(
                    solve_multiview,
                    (task.rows, numbers, some),
                    (("design", design),),
                    data + each * size,
                )
            )

    def _levels(self, start: float, end: float) -> int:
        """Number of temperatures."""
        return max(math.ceil(math.log(start / end) / math.log(self.cooling)), 1)

    def _starts(self, scaled: list[np.ndarray]) -> np.ndarray:
        """First temperatures of the restarts."""
        if not isinstance(self.start, str):
            return np.ravel(np.asarray(self.start, float))
        splits = []
        for x, w in zip(scaled, self._weights, strict=True):
            n, d = x.shape
            wide = x.astype(np.float64)
            square = wide.T @ wide if d <= n else wide @ wide.T
            # The total variance is 1.
            splits.append(2 * w * float(np.linalg.eigvalsh(square / n)[-1]))
        return 1.2 * sum(splits) * np.asarray(STARTS)

    def _constant(self, sizes: Sequence[int], groups, n: int) -> float:
        """Complexity of the labels, and the code of the centres."""
        value = sum(
            codelength.multinomial_complexity(math.prod(sizes[v] for v in group), n)
            for group in groups
        )
        if self.centre_code == "half_log":
            coordinates = sum(k * d for k, d in zip(sizes, self.view_sizes_, strict=True))
            value += 0.5 * coordinates * max(math.log(n / (2 * math.pi)), 0.0)
        return float(value)

    # Results

    def finish(self, task, found):
        """Set the fitted attributes; see `Clusterer.finish`."""
        n = task.scaled[0].shape[0]
        # What scaling the rows took from the lengths of the distances.
        shift = float(
            sum(
                2 * w * n * math.log(view.scale)
                for w, view in zip(self._weights, self._views, strict=True)
            )
        )
        joined = {
            name: np.concatenate([np.asarray(getattr(f, name)) for f in found])
            for name in ("objective", "partition", "distance", "converged", "cells")
        }
        joined["objective"] = joined["objective"] + shift
        joined["distance"] = joined["distance"] + shift
        shape = len(task.configurations), self.n_init
        objective = joined["objective"].reshape(shape)
        restart = objective.argmin(1)
        chosen = int(objective.min(1).argmin())
        at = chosen * self.n_init + int(restart[chosen])
        self.selection_ = self._table(task, joined, restart)

        ends = np.cumsum([f.objective.size for f in found])
        own = range(chosen * self.n_init, (chosen + 1) * self.n_init)

        def labels_of(run):
            call = int(np.searchsorted(ends, run, side="right"))
            inside = run - (ends[call] - found[call].objective.size)
            return call, inside, task.layout.collect(found[call].labels)[:, inside]

        call, inside, labels = labels_of(at)
        self._runs = {
            "labels": np.stack([labels_of(run)[2] for run in own]),
            **{
                name: joined[key][own]
                for name, key in (
                    ("objective", "objective"),
                    ("pdl", "partition"),
                    ("cdl", "distance"),
                    ("converged", "converged"),
                )
            },
        }
        self._runs["start"] = np.concatenate([c.arrays[2].start for c in task.calls])[own]
        configuration = task.configurations[chosen]
        self.dependent_ = configuration.dependent
        self.objective_ = float(joined["objective"][at])
        self.pdl_ = float(joined["partition"][at])
        self.cdl_ = float(joined["distance"][at])
        self.tdl_ = self.pdl_ + self.cdl_
        self.complexity_ = self.objective_ - self.tdl_
        self.converged_ = bool(joined["converged"][at])
        self.n_iter_ = int(found[call].n_iter)
        trace = found[call].trace[:, inside].astype(float)
        trace = trace[~np.isnan(trace)]
        self.objective_trace_ = trace + shift
        numbers, runs = task.calls[call].arrays[1:]
        step = np.arange(trace.size)
        falling = numbers.top * self.cooling ** -(step // self.n_steps).astype(float)
        falling = np.minimum(falling, runs.start[inside])
        self.temperatures_ = np.where(step < numbers.n_anneal, falling, 0.0)
        self._decode(task, configuration, labels, joined["cells"][at])
        self._check_result(configuration)
        return self

    def _decode(self, task, configuration, labels, cells) -> None:
        """Codes of the best run, in the units of the data."""
        design = dict(task.calls[0].static)["design"]
        n = labels.shape[0]
        numbers = task.calls[0].arrays[1]
        centres, scales, margins = [], [], []
        for v, (k, view) in enumerate(zip(configuration.sizes, self._views, strict=True)):
            own = cells[design.clusters(v)][:k]
            start = sum(self.view_sizes_[:v])
            mass, sums = own[:, -1], own[:, start : start + self.view_sizes_[v]]
            mean = cluster_means(sums, mass)
            r = np.maximum(own[:, design.norm(v)] - (mean * sums).sum(1), 0)
            low, high = float(numbers.low), float(numbers.high)
            if self.sigma == "cluster":
                s = np.where(mass > 0, np.clip(r / np.maximum(mass, 1), low, high), 1.0)
            else:
                s = np.full(k, np.clip(r.sum() / n, low, high))
            centres.append(view.mean + view.scale * mean)
            scales.append(view.scale**2 * s)
            margins.append(mass / n)
        self.margins_ = margins
        self.joint_ = None
        if configuration.dependent:
            joint = np.zeros(configuration.sizes)
            np.add.at(joint, tuple(labels.T), 1 / n)
            self.joint_ = joint
        self.dependence_gain_ = self._gain(labels, configuration.sizes)
        self._present = tuple(np.unique(column).size for column in labels.T)
        labels = labels.astype(np.int64)
        membership = [np.eye(k)[z] for k, z in zip(configuration.sizes, labels.T, strict=True)]
        one = self._single
        self.alternatives_ = labels
        self.membership_: Any = membership[0] if one else membership
        self.n_clusters_: Any = self._present[0] if one else self._present
        self.cluster_centers_ = centres[0] if one else centres
        self.scales_ = scales[0] if one else scales

    def _gain(self, labels: np.ndarray, sizes: Sequence[int]) -> float:
        n = labels.shape[0]
        if math.prod(sizes) > _CELLS:
            return math.nan
        cells = np.unique(labels, axis=0, return_counts=True)[1]
        together = codelength.maximum_likelihood_length(cells)
        together += codelength.multinomial_complexity(math.prod(sizes), n)
        apart = sum(
            codelength.nml_length(np.bincount(column, minlength=k))
            for column, k in zip(labels.T, sizes, strict=True)
        )
        return float(apart - together)

    def _table(self, task: Views, joined: dict[str, np.ndarray], restart: np.ndarray) -> Any:
        import pandas as pd

        rows = []
        for c, (configuration, best) in enumerate(zip(task.configurations, restart, strict=True)):
            at = c * self.n_init + int(best)
            pdl, cdl = float(joined["partition"][at]), float(joined["distance"][at])
            rows.append(
                {
                    **{f"n_clusters_{v}": k for v, k in enumerate(configuration.sizes)},
                    "dependent": configuration.dependent,
                    "pdl": pdl,
                    "cdl": cdl,
                    "tdl": pdl + cdl,
                    "objective": float(joined["objective"][at]),
                }
            )
        return pd.DataFrame(rows)

    def _check_result(self, configuration: Configuration) -> None:
        for v, (k, wanted) in enumerate(zip(self._present, configuration.sizes, strict=True)):
            if k < wanted:
                self._degenerate(f"found {k} clusters in view {v}, fewer than n_clusters={wanted}")
        self._tell_convergence()

    def fit_predict(self, X, y=None, **kwargs):
        """Cluster the rows of all views; see `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_views), or (n_samples,) for a single table
        """
        return labelings(self.fit(X, y, **kwargs))

    @property
    def labels_(self):  # type: ignore[override]
        """Cluster of every row, in every view."""
        if "alternatives_" not in vars(self):
            raise AttributeError("labels_ is what fit finds")
        if self._single:
            return self.alternatives_[:, 0]
        warn(
            "labels_ holds the clusters of the first view only from the next release on; "
            "use alternatives_, which has those of all views",
            FutureWarning,
        )
        return self.alternatives_

    @property
    def restarts_(self):
        """All restarts of the chosen combination: an `xarray.Dataset`."""
        check_is_fitted(self)
        import xarray

        dims: Any = {"labels": ("restart", "sample", "view")}
        data = {name: (dims.get(name, ("restart",)), a) for name, a in self._runs.items()}
        return xarray.Dataset(data)

    def matching_rate(self):
        """Share of rows on which the clusters of two views can be made to agree.

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
        """Share of rows in the majority class of their combination of clusters.

        Parameters
        ----------
        truth : sequence of shape (n_samples,)
            Classes of the rows that were fitted.

        Returns
        -------
        float
            See `nrprob.metrics.predictive_rate`.
        """
        check_is_fitted(self)
        return metrics.predictive_rate(self.alternatives_, truth)

    # New rows

    def predict(self, X, *, known=None):
        """Clusters of new rows: those in which they cost least under the fitted codes.

        Parameters
        ----------
        X : as in `fit`
        known : ignored

        Returns
        -------
        ndarray of shape (n_samples, n_views), or (n_samples,) for a single table
        """
        check_is_fitted(self)
        found = self._split(X, reset=False)
        if tuple(x.shape[1] for x in found) != self.view_sizes_:
            raise ValueError(
                f"views must have the columns of the fit; got {[x.shape[1] for x in found]} for "
                f"{list(self.view_sizes_)}; pass the same views in the same order"
            )
        one = self._single
        centres = [self.cluster_centers_] if one else self.cluster_centers_
        scales = [self.scales_] if one else self.scales_
        costs = []
        for x, c, s, w in zip(found, centres, scales, self._weights, strict=True):
            distance = np.stack([((x.astype(np.float64) - centre) ** 2).sum(1) for centre in c], 1)
            costs.append(w * (distance / s + np.log(s)))
        scores = [-cost for cost in costs]
        with np.errstate(divide="ignore"):
            if self.joint_ is not None:
                labels = _best_cells(np.log(self.joint_), scores)
            else:
                margins = map(np.log, self.margins_)
                each = [(t + s).argmax(1) for t, s in zip(margins, scores, strict=True)]
                labels = np.stack(each, 1)
        return labels[:, 0] if one else labels

    def predict_proba(self, X, *, known=None):
        """One-hot form of `predict`.

        Parameters
        ----------
        X : as in `fit`
        known : ignored

        Returns
        -------
        list of ndarray of shape (n_samples, n_clusters), or one of them
        """
        labels = self.predict(X)
        sizes = [m.size for m in self.margins_]
        if self._single:
            return np.eye(sizes[0])[labels]
        return [np.eye(k)[z] for k, z in zip(sizes, labels.T, strict=True)]


def _several(X: Any) -> bool:
    """Whether an argument is a list of tables, and not one table that is a list."""
    return isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) == 2


def _best_cells(joint: np.ndarray, scores: list[np.ndarray]) -> np.ndarray:
    """Cell (n, V) of the largest sum of a log table and scores (n, K_v); the first of equals."""
    n = scores[0].shape[0]
    out = np.empty((n, len(scores)), np.int64)
    step = max(1, (1 << 22) // joint.size)
    for first in range(0, n, step):
        total = joint[None]
        for v, score in enumerate(scores):
            some = score[first : first + step]
            total = total + some.reshape(
                -1, *(1 if u != v else some.shape[1] for u in range(len(scores)))
            )
        best = total.reshape(total.shape[0], -1).argmax(1)
        out[first : first + step] = np.stack(np.unravel_index(best, joint.shape), 1)
    return out
