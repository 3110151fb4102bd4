"""Recommend an estimator for the data at hand, with the reason."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator

from nrprob.data.design import DesignEncoder
from nrprob.data.feature_types import kind_of
from nrprob.data.frames import check_same_order, extract_known, is_table
from nrprob.data.labels import read_labels
from nrprob.data.preparation.prepare import Prepared, prepare_table
from nrprob.data.preparation.record import MissingValues, UnfitColumns
from nrprob.data.storage.stored import refuse_stored
from nrprob.data.validation import CLUSTERS, check_number, check_rows
from nrprob.exceptions import warn
from nrprob.methods.bottleneck.ccib import CCIB
from nrprob.methods.conditional.estimator import ConditionalMixture
from nrprob.methods.conditional.spectral import ResidualSpectral
from nrprob.methods.mixture.em import MixtureEM

__all__ = ["recommend"]

# Below this mean number of samples per combination of labels, effects of labelings are additive.
_SAMPLES_PER_GROUP = 20


def recommend(
    X: Any, *, known: Any = None, y: Any = None, n_clusters: int | None = None
) -> BaseEstimator:
    """Recommend an estimator by the type of the features and of the known structure.

    Parameters
    ----------
    X : array-like, sparse matrix, JAX array or frame of shape (n_samples, n_features)
        A frame is prepared by `prepare`, with a warning. Rows with missing values and columns that
        are no features are left out.
    known : array-like, optional
        Known structure, in any form that `fit` takes.
    y : array-like of shape (n_samples,) or (n_samples, 1), optional
        Target labels; -1 marks unlabelled samples.
    n_clusters : int, optional
        Number of clusters. By default the number of classes in ``y``, or 2 without ``y``; use
        `nrprob.evidence.n_clusters` to choose it by the data.

    Returns
    -------
    estimator
        Unfitted estimator. Parameters that do not depend on the recommendation have their defaults.
        The attribute ``reason_`` gives the reason in a sentence; clones do not have it.

    Raises
    ------
    ValueError
        If ``X`` is not a table of finite numbers; if ``X`` is sparse with negative entries; or if
        ``known`` or ``y`` have another number of samples.

    See Also
    --------
    explore : Find several clusterings, by default with the recommended estimators.
    prepare : Prepare a frame for a fit.

    Notes
    -----
    Nothing is fitted. The recommendation depends on types, zeros and sizes only:

    - `MixtureEM` for target labels without known structure;
    - `ResidualSpectral` for counts;
    - `CCIB` for binary features with known groups, or `ResidualSpectral` if the known structure
      needs a linear model that CCIB cannot fit to sparse or few samples;
    - `ConditionalMixture` for all other tables.

    ``benchmarks/realdata.py`` compares estimators on tables and counts.

    Examples
    --------
    >>> from nrprob import recommend
    >>> from nrprob.datasets import make_cell_counts
    >>> X, labels = make_cell_counts(100, 50, random_state=0)
    >>> model = recommend(X, known=labels[:, 0], n_clusters=4)
    >>> type(model).__name__, model.n_clusters
    ('ResidualSpectral', 4)
    """
    refuse_stored(X, "recommend")
    check_same_order(X, y=y)
    if is_table(X):
        ready, problems = _prepare_frame(X, known)
        for line in problems:
            warn(f"X has to go through nrprob.prepare before a fit; {line}")
        if ready.notes:
            warn(f"X should go through nrprob.prepare before a fit; {'; '.join(ready.notes)}")
        for line in ready.warnings:
            warn(line)
        if y is not None:
            read_labels(y, len(X))
            y = np.asarray(y)[ready.rows_]
        X, known = ready.X, ready.known
    X, known = extract_known(X, known)
    X = _check_table(X)
    n = X.shape[0]
    classes = np.empty(0) if y is None else read_labels(y, n)[0]
    if n_clusters is not None:
        check_number("n_clusters", n_clusters, low=1, high=CLUSTERS, integer=True)
        reason_for_number = ""
    elif len(classes):
        n_clusters = len(classes)
        reason_for_number = f"; {n_clusters} clusters are the classes in y"
    else:
        n_clusters = 2
        reason_for_number = "; 2 clusters are a guess, since n_clusters is None"
    kind, (n_effects, multi) = kind_of(X), _count_effects(known, n)
    # CCIB fits a linear model of every feature in every cluster, to dense samples only.
    needs_removal = n_effects > 0 and (sparse.issparse(X) or n_effects * n_clusters >= n)
    estimator, reason = _choose_estimator(
        kind, known is not None, bool(len(classes)), n_clusters, needs_removal
    )
    if isinstance(estimator, MixtureEM) and kind == "counts":
        estimator.set_params(features="multinomial")  # weights of terms need not be integers
    if n_effects and multi == "additive":
        estimator.set_params(multi="additive")
        reason += (
            "; combinations of the known labelings have too few rows, so the effects of the "
            "labelings are added up"
        )
    estimator.reason_ = reason + reason_for_number
    return estimator


def _prepare_frame(X: Any, known: Any) -> tuple[Prepared, list[str]]:
    """Prepare a frame without incomplete rows and unfit columns, and list these problems."""
    problems: list[str] = []
    missing = "error"
    drop: list[str] = []
    while True:
        try:
            return prepare_table(X, known=known, missing=missing, drop=drop), problems
        except MissingValues as error:
            problems.append(str(error))
            missing = "drop"
        except UnfitColumns as error:
            problems.append(str(error))
            drop = error.columns


def _choose_estimator(
    kind: str, has_known: bool, has_labels: bool, k: int, needs_removal: bool
) -> tuple[Any, str]:
    """Unfitted estimator, and the reason."""
    what = {
        "counts": "X holds counts",
        "binary": "X holds binary features",
        "real": "X is a table of continuous features",
    }[kind]
    if has_labels and not has_known:
        return MixtureEM(k), (
            f"{what}, and some rows have labels: MixtureEM learns from labelled and unlabelled rows"
        )
    if kind == "counts":
        return ResidualSpectral(k), (
            f"{what}: ResidualSpectral removes the effects of known structure from transformed "
            "counts, and combines many spectral clusterings of the residuals"
        )
    if kind == "binary" and needs_removal:
        return ResidualSpectral(k), (
            f"{what}, and known structure has continuous covariates or additive effects: "
            "ResidualSpectral removes these effects from sparse or few rows"
        )
    if kind == "binary":
        return CCIB(k), (
            f"{what}: CCIB conditions on known structure, with a Bernoulli model of every feature"
        )
    return ConditionalMixture(k), (
        f"{what}: ConditionalMixture estimates the effects of known structure, and fits clusters "
        "with a common covariance, so that directions of small variance count as well"
    )


def _check_table(X: Any) -> Any:
    """Check that ``X`` is 2-D and finite; a sparse ``X`` stays sparse."""
    from sklearn.utils import check_array

    if isinstance(X, jax.Array):
        X = np.asarray(X)
    X = check_rows(X, check_array, accept_sparse="csr", dtype="numeric")
    if sparse.issparse(X) and X.nnz and X.data.min() < 0:
        raise ValueError(
            "sparse X must not have negative entries, since effects of known structure cannot be "
            f"removed from such rows; got {X.data.min():g}; pass X.toarray(), or use CCIB for "
            "known labels"
        )
    return X


def _count_effects(known: Any, n: int) -> tuple[int, str]:
    """Return the number of effects in a linear model of ``known``, and the parameter ``multi``.

    The number is 0 if known groups can be used directly. A linear model is needed for continuous
    covariates, and for labelings whose combinations have too few samples.
    """
    design = DesignEncoder("product").fit(known, n)
    if design.columns is not None:
        return design.columns.shape[1], "product"
    several = design.labelings.shape[1] > 1
    if several and design.n_groups * _SAMPLES_PER_GROUP > n:
        return int(design.labelings.max(0).sum()), "additive"
    return 0, "product"
