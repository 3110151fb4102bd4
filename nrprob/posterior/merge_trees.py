r"""Merge trees of mixture components, by the dip of the density between them.

A component is a block of the partition of a draw, with a mean, a covariance C and n samples in d
dimensions. For two components a and b of one draw:

1. The difference v of their means is shortened by its sampling error. W is the average of both
   covariances, weighted by the sizes :math:`n_a` and :math:`n_b`. The squared distance
   :math:`\delta^2 = v' W^{-1} v` becomes :math:`\max(\delta^2 - d (1/n_a + 1/n_b), 0)`.
2. Both normal densities are scaled to height 1. The ridgeline (Ray and Lindsay, 2005) is the curve
   that contains all maxima of the sum of both densities. The dip is the logarithm of the lower of
   the two outer maxima of this sum on the curve, minus the logarithm of the least value between
   these maxima. If there is one maximum, the dip is 0.

The height of a component is :math:`H = \log n - \log \det C / (2 d)`. Two components are connected
from the level :math:`\min(H_a, H_b) - \mathrm{dip}` downwards. As the level falls, groups of
components join. When two groups join, the lower of their two highest components *dies into* the
other one. The *prominence* of the component that dies is its height minus the level. This choice of
the component that dies is the elder rule of persistent homology (ToMATo of Chazal et al., 2013), on
a graph of components.

At a threshold r on the ratio of densities, components whose prominence is at least
:math:`-\log r` stay clusters. Every other component dies into a component, which may die into
another one, and so on; it joins the first of these components that stays. So partitions for falling
r are nested. All quantities but the heights are
invariant under affine maps of the samples; all heights change by the same constant.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nrprob.posterior.draws import Draws, canonical

__all__ = [
    "Components",
    "MergeTrees",
    "density_dips",
    "elder_rule",
    "trees_by_dip",
    "trees_by_exchange",
]

_POSITIONS = np.linspace(0, 1, 25)
"""Positions on a ridgeline, from one mean to the other."""
_ENTRIES = 2**21
"""Maximum number of entries of a temporary array."""
_DEEP = 7.0
"""Lower bound of a dip, in nats, above which the bound is used instead of the dip.

Cuts at thresholds above exp(-7) do not depend on the exact values of such dips.
"""
_ROUNDING = 1e-9
"""Prominence in nats that rounding errors do not reach; components below it never stay."""


class Components(NamedTuple):
    """Components of all draws, listed one draw after the other; n_listed is their number.

    Attributes
    ----------
    means : ndarray of shape (n_listed, d)
    covariances : ndarray of shape (n_listed, d, d) or (n_listed, d), or None
        Covariances, or variances of independent features. None stands for one common covariance
        per draw. The means are then in coordinates in which this covariance is the identity.
    """

    means: np.ndarray
    covariances: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class MergeTrees:
    """Merge trees of the components of every draw; the module docstring defines them.

    Attributes
    ----------
    draws : Draws
        Partitions of the samples into components.
    parent : ndarray of shape (n_listed,)
        For each component, the component into which it dies, or the component itself if it never
        dies. Components are positions in the list of the components of all draws.
    prominence : ndarray of shape (n_listed,)
        Prominence of each component in nats; infinite for components that never die.
    rule : {"dip", "exchange"}
        Quantity whose negative logarithm is the prominence: a ratio of densities, or an exchange
        probability.
    """

    draws: Draws
    parent: np.ndarray
    prominence: np.ndarray
    rule: str = "dip"

    @property
    def floor(self) -> float:
        """Size below which a cluster is not counted."""
        return smallest_size(self.draws.n_samples)

    @cached_property
    def _draw_of(self) -> np.ndarray:
        return np.repeat(np.arange(self.draws.n_draws), self.draws.n_clusters)

    def surviving_positions(self, threshold: float) -> np.ndarray:
        """For each component, the position of the component that it joins at a ``threshold``.

        The result has the shape (n_listed,). A component that stays has its own position.
        """
        nats = max(-np.log(threshold), _ROUNDING)
        position = np.where(self.prominence >= nats, np.arange(len(self.parent)), self.parent)
        while not np.array_equal(shorter := position[position], position):
            position = shorter
        return position

    def cut(self, threshold: float) -> Draws:
        """Merge components with a prominence below -log(threshold); return draws of clusters."""
        draws = self.draws
        merged = self.surviving_positions(threshold) - np.repeat(
            draws.offsets[:-1], draws.n_clusters
        )
        codes = np.empty_like(draws.codes)
        for a, b in draws.blocks(_ENTRIES):
            part = merged[draws.offsets[a] : draws.offsets[b]]
            codes[a:b] = canonical(part[draws.ids(a, b)])
        return dataclasses.replace(draws, codes=codes)

    def count_clusters(self, threshold: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Count the large and the small clusters of every draw at a ``threshold``.

        Returns
        -------
        n_clusters, n_small : ndarray of shape (n_draws,)
            Numbers of clusters with at least `floor` samples, and of smaller clusters. The largest
            cluster of a draw always counts as large.
        small_share : ndarray of shape (n_draws,)
            Share of samples in the clusters that do not count.
        """
        draws = self.draws
        position = self.surviving_positions(threshold)
        size = np.bincount(position, draws.sizes, minlength=len(position))
        first = draws.offsets[:-1]
        largest = np.maximum.reduceat(size, first)
        counts = size >= np.minimum(self.floor, largest)[self._draw_of]
        number = np.add.reduceat(counts, first, dtype=np.int64)
        every = np.add.reduceat(size > 0, first, dtype=np.int64)
        share = 1 - np.add.reduceat(np.where(counts, size, 0), first) / draws.n_samples
        return number, every - number, np.maximum(share, 0.0)


