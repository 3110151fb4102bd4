"""One-component null models: elliptical densities by known group, and one skewed density.

An elliptical null model has Gaussian or t distributions, with one common scale matrix or one per
known group. Scale matrices are shrunk by the rule of Ledoit and Wolf (2004): the common matrix
towards a multiple of the identity, and the matrix of one group towards the common matrix. A null
model is fitted in coordinates in which the mixture of the clusters has the identity as its
covariance. Null model and clusters then have the same regularisation, so that shrinkage alone does
not make the null model worse.

In these coordinates, the variance of training samples is below 1 where the covariance of the
clusters has a ridge. If columns depend linearly on each other, the variance is almost 0 in some
direction, and a distribution with this variance would predict better than any clusters. In such
narrow directions, the samples of every null model are therefore standard Gaussian and independent
of all other directions, as in one cluster with the ridge.

Shapes: n samples, p coordinates, q coordinates that are not narrow, L known groups.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.special import gammaln
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import PowerTransformer

from nrprob.statistics.groups import group_sums

_MAX_ITER = 40  # EM iterations for t distributions
_TOL = 1e-4  # EM stops below this change of the sample weights, relative to the largest weight
_MIN_VARIANCE = 1e-6  # smallest variance of a null model; all samples have a variance of about 1
_NARROW = 0.1  # narrow directions have a smaller variance of the training samples
_ICA_TOL = 1e-3  # FastICA stops if no component turns by more than this, as 1 - |cosine|
_DEGREES_OF_FREEDOM = (2.1, 200.0)  # bounds of the estimated degrees of freedom


class Directions(NamedTuple):
    """Orthonormal directions of whitened samples.

    Attributes
    ----------
    wide : (p, q) directions in which the samples vary
    narrow : (p, p - q) directions in which the variance of the samples is below 0.1
    """

    wide: np.ndarray
    narrow: np.ndarray

    @classmethod
    def from_samples(cls, y: np.ndarray) -> Directions:
        """Split the directions of samples (n, p). At least one direction is wide."""
        p = y.shape[1]
        variances, directions = np.linalg.eigh(y.T @ y / len(y))
        n_narrow = min(int((variances < _NARROW).sum()), p - 1)
        if n_narrow == 0:
            return cls(np.eye(p), np.empty((p, 0)))
        return cls(directions[:, n_narrow:], directions[:, :n_narrow])

    def narrow_log_density(self, y: np.ndarray) -> np.ndarray:
        """Log density (n,) of the narrow coordinates of samples (n, p)."""
        return standard_log_density(y @ self.narrow)


@dataclass(frozen=True)
class NullModel:
    """One Gaussian or t distribution per known group.

    Attributes
    ----------
    directions : wide directions, which have the distribution of the group, and narrow ones
    centre : (L, q) location of each of the L known groups
    root : (L, q, q) inverse roots of the scale matrices: ``(y @ wide - centre) @ root`` has the
        identity as its scale matrix
    nu : degrees of freedom; infinite for Gaussians
    """

    directions: Directions
    centre: np.ndarray
    root: np.ndarray
    nu: float = np.inf

    @classmethod
    def from_samples(
        cls, y: np.ndarray, codes: np.ndarray, n_groups: int, per_group: bool, heavy_tails: bool
    ) -> NullModel:
        """Fit Gaussians by shrunk moments, or t distributions by EM.

        Parameters
        ----------
        y : (n, p) samples, with the means of their groups subtracted
        codes : (n,) group of every sample; no group is empty
        n_groups : number L of groups
        per_group : whether every group has its own scale matrix
        heavy_tails : whether to fit a t distribution with estimated degrees of freedom
        """
        directions = Directions.from_samples(y)
        y = y @ directions.wide
        n, q = y.shape
        centre = np.zeros((n_groups, q))
        model = cls(directions, centre, _inverse_roots(y, codes, n_groups, per_group))
        weight = np.zeros(n)
        for _ in range(_MAX_ITER if heavy_tails else 0):
            # E-step: expected precision weight of every sample, after the maximum likelihood
            # update of the degrees of freedom.
            square = model._squared_distances(y, codes)
            nu = _fit_degrees_of_freedom(square, q)
            previous, weight = weight, (nu + q) / (nu + square)
            if np.abs(weight - previous).max() < _TOL * weight.max():
                break
            # M-step: weighted locations and scale matrices.
            sums = group_sums(weight[:, None] * y, codes, n_groups)
            centre = sums / np.bincount(codes, weight, n_groups)[:, None]
            deviation = np.sqrt(weight)[:, None] * (y - centre[codes])
            root = _inverse_roots(deviation, codes, n_groups, per_group)
            model = cls(directions, centre, root, nu)
        return model

    def _squared_distances(self, wide: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Squared Mahalanobis distances (n,) of wide coordinates (n, q) from the group centres."""
        out = np.empty(len(wide))
        for g, (centre, root) in enumerate(zip(self.centre, self.root, strict=True)):
            out[codes == g] = (((wide[codes == g] - centre) @ root) ** 2).sum(1)
        return out

    def log_density(self, y: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Log density (n,) of samples ``y`` (n, p), given their groups ``codes`` (n,)."""
        log_det = np.linalg.slogdet(self.root)[1]
        square = self._squared_distances(y @ self.directions.wide, codes)
        log_p = _log_spherical_density(square, self.nu, self.root.shape[-1]) + log_det[codes]
        return log_p + self.directions.narrow_log_density(y)


def standard_log_density(y: np.ndarray) -> np.ndarray:
    """Log density (n,) of samples (n, p) under a standard Gaussian."""
    return _log_spherical_density((y**2).sum(1), np.inf, y.shape[1])


def observed_t_log_density(
    square: np.ndarray, n_observed: np.ndarray, training: np.ndarray
) -> np.ndarray:
    """Log density (n,) of whitened samples with missing values under a spherical t distribution.

    The marginal of a t distribution over some columns is a t distribution with the same degrees of
    freedom. The degrees of freedom and a common scale factor are fitted by maximum likelihood.

    Parameters
    ----------
    square : (n,) sum of squares of the observed whitened values of every sample
    n_observed : (n,) number of observed values of every sample
    training : (n_training,) indices of the samples of the fit
    """

    def log_density(parameters, rows):
        log_nu, log_scale = parameters
        q = square[rows] * np.exp(-2 * log_scale)
        p = n_observed[rows]
        return _log_spherical_density(q, np.exp(log_nu), p) - p * log_scale

    low, high = np.log(_DEGREES_OF_FREEDOM)
    result = minimize(
        lambda parameters: -log_density(parameters, training).mean(),
        x0=(np.log(10.0), 0.0), bounds=[(low, high), (-3, 3)], method="L-BFGS-B",
    )  # fmt: skip
    return log_density(result.x, slice(None))


def skewed_log_density(white: np.ndarray, training: np.ndarray) -> np.ndarray:
    """Log density (n,) of one skewed distribution: a linear map of independent components.

    FastICA (Hyvarinen, 1999) estimates the components. A power transformation of every component
    (Yeo and Johnson, 2000) gives a standard Gaussian.

    Parameters
    ----------
    white : (n, d) whitened samples without missing values
    training : (n_training,) indices of the samples of the fit
    """
    directions = Directions.from_samples(white[training])
    log_p_narrow = directions.narrow_log_density(white)
    white = white @ directions.wide
    centred = white - white[training].mean(0)
    moments = centred[training].T @ centred[training] / len(training)
    root = inverse_root(moments, _MIN_VARIANCE)
    analysis = FastICA(whiten=False, random_state=0, tol=_ICA_TOL)
    power = PowerTransformer(standardize=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        transformed = power.fit_transform(analysis.fit_transform(centred[training] @ root))
    components = analysis.transform(centred @ root)
    mean, scale = transformed.mean(0), transformed.std(0)
    z = (power.transform(components) - mean) / scale
    log_slope = (power.lambdas_ - 1) * np.sign(components) * np.log1p(np.abs(components))
    log_p = -0.5 * (z**2 + np.log(2 * np.pi)) + log_slope - np.log(scale)
    # FastICA of whitened samples is a rotation, so its determinant is 1.
    return log_p_narrow + log_p.sum(1) + np.linalg.slogdet(root)[1]


def _fit_degrees_of_freedom(q: np.ndarray, p: int) -> float:
    """Maximum likelihood degrees of freedom of a t distribution in p dimensions.

    ``q`` (n,) are squared Mahalanobis distances of the samples from their centres.
    """
    result = minimize_scalar(
        lambda log_nu: -_log_spherical_density(q, np.exp(log_nu), p).sum(),
        bounds=tuple(np.log(_DEGREES_OF_FREEDOM)),
        method="bounded",
    )
    return float(np.exp(result.x))


def _log_spherical_density(q: np.ndarray, nu: float, p: int | np.ndarray) -> np.ndarray:
    """Log density (n,) of a spherical t or Gaussian distribution.

    ``q`` (n,) are squared distances of the samples from the centre, ``nu`` are the degrees of
    freedom (infinite for a Gaussian), and ``p`` is the dimension, which may differ between samples.
    """
    if np.isinf(nu):
        return -0.5 * (q + p * np.log(2 * np.pi))
    normaliser = gammaln((nu + p) / 2) - gammaln(nu / 2) - p / 2 * np.log(nu * np.pi)
    return normaliser - (nu + p) / 2 * np.log1p(q / nu)


def _inverse_roots(r: np.ndarray, codes: np.ndarray, n_groups: int, per_group: bool) -> np.ndarray:
    """Inverse roots (L, p, p) of the shrunk second moments of residuals ``r`` (n, p), by group.

    ``codes`` (n,) are the known groups of the samples. All groups have the same matrix unless
    ``per_group``.
    """
    pooled = shrunk_inverse_root(r)
    if not per_group:
        return np.repeat(pooled[None], n_groups, 0)
    # Whiten by the common matrix, then shrink the matrix of each group towards the identity.
    white = r @ pooled
    return np.stack([pooled @ shrunk_inverse_root(white[codes == g]) for g in range(n_groups)])


def shrunk_inverse_root(r: np.ndarray) -> np.ndarray:
    """Inverse root (p, p) of the second moments of residuals ``r`` (n, p).

    The moments are shrunk towards a multiple of the identity by the rule of Ledoit and Wolf.
    """
    p = r.shape[1]
    moments = r.T @ r / len(r)
    shrinkage = ledoit_wolf_shrinkage(r, assume_centered=True) if p > 1 else 0.0
    shrunk = (1 - shrinkage) * moments + shrinkage * np.trace(moments) / p * np.eye(p)
    return inverse_root(shrunk, _MIN_VARIANCE)


def inverse_root(covariance: np.ndarray, min_variance: float = 1e-300) -> np.ndarray:
    """Matrix (p, p) that whitens samples with this covariance.

    Eigenvalues are bounded below by ``min_variance`` and by 1e-12 times the largest eigenvalue.
    """
    values, vectors = np.linalg.eigh(covariance)
    return vectors / np.sqrt(np.maximum(values, max(1e-12 * values[-1], min_variance)))
