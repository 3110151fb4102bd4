"""Choose the covariance model by the description lengths of partitions from EM."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.mixture import GaussianMixture

from nrprob.engines.programs import jit_by_size
from nrprob.methods.bayes.model import MixtureModel
from nrprob.settings import few_threads

_EM_TYPES = {"diag": "diag", "tied": "tied", "full": "full", "shrunk": "full"}
_MAX_ROWS = 2000  # samples that the comparison uses
# Nats by which the length with separate covariances must be shorter. With few samples the search
# for partitions is less reliable: in 3 of 20 subsamples of 30 irises, half of them with classes,
# the length with "full" was shorter by up to 2.5 nats, and its partition joined two species.
_MARGIN = 3.0
_SIZES = (1, 2, 3, 4, 6, 9)  # numbers of components of EM
_MAX_PARTITIONS = len(_SIZES) + 1  # partitions from EM under one covariance; one uses the classes


def candidates(n: int, m: int) -> tuple[str, ...]:
    """Covariance models to compare for n samples of m features.

    With many features or few samples, "full" could have the shortest length by chance. So "shrunk"
    replaces "full" above 10 features, and with fewer samples than the m (m + 1) parameters of two
    covariances. Above 30 features, only "diag" and "tied" are compared.
    """
    if m > 30:
        return "diag", "tied"
    return "diag", "tied", "shrunk" if m > 10 or n < m * (m + 1) else "full"


@jit_by_size()
def _shortest_length(target: Any, labels: jax.Array, count: jax.Array) -> jax.Array:
    """Shortest description length of the first ``count`` of several partitions ``labels`` (S, n').

    Each partition has its most probable hyperparameters.
    """

    def update_least(s, least):
        return jnp.minimum(least, target.shortest_length(labels[s]))

    return jax.lax.fori_loop(0, count, update_least, jnp.asarray(jnp.inf, target.x.dtype))


def shortest_lengths(
    model: MixtureModel,
    X: np.ndarray,
    codes: np.ndarray,
    n_classes: int,
    max_clusters: int,
    random: np.random.RandomState,
) -> dict[str, float]:
    """Shortest description length, in nats, of partitions from EM under every covariance model.

    Parameters
    ----------
    model : MixtureModel
        Model whose covariance is replaced by each candidate.
    X : ndarray of shape (n, m)
        Standardised samples, of which at most 2000 are used.
    codes : ndarray of shape (n,)
        Classes of the samples, -1 where unknown.
    n_classes, max_clusters : int
        Number of classes, and largest number of clusters.
    random : RandomState

    Returns
    -------
    dict of str to float
        Lengths by name of the covariance model, for all `candidates` with a finite length. "shrunk"
        has no finite length if features are linear combinations of others.
    """
    if len(X) > _MAX_ROWS:
        some = np.sort(random.choice(len(X), _MAX_ROWS, replace=False))
        X, codes = X[some], codes[some]
    # With few samples, EM without classes may miss the partition that corresponds to the classes.
    classes = 1 < n_classes <= max_clusters and np.unique(codes[codes >= 0]).size == n_classes
    sizes = [k for k in _SIZES if k <= min(max_clusters, len(X) // 2 + 1)]
    lengths: dict[str, float] = {}
    partitions: dict[str, np.ndarray] = {}
    for covariance in candidates(*X.shape):
        em_type = _EM_TYPES[covariance]
        if em_type not in partitions:
            with few_threads(len(X)):
                found_by_em = [_partition_by_em(X, em_type, k, random) for k in sizes]
                if classes:
                    found_by_em.append(_partition_by_classes(X, em_type, codes, n_classes))
            partitions[em_type] = np.stack(found_by_em)
        labels, n_partitions = partitions[em_type], _MAX_PARTITIONS
        if covariance == "shrunk":
            labels = np.concatenate([labels, partitions["tied"]])
            n_partitions = 2 * _MAX_PARTITIONS
        n_clusters = max(*sizes, n_classes * classes)
        features = replace(model.features, covariance=covariance)  # type: ignore[type-var]
        target = replace(model, features=features).target(X, codes, n_classes, n_clusters)
        room = n_partitions - len(labels), target.x.shape[0] - len(X)
        wide = np.pad(labels, ((0, room[0]), (0, room[1]))).astype(np.int32)
        length = _shortest_length(target, jnp.asarray(wide), np.int32(len(labels)))
        lengths[covariance] = float(length)
    return {covariance: length for covariance, length in lengths.items() if np.isfinite(length)}


def choose_covariance(lengths: dict[str, float]) -> str:
    """Choose the covariance model with the shortest description length.

    "full" and "shrunk" are chosen only if their length is shorter than the lengths of "diag" and
    "tied" by more than `_MARGIN` nats.
    """
    best = min(lengths, key=lambda name: lengths[name])
    fewer = lengths.keys() & {"diag", "tied"} or lengths.keys()
    simple = min(sorted(fewer), key=lambda name: lengths[name])
    return best if lengths[best] < lengths[simple] - _MARGIN else simple


def _partition_by_em(
    X: np.ndarray, em_type: str, k: int, random: np.random.RandomState
) -> np.ndarray:
    """Labels (n,) under the better of two EM fits of a Gaussian mixture of ``k`` components."""
    if k == 1:
        return np.zeros(len(X), int)
    mixture = GaussianMixture(
        k, covariance_type=em_type, reg_covar=1e-3, n_init=2, max_iter=50, random_state=random
    )
    return _fit_predict(mixture, X)


def _partition_by_classes(
    X: np.ndarray, em_type: str, codes: np.ndarray, n_classes: int
) -> np.ndarray:
    """Labels (n,) under an EM fit of a Gaussian mixture with one component per class.

    The initial means are the means of the classes. Labelled samples have the label of their class.
    """
    labelled = codes >= 0
    classes = codes[labelled][:, None] == np.arange(n_classes)
    mixture = GaussianMixture(
        n_classes, covariance_type=em_type, reg_covar=1e-3, max_iter=50, random_state=0,
        means_init=classes.T @ X[labelled] / classes.sum(0)[:, None],
    )  # fmt: skip
    return np.where(labelled, codes, _fit_predict(mixture, X))


def _fit_predict(mixture: GaussianMixture, X: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the partition is valid even if EM did not converge
        return mixture.fit_predict(X)
