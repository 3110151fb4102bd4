"""Cross-fitting: fit to all folds but one, and evaluate the samples of the remaining fold.

Shapes: n samples; p coordinates of residuals, which are samples minus the means of their known
groups.
"""

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
from nrprob.evidence.null_model import NullModel, inverse_root, standard_log_density
from nrprob.evidence.p_values import mixed_gain
from nrprob.evidence.pair_gaps import PairCounts, count_between_pairs
from nrprob.statistics.groups import cross_table

# Null models, which clusters have to beat. The first two always apply; the others apply if clusters
# are flexible (see `DensityEstimator`). Values are the arguments ``per_group`` and ``heavy_tails``
# of `NullModel.from_samples`: whether every group has a separate scale matrix, and whether a t
# distribution with estimated degrees of freedom replaces the Gaussian. The first two null models
# have no such arguments.
NULL_MODELS: dict[str, tuple[bool, ...]] = {
    "one cluster of the same estimator": (),
    "one Gaussian with the covariance of the mixture": (),
    "one Gaussian per group, separate covariances": (True, False),
    "one t distribution, common covariance": (False, True),
    "one t distribution per group, separate covariances": (True, True),
}
_N_BASIC = 2  # number of null models that always apply


class FoldFit(NamedTuple):
    """Fits of the clusters and of null models to all folds but one.

    Attributes
    ----------
    log_density : (n_held_out,) log densities of the samples of the remaining fold under the
        clusters
    null : dictionary from the name of a null model to the log densities (n_held_out,) under this
        model; the first null model is one cluster
    labels : (n,) predicted clusters of all samples
    n_clusters : number of clusters
    residuals : (n, p) residuals of all samples, for counts of samples near a low-density gap.
        Samples with a NaN are not counted. None without numeric columns.
    """

    log_density: np.ndarray
    null: dict[str, np.ndarray]
    labels: np.ndarray
    n_clusters: int
    residuals: np.ndarray | None


@dataclass(frozen=True)
class CrossFit:
    """Held-out results of one split: every sample is evaluated by the fit to all other folds.

    Attributes
    ----------
    gain : dictionary from the name of a null model to the held-out log-likelihood gains (n,) of the
        clusters over this model, in nats; see `mixed_gain`
    labels : (n,) predicted clusters, matched to the labels ``reference`` of `cross_fit`
    score : (n,) held-out discriminant scores of one cluster against all other clusters, in standard
        deviations within clusters. The centre of the low-density gap has the score 0. NaN for
        samples without a score
    counts : for every fold, numbers of held-out samples in the low-density gap and on its less
        populated side
    pairs : for every fold, numbers (2,) of near pairs and of all pairs of training samples; see
        `count_near_pairs`
    gap_width : mean width of the gap over folds, in the units of ``score``
    gap_cluster : the cluster of the scores, as in ``labels``; None without scores
    n_clusters : for every fold, the number of clusters
    between : for every fold, numbers of held-out samples about the gap of every pair of clusters
    """

    gain: dict[str, np.ndarray]
    labels: np.ndarray
    score: np.ndarray
    counts: list[GapCount]
    pairs: list[np.ndarray]
    gap_width: float
    gap_cluster: int | None
    n_clusters: list[int]
    between: list[PairCounts]


