"""Recommend an estimator for the data at hand, with the reason."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator

from nrprob.data.design import DesignEncoder
from nrprob.data.feature_types import kind_of
from nrprob.data.frames import check_same_order, is_table, take_out
from nrprob.data.preparation.prepare import Prepared, prepared
from nrprob.data.preparation.record import MissingValues, UnfitColumns
from nrprob.data.storage.stored import refuse_stored
from nrprob.data.validation import CLUSTERS, check_number, check_rows
from nrprob.estimator.base import read_labels
from nrprob.exceptions import warn
from nrprob.methods.bottleneck.ccib import CCIB
from nrprob.methods.conditional.mixture import ResidualMixture
from nrprob.methods.conditional.spectral import ResidualSpectral
from nrprob.methods.mixture.em import MixtureEM

__all__ = ["recommend"]

# Combinations of several labelings are used as they are while they have this many rows on average.
_ROWS_PER_GROUP = 20


def recommend(
    X: Any, *, known: Any = None, y: Any = None, n_clusters: int | None = None
) -> BaseEstimator:
    """Choose an estimator by the kind of the data and of what is known; nothing is fitted.

    Parameters
    ----------
    X : array-like, sparse matrix, JAX array or frame of shape (n_samples, n_features)
        Of a frame, it looks at what `prepare` makes of it, and warns of what that is: of rows with
        gaps and columns that are no features as well, which it leaves out.
    known : array-like, optional
        Structure to avoid, in any form that `fit` takes.
    y : array-like of shape (n_samples,) or (n_samples, 1), optional
        Wanted labels, -1 where unknown.
    n_clusters : int, optional
        Number of clusters; None is the number of classes in ``y``, or 2 without them. It is not
        chosen by the data.

    Returns
    -------
    estimator
        Unfitted, with all parameters that were not decided here at their defaults. Its attribute
        ``reason_`` says in a sentence why it was chosen; clones do not have it.

    Raises
    ------
    ValueError
        If ``X`` is not a table of finite numbers, or is sparse with negative entries, of which
        what is known cannot be removed; or if ``known`` or ``y`` have another number of rows.

    See Also
    --------
    explore : one clustering after another, by default with what this function recommends.

    Notes
    -----
    The choice looks at types, zeros and sizes only, never at how well an estimator fits.
    `benchmarks/realdata.py` has the figures behind what tables and counts get.

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
        ready, refused = _ready(X, known)
        for line in refused:
            warn(f"X has to go through nrprob.prepare before a fit; {line}")
        if ready.notes:
            warn(f"X should go through nrprob.prepare before a fit; {'; '.join(ready.notes)}")
        for line in ready.warnings:
            warn(line)
        if y is not None:
            read_labels(y, len(X))
            y = np.asarray(y)[ready.rows_]
        X, known = ready.X, ready.known
    X, known = take_out(X, known)
    X = _table(X)
    n = X.shape[0]
    classes = np.empty(0) if y is None else read_labels(y, n)[0]
    if n_clusters is not None:
        check_number("n_clusters", n_clusters, low=1, high=CLUSTERS, integer=True)
    if n_clusters is None:
        n_clusters = max(len(classes), 1) if len(classes) else 2
        number = (
            f"{n_clusters} clusters are the classes in y"
            if len(classes)
            else "2 clusters are a guess, since n_clusters is not given"
        )
    else:
        number = ""
    kind, (columns, multi) = kind_of(X), _linear_columns(known, n)
    # CCIB fits a model of every column, in every cluster, to dense rows only.
    modelled = columns > 0 and (sparse.issparse(X) or columns * n_clusters >= n)
    estimator, reason = _choose(kind, known is not None, bool(len(classes)), n_clusters, modelled)
    if isinstance(estimator, MixtureEM) and kind == "counts":
        estimator.set_params(features="multinomial")  # weights of terms need not be whole
    if columns and multi == "additive":
        estimator.set_params(multi="additive")
        reason += (
            "; the combinations of the known labelings have too few rows each, so their effects "
            "are added up"
        )
    estimator.reason_ = f"{reason}; {number}" if number else reason
    return estimator


def _ready(X: Any, known: Any) -> tuple[Prepared, list[str]]:
    """What `prepare` makes of a frame without what it refuses; and why it does."""
    refused: list[str] = []
    missing = "error"
    drop: list[str] = []
    while True:
        try:
            return prepared(X, known=known, missing=missing, drop=drop), refused
        except MissingValues as error:
            refused.append(str(error))
            missing = "drop"
        except UnfitColumns as error:
            refused.append(str(error))
            drop = error.columns


def _choose(kind: str, told: bool, wanted: bool, k: int, modelled: bool) -> tuple[Any, str]:
    """The unfitted estimator for a kind of data and of knowledge, and the reason."""
    what = {"counts": "X holds counts", "binary": "X holds zeros and ones", "real": "X is a table"}[
        kind
    ]
    if wanted and not told:
        return MixtureEM(k), (
            f"{what} and nothing is known but labels of some rows: MixtureEM learns from them and "
            "from the other rows"
        )
    if kind == "counts":
        return ResidualSpectral(k), (
            f"{what}: ResidualSpectral takes what is known off damped counts, and finds what many "
            "spectral clusterings of the rest have in common"
        )
    if kind == "binary" and modelled:
        return ResidualSpectral(k), (
            f"{what} and what is known are numbers, or labelings whose effects add up: "
            "ResidualSpectral takes them off rows that are sparse, or few"
        )
    if kind == "binary":
        return CCIB(k), (
            f"{what}: CCIB conditions on what is known, with a Bernoulli model of every column"
        )
    return ResidualMixture(k), (
        f"{what} of real numbers or measurements: ResidualMixture takes off what is known and fits "
        "clusters with a common covariance, so that directions of small variance count as well"
    )


def _table(X: Any) -> Any:
    """``X`` with shape and finite numbers; sparse stays sparse."""
    from sklearn.utils import check_array

    if isinstance(X, jax.Array):
        X = np.asarray(X)
    X = check_rows(X, check_array, accept_sparse="csr", dtype="numeric")
    if sparse.issparse(X) and X.nnz and X.data.min() < 0:
        raise ValueError(
            "sparse X must not have negative entries, since what is known of such rows cannot be "
            f"removed without filling them; found {X.data.min():g}; pass X.toarray(), or take CCIB"
            " for labels that are known"
        )
    return X


def _linear_columns(known: Any, n: int) -> tuple[int, str]:
    """Return the number of columns of the linear model that ``known`` needs, and ``multi``.

    It is 0 if groups serve: there are no covariates, and combinations of labels have enough rows.
    """
    design = DesignEncoder("product").fit(known, n)
    if design.columns is not None:
        return design.columns.shape[1], "product"
    several = design.labelings.shape[1] > 1
    if several and design.n_groups * _ROWS_PER_GROUP > n:
        return int(design.labelings.max(0).sum()), "additive"
    return 0, "product"
