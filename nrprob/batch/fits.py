"""Record of one fit: labels, objective, agreement with labelings, versions and timing.

Shapes: n rows, k clusters, V views.
"""

from __future__ import annotations

import contextlib
import math
import platform
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import numpy as np

from nrprob.batch import registry
from nrprob.batch.measures import OF_FEATURES, OF_SPLIT, Measure, Metric
from nrprob.batch.parameters import look_up
from nrprob.batch.splits import Parts
from nrprob.estimator.base import fitted_labelings
from nrprob.exceptions import InputError, SingleFeatureWarning
from nrprob.statistics.groups import cross_table

__all__ = [
    "Fit", "cluster_sizes", "combine_views", "default_measures", "fit_method",
    "package_versions", "record_fit", "score_fit",
]  # fmt: skip

_SHORT: dict[Metric, str] = {"normalized_mutual_information": "NMI", "matched_accuracy": "accuracy"}


@dataclass
class Fit:
    """One fitted method and its agreement with the labelings of the data.

    Attributes
    ----------
    title : name in reports
    method : class name of the estimator; import path of an external estimator
    parameters : parameters of the estimator
    labels : cluster of each row (n,), or (n, V) for V views; -1 for rows that were not fitted
    seconds : run time of the fit
    membership : memberships (n, k), NaN for rows that were not fitted; None if the method has none
    objective : final objective of the best restart; NaN for external estimators
    trace : objective at every step of the best restart
    restarts : final objective of every restart
    n_clusters : number of clusters, summed over the views
    converged, n_iter : whether the fit has converged, and its number of iterations
    warnings : messages of the warnings during the fit
    compile_seconds : compilation time of the program of the fit, NaN if unknown
    dtype : floating-point type of the computations
    scores : value of every measure, by name
    labelled : (n,) bool, whether a row has a target label; None without target labels
    part : (n,) part of every row in a split, a value of `nrprob.batch.splits.PARTS`; None without a
        split
    predicted : labels from `predict`, in the shape of ``labels``; -1 for rows without a prediction
    refusal : why the must-links and cannot-links are infeasible, "" if they are feasible; None
        without such pairs
    posterior : dictionary with the probability of every number of clusters ("n_clusters"), the
        largest R-hat of the diagnosed quantities ("r_hat"), and their smallest effective sample
        size ("ess"); None for a method without a posterior
    """

    title: str
    method: str
    parameters: dict[str, Any]
    labels: np.ndarray
    seconds: float
    membership: np.ndarray | None = None
    objective: float = math.nan
    trace: np.ndarray = field(default_factory=lambda: np.empty(0))
    restarts: np.ndarray = field(default_factory=lambda: np.empty(0))
    n_clusters: int = 0
    converged: bool = False
    n_iter: int = 0
    warnings: list[str] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    compile_seconds: float = math.nan
    dtype: str = "float64"
    labelled: np.ndarray | None = None
    part: np.ndarray | None = None
    predicted: np.ndarray | None = None
    refusal: str | None = None
    posterior: dict[str, Any] | None = None

    @property
    def posterior_in_words(self) -> str:
        """Clause with the posterior of the number of clusters; empty without a posterior."""
        if self.posterior is None:
            return ""
        number = sorted(self.posterior["n_clusters"].items(), key=lambda item: -item[1])
        likely = [f"{k} (probability {p:.2f})" for k, p in number[:3] if p >= 0.01]
        return (
            f"number of clusters in the posterior: {', '.join(likely)}; largest R-hat "
            f"{self.posterior['r_hat']:.2f}, smallest effective sample size "
            f"{self.posterior['ess']:.0f}"
        )


def combine_views(labels: np.ndarray) -> np.ndarray:
    """One labeling (n,) from labels (n,) or (n, V) of V views.

    With views, every combination of the clusters of all views gets an integer.
    """
    return labels if labels.ndim == 1 else np.unique(labels, axis=0, return_inverse=True)[1].ravel()


def cluster_sizes(labels: np.ndarray) -> list:
    """Sizes of all clusters of labels (n,), or lists of sizes, one per view, of labels (n, V)."""
    if labels.ndim == 2:
        return [cluster_sizes(view) for view in labels.T]
    return np.bincount(labels[labels >= 0]).tolist()


