"""Prepare a table for a fit, with a record of every change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from nrprob.data.annotated import is_annotated, names_of
from nrprob.data.frames import as_frame, is_table, listed, take_out
from nrprob.data.labels import check_hashable, plain
from nrprob.data.preparation.columns import (
    MOST_VALUES,
    as_numbers,
    code_among,
    differs_in_every_row,
    has_decimal_commas,
    is_01,
    is_float,
    is_identifier,
    is_year,
    kind_of_column,
    odd_one,
)
from nrprob.data.preparation.missing_values import complete, gaps_of
from nrprob.data.preparation.record import Record, Say, UnfitColumns, in_python
from nrprob.data.preparation.scales import Features, scale
from nrprob.data.validation import check_choice, check_not_masked
from nrprob.exceptions import short_repr, warn
from nrprob.known import Memberships

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Prepared", "prepare"]


@dataclass
class Prepared:
    """What `prepare` made of a table: ``model.fit(prepared.X, known=prepared.known)``.

    Attributes
    ----------
    X : ndarray of shape (n_kept, n_features)
        The features; a sparse matrix as it was given.
    known : ndarray, DataFrame or None
        What is known of these rows: the labels of one labeling, or the columns of several, or of
        numbers.
    feature_names_ : list of str
        The columns of ``X``; ``column=value`` is 1 where a text has this value.
    rows_ : ndarray of shape (n_kept,)
        Places of the rows that were kept.
    scales_ : dict
        Of every column that was standardised, the mean and the standard deviation.
    indicators_ : dict
        Of every column that was made of booleans or text, the column of the table, its value at 0
        and its value at 1; the value at 0 is empty where it may be any other.
    notes : list of str
        What was done, a sentence each.
    warnings : list of str
        What looks wrong and was left as it is, a sentence each.
    """

    X: Any
    known: Any
    feature_names_: list[str]
    rows_: np.ndarray
    scales_: dict[str, tuple[float, float]] = field(default_factory=dict)
    indicators_: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def frame(self) -> pd.DataFrame:
        """``X`` with the names of its columns."""
        import pandas as pd

        return pd.DataFrame(self.X, columns=self.feature_names_)


def prepare(
    X: Any,
    *,
    known: Any = None,
    missing: str = "error",
    standardize: bool | str = "auto",
    drop: Collection[str] = (),
) -> Prepared:
    """Make a table ready for a fit, and say what was done.

    Of a frame, numbers are features as they are, booleans are 0 and 1, and text and categories of
    up to 20 values become columns of 0 and 1: ``column=value`` for every value, or for the second
    of two. Text that differs in every row, or in none, is left out, as are empty columns. Dates are
    refused, as are texts of more values. An array has numbers only, and no names.

    Parameters
    ----------
    X : frame of pandas or polars, other table, or array of shape (n_samples, n_features)
        Anything with the Arrow PyCapsule interface or the dataframe interchange is a table.
    known : str, list of str or array-like, optional
        Names of columns that are known and no features; or what is known, as `fit` takes it. A
        column of floats is a number, and others are labels, dates as well; so are floats of at
        most 20 different whole numbers, which is what gaps make of integers.
    missing : {"error", "drop", "mean"}, default="error"
        Whether missing values are refused, or leave out their rows, or become the mean of their
        column, which for columns of 0 and 1 is a share. Labels that are known have no mean.
        Infinite values are refused, but for "drop".
    standardize : {"auto", True, False}, default="auto"
        Whether features get mean 0 and standard deviation 1. "auto" does so to columns of
        measurements of a frame, if standard deviations differ tenfold (columns of 0 and 1 count as
        1), or if beside columns of 0 and 1 they would be taken for counts. Counts (whole numbers
        from 0, at least half of which are 0), columns of 0 and 1, and arrays stay as they are,
        with a warning where scales of an array differ tenfold; annotated data are of one unit.
    drop : collection of str, default=()
        Columns of a frame that are no features.

    Returns
    -------
    Prepared

    Raises
    ------
    ValueError
        If a column cannot be a feature or is not there, values are missing or infinite and to be
        refused, or nothing is left. The message names the columns.

    Warns
    -----
    UserWarning
        If columns that are features look like identifiers or years, or hold a value that looks like
        a code for what is missing; if scales differ tenfold and are left so; if more than half of
        the rows are left out.

    Examples
    --------
    >>> import pandas as pd
    >>> from nrprob import prepare
    >>> frame = pd.DataFrame({"size": [1.5, 2.0, None, 4.0], "kind": ["a", "b", "b", "c"]})
    >>> ready = prepare(frame.assign(batch=[0, 1, 0, 1]), known="batch", missing="drop")
    >>> ready.feature_names_, ready.known.tolist()
    (['size', 'kind=a', 'kind=b', 'kind=c'], [0, 1, 1])
    """
    result = prepared(X, known=known, missing=missing, standardize=standardize, drop=drop)
    for line in result.warnings:
        warn(line)
    return result


def prepared(
    X: Any,
    *,
    known: Any = None,
    missing: str = "error",
    standardize: bool | str = "auto",
    drop: Collection[str] = (),
    names: list[str] | None = None,
    say: Say = in_python,
    units: bool = True,
) -> Prepared:
    """As `prepare`, without a warning.

    ``names`` are those of the columns of an array, ``units`` says whether these may be of different
    ones; ``say`` writes what to ask for: see `Record`.
    """
    check_choice("missing", missing, ("error", "drop", "mean"))
    if isinstance(standardize, bool | np.bool_):
        standardize = bool(standardize)
    else:
        check_choice("standardize", standardize, ("auto",), "or True or False")
    if not isinstance(drop, Collection):
        raise TypeError(
            f"drop must list names of columns; got {short_repr(drop)}; pass a list of them"
        )
    drop = [drop] if isinstance(drop, str) else list(drop)
    if not is_table(X):
        return _of_array(X, known, missing, standardize, drop, names, say, units)
    X = as_frame(X)
    if 0 in X.shape:
        raise ValueError(
            f"X must have rows and columns; got {X.shape[0]} sample(s) and {X.shape[1]} "
            "feature(s); pass a frame that holds something"
        )
    X, known = take_out(_named(X, drop), known)
    X = X.drop(columns=[name for name in drop if name in X.columns])
    if not X.shape[1]:
        raise ValueError(f"no feature is left; got {say('drop', drop)}; leave fewer columns out")
    work = _Columns(say)
    return work.made(work.features(X), known, len(X), missing, standardize, looks=True)


def _of_array(
    X: Any, known: Any, missing: str, standardize: bool | str, drop: list[str],
    names: list[str] | None, say: Say, units: bool,
) -> Prepared:  # fmt: skip
    """As `prepared`, of an array, whose columns go by their numbers where they have no names."""
    names, units = names or names_of(X), units and not is_annotated(X)
    X, known = take_out(X, known)
    if drop and names is None:
        raise ValueError(
            f"drop names columns, and X has no columns with names; got drop={short_repr(drop)} "
            f"and a {type(X).__name__}; pass X as a frame, or cut the array"
        )
    check_not_masked(X, "X")
    array = X if sparse.issparse(X) else plain(X, "X")
    if drop and names is not None:
        _check_dropped(drop, names)
        kept = [j for j, name in enumerate(names) if name not in drop]
        array, names = array[:, kept], [names[j] for j in kept]
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "biuf":
        raise ValueError(
            f"X must be a table of numbers; got shape {array.shape} of {array.dtype}; pass rows of "
            "numbers, or a frame, whose columns may hold other things"
        )
    work, n = _Columns(say, named=names is not None), array.shape[0]
    names = names or [f"column {j}" for j in range(array.shape[1])]
    if sparse.issparse(array):
        if standardize is True or not np.isfinite(array.data).all():
            raise ValueError(
                "sparse X must be finite, and stays as it is; got "
                + ("standardize=True" if standardize is True else "NaN or infinity")
                + "; pass X.toarray(), if it is small, or change its entries"
            )
        rows, known = work.rows({}, known, n, missing)
        array = array if len(rows) == n else sparse.csr_array(array)[rows]
        return Prepared(array, known, names, rows, notes=work.notes, warnings=work.warnings)
    import pandas as pd

    values = array.astype(np.float32 if array.dtype == np.float32 else np.float64)
    columns = {name: pd.Series(column) for name, column in zip(names, values.T, strict=True)}
    # What an array's columns are is its maker's business, and so are its scales; but they are told
    # of. Those of annotated data are of one unit, however much they vary.
    return work.made(columns, known, n, missing, standardize is True, units=units)


class _Columns(Record):
    """What becomes of the columns of a table."""

    def made(
        self, columns: dict[str, pd.Series], known: Any, n: int, missing: str,
        standardize: bool | str, looks: bool = False, units: bool = True,
    ) -> Prepared:  # fmt: skip
        """What becomes of columns that are features.

        ``looks`` at what they look like as well, and at their ``units``.
        """
        rows, known = self.rows(columns, known, n, missing)
        kept = {name: column.iloc[rows] for name, column in columns.items()}
        features = self._encode(kept, looks)
        ready = Prepared(features.values, known, features.names, rows, {}, self.indicators)
        if looks:
            self._look(features)
        if units or standardize:
            ready.X, ready.scales_ = scale(features, standardize, self)
        ready.notes, ready.warnings = self.notes, self.warnings
        return ready

    def rows(
        self, columns: dict[str, pd.Series], known: Any, n: int, missing: str
    ) -> tuple[np.ndarray, Any]:
        """Places of the rows to keep, and what is known of them."""
        told = self._read_known(known)
        if told is not None and (void := [z for z in told if not told[z].notna().any()]):
            raise ValueError(
                f"what is known must have values; got {listed(void)} without any; name another"
            )
        kept = complete(columns, told, gaps_of(known, n), n, missing, self)
        left = {} if told is None or len(kept) < 2 else {z: told[z].iloc[kept] for z in told}
        one = [name for name, column in left.items() if column.nunique() == 1]
        if one:
            self.warnings.append(
                f"known {listed(one)} {'is' if len(one) == 1 else 'are'} the same in all rows, so "
                "that there is nothing to avoid"
            )
        return kept, _rows_of(known if told is None else told, kept, n)

    def features(self, X: pd.DataFrame) -> dict[str, pd.Series]:
        """Columns that are features, of numbers, booleans or few values of text."""
        kinds = {name: kind_of_column(X[name]) for name in X}
        texts = {name: X[name].dropna() for name, kind in kinds.items() if kind == "text"}
        commas = [name for name, values in texts.items() if has_decimal_commas(values)]
        texts = {name: values for name, values in texts.items() if name not in commas}
        odd = {name: odd_one(values) for name, values in texts.items()}
        unique = [n for n, v in texts.items() if differs_in_every_row(v) and odd[n] is None]
        same = [name for name, values in texts.items() if values.nunique() == 1]
        empty = [n for n, kind in kinds.items() if kind == "empty" or not X[n].notna().any()]
        number = {n: v.nunique() for n, v in texts.items() if n not in unique}
        kinds |= dict.fromkeys(commas, "comma")
        self._refuse(kinds, {n: v for n, v in odd.items() if v is not None}, number)
        self._note(unique, "{} left out: text that differs in every row names rows")
        self._note(same, "{} left out: text of one value says nothing")
        self._note(empty, "{} left out: no row has a value")
        left = {name: X[name] for name in X if name not in {*unique, *same, *empty}}
        if not left:
            raise ValueError(
                f"no feature is left; got {listed(kinds)}, none of which holds numbers or a text "
                "of a few values; pass other columns"
            )
        return left

    def _refuse(self, kinds: dict[str, str], odd: dict[str, str], number: dict[str, int]) -> None:
        """Refuse all columns that are no features, in one sentence.

        ``odd`` are texts among numbers by column, and ``number`` how many values texts have.
        """
        got: dict[str, str] = {}
        ways: list[str] = []
        if dates := [name for name, kind in kinds.items() if kind == "date"]:
            got |= {name: f"dates in {name!r}" for name in dates}
            ways.append("turn dates into numbers of a unit of your choice")
        if mixed := [name for name, kind in kinds.items() if kind == "mixed"]:
            got |= {name: f"several kinds of values in {name!r}" for name in mixed}
            ways.append("give a column one kind of values")
        if others := [name for name, kind in kinds.items() if kind == "object"]:
            got |= {name: f"lists or other objects in {name!r}" for name in others}
            ways.append("make columns of the numbers in objects")
        if commas := [name for name, kind in kinds.items() if kind == "comma"]:
            got |= {name: f"commas in the numbers of {name!r}" for name in commas}
            ways.append("write numbers with decimal points")
        if odd:
            got |= {name: f"{value!r} among the numbers in {name!r}" for name, value in odd.items()}
            ways.append("leave cells without a number empty")
        if many := {n: k for n, k in number.items() if k > MOST_VALUES and n not in odd}:
            got |= {name: f"{k} values of text in {name!r}" for name, k in many.items()}
            ways.append("merge values of text, or name the column as known")
        if got:
            raise UnfitColumns(
                f"columns must hold numbers, booleans or text of up to {MOST_VALUES} values; got "
                f"{', '.join(got.values())}; {', '.join(ways)}, or leave columns out with "
                f"{self.say('drop', list(got))}",
                list(got),
            )

    def _note(self, names: list[str], line: str) -> None:
        if names:
            self.notes.append(line.format(listed(names) + (" is" if len(names) == 1 else " are")))

    def _read_known(self, known: Any) -> pd.DataFrame | None:
        """Columns that are known, of a table; None of what comes as an array, or not at all."""
        if not is_table(known):
            return None
        told = as_frame(known).copy()
        _check_names(told.columns, "known")
        for name in told:
            column, whole = told[name], False
            check_hashable(np.asarray(column), f" in column {name!r}")
            if getattr(column.dtype, "kind", "O") == "f":
                values = column.dropna().to_numpy(np.float64)
                whole = bool((values == np.round(values)).all())
            if whole and 0 < column.nunique() <= MOST_VALUES:
                told[name] = column.astype("Int64")
                self.notes.append(f"known {name!r} holds few whole numbers and is read as labels")
                continue
            kind = kind_of_column(column)
            whole = getattr(column.dtype, "kind", "O") in "iu"
            if (whole or kind == "date") and (number := column.nunique()) > MOST_VALUES:
                what, instead = "dates or times", ""
                if whole:
                    what, instead = "whole numbers", ", or make it floats, if it measures something"
                self.warnings.append(
                    f"known {name!r} is labels of {number} different {what}; cut it into "
                    f"groups{instead}"
                )
        return told

    def _encode(self, columns: dict[str, pd.Series], looks: bool) -> Features:
        """Features of complete columns, or of columns whose gaps get their mean."""
        names: list[str] = []
        parts: list[np.ndarray] = []
        is_number: list[bool] = []
        is_text: list[bool] = []
        kinds: dict[str, str] = {}
        for name, column in columns.items():
            if (kind := kind_of_column(column)) not in ("text", "empty"):
                names.append(name)
                numbers = as_numbers(column)
                parts.append(_filled(numbers))
                is_number.append(not is_01(numbers))
                is_text.append(kind == "boolean")
                if kind == "boolean":
                    self.indicators[name] = (name, "false", "true")
                kinds[name] = "constant" if np.ptp(parts[-1]) == 0 else kind
                continue
            values = _values(column)
            shown = values if len(values) != 2 else values[1:]
            own = [f"{name}={value}" for value in shown]
            lacks = column.isna().to_numpy(bool)
            shares = ", and shares where it is missing" * bool(lacks.any())
            for value in shown:
                is_value = (column == value).to_numpy(bool, na_value=False).astype(np.float64)
                parts.append(_filled(np.where(lacks, np.nan, is_value)))
                off = str(values[0]) if len(values) == 2 else ""
                self.indicators[f"{name}={value}"] = (name, off, str(value))
            names += own
            is_number += [False] * len(own)
            is_text += [True] * len(own)
            if len(values) > 1:
                self.notes.append(f"text {name!r} became 0/1{shares} in {listed(own, 20)}")
            else:
                self.notes.append(f"{name!r} is constant in the rows that are left")
        if looks:
            constant = [name for name, kind in kinds.items() if kind == "constant"]
            self._note(constant, "{} constant, which says nothing, and kept")
        self._note([n for n, kind in kinds.items() if kind == "boolean"], "{} 0/1 for false/true")
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise ValueError(
                f"columns must have different names; got {listed(twice)} twice, once from a value "
                "of a text; rename a column"
            )
        dtype = np.float32 if {p.dtype for p in parts} == {np.dtype(np.float32)} else np.float64
        table = np.column_stack(parts).astype(dtype)
        return Features(names, table, np.array(is_number), np.array(is_text))

    def _look(self, features: Features) -> None:
        """Warn of features that look as if they were none."""
        own = list(zip(features.names, features.values.T, strict=True))
        years = [name for name, v in own if is_year(name, v)]
        ids = [name for name, v in own if name not in years and is_identifier(name, v)]
        for result, what in ((ids, "an identifier"), (years, "a year")):
            if result:
                each = f"{'each of ' * (len(result) > 1)}{listed(result)}"
                self.warnings.append(
                    f"features should be measurements; {each} looks like {what}; if so, leave out "
                    f"with {self.say('drop', result)}"
                )
        far = []
        for name, v in own:
            if (code := code_among(v)) is not None:
                n = int((v == code).sum())
                far.append(f"{code:.10g} in {name!r} ({n} row{'s' * (n > 1)})")
        if far:
            self.warnings.append(
                f"{', '.join(far[:8])}{', ...' * (len(far) > 8)}: ten times as far from all other "
                "values as these from each other; if that stands for what is missing, leave its "
                "cells empty"
            )


def _filled(values: np.ndarray) -> np.ndarray:
    """Values with their mean in place of those that are missing."""
    lacks = np.isnan(values)
    return np.where(lacks, values[~lacks].mean(), values) if lacks.any() else values


def _values(column: pd.Series) -> list[Any]:
    """Values of a text: in their order if they are categories, else sorted."""
    result = column.dropna().unique().tolist()
    if hasattr(column, "cat"):
        return [value for value in column.cat.categories if value in result]
    return sorted(result)


def _check_dropped(drop: list[str], names: Collection[str]) -> None:
    for name in drop:
        if not isinstance(name, str) or name not in names:
            raise ValueError(
                f"drop names a column that X does not have; got {short_repr(name)}, and X has "
                f"{listed(names)}; name one of these"
            )


def _check_names(names: pd.Index, what: str) -> None:
    """Refuse columns of one name."""
    if not names.is_unique:
        raise ValueError(
            f"{what} must have columns of different names; got "
            f"{short_repr(names[names.duplicated()][0])} more than once; rename them"
        )


def _named(frame: pd.DataFrame, drop: list[str]) -> pd.DataFrame:
    """The frame with text for names, of which those to drop are some."""
    names = frame.columns.map(str)
    _check_names(names, "X")
    _check_dropped(drop, names)
    return frame.set_axis(names, axis=1)


def _rows_of(known: Any, rows: np.ndarray, n: int) -> Any:
    """What is known of some rows, as estimators take it."""
    if known is None:
        return None
    if is_table(known):
        known = known.iloc[rows].reset_index(drop=True)
        whole = [name for name in known if str(known[name].dtype) == "Int64"]
        known = known.astype(dict.fromkeys(whole, np.int64))
        one = known.shape[1] == 1 and not is_float(known.iloc[:, 0])
        return known.iloc[:, 0].to_numpy() if one else known
    if len(rows) == n:
        return known
    if isinstance(known, Memberships):
        return Memberships(known.probabilities[rows])
    return plain(known, "known")[rows]
