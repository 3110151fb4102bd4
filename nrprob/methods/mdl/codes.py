"""Description length of rows under pairwise constraints, as traceable array functions.

A *node* is a must-link component, represented by its mean, its mass (number of rows) and its inner
scatter. Nodes with cannot-links or soft pairs come first, in the order in which their code words
are sent; all others are independent of each other. A *word* encodes the cluster of a node, among
the clusters that no earlier node has across a retained cannot-link. The *weights* of the clusters
are probabilities; for every word, they are renormalised over the clusters that it may encode. Nodes
that retained soft must-links connect share a word.

Shapes: C nodes, the first B of which take part in pairs; D neighbours of a node (the largest
number, with padding); K clusters; d features. The labels z (C,) are the clusters of the nodes.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nrprob.codelength import exponential_length

TINY = 1e-30
APART, SOFT_APART, SOFT_LINK = 1, 2, 3  # types of links to neighbours; 0 is padding
_STEPS = 20  # minorise-maximise steps for the weights of words


class Nodes(NamedTuple):
    """Nodes of one problem; the first B of C take part in pairs.

    Attributes
    ----------
    mean : (C, d) means of the rows of a node
    mass : (C,) number of rows, 0 on padding
    within : (C,) sum of squared distances of the rows to their mean
    near : (B, D) neighbours, which are among the first B nodes
    kind : (B, D) types of the links to the neighbours: `APART`, `SOFT_APART` or `SOFT_LINK`; 0 on
        padding
    start : (B,) initial clusters that satisfy all cannot-links
    """

    mean: jax.Array
    mass: jax.Array
    within: jax.Array
    near: jax.Array
    kind: jax.Array
    start: jax.Array


class Settings(NamedTuple):
    """Settings of the search. All are traced, so new values need no compilation.

    Attributes
    ----------
    n_clusters, max_iter : number of clusters, and maximum number of iterations
    tol : smallest decrease of the length, in nats, that counts
    weight : factor w of the length w (log s + r / s) of a row with squared distance r from its
        cluster mean: d / 2 or 1
    low, high : bounds of the mean squared distance s
    shared : whether all clusters have one s
    has_start : whether `Nodes.start` has initial clusters, rather than arbitrary values
    n_pairs : (2,) numbers of soft must-links and of soft cannot-links
    constant : part of the length that is the same for all clusterings
    flag_complexity : (2,) parametric complexity of the flags of both types of soft pairs
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
    """Weights (K,), centres (K, d) and mean squared distances (K,) of the clusters."""

    weights: jax.Array
    centres: jax.Array
    scales: jax.Array


def squared_distances(x: jax.Array, centres: jax.Array) -> jax.Array:
    """Squared distances (C, K) of rows (C, d) from centres (K, d); rounding may give < 0."""
    inner = jnp.matmul(x, centres.T, precision=jax.lax.Precision.HIGHEST)
    return (x**2).sum(1)[:, None] - 2 * inner + (centres**2).sum(1)


def cluster_statistics(nodes: Nodes, z: jax.Array, k: int, old: jax.Array) -> tuple[jax.Array, ...]:
    """Masses (K,), centres (K, d) and scatters (K,) of the clusters of labels z (C,).

    Empty clusters retain their centre in ``old`` (K, d).
    """
    size = jax.ops.segment_sum(nodes.mass, z, k)
    total = jax.ops.segment_sum(nodes.mass[:, None] * nodes.mean, z, k)
    centres = jnp.where(size[:, None] > 0, total / jnp.where(size > 0, size, 1)[:, None], old)
    r = nodes.within + nodes.mass * ((nodes.mean - centres[z]) ** 2).sum(1)
    return size, centres, jax.ops.segment_sum(r, z, k)


def component_labels(link: jax.Array, near: jax.Array) -> jax.Array:
    """For every node, the smallest index (B,) of a node that links connect with it.

    ``near`` (B, D) are the neighbours, and ``link`` (B, D) states whether a link connects them.
    """
    b = near.shape[0]

    def propagate_labels(state):
        label, _ = state
        least = jnp.where(link, label[near], b).min(1)
        new = jnp.minimum(label, least)
        new = new[new]
        return new, (new != label).any()

    return jax.lax.while_loop(lambda s: s[1], propagate_labels, (jnp.arange(b), jnp.array(True)))[0]