def _summarize_posterior(estimator: Any) -> dict[str, Any] | None:
    """Make ``Fit.posterior`` from the draws of a fitted estimator; None without draws."""
    draws, table = (getattr(estimator, name, None) for name in ("posterior_", "diagnostics_"))
    if draws is None or table is None:
        return None
    number, count = np.unique(np.asarray(draws["n_clusters"]), return_counts=True)
    share = (count / count.sum()).tolist()
    return {
        "n_clusters": dict(zip(map(int, number), share, strict=True)),
        "r_hat": float(table["r_hat"].max()), "ess": float(table["ess_bulk"].min()),
    }  # fmt: skip


def record_fit(title: str, estimator: Any, seconds: float, messages: Sequence[str]) -> Fit:
    """Make the record of a fitted estimator.

    ``title`` is the name of the fit in reports, ``seconds`` is the run time, and ``messages`` are
    the messages of the warnings.
    """
    restarts = getattr(estimator, "restarts_", None)
    membership = getattr(estimator, "membership_", None)
    return Fit(
        title=title,
        method=type(estimator).__name__,
        parameters=estimator.get_params(deep=False),
        labels=np.asarray(fitted_labelings(estimator)),
        seconds=seconds,
        # Memberships of several views have different shapes; their labels are enough.
        membership=None if isinstance(membership, list) else membership,
        objective=float(estimator.objective_),
        trace=np.asarray(estimator.objective_trace_, float),
        restarts=np.asarray([] if restarts is None else restarts["objective"], float),
        n_clusters=int(np.sum(estimator.n_clusters_)),
        converged=bool(estimator.converged_),
        n_iter=int(estimator.n_iter_),
        warnings=list(dict.fromkeys(messages)),
        posterior=_summarize_posterior(estimator),
    )


def fit_method(
    name: str,
    parameters: Mapping[str, Any],
    X: Any,
    known: np.ndarray | None,
    *,
    y: np.ndarray | None = None,
    where: str = "",
) -> tuple[Fit, Any]:
    """Fit the method with a short name; return the record of the fit, and the fitted estimator.

    The record has the warnings of the fit. ``known`` is not passed to methods that take no known
    structure. ``where`` is a prefix of parameter names in messages.
    """
    estimator = registry.make_estimator(name, parameters, where)
    keywords = registry.find_method(name).capabilities.keywords(known)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True, action="always") as caught:
        estimator.fit(X, y, **keywords)
    seconds = time.perf_counter() - start
    # `FitResult.alert` gives this warning in the words of the command line.
    messages = [str(w.message) for w in caught if w.category is not SingleFeatureWarning]
    return record_fit(type(estimator).__name__, estimator, seconds, messages), estimator


def default_measures(labelings: Sequence[str], known: Sequence[str] = ()) -> dict[str, Measure]:
    """Default measures, by name, of the agreement of the clusters with every labeling.

    The measures are the normalised mutual information (NMI) and the matched accuracy. ``known``
    labelings have no accuracy: clusters should differ from known labelings, so that an accuracy is
    meaningless.
    """
    return {
        f"{short} of {name}": Measure(metric=metric, labeling=name)
        for name in labelings
        for metric, short in _SHORT.items()
        if name not in known or metric != "matched_accuracy"
    }


def score_fit(
    fit: Fit,
    labelings: Mapping[str, np.ndarray],
    measures: Mapping[str, Measure],
    rows: np.ndarray | None = None,
    *,
    features: Any = None,
    estimator: Any = None,
    parts: Parts | None = None,
    classifies: bool = False,
) -> None:
    """Compute ``fit.scores``, one value per measure.

    A value is NaN if the measure does not apply to the fit, or if the fit is infeasible.

    Parameters
    ----------
    fit : record of the fit, to which the scores are added
    labelings : labelings (n,) of all n rows, by name
    measures : measures by name
    rows : (n,) mask of the rows in which clusters and labelings are compared; by default the fitted
        rows
    features : features (n, m) of all rows, for measures of the separation of clusters
    estimator : fitted estimator, for measures that are attributes of it
    parts : parts of the split, for accuracies
    classifies : whether `predict` of the estimator returns classes instead of clusters
    """
    if fit.refusal:
        fit.scores = dict.fromkeys(measures, math.nan)
        return
    if rows is None:
        rows = np.ones(len(fit.labels), bool) if parts is None else parts.fitted
    rates: Mapping[str, float] = {}
    if parts is not None and any(m.metric in OF_SPLIT for m in measures.values()):
        rates = _class_rates(fit, parts, classifies)
    fit.scores = {}
    for name, measure in measures.items():
        if measure.attribute is not None:
            value = _attribute_value(estimator, measure.attribute)
        elif measure.metric in OF_SPLIT:
            value = rates[measure.metric]
        elif measure.metric in OF_FEATURES:
            value = _separation(fit.labels[rows], measure, features[rows])
        else:
            value = _agreement(fit.labels[rows], measure, labelings, rows)
        fit.scores[name] = float(value)


