"""Prepare a table for a fit, with a record of every change."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from nrprob.data.annotated import feature_names_of, is_annotated
from nrprob.data.column_kinds import hardly_repeat, infer_kinds
from nrprob.data.frames import as_frame, extract_known, is_frame, is_table, quote_names
from nrprob.data.labels import as_plain_array, check_hashable
from nrprob.data.preparation.column_names import check_dropped, check_names, name_columns
from nrprob.data.preparation.columns import (
    MOST_VALUES,
    as_numbers,
    differs_in_every_row,
    is_float,
    is_index,
    kind_of_column,
)
from nrprob.data.preparation.encoding import (
    as_categories,
    encode_features,
    known_groups,
    note_copies,
    take_known_rows,
    warn_of_determined,
    warn_of_suspicious,
)
from nrprob.data.preparation.missing_values import missing_rows, select_complete_rows
from nrprob.data.preparation.record import NoFeatureLeft, Record, Say, as_python, unfit_columns
from nrprob.data.preparation.scales import standardise_features, take_logarithms
from nrprob.data.reading.conversion import (
    Problem,
    ReadingRecord,
    TextSource,
    convert_texts,
)
from nrprob.data.validation import check_choice, check_not_masked
from nrprob.exceptions import short_repr, warn

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Prepared", "prepare"]


@dataclass
class Prepared:
    """Result of `prepare`, for example to call ``model.fit(prepared.X, known=prepared.known)``.

    Attributes
    ----------
    X : ndarray, frame or sparse matrix of shape (n_rows, n_features)
        The features: a frame if a table was passed and its text is kept, else an array. A sparse
        matrix stays sparse.
    known : ndarray, DataFrame or None
        Known structure of the rows of ``X``: one labeling, or a frame of several labelings and
        covariates.
    feature_names_ : list of str
        The column names of ``X``. The binary column ``column=value`` is 1 in rows with this value,
        and ``log(column)`` is the logarithm of a column.
    rows_ : ndarray of shape (n_rows,)
        Positions of the rows of ``X`` in the original table.
    scales_ : dict
        Mean and standard deviation of every standardised column.
    logarithms_ : dict
        For the name of every logarithm: the column x of the table, and the number a in log(x + a).
    kinds_ : dict
        Kind of every column of a frame whose text is kept, which `ConditionalMixture` uses to
        choose a distribution: "number", "categorical", "ordered", "count" or "constant".
    indicators_ : dict
        For every binary column made from booleans or text: the column of the table, its value at 0
        and its value at 1. The value at 0 is empty if several values become 0.
    units_ : dict
        Unit of every column whose texts were numbers with a unit, such as "%" or "€".
    identifiers_ : list of str
        Columns of a frame that are left out since they identify rows.
    notes : list of str
        Sentences about changes.
    warnings : list of str
        Sentences about suspicious columns, which are unchanged.
    """

    X: Any
    known: Any
    feature_names_: list[str]
    rows_: np.ndarray
    scales_: dict[str, tuple[float, float]] = field(default_factory=dict)
    logarithms_: dict[str, tuple[str, float]] = field(default_factory=dict)
    kinds_: dict[str, str] = field(default_factory=dict)
    indicators_: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    units_: dict[str, str] = field(default_factory=dict)
    identifiers_: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def frame(self) -> pd.DataFrame:
        """``X`` as a frame with named columns."""
        import pandas as pd

        if is_frame(self.X):
            return self.X
        return pd.DataFrame(self.X, columns=self.feature_names_)


def prepare(
    X: Any,
    *,
    known: Any = None,
    categories: str = "keep",
    missing: str = "keep",
    log: str | Collection[str] = (),
    standardize: bool | str = "auto",
    drop: Collection[str] = (),
) -> Prepared:
    """Prepare a table for a fit, and report the changes.

    Numeric columns of a frame are kept, booleans become 0 and 1, and text becomes categories. Text
    columns of numbers become numeric: decimal commas, separators of thousands, percent and currency
    signs are read, and texts such as "NA", "?" or "-" among numbers become missing values.
    Columns that identify rows are left out: text whose values hardly repeat, and integers that look
    like an index. Text with a single value and empty columns are left out, too. Dates raise
    ValueError. Arrays must be numeric.

    The defaults suit `ConditionalMixture`. Other estimators need numbers without missing values:
    pass ``categories="indicators"``, and ``missing="drop"`` or ``"mean"``.

    Parameters
    ----------
    X : frame of pandas or polars, other table, or array of shape (n_samples, n_features)
        Objects with the Arrow PyCapsule interface or the dataframe interchange protocol are tables.
    known : str, list of str or array-like, optional
        Names of known columns, which are not features, or known structure as in `fit`. Floats are
        covariates; other columns, including dates, are labels. Floats with at most 20 different
        integer values are labels, too, since missing values turn integers into floats.
    categories : {"keep", "indicators"}, default="keep"
        "keep" converts a text column to pandas categories. "indicators" replaces a text column of
        up to 20 distinct values by binary columns ``column=value``: one per value, or, for two
        values, one for the second value. A text column of more values raises ValueError.
    missing : {"keep", "error", "drop", "mean"}, default="keep"
        "keep" keeps missing values of features. Rows with a missing known label then form a
        separate group if ``known`` is a frame or names columns; missing covariates raise
        ValueError. "error" raises ValueError for missing values, "drop" leaves out rows with
        missing values, and "mean" imputes the mean of the column (for binary columns, the share of
        ones). Known labels and text that is kept cannot be imputed. Infinite values raise
        ValueError unless ``missing="drop"``.
    log : "auto" or collection of str, default=()
        Columns of measurements that are replaced by their logarithms, for example ``log(income)``.
        "auto" takes skewed columns, if Gaussian clusters of the logarithms describe the column
        better than Gaussian clusters of its values. If a column contains 0, the median of its
        positive values is added before the logarithm.
    standardize : {"auto", True, False}, default="auto"
        Whether to scale features to mean 0 and standard deviation 1. "auto" scales measurements in
        a frame if standard deviations differ by a factor of ten. With ``categories="indicators"``,
        the standard deviation of a binary column counts as 1. Measurements are then also scaled if
        measurements and binary columns together would be modelled as counts. "auto" does not scale
        arrays, counts (non-negative integers, at least half of them 0), or columns of another kind
        than "number". If the standard deviations of an array differ by a factor of ten, the
        function warns, unless ``X`` is annotated data.
    drop : collection of str, default=()
        Columns of a frame to drop.

    Returns
    -------
    Prepared

    Raises
    ------
    ValueError
        If a column cannot be a feature or does not exist; if values are missing or infinite, and
        ``missing`` does not allow them; or if no row or feature is left. The message names the
        columns.

    Warns
    -----
    UserWarning
        If numbers look like identifiers or years, or hold a value that looks like a code for
        missing values; if columns have one value in every known group; if scales differ by a factor
        of ten and are not changed; if more than half of the rows are left out.

    See Also
    --------
    recommend : Recommend an estimator for a table.
    explore : Find non-redundant clusterings of a table.

    Examples
    --------
    >>> import pandas as pd
    >>> from nrprob import prepare
    >>> frame = pd.DataFrame({"size": [1.5, 2.0, None, 4.0], "kind": ["a", "b", "b", "c"]})
    >>> ready = prepare(frame, known="kind")
    >>> ready.feature_names_, ready.known.tolist()
    (['size'], ['a', 'b', 'b', 'c'])
    >>> prepare(frame, categories="indicators", missing="drop").feature_names_
    ['size', 'kind=a', 'kind=b', 'kind=c']
    """
    result = prepare_table(
        X, known=known, categories=categories, missing=missing, log=log, standardize=standardize,
        drop=drop,
    )  # fmt: skip
    for line in result.warnings:
        warn(line)
    return result


def prepare_table(
    X: Any,
    *,
    known: Any = None,
    categories: str = "keep",
    missing: str = "keep",
    log: str | Collection[str] = (),
    standardize: bool | str = "auto",
    drop: Collection[str] = (),
    names: list[str] | None = None,
    say: Say = as_python,
    units: bool = True,
    chosen: bool = False,
) -> Prepared:
    """Prepare a table without warnings; see `prepare`.

    Parameters
    ----------
    names : names of the columns of an array
    say : function that formats an argument (name and value) for messages
    units : whether the columns of an array may have different units
    chosen : whether the user has chosen the columns; then columns that look like an index stay
    """
    check_choice("categories", categories, ("keep", "indicators"))
    check_choice("missing", missing, ("keep", "error", "drop", "mean"))
    if isinstance(standardize, bool | np.bool_):
        standardize = bool(standardize)
    else:
        check_choice("standardize", standardize, ("auto",), "or True or False")
    if isinstance(log, str):
        check_choice("log", log, ("auto",), "or a list of column names")
    elif not isinstance(log, Collection) or not all(isinstance(name, str) for name in log):
        raise TypeError(
            f"log must be 'auto' or a list of column names; got {short_repr(log)}; pass a list"
        )
    if not isinstance(drop, Collection):
        raise TypeError(f"drop must be a list of column names; got {short_repr(drop)}; pass a list")
    drop = [drop] if isinstance(drop, str) else list(drop)
    if not is_table(X):
        return _prepare_array(
            X, known, categories, missing, log, standardize, drop, names, say, units
        )  # fmt: skip
    X = as_frame(X)
    if 0 in X.shape:
        raise ValueError(
            f"X must have rows and columns; got {X.shape[0]} sample(s) and {X.shape[1]} "
            "feature(s); pass a frame that is not empty"
        )
    X, known = extract_known(name_columns(X, drop), known)
    X = X.drop(columns=[name for name in drop if name in X.columns])
    if not X.shape[1]:
        raise NoFeatureLeft(f"no feature is left; got {say('drop', drop)}; drop fewer columns")
    preparation = _TablePreparation(say, categories=categories)
    record = ReadingRecord()
    X = convert_texts(X, record, TextSource())
    preparation.notes += record.notes
    preparation.warnings += record.warnings
    columns = preparation.select_features(X, chosen, record.problems)
    ready = preparation.finish(columns, known, len(X), missing, log, standardize, of_frame=True)
    ready.units_ = {name: u for name, u in record.units.items() if name in ready.feature_names_}
    return ready


def as_indicators(X: pd.DataFrame) -> Prepared:
    """Convert text to binary columns; missing values stay missing.

    If a text column has more than 20 values, the least frequent values become one value.
    """
    texts = [name for name in X if kind_of_column(X[name]) == "text"]
    merged = {}
    for name in texts:
        order = X[name].value_counts().index
        if len(order) > MOST_VALUES:
            values = X[name].astype(object)
            rare = values.notna() & ~values.isin(order[: MOST_VALUES - 1])
            merged[name] = values.mask(rare, "(other values)")
    return prepare_table(
        X.assign(**merged), categories="indicators", standardize=False, chosen=True
    )  # fmt: skip


def _prepare_array(
    X: Any, known: Any, categories: str, missing: str, log: str | Collection[str],
    standardize: bool | str, drop: list[str], names: list[str] | None, say: Say, units: bool,
) -> Prepared:  # fmt: skip
    """Prepare an array; columns without names are numbered. See `prepare_table`."""
    names, units = names or feature_names_of(X), units and not is_annotated(X)
    X, known = extract_known(X, known)
    if drop and names is None:
        raise ValueError(
            f"drop needs named columns; got drop={short_repr(drop)} "
            f"and a {type(X).__name__}; pass X as a frame, or leave out columns of the array"
        )
    check_not_masked(X, "X")
    array = X if sparse.issparse(X) else as_plain_array(X, "X")
    if drop and names is not None:
        check_dropped(drop, names)
        retained = [j for j, name in enumerate(names) if name not in drop]
        array, names = array[:, retained], [names[j] for j in retained]
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "biuf":
        raise ValueError(
            f"X must be a table of numbers; got shape {array.shape} of {array.dtype}; pass rows of "
            "numbers, or a frame, whose columns may hold text and booleans"
        )
    preparation, n = _TablePreparation(say, names is not None, categories), array.shape[0]
    names = names or [f"column {j}" for j in range(array.shape[1])]
    if sparse.issparse(array):
        if log:
            raise ValueError(
                f"logarithms need dense measurements; got log={short_repr(log)} and sparse X; pass "
                "X.toarray(), if it is small, or leave log out"
            )
        if standardize is True or not np.isfinite(array.data).all():
            raise ValueError(
                "sparse X must be finite, and is not standardised; got "
                + ("standardize=True" if standardize is True else "NaN or infinity")
                + "; pass X.toarray(), if it is small, or change its entries"
            )
        rows, known = preparation.select_rows({}, known, n, missing)
        array = array if len(rows) == n else sparse.csr_array(array)[rows]
        notes, warnings = preparation.notes, preparation.warnings
        return Prepared(array, known, names, rows, notes=notes, warnings=warnings)
    import pandas as pd

    values = array.astype(np.float32 if array.dtype == np.float32 else np.float64)
    columns = {name: pd.Series(column) for name, column in zip(names, values.T, strict=True)}
    # The user chose the scales of an array, so a warning is enough. Annotated data have one unit,
    # even if the variances of their columns differ.
    return preparation.finish(columns, known, n, missing, log, standardize is True, units=units)


class _TablePreparation(Record):
    """Preparation of the columns of one table, with a record of notes and warnings."""

    def finish(
        self, columns: dict[str, pd.Series], known: Any, n: int, missing: str,
        log: str | Collection[str], standardize: bool | str, of_frame: bool = False,
        units: bool = True,
    ) -> Prepared:  # fmt: skip
        """Select rows, encode features, take logarithms and standardise.

        Columns of a frame are checked for identifiers, years and codes for missing values.
        ``columns`` are the features by name, ``n`` is the number of rows, and ``units`` states
        whether columns may have different units. See `nrprob.prepare` for all other arguments.
        """
        rows, known = self.select_rows(columns, known, n, missing)
        selected = {name: column.iloc[rows] for name, column in columns.items()}
        texts = {}
        if self.keeps:
            texts = {
                n: as_categories(c) for n, c in selected.items() if kind_of_column(c) == "text"
            }
        encoded = {name: column for name, column in selected.items() if name not in texts}
        features = encode_features(encoded, len(rows), of_frame, missing, self)
        if of_frame:
            warn_of_suspicious(features, self)
            warn_of_determined(selected, known, self)
            note_copies(features, texts, known, self)
        logarithms: dict[str, tuple[str, float]] = {}
        if log:
            groups = known_groups(known)
            features, logarithms = take_logarithms(features, log, groups, selected, self)
        renamed = {column: name for name, (column, _) in logarithms.items()}
        ready = Prepared(
            features.values, known, features.names, rows, indicators_=self.indicators,
            logarithms_=logarithms,
        )  # fmt: skip
        if units or standardize:
            ready.X, ready.scales_ = standardise_features(features, standardize, self)
        if of_frame and self.keeps:
            columns = dict(zip(features.names, ready.X.T, strict=True)) | texts
            ready.feature_names_ = [renamed.get(name, name) for name in selected]
            ready.X = _join_columns({name: columns[name] for name in ready.feature_names_})
            ready.kinds_ = dict(zip(ready.feature_names_, infer_kinds(ready.X), strict=True))
        ready.notes, ready.warnings = self.notes, self.warnings
        ready.identifiers_ = self.identifiers
        return ready

    def select_rows(
        self, columns: dict[str, pd.Series], known: Any, n: int, missing: str
    ) -> tuple[np.ndarray, Any]:
        """Select the rows to keep, by the treatment ``missing`` of missing values.

        Returns the positions of these rows, and their known structure.
        """
        frame = self._read_known(known, missing)
        if frame is not None and (empty := [z for z in frame if not frame[z].notna().any()]):
            raise ValueError(
                f"known columns must have values; got only missing values in {quote_names(empty)}; "
                "name another column"
            )
        rows = select_complete_rows(columns, frame, missing_rows(known, n), n, missing, self)
        if frame is not None and len(rows) > 1:
            constant = [name for name in frame if frame[name].iloc[rows].nunique() == 1]
            # `fit` warns if all columns are constant labels, which are one known group.
            others = len(constant) < frame.shape[1] or any(is_float(frame[z]) for z in frame)
            if constant and others:
                verb = "is" if len(constant) == 1 else "are"
                self.warnings.append(
                    f"known columns should vary; {quote_names(constant)} {verb} the same in all "
                    "rows, so that there is no effect to remove; leave out such columns"
                )
        return rows, take_known_rows(known if frame is None else frame, rows, n)

    def select_features(
        self, X: pd.DataFrame, chosen: bool, problems: list[Problem]
    ) -> dict[str, pd.Series]:
        """Select the columns that can be features: numbers, booleans, and text of few values.

        Text that identifies rows, constant text, empty columns and indices are left out, with
        notes. ``chosen`` states that the user has chosen the columns, so indices stay. ``problems``
        are columns whose texts cannot be read as numbers.

        Raises
        ------
        ValueError
            If a column can be neither used nor left out, or no feature is left.
        """
        # Find the type of every column.
        kinds = {name: kind_of_column(X[name]) for name in X}
        kinds |= dict.fromkeys((n for problem in problems for n in problem.columns), "unreadable")
        texts = {name: X[name].dropna() for name, kind in kinds.items() if kind == "text"}
        unique = [name for name, values in texts.items() if differs_in_every_row(values)]
        constant = [name for name, values in texts.items() if values.nunique() == 1]
        empty = [n for n, kind in kinds.items() if kind == "empty" or not X[n].notna().any()]
        n_values = {n: v.nunique() for n, v in texts.items() if n not in unique}
        rare = []
        if self.keeps:
            rare = [n for n, k in n_values.items() if hardly_repeat(k, len(texts[n]))]
            rare = [name for name in rare if name not in constant]
            n_values = {}
        self._refuse_columns(kinds, problems, n_values)
        self.note_columns(unique, "{} left out: text that differs in every row identifies rows")
        self.note_columns(rare, "{} left out: the values of this text hardly repeat")
        self.note_columns(constant, "{} left out: text of one value has no information")
        self.note_columns(empty, "{} left out: no row has a value")
        left_out = {*unique, *rare, *constant, *empty}
        self.identifiers = [name for name in unique if X[name].notna().all()]
        # Leave out row indices, unless no other feature would be left.
        if not chosen:
            indices = [n for n in X if kinds[n] == "number" and n not in left_out]
            indices = [n for n in indices if is_index(n, as_numbers(X[n]))]
            if len(left_out) + len(indices) < X.shape[1]:
                self.note_columns(indices, "{} left out: whole numbers that differ in every row")
                left_out.update(indices)
                self.identifiers += indices
        features = {name: X[name] for name in X if name not in left_out}
        if not features:
            raise NoFeatureLeft(
                f"no feature is left; got {quote_names(kinds)}, which hold neither numbers nor "
                "text of few values; pass other columns"
            )
        return features

    def _refuse_columns(
        self, kinds: dict[str, str], problems: list[Problem], n_values: dict[str, int]
    ) -> None:
        """Raise one error for all columns that cannot be features.

        Parameters
        ----------
        kinds : type of every column
        problems : columns whose texts cannot be read as numbers
        n_values : number of distinct values of text columns
        """
        unfit = {
            "date": ("dates in", "convert dates to numbers"),
            "mixed": ("several kinds of values in", "give a column one kind of values"),
            "object": ("lists or other objects in", "convert objects to numeric columns"),
        }
        problems = [
            *(
                Problem(f"{unfit[kind][0]} {name!r}", unfit[kind][1], [name], {"drop": [name]})
                for name, kind in kinds.items()
                if kind in unfit
            ),
            *problems,
            *(
                Problem(
                    f"{n} values of text in {name!r}",
                    "merge values of text, or name the column as known",
                    [name],
                    {"drop": [name]},
                )
                for name, n in n_values.items()
                if n > MOST_VALUES
            ),
        ]
        if problems:
            texts = "text" if self.keeps else f"text of up to {MOST_VALUES} values"
            raise unfit_columns(problems, texts, self.say)

    def _read_known(self, known: Any, missing: str) -> pd.DataFrame | None:
        """Return the known columns as a frame; None if ``known`` is an array or None.

        If missing values are kept, rows with a missing label form a separate group.
        """
        if not is_table(known):
            return None
        frame = as_frame(known).copy()
        check_names(frame.columns, "known")
        for name in frame:
            column = frame[name]
            check_hashable(np.asarray(column), f" in column {name!r}")
            # Few whole numbers are labels, since missing values turn integers into floats.
            n_values, dtype_kind = column.nunique(), getattr(column.dtype, "kind", "O")
            if dtype_kind == "f" and 0 < n_values <= MOST_VALUES:
                values = column.dropna().to_numpy(np.float64)
                if (values == np.round(values)).all():
                    frame[name] = column.astype("Int64")
                    self.notes.append(
                        f"known {name!r} holds few whole numbers and is read as labels"
                    )
            n_missing = int(column.isna().sum())
            if missing == "keep" and 0 < n_missing < len(column) and not is_float(frame[name]):
                frame[name] = frame[name].astype(object).map(str).mask(column.isna(), "(missing)")
                self.notes.append(
                    f"rows without a value of known {name!r} ({n_missing}) form a separate group"
                )
            if not is_float(frame[name]) and dtype_kind == "f":
                continue
            # Warn of many distinct integers or dates, which are probably measurements.
            is_integer = dtype_kind in "iu"
            if (is_integer or kind_of_column(column) == "date") and n_values > MOST_VALUES:
                what, alternative = "dates or times", ""
                if is_integer:
                    what = "whole numbers"
                    alternative = ", or convert the column to floats if it is a measurement"
                self.warnings.append(
                    f"known {name!r} is read as labels; got {n_values} different {what}; merge "
                    f"the values into groups{alternative}"
                )
        return frame


def _join_columns(columns: dict[str, Any]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(columns)
