"""Conditional mixtures of stored tables: discrete columns, and effects fitted with the clusters.

A search on a subsample in memory gives initial parameters and the form of the model. Every further
EM step is a pass over all samples. F is the objective of `joint`. Sizes: L known groups, K
clusters, m columns, of which d are numeric.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from nrprob.data.column_kinds import DISCRETE
from nrprob.data.labels import factorize
from nrprob.data.storage.blocks import Blocks, sum_processes
from nrprob.data.storage.stored import Survey
from nrprob.estimator.base import Restarts
from nrprob.estimator.stored import collect_labels, start_seed
from nrprob.methods.conditional.columns import Columns
from nrprob.methods.conditional.gaussian_block import Effects
from nrprob.methods.conditional.joint import JointState, Settings
from nrprob.methods.conditional.joint_fit import Decision, fit_table
from nrprob.methods.conditional.one_component import OneComponent, effect_variance, ridge_weight
from nrprob.methods.conditional.optima import SAME_OPTIMUM, distinct_optima
from nrprob.methods.conditional.starts import stratified_sample
from nrprob.methods.conditional.stored_rows import collect_rows, mean_by_group
from nrprob.methods.conditional.streaming import residual_products
from nrprob.methods.conditional.table import lay_out_table, padded_size, take_rows
from nrprob.methods.conditional.table_blocks import (
    TableFormat,
    block_e_step,
    block_labels,
    count_values,
    full_m_step,
    to_table_block,
)  # fmt: skip
from nrprob.methods.conditional.table_data import TableData
from nrprob.methods.conditional.table_fit import TableInput
from nrprob.methods.conditional.table_starts import start_kinds
from nrprob.methods.conditional.units import Units
from nrprob.statistics.groups import cross_table
from nrprob.statistics.single_feature import warn_of_single_feature
from nrprob.statistics.weighted import shrinkage_intensity

_SAMPLE, _SAMPLE_EACH = 1 << 13, 1 << 9  # size of the subsample: in all or per cluster, the larger


@dataclass(frozen=True)
class _Scaling:
    """Coordinates and hyperparameters of the numeric columns, from moments of all samples.

    The coordinates of a sample x are (x - centre) / scale.

    Attributes
    ----------
    centre, scale : origin (d,) and unit of the coordinates
    means : (L, d) means of the known groups in coordinates
    nu0, tau0 : weight of the ridge, and prior variance of the group effects in coordinates
    """

    centre: np.ndarray
    scale: float
    means: np.ndarray
    nu0: float
    tau0: float

    @classmethod
    def measure(
        cls, blocks: Blocks, means: np.ndarray, sizes: np.ndarray, columns: tuple[int, ...],
        ridge: float,
    ) -> _Scaling:  # fmt: skip
        """Compute the scaling of the numeric columns by a pass over all samples.

        Parameters
        ----------
        blocks : blocks of all samples
        means, sizes : (L, m) means of all columns and (L,) sizes of the known groups
        columns : positions of the numeric columns
        ridge : factor of the Ledoit-Wolf ridge
        """
        square, fourth = blocks.map_sum(partial(residual_products, columns=columns), means)
        n, d, n_groups = sizes.sum(), len(columns), (sizes > 0).sum()
        means = means[:, list(columns)]
        dof = max(n - n_groups, 1)
        scale = math.sqrt(np.trace(square) / (d * dof))
        fit = OneComponent(means, square / dof, np.empty((0, d)), scale)
        fit.require_variation()
        shrinkage = shrinkage_intensity(square / n, float(fourth) / n, n)
        tau0 = effect_variance(fit, np.arange(len(sizes)), sizes) / scale**2
        centre = means[sizes > 0].mean(0)
        nu0 = ridge_weight(shrinkage, dof, ridge, d)
        return cls(centre, scale, (means - centre) / scale, nu0, tau0)

    @classmethod
    def none(cls, n_groups: int) -> _Scaling:
        """Return the scaling of a table without numeric columns."""
        return cls(np.empty(0), 1.0, np.empty((n_groups, 0)), 0.0, 1.0)


class _StoredTable:
    """A stored table in coordinates, its subsample in memory, and the settings of its EM.

    Attributes
    ----------
    scaling : units and hyperparameters of the numeric columns
    blocks : blocks of all samples, each a `TableBlock`
    table : columns of the subsample
    data : the subsample in the coordinates of the fit, without weights
    weighted : ``data`` with the weights of the samples: the number of stored samples that a sample
        of the subsample represents
    sizes : (L,) numbers of stored samples by known group
    template : `Table` with the arrays that the tables of all blocks share
    seed : seed of the subsample and of the search
    """

    def __init__(
        self, model: Any, seen: Survey, raw: Blocks, columns: Columns, fixed: np.ndarray | None
    ):
        self.model, self.seen = model, seen
        design, n_groups = seen.design, seen.design.n_groups
        means, self.sizes = mean_by_group(seen, raw)
        positions = columns.numeric_positions
        discrete = [(j, c) for j, c in enumerate(columns.columns) if c.kind in DISCRETE]
        self.scaling = _Scaling.none(n_groups)
        if positions:
            self.scaling = _Scaling.measure(raw, means, self.sizes, tuple(positions), model.ridge)
        # 1. A stratified sample.
        self.seed = start_seed(model, seen)
        rng = np.random.default_rng(self.seed)
        strata = design.codes
        if fixed is not None:
            strata = factorize(np.column_stack([strata, fixed]))[0]
        size = max(_SAMPLE, _SAMPLE_EACH * model.n_clusters) * seen.n_samples // seen.n_all
        chosen, times = stratified_sample(strata, max(size, 1), rng)
        labels = np.full(len(chosen), -1) if fixed is None else fixed[chosen]
        cells, groups, times, labels = collect_rows(
            seen, raw, chosen, design.codes[chosen], times, labels
        )
        x, encoded = columns.encode(seen.source.as_table(cells))
        # 2. Blocks in coordinates, and the shares of the values.
        widths = [len(column.values) for _, column in discrete]
        form = TableFormat(
            tuple(positions), tuple(j for j, _ in discrete), self.scaling.centre,
            self.scaling.scale, tuple(np.asarray(c.values, float) for _, c in discrete),
            padded_size(n_groups),
        )  # fmt: skip
        self.blocks = raw.transform_blocks(to_table_block, form)
        if discrete:
            counts = self.blocks.map_sum(partial(count_values, width=form.width)) + 0.5
            parts = np.split(counts, np.cumsum(widths)[:-1])
            encoded = [
                replace(column, fitted_marginal=part / part.sum())
                for column, part in zip(encoded, parts, strict=True)
            ]
        self.table = TableInput(
            columns, x, encoded, None, np.zeros(len(columns.columns), int), cells
        )
        self.data = TableData(
            None if x is None else (x - self.scaling.centre) / self.scaling.scale,
            encoded, groups, n_groups, None if fixed is None else labels,
            nu0=self.scaling.nu0, tau0=self.scaling.tau0,
        )  # fmt: skip
        self.weighted = replace(self.data, mass=times)
        # 3. What all blocks have in common.
        first = self.data.take(np.arange(1))
        self.template = lay_out_table(
            first.x, take_rows(self.data.columns, np.arange(1)), first.groups, n_groups,
            labels=first.labels, sizes=self.sizes,
        )[0]  # fmt: skip

    def search(self) -> Decision:
        """Fit the subsample, and choose the form of the group effects and of the shares."""
        model = self.model
        decision = fit_table(
            self.data, model.n_clusters, replace(model._choices(), location=False),
            covariance=model.covariance, ridge=model.ridge, n_init=model._n_table_restarts,
            tol=model.tol, max_iter=model.max_iter, rng=np.random.default_rng(self.seed),
            successive_halving=model.successive_halving,
        )  # fmt: skip
        assert decision is not None
        return decision

    def settings(self, decision: Decision) -> Settings:
        """Settings of the EM over all samples, for the form of the model in ``decision``."""
        form = decision.form
        no = np.asarray(False)
        effects = Effects(np.asarray(form.held), np.asarray(form.fixed), no)
        problem = decision.problem
        return Settings(
            problem.ridge, problem.tilt_ridge, effects, np.asarray(form.shares),
            np.asarray(0.0), np.asarray(self.model.tol),
        )  # fmt: skip

    def initial_state(self, decision: Decision) -> JointState:
        """Initial parameters of the EM over all samples: the parameters of the best subsample fit.

        If group means are subtracted, they are the means of all samples, not of the subsample.
        """
        state = decision.end.state._replace(r=None)
        if decision.kind == "subtract" and state.gaussian is not None:
            m = np.zeros_like(state.gaussian.m)
            n_groups, d = self.scaling.means.shape
            m[:n_groups, :d] = self.scaling.means
            state = state._replace(gaussian=state.gaussian._replace(m=m))
        return jax.tree.map(np.asarray, state)


@dataclass
class _EMResult:
    """Result of EM over all samples.

    Attributes
    ----------
    state : final parameters
    objective : maximised objective F at these parameters, in coordinates
    entropy : mean entropy of the memberships, in nats
    converged : whether parameters and objective changed by less than the tolerance in the last step
    trace : F at every pass over the samples
    """

    state: JointState
    objective: float
    entropy: float
    converged: bool
    trace: list[float]

    @classmethod
    def run(cls, stored: _StoredTable, settings: Settings, state: JointState) -> _EMResult:
        """Take EM steps from ``state`` until convergence, but at most ``max_iter`` steps."""
        model, template = stored.model, stored.template
        tol, covariance = model.tol, model.covariance
        rounding = 16 * np.finfo(np.float64).eps
        trace: list[float] = []
        while True:
            # 1. E-step: sums over all samples at the present parameters.
            step = partial(block_e_step, covariance=covariance)
            statistics, log_likelihood, entropy = stored.blocks.map_sum(
                step, template, settings, state
            )
            # 2. M-step, and the objective of the present parameters.
            after, objective, change = full_m_step(
                statistics, log_likelihood, template, settings, state, covariance
            )
            value = float(objective)
            gain = value - trace[-1] if trace else np.inf
            trace.append(value)
            if model.verbose:
                print(f"pass {len(trace) - 1} over the rows: objective {-value:.6g} nats")
            done = gain <= max(tol, rounding * abs(value)) and float(change) <= tol
            if done or len(trace) > model.max_iter:
                mean = float(entropy) / stored.seen.n_all
                return cls(state, value, mean, bool(done), trace)
            state = jax.tree.map(np.asarray, after)


def fit_stored_table(
    model: Any, seen: Survey, raw: Blocks, columns: Columns, fixed: np.ndarray | None
) -> Any:
    """Fit a `nrprob.ConditionalMixture` to stored rows, with discrete columns or joint effects."""
    model._fits_effects(seen.design)  # raises without known groups where they are needed
    stored = _StoredTable(model, seen, raw, columns, fixed)
    model._check_table(stored.table, seen.design)
    decision = stored.search()
    settings = stored.settings(decision)
    result = _EMResult.run(stored, settings, stored.initial_state(decision))
    _store_result(model, stored, decision, settings, result)
    return model


def _store_result(
    model: Any, stored: _StoredTable, decision: Decision, settings: Settings, result: _EMResult
) -> None:
    """Set the fitted attributes of the model.

    ``decision`` is the fit to the subsample, ``settings`` are the settings of the EM over all
    samples, and ``result`` is the result of this EM.
    """
    seen, k, state = stored.seen, model.n_clusters, result.state
    shared = stored.template, settings, state
    step = partial(block_labels, covariance=model.covariance, soft=seen.rows.membership)
    labels, membership = collect_labels(seen, stored.blocks.map_blocks(step, *shared), k)
    table = cross_table(seen.design.codes, labels, (seen.design.n_groups, k))
    if seen.rows.processes:
        table = sum_processes(table)
    units, offset, d = None, 0.0, len(stored.scaling.centre)
    if d:
        units = Units.from_scale(stored.scaling.centre, stored.scaling.scale)
        offset = units.log_det * seen.n_all
    model._store_results(
        Restarts(None, np.array([-result.objective - offset]), np.array([result.converged])),
        labels=labels, sizes=table.sum(0), membership=membership,
        trace=-np.array(result.trace) - offset, n_iter=len(result.trace) - 1,
    )  # fmt: skip
    model._search_restarts, model._steps = model._restarts, np.array([len(result.trace) - 1])
    model._start_kinds = start_kinds(stored.data, k, model._start_exponents)
    model.noise_ = model.noise_gain_ = 0.0
    model._is_balanced = False
    model._freed, model.errors_ = [decision.weights == "free"], "gaussian"
    best = decision.end._replace(state=state)
    model._set_joint(
        replace(decision, restarts=replace(decision.restarts, best=best)), stored.weighted, units,
        stored.table,
    )  # fmt: skip
    model.log_likelihood_ = _log_likelihood(stored, settings, state, model.covariance) + offset
    model.penalty_ = model.objective_ + model.log_likelihood_
    _warn_of_result(model, stored, decision, result, table)


def _log_likelihood(
    stored: _StoredTable, settings: Settings, state: JointState, covariance: str
) -> float:
    """Log likelihood of all samples at the posterior means of the group effects.

    Target labels are ignored. The result is in the coordinates of the fit.
    """
    if state.gaussian is not None:
        gaussian = state.gaussian._replace(s=np.zeros_like(state.gaussian.s))
        state = state._replace(gaussian=gaussian)
    if state.discrete is not None:
        discrete = state.discrete._replace(v=np.zeros_like(state.discrete.v))
        state = state._replace(discrete=discrete)
    step = partial(block_e_step, covariance=covariance)
    template = stored.template._replace(label=None)
    return float(stored.blocks.map_sum(step, template, settings, state)[1])


def _warn_of_result(
    model: Any, stored: _StoredTable, decision: Decision, result: _EMResult, table: np.ndarray
) -> None:
    """Warn of doubtful clusters, and set the objective margin.

    Some checks use the optima and columns of the subsample. ``table`` (L, K) are the numbers of
    samples by known group and cluster.
    """
    restarts, k = decision.restarts, model.n_clusters
    labels = model._fitted.log_joint(stored.data.x, stored.data.columns, stored.data.groups)
    labels = labels.argmax(1)
    optima = distinct_optima(restarts.labels, -restarts.objective, k, SAME_OPTIMUM, 2)
    share = stored.seen.n_all / stored.data.n_samples
    gaps = np.diff(-restarts.objective[optima]) * share
    model._compared = labels[None]
    model._keep_margin(float(gaps[0]) if gaps.size else np.inf)
    model._warn_equal_clusters(result.entropy / np.log(max(k, 2)))
    warn_of_single_feature(stored.seen.source.as_table(stored.table.cells), labels)
    model._warn_joint()
    if model._warn_groups(table.astype(int), ""):
        form = decision.form._replace(held=False)
        model._warn_gain(stored.data, decision.problem, decision.end, form)
