"""Convert text columns of a table to numbers where they hold numbers, and report the changes."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.data.frames import quote_names
from nrprob.data.reading.number_text import (
    DECIMALS,
    MISSING_TEXT,
    MISSING_WORDS,
    NumberColumn,
    Reading,
    analyse_texts,
)
from nrprob.exceptions import short_repr

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Problem", "ReadingRecord", "TextSource", "as_command_options", "convert_texts"]

_MAX_SHOWN = 5  # maximum number of texts of a column in a message
_MAX_ROWS = 3  # maximum number of rows of a text in a message
_TEXT_READ = "text read as numbers"
_COMMAS_READ = "decimal commas read"
_NAMES = {",": "comma", ".": "point"}


@dataclass
class Problem:
    """Columns of a table that cannot be used as they are, and what the user can do.

    Attributes
    ----------
    got : description of the unsuitable values
    remedy : what to do
    columns : names of the columns
    options : options of the command line that settle the problem, with their values
    """

    got: str
    remedy: str
    columns: list[str]
    options: dict[str, list[str]]


@dataclass
class ReadingRecord:
    """What was detected and changed while a file was read.

    Attributes
    ----------
    has_options : whether the user can override decisions by options of the command line
    notes : descriptions of the changes
    warnings : decisions that may be wrong
    problems : columns that cannot be used as they are
    units : units of columns of numbers, such as "%", by name of the column
    """

    has_options: bool = False
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    units: dict[str, str] = field(default_factory=dict)

    def add_warning(self, line: str) -> None:
        """Add the warning ``line``, whose last part advises an option of the command line.

        The advice is left out if ``has_options`` is False.
        """
        self.warnings.append(line if self.has_options else line.rpartition("; ")[0])


def as_command_options(problems: Sequence[Problem]) -> str:
    """Join the command-line options that settle all problems, quoted for a shell."""
    options: dict[str, dict[str, None]] = {}
    for problem in problems:
        for option, texts in problem.options.items():
            options.setdefault(option, {}).update(dict.fromkeys(texts))
    parts = list[str]()
    for option, values in options.items():
        joined = ",".join(value for value in values if "," not in value)
        texts = [joined] * bool(joined) + [value for value in values if "," in value]
        # A value that begins with a dash would be read as an option.
        between = ["=" if text.startswith("-") else " " for text in texts]
        parts += [f"--{option}{b}{shlex.quote(t)}" for b, t in zip(between, texts, strict=True)]
    return " ".join(parts)


class TextSource:
    """Source of a table: a file, or an object in memory.

    The methods locate rows in the source, for messages, and read original texts.

    Attributes
    ----------
    separator : separator of the columns of a text file; None without a text file
    row_numbers : for every row of the table, its position among the rows of the file
    index : index of the table
    missing : texts that the user declared missing, with their numbers of rows, by column
    """

    separator: str | None = None
    row_numbers: Any = None
    index: Any = None

    def __init__(self) -> None:
        self.missing: dict[str, dict[str, int]] = {}

    def locate(self, rows: Sequence[int]) -> str:
        """Describe where rows of the table are in the source; ``rows`` are positions from 0."""
        return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows))}"

    def read_texts(self, names: Sequence[str]) -> Mapping[str, pd.Series]:
        """Return the original texts (n,) of named columns, by name; empty without a text file."""
        return {}


def convert_texts(
    frame: pd.DataFrame,
    record: ReadingRecord,
    source: TextSource,
    *,
    decimal: str | None = None,
    exclude: Collection[str] = (),
    relevant: Collection[str] | None = None,
) -> pd.DataFrame:
    """Convert text columns that hold numbers; return a frame with the converted columns.

    In the other text columns, words such as "NA" become missing values.

    Parameters
    ----------
    frame : table with distinct column names
    record : record to which notes, warnings and problems are added
    source : source of the table
    decimal : decimal separator of all columns; None to detect it for every column
    exclude : columns that stay text
    relevant : columns whose problems are recorded; None for all columns
    """
    texts = {name: frame[name] for name in frame if _is_text(frame[name])}
    conversion = _Conversion(frame.copy(deep=False), record, source, decimal)
    conversion.certain = {mark: [] for mark in DECIMALS}
    for name, declared in source.missing.items():
        conversion.count_missing(name, declared)
    columns: dict[str, NumberColumn] = {}
    for name, values in texts.items():
        if name not in exclude and conversion.convert_plain(name, values):
            continue
        counts = values.value_counts().to_dict()
        column = None if name in exclude else analyse_texts(counts)
        if column is not None and not column.is_whole:
            columns[name] = column
            continue
        if column is None:
            conversion.kept[name] = {w.strip() for w in counts if w.strip().lower() in MISSING_TEXT}
        if words := [word for word in counts if word.strip() in MISSING_WORDS]:
            conversion.frame[name] = values.mask(values.isin(words))
            conversion.count_missing(name, {word: counts[word] for word in words})
    certain = conversion.certain
    for mark in DECIMALS:
        certain[mark] += [n for n, c in columns.items() if c.decimals == mark and not c.others]
    floats = [name for name in frame if frame[name].dtype.kind == "f" and name not in exclude]
    is_clear = {name: _has_decimals(frame[name], source.separator) for name in floats}
    certain["."] += [name for name in floats if is_clear[name]]
    # With decimal commas, the points in columns of floats may separate thousands.
    if decimal == "," or (decimal is None and (certain[","] or source.separator == ";")):
        doubtful = [name for name in floats if decimal or not is_clear[name]]
        for name, values in source.read_texts(doubtful).items():
            column = analyse_texts(values.value_counts().to_dict())
            if column is None:
                continue
            # 547 and 2.593 in one column are 547 and 2593, unless the table has decimal points.
            has_thousands = column.mixes_lengths and not certain["."]
            if decimal or (column.is_ambiguous and certain[","]) or has_thousands:
                columns[name], texts[name] = column, values
            elif column.is_ambiguous:
                record.add_warning(
                    f"points in {name!r} are read as decimal points, but could separate thousands; "
                    f"got {column.differing()[0]}; pass --decimal , if they separate thousands"
                )
    for name, column in columns.items():
        conversion.convert_column(name, texts[name], column)
    record.problems += [
        problem
        for problem in conversion.problems
        if relevant is None or {*problem.columns} & {*relevant}
    ]
    conversion.write_notes()
    return conversion.frame


def _is_text(column: pd.Series) -> bool:
    """Whether a column has texts only, apart from missing values, and is not categorical."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        return False
    return pd.api.types.infer_dtype(column, skipna=True) == "string"


