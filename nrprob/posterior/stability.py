"""Stability of the clusters of a partition in posterior draws, and clusters of some draws only."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from nrprob.data.validation import as_number
from nrprob.posterior.draws import Draws, as_draws, canonical
from nrprob.posterior.estimates import given_or_estimated

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["StableClusters", "stable_clusters"]

_GROUPED = 3000
"""Maximum number of clusters that are compared with each other to find recurring clusters."""
_ROWS = 2**22
"""Maximum total size of the clusters that are compared with each other."""
_SLACK = 1e-12
"""Tolerance of comparisons with a bound, since sums and quotients have rounding errors."""


@dataclasses.dataclass(frozen=True)
class StableClusters:
    """Stability of the clusters of one partition in the draws, and other recurring clusters.

    Attributes
    ----------
    center : ndarray of shape (n_samples,)
        The partition; clusters 0, 1, ... in order of first appearance.
    clusters : pandas.DataFrame
        One row for every cluster of the centre (index ``cluster``): its ``size``; the ``mean`` and
        the quantiles ``q05``, ``median`` and ``q95`` of its recovery over the draws; and
        ``probability``, the share of draws that recover it.
    recovery : ndarray of shape (chain, draw, n_clusters) or (draw, n_clusters)
        Largest Jaccard index of each cluster of the centre with any cluster of each draw.
    transient : pandas.DataFrame
        One row for every recurring cluster of the draws that resembles no cluster of the centre
        (index ``transient``), the most probable first: ``probability``; ``size``, its mean size in
        the draws that contain it; ``core``, the number of its core samples; and ``within``, the
        cluster of the centre that contains most of its core samples.
    core_rows : list of ndarray
        For each transient cluster, the positions of its core samples, which belong to it in at
        least half of the draws that contain it.
    present : ndarray of bool of shape (chain, draw, n_transient) or (draw, n_transient)
        Draws that contain each transient cluster.

    Examples
    --------
    In 5 of 20 draws, two samples leave their cluster and form a cluster.

    >>> from nrprob.posterior import stable_clusters
    >>> draws = [[0, 0, 0, 1, 1, 1, 1, 1]] * 15 + [[0, 0, 0, 1, 1, 1, 2, 2]] * 5
    >>> found = stable_clusters(draws, draws[0])
    >>> found.clusters.probability.round(2).tolist(), found.recovery[-1]
    ([1.0, 0.75], array([1. , 0.6]))
    >>> found.core_rows, found.present.mean()
    ([array([6, 7])], np.float64(0.25))
    """

    center: np.ndarray
    clusters: pd.DataFrame
    recovery: np.ndarray
    transient: pd.DataFrame
    core_rows: list[np.ndarray]
    present: np.ndarray


def _recovery_rates(draws: Draws, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Largest Jaccard indices of clusters of the draws and the k clusters of a partition.

    ``codes`` (n_samples,) are the clusters of the partition. The first result (n_draws, k) has the
    maximum over the clusters of each draw. The second result has the maximum over the clusters of
    the partition, for each cluster in the list of the clusters of all draws.
    """
    sizes = np.bincount(codes)
    best = np.empty((draws.n_draws, len(sizes)))
    theirs = np.empty(int(draws.offsets[-1]))
    for a, b, first, counts in draws.crossed(codes):
        likeness = counts / (counts.sum(axis=1)[:, None] + sizes - counts)
        best[a:b] = np.maximum.reduceat(likeness, first[:-1])
        theirs[draws.offsets[a] : draws.offsets[b]] = likeness.max(axis=1)
    return best, theirs