def _agreement(
    labels: np.ndarray, measure: Measure, labelings: Mapping[str, np.ndarray], rows: np.ndarray
) -> float:
    """Agreement of clusters with a labeling, or of two views, by a ``measure``.

    ``labels`` (r,) or (r, V) are the clusters of the r compared rows. ``rows`` (n,) marks these
    rows among all rows, which ``labelings`` have.
    """
    from nrprob import metrics

    assert measure.metric is not None
    metric = getattr(metrics, measure.metric)
    if measure.metric == "matching_rate":
        return metric(*labels.T) if labels.ndim == 2 and labels.shape[1] == 2 else math.nan
    assert measure.labeling is not None
    truth = labelings[measure.labeling][rows]
    views = [combine_views(labels)] if measure.view is None else _views(labels, measure)
    values = [metric(view, truth, **measure.parameters) for view in views]
    return (min if measure.view == "lowest" else max)(values, default=math.nan)


def _separation(labels: np.ndarray, measure: Measure, X: Any) -> float:
    """Separation of clusters in the features ``X`` (r, m) of r rows, by a ``measure``.

    ``labels`` (r,) or (r, V) are the clusters. By default, the value is the mean over the views.
    """
    from nrprob import metrics

    assert measure.metric is not None
    metric = getattr(metrics, measure.metric)
    values = [metric(X, view, **measure.parameters) for view in _views(labels, measure)]
    combine = {"lowest": np.min, "highest": np.max}.get(str(measure.view), np.mean)
    return float(combine(values)) if values else math.nan


def _views(labels: np.ndarray, measure: Measure) -> list[np.ndarray]:
    """List the labels (r,) of the view that a measure names, or of every view."""
    views = [*labels.reshape(len(labels), -1).T]
    return views[measure.view : measure.view + 1] if isinstance(measure.view, int) else views


def _attribute_value(estimator: Any, path: str) -> float:
    """Numeric attribute of a fitted estimator, such as "tdl_" or "n_clusters_.0".

    The value is NaN if there is no such attribute.
    """
    name = path.split(".")[0]
    value = look_up({name: getattr(estimator, name, None)}, path)
    if value is None:
        return math.nan
    if np.ndim(value) or not isinstance(value, int | float | np.generic):
        raise InputError(
            f"a measure must be a number; {path} of {type(estimator).__name__} is a "
            f"{type(value).__name__}; name one element, such as '{path}.0'"
        )
    return float(value)


def _class_rates(fit: Fit, parts: Parts, classifies: bool) -> dict[str, float]:
    """Accuracies of class predictions on fitted rows and on test rows, and the error, by metric.

    If ``classifies``, the predictions of the estimator are classes. Otherwise a cluster predicts
    the most frequent class of its labelled rows, or of all labelled rows if the cluster has none.
    """
    codes, labelled, test = parts.codes, parts.mask("labelled"), parts.mask("test")
    if classifies:
        assert fit.predicted is not None
        predicted = fit.predicted
    else:
        labels = fit.labels if fit.predicted is None else np.maximum(fit.labels, fit.predicted)
        clusters = combine_views(labels.reshape(codes.size, -1))
        shape = clusters.max() + 1, codes.max() + 1
        counts = cross_table(clusters[labelled], codes[labelled], shape)
        majority = np.where(counts.any(1), counts.argmax(1), counts.sum(0).argmax())
        predicted = majority[clusters]
    right = predicted == codes
    test_accuracy = float(right[test].mean()) if test.any() else math.nan
    return {
        "train_accuracy": float(right[parts.fitted].mean()),
        "test_accuracy": test_accuracy,
        "error": 1 - test_accuracy,
    }


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    names = ("nrprob", "jax", "jaxlib", "numpy", "scipy", "scikit-learn", "pandas", "clustpy")
    result = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            result[name] = metadata.version(name)
    return result
