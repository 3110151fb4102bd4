"""Views with side information: planted structure, and necessity of every source."""

import itertools

import numpy as np
import pytest
from scipy.special import xlogy

from nrprob.batch.tables import generate_set
from nrprob.codelength import multinomial_complexity
from nrprob.datasets import make_essential_sources, make_informed_views
from nrprob.datasets.informed_views import FACTORS, _cross_factors
from nrprob.metrics import contingency


@pytest.mark.parametrize(
    ("n", "k", "n_groups", "n_views", "d"), [(160, 3, 2, 2, 4), (50, 4, 3, 3, 3), (7, 1, 1, 1, 1)]
)
def test_sizes_are_balanced_and_types_are_stated(n, k, n_groups, n_views, d):
    views, known, must_link, y, clusters = make_informed_views(
        n, k, n_views=n_views, n_features=d, n_groups=n_groups, n_must_link=6, n_labels=5,
        random_state=0,
    )  # fmt: skip
    assert [x.shape for x in views] == [(n, d)] * n_views and clusters.shape == (n, n_views)
    assert (clusters == clusters[:, :1]).all()
    assert all(a.dtype == np.int64 for a in (known, must_link, y, clusters))
    for labels, size in ((clusters[:, 0], k), (known, n_groups)):
        counts = np.bincount(labels)
        assert counts.size == size and np.ptp(counts) <= 1
    labelled = y >= 0
    assert labelled.sum() == 5 and (y[labelled] == clusters[labelled, 0]).all()
    assert (y[~labelled] == -1).all() and must_link.shape == (6, 2)


def test_means_are_corners_and_group_shifts_at_the_stated_distances():
    k, d, sizes = 4, 5, {"n_samples": 60, "n_clusters": 4, "n_features": 5, "n_groups": 3}
    plain = make_informed_views(**sizes, separation=0, group_shift=0, random_state=1)
    for name, value in (("separation", 2.5), ("group_shift", 3.0)):
        data = make_informed_views(
            **sizes | {"separation": 0, "group_shift": 0} | {name: value}, random_state=1
        )
        labels = data.clusters[:, 0] if name == "separation" else data.known
        assert all((a == b).all() for a, b in zip(data[1:], plain[1:], strict=True))
        for x, noise in zip(data.views, plain.views, strict=True):
            # The noise is the same, so differences are exact means.
            means = np.stack([(x - noise)[labels == c].mean(0) for c in np.unique(labels)])
            np.testing.assert_allclose(x - noise, means[labels], atol=1e-12)
            if name == "group_shift":
                steps = np.diff(means, axis=0)
                np.testing.assert_allclose(np.linalg.norm(steps, axis=1), 3)
                np.testing.assert_allclose(steps[0], steps[1])
                np.testing.assert_allclose(means.sum(0), 0, atol=1e-12)
            else:
                corners = means / 2.5
                np.testing.assert_allclose(corners, corners.round(), atol=1e-12)
                assert set(corners.round().ravel()) == {0, 1} and corners.shape == (k, d)
                assert sorted(corners.round()[:, : k - 1].sum(1)) == [0, 1, 1, 1]
                assert (corners.round()[:, : k - 1].sum(0) == 1).all()


def test_noise_is_standard_normal_and_independent_of_clusters_and_groups():
    data = make_informed_views(20_000, separation=0, group_shift=0, random_state=2)
    x = np.hstack(data.views)
    np.testing.assert_allclose(np.cov(x.T), np.eye(8), atol=6 * np.sqrt(2 / 20_000))
    cells = contingency(data.clusters[:, 0], data.known)
    assert np.abs(x.mean(0)).max() < 6 / np.sqrt(20_000)
    np.testing.assert_allclose(cells, 20_000 / 6, atol=6 * np.sqrt(20_000 / 6))
    # Directions and the order of the corners differ between views.
    base, shifted = (
        make_informed_views(200, separation=s, group_shift=1, random_state=2) for s in (0, 1)
    )
    first, second = (a - b for a, b in zip(shifted.views, base.views, strict=True))
    assert (first.round(9) != second.round(9)).any()


