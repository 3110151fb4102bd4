"""Cross-validated critical weights of labels, for classes of few samples.

The Gaussian density of a class has two shrinkage parameters. The first is the weight of the pooled
covariance in the covariance of the class. The second shrinks the class mean towards the overall
mean. An option is a pair of values of these parameters.

Shapes: n labelled samples, m features, c classes, T sets of classes, F folds. A set is a boolean
vector (c,).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nrprob.methods.cec.class_moments import ClassMoments, class_moments

N_FOLDS = 5
_N_REPEATS = 2
_MIXING = np.array([0.0, 0.1, 0.3, 0.6, 0.9, 1.0])  # weights of the pooled covariance
_MEAN_SIZES = np.array([0.0, 4.0])  # pseudo-samples at the overall mean that shrink a class mean
_RIDGE = 1e-6  # share of the variances of the training samples that is added to covariances
_ENTRIES = 4_000_000  # entries of an array, which bound the number of sets that a call evaluates


@dataclass(frozen=True)
class _Training:
    """All samples, standardised by a training set, and the class moments of this training set.

    Attributes
    ----------
    z : (n, m) standardised samples. For "full" and "diag", features that are constant in the
        training set are 0
    weights : (n,) weights of the samples in the training set; 0 for held-out samples
    moments : moments of the classes in the training set
    """

    z: np.ndarray
    weights: np.ndarray
    moments: ClassMoments


class HeldOutGains:
    r"""Critical weights of labels from held-out log densities.

    The estimate compares one Gaussian per class with one Gaussian for the union of a set T of
    classes:

    .. math:: \hat\beta_0(T) = 1 - \max\Big(0,
        \frac{\sum_{i \in T} [\log f_{z_i}(x_i) - \log f_T(x_i)]}{n_T H(p)}\Big)

    The sum runs over the samples i of the classes in T, with features :math:`x_i` and class
    :math:`z_i`. :math:`f_c` is the normal density of class c, and :math:`f_T` the normal density of
    the union of T. :math:`n_T` is the number of samples of T, and H(p) the entropy of the shares of
    its classes. The sum is averaged over two random divisions into folds. Both densities are
    estimated without the fold of sample i. Means, covariances, the scaling of the features, and the
    shrinkage parameters of the class densities are all estimated without this fold. The estimate is
    biased towards 1, since a density that is estimated from few samples predicts worse than the
    population density.

    Parameters
    ----------
    x : (n, m) labelled samples
    mass : (n,) weights of the samples
    codes : (n,) classes from 0 to c - 1, each with at least `N_FOLDS` samples
    covariance : covariance family
    random : generator of the folds
    """

    def __init__(
        self,
        x: np.ndarray,
        mass: np.ndarray,
        codes: np.ndarray,
        covariance: str,
        random: np.random.RandomState,
    ) -> None:
        self._x, self._mass, self._codes, self._covariance = x, mass, codes, covariance
        self._n_classes = int(codes.max()) + 1
        self._folds = [_stratified_folds(codes, random) for _ in range(_N_REPEATS)]
        self._outer: list[list[_Training]] = []
        # Per division into folds: log densities (n, options) of held-out samples under their
        # classes, and the sums (F, c, options) of log densities that choose the option for a fold.
        self._densities: list[np.ndarray] = []
        self._choices: list[np.ndarray] = []
        for folds in self._folds:
            self._evaluate_classes(folds)

    def _evaluate_classes(self, folds: np.ndarray) -> None:
        n_options = _MIXING.size * _MEAN_SIZES.size
        densities = np.zeros((len(self._x), n_options))
        choices = np.zeros((N_FOLDS, self._n_classes, n_options))
        member = (self._codes[:, None] == np.arange(self._n_classes)) * self._mass[:, None]
        outer = []
        for f in range(N_FOLDS):
            held_out = folds == f
            training = self._train(~held_out)
            outer.append(training)
            densities[held_out] = self._class_densities(training, held_out)
            # Train without folds f and g. The densities of fold g choose the option for fold f,
            # and the densities of fold f choose the option for fold g.
            for g in range(f):
                pair = held_out | (folds == g)
                inner = np.zeros_like(densities)
                inner[pair] = self._class_densities(self._train(~pair), pair)
                choices[f] += member.T @ np.where(held_out[:, None], 0, inner)
                choices[g] += member.T @ np.where(held_out[:, None], inner, 0)
        self._outer.append(outer)
        self._densities.append(densities)
        self._choices.append(choices)

    def _train(self, is_training: np.ndarray) -> _Training:
        """Standardise all samples by a training set, and compute its class moments.

        ``is_training`` (n,) states whether a sample is in the training set.
        """
        weights = np.where(is_training, self._mass, 0)
        centre = weights @ self._x / weights.sum()
        scale = np.sqrt(weights @ (self._x - centre) ** 2 / weights.sum())
        z = (self._x - centre) / np.where(scale > 1e-10, scale, np.inf)
        if self._covariance in ("spherical", "fixed"):  # one scale for all features
            common = 1 if self._covariance == "fixed" else np.sqrt((scale**2).mean())
            z = (self._x - centre) / common
        return _Training(z, weights, self._moments(z, weights, self._codes, self._n_classes))

    def _moments(self, z, weights, codes, n_classes) -> ClassMoments:
        return class_moments(z, weights, codes, n_classes, full=self._covariance == "full")

    def _class_densities(self, training: _Training, held_out: np.ndarray) -> np.ndarray:
        """Log densities (samples, options) of the held-out samples under their own classes.

        ``held_out`` (n,) states whether a sample is held out. A constant of the densities is
        omitted.
        """
        z, weights, moments = training.z, training.weights, training.moments
        sizes, means = moments.sizes, moments.means
        # Covariances of the classes, and the pooled covariance within classes.
        covariances = self._shrink(z, weights, moments, np.eye(self._n_classes), 1)
        residuals, pool = z - means[self._codes], np.zeros_like(self._codes)
        pooled_moments = self._moments(residuals, weights, pool, 1)
        pooled = self._shrink(residuals, weights, pooled_moments, np.eye(1), self._n_classes, pool)
        overall = weights @ z / weights.sum()
        out = np.zeros((len(z), _MIXING.size, _MEAN_SIZES.size))
        for c in np.unique(self._codes[held_out]):
            rows = held_out & (self._codes == c)
            part = _MIXING.reshape(-1, *[1] * (pooled.ndim - 1))
            mixed = (1 - part) * covariances[c] + part * pooled
            share = (sizes[c] / (sizes[c] + _MEAN_SIZES))[:, None]
            centres = share * means[c] + (1 - share) * overall
            deviations = (z[rows][:, None] - centres).reshape(-1, z.shape[1])
            values = self._log_normals(deviations[None], mixed, np.full(len(mixed), sizes[c]))
            out[rows] = np.moveaxis(values.reshape(len(mixed), -1, _MEAN_SIZES.size), 0, 1)
        return out[held_out].reshape(-1, _MIXING.size * _MEAN_SIZES.size)

    def _shrink(
        self,
        z: np.ndarray,
        weights: np.ndarray,
        moments: ClassMoments,
        sets: np.ndarray,
        n_means: int,
        codes: np.ndarray | None = None,
    ) -> np.ndarray:
        """Covariances (T, m, m) of unions of classes, shrunk towards their diagonals.

        The shrinkage intensity minimises the expected squared error of the entries off the
        diagonal. Only the family "full" has such entries. For all other families, the result is
        variances (T, m).

        Parameters
        ----------
        z : (n, m) standardised samples
        weights : (n,) weights of the samples in the training set
        moments : moments of the classes
        sets : (T, c) sets of classes
        n_means : number of estimated means, which is subtracted from the degrees of freedom
        codes : (n,) classes of the samples; by default the classes that the constructor received
        """
        merged = moments.merge(sets)
        sizes, means = merged.sizes, merged.means
        shape = (-1, *[1] * (merged.scatters.ndim - 1))
        covariances = merged.scatters / np.maximum(sizes - n_means, 1).reshape(shape)
        if self._covariance == "spherical":
            return np.broadcast_to(covariances.mean(1, keepdims=True), covariances.shape)
        if self._covariance == "fixed":
            return np.ones_like(covariances)
        if self._covariance == "diag":
            return covariances
        codes = self._codes if codes is None else codes
        member = sets[:, codes] * weights
        # Sums of the fourth powers of the norms, and of the features, about the means.
        norms = (z**2).sum(1) - 2 * means @ z.T + (means**2).sum(1)[:, None]
        first, second, third, fourth = (member @ z**power for power in (1, 2, 3, 4))
        features = fourth - 4 * means * third + 6 * means**2 * second - 4 * means**3 * first
        features = features + sizes[:, None] * means**4
        products = ((member * norms**2).sum(1) - features.sum(1)) / sizes
        # Variances of the entries off the diagonal, relative to their squares.
        plug_in = merged.scatters / sizes.reshape(shape)
        variances = np.diagonal(plug_in, axis1=1, axis2=2)
        squares = (plug_in**2).sum((1, 2)) - (variances**2).sum(1)
        noise = np.maximum(products - squares, 0) / sizes
        intensity = np.where(squares > noise, noise / np.where(squares > 0, squares, 1), 1)
        off_diagonal = 1 - np.eye(z.shape[1])
        return covariances * (1 - intensity.reshape(shape) * off_diagonal)

    def _log_normals(
        self, deviations: np.ndarray, covariances: np.ndarray, sizes: np.ndarray
    ) -> np.ndarray:
        """Predictive log densities (T, h) under T normal densities, up to a constant.

        ``deviations`` (T, h, m) are differences of h samples from the means of the densities.
        ``covariances`` are (T, m, m), or variances (T, m) unless the family is "full". The means
        are estimated from ``sizes`` (T,) samples. To account for the variance of the means, the
        covariances are multiplied by 1 + 1 / ``sizes``, except for the family "fixed".
        """
        if self._covariance != "fixed":
            shape = (-1, *[1] * (covariances.ndim - 1))
            covariances = covariances * (1 + 1 / sizes).reshape(shape)
        if self._covariance != "full":
            variances = covariances[:, None] + (_RIDGE if self._covariance != "fixed" else 0)
            return -0.5 * (np.log(variances) + deviations**2 / variances).sum(-1)
        covariances = covariances + _RIDGE * np.eye(covariances.shape[-1])
        columns = np.swapaxes(
            np.broadcast_to(deviations, (len(covariances), *deviations.shape[1:])), 1, 2
        )
        squares = (columns * np.linalg.solve(covariances, columns)).sum(1)
        return -0.5 * (np.linalg.slogdet(covariances)[1][:, None] + squares)

    def estimate(self, sets: np.ndarray) -> np.ndarray:
        """Estimates (T,) of the critical weights of ``sets`` (T, c) of classes."""
        n, m = self._x.shape
        width = n * (2 * m if self._covariance == "full" else m) + m * m
        n_chunks = max(1, math.ceil(len(sets) * width / _ENTRIES))
        return np.concatenate([self._estimate_chunk(p) for p in np.array_split(sets, n_chunks)])

    def _estimate_chunk(self, sets: np.ndarray) -> np.ndarray:
        weights = sets[:, self._codes] * self._mass
        gains = np.zeros(len(sets))
        for folds, outer, densities, choices in zip(
            self._folds, self._outer, self._densities, self._choices, strict=True
        ):
            for f, training in enumerate(outer):
                rows = folds == f
                # Option of the class densities per set, chosen without fold f.
                option = np.einsum("tc,co->to", sets, choices[f]).argmax(1)
                merged = training.moments.merge(sets)
                covariances = self._shrink(training.z, training.weights, training.moments, sets, 1)
                deviations = training.z[rows] - merged.means[:, None]
                union = self._log_normals(deviations, covariances, merged.sizes)
                gains += (weights[:, rows] * (densities[rows][:, option].T - union)).sum(1)
        mean = gains / (_N_REPEATS * weights.sum(1))
        return 1 - np.maximum(mean, 0) / label_entropy(sets, np.bincount(self._codes, self._mass))


def label_entropy(sets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Entropy (T,) in nats of the class shares in each of the ``sets`` (T, c).

    ``sizes`` (c,) are the sizes of the classes.
    """
    shares = sets * sizes
    shares = shares / shares.sum(1, keepdims=True)
    return -(shares * np.log(np.where(shares > 0, shares, 1))).sum(1)


def _stratified_folds(codes: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Random fold (n,) of every sample, stratified by class.

    The numbers of samples of a class in different folds differ by at most one.
    """
    order = random.permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    counts = np.bincount(codes)
    rank = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    folds = np.empty(len(codes), int)
    folds[order] = rank % N_FOLDS
    return folds
