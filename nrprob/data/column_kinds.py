"""Infer the kind of every column of a table: numeric, categorical, ordered, count or constant.

`ConditionalMixture` chooses the distribution of a column by its kind. In this module,
``cells`` are the values (n,) of a column of n rows, as `read_cells` returns them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nrprob.data.frames import is_frame, kind_of_value
from nrprob.exceptions import short_repr

NUMBER, CATEGORICAL, ORDERED, COUNT, CONSTANT = (
    "number", "categorical", "ordered", "count", "constant",
)  # fmt: skip
DISCRETE = CATEGORICAL, ORDERED, COUNT
# Maximum number of distinct values of a count column, and of a categorical column with rare values.
MOST_VALUES = 50
_FEW_VALUES = 12  # maximum number of distinct values of an ordered column of numbers
_MOST_COUNT = 100  # largest value of a count column
_IMAGE = 32  # minimum number of integer columns that are treated as the pixels of images
_LEAST_REPEATS = 5  # minimum mean number of samples per distinct value of a discrete column


def infer_kinds(X: Any) -> list[str]:
    """Infer the kind of every column of a frame, or of an array of floats, from its values."""
    return guess_kinds(X, read_cells(X)[1])


def guess_kinds(X: Any, cells: list[np.ndarray]) -> list[str]:
    """Infer the kind of every column of the table ``X``, whose column values are ``cells``."""
    kinds = [_guess_kind(X, j, cells[j]) for j in range(len(cells))]
    # Many integer columns are probably pixels of images. They are treated as numeric, since models
    # of discrete columns ignore correlations. In a frame, ordered columns do not count as pixels,
    # since they are probably items of a questionnaire.
    of_image = (COUNT,) if is_frame(X) else (ORDERED, COUNT)
    pixels = [j for j, kind in enumerate(kinds) if kind in of_image]
    if len(pixels) >= _IMAGE:
        types = {_column_type(X, j) for j in pixels}
        for j, kind in enumerate(kinds):
            # Pixels that are 0 or 1 belong to the image as well.
            is_binary_pixel = kind == CATEGORICAL and _column_type(X, j) in types
            is_number = kind in (ORDERED, COUNT) and cells[j].dtype.kind == "f"
            if is_number or (is_binary_pixel and _is_whole(cells[j])):
                kinds[j] = NUMBER
    return kinds


def _column_type(X: Any, j: int) -> Any:
    """Dtype of column ``j`` of a frame; None for an array, whose columns share one dtype."""
    return X.dtypes.iloc[j] if is_frame(X) else None


def _is_whole(cells: np.ndarray) -> bool:
    """Whether the values of a column are whole numbers of at least 0, and one of them is 0."""
    return cells.dtype.kind == "f" and _starts_at_zero(distinct_values(cells))


def _starts_at_zero(values: np.ndarray) -> bool:
    return bool(values[0] == 0 and (values == np.round(values)).all())


def read_cells(X: Any) -> tuple[list[Any], list[np.ndarray]]:
    """Return the names of the columns of a table, and the values (n,) of every column.

    Values are floats with NaN where missing, or objects with None where missing.

    Raises
    ------
    ValueError
        If a column holds dates or other objects.
    """
    if not is_frame(X):
        return list(range(X.shape[1])), list(np.asarray(X, np.float64).T)
    import pandas as pd

    cells = []
    for name in X.columns:
        # Columns of a numeric type are floats; all other columns are objects.
        column = X[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            values = column.astype(object).to_numpy(object)
        elif pd.api.types.is_bool_dtype(column.dtype):
            values = column.to_numpy(object)
        elif pd.api.types.is_numeric_dtype(column.dtype):
            cells.append(column.to_numpy(np.float64, na_value=np.nan))
            continue
        else:
            values = column.to_numpy(object)
        # Objects that are all numbers become floats; values of several types become text.
        missing = pd.isna(values)
        values = np.where(missing, None, values)
        kinds = {kind_of_value(v) for v in values[~missing].tolist()}
        if kinds & {"date", "object"}:
            dates = "date" in kinds
            raise ValueError(
                "X must hold numbers, booleans or text; got "
                f"{'dates or times' if dates else 'lists or other objects'} (column "
                f"{short_repr(name)}); convert the column to numbers, or drop it"
            )
        if kinds == {"number"}:
            cells.append(np.array([np.nan if v is None else float(v) for v in values]))
        else:
            if len(kinds) > 1:  # 1, True and "1" are three values
                values = np.array([None if v is None else str(v) for v in values], object)
            cells.append(values)
    return list(X.columns), cells


def distinct_values(cells: np.ndarray) -> np.ndarray:
    """Distinct values that are not missing, sorted if they are comparable."""
    if cells.dtype.kind == "f":
        return np.unique(cells[~np.isnan(cells)])
    values = list(dict.fromkeys(v for v in cells.tolist() if v is not None))
    try:
        return np.array(sorted(values), object)
    except TypeError:
        return np.array(values, object)


def hardly_repeat(n_values: int, n_seen: int) -> bool:
    """Whether a column has too many distinct values to be categorical.

    ``n_values`` is the number of distinct values, and ``n_seen`` the number of observed values.
    """
    rare = n_seen < _LEAST_REPEATS * n_values
    return rare and (n_values > MOST_VALUES or n_values > n_seen / 2)


def _guess_kind(X: Any, j: int, cells: np.ndarray) -> str:
    """Infer the kind of column j from its type and its distinct values."""
    values = distinct_values(cells)
    if len(values) <= 1:
        return CONSTANT
    if is_frame(X) and getattr(X.dtypes.iloc[j], "ordered", False):
        return ORDERED
    if cells.dtype.kind != "f" or len(values) == 2:
        return CATEGORICAL
    if is_frame(X) and hasattr(X.dtypes.iloc[j], "categories"):
        return CATEGORICAL
    if (~np.isnan(cells)).sum() < _LEAST_REPEATS * len(values):
        return NUMBER  # values of a discrete column would repeat more often
    if len(values) <= _FEW_VALUES:
        return ORDERED
    if _starts_at_zero(values) and len(values) <= MOST_VALUES and values[-1] <= _MOST_COUNT:
        return COUNT
    return NUMBER
