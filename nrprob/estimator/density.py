"""Protocols for the significance tests and model selection of an estimator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

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
        was estimated. The tests correct for this by a scale below 1.
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


class TableTraits(NamedTuple):
    """What a table and its clusters are like, by which the level of a test is known or not.

    Attributes
    ----------
    n_samples, n_numeric, n_discrete, n_clusters : int
    median_group : median number of samples of the known groups
    missing_share : share of missing values among all cells
    skewness : largest absolute skewness of a numeric column within known groups; 0 without numbers
    by_group : whether shares of clusters differ between known groups
    """

    n_samples: int
    n_numeric: int
    n_discrete: int
    n_clusters: int
    median_group: float
    missing_share: float
    skewness: float
    by_group: bool


class TableRefit(Protocol):
    """A fit to some samples of a table, evaluated at all of them."""

    @property
    def log_density(self) -> np.ndarray:
        """Predictive log density (n,), given the known group."""
        ...

    @property
    def membership(self) -> np.ndarray:
        """Probabilities (n, K) of the clusters."""
        ...

    @property
    def residuals(self) -> np.ndarray | None:
        """Numbers (n, d) less group and location effects, NaN where missing; None without them."""
        ...

    @property
    def pooled_log_density(self) -> np.ndarray:
        """Log density (n,) of the numbers under one Gaussian with the mixture's covariance."""
        ...

    @property
    def discrete_log_density(self) -> np.ndarray:
        """Log probability (n,) of the discrete values, of a fit of one cluster."""
        ...

    def standard_residuals(self) -> tuple[np.ndarray, np.ndarray]:
        """Whitened observed residuals (n, d) of one cluster, and log determinants (n,)."""
        ...

    def power_residuals(self) -> tuple[np.ndarray, np.ndarray]:
        """Whitened residuals (n, d) after a power transformation, and log determinants (n,)."""
        ...


class TableRefitter(Protocol):
    """Refits of a mixed or incomplete table with the decisions of the fit to all samples."""

    @property
    def groups(self) -> np.ndarray:
        """Known groups (n,) as integers."""
        ...

    @property
    def names(self) -> Sequence[Any]:
        """Names of the discrete columns."""
        ...

    @property
    def labels(self) -> np.ndarray:
        """Clusters (n,) of the fit to all samples."""
        ...

    @property
    def n_clusters(self) -> int:
        """Number of clusters of the fit to all samples."""
        ...

    @property
    def values(self) -> np.ndarray | None:
        """Numbers and codes (n, m), NaN where missing; None without numeric columns."""
        ...

    @property
    def traits(self) -> TableTraits:
        """What the table and its clusters are like."""
        ...

    def fit(
        self, training: np.ndarray, n_clusters: int, n_init: int, seed: int,
        initial: np.ndarray | None = None,
    ) -> Any:  # fmt: skip
        """`TableRefit` to samples by index, which may repeat; ``initial`` labels (n,) to start."""
        ...

    def dependent_log_density(self, training: np.ndarray, single: Any) -> np.ndarray:
        """Log density (n,) of one cluster whose discrete columns depend on all other columns."""
        ...

    def column_log_density(self, training: np.ndarray, single: Any, j: int) -> np.ndarray:
        """Log density (n,) with a discrete column in the place of the clusters.

        ``single`` is a fit of one cluster to the same samples.
        """
        ...


@runtime_checkable
class TableDensityEstimator(Protocol):
    """Clusterer of mixed and incomplete tables whose density takes part in `nrprob.evidence`."""

    def is_tested_by_residuals(self, X: Any, *, known: Any = None) -> bool:
        """Whether a table has complete numbers, and means of known groups are subtracted."""
        ...

    def table_refits(self, X: Any, *, known: Any = None, seed: int = 0) -> Any:
        """`TableRefitter` of a table; None if it is tested by its residuals."""
        ...
