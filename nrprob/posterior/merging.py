"""Merge path of a point estimate: which clusters to merge next, and at what loss."""

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
    """Nested partitions from a given one to a single cluster, one merge after another.

    Attributes
    ----------
    labels : ndarray of shape (n_samples,)
        Clusters of the partition at the start, 0, 1, ... in order of first appearance.
    n_clusters : ndarray of shape (n_partitions,)
        Clusters of every partition of the path: K, K - 1, ..., 1.
    expected_loss : ndarray of shape (n_partitions,)
        Its expected loss.
    cost : ndarray of shape (n_partitions - 1,)
        What each merge adds to the expected loss. The start is no local optimum where the first is
        negative.
    linkage : ndarray of shape (n_partitions - 1, 4)
        The merges in the form of `scipy.cluster.hierarchy`: leaves are the clusters of the start,
        heights the expected loss above that of the start, of the costliest partition so far.

    Examples
    --------
    What every merge costs, and the partition after the first, which costs nothing.

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
        """Partition of the path that has the given number of clusters.

        Parameters
        ----------
        n_clusters : int
            From 1 to the number of clusters at the start.

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
        """Draw the merges as a dendrogram.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; a new figure when it is None.

        Returns
        -------
        matplotlib.axes.Axes
            The axes drawn on: leaves are clusters with their sizes, heights those of `linkage`.
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
    """Counts of the rows that clusters of a partition share with clusters of the draws."""

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
        """What joining cluster a with each of the others adds to the expected loss."""
        loss, present = self.loss, np.flatnonzero(self.counts[a])
        # Counts change nothing where one of the two clusters has no row.
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
    r"""Merge the clusters of a partition, each time the two that cost least, down to one.

    Clusters that the draws hardly tell apart merge at little cost, and the costs say which coarser
    partitions the posterior supports nearly as well.

    Parameters
    ----------
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Cluster labels, which may switch between draws.
    labels : array of int of shape (n_samples,), optional
        The partition at the start; `point_estimate` of the same loss by default.
    loss : {"vi", "binder"}, default="vi"
        Variation of information or pair loss; see `expected_loss`.
    split_cost : float in (0, 2), default=1.0
        Cost of separating what belongs together; see `expected_loss`.
    weights : array of shape (chain, draw) or (draw,), optional
        Weights of the draws, of any scale; equal by default.
    random_state : int, RandomState instance or None, default=None
        Used by the search for a partition.

    Returns
    -------
    MergePath
        Expected losses are exact over all draws.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If shapes do not fit, the loss is unknown or a parameter is outside its range.

    See Also
    --------
    point_estimate : With `max_clusters`, a search among all partitions of so many clusters.

    Notes
    -----
    Joining a and b changes the expected loss by a function of the counts of rows that they share
    with the clusters of the draws, so rows are counted once. Each pair of one of the K clusters and
    a cluster of a draw takes 4 bytes of memory and the time of about :math:`K` additions. Merges
    are greedy: the partition of k clusters is the best that joins two of the k + 1 before it. From
    a minimiser of the pair loss costs never fall and are never negative.

    References
    ----------
    Binder (1978), "Bayesian cluster analysis", Biometrika 65; Dahl, Johnson & Mueller (2022),
    "Search algorithms and loss functions for Bayesian clustering", JCGS 31, for the losses.

    Examples
    --------
    Clusters 0 and 1 are one in half of the draws, cluster 2 never.

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
