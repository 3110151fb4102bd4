"""Simulated gene counts of cells of several types, measured in several batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from nrprob.data.validation import check_entries, check_number, check_random_state
from nrprob.datasets.generators import RandomState, _check_fraction, _positive_int
from nrprob.datasets.sizes import Size, register_size, sparse_size

__all__ = ["make_cell_counts"]


def _count_matrix_size(
    n_samples: int, n_genes: int, n_types: int, n_batches: int, mean_total: float, **_: Any
) -> Size:
    """Estimated size of the counts of `make_cell_counts`.

    A cell has at most as many non-zero counts as molecules, here 1.5 times ``mean_total``.
    """
    entries = n_samples * min(n_genes, math.ceil(1.5 * mean_total))
    block = min(n_samples * n_genes, 4_000_000 + n_genes)
    return sparse_size(n_samples, n_genes, entries, max(n_batches * n_types * n_genes, block))


@register_size(_count_matrix_size)
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
    r"""Simulate gene counts of cells with a known batch and a cell type to be found.

    The expected share of gene g in a cell of type t and batch b is

    .. math:: \pi_{gtb} \propto \exp(\alpha_g + \tau_{gt} + \beta_{gb} + \gamma_{gtb}),

    where :math:`\alpha_g` is the log abundance of gene g. The effects :math:`\tau` of types (on
    their marker genes), :math:`\beta` of batches and :math:`\gamma` of interactions (both on all
    genes) are normal with mean 0. The total of a cell is log-normal, and its counts are negative
    binomial.

    Parameters
    ----------
    n_samples, n_genes, n_types, n_batches : int
        Numbers of cells, genes, cell types and batches.
    type_effect : float, default=1.0
        Standard deviation of a type's effect on the logarithm of the share of a marker gene.
    batch_effect : float, default=0.5
        Standard deviation of a batch's effect, on every gene.
    interaction : float, default=0.0
        Standard deviation of the interaction of type and batch, on every gene. Large interactions
        are indistinguishable from new types.
    marker_fraction : float, default=0.1
        Probability that a gene is a marker of a type, independently per type.
    mean_total : float, default=3000.0
        Mean of the totals; their logarithms have standard deviation 0.3.
    dispersion : float, default=0.3
        The variance of a count of mean m is ``m + dispersion * m**2``.
    mixing : float, default=0.5
        Similarity of the proportions of cell types in the batches, from 0 to 1. At 1, all batches
        have equal proportions. At 0, every batch has independent proportions, from a Dirichlet
        distribution with all parameters 1.
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
        If a number is not positive, a standard deviation is negative, or ``marker_fraction`` or
        ``mixing`` is not in [0, 1].
    TypeError
        If a size is not an integer.

    See Also
    --------
    make_crossed_counts : Text counts with two independent labelings.
    nrprob.datasets.load : Real data sets, with counts of blood cells.

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
    marker_fraction = _check_fraction(marker_fraction, "marker_fraction")
    mixing = _check_fraction(mixing, "mixing")

    # Expected shares (batch, type, gene) from the additive effects on the log scale.
    random = check_random_state(random_state)
    base = random.normal(0.0, 1.5, m)
    markers = random.random_sample((k, m)) < marker_fraction
    types = random.normal(0.0, 1.0, (k, m)) * type_effect * markers
    batches = random.normal(0.0, 1.0, (b, m)) * batch_effect
    interactions = random.normal(0.0, 1.0, (b, k, m)) * interaction
    shares = np.exp(base + batches[:, None] + types[None] + interactions)
    shares /= shares.sum(axis=-1, keepdims=True)

    # Batch, type and total of every cell.
    common = random.dirichlet(np.full(k, 10.0))
    distinct = random.dirichlet(np.ones(k), size=b)
    proportions = mixing * common + (1 - mixing) * distinct
    batch = random.randint(b, size=n)
    cell_type = (random.random_sample((n, 1)) > np.cumsum(proportions, axis=1)[batch, :-1]).sum(
        axis=1
    )
    totals = mean_total * np.exp(random.normal(0.0, 0.3, n) - 0.3**2 / 2)

    # Sample the counts in blocks of rows, so that the dense means of all cells are never in memory
    # together.
    blocks = []
    for rows in np.array_split(np.arange(n), max(1, n * m // 4_000_000)):
        mean = totals[rows, None] * shares[batch[rows], cell_type[rows]]
        if dispersion > 0:
            mean = mean * random.gamma(1 / dispersion, dispersion, mean.shape)
        blocks.append(sparse.csr_array(random.poisson(mean)))
    return sparse.vstack(blocks, format="csr"), np.stack([batch, cell_type], axis=1)
