"""Estimate the memory of the fits of a model file before data are generated or read.

The size of the data comes from the parameters of a generator, from the header of a file, or from a
table of known data sets. Every estimator declares its large arrays in its `capabilities`. A
model file that needs more than the memory of the machine is refused. A ``cell`` is a planned fit.
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
from nrprob.batch.schema import SELECTORS, ModelFile
from nrprob.data.reading.spreadsheets import SPREADSHEETS, read_sheet
from nrprob.data.reading.text_files import detect_compression, format_of, open_binary
from nrprob.datasets.sizes import (
    VALUE,
    Size,
    dense_size,
    size_of_generator,
    size_of_npz,
    size_of_set,
    sparse_size,
)
from nrprob.exceptions import InputError

__all__ = ["MAX_CACHED_BYTES", "MAX_TABLES", "Cost", "available_memory", "estimate", "refuse_large"]

MAX_TABLES = 64  # maximum number of data sets in memory
MAX_CACHED_BYTES = 2**30  # maximum size of several data sets in memory; one may be larger
LABEL = 4  # bytes of a label in results
_CLUSTERS = "n_clusters", "n_components", "max_clusters"
_DEFAULT_N_CLUSTERS = 10  # assumed number of clusters if the file has no number


@dataclass(frozen=True)
class Cost:
    """Estimated numbers of fits and bytes of memory of a model file.

    Attributes
    ----------
    samples, features : numbers of samples and features of the largest data set, before rows are
        dropped; None if unknown
    bytes : bytes of the data sets that are in memory at a time
    sets, fits : numbers of data sets and of fits
    largest : bytes of the largest array of the data, of a fit, or of the results
    """

    samples: int | None
    features: int | None
    bytes: int
    sets: int
    fits: int
    largest: int

    @property
    def needed(self) -> int:
        """Bytes of memory that the model file needs."""
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
    """Estimate the numbers of data sets and fits of a plan, and their memory.

    If ``methods`` is True, the estimate includes the arrays of the estimators, whose classes are
    then imported.
    """
    model = plan.model
    sizes: dict[int, Size | None] = {}
    largest = results = result = 0
    defaults: dict[str, dict[str, Any]] = {}
    for cell in plan.cells:
        if cell.repeat or cell.run:  # same size as the fit before
            results += result
            continue
        # The cases of a data set or a file select rows of the same data.
        case = cell.case if model.data.generator is not None else 0
        if case not in sizes:
            sizes[case] = _data_size(model, cell.data)
        size, result = sizes[case], 0
        if size is None or not methods:
            continue
        if cell.name not in defaults:
            defaults[cell.name] = _default_parameters(cell.name)
        dimensions = _dimensions(size, defaults[cell.name] | cell.parameters)
        largest = max(largest, _fit_bytes(cell, size, dimensions))
        row_bytes = LABEL * model.save.labels + VALUE * dimensions["k"] * model.save.memberships
        result = row_bytes * size.samples
        results += result
    known = [size for size in sizes.values() if size is not None]
    sets = len({(cell.case, cell.repeat) for cell in plan.cells})
    if not known:
        return Cost(None, None, 0, sets, len(plan.cells), 0)
    most = max(known, key=lambda size: size.bytes)
    largest = max(largest, results, *(size.largest for size in known))
    cached = min(min(sets, MAX_TABLES) * most.bytes, max(MAX_CACHED_BYTES, most.bytes))
    return Cost(most.samples, most.features, cached, sets, len(plan.cells), largest)


def refuse_large(plan: Plan, *, methods: bool = True) -> None:
    """Raise InputError if a plan needs more memory than this process may use; see `estimate`."""
    cost, available = estimate(plan, methods=methods), available_memory()
    if cost.needed > available:
        raise InputError(
            "the fits need more memory than the machine has; "
            f"{decimal(cost.bytes)} of data and an array of {decimal(cost.largest)} in "
            f"{decimal(int(available))} of memory; reduce the data or the fits, or pass "
            "--allow-large (in Python, allow_large=True)"
        )


def available_memory() -> float:
    """Bytes of memory that this process may use.

    The result is the memory of the machine, or the limit of the control group of the process if the
    limit is lower.
    """
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


def _data_size(model: ModelFile, parameters: Mapping[str, Any]) -> Size | None:
    """Size of a data set with these ``parameters``, after transformations; None if unknown."""
    data = model.data
    if data.loader is not None:
        size = size_of_set(data.loader)
    elif data.generator is not None:
        generator = getattr(datasets, data.generator, None)
        rest = {name: value for name, value in parameters.items() if name not in SELECTORS}
        size = None if generator is None else size_of_generator(generator, rest)
    else:
        assert data.file is not None
        size = _file_size(data.file, model)
    if size is None:
        return None
    if data.components is not None or (data.standardize and not size.is_sparse):
        as_float = dense_size(size.samples, size.features)
        size = as_float._replace(largest=max(as_float.bytes, size.largest))
    return size


def _file_size(path: Path, model: ModelFile) -> Size | None:
    """Size of the data in a file, from its header; None if the file cannot be read."""
    data = model.data
    try:
        if path.suffix == ".npz":
            return size_of_npz(path, formats.ROWS)
        if path.suffix == ".h5ad":
            return _annotated_size(path)
        features = len(data.columns)
        if not features:
            features = len({*formats.column_names(path)} - {*data.drop, *data.label_columns})
        if path.suffix == ".parquet":
            from pyarrow.parquet import read_metadata

            samples = read_metadata(path).num_rows
        elif format_of(path) in SPREADSHEETS:
            samples = len(read_sheet(path, None)[1])
        else:
            samples = _count_lines(path)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, ImportError):
        return None  # the reader reports the error
    size = dense_size(samples, features)
    return size._replace(largest=max(size.bytes, path.stat().st_size))


def _count_lines(path: Path) -> int:
    with open_binary(path, detect_compression(path)) as file:
        parts = iter(lambda: file.read(2**20), b"")
        counts = [(part.count(b"\n"), part.count(b"\r")) for part in parts]
    return max(map(sum, zip(*counts, strict=True)), default=0)


def _annotated_size(path: Path) -> Size:
    """Size of ``X`` in an H5AD file."""
    import h5py

    with h5py.File(path) as file:
        X = file["X"]
        if isinstance(X, h5py.Dataset):
            samples, features = X.shape
            return dense_size(samples, features, X.dtype.itemsize)
        samples, features = X.attrs["shape"].tolist()
        return sparse_size(samples, features, X["data"].shape[0])


def _default_parameters(name: str) -> dict[str, Any]:
    with contextlib.suppress(InputError):  # `check` reports a missing method
        signature = inspect.signature(registry.find_method(name).load())
        return {key: parameter.default for key, parameter in signature.parameters.items()}
    return {}


def _dimensions(size: Size, parameters: Mapping[str, Any]) -> dict[str, int]:
    """Numbers of samples, features, clusters and so on of a fit, by letter.

    The letters are defined under ``arrays`` in `nrprob.estimator.capabilities.Capabilities`.
    ``size`` is the size of the data, and ``parameters`` are the parameters of the estimator.
    """

    def first_integer(*names: str, default: int = 1) -> int:
        values = (parameters.get(name) for name in names)
        return next((value for value in values if type(value) is int), default)

    n = size.samples
    # Tables of pairs of samples contain all samples, unless the estimator uses a subsample.
    is_exact = parameters.get("approx") is None and n <= first_integer("max_exact", default=n)
    return {
        "n": n,
        "m": size.features,
        "k": min(first_integer(*_CLUSTERS, default=_DEFAULT_N_CLUSTERS), n),
        "r": first_integer("n_init"),
        "d": first_integer("num_samples", "max_samples") * first_integer("num_chains"),
        "s": n if is_exact else min(n, first_integer("n_subsample", default=n)),
    }


def _fit_bytes(cell: Experiment, size: Size, dimensions: Mapping[str, int]) -> int:
    """Bytes of the largest array of a planned fit.

    ``size`` is the size of the data, and ``dimensions`` is the result of `_dimensions`.
    """
    from nrprob.engines.placement import MEMORY

    method = registry.find_method(cell.name)
    is_sparse = size.is_sparse and (
        method.capabilities.sparse or isinstance(method, registry.ExternalMethod)
    )
    n, m, k, r = (dimensions[letter] for letter in "nmkr")
    # Bytes of the rows, of the labels of all restarts, and of the centres. Centres are dense even
    # if rows are sparse.
    arrays = [size.bytes if is_sparse else VALUE * n * m, LABEL * n * r, VALUE * k * m]
    for letters in method.capabilities.arrays:
        # Arrays of parallel restarts share the memory of a device.
        of_restart = VALUE * math.prod(dimensions[letter] for letter in letters.replace("r", ""))
        total = of_restart * r if "r" in letters else of_restart
        arrays.append(max(of_restart, min(total, int(MEMORY))))
    return max(arrays)
