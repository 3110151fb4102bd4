"""Compare Gaussian clusters of features with Gaussian clusters of their logarithms.

Sizes: n samples, m features, k components, s starts, q order statistics.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_LOG_2PI = float(np.log(2 * np.pi))
_LEAST_SKEWNESS = 0.5  # features with a smaller skewness are not compared
_LEAST_VALUES = 10  # features of at most so many distinct values are not compared
_ORDER_STATISTICS = 256
_N_ITER = 30
_VARIANCE_FLOOR = 1e-3  # minimum variance of a component, relative to the variance of the feature
# For a feature with negative values: smallest values of x + offset, relative to the spread of x.
_SHIFTS = (0.1, 0.5, 1.0)


class LogarithmGains(NamedTuple):
    """Comparison of m features with their logarithms.

    Attributes
    ----------
    gain : (m,) log-likelihood gain of a mixture of log(x + offset) over a mixture of x, in nats per
        sample, for a feature x; 0 for features that are not compared
    offset : (m,) number that is added to the feature before the logarithm
    """

    gain: np.ndarray
    offset: np.ndarray


def compare_logarithms(
    X: np.ndarray,
    groups: np.ndarray | None = None,
    n_components: int = 3,
    max_features: int | None = None,
) -> LogarithmGains:
    r"""Compare mixtures of features with mixtures of their logarithms.

    Every feature is compared alone. A mixture has up to ``n_components`` Gaussian components with a
    common variance, and additive effects of the known groups. For n values x, and t = log(x + a),
    the gain in nats per sample is

    .. math:: \frac{L(t) - L(x)}{n} - \frac{1}{n} \sum_i t_i

    L is the largest log likelihood of a mixture, minus log n for every component after the first.
    Half of this penalty is for the mean of the component, and half for its weight. The last term is
    the log Jacobian determinant of the logarithm. The offset a is 0 for positive features. If the
    smallest value is 0, a is the median of the positive values. With negative values, such as after
    standardisation, a is the best of three numbers for which the smallest value of x + a is
    positive.

    Only features with a skewness above 0.5 within known groups are compared.

    Parameters
    ----------
    X : (n, m) features, NaN where missing
    groups : (n,) codes of the known groups; None without known groups
    n_components : maximum number of components
    max_features : maximum number of compared features, the most skewed ones; None for all
    """
    gain, offset = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    groups = np.zeros(len(X), np.intp) if groups is None else groups
    skewness = np.array([_skewness_within(x, groups) for x in X.T])
    for j in np.argsort(-skewness)[:max_features]:
        if skewness[j] <= _LEAST_SKEWNESS:
            break
        present = ~np.isnan(X[:, j])
        x, codes = X[present, j].astype(np.float64), groups[present]
        candidates = _offsets(x)
        transformed = np.stack([x, *(np.log(x + a) for a in candidates)])
        values = _mixture_log_likelihood(_within_groups(transformed.T, codes), n_components)
        gains = values[1:] - transformed[1:].mean(1) - values[0]
        best = int(gains.argmax())
        gain[j], offset[j] = gains[best], candidates[best]
    return LogarithmGains(gain, offset)


def offset_of_logarithm(x: np.ndarray) -> float:
    """Offset a of log(x + a) for values (n,) of at least 0, NaN where missing."""
    return _offsets(x[~np.isnan(x)])[0]


def _within_groups(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Subtract the means of the known groups from values (n, m)."""
    codes = np.unique(groups, return_inverse=True)[1].ravel()
    sums = np.stack([np.bincount(codes, column) for column in values.T], axis=1)
    return values - (sums / np.bincount(codes)[:, None])[codes]


def _skewness_within(x: np.ndarray, groups: np.ndarray) -> float:
    """Skewness of a feature (n,) after subtraction of the means of known groups.

    The skewness counts as 0 if the feature is constant or has at most ten distinct values.
    """
    present = ~np.isnan(x)
    if np.unique(x[present]).size <= _LEAST_VALUES:
        return 0.0
    residual = _within_groups(x[present, None].astype(np.float64), groups[present])[:, 0]
    deviation = residual.std()
    return float(np.mean((residual / deviation) ** 3)) if deviation > 0 else 0.0


