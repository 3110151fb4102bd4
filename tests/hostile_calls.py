"""All public functions, plots and methods, and good and bad values of their parameters.

A new function of a public module is called without a change here; a parameter without an entry in
`POOLS` gets numbers.
"""

import copy
import functools
import importlib
import inspect

import jax
import numpy as np
from every_estimator import every_kind
from hostile import (
    ANYTHING,
    DRAWS,
    GOOD_LABELS,
    GOOD_ROWS,
    LABELS,
    NUMBERS,
    PROBABILITIES,
    ROWS,
    TABLES,
    N,
)
from sklearn.cluster import KMeans
from sklearn.utils import get_tags

import nrprob
from nrprob import evidence, posterior
from nrprob.batch.registry import METHODS

MODULES = ("", *nrprob._MODULES, "batch")


def _functions():
    for module in MODULES:
        home = importlib.import_module(f"nrprob.{module}".rstrip("."))
        for name in getattr(home, "__all__", []):
            value = getattr(home, name)
            if inspect.isfunction(value):
                yield f"{module}.{name}".lstrip("."), value


FUNCTIONS = dict(_functions()) | {
    "Memberships": nrprob.known.Memberships,
}

MODELS = every_kind()
# Public methods of fitted estimators besides `fit`.
METHODS_OF_FITS = (
    "predict", "predict_proba", "score", "transform", "cut", "extend", "top_features",
    "top_samples", "to_arviz", "matching_rate", "predictive_rate",
)  # fmt: skip


def good_rows(name, model):
    """Valid rows for the estimator of this name."""
    dense = not get_tags(model).input_tags.sparse
    words = ("binary", "counts")
    if not METHODS[name].capabilities.nonnegative:
        words = ("normal", *words, "frame", "float32")
    return {
        word: make
        for word, make in GOOD_ROWS.items()
        if word.split()[-1] in words and not (dense and word.startswith("sparse"))
    }


@functools.cache
def _fitted(kind):
    name, model = MODELS[kind]
    rng = np.random.default_rng(0)
    [*_, make] = good_rows(name, model).values()
    known = METHODS[name].capabilities.keywords(GOOD_LABELS["two"](rng))
    return model.fit(make(rng), **known)


def fitted(kind):
    """A copy of a fitted estimator, since its methods may change it."""
    return copy.deepcopy(_fitted(kind))


@functools.cache
def _result(what):
    rng = np.random.default_rng(0)
    x, model = GOOD_ROWS["normal"](rng), nrprob.MixtureEM(2, n_init=1, random_state=0)
    quick = {"n_folds": 2, "n_splits": 1, "n_init": 1, "random_state": 0}
    draws = DRAWS["draws"](rng)
    return {
        "Exploration": lambda: nrprob.explore(x, n_clusterings=1, random_state=0),
        "Evidence": lambda: evidence.test(model, x, **quick),
        "NumberOfClusters": lambda: evidence.n_clusters(model, x, candidates=[1, 2], **quick),
        "ClusterPath": lambda: posterior.cluster_path(draws, np.arange(draws.shape[-1])[:, None]),
    }[what]()


def result_of(what):
    """A copy of a result with methods."""
    return copy.deepcopy(_result(what))


class Broken:
    """An object without any useful attribute and with a repr of many lines."""

    def __repr__(self):
        return "Broken\n" * 100


def _axes(n, **how):
    from matplotlib.figure import Figure

    figure = Figure()
    axes = np.array([figure.add_subplot(1, n, j + 1, **how) for j in range(n)], object)
    return axes[0] if n == 1 else axes


def _removed():
    axes = _axes(1)
    axes.remove()
    return axes


