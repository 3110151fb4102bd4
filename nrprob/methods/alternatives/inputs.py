"""Inputs of alternative clusterings: dense features and known labels."""

from __future__ import annotations

import numpy as np

from nrprob.estimator.base import DenseClusterer, read_labels
from nrprob.known import Groups, Known, KnownEncoder, read
from nrprob.statistics.features import Scaled


class AlternativeClusterer(DenseClusterer):
    """Clusterer of dense rows that takes known labels, and no wanted ones."""

    _encoder: KnownEncoder
    # What becomes of a row that is alone in its known group; nothing where it is empty.
    _of_singles = ""

    def fit(self, X, y=None, *, known=None):
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
            Float32 input is computed in float32, all else in float64.
        y : array-like of shape (n_samples,), optional
            Present for the sake of pipelines: labels, which are ignored.
        known : array-like, optional
            Labels of shape (n_samples,) to avoid, or several labelings as a 2-D array of integers
            or strings.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data do not fit the parameters; the message says what to change.
        """
        return super().fit(X, y, known=known)

    def _read_rows(self, X, y, known) -> tuple[np.ndarray, Known]:
        """Checked rows, and what is known: labels."""
        X, _ = self._take_in(X, None)
        if y is not None:
            read_labels(y, len(X))
        known = read(known, len(X))
        if known.kind == "soft":
            raise ValueError(
                f"{type(self).__name__} needs known labels; got soft Memberships; pass labels, "
                "such as the most probable group of every row"
            )
        known.columns()  # refuses what is continuous
        return X, known

    def _take_rows(self, X, y, known) -> tuple[np.ndarray, Scaled, Known, Groups]:
        """Checked rows, the same scaled, what is known, and the groups of equal known labels."""
        X, known = self._read_rows(X, y, known)
        self._encoder = KnownEncoder()
        groups = self._encoder.fit(known, len(X))
        self._check_groups(groups, known)
        return X, Scaled.of(X), known, groups

    def _check_groups(self, groups: Groups, known: Known) -> None:
        single = int((np.bincount(groups.codes) == 1).sum())
        if known.kind != "labels" or not 0 < single < groups.codes.size:
            super()._check_groups(groups, known)
        elif self._of_singles:
            self._degenerate(
                f"{single} known group(s) have a single member, {self._of_singles}; got group "
                "sizes down to 1; merge small groups if that matters"
            )
