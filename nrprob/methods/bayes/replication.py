"""Posterior draws of parameters, and data replicated from them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob.data.validation import check_random_state
from nrprob.estimator import parameters as checks
from nrprob.methods.bayes.draws import compact_draws, thin_draws, thin_indices
from nrprob.methods.bayes.feature_models import BinaryFeatures
from nrprob.methods.bayes.joint_target import JointTarget
from nrprob.methods.bayes.parameters import Parameters, draw_parameters, replicate
from nrprob.methods.bayes.prediction import Sampled
from nrprob.methods.bayes.yeo_johnson import inverse_yeo_johnson
from nrprob.settings import standard

# Bound of replicated features under a transformation, relative to the largest value in the fit.
_LARGEST = 2.0


class Replicated(Sampled):
    """The part of `nrprob.MDLMixture` that samples parameters and new data."""

    def sample_parameters(self, n_draws=100, *, random_state=None):
        r"""Sample the parameters of the components from their posterior.

        Given the components of a draw and its hyperparameters, the priors are conjugate. Parameters
        are therefore sampled independently for every draw: Dirichlet weights, inverse-Wishart
        covariances or inverse-gamma variances, Gaussian centres and effects of known structure, and
        Dirichlet (counts) or beta (binary features) probabilities.

        Parameters
        ----------
        n_draws : int, default=100
            Number of draws of each chain, evenly spaced; all draws if there are fewer.
        random_state : int, RandomState instance or None, default=None
            Seed of the random numbers.

        Returns
        -------
        xarray.Dataset
            ``weights`` (chain, draw, component); ``means`` (..., component, feature);
            ``covariances`` (..., component, feature, feature_2), or ``variances`` (..., component,
            feature) of independent features; ``group_effects`` (..., group, feature), whose mean
            over the samples is 0, or ``coefficients`` (..., covariate, feature); ``probabilities``
            (..., [group,] component, feature) of counts or binary features; and ``class_probs``
            (..., component, class). Parameters are in the units of the features of `fit`. With
            ``transformation="yeo-johnson"``, they are parameters of the transformed features, which
            have mean 0 and variance 1. Component j is the j-th smallest label of the draw in
            ``posterior_["components"]``. Entries are NaN beyond the number of components.
            The coordinate ``draw`` has the positions of the draws in ``posterior_``.

        Raises
        ------
        ValueError
            If ``energy_`` is "nml", which has no prior of the parameters.

        Notes
        -----
        Components have no meaning across draws (label switching), so that means over draws are
        meaningless. See Gelman et al. (2013), Bayesian Data Analysis, sections 3.6 and 22.4.
        """
        import xarray

        parameters, draws = self._sample_parameters(n_draws, random_state)
        transformed = "yeo_johnson_lambda" in draws
        sizes = parameters.sizes
        k = int((sizes > 0.5).sum(1).max())
        values: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}

        def add(name: str, dims: tuple[str, ...], array: Any, axis: int = 1) -> None:
            # Empty slots are NaN.
            array = np.moveaxis(np.array(array, float), axis, 1)[:, :k]
            array[sizes[:, :k] < 0.5] = np.nan
            values[name] = dims, np.moveaxis(array, 1, axis)

        add("weights", ("component",), parameters.weights)
        if self._n_classes:
            add("class_probs", ("component", "class"), parameters.class_probs)
        if parameters.probabilities is not None:
            if parameters.probabilities.shape[1] > 1:
                p = parameters.probabilities[:, : self._n_groups]
                add("probabilities", ("group", "component", "feature"), p, axis=2)
            else:
                add("probabilities", ("component", "feature"), parameters.probabilities[:, 0])
        else:
            sd = np.ones_like(self._sd) if transformed else self._sd
            mean = np.zeros_like(self._mean) if transformed else self._mean
            means, effects = self._centre_effects(parameters)
            add("means", ("component", "feature"), means * sd + mean)
            covariances = parameters.covariances
            if covariances.ndim == 3:
                add("variances", ("component", "feature"), covariances * sd**2)
            else:
                shape = (*means.shape, means.shape[2])
                full = np.broadcast_to(covariances * np.outer(sd, sd), shape)
                add("covariances", ("component", "feature", "feature_2"), full)
            if effects is not None:
                by_group = self._effects_width == 0
                name, dim = (
                    ("group_effects", "group") if by_group else ("coefficients", "covariate")
                )
                values[name] = (dim, "feature"), effects * sd
        shape = len(self.posterior_["chain"]), -1
        return xarray.Dataset(
            {
                name: (("chain", "draw", *dims), array.reshape(*shape, *array.shape[1:]))
                for name, (dims, array) in values.items()
            },
            coords={"draw": self._positions(n_draws), "feature": self._feature_names()},
        )

    def posterior_predictive(self, n_draws=100, *, given_labels=False, random_state=None):
        """Sample new data of the same size and known structure as the data of `fit`.

        For each draw, `sample_parameters` samples the parameters. Given these, the components of
        the samples are sampled with the weights as probabilities, and then the features.

        Parameters
        ----------
        n_draws : int, default=100
            Number of draws of each chain, evenly spaced; all draws if there are fewer.
        given_labels : bool, default=False
            Whether samples have the components of the draw, instead of resampled components. With
            False, a predictive check also tests the sizes of the components.
        random_state : int, RandomState instance or None, default=None
            Seed of the random numbers.

        Returns
        -------
        xarray.Dataset
            ``X`` (chain, draw, observation, feature), in the units of the features of `fit`,
            without the columns that `fit` dropped. With ``transformation="yeo-johnson"``, values
            are clipped at twice the largest distance of the samples of `fit` from the mean. The
            reason is that some transforms are bounded, so that not all values have an inverse.

        Raises
        ------
        ValueError
            If ``energy_`` is "nml", which has no prior of the parameters.
        """
        import xarray

        checks.check_flag("given_labels", given_labels)
        random = check_random_state(random_state)
        parameters, draws = self._sample_parameters(n_draws, random)
        target, d, n = self._target, self._columns.size, self._n_rows
        joint = isinstance(target, JointTarget)
        partition = target.partition if joint else target
        x = np.asarray(partition.x)[:n]
        covariates = x[:, d : d + self._effects_width] if self._effects_width else None
        rows = replicate(
            parameters, draws, draws["labels"][:, :n], np.asarray(partition.group)[:n], covariates,
            x[:, :d].sum(1), binary=isinstance(self._mixture.features, BinaryFeatures),
            given_labels=given_labels, rng=np.random.default_rng(random.randint(2**31 - 1)),
        )  # fmt: skip
        if "yeo_johnson_lambda" in draws:
            rows = self._invert_transformation(rows, draws["yeo_johnson_lambda"])
        rows = rows * self._sd + self._mean
        shape = len(self.posterior_["chain"]), -1, n, d
        dims = ("chain", "draw", "observation", "feature")
        return xarray.Dataset(
            {"X": (dims, rows.reshape(shape))},
            coords={"draw": self._positions(n_draws), "feature": self._feature_names()},
        )

    def _positions(self, n_draws: int) -> np.ndarray:
        """Positions of evenly spaced draws of a chain in ``posterior_``."""
        n_chains, total = self.posterior_["log_density"].shape
        return thin_indices(n_chains, total, int(n_draws) * n_chains)

    def _feature_names(self) -> list[Any]:
        """Names of the features that `fit` did not drop; positions if ``X`` has no names."""
        names = getattr(self, "feature_names_in_", np.arange(self.n_features_in_))
        return list(np.asarray(names)[self._columns])

    def _sample_parameters(
        self, n_draws: Any, random_state: Any
    ) -> tuple[Parameters, dict[str, np.ndarray]]:
        """Sample the parameters for ``n_draws`` evenly spaced draws of each chain.

        Also returns the variables of these draws, by name, of shape (S, ...).
        """
        check_is_fitted(self)
        if self.energy_ == "nml":
            raise ValueError(
                "parameters are sampled from a conjugate prior; got energy='nml', which has none; "
                "fit with energy='conjugate'"
            )
        n_chains = len(self.posterior_["chain"])
        checks.Number(1, 10**6, integer=True).check("n_draws", n_draws)
        names = {name: name for name in self._joint_names()} | {"labels": "components"}
        draws = {
            name: thin_draws(self.posterior_[stored].values, int(n_draws) * n_chains)
            for name, stored in names.items()
        }
        draws = {name: a.reshape(-1, *a.shape[2:]) for name, a in draws.items()}
        key = jax.random.PRNGKey(check_random_state(random_state).randint(2**31 - 1))
        with standard():
            draws, target = compact_draws(draws, self._target)
            result = draw_parameters(
                self._mixture, target, draws, self._columns.size, self._n_classes, key
            )
        result = Parameters(*(None if a is None else np.asarray(a) for a in result))
        return result, draws

    @property
    def _n_groups(self) -> int:
        """Number of known groups, without padding."""
        target = self._target
        group = target.partition.group if isinstance(target, JointTarget) else target.group
        return int(np.asarray(group)[: self._n_rows].max(initial=0)) + 1

    def _centre_effects(self, parameters: Parameters) -> tuple[np.ndarray, np.ndarray | None]:
        """Return centres (S, K, d), and effects (S, L, d) of L known groups or covariates.

        The result has no padding. Offsets of groups are shifted so that their mean over the samples
        is 0; the centres change by the opposite amount. The data only determine the sums of offsets
        and centres.
        """
        means, effects = parameters.means, parameters.effects
        if effects is None:
            return means, None
        if self._effects_width:
            return means, effects[:, : self._n_covariates]
        group = np.asarray(self._target.partition.group)[: self._n_rows]
        effects = effects[:, : self._n_groups]
        share = np.bincount(group, minlength=self._n_groups) / self._n_rows
        level = np.einsum("g,sgd->sd", share, effects)
        return means + level[:, None], effects - level[:, None]

    @property
    def _n_covariates(self) -> int:
        """Number of columns of known covariates, without padding."""
        x = np.asarray(self._target.x)[: self._n_rows]
        d = self._columns.size
        used = x[:, d : d + self._effects_width].any(0)
        return int(np.flatnonzero(used).max(initial=-1)) + 1

    def _invert_transformation(self, rows: np.ndarray, lambdas: np.ndarray) -> np.ndarray:
        """Invert the transformation of features ``rows`` (S, n, d), with ``lambdas`` (S, d).

        The result (S, n, d) are standardised features.
        """
        update = self._target.update_of("yeo_johnson_lambda")
        values, shift, spread = (
            np.asarray(a) for a in (update.values, update.shift, update.spread)
        )
        which = np.abs(values - lambdas[..., None]).argmin(2)
        feature = np.arange(rows.shape[2])
        rows = rows * spread[feature, which][:, None] + shift[feature, which][:, None]
        limit = _LARGEST * np.abs(np.asarray(self._target.rows)[: self._n_rows]).max(0)
        return inverse_yeo_johnson(rows, values[which][:, None], limit)
