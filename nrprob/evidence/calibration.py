"""For which tables the level of the significance test is known, by simulation.

`REJECTIONS` has, for every null design of ``benchmarks/evidence_mixed.py``, the number of tables
with a p-value of at most 0.05, and the number of tables that were tested. A design counts as
calibrated if 400 tables were tested and at most 7 % of them rejected, 28 of 400. A test of the
level 0.05 exceeds this with a probability of 0.03. To complete the measurement, run

    python benchmarks/evidence_mixed.py --design nulls large --sets 0:400 --jobs 16 --out results

and fill in the column "p <= .05" of its summary.
"""

from __future__ import annotations

from nrprob.estimator.density import TableTraits

REJECTIONS: dict[str, tuple[int, int]] = {  # null design: rejected tables, tested tables
    "numeric": (1, 84),
    "mixed": (2, 152),
    "flag-number": (0, 154),
    "two-flags": (0, 155),
    "skewed": (6, 156),
    "small-numeric": (0, 156),
    "small-mixed": (1, 155),
    "unequal": (1, 154),
    "missing": (0, 154),
    "categories": (0, 82),
    "three-clusters": (0, 0),
    "no-groups": (0, 0),
    "mixed-1000": (0, 0),
    "skewed-1000": (0, 0),
}
_LEAST_TABLES, _LARGEST_RATE = 400, 0.07
# A table has small groups if the median group has fewer than 10 samples, and none so small that no
# design has them.
_SMALL_GROUP, _SMALLEST_GROUP = 10, 5
_N_SAMPLES = 200, 1000
_MOST_NUMERIC, _MOST_DISCRETE, _MOST_CLUSTERS = 8, 8, 3
_MOST_MISSING, _MOST_SKEWED = 0.2, 2.5


def covering_designs(traits: TableTraits) -> list[str]:
    """Return the null designs that cover a table; empty if none does."""
    low, high = _N_SAMPLES
    small = traits.median_group < _SMALL_GROUP
    out_of_range = (
        not low <= traits.n_samples <= high
        or traits.median_group < _SMALLEST_GROUP
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
    if traits.median_group == traits.n_samples:
        designs += ["no-groups"]
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
    if not designs:
        return f"no simulated design covers such a table ({_describe(traits)})"
    for design in designs:
        rejected, tested = REJECTIONS[design]
        if tested < _LEAST_TABLES:
            return (
                f"the level of the test is measured on {tested} of {_LEAST_TABLES} tables so far "
                f"({design})"
            )
        if rejected > _LARGEST_RATE * tested:
            return (
                f"the test rejected {rejected} of {tested} simulated tables without clusters at "
                f"the level 0.05 ({design})"
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
