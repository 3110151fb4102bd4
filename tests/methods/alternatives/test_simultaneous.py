"""Two clusterings at once: Dec-kmeans, ConvEM and CAMI agree with their objectives."""

import warnings

import jax
import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from nrprob import CAMI, ConvEM, DecKMeans, DegenerateClusterWarning
from nrprob.information import mutual_information
from nrprob.known import Memberships
from nrprob.methods.alternatives import dec_kmeans

# All fits have the same numbers of restarts and clusters and few rows, to limit compilation.
MODELS = {
    "dec_kmeans": DecKMeans(2, n_init=4, random_state=0),
    "conv_em": ConvEM(2, n_init=4, random_state=0),
    "cami": CAMI(2, n_init=4, random_state=0),
}
SLOW = pytest.mark.slow
every = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def crossing(seed=0, n=60, m=3):
    """Rows of two crossing pairs of clusters, and both labelings."""
    rng = np.random.default_rng(seed)
    one, other = rng.integers(2, size=(2, n))
    X = rng.normal(size=(n, m)) + 3
    X[:, 0] += 10 * one
    X[:, 1] += 8 * other
    return X, one, other


def slope(function, at, step=1e-5):
    """Derivatives of a function of an array, by central differences."""
    out = np.zeros(at.shape)
    for i in np.ndindex(at.shape):
        ahead, back = at.copy(), at.copy()
        ahead[i] += step
        back[i] -= step
        out[i] = (function(ahead) - function(back)) / (2 * step)
    return out


def same_pair(pair, other):
    """Whether two pairs (n, 2) of clusterings are equal up to labels."""
    same = [[adjusted_rand_score(a, b) == 1 for b in other.T] for a in pair.T]
    return (same[0][0] and same[1][1]) or (same[0][1] and same[1][0])


# Dec-kmeans


def decorrelation(x, pair, representatives, lam):
    """Objective of centred rows, by its definition; ``lam`` is the absolute weight."""
    means = [np.array([x[z == c].mean(0) for c in range(2)]) for z in pair.T]
    squares = sum(((x - r[z]) ** 2).sum() for z, r in zip(pair.T, representatives, strict=True))
    penalty = sum(((m @ r.T) ** 2).sum() for m, r in zip(means[::-1], representatives, strict=True))
    return squares + lam * penalty


@pytest.mark.parametrize("weight", [0.1, 1.0, 100.0])
def test_representatives_are_best_for_their_clusterings(weight):
    X, one, other = crossing(1)
    model = clone(MODELS["dec_kmeans"]).set_params(lam=weight).fit(X)
    x = X - X.mean(0)
    lam = weight * 60 / (x**2).sum(1).mean()
    pair, result = model.alternatives_, model.representatives_
    for v in (0, 1):
        b = np.array([x[pair[:, 1 - v] == c].mean(0) for c in (0, 1)])
        for c in (0, 1):
            rows = x[pair[:, v] == c]
            solve_ridge = len(rows) * np.eye(3) + lam * b.T @ b
            best = np.linalg.solve(solve_ridge, rows.sum(0))
            np.testing.assert_allclose(result[v, c], best, rtol=1e-6, atol=1e-9)
    assert model.objective_ == pytest.approx(decorrelation(x, pair, result, lam))
    assert model.objective_ == pytest.approx(model.objective_trace_.min())
    flat = slope(lambda r: decorrelation(x, pair, r, lam), result)
    assert abs(flat).max() < 1e-6 * model.objective_
    assert same_pair(pair, np.stack([one, other], 1))


@pytest.mark.usefixtures("cpu")
def test_representatives_of_both_ask_lapack_once():
    """On a CPU, two independent calls of it can wait for each other forever."""
    of = dec_kmeans.ClusterMeans(np.ones((2, 3)), np.ones((2, 3, 4)))
    with jax.enable_x64(True):
        program = jax.jit(dec_kmeans.update_representatives).lower(of, 1.0).compile()
    assert program.as_text().count('custom_call_target="lapack_') == 1


