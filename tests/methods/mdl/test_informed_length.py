"""Terms of the joint description length: recomputation, brute force, enumeration, Kraft sums."""

import itertools
import math

import numpy as np
import pytest

from nrprob.links import Components, Pairs
from nrprob.methods.mdl import soft_words
from nrprob.methods.mdl.count_tables import CountTable, one_hot
from nrprob.methods.mdl.feature_lengths import (
    ClusterCovarianceLengths,
    CountLengths,
    IsotropicLengths,
    PooledLengths,
)
from nrprob.methods.mdl.informed_fit import initial_labels, residual_correlations, search_labels
from nrprob.methods.mdl.informed_length import InformedLength, Target
from nrprob.methods.mdl.informed_search import CellObjective
from nrprob.methods.mdl.label_codes import code_words, flags_length
from nrprob.methods.mdl.label_forests import (
    edge_length,
    forest_choice,
    root_length,
    shortest_forest,
)
from nrprob.methods.mdl.linked_words import LinkedWords, transmission_order
from nrprob.methods.mdl.soft_words import SoftWords

BOUNDS = (1e-3, 10.0)
NONE = np.zeros((0, 2), np.int64)
KINDS = (
    "isotropic",
    "per cluster",
    "pooled",
    "diagonal",
    "full",
    "full_cluster",
    "binary",
    "count",
)


def make_features(kind, rng, unit, groups, k, d=3):
    """Lengths of random features (n, d) of a kind."""
    x = rng.normal(size=(unit.size, d))
    x = (x - x.mean(0)) / np.sqrt(x.var(0).sum())
    if kind in ("isotropic", "per cluster"):
        return IsotropicLengths(x, unit, k, d / 2, BOUNDS, kind == "isotropic")
    if kind == "full_cluster":
        return ClusterCovarianceLengths(x, unit, groups, k)
    if kind == "binary":
        return CountLengths((x > 0).astype(float), unit, groups, k, "bernoulli")
    if kind == "count":
        counts = rng.poisson(2, size=x.shape).astype(float)
        return CountLengths(counts, unit, groups, k, "multinomial")
    covariance = "isotropic" if kind == "pooled" else kind
    return PooledLengths(x, unit, groups, k, covariance, d / 2, BOUNDS)


@pytest.mark.parametrize("kind", KINDS)
def test_changes_of_features_are_differences(kind):
    for seed in range(6):
        rng, n, k = np.random.default_rng(seed), 30, 3
        unit = np.arange(n)
        if seed % 2:  # units of two and three samples
            unit[[3, 20]], unit[7] = unit[1], unit[2]
            unit = np.unique(unit, return_inverse=True)[1]
        groups = rng.integers(3, size=n) if seed % 3 else np.zeros(n, int)
        features = make_features(kind, rng, unit, groups, k)
        z = rng.integers(k - (seed == 5), size=unit.max() + 1)  # or an empty cluster
        if kind == "full_cluster":
            features.fit_effects(z)
        states = np.stack([z, k - 1 - z])
        change, totals = features.changes(states)[0], features.totals(states)
        assert (change[np.arange(z.size), z] == 0).all()
        for unit_index, cluster in np.ndindex(change.shape):
            moved = z.copy()
            moved[unit_index] = cluster
            after = features.totals(moved[None])[0]
            if abs(after) < 1e5:  # no cluster without a covariance
                assert change[unit_index, cluster] == pytest.approx(after - totals[0], abs=1e-8)


@pytest.mark.parametrize("confounded", [False, True])
def test_effects_of_groups_are_least_squares(confounded):
    rng, n, k = np.random.default_rng(0), 40, 3
    x, groups, z = rng.normal(size=(n, 2)), rng.integers(3, size=n), rng.integers(k, size=n)
    if confounded:
        z = groups
    features = PooledLengths(x, np.arange(n), groups, k, "full", 1.0, BOUNDS)
    design = np.concatenate([np.eye(3)[groups], np.eye(k)[z]], 1)
    residuals = x - design @ np.linalg.lstsq(design, x, rcond=None)[0]
    np.testing.assert_allclose(features.residual_scatter(z), residuals.T @ residuals, atol=1e-9)
    means, effects = features.estimates(z)
    np.testing.assert_allclose(x - means[z] - effects[groups], residuals, atol=1e-9)
    np.testing.assert_allclose(effects[groups].sum(0), 0, atol=1e-9)


