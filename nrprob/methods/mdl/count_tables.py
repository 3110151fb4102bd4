r"""Description lengths of counts by cluster, and their exact changes if one unit moves.

Units are samples, or sets of samples that share a cluster. A unit u has a composition t_u (J,), its
counts of J symbols, which are divided into blocks. The counts T_k of cluster k are the sums of the
compositions of its units. The length of the table in nats is

.. math:: \sum_k \left[ \sum_b g_b(T_{kb}) - \sum_j T_{kj} \log T_{kj} \right]

where T_kb is the sum of the counts of block b in cluster k. With g_b(T) = T log T + log C(J_b, T),
a cluster encodes the symbols of a block by normalised maximum likelihood, for J_b symbols and their
parametric complexity C. With g_b = 0, the table is the part of a code of the labels that depends on
the partition.

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
    """Length of the counts of the clusters of one view.

    Parameters
    ----------
    compositions : (C, J) counts of every unit
    k : number K of clusters
    blocks : numbers of symbols of consecutive blocks, whose symbols are encoded given the cluster;
        None if the table has no such code
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
        """Counts (K, J) of the clusters ``z`` (C,)."""
        return (z == np.arange(self.k)[:, None]).astype(np.float64) @ self.compositions

    def lengths(self, counts: np.ndarray) -> np.ndarray:
        """Lengths (...) of clusters with counts (..., J)."""
        result = -xlogy(counts, counts).sum(-1)
        if self.blocks is not None:
            totals = np.add.reduceat(counts, self._first, axis=-1)
            index = np.rint(totals).astype(np.int64)
            for b, table in enumerate(self._code):
                result += table[index[..., b]]
        return result

    def total(self, z: np.ndarray) -> float:
        """Length of labels ``z`` (C,)."""
        return float(self.lengths(self.counts(z)).sum())

    def changes(self, z: np.ndarray) -> np.ndarray:
        """Change (C, K) of the length if one unit alone moves, not defined where it stays."""
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
    """Values T log T + log C(symbols, T) for T = 0, 1, ..., total."""
    counts = np.arange(total + 1.0)
    return xlogy(counts, counts) + multinomial_complexity(symbols, counts)


def one_hot(labels: np.ndarray, size: int) -> np.ndarray:
    """Compositions (n, size) of labels (n,); a negative label has no symbol."""
    result = np.zeros((len(labels), size))
    labelled = np.flatnonzero(labels >= 0)
    result[labelled, labels[labelled]] = 1
    return result


class SizeTable:
    """Length ``values[n]`` of a cluster of n samples, summed over clusters.

    Parameters
    ----------
    values : (n + 1,) lengths
    mass : (C,) numbers of samples of the units
    k : number K of clusters
    """

    def __init__(self, values: np.ndarray, mass: np.ndarray, k: int):
        self.values, self.mass, self.k = values, mass, k

    def _sizes(self, z: np.ndarray) -> np.ndarray:
        return np.bincount(z, self.mass, self.k).astype(np.int64)

    def total(self, z: np.ndarray) -> float:
        """Length of labels ``z`` (C,)."""
        return float(self.values[self._sizes(z)].sum())

    def changes(self, z: np.ndarray) -> np.ndarray:
        """Change (C, K) of the length if one unit alone moves, not defined where it stays."""
        size, last = self._sizes(z), self.values.size - 1
        joining = self.values[np.minimum(size + self.mass[:, None], last)] - self.values[size]
        leaving = self.values[size[z] - self.mass] - self.values[size[z]]
        return joining + leaving[:, None]
