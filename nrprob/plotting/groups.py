"""Read samples and labels for plots, and name groups, clusters and features.

The *code* of a sample is its group as an integer, a position among the distinct labels. Shapes: n
samples, m features.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from nrprob.data.design import Design, DesignEncoder
from nrprob.data.frames import extract_known, is_frame
from nrprob.data.labels import as_plain_array, is_missing
from nrprob.data.preparation.columns import kind_of_column
from nrprob.data.validation import check_rows
from nrprob.exceptions import short_repr
from nrprob.statistics.groups import merge_small_groups

_MAX_GROUPS = 20  # maximum number of groups in a plot; the smallest groups are merged


def read_rows(X: Any, known: Any) -> tuple[Any, Design, list[str] | None]:
    """Validate samples and known structure for a plot; return them, with the feature names.

    The samples (n, m) are floats, dense or CSR. Text of a frame becomes binary columns, and missing
    values are NaN. Arrays have no feature names (None).

    Raises
    ------
    ValueError
        If ``X`` is not a table in memory, has infinite values, or ``known`` has another length.
    """
    from sklearn.utils import check_array

    if len(getattr(X, "shape", (0, 0))) != 2 or not hasattr(X, "__len__"):
        raise ValueError(
            f"X must be a table of rows in memory; got a {type(X).__name__}; pass an array of two "
            "dimensions, a sparse matrix or a frame"
        )
    X, known = extract_known(X, known)
    names = [str(name) for name in X.columns] if is_frame(X) else None
    named = is_frame(X) and X.columns.is_unique
    if named and not all(kind_of_column(X[name]) == "number" for name in X):
        from nrprob.data.preparation.prepare import as_indicators

        ready = as_indicators(X)
        X, names = ready.X, ready.feature_names_
    rows = check_rows(
        X, check_array, accept_sparse="csr", dtype=(np.float64, np.float32),
        ensure_all_finite=True if sparse.issparse(X) else "allow-nan",
    )  # fmt: skip
    return rows, DesignEncoder("product").fit(known, rows.shape[0]), names


def adjust_for(design: Design) -> tuple[np.ndarray, np.ndarray | None]:
    """Return known groups (n,), and columns (n, q) of a linear regression on known structure.

    If there are covariates, the columns are the covariates and, if labels are known as well,
    indicators of the labels; there is no constant column. Without covariates, the columns are None.
    Raises ValueError for soft memberships.
    """
    if design.kind == "soft":
        raise ValueError(
            "features are adjusted for labels or covariates; got soft Memberships; pass hard labels"
        )
    groups = np.unique(design.labelings, axis=0, return_inverse=True)[1].ravel()
    return groups, None if design.matrix is None else design.matrix[:, 1:]


def distinct_labels(
    labels: Any, what: str, n_rows: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct labels, sorted, and the code (n,) of every sample.

    The code is the position of the label of the sample among the distinct labels. Categories of
    pandas keep their order. ``what`` is the name of the argument, for messages.

    Raises
    ------
    ValueError
        If there is not one label per sample, or labels are missing.
    """
    categories = getattr(getattr(labels, "dtype", None), "categories", None)
    labels = as_plain_array(labels, what)
    if labels.ndim != 1:
        raise ValueError(
            f"{what} must be one label per row; got shape {labels.shape}; pass a 1-D array"
        )
    if n_rows is not None and len(labels) != n_rows:
        raise ValueError(
            f"{what} must be one label per row; got {len(labels)} labels for {n_rows} rows; "
            "pass one label per row"
        )
    if is_missing(labels):
        raise ValueError(
            f"{what} must not have missing labels; got NaN, NaT or None; give such rows a separate "
            "label, or leave them out"
        )
    try:
        values, codes = np.unique(labels, return_inverse=True)
    except TypeError:  # numbers and strings have no common order
        values, codes = np.unique(labels.astype(str), return_inverse=True)
    if categories is not None:
        places = {str(category): i for i, category in enumerate(categories)}
        order = np.argsort([places[str(value)] for value in values])
        values, codes = values[order], np.argsort(order)[codes]
    return values, codes


def label_texts(values: Any, prefix: str) -> list[str]:
    """Convert labels to texts; ``prefix``, such as "cluster", precedes integers."""
    return [
        f"{prefix} {value}".strip() if isinstance(value, int | np.integer) else str(value)
        for value in values
    ]


def named_labels(
    labels: Any, what: str, prefix: str = "", n_rows: int | None = None
) -> tuple[list[str], np.ndarray]:
    """Return the names of the distinct labels, and the position (n,) of every sample's name.

    Beyond 20 groups, the smallest are merged. See `distinct_labels` and `label_texts` for the
    arguments.
    """
    values, codes = distinct_labels(labels, what, n_rows)
    return merge_small_groups(label_texts(values, prefix), codes, _MAX_GROUPS)


def named_groups(design: Design, prefix: str = "group") -> tuple[list[str], np.ndarray]:
    """Return the names of the known groups, and the position (n,) of every sample's name.

    Without known labels, all samples are in one group. ``prefix`` precedes integers.
    """
    if design.kind != "labels":
        return ["all rows"], np.zeros(design.n_samples, int)
    if design.labelings.shape[1] == 1:
        values = np.array([label for (label,) in design.group_labels])
        return named_labels(values[design.codes], "known", prefix)
    names = [", ".join(map(str, labels)) for labels in design.group_labels]
    return merge_small_groups(names, design.codes, _MAX_GROUPS)


def with_sizes(names: Sequence[str], codes: np.ndarray, between: str = "\n") -> list[str]:
    """Append the number of samples of every group to the name of the group.

    ``codes`` (n,) are the groups of the samples, as positions in ``names``. ``between`` is the text
    between name and number.
    """
    sizes = np.bincount(codes, minlength=len(names))
    return [f"{name}{between}n = {size}" for name, size in zip(names, sizes, strict=True)]


def feature_texts(names: Sequence[Any] | None, columns: Sequence[str] | None, n: int) -> list[str]:
    """Names of ``n`` features: ``names``, or ``columns`` of a frame, or else numbers.

    Raises
    ------
    ValueError
        If there is not one name per feature.
    """
    if names is None:
        return [f"feature {j}" for j in range(n)] if columns is None else [*columns]
    return check_names(names, "feature_names", n, "column")


def check_names(values: Any, what: str, n: int, unit: str) -> list[str]:
    """Validate ``n`` names of rows or columns, and convert them to strings.

    Raises
    ------
    TypeError
        If ``values`` is not a list or array.
    ValueError
        If there is not one name per ``unit``, such as "row" or "column".
    """
    names = values if isinstance(values, list | tuple) else getattr(values, "tolist", None)
    names = names() if callable(names) else names
    if not isinstance(names, list | tuple):
        raise TypeError(
            f"{what} must be a list or an array of names; got {short_repr(values)}; pass one name "
            f"per {unit}"
        )
    if len(names) != n:
        raise ValueError(
            f"{what} must have one name per {unit}; got {len(names)} names for {n} {unit}s; pass "
            f"one name per {unit}"
        )
    return [str(name) for name in names]


def check_texts(**texts: Any) -> None:
    """Validate titles and other texts, which are passed by the names of their arguments.

    Raises
    ------
    TypeError
        If a text is not a string.
    ValueError
        If a text has surrogate characters.
    """
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a string; got {short_repr(text)}; pass a string")
        if not text.isascii() and re.search("[\ud800-\udfff]", text):
            raise ValueError(
                f"{name} must not have surrogate characters; got some; decode the text again"
            )
