"""Recommend an estimator for a table and its known structure, and state the reason."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator

from nrprob.data.annotated import (
    AnnotatedRows,
    describe_counts,
    has_counts,
    is_annotated,
    name_features,
)
from nrprob.data.column_kinds import CONSTANT, NUMBER, infer_kinds
from nrprob.data.design import Design, DesignEncoder
from nrprob.data.feature_types import kind_of
from nrprob.data.frames import (
    check_same_order,
    extract_known,
    is_frame,
    is_table,
    quote_names,
)
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

# If the combinations of known labels have fewer samples than this on average, the effects of the
# labelings are additive.
_SAMPLES_PER_GROUP = 20


def recommend(
    X: Any, *, known: Any = None, y: Any = None, n_clusters: int | None = None
) -> BaseEstimator:
    """Recommend an estimator for the types of the features and of the known structure.

    Parameters
    ----------
    X : array-like, sparse matrix, JAX array or frame of shape (n_samples, n_features)
        Features. Values may be missing, and a frame may contain text. A frame is prepared by
        `prepare`, with a warning about changes. Columns that cannot be features are left out.
    known : array-like, optional
        Known structure, in any form that `fit` accepts: labels, covariates or memberships.
    y : array-like of shape (n_samples,) or (n_samples, 1), optional
        Target labels; the label -1 marks unlabelled samples.
    n_clusters : int, optional
        Number of clusters. By default, the number of classes in ``y``, or 2 without ``y``.
        `nrprob.evidence.n_clusters` chooses this number by the data.

    Returns
    -------
    estimator
        Unfitted estimator. Parameters that the recommendation does not set have their defaults. The
        attribute ``reason_`` states the reason in a sentence. Clones do not have this attribute.

    Raises
    ------
    ValueError
        If ``X`` is not two-dimensional, has infinite values, or is sparse with negative entries. If
        ``known`` or ``y`` has another number of samples than ``X``. If ``known`` holds covariates
        or memberships, and ``X`` contains text or missing values.

    See Also
    --------
    explore : Find several clusterings, by default with the recommended estimators.
    prepare : Prepare a frame for a fit.

    Notes
    -----
    `recommend` fits nothing. The recommendation depends only on types, zeros and sizes:

    - `ConditionalMixture` for tables with text or missing values;
    - `MixtureEM` for counts or binary features with target labels and without known structure;
    - `ResidualSpectral` for all other counts;
    - `CCIB` for binary features. `ResidualSpectral` replaces `CCIB` if the known structure needs a
      linear model, and ``X`` is sparse or has too few samples for this model;
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
    if is_annotated(X) and (text := describe_counts(X)):
        warn(text)
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
        X, known = ready.frame, ready.known
    return choose_estimator(X, known=known, y=y, n_clusters=n_clusters)


def choose_estimator(
    X: Any,
    *,
    known: Any = None,
    y: Any = None,
    n_clusters: int | None = None,
    name: str | None = None,
) -> BaseEstimator:
    """Recommend an estimator as `recommend` does, without preparing a frame.

    ``name`` names the features in the reason; by default it is "X", or the selected part of
    annotated data.
    """
    if name is None:
        name = name_features(X.layer, X.obsm) if isinstance(X, AnnotatedRows) else "X"
    X, known = extract_known(X, known)
    X, mixed = _check_table(X)
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
    # Types of the known structure and of the features.
    design = DesignEncoder("product").fit(known, n)
    has_groups = design.kind in ("nothing", "labels")
    if mixed and not has_groups:
        raise ValueError(
            "known structure other than labels needs complete numeric columns; got "
            f"{design.description}, and {mixed}; pass the result of prepare(X, "
            "categories='indicators', missing='mean'), or cut covariates into groups"
        )
    kind = "mixed" if mixed else kind_of(X)
    n_effects, multi = _count_effects(design)
    # Continuous covariates and additive effects need a linear model. CCIB fits this model per
    # feature and cluster, to dense samples only.
    needs_removal = n_effects > 0 and (sparse.issparse(X) or n_effects * n_clusters >= n)
    estimator, reason = _choose_estimator(
        kind, known is not None, bool(len(classes)), n_clusters, needs_removal, mixed,
        are_integers=kind != "counts" or has_counts(X), name=name,
    )  # fmt: skip
    if isinstance(estimator, ConditionalMixture) and (n_effects or not has_groups):
        # In discrete columns, `ConditionalMixture` estimates one effect per combination of labels,
        # but neither additive effects nor effects of covariates.
        discrete = bool(mixed) or not {*infer_kinds(X)} <= {NUMBER, CONSTANT}
        if discrete and has_groups:
            n_effects = 0
        elif discrete:
            estimator.set_params(categorical=[], ordered=[])
            reason += "; columns with few values count as numeric, since known is not labels"
    if isinstance(estimator, MixtureEM) and kind == "counts":
        estimator.set_params(features="multinomial")  # even if weights of terms are not integers
    if n_effects and multi == "additive":
        estimator.set_params(multi="additive")
        reason += (
            "; combinations of the known labelings have too few samples, so the effects of the "
            "labelings are additive"
        )
    estimator.reason_ = reason + reason_for_number
    return estimator