def _adata(wrong=""):
    anndata = _imported("anndata")
    if anndata is None:
        return Broken()
    rng = np.random.default_rng(0)
    made = anndata.AnnData(GOOD_ROWS["normal"](rng).astype(np.float32))
    made.obs["batch"] = ["a", "b"] * (N // 2)
    made.obsm["pca"] = np.zeros((N, 2))
    return made[:5] if wrong else made


def _imported(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_OBJECTS = {
    "nothing": lambda rng: None,
    "a word": lambda rng: "model",
    "a number": lambda rng: 3,
    "an array": lambda rng: np.zeros((N, 3)),
    "a list": lambda rng: [1, 2],
    "a class": lambda rng: nrprob.IB,
    "an object": lambda rng: Broken(),
    "a function": lambda rng: len,
    "a dictionary": lambda rng: {"labels_": [0, 1]},
    "KMeans": lambda rng: KMeans(2),
    "fitted KMeans": lambda rng: KMeans(2, n_init=1, random_state=0).fit(np.eye(N)),
}
FITS = {kind: (lambda rng, kind=kind: fitted(kind)) for kind in MODELS}
RESULTS = {
    what: (lambda rng, what=what: result_of(what))
    for what in ("Exploration", "Evidence", "NumberOfClusters")
}
UNFITTED = {f"unfitted {kind}": (lambda rng, own=own: copy.deepcopy(own[1])) for kind, own in
            MODELS.items()}  # fmt: skip
ESTIMATORS = FITS | UNFITTED | RESULTS | _OBJECTS
TESTED = {"mixture": lambda rng: nrprob.MixtureEM(2, n_init=1, random_state=0)}
AX = {
    "None": lambda rng: None,
    "axes": lambda rng: _axes(1),
    "a figure": lambda rng: _axes(1).figure,
    "two axes": lambda rng: _axes(2),
    "a list of axes": lambda rng: [_axes(1)],
    "three dimensions": lambda rng: _axes(1, projection="3d"),
    "polar": lambda rng: _axes(1, projection="polar"),
    "removed": lambda rng: _removed(),
    "a word": lambda rng: "ax",
    "a number": lambda rng: 1,
    "an object": lambda rng: Broken(),
    "a class": lambda rng: object,
    "nothing in it": lambda rng: [],
}
AXES = AX | {
    "three axes": lambda rng: _axes(3),
    "axes and None": lambda rng: [_axes(1), None],
    "the same twice": lambda rng: [_axes(1)] * 2,
    "figures": lambda rng: [_axes(1).figure] * 2,
    "numbers": lambda rng: [1, 2],
    "a dictionary": lambda rng: {"a": _axes(1)},
}
NAMES = {
    "as many": lambda rng: list("abcde"),
    "one per row": lambda rng: [f"row {i}" for i in range(N)],
    "the same": lambda rng: ["a"] * 5,
    "dollars": lambda rng: ["$x^2$", "$", "$$\\frac{", "_", "\n\n"],
    "long": lambda rng: ["x" * 5000] * 5,
    "too few": lambda rng: ["a"],
    "none": lambda rng: [],
    "a word": lambda rng: "abcde",
    "numbers": lambda rng: np.arange(5),
    "table": lambda rng: np.zeros((5, 2)),
    "a number": lambda rng: 5,
    "an object": lambda rng: Broken(),
    "set": lambda rng: set("abcde"),
    "dictionary": lambda rng: {"a": 1},
    "None in it": lambda rng: [None] * 5,
    "ragged": lambda rng: [[1], [1, 2], 3, 4, 5],
}
TEXTS = {
    "text": lambda rng: "name",
    "empty": lambda rng: "",
    "dollar": lambda rng: "$\\frac{",
    "long": lambda rng: "x" * 5000,
    "lines": lambda rng: "a\nb\n" * 50,
    "zero": lambda rng: "a\0b",
    "surrogate": lambda rng: "\udcff",
    "number": lambda rng: 3,
    "bytes": lambda rng: b"x",
    "list": lambda rng: ["a"],
    "array": lambda rng: np.zeros(30),
    "object": lambda rng: Broken(),
}
PATHS = TEXTS | {
    "not there": lambda rng: "folder/not/there.npy",
    "a folder": lambda rng: ".",
    "a file": lambda rng: __file__,
    "dev": lambda rng: "/dev/null/x",
}
_GOOD_MAPS = {
    "chains": lambda rng: {"x": rng.normal(size=(2, 5, 3))},
    "labels": lambda rng: {"labels": DRAWS["chains"](rng)},
}
MAPS = _GOOD_MAPS | {
    "empty": lambda rng: {},
    "draws": lambda rng: {"labels": pick(rng, DRAWS)[1]},
    "labelings": lambda rng: {"other": pick(rng, LABELS)[1]},
    "of numbers": lambda rng: {1: rng.normal(size=(2, 5))},
    "of None": lambda rng: {None: rng.normal(size=(2, 5))},
    "NaN": lambda rng: {"x": np.full((2, 5), np.nan)},
    "text": lambda rng: {"x": np.full((2, 5), "a")},
    "objects": lambda rng: {"x": Broken()},
    "names": lambda rng: {"x": ["a", "b", "c"]},
    "a name": lambda rng: {"x": "a"},
    "a number": lambda rng: 3,
    "list": lambda rng: ["x"],
    "None": lambda rng: None,
    "word": lambda rng: "x",
}
SIZES = {
    "two": lambda rng: (2, 2),
    "one": lambda rng: 4,
    "image": lambda rng: (1, 5),
    "three": lambda rng: [2, 3, 1],
    "none": lambda rng: (),
    "zero": lambda rng: (0, 2),
    "negative": lambda rng: (-1, -5),
    "fractions": lambda rng: (2.5, 2),
    "huge": lambda rng: (2**31, 2**31),
    "many": lambda rng: [10**20],
    "words": lambda rng: ("a", "b"),
    "a word": lambda rng: "ab",
    "None": lambda rng: (None, 2),
    "NaN": lambda rng: (np.nan, 1),
    "array": lambda rng: np.ones((2, 2)),
    "object": lambda rng: Broken(),
    "0": lambda rng: 0,
    "True": lambda rng: True,
}
_MODEL = {
    "title": "A run",
    "known": "species",
    "data": {"loader": "iris"},
    "methods": [{"name": "ib", "n_clusters": 2, "n_init": 1, "random_state": 0, "max_iter": 2}],
    "measures": {"NMI": {"metric": "normalized_mutual_information", "labeling": "species"}},
    "runs": 1,
}


def _spoilt(rng):
    """Content of a model file with one changed value."""
    model = copy.deepcopy(_MODEL)
    at, key = model, None
    while True:
        key = list(at)[rng.integers(len(at))] if isinstance(at, dict) else rng.integers(len(at))
        if not isinstance(at[key], dict | list) or rng.random() < 0.3:
            break
        at = at[key]
    if isinstance(at, dict) and rng.random() < 0.3:
        key = ["x", "n_clusters", "split", "grid", 3, None][rng.integers(6)]
    at[key] = number(rng)[1]
    return model


SPECS = {
    "spoilt": _spoilt,
    "spoilt twice": lambda rng: _spoilt(rng) | {"data": number(rng)[1]},
    "empty": lambda rng: {},
    "of numbers": lambda rng: {1: 2},
    "nothing": lambda rng: None,
    "bytes": lambda rng: b"[data]",
    "a list": lambda rng: [],
    "an array": lambda rng: np.zeros((30, 30)),
    "an object": lambda rng: Broken(),
} | PATHS


def pick(rng, pool):
    name = list(pool)[rng.integers(len(pool))]
    return name, pool[name](rng)


def number(rng):
    values = NUMBERS if rng.random() < 0.6 else ANYTHING
    value = values[rng.integers(len(values))]
    return (value if len(repr(value)) < 30 else "a huge integer"), value


def _some(pool, *words):
    return {word: pool[word] for word in words}


_AXES, _NAMED = (_some(AX, "None", "axes"), AX), (_some(TEXTS, "text"), TEXTS)
_LABELLED, _PATH = (GOOD_LABELS, LABELS), (_some(PATHS, "text"), PATHS)
_SHARES = (_some(PROBABILITIES, "table"), PROBABILITIES)
_DEVICES = {
    "all": lambda rng: jax.devices(),
    "none": lambda rng: [],
    "twice": lambda rng: jax.devices() * 2,
    "words": lambda rng: ["cpu"],
    "a word": lambda rng: "cpu",
    "a number": lambda rng: 2,
    "an array": lambda rng: np.zeros(3),
    "None in it": lambda rng: [None],
}
# Parameter of any function -> good values, and all values.
POOLS = {
    "X": (_some(GOOD_ROWS, "normal", "counts", "frame"), ROWS),
    "draws": (_some(DRAWS, "draws", "chains"), DRAWS),
    "labelings": (
        _some(DRAWS, "draws") | _some(TABLES, "two labelings"),
        DRAWS | LABELS | TABLES | MAPS | RESULTS | FITS,
    ),
    "others": (_some(DRAWS, "draws"), DRAWS),
    "joint": _SHARES,
    "joint_xyz": (_some(PROBABILITIES, "cube"), PROBABILITIES),
    "lengths": (_some(PROBABILITIES, "vector"), PROBABILITIES),
    "counts": (_some(PROBABILITIES, "counts", "integers"), PROBABILITIES),
    "known": (GOOD_LABELS, LABELS | TABLES | MAPS),
    **dict.fromkeys(("p", "q", "prior"), (_some(PROBABILITIES, "vector"), PROBABILITIES)),
    **dict.fromkeys(
        ("ps", "weights", "probabilities"), (_some(PROBABILITIES, "rows"), PROBABILITIES)
    ),
    **dict.fromkeys(("labels", "truth", "a", "b", "y", "subsets"), _LABELLED),
    **dict.fromkeys(("center", "reference"), _LABELLED),
    **dict.fromkeys(("model", "result"), (FITS | RESULTS, ESTIMATORS)),
    "estimator": (TESTED, ESTIMATORS),
    "evidence": (_some(RESULTS, "Evidence"), ESTIMATORS),
    "adata": (
        {"adata": lambda rng: _adata()},
        _OBJECTS | {"a part": lambda rng: _adata("part"), "adata": lambda rng: _adata()},
    ),
    "ax": _AXES,
    "axes": (_some(AXES, "None", "two axes", "three axes"), AXES),
    "feature_names": (_some(NAMES, "as many"), NAMES),
    "row_names": (_some(NAMES, "one per row"), NAMES),
    "clusters": (_some(NAMES, "numbers"), NAMES),
    "drop": (_some(NAMES, "none"), NAMES),
    "columns": (_some(NAMES, "as many"), NAMES),
    "image_shape": (_some(SIZES, "image"), SIZES),
    "dims": (_some(SIZES, "two"), SIZES | MAPS),
    "candidates": (_some(SIZES, "two"), SIZES),
    **dict.fromkeys(
        ("labels_name", "known_name", "title", "key_added", "layer", "obsm", "name"), _NAMED
    ),
    **dict.fromkeys(("path", "folder", "out", "scratch"), _PATH),
    "source": (_some(SPECS, "spoilt") | GOOD_ROWS, SPECS | ROWS),
    "spec": (_some(SPECS, "spoilt"), SPECS),
    "only": (_some(NAMES, "none"), NAMES),
    "devices": (_some(_DEVICES, "all"), _DEVICES),
    **dict.fromkeys(
        ("posterior", "sample_stats", "log_likelihood", "observed_data", "coords", "extra"),
        (_GOOD_MAPS, MAPS),
    ),
    "pairs": ({"three": lambda rng: 3}, {"some": lambda rng: rng.integers(0, N, (4, 2))} | LABELS),
    "rows": ({"some": lambda rng: [0, 1]}, LABELS),
    "sought": (_some(NAMES, "as many"), NAMES),
}
# The same for the parameters of single functions.
OWN = {
    "to_arviz.log_likelihood": (_GOOD_MAPS, MAPS),
    "make_crossed_counts.known": ({"classes": lambda rng: [0, 1]}, NAMES | LABELS),
    "make_crossed_counts.sought": ({"classes": lambda rng: [0, 1]}, NAMES | LABELS),
    "make_crossed_counts.labels": ({"two": GOOD_LABELS["two"]}, LABELS),
    "plot_centroids.others": (_some(MAPS, "labelings"), MAPS),
    "stored.labels": _PATH,
    "load.name": (
        {"iris": lambda rng: "iris", "wine": lambda rng: "wine"},
        {word: make for word, make in TEXTS.items()},
    ),
    "cache.path": _PATH,
    "two_part_length.counts": (_some(PROBABILITIES, "integers"), PROBABILITIES),
}
HUGE = {str(value): (lambda rng, value=value: value) for value in (2**31 - 1, 10**9, -(2**31))}
# Defaults that would make a call slow.
QUICK = {
    "n_folds": 2, "n_splits": 1, "n_init": 1, "n_resamples": 2, "n_permutations": 9,
    "candidates": [1, 2], "random_state": 0, "n_clusterings": 1,
}  # fmt: skip
# Valid values of required numbers.
SMALL = {"n_samples": 20, "n_clusters": 2, "n_draws": 5, "base": 2.0, "n": 5, "k": 3, "s": 2.0,
         "low": 0.1, "high": 2.0, "total": 3.0, "variance": 0.5, "mean_range": 3.0, "m": 4,
         "cluster": 0, "subset": 0, "num_samples": 2}  # fmt: skip


def _calls():
    """Names of all functions and methods; with the function, or None for a method."""
    for name, function in FUNCTIONS.items():
        yield name, function
    for kind in MODELS:
        for method in METHODS_OF_FITS:
            if hasattr(type(MODELS[kind][1]), method):
                yield f"{kind}.{method}", None
    for name in ("Evidence.plot", "ClusterPath.plot"):
        yield name, None


CALLS = dict(_calls())


def prepared_call(rng):
    """Choose a function or method: words that describe the call, the function, its arguments.

    One argument, or sometimes every argument, is chosen from all values instead of the valid ones.
    """
    groups = {}
    for name in CALLS:
        module = name.rpartition(".")[0]
        groups.setdefault("methods" if CALLS[name] is None else module, []).append(name)
    shares = np.sqrt([len(names) for names in groups.values()])
    group = rng.choice(list(groups), p=shares / shares.sum())
    name = groups[group][rng.integers(len(groups[group]))]
    words, function, own = [name], CALLS[name], name.rpartition(".")[2]
    if function is None:
        of, method = name.split(".")
        fresh = of in MODELS and rng.random() < 0.2
        held = (
            copy.deepcopy(MODELS[of][1]) if fresh else fitted(of) if of in MODELS else result_of(of)
        )
        function = getattr(held, method)
        words += ["unfitted"] * fresh
    parameters = [
        p for p in inspect.signature(function).parameters.values() if p.kind != p.VAR_KEYWORD
    ]
    wrong = None if not parameters else parameters[rng.integers(len(parameters))].name
    all_wrong, arguments = rng.random() < 0.15, {}
    for parameter in parameters:
        at, bad = parameter.name, all_wrong or parameter.name == wrong
        if parameter.default is not parameter.empty and not bad and rng.random() < 0.8:
            if at in QUICK:
                arguments[at] = QUICK[at]
            continue
        pools = OWN.get(f"{own}.{at}", POOLS.get(at))
        if pools is not None and not (at == "weights" and own.startswith("make")):
            word, value = pick(rng, pools[1] if bad else pools[0])
        elif bad:
            word, value = number(rng) if rng.random() < 0.8 else pick(rng, HUGE)
        elif at in QUICK or at in SMALL:
            word = value = QUICK.get(at, SMALL.get(at))
        elif parameter.default is not parameter.empty:
            continue
        else:
            word = value = [1, 2, 5, 0.5][rng.integers(4)]
        words.append(f"{at}={word!r}")
        arguments[at] = value
    if own == "load" and "datasets" in name and rng.random() < 0.3:
        word, arguments["min_df"] = number(rng)
        words.append(f"min_df={word!r}")
    if name == "batch.run":
        arguments.setdefault("out", "results")
    return words, function, arguments


def call(function, arguments):
    """Call a function, and enter and leave the context that it returns, if any."""
    parameters = inspect.signature(function).parameters.values()
    first = [p.name for p in parameters if p.kind == p.POSITIONAL_ONLY and p.name in arguments]
    rest = {name: value for name, value in arguments.items() if name not in first}
    result = function(*(arguments[name] for name in first), **rest)
    if hasattr(result, "__enter__"):
        with result:
            return None
    return result
