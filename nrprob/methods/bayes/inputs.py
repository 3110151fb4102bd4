"""Inputs of the sampler: features and their model, classes, known structure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from nrprob.data.design import Design, DesignEncoder
from nrprob.estimator.base import read_labels
from nrprob.methods.bayes.covariates import effects_width, with_linear_effects
from nrprob.methods.bayes.model import LONGER
from nrprob.methods.bayes.prediction import Sampled
from nrprob.statistics.families import fit_features, missing_property_error

_ROUNDING = 1e-6  # standard deviations of a column that others leave, and less: it was rounded


@dataclass
class SampledRows:
    """Checked input of one fit: standardised rows (n, d), classes (n,), -1 for none, and design."""

    X: np.ndarray
    codes: np.ndarray
    design: Design
    calls: tuple = ()  # what is sampled goes on, and is no single call


class Inputs(Sampled):
    """The part of `nrprob.MDLMixture` that reads what `fit` is given."""

    energy: str
    covariance: str
    likelihood_power: float
    errors: str
    transformation: str
    multi: str
    features: str

    def _encode_known(self, known: Any, n: int) -> Design:
        """Return groups, or columns of linear effects."""
        self._encoder = DesignEncoder(self.multi, min_additive=2, drop_first=False)
        design = self._encoder.fit(known, n)
        self._effects_width = effects_width(design)
        if known is None:
            return with_linear_effects(design, 0)
        real = self._features.features == "gaussian"
        free = not real or (self.energy != "nml" and self.kernel == "collapsed")
        if not free or (real and self.covariance not in ("auto", "tied")):
            raise ValueError(
                "with known, clusters of real rows share one covariance under the conjugate prior; "
                f"got kernel={self.kernel!r}, energy={self.energy!r} and "
                f"covariance={self.covariance!r}; leave these at their defaults, or known out"
            )
        if not real and design.kind != "labels":
            raise ValueError(
                "known must be labels if features are counts or binary; got "
                f"{design.description}; pass labels, or use CCIB"
            )
        if not real and self.multi != "product":
            raise ValueError(
                f"multi={self.multi!r} is for real features; got counts, or zeros and ones; leave "
                "it at 'product', or use CCIB"
            )
        self._check_groups(design)
        return with_linear_effects(design, self._effects_width)

    def _codes(self, y: Any, n: int) -> np.ndarray:
        if y is None:
            return np.full(n, -1, np.int32)
        classes, codes = read_labels(y, n)
        if classes.size:
            self.classes_ = classes
        return codes

    def _read_features(self, X: np.ndarray) -> None:
        """Choose the model of the features, and what rows are scaled by."""
        plain = self.kernel == "collapsed" and self.covariance == "auto"
        asked = self.features if plain or self.features != "auto" else "gaussian"
        self._features = fit_features(X, asked, None)
        kind = self._features.features
        if kind == "gaussian":
            self._standardise(X)
            return
        if kind not in ("multinomial", "bernoulli"):
            raise missing_property_error(kind, "code", ("gaussian", "multinomial", "bernoulli"))
        if not plain:
            raise ValueError(
                f"features={kind!r} have no covariance, and the collapsed kernel only; got "
                f"kernel={self.kernel!r} and covariance={self.covariance!r}; leave these at their "
                "defaults, or set features='gaussian'"
            )
        if self.likelihood_power < 1:
            raise ValueError(
                f"likelihood_power is for real features; got features={kind!r} and "
                f"likelihood_power={self.likelihood_power!r}; set it to 1, or features='gaussian'"
            )
        if self.errors != "gaussian":
            raise ValueError(
                f"errors are of real features; got features={kind!r} and errors={self.errors!r}; "
                "set it to 'gaussian', or features='gaussian'"
            )
        if self.transformation != "identity":
            raise ValueError(
                f"transformation={self.transformation!r} is for real features; got features="
                f"{kind!r}; leave it at 'identity', or set features='gaussian'"
            )
        self._longest = np.inf
        self._check_coded(X)
        self._longest = LONGER * max(X.sum(1).max(), 1)
        self._kept, self._mean, self._sd = np.arange(X.shape[1]), np.zeros(1), np.ones(1)

    def _standardise(self, X: np.ndarray) -> None:
        mean, sd = X.mean(0), X.std(0)
        # Rounding leaves a trace of the size of the numbers themselves.
        constant = sd <= 1e-10 * np.maximum(np.abs(X).max(0), np.finfo(float).tiny)
        if X.shape[0] > 1 and constant.any():
            self._degenerate(
                f"{constant.sum()} constant column(s) say nothing of clusters and are left out; "
                f"got {_named(np.flatnonzero(constant))}; drop them"
            )
        self._kept = np.flatnonzero(~constant)
        self._mean, self._sd = mean[self._kept], sd[self._kept]
        # Of normal clusters with correlations; of others a column that is repeated counts again.
        whole = self.kernel == "collapsed" and self.energy != "nml" and self.covariance != "diag"
        # Of fewer rows than columns, columns always follow from others.
        if whole and X.shape[0] > self._kept.size:
            self._leave_out(_following(self._scaled(X)))

    def _leave_out(self, following: np.ndarray) -> None:
        """Leave out columns (m,) that follow from others."""
        if not following.any():
            return
        which = self._kept[following]
        self._degenerate(
            f"{len(which)} column(s) are linear combinations of others, say nothing more, and are "
            f"left out; got {_named(which)}; drop them"
        )
        self._kept = self._kept[~following]
        self._mean, self._sd = self._mean[~following], self._sd[~following]


def _named(columns: np.ndarray) -> str:
    return f"column {', '.join(map(str, columns[:5]))}{', ...' if len(columns) > 5 else ''}"


def _following(X: np.ndarray) -> np.ndarray:
    """Which columns of standardised rows (n, m) are sums of multiples of others, and a constant."""
    following = np.zeros(X.shape[1], bool)
    if X.size:
        triangle, order = linalg.qr(X, mode="r", pivoting=True, check_finite=False)
        left = np.abs(np.diag(triangle)) / np.sqrt(len(X))
        following[order[: len(left)]] = left < _ROUNDING
    return following
