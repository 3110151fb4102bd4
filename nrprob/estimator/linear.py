"""Clusterers with costs that are linear in the statistics of a row, which allows prediction.

Shapes: n rows (samples), m statistics of a row, k clusters, ``groups`` known groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np
from scipy.special import logsumexp, softmax
from sklearn.utils.validation import check_is_fitted

from nrprob.data.design import Design, DesignEncoder
from nrprob.data.frames import extract_known
from nrprob.data.storage.stored import Stored, apply_to_pieces
from nrprob.engines import sharding
from nrprob.engines.optimise import solve
from nrprob.estimator.base import Clusterer
from nrprob.settings import standard
from nrprob.statistics import families
from nrprob.statistics.rows import Layout, Rows, make_layout, make_rows, padded_count


@dataclass
class Task:
    """Validated input of one fit, its data layout, and its program calls.

    Attributes
    ----------
    X : (n, n_features) validated rows; None if the fit needs only their statistics
    x : (n, m) statistics of the rows
    fixed : (n,) cluster of every labelled row, -1 for all other rows; None without labels
    design : known structure of the rows
    mesh : devices over which the rows are distributed; None for one device
    weights : (n,) weights of the samples; None if all are 1
    rows : the statistics in blocks by known group, as engines take them; the last groups may be
        empty, as padding
    layout : positions of the samples in ``rows``
    settings : traced parameters of the programs
    build : function that makes the terms of the objective; see `nrprob.engines.optimise.solve`
    labelings : for estimators with one term per known labeling, the labels (n,) of each as integers
    calls : compiled runs of the restarts
    """

    X: Any
    x: Any
    fixed: np.ndarray | None
    design: Design
    mesh: Any = None
    weights: np.ndarray | None = None
    rows: Rows = field(init=False)
    layout: Layout = field(init=False)
    settings: Any = None
    build: Any = None
    labelings: list[np.ndarray] = field(default_factory=list)
    calls: list[solve.SolverCall] = field(default_factory=list)

    def lay_out(self, mass: np.ndarray | None = None, one_is_few: bool = False) -> None:
        """Set ``rows`` and ``layout``: arrange the rows in blocks by known group, per device.

        ``mass`` (n,) are the weights of the rows. With ``one_is_few``, a single group is padded to
        several groups, so that fits with one group and with a few groups share a program.
        """
        design, n_shards = self.design, 1 if self.mesh is None else self.mesh.size
        n_groups, share = design.n_hard_groups, design.memberships
        if n_groups > 1 or (one_is_few and share is None):
            n_groups = padded_count(n_groups, self.x.shape[0] * self.x.shape[1])
        self.layout = make_layout(design.codes, n_groups, n_shards)
        n_groups = max(n_groups, design.n_groups)
        self.rows = make_rows(self.x, self.layout, n_groups, share=share, mass=mass)

    def share_among_devices(self) -> None:
        """Distribute the rows over the devices, if there are several."""
        if self.mesh is not None:
            sharding.check_same((self.rows, self.settings, self.fixed), self.mesh)
            self.rows = sharding.shard_rows(self.rows, self.mesh)


class LinearClusterer(Clusterer):
    """Clusterer in which the cost of a row is linear in the statistics of the row.

    The coefficients depend on the cluster and on the known group of the row.

    In addition to the methods of `Clusterer`, a subclass defines

    ``_fit_features(X, sample_weight)``
        Return the map from raw rows to statistics; see `nrprob.statistics.families.FeatureMap`.

    The method `finish` stores the coefficients of the cost by `_keep_costs`, for predictions.
    """

    _rarely_finite = ("beta_", "critical_beta_")
    # Whether a fit without known structure shares the program of fits with a few known groups.
    _one_is_few = False
    # Whether `finish` needs the rows, in addition to their statistics.
    _keeps_rows = False

    def _fit_features(self, X: Any, sample_weight: Any) -> Any:
        raise NotImplementedError

    # Input

    def _device_mesh(self, X):
        """Devices over which to distribute the rows; None for one device.

        The result has the devices of `nrprob.sharded`, or else the devices that hold ``X``.
        """
        mesh = sharding.active_mesh()
        return sharding.mesh_of(X) if mesh is None else mesh

    def _read_task(self, X, y, known, sample_weight=None) -> Task:
        """Validate the input of a fit, and return a `Task` without ``rows`` and ``layout``."""
        mesh = self._device_mesh(X)
        X = self._validate(X, reset=True)
        n_samples = X.shape[0]
        self._check_size(n_samples)
        fixed = self._target_clusters(y, n_samples)
        design = self._encode_known(X, known, mesh, sample_weight)
        self._check_groups(design)
        self._features = self._fit_features(X, sample_weight)
        rows = X if self._keeps_rows else None
        return Task(rows, self._features(X), fixed, design, mesh, sample_weight)

    def _encode_known(self, X, known, mesh: Any, sample_weight: Any) -> Design:
        """Fit the encoding of the known structure, and return the encoded known structure.

        ``X`` are validated rows.
        """
        self._encoder = DesignEncoder()
        return self._encoder.fit(known, X.shape[0], sample_weight)

    def _validate(self, X, *, reset: bool):
        if isinstance(X, jax.Array) and X.ndim == 2 and X.size:
            if not (X.is_fully_addressable or X.is_fully_replicated):
                raise ValueError(
                    "X must be held by this process alone; got an array that is distributed over "
                    "several processes; pass the same NumPy array in every process"
                )
            is_unsharded = X.is_fully_replicated and sharding.active_mesh() is None
            if is_unsharded and _on_accelerator(X):
                return self._validate_device(X, reset=reset)
        return super()._validate(X, reset=reset)

    def _validate_device(self, X, *, reset: bool):
        """Validate a JAX array without moving it from its devices."""
        if X.dtype != np.float32:
            X = X.astype(np.float64)
        if not bool(jax.numpy.isfinite(X).all()):
            raise ValueError(
                "Input X contains NaN or infinity; got a JAX array with such values; remove or "
                "impute them"
            )
        if reset:
            self.n_features_in_ = X.shape[1]
        elif X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        self._check_magnitude(X, reset=reset)
        return X

    # Results

    def _keep_costs(
        self,
        slope: np.ndarray,
        log_prior: np.ndarray,
        m: int,
        *,
        beta: float,
        critical: float | Callable[[], Any],
    ) -> None:
        """Store the coefficients of the cost of new rows.

        The cost of a row in a cluster is the product of the coefficients and the statistics of the
        row. Memberships are proportional to ``exp(log_prior - beta * cost)``.

        Parameters
        ----------
        slope : (groups, columns, m + 1) coefficients of the m statistics and, last, of the mass;
            the first k columns are the clusters, the others padding
        log_prior : (columns,) log prior of the clusters
        m : number of statistics of a row
        beta : final inverse temperature
        critical : critical inverse temperature, or a function that computes it at first access
        """
        k = self.n_clusters
        self._coef = slope[:, :k, :m]
        self._intercept = slope[:, :k, -1]
        self._log_prior = log_prior[:k].astype(np.float64)
        self.beta_ = float(beta)
        if callable(critical):
            self._critical_beta = critical
        else:
            self.critical_beta_ = float(critical)

    @cached_property
    def critical_beta_(self) -> float:
        """Inverse temperature at which clusters first separate; may be computed at first access."""
        compute = self.__dict__.pop("_critical_beta", None)
        if compute is None:
            raise AttributeError(
                f"this {type(self).__name__} has no critical_beta_; is it not fitted yet?"
            )
        with standard():
            value = float(compute())
        self._set_by_fit = [*vars(self).get("_set_by_fit", ()), "critical_beta_"]
        return value

    def __getstate__(self) -> dict[str, Any]:
        # A pickle should not contain all rows.
        if "_critical_beta" in vars(self):
            _ = self.critical_beta_
        return super().__getstate__()

    def _nothing_left(self, has_structure: bool) -> str:
        """Return why there is no structure in X, for a warning; empty if there may be structure.

        ``has_structure`` states whether there is known structure.
        """
        if not np.isinf(vars(self).get("critical_beta_", 0.0)):
            return ""
        what = "once the known structure is accounted for" if has_structure else "in X"
        return f"there is no structure left {what}; all rows are alike"

    # New rows

    def _encode_rows(self, X, known) -> tuple[Any, Design]:
        """Return the statistics (n, m) and the known structure of new rows."""
        check_is_fitted(self)
        with standard():
            X = self._validate(X, reset=False)
            x = self._features(X)
        if isinstance(x, jax.Array):
            x = np.asarray(x)
        return x, self._encoder.transform(known, x.shape[0])

    def _log_membership(self, X, known) -> np.ndarray:
        """Log memberships (n, k) of new rows, up to a constant per row."""
        x, design = self._encode_rows(X, known)
        # Subtract the mean over clusters, since a large beta multiplies its rounding errors.
        coef = self._coef - self._coef.mean(1, keepdims=True)
        intercept = self._intercept - self._intercept.mean(1, keepdims=True)
        cost = _linear_costs(x, design, coef, intercept)
        if np.isinf(self.beta_):
            # In the limit of infinite beta, the cluster of least cost wins; among clusters of equal
            # cost, the cluster of the largest prior wins.
            cost = np.where(np.isfinite(self._log_prior), cost, np.inf)
            return np.where(cost == cost.min(1, keepdims=True), self._log_prior, -np.inf)
        return self._log_prior - self.beta_ * cost

    def predict_proba(self, X, *, known=None):
        """Predict p(cluster given row) of new rows at the final inverse temperature.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
            New rows, or `nrprob.stored` rows.
        known : as in `fit`; required if the model was fitted with it
            If `fit` took column names, the default are the columns of ``X`` with these names.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        check_is_fitted(self)
        if np.isinf(self.beta_):
            return np.eye(self.n_clusters)[Clusterer.predict(self, X, known=known)]
        if isinstance(X, Stored):
            proba, known = LinearClusterer.predict_proba, self._stored_known(known)
            return apply_to_pieces(lambda x, known: proba(self, x, known=known), X, known)
        return softmax(self._log_membership(*self._split_known(X, known)), axis=1)

    def _row_scores(self, X, known) -> np.ndarray:
        """Minus the contribution (n,) of every new row to the objective, in nats, for `score`."""
        x, design = self._encode_rows(X, known)
        cost = _linear_costs(x, design, self._coef, self._intercept)
        cost += self._common_cost(x, design)[:, None]
        return self._mixture_scores(cost)

    def _common_cost(self, x, design: Design) -> np.ndarray:
        """Part (n,) of the cost of every row that is the same for all clusters.

        This part is not linear in the statistics, so the stored coefficients leave it out.
        """
        return families.get_family(self._features.features).row_constant(x)

    def _mixture_scores(self, cost: np.ndarray) -> np.ndarray:
        """Scores (n,) of rows, for `score`, from the costs ``cost`` (n, k) of rows in all clusters.

        This base method uses the formula for memberships at a finite inverse temperature.
        """
        log_prior = self._log_prior - logsumexp(self._log_prior)
        return logsumexp(log_prior - self.beta_ * cost, axis=1) / self.beta_


