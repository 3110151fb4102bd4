"""Checks of user input that other libraries would accept, or refuse with an unclear message."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from nrprob.data.annotated import is_annotated, matrix_of
from nrprob.data.frames import as_frame, is_frame, is_table, kind_of_value, quote_names
from nrprob.exceptions import short_repr

MOST = 2**31 - 1  # upper bound of sizes and counts
ENTRIES = 2**30  # upper bound of entries of a new array: 8 GiB of floats
ITERATIONS = 10**6  # upper bound of restarts, or of iterations of a loop
CLUSTERS = 10**6  # upper bound of clusters of one clustering
MOST_WEIGHT = 1e9  # upper bound of the weight of a sample
LARGEST = 1e140  # upper bound of a feature, whose sum of squares would otherwise overflow


def check_number(
    name: str,
    value: Any,
    *,
    low: float,
    high: float,
    integer: bool = False,
    infinite: bool = False,
) -> None:
    """Raise unless ``value`` is a number from ``low`` to ``high``, both included.

    With ``infinite``, infinity is allowed, too.

    Raises
    ------
    TypeError
        If ``value`` is not a number, or not an integer although ``integer`` is True.
    ValueError
        If ``value`` is below ``low``, or above ``high`` and not an allowed infinity.
    """
    kind: Any = numbers.Integral if integer else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kind):
        what = "an integer" if integer else "a number"
        raise TypeError(f"{name} must be {what}; got {short_repr(value)}; pass {what}")
    if not low <= value <= high and not (infinite and value == math.inf):
        besides = ", or infinite" if infinite else ""
        raise ValueError(
            f"{name} must be at least {low} and at most {high}{besides}; got {short_repr(value)}; "
            "choose a number in between"
        )


def check_entries(name: str, n_entries: float, remedy: str) -> None:
    """Check the size of a new array before it is allocated; ``remedy`` ends the message.

    Raises
    ------
    ValueError
        If the array would have more than `ENTRIES` entries.
    """
    if n_entries > ENTRIES:
        raise ValueError(
            f"{name} must have at most {ENTRIES} entries; got {short_repr(n_entries)}; {remedy}"
        )


def check_choice(name: str, value: Any, choices: tuple[str, ...], extra: str = "") -> None:
    """Raise unless ``value`` is one of the choices; ``extra`` describes further valid values.

    Raises
    ------
    ValueError
        If ``value`` is not among the choices.
    """
    if not isinstance(value, str) or value not in choices:
        words = ", ".join(map(repr, choices))
        raise ValueError(
            f"{name} must be one of {words} {extra}".rstrip() + f"; got {short_repr(value)}; "
            "choose one of these"
        )


def check_fitted(name: str, value: Any, what: str, *attributes: str) -> None:
    """Raise unless ``value`` is a fitted estimator with these attributes.

    ``name`` is the name of the argument. ``what`` describes, for the message, estimators that have
    the ``attributes``.

    Raises
    ------
    TypeError
        If an attribute is missing, or ``value`` is a class.
    """
    missing = [name for name in attributes if getattr(value, name, None) is None]
    if missing or isinstance(value, type):
        without = f" without {missing[0]}" if missing else ", a class"
        raise TypeError(
            f"{name} must be {what}, fitted; got {type(value).__name__}{without}; "
            "fit it first, or pass one that is fitted"
        )


def check_flag(name: str, value: Any) -> None:
    """Raise unless ``value`` is True or False.

    Raises
    ------
    TypeError
        If ``value`` is not a boolean.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False; got {short_repr(value)}; pass one of them")


def check_verbosity(name: str, value: Any) -> None:
    """Raise an error unless ``value`` is True, False or an integer from 0 to 1000."""
    if not isinstance(value, bool | np.bool_):
        check_number(name, value, low=0, high=1000, integer=True)


