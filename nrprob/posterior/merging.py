"""Merge path of a point estimate: successive merges and their expected losses."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.data.validation import check_number
from nrprob.plotting.style import check_axes
from nrprob.posterior.draws import Draws, as_draws, canonical
from nrprob.posterior.estimates import given_or_estimated
from nrprob.posterior.losses import Loss, as_loss

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MergePath", "merge_path"]


@dataclasses.dataclass(frozen=True)
class MergePath:
    """Nested partitions from a given one down to a single cluster, one merge at a time.

    Attributes
    ----------
    labels : ndarray of shape (n_samples,)
        Clusters of the initial partition, 0, 1, ... in order of first appearance.
    n_clusters : ndarray of shape (n_partitions,)
        Clusters of every partition of the path: K, K - 1, ..., 1.
    expected_loss : ndarray of shape (n_partitions,)
        Expected loss of every partition of the path.
    cost : ndarray of shape (n_partitions - 1,)
        Increase of the expected loss by each merge. If the first one is negative, the initial
        partition is not a local optimum.
    linkage : ndarray of shape (n_partitions - 1, 4)
        The merges in the form of `scipy.cluster.hierarchy`: leaves are the initial clusters.
        Heights are the largest expected loss so far, minus the expected loss of the initial
        partition.

    Examples
    --------
    The first merge costs nothing, and `cut` returns the partition after it:

    >>> from nrprob.posterior import merge_path
    >>> path = merge_path([[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 3, 3]], [0, 0, 1, 1, 2, 2])
    >>> path.cost.round(3)
    array([0.   , 0.637])
    >>> path.cut(2)
    array([0, 0, 0, 0, 1, 1])
    """

    labels: np.ndarray
    n_clusters: np.ndarray
    expected_loss: np.ndarray
    cost: np.ndarray
    linkage: np.ndarray

    def cut(self, n_clusters: int) -> np.ndarray:
        """Partition of the path with the given number of clusters.

        Parameters
        ----------
        n_clusters : int
            From 1 to the number of initial clusters.

        Returns
        -------
        ndarray of shape (n_samples,), int64
            Clusters 0, 1, ... in order of first appearance.
        """
        k = len(self.n_clusters)
        check_number("n_clusters", n_clusters, low=1, high=k, integer=True)
        names = np.arange(k)
        for step, (a, b) in enumerate(self.linkage[: k - n_clusters, :2]):
            names[(names == a) | (names == b)] = k + step
        return canonical(names[self.labels][None])[0].astype(np.int64)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the merges as a dendrogram.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default in a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes: leaves are clusters with their sizes, and heights are as in `linkage`.
        """
        import matplotlib.pyplot as plt
        from scipy.cluster.hierarchy import dendrogram

        check_axes(ax)
        k = len(self.n_clusters)
        if k == 1:
            raise ValueError(
                "a dendrogram needs two clusters; got a path of one; start from more clusters"
            )
        if ax is None:
            size = (6.4, min(1.2 + 0.28 * k, 16.0))
            _, ax = plt.subplots(figsize=size, layout="constrained")
        names = [f"{c} (n = {size})" for c, size in enumerate(np.bincount(self.labels))]
        dendrogram(
            self.linkage,
            orientation="right",
            labels=names,
            ax=ax,
            color_threshold=0,
            above_threshold_color="#4c566a",
        )
        ax.set_xlabel("expected loss above that of the start")
        ax.set_ylabel("cluster")
        ax.spines[["top", "right", "left"]].set_visible(False)
        return ax


class _Cells:
    """Numbers of rows in both a cluster of a partition and a cluster of a draw."""

    def __init__(self, codes: np.ndarray, draws: Draws, loss: Loss) -> None:
        self.loss, self.weights = loss, np.repeat(draws.weights, draws.n_clusters)
        self.sizes = np.bincount(codes)
        blocks = [counts.T.astype(np.int32) for *_, counts in draws.crossed(codes)]
        self.counts = np.concatenate(blocks, axis=1)
        self.theirs = float(loss.cell[draws.sizes] @ self.weights)
        self.joint = np.array([loss.cell[row] @ self.weights for row in self.counts])

    def expected_loss(self) -> float:
        loss = self.loss
        value = loss.split_cost * self.theirs + loss.merge_cost * loss.cell[self.sizes].sum()
        value = loss.scale * (value - 2 * float(self.joint.sum()))
        rounding = 1e-13 * max(1.0, self.theirs * loss.scale)
        return 0.0 if value < rounding else value

    def changes(self, a: int, others: np.ndarray) -> np.ndarray:
        """Increase of the expected loss by joining cluster a with each of the others."""
        loss, present = self.loss, np.flatnonzero(self.counts[a])
        # If one of the two clusters has no row, the counts do not change.
        counts, weights = self.counts[a, present], self.weights[present]
        shared = np.empty(len(others))
        for place, b in enumerate(others):
            theirs = self.counts[b, present]
            shared[place] = (loss.cell[counts + theirs] - loss.cell[theirs]) @ weights
        size = self.sizes[others]
        alone = loss.cell[self.sizes[a] + size] - loss.cell[self.sizes[a]] - loss.cell[size]
        return loss.scale * (loss.merge_cost * alone - 2 * (shared - self.joint[a]))

    def join(self, a: int, b: int) -> None:
        self.counts[a] += self.counts[b]
        self.sizes[a] += self.sizes[b]
        self.joint[a] = self.loss.cell[self.counts[a]] @ self.weights
        self.sizes[b] = 0
        self.joint[b] = 0.0


