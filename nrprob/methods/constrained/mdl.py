"""Minimum description length clustering under hard or soft pairwise constraints."""

from __future__ import annotations

from dataclasses import KW_ONLY
from functools import partial
from typing import Annotated, Any

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.utils.validation import check_is_fitted

from nrprob.codelength import multinomial_complexity
from nrprob.data.validation import LARGEST, MOST, check_random_state
from nrprob.estimator import parameters
from nrprob.estimator.base import Restarts
from nrprob.estimator.pairs import PairTask
from nrprob.links import Components, InfeasibleConstraints, Pairs, cluster_order
from nrprob.methods.constrained import search
from nrprob.methods.constrained.base import ConstrainedSearch
from nrprob.methods.constrained.codes import Settings
from nrprob.methods.constrained.limits import closer_than, farther_than, lonely, nearest_mates
from nrprob.methods.constrained.problem import (
    ConstrainedProblem,
    Described,
    ignorable_pairs,
)
from nrprob.methods.constrained.report import Report
from nrprob.methods.constrained.sizes import SizeLimits
from nrprob.statistics.features import ALIKE, StandardisedRows
from nrprob.statistics.rows import coarse_bucket


@parameters.constructor
class MDLConstrained(ConstrainedSearch):
    r"""Cluster by minimum description length, with pairs that must or must not share a cluster.

    Rows are sent as a cluster and a squared distance from its mean. What both sides know need not
    be sent: linked rows share one word for their cluster, and a word names only clusters that no
    earlier row across a cannot-link has. With the words i in the order of sending, :math:`A_i` the
    clusters that are open to word i, r the squared distances and :math:`w = d/2`,

    .. math:: L = \sum_i \left[-\log \omega_{z_i} + \log \sum_{j \in A_i} \omega_j\right]
        + \log C(K, I) + w N \left(\log s + 1\right) + PC_s + F, \qquad s = \frac1N \sum r

    is minimised over clusters, weights :math:`\omega` and means. F is what it takes to say which
    pairs are kept; it is 0 if all are. So the length of the description, in nats, says whether a
    constraint is worth its price, and ``constraints="soft"`` keeps only those that are.

    Parameters
    ----------
    n_clusters : int, default=2
        Number K of clusters.
    constraints : {"hard", "soft"}, default="hard"
        "hard" keeps every pair, or refuses. "soft" keeps a pair where that shortens the
        description. The limits below, and labels in ``y``, are kept in any case.
    sigma : {"view", "cluster"}, default="view"
        Whether all clusters share one mean squared distance s, or have one each, as published.
    geometry : {"gaussian", "exp"}, default="gaussian"
        "gaussian" codes rows by an isotropic normal density. "exp" codes squared distances by an
        exponential one, w = 1, as published; it is the same for two features, and for more of them
        weighs distances too little against words.
    scale_range : tuple of float, default=(1e-3, 10.0)
        Bounds of s, in units of the total variance of the rows, from 1e-12 to 1e12. Clusters that
        are tighter are coded as if they were not.
    delta : float, optional
        Least distance between rows of two clusters: rows that are closer share one. Definition 5.3.
        At least 0, as all limits.
    epsilon : float, optional
        Largest distance from every row to the nearest other row of its cluster, unless it is alone.
        Definition 5.4.
    max_diameter : float, optional
        Largest distance between two rows of a cluster.
    min_size, max_size : int, optional
        Least and largest number of rows in every cluster: definition 5.5. They need
        ``constraints="hard"``.
    n_init : int, default=10
        Number of restarts, at most 10**6; the shortest description is kept.
    max_iter : int, default=100
        Most iterations of a restart, at most 10**6; with "soft", after annealing.
    tol : float, default=1e-7
        Least fall of the length that counts, in nats per row; from 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Determines the starts.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot.
    <n_clusters_>
    objective_ : float
        Length of the description in nats, up to a constant that depends on the data alone.
    lengths_ : dict
        Its parts: "words", "distances", and "flags" (F).
    objective_trace_ : ndarray
        Length after every iteration of the best restart. With "hard" it never rises. With "soft"
        it may, and the shortest is kept, so that ``objective_`` is its minimum.
    accepted_ : DataFrame
        A line for every given pair: ``kind`` ("must_link" or "cannot_link"), rows ``i`` and ``j``,
        whether the pair is ``satisfied`` and ``accepted`` (kept), and ``nats``, by how much the
        words would be longer without this pair alone; 0 where it is not accepted, or follows from
        others. Flags, which "soft" pays for, are not in it.
    weights_ : ndarray of shape (n_clusters,)
        Weights of the words.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Means of the clusters; that of all rows for one without rows.
    scales_ : ndarray of shape (n_clusters,)
        Mean squared distances s.
    degeneracy_ : int
        Q of the graph of pairs that must be kept: with more than Q clusters they always can be.
    n_iter_ : int
        Iterations of the best restart.
    <converged_>
    restarts_ : xarray.Dataset
        Labels and lengths of all restarts that kept what must be kept.
    <n_features_in_>
    <classes_>

    Notes
    -----
    The order of sending is the inductive order of the cannot-links between components: the one of
    least degree last. With K > Q no cluster is ever missing in it, and the code is complete. The
    weights of the words are those that make them shortest, a convex problem; the thesis's shares of
    rows do not. Their complexity is taken to be that of unconstrained words, one per component of
    what must be kept: exact without cannot-links, and constant in any case.

    Whether K clusters can keep the cannot-links is the colouring of a graph. It is searched for
    exactly, up to 50,000 steps; beyond, a failure says that it is undecided.

    A hard search goes down from k-means++ centres and the thesis's greedy assignment: in inductive
    order, those of largest maximum coding risk (5.6) first. In every iteration the shortest is
    taken of three assignments: the greedy one, better single moves that are priced exactly, and
    exchanges of two clusters within connected parts; only if it shortens the description. A soft
    search anneals single moves, and moves linked rows together. A row whose pairs are not kept pays
    ``log(kept / ignored)`` for each, which is what flags of adaptive probability cost. Flags tell
    the two kinds of pairs apart, and no more: they are read before any cluster is known.

    Soft constraints spare the rows that are wrongly linked. New rows gain from that as far as wrong
    links displace the centres, and links between classes that overlap hardly do: on iris, hard
    constraints without the wrong links place new rows no better either. On wine both do
    (``benchmarks/mdl_constrained.py``).

    ``epsilon`` is a choice of must-links, of which only those to the nearest rows are tried, one
    violation at a time. Sizes are met by integer programming, from the best restarts.

    Row numbers in pairs are those of the ``X`` that is given to `fit`: they do not survive
    cross-validation, which takes rows away.

    References
    ----------
    Yin (2007), chapter 5, with these corrections: the assignment minimises over clusters that are
    *not* taken (5.4.3, 3d); with a scale per cluster its cost has a log s (3a); sections 5.4.2 and
    5.4.3 leave open in which order words are sent, on which their length depends; the single bit
    per pair of section 5.5 could not influence any choice; (5.4) is named epsilon. Davidson and
    Ravi (2005, 2006), the limits on distances and the inductive order.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import MDLConstrained
    >>> X = np.array([[0.0, 0], [0.1, 0], [1.0, 0], [1.1, 0]])
    >>> labels = MDLConstrained(2, random_state=0).fit(X, must_link=[[0, 3]]).labels_
    >>> bool(labels[0] == labels[3])
    True
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    constraints: Annotated[str, parameters.Choice(("hard", "soft"))] = "hard"
    sigma: Annotated[str, parameters.Choice(("view", "cluster"))] = "view"
    geometry: Annotated[str, parameters.Choice(("gaussian", "exp"))] = "gaussian"
    scale_range: parameters.ScaleRange = (1e-3, 10.0)
    delta: Annotated[float | None, parameters.Number(0, LARGEST, optional=True)] = None
    epsilon: Annotated[Any, parameters.Number(0, LARGEST, optional=True)] = None
    max_diameter: Annotated[float | None, parameters.Number(0, LARGEST, optional=True)] = None
    min_size: Annotated[int | None, parameters.Number(0, MOST, integer=True, optional=True)] = None
    max_size: Annotated[int | None, parameters.Number(0, MOST, integer=True, optional=True)] = None
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 100
    tol: parameters.Tolerance = 1e-7
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    # Input

    def check_parameters(self):
        """Refuse parameters that are wrong whatever the data."""
        super().check_parameters()
        if self.constraints == "soft" and (self.min_size, self.max_size) != (None, None):
            raise ValueError(
                "limits on sizes need constraints='hard'; got constraints='soft' with "
                f"min_size={self.min_size} and max_size={self.max_size}; choose one of the two"
            )

    def fit(self, X, y=None, *, must_link=None, cannot_link=None):  # type: ignore[override]
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
            Float32 input is searched in float32, all else in float64; lengths are in float64.
        y : array-like of shape (n_samples,), optional
            Wanted labels, -1 where unknown. Cluster i is the i-th of the sorted labels; further
            clusters are free.
        must_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows that share a cluster. Repeats, and a row with itself, say nothing.
        cannot_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows that do not. Repeats say nothing.

        Returns
        -------
        self

        Raises
        ------
        InfeasibleConstraints
            A ValueError, if what must be kept cannot be. Its message and its attributes
            ``must_link`` and ``cannot_link`` name pairs that are in conflict, as few as were found.
        ValueError
            If pairs are no pairs of rows, or the data do not fit the parameters.
        TypeError
            If pairs are not integers.
        """
        return self._fit(X, y, must_link=must_link, cannot_link=cannot_link)

    def compute(self, task):
        """Search until no row is alone; see `Clusterer.compute`."""
        data, k, hard = (
            StandardisedRows.from_rows(task.X),
            self.n_clusters,
            self.constraints == "hard",
        )
        weight = 1.0 if self.geometry == "exp" else task.X.shape[1] / 2
        must, cannot = self._kept(data, task)
        low, high = map(float, self.scale_range)
        seed = np.asarray(check_random_state(self.random_state).randint(2**31 - 1), np.uint32)
        while True:
            parts = Components(len(data.x), must, cannot)
            ignorable = (
                ignorable_pairs(pairs[:0] if hard else pairs, parts)
                for pairs in (task.must_link, task.cannot_link)
            )
            problem = ConstrainedProblem(
                data,
                k,
                weight,
                self.sigma == "view",
                (low, high),
                parts,
                *ignorable,
            )
            result = self._search(problem, seed)
            alone = np.zeros(0, np.int64)
            if self.epsilon is not None:
                alone = lonely(data.x, self.epsilon / data.scale, result[0].labels)
            if not alone.size:
                return [(problem, result)]
            # Every round links more rows for good, so that there are no more rounds than rows.
            mates = nearest_mates(data.x, alone, self.epsilon / data.scale)
            must.append(Pairs(np.stack([alone, mates], 1), "epsilon"))

    def _kept(self, data: StandardisedRows, task: PairTask) -> tuple[list[Pairs], list[Pairs]]:
        """Must-links and cannot-links that must be kept, those of the limits among them."""
        must, cannot = task.kept(self.constraints == "hard")
        if self.delta is not None:
            must.append(Pairs(closer_than(data.x, self.delta / data.scale), "delta"))
        if self.max_diameter is not None:
            far = farther_than(data.x, self.max_diameter / data.scale)
            cannot.append(Pairs(far, "max_diameter"))
        if self.epsilon is not None:
            n = len(data.x)
            mates = nearest_mates(data.x, np.arange(n), self.epsilon / data.scale)
            lone = np.flatnonzero(mates < 0)
            if lone.size + (lone.size < n) > self.n_clusters:
                raise InfeasibleConstraints(
                    f"{lone.size} row(s) have no other row within epsilon and need a cluster of "
                    f"their own each; got epsilon={self.epsilon} and n_clusters={self.n_clusters}, "
                    f"and among these rows {lone[:5].tolist()}; raise epsilon or n_clusters"
                )
            for row in lone:
                others = np.delete(np.arange(n), row)
                cannot.append(Pairs(np.stack([np.full(n - 1, row), others], 1), "epsilon"))
        return must, cannot

    # Search

    def _search(
        self, problem: ConstrainedProblem, seed: np.ndarray
    ) -> tuple[Described, Restarts, np.ndarray, int, bool]:
        """Shortest description, all restarts, its trace and iterations, and if it converged."""
        nodes, at = problem.nodes()
        soft = bool(len(problem.link) or len(problem.apart))
        run = partial(
            search.search, nodes, self._settings(problem), seed,
            n_clusters=coarse_bucket(self.n_clusters, 4), n_init=self.n_init, soft=soft,
            apart=len(problem.parts.edges) > 0,
        )  # fmt: skip
        runs = self._run(run, nodes, 8, self.max_iter + 1 + soft * search.N_ANNEAL)
        done = np.flatnonzero(runs.feasible)
        if not done.size:
            raise ValueError(
                "whether the cannot-links can be kept is undecided: the exact search reached its "
                f"limit, and no restart found a way; got n_clusters={self.n_clusters} for "
                f"cannot-links of degeneracy {problem.q}, and only more clusters than that are "
                "certain to be enough; raise n_clusters or n_init, or use constraints='soft'"
            )
        result = [
            problem.describe(runs.labels[i][at][problem.parts.node].astype(np.int64)) for i in done
        ]
        lengths = np.array([f.length for f in result])
        restarts = Restarts(np.stack([f.labels for f in result]), lengths, runs.converged[done])
        if self.verbose:
            print(f"restarts {self.n_init}: objective {lengths.min():.6g} nats")
        order = np.argsort(lengths, kind="stable")
        result, best = [result[i] for i in order], done[order[0]]
        trace = runs.trace[best].astype(float)
        trace = trace[~np.isnan(trace)]
        if result[0].length < trace.min() - 1e-9 * problem.data.x.size:
            # Single pairs were given up, which the search does not try.
            trace = np.append(trace, result[0].length)
        parts, n = problem.parts, len(problem.data.x)
        high = n if self.max_size is None else self.max_size
        limits = SizeLimits(np.bincount(parts.node), parts.edges, self.min_size or 0, high)
        limits.check(self.n_clusters)
        if limits.met(np.bincount(result[0].labels, minlength=self.n_clusters)):
            n_iter = max(int(runs.n_iter[best]), 1)
            return result[0], restarts, trace, n_iter, bool(runs.converged[best])
        shortest, trace = self._resize(problem, limits, result[:3])
        return shortest, restarts, trace, len(trace), len(trace) < self.max_iter

    def _settings(self, problem: ConstrainedProblem) -> Settings:
        n, dtype = len(problem.data.x), problem.data.dtype

        def number(value):
            return np.asarray(value, dtype)

        pairs = len(problem.link), len(problem.apart)
        return Settings(
            n_clusters=np.asarray(self.n_clusters, np.int32),
            max_iter=np.asarray(self.max_iter, np.int32),
            tol=number(max(self.tol, 8 * np.finfo(dtype).eps) * n),
            weight=number(problem.weight),
            low=number(problem.bounds[0]),
            high=number(problem.bounds[1]),
            shared=np.asarray(problem.shared),
            has_start=np.asarray(problem.start is not None),
            n_pairs=np.asarray(pairs, np.int32),
            constant=number(problem.constant),
            flag_complexity=number([multinomial_complexity(2, p) for p in pairs]),
        )

    def _resize(
        self, problem: ConstrainedProblem, limits: SizeLimits, starts: list[Described]
    ) -> tuple[Described, np.ndarray]:
        """Shortest description with clusters of sizes within limits, from the best few starts."""
        kept: list[tuple[Described, list[float]]] = []
        for start in starts:
            trace: list[float] = []
            now = at = start
            for _ in range(self.max_iter):
                at = problem.describe(limits.assign(problem.costs(at))[problem.parts.node])
                if trace and not at.length < trace[-1] - self.tol * at.labels.size:
                    break
                now = at
                trace.append(at.length)
            kept.append((now, trace))
        best, trace = min(kept, key=lambda c: c[0].length)
        return best, np.array(trace)

    # Results

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        problem, (best, restarts, trace, n_iter, converged) = result[0]
        k, data = self.n_clusters, problem.data
        order = cluster_order(best.labels, task.fixed, k)
        name = np.argsort(order)
        labels = name[best.labels]
        self._pairs = Report(
            problem, best, (task.must_link, task.cannot_link), self.constraints == "hard"
        )
        self.lengths_ = best.lengths
        self.weights_ = best.weights[order]
        self.scales_ = best.scales[order] * data.scale**2
        self.cluster_centers_ = best.centres[order] * data.scale + data.centre
        self.degeneracy_ = problem.q
        self._weight = problem.weight
        self._store(
            restarts._replace(labels=name[restarts.labels]),
            membership=np.eye(k)[labels],
            trace=trace,
            n_iter=n_iter,
            nothing_left=ALIKE if data.all_equal else "",
            chosen=Restarts(labels[None], np.array([best.length]), np.array([converged])),
        )
        return self

    @property
    def accepted_(self):
        """What became of every given pair: a DataFrame, built on first access."""
        check_is_fitted(self)
        return self._pairs.table

    # New rows

    def _log_membership(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        X = self._validate(X, reset=False)
        present = np.flatnonzero(self._holds_rows)
        out = np.full((len(X), self.n_clusters), -np.inf)
        centres, scales = self.cluster_centers_[present], self.scales_[present]
        square = cdist(X.astype(np.float64), centres, "sqeuclidean")
        length = self._weight * (np.log(scales) + square / scales)
        out[:, present] = np.log(self.weights_[present]) - length
        return out
