"""What the fits of a model file cost, estimated before any data are drawn or read.

Sizes of data follow from the parameters of a generator, from a table of known sets, or from the
header of a file. Every estimator declares its large arrays in its `capabilities`. A file that
needs more than the memory of the machine is refused.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rich.filesize import decimal

from nrprob import datasets
from nrprob.batch import formats, registry
from nrprob.batch.plan import Experiment, Plan
from nrprob.batch.schema import ModelFile
from nrprob.datasets.sizes import (
    VALUE,
    Size,
    dense,
    size_of_generator,
    size_of_npz,
    size_of_set,
    stored,
)
from nrprob.exceptions import InputError

__all__ = ["KEPT", "TABLES", "Cost", "estimate", "memory", "refuse_large"]

TABLES = 64  # data sets that are kept in memory for the fits that share them,
KEPT = 2**30  # unless they take more bytes than this; one is kept in any case
LABEL = 4  # bytes of a label in results
_CLUSTERS = "n_clusters", "n_components", "max_clusters"
_DEFAULT_N_CLUSTERS = 10  # where the file gives no number


@dataclass(frozen=True)
class Cost:
    """Estimate of what a model file needs.

    Attributes
    ----------
    samples, features : of the largest data set, before rows are dropped; None where unknown
    bytes : of the data sets that are in memory at a time
    sets, fits : how many there are
    largest : bytes of the largest array, of the data, a fit, or the results
    """

    samples: int | None
    features: int | None
    bytes: int
    sets: int
    fits: int
    largest: int

    @property
    def needed(self) -> int:
        """Bytes that are needed at once."""
        return self.bytes + self.largest

    def __str__(self) -> str:
        work = f"{self.fits} fit{'s' * (self.fits > 1)} on {self.sets} data set"
        work += "s" * (self.sets > 1)
        if self.samples is None:
            return f"data of unknown size; {work}"
        return (
            f"{self.samples} samples x {self.features} features, {decimal(self.bytes)}; {work}; "
            f"largest array {decimal(self.largest)}"
        )


def estimate(plan: Plan, *, methods: bool = True) -> Cost:
    """Estimate what a plan needs.

    Parameters
    ----------
    plan : Plan
        The fits.
    methods : bool, default=True
        Whether to count the arrays of the methods, whose classes are then imported.
    """
    model = plan.model
    sizes: dict[int, Size | None] = {}
    largest = results = result = 0
    defaults: dict[str, dict[str, Any]] = {}
    for cell in plan.cells:
        if cell.repeat or cell.run:  # like the one before it
            results += result
            continue
        # The cases of a set or a file select rows of the same data.
        case = cell.case if model.data.generator is not None else 0
        if case not in sizes:
            sizes[case] = _size_of_data(model, cell.data)
        size, result = sizes[case], 0
        if size is None or not methods:
            continue
        if cell.name not in defaults:
            defaults[cell.name] = _defaults(cell.name)
        parameters = defaults[cell.name] | cell.parameters
        numbers = _numbers(size, parameters)
        largest = max(largest, _of_fit(cell, size, numbers))
        each = LABEL * model.save.labels + VALUE * numbers["k"] * model.save.memberships
        result = each * size.samples
        results += result
    known = [size for size in sizes.values() if size is not None]
    sets = len({(cell.case, cell.repeat) for cell in plan.cells})
    if not known:
        return Cost(None, None, 0, sets, len(plan.cells), 0)
    most = max(known, key=lambda size: size.bytes)
    largest = max(largest, results, *(size.largest for size in known))
    kept = min(min(sets, TABLES) * most.bytes, max(KEPT, most.bytes))
    return Cost(most.samples, most.features, kept, sets, len(plan.cells), largest)


def refuse_large(plan: Plan, *, methods: bool = True) -> None:
    """Refuse a plan that needs more memory than there is; see `estimate`.

    Raises
    ------
    nrprob.exceptions.InputError
        That says how much it needs.
    """
    cost, available = estimate(plan, methods=methods), memory()
    if cost.needed > available:
        raise InputError(
            f"the fits need more memory than there is; {decimal(cost.bytes)} of data and an array "
            f"of {decimal(cost.largest)} in {decimal(int(available))}; ask for less, or allow it "
            "with --allow-large (in Python, allow_large=True)"
        )


def memory() -> float:
    """Bytes of memory of this machine, or of the control group of this process if that is less."""
    limits = [math.inf]
    with contextlib.suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                root, name = "/sys/fs/cgroup", "memory.max"
            elif "memory" in controllers.split(","):
                root, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
            else:
                continue
            for place in (PurePosixPath(group), *PurePosixPath(group).parents):
                with contextlib.suppress(OSError, ValueError):
                    limits.append(int(Path(f"{root}{place}", name).read_text()))
    return min(limits)


def _size_of_data(model: ModelFile, parameters: Mapping[str, Any]) -> Size | None:
    """Size of a data set as methods get it; None where it is unknown."""
    data = model.data
    if data.loader is not None:
        size = size_of_set(data.loader)
    elif data.generator is not None:
        generator = getattr(datasets, data.generator, None)
        own = {name: value for name, value in parameters.items() if name not in ("rows", "keep")}
        size = None if generator is None else size_of_generator(generator, own)
    else:
        assert data.file is not None
        size = _size_of_file(data.file, model)
    if size is None:
        return None
    if data.components is not None or (data.standardize and not size.is_sparse):
        as_float = dense(size.samples, size.features)
        size = as_float._replace(largest=max(as_float.bytes, size.largest))
    return size


def _size_of_file(path: Path, model: ModelFile) -> Size | None:
    data = model.data
    try:
        if path.suffix == ".npz":
            return size_of_npz(path, formats.ROWS)
        if path.suffix == ".h5ad":
            return _size_of_annotated(path)
        features = len(data.columns)
        if not features:
            features = len({*formats.column_names(path)} - {*data.drop, *data.label_columns})
        samples = _n_lines(path) if path.suffix != ".parquet" else _n_rows(path)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, ImportError):
        return None  # the reader says what is wrong
    size = dense(samples, features)
    return size._replace(largest=max(size.bytes, path.stat().st_size))


def _n_lines(path: Path) -> int:
    with path.open("rb") as file:
        parts = iter(lambda: file.read(2**20), b"")
        counts = [(part.count(b"\n"), part.count(b"\r")) for part in parts]
    return max(map(sum, zip(*counts, strict=True)), default=0)


def _n_rows(path: Path) -> int:
    from pyarrow.parquet import read_metadata

    return read_metadata(path).num_rows


def _size_of_annotated(path: Path) -> Size:
    import h5py

    with h5py.File(path) as file:
        X = file["X"]
        if isinstance(X, h5py.Dataset):
            samples, features = X.shape
            return dense(samples, features, X.dtype.itemsize)
        samples, features = X.attrs["shape"].tolist()
        return stored(samples, features, X["data"].shape[0])


def _defaults(name: str) -> dict[str, Any]:
    with contextlib.suppress(InputError):  # of a method that is not there, which the check names
        signature = inspect.signature(registry.method(name).load())
        return {key: one.default for key, one in signature.parameters.items()}
    return {}


def _numbers(size: Size, parameters: Mapping[str, Any]) -> dict[str, int]:
    """Values of the letters of `nrprob.estimator.capabilities.Capabilities`."""

    def count(*names: str, otherwise: int = 1) -> int:
        given = (parameters.get(name) for name in names)
        return next((value for value in given if type(value) is int), otherwise)

    n = size.samples
    sample = min(n, count("n_subsample", otherwise=n))
    every_pair = parameters.get("approx") is None and n <= count("max_exact", otherwise=n)
    return {
        "n": n,
        "m": size.features,
        "k": min(count(*_CLUSTERS, otherwise=_DEFAULT_N_CLUSTERS), n),
        "r": count("n_init"),
        "d": count("num_samples") * count("num_chains"),
        "s": n if every_pair else sample,
    }


def _of_fit(cell: Experiment, size: Size, numbers: Mapping[str, int]) -> int:
    """Bytes of the largest array of a fit."""
    from nrprob.engines.placement import MEMORY

    method = registry.method(cell.name)
    rival = isinstance(method, registry.Rival)
    is_sparse = size.is_sparse and (method.capabilities.sparse or rival)
    arrays = [size.bytes if is_sparse else VALUE * numbers["n"] * numbers["m"]]
    # Labels of all restarts are kept; memberships are, of those that run side by side. Clusters
    # have a number for every feature, also where rows are sparse.
    arrays.append(LABEL * numbers["n"] * numbers["r"])
    arrays.append(VALUE * numbers["k"] * numbers["m"])
    for letters in method.capabilities.arrays:
        each = VALUE * math.prod(numbers[letter] for letter in letters.replace("r", ""))
        together = each * numbers["r"] if "r" in letters else each
        arrays.append(max(each, min(together, int(MEMORY))))
    return max(arrays)
