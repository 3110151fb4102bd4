"""Which covariance suits rows: code lengths of partitions that a mixture of each kind finds."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.mixture import GaussianMixture

from nrprob.methods.bayes.code import MixtureCode
from nrprob.methods.bayes.prior import best_prior

COVARIANCES = ("diag", "tied", "full")
_ROWS = 2000  # that are looked at
_FULL = 30  # columns, whose products are columns as well
_SIZES = (1, 2, 3, 4, 6, 9)


@jax.jit
def _shortest(target: Any, labels: jax.Array) -> jax.Array:
    """Shortest length of partitions (S, n') over the numbers of the prior."""

    def one(z):
        cells = target.cells(z)
        return best_prior(target, cells).length(cells)

    return jax.lax.map(one, labels)


def shortest_lengths(
    code: MixtureCode,
    X: np.ndarray,
    codes: np.ndarray,
    n_classes: int,
    max_clusters: int,
    random: np.random.RandomState,
) -> dict[str, float]:
    """Shortest code length, in nats, that partitions by EM have under every covariance.

    Parameters
    ----------
    code : MixtureCode
        Of whatever covariance.
    X : (n, m) standardised rows, of which 2000 at most are looked at
    codes : (n,) their classes, -1 where unknown
    n_classes : int
    max_clusters : int
    random : RandomState

    Returns
    -------
    dict of str to float
        Without "full" where there are more than 30 columns.
    """
    if len(X) > _ROWS:
        some = np.sort(random.choice(len(X), _ROWS, replace=False))
        X, codes = X[some], codes[some]
    sizes = [k for k in _SIZES if k <= min(max_clusters, len(X) // 2 + 1)]
    found = {}
    for covariance in COVARIANCES:
        if covariance == "full" and X.shape[1] > _FULL:
            continue
        labels = np.stack([_by_em(X, covariance, k, random) for k in sizes])
        target = replace(code, covariance=covariance).target(X, codes, n_classes, max(sizes))
        wide = np.pad(labels, ((0, 0), (0, target.x.shape[0] - len(X)))).astype(np.int32)
        found[covariance] = float(_shortest(target, jnp.asarray(wide)).min())
    return found


def _by_em(X: np.ndarray, covariance: str, k: int, random: np.random.RandomState) -> np.ndarray:
    """Clusters (n,) of the best of a few mixtures of ``k`` components."""
    if k == 1:
        return np.zeros(len(X), int)
    mixture = GaussianMixture(
        k, covariance_type=covariance, reg_covar=1e-3, n_init=2, max_iter=50, random_state=random
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is a start, converged or not
        return mixture.fit_predict(X)
