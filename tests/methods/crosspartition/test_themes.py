"""Number of themes of CrossPartition, by features that were held out."""

import numpy as np
import pytest
from scipy import sparse

from nrprob import CrossPartition
from nrprob.datasets import make_cross_partition
from nrprob.methods.crosspartition.themes import _LIFT_EXPONENTS, ThemeLabels, ThemeRows
from nrprob.metrics import adjusted_rand_index


def small_themes(seed, n_themes=3):
    """Counts of two subsets with 12 rows each: shared themes, and clusters of a single subset."""
    rng = np.random.default_rng(seed)
    subset, theme = np.repeat([0, 1], 12), np.arange(24) % max(n_themes, 1)
    mask = 2 * subset + rng.permutation(24) % 2
    rates = np.ones((24, 60))
    if n_themes:
        rates[:, :30] += 6 * (np.arange(30) % n_themes == theme[:, None])
    rates[:, 30:] += 6 * (np.arange(30) % 4 == mask[:, None])
    return rng.poisson(5 * rates), theme, subset


def by_definition(rows, mass, share, labels, exponent):
    """Gains of the rows, one cell and one feature at a time."""
    n, m = rows.shape
    n_subsets, k = share.shape[1], labels.max() + 1
    sizes = [sum(mass * share[:, w]) for w in range(n_subsets)]
    profile = [
        sum(mass[i] * share[i, w] * rows[i] for i in range(n)) / sizes[w] for w in range(n_subsets)
    ]
    lift = np.zeros((n_subsets, k, m))
    for w in range(n_subsets):
        for c in range(k):
            members = [i for i in range(n) if labels[i] == c]
            total = sum(mass[i] * share[i, w] for i in members)
            counts = sum((mass[i] * share[i, w] * rows[i] for i in members), np.zeros(m))
            lift[w, c] = (counts + profile[w] / n) / (total + 1 / n) / profile[w]
    gains = np.zeros(n)
    for i in range(n):
        for w in range(n_subsets):
            others = [v for v in range(n_subsets) if v != w]
            product = np.prod(
                [lift[v, labels[i]] ** (exponent * sizes[v] / (1 - sizes[w])) for v in others],
                axis=0,
            )
            predicted = profile[w] * product / sum(profile[w] * product)
            gains[i] += share[i, w] * (rows[i] * np.log(predicted / profile[w])).sum()
    return gains


@pytest.mark.parametrize("soft", [False, True])
def test_gains_are_those_of_the_definition(soft):
    rng = np.random.default_rng(0)
    rows, mass = rng.dirichlet(np.ones(5), 9), rng.dirichlet(np.ones(9))
    share = rng.dirichlet(np.ones(3), 9) if soft else np.eye(3)[np.arange(9) % 3]
    labels = np.array([0, 0, 0, 1, 1, 1, 2, 0, 2])  # the last theme is absent from a subset
    expected = [by_definition(rows, mass, share, labels, e) for e in _LIFT_EXPONENTS]
    best = max(expected, key=lambda gains: mass @ gains)
    for given in (rows, sparse.csr_array(rows)):
        np.testing.assert_allclose(
            ThemeRows(given, mass, share).shared_gains(labels), best, rtol=1e-9
        )


def test_clusters_of_a_single_subset_have_no_gain():
    X, labels = make_cross_partition(random_state=1)
    mass, share = np.full(75, 1 / 75), np.eye(3)[labels[:, 1]]
    rows = X / X.sum(1, keepdims=True)
    data = ThemeRows(rows, mass, share)
    themes, masks = (mass @ data.shared_gains(labels[:, c]) for c in (0, 2))
    assert themes > 0.2 and abs(masks) < 1e-9


