"""One-component null models: one elliptical density per known group.

Null models are Gaussian or t, with one scale matrix for all groups or one per group. They are
fitted in coordinates in which the covariance of the clusters' model is the identity, so that no
null model is worse than the clusters only because of shrinkage. Estimated matrices are shrunk there
by the rule of Ledoit and Wolf (2004): the pooled matrix towards a sphere, the matrix of one group
towards the pooled one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import gammaln
from sklearn.covariance import ledoit_wolf_shrinkage

from nrprob.statistics.groups import group_sums

_STEPS = 40  # of EM for t clouds
_STILL = 1e-4  # relative change of the rows' weights at which it ends
_LEAST = 1e-6  # variance of a cloud, where that of all rows is about 1
_DEGREES = (2.1, 200.0)  # of freedom, from the heaviest tails to hardly any


@dataclass(frozen=True)
class Clouds:
    """Clouds of groups.

    Attributes
    ----------
    centre : (L, p)
    root : (L, p, p) inverse roots of the scale matrices: ``(y - centre) @ root`` is round
    nu : degrees of freedom; infinite for normal clouds
    """

    centre: np.ndarray
    root: np.ndarray
    nu: float = np.inf

    @classmethod
    def round(cls, n_groups: int, p: int) -> Clouds:
        """Standard normal clouds."""
        return cls(np.zeros((n_groups, p)), np.repeat(np.eye(p)[None], n_groups, 0))

    @classmethod
    def fit(cls, y: np.ndarray, codes: np.ndarray, n_groups: int, own: bool, tails: bool) -> Clouds:
        """Fit clouds to rows.

        Parameters
        ----------
        y : (n, p) rows, about the mean of their group
        codes : (n,) group of every row, of which each has some
        n_groups : L
        own : whether every group has a scale matrix of its own
        tails : whether clouds are t, of the degrees of freedom that are most likely, else normal
        """
        n, p = y.shape
        centre = np.zeros((n_groups, p))
        clouds = cls(centre, _roots(y, codes, n_groups, own))
        weight = np.zeros(n)
        for _ in range(_STEPS if tails else 0):
            q = clouds.squares(y, codes)
            nu = _degrees(q, p)
            last, weight = weight, (nu + p) / (nu + q)
            if np.abs(weight - last).max() < _STILL * weight.max():
                break
            sums = group_sums(weight[:, None] * y, codes, n_groups)
            centre = sums / np.bincount(codes, weight, n_groups)[:, None]
            around = np.sqrt(weight)[:, None] * (y - centre[codes])
            clouds = cls(centre, _roots(around, codes, n_groups, own), nu)
        return clouds

    def squares(self, y: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Squared distances (n,) from the centres, in the metrics of the clouds."""
        out = np.empty(len(y))
        for g, (centre, root) in enumerate(zip(self.centre, self.root, strict=True)):
            out[codes == g] = (((y[codes == g] - centre) @ root) ** 2).sum(1)
        return out

    def log_density(self, y: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Log density (n,) of rows (n, p) of the groups ``codes`` (n,)."""
        log_det = np.linalg.slogdet(self.root)[1]
        return _log_round(self.squares(y, codes), self.nu, y.shape[1]) + log_det[codes]


def _degrees(q: np.ndarray, p: int) -> float:
    """Degrees of freedom that are most likely at squared distances (n,)."""
    bounds = tuple(np.log(_DEGREES))
    result = minimize_scalar(
        lambda log_nu: -_log_round(q, np.exp(log_nu), p).sum(), bounds=bounds, method="bounded"
    )
    return float(np.exp(result.x))


def _log_round(q: np.ndarray, nu: float, p: int) -> np.ndarray:
    """Log density of a round t cloud, or a normal one, at squared distances (n,)."""
    if np.isinf(nu):
        return -0.5 * (q + p * np.log(2 * np.pi))
    normaliser = gammaln((nu + p) / 2) - gammaln(nu / 2) - p / 2 * np.log(nu * np.pi)
    return normaliser - (nu + p) / 2 * np.log1p(q / nu)


def _roots(r: np.ndarray, codes: np.ndarray, n_groups: int, own: bool) -> np.ndarray:
    """Inverse roots (L, p, p) of the groups' second moments."""
    whole = shrunk_root(r)
    if not own:
        return np.repeat(whole[None], n_groups, 0)
    white = r @ whole
    return np.stack([whole @ shrunk_root(white[codes == g]) for g in range(n_groups)])


def shrunk_root(r: np.ndarray) -> np.ndarray:
    """Inverse root (p, p) of the second moments of rows, shrunk towards a sphere."""
    p = r.shape[1]
    moments = r.T @ r / len(r)
    part = ledoit_wolf_shrinkage(r, assume_centered=True) if p > 1 else 0.0
    return inverse_root((1 - part) * moments + part * np.trace(moments) / p * np.eye(p), _LEAST)


def inverse_root(covariance: np.ndarray, least: float = 1e-300) -> np.ndarray:
    """Matrix (p, p) by which rows of this covariance, of variances ``least`` or more, are round."""
    values, turn = np.linalg.eigh(covariance)
    return turn / np.sqrt(np.maximum(values, max(1e-12 * values[-1], least)))