def _prepare_frame(X: Any, known: Any) -> tuple[Prepared, list[str]]:
    """Prepare a frame; return the result, and a list of texts about problems.

    Samples with infinite values and columns that cannot be features are left out, and are listed
    among the problems.
    """
    problems: list[str] = []
    missing = "keep"
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
    kind: str, has_known: bool, has_labels: bool, k: int, needs_removal: bool, mixed: str, *,
    are_integers: bool, name: str,
) -> tuple[Any, str]:  # fmt: skip
    """Return the recommended estimator, unfitted, and the reason.

    ``kind`` is the type of the features, ``k`` the number of clusters, and ``mixed`` a description
    of text and missing values of ``X``, or empty. ``needs_removal`` states whether the known
    structure needs a linear model that `CCIB` cannot fit, so that the effects of known structure
    have to be removed before the fit. ``are_integers`` states whether counts are integers, and
    ``name`` names the features.
    """
    what = {
        "counts": (
            f"{name} holds counts"
            if are_integers
            else f"{name} is sparse, and its weights are fitted as counts"
        ),
        "binary": f"{name} holds binary features",
        "real": f"{name} is a table of continuous features",
        "mixed": f"{name} has {mixed}",
    }[kind]
    if has_labels and not has_known and kind in ("counts", "binary"):
        return MixtureEM(k), (
            f"{what}, and some samples have labels: MixtureEM learns from labelled and "
            "unlabelled samples"
        )
    if kind == "counts":
        return ResidualSpectral(k), (
            f"{what}: ResidualSpectral removes the effects of known structure from transformed "
            "counts, and combines many spectral clusterings of the residuals"
        )
    if kind == "binary" and needs_removal:
        return ResidualSpectral(k), (
            f"{what}, and known structure has continuous covariates or additive effects: "
            "ResidualSpectral removes these effects from sparse or few samples"
        )
    if kind == "binary":
        return CCIB(k), (
            f"{what}: CCIB conditions on known structure, with a Bernoulli model of every feature"
        )
    if mixed:
        return ConditionalMixture(k), (
            f"{what}: ConditionalMixture fits numeric and discrete columns together, uses samples "
            "with missing values, and estimates the effects of known structure"
        )
    if has_labels and not has_known:
        # Labels determine the clusters, so that few restarts suffice.
        return ConditionalMixture(k, n_init=10), (
            f"{what}, and some samples have labels: ConditionalMixture fits one cluster per class "
            "to labelled and unlabelled samples, with a common covariance, which takes few samples"
        )
    return ConditionalMixture(k), (
        f"{what}: ConditionalMixture estimates the effects of known structure, and fits clusters "
        "with a common covariance, so that directions of small variance count as well"
    )


def _check_table(X: Any) -> tuple[Any, str]:
    """Check that ``X`` is two-dimensional and finite; describe its text and its missing values.

    Returns the table and the description. A sparse ``X`` stays sparse, and a frame with text stays
    a frame. All other input becomes an array. The description is empty without text and missing
    values.
    """
    from sklearn.utils import check_array

    if isinstance(X, jax.Array):
        X = np.asarray(X)
    names = [*X.columns] if is_frame(X) else []
    texts = [name for name in names if X[name].dtype == "category"]
    numeric = X.drop(columns=texts) if texts else X
    if not texts or numeric.shape[1]:
        finite = True if sparse.issparse(X) else "allow-nan"
        numeric = check_rows(
            numeric, check_array, accept_sparse="csr", dtype="numeric",
            ensure_all_finite=finite,
        )  # fmt: skip
    if sparse.issparse(numeric):
        if numeric.nnz and numeric.data.min() < 0:
            raise ValueError(
                "sparse X must not have negative entries, since effects of known structure cannot "
                f"be removed from such samples; got {numeric.data.min():g}; pass X.toarray(), "
                "or use CCIB for known labels"
            )
        return numeric, ""
    missing = X.isna().to_numpy() if texts else np.isnan(np.asarray(numeric, np.float64))
    if missing.all():
        raise ValueError(
            "X must hold values; got missing values (NaN) only; pass a table with values"
        )
    incomplete = np.flatnonzero(missing.any(0))
    parts = [f"text in {quote_names(texts)}"] if texts else []
    if incomplete.size and not names:
        parts.append("missing values")
    elif incomplete.size:
        parts.append(f"missing values in {quote_names([names[j] for j in incomplete])}")
    return X if texts else numeric, " and ".join(parts)


def _count_effects(design: Design) -> tuple[int, str]:
    """Count the effects in a linear model of the known structure; also return ``multi``.

    A linear model is needed for continuous covariates, and for several labelings whose combinations
    have too few samples. In all other cases, known groups are used directly, and the number of
    effects is 0. ``multi`` is the value of the parameter ``multi`` of the estimator.
    """
    if design.columns is not None:
        return design.columns.shape[1], "product"
    several = design.labelings.shape[1] > 1
    if several and design.n_groups * _SAMPLES_PER_GROUP > design.n_samples:
        return int(design.labelings.max(0).sum()), "additive"
    return 0, "product"
