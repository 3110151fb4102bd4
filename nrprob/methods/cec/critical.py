"""Critical weight of the labels: below it, merging a set of classes lowers the objective.

The weight is the parameter ``beta`` of `CECIB`; `estimate_critical_beta` defines its critical
value.

Shapes: n samples, m features, c classes, T sets of classes. A set is a boolean vector (c,).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import polygamma, psi

from nrprob.exceptions import short_repr, warn
from nrprob.methods.cec.class_moments import ClassMoments, class_moments
from nrprob.methods.cec.held_out import N_FOLDS, HeldOutGains, label_entropy
from nrprob.methods.cec.inputs import Prepared

# Critical weight of two halves of one normal distribution: 1 + ln(1 - 2/pi) / ln 4. It is equation
# (15) of Śmieja and Geiger (2017).
BETA0_GAUSSIAN_CUT = 0.26977
_MAX_CLASSES = 12  # largest number of classes of which all sets are evaluated
_MAX_OPERATIONS = 3e9  # largest number of operations for the evaluation of all sets
_MAX_ERROR = 0.25  # largest standard error of an estimate from moments that is used
_SINGULAR = 1e-10  # relative size of an eigenvalue up to which a scatter counts as singular
_ENTRIES = 4_000_000  # entries of an array, which bound the number of sets that a call evaluates


@dataclass(frozen=True)
class CriticalBeta:
    """Estimated critical weights of pairs of classes, and of the decisive set of classes.

    The decisive set has the largest lower bound, which is the estimate minus its standard error.

    Attributes
    ----------
    pairs : (c, c) critical weight of every pair of classes; NaN on the diagonal, and for pairs that
        have no estimate
    errors : (c, c) standard errors of ``pairs``; NaN for cross-validated estimates
    value : critical weight of the decisive set; NaN if no set has an estimate
    classes : indices of the classes in the decisive set
    reason : why some sets have no estimate; "" if all sets have one
    """

    pairs: np.ndarray
    errors: np.ndarray
    value: float
    classes: np.ndarray
    reason: str

    @property
    def weight(self) -> float:
        """Weight for the fit: ``value`` clipped to [0, 1]; 1 if some sets have no estimate."""
        return 1.0 if self.reason else float(np.clip(self.value, 0, 1))

    def warn_if_misleading(self) -> None:
        """Warn if some sets have no estimate, or if the weight is 0 and labels have no effect."""
        if self.reason:
            warn(
                f"the critical beta of some classes is unknown, so that the fit uses beta=1; "
                f"{self.reason}; label more samples of this class, or set beta"
            )
        elif self.value <= 0:
            warn(
                "the features alone keep all classes apart, so that the fit ignores labels; "
                f"got a largest critical beta of {self.value:.3g}; set beta to a number to use "
                "labels"
            )


class MomentEstimates:
    r"""Estimates of critical weights from the scatter matrices of Gaussian classes.

    .. math:: \hat\beta_0 = 1 - \frac{\hat G_T - \hat G_W}{H(p)}

    T is a set of classes, and :math:`p_i` the share of class i among the samples of T. H(p) is the
    entropy of these shares. :math:`\hat G` estimates the model term that `estimate_critical_beta`
    defines: :math:`\hat G_T` for the union of T, and :math:`\hat G_W` within classes.
    The separate estimate uses the mean :math:`\hat G_W = \sum_i p_i \hat G_i` of the terms of the
    classes. The pooled estimate uses the term of the sum :math:`\sum_i W_i` of their scatter
    matrices. Both estimates are unbiased if the classes have equal covariances, and the pooled
    estimate has a smaller variance.
    If covariances differ, the pooled estimate is biased towards larger weights, since the log
    determinant is concave. The estimate therefore moves from the pooled estimate
    :math:`\hat\beta_p` to the separate estimate :math:`\hat\beta_s`, by the fraction

    .. math:: \max\Big(0, 1 - \frac{2 v}{\max(\hat\beta_p - \hat\beta_s, 0)^2}\Big)

    of their difference, where v is the variance of
    :math:`\hat\beta_p - \hat\beta_s` for equal covariances.

    For a scatter matrix W in D features with f degrees of freedom and covariance :math:`\Sigma`,
    :math:`\hat G` is an unbiased estimate of the model term up to a constant. For "full", the
    estimate is

    .. math:: \hat G = \tfrac12 \Big(\log|W| - D \log 2
        - \sum_{j=0}^{D-1} \psi\big(\tfrac{f - j}{2}\big)\Big)

    and its variance is :math:`V(f) = \frac14 \sum_j \psi'((f - j) / 2)`. For "diag",
    :math:`\hat G` is the sum over features of this expression with D = 1. For "spherical", the
    trace of W has Satterthwaite's degrees of freedom. For "fixed", the trace enters without a
    logarithm. A class or union of n samples has f = n - 1, and the pooled scatter of k classes has
    f = n - k.

    Suppose that the labels are independent of the features. Then the scatter of a union is
    independent of the ratio between its determinant and the determinants of the scatters within
    classes. The variance of an estimate is therefore a difference of variances, and the squared
    standard errors are

    .. math:: \frac{\sum_i p_i^2 V(n_i - 1) - V(n_T - 1)}{H(p)^2}, \qquad
        \frac{V(n_T - k) - V(n_T - 1)}{H(p)^2}

    for the separate and the pooled estimate. The variances of "diag" and "spherical" account for
    correlations :math:`\rho_{ab}` between features a and b within classes:
    :math:`V(f) = \frac14 \psi'(f / 2) \sum_{ab} \rho_{ab}^2` is an upper bound for "diag".

    Parameters
    ----------
    x : (n, m) samples
    mass : (n,) weights of the samples
    codes : (n,) classes, -1 where unlabelled
    n_classes : number of classes
    covariance : covariance family

    Attributes
    ----------
    enough : (c,) whether a class has enough samples, and a regular scatter
    """

    def __init__(
        self, x: np.ndarray, mass: np.ndarray, codes: np.ndarray, n_classes: int, covariance: str
    ) -> None:
        self._covariance, self._d = covariance, x.shape[1]
        self._moments = class_moments(x, mass, codes, n_classes, full=covariance == "full")
        self.enough = self._moments.sizes >= {"full": self._d + 2, "fixed": 2}.get(covariance, 3)
        self.enough &= _is_regular(self._moments, covariance)
        # Sum of the squared entries of the covariance within classes, or of the correlations.
        labelled = codes >= 0
        residuals = x[labelled] - self._moments.means[codes[labelled]]
        self._squares, self._trace = 0.0, 1.0
        if covariance != "full":
            lost = (self._moments.sizes > 0).sum()
            self._squares, self._trace = _squared_entries(
                residuals, mass[labelled], lost, scaled=covariance == "diag"
            )

    def _model_terms(
        self, scatters: np.ndarray, freedom: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Unbiased estimates (T,) of the model terms of ``scatters``, and their variances (T,).

        ``scatters`` are T scatter matrices (T, m, m), or diagonals (T, m) unless the family is
        "full". ``freedom`` (T,) are their degrees of freedom.
        """
        d = self._d
        if self._covariance == "full":
            halves = (freedom[:, None] - np.arange(d)) / 2
            log_det = np.linalg.slogdet(scatters)[1]
            terms = 0.5 * (log_det - d * np.log(2) - psi(halves).sum(1))
            return terms, 0.25 * polygamma(1, halves).sum(1)
        if self._covariance == "diag":
            terms = 0.5 * (np.log(scatters / 2).sum(1) - d * psi(freedom / 2))
            return terms, 0.25 * self._squares * polygamma(1, freedom / 2)
        traces = scatters.sum(1)
        if self._covariance == "fixed":
            return 0.5 * traces / freedom, 0.5 * self._squares / freedom
        # Satterthwaite: the trace is chi-squared with this many degrees of freedom per sample.
        n_effective = self._trace**2 / self._squares
        halves = n_effective * freedom / 2
        terms = 0.5 * d * (np.log(traces * n_effective / 2) - psi(halves))
        return terms, 0.25 * d**2 * polygamma(1, halves)

    def __call__(self, sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Estimated critical weights (T,) of ``sets`` (T, c), and their standard errors (T,).

        All classes in the sets must have enough samples, see ``enough``.
        """
        n_chunks = max(1, math.ceil(len(sets) * self._moments.scatters[0].size / _ENTRIES))
        parts = [self._combine_estimates(part) for part in np.array_split(sets, n_chunks)]
        values, variances = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return values, np.sqrt(variances)

    def _combine_estimates(self, sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (separate, pooled), (separate_variance, pooled_variance) = self.separate_and_pooled(sets)
        variance = np.maximum(separate_variance - pooled_variance, 0)
        squares = np.maximum(pooled - separate, 0) ** 2
        exceeds = squares > 2 * variance
        part = np.where(exceeds, 1 - 2 * variance / np.where(exceeds, squares, 1), 0)
        values = pooled + part * (separate - pooled)
        return values, pooled_variance + part**2 * variance

    def separate_and_pooled(self, sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Separate and pooled estimates (2, T) of critical weights, and their variances (2, T).

        ``sets`` (T, c) are the sets of classes.
        """
        moments, sizes = self._moments, self._moments.sizes
        unions = moments.merge(sets)
        shares = sets * sizes / unions.sizes[:, None]
        # Terms and variances of the classes, the unions and the pooled scatters.
        class_terms, class_variances = np.zeros((2, len(sizes)))
        if self.enough.any():
            class_terms[self.enough], class_variances[self.enough] = self._model_terms(
                moments.scatters[self.enough], sizes[self.enough] - 1
            )
        union_terms, union_variances = self._model_terms(unions.scatters, unions.sizes - 1)
        pooled_terms, pooled_variances = self._model_terms(
            np.tensordot(sets.astype(float), moments.scatters, 1), unions.sizes - sets.sum(1)
        )
        within = np.stack([shares @ class_terms, pooled_terms])
        variances = np.stack([shares**2 @ class_variances, pooled_variances]) - union_variances
        entropy = label_entropy(sets, sizes)
        return 1 - (union_terms - within) / entropy, np.maximum(variances, 0) / entropy**2


def _is_regular(moments: ClassMoments, covariance: str) -> np.ndarray:
    """Whether (c,) the scatter of a class is regular; features have variances of about 1."""
    floor = _SINGULAR * np.maximum(moments.sizes, 1)
    if covariance == "fixed":
        return np.ones(len(floor), bool)
    if covariance == "spherical":
        return moments.scatters.sum(1) > floor
    if covariance == "diag":
        return (moments.scatters > floor[:, None]).all(1)
    variances = np.diagonal(moments.scatters, axis1=1, axis2=2)
    varies = (variances > floor[:, None]).all(1)
    roots = np.sqrt(np.where(variances > 0, variances, 1))
    correlations = moments.scatters / roots[:, :, None] / roots[:, None, :]
    return varies & (np.linalg.eigvalsh(correlations)[:, 0] > _SINGULAR)


def _squared_entries(
    residuals: np.ndarray, mass: np.ndarray, lost: int, *, scaled: bool
) -> tuple[float, float]:
    """Sum of the squared entries, and trace, of a covariance or correlation matrix.

    The matrix is estimated from ``residuals`` (n, m) of samples with weights ``mass`` (n,). The
    degrees of freedom are the sum of the weights minus ``lost``, the number of estimated means. The
    sum of squared entries is corrected for the noise of the estimate. The matrix is the correlation
    matrix if ``scaled``, else the covariance matrix.
    """
    m, freedom = residuals.shape[1], max(mass.sum() - lost, 2.0)
    z = np.sqrt(mass)[:, None] * residuals
    if scaled:
        norms = np.sqrt((z**2).sum(0))
        z = z / np.where(norms > 0, norms, 1) * np.sqrt(freedom)
    trace = (z**2).sum() / freedom
    gram = z @ z.T if len(z) < m else z.T @ z
    raw = (gram**2).sum() / freedom**2
    # Unbiased for a Wishart matrix, from E tr(S^2) and E (tr S)^2.
    squares = (raw - trace**2 / freedom) * freedom**2 / ((freedom - 1) * (freedom + 2))
    return float(np.clip(squares, trace**2 / m, trace**2)), float(trace)


class SetEstimates:
    """Estimates of the critical weights of sets of classes, by moments or cross-validation.

    A set has the estimate of `MomentEstimates` if all of its classes are large enough, and if the
    standard error of the estimate is at most 0.25: among many estimates with large errors, the
    largest one would be noise. Otherwise, the set has the estimate of `HeldOutGains` if all of its
    classes have at least 5 samples. The parameters are as in `MomentEstimates`, and ``random``
    generates the folds.

    Attributes
    ----------
    moments : estimates from moments
    counts : (c,) size of every class: the smaller of its number of samples and its sum of weights
    """

    def __init__(
        self,
        x: np.ndarray,
        mass: np.ndarray,
        codes: np.ndarray,
        n_classes: int,
        covariance: str,
        random: np.random.RandomState,
    ) -> None:
        self.moments = MomentEstimates(x, mass, codes, n_classes, covariance)
        weights = np.bincount(codes, mass, minlength=n_classes)
        self.counts = np.minimum(np.bincount(codes, minlength=n_classes), weights)
        self._samples = x, mass, codes
        self._covariance, self._random = covariance, random
        self._is_splittable = self.counts >= N_FOLDS

    @cached_property
    def _held_out(self) -> HeldOutGains:
        x, mass, codes = self._samples
        is_member = self._is_splittable[codes]
        ranks = np.cumsum(self._is_splittable) - 1
        return HeldOutGains(
            x[is_member], mass[is_member], ranks[codes[is_member]], self._covariance, self._random
        )

    def __call__(self, sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Estimated critical weights (T,) of ``sets`` (T, c), and their standard errors (T,).

        Estimate and standard error are NaN for a set without an estimate. The standard error of a
        cross-validated estimate is unknown and set to 0. Cross-validated estimates are biased
        towards 1, so the largest one tends to give too much weight to the labels.
        """
        values, errors = np.full((2, len(sets)), np.nan)
        enough = ~(sets & ~self.moments.enough).any(1)
        if enough.any():
            values[enough], errors[enough] = self.moments(sets[enough])
        imprecise = ~(errors <= _MAX_ERROR)
        values[imprecise] = errors[imprecise] = np.nan
        again = imprecise & ~(sets & ~self._is_splittable).any(1)
        if again.any():
            values[again] = self._held_out.estimate(sets[again][:, self._is_splittable])
            errors[again] = 0
        return values, errors


def _all_sets(n_classes: int) -> np.ndarray:
    """All sets (T, c) of at least two of ``n_classes`` classes, as boolean vectors."""
    sets = (np.arange(2**n_classes)[:, None] >> np.arange(n_classes) & 1).astype(bool)
    return sets[sets.sum(1) > 1]


def _pairs_and_unions(n_classes: int, estimates: SetEstimates) -> np.ndarray:
    """Sets (T, c) of classes: all pairs, and all unions that an agglomeration compares.

    The agglomeration starts from single classes. Every step joins the two groups of classes whose
    union has the largest lower bound, the estimate minus its standard error.
    """
    groups = np.eye(n_classes, dtype=bool)
    first, second = np.triu_indices(n_classes, 1)
    pairs = groups[first] | groups[second]
    bounds = np.full((n_classes, n_classes), -np.inf)
    bounds[first, second] = _lower_bounds(estimates, pairs)
    sets, alive = [pairs], np.ones(n_classes, bool)
    while bounds.max() > -np.inf:
        i, j = np.unravel_index(bounds.argmax(), bounds.shape)
        groups[i] |= groups[j]
        alive[j] = False
        bounds[j], bounds[:, j] = -np.inf, -np.inf
        others = np.flatnonzero(alive & (np.arange(n_classes) != i))
        unions = groups[others] | groups[i]
        low, high = np.minimum(others, i), np.maximum(others, i)
        bounds[low, high] = _lower_bounds(estimates, unions)
        sets.append(unions)
    return np.concatenate(sets)


def _lower_bounds(estimates: SetEstimates, sets: np.ndarray) -> np.ndarray:
    values, errors = estimates(sets)
    return np.where(np.isnan(values), -np.inf, values - errors)


def estimate_critical_beta(
    prepared: Prepared,
    codes: np.ndarray,
    covariance: str,
    names: np.ndarray,
    random: np.random.RandomState,
) -> CriticalBeta:
    r"""Estimate the smallest weight of the labels that keeps all classes apart.

    The critical weight of a set T of classes is

    .. math:: \beta_0(T) = 1 - \frac{G_T - \sum_{i \in T} p_i G_i}{H(p)}

    Here :math:`p_i` is the share of class i among the labelled samples of T, and H(p) the entropy
    of these shares. :math:`G_i` is the model term of class i per sample, for "full" half the log
    determinant of its covariance. :math:`G_T` is the model term of the union of T. The formula is
    equation (14) of Śmieja and Geiger (2017). If the labels have at least the weight
    :math:`\beta_0(T)`, merging T does not lower the objective of `CECIB` with ``penalty=None``.

    A partition that merges several sets of classes has a critical weight as well. This critical
    weight is a weighted mean of the critical weights of the merged sets. The largest critical
    weight of all sets is therefore an upper bound for all partitions.

    With up to 12 classes, all sets of classes are evaluated. For more classes, or if all sets would
    take more than about 3 seconds, all pairs and the unions of an agglomeration are evaluated. The
    result is the estimate of the set with the largest difference between the estimate and its
    standard error, see `SetEstimates`: the largest estimate of many sets would be noise.

    Parameters
    ----------
    prepared : scaled samples
    codes : (n,) class of every sample, -1 where unknown
    covariance : covariance family
    names : (c,) names of the classes, for messages
    random : generator of the cross-validation folds
    """
    c = len(names)
    labelled = (codes >= 0) & (prepared.mass > 0)
    x, mass, codes = prepared.x[labelled], prepared.mass[labelled], codes[labelled]
    estimates = SetEstimates(x, mass, codes, c, covariance, random)
    n, m = x.shape
    is_exhaustive = c <= _MAX_CLASSES and 2**c * m**2 * (n + m) <= _MAX_OPERATIONS
    sets = _all_sets(c) if is_exhaustive else _pairs_and_unions(c, estimates)
    values, errors = estimates(sets)
    is_pair = sets.sum(1) == 2
    first, second = np.nonzero(sets[is_pair])[1].reshape(-1, 2).T
    # Pairs of large classes have the estimate from moments, whatever its standard error.
    pairs, pair_errors = np.full((2, c, c), np.nan)
    pairs[first, second] = values[is_pair]
    enough = estimates.moments.enough[first] & estimates.moments.enough[second]
    if enough.any():
        first, second = first[enough], second[enough]
        pairs[first, second], pair_errors[first, second] = estimates.moments(sets[is_pair][enough])
    for matrix in (pairs, pair_errors):
        np.copyto(matrix, matrix.T, where=np.isnan(matrix))
    missing, reason = np.isnan(values), ""
    if missing.any():
        smallest = estimates.counts.argmin()
        reason = (
            f"class {short_repr(names.tolist()[smallest])} has {estimates.counts[smallest]:g} "
            f"labelled samples, and at least {N_FOLDS} are needed"
        )
    if missing.all():
        return CriticalBeta(pairs, pair_errors, np.nan, np.zeros(0, int), reason)
    best = np.nanargmax(values - errors)
    return CriticalBeta(pairs, pair_errors, float(values[best]), np.flatnonzero(sets[best]), reason)
