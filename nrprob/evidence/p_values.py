"""p-values of held-out log-likelihood gains of n samples."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

# Standard deviation, in nats per sample, that is added in quadrature to the deviation of the gains.
# Fits converge only within a tolerance, so smaller differences must not be significant.
_RESOLUTION = 0.01
# Largest gain of a sample that counts, in nats. A null model that almost excludes a few samples
# would otherwise make the deviation of the gains, and with it the p-value, large.
_LARGEST_GAIN = 10.0


def mixed_gain(d: np.ndarray) -> np.ndarray:
    r"""Log-likelihood gain (n,) of the mixture (p + q) / 2 over the density q.

    .. math:: \ln \frac{p(x) + q(x)}{2 q(x)} = \ln \frac{1 + e^d}{2},
        \qquad d = \ln p(x) - \ln q(x)

    The argument ``d`` (n,) has the log ratios of n samples x. The gain is at least -ln 2, however
    small p(x) is. Where p(x) is far larger than q(x), the gain approaches d - ln 2.
    """
    return np.logaddexp(0, d) - math.log(2)


def one_sided_t_test(gain: np.ndarray) -> tuple[float, float]:
    """Test the null hypothesis that the mean gain is at most 0, by a one-sided t-test.

    ``gain`` (n,) are the gains of n samples. Gains above 10 nats count as 10 nats, which can only
    lower the mean, so that the test keeps its level. Returns Student's t statistic and the p-value.
    """
    n, gain = len(gain), np.minimum(gain, _LARGEST_GAIN)
    spread = math.hypot(float(gain.std(ddof=1)), _RESOLUTION)
    t = float(gain.mean()) * math.sqrt(n) / spread
    return t, one_sided_p_value(t, n)


def one_sided_p_value(t: float, n: int) -> float:
    """One-sided p-value of Student's t statistic of n samples."""
    return float(stats.t.sf(t, n - 1))
