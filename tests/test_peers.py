"""Agreement with independent implementations, where they overlap and are installed."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import ward
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris, load_wine
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

from nrprob import IB, information
from nrprob.datasets import make_multinomial_2d


@pytest.fixture(scope="module")
def documents():
    """300 rows of 40 draws from four distributions over 20 symbols."""
    rng = np.random.default_rng(0)
    theta = rng.dirichlet(np.full(20, 0.5), 4)
    topic = rng.integers(0, 4, 300)
    return np.array([rng.multinomial(40, theta[t]) for t in topic]), topic


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.smoke
def test_sequential_bottleneck_of_sib(documents):
    sib = pytest.importorskip("sib")
    X, _ = documents
    theirs = sib.SIB(n_clusters=4, n_init=10, random_state=0, max_iter=50).fit(X.astype(float))
    ours = IB(4, solver="sequential", random_state=0).fit(X)
    assert adjusted_rand_score(theirs.labels_, ours.labels_) > 0.99
    # Their score is I(C;Y) with equal weights of rows, in bits.
    p = X / X.sum(1, keepdims=True) / len(X)
    joint = np.stack([p[ours.labels_ == c].sum(0) for c in range(4)])
    mine = information.mutual_information(joint)
    total = information.entropy(p.sum(0))
    assert total - ours.objective_ / len(X) == pytest.approx(mine, rel=1e-9)
    joint = np.stack([p[np.asarray(theirs.labels_) == c].sum(0) for c in range(4)])
    assert mine >= information.mutual_information(joint) - 1e-9


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("beta", [1.5, 4.0, 20.0])
def test_curve_of_the_bottleneck_by_dit(beta):
    """I(C;X) and I(C;Y) on a small alphabet, by a generic optimiser of the Lagrangian."""
    dit = pytest.importorskip("dit")
    from dit.rate_distortion.information_bottleneck import InformationBottleneck

    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.full(4, 0.6), 5) / 5
    outcomes = [f"{i}{j}" for i in range(5) for j in range(4)]
    distribution = dit.Distribution(outcomes, p.ravel())
    theirs = InformationBottleneck(distribution, beta=beta, rvs=[[0], [1]], bound=3)
    theirs.optimize(niter=5)
    ours = IB(3, beta=beta, features="multinomial", tol=1e-7, random_state=0).fit(p * 5)
    r = ours.membership_
    rate = information.mutual_information(r / 5)
    relevance = information.mutual_information(r.T @ p)
    x = theirs.construct_distribution(theirs._optima.copy())
    bound = dit.multivariate.coinformation(x, [[0], [2]]) - beta * dit.multivariate.coinformation(
        x, [[1], [2]]
    )
    mine = (rate - beta * relevance) / np.log(2)
    assert mine <= bound + 1e-4
    assert ours.objective_ / 5 == pytest.approx(
        rate / beta - relevance + information.entropy(p.sum(0)), abs=1e-9
    )


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("k", [2, 3])
def test_gaussian_bottleneck_is_k_means_in_the_limit(k):
    for load in (load_iris, load_wine):
        X = StandardScaler().fit_transform(load().data)
        theirs = KMeans(k, n_init=20, random_state=0).fit(X)
        for solver in ("anneal", "batched"):
            ours = IB(k, solver=solver, n_init=10, random_state=0).fit(X)
            # The variance is the mean variance of the columns, 1 here.
            assert 2 * ours.objective_ <= theirs.inertia_ * (1 + 1e-4)
            mean = np.stack([X[ours.labels_ == c].mean(0) for c in range(k)])
            nearest = ((X[:, None] - mean) ** 2).sum(-1).argmin(1)
            assert (nearest == ours.labels_).mean() > 0.99
            if 2 * ours.objective_ > theirs.inertia_ * (1 - 1e-6):
                assert adjusted_rand_score(ours.labels_, theirs.labels_) > 0.98


def test_beta_one_is_a_mixture_of_unit_gaussians():
    """At beta 1 the update is EM with free weights and a fixed spherical covariance of 1."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(c, 1, (100, 2)) for c in ((0, 0), (5, 0), (0, 5))])
    X = (X - X.mean(0)) / np.sqrt(X.var(0).mean())
    scale = 1.6  # different from the variance that scikit-learn would estimate
    theirs = GaussianMixture(3, covariance_type="spherical", random_state=0, n_init=5).fit(X)
    ours = IB(3, beta=1 / theirs.covariances_.mean(), tol=1e-6, random_state=0).fit(X)
    assert adjusted_rand_score(theirs.predict(X), ours.labels_) > 0.98
    fixed = IB(3, beta=scale, tol=1e-6, random_state=0).fit(X)
    # A fixed point of EM at this variance: the E-step of its own M-step.
    r = fixed.membership_
    mean = r.T @ X / r.sum(0)[:, None]
    log_r = np.log(r.mean(0)) - scale * ((X[:, None] - mean) ** 2).sum(-1) / 2
    again = np.exp(log_r - log_r.max(1, keepdims=True))
    again /= again.sum(1, keepdims=True)
    np.testing.assert_allclose(again, r, atol=1e-5)


def test_agglomerative_gaussian_bottleneck_is_ward():
    X = StandardScaler().fit_transform(load_wine().data)[:60]
    X = X / np.sqrt(X.var(0).mean())
    tree = IB(2, solver="agglomerative").fit(X).linkage_
    # Ward's height is the square root of twice the increase of the scatter; ours is half of this
    # increase.
    np.testing.assert_allclose(np.diff(tree[:, 2], prepend=0), ward(X)[:, 2] ** 2 / 4, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.contract
def test_agglomerative_sequential_and_annealed_meet(documents):
    X, _ = documents
    values = [
        IB(4, solver=solver, random_state=0).fit(X).objective_
        for solver in ("anneal", "sequential", "batched")
    ]
    np.testing.assert_allclose(values, values[0], rtol=1e-6)
    tree = IB(4, solver="agglomerative").fit(X)
    assert tree.objective_ >= min(values) - 1e-9
    assert tree.objective_ == pytest.approx(min(values), rel=0.02)


@pytest.mark.slow
@pytest.mark.contract
def test_multinomial_plane_is_solved_by_all(subtests=None):
    X, labels = make_multinomial_2d(150, 2, 300, orthogonality=0, random_state=0)
    for solver in ("anneal", "sequential", "batched", "agglomerative"):
        model = IB(2, solver=solver, random_state=0).fit(X)
        assert adjusted_rand_score(model.labels_, labels[:, 0]) == 1
