"""The contract of all estimators, and its waivers."""

import copy
import functools
import inspect
import pickle
import re
import subprocess
import sys
import warnings

import jax
import numpy as np
import pytest
from every_estimator import ENTRIES, few_rows
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.utils import get_tags

import nrprob
from nrprob.batch.registry import METHODS
from nrprob.estimator.capabilities import KINDS
from nrprob.estimator.parameters import parameter_checks
from nrprob.known import Memberships

# (method, test) -> reason why the test does not apply.
WAIVED = {
    ("mdl_mixture", "test_units_of_float32_do_not_matter"): "computes in float64",
    (
        "mdl_mixture",
        "test_clusters_without_rows_have_the_mean_for_their_centre_and_get_none",
    ): "has no cluster without rows",
    ("mdl_mixture", "test_restarts_are_a_dataset"): "has chains, and no restarts",
    ("mdl_mixture", "test_the_best_restart_is_reported"): "has chains, and no restarts",
}


@pytest.fixture(params=METHODS)
def name(request):
    test = request.node.originalname
    if (request.param, test) in WAIVED:
        pytest.skip(WAIVED[request.param, test])
    return request.param


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@functools.cache
def _pickled_fit(name):
    X, known = few_rows(name)
    return pickle.dumps(clone(ENTRIES[name].ours).fit(X, **known))


def fitted(name):
    """A new copy of the fitted estimator, its rows and their known structure."""
    return pickle.loads(_pickled_fit(name)), *few_rows(name)


def test_every_estimator_is_registered_and_tried():
    for name, method in METHODS.items():
        assert method.capabilities.sparse == get_tags(ENTRIES[name].ours).input_tags.sparse, name
    public = [getattr(nrprob, name) for name in nrprob.__all__]
    classes = {c for c in public if isinstance(c, type) and hasattr(c, "get_params")}
    assert classes == {type(entry.ours) for entry in ENTRIES.values()}
    assert {n: method.load() for n, method in METHODS.items()} == {
        n: type(entry.ours) for n, entry in ENTRIES.items()
    }
    assert all(type(entry.ours) is type(entry.theirs) for entry in ENTRIES.values())
    tests = {test for test in globals() if test.startswith("test_")}
    assert {test for _, test in WAIVED} <= tests and {n for n, _ in WAIVED} <= set(METHODS)


def test_what_a_fit_sets(name, quiet):
    X, known = few_rows(name)
    model = clone(ENTRIES[name].ours).fit(X, **known)
    k = model.membership_.shape[1]
    assert model.labels_.shape == (60,) and model.labels_.dtype == np.int64
    assert model.membership_.shape == (60, k) and np.isfinite(model.objective_)
    np.testing.assert_allclose(model.membership_.sum(1), 1)
    assert np.size(model.n_clusters_) == 1 and isinstance(model.converged_, bool)
    assert model.predict(X, **known).shape == (60,)
    np.testing.assert_allclose(model.predict_proba(X, **known).sum(1), 1)


def test_restarts_are_a_dataset(name, quiet):
    restarts = fitted(name)[0].restarts_
    assert set(restarts.sizes) >= {"restart", "sample"} and restarts.sizes["sample"] == 60
    assert {"labels", "objective", "converged"} <= set(restarts.data_vars)


def test_the_best_restart_is_reported(name, quiet):
    model, *_ = fitted(name)
    best = int(model.restarts_.objective.argmin())
    assert model.objective_ == pytest.approx(float(model.restarts_.objective[best]))
    assert (model.restarts_.labels[best].values.reshape(60) == model.labels_).all()


def test_a_fit_again_is_the_same(name, quiet):
    model, X, known = fitted(name)
    labels, objective = model.labels_.copy(), model.objective_
    predicted = model.predict(X, **known)
    assert (model.fit(X, **known).labels_ == labels).all() and model.objective_ == objective
    assert (model.predict(X, **known) == predicted).all()


def test_whole_numbers_of_numpy_will_do(name, quiet):
    X, known = few_rows(name)
    whole = {n: np.int64(v) for n, v in ENTRIES[name].ours.get_params().items() if type(v) is int}
    model = clone(ENTRIES[name].ours).set_params(**whole).fit(X, **known)
    assert (model.labels_ == fitted(name)[0].labels_).all()


