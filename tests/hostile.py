"""Valid and invalid rows, labels and numbers, each generated from a seed."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy import sparse

from nrprob.known import Memberships

# Most arrays have one shape, since every other shape needs another compilation.
N, M = 24, 5


def _normal(rng):
    return rng.normal(size=(N, M)) + 4 * (np.arange(N) % 2)[:, None]


def _counts(rng):
    return rng.poisson(2.0, (N, M))


def _binary(rng):
    return rng.integers(0, 2, (N, M))


def _with(make, value):
    def made(rng):
        x = make(rng).astype(float)
        x[rng.integers(N), rng.integers(M)] = value
        return x

    return made


def _frame(rng):
    return pd.DataFrame(_normal(rng), columns=list("abcde"), index=[f"r{i}" for i in range(N)])


def _locked(x):
    x.flags.writeable = False
    return x


def _out_of_range(rng):
    x = sparse.csr_array(_counts(rng) + 1)
    x.indices[3] = rng.choice([-1, M, 10**6])
    return x


def _repeated(rng):
    at = rng.integers(0, M, 4 * N)
    return sparse.coo_array((np.ones(4 * N), (np.arange(4 * N) % N, at)), shape=(N, M))


def _wide_indices(rng):
    x = sparse.csr_array(_counts(rng))
    x.indices, x.indptr = x.indices.astype(np.int64), x.indptr.astype(np.int64)
    return x


GOOD_ROWS = {
    "normal": _normal,
    "counts": _counts,
    "binary": _binary,
    "sparse counts": lambda rng: sparse.csr_array(_counts(rng)),
    "sparse binary": lambda rng: sparse.csr_array(_binary(rng)),
    "frame": _frame,
    "float32": lambda rng: _normal(rng).astype(np.float32),
}
ROWS = GOOD_ROWS | {
    "proportions": lambda rng: rng.dirichlet(np.ones(M), N),
    "jax": lambda rng: jnp.asarray(_normal(rng), jnp.float32),
    "float16": lambda rng: _normal(rng).astype(np.float16),
    "longdouble": lambda rng: _normal(rng).astype(np.longdouble),
    "bool": lambda rng: _binary(rng).astype(bool),
    "int8": lambda rng: _counts(rng).astype(np.int8),
    "uint64": lambda rng: _counts(rng).astype(np.uint64) + np.uint64(2**63),
    "huge counts": lambda rng: _counts(rng) * 10**15,
    "negative counts": lambda rng: _counts(rng) - 2,
    "columns first": lambda rng: np.asfortranarray(_normal(rng)),
    "strides": lambda rng: np.repeat(_normal(rng), 2, axis=0)[::2, ::-1],
    "locked": lambda rng: _locked(_normal(rng)),
    "NaN": _with(_normal, np.nan),
    "infinity": _with(_normal, -np.inf),
    "1e300": _with(_normal, 1e300),
    "largest": _with(_normal, np.finfo(float).max),
    "all 1e300": lambda rng: _normal(rng) * 1e300,
    "all 1e-300": lambda rng: _normal(rng) * 1e-300,
    "all 1e-40 of float32": lambda rng: (_normal(rng) * 1e-40).astype(np.float32),
    "all 1e38 of float32": lambda rng: (_normal(rng) * 1e37).astype(np.float32),
    "far away": lambda rng: _normal(rng) + 1e12,
    "other scales": lambda rng: _normal(rng) * 10.0 ** np.arange(-8, 12, 4),
    "constant": lambda rng: np.full((N, M), rng.choice([0.0, 1.0, -3.7])),
    "a constant column": lambda rng: np.where(np.arange(M) == 2, 5.0, _normal(rng)),
    "two kinds": lambda rng: _normal(rng)[:2][rng.integers(0, 2, N)],
    "an empty row": lambda rng: np.where(np.arange(N)[:, None] == 3, 0, _counts(rng)),
    "masked": lambda rng: np.ma.masked_array(_normal(rng), _binary(rng).astype(bool)),
    "nothing masked": lambda rng: np.ma.masked_array(_normal(rng)),
    "objects": lambda rng: _normal(rng).astype(object),
    "None": lambda rng: np.where(_binary(rng), _normal(rng), None),
    "objects and text": lambda rng: np.where(_binary(rng), _counts(rng).astype(object), "x"),
    "numbers as text": lambda rng: _counts(rng).astype(str),
    "text": lambda rng: np.full((N, M), "x"),
    "dates": lambda rng: _counts(rng).astype("M8[D]"),
    "complex": lambda rng: _normal(rng) + 1j,
    "list": lambda rng: _normal(rng).tolist(),
    "ragged": lambda rng: [[1.0], *_normal(rng).tolist()],
    "dictionaries": lambda rng: np.full((N, M), {}, object),
    "huge integers": lambda rng: np.full((N, M), 10**400, object),
    "frame of text": lambda rng: _frame(rng).assign(a="x"),
    "frame of dates": lambda rng: _frame(rng).assign(b=pd.Timestamp("2020-01-01")),
    "frame of one name": lambda rng: _frame(rng).set_axis(list("aabcd"), axis=1),
    "frame of gaps": lambda rng: _frame(rng).mask(_frame(rng) > 5).convert_dtypes(),
    "frame of categories": lambda rng: pd.DataFrame(_counts(rng)).astype("category"),
    "frame of mixed names": lambda rng: _frame(rng).set_axis([1, 2, "a", "b", "c"], axis=1),
    "empty frame": lambda rng: _frame(rng)[[]],
    "sparse columns": lambda rng: sparse.csc_matrix(_counts(rng)),
    "sparse coordinates": _repeated,
    "sparse blocks": lambda rng: sparse.bsr_array(_counts(rng)),
    "sparse lists": lambda rng: sparse.lil_array(_binary(rng)),
    "sparse keys": lambda rng: sparse.dok_array(_binary(rng)),
    "sparse diagonals": lambda rng: sparse.dia_array(_binary(rng)),
    "sparse fractions": lambda rng: sparse.csr_array(_counts(rng) * 0.5),
    "sparse negative": lambda rng: sparse.csr_array(_normal(rng)),
    "sparse NaN": lambda rng: sparse.csr_array(_with(_counts, np.nan)(rng)),
    "sparse 1e300": lambda rng: sparse.csr_array(_with(_counts, 1e300)(rng)),
    "sparse of wide indices": _wide_indices,
    "sparse nothing": lambda rng: sparse.csr_array((N, M)),
    "sparse out of range": _out_of_range,
    "sparse too wide": lambda rng: sparse.coo_array(([1.0], ([0], [2**31])), shape=(N, 2**32)),
    "no rows": lambda rng: np.empty((0, M)),
    "no columns": lambda rng: np.empty((N, 0)),
    "one row": lambda rng: _normal(rng)[:1],
    "one column": lambda rng: _normal(rng)[:, :1],
    "one dimension": lambda rng: _normal(rng)[:, 0],
    "three dimensions": lambda rng: _normal(rng)[None],
    "a number": lambda rng: 3.0,
    "nothing": lambda rng: None,
    "a word": lambda rng: "X",
    "a dictionary": lambda rng: {"a": [1, 2]},
}

GOOD_LABELS = {
    "two": lambda rng: np.arange(N) % 2,
    "three": lambda rng: rng.integers(0, 3, N),
    "words": lambda rng: np.array(["a", "b", "c"])[rng.integers(0, 3, N)],
    "some": lambda rng: np.where(np.arange(N) < 8, np.arange(N) % 2, -1),
}
LABELS = GOOD_LABELS | {
    "a column": lambda rng: rng.integers(0, 2, (N, 1)),
    "list": lambda rng: rng.integers(0, 2, N).tolist(),
    "bool": lambda rng: rng.integers(0, 2, N).astype(bool),
    "words and -1": lambda rng: ["a", "b", *[-1] * (N - 2)],
    "words and numbers": lambda rng: ["a", 1, *[-1] * (N - 2)],
    "fractions": lambda rng: rng.integers(0, 2, N) / 2,
    "numbers": lambda rng: rng.normal(size=N),
    "objects": lambda rng: rng.normal(size=N).astype(object),
    "None": lambda rng: np.array([None, 1, 0, *[-1] * (N - 3)], object),
    "NaN": lambda rng: np.where(np.arange(N) == 2, np.nan, np.arange(N) % 2),
    "infinity": lambda rng: np.where(np.arange(N) == 2, np.inf, np.arange(N) % 2),
    "masked": lambda rng: np.ma.masked_array(np.arange(N) % 2, np.arange(N) > 4),
    "dates": lambda rng: (np.arange(N) % 2).astype("M8[D]"),
    "series": lambda rng: pd.Series(np.arange(N) % 2, [f"r{i}" for i in range(N)]),
    "another order": lambda rng: pd.Series(np.arange(N) % 2, [f"r{i}" for i in range(N)][::-1]),
    "categories": lambda rng: pd.Categorical(["a", "b"] * (N // 2)),
    "NA": lambda rng: pd.Series([pd.NA, 1, *[0] * (N - 2)], dtype="Int64"),
    "constant": lambda rng: np.zeros(N, int),
    "every row": lambda rng: np.arange(N),
    "unknown only": lambda rng: np.full(N, -1),
    "below -1": lambda rng: np.arange(N) % 3 - 3,
    "huge": lambda rng: np.array([2**70, 1] * (N // 2), object),
    "uint64": lambda rng: np.array([2**64 - 1, 1] * (N // 2), np.uint64),
    "int64": lambda rng: np.array([2**63 - 1, -(2**63)] * (N // 2)),
    "complex": lambda rng: np.arange(N) % 2 * 1j,
    "locked": lambda rng: _locked(np.arange(N) % 2),
    "strides": lambda rng: np.arange(2 * N)[::-2] % 2,
    "short": lambda rng: np.arange(N - 1) % 2,
    "empty": lambda rng: [],
    "one": lambda rng: 1,
    "a word": lambda rng: "labels",
    "dictionaries": lambda rng: [{}, {1: 2}] * (N // 2),
    "a dictionary": lambda rng: {"a": 1},
    "a set": lambda rng: {1, 2},
    "ragged": lambda rng: [[1], [1, 2]] * (N // 2),
    "three dimensions": lambda rng: np.zeros((N, 2, 2), int),
    "sparse": lambda rng: sparse.csr_array(np.arange(N)[:, None] % 2),
}
TABLES = {
    "two labelings": lambda rng: rng.integers(0, 3, (N, 2)),
    "many labelings": lambda rng: rng.integers(0, 4, (N, 6)),
    "words": lambda rng: np.array(["a", "b"])[rng.integers(0, 2, (N, 2))],
    "numbers": lambda rng: rng.normal(size=(N, 2)),
    "objects": lambda rng: rng.normal(size=(N, 2)).astype(object),
    "NaN": lambda rng: np.where(np.arange(N)[:, None] == 2, np.nan, rng.normal(size=(N, 2))),
    "1e300": lambda rng: rng.normal(size=(N, 2)) * 1e300,
    "1e-300": lambda rng: rng.normal(size=(N, 2)) * 1e-300,
    "constant": lambda rng: np.zeros((N, 2)),
    "as many as rows": lambda rng: rng.normal(size=(N, N)),
    "no columns": lambda rng: np.empty((N, 0)),
    "memberships": lambda rng: Memberships(rng.dirichlet(np.ones(3), N)),
    "memberships of others": lambda rng: Memberships(rng.dirichlet(np.ones(3), N - 1)),
    "hard memberships": lambda rng: Memberships(np.eye(3)[np.arange(N) % 3]),
    "frame": lambda rng: pd.DataFrame({"a": np.arange(N) % 2, "b": ["x", "y", "z"] * (N // 3)}),
    "mixed frame": lambda rng: pd.DataFrame({"a": np.arange(N) % 2, "b": rng.normal(size=N)}),
    "one name twice": lambda rng: pd.DataFrame(rng.integers(0, 2, (N, 2)), columns=["a", "a"]),
}
PROBABILITIES = {
    "table": lambda rng: rng.dirichlet(np.ones(6)).reshape(2, 3),
    "vector": lambda rng: rng.dirichlet(np.ones(6)),
    "cube": lambda rng: rng.dirichlet(np.ones(12)).reshape(2, 2, 3),
    "zeros in it": lambda rng: np.array([[0.5, 0.0], [0.0, 0.5]]),
    "rows": lambda rng: rng.dirichlet(np.ones(3), 2),
    "counts": lambda rng: rng.integers(0, 5, (2, 3)),
    "integers": lambda rng: rng.integers(0, 5, 4),
    "negative": lambda rng: np.array([1.5, -0.5]),
    "not 1": lambda rng: np.array([0.5, 0.4]),
    "NaN": lambda rng: np.array([np.nan, 1.0]),
    "infinity": lambda rng: np.array([np.inf, 1.0]),
    "1e300": lambda rng: np.array([1e300, 1e-300]),
    "float16": lambda rng: np.full(4, 0.25, np.float16),
    "bool": lambda rng: np.array([True, False]),
    "masked": lambda rng: np.ma.masked_array([0.5, 0.5], [True, False]),
    "objects": lambda rng: np.array([0.5, 0.5], object),
    "None": lambda rng: np.array([0.5, None], object),
    "text": lambda rng: np.array(["a", "b"]),
    "list": lambda rng: [0.5, 0.5],
    "ragged": lambda rng: [[0.5], [0.2, 0.3]],
    "empty": lambda rng: [],
    "no columns": lambda rng: np.empty((2, 0)),
    "one": lambda rng: 1.0,
    "nothing": lambda rng: None,
    "huge": lambda rng: np.array([10**400, 1], object),
    "sparse": lambda rng: sparse.csr_array(np.eye(2) / 2),
    "frame": lambda rng: pd.DataFrame(np.eye(2) / 2),
}
DRAWS = {
    "draws": lambda rng: rng.integers(0, 3, (10, N)),
    "chains": lambda rng: rng.integers(0, 3, (2, 5, N)),
    "one draw": lambda rng: rng.integers(0, 3, (1, N)),
    "words": lambda rng: np.array(["a", "b"])[rng.integers(0, 2, (10, N))],
    "fractions": lambda rng: rng.integers(0, 2, (10, N)) / 2,
    "constant": lambda rng: np.zeros((2, 5, N), int),
    "NaN": lambda rng: np.full((10, N), np.nan),
    "None": lambda rng: np.full((10, N), None),
    "masked": lambda rng: np.ma.masked_array(np.zeros((10, N), int), np.eye(10, N)),
    "objects": lambda rng: rng.integers(0, 2, (10, N)).astype(object),
    "dictionaries": lambda rng: np.full((2, N), {}, object),
    "huge": lambda rng: np.full((2, N), 2**62),
    "no draws": lambda rng: np.empty((0, N), int),
    "no rows": lambda rng: np.empty((10, 0), int),
    "one dimension": lambda rng: np.arange(N) % 2,
    "four dimensions": lambda rng: np.zeros((2, 2, 2, N), int),
    "ragged": lambda rng: [[1], [1, 2]],
    "list": lambda rng: rng.integers(0, 2, (4, N)).tolist(),
    "a word": lambda rng: "draws",
    "nothing": lambda rng: None,
}
NUMBERS = [
    1, 2, 3, 0.5, 1.5, 2.0, 1e-300, 1e300, 10**20, 2**31, np.int64(2), np.float32(0.5), np.array(2),
]  # fmt: skip
ANYTHING = [
    None, -1, 0, -0.0, np.nan, np.inf, -np.inf, True, "auto", "x", (), [], {}, [1, 2], 10**400, 1j,
    np.array([1.0, 2.0]), object, b"x",
]  # fmt: skip
