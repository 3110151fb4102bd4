"""Cross-fitting: refits on all folds but one, evaluated on held-out samples."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone

from nrprob.estimator.density import DensityEstimator
from nrprob.evidence.low_density_gap import (
    NO_SAMPLES,
    GapCount,
    choose_candidate,
    count_near_pairs,
)
from nrprob.evidence.null_model import NullModel, inverse_root
from nrprob.evidence.p_values import mixed_gain
from nrprob.statistics.groups import cross_table

# Null models that clusters have to beat: the first two always, all of them if clusters are
# flexible (see `DensityEstimator`). The values say whether every group has its own scale matrix,
# and whether the degrees of freedom of a t distribution are fitted.
NULL_MODELS: dict[str, tuple[bool, ...]] = {
    "one cluster of the same estimator": (),
    "one Gaussian with the covariance of the mixture": (),
    "one Gaussian per group, separate covariances": (True, False),
    "one t distribution, common covariance": (False, True),
    "one t distribution per group, separate covariances": (True, True),
}
_N_BASIC = 2


class FoldFit(NamedTuple):
    """Fits to all folds but one, evaluated on this fold.

    Attributes
    ----------
    log_density : (held-out samples,) of the clusters
    null : the same of every null model by its name; the first is one cluster
    labels : (n,) predicted cluster
    n_clusters : number of clusters
    residuals : (n, p) in which low-density gaps are counted, NaN for samples that are not counted;
        None without numbers
    """

    log_density: np.ndarray
    null: dict[str, np.ndarray]
    labels: np.ndarray
    n_clusters: int
    residuals: np.ndarray | None


@dataclass(frozen=True)
class CrossFit:
    """Held-out quantities of one split: every sample is evaluated by the refit without its fold.

    Attributes
    ----------
    gain : of every null model, held-out gains (n,) of the clusters in nats; see `mixed_gain`
    labels : (n,) cluster, with the labels of the reference; see `cross_fit`
    score : (n,) held-out discriminant score of one cluster against the others, in standard
        deviations within clusters; 0 is the centre of the gap
    counts : of every fold, held-out samples in the gap and on its sides
    pairs : of every fold, training samples by distance; see `count_near_pairs`
    gap_width : mean over folds
    n_clusters : of every fold
    """

    gain: dict[str, np.ndarray]
    labels: np.ndarray
    score: np.ndarray
    counts: list[GapCount]
    pairs: list[np.ndarray]
    gap_width: float
    n_clusters: list[int]


def assign_folds(codes: np.ndarray, n_folds: int, random: np.random.RandomState) -> np.ndarray:
    """Assign samples (n,) to folds; every fold has equal parts of every group, within 1."""
    order = np.lexsort((random.rand(codes.size), codes))
    fold = np.empty(codes.size, int)
    fold[order] = np.arange(codes.size) % n_folds
    return fold


def cross_fit(
    fit_fold: Callable[[np.ndarray, np.ndarray, int], FoldFit],
    groups: np.ndarray,
    fold: np.ndarray,
    random: np.random.RandomState,
    advance: Callable[[], None] = lambda: None,
    reference: np.ndarray | None = None,
) -> CrossFit:
    """Fit to all folds but one, for each fold, and evaluate the samples of this fold.

    Parameters
    ----------
    fit_fold : fits to training samples with a seed, and evaluates held-out samples
    groups : (n,) known groups as integers
    fold : (n,) fold of every sample
    random : seeds the fits
    advance : called after every fold
    reference : (n,) labels, from 0 on, of a fit to all samples. Clusters of every fold get these
        labels, or the labels of the first fold without a reference.
    """
    n = len(groups)
    labels, score = np.empty(n, int), np.zeros(n)
    first, plotted_cluster = None, None
    gains: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
    counts, widths, n_clusters = [], [], []
    pairs: list[np.ndarray] = []
    for f in range(fold.max() + 1):
        seen, new = split_fold(fold, f, groups)
        fit = fit_fold(seen, new, random.randint(2**31 - 1))
        gains.append((new, {k: mixed_gain(fit.log_density - v) for k, v in fit.null.items()}))
        n_clusters.append(fit.n_clusters)
        # Labels of the fold, matched to the first fold and to the reference.
        first = fit.labels if first is None else first
        common = _match_labels(fit.labels, first, additional=True)
        shown = (
            common if reference is None else _match_labels(fit.labels, reference, additional=False)
        )
        labels[new] = shown[new]
        advance()
        # Counts about the gap. Labels of the reference are not used: no p-value depends on it.
        if fit.residuals is None:
            continue
        y = fit.residuals
        counted = ~np.isnan(y).any(1)
        seen, new = seen[counted[seen]], new[counted[new]]
        candidate = choose_candidate(y[seen], common[seen], groups[seen]) if seen.size else None
        if candidate is None:
            counts.append(NO_SAMPLES)
            continue
        counts.append(candidate.count_samples(y[new], groups[new]))
        pairs.append(count_near_pairs(y[seen], candidate, groups[seen]))
        # Scores of all folds are along the direction to one cluster, the best of the first fold.
        plotted = choose_candidate(y[seen], shown[seen], groups[seen], plotted_cluster)
        if plotted is None:
            continue
        plotted_cluster = plotted.cluster if plotted_cluster is None else plotted_cluster
        score[new] = y[new] @ plotted.direction - plotted.gap_centre
        widths.append(plotted.edges[2] - plotted.edges[1])
    gap_width = float(np.mean(widths)) if widths else 0.0
    gain = _join_gains(gains, n)
    return CrossFit(gain, labels, score, counts, pairs, gap_width, n_clusters)


def _join_gains(
    gains: list[tuple[np.ndarray, dict[str, np.ndarray]]], n: int
) -> dict[str, np.ndarray]:
    """Gains (n,) by null model; one that a fold did not fit repeats the first."""
    names = dict.fromkeys(name for _, by_null in gains for name in by_null)
    joined = {name: np.empty(n) for name in names}
    for new, by_null in gains:
        repeated = next(iter(by_null.values()))
        for name, gain in joined.items():
            gain[new] = by_null.get(name, repeated)
    return joined


@dataclass(frozen=True)
class ResidualFolds:
    """Fits of a `DensityEstimator` to parts of the samples, for `cross_fit`.

    Attributes
    ----------
    estimator : unfitted
    X : (n, m) samples
    codes : (n,) known groups as integers; None without known groups
    n_init : restarts of a fit
    """

    estimator: Any
    X: np.ndarray
    codes: np.ndarray | None
    n_init: int
    why_unmeasured = ""  # the level of the test was measured for complete numbers
    least_t = 0.0  # t statistic of the gain that several clusters have to exceed

    @property
    def n_clusters(self) -> Any:
        """Number of clusters, or "auto"."""
        return self.estimator.n_clusters

    def __call__(self, seen: np.ndarray, new: np.ndarray, seed: int) -> FoldFit:
        """Fit to the samples ``seen``, and evaluate the samples ``new``."""
        X, codes = self.X, self.codes
        groups = np.zeros(len(X), int) if codes is None else codes
        # Fit the clusters, and one cluster with as many restarts: both fits share a program.
        model = refit_subset(self.estimator, X, codes, seen, n_init=self.n_init, random_state=seed)
        single = refit_subset(model, X, codes, seen, n_clusters=1)
        # Null models in the coordinates of the clusters' model.
        scale = residual_scale(groups, seen)
        inside = np.isin(np.arange(len(X)), seen)
        y = model.residuals_of(X, **known_argument(codes))
        y = y * np.where(inside, 1, scale)[:, None]
        flexible = model.has_flexible_clusters()
        null = null_log_densities(model, y[seen], groups[seen], y[new], groups[new], flexible)
        held_out = {**known_argument(codes, new), "scale": scale[new]}
        log_null = [single.log_density_of(X[new], **held_out), *null]
        auto = model.n_clusters == "auto"
        return FoldFit(
            model.log_density_of(X[new], **held_out),
            dict(zip(NULL_MODELS, log_null, strict=False)),
            model.predict(X, **known_argument(codes)),
            model.number_.n_clusters_ if auto else model.n_clusters,
            y,
        )

    def log_densities(
        self, n_clusters: int, seen: np.ndarray, new: np.ndarray, seed: int
    ) -> list[np.ndarray]:
        """Log densities of held-out samples by clusters and, for one cluster, by null models."""
        X, codes = self.X, self.codes
        groups = np.zeros(len(X), int) if codes is None else codes
        settings = {"n_clusters": n_clusters, "n_init": self.n_init, "random_state": seed}
        fit = refit_subset(self.estimator, X, codes, seen, **settings)
        scale = residual_scale(groups, seen)[new]
        values = [fit.log_density_of(X[new], **known_argument(codes, new), scale=scale)]
        if n_clusters == 1:
            y = fit.residuals_of(X, **known_argument(codes))
            scaled = y[new] * scale[:, None]
            values += [*null_log_densities(fit, y[seen], groups[seen], scaled, groups[new], True)]
        return values


def refit_subset(
    estimator: Any, X: np.ndarray, codes: np.ndarray | None, subset: np.ndarray, **settings: Any
) -> Any:
    """Fit a clone with these settings to the samples with the indices ``subset``.

    Initial labels are dropped, since they belong to all samples.
    """
    model = clone(estimator)
    model.set_params(**(default_init(model) | settings))
    with warnings.catch_warnings():
        # Warnings about a fit to a subset tell the user nothing about the test.
        warnings.simplefilter("ignore")
        return model.fit(X[subset], **known_argument(codes, subset))


def known_argument(codes: np.ndarray | None, subset: Any = slice(None)) -> dict[str, np.ndarray]:
    """Keyword argument for known groups; empty without them, as some estimators lack it."""
    return {} if codes is None else {"known": codes[subset]}


def default_init(estimator: Any) -> dict[str, Any]:
    """Default of the parameter ``init``, if it holds initial labels."""
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


def split_fold(fold: np.ndarray, f: int, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the training samples and of the held-out samples.

    All fits have as many samples, so that they share a compiled program: where a fold is smaller
    than others, one training sample of the largest group is left out.
    """
    seen = np.flatnonzero(fold != f)
    if seen.size > fold.size - np.bincount(fold).max():
        largest = np.bincount(groups[seen]).argmax()
        seen = np.delete(seen, np.flatnonzero(groups[seen] == largest)[0])
    return seen, np.flatnonzero(fold == f)


