r"""Noise component of fixed share, which takes samples that are far from all clusters.

With the share :math:`\epsilon` of noise, sample i has the density

.. math:: (1 - \epsilon) \sum_c \pi_c\, p(x_i | c, z_i)
    + \epsilon\, N(x_{i,o}; \mu_{z_i}, 9 S_{oo}) \prod_j p_j(y_{ij} | z_i)

where :math:`\mu_z` is the mean of known group z, S the ridged covariance of the residuals, o the
observed numbers of the sample, and :math:`p_j(v | z)` the marginal of a discrete column in the
group. The density of noise is fixed before the clusters are fitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp, softmax

from nrprob.methods.conditional.coordinates import Coordinates
from nrprob.methods.conditional.fitted_table import FittedTable
from nrprob.methods.conditional.gaussian_block import Ridge
from nrprob.methods.conditional.joint_fit import SearchResult
from nrprob.methods.conditional.joint_search import Form, Problem
from nrprob.methods.conditional.optima import distinct_optima
from nrprob.methods.conditional.table_data import TableData
from nrprob.statistics.groups import cross_table
from nrprob.statistics.weighted import scale_rows, total_weight

_WIDTH = 9.0  # factor of the covariance of the residuals
_STEPS = 20  # EM steps with noise
_OPTIMA = 5  # optima from which they start
_SAME = 0.95  # adjusted Rand index of optima of which one is taken
_LEAST_GAIN, _GAIN_PER_SAMPLE = 10.0, 0.1  # nats from which on noise is present
_CERTAIN = 0.95  # initial membership of a sample in the cluster of its initial label


def least_gain(n_samples: float) -> float:
    """Gain in nats from which on a noise component is taken; n is a sum of weights."""
    return max(_LEAST_GAIN, _GAIN_PER_SAMPLE * n_samples)


class NoiseFit(NamedTuple):
    """Fit with a noise component.

    Attributes
    ----------
    gain : objective less the objective without noise, in nats
    probability : (n,) of being noise
    """

    gain: float
    probability: np.ndarray


class NoiseState(NamedTuple):
    """State of an EM with noise.

    Attributes
    ----------
    objective : maximised
    r : (n, K) probabilities of the clusters; a row sums to 1 less the probability of noise
    b, sigma, s0 : centres, covariance, and the variance that its ridge shrinks to
    """

    objective: float
    r: np.ndarray
    b: np.ndarray
    sigma: np.ndarray
    s0: float


@dataclass(frozen=True)
class ResidualNoise:
    """EM with a noise component for residuals of complete numbers, in plain NumPy.

    Few steps from few optima take less time than the compilation of a program. Errors are normal
    and weights of clusters equal.

    Attributes
    ----------
    y : (n, p) residuals in coordinates in which their ridged covariance is the identity
    coordinates : Coordinates
    covariance : "tied", "diag" or "spherical"
    n_clusters : int
    fixed : (n,) cluster of labelled samples, else -1; None without labels
    weights : (n,) weights of the samples; None if all are 1
    """

    y: np.ndarray
    coordinates: Coordinates
    covariance: str
    n_clusters: int
    fixed: np.ndarray | None = None
    weights: np.ndarray | None = None

    @property
    def total(self) -> float:
        """Sum of the weights of the samples."""
        return total_weight(len(self.y), self.weights)

    def take(self, indices: np.ndarray) -> ResidualNoise:
        """Return the EM of some samples."""
        fixed, weights = (a if a is None else a[indices] for a in (self.fixed, self.weights))
        return replace(self, y=self.y[indices], fixed=fixed, weights=weights)

    def memberships(self, labels: np.ndarray) -> np.ndarray:
        """Memberships (n, K) near labels (n,)."""
        k = self.n_clusters
        return _CERTAIN * (labels[:, None] == np.arange(k)) + (1 - _CERTAIN) / k

    def steps(self, labels: np.ndarray, share: float, n_steps: int) -> list[NoiseState]:
        """States after every EM step from labels (n,), with the share of noise."""
        r, s0, states = self.memberships(labels), self.coordinates.s0, []
        for _ in range(n_steps):
            b, sigma, s0 = self._m_step(r, s0)
            r, value = self.e_step(b, sigma, s0, share)
            states.append(NoiseState(value, r, b, sigma, s0))
        return states

    def _m_step(self, r: np.ndarray, s0: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Centres, covariance and the variance that its ridge shrinks to."""
        c, y = self.coordinates, self.y
        p = y.shape[1]
        r = scale_rows(r, self.weights)
        mass, target = c.dof / self.total, 1 / c.variances
        size = r.sum(0)
        sums = r.T @ y
        b = sums / np.maximum(size, 1e-10)[:, None]
        v = r.sum(1)
        # Rounding errors belong to the samples of clusters.
        square = (y.T * v) @ y - sums.T @ b + v.sum() * c.rounding
        total = mass * square + c.nu0 * s0 * np.diag(target)
        variances = np.diagonal(total)
        if self.covariance == "diag":
            total = np.diag(variances)
        if self.covariance == "spherical":
            total = np.diag((variances / target).mean() * target)
        sigma = total / (mass * v.sum() + c.nu0)
        sigma = sigma + 1e-9 * np.trace(sigma) / p * np.eye(p)
        return b, sigma, p / (np.diagonal(np.linalg.inv(sigma)) * target).sum()

    def e_step(
        self, b: np.ndarray, sigma: np.ndarray, s0: float, share: float
    ) -> tuple[np.ndarray, float]:
        """Probabilities (n, K) of the clusters, and the objective."""
        c, y = self.coordinates, self.y
        p = y.shape[1]
        root = np.linalg.cholesky(sigma)
        inverse = solve_triangular(root, np.eye(p), lower=True)
        white, centres = y @ inverse.T, b @ inverse.T
        square = (white**2).sum(1)[:, None] - 2 * white @ centres.T + (centres**2).sum(1)
        log_det = 2 * np.log(np.diagonal(root)).sum()
        precision = inverse.T @ inverse
        logits = -0.5 * (square + log_det + p * math.log(2 * math.pi))
        logits -= math.log(self.n_clusters) + 0.5 * (precision * c.rounding).sum()
        if self.fixed is not None:
            other = (self.fixed >= 0)[:, None] & (self.fixed[:, None] != np.arange(b.shape[0]))
            logits = np.where(other, -np.inf, logits)
        r, log_density = with_noise(logits, noise_log_density(y), share)
        trace = (np.diagonal(precision) / c.variances).sum()
        ridge = 0.5 * c.nu0 * (log_det + s0 * trace - p * math.log(s0))
        log_likelihood = scale_rows(log_density, self.weights).sum()
        return r, float(c.dof / self.total * log_likelihood - ridge)