def test_without_a_weight_both_are_kmeans():
    X, *_ = crossing(1)
    model = clone(MODELS["dec_kmeans"]).set_params(lam=0.0).fit(X)
    theirs = KMeans(2, n_init=10, random_state=0).fit(X)
    assert model.objective_ == pytest.approx(2 * theirs.inertia_)
    assert (np.diff(model.objective_trace_) <= 1e-9).all()
    for z, r in zip(model.alternatives_.T, model.representatives_, strict=True):
        assert adjusted_rand_score(z, theirs.labels_) == 1
        np.testing.assert_allclose(r, [(X - X.mean(0))[z == c].mean(0) for c in (0, 1)])
        assert (cdist(X - X.mean(0), r).argmin(1) == z).all()


def test_pairs_that_keep_all_clusters_come_first():
    rng = np.random.default_rng(0)
    angle = np.arange(60) % 6 * np.pi / 3
    X = 5 * np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1) + rng.normal(size=(60, 3)) / 2
    model = clone(MODELS["dec_kmeans"]).set_params(n_clusters=3, lam=3.0).fit(X)
    held = np.array([[np.unique(z).size for z in p.T] for p in model.restarts_.alternatives.values])
    assert np.isfinite(model.restarts_.objective)[held.sum(1) == held.sum(1).max()].all()
    assert np.isinf(model.restarts_.objective)[held.sum(1) < held.sum(1).max()].all()


# ConvEM


def convolution(x, pi, tau, mu, nu, square, lam):
    """Minus the penalised log likelihood of centred rows, by its definition."""
    log_p = [
        np.log(p * t) + norm.logpdf(x, m + n, np.sqrt(square)).sum(1)
        for p, m in zip(pi, mu, strict=True)
        for t, n in zip(tau, nu, strict=True)
    ]
    return -logsumexp(log_p, axis=0).sum() + lam / 2 * ((mu @ nu.T) ** 2).sum()


@pytest.mark.parametrize("weight", [1.0, *(pytest.param(w, marks=SLOW) for w in (0.1, 20.0))])
def test_conv_em_ends_where_its_objective_is_flat(weight):
    X, one, other = crossing(2)
    model = clone(MODELS["conv_em"]).set_params(lam=weight, tol=1e-10, max_iter=20_000).fit(X)
    x = X - X.mean(0)
    lam = weight * 60 * 3 / ((x**2).sum(1) ** 2).mean()
    (pi, tau), (mu, nu), square = model.weights_, model.means_, model.noise_
    rest = [pi, tau, mu, nu, square]
    assert model.objective_ == pytest.approx(convolution(x, *rest, lam))
    assert (np.diff(model.objective_trace_) <= 1e-9 * abs(model.objective_)).all()
    assert model.objective_trace_[-1] == pytest.approx(model.objective_)
    for i in (2, 3, 4):

        def at(value, i=i):
            return convolution(x, *rest[:i], value, *rest[i + 1 :], lam)

        assert abs(slope(at, np.asarray(rest[i]))).max() < 1e-3
    # Weights are shares, so a common slope does not matter.
    for i, weights in enumerate((pi, tau)):

        def at_share(value, i=i):
            return convolution(x, *rest[:i], value, *rest[i + 1 :], lam)

        assert np.ptp(slope(at_share, weights)) < 1e-3
    assert same_pair(model.alternatives_, np.stack([one, other], 1))
    np.testing.assert_allclose(model.predict_proba(X), model.membership_, atol=1e-6)


# CAMI


