"""Average fits, and compare the averages with published values.

A statistic (mean, min, max, range or sd) is computed over the fits of each data set, and then
averaged over data sets. The fits of a data set differ in their seeds; if they also differ in
parameters, the statistic is averaged over the parameter settings first. The standard error is the
standard deviation of the statistic over data sets, divided by the square root of the number of data
sets. With a single data set, only the mean has a standard error, over the fits. For two methods,
"p" is the p-value of a paired t-test over data sets, or over the fits of a single data set. Fits
with infeasible constraints are excluded from every statistic except "infeasible".

In all functions, ``fits`` are rows of ``Results.frame`` (`nrprob.batch.report.results.Results`),
one row per fit, and ``measure`` is the name of a measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

__all__ = [
    "PREFIX", "SETS", "SPREADS", "Mark", "Value", "compute_statistic", "count_decimals", "judge",
    "paired_test", "split_ratio", "summarize",
]  # fmt: skip

Mark = Literal["worse", "within", "reached"]
_STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": np.mean,
    "min": np.min,
    "max": np.max,
    "range": np.ptp,
    "sd": lambda values: np.std(values, ddof=1),
}
SPREADS = ("range", "sd")  # statistics that need two fits, and of which no value is better
SETS = ["case", "repeat"]  # columns that identify a data set
# Prefix of the columns of measures in a frame, so that a measure may have the name of any column.
PREFIX = "measured: "
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Value:
    """Statistic of a measure over fits of a run, with its standard error.

    Attributes
    ----------
    value, error : the statistic and its standard error, NaN if undefined
    n_sets : number of data sets
    n_runs : largest number of fits of one method on one data set
    over : "data sets" or "fits", over which the standard error is computed; empty without an error
    """

    value: float
    error: float
    n_sets: int
    n_runs: int
    over: str


def split_ratio(method: str, titles: Sequence[str]) -> list[str]:
    """Split the name "A / B" of a ratio into the titles of two methods.

    Any other name, also the title of a method, is returned alone.
    """
    pairs = ([a, b] for a in titles for b in titles if f"{a} / {b}" == method)
    return [method] if method in titles else next(pairs, [method])


def compute_statistic(
    fits: pd.DataFrame, methods: Sequence[str], measure: str, statistic: str
) -> Value | None:
    """Compute a statistic of one method, or of two methods.

    ``methods`` are the titles of the methods, and ``fits`` their fits. For two methods, the value
    is the ratio of their means or, for the statistic "p", the p-value of a paired t-test. The
    result is None if the statistic is undefined.
    """
    groups = [fits[fits["method"] == title] for title in methods]
    if len(groups) == 1:
        return summarize(groups[0], measure, statistic)
    if statistic not in ("mean", "p"):
        return None
    a, b = groups
    return (_compute_ratio if statistic == "mean" else paired_test)(a, b, measure)


def summarize(fits: pd.DataFrame, measure: str, statistic: str) -> Value | None:
    """Statistic of a measure over the fits of a data set, averaged over data sets.

    The result is None if the statistic is undefined.
    """
    fits = fits[fits["done" if measure == "infeasible" else "feasible"]]
    if statistic in SPREADS:
        fits = fits[fits.duplicated([*SETS, "variant"], keep=False)]
    if fits.empty or statistic == "p":
        return None
    groups = fits.groupby([*SETS, "variant"], sort=False)[PREFIX + measure]
    # pandas' own statistics would ignore NaN silently.
    values = groups.agg(lambda v: _STATISTICS[statistic](v.to_numpy(float)))
    sets = values.groupby(level=[0, 1], sort=False).agg(lambda v: np.mean(v.to_numpy())).to_numpy()
    sample, over = sets, "data sets"
    if len(values) == 1 and statistic == "mean":
        sample, over = fits[PREFIX + measure].to_numpy(float), "fits"
    return _with_error(np.mean(sets), sample, over, len(sets), groups.size().max())


def _compute_ratio(a: pd.DataFrame, b: pd.DataFrame, measure: str) -> Value | None:
    """Ratio of the mean of method a to the mean of method b, over data sets with fits of both.

    ``a`` and ``b`` are the fits of the methods. The result is None without such data sets. The
    standard error is the first-order approximation for a ratio of paired means.
    """
    sets, pairs, n_runs = _paired_means(a, b, measure)
    if not len(sets) or sets[:, 1].mean() == 0:
        return None
    top, bottom = sets.mean(axis=0)
    residuals = (pairs[:, 0] - top / bottom * pairs[:, 1]) / bottom
    over = "data sets" if len(sets) > 1 else "fits"
    return _with_error(top / bottom, residuals, over, len(sets), n_runs)


def paired_test(a: pd.DataFrame, b: pd.DataFrame, measure: str) -> Value | None:
    """p-value of a two-sided paired t-test of methods a and b; None with fewer than two pairs.

    ``a`` and ``b`` are the fits of the methods; see `_paired_means` for the pairs. If all pairs
    have the same difference, p is 1 if this difference is 0, and otherwise 0.
    """
    from scipy.stats import ttest_1samp

    sets, pairs, n_runs = _paired_means(a, b, measure)
    if len(pairs) < 2:
        return None
    differences = pairs[:, 0] - pairs[:, 1]
    if np.ptp(differences) <= _ROUNDING:
        p = float(abs(differences[0]) <= _ROUNDING)
    else:
        p = float(ttest_1samp(differences, 0).pvalue)
    return Value(p, np.nan, len(sets), n_runs, "")


def _with_error(value: float, sample: np.ndarray, over: str, n_sets: int, n_runs: int) -> Value:
    """Make the `Value` of a statistic ``value``, with the standard error of the mean of ``sample``.

    The standard error is NaN if ``sample`` has a single entry. ``over``, ``n_sets`` and ``n_runs``
    are attributes of the `Value`.
    """
    if len(sample) < 2:
        return Value(float(value), np.nan, n_sets, int(n_runs), "")
    error = np.std(sample, ddof=1) / np.sqrt(len(sample))
    return Value(float(value), float(error), n_sets, int(n_runs), over)


def _paired_means(
    a: pd.DataFrame, b: pd.DataFrame, measure: str
) -> tuple[np.ndarray, np.ndarray, int]:
    """Pair the values of methods a and b, whose fits are ``a`` and ``b``.

    Returns three results: the means (n_sets, 2) of both methods by data set, the pairs (n_pairs, 2)
    to compare, and the largest number of fits of a method on a data set. The pairs are the means by
    data set or, for a single data set, the values by run, since runs share their sampled labels.
    """

    def group_means(by: list[str]) -> np.ndarray:
        feasible = (fits[fits["feasible"]] for fits in (a, b))
        means = [
            fits.groupby(by)[PREFIX + measure].agg(lambda v: np.mean(v.to_numpy(float)))
            for fits in feasible
        ]
        return pd.concat(means, axis=1, join="inner").to_numpy()

    sets = group_means(SETS)
    n_runs = max((fits.groupby(SETS).size().max() for fits in (a, b) if len(fits)), default=0)
    return sets, group_means([*SETS, "run"]) if len(sets) == 1 else sets, int(n_runs)


def count_decimals(values: Iterable[float]) -> int:
    """Number of decimals to which published ``values`` of one column are printed.

    The result is the largest number of decimals of any value. A single value does not show the
    number of printed decimals, since model files drop trailing zeros: 0.3 instead of 0.30.
    """
    texts = (np.format_float_positional(float(f"{value:.10g}"), trim="-") for value in values)
    return max((len(text.partition(".")[2]) for text in texts), default=0)


def judge(
    ours: Value, published: float, goal: str, decimals: int = 0, n_errors: float = 2
) -> Mark | None:
    """Compare our value with a published one; None if ``goal`` is "none".

    The result is "reached" if our value is at least as good as the published value, or equal after
    rounding to ``decimals``. With 0 decimals, values are not rounded, since the precision of
    published integers is unknown. The result is "within" if our value is at most ``n_errors``
    standard errors worse than a value that is rounded to the published one, and otherwise "worse".
    With the goal "agree", any deviation is worse, and published integers are taken as rounded.
    """
    if goal == "none" or np.isnan(ours.value):
        return None
    difference = published - ours.value
    deficit = {"high": difference, "low": -difference, "agree": abs(difference)}[goal]
    is_rounded = decimals > 0 or goal == "agree"
    is_equal = is_rounded and abs(round(ours.value, decimals) - published) <= _ROUNDING
    if deficit <= _ROUNDING or is_equal:
        return "reached"
    half_unit = 0.5 * 10.0**-decimals if is_rounded else 0.0
    margin = n_errors * np.nan_to_num(ours.error) + half_unit
    return "within" if deficit <= margin + _ROUNDING else "worse"
