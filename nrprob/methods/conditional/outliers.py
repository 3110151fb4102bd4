"""Outliers of a conditional mixture: samples that are far from all clusters.

`fit` sets outliers aside: it fits the clusters again without the outliers, and then assigns every
outlier to its nearest cluster. With ``noise=0``, `fit` only warns of outliers.

Sizes: n samples, of which n' are not outliers; K clusters; S restarts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import softmax

from nrprob.data.design import Design
from nrprob.estimator.base import Clusterer, Restarts
from nrprob.estimator.calls import collect_restarts
from nrprob.exceptions import short_repr, warn, warnings_are_ignored
from nrprob.methods.conditional.coordinates import Coordinates
from nrprob.methods.conditional.joint_fit import SearchResult
from nrprob.methods.conditional.joint_search import Form, Problem
from nrprob.methods.conditional.noise import (
    NoiseFit,
    ResidualNoise,
    fit_residual_noise,
    fit_table_noise,
    least_gain,
)
from nrprob.methods.conditional.shares import FREE, UNIFORM
from nrprob.methods.conditional.skewed_features import warn_of_skewed
from nrprob.methods.conditional.starts import stratified_sample
from nrprob.methods.conditional.table_fit import TableInput, TableTask
from nrprob.settings import few_threads
from nrprob.statistics.groups import cross_table
from nrprob.statistics.weighted import row_mean, total_weight

SHARE = 0.02  # share of noise for noise="auto", and for the warning of fits without noise
_LARGEST_SHARE = 0.2  # largest share of noise that a user may set
# Size of the subsample for the noise of complete numeric tables: the larger of the first number,
# and the second number per cluster.
_FEW, _EACH = 4096, 256


def check_noise(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is "auto" or a share of noise."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if value != "auto" and not (number and 0 <= value <= _LARGEST_SHARE):
        raise ValueError(
            f"{name} must be 'auto', or a share from 0 to {_LARGEST_SHARE}; got "
            f"{short_repr(value)}; pass one of these"
        )


def find_outliers(probability: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Mask (n,) of outliers: samples with a noise probability above 0.5.

    In every known group, the sample with the smallest noise probability is never an outlier, so
    that no group becomes empty.

    Parameters
    ----------
    probability : (n,) probability that a sample is noise
    groups : (n,) known group of every sample
    """
    outlier = probability > 0.5
    order = np.lexsort((probability, groups))
    first = order[np.flatnonzero(np.diff(groups[order], prepend=-1))]
    outlier[first] = False
    return outlier


