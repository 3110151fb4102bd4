"""Base class of the estimators for alternative clustering: input of features and known labels.

Sizes: n rows of m features.
"""

from __future__ import annotations

import numpy as np

from nrprob.data.design import Design, DesignEncoder
from nrprob.data.labels import read_labels
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.dense import DenseClusterer
from nrprob.statistics.features import StandardisedRows


class AlternativeClusterer(DenseClusterer):
    """Base class of clusterers of dense rows that accept known labels, but no target labels."""

    capabilities = Capabilities(labels=False, alone=True)

    _encoder: DesignEncoder
    # Consequence of known groups of one row, for a warning about them; if "", there is no warning.
    _singleton_note = ""

    def fit(self, X, y=None, *, known=None):
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
            Float32 input is computed in float32, and all other input in float64.
        y : array-like of shape (n_samples,), optional
            Ignored; present for compatibility with scikit-learn pipelines.
        known : array-like, optional
            Known labels of shape (n_samples,), which the clusters should not reproduce. A 2-D array
            of integers or strings has one known labeling per column.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data are incompatible with the parameters.
        """
        return super().fit(X, y, known=known)

    def _read_rows(self, X, y, known) -> tuple[np.ndarray, Design]:
        """Validate the rows and the known labels; return the rows and the known structure."""
        X, _ = self._check_input(X, None)
        if y is not None:
            read_labels(y, len(X))
        self._encoder = DesignEncoder()
        design = self._encoder.fit(known, len(X))
        if design.kind == "soft":
            raise ValueError(
                f"{type(self).__name__} needs known labels; got soft Memberships; pass labels, "
                "such as the most probable group of each row"
            )
        return X, design

    def _take_rows(self, X, y, known) -> tuple[np.ndarray, StandardisedRows, Design]:
        """Validate the input, and scale the rows.

        Returns
        -------
        X : (n, m) validated rows
        data : scaled rows
        design : known structure; its groups are the combinations of known labels
        """
        X, design = self._read_rows(X, y, known)
        self._check_groups(design)
        return X, StandardisedRows.from_rows(X), design

    def _check_groups(self, design: Design) -> None:
        single = int((np.bincount(design.codes) == 1).sum())
        if design.kind != "labels" or not 0 < single < design.n_samples:
            super()._check_groups(design)
        elif self._singleton_note:
            self._warn_degenerate(
                f"{single} known group(s) have a single member, {self._singleton_note}; got group "
                "sizes down to 1; merge small groups if that matters"
            )
