"""Known structure of the sampler: groups, or covariates with linear effects."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nrprob.known import DesignEncoder, Known, KnownEncoder
from nrprob.statistics.rows import rounded

MOST_NUMBERS = 500


class Told(NamedTuple):
    """What is known of n rows: their ``group`` (n,) of ``n_groups``, or ``numbers`` (n, Q)."""

    group: np.ndarray
    n_groups: int = 1
    numbers: np.ndarray | None = None

    @property
    def anything(self) -> bool:
        """Whether anything is known."""
        return self.n_groups > 1 or self.numbers is not None

    def of(self, rows: Any) -> Told:
        """What is known of some rows."""
        numbers = None if self.numbers is None else self.numbers[rows]
        return self._replace(group=self.group[rows], numbers=numbers)


class ToldEncoder:
    """Turns what is known of rows of the fit, or of new ones, into `Told`.

    Labels are groups; so are several labelings, by their combinations, unless their effects add up:
    then there is a column of 0 and 1 for every label. Numbers are standardised columns, and shares
    in groups are columns as they are. Columns of zeros round their number up.
    """

    def fit(self, known: Known, multi: str) -> Told:
        """Learn how ``known`` is encoded, and encode it."""
        added = known.kind == "labels" and multi == "additive" and known.labelings.shape[1] > 1
        self._design = known.modelled or added
        self._encoder = DesignEncoder() if self._design else KnownEncoder()
        self._room, self._n_groups = 0, 1
        result: Any = self._encoder.fit(known, known.n_samples)
        if not self._design and result.share is None:
            self._n_groups = result.n_groups
        told = self._told(result)
        if told.numbers is None:
            return told
        if (width := told.numbers.shape[1]) > MOST_NUMBERS:
            raise ValueError(
                f"known may have up to {MOST_NUMBERS} columns, of numbers, shares or labels; got "
                f"{width}; pass fewer, or set multi='product' if they are labels"
            )
        self._room = rounded(width, known.n_samples)
        return told._replace(numbers=self._padded(told.numbers))

    def transform(self, known: Any, n_samples: int) -> Told:
        """Encode what is known of new rows."""
        return self._told(self._encoder.transform(known, n_samples))

    def _told(self, result: Any) -> Told:
        if self._design:
            return Told(
                np.zeros(len(result), np.int32), numbers=self._padded(self._columns(result))
            )
        if result.share is not None:
            numbers = self._padded(np.asarray(result.share, float))
            return Told(np.zeros(len(numbers), np.int32), numbers=numbers)
        return Told(result.codes.astype(np.int32), self._n_groups)

    def _columns(self, design: np.ndarray) -> np.ndarray:
        """Columns without the one of ones, and with one for the first label of every labeling.

        So all labels have the same prior.
        """
        encoder: Any = self._encoder
        sizes = [len(names) - 1 for names in encoder.categories_ or []]
        labels = design.shape[1] - sum(sizes)
        parts = [design[:, 1:labels]]
        for size in sizes:
            own = design[:, labels : labels + size]
            parts += [1 - own.sum(1, keepdims=True), own]
            labels += size
        return np.concatenate(parts, 1)

    def _padded(self, numbers: np.ndarray) -> np.ndarray:
        return np.pad(numbers, ((0, 0), (0, max(self._room - numbers.shape[1], 0))))
