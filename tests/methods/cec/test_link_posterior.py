"""Posterior of units under cannot-links: comparison with an enumeration of all labels."""

import itertools
import warnings

import jax
import numpy as np
import pytest
from scipy.special import logsumexp

from nrprob.links import InfeasibleConstraints
from nrprob.methods.cec import link_posterior, must_link_components
from nrprob.settings import standard

N, K, ROOM = 7, 3, 8  # rows, clusters, and rows with padding
NONE = np.zeros((0, 2), int)
TOLD = np.array([0, 0, 1, -1, 1, -1, -1])
MUST = np.array([[3, 5]])
APART = np.array([[3, 6]])
TOUCHING = np.array([[3, 6], [0, 3], [2, 6]])
# Cases: must-links, cannot-links, labels, and which links the labels imply.
CASES = {
    "nothing": (NONE, NONE, np.full(N, -1), "both"),
    "pairs": (MUST, TOUCHING, np.full(N, -1), "both"),
    "together": (MUST, APART, TOLD, "must"),
    "both": (MUST, APART, TOLD, "both"),
    "apart": (MUST, APART, TOLD, "cannot"),
    "three classes apart": (NONE, NONE, np.array([0, 0, 1, 1, 1, 2, 2]), "cannot"),
    "apart, and more": (MUST, TOUCHING, TOLD, "cannot"),
}


@pytest.fixture
def every():
    """All labels (k^n, n) of the rows."""
    return np.array(list(itertools.product(range(K), repeat=N)))


def satisfied(labels, must, cannot, codes, links):
    """Which labels (.., n) satisfy all links."""
    good = np.ones(len(labels), bool)
    for a, b in must:
        good &= labels[:, a] == labels[:, b]
    for a, b in cannot:
        good &= labels[:, a] != labels[:, b]
    for a, b in itertools.combinations(np.flatnonzero(codes >= 0), 2):
        if codes[a] == codes[b] and links != "cannot":
            good &= labels[:, a] == labels[:, b]
        if codes[a] != codes[b] and links != "must":
            good &= labels[:, a] != labels[:, b]
    return good


def read(case, k=K):
    return must_link_components.read_units(*CASES[case], k, ROOM)


def scores_of(links, rng, scale):
    """Scores of units (N, k), 0 on padding, with the standard deviation ``scale``."""
    return rng.normal(size=(ROOM, K)) * scale * links.real[:, None]


@jax.jit
def solve(scores, links):
    return link_posterior.posterior_and_labels(scores, links)


def by_hand(every, case, links, scores):
    """Log sum over all labels that satisfy the links, posterior of rows, and best labels."""
    good = every[satisfied(every, *CASES[case])]
    first = np.unique(links.unit[:N], return_index=True)[1]
    total = sum(scores[links.unit[i], good[:, i]] for i in first)
    share = np.exp(total - logsumexp(total))
    shares = [[share[good[:, i] == c].sum() for c in range(K)] for i in range(N)]
    return logsumexp(total), np.array(shares), good[total.argmax()]


@pytest.mark.parametrize("case", CASES)
def test_posterior_is_the_sum_over_all_labels(case, every):
    links, rough = read(case)
    assert rough == 0
    for seed, scale in ((0, 1.0), (1, 1.0), (2, 300.0)):
        scores = scores_of(links, np.random.default_rng(seed), scale)
        with standard():
            value, shares, labels = jax.device_get(solve(scores, links))
        wanted = by_hand(every, case, links, scores)
        assert value == pytest.approx(wanted[0], rel=1e-12)
        np.testing.assert_allclose(shares[links.unit[:N]], wanted[1], atol=1e-10)
        assert (labels[links.unit[:N]] == wanted[2]).all()


def test_sums_of_sets_are_used_where_labels_say_it_all():
    used = {case: (read(case)[0].members < ROOM).sum() for case in CASES}
    assert used.pop("apart") == 4 and used.pop("three classes apart") == 7
    assert not any(used.values())


def test_both_ways_agree(monkeypatch, every):
    monkeypatch.setattr(must_link_components, "LABELINGS", 1)  # so that "both" sums over sets
    links, _ = read("both")
    assert (links.members < ROOM).sum() == 2
    scores = scores_of(links, np.random.default_rng(3), 2.0)
    with standard():
        value, shares, _ = jax.device_get(solve(scores, links))
    wanted = by_hand(every, "both", links, scores)
    assert value == pytest.approx(wanted[0])
    np.testing.assert_allclose(shares[links.unit[:N]], wanted[1], atol=1e-10)


