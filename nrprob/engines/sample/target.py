"""Target distributions over partitions of samples, defined by complete code lengths.

A code length is minus a log probability, in nats. A cell is the set of samples of one cluster in
one known group. Arrays ``cells`` (groups, K, p) hold sums of p sufficient statistics over the
samples of every cell, for K slots of clusters. n' is the number of samples with padding. A method
that takes a subset of the samples has arrays with b or m rows.

The numbers of slots for clusters and known groups are rounded up by
`nrprob.statistics.rows.padded_count`, so that one compiled program serves several sizes. Surplus
slots stay empty: partitions into more clusters than the maximum have infinite cost, and groups
without samples add 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.statistics.codes import CodeTerm
from nrprob.statistics.rows import bucket_size, padded_count
from nrprob.trees import node

_STATIC: dict[str, Any] = {"static": True}
# Log odds (m,) that samples belong to the second of two clusters. Arguments are the cells (groups,
# 2, p) of the clusters, whether each sample (m,) is in the cells, and whether it is in the second.
Odds: TypeAlias = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@node
class Scales:
    """Latent scale weights of samples: their current values, and the grid of possible values.

    Attributes
    ----------
    weights : (G,) grid of a scale weight, which multiplies the statistics of a sample
    nats : (n', G) description length of each value of the grid for each sample, in any cluster
    version : (n',) indices in ``weights`` of the current values
    width : number of leading statistics that the weight multiplies
    """

    weights: jax.Array
    nats: jax.Array
    version: jax.Array
    width: int = field(metadata=_STATIC)

    def scale_rows(self, x: jax.Array, version: jax.Array) -> jax.Array:
        """Multiply the first ``width`` statistics of samples ``x`` (n, p) by their scale weights.

        ``version`` (n,) are the indices of the scale weights in ``weights``.
        """
        return jnp.where(np.arange(x.shape[1]) < self.width, x * self.weights[version][:, None], x)


class JointCode:
    """Joint code length of all cells, for codes that are not sums over clusters.

    Attributes
    ----------
    incremental : whether `change` is defined, which makes moves of two clusters cheap
    """

    incremental: ClassVar[bool] = False

    def __call__(self, cells: jax.Array) -> jax.Array:
        """Code length of cells (groups, K, p), in nats."""
        raise NotImplementedError

    def change(self, cells: jax.Array, old: jax.Array, new: jax.Array) -> jax.Array:
        """Change of the code length in nats if cells ``old`` of m clusters become ``new``.

        Both arrays have the shape (groups, m, p). ``cells`` (groups, K, p) are all cells before the
        change.
        """
        raise NotImplementedError

    def odds(
        self, target: Target, state: Partition, a: jax.Array, b: jax.Array
    ) -> Callable[[jax.Array, jax.Array], Odds] | None:
        """Log odds for split-merge proposals; see `Target.odds`.

        None if `Target.odds` computes the log odds from the terms of the target.
        """
        return None


@node
class Target:
    """Distribution over partitions of samples, proportional to exp(-scale * L).

    The code length L is the sum of ``terms``, ``sizes`` A(k), ``joint_codes`` and ``offset``; see
    `make_target`.

    Attributes
    ----------
    terms : code lengths that are sums over clusters
    sizes : (K + 1,) part A(k) of the code length, which depends only on the number of clusters k;
        infinite for each k that is not allowed. K is the maximum number of clusters, rounded up
    x : (n', p) statistics of the samples; the last statistic of a sample is 1. Padding comes last,
        and has zeros
    group : (n',) known group of the samples, below ``n_groups``; the last groups may be empty
    partners : (n', q) for each sample, q candidates for the second sample of a pair; None if all
        samples are candidates
    scale : factor of the code length; other than 1, the distribution is tempered
    n_groups : number of slots for known groups; 1 without known groups
    scales : latent scale weights of the samples, or None
    joint_codes : code lengths that are not sums over clusters
    offset : part of the code length that does not depend on the partition
    launch : model of the features for launched splits and merges; None without these moves. See
        `nrprob.engines.sample.launched_moves.LaunchModel`.
    """

    terms: tuple[CodeTerm, ...]
    sizes: jax.Array
    x: jax.Array
    group: jax.Array
    partners: jax.Array | None
    scale: jax.Array
    n_groups: int = field(metadata=_STATIC)
    scales: Scales | None = None
    joint_codes: tuple[Any, ...] = ()
    offset: jax.Array | float = 0.0
    launch: Any = None

    @property
    def n_slots(self) -> int:
        """Number of slots for clusters, K."""
        return self.sizes.shape[0] - 1

    @property
    def max_clusters(self) -> jax.Array:
        """Largest number of clusters that the target allows."""
        return jnp.isfinite(self.sizes[1:]).sum()

    @property
    def incremental(self) -> bool:
        """Whether `change` is defined, which makes moves of two clusters cheap."""
        return all(code.incremental for code in self.joint_codes)

    def with_room(self, n_slots: int) -> Target:
        """Restrict the distribution to partitions with at most ``n_slots`` clusters."""
        return replace(self, sizes=self.sizes[: n_slots + 1])

    def cells(self, labels: jax.Array) -> jax.Array:
        """Sums of statistics (groups, K, p) by known group and cluster, from labels (n',)."""
        x = self.x if self.scales is None else self.scales.scale_rows(self.x, self.scales.version)
        return sum_cells(self, x, self.group, labels)

    def length(self, cells: jax.Array) -> jax.Array:
        """Code length ``scale * L`` in nats of a partition with ``cells`` (groups, K, p)."""
        total = self.offset + sum(term.weight * term.constant for term in self.terms)
        total = total + self.sizes[occupied(cells).sum()] + self._cluster_lengths(cells).sum()
        return self.scale * (total + sum(code(cells) for code in self.joint_codes))

    def _cluster_lengths(self, cells: jax.Array) -> jax.Array:
        """Code lengths (K,) of the clusters under ``terms``, from cells (groups, K, p)."""
        total = jnp.zeros((), cells.dtype)
        for term in self.terms:
            total = total + term.weight * term.cost(term.cells(cells[:, None])).sum((0, 1))
        return total

    def change(self, cells: jax.Array, old: jax.Array, new: jax.Array) -> jax.Array:
        """Change of ``scale * L`` if the statistics ``old`` of m clusters become ``new``.

        Both arrays have the shape (groups, m, p). ``cells`` (groups, K, p) are all cells before the
        change. The method is defined only if the target is `incremental`.
        """
        k, m = occupied(cells).sum(), new.shape[1]
        k_new = k + occupied(new).sum() - occupied(old).sum()
        lengths = self._cluster_lengths(jnp.concatenate([new, old], 1))
        total = self.sizes[k_new] - self.sizes[k] + (lengths[:m] - lengths[m:]).sum()
        total = total + sum(code.change(cells, old, new) for code in self.joint_codes)
        return self.scale * total

    def odds(
        self, state: Partition, a: jax.Array, b: jax.Array
    ) -> Callable[[jax.Array, jax.Array], Odds]:
        """Log odds for proposals that divide the samples of clusters ``a`` and ``b`` between them.

        The result is a function of samples (m, p) and their known groups (m,) that returns `Odds`:
        a function that computes the log odds (m,) that each sample belongs to ``b`` instead of
        ``a``. A proposal distribution is valid if it is the same in the states before and after a
        split or merge. By default, the log odds compare the code lengths with the sample in ``a``
        and in ``b``. A joint code may define other odds.
        """
        for code in self.joint_codes:
            if (joint_odds := code.odds(self, state, a, b)) is not None:
                return joint_odds

        def odds_of_samples(x, group):
            def log_odds(cells, taken, side):
                cost = self.joining(cells, x, group)
                return self.scale * (cost[0] - cost[1])

            return log_odds

        return odds_of_samples

    def joining(
        self, cells: jax.Array, x: jax.Array, group: jax.Array, weights: jax.Array | None = None
    ) -> jax.Array:
        """Increase (K, b) of the code length if samples (b, p) of groups (b,) join each cluster.

        The result excludes the change of A(k), and treats each sample separately. With ``weights``
        (G,), the result (K, G, b) has one entry for each of these scale weights.
        """
        total = jnp.zeros((), x.dtype)
        for term in self.terms:
            statistics = jnp.swapaxes(term.cells(cells[:, None])[:, 0], 1, 2)
            prepared = jax.vmap(term.cost.prepare_join)(statistics)
            if term.by_group and self.n_groups > 1:
                prepared = jax.tree.map(lambda a: jnp.moveaxis(a[group], 0, -1), prepared)
            else:
                prepared = jax.tree.map(lambda a: a[0][..., None], prepared)
            row: Any = term.row(x, group).T
            if weights is None:
                cost = term.cost.join_costs(prepared, row)
            elif (join := getattr(term.cost, "weighted_join_costs", None)) is not None:
                cost = join(prepared, row, weights)
            else:
                cost = term.cost.join_costs(prepared, row)[:, None]
            total = total + term.weight * cost
        return total


def occupied(cells: jax.Array) -> jax.Array:
    """Whether clusters (K,) hold a sample, from their cells (groups, K, p)."""
    return cells[..., -1].sum(0) > 0.5


class Partition(NamedTuple):
    """State of a chain over partitions.

    Attributes
    ----------
    labels : (n',) cluster of each sample
    cells : (groups, K, p) sums of statistics by known group and cluster
    length : code length ``scale * L``, without the description length of scale weights
    version : (n',) indices of the scale weights of the samples; None without scale weights
    """

    labels: jax.Array
    cells: jax.Array
    length: jax.Array
    version: jax.Array | None = None


_PART = 5  # clusters that are evaluated together; the number of slots is mostly a multiple of it


def map_slots(
    evaluate: Callable[[jax.Array], jax.Array], cells: jax.Array, some: jax.Array, *rest: int
) -> jax.Array:
    """Evaluate a function of cells (groups, K, p) at least for the slots in the mask ``some`` (K,).

    The result has the shape (K, *rest). Slots are evaluated a few at a time, up to the last one in
    ``some``; later slots have the value 0. Since clusters use the first slots, most empty slots are
    never evaluated.
    """
    n_slots = cells.shape[1]
    size = max(_PART, -(-n_slots // 8))
    if n_slots <= size:
        return evaluate(cells)

    def evaluate_part(part, result):
        first = jnp.minimum(part * size, n_slots - size)
        values = evaluate(jax.lax.dynamic_slice_in_dim(cells, first, size, 1))
        return jax.lax.dynamic_update_slice_in_dim(result, values, first, 0)

    count = n_slots - jnp.argmax(some[::-1])
    count = jnp.where(some.any(), -(-count // size), 0)
    return jax.lax.fori_loop(0, count, evaluate_part, jnp.zeros((n_slots, *rest), cells.dtype))


def make_target(
    terms: Sequence[CodeTerm],
    sizes: np.ndarray,
    x: np.ndarray,
    *,
    group: np.ndarray | None = None,
    partners: np.ndarray | None = None,
    scale: float = 1.0,
    sent: frozenset[str] = frozenset(),
) -> Target:
    """Make a distribution over partitions from code lengths, after a check that they are complete.

    Parameters
    ----------
    terms : tuple of CodeTerm
        Code lengths of the cells: of the features given the cells, of the parameters, and of the
        labels.
    sizes : array-like of shape (max_clusters + 1,)
        Function A(k) of the number of clusters, which is added to the code length.
    x : array-like of shape (n_samples, p)
        Statistics of the samples. A column of ones is appended, whose sums are numbers of samples.
    group : array-like of int of shape (n_samples,), optional
        Known groups, from 0.
    partners : array-like of int of shape (n_samples, q), optional
        Neighbours of each sample, from which half of the pairs for splits and merges are chosen.
    scale : float, default=1.0
        Factor of the code length; with a factor other than 1, the distribution is tempered.
    sent : frozenset of str, optional
        Parts ("data", "parameters" or "labels") that codes outside of ``terms`` describe; see
        ``sends`` of `nrprob.statistics.codes.CellCode`.

    Returns
    -------
    Target

    Raises
    ------
    ValueError
        If the terms are not a complete code. The minimum of an incomplete code always has the
        maximum number of clusters, and exp(-L) is not a posterior.
    """
    missing = {"data", "parameters", "labels"} - sent
    for term in terms:
        if isinstance(term, CodeTerm):
            missing -= getattr(term.cost, "sends", frozenset())
    plain = [t for t in terms if not isinstance(t, CodeTerm)]
    if plain or missing:
        what = {
            "data": "the rows given their cells, in nats of all counts (not of proportions)",
            "parameters": "the parameters of every cell (its parametric complexity, or a prior)",
            "labels": "the cells of the rows (n H(C) and a function of the number of clusters)",
        }
        if plain:  # costs with fitted parameters code the data only
            coded = set().union(*(t.cost.sends for t in terms if isinstance(t, CodeTerm)))
            missing = {"parameters", "labels"} - (coded & {"labels"})
        raise ValueError(
            "only complete code lengths can be sampled, since fitted costs always choose the most "
            f"clusters; missing is a code of {'; and of '.join(what[w] for w in sorted(missing))}; "
            "use the codes of nrprob.statistics.codes"
        )
    x = np.asarray(x, np.float64)
    n = x.shape[0]
    pad = bucket_size(n, 100_000) - n
    wide = np.pad(np.concatenate([x, np.ones((n, 1))], 1), ((0, pad), (0, 0)))
    sizes = np.asarray(sizes, np.float64)
    most = sizes.size - 1
    more = padded_count(most, wide.size) - most
    n_groups = 1 if group is None else int(np.max(group, initial=0)) + 1
    if n_groups > 1:
        n_groups = padded_count(n_groups, wide.size)
    group = np.zeros(n, np.int32) if group is None else np.asarray(group, np.int32)
    if partners is not None:
        partners = np.pad(np.asarray(partners, np.int32), ((0, pad), (0, 0)))
    target = Target(
        tuple(terms),
        np.pad(sizes, (0, more), constant_values=np.inf),
        wide,
        np.pad(group, (0, pad)),
        partners,
        np.float64(scale),
        n_groups,
        offset=np.float64(0),
    )
    return jax.tree.map(jnp.asarray, target)


def replace_two(
    target: Target, state: Partition, a: jax.Array, b: jax.Array, new_cells: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Replace the statistics of clusters ``a`` and ``b`` of a partition by ``new_cells``.

    ``new_cells`` has the shape (groups, 2, p). Returns the cells (groups, K, p) of all clusters
    after the replacement, and the code length of the new partition in nats.
    """
    slots = jnp.stack([a, b])
    cells = state.cells.at[:, slots].set(new_cells)
    if not target.incremental:
        return cells, target.length(cells)
    return cells, state.length + target.change(state.cells, state.cells[:, slots], new_cells)


def start(target: Target, labels: jax.Array) -> Partition:
    """State of a chain with labels (n',); the labels of padding are arbitrary."""
    cells = target.cells(labels)
    version = None if target.scales is None else target.scales.version
    return Partition(labels, cells, target.length(cells), version)


def pack_slots(state: Partition) -> Partition:
    """Renumber the clusters of a partition so that they occupy the first slots."""
    is_occupied = occupied(state.cells)
    new_slot = jnp.cumsum(is_occupied) - 1
    # The labels of padding may be empty slots.
    labels = jnp.maximum(new_slot[state.labels], 0).astype(state.labels.dtype)
    cells = state.cells[:, jnp.argsort(~is_occupied, stable=True)]
    return state._replace(labels=labels, cells=cells)


def sum_cells(target: Target, x: jax.Array, group: jax.Array, labels: jax.Array) -> jax.Array:
    """Sums of statistics (groups, K, p) of samples ``x`` (b, p), by known group and cluster.

    ``group`` (b,) and ``labels`` (b,) are the known groups and the clusters of the samples.
    """
    k = target.n_slots
    if target.n_groups == 1:  # a product is faster than a scatter
        return ((jnp.arange(k)[:, None] == labels).astype(x.dtype) @ x)[None]
    cells = jnp.zeros((target.n_groups * k, x.shape[1]), x.dtype)
    return cells.at[group * k + labels].add(x).reshape(target.n_groups, k, -1)