def test_full_covariance_is_invariant_under_linear_maps():
    rng, n = np.random.default_rng(1), 60
    x, unit, groups = rng.normal(size=(n, 3)), np.arange(n), rng.integers(2, size=n)
    states, matrix = rng.integers(3, size=(2, n)), rng.normal(size=(3, 3))
    first, second = (
        np.diff(PooledLengths(y, unit, groups, 3, "full", 1.0, BOUNDS).totals(states))[0]
        for y in (x, x @ matrix)
    )
    # The ridge of single features is the only difference.
    assert first == pytest.approx(second, rel=1e-3)


# Joint codes of the labels


def is_forest(parents):
    for v in range(len(parents)):
        seen, u = set(), v
        while u >= 0:
            if u in seen:
                return False
            seen.add(u)
            u = parents[u]
    return True


@pytest.mark.parametrize("n_views", [1, 2, 3, 4])
def test_the_shortest_forest_is_that_of_all(n_views):
    choices = [[-1], *([-1, *(u for u in range(n_views) if u != v)] for v in range(1, n_views))]
    forests = [p for p in itertools.product(*choices) if is_forest(p)]
    assert math.log(len(forests)) == pytest.approx(forest_choice(n_views))
    for seed in range(30):
        rng = np.random.default_rng(seed)
        roots, edges = 2 * rng.random(n_views), 2 * rng.random((n_views, n_views))

        def length(parents, roots=roots, edges=edges):
            return sum(roots[v] if u < 0 else edges[u, v] for v, u in enumerate(parents))

        found = shortest_forest(roots, edges)
        assert is_forest(found.tolist()) and found[0] == -1
        assert length(found) == pytest.approx(min(map(length, forests)))


def test_an_edge_from_one_cluster_is_no_edge():
    labels = np.array([0, 0, 1, 1, 1])
    roots = [root_length(np.array([5.0]), 1), root_length(np.bincount(labels), 2)]
    edge = edge_length(np.bincount(labels)[None].astype(float), 2)
    assert edge == pytest.approx(roots[1])
    edge -= 1e-12  # rounding may go either way
    assert (shortest_forest(np.array(roots), np.array([[0, edge], [0, 0]])) == -1).all()


def test_codes_of_labels_classes_and_features_are_complete():
    n, sizes = 4, (2, 3)
    total = {"forest": 0.0, "linked": 0.0, "table": 0.0}
    for first in itertools.product(range(2), repeat=n):
        for second in itertools.product(range(3), repeat=n):
            labels = np.array([first, second]).T
            table = np.zeros(sizes)
            np.add.at(table, (labels[:, 0], labels[:, 1]), 1)
            target = Target(np.arange(n))
            length = InformedLength([], sizes, (False, False), "forest", target)
            for parents in ([-1, -1], [-1, 0]):
                length.parents = np.array(parents)
                total["forest"] += math.exp(-length.word_length(labels))
            cells = InformedLength([], sizes, (False, False), "table", target)
            total["table"] += math.exp(-cells.word_length(labels))
            if first[0] == first[1]:  # one word for two linked samples
                linked = InformedLength(
                    [], sizes, (False, False), "forest", Target(np.array([0, 0, 1, 2]))
                )
                for parents in ([-1, -1], [-1, 0]):
                    linked.parents = np.array(parents)
                    total["linked"] += math.exp(-linked.word_length(labels))
    assert list(total.values()) == pytest.approx([1, 1, 1])
    z = np.array([0, 1, 1, 0])
    classes = sum(
        math.exp(-CountTable(one_hot(np.array(y), 3), 2, np.array([3])).total(z))
        for y in itertools.product(range(3), repeat=n)
    )
    assert classes == pytest.approx(1)
    # Binary features given clusters and known groups.
    groups = np.array([0, 0, 1, 1])
    binary = sum(
        math.exp(
            -CountLengths(
                np.array(x, float).reshape(n, 1), np.arange(n), groups, 2, "bernoulli"
            ).totals(z[None])[0]
        )
        for x in itertools.product(range(2), repeat=n)
    )
    assert binary == pytest.approx(1)


# The whole length


