"""Messages of all estimators about input that other libraries accept or misreport."""

import warnings

import jax
import numpy as np
import pandas as pd
import pytest
from every_estimator import QUICK, every_kind
from scipy import sparse

import nrprob
from nrprob import (
    CCIB,
    CMBC,
    CondEns,
    MDLMixture,
    MDLMultiView,
    MixtureEM,
    ResidualSpectral,
    codelength,
    information,
    metrics,
    posterior,
)
from nrprob.batch.registry import METHODS
from nrprob.known import Memberships

rng = np.random.default_rng(0)
X = rng.integers(0, 2, (60, 8)).astype(float)
Z = np.arange(60) % 3
Y = np.where(np.arange(60) < 20, Z % 2, -1)
FRAME = pd.DataFrame(X, columns=list("abcdefgh"), index=[f"row {i}" for i in range(60)])


METHOD = {kind: METHODS[name] for kind, (name, _) in every_kind().items()}
ALL = {kind: model for kind, (_, model) in every_kind().items()}
KNOWN = {k for k, m in METHOD.items() if "known" in m.capabilities.keywords(Z)}


def known_of(name):
    return METHOD[name].capabilities.keywords(Z)


def test_there_is_one_of_every_estimator():
    public = {n for n in nrprob.__all__ if hasattr(getattr(nrprob, n), "fit")}
    assert public == {type(model).__name__ for model in ALL.values()}


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("name", ALL)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_settings_of_the_caller_are_no_matter(name):
    from sklearn.base import clone

    model, known = clone(ALL[name]), known_of(name)
    before = dict(jax.config.values)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        inside = jax.config.jax_numpy_dtype_promotion, jax.config.jax_numpy_rank_promotion
        model.fit(X, **known)
        model.predict(X, **known)
        model.predict_proba(X, **known)
        if isinstance(model, MDLMixture):
            model.extend(2)
            model.to_arviz(log_likelihood=False)
        after = jax.config.jax_numpy_dtype_promotion, jax.config.jax_numpy_rank_promotion
    assert inside == after == ("strict", "raise")
    assert dict(jax.config.values) == before
    assert model.labels_.shape == (60,)


def test_a_sweep_does_not_heed_them_either():
    from nrprob import batch

    content = {
        "data": {
            "generator": "make_binary_partitions",
            "parameters": {"n_samples": 60, "dims": [4, 4]},
        },
        "known": "partition_0",
        "methods": [{"name": "ccib", "n_init": 2}],
    }
    # Threads use the settings of the process, which a context does not change.
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    try:
        result = batch.run(content)
    finally:
        jax.config.update("jax_numpy_dtype_promotion", "standard")
        jax.config.update("jax_numpy_rank_promotion", "allow")
    assert np.isfinite(result["objective"]).all()


# Order of rows


@pytest.mark.parametrize("name", ALL)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_pandas_rows_of_another_order_are_refused(name):
    model = nrprob.CCIB() if name == "ccib" else ALL[name]
    back = FRAME.index[::-1]
    what = r"must have its rows in the order of X; .* pass {}.loc\[X.index\]"
    if name in KNOWN:
        for known in (pd.Series(Z, back), pd.DataFrame({"a": Z, "b": Z % 2}, back)):
            with pytest.raises(ValueError, match=what.format("known")):
                model.fit(FRAME, known=known)
        soft = Memberships(pd.DataFrame(np.eye(3)[Z], back))
        with pytest.raises(ValueError, match=what.format("known")):
            model.fit(FRAME, known=soft)
    if name != "mdl_multiview":  # it ignores y
        with pytest.raises(ValueError, match=what.format("y")):
            model.fit(FRAME, y=pd.Series(Y, back))


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_pandas_rows_of_one_order_or_of_no_common_one_go_by_position():
    told = pd.Series(Z, FRAME.index)
    model = CCIB(2, **QUICK).fit(FRAME, known=told)
    for known in (told.to_numpy(), told.reset_index(drop=True), told.tolist()):
        assert (CCIB(2, **QUICK).fit(FRAME, known=known).labels_ == model.labels_).all()
    back = told[::-1]
    for new in (model.predict, model.predict_proba, CondEns(2, **QUICK).fit(X, known=Z).predict):
        with pytest.raises(ValueError, match="in the order of X"):
            new(FRAME, known=back)
    for name in ("conditional-mixture", "residual-spectral"):
        fitted = ALL[name].fit(FRAME, known=told)
        for new in (fitted.predict, fitted.predict_proba):
            with pytest.raises(ValueError, match="in the order of X"):
                new(FRAME, known=back)
    with pytest.raises(ValueError, match="in the order of X"):
        nrprob.recommend(FRAME, known=back)
    with pytest.raises(ValueError, match="in the order of X"):
        nrprob.explore(FRAME, CCIB(2), n_clusterings=1, known=back)
    with pytest.raises(ValueError, match=r"X\[1\] must have its rows in the order of X"):
        MDLMultiView(2).fit([FRAME, FRAME[::-1]])


