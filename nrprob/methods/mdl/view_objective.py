"""Description length of the labels of one view, with the labels of all other views fixed.

A unit, a must-link component or a sample, has one label. C units are in at most K clusters; m
labelings are evaluated at a time. There are d features and e hard cannot-links. Host code in NumPy
and float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nrprob.methods.mdl.count_tables import CountTable
from nrprob.methods.mdl.feature_lengths import FeatureLengths
from nrprob.methods.mdl.linked_words import LinkedWords
from nrprob.methods.mdl.sizes import SizeLimits
from nrprob.methods.mdl.soft_words import SoftWords
from nrprob.statistics.squared_distances import cluster_sums

_CHUNK = 4_000_000  # entries of a table that are computed at a time
_NO_LINKS = np.zeros(0, np.int64)


class ViewObjective:
    """Sum of the parts of the description length that depend on the labels of one view.

    The class implements `nrprob.engines.optimise.move_chains.MoveObjective`.

    Attributes
    ----------
    features : description length of the features of the view
    k : largest number K of clusters
    words : code words under cannot-links or soft pairs; None if ``tables`` have the code of the
        labels
    tables : tables of counts by cluster, whose lengths code the labels, known classes, and labels
        of other views given the labels
    charges : (K + 1,) for every number of clusters with units, the part of the length that depends
        only on this number
    limits : limits on the numbers of samples per cluster; None without limits
    mean : (C, d) mean features of the samples of every unit
    mass : (C,) number of samples of every unit
    """

    def __init__(
        self,
        features: FeatureLengths,
        k: int,
        words: LinkedWords | SoftWords | None,
        tables: Sequence[CountTable],
        charges: np.ndarray,
        limits: SizeLimits | None = None,
    ):
        self.features, self.k, self.words = features, k, words
        self.tables, self.charges, self.limits = tables, charges, limits
        self.mean, self.mass = features.mean, features.mass

    @property
    def links(self) -> tuple[np.ndarray, np.ndarray]:
        """Two arrays (e,): the two units of every hard cannot-link.

        The code word of the unit in the first array is sent before the word of the second.
        """
        hard = None if self.words is None else self.words.hard_links
        return (_NO_LINKS, _NO_LINKS) if hard is None else (hard.early, hard.late)

    def _used(self, z: np.ndarray) -> np.ndarray:
        """Numbers (m,) of clusters that have units, in m labelings z (m, C)."""
        return (cluster_sums(z, self.mass, self.k) > 0).sum(1)

    def _partial_totals(self, z: np.ndarray) -> np.ndarray:
        """Lengths (m,) of m labelings z (m, C), without the code words in ``words``.

        The length is infinite if a labeling violates a limit on sizes.
        """
        step = max(1, _CHUNK // z.shape[1])
        parts = [self.features.totals(z[i : i + step]) for i in range(0, len(z), step)]
        result = np.concatenate([np.zeros(0), *parts]) + self.charges[self._used(z)]
        for table in self.tables:
            result += [table.total(labels) for labels in z]
        broken = self.violations(z)
        return result if broken is None else np.where(broken.any(1), np.inf, result)

    def totals(self, z: np.ndarray) -> np.ndarray:
        """Description lengths (m,) of m labelings z (m, C).

        The length is infinite if a labeling violates a limit on sizes.
        """
        result = self._partial_totals(z)
        return result if self.words is None else result + self.words.totals(z)

    def estimates(self, z: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Upper bounds (m,) of the description lengths of m labelings z (m, C).

        ``present`` (C,) are the current labels, whose cluster probabilities give the bounds.
        """
        result = self._partial_totals(z)
        return result if self.words is None else result + self.words.estimates(z, present)

    def differences(self, z: np.ndarray, *, relaxed: bool = False) -> np.ndarray:
        """Changes (m, C, K) of the length if one of C units moves to one of K clusters.

        ``z`` (m, C) are m labelings before the move. The change is 0 for the present cluster, and
        infinite if a cannot-link forbids the move. The change is also infinite if the move violates
        limits on sizes, unless ``relaxed``.
        """
        m, c = z.shape
        step = max(1, _CHUNK // (c * self.k))
        if m > step:
            parts = [self.differences(z[i : i + step], relaxed=relaxed) for i in range(0, m, step)]
            return np.concatenate(parts)
        result = self.features.changes(z)
        for table in self.tables:
            for labels, change in zip(z, result, strict=True):
                change += table.changes(labels)
        # Number of clusters with units, before and after the move.
        size = cluster_sums(z, self.mass, self.k)
        present = np.take_along_axis(size, z, 1)
        used = (size > 0).sum(1)
        after = used[:, None, None] - (present == self.mass)[:, :, None] + (size == 0)[:, None]
        result += self.charges[after] - self.charges[used][:, None, None]
        if self.words is not None:
            result += self.words.changes(z)
        if self.violations(z) is not None and not relaxed:
            assert self.limits is not None
            grown = size[:, None] + self.mass[:, None]
            result[self.limits.violated_by(grown)] = np.inf
            result[self.limits.violated_by(present - self.mass)] = np.inf
        np.put_along_axis(result, z[:, :, None], 0.0, 2)
        return result

    def violations(self, z: np.ndarray) -> np.ndarray | None:
        """Mask (m, K) of the clusters of m labelings z (m, C) that violate a limit on sizes.

        The result is None without limits.
        """
        limits = self.limits
        if limits is None or (limits.low == 0 and limits.high >= self.mass.sum()):
            return None
        return limits.violated_by(cluster_sums(z, self.mass, self.k))

    def together(self, units: np.ndarray) -> np.ndarray:
        """Select units from the sequence ``units`` that may move at the same time.

        No hard cannot-link connects two of the selected units; earlier ones have priority.
        """
        return units if self.words is None else self.words.together(units)
