"""Answer of a fit in plain words, and distributions of features by cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.statistics.top_features import Findings

__all__ = ["Distribution", "answer_in_words", "compare_cluster", "summarize_feature"]

_NOTABLE = 0.5  # smallest difference in the answer, in standard deviations
_MAX_FEATURES = 3  # maximum number of features of a cluster in the answer
_MAX_CLUSTERS = 6  # maximum number of clusters in the answer
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def compare_cluster(
    features: Findings, i: int, names: Sequence[str], indicators: Mapping[str, Sequence[str]]
) -> str:
    """Say in which features cluster ``i`` is higher or lower than all other rows.

    ``names`` are the names of the features, and ``indicators`` is as in `Findings.describe`.
    """
    parts: dict[str, None] = {}
    for j in features.most_different(i, len(names)).tolist():
        difference = float(features.differences[i, j])
        if abs(difference) < _NOTABLE or len(parts) == _MAX_FEATURES:
            break
        if names[j] in indicators:
            column, _, value = indicators[names[j]]
            parts[f"{'more' if difference > 0 else 'less'} often {column} = {value}"] = None
        else:
            parts[f"{'higher' if difference > 0 else 'lower'} {names[j]}"] = None
    return ", ".join(parts)


def answer_in_words(
    clusters: Mapping[str, tuple[int, str]],
    known: Sequence[str],
    is_informed: bool,
    evidence: Sequence[str],
    supported: bool | None,
    n_hidden: int = 0,
) -> list[str]:
    """Sentences that answer the question of a fit.

    Parameters
    ----------
    clusters : for the title of every cluster, its number of rows and the text of `compare_cluster`
    known : names of the known structure
    is_informed : whether the fit is conditioned on the known structure
    evidence : sentences with the results of the tests
    supported : whether the test supports the clusters; None without a test
    n_hidden : number of further clusters
    """
    names = " and ".join(known)
    n = len(clusters) + n_hidden
    if n == 1:
        return ["All rows form one group."]
    verb = "do" if len(known) > 1 else "does"
    beyond = f" that {names} {verb} not explain" if is_informed else ""
    sentences = [f"{n} groups of rows{beyond}."]
    if supported is False:
        sentences = [
            f"There is no evidence of groups{beyond}: the {n} clusters of this page divide the "
            "rows, but a model without clusters predicts new rows as well."
        ]
    largest = sorted(clusters.items(), key=lambda item: -item[1][0])[:_MAX_CLUSTERS]
    for name, (size, text) in largest if supported is not False else ():
        rows = f"{size} row{'s' * (size != 1)}"
        title = f"{name[0].upper()}{name[1:]}"
        sentences.append(f"{title} ({rows}): {text or 'no notable difference'}.")
    if is_informed and supported is not False and any(text for _, text in clusters.values()):
        sentences.append(f"Each comparison is with the other rows, adjusted for {names}.")
    if supported is None:
        sentences.append("The clusters were not tested, so they may be arbitrary.")
    elif evidence:
        said = evidence[0].partition("; ")[0]
        # The rest of the sentence, with numbers of rows and of splits, is below on the page.
        sentences.append(f"Evidence: {said}{')' * (said.count('(') - said.count(')'))}.")
    return sentences


@dataclass(frozen=True)
class Distribution:
    """Distribution of one feature in every cluster.

    Attributes
    ----------
    name : name of the feature
    is_share : whether the feature is binary; then the values are shares
    low, high : ends of the axis
    values : for every cluster, quantiles (0.1, 0.25, 0.5, 0.75, 0.9), or the share of ones
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


def summarize_feature(
    name: str, column: Any, codes: np.ndarray, clusters: Sequence[int], is_share: bool
) -> Distribution:
    """Summarize a feature (n,) in every cluster; missing values are left out."""
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
