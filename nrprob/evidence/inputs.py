"""Validate the estimator, the features and the known groups of a significance test.

Shapes: n samples, m features; n_distinct samples without exact copies.
"""

from __future__ import annotations

import inspect
import numbers
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator

from nrprob.data.copies import Copies
from nrprob.data.design import DesignEncoder
from nrprob.data.feature_types import describe_discrete, guess_features
from nrprob.data.frames import extract_known
from nrprob.data.validation import check_rows
from nrprob.estimator.density import (
    DensityEstimator,
    LabelInitialised,
    TableDensityEstimator,
    TableRefitter,
)
from nrprob.evidence.shared_density import SharedCovarianceMixture

_MIN_MEDIAN_SIZE = 10  # smallest median number of samples of the known groups


class TooFewRows(ValueError):
    """Error for too few samples, in total or in known groups, for a significance test."""


class Samples(NamedTuple):
    """Validated samples of a test.

    Attributes
    ----------
    rows : (n, m) features
    codes : (n,) known groups as integers; None without known groups
    names : names of the known groups
    copies : sets of exact copies among the samples
    """

    rows: np.ndarray
    codes: np.ndarray | None
    names: list[str]
    copies: Copies

    def without_copies(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Features (n_distinct, m) and known groups (n_distinct,) of the distinct samples."""
        first = self.copies.first
        return self.rows[first], None if self.codes is None else self.codes[first]


def as_density_estimator(estimator: Any) -> Any:
    """Return an estimator with a density of samples.

    The result is ``estimator`` itself if it defines a density. Otherwise it is a Gaussian mixture
    with one covariance, whose components are the clusters of the estimator.

    Raises
    ------
    TypeError
        If the estimator is not a scikit-learn estimator, or has no density and lacks an integer
        parameter ``n_clusters`` or a method `fit`.
    ValueError
        If the estimator has no density, and models features that are not continuous.
    """
    _check_clusterer(estimator)
    if isinstance(estimator, DensityEstimator):
        return estimator
    number = estimator.get_params(deep=False).get("n_clusters")
    if not isinstance(number, numbers.Integral) or not hasattr(estimator, "fit"):
        raise TypeError(
            "estimator must be a clusterer with the parameter n_clusters, an integer; got "
            f"{type(estimator).__name__}; use for example ConditionalMixture"
        )
    _check_feature_model(estimator)
    return SharedCovarianceMixture.from_estimator(estimator)


def reason_without_test(estimator: Any, X: Any) -> str:
    """Why no significance test exists for an estimator and features; empty if there may be one.

    The function fits nothing. Samples and known groups may still be too few for a test.
    """
    if sparse.issparse(X):
        return "X is sparse, and tests need dense continuous features"
    try:
        as_density_estimator(estimator)
        if not isinstance(estimator, TableDensityEstimator):
            _validate_features(X, allow_discrete=False)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def has_confidence(estimator: Any, X: Any) -> bool:
    """Whether `nrprob.evidence.confidence` accepts the type of an estimator and of its features."""
    is_refitted = isinstance(estimator, LabelInitialised | TableDensityEstimator)
    return is_refitted and not reason_without_test(estimator, X)


def validate_samples(
    estimator: Any, X: Any, known: Any = None, n_folds: int = 5, allow_discrete: bool = False
) -> Samples:
    """Validate the samples and the known groups, and detect exact copies.

    With ``allow_discrete``, counts, binary features and features of few values are accepted. Equal
    samples of discrete features do not count as copies, since they can agree by chance.

    Raises
    ------
    TypeError, ValueError
        If the estimator, the samples or the known groups cannot be tested.
    """
    _check_estimator(estimator)
    if known is not None:
        check_accepts_known(estimator)
    X, known = extract_known(X, known)
    rows = _validate_features(X, allow_discrete)
    if getattr(estimator, "features", "gaussian") == "auto" and isinstance(
        estimator, DensityEstimator
    ):
        kind = guess_features(rows)
        if kind != "gaussian":
            raise ValueError(
                f"{type(estimator).__name__} would model these samples as {kind} features, for "
                "which there is no test; got features='auto'; set features='gaussian'"
            )
    codes, names = _encode_groups(known, len(rows))
    groups = np.zeros(len(rows), int) if codes is None else codes
    discrete = allow_discrete and describe_discrete(rows) is not None
    copies = Copies.no_copies(len(rows)) if discrete else Copies.from_samples(rows, groups)
    _check_group_sizes(groups[copies.first], n_folds, copies)
    return Samples(rows, codes, names, copies)


def table_samples(refits: TableRefitter, known: Any, n_folds: int) -> Samples:
    """Validate the samples of a table whose model a `TableRefitter` refits.

    ``known`` are the known labels. Exact copies agree in all columns. Without numeric columns, no
    samples count as copies, since discrete values can agree by chance. Samples with missing values
    do not count as copies, either.
    """
    groups, values = refits.groups, refits.values
    names = _encode_groups(known, len(groups))[1]
    copies = Copies.no_copies(len(groups))
    if values is not None:
        copies = Copies.from_table(values, groups)
    if copies.first.size < 2 * n_folds:
        raise TooFewRows(
            f"too few samples to test; got {copies.first.size} distinct samples for "
            f"n_folds={n_folds}; pass more samples, or a smaller n_folds"
        )
    rows = np.zeros((len(groups), 0)) if values is None else values
    return Samples(rows, groups, names, copies)


def labels_of_fit(estimator: Any, n: int) -> np.ndarray | None:
    """Cluster labels (n,) of an estimator; None unless it was fitted to ``n`` samples."""
    labels = np.asarray(getattr(estimator, "labels_", ()))
    return labels if labels.shape == (n,) and labels.dtype.kind in "iu" else None


def _check_estimator(estimator: Any) -> None:
    """Raise TypeError for an estimator without a density of continuous features."""
    _check_clusterer(estimator)
    if not isinstance(estimator, DensityEstimator):
        raise TypeError(
            "estimator must define a density of continuous features; got "
            f"{type(estimator).__name__}; use ConditionalMixture, or MixtureEM without known groups"
        )
    _check_feature_model(estimator)


def _check_clusterer(estimator: Any) -> None:
    if not isinstance(estimator, BaseEstimator):
        raise TypeError(
            f"estimator must be a clusterer; got {type(estimator).__name__}; "
            "pass for example ConditionalMixture()"
        )


def check_accepts_known(estimator: Any) -> None:
    """Raise TypeError if `fit` of a clusterer takes no ``known``.

    If the clusterer has an attribute ``estimator``, `fit` of this wrapped clusterer is checked.
    """
    estimator = getattr(estimator, "estimator", estimator)
    fit = getattr(type(estimator), "fit", None)
    parameters = () if fit is None else inspect.signature(fit).parameters.values()
    if not any(p.name == "known" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise TypeError(
            f"{type(estimator).__name__} takes no known structure; known groups or earlier "
            "clusterings cannot be passed to its fit; use ConditionalMixture or CCIB"
        )


def _check_feature_model(estimator: Any) -> None:
    features = getattr(estimator, "features", "auto")
    if features not in ("auto", "gaussian"):
        raise ValueError(
            f"features must be continuous for this test; got features={features!r}; use "
            "features='gaussian' for continuous features; for counts and binary features there "
            "is no test"
        )


def _validate_features(X: Any, allow_discrete: bool) -> np.ndarray:
    """Validate samples (n, m) of continuous features, and return them in float32 or float64."""
    from sklearn.utils import check_array

    if sparse.issparse(X):
        raise TypeError(
            "X must be dense, with continuous features; got a sparse matrix; pass X.toarray() "
            "if it holds measurements; for counts there is no test"
        )
    rows = check_rows(X, check_array, dtype=[np.float64, np.float32], input_name="X")
    if allow_discrete:
        return rows
    if (kind := describe_discrete(rows)) is not None:
        raise ValueError(
            f"clusters are tested in continuous features only; got {kind}, which have no "
            "Gaussian density; compare clusterings by nrprob.metrics or by their objectives"
        )
    return rows


def _encode_groups(known: Any, n: int) -> tuple[np.ndarray | None, list[str]]:
    """Return the known groups (n,) of ``n`` samples as integers, and the names of the groups.

    Without known labels, the groups are None.
    """
    design = DesignEncoder("product").fit(known, n)
    if design.kind == "nothing":
        return None, ["all rows"]
    if design.kind != "labels":
        raise ValueError(
            f"known structure must be labels; got {design.description}; pass the "
            "most probable label of every sample, or cut a continuous covariate into ranges"
        )
    return design.codes, [", ".join(map(str, labels)) for labels in design.group_labels]


def _check_group_sizes(groups: np.ndarray, n_folds: int, copies: Copies) -> None:
    """Raise TooFewRows if known groups have too few distinct samples.

    Every group needs one sample per fold, and the median size must be ten or more.
    """
    sizes = np.bincount(groups)
    once = ", if copies are counted once" if groups.size < copies.set_index.size else ""
    if sizes.min() < n_folds:
        raise _too_few_rows(sizes, f"{once}, for n_folds={n_folds}")
    check_median_size(groups, once)


def check_median_size(groups: np.ndarray, remark: str = "") -> None:
    """Raise TooFewRows if the known groups (n,) have a median size below ten samples."""
    sizes = np.bincount(groups)
    if np.median(sizes) < _MIN_MEDIAN_SIZE:
        raise _too_few_rows(sizes, remark)


def _too_few_rows(sizes: np.ndarray, remark: str) -> TooFewRows:
    return TooFewRows(
        "too few rows per known group to test for structure; got a smallest group of "
        f"{sizes.min()} rows and a median of {np.median(sizes):g}{remark}; merge known groups, so "
        f"that they have {_MIN_MEDIAN_SIZE} rows or more"
    )