def fit_residual_noise(
    model: ResidualNoise, labels: np.ndarray, objective: np.ndarray, share: float,
    sample: np.ndarray,
) -> NoiseFit:  # fmt: skip
    """Continue the best restarts with noise, on a sample; gains are for all samples.

    Parameters
    ----------
    model : all samples
    labels : (restarts, n)
    objective : (restarts,), minimised
    share : share of noise
    sample : indices of the samples that the steps use
    """
    some = model.take(sample)
    labels = labels[:, sample]
    starts = labels[distinct_optima(labels, objective, model.n_clusters, _SAME, _OPTIMA)]

    def continue_with(share):
        ends = [some.steps(start, share, _STEPS)[-1] for start in starts]
        return max(ends, key=lambda end: end.objective)

    noisy, clear = continue_with(share), continue_with(0.0)
    gain = (noisy.objective - clear.objective) * model.total / some.total
    r, _ = model.e_step(noisy.b, noisy.sigma, noisy.s0, share)
    return NoiseFit(gain, 1 - r.sum(1))


def noise_log_density(y: np.ndarray) -> np.ndarray:
    """Log density (n,) of noise at coordinates (n, p) with the identity for covariance."""
    p = y.shape[1]
    return -0.5 * ((y**2).sum(1) / _WIDTH + p * math.log(2 * math.pi * _WIDTH))


def with_noise(
    log_joint: np.ndarray, log_noise: np.ndarray, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (n, K) of the clusters besides noise, and log densities (n,) with noise."""
    if share == 0:
        return softmax(log_joint, axis=1), logsumexp(log_joint, axis=1)
    parts = np.column_stack([math.log1p(-share) + log_joint, math.log(share) + log_noise])
    return softmax(parts, axis=1)[:, :-1], logsumexp(parts, axis=1)


def noise_table(data: TableData, ridge: Ridge) -> FittedTable:
    """Noise of a mixed table, as a fit of one cluster.

    Its centre in a known group is the mean of the group, and its covariance is 9 S with the ridged
    covariance S of the residuals. Marginals of a group have one pseudo-sample of the whole table.
    """
    one_component, d = data.one_component, 0 if data.x is None else data.x.shape[1]
    n_groups = data.n_groups
    means, sigma = np.zeros((n_groups, d)), np.zeros((d, d))
    if one_component is not None:
        dof = data.total - len(np.unique(data.groups))
        nu0, target = float(ridge.nu0), np.asarray(ridge.target)[:d]
        s0 = (np.diagonal(one_component.covariance) / target).mean()
        shrunken = dof * one_component.covariance + nu0 * s0 * np.diag(target)
        shrunken += 1e-9 * np.trace(shrunken) / d * np.eye(d)
        means, sigma = one_component.means, _WIDTH * shrunken / (dof + nu0)
    tables = []
    for column in data.columns:
        seen = column.codes >= 0
        shape = n_groups, column.n_values
        mass = None if data.mass is None else data.mass[seen]
        count = cross_table(data.groups[seen], column.codes[seen], shape, mass) + column.marginal
        tables.append(np.log(count / count.sum(1, keepdims=True))[:, None])
    none = np.zeros((n_groups, d, d))
    return FittedTable(
        np.zeros((1, d)), np.zeros((0, d)), means, none, sigma, np.zeros((d, d)),
        np.zeros((n_groups, 1)), tables, data, False,
    )  # fmt: skip


def fit_table_noise(
    data: TableData, problem: Problem, search: SearchResult, form: Form, share: float
) -> NoiseFit:
    """Continue the best restarts of a mixed table with noise; see `fit_residual_noise`."""
    log_noise = noise_table(data, problem.ridge).log_joint(data.x, data.columns, data.groups)[:, 0]
    blocks = problem.layout.to_blocks(log_noise)
    problem = problem._replace(table=problem.table._replace(log_noise=blocks))
    optima = distinct_optima(search.labels, -search.objective, problem.n_clusters, _SAME, _OPTIMA)
    starts, forms = problem.from_labels(search.labels[optima]), [form] * len(optima)
    # As many steps without noise, since steps from labels do not converge by then.
    clear, noisy = (problem.run(starts, forms, max_iter=_STEPS, noise=e) for e in (0.0, share))
    best = int(noisy.objective.argmax())
    r = problem.layout.from_blocks(np.asarray(noisy.state.r[best]))
    return NoiseFit(float(noisy.objective[best] - clear.objective.max()), 1 - r.sum(1))