def test_many_units_of_two_classes_far_below_what_floats_hold():
    codes = np.arange(40) % 2
    links, _ = must_link_components.read_units(NONE, NONE, codes, "cannot", 4, 48)
    scores = np.zeros((48, 4))
    scores[:40] = -200.0 * np.arange(4)  # all strongly prefer cluster 0
    with standard():
        value, shares, labels = jax.device_get(solve(scores, links))
    assert np.isfinite(value) and np.isfinite(shares).all()
    assert len(set(labels[:40:2]) & set(labels[1:40:2])) == 0
    # One class has cluster 0, the other cluster 1, which costs 200 for each of 20 units.
    assert value == pytest.approx(-20 * 200 + np.log(2))
    np.testing.assert_allclose(shares[:40, :2], 0.5)


@pytest.mark.parametrize("case", ["pairs", "both", "apart, and more"])
def test_a_mean_field_is_said_to_be_one_and_its_labels_keep_the_links(case, monkeypatch):
    monkeypatch.setattr(link_posterior, "LABELINGS", 0)
    monkeypatch.setattr(must_link_components, "LABELINGS", 0)
    monkeypatch.setattr(must_link_components, "SETS", 0)
    with pytest.warns(UserWarning, match="approximated by a mean field; got [34567] units"):
        links, rough = read(case)
    assert rough == (links.turn >= 0).sum()
    for seed in range(20):
        scores = scores_of(links, np.random.default_rng(seed), 1 + seed)
        with standard():
            _, shares, labels = jax.device_get(solve(scores, links))
        np.testing.assert_allclose(shares[links.real > 0].sum(1), 1)
        assert satisfied(labels[None, links.unit[:N]], *CASES[case]).all()


def test_a_mean_field_is_what_it_says(monkeypatch):
    monkeypatch.setattr(link_posterior, "LABELINGS", 0)
    codes = np.full(N, -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        links, _ = must_link_components.read_units(NONE, np.array([[0, 1]]), codes, "both", K, ROOM)
    scores = scores_of(links, np.random.default_rng(0), 1.0)
    with standard():
        _, shares, _ = jax.device_get(solve(scores, links))
    a, b = shares[:2]
    for one, other, s in ((a, b, scores[0]), (b, a, scores[1])):
        weight = np.exp(s) * (1 - other)
        np.testing.assert_allclose(one, weight / weight.sum(), rtol=1e-4)


@pytest.mark.parametrize(
    ("must", "cannot", "codes", "links", "k", "message"),
    [
        ([[0, 1]], [[0, 1]], [-1, -1, -1], "both", 3, r"contradict each other; got cannot_link"),
        ([[0, 1], [1, 2]], [], [0, -1, 1], "both", 3, r"contradict .* y \(0, 2\)"),
        ([[0, 1], [1, 2]], [], [0, -1, 1], "cannot", 3, r"contradict .* y \(0, 2\)"),
        ([], [[0, 2]], [0, -1, 0], "both", 3, r"but y \(0, 2\) put both rows into one"),
        ([], [[0, 1]], [0, 0, 1], "cannot", 2, r"cannot be satisfied with 2 cluster\(s\)"),
        ([], [[0, 1]], [-1, -1, -1], "both", 1, r"cannot be satisfied with 1 cluster\(s\)"),
    ],
)
def test_links_that_cannot_be_kept_are_refused(must, cannot, codes, links, k, message):
    given = (np.array(pairs, int).reshape(-1, 2) for pairs in (must, cannot))
    with pytest.raises(InfeasibleConstraints, match=message) as caught:
        must_link_components.read_units(*given, np.array(codes), links, k, 4)
    assert "MDLConstrained with constraints='soft'" in str(caught.value)


def test_too_many_cannot_links_of_labels_are_refused(monkeypatch):
    monkeypatch.setattr(must_link_components, "_MAX_IMPLIED", 3)
    with pytest.raises(ValueError, match="y implies more than 3 cannot-links; got 4 of 4 labelled"):
        must_link_components.read_units(NONE, NONE, np.array([0, 0, 1, 1]), "cannot", 11, 4)


def test_two_clusters_have_few_labels_however_many_rows():
    chain = np.stack([np.arange(200), np.arange(1, 201)], 1)
    links, rough = must_link_components.read_units(NONE, chain, np.full(201, -1), "both", 2, 256)
    assert rough == 0 and (links.part == 0).sum() == 2
