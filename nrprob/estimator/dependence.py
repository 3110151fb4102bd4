"""Warn of fitted clusters that depend on a single feature or on known covariates."""

from __future__ import annotations

from typing import Any

from nrprob.data.design import covariates_of
from nrprob.exceptions import warnings_are_ignored
from nrprob.statistics.covariates import warn_of_covariates
from nrprob.statistics.single_feature import warn_of_single_feature


def warn_of_dependence(model: Any, X: Any, known: Any) -> None:
    """Warn if one discrete feature determines the clusters, or if they depend on covariates.

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
