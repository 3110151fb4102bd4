"""Random data sets with several independent planted clusterings."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nrprob.data.validation import (
    MOST,
    as_array,
    as_number,
    check_entries,
    check_number,
    check_random_state,
)
from nrprob.datasets.sizes import dense_size, register_size

__all__ = ["bayes_precision", "make_binary_partitions", "make_multinomial_2d"]

RandomState = int | np.random.RandomState | None
Counts = NDArray[np.int64]

MAX_PATTERNS = 10_000_000  # maximum number of patterns that `bayes_precision` enumerates


def total_columns(dims: int | Sequence[int]) -> int:
    """Total number of columns, where ``dims`` is one number of columns, or several."""
    return sum(np.ravel(np.asarray(dims, object)).tolist())


def _positive_int(value: object, name: str) -> int:
    check_number(name, value, low=1, high=MOST, integer=True)
    return operator.index(value)  # type: ignore[arg-type]


def _check_dims(dims: object, what: str) -> list[int]:
    """Validate the numbers of columns of views or partitions; return a list.

    ``what`` is "view" or "partition", for messages.
    """
    if isinstance(dims, list | tuple):
        entries = [*dims]
    else:
        entries = np.atleast_1d(as_array(dims, "dims")).tolist()
    sizes = [_positive_int(m, "every entry of dims") for m in entries]
    if not sizes:
        raise ValueError(f"dims must name at least one {what}; got none; pass for example [8, 4]")
    return sizes


def _check_fraction(value: float, name: str) -> float:
    number = as_number(value, name)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name} must lie between 0 and 1; got {number}; pass a fraction")
    return number


def _block_sizes(n_features: int, n_clusters: int) -> Counts:
    """Numbers of columns (n_clusters,) of the blocks of a partition with ``n_features`` columns.

    Every cluster has one block of columns; see `make_binary_partitions`.
    """
    if n_features < n_clusters:
        raise ValueError(
            "every cluster needs at least one feature of its partition; "
            f"got {n_features} features for {n_clusters} clusters; "
            "pass dims of at least n_clusters"
        )
    # The source does not say how to divide, for example, 4 features among 3 clusters; the first
    # blocks are larger here.
    size, rest = divmod(n_features, n_clusters)
    return size + (np.arange(n_clusters) < rest).astype(np.int64)


@register_size(lambda n_samples, dims, **_: dense_size(n_samples, total_columns(dims)))
def make_binary_partitions(
    n_samples: int,
    dims: int | Sequence[int],
    n_clusters: int = 2,
    *,
    p_noise: float = 0.1,
    random_state: RandomState = None,
) -> tuple[Counts, Counts]:
    """Simulate binary rows with one independent partition per group of columns.

    The columns of a partition have a random binary profile, and are divided into `n_clusters`
    blocks. A row of cluster g equals the profile on block g, and the complement of the profile on
    the other blocks of the partition. Every entry is then flipped with probability `p_noise`. The
    labels of a row in different partitions are independent, and uniform on the clusters.

    Parameters
    ----------
    n_samples : int
        Number of rows.
    dims : int or sequence of int
        Number of columns of each partition, at least `n_clusters`. Partitions with more columns
        are more prominent.
    n_clusters : int, default=2
        Number of clusters of every partition.
    p_noise : float, default=0.1
        Probability of flipping an entry.
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers.

    Returns
    -------
    X : ndarray of shape (n_samples, sum(dims)), dtype int64
        Entries 0 and 1; the columns of the partitions are side by side, in their order.
    labels : ndarray of shape (n_samples, len(dims)), dtype int64
        Cluster numbers from 0 to n_clusters - 1, one column per partition.

    Raises
    ------
    ValueError
        If a size is not positive, a partition has fewer columns than clusters, or `p_noise` is
        not a fraction.
    TypeError
        If a size is not an integer.

    See Also
    --------
    bayes_precision : Maximum accuracy of any method on one partition.
    make_multinomial_2d : Counts with two independent clusterings.

    Notes
    -----
    Gondek (2005), appendix E.1, does not state the entries of a row on the blocks of other
    clusters, or how columns are divided unevenly. This function chooses both in agreement with the
    sample and the accuracies of the source.

    Examples
    --------
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, labels = make_binary_partitions(100, dims=[8, 4], random_state=0)
    >>> X.shape, labels.shape
    ((100, 12), (100, 2))
    """
    n_samples = _positive_int(n_samples, "n_samples")
    n_clusters = _positive_int(n_clusters, "n_clusters")
    sizes = _check_dims(dims, "partition")
    check_entries("X", n_samples * sum(sizes), "lower n_samples or dims")
    block_sizes = [_block_sizes(m, n_clusters) for m in sizes]
    blocks = [np.repeat(np.arange(n_clusters), block) for block in block_sizes]
    p_noise = _check_fraction(p_noise, "p_noise")
    rng = check_random_state(random_state)

    labels = rng.randint(n_clusters, size=(n_samples, len(sizes))).astype(np.int64)
    in_block = np.hstack([labels[:, [p]] == block for p, block in enumerate(blocks)])
    profile = rng.randint(2, size=sum(sizes)).astype(bool)
    flipped = rng.random_sample(in_block.shape) < p_noise
    # Entries are the profile, complemented on other blocks, and complemented again if flipped.
    return (profile ^ ~in_block ^ flipped).astype(np.int64), labels


@register_size(lambda n_samples, **_: dense_size(n_samples, 3))
def make_multinomial_2d(
    n_samples: int,
    n_clusters: int,
    n_draws: int,
    *,
    orthogonality: float = 1.0,
    random_state: RandomState = None,
) -> tuple[Counts, Counts]:
    r"""Simulate counts in three categories with two independent clusterings A and B.

    A row with labels (a, b) is multinomial with `n_draws` draws and probabilities

    .. math:: \left(\frac{\theta_a}{2}, \frac{w \theta_b + (1 - w) \theta_a}{2}, \cdot \right),
        \qquad \theta_k = \frac{k + 1/2}{K},

    where w is the orthogonality and K the number of clusters; the dot stands for one minus the sum
    of the other probabilities.

    Parameters
    ----------
    n_samples : int
        Number of rows.
    n_clusters : int
        Number K of clusters of A and of B.
    n_draws : int
        Number of draws per row, the sum of every row of `X`.
    orthogonality : float, default=1.0
        Weight w in [0, 1]. At 1 the first category depends on A and the second on B. At 0 both
        depend on A, and `X` has no information about B. Labels are independent at every weight.
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers.

    Returns
    -------
    X : ndarray of shape (n_samples, 3), dtype int64
        Counts.
    labels : ndarray of shape (n_samples, 2), dtype int64
        Column 0 holds A (usually taken as known), column 1 holds B (to be found).

    Raises
    ------
    ValueError
        If a size is not positive or `orthogonality` is not in [0, 1].
    TypeError
        If a size is not an integer.

    Notes
    -----
    Gondek (2005), section 8.3.1, does not state the exact spacing of theta ("equally spaced on [0,
    1]") or the distribution of the draws. These choices reproduce its tables, which use 50 K^2 rows
    and 50 K^2 + 50 K + 100 draws.

    Examples
    --------
    >>> from nrprob.datasets import make_multinomial_2d
    >>> X, labels = make_multinomial_2d(60, 2, 100, random_state=0)
    >>> X.shape, labels.shape
    ((60, 3), (60, 2))
    """
    n_samples = _positive_int(n_samples, "n_samples")
    n_clusters = _positive_int(n_clusters, "n_clusters")
    n_draws = _positive_int(n_draws, "n_draws")
    check_entries("X", 3 * n_samples, "lower n_samples")
    weight = _check_fraction(orthogonality, "orthogonality")
    rng = check_random_state(random_state)

    labels = rng.randint(n_clusters, size=(n_samples, 2)).astype(np.int64)
    theta_a, theta_b = ((labels + 0.5) / n_clusters).T
    theta_b = weight * theta_b + (1.0 - weight) * theta_a
    # Sample a multinomial as a chain of binomials, which accept a different probability per row.
    first = rng.binomial(n_draws, theta_a / 2)
    second = rng.binomial(n_draws - first, theta_b / (2 - theta_a))
    X = np.column_stack([first, second, n_draws - first - second])
    return X.astype(np.int64), labels


def bayes_precision(m: int, n_clusters: int, p_noise: float = 0.1) -> float:
    r"""Accuracy of the Bayes classifier that predicts the cluster of a row from its columns.

    .. math:: \frac 1K \sum_{x \in \{0, 1\}^m} \max_k p(x | k)

    where K is the number of clusters, and p(x | k) the probability of the m columns x of a row of
    cluster k in the model of `make_binary_partitions`, with known profile and noise.

    Parameters
    ----------
    m : int
        Number of columns of the partition, at least `n_clusters`.
    n_clusters : int
        Number K of clusters.
    p_noise : float, default=0.1
        Probability of flipping an entry.

    Returns
    -------
    float
        Between 1 / K and 1. For m = 4: 0.9720, 0.9072 and 0.7920 at K = 2, 3 and 4.

    Raises
    ------
    ValueError
        If a size is not positive, ``m < n_clusters``, `p_noise` is not a fraction, or there are
        too many patterns to enumerate.
    TypeError
        If a size is not an integer.

    See Also
    --------
    make_binary_partitions : The generator.
    nrprob.metrics.matched_accuracy : Accuracy of a clustering.

    Notes
    -----
    Gondek (2005), appendix E.1, has the generator but not this bound. Rows that agree with the
    profile in equally many columns of each block are equally likely under every cluster. The sum
    therefore runs over the numbers of agreements, not over all 2^m rows.

    Examples
    --------
    >>> from nrprob.datasets import bayes_precision
    >>> round(bayes_precision(4, 2), 4)
    0.972
    """
    from scipy.special import comb

    m, n_clusters = _positive_int(m, "m"), _positive_int(n_clusters, "n_clusters")
    p_noise = _check_fraction(p_noise, "p_noise")
    # Every block has at least one column, so there are at least 2**n_clusters patterns.
    few = n_clusters <= min(m, 30)
    sizes = _block_sizes(m, n_clusters) if few or m < n_clusters else np.full(30, 1)
    n_patterns = np.prod(sizes + 1.0)
    if n_patterns > MAX_PATTERNS:
        raise ValueError(
            f"there are too many patterns to enumerate; got {n_patterns:.3g} for m={m} and "
            f"n_clusters={n_clusters}; use fewer features or clusters"
        )
    agree = np.indices(tuple(sizes + 1)).reshape(n_clusters, -1)
    n_rows = np.prod(comb(sizes[:, None], agree), axis=0)
    # Flips that turn the row of cluster k without noise into x: disagreements with the profile in
    # block k, and agreements in the other blocks.
    flips = agree.sum(0) + sizes[:, None] - 2 * agree
    total = (p_noise**flips * (1.0 - p_noise) ** (m - flips)).max(0) @ n_rows
    return min(1.0, float(total / n_clusters))
