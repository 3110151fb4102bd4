"""Decide for which tables simulations confirm the level of the significance test.

The level is the rate at which the test rejects tables without clusters. The level was measured on
*null designs*: simulated tables without clusters, with different properties (`TableTraits`), from
``benchmarks/evidence_mixed.py``. `REJECTIONS` has two numbers per null design: the number of tables
with a p-value of at most 0.05, and the number of tested tables. A design is calibrated if at least
400 tables were tested and at most 7 % of them (28 of 400) were rejected. A test with an exact level
of 0.05 exceeds 28 rejections with a probability of 0.03. To complete `REJECTIONS`, run

    python benchmarks/evidence_mixed.py --design nulls large --sets 0:400 --jobs 16 --out results

and copy the numbers from the column "p <= .05" of its summary.
"""

from __future__ import annotations

from nrprob.estimator.density import TableTraits

REJECTIONS: dict[str, tuple[int, int]] = {  # null design: rejected tables, tested tables
    "numeric": (3, 400),
    "mixed": (5, 400),
    "flag-number": (2, 400),
    "two-flags": (0, 400),
    "skewed": (0, 400),
    "small-numeric": (0, 400),
    "small-mixed": (2, 400),
    "unequal": (3, 400),
    "missing": (1, 400),
    "categories": (6, 400),
    "three-clusters": (2, 400),
    "no-groups": (7, 400),
    "mixed-1000": (0, 62),
    "skewed-1000": (0, 120),
}
_LEAST_TABLES, _LARGEST_RATE = 400, 0.07
# Limits of the traits of tables that the null designs cover. Known groups are small if their median
# size is below 10. No design has a median size below 5.
_SMALL_GROUP, _SMALLEST_GROUP = 10, 5
# Designs of 240 and 300 samples cover tables of 200 to 480 samples. Larger tables also need the
# designs of 1000 samples.
_N_SAMPLES, _LARGE = (200, 1000), 480
_MOST_NUMERIC, _MOST_DISCRETE, _MOST_CLUSTERS = 8, 8, 3
_MOST_MISSING, _MOST_SKEWED = 0.2, 2.5
_SKEWED = 0.5  # tables count as skewed above this skewness


def covering_designs(traits: TableTraits) -> list[str]:
    """Return the names of the null designs that resemble a table with these traits.

    The test has a p-value for the table only if all these designs are calibrated. The list is empty
    if no design covers the table; see `uncovered_traits`.
    """
    if uncovered_traits(traits):
        return []
    small, incomplete = traits.median_group < _SMALL_GROUP, traits.missing_share > 0
    discrete_alone = not traits.n_numeric
    if not traits.n_discrete:
        designs = ["small-numeric" if small else "numeric", "skewed"]
    elif discrete_alone:
        designs = ["categories"]
    else:
        designs = ["mixed", "flag-number", "two-flags", "skewed"]
        designs += ["small-mixed"] if small else []
    if traits.n_samples > _LARGE:
        designs += ["mixed-1000", "skewed-1000"]
    if traits.median_group == traits.n_samples:
        designs += ["no-groups"]
    if incomplete:
        designs += ["missing"]
    if traits.by_group:
        designs += ["unequal"]
    if traits.n_clusters > 2:
        designs += ["three-clusters"]
    return designs


def uncovered_traits(traits: TableTraits) -> list[str]:
    """Describe the traits for which no design covers a table; empty if some design covers it.

    A trait may be outside the limits of the designs. No design combines two of the following
    traits: missing values, small known groups, skewed numeric columns, and discrete columns only.
    """
    low, high = _N_SAMPLES
    missing = f"{100 * traits.missing_share:.2g} % of the cells missing"
    group = f"a median group of {traits.median_group:g} samples"
    skewed = f"a skewness of {traits.skewness:.3g}"
    limits = {
        f"{traits.n_samples} samples": not low <= traits.n_samples <= high,
        group: traits.median_group < _SMALLEST_GROUP,
        f"{traits.n_numeric} numeric columns": traits.n_numeric > _MOST_NUMERIC,
        f"{traits.n_discrete} discrete columns": traits.n_discrete > _MOST_DISCRETE,
        f"{traits.n_clusters} clusters": traits.n_clusters > _MOST_CLUSTERS,
        missing: traits.missing_share > _MOST_MISSING,
        skewed: traits.skewness > _MOST_SKEWED,
    }
    rare = {
        missing: traits.missing_share > 0,
        group: traits.median_group < _SMALL_GROUP,
        skewed: traits.skewness > _SKEWED,
        "discrete columns only": not traits.n_numeric,
    }
    outside = [text for text, holds in limits.items() if holds]
    together = [text for text, holds in rare.items() if holds]
    return outside or ([" together with ".join(together)] if len(together) > 1 else [])


def reason_without_p_value(traits: TableTraits) -> str:
    """Return why the test of a table has no p-value; an empty string if the test has one."""
    if uncovered := uncovered_traits(traits):
        traits_outside = ", ".join(uncovered)
        return f"the error rate of the test was not measured for such tables ({traits_outside})"
    for design in covering_designs(traits):
        rejected, tested = REJECTIONS[design]
        if tested < _LEAST_TABLES:
            size = f" of more than {_LARGE} samples" if traits.n_samples > _LARGE else ""
            return (
                f"the level of the test is not confirmed for such tables{size} "
                f"({_describe(traits)})"
            )
        if rejected > _LARGEST_RATE * tested:
            return (
                f"the test rejected {rejected} of {tested} simulated tables without clusters at "
                f"the level 0.05 ({design})"
            )
    return ""


def _describe(traits: TableTraits) -> str:
    """Describe the traits of a table in words, for a message."""
    parts = [
        f"{traits.n_samples} samples", f"{traits.n_numeric} numeric columns",
        f"{traits.n_discrete} discrete columns", f"{traits.n_clusters} clusters",
        f"{100 * traits.missing_share:.0f} % missing",
        f"a median group of {traits.median_group:g} samples",
        f"a skewness of {traits.skewness:.1f}",
    ]  # fmt: skip
    return ", ".join(parts)
