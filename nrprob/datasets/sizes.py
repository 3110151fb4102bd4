"""Sizes of data sets, known before one is drawn or read."""

from __future__ import annotations

import gzip
import inspect
import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

__all__ = ["Size", "dense", "size_of_generator", "size_of_npz", "size_of_set", "sized", "stored"]

Generator = TypeVar("Generator", bound=Callable[..., Any])

VALUE = 8  # bytes of a number
ENTRY = 12  # bytes of an entry of a sparse matrix: a number, and its column


class Size(NamedTuple):
    """Size of a data set.

    Attributes
    ----------
    samples, features : shape of the features; upper bounds where rows or columns are dropped
    bytes : that the features take
    is_sparse : whether they are a sparse matrix
    largest : bytes of the largest array that is made on the way to them
    """

    samples: int
    features: int
    bytes: int
    is_sparse: bool
    largest: int


def dense(samples: int, features: int, width: int = VALUE) -> Size:
    """Size of an array of numbers of ``width`` bytes."""
    values = width * samples * features
    return Size(samples, features, values, False, values)


def stored(samples: int, features: int, entries: int, other: int = 0) -> Size:
    """Size of a sparse matrix of so many entries; an array of ``other`` values is made for it."""
    content = ENTRY * entries + VALUE * (samples + 1)
    return Size(samples, features, content, True, max(content, VALUE * other))


# Name of a generator -> size by its parameters.
_RULES: dict[str, Callable[..., Size]] = {}


def sized(rule: Callable[..., Size]) -> Callable[[Generator], Generator]:
    """Declare the size of what a generator draws, by the names of its parameters."""

    def declare(generator: Generator) -> Generator:
        _RULES[generator.__name__] = rule
        return generator

    return declare


def size_of_generator(generator: Callable[..., Any], parameters: Mapping[str, Any]) -> Size | None:
    """Size of what a generator draws; None where it refuses the parameters."""
    try:
        bound = inspect.signature(generator).bind(**parameters)
        bound.apply_defaults()
        size = _RULES[generator.__name__](**bound.arguments)
    except (TypeError, ValueError, OverflowError):
        return None
    whole = all(isinstance(number, int | np.integer) and number >= 0 for number in size)
    return size if whole else None


# Sets that scikit-learn ships, and downloads, which have a checksum.
_KNOWN = {
    "breast_cancer": dense(569, 30),
    "digits": dense(1797, 64),
    "iris": dense(150, 4),
    "wine": dense(178, 13),
    "newsgroups20": stored(3000, 15_000, 170_000),
    "pbmc68k_reduced": dense(700, 765),
    "pbmc_interferon": stored(6000, 32_938, 3_636_691),
    "webkb": stored(1087, 8125, 102_913),
}


def size_of_set(name: str) -> Size | None:
    """Size of a data set that `nrprob.datasets.load` knows; None where it is unknown."""
    from nrprob.datasets.loaders import SHIPPED, _folder

    folder = None if name in SHIPPED else _folder(name)
    if folder is None:
        return _KNOWN.get(name)
    try:
        if (folder / "counts.npz").is_file():
            return size_of_npz(folder / "counts.npz")
        if (folder / "images.npz").is_file():
            n, *sides = _headers(folder / "images.npz")["images"][0]
            return dense(n, math.prod(sides))
        with gzip.open(folder / "data.csv.gz") as file:
            features = file.readline().count(b",") + 1
            return dense(sum(1 for _ in file), features)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None  # the reader says what is wrong


def size_of_npz(path: Path, name: str = "") -> Size | None:
    """Size of the matrix of an NPZ file, dense or sparse, from the headers of its arrays.

    It is the array of the name, or else the only matrix; None where there is none.

    Raises
    ------
    ValueError, OSError, zipfile.BadZipFile
        If the file is damaged.
    """
    headers = _headers(path)
    if {"format", "shape", "data"} <= headers.keys():
        if headers["shape"][0] != (2,) or headers["shape"][1].kind not in "iu":
            return None
        with np.load(path, allow_pickle=False) as arrays:
            samples, features = arrays["shape"].tolist()
        return stored(samples, features, math.prod(headers["data"][0]))
    matrices = [one for one in headers.values() if len(one[0]) == 2]
    if name in headers:
        matrices = [headers[name]]
    if len(matrices) != 1 or len(matrices[0][0]) != 2:
        return None
    (samples, features), dtype = matrices[0]
    return dense(samples, features, dtype.itemsize)


def _headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
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
