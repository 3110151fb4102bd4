"""Residual spectral clustering: dense formulas, invariances, and real pages."""

import pickle
import warnings

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics import normalized_mutual_info_score as nmi

from nrprob import DegenerateClusterWarning, ResidualSpectral
from nrprob.datasets import load, make_crossed_counts
from nrprob.known import Memberships
from nrprob.methods.conditional import spectral
from nrprob.methods.conditional.consensus import (
    agreement_weights,
    find_consensus,
    fit_consensus,
    match_labels,
    vote_shares,
)
from nrprob.methods.conditional.moments import (
    Projection,
    Shared,
    Weighting,
    leading_eigenvectors,
    moment_across,
    moment_within,
)
from nrprob.methods.conditional.spectral_mixture import fit_mixtures, row_keys
from nrprob.methods.ensemble import consensus
from nrprob.statistics.ensembles import centroid_scores, stack_indicators

N, M, L = 120, 70, 3


def counts(seed=0, n=N, m=M, n_groups=L, k=2, strength=6.0):
    """Counts, known groups and hidden clusters; both shift terms of their own."""
    rng = np.random.default_rng(seed)
    z, c = rng.integers(n_groups, size=n), rng.integers(k, size=n)
    base = rng.gamma(1.0, 0.6, size=m)
    by_z, by_c = rng.permuted(np.arange(m)), rng.permuted(np.arange(m))
    rate = np.tile(base, (n, 1))
    rate *= np.where(by_z % (2 * n_groups) == z[:, None], 2 * strength, 1)
    rate *= np.where(by_c % (2 * k) == c[:, None], strength, 1)
    x = rng.poisson(rate)
    x[:, 0] += 1  # no row without a term
    return x, z, c


def dense_rows(x, power, damp="log", present=None):
    """Weighted unit rows by the formulas, dense."""
    df = (x > 0).sum(0)
    kept = df >= 3
    y = x[:, kept].astype(float)
    if damp == "log":
        y = np.where(y > 0, 1 + np.log(np.maximum(y, 1)), 0)
    y = y * (np.log((1 + len(x)) / (1 + df[kept])) + 1) ** power
    return y / np.maximum(np.linalg.norm(y, axis=1, keepdims=True), 1e-300)


def sparse_rows(x, power, damp="log"):
    x = sparse.csr_array(x, dtype=float)
    weighting = Weighting.from_counts(x, damp, 3)
    damped = weighting.damp_counts(x)
    return damped, weighting.weigh_terms(damped, power)


# The mathematics


@pytest.mark.parametrize("damp", ["log", "none"])
@pytest.mark.parametrize("power", [0.5, 2.0])
def test_weights_are_the_formula(damp, power):
    x, _, _ = counts()
    x[:2] = 0
    _, y = sparse_rows(x, power, damp)
    np.testing.assert_allclose(y.toarray(), dense_rows(x, power, damp), atol=1e-14)
    # A common factor of all term weights cancels in the unit length.
    weighting = Weighting.from_counts(sparse.csr_array(x, dtype=float), damp, 3)
    damped = weighting.damp_counts(sparse.csr_array(x, dtype=float))
    scaled = Weighting(weighting.columns, 7 * weighting.idf, damp).weigh_terms(damped, power)
    np.testing.assert_allclose(scaled.toarray(), y.toarray(), atol=1e-14)


def test_damping_goes_on_below_one():
    w = Weighting(np.arange(1), np.ones(1), "log")
    small = sparse.csr_array(np.array([[0.25], [1.0], [1 + 1e-6], [np.e]]))
    np.testing.assert_allclose(w.damp_counts(small).data, [0.25, 1, 1 + 1e-6, 2])


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**6))
def test_moments_are_the_dense_formulas(seed):
    x, z, _ = counts(seed % 97)
    damped, y = sparse_rows(x, 1.0)
    n_groups = 1 + seed % L
    z = z % n_groups
    known = Projection.of_groups(z, n_groups, np.ones(N, bool), float)
    dense = y.toarray()
    residual = dense - np.stack([dense[z == g].mean(0) for g in range(n_groups)])[z]
    eye = np.eye(dense.shape[1])

    def moment(r):
        return r.T @ r - np.diag((r**2).sum(0))

    within = moment_within(y, known)(eye)
    np.testing.assert_allclose(within, moment(residual), atol=1e-12)
    assert abs(np.diag(within)).max() < 1e-12
    each = [moment(residual[z == g]) for g in range(n_groups)]
    across = moment_across(y, known, Shared(damped, z))(eye)
    expected = sum(each) @ sum(each) - sum(c @ c for c in each)
    np.testing.assert_allclose(across, expected, atol=1e-12)
    np.testing.assert_allclose(across, across.T, atol=1e-12)
    if n_groups == 1:
        assert abs(across).max() < 1e-12  # nothing is shared


