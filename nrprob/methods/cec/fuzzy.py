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
from nrprob.estimator.calls import padded, restart_calls
from nrprob.estimator.dense import PlainClusterer
from nrprob.methods.cec.centres import (
    CAPACITY,
    best_of,
    codes,
    first_centres,
    keep,
    lay_out,
    one_hot,
    squares,
    table,
    weighted_means,
)
from nrprob.statistics.rows import Rows

_LEAST = 1e-12  # squared distance, of rows whose features have a mean variance of 1


class Numbers(NamedTuple):
    """Numbers that `solve_fuzzy` reads.

    Attributes
    ----------
    n_clusters : clusters that exist; others are padding
    alpha : weight of the labels
    tol : change of all memberships below which a restart has converged
    max_iter : most steps
    """

    n_clusters: Any
    alpha: Any
    tol: Any
    max_iter: Any


@jit_by_size("n_clusters", "n_init")
def solve_fuzzy(
    rows: Rows,
    numbers: Numbers,
    seed: jax.Array,
    fixed: jax.Array,
    *,
    n_clusters: int,
    n_init: int,
) -> Solution:
    """Run ``n_init`` starts side by side and keep the best; ``fixed`` (B, r) are classes, or -1."""
    x, mass = table(rows)
    code = fixed[0]
    wanted = one_hot(code, jnp.ones_like(mass), n_clusters)
    alpha, exist = numbers.alpha, jnp.arange(n_clusters) < numbers.n_clusters
    tol = jnp.maximum(numbers.tol, 16 * jnp.finfo(x.dtype).eps)

    def distances(x, centres):
        return jnp.maximum(squares(x, centres), _LEAST)

    def memberships(centres):
        near = jnp.where(exist, 1 / distances(x, centres), 0)
        near = near / near.sum(1, keepdims=True)
        told = (near + alpha * wanted) / (1 + alpha)
        return jnp.where(code[:, None] >= 0, told, near)

    def weights(u):
        return mass[:, None] * (u**2 + alpha * (u - wanted) ** 2)

    def step(state, _):
        u, centres = state
        centres = weighted_means(x, weights(u), centres)
        new = memberships(centres)
        value = (weights(new) * distances(x, centres)).sum()
        return (new, centres), (jnp.abs(new - u) <= tol).all(), value

    def run(seed):
        centres = first_centres(x, mass, code, n_clusters, seed, exist)
        start = memberships(centres), centres
        return iterate(step, start, numbers.max_iter, trace=empty_trace(CAPACITY, x.dtype))

    def value(u, centres):
        wide = (a.astype(jnp.float64) for a in (x, centres))
        return (weights(u.astype(jnp.float64)) * distances(*wide)).sum()

    result: IterationResult = map_restarts(run, (fold_in(seed, jnp.arange(n_init)),), n_init)
    u, centres = result.state
    objective = jax.vmap(value)(u, centres)
    return best_of(
        rows, result, u.argmax(-1), objective, lambda best: mass[:, None] * u[best], centres
    )


@parameters.constructor
class SemiSupervisedFCM(PlainClusterer):
    r"""Fuzzy c-means with partial supervision: labels of some rows pull at their memberships.

    With squared distances d of rows i from centres c, and the wanted memberships f of the labelled
    rows (one-hot; 0 for all others), minimises over memberships u, whose rows sum to 1, and centres

    .. math:: \sum_{i,c} u_{ic}^2 d_{ic} + \alpha \sum_{i,c} (u_{ic} - f_{ic})^2 d_{ic}

    Cluster i is the i-th of the sorted labels; further clusters are free.

    Parameters
    ----------
    <n_clusters>
    alpha : float or "auto", default="auto"
        Weight of the labels, at most 10**9; 0 ignores them but for the start. "auto" is the number
        of rows over that of labelled ones, and 0 without labels, which is fuzzy c-means.
    n_init : int, default=10
        Number of restarts, from the means of the classes and by k-means++, at most 10**6; the best
        by objective is kept.
    max_iter : int, default=1000
        Most iterations of a restart; at most 10**6.
    tol : float, default=1e-6
        Change of all memberships in an iteration below which a restart has converged, from 0 to 1.
    <random_state>
    <verbose>

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Cluster of the largest membership of every row: not always that of its label.
    membership_ : ndarray of shape (n_samples, n_clusters)
        Memberships u; rows sum to 1.
    n_clusters_ : int
        Number of clusters that are the largest membership of a row.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Centres.
    alpha_ : float
        Weight of the labels that was used.
    objective_ : float
        The minimised sum, in squared units of the features: not in nats.
    objective_trace_ : ndarray
        The same after every iteration of the best restart; it never rises.
    n_iter_ : int
        Iterations of the best restart.
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    <classes_>

    Notes
    -----
    Both steps are exact, with the fuzzifier 2. Given centres,

    .. math:: u_{ic} = \frac{1}{1 + \alpha} \left[
        \frac{1 + \alpha (1 - \sum_j f_{ij})}{\sum_j d_{ic} / d_{ij}} + \alpha f_{ic} \right]

    Given memberships, the centres are means with the weights :math:`u^2 + \alpha (u - f)^2`. Often
    printed are means with the weights :math:`u^2` alone, which do not minimise the sum.

    References
    ----------
    Pedrycz and Waletzky (1997), "Fuzzy clustering with partial supervision"; Bezdek (1981), fuzzy
    c-means.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import SemiSupervisedFCM
    >>> X = np.array([[0.0], [0.1], [1.0], [1.1]])
    >>> SemiSupervisedFCM(2, random_state=0).fit(X, [1, -1, 0, -1]).labels_.tolist()
    [1, 1, 0, 0]
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
            Float32 input is computed in float32, all else in float64.
        y : array-like of shape (n_samples,), optional
            Wanted labels, -1 where unknown. Cluster i is the i-th of the sorted labels; further
            clusters are free.

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
        X, fixed = self._take_in(X, y)
        fixed = codes(fixed, len(X))
        n_told = int((fixed >= 0).sum())
        if isinstance(self.alpha, str):
            self.alpha_ = len(X) / n_told if n_told else 0.0
        else:
            self.alpha_ = float(self.alpha)
        self._features, task = lay_out(X, fixed)
        dtype = task.x.dtype
        numbers = Numbers(
            np.asarray(self.n_clusters, np.int32),
            np.asarray(self.alpha_ if n_told else 0.0, dtype),
            np.asarray(self.tol, dtype),
            np.asarray(self.max_iter, np.int32),
        )
        k = padded(task.rows, task.layout, self.n_clusters)
        task.calls = restart_calls(
            solve_fuzzy, {"n_clusters": k}, task.rows, task.layout, task.fixed, [numbers],
            n_init=self.n_init, random_state=self.random_state,
            each=task.rows.mass.size * k * 6,
        )  # fmt: skip
        return task

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        scale = self._features.scale
        best, _ = keep(self, task, result, named=False, unit=scale**2)
        centres = best.fit[: self.n_clusters, : task.X.shape[1]].astype(np.float64)
        self.cluster_centers_ = centres * scale + self._features.centre
        return self

    # New rows

    def predict_proba(self, X):  # type: ignore[override]
        """Memberships of new rows, of which no label is told.

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
        return -np.log(np.maximum(square, _LEAST))
