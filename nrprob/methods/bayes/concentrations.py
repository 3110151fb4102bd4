"""Gibbs updates of Dirichlet concentrations: of cluster sizes, and of classes.

A large concentration of the sizes makes clusters of similar size likely; with a small
concentration, sizes may differ much. Each cluster has separate class probabilities. A concentration
of the classes near 0 means that every cluster has one class, which suits data without wrong
classes. Data with wrong classes require a larger concentration.

Shapes and the function A(k) are defined in `nrprob.methods.bayes`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.target import JointCode, Target, occupied
from nrprob.methods.bayes.joint_target import JointTarget, JointUpdate
from nrprob.statistics.codes import LabelCode, count_tables, label_code
from nrprob.trees import node

SIZE_VALUES = np.logspace(-1, 2, 31)
CLASS_VALUES = np.asarray([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
INITIAL_SIZE, INITIAL_CLASS = 1.0, 0.1


@node
class ConcentrationUpdate(JointUpdate):
    """Gibbs update of a concentration, whose prior is uniform on a grid of G values.

    Attributes
    ----------
    which : index of the current concentration, in ``values``
    values : (G,) grid of concentrations
    counts : (G, ...) code lengths in nats for every concentration, indexed by the size of a
        cluster, or by the number of samples of one class in a cluster
    totals : (G, ...) code lengths in nats for every concentration, indexed by the number of
        clusters, or by the number of labelled samples in a cluster
    """

    which: jax.Array
    values: jax.Array
    counts: jax.Array
    totals: jax.Array

    def set_code(self, target: Target) -> Target:
        """Return the target whose prior has the current concentration."""
        raise NotImplementedError

    def lengths(self, target: Target, cells: jax.Array) -> jax.Array:
        """Code lengths (G,) in nats that depend on the concentration, for every grid value.

        ``cells`` (groups, K, p) are the statistics of a partition.
        """
        raise NotImplementedError

    def draw(self, target: JointTarget) -> Draw:
        """Current value of the concentration, by name."""
        return {self.names[0]: self.values[self.which]}

    def with_index(self, target: JointTarget, which: jax.Array) -> JointTarget:
        """Condition the target on the concentration with index ``which``."""
        update = replace(self, which=which)
        return target.with_update(update, partition=update.set_code(target.partition))

    def condition(self, target: JointTarget, draw: Draw) -> JointTarget:
        """Condition the target on the concentration of a draw."""
        return self.with_index(target, jnp.abs(self.values - draw[self.names[0]]).argmin())

    def resample(self, target: JointTarget, labels: jax.Array, key: jax.Array) -> JointTarget:
        """Sample the concentration given the partition, and condition the target on it."""
        lengths = self.lengths(target.partition, target.cells(labels))
        return self.with_index(target, jax.random.categorical(key, -lengths))

    def maximise(self, target: JointTarget, labels: jax.Array) -> JointTarget:
        """Condition the target on the most probable concentration, given a partition."""
        return self.with_index(
            target, self.lengths(target.partition, target.cells(labels)).argmin()
        )


@node
class SizeConcentrationUpdate(ConcentrationUpdate):
    """Gibbs update of the concentration of cluster sizes.

    Split-merge moves integrate the concentration out.
    """

    names: ClassVar[tuple[str, ...]] = ("concentration",)

    def set_code(self, target: Target) -> Target:
        """Return the target whose prior of the labels has the current concentration."""
        counts, totals = self.counts[self.which], self.totals[self.which]
        terms = (
            replace(term, cost=LabelCode(counts)) if isinstance(term.cost, LabelCode) else term
            for term in target.terms
        )
        return replace(target, terms=tuple(terms), sizes=totals)

    def cluster_lengths(self, cells: jax.Array) -> jax.Array:
        """Code lengths (G,) of the sizes of m clusters, for every concentration of the grid.

        The lengths are in nats, exclude A(k), and are computed from ``cells`` (groups, m, p).
        """
        return self.counts[:, cells[..., -1].sum(0).round().astype(int)].sum(1)

    def lengths(self, target: Target, cells: jax.Array) -> jax.Array:
        """Code lengths (G,) of cluster sizes in nats, for every concentration of the grid."""
        return self.cluster_lengths(cells) + self.totals[:, occupied(cells).sum()]

    def with_room(self, n_slots: int) -> SizeConcentrationUpdate:
        """Return the update for partitions of at most ``n_slots`` clusters."""
        return replace(self, totals=self.totals[:, : n_slots + 1])

    def split_merge_target(self, target: Target) -> Target:
        """Return the target with the concentration of cluster sizes integrated out.

        The concentration is resampled after the split-merge moves. The proposals of these moves
        must not depend on the current concentration. The proposals therefore use the prior of the
        labels under the initial concentration. A `SizeMixture` corrects the acceptance probability
        for the prior in which the concentration is integrated out.
        """
        index = np.abs(SIZE_VALUES - INITIAL_SIZE).argmin()
        fixed = replace(self, which=jnp.asarray(index, self.which.dtype))
        target = fixed.set_code(target)
        return replace(target, joint_codes=(*target.joint_codes, SizeMixture(fixed)))


@node
class SizeMixture(JointCode):
    """Correction that integrates the concentration out of the code of cluster sizes.

    The code length is the length of the sizes with the concentration integrated out, minus the
    length under one fixed concentration.

    Attributes
    ----------
    update : update whose current value is the fixed concentration, which the terms of the target
        have
    """

    incremental: ClassVar[bool] = True
    update: SizeConcentrationUpdate

    def _excess(self, lengths: jax.Array) -> jax.Array:
        over, fixed = jnp.log(len(lengths)) - jax.nn.logsumexp(-lengths), lengths[self.update.which]
        # With more clusters than allowed, all lengths are infinite.
        return jnp.where(jnp.isfinite(fixed), over - fixed, 0)

    def __call__(self, cells: jax.Array) -> jax.Array:
        """Code length in nats of the correction, from ``cells`` (groups, K, p)."""
        totals = self.update.totals[:, occupied(cells).sum()]
        return self._excess(self.update.cluster_lengths(cells) + totals)

    def change(self, cells: jax.Array, old: jax.Array, new: jax.Array) -> jax.Array:
        """Change of the code length in nats if cells ``old`` (groups, m, p) become ``new``."""
        update, k = self.update, occupied(cells).sum()
        k_new = k + occupied(new).sum() - occupied(old).sum()
        before = update.cluster_lengths(cells) + update.totals[:, k]
        after = before + update.cluster_lengths(new) - update.cluster_lengths(old)
        after = after + update.totals[:, k_new] - update.totals[:, k]
        return self._excess(after) - self._excess(before)


@node
class ClassConcentrationUpdate(ConcentrationUpdate):
    """Gibbs update of the concentration of classes.

    The code of the classes is the last term of the target.
    """

    names: ClassVar[tuple[str, ...]] = ("class_concentration",)

    def _class_code(self, target: Target, counts: jax.Array, totals: jax.Array) -> Any:
        code: Any = target.terms[-1].cost
        return replace(code, count_nats=counts, total_nats=totals)

    def set_code(self, target: Target) -> Target:
        """Return the target whose prior of the classes has the current concentration."""
        *terms, last = target.terms
        code = self._class_code(target, self.counts[self.which], self.totals[self.which])
        return replace(target, terms=(*terms, replace(last, cost=code)))

    def lengths(self, target: Target, cells: jax.Array) -> jax.Array:
        """Code lengths (G,) of the classes in nats, for every concentration of the grid."""

        def class_nats(tables):
            return self._class_code(target, *tables)(cells.sum(0)).sum()

        return jax.lax.map(class_nats, (self.counts, self.totals))


def make_size_concentration(
    n: int, max_clusters: int, n_slots: int, *, unordered: bool
) -> SizeConcentrationUpdate:
    """Make the Gibbs update of the concentration of cluster sizes of ``n`` samples.

    ``n_slots`` is the number of slots of the target, which is at least ``max_clusters``.
    """
    tables = []
    for value in SIZE_VALUES:
        code, sizes = label_code(n, max_clusters, concentration=value, unordered=unordered)
        sizes = np.pad(sizes, (0, n_slots - max_clusters), constant_values=np.inf)
        tables.append((code.count_nats, sizes))
    return SizeConcentrationUpdate(*_stack_tables(SIZE_VALUES, INITIAL_SIZE, tables))


def make_class_concentration(n: int, n_classes: int) -> ClassConcentrationUpdate:
    """Make the Gibbs update of the concentration of the classes of ``n`` samples."""
    tables = [count_tables(n_classes, n + 1, value) for value in CLASS_VALUES]
    return ClassConcentrationUpdate(*_stack_tables(CLASS_VALUES, INITIAL_CLASS, tables))


def _stack_tables(values: np.ndarray, initial: float, tables: Any) -> tuple[Any, ...]:
    counts, totals = (jnp.asarray(np.stack(table)) for table in zip(*tables, strict=True))
    which = jnp.asarray(np.abs(values - initial).argmin(), jnp.int32)
    return which, jnp.asarray(values), counts, totals
