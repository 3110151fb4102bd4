"""Use a fitted conditional mixture on new samples: clusters, densities, and a corrected table."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp, softmax
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from nrprob.data.design import Design
from nrprob.data.frames import as_frame, is_table
from nrprob.data.storage.stored import Stored, apply_to_pieces, refuse_stored
from nrprob.estimator.linear import ScoreMixin
from nrprob.exceptions import warn
from nrprob.methods.conditional.density import ResidualDensity
from nrprob.methods.conditional.noise import with_noise
from nrprob.methods.conditional.outliers import OutlierMixin
from nrprob.methods.conditional.regression import predict_effects
from nrprob.methods.conditional.table_fit import TableInput, TableMixin
from nrprob.settings import standard


class PredictionMixin(
    OneToOneFeatureMixin, TransformerMixin, OutlierMixin, TableMixin, ResidualDensity, ScoreMixin
):
    """Prediction and transformation of new samples, for the conditional mixture."""

    # Fitted state of the estimator.
    effects_: np.ndarray
    _is_balanced: bool
    _offset: np.ndarray
    _log_unit: float
    _level: np.ndarray  # mean (m,) of the group effects over the samples of the fit
    _shares_differ: bool

    def __sklearn_tags__(self):
        """Return scikit-learn's description of what the estimator accepts."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # Clusters and densities

    def _log_membership(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        if self._fitted is not None:
            return self._table_log_joint(X, known, spread=False)
        return self._residual_log_joint(*self._residuals(X, known))

    def _residual_log_joint(self, y: np.ndarray, design: Design) -> np.ndarray:
        """Scores (n, K) of samples at coordinates (n, p), with the weights that balance groups."""
        log_p = self._log_densities(y)
        if not self._is_balanced:
            return log_p
        additive = design.columns is not None
        codes = self._encoder.combine_labelings(design.labelings) if additive else design.codes
        return log_p + self._offset[:, codes].T

    def _row_scores(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        if self._fitted is not None:
            log_joint = self._table_log_joint(X, known, spread=True)
            if self._noise_table is None:
                return logsumexp(log_joint, axis=1)
            log_noise = self._table_log_joint(X, known, spread=False, noise=True)
            return with_noise(log_joint, log_noise[:, 0], self.noise_)[1]
        return self.log_density_of(X, known=known) - self._log_unit

    def _table_log_joint(self, X, known, *, spread: bool, noise: bool = False) -> np.ndarray:
        """Log share plus log density (n, K) of new samples, or log density (n, 1) of noise."""
        with standard():
            table = self._read_table(X, reset=False)
        design = self._encoder.transform(known, table.n_samples)
        fitted = self._noise_table if noise else self._fitted
        return self._log_joint_of(fitted, table, design, spread)

    def _log_joint_of(
        self, fitted: Any, table: TableInput, design: Design, spread: bool
    ) -> np.ndarray:
        """Log share plus log density (n, K) of the samples of a table, in its units."""
        x = self._numeric_columns(table)
        unit: Any = 0.0
        if x is not None and self._units is not None:
            if np.isnan(x).any() and not self._units.is_diagonal:
                fitted = fitted.in_units(self._units)
                x = x - self._units.centre
            else:
                unit = self._units.log_density_unit(x)[:, None]
                x = self._units(x)
        return fitted.log_joint(x, table.discrete, design.codes, spread=spread) + unit

    def _numeric_columns(self, table: TableInput) -> np.ndarray | None:
        """Numbers (n, d) of new samples, in the columns that have group effects."""
        if table.columns.is_numeric:
            # Complete numbers are fitted with their constant columns, others without.
            all_columns = table.cells.shape[1] == self.effects_.shape[1]
            columns = slice(None) if all_columns else table.columns.numeric_positions
            return np.asarray(table.cells[:, columns], np.float64)
        return table.x

    def _log_membership_of(self, table: TableInput, design: Design) -> np.ndarray:
        if self._fitted is not None:
            return self._log_joint_of(self._fitted, table, design, False)
        r = self._removal(np.asarray(table.plain, np.float64), design)
        return self._residual_log_joint(r @ self._coordinates.basis, design)

    def score(self, X, y=None, *, known=None):
        r"""Mean log likelihood of new samples; higher is better.

        .. math:: \frac{1}{n} \sum_i \log \sum_c \pi_c\, p(r_i | b_c, \Sigma)

        with the residuals r of new samples, by the effects of the fit. For the samples of a fit
        that subtracts group means, and ``balance=0``, it equals ``log_likelihood_`` divided by the
        residual degrees of freedom. If the fit has noise (``noise_`` > 0), the density is that of
        clusters and noise together, so that it integrates to 1.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or `nrprob.stored` rows
        y : ignored
        known : as in `predict`

        Returns
        -------
        float
            In nats per sample.
        """
        return super().score(X, known=known)

    def predict_proba(self, X, *, known=None):
        """p(cluster given sample) of new samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or `nrprob.stored` rows
        known : as in `predict`

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        if isinstance(X, Stored):
            known = self._stored_known(known)
            return apply_to_pieces(lambda x, part: self.predict_proba(x, known=part), X, known)
        X, known = self._split_known(X, known)
        return softmax(self._log_membership(X, known), axis=1)

    # Corrected table

    def transform(self, X, *, known=None):
        r"""Subtract the estimated effects of the known groups.

        .. math:: x_i - (a_{z_i} - \bar{a})

        with the effect :math:`a_z` of the known group of sample i, and the mean
        :math:`\bar{a}` of the effects over the samples of the fit, so that the level of the table
        stays. Clusters stay as well if the effects were fitted with them (``effects_kind_`` is
        "random" or "fixed"). Group means contain the shares of the clusters, so that subtracting
        them moves clusters whose shares differ between groups; `transform` warns in this case.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        known : as in `fit`, optional
            Without it, ``X`` is returned unchanged. If `fit` used columns by name, these columns of
            a frame ``X`` are the default.

        Returns
        -------
        ndarray or pandas.DataFrame of shape (n_samples, n_features)
            A copy; a frame if the model was fitted to a frame and ``X`` is one. Missing values
            stay. Discrete columns keep their values and their group effects, because an effect on
            log odds has no value in the units of the column. Location effects stay.

        Raises
        ------
        ValueError
            If ``known`` has a group that did not occur in `fit`.

        See Also
        --------
        predict : Clusters of new samples.
        """
        check_is_fitted(self)
        refuse_stored(X, "transform")
        X, known = self._split_known(X, known)
        return self._corrected_table(X, known)

    def fit_transform(self, X, y=None, *, known=None):
        """Fit, and subtract the estimated effects of the known groups; see `transform`.

        Parameters
        ----------
        X, y, known : as in `fit`

        Returns
        -------
        ndarray or pandas.DataFrame of shape (n_samples, n_features)
        """
        return self.fit(X, y, known=known).transform(X, known=known)

    def _corrected_table(self, X: Any, known: Any) -> Any:
        """Table of numbers without their group effects; see `transform`."""
        with standard():
            table = self._read_table(X, reset=False)
        as_columns = is_table(X) and hasattr(self, "feature_names_in_")
        corrected: Any = as_frame(X).copy() if as_columns else table.cells.copy()
        if known is None:
            return corrected
        design = self._encoder.transform(known, table.n_samples)
        self._warn_subtracted()
        x = self._numeric_columns(table)
        if x is None:
            return corrected
        x = x - (predict_effects(self.effects_, design) - self._level)
        positions = np.arange(table.cells.shape[1])
        if x.shape[1] < len(positions):
            positions = np.array(table.columns.numeric_positions)
        if not as_columns:
            corrected[:, positions] = x
            return corrected
        for j, values in zip(positions, x.T, strict=True):
            corrected.isetitem(j, values)
        return corrected

    def _warn_subtracted(self) -> None:
        """Warn that subtracted means contain shares of clusters that differ between groups."""
        if self.effects_kind_ == "subtract" and self._shares_differ:
            warn(
                "shares of clusters differ between known groups, and group means contain them; got "
                "effects_kind_='subtract', whose correction moves clusters towards each other; fit "
                "with effects='random' to leave clusters where they are"
            )
