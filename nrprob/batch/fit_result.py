"""Fits of one data set, and tests of their clusters.

Terminal output, files and HTML pages are made from these records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.batch import registry
from nrprob.batch.fits import Fit, default_measures, record_fit, score_fit
from nrprob.batch.inputs import load_data
from nrprob.batch.plan import Plan
from nrprob.batch.provenance import as_key
from nrprob.batch.store import dataset_to_fit
from nrprob.batch.tables import Table, take_rows
from nrprob.data.preparation.record import Say, as_option
from nrprob.evidence import Confidence, Evidence, confidence, test
from nrprob.evidence.inputs import reason_without_test
from nrprob.statistics.single_feature import single_feature
from nrprob.successive import Exploration

if TYPE_CHECKING:
    import xarray

__all__ = ["FitResult", "TestResults", "exploration_results", "plan_result", "check_clusters"]

_WITHHELD = "confidence withheld: one feature determines the clusters"


@dataclass(frozen=True)
class TestResults:
    """Tests of the clusters of a fit.

    Attributes
    ----------
    evidence : significance test of the clusters; None if the data or the method have no test
    confidence : bootstrap confidence of the rows and the clusters; None if it is withheld or
        undefined
    said : sentences with the results, or with the reason why there are no results
    """

    evidence: Evidence | None
    confidence: Confidence | None
    said: tuple[str, ...]

    @property
    def summary(self) -> dict[str, Any]:
        """Entries of ``result.json`` about the tests."""
        summary: dict[str, Any] = {"evidence": {"said": list(self.said)}}
        if self.evidence is not None:
            summary["evidence"]["p_structure"] = self.evidence.p_structure_
            summary["evidence"]["p_gap"] = self.evidence.p_gap_
        if self.confidence is not None:
            clusters = np.asarray(self.confidence.clusters_, float)
            summary["confidence"] = [None if np.isnan(c) else c for c in clusters.tolist()]
        return summary


@dataclass
class FitResult:
    """One data set and its fits; pages and plots describe the first fit.

    Attributes
    ----------
    title : title of the HTML page; empty for the default title
    table : features and labelings of the data set
    known : names of the known labelings
    fits : fits of all methods
    files : paths of the written files
    origin : provenance of the data, and the command
    measured : known continuous covariates (n_rows, n_covariates); None without any
    tested : tests of the first fit; None if the fit was not tested
    profiles : description of every cluster that the page shows, by name of the cluster
    cluster_names : names of clusters, in the order of the clusters; empty for numbers
    say : function that formats an argument (name and value) for the advice in messages, for example
        as an option of the command line
    """

    title: str
    table: Table
    known: Sequence[str]
    fits: list[Fit]
    files: list[Path] = field(default_factory=list)
    origin: dict[str, Any] = field(default_factory=dict)
    measured: np.ndarray | None = None
    tested: TestResults | None = None
    profiles: dict[str, str] = field(default_factory=dict)
    cluster_names: list[str] = field(default_factory=list)
    say: Say = as_option

    def name_cluster(self, cluster: int) -> str:
        """Name of a cluster; its number if the cluster has no name."""
        has_name = 0 <= cluster < len(self.cluster_names)
        return self.cluster_names[cluster] if has_name else str(cluster)

    def title_cluster(self, cluster: int) -> str:
        """Name of a cluster; "cluster" and its number if the cluster has no name."""
        name = self.name_cluster(cluster)
        return name if 0 <= cluster < len(self.cluster_names) else f"cluster {name}"

    def name_clusters(self, labels: np.ndarray) -> Any:
        """Names of the clusters ``labels`` (n,), as categories in the order of the clusters.

        If the clusters have no names, ``labels`` is returned.
        """
        if not self.cluster_names:
            return labels
        import pandas as pd

        clusters = np.unique(labels).tolist()
        names = pd.Index([self.title_cluster(c) for c in clusters])
        return pd.Categorical.from_codes(np.searchsorted(clusters, labels), names)

    @cached_property
    def alert(self) -> str:
        """Warning that a single feature determines the clusters; empty if no feature does."""
        labels, table = self.fits[0].labels, self.table
        if labels.ndim > 1:
            return ""
        fitted, prepared = labels >= 0, self.origin.get("prepared", {})
        feature = single_feature(
            take_rows(table.X, fitted), labels[fitted], table.feature_names,
            prepared.get("indicators"), prepared.get("scales"),
        )  # fmt: skip
        if feature is None:
            return ""
        how = "" if table.feature_names is None else f" with {self.say('drop', [feature.column])}"
        return f"{feature}; drop the column{how}, or name it as known"


def check_clusters(
    estimator: Any,
    X: Any,
    known: np.ndarray | None,
    *,
    alpha: float = 0.05,
    evidence: Evidence | None = None,
    alert: str = "",
    title_cluster: Callable[[int], str] = "cluster {}".format,
) -> TestResults:
    """Test the clusters of an estimator that is fitted to ``X``, and compute bootstrap confidences.

    The tests use the seed of the estimator and the significance level ``alpha``. If ``evidence``,
    an earlier test, is passed, the clusters are not tested again. If there is an ``alert``
    (`FitResult.alert`), no confidence is computed. ``title_cluster`` names a cluster in sentences.
    """
    if reason := reason_without_test(estimator, X):
        return TestResults(None, None, (f"these clusters have no test: {reason}",))
    options = {"known": known, "random_state": estimator.get_params().get("random_state")}
    try:
        evidence = evidence or test(estimator, X, alpha=alpha, **options)
    except (TypeError, ValueError) as error:
        return TestResults(None, None, (f"these clusters have no test: {error}",))
    if alert:
        return TestResults(evidence, None, (str(evidence), _WITHHELD))
    try:
        result = confidence(estimator, X, evidence=evidence, **options)
    except (TypeError, ValueError) as error:
        return TestResults(evidence, None, (str(evidence), f"confidence withheld: {error}"))
    if result.samples_ is not None:
        said = str(result).partition(" (")[0]
        said = re.sub(r"cluster (\d+)", lambda match: title_cluster(int(match[1])), said)
        return TestResults(evidence, result, (str(evidence), said))
    supported = evidence.supports_clusters
    reason = _WITHHELD if supported else "confidence withheld: no evidence of clusters"
    return TestResults(evidence, None, (str(evidence), reason))


def exploration_results(
    solution: Exploration,
    table: Table,
    known: Sequence[str],
    origin: Mapping[str, Any],
    measured: np.ndarray | None = None,
    alpha: float | None = None,
    cluster_names: Sequence[Sequence[str]] = (),
) -> list[FitResult]:
    """Make one result per clustering of an exploration.

    Every clustering is conditioned on all earlier ones, which are known labelings in its result.
    ``measured`` are known continuous covariates. With ``alpha``, confidences are computed, and the
    clusters are tested at this level unless the exploration has tested them. ``cluster_names`` has
    the names of the clusters, for the first clusterings.
    """
    names = [f"clustering_{r + 1}" for r in range(solution.labels_.shape[1])]
    results: list[FitResult] = []
    before: dict[str, np.ndarray] = {}
    for r, estimator in enumerate(solution.estimators_):
        fit = record_fit(type(estimator).__name__, estimator, 0.0, [])
        score_fit(fit, table.labelings, default_measures([*table.labelings], known))
        result = FitResult(
            names[r].replace("_", " "), replace(table, labelings=table.labelings | before),
            [*known, *before], [fit], origin=dict(origin), measured=measured,
            cluster_names=[*cluster_names[r]] if r < len(cluster_names) else [],
        )  # fmt: skip
        if alpha is not None:
            labels = [result.table.labelings[name].astype(str) for name in result.known]
            result.tested = check_clusters(
                estimator, table.X, np.column_stack(labels) if labels else None, alpha=alpha,
                evidence=solution.evidence_[r] if solution.evidence_ else None, alert=result.alert,
                title_cluster=result.title_cluster,
            )  # fmt: skip
        results.append(result)
        clusters, codes = np.unique(solution.labels_[:, r], return_inverse=True)
        titles = np.array([result.title_cluster(int(c)) for c in clusters])
        before = before | {names[r]: titles[codes.ravel()]}
    return results


def plan_result(plan: Plan, dataset: xarray.Dataset) -> FitResult:
    """Make the result of a plan with one data set and one fit of every method.

    ``dataset`` has the fits, from `nrprob.batch.load`. If there is known structure, methods that
    are conditioned on the known structure come first.
    """
    model = plan.model
    table = load_data(model, plan.cells[0].data, plan.cells[0].seed)
    if model.measures:
        compared = [t.labeling for t in (*model.sampling.values(), *model.measures.values())]
        shown = dict.fromkeys([*model.known_names, *filter(None, compared)])
        table.labelings = {name: table.labelings[name] for name in shown}
    dataset = dataset.drop_duplicates("cell")  # equal methods with two titles share their fits
    cells = list(plan.cells)
    if model.known_names:
        cells.sort(key=lambda cell: not registry.find_method(cell.name).capabilities.known)
    fits = []
    for cell in cells:
        estimator, name = registry.make_estimator(cell.name, cell.parameters), cell.name
        if not isinstance(registry.find_method(name), registry.ExternalMethod):
            name = type(estimator).__name__
        parameters = estimator.get_params(deep=False)
        fits.append(dataset_to_fit(dataset.sel(cell=cell.id), cell.method, name, parameters))
    return FitResult(model.title, table, model.known_names, fits, origin=plan.origin, say=as_key)
