"""Results on disk: one file per finished batch, written atomically.

The folder of a run holds ``plan.json`` (the model and its planned fits), ``cells/`` (NetCDF files
of finished batches) and ``locks/``. In the NetCDF files, the dimension ``cell`` is the planned fit.

A file is written under a hidden name and then renamed. A killed run therefore leaves finished
batches and, at most, a hidden file that the next run removes. A lock belongs to the operating
system and ends with its runner. The name of a file of a batch contains the digest of its content
(`nrprob.files`), and the file has the identity of every fit (`nrprob.batch.plan`). A manifest
(`nrprob.batch.manifest`) has the digests of all other files.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Collection, Container, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.batch.fits import Fit
from nrprob.batch.formats import MANIFEST, PAGE, PLAN
from nrprob.batch.manifest import changed_files, lock_folder, read_file, write_files
from nrprob.batch.plan import Batch, Experiment, Plan, find_differences
from nrprob.batch.schema import ModelFile
from nrprob.exceptions import InputError, one_line, warn
from nrprob.files import (
    as_path,
    check_seal,
    locked,
    make_folder,
    reading,
    refuse_link,
    remove_left_over,
    sealed,
    try_write,
    write_atomically,
)

if TYPE_CHECKING:
    import xarray

__all__ = [
    "Store", "dataset_to_fit", "fits_to_dataset", "load", "netcdf_bytes", "read_plan",
]  # fmt: skip

_NOTES = "notes.json"
_RESULTS = "results.nc"
_IDENTITY = "identity"  # variable of a file of fits: JSON of everything that determines a result
_WITH_VIEWS = ("sample", "view")
# Settings of the file format; labels and memberships of many fits compress well.
_ENCODING = {"zlib": True, "complevel": 3, "shuffle": True}
# Variables that differ between two runs of the same fits.
CIRCUMSTANCES = ("seconds", "compile_seconds", "started", "host", "device", "versions")
# Scalar variables of files: attributes of `Fit`, and types in files.
_SCALARS: dict[str, tuple[str, Any]] = {
    "objective": ("objective", float),
    "n_clusters_found": ("n_clusters", np.int32),
    "converged": ("converged", np.int8),
    "n_iter": ("n_iter", np.int32),
    "seconds": ("seconds", float),
    "compile_seconds": ("compile_seconds", float),
    "dtype": ("dtype", str),
}


def netcdf_bytes(dataset: xarray.Dataset) -> bytes:
    """Write a dataset as a NetCDF file in memory; return the content of the file."""
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    encoding = {
        name: _ENCODING for name, v in dataset.variables.items() if v.dtype.kind in "iuf" and v.ndim
    }
    # With a dask cluster, `to_netcdf` requests a lock from it, which needs a file name.
    content = io.BytesIO()
    with h5netcdf.File(content, "w") as file:
        dataset.dump_to_store(H5NetCDFStore(file), encoding=encoding)
    return content.getvalue()


def try_storage() -> None:
    """Test whether results can be stored: write a small dataset to memory and read it.

    Raises InputError if this fails.
    """
    try:
        import h5netcdf  # noqa: F401
        import h5py  # noqa: F401
        import xarray

        dataset = xarray.Dataset({"x": ("cell", np.zeros(1))}, {"cell": np.asarray(["a"], object)})
        content = io.BytesIO(netcdf_bytes(dataset))
        with xarray.open_dataset(content, engine="h5netcdf") as copy:
            copy.load()
    except Exception as error:
        raise InputError(
            f"results cannot be stored; {one_line(error)}; "
            "run pip install --upgrade h5py h5netcdf xarray"
        ) from error


def _reading(path: Path) -> contextlib.AbstractContextManager[None]:
    return reading(path, "a result file", "delete it to have its cells computed again")


def _read_netcdf(path: Path) -> xarray.Dataset:
    import xarray

    with _reading(path):
        content = io.BytesIO(check_seal(path))
        with xarray.open_dataset(content, engine="h5netcdf") as dataset:
            # The encoding of one file, such as the length of its texts, would limit combined files.
            return dataset.load().drop_encoding()


def fits_to_dataset(
    fits: Mapping[Experiment, Fit], circumstances: Mapping[str, str], *, labels: bool = True
) -> xarray.Dataset:
    """Convert fits to one dataset with the dimension ``cell``, the planned fit.

    Arrays of different lengths are padded with -1 (integers) or NaN. The dataset contains the
    identity of every fit, and the ``circumstances`` that all fits share, such as the device. If
    ``labels`` is true, it also contains the labels.
    """
    return _concatenate(
        [
            _fit_to_dataset(fit, labels)
            .assign({**circumstances, _IDENTITY: cell.identity})
            .expand_dims(cell=np.asarray([cell.id], object))
            for cell, fit in fits.items()
        ]
    )


def _fit_to_dataset(fit: Fit, labels: bool) -> xarray.Dataset:
    """Convert one fit to a dataset without the dimension ``cell``."""
    import xarray

    variables: dict[str, Any] = {
        variable: ((), kind(getattr(fit, name))) for variable, (name, kind) in _SCALARS.items()
    }
    variables |= {
        "n_rows": ((), np.int32(len(fit.labels))),
        "warnings": ((), "\n".join(" ".join(text.split()) for text in fit.warnings)),
        "score": ("measure", np.asarray([*fit.scores.values()], float)),
        "restart_objective": ("restart", fit.restarts),
    }
    if labels:
        for name, values in (("labels", fit.labels), ("predicted", fit.predicted)):
            if values is not None:
                # Labels of several views are a separate variable.
                name, dims = (name, "sample") if values.ndim == 1 else (f"view_{name}", _WITH_VIEWS)
                variables[name] = (dims, values.astype(np.int32))
        for name, values in (("labelled", fit.labelled), ("part", fit.part)):
            if values is not None:
                variables[name] = ("sample", values.astype(np.int8))
    if fit.labelled is not None:
        variables["n_labelled"] = ((), np.int32(fit.labelled.sum()))
    if fit.refusal is not None:
        variables["refusal"] = ((), " ".join(fit.refusal.split()))
    if fit.trace.size:
        variables["objective_trace"] = ("step", fit.trace)
    if fit.membership is not None:
        variables["membership"] = (("sample", "cluster"), np.asarray(fit.membership, np.float32))
    return xarray.Dataset(variables, {"measure": np.asarray([*fit.scores], object)})


def dataset_to_fit(
    result: xarray.Dataset, title: str, method: str, parameters: dict[str, Any]
) -> Fit:
    """Convert the entry of one fit in a dataset to a `Fit`, without its trace and restarts.

    ``title``, ``method`` and ``parameters`` are attributes of the `Fit`.
    """

    def labels_of(name: str) -> np.ndarray | None:
        if f"view_{name}" in result:
            values = result[f"view_{name}"].values
            if (values >= 0).any():
                return values[:, (values >= 0).any(0)]
        return result[name].values if name in result else None

    # Labels of one or several views, and scalars with the types of the attributes of `Fit`.
    labels = labels_of("labels")
    assert labels is not None
    scalars: dict[str, Any] = {}
    for variable, (name, _) in _SCALARS.items():
        convert: Any = type(getattr(Fit, name, 0.0))  # type of the default
        scalars[name] = convert(result[variable].item())
    measures, values = (result[name].values.tolist() for name in ("measure", "score"))
    return Fit(
        title,
        method,
        parameters,
        labels,
        **scalars,
        membership=result["membership"].values if "membership" in result else None,
        warnings=str(result["warnings"].values).splitlines(),
        scores=dict(zip(measures, values, strict=True)),
        labelled=result["labelled"].values == 1 if "labelled" in result else None,
        part=result["part"].values if "part" in result else None,
        predicted=labels_of("predicted"),
        refusal=str(result["refusal"].values) if "refusal" in result else None,
    )


def _concatenate(parts: Sequence[xarray.Dataset]) -> xarray.Dataset:
    """Concatenate datasets along ``cell``; shorter and missing arrays are padded with -1 or NaN."""
    import xarray

    # xarray aligns dimensions with coordinates, so ragged dimensions get temporary ones.
    ragged = {dim for part in parts for dim in part.dims} - {"cell", "measure"}
    dataset = xarray.concat(
        [part.assign_coords({d: np.arange(part.sizes[d]) for d in ragged & {*part.dims}})
         for part in parts],
        "cell", join="outer", data_vars="all", coords="minimal", compat="override",
        fill_value={n: -1 for p in parts for n, v in p.data_vars.items() if v.dtype.kind == "i"},
    )  # fmt: skip
    return dataset.drop_vars(ragged)


class Store:
    """Folder with the results of one model file."""

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self._cells = self.folder / "cells"
        self._locks = lock_folder(self.folder)

    def try_out(self, others: Collection[str] = ()) -> None:
        """Test every path that a run will write to, and leave nothing there.

        ``others`` are names of further files in the folder. Raises InputError if a path cannot be
        written to or is a symbolic link, or if results cannot be stored.
        """
        try_storage()
        for name in (PLAN, MANIFEST, _NOTES, _RESULTS, PAGE, *others):
            try_write(self.folder / name)
        for folder in (self._cells, self._locks):
            _refuse_links(folder)
            try_write(folder / "any")

    def open(self, plan: Plan) -> None:
        """Make the folder, and write the plan."""
        for folder in (self._cells, self._locks):
            _refuse_links(folder)
        for folder in (self.folder, self._cells, self._locks):
            make_folder(folder)
            remove_left_over(folder)
        write_files(self.folder, {PLAN: plan.dumps().encode()})

    def note(self, **notes: Any) -> None:
        """Write ``notes``, the numbers of skipped and failed fits by reason, to ``notes.json``."""
        write_files(self.folder, {_NOTES: json.dumps(notes, indent=1).encode()})

    def gather(self) -> xarray.Dataset:
        """Write all results into one NetCDF file, ``results.nc``, and return them."""
        dataset = self.results()
        if dataset.sizes.get("cell"):
            write_files(self.folder, {_RESULTS: netcdf_bytes(dataset)})
        return dataset

    def results(self) -> xarray.Dataset:
        """All finished fits of the plan, as `load` returns them.

        Warns if ``results.nc`` or a page was changed after it was written; neither is read.
        """
        import xarray

        plan = read_plan(self.folder)
        model = plan.model
        if changed := changed_files(self.folder, without=(PLAN, _NOTES)):
            warn(
                "files of the run were changed after they were written; "
                f"{', '.join(map(str, changed))}; do not rely on them, and run the model file again"
            )
        attributes = {
            "title": model.title,
            "source": model.source,
            "model": model.model_dump_json(),
            "n_planned": len(plan.cells),
            **_read_notes(self.folder),
        }
        planned: dict[str, list[Experiment]] = {}
        for cell in plan.cells:
            planned.setdefault(cell.id, []).append(cell)
        read = [_read_cells(path, model, planned) for path in self.parts()]
        parts = [part for part in read if part.sizes["cell"]]
        if not parts:
            return xarray.Dataset(attrs=attributes)
        # The order of the measures in the file may have changed between two parts.
        result = _concatenate(parts).drop_duplicates("cell").sel(measure=parts[0]["measure"])
        finished = {*result["cell"].values}
        cells = [cell for cell in plan.cells if cell.id in finished]
        result = result.sel(cell=[cell.id for cell in cells])
        result = result.assign_coords(measure=result["measure"].astype(object))
        return result.assign_coords(_coordinates(cells, result.data_vars)).assign_attrs(attributes)

    def parts(self, batch: str = "") -> list[Path]:
        """List the files with finished fits of all batches.

        If ``batch`` is the identifier of a batch, only files of this batch are listed.
        """
        _refuse_links(self._cells)
        return sorted(self._cells.glob(f"{batch or '[!.]'}*.nc"))

    def finished(self, batch: str = "") -> set[str]:
        """Identifiers of the finished fits of all batches, or of the batch ``batch`` only.

        Raises InputError if a file is damaged.
        """
        return {name for path in self.parts(batch) for name in _identifiers(path)}

    def claim(self, batch: Batch, *, wait: bool) -> contextlib.AbstractContextManager[bool]:
        """Lock a batch inside the ``with``; yield whether the lock was obtained.

        If another runner has locked the batch, the method waits for the lock if ``wait`` is True,
        and yields False if ``wait`` is False.
        """
        return locked(self._locks / f"{batch.id}.lock", wait=wait)

    def write(self, batch: Batch, content: bytes) -> Path:
        """Write ``content``, a NetCDF file with finished fits of a batch; return the path."""
        # A batch has several parts after runs that selected some of its fits.
        path = sealed(self._cells / f"{batch.id}.nc", content)
        write_atomically(path, content)
        return path


def _refuse_links(folder: Path) -> None:
    """Raise InputError if a subfolder of a run is a symbolic link or contains one."""
    for path in (folder, *folder.glob("*")):
        refuse_link(path)


def _identifiers(path: Path) -> list[str]:
    """Read the identifiers of the fits in one file; raise InputError if the file is damaged."""
    import h5py

    with _reading(path), h5py.File(io.BytesIO(check_seal(path))) as file:
        file[_IDENTITY]  # raises KeyError if absent, before the run instead of in `load` after it
        return [value.decode() for value in file["cell"][:]]


def read_plan(folder: Path | str) -> Plan:
    """Read the plan of a folder of results; the plan has no batches.

    Raises InputError if there is no plan, or if the plan does not match the manifest.
    """
    path = Path(folder) / PLAN
    if not os.path.lexists(path):
        raise InputError(
            f"no results here; {folder} has no {PLAN}; name a folder that `nrprob run` wrote"
        )
    with reading(path, "the plan of a run", "run the model file again"):
        plan = json.loads(read_file(Path(folder), PLAN))
        cells = tuple(Experiment(**cell) for cell in plan["cells"])
        return Plan(ModelFile.model_validate(plan["model"]), cells, (), dict(plan["origin"]))


def _read_notes(folder: Path) -> dict[str, str]:
    """Numbers of skipped and of failed fits, as two JSON texts with the numbers by reason.

    A killed run leaves no such notes; the result is then empty.
    """
    path = folder / _NOTES
    if not os.path.lexists(path):
        return {}
    with reading(path, "the notes of a run", "run the model file again"):
        notes = json.loads(read_file(folder, _NOTES))
        return {name: json.dumps(value) for name, value in notes.items()}


def load(folder: Path | str) -> xarray.Dataset:
    """Load the finished results of a run.

    Parameters
    ----------
    folder : Path or str
        Folder of the results of `nrprob.batch.run`.

    Returns
    -------
    xarray.Dataset
        Results with the dimension ``cell``: the planned fits in the order of the model file. Arrays
        of different lengths are padded with -1 or NaN. The variables are

        - ``labels`` (cell, sample), -1 for rows that were not fitted, and for the noise of external
          estimators;
        - ``view_labels`` (cell, sample, view) of methods that cluster views;
        - ``membership`` (cell, sample, cluster) if the file saves memberships;
        - ``n_labelled``, the number of labelled rows, and ``labelled`` (cell, sample), 1 for these
          rows and 0 for others, with target labels or a split;
        - ``part`` (cell, sample) with a split: 1 for labelled, 2 for unlabelled, 3 for test and 0
          for left out rows;
        - ``predicted`` or ``view_predicted`` with a split whose test rows are scored;
        - ``refusal`` with constraints: why they are infeasible, empty if they are feasible;
        - ``objective``, ``objective_trace`` (cell, step) and ``restart_objective`` (cell, restart)
          in nats; NaN for external estimators;
        - ``score`` (cell, measure);
        - ``seconds`` of device time per fit, and ``compile_seconds`` of its program;
        - ``converged``, ``n_iter``, ``n_clusters_found``, ``n_rows``, ``warnings`` (one per line),
          ``started``, ``device``, ``dtype``, ``host`` and ``versions`` (JSON).

        The coordinates are ``method``, ``case``, ``repeat``, ``run``, ``data_seed``,
        ``random_state``, and every parameter of any fit; ``data_parameters`` and ``parameters``
        hold all of them as JSON. The attributes are ``title``, ``source``, ``model`` (JSON),
        ``n_planned`` (the number of planned fits), and ``skipped`` and ``failed`` (JSON), the
        numbers of fits by reason in the last run.

    Warns
    -----
    UserWarning
        If fits are missing, or if a page or ``results.nc`` was changed after it was written.

    Raises
    ------
    nrprob.exceptions.InputError
        If there are no results; if the plan, the manifest, the notes or a file of fits was changed
        after it was written, or is a symbolic link; if a fit does not belong to the plan.

    See Also
    --------
    nrprob.batch.run : Run a model file.
    nrprob.batch.write_report : HTML page of a run.

    Examples
    --------
    >>> from nrprob import batch
    >>> spec = {"data": {"loader": "iris"}, "methods": [{"name": "ib", "n_clusters": 3}]}
    >>> results = batch.run(spec, "results/iris")
    >>> batch.load("results/iris")["labels"].shape
    (1, 150)
    """
    dataset = Store(as_path(folder, "folder")).results()
    n_planned, n_done = dataset.attrs["n_planned"], dataset.sizes.get("cell", 0)
    if n_done < n_planned:
        warn(
            f"the run is not finished; {n_planned - n_done} of {n_planned} fits are missing in "
            f"{folder}; run the model file again to compute them"
        )
    return dataset


def _read_cells(
    path: Path, model: ModelFile, planned: Mapping[str, Sequence[Experiment]]
) -> xarray.Dataset:
    """Read the planned fits in a file.

    ``planned`` has the planned fits by identifier. Raises InputError if the identity of a fit does
    not agree with the plan.
    """
    part = _read_netcdf(path)
    with _reading(path):
        part = part.isel(cell=part["cell"].isin([*planned]))
        names, texts = (part[name].values.tolist() for name in ("cell", _IDENTITY))
        identities = dict(zip(names, texts, strict=True))
        cells = [cell for name in identities for cell in planned[name]]
        for cell, difference in find_differences(model, cells, identities):
            raise InputError(
                f"a result does not belong to the plan; {path}: in fit {cell.id}, {difference}; "
                "run the model file again"
            )
    return part.drop_vars(_IDENTITY)


def _coordinates(cells: Sequence[Experiment], taken: Container[Hashable]) -> dict[str, Any]:
    """Coordinates along ``cell``: properties and parameters of the planned fits.

    Parameters with a name in ``taken``, the names of variables, are left out.
    """
    columns: dict[str, list[Any]] = {
        "cell": [c.id for c in cells],
        "method": [c.method for c in cells],
        "case": [c.case for c in cells],
        "repeat": [c.repeat for c in cells],
        "run": [c.run for c in cells],
        "data_seed": [c.seed for c in cells],
        "data_parameters": [json.dumps(c.data) for c in cells],
        "parameters": [json.dumps(c.parameters) for c in cells],
    }
    merged = [c.values for c in cells]
    for name in dict.fromkeys(name for values in merged for name in values):
        if name not in columns:
            columns[name] = [values.get(name) for values in merged]
    return {
        name: ("cell", _column(values)) for name, values in columns.items() if name not in taken
    }


def _column(values: list[Any]) -> np.ndarray:
    """Convert the values of a coordinate to an array of numbers (NaN for None) or of texts."""
    types = {type(v) for v in values if v is not None}
    if types <= {int, float} and types:
        if None not in values and types == {int}:
            return np.asarray(values, np.int64)
        return np.asarray([np.nan if v is None else v for v in values], float)
    texts = ["" if v is None else v if isinstance(v, str) else json.dumps(v) for v in values]
    return np.asarray(texts, object)