def make_length(seed, mode, code, n=24):
    """A length with random features and side information, and permitted labels (n, V)."""
    rng = np.random.default_rng(seed)
    n_views = 1 + seed % 3
    sizes = tuple(rng.integers(2, 4, size=n_views).tolist())
    used = tuple(map(bool, rng.integers(2, size=n_views)))
    groups, unit, words, given = rng.integers(2, size=n), np.arange(n), None, None
    links, apart = np.array([[0, 1], [2, 3], [1, 4]]), np.array([[0, 5], [2, 6], [6, 7]])
    if mode in ("linked", "cannot"):
        unit = Components(n, [Pairs(links, "")], []).node
    n_units = int(unit.max()) + 1
    if mode == "cannot":
        order = transmission_order(n_units, NONE, unit[apart])
        words = LinkedWords(n_units, unit[apart], order, sizes[0])
    if mode == "soft":
        words = SoftWords(n, links, apart, transmission_order(n, links, apart), sizes[0])
    if mode == "given":
        given = groups
    classes = rng.integers(-1, 2, size=n) if seed % 2 else None
    kinds = ("isotropic", "full", "binary", "pooled")
    features = [
        make_features(kinds[rng.integers(4)], rng, np.arange(n) if v else unit, groups, k)
        for v, k in enumerate(sizes)
    ]
    length = InformedLength(features, sizes, used, code, Target(unit, words, classes, given))
    labels = np.stack([rng.integers(k, size=n) for k in sizes], 1)
    z = labels[length.target.first, 0]
    if mode == "cannot":
        z = words.separate(z, np.zeros((n_units, sizes[0])))
    labels[:, 0] = z[unit]
    length.refit(labels)
    return length, labels


MODES = [("plain", "table"), ("plain", "independent"), ("plain", "forest")]
MODES += [(mode, "forest") for mode in ("linked", "cannot", "soft", "given")]


@pytest.mark.parametrize(("mode", "code"), MODES)
def test_differences_of_moves_in_a_view_are_exact(mode, code):
    for seed in range(6):
        length, labels = make_length(seed, mode, code)
        if code == "forest" and length.n_views == 3 and seed % 2:
            length.parents = np.array([-1, 0, 1])
        total = length.total(labels)
        for v in range(length.n_views):
            objective, z = length.view_objective(v, labels), length.unit_labels(v, labels)
            change = objective.differences(z[None])[0]
            for unit in range(0, z.size, 5):
                for cluster in range(length.sizes[v]):
                    moved, new = labels.copy(), z.copy()
                    new[unit] = cluster
                    moved[:, v] = length.sample_labels(v, new)
                    if np.isfinite(change[unit, cluster]):
                        expected = length.total(moved) - total
                        assert change[unit, cluster] == pytest.approx(expected, abs=1e-8)
                    else:
                        assert mode == "cannot"


@pytest.mark.parametrize(("mode", "code"), MODES[2:] + MODES[:1])
def test_differences_of_moves_in_two_views_are_exact(mode, code):
    for seed in (1, 4, 7):  # two views
        length, labels = make_length(seed, mode, code)
        length.parents = np.array([-1, 0 if code == "forest" else -1])
        cells = CellObjective(length, (0, 1), labels)
        z = cells.cells(labels)[cells.samples]
        assert (cells.labels(z) == labels).all()
        change, before = cells.differences(z[None])[0], length.total(labels)
        finite = np.argwhere(np.isfinite(change))
        assert len(finite) > z.size
        for sample, cell in finite[::7]:
            new = z.copy()
            new[sample] = cell
            expected = length.total(cells.labels(new)) - before
            assert change[sample, cell] == pytest.approx(expected, abs=1e-8)
            assert cells.totals(new[None])[0] - cells.totals(z[None])[0] == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("seed", range(8))
def test_no_labels_of_tiny_data_are_shorter(seed):
    rng, n = np.random.default_rng(700 + seed), 6
    x = rng.normal(size=(n, 2)) + 2 * rng.integers(2, size=n)[:, None]
    x = (x - x.mean(0)) / np.sqrt(x.var(0).sum())
    groups = np.array([0, 0, 0, 1, 1, 1]) if seed % 2 else np.zeros(n, int)
    unit = np.array([0, 0, 1, 2, 3, 4]) if seed % 3 == 1 else np.arange(n)
    words = None
    if seed % 3 == 2:
        words = LinkedWords(n, np.array([[0, 1], [1, 2]]), np.arange(n), 2)
    classes = np.array([0, -1, 1, -1, 0, -1]) if seed % 4 > 1 else None
    features = [
        PooledLengths(x, unit, groups, 2, "isotropic", 1.0, BOUNDS),
        CountLengths((rng.random((n, 3)) < 0.5) * 1.0, np.arange(n), groups, 2, "bernoulli"),
    ]
    code = "table" if seed % 3 == 0 else "forest"
    length = InformedLength(features, (2, 2), (True, True), code, Target(unit, words, classes))
    best = np.inf
    for both in itertools.product(itertools.product((0, 1), repeat=n), repeat=2):
        labels = np.array(both).T
        joined = labels[length.target.first, 0][unit] == labels[:, 0]
        if joined.all() and (words is None or (labels[[0, 1], 0] != labels[[1, 2], 0]).all()):
            length.refit(labels)
            best = min(best, length.total(labels))
    starts = initial_labels(length, 4, np.random.RandomState(seed))
    result, _ = search_labels(length, starts, 1e-9, 100)
    assert result.total == pytest.approx(best, abs=1e-7)
    assert all(a > b for a, b in itertools.pairwise(result.trace))


