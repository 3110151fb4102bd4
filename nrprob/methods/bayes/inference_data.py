"""Export of a fitted posterior over partitions to ArviZ."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob.estimator import parameters as checks
from nrprob.exceptions import warn
from nrprob.methods.bayes.draws import compact_draws
from nrprob.methods.bayes.joint_target import JointTarget
from nrprob.methods.bayes.pointwise import pointwise_log_likelihood, unavailable
from nrprob.methods.bayes.replication import Replicated
from nrprob.settings import standard


class ExportedPosterior(Replicated):
    """The part of `nrprob.MDLMixture` that exports draws to ArviZ."""

    def to_arviz(self, *, log_likelihood="auto", parameters=False, posterior_predictive=False):
        r"""Export draws, acceptance rates, log likelihood and data to ArviZ.

        Parameters
        ----------
        log_likelihood : bool or "auto", default="auto"
            Whether to export the pointwise log likelihood, which `arviz.loo` needs: one float64 for
            each draw and sample. There is no pointwise log likelihood if ``energy_`` is "nml", if
            ``likelihood_power`` is below 1, or if counts or binary features have known groups and
            ``coordination_weight`` is not 0. In these cases "auto" warns, and True raises
            ValueError.
        parameters, posterior_predictive : bool, default=False
            Whether to add the results of `sample_parameters` and of `posterior_predictive`, for 100
            draws of each chain and with the seed ``random_state`` of the estimator. Functions such
            as `arviz.plot_ppc` (before ArviZ 1.0) and `arviz.plot_ppc_dist` (from 1.0 on) need the
            replicated data; with classes, pass ``var_names=["X"]``. Plot distribution functions
            (``kind="cumulative"`` before ArviZ 1.0, ``kind="ecdf"`` from 1.0 on), since the kernel
            densities of ArviZ may rise at the ends of the range. For other numbers of draws, call
            `sample_parameters` and `posterior_predictive`.

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
            InferenceData before ArviZ 1.0, DataTree from 1.0 on, with the groups

            ========================  ==========================================================
            ``posterior``             quantities with the same meaning in all draws: numbers of
                                      clusters and components, the share of the largest cluster,
                                      ``log_density``, sampled hyperparameters
            ``partition``             ``labels``, ``components`` and, with ``errors="t"``,
                                      ``scale_weight``, for every observation
            ``parameters``            with ``parameters=True`` the result of `sample_parameters`;
                                      otherwise the parameters of ``kernel="six-move"``, and the
                                      common covariance of ``covariance="shrunk"``, of
                                      standardised features
            ``posterior_predictive``  ``X``, replicated data, on request
            ``sample_stats``          ``lp``, the log density, and the acceptance rate of every type
                                      of move (NaN if none was proposed)
            ``log_likelihood``        ``X``, in nats, for features in the units of ``X``
            ``observed_data``         ``X`` (observation, feature) in the units of `fit`, and
                                      ``y`` with classes
            ========================  ==========================================================

        Raises
        ------
        ValueError
            If the log likelihood, parameters or replicated data are requested, and the model does
            not have them.

        Notes
        -----
        The pointwise log likelihood of sample i under a draw of labels z and hyperparameters h is

        .. math:: \ell_i = \log \sum_c p(c \mid z_{-i}, h) \, p(x_i, y_i \mid x_{-i}, y_{-i},
            z_{-i}, c, h),

        where -i means all samples except i, c runs over the components of the other samples and a
        new component, and :math:`x_i` and :math:`y_i` are the features and the class of sample i,
        if it has a class. Means, covariances, weights and the label of sample i are integrated out.
        So :math:`1 / e^{\ell_i}` are the importance weights of leave-one-out cross-validation
        (Vehtari, Gelman and Gabry, 2017). Columns that `fit` dropped do not count.
        `arviz.loo` may report a Pareto k above 0.7 for a sample whose log likelihood varies by much
        more than 1 nat. Then fit without this sample, or compare by `score` on held-out samples.

        `arviz.loo_pit` needs one value per observation, so it does not apply to several features.
        """
        check_is_fitted(self)
        from nrprob.posterior import to_arviz

        for name, flag in (
            ("parameters", parameters), ("posterior_predictive", posterior_predictive),
        ):  # fmt: skip
            checks.check_flag(name, flag)
        exported = self._exports_log_likelihood(log_likelihood)
        variables = {str(name): values for name, values in self.posterior_.items()}
        groups: dict[str, Any] = {"posterior": {}, "partition": {}, "parameters": {}}
        for name, values in variables.items():
            if name not in self._fixed_hyperparameters():
                groups[_group_of(values.dims[2:])][name] = values
        for name in ("n_clusters", "n_components"):
            # `arviz.plot_rank` interpolates the ranks of integers, and fails for constant ones.
            groups["posterior"][name] = groups["posterior"][name].astype(float)
        groups["posterior"]["largest_share"] = _largest_shares(variables["labels"].values)
        if parameters:
            groups["parameters"] = self.sample_parameters(random_state=self.random_state)
        replicates: Any = {}
        if posterior_predictive:
            replicates = self.posterior_predictive(random_state=self.random_state)
        density = {"X": self._log_likelihood()} if exported else {}
        return to_arviz(
            **groups,
            sample_stats=self._move_statistics(),
            log_likelihood=density,
            posterior_predictive=replicates,
            observed_data=self._observed_data(),
            coords={"observation": range(self._n_rows), "feature": self._feature_names()},
        )

    def _fixed_hyperparameters(self) -> set[str]:
        """Names of hyperparameters whose grid has one value."""
        target = self._target
        if not isinstance(target, JointTarget):
            return set()
        grid = target.update_of("freedom").grid._asdict()
        return {name for name, values in grid.items() if len(values) == 1}

    def _move_statistics(self) -> dict[str, np.ndarray]:
        """Log density, and acceptance rate of each type of move, (chain, draw)."""
        stats: dict[str, np.ndarray] = {"lp": self.posterior_["log_density"].values}
        for name in self.sample_stats_:
            accepted = f"{name}_accepted"
            if accepted in self.sample_stats_:
                proposed = self.sample_stats_[name].values
                share = self.sample_stats_[accepted].values / np.where(proposed > 0, proposed, 1)
                stats[f"acceptance_{name}"] = np.where(proposed > 0, share, np.nan)
        return stats

    def _observed_data(self) -> dict[str, Any]:
        """Features in the units of `fit`, and classes, which are -1 where unknown."""
        import xarray

        target, m = self._target, self._columns.size
        x = np.asarray(target.x)[: self._n_rows]
        rows = np.asarray(target.rows)[: self._n_rows] if isinstance(target, JointTarget) else x
        dims = "observation", "feature"
        observed = {"X": xarray.DataArray(rows[:, :m] * self._sd + self._mean, dims=dims)}
        if self._n_classes:
            indicators = x[:, -1 - self._n_classes : -1]
            is_text = self.classes_.dtype.kind not in "biuf"
            classes = self.classes_.astype(str) if is_text else self.classes_
            unknown = "-1" if is_text else -1
            y = np.where(indicators.any(1), classes[indicators.argmax(1)], unknown)
            observed["y"] = xarray.DataArray(y, dims=dims[:1])
        return observed

    def _exports_log_likelihood(self, requested: Any) -> bool:
        """Whether `to_arviz` exports the pointwise log likelihood.

        ``requested`` is the parameter ``log_likelihood``. If the model has no pointwise log
        likelihood, "auto" warns, and True raises ValueError.
        """
        if not isinstance(requested, bool):
            self._check_choice("log_likelihood", requested, ("auto",), "or a boolean")
        n_groups = 1 if isinstance(self._target, JointTarget) else self._target.n_groups
        why = unavailable(self._mixture, n_groups)
        if requested is False or not why:
            return bool(requested)
        message = (
            f"to_arviz exports no pointwise log likelihood, since {why}; pass "
            "log_likelihood=False, and compare models by score on held-out samples"
        )
        if requested is True:
            raise ValueError(message)
        warn(message)
        return False

    def _log_likelihood(self) -> Any:
        """Pointwise log likelihood (chain, draw, observation), in the units of `fit`."""
        import xarray

        draws = {name: self.posterior_[name].values for name in self._joint_names()}
        draws["labels"] = self.posterior_["components"].values
        shape = draws["labels"].shape
        with standard():
            flat = {name: a.reshape(-1, *a.shape[2:]) for name, a in draws.items()}
            result = pointwise_log_likelihood(*reversed(compact_draws(flat, self._target)))
        result = np.asarray(result)[:, : self._n_rows].reshape(shape) - np.log(self._sd).sum()
        return xarray.DataArray(result, dims=("chain", "draw", "observation"))


def _group_of(dims: tuple[Any, ...]) -> str:
    """ArviZ group of a variable of the posterior, from its dimensions after chain and draw."""
    if dims == ("observation",):
        return "partition"
    return "posterior" if dims in ((), ("feature",)) else "parameters"


def _largest_shares(labels: np.ndarray) -> np.ndarray:
    """Share (chain, draw) of the samples in the largest cluster; labels begin with 0."""
    shares = ((labels == c).mean(-1) for c in range(int(labels.max()) + 1))
    return np.max(np.stack(list(shares)), 0)
