"""Fuzzy c-means with partial supervision."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.distance import cdist
from sklearn.utils.validation import check_is_fitted

from nrprob.engines.hash_rng import fold_in
from nrprob.engines.optimise.iterate import IterationResult, empty_trace, iterate, map_restarts
from nrprob.engines.optimise.solve import Solution
from nrprob.engines.programs import jit_by_size
from nrprob.estimator import parameters
from nrprob.estimator.calls import padded_n_clusters, restart_calls
from nrprob.estimator.dense import PlainClusterer
from nrprob.methods.cec.centres import (
    CAPACITY,
    best_solution,
    block_table,
    class_codes,
    first_centres,
    lay_out,
    one_hot,
    squared_distances,
    store_result,
    weighted_means,
)
from nrprob.statistics.rows import Rows

_MIN_DISTANCE = 1e-12  # lower bound of squared distances; the mean variance of the columns is 1


class FuzzyParameters(NamedTuple):
    """Settings of `solve_fuzzy`. JAX traces all of them, so new values need no compilation.

    Attributes
    ----------
    n_clusters : number of clusters, without padding
    alpha : weight of the labels
    tol : largest change of a membership at which a restart has converged
    max_iter : maximum number of iterations
    """

    n_clusters: Any
    alpha: Any
    tol: Any
    max_iter: Any


@jit_by_size("n_clusters", "n_init")
def solve_fuzzy(
    rows: Rows,
    settings: FuzzyParameters,
    seed: jax.Array,
    fixed: jax.Array,
    *,
    n_clusters: int,
    n_init: int,
) -> Solution:
    """Run ``n_init`` restarts of semi-supervised fuzzy c-means in parallel, and keep the best.

    ``fixed`` (1, N) are the classes of the N rows of the single block, -1 where unknown.
    ``n_clusters`` includes padding.
    """
    x, mass = block_table(rows)
    code = fixed[0]
    target = one_hot(code, jnp.ones_like(mass), n_clusters)
    alpha, exist = settings.alpha, jnp.arange(n_clusters) < settings.n_clusters
    tol = jnp.maximum(settings.tol, 16 * jnp.finfo(x.dtype).eps)

    def floored_distances(x, centres):
        return jnp.maximum(squared_distances(x, centres), _MIN_DISTANCE)

    def update_memberships(centres):
        # Inverse distances are the unsupervised memberships for the fuzzifier 2.
        near = jnp.where(exist, 1 / floored_distances(x, centres), 0)
        near = near / near.sum(1, keepdims=True)
        # Memberships of labelled rows are a mixture of these and the target memberships.
        supervised = (near + alpha * target) / (1 + alpha)
        return jnp.where(code[:, None] >= 0, supervised, near)

    def centre_weights(u):
        return mass[:, None] * (u**2 + alpha * (u - target) ** 2)

    def fcm_step(state, _):
        # Steps 1 and 2 of `SemiSupervisedFCM`: centres, then memberships.
        u, centres = state
        centres = weighted_means(x, centre_weights(u), centres)
        new = update_memberships(centres)
        value = (centre_weights(new) * floored_distances(x, centres)).sum()
        return (new, centres), (jnp.abs(new - u) <= tol).all(), value

    def run_restart(seed):
        centres = first_centres(x, mass, code, n_clusters, seed, exist)
        start = update_memberships(centres), centres
        return iterate(fcm_step, start, settings.max_iter, trace=empty_trace(CAPACITY, x.dtype))

    def exact_objective(u, centres):
        wide = (a.astype(jnp.float64) for a in (x, centres))
        return (centre_weights(u.astype(jnp.float64)) * floored_distances(*wide)).sum()

    result: IterationResult = map_restarts(
        run_restart, (fold_in(seed, jnp.arange(n_init)),), n_init
    )
    u, centres = result.state
    objective = jax.vmap(exact_objective)(u, centres)
    return best_solution(
        rows, result, u.argmax(-1), objective, lambda best: mass[:, None] * u[best], centres
    )


@parameters.constructor
class SemiSupervisedFCM(PlainClusterer):
    r"""Semi-supervised fuzzy c-means, with target memberships for labelled samples.

    The fit minimises over memberships u, whose rows sum to 1, and over centres

    .. math:: \sum_{i,c} u_{ic}^2 d_{ic} + \alpha \sum_{i,c} (u_{ic} - f_{ic})^2 d_{ic}

    where :math:`d_{ic}` is the squared distance of row i from centre c, f are the target
    memberships, and :math:`\alpha` (``alpha``) is the weight of the labels. f is one-hot for
    labelled rows, and 0 for all others. Cluster c belongs to the c-th of the sorted labels; further
    clusters have no class.

    Parameters
    ----------
    <n_clusters>
    alpha : float or "auto", default="auto"
        Weight of the labels. "auto" is the number of rows divided by the number of labelled rows,
        so that both sums have equal weight. Without labels, "auto" is 0, which is fuzzy c-means.
        Lower it if labels may be wrong. With 0, labels only determine the initial centres. At most
        10**9.
    n_init : int, default=10
        Number of restarts; the restart of the smallest objective is kept. All restarts start from
        the class means, and from k-means++ centres of the clusters without a class. At most 10**6.
    max_iter : int, default=1000
        Maximum number of iterations per restart; at most 10**6.
    tol : float, default=1e-6
        A restart has converged when no membership changes by more than ``tol`` in an iteration.
        From 0 to 1.
    <random_state>
    <verbose>

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Cluster of the largest membership of every row. The cluster may differ from the label in
        ``y``.
    membership_ : ndarray of shape (n_samples, n_clusters)
        Memberships u; rows sum to 1.
    n_clusters_ : int
        Number of clusters that have the largest membership of at least one row.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Cluster centres.
    alpha_ : float
        Value of ``alpha`` that was used. The value has no effect if ``y`` has no labels.
    objective_ : float
        The minimised sum, in squared units of the features: not in nats.
    objective_trace_ : ndarray of shape (n_iter_,)
        Objective after every iteration of the best restart; non-increasing.
    n_iter_ : int
        Number of iterations of the best restart.
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    <classes_>

    See Also
    --------
    PartitionKMeans : k-means with labels as additional features.
    ConstrainedMixture : Gaussian mixture with labels as hard links.
    CECIB : Cross-entropy clustering with labels, some of which may be wrong.

    Notes
    -----
    An iteration has two exact steps:

    1. Centres are weighted means with the weights :math:`u^2 + \alpha (u - f)^2`.
    2. Memberships are, for the fuzzifier 2,

       .. math:: u_{ic} = \frac{1}{1 + \alpha} \left[
           \frac{1 + \alpha (1 - \sum_j f_{ij})}{\sum_j d_{ic} / d_{ij}} + \alpha f_{ic} \right]

    Publications often print weights :math:`u^2` in step 1, which do not minimise the sum.

    With n rows, m features and k clusters, an iteration costs :math:`O(n m k)`, and a restart
    takes memory for :math:`O(n m k)` numbers. Clusters are spherical and of similar size, since
    distances are Euclidean: standardise columns of different units beforehand.

    References
    ----------
    W. Pedrycz and J. Waletzky (1997), "Fuzzy clustering with partial supervision", IEEE
    Transactions on Systems, Man, and Cybernetics, Part B 27 (5), doi:10.1109/3477.623232.

    J. C. Bezdek (1981), *Pattern Recognition with Fuzzy Objective Function Algorithms*, Plenum,
    for fuzzy c-means.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import SemiSupervisedFCM
    >>> X = np.array([[0.0], [0.1], [1.0], [1.1]])
    >>> model = SemiSupervisedFCM(2, random_state=0).fit(X, [1, -1, 0, -1])
    >>> model.labels_.tolist()
    [1, 1, 0, 0]
    >>> model.membership_.max(axis=1).round(1).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    alpha: Annotated[float | str, parameters.Number(0, 1e9, words=("auto",))] = "auto"
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 1000
    tol: parameters.Tolerance = 1e-6
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    def fit(self, X, y=None):  # type: ignore[override]
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
            Continuous features. Float32 input is computed in float32, and all other input in
            float64.
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown. Cluster i belongs to the i-th of the sorted labels;
            further clusters have no class.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data do not fit the parameters; the message says what to change.
        """
        return self._fit(X, y)

    def prepare(self, X, y, known=None):
        """Check the input and lay it out; see `Clusterer.prepare`."""
        X, fixed = self._check_input(X, y)
        fixed = class_codes(fixed, len(X))
        n_labelled = int((fixed >= 0).sum())
        if isinstance(self.alpha, str):
            self.alpha_ = len(X) / n_labelled if n_labelled else 0.0
        else:
            self.alpha_ = float(self.alpha)
        self._features, task = lay_out(X, fixed)
        dtype = task.x.dtype
        settings = FuzzyParameters(
            np.asarray(self.n_clusters, np.int32),
            np.asarray(self.alpha_ if n_labelled else 0.0, dtype),
            np.asarray(self.tol, dtype),
            np.asarray(self.max_iter, np.int32),
        )
        k = padded_n_clusters(task.rows, task.layout, self.n_clusters)
        task.calls = restart_calls(
            solve_fuzzy, {"n_clusters": k}, task.rows, task.layout, task.fixed, [settings],
            n_init=self.n_init, random_state=self.random_state,
            n_elements=task.rows.mass.size * k * 6,
        )  # fmt: skip
        return task

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        scale = self._features.scale
        best, _ = store_result(self, task, result, named=False, unit=scale**2)
        centres = best.fit[: self.n_clusters, : task.X.shape[1]].astype(np.float64)
        self.cluster_centers_ = centres * scale + self._features.centre
        return self

    # New rows

    def predict_proba(self, X):  # type: ignore[override]
        """Memberships of new, unlabelled rows.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        near = np.exp(self._log_membership(X, None))
        return near / near.sum(1, keepdims=True)

    def _log_membership(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        X = self._validate(X, reset=False).astype(np.float64)
        square = cdist(X, self.cluster_centers_, "sqeuclidean") / self._features.scale**2
        return -np.log(np.maximum(square, _MIN_DISTANCE))
