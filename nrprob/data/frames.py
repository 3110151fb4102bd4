"""Recognise and convert data frames, and separate known columns from features."""

from __future__ import annotations

import datetime
import decimal
import numbers
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from nrprob.data.annotated import is_annotated, matrix_of
from nrprob.exceptions import short_repr

_FOREIGN = "dask"  # frames of dask may be larger than memory; see `nrprob.stored`


def is_pandas(values: Any) -> bool:
    """Whether ``values`` is a pandas frame or series."""
    return hasattr(values, "iloc") and hasattr(values, "index")


def is_frame(values: Any) -> bool:
    """Whether ``values`` is a pandas frame."""
    return is_pandas(values) and hasattr(values, "columns")


def is_table(values: Any) -> bool:
    """Whether ``values`` is a table with named columns, such as of pandas, polars or Arrow."""
    if is_pandas(values) or type(values).__module__.split(".")[0] == _FOREIGN:
        return is_frame(values)
    if hasattr(values, "__dataframe__"):
        return True
    # A single column of polars or Arrow also has a stream; it is treated as an array.
    column = hasattr(values, "__array__") and not hasattr(values, "columns")
    return hasattr(values, "__arrow_c_stream__") and not column


def as_frame(table: Any) -> Any:
    """Convert a table of any library to a pandas frame; a pandas frame is returned unchanged.

    Raises
    ------
    ValueError
        If only Arrow can read the table and pyarrow is not installed, or if pandas has no
        counterpart of a column.
    """
    if is_frame(table):
        return table
    import pandas as pd

    kind = f"{type(table).__module__.split('.')[0]}.{type(table).__name__}"
    try:
        import pyarrow as pa
    except ImportError:
        pa = None
    try:
        if pa is not None and hasattr(table, "__arrow_c_stream__"):
            return pa.table(table).to_pandas()
        if hasattr(table, "__dataframe__"):
            with warnings.catch_warnings():  # pandas warns the authors of the other library
                warnings.simplefilter("ignore")
                return pd.api.interchange.from_dataframe(table)
    except (AttributeError, TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"the table cannot be read; got {kind}: {reason}; pass a pandas frame or an array"
        ) from error
    raise ValueError(
        f"a table that only Arrow reads needs the package pyarrow; got {kind}; run "
        "pip install 'nrprob[parquet]', or pass a pandas frame"
    )


def float_columns(frame: Any, were_float: np.ndarray | None = None) -> np.ndarray:
    """Mask of the columns of a frame that hold floats.

    ``were_float`` masks the columns that held floats in `fit`; in these columns, integers count as
    floats, too.
    """
    kinds = np.array([getattr(dtype, "kind", "O") for dtype in frame.dtypes], str)
    if were_float is None or len(were_float) != len(kinds):
        return kinds == "f"
    return (kinds == "f") | (were_float & np.isin(kinds, ["i", "u"]))


def describe_columns(covariates: Sequence[Any], labels: Sequence[Any]) -> str:
    """List the names of the columns of floats and of the columns of labels, for a message."""
    parts = ("floats", covariates), ("labels", labels)
    return " and ".join(f"{what} in {quote_names(names)}" for what, names in parts if len(names))


def kind_of_value(value: Any) -> str:
    """Type of a value: "number", "boolean", "text", "date", "missing" or "object"."""
    import pandas as pd

    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, str):
        return "text"
    if isinstance(value, numbers.Real | decimal.Decimal):
        return "number"
    if value is None or value is pd.NA or value is pd.NaT:
        return "missing"
    moment = datetime.date | datetime.time | datetime.timedelta | np.datetime64 | np.timedelta64
    return "date" if isinstance(value, moment | pd.Period) else "object"


def column_names(known: Any) -> list[str]:
    """Column names in ``known``; empty if ``known`` holds the known structure itself."""
    if isinstance(known, str):
        return [known]
    named = isinstance(known, list | tuple) and known and all(isinstance(k, str) for k in known)
    return list(known) if named else []


def names_among(known: Any, columns: Sequence[Any], n_samples: int, what: str) -> list[str]:
    """Column names in ``known``; empty if ``known`` holds one label for every row.

    A list of ``n_samples`` strings counts as labels. ``what`` is the name of the argument, for
    messages.

    Raises
    ------
    ValueError
        If ``known`` names a column that is not in ``columns``, or names a column twice.
    """
    names = column_names(known)
    if not isinstance(known, str) and len(names) == n_samples:
        return []
    for name in names:
        if name not in columns:
            raise ValueError(
                f"{what} names a column that X does not have; got {short_repr(name)}, and X has "
                f"{quote_names(columns)}; name one of these, or pass one label per row"
            )
    if len(set(names)) < len(names):
        raise ValueError(
            f"{what} must name each column only once; got {quote_names(names)}; leave out the "
            "repetitions"
        )
    return names


