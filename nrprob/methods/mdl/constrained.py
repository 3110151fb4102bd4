"""Minimum description length clustering under hard or soft pairwise constraints."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from functools import partial
from typing import Annotated, Any

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.utils.validation import check_is_fitted

from nrprob.codelength import multinomial_complexity
from nrprob.data.validation import CLUSTERS, LARGEST, MOST, check_random_state
from nrprob.engines.optimise.move_chains import improve_by_passes
from nrprob.estimator import parameters
from nrprob.estimator.base import Restarts
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.pairs import PairTask
from nrprob.links import Components, InfeasibleConstraints, Pairs, cluster_order
from nrprob.methods.mdl import search
from nrprob.methods.mdl.codes import Settings
from nrprob.methods.mdl.limits import (
    closer_than,
    farther_than,
    isolated_rows,
    nearest_mates,
)
from nrprob.methods.mdl.linked_search import ConstrainedSearch
from nrprob.methods.mdl.pair_report import Report
from nrprob.methods.mdl.problem import (
    ConstrainedProblem,
    Described,
    constrained_objective,
    soft_pairs,
)
from nrprob.methods.mdl.proposals import improve_labels
from nrprob.methods.mdl.sizes import SizeLimits
from nrprob.statistics.features import ALIKE, StandardisedRows
from nrprob.statistics.rows import coarse_bucket

AUTO = "auto"
_STARTS = {50: 10, 5000: 3, math.inf: 1}  # refined labelings, by the largest number of components


@parameters.constructor
class MDLConstrained(ConstrainedSearch):
    r"""Minimum description length clustering with hard or soft must-links and cannot-links.

    A two-part code describes every row by a code word for its cluster and by its squared distance
    from the cluster mean. Linked rows share one code word, and a code word only encodes clusters
    that no earlier cannot-linked row has. The fit minimises over labels z, weights :math:`\omega`
    and cluster means the description length

    .. math:: L = \sum_i \left[-\log \omega_{z_i} + \log \sum_{j \in A_i} \omega_j\right]
        + \log C(K, I) + w N \left(\log s + 1\right) + PC_s + F, \qquad s = \frac1N \sum r

    where i = 1, ..., I are the code words in the order of transmission, and :math:`A_i` the
    clusters available to word i. K is the number of clusters with rows, and :math:`\log C(K, I)`
    the parametric complexity of a multinomial. The N rows have squared distances r,
    :math:`w = d/2` for d features, and :math:`PC_s` is the parametric complexity of the mean
    squared distance s. F is the length of the flags that mark retained pairs. With hard
    constraints, F = 0. With ``constraints="soft"``, the fit retains a pair only if that shortens
    the description. With ``n_clusters="auto"``, L also has the code of the cluster means,
    K d/2 log(N / 2 pi).

    Parameters
    ----------
    n_clusters : int or "auto", default=2
        Largest number K of clusters; the result has fewer if that shortens the description. "auto"
        selects the number of the shortest description, up to ``max_clusters``. It suits round
        clusters of similar scale, and divides elongated ones.
    constraints : {"hard", "soft"}, default="hard"
        "hard" satisfies every pair or raises InfeasibleConstraints. "soft" retains a pair if that
        shortens the description; use it if pairs may be wrong. Labels in ``y`` and the limits
        below are always hard.
    sigma : {"view", "cluster"}, default="view"
        Scale s: one for all clusters ("view"), or one per cluster, as published ("cluster").
    geometry : {"gaussian", "exp"}, default="gaussian"
        "gaussian" encodes rows by an isotropic normal density. "exp" encodes squared distances by
        an exponential density (w = 1), as published. Both agree for two features; for more, "exp"
        underweights distances against words.
    scale_range : tuple of float, default=(1e-3, 10.0)
        Bounds of s, in units of the total variance of the rows, from 1e-12 to 1e12. Lower the first
        if clusters are much tighter than the data.
    delta : float, optional
        Minimum distance between rows of different clusters: closer rows share a cluster
        (definition 5.3). At least 0.
    epsilon : float, optional
        Maximum distance of a row from the nearest other row of its cluster, unless the cluster has
        a single row (definition 5.4). At least 0.
    max_diameter : float, optional
        Maximum distance between two rows of a cluster. At least 0.
    min_size, max_size : int, optional
        Minimum and maximum number of rows per cluster (definition 5.5), for
        ``constraints="hard"`` only. At least 0.
    max_clusters : int, default=10
        Largest number of clusters for ``n_clusters="auto"``. At least 1.
    n_init : int, default=10
        Number of restarts; the shortest ones are refined, and the shortest description is kept.
        "auto" makes this number of restarts for every number of clusters. At most 10**6.
    max_iter : int, default=100
        Maximum number of iterations per restart, after annealing if ``constraints="soft"``; at most
        10**6.
    tol : float, default=1e-7
        Smallest decrease of the description length, in nats per row, that counts as an improvement.
        From 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Determines the initial centres and the moves of the search.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot.
    <n_clusters_>
    objective_ : float
        Description length L in nats, up to a constant that depends on the data alone.
    lengths_ : dict
        Parts of L: "words" (with the code of the means), "distances", and "flags" (F).
    objective_trace_ : ndarray
        Description length after every iteration of the best restart. Non-increasing with hard
        constraints. With soft constraints it may increase; ``objective_`` is its minimum.
    accepted_ : DataFrame
        One row per given pair: ``kind`` ("must_link" or "cannot_link"), rows ``i`` and ``j``,
        whether the pair is ``satisfied``, whether it is ``accepted`` (retained), and ``nats``: how
        much longer the words would be without this pair. ``nats`` is 0 for pairs that are not
        accepted or follow from others, and does not include flags.
    weights_ : ndarray of shape (n_clusters,)
        Weights :math:`\omega` of the code words.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Means of the clusters; the mean of all rows for an empty cluster.
    scales_ : ndarray of shape (n_clusters,)
        Mean squared distances s.
    selection_ : DataFrame
        Shortest description length of the restarts by number of clusters with rows. Only for
        ``n_clusters="auto"``.
    degeneracy_ : int
        Degeneracy Q of the graph of hard cannot-links: more than Q clusters always satisfy them.
    n_iter_ : int
        Number of iterations of the best restart.
    <converged_>
    restarts_ : xarray.Dataset
        Labels and description lengths of all restarts that satisfy the hard constraints.
    <n_features_in_>
    <classes_>

    See Also
    --------
    COPKMeans : k-means with hard links.
    ConstrainedMixture : Gaussian mixture with hard links.
    SemiSupervisedSpectral : Spectral clustering with soft links.
    MDLMultiView : Minimum description length clustering of several views.

    Notes
    -----
    A restart of the hard search has these steps:

    1. Compute k-means++ centres, and assign rows greedily in the inductive order of the
       cannot-links, by maximum coding risk (5.6) among ties.
    2. Propose three labelings: the greedy one, a sweep of exact single-row moves, and exchanges of
       two clusters within connected parts (Kempe chains).
    3. Accept the shortest proposal if it shortens the description; update weights, means and
       scales. Repeat step 2.

    With hard constraints, the shortest restarts are then refined: ten of up to 50 must-link
    components, three of up to 5,000, otherwise one. The refinement compares exact description
    lengths:

    4. Move single components while that shortens the description. Every set of proposals below is
       followed by such moves.
    5. Merge two clusters; exchange two clusters within connected parts; split a cluster if another
       one is empty; make chains of moves with locks; divide two near clusters anew, or merge them
       and split another one. Accept the shortest result if it shortens the description, and repeat.

    No single move and no merge then shortens the description by more than the tolerance. With more
    than 11 clusters, the 64 nearest pairs are merged only. With hundreds of components in
    cannot-links, upper bounds of the lengths select moves and merges, so that a few improvements
    may remain. Empty clusters come last. Without the code of
    the means, more clusters nearly always shorten the description of many features, so a fixed
    ``n_clusters`` hardly ever returns fewer clusters.

    The soft search anneals single moves, and moves linked rows together. Violating one more pair
    costs ``log(retained / ignored)``, the change of the flags' length. Flags distinguish must-links
    from cannot-links only, because they are decoded before any cluster is known. Size limits are
    satisfied by integer programming, from the best restarts, before the refinement.

    With n rows, m features, k clusters and p pairs, an iteration costs :math:`O(n m k + p k^2)`.
    Memory per restart is :math:`O(n k)` values plus the table of neighbours.

    The order of transmission is the inductive order of the cannot-links between components: the
    component of the smallest degree comes last. With K > Q the code is complete. The weights
    minimise the length of the words, a convex problem; the shares of the rows, which Yin (2007)
    uses, do not. The parametric complexity of the weights is computed for unconstrained words, one
    per component of the hard constraints; it is exact without cannot-links, and the same for all
    labelings.

    Whether K clusters can satisfy the cannot-links is a graph colouring problem. An exact search
    decides it within 50,000 steps; after that, the error message calls it undecided. ``epsilon`` is
    satisfied by adding must-links to nearest rows, until no row violates it.

    Soft constraints protect the rows of wrong pairs. New rows benefit only if wrong pairs displace
    the cluster means. Pairs refer to the rows of the ``X`` passed to `fit`; therefore they do not
    carry over to the subsets of a cross-validation.

    References
    ----------
    K. Yin (2007), "Inferring Informed Clustering Problems with Minimum
    Description Length Principle", PhD thesis, University at Albany, chapter 5, with corrections.
    The assignment minimises over clusters that are not taken (5.4.3, step 3d). With a scale per
    cluster, its cost includes log s (step 3a). Sections 5.4.2 and 5.4.3 leave the order of
    transmission open. A single bit per pair (section 5.5) would not influence any choice.

    I. Davidson and S. S. Ravi (2005), "Clustering with constraints: feasibility issues and the
    k-means algorithm", SIAM International Conference on Data Mining, for the limits on distances.

    I. Davidson and S. S. Ravi (2006), "Identifying and generating easy sets of constraints for
    clustering", AAAI Conference on Artificial Intelligence, for the inductive order.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import MDLConstrained
    >>> X = np.array([[0.0, 0], [0.1, 0], [1.0, 0], [1.1, 0]])
    >>> model = MDLConstrained(2, random_state=0).fit(X, must_link=[[0, 3]])
    >>> bool(model.labels_[0] == model.labels_[3])
    True
    >>> sorted(model.lengths_)
    ['distances', 'flags', 'words']

    The shortest description selects the number of clusters:

    >>> X = np.repeat([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]], 20, axis=0)
    >>> X += 0.5 * np.random.default_rng(0).normal(size=X.shape)
    >>> MDLConstrained("auto", random_state=0).fit(X, cannot_link=[[0, 20]]).n_clusters_
    3
    """

    capabilities = Capabilities(known=(), pairs=True, finds_number=True, alone=True)

    n_clusters: parameters.ClustersOrAuto = 2
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
    max_clusters: Annotated[int, parameters.Number(1, CLUSTERS, integer=True)] = 10
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 100
    tol: parameters.Tolerance = 1e-7
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    @property
    def _cluster_limit(self) -> int:
        return self.max_clusters if self.n_clusters == AUTO else self.n_clusters

    @property
    def _many_clusters(self) -> bool:
        return self._cluster_limit > 2

    @property
    def hard_objective(self) -> bool:  # type: ignore[override]
        """Whether no move of one component shortens the description."""
        return self.constraints == "hard"

    @property
    def _fixes_number(self) -> bool:  # type: ignore[override]
        return self.n_clusters != AUTO

    @property
    def _holds_rows(self) -> np.ndarray:
        return np.bincount(self.labels_, minlength=self.weights_.size) > 0

    def _check_size(self, n_samples: int) -> None:
        if self.n_clusters != AUTO:
            super()._check_size(n_samples)

    # Input

    def check_parameters(self):
        """Raise ValueError for parameters that are invalid for all data."""
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
            Continuous features. The search uses float32 for float32 input and float64 otherwise;
            description lengths are in float64.
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown, as hard constraints. Cluster i is the i-th of the
            sorted labels; further clusters have no class.
        must_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows that share a cluster. Duplicates, and pairs of a row with itself, have no
            effect.
        cannot_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows in different clusters. Duplicates have no effect.

        Returns
        -------
        self

        Raises
        ------
        InfeasibleConstraints
            A ValueError, if no clustering satisfies the hard constraints. The message and the
            attributes ``must_link`` and ``cannot_link`` list a small set of pairs in conflict.
        ValueError
            If an index of a pair is out of range, or if the data do not fit the parameters.
        TypeError
            If pairs are not integers.
        """
        return self._fit(X, y, must_link=must_link, cannot_link=cannot_link)

    def compute(self, task):
        """Search for the shortest description; see `Clusterer.compute`.

        With ``epsilon``, the search is repeated until every row has another row of its cluster
        within this distance, or forms a cluster alone. Before every repetition, rows that violate
        this condition get a must-link to their nearest row.
        """
        data = StandardisedRows.from_rows(task.X)
        must, cannot = self._hard_pairs(data, task)
        seed = np.asarray(check_random_state(self.random_state).randint(2**31 - 1), np.uint32)
        while True:
            problem = self._make_problem(data, task, must, cannot)
            result = self._run_search(problem, seed)
            alone = np.zeros(0, np.int64)
            if self.epsilon is not None:
                alone = isolated_rows(data.x, self.epsilon / data.scale, result[0].labels)
            if not alone.size:
                return [(problem, result)]
            # A row in ``alone`` has no neighbour within epsilon in its cluster. Add a must-link to
            # its nearest neighbour, and search again. There are at most n rounds.
            mates = nearest_mates(data.x, alone, self.epsilon / data.scale)
            must.append(Pairs(np.stack([alone, mates], 1), "epsilon"))

    def _make_problem(
        self, data: StandardisedRows, task: PairTask, must: list[Pairs], cannot: list[Pairs]
    ) -> ConstrainedProblem:
        n, d = task.X.shape
        hard, parts = self.constraints == "hard", Components(n, must, cannot)
        link, apart = (
            soft_pairs(pairs[:0] if hard else pairs, parts)
            for pairs in (task.must_link, task.cannot_link)
        )
        low, high = map(float, self.scale_range)
        auto = self.n_clusters == AUTO
        return ConstrainedProblem(
            data,
            min(self._cluster_limit, n),
            1.0 if self.geometry == "exp" else d / 2,
            self.sigma == "view",
            (low, high),
            parts,
            link,
            apart,
            d / 2 * max(np.log(n / (2 * np.pi)), 0.0) if auto else 0.0,
        )

    def _objective_at(self, task: PairTask, labels: np.ndarray) -> float:
        """Description length of labels (n,); infinite if they violate a hard constraint."""
        data = StandardisedRows.from_rows(task.X)
        problem = self._make_problem(data, task, *self._hard_pairs(data, task))
        return problem.describe_labels(labels).length if problem.permits(labels) else np.inf

    def _hard_pairs(
        self, data: StandardisedRows, task: PairTask
    ) -> tuple[list[Pairs], list[Pairs]]:
        """Hard must-links and cannot-links, including pairs that the limits imply."""
        must, cannot = task.hard_pairs(self.constraints == "hard")
        if self.delta is not None:
            must.append(Pairs(closer_than(data.x, self.delta / data.scale), "delta"))
        if self.max_diameter is not None:
            far = farther_than(data.x, self.max_diameter / data.scale)
            cannot.append(Pairs(far, "max_diameter"))
        if self.epsilon is not None:
            n = len(data.x)
            mates = nearest_mates(data.x, np.arange(n), self.epsilon / data.scale)
            lone = np.flatnonzero(mates < 0)
            if lone.size + (lone.size < n) > self._cluster_limit:
                raise InfeasibleConstraints(
                    f"{lone.size} row(s) have no other row within epsilon and need a cluster of "
                    f"their own each; got epsilon={self.epsilon} for {self._cluster_limit} "
                    f"clusters, and among these rows {lone[:5].tolist()}; raise epsilon or "
                    "n_clusters"
                )
            for row in lone:
                others = np.delete(np.arange(n), row)
                cannot.append(Pairs(np.stack([np.full(n - 1, row), others], 1), "epsilon"))
        return must, cannot

    # Search

    def _run_search(
        self, problem: ConstrainedProblem, seed: np.ndarray
    ) -> tuple[Described, Restarts, np.ndarray, int, bool]:
        """Run all restarts, and refine the best ones.

        Returns
        -------
        best : description of the best labels
        restarts : labels and description lengths of all restarts that satisfy the hard constraints
        trace : description length after every iteration of the best restart
        n_iter : number of iterations of the best restart
        converged : whether the best restart converged
        """
        nodes, index = problem.search_nodes()
        soft = bool(len(problem.link) or len(problem.apart))
        sizes = range(1, problem.k + 1) if self.n_clusters == AUTO else (problem.k,)
        runs = []
        for k in sizes:
            run = partial(
                search.search_partition, nodes, self._search_settings(problem, k), seed,
                n_clusters=coarse_bucket(problem.k, 4), n_init=self.n_init, soft=soft,
                apart=len(problem.parts.edges) > 0,
            )  # fmt: skip
            n_iter = self.max_iter + 1 + soft * search.N_ANNEAL
            runs.append(self._run_restarts(run, nodes, problem.k, 8, n_iter))
        every = search.SearchResult(*map(np.concatenate, zip(*runs, strict=True)))
        done = np.flatnonzero(every.feasible)
        if not done.size:
            raise ValueError(
                "it is undecided whether any clustering satisfies the cannot-links: the exact "
                "search reached its limit, and no restart found such a clustering; got "
                f"n_clusters={problem.k} for cannot-links of degeneracy {problem.q}, which "
                "need at most one cluster more than that; raise n_clusters or n_init, or use "
                "constraints='soft'"
            )
        # Describe the labels of all restarts exactly, and order restarts by length.
        fits = [
            problem.describe_labels(every.labels[i][index][problem.parts.node].astype(np.int64))
            for i in done
        ]
        lengths = np.array([fit.length for fit in fits])
        order = np.argsort(lengths, kind="stable")
        if self.verbose:
            print(f"restarts {len(every.feasible)}: objective {lengths.min():.6g} nats")
        first, best = order[0], done[order[0]]
        trace = every.trace[best].astype(float)
        trace = trace[~np.isnan(trace)]
        n_iter, converged = max(int(every.n_iter[best]), 1), bool(every.converged[best])
        # Enforce size limits that the shortest description violates.
        limits = self._size_limits(problem)
        limits.check_feasible(problem.k)
        starts = [fits[i] for i in order]
        if not limits.within_limits(np.bincount(starts[0].labels, minlength=problem.k)):
            start, trace = self._enforce_sizes(problem, limits, starts[:3])
            starts, n_iter, converged = [start], len(trace), len(trace) < self.max_iter
        shortest = min(starts, key=lambda fit: fit.length)
        if not soft:
            shortest, refined, converged = self._refine(problem, limits, starts)
            trace = np.append(trace, [length for length in refined if length < trace[-1]])
        elif shortest.length < trace.min() - 1e-9 * problem.data.x.size:
            # `describe_labels` dropped single pairs, which the search does not try.
            trace = np.append(trace, shortest.length)
        # The result replaces the restart of the shortest description.
        fits[first], lengths[first] = shortest, shortest.length
        labels = np.stack([fit.labels for fit in fits])
        restarts = Restarts(labels, lengths, every.converged[done])
        return shortest, restarts, trace, n_iter, converged

    def _refine(
        self, problem: ConstrainedProblem, limits: SizeLimits, starts: list[Described]
    ) -> tuple[Described, list[float], bool]:
        """Shorten the descriptions ``starts``; return the shortest, its trace and convergence."""
        objective = constrained_objective(problem, limits)
        first = np.unique(problem.parts.node, return_index=True)[1]
        tol = max(self.tol, 1e-10) * len(problem.data.x)
        # Different starts often lead to the same labels.
        n_starts = next(count for units, count in _STARTS.items() if first.size <= units)
        distinct: dict[bytes, np.ndarray] = {}
        for start in starts[:n_starts]:
            z = improve_by_passes(objective, start.labels[first], tol)
            distinct.setdefault(objective.key(z), z)
        results = [improve_labels(objective, z, tol, self.max_iter) for z in distinct.values()]
        z, trace, converged = min(results, key=lambda result: result[1][-1])
        return problem.describe_labels(z[problem.parts.node]), trace, converged

    def _size_limits(self, problem: ConstrainedProblem) -> SizeLimits:
        high = len(problem.data.x) if self.max_size is None else self.max_size
        return SizeLimits(
            np.bincount(problem.parts.node), problem.parts.edges, self.min_size or 0, high
        )

    def _search_settings(self, problem: ConstrainedProblem, k: int) -> Settings:
        n, dtype = len(problem.data.x), problem.data.dtype

        def as_float(value):
            return np.asarray(value, dtype)

        pairs = len(problem.link), len(problem.apart)
        return Settings(
            n_clusters=np.asarray(k, np.int32),
            max_iter=np.asarray(self.max_iter, np.int32),
            tol=as_float(max(self.tol, 8 * np.finfo(dtype).eps) * n),
            weight=as_float(problem.weight),
            low=as_float(problem.bounds[0]),
            high=as_float(problem.bounds[1]),
            shared=np.asarray(problem.shared),
            has_start=np.asarray(problem.start is not None and problem.start.max() < k),
            n_pairs=np.asarray(pairs, np.int32),
            constant=as_float(problem.number_length(k) + problem.scale_length),
            flag_complexity=as_float([multinomial_complexity(2, p) for p in pairs]),
        )

    def _enforce_sizes(
        self, problem: ConstrainedProblem, limits: SizeLimits, starts: list[Described]
    ) -> tuple[Described, np.ndarray]:
        """Search for the shortest description with cluster sizes within ``limits``.

        From each of the descriptions ``starts``, integer programming and updates of the cluster
        parameters alternate. Returns the best description and the trace of its lengths.
        """
        candidates: list[tuple[Described, list[float]]] = []
        for start in starts:
            trace: list[float] = []
            best = current = start
            for _ in range(self.max_iter):
                current = problem.describe_labels(
                    limits.assign_components(problem.component_costs(current))[problem.parts.node]
                )
                if trace and not current.length < trace[-1] - self.tol * current.labels.size:
                    break
                best = current
                trace.append(current.length)
            candidates.append((best, trace))
        best, trace = min(candidates, key=lambda c: c[0].length)
        return best, np.array(trace)

    # Results

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        problem, (best, restarts, trace, n_iter, converged) = result[0]
        data, size = problem.data, np.bincount(best.labels, minlength=problem.k)
        # Clusters with rows come first; "auto" drops the others.
        order = cluster_order(best.labels, task.fixed, problem.k)
        order = order[np.argsort(size[order] == 0, kind="stable")]
        relabel = np.argsort(order)
        if self.n_clusters == AUTO:
            order = order[: np.count_nonzero(size)]
        labels = relabel[best.labels]
        self._pairs = Report(
            problem, best, (task.must_link, task.cannot_link), self.constraints == "hard"
        )
        self.lengths_ = best.lengths
        if self.n_clusters == AUTO:
            self.selection_ = _selection_table(restarts)
        self.weights_ = best.weights[order]
        self.scales_ = best.scales[order] * data.scale**2
        self.cluster_centers_ = best.centres[order] * data.scale + data.centre
        self.degeneracy_ = problem.q
        self._weight = problem.weight
        self._store_results(
            restarts._replace(labels=relabel[restarts.labels]),
            membership=np.eye(order.size)[labels],
            trace=trace,
            n_iter=n_iter,
            nothing_left=ALIKE if data.all_equal else "",
            chosen=Restarts(labels[None], np.array([best.length]), np.array([converged])),
        )
        return self

    @property
    def accepted_(self):
        """Outcome of every given pair: a DataFrame, built on first access."""
        check_is_fitted(self)
        return self._pairs.pair_table

    # New rows

    def predict_proba(self, X):  # type: ignore[override]
        """Predict one-hot memberships: 1 for the cluster of `predict`, and 0 for all others.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        labels = self.predict(X)
        return np.eye(self.weights_.size)[labels]

    def _log_membership(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        X = self._validate(X, reset=False)
        present = np.flatnonzero(self._holds_rows)
        out = np.full((len(X), self.weights_.size), -np.inf)
        centres, scales = self.cluster_centers_[present], self.scales_[present]
        square = cdist(X.astype(np.float64), centres, "sqeuclidean")
        length = self._weight * (np.log(scales) + square / scales)
        out[:, present] = np.log(self.weights_[present]) - length
        return out


def _selection_table(restarts: Restarts) -> Any:
    """DataFrame of the shortest length of the restarts, by number of clusters."""
    import pandas as pd

    used = [np.unique(labels).size for labels in restarts.labels]
    table = pd.DataFrame({"n_clusters": used, "objective": restarts.objective})
    return table.groupby("n_clusters", as_index=False).min()