def smallest_size(n_samples: int) -> float:
    """Size below which a cluster of a partition of `n_samples` samples is not counted."""
    return max(3.0, 0.02 * n_samples)


def density_dips(shift: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    r"""Dips between two normal densities of equal height, in nats.

    In coordinates in which the covariances are I and diag(``ratio``), and the first mean is 0, the
    ridgeline is

    .. math:: x_j(t) = \frac{t u_j}{(1 - t) \lambda_j + t}, \quad 0 \leq t \leq 1.

    Parameters
    ----------
    shift : ndarray of shape (P, d)
        Differences u of the means, for P pairs of densities.
    ratio : ndarray of shape (P, d)
        Variances :math:`\lambda` of the second density; the variances of the first density are 1.

    Returns
    -------
    ndarray of shape (P,)
        Dips of the pairs.
    """
    # 1. Positions t. If all ratios are equal, the points on the ridgeline have equal distances. If
    # the two densities are exchanged, the points stay the same.
    weight = np.square(shift) / np.sqrt(ratio)
    total = weight.sum(1)
    mean = (weight * np.log(ratio)).sum(1) / np.where(total > 0, total, 1)
    scale = np.exp(mean)[:, None]
    t = (_POSITIONS * scale / (1 - _POSITIONS + _POSITIONS * scale))[..., None]
    # 2. Log of the sum of the densities on the ridgeline.
    step = np.square(shift[:, None] / ((1 - t) * ratio[:, None] + t))
    near = (np.square(t) * step).sum(2)
    far = (np.square(1 - t) * ratio[:, None] * step).sum(2)
    height = np.logaddexp(-0.5 * near, -0.5 * far)
    # 3. First and last local maximum, and the least value between them.
    change, last_position = np.diff(height, axis=1), len(_POSITIONS) - 1
    falls, rises = change < 0, change > 0
    first = np.where(falls.any(1), falls.argmax(1), last_position)
    last = np.where(rises.any(1), last_position - rises[:, ::-1].argmax(1), 0)
    index, pairs = np.arange(last_position + 1), np.arange(len(height))
    between = (index >= first[:, None]) & (index <= last[:, None])
    lowest = np.where(between, height, np.inf).min(1)
    peak = np.minimum(height[pairs, first], height[pairs, last])
    return np.where(first < last, peak - lowest, 0.0)


def _dips_of_pairs(
    means: np.ndarray,
    covariances: np.ndarray | None,
    sizes: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
) -> np.ndarray:
    """Dips (S, P) of P pairs of components, in S draws of k components.

    ``means``, ``covariances`` and ``sizes`` have leading axes (S, k). ``first`` and ``second`` (P,)
    are the indices of both components.
    """
    d = means.shape[2]
    shift = means[:, second] - means[:, first]
    if not d:
        return np.zeros(shift.shape[:2])
    n_a, n_b = sizes[:, first], sizes[:, second]
    noise = d * (1 / n_a + 1 / n_b)

    def shortening(squared_distance):
        excess = np.maximum(squared_distance - noise, 0)
        return np.sqrt(excess / np.where(squared_distance > 0, squared_distance, 1))[..., None]

    # 1. One common covariance: the ridgeline is a line, and the distance determines the dip.
    if covariances is None:
        distance = np.sqrt(np.square(shift).sum(-1, keepdims=True))
        length = (distance * shortening(np.square(distance[..., 0]))).reshape(-1, 1)
        return _in_blocks(length, np.ones_like(length)).reshape(shift.shape[:2])
    c_a, c_b = covariances[:, first], covariances[:, second]
    share = (n_a / (n_a + n_b)).reshape(*n_a.shape, *[1] * (c_a.ndim - 2))
    average = share * c_a + (1 - share) * c_b
    # 2. Independent features.
    if covariances.ndim == 3:
        shift = shift * shortening((np.square(shift) / average).sum(-1))
        scaled, ratio = shift / np.sqrt(c_a), c_b / c_a
        return _in_blocks(scaled.reshape(-1, d), ratio.reshape(-1, d)).reshape(shift.shape[:2])
    # 3. Lower bound of the dip. With the difference v of the means and the average covariance W,
    # both densities have the same maximum on one hyperplane v' W^-1 x = const. Every path between
    # the means crosses this hyperplane, where the sum of the densities is at most twice the
    # maximum.
    normal = np.linalg.solve(average, shift[..., None])[..., 0]
    squared_distance = np.maximum((shift * normal).sum(-1), 0)
    shorter = shortening(squared_distance)
    shift = shift * shorter
    spread = sum(np.sqrt(np.einsum("spi,spij,spj->sp", normal, c, normal)) for c in (c_a, c_b))
    gap = shorter[..., 0] * squared_distance / np.where(spread > 0, spread, 1)
    dips = 0.5 * np.square(gap) - np.log(2)
    # 4. Simultaneous diagonalisation of both covariances, for pairs with a lower bound below _DEEP.
    near = np.nonzero(dips < _DEEP)
    root = np.linalg.cholesky(c_a[near])
    white = np.linalg.solve(root, np.concatenate([c_b[near], shift[near][..., None]], -1))
    inner = np.linalg.solve(root, np.swapaxes(white[..., :d], 1, 2))
    ratio, axes = np.linalg.eigh(0.5 * (inner + np.swapaxes(inner, 1, 2)))
    ratio = np.maximum(ratio, np.finfo(float).tiny)
    dips[near] = _in_blocks(np.einsum("pij,pi->pj", axes, white[..., d]), ratio)
    return dips


def _in_blocks(shift: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """Compute `density_dips` of pairs in blocks, to bound the memory."""
    step = max(1, _ENTRIES // (len(_POSITIONS) * shift.shape[1]))
    starts = range(0, len(shift), step)
    parts = [density_dips(shift[i : i + step], ratio[i : i + step]) for i in starts]
    return np.concatenate(parts) if parts else np.zeros(0)


def elder_rule(
    heights: np.ndarray, levels: np.ndarray, classes: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Merge trees of S draws of k components by the elder rule.

    Parameters
    ----------
    heights : ndarray of shape (S, k)
        Heights of the components.
    levels : ndarray of shape (S, k, k)
        Levels at which pairs of components are connected; symmetric.
    classes : ndarray of int of shape (S, k), optional
        Observed classes; -1 if a component has none. Groups of different classes never join.

    Returns
    -------
    parent : ndarray of int of shape (S, k)
        For every component, the component into which it dies, or the component itself if it never
        dies.
    prominence : ndarray of shape (S, k)
        Height minus the level of the death, in nats; infinite if a component never dies.
    """
    n_draws, k = heights.shape
    parent = np.tile(np.arange(k), (n_draws, 1))
    prominence = np.full((n_draws, k), np.inf)
    # A group of components has the index of its highest component.
    group_class = np.full((n_draws, k), -1) if classes is None else classes.copy()
    level = np.where(_joinable(group_class), levels, -np.inf)
    for _ in range(k - 1):
        a, b = np.divmod(level.reshape(n_draws, -1).argmax(1), k)
        live = np.flatnonzero(level[np.arange(n_draws), a, b] > -np.inf)
        if not live.size:
            break
        a, b = a[live], b[live]
        h_a, h_b = heights[live, a], heights[live, b]
        a_lives = (h_a > h_b) | ((h_a == h_b) & (a < b))
        lives, dies = np.where(a_lives, a, b), np.where(a_lives, b, a)
        parent[live, dies] = lives
        fall = heights[live, dies] - level[live, a, b]
        prominence[live, dies] = np.maximum(fall, 0)
        joint = np.maximum(level[live, lives], level[live, dies])
        joint[np.arange(len(live)), lives] = -np.inf
        joint_class = group_class[live, lives]
        joint_class = np.where(joint_class >= 0, joint_class, group_class[live, dies])
        group_class[live, lives] = joint_class
        others = group_class[live]
        differs = (others >= 0) & (joint_class[:, None] >= 0) & (others != joint_class[:, None])
        joint[differs] = -np.inf
        level[live, lives], level[live, :, lives] = joint, joint
        level[live, dies], level[live, :, dies] = -np.inf, -np.inf
    return parent, prominence


def trees_by_dip(
    draws: Draws, components: Components, classes: np.ndarray | None = None
) -> MergeTrees:
    """Merge trees of draws of Gaussian components.

    Parameters
    ----------
    draws : Draws
    components : Components
        Means and covariances of the components, in the order of `Draws.sizes`.
    classes : ndarray of int of shape (n_samples,), optional
        Observed classes of samples, -1 if unknown. The class of a component is the most frequent
        class of its samples.
    """
    heights = np.log(draws.sizes)
    if components.covariances is not None and components.means.shape[1]:
        heights = heights - 0.5 * _mean_log_variance(components.covariances)
    listed_classes = None if classes is None else majority_classes(draws, classes)
    parent, prominence = np.arange(len(heights)), np.full(len(heights), np.inf)
    for k in np.unique(draws.n_clusters):
        which = np.flatnonzero(draws.n_clusters == k)
        first, second = np.triu_indices(k, 1)
        d = components.means.shape[1]
        step = max(1, _ENTRIES // max(1, len(first) * d * d))
        for part in (which[i : i + step] for i in range(0, len(which), step)):
            index = draws.offsets[part, None] + np.arange(k)
            covariances = components.covariances
            dips = _dips_of_pairs(
                components.means[index],
                None if covariances is None else covariances[index],
                draws.sizes[index],
                first,
                second,
            )
            height = heights[index]
            levels = np.full((len(part), k, k), -np.inf)
            level = np.minimum(height[:, first], height[:, second]) - dips
            levels[:, first, second], levels[:, second, first] = level, level
            observed = None if listed_classes is None else listed_classes[index]
            parents, prominence[index] = elder_rule(height, levels, observed)
            parent[index] = parents + draws.offsets[part, None]
    return MergeTrees(draws, parent, prominence)


def trees_by_exchange(
    draws: Draws, sums: np.ndarray, classes: np.ndarray | None = None
) -> MergeTrees:
    """Merge trees by exchange probabilities, the largest first.

    For two groups a and b of components, p(a, b) is the total probability of the components of b,
    averaged over the samples of a. The exchange probability of a and b is the larger one of
    p(a, b) and p(b, a). When two groups merge, the smaller one dies into the larger one. The
    prominence is then minus the logarithm of the smallest exchange probability of the merges of the
    draw so far.

    Parameters
    ----------
    draws : Draws
    sums : ndarray of shape (n_listed, K)
        Entry (i, j) is the sum, over the samples of component i, of their probabilities of the
        j-th component of the same draw. Columns beyond the number of components are ignored.
    classes : ndarray of int of shape (n_samples,), optional
        See `trees_by_dip`.
    """
    listed_classes = None if classes is None else majority_classes(draws, classes)
    parent, prominence = np.arange(len(sums)), np.full(len(sums), np.inf)
    for k in np.unique(draws.n_clusters):
        which = np.flatnonzero(draws.n_clusters == k)
        index = draws.offsets[which, None] + np.arange(k)
        observed = None if listed_classes is None else listed_classes[index]
        sizes = draws.sizes[index].astype(float)
        parents, prominence[index] = _merge_by_exchange(sums[index, :k], sizes, observed)
        parent[index] = parents + draws.offsets[which, None]
    return MergeTrees(draws, parent, prominence, "exchange")


def _merge_by_exchange(
    sums: np.ndarray, sizes: np.ndarray, classes: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Merge the k components of each of S draws; return parents and prominences (S, k).

    ``sums`` (S, k, k) has the sums of `trees_by_exchange`, one matrix per draw. ``classes`` (S, k)
    are the classes of the components. ``sizes`` (S, k) are the numbers of samples of the
    components. The function overwrites ``sums`` and ``sizes``.
    """
    n_draws, k = sizes.shape
    parent = np.tile(np.arange(k), (n_draws, 1))
    prominence, nats = np.full((n_draws, k), np.inf), np.zeros(n_draws)
    group_class = np.full((n_draws, k), -1) if classes is None else classes.copy()
    live, every = np.ones((n_draws, k), dtype=bool), np.arange(n_draws)
    for _ in range(k - 1):
        share = sums / sizes[:, :, None]
        allowed = _joinable(group_class) & live[:, :, None] & live[:, None]
        exchange = np.where(allowed, np.maximum(share, np.swapaxes(share, 1, 2)), -1.0)
        a, b = np.divmod(exchange.reshape(n_draws, -1).argmax(1), k)
        p = exchange[every, a, b]
        s = np.flatnonzero(p >= 0)
        a_lives = (sizes[every, a] > sizes[every, b]) | (
            (sizes[every, a] == sizes[every, b]) & (a < b)
        )
        lives, dies = np.where(a_lives, a, b)[s], np.where(a_lives, b, a)[s]
        with np.errstate(divide="ignore"):
            nats[s] = np.maximum(nats[s], -np.log(p[s]))
        parent[s, dies], prominence[s, dies] = lives, nats[s]
        sums[s, lives] += sums[s, dies]
        sums[s, :, lives] += sums[s, :, dies]
        sizes[s, lives] += sizes[s, dies]
        live[s, dies] = False
        joint_class = group_class[s, lives]
        group_class[s, lives] = np.where(joint_class >= 0, joint_class, group_class[s, dies])
    return parent, prominence


def _joinable(classes: np.ndarray) -> np.ndarray:
    """Whether each pair of k groups may join in each of S draws, (S, k, k).

    Two groups may not join if they have different ``classes`` (S, k); -1 means no class.
    """
    first, second = classes[:, :, None], classes[:, None]
    differs = (first >= 0) & (second >= 0) & (first != second)
    return ~differs & ~np.eye(classes.shape[1], dtype=bool)


def _mean_log_variance(covariances: np.ndarray) -> np.ndarray:
    """Log determinants of n covariances (n, d, d) or variances (n, d), divided by d; shape (n,)."""
    if covariances.ndim == 2:
        return np.log(covariances).mean(1)
    return np.linalg.slogdet(covariances)[1] / covariances.shape[1]


def majority_classes(draws: Draws, classes: np.ndarray) -> np.ndarray:
    """Most frequent class (n_listed,) of the samples of every component; -1 if none has a class."""
    labelled, n_listed = np.flatnonzero(classes >= 0), int(draws.offsets[-1])
    n_classes = int(classes.max(initial=-1)) + 1
    if not n_classes:
        return np.full(n_listed, -1)
    cells = np.zeros(n_listed * n_classes, np.int64)
    for a, b in draws.blocks(_ENTRIES):
        low, high = draws.offsets[a] * n_classes, draws.offsets[b] * n_classes
        cell = draws.ids(a, b)[:, labelled] * n_classes + classes[labelled]
        cells[low:high] = np.bincount(cell.ravel(), minlength=high - low)
    counts = cells.reshape(n_listed, n_classes)
    return np.where(counts.any(1), counts.argmax(1), -1)
