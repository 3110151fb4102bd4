"""Refits of a conditional mixture to parts of a table, for significance tests.

All refits have the form of the model that a fit to all samples chose. Sizes: n samples, of which n'
are training samples; d numeric columns; V values of a discrete column; K clusters; S restarts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import logsumexp
from scipy.stats import skew

from nrprob.estimator.density import TableTraits
from nrprob.methods.conditional.dependence import conditional_log_probability
from nrprob.methods.conditional.fitted_table import FittedTable
from nrprob.methods.conditional.joint_fit import make_problem
from nrprob.methods.conditional.joint_search import Ends, Form, Problem
from nrprob.methods.conditional.one_component import fit_one_component
from nrprob.methods.conditional.power_transform import transform_residuals
from nrprob.methods.conditional.shares import BY_GROUP, FREE, UNIFORM
from nrprob.methods.conditional.table import DiscreteColumn, lay_out_table
from nrprob.methods.conditional.table_data import TableData
from nrprob.methods.conditional.table_starts import initial_labels, unconditional_labels
from nrprob.settings import standard

_STEPS, _SEARCH_STEPS = 100, 60  # maximum numbers of EM steps: of a fit, of starts of a joint fit
_COLUMN_STEPS = 30  # EM steps of the null model in which a discrete column replaces the clusters
_MOST_CLASSES = 6  # largest number of classes to which the values of such a column are merged
_JITTER = 1e-9  # relative addition to covariances that may be singular


@dataclass(frozen=True)
class Refit:
    """A fit to the training samples, evaluated at all n samples of the table.

    Attributes
    ----------
    fitted : parameters of the fit
    data : the whole table
    training : (n,) whether a sample is a training sample
    """

    fitted: FittedTable
    data: TableData
    training: np.ndarray

    @cached_property
    def log_density(self) -> np.ndarray:
        """Predictive log density (n,) of the samples, given their known groups.

        The covariance of a sample includes the posterior covariance of the group effect.
        """
        return logsumexp(self._log_joint(spread=True), axis=1)

    @cached_property
    def membership(self) -> np.ndarray:
        """Membership probabilities (n, K) of all samples in the clusters."""
        log_p = self._log_joint(spread=False)
        return np.exp(log_p - logsumexp(log_p, axis=1, keepdims=True))

    def _log_joint(self, *, spread: bool) -> np.ndarray:
        """Log share plus log density (n, K) of all samples under every cluster.

        If ``spread`` is True, the covariance of a sample is the covariance of the errors plus the
        posterior covariance of the group effect.
        """
        data = self.data
        return self.fitted.log_joint(data.x, data.columns, data.groups, spread=spread)

    def value_log_probabilities(self, j: int) -> np.ndarray:
        """Log probabilities (n, V) of the values of discrete column ``j`` for every sample.

        The method returns the probabilities in the first cluster, given the known group of the
        sample. A refit with one cluster has only this cluster.
        """
        return self.fitted.tables[j][self.data.groups, 0]

    @cached_property
    def discrete_log_density(self) -> np.ndarray:
        """Log probability (n,) of the observed discrete values of every sample.

        The probabilities are as in `value_log_probabilities`.
        """
        out = np.zeros(self.data.n_samples)
        for j, column in enumerate(self.data.columns):
            values = self.value_log_probabilities(j)
            observed = np.flatnonzero(column.codes >= 0)
            out[observed] += values[observed, column.codes[observed]]
        return out

    @cached_property
    def pooled_log_density(self) -> np.ndarray:
        """Log density (n,) of the numeric values under one Gaussian per known group.

        The covariance of every Gaussian is the sum of the covariance of the errors, the covariance
        of the centres, and the posterior covariance of the group effect.
        """
        fitted = self.fitted
        weights = fitted.overall_shares
        mean = weights @ fitted.b
        centred = fitted.b - mean
        pooled = replace(
            fitted, b=mean[None], sigma=fitted.sigma + (centred.T * weights) @ centred,
            log_share=np.zeros((len(fitted.log_share), 1)),
            tables=[np.zeros((len(t), 1, t.shape[2])) for t in fitted.tables],
        )  # fmt: skip
        data = self.data
        return pooled.log_joint(data.x, data.columns, data.groups, spread=True)[:, 0]

    @cached_property
    def residuals(self) -> np.ndarray | None:
        """Numeric values (n, d) less group effects, location effects and the mean of the centres.

        The result is None without numeric columns.
        """
        data, fitted = self.data, self.fitted
        if data.x is None:
            return None
        residual = data.x - fitted.m[data.groups] - fitted.overall_shares @ fitted.b
        if fitted.location and fitted.data.location is not None:
            residual = residual - fitted.data.location(data.columns, data.groups) @ fitted.slopes
        return residual

    def standard_residuals(self) -> tuple[np.ndarray, np.ndarray]:
        """Whitened residuals (n, d), NaN where missing, and log determinants (n,), as in `whiten`.

        The effect of known group z is estimated from the training samples, and has the posterior
        covariance S_z. Let Sigma be the covariance of the errors. Residuals of training samples
        then have the covariance Sigma - S_z, and residuals of other samples have Sigma + S_z.
        """
        fitted, residuals, groups = self.fitted, self.residuals, self.data.groups
        assert residuals is not None
        d = fitted.sigma.shape[0]
        least = _JITTER * np.trace(fitted.sigma) / d * np.eye(d)
        sign = np.array([1.0, -1.0])[:, None, None, None]
        covariance = (fitted.sigma + sign * fitted.s + least).reshape(-1, d, d)
        return whiten(residuals, covariance, groups + self.training * len(fitted.s))

    def power_residuals(self) -> tuple[np.ndarray, np.ndarray]:
        """Whitened residuals (n, d) after a Yeo-Johnson transformation of every column.

        Also returns the log determinants (n,) of the whole map, which include the log derivatives
        of the Yeo-Johnson transformations.
        """
        fitted, residuals = self.fitted, self.residuals
        assert residuals is not None
        variance = np.diagonal(fitted.sigma)
        spread = np.diagonal(fitted.s, axis1=1, axis2=2)[self.data.groups]
        sign = np.where(self.training, -1.0, 1.0)[:, None]
        root = np.sqrt(np.maximum(variance + sign * spread, _JITTER * variance))
        training = np.flatnonzero(self.training)
        transformed, log_slope = transform_residuals(residuals / root, training)
        one_group = np.zeros(len(training), int)
        one_component = fit_one_component(transformed[training], one_group, 1)
        # No direction has a smaller variance than in the fit, whose covariance has a ridge.
        least = np.linalg.eigvalsh(fitted.sigma / np.sqrt(np.outer(variance, variance)))[0]
        values, vectors = np.linalg.eigh(one_component.covariance)
        covariance = vectors * np.maximum(values, max(least, _JITTER)) @ vectors.T
        white, log_det = whiten(
            transformed - one_component.means[0], covariance[None], np.zeros(len(residuals), int)
        )
        observed = ~np.isnan(residuals)
        return white, log_det + log_slope - np.where(observed, np.log(root), 0.0).sum(1)


def whiten(
    values: np.ndarray, covariances: np.ndarray, which: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Whiten samples: multiply the observed values by a root of their precision matrix.

    Parameters
    ----------
    values : (n, d) values, NaN where missing
    covariances : (q, d, d) q covariance matrices
    which : (n,) index of the covariance matrix of every sample

    Returns
    -------
    white : (n, d) whitened values, NaN where missing
    log_det : (n,) log determinants of the matrices by which values were multiplied
    """
    white, log_det = np.full_like(values, np.nan), np.zeros(len(values))
    seen, pattern = np.unique(~np.isnan(values), axis=0, return_inverse=True)
    key = np.column_stack([pattern.reshape(-1), which])
    cells, cell = np.unique(key, axis=0, return_inverse=True)
    for i, (p, z) in enumerate(cells):
        observed = np.flatnonzero(seen[p])
        rows = np.flatnonzero(cell.reshape(-1) == i)
        root = np.linalg.cholesky(covariances[z][np.ix_(observed, observed)])
        part = np.ix_(rows, observed)
        white[part] = np.linalg.solve(root, values[part].T).T
        log_det[rows] = -np.log(np.diagonal(root)).sum()
    return white, log_det


