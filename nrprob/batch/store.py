"""Results on disk: one file per finished batch, written whole or not at all.

A folder holds ``plan.json`` (the model and its cells), ``cells/`` (NetCDF files of finished
batches) and ``locks/``. A file appears under its name by a rename, so that a run that is killed
leaves finished batches and, at most, a hidden file that the next run removes; a lock is the
operating system's, so that it vanishes with its runner, however that ends. Files of cells are
sealed (`nrprob.files`), and say of every cell what it was computed with; all other files are listed
in a manifest (`nrprob.batch.manifest`).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import (
    Collection,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.batch.fits import Fit
from nrprob.batch.formats import MANIFEST, PAGE, PLAN
from nrprob.batch.manifest import changed_files, locks_of, read_file, write_files
from nrprob.batch.plan import Batch, Experiment, Plan, differences
from nrprob.batch.schema import ModelFile
from nrprob.exceptions import InputError, warn
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
    write_whole,
)

if TYPE_CHECKING:
    import xarray

__all__ = ["Store", "load", "netcdf", "read_origin", "read_plan", "to_dataset"]

_NOTES = "notes.json"
_RESULTS = "results.nc"
_IDENTITY = "identity"  # the variable of a file of cells that says what determines the results
_OF_VIEWS = ("sample", "view")
# Settings of the file format; labels and memberships of many fits compress well.
_SMALL = {"zlib": True, "complevel": 3, "shuffle": True}
# What differs between two runs of the same cells.
CIRCUMSTANCES = ("seconds", "compile_seconds", "started", "host", "device", "versions")


def netcdf(dataset: xarray.Dataset) -> bytes:
    """Content of the NetCDF file of a dataset."""
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    encoding = {
        name: _SMALL for name, v in dataset.variables.items() if v.dtype.kind in "iuf" and v.ndim
    }
    # Where a cluster of dask is in use, `to_netcdf` asks it for a lock, which has to know the file.
    content = io.BytesIO()
    with h5netcdf.File(content, "w") as file:
        dataset.dump_to_store(H5NetCDFStore(file), encoding=encoding)
    return content.getvalue()


def try_storage() -> None:
    """Store a small dataset, in memory, and read it.

    Raises
    ------
    nrprob.exceptions.InputError
        If the packages that results are kept by do not do so.
    """
    try:
        import h5netcdf  # noqa: F401
        import h5py  # noqa: F401
        import xarray

        one = xarray.Dataset({"x": ("cell", np.zeros(1))}, {"cell": np.asarray(["a"], object)})
        with xarray.open_dataset(io.BytesIO(netcdf(one)), engine="h5netcdf") as same:
            same.load()
    except Exception as error:
        raise InputError(
            f"results cannot be stored; {type(error).__name__}: {' '.join(str(error).split())}; "
            "run pip install --upgrade h5py h5netcdf xarray"
        ) from error


def _reading(path: Path) -> contextlib.AbstractContextManager[None]:
    return reading(path, "a result file", "delete it to have its cells computed again")


def _read_netcdf(path: Path) -> xarray.Dataset:
    import xarray

    with _reading(path):
        content = io.BytesIO(check_seal(path))
        with xarray.open_dataset(content, engine="h5netcdf") as dataset:
            # How it was written, such as the length of its texts, is nothing to those it joins.
            return dataset.load().drop_encoding()


def to_dataset(
    fits: Mapping[Experiment, Fit], made: Mapping[str, str], *, labels: bool = True
) -> xarray.Dataset:
    """Fits as a dataset over cells; what is ragged is padded with -1 or NaN.

    Parameters
    ----------
    fits : mapping of Experiment to Fit
        By their cells, whose identities are stored with them.
    made : mapping of str to str
        When, where and by what all of them were made.
    labels : bool, default=True
        Whether to keep the labels.
    """
    return _joined(
        [
            _of_fit(fit, labels)
            .assign({**made, _IDENTITY: cell.identity})
            .expand_dims(cell=np.asarray([cell.id], object))
            for cell, fit in fits.items()
        ]
    )


def _of_fit(fit: Fit, labels: bool) -> xarray.Dataset:
    """One fit, without the dimension of cells."""
    import xarray

    variables: dict[str, Any] = {
        "objective": ((), fit.objective),
        "n_clusters_found": ((), np.int32(fit.n_clusters)),
        "converged": ((), np.int8(fit.converged)),
        "n_iter": ((), np.int32(fit.n_iter)),
        "n_rows": ((), np.int32(len(fit.labels))),
        "seconds": ((), fit.seconds),
        "compile_seconds": ((), fit.compile_seconds),
        "dtype": ((), fit.dtype),
        "warnings": ((), "\n".join(" ".join(text.split()) for text in fit.warnings)),
        "score": ("measure", np.asarray([*fit.scores.values()], float)),
        "restart_objective": ("restart", fit.restarts),
    }
    if labels:
        for name, values in (("labels", fit.labels), ("predicted", fit.predicted)):
            if values is not None:
                # Those in several views are a variable of their own.
                name, dims = (name, "sample") if values.ndim == 1 else (f"view_{name}", _OF_VIEWS)
                variables[name] = (dims, values.astype(np.int32))
        for name, drawn in (("labelled", fit.labelled), ("part", fit.part)):
            if drawn is not None:
                variables[name] = ("sample", drawn.astype(np.int8))
    if fit.labelled is not None:
        variables["n_labelled"] = ((), np.int32(fit.labelled.sum()))
    if fit.refusal is not None:
        variables["refusal"] = ((), " ".join(fit.refusal.split()))
    if fit.trace.size:
        variables["objective_trace"] = ("step", fit.trace)
    if fit.membership is not None:
        variables["membership"] = (("sample", "cluster"), np.asarray(fit.membership, np.float32))
    return xarray.Dataset(variables, {"measure": np.asarray([*fit.scores], object)})


def _joined(parts: Sequence[xarray.Dataset]) -> xarray.Dataset:
    """Datasets over cells, one after another; what is ragged or missing is -1 or NaN."""
    import xarray

    # xarray aligns what has coordinates: ragged dimensions are numbered as long as that takes.
    ragged = {dim for part in parts for dim in part.dims} - {"cell", "measure"}
    whole = xarray.concat(
        [part.assign_coords({d: np.arange(part.sizes[d]) for d in ragged & {*part.dims}})
         for part in parts],
        "cell", join="outer", data_vars="all", coords="minimal", compat="override",
        fill_value={n: -1 for p in parts for n, v in p.data_vars.items() if v.dtype.kind == "i"},
    )  # fmt: skip
    return whole.drop_vars(ragged)


class Store:
    """The results of one model in one folder."""

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self._cells = self.folder / "cells"
        self._locks = locks_of(self.folder)

    def try_out(self, others: Collection[str] = ()) -> None:
        """Try every place that a run will write to, without leaving anything there.

        Parameters
        ----------
        others : collection of str
            Names of further files in the folder.

        Raises
        ------
        nrprob.exceptions.InputError
            If one of them cannot be written to, or is a symbolic link, or nothing can be stored.
        """
        try_storage()
        for name in (PLAN, MANIFEST, _NOTES, _RESULTS, PAGE, *others):
            try_write(self.folder / name)
        for folder in (self._cells, self._locks):
            _refuse_links(folder)
            try_write(folder / "any")

    def open(self, plan: Plan) -> None:
        """Make the folder and say in it what is going to be there."""
        for folder in (self._cells, self._locks):
            _refuse_links(folder)
        for folder in (self.folder, self._cells, self._locks):
            make_folder(folder)
            remove_left_over(folder)
        write_files(self.folder, {PLAN: plan.dumps().encode()})

    def note(self, **notes: Any) -> None:
        """Say what became of cells that are not there."""
        write_files(self.folder, {_NOTES: json.dumps(notes, indent=1).encode()})

    def gather(self) -> xarray.Dataset:
        """Put all results into one file, ``results.nc``, for whoever reads NetCDF."""
        dataset = self.results()
        if dataset.sizes.get("cell"):
            write_files(self.folder, {_RESULTS: netcdf(dataset)})
        return dataset

    def results(self) -> xarray.Dataset:
        """All finished cells of the plan, see `load`.

        Warns
        -----
        UserWarning
            If a file that holds no results of its own was changed: ``results.nc`` or a page.
        """
        import xarray

        model, planned = read_plan(self.folder)
        if changed := changed_files(self.folder, without=(PLAN, _NOTES)):
            warn(
                "files of the run were changed after they were written; "
                f"{', '.join(map(str, changed))}; do not rely on them, and run the model file again"
            )
        attributes = {
            "title": model.title,
            "source": model.source,
            "model": model.model_dump_json(),
            "n_planned": len(planned),
            **_read_notes(self.folder),
        }
        parts = _of_plan(model, planned, self.parts())
        if not parts:
            return xarray.Dataset(attrs=attributes)
        # Parts written before the measures of the file changed places have another order.
        result = _joined(parts).drop_duplicates("cell").sel(measure=parts[0]["measure"])
        there = {*result["cell"].values}
        cells = [cell for cell in planned if cell.id in there]
        result = result.sel(cell=[cell.id for cell in cells])
        result = result.assign_coords(measure=result["measure"].astype(object))
        return result.assign_coords(_coordinates(cells, result.data_vars)).assign_attrs(attributes)

    def parts(self, batch: str = "") -> list[Path]:
        """Files of finished cells; those of one batch if it is named."""
        _refuse_links(self._cells)
        return sorted(self._cells.glob(f"{batch or '[!.]'}*.nc"))

    def finished(self, batch: str = "") -> set[str]:
        """Identifiers of finished cells; only those of one batch if it is named.

        Raises
        ------
        nrprob.exceptions.InputError
            If a file is damaged.
        """
        return {name for path in self.parts(batch) for name in _identifiers(path)}

    @contextlib.contextmanager
    def claim(self, batch: Batch, *, wait: bool) -> Iterator[bool]:
        """Keep other runners off a batch; False where one of them has it and we do not wait."""
        with locked(self._locks / f"{batch.id}.lock", wait=wait) as ours:
            yield ours

    def write(self, batch: Batch, content: bytes) -> Path:
        """Write finished cells of a batch: the content of a NetCDF file."""
        # Cells of a batch may come in several parts, after runs that were asked for some of them.
        path = sealed(self._cells / f"{batch.id}.nc", content)
        write_whole(path, content)
        return path


def _refuse_links(folder: Path) -> None:
    """Refuse a folder within that of a run that is a symbolic link, or has one in it."""
    for path in (folder, *folder.glob("*")):
        refuse_link(path)


def _identifiers(path: Path) -> list[str]:
    """Cells of one file; its digest says that the rest of it is good."""
    import h5py

    with _reading(path), h5py.File(io.BytesIO(check_seal(path))) as file:
        file[_IDENTITY]  # without it, `load` would refuse the file after the run
        return [value.decode() for value in file["cell"][:]]


def read_plan(folder: Path | str) -> tuple[ModelFile, list[Experiment]]:
    """Model and cells of a folder of results.

    Raises
    ------
    nrprob.exceptions.InputError
        If there is no plan, or it does not fit the manifest.
    """
    path = Path(folder) / PLAN
    if not os.path.lexists(path):
        raise InputError(
            f"no results here; {folder} has no {PLAN}; name a folder that `nrprob run` wrote"
        )
    with _reading_run(path, "the plan of a run"):
        plan = json.loads(read_file(Path(folder), PLAN))
        return ModelFile.model_validate(plan["model"]), [
            Experiment(**cell) for cell in plan["cells"]
        ]


def read_origin(folder: Path | str) -> dict[str, Any]:
    """Where the results of a folder come from."""
    path = Path(folder) / PLAN
    with _reading_run(path, "the plan of a run"):
        return dict(json.loads(read_file(path.parent, PLAN))["origin"])


def _read_notes(folder: Path) -> dict[str, str]:
    """What became of cells that are not there; a run that was killed has no notes."""
    path = folder / _NOTES
    if not os.path.lexists(path):
        return {}
    with _reading_run(path, "the notes of a run"):
        notes = json.loads(read_file(folder, _NOTES))
        return {name: json.dumps(value) for name, value in notes.items()}


def _reading_run(path: Path, what: str) -> contextlib.AbstractContextManager[None]:
    return reading(path, what, "run the model file again")


def load(folder: Path | str) -> xarray.Dataset:
    """Results of a run, as far as they are finished.

    Parameters
    ----------
    folder : Path or str
        What `nrprob.batch.run` wrote to.

    Returns
    -------
    xarray.Dataset
        Over ``cell``, in the order of the model file: ``labels`` (cell, sample), -1 beyond the rows
        of the cell's data, for rows that were not fitted, and for what a rival takes for noise;
        ``view_labels`` (cell, sample, view) of methods that cluster views; ``membership``
        (cell, sample, cluster) where asked for; if the model wants labels or splits rows,
        ``n_labelled`` rows that have one, and ``labelled`` (cell, sample), 1 for them, 0 for the
        others and -1 beyond; of a split, ``part`` (cell, sample), 1 for labelled rows, 2 for
        unlabelled ones, 3 for those of the test and 0 for those left out, and ``predicted`` or
        ``view_predicted`` where test rows were scored; if there are constraints, ``refusal``, why
        they cannot be kept, empty where they can; ``objective``, ``objective_trace`` (cell, step)
        and ``restart_objective`` (cell, restart) in nats, NaN beyond the last, and for rivals;
        ``score`` (cell, measure); ``seconds`` of a device per fit, and ``compile_seconds`` of the
        program that made it; ``converged``, ``n_iter``,
        ``n_clusters_found``, ``n_rows``, ``warnings`` (one a line), ``started``, ``device``,
        ``dtype``, ``host``, ``versions`` (JSON).
        Coordinates name ``method``, ``case``, ``repeat``, ``run``, ``data_seed``,
        ``random_state``, and every parameter that any cell has; ``data_parameters`` and
        ``parameters`` hold all of them as JSON. Attributes: ``title``, ``source``, ``model``
        (JSON), ``n_planned``, the number of cells when all are finished, and ``skipped`` and
        ``failed`` (JSON), numbers of cells by reason, as the last run left them.

    Warns
    -----
    UserWarning
        If fits are missing; if a page or ``results.nc`` was changed after it was written.

    Raises
    ------
    nrprob.exceptions.InputError
        If there are no results; if the plan, the manifest, the notes or a file of cells was changed
        after it was written, or is a symbolic link; if a fit was computed with something else than
        the plan says.

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


