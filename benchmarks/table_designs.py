"""Simulated tables for the conditional mixture: mixed columns, missing values, unequal shares.

Every table has planted clusters, known groups that shift its columns, and irrelevant columns where
its design has some. `MIXED` lists designs in which all groups have the same shares of clusters.
`shares_table` makes tables in which they may differ, and returns Bayes' labels beside the clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

_FLAG_RATES = (0.3, 0.5, 0.1, 0.4, 0.2)
_CORRELATED_SCALES = (3, 1, 0.6, 0.3)


class SimulatedTable(NamedTuple):
    """A frame of features, known groups (n,), clusters (n,), their number, and Bayes' labels."""

    frame: pd.DataFrame
    known: np.ndarray
    clusters: np.ndarray
    n_clusters: int
    bayes: np.ndarray | None = None


@dataclass(frozen=True)
class MixedDesign:
    """What a table consists of.

    Attributes
    ----------
    reference : mean NMI of the prototype of the model on three tables, NaN if it was not run
    distance : of the centres of the four numeric columns, in standard deviations; None without them
    correlated : whether the errors are correlated, with clusters along directions of small variance
    categories, ratings, counts : columns that depend on the clusters
    concentration : of the Dirichlet distribution of the categories' probabilities
    flags, group_flags : irrelevant yes/no columns; the latter depend on the known group
    other_ratings, other_counts : irrelevant columns of these kinds
    eight_values : whether there is an irrelevant category of eight values
    shifting : whether an irrelevant category shifts two numeric columns
    confounded : whether 60 % of the samples are in the cluster of their group
    missing : share of missing values
    """

    reference: float
    distance: float | None = 2.0
    n: int = 300
    n_groups: int = 2
    n_clusters: int = 2
    correlated: bool = False
    categories: int = 0
    concentration: float = 0.6
    ratings: int = 0
    counts: int = 0
    flags: int = 0
    group_flags: int = 0
    other_ratings: int = 0
    other_counts: int = 0
    eight_values: bool = False
    shifting: bool = False
    confounded: bool = False
    missing: float = 0.0


_BOTH = {"distance": 2.0, "categories": 3}
_CATEGORIES = {"distance": 0.0, "categories": 6, "concentration": 0.5}
MIXED = {
    "4 numbers": MixedDesign(0.879, 3.0),
    "4 numbers, 1 flag": MixedDesign(0.907, 3.0, flags=1),
    "4 numbers, 3 flags": MixedDesign(0.896, 3.0, flags=3),
    "4 numbers, 5 flags": MixedDesign(0.900, 3.0, flags=5),
    "4 numbers, 2 flags by group": MixedDesign(0.908, 3.0, group_flags=2),
    "correlated": MixedDesign(0.635, 3.0, correlated=True),
    "correlated, 2 flags": MixedDesign(0.643, 3.0, correlated=True, flags=2),
    "6 categories": MixedDesign(0.615, **_CATEGORIES),
    "6 categories, 3 groups": MixedDesign(0.586, n_groups=3, **_CATEGORIES),
    "both": MixedDesign(0.679, **_BOTH),
    "both, 3 clusters": MixedDesign(0.766, n_clusters=3, **_BOTH),
    "both, 3 flags": MixedDesign(0.609, flags=3, **_BOTH),
    "both, 8 values": MixedDesign(0.651, eight_values=True, **_BOTH),
    "both, 10 % missing": MixedDesign(0.580, missing=0.1, **_BOTH),
    "both, 30 % missing": MixedDesign(0.437, missing=0.3, **_BOTH),
    "4 numbers, 2 flags, 30 % missing": MixedDesign(0.633, 3.0, flags=2, missing=0.3),
    "5 ratings": MixedDesign(0.849, None, ratings=5),
    "5 ratings, 3 irrelevant": MixedDesign(0.800, None, ratings=5, other_ratings=3),
    "2 ratings, 4 numbers, 2 irrelevant": MixedDesign(0.694, 1.5, ratings=2, other_ratings=2),
    "5 counts": MixedDesign(0.954, None, counts=5),
    "5 counts, 2 irrelevant": MixedDesign(0.944, None, counts=5, other_counts=2),
    "weak numbers, shifting category": MixedDesign(0.571, 2.0, shifting=True),
    "both, shifting category": MixedDesign(0.636, shifting=True, **_BOTH),
}  # fmt: skip


def mixed_table(design: MixedDesign, seed: int) -> SimulatedTable:
    """Draw a table of a design of `MIXED`."""
    rng = np.random.default_rng(seed)
    n, k = design.n, design.n_clusters
    clusters, groups = rng.integers(k, size=n), rng.integers(design.n_groups, size=n)
    if design.confounded:
        clusters = np.where(rng.random(n) < 0.6, groups % k, clusters)
    columns: dict[str, np.ndarray] = {}
    if design.distance is not None:
        x = _numeric_columns(rng, design, clusters)
        x += 1.5 * groups[:, None] * np.array([1, 0, 1, 0])
        if design.shifting:
            value = rng.integers(3, size=n)
            columns["shifting"] = np.array(list("pqr"))[value]
            x[:, 1] += np.array([-0.8, 0, 0.8])[value]
            x[:, 3] += np.array([0.6, -0.3, 0])[value]
        columns |= {f"x{j}": x[:, j] for j in range(4)}
    columns |= _discrete_columns(rng, design, clusters, groups)
    frame = pd.DataFrame(columns)
    if design.missing:
        frame = _remove_values(rng, frame, design.missing)
    return SimulatedTable(frame, np.array(list("uvw"))[groups], clusters, k)


