"""Stable and unstable clusters of the posterior."""

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
"""Most clusters that are compared with each other to find those that recur."""
_ROWS = 2**22
"""Rows that these have together, at most."""
_SLACK = 1e-12
"""Of comparisons with a bound: quotients and sums may differ in their last bits."""


@dataclasses.dataclass(frozen=True)
class StableClusters:
    """How far the clusters of one partition hold in the draws, and what else is in them.

    Attributes
    ----------
    center : ndarray of shape (n_samples,)
        The partition; clusters 0, 1, ... in order of first appearance.
    clusters : pandas.DataFrame
        One row for every cluster of the centre (index ``cluster``): its ``size``; the ``mean`` and
        the quantiles ``q05``, ``median`` and ``q95`` of its recovery over the draws; and
        ``probability``, the share of draws in which it holds.
    recovery : ndarray of shape (chain, draw, n_clusters) or (draw, n_clusters)
        Largest Jaccard index of each cluster of the centre with any cluster of each draw.
    transient : pandas.DataFrame
        One row for every recurring cluster of the draws that none of the centre resembles (index
        ``transient``), the most probable first: ``probability``; ``size``, the mean where it is
        there; ``core``, how many core rows it has; and ``within``, the cluster of the centre that
        most of them are of.
    core_rows : list of ndarray
        Of each of these, the rows that belong to it in at least half of the draws that have it.
    present : ndarray of bool of shape (chain, draw, n_transient) or (draw, n_transient)
        Draws that have it.

    Examples
    --------
    A cluster of two samples that leave their own in every fourth draw.

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
    """Best Jaccard index of each cluster of `codes` per draw, and of each cluster of the draws."""
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
    """Cores of the clusters marked in `apart` that recur, found in as many draws as will do."""
    live = np.flatnonzero(draws.weights)
    rows = int(draws.sizes[apart].sum())
    share = min(1.0, _GROUPED / max(1, int(apart.sum())), _ROWS / max(1, rows))
    steps = np.linspace(0, len(live) - 1, max(1, int(share * len(live))))
    chosen = live[steps.round().astype(int)]
    # A group is known by its middle, and loses its edge. In few draws, once is no recurrence.
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
    # Two clusters that have each lost other rows of one core are less like each other than it.
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
        # What is left of a group's edge has nearly its core.
        both = [np.sum(core & other) / np.sum(core | other) for other in cores]
        if alike.any() and max(both, default=0.0) < likeness:
            cores.append(core)
        mass[alike] = mass[middle] = 0.0
    return [np.flatnonzero(core) for core in cores]


def _follow_core(
    draws: Draws, apart: np.ndarray, core: np.ndarray, likeness: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws with a cluster like the core; its size there; each row's mass in it."""
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
    """Least value at or below which lies a share `level` of the weight, column by column."""
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
    r"""Which clusters of a partition hold in the draws, and which others come and go.

    A cluster C is recovered in a draw as far as the cluster of the draw that is most like it,

    .. math:: \max_{D \in z^{(s)}} |C \cap D| / |C \cup D|,

    the Jaccard index; names play no part.

    Parameters
    ----------
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Cluster labels, which may switch between draws.
    center : array of int of shape (n_samples,), optional
        The partition whose clusters are judged; `point_estimate` by default.
    threshold : float in (0, 1], default=0.75
        Recovery from which a cluster holds in a draw.
    likeness : float in (0, 1], default=0.5
        A cluster of a draw is transient where no cluster of the centre has a Jaccard index of this
        with it. Transient clusters of different draws are one where their index with the core of
        their group is at least as large.
    min_probability : float in (0, 1], default=0.05
        Transient clusters that fewer draws have are left out.
    weights : array of shape (chain, draw) or (draw,), optional
        Weights of the draws, of any scale; equal by default.
    random_state : int, RandomState instance or None, default=None
        Used by the search for a centre.

    Returns
    -------
    StableClusters

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If shapes do not fit, or a parameter is outside (0, 1].

    Notes
    -----
    Transient clusters are grouped by density: the one that is like the most others takes these, the
    next is found among the rest, and so on until none is frequent. The rows that most of a group
    have are its core, which is then looked for in all draws. At most 3,000 transient clusters are
    compared with each other, of draws at even steps: where every draw has hundreds, groups may be
    missed.

    Half of a cluster that some draws split is transient, and so is what joins three clusters of
    one size. A recovery above 1/2 belongs to one cluster of the draw only.

    References
    ----------
    Hennig (2007), "Cluster-wise assessment of cluster stability", Computational Statistics & Data
    Analysis 52, for the recovery and its thresholds, there of bootstrapped clusterings.

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
