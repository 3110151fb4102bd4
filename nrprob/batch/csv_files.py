"""CSV files whose text cells a spreadsheet shows as text, never as a formula.

Spreadsheets evaluate a cell that begins with ``=``, ``+``, ``-`` or ``@``, also after a tab or a
line break. The writer puts a single quote before such texts, and the reader removes it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["escape", "read_csv", "unescape", "with_labelings", "write_csv"]

# Single quotes before such a character are escaped as well, so no two texts are written alike.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def _needs_quote(text: str) -> bool:
    """Whether a spreadsheet may evaluate a text as a formula; numbers are safe."""
    return _FORMULA.match(text) is not None and _NUMBER.fullmatch(text) is None


def escape(value: Any) -> Any:
    """Put a single quote before a text that a spreadsheet may evaluate as a formula."""
    return f"'{value}" if isinstance(value, str) and _needs_quote(value) else value


def unescape(value: Any) -> Any:
    """Remove the single quote of `escape`."""
    escaped = isinstance(value, str) and value.startswith("'") and _needs_quote(value[1:])
    return value[1:] if escaped else value


def with_labelings(columns: Mapping[str, Any], labelings: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of results and labelings; a labeling named like a result gets the suffix "(data)"."""
    result = dict(columns)
    for name, values in labelings.items():
        while name in result:
            name = f"{name} (data)"
        result[name] = values
    return result


def write_csv(columns: Mapping[str, Any]) -> str:
    """Contents of a CSV file with these columns, with escaped text cells and headers."""
    import pandas as pd

    frame = pd.DataFrame(dict(columns))
    texts = frame.select_dtypes(exclude=["number", "bool"]).columns
    frame = frame.astype(dict.fromkeys(texts, object))
    frame[texts] = frame[texts].map(escape)
    frame.columns = frame.columns.map(escape)
    # An unquoted carriage return ends a row.
    cells = [*frame.columns, *(cell for name in texts for cell in frame[escape(name)])]
    returns = any(isinstance(cell, str) and "\r" in cell for cell in cells)
    quoting = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    return frame.to_csv(index=False, quoting=quoting)


def read_csv(path: Path, separator: str) -> Any:
    """Read a CSV or TSV file as a pandas frame, and unescape text cells and headers."""
    import pandas as pd

    frame = pd.read_csv(path, sep=separator)
    frame.columns = frame.columns.map(unescape)
    for name, column in frame.select_dtypes(exclude=["number", "bool"]).items():
        frame[name] = column.map(unescape)
    return frame
