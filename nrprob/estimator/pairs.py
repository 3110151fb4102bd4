"""Base class of estimators that take pairs of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.dense import PlainClusterer
from nrprob.links import Pairs, check_cannot_link, check_pairs, pairs_from_labels


@dataclass
class PairTask:
    """Validated input of one fit with pairs of rows.

    Attributes
    ----------
    X : (n_samples, n_features) rows
    fixed : (n_samples,) cluster of every labelled row, -1 for all other rows; None without labels
    must_link, cannot_link : (n_pairs, 2) indices of the two rows of every pair
    """

    X: np.ndarray
    fixed: np.ndarray | None
    must_link: np.ndarray
    cannot_link: np.ndarray
    calls: Any = ()

    def hard_pairs(self, hard: bool = True) -> tuple[list[Pairs], list[Pairs]]:
        """Return must-links and cannot-links that the clusters must satisfy.

        The result has the pairs that follow from partial labels and, if ``hard``, the pairs of the
        user.
        """
        must, cannot = [], []
        if hard:
            must.append(Pairs(self.must_link, "must_link"))
            cannot.append(Pairs(self.cannot_link, "cannot_link"))
        if self.fixed is not None:
            same, different = pairs_from_labels(self.fixed)
            must.append(Pairs(same, "y"))
            cannot.append(Pairs(different, "y"))
        return must, cannot


class PairEstimator(PlainClusterer):
    """Clusterer of dense rows whose ``fit`` takes ``must_link`` and ``cannot_link``."""

    capabilities = Capabilities(known=(), pairs=True, alone=True)

    def prepare(self, X, y, known=None, *, must_link=None, cannot_link=None) -> PairTask:
        """Validate the input, and return the task of the fit."""
        X, fixed = self._check_input(X, y)
        must_link = check_pairs(must_link, len(X), "must_link")
        return PairTask(X, fixed, must_link, check_cannot_link(cannot_link, len(X)))