# Rows


def out_of_range(kind):
    rows = sparse.csr_array(X).asformat(kind)
    if kind == "coo":
        rows.coords[1][3] = 10**6
    else:
        rows.indices[3] = 10**6
    return rows


def with_indptr(ends):
    rows = sparse.csr_array(X)
    rows.indptr = np.asarray(ends, rows.indptr.dtype)
    return rows


BAD_ROWS = {
    "masked": (np.ma.masked_array(X, X > 0), "X must not have masked entries"),
    "text": (FRAME.assign(a="x"), "X must hold numbers; got text"),
    "dates": (FRAME.assign(a=pd.Timestamp("2020-01-01")), r"got dates or times \(column 'a'\)"),
    "times": (FRAME.assign(b=pd.Timedelta(1, "s")), r"got dates or times \(column 'b'\)"),
    "date array": (X.astype("M8[D]"), r"got dates or times \(dtype"),
    "one name twice": (FRAME[["a", "b", "a"]], "different names; got 'a' more than once"),
    "no columns": (FRAME[[]], "0 feature"),
    "no rows": (FRAME[:0], "0 sample"),
    "huge": (np.array([[10**400, 1.0]] * 60, object), "within the range of floats"),
}
BAD_SPARSE = {
    "csr": (out_of_range("csr"), "indices within its shape; got 1000000"),
    "csc": (out_of_range("csc"), "indices within its shape; got 1000000"),
    "coo": (out_of_range("coo"), "indices within its shape; got 1000000"),
    "bsr": (out_of_range("bsr"), "indices within its shape; got 1000000"),
    "few ends": (with_indptr([0, 1]), "an indptr that starts at 0"),
    "ends beyond": (with_indptr([0] * 60 + [10**6]), "an indptr that starts at 0"),
    "wide": (sparse.coo_array(([1.0], ([0], [2**31])), shape=(60, 2**31 + 1)), "fewer than 2"),
}


@pytest.mark.parametrize("bad", BAD_ROWS)
def test_rows_that_are_no_numbers_are_refused(bad):
    rows, what = BAD_ROWS[bad]
    for name in ALL:
        if bad == "text" and ALL[name].__sklearn_tags__().input_tags.categorical:
            continue
        with pytest.raises(ValueError, match=what):
            ALL[name].fit(rows, **known_of(name))
    with pytest.raises(ValueError, match=what):
        MDLMultiView(2).fit([X, rows])
    # For a frame, `recommend` says what to do before a fit, as `prepare` does.
    said = {
        "text": "'a' is left out",  # a single value, which is not a feature
        "dates": "before a fit; .* got dates in 'a'",
        "times": "before a fit; .* got dates in 'b'",
    }
    if bad in said:
        with pytest.warns(UserWarning, match=said[bad]):
            nrprob.recommend(rows)
        return
    with pytest.raises(ValueError, match=what):
        nrprob.recommend(rows)


@pytest.mark.parametrize("bad", BAD_SPARSE)
def test_sparse_rows_that_are_none_are_refused(bad):
    rows, what = BAD_SPARSE[bad]
    for model in (CCIB(2), CMBC(2), CondEns(2), ResidualSpectral(2), MixtureEM(2)):
        with pytest.raises(ValueError, match=what):
            model.fit(rows)
    with pytest.raises(ValueError, match=what):
        nrprob.recommend(rows)


# Labels