def test_names_of_known_groups_do_not_matter(name, quiet):
    if not METHODS[name].capabilities.known:
        pytest.skip("takes no known structure")
    model, X, known = fitted(name)
    renamed = {key: np.array(["b", "a"])[codes] for key, codes in known.items()}
    other = clone(model).fit(X, **renamed)
    assert (other.labels_ == model.labels_).all()
    assert other.objective_ == pytest.approx(model.objective_, rel=1e-6)
    assert (other.predict(X, **renamed) == other.labels_).any()


@pytest.mark.slow
@pytest.mark.contract
def test_kinds_of_known_structure_are_declared(name, quiet):
    capabilities = METHODS[name].capabilities
    X, _ = few_rows(name)
    rng = np.random.default_rng(0)
    kinds = {
        "labels": np.arange(60) % 2,
        "memberships": Memberships(rng.dirichlet(np.ones(2), 60)),
        "continuous": rng.normal(size=(60, 2)),
    }
    assert set(capabilities.known) <= set(kinds) == set(KINDS)
    for kind, known in kinds.items() if capabilities.known else ():
        model, keywords = clone(ENTRIES[name].ours), capabilities.keywords(known)
        if kind in capabilities.known:
            model.fit(X, **keywords)
        else:
            with pytest.raises(ValueError, match=capabilities.known_as):
                model.fit(X, **keywords)


def test_bad_input_is_refused_in_words(name):
    X, known = few_rows(name)
    model = clone(ENTRIES[name].ours)
    takes_nan = model.__sklearn_tags__().input_tags.allow_nan
    for wrong, what in (
        *([] if takes_nan else [(np.where(X > 1, np.nan, X), "NaN")]),
        (np.full_like(X, np.inf), "infinity"),
        (X[:0], "0 sample"),
        (X[0], "2D array"),
    ):
        with pytest.raises(ValueError, match=what):
            model.fit(wrong, **{key: value[: len(wrong)] for key, value in known.items()})
    for ask in ("predict", "predict_proba"):
        with pytest.raises(NotFittedError):
            getattr(model, ask)(X, **known)


def test_the_caller_keeps_what_is_his(name, quiet):
    X, known = few_rows(name)
    X.flags.writeable = False
    given = copy.deepcopy(known)
    config, state = dict(jax.config.values), pickle.dumps(np.random.get_state())  # noqa: NPY002
    model = clone(ENTRIES[name].ours)
    model.fit(X, **known).predict(X, **known)
    assert dict(jax.config.values) == config
    assert pickle.dumps(np.random.get_state()) == state  # noqa: NPY002
    assert all((known[key] == given[key]).all() for key in known)


LOADED = """
import pickle, sys, numpy as np
for model, X, known, labels in pickle.load(open(sys.argv[1], "rb")):
    assert (model.predict(X, **known) == labels).all(), model
"""


