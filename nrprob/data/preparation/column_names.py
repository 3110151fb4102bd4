"""Check the names of the columns of a table."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from nrprob.data.frames import quote_names
from nrprob.exceptions import short_repr


def check_dropped(drop: list[str], names: Collection[str]) -> None:
    """Raise ValueError if a name of the columns to drop is not among ``names``."""
    for name in drop:
        if not isinstance(name, str) or name not in names:
            raise ValueError(
                f"drop names a column that X does not have; got {short_repr(name)}, and X has "
                f"{quote_names(names)}; name one of these"
            )


def check_names(names: pd.Index, what: str) -> None:
    """Raise ValueError if columns have equal names; ``what`` names the table in the message."""
    if not names.is_unique:
        raise ValueError(
            f"{what} must have columns of different names; got "
            f"{short_repr(names[names.duplicated()][0])} more than once; rename them"
        )


def name_columns(frame: pd.DataFrame, drop: list[str]) -> pd.DataFrame:
    """Return the frame with column names as strings; raise if a column of ``drop`` is missing."""
    names = frame.columns.map(str)
    check_names(names, "X")
    check_dropped(drop, names)
    return frame.set_axis(names, axis=1)
