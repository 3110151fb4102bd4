"""Refits on all folds but one, and what they say of the rows that they have not seen."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone

from nrprob.evidence.clouds import Clouds, inverse_root
from nrprob.evidence.gains import mixed_gain

# What clusters have to beat: the first two always, all where they are supple (see `Density`), by
# whether every group has a scale matrix of its own and whether tails are fitted.
RIVALS: dict[str, tuple[bool, ...]] = {
    "the fit of one cluster": (),
    "one normal cloud of the same covariance": (),
    "one normal cloud per group, of its own covariance": (True, False),
    "one t cloud": (False, True),
    "one t cloud per group, of its own covariance": (True, True),
}
_ALWAYS = 2


class Density(Protocol):
    """What a clusterer has, beside its usual methods, so that its clusters can be tested.

    Its parameters include ``n_clusters``, ``n_init`` and ``random_state``. With ``n_clusters=1`` it
    fits one cloud per known group, in the same coordinates.

    ``_place(X, known)``
        Coordinates (n, p) of new rows, in which the mean of their known group is taken off.
    ``_log_density(y)``
        Log density (n,) of the fitted model there.
    ``_spread``
        Covariance (p, p) of that model as a whole, up to a factor.
    ``_supple``
        Whether its clusters can follow tails, or groups that spread differently or along other
        directions, better than one cloud of its own kind.
    """

    n_clusters: int

    def _place(self, X: Any, known: Any) -> np.ndarray: ...

    def _log_density(self, y: np.ndarray) -> np.ndarray: ...

    @property
    def _spread(self) -> np.ndarray: ...

    @property
    def _supple(self) -> bool: ...


@dataclass(frozen=True)
class HeldOut:
    """What the refits of one split say of every row, by the one that has not seen it.

    Attributes
    ----------
    gain : (rivals, n) nats that the clusters gain over every rival; see `mixed_gain`
    labels : (n,) cluster, by common names
    place : (n,) along the direction in which one cluster is furthest from the others, in standard
        deviations within clusters; 0 is half way
    n_rivals : how many were tried; over the others the gain is that over the first
    """

    gain: np.ndarray
    labels: np.ndarray
    place: np.ndarray
    n_rivals: int


def folds(codes: np.ndarray, n_folds: int, random: np.random.RandomState) -> np.ndarray:
    """Fold (n,) of every row: of every group, and of all rows, as many as can be in each."""
    order = np.lexsort((random.rand(codes.size), codes))
    fold = np.empty(codes.size, int)
    fold[order] = np.arange(codes.size) % n_folds
    return fold


def hold_out(
    estimator: Any,
    X: np.ndarray,
    codes: np.ndarray | None,
    fold: np.ndarray,
    n_init: int,
    random: np.random.RandomState,
) -> HeldOut:
    """Fit on all folds but one, for each, and look at the rows of that one.

    Parameters
    ----------
    estimator : unfitted `Density`
    X : (n, m) rows
    codes : (n,) known groups as numbers; None where nothing is known
    fold : (n,) fold of every row
    n_init : restarts of a fit
    random : of the seeds of the fits
    """
    n = len(X)
    groups = np.zeros(n, int) if codes is None else codes
    gain, labels, place = np.empty((len(RIVALS), n)), np.empty(n, int), np.empty(n)
    first, axis, n_rivals = None, None, _ALWAYS
    for f in range(fold.max() + 1):
        seen, new = _parts(fold, f, groups)
        model = clone(estimator).set_params(n_init=n_init, random_state=random.randint(2**31 - 1))
        # As many restarts, though one would do: it then shares the program.
        single = clone(model).set_params(n_clusters=1)
        given = None if codes is None else codes[seen]
        with warnings.catch_warnings():
            # What a fit to some of the rows has to say of itself is no news of the test.
            warnings.simplefilter("ignore")
            model.fit(X[seen], known=given)
            single.fit(X[seen], known=given)
        y = model._place(X, codes)
        old = y[seen]
        # A mean is nearer to its own rows than to others, which have to be as wide as those.
        size = np.bincount(groups[seen])[groups]
        y *= np.sqrt((size - 1) / (size + 1))[:, None]
        gain[:, new] = _gains(model, single, old, groups[seen], y[new], groups[new])
        n_rivals = len(RIVALS) if model._supple else n_rivals
        found = model.predict(X, known=codes)
        first = found if first is None else first
        names = _names(found, first, model.n_clusters)
        axis = _Axis.of(old, names[found[seen]], axis)
        labels[new], place[new] = names[found[new]], axis(y[new])
    return HeldOut(gain, labels, place, n_rivals)


def _parts(fold: np.ndarray, f: int, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the rows to fit and of those held out.

    All fits have as many rows, so that they share a program: one of the largest group is left out
    where a fold has a row less than others.
    """
    seen = np.flatnonzero(fold != f)
    if seen.size > fold.size - np.bincount(fold).max():
        largest = np.bincount(groups[seen]).argmax()
        seen = np.delete(seen, np.flatnonzero(groups[seen] == largest)[0])
    return seen, np.flatnonzero(fold == f)


def _gains(
    model: Density,
    single: Density,
    old: np.ndarray,
    old_groups: np.ndarray,
    new: np.ndarray,
    groups: np.ndarray,
) -> np.ndarray:
    """Gain (rivals, n) of held-out rows ``new`` over rivals that were fitted to ``old`` ones."""
    n_groups, p = old_groups.max() + 1, new.shape[1]
    turn = inverse_root(model._spread)
    log_unit = np.linalg.slogdet(turn)[1]
    clouds = [Clouds.round(n_groups, p)]
    if model._supple:
        kinds = list(RIVALS.values())[_ALWAYS:]
        clouds += [Clouds.fit(old @ turn, old_groups, n_groups, *kind) for kind in kinds]
    log_q = [single._log_density(new)]
    log_q += [cloud.log_density(new @ turn, groups) + log_unit for cloud in clouds]
    log_q += log_q[:1] * (len(RIVALS) - len(log_q))
    return mixed_gain(model._log_density(new) - np.stack(log_q))


def _names(found: np.ndarray, first: np.ndarray, k: int) -> np.ndarray:
    """Names (k,) of clusters by which most rows have that of another labeling."""
    table = np.zeros((k, k), int)
    np.add.at(table, (found, first), 1)
    return linear_sum_assignment(table, maximize=True)[1]


@dataclass(frozen=True)
class _Axis:
    """Direction (p,) from the other clusters to one, ``cluster``, and the point half way."""

    cluster: int
    direction: np.ndarray
    middle: np.ndarray

    def __call__(self, y: np.ndarray) -> np.ndarray:
        return (y - self.middle) @ self.direction

    @classmethod
    def of(cls, y: np.ndarray, labels: np.ndarray, like: _Axis | None) -> _Axis:
        """To the cluster of another axis, or that which is furthest from the others."""
        names = np.unique(labels)
        if names.size == 1:
            return cls(0, np.zeros(y.shape[1]), np.zeros(y.shape[1]))
        centres = np.stack([y[labels == c].mean(0) for c in names])
        within = y - centres[np.searchsorted(names, labels)]
        root = inverse_root(within.T @ within / len(y))
        others = np.stack([np.delete(centres, j, 0).mean(0) for j in range(len(names))])
        lengths = np.linalg.norm((centres - others) @ root, axis=1)
        j = int(lengths.argmax())
        if like is not None and like.cluster in names:
            j = int(np.searchsorted(names, like.cluster))
        direction = root @ (root.T @ (centres[j] - others[j])) / max(lengths[j], 1e-10)
        return cls(int(names[j]), direction, (centres[j] + others[j]) / 2)
