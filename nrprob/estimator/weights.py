"""Sample weights: `fit` with ``sample_weight``, and labels of samples of weight 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from nrprob.data.validation import check_sample_weight, count_samples
from nrprob.known import Memberships


class WeightedMixin:
    """Mixin whose `fit` takes ``known`` and ``sample_weight``; bases list it before `Clusterer`."""

    def fit(self, X, y=None, *, known=None, sample_weight=None):
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like, sparse matrix, JAX array, frame or AnnData of shape (n_samples, n_features)
            Features. Float32 input is computed in float32, and all other input in float64. Of
            AnnData, the estimator uses ``X``, or the part that `nrprob.rows_of` selects. Some
            estimators accept sparse matrices, and rows that do not fit into memory
            (`nrprob.stored`).
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown. Cluster i corresponds to the i-th of the sorted
            labels; further clusters have no label.
        known : array-like, optional
            Known structure: labels of shape (n_samples,), or several labelings as a 2-D array of
            integers or strings. Some estimators accept soft `nrprob.known.Memberships`; some accept
            continuous covariates (a 2-D array of floats, or a frame with float columns and label
            columns). If ``X`` is a frame or AnnData, ``known`` may also be a column name or a list
            of column names (of ``obs`` in AnnData). These columns are then not features.
        sample_weight : array-like of shape (n_samples,), optional
            Frequency weights, from 0 to 1e9: a sample of weight 2 counts as two equal samples, and
            all sizes are sums of weights. Scale weights of another type to a mean of 1. A
            sample of weight 0 takes no part in the fit and gets the label of `predict`. By default,
            all weights are 1.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data are invalid, or do not suit the parameters.
        """
        model: Any = self
        return model._fit(X, y, known=known, sample_weight=sample_weight)


def take_samples(values: Any, indices: np.ndarray) -> Any:
    """Select samples ``indices`` of an array, frame, list, sparse matrix or soft memberships."""
    if isinstance(values, Memberships):
        return Memberships(values.probabilities[indices])
    return _safe_indexing(values, indices)


def entries_with_weight(model: Any, values: np.ndarray) -> np.ndarray:
    """Drop the entries of samples of weight 0 from a parameter with one entry per sample.

    ``model`` is the estimator that is being fitted. Arrays with another number of entries are
    returned unchanged.
    """
    mask = model._has_weight
    return values if mask is None or values.shape[:1] != mask.shape else values[mask]


def fit_weighted(model: Any, X: Any, y: Any, sample_weight: Any, keywords: dict[str, Any]) -> None:
    """Fit the samples of positive weight, and label samples of weight 0 by `predict`.

    Parameters
    ----------
    model : estimator that takes ``sample_weight``
    X, y : n samples, and their partial labels
    sample_weight : weights (n,) of the samples
    keywords : known structure, as a keyword of `Clusterer.prepare`

    Raises
    ------
    ValueError
        If the weights are invalid, or `predict` raises for a sample of weight 0.
    """
    n = count_samples(X)
    weights = check_sample_weight(sample_weight, n)
    keywords = {name: values for name, values in keywords.items() if values is not None}
    if weights.all():
        model._fit_samples(X, y, sample_weight=weights, **keywords)
        return
    for name, values in {"y": y, **keywords}.items():
        if values is not None and count_samples(values) != n:
            raise ValueError(
                f"{name} must have one entry per sample; got {count_samples(values)} entries for "
                f"{n} samples; pass one entry per row of X"
            )
    model._has_weight = weights > 0
    present, absent = np.flatnonzero(weights), np.flatnonzero(weights == 0)
    fitted = {name: take_samples(values, present) for name, values in keywords.items()}
    labels = None if y is None else take_samples(y, present)
    model._fit_samples(take_samples(X, present), labels, sample_weight=weights[present], **fitted)
    others = {name: take_samples(values, absent) for name, values in keywords.items()}
    try:
        _label_absent(model, take_samples(X, absent), others)
    except ValueError as error:
        raise ValueError(f"a sample of weight 0 gets the label of predict; {error}") from None


def _label_absent(model: Any, X: Any, known: dict[str, Any]) -> None:
    """Insert predictions for the samples ``X`` of weight 0 into the fitted attributes.

    In ``restarts_``, these samples have the label -1.
    """
    mask = model._has_weight

    def insert_samples(values: np.ndarray, predicted: Any) -> np.ndarray:
        out = np.empty((len(mask), *values.shape[1:]), values.dtype)
        out[mask], out[~mask] = values, predicted
        return out

    labels, membership = model.predict(X, **known), model.predict_proba(X, **known)
    if np.isin(model.membership_, (0, 1)).all():
        membership = np.eye(model.membership_.shape[1])[labels]
    model.labels_ = insert_samples(model.labels_, labels)
    model.membership_ = insert_samples(model.membership_, membership)
    structure = known.get(model.capabilities.known_as)
    for name, value in model._absent_values(X, structure).items():
        setattr(model, name, insert_samples(getattr(model, name), value))
    by_sample = insert_samples(model._restarts.labels.T, -1)
    model._restarts = model._restarts._replace(labels=by_sample.T)
