"""Brute force on partitions of a few samples, and hypothesis strategies for draws of them."""

import itertools

import numpy as np
from hypothesis import strategies as st
from scipy import stats


def all_partitions(n):
    """Every partition of n samples, as restricted growth strings; shape (Bell(n), n)."""
    grown = [[0]]
    for _ in range(n - 1):
        grown = [row + [c] for row in grown for c in range(max(row) + 2)]
    return np.array(grown)


def places(labels, partitions):
    """Indices (s,) in a list of partitions (p, n), of labels (s, n) up to label switching."""

    def named(z):  # by the first sample of the same cluster
        return np.argmax(z[:, :, None] == z[:, None, :], 2)

    place = {tuple(row): i for i, row in enumerate(named(partitions))}
    return np.asarray([place[tuple(row)] for row in named(labels)])


def p_value(counts, p):
    """Chi-squared test of counts; rare outcomes are merged up to an expected count of 8."""
    order = np.argsort(p)[::-1]
    counts, p = counts[order], p[order]
    expected = p * counts.sum()
    # The chi-squared approximation fails for cells of tiny expected counts.
    many = (expected >= 8) & (expected[::-1].cumsum()[::-1] - expected >= 8)
    observed = np.append(counts[many], counts[~many].sum())
    expected = np.append(expected[many], expected[~many].sum())
    keep = expected > 0
    return stats.chisquare(observed[keep], expected[keep] * observed.sum() / expected.sum()).pvalue


def vi(a, b):
    """Variation of information in nats, from its definition as conditional entropies."""
    total, n = 0.0, len(a)
    for i in range(n):  # every sample contributes -log p(own cell | the other partition's cluster)
        cell = sum(a[j] == a[i] and b[j] == b[i] for j in range(n))
        total -= np.log(cell / sum(a == a[i])) + np.log(cell / sum(b == b[i]))
    return total / n


def split_and_merge(estimate, draw, loss):
    """The two one-sided losses: samples that the estimate splits, and samples that it merges."""
    n = len(draw)
    if loss == "vi":
        cell = [sum((estimate == estimate[i]) & (draw == draw[i])) for i in range(n)]
        split = -np.mean([np.log(cell[i] / sum(draw == draw[i])) for i in range(n)])
        merge = -np.mean([np.log(cell[i] / sum(estimate == estimate[i])) for i in range(n)])
        return split, merge
    pairs = list(itertools.combinations(range(n), 2))
    split = sum(draw[i] == draw[j] and estimate[i] != estimate[j] for i, j in pairs)
    merge = sum(draw[i] != draw[j] and estimate[i] == estimate[j] for i, j in pairs)
    return split / max(1, len(pairs)), merge / max(1, len(pairs))


@st.composite
def label_draws(draw, max_draws=8, max_samples=6):
    """Labels of shape (draw, sample)."""
    n = draw(st.integers(1, max_samples))
    s = draw(st.integers(1, max_draws))
    k = draw(st.integers(1, n))
    rows = st.lists(st.integers(0, k - 1), min_size=n, max_size=n)
    return np.array(draw(st.lists(rows, min_size=s, max_size=s)))


def renamed(draws, random):
    """The same partitions with other labels in every draw, some of them large."""
    width = int(draws.max()) + 1
    shape = (*draws.shape[:-1], width)
    order = np.argsort(random.random(shape), axis=-1)
    names = order * random.choice([1, -3, 10**12]) + random.integers(-5, 5, (*shape[:-1], 1))
    return np.take_along_axis(names, draws, -1)


def noisy_draws(n=40, k=4, n_chains=2, n_draws=300, noise=0.25, seed=0):
    """Draws around one partition, with arbitrary labels; returns them and this partition."""
    random = np.random.default_rng(seed)
    truth = np.arange(n) % k
    doubt = random.random(n) * noise
    shape = (n_chains, n_draws, n)
    draws = np.where(random.random(shape) < doubt, random.integers(0, k, shape), truth)
    return renamed(draws, random), truth