def _recurring_cores(
    draws: Draws, apart: np.ndarray, likeness: float, least: float
) -> list[np.ndarray]:
    """Find the cores of recurring clusters; `stable_clusters` defines them.

    The mask ``apart`` selects clusters from the list of the clusters of all draws. ``likeness`` is
    the minimum Jaccard index of a cluster with the core of its group, and ``least`` the minimum
    probability of a recurring cluster. Clusters are compared in as many evenly spaced draws as
    _GROUPED and _ROWS allow. A core is an array of positions of samples.
    """
    live = np.flatnonzero(draws.weights)
    rows = int(draws.sizes[apart].sum())
    share = min(1.0, _GROUPED / max(1, int(apart.sum())), _ROWS / max(1, rows))
    steps = np.linspace(0, len(live) - 1, max(1, int(share * len(live))))
    chosen = live[steps.round().astype(int)]
    # A group contains only clusters that are similar to its central cluster, so the probability of
    # a group is too small. Therefore the bound is least / 2. In a selection of the draws, a cluster
    # that occurs once does not recur.
    enough = max(least / 2, 1.5 / len(chosen) if len(chosen) < len(live) else 0.0)
    weights = draws.weights[chosen] / draws.weights[chosen].sum()

    ids = draws.codes[chosen] + draws.offsets[chosen, None]
    which, row = np.nonzero(apart[ids])
    listed, place = np.unique(ids[which, row], return_inverse=True)
    mass = np.zeros(len(listed))
    mass[place] = weights[which]
    ones = np.ones(len(row), np.float32)
    member = scipy.sparse.csr_array((ones, (place, row)), (len(listed), draws.n_samples))
    shared, size = (member @ member.T).toarray(), draws.sizes[listed]
    # Two clusters that each lack different samples of one core are less similar to each other than
    # to the core.
    loose = likeness / (2 - likeness) - _SLACK
    near = (shared >= loose * (size[:, None] + size - shared)).astype(np.float32)

    cores: list[np.ndarray] = []
    while mass.any():
        around = np.where(mass > 0, near @ mass.astype(np.float32), 0.0)
        middle = int(around.argmax())
        if around[middle] < enough * (1 - 1e-5):
            break
        group = mass * near[middle]
        core = group @ member >= 0.5 * group.sum() * (1 - _SLACK)
        common = member @ core
        alike = common >= (likeness - _SLACK) * (core.sum() + size - common)
        # Clusters at the boundary of a previous group have nearly the same core as this group, and
        # are not another group.
        both = [np.sum(core & other) / np.sum(core | other) for other in cores]
        if alike.any() and max(both, default=0.0) < likeness:
            cores.append(core)
        mass[alike] = mass[middle] = 0.0
    return [np.flatnonzero(core) for core in cores]


