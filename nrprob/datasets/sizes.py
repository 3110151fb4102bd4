"""Sizes of data sets, computed before they are generated or read."""

from __future__ import annotations

import gzip
import inspect
import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

__all__ = [
    "Size",
    "dense_size",
    "register_size",
    "size_of_generator",
    "size_of_npz",
    "size_of_set",
    "sparse_size",
]

Generator = TypeVar("Generator", bound=Callable[..., Any])

VALUE = 8  # bytes of a number
ENTRY = 12  # bytes of an entry of a sparse matrix: a number, and its column


class Size(NamedTuple):
    """Size of a data set.

    Attributes
    ----------
    samples, features : numbers of rows and columns; upper bounds if some of them are dropped later
    bytes : memory of the data
    is_sparse : whether the data are a sparse matrix
    largest : bytes of the largest array while the data are generated
    """

    samples: int
    features: int
    bytes: int
    is_sparse: bool
    largest: int


def dense_size(samples: int, features: int, width: int = VALUE) -> Size:
    """Size of a dense array (samples, features) of numbers of ``width`` bytes."""
    values = width * samples * features
    return Size(samples, features, values, False, values)


def sparse_size(samples: int, features: int, entries: int, other: int = 0) -> Size:
    """Size of a sparse matrix (samples, features) with ``entries`` stored values.

    ``other`` is the number of values of the largest dense array while the matrix is generated.
    """
    content = ENTRY * entries + VALUE * (samples + 1)
    return Size(samples, features, content, True, max(content, VALUE * other))


# Name of a generator -> size by its parameters.
_RULES: dict[str, Callable[..., Size]] = {}


def register_size(rule: Callable[..., Size]) -> Callable[[Generator], Generator]:
    """Decorate a generator of data sets with a function that computes the size of the data.

    ``rule`` takes the parameters of the generator.
    """

    def register_generator(generator: Generator) -> Generator:
        _RULES[generator.__name__] = rule
        return generator

    return register_generator


def size_of_generator(generator: Callable[..., Any], parameters: Mapping[str, Any]) -> Size | None:
    """Size of the data that a generator makes; None if unknown, or if parameters are invalid."""
    rule = _RULES.get(generator.__name__)
    if rule is None:
        return None
    try:
        bound = inspect.signature(generator).bind(**parameters)
        bound.apply_defaults()
        size = rule(**bound.arguments)
    except (TypeError, ValueError, OverflowError):
        return None
    valid = all(isinstance(value, int | np.integer) and value >= 0 for value in size)
    return size if valid else None


# Data sets of scikit-learn, and downloads with a checksum.
_KNOWN = {
    "breast_cancer": dense_size(569, 30),
    "digits": dense_size(1797, 64),
    "iris": dense_size(150, 4),
    "wine": dense_size(178, 13),
    "newsgroups20": sparse_size(3000, 15_000, 170_000),
    "pbmc68k_reduced": dense_size(700, 765),
    "pbmc_interferon": sparse_size(6000, 32_938, 3_636_691),
    "webkb": sparse_size(1087, 8125, 102_913),
}


def size_of_set(name: str) -> Size | None:
    """Size of the data set ``name`` of `nrprob.datasets.load`; None if the size is unknown."""
    from nrprob.datasets.loaders import SHIPPED, _find_folder

    folder = None if name in SHIPPED else _find_folder(name)
    if folder is None:
        return _KNOWN.get(name)
    try:
        if (folder / "counts.npz").is_file():
            return size_of_npz(folder / "counts.npz")
        if (folder / "images.npz").is_file():
            n, *sides = _read_headers(folder / "images.npz")["images"][0]
            return dense_size(n, math.prod(sides))
        with gzip.open(folder / "data.csv.gz") as file:
            features = file.readline().count(b",") + 1
            return dense_size(sum(1 for _ in file), features)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None  # the reader raises the error


def size_of_npz(path: Path, name: str = "") -> Size | None:
    """Size of the matrix in an NPZ file, dense or sparse, from the headers of the arrays.

    The matrix is the array called ``name``, or else the only matrix. The size is None if the file
    has no such matrix.

    Raises
    ------
    ValueError, OSError, zipfile.BadZipFile
        If the file is damaged.
    """
    headers = _read_headers(path)
    if {"format", "shape", "data"} <= headers.keys():
        if headers["shape"][0] != (2,) or headers["shape"][1].kind not in "iu":
            return None
        with np.load(path, allow_pickle=False) as arrays:
            samples, features = arrays["shape"].tolist()
        return sparse_size(samples, features, math.prod(headers["data"][0]))
    matrices = [header for header in headers.values() if len(header[0]) == 2]
    if name in headers:
        matrices = [headers[name]]
    if len(matrices) != 1 or len(matrices[0][0]) != 2:
        return None
    (samples, features), dtype = matrices[0]
    return dense_size(samples, features, dtype.itemsize)


def _read_headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and type of every array of an NPZ file."""
    result = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            with archive.open(member) as file:
                first = np.lib.format.read_magic(file) == (1, 0)
                read: Any = np.lib.format.read_array_header_2_0
                read = np.lib.format.read_array_header_1_0 if first else read
                shape, _, dtype = read(file)
                result[member.removesuffix(".npy")] = shape, dtype
    return result