WORDS = np.where(Y < 0, "", np.where(Y == 0, "even", "odd"))
BAD_WANTED = {
    "None": (np.where(Y < 0, None, Y), "y must not contain None, NaN, infinity or empty text"),
    "empty text": (WORDS, "y must not contain None, NaN, infinity or empty text"),
    "white space": (np.where(Y < 0, " \t", WORDS), "mark unknown labels by -1"),
    "empty objects": (WORDS.astype(object), "mark unknown labels by -1"),
    "empty bytes": (WORDS.astype(bytes), "mark unknown labels by -1"),
    "empty categories": (pd.Categorical(WORDS), "mark unknown labels by -1"),
    "empty strings of pandas": (pd.Series(WORDS, dtype="string"), "mark unknown labels by -1"),
    "empty among numbers": (np.where(Y < 0, "", Y.astype(object)), "mark unknown labels by -1"),
    "NaN": (np.where(Y < 0, np.nan, Y), "mark unknown labels by -1"),
    "NA": (pd.Series(Y, dtype="Int64").mask(Y < 0), "mark unknown labels by -1"),
    "masked": (np.ma.masked_equal(Y, -1), "y must not have masked entries"),
    "mixed": (["a", 1] + [-1] * 58, "y must hold labels that can be sorted; got int, str"),
    "objects": ([{}, {}] + [-1] * 58, "y must hold labels that can be sorted; got dict"),
    "ragged": ([[1], [1, 2]] * 30, "y must be an array; got a list of rows of different lengths"),
    "short": (Y[:5], "y must hold one label per row of X"),
}


@pytest.mark.parametrize("bad", BAD_WANTED)
def test_wanted_labels_that_are_none_are_refused(bad):
    y, what = BAD_WANTED[bad]
    for name in ALL:
        with pytest.raises(ValueError, match=what):
            ALL[name].fit(X, y, **known_of(name))
    with pytest.raises(ValueError, match=what):
        nrprob.recommend(X, y=y)


def test_text_is_wanted_beside_minus_one():
    names = ["even" if v == 0 else "odd" if v == 1 else -1 for v in Y.tolist()]
    # NumPy converts -1 to text as well.
    for y in (names, np.array(names), pd.Categorical(np.array(names))):
        model = MixtureEM(2, **QUICK).fit(X, y)
        assert model.classes_.tolist() == ["even", "odd"]
        assert (model.labels_[:20] == Y[:20]).all()


BAD_KNOWN = {
    "masked": (np.ma.masked_equal(Z, 1), "known must not have masked entries"),
    "unhashable": ([{}, {1: 2}] * 30, "known labels must be numbers, text or other hashable"),
    "ragged": ([[1], [1, 2]] * 30, "known must be an array"),
    "a frame of nothing": (FRAME[[]], "known must hold a labeling"),
    "NaN": (np.where(Z > 1, None, Z), "known labels must be non-missing"),
}


@pytest.mark.parametrize("bad", BAD_KNOWN)
def test_known_labels_that_are_none_are_refused(bad):
    known, what = BAD_KNOWN[bad]
    for model in map(ALL.get, KNOWN):
        with pytest.raises(ValueError, match=what):
            model.fit(X, known=known)
    with pytest.raises(ValueError, match=what):
        nrprob.recommend(X, known=known)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("form", [np.asarray, pd.DataFrame])
def test_objects_that_are_numbers_are_numbers(form):
    numbers = rng.normal(size=(60, 2))
    wrapped = form(numbers.astype(object))
    for name in ("ccib of models", "residual-spectral"):
        told = ALL[name].fit(X, known=numbers).labels_
        assert (ALL[name].fit(X, known=wrapped).labels_ == told).all()
    with pytest.raises(ValueError, match="continuous known structure is not supported"):
        CMBC(2).fit(X, known=wrapped)
    with pytest.raises(ValueError, match="NaN or infinity"):
        CCIB(2).fit(X, known=form(np.where(numbers > 2, np.nan, numbers).astype(object)))


@pytest.mark.parametrize("z", [np.ma.masked_less(np.eye(3)[Z], 0.5), np.eye(3)[Z].astype(str)])
def test_memberships_that_are_none_are_refused(z):
    with pytest.raises(ValueError, match="known memberships must"):
        Memberships(z)


