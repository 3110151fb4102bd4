"""Comparison of features with their logarithms, and the preparation that takes logarithms."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from nrprob import ConditionalMixture, prepare
from nrprob.data.logarithms import compare_logarithms

N = 400


def clusters(shares, distance, rng, n=N):
    labels = rng.choice(len(shares), n, p=shares)
    return distance * labels + rng.normal(size=n)


def log_likelihood(x):
    """Largest log likelihood of 1 to 3 components with a common variance, minus log n for each."""
    fits = [
        GaussianMixture(k, covariance_type="tied", n_init=10, random_state=0).fit(x[:, None])
        for k in (1, 2, 3)
    ]
    return max(len(x) * m.score(x[:, None]) - k * np.log(len(x)) for k, m in enumerate(fits))


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_the_gain_is_the_difference_of_penalised_log_likelihoods(scale):
    n = 250  # with more samples, mixtures are fitted to order statistics
    x = np.exp(scale * clusters([0.6, 0.4], 3, np.random.default_rng(0), n))
    expected = log_likelihood(np.log(x)) - np.log(x).sum() - log_likelihood(x)
    result = compare_logarithms(x[:, None])
    assert result.offset[0] == 0 and result.gain[0] == pytest.approx(expected / n, abs=0.01)
    # Units, the order of samples and missing values do not matter.
    for other in (7e6 * x, x[::-1], np.append(x, np.nan)):
        np.testing.assert_allclose(compare_logarithms(other[:, None]).gain, result.gain, atol=1e-9)


def test_gaussian_clusters_of_any_shares_are_no_skewed_features():
    rng = np.random.default_rng(0)
    symmetric = [rng.normal(size=N), rng.uniform(size=N), rng.standard_t(3, size=N)]
    shares = [0.5, 0.5], [0.9, 0.1], [0.97, 0.03], [0.6, 0.3, 0.1], [0.4, 0.3, 0.2, 0.05, 0.05]
    columns = [*symmetric, *(clusters(s, d, rng) for s in shares for d in (3, 5, 8))]
    assert (compare_logarithms(np.stack(columns, 1), n_components=5).gain < 0.1).all()
    constant = np.column_stack([np.ones(N), np.full(N, np.nan), rng.integers(3, size=N) ** 9.0])
    assert (compare_logarithms(constant).gain == 0).all()


def test_effects_of_known_groups_are_multiplicative_in_skewed_features():
    rng = np.random.default_rng(0)
    groups = np.arange(N) % 4
    x = np.exp(0.7 * rng.normal(size=N))
    expected = compare_logarithms(x[:, None], groups).gain
    shifted = np.exp(np.array([0, 1, 2, 4])[groups]) * x
    result = compare_logarithms(np.column_stack([shifted, np.log(shifted)]), groups)
    assert result.gain[0] > expected + 0.5
    assert result.gain[1] == 0


def test_features_with_zeros_or_negative_values_get_an_offset():
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(size=N))
    zeros = np.where(rng.uniform(size=N) < 0.2, 0, x)
    X = np.column_stack([zeros, (x - x.mean()) / x.std()])
    gain, offset = compare_logarithms(X)
    assert (gain > 0.2).all() and offset[0] == np.median(x[zeros > 0])
    assert (X.min(0) + offset > 0).all()
    # Most values are the smallest one.
    atom = np.where(rng.uniform(size=N) < 0.8, 0, x)
    result = compare_logarithms(np.column_stack([atom, atom - atom.mean()]))
    assert np.isfinite(result).all()


@pytest.fixture(scope="module")
def table():
    """Two clusters, skewed by the exponential function, in three known groups."""
    rng = np.random.default_rng(1)
    labels, group = rng.integers(2, size=N), rng.integers(3, size=N)
    logs = rng.normal(size=(N, 5)) + rng.normal(size=(3, 5))[group]
    logs[:, 0] += 4 * labels
    logs[:, 1] += 3 * labels
    frame = pd.DataFrame(np.exp(0.7 * logs), columns=["income", "spend", "c", "d", "e"])
    return frame.assign(age=rng.normal(40, 9, N), region=np.array(["n", "s", "w"])[group]), labels


def test_prepare_takes_logarithms(table):
    frame, _ = table
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scales differ
        plain = prepare(frame, known="region", standardize=False)
        ready = prepare(frame, known="region", log="auto", standardize=False)
    names = [f"log({name})" for name in ("income", "spend", "c", "d", "e")]
    assert ready.feature_names_ == [*names, "age"] == list(ready.X) == list(ready.kinds_)
    np.testing.assert_allclose(ready.X[names], np.log(plain.X[["income", "spend", "c", "d", "e"]]))
    assert any("logarithms of columns, which are skewed: 'income'" in line for line in ready.notes)
    frame = frame.assign(spend=np.where(frame.age > 50, 0, frame.spend))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready = prepare(frame, known="region", log=["spend"], standardize=False)
    offset = frame.spend[frame.spend > 0].median()
    (name,) = set(ready.feature_names_) - set(plain.feature_names_)
    assert name == f"log(spend + {offset:.4g})"
    np.testing.assert_allclose(ready.X[name], np.log(frame.spend + offset))
    # Without names, columns are numbered.
    assert prepare(np.exp(frame[["age"]].to_numpy() / 9), log="auto").feature_names_ == [
        "log(column 0)"
    ]


def test_all_skewed_columns_are_replaced_and_none_is_lost():
    X = np.exp(np.random.default_rng(0).normal(size=(N, 60)))
    frame = pd.DataFrame(X).add_prefix("c")
    assert all(name.startswith("log(") for name in prepare(frame, log="auto").feature_names_)
    for other in (frame.c2, np.where(frame.c2 > 1, "u", "v")):
        with pytest.raises(ValueError, match=r"new column names; .* a column 'log\(c1\)'"):
            prepare(frame.assign(**{"log(c1)": other}), log=["c1"])


@pytest.mark.parametrize(
    ("log", "error", "message"),
    [
        ("income", ValueError, "log must be one of 'auto' or a list of column names"),
        (3, TypeError, "log must be 'auto' or a list of column names; got 3"),
        (["region"], ValueError, "column without measurements; got 'region'.*'income'"),
        (["no such"], ValueError, "column without measurements; got 'no such'"),
        (["debt"], ValueError, "values of at least 0; got -1 in 'debt'"),
    ],
)
def test_columns_without_logarithms_are_refused(table, log, error, message):
    frame, _ = table
    with pytest.raises(error, match=message):
        prepare(frame.assign(debt=frame.age - frame.age.min() - 1), log=log)


def test_sparse_rows_have_no_logarithms():
    with pytest.raises(ValueError, match="logarithms need dense measurements"):
        prepare(sparse.csr_array(np.eye(3)), log="auto")


def test_fit_names_skewed_features_whose_logarithms_have_the_clusters(table):
    frame, labels = table
    model = ConditionalMixture(2, n_init=10, random_state=0)

    def fit(ready):
        with warnings.catch_warnings(record=True) as issued:
            warnings.simplefilter("always")
            model.fit(ready.X, known=ready.known)
        messages = [str(w.message) for w in issued]
        skewed = [m for m in messages if "skewed features hide clusters" in m]
        # The largest values of skewed features are not called outliers.
        assert not (skewed and any("far from all clusters" in m for m in messages))
        return skewed, adjusted_rand_score(labels, model.labels_)

    skewed, agreement = fit(prepare(frame, known="region"))
    assert "'income', 'spend'" in skewed[0] and "'age'" not in skewed[0]
    assert "log='auto' of nrprob.prepare" in skewed[0] and agreement < 0.5
    skewed, agreement = fit(prepare(frame, known="region", log="auto"))
    assert not skewed and agreement > 0.85
    # Mixed and incomplete tables.
    gaps = frame.assign(c=frame.c.mask(frame.age > 55), kind=np.where(labels, "u", "v"))
    skewed, _ = fit(prepare(gaps, known="region"))
    assert "'income', 'spend'" in skewed[0]
