"""Samples that are far from all clusters: set aside, or reported."""

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
from nrprob.methods.conditional.starts import stratified_sample
from nrprob.methods.conditional.table_fit import TableInput, TableTask
from nrprob.statistics.groups import cross_table
from nrprob.statistics.weighted import row_mean, total_weight

SHARE = 0.02  # of noise="auto", and of the check of other fits
_LARGEST_SHARE = 0.2
_FEW, _EACH = 4096, 256  # samples that the noise of complete numbers is fitted to


def check_noise(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is "auto" or a share of noise."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if value != "auto" and not (number and 0 <= value <= _LARGEST_SHARE):
        raise ValueError(
            f"{name} must be 'auto', or a share from 0 to {_LARGEST_SHARE}; got "
            f"{short_repr(value)}; pass one of these"
        )


def odd_samples(probability: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Samples (n,) with a probability of noise above 0.5; every known group keeps one sample.

    Parameters
    ----------
    probability : (n,) of being noise
    groups : (n,) known group of every sample
    """
    odd = probability > 0.5
    order = np.lexsort((probability, groups))
    first = order[np.flatnonzero(np.diff(groups[order], prepend=-1))]
    odd[first] = False
    return odd


class OutlierMixin(Clusterer):
    """Noise component of the conditional mixture."""

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
        """Task of the fit to the samples of a table, with their classes and initial labels."""
        raise NotImplementedError

    def _log_membership_of(self, table: TableInput, design: Design) -> np.ndarray:
        """Scores (n, K) of the samples of a table that is read."""
        raise NotImplementedError

    def _absent_values(self, X, known) -> dict[str, Any]:
        return {"noise_probability_": 0.0, "outliers_": False}

    @property
    def _share(self) -> float:
        """Share of the noise that is fitted or tried."""
        return float(self.noise) if self.noise not in (0, "auto") else SHARE

    def _set_aside(self, task: Any, result: Any) -> Any:
        """Fit noise; return the task of the fit to the other samples, or None to go on with all.

        Without a parameter ``noise``, only warn if there are samples far from all clusters.
        """
        n, asked = task.source[0].n_samples, self.noise != 0
        self.noise_ = self.noise_gain_ = 0.0
        self.noise_probability_, self.outliers_ = np.zeros(n), np.zeros(n, bool)
        if isinstance(task, TableTask):
            fit = task.noise
            if not asked and task.has_numbers and not warnings_are_ignored():
                decision = result[0]
                shares = FREE if decision.weights == "free" else UNIFORM
                form = Form(True, False, False, shares, decision.location)
                fit = fit_table_noise(task.data, decision.problem, decision.search, form, SHARE)
        elif asked or not warnings_are_ignored():
            fit = self._fit_residual_noise(task, result)
        else:
            fit = None
        if fit is None:
            return None
        odd = odd_samples(fit.probability, task.source[1].codes)
        if not asked:
            if self._is_present(fit, task) and odd.any():
                share = row_mean(odd, task.source[0].mass)
                warn(
                    f"{share:.1%} of the samples are far from all clusters (a noise component "
                    f"gains {fit.gain:.0f} nats); got noise=0; noise='auto' sets them aside"
                )
            return None
        self.noise_gain_ = fit.gain
        if not self._is_present(fit, task):
            return None
        self.noise_ = self._share
        self.noise_probability_, self.outliers_ = fit.probability, odd
        return self._others(task, np.flatnonzero(~odd)) if odd.any() else None

    def _is_present(self, fit: NoiseFit, task: Any) -> bool:
        """Whether noise is taken: by its gain, unless the user gave its share."""
        if self.noise not in (0, "auto"):
            return True
        total = total_weight(len(fit.probability), task.source[0].mass)
        return fit.gain > least_gain(total) and not task.is_coarse

    def _others(self, task: Any, rows: np.ndarray) -> Any:
        """Task of the fit to some samples."""
        table, design, fixed = task.source
        fixed = None if fixed is None else fixed[rows]
        initial = None if task.initial is None else task.initial[rows]
        others = self._lay_out_fit(table.take(rows), design.take_rows(rows), fixed, initial)
        if isinstance(others, TableTask):
            others.seeks_noise = False
        return others

    def _fit_residual_noise(self, task: Any, result: Any) -> NoiseFit:
        restarts, _ = collect_restarts(result, task.layout)
        table, design, fixed = task.source
        p = self._coordinates.basis.shape[1]
        y = task.layout.from_blocks(task.data.y)[:, :p].astype(np.float64)
        model = ResidualNoise(
            y, self._coordinates, self.covariance, self.n_clusters, fixed, table.mass
        )
        few = max(_FEW, _EACH * self.n_clusters)
        sample, _ = stratified_sample(design.codes, few, np.random.default_rng(0))
        return fit_residual_noise(model, restarts.labels, restarts.objective, self._share, sample)

    def _has_table_noise(
        self, task: TableTask, problem: Problem, search: SearchResult, form: Form
    ) -> bool:
        """Fit noise to a table after its search; return whether samples have to be set aside."""
        fit = fit_table_noise(task.data, problem, search, form, self._share)
        task.noise = fit
        odd = odd_samples(fit.probability, task.design.codes)
        return bool(self._is_present(fit, task) and odd.any())

    def _restore(self, task: Any) -> None:
        """Give the samples that were set aside their nearest clusters."""
        table, design, fixed = task.source
        odd = self.outliers_
        rows = np.flatnonzero(odd)
        membership = np.zeros((len(odd), self.n_clusters))
        membership[~odd] = self.membership_
        score = self._log_membership_of(table.take(rows), design.take_rows(rows))
        if fixed is not None:
            label = fixed[rows][:, None]
            score = np.where((label < 0) | (label == np.arange(self.n_clusters)), score, -np.inf)
        membership[rows] = softmax(score, axis=1)
        labels = np.zeros(len(odd), np.int64)
        labels[~odd], labels[rows] = self.labels_, membership[rows].argmax(1)

        def complete(restarts: Restarts) -> Restarts:
            """Restarts in which odd samples belong to the clusters of samples like them."""
            every = np.zeros((len(restarts.labels), len(odd)), restarts.labels.dtype)
            every[:, ~odd] = restarts.labels
            shape = self.n_clusters, self.n_clusters
            for row, others in zip(every, restarts.labels, strict=True):
                row[rows] = cross_table(self.labels_, others, shape).argmax(1)[labels[rows]]
            return restarts._replace(labels=every)

        same = self._search_restarts is self._restarts
        self._restarts = complete(self._restarts)
        self._search_restarts = self._restarts if same else complete(self._search_restarts)
        self.labels_, self.membership_ = labels, membership
