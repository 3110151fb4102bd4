"""Hostile input to every public entry: a finite, valid result, or a one-sentence error.

Each case is generated from its number: ``pytest -m slow
"tests/test_fuzz.py::test_hostile_call[17]"`` repeats one. `NRPROB_FUZZ_CASES` (300) is the number
of cases, and `NRPROB_FUZZ_SEED` (0) their seed.
"""

import contextlib
import linecache
import os
import pickle
import random
import re
import resource
import signal
import sys
import traceback
import warnings

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import sklearn
from hostile import GOOD_LABELS, GOOD_ROWS, LABELS, ROWS, TABLES
from hostile_calls import MODELS, call, good_rows, number, pick, prepared_call
from jax.experimental.compilation_cache import compilation_cache
from scipy import sparse
from sklearn.base import clone

import nrprob
from nrprob.batch.registry import METHODS
from nrprob.exceptions import InputError
from nrprob.known import Memberships

CASES = int(os.environ.get("NRPROB_FUZZ_CASES", "300"))
SEED = int(os.environ.get("NRPROB_FUZZ_SEED", "0"))
LIMIT = 120  # seconds, including compilation
MEMORY = 8 * 2**30  # bytes of address space beyond the present use of the process

PAIRS = {
    "some": lambda rng: rng.integers(0, 24, (3, 2)),
    "few": lambda rng: [[0, 2], [2, 4]],
    "none": lambda rng: np.empty((0, 2), int),
    "floats": lambda rng: [[0.0, 1.0]],
    "beyond": lambda rng: [[0, 24]],
    "below": lambda rng: [[0, -1]],
    "huge": lambda rng: [[0, 2**70]],
    "triples": lambda rng: [[0, 1, 2]],
    "ragged": lambda rng: [[0], [1, 2]],
    "words": lambda rng: [["a", "b"]],
    "NaN": lambda rng: [[0, np.nan]],
    "None": lambda rng: [[0, None]],
    "itself": lambda rng: [[1, 1]],
    "number": lambda rng: 3,
    "frame": lambda rng: pd.DataFrame([[0, 2]]),
    "masked": lambda rng: np.ma.masked_array([[0, 2], [1, 3]], [[0, 0], [1, 0]]),
}
# Results that are documented to be NaN: for one cluster, for a single draw.
UNDEFINED = (
    "dunn_index", "silhouette_width", "n_clusters", "diagnose", "independence_test",
    "chain_distances",
)  # fmt: skip
# Results whose definition is infinite for a probability of 0, or for a length above all bounds.
INFINITE = ("kl_divergence", "two_part_length", "kraft_sum")


# An array or a frame whose values are in a message.
PASTED = re.compile(r"(?<![\w.])array[(=]|\d\s+\d+\.\d|\.\.\. ")


class Hang(BaseException):
    pass