@pytest.mark.parametrize("seed", range(6))
def test_soft_pairs_have_the_shortest_of_their_codes(seed):
    rng, n, k = np.random.default_rng(seed), 12, 3
    links, apart = (np.unique(np.sort(rng.integers(n, size=(6, 2)), 1), axis=0) for _ in "ab")
    links, apart = (pairs[pairs[:, 0] != pairs[:, 1]] for pairs in (links, apart))
    order = transmission_order(n, links, apart)
    words = SoftWords(n, links, apart, order, k)
    z = np.concatenate([rng.integers(k, size=(20, n)), np.zeros((1, n), int)])
    for labels, total in zip(z, words.totals(z), strict=True):
        same = [labels[pairs[:, 0]] == labels[pairs[:, 1]] for pairs in (links, apart)]
        lengths = []
        for link_on, apart_on in itertools.product((False, True), repeat=2):
            kept = links[same[0] & link_on], apart[~same[1] & apart_on]
            flags = flags_length(len(kept[0]), len(links)) + flags_length(len(kept[1]), len(apart))
            lengths.append(code_words(labels, k, order, *kept).length + flags)
        assert total == pytest.approx(min(lengths), abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_changes_of_soft_words_are_differences(seed, monkeypatch):
    rng, n, k = np.random.default_rng(seed), 16, 3
    z = rng.integers(k, size=(3, n))
    links, apart, edges = (
        np.unique(np.sort(rng.integers(n, size=(7, 2)), 1), axis=0) for _ in "abc"
    )
    links, apart = (pairs[pairs[:, 0] != pairs[:, 1]] for pairs in (links, apart))
    edges = edges[(z[:, edges[:, 0]] != z[:, edges[:, 1]]).all(0)]
    order = transmission_order(n, links, apart, edges)
    words = SoftWords(n, links, apart, order, k, edges)
    if len(edges):  # without soft pairs, the words are those of hard cannot-links
        alone = SoftWords(n, NONE, NONE, order, k, edges)
        assert alone.totals(z) == pytest.approx(LinkedWords(n, edges, order, k).totals(z))
    change, before = words.changes(z), words.totals(z)
    after = np.empty_like(change)
    for unit, cluster in np.ndindex(n, k):
        moved = z.copy()
        moved[:, unit] = cluster
        after[:, unit, cluster] = words.totals(moved)
    assert np.isinf(after).any() == (len(edges) > 0)
    np.testing.assert_allclose(change, after - before[:, None, None], atol=1e-8)
    # At the present weights, changes are upper bounds.
    monkeypatch.setattr(soft_words, "_EXACT", 0)
    bound = words.changes(z)
    finite = np.isfinite(change)
    assert np.array_equal(finite, np.isfinite(bound))
    excess = bound[finite] - change[finite]
    assert excess.min() > -1e-8 and 1e-4 < excess.max() < 2


def test_cannot_links_without_an_open_cluster_are_refused():
    clique = np.array([[0, 1], [1, 2], [0, 2]])
    words = LinkedWords(3, clique, np.arange(3), 2)
    assert words.separate(np.zeros(3, int), np.zeros((3, 2))) is None
    features = IsotropicLengths(np.eye(3), np.arange(3), 2, 1.0, BOUNDS, shared=True)
    target = Target(np.arange(3), words)
    length = InformedLength([features], (2,), (False,), "independent", target)
    with pytest.raises(ValueError, match="undecided .* got 2 clusters"):
        initial_labels(length, 3, np.random.RandomState(0))


def test_correlations_of_residuals_are_canonical():
    rng = np.random.default_rng(0)
    x, other = rng.normal(size=(500, 3)), rng.normal(size=(500, 2))
    result = residual_correlations([x, x @ rng.normal(size=(3, 3)), other])
    assert result[0, 1] == pytest.approx(1)
    # The first canonical variates have the largest correlation of all linear combinations.
    best = max(
        abs(np.corrcoef(x @ a, other @ b)[0, 1])
        for a, b in zip(rng.normal(size=(2000, 3)), rng.normal(size=(2000, 2)), strict=True)
    )
    assert best - 1e-9 <= result[0, 2] < best + 0.02
