"""Describe the result of a fit in plain words, and summarise features by cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.evidence.record import Evidence, format_p
from nrprob.statistics.groups import shares_differ
from nrprob.statistics.table_units import TableUnits, format_numbers
from nrprob.statistics.top_features import Crossing, TopFeatures

__all__ = [
    "Distribution", "answer_in_words", "compare_cluster", "compare_shares", "describe_gap",
    "describe_logarithms", "summarize_feature",
]  # fmt: skip

_NOTABLE = 0.5  # smallest difference in the answer, in standard deviations
_MAX_FEATURES = 3  # maximum number of features of a cluster in the answer
_LARGE_GROUP = 10  # smallest size of a group whose shares are compared
_MAX_CLUSTERS = 6  # maximum number of clusters in the answer
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def compare_cluster(
    features: TopFeatures,
    i: int,
    names: Sequence[str],
    units: TableUnits,
    known: Sequence[str] = (),
) -> str:
    """Compare the means of cluster ``i`` with the means of all rows, for the top features.

    ``features`` has the differences between clusters, ``names`` are the names of the features, and
    ``known`` are the names of the known structure for which the differences are adjusted. The text
    says where a difference changes its sign by the adjustment.
    """
    parts: list[str] = []
    for j in features.most_different(i, len(names)).tolist():
        difference = float(features.differences[i, j])
        if abs(difference) < _NOTABLE or len(parts) == _MAX_FEATURES:
            break
        name, means = names[j], (features.inside[i, j], features.overall[j])
        text = f"{'higher' if difference > 0 else 'lower'} {units.column(name)}"
        if name in units.indicators:
            column, _, value = units.indicators[name]
            text = f"{'more' if difference > 0 else 'less'} often {column} = {value}"
        if (means[0] - means[1]) * difference < 0:
            text += f" after adjustment for {' and '.join(known)}"
        inside, overall = units.describe_means(name, means)
        parts.append(f"{text} ({inside} against {overall} overall)")
    return ", ".join(parts)


def describe_gap(test: Evidence, title_cluster: Callable[[int], str]) -> str:
    """Sentences for the plot of a test: the compared clusters, and the test of the gap.

    ``title_cluster`` names a cluster.
    """
    if test.gap_cluster_ is None or len(np.unique(test.labels_)) < 3:
        compared = "The axis is the direction that separates the two clusters best."
    else:
        title = title_cluster(test.gap_cluster_)
        compared = (
            f"The axis is the direction that separates {title} from all other clusters. In the "
            f"rows that determine the axis, {title} has the clearest gap. Gaps between the other "
            "clusters are not tested."
        )
    if test.p_gap_ is None:
        tested = "No test of this gap was made, so the gap may be due to chance."
    else:
        verdict = "a gap" if test.has_gap else "no significant gap"
        tested = f"The test finds {verdict} ({format_p(test.p_gap_)})."
    has_missing = np.isnan(test.discriminant_score_).any()
    return (
        f"{compared} The position of a row comes from a fit without this row. "
        + "Rows with missing values have no position. " * bool(has_missing)
        + f"Grey is the gap, an interval with few rows. {tested}"
    )


def compare_shares(crossing: Crossing, titles: Sequence[str]) -> str:
    """Say how the share of a cluster differs between known groups; empty if shares do not differ.

    ``crossing`` is the contingency table of clusters and known groups, and ``titles`` are the names
    of the clusters. The sentence is about the cluster with the largest range of shares. The
    sentence names the groups with the largest and the smallest share.
    """
    if not shares_differ(crossing.counts.T):
        return ""
    sizes = crossing.counts.sum(0)
    shares = crossing.counts / np.maximum(sizes, 1)
    large = np.flatnonzero(sizes >= min(_LARGE_GROUP, sizes.max()))
    cluster = int(np.ptp(shares[:, large], axis=1).argmax())
    high, low = (int(large[pick(shares[cluster, large])]) for pick in (np.argmax, np.argmin))
    return (
        f"Shares of the clusters differ between groups of {crossing.name}: {titles[cluster]} has "
        f"{100 * shares[cluster, high]:.0f} % of {crossing.groups[high]} and "
        f"{100 * shares[cluster, low]:.0f} % of {crossing.groups[low]}."
    )


def answer_in_words(
    clusters: Mapping[str, tuple[int, str]],
    known: Sequence[str],
    is_informed: bool,
    test: Evidence | None,
    hidden: tuple[int, int] = (0, 0),
    shares: str = "",
    posterior: str = "",
) -> list[str]:
    """Sentences that state the result of a fit: the clusters, their differences, and the tests.

    Parameters
    ----------
    clusters : for the title of every cluster, its number of rows and the text of `compare_cluster`
    known : names of the known structure
    is_informed : whether the fit is conditioned on the known structure
    test : test of the clusters; None without a test
    hidden : number of further clusters, and number of their rows
    shares : text of `compare_shares`
    posterior : clause on the posterior of the number of clusters
    """
    names = " and ".join(known)
    n = len(clusters) + hidden[0]
    n_rows = sum(size for size, _ in clusters.values()) + hidden[1]
    about_number = [f"{posterior[0].upper()}{posterior[1:]}."] if posterior else []
    if n == 1:
        answer = "The point estimate is one group" if posterior else "All rows form one group"
        return [f"{answer}.", *about_number]
    verb = "do" if len(known) > 1 else "does"
    beyond = f" that {names} {verb} not explain" if is_informed else ""
    sentences = [f"{n} groups of rows{beyond}."]
    is_supported = test is None or test.supports_clusters or test.has_gap
    if test is not None and test.has_gap and not test.supports_clusters:
        sentences = [f"{n} groups of rows{beyond}, with uncertain evidence."]
    elif not is_supported:
        sentences = [
            f"There is no evidence of groups{beyond}: the {n} clusters of this page divide the "
            "rows, but do not predict new rows clearly better than a model without clusters."
        ]
    if is_supported:
        largest = sorted(clusters.items(), key=lambda item: -item[1][0])[:_MAX_CLUSTERS]
        for name, (size, text) in largest:
            rows = f"{size:,} row{'s' * (size != 1)}, {100 * size / n_rows:.0f} %"
            title = f"{name[0].upper()}{name[1:]}"
            sentences.append(f"{title} ({rows}): {text or 'no notable difference'}.")
        if any(text for _, text in clusters.values()):
            comparison = (
                "Every comparison is with the mean or share of all rows; another cluster may be "
                "still higher or lower."
            )
            if is_informed:
                comparison += (
                    " Features are selected by their differences after adjustment for "
                    f"{names}; the numbers are not adjusted."
                )
            sentences.append(comparison)
        if shares and is_informed:
            sentences.append(shares)
    sentences += about_number
    if test is None and not posterior:
        sentences.append("The clusters were not tested, so they may be arbitrary.")
    elif test is not None:
        sentences.append(f"Evidence: {test.in_words}.")
    return sentences


def describe_logarithms(units: TableUnits) -> str:
    """Sentences about the columns that were modelled as logarithms; empty without such columns."""
    columns = units.logarithms.values()
    if not columns:
        return ""
    added = " and ".join(f"{format_numbers([a])[0]} to {x}" for x, a in columns if a)
    return (
        f"The fit used logarithms of {', '.join(x for x, _ in columns)}. This page shows these "
        "columns in the units of the table, with geometric means instead of means. A geometric "
        "mean is the exponential of the mean logarithm. Differences in standard deviations refer "
        "to the logarithms."
        + f" The fit added {added} before the logarithm; the values of this page are without the "
        "added number." * bool(added)
    )


@dataclass(frozen=True)
class Distribution:
    """Distribution of one feature in every cluster, for a plot.

    Attributes
    ----------
    name : name of the feature
    is_share : whether the feature is binary; then the values are shares
    low, high : ends of the axis
    values : for every cluster, quantiles (0.1, 0.25, 0.5, 0.75, 0.9), or the share of ones; empty
        if all values of a cluster are missing
    """

    name: str
    is_share: bool
    low: float
    high: float
    values: list[list[float]]

    def position(self, value: float) -> str:
        """Position of a value on the axis, in percent."""
        width = self.high - self.low
        return f"{100 * (value - self.low) / width if width else 50:.1f}"

    @property
    def ends(self) -> list[str]:
        """Texts of both ends of the axis."""
        return ["0 %", "100 %"] if self.is_share else format_numbers([self.low, self.high])


def summarize_feature(
    name: str, column: Any, codes: np.ndarray, clusters: Sequence[int], is_share: bool
) -> Distribution:
    """Summarize the feature ``column`` (n,) in every cluster; missing values are left out.

    ``codes`` (n,) are the clusters of the rows, and ``clusters`` are the clusters to summarize.
    ``is_share`` states whether the feature is binary.
    """
    values = list[list[float]]()
    for cluster in clusters:
        inside = column[(codes == cluster) & ~np.isnan(column)]
        if not len(inside):
            values.append([])
        else:
            quantiles = [inside.mean()] if is_share else np.quantile(inside, _QUANTILES)
            values.append([float(q) for q in quantiles])
    flat = [q for quantiles in values for q in quantiles]
    ends = (0.0, 1.0) if is_share or not flat else (min(flat), max(flat))
    return Distribution(name, is_share, *ends, values)
