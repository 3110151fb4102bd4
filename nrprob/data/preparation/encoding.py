"""Encode columns of a table of n rows as features, and warn of suspicious features."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

from nrprob.data.column_kinds import NUMBER, infer_kinds
from nrprob.data.copies import Copies
from nrprob.data.frames import is_table, quote_names
from nrprob.data.labels import as_plain_array
from nrprob.data.preparation.columns import (
    as_numbers,
    is_binary,
    is_float,
    is_identifier,
    is_year,
    kind_of_column,
    missing_value_code,
)
from nrprob.data.preparation.record import Record
from nrprob.data.preparation.scales import Features
from nrprob.known import Memberships


def as_categories(column: pd.Series) -> pd.Series:
    """Convert a text column to pandas categories.

    A categorical column keeps the order of its categories. The values of any other column are
    sorted.
    """
    column = column.reset_index(drop=True)
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.remove_unused_categories()
    return column.astype(object).astype(pd.CategoricalDtype(_distinct_texts(column)))


def encode_features(
    columns: dict[str, pd.Series], n: int, is_frame: bool, missing: str, record: Record
) -> Features:
    """Encode columns of n rows as numeric features.

    Booleans become 0 and 1. A text column becomes one binary column per value, or a single binary
    column if it has two values. With ``missing="mean"``, the mean of the column replaces missing
    values. Notes about changes are added to ``record``.
    """
    names: list[str] = []
    parts: list[np.ndarray] = []
    is_number: list[bool] = []
    is_text: list[bool] = []
    kinds: dict[str, str] = {}
    for name, column in columns.items():
        # A numeric or boolean column is one feature; a text column becomes binary features.
        if (kind := kind_of_column(column)) not in ("text", "empty"):
            names.append(name)
            values = as_numbers(column)
            parts.append(_impute_mean(values) if missing == "mean" else values)
            is_number.append(not is_binary(values))
            is_text.append(kind == "boolean")
            if kind == "boolean":
                record.indicators[name] = (name, "false", "true")
            seen = values[~np.isnan(values)]
            kinds[name] = "constant" if not seen.size or np.ptp(seen) == 0 else kind
            continue
        indicators = _encode_text(name, column, missing, record)
        names += indicators
        parts += indicators.values()
        is_number += [False] * len(indicators)
        is_text += [True] * len(indicators)
    # Note constant and boolean columns, and refuse columns of equal names.
    if is_frame:
        constant = [name for name, kind in kinds.items() if kind == "constant"]
        record.note_columns(constant, "{} constant, without information, and kept")
    booleans = [name for name, kind in kinds.items() if kind == "boolean"]
    if not record.keeps:
        record.note_columns(booleans, "{} encoded as 0 for false and 1 for true")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(
            f"columns must have different names; got {quote_names(repeated)} twice, once as the "
            "binary column of a text value; rename a column"
        )
    # Join the columns; if text is kept, only columns of the kind "number" are measurements.
    dtype = np.float32 if {p.dtype for p in parts} == {np.dtype(np.float32)} else np.float64
    table = np.column_stack(parts).astype(dtype) if parts else np.empty((n, 0))
    if record.keeps and is_frame:
        is_number = [kind == NUMBER for kind in infer_kinds(pd.DataFrame(table, columns=names))]
    return Features(names, table, np.array(is_number, bool), np.array(is_text, bool))


def _encode_text(
    name: str, column: pd.Series, missing: str, record: Record
) -> dict[str, np.ndarray]:
    """Return the binary columns (n,) that encode the values of a text column of n rows, by name."""
    values = _distinct_texts(column)
    has_two = len(values) == 2
    is_missing = column.isna().to_numpy(bool)
    indicators: dict[str, np.ndarray] = {}
    for value in values[1:] if has_two else values:
        is_value = (column == value).to_numpy(bool, na_value=False).astype(np.float64)
        key = f"{name}={value}"
        indicators[key] = np.where(is_missing, np.nan, is_value)
        if missing == "mean":
            indicators[key] = _impute_mean(indicators[key])
        record.indicators[key] = (name, str(values[0]) if has_two else "", str(value))
    if len(values) > 1:
        shares = ", with the share of ones where missing" * bool(is_missing.any())
        columns = quote_names(indicators, 20)
        record.notes.append(f"text {name!r} became binary columns{shares}: {columns}")
    else:
        record.notes.append(f"{name!r} is constant in the remaining rows")
    return indicators


def warn_of_suspicious(features: Features, record: Record) -> None:
    """Warn of features that look like identifiers, years, or codes of missing values."""
    columns = list(zip(features.names, features.values.T, strict=True))
    if record.keeps:  # columns of few values are discrete, and not measurements
        columns = [c for c, number in zip(columns, features.is_number, strict=True) if number]
    columns = [(name, values[~np.isnan(values)]) for name, values in columns]
    years = [name for name, values in columns if is_year(name, values)]
    identifiers = [n for n, values in columns if n not in years and is_identifier(n, values)]
    for names, what in ((identifiers, "an identifier"), (years, "a year")):
        if names:
            subject = f"{'each of ' * (len(names) > 1)}{quote_names(names)}"
            record.warnings.append(
                f"features should be measurements; {subject} looks like {what}; if so, leave "
                f"the column{'s' * (len(names) > 1)} out with {record.say('drop', names)}"
            )
    outliers = []
    for name, values in columns:
        if (code := missing_value_code(values)) is not None:
            n = int((values == code).sum())
            outliers.append(f"{code:.10g} in {name!r} ({n} row{'s' * (n > 1)})")
    if outliers:
        record.warnings.append(
            "a value may be a code for missing values; got "
            f"{', '.join(outliers[:8])}{', ...' * (len(outliers) > 8)}, farther from the other "
            "values of the column than ten times their range; if so, leave these cells empty"
        )


def known_groups(known: Any) -> np.ndarray | None:
    """Codes (n,) of the combinations of known labels; None without known labels."""
    if known is None or isinstance(known, Memberships):
        return None
    labels = pd.DataFrame(known).reset_index(drop=True)
    labels = labels[[name for name in labels if labels[name].dtype.kind != "f"]]
    if not labels.shape[1]:
        return None
    return labels.groupby(list(labels), observed=True).ngroup().to_numpy()


def take_known_rows(known: Any, rows: np.ndarray, n: int) -> Any:
    """Select known structure by row, and convert it to a form that estimators accept.

    ``known`` is the known structure of n rows, and ``rows`` are the positions to select.
    """
    if known is None:
        return None
    if is_table(known):
        known = known.iloc[rows].reset_index(drop=True)
        integers = [name for name in known if str(known[name].dtype) == "Int64"]
        known = known.astype(dict.fromkeys(integers, np.int64))
        is_labeling = known.shape[1] == 1 and not is_float(known.iloc[:, 0])
        return known.iloc[:, 0].to_numpy() if is_labeling else known
    if len(rows) == n:
        return known
    if isinstance(known, Memberships):
        return Memberships(known.probabilities[rows])
    return as_plain_array(known, "known")[rows]


def warn_of_determined(columns: dict[str, pd.Series], known: Any, record: Record) -> None:
    """Warn of columns that vary among all rows, but are constant in every known group."""
    groups = known_groups(known)
    if groups is None or 2 * (groups.max() + 1) > len(groups):
        return  # with less than two rows per group on average, a column rarely varies within groups
    names = []
    for name, column in columns.items():
        values = column.reset_index(drop=True)
        if values.nunique() > 1 and values.groupby(groups).nunique().max() == 1:
            names.append(name)
    if names:
        record.warnings.append(
            f"features should vary within known groups; {quote_names(names)} "
            f"{'has' if len(names) == 1 else 'have'} only one value in each group; leave the "
            f"column{'s' * (len(names) > 1)} out with {record.say('drop', names)}"
        )


def note_copies(
    features: Features, texts: dict[str, pd.Series], known: Any, record: Record
) -> None:
    """Note how many rows are exact copies of earlier rows, if 5 % of the rows or more are copies.

    ``texts`` are the columns that became categories. Tables without a column of measurements get no
    note, since rows of discrete values can agree by chance.
    """
    if not features.names or NUMBER not in infer_kinds(features.values):
        return
    codes = [column.cat.codes.to_numpy(float) for column in texts.values()]
    codes = [np.where(column < 0, np.nan, column) for column in codes]
    groups = known_groups(known)
    n = len(features.values)
    copies = Copies.from_table(
        np.column_stack([features.values, *codes]), np.zeros(n, int) if groups is None else groups
    )
    if copies.are_many:
        record.notes.append(copies.note)


def _impute_mean(values: np.ndarray) -> np.ndarray:
    """Replace missing values of a column (n,) by the mean of the other values."""
    is_missing = np.isnan(values)
    return np.where(is_missing, values[~is_missing].mean(), values) if is_missing.any() else values


def _distinct_texts(column: pd.Series) -> list[Any]:
    """Distinct values of a text column, sorted; a categorical column keeps its order."""
    result = column.dropna().unique().tolist()
    if hasattr(column, "cat"):
        return [value for value in column.cat.categories if value in result]
    return sorted(result)
