"""External estimators (scikit-learn, ClustPy), fitted on X only."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, get_tags

from nrprob.batch.fits import Fit
from nrprob.data.validation import check_rows
from nrprob.exceptions import InputError, one_line

__all__ = ["check_external", "fit_external"]

_NOISE = "some rows are noise (label -1); measures count all noise rows as one more cluster"


def check_external(estimator: Any, X: Any) -> None:
    """Raise an error for parameters and features that the estimator does not support.

    Raises
    ------
    ValueError, TypeError
        If the checks of the estimator or of this function find an invalid value.
    """
    if hasattr(estimator, "_parameter_constraints"):  # scikit-learn, and packages that follow it
        estimator._validate_params()
    takes = get_tags(estimator).input_tags
    # In scikit-learn 1.6, some estimators for sparse features lack the tag.
    takes_sparse = takes.sparse or "sparse" in (estimator.fit.__doc__ or "")
    if sparse.issparse(X) and not takes_sparse:
        raise InputError(
            f"{type(estimator).__name__} takes no sparse rows; got {X.shape[0]} sparse rows; use "
            "another estimator"
        )
    finite: Any = "allow-nan" if takes.allow_nan else True
    check_rows(X, check_array, accept_sparse=True, ensure_all_finite=finite)


def fit_external(title: str, path: str, estimator: Any, X: Any) -> Fit:
    """Fit an external estimator.

    Parameters
    ----------
    title : str
        Name in reports.
    path : str
        Import path of the class.
    estimator : estimator
        Estimator with the method ``fit``, and with ``fit_predict``, ``predict`` or ``labels_``.
    X : array or sparse matrix of shape (n_samples, n_features)
        Features. The function fits a copy, since some estimators change X.

    Returns
    -------
    Fit
        The fit, without an objective, since objectives of other packages are not comparable.
        ``seconds`` is the time from the call of `fit` until the labels exist.

    Raises
    ------
    nrprob.exceptions.InputError
        If the estimator raises an exception; the message is the message of the exception.
    """
    # Measure the time until the labels exist; memberships are computed afterwards.
    rows = X.copy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            start = time.perf_counter()
            labels = np.asarray(_fit_labels(estimator, rows))
            seconds = time.perf_counter() - start
            says = hasattr(estimator, "predict_proba")
            membership = np.asarray(estimator.predict_proba(rows)) if says else None
        except Exception as error:
            raise InputError(one_line(error)) from error
    n = rows.shape[0]
    if labels.ndim not in (1, 2) or len(labels) != n:
        raise InputError(
            f"labels must have one entry per row; got shape {labels.shape} for {n} rows; use "
            "another estimator"
        )
    # Encode labels as integers; several columns are views, and -1 is noise.
    if labels.dtype.kind not in "iu":
        labels = np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    messages = [str(w.message) for w in caught] + [_NOISE] * bool((labels < 0).any())
    stopped = any(issubclass(w.category, ConvergenceWarning) for w in caught)
    views = labels.reshape(n, -1).T
    return Fit(
        title=title,
        method=path,
        parameters=estimator.get_params(deep=False),
        labels=labels,
        seconds=seconds,
        membership=membership if membership is None or membership.ndim == 2 else None,
        n_clusters=sum(np.unique(view[view >= 0]).size for view in views),
        converged=bool(getattr(estimator, "converged_", True)) and not stopped,
        n_iter=int(np.max(getattr(estimator, "n_iter_", None) or 0)),
        warnings=list(dict.fromkeys(messages)),
    )


def _fit_labels(estimator: Any, X: Any) -> Any:
    """Fit an estimator and return its labels, by ``fit_predict``, ``labels_`` or ``predict``."""
    if hasattr(estimator, "fit_predict"):
        return estimator.fit_predict(X)
    estimator.fit(X)
    return estimator.labels_ if hasattr(estimator, "labels_") else estimator.predict(X)
