"""Warn of fitted clusters that depend on a single feature or on known structure."""

from __future__ import annotations

from typing import Any

from nrprob.data.design import DesignEncoder, covariates_of
from nrprob.exceptions import DegenerateClusterWarning, warn, warnings_are_ignored
from nrprob.statistics.covariates import warn_of_covariates
from nrprob.statistics.groups import cross_table, describe_single_groups
from nrprob.statistics.single_feature import warn_of_single_feature


def warn_of_dependence(model: Any, X: Any, known: Any) -> None:
    """Warn of clusters that depend on a single feature or on known structure.

    The function warns if one discrete feature determines the clusters, or if clusters depend on
    covariates. For some classes, it also warns if a cluster lies in one known group.

    Parameters
    ----------
    model : fitted estimator
    X : features of the fit
    known : known structure of the fit, or None
    """
    if model._warns_of_single_feature:
        warn_of_single_feature(X, model.labels_)
    if "continuous" in model.capabilities.known and not warnings_are_ignored():
        covariates, names = covariates_of(known, len(model.labels_))
        if covariates is not None:
            warn_of_covariates(covariates, names, model.labels_)
    if model._warns_of_single_group and known is not None and not warnings_are_ignored():
        design = DesignEncoder("product").fit(known, len(model.labels_))
        if design.kind == "labels":
            shape = design.n_groups, int(model.labels_.max()) + 1
            message = describe_single_groups(cross_table(design.codes, model.labels_, shape))
            if message:
                warn(message, DegenerateClusterWarning)