@pytest.mark.parametrize("pairs", [[[0], [1, 2]], np.ma.masked_equal([[0, 1], [2, 3]], 3)])
def test_pairs_that_are_none_are_refused(pairs):
    for name in (
        "cop_kmeans",
        "mdl_constrained",
        "constrained_mixture",
        "semi_supervised_spectral",
    ):
        with pytest.raises(ValueError, match="must_link must .*(an array|masked entries)"):
            ALL[name].fit(X, must_link=pairs)
        with pytest.raises(ValueError, match="cannot_link must .*(an array|masked entries)"):
            ALL[name].fit(X, cannot_link=pairs)


@pytest.mark.parametrize("seed", [-1, 2**32, 2**70])
def test_seeds_that_are_none_are_refused(seed):
    what = f"random_state must be from 0 to .*; got {seed}"
    for name in ALL:
        if name in ("ib that merges", "ib that splits"):  # which have no random numbers
            continue
        with pytest.raises(ValueError, match=what), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            type(ALL[name])(**ALL[name].get_params() | {"random_state": seed}).fit(
                X, **known_of(name)
            )
    with pytest.raises(ValueError, match=what):
        nrprob.explore(X, n_clusterings=1, random_state=seed)
    with pytest.raises(ValueError, match=what):
        nrprob.datasets.make_binary_partitions(10, (2,), random_state=seed)


# Functions

HIDDEN = np.ma.masked_equal(Z, 1)
DRAWN = np.stack([Z, Z % 2])


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: metrics.rand_index(HIDDEN, Z), "labels must not have masked entries"),
        (lambda: metrics.predictive_rate(np.ma.stack([HIDDEN]).T, Z), "labelings must not have"),
        (lambda: metrics.dunn_index(BAD_ROWS["dates"][0], Z), "got dates or times"),
        (lambda: metrics.independence_test(Z, Z, n_permutations=[1]), "must be a number; got"),
        (lambda: metrics.independence_test(Z, Z, n_permutations=1e300), "must be a whole number"),
        (lambda: information.entropy(np.ma.masked_less([0.3, 0.7], 0.5)), "p must not have masked"),
        (
            lambda: information.entropy([[0.5], [0.2, 0.3]]),
            "p must be an array; got a list",
        ),
        (lambda: information.entropy([0.5, 0.5], base="x"), "base must be a number; got 'x'"),
        (lambda: information.entropy([0.5, 0.5], base=10**400), "base must be a finite number"),
        (lambda: information.generalized_entropy([0.5, 0.5], None), "s must be a number; got None"),
        (lambda: codelength.exponential_complexity(5, "a", 2.0), "range must hold real numbers"),
        (lambda: codelength.exponential_length(5, {}, 0.5, 2.0), "total must hold real numbers"),
        (lambda: codelength.multinomial_table([1, 2], 5), "k must be a number"),
        (lambda: codelength.kmeans_length(X, HIDDEN), "labels must not have masked entries"),
        (lambda: codelength.kmeans_length(X, Z, low="x"), "low must be a number; got 'x'"),
        (lambda: codelength.kmeans_length(BAD_ROWS["text"][0], Z), "X must hold numbers; got text"),
        (lambda: posterior.coclustering([[0], [0, 1]]), "draws of labels must be an array"),
        (lambda: posterior.coclustering(np.ma.stack([HIDDEN])), "draws of labels must not have"),
        (lambda: posterior.coclustering(DRAWN, ["a", "b"]), "weights of draws must be numbers"),
        (lambda: posterior.credible_ball(DRAWN, level=1j), "level must be a number"),
        (lambda: posterior.expected_loss(Z, DRAWN, split_cost="x"), "split_cost must be a number"),
        (lambda: posterior.to_arviz({"z": DRAWN}, coords=-1), "coords must be a mapping"),
        (lambda: posterior.to_arviz({"z": [[0], [0, 1]]}), "'z'\\] must be an array"),
        (lambda: posterior.diagnose(DRAWN[None], extra=3), "extra must be a mapping"),
        (lambda: posterior.point_estimate(DRAWN, n_init=10**20), "at most 1000000"),
    ],
)
def test_functions_refuse_what_is_none_of_theirs(call, what):
    with pytest.raises((ValueError, TypeError), match=what):
        call()
