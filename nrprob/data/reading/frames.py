"""Read the tables of text files, spreadsheets and Parquet files as pandas frames."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from nrprob.data.reading.conversion import ReadingRecord, TextSource, convert_texts
from nrprob.data.reading.dialect import (
    Header,
    detect_dialect,
    records_of,
)
from nrprob.data.reading.formulas import unescape
from nrprob.data.reading.options import ReadingOptions
from nrprob.data.reading.spreadsheets import SPREADSHEETS, column_values, read_sheet
from nrprob.data.reading.text_files import format_of, open_text
from nrprob.exceptions import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TEXT_FILES", "file_header", "read_frame"]

TEXT_FILES = (".csv", ".tsv", ".txt", ".tab")
_EXTRA = "\0extra"  # name of an additional column for the surplus cell of rows that are too long
_MAX_LINES = 5  # maximum number of lines in a message


def file_header(path: Path, options: ReadingOptions) -> Header | None:
    """Header of a text file or a spreadsheet; None for other formats."""
    if format_of(path) in TEXT_FILES:
        return detect_dialect(path, options).header
    return read_sheet(path, options.sheet)[0] if format_of(path) in SPREADSHEETS else None


def read_frame(
    path: Path,
    options: ReadingOptions,
    record: ReadingRecord,
    *,
    exclude: Collection[str] = (),
    relevant: Collection[str] | None = None,
) -> pd.DataFrame:
    """Read a table as a pandas frame, and convert text columns that hold numbers.

    Parameters
    ----------
    path, options : file, and the user's options for reading it
    record : record to which notes, warnings and problems are added
    exclude : columns that stay text
    relevant : columns whose problems are recorded; None for all columns
    """
    import pandas as pd

    header = file_header(path, options)
    source: TextSource
    if header is None:
        frame, source = pd.read_parquet(path), TextSource()
    elif format_of(path) in SPREADSHEETS:
        frame, source = _read_spreadsheet(path, options)
    else:
        frame, source = _read_text(path, options, record)
    if not len(frame):
        raise InputError(f"the table has no rows; {path}; check its contents")
    frame.columns = [str(name) for name in frame.columns]
    if header is not None:
        record.notes += header.notes
        record.units |= header.units
        for line in header.warnings:
            record.add_warning(line)
        frame = _drop_empty(frame, record)
        source.row_numbers = frame.index.to_numpy()
        frame = frame.reset_index(drop=True)
        if header.has_index:
            frame = frame.set_index(header.names[0])
        source.index = frame.index
    texts = frame.select_dtypes(exclude=["number", "bool", "datetime", "category"])
    for name, column in texts.items():
        if any(isinstance(v, str) and v.startswith("'") for v in column.dropna().unique()):
            frame[name] = column.map(unescape)
    return convert_texts(
        frame, record, source, decimal=options.decimal, exclude=exclude, relevant=relevant
    )


def _drop_empty(frame: pd.DataFrame, record: ReadingRecord) -> pd.DataFrame:
    """Drop rows without any value, and columns without a name and without values.

    Rows of a single column stay, since an empty cell is then a missing value.
    """
    is_missing = frame.isna()
    columns = [n for n in frame if n.startswith("Unnamed: ") and is_missing[n].all()]
    if columns:
        frame = frame.drop(columns=columns)
        record.notes.append(
            f"{len(columns)} column{'s' * (len(columns) > 1)} without a name and without values "
            "left out"
        )
    is_empty = is_missing.all(axis=1).to_numpy()
    if is_empty.any() and len(frame.columns) > 1:
        frame = frame[~is_empty]
        # Whole numbers were read as floats because of the empty rows.
        floats = [name for name in frame.select_dtypes("float") if frame[name].notna().all()]
        integers = [name for name in floats if (frame[name] % 1 == 0).all()]
        frame = frame.astype(dict.fromkeys(integers, np.int64))
        n = int(is_empty.sum())
        record.notes.append(f"{n} empty row{'s' * (n > 1)} left out")
    return frame


class _TextFile(TextSource):
    """A text file as the source of a table."""

    def __init__(self, path: Path, options: ReadingOptions) -> None:
        super().__init__()
        self._path, self._na_values = path, options.na_values
        self._dialect = detect_dialect(path, options)
        self.separator = self._dialect.separator
        self.names = self._dialect.header.names
        self.first_line = self._dialect.n_lines + 1

    @contextmanager
    def _open_rows(self) -> Iterator[IO[str]]:
        """Open the file, and skip the lines before the first row."""
        dialect = self._dialect
        with open_text(self._path, dialect.compression, dialect.encoding) as file:
            for _ in range(dialect.n_lines):
                file.readline()
            yield file

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the number of the first line, from 1, and the cells of every row of the table."""
        dialect = self._dialect
        with self._open_rows() as file:
            for record in records_of(file, dialect.separator, dialect.skips_spaces):
                yield dialect.n_lines + record.first, record.cells

    def read(self, names: Sequence[str], **options: Any) -> pd.DataFrame:
        """Read the rows; ``options`` are further arguments of `pandas.read_csv`.

        ``names`` are the names of all columns of the file, and may end with an additional column.
        """
        import pandas as pd

        dialect = self._dialect
        options = {"na_values": ["", *self._na_values]} | options
        with self._open_rows() as file, warnings.catch_warnings():
            # Cells beyond the extra column are counted by `check_lengths`.
            warnings.simplefilter("ignore", pd.errors.ParserWarning)
            return pd.read_csv(
                file, sep=dialect.separator, header=None, names=list(names),
                index_col=False, keep_default_na=False, low_memory=False,
                skipinitialspace=dialect.skips_spaces, **options,
            )  # fmt: skip

    def count_declared(self, frame: pd.DataFrame) -> None:
        """Count the texts that the user declared missing; ``frame`` has the rows of the file."""
        names = [n for n in self.names if self._na_values and frame[n].isna().any()]
        if names:
            texts = self.read(self.names, usecols=names, dtype=str, na_values=[""])
            for name in names:
                self.missing[name] = texts[name][frame[name].isna()].value_counts().to_dict()

    def check_lengths(self, record: ReadingRecord) -> None:
        """Warn of rows with too few cells.

        Raises
        ------
        ValueError
            If a row has too many cells.
        """
        n = len(self.names)
        short, long = [], []
        for line, cells in self._records():
            if len(cells) < n:
                short.append(f"line {line} has {len(cells)}")
            elif any(cell.strip() for cell in cells[n:]):
                long.append(f"line {line} has {len(cells)} values for {n} columns")
        if long:
            raise ValueError(", ".join(long[:_MAX_LINES]) + ", ..." * (len(long) > _MAX_LINES))
        if short:
            record.warnings.append(
                f"the last columns of short rows are read as missing; of {n} values, "
                f"{', '.join(short[:_MAX_LINES])}{', ...' * (len(short) > _MAX_LINES)}"
            )

    def locate(self, rows: Sequence[int]) -> str:
        """Say in which lines of the file rows are."""
        positions = {int(self.row_numbers[row]) for row in rows}
        lines = [line for i, (line, _) in enumerate(self._records()) if i in positions]
        return _list_lines(lines)

    def read_texts(self, names: Sequence[str]) -> Mapping[str, pd.Series]:
        """Return the original texts (n,) of the named columns of the file, by name."""
        if not names:
            return {}
        frame = self.read(self.names, usecols=list(names), dtype=str).iloc[self.row_numbers]
        return {name: frame[name].set_axis(self.index) for name in names}


