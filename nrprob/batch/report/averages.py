"""Fits averaged, and set against published values.

A statistic (mean, min, max, range or sd) is taken over the fits of each data set, which differ in
their seeds, and then averaged over data sets. Its standard error is the standard deviation of these
values over data sets, over the square root of their number. With a single data set there is one for
the mean only, over the fits. Where two methods are compared, "p" is the p-value of a paired t-test,
over data sets, or over the fits of a single one. Fits whose constraints could not be kept have no
values: they are counted, and in no statistic but that of "infeasible".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

__all__ = [
    "OF", "SETS", "SPREADS", "Mark", "Value", "decimals", "judge", "measured", "paired_test",
    "parts", "ratio", "summarize",
]  # fmt: skip

Mark = Literal["worse", "within", "reached"]
_STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": np.mean,
    "min": np.min,
    "max": np.max,
    "range": np.ptp,
    "sd": lambda values: np.std(values, ddof=1),
}
SPREADS = ("range", "sd")  # neither is better for being high or low, nor there with one fit
SETS = ["case", "repeat"]  # what a data set is known by
OF = "measured: "  # before the names of measures in a frame, so that users may choose any
_SAME = 1e-9  # differences that are rounding


@dataclass(frozen=True)
class Value:
    """A statistic of ours and its standard error.

    Attributes
    ----------
    value : the statistic
    error : its standard error, NaN where there is none
    n_sets, n_runs : number of data sets, and of fits of one method on each (the largest)
    over : what the error is over, "data sets" or "fits"; empty where there is none
    """

    value: float
    error: float
    n_sets: int
    n_runs: int
    over: str


def parts(method: str, titles: Sequence[str]) -> list[str]:
    """A and B of "A / B" where both are among the titles, and it is not; else the method itself."""
    pairs = ([one, other] for one in titles for other in titles if f"{one} / {other}" == method)
    return [method] if method in titles else next(pairs, [method])


def measured(
    fits: pd.DataFrame, methods: Sequence[str], measure: str, statistic: str
) -> Value | None:
    """Statistic of a method, or mean or "p" of two: their ratio, or the test of their difference.

    Parameters
    ----------
    fits : DataFrame
        Rows of ``Results.frame``.
    methods : sequence of str
        Titles of one method or of two.
    measure, statistic : str
        What to take of what.
    """
    one, *others = (fits[fits["method"] == title] for title in methods)
    if not others:
        return summarize(one, measure, statistic)
    if statistic not in ("mean", "p"):
        return None
    return (ratio if statistic == "mean" else paired_test)(one, others[0], measure)


def summarize(fits: pd.DataFrame, measure: str, statistic: str) -> Value | None:
    """Statistic of a measure over fits, averaged over data sets.

    None without fits, for range and sd if every data set has only one, and for "p", which is of two
    methods.

    Parameters
    ----------
    fits : DataFrame
        Rows of ``Results.frame``; those that are not done, or infeasible, are left out.
    measure, statistic : str
        What to take of what.
    """
    fits = fits[fits["done" if measure == "infeasible" else "feasible"]]
    if statistic in SPREADS:
        fits = fits[fits.duplicated([*SETS, "variant"], keep=False)]
    if fits.empty or statistic == "p":
        return None
    take = _STATISTICS[statistic]
    by = fits.groupby([*SETS, "variant"], sort=False)[OF + measure]
    # NumPy's functions, since those of pandas leave NaN out without a word.
    each = by.agg(lambda v: take(v.to_numpy(float)))
    sets = each.groupby(level=[0, 1], sort=False).agg(lambda v: np.mean(v.to_numpy())).to_numpy()
    values, over = sets, "data sets"
    if len(each) == 1 and statistic == "mean":
        values, over = fits[OF + measure].to_numpy(float), "fits"
    return _value(np.mean(sets), values, over, len(sets), by.size().max())


def ratio(one: pd.DataFrame, other: pd.DataFrame, measure: str) -> Value | None:
    """Ratio of two means over the data sets that both have; None without such.

    The error is that of a ratio of paired means, to first order. Pairs are data sets; with a single
    one they are the runs that both have, which are told the same labels if they are told any.
    """
    sets, pairs, n_runs = _pairs(one, other, measure)
    if not len(sets) or sets[:, 1].mean() == 0:
        return None
    top, bottom = sets.mean(axis=0)
    rest = (pairs[:, 0] - top / bottom * pairs[:, 1]) / bottom
    over = "data sets" if len(sets) > 1 else "fits"
    return _value(top / bottom, rest, over, len(sets), n_runs)


def paired_test(one: pd.DataFrame, other: pd.DataFrame, measure: str) -> Value | None:
    """p-value of a two-sided paired t-test of two methods; None with fewer than two pairs.

    Pairs are as in `ratio`: data sets, or the runs of a single one. If all differ by the same,
    which leaves the test without a spread, p is 1 for no difference and else 0.
    """
    from scipy.stats import ttest_1samp

    sets, pairs, n_runs = _pairs(one, other, measure)
    if len(pairs) < 2:
        return None
    differences = pairs[:, 0] - pairs[:, 1]
    if np.ptp(differences) <= _SAME:
        p = float(abs(differences[0]) <= _SAME)
    else:
        p = float(ttest_1samp(differences, 0).pvalue)
    return Value(p, np.nan, len(sets), n_runs, "")


def _value(value: float, values: np.ndarray, over: str, n_sets: int, n_runs: int) -> Value:
    """With the standard error of ``values``, if there are several."""
    if len(values) < 2:
        return Value(float(value), np.nan, n_sets, int(n_runs), "")
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return Value(float(value), float(error), n_sets, int(n_runs), over)


def _pairs(
    one: pd.DataFrame, other: pd.DataFrame, measure: str
) -> tuple[np.ndarray, np.ndarray, int]:
    """Means (n, 2) by data set, the pairs to compare, and the number of fits on each set.

    The pairs are the data sets, or the runs of a single one.
    """

    def mean(values: pd.Series) -> float:
        return np.mean(values.to_numpy(float))

    def means(by: list[str]) -> np.ndarray:
        feasible = (fits[fits["feasible"]] for fits in (one, other))
        each = [fits.groupby(by)[OF + measure].agg(mean) for fits in feasible]
        return pd.concat(each, axis=1, join="inner").to_numpy()

    sets = means(SETS)
    n_runs = max((fits.groupby(SETS).size().max() for fits in (one, other) if len(fits)), default=0)
    return sets, means([*SETS, "run"]) if len(sets) == 1 else sets, int(n_runs)


def decimals(values: Iterable[float]) -> int:
    """Number of decimals in which published values of one column were printed.

    It is the largest number that one of them needs: a model file keeps no trailing zeros, so that
    a value alone, such as 0.3 for 0.30, does not say it. Of whole numbers it is 0.
    """
    texts = (np.format_float_positional(float(f"{value:.10g}"), trim="-") for value in values)
    return max((len(text.partition(".")[2]) for text in texts), default=0)


def judge(ours: Value, published: float, goal: str, places: int = 0) -> Mark | None:
    """Whether ours reaches a published value, is within two standard errors of it, or is worse.

    Ours reaches it if it is at least as good, or equal to it after rounding to ``places`` decimals,
    those in which the value was printed. With 0 places nothing is rounded, since whole numbers do
    not say how they were printed. Without a standard error any other difference counts. None where
    neither high nor low is better.
    """
    if goal == "none" or np.isnan(ours.value):
        return None
    short = published - ours.value if goal == "high" else ours.value - published
    equal = places > 0 and abs(round(ours.value, places) - published) <= _SAME
    if short <= _SAME or equal:
        return "reached"
    return "within" if short <= 2 * np.nan_to_num(ours.error) + _SAME else "worse"
