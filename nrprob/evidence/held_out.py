"""Cross-fitting: refits on all folds but one, evaluated on held-out samples."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone

from nrprob.evidence.gaps import NO_CUT, Count, choose_cut, pairs
from nrprob.evidence.null_model import Clouds, inverse_root
from nrprob.evidence.p_values import mixed_gain
from nrprob.statistics.groups import cross_table

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
    ``_starts_near(labels)``
        Parameters of the fits that together search from these labels, and afresh; the best by
        ``objective_`` counts. Only `nrprob.evidence.confidence` asks for them.
    """

    n_clusters: int

    def _place(self, X: Any, known: Any) -> np.ndarray: ...

    def _log_density(self, y: np.ndarray) -> np.ndarray: ...

    @property
    def _spread(self) -> np.ndarray: ...

    @property
    def _supple(self) -> bool: ...

    def _starts_near(self, labels: np.ndarray) -> list[dict[str, Any]]: ...


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
    counts : of every fold, the rows about the gap; see `nrprob.evidence.gaps`
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
    estimator : unfitted `Density`
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
        y = model._place(X, codes)
        old = y[seen]
        y = widened(y, groups, seen)
        rival = log_rivals(model, old, groups[seen], y[new], groups[new], model._supple)
        own = single._log_density(y[new])
        n_rivals = max(n_rivals, 1 + len(rival))
        # What was not tried is as good as the first.
        every = [own, *rival, *[own] * (len(RIVALS) - 1 - len(rival))]
        gain[:, new] = mixed_gain(model._log_density(y[new]) - np.stack(every))
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


def widened(y: np.ndarray, groups: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Rows (n, p) about the means of the groups that were ``seen``, as wide if they were not.

    A mean is nearer to its own rows than to others.
    """
    size = np.bincount(groups[seen])[groups]
    return y * np.sqrt((size - 1) / (size + 1))[:, None]


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
    model: Density,
    old: np.ndarray,
    old_groups: np.ndarray,
    new: np.ndarray,
    groups: np.ndarray,
    supple: bool,
) -> np.ndarray:
    """Log densities (clouds, n) of rows ``new`` by clouds that are fitted to ``old`` ones.

    The first has the covariance of ``model``; the others of `RIVALS` only come if it is supple.
    """
    turn = inverse_root(model._spread)
    n_groups = old_groups.max() + 1
    clouds = [Clouds.round(n_groups, new.shape[1])]
    if supple:
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