def _of_plan(
    model: ModelFile, planned: Sequence[Experiment], paths: Iterable[Path]
) -> list[xarray.Dataset]:
    """Cells of a plan in files, which have to say that they were computed with what it says."""
    planned_by_id: dict[str, list[Experiment]] = {}
    for cell in planned:
        planned_by_id.setdefault(cell.id, []).append(cell)
    parts = []
    for path in paths:
        part = _read_netcdf(path)
        with _reading(path):
            part = part.isel(cell=part["cell"].isin([*planned_by_id]))
            texts = part[_IDENTITY].values.tolist()
            identities = dict(zip(part["cell"].values.tolist(), texts, strict=True))
            cells = [cell for name in identities for cell in planned_by_id[name]]
            for cell, what in differences(model, cells, identities):
                raise InputError(
                    f"a result does not belong to the plan; {path}: in fit {cell.id}, {what}; run "
                    "the model file again"
                )
        if identities:
            parts.append(part.drop_vars(_IDENTITY))
    return parts


def _coordinates(cells: Sequence[Experiment], taken: Container[Hashable]) -> dict[str, Any]:
    """Coordinates over cells: what a cell is, and its parameters; none of names that are taken."""
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
    """Numbers with NaN for what is missing, or else text."""
    kinds = {type(v) for v in values if v is not None}
    if kinds <= {int, float} and kinds:
        if None not in values and kinds == {int}:
            return np.asarray(values, np.int64)
        return np.asarray([np.nan if v is None else v for v in values], float)
    texts = ["" if v is None else v if isinstance(v, str) else json.dumps(v) for v in values]
    return np.asarray(texts, object)
