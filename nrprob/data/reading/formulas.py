"""Texts that a spreadsheet evaluates as formulas.

Spreadsheets evaluate a text cell that begins with ``=``, ``+``, ``-`` or ``@``, also after a tab or
a line break. The writer of CSV files puts a single quote before such a text, and the reader removes
it.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["escape", "unescape"]

# Beginning of a formula, perhaps after single quotes. A text with such quotes gets one more quote,
# so that two different texts are never written alike.
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
