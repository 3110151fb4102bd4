"""What remains of a fit: labels, objective, agreement with labelings, and how it was made."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nrprob.batch import registry
from nrprob.batch.modelfile import Measure, Metric

__all__ = ["Fit", "default_measures", "fit_method", "make_estimator", "outcome", "score"]

_SHORT: dict[Metric, str] = {
    "normalized_mutual_information": "NMI",
    "matched_accuracy": "accuracy",
}


@dataclass
class Fit:
    """One fitted method and how it compares with the labelings of the data.

    Attributes
    ----------
    title : name in reports
    method : name of the estimator's class
    parameters : of the estimator
    labels : (n,) cluster of each row
    membership : (n, k), or None where the method has none
    trace : objective at every step of the best restart
    restarts : objective of every restart
    seconds : that the fit took
    compile_seconds : that its program took to compile, where that is known
    scores : measure -> value
    labelled : (n,) bool, rows whose wanted label was drawn; None where nothing is wanted
    """

    title: str
    method: str
    parameters: dict[str, Any]
    labels: np.ndarray
    membership: np.ndarray | None
    objective: float
    trace: np.ndarray
    restarts: np.ndarray
    n_clusters: int
    converged: bool
    n_iter: int
    seconds: float
    warnings: list[str] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    compile_seconds: float = float("nan")
    labelled: np.ndarray | None = None


def make_estimator(name: str, parameters: Mapping[str, Any], where: str = "") -> Any:
    """Estimator by its short name; ``where`` tells the user where a wrong parameter stands."""
    cls = registry.method(name).load()
    registry.check_parameters(cls, parameters, where)
    try:
        return cls(**parameters)
    except TypeError as error:  # a parameter without a default is missing
        raise registry.missing_parameter(cls, parameters, where) from error


def outcome(title: str, estimator: Any, seconds: float, messages: Sequence[str]) -> Fit:
    """What is kept of a fitted estimator."""
    restarts = getattr(estimator, "restarts_", None)
    return Fit(
        title=title,
        method=type(estimator).__name__,
        parameters=estimator.get_params(deep=False),
        labels=np.asarray(estimator.labels_),
        membership=getattr(estimator, "membership_", None),
        objective=float(estimator.objective_),
        trace=np.asarray(estimator.objective_trace_, float),
        restarts=np.asarray([] if restarts is None else restarts["objective"], float),
        n_clusters=int(estimator.n_clusters_),
        converged=bool(estimator.converged_),
        n_iter=int(estimator.n_iter_),
        seconds=seconds,
        warnings=list(dict.fromkeys(messages)),
    )


def fit_method(
    name: str,
    parameters: Mapping[str, Any],
    X: Any,
    known: np.ndarray | None,
    *,
    y: np.ndarray | None = None,
    title: str = "",
    where: str = "",
) -> Fit:
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
    title : str, optional
        Name in reports; the name of the class by default.
    where : str, default=""
        Prefix that tells the user where a wrong parameter stands.
    """
    estimator = make_estimator(name, parameters, where)
    keywords = {"known": known} if registry.method(name).takes_known and known is not None else {}
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(X, y, **keywords)
    seconds = time.perf_counter() - start
    messages = [str(w.message) for w in caught]
    return outcome(title or type(estimator).__name__, estimator, seconds, messages)


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
) -> dict[str, float]:
    """Compare the clusters of a fit with labelings; also kept in ``fit.scores``.

    ``rows`` (n,) is True for those to compare; None for all.
    """
    from nrprob import metrics

    chosen = np.ones(len(fit.labels), bool) if rows is None else rows
    fit.scores = {
        name: float(
            getattr(metrics, measure.metric)(
                fit.labels[chosen], labelings[measure.labeling][chosen], **measure.parameters
            )
        )
        for name, measure in measures.items()
    }
    return fit.scores