class _Sheet(TextSource):
    """A sheet of a spreadsheet as the source of a table; ``first`` is the line of its first row."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def locate(self, rows: Sequence[int]) -> str:
        """Say in which lines of the sheet rows are."""
        return _list_lines([self._first + int(self.row_numbers[row]) for row in rows])


def _list_lines(lines: Sequence[int]) -> str:
    return f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"


def _read_text(
    path: Path, options: ReadingOptions, record: ReadingRecord
) -> tuple[pd.DataFrame, _TextFile]:
    """Read a text file as a frame and a source; columns that hold only numbers are numeric."""
    import pandas as pd

    source = _TextFile(path, options)
    try:
        frame = source.read([*source.names, _EXTRA])
    except pd.errors.ParserError as error:
        if match := re.search(r"EOF inside string starting at row (\d+)", str(error)):
            line = source.first_line + int(match[1])
            raise ValueError(f"a quotation mark in line {line} is not closed") from None
        source.check_lengths(record)
        raise
    last = frame.columns[-2]
    if frame[_EXTRA].notna().any() or frame[last].isna().any():
        source.check_lengths(record)
    source.count_declared(frame)
    return frame.drop(columns=_EXTRA), source


def _read_spreadsheet(path: Path, options: ReadingOptions) -> tuple[pd.DataFrame, _Sheet]:
    """Read a sheet as a frame and a source; columns that hold only numbers are numeric."""
    import pandas as pd

    header, rows, first = read_sheet(path, options.sheet)
    columns, source = {}, _Sheet(first)
    for j, name in enumerate(header.names):
        values, source.missing[name] = column_values(rows, j, options.na_values)
        kinds = {type(value) for value in values if value is not None}
        if kinds <= {float, int} and kinds:
            is_whole = all(value is not None and float(value).is_integer() for value in values)
            columns[name] = pd.Series(values, dtype=np.int64 if is_whole else float)
        elif str in kinds and kinds <= {str, float, int}:
            # Among texts, the number 1.234 is written as 1.2340, so that its point cannot separate
            # thousands.
            columns[name] = pd.Series([_number_as_text(value) for value in values], dtype=object)
        else:
            columns[name] = pd.Series(values, dtype=object).infer_objects()
    return pd.DataFrame(columns), source


def _number_as_text(value: Any) -> Any:
    if not isinstance(value, float):
        return value if value is None or isinstance(value, str) else str(value)
    text = repr(int(value)) if value.is_integer() else repr(value)
    return f"{text}0" if "." in text and "e" not in text else text
