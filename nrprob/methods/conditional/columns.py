"""Types and values of the columns of a mixed table.

A column is numeric, categorical, ordered, count or constant. Categorical, ordered and count columns
are discrete: integer codes stand for their values. Sizes: n samples, m columns, d numeric columns,
V distinct values of a discrete column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.data.column_kinds import (
    CATEGORICAL,
    CONSTANT,
    COUNT,
    DISCRETE,
    NUMBER,
    ORDERED,
    distinct_values,
    guess_kinds,
    hardly_repeat,
    read_cells,
)
from nrprob.data.frames import is_frame, quote_names
from nrprob.exceptions import short_repr, warn
from nrprob.methods.conditional.table import DiscreteColumn


@dataclass(frozen=True)
class Column:
    """Name, type and distinct values of one column of the table that was fitted.

    Attributes
    ----------
    name : name of the column in a frame, or position of the column in an array
    kind : type of the column: "number", "categorical", "ordered", "count" or "constant"
    values : (V,) distinct values of a discrete column, sorted; for an ordered pandas column, in the
        order of its levels. Empty for numeric and constant columns
    """

    name: Any
    kind: str
    values: np.ndarray

    @property
    def scores(self) -> np.ndarray | None:
        """Scores (V,) of the values of an ordered or count column; None for other columns.

        The scores are the values if they are numbers, else the positions in ``values``.
        """
        if self.kind not in (ORDERED, COUNT):
            return None
        if self.values.dtype.kind == "f":
            return self.values
        return np.arange(len(self.values), dtype=float)

    def encode(self, cells: np.ndarray) -> tuple[np.ndarray, list[Any]]:
        """Encode entries ``cells`` (n,) of the column as integer codes (n,).

        The code of a value is its index in ``values``. The code is -1 for a missing value, and for
        a value that did not occur in the fit. The method returns the codes, and the list of the
        distinct values that did not occur in the fit.
        """
        place = {value: code for code, value in enumerate(self.values.tolist())}
        codes = np.full(len(cells), -1)
        unseen: dict[Any, None] = {}
        for i, value in enumerate(cells.tolist()):
            if value is None or value != value:
                continue
            code = place.get(value)
            if code is None:
                unseen[value] = None
            else:
                codes[i] = code
        return codes, list(unseen)


@dataclass(frozen=True)
class Columns:
    """Types and values of all columns, learnt from the table of a fit."""

    columns: tuple[Column, ...]

    @classmethod
    def learn(cls, X: Any, categorical: Any, ordered: Any) -> Columns:
        """Learn the types and values of the columns of a frame or of an array of floats.

        Parameters
        ----------
        X : pandas frame, or ndarray of shape (n, m) with NaN where values are missing
        categorical, ordered : names or positions of the columns of this type; "auto" to infer the
            types from the values

        Raises
        ------
        ValueError
            If a column is in both lists, or does not exist; if the values of a categorical column
            hardly repeat; or if a column holds dates or other objects.
        """
        names, cells = read_cells(X)
        as_categorical = _positions("categorical", categorical, names)
        as_ordered = _positions("ordered", ordered, names)
        both = sorted((as_categorical or set()) & (as_ordered or set()))
        if both:
            raise ValueError(
                "a column is either categorical or ordered; got "
                f"{quote_names([names[j] for j in both])} in both lists; leave it out of one list"
            )
        columns = []
        for j, (name, guess) in enumerate(zip(names, guess_kinds(X, cells), strict=True)):
            kind = _final_kind(j, guess, cells[j], as_categorical, as_ordered, name)
            columns.append(Column(name, kind, _values(X, j, cells[j], kind)))
        return cls(tuple(columns))

    @property
    def kinds(self) -> dict[Any, str]:
        """Types of the columns: a dict from the name or position of a column to its type."""
        return {column.name: column.kind for column in self.columns}

    @property
    def is_numeric(self) -> bool:
        """Whether all columns are numeric or constant."""
        return all(column.kind in (NUMBER, CONSTANT) for column in self.columns)

    @property
    def numeric_positions(self) -> list[int]:
        """Positions of the numeric columns."""
        return [j for j, column in enumerate(self.columns) if column.kind == NUMBER]

    @property
    def discrete(self) -> list[Column]:
        """The categorical, ordered and count columns, in the order of the table."""
        return [c for c in self.columns if c.kind in DISCRETE]

    def encode(self, X: Any) -> tuple[np.ndarray | None, list[DiscreteColumn]]:
        """Read the numeric columns of a table as floats, and its discrete columns as codes.

        A value of a discrete column that did not occur in the fit counts as missing; the method
        warns of such values.

        Parameters
        ----------
        X : frame or array with n rows and the columns of the fit

        Returns
        -------
        numbers : (n, d) numeric columns, NaN where missing; None without numeric columns
        discrete : one `DiscreteColumn` per discrete column
        """
        _, cells = read_cells(X)
        floats = [_as_floats(cells[j]) for j in self.numeric_positions]
        discrete = []
        for j, column in enumerate(self.columns):
            if column.kind not in DISCRETE:
                continue
            codes, unseen = column.encode(cells[j])
            if unseen:
                warn(
                    f"column {short_repr(column.name)} has values that did not occur in fit, which "
                    f"count as missing values; got {short_repr(unseen[0])}; fit again with "
                    "samples that have these values if they matter"
                )
            discrete.append(DiscreteColumn(codes, len(column.values), column.scores))
        return (np.stack(floats, 1) if floats else None), discrete


def _as_floats(cells: np.ndarray) -> np.ndarray:
    """Convert entries (n,) of a numeric column to floats, NaN where missing.

    Raises ValueError for text.
    """
    if cells.dtype.kind == "f":
        return cells
    try:
        return np.array([np.nan if v is None else float(v) for v in cells])
    except (TypeError, ValueError):
        text = next(v for v in cells if isinstance(v, str))
        raise ValueError(
            f"X must hold numbers in columns that were numeric in fit; got {short_repr(text)}; "
            "pass numbers in these columns"
        ) from None


def _positions(what: str, chosen: Any, names: list[Any]) -> set[int] | None:
    """Positions of the columns that the user lists in ``chosen``; None for "auto".

    ``chosen`` is the value of the parameter ``what``: names or positions of columns. ``names`` are
    the names of all columns.
    """
    if isinstance(chosen, str):
        if chosen == "auto":
            return None
        chosen = [chosen]
    positions = set()
    place = {name: j for j, name in enumerate(names)}
    for name in chosen:
        if name in place:
            positions.add(place[name])
        elif isinstance(name, int | np.integer) and -len(names) <= name < len(names):
            positions.add(int(name) % len(names))
        else:
            raise ValueError(
                f"{what} must name columns of X; got {short_repr(name)}; pass names or positions"
            )
    return positions


def _final_kind(
    j: int, guess: str, cells: np.ndarray, categorical: set[int] | None,
    ordered: set[int] | None, name: Any,
) -> str:  # fmt: skip
    """Type of column ``j``: the declared type, else the type ``guess`` that its values suggest.

    ``categorical`` and ``ordered`` are the positions of the columns that the user declared to be of
    this type; None for "auto". ``cells`` (n,) are the entries of the column, and ``name`` is its
    name.

    If the user lists the categorical columns, other columns whose values suggest a categorical
    type are numeric. If the user lists the ordered columns, other columns whose values suggest an
    ordered or count type are numeric. A column of text is always discrete.
    """
    if guess == CONSTANT:
        return CONSTANT
    declared = CATEGORICAL if j in (categorical or ()) else ORDERED if j in (ordered or ()) else ""
    text = cells.dtype.kind != "f" and any(isinstance(v, str) for v in cells.tolist())
    kind = declared or guess
    if not declared and guess == CATEGORICAL and categorical is not None:
        kind = CATEGORICAL if text else NUMBER
    if not declared and guess in (ORDERED, COUNT) and ordered is not None:
        kind = CATEGORICAL if text else NUMBER
    n_values, n_seen = len(distinct_values(cells)), int((~_missing(cells)).sum())
    if kind == CATEGORICAL and (declared or text) and hardly_repeat(n_values, n_seen):
        raise ValueError(
            f"values of a categorical column have to repeat; got {n_values} distinct values in "
            f"{n_seen} samples of column {short_repr(name)}; leave the column out, or merge "
            "values"
        )
    return kind


def _missing(cells: np.ndarray) -> np.ndarray:
    """Mask (n,) of missing entries of a column."""
    if cells.dtype.kind == "f":
        return np.isnan(cells)
    return np.array([v is None for v in cells], bool)


def _values(X: Any, j: int, cells: np.ndarray, kind: str) -> np.ndarray:
    """Distinct values (V,) of column ``j`` of a table ``X``; empty unless the column is discrete.

    The values of an ordered pandas column have the order of its levels. The values of any other
    column are sorted. ``cells`` (n,) are the entries of the column, and ``kind`` is its type.
    """
    if kind not in DISCRETE:
        return np.empty(0)
    values = distinct_values(cells)
    if is_frame(X) and getattr(X.dtypes.iloc[j], "ordered", False):
        present = set(values.tolist())
        levels = [v for v in X.dtypes.iloc[j].categories.tolist() if v in present]
        numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in levels)
        return np.array(levels, np.float64 if numeric else object)
    return values
