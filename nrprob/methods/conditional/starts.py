"""Initial labels of a conditional mixture, by k-means of all rows or within every known group.

K-means runs in NumPy, because a JAX program would take seconds to compile and milliseconds to run.
Rows are in blocks, as in `nrprob.statistics.rows.make_layout`; all rows of a block belong to one
known group. Every iteration of k-means is then a matrix product.

Sizes: n rows in B blocks of r rows, S initial labelings, L groups, K clusters, p coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from nrprob.data.labels import factorize
from nrprob.settings import few_threads
from nrprob.statistics.groups import cross_table, group_sums
from nrprob.statistics.rows import Layout

_LLOYD = 50  # maximum number of k-means iterations
_MATCHINGS = 5  # maximum number of rounds that match clusters between groups


class BlockedRows(NamedTuple):
    """Rows in the coordinates of one k-means, in B blocks of r rows of one group.

    Attributes
    ----------
    z : (B, r, p) coordinates of the rows, 0 on padding
    real : (B, r) True for rows, False on padding
    mass : (B, r) weights of the rows, 0 on padding
    place : (B, r) indices of the rows in the input
    group : (B,) group of every block, ascending
    n_groups : number of groups, L; a group may have no block
    """

    z: np.ndarray
    real: np.ndarray
    mass: np.ndarray
    place: np.ndarray
    group: np.ndarray
    n_groups: int

    def by_group(
        self, values: np.ndarray, reduce: np.ufunc = np.add, empty: float = 0
    ) -> np.ndarray:
        """Apply the reduction ``reduce`` to values (B, ...) of the blocks of every group: (L, ...).

        ``empty`` is the result for a group without blocks.
        """
        first = np.flatnonzero(np.diff(self.group, prepend=-1))
        out = np.full((self.n_groups, *values.shape[1:]), empty, values.dtype)
        out[self.group[first]] = reduce.reduceat(values, first)
        return out

    def inner_products(self, centres: np.ndarray) -> np.ndarray:
        """Inner products (B, r, S, K) of every row and the centres of its group.

        ``centres`` (S, L, K, p) has the centres of every group for S labelings.
        """
        s, n_groups, k, p = centres.shape
        flat = np.moveaxis(centres, 1, 0).reshape(n_groups, s * k, p)
        out = np.matmul(self.z, flat[self.group].swapaxes(1, 2))
        return out.reshape(*self.real.shape, s, k)

    def cluster_sums(self, labels: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Sums (S, L, K, p) of rows and total masses (S, L, K) by group and cluster.

        ``labels`` (B, r, S) are the clusters of the rows in S labelings, and ``k`` is K.
        """
        s = labels.shape[-1]
        hits = np.where(labels[..., None] == np.arange(k), self.mass[..., None, None], 0)
        hits = hits.reshape(*self.real.shape, s * k).astype(self.z.dtype)
        sums = self.by_group(np.matmul(hits.swapaxes(1, 2), self.z))
        sizes = self.by_group(hits.sum(1))
        shape = self.n_groups, s, k
        return np.moveaxis(sums.reshape(*shape, -1), 1, 0), np.moveaxis(sizes.reshape(shape), 1, 0)


