"""Search for themes: labels of the rows, and the number of themes by held-out features.

A theme is a cluster with similar features y in all subsets w of the rows x. A row of subset w is
compared with the themes in the other subsets alone, so that clusters of a single subset have no
influence. The quality of themes is the gain that `ThemeRows.theme_gains` defines.

Shapes: n rows, m features, V subsets, k themes.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from scipy.special import logsumexp
from sklearn.cluster import KMeans

from nrprob.exceptions import warn
from nrprob.settings import few_threads

MAX_THEMES = 20
_MIN_COMPARED = 5  # numbers that are always compared: weak themes may need more clusters for a gain
_ERRORS_OF_SINGLE = 3  # standard errors by which several themes must be better than one
_PATIENCE = 2  # numbers of themes without an improvement after which the search ends
_N_STARTS = 5  # k-means starts for each kind of coordinates
_MAX_REASSIGNMENTS = 30
_ROUNDING = 1e-9  # difference of gains in nats per count up to which they are equal
_LIFT_EXPONENTS = np.array([0.25, 0.5, 0.75, 1.0])


class ThemeScore(NamedTuple):
    """Held-out score of one number of themes.

    Attributes
    ----------
    n_clusters : number of themes
    gain : mean gain of the rows in held-out features, in nats per count
    error : standard error of the difference between ``gain`` and the largest gain of all numbers
    """

    n_clusters: int
    gain: float
    error: float


class ThemeRows(NamedTuple):
    """Rows whose themes are estimated.

    Attributes
    ----------
    rows : (n, m) distributions p(y|x) of the features of every row, dense or sparse
    mass : (n,) weights p(x) of the rows
    share : (n, V) probabilities p(w|x) of the subsets of every row
    """

    rows: Any
    mass: np.ndarray
    share: np.ndarray

    def theme_gains(self, labels: np.ndarray, k: int) -> np.ndarray:
        r"""Log-likelihood gains (n, k) of every row under every theme.

        The profile p(y|c,v) is the mean of the rows of subset v that have theme c. The profile
        p(y|v) is the mean of all rows of subset v. Theme c predicts a row of subset w by

        .. math:: m_w(y|c) \propto p(y|w) \prod_{v \ne w}
            \Big(\frac{p(y|c,v)}{p(y|v)}\Big)^{\lambda\, p(v) / (1 - p(w))}

        and the gain of the row is :math:`\sum_y p(y|x) \log(m_w(y|c) / p(y|w))`, in nats per
        count. Clusters of a single subset have no gain, since the rows of subset w do not enter the
        product. Each p(y|c,v) is smoothed by one pseudo-row of average mass with the distribution
        p(y|v).

        ``labels`` (n,) are the themes of the rows, and ``k`` is the number of themes. Four values
        of the exponent :math:`\lambda` are compared; the value with the largest mean gain of the
        rows under their own themes is used.
        """
        n, n_subsets = self.share.shape
        member = labels[:, None] == np.arange(k)
        weights = self.share[:, :, None] * member[:, None] * self.mass[:, None, None]
        joint = np.asarray(weights.reshape(n, -1).T @ self.rows).reshape(n_subsets, k, -1)
        cells, sizes = weights.sum(0)[:, :, None], (self.share.T @ self.mass)[:, None, None]
        profiles = joint.sum(1, keepdims=True) / np.where(sizes > 0, sizes, 1)
        occurs = profiles > 0
        log_profiles = np.log(np.where(occurs, profiles, 1))
        # Log lifts p(y|c,v) / p(y|v), and their mean over the other subsets.
        smoothed = (joint + profiles / n) / (cells + 1 / n)
        lifts = np.where(occurs, np.log(np.where(occurs, smoothed, 1)) - log_profiles, 0)
        others = ((sizes * lifts).sum(0) - sizes * lifts) / np.where(sizes < 1, 1 - sizes, 1)
        best, highest = np.zeros_like(joint), -np.inf
        for exponent in _LIFT_EXPONENTS:
            raised = exponent * others
            total = logsumexp(
                np.where(occurs, log_profiles + raised, -np.inf), axis=2, keepdims=True
            )
            gains = np.where(occurs, raised - total, 0)
            if (joint * gains).sum() > highest:
                best, highest = gains, (joint * gains).sum()
        by_cell = np.asarray(self.rows @ best.reshape(n_subsets * k, -1).T)
        return np.einsum("nv,nvk->nk", self.share, by_cell.reshape(n, n_subsets, k))

    def shared_gains(self, labels: np.ndarray) -> np.ndarray:
        """Gains (n,) of the rows under their own themes ``labels`` (n,); see `theme_gains`."""
        gains = self.theme_gains(labels, int(labels.max()) + 1)
        return gains[np.arange(len(labels)), labels]

    def loses_gain(self, labels: np.ndarray, reference: np.ndarray) -> bool:
        """Whether ``labels`` (n,) have a significantly smaller mean gain than ``reference`` (n,).

        The difference of the mean gains is significant if it exceeds its standard error.
        """
        differences = self.shared_gains(reference) - self.shared_gains(labels)
        mean, error = mean_and_error(self.mass * differences, self.mass)
        return bool(mean > error + _ROUNDING)

    def shared_coordinates(self, n_coordinates: int, random: Any, *, roots: bool) -> np.ndarray:
        """Coordinates (n, n_coordinates) of the rows, from similarities between different subsets.

        The scaled features of a row are (p(y|x) - p(y|w)) / sqrt(p(y|w)), with the mean p(y|w) of
        the rows in its subset. Counts then have about equal variances. With ``roots``, the scaled
        features are the square roots of p(y|x) minus the mean of these roots in the subset, which
        gives rare features less weight. The coordinates are the leading eigenvectors of the matrix
        of inner products of rows. Products of two rows of one subset are replaced by 0, which
        excludes clusters of a single subset.
        """
        n, weights = len(self.mass), np.sqrt(self.mass)[:, None]
        rows = np.sqrt(self.rows) if roots else self.rows
        sizes = (self.share.T @ self.mass)[:, None]
        means = np.asarray((self.share * self.mass[:, None]).T @ rows)
        means = (means / np.where(sizes > 0, sizes, 1)).T
        scales = 1.0 if roots else 1 / np.sqrt(np.where(means > 0, means, np.inf))

        def multiply(vector: np.ndarray) -> np.ndarray:
            parts = weights * self.share * vector.reshape(-1, 1)
            sums = scales * (np.asarray(rows.T @ parts) - means * parts.sum(0))
            others = scales * (sums.sum(1, keepdims=True) - sums)  # sums over the other subsets
            products = np.asarray(rows @ others) - (means * others).sum(0)
            return (weights * self.share * products).sum(1)

        start = random.standard_normal(n)
        if not np.abs(multiply(start)).max() > 0:
            return np.zeros((n, n_coordinates))
        try:
            values, vectors = eigsh(
                LinearOperator((n, n), multiply, dtype=float), n_coordinates, which="LA", v0=start
            )
        except ArpackNoConvergence as error:
            values, vectors = error.eigenvalues, error.eigenvectors
        vectors = vectors[:, np.argsort(-values)]
        return vectors / np.where(weights > 0, weights, np.inf)

    def reassign(self, labels: np.ndarray, k: int) -> tuple[float, np.ndarray]:
        """Move every row to the theme of its largest gain, until the labels repeat.

        ``labels`` (n,) are the initial labels for ``k`` themes. The method returns the largest mean
        gain of all iterations, and the labels (n,) with this gain.
        """
        best, seen = (-np.inf, labels), set()
        for _ in range(_MAX_REASSIGNMENTS):
            gains = self.theme_gains(labels, k)
            mean = float(self.mass @ gains[np.arange(len(labels)), labels])
            if mean > best[0]:
                best = mean, labels
            labels = gains.argmax(1)
            if labels.tobytes() in seen:
                break
            seen.add(labels.tobytes())
        return best


class ThemeLabels:
    """A search for the labels of the rows with the largest gain, given the number of themes.

    Parameters
    ----------
    data : the rows
    limit : largest number of themes
    random : generator of the initial labels
    """

    def __init__(self, data: ThemeRows, limit: int, random: np.random.RandomState) -> None:
        self.data, self._limit, self._random = data, limit, random

    @cached_property
    def _coordinates(self) -> list[np.ndarray]:
        return [
            self.data.shared_coordinates(self._limit - 1, self._random, roots=roots)
            for roots in (False, True)
        ]

    def find(self, k: int) -> np.ndarray:
        """Labels (n,) of ``k`` themes: the result of the start with the largest gain.

        The starts are k-means clusters in the first k - 1 of the `ThemeRows.shared_coordinates`.
        There are two sets of coordinates, without and with ``roots``.
        """
        n = len(self.data.mass)
        if k == 1:
            return np.zeros(n, int)
        candidates = []
        with warnings.catch_warnings(), few_threads(n):
            warnings.simplefilter("ignore")  # k-means warns of equal rows
            for coordinates in self._coordinates * _N_STARTS:
                kmeans = KMeans(k, n_init=1, random_state=self._random.randint(2**31 - 1))
                start = kmeans.fit_predict(coordinates[:, : k - 1])
                candidates.append(self.data.reassign(start.astype(int), k))
        return max(candidates, key=lambda candidate: candidate[0])[1]


def choose_number(
    folds: list[tuple[ThemeRows, ThemeRows]], mass: np.ndarray, random: np.random.RandomState
) -> tuple[int, list[ThemeScore]]:
    """Smallest number of themes whose held-out gain is not significantly below the largest gain.

    The difference of the gains is compared with its standard error over the rows. A single theme is
    selected unless the largest gain exceeds its gain by three standard errors: the gains of
    different rows are correlated, because all rows have the same features.

    Parameters
    ----------
    folds : one pair of records per fold: the rows with the features that determine the labels, and
        the rows with the held-out features
    mass : (n,) p(x) with all features
    random : generator of the initial labels

    Returns
    -------
    number : number of themes
    scores : scores of all numbers that were compared
    """
    limit = max_themes(folds[0][0].share)
    searches = [ThemeLabels(train, limit, random) for train, _ in folds]
    tests = [test for _, test in folds]
    gains: list[np.ndarray] = []
    for k in range(1, limit + 1):
        pairs = zip(searches, tests, strict=True)
        weighted = [test.mass * test.shared_gains(search.find(k)) for search, test in pairs]
        gains.append(np.mean(weighted, axis=0))
        means = np.sum(gains, axis=1)
        # A further theme can remain empty, with the same gain up to rounding.
        best = int((means >= means.max() - _ROUNDING).argmax())
        if k >= _MIN_COMPARED and k - 1 - best >= _PATIENCE:
            break
    mean, errors = mean_and_error(gains[best] - np.stack(gains), mass)
    scores = [
        ThemeScore(k, float(gain), float(error))
        for k, (gain, error) in enumerate(zip(means, errors, strict=True), 1)
    ]
    limits = errors * np.where(np.arange(len(errors)) == 0, _ERRORS_OF_SINGLE, 1)
    return int((mean <= limits + _ROUNDING).argmax()) + 1, scores


def mean_and_error(values: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted means (...) of quantities of rows, and standard errors (...) of these means.

    ``values`` (..., n) are the quantities of n rows, multiplied by the weights ``mass`` (n,) of the
    rows. The weights sum to 1.
    """
    mean = values.sum(-1)
    return mean, np.sqrt(((values - mean[..., None] * mass) ** 2).sum(-1))


