"""Exact lengths of the words of the first view under cannot-links and soft pairs, compiled.

`nrprob.methods.mdl.linked_words` defines words and open clusters; here, one labeling is evaluated
at a time. C units are in K clusters; B units occur in pairs.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy

from nrprob.methods.mdl.linked_words import LinkedWords
from nrprob.methods.mdl.soft_words import SoftWords
from nrprob.trees import node

_STEPS = 60  # maximum number of Newton steps for the weights of words
_STATIC: dict[str, Any] = {"static": True}


class PairWords(Protocol):
    """Words of the units of the first view under pairs."""

    def length(self, z: jax.Array) -> jax.Array:
        """Length of the words of labels (C,); infinite if a hard cannot-link is violated."""
        ...

    def taken(self, z: jax.Array, unit: jax.Array) -> jax.Array:
        """Clusters (K,) that hard cannot-links exclude for a unit, given labels (C,)."""
        ...


def shortest_words(count: jax.Array, often: jax.Array, open_: jax.Array) -> jax.Array:
    """Minimum length of words over the weights of the clusters, by Newton's method.

    Parameters
    ----------
    count : (K,) numbers of words that encode a cluster
    often : (U,) numbers of words, for U sets of clusters that are open to a word
    open_ : (U, K) whether a set includes a cluster
    """
    # A word with a single open cluster has length 0, and no influence on the weights.
    several = open_.sum(1) > 1
    count = count - jnp.where(several, 0, often) @ open_
    often, sets, named = jnp.where(several, often, 0), open_.astype(count.dtype), count > 0.5
    count = jnp.where(named, count, 0)

    def newton_step(state):
        w, _, step_count = state
        shares = w * sets
        shares = shares / jnp.maximum(shares.sum(1, keepdims=True), 1e-300)
        weighted = often[:, None] * shares
        expected = weighted.sum(0)
        gradient = jnp.where(named, expected - count, 0)
        diagonal = jnp.where(named, expected, 1) + 1e-10
        # Lengths do not change if all weights are multiplied: a matrix of ones fixes the factor.
        hessian = jnp.diag(diagonal) - shares.T @ weighted + 1
        step = -jnp.linalg.solve(hessian, gradient)
        step = jnp.clip(jnp.where(named, step, 0), -2, 2)
        w = w * jnp.exp(step)
        return w / jnp.maximum(w.sum(), 1e-300), -(gradient * step).sum(), step_count + 1

    def unfinished(state):
        return (state[1] >= 1e-10) & (state[2] < _STEPS)

    w = count / jnp.maximum(count.sum(), 1)
    w = jax.lax.while_loop(unfinished, newton_step, (w, jnp.asarray(jnp.inf), 0))[0]
    available = jnp.maximum(sets @ w, 1e-300)
    return (often * jnp.log(available)).sum() - xlogy(count, jnp.where(named, w, 1)).sum()


@node
class CannotLinkWords:
    """Words under hard cannot-links.

    Attributes
    ----------
    early, late : (e,) units of every cannot-link; the word of ``early`` is sent first
    place : (C,) position of every unit among the B units in cannot-links; -1 for all other units
    n_bound, k : numbers B and K
    """

    early: jax.Array
    late: jax.Array
    place: jax.Array
    n_bound: int = field(metadata=_STATIC)
    k: int = field(metadata=_STATIC)

    def length(self, z: jax.Array) -> jax.Array:
        """Length of the words of labels (C,); see `PairWords`."""
        open_ = jnp.ones((self.n_bound + 1, self.k), bool)
        open_ = open_.at[self.place[self.late], z[self.early]].set(False)
        free = jnp.asarray(z.size - self.n_bound, float)
        often = jnp.append(jnp.ones(self.n_bound), free)
        count = (z[:, None] == jnp.arange(self.k)).sum(0).astype(float)
        violated = (z[self.early] == z[self.late]).any()
        return jnp.where(violated, jnp.inf, shortest_words(count, often, open_))

    def taken(self, z: jax.Array, unit: jax.Array) -> jax.Array:
        """Clusters (K,) that cannot-links exclude for a unit; see `PairWords`."""
        across = jnp.where(self.early == unit, z[self.late], -1)
        across = jnp.where(self.late == unit, z[self.early], across)
        return (across[:, None] == jnp.arange(self.k)).any(0)


@node
class SoftPairWords:
    """Words and flags under soft pairs: of each type, all satisfied pairs are retained, or none.

    Attributes
    ----------
    bound : (B,) units in pairs, in the order of transmission
    links, apart : (p, 2) positions in ``bound`` of the units of must-links and of cannot-links
    link_flags, apart_flags : lengths of the flags of a type, by the number of retained pairs
    k : number K of clusters
    """

    bound: jax.Array
    links: jax.Array
    apart: jax.Array
    link_flags: jax.Array
    apart_flags: jax.Array
    k: int = field(metadata=_STATIC)

    def length(self, z: jax.Array) -> jax.Array:
        """Length of the words and flags of labels (C,); see `PairWords`."""
        count = (z[:, None] == jnp.arange(self.k)).sum(0)
        z = z[self.bound]
        free = (count - (z[:, None] == jnp.arange(self.k)).sum(0)).astype(float)
        same = z[self.links[:, 0]] == z[self.links[:, 1]]
        other = z[self.apart[:, 0]] != z[self.apart[:, 1]]

        def chosen_length(choice):
            link_on, apart_on = same & choice[0], other & choice[1]
            flags = self.link_flags[link_on.sum()] + self.apart_flags[apart_on.sum()]
            return flags + self._words(z, free, link_on, apart_on)

        choices = np.array([[i, j] for i in (True, False) for j in (True, False)])
        return jax.lax.map(chosen_length, jnp.asarray(choices)).min()

    def taken(self, z: jax.Array, unit: jax.Array) -> jax.Array:
        """No cluster (K,) is excluded; see `PairWords`."""
        return jnp.zeros(self.k, bool)

    def _words(
        self, z: jax.Array, free: jax.Array, link_on: jax.Array, apart_on: jax.Array
    ) -> jax.Array:
        """Length of the words for masks of retained pairs."""
        b = z.size

        # Linked units share the first word: propagate the smallest index.
        def propagate_roots(state):
            root, _ = state
            low = jnp.where(link_on, root[self.links].min(1), b)
            new = root.at[self.links].min(low[:, None])
            return new, (new != root).any()

        begin = jnp.arange(b), jnp.asarray(True)
        root = jax.lax.while_loop(lambda state: state[1], propagate_roots, begin)[0]
        is_root = root == jnp.arange(b)
        count = free + (is_root[:, None] & (z[:, None] == jnp.arange(self.k))).sum(0)
        # The later word of a retained cannot-link excludes the cluster of the earlier word.
        ends = root[self.apart]
        early, late = ends.min(1), ends.max(1)
        taken = jnp.zeros((b + 1, self.k), bool)
        taken = taken.at[jnp.where(apart_on, late, b + 1), z[early]].set(True, mode="drop")
        often = jnp.append(is_root.astype(float), free.sum())
        return shortest_words(count, often, ~taken)


def compile_words(words: LinkedWords | SoftWords | None) -> PairWords | None:
    """Words as arrays of compiled programs."""
    if words is None:
        return None
    if isinstance(words, SoftWords):
        bound, links, apart, *flags = map(
            jnp.asarray, (words.bound, words.links, words.apart, *words.flags)
        )
        return SoftPairWords(bound, links, apart, flags[0], flags[1], words.k)
    early, late, place = map(jnp.asarray, (words.early, words.late, words.place))
    return CannotLinkWords(early, late, place, words.bound.size, words.k)