@pytest.mark.parametrize(
    "kind", [pytest.param("floats", marks=pytest.mark.smoke), "shares", "deficient"]
)
def test_regression_is_least_squares(kind):
    rng = np.random.default_rng(0)
    x, z, _ = counts()
    _, y = sparse_rows(x, 1.0)
    design = {
        "floats": np.column_stack([np.ones(N), rng.normal(size=(N, 2))]),
        "shares": rng.dirichlet(np.ones(3), N),
        "deficient": np.column_stack([np.ones(N), np.eye(L)[z]]),
    }[kind]
    present = np.ones(N, bool)
    present[:5] = False
    y = sparse.diags_array(present.astype(float)) @ y
    known = Projection.of_design(design, present, float)
    dense = y.toarray()
    fit = design[5:] @ np.linalg.lstsq(design[5:], dense[5:], rcond=1e-9)[0]
    residual = np.vstack([np.zeros((5, dense.shape[1])), dense[5:] - fit])
    np.testing.assert_allclose(known.remove_known(dense), residual, atol=1e-12)
    np.testing.assert_allclose(
        dense[5:] - design[5:] @ known.fit_coefficients(dense), residual[5:], atol=1e-12
    )
    np.testing.assert_allclose(
        moment_within(y, known)(np.eye(dense.shape[1])),
        residual.T @ residual - np.diag((residual**2).sum(0)),
        atol=1e-12,
    )
    if kind == "deficient":
        means = Projection.of_groups(z, L, present, float)
        np.testing.assert_allclose(means.remove_known(dense), residual, atol=1e-12)
        np.testing.assert_allclose(
            means.explained_squares(y), known.explained_squares(y), atol=1e-12
        )


def test_coordinates_have_no_group_means_and_ignore_what_a_group_has_in_common():
    x, z, _ = counts()
    _, y = sparse_rows(x, 1.0)
    known = Projection.of_groups(z, L, np.ones(N, bool), float)
    values, v = leading_eigenvectors(moment_within(y, known), y.shape[1], 10, float, 1e-2)
    s = known.remove_known(y @ v)
    for g in range(L):
        assert abs(s[z == g].mean(0)).max() < 1e-14
    shift = np.random.default_rng(1).normal(size=(L, y.shape[1]))
    moved = sparse.csr_array(y.toarray() + shift[z])
    np.testing.assert_allclose(known.remove_known(moved @ v), s, atol=1e-13)
    vectors = np.random.default_rng(2).normal(size=(y.shape[1], 2))
    # The noise on the diagonal is the noise of the residual, and does not change either.
    np.testing.assert_allclose(
        moment_within(moved, known)(vectors), moment_within(y, known)(vectors), atol=1e-10
    )


@pytest.mark.parametrize("size", [40, 300])
def test_leading_directions_are_the_positive_ones(size):
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.normal(size=(size, size)))[0]
    spectrum = np.concatenate([[5.0, 3.0, 1.0], np.full(10, -9.0), np.zeros(size - 13)])
    matrix = (q * spectrum) @ q.T
    values, vectors = leading_eigenvectors(lambda v: matrix @ v, size, 6, float, 1e-8)
    np.testing.assert_allclose(values, [5, 3, 1], rtol=1e-6)
    np.testing.assert_allclose(abs(vectors.T @ q[:, :3]), np.eye(3), atol=1e-6)
    # From nearby vectors the result is the same, with fewer products.
    products = []

    def apply(v):
        products.append(v.shape[1])
        return matrix @ v

    again, same = leading_eigenvectors(apply, size, 6, float, 1e-8, vectors)
    np.testing.assert_allclose(again, values, rtol=1e-9)
    np.testing.assert_allclose(same, vectors, atol=1e-6)
    assert len(products) <= 3
    values, vectors = leading_eigenvectors(lambda v: 0 * v, size, 6, float, 1e-2)
    assert values.size == 0 and vectors.shape == (size, 0)
    values, _ = leading_eigenvectors(lambda v: -v, size, 6, float, 1e-2)
    assert values.size == 0


