"""Densities of a fitted conditional mixture, and unfitted copies, for significance tests.

Sizes: n samples, p coordinates of the residuals, K clusters.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from nrprob.data.design import Design, DesignEncoder
from nrprob.data.frames import extract_known
from nrprob.data.storage.stored import refuse_stored
from nrprob.estimator.base import Clusterer
from nrprob.methods.conditional.coordinates import Coordinates
from nrprob.methods.conditional.joint_fit import SMALL_MEDIAN
from nrprob.methods.conditional.noise import noise_log_density, with_noise
from nrprob.methods.conditional.refits import TableRefits
from nrprob.methods.conditional.shares import BY_GROUP, FREE, UNIFORM
from nrprob.settings import standard


class ResidualDensity(Clusterer):
    """Mixin of `ConditionalMixture` for the density of the residuals, for significance tests.

    A fit has this density if the table is numeric and complete, and group means were subtracted.
    The mixin implements `nrprob.estimator.density.DensityEstimator`, the interface of
    `nrprob.evidence`.
    """

    # Parameters and fitted state of the estimator.
    covariance: str
    nu: float
    errors_: str
    effects_kind_: str
    membership_: np.ndarray
    noise_: float
    weights_: np.ndarray
    _centres: np.ndarray
    _common: float
    _coordinates: Coordinates
    _encoder: Any
    _fitted: Any
    _freed: list[bool]
    _log_weights: np.ndarray
    _removal: Any
    _sigma: np.ndarray
    _n_restarts: Any
    weights: str
    balance: float
    effects: str
    errors: str
    multi: str
    noise: Any
    labels_: np.ndarray
    n_clusters: Any
    _columns: Any
    _shares_by_group: bool
    _units: Any

    def clone_for_tests(self):
        """Return an unfitted copy for `nrprob.evidence`.

        The copy treats all columns as numeric, subtracts group means, and has no noise component.
        A fit of the copy therefore has a density of residuals.

        Returns
        -------
        ConditionalMixture

        See Also
        --------
        nrprob.evidence.test : Significance test, which fits copies to parts of the samples.
        log_density_of : Log density of a fitted copy.
        """
        n_init = self._n_restarts
        weights = "uniform" if self.weights == "by_group" else self.weights
        return clone(self).set_params(
            effects="subtract",
            categorical=[],
            ordered=[],
            n_init=n_init,
            weights=weights,
            noise=0.0,
        )

    def table_refits(self, X, *, known=None, seed=0):
        """Return an object that fits the model to parts of a table, for `nrprob.evidence`.

        All refits use the choices of one fit to all samples: the types of columns, the form of the
        group effects, the form of the shares, and whether there are location effects. The refits
        have no noise component.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features)
        known : as in `fit`
        seed : int, default=0
            Random seed of the fit to all samples. The method makes this fit only if the estimator
            has noise, or was not fitted to these samples.

        Returns
        -------
        `nrprob.estimator.density.TableRefitter` or None
            None for a complete numeric table with subtracted group means. `nrprob.evidence` tests
            the residuals of such a table.

        See Also
        --------
        nrprob.evidence.test : Significance test that uses the refits.
        clone_for_tests : Unfitted copy for complete numeric tables.
        """
        refuse_stored(X, "table_refits")
        if self.is_tested_by_residuals(X, known=known):
            return None
        model = self
        if self.noise != 0 or not self._was_fitted_to(X, known):
            model = clone(self).set_params(random_state=seed, noise=0.0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a user sees the warnings of their own fit
                model.fit(X, known=known)
        return None if model._fitted is None else TableRefits(
            model._fitted.data, [column.name for column in model._columns.discrete],
            model.effects_kind_, model._shares_form, model._fitted.location, model.labels_,
            model.membership_.shape[1], model.covariance, model.ridge, model.tol, model.max_iter,
            model._start_exponents,
        )  # fmt: skip

    def is_tested_by_residuals(self, X, *, known=None):
        """Whether the significance tests of a table use its residuals about group means.

        The result is True for a complete numeric table, unless its group effects are fitted with
        the clusters. Group effects are fitted with the clusters if the parameters require joint
        fits, or if the known groups are small. The result is also True for a table with which `fit`
        raises an error.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features)
        known : as in `fit`

        Returns
        -------
        bool

        See Also
        --------
        table_refits : Refits of other tables.
        residuals_of : Residuals about group means.
        """
        model = clone(self)
        try:
            X, known = extract_known(X, known)
            table = model._read_table(X, reset=True)
            design = DesignEncoder(self.multi).fit(known, table.n_samples)
        except (TypeError, ValueError):
            return True
        if table.plain is None or design.kind != "labels" or design.columns is not None:
            return table.plain is not None
        fixed = self.effects in ("fixed", "random") or self.weights == "by_group"
        small = bool(np.median(np.bincount(design.codes)) < SMALL_MEDIAN)
        chosen = self.effects == "auto" and self.errors == "gaussian" and self.balance == 0
        return not (fixed or (small and chosen)) or self.n_clusters == 1

    def _was_fitted_to(self, X, known) -> bool:
        """Whether this estimator was fitted to ``X`` and ``known``.

        The fit must also have the present number ``n_clusters`` of clusters.
        """
        fitted = np.shape(getattr(self, "membership_", 0))[1:]
        if not fitted or (self.n_clusters != "auto" and fitted != (self.n_clusters,)):
            return False
        try:
            X, known = self._split_known(X, known)
            with standard():
                table = self._read_table(X, reset=False)
            groups = self._encoder.transform(known, table.n_samples).codes
        except (TypeError, ValueError):
            return False
        if self._fitted is None or table.n_samples != len(self.labels_):
            # A fit with subtracted means stores no data, so only the number of samples is compared.
            return table.plain is not None and table.n_samples == len(self.labels_)
        data, x = self._fitted.data, table.x
        if table.plain is not None:
            x = np.asarray(table.plain, np.float64)
        if data.n_samples != table.n_samples:
            return False  # rows were stored, and the fit retains a subsample
        same_numbers = x is None or self._units is None
        return (
            (same_numbers or np.allclose(self._units(x), data.x, equal_nan=True))
            and np.array_equal(groups, data.groups)
            and all(
                np.array_equal(a.codes, b.codes)
                for a, b in zip(table.discrete, data.columns, strict=True)
            )
        )

    @property
    def _shares_form(self) -> int:
        """Form of the cluster shares in the fit: UNIFORM, FREE or BY_GROUP; see `shares`."""
        if self._shares_by_group:
            return BY_GROUP
        subtracted = self.effects_kind_ == "subtract"
        return FREE if (any(self._freed) if subtracted else self.weights == "free") else UNIFORM

    def residuals_of(self, X, *, known=None):
        """Residuals of samples after subtracting the effects of known structure.

        The residuals are in the coordinates of the fit, a linear map of the residuals in units of
        X. In these coordinates, the covariance of the training residuals plus the ridge is the
        identity.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        known : as in `predict`

        Returns
        -------
        ndarray of shape (n_samples, n_components)

        See Also
        --------
        log_density_of : Log density in these coordinates.
        nrprob.evidence.test : Significance test that uses the residuals.
        """
        check_is_fitted(self)
        refuse_stored(X, "residuals_of")
        self._check_subtracted("residuals_of")
        return self._residuals(*self._split_known(X, known))[0]

    def _check_subtracted(self, what: str) -> None:
        """Raise ValueError unless the fit subtracted group means of a complete numeric table.

        ``what`` is the name of the method that needs such a fit.
        """
        check_is_fitted(self)
        if self._fitted is not None:
            raise ValueError(
                f"{what} needs a complete numeric table with subtracted group means; got a fit "
                f"with effects_kind_={self.effects_kind_!r}; fit with effects='subtract'"
            )

    def _residuals(self, X, known) -> tuple[np.ndarray, Design]:
        """Residuals (n, p) of new rows in the coordinates of the fit, and the encoded ``known``."""
        check_is_fitted(self)
        with standard():
            X = self._validate(X, reset=False)
        if np.isnan(X).any():
            raise ValueError(
                "Input X contains NaN, but there were no missing values in fit; got missing values "
                "in new rows; impute the values, or fit with missing values"
            )
        design = self._encoder.transform(known, len(X))
        return self._removal(np.asarray(X, np.float64), design) @ self._coordinates.basis, design

    def _log_densities(self, y) -> np.ndarray:
        """Log weight plus log density (n, K) of every cluster at coordinates y (n, p).

        A constant that is equal for all clusters is left out.
        """
        root = np.linalg.cholesky(self._sigma)
        white = solve_triangular(root, y.T, lower=True).T
        centres = solve_triangular(root, self._centres.T, lower=True).T
        q = ((white[:, None] - centres) ** 2).sum(2)
        if self.errors_ == "gaussian":
            return self._log_weights - 0.5 * q
        return self._log_weights - 0.5 * (self.nu + y.shape[1]) * np.log1p(q / self.nu)

    def log_density_of(self, X, *, known=None, scale=None):
        r"""Log density of samples under the fitted mixture, given their known structure.

        .. math:: \log \sum_c \pi_c\, p(y_i | b_c, \Sigma)

        with the weights :math:`\pi_c`, the centres :math:`b_c` and the covariance :math:`\Sigma` of
        the clusters, and the residual :math:`y_i` in the coordinates of `residuals_of`. The log
        density in units of ``X`` differs by a constant, which `score` includes. The constant
        depends on the training samples, not on ``n_clusters``. If ``noise_`` > 0, the density
        includes the noise component.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        known : as in `predict`
        scale : array-like of shape (n_samples,), optional
            Factors that multiply the residuals before the density is evaluated.

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats.

        See Also
        --------
        score : Mean log likelihood in units of ``X``.
        residuals_of : Samples in the coordinates of the density.
        """
        y = self.residuals_of(X, known=known)
        if scale is not None:
            y = y * np.reshape(scale, (-1, 1))
        log_density = logsumexp(self._log_densities(y), axis=1) + self._common
        if self.noise_ == 0:
            return log_density
        return with_noise(log_density[:, None], noise_log_density(y), self.noise_)[1]

    def mixture_covariance(self):
        """Total covariance of the mixture in the coordinates of `residuals_of`.

        The total covariance is the covariance of the errors plus the second moments of the centres,
        with the weights of the clusters. For t errors, the scale matrix replaces the covariance of
        the errors.

        Returns
        -------
        ndarray of shape (n_components, n_components)

        See Also
        --------
        log_density_of : Log density in the same coordinates.
        has_flexible_clusters : Choice of the null models in the significance test.
        """
        self._check_subtracted("mixture_covariance")
        return self._sigma + (self._centres.T * self.weights_) @ self._centres

    def has_flexible_clusters(self):
        """Whether the clusters can fit heavy tails, or unequal covariances of known groups.

        With such clusters, the significance test uses additional null models, which can fit heavy
        tails or unequal covariances. The result is True if a cluster may have few samples: with
        free weights, with more than two clusters, or if one of two clusters has few samples. The
        result is also True if errors follow a t distribution, or if the covariance is not "tied".

        Returns
        -------
        bool

        See Also
        --------
        mixture_covariance : Covariance of the null model with one component.
        nrprob.evidence.test : Significance test that calls this method.
        """
        check_is_fitted(self)
        k = len(self.weights_)
        few = self.membership_.mean(0).min() < 0.5 / k
        other = self.covariance != "tied" or self.errors_ == "t"
        return bool(few or other or any(self._freed) or k > 2)

    def settings_from_labels(self, labels):
        """Parameters for a refit whose initial values include the labels.

        Parameters
        ----------
        labels : array-like of shape (n_samples,)

        Returns
        -------
        list of dict
            Parameters for `set_params`, one dict per refit.

        See Also
        --------
        nrprob.evidence.confidence : Bootstrap confidences, which use these refits.
        has_flexible_clusters : Choice of the null models in the significance test.
        """
        return [{"init": labels}]