def _offsets(x: np.ndarray) -> tuple[float, ...]:
    """Candidate offsets a of the logarithm log(x + a) of a feature ``x`` (n,)."""
    low = float(x.min())
    if low > 0:
        return (0.0,)
    spread = float(np.median(x[x > low])) - low
    if low == 0:
        return (spread,)
    return tuple(share * spread - low for share in _SHIFTS)


def _mixture_log_likelihood(values: np.ndarray, n_components: int) -> np.ndarray:
    """Penalised log likelihood per sample (m,) of the best mixture for each of m features.

    ``values`` (n, m) are features from which the means of known groups are subtracted. The mixture
    of a feature has 1 to ``n_components`` Gaussian components with a common variance. Mixtures are
    fitted to order statistics of the values, so that the time hardly depends on n.
    """
    n = len(values)
    q = min(n, _ORDER_STATISTICS)
    x = np.quantile(values, (np.arange(q) + 0.5) / q, axis=0, method="hazen")
    deviation = np.maximum(x.std(0), np.finfo(float).tiny)
    x = (x - x.mean(0)) / deviation
    best = np.full(x.shape[1], -(_LOG_2PI + 1) / 2)
    partitions = [_best_segments(column, n_components) for column in x.T]
    for k in range(2, n_components + 1):
        # EM starts from the best partition into k segments, and from k quantiles.
        quantiles = np.quantile(x, (np.arange(k) + 0.5) / k, axis=0)
        starts = np.stack([np.stack([means[k - 1] for means in partitions], axis=1), quantiles])
        best = np.maximum(best, _em_log_likelihood(x, starts) - (k - 1) * np.log(n) / n)
    return best - np.log(deviation)


def _best_segments(x: np.ndarray, n_segments: int) -> list[np.ndarray]:
    """Segment means of the best partitions of sorted values ``x`` (q,) into segments.

    Element k - 1 of the result has the means (k,) of the partition into k segments with the
    smallest sum of squares, for k from 1 to ``n_segments``. Dynamic programming finds these
    solutions of k-means in one dimension.
    """
    q = len(x)
    first, last = np.triu_indices(q)
    sums, squares = (np.concatenate([[0.0], np.cumsum(power)]) for power in (x, x**2))
    size, total = last + 1 - first, sums[last + 1] - sums[first]
    # cost[i, j] is the sum of squares of the segment of values i to j; least[j] is the sum of
    # squares of the best partition of the values 0 to j into k segments.
    cost = np.full((q, q), np.inf)
    cost[first, last] = squares[last + 1] - squares[first] - total**2 / size
    least, ends, result = cost[0], [], []
    for k in range(1, n_segments + 1):
        if k > 1:
            sum_of_squares = least[:-1, None] + cost[1:]
            ends.append(sum_of_squares.argmin(0) + 1)
            least = sum_of_squares.min(0)
        # Trace the starts of the segments backwards.
        starts, j = [], q - 1
        for end in reversed(ends):
            starts.append(int(end[j]))
            j = max(starts[-1] - 1, 0)
        edges = np.array([0, *reversed(starts), q])
        result.append(np.diff(sums[edges]) / np.maximum(np.diff(edges), 1))
    return result


def _em_log_likelihood(x: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Largest mean log likelihood (m,) of Gaussian mixtures of m features, over s runs of EM.

    ``x`` (q, m) are order statistics of the features, with variance 1. The components of a mixture
    have a common variance. ``means`` (s, k, m) are the initial means of k components.
    """
    k = means.shape[1]
    weights, variance = np.full(means.shape, 1 / k), np.full((len(means), 1, x.shape[1]), 1 / k**2)
    for _ in range(_N_ITER):
        # E-step.
        square = np.square(x - means[:, :, None])
        log_density = np.log(weights / np.sqrt(variance))[:, :, None]
        log_density = log_density - square / (2 * variance[:, :, None])
        highest = log_density.max(1, keepdims=True)
        density = np.exp(log_density - highest)
        total = density.sum(1, keepdims=True)
        memberships = density / total
        log_likelihood = (highest + np.log(total)).mean((1, 2)) - _LOG_2PI / 2
        # M-step.
        mass = memberships.mean(2) + np.finfo(float).tiny
        means = (memberships * x).mean(2) / mass
        square = np.square(x - means[:, :, None])
        variance = np.maximum((memberships * square).sum(1).mean(1), _VARIANCE_FLOOR)[:, None]
        weights = mass
    return log_likelihood.max(0)
