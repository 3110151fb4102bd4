"""Cross-fitting: refits on all folds but one, evaluated on held-out samples."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone

from nrprob.estimator.density import DensityEstimator
from nrprob.evidence.low_density_gap import NO_CUT, Count, choose_cut, pairs
from nrprob.evidence.null_model import Clouds, inverse_root
from nrprob.evidence.p_values import mixed_gain
from nrprob.statistics.groups import cross_table

# Null models that clusters have to beat: the first two always, all of them if clusters are
# flexible (see `DensityEstimator`). The values say whether every group has its own scale matrix,
# and whether the degrees of freedom of a t distribution are fitted.
RIVALS: dict[str, tuple[bool, ...]] = {
    "the fit of one cluster": (),
    "one normal cloud of the same covariance": (),
    "one normal cloud per group, of its own covariance": (True, False),
    "one t cloud": (False, True),
    "one t cloud per group, of its own covariance": (True, True),
}
_ALWAYS = 2


@dataclass(frozen=True)
class HeldOut:
    """What the refits of one split say of every row, by the one that has not seen it.

    Attributes
    ----------
    gain : (rivals, n) nats that the clusters gain over every rival; see `mixed_gain`
    labels : (n,) cluster, with the labels of the reference; see `hold_out`
    place : (n,) along the direction in which one cluster is best told from the others, in standard
        deviations within clusters; 0 is the middle of the valley between them
    n_rivals : how many were tried; over the others the gain is that over the first
    counts : of every fold, the rows about the gap; see `nrprob.evidence.low_density_gap`
    pairs : of the rows of every fit, in the direction of its gap; see the same
    valley : its width, the mean over folds
    numbers : of clusters, in the fit for every fold
    """

    gain: np.ndarray
    labels: np.ndarray
    place: np.ndarray
    n_rivals: int
    counts: list[Count]
    pairs: list[np.ndarray]
    valley: float
    numbers: list[int]


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
    done: Callable[[], None] = lambda: None,
    reference: np.ndarray | None = None,
) -> HeldOut:
    """Fit on all folds but one, for each, and look at the rows of that one.

    Parameters
    ----------
    estimator : unfitted `DensityEstimator`
    X : (n, m) rows
    codes : (n,) known groups as numbers; None where nothing is known
    fold : (n,) fold of every row
    n_init : restarts of a fit
    random : of the seeds of the fits
    done : is called after every fold
    reference : (n,) labels, from 0 on, of a fit to all rows. Clusters of every fold get its labels.
        Without it they get the labels of the first fold.
    """
    n = len(X)
    groups = np.zeros(n, int) if codes is None else codes
    gain, labels, place = np.empty((len(RIVALS), n)), np.empty(n, int), np.zeros(n)
    first, n_rivals = None, _ALWAYS
    like: int | None = None
    counts, widths, numbers = [], [], []
    near: list[np.ndarray] = []
    for f in range(fold.max() + 1):
        seen, new = parts(fold, f, groups)
        seed = random.randint(2**31 - 1)
        model = refit(estimator, X, codes, seen, n_init=n_init, random_state=seed)
        # As many restarts, though one would do: it then shares the program.
        single = refit(model, X, codes, seen, n_clusters=1)
        y = model.residuals_of(X, **conditioned(codes))
        old = y[seen]
        scale = residual_scale(groups, seen)
        y = y * scale[:, None]
        flexible = model.has_flexible_clusters()
        rival = log_rivals(model, old, groups[seen], y[new], groups[new], flexible)
        held_out = {**conditioned(codes, new), "scale": scale[new]}
        own = single.log_density_of(X[new], **held_out)
        n_rivals = max(n_rivals, 1 + len(rival))
        # What was not tried is as good as the first.
        every = [own, *rival, *[own] * (len(RIVALS) - 1 - len(rival))]
        gain[:, new] = mixed_gain(model.log_density_of(X[new], **held_out) - np.stack(every))
        result = model.predict(X, **conditioned(codes))
        auto = model.n_clusters == "auto"
        numbers.append(model.number_.n_clusters_ if auto else model.n_clusters)
        first = result if first is None else first
        common = _matched(result, first, additional=True)
        named = common if reference is None else _matched(result, reference, additional=False)
        labels[new] = named[new]
        done()
        # Not by the labels of the reference, so that no p-value depends on it.
        cut = choose_cut(old, common[seen], groups[seen])
        counts.append(NO_CUT if cut is None else cut(y[new], groups[new]))
        if cut is None:
            continue
        near.append(pairs(old, cut, groups[seen]))
        # The picture shows all folds along the direction to one cluster, the clearest in the first.
        shown = choose_cut(old, named[seen], groups[seen], like)
        if shown is None:
            continue
        like = shown.cluster if like is None else like
        place[new] = y[new] @ shown.direction - shown.middle
        widths.append(shown.edges[2] - shown.edges[1])
    valley = float(np.mean(widths)) if widths else 0.0
    return HeldOut(gain, labels, place, n_rivals, counts, near, valley, numbers)


def refit(
    estimator: Any, X: np.ndarray, codes: np.ndarray | None, seen: np.ndarray, **settings: Any
) -> Any:
    """A clone with these settings, fitted to the rows whose numbers are ``seen``.

    It starts afresh: places to start from, one for each row, are of all rows.
    """
    model = clone(estimator)
    model.set_params(**(without_starts(model) | settings))
    with warnings.catch_warnings():
        # What a fit to some of the rows has to say of itself is no news of the test.
        warnings.simplefilter("ignore")
        return model.fit(X[seen], **conditioned(codes, seen))


def conditioned(codes: np.ndarray | None, rows: Any = slice(None)) -> dict[str, np.ndarray]:
    """Keywords by which an estimator takes known groups; none, which some take, without any."""
    return {} if codes is None else {"known": codes[rows]}


def without_starts(estimator: Any) -> dict[str, Any]:
    """The parameter by which an estimator starts as it does by default, if it has rows' starts."""
    if np.ndim(estimator.get_params(deep=False).get("init")) == 0:
        return {}
    return {"init": inspect.signature(type(estimator)).parameters["init"].default}


