"""Rows under pairwise constraints as arrays, and the length of their description, traceable.

Rows that must go together are one *node*, of which only the mean, the mass and the inner scatter
matter. Nodes that take part in a cannot-link or in a pair that may be ignored come first, in the
order in which their words are sent; all others are independent of each other. A word names the
cluster of a node, among those that no earlier node across a kept cannot-link has.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nrprob.codelength import exponential_length

TINY = 1e-30
APART, SOFT_APART, SOFT_LINK = 1, 2, 3  # kinds of neighbours; 0 is padding
_STEPS = 20  # of fitting the weights of words


class Nodes(NamedTuple):
    """Nodes of one problem; the first B of C take part in pairs.

    Attributes
    ----------
    mean : (C, d)
    mass : (C,) number of rows, 0 on padding
    within : (C,) sum of squared distances of the rows to their mean
    near : (B, D) neighbours among the first B
    kind : (B, D) kinds of the neighbours
    start : (B,) clusters that keep all cannot-links
    """

    mean: jax.Array
    mass: jax.Array
    within: jax.Array
    near: jax.Array
    kind: jax.Array
    start: jax.Array


class Settings(NamedTuple):
    """Numbers that do not recompile.

    Attributes
    ----------
    n_clusters, max_iter : int
    tol : least fall of the length, in nats, that counts
    weight : of (log s + r / s) of a row: d / 2 or 1
    low, high : bounds of the mean squared distance s
    shared : whether all clusters have one s
    has_start : whether `Nodes.start` is there
    n_pairs : (2,) numbers of links, and of pairs apart, that may be ignored
    constant : part of the length that never changes
    flag_complexity : (2,) parametric complexity of the flags of these two kinds of pairs
    """

    n_clusters: jax.Array
    max_iter: jax.Array
    tol: jax.Array
    weight: jax.Array
    low: jax.Array
    high: jax.Array
    shared: jax.Array
    has_start: jax.Array
    n_pairs: jax.Array
    constant: jax.Array
    flag_complexity: jax.Array


class Code(NamedTuple):
    """Weights (K,) of the words, centres (K, d) and mean squared distances (K,) of a clustering."""

    weights: jax.Array
    centres: jax.Array
    scales: jax.Array


def squares(x: jax.Array, centres: jax.Array) -> jax.Array:
    """Squared distances (C, K) of rows (C, d) from centres (K, d), up to rounding below 0."""
    inner = jnp.matmul(x, centres.T, precision=jax.lax.Precision.HIGHEST)
    return (x**2).sum(1)[:, None] - 2 * inner + (centres**2).sum(1)


def statistics(nodes: Nodes, z: jax.Array, k: int, old: jax.Array) -> tuple[jax.Array, ...]:
    """Masses (K,), centres (K, d) and scatters (K,) of clusters; empty ones keep their centre."""
    size = jax.ops.segment_sum(nodes.mass, z, k)
    total = jax.ops.segment_sum(nodes.mass[:, None] * nodes.mean, z, k)
    centres = jnp.where(size[:, None] > 0, total / jnp.where(size > 0, size, 1)[:, None], old)
    r = nodes.within + nodes.mass * ((nodes.mean - centres[z]) ** 2).sum(1)
    return size, centres, jax.ops.segment_sum(r, z, k)


def components(link: jax.Array, near: jax.Array) -> jax.Array:
    """Smallest member (B,) of every node's component, under the kept links (B, D)."""
    b = near.shape[0]

    def spread(state):
        label, _ = state
        least = jnp.where(link, label[near], b).min(1)
        new = jnp.minimum(label, least)
        new = new[new]
        return new, (new != label).any()

    return jax.lax.while_loop(lambda s: s[1], spread, (jnp.arange(b), jnp.array(True)))[0]


