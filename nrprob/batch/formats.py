"""File formats of data and results: checks that need neither reading nor writing.

Nothing heavy is imported, so that a wrong name is reported at once.
"""

from __future__ import annotations

import csv
import re
import zipfile
from collections import Counter
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

from nrprob.batch.csv_files import unescape
from nrprob.batch.registry import refuse_unknown
from nrprob.exceptions import InputError
from nrprob.files import reading

__all__ = [
    "EVIDENCE", "MANIFEST", "PAGE", "PICTURE", "PLAN", "RESULTS", "check_file", "column_names",
    "is_of_fit", "is_table", "npz_names", "require_columns", "require_part", "results_in",
    "separator",
]  # fmt: skip

PAGE = "report.html"
SUMMARY = "result.json"
RESULTS = ("labels.csv", SUMMARY, PAGE)  # files of a clustering, pictures apart
PICTURE = "summary.png"
EVIDENCE = "evidence.png"
PLAN = "plan.json"  # what a model file asked for, in every folder of a run
MANIFEST = "manifest.json"  # digests of the files of a run
ROWS = "X"  # the array of rows in an NPZ file
_TEXTS = (".csv", ".tsv")
_SUFFIXES = (*_TEXTS, ".parquet", ".npz", ".h5ad")
_PICTURES = re.compile(
    rf"{re.escape(PICTURE)}|{re.escape(EVIDENCE)}|clustering_\d+(_evidence)?\.png"
)
# Format -> what reads it, and the extra of the package that brings it.
_NEEDED = {".parquet": ("pyarrow", "parquet"), ".h5ad": ("anndata", "cells")}


def check_file(path: Path) -> None:
    """Refuse a file that is not there, or whose format its name does not tell, or nothing reads.

    Raises
    ------
    nrprob.exceptions.InputError
    """
    if not path.is_file():
        raise InputError(f"no such data file; {path}; check the path")
    if path.suffix not in _SUFFIXES:
        raise InputError(
            "cannot tell the format from the file's name; "
            f"{path}; use one of {', '.join(_SUFFIXES)}"
        )
    package, extra = _NEEDED.get(path.suffix, ("", ""))
    if package and find_spec(package) is None:
        raise InputError(
            f"reading {path.suffix[1:]} needs {package}, which is not installed; {path}; "
            f"run pip install 'nrprob[{extra}]'"
        )


def results_in(folder: Path) -> list[Path]:
    """Files of a folder that have the names of those of a fit or of an exploration."""
    if not folder.is_dir():
        return []
    pictures = sorted(path for path in folder.iterdir() if _PICTURES.fullmatch(path.name))
    named = [*(folder / name for name in RESULTS), *pictures]
    return [path for path in named if path.is_file()]


def is_of_fit(folder: Path) -> bool:
    """Whether results of a folder are those of a fit or an exploration, and of no model file."""
    return (folder / SUMMARY).exists() and not (folder / PLAN).exists()


def is_table(path: Path) -> bool:
    """Whether all of a file are columns of one table, and no matrix."""
    return path.suffix not in (".npz", ".h5ad")


def separator(path: Path) -> str:
    """What is between the columns of a file of text."""
    return "\t" if path.suffix == ".tsv" else ","


def require_columns(names: Collection[str], available: Collection[str], path: Path) -> None:
    """Refuse columns that a file does not have."""
    for name in names:
        refuse_unknown(name, available, f"{path} has no such column; {name!r}")


def column_names(path: Path) -> list[str]:
    """Names of the columns of a file, read from its beginning.

    Of an NPZ file, they are its arrays; of annotated data, what is said of their rows.

    Raises
    ------
    nrprob.exceptions.InputError
        If the file is not there, or damaged.
    """
    check_file(path)
    with reading(path, f"the file as {path.suffix[1:].upper()}", "check its contents"):
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return npz_names([name.removesuffix(".npy") for name in archive.namelist()])
        if path.suffix == ".h5ad":
            return _of_annotated(path)
        names = _of_parquet(path) if path.suffix == ".parquet" else _of_text(path)
    between, others = ("tabs", {";", ","}) if separator(path) == "\t" else ("commas", {";", "\t"})
    if len(names) == 1 and path.suffix in _TEXTS and others & {*names[0]}:
        raise InputError(
            f"columns are separated by {between}; {path} has {names[0]!r} for all of them; save it "
            "as CSV with commas, or as TSV with tabs"
        )
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise InputError(
            f"columns need different names; {', '.join(twice)} in {path}; rename one of each"
        )
    return names


def npz_names(arrays: list[str]) -> list[str]:
    """Names of what an NPZ file of these arrays holds, which may be a sparse matrix."""
    return [ROWS] if {"format", "shape", "data"} <= set(arrays) else arrays


def _of_text(path: Path) -> list[str]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            names = next(line for line in csv.reader(file, delimiter=separator(path)) if line)
        except (csv.Error, StopIteration) as error:
            raise ValueError(str(error) or "there is nothing in it") from error
    # As pandas calls columns without a name; the first of all is the index that it writes.
    names = [unescape(name) or f"Unnamed: {j}" for j, name in enumerate(names)]
    return names[1:] if names[0].startswith("Unnamed: 0") else names


def _of_parquet(path: Path) -> list[str]:
    from pyarrow.parquet import read_schema

    schema = read_schema(path)
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in schema.names if name not in index]


def _of_annotated(path: Path) -> list[str]:
    import h5py

    with h5py.File(path) as file:
        return [str(name) for name in file["obs"].attrs["column-order"]]


def require_part(path: Path, kind: str, name: str) -> None:
    """Refuse a layer, or an entry of obsm, that a file of annotated data does not have.

    Raises
    ------
    nrprob.exceptions.InputError
    """
    if path.suffix != ".h5ad":
        raise InputError(
            f"only H5AD files have a part of that kind; --{kind} {name} of {path}; leave it out"
        )
    import h5py

    with reading(path, "the file as H5AD", "check its contents"), h5py.File(path) as file:
        there = "layers" if kind == "layer" else kind
        refuse_unknown(name, list(file.get(there, ())), f"{path} has no such {kind}; {name!r}")
