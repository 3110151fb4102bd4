"""Compiled lengths of the code words of the first view under cannot-links and soft pairs.

`nrprob.methods.mdl.label_codes` defines code words and open clusters. A *unit* is a must-link
component, which has one label. C units are in K clusters, and B of the units occur in pairs; p is
the number of pairs of a type. Every function evaluates the labels (C,) of one clustering.
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
    """Code words of the labels of C must-link components under pairs, in compiled programs."""

    def length(self, z: jax.Array) -> jax.Array:
        """Total length of the code words of labels z (C,), in nats.

        The length is infinite if the labels violate a hard cannot-link.
        """
        ...

    def taken(self, z: jax.Array, unit: jax.Array) -> jax.Array:
        """Mask (K,) of the clusters that hard cannot-links exclude for one component.

        ``unit`` is the index of the component, and z (C,) are the labels of all components.
        """
        ...


def shortest_words(count: jax.Array, often: jax.Array, open_: jax.Array) -> jax.Array:
    """Minimise the total length of code words over the cluster probabilities, by Newton's method.

    The function returns the minimum in nats; `nrprob.methods.mdl.label_codes.optimal_words` is the
    equivalent in NumPy.

    Parameters
    ----------
    count : (K,) number of words that encode each of K clusters
    often : (U,) for each of U sets of clusters, number of words to which exactly this set is open
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
    """Code words of the labels of C units (must-link components) under e hard cannot-links.

    Attributes
    ----------
    early, late : (e,) units of every cannot-link; the word of ``early`` is sent first
    place : (C,) position of every unit among the B units in cannot-links; -1 for all other units
    n_bound : number B of units in cannot-links
    k : number K of clusters
    """

    early: jax.Array
    late: jax.Array
    place: jax.Array
    n_bound: int = field(metadata=_STATIC)
    k: int = field(metadata=_STATIC)

    def length(self, z: jax.Array) -> jax.Array:
        """Total length of the code words of labels z (C,); see `PairWords`."""
        open_ = jnp.ones((self.n_bound + 1, self.k), bool)
        open_ = open_.at[self.place[self.late], z[self.early]].set(False)
        free = jnp.asarray(z.size - self.n_bound, float)
        often = jnp.append(jnp.ones(self.n_bound), free)
        count = (z[:, None] == jnp.arange(self.k)).sum(0).astype(float)
        violated = (z[self.early] == z[self.late]).any()
        return jnp.where(violated, jnp.inf, shortest_words(count, often, open_))

    def taken(self, z: jax.Array, unit: jax.Array) -> jax.Array:
        """Mask (K,) of the clusters that cannot-links exclude for ``unit``; see `PairWords`."""
        across = jnp.where(self.early == unit, z[self.late], -1)
        across = jnp.where(self.late == unit, z[self.early], across)
        return (across[:, None] == jnp.arange(self.k)).any(0)


@node
class SoftPairWords:
    """Code words and flags of the labels of C units under soft must-links and cannot-links.

    Of each type of pairs, the code retains all satisfied pairs or none, whichever is shorter.

    Attributes
    ----------
    bound : (B,) units in pairs, in the order of transmission
    links, apart : (p, 2) positions in ``bound`` of the two units of every must-link, and of every
        cannot-link
    link_flags, apart_flags : (p + 1,) length of the flags of the must-links, and of the
        cannot-links, for every number of retained pairs
    k : number K of clusters
    """

    bound: jax.Array
    links: jax.Array
    apart: jax.Array
    link_flags: jax.Array
    apart_flags: jax.Array
    k: int = field(metadata=_STATIC)

    def length(self, z: jax.Array) -> jax.Array:
        """Total length of the code words and flags of labels z (C,); see `PairWords`."""
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
        """Mask (K,) without excluded clusters, since soft pairs exclude none; see `PairWords`."""
        return jnp.zeros(self.k, bool)

    def _words(
        self, z: jax.Array, free: jax.Array, link_on: jax.Array, apart_on: jax.Array
    ) -> jax.Array:
        """Total length of the code words, given the pairs that the code retains.

        Parameters
        ----------
        z : (B,) labels of the units in pairs
        free : (K,) numbers of units without pairs in every cluster
        link_on, apart_on : (p,) masks of the retained must-links, and of the retained cannot-links
        """
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
    """Convert code words of the search to code words in compiled programs; None stays None.

    `SoftWords` must have no hard cannot-links.
    """
    if words is None:
        return None
    if isinstance(words, SoftWords):
        bound, links, apart, *flags = map(
            jnp.asarray, (words.bound, words.links, words.apart, *words.flags)
        )
        return SoftPairWords(bound, links, apart, flags[0], flags[1], words.k)
    early, late, place = map(jnp.asarray, (words.early, words.late, words.place))
    return CannotLinkWords(early, late, place, words.bound.size, words.k)
