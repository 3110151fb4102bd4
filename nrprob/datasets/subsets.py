"""Counts with clusters shared by all subsets, and stronger clusters within subsets."""

from __future__ import annotations

import numpy as np

from nrprob.data.validation import check_choice, check_number, check_random_state
from nrprob.datasets.generators import Counts, RandomState, _positive_int
from nrprob.datasets.sizes import dense_size, register_size

__all__ = ["make_competing_pairs", "make_cross_partition", "make_oscillating_counts"]

# Numbers of rows per theme (rows) and subset (columns). The thesis shows them in a plot only, so
# these numbers are choices of this package.
SIZES = {
    "B/B": [[5, 5, 5]] * 5,
    "B/nB": [[8, 5, 2], [2, 8, 5], [5, 2, 8], [7, 3, 5], [3, 7, 5]],
    "nB/B": [[9] * 3, [6] * 3, [4] * 3, [3] * 3, [3] * 3],
}


def _draw_counts(
    clusters: list[np.ndarray],
    counts: list[int],
    widths: list[int],
    noise: int,
    share: float,
    rng: np.random.RandomState,
) -> Counts:
    """Sample counts of n rows with several clusterings, whose features are side by side.

    Every cluster of every clustering has separate features. On these features, the rows of the
    cluster have a constant count, and all other rows have 0; then noise is added.

    Parameters
    ----------
    clusters : for every clustering, the labels (n,)
    counts : for every clustering, the count of a row on every feature of its cluster
    widths : for every clustering, the number of features of a cluster
    noise : upper bound (exclusive) of integer noise from 1, which is added to these counts
    share : share of the zeros to which noise is added, too
    """
    blocks = []
    for labels, count, width in zip(clusters, counts, widths, strict=True):
        in_cluster = np.repeat(labels[:, None] == np.arange(labels.max() + 1), width, axis=1)
        noisy = in_cluster | (rng.random_sample(in_cluster.shape) < share)
        shape = in_cluster.shape
        added = rng.randint(1, noise, shape) if noise > 1 else np.zeros(shape, np.int64)
        blocks.append(np.where(in_cluster, count, 0) + np.where(noisy, added, 0))
    return np.hstack(blocks).astype(np.int64)


@register_size(lambda **_: dense_size(75, 600))
def make_cross_partition(
    target: str = "B/B",
    target_count: int = 700,
    *,
    masking_count: int = 900,
    noise: int = 200,
    random_state: RandomState = None,
) -> tuple[Counts, Counts]:
    """Simulate counts with five themes across three subsets, masked by clusters of each subset.

    A theme is a cluster with rows in all subsets; a masking cluster has rows in one subset only.
    Each of the 75 rows belongs to one theme, and to one of the two masking clusters of its subset.
    A theme has 48 features. Masking clusters have 13 or 12 rows, and 60 features. Masking clusters
    and themes are independent.

    Parameters
    ----------
    target : {"B/B", "B/nB", "nB/B"}, default="B/B"
        Sizes of the themes: balanced within subsets; balanced overall, but not within subsets; or
        unbalanced (27, 18, 12, 9 and 9), equally in all subsets.
    target_count : int, default=700
        Count of a row on every feature of its theme; 700 and 400 are the settings of the source.
    masking_count : int, default=900
        Count on every feature of its masking cluster.
    noise : int, default=200
        Upper bound (exclusive) of integer noise from 1, added to these counts and to a quarter of
        the zeros; 1 for no noise.
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers.

    Returns
    -------
    X : ndarray of shape (75, 600), dtype int64
        Counts; features of the themes come first.
    labels : ndarray of shape (75, 3), dtype int64
        Theme, subset, and masking cluster (from 0 to 5) of every row.

    Raises
    ------
    ValueError
        If ``target`` is unknown, or a count is out of bounds.
    TypeError
        If a count is not an integer.

    See Also
    --------
    make_competing_pairs : Eight rows with competing clusterings.
    nrprob.CrossPartition : Clustering across subsets.

    References
    ----------
    Marx, PhD thesis, section 5.4.1.1. The sizes of the themes are choices of this package.

    Examples
    --------
    >>> from nrprob.datasets import make_cross_partition
    >>> X, labels = make_cross_partition(random_state=0)
    >>> X.shape, labels.shape
    ((75, 600), (75, 3))
    """
    check_choice("target", target, tuple(SIZES))
    for name, value in (("target_count", target_count), ("masking_count", masking_count)):
        check_number(name, value, low=0, high=10**9, integer=True)
    check_number("noise", noise, low=1, high=10**9, integer=True)
    rng = check_random_state(random_state)
    sizes = np.array(SIZES[target])
    themes = np.concatenate([np.repeat(np.arange(5), column) for column in sizes.T])
    subset = np.repeat(np.arange(3), 25)
    masking = np.concatenate(
        [2 * w + rng.permutation(np.repeat([0, 1], [13, 12])) for w in range(3)]
    )
    X = _draw_counts([themes, masking], [target_count, masking_count], [48, 60], noise, 0.25, rng)
    return X, np.stack([themes, subset, masking], 1).astype(np.int64)