@pytest.mark.parametrize("roots", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_coordinates_are_eigenvectors_of_products_between_subsets(soft, roots):
    rng = np.random.default_rng(1)
    rows, mass = rng.dirichlet(np.ones(6), 10), rng.dirichlet(np.ones(10))
    share = rng.dirichlet(np.ones(3), 10) if soft else np.eye(3)[np.arange(10) % 3]
    features, products = np.sqrt(rows) if roots else rows, np.zeros((10, 10))
    means = [np.average(features, axis=0, weights=mass * share[:, w]) for w in range(3)]
    scales = [1 if roots else 1 / np.sqrt(mean) for mean in means]
    for i in range(10):
        for j in range(10):
            for v in range(3):
                for w in {0, 1, 2} - {v}:
                    first = scales[v] * (features[i] - means[v])
                    second = scales[w] * (features[j] - means[w])
                    products[i, j] += share[i, v] * share[j, w] * first @ second
    products *= np.sqrt(np.outer(mass, mass))
    vectors = np.linalg.eigh(products)[1][:, [-1, -2]] / np.sqrt(mass)[:, None]
    for given in (rows, sparse.csr_array(rows)):
        data = ThemeRows(given, mass, share)
        result = data.shared_coordinates(2, np.random.RandomState(0), roots=roots)
        signs = np.sign((result * vectors).sum(0))
        np.testing.assert_allclose(result, signs * vectors, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("target", ["B/B", "B/nB", "nB/B"])
def test_weak_themes_are_found_below_stronger_clusters_of_subsets(target):
    """Themes have 200 counts per feature, and clusters within subsets 900."""
    X, labels = make_cross_partition(target, 200, random_state=4)
    rows = X / X.sum(1, keepdims=True)
    data = ThemeRows(rows, np.full(75, 1 / 75), np.eye(3)[labels[:, 1]])
    result = ThemeLabels(data, 5, np.random.RandomState(0)).find(5)
    assert adjusted_rand_index(labels[:, 0], result) == 1


@pytest.mark.slow
@pytest.mark.contract
def test_the_number_of_themes_is_selected():
    X, theme, subset = small_themes(0)
    model = CrossPartition("auto", random_state=0).fit(X, subsets=subset)
    assert model.n_clusters_ == 3 and adjusted_rand_index(theme, model.labels_) == 1
    assert adjusted_rand_index(theme, model.theme_labels_) == 1
    assert model.membership_.shape == model.predict_proba(X).shape == (24, 3)
    assert (model.predict(X) == model.labels_).all()
    # The memberships are a fixed point of the cycle.
    np.testing.assert_allclose(model.predict_proba(X), model.membership_, atol=1e-5)
    assert (model.trials_.status == "split").any() and model.trials_.growth.isna().all()
    assert [level.n_clusters for level in model.path_] == [1, 2, 3]
    assert model.n_clusters == "auto"
    scores = model.theme_scores_
    within = scores[scores.gain.max() - scores.gain <= scores.error + 1e-9]
    assert within.n_clusters.min() == 3 and scores.n_clusters.max() > 3
    # Rows with probabilities of subsets count in their most probable subset.
    proba = np.eye(2)[subset] * 0.8 + 0.1
    task = CrossPartition(3).prepare(X, None, subsets=proba)
    assert (task.theme_rows.share == np.eye(2)[subset]).all()
    # Clusters of single subsets alone are no themes.
    X, _, subset = small_themes(1, n_themes=0)
    model.set_params(eta=1.0).fit(X, subsets=subset)
    assert model.n_clusters_ == 1 and model.eta_ == 1 and model.labels_.max() == 0


def test_auto_needs_subsets_and_features():
    X, _, subset = small_themes(0)
    with pytest.raises(ValueError, match="n_clusters='auto' needs at least two subsets; got one"):
        CrossPartition("auto").fit(X)
    with pytest.raises(ValueError, match="needs at least two features"):
        CrossPartition("auto").fit(X[:, :1], subsets=subset)
    with pytest.raises(ValueError, match="eta"):
        CrossPartition("auto", eta="best").fit(X, subsets=subset)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["B/B", "B/nB"])
@pytest.mark.parametrize("count", [700, 400])
def test_themes_of_balanced_settings_are_exact(target, count):
    """`python benchmarks/cross_partition_number.py` has more settings and seeds."""
    X, labels = make_cross_partition(target, count, random_state=20)
    model = CrossPartition("auto", random_state=20).fit(X, subsets=labels[:, 1])
    assert model.n_clusters_ == 5
    assert adjusted_rand_index(labels[:, 0], model.labels_) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("count", "lost"), [(300, False), (2000, True)])
def test_clusters_of_a_given_number_are_compared_with_themes(count, lost, recwarn):
    """Strong clusters of single subsets capture the path of splits."""
    X, labels = make_cross_partition(masking_count=count, random_state=0)
    model = CrossPartition(5, random_state=0).fit(X, subsets=labels[:, 1])
    warned = ["the themes of a direct search" in str(w.message) for w in recwarn]
    assert any(warned) == lost
    assert (adjusted_rand_index(labels[:, 0], model.labels_) == 1) == (not lost)
    assert adjusted_rand_index(labels[:, 0], model.theme_labels_) == 1


@pytest.mark.slow
def test_fit_warns_if_the_clusters_lose_the_themes():
    """Weak themes of unequal sizes are no fixed point of the cycle."""
    X, labels = make_cross_partition("nB/B", 400, random_state=500)
    model = CrossPartition("auto", eta=1.5, random_state=500)
    with pytest.warns(UserWarning, match="predict other subsets less well .*; see theme_labels_"):
        model.fit(X, subsets=labels[:, 1])
    assert model.n_clusters_ == 5
    assert adjusted_rand_index(labels[:, 0], model.theme_labels_) == 1
    assert adjusted_rand_index(labels[:, 0], model.labels_) < 0.9
