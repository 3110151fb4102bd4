"""Check that an estimator, features and known groups can be tested."""

from __future__ import annotations

import inspect
import numbers
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator

from nrprob.data.feature_types import guess_features, no_cloud
from nrprob.data.frames import take_out
from nrprob.data.validation import check_rows
from nrprob.estimator.density import DensityEstimator
from nrprob.evidence.copies import Copies
from nrprob.evidence.shared_density import LabelledClouds
from nrprob.known import described, read

_FEWEST = 10  # rows of the median known group


class TooFewRows(ValueError):
    """Known groups are too small to test anything within them."""


class Samples(NamedTuple):
    """Validated samples.

    Attributes
    ----------
    rows : (n, m) features
    codes : (n,) known groups as numbers; None if nothing is known
    names : names of the known groups
    copies : sets of exact copies
    """

    rows: np.ndarray
    codes: np.ndarray | None
    names: list[str]
    copies: Copies

    def distinct(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Features and known groups of the first sample of every set of copies."""
        first = self.copies.first
        return self.rows[first], None if self.codes is None else self.codes[first]


def as_density(estimator: Any) -> Any:
    """An estimator with a density: itself, or clouds about the clusters of one that has none.

    Raises
    ------
    TypeError
        If it is no clusterer of a number of clusters.
    """
    _check_clusterer(estimator)
    if isinstance(estimator, DensityEstimator):
        return estimator
    number = estimator.get_params(deep=False).get("n_clusters")
    if not isinstance(number, numbers.Integral) or not hasattr(estimator, "fit"):
        raise TypeError(
            "this needs a clusterer with a number of clusters, n_clusters; got "
            f"{type(estimator).__name__}; use for example ResidualMixture"
        )
    _check_features(estimator)
    return LabelledClouds.of(estimator)


def testable(
    estimator: Any, X: Any, known: Any = None, n_folds: int = 5, any_values: bool = False
) -> Samples:
    """Validate the samples and the known groups, and find exact copies.

    With ``any_values``, counts, zeros and ones and columns of few values are rows as well. Equal
    samples of such values are no copies.

    Raises
    ------
    TypeError, ValueError
        If these cannot be held out and tested.
    """
    _check_estimator(estimator)
    if known is not None:
        check_takes_known(estimator)
    X, known = take_out(X, known)
    rows = _rows(X, any_values)
    if getattr(estimator, "features", "gaussian") == "auto" and isinstance(
        estimator, DensityEstimator
    ):
        kind = guess_features(rows)
        if kind != "gaussian":
            raise ValueError(
                f"{type(estimator).__name__} takes these rows for {kind} features, which have no "
                "test; got features='auto'; set features='gaussian'"
            )
    codes, names = _groups(known, len(rows))
    groups = np.zeros(len(rows), int) if codes is None else codes
    discrete = any_values and no_cloud(rows) is not None
    copies = Copies.none(len(rows)) if discrete else Copies.find(rows, groups)
    _check_sizes(groups[copies.first], n_folds, copies)
    return Samples(rows, codes, names, copies)


def labels_of_fit(estimator: Any, n: int) -> np.ndarray | None:
    """Cluster labels (n,) of an estimator that was fitted to as many samples, else None."""
    labels = np.asarray(getattr(estimator, "labels_", ()))
    return labels if labels.shape == (n,) and labels.dtype.kind in "iu" else None


def _check_estimator(estimator: Any) -> None:
    """Refuse what has no density of rows."""
    _check_clusterer(estimator)
    if not isinstance(estimator, DensityEstimator):
        raise TypeError(
            "this needs a clusterer with a density of real rows; got "
            f"{type(estimator).__name__}; use ResidualMixture, or MixtureEM if nothing is known"
        )
    _check_features(estimator)


def _check_clusterer(estimator: Any) -> None:
    if not isinstance(estimator, BaseEstimator):
        raise TypeError(
            f"estimator must be a clusterer; got {type(estimator).__name__}; "
            "pass for example ResidualMixture()"
        )


def check_takes_known(estimator: Any) -> None:
    """Refuse a clusterer, or what stands for one, whose `fit` takes no known structure."""
    estimator = getattr(estimator, "estimator", estimator)
    fit = getattr(type(estimator), "fit", None)
    taken = () if fit is None else inspect.signature(fit).parameters.values()
    if not any(one.name == "known" or one.kind is one.VAR_KEYWORD for one in taken):
        raise TypeError(
            f"{type(estimator).__name__} takes no known structure; known groups or earlier "
            "clusterings cannot be passed to its fit; use ResidualMixture or CCIB"
        )


def _check_features(estimator: Any) -> None:
    features = getattr(estimator, "features", "auto")
    if features not in ("auto", "gaussian"):
        raise ValueError(
            f"rows can be of real features only; got features={features!r}; use "
            "features='gaussian' for real numbers; for counts and zeros and ones there is no test"
        )


def _rows(X: Any, any_values: bool) -> np.ndarray:
    """Rows of real numbers, in float32 or float64."""
    from sklearn.utils import check_array

    if sparse.issparse(X):
        raise TypeError(
            "rows have to be dense, of real numbers; got a sparse matrix; pass X.toarray() "
            "if it holds measurements; for counts there is no test"
        )
    rows = check_rows(X, check_array, dtype=[np.float64, np.float32], input_name="X")
    if any_values:
        return rows
    if (kind := no_cloud(rows)) is not None:
        raise ValueError(
            f"clusters are tested in real numbers only; got {kind}, which are "
            "no cloud whatever there is; compare clusterings by metrics or by their objectives"
        )
    return rows


def _groups(known: Any, n: int) -> tuple[np.ndarray | None, list[str]]:
    """Known groups (n,) as numbers, or None, and their names."""
    read_ = read(known, n)
    if read_.kind == "soft" or read_.modelled:
        raise ValueError(
            f"known structure has to be labels; got {described(read_.given)}; pass labels, "
            "such as the most probable ones, or a number cut into ranges"
        )
    if read_.kind == "nothing":
        return None, ["all rows"]
    return read_.groups.codes, _group_names(read_)


def _check_sizes(groups: np.ndarray, n_folds: int, copies: Copies) -> None:
    """Refuse known groups of too few distinct samples."""
    sizes = np.bincount(groups)
    if np.median(sizes) < _FEWEST or sizes.min() < n_folds:
        once = ", if copies are counted once" if groups.size < copies.of.size else ""
        raise TooFewRows(
            "too few rows per known group to test for structure; got groups of "
            f"{sizes.min()} rows at least, {np.median(sizes):g} in the median{once}, for "
            f"n_folds={n_folds}; merge known labels, so that groups have {_FEWEST} rows or more"
        )


def _group_names(known: Any) -> list[str]:
    """What the user calls the groups."""
    labels = [list(categories) for categories in known.categories]
    combinations = known.product[1]
    return [
        ", ".join(str(names[c]) for names, c in zip(labels, codes, strict=True))
        for codes in combinations
    ]