def max_themes(share: np.ndarray) -> int:
    """Largest number of themes for which every theme can have a row in every subset; at most 20.

    ``share`` (n, V) is p(w|x).
    """
    return max(1, min(MAX_THEMES, int((share > 0).sum(0).min())))


def warn_of_lost_gain(
    data: ThemeRows, labels: np.ndarray, themes: np.ndarray, source: str, remedy: str
) -> None:
    """Warn if clusters ``labels`` (n,) have a significantly smaller gain than ``themes`` (n,).

    ``source`` describes the themes. ``remedy`` is advice for the user, in addition to a look at
    ``theme_labels_``.
    """
    if data.loses_gain(labels, themes):
        gain, best = (data.mass @ data.shared_gains(z) for z in (labels, themes))
        warn(
            f"the clusters predict other subsets less well than {source}; got a gain of {gain:.3g} "
            f"instead of {best:.3g} nats per count; see theme_labels_ for these themes, or {remedy}"
        )


def is_shared(share: np.ndarray, labels: np.ndarray, k: int) -> bool:
    """Whether every subset has rows in each of ``k`` themes.

    ``share`` (n, V) is p(w|x), and ``labels`` (n,) are the themes of the rows.
    """
    member = labels[:, None] == np.arange(k)
    return bool((share.T @ member > 0).all())


def sort_labels(labels: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Renumber ``labels`` (n,), with themes in order of decreasing total weight.

    ``mass`` (n,) are the weights of the rows.
    """
    order = np.argsort(-np.bincount(labels, mass), kind="stable")
    return np.argsort(order)[labels]