def residual_scale(groups: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Factors (n,) that give residuals of held-out samples the variance of training residuals.

    The mean of a group of s training samples is nearer to these samples than to others: residuals
    have the variance (s - 1) / s of the errors in the first, (s + 1) / s in the others.
    """
    size = np.bincount(groups[seen])[groups]
    return np.sqrt((size - 1) / (size + 1))


def parts(fold: np.ndarray, f: int, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the rows to fit and of those held out.

    All fits have as many rows, so that they share a program: one of the largest group is left out
    where a fold has a row less than others.
    """
    seen = np.flatnonzero(fold != f)
    if seen.size > fold.size - np.bincount(fold).max():
        largest = np.bincount(groups[seen]).argmax()
        seen = np.delete(seen, np.flatnonzero(groups[seen] == largest)[0])
    return seen, np.flatnonzero(fold == f)


def log_rivals(
    model: DensityEstimator,
    old: np.ndarray,
    old_groups: np.ndarray,
    new: np.ndarray,
    groups: np.ndarray,
    flexible: bool,
) -> np.ndarray:
    """Log densities (clouds, n) of rows ``new`` by clouds that are fitted to ``old`` ones.

    The first has the covariance of ``model``; the others of `RIVALS` only come if it is flexible.
    """
    turn = inverse_root(model.mixture_covariance())
    n_groups = old_groups.max() + 1
    clouds = [Clouds.round(n_groups, new.shape[1])]
    if flexible:
        kinds = list(RIVALS.values())[_ALWAYS:]
        clouds += [Clouds.fit(old @ turn, old_groups, n_groups, *kind) for kind in kinds]
    log_unit = np.linalg.slogdet(turn)[1]
    return np.stack([cloud.log_density(new @ turn, groups) + log_unit for cloud in clouds])


def _matched(result: np.ndarray, reference: np.ndarray, additional: bool) -> np.ndarray:
    """Labels (n,) of a fold, replaced by labels of a reference with maximum overlap, one to one.

    Clusters that are left over get additional labels, or the label with which each shares most
    samples.
    """
    shape = result.max() + 1, reference.max() + 1
    table = cross_table(result, reference, shape)
    own, names = linear_sum_assignment(table, maximize=True)
    shared = table[own, names] > 0
    label = np.zeros(shape[0], int)
    label[own[shared]] = names[shared]
    left = np.setdiff1d(result, own[shared])
    label[left] = shape[1] + np.arange(left.size) if additional else table[left].argmax(1)
    return label[result]
