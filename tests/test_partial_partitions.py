"""Soft Jaccard index, pairs of different subsets, and relations of clusters and partial labels."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nrprob.metrics import (
    is_coarsening,
    is_consistent,
    is_proportional,
    jaccard_index,
    soft_jaccard_index,
)

quick = settings(deadline=None, max_examples=60)


@st.composite
def three_labelings(draw, max_size=8, k=3):
    n = draw(st.integers(1, max_size))
    labels = st.lists(st.integers(0, k - 1), min_size=n, max_size=n)
    return [np.array(draw(labels)) for _ in range(3)]


def brute_force(q, r, subsets):
    shared = united = 0.0
    for i, j in itertools.combinations(range(len(q)), 2):
        if subsets is None or subsets[i] != subsets[j]:
            s, t = q[i] @ q[j], r[i] @ r[j]
            shared, united = shared + min(s, t), united + max(s, t)
    return shared / united if united else 1.0


@quick
@given(three_labelings())
def test_indices_of_labels_are_those_of_pairs(partitions):
    a, b, subsets = partitions
    q, r = np.eye(3)[a], np.eye(3)[b]
    for groups in (None, subsets):
        expected = pytest.approx(brute_force(q, r, groups))
        assert jaccard_index(a, b, subsets=groups) == expected
        assert soft_jaccard_index(a, b, subsets=groups) == expected
        assert soft_jaccard_index(q, b, subsets=groups) == expected


@pytest.mark.parametrize("block", [None, 9])
def test_the_soft_index_is_the_sum_over_pairs(block, monkeypatch):
    if block is not None:
        monkeypatch.setattr("nrprob.metrics.memberships.BLOCK_SIZE", block)
    rng = np.random.default_rng(0)
    q, r = rng.dirichlet(np.ones(3), 7), rng.dirichlet(np.ones(4), 7)
    subsets = np.arange(7) % 2
    for groups in (None, subsets):
        value = soft_jaccard_index(q, r, subsets=groups)
        assert value == pytest.approx(brute_force(q, r, groups))
        assert value == pytest.approx(soft_jaccard_index(r, 5 * q, subsets=groups))
        assert soft_jaccard_index(q, q[:, ::-1], subsets=groups) == pytest.approx(1)
        assert 0 < value < 1


def test_unassigned_samples_are_left_out():
    expert = np.array([[1, 0], [1, 1], [0, 1], [0, 0], [0, 1]])
    labels = np.array([0, 0, 1, 1, 1])
    kept = [0, 1, 2, 4]
    assert soft_jaccard_index(labels, expert) == soft_jaccard_index(labels[kept], expert[kept])
    # Pairs 01, 02 and 12 of the memberships 1 0, 0.5 0.5 and 0 1 against the clusters 0 0 1.
    assert soft_jaccard_index(labels[:3], expert[:3]) == pytest.approx(0.5 / (1 + 0 + 0.5))
    with pytest.raises(ValueError, match="no sample has memberships in both"):
        soft_jaccard_index([[1, 0], [0, 0]], [[0, 0], [1, 0]])
    for invalid in ([[1, -1], [0, 1]], [[1, math.nan], [0, 1]]):
        with pytest.raises(ValueError, match="memberships must be finite"):
            soft_jaccard_index(invalid, [0, 1])


def test_subsets_have_one_label_per_sample():
    for index in (jaccard_index, soft_jaccard_index):
        with pytest.raises(ValueError, match="subsets"):
            index([0, 1, 1], [0, 0, 1], subsets=[0, 1])


def entropy_given(a, b):
    """H(a|b) in nats."""
    joint = np.array([[np.sum((a == x) & (b == y)) for x in set(a)] for y in set(b)]) / len(a)
    ratio = joint / joint.sum(1, keepdims=True)
    return -float((joint * np.log(np.where(ratio > 0, ratio, 1))).sum())


@quick
@given(three_labelings())
def test_relations_are_conditional_entropies_of_zero(partitions):
    clusters, classes, known = partitions
    partial = np.where(known > 0, classes, -1)
    labelled = partial >= 0
    c, z = clusters[labelled], partial[labelled]
    consistent, coarse = is_consistent(clusters, partial), is_coarsening(clusters, partial)
    if not labelled.any():
        assert consistent and coarse and not is_proportional(clusters, partial)
        return
    assert consistent == (entropy_given(z, c) < 1e-9)
    assert coarse == (entropy_given(c, z) < 1e-9)
    shares = [np.mean(clusters == k) - np.mean(c == k) for k in range(3)]
    assert is_proportional(clusters, partial) == (max(map(abs, shares)) < 1e-9)
    # With all labels, one relation is the other of exchanged partitions.
    assert is_consistent(clusters, classes) == is_coarsening(classes, clusters)
    assert is_proportional(clusters, classes)


def test_labels_may_be_text():
    assert is_consistent(["x", "x", "y"], ["a", -1, "b"])
    assert not is_consistent(["x", "x", "y"], ["a", "b", -1])
    assert is_coarsening(["x", "x", "y"], np.array(["a", "b", "-1"]))
    assert not is_coarsening(["x", "y", "y"], ["a", "a", -1])
    assert is_proportional(["x", "x", "y", "y"], ["a", -1, -1, "b"])
    assert not is_proportional(["x", "x", "y"], ["a", -1, "b"])
    with pytest.raises(ValueError, match="partial"):
        is_consistent([0, 1], [0, 1, 1])
