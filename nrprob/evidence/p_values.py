"""p-values of held-out log-likelihood gains."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

# Nats per sample: smaller differences are within the convergence tolerance of fits.
_RESOLUTION = 0.01


def mixed_gain(d: np.ndarray) -> np.ndarray:
    r"""Log-likelihood gain of the equal mixture of two densities over the second density.

    .. math:: \ln \frac{1 + e^d}{2}, \qquad d = \ln p(x) - \ln q(x)

    The gain is at least -ln 2, however wrong p is, and approaches d - ln 2 where p is far better.
    """
    return np.logaddexp(0, d) - math.log(2)


def one_sided_t_test(gain: np.ndarray) -> tuple[float, float]:
    """Student's t statistic of the mean gain (n,), and the p-value of a mean of at most 0."""
    n = len(gain)
    spread = math.hypot(float(gain.std(ddof=1)), _RESOLUTION)
    t = float(gain.mean()) * math.sqrt(n) / spread
    return t, one_sided_p_value(t, n)


def one_sided_p_value(t: float, n: int) -> float:
    """p-value of Student's t statistic of n samples."""
    return float(stats.t.sf(t, n - 1))
