"""File formats of data and results: checks that read no data, and CSV files.

Spreadsheets evaluate a text cell that begins with ``=``, ``+``, ``-`` or ``@``, also after a tab or
a line break. The writer of CSV files puts a single quote before such a text, and the reader removes
it.

The module imports no package that loads slowly, so that wrong names are reported at once.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nrprob.batch.registry import refuse_unknown
from nrprob.exceptions import InputError
from nrprob.files import reading

__all__ = [
    "EVIDENCE", "MANIFEST", "PAGE", "PICTURE", "PLAN", "RESULTS", "check_file", "column_names",
    "escape", "is_fit_folder", "is_table", "npz_names", "read_csv", "read_records",
    "require_columns", "require_part", "results_in", "separator", "unescape", "with_labelings",
    "write_csv",
]  # fmt: skip

PAGE = "report.html"
SUMMARY = "result.json"
RESULTS = ("labels.csv", SUMMARY, PAGE)  # files of a clustering, without plots
PICTURE = "summary.png"
EVIDENCE = "evidence.png"
PLAN = "plan.json"  # the plan of a model file, in every folder of a run
MAX_RECORDS = 2**22  # bytes of a file of records
MANIFEST = "manifest.json"  # digests of the files of a run
ROWS = "X"  # the array of rows in an NPZ file
_TEXTS = (".csv", ".tsv")
_SUFFIXES = (*_TEXTS, ".parquet", ".npz", ".h5ad")
_PICTURES = re.compile(
    rf"{re.escape(PICTURE)}|{re.escape(EVIDENCE)}|clustering_\d+(_evidence)?\.png"
)
# Beginning of a formula, perhaps after single quotes. A text with such quotes gets one more quote,
# so that two different texts are never written alike.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# Format -> package that reads it, and the extra that installs the package.
_READERS = {".parquet": ("pyarrow", "parquet"), ".h5ad": ("anndata", "cells")}


def check_file(path: Path) -> None:
    """Raise InputError for a file that does not exist or whose format cannot be read.

    A format may be unknown, or need a package that is not installed.
    """
    if not path.is_file():
        raise InputError(f"no such data file; {path}; check the path")
    if path.suffix not in _SUFFIXES:
        raise InputError(
            "cannot tell the format from the file's name; "
            f"{path}; use one of {', '.join(_SUFFIXES)}"
        )
    package, extra = _READERS.get(path.suffix, ("", ""))
    if package and find_spec(package) is None:
        raise InputError(
            f"reading {path.suffix[1:]} needs {package}, which is not installed; {path}; "
            f"run pip install 'nrprob[{extra}]'"
        )


def results_in(folder: Path) -> list[Path]:
    """Files of a folder with the names of results of a fit or an exploration."""
    if not folder.is_dir():
        return []
    pictures = sorted(path for path in folder.iterdir() if _PICTURES.fullmatch(path.name))
    named = [*(folder / name for name in RESULTS), *pictures]
    return [path for path in named if path.is_file()]


def is_fit_folder(folder: Path) -> bool:
    """Whether a folder has results of a fit or an exploration, and not of a model file."""
    return (folder / SUMMARY).exists() and not (folder / PLAN).exists()


def is_table(path: Path) -> bool:
    """Whether a file contains the columns of one table, and not a matrix."""
    return path.suffix not in (".npz", ".h5ad")


def separator(path: Path) -> str:
    """Separator of the columns of a text file."""
    return "\t" if path.suffix == ".tsv" else ","


def require_columns(names: Collection[str], available: Collection[str], path: Path) -> None:
    """Raise InputError if some column names are not ``available`` in a file."""
    for name in names:
        refuse_unknown(name, available, f"{path} has no such column; {name!r}")


def column_names(path: Path) -> list[str]:
    """Column names of a file.

    They are names of arrays for an NPZ file, and of columns of ``obs`` for annotated data. Raises
    InputError if the file does not exist or is damaged.
    """
    check_file(path)
    with reading(path, f"the file as {path.suffix[1:].upper()}", "check its contents"):
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return npz_names([name.removesuffix(".npy") for name in archive.namelist()])
        if path.suffix == ".h5ad":
            return _obs_names(path)
        names = _parquet_names(path) if path.suffix == ".parquet" else _text_names(path)
    between, others = ("tabs", {";", ","}) if separator(path) == "\t" else ("commas", {";", "\t"})
    if len(names) == 1 and path.suffix in _TEXTS and others & {*names[0]}:
        raise InputError(
            f"columns must be separated by {between}; {path} has a single column {names[0]!r}; "
            "save the table as CSV with commas, or as TSV with tabs"
        )
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise InputError(
            f"columns need different names; {', '.join(twice)} in {path}; rename one of each"
        )
    return names


def npz_names(arrays: list[str]) -> list[str]:
    """Names of the contents of an NPZ file with these arrays; a sparse matrix is called "X"."""
    return [ROWS] if {"format", "shape", "data"} <= set(arrays) else arrays


def _text_names(path: Path) -> list[str]:
    """Column names of a CSV or TSV file, with the names that pandas would use."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            names = next(line for line in csv.reader(file, delimiter=separator(path)) if line)
        except (csv.Error, StopIteration) as error:
            raise ValueError(str(error) or "there is nothing in it") from error
    # pandas' names of unnamed columns; the first unnamed column is its index.
    names = [unescape(name) or f"Unnamed: {j}" for j, name in enumerate(names)]
    return names[1:] if names[0].startswith("Unnamed: 0") else names


def _parquet_names(path: Path) -> list[str]:
    from pyarrow.parquet import read_schema

    schema = read_schema(path)
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in schema.names if name not in index]


def _obs_names(path: Path) -> list[str]:
    import h5py

    with h5py.File(path) as file:
        return [str(name) for name in file["obs"].attrs["column-order"]]


def require_part(path: Path, kind: str, name: str) -> None:
    """Raise InputError unless a file has annotated data with this part.

    The part is the layer ``name`` or the entry ``name`` of obsm, as ``kind`` states.
    """
    if path.suffix != ".h5ad":
        raise InputError(
            f"only H5AD files have layers and obsm; got --{kind} {name} for {path}; leave the "
            "option out"
        )
    import h5py

    with reading(path, "the file as H5AD", "check its contents"), h5py.File(path) as file:
        group = "layers" if kind == "layer" else kind
        refuse_unknown(name, list(file.get(group, ())), f"{path} has no such {kind}; {name!r}")


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


def read_records(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of a small CSV file as texts by column.

    Raises ValueError for other columns than ``columns`` and for incomplete rows.
    """
    with path.open("rb") as file:
        content = file.read(MAX_RECORDS + 1)
    if len(content) > MAX_RECORDS:
        raise ValueError(f"the file has more than {MAX_RECORDS} bytes")
    reader = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""), strict=True)
    if reader.fieldnames != [*columns]:
        raise ValueError(f"the columns are not {', '.join(columns)}")
    for row in reader:
        if None in row or None in row.values():
            raise ValueError(f"line {reader.line_num} has not {len(columns)} columns")
        yield row
