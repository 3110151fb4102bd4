"""Names of groups, clusters and features in plots, and rows as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from nrprob.data.design import Design, DesignEncoder
from nrprob.data.frames import is_frame, take_out
from nrprob.data.labels import is_missing, plain
from nrprob.data.validation import check_rows
from nrprob.exceptions import short_repr
from nrprob.statistics.groups import merge_small_groups

_MAX_GROUPS = 20


def read_rows(X: Any, known: Any) -> tuple[Any, Design, list[str] | None]:
    """Rows as floats, dense or CSR; what is known of them; and the names of a frame's columns.

    Raises
    ------
    ValueError
        If rows are no table of finite numbers in memory, or what is known has another length.
    """
    from sklearn.utils import check_array

    if len(getattr(X, "shape", (0, 0))) != 2 or not hasattr(X, "__len__"):
        raise ValueError(
            f"X must be a table of rows in memory; got a {type(X).__name__}; pass an array of two "
            "dimensions, a sparse matrix or a frame"
        )
    X, known = take_out(X, known)
    names = [str(name) for name in X.columns] if is_frame(X) else None
    rows = check_rows(X, check_array, accept_sparse="csr", dtype=(np.float64, np.float32))
    return rows, DesignEncoder("product").fit(known, rows.shape[0]), names


def distinct(labels: Any, what: str, n_rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Distinct labels, sorted, and each row's position among them.

    Raises
    ------
    ValueError
        If they are not one label per row, or some are missing.
    """
    labels = plain(labels, what)
    if labels.ndim != 1:
        raise ValueError(
            f"{what} is one label per row; its shape is {labels.shape}; pass a 1-D array"
        )
    if n_rows is not None and len(labels) != n_rows:
        raise ValueError(
            f"{what} and the rows do not match; {len(labels)} labels for {n_rows} rows; "
            "pass one label per row"
        )
    if is_missing(labels):
        raise ValueError(
            f"{what} must not have missing labels; got NaN, NaT or None; give such rows a label of "
            "their own, or leave them out"
        )
    try:
        return np.unique(labels, return_inverse=True)
    except TypeError:  # numbers beside texts have no order
        return np.unique(labels.astype(str), return_inverse=True)


def texts(values: Any, prefix: str) -> list[str]:
    """Names of labels; `prefix` goes before bare numbers, which say nothing without a word."""
    whole = [isinstance(value, int | np.integer) for value in values]
    return [f"{prefix} {v}".strip() if w else str(v) for v, w in zip(values, whole, strict=True)]


def named(
    labels: Any, what: str, prefix: str = "", n_rows: int | None = None
) -> tuple[list[str], np.ndarray]:
    """Names of the distinct labels, and each row's position among them.

    Beyond a legible number the smallest groups are drawn as one.
    """
    values, codes = distinct(labels, what, n_rows)
    return merge_small_groups(texts(values, prefix), codes, _MAX_GROUPS)


def named_known(design: Design, prefix: str = "group") -> tuple[list[str], np.ndarray]:
    """Names of the known groups, and each row's position among them; one group without labels."""
    if design.kind != "labels":
        return ["all rows"], np.zeros(design.n_samples, int)
    if design.labelings.shape[1] == 1:
        values = np.array([label for (label,) in design.group_labels])
        return named(values[design.codes], "known", prefix)
    names = [", ".join(map(str, labels)) for labels in design.group_labels]
    return merge_small_groups(names, design.codes, _MAX_GROUPS)


def with_sizes(names: Sequence[str], codes: np.ndarray, between: str = "\n") -> list[str]:
    """Names with the numbers of their rows."""
    sizes = np.bincount(codes, minlength=len(names))
    return [f"{name}{between}n = {size}" for name, size in zip(names, sizes, strict=True)]


def feature_texts(given: Sequence[Any] | None, columns: Sequence[str] | None, n: int) -> list[str]:
    """Names (n,) of features: those that are given, or of the columns, or numbers.

    Raises
    ------
    ValueError
        If there is not one name for every feature.
    """
    if given is None:
        return [f"feature {j}" for j in range(n)] if columns is None else [*columns]
    return given_names(given, "feature_names", n, "column")


def given_names(given: Any, what: str, n: int, of: str) -> list[str]:
    """Names (n,) as strings.

    Raises
    ------
    TypeError
        If they are not in a list or an array.
    ValueError
        If there is not one name for each.
    """
    names = given if isinstance(given, list | tuple) else getattr(given, "tolist", None)
    names = names() if callable(names) else names
    if not isinstance(names, list | tuple):
        raise TypeError(
            f"{what} must be a list or an array of names; got {short_repr(given)}; pass one name "
            f"per {of}"
        )
    if len(names) != n:
        raise ValueError(
            f"{what} does not fit; got {len(names)} names for {n} {of}s; pass one name per {of}"
        )
    return [str(name) for name in names]


def check_texts(**texts: Any) -> None:
    """Refuse titles and other names that are not strings.

    Raises
    ------
    TypeError
        If one is something else.
    """
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a string; got {short_repr(text)}; pass a string")
        if not text.isascii() and re.search("[\ud800-\udfff]", text):
            raise ValueError(
                f"{name} must not have surrogate characters; got some; decode the text again"
            )
