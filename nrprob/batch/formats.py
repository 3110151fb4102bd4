"""File formats of data and results: checks that read no data, and writing of CSV files.

The module imports no package that loads slowly, so that errors in names are reported quickly.
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
from nrprob.data.reading.formulas import escape
from nrprob.data.reading.frames import TEXT_FILES, file_header
from nrprob.data.reading.options import ReadingOptions
from nrprob.data.reading.spreadsheets import SPREADSHEETS
from nrprob.data.reading.text_files import COMPRESSED, format_of
from nrprob.exceptions import InputError
from nrprob.files import reading

__all__ = [
    "ANNOTATED", "EVIDENCE", "LABELS", "MANIFEST", "PAGE", "PICTURE", "PLAN", "RESULTS", "SUMMARY",
    "check_file", "column_names", "is_fit_folder", "is_table", "npz_names", "read_records",
    "reading_hint", "require_columns", "require_part", "results_in", "with_labelings", "write_csv",
]  # fmt: skip

PAGE = "report.html"
LABELS = "labels.csv"
SUMMARY = "result.json"
RESULTS = (LABELS, SUMMARY, PAGE)  # files of a clustering, without plots
PICTURE = "summary.png"
EVIDENCE = "evidence.png"
ANNOTATED = "labels.h5ad"  # the data with the clusters in obs, on request
PLAN = "plan.json"  # the plan of a model file, in every folder of a run
MAX_RECORDS = 2**22  # bytes of a file of records
MANIFEST = "manifest.json"  # digests of the files of a run
_DETECTED = ReadingOptions()  # separator, encoding and so on are detected
ROWS = "X"  # the array of rows in an NPZ file
_SUFFIXES = (*TEXT_FILES, *SPREADSHEETS, ".parquet", ".npz", ".h5ad")
_PICTURES = re.compile(
    rf"{re.escape(PICTURE)}|{re.escape(EVIDENCE)}|clustering_\d+(_evidence)?\.png"
)
# Format -> package that reads it, and the extra that installs the package.
_READERS = {".parquet": ("pyarrow", "parquet"), ".h5ad": ("anndata", "cells")} | dict.fromkeys(
    SPREADSHEETS, ("python_calamine", "excel")
)


def check_file(path: Path) -> None:
    """Raise InputError for a file that does not exist or whose format cannot be read.

    A format may be unknown, or need a package that is not installed.
    """
    if not path.is_file():
        raise InputError(f"no such data file; {path}; check the path")
    suffix = format_of(path)
    if suffix not in _SUFFIXES:
        raise InputError(
            "cannot tell the format from the file's name; "
            f"{path}; use one of {', '.join(_SUFFIXES)}, text also with {', '.join(COMPRESSED)}"
        )
    package, extra = _READERS.get(suffix, ("", ""))
    if package and find_spec(package) is None:
        raise InputError(
            f"reading {suffix[1:]} needs {package}, which is not installed; {path}; "
            f"run pip install 'nrprob[{extra}]'"
        )


def results_in(folder: Path) -> list[Path]:
    """List the files in a folder that are named like results of a fit or an exploration."""
    if not folder.is_dir():
        return []
    pictures = sorted(path for path in folder.iterdir() if _PICTURES.fullmatch(path.name))
    named = [*(folder / name for name in (*RESULTS, ANNOTATED)), *pictures]
    return [path for path in named if path.is_file()]


def is_fit_folder(folder: Path) -> bool:
    """Whether a folder has results of a fit or an exploration, but not of a model file."""
    return (folder / SUMMARY).exists() and not (folder / PLAN).exists()


def is_table(path: Path) -> bool:
    """Whether the format of a file is a table with named columns, and not NPZ or H5AD."""
    return format_of(path) not in (".npz", ".h5ad")


def require_columns(
    names: Collection[str], available: Collection[str], path: Path, hint: str = ""
) -> None:
    """Raise InputError if ``names`` are not all ``available`` column names of the file ``path``.

    ``hint`` is the end of the message, from `reading_hint`.
    """
    for name in names:
        refuse_unknown(name, available, f"{path} has no such column; {name!r}", hint)


def reading_hint(path: Path, options: ReadingOptions) -> str:
    """State what may be wrong if the file lacks a column that the user names.

    The result is empty if nothing is suspicious. See `column_names` for ``options``.
    """
    header = file_header(path, options)
    return "" if header is None else header.hint


def column_names(path: Path, options: ReadingOptions = _DETECTED) -> list[str]:
    """Names of the columns of a file, of the arrays of an NPZ file, or of ``obs`` of an H5AD file.

    ``options`` state how a text file or a spreadsheet is to be read. Raises InputError if the file
    does not exist or is damaged.
    """
    check_file(path)
    suffix = format_of(path)
    with reading(path, f"the file as {suffix[1:].upper()}", "check its contents"):
        if suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return npz_names([name.removesuffix(".npy") for name in archive.namelist()])
        if suffix == ".h5ad":
            return _obs_names(path)
        if suffix == ".parquet":
            return _parquet_names(path)
        header = file_header(path, options)
        assert header is not None
        return header.names[1:] if header.has_index else header.names


def npz_names(arrays: list[str]) -> list[str]:
    """Names of the contents of an NPZ file, from the names of its ``arrays``.

    If the arrays store a sparse matrix, the only name is "X".
    """
    return [ROWS] if {"format", "shape", "data"} <= set(arrays) else arrays


def _parquet_names(path: Path) -> list[str]:
    from pyarrow.parquet import read_schema

    schema = read_schema(path)
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    names = [name for name in schema.names if name not in index]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise InputError(
            f"columns need different names; {', '.join(twice)} in {path}; rename one of each"
        )
    return names


def _obs_names(path: Path) -> list[str]:
    import h5py

    with h5py.File(path) as file:
        return [str(name) for name in file["obs"].attrs["column-order"]]


def require_part(path: Path, kind: str, name: str) -> None:
    """Raise InputError if a file is not an H5AD file with this layer or entry of obsm.

    ``kind`` is "layer" or "obsm", and ``name`` is the name of the layer or entry.
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


def with_labelings(columns: Mapping[str, Any], labelings: Mapping[str, Any]) -> dict[str, Any]:
    """Join columns of results and labelings, which both are dictionaries of columns by name.

    A labeling with the name of a column of results gets the suffix "(data)".
    """
    result = dict(columns)
    for name, values in labelings.items():
        while name in result:
            name = f"{name} (data)"
        result[name] = values
    return result


def write_csv(columns: Mapping[str, Any]) -> str:
    """Return the text of a CSV file with these columns.

    Texts and headers that a spreadsheet would evaluate as formulas are escaped.
    """
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


def read_records(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of a small CSV file, each as a dictionary from column to text.

    Raises ValueError if the file has more than `MAX_RECORDS` bytes, if its columns are not
    ``columns``, or if a row is incomplete.
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
