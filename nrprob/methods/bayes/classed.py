"""Classes that clusters keep to more or less: how much is drawn beside the partition.

The classes of the rows of a cluster are drawn from probabilities of its own, and these from a
symmetric Dirichlet prior. Near 0 its concentration says that every cluster is of one class, as
where labels are right and classes are clusters; where some are wrong, it has to be larger.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.chains import Draw
from nrprob.engines.target import Partition
from nrprob.methods.bayes.prior import Prior
from nrprob.statistics.codes import count_tables
from nrprob.trees import node

CONCENTRATIONS = np.asarray([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])


@node
class ClassedTarget:
    """A distribution over partitions; see `nrprob.methods.bayes.prior.PriorTarget`.

    Attributes
    ----------
    inner : the distribution given the concentration in use; its last term is that of the classes
    which : of the concentration in use, in ``values``
    values : (G,) that it may have, all as probable
    each, total : (G, largest count + 1) tables of the code of the classes under every one of them
    """

    inner: Any
    which: jax.Array
    values: jax.Array
    each: jax.Array
    total: jax.Array

    def __getattr__(self, name: str) -> Any:
        # Whatever is asked given the concentration; copies ask before there is an inner one.
        if name == "inner" or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _at(self, which: jax.Array) -> ClassedTarget:
        """The distribution given another concentration."""
        code = replace(self._code, each=self.each[which], total=self.total[which])
        return replace(self, inner=_with_classes(self.inner, code), which=which)

    @property
    def _code(self) -> Any:
        return self.inner.plain.terms[-1].cost

    def _lengths(self, cells: jax.Array) -> jax.Array:
        """Nats (G,) of the classes of cells under every concentration."""

        def of(tables):
            return replace(self._code, each=tables[0], total=tables[1])(cells.sum(0)).sum()

        return jax.lax.map(of, (self.each, self.total))

    def at(self, prior: Prior) -> ClassedTarget:
        """The distribution given other numbers of the prior of features."""
        return replace(self, inner=self.inner.at(prior))

    def with_room(self, n_slots: int) -> ClassedTarget:
        """The distribution of those partitions that have ``n_slots`` clusters at most."""
        return replace(self, inner=self.inner.with_room(n_slots))

    def shortest(self, labels: jax.Array) -> jax.Array:
        """Length of a partition over all numbers, all else integrated out."""
        return self._at(self._lengths(self.inner.cells(labels)).argmin()).inner.shortest(labels)

    # What is drawn beside the partition

    @property
    def unknowns(self) -> tuple[str, ...]:
        """Names of what is drawn beside the partition."""
        return (*self.inner.unknowns, "class_concentration")

    def drawn(self) -> Draw:
        """What is drawn beside the partition, by name."""
        return self.inner.drawn() | {"class_concentration": self.values[self.which]}

    def visited(self, found: Partition) -> ClassedTarget:
        """The distribution given what visits to rows found beside the labels."""
        return replace(self, inner=self.inner.visited(found))

    def given(self, draw: Draw) -> ClassedTarget:
        """The distribution given what was drawn beside a partition."""
        which = jnp.abs(self.values - draw["class_concentration"]).argmin()
        return replace(self, inner=self.inner.given(draw))._at(which)

    def renewed(self, labels: jax.Array, cells: jax.Array, key: jax.Array) -> ClassedTarget:
        """The distribution given all that is drawn beside a partition, drawn anew."""
        inner_key, own_key = jax.random.split(key)
        found = replace(self, inner=self.inner.renewed(labels, cells, inner_key))
        return found._at(jax.random.categorical(own_key, -self._lengths(cells)))


def _with_classes(target: Any, code: Any) -> Any:
    """A distribution with another code of the classes, which is the last of its terms."""
    if (inner := getattr(target, "inner", None)) is not None:
        return replace(target, inner=_with_classes(inner, code))
    *terms, last = target.plain.terms
    plain = replace(target.plain, terms=(*terms, replace(last, cost=code)))
    return replace(target, plain=plain)


def classed(inner: Any, n_classes: int, n: int) -> ClassedTarget:
    """Distribution over partitions of n rows and concentrations, from that given one of these."""
    tables = [count_tables(n_classes, n + 1, value) for value in CONCENTRATIONS]
    each, total = (np.stack(both) for both in zip(*tables, strict=True))
    parts = map(jnp.asarray, (CONCENTRATIONS, each, total))
    which = jnp.int32(len(CONCENTRATIONS) // 2)
    return ClassedTarget(inner, which, *parts)._at(which)