@dataclass(frozen=True)
class TableRefits:
    """Refits of a table, which have the form of the model of one fit to all samples.

    The arrays of a refit always contain the whole table, and samples outside of the training
    samples have mass 0. All refits therefore use one compiled program.

    Attributes
    ----------
    data : the whole table
    names : names of the discrete columns
    kind : form of the group effects: "subtract", "random" or "fixed"
    shares : form of the cluster shares: UNIFORM, FREE or BY_GROUP
    location : whether there are location effects
    labels : (n,) clusters of the fit to all samples
    n_clusters : number of clusters of the fit to all samples
    covariance, ridge, tol, max_iter : parameters of `ConditionalMixture`
    exponents : whitening exponents of the initial k-means
    """

    data: TableData
    names: Sequence[str]
    kind: str
    shares: int
    location: bool
    labels: np.ndarray
    n_clusters: int
    covariance: str
    ridge: float
    tol: float
    max_iter: int
    exponents: Sequence[float]

    @property
    def groups(self) -> np.ndarray:
        """Known groups (n,)."""
        return self.data.groups

    @property
    def values(self) -> np.ndarray | None:
        """Table (n, m) of the d numeric columns, and of the codes of the m - d discrete columns.

        Missing values are NaN. The result is None without numeric columns.
        """
        codes = [np.where(c.codes < 0, np.nan, c.codes) for c in self.data.columns]
        return None if self.data.x is None else np.column_stack([self.data.x, *codes])

    @property
    def traits(self) -> TableTraits:
        """Properties of the table and its clusters on which the significance tests depend."""
        data, skewness, cells = self.data, 0.0, [c.codes < 0 for c in self.data.columns]
        d = 0 if data.x is None else data.x.shape[1]
        if data.x is not None and data.one_component is not None:
            cells += [*np.isnan(data.x).T]
            observed = np.where(np.isnan(data.x), np.nan, data.one_component.completed)
            skewness = float(np.abs(skew(observed, axis=0, nan_policy="omit")).max())
        sizes = np.bincount(data.groups, minlength=data.n_groups)
        return TableTraits(
            data.n_samples, d, len(data.columns), self.n_clusters, float(np.median(sizes)),
            float(np.mean(cells)), skewness, self.shares == BY_GROUP,
        )  # fmt: skip

    @property
    def _steps(self) -> int:
        """Maximum number of EM steps; held-out densities hardly change after 100 steps."""
        return min(self.max_iter, _STEPS)

    @property
    def _form(self) -> Form:
        """Form of the model in all refits."""
        held, fixed = self.kind == "subtract", self.kind == "fixed"
        return Form(held, fixed, False, self.shares, self.location)

    def fit(
        self, training: np.ndarray, n_clusters: int, n_init: int, seed: int,
        initial: np.ndarray | None = None,
    ) -> Refit:  # fmt: skip
        """Fit the model to training samples.

        Parameters
        ----------
        training : indices of the training samples, which may repeat
        n_clusters : number of clusters
        n_init : number of restarts
        seed : random seed
        initial : (n,) labels that replace the first initial labels
        """
        part = self.data.take(training)
        problem = self._problem(part, training, n_clusters, None, None)
        with standard():
            if n_clusters == 1:
                r = problem.from_labels(np.zeros((1, self.data.n_samples), int))
                end = problem.run(r, [self._form], max_iter=self._steps, batch=1).pick(0)
            else:
                end = self._search(part, training, problem, n_init, seed, initial)
        return self._refit(end, part, training)

    def _search(
        self, part: TableData, training: np.ndarray, problem: Problem, n_init: int, seed: int,
        initial: np.ndarray | None,
    ) -> Ends:  # fmt: skip
        """Fit by restarts with held group effects; then, for joint effects, by joint fits.

        Joint fits start from the best restarts. The arguments are as in `fit` and `_problem`.
        """
        rng = np.random.default_rng(seed)
        k = problem.n_clusters
        n_tables = (part.x is not None) + bool(part.columns)
        sides = 2 * (2 * n_tables - 1)
        exponents = self._metrics(max(n_init // (2 * sides), 1))
        labels, warm = initial_labels(part, k, n_init, exponents, rng)
        starts = self._scatter(labels, training)
        n_held = len(starts)
        if initial is not None:
            starts[0], warm[0] = initial, False
        common = FREE if self.shares == FREE else UNIFORM
        held = Form(True, False, False, common, self.location)
        forms = [held] * len(starts)
        if self.kind != "subtract":
            # Add restarts without group effects, from k-means that ignores the known groups.
            labels = unconditional_labels(part, k, self._metrics(1), rng)
            starts = np.concatenate([starts, self._scatter(labels, training)])
            warm = np.concatenate([warm, np.zeros(len(labels), bool)])
            forms += [held._replace(held=False, absent=True)] * len(labels)
        steps = self._steps if self.kind == "subtract" else min(self._steps, _SEARCH_STEPS)
        ends = problem.run(problem.from_labels(starts), forms, warm, max_iter=steps)
        best = [int(ends.objective[:n_held].argmax())]
        if self.kind == "subtract":
            return ends.pick(best[0])
        # Joint fits start from the best restart with held effects, and the best without effects.
        best.append(n_held + int(ends.objective[n_held:].argmax()))
        r = np.asarray(ends.state.r)[best]
        ends = problem.run(r, [self._form] * len(r), max_iter=self._steps)
        return ends.pick(int(ends.objective.argmax()))

    def _metrics(self, count: int) -> Sequence[float]:
        """Select ``count`` whitening exponents, evenly spaced in the list of all exponents."""
        exponents = list(self.exponents)
        count = min(count, len(exponents))
        place = (np.arange(count) + 0.5) * len(exponents) / count
        return [exponents[int(i)] for i in place]

    def _scatter(self, labels: np.ndarray, training: np.ndarray) -> np.ndarray:
        """Extend labels (S, n') of the training samples to all n samples: (S, n).

        All other samples get the label 0. ``training`` are the indices of the training samples.
        """
        out = np.zeros((len(labels), self.data.n_samples), int)
        out[:, training] = labels
        return out

    @cached_property
    def _layout(self):
        """The whole table in blocks, and the position of every sample in the blocks."""
        data = self.data
        return lay_out_table(data.x, data.columns, data.groups, data.n_groups)

    def _problem(
        self, part: TableData, training: np.ndarray, n_clusters: int, labels: np.ndarray | None,
        without: int | None,
    ) -> Problem:  # fmt: skip
        """Set up a fit to the training samples, with arrays of the size of the whole table.

        Parameters
        ----------
        part : table of the training samples
        training : indices of the training samples
        n_clusters : number of clusters
        labels : (n,) cluster of labelled samples, else -1; None without labels
        without : discrete column that the likelihood leaves out; None to use all columns
        """
        data = self.data
        problem = make_problem(
            part, n_clusters, covariance=self.covariance, ridge=self.ridge,
            location=False, tol=self.tol, max_iter=self.max_iter,
        )  # fmt: skip
        table, layout = self._layout
        mass = np.bincount(training, minlength=data.n_samples).astype(table.mass.dtype)
        numeric, values = table.numeric, table.values
        if numeric is not None and part.location is not None:
            # Fits without location effects have the design matrix too, since `Form.location` leaves
            # it out. All fits then share compiled programs with the fit to all samples.
            q = part.location(data.columns, data.groups)
            spare = len(data.location.varies) - q.shape[1] if data.location else 0
            q = np.pad(q, ((0, 0), (0, spare))).astype(table.mass.dtype)
            numeric = numeric._replace(q=layout.to_blocks(q))
        if values is not None:
            learnt = problem.table.values
            assert learnt is not None
            indicators = values.indicators
            if without is not None:
                indicators = np.where(values.column == without, 0, indicators)
            values = values._replace(
                indicators=indicators, marginal=learnt.marginal, score=learnt.score,
                curvature=learnt.curvature,
            )  # fmt: skip
        sizes = np.bincount(data.groups, mass, minlength=len(table.sizes))
        table = table._replace(
            numeric=numeric, values=values, mass=layout.to_blocks(mass),
            sizes=sizes.astype(mass.dtype),
            label=None if labels is None else layout.to_blocks(labels, -1),
        )  # fmt: skip
        return problem._replace(table=table, layout=layout)

    def _refit(self, end: Ends, part: TableData, training: np.ndarray) -> Refit:
        """Make a `Refit` from the final state ``end`` of a fit to the training samples.

        ``part`` is the table of the training samples, and ``training`` are their indices.
        """
        fitted = FittedTable.from_state(end.state, part, self.location)
        data = self.data
        if self.location and part.location is not None:
            fitted = replace(fitted, slopes=fitted.slopes[: len(part.location.scale)])
        if self.shares == BY_GROUP:
            # A predictive share is the posterior mean of the share. EM uses the exponential of the
            # mean logarithm, which is smaller.
            shares = end.state.shares
            count = np.asarray(shares.counts)[: data.n_groups] + np.asarray(shares.concentration)
            fitted = replace(fitted, log_share=np.log(count / count.sum(1, keepdims=True)))
        else:
            total = logsumexp(fitted.log_share, axis=1, keepdims=True)
            fitted = replace(fitted, log_share=fitted.log_share - total)
        inside = np.zeros(data.n_samples, bool)
        inside[training] = True
        # The effects of a group without training samples have their prior covariance T.
        unseen = np.bincount(data.groups[training], minlength=data.n_groups) == 0
        if data.x is not None and unseen.any():
            s = np.where(unseen[:, None, None], fitted.t, fitted.s)
            fitted = replace(fitted, s=s)
        return Refit(fitted, data, inside)

    def dependent_log_density(self, training: np.ndarray, single: Refit) -> np.ndarray:
        """Log density (n,) of the null model with one component and dependent discrete columns.

        `dependence` defines this model.

        Parameters
        ----------
        training : indices of the training samples
        single : refit with one cluster
        """
        data = self.data
        if self.location:
            # In this null model, the discrete columns depend on the numeric columns. A model in
            # which the numeric columns also depend on the discrete columns would count the
            # dependence twice.
            single = replace(self, location=False).fit(training, 1, 1, 0)
        tables = [single.value_log_probabilities(j) for j in range(len(data.columns))]
        log_p = conditional_log_probability(data.columns, tables, single.residuals, training)
        return single.log_density - single.discrete_log_density + log_p

    def column_log_density(self, training: np.ndarray, single: Refit, j: int) -> np.ndarray:
        """Predictive log density (n,) of a null model in which a column replaces the clusters.

        The value of discrete column j takes the place of the cluster of a sample: all other columns
        depend on it. Column j itself has one distribution per known group. If column j has more
        than six values, they are merged into classes.

        Parameters
        ----------
        training : indices of the training samples
        single : refit with one cluster, which has the distributions of column j
        j : index of a discrete column
        """
        data = self.data
        column = data.columns[j]
        classes = merge_values(column)
        label = np.where(column.codes < 0, -1, classes[column.codes])
        part = self.data.take(training)
        problem = self._problem(part, training, self._n_classes, label, j)
        classes_of = np.eye(self._n_classes)[classes]
        # Initial memberships: the class of the sample. If the value is missing, all classes are
        # equally likely.
        start = np.where(
            (label < 0)[:, None], classes_of.max(0) / classes_of.max(0).sum(),
            classes_of[column.codes],
        )  # fmt: skip
        start = problem.layout.to_blocks(start)[None]
        held, fixed = self.kind == "subtract", self.kind == "fixed"
        form = Form(held, fixed, False, FREE, self.location)
        with standard():
            end = problem.run(start, [form], max_iter=_COLUMN_STEPS, batch=1).pick(0)
        fitted = replace(self, shares=FREE)._refit(end, part, training).fitted
        others = [
            replace(c, codes=np.full_like(c.codes, -1)) if i == j else c
            for i, c in enumerate(data.columns)
        ]
        if fitted.location:
            # Location effects need the codes of column j. Its probabilities must not count here.
            tables = [t * 0 if i == j else t for i, t in enumerate(fitted.tables)]
            fitted, others = replace(fitted, tables=tables), data.columns
        log_p = fitted.log_joint(data.x, others, data.groups, spread=True)
        log_p = log_p - fitted.log_share[data.groups]
        log_value = single.value_log_probabilities(j)
        # Add the log probability of the value of column j. If the value is missing, sum over its
        # classes.
        by_class = np.stack(
            [logsumexp(log_value[:, classes == c], axis=1) for c in range(classes.max() + 1)], 1
        )
        log_missing = logsumexp(by_class + log_p[:, : by_class.shape[1]], axis=1)
        rows = np.arange(data.n_samples)
        log_observed = log_value[rows, column.codes] + log_p[rows, np.maximum(label, 0)]
        return np.where(label < 0, log_missing, log_observed)

    @cached_property
    def _n_classes(self) -> int:
        """Largest number of classes over all discrete columns, after `merge_values`."""
        return max(int(merge_values(column).max()) + 1 for column in self.data.columns)


def merge_values(column: DiscreteColumn) -> np.ndarray:
    """Merge the V values of a discrete column into at most 6 classes; return the classes (V,).

    Adjacent values of an ordered or count column are merged into classes of similar size. The
    rarest values of a categorical column are merged into one class.
    """
    n_values = column.n_values
    if n_values <= _MOST_CLASSES:
        return np.arange(n_values)
    share = column.marginal
    if column.scores is None:
        rank = np.argsort(np.argsort(-share, kind="stable"), kind="stable")
        return np.minimum(rank, _MOST_CLASSES - 1)
    order = np.argsort(column.scores, kind="stable")
    middle = np.cumsum(share[order]) - share[order] / 2
    classes = np.empty(n_values, int)
    classes[order] = np.minimum((middle * _MOST_CLASSES).astype(int), _MOST_CLASSES - 1)
    return np.unique(classes, return_inverse=True)[1]