def _follow_core(
    draws: Draws, apart: np.ndarray, core: np.ndarray, likeness: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the cluster that is most similar to a core in every draw.

    ``core`` has positions of samples. See `_recurring_cores` for ``apart``. Returns the mask
    (n_draws,) of draws in which the Jaccard index is at least ``likeness``, and the size (n_draws,)
    of the cluster in these draws. The third result (n_samples,) has the total weight of the draws
    in which each sample belongs to the cluster.
    """
    present = np.zeros(draws.n_draws, dtype=bool)
    size = np.zeros(draws.n_draws)
    held = np.zeros(draws.n_samples)
    for s in range(draws.n_draws):
        ends = slice(draws.offsets[s], draws.offsets[s + 1])
        sizes, codes = draws.sizes[ends], draws.codes[s]
        shared = np.bincount(codes[core], minlength=len(sizes))
        result = np.where(apart[ends], shared / (len(core) + sizes - shared), 0.0)
        best = int(result.argmax())
        if result[best] >= likeness - _SLACK:
            present[s], size[s] = True, sizes[best]
            held[codes == best] += draws.weights[s]
    return present, size, held


def _weighted_quantile(values: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """Weighted quantile of level `level` of each column of ``values``, with one weight per row."""
    order = np.argsort(values, axis=0, kind="stable")
    mass = np.cumsum(weights[order], axis=0)
    place = (mass < level - _SLACK).sum(axis=0)
    columns = np.arange(values.shape[1])
    return values[order[np.minimum(place, len(values) - 1), columns], columns]


def _probability(value: Any, name: str) -> float:
    if not 0 < as_number(value, name) <= 1:
        raise ValueError(
            f"{name} must be more than 0 and at most 1; got {value}; choose a number in between"
        )
    return float(value)


def stable_clusters(
    draws: Any,
    center: Any = None,
    *,
    threshold: float = 0.75,
    likeness: float = 0.5,
    min_probability: float = 0.05,
    weights: Any = None,
    random_state: Any = None,
) -> StableClusters:
    r"""Stability of the clusters of a partition in the draws, and other recurring clusters.

    The recovery of a cluster C in a draw is its similarity to the most similar cluster of the draw,

    .. math:: \max_{D \in z^{(s)}} |C \cap D| / |C \cup D|,

    which is the Jaccard index; labels do not matter.

    Parameters
    ----------
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Cluster labels, which may switch between draws.
    center : array of int of shape (n_samples,), optional
        Partition whose clusters are evaluated; `point_estimate` by default.
    threshold : float in (0, 1], default=0.75
        A draw recovers a cluster of the centre if the recovery is at least this value.
    likeness : float in (0, 1], default=0.5
        A cluster of a draw is transient if its Jaccard index with every cluster of the centre is
        below this value. Transient clusters of different draws form one group if their Jaccard
        index with the core of the group is at least this value.
    min_probability : float in (0, 1], default=0.05
        Transient clusters that occur in a smaller share of draws are omitted.
    weights : array of shape (chain, draw) or (draw,), optional
        Weights of the draws, of any scale; equal by default.
    random_state : int, RandomState instance or None, default=None
        Seed of the search for a centre.

    Returns
    -------
    StableClusters

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If shapes do not match, or a parameter is outside (0, 1].

    Notes
    -----
    Transient clusters are grouped by density: the cluster whose similar clusters have the largest
    total weight forms a group with these similar clusters. The core of a group has the samples that
    at least half of the group contains, by weight. Clusters that are similar to the core are then
    removed, and the next group is formed from the remaining clusters, until no group is frequent.
    Finally, all draws are searched for clusters that are similar to a core. At most 3,000 transient
    clusters from evenly spaced draws are compared with each other. If every draw has hundreds of
    transient clusters, some groups may be missed.

    With the default `likeness`, a part of a cluster is transient if it has less than half of the
    samples of the cluster. A union of three clusters of equal size is transient, too. For each
    cluster of the centre, at most one cluster of a draw has a Jaccard index above 1/2.

    References
    ----------
    Hennig (2007), "Cluster-wise assessment of cluster stability", Computational Statistics & Data
    Analysis 52, for the recovery and its thresholds (for bootstrapped clusterings).

    Examples
    --------
    Samples 4 and 5 leave their cluster in every second draw.

    >>> from nrprob.posterior import stable_clusters
    >>> draws = [[0, 0, 0, 1, 1, 1, 1, 1], [3, 3, 3, 5, 2, 2, 5, 5]] * 10
    >>> found = stable_clusters(draws, draws[0])
    >>> found.clusters[["size", "mean", "probability"]].round(3)
             size  mean  probability
    cluster
    0           3   1.0          1.0
    1           5   0.8          0.5
    >>> found.transient.round(3)
               probability  size  core  within
    transient
    0                  0.5   2.0     2       1
    >>> found.core_rows
    [array([4, 5])]
    """
    import pandas as pd

    holds = _probability(threshold, "threshold")
    alike = _probability(likeness, "likeness")
    least = _probability(min_probability, "min_probability")
    checked = as_draws(draws, weights)
    labels = given_or_estimated(checked, center, "center", random_state)
    codes = canonical(labels[None])[0].astype(np.int64)
    best, theirs = _recovery_rates(checked, codes)
    w = checked.weights
    clusters = pd.DataFrame(
        {
            "size": np.bincount(codes),
            "mean": w @ best,
            "q05": _weighted_quantile(best, w, 0.05),
            "median": _weighted_quantile(best, w, 0.5),
            "q95": _weighted_quantile(best, w, 0.95),
            "probability": np.clip(w @ (best >= holds - _SLACK), 0.0, 1.0),
        }
    ).rename_axis("cluster")

    apart = theirs < alike - _SLACK
    transients = []
    for core in _recurring_cores(checked, apart, alike, least) if apart.any() else []:
        present, size, held = _follow_core(checked, apart, core, alike)
        probability = float(w @ present)
        if probability >= least - _SLACK:
            most = np.flatnonzero(held >= 0.5 * probability - _SLACK)
            core = most if len(most) else core
            transients.append((probability, float(w @ size) / probability, core, present))
    transients.sort(key=lambda row: -row[0])
    transient = pd.DataFrame(
        {
            "probability": np.array([row[0] for row in transients], dtype=float),
            "size": np.array([row[1] for row in transients], dtype=float),
            "core": np.array([len(row[2]) for row in transients], dtype=np.int64),
            "within": np.array(
                [np.bincount(codes[row[2]]).argmax() for row in transients], np.int64
            ),
        }
    ).rename_axis("transient")
    shown = (
        np.array([row[3] for row in transients], dtype=bool)
        .reshape(len(transients), checked.n_draws)
        .T
    )
    return StableClusters(
        center=codes,
        clusters=clusters,
        recovery=best.reshape(*checked.batch, -1),
        transient=transient,
        core_rows=[row[2] for row in transients],
        present=shown.reshape(*checked.batch, len(transients)),
    )