def test_pickles_are_read_in_another_process(tmp_path, quiet):
    some = []
    for name in ("ib", "residual-spectral", "conditional-mixture", "mdl_constrained", "condens"):
        model, X, known = fitted(name)
        some.append((model, X, known, model.predict(X, **known)))
    (tmp_path / "models").write_bytes(pickle.dumps(some))
    command = [sys.executable, "-c", LOADED, str(tmp_path / "models")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def listed(doc, section):
    """Names in a section of a docstring."""
    doc = inspect.cleandoc(doc)
    body = re.search(rf"^{section}\n-+\n(.*?)(?=^\S[^\n]*\n-+$|\Z)", doc, re.M | re.S).group(1)
    heads = [line for line in re.sub(r"\\\n", "", body).splitlines() if re.match(r"\S", line)]
    return {n.strip() for head in heads for n in head.partition(" : ")[0].split(",")}


def test_docstrings_are_complete(name, quiet):
    model, *_ = fitted(name)
    doc = type(model).__doc__
    parameters = set(inspect.signature(type(model)).parameters)
    assert listed(doc, "Parameters") == parameters
    public = {n for n in vars(model) if n.endswith("_") and not n.startswith("_")}
    missing = public - listed(doc, "Attributes")
    assert not missing, f"attributes without documentation: {sorted(missing)}"


def test_signatures_show_plain_types(name):
    for parameter in inspect.signature(METHODS[name].load()).parameters.values():
        assert not isinstance(parameter.annotation, str), parameter
        assert "Annotated" not in str(parameter.annotation), parameter


ARGUMENTS = {  # values of a method, for rows of clusters 0, 1, 2, 0, ...
    "y": np.where(np.arange(60) < 9, np.arange(60) % 3, -1),
    "must_link": [[0, 3]],
    "cannot_link": [[0, 1]],
    "known": few_rows("ccib")[1]["known"],
    "subsets": few_rows("ccib")[1]["known"],
    "sample_weight": 1.0 + np.arange(60) % 2,
    "unseen": "refuse",
}


METHODS_OF_ROWS = (
    *("predict", "predict_proba", "score", "score_samples", "transform"),
    *("fit", "fit_predict", "fit_transform"),
)


@pytest.mark.slow
@pytest.mark.contract
def test_what_a_method_documents_it_takes(name, quiet):
    model, X, known = fitted(name)
    for ask in METHODS_OF_ROWS:
        if not hasattr(model, ask):
            continue
        method = getattr(model, ask)
        taken = {
            f"**{n}" if p.kind is p.VAR_KEYWORD else n
            for n, p in inspect.signature(method).parameters.items()
        }
        assert listed(method.__doc__, "Parameters") == taken, ask
        if "**keywords" in taken:
            continue  # arguments of `fit`, which it calls
        # All arguments at once are accepted, and no others.
        capabilities = METHODS[name].capabilities
        assert (capabilities.known_as in taken) == bool(capabilities.known), ask
        given = {argument: ARGUMENTS[argument] for argument in taken - {"X"}}
        method(X, **given)
        for argument in ARGUMENTS.keys() - taken:
            with pytest.raises(TypeError, match="unexpected keyword argument"):
                method(X, **{argument: ARGUMENTS[argument]})


def test_fit_predict_heeds_partial_labels(quiet):
    X, _ = few_rows("mixture")
    y = np.where(np.arange(60) < 9, 2 - np.arange(60) % 3, -1)
    model = clone(ENTRIES["mixture"].ours)
    assert (model.fit_predict(X, y) == model.fit(X, y).labels_).all()
    assert (model.labels_ == 2 - np.arange(60) % 3).all()


# Extreme, and with a meaning: thresholds, distances in the units of X, and documented infinities.
_FINE = {
    "binarize": (10**20, -1),
    "beta": (np.inf,),
    "balance": (np.inf,),
    **dict.fromkeys(("delta", "epsilon", "max_diameter", "bandwidth"), (10**20,)),
}
_WRAPPED = {  # values that are lists of others
    "whitening_exponents": [lambda v: (v,)],
    "scale_range": [lambda v: (v, 10.0), lambda v: (1e-3, v)],
    "start": [lambda v: (v,)],
    "eta": [lambda v: (v,)],
    "members": [lambda v: [("within", v, 10)], lambda v: [("within", 1.0, v)]],
}


def test_every_number_has_two_bounds(name, caplog):
    X, known = few_rows(name)
    model = clone(ENTRIES[name].ours)
    if name == "mdl_multiview":
        model.set_params(n_clusters="auto")  # so that max_clusters matters
    switches = [n for n, v in model.get_params().items() if isinstance(v, bool)]
    for parameter in set(model.get_params(deep=False)) - {*switches, "checkpoint"}:
        for value in (np.nan, np.inf, 1e300, 10**20, -1, {}):
            if value != {} and value in _FINE.get(parameter, ()):
                continue
            for wrap in [lambda v: v, *_WRAPPED.get(parameter, [])]:
                with pytest.raises((ValueError, TypeError)) as caught, jax.log_compiles():
                    clone(model).set_params(**{parameter: wrap(value)}).fit(X, **known)
                message = str(caught.value)
                if parameter != "random_state":  # is scikit-learn's
                    assert message.count("; ") == 2 and "\n" not in message, (parameter, message)
    assert "Compiling" not in caplog.text


# Seeds go up to 2**32; sizes of clusters in rows cost no memory.
_LARGE_COUNTS = {"random_state", "min_size", "max_size"}


def test_every_count_has_an_upper_bound(name):
    X, known = few_rows(name)
    model = clone(ENTRIES[name].ours)
    annotations, values = parameter_checks(type(model)), model.get_params(deep=False)
    if name == "mdl_multiview":
        model.set_params(n_clusters="auto")  # so that max_clusters matters
    for parameter in set(values) - _LARGE_COUNTS:
        declared = any(getattr(one, "integer", False) for one in annotations[parameter])
        if declared or type(values[parameter]) is int:
            with pytest.raises(ValueError, match="must be at least .* and at most .*; got ") as e:
                clone(model).set_params(**{parameter: 10**9}).fit(X, **known)
            assert str(e.value).count("; ") == 2, (parameter, str(e.value))


def test_whitening_exponents_are_few():
    X, known = few_rows("conditional-mixture")
    model = clone(ENTRIES["conditional-mixture"].ours).set_params(whitening_exponents=(0.5,) * 101)
    with pytest.raises(
        ValueError, match="whitening_exponents must have at most 100 entries; got 101; pass fewer"
    ):
        model.fit(X, **known)


def test_units_of_float32_do_not_matter(name, quiet):
    model = ENTRIES[name].ours
    plain, X, known = fitted(name)
    far = np.where(np.arange(60)[:, None] == 7, 1e30, X)
    with pytest.raises(ValueError, match="pass new rows in the units of the fit"):
        plain.predict(far, **known)
    for scale in (1e-40, 3e37):
        X, known = few_rows(name, scale)
        assert np.isfinite(X).all() and X.any(1).all()
        other = clone(model).fit(X, **known)
        assert adjusted_rand_score(other.labels_, plain.labels_) == 1
        assert np.isfinite(other.membership_).all() and np.isfinite(other.objective_)
        assert (other.predict(X, **known) == other.labels_).mean() > 0.9
        if name in ("ib", "ibsi", "ccib"):  # whose variance is the variance of the features
            assert other.objective_ == pytest.approx(plain.objective_, rel=1e-3)
        if name == "mixture":  # a density has a unit
            shift = X.size * np.log(scale)
            assert other.objective_ == pytest.approx(plain.objective_ + shift, rel=1e-4)
            np.testing.assert_allclose(other.means_, plain.means_ * scale, rtol=2e-3)


def test_numbers_without_squares_are_refused(name):
    if not METHODS[name].capabilities.squares:
        pytest.skip("does not square features")
    X, known = few_rows(name)
    for scale, what in ((1e200, "X must lie between"), (1e-200, "must vary by at least 1e-140")):
        with pytest.raises(ValueError, match=what):
            clone(ENTRIES[name].ours).fit(X.astype(float) * scale, **known)


def test_clusters_without_rows_have_the_mean_for_their_centre_and_get_none(name, quiet):
    X, known = few_rows(name)
    if name in ("conditional-mixture", "orthogonalization"):
        known = {}  # which would be the only structure
    X = X[np.arange(60) % 2]  # two distinct rows for three clusters
    fitted = clone(ENTRIES[name].ours).fit(X, **known)
    for attribute in ("cluster_centers_", "means_"):
        centres = getattr(fitted, attribute, None)
        if centres is not None:
            assert np.isfinite(centres).all()
    empty = np.setdiff1d(range(3), fitted.labels_)
    if name in ("cop_kmeans", "mdl_constrained", "mdl_multiview", "partition_kmeans"):
        assert empty.size
        np.testing.assert_allclose(
            fitted.cluster_centers_[empty], [X.mean(0)] * empty.size, atol=1e-5
        )
    soft = ("mixture", "cmbc", "conditional-mixture", "cross_partition", "constrained_mixture")
    if name not in (*soft, "semi_supervised_fcm"):
        new = np.concatenate([X, np.tile(X.mean(0), (60, 1))])[30:90]
        assert set(fitted.predict(new, **known)) <= set(fitted.labels_)


def test_a_fit_that_fails_leaves_nothing(name, quiet):
    model = clone(ENTRIES[name].ours)
    parameters = set(vars(model))
    X, known = few_rows(name)
    model.fit(X, **known)
    model.note = "kept"
    with pytest.raises(ValueError, match="infinity"):
        model.fit(np.where(X > 1, np.inf, X), **known)
    assert set(vars(model)) == {*parameters, "note", "_set_by_fit"} and not model._set_by_fit
    with pytest.raises(NotFittedError):
        model.predict(X, **known)