def merge_path(
    draws: Any,
    labels: Any = None,
    *,
    loss: str = "vi",
    split_cost: float = 1.0,
    weights: Any = None,
    random_state: Any = None,
) -> MergePath:
    r"""Merge the clusters of a partition greedily, by least expected loss, down to one.

    Clusters that the draws hardly distinguish merge at small cost. The costs show which coarser
    partitions have nearly the same posterior support.

    Parameters
    ----------
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Cluster labels, which may switch between draws.
    labels : array of int of shape (n_samples,), optional
        Initial partition; by default `point_estimate` of the same loss.
    loss : {"vi", "binder"}, default="vi"
        Variation of information or pair loss; see `expected_loss`.
    split_cost : float in (0, 2), default=1.0
        Cost of separating samples that belong together; see `expected_loss`.
    weights : array of shape (chain, draw) or (draw,), optional
        Weights of the draws, of any scale; equal by default.
    random_state : int, RandomState instance or None, default=None
        Seed of the search for a partition.

    Returns
    -------
    MergePath
        The path; its expected losses are exact over all draws.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If shapes do not match, the loss is unknown or a parameter is outside its range.

    See Also
    --------
    point_estimate : With `max_clusters`, a search among all partitions of so many clusters.

    Notes
    -----
    Joining a and b changes the expected loss by a function of their counts: the numbers of rows
    shared with each cluster of the draws. So rows are counted only once. Each pair of one of the K
    clusters and a cluster of a draw takes 4 bytes of memory and about :math:`K` additions. Merges
    are greedy: the partition of k clusters is the best that joins two of the previous k + 1. If the
    initial partition minimises the pair loss, costs are non-negative and never decrease.

    References
    ----------
    Binder (1978), "Bayesian cluster analysis", Biometrika 65; Dahl, Johnson & Mueller (2022),
    "Search algorithms and loss functions for Bayesian clustering", JCGS 31, for the losses.

    Examples
    --------
    Clusters 0 and 1 are joined in half of the draws, cluster 2 never:

    >>> from nrprob.posterior import merge_path
    >>> path = merge_path([[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 3, 3]], [0, 0, 1, 1, 2, 2])
    >>> path.n_clusters.tolist(), path.expected_loss.round(3).tolist()
    ([3, 2, 1], [0.231, 0.231, 0.868])
    >>> path.cut(2)
    array([0, 0, 0, 0, 1, 1])
    """
    checked = as_draws(draws, weights)
    table = as_loss(loss, split_cost, checked.n_samples)
    start = given_or_estimated(checked, labels, "labels", random_state, table)
    codes = canonical(start[None])[0].astype(np.int64)
    cells = _Cells(codes, checked, table)
    k = len(cells.sizes)

    change = np.full((k, k), np.inf)
    for a in range(k - 1):
        change[a, a + 1 :] = cells.changes(a, np.arange(a + 1, k))
    values = [cells.expected_loss()]
    names, held = np.arange(k), np.ones(k)
    steps, height = np.empty((k - 1, 4)), 0.0
    for step in range(k - 1):
        a, b = divmod(int(change.argmin()), k)
        cells.join(a, b)
        values.append(cells.expected_loss())
        height = max(height, values[-1] - values[0])
        held[a] += held[b]
        steps[step] = [*sorted((names[a], names[b])), height, held[a]]
        names[a] = k + step
        change[b], change[:, b] = np.inf, np.inf
        others = np.flatnonzero((cells.sizes > 0) & (np.arange(k) != a))
        new = cells.changes(a, others)
        change[np.minimum(a, others), np.maximum(a, others)] = new
    losses = np.array(values)
    return MergePath(codes, np.arange(k, 0, -1), losses, np.diff(losses), steps)