class OutlierMixin(Clusterer):
    """Mixin of `ConditionalMixture` for the noise component and for outliers."""

    # Parameters and fitted state of the estimator.
    covariance: str
    n_clusters: Any
    noise: Any
    weights: str
    labels_: np.ndarray
    membership_: np.ndarray
    noise_: float
    _coordinates: Coordinates
    _restarts: Restarts
    _search_restarts: Restarts

    def _lay_out_fit(self, table: TableInput, design: Design, fixed: Any, initial: Any) -> Any:
        """Make the task of a fit to a table; `ConditionalMixture` implements this method.

        ``fixed`` (n,) are the classes of labelled samples, else -1. ``initial`` (n,) are initial
        labels.
        """
        raise NotImplementedError

    def _log_membership_of(self, table: TableInput, design: Design) -> np.ndarray:
        """Log memberships (n, K) of the samples of a table, up to a constant per sample."""
        raise NotImplementedError

    def _absent_values(self, X, known) -> dict[str, Any]:
        return {"noise_probability_": 0.0, "outliers_": False}

    @property
    def _share(self) -> float:
        """Share of the noise component in the fit with noise: set by the user, or 0.02."""
        return float(self.noise) if self.noise not in (0, "auto") else SHARE

    def _set_aside(self, task: Any, result: Any) -> Any:
        """Fit a noise component, set the attributes of noise, and find the outliers to set aside.

        The method warns of skewed features, whose largest values resemble outliers. With
        ``noise=0``, it sets no sample aside, and warns of outliers unless logarithms of skewed
        features gain more than a noise component.

        Parameters
        ----------
        task : the task of the fit to all samples
        result : result of this task

        Returns
        -------
        ResidualTask, TableTask or None
            Task of the fit to the samples that are not outliers. None if no sample is set aside.
        """
        n, has_noise = task.source[0].n_samples, self.noise != 0
        table, design = task.source[:2]
        skewed_gain = 0.0
        if not warnings_are_ignored():
            skewed_gain = n * warn_of_skewed(table, design, self.n_clusters)
        self.noise_ = self.noise_gain_ = 0.0
        self.noise_probability_, self.outliers_ = np.zeros(n), np.zeros(n, bool)
        if isinstance(task, TableTask):
            fit = task.noise
            if not has_noise and task.has_numbers and not warnings_are_ignored():
                decision = result[0]
                shares = FREE if decision.weights == "free" else UNIFORM
                form = Form(True, False, False, shares, decision.location)
                fit = fit_table_noise(task.data, decision.problem, decision.search, form, SHARE)
        elif has_noise or not warnings_are_ignored():
            fit = self._fit_residual_noise(task, result)
        else:
            fit = None
        if fit is None:
            return None
        outlier = find_outliers(fit.probability, task.source[1].codes)
        if not has_noise:
            if self._is_present(fit, task) and outlier.any() and fit.gain > skewed_gain:
                share = row_mean(outlier, task.source[0].mass)
                warn(
                    f"{share:.1%} of the samples are far from all clusters (outliers; a noise "
                    f"component gains {fit.gain:.0f} nats); got noise=0; pass noise='auto' to fit "
                    "the clusters without outliers"
                )
            return None
        self.noise_gain_ = fit.gain
        if not self._is_present(fit, task):
            return None
        self.noise_ = self._share
        self.noise_probability_, self.outliers_ = fit.probability, outlier
        return self._others(task, np.flatnonzero(~outlier)) if outlier.any() else None

    def _is_present(self, fit: NoiseFit, task: Any) -> bool:
        """Whether the model has noise: the user set a share, or the gain of noise is large enough.

        Unless the user set a share, the model of a table with a coarsely rounded column has no
        noise.
        """
        if self.noise not in (0, "auto"):
            return True
        total = total_weight(len(fit.probability), task.source[0].mass)
        return fit.gain > least_gain(total) and not task.is_coarse

    def _others(self, task: Any, rows: np.ndarray) -> Any:
        """Make the task of the fit to the samples with the indices ``rows``.

        ``task`` is the task of the fit to all samples.
        """
        table, design, fixed = task.source
        fixed = None if fixed is None else fixed[rows]
        initial = None if task.initial is None else task.initial[rows]
        others = self._lay_out_fit(table.take(rows), design.take_rows(rows), fixed, initial)
        if isinstance(others, TableTask):
            others.seeks_noise = False
        return others

    def _fit_residual_noise(self, task: Any, result: Any) -> NoiseFit:
        """Fit a noise component to the residuals of a complete numeric table.

        The EM starts from the labels of the restarts in ``result``.
        """
        restarts, _ = collect_restarts(result, task.layout)
        table, design, fixed = task.source
        p = self._coordinates.basis.shape[1]
        y = task.layout.from_blocks(task.data.y)[:, :p].astype(np.float64)
        model = ResidualNoise(
            y, self._coordinates, self.covariance, self.n_clusters, fixed, table.mass
        )
        size = max(_FEW, _EACH * self.n_clusters)
        sample, _ = stratified_sample(design.codes, size, np.random.default_rng(0))
        with few_threads(len(sample)):
            return fit_residual_noise(
                model, restarts.labels, restarts.objective, self._share, sample
            )

    def _has_table_noise(
        self, task: TableTask, problem: Problem, search: SearchResult, form: Form
    ) -> bool:
        """Fit a noise component to a mixed or incomplete table, and store it in ``task``.

        The EM starts from the restarts of ``search``, which have the form ``form`` of the model.
        Returns whether there are outliers to set aside.
        """
        fit = fit_table_noise(task.data, problem, search, form, self._share)
        task.noise = fit
        outlier = find_outliers(fit.probability, task.design.codes)
        return bool(self._is_present(fit, task) and outlier.any())

    def _restore(self, task: Any) -> None:
        """Extend labels, memberships and restarts to the outliers.

        ``task`` is the task of the fit to all samples.
        """
        table, design, fixed = task.source
        outlier = self.outliers_
        outlier_rows = np.flatnonzero(outlier)
        membership = np.zeros((len(outlier), self.n_clusters))
        membership[~outlier] = self.membership_
        score = self._log_membership_of(table.take(outlier_rows), design.take_rows(outlier_rows))
        if fixed is not None:
            label = fixed[outlier_rows][:, None]
            score = np.where((label < 0) | (label == np.arange(self.n_clusters)), score, -np.inf)
        membership[outlier_rows] = softmax(score, axis=1)
        labels = np.zeros(len(outlier), np.int64)
        labels[~outlier], labels[outlier_rows] = self.labels_, membership[outlier_rows].argmax(1)

        def complete(restarts: Restarts) -> Restarts:
            """Extend the labels (S, n') of the restarts to the outliers.

            An outlier in cluster c of the fit gets the label that is most frequent among the
            samples of cluster c in the restart.
            """
            labels_of_all = np.zeros((len(restarts.labels), len(outlier)), restarts.labels.dtype)
            labels_of_all[:, ~outlier] = restarts.labels
            shape = self.n_clusters, self.n_clusters
            for row, others in zip(labels_of_all, restarts.labels, strict=True):
                row[outlier_rows] = cross_table(self.labels_, others, shape).argmax(1)[
                    labels[outlier_rows]
                ]
            return restarts._replace(labels=labels_of_all)

        is_shared = self._search_restarts is self._restarts
        self._restarts = complete(self._restarts)
        self._search_restarts = self._restarts if is_shared else complete(self._search_restarts)
        self.labels_, self.membership_ = labels, membership
