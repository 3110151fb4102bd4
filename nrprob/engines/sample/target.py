"""Target distributions over partitions: complete code lengths, in arrays of few shapes.

The numbers of slots for clusters and known groups are rounded up by
`nrprob.statistics.rows.padded_count`, so that other numbers need no other programs. Surplus slots
stay empty: more clusters than the maximum have infinite cost, and groups without rows add 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.statistics.codes import CodeTerm
from nrprob.statistics.rows import bucket_size, padded_count
from nrprob.trees import node

_STATIC: dict[str, Any] = {"static": True}
# Log odds (m,) of the second of two clusters, from their cells (groups, 2, p), whether each of some
# rows (m,) is in these, and whether it is in the second.
Odds: TypeAlias = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@node
class Scales:
    """Versions of rows that differ in how much they count, one of which is in use.

    Attributes
    ----------
    weights : (G,) that statistics are multiplied by
    price : (n', G) nats of a version of a row, whatever its cluster
    version : (n',) of the rows, in use
    width : statistics that are multiplied, which come first
    """

    weights: jax.Array
    price: jax.Array
    version: jax.Array
    width: int = field(metadata=_STATIC)

    def of(self, x: jax.Array, version: jax.Array) -> jax.Array:
        """Rows (n, p) in versions (n,)."""
        return jnp.where(np.arange(x.shape[1]) < self.width, x * self.weights[version][:, None], x)


@node
class Target:
    """A distribution over partitions of rows; made by `make_target`.

    Attributes
    ----------
    terms : code lengths of cells
    sizes : (K + 1,) function A(k) of the number of clusters; infinite where there may not be k,
        and beyond the most clusters, for which K is rounded up
    x : (n', p) statistics of the rows, the last of them 1; zeros on padding, which comes last
    group : (n',) known group of the rows, of ``n_groups``, the last of which may have no rows
    partners : (n', q) rows to draw the second of a pair from, or None for any row
    scale : factor of the code length
    n_groups : known groups there is room for; 1 if nothing is known
    scales : versions of the rows ``x``, or None where these count as they are
    """

    terms: tuple[CodeTerm, ...]
    sizes: jax.Array
    x: jax.Array
    group: jax.Array
    partners: jax.Array | None
    scale: jax.Array
    n_groups: int = field(metadata=_STATIC)
    scales: Scales | None = None

    @property
    def n_slots(self) -> int:
        """Clusters that there is room for, K."""
        return self.sizes.shape[0] - 1

    @property
    def max_clusters(self) -> jax.Array:
        """Most clusters that there may be."""
        return jnp.isfinite(self.sizes[1:]).sum()

    def with_room(self, n_slots: int) -> Target:
        """The distribution of those partitions that have ``n_slots`` clusters at most."""
        return replace(self, sizes=self.sizes[: n_slots + 1])

    def cells(self, labels: jax.Array) -> jax.Array:
        """Statistics (groups, K, p) of the cells of labels (n',)."""
        x = self.x if self.scales is None else self.scales.of(self.x, self.scales.version)
        return sum_cells(self, x, self.group, labels)

    @property
    def additive(self) -> Target:
        """Distribution over the same partitions whose length is a sum over clusters.

        It may leave out what all partitions have in common. Distributions that are no such sums
        say None.
        """
        return self

    def length(self, cells: jax.Array) -> jax.Array:
        """``scale * L`` of cells (groups, K, p), in nats."""
        constant = sum(term.weight * term.constant for term in self.terms)
        return self.scale * (self.sizes[occupied(cells).sum()] + self._each(cells).sum() + constant)

    def _each(self, cells: jax.Array) -> jax.Array:
        """What every cluster adds to L, (K,), from cells (groups, K, p)."""
        total = jnp.zeros((), cells.dtype)
        for term in self.terms:
            total = total + term.weight * term.cost(term.cells(cells[:, None])).sum((0, 1))
        return total

    def change(self, cells: jax.Array, old: jax.Array, new: jax.Array) -> jax.Array:
        """By how much the length of cells grows as some (groups, m, p) become others."""
        k = occupied(cells).sum()
        more = k + occupied(new).sum() - occupied(old).sum()
        each = self._each(jnp.concatenate([new, old], 1))
        m = new.shape[1]
        return self.scale * (self.sizes[more] - self.sizes[k] + (each[:m] - each[m:]).sum())

    def odds(
        self, state: Partition, a: jax.Array, b: jax.Array
    ) -> Callable[[jax.Array, jax.Array], Odds]:
        """Log odds by which rows that leave clusters ``a`` and ``b`` join one of two new ones.

        Those of rows (m, p) of known groups (m,). Any law will do that is the same whether the two
        are one or apart; here it is that of the rows given the cells.
        """

        def of(x, group):
            def given(cells, taken, side):
                cost = self.joining(cells, x, group)
                return self.scale * (cost[0] - cost[1])

            return given

        return of

    def joining(
        self, cells: jax.Array, x: jax.Array, group: jax.Array, weights: jax.Array | None = None
    ) -> jax.Array:
        """What rows (b, p) of groups (b,) add to every one of cells (groups, K, p): (K, b).

        Without the change of A(k), and every row by itself. With ``weights`` (G,), what they add
        when they count so much: (K, G, b).
        """
        total = jnp.zeros((), x.dtype)
        for term in self.terms:
            own = jnp.swapaxes(term.cells(cells[:, None])[:, 0], 1, 2)
            prepared = jax.vmap(term.cost.prepare_join)(own)
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
    """Whether clusters (K,) hold a row, from their cells (groups, K, p)."""
    return cells[..., -1].sum(0) > 0.5


class Partition(NamedTuple):
    """State of a chain: ``labels`` (n',), their ``cells``, and the length ``scale * L``.

    And the ``version`` (n',) of the rows, where there are several, without its price.
    """

    labels: jax.Array
    cells: jax.Array
    length: jax.Array
    version: jax.Array | None = None


_PART = 5  # clusters that are looked at together; room is mostly for a multiple of them


def by_parts(
    of: Callable[[jax.Array], jax.Array], cells: jax.Array, some: jax.Array, *rest: int
) -> jax.Array:
    """Return what ``of`` says of cells (groups, K, p), (K, *rest), where ``some`` (K,) is true.

    Slots are looked at a few at a time, up to the last of these; the others have what was found on
    the way, or 0. As clusters take the first slots, most of a room for many are never looked at.
    """
    n_slots = cells.shape[1]
    size = max(_PART, -(-n_slots // 8))
    if n_slots <= size:
        return of(cells)

    def look(part, result):
        at = jnp.minimum(part * size, n_slots - size)
        own = of(jax.lax.dynamic_slice_in_dim(cells, at, size, 1))
        return jax.lax.dynamic_update_slice_in_dim(result, own, at, 0)

    count = n_slots - jnp.argmax(some[::-1])
    count = jnp.where(some.any(), -(-count // size), 0)
    return jax.lax.fori_loop(0, count, look, jnp.zeros((n_slots, *rest), cells.dtype))


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
    """Check that terms make a complete code, and lay out the rows.

    Parameters
    ----------
    terms : tuple of CodeTerm
        Code lengths of the cells: features given their cell, with parameters, and the labels.
    sizes : array-like of shape (max_clusters + 1,)
        Function of the number of clusters that is added.
    x : array-like of shape (n_samples, p)
        Statistics of the rows; a column of ones is added for their number.
    group : array-like of int of shape (n_samples,), optional
        Known groups, from 0.
    partners : array-like of int of shape (n_samples, q), optional
        Rows near each row. Half of the pairs for splits and merges are drawn from them.
    scale : float, default=1.0
        Factor of the code length; other than 1, the result is a tempered distribution.
    sent : frozenset of str, optional
        What is coded elsewhere; see `nrprob.statistics.codes.CellCode`.

    Returns
    -------
    Target

    Raises
    ------
    ValueError
        If the terms do not tell the receiver everything: their minimum would then always be at the
        most clusters, and their exponential no posterior.
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
        if plain:  # fitted costs charge for the data alone
            told = set().union(*(t.cost.sends for t in terms if isinstance(t, CodeTerm)))
            missing = {"parameters", "labels"} - (told & {"labels"})
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
    )
    return jax.tree.map(jnp.asarray, target)


def replaced(
    target: Target, state: Partition, a: jax.Array, b: jax.Array, two: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Cells of a state with others (groups, 2, p) in the places of clusters a and b; its length."""
    at = jnp.stack([a, b])
    cells = state.cells.at[:, at].set(two)
    if (plain := target.additive) is None:
        return cells, target.length(cells)
    return cells, state.length + plain.change(state.cells, state.cells[:, at], two)


def start(target: Target, labels: jax.Array) -> Partition:
    """State of given labels (n',); those of padding rows do not matter."""
    cells = target.cells(labels)
    version = None if target.scales is None else target.scales.version
    return Partition(labels, cells, target.length(cells), version)


def packed(state: Partition) -> Partition:
    """The same partition, whose clusters have the first slots."""
    here = occupied(state.cells)
    place = jnp.cumsum(here) - 1
    labels = jnp.maximum(place[state.labels], 0).astype(state.labels.dtype)  # of padding, any
    cells = state.cells[:, jnp.argsort(~here, stable=True)]
    return state._replace(labels=labels, cells=cells)


def sum_cells(target: Target, x: jax.Array, group: jax.Array, labels: jax.Array) -> jax.Array:
    """Cells (groups, K, p) of rows (b, p)."""
    k = target.n_slots
    if target.n_groups == 1:  # a product costs less than a scatter
        return ((jnp.arange(k)[:, None] == labels).astype(x.dtype) @ x)[None]
    cells = jnp.zeros((target.n_groups * k, x.shape[1]), x.dtype)
    return cells.at[group * k + labels].add(x).reshape(target.n_groups, k, -1)