def schedule_starts(n_init: int, n_kinds: int) -> tuple[int, np.ndarray]:
    """Distribute ``n_init`` restarts over ``n_kinds`` types of initial values.

    The types alternate, so that the numbers of restarts of any two types differ by at most one.

    Returns
    -------
    n_each : number of initial values to compute per type
    restarts : (n_init,) indices of the initial values to use, in the list of all computed values
        sorted by type
    """
    n_each = -(-n_init // n_kinds)
    order = np.arange(n_each) * n_kinds + np.arange(n_kinds)[:, None]
    return n_each, np.flatnonzero(order.reshape(-1) < n_init)


def stratified_sample(
    strata: np.ndarray, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a stratified subsample of about ``size`` rows without replacement.

    Every stratum contributes in proportion to its size, but at least a quarter of an equal share.

    Parameters
    ----------
    strata : (n,) stratum of every row, numbered from 0
    size : size of the subsample
    rng : random number generator

    Returns
    -------
    chosen : indices of the sampled rows, ascending
    times : weight of every sampled row: size of the stratum divided by the number of sampled rows
        of the stratum
    """
    n = strata.size
    if n <= size:
        return np.arange(n), np.ones(n)
    sizes = np.bincount(strata)
    target_sizes = np.maximum(np.round(sizes * (size / n)), max(size // (4 * sizes.size), 1))
    target_sizes = np.minimum(target_sizes, sizes).astype(int)
    order = np.lexsort((rng.random(n), strata))
    rank = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = np.sort(order[rank < target_sizes[strata[order]]])
    return chosen, (sizes / np.maximum(target_sizes, 1))[strata[chosen]]


def make_starts(
    y: np.ndarray,
    layout: Layout,
    n_groups: int,
    maps: Sequence[np.ndarray],
    k: int,
    n_each: int,
    rng: np.random.Generator,
    *,
    aligned: bool,
    tries: int = 1,
    fixed: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Compute initial labels by k-means in several metrics.

    Parameters
    ----------
    y : (n, p) rows
    layout : positions of the rows in blocks of the known groups
    n_groups : number of known groups
    maps : for every metric, the linear map (p, p) from y to the space of k-means
    k : number of clusters
    n_each : number of labelings per metric and type of k-means
    rng : random number generator
    aligned : whether to run k-means within the known groups as well, and match the clusters
    tries : k-means runs per labeling; distinct labelings are preferred
    fixed : (n,) classes of labelled rows, else -1
    weights : (n,) weights of the rows; by default 1

    Returns
    -------
    (S, n) labels: first ``n_each`` labelings per metric by k-means of all rows; then, if
        ``aligned``, ``n_each`` labelings per metric by k-means within groups
    """
    real = layout.to_blocks(np.ones(len(y), bool))
    mass = real if weights is None else layout.to_blocks(weights)
    mass = mass.astype(np.float32)
    place = layout.to_blocks(np.arange(len(y)))
    every, names = [], np.zeros_like(layout.block_group)
    with few_threads(len(y)):
        for block_group, count in ((names, 1), (layout.block_group, n_groups))[
            : 2 if aligned else 1
        ]:
            for seen in maps:
                z = layout.to_blocks((y @ seen).astype(np.float32))
                rows = BlockedRows(z, real, mass, place, block_group, count)
                if count == 1:
                    rows = rows._replace(
                        z=z.reshape(1, -1, z.shape[-1]), real=real.reshape(1, -1),
                        mass=mass.reshape(1, -1),
                        place=place.reshape(1, -1), group=block_group[:1],
                    )  # fmt: skip
                labels, centres = grouped_kmeans(rows, k, n_each * tries, rng)
                if count > 1:
                    labels = align_groups(rows, labels, centres, rng)
                labels = np.moveaxis(labels, -1, 0).reshape(n_each * tries, -1)[:, layout.slot]
                every.append(labels[distinct_first(labels, n_each)])
    labels = np.concatenate(every)
    return labels if fixed is None else name_classes(labels, fixed, k)


def distinct_first(labels: np.ndarray, count: int) -> np.ndarray:
    """Select ``count`` of the labelings (S, n); distinct partitions have priority.

    Returns
    -------
    (count,) indices of the selected labelings
    """
    named = {factorize(row)[0].tobytes(): i for i, row in reversed([*enumerate(labels)])}
    first = sorted(named.values())
    others = np.setdiff1d(np.arange(len(labels)), first)
    return np.concatenate([first, others])[:count].astype(int)


def grouped_kmeans(
    rows: BlockedRows, k: int, n_each: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Run k-means with ``k`` clusters within every group separately, ``n_each`` times.

    Returns
    -------
    labels : (B, r, S) labels of the rows, with S = n_each
    centres : (S, L, k, p) centres of the clusters of every group
    """
    z, real = rows.z, rows.real[..., None]
    square = (z * z).sum(-1)[..., None]
    rounding = 32 * np.finfo(z.dtype).eps
    blocks = np.arange(len(z))[:, None]

    def centre_scores(centres):
        """Half the squared norm of a row, less half the squared distance from every centre.

        ``centres`` has the shape (S, L, K, p), and the result (B, r, S, K).
        """
        half_squares = np.moveaxis(0.5 * (centres**2).sum(-1), 1, 0)  # (L, S, K)
        return rows.inner_products(centres) - half_squares[rows.group][:, None]

    def assign_rows(centres):
        return centre_scores(centres).argmax(-1)

    mass = rows.mass[..., None]
    # Initial centres by k-means++: a row is sampled with a probability proportional to its mass
    # times its squared distance from the nearest centre.
    nearest_weights = mass + np.zeros((*rows.real.shape, n_each), z.dtype)
    centres = np.zeros((n_each, rows.n_groups, k, z.shape[-1]), z.dtype)
    for j in range(k):
        # Every row has an exponential waiting time with its weight as rate. The first row to arrive
        # in a group is then a sample with probabilities proportional to the weights.
        u = rng.random((rows.place.max() + 1, n_each), z.dtype)[rows.place]
        with np.errstate(divide="ignore"):
            time = np.where(nearest_weights > 0, -np.log1p(-u) / nearest_weights, np.inf)
        row = time.argmin(1)  # (B, S)
        first = np.take_along_axis(time, row[:, None], 1)[:, 0]
        earliest = rows.by_group(first, np.minimum, np.inf)
        # If several rows arrive at the same time, which happens if all weights are 0, take the row
        # of the first block.
        block = np.where(first <= earliest[rows.group], blocks, len(z))
        block = rows.by_group(block, np.minimum, 0)  # (L, S)
        centres[:, :, j] = np.moveaxis(z[block, np.take_along_axis(row, block, 0)], 1, 0)
        squared_distances = square - 2 * centre_scores(centres[:, :, j : j + 1])[..., 0]
        # Rows that equal a centre have weight 0: rounding errors must not count as a distance.
        weights = mass * np.where(
            (squared_distances > rounding * square) & real, squared_distances, 0
        )
        nearest_weights = weights if j == 0 else np.minimum(nearest_weights, weights)
    # Lloyd iterations. Only labelings that still change are updated.
    labels = assign_rows(centres)
    active = np.arange(n_each)
    for _ in range(_LLOYD):
        sums, sizes = rows.cluster_sums(labels[..., active], k)
        sizes = sizes[..., None]
        means = np.where(sizes > 0, sums / np.where(sizes > 0, sizes, 1), centres[active])
        new = assign_rows(means)
        centres[active] = means
        changed = ((new != labels[..., active]) & real).any((0, 1))
        labels[..., active] = new
        active = active[changed]
        if not active.size:
            break
    return labels, centres


def align_groups(
    rows: BlockedRows, labels: np.ndarray, centres: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Match the clusters of different groups by their centres.

    Two steps alternate. First, the clusters of every group are assigned one-to-one to k common
    centres, with the smallest sum of squared distances times cluster sizes (Hungarian method). Then
    every common centre becomes the mean of the clusters that are assigned to it. The first common
    centres are the centres of one group, which is sampled with a probability proportional to its
    size.

    Parameters
    ----------
    rows : the rows in blocks
    labels : (B, r, S) labels within the groups
    centres : (S, L, k, p) centres of the clusters of every group
    rng : random number generator

    Returns
    -------
    (B, r, S) labels by common centre, which are comparable between groups
    """
    s, n_groups, k, _ = centres.shape
    sizes = rows.cluster_sums(labels, k)[1]
    weight = sizes.sum(-1)
    out = np.empty_like(labels)
    for i in range(s):
        common = centres[i, rng.choice(n_groups, p=weight[i] / weight[i].sum())]
        names = np.zeros((n_groups, k), int)
        for _ in range(_MATCHINGS):
            squares = (common**2).sum(-1)
            cost = sizes[i][..., None] * (squares - 2 * centres[i] @ common.T)
            new = np.array([linear_sum_assignment(matrix)[1] for matrix in cost])
            weighted = (sizes[i][..., None] * centres[i]).reshape(-1, common.shape[1])
            total = group_sums(sizes[i].reshape(-1, 1), new.ravel(), k)
            sums = group_sums(weighted, new.ravel(), k)
            common = np.where(total > 0, sums / np.where(total > 0, total, 1), common)
            if (new == names).all():
                break
            names = new
        out[..., i] = np.take_along_axis(names[rows.group], labels[..., i], 1)
    return out


def name_classes(labels: np.ndarray, fixed: np.ndarray, k: int) -> np.ndarray:
    """Rename clusters so that they agree with the classes of as many labelled rows as possible.

    Labelled rows then get the label of their class.

    Parameters
    ----------
    labels : (S, n) labels below ``k``
    fixed : (n,) classes of labelled rows, else -1
    k : number of clusters
    """
    labelled = fixed >= 0
    out = np.empty_like(labels)
    for i, row in enumerate(labels):
        overlap = cross_table(row[labelled], fixed[labelled], (k, k))
        out[i] = linear_sum_assignment(overlap, maximize=True)[1][row]
    out[:, labelled] = fixed[labelled]
    return out
