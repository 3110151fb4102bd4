"""Choose the covariance model by the description lengths of partitions found by EM."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.mixture import GaussianMixture

from nrprob.engines.programs import jit_by_size
from nrprob.methods.bayes.model import MixtureCode
from nrprob.settings import few_threads

_BY_EM = {"diag": "diag", "tied": "tied", "full": "full", "shrunk": "full"}  # kinds of mixtures
_ROWS = 2000  # that are looked at
# Nats by which covariances of their own must win. Of few rows, what the search for partitions
# happens to find decides about less: in 3 of 20 draws of 30 irises, half of them with classes,
# "full" won by up to 2.5, and joined two species.
_STRONG = 3.0
_SIZES = (1, 2, 3, 4, 6, 9)
_MOST = len(_SIZES) + 1  # partitions by EM of one kind, the last of them with classes


def candidates(n: int, m: int) -> tuple[str, ...]:
    """Covariances that are tried for n rows in m columns, whose products are columns as well.

    Of few columns clusters know covariances themselves. Of more, or where rows are fewer than the
    numbers of two covariances, one that is shrunk to them is there in place of it: covariances
    of their own would win by what a search happens to find.
    """
    if m > 30:
        return "diag", "tied"
    return "diag", "tied", "shrunk" if m > 10 or n < m * (m + 1) else "full"


@jit_by_size()
def _shortest(target: Any, labels: jax.Array, count: jax.Array) -> jax.Array:
    """Shortest length of the first ``count`` partitions (S, n') over the numbers of the prior."""

    def shorter(s, least):
        return jnp.minimum(least, target.shortest(labels[s]))

    return jax.lax.fori_loop(0, count, shorter, jnp.asarray(jnp.inf, target.x.dtype))


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
        Of `candidates`, without "shrunk" where columns follow from others.
    """
    if len(X) > _ROWS:
        some = np.sort(random.choice(len(X), _ROWS, replace=False))
        X, codes = X[some], codes[some]
    # EM of few rows may not find what their classes show.
    classes = 1 < n_classes <= max_clusters and np.unique(codes[codes >= 0]).size == n_classes
    sizes = [k for k in _SIZES if k <= min(max_clusters, len(X) // 2 + 1)]
    result: dict[str, float] = {}
    by_em: dict[str, np.ndarray] = {}
    for covariance in candidates(*X.shape):
        kind = _BY_EM[covariance]
        if kind not in by_em:
            with few_threads(len(X)):
                by_em[kind] = np.stack([_by_em(X, kind, k, random) for k in sizes])
                if classes:
                    own = _by_classes(X, kind, codes, n_classes)
                    by_em[kind] = np.concatenate([by_em[kind], own[None]])
        labels, most = by_em[kind], _MOST
        if covariance == "shrunk":
            labels, most = np.concatenate([labels, by_em["tied"]]), 2 * _MOST
        most_clusters = max(*sizes, n_classes * classes)
        target = replace(code, covariance=covariance).target(X, codes, n_classes, most_clusters)
        room = most - len(labels), target.x.shape[0] - len(X)
        wide = np.pad(labels, ((0, room[0]), (0, room[1]))).astype(np.int32)
        result[covariance] = float(_shortest(target, jnp.asarray(wide), np.int32(len(labels))))
    return {covariance: length for covariance, length in result.items() if np.isfinite(length)}


def chosen(lengths: dict[str, float]) -> str:
    """The covariance of the shortest length; one of its own for every cluster by `_STRONG` only."""
    best = min(lengths, key=lambda name: lengths[name])
    fewer = lengths.keys() & {"diag", "tied"} or lengths.keys()
    alike = min(sorted(fewer), key=lambda name: lengths[name])
    return best if lengths[best] < lengths[alike] - _STRONG else alike


def _by_em(X: np.ndarray, covariance: str, k: int, random: np.random.RandomState) -> np.ndarray:
    """Clusters (n,) of the best of a few mixtures of ``k`` components."""
    if k == 1:
        return np.zeros(len(X), int)
    mixture = GaussianMixture(
        k, covariance_type=covariance, reg_covar=1e-3, n_init=2, max_iter=50, random_state=random
    )
    return _fitted(mixture, X)


def _by_classes(X: np.ndarray, covariance: str, codes: np.ndarray, n_classes: int) -> np.ndarray:
    """Clusters (n,) of a mixture that starts at the classes; rows with a class are in its own."""
    told = codes >= 0
    own = codes[told][:, None] == np.arange(n_classes)
    mixture = GaussianMixture(
        n_classes, covariance_type=covariance, reg_covar=1e-3, max_iter=50, random_state=0,
        means_init=own.T @ X[told] / own.sum(0)[:, None],
    )  # fmt: skip
    return np.where(told, codes, _fitted(mixture, X))


def _fitted(mixture: GaussianMixture, X: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is a start, converged or not
        return mixture.fit_predict(X)
