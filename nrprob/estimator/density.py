"""Protocols that an estimator implements for significance tests and model selection.

Shapes: n samples; m columns; d numeric columns; p coordinates of residuals; K clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class DensityEstimator(Protocol):
    """Clusterer with a mixture density of samples, given their known groups.

    The functions of `nrprob.evidence` accept an estimator if it has these five methods, `predict`
    and the parameters ``n_clusters``, ``n_init`` and ``random_state``. With ``n_clusters=1`` the
    estimator must fit one component in the same coordinates. ``known`` is passed only if the user
    passed known groups, so an estimator without known structure may omit the argument.

    Choosing the number of clusters needs only the density of every sample. The tests need three
    more quantities:

    - residuals: null models are fitted to the residuals, and the test of a low-density gap counts
      the residuals near the gap;
    - the covariance of the mixture, so that a null model can have the same regularised covariance;
    - whether clusters are flexible, which determines the null models of the test.
    """

    n_clusters: Any

    def clone_for_tests(self) -> Any:
        """Return an unfitted copy whose fits have the density that the tests assume.

        In the copy, ``n_init`` is a number. The copy subtracts the effects of the known groups.
        """
        ...

    def log_density_of(self, X: Any, *, known: Any = None, scale: Any = None) -> np.ndarray:
        """Log density (n,) of samples in the coordinates of `residuals_of`.

        ``scale`` (n,) multiplies the residuals before the density is evaluated. The mean of a known
        group is estimated from the samples of the fit, so on average a held-out sample is farther
        from this mean than a sample of the fit. The tests correct this by a scale below 1.
        """
        ...

    def residuals_of(self, X: Any, *, known: Any = None) -> np.ndarray:
        """Residuals (n, p): samples minus the fitted mean of their known group.

        Any linear coordinates are valid if all fits to the same samples share them.
        """
        ...

    def mixture_covariance(self) -> np.ndarray:
        """Covariance (p, p) of the mixture in the coordinates of `residuals_of`, up to a factor."""
        ...

    def has_flexible_clusters(self) -> bool:
        """Whether clusters can adapt to heavy tails or to groups of unequal covariance.

        If so, the null models of the tests must be able to adapt, too.
        """
        ...


@runtime_checkable
class LabelInitialised(Protocol):
    """Clusterer that can start from given labels, as `nrprob.evidence.confidence` needs."""

    def clone_for_tests(self) -> Any:
        """Return an unfitted copy; see `DensityEstimator.clone_for_tests`."""
        ...

    def settings_from_labels(self, labels: np.ndarray) -> list[dict[str, Any]]:
        """Return the parameters of several fits: one dictionary per fit.

        The fits start from ``labels`` (n,), and from new initial values. The caller uses the fit
        with the lowest ``objective_``.
        """
        ...


class TableTraits(NamedTuple):
    """Properties of a table and its clusters.

    The error rate of the test was measured on simulated tables. These properties decide whether
    the measurement covers a table.

    Attributes
    ----------
    n_samples, n_numeric, n_discrete, n_clusters : numbers of samples, of numeric and of discrete
        columns, and of clusters
    median_group : median number of samples of the known groups
    missing_share : share of missing values among all cells
    skewness : largest absolute skewness of a numeric column within known groups; 0 without numeric
        columns
    by_group : whether the model lets shares of clusters differ between known groups
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
    """A fit to some samples of a table, evaluated at all n samples."""

    @property
    def log_density(self) -> np.ndarray:
        """Predictive log density (n,) of the samples, given their known groups."""
        ...

    @property
    def membership(self) -> np.ndarray:
        """Probabilities (n, K) of the clusters."""
        ...

    @property
    def residuals(self) -> np.ndarray | None:
        """Residuals (n, d) of the numeric columns after removal of group and location effects.

        A location effect is the effect of a discrete column on numeric columns. Missing values are
        NaN. The result is None without numeric columns.
        """
        ...

    @property
    def pooled_log_density(self) -> np.ndarray:
        """Log density (n,) of the numeric columns under one Gaussian per known group.

        The covariance of every Gaussian is the total covariance of the mixture.
        """
        ...

    @property
    def discrete_log_density(self) -> np.ndarray:
        """Log probability (n,) of the discrete columns in a fit of one cluster."""
        ...

    def standard_residuals(self) -> tuple[np.ndarray, np.ndarray]:
        """Whitened residuals (n, d) of a fit of one cluster, and log determinants (n,).

        The log determinants of the whitening matrices differ between samples with missing values.
        """
        ...

    def power_residuals(self) -> tuple[np.ndarray, np.ndarray]:
        """Whitened residuals (n, d) of a fit of one cluster after a power transformation.

        The log determinants (n,) of transformation and whitening are returned, too.
        """
        ...


class TableRefitter(Protocol):
    """Refit a mixed or incomplete table with the model choices of the fit to all samples."""

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
        """Table (n, m) of numeric values and of integers for discrete values; NaN where missing.

        The result is None without numeric columns.
        """
        ...

    @property
    def traits(self) -> TableTraits:
        """Properties of the table and its clusters."""
        ...

    def fit(
        self, training: np.ndarray, n_clusters: int, n_init: int, seed: int,
        initial: np.ndarray | None = None,
    ) -> Any:  # fmt: skip
        """Fit the samples with the indices ``training``, which may repeat.

        Returns a `TableRefit`. The fit starts from the labels ``initial`` (n,), if they are given.
        """
        ...

    def dependent_log_density(self, training: np.ndarray, single: Any) -> np.ndarray:
        """Log density (n,) of one cluster with a regression for every discrete column.

        A regression, fitted to the samples with the indices ``training``, predicts its column from
        the numeric columns and the preceding discrete columns. ``single`` is a fit of one cluster
        to the same samples.
        """
        ...

    def column_log_density(self, training: np.ndarray, single: Any, j: int) -> np.ndarray:
        """Log density (n,) of a mixture whose components are the values of discrete column j.

        The mixture is fitted to the samples with the indices ``training``, and ``single`` is a fit
        of one cluster to the same samples.
        """
        ...


@runtime_checkable
class TableDensityEstimator(Protocol):
    """Clusterer of mixed and incomplete tables whose density `nrprob.evidence` can test."""

    def is_tested_by_residuals(self, X: Any, *, known: Any = None) -> bool:
        """Whether a table is tested as a numeric array, by a `DensityEstimator`.

        The result is true if the table is complete and numeric, and the estimator subtracts the
        means of the known groups.
        """
        ...

    def table_refits(self, X: Any, *, known: Any = None, seed: int = 0) -> Any:
        """Return the `TableRefitter` of a table; None if it `is_tested_by_residuals`."""
        ...