def free_energy(x, r, s, t):
    """Free energy without the penalty, by its definition; ``t`` is a fitted model."""
    total = 0.0
    for v, soft in enumerate((r, s)):
        log_p = np.stack(
            [
                np.log(w) + norm.logpdf(x, m, np.sqrt(var)).sum(1)
                for w, m, var in zip(t.weights_[v], t.means_[v], t.variances_[v], strict=True)
            ],
            1,
        )
        total -= (soft * (log_p - np.log(soft))).sum()
    return total


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"covariance": "spherical", "tied": False},
        pytest.param({"tied": False}, marks=SLOW),
        pytest.param({"covariance": "spherical"}, marks=SLOW),
    ],
    ids=str,
)
def test_cami_ends_where_its_objective_is_flat(settings):
    X, one, other = crossing(3)
    X = X + np.random.default_rng(0).normal(size=X.shape)  # so that memberships are soft
    eta = 0.3
    model = clone(MODELS["cami"]).set_params(eta=eta, tol=0.0, max_iter=5000, **settings).fit(X)
    scores = model._log_memberships(model._scaled(X))
    r, s = np.exp(scores - logsumexp(scores, axis=2, keepdims=True))
    np.testing.assert_allclose((r, s)[model._chosen], model.membership_, atol=1e-5)

    def energy(r, s):
        joint = r.T @ s / 60
        return free_energy(X, r, s, model) + eta * 60 * mutual_information(joint / joint.sum())

    assert model.objective_ == pytest.approx(energy(r, s))
    joint = r.T @ s / 60
    assert model.information_ == pytest.approx(mutual_information(joint), abs=1e-6)
    assert (np.diff(model.objective_trace_) <= 1e-9 * abs(model.objective_)).all()
    # Memberships: zero slope between any two clusters, for the least certain rows.
    for v, soft in enumerate((r, s)):
        for i in np.sort(np.argsort(soft.max(1))[:3]):

            def along(step, v=v, i=i):
                pair = [r.copy(), s.copy()]
                pair[v][i] += [step, -step]
                return energy(*pair)

            if soft[i].min() > 1e-3:
                assert abs(along(1e-6) - along(-1e-6)) / 2e-6 < 1e-2
    # Parameters: weighted moments.
    for v, soft in enumerate((r, s)):
        size = soft.sum(0)
        means = soft.T @ X / size[:, None]
        scatter = np.stack([soft[:, c] @ (X - means[c]) ** 2 for c in (0, 1)])
        variances = scatter / size[:, None] if not model.tied else scatter.sum(0) / 60
        if model.covariance == "spherical":
            variances = np.mean(variances, -1, keepdims=True)
        np.testing.assert_allclose(model.weights_[v], size / 60, rtol=1e-4)
        np.testing.assert_allclose(model.means_[v], means, rtol=1e-4)
        np.testing.assert_allclose(
            model.variances_[v], np.broadcast_to(variances, (2, 3)), rtol=1e-3
        )


def test_without_a_price_both_are_mixtures():
    X, *_ = crossing(4)
    model = clone(MODELS["cami"]).set_params(eta=0.0, tied=False, tol=1e-9).fit(X)
    theirs = GaussianMixture(2, covariance_type="diag", n_init=10, tol=1e-8, random_state=0).fit(X)
    assert model.objective_ == pytest.approx(-2 * 60 * theirs.score(X), rel=1e-4)
    assert adjusted_rand_score(*model.alternatives_.T) == 1


def test_a_price_makes_clusterings_differ():
    X, one, other = crossing(4)
    shared = [clone(MODELS["cami"]).set_params(eta=eta).fit(X).information_ for eta in (0.0, 0.5)]
    assert shared[0] > 0.5 > 0.05 > shared[1]


# All estimators


@every
def test_known_labels_choose_between_the_two(model):
    X, one, other = crossing(5)
    first = clone(model).fit(X)
    assert (first.labels_ == first.alternatives_[:, 0]).all()
    for known, sought in ((one, other), (other, one)):
        result = clone(model).fit(X, known=known)
        assert result.objective_ == first.objective_
        assert (result.alternatives_ == first.alternatives_).all()
        assert adjusted_rand_score(result.labels_, sought) == 1
        named = clone(model).fit(X, known=np.array(["b", "a"])[known])
        assert (named.labels_ == result.labels_).all()
        again = clone(model).fit(X, known=np.stack([known, known, sought], 1))
        assert (again.labels_ == result.labels_).all()
        assert (result.predict(X) == result.labels_).all()
        assert (result.predict(X, known=known) == result.labels_).all()
        np.testing.assert_allclose(result.predict_proba(X), result.membership_, atol=1e-6)
        centres = [X[result.labels_ == c].mean(0) for c in (0, 1)]
        np.testing.assert_allclose(result.cluster_centers_, centres, atol=0.1)
    with pytest.warns(DegenerateClusterWarning, match="one group only"):
        constant = clone(model).fit(X, known=np.zeros(60))
    assert (constant.labels_ == first.labels_).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        odd = clone(model).fit(X, known=np.where(np.arange(60) == 0, 7, one))
    assert adjusted_rand_score(odd.labels_, other) == 1


