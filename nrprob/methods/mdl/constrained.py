"""Minimum description length clustering with pairs, labels and known groups.

Sizes: n rows, p pairs of a type.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob.data.design import DesignEncoder
from nrprob.data.validation import CLUSTERS, LARGEST, MOST, check_random_state
from nrprob.estimator import parameters
from nrprob.estimator.base import Restarts
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.pairs import PairTask
from nrprob.links import Components, InfeasibleConstraints, Pairs, cluster_order, feasible_start
from nrprob.methods.mdl.feature_lengths import COVARIANCES
from nrprob.methods.mdl.informed_fit import (
    FEATURES,
    choose_covariance,
    cluster_moments,
    initial_labels,
    make_features,
    search_labels,
)
from nrprob.methods.mdl.informed_length import InformedLength, Target
from nrprob.methods.mdl.informed_search import InformedSearch, SearchResult
from nrprob.methods.mdl.limits import (
    closer_than,
    farther_than,
    isolated_rows,
    nearest_mates,
)
from nrprob.methods.mdl.pair_posterior import SampledPairs
from nrprob.methods.mdl.pair_report import Report
from nrprob.methods.mdl.problem import ConstrainedProblem, Described
from nrprob.methods.mdl.sizes import SizeLimits
from nrprob.methods.mdl.soft_pairs import make_words, soft_pairs
from nrprob.methods.mdl.views import View
from nrprob.statistics.features import ALIKE, StandardisedRows

AUTO = "auto"
_IMPROVED = {50: 10, 5000: 3, math.inf: 1}  # largest number of components: improved results
_MOST_COUNTED = 2000  # rows up to which "auto" codes labels given the limits on sizes
_ENFORCED = 3  # number of shortest results from which limits on sizes are enforced


@dataclass
class ConstrainedTask(PairTask):
    """Validated input of one fit of `MDLConstrained`.

    Attributes
    ----------
    data : standardised rows of continuous features; other features are not standardised
    classes : (n,) known class of every row, -1 if unknown, for ``labels="coded"``; None for other
        ``labels``
    groups : (n,) known group of every row
    covariance : form of the covariance of continuous features, such as "isotropic"
    """

    data: StandardisedRows = None  # type: ignore[assignment]
    classes: np.ndarray | None = None
    groups: np.ndarray = None  # type: ignore[assignment]
    covariance: str = "isotropic"


@parameters.constructor
class MDLConstrained(SampledPairs):
    r"""Minimum description length clustering with pairs, labels and known groups.

    A code describes every row by a code word for its cluster, and by its features given the
    cluster. Must-linked rows share one code word. A code word can encode only clusters that no
    earlier cannot-linked row has. The fit minimises the description length in nats over the labels
    z and over the cluster probabilities :math:`\omega`,

    .. math:: L = \sum_i \left[-\log \omega_{z_i} + \log \sum_{j \in A_i} \omega_j\right]
        + \log C(K, I) + F(z) + B + Y(z)

    where i = 1, ..., I are the code words in the order of transmission. Word i encodes cluster
    :math:`z_i`, one of the clusters :math:`A_i` that are available to it. K is the number of
    clusters with rows, and :math:`\log C(K, I)` the parametric complexity of a multinomial. F is
    the length of the features given the clusters and the known groups. B is the length of the flags
    that mark retained pairs, and Y the length of the classes ``y`` given the clusters.

    With hard constraints, B = 0. With ``constraints="soft"``, the fit retains a pair only if that
    shortens the description. Y = 0 unless ``labels="coded"``. With isotropic clusters,
    :math:`F = w N (\log s + 1) + PC_s`. Here N rows have the mean squared distance s from their
    cluster means, :math:`w = d/2` for d features, and :math:`PC_s` is the parametric complexity of
    s. With ``n_clusters="auto"`` or known groups, F also has the code of the cluster means,
    K d/2 log(N / 2 pi), and of the group effects. Other covariances, binary features and counts
    have the codes of `MDLMultiView`.

    Parameters
    ----------
    n_clusters : int or "auto", default=2
        Largest number of clusters; the result has fewer if that shortens the description. "auto"
        selects the number of the shortest description, up to ``max_clusters``, by merges and
        splits.
    features : {"gaussian", "bernoulli", "multinomial"}, default="gaussian"
        Type of the features: continuous, binary, or counts.
    covariance : {"auto", "isotropic", "diagonal", "full", "full_cluster"}, default="auto"
        Covariance of continuous features. "isotropic", "diagonal" and "full" are shared by the
        clusters; "full_cluster" is a full covariance per cluster. "auto" is "full_cluster" if the
        number of clusters is selected, and "isotropic" if the number is given. "auto" is also
        "isotropic" if ``sigma`` or ``geometry`` select published codes. All covariances except
        "isotropic" charge for the parameters of every cluster with rows.
    constraints : {"hard", "soft"}, default="hard"
        "hard" satisfies every must-link and cannot-link or raises InfeasibleConstraints. "soft"
        retains a pair if that shortens the description; use "soft" if pairs may be wrong. The
        limits ``delta``, ``epsilon`` and ``max_diameter`` are always hard.
    labels : {"hard", "coded"}, default="hard"
        "hard" puts rows of one class in ``y`` into one cluster, and rows of different classes into
        different clusters. "coded" adds Y to the description; use it if labels may be wrong, or if
        classes may have several clusters. Coded labels are worth a few nats each. Coded labels
        decide between descriptions of nearly equal length, and never overrule the features.
    known_words : {"marginal", "given"}, default="marginal"
        "marginal" encodes the clusters without the known groups, and suits clusters that are nearly
        independent of the groups. "given" encodes the clusters given the groups, and suits clusters
        that depend on the groups. If ``known_dependence_`` is clearly positive, try "given".
        "given" excludes cannot-links and soft pairs.
    sigma : {"view", "cluster"}, default="view"
        Scale s of isotropic clusters: one for all clusters ("view"), or one per cluster, as
        published ("cluster").
    geometry : {"gaussian", "exp"}, default="gaussian"
        "gaussian" encodes rows by an isotropic normal density. "exp" encodes squared distances by
        an exponential density (w = 1), as published. The two codes agree for two features; for
        more, "exp" underweights distances against words.
    scale_range : tuple of float, default=(1e-3, 10.0)
        Bounds of s, in units of the total variance of the rows, from 1e-12 to 1e12. Reduce the
        lower bound if clusters are much tighter than the data.
    delta : float, optional
        Minimum distance between rows of different clusters: closer rows share a cluster
        (definition 5.3 of Yin, 2007). At least 0.
    epsilon : float, optional
        Maximum distance of a row from the nearest other row of its cluster, unless the cluster has
        a single row (definition 5.4). At least 0.
    max_diameter : float, optional
        Maximum distance between two rows of a cluster. At least 0.
    min_size, max_size : int, optional
        Minimum and maximum number of rows per cluster (definition 5.5), for
        ``constraints="hard"`` only. At least 0. With ``n_clusters="auto"`` and without pairs, up to
        2,000 rows, the labels are coded given these limits.
    max_clusters : int, default=10
        Largest number of clusters for ``n_clusters="auto"``; `fit` warns if it is selected. At
        least 1.
    n_init : int, default=10
        Number of restarts. The search improves the restarts with the shortest descriptions, and the
        shortest description is kept. At most 10**6.
    max_iter : int, default=100
        Maximum number of accepted proposals in a step of the search. The search of a restart ends
        after the pass in which the number of accepted steps exceeds ``max_iter``. At most 10**6.
    tol : float, default=1e-7
        Smallest decrease of the description length, in nats per sample, that counts as an
        improvement. From 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Determines the initial centres.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot form of ``labels_``.
    <n_clusters_>
    objective_ : float
        Description length L in nats, up to a constant that depends on the data alone.
    lengths_ : dict
        Parts of L: "words", "features" (F), "flags" (B) and, with coded labels, "classes" (Y).
    objective_trace_ : ndarray
        Description length of the best restart after the first single moves, and after every
        accepted step; non-increasing.
    accepted_ : DataFrame
        One row per pair that was passed to `fit`: ``kind`` ("must_link" or "cannot_link"), rows
        ``i`` and ``j``, whether the labels satisfy the pair (``satisfied``), whether the
        description retains the pair (``accepted``), and ``nats``. ``nats`` is the increase of the
        length of the code words if this pair is removed. ``nats`` is 0 for pairs that are not
        accepted or follow from other pairs, and does not include flags. With
        ``known_words="given"``, ``nats`` refers to code words without the known groups.
    weights_ : ndarray of shape (n_clusters,)
        Probabilities :math:`\omega` of the code words.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Means of the clusters, without the effects of known groups; the mean of all rows for an
        empty cluster.
    scales_ : ndarray of shape (n_clusters,)
        Mean squared distances s.
    selection_ : DataFrame
        Shortest description length of the restarts, for every number of clusters with rows at which
        a restart ended. Only for ``n_clusters="auto"``.
    known_dependence_ : float
        Nats by which the code of the labels is shorter given the known groups. Only with ``known``.
    degeneracy_ : int
        Degeneracy Q of the graph of hard cannot-links. With more than Q clusters, the cannot-links
        can always be satisfied.
    n_iter_ : int
        Number of entries of ``objective_trace_``.
    <converged_>
    restarts_ : xarray.Dataset
        Labels and description lengths of all restarts, which satisfy the hard constraints.
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
    The search compares exact description lengths:

    1. Start at one cluster, at the means of the classes, and at k-means++ centres. Assign must-link
       components to the nearest centre, in the inductive order of the cannot-links.
    2. Move single components while that shortens the description.
    3. From the shortest results, propose: merge two clusters; exchange two clusters within
       components that cannot-links connect (Kempe chains); move sets of components that retained
       must-links connect; split a cluster in two or three; redivide two near clusters; make chains
       of moves with locks. From the best proposals of a type, move single components. Accept the
       shortest result if it shortens the description, and repeat.

    Step 3 starts from ten results for up to 50 must-link components, from three for up to 5,000,
    and otherwise from one; with soft pairs, from four, one and one. Above 10,000 rows, step 3
    proposes only merges and chains of moves. With hard constraints, no single move and no proposed
    merge of the result shortens the description by more than the tolerance. With more than 11
    clusters, only the 64 nearest pairs are merged. With hundreds of components in cannot-links,
    upper bounds of the lengths select moves and merges, so that a few improvements may remain.
    Empty clusters have the last labels. With isotropic clusters and without the code of the means,
    more clusters nearly always shorten the description of many features. A fixed ``n_clusters``
    then hardly ever returns fewer clusters.

    The search retains either all satisfied soft pairs of a type or none. The final description
    drops single pairs that save less than their flags cost. The code of the flags depends only on
    the type of the pairs, since flags are decoded before the clusters. Size limits are satisfied by
    integer programming, from the shortest results; step 3 follows.

    The order of transmission is the inductive order of the graph of cannot-links between must-link
    components: a component of the smallest degree comes last, then the same rule orders the
    remaining components. With K > Q the code is complete, where Q is ``degeneracy_``. The weights
    :math:`\omega` minimise the length of the words, which is a convex problem. Yin (2007) uses the
    shares of the rows in the clusters, which do not minimise this length. The parametric complexity
    of the weights is computed for unconstrained words, one per component of the hard must-links.
    The complexity is exact without cannot-links, and equal for all labelings with K clusters.

    Whether K clusters can satisfy the cannot-links is a graph colouring problem. An exact search
    decides this problem in at most 50,000 steps. If the search ends undecided, the error message
    says so. The fit adds must-links between nearest rows until no row violates ``epsilon``.

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
    ['features', 'flags', 'words']

    The shortest description selects the number of clusters:

    >>> X = np.repeat([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]], 20, axis=0)
    >>> X += 0.5 * np.random.default_rng(0).normal(size=X.shape)
    >>> MDLConstrained("auto", random_state=0).fit(X, cannot_link=[[0, 20]]).n_clusters_
    3

    Known groups have additive effects, which are fitted with the clusters:

    >>> batch = np.arange(60) % 2
    >>> model = MDLConstrained(3, random_state=0).fit(X + 9 * batch[:, None], known=batch)
    >>> model.n_clusters_, bool(abs(model.known_dependence_) < 5)
    (3, True)
    """

    capabilities = Capabilities(pairs=True, finds_number=True, alone=True)

    n_clusters: parameters.ClustersOrAuto = 2
    _: KW_ONLY
    features: Annotated[str, parameters.Choice(FEATURES)] = "gaussian"
    covariance: Annotated[str, parameters.Choice(("auto", *COVARIANCES))] = "auto"
    constraints: Annotated[str, parameters.Choice(("hard", "soft"))] = "hard"
    labels: Annotated[str, parameters.Choice(("hard", "coded"))] = "hard"
    known_words: Annotated[str, parameters.Choice(("marginal", "given"))] = "marginal"
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
        """Whether, at the end of a fit, no move of a single component shortens the description."""
        return self.constraints == "hard"

    @property
    def _fixes_number(self) -> bool:  # type: ignore[override]
        return self.n_clusters != AUTO

    @property
    def _classes_share(self) -> bool:  # type: ignore[override]
        return self.labels == "coded"

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

    def fit(self, X, y=None, *, known=None, must_link=None, cannot_link=None):  # type: ignore[override]
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
            Features. Computation is in float64.
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown. With ``labels="hard"``, the labels are constraints:
            cluster i has the i-th of the sorted labels, and further clusters have no class. With
            ``labels="coded"``, the clusters encode the classes, and a class may have several
            clusters.
        known : array-like of shape (n_samples,) or (n_samples, n_labelings), optional
            Known groups. Continuous features have additive effects of the groups, which are fitted
            together with the clusters. Binary features and counts have separate frequencies in
            every pair of a cluster and a group.
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
        return self._fit(X, y, known=known, must_link=must_link, cannot_link=cannot_link)

    def prepare(self, X, y, known=None, *, must_link=None, cannot_link=None) -> ConstrainedTask:
        """Check the input; see `Clusterer.prepare`."""
        task = super().prepare(X, y, must_link=must_link, cannot_link=cannot_link)
        X, n = task.X, len(task.X)
        if self.features == "gaussian":
            data = StandardisedRows.from_rows(X)
        else:
            view = View.from_counts(X, self.features, "X")
            data = StandardisedRows(X.astype(np.float64), view.mean, view.scale, X.dtype)
        self._encoder = DesignEncoder()
        design = self._encoder.fit(known, n)
        self._check_groups(design)
        if design.memberships is not None:
            raise ValueError(
                "known must hold labels for this estimator; got Memberships; pass the most "
                "probable labels, or use CCIB"
            )
        coded = self.labels == "coded"
        return ConstrainedTask(
            X,
            None if coded else task.fixed,
            task.must_link,
            task.cannot_link,
            data=data,
            classes=task.fixed if coded else None,
            groups=design.codes,
            covariance=self._chosen_covariance(data, bool(design.codes.any())),
        )

    def _chosen_covariance(self, data: StandardisedRows, grouped: bool) -> str:
        covariance = choose_covariance(
            self.covariance, self.sigma, self.geometry,
            selected=self.n_clusters == AUTO, grouped=grouped,
        )  # fmt: skip
        # Equal rows have no covariance.
        return "isotropic" if data.all_equal and self.features == "gaussian" else covariance

    def compute(self, task):
        """Search for the shortest description; see `Clusterer.compute`.

        With ``epsilon``, the search is repeated until every row has another row of its cluster
        within the distance ``epsilon``, or forms a cluster alone. Before every repetition, rows
        that violate this condition get a must-link to their nearest row.
        """
        data = task.data
        must, cannot = self._hard_pairs(task)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        while True:
            problem = self._make_problem(task, must, cannot)
            result = self._search(problem, task, seed)
            alone = np.zeros(0, np.int64)
            if self.epsilon is not None:
                alone = isolated_rows(data.x, self.epsilon / data.scale, result[0].labels)
            if not alone.size:
                return [(problem, result)]
            # A row in ``alone`` has no neighbour within epsilon in its cluster. Add a must-link to
            # its nearest neighbour, and search again, at most n times.
            mates = nearest_mates(data.x, alone, self.epsilon / data.scale)
            must.append(Pairs(np.stack([alone, mates], 1), "epsilon"))

    def _make_problem(
        self, task: ConstrainedTask, must: list[Pairs], cannot: list[Pairs]
    ) -> ConstrainedProblem:
        data, (n, d) = task.data, task.X.shape
        hard, parts = self.constraints == "hard", Components(n, must, cannot)
        link, apart = (
            soft_pairs(pairs[:0] if hard else pairs, parts)
            for pairs in (task.must_link, task.cannot_link)
        )
        k = min(self._cluster_limit, n)
        start, self.degeneracy_ = feasible_start(parts, k)
        words = make_words(parts, link, apart, k, start)
        conditional = self.known_words == "given" and bool(task.groups.any())
        if conditional and words is not None:
            raise ValueError(
                "known_words='given' takes must-links with constraints='hard' only; got "
                f"{len(parts.cannot_rows) + len(apart)} cannot-links and constraints="
                f"{self.constraints!r}; use known_words='marginal'"
            )
        weight = 1.0 if self.geometry == "exp" else d / 2
        features = make_features(
            data.x, parts.node, task.groups, k, features=self.features,
            covariance=task.covariance, weight=weight,
            bounds=(float(self.scale_range[0]), float(self.scale_range[1])),
            shared=self.sigma == "view", centres_coded=self.n_clusters == AUTO,
        )  # fmt: skip
        target = Target(parts.node, words, task.classes, task.groups if conditional else None)
        has_limits = (self.min_size, self.max_size) != (None, None)
        # With a given number of clusters, labels have the published code without these limits.
        is_plain = words is None and parts.n_nodes == n <= _MOST_COUNTED
        if has_limits and is_plain and self.n_clusters == AUTO:
            target.complexities = self._size_limits(features.mass, parts).label_complexities(k)
        # Lengths in the units of X, without the code of the number of clusters.
        constant = 2 * weight * n * math.log(data.scale) - math.log(k)
        length = InformedLength([features], (k,), (True,), "independent", target, constant)
        return ConstrainedProblem(length, parts, link, apart)

    def _objective_at(self, task: ConstrainedTask, labels: np.ndarray) -> float:
        """Description length of labels (n,); infinite if the labels violate a hard constraint."""
        problem = self._make_problem(task, *self._hard_pairs(task))
        limits = self._size_limits(problem.length.features[0].mass, problem.parts)
        sizes = np.bincount(labels, minlength=problem.k)
        if not problem.permits(labels) or limits.violated_by(sizes).any():
            return np.inf
        problem.length.refit(labels[:, None])
        return problem.describe_labels(labels).length

    def _hard_pairs(self, task: ConstrainedTask) -> tuple[list[Pairs], list[Pairs]]:
        """Hard must-links and cannot-links, including pairs that labels and distance limits imply.

        Limits on distances are ``delta``, ``max_diameter`` and ``epsilon``.
        """
        data = task.data
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

    def _search(
        self, problem: ConstrainedProblem, task: ConstrainedTask, seed: int
    ) -> tuple[Described, Restarts, list[float]]:
        """Search for the labels with the shortest description, from all initial labels.

        Returns
        -------
        best : labels with the shortest description, and its parts
        restarts : labels, description lengths and convergence of all restarts
        trace : description length after every accepted step of the best restart
        """
        length, tol = problem.length, max(self.tol, 1e-10) * len(task.X)
        classes = task.classes if task.fixed is None else task.fixed
        random = np.random.RandomState(seed)
        starts = initial_labels(length, self.n_init, random, classes)

        def report(count: int, total: float) -> None:
            if self.verbose:
                print(f"restarts {count}: objective {total:.6g} nats")

        n_improved = next(n for units, n in _IMPROVED.items() if problem.parts.n_nodes <= units)
        if len(problem.link) + len(problem.apart):  # moves take longer under soft pairs
            n_improved = math.ceil(n_improved / 3)
        _, results = search_labels(length, starts, tol, self.max_iter, report, n_improved)
        limits = self._size_limits(length.features[0].mass, problem.parts)
        limits.check_feasible(problem.k)
        sizes = [np.bincount(r.labels[:, 0], minlength=problem.k) for r in results]
        if limits.violated_by(np.stack(sizes)).any():
            results = self._enforce_sizes(problem, limits, results, tol)
        # Describe the labels of all restarts, with the soft pairs that are worth retaining.
        fits = []
        for result in results:
            length.refit(result.labels)
            fits.append(problem.describe_labels(result.labels[:, 0]))
        lengths = np.array([fit.length for fit in fits])
        best = int(lengths.argmin())
        length.refit(results[best].labels)
        trace = results[best].trace
        if lengths[best] < trace[-1] - 1e-9 * len(task.X):
            trace = [*trace, lengths[best]]
        converged = np.array([result.converged for result in results])
        labels = np.stack([fit.labels for fit in fits])
        return fits[best], Restarts(labels, lengths, converged), trace

    def _size_limits(self, mass: np.ndarray, parts: Components) -> SizeLimits:
        high = int(mass.sum()) if self.max_size is None else self.max_size
        return SizeLimits(mass, parts.edges, self.min_size or 0, high, self.n_clusters == AUTO)

    def _enforce_sizes(
        self, problem: ConstrainedProblem, limits: SizeLimits, results: list[SearchResult],
        tol: float,
    ) -> list[SearchResult]:  # fmt: skip
        """Search for short descriptions with cluster sizes within ``limits``.

        From each of the shortest ``results``, two steps alternate: integer programming assigns
        components to clusters at fixed costs, and the costs are computed again from the new labels.
        Moves and proposals within the limits follow. ``tol`` is the smallest decrease of the length
        that counts as an improvement.
        """
        length, enforced = problem.length, []
        for result in sorted(results, key=lambda r: r.total)[:_ENFORCED]:
            z, total = length.unit_labels(0, result.labels), np.inf
            for _ in range(self.max_iter):
                # Costs: changes of the length of the features, and words at the current
                # frequencies.
                count = np.bincount(z, minlength=problem.k)
                words = np.log(np.maximum(count, 0.5) / z.size)
                new = limits.assign_components(length.features[0].changes(z[None])[0] - words)
                shorter = length.total(length.sample_labels(0, new)[:, None])
                if not shorter < total - tol:
                    break
                z, total = new, shorter
            enforced.append(length.sample_labels(0, z)[:, None])
        length.target.limits = limits
        search = InformedSearch(length, tol, self.max_iter)
        return [search.improve(labels) for labels in enforced]

    # Results

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        problem, (best, restarts, trace) = result[0]
        data, k, z = task.data, problem.k, best.labels
        size = np.bincount(z, minlength=k)
        # Clusters with rows come first; "auto" drops empty clusters.
        order = cluster_order(z, task.fixed, k)
        order = order[np.argsort(size[order] == 0, kind="stable")]
        relabel = np.argsort(order)
        if self.n_clusters == AUTO:
            order = order[: np.count_nonzero(size)]
        labels = relabel[z]
        self._pairs = Report(
            problem, best, (task.must_link, task.cannot_link), self.constraints == "hard"
        )
        self.lengths_ = best.lengths
        if self.n_clusters == AUTO:
            self.selection_ = _selection_table(restarts)
        columns = z[:, None]
        features = problem.length.features[0]
        self._cost = features.cost_model(problem.length.unit_labels(0, columns))
        self._data, self._n_groups = data.without_rows(), int(task.groups.max()) + 1
        means, scales = cluster_moments(data.x, z, k, task.groups, self._cost)
        self._order = order
        self.weights_ = best.weights[order]
        self.scales_ = scales[order] * data.scale**2
        self.cluster_centers_ = means[order] * data.scale + data.centre
        if task.groups.any():
            self.known_dependence_ = problem.length.known_dependence(columns, task.groups)
        self._store_results(
            restarts._replace(labels=relabel[restarts.labels]),
            membership=np.eye(order.size)[labels],
            trace=np.array(trace),
            n_iter=len(trace),
            nothing_left=ALIKE if data.all_equal else "",
        )
        if self.n_clusters == AUTO and k < len(z):
            self._warn_cluster_limit(self.n_clusters_, k)
        return self

    @property
    def accepted_(self):
        """Outcome of every pair that was passed to `fit`: a DataFrame, built on first access."""
        check_is_fitted(self)
        return self._pairs.pair_table

    # New rows

    def predict(self, X, *, known=None):  # type: ignore[override]
        """Predict, for every new row, the cluster with the shortest description.

        Predictions ignore partial labels and pairs. The predicted cluster of a row of `fit` may
        therefore differ from ``labels_``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        known : array-like of shape (n_samples,), optional
            Known group of every row, as in `fit`. A group that did not occur in `fit` has no
            effect.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._log_membership(*self._split_known(X, known)).argmax(1)

    def predict_proba(self, X, *, known=None):  # type: ignore[override]
        """Predict one-hot memberships: 1 for the cluster of `predict`, and 0 for all others.

        Parameters
        ----------
        X, known : as in `predict`

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        labels = self.predict(X, known=known)
        return np.eye(self.weights_.size)[labels]

    def _log_membership(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        X = self._validate(X, reset=False)
        codes = self._encoder.transform(known, len(X), new_groups=known is not None).codes
        groups = np.where(codes < self._n_groups, codes, -1)
        cost = self._cost(self._data(X), groups)[:, self._order]
        with np.errstate(divide="ignore"):
            return np.log(np.where(self._holds_rows, self.weights_, 0)) - cost


def _selection_table(restarts: Restarts) -> Any:
    """DataFrame of the shortest description length of the restarts, by number of clusters."""
    import pandas as pd

    used = [np.unique(labels).size for labels in restarts.labels]
    table = pd.DataFrame({"n_clusters": used, "objective": restarts.objective})
    return table.groupby("n_clusters", as_index=False).min()
