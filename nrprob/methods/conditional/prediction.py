"""Use a fitted conditional mixture on new samples: clusters, densities, and a corrected table."""

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
    """New samples of a joint fit.

    Attributes
    ----------
    x : (n, d) numbers in the coordinates of ``fitted``, NaN where missing; None without numbers
    columns : discrete columns
    codes : (n,) known group; groups that did not occur in the fit come after the others
    fitted : parameters
    unit : log of the volume (n, 1) by which densities differ from those in units of the table
    """

    x: np.ndarray | None
    columns: list[DiscreteColumn]
    codes: np.ndarray
    fitted: FittedTable
    unit: np.ndarray

    @property
    def is_new(self) -> np.ndarray:
        """Whether the group (n,) did not occur in the fit."""
        return self.codes >= len(self.fitted.log_share)

    def _estimate(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log joint densities (n', K), effects (L', d) and codes (n',) of new groups."""
        rows = np.flatnonzero(self.is_new)
        x = None if self.x is None else self.x[rows]
        codes = self.codes[rows] - len(self.fitted.log_share)
        return *estimate_new_groups(self.fitted, x, take_rows(self.columns, rows), codes), codes

    def log_joint(self, spread: bool) -> np.ndarray:
        """Log share plus log density (n, K); see `FittedTable.log_joint`."""
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
        """Memberships (n', K) and groups (n',) of samples of new groups, and effects (L', d)."""
        log_joint, m, codes = self._estimate()
        return softmax(log_joint, axis=1), codes, m


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
    # Effects of the clusters (K, m) on directions that the fit did not use, if there are any.
    _unspanned_centres: np.ndarray

    def __sklearn_tags__(self):
        """Return scikit-learn's description of what the estimator accepts."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # Clusters and densities

    def _log_membership(self, X, known, unseen="refuse") -> np.ndarray:
        check_is_fitted(self)
        self._check_unseen(unseen)
        if self._fitted is not None:
            return self._new_log_joint(X, known, unseen)
        return self._residual_log_joint(*self._residuals(X, known))

    def _residual_log_joint(self, y: np.ndarray, design: Design) -> np.ndarray:
        """Scores (n, K) of samples at coordinates (n, p), with the weights that balance groups."""
        log_p = self._log_densities(y)
        if not self._is_balanced:
            return log_p
        additive = design.columns is not None
        codes = self._encoder.combine_labelings(design.labelings) if additive else design.codes
        return log_p + self._offset[:, codes].T

    def _row_scores(self, X, known, unseen="refuse") -> np.ndarray:
        check_is_fitted(self)
        self._check_unseen(unseen)
        if self._fitted is not None:
            return self._new_log_densities(X, known, unseen)
        return self.log_density_of(X, known=known) - self._log_unit

    def _check_unseen(self, unseen: str) -> None:
        """Raise ValueError if effects of unseen groups cannot be estimated."""
        self._check_choice("unseen", unseen, UNSEEN)
        if unseen == "estimate" and self.effects_kind_ != "random":
            raise ValueError(
                "unseen='estimate' needs a fit with random effects of the known groups; got "
                f"effects_kind_={self.effects_kind_!r}; fit with effects='random', or drop samples "
                "of groups that did not occur in fit"
            )

    def _read_new(self, X, known, unseen: str) -> tuple[TableInput, Design]:
        """Table and known groups of new samples; unseen groups come after those of the fit."""
        with standard():
            table = self._read_table(X, reset=False)
        return table, self._encoder.transform(known, table.n_samples, unseen == "estimate")

    def _new_log_joint(self, X, known, unseen: str) -> np.ndarray:
        """Log share plus log density (n, K) of new samples of a joint fit."""
        return self._log_joint_of(self._fitted, *self._read_new(X, known, unseen), False)

    def _new_log_densities(self, X, known, unseen: str) -> np.ndarray:
        """Log densities (n,) of new samples of a joint fit, by clusters and noise together."""
        table, design = self._read_new(X, known, unseen)
        log_joint = self._log_joint_of(self._fitted, table, design, True)
        value = logsumexp(log_joint, axis=1)
        if self._noise_table is not None:
            # Unseen groups have no mean about which noise is defined.
            rows = np.flatnonzero(design.codes < len(self._fitted.log_share))
            log_noise = self._log_joint_of(
                self._noise_table, table.take(rows), design.take_rows(rows), False
            )
            value[rows] = with_noise(log_joint[rows], log_noise[:, 0], self.noise_)[1]
        return value

    def _locate(self, fitted: FittedTable, table: TableInput, design: Design) -> NewSamples:
        """Bring new samples to the coordinates of ``fitted``."""
        x, units = self._numeric_columns(table), self._units
        if x is None or units is None:
            return NewSamples(None, table.discrete, design.codes, fitted, np.zeros(()))
        if np.isnan(x).any() and not units.is_diagonal:
            # Rotated coordinates would mix missing columns with others.
            fitted, units = fitted.in_units(units), Units.from_scale(units.centre, 1.0)
        unit = units.log_density_unit(x)[:, None]
        return NewSamples(units(x), table.discrete, design.codes, fitted, unit)

    def _log_joint_of(
        self, fitted: FittedTable, table: TableInput, design: Design, spread: bool
    ) -> np.ndarray:
        """Log share plus log density (n, K) of the samples of a table, in its units."""
        with standard():
            samples = self._locate(fitted, table, design)
            return samples.log_joint(spread) + samples.unit

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

    def predict(self, X, *, known=None, unseen="refuse"):
        """Predict the cluster of each new sample.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or `nrprob.stored` rows
        known : as in `fit`; required if the model was fitted with it
            If `fit` used columns by name, these columns of a frame ``X`` are the default.
        unseen : {"refuse", "estimate"}, default="refuse"
            What to do with samples of known groups that did not occur in `fit`. "estimate"
            estimates the effects of these groups from their samples in ``X``, for fits with random
            effects. The result for a sample then depends on the other samples of its group; a
            single sample has the prior N(0, T) of the effects.

        Returns
        -------
        ndarray of shape (n_samples,)

        Raises
        ------
        ValueError
            If a known group did not occur in `fit` and ``unseen`` is "refuse"; if the fit has no
            random effects and ``unseen`` is "estimate".
        """
        if self._is_stored(X, unseen):
            return super().predict(X, known=known)
        return self._log_membership(*self._split_known(X, known), unseen).argmax(1)

    def predict_proba(self, X, *, known=None, unseen="refuse"):
        """p(cluster given sample) of new samples.

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

        With random effects, the covariance of a sample includes the uncertainty of the effect of
        its group. A sample of an unseen group has its density given the other samples of the group.

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

        with the residuals r of new samples, by the effects of the fit. For the samples of a fit
        that subtracts group means, and ``balance=0``, it equals ``log_likelihood_`` divided by the
        residual degrees of freedom. If the fit has noise (``noise_`` > 0), the density is that of
        clusters and noise together, so that it integrates to 1.

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
        """Whether samples are stored; ValueError if their unseen groups are to be estimated."""
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
        unseen : as in `predict`

        Returns
        -------
        ndarray or pandas.DataFrame of shape (n_samples, n_features)
            A copy; a frame if the model was fitted to a frame and ``X`` is one. Missing values
            stay. Discrete columns keep their values and their group effects, because an effect on
            log odds has no value in the units of the column. Location effects stay.

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
        """Fit, and subtract the estimated effects of the known groups; see `transform`.

        Parameters
        ----------
        X, y, known, **keywords : as in `fit`

        Returns
        -------
        ndarray or pandas.DataFrame of shape (n_samples, n_features)
        """
        return self.fit(X, y, known=known, **keywords).transform(X, known=known)

    def _corrected_table(self, X: Any, known: Any, unseen: str) -> Any:
        """Table of numbers without their group effects; see `transform`."""
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
        """Effects (n, d) of the groups of new samples, which may be unseen, in units of X."""
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
            rest = units.unspanned(x[new]) - membership @ self._unspanned_centres
            effects[new] += group_means(rest, codes)[codes]
        return effects

    def _warn_subtracted(self) -> None:
        """Warn that subtracted means contain shares of clusters that differ between groups."""
        if self.effects_kind_ == "subtract" and self._shares_differ:
            warn(
                "shares of clusters differ between known groups, and group means contain them; got "
                "effects_kind_='subtract', whose correction moves clusters towards each other; fit "
                "with effects='random' to leave clusters where they are"
            )
