"""Predict classes, clusters and densities of new samples from draws of partitions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted, validate_data

from nrprob.data.design import DesignEncoder
from nrprob.data.validation import LARGEST, check_rows
from nrprob.estimator.base import Clusterer
from nrprob.methods.bayes.covariates import with_linear_effects
from nrprob.methods.bayes.draws import MAX_DRAWS, compact_draws, pool_draws
from nrprob.methods.bayes.joint_target import JointTarget
from nrprob.methods.bayes.merging import build_merge_trees
from nrprob.methods.bayes.model import MixtureModel, NewRows
from nrprob.methods.bayes.predictive import (
    class_probabilities,
    cluster_probabilities,
    log_densities,
    mixture_probabilities,
)
from nrprob.methods.bayes.yeo_johnson import MAX_EXPONENT
from nrprob.posterior.merge_trees import MergeTrees
from nrprob.settings import standard
from nrprob.statistics.families import FeatureMap
from nrprob.statistics.rows import padded_count

_MAX_ENTRIES = 10**8  # largest number of entries of a sparse X that is made dense


class Sampled(Clusterer):
    """The part of `nrprob.MDLMixture` that predicts from the draws of a fit.

    Attributes
    ----------
    posterior_, sample_stats_ : xarray.Dataset
        Draws, and counts of moves.
    labels_, n_clusters_, classes_ : see `nrprob.MDLMixture`
    """

    posterior_: Any
    sample_stats_: Any
    labels_: np.ndarray
    n_clusters_: int
    classes_: np.ndarray
    energy_: str
    covariance_: str
    kernel: str
    prediction_rule: str
    transformation: str
    _mixture: MixtureModel
    _target: Any  # the distribution that was sampled
    _encoder: DesignEncoder
    _effects_width: int
    _n_classes: int
    _n_rows: int
    _features: FeatureMap
    _max_total: float  # largest sum of the counts of a sample
    _columns: np.ndarray  # positions of the features that `fit` did not drop
    _mean: np.ndarray
    _sd: np.ndarray

    def _validate_rows(self, X: Any, *, reset: bool) -> np.ndarray:
        """Check samples (n, m), and make them dense if they are sparse."""
        validate = partial(validate_data, self, reset=reset)
        X = check_rows(X, validate, dtype=np.float64, accept_sparse="csr")
        if not sparse.issparse(X):
            return X
        if X.shape[0] * X.shape[1] > _MAX_ENTRIES:
            raise ValueError(
                f"sparse X is made dense, and may have up to {_MAX_ENTRIES:.0e} entries with its "
                f"zeros; got {X.shape[0]} x {X.shape[1]}; pass fewer columns, or use CCIB or "
                "ResidualSpectral"
            )
        return X.toarray()

    def _check_coded(self, X: np.ndarray) -> None:
        """Raise ValueError if the model of the features has no code for some samples."""
        self._features(X)
        if self._features.features != "multinomial":
            return
        if (X != np.round(X)).any():
            raise ValueError(
                "counts must be whole numbers; got fractions; pass raw counts, or set "
                "features='gaussian'"
            )
        if (longest := X.sum(1).max(initial=0)) > self._max_total:
            raise ValueError(
                f"new rows may have up to {self._max_total:.0f} counts, ten times the largest "
                f"total of the fit; got {longest:.0f}; scale them down"
            )

    def _standardise(self, X: np.ndarray) -> np.ndarray:
        return (X[:, self._columns] - self._mean) / self._sd

    # Merging, and predictions for new samples

    def _merging_rule(self) -> str:
        """Rule by which components are merged: "dip" or "exchange"."""
        return "dip" if self._features.features == "gaussian" else "exchange"

    def _build_merge_trees(self, draws: dict[str, np.ndarray]) -> MergeTrees:
        """Make the merge trees of the components of draws (chain, draw, ...)."""
        covariance = {"diag": "diag", "tied": "tied"}.get(self.covariance_, "full")
        return build_merge_trees(
            self._target, draws, self._n_rows, self._columns.size, self._n_classes,
            covariance=covariance, continuous=self._merging_rule() == "dip",
        )  # fmt: skip

    def merge_trees(self) -> MergeTrees:
        """Compute merge trees of the components of all draws, for `nrprob.posterior.clusters`.

        The merge tree of a draw states at which threshold its components merge.

        Returns
        -------
        nrprob.posterior.merge_trees.MergeTrees
        """
        check_is_fitted(self)
        draws = {str(name): values.values for name, values in self.posterior_.items()}
        draws["labels"] = draws["components"]
        with standard():
            return self._build_merge_trees(draws)

    def predict_proba(self, X, *, known=None):
        r"""Probabilities of the classes, averaged over the draws.

        .. math:: p(y | x, D) = \frac{\sum_s p(x, y | s)}{\sum_s p(x | s)}

        for features x and class y of a new sample, draws s, and the data D of `fit`. The formula
        holds for ``prediction_rule="joint"``; with "cond", the result is the plain average of p(y |
        x, s) over s. The new sample joins a component of the draw or a new component. p(x, y | s)
        is the sum of exp(-l) over these components, where l is the increase of the description
        length. See Yin (2007), eqs. (4.7) and (4.9), whose denominator is p(x | D).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            New samples.
        known : as in `fit`; required if the model was fitted with it
            Known structure of the new samples. If `fit` took known columns by name, they are read
            from the frame ``X``.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns are ``classes_``. Without classes in `fit`, columns are the clusters of
            ``labels_``. The probability of a cluster is then the sum over its components.
        """
        return self._average_draws(X, known, self._average_probabilities)

    def score_samples(self, X, *, known=None):
        r"""Log predictive density of new samples.

        .. math:: \log p(x) = \log \frac{1}{S} \sum_s \sum_c p(c | s) p(x | c, s)

        where s runs over the S draws, and c over the components of a draw and a new component. With
        ``energy="nml"``, p(x | c, s) is exp(-l), where l is the increase of the code length of the
        component's features. exp(-l) is not a density, but comparisons with the same ``energy`` are
        valid. Columns that `fit` dropped do not count. For counts, p(x | c, s) is the probability
        of the tokens of a sample in their order.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            New samples.
        known : as in `predict`

        Returns
        -------
        ndarray of shape (n_samples,)
            Log densities in nats, for features in the units of ``X``.
        """
        return self._average_draws(X, known, log_densities) - np.log(self._sd).sum()

    def score(self, X, y=None, *, known=None):
        """Mean log predictive density of new samples, see `score_samples`; higher is better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            New samples.
        y : ignored
        known : as in `predict`

        Returns
        -------
        float
            Mean in nats per sample.
        """
        return float(self.score_samples(X, known=known).mean())

    def _average_draws(self, X: Any, known: Any, call: Callable[..., Any]) -> np.ndarray:
        """Evaluate ``call(target, draws, n_draws, rows)`` for new samples ``X``, block by block.

        ``rows`` are the `NewRows` of a block. Returns the results of all blocks in one array, along
        the first axis.
        """
        check_is_fitted(self)
        X, known = self._split_known(X, known)
        X = self._validate_rows(X, reset=False)
        self._check_coded(X)
        X = self._standardise(X)
        limit = LARGEST ** (1 / MAX_EXPONENT) if self.transformation != "identity" else LARGEST
        if not abs(X).max(initial=0) < limit:
            raise ValueError(
                f"new rows must lie within {limit:.3g} standard deviations of the rows of the "
                f"fit, or squares overflow float64; got a distance of {abs(X).max():.3g}; pass "
                "them in the units of the fit"
            )
        design = with_linear_effects(self._encoder.transform(known, len(X)), self._effects_width)
        with standard():
            draws, n_draws = self._pool_draws("components", "labels", *self._joint_names())
            draws["clusters"], draws["labels"] = draws.pop("labels"), draws.pop("components")
            draws, target = compact_draws(draws, self._target)
            parts = []
            for i in range(0, X.shape[0], 1024):
                part = np.arange(i, min(i + 1024, len(X)))
                # Padding to multiples of 64 samples limits the number of compiled programs.
                wide = np.pad(part, (0, -len(part) % 64), mode="edge")
                rows = self._mixture.new_rows(X[wide], self._n_classes, design.take_rows(wide))
                result = np.asarray(call(target, draws, n_draws, rows))
                parts.append(result[: len(part)])
        return np.concatenate(parts)

    def _pool_draws(self, *names: str) -> tuple[dict[str, np.ndarray], int]:
        """Pool draws of the variables ``names`` of all chains, for averages of predictions.

        Returns `MAX_DRAWS` draws, padded by copies of the last one, and the number without padding.
        """
        draws = {name: pool_draws(self.posterior_[name].values, MAX_DRAWS) for name in names}
        n_draws = len(draws[names[0]])
        pad = max(MAX_DRAWS - n_draws, 0)
        return {
            n: np.concatenate([a, np.repeat(a[-1:], pad, 0)]) for n, a in draws.items()
        }, n_draws

    def _joint_names(self) -> tuple[str, ...]:
        """Names of the variables that are sampled jointly with the labels."""
        return self._target.names if isinstance(self._target, JointTarget) else ()

    def _average_probabilities(
        self, target: Any, draws: dict[str, np.ndarray], n_draws: int, rows: NewRows
    ) -> Any:
        if self._n_classes and self.kernel == "six-move" and self.energy_ == "nml":
            return self._average_parameters(np.asarray(rows.x))
        if self._n_classes:
            return class_probabilities(target, draws, n_draws, rows, rule=self.prediction_rule)
        size, k = target.x.shape[0], self.n_clusters_
        reference = np.zeros((size, padded_count(k, size)))
        reference[np.arange(self._n_rows), self.labels_] = 1
        result = cluster_probabilities(
            target, draws, n_draws, rows, reference, rule=self.prediction_rule
        )
        return np.asarray(result)[:, :k]

    def _average_parameters(self, x: np.ndarray) -> jax.Array:
        """Probabilities (b, C) of the classes of new samples, from draws of mixture parameters.

        ``x`` (b, p) are the statistics of the samples.
        """
        draws, n_draws = self._pool_draws("weights", "means", "scales", "class_probs", "active")
        slots = np.arange(self._target.n_slots)  # draws are stored without surplus slots
        stored = slots < draws["active"].shape[1]
        draws = {name: a[:, np.where(stored, slots, 0)] for name, a in draws.items()}
        draws["active"] = draws["active"] & stored
        features = x[:, : self._columns.size]
        return mixture_probabilities(draws, n_draws, features, rule=self.prediction_rule)

    def predict(self, X, *, known=None):
        """Most probable class; without classes in `fit`, the most probable cluster of ``labels_``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            New samples.
        known : as in `fit`; required if the model was fitted with it
            Known structure of the new samples. If `fit` took known columns by name, they are read
            from the frame ``X``.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        codes = self.predict_proba(X, known=known).argmax(1)
        return self.classes_[codes] if self._n_classes else codes
