"""Rows on disk and elsewhere are read unchanged from every source."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pytest

import nrprob
from nrprob.data.design import DesignEncoder
from nrprob.data.storage import sources
from nrprob.data.storage.sources import exclude_columns, find_source, read_pieces
from nrprob.data.storage.stored import Moments, survey_rows
from nrprob.exceptions import InputError

NAMES = ["a", "b", "c"]


class Zarr:
    """Interface of a zarr array."""

    def __init__(self, x):
        self._x, self.shape, self.dtype, self.chunks = x, x.shape, x.dtype, (10, 2)

    def __getitem__(self, at):
        return self._x[at]


def frame(n=50, dtype=np.float32):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(n, 3)).astype(dtype), columns=NAMES)
    return table.assign(batch=np.array(["u", "v", "w"])[np.arange(n) % 3], site=np.arange(n) % 2)


def places(table, folder):
    """The same rows in every type of source, and whether its columns have names."""
    import dask.array as da
    import dask.dataframe as dd

    x = table[NAMES].to_numpy()
    np.save(folder / "rows.npy", x)
    np.save(folder / "turned.npy", np.asfortranarray(x))
    table.to_parquet(folder / "rows.parquet", row_group_size=17)
    feather.write_feather(pa.Table.from_pandas(table), folder / "rows.feather")
    (folder / "several").mkdir()
    table[:20].to_parquet(folder / "several" / "a.parquet")
    table[20:].to_parquet(folder / "several" / "b.parquet")
    several = [str(folder / "several" / name) for name in ("a.parquet", "b.parquet")]
    return {
        "npy": (folder / "rows.npy", False),
        "npy in Fortran's order": (folder / "turned.npy", False),
        "memory map": (np.load(folder / "rows.npy", mmap_mode="r"), False),
        "zarr": (Zarr(x), False),
        "parquet": (folder / "rows.parquet", True),
        "feather": (str(folder / "rows.feather"), True),
        "folder": (folder / "several", True),
        "list": (several, True),
        "dataset": (ds.dataset(several), True),
        "dask array": (da.from_array(x, chunks=(13, 2)), False),
        "dask frame": (dd.from_pandas(table, npartitions=3), True),
    }


def test_rows_are_the_same_wherever_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_PIECE_ROWS", 7)
    table = frame()
    for kind, (place, named) in places(table, tmp_path).items():
        others = ["batch", "site"] if named else []
        source = exclude_columns(find_source(place, None), others)
        read_ = [p for part in source.parts for p in read_pieces(part, source, others)]
        x = np.concatenate([piece.x for piece in read_])
        assert x.dtype == np.float32 and all(0 < len(piece.x) <= 20 for piece in read_), kind
        np.testing.assert_array_equal(x, table[NAMES].to_numpy(), err_msg=kind)
        for name in others:
            column = np.concatenate([piece.columns[name] for piece in read_])
            assert (column == table[name].to_numpy()).all(), kind


def test_what_is_known_is_read_with_the_rows(tmp_path):
    table = frame()
    for place, named in places(table, tmp_path).values():
        known = ["batch", "site"] if named else [*table[["batch", "site"]].to_numpy().T]
        given = known if named else table[["batch", "site"]].to_numpy()
        with survey_rows(nrprob.stored(place), given, None) as seen:
            expected = DesignEncoder().fit(table[["batch", "site"]].to_numpy(), len(table))
            assert (seen.design.codes == expected.codes).all()
            assert seen.design.n_groups == 6 and seen.n_all == len(table)
            x = table[NAMES].to_numpy(float)
            np.testing.assert_allclose(seen.moments.mean, x.mean(0), rtol=1e-12)
            np.testing.assert_allclose(seen.moments.square, len(x) * x.var(0), rtol=1e-12)


def test_moments_of_parts_join():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 4)) + 1e6
    parts = [Moments.from_rows(own) for own in np.split(x, [1, 30, 31])]
    joined = parts[0].merge(parts[1]).merge(parts[2]).merge(parts[3])
    np.testing.assert_allclose(joined.mean, x.mean(0), rtol=1e-14)
    np.testing.assert_allclose(joined.square, 100 * x.var(0), rtol=1e-8)
    assert joined.n_rows == 100 and joined.largest == abs(x).max() and not joined.is_count
    counts, binary = (Moments.from_rows(np.array([row])) for row in ([0.0, 3.0], [1.0, 1.0]))
    counts = counts.merge(binary)
    assert counts.is_count and not counts.is_binary


def fit(place, known="batch", **options):
    return nrprob.CCIB(2, n_init=1, random_state=0).fit(
        nrprob.stored(place, **options), known=known
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: fit(p / "nowhere.parquet"), "does not exist; check the path"),
        (lambda p: fit(3), "rows must be a path"),
        (lambda p: fit(np.zeros(3)), r"2-D array of numbers; got shape \(3,\)"),
        (lambda p: fit(np.zeros((3, 0))), "2-D array of numbers"),
        (lambda p: fit(p / "rows.parquet", columns=["d"]), "no column 'd'; the rows have 'a', 'b'"),
        (lambda p: fit(p / "rows.parquet", columns=["batch"]), "column 'batch' is not"),
        (lambda p: fit(p / "rows.parquet", known="dose"), "no column 'dose'"),
        (lambda p: fit(p / "rows.parquet", known=None), "columns 'batch' are not; name"),
        (lambda p: fit(p / "rows.parquet", known="a", columns=["a"]), "no feature is left"),
        (lambda p: fit(p / "rows.npy"), "has no named columns; got .'batch'."),
        (lambda p: fit(p / "rows.npy", known=[0, 1]), "known has 2 labels for 50 samples"),
        (
            lambda p: fit(p / "rows.npy", known=np.eye(50)[:, :2]),
            "must be labels; got a 2-D array of floats",
        ),
        (lambda p: fit(p / "holes.parquet"), "NaN or infinity; found nan in column 'b', row 3"),
        (lambda p: fit(p / "gaps.parquet"), "found one missing in column 'batch'"),
        (lambda p: fit(p / "rows.parquet", memory=-1), "memory must be a number of bytes"),
        (lambda p: fit(p / "rows.parquet", memory=0, scratch=p / "no"), "cannot write the scratch"),
        (lambda p: fit(p / "rows.parquet", labels=p / "rows.npy" / "a"), "cannot write"),
        (lambda p: fit(p / "rows.parquet", known=["batch", "batch"]), "known columns must differ"),
        (
            lambda p: nrprob.explore(nrprob.stored(p / "rows.npy")),
            "explore needs rows in memory",
        ),
        (lambda p: nrprob.recommend(nrprob.stored(p / "rows.npy")), "recommend needs rows in"),
        (lambda p: fit(p / "broken.parquet"), "cannot read rows"),
        (lambda p: fit(p / "broken.npy", known=None), "cannot read rows"),
        (lambda p: fit(p / "rows.npy", known=None, columns=["a"]), "columns= needs named columns"),
        (lambda p: fit(p / "rows.npy", processes=True, scheduler="local"), "leave one of them out"),
        (
            lambda p: nrprob.MixtureEM(2).fit(nrprob.stored(p / "rows.npy")),
            "MixtureEM needs rows in memory; got stored rows",
        ),
        (
            lambda p: nrprob.IBSI(2, gamma=1.0).fit(nrprob.stored(p / "rows.npy")),
            "IBSI with damped=True needs rows in memory",
        ),
        (
            lambda p: nrprob.CCIB(2, solver="sequential").fit(nrprob.stored(p / "rows.npy")),
            "need solver='anneal'; got solver='sequential'",
        ),
        (
            lambda p: nrprob.ConditionalMixture(2, balance=1.0).fit(nrprob.stored(p / "rows.npy")),
            "balance needs all rows in memory",
        ),
        (
            lambda p: nrprob.ConditionalMixture(60).fit(nrprob.stored(p / "rows.npy")),
            "n_clusters=60 is more than the number of rows; got n_samples=50;",
        ),
        (
            lambda p: nrprob.CCIB(2, multi="additive").fit(
                nrprob.stored(p / "rows.npy"), known=np.arange(50) % 2
            ),
            "need rows in memory; got stored rows",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message, tmp_path):
    table = frame()
    table.to_parquet(tmp_path / "rows.parquet")
    np.save(tmp_path / "rows.npy", table[NAMES].to_numpy())
    table.drop(columns="site").assign(b=table.b.where(table.index != 3)).to_parquet(
        tmp_path / "holes.parquet"
    )
    table.assign(batch=table.batch.where(table.index != 3)).to_parquet(tmp_path / "gaps.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1, they said")
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises((InputError, ValueError, TypeError), match=message):
        make(tmp_path)