class Case:
    """A function, its arguments, and the check of its result."""

    def __init__(self, number):
        self.rng = np.random.default_rng([SEED, number])
        self.words, self.arguments = [], {}
        kind = self.rng.random()
        self.run = self.fit if kind < 0.45 else self.explore if kind < 0.5 else self.call
        getattr(self, f"prepare_{self.run.__name__}")()

    def take(self, name, pool):
        word, value = pick(self.rng, pool)
        self.words.append(f"{name}={word}")
        self.arguments[name] = value

    def prepare_fit(self):
        rng = self.rng
        kind = list(MODELS)[rng.integers(len(MODELS))]
        self.words.append(kind)
        name, model = MODELS[kind]
        self.model, method = clone(model), METHODS[name]
        # Mostly one argument is invalid at a time, so that its check is reached.
        wrong = rng.choice(["X", "X", "y", "known", "parameter", "parameter", "any", "new rows"])
        good = good_rows(name, self.model)
        self.take("X", ROWS if wrong in ("X", "any") else good)
        if wrong in ("y", "any") or rng.random() < 0.2:
            self.take("y", LABELS if wrong in ("y", "any") else GOOD_LABELS)
        if method.capabilities.known and (wrong in ("known", "any") or rng.random() < 0.7):
            pool = LABELS | TABLES if wrong in ("known", "any") else GOOD_LABELS
            self.take(method.capabilities.known_as, pool)
        if method.capabilities.pairs:
            for link in ("must_link", "cannot_link"):
                if rng.random() < 0.5:
                    self.take(link, PAIRS)
        if method.capabilities.views and rng.random() < 0.5:
            word, other = pick(rng, ROWS if rng.random() < 0.3 else good)
            self.words.append(f"and {word}")
            self.arguments["X"] = [self.arguments["X"], other]
        if wrong == "parameter" or (wrong == "any" and rng.random() < 0.5):
            names = sorted(set(self.model.get_params(deep=False)) - {"verbose"})
            name = names[rng.integers(len(names))]
            word, value = number(rng)
            self.words.append(f"{name}={word!r}")
            self.model.set_params(**{name: value})
        self.new = None
        if wrong == "new rows":
            word, self.new = pick(rng, ROWS)
            self.words.append(f"predict X={word}")

    def prepare_explore(self):
        self.take("X", ROWS if self.rng.random() < 0.5 else GOOD_ROWS)
        if self.rng.random() < 0.7:
            self.take("known", LABELS | TABLES)
        self.settings = {}
        for name in ("n_clusters", "n_clusterings", "random_state"):
            if self.rng.random() < 0.2:
                word, value = number(self.rng)
                if name == "n_clusterings" and isinstance(value, int) and value > 3:
                    word = value = 3  # its run time is an argument
                self.settings[name] = value
                self.words.append(f"{name}={word!r}")
        if self.rng.random() < 0.5:
            self.take("y", LABELS)
        self.words.append("recommend" if "y" in self.arguments else "explore")

    def prepare_call(self):
        words, self.function, self.arguments = prepared_call(self.rng)
        self.words += words

    # Functions that are called

    def fit(self):
        model = self.model.fit(**self.arguments)
        views = isinstance(model, nrprob.MDLMultiView)
        labels = np.asarray(model.labels_)
        assert labels.dtype.kind == "i" and labels.shape[0] == rows_of(self.arguments["X"])
        if not isinstance(model, nrprob.MDLMixture):
            assert np.isfinite(model.objective_), f"objective_ is {model.objective_}"
        else:
            assert np.isfinite(model.posterior_["log_density"]).all()
        if not views:
            assert 0 <= labels.min() and labels.max() < model.membership_.shape[1]
            sane_shares(model.membership_, len(labels))
        rows = self.arguments["X"] if self.new is None else self.new
        told = {
            name: self.arguments[name] for name in ("known", "subsets") if name in self.arguments
        }
        result = np.asarray(model.predict(rows, **told))
        assert result.shape[0] == rows_of(rows)
        shares = model.predict_proba(rows, **told)
        for one in shares if isinstance(shares, list) else [shares]:
            sane_shares(one, rows_of(rows))

    def explore(self):
        if "y" in self.arguments:
            settings = {k: v for k, v in self.settings.items() if k == "n_clusters"}
            model = nrprob.recommend(**self.arguments, **settings)
            assert isinstance(model.reason_, str)
            return
        settings = {"n_clusterings": 2, "random_state": 0, **self.settings}
        result = nrprob.explore(**self.arguments, **settings)
        assert result.labels_.shape == (rows_of(self.arguments["X"]), len(result.estimators_))
        assert np.isfinite(result.table).all(axis=None)
        if result.failure_ is not None:
            raise result.failure_

    def call(self):
        name = self.words[0].rpartition(".")[2]
        result = call(self.function, self.arguments)
        for value in leaves(result):
            assert name in UNDEFINED or not np.isnan(value).any(), f"the result is {result!r}"
            assert name in UNDEFINED + INFINITE or np.isfinite(value).all(), f"got {result!r}"


