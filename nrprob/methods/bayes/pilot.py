"""Which covariance suits rows: code lengths of partitions that a mixture of each kind finds."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.mixture import GaussianMixture

from nrprob.engines.programs import program
from nrprob.methods.bayes.code import MixtureCode

# A kind, how mixtures by EM have it, and the fewest and the most columns that it is tried for:
# products of columns are columns as well, and of few columns clusters know covariances themselves.
_KINDS = (
    ("diag", "diag", 1, None),
    ("tied", "tied", 1, None),
    ("full", "full", 1, 30),
    ("shrunk", "full", 11, 30),
)
_ROWS = 2000  # that are looked at
_SIZES = (1, 2, 3, 4, 6, 9)


@program()
def _shortest(target: Any, labels: jax.Array) -> jax.Array:
    """Shortest length of partitions (S, n') over the numbers of the prior."""
    return jax.lax.map(target.shortest, labels)


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
        Without "full" where there are more than 30 columns; with "shrunk" from 11 to 30, unless
        columns follow from others.
    """
    if len(X) > _ROWS:
        some = np.sort(random.choice(len(X), _ROWS, replace=False))
        X, codes = X[some], codes[some]
    sizes = [k for k in _SIZES if k <= min(max_clusters, len(X) // 2 + 1)]
    found: dict[str, float] = {}
    by_em: dict[str, np.ndarray] = {}
    for covariance, kind, fewest, most in _KINDS:
        if X.shape[1] < fewest or (most and X.shape[1] > most):
            continue
        if kind not in by_em:
            by_em[kind] = np.stack([_by_em(X, kind, k, random) for k in sizes])
        labels = by_em[kind]
        if covariance == "shrunk":
            labels = np.concatenate([labels, by_em["tied"]])
        target = replace(code, covariance=covariance).target(X, codes, n_classes, max(sizes))
        wide = np.pad(labels, ((0, 0), (0, target.x.shape[0] - len(X)))).astype(np.int32)
        found[covariance] = float(_shortest(target, jnp.asarray(wide)).min())
    return {covariance: length for covariance, length in found.items() if np.isfinite(length)}


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
