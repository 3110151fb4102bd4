r"""Description lengths of the features of one view, and exact changes of the lengths by moves.

The continuous features of sample i, in cluster z_i and known group g_i, have the model
:math:`x_i = \mu_{z_i} + \gamma_{g_i} + e_i`. Here :math:`\mu` is the mean of a cluster,
:math:`\gamma` the effect of a group, and e an error. Means and effects are least-squares estimates.
Lengths of continuous features omit the constant :math:`\frac{nd}{2} \log \frac{2 \pi}{d}`. The
lengths under all forms of covariances are therefore comparable. Binary features and counts are
encoded by normalised maximum likelihood in every cluster, or in every pair of a cluster and a known
group.

Host code in NumPy and float64. A *unit* is a must-link component or a single sample. C units are in
K clusters, and n samples of d features are in G known groups. m labelings of the units are
evaluated at a time. A *length* is a description length in nats.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from nrprob.codelength import exponential_complexity
from nrprob.methods.mdl.cluster_costs import (
    ClusterCosts,
    CountCosts,
    GaussianCosts,
    count_symbols,
)
from nrprob.methods.mdl.count_tables import CountTable
from nrprob.statistics.groups import group_means, group_sums
from nrprob.statistics.squared_distances import DistanceLengths

COVARIANCES = ("isotropic", "diagonal", "full", "full_cluster")
_CHUNK = 4_000_000  # entries of a table that are computed at a time
_POOLED_RIDGE = 1e-6  # added to a pooled covariance, in units of the variances of the features
_LEAST_VARIANCE = 1e-6  # smallest variance of a feature, in units of the mean variance
_TOO_SMALL = 1e6  # penalty per missing sample of a cluster without a covariance, in nats
_CLUSTER_RIDGE = 1e-3  # added to the covariance of a cluster, in units of the variances


class FeatureLengths(Protocol):
    """Description lengths of the features of one view, given labels of C units in K clusters.

    Attributes
    ----------
    mean : (C, d) mean features of the samples of every unit, from which proposals are made
    mass : (C,) number of samples of every unit
    """

    mean: np.ndarray
    mass: np.ndarray

    def totals(self, z: np.ndarray) -> np.ndarray:
        """Description lengths (m,) of the features, given each of m labelings z (m, C).

        The lengths exclude `parameter_length`.
        """
        ...

    def changes(self, z: np.ndarray) -> np.ndarray:
        """Changes (m, C, K) of `totals` if one of C units moves to one of K clusters.

        ``z`` (m, C) are m labelings before the move. The change is 0 for the present cluster.
        """
        ...

    def parameter_length(self, k: int, n: int) -> float:
        """Description length of the parameters of ``k`` clusters, for ``n`` samples in total."""
        ...

    def cost_model(self, z: np.ndarray) -> ClusterCosts:
        """Return a function that computes the lengths of new samples in the fitted clusters.

        ``z`` (C,) are the labels of the units of the fit.
        """
        ...


def _positive_variances(x: np.ndarray) -> np.ndarray:
    """Variances (d,) of features x (n, d), at least 1e-6 times the mean variance."""
    variances = x.var(0)
    return np.maximum(variances, _LEAST_VARIANCE * variances.mean())


def cluster_totals(values: np.ndarray, z: np.ndarray, k: int) -> np.ndarray:
    """Sums (K, J) of J ``values`` (C, J) per unit, over the units of each of ``k`` clusters.

    ``z`` (C,) are the clusters of the units. The function is fast for few clusters.
    """
    return (z == np.arange(k)[:, None]).astype(np.float64) @ values


def half_log(n: int) -> float:
    """Description length in nats of one real parameter estimated from ``n`` samples; at least 0."""
    return max(0.5 * math.log(n / (2 * math.pi)), 0.0)


class IsotropicLengths:
    """Description lengths of continuous features with isotropic clusters and without known groups.

    `nrprob.statistics.squared_distances.DistanceLengths` defines the lengths.

    Parameters
    ----------
    x : (n, d) features, with total variance 1
    unit : (n,) index of the unit of every sample
    k : number K of clusters
    weight : factor w of the squared distances in the length
    bounds : bounds of the mean squared distance of samples from their cluster mean
    shared : whether all clusters share one mean squared distance
    centres_coded : whether `parameter_length` includes the cluster means
    """

    def __init__(
        self, x: np.ndarray, unit: np.ndarray, k: int, weight: float,
        bounds: tuple[float, float], shared: bool, *, centres_coded: bool = True,
    ):  # fmt: skip
        n_units = int(unit.max()) + 1
        self.centres_coded = centres_coded
        self.mass = np.bincount(unit, minlength=n_units)
        self.mean = group_means(x, unit, n_units)
        within = np.bincount(unit, ((x - self.mean[unit]) ** 2).sum(1), minlength=n_units)
        self.distances = DistanceLengths(self.mean, self.mass, within, k, weight, bounds, shared)

    def totals(self, z: np.ndarray) -> np.ndarray:
        """Description lengths (m,) of the features given labels (m, C); see `FeatureLengths`."""
        size, _, scatter = self.distances.cluster_statistics(z)
        return self.distances.total(size, scatter)

    def changes(self, z: np.ndarray) -> np.ndarray:
        """Changes (m, C, K) of the length by moves of one unit; see `FeatureLengths`."""
        return self.distances.changes(z, *self.distances.cluster_statistics(z))

    def parameter_length(self, k: int, n: int) -> float:
        """Description length of the means of ``k`` clusters; see `FeatureLengths`."""
        return k * self.mean.shape[1] * half_log(n) if self.centres_coded else 0.0

    def cost_model(self, z: np.ndarray) -> ClusterCosts:
        """Return a function that computes the lengths of new samples; see `FeatureLengths`."""
        size, centres, scatter = self.distances.cluster_statistics(z[None])
        scales, w = self.distances.scales(size, scatter)[0], self.distances.weight
        no_effects = np.zeros((1, centres.shape[2]))
        roots = np.sqrt(scales / (2 * w))
        return GaussianCosts(centres[0], no_effects, roots, w * np.log(scales), scales)


class PooledLengths:
    """Description lengths of continuous features with one covariance for all clusters.

    Known groups have additive effects on the features. The cluster indicators and the features X
    are projected onto the orthogonal complement of the group indicators. A (K, K) is the Gram
    matrix of the projected cluster indicators, and A^+ its pseudo-inverse. B (K, d) are the
    products of the projected indicators and X. The residual scatter is S = X'X - B'A^+ B. If a unit
    moves, the change of A depends only on the composition of the unit: its numbers of samples by
    group. The change of B depends on the sum y (d,) of the features of the unit.

    Parameters
    ----------
    x : (n, d) features
    unit : (n,) index of the unit of every sample
    groups : (n,) known group of every sample
    k : number K of clusters
    covariance : "isotropic", "diagonal" or "full"
    weight : factor w of the squared distances in the length, for isotropic covariance
    bounds : two bounds: of the mean squared residual if ``covariance`` is "isotropic", or of the
        residual variances, in units of the variances of the features, if "diagonal"; not used if
        "full"
    """

    def __init__(
        self, x: np.ndarray, unit: np.ndarray, groups: np.ndarray, k: int, covariance: str,
        weight: float, bounds: tuple[float, float],
    ):  # fmt: skip
        self.k, self.covariance, self.n = k, covariance, len(x)
        self._weight, self._bounds = weight, bounds
        n_groups, n_units = int(groups.max()) + 1, int(unit.max()) + 1
        size = np.bincount(groups, minlength=n_groups)
        self.variance = _positive_variances(x)
        self._group_means = group_means(x, groups, n_groups)
        self.adjusted = x - self._group_means[groups]
        self.mass = np.bincount(unit, minlength=n_units)
        self.sums = group_sums(self.adjusted, unit, n_units)
        self.mean = self.sums / self.mass[:, None]
        square = self.adjusted**2
        self._scatter = {
            "isotropic": square.sum(),
            "diagonal": square.sum(0),
            "full": self.adjusted.T @ self.adjusted,
        }[covariance]
        self._counts = np.zeros((n_units, n_groups))
        np.add.at(self._counts, (unit, groups), 1)
        self._share = 1 / size
        # Units of equal composition by group change the Gram matrix equally.
        self._types, index = np.unique(self._counts, axis=0, return_inverse=True)
        self._type = index.ravel()
        self._charge = (n_groups - 1) * x.shape[1]

    def moments(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Moments of the clusters of labels z (C,).

        Returns
        -------
        table : (K, G) numbers of samples by cluster and known group
        gram : (K, K) Gram matrix A of the projected cluster indicators
        sums : (K, d) products B of the indicators and the features
        """
        table = cluster_totals(self._counts, z, self.k)
        gram = np.diag(table.sum(1)) - (table * self._share) @ table.T
        return table, gram, cluster_totals(self.sums, z, self.k)

    def residual_scatter(self, z: np.ndarray) -> np.ndarray:
        """Scatter S of the residuals given labels z (C,).

        The result depends on the form of the covariance: the trace of S if isotropic, the diagonal
        (d,) of S if diagonal, and S (d, d) if full.
        """
        _, gram, sums = self.moments(z)
        return self._scatter - self._explained(sums, _pseudo_inverse(gram))

    def _explained(self, sums: np.ndarray, inverse: np.ndarray) -> np.ndarray:
        """Scatter B' P B for the products ``sums`` B (K, d) and matrices ``inverse`` P (..., K, K).

        The result has traces, diagonals or matrices, as in `residual_scatter`.
        """
        product = inverse @ sums
        if self.covariance == "full":
            return sums.T @ product
        diagonal = (sums * product).sum(-2)
        return diagonal if self.covariance == "diagonal" else diagonal.sum(-1)

    def _length(self, scatter: np.ndarray) -> np.ndarray:
        """Description lengths (...) of residuals with scatters as in `residual_scatter`."""
        n, d = self.n, len(self.variance)
        low, high = self._bounds
        if self.covariance == "isotropic":
            scatter = np.maximum(scatter, 0)
            s = np.clip(scatter / n, low, high)
            return self._weight * (n * np.log(s) + scatter / s)
        if self.covariance == "diagonal":
            scatter = np.maximum(scatter, 0)
            s = d * np.clip(scatter / n, low * self.variance, high * self.variance)
            return 0.5 * (n * np.log(s) + d * scatter / s).sum(-1)
        # The ridge is fixed, so that the length is bounded below.
        matrix = scatter / n + np.diag(_POOLED_RIDGE * self.variance)
        return 0.5 * n * (np.linalg.slogdet(matrix)[1] + d + d * math.log(d))

    def totals(self, z: np.ndarray) -> np.ndarray:
        """Description lengths (m,) of the features given labels (m, C); see `FeatureLengths`."""
        return np.array([self._length(self.residual_scatter(labels)) for labels in z])

    def changes(self, z: np.ndarray) -> np.ndarray:
        """Changes (m, C, K) of the length by moves of one unit; see `FeatureLengths`."""
        return np.stack([self._changes(labels) for labels in z])

    def _changes(self, z: np.ndarray) -> np.ndarray:
        table, gram, sums = self.moments(z)
        before = self._length(self._scatter - self._explained(sums, _pseudo_inverse(gram)))
        delta = np.eye(self.k)[None] - np.eye(self.k)[:, None]  # e_b - e_a of a move from a to b
        # Gram matrices after a move: A + p delta' + delta p' + s delta delta'.
        masses = self._types.sum(1)
        p = (
            masses[:, None, None] * np.eye(self.k)
            - ((self._types * self._share) @ table.T)[:, None]
        )
        s = masses - (self._types**2 * self._share).sum(1)
        result = np.empty((len(z), self.k))
        outer = p[:, :, None, :, None] * delta[:, :, None, :]
        square = s[:, None, None, None, None] * (delta[..., :, None] * delta[..., None, :])
        inverse = _pseudo_inverse(gram + outer + outer.swapaxes(3, 4) + square)
        # Explained scatter B'PB + v y' + y v' + q y y' of the new B = sums + delta y'.
        weights = (inverse @ delta[..., None])[..., 0]
        q, v = (weights * delta).sum(-1), weights @ sums
        rest = self._scatter - self._explained(sums, inverse)
        step = max(1, _CHUNK // (self.k * max(np.size(self._scatter), 1)))
        for i in range(0, len(z), step):
            units = slice(i, i + step)
            y, move = self.sums[units, None], (self._type[units], z[units])
            result[units] = self._length(rest[move] - self._cross(v[move], y, q[move])) - before
        np.put_along_axis(result, z[:, None], 0.0, 1)
        return result

    def _cross(self, v: np.ndarray, y: np.ndarray, q: np.ndarray) -> np.ndarray:
        """Changes v y' + y v' + q y y' (C, K, ...) of the explained scatter B' P B by moves.

        The arguments are variables of `_changes`. The result has traces, diagonals or matrices, as
        in `residual_scatter`.
        """
        if self.covariance == "full":
            outer = v[..., :, None] * y[..., None, :]
            square = y[..., :, None] * y[..., None, :]
            return outer + outer.swapaxes(-1, -2) + q[..., None, None] * square
        diagonal = (2 * v + q[..., None] * y) * y
        return diagonal if self.covariance == "diagonal" else diagonal.sum(-1)

    def parameter_length(self, k: int, n: int) -> float:
        """Length of cluster means, group effects and the covariance; see `FeatureLengths`."""
        d = len(self.variance)
        covariance = {
            "isotropic": 0.0, "diagonal": d * half_log(n), "full": d * (d + 1) / 2 * half_log(n)
        }[self.covariance]  # fmt: skip
        scale = 0.0
        if self.covariance == "isotropic":
            scale = float(
                exponential_complexity(n, *self._bounds, shape=self._weight, clamped=True)
            )
        return (k * d + self._charge) * half_log(n) + covariance + scale

    def estimates(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Estimate the means (K, d) of the clusters and the effects (G, d) of the known groups.

        The estimates are least squares, given labels z (C,). The effects sum to 0 over the samples.
        """
        table, gram, sums = self.moments(z)
        means = _pseudo_inverse(gram) @ sums
        effects = self._group_means - self._share[:, None] * (table.T @ means)
        shift = (effects / self._share[:, None]).sum(0) / self.n
        return means + shift, effects - shift

    def cost_model(self, z: np.ndarray) -> ClusterCosts:
        """Return a function that computes the lengths of new samples; see `FeatureLengths`."""
        means, effects = self.estimates(z)
        scatter, (low, high) = self.residual_scatter(z), self._bounds
        scales = None
        if self.covariance == "isotropic":
            scales = np.full(self.k, np.clip(scatter / self.n, low, high))
            root = np.sqrt(scales[0] / (2 * self._weight))
        elif self.covariance == "diagonal":
            root = np.sqrt(np.clip(scatter / self.n, low * self.variance, high * self.variance))
        else:
            ridge = np.diag(_POOLED_RIDGE * self.variance)
            root = np.linalg.cholesky(scatter / self.n + ridge)
        roots = np.broadcast_to(root, (self.k, *np.shape(root)))
        return GaussianCosts(means, effects, roots, np.zeros(self.k), scales)

    def adjusted_to(self, effects: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Subtract given ``effects`` (G, d) of the known groups from the features (n, d)."""
        return self.adjusted + (self._group_means - effects)[groups]

    def without_effects(self, z: np.ndarray, unit: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Subtract the effects of the known groups from the features (n, d).

        The effects are least-squares estimates given labels z (C,). ``unit`` and ``groups`` (n,)
        are the unit and the known group of every sample.
        """
        _, gram, sums = self.moments(z)
        fitted = (_pseudo_inverse(gram) @ sums)[z[unit]]
        return self.adjusted + group_means(fitted, groups, len(self._share))[groups]


def _pseudo_inverse(gram: np.ndarray) -> np.ndarray:
    """Pseudo-inverses (..., K, K) of the Gram matrices A (..., K, K) of `PooledLengths`.

    The matrices are singular, since cluster indicators and group indicators have equal sums.
    """
    values, vectors = np.linalg.eigh(gram)
    least = 1e-10 * np.maximum(values[..., -1:], 1)
    inverse = np.where(values > least, 1 / np.maximum(values, least), 0)
    return (vectors * inverse[..., None, :]) @ vectors.swapaxes(-1, -2)


class ClusterCovarianceLengths:
    """Description lengths of continuous features with a full covariance per cluster.

    Known groups have additive effects on the features. A cluster of n_k samples with the scatter
    S_k has the length n_k/2 (log det(S_k / n_k + ridge) + d + d log d). A cluster of at most d
    samples has a singular covariance, and therefore a penalty. `totals` and `changes` treat the
    effects of the groups as constants; `fit_effects` estimates the effects by least squares, given
    labels.

    Parameters
    ----------
    x : (n, d) features
    unit : (n,) index of the unit of every sample
    groups : (n,) known group of every sample
    k : number K of clusters
    """

    def __init__(self, x: np.ndarray, unit: np.ndarray, groups: np.ndarray, k: int):
        self._pooled = PooledLengths(x, unit, groups, k, "full", 1.0, (0.0, np.inf))
        self._unit, self._groups = unit, groups
        self.k, self.mass, self.mean = k, self._pooled.mass, self._pooled.mean
        self._ridge = np.diag(_CLUSTER_RIDGE * _positive_variances(x))
        self._set_features(self._pooled.adjusted)

    def _set_features(self, x: np.ndarray) -> None:
        self.features = x
        # Second and first moments of the units, and their numbers of samples, in one array.
        products = (x[:, :, None] * x[:, None]).reshape(len(x), -1)
        moments = np.concatenate([products, x, np.ones((len(x), 1))], 1)
        self._moments = group_sums(moments, self._unit, len(self.mass))

    def fit_effects(self, z: np.ndarray) -> None:
        """Estimate the effects of the known groups given labels z (C,); subtract the effects."""
        if self._groups.any():
            self._set_features(self._pooled.without_effects(z, self._unit, self._groups))

    def covariances(self, moments: np.ndarray) -> np.ndarray:
        """Covariances (..., d, d) of clusters with ``moments`` (..., d d + d + 1), plus a ridge.

        The moments of a cluster are sums over its samples: of the products of two features, of the
        features, and of 1.
        """
        d = len(self._ridge)
        n = np.maximum(moments[..., -1:], 1)
        centre = moments[..., d * d : -1] / n
        second = (moments[..., : d * d] / n).reshape(*moments.shape[:-1], d, d)
        return second - centre[..., :, None] * centre[..., None, :] + self._ridge

    def _lengths(self, moments: np.ndarray) -> np.ndarray:
        """Description lengths (...) of clusters with ``moments`` as in `covariances`."""
        n, d = np.rint(moments[..., -1]), len(self._ridge)
        log_det = np.linalg.slogdet(self.covariances(moments))[1]
        missing = np.where(n > 0, np.maximum(d + 1 - n, 0), 0)
        return 0.5 * n * (log_det + d + d * math.log(d)) + _TOO_SMALL * missing

    def cluster_moments(self, z: np.ndarray) -> np.ndarray:
        """Moments (K, d d + d + 1) of the clusters of labels z (C,); see `covariances`."""
        return cluster_totals(self._moments, z, self.k)

    def totals(self, z: np.ndarray) -> np.ndarray:
        """Description lengths (m,) of the features given labels (m, C); see `FeatureLengths`."""
        return np.array([self._lengths(self.cluster_moments(labels)).sum() for labels in z])

    def changes(self, z: np.ndarray) -> np.ndarray:
        """Changes (m, C, K) of the length by moves of one unit; see `FeatureLengths`."""
        return np.stack([self._changes(labels) for labels in z])

    def _changes(self, z: np.ndarray) -> np.ndarray:
        clusters = self.cluster_moments(z)
        before = self._lengths(clusters)
        step = max(1, _CHUNK // (self.k * clusters.shape[1]))
        parts = [np.zeros((0, self.k))]
        for i in range(0, len(z), step):
            units, present = self._moments[i : i + step], z[i : i + step]
            joining = self._lengths(clusters + units[:, None]) - before
            leaving = self._lengths(clusters[present] - units) - before[present]
            parts.append(joining + leaving[:, None])
        result = np.concatenate(parts)
        np.put_along_axis(result, z[:, None], 0.0, 1)
        return result

    def parameter_length(self, k: int, n: int) -> float:
        """Length of cluster means, covariances and group effects; see `FeatureLengths`."""
        d = len(self._ridge)
        effects = int(self._groups.max()) * d * half_log(n)
        return k * (d + d * (d + 1) / 2) * 0.5 * math.log(n) + effects

    def cost_model(self, z: np.ndarray) -> ClusterCosts:
        """Return a function that computes the lengths of new samples; see `FeatureLengths`."""
        d, (_, effects) = len(self._ridge), self._pooled.estimates(z)
        moments = self.cluster_moments(z)
        # Features adjusted here and features minus ``effects`` differ by the same shift in all
        # groups.
        shift = (self.features - self._pooled.adjusted_to(effects, self._groups)).mean(0)
        means = moments[:, d * d : -1] / np.maximum(moments[:, -1:], 1) - shift
        roots = np.linalg.cholesky(self.covariances(moments))
        offsets = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(1)
        return GaussianCosts(means, effects, roots, offsets)


class CountLengths:
    """Description lengths of binary features or counts, by normalised maximum likelihood.

    Every pair of a cluster and a known group has a separate code.

    Parameters
    ----------
    x : (n, d) binary features, or counts
    unit : (n,) index of the unit of every sample
    groups : (n,) known group of every sample
    k : number K of clusters
    features : "bernoulli" or "multinomial"
    """

    def __init__(
        self, x: np.ndarray, unit: np.ndarray, groups: np.ndarray, k: int, features: str
    ):  # fmt: skip
        n_units, self.kind = int(unit.max()) + 1, features
        symbols, self._blocks = count_symbols(x, features)
        self.k, self.mass = k, np.bincount(unit, minlength=n_units)
        # Splits are proposed from square roots of the shares of counts.
        shares = (
            np.sqrt(x / np.maximum(x.sum(1, keepdims=True), 1)) if self._blocks.size == 1 else x
        )
        shares = shares - group_means(shares, groups, int(groups.max()) + 1)[groups]
        self.mean = group_means(shares, unit, n_units)
        # Every known group has separate tables; units without samples of a group stay out.
        self._tables = []
        for g in range(int(groups.max()) + 1):
            inside = groups == g
            units, index = np.unique(unit[inside], return_inverse=True)
            table = CountTable(group_sums(symbols[inside], index, units.size), k, self._blocks)
            self._tables.append((units, table))

    def totals(self, z: np.ndarray) -> np.ndarray:
        """Description lengths (m,) of the features given labels (m, C); see `FeatureLengths`."""
        return np.array(
            [sum(table.total(labels[units]) for units, table in self._tables) for labels in z]
        )

    def changes(self, z: np.ndarray) -> np.ndarray:
        """Changes (m, C, K) of the length by moves of one unit; see `FeatureLengths`."""
        result = np.zeros((*z.shape, self.k))
        for labels, change in zip(z, result, strict=True):
            for units, table in self._tables:
                change[units] += table.changes(labels[units])
        np.put_along_axis(result, z[:, :, None], 0.0, 2)
        return result

    def parameter_length(self, k: int, n: int) -> float:
        """Return 0, since `totals` includes the code of the frequencies; see `FeatureLengths`."""
        return 0.0

    def cost_model(self, z: np.ndarray) -> ClusterCosts:
        """Return a function that computes the lengths of new samples at smoothed frequencies.

        See `FeatureLengths`.
        """
        tables = np.stack([table.counts(z[units]) for units, table in self._tables])
        # A new group has the frequencies of all groups together.
        tables = np.append(tables, tables.sum(0, keepdims=True), 0) + 0.5
        first = np.cumsum([0, *self._blocks[:-1]])
        totals = np.repeat(np.add.reduceat(tables, first, axis=2), self._blocks, axis=2)
        return CountCosts(np.log(tables / totals), self.kind)
