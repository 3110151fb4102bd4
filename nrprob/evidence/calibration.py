"""For which tables the level of the significance test is known, by simulation.

`REJECTIONS` are of 400 null tables at the level 0.05, by ``benchmarks/evidence_mixed.py``. A design
counts as calibrated with at most 28 rejections. The exact level 0.05 exceeds 28 with a probability
of 0.03.
"""

from __future__ import annotations

from nrprob.estimator.density import TableTraits

REJECTIONS: dict[str, int] = {}  # not measured yet
_MOST_REJECTIONS = 28
_SMALL_GROUP = 10  # samples of the median group of a table with small groups
_N_SAMPLES = 200, 1000
_MOST_NUMERIC, _MOST_DISCRETE, _MOST_CLUSTERS = 8, 8, 3
_MOST_MISSING, _MOST_SKEWED = 0.2, 2.5


def covering_designs(traits: TableTraits) -> list[str]:
    """Return the null designs that cover a table; empty if none does."""
    low, high = _N_SAMPLES
    small = traits.median_group < _SMALL_GROUP
    out_of_range = (
        not low <= traits.n_samples <= high
        or traits.n_numeric > _MOST_NUMERIC
        or traits.n_discrete > _MOST_DISCRETE
        or traits.n_clusters > _MOST_CLUSTERS
        or traits.missing_share > _MOST_MISSING
        or traits.skewness > _MOST_SKEWED
    )
    if out_of_range or (traits.missing_share > 0 and (small or not traits.n_numeric)):
        return []
    if not traits.n_discrete:
        designs = ["small-numeric" if small else "numeric"]
    elif not traits.n_numeric:
        designs = [] if small else ["categories"]
    else:
        designs = ["mixed", "flag-number", "two-flags", "skewed"]
        designs += ["small-mixed"] if small else ["mixed-1000", "skewed-1000"]
    if traits.missing_share > 0:
        designs += ["missing"]
    if traits.by_group:
        designs += ["unequal"]
    if traits.n_clusters > 2:
        designs += ["three-clusters"]
    return designs


def reason_without_p_value(traits: TableTraits) -> str:
    """Return why there is no p-value for such a table; empty if its level is known."""
    designs = covering_designs(traits)
    if not designs or any(design not in REJECTIONS for design in designs):
        return f"the level of the test is not known for tables like this one ({_describe(traits)})"
    exceeded = [design for design in designs if REJECTIONS[design] > _MOST_REJECTIONS]
    if exceeded:
        return (
            f"the test rejected {REJECTIONS[exceeded[0]]} of 400 simulated tables without clusters "
            f"at the level 0.05 ({exceeded[0]})"
        )
    return ""


def _describe(traits: TableTraits) -> str:
    """Traits of a table in words."""
    parts = [
        f"{traits.n_samples} samples", f"{traits.n_numeric} numeric columns",
        f"{traits.n_discrete} discrete columns", f"{traits.n_clusters} clusters",
        f"{100 * traits.missing_share:.0f} % missing",
        f"a median group of {traits.median_group:g} samples",
    ]  # fmt: skip
    return ", ".join(parts)