@every
def test_restarts_tell_both_clusterings(model):
    X, one, _ = crossing(6)
    result = clone(model).fit(X, known=one)
    runs = result.restarts_
    assert dict(runs.sizes) == {"restart": 4, "sample": 60, "clustering": 2}
    best = int(runs.objective.values.argmin())
    assert (runs.alternatives.values[best] == result.alternatives_).all()
    for labels, pair in zip(runs.labels.values, runs.alternatives.values, strict=True):
        shared = [adjusted_rand_score(z, one) for z in pair.T]
        assert (labels == pair[:, int(np.argmin(shared))]).all()


@every
def test_order_and_units_of_rows_play_no_part(model):
    X, one, _ = crossing(7)
    first = clone(model).fit(X, known=one)
    unit = clone(model).fit(100 * X - 3, known=one)
    assert (unit.alternatives_ == first.alternatives_).all()
    if isinstance(model, DecKMeans):
        assert unit.objective_ == pytest.approx(1e4 * first.objective_)
    else:
        shift = X.size * np.log(100) * (2 if isinstance(model, CAMI) else 1)
        assert unit.objective_ == pytest.approx(first.objective_ + shift)
    # Initial rows differ, but the optimum is the same.
    order = np.random.default_rng(0).permutation(60)
    again = clone(model).fit(X[order], known=one[order])
    assert same_pair(again.alternatives_, first.alternatives_[order])
    assert again.objective_ == pytest.approx(first.objective_, rel=1e-3)


@every
def test_degenerate_rows_give_a_result(model):
    X, one, _ = crossing(8)
    with pytest.warns(DegenerateClusterWarning, match="all rows are alike"):
        alike = clone(model).fit(np.full((60, 3), 0.1), known=one)
    assert np.isfinite(alike.objective_) and alike.n_clusters_ == 1
    single = clone(model).set_params(n_clusters=1).fit(X, known=one)
    assert (single.alternatives_ == 0).all() and np.isfinite(single.objective_)
    assert clone(model).set_params(n_clusters=1).fit(X[:1]).labels_.tolist() == [0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in (X[:2], X[:, :1], np.repeat(X[:12], 5, 0), X[np.arange(60) % 2]):
            few = clone(model).set_params(n_clusters=2 if len(rows) < 3 else 3).fit(rows)
            assert np.isfinite(few.membership_).all() and np.isfinite(few.objective_)
            assert set(few.predict(rows)) <= set(few.labels_)
    with pytest.warns(DegenerateClusterWarning, match="fewer than n_clusters=3"):
        clone(model).set_params(n_clusters=3).fit(X[np.arange(60) % 2])


@every
def test_known_that_is_no_labels_is_refused(model):
    X, one, _ = crossing()
    with pytest.raises(ValueError, match="needs known labels; got soft Memberships"):
        clone(model).fit(X, known=Memberships(np.eye(2)[one]))
    with pytest.raises(ValueError, match="continuous known structure is not supported"):
        clone(model).fit(X, known=X[:, :1])
    with pytest.raises(ValueError, match="every row has its own known group"):
        clone(model).fit(X, known=np.arange(60))


def test_weights_compile_once():
    from nrprob.methods.alternatives import cami, conv_em, dec_kmeans

    X, *_ = crossing()
    solvers = (dec_kmeans._solve_restarts, conv_em._solve_restarts, cami._solve_restarts)

    def sizes():
        return [solve._cache_size() for solve in solvers]

    for model in MODELS.values():
        clone(model).fit(X)
    before = sizes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (2, 3, 4):
            clone(MODELS["dec_kmeans"]).set_params(n_clusters=n, lam=0.5, max_iter=50).fit(X[:50])
            clone(MODELS["conv_em"]).set_params(n_clusters=n, lam=0.5, tol=1e-3).fit(X[:40, :2])
            for more in ({"tied": False}, {"covariance": "spherical"}, {"eta": 2.0}):
                clone(MODELS["cami"]).set_params(n_clusters=n, **more).fit(X[:55])
    assert sizes() == before