def test_mixture_is_em_of_one_covariance():
    """Parameters are those of the memberships at the solution; the likelihood agrees with SciPy."""
    rng = np.random.default_rng(0)
    n, k, p = 90, 3, 4
    x = rng.normal(size=(n, p)) @ rng.normal(size=(p, p)) * 0.3
    x = x + 2 * rng.normal(size=(k, p))[rng.integers(k, size=n)]
    keys = rng.integers(2**32, size=n, dtype=np.uint32)
    present = np.ones(n, bool)
    present[:4] = False
    settings_ = {"reg": 1e-3, "max_iter": 2000, "tol": 1e-12}
    seeds = np.arange(2, dtype=np.uint32)
    with jax.enable_x64(True):
        result = fit_mixtures(np.stack([x, x]), present, keys, seeds, k, None, **settings_)
        # Coordinates of 0 and an empty component at the end change nothing.
        wide = np.pad(np.stack([x, x]), ((0, 0), (0, 0), (0, 2)))
        padded = fit_mixtures(wide, present, keys, seeds, k, None, **settings_)
    assert result.converged.all()
    assert (padded.labels == result.labels).all()
    extra = (n - 4) * (np.log(2 * np.pi) + np.log(1e-3))
    np.testing.assert_allclose(padded.objective - result.objective, extra, rtol=1e-6)
    for labels, objective, coef, intercept in zip(*result[:4], strict=True):
        score = x @ coef.T + intercept
        r = np.exp(score - score.max(1, keepdims=True))
        r = r / r.sum(1, keepdims=True)
        assert (labels == r.argmax(1)).all()
        w = r * present[:, None]
        share, mu = w.sum(0) / w.sum(), (w.T @ x) / w.sum(0)[:, None]
        centred = x[:, None] - mu
        sigma = np.einsum("nk,nkp,nkq->pq", w, centred, centred) / w.sum() + 1e-3 * np.eye(p)
        np.testing.assert_allclose(coef, mu @ np.linalg.inv(sigma), rtol=1e-3, atol=1e-3)
        density = [
            s * multivariate_normal(m, sigma).pdf(x[4:]) for s, m in zip(share, mu, strict=True)
        ]
        assert objective == pytest.approx(-np.log(np.sum(density, 0)).sum(), rel=1e-6)


def test_random_numbers_of_rows_are_their_own():
    x = sparse.csr_array(counts()[0])
    keys = row_keys(x.indptr, x.indices, x.data)
    order = np.random.default_rng(0).permutation(N)
    shuffled = sparse.csr_array(x[order])
    shuffled.sort_indices()
    assert (row_keys(shuffled.indptr, shuffled.indices, shuffled.data) == keys[order]).all()
    assert np.unique(keys).size == N
    assert abs(keys.mean() / 2**32 - 0.5) < 5 / np.sqrt(12 * N)


def test_starts_follow_the_rows_and_not_their_order():
    """Without structure the result is the initial one, which a permutation must preserve."""
    rng = np.random.default_rng(0)
    x, keys = rng.normal(size=(N, 6)), rng.integers(2**32, size=N, dtype=np.uint32)
    order, seeds, all_ = rng.permutation(N), np.arange(3, dtype=np.uint32), np.ones(N, bool)
    settings_ = {"reg": 1e-3, "max_iter": 50, "tol": 1e-3}
    with jax.enable_x64(True):
        plain = fit_mixtures(np.stack([x] * 3), all_, keys, seeds, 4, None, **settings_)
        moved = fit_mixtures(
            np.stack([x[order]] * 3), all_, keys[order], seeds, 4, None, **settings_
        )
    assert (moved.labels == plain.labels[:, order]).all()
    assert adjusted_rand_score(plain.labels[0], plain.labels[1]) < 0.9  # seeds do matter


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_consensus_is_a_minimum_below_its_members(seed, taught):
    """It is a fixed point below all members, and its objective is the definition."""
    rng = np.random.default_rng(seed)
    n, k, members = 7, 3, 6
    truth = rng.integers(k, size=n)
    noise = rng.integers(k, size=(n, members))
    columns = np.where(rng.random((n, members)) < 0.7, truth[:, None], noise)
    fixed = np.where(np.arange(n) < 2, truth, -1) if taught else None
    if taught:
        columns[:2] = truth[:2, None]

    def scatter(labels):
        x = stack_indicators(columns, [np.arange(k)] * members).toarray()
        groups = [x[labels == c] for c in np.unique(labels)]
        return sum(((g - g.mean(0)) ** 2).sum() for g in groups)

    result = find_consensus(columns, k, fixed, members, 50)
    labels = result.labels[result.best]
    assert result.converged.all()
    assert result.objective[result.best] == pytest.approx(scatter(labels), abs=1e-12)
    assert (np.diff(result.trace) <= 1e-12).all() and result.trace[-1] == result.objective.min()
    assert result.objective.min() <= min(scatter(c) for c in columns.T) + 1e-12
    if taught:
        assert (labels[:2] == truth[:2]).all()
    x = stack_indicators(columns, [np.arange(k)] * members)
    moved = centroid_scores(x, result.centroids, np.isin(range(k), labels)).argmax(1)
    assert (moved == labels)[2 * taught :].all()