def check_rows(X: Any, validate: Callable[..., Any], **settings: Any) -> Any:
    """Validate the rows ``X`` by scikit-learn's ``validate(X, **settings)``, with clearer messages.

    Raises
    ------
    ValueError
        If ``X`` has masked entries, dates, text, columns with equal names, or sparse indices out of
        range; and any error of ``validate``.
    """
    # Convert tables of other libraries, and refuse input that scikit-learn would misinterpret.
    check_not_masked(X, "X")
    if is_annotated(X):
        X = matrix_of(X)
    elif is_table(X):
        X = as_frame(X)
    if sparse.issparse(X):
        _check_indices(X)
    frame = is_frame(X)
    if frame and not X.columns.is_unique:
        name = X.columns[X.columns.duplicated()][0]
        raise ValueError(
            f"X must have columns of different names; got {short_repr(name)} more than once; "
            "rename them"
        )
    if any(getattr(dtype, "kind", "") in ("m", "M") for _, dtype in _column_dtypes(X)):
        raise ValueError(_non_numeric_message(X))  # scikit-learn would use dates as numbers
    if frame and 0 in X.shape:
        X = np.empty(X.shape)  # scikit-learn has a message for this, but not for a frame
    # Validate, and replace unclear messages of scikit-learn.
    try:
        return validate(X, **settings)
    except OverflowError as error:
        raise ValueError(
            f"X must hold numbers within the range of floats; got {error}; divide them"
        ) from None
    except (ValueError, TypeError) as error:
        text = re.sub(".*'NAType'.*", "Input X contains NaN", str(error))  # pandas.NA in an array
        contains = re.match(r"Input .* contains (NaN|infinity)", text)
        if contains and (result := _not_finite(X, contains[1] == "NaN")):
            remedy = "leave out such rows by prepare(X, missing='drop'), or correct the values"
            if contains[1] == "NaN":
                remedy = (
                    "use ConditionalMixture, which takes missing values, or fill them in by "
                    "prepare(X, categories='indicators', missing='mean')"
                )
            raise ValueError(f"{contains[0]}; found {result}; {remedy}") from None
        if other := _non_numeric_message(X):
            raise ValueError(other) from None
        if other := _shape_message(text):
            raise ValueError(other) from None
        raise


def _shape_message(error: str) -> str:
    """Return a clearer message than scikit-learn's ``error``; empty if no rule matches the message.

    The messages that are replaced contain the values of X.
    """
    if result := re.match(r"Expected 2D array, got (\w+) array", error):
        # scikit-learn's estimator checks require the first words.
        return (
            f"Reshape your data, since X must be a 2D array; got a {result[1]} array; pass "
            "X.reshape(-1, 1) if X is one feature, or X.reshape(1, -1) if X is one sample"
        )
    if error.startswith("Complex data not supported"):
        return "Complex data not supported; got complex numbers in X; pass X.real, or drop them"
    return ""


def _not_finite(X: Any, missing: bool) -> str:
    """Describe where X has missing values or, unless ``missing``, infinite values, for a message.

    The text names the columns of a frame, or the first entry of an array. The text is empty if
    there are no such values.
    """
    import pandas as pd

    what, is_one = ("missing", pd.isna) if missing else ("infinite", np.isinf)
    if is_frame(X):
        named = [
            name
            for name, dtype in _column_dtypes(X)
            if (missing or _is_numeric(dtype)) and is_one(X[name]).any()
        ]
        return f"{what} values in {_format_columns(named)}" if named else ""
    if sparse.issparse(X):
        entries = X.tocoo()
        rows, columns = (indices[is_one(entries.data)] for indices in entries.coords)
    else:
        x = np.asarray(X)
        rows, columns = np.nonzero(is_one(x if missing or x.dtype.kind == "f" else x.astype(float)))
    if not rows.size:
        return ""  # a finite value overflows only in the type of the fit
    first, several = np.lexsort((columns, rows))[0], rows.size > 1
    where = f"{', the first' * several} in row {rows[first]}, column {columns[first]}"
    return f"{rows.size} {what} value{'s' * several}{where}"


_OTHERS = {
    "date": ("dates or times", "convert dates to numbers"),
    "text": (
        "text",
        "pass a frame with text to ConditionalMixture, or encode text by prepare(X, "
        "categories='indicators', missing='mean')",
    ),
    "object": ("lists or other objects", "convert objects to numeric columns"),
}


def _non_numeric_message(X: Any) -> str:
    """Message about columns with anything but numbers; empty if all columns are numeric."""
    kinds = {
        name: _value_kinds(X, name) for name, dtype in _column_dtypes(X) if not _is_numeric(dtype)
    }
    got, ways = [], []
    for kind, (what, instead) in _OTHERS.items():
        if kind == "object" and not is_frame(X):
            continue  # scikit-learn has a message for an array of objects
        if names := [name for name, values in kinds.items() if kind in values]:
            where = _format_columns(names) if is_frame(X) else f"dtype {np.asarray(X).dtype}"
            got.append(f"{what} ({where})")
            ways.append(instead)
    if not got:
        return ""
    return f"X must hold numbers; got {', '.join(got)}; {', '.join(ways)}, or drop them"


def _column_dtypes(X: Any) -> list[tuple[Any, Any]]:
    """List name and dtype of every column of a frame; for an array, None and its dtype."""
    return list(X.dtypes.items()) if is_frame(X) else [(None, getattr(X, "dtype", None))]


