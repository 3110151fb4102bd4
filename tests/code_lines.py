"""Count lines of code, without docstrings, comments and blank lines.

``python tests/code_lines.py [FOLDER]`` prints the count of every file and folder, of the package by
default.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "nrprob"
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(path: Path) -> int:
    """Lines of a file that contain code."""
    text = path.read_text()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                if isinstance(first.value.value, str):
                    lines -= set(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines)


def main(folder: Path) -> None:
    """Print the lines of code of every file, and of every folder with all its contents."""
    counts = {path: code_lines(path) for path in sorted(folder.rglob("*.py"))}
    for path, count in counts.items():
        print(f"{count:6d}  {path.relative_to(folder)}")
    for inner in sorted({p for path in counts for p in path.parents if folder in (p, *p.parents)}):
        total = sum(count for path, count in counts.items() if inner in path.parents)
        print(f"{total:6d}  {inner.relative_to(folder.parent)}/")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else PACKAGE)