def _numeric_columns(
    rng: np.random.Generator, design: MixedDesign, clusters: np.ndarray
) -> np.ndarray:
    """Four normal columns (n, 4) about centres in general directions, which all seeds share."""
    assert design.distance is not None
    k = design.n_clusters
    error = rng.normal(size=(design.n, 4))
    directions = np.random.default_rng(5 + k).normal(size=(k, 4))
    directions -= directions.mean(0)
    directions /= np.linalg.norm(directions, axis=1).mean()
    if not design.correlated:
        radius = 0.75 * design.distance / (1 if k == 2 else 0.8)
        return error + radius * directions[clusters]
    error = error @ (np.random.default_rng(1).normal(size=(4, 4)) * _CORRELATED_SCALES).T
    values, vectors = np.linalg.eigh(np.cov(error.T))
    radius = design.distance / (2 if k == 2 else 1.5)
    return error + radius * (directions @ (vectors * np.sqrt(values)).T)[clusters]


def _discrete_columns(
    rng: np.random.Generator, design: MixedDesign, clusters: np.ndarray, groups: np.ndarray
) -> dict[str, np.ndarray]:
    n, k = design.n, design.n_clusters
    side = clusters - (k - 1) / 2
    columns: dict[str, np.ndarray] = {}
    for j in range(design.categories):
        # Probabilities of four values by cluster, times a factor by group; all seeds share them.
        by_cluster = np.random.default_rng(100 * j + k).dirichlet(
            np.full(4, design.concentration), size=k
        )
        by_group = np.random.default_rng(77 + j).normal(size=(design.n_groups, 4))
        weight = (0.9 * by_cluster + 0.025)[clusters] * np.exp(0.7 * by_group[groups])
        columns[f"category{j}"] = np.array(list("abcd"))[_draw(rng, weight)]
    for j in range(design.ratings):
        sign = 1 if j % 2 else -1
        latent = rng.normal(size=n) + 1.8 * sign * side + 0.5 * groups
        columns[f"rating{j}"] = np.clip(np.round(latent + 3), 1, 5).astype(int)
    for j in range(design.counts):
        sign = 1 if j % 2 else -1
        columns[f"count{j}"] = rng.poisson(4 * np.exp(sign * side + 0.4 * groups))
    for j in range(design.flags):
        columns[f"flag{j}"] = rng.random(n) < _FLAG_RATES[j]
    for j in range(design.group_flags):
        rate = np.array([0.15, 0.6, 0.85])[(groups + j) % design.n_groups]
        columns[f"group_flag{j}"] = rng.random(n) < rate
    if design.eight_values:
        weight = np.tile(np.arange(8.0, 0, -1), (n, 1))
        columns["eight_values"] = np.array(list("abcdefgh"))[_draw(rng, weight)]
    for j in range(design.other_ratings):
        columns[f"other_rating{j}"] = rng.choice(5, size=n, p=[0.1, 0.2, 0.4, 0.2, 0.1]) + 1
    for j in range(design.other_counts):
        columns[f"other_count{j}"] = rng.poisson(4 * rng.gamma(0.7, 1 / 0.7, size=n))
    return columns


def _draw(rng: np.random.Generator, weight: np.ndarray) -> np.ndarray:
    """One value (n,) per row of weights (n, V)."""
    cumulative = weight.cumsum(1)
    return (rng.random((len(weight), 1)) * cumulative[:, -1:] > cumulative).sum(1)


def _remove_values(rng: np.random.Generator, frame: pd.DataFrame, share: float) -> pd.DataFrame:
    """Remove values completely at random; whole numbers and booleans stay what they are."""
    nullable = {"b": "boolean", "i": "Int64"}
    out = {}
    for name, column in frame.items():
        kind = column.dtype.kind if isinstance(column.dtype, np.dtype) else "O"
        out[name] = column.astype(nullable.get(kind, column.dtype)).mask(
            rng.random(len(frame)) < share
        )
    return pd.DataFrame(out)


def flag_case(seed: int, missing: float = 0.0) -> SimulatedTable:
    """Two clusters in two of four numeric columns, and an irrelevant flag."""
    rng = np.random.default_rng(seed)
    clusters = rng.integers(2, size=300)
    site = rng.choice(["x", "y"], 300)
    x = rng.normal(size=(300, 4)) + 4 * clusters[:, None] * [1, 1, 0, 0]
    frame = pd.DataFrame(x, columns=list("abcd"))
    frame["flag"] = rng.random(300) < 0.3
    if missing:
        frame = _remove_values(rng, frame, missing)
    return SimulatedTable(frame, site, clusters, 2)