def test_consensus_is_as_good_as_that_of_single_moves():
    """The engine of `CondEns` moves rows one by one from random partitions, which takes far
    longer."""
    rng = np.random.default_rng(0)
    n, k, members = 200, 4, 12
    truth = rng.integers(k, size=n)
    noise = rng.integers(k, size=(n, members))
    columns = np.where(rng.random((n, members)) < 0.6, truth[:, None], noise)
    names = np.stack([rng.permutation(k) for _ in range(members)])
    columns = np.take_along_axis(names.T, columns, 0)
    result = find_consensus(columns, k, None, 10, 100)
    classes = [np.arange(k)] * members
    with jax.enable_x64(True):
        moved = consensus.find_consensus(
            columns, classes, None, k, n_init=10, max_iter=300, random_state=0
        )
    least = moved[0].objective.min()
    assert result.objective.min() <= 1.005 * least
    matched = match_labels(columns[:, 0], result.labels[result.best], k, 0)
    assert (matched[columns[:, 0]] == result.labels[result.best]).mean() > 0.6
    names = np.stack([match_labels(c, result.labels[result.best], k, 0) for c in columns.T])
    share = vote_shares(columns, names, np.ones(members))
    np.testing.assert_allclose(share.sum(1), 1)
    assert (share.argmax(1) == result.labels[result.best]).mean() > 0.9


def test_members_that_agree_little_are_left():
    """From a member alone the search would stay there, and miss what all members share."""
    rng = np.random.default_rng(0)
    n, k, members = 1000, 10, 32
    truth = rng.integers(k, size=n)
    noise = rng.integers(k, size=(n, members))
    columns = np.where(rng.random((n, members)) < 0.2, truth[:, None], noise)
    result = find_consensus(columns, k, None, 10, 100)
    assert nmi(result.labels[result.best], truth) > 0.4
    assert max(nmi(column, truth) for column in columns.T) < 0.2


