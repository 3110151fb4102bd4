"""A data set that lies in the wheel of another package, which is downloaded and not installed."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import scipy.sparse

from nrprob.datasets.loaders import DataSet, download, reading_data

__all__ = ["pbmc68k_reduced"]

SCANPY_URL = (
    "https://files.pythonhosted.org/packages/32/e9/"
    "c1d43543da87cd27e8e2a74db85cf0b6c5cff2d5f04a86bd584d2fbc2bb0/scanpy-1.11.5-py3-none-any.whl"
)
SCANPY_SHA256 = "fcd383ddcf7acbf7c0ca232c25ad51b00aec9f8d2f7c8954b8c6ee0962257166"
CELLS = "scanpy/datasets/10x_pbmc68k_reduced.h5ad"
LABELINGS = ("bulk_labels", "phase", "louvain")


def pbmc68k_reduced() -> DataSet:
    """Blood cells that scanpy's wheel holds; see `nrprob.datasets.load`."""
    path = download(
        "pbmc68k_reduced",
        SCANPY_URL,
        SCANPY_SHA256,
        file=SCANPY_URL.rpartition("/")[2],
        wrong="the file that was meant; {}; try another network",
        offline="with a network, call nrprob.datasets.load('pbmc68k_reduced') once",
    )
    return _read_cells(path)


def _read_cells(path: Path) -> DataSet:
    """Read the logarithms, which the file calls raw: its X has genes in units of their own.

    The file is older than today's h5ad, whose readers warn of it; h5py reads both.
    """
    import h5py

    with reading_data(path), zipfile.ZipFile(path) as wheel:
        with h5py.File(io.BytesIO(wheel.read(CELLS)), "r") as file:
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