class Coder:
    """Description lengths of clusterings z (C,) of one set of nodes into at most ``k`` clusters.

    Attributes
    ----------
    soft : whether there are soft pairs
    near : (B, D) neighbours of the nodes that take part in pairs
    before : (B, D) whether the neighbour's word precedes the node's word
    apart, soft_apart, soft_link : (B, D) whether the link to the neighbour is a hard cannot-link, a
        soft cannot-link or a soft must-link
    index : (B,) 0, ..., B - 1
    active : (K,) False for clusters that are padding
    """

    def __init__(self, nodes: Nodes, settings: Settings, k: int, soft: bool):
        self.nodes, self.settings, self.k, self.soft = nodes, settings, k, soft
        self.near = nodes.near
        self.apart, self.soft_apart = nodes.kind == APART, nodes.kind == SOFT_APART
        self.soft_link = nodes.kind == SOFT_LINK
        self.index = jnp.arange(len(nodes.near))
        self.before = nodes.near < self.index[:, None]
        self.active = jnp.arange(k) < settings.n_clusters

    def pair_clusters(self, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Clusters (B,) of the nodes with pairs, and mask (B, D) of neighbours in the same one."""
        inside = z[: self.index.size]
        return inside, inside[:, None] == inside[self.near]

    def _distances_length(self, size: jax.Array, scatter: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Length of all squared distances, and the mean squared distance s (K,) of every cluster.

        ``size`` and ``scatter`` (K,) are the masses and scatters of the clusters.
        """
        low, high, w = self.settings.low, self.settings.high, self.settings.weight
        n, total = size.sum(), scatter.sum()
        pooled = exponential_length(n, total, low, high, shape=w)
        separate = exponential_length(size, scatter, low, high, shape=w).sum()
        common = jnp.clip(total / n, low, high)
        scales = jnp.clip(scatter / jnp.where(size > 0, size, 1), low, high)
        scales = jnp.where(size > 0, scales, common)
        shared = self.settings.shared
        return jnp.where(shared, pooled, separate), jnp.where(shared, common, scales)

    def _words_length(
        self, z: jax.Array, old: jax.Array, keep_links: jax.Array, keep_apart: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Length of the words, and the weights (K,) of the clusters.

        Parameters
        ----------
        z : (C,) clusters of the nodes
        old : (K,) weights before the update
        keep_links, keep_apart : whether satisfied soft must-links, and satisfied soft cannot-links,
            are retained
        """
        near, k, b = self.near, self.k, self.index.size
        # Linked nodes share a word; the later word of a cannot-link excludes the earlier cluster.
        inside, same = self.pair_clusters(z)
        real = self.nodes.mass > 0
        label, apart = self.index, self.apart
        if self.soft:
            label = component_labels(self.soft_link & same & keep_links, near)
            apart |= self.soft_apart & ~same & keep_apart
        root_label, near_label = jnp.broadcast_to(label[:, None], near.shape), label[near]
        late, early = jnp.maximum(root_label, near_label), jnp.minimum(root_label, near_label)
        used = jnp.zeros((b, k), bool).at[late, inside[early]].max(apart & self.before)
        # Number of words per cluster, from sets of linked nodes and from free nodes.
        root = (label == self.index) & real[:b]
        w = old.dtype.type(1) * root
        free = jax.ops.segment_sum(real[b:].astype(w.dtype), z[b:], k)
        count = jax.ops.segment_sum(w, inside, k) + free
        open_ = (~used & self.active).astype(w.dtype)
        weights = _fit_weights(count, free.sum(), open_, w, old)
        length = (w * jnp.log(jnp.maximum(open_ @ weights, TINY))).sum()
        return length - (count * jnp.log(jnp.maximum(weights, TINY))).sum(), weights

    def _flags_length(self, n_kept: jax.Array) -> jax.Array:
        """Length of the flags that mark retained soft pairs.

        ``n_kept`` (..., 2) are the numbers of retained soft must-links and soft cannot-links.
        """
        complexity = self.settings.flag_complexity
        n, n_kept = self.settings.n_pairs.astype(complexity.dtype), n_kept.astype(complexity.dtype)

        def symbol_length(m):
            return -jnp.where(m > 0, m * jnp.log(jnp.maximum(m, 1) / jnp.maximum(n, 1)), 0)

        return jnp.where(
            n > 0, symbol_length(n_kept) + symbol_length(n - n_kept) + complexity, 0
        ).sum(-1)

    def count_satisfied(self, z: jax.Array) -> jax.Array:
        """Numbers (2,) of soft must-links and soft cannot-links that z satisfies."""
        same = self.pair_clusters(z)[1]
        satisfied = jnp.stack([same & self.soft_link, ~same & self.soft_apart])
        return (self.before & satisfied).sum((1, 2))

    def describe_labels(self, z: jax.Array, old: Code) -> tuple[jax.Array, Code]:
        """Description length in nats of the rows for labels z (C,), and the code.

        ``old`` is the previous code.
        """
        size, centres, scatter = cluster_statistics(self.nodes, z, self.k, old.centres)
        length, scales = self._distances_length(size, scatter)
        words_length = partial(self._words_length, z, old.weights)
        if self.soft:
            # For each type, retain all satisfied pairs or none: flags may cost more than the words
            # that a few pairs save.
            on = jnp.array([[1, 1], [1, 0], [0, 1], [0, 0]], bool)
            result, weights = jax.vmap(words_length)(on[:, 0], on[:, 1])
            result += self._flags_length(jnp.where(on, self.count_satisfied(z), 0))
            best = result.argmin()
            length, weights = length + result[best], weights[best]
        else:
            result, weights = words_length(True, True)
            length += result
        return length + self.settings.constant, Code(weights, centres, scales)


def _fit_weights(
    count: jax.Array, free: jax.Array, open_: jax.Array, root: jax.Array, w: jax.Array
) -> jax.Array:
    """Update the weights of the clusters; the length of the words does not increase.

    Minorise-maximise: the log of a sum is bounded by its tangent. This gives the update
    w_j = n_j / sum of 1 / a_i over the words i that may encode cluster j. Here n_j words encode
    cluster j, and a_i is the sum of the weights of the clusters that word i may encode.

    Parameters
    ----------
    count : (K,) numbers n_j of words
    free : number of words that may encode all clusters, of nodes without pairs
    open_ : (B, K) 1 if the word of a node with pairs may encode the cluster, else 0
    root : (B,) 1 if the node has a word, 0 if it shares the word of another node
    w : (K,) weights before the update
    """
    open_ = open_ * root[:, None]

    def mm_step(_, w):
        available = jnp.maximum(open_ @ w, TINY)
        w = count / jnp.maximum(free / w.sum() + (open_ / available[:, None]).sum(0), TINY)
        return w / jnp.maximum(w.sum(), TINY)

    return jax.lax.fori_loop(0, _STEPS, mm_step, jnp.maximum(w, 1e-6))