def shares_table(
    seed: int, columns: str, shares: str, n_groups: int = 3, n: int = 450, k: int = 3
) -> SimulatedTable:
    """Draw a table whose shares of clusters differ between known groups.

    Parameters
    ----------
    columns : "numbers" (four, centres 3.5 standard deviations apart), "categories" (six of four
        values) or "both" (2.6 standard deviations, and four categories)
    shares : "equal"; "only", the last cluster occurs in the first group alone; "turned", 0.7, 0.2
        and 0.1 in another order in every group; "random", uniform on the simplex
    """
    rng = np.random.default_rng(seed)
    groups = np.arange(n) % n_groups
    share = _shares(rng, shares, n_groups, k)
    clusters = _draw(rng, share[groups])
    log_bayes = np.log(np.maximum(share, 1e-300))[groups]
    frame = {}
    if columns != "categories":
        centres = (3.5 if columns == "numbers" else 2.6) / np.sqrt(2) * np.eye(k, 4)
        offsets = rng.normal(size=(n_groups, 4))
        x = centres[clusters] + offsets[groups] + rng.normal(size=(n, 4))
        log_bayes -= 0.5 * ((x[:, None] - offsets[groups][:, None] - centres) ** 2).sum(2)
        frame |= {f"x{j}": x[:, j] for j in range(4)}
    if columns != "numbers":
        n_columns, scale = (4, 1.2) if columns == "both" else (6, 1.8)
        for j in range(n_columns):
            logit = scale * rng.normal(size=(k, 4)) + 0.7 * rng.normal(size=(n_groups, 1, 4))
            p = np.exp(logit)
            p /= p.sum(2, keepdims=True)
            value = _draw(rng, p[groups, clusters])
            log_bayes += np.log(p[groups, :, value])
            frame[f"category{j}"] = np.array(list("abcd"))[value]
    bayes = log_bayes.argmax(1)
    return SimulatedTable(pd.DataFrame(frame), groups, clusters, k, bayes)


def _shares(rng: np.random.Generator, shares: str, n_groups: int, k: int) -> np.ndarray:
    """Shares (L, K) of the clusters in every known group."""
    if shares == "equal":
        return np.full((n_groups, k), 1 / k)
    if shares == "only":
        share = np.tile(np.r_[np.full(k - 1, 1 / (k - 1)), 0], (n_groups, 1))
        share[0] = 1 / k
        return share
    if shares == "turned":
        return np.array([np.roll(np.r_[0.7, 0.2, np.full(k - 2, 0.1)], z) for z in range(n_groups)])
    return rng.dirichlet(np.ones(k), size=n_groups)


def lone_cluster(seed: int) -> SimulatedTable:
    """Ten columns in two batches, which shift them; the third cluster is in one batch alone."""
    rng = np.random.default_rng(seed)
    batch = np.repeat([0, 1], 300)
    clusters = np.r_[rng.choice(3, 300, p=[0.35, 0.25, 0.4]), rng.choice(3, 300, p=[0.3, 0.7, 0])]
    centres, shift = np.zeros((3, 10)), np.zeros((2, 10))
    centres[1, :3] = centres[2, 3:6] = 3
    shift[1, [1, 4, 7, 8]] = [2.5, -2.5, 2.5, 2.5]
    x = (centres[clusters] + shift[batch]) + rng.normal(size=(600, 10))
    distance = ((x[:, None] - centres - shift[batch][:, None]) ** 2).sum(2)
    distance[batch == 1, 2] = np.inf
    return SimulatedTable(pd.DataFrame(x).add_prefix("x"), batch, clusters, 3, distance.argmin(1))


def subjects(seed: int) -> SimulatedTable:
    """Three samples of each of 150 subjects, whose offsets have a standard deviation of 0.8."""
    rng = np.random.default_rng(seed)
    subject = np.repeat(np.arange(150), 3)
    clusters = rng.integers(2, size=450)
    centres = np.zeros((2, 6))
    centres[1, :3] = 3.5 / np.sqrt(3)
    offset = 0.8 * rng.normal(size=(150, 6))
    x = centres[clusters] + offset[subject] + rng.normal(size=(450, 6))
    # Bayes' rule sums over the eight labelings of a subject, with its offset integrated out.
    precision = np.linalg.inv(np.eye(3) + 0.64)
    labelings = np.array(np.meshgrid(*[[0, 1]] * 3)).reshape(3, -1).T
    deviation = x.reshape(150, 1, 3, 6) - centres[labelings]
    log_weight = -0.5 * np.einsum("szip,ij,szjp->sz", deviation, precision, deviation)
    weight = np.exp(log_weight - log_weight.max(1, keepdims=True))
    share = weight @ labelings / weight.sum(1, keepdims=True)
    bayes = (share.ravel() > 0.5).astype(int)
    return SimulatedTable(pd.DataFrame(x).add_prefix("x"), subject, clusters, 2, bayes)