def extract_known(X: Any, known: Any, what: str = "known") -> tuple[Any, Any]:
    """Separate features and known structure.

    If ``known`` names columns of ``X``, these columns are removed from ``X`` and returned as a
    frame. Tables of any library become pandas frames. Annotated data become their matrix, and
    ``known`` names columns of their ``obs``. All other input is returned unchanged.

    Parameters
    ----------
    X : input of the user: features, and perhaps known columns
    known : column names, or known structure of the n rows
    what : name of the argument ``known``, for messages

    Returns
    -------
    features, known : features without known columns, and known structure

    Raises
    ------
    ValueError
        If ``known`` names a column that does not exist, or has the index labels of ``X`` in another
        order.
    """
    if is_annotated(X):
        if names := names_among(known, X.obs.columns, len(X.obs), what):
            return split_columns(X, names, what)
        check_same_order(X, **{what: known})
        return matrix_of(X), known
    if is_table(X):
        X = as_frame(X)
        if names := names_among(known, X.columns, len(X), what):
            return split_columns(X, names, what)
    elif isinstance(known, str):
        raise ValueError(
            f"{what} names a column, and X has no columns with names; got {what}="
            f"{short_repr(known)} and a {type(X).__name__}; pass X as a frame, or one label per row"
        )
    check_same_order(X, **{what: known})
    return X, known


def split_columns(X: Any, names: list[str], what: str = "known") -> tuple[Any, Any]:
    """Split ``X`` into features without the named columns, and a frame of the named columns.

    In annotated data, the names are columns of ``obs``.

    Raises
    ------
    ValueError
        If no feature is left.
    """
    if is_annotated(X):
        return matrix_of(X), X.obs[names]
    X = as_frame(X)
    if len(names) == X.shape[1]:
        raise ValueError(
            f"no feature is left in X; got {what}={short_repr(names)} of columns "
            f"{quote_names(X.columns)}; pass a frame with further columns"
        )
    return X.drop(columns=names), X[names]


def has_columns(X: Any, names: list[str]) -> bool:
    """Whether ``X`` is a table, or annotated data, with columns of all these names."""
    if is_annotated(X):
        return set(names) <= {*X.obs.columns}
    return is_table(X) and set(names) <= {*as_frame(X).columns}


def check_same_order(X: Any, **others: Any) -> None:
    """Raise ValueError if another argument has the index labels of ``X`` in another order.

    Rows are matched by position. If an argument has other index labels than ``X``, its order cannot
    be checked.
    """
    X = X.obs if is_annotated(X) else X
    if not is_pandas(X):
        return
    for name, other in others.items():
        index: Any = getattr(other, "index", None)  # a list has a method of this name
        if not hasattr(index, "isin") or len(index) != len(X) or index.equals(X.index):
            continue
        if X.index.isin(index).all() and index.isin(X.index).all():
            raise ValueError(
                f"{name} must have its rows in the order of X; got the same index in another "
                f"order; pass {name}.loc[X.index], or {name}.to_numpy() if rows correspond by "
                "position"
            )


def quote_names(names: Any, most: int = 8) -> str:
    """List the first ``most`` names, quoted, for a message."""
    names = list(names)
    return ", ".join(map(short_repr, names[:most])) + (", ..." if len(names) > most else "")


def as_codes(frame: Any) -> tuple[Any, dict[Any, list[str]]]:
    """Encode the columns of a frame as numbers; also return the values of encoded columns.

    A column that is not numeric becomes a column of integer codes, NaN where a value is missing.
    The code of a value is its position in the list of original values.
    """
    import pandas as pd

    columns, values = {}, {}
    for j, name in enumerate(frame.columns):
        column = frame.iloc[:, j]
        dtype = column.dtype
        if pd.api.types.is_bool_dtype(dtype):
            as_floats = column.to_numpy(np.float64, na_value=np.nan)
            columns[j] = pd.Series(as_floats, index=frame.index)
            continue
        if pd.api.types.is_numeric_dtype(dtype):
            columns[j] = column
            continue
        try:
            codes, levels = pd.factorize(column)
        except TypeError as error:
            raise ValueError(
                f"X must hold numbers, booleans or text; got lists or other objects in column "
                f"{short_repr(name)}: {error}; convert the objects to numeric columns, or drop the "
                "column"
            ) from None
        values[name] = [str(level) for level in levels]
        columns[j] = pd.Series(np.where(codes < 0, np.nan, codes), index=frame.index)
    out = pd.DataFrame(columns, index=frame.index)
    out.columns = frame.columns
    return out, values
