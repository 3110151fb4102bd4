"""Protocols for the significance tests and model selection of an estimator."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class DensityEstimator(Protocol):
    """Clusterer with a mixture density of samples, given their known groups.

    An estimator takes part in `nrprob.evidence` if it has these five methods, `predict` and the
    parameters ``n_clusters``, ``n_init`` and ``random_state``. With ``n_clusters=1`` it must fit
    one component in the same coordinates. ``known`` is passed only if the user passed known groups,
    so an estimator without known structure may omit the argument.

    A density per sample alone is enough to choose the number of clusters. The tests need three more
    quantities:

    - residuals, in which null models are fitted and rows near low-density gaps are counted;
    - the covariance of the mixture, so that a null model can have the same regularised covariance;
    - whether clusters are flexible, which determines the number of null models they have to beat.
    """

    n_clusters: Any

    def clone_for_tests(self) -> Any:
        """Unfitted copy, whose fits have the density that the tests assume.

        Its ``n_init`` is a number, and it subtracts the effects of the known groups.
        """
        ...

    def log_density_of(self, X: Any, *, known: Any = None, scale: Any = None) -> np.ndarray:
        """Log density (n,) of samples in the coordinates of `residuals_of`.

        ``scale`` (n,) multiplies the residuals before the density is evaluated. A held-out sample
        is further from the mean of its known group than the samples of the fit, from which the mean
        was estimated; the tests correct for this by a scale below 1.
        """
        ...

    def residuals_of(self, X: Any, *, known: Any = None) -> np.ndarray:
        """Residuals (n, p) of samples: the fitted mean of the known group is subtracted.

        Any linear coordinates are valid if all fits to the same samples share them.
        """
        ...

    def mixture_covariance(self) -> np.ndarray:
        """Covariance (p, p) of the mixture in these coordinates, up to a factor."""
        ...

    def has_flexible_clusters(self) -> bool:
        """Whether clusters can adapt to heavy tails or to groups of unequal covariance.

        If so, they have to beat null models that can adapt as well.
        """
        ...


@runtime_checkable
class LabelInitialised(Protocol):
    """Clusterer that can start from given labels, as `nrprob.evidence.confidence` needs."""

    def clone_for_tests(self) -> Any:
        """Unfitted copy; see `DensityEstimator`."""
        ...

    def settings_from_labels(self, labels: np.ndarray) -> list[dict[str, Any]]:
        """Parameters of fits that start from ``labels`` (n,) and from new initial values.

        The fit with the lowest ``objective_`` is used.
        """
        ...
