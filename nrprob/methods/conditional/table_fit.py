"""Fits of the conditional mixture by the joint EM.

The joint EM fits mixed and incomplete tables, and all tables whose group effects are fitted with
the clusters. F is the objective of `joint`. Sizes: n samples, d numeric columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from nrprob.data.design import Design
from nrprob.data.frames import as_codes, as_frame, is_frame, is_table
from nrprob.data.validation import check_random_state
from nrprob.estimator.base import Restarts
from nrprob.methods.conditional.columns import Columns
from nrprob.methods.conditional.coordinates import Coordinates
from nrprob.methods.conditional.diagnostics import DiagnosticsMixin
from nrprob.methods.conditional.fitted_table import FittedTable
from nrprob.methods.conditional.joint_fit import (
    Choices,
    Decision,
    SearchResult,
    decide_effects,
    make_problem,
)
from nrprob.methods.conditional.joint_search import Ends, Form, Problem
from nrprob.methods.conditional.noise import NoiseFit, noise_table
from nrprob.methods.conditional.one_component import fit_one_component
from nrprob.methods.conditional.regression import fit_groups_and_clusters
from nrprob.methods.conditional.rounding import (
    has_coarse_scores,
    is_coarse,
    rounding_variances,
)
from nrprob.methods.conditional.shares import FREE, UNIFORM
from nrprob.methods.conditional.table import DiscreteColumn
from nrprob.methods.conditional.table_data import TableData, complete_table
from nrprob.methods.conditional.units import Units
from nrprob.statistics.missing_values import warn_of_missing
from nrprob.statistics.weighted import scale_rows, total_weight


@dataclass(frozen=True)
class TableInput:
    """A checked table in units of its columns, before residuals or coordinates are computed.

    Attributes
    ----------
    columns : types and values of the columns
    x : (n, d) numeric columns of a mixed or incomplete table, NaN where missing; else None
    discrete : discrete columns
    plain : (n, n_features) the whole table if it is numeric and complete; else None
    n_missing : (n_features,) number of missing values by column
    cells : (n, n_features) the table as floats, with codes in columns of text
    mass : (n,) weights of the samples; None if all are 1
    """

    columns: Columns
    x: np.ndarray | None
    discrete: list[DiscreteColumn]
    plain: np.ndarray | None
    n_missing: np.ndarray
    cells: np.ndarray
    mass: np.ndarray | None = None

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.cells)

    @property
    def missing_by_column(self) -> dict[Any, np.ndarray]:
        """For every column that is not constant, the mask (n,) of missing values."""
        numeric = [self.columns.columns[j].name for j in self.columns.numeric_positions]
        missing: dict[Any, np.ndarray] = {}
        if self.x is not None:
            missing = dict(zip(numeric, np.isnan(self.x).T, strict=True))
        discrete = zip(self.columns.discrete, self.discrete, strict=True)
        return missing | {column.name: values.codes < 0 for column, values in discrete}

    def take(self, indices: np.ndarray) -> TableInput:
        """Return the table of the samples with the given indices, with the same ``n_missing``."""
        return replace(
            self,
            x=None if self.x is None else self.x[indices],
            discrete=[replace(c, codes=c.codes[indices]) for c in self.discrete],
            plain=None if self.plain is None else self.plain[indices],
            cells=self.cells[indices],
            mass=None if self.mass is None else self.mass[indices],
        )


@dataclass
class TableTask:
    """Task of a fit to a mixed or incomplete table; see `ResidualTask` for complete numeric tables.

    Attributes
    ----------
    table : the table in units of its columns
    data : the table in the coordinates of the fit
    design : known structure
    scale : factor from coordinates to units of the table
    centre : (d,) origin of the coordinates, in units of the table; None without numeric columns
    is_coarse : whether rounding errors are a large part of the residuals of a column
    initial : (n,) initial labels of the user; None without them
    seeks_noise : whether to fit noise after the first search
    noise : the fit with noise; None before this fit
    calls : empty; tasks of other estimators list the calls of compiled programs here, which batch
        runs combine
    """

    table: TableInput
    data: TableData
    design: Design
    scale: float
    centre: np.ndarray | None
    is_coarse: bool
    initial: np.ndarray | None
    seeks_noise: bool
    noise: NoiseFit | None = None
    calls: list[Any] = field(default_factory=list)

    @property
    def source(self) -> tuple[TableInput, Design, np.ndarray | None]:
        """Input of the task: table, known structure, and classes of labelled samples."""
        return self.table, self.design, self.data.labels

    @property
    def has_numbers(self) -> bool:
        """Whether the table has numeric columns."""
        return self.data.x is not None


class TableMixin(DiagnosticsMixin):
    """Mixin of `ConditionalMixture` for fits by the joint EM."""

    # Parameters and fitted state of the estimator.
    balance: float
    categorical: Any
    covariance: str
    effects: str
    errors: str
    init: Any
    location: Any
    max_iter: int
    multi: str
    n_clusters: Any
    noise: Any
    random_state: Any
    ridge: float
    tol: float
    weights: str
    whitening_exponents: Any
    ordered: Any
    membership_: np.ndarray
    noise_: float
    _columns: Any
    _coordinates: Coordinates
    _encoder: Any
    _fitted: Any  # FittedTable of a fit by the joint EM; else None
    _units: Any  # Units of the numeric columns of this fit; None without numeric columns
    _noise_table: FittedTable | None  # noise density; None without noise

    def _choices(self) -> Choices:
        """Parameters that restrict the form of group effects, shares and location effects."""
        effects = self.effects
        if self.balance > 0 or self.errors == "t":
            effects = "subtract"
        return Choices(effects, self.weights, self.location, self._start_exponents)

    @property
    def _start_exponents(self) -> list[float]:
        """Whitening exponents of the initial k-means of joint fits, which ignore "kurtosis"."""
        exponents = [e for e in self.whitening_exponents if e != "kurtosis"]
        return exponents or [0.0, 0.5, 1.0]

    # Input

    def _read_table(self, X, *, reset: bool) -> TableInput:
        """Check a table and read its columns.

        If ``reset`` is True, the types of the columns are inferred, else taken from the fit.
        """
        if is_table(X):
            X = as_frame(X)
        checked = self._validate(as_codes(X)[0] if is_frame(X) else X, reset=reset)
        cells = X if is_frame(X) else checked
        missing = np.isnan(checked)
        if reset:
            columns = Columns.learn(cells, self.categorical, self.ordered)
            if all(kind == "constant" for kind in columns.kinds.values()) and missing.any():
                raise ValueError(
                    "X must have a column with different values; got only equal and missing values "
                    "in every column; pass other features"
                )
        else:
            columns = self._columns
        plain = checked if columns.is_numeric and not missing.any() else None
        x, discrete = (None, []) if plain is not None else columns.encode(cells)
        return TableInput(columns, x, discrete, plain, missing.sum(0), checked)

    def _check_table(self, table: TableInput, design: Design) -> None:
        """Raise ValueError for settings that mixed or incomplete tables do not support."""
        n_groups = len(np.unique(design.codes))
        total = total_weight(table.n_samples, table.mass)
        if self.n_clusters > max(total - n_groups, 1):
            raise ValueError(
                f"n_clusters={self.n_clusters} is more than the residual degrees of freedom; got "
                f"n_samples={table.n_samples} and {n_groups} known groups; lower n_clusters, or "
                "pass more rows or fewer groups"
            )
        what = "missing values" if not table.discrete else "discrete columns"
        refused = {
            "errors='t'": self.errors == "t",
            f"balance={self.balance}": self.balance > 0,
            f"multi={self.multi!r}": design.columns is not None and design.kind == "labels",
        }
        numbers_only = "pass categorical=[] and ordered=[] to treat all columns as numeric"
        remedy = numbers_only if table.discrete else "impute missing values first"
        for name, is_set in refused.items():
            if is_set:
                raise ValueError(
                    f"a table with {what} does not support {name}; got both; leave {name} out, "
                    f"or {remedy}"
                )
        if design.kind not in ("nothing", "labels"):
            raise ValueError(
                f"known must be labels for a table with {what}; got {design.description}; convert "
                "known to groups, or pass complete numeric columns"
            )
        if self.effects == "fixed" and table.x is not None:
            count = np.zeros((design.n_groups, table.x.shape[1]))
            np.add.at(count, design.codes, ~np.isnan(table.x))
            if (count == 0).any():
                raise ValueError(
                    "effects='fixed' needs an observed value of every numeric column in every "
                    "known group; got a group in which a column has missing values only; pass "
                    "effects='random'"
                )

    def _prepare_table(self, table: TableInput, design: Design, fixed, initial) -> TableTask:
        """Make the task of the fit to a mixed or incomplete table.

        ``fixed`` (n,) are the classes of labelled samples, else -1. ``initial`` (n,) are initial
        labels. Either of the two may be None.
        """
        self._check_table(table, design)
        if not _varies_within(table, design):
            alike = design.kind == "nothing"
            what = "all rows are alike" if alike else "known explains X completely"
            raise ValueError(
                f"{what}, so there is nothing to cluster; got n_samples={table.n_samples}; pass "
                "other features, or known structure of fewer groups"
            )
        if table.x is None and self.noise not in (0, "auto"):
            raise ValueError(
                f"noise={self.noise} needs a numeric column; got discrete columns only; pass "
                "noise='auto' or 0"
            )
        x, centre, scale, rounding, coarse = table.x, None, 1.0, None, False
        if x is not None:
            one_component = fit_one_component(x, design.codes, design.n_groups, table.mass)
            one_component.require_variation()
            centre, scale = one_component.means.mean(0), one_component.scale
            variances = np.diagonal(one_component.covariance)
            variance = rounding_variances(x, variances)
            scores = table.discrete, design.codes, design.n_groups
            coarse = is_coarse(variance, variances) or has_coarse_scores(*scores)
            rounding = np.diag(variance / scale**2)
            x = (x - centre) / scale
        data = TableData(
            x, table.discrete, design.codes, design.n_groups, fixed, rounding=rounding,
            mass=table.mass,
        )  # fmt: skip
        seeks_noise = self.noise != 0 and x is not None
        return TableTask(table, data, design, scale, centre, coarse, initial, seeks_noise)

    # Results

    def _finish_table(self, task: TableTask, decision: Decision) -> None:
        """Set the fitted attributes of a mixed or incomplete table."""
        search = decision.search
        assert search is not None
        units = None
        offset = 0.0
        if task.centre is not None:
            assert task.table.x is not None
            units = Units.from_scale(task.centre, task.scale)
            unit = units.log_density_unit(task.table.x)
            offset = float(scale_rows(unit, task.table.mass).sum())
        self._search_restarts = _restarts(search, offset)
        end = decision.end
        membership = decision.problem.layout.from_blocks(np.asarray(end.state.r))
        self._store_results(
            _restarts(decision.restarts, offset), membership=membership,
            labels=membership.argmax(1),  # with the offset, restarts may be tied by rounding
            trace=-_trace(end) - offset, n_iter=int(end.n_iter),
        )  # fmt: skip
        self._steps = search.n_iter
        self._freed = [decision.weights == "free"]
        self.errors_ = "gaussian"
        self._set_joint(decision, task.data, units, task.table)
        log_density = scale_rows(self._row_log_densities(task), task.table.mass)
        self.log_likelihood_ = float(log_density.sum())
        self.penalty_ = self.objective_ + self.log_likelihood_
        warn_of_missing(task.table.missing_by_column, membership, task.design.codes)

    def _row_log_densities(self, task: TableTask) -> np.ndarray:
        """Log densities (n,) of the samples of the fit, in units of the table."""
        fitted, data = self._fitted, task.data
        value = logsumexp(fitted.log_joint(data.x, data.columns, data.groups), axis=1)
        if self._units is not None and task.table.x is not None:
            value = value + self._units.log_density_unit(task.table.x)
        return value

    def _set_joint(
        self, decision: Decision, data: TableData, units: Units | None, table: TableInput
    ) -> None:
        """Set the fitted attributes that follow from the parameters of the joint EM.

        ``data`` is the table in the coordinates of the fit, and ``table`` the table in units of its
        columns. ``units`` is the map to the coordinates; None without numeric columns.
        """
        self._shares_by_group = decision.weights == "by_group"
        fitted = FittedTable.from_state(
            decision.end.state, data, decision.location, self._shares_by_group
        )
        self._fitted, self._units = fitted, units
        self._noise_table = None
        if self.noise_ > 0:
            self._noise_table = noise_table(data, decision.problem.ridge)
        self.effects_kind_ = decision.kind
        self.decisions_ = decision.gains
        self.effects_gain_ = _effects_gain(decision)
        self.weights_ = fitted.overall_shares
        share = np.exp(fitted.log_share)
        self.shares_ = share / share.sum(1, keepdims=True)
        d = 0 if units is None else len(units.centre)
        self.means_, self.covariance_ = np.zeros((len(self.weights_), d)), np.zeros((d, d))
        self.effects_ = np.zeros((data.n_groups, d))
        self.effects_covariance_ = np.zeros((d, d))
        if units is not None:
            # The overall mean belongs to the effects, so that the weighted mean of centres is 0.
            level = self.weights_ @ fitted.b
            self.means_ = (fitted.b - level) @ units.back
            self.effects_ = units.centre + (level + fitted.m) @ units.back
            self.covariance_ = units.back.T @ fitted.sigma @ units.back
            self.effects_covariance_ = units.back.T @ fitted.t @ units.back
        sizes = data.group_sizes
        self._level = sizes @ self.effects_ / sizes.sum()
        self.n_components_ = fitted.b.shape[1]
        self._set_columns(table)

    def _set_columns(self, table: TableInput) -> None:
        """Set the fitted attributes that describe the columns of the table."""
        import pandas as pd

        self._columns = table.columns
        self.columns_ = table.columns.kinds
        self.n_missing_ = table.n_missing
        self.tables_ = {}
        self.location_ = None
        fitted = self._fitted
        if fitted is None:
            return
        names = pd.RangeIndex(self.n_clusters, name="cluster")
        for column, values in zip(table.columns.discrete, fitted.average_tables(), strict=True):
            index = pd.Index(column.values.tolist(), name=column.name)
            self.tables_[column.name] = pd.DataFrame(values, index, names)
        if fitted.location and self._units is not None:
            numeric = [table.columns.columns[j].name for j in table.columns.numeric_positions]
            self.location_ = pd.DataFrame(fitted.slopes @ self._units.back, columns=numeric)

    # Effects of a complete numeric table, fitted with the clusters

    def _held_fit(
        self, X: np.ndarray, design: Design, fixed, mass: np.ndarray | None
    ) -> tuple[TableData, Units, Problem, Ends]:
        """Evaluate the fit with subtracted means by the objective of joint fits.

        The joint EM starts from the memberships of the fit with subtracted means, and holds the
        group effects at the group means. The arguments are as in `complete_table`.

        Returns
        -------
        data, units : the table in the coordinates of the fit, and the map to these coordinates
        problem : layout and settings of the joint fits
        held : final state of the EM with held group effects
        """
        data, units = complete_table(X, design, fixed, mass, self._coordinates)
        problem = make_problem(
            data, self.n_clusters, covariance=self.covariance, ridge=self.ridge, location=False,
            tol=self.tol, max_iter=self.max_iter,
        )  # fmt: skip
        r = problem.layout.to_blocks(self.membership_.astype(np.float64))[None]
        shares = FREE if self.weights == "free" else UNIFORM
        return data, units, problem, problem.run(r, [Form(True, False, False, shares)]).pick(0)

    def _fit_joint(self, X: np.ndarray, design: Design, fixed, mass: np.ndarray | None) -> None:
        """Run joint fits of a complete numeric table.

        If `decide_effects` selects a joint fit, it replaces the fitted attributes of the fit with
        subtracted means. The arguments are as in `complete_table`.
        """
        data, units, problem, held = self._held_fit(X, design, fixed, mass)
        choices = replace(self._choices(), location=False)
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1))
        kind, weights, _, restarts, gains = decide_effects(
            data, problem, {False: held}, False, 0.0, choices, rng
        )
        self.decisions_ = gains
        if restarts is None:
            self.effects_gain_ = max(gains["gain_equal"], gains["gain_by_group"])
            self._warn_shares(gains)
            return
        decision = Decision(kind, weights, False, problem, restarts, None, gains)
        offset = float(scale_rows(units.log_density_unit(X), mass).sum())
        membership = problem.layout.from_blocks(np.asarray(restarts.best.state.r))
        self._store_results(
            _restarts(decision.restarts, offset), membership=membership,
            labels=membership.argmax(1), trace=-_trace(restarts.best) - offset,
            n_iter=int(restarts.best.n_iter),
        )  # fmt: skip
        table = TableInput(self._columns, X, [], None, self.n_missing_, X)
        self._set_joint(decision, data, units, table)
        if units.basis.shape[1] < X.shape[1]:
            # Add the group effects in directions that the coordinates leave out.
            more, self._unspanned_centres = fit_groups_and_clusters(
                units.unspanned(X), design.codes, design.n_groups, membership, mass
            )
            self.effects_ += more
        log_density = logsumexp(self._fitted.log_joint(data.x, [], data.groups), axis=1)
        self.log_likelihood_ = float(scale_rows(log_density, mass).sum() + offset)
        self.penalty_ = self.objective_ + self.log_likelihood_


def _varies_within(table: TableInput, design: Design) -> bool:
    """Whether some column has different values within some known group."""
    columns = [column.codes.astype(float) for column in table.discrete]
    columns = [np.where(codes < 0, np.nan, codes) for codes in columns]
    columns += [] if table.x is None else list(table.x.T)
    for values in columns:
        seen = ~np.isnan(values)
        low, high = np.full(design.n_groups, np.inf), np.full(design.n_groups, -np.inf)
        np.minimum.at(low, design.codes[seen], values[seen])
        np.maximum.at(high, design.codes[seen], values[seen])
        if (high > low).any():
            return True
    return False


def _restarts(search: SearchResult, offset: float) -> Restarts:
    """Make `Restarts` with the minimised objective -F; ``offset`` converts F to units of X."""
    return Restarts(search.labels, -(search.objective + offset), search.converged)


def _trace(end: Any) -> np.ndarray:
    """Objective F after every EM step of a restart, without the warm-up."""
    trace = np.asarray(end.trace)
    trace = trace[~np.isnan(trace)]
    return trace[-min(int(end.n_iter), len(trace)) :] if len(trace) else trace


def _effects_gain(decision: Decision) -> float:
    """Objective F of the best joint fit less F with subtracted means, in nats.

    The gain is 0 for fixed effects: the flat prior makes the two objectives incomparable.
    """
    gains = decision.gains
    if "gain_equal" not in gains or decision.kind == "fixed":
        return 0.0
    return max(gains["gain_equal"], gains["gain_by_group"])
