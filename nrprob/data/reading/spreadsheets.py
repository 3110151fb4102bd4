"""Read sheets of spreadsheets: XLSX, XLS, XLSB and ODS.

The module imports no package that loads slowly, so that errors in names are reported quickly.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from nrprob.data.frames import quote_names
from nrprob.data.reading.dialect import Header, find_header
from nrprob.exceptions import InputError

__all__ = ["SPREADSHEETS", "column_values", "read_sheet"]

SPREADSHEETS = (".xlsx", ".xls", ".xlsb", ".ods")


def read_sheet(path: Path, sheet: str | None) -> tuple[Header, list[list[Any]], int]:
    """Read one sheet of a spreadsheet.

    ``sheet`` is the name of the sheet, or its number from 1. None reads the first sheet that is not
    empty.

    Returns
    -------
    header, rows, offset : names of the columns, cells of the rows, and the number of the line of
        the first row in the sheet
    """
    status = path.stat()
    return _read_sheet(path, sheet, (status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=2)
def _read_sheet(
    path: Path, sheet: str | None, version: tuple[int, int]
) -> tuple[Header, list[list[Any]], int]:
    """Cached `read_sheet`; ``version`` is the size and the modification time of the file."""
    from python_calamine import CalamineError, CalamineWorkbook

    try:
        book = CalamineWorkbook.from_path(str(path))
    except CalamineError as error:
        raise ValueError(str(error) or "it is no spreadsheet") from error
    names, hint = book.sheet_names, ""
    if sheet is None:
        cells: list[list[Any]] = []
        for name in names:
            if cells := book.get_sheet_by_name(name).to_python(skip_empty_area=False):
                break
        if len(names) > 1:
            hint = (
                f"the file has {len(names)} sheets ({quote_names(names)}), of which {name!r} is "
                "read; --sheet chooses another"
            )
    else:
        if sheet not in names and sheet.isdigit() and 1 <= int(sheet) <= len(names):
            sheet = names[int(sheet) - 1]
        if sheet not in names:
            raise InputError(
                f"there is no such sheet; --sheet {sheet}; {path} has {quote_names(names)}"
            )
        cells = book.get_sheet_by_name(sheet).to_python(skip_empty_area=False)
    # Empty lines are no records; the others keep their numbers, for messages.
    lines = [i for i, row in enumerate(cells) if any(cell not in ("", None) for cell in row)]
    if not lines:
        raise ValueError("there is nothing in it")
    width = 1 + max(j for i in lines for j, cell in enumerate(cells[i]) if cell not in ("", None))
    records = [[_as_text(cell) for cell in cells[i][:width]] for i in lines[:300]]
    header = find_header(records)
    header = replace(header, notes=[hint] * bool(hint) + header.notes, hint=hint)
    first = lines[header.first] if header.first < len(lines) else len(cells)
    return header, [row[:width] for row in cells[first:]], first + 1


def _as_text(cell: Any) -> str:
    """Convert a cell to text, in which `find_header` searches for the header."""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, datetime.date | datetime.time | datetime.timedelta):
        return cell.isoformat() if hasattr(cell, "isoformat") else str(cell)
    return "" if cell is None else str(cell)


def column_values(
    rows: Sequence[Sequence[Any]], j: int, na_values: Collection[str] = ()
) -> tuple[list[Any], dict[str, int]]:
    """Values of column ``j`` of a sheet; None for empty cells and ``na_values``.

    Also returns the number of rows of every text of ``na_values`` in the column.
    """
    texts = [_as_text(row[j]) if j < len(row) else "" for row in rows]
    missing = {"", *na_values}
    values = [None if t in missing else row[j] for row, t in zip(rows, texts, strict=True)]
    return values, {text: texts.count(text) for text in na_values if text in texts}
