"""Read labels as the user passes them, and encode them as integers (codes).

n is the number of samples.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from nrprob.data.validation import as_array
from nrprob.exceptions import short_repr

__all__ = [
    "are_blank", "are_minus_one", "as_labels", "check_hashable", "factorize", "is_missing",
    "list_examples", "read_labels", "refuse_own_groups", "as_plain_array",
]  # fmt: skip


def as_plain_array(values: Any, name: str) -> np.ndarray:
    """Convert labels or numbers to an array that preserves the types of the user's values.

    An array of objects becomes an array of floats if all entries are numbers and some are floats. A
    list of numbers and text becomes an array of objects, since NumPy would convert all entries to
    text.

    Raises
    ------
    ValueError
        If entries are masked, or rows have different lengths.
    """
    array = as_array(values, name)
    if array.dtype.kind in "US" and not isinstance(values, np.ndarray):
        objects = np.asarray(values, object)
        return array if len({type(v) for v in objects.flat}) == 1 else objects
    if array.dtype.kind != "O" or not all(isinstance(v, Real) for v in array.flat):
        return array
    fractions = any(isinstance(v, float | np.floating) for v in array.flat)
    return array.astype(float) if fractions else array


def is_missing(array: np.ndarray) -> bool:
    """Whether an array of labels contains NaN, NaT, None or a similar value."""
    if array.dtype.kind in "fc":
        return bool(np.isnan(array).any())
    if array.dtype.kind == "O":
        import pandas as pd

        return bool(pd.isna(array).any())
    return array.dtype.kind in "mM" and bool(np.isnat(array).any())


def are_blank(array: np.ndarray) -> np.ndarray:
    """Mask of the labels that are empty text or white space."""
    if array.dtype.kind in "US":
        return np.char.str_len(np.char.strip(array)) == 0
    if array.dtype.kind != "O":
        return np.zeros(array.shape, bool)
    blank = [isinstance(value, str | bytes) and not value.strip() for value in array.flat]
    return np.array(blank, bool).reshape(array.shape)


def are_minus_one(array: np.ndarray) -> np.ndarray:
    """Mask of the labels that are -1 (unknown), as a number or as text.

    NumPy converts the number to text if other labels are text.
    """
    if array.dtype.kind in "USO":  # as text, since pandas.NA does not compare
        return np.isin(array.astype(str), ("-1", "-1.0"))
    return np.asarray(array == -1, bool)


def as_labels(array: np.ndarray, where: str = "") -> np.ndarray:
    """Check the labels of a column, and return them; ``where`` names the column, for a message.

    Datetimes become objects, since NumPy would convert nanoseconds to integers.

    Raises
    ------
    ValueError
        If a label is missing, or labels cannot be compared.
    """
    if is_missing(array):
        raise ValueError(
            f"known labels must be non-missing; found NaN or None{where}; "
            "drop those rows or give them a group of their own"
        )
    if array.dtype.kind in "mM":
        import pandas as pd

        return pd.Series(array).to_numpy(object)
    check_hashable(array, where)
    return array


def refuse_own_groups(n_groups: int, n: int, where: str = "") -> None:
    """Raise an error if every known group has one row.

    ``n`` is the number of rows. ``where`` names the known structure, for the message.

    Raises
    ------
    ValueError
        If the number of groups equals the number of rows, and there is more than one row.
    """
    if n_groups == n > 1:
        raise ValueError(
            "every row has its own known group, so no clustering adds information; "
            f"got {n_groups} groups for {n} rows{where}; pass fewer groups"
        )


def check_hashable(array: np.ndarray, where: str = "") -> None:
    """Raise ValueError if labels, such as lists, cannot be compared.

    ``where`` names the column, for the message.
    """
    if array.dtype.kind != "O":
        return
    try:
        set(array.tolist())
    except TypeError as error:
        raise ValueError(
            "known labels must be numbers, text or other hashable values; got objects that cannot "
            f"be compared{where} ({error}); pass one number or text per row"
        ) from None


def read_labels(y: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted classes of partial labels, and the class (n,) of each sample.

    The class of a sample is its position among the sorted classes, or -1 if it has no label.

    Raises
    ------
    ValueError
        If ``y`` has the wrong length or shape, a missing label, or labels that cannot be sorted.
    """
    y = as_plain_array(y, "y")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (n,):
        raise ValueError(
            f"y must hold one label per row of X; got shape {y.shape} for {n} samples; "
            "pass -1 where the label is unknown"
        )
    infinite = y.dtype.kind in "fc" and not np.isfinite(y).all()
    if infinite or is_missing(y) or are_blank(y).any():
        raise ValueError(
            "y must not contain None, NaN, infinity or empty text; found one; "
            "mark unknown labels by -1"
        )
    labelled = ~are_minus_one(y)
    codes = np.full(n, -1, np.int32)
    try:
        classes, codes[labelled] = np.unique(y[labelled], return_inverse=True)
    except TypeError:
        types = sorted({type(value).__name__ for value in y[labelled].tolist()})
        raise ValueError(
            f"y must hold labels that can be sorted; got {', '.join(types)}; "
            "pass numbers, or text, with -1 where the label is unknown"
        ) from None
    return classes, codes


def factorize(array: np.ndarray) -> tuple[np.ndarray, dict[Any, int]]:
    """Number the distinct values, or distinct rows of values, by first appearance.

    Returns the codes (n,), and a dictionary from values to codes.
    """
    if array.dtype.kind == "O":
        categories: dict[Any, int] = {}
        codes = np.array([categories.setdefault(v, len(categories)) for v in array.tolist()], int)
        return codes, categories
    values, first, codes = np.unique(array, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.argsort(order)
    names = values[order].tolist()
    if array.ndim == 2:
        names = [tuple(name) for name in names]
    return rank[codes.reshape(-1)], {name: i for i, name in enumerate(names)}


def list_examples(values: Any) -> str:
    """List the first five values, for a message."""
    shown = [short_repr(v) for v, _ in zip(values, range(5), strict=False)]
    return ", ".join(shown) + (", ..." if len(values) > 5 else "")
