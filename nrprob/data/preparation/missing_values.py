"""Select complete rows, or keep or impute missing values, of a table of n rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.data.frames import is_table
from nrprob.data.labels import as_plain_array
from nrprob.data.preparation.columns import as_numbers, is_float, kind_of_column
from nrprob.data.preparation.record import MissingValues, Record
from nrprob.exceptions import short_repr
from nrprob.known import Memberships

if TYPE_CHECKING:
    import pandas as pd


def select_complete_rows(
    columns: dict[str, pd.Series],
    known_frame: pd.DataFrame | None,
    missing_known: np.ndarray | None,
    n: int,
    missing: str,
    record: Record,
) -> np.ndarray:
    """Select the rows to keep, by the treatment of missing and infinite values.

    Parameters
    ----------
    columns : features, by name
    known_frame : known columns; missing covariates are imputed in place if ``missing`` is "mean"
    missing_known : (n,) mask of missing known values, if the known structure is an array
    n : number of rows
    missing : treatment of missing values, as in `nrprob.prepare`
    record : record to which notes and warnings are added

    Returns
    -------
    ndarray
        Positions of the rows to keep.

    Raises
    ------
    MissingValues
        If values are missing or infinite, and ``missing`` does not allow these values.
    ValueError
        If missing labels or text would need a mean, or if no row is complete.
    """
    # Find missing and infinite values of all features and known columns.
    known = {} if known_frame is None else {name: known_frame[name] for name in known_frame}
    all_columns = [(repr(name), column) for name, column in columns.items()]
    all_columns += [(f"known {name!r}", column) for name, column in known.items()]
    is_missing = {name: column.isna().to_numpy(bool) for name, column in all_columns}
    if missing == "keep":  # features may be missing; missing labels in a frame are a group by now
        is_missing = {n: mask for n, mask in is_missing.items() if n not in map(repr, columns)}
    if missing_known is not None:
        is_missing["known"] = missing_known
    is_infinite = {
        name: np.isinf(as_numbers(column))
        for name, column in all_columns
        if kind_of_column(column) == "number"
    }
    is_missing, is_infinite = (
        {name: mask for name, mask in masks.items() if mask.any()}
        for masks in (is_missing, is_infinite)
    )
    if is_infinite and missing != "drop":
        raise MissingValues(
            f"values must be finite; got infinity: {_format_counts(is_infinite)}; "
            f"{record.say('missing', 'drop')} leaves out such rows, or correct the columns"
        )
    if not is_missing and not is_infinite:
        return np.arange(n)
    # Count the incomplete rows by column, for messages.
    none = np.zeros(n, bool)
    is_bad = {
        name: is_missing.get(name, none) | is_infinite.get(name, none)
        for name in [*is_missing, *is_infinite]
    }
    incomplete = np.any([*is_bad.values()], axis=0)
    counts = f"{_format_counts(is_bad)} ({incomplete.sum()} of {n} rows)"
    features = [name for name in columns if repr(name) in is_bad]
    lacks_labels = any(not is_float(column) and column.isna().any() for column in known.values())
    lacks_labels |= missing_known is not None and bool(missing_known.any())
    if missing in ("error", "keep"):
        remedies = [f"{record.say('missing', 'drop')} leaves out such rows"]
        if features and record.named:
            remedies.append(f"{record.say('drop', features)} the columns")
        if not lacks_labels:
            remedies.append(f"{record.say('missing', 'mean')} imputes them")
        raise MissingValues(
            f"values must not be missing; got missing values: {counts}; {', or '.join(remedies)}"
        )
    if missing == "mean":
        texts = [n for n in features if record.keeps and kind_of_column(columns[n]) == "text"]
        if texts:
            raise ValueError(
                f"text has no mean; got missing values: {counts}; {record.say('missing', 'keep')} "
                f"keeps missing values, or {record.say('missing', 'drop')} leaves out such rows"
            )
        if lacks_labels:
            raise ValueError(
                f"known labels have no mean; got missing values: {counts}; "
                f"{record.say('missing', 'drop')} leaves out such rows, or give them a label"
            )
        for name, column in known.items():
            if known_frame is not None and is_float(column):
                known_frame[name] = column.fillna(column.mean())
        record.notes.append(f"missing values imputed by the mean of the column: {counts}")
        return np.arange(n)
    # missing="drop": leave out the incomplete rows.
    rows = np.flatnonzero(~incomplete)
    worst = max(is_bad, key=lambda name: is_bad[name].sum())
    if not rows.size:
        raise ValueError(
            f"no row is complete; got missing values: {counts}; leave out the column {worst} "
            f"rather than rows, or impute with {record.say('missing', 'mean')}"
        )
    reasons = [
        f"{what}: {_format_counts(masks)}"
        for what, masks in (("missing values", is_missing), ("infinity", is_infinite))
        if masks
    ]
    record.notes.append(f"{incomplete.sum()} of {n} rows left out, for {'; '.join(reasons)}")
    if 2 * incomplete.sum() > n:
        record.warnings.append(
            f"most rows are left out; got missing values in {incomplete.sum()} of {n}, most of "
            f"them in {worst}; leave out the column rather than rows"
        )
    return rows


def _format_counts(masks: dict[str, np.ndarray], most: int = 8) -> str:
    """List the number of selected rows per column, for a message; ``masks`` select rows by name."""
    shown = [f"{mask.sum()} in {name}" for name, mask in masks.items()]
    return ", ".join(shown[:most]) + (", ..." if len(shown) > most else "")


def missing_rows(known: Any, n: int) -> np.ndarray | None:
    """Mask (n,) of rows with missing known values, if ``known`` is an array; otherwise None."""
    if known is None or isinstance(known, Memberships) or is_table(known):
        return None
    import pandas as pd

    array = as_plain_array(known, "known")
    if array.ndim == 0 or len(array) != n:
        raise ValueError(
            f"known has {array.shape[0] if array.ndim else 'no'} rows for {n} rows of X; got "
            f"{short_repr(known)}; pass one label, or one row of numbers, per row of X"
        )
    return pd.isna(array).reshape(n, -1).any(1) if array.size else None
