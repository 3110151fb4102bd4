r"""Description lengths of counts by cluster, and exact changes of the lengths if one unit moves.

A *unit* is a sample, or a set of samples that share a cluster. The composition t_u (J,) of unit u
is its vector of counts of J symbols; the symbols are divided into blocks. The counts T_k (J,) of
cluster k are the sums of the compositions of its units. The length of the table of counts in nats
is

.. math:: \sum_k \left[ \sum_b g_b(T_{kb}) - \sum_j T_{kj} \log T_{kj} \right]

where T_kb is the sum of the counts of block b in cluster k. With g_b(T) = T log T + log C(J_b, T),
every cluster encodes the symbols of block b by normalised maximum likelihood. Here J_b is the
number of symbols of the block, and log C the parametric complexity of a multinomial. With g_b = 0,
the length is the part of a code of the labels that depends on the partition.

Host code in NumPy and float64. C units are in K clusters.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import xlogy

from nrprob.codelength import multinomial_complexity

_CHUNK = 4_000_000  # entries of a table that are computed at a time
_FEW_SYMBOLS = 64  # up to this number of symbols, equal compositions are evaluated only once


class CountTable:
    """Description length of a table of the counts of J symbols in K clusters; see the module.

    Parameters
    ----------
    compositions : (C, J) counts of J symbols in each of C units
    k : number K of clusters
    blocks : numbers J_b of symbols of consecutive blocks, if the clusters encode the symbols of
        every block by normalised maximum likelihood; None if g_b = 0
    """

    def __init__(self, compositions: np.ndarray, k: int, blocks: np.ndarray | None = None):
        self.k, self.blocks = k, blocks
        self.compositions = compositions.astype(np.float64)
        self.inverse = np.arange(len(compositions))
        self._distinct = self.compositions
        if compositions.shape[1] <= _FEW_SYMBOLS:
            self._distinct, inverse = np.unique(self.compositions, axis=0, return_inverse=True)
            self.inverse = inverse.ravel()
        if blocks is not None:
            self._first = np.cumsum([0, *blocks[:-1]])
            totals = np.add.reduceat(self.compositions, self._first, axis=1).sum(0)
            self._code = [
                _code_table(int(symbols), round(total))
                for symbols, total in zip(blocks, totals, strict=True)
            ]

    def counts(self, z: np.ndarray) -> np.ndarray:
        """Counts (K, J) of the symbols in the clusters, given labels ``z`` (C,) of the units."""
        return (z == np.arange(self.k)[:, None]).astype(np.float64) @ self.compositions

    def lengths(self, counts: np.ndarray) -> np.ndarray:
        """Lengths (...) in nats of clusters with ``counts`` (..., J) of the symbols."""
        result = -xlogy(counts, counts).sum(-1)
        if self.blocks is not None:
            totals = np.add.reduceat(counts, self._first, axis=-1)
            index = np.rint(totals).astype(np.int64)
            for b, table in enumerate(self._code):
                result += table[index[..., b]]
        return result

    def total(self, z: np.ndarray) -> float:
        """Length of the table in nats, given labels ``z`` (C,) of the units."""
        return float(self.lengths(self.counts(z)).sum())

    def changes(self, z: np.ndarray) -> np.ndarray:
        """Changes (C, K) of the length if one of C units alone moves to one of K clusters.

        ``z`` (C,) are the labels before the move. Entries for the present clusters have no meaning.
        """
        counts = self.counts(z)
        present = self.lengths(counts)
        j = counts.shape[1]
        # Joining a cluster depends on the composition only.
        step = max(1, _CHUNK // (self.k * j))
        joining = np.concatenate(
            [
                self.lengths(np.minimum(counts + t[:, None], counts.sum(0)))
                for t in np.split(self._distinct, range(step, len(self._distinct), step))
            ]
        )
        joining -= present
        step = max(1, _CHUNK // j)
        leaving = np.concatenate(
            [
                self.lengths(np.maximum(counts[c] - t, 0)) - present[c]
                for c, t in zip(
                    np.split(z, range(step, len(z), step)),
                    np.split(self.compositions, range(step, len(z), step)),
                    strict=True,
                )
            ]
        )
        return joining[self.inverse] + leaving[:, None]


@lru_cache(64)
def _code_table(symbols: int, total: int) -> np.ndarray:
    """Values (total + 1,) of T log T + log C(symbols, T) for T = 0, 1, ..., total.

    log C is the parametric complexity of a multinomial.
    """
    counts = np.arange(total + 1.0)
    return xlogy(counts, counts) + multinomial_complexity(symbols, counts)


def one_hot(labels: np.ndarray, size: int) -> np.ndarray:
    """One-hot encoding (n, size) of n labels (n,); the row of a negative label is 0."""
    result = np.zeros((len(labels), size))
    labelled = np.flatnonzero(labels >= 0)
    result[labelled, labels[labelled]] = 1
    return result


class SizeTable:
    """Description length that is a sum over clusters of a function of the cluster size.

    Parameters
    ----------
    values : (n + 1,) length of a cluster of 0, 1, ..., n samples
    mass : (C,) number of samples of every unit
    k : number K of clusters
    """

    def __init__(self, values: np.ndarray, mass: np.ndarray, k: int):
        self.values, self.mass, self.k = values, mass, k

    def _sizes(self, z: np.ndarray) -> np.ndarray:
        return np.bincount(z, self.mass, self.k).astype(np.int64)

    def total(self, z: np.ndarray) -> float:
        """Sum of the lengths of the clusters, given labels ``z`` (C,) of the units."""
        return float(self.values[self._sizes(z)].sum())

    def changes(self, z: np.ndarray) -> np.ndarray:
        """Changes (C, K) of the length if one of C units alone moves to one of K clusters.

        ``z`` (C,) are the labels before the move. Entries for the present clusters have no meaning.
        """
        size, last = self._sizes(z), self.values.size - 1
        joining = self.values[np.minimum(size + self.mass[:, None], last)] - self.values[size]
        leaving = self.values[size[z] - self.mass] - self.values[size[z]]
        return joining + leaving[:, None]