def _is_numeric(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "biufc"


def _value_kinds(X: Any, name: Any) -> set[str]:
    """Types of the values of the named column of a frame, or of all entries of an array."""
    values = X[name].to_numpy(object) if is_frame(X) else np.array(X, object)
    if values.ndim != 1 + (not is_frame(X)):
        return set()  # not a table
    return {kind_of_value(value) for value in values.flat}


def _format_columns(names: list[Any]) -> str:
    """Column names of a frame, for a message; empty without names."""
    return f"column{'s' * (len(names) > 1)} {quote_names(names)}" if names else ""


def as_array(values: Any, name: str) -> np.ndarray:
    """Convert ``values`` to an array.

    Raises
    ------
    ValueError
        If entries are masked, or rows have different lengths.
    """
    check_not_masked(values, name)
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(
            f"{name} must be an array; got a {type(values).__name__} of rows of different lengths; "
            "pass as many entries in each"
        ) from None


def as_number(value: Any, name: str) -> float:
    """Convert ``value`` to a float; infinity if it exceeds the range of floats.

    Raises
    ------
    TypeError
        If ``value`` is not a number.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real:
        raise TypeError(f"{name} must be a number; got {short_repr(value)}; pass a real number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_not_masked(values: Any, name: str) -> None:
    """Raise ValueError for masked entries, whose values other libraries would use."""
    if np.ma.is_masked(values):
        raise ValueError(
            f"{name} must not have masked entries; found {np.ma.count_masked(values)}; "
            "fill them, or drop their rows"
        )


def count_samples(X: Any) -> int:
    """Number of samples of an array, frame, list or sparse matrix, or of soft memberships."""
    from sklearn.utils.validation import _num_samples

    return _num_samples(getattr(X, "probabilities", X))


def check_sample_weight(sample_weight: Any, n: int) -> np.ndarray:
    """Validate the weights (n,) of n samples; return them in float64.

    Raises
    ------
    ValueError
        If there is not one weight per sample; if a weight is not a number, negative, infinite or
        above 1e9; or if no weight reaches 1e-9.
    """
    weights = as_array(sample_weight, "sample_weight")
    if weights.shape != (n,):
        raise ValueError(
            f"sample_weight must be 1D, with one weight per sample; got shape {weights.shape} for "
            f"{n} samples; pass one weight per row of X"
        )
    if weights.dtype.kind == "O":
        kinds = {kind_of_value(value) for value in weights}
        weights = weights.astype(float) if kinds <= {"number", "boolean"} else weights
    if weights.dtype.kind not in "biuf":
        raise ValueError(
            f"sample_weight must hold numbers; got dtype {weights.dtype}; pass one number per row"
        )
    weights = weights.astype(np.float64)
    wrong = ~((weights >= 0) & (weights <= MOST_WEIGHT))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"sample_weight must be from 0 to {MOST_WEIGHT:g}; got {weights[row]:g} at row {row}; "
            "replace negative, missing and infinite weights, or divide all weights"
        )
    if weights.max() < 1 / MOST_WEIGHT:
        raise ValueError(
            f"sample_weight must not be zero for all samples; got at most {weights.max():g}; "
            "give the samples that count a weight of 1"
        )
    return weights


def check_random_state(random_state: Any) -> np.random.RandomState:
    """Convert a seed to a RandomState as scikit-learn does, with a clearer message.

    Raises
    ------
    ValueError
        If ``random_state`` is neither a seed nor a random generator.
    """
    from sklearn.utils import check_random_state

    try:
        return check_random_state(random_state)
    except (ValueError, TypeError):  # scikit-learn's message contains the values of arrays
        raise ValueError(
            "random_state must be from 0 to 2**32 - 1, a RandomState or None; got "
            f"{short_repr(random_state)}; pass one of these"
        ) from None


def _check_indices(X: Any) -> None:
    """Raise ValueError if a sparse matrix is too large, or its index arrays are invalid."""
    if max(X.shape) >= 2**31:
        raise ValueError(
            f"sparse X must have fewer than 2**31 rows and columns; got shape {X.shape}; "
            "leave out columns that are empty"
        )
    # Pairs of an index array and the size of its axis. The row pointers of compressed formats are
    # checked first.
    pairs: list[tuple[Any, int]] = []
    if X.format == "coo":
        pairs = list(zip(X.coords, X.shape, strict=True))
    elif X.format in ("csr", "csc", "bsr"):
        n_major, n_minor = X.shape if X.format != "csc" else X.shape[::-1]
        if X.format == "bsr":
            n_major, n_minor = n_major // X.blocksize[0], n_minor // X.blocksize[1]
        ends = X.indptr
        if (
            len(ends) != n_major + 1
            or ends[0] != 0
            or (ends[1:] < ends[:-1]).any()
            or ends[-1] > min(len(X.indices), len(X.data))
        ):
            raise ValueError(
                "sparse X must have an indptr that starts at 0, never decreases, and ends at the "
                f"number of entries; got an invalid indptr for {len(X.indices)} entries; build the "
                "matrix again"
            )
        pairs = [(X.indices[: ends[-1]], n_minor)]
    for indices, size in pairs:
        if indices.size and not 0 <= indices.min() <= indices.max() < size:
            wrong = indices[(indices < 0) | (indices >= size)][0]
            raise ValueError(
                f"sparse X must have indices within its shape; got {wrong} for a size of {size}; "
                "build the matrix again"
            )
