"""Fits of mixed and incomplete tables to training folds, and their null models.

Clusters of a table have to predict held-out samples better than four types of null models:

- one component with the same form of group effects;
- elliptical and skewed distributions of the numeric columns, times the discrete columns of one
  component;
- one component with a regression of every discrete column on other columns;
- for every discrete column, the mixture whose components are the values of this column.

n is the number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nrprob.estimator.density import TableRefit, TableRefitter
from nrprob.evidence.calibration import reason_without_p_value
from nrprob.evidence.held_out import NULL_MODELS, FoldFit
from nrprob.evidence.null_model import NullModel, observed_t_log_density, skewed_log_density

# Smallest median size of the known groups, in training samples, for separate covariances.
_LARGE_GROUP = 8
# Smallest number of training samples per numeric column for the null model of skewed columns.
_SAMPLES_PER_COLUMN = 4
DEPENDENT = "one cluster with columns that depend on each other"
NORMAL = "one Gaussian, common covariance"
NULL_T = next(name for name, settings in NULL_MODELS.items() if settings == (False, True))
SKEWED = "one skewed distribution of independent components"
POWER = ", after a power transformation"


@dataclass(frozen=True)
class TableFolds:
    """Function that fits a table to training folds, for `cross_fit`.

    Attributes
    ----------
    refits : object that fits the model of the table to some samples of the table
    distinct : (n,) index of the first sample of every set of exact copies; only these n samples are
        fitted
    n_init : number of restarts of a fit
    chooses_number : whether the tested samples were also used to choose the number of clusters
    """

    refits: TableRefitter
    distinct: np.ndarray
    n_init: int
    chooses_number: bool = False
    # Several clusters are chosen if the t statistic of their gain exceeds this. On tables without
    # clusters, fits of several clusters end near one cluster, and their gains are noise.
    least_t = 1.0

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return self.refits.n_clusters

    @property
    def why_unmeasured(self) -> str:
        """Reason to withhold the p-values; empty if the level of the test is confirmed."""
        if self.chooses_number:
            return "the same samples chose the number of clusters"
        return reason_without_p_value(self.refits.traits)

    def __call__(self, train: np.ndarray, test: np.ndarray, seed: int) -> FoldFit:
        """Fit to samples with the indices ``train``; evaluate samples with the indices ``test``."""
        training, held_out = self.distinct[train], self.distinct[test]
        clusters = self.refits.fit(training, self.n_clusters, self.n_init, seed)
        single = self.refits.fit(training, 1, 1, seed)
        null = table_null_densities(self.refits, clusters, single, training)
        residuals = clusters.residuals
        return FoldFit(
            clusters.log_density[held_out],
            {name: value[held_out] for name, value in null.items()},
            clusters.membership[self.distinct].argmax(1),
            self.n_clusters,
            None if residuals is None else residuals[self.distinct],
        )

    def log_densities(
        self, n_clusters: int, train: np.ndarray, test: np.ndarray, seed: int
    ) -> list[np.ndarray]:
        """Log densities (n_held_out,) of the samples ``test``, by a fit to the samples ``train``.

        The list has the log densities under a fit with ``n_clusters`` clusters. If ``n_clusters``
        is 1, the log densities under all other null models follow.
        """
        training, held_out = self.distinct[train], self.distinct[test]
        fit = self.refits.fit(training, n_clusters, self.n_init, seed)
        values = [fit.log_density]
        if n_clusters == 1:
            values += table_null_densities(self.refits, fit, fit, training).values()
        return [value[held_out] for value in values]


def _numeric_log_densities(
    white: np.ndarray, groups: np.ndarray, training: np.ndarray, transformed: bool
) -> dict[str, np.ndarray]:
    """Log densities (n,) of d numeric columns under elliptical and skewed null models, by name.

    If known groups are large, no value is missing and columns are not transformed, every group has
    a separate location and, in some null models, a separate scale matrix. Otherwise all groups
    share one distribution. The skewed distribution needs complete columns.

    Parameters
    ----------
    white : (n, d) whitened residuals, NaN where missing
    groups : (n,) known groups as integers
    training : indices of the samples of the fit
    transformed : whether a power transformation of the columns preceded the whitening
    """
    log_p = {}
    n_observed = (~np.isnan(white)).sum(1)
    square = np.nansum(white**2, axis=1)
    if transformed:
        log_p[NORMAL] = -0.5 * (square + n_observed * np.log(2 * np.pi))
    if np.isnan(white).any() or transformed:
        return log_p | {NULL_T: observed_t_log_density(square, n_observed, training)}
    if len(training) > _SAMPLES_PER_COLUMN * white.shape[1]:
        log_p[SKEWED] = skewed_log_density(white, training)
    # A group without training samples has the size 0, also if it is the last group.
    sizes = np.bincount(groups[training], minlength=groups.max() + 1)
    # Small groups share one covariance, and their means are the fitted group effects.
    large = np.median(sizes) >= _LARGE_GROUP and sizes.min() > 1
    codes = groups if large else np.zeros_like(groups)
    for name, settings in NULL_MODELS.items():
        if not settings or (settings[0] and not large):
            continue
        model = NullModel.from_samples(white[training], codes[training], codes.max() + 1, *settings)
        log_p[name] = model.log_density(white, codes)
    return log_p


def table_null_densities(
    refits: TableRefitter, clusters: TableRefit, single: TableRefit, training: np.ndarray
) -> dict[str, np.ndarray]:
    """Log densities (n,) of all samples under every null model, by name.

    The null models are fitted to the samples with the indices ``training``. ``clusters`` and
    ``single`` are fits of several clusters and of one cluster to the same samples.
    """
    basic, pooled, *_ = NULL_MODELS
    # One component, with the form of group effects of the clusters.
    null = {basic: single.log_density}
    # Distributions of the numeric columns, times the discrete columns of one component.
    if clusters.residuals is not None:
        discrete = single.discrete_log_density
        null[pooled] = clusters.pooled_log_density + discrete
        for transform, (white, log_det) in {
            "": single.standard_residuals(), POWER: single.power_residuals()
        }.items():  # fmt: skip
            log_p = _numeric_log_densities(white, refits.groups, training, bool(transform))
            null |= {name + transform: value + log_det + discrete for name, value in log_p.items()}
    # Dependence between columns: regressions, and mixtures over the values of a discrete column.
    if len(refits.names) > 1 or (refits.names and clusters.residuals is not None):
        null[DEPENDENT] = refits.dependent_log_density(training, single)
    for j, name in enumerate(refits.names):
        null[f"the column {name!r} alone"] = refits.column_log_density(training, single, j)
    return null
