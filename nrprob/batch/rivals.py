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

__all__ = ["check_rival", "fit_rival"]

_NOISE = "some rows are noise, -1, which measures take for one more cluster"


def check_rival(estimator: Any, X: Any) -> None:
    """Refuse parameters and rows that the estimator would refuse, as far as it says which.

    Raises
    ------
    ValueError, TypeError
        In the words of its package, or ours.
    """
    if hasattr(estimator, "_parameter_constraints"):  # scikit-learn's own, and who follows it
        estimator._validate_params()
    takes = get_tags(estimator).input_tags
    # Not all that take sparse rows have the tag in scikit-learn 1.6.
    takes_sparse = takes.sparse or "sparse" in (estimator.fit.__doc__ or "")
    if sparse.issparse(X) and not takes_sparse:
        raise InputError(
            f"{type(estimator).__name__} takes no sparse rows; got {X.shape[0]} of them; use "
            "another estimator"
        )
    finite: Any = "allow-nan" if takes.allow_nan else True
    check_rows(X, check_array, accept_sparse=True, ensure_all_finite=finite)


def fit_rival(title: str, path: str, estimator: Any, X: Any) -> Fit:
    """Fit an estimator of another package.

    Parameters
    ----------
    title : str
        Name in reports.
    path : str
        Its import path.
    estimator : estimator
        With ``fit``, and ``fit_predict``, ``predict`` or ``labels_``.
    X : array or sparse matrix of shape (n_samples, n_features)
        The rows; a copy is fitted, since some estimators change what they are given.

    Returns
    -------
    Fit
        Without an objective: that of another package is in other units, and of other things. Its
        seconds are those of the fit until it has labels.

    Raises
    ------
    nrprob.exceptions.InputError
        With what the estimator raises, whatever that is.
    """
    rows = X.copy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            start = time.perf_counter()
            labels = np.asarray(_labels(estimator, rows))
            seconds = time.perf_counter() - start
            says = hasattr(estimator, "predict_proba")
            membership = np.asarray(estimator.predict_proba(rows)) if says else None
        except Exception as error:
            raise InputError(one_line(error)) from error
    n = rows.shape[0]
    if labels.ndim not in (1, 2) or len(labels) != n:
        raise InputError(
            f"its labels are not those of the rows; got shape {labels.shape} for {n} rows; use "
            "another estimator"
        )
    if labels.dtype.kind not in "iu":
        labels = np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    messages = [str(one.message) for one in caught] + [_NOISE] * bool((labels < 0).any())
    stopped = any(issubclass(one.category, ConvergenceWarning) for one in caught)
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


def _labels(estimator: Any, X: Any) -> Any:
    """Clusters of the rows, by whichever way an estimator has to say them."""
    if hasattr(estimator, "fit_predict"):
        return estimator.fit_predict(X)
    estimator.fit(X)
    return estimator.labels_ if hasattr(estimator, "labels_") else estimator.predict(X)
