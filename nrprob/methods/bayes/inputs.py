"""Check and encode the input of `nrprob.MDLMixture`: features, classes, known structure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from nrprob.data.design import Design, DesignEncoder
from nrprob.data.labels import read_labels
from nrprob.methods.bayes.covariates import effects_width, with_linear_effects
from nrprob.methods.bayes.feature_models import COUNT_FACTOR
from nrprob.methods.bayes.inference_data import ExportedPosterior
from nrprob.statistics.families import fit_features, missing_property_error

_ROUNDING = 1e-6  # residual standard deviation below which a feature depends linearly on others


@dataclass
class SampledRows:
    """Checked input of one fit.

    Attributes
    ----------
    X : (n, d) standardised samples
    codes : (n,) codes of the classes; -1 where unknown
    design : known structure
    calls : empty, since MCMC does not use the program calls that batch runs share
    """

    X: np.ndarray
    codes: np.ndarray
    design: Design
    calls: tuple = ()


class Inputs(ExportedPosterior):
    """The part of `nrprob.MDLMixture` that checks and encodes the arguments of `fit`."""

    energy: str
    covariance: str
    likelihood_power: float
    errors: str
    transformation: str
    multi: str
    features: str

    def _encode_known(self, known: Any, n: int) -> Design:
        """Encode known structure as groups, or as columns with linear effects.

        Raises ValueError if the model does not allow this known structure.
        """
        self._encoder = DesignEncoder(self.multi, min_additive=2, drop_first=False)
        design = self._encoder.fit(known, n)
        self._effects_width = effects_width(design)
        if known is None:
            return with_linear_effects(design, 0)
        continuous = self._features.features == "gaussian"
        free = not continuous or (self.energy != "nml" and self.kernel == "collapsed")
        if not free or (continuous and self.covariance not in ("auto", "tied")):
            raise ValueError(
                "with known, clusters of continuous features share one covariance under the "
                f"conjugate prior; got kernel={self.kernel!r}, energy={self.energy!r} and "
                f"covariance={self.covariance!r}; leave these at their defaults, or omit known"
            )
        if not continuous and design.kind != "labels":
            raise ValueError(
                "known must be labels if features are counts or binary; got "
                f"{design.description}; pass labels, or use CCIB"
            )
        if not continuous and self.multi != "product":
            raise ValueError(
                f"multi={self.multi!r} is for continuous features; got counts or binary features; "
                "leave it at 'product', or use CCIB"
            )
        self._check_groups(design)
        return with_linear_effects(design, self._effects_width)

    def _read_classes(self, y: Any, n: int) -> np.ndarray:
        if y is None:
            return np.full(n, -1, np.int32)
        classes, codes = read_labels(y, n)
        if classes.size:
            self.classes_ = classes
        return codes

    def _read_features(self, X: np.ndarray) -> None:
        """Determine the type of the features, and the standardisation of continuous ones."""
        plain = self.kernel == "collapsed" and self.covariance == "auto"
        requested = self.features if plain or self.features != "auto" else "gaussian"
        self._features = fit_features(X, requested, None)
        family = self._features.features
        if family == "gaussian":
            self._fit_scaling(X)
            return
        if family not in ("multinomial", "bernoulli"):
            raise missing_property_error(family, "code", ("gaussian", "multinomial", "bernoulli"))
        if not plain:
            raise ValueError(
                f"features={family!r} have no covariance, and need the collapsed kernel; got "
                f"kernel={self.kernel!r} and covariance={self.covariance!r}; leave these at their "
                "defaults, or set features='gaussian'"
            )
        if self.likelihood_power < 1:
            raise ValueError(
                f"likelihood_power is for continuous features; got features={family!r} and "
                f"likelihood_power={self.likelihood_power!r}; set it to 1, or features='gaussian'"
            )
        if self.errors != "gaussian":
            raise ValueError(
                f"errors is for continuous features; got features={family!r} and "
                f"errors={self.errors!r}; set it to 'gaussian', or features='gaussian'"
            )
        if self.transformation != "identity":
            raise ValueError(
                f"transformation={self.transformation!r} is for continuous features; got features="
                f"{family!r}; leave it at 'identity', or set features='gaussian'"
            )
        self._max_total = np.inf
        self._check_coded(X)
        self._max_total = COUNT_FACTOR * max(X.sum(1).max(), 1)
        self._columns, self._mean, self._sd = np.arange(X.shape[1]), np.zeros(1), np.ones(1)

    def _fit_scaling(self, X: np.ndarray) -> None:
        """Drop constant and linearly dependent features; compute means and standard deviations."""
        mean, sd = X.mean(0), X.std(0)
        # Rounding errors grow with the magnitude of the values.
        constant = sd <= 1e-10 * np.maximum(np.abs(X).max(0), np.finfo(float).tiny)
        if X.shape[0] > 1 and constant.any():
            self._warn_degenerate(
                f"{constant.sum()} constant column(s) have no information about clusters and are "
                f"left out; got {_name_columns(np.flatnonzero(constant))}; drop them"
            )
        self._columns = np.flatnonzero(~constant)
        self._mean, self._sd = mean[self._columns], sd[self._columns]
        # With correlations within clusters, linearly dependent features have no density. Models of
        # independent features have a density.
        correlated = self.kernel == "collapsed" and self.energy != "nml"
        correlated = correlated and self.covariance != "diag"
        # With fewer samples than features, some features always depend on others.
        if correlated and X.shape[0] > self._columns.size:
            self._drop_dependent(_find_dependent(self._standardise(X)))

    def _drop_dependent(self, dependent: np.ndarray) -> None:
        """Drop features that depend linearly on others; ``dependent`` (m,) is their mask."""
        if not dependent.any():
            return
        which = self._columns[dependent]
        self._warn_degenerate(
            f"{len(which)} column(s) are linear combinations of others and are left out; got "
            f"{_name_columns(which)}; drop them"
        )
        self._columns = self._columns[~dependent]
        self._mean, self._sd = self._mean[~dependent], self._sd[~dependent]


def _name_columns(columns: np.ndarray) -> str:
    return f"column {', '.join(map(str, columns[:5]))}{', ...' if len(columns) > 5 else ''}"


def _find_dependent(X: np.ndarray) -> np.ndarray:
    """Mask (m,) of features of standardised samples ``X`` (n, m) to drop as linearly dependent.

    Each masked feature is a linear combination of features that are not masked.
    """
    dependent = np.zeros(X.shape[1], bool)
    if X.size:
        triangle, order = linalg.qr(X, mode="r", pivoting=True, check_finite=False)
        residual = np.abs(np.diag(triangle)) / np.sqrt(len(X))
        dependent[order[: len(residual)]] = residual < _ROUNDING
    return dependent
