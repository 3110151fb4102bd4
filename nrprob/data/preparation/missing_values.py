"""Missing values of a table, and complete rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.data.frames import is_table
from nrprob.data.labels import plain
from nrprob.data.preparation.columns import as_numbers, is_float, kind_of_column
from nrprob.data.preparation.record import MissingValues, Record
from nrprob.exceptions import short_repr
from nrprob.known import Memberships

if TYPE_CHECKING:
    import pandas as pd


def complete(
    columns: dict[str, pd.Series],
    told: pd.DataFrame | None,
    unnamed: np.ndarray | None,
    n: int,
    missing: str,
    record: Record,
) -> np.ndarray:
    """Places of the rows to keep; what is missing of them is to be filled in.

    Parameters
    ----------
    columns, told : features, and known columns, in which numbers are filled in
    unnamed : where something is missing of what is known, if that is no table
    n : number of rows
    missing : see `prepare`
    record : what is done is written to
    """
    known = {} if told is None else {name: told[name] for name in told}
    every = [(repr(name), z) for name, z in columns.items()]
    every += [(f"known {name!r}", z) for name, z in known.items()]
    holes = {name: z.isna().to_numpy(bool) for name, z in every}
    wild = {name: np.isinf(as_numbers(z)) for name, z in every if kind_of_column(z) == "number"}
    if unnamed is not None:
        holes["known"] = unnamed
    holes, wild = ({name: v for name, v in own.items() if v.any()} for own in (holes, wild))
    if wild and missing != "drop":
        raise MissingValues(
            f"values must be finite; got infinity: {_counts(wild)}; "
            f"{record.say('missing', 'drop')} leaves out such rows, or mend the columns"
        )
    if not holes and not wild:
        return np.arange(n)
    gone = {
        name: holes.get(name, False) | wild.get(name, np.zeros(n, bool)) for name in [*holes, *wild]
    }
    lines = np.any([*gone.values()], axis=0)
    some = f"{_counts(gone)} ({lines.sum()} of {n} rows)"
    features = [name for name in columns if repr(name) in gone]
    unlabelled = any(not is_float(z) and z.isna().any() for z in known.values())
    unlabelled |= unnamed is not None and bool(unnamed.any())
    if missing == "error":
        ways = [f"{record.say('missing', 'drop')} leaves out such rows"]
        if features and record.named:
            ways.append(f"{record.say('drop', features)} the columns")
        if not unlabelled:
            ways.append(f"{record.say('missing', 'mean')} fills them in")
        raise MissingValues(f"values must not be missing; got gaps: {some}; {', or '.join(ways)}")
    if missing == "mean":
        if unlabelled:
            raise ValueError(
                f"labels that are known have no mean; got gaps: {some}; "
                f"{record.say('missing', 'drop')} leaves out such rows, or give them a label"
            )
        for name, z in known.items():
            if told is not None and is_float(z):
                told[name] = z.fillna(z.mean())
        record.notes.append(f"gaps filled in by the mean of the column: {some}")
        return np.arange(n)
    rows = np.flatnonzero(~lines)
    worst = max(gone, key=lambda name: gone[name].sum())
    if not rows.size:
        raise ValueError(
            f"a row must be complete; got none, for gaps: {some}; leave out the column "
            f"{worst} rather than rows, or fill in with {record.say('missing', 'mean')}"
        )
    why = [f"gaps: {_counts(holes)}"] * bool(holes) + [f"infinity: {_counts(wild)}"] * bool(wild)
    record.notes.append(f"{lines.sum()} of {n} rows left out, for {'; '.join(why)}")
    if 2 * lines.sum() > n:
        record.warnings.append(
            f"most rows are left out; got gaps in {lines.sum()} of {n}, most of them in "
            f"{worst}; leave out the column rather than rows"
        )
    return rows


def _counts(where: dict[str, np.ndarray], most: int = 8) -> str:
    """How many rows of which columns, for a message."""
    shown = [f"{own.sum()} in {name}" for name, own in where.items()]
    return ", ".join(shown[:most]) + (", ..." if len(shown) > most else "")


def gaps_of(known: Any, n: int) -> np.ndarray | None:
    """Where something is missing (n,) of what is known, if that is an array of as many rows."""
    if known is None or isinstance(known, Memberships) or is_table(known):
        return None
    import pandas as pd

    array = plain(known, "known")
    if array.ndim == 0 or len(array) != n:
        raise ValueError(
            f"known has {array.shape[0] if array.ndim else 'no'} rows for {n} of X; got "
            f"{short_repr(known)}; pass one label, or row of numbers, per row"
        )
    return pd.isna(array).reshape(n, -1).any(1) if array.size else None
