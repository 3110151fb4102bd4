"""Prediction for new samples by a fitted conditional mixture.

The methods predict clusters, memberships and log densities, and subtract group effects from a
table. Sizes: n new samples, d numeric columns, p coordinates of the residuals, K clusters, L known
groups of the fit.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from nrprob.methods.conditional.fitted_table import FittedTable
from nrprob.methods.conditional.new_groups import estimate_new_groups
from nrprob.methods.conditional.noise import with_noise
from nrprob.methods.conditional.outliers import OutlierMixin
from nrprob.methods.conditional.regression import predict_effects
from nrprob.methods.conditional.table import DiscreteColumn, take_rows
from nrprob.methods.conditional.table_fit import TableInput, TableMixin
from nrprob.methods.conditional.units import Units
from nrprob.settings import standard
from nrprob.statistics.groups import group_means

UNSEEN = ("refuse", "estimate")


@dataclass(frozen=True)
class NewSamples:
    """New samples in the coordinates of a joint fit.

    Groups that did not occur in the fit are called new groups. There are L' new groups, with n'
    samples.

    Attributes
    ----------
    x : (n, d) numeric values in the coordinates of ``fitted``, NaN where missing; None without
        numeric columns
    columns : discrete columns
    codes : (n,) known groups; new groups have codes above the codes of the groups of the fit
    fitted : parameters of the fit
    unit : (n, 1) log density in units of the table, less log density in coordinates; 0 without
        numeric columns
    """

    x: np.ndarray | None
    columns: list[DiscreteColumn]
    codes: np.ndarray
    fitted: FittedTable
    unit: np.ndarray

    @property
    def is_new(self) -> np.ndarray:
        """Mask (n,) of samples in new groups."""
        return self.codes >= len(self.fitted.log_share)

    def _estimate(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Estimate the effects of new groups.

        Returns
        -------
        log_joint : (n', K) log share plus log density of the n' samples in new groups
        effects : (L', d) effects of the new groups
        codes : (n',) new groups of these samples, numbered from 0
        """
        rows = np.flatnonzero(self.is_new)
        x = None if self.x is None else self.x[rows]
        codes = self.codes[rows] - len(self.fitted.log_share)
        return *estimate_new_groups(self.fitted, x, take_rows(self.columns, rows), codes), codes

    def log_joint(self, spread: bool) -> np.ndarray:
        """Log share plus log density (n, K) of the samples under every cluster.

        If ``spread`` is True, the posterior covariance of the group effect is added to the
        covariance of the errors. ``spread`` affects only samples in groups of the fit.
        """
        new = self.is_new
        value = np.empty((len(new), self.fitted.log_share.shape[1]))
        rows = np.flatnonzero(~new)
        x = None if self.x is None else self.x[rows]
        value[rows] = self.fitted.log_joint(
            x, take_rows(self.columns, rows), self.codes[rows], spread=spread
        )
        if new.any():
            value[new] = self._estimate()[0]
        return value

    def new_effects(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Memberships and group codes of samples in new groups, and effects of these groups.

        Returns
        -------
        membership : (n', K) memberships of the n' samples in new groups
        codes : (n',) new groups of these samples, numbered from 0
        effects : (L', d) effects of the L' new groups
        """
        log_joint, m, codes = self._estimate()
        return softmax(log_joint, axis=1), codes, m


class PredictionMixin(
    OneToOneFeatureMixin, TransformerMixin, OutlierMixin, TableMixin, ResidualDensity, ScoreMixin
):
    """Mixin of `ConditionalMixture` for the prediction and transformation of new samples."""

    # Fitted state of the estimator.
    effects_: np.ndarray
    _is_balanced: bool
    _offset: np.ndarray
    _log_unit: float
    _level: np.ndarray  # mean (m,) of the group effects over the samples of the fit
    _shares_differ: bool
    # Effects of the clusters (K, m) on directions that the fit did not use, if there are any.
    _unspanned_centres: np.ndarray  # see `regression.fit_groups_and_clusters`

    def __sklearn_tags__(self):
        """Return scikit-learn's description of accepted inputs."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # Clusters and densities

    def _log_membership(self, X, known, unseen="refuse") -> np.ndarray:
        """Log memberships (n, K) of new samples, up to a constant per sample."""
        check_is_fitted(self)
        self._check_unseen(unseen)
        if self._fitted is not None:
            return self._new_log_joint(X, known, unseen)
        return self._residual_log_joint(*self._residuals(X, known))

    def _residual_log_joint(self, y: np.ndarray, design: Design) -> np.ndarray:
        """Log memberships (n, K) of samples, up to a constant per sample.

        ``y`` (n, p) are the residuals in the coordinates of the fit, and ``design`` is the known
        structure. After a fit with ``balance`` > 0, the log memberships include the log weights
        (K, L) that balance the shares of the clusters in every known group.
        """
        log_p = self._log_densities(y)
        if not self._is_balanced:
            return log_p
        additive = design.columns is not None
        codes = self._encoder.combine_labelings(design.labelings) if additive else design.codes
        return log_p + self._offset[:, codes].T

    def _row_scores(self, X, known, unseen="refuse") -> np.ndarray:
        """Log densities (n,) of new samples, in units of X."""
        check_is_fitted(self)
        self._check_unseen(unseen)
        if self._fitted is not None:
            return self._new_log_densities(X, known, unseen)
        return self.log_density_of(X, known=known) - self._log_unit

    def _check_unseen(self, unseen: str) -> None:
        """Raise ValueError for an invalid ``unseen``, or "estimate" without random effects."""
        self._check_choice("unseen", unseen, UNSEEN)
        if unseen == "estimate" and self.effects_kind_ != "random":
            raise ValueError(
                "unseen='estimate' needs a fit with random effects of the known groups; got "
                f"effects_kind_={self.effects_kind_!r}; fit with effects='random', or drop samples "
                "of groups that did not occur in fit"
            )

    def _read_new(self, X, known, unseen: str) -> tuple[TableInput, Design]:
        """Read the table and the known groups of new samples.

        Groups that did not occur in the fit are numbered after the groups of the fit.
        """
        with standard():
            table = self._read_table(X, reset=False)
        return table, self._encoder.transform(known, table.n_samples, unseen == "estimate")

    def _new_log_joint(self, X, known, unseen: str) -> np.ndarray:
        """Log share plus log density (n, K) of new samples of a joint fit."""
        return self._log_joint_of(self._fitted, *self._read_new(X, known, unseen), False)

    def _new_log_densities(self, X, known, unseen: str) -> np.ndarray:
        """Log densities (n,) of new samples under a joint fit, including its noise component."""
        table, design = self._read_new(X, known, unseen)
        log_joint = self._log_joint_of(self._fitted, table, design, True)
        value = logsumexp(log_joint, axis=1)
        if self._noise_table is not None:
            # Noise is defined about the mean of a group in the fit, so new groups have no noise.
            rows = np.flatnonzero(design.codes < len(self._fitted.log_share))
            log_noise = self._log_joint_of(
                self._noise_table, table.take(rows), design.take_rows(rows), False
            )
            value[rows] = with_noise(log_joint[rows], log_noise[:, 0], self.noise_)[1]
        return value

    def _locate(self, fitted: FittedTable, table: TableInput, design: Design) -> NewSamples:
        """Transform new samples to the coordinates of ``fitted``."""
        x, units = self._numeric_columns(table), self._units
        if x is None or units is None:
            return NewSamples(None, table.discrete, design.codes, fitted, np.zeros(()))
        if np.isnan(x).any() and not units.is_diagonal:
            # If a coordinate combines several columns, and a value of one of them is missing, the
            # coordinate is unknown. Transform the parameters to units of the columns instead.
            fitted, units = fitted.in_units(units), Units.from_scale(units.centre, 1.0)
        unit = units.log_density_unit(x)[:, None]
        return NewSamples(units(x), table.discrete, design.codes, fitted, unit)

    def _log_joint_of(
        self, fitted: FittedTable, table: TableInput, design: Design, spread: bool
    ) -> np.ndarray:
        """Log share plus log density (n, K) of samples under every cluster, in units of the table.

        If ``spread`` is True, the covariance of a sample is the covariance of the errors plus the
        posterior covariance of the group effect.
        """
        with standard():
            samples = self._locate(fitted, table, design)
            return samples.log_joint(spread) + samples.unit

    def _numeric_columns(self, table: TableInput) -> np.ndarray | None:
        """Numeric values (n, d) of new samples in the columns for which the fit has group effects.

        The result is None without numeric columns.
        """
        if table.columns.is_numeric:
            # A fit to a complete numeric table includes constant columns; other fits do not.
            all_columns = table.cells.shape[1] == self.effects_.shape[1]
            columns = slice(None) if all_columns else table.columns.numeric_positions
            return np.asarray(table.cells[:, columns], np.float64)
        return table.x

    def _log_membership_of(self, table: TableInput, design: Design) -> np.ndarray:
        if self._fitted is not None:
            return self._log_joint_of(self._fitted, table, design, False)
        r = self._removal(np.asarray(table.plain, np.float64), design)
        return self._residual_log_joint(r @ self._coordinates.basis, design)

    def predict(self, X, *, known=None, unseen="refuse"):
        """Predict the cluster of each new sample.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or `nrprob.stored` rows
        known : as in `fit`; required if the model was fitted with it
            If `fit` used columns by name, these columns of a frame ``X`` are the default.
        unseen : {"refuse", "estimate"}, default="refuse"
            Treatment of known groups that did not occur in `fit`. "refuse" raises an error.
            "estimate" estimates the effects of these groups from their samples in ``X``; this
            requires a fit with random effects. The result for a sample then depends on the other
            samples of its group. For a single sample of a group, the effect has its prior N(0, T)
            with the covariance T, ``effects_covariance_``.

        Returns
        -------
        ndarray of shape (n_samples,)

        Raises
        ------
        ValueError
            If a known group did not occur in `fit`, and ``unseen`` is "refuse"; or if the fit has
            no random effects, and ``unseen`` is "estimate".
        """
        if self._is_stored(X, unseen):
            return super().predict(X, known=known)
        return self._log_membership(*self._split_known(X, known), unseen).argmax(1)

    def predict_proba(self, X, *, known=None, unseen="refuse"):
        """Membership probabilities p(cluster given sample) of new samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or `nrprob.stored` rows
        known, unseen : as in `predict`

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        if self._is_stored(X, unseen):
            known = self._stored_known(known)
            return apply_to_pieces(lambda x, part: self.predict_proba(x, known=part), X, known)
        return softmax(self._log_membership(*self._split_known(X, known), unseen), axis=1)

    def score_samples(self, X, *, known=None, unseen="refuse"):
        """Log likelihood of each new sample.

        After a joint fit, or a fit with discrete columns or missing values, the covariance of a
        sample includes the posterior covariance of the group effect. For a sample of a group that
        did not occur in `fit`, the density is conditional on the other samples of this group.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        known, unseen : as in `predict`

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats.
        """
        check_is_fitted(self)
        refuse_stored(X, "score_samples")
        return self._row_scores(*self._split_known(X, known), unseen)

    def score(self, X, y=None, *, known=None, unseen="refuse"):
        r"""Mean log likelihood of new samples; higher is better.

        .. math:: \frac{1}{n} \sum_i \log \sum_c \pi_c\, p(r_i | b_c, \Sigma)

        where :math:`r_i` is the residual of sample i after subtracting the group effects of the
        fit. If the fit has noise (``noise_`` > 0), the density includes the noise component.

        For fits to complete numeric tables with subtracted group means, the score of the training
        samples equals ``log_likelihood_`` divided by the residual degrees of freedom, unless the
        fit has balance, noise, target labels or weights.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or `nrprob.stored` rows
        y : ignored
        known, unseen : as in `predict`

        Returns
        -------
        float
            In nats per sample.
        """
        if self._is_stored(X, unseen):
            return super().score(X, known=known)
        return float(self.score_samples(X, known=known, unseen=unseen).mean())

    def _is_stored(self, X: Any, unseen: str) -> bool:
        """Whether ``X`` is a `nrprob.stored` source of rows.

        Raises ValueError for stored rows if ``unseen`` is "estimate".
        """
        stored = isinstance(X, Stored)
        if stored and unseen == "estimate":
            raise ValueError(
                "unseen='estimate' needs all samples of a group at once; got stored rows, which "
                "are read in pieces; pass the rows of unseen groups as an array"
            )
        return stored

    # Corrected table

    def transform(self, X, *, known=None, unseen="refuse"):
        r"""Subtract the estimated effects of the known groups.

        .. math:: x_i - (a_{z_i} - \bar{a})

        with the effect :math:`a_{z_i}` of the known group of sample i, and the mean
        :math:`\bar{a}` of the effects over the samples of the fit. Because :math:`\bar{a}` is added
        again, the mean of the table does not change.

        If effects and clusters were fitted jointly (``effects_kind_`` is "random" or "fixed"), the
        differences between clusters do not change. If group means were subtracted and cluster
        shares differ between groups, the means contain a part of the differences between clusters.
        The subtraction then moves the clusters towards each other, and `transform` warns.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        known : as in `fit`, optional
            Without ``known``, ``X`` is returned unchanged. If `fit` used columns by name, these
            columns of a frame ``X`` are the default.
        unseen : as in `predict`

        Returns
        -------
        ndarray or pandas.DataFrame of shape (n_samples, n_features)
            Copy of ``X``; a frame if ``X`` is a frame and the model was fitted to a frame. Missing
            values remain missing. Discrete columns are unchanged, because an effect on log odds
            cannot be subtracted from a value. Location effects are not subtracted.

        Raises
        ------
        ValueError
            As in `predict`.

        See Also
        --------
        predict : Clusters of new samples.
        """
        check_is_fitted(self)
        refuse_stored(X, "transform")
        self._check_unseen(unseen)
        X, known = self._split_known(X, known)
        return self._corrected_table(X, known, unseen)

    def fit_transform(self, X, y=None, *, known=None, **keywords):
        """Fit the model to a table, and subtract the estimated effects of the known groups.

        Parameters
        ----------
        X, y, known, **keywords : as in `fit`

        Returns
        -------
        ndarray or pandas.DataFrame of shape (n_samples, n_features)
        """
        return self.fit(X, y, known=known, **keywords).transform(X, known=known)

    def _corrected_table(self, X: Any, known: Any, unseen: str) -> Any:
        """Subtract the group effects from the numeric columns of a table, for `transform`."""
        with standard():
            table = self._read_table(X, reset=False)
        as_columns = is_table(X) and hasattr(self, "feature_names_in_")
        corrected: Any = as_frame(X).copy() if as_columns else table.cells.copy()
        if known is None:
            return corrected
        self._warn_subtracted()
        x = self._numeric_columns(table)
        if x is None:
            return corrected
        design = self._encoder.transform(known, table.n_samples, unseen == "estimate")
        if unseen == "estimate":
            effects = self._sample_effects(table, x, design)
        else:
            effects = predict_effects(self.effects_, design)
        x = x - (effects - self._level)
        positions = np.arange(table.cells.shape[1])
        if x.shape[1] < len(positions):
            positions = np.array(table.columns.numeric_positions)
        if not as_columns:
            corrected[:, positions] = x
            return corrected
        for j, values in zip(positions, x.T, strict=True):
            corrected.isetitem(j, values)
        return corrected

    def _sample_effects(self, table: TableInput, x: np.ndarray, design: Design) -> np.ndarray:
        """Effects (n, d) of the known group of every sample on the numeric columns, in units of X.

        The effects of groups that did not occur in the fit are estimated from the samples of these
        groups. ``x`` (n, d) are the numeric columns.
        """
        with standard():
            samples = self._locate(self._fitted, table, design)
            new, units = samples.is_new, self._units
            effects = np.tile(self._level, (table.n_samples, 1))
            effects[~new] = self.effects_[samples.codes[~new]]
            if not new.any():
                return effects
            membership, codes, m = samples.new_effects()
        back = units.back if samples.fitted is self._fitted else np.eye(len(units.centre))
        level = units.centre + self.weights_ @ self._fitted.b @ units.back
        effects[new] = level + (m @ back)[codes]
        if units.basis.shape[1] < len(units.basis):
            # In directions that the fit did not use, effects are group means about the centres.
            rest = units.unspanned(x[new]) - membership @ self._unspanned_centres
            effects[new] += group_means(rest, codes)[codes]
        return effects

    def _warn_subtracted(self) -> None:
        """Warn if subtracted group means contain a part of the differences between clusters."""
        if self.effects_kind_ == "subtract" and self._shares_differ:
            warn(
                "shares of clusters differ between known groups, so subtracting group means moves "
                "clusters towards each other; got effects_kind_='subtract'; fit with "
                "effects='random' to preserve the differences between clusters"
            )