@pytest.mark.parametrize("share", [0.0, 1 / 3, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_must_links_join_clusters_in_the_stated_share_only(share, seed):
    data = make_informed_views(30, 4, n_must_link=30, wrong_links=share, random_state=seed)
    first, second = data.must_link.T
    assert (first != second).all() and np.unique(first).size == 30
    clusters = data.clusters[:, 0]
    assert (clusters[first] != clusters[second]).sum() == round(30 * share)


def test_partners_of_must_links_are_uniform():
    within, between = np.zeros((6, 6)), np.zeros((6, 6))
    for seed in range(1500):
        for table, share in ((within, 0), (between, 1)):
            data = make_informed_views(6, 2, n_must_link=6, n_labels=0, wrong_links=share,
                                       random_state=seed)  # fmt: skip
            # Positions of the samples: the three of one cluster come first.
            rank = np.argsort(np.argsort(data.clusters[:, 0], kind="stable"), kind="stable")
            np.add.at(table, tuple(rank[data.must_link].T), 1)
    same = np.kron(np.eye(2), np.ones((3, 3))) > 0
    assert (within[~same | np.eye(6, dtype=bool)] == 0).all() and (between[same] == 0).all()
    np.testing.assert_allclose(within[same & ~np.eye(6, dtype=bool)], 750, atol=6 * np.sqrt(375))
    np.testing.assert_allclose(between[~same], 500, atol=6 * np.sqrt(1000 / 3))


def test_factors_are_crossed_and_effects_are_exact():
    data = make_essential_sources(random_state=3)
    factors = _cross_factors(np.random.RandomState(3))
    answer, first, second, pairs, labels, groups = factors.T
    assert (np.bincount(factors @ 2 ** np.arange(6)) == 3).all() and factors.shape == (192, 6)
    assert (data.clusters == answer[:, None]).all() and (data.known == groups).all()
    signs = 2 * factors - 1
    expected = np.sqrt([16, 18.5, 16.3, 16.3])
    for x, competitor in zip(data.views, ("first", "second"), strict=True):
        effects = 2 * signs.T @ x / 192  # differences of the means of two levels
        table = np.zeros((6, 4))
        for j, name in enumerate(("answer", competitor, "pairs", "labels")):
            table[FACTORS.index(name), j] = expected[j]
        np.testing.assert_allclose(effects[:5], table[:5], atol=1e-12)
        np.testing.assert_allclose(np.abs(effects[5]), 6)
        np.testing.assert_allclose(x.mean(0), 0, atol=1e-12)
        residual = x - signs @ effects / 2
        np.testing.assert_allclose(residual.std(0), 1, atol=6 / np.sqrt(2 * 185))
    # Every must-link differs in one factor only, and labels agree with all factors but one.
    left, right = factors[data.must_link.T]
    assert ((left != right) == (np.array(FACTORS) == "pairs")).all()
    assert np.unique(data.must_link).size == 30
    labelled = data.y >= 0
    assert labelled.sum() == 10 and (data.y[labelled] == answer[labelled]).all()
    assert all((z[labelled] == answer[labelled]).all() for z in (first, second, pairs, groups))
    assert 0 < (labels[labelled] != answer[labelled]).sum() < 10


def label_words(z, must_link, given=None):
    """Code of balanced labels without complexities, with one word per disjoint pair."""
    keep = np.ones(z.size, bool)
    if must_link is not None:
        if (z[must_link[:, 0]] != z[must_link[:, 1]]).any():
            return np.inf
        keep[must_link[:, 1]] = False
    rows = np.zeros_like(z) if given is None else given
    table = contingency(rows[keep], z[keep])
    return xlogy(table.sum(1), table.sum(1)).sum() - xlogy(table, table).sum()


def description_length(views, clusters, known, must_link, y):
    """Length of two clusters per view with pooled isotropic covariance, up to constants."""
    total = label_words(clusters[0], must_link)
    if len(clusters) == 2:
        total += label_words(clusters[1], None, clusters[0])
    for x, z in zip(views, clusters, strict=True):
        design = np.eye(2)[z] if known is None else np.hstack([np.eye(2)[z], np.eye(2)[known]])
        residual = x - design @ np.linalg.lstsq(design, x, rcond=None)[0]
        total += x.size / 2 * np.log((residual**2).mean())
    if y is not None:
        for k in range(2):
            counts = np.bincount(y[(clusters[0] == k) & (y >= 0)], minlength=2)
            n = counts.sum()
            total += xlogy(n, n) - xlogy(counts, counts).sum() + multinomial_complexity(2, n)
    return total


@pytest.mark.parametrize(
    ("removed", "winner"),
    [
        (None, ("answer", "answer")),
        ("view 2", ("first",)),
        ("view 1", ("second",)),
        ("pairs", ("pairs", "pairs")),
        ("labels", ("labels", "labels")),
        ("known", ("groups", "groups")),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_every_source_excludes_a_competitor(removed, winner, seed):
    data = make_essential_sources(random_state=seed)
    factors = dict(zip(FACTORS, _cross_factors(np.random.RandomState(seed)).T, strict=True))
    views = [x for v, x in enumerate(data.views) if removed != f"view {v + 1}"]
    known = None if removed == "known" else data.known
    must_link = None if removed == "pairs" else data.must_link
    y = None if removed == "labels" else data.y
    lengths = {
        names: description_length(views, [factors[f] for f in names], known, must_link, y)
        for names in itertools.product(FACTORS, repeat=len(views))
    }
    assert min(lengths, key=lengths.get) == winner


@pytest.mark.parametrize("make", [make_informed_views, make_essential_sources])
def test_seeds_repeat(make):
    data, again, other = (make(random_state=seed) for seed in (5, 5, 6))
    for a, b in zip([*data.views, *data[1:]], [*again.views, *again[1:]], strict=True):
        np.testing.assert_array_equal(a, b)
    assert (data.views[0] != other.views[0]).any() and (data.must_link != other.must_link).any()


def test_tables_of_model_files_hold_all_views_and_the_known_groups():
    data = make_informed_views(n_views=3, random_state=4)
    table = generate_set("make_informed_views", {"n_views": 3}, 4)
    np.testing.assert_array_equal(table.X, np.hstack(data.views))
    assert [*table.labelings] == ["known", "partition_0", "partition_1", "partition_2"]
    np.testing.assert_array_equal(table.labelings["known"], data.known)
    np.testing.assert_array_equal(table.labelings["partition_2"], data.clusters[:, 2])


def test_bad_parameters_are_refused():
    for arguments, what in (
        ({"n_samples": 0}, "n_samples must be at least 1"),
        ({"n_samples": 3, "n_clusters": 4}, "n_clusters must be at least 1 and at most 3"),
        ({"n_clusters": 6}, "n_features must be at least n_clusters - 1; got 4 for 6 clusters"),
        ({"n_groups": 0}, "n_groups must be at least 1 and at most 160"),
        ({"n_must_link": 161}, "n_must_link must be at least 0 and at most 160"),
        ({"n_labels": -1}, "n_labels must be at least 0"),
        ({"separation": float("nan")}, "separation must be at least 0"),
        ({"group_shift": -1.0}, "group_shift must be at least 0"),
        ({"wrong_links": 1.5}, "wrong_links must lie between 0 and 1"),
        ({"n_clusters": 1, "wrong_links": 0.5}, "wrong must-links join two clusters"),
        ({"n_samples": 4, "n_must_link": 1, "n_labels": 0}, "clusters of two samples or more"),
    ):
        with pytest.raises(ValueError, match=what):
            make_informed_views(**arguments)
    with pytest.raises(TypeError, match="n_views must be an integer"):
        make_informed_views(n_views=2.0)


def test_numbers_of_numpy_are_accepted():
    with np.errstate(over="raise"):
        data = make_informed_views(
            np.int32(20), separation=np.float32(0.5), group_shift=np.float32(2), random_state=7
        )
    plain = make_informed_views(20, separation=0.5, group_shift=2, random_state=7)
    np.testing.assert_allclose(data.views[0], plain.views[0], rtol=1e-12)