def _has_decimals(column: pd.Series, separator: str | None) -> bool:
    """Whether a column of floats certainly has decimal points.

    ``separator`` is the separator of the columns. A file with other separators than commas may have
    decimal commas, so the points of numbers such as 1.234 may separate thousands.
    """
    values = column.to_numpy(float, na_value=np.nan)
    values = values[np.isfinite(values) & (np.abs(values) < 1e9)]
    if separator in (None, ","):
        return bool((values != np.round(values)).any())
    has_more_digits = np.abs(values * 1000 - np.round(values * 1000)) > 1e-6
    return bool((has_more_digits | ((np.abs(values) < 1) & (values != 0))).any())


class _Conversion:
    """Conversion of the columns of one table, with notes about the changes.

    Attributes
    ----------
    frame : table, whose columns are replaced
    problems : problems of all columns
    certain : for each decimal separator, the columns that certainly use this separator
    kept : for each text column, the texts that stand for missing values in columns of numbers
    """

    def __init__(
        self, frame: pd.DataFrame, record: ReadingRecord, source: TextSource, decimal: str | None
    ) -> None:
        self.frame, self._record, self._source, self._decimal = frame, record, source, decimal
        self.problems: list[Problem] = []
        self.certain: dict[str, list[str]] = {}
        self.kept: dict[str, set[str]] = {}
        # Beginning of a note -> columns with an example. Text of missing values -> numbers of
        # rows by column.
        self._changes: dict[str, dict[str, str]] = {}
        self._missing: dict[str, dict[str, int]] = {}

    def convert_plain(self, name: str, texts: pd.Series) -> bool:
        """Convert a column of plain decimal numbers, and return whether it was converted.

        Only columns whose decimal separator is certain are converted. On millions of distinct
        numbers, this method is much faster than `convert_column`.
        """
        is_missing = texts.str.strip().str.lower().isin(MISSING_TEXT)
        rest = texts.mask(is_missing)
        for decimal in DECIMALS:
            allowed = rf"[^0-9eE+\-{decimal}]"
            if self._decimal in (None, decimal) and not rest.str.contains(allowed).any():
                break
        else:
            return False
        try:
            result = rest.str.replace(decimal, ".", regex=False).astype(float)
        except ValueError:
            return False
        if not _has_decimals(result, ";"):
            return False
        self.frame[name] = result
        self.certain[decimal].append(name)
        if decimal == "." and not is_missing.any():
            self._changes.setdefault(_TEXT_READ, {})[name] = texts.dropna().iloc[0]
        if decimal == ",":
            example = texts[rest.str.contains(",").fillna(False)].iloc[0].strip()
            value = float(example.replace(",", "."))
            self._changes.setdefault(_COMMAS_READ, {})[name] = f"{example} is {value:.10g}"
        self.count_missing(name, texts[is_missing].value_counts().to_dict())
        return True

    def convert_column(self, name: str, texts: pd.Series, column: NumberColumn) -> None:
        """Convert one column, or record why it cannot be converted."""
        if odd := column.odd_texts(self._decimal or ""):
            self._record_odd(name, texts, column, odd)
            return
        decimal = self._decimal
        if decimal is None and column.is_ambiguous:
            decimal = self._resolve(name, column)
            if decimal is None:
                return
        decimal = decimal or column.decimals[0]
        i = DECIMALS.index(decimal)
        values = {text: reading.values[i] for text, reading in column.readings.items()}
        result = texts.map(values).astype(float)
        if result.notna().all() and (result == result.round()).all():
            result = result.astype(np.int64) if result.abs().max() < 2**53 else result
        self.frame[name] = result
        if column.units[0]:
            self._record.units[name] = column.units[0]
        for text, reading in column.readings.items():
            for change in _changes_of(text, reading, decimal):
                examples = self._changes.setdefault(change, {})
                examples.setdefault(name, f"{text.strip()} is {reading.values[i]:.10g}")
        if not column.missing and not any(name in names for names in self._changes.values()):
            self._changes.setdefault(_TEXT_READ, {})[name] = next(iter(column.readings))
        counts = texts[texts.isin(column.missing)].value_counts().to_dict()
        self.count_missing(name, counts)

    def count_missing(self, name: str, counts: Mapping[str, int]) -> None:
        """Record texts that stand for missing values in a column, with their numbers of rows."""
        for text, count in counts.items():
            by_column = self._missing.setdefault(text.strip(), {})
            by_column[name] = by_column.get(name, 0) + count

    def _resolve(self, name: str, column: NumberColumn) -> str | None:
        """Choose the decimal separator of an ambiguous column.

        If neither the other columns nor the separator of the columns decide, the method records a
        problem and returns None.
        """
        text = column.differing()[0]
        points, commas = self.certain["."], self.certain[","]
        separator = self._source.separator
        if bool(points) != bool(commas):
            decimal = "." if points else ","
            have = "has" if len(points or commas) == 1 else "have"
            reason = f"{quote_names(points or commas, 3)} {have} decimal {_NAMES[decimal]}s"
        elif not points and separator in (",", ";"):
            decimal = "." if separator == "," else ","
            what = "commas" if separator == "," else "semicolons"
            reason = f"the columns are separated by {what}"
        else:
            mark = _NAMES["," if "," in text else "."]
            got = f"{text} in {name!r}, whose {mark} may be decimal or separate thousands"
            remedy = "write numbers with decimal points and without separators of thousands"
            self.problems.append(Problem(got, remedy, [name], {"decimal": [","]}))
            return None
        other = "," if decimal == "." else "."
        value = column.readings[text].values[DECIMALS.index(decimal)]
        self._record.add_warning(
            f"{text} in {name!r} is read as {value:.10g}, since {reason}; pass --decimal {other} "
            f"if the table has decimal {_NAMES[other]}s"
        )
        return decimal

    def _record_odd(
        self, name: str, texts: pd.Series, column: NumberColumn, odd: list[str]
    ) -> None:
        """Record ``odd`` texts that keep a column from being read as numbers, and their rows."""
        mixes_decimals = not (column.others or len(column.units) > 1 or self._decimal)
        # The last text is then an example of the common notation, and is always shown.
        last = odd[-1:] if mixes_decimals else []
        first = odd[: len(odd) - len(last)]
        n_shown = _MAX_SHOWN - len(last)
        shown = [self._locate_text(texts, text) for text in first[:n_shown]]
        shown += ["..."] * (len(first) > n_shown) + [self._locate_text(texts, t) for t in last]
        listed = ", ".join(shown)
        options, remedy = {"drop": [name]}, "write all numbers alike"
        if column.others:
            got, remedy = (
                f"{listed} among the numbers in {name!r}",
                "leave cells without a number empty",
            )
            options = {"na-values": odd} if len(odd) <= _MAX_SHOWN else options
        elif len(column.units) > 1:
            got = f"numbers of several units in {name!r}: {listed}"
        elif self._decimal:
            got = f"numbers in {name!r} without decimal {_NAMES[self._decimal]}s: {listed}"
        else:
            got = f"decimal points and decimal commas in {name!r}: {listed}"
        self.problems.append(Problem(got, remedy, [name], options))

    def _locate_text(self, texts: pd.Series, text: str) -> str:
        """Quote a text of a column, and name the first rows that contain it."""
        rows = np.flatnonzero((texts == text).to_numpy(bool, na_value=False)).tolist()
        where = self._source.locate(rows[:_MAX_ROWS])
        return f"{short_repr(text)} ({where}{', ...' * (len(rows) > _MAX_ROWS)})"

    def write_notes(self) -> None:
        """Add to the record one note for every kind of change."""
        for change, examples in self._changes.items():
            example = next(iter(examples.values()))
            self._record.notes.append(f"{change} in {quote_names(examples)} ({example})")
        if self._missing:
            parts = [
                f"{short_repr(text)} in {', '.join(f'{n!r} ({k})' for n, k in counts.items())}"
                for text, counts in self._missing.items()
            ]
            self._record.notes.append(f"read as missing values: {'; '.join(parts)}")
        for text in self._missing:
            names = [n for n, texts in self.kept.items() if text in texts - MISSING_WORDS]
            if names:
                advice = f"; pass --na-values={shlex.quote(text)} if it means missing"
                self._record.notes.append(
                    f"{short_repr(text)} in {quote_names(names)} is kept as a category"
                    + advice * self._record.has_options
                )


def _changes_of(text: str, reading: Reading, decimal: str) -> list[str]:
    """List the changes by which a text becomes a number, worded as beginnings of notes."""
    changes = {
        "numbers in parentheses are negative": reading.is_negative,
        "percent signs removed": reading.unit in ("%", "‰"),
        "currency signs removed": reading.unit not in ("", "%", "‰"),
        "thousands separators removed": reading.is_grouped[DECIMALS.index(decimal)],
        _COMMAS_READ: decimal == "," and "," in text,
    }
    return [change for change, applies in changes.items() if applies]