@register_size(lambda **_: dense_size(8, 6))
def make_competing_pairs(
    cross_count: int = 0,
    *,
    within_count: int = 100,
    noise: int = 10,
    random_state: RandomState = None,
) -> tuple[Counts, Counts]:
    """Simulate eight rows: two subsets with two pairs each, and two themes across all pairs.

    Each of the two themes contains one row of every pair. Every pair has one feature, and every
    theme has one feature. If the counts of the themes are small, the iteration of cross-partition
    clustering often has a limit cycle instead of a fixed point.

    Parameters
    ----------
    cross_count : int, default=0
        Count of a row on the feature of its theme.
    within_count : int, default=100
        Count on the feature of its pair.
    noise : int, default=10
        As in `make_cross_partition`; not stated in the source.
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers.

    Returns
    -------
    X : ndarray of shape (8, 6), dtype int64
        Counts; features of the pairs come first.
    labels : ndarray of shape (8, 3), dtype int64
        Theme, subset, and pair (from 0 to 3) of every row.

    Raises
    ------
    ValueError
        If a count is out of bounds.
    TypeError
        If a count is not an integer.

    See Also
    --------
    make_cross_partition : Five themes in three subsets.
    make_oscillating_counts : Eight rows with a limit cycle.

    References
    ----------
    Marx, PhD thesis, section 5.4.1.3: Table 5.1.

    Examples
    --------
    >>> from nrprob.datasets import make_competing_pairs
    >>> X, labels = make_competing_pairs(60, random_state=0)
    >>> X.shape, labels.shape
    ((8, 6), (8, 3))
    """
    check_number("cross_count", cross_count, low=0, high=10**9, integer=True)
    within_count = _positive_int(within_count, "within_count")
    check_number("noise", noise, low=1, high=10**9, integer=True)
    rng = check_random_state(random_state)
    pair, theme = np.repeat(np.arange(4), 2), np.tile([0, 1], 4)
    X = _draw_counts([pair, theme], [within_count, cross_count], [1, 1], noise, 0.25, rng)
    return X, np.stack([theme, pair // 2, pair], 1).astype(np.int64)


@register_size(lambda **_: dense_size(8, 4))
def make_oscillating_counts(*, random_state: RandomState = None) -> tuple[Counts, Counts]:
    """Return eight rows in two subsets for which cross-partition clustering oscillates.

    If `nrprob.CrossPartition` has ``eta=1``, there is one cluster up to an inverse temperature of
    1.857, and no stable solution between 1.857 and 2.74.

    Parameters
    ----------
    random_state : ignored
        The counts are constant; model files pass this argument to every generator.

    Returns
    -------
    X : ndarray of shape (8, 4), dtype int64
        Counts. Pairs of different subsets share few features.
    labels : ndarray of shape (8, 2), dtype int64
        Subset, and pair (from 0 to 3) of every row.

    See Also
    --------
    make_competing_pairs : Random counts with the same structure.
    nrprob.CrossPartition : Clustering across subsets.

    References
    ----------
    Marx, PhD thesis, Table 5.2.

    Examples
    --------
    >>> from nrprob.datasets import make_oscillating_counts
    >>> X, labels = make_oscillating_counts()
    >>> X.sum(1).tolist()
    [10, 10, 10, 10, 10, 10, 10, 10]
    """
    X = [
        [10, 0, 0, 0],
        [9, 1, 0, 0],
        [1, 9, 0, 0],
        [0, 8, 0, 2],
        [0, 0, 10, 0],
        [0, 2, 8, 0],
        [0, 0, 0, 10],
        [1, 0, 1, 8],
    ]
    pair = np.repeat(np.arange(4), 2)
    return np.array(X, np.int64), np.stack([pair // 2, pair], 1).astype(np.int64)