class Coder:
    """Lengths of clusterings z (C,) of one set of nodes, into as many as ``k`` clusters.

    Attributes
    ----------
    soft : whether some pairs may be ignored
    near : (B, D) neighbours of the nodes that take part in pairs
    before : (B, D) whether the neighbour's word is sent earlier
    apart, soft_apart, soft_link : (B, D) whether the neighbour is of that kind
    index, active : (B,) the nodes, and (K,) whether a cluster exists
    """

    def __init__(self, nodes: Nodes, settings: Settings, k: int, soft: bool):
        self.nodes, self.settings, self.k, self.soft = nodes, settings, k, soft
        self.near = nodes.near
        self.apart, self.soft_apart = nodes.kind == APART, nodes.kind == SOFT_APART
        self.soft_link = nodes.kind == SOFT_LINK
        self.index = jnp.arange(len(nodes.near))
        self.before = nodes.near < self.index[:, None]
        self.active = jnp.arange(k) < settings.n_clusters

    def inside(self, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Clusters (B,) of the nodes in pairs, and which neighbours (B, D) are in the same."""
        inside = z[: self.index.size]
        return inside, inside[:, None] == inside[self.near]

    def _distances(self, size: jax.Array, scatter: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Length of all distances, and the scale (K,) under which every cluster's are sent."""
        low, high, w = self.settings.low, self.settings.high, self.settings.weight
        n, total = size.sum(), scatter.sum()
        pooled = exponential_length(n, total, low, high, shape=w)
        each = exponential_length(size, scatter, low, high, shape=w).sum()
        one = jnp.clip(total / n, low, high)
        own = jnp.clip(scatter / jnp.where(size > 0, size, 1), low, high)
        own = jnp.where(size > 0, own, one)
        shared = self.settings.shared
        return jnp.where(shared, pooled, each), jnp.where(shared, one, own)

    def _words(
        self, z: jax.Array, old: jax.Array, keep_links: jax.Array, keep_apart: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Length of the words if those pairs that z satisfies are kept, and their weights."""
        near, k, b = self.near, self.k, self.index.size
        inside, same = self.inside(z)
        real = self.nodes.mass > 0
        label, apart = self.index, self.apart
        if self.soft:
            label = components(self.soft_link & same & keep_links, near)
            apart |= self.soft_apart & ~same & keep_apart
        one, two = jnp.broadcast_to(label[:, None], near.shape), label[near]
        late, early = jnp.maximum(one, two), jnp.minimum(one, two)
        used = jnp.zeros((b, k), bool).at[late, inside[early]].max(apart & self.before)
        root = (label == self.index) & real[:b]
        w = old.dtype.type(1) * root
        free = jax.ops.segment_sum(real[b:].astype(w.dtype), z[b:], k)
        count = jax.ops.segment_sum(w, inside, k) + free
        open_ = (~used & self.active).astype(w.dtype)
        weights = _fit_weights(count, free.sum(), open_, w, old)
        length = (w * jnp.log(jnp.maximum(open_ @ weights, TINY))).sum()
        return length - (count * jnp.log(jnp.maximum(weights, TINY))).sum(), weights

    def _flags(self, kept: jax.Array) -> jax.Array:
        """Length of saying of each pair of the two kinds whether it is among the (..., 2) kept."""
        complexity = self.settings.flag_complexity
        n, kept = self.settings.n_pairs.astype(complexity.dtype), kept.astype(complexity.dtype)

        def part(m):
            return -jnp.where(m > 0, m * jnp.log(jnp.maximum(m, 1) / jnp.maximum(n, 1)), 0)

        return jnp.where(n > 0, part(kept) + part(n - kept) + complexity, 0).sum(-1)

    def satisfied(self, z: jax.Array) -> jax.Array:
        """Numbers (2,) of links, and of pairs apart, that may be ignored, and that z satisfies."""
        same = self.inside(z)[1]
        kept = jnp.stack([same & self.soft_link, ~same & self.soft_apart])
        return (self.before & kept).sum((1, 2))

    def description(self, z: jax.Array, old: Code) -> tuple[jax.Array, Code]:
        """Length in nats of the whole data set under clusters z, and the code that has it."""
        size, centres, scatter = statistics(self.nodes, z, self.k, old.centres)
        length, scales = self._distances(size, scatter)
        words = partial(self._words, z, old.weights)
        if self.soft:
            # Of each kind, keep what is satisfied or nothing: a few kept pairs may cost more flags
            # than they save words.
            on = jnp.array([[1, 1], [1, 0], [0, 1], [0, 0]], bool)
            result, weights = jax.vmap(words)(on[:, 0], on[:, 1])
            result += self._flags(jnp.where(on, self.satisfied(z), 0))
            best = result.argmin()
            length, weights = length + result[best], weights[best]
        else:
            result, weights = words(True, True)
            length += result
        return length + self.settings.constant, Code(weights, centres, scales)


def _fit_weights(
    count: jax.Array, free: jax.Array, open_: jax.Array, root: jax.Array, w: jax.Array
) -> jax.Array:
    """Improve the weights w (K,) of renormalised words, which never lengthens the words.

    Minorise-maximise: ln of a sum is below its tangent, which gives
    w_j = n_j / sum over the words that could have named j of 1 / (their available weight).
    """
    open_ = open_ * root[:, None]

    def step(_, w):
        available = jnp.maximum(open_ @ w, TINY)
        w = count / jnp.maximum(free / w.sum() + (open_ / available[:, None]).sum(0), TINY)
        return w / jnp.maximum(w.sum(), TINY)

    return jax.lax.fori_loop(0, _STEPS, step, jnp.maximum(w, 1e-6))
