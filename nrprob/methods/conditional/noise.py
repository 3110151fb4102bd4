r"""Noise component of fixed share, for outliers: samples that are far from all clusters.

With the share :math:`\epsilon` of noise, sample i has the density

.. math:: (1 - \epsilon) \sum_c \pi_c\, p(x_i, y_i | c, z_i)
    + \epsilon\, N(x_{i,o}; \mu_{z_i}, 9 S_{oo}) \prod_j p_j(y_{ij} | z_i)

where :math:`x_i` are the numeric values of sample i, and o are the columns with observed values.
:math:`y_i` are the discrete values, and :math:`z_i` is the known group. :math:`\mu_z` is the mean
of group z, and S the covariance of the residuals with the ridge. :math:`p_j(v | z)` is the marginal
of discrete column j in the group. The noise density is computed before the clusters are fitted, and
then stays fixed.

Sizes: n samples, p coordinates of the residuals, K clusters.
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

_WIDTH = 9.0  # factor of the residual covariance in the noise density
_STEPS = 20  # EM steps with noise
_OPTIMA = 5  # number of distinct optima from which the EM steps start
_SAME = 0.95  # adjusted Rand index from which on two optima count as equal
_LEAST_GAIN, _GAIN_PER_SAMPLE = 10.0, 0.1  # smallest gain of noise in nats: in all, and per sample
_CERTAIN = 0.95  # initial membership of a sample in the cluster of its initial label


def least_gain(n_samples: float) -> float:
    """Smallest gain in nats for which noise="auto" uses noise.

    ``n_samples`` is the number of samples, or the sum of their weights.
    """
    return max(_LEAST_GAIN, _GAIN_PER_SAMPLE * n_samples)


class NoiseFit(NamedTuple):
    """Result of a fit with a noise component.

    Attributes
    ----------
    gain : objective with noise less the objective without noise, in nats
    probability : (n,) probability that a sample is noise
    """

    gain: float
    probability: np.ndarray


class NoiseState(NamedTuple):
    """State of EM with a noise component, after an EM step.

    Attributes
    ----------
    objective : the maximised objective
    r : (n, K) probabilities of the clusters; every row adds up to 1 less the probability of noise
    b, sigma : (K, p) centres and (p, p) covariance
    s0 : variance towards which the ridge of the covariance shrinks
    """

    objective: float
    r: np.ndarray
    b: np.ndarray
    sigma: np.ndarray
    s0: float


@dataclass(frozen=True)
class ResidualNoise:
    """EM with a noise component, for the residuals of a complete numeric table.

    The EM runs in NumPy, because a few steps from a few optima take less time than compiling a JAX
    program. Errors are normal, and the clusters have equal weights.

    Attributes
    ----------
    y : (n, p) residuals in coordinates in which their covariance plus the ridge is the identity
    coordinates : the coordinates, with the weight of the ridge
    covariance : "tied", "diag" or "spherical"
    n_clusters : number of clusters, K
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
        """Return a copy that contains only the samples with these indices."""
        fixed, weights = (a if a is None else a[indices] for a in (self.fixed, self.weights))
        return replace(self, y=self.y[indices], fixed=fixed, weights=weights)

    def memberships(self, labels: np.ndarray) -> np.ndarray:
        """Initial memberships (n, K) from initial labels (n,).

        The membership is 0.95 + 0.05 / K in the cluster of the label, else 0.05 / K.
        """
        k = self.n_clusters
        return _CERTAIN * (labels[:, None] == np.arange(k)) + (1 - _CERTAIN) / k

    def steps(self, labels: np.ndarray, share: float, n_steps: int) -> list[NoiseState]:
        """Take EM steps; return the state after every step.

        Parameters
        ----------
        labels : (n,) initial labels
        share : share of noise
        n_steps : number of EM steps
        """
        r, s0, states = self.memberships(labels), self.coordinates.s0, []
        for _ in range(n_steps):
            b, sigma, s0 = self._m_step(r, s0)
            r, value = self.e_step(b, sigma, s0, share)
            states.append(NoiseState(value, r, b, sigma, s0))
        return states

    def _m_step(self, r: np.ndarray, s0: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Update centres, covariance, and ``s0``, the variance towards which the ridge shrinks.

        ``r`` (n, K) are the probabilities of the clusters. The argument ``s0`` is the previous
        value.
        """
        c, y = self.coordinates, self.y
        p = y.shape[1]
        r = scale_rows(r, self.weights)
        mass, target = c.dof / self.total, 1 / c.variances
        size = r.sum(0)
        sums = r.T @ y
        b = sums / np.maximum(size, 1e-10)[:, None]
        v = r.sum(1)
        # Rounding errors add to the scatter of samples in clusters, but not to noise.
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
        """Compute the probabilities (n, K) of the clusters, and the objective.

        Parameters
        ----------
        b, sigma : (K, p) centres and (p, p) covariance
        s0 : variance towards which the ridge shrinks
        share : share of noise
        """
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
    """Fit a noise component to residuals: EM steps with noise from the best distinct restarts.

    The EM steps run on a subsample, and the gain is scaled to all samples. The noise probabilities
    of all samples follow from the parameters of the largest objective.

    Parameters
    ----------
    model : EM for all samples
    labels : (restarts, n) labels of the restarts
    objective : (restarts,) minimised objectives
    share : share of noise
    sample : indices of the subsample
    """
    subsample = model.take(sample)
    labels = labels[:, sample]
    starts = labels[distinct_optima(labels, objective, model.n_clusters, _SAME, _OPTIMA)]

    def continue_with(share):
        ends = [subsample.steps(start, share, _STEPS)[-1] for start in starts]
        return max(ends, key=lambda end: end.objective)

    with_noise_end, without_noise_end = continue_with(share), continue_with(0.0)
    gain = (with_noise_end.objective - without_noise_end.objective) * model.total / subsample.total
    r, _ = model.e_step(with_noise_end.b, with_noise_end.sigma, with_noise_end.s0, share)
    return NoiseFit(gain, 1 - r.sum(1))


def noise_log_density(y: np.ndarray) -> np.ndarray:
    """Log noise density (n,) of residuals y (n, p): normal with mean 0 and covariance 9 I.

    In the coordinates y, the covariance of the residuals plus the ridge is the identity I.
    """
    p = y.shape[1]
    return -0.5 * ((y**2).sum(1) / _WIDTH + p * math.log(2 * math.pi * _WIDTH))


def with_noise(
    log_joint: np.ndarray, log_noise: np.ndarray, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Add a noise component to a mixture density of n samples.

    Parameters
    ----------
    log_joint : (n, K) log share plus log density of every cluster, without noise
    log_noise : (n,) log density of noise
    share : share of noise; with 0, ``log_noise`` is not used

    Returns
    -------
    probability : (n, K) probabilities of the clusters; every row adds up to 1 less the probability
        of noise
    log_density : (n,) log density of the mixture with noise
    """
    if share == 0:
        return softmax(log_joint, axis=1), logsumexp(log_joint, axis=1)
    parts = np.column_stack([math.log1p(-share) + log_joint, math.log(share) + log_noise])
    return softmax(parts, axis=1)[:, :-1], logsumexp(parts, axis=1)


def noise_table(data: TableData, ridge: Ridge) -> FittedTable:
    """Noise density of a mixed or incomplete table, as a `FittedTable` with one cluster.

    In every known group, the noise has the mean of the group and the covariance 9 S. S is the
    covariance of the residuals with ``ridge``. The noise probabilities of a discrete column are the
    shares of the values in the group, with one pseudo-sample from the overall shares.
    """
    one_component, d = data.one_component, 0 if data.x is None else data.x.shape[1]
    n_groups = data.n_groups
    means, sigma = np.zeros((n_groups, d)), np.zeros((d, d))
    if one_component is not None:
        dof = data.total - len(np.unique(data.groups))
        nu0, target = float(ridge.nu0), np.asarray(ridge.target)[:d]
        s0 = (np.diagonal(one_component.covariance) / target).mean()
        ridged = dof * one_component.covariance + nu0 * s0 * np.diag(target)
        ridged += 1e-9 * np.trace(ridged) / d * np.eye(d)
        means, sigma = one_component.means, _WIDTH * ridged / (dof + nu0)
    tables = []
    for column in data.columns:
        seen = column.codes >= 0
        shape = n_groups, column.n_values
        mass = None if data.mass is None else data.mass[seen]
        count = cross_table(data.groups[seen], column.codes[seen], shape, mass) + column.marginal
        tables.append(np.log(count / count.sum(1, keepdims=True))[:, None])
    no_covariance = np.zeros((n_groups, d, d))
    return FittedTable(
        np.zeros((1, d)), np.zeros((0, d)), means, no_covariance, sigma, np.zeros((d, d)),
        np.zeros((n_groups, 1)), tables, data, False,
    )  # fmt: skip


def fit_table_noise(
    data: TableData, problem: Problem, search: SearchResult, form: Form, share: float
) -> NoiseFit:
    """Fit a noise component to a mixed or incomplete table: EM steps from the best restarts.

    Parameters
    ----------
    data : the table
    problem : layout and settings of the restarts
    search : restarts without noise, of which the best with distinct clusters continue
    form : form of the model
    share : share of noise
    """
    log_noise = noise_table(data, problem.ridge).log_joint(data.x, data.columns, data.groups)[:, 0]
    blocks = problem.layout.to_blocks(log_noise)
    problem = problem._replace(table=problem.table._replace(log_noise=blocks))
    optima = distinct_optima(search.labels, -search.objective, problem.n_clusters, _SAME, _OPTIMA)
    starts, forms = problem.from_labels(search.labels[optima]), [form] * len(optima)
    # The reference without noise takes the same number of steps from the same labels, because
    # neither of the two converges in so few steps.
    without_noise_ends, with_noise_ends = (
        problem.run(starts, forms, max_iter=_STEPS, noise=e) for e in (0.0, share)
    )
    best = int(with_noise_ends.objective.argmax())
    r = problem.layout.from_blocks(np.asarray(with_noise_ends.state.r[best]))
    return NoiseFit(
        float(with_noise_ends.objective[best] - without_noise_ends.objective.max()), 1 - r.sum(1)
    )