def assign_folds(codes: np.ndarray, n_folds: int, random: np.random.RandomState) -> np.ndarray:
    """Assign samples to folds (n,) at random, stratified by known group ``codes`` (n,).

    The folds have the same number of samples of every group, up to one sample.
    """
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
    count_pairs: bool = True,
) -> CrossFit:
    """Cross-fit one split: for every fold, fit to all other folds, and evaluate the fold.

    Parameters
    ----------
    fit_fold : function ``(train, test, seed) -> FoldFit``, with the indices of the training samples
        and of the held-out samples
    groups : (n,) known groups as integers
    fold : (n,) fold of every sample
    random : source of the seeds of the fits
    advance : function that is called after every fold
    reference : (n,) labels, from 0 on, of a fit to all samples. The clusters of every fold are
        matched to these labels. Without a reference, the clusters are matched to the clusters of
        the first fold.
    count_pairs : whether to count samples about the gaps of all pairs of clusters
    """
    n = len(groups)
    labels, score = np.empty(n, int), np.full(n, np.nan)
    first, plotted_cluster = None, None
    gains: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
    counts, widths, n_clusters = [], [], []
    pairs: list[np.ndarray] = []
    between: list[PairCounts] = []
    for f in range(fold.max() + 1):
        train, test = split_fold(fold, f, groups)
        fit = fit_fold(train, test, random.randint(2**31 - 1))
        gains.append((test, {k: mixed_gain(fit.log_density - v) for k, v in fit.null.items()}))
        n_clusters.append(fit.n_clusters)
        # Match the labels of the fold to the first fold and to the reference.
        first = fit.labels if first is None else first
        common = _match_labels(fit.labels, first, additional=True)
        shown = (
            common if reference is None else _match_labels(fit.labels, reference, additional=False)
        )
        labels[test] = shown[test]
        advance()
        # Count samples about the gap. The candidate uses no labels of the reference, so that no
        # p-value depends on the reference.
        if fit.residuals is None:
            continue
        y = fit.residuals
        counted = ~np.isnan(y).any(1)
        train, test = train[counted[train]], test[counted[test]]
        candidate = choose_candidate(y[train], common[train], groups[train]) if train.size else None
        if candidate is None:
            counts.append(NO_SAMPLES)
            continue
        counts.append(candidate.count_samples(y[test], groups[test]))
        pairs.append(count_near_pairs(y[train], candidate, groups[train]))
        if count_pairs:
            between.append(count_between_pairs(y, shown, groups, train, test))
        # Scores for the plot. All folds use the direction to the best cluster of the first fold.
        plotted = choose_candidate(y[train], shown[train], groups[train], plotted_cluster)
        if plotted is None:
            continue
        plotted_cluster = plotted.cluster if plotted_cluster is None else plotted_cluster
        score[test] = y[test] @ plotted.direction - plotted.gap_centre
        widths.append(plotted.edges[2] - plotted.edges[1])
    gap_width = float(np.mean(widths)) if widths else 0.0
    gain = _join_gains(gains, n)
    return CrossFit(
        gain, labels, score, counts, pairs, gap_width, plotted_cluster, n_clusters, between
    )


def _join_gains(
    gains: list[tuple[np.ndarray, dict[str, np.ndarray]]], n: int
) -> dict[str, np.ndarray]:
    """Join the gains of all folds to gains (n,) of all samples, by name of the null model.

    ``gains`` has, for every fold, the indices of its samples and their gains by null model. Where a
    fold lacks a null model, its gains over the first null model are used.
    """
    names = dict.fromkeys(name for _, by_null in gains for name in by_null)
    joined = {name: np.empty(n) for name in names}
    for test, by_null in gains:
        repeated = next(iter(by_null.values()))
        for name, gain in joined.items():
            gain[test] = by_null.get(name, repeated)
    return joined


@dataclass(frozen=True)
class ResidualFolds:
    """Function that fits a `DensityEstimator` to training folds of a complete numeric table.

    Attributes
    ----------
    estimator : unfitted estimator
    X : (n, n_features) samples
    codes : (n,) known groups as integers; None without known groups
    n_init : number of restarts of a fit
    """

    estimator: Any
    X: np.ndarray
    codes: np.ndarray | None
    n_init: int
    why_unmeasured = ""  # no reason to withhold p-values: the level was measured for such tables
    least_t = 0.0  # several clusters are chosen if the t statistic of their gain exceeds this

    @property
    def n_clusters(self) -> Any:
        """Number of clusters, or "auto"."""
        return self.estimator.n_clusters

    def __call__(self, train: np.ndarray, test: np.ndarray, seed: int) -> FoldFit:
        """Fit to samples with the indices ``train``; evaluate samples with the indices ``test``."""
        X, codes = self.X, self.codes
        groups = np.zeros(len(X), int) if codes is None else codes
        # Fit the clusters, and one cluster with the same number of restarts, so that both fits
        # share a compiled program.
        model = refit_subset(self.estimator, X, codes, train, n_init=self.n_init, random_state=seed)
        single = refit_subset(model, X, codes, train, n_clusters=1)
        # Null models in the same coordinates, with held-out residuals on the scale of training
        # residuals.
        scale = residual_scale(groups, train)
        inside = np.isin(np.arange(len(X)), train)
        y = model.residuals_of(X, **known_argument(codes))
        y = y * np.where(inside, 1, scale)[:, None]
        flexible = model.has_flexible_clusters()
        null = null_log_densities(model, y[train], groups[train], y[test], groups[test], flexible)
        held_out = {**known_argument(codes, test), "scale": scale[test]}
        log_null = [single.log_density_of(X[test], **held_out), *null]
        auto = model.n_clusters == "auto"
        return FoldFit(
            model.log_density_of(X[test], **held_out),
            dict(zip(NULL_MODELS, log_null, strict=False)),
            model.predict(X, **known_argument(codes)),
            model.number_.n_clusters_ if auto else model.n_clusters,
            y,
        )

    def log_densities(
        self, n_clusters: int, train: np.ndarray, test: np.ndarray, seed: int
    ) -> list[np.ndarray]:
        """Log densities (n_held_out,) of the samples ``test``, by a fit to the samples ``train``.

        The list has the log densities under a fit with ``n_clusters`` clusters. If ``n_clusters``
        is 1, the log densities under all other null models follow.
        """
        X, codes = self.X, self.codes
        groups = np.zeros(len(X), int) if codes is None else codes
        settings = {"n_clusters": n_clusters, "n_init": self.n_init, "random_state": seed}
        fit = refit_subset(self.estimator, X, codes, train, **settings)
        scale = residual_scale(groups, train)[test]
        values = [fit.log_density_of(X[test], **known_argument(codes, test), scale=scale)]
        if n_clusters == 1:
            y = fit.residuals_of(X, **known_argument(codes))
            scaled = y[test] * scale[:, None]
            values += [
                *null_log_densities(fit, y[train], groups[train], scaled, groups[test], True)
            ]
        return values


