"""Make the model and the prior of `nrprob.MDLMixture` from the parameters of the constructor."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob.methods.bayes.component_prior import prior_of_components
from nrprob.methods.bayes.concentrations import SIZE_VALUES
from nrprob.methods.bayes.feature_models import (
    BinaryFeatures,
    BoundedGaussian,
    CountFeatures,
    FeatureModel,
    SampledGaussian,
)
from nrprob.methods.bayes.inputs import Inputs
from nrprob.methods.bayes.model import FIXED_CONCENTRATION, MixtureModel

# Values of mean_precision, variance_shape and variance_scale for "auto" with kernel="six-move".
_FIXED_PRIOR = 0.3, 2.0, 0.5
_DISCRETE = {"multinomial": CountFeatures, "bernoulli": BinaryFeatures}


class ModelSettings(Inputs):
    """The part of `nrprob.MDLMixture` that makes the model and evaluates its prior."""

    max_clusters: Any
    concentration: Any
    class_concentration: Any
    mean_precision: Any
    variance_shape: Any
    variance_scale: Any
    feature_concentration: Any
    coordination_weight: Any
    unordered: bool
    covariance_: str

    def prior_n_clusters(self, n_samples=None):
        r"""Prior predictive distribution of the number of components.

        .. math:: P(k) \propto \frac{1}{(k!)^{1 - u}} \sum_\alpha Q_k(n, \alpha), \quad k \leq K,

        where :math:`Q_k(n, \alpha)` is the probability that n samples of a mixture with k
        components and Dirichlet(:math:`\alpha`) weights leave no component empty. The sum is over
        the grid of the concentration :math:`\alpha`, or has one term if the concentration is fixed.
        K is the largest number of components, and u is 1 if ``unordered`` and otherwise 0.

        Parameters
        ----------
        n_samples : int, optional
            Number of samples n, at most 1e7; by default the number of samples in `fit`.

        Returns
        -------
        pandas.Series
            Probability of each number of components (index ``n_components``), up to the smaller of
            ``max_clusters`` and ``n_samples``.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            If ``n_samples`` is None before `fit`.

        See Also
        --------
        nrprob.posterior.n_clusters : Posterior distribution of the number of clusters.

        Notes
        -----
        With ``energy="nml"`` and ``kernel="collapsed"``, :math:`Q_k` is the share of the labelings
        without empty components in the normalised maximum likelihood of k labels. With
        ``energy="nml"`` and ``kernel="six-move"``, components may be empty, and :math:`Q_k` is 1.
        Before `fit`, ``features="auto"`` means continuous features. The prior does not depend on
        the values of the features, on classes or on known structure. The cost is O(n K) for each
        concentration.

        Examples
        --------
        >>> from nrprob import MDLMixture
        >>> MDLMixture(concentration=1).prior_n_clusters(150).head(4).round(3).tolist()
        [0.582, 0.289, 0.095, 0.023]
        """
        self.check_parameters()
        if n_samples is None:
            check_is_fitted(self, "_n_rows")
            n_samples = self._n_rows
        self._check_number("n_samples", n_samples, low=1, high=10**7, integer=True)
        n, largest = int(n_samples), self.max_clusters
        return prior_of_components(
            n,
            min(20 if isinstance(largest, str) else int(largest), n),
            concentrations=self._prior_concentrations(),
            unordered=bool(self.unordered),
            allows_empty=self.kernel == "six-move",
        )

    def _prior_concentrations(self) -> np.ndarray | None:
        """Values of the concentration of cluster sizes: a grid, or one fixed value.

        None for normalised maximum likelihood, which has no concentration.
        """
        if self._resolve_energy() == "nml":
            return None
        if not isinstance(self.concentration, str):
            return np.asarray([float(self.concentration)])
        fitted = getattr(self, "_features", None)
        if self.kernel == "six-move" or getattr(fitted, "features", self.features) in _DISCRETE:
            return np.asarray([FIXED_CONCENTRATION])
        covariance = getattr(self, "covariance_", self.covariance)
        features = self._sampled_gaussian(covariance, self.errors).fix_prior(None)
        sampled = isinstance(features, SampledGaussian)
        return SIZE_VALUES if sampled else np.asarray([FIXED_CONCENTRATION])

    def _resolve_energy(self) -> str:
        """Value of the parameter ``energy``; "auto" is resolved by the kernel."""
        if self.energy != "auto":
            return self.energy
        return "conjugate" if self.kernel == "collapsed" else "nml"

    def _sampled_gaussian(self, covariance: str, errors: str) -> SampledGaussian:
        """Make the model of Gaussian features; hyperparameters that are "auto" are sampled."""
        return SampledGaussian(
            covariance=covariance,
            mean_precision=float_or_none(self.mean_precision),
            shape=float_or_none(self.variance_shape),
            scale=float_or_none(self.variance_scale),
            power=float(self.likelihood_power),
            errors=errors,
            transformation=self.transformation,
        )

    def _feature_model(self, floor: float) -> FeatureModel:
        """Make the model of the features of a cluster.

        ``floor`` is the smallest standard deviation of a feature in a cluster, for "nml".
        """
        if (make := _DISCRETE.get(self._features.features)) is not None:
            concentration = float(self.feature_concentration)
            return make(
                concentration=concentration if self.energy_ == "conjugate" else None,
                coordination=float_or_none(self.coordination_weight),
            )
        if self.energy_ == "nml":
            return BoundedGaussian(floor=floor)
        features = self._sampled_gaussian(self.covariance_, self.errors)
        return features.fix_prior(_FIXED_PRIOR if self.kernel == "six-move" else None)

    def _mixture_model(self, features: FeatureModel) -> MixtureModel:
        """Make the mixture model, given the model of the features."""
        return MixtureModel(
            features=features,
            concentration=float_or_none(self.concentration),
            class_concentration=float_or_none(self.class_concentration),
            unordered=bool(self.unordered),
        )


def float_or_none(value: Any) -> float | None:
    """Return a number, or None for "auto"."""
    return None if isinstance(value, str) else float(value)
