"""Detect how a text file stores a table: separator of the columns, header and rows.

The first records of the file decide. The module imports no package that loads slowly, so that
errors in the names of files and columns are reported quickly.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from nrprob.data.frames import quote_names
from nrprob.data.reading.formulas import unescape
from nrprob.data.reading.number_text import MISSING_TEXT, read_number
from nrprob.data.reading.options import WHITESPACE, ReadingOptions
from nrprob.data.reading.text_files import (
    detect_compression,
    detect_encoding,
    format_of,
    open_text,
)
from nrprob.exceptions import short_repr

__all__ = ["Dialect", "Header", "detect_dialect", "find_header", "records_of"]

_NAMES = {"\t": "tabs", ";": "semicolons", ",": "commas", "|": "vertical bars",
          WHITESPACE: "spaces"}  # fmt: skip
_SAMPLE = 300  # number of lines that are read to detect the dialect
_HEADER = "column {}"  # names of the columns of a file without a header
_LONGEST_UNIT = 12  # letters
_WAVELENGTHS = 8  # minimum number of increasing numbers that are column names


class Record(NamedTuple):
    """One record of a text file: the numbers of its first and last line, from 1, and its cells."""

    first: int
    last: int
    cells: list[str]


@dataclass(frozen=True)
class Header:
    """Names of the columns of a table, and where its rows begin.

    Attributes
    ----------
    names : distinct names of all columns
    first : index of the first record that is a row of the table
    has_index : whether the first column has names of rows
    notes : descriptions of what was detected
    warnings : decisions that may be wrong
    hint : what may be wrong if the table lacks a column that the user names; may be empty
    units : units of columns, by name, from the line after the header
    """

    names: list[str]
    first: int
    has_index: bool = False
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hint: str = ""
    units: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dialect:
    """How a text file stores a table.

    Attributes
    ----------
    compression : "gz", "bz2", "xz", "zip", or empty
    encoding : encoding of the text
    separator : separator of the columns
    skips_spaces : whether spaces after a separator are no part of a cell
    header : names of the columns
    n_lines : number of lines before the first row
    """

    compression: str
    encoding: str
    separator: str
    skips_spaces: bool
    header: Header
    n_lines: int


def records_of(
    lines: Iterable[str], separator: str, skips_spaces: bool = False
) -> Iterator[Record]:
    """Records of a text file, without blank lines."""
    if separator == WHITESPACE:
        stripped = (line.replace("\t", " ").strip() + "\n" for line in lines)
        reader = csv.reader(stripped, delimiter=" ", skipinitialspace=True)
    else:
        reader = csv.reader(lines, delimiter=separator, skipinitialspace=skips_spaces)
    first = 1
    for cells in reader:
        if len(cells) > 1 or (cells and cells[0].strip()):
            yield Record(first, reader.line_num, cells)
        first = reader.line_num + 1


def detect_dialect(path: Path, options: ReadingOptions) -> Dialect:
    """Detect how a text file stores its table; ``options`` override the detection.

    Raises
    ------
    InputError
        If the content is not text, or the compression is not supported.
    ValueError
        If the file is empty, or its content does not have the encoding of ``options``.
    """
    status = path.stat()
    return _detect_dialect(path, options, (status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=8)
def _detect_dialect(path: Path, options: ReadingOptions, version: tuple[int, int]) -> Dialect:
    """Cached `detect_dialect`; ``version`` is the size and the modification time of the file."""
    compression = detect_compression(path)
    encoding, said = options.encoding, ""
    if encoding is None:
        encoding, said = detect_encoding(path, compression)
    with open_text(path, compression, encoding) as file:
        lines = [line.lstrip("\ufeff") if not i else line
                 for i, line in enumerate(itertools.islice(file, _SAMPLE + 1))]  # fmt: skip
    is_cut = len(lines) > _SAMPLE
    lines = lines[:_SAMPLE]
    # Excel may write the separator in the first line.
    start = 0
    separator = options.sep
    if lines and lines[0].lower().startswith("sep=") and len(lines[0].strip()) <= 5:
        separator = separator or (lines[0].rstrip("\r\n")[4:5] or None)
        start = 1
    comments = 0
    while start < len(lines) and (not lines[start].strip() or lines[start].startswith("#")):
        comments += lines[start].startswith("#")
        start += 1
    notes = [said] if said and encoding != "cp1252" else []
    warnings = [said] if said and encoding == "cp1252" else []
    expected = "\t" if format_of(path) in (".tsv", ".tab") else ","
    if separator is None:
        separator, others = _choose_separator(lines[start:], is_cut, expected)
        if others:
            warnings.append(
                f"the columns are separated by {_NAMES[separator]}, but could also be separated by "
                f"{' or '.join(_NAMES[other] for other in others)}; name the separator with --sep"
            )
    hint = "" if options.sep is None else _separator_hint(lines[start:], is_cut, separator)
    if separator != expected and options.sep is None:
        notes.append(f"the columns are separated by {_NAMES.get(separator, repr(separator))}")
    # Spaces after all separators of the first line are no part of the cells.
    head = next((line for line in lines[start:] if line.strip()), "")
    parts = head.strip().split(separator)[1:] if separator != WHITESPACE else []
    skips_spaces = bool(parts) and all(part.startswith(" ") for part in parts)
    records = list(records_of(lines[start:], separator, skips_spaces))
    if is_cut and len(records) > 2:
        records.pop()  # a quoted cell may continue beyond the sample
    if not records:
        raise ValueError("there is nothing in it")
    header = find_header([record.cells for record in records])
    # If a file has no other header, a comment with a name for every column is the header.
    if comments and (last := _comment_cells(lines[:start], separator)) is not None:
        names = [cell.strip().lstrip("#").strip() for cell in last]
        is_row = any(read_number(cell) for cell in records[0].cells)
        if len(names) == len(records[0].cells) > 1 and is_row:
            header = find_header([names, *(record.cells for record in records)])
            header = replace(header, first=header.first - 1)
            comments -= 1
    if comments:
        first = next(line for line in lines if line.startswith("#")).strip()
        notes.append(f"{comments} comment line{'s' * (comments > 1)} skipped: {short_repr(first)}"
                     + ", ..." * (comments > 1))  # fmt: skip
    n_lines = start + (records[header.first - 1].last if header.first else 0)
    header = replace(
        header, notes=notes + header.notes, warnings=warnings + header.warnings, hint=hint
    )
    return Dialect(compression, encoding, separator, skips_spaces, header, n_lines)


def _comment_cells(lines: Sequence[str], separator: str) -> list[str] | None:
    """Cells of the last comment line; None without one."""
    last = next((line for line in reversed(lines) if line.startswith("#")), None)
    if last is None:
        return None
    return next((r.cells for r in records_of([last.lstrip("#").lstrip()], separator)), None)


def _separator_hint(lines: Sequence[str], is_cut: bool, separator: str) -> str:
    """State that the option --sep is probably wrong; empty if no other separator fits better.

    ``separator`` is the value of the option. See `_choose_separator` for the other arguments.
    """
    best, _ = _choose_separator(lines, is_cut, separator)
    if best == separator:
        return ""
    return (
        f"--sep is probably wrong, since {_NAMES[best]} separate the columns better than "
        f"{_NAMES.get(separator, repr(separator))}; leave --sep out"
    )


def _choose_separator(lines: Sequence[str], is_cut: bool, expected: str) -> tuple[str, list[str]]:
    """Choose the separator of the columns for which most records have equally many cells.

    Among equally good separators, the function prefers the separator with the largest share of
    numbers. For example, semicolons split 1,5;2,5 into two numbers, and commas split this line into
    1, 5;2 and 5. ``is_cut`` states whether ``lines`` are only the beginning of the file.
    ``expected`` is the separator that wins ties, and the result if no separator fits.

    Returns
    -------
    separator, others : the chosen separator, and other separators that are as good
    """
    scores: dict[str, tuple[float, float]] = {}
    for separator in (*"\t;,|", WHITESPACE):
        try:
            cells = [record.cells for record in records_of(lines, separator)]
        except csv.Error:  # a cell that is too long
            continue
        cells = cells[:-1] if is_cut and len(cells) > 2 else cells
        if not cells:
            continue
        width, n_equal = Counter(map(len, cells)).most_common(1)[0]
        share = n_equal / len(cells)
        if width == 1:
            continue
        # Spaces are in many texts. They separate columns only if nothing else does.
        if separator == WHITESPACE and (scores or len(set(map(len, cells[1:]))) > 1):
            continue
        values = [cell for row in cells[1:] for cell in row if cell.strip()]
        n_numbers = sum(read_number(value) is not None for value in values[:2000])
        share_numbers = n_numbers / max(1, len(values[:2000]))
        if separator == WHITESPACE and not share_numbers:
            continue  # a column of phrases
        scores[separator] = (share, share_numbers)
    if not scores:
        return expected, []
    best = max(scores.values())
    tied = [separator for separator, score in scores.items() if score == best]
    chosen = expected if expected in tied else tied[0]
    return chosen, [separator for separator in tied if separator != chosen]


def find_header(cells: Sequence[Sequence[str]]) -> Header:
    """Find the header among the first records of a table, and name its columns.

    Titles before the header and a line of units after it are skipped.
    """
    width = Counter(len(row) for row in cells).most_common(1)[0][0]
    notes, warnings = list[str](), list[str]()
    first = 0
    # A title has one cell. The header follows it, and has no numbers.
    while first + 2 < len(cells) and _is_title(cells[first], width):
        following = [c for c in cells[first + 1] if c.strip()]
        if any(read_number(cell) for cell in following):
            break
        title = next((cell for cell in cells[first] if cell.strip()), "")
        if title:
            notes.append(f"a line before the header is skipped: {short_repr(title)}")
        first += 1
    header, rows = list(cells[first]), cells[first + 1 :]
    # Rows may have one cell more than the header: an empty one, or a name of the row.
    has_index = False
    row_width = Counter(len(row) for row in rows).most_common(1)[0][0] if rows else len(header)
    if row_width == len(header) + 1:
        if all(not row[-1].strip() for row in rows if len(row) == row_width):
            header.append("")
        else:
            header, has_index = ["", *header], True
            notes.append("the rows have one cell more than the header: the first names the row")
    while len(header) > max(row_width, 1) and not header[-1].strip():
        header.pop()
    names = [unescape(cell) for cell in header]
    lacks = _lacks_header(names, rows)
    if lacks:
        names = [_HEADER.format(j + 1) for j in range(len(names))]
        warnings.append(
            f"the file has no header, since its first line {lacks}; the columns are called "
            f"{quote_names(names, 3)}; add a line with names if this is wrong"
        )
        return Header(names, first, notes=notes, warnings=warnings)
    if all(read_number(name) for name in names) and names != [*map(str, range(len(names)))]:
        warnings.append(
            f"the first line holds numbers, which are read as names of the columns: "
            f"{quote_names(names, 3)}; add a line with names if they are a row"
        )
    first += 1
    if units := _units(rows, len(names)):
        listed = ", ".join(units.values())
        notes.append(f"the line after the header holds units and is skipped: {listed}")
        first += 1
    if not has_index and names[0] == "" and len(names) > 1:
        has_index = True  # as pandas writes its index
    names = [name or f"Unnamed: {j}" for j, name in enumerate(names)]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        names = _numbered(names, twice)
        notes.append(
            f"columns with equal names are numbered: {quote_names(twice)} became "
            f"{quote_names([n for n in names if n not in header])}"
        )
    # A long text describes a column rather than its unit, and "-" stands for no unit.
    signs = {names[j]: text.strip("()[] ") for j, text in units.items()}
    signs = {
        name: sign
        for name, sign in signs.items()
        if len(sign) <= _LONGEST_UNIT and sign not in ("", "-", "–")
    }
    return Header(names, first, has_index, notes, warnings, units=signs)


def _is_title(row: Sequence[str], width: int) -> bool:
    """Whether a record is a title: one cell, in a table of several columns."""
    n_filled = sum(bool(cell.strip()) for cell in row)
    return n_filled <= 1 and width > 1 and (len(row) != width or width > 2)


def _lacks_header(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return why the first line is a row of the table rather than a header; empty for a header.

    ``names`` are the cells of the first line, and ``rows`` the cells of the following lines.
    """
    columns = [[row[j].strip() for row in rows if j < len(row)] for j in range(len(names))]
    columns = [[cell for cell in column if cell] for column in columns]
    numeric = [bool(c) and all(read_number(cell) for cell in c) for c in columns]
    if not any(numeric):
        return ""
    values = [read_number(name) for name in names]
    if any(is_numeric and value is None for is_numeric, value in zip(numeric, values, strict=True)):
        return ""
    if not all(numeric):
        texts = [j for j, is_numeric in enumerate(numeric) if not is_numeric and columns[j]]
        is_row = texts and all(names[j] in columns[j] for j in texts)
        return "has values of the other lines" if is_row else ""
    return "" if _are_names([v.values[0] for v in values if v]) else "holds numbers only"