def refit_subset(
    estimator: Any, X: np.ndarray, codes: np.ndarray | None, subset: np.ndarray, **settings: Any
) -> Any:
    """Fit a clone of the estimator to the samples with the indices ``subset``.

    ``settings`` replace parameters of the estimator. The clone has no initial labels, since initial
    labels of the estimator belong to all samples.
    """
    model = clone(estimator)
    model.set_params(**(default_init(model) | settings))
    with warnings.catch_warnings():
        # Users cannot act on warnings about fits to subsets.
        warnings.simplefilter("ignore")
        return model.fit(X[subset], **known_argument(codes, subset))


def known_argument(codes: np.ndarray | None, subset: Any = slice(None)) -> dict[str, np.ndarray]:
    """Keyword argument ``known`` of `fit` for the samples ``subset``; empty without known groups.

    Estimators without known structure have no such argument.
    """
    return {} if codes is None else {"known": codes[subset]}


def default_init(estimator: Any) -> dict[str, Any]:
    """Default value of the parameter ``init``, as a dictionary with the key ``init``.

    The dictionary is empty unless ``init`` of the estimator is an array, such as labels.
    """
    if np.ndim(estimator.get_params(deep=False).get("init")) == 0:
        return {}
    return {"init": inspect.signature(type(estimator)).parameters["init"].default}


def residual_scale(groups: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Factors (n,) that give held-out residuals the variance of training residuals.

    Residuals are deviations from the mean of the s training samples of the known group. Let v be
    the variance of samples within a group. Training residuals have the variance v (s - 1) / s, and
    held-out residuals the variance v (s + 1) / s. ``train`` are indices of the training samples.
    """
    size = np.bincount(groups[train])[groups]
    return np.sqrt((size - 1) / (size + 1))


def split_fold(fold: np.ndarray, f: int, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split samples into fold ``f`` and the rest; return indices of training and held-out samples.

    All training sets have the same size, so that all fits share a compiled program. Where fold
    ``f`` is smaller than other folds, one sample of the largest group is left out of the training.
    """
    train = np.flatnonzero(fold != f)
    if train.size > fold.size - np.bincount(fold).max():
        largest = np.bincount(groups[train]).argmax()
        train = np.delete(train, np.flatnonzero(groups[train] == largest)[0])
    return train, np.flatnonzero(fold == f)


def null_log_densities(
    model: DensityEstimator,
    training: np.ndarray,
    training_groups: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray,
    flexible: bool,
) -> np.ndarray:
    """Log densities (n_null_models, n) of n held-out residuals under null models.

    The first row belongs to the Gaussian with the covariance of ``model``. If clusters are
    flexible, the Gaussian and t distributions of `NULL_MODELS` follow, fitted to the training
    residuals. The null model "one cluster of the same estimator" is left out.

    Parameters
    ----------
    model : fitted estimator, whose covariance defines the coordinates
    training : (n_training, p) residuals of the training samples
    training_groups : (n_training,) known groups of the training samples
    y : (n, p) residuals of the held-out samples, on the scale of training residuals
    groups : (n,) known groups of the held-out samples
    flexible : whether clusters are flexible
    """
    # Coordinates in which the covariance of the mixture is the identity.
    whitening = inverse_root(model.mixture_covariance())
    white = y @ whitening
    log_p = [standard_log_density(white)]
    if flexible:
        n_groups = training_groups.max() + 1
        for settings in list(NULL_MODELS.values())[_N_BASIC:]:
            null = NullModel.from_samples(
                training @ whitening, training_groups, n_groups, *settings
            )
            log_p.append(null.log_density(white, groups))
    return np.stack(log_p) + np.linalg.slogdet(whitening)[1]


def _match_labels(labels: np.ndarray, reference: np.ndarray, additional: bool) -> np.ndarray:
    """Match clusters one to one to the clusters of a reference, by the number of common samples.

    Parameters
    ----------
    labels : (n,) labels of a fold
    reference : (n,) labels of the reference
    additional : if True, a cluster without a match gets a new label; if False, it gets the label of
        the reference cluster with which it shares most samples

    Returns
    -------
    Labels (n,) of the fold, with the labels of the matched reference clusters.
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
