"""Simulated gene counts of cells of several types, measured in several batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from nrprob.data.validation import check_entries, check_number, check_random_state
from nrprob.datasets.generators import RandomState, _fraction, _positive_int
from nrprob.datasets.sizes import Size, sized, stored

__all__ = ["make_cell_counts"]


def _size(
    n_samples: int, n_genes: int, n_types: int, n_batches: int, mean_total: float, **_: Any
) -> Size:
    """Size of the counts, where a cell has at most as many entries as molecules."""
    entries = n_samples * min(n_genes, math.ceil(1.5 * mean_total))
    block = min(n_samples * n_genes, 4_000_000 + n_genes)
    return stored(n_samples, n_genes, entries, max(n_batches * n_types * n_genes, block))


@sized(_size)
def make_cell_counts(
    n_samples: int = 2000,
    n_genes: int = 2000,
    n_types: int = 4,
    n_batches: int = 3,
    *,
    type_effect: float = 1.0,
    batch_effect: float = 0.5,
    interaction: float = 0.0,
    marker_fraction: float = 0.1,
    mean_total: float = 3000.0,
    dispersion: float = 0.3,
    mixing: float = 0.5,
    random_state: RandomState = None,
) -> tuple[sparse.csr_array, NDArray[np.int64]]:
    """Draw counts of genes in cells whose batch is known and whose type is sought.

    The expected share of gene g in a cell of type t and batch b is proportional to
    ``exp(base_g + type_gt + batch_gb + both_gtb)``. Types move few genes (their markers), batches
    move all a little. A cell's total is log-normal; counts are negative binomial around the
    expected ones.

    Parameters
    ----------
    n_samples, n_genes, n_types, n_batches : int
        Sizes.
    type_effect : float, default=1.0
        Standard deviation of a type's effect on the logarithm of the share of a marker gene.
    batch_effect : float, default=0.5
        Standard deviation of a batch's effect, on every gene.
    interaction : float, default=0.0
        Standard deviation of what is special to a type within a batch, on every gene: what no
        method can tell from a new type when it is large.
    marker_fraction : float, default=0.1
        Share of genes that a type moves, for every type anew.
    mean_total : float, default=3000.0
        Mean of the totals; their logarithms have standard deviation 0.3.
    dispersion : float, default=0.3
        The variance of a count of mean m is m + dispersion * m**2.
    mixing : float, default=0.5
        How alike the batches' shares of types are: 1 is the same shares in all of them; at 0 they
        are drawn from a Dirichlet distribution with all parameters 1, for every batch anew.
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers.

    Returns
    -------
    X : scipy.sparse.csr_array of shape (n_samples, n_genes), dtype int64
        Counts.
    labels : ndarray of shape (n_samples, 2), dtype int64
        Batch (column 0) and type (column 1) of every cell.

    Raises
    ------
    ValueError
        If a size is not positive, a standard deviation is negative, or a share is not a fraction.
    TypeError
        If a size is not an integer.

    Examples
    --------
    >>> from nrprob.datasets import make_cell_counts
    >>> X, labels = make_cell_counts(100, 50, random_state=0)
    >>> X.shape, labels.shape
    ((100, 50), (100, 2))
    """
    n = _positive_int(n_samples, "n_samples")
    m = _positive_int(n_genes, "n_genes")
    k = _positive_int(n_types, "n_types")
    b = _positive_int(n_batches, "n_batches")
    check_entries("X", n * m, "lower n_samples or n_genes")
    check_entries("the table of means", k * b * m, "lower n_types or n_batches")
    sizes = {
        "type_effect": type_effect,
        "batch_effect": batch_effect,
        "interaction": interaction,
        "dispersion": dispersion,
    }
    for name, value in sizes.items():
        check_number(name, value, low=0, high=20)
    check_number("mean_total", mean_total, low=1e-6, high=1e9)
    marker_fraction = _fraction(marker_fraction, "marker_fraction")
    mixing = _fraction(mixing, "mixing")

    random = check_random_state(random_state)
    base = random.normal(0.0, 1.5, m)
    marks = random.random_sample((k, m)) < marker_fraction
    types = random.normal(0.0, 1.0, (k, m)) * type_effect * marks
    batches = random.normal(0.0, 1.0, (b, m)) * batch_effect
    both = random.normal(0.0, 1.0, (b, k, m)) * interaction
    shares = np.exp(base + batches[:, None] + types[None] + both)
    shares /= shares.sum(axis=-1, keepdims=True)

    common = random.dirichlet(np.full(k, 10.0))
    own = random.dirichlet(np.ones(k), size=b)
    chances = mixing * common + (1 - mixing) * own
    batch = random.randint(b, size=n)
    kind = (random.random_sample((n, 1)) > np.cumsum(chances, axis=1)[batch, :-1]).sum(axis=1)
    totals = mean_total * np.exp(random.normal(0.0, 0.3, n) - 0.3**2 / 2)

    # Rows in blocks: the dense means of all cells are never held at once.
    blocks = []
    for rows in np.array_split(np.arange(n), max(1, n * m // 4_000_000)):
        mean = totals[rows, None] * shares[batch[rows], kind[rows]]
        if dispersion > 0:
            mean = mean * random.gamma(1 / dispersion, dispersion, mean.shape)
        blocks.append(sparse.csr_array(random.poisson(mean)))
    return sparse.vstack(blocks, format="csr"), np.stack([batch, kind], axis=1)