def _are_names(header: Sequence[float | None]) -> bool:
    """Whether the numbers in the first line of a numeric table are names of the columns.

    The numbers are names in two cases: they count the columns, as in files of pandas; or there are
    at least eight numbers in increasing order, such as wavelengths.
    """
    n = len(header)
    if [*header] == [*range(n)] or (n > 2 and [*header] == [*range(1, n + 1)]):
        return True
    pairs = itertools.pairwise(header)
    return n >= _WAVELENGTHS and all(a is not None and b is not None and a < b for a, b in pairs)


def _units(rows: Sequence[Sequence[str]], width: int) -> dict[int, str]:
    """Return the units in the first row, by position of the column; empty if it holds no units.

    The row holds units if it has no number, and if at least two numeric columns of ``rows`` begin
    with a text. ``width`` is the number of columns.
    """
    if len(rows) < 3 or any(read_number(cell) for cell in rows[0]):
        return {}
    units = {}
    for j, unit in enumerate(cell.strip() for cell in rows[0][:width]):
        column = [row[j].strip() for row in rows[1:] if j < len(row) and row[j].strip()]
        is_numeric = bool(column) and all(read_number(cell) for cell in column)
        if is_numeric and unit and unit.lower() not in MISSING_TEXT:
            units[j] = unit
        elif not is_numeric and column and unit in column:
            return {}  # a row, since its text occurs again
    return units if len(units) >= 2 else {}


def _numbered(names: Sequence[str], twice: Sequence[str]) -> list[str]:
    """Append a number to the names ``twice``, which occur more than once among ``names``."""
    count: Counter[str] = Counter()
    result = []
    for name in names:
        if name in twice:
            count[name] += 1
            name = f"{name} ({count[name]})"
        result.append(name)
    again = [name for name, times in Counter(result).items() if times > 1]
    return _numbered(result, again) if again else result
