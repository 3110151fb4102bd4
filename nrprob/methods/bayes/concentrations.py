"""Gibbs updates of Dirichlet concentrations: of cluster sizes, and of classes.

A large concentration of the sizes makes clusters of similar size likely; a small one allows any
sizes. Each cluster has its own class probabilities. A concentration of the classes near 0 means
that every cluster has one class, as when labels are right and classes are clusters; wrong labels
require a larger one.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.target import Partition, Target, occupied
from nrprob.methods.bayes.hyperparameters import Prior
from nrprob.statistics.codes import LabelCode, count_tables, label_code
from nrprob.trees import node

OF_SIZES = np.logspace(-1, 2, 31)
OF_CLASSES = np.asarray([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
SIZES, CLASSES = "concentration", "class_concentration"
_USUAL = {SIZES: 1.0, CLASSES: 0.1}  # near which chains start
_STATIC: dict[str, Any] = {"static": True}


@node
class ConcentratedTarget:
    """A distribution over partitions; see `nrprob.methods.bayes.hyperparameters.PriorTarget`.

    Attributes
    ----------
    inner : the distribution given the concentration in use
    which : of the concentration in use, in ``values``
    values : (G,) that it may have, all as probable
    each, total : (G, ...) tables of the code of what it is of, under every one of them
    name : `SIZES` or `CLASSES`, whose code is the last of the terms
    at_any : whether lengths are those over all concentrations, which is for sizes
    """

    inner: Any
    which: jax.Array
    values: jax.Array
    each: jax.Array
    total: jax.Array
    name: str = field(metadata=_STATIC)
    at_any: bool = field(default=False, metadata=_STATIC)

    def __getattr__(self, name: str) -> Any:
        # Whatever is asked given the concentration; copies ask before there is an inner one.
        if name == "inner" or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _at(self, which: jax.Array) -> ConcentratedTarget:
        """The distribution given another concentration."""
        of = _of_sizes if self.name == SIZES else _of_classes
        plain = of(self.inner.plain, self.each[which], self.total[which])
        return replace(self, inner=_with_plain(self.inner, plain), which=which)

    def _lengths(self, cells: jax.Array) -> jax.Array:
        """Nats (G,) of the sizes or classes of cells under every concentration."""
        if self.name == SIZES:
            return self._of_each(cells) + self.total[:, occupied(cells).sum()]
        code = self.inner.plain.terms[-1].cost

        def of(tables):
            return replace(code, each=tables[0], total=tables[1])(cells.sum(0)).sum()

        return jax.lax.map(of, (self.each, self.total))

    def _of_each(self, cells: jax.Array) -> jax.Array:
        """What the sizes of cells (groups, m, p) add under every concentration, but for A(k)."""
        return self.each[:, cells[..., -1].sum(0).round().astype(int)].sum(1)

    # Splits and merges: under one concentration, sizes that are alike would stay so

    def for_jumps(self) -> ConcentratedTarget:
        """What splits and merges see: the concentration of sizes integrated out.

        It is drawn anew after them. They may not depend on the one in use, so that what is the law
        of proposals only has the usual one.
        """
        result = replace(self, inner=self.inner.for_jumps())
        if self.name != SIZES:
            return result
        usual = np.abs(OF_SIZES - _USUAL[SIZES]).argmin()
        return replace(result._at(jnp.asarray(usual, self.which.dtype)), at_any=True)

    def _over_all(self, lengths: jax.Array) -> jax.Array:
        """By how much a length over all concentrations is longer than under the one in use."""
        over, own = jnp.log(len(self.values)) - jax.nn.logsumexp(-lengths), lengths[self.which]
        return jnp.where(jnp.isfinite(own), over - own, 0)  # of too many clusters all are infinite

    def length(self, cells: jax.Array) -> jax.Array:
        """All nats of cells (groups, K, p)."""
        own = self.inner.length(cells)
        return own + self._over_all(self._lengths(cells)) if self.at_any else own

    @property
    def additive(self) -> Any:
        """As `nrprob.engines.sample.target.Target.additive`, for differences of lengths."""
        plain = self.inner.additive
        return plain if plain is None or not self.at_any else self

    def change(self, cells: jax.Array, old: jax.Array, new: jax.Array) -> jax.Array:
        """By how much the length of cells grows as some (groups, m, p) become others."""
        k, before = occupied(cells).sum(), self._lengths(cells)
        more = k + occupied(new).sum() - occupied(old).sum()
        after = before + self._of_each(new) - self._of_each(old)
        after = after + self.total[:, more] - self.total[:, k]
        grown = self.inner.additive.change(cells, old, new)
        return grown + self._over_all(after) - self._over_all(before)

    def at(self, prior: Prior) -> ConcentratedTarget:
        """The distribution given other numbers of the prior of features."""
        return replace(self, inner=self.inner.at(prior))

    def with_room(self, n_slots: int) -> ConcentratedTarget:
        """The distribution of those partitions that have ``n_slots`` clusters at most."""
        total = self.total[:, : n_slots + 1] if self.name == SIZES else self.total
        return replace(self, inner=self.inner.with_room(n_slots), total=total)

    def shortest(self, labels: jax.Array) -> jax.Array:
        """Length of a partition over all numbers, all else integrated out."""
        return self._at(self._lengths(self.inner.cells(labels)).argmin()).inner.shortest(labels)

    # What is drawn beside the partition

    @property
    def unknowns(self) -> tuple[str, ...]:
        """Names of what is drawn beside the partition."""
        return (*self.inner.unknowns, self.name)

    def drawn(self) -> Draw:
        """What is drawn beside the partition, by name."""
        return self.inner.drawn() | {self.name: self.values[self.which]}

    def visited(self, result: Partition) -> ConcentratedTarget:
        """The distribution given what visits to rows found beside the labels."""
        return replace(self, inner=self.inner.visited(result))

    def given(self, draw: Draw) -> ConcentratedTarget:
        """The distribution given what was drawn beside a partition."""
        which = jnp.abs(self.values - draw[self.name]).argmin()
        return replace(self, inner=self.inner.given(draw))._at(which)

    def renewed(self, labels: jax.Array, cells: jax.Array, key: jax.Array) -> ConcentratedTarget:
        """The distribution given all that is drawn beside a partition, drawn anew."""
        inner_key, own_key = jax.random.split(key)
        result = replace(self, inner=self.inner.renewed(labels, cells, inner_key))
        return result._at(jax.random.categorical(own_key, -self._lengths(cells)))


def _with_plain(target: Any, plain: Target) -> Any:
    """A distribution with another one of labels and classes."""
    if (inner := getattr(target, "inner", None)) is not None:
        return replace(target, inner=_with_plain(inner, plain))
    return replace(target, plain=plain)


def _of_sizes(plain: Target, each: jax.Array, total: jax.Array) -> Target:
    """Labels and classes under another code of the sizes."""
    terms = (
        replace(term, cost=LabelCode(each)) if isinstance(term.cost, LabelCode) else term
        for term in plain.terms
    )
    return replace(plain, terms=tuple(terms), sizes=total)


def _of_classes(plain: Target, each: jax.Array, total: jax.Array) -> Target:
    """Labels and classes under another code of the classes, which is the last of the terms."""
    *terms, last = plain.terms
    code: Any = last.cost
    last = replace(last, cost=replace(code, each=each, total=total))
    return replace(plain, terms=(*terms, last))


def _drawn(inner: Any, name: str, values: np.ndarray, tables: Any) -> Any:
    each, total = (jnp.asarray(np.stack(both)) for both in zip(*tables, strict=True))
    which = jnp.asarray(np.abs(values - _USUAL[name]).argmin(), jnp.int32)
    return ConcentratedTarget(inner, which, jnp.asarray(values), each, total, name)._at(which)


def sizes_drawn(inner: Any, n: int, max_clusters: int, *, unordered: bool) -> ConcentratedTarget:
    """Distribution over partitions of n rows and concentrations of sizes, from that given one."""
    room = inner.n_slots - max_clusters
    tables = []
    for value in OF_SIZES:
        code, sizes = label_code(n, max_clusters, concentration=value, unordered=unordered)
        tables.append((code.each, np.pad(sizes, (0, room), constant_values=np.inf)))
    return _drawn(inner, SIZES, OF_SIZES, tables)


def classes_drawn(inner: Any, n: int, n_classes: int) -> ConcentratedTarget:
    """Distribution over partitions of n rows and concentrations of classes, from that given one."""
    tables = [count_tables(n_classes, n + 1, value) for value in OF_CLASSES]
    return _drawn(inner, CLASSES, OF_CLASSES, tables)