class FeatureParameters(LinearClusterer):
    """Mixin for clusterers with the parameters ``features`` and ``binarize``.

    The parameters determine which statistics of a row enter the costs of clusters.
    """

    def _fit_features(self, X: Any, sample_weight: Any) -> Any:
        return families.fit_features(X, self.features, self.binarize, sample_weight)


class ScoreMixin:
    """Mixin with the method `score`, for estimators that define ``_row_scores``."""

    def score(self, X, y=None, *, known=None):
        r"""Negative mean contribution of new rows to the objective under the fitted statistics.

        With the cost d(x, c) of row x in cluster c, the score is

        .. math:: -\frac{1}{n} \sum_i \min_c d(x_i, c) \qquad \text{or} \qquad
            \frac{1}{n} \sum_i \frac{1}{\beta} \log \sum_c p(c) e^{-\beta d(x_i, c)}

        for hard labels and for a finite inverse temperature ``beta``, respectively. n is the number
        of new rows, and p(c) the share of cluster c to the power ``compression``. On the rows
        of the fit, the score is ``-objective_ / n``, up to the tolerance of the fit. Compare scores
        only of fits with the same objective, weights and units. As in k-means, more hard clusters
        usually have a better score, even on new rows.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
            New rows, or `nrprob.stored` rows.
        y : ignored
        known : as in `predict`

        Returns
        -------
        float
            In nats per sample; higher is better.
        """
        model: Any = self
        if isinstance(X, Stored):
            known = model._stored_known(known)
            scores = apply_to_pieces(
                lambda *piece: model._row_scores(*extract_known(*piece)), X, known
            )
            return float(scores.mean())
        return float(model._row_scores(*model._split_known(X, known)).mean())


def _linear_costs(x: Any, design: Design, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
    """Return ``x @ coef + intercept`` (n, k) with the coefficients of the known group of each row.

    ``x`` (n, m) are statistics, ``coef`` (groups, k, m) coefficients, and ``intercept`` (groups, k)
    constants.
    """
    cost = np.zeros((x.shape[0], intercept.shape[1]))
    for g in range(design.n_groups):
        if design.memberships is None:
            member = design.codes == g
            if member.any():
                cost[member] = x[member] @ coef[g].T + intercept[g]
        else:
            cost += design.memberships[:, g, None] * (x @ coef[g].T + intercept[g])
    return cost


def _on_accelerator(x: jax.Array) -> bool:
    return any(device.platform != "cpu" for device in x.devices())