def leaves(value):
    """Numeric arrays in a result."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, pd.DataFrame):
        value = value.to_numpy()
    if hasattr(value, "to_dataset") or hasattr(value, "data_vars") or hasattr(value, "groups"):
        return []  # ArviZ's container: the input
    if is_picture(value) or hasattr(value, "get_params"):
        return []  # `fit` defines the valid attributes of an estimator
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in leaves(part)]
    if hasattr(value, "__dict__") and not hasattr(value, "dtype"):
        return leaves(list(vars(value).values()))
    array = np.asarray(value)
    return [array] if array.dtype.kind in "fc" else []


def is_picture(value):
    return type(value).__module__.startswith(("matplotlib", "mpl_toolkits"))


def rows_of(X):
    if isinstance(X, list) and hasattr(X[0], "shape"):
        X = X[0]
    return X.shape[0] if hasattr(X, "shape") else len(X)


def sane_shares(shares, n):
    shares = np.asarray(shares)
    assert shares.ndim == 2 and shares.shape[0] == n
    assert (shares >= 0).all() and np.allclose(shares.sum(1), 1), "shares do not sum to 1"


def contents(value):
    """The part of an argument that must not change; cached values may."""
    if isinstance(value, dict):
        return [(k, contents(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return [contents(v) for v in value]
    if sparse.issparse(value):
        parts = ("data", "indices", "indptr", "row", "col", "offsets", "rows")
        arrays = [contents(getattr(value, p)) for p in parts if hasattr(value, p)]
        return [value.format, value.shape, arrays]
    if isinstance(value, np.ma.MaskedArray):
        return [contents(value.data), contents(value.mask)]
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return [value.dtype, value.shape, value.strides, value.flags.writeable, value.tobytes()]
    if isinstance(value, pd.DataFrame | pd.Series | pd.Categorical):
        return [type(value), pickle.dumps(np.asarray(value)), getattr(value, "index", None) is None]
    if isinstance(value, Memberships):
        return contents(value.probabilities)
    if is_picture(value) or (isinstance(value, np.ndarray) and any(map(is_picture, value.flat))):
        return "a picture"  # Axes, on which the function plots
    return repr(value)


def surroundings():
    """Global state that must not change."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "NumPy's random numbers": [kind, keys.tobytes(), rest],
        "random": random.getstate(),
        # xarray adds one when it reads a file.
        "warnings": [f for f in warnings.filters if "decode_timedelta" not in str(f[1])],
        "JAX": dict(jax.config.values),
        "x64": jax.config.jax_enable_x64,
        "promotion": jax.config.jax_numpy_dtype_promotion,
        "NumPy's errors": np.geterr(),
        "scikit-learn": sklearn.get_config(),
        "environment": dict(os.environ),
        "path": list(sys.path),
    }


def ours(error):
    """Whether an error is one sentence of ours, or from scikit-learn's checks."""
    frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
    where = frame.f_code.co_filename
    lines = str(error).split("\n")
    if type(error) is InputError:
        lines = [max(lines, key=len)]  # the errors of a model file, one per line
    if "/sklearn/" in where and lines[0].startswith("The feature names should match"):
        lines = lines[:1]  # as scikit-learn's estimator contract requires
    if len(lines) > 1 or not 15 < len(lines[0]) <= 450 or PASTED.search(lines[0]):
        return False
    raised = linecache.getline(where, line).strip().startswith("raise")
    return "/sklearn/" in where or ("/nrprob/" in where and raised)


def stop(*_):
    raise Hang(f"no answer in {LIMIT} s")


@contextlib.contextmanager
def bounded():
    """Limit the time and the memory of a call."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    previous = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, before[1]))
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGALRM, previous)


@pytest.fixture(autouse=True)
def _few_programs(request):
    # Each program holds memory maps, whose number is limited: see conftest.py.
    if request.node.callspec.params["case"] % 100 == 99:
        jax.clear_caches()
    yield


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("case", range(CASES))
def test_hostile_call(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a hostile name of a folder
    hostile = Case(case)
    what = " ".join(hostile.words)
    print(f"case {case} of seed {SEED}: {what}")
    before = contents(hostile.arguments)
    with bounded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        around = surroundings()
        try:
            hostile.run()
        except (ValueError, TypeError) as error:
            if not ours(error):
                raise
        left = surroundings()
    plt.close("all")
    if hostile.words[0] == "cache":  # which is an intended setting
        for setting, value in around.pop("JAX").items():
            if left["JAX"][setting] != value:
                jax.config.update(setting, value)
        compilation_cache.reset_cache()
    if "random_state=None" in what:
        del around["NumPy's random numbers"]  # which are requested afterwards
    assert [k for k in around if around[k] != left[k]] == []
    assert contents(hostile.arguments) == before, "an argument was changed"
