"""Record of one fit: labels, objective, agreement with labelings, versions and timing."""

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
from nrprob.batch.draws import Parts
from nrprob.batch.measures import OF_SPLIT, Measure, Metric
from nrprob.batch.parameters import look_up
from nrprob.estimator.base import labelings
from nrprob.exceptions import InputError, SingleFeatureWarning
from nrprob.statistics.groups import cross_table

__all__ = ["Fit", "cluster_sizes", "combined", "fit_method", "outcome", "score", "versions"]

_SHORT: dict[Metric, str] = {"normalized_mutual_information": "NMI", "matched_accuracy": "accuracy"}


@dataclass
class Fit:
    """One fitted method and how it compares with the labelings of the data.

    Attributes
    ----------
    title : name in reports
    method : name of the estimator's class; of a rival, its import path
    parameters : of the estimator
    labels : (n,) cluster of each row, or (n, V) of V views; -1 for rows that were not fitted
    seconds : that the fit took
    membership : (n, k), NaN for rows that were not fitted; None where the method has none
    trace : objective at every step of the best restart
    restarts : objective of every restart
    compile_seconds : that its program took to compile, where that is known
    dtype : of the arithmetic
    scores : measure -> value
    labelled : (n,) bool, rows whose wanted label was drawn; None where nothing is wanted
    part : (n,) what each row was, see `nrprob.batch.draws.PARTS`; None where rows were not split
    predicted : like ``labels``, what `predict` says of rows, -1 where it was not asked; or None
    refusal : why its pairs cannot be kept, empty if they can; None where there are no pairs
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


def combined(labels: np.ndarray) -> np.ndarray:
    """Labels (n,): the clusters, or the combinations of those of all views, by number."""
    return labels if labels.ndim == 1 else np.unique(labels, axis=0, return_inverse=True)[1].ravel()


def cluster_sizes(labels: np.ndarray) -> list:
    """Numbers of rows of all clusters; a list of them for every view if there are views."""
    if labels.ndim == 2:
        return [cluster_sizes(column) for column in labels.T]
    return np.bincount(labels[labels >= 0]).tolist()


def outcome(title: str, estimator: Any, seconds: float, messages: Sequence[str]) -> Fit:
    """What is kept of a fitted estimator."""
    restarts = getattr(estimator, "restarts_", None)
    membership = getattr(estimator, "membership_", None)
    return Fit(
        title=title,
        method=type(estimator).__name__,
        parameters=estimator.get_params(deep=False),
        labels=np.asarray(labelings(estimator)),
        seconds=seconds,
        # Of views, they differ in their shapes, and say no more than the labels.
        membership=None if isinstance(membership, list) else membership,
        objective=float(estimator.objective_),
        trace=np.asarray(estimator.objective_trace_, float),
        restarts=np.asarray([] if restarts is None else restarts["objective"], float),
        n_clusters=int(np.sum(estimator.n_clusters_)),
        converged=bool(estimator.converged_),
        n_iter=int(estimator.n_iter_),
        warnings=list(dict.fromkeys(messages)),
    )


def refused(title: str, estimator: Any, n: int, seconds: float, reason: str) -> Fit:
    """What is kept of a fit of ``n`` rows whose pairs cannot be kept."""
    parameters = estimator.get_params(deep=False)
    labels = np.full(n, -1)
    return Fit(title, type(estimator).__name__, parameters, labels, seconds, refusal=reason)


def fit_method(
    name: str,
    parameters: Mapping[str, Any],
    X: Any,
    known: np.ndarray | None,
    *,
    y: np.ndarray | None = None,
    where: str = "",
) -> tuple[Fit, Any]:
    """Fit a method by its short name; its warnings are kept and not shown.

    Parameters
    ----------
    name : str
        Short name of the method.
    parameters : mapping
        Parameters of its estimator.
    X : array or sparse matrix of shape (n_samples, n_features)
        The rows.
    known : array or None
        Known structure; not handed to methods that take none.
    y : array of shape (n_samples,), optional
        Wanted labels, -1 where unknown.
    where : str, default=""
        Prefix that tells the user where a wrong parameter stands.

    Returns
    -------
    Fit, estimator
        What remains of the fit, and the fitted estimator.
    """
    estimator = registry.make_estimator(name, parameters, where)
    keywords = registry.method(name).capabilities.keywords(known)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(X, y, **keywords)
    seconds = time.perf_counter() - start
    # `FitResult.alert` says it in the words of the command line.
    messages = [str(w.message) for w in caught if w.category is not SingleFeatureWarning]
    return outcome(type(estimator).__name__, estimator, seconds, messages), estimator


def default_measures(labelings: Sequence[str]) -> dict[str, Measure]:
    """Two measures of agreement with every labeling."""
    return {
        f"{short} of {name}": Measure(metric=metric, labeling=name)
        for name in labelings
        for metric, short in _SHORT.items()
    }


def score(
    fit: Fit,
    labelings: Mapping[str, np.ndarray],
    measures: Mapping[str, Measure],
    rows: np.ndarray | None = None,
    *,
    estimator: Any = None,
    parts: Parts | None = None,
    told: bool = False,
) -> None:
    """Measure a fit, and keep that in ``fit.scores``.

    Parameters
    ----------
    fit : Fit
        What was found.
    labelings : mapping of str to array of shape (n_samples,)
        Of all rows.
    measures : mapping of str to Measure
        What to measure; NaN where a fit does not have it, or was refused.
    rows : array of bool of shape (n_samples,), optional
        Rows to compare; by default those that were fitted.
    estimator : object, optional
        That was fitted, for measures that are its attributes.
    parts : Parts, optional
        Parts of the rows, for measures about the classes of a split.
    told : bool, default=False
        Whether the estimator was told classes, so that `predict` says classes.
    """
    if fit.refusal:
        fit.scores = dict.fromkeys(measures, math.nan)
        return
    if rows is None:
        rows = np.ones(len(fit.labels), bool) if parts is None else parts.fitted
    rates: Mapping[str, float] = {}
    if parts is not None and any(m.metric in OF_SPLIT for m in measures.values()):
        rates = _class_rates(fit, parts, told)
    fit.scores = {}
    for name, measure in measures.items():
        if measure.attribute is not None:
            value = _attribute(estimator, measure.attribute)
        elif measure.metric in OF_SPLIT:
            value = rates[measure.metric]
        else:
            value = _agreement(fit.labels[rows], measure, labelings, rows)
        fit.scores[name] = float(value)


def _agreement(
    labels: np.ndarray, measure: Measure, labelings: Mapping[str, np.ndarray], rows: np.ndarray
) -> float:
    """Agreement of labels, those of the rows to compare, with a labeling or with each other."""
    from nrprob import metrics

    assert measure.metric is not None
    metric = getattr(metrics, measure.metric)
    if measure.metric == "matching_rate":
        return metric(*labels.T) if labels.ndim == 2 and labels.shape[1] == 2 else math.nan
    assert measure.labeling is not None
    truth, views = labelings[measure.labeling][rows], [*labels.reshape(len(labels), -1).T]
    if measure.view is None:
        views = [combined(labels)]
    elif isinstance(measure.view, int):
        views = views[measure.view : measure.view + 1]
    values = [metric(view, truth, **measure.parameters) for view in views]
    return (min if measure.view == "lowest" else max)(values, default=math.nan)


def _attribute(estimator: Any, path: str) -> float:
    """A number that a fitted estimator has; NaN where it has none of that name."""
    name = path.split(".")[0]
    value = look_up({name: getattr(estimator, name, None)}, path)
    if value is None:
        return math.nan
    if np.ndim(value) or not isinstance(value, int | float | np.generic):
        raise InputError(
            f"a measure is a number; {path} of {type(estimator).__name__} is a "
            f"{type(value).__name__}; name a place in it, such as '{path}.0'"
        )
    return float(value)


def _class_rates(fit: Fit, parts: Parts, told: bool) -> dict[str, float]:
    """Shares of rows whose class is said rightly.

    Who was told classes says them in `predict`. Else a cluster stands for the class that most of
    its labelled rows have; one without labelled rows, for the most frequent class of them all.
    """
    codes, labelled, test = parts.codes, parts.rows("labelled"), parts.rows("test")
    if told:
        assert fit.predicted is not None
        said = fit.predicted
    else:
        n = codes.size
        result = fit.labels if fit.predicted is None else np.maximum(fit.labels, fit.predicted)
        number = combined(result.reshape(n, -1))
        shape = number.max() + 1, codes.max() + 1
        counts = cross_table(number[labelled], codes[labelled], shape)
        most = np.where(counts.any(1), counts.argmax(1), counts.sum(0).argmax())
        said = most[number]
    right = said == codes
    train = float(right[parts.fitted].mean())
    tested = float(right[test].mean()) if test.any() else math.nan
    return {"train_accuracy": train, "test_accuracy": tested, "error": 1 - tested}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    names = ("nrprob", "jax", "jaxlib", "numpy", "scipy", "scikit-learn", "pandas", "clustpy")
    result = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            result[name] = metadata.version(name)
    return result