def _vague_members(seed, n=300, k=3, members=8, share=0.6):
    """Labels of a partition and of members that agree with it in a share of the rows."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(k, size=n)
    noise = rng.integers(k, size=(n, members))
    return truth, np.where(rng.random((n, members)) < share, truth[:, None], noise)


def _mixture_consensus(columns, k, weights, seed=0, fixed=None):
    keys = np.random.default_rng(seed).integers(2**32, size=len(columns), dtype=np.uint32)
    with jax.enable_x64(True):
        return fit_consensus(
            columns, k, fixed, weights, np.ones(len(columns), bool), keys,
            np.arange(10, dtype=np.uint32), reg=1e-3, max_iter=200, tol=1e-9, dtype=np.float64,
        )  # fmt: skip


def test_weights_are_the_mean_information_with_other_members(monkeypatch):
    _, columns = _vague_members(0)
    columns[:, 5] = 1  # no information
    table = np.array([[nmi(a, b) for b in columns.T] for a in columns.T])
    np.fill_diagonal(table, 0)
    table[5] = table[:, 5] = 0
    expected = np.maximum(table.sum(1) / 7, 1e-6) ** 2
    weights = agreement_weights(columns, 3)
    np.testing.assert_allclose(weights, expected / expected.mean(), rtol=1e-9)
    monkeypatch.setattr("nrprob.methods.conditional.consensus._BLOCK", 200)
    np.testing.assert_allclose(agreement_weights(columns, 3), weights, rtol=1e-12)
    # Labels of clusters and the order of members do not matter.
    renamed = np.stack([np.roll(np.arange(3), j)[c] for j, c in enumerate(columns.T)], 1)
    np.testing.assert_allclose(agreement_weights(renamed[:, ::-1], 3), weights[::-1], rtol=1e-9)
    assert agreement_weights(columns[:, :1], 3) == 1


def test_components_are_those_of_the_weighted_indicators():
    _, columns = _vague_members(1)
    k, weights = 3, agreement_weights(columns, 3)
    result = _mixture_consensus(columns, k, weights)
    z = np.concatenate(
        [np.eye(k)[c] * np.sqrt(w / 8) for c, w in zip(columns.T, weights, strict=True)], 1
    )
    scores = np.concatenate([np.eye(k)[c] for c in columns.T], 1) @ result.model.directions
    scores = scores - result.model.centre
    u, s, _ = np.linalg.svd(z - z.mean(0), full_matrices=False)
    expected = u[:, : k + 1] * s[: k + 1]
    signs = np.sign((scores * expected).sum(0))
    np.testing.assert_allclose(scores, expected * signs, atol=1e-3)
    labels = result.labels[result.best]
    assert (result.model.predict(columns) == labels).all()
    assert result.objective.min() == result.objective[result.best]
    assert result.trace[~np.isnan(result.trace)][-1] == pytest.approx(result.objective.min())
    share = np.stack([z[labels == c].mean(0) for c in range(k)]) / np.sqrt(
        np.repeat(weights, k) / 8
    )
    np.testing.assert_allclose(result.centroids, share, atol=1e-9)


def test_a_bad_member_does_not_matter():
    rng = np.random.default_rng(0)
    truth, k = rng.integers(4, size=200), 4
    columns = np.stack([*[rng.permutation(k)[truth] for _ in range(31)], rng.integers(k, size=200)])
    weights = agreement_weights(columns.T, k)
    assert weights[-1] < 0.01 * weights[0]
    result = _mixture_consensus(columns.T, k, weights)
    assert adjusted_rand_score(result.labels[result.best], truth) == 1
    # Members that are all equal leave fewer directions than clusters.
    equal = _mixture_consensus(columns.T[:, :31], k, np.ones(31))
    assert equal.model.directions.shape[1] == k - 1
    assert adjusted_rand_score(equal.labels[equal.best], truth) == 1


def test_mixture_of_weak_members_recovers_their_partition():
    truth, columns = _vague_members(2, n=600, k=4, members=16, share=0.4)
    fixed = np.where(np.arange(600) < 10, truth, -1)
    columns[:10] = truth[:10, None]
    result = _mixture_consensus(columns, 4, agreement_weights(columns, 4), fixed=fixed)
    labels = result.labels[result.best]
    assert (labels[:10] == truth[:10]).all()
    # Classes keep their labels, so the labels compare directly.
    assert (labels == truth).mean() > 0.85 > max((c == truth).mean() for c in columns.T) + 0.2


# The estimator


@pytest.fixture(scope="module")
def data():
    return counts(3)


@pytest.fixture(scope="module")
def fitted(data):
    x, z, _ = data
    return ResidualSpectral(2, members=8, random_state=0).fit(sparse.csr_array(x), known=z)


def test_it_finds_what_is_hidden_and_not_what_is_known(data, fitted):
    x, z, c = data
    assert nmi(fitted.labels_, c) > 0.9 and nmi(fitted.labels_, z) < 0.05
    # Without the known groups it finds them instead.
    plain = ResidualSpectral(3, members=8, random_state=0).fit(x)
    assert nmi(plain.labels_, z) > 0.8


def test_fitted_attributes(data, fitted):
    x, z, _ = data
    assert fitted.labels_.shape == (N,) and fitted.n_clusters_ == 2
    assert fitted.membership_.shape == (N, 2) and fitted.n_features_in_ == M
    np.testing.assert_allclose(fitted.membership_.sum(1), 1)
    assert (fitted.agreement_ == fitted.membership_[np.arange(N), fitted.labels_]).all()
    assert len(fitted.members_) == 8 and fitted.member_labels_.shape == (N, 8)
    assert set(fitted.members_["mode"]) == {"within", "across"}
    assert (fitted.members_["rank"] <= 20).all() and fitted.members_["converged"].all()
    assert fitted.objective_ == pytest.approx(fitted.restarts_.objective.values.min())
    assert fitted.restarts_.sizes["restart"] == 10
    assert fitted.objective_trace_[-1] == pytest.approx(fitted.objective_)
    assert fitted.members_["weight"].mean() == pytest.approx(1)
    for values in fitted.eigenvalues_.values():
        assert (values > 0).all() and (np.diff(values) <= 0).all()
    # The share of a row's votes is the share of members that agree after matching their labels.
    names = [
        np.arange(2) if (column == fitted.labels_).mean() >= 0.5 else np.array([1, 0])
        for column in fitted.member_labels_.T
    ]
    same = [n[c] == fitted.labels_ for n, c in zip(names, fitted.member_labels_.T, strict=True)]
    weights = fitted.members_["weight"]
    np.testing.assert_allclose(fitted.agreement_, np.average(same, 0, weights=weights))


def test_the_scatter_as_consensus(data):
    x, z, _ = data
    fitted = ResidualSpectral(2, members=8, consensus="scatter", random_state=0).fit(x, known=z)
    ones = np.concatenate([np.eye(2)[column] for column in fitted.member_labels_.T], 1)
    scatter = sum(
        ((ones[fitted.labels_ == k] - ones[fitted.labels_ == k].mean(0)) ** 2).sum()
        for k in range(2)
    )
    assert fitted.objective_ == pytest.approx(scatter)
    assert 1 <= fitted.restarts_.sizes["restart"] <= 8
    np.testing.assert_allclose(fitted.membership_ * 8, np.round(fitted.membership_ * 8))
    assert (fitted.members_["weight"] == 1).all()
    assert (fitted.predict(x, known=z) == fitted.labels_).all()


def test_new_rows(data, fitted):
    x, z, c = data
    assert (fitted.predict(x, known=z) == fitted.labels_).all()
    np.testing.assert_allclose(fitted.predict_proba(x, known=z), fitted.membership_)
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict(x[:9], known=z[:9]) == fitted.labels_[:9]).all()
    half = ResidualSpectral(2, members=4, random_state=0).fit(x[::2], known=z[::2])
    assert nmi(half.predict(x[1::2], known=z[1::2]), c[1::2]) > 0.8
    with pytest.raises(ValueError, match="known is required"):
        fitted.predict(x)
    with pytest.raises(ValueError, match="did not occur in fit"):
        fitted.predict(x[:3], known=[0, 1, 9])
    assert set(fitted.predict(np.zeros((2, M)), known=z[:2])) <= {0, 1}
    # If clusters are not separated, lengths and weights matter as well.
    x, z, _ = counts(7, strength=1.2)
    vague = ResidualSpectral(4, members=4, random_state=0).fit(x, known=z)
    assert (vague._member_columns(x, z) == vague.member_labels_).all()
    assert (vague.predict(x, known=z) == vague.labels_).all()


def test_the_same_seed_gives_the_same(data, fitted):
    x, z, _ = data
    again = clone(fitted).fit(x.astype(float), known=z)  # dense, too
    assert (again.labels_ == fitted.labels_).all() and again.objective_ == fitted.objective_
    assert (again.member_labels_ == fitted.member_labels_).all()
    renamed = clone(fitted).fit(x, known=np.array(["x", "a", "m"])[z])
    assert (renamed.labels_ == fitted.labels_).all()
    narrow = clone(fitted).fit(sparse.csr_array(x, dtype=np.float32), known=z)
    assert adjusted_rand_score(narrow.labels_, fitted.labels_) > 0.95
    assert next(iter(narrow.eigenvalues_.values())).dtype == np.float32


def test_explicit_zeros_and_unsorted_entries_change_nothing(data, fitted):
    x, z, _ = data
    row, column = np.indices(x.shape).reshape(2, -1)[:, ::-1]
    given = sparse.csr_array(sparse.coo_array((x[row, column], (row, column)), shape=x.shape))
    data_ = given.data.copy()
    assert (clone(fitted).fit(given, known=z).labels_ == fitted.labels_).all()
    assert (given.data == data_).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_order_of_rows_does_not_matter_where_there_is_structure(seed):
    x, z, _ = counts(3)
    order = np.random.default_rng(seed).permutation(N)
    plain = ResidualSpectral(2, members=8, random_state=0).fit(x, known=z)
    moved = ResidualSpectral(2, members=8, random_state=0).fit(x[order], known=z[order])
    assert adjusted_rand_score(moved.labels_, plain.labels_[order]) == 1
    for a, b in zip(moved.member_labels_.T, plain.member_labels_[order].T, strict=True):
        assert adjusted_rand_score(a, b) == 1


def test_single_members():
    x, z, c = counts(3)
    one = ResidualSpectral(2, members=1, random_state=0).fit(x, known=z)
    named = ResidualSpectral(2, members=[("within", 1.0, 10)], random_state=0).fit(x, known=z)
    assert (one.labels_ == named.labels_).all() and one.objective_ == 0
    assert adjusted_rand_score(one.labels_, one.member_labels_[:, 0]) == 1
    row = one.members_.iloc[0]
    assert (row["mode"], row["power"], row["start"], row["agreement"]) == ("within", 1, 0, 1)
    both = ResidualSpectral(2, members=[("across", 1.5, 20), ("across", 1.5, 20)]).fit(x, known=z)
    assert both.members_["start"].tolist() == [0, 1] and nmi(both.labels_, c) > 0.9
    plan = ResidualSpectral(2)._plan_members(True)
    assert len({m[:3] for m in plan}) == 16 and len(set(plan)) == 32
    alone = ResidualSpectral(2)._plan_members(False)
    assert {m.mode for m in alone} == {"within"} and len(set(alone)) == 32
    assert sorted({m.start for m in alone}) == [0, 1, 2, 3]


def test_what_may_be_known():
    rng = np.random.default_rng(0)
    x, z, c = counts(5)
    hard = ResidualSpectral(2, members=4, random_state=0).fit(x, known=z)
    within = [("within", 1.0, 10), ("within", 0.5, 20)]
    model = ResidualSpectral(2, members=within, random_state=0)
    labels = clone(model).fit(x, known=z)
    soft = clone(model).fit(x, known=Memberships(np.eye(L)[z]))
    codes = clone(model).fit(x, known=np.eye(L)[z][:, 1:])  # floats with the same values
    assert (soft.labels_ == labels.labels_).all() and (codes.labels_ == labels.labels_).all()
    assert (codes.predict(x, known=np.eye(L)[z][:, 1:]) == codes.labels_).all()
    assert (soft.predict(x, known=Memberships(np.eye(L)[z])) == soft.labels_).all()
    assert nmi(hard.labels_, c) > 0.9
    two = np.column_stack([z, rng.integers(2, size=N)])
    product = clone(model).fit(x, known=two)
    combined = clone(model).fit(x, known=2 * two[:, 0] + two[:, 1])
    assert (product.labels_ == combined.labels_).all()
    additive = clone(model).set_params(multi="additive").fit(x, known=two)
    assert nmi(additive.labels_, c) > 0.9
    assert (additive.predict(x, known=two) == additive.labels_).all()
    default = ResidualSpectral(2, members=4, multi="additive", random_state=0).fit(x, known=two)
    assert set(default.members_["mode"]) == {"within"}


def test_wanted_labels_stay_and_keep_their_names(data):
    x, z, c = data
    y = np.full(N, -1)
    y[:20] = np.where(c[:20] == 0, 30, 7)
    model = ResidualSpectral(3, members=4, random_state=0).fit(x, y, known=z)
    assert model.classes_.tolist() == [7, 30]
    assert (model.classes_[model.labels_[:20]] == y[:20]).all()
    assert (model.membership_[:20].max(1) == 1).all()
    assert (model.classes_[model.member_labels_[:20]] == y[:20, None]).all()
    taught = ResidualSpectral(2, members=4, random_state=0).fit(x, y, known=z)
    assert (taught.classes_[taught.labels_] == np.where(c == 0, 30, 7)).mean() > 0.95


def test_damping_helps_bursts():
    """Bursty terms dominate informative terms, unless counts are damped."""
    rng = np.random.default_rng(0)
    x, z, c = counts(4, strength=2.5)
    x = x + (rng.random((N, M)) < 0.03) * rng.integers(20, 60, (N, M))
    scores = [
        nmi(ResidualSpectral(2, damp=d, members=4, random_state=0).fit_predict(x, known=z), c)
        for d in ("log", "none")
    ]
    assert scores[0] > scores[1] + 0.1


def test_refusals_name_a_way_out(data):
    x, z, _ = data
    cases = [
        (lambda: ResidualSpectral(2).fit(x - 5, known=z), "Negative values in data"),
        (lambda: ResidualSpectral(2).fit(np.where(x > 3, np.nan, x), known=z), "NaN"),
        (lambda: ResidualSpectral(N + 1).fit(x, known=z), "lower n_clusters"),
        (lambda: ResidualSpectral(2).fit(x, known=np.arange(N)), "pass fewer groups"),
        (lambda: ResidualSpectral(2, damp="sqrt").fit(x), "damp must be one of"),
        (lambda: ResidualSpectral(2, consensus="vote").fit(x), "consensus must be one of"),
        (lambda: ResidualSpectral(2, members=0).fit(x), "members must be at least 1"),
        (lambda: ResidualSpectral(2, members=[]).fit(x), "must not be empty"),
        (lambda: ResidualSpectral(2, members=[("del", 1, 2)]).fit(x), "mode of a member"),
        (lambda: ResidualSpectral(2, members=["within"]).fit(x), "list of (mode"),
        (lambda: ResidualSpectral(2, members=[("across", 1, 5)]).fit(x), "two known groups"),
        (lambda: ResidualSpectral(2).fit(np.eye(5)), "at least 3 rows"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError) as raised:
            call()
        assert message in str(raised.value)
    with pytest.raises(TypeError, match="members must be an integer"):
        ResidualSpectral(2, members="all").fit(x)


def test_warnings_tell_what_is_not_there(data):
    x, z, _ = data
    few = z.copy()
    few[:2] = 9
    model = ResidualSpectral(2, members=2, random_state=0)
    with pytest.warns(DegenerateClusterWarning, match="two rows"):
        clone(model).fit(x, known=few)
    empty = x.copy()
    empty[[4, 7]] = 0
    with pytest.warns(UserWarning, match="got row 4 for example"):
        blank = clone(model).fit(empty, known=z)
    assert np.isfinite(blank.membership_).all()
    kept = np.setdiff1d(np.arange(N), [4, 7])
    without = clone(model).fit(empty[kept], known=z[kept])
    assert adjusted_rand_score(blank.labels_[kept], without.labels_) == 1
    with pytest.warns(DegenerateClusterWarning, match="no structure is left"):
        alike = clone(model).fit(x[np.argmax(np.eye(L)[z], 0)][z], known=z)
    assert (alike.labels_ == 0).all() and alike.n_clusters_ == 1 and alike.objective_ == 0
    with pytest.warns(ConvergenceWarning, match="mixtures did not converge"):
        clone(model).set_params(max_iter=1, tol=0.0, n_clusters=3).fit(x, known=z)
    with pytest.warns(DegenerateClusterWarning, match="one group"):
        single = clone(model).set_params(members=4).fit(x, known=np.zeros(N))
    assert set(single.members_["mode"]) == {"within"}
    assert (single.labels_ == clone(model).set_params(members=4).fit(x).labels_).all()


def test_one_cluster_is_legal(data):
    x, z, _ = data
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = ResidualSpectral(1, members=2, random_state=0).fit(x, known=z)
    assert (one.labels_ == 0).all() and (one.membership_ == 1).all() and one.objective_ == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("known", "target", "least"),
    [("university", "page_type", 0.30), ("page_type", "university", 0.60)],
)
def test_web_pages(known, target, least, data_dir, monkeypatch):
    """The labeling that is not known is recovered; thresholds are below the figures of a few
    seeds."""
    monkeypatch.setenv("NRPROB_DATA", str(data_dir))
    pages = load("webkb")
    z, c = pages.labelings[known], pages.labelings[target]
    model = ResidualSpectral(np.unique(c).size, random_state=0).fit(pages.X, known=z)
    assert nmi(model.labels_, c) > least
    assert nmi(model.labels_, z) < 0.05
    # Rows on which the members agree are correct more often.
    sure = model.agreement_ >= np.median(model.agreement_)
    assert nmi(model.labels_[sure], c[sure]) > nmi(model.labels_[~sure], c[~sure])


@pytest.mark.slow
def test_joined_articles(data_dir, monkeypatch):
    monkeypatch.setenv("NRPROB_DATA", str(data_dir))
    news = load("newsgroups20")
    group, area = news.labelings["group"], news.labelings["area"]
    sides = [sorted(set(group[area == name])) for name in ("rec", "sci")]
    X, labels = make_crossed_counts(news.X, group, *sides, random_state=0)
    result = ResidualSpectral(4, random_state=0).fit_predict(X, known=labels[:, 0])
    assert nmi(result, labels[:, 1]) > 0.35 and nmi(result, labels[:, 0]) < 0.02


@pytest.mark.parametrize(("consensus", "function"), [
    ("mixture", "agreement_weights"), ("scatter", "find_consensus")
])  # fmt: skip
def test_rows_without_terms_do_not_count_in_the_consensus(consensus, function, monkeypatch):
    X, groups = counts(n=90)[:2]
    X = np.vstack([X, np.zeros((9, X.shape[1]))])
    original, masses = getattr(spectral, function), []

    def record(*arguments):
        masses.append(arguments[-1])
        return original(*arguments)

    monkeypatch.setattr(spectral, function, record)
    model = ResidualSpectral(2, members=4, n_init=1, consensus=consensus, random_state=0)
    with pytest.warns(UserWarning, match="carry no information"):
        model.fit(X, known=np.r_[groups, groups[:9]])
    assert (masses[0][-9:] == 0).all() and (masses[0][:-9] > 0).all()