def null_log_densities(
    model: DensityEstimator,
    training: np.ndarray,
    training_groups: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray,
    flexible: bool,
) -> np.ndarray:
    """Log densities (null models, n) of samples ``y``, without one cluster of the estimator.

    The first null model has the covariance of ``model``. The others of `NULL_MODELS` are fitted to
    the training samples if clusters are flexible.
    """
    # Coordinates in which the covariance of the mixture is the identity.
    whitening = inverse_root(model.mixture_covariance())
    n_groups = training_groups.max() + 1
    null_models = [NullModel.standard_normal(n_groups, y.shape[1])]
    if flexible:
        white = training @ whitening
        null_models += [
            NullModel.from_samples(white, training_groups, n_groups, *settings)
            for settings in list(NULL_MODELS.values())[_N_BASIC:]
        ]
    log_det = np.linalg.slogdet(whitening)[1]
    return np.stack([null.log_density(y @ whitening, groups) + log_det for null in null_models])


def _match_labels(labels: np.ndarray, reference: np.ndarray, additional: bool) -> np.ndarray:
    """Labels (n,) of a fold, replaced by labels of a reference with maximum overlap, one to one.

    Clusters that are left over get additional labels, or the label with which each shares most
    samples.
    """
    shape = labels.max() + 1, reference.max() + 1
    table = cross_table(labels, reference, shape)
    clusters, matched = linear_sum_assignment(table, maximize=True)
    overlaps = table[clusters, matched] > 0
    new_label = np.zeros(shape[0], int)
    new_label[clusters[overlaps]] = matched[overlaps]
    left = np.setdiff1d(labels, clusters[overlaps])
    new_label[left] = shape[1] + np.arange(left.size) if additional else table[left].argmax(1)
    return new_label[labels]
