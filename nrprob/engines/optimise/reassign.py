"""Reassign single rows: hard labels, improved by exact differences of the objective.

- `reassign_sequentially` visits the rows one by one in random order and moves each to the cluster
  of least cost, as the sequential information bottleneck and Hartigan's k-means do.
- `reassign_batched` moves many rows at once and backs off where the objective did not fall. It
  evaluates the same differences in one array operation.

Both may remove clusters; see `nrprob.engines.optimise.differences.ClusterRemoval`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.hash_rng import fold_in, hashed_uniform
from nrprob.engines.optimise.differences import (
    ClusterRemoval,
    label_cells,
    merge_best_pair,
    move_differences,
    remove_small_clusters,
)
from nrprob.engines.optimise.iterate import empty_trace, iterate
from nrprob.engines.optimise.sequential_sweeps import make_sweep
from nrprob.statistics.costs import SeparableCost
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Term, Terms, membership_gradient, objective, one_hot


class ReassignmentResult(NamedTuple):
    """What reassignment found, one restart after another on the first axis.

    Attributes
    ----------
    labels : (S, B, r)
    trace : (S, TRACE) objective after every sweep or step, NaN beyond the last
    active : (S, TRACE) the number of clusters that exist then, likewise
    n_iter : (S,) sweeps or steps
    converged : (S,) the last sweep or step moved nothing
    """

    labels: jax.Array
    trace: jax.Array
    active: jax.Array
    n_iter: jax.Array
    converged: jax.Array


TRACE = 1024  # sweeps whose objective is kept; of more, the last one takes the last place
_TIDYING, _SLIDING, _HOPPING = range(3)  # phases of `reassign_batched`


class _Reached(NamedTuple):
    """Labels (B, r), their cells and F, and which clusters (K,) exist."""

    labels: jax.Array
    cells: jax.Array
    value: jax.Array
    existing: jax.Array


class _Hopping(NamedTuple):
    """What moves of many rows go by.

    Attributes
    ----------
    fraction : () of the rows that would improve, that move
    gain, goal : (B, r) change of F by the best move of every row, and where it leads
    fresh : () whether these are to be computed anew
    """

    fraction: jax.Array
    gain: jax.Array
    goal: jax.Array
    fresh: jax.Array


def balanced_random_labels(
    seed: jax.Array, rows: Rows, fixed: jax.Array | None, active: jax.Array
) -> jax.Array:
    """Random labels (B, r) with clusters of equal size, but for the rows whose label is given."""
    order = hashed_uniform(fold_in(seed, rows.number), (), rows.mass.dtype)
    order = jnp.where(rows.mass > 0, order, 2.0).reshape(-1)
    rank = jnp.argsort(jnp.argsort(order))
    labels = (rank % active.sum()).astype(jnp.int32).reshape(rows.mass.shape)
    return labels if fixed is None else jnp.where(fixed >= 0, fixed, labels)


def assign_empty_rows(
    terms: Terms, rows: Rows, labels: jax.Array, n_clusters: int, fixed: jax.Array | None
) -> jax.Array:
    """Labels (S, B, r) in which rows without counts are in the largest cluster of the others.

    To terms that look at counts alone they say nothing: reassignment leaves them where they began.
    """
    if any(_uses_mass(term) for term in terms):
        return labels
    features = jnp.arange(rows.x.n_statistics) < rows.x.n_statistics - 1
    one = jnp.broadcast_to(features.astype(rows.mass.dtype), (rows.n_groups, 1, 1, features.size))
    empty = rows.adjoint(one)[:, :, 0, 0] <= 0  # proportions: other rows have a sum of 1
    if fixed is not None:
        empty = empty & (fixed < 0)
    mass = jnp.where(empty, 0, rows.mass)
    sizes = jax.lax.map(
        lambda one: one_hot(one[..., None], mass, n_clusters).sum((0, 1, 2)), labels
    )
    largest = sizes.argmax(-1).astype(labels.dtype)[:, None, None]
    return jnp.where(empty & (rows.mass > 0), largest, labels)


def _uses_mass(term: Term) -> bool:
    """Whether a row without any feature makes a difference to a term."""
    return not isinstance(term.cost, SeparableCost) or term.cost.uses_mass or term.view is not None


def _tidied(terms, rows, labels, active, fixed, giving):
    """Labels and clusters without those that are too small."""
    if giving is None:
        return labels, active
    return remove_small_clusters(terms, rows, labels, active, fixed, giving)


def _joined(terms, labels, cells, active, fixed, giving, rest):
    """Labels and clusters after two were joined, if nothing else moves; and whether two were."""
    if giving is None or fixed is not None:
        return labels, active, jnp.asarray(False)
    return jax.lax.cond(
        rest & giving.joining,
        lambda: merge_best_pair(terms, labels, cells, active),
        lambda: (labels, active, jnp.asarray(False)),
    )


def reassign_sequentially(
    terms: Terms,
    rows: Rows,
    labels: jax.Array,
    seed: jax.Array,
    *,
    max_iter: jax.Array,
    n_clusters: int,
    fixed: jax.Array | None = None,
    active: jax.Array,
    giving: ClusterRemoval | None = None,
) -> ReassignmentResult:
    """Sweep over the rows in random order until a whole sweep moves nothing.

    ``labels`` (S, B, r) are the starts. A row that is alone in its cluster stays there, since an
    empty cluster costs nothing; statistics are recomputed from the labels after every sweep.
    Clusters are given up before the first sweep and after every one.
    """
    free = rows.mass.reshape(-1) > 0
    if fixed is not None:
        free = free & (fixed.reshape(-1) < 0)
    mass, number = rows.mass.reshape(-1), rows.number.reshape(-1)
    shape = rows.mass.shape
    prepare, follow = make_sweep(terms, rows)

    def run(start):
        labels, seed = start

        def sweep(state, count):
            labels, active, cells = state
            priority = hashed_uniform(fold_in(fold_in(seed, count), number), (), mass.dtype)
            order = jnp.argsort(jnp.where(free, priority, 2.0))
            before = labels[order]

            def move():
                return follow(order, before, free.sum(), active, prepare(cells))[1]

            # Before the first sweep clusters are given up, and nothing else.
            sweeping = giving is None or count >= 0
            after = move() if giving is None else jax.lax.cond(sweeping, move, lambda: before)
            rest = sweeping & (after == before).all()
            labels = labels.at[order].set(after, unique_indices=True).reshape(shape)
            labels, new_active = _tidied(terms, rows, labels, active, fixed, giving)
            rest = rest & (new_active == active).all()
            cells = label_cells(rows, labels, n_clusters)
            labels, active, joined = _joined(terms, labels, cells, new_active, fixed, giving, rest)
            if giving is not None:
                cells = label_cells(rows, labels, n_clusters)
            values = objective(terms, cells)[0], active.sum().astype(mass.dtype)
            values = jax.tree.map(lambda v: jnp.where(sweeping, v, jnp.nan), values)
            return (labels.reshape(-1), active, cells), rest & ~joined, values

        room = empty_trace(TRACE, mass.dtype)
        start = labels.reshape(-1), active, label_cells(rows, labels, n_clusters)
        count = 0 if giving is None else -1
        result = iterate(sweep, start, max_iter, count=count, trace=(room, room))
        return result.state[0].reshape(shape), *result.trace, result.n_iter, result.done

    seeds = fold_in(seed, jnp.arange(labels.shape[0]))
    return ReassignmentResult(*jax.lax.map(run, (labels, seeds)))


def reassign_batched(
    terms: Terms,
    rows: Rows,
    labels: jax.Array,
    seed: jax.Array,
    *,
    max_iter: jax.Array,
    n_clusters: int,
    fixed: jax.Array | None = None,
    active: jax.Array,
    giving: ClusterRemoval | None = None,
) -> ReassignmentResult:
    """Move many rows at once, backing off where the objective does not fall.

    First every row goes to the cluster of least score while the exact objective falls (one matrix
    product a step). Then exact differences of all rows are computed; a random fraction f of the
    rows that would improve moves, and always the best one; if the objective did not fall, f is
    divided by 4 and the same differences are used again; if it did, f is doubled. It ends when no
    row would improve: the same kind of optimum as `reassign_sequentially` reaches. Small clusters
    are removed in between.
    """
    free = rows.mass > 0
    if fixed is not None:
        free = free & (fixed < 0)
    dtype = rows.mass.dtype
    eps = jnp.finfo(dtype).eps

    def evaluate(labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        cells = label_cells(rows, labels, n_clusters)
        return cells, objective(terms, cells)[0]

    def follow(labels, existing):
        w = one_hot(labels[..., None], rows.mass, n_clusters)
        cost = jnp.where(existing, membership_gradient(terms, rows, w)[:, :, 0], jnp.inf)
        return jnp.where(free, cost.argmin(-1).astype(labels.dtype), labels)

    def gains(labels, cells, existing):
        change = jnp.where(existing, move_differences(terms, rows, labels, cells), jnp.inf)
        # Below the rounding of the cells' costs a difference says nothing.
        sizes = [jnp.abs(t.weight) * jnp.abs(t.cost(t.cells(cells))).max() for t in terms]
        gain = change.min(-1) + 2 * eps * functools.reduce(jnp.add, sizes)
        return gain, change.argmin(-1).astype(labels.dtype)

    def run(start):
        labels, seed = start

        def hop(now, hopping, count):
            labels, cells, _, existing = now
            gain, goal = jax.lax.cond(
                hopping.fresh,
                gains,
                lambda *_: (hopping.gain, hopping.goal),
                labels, cells, existing,
            )  # fmt: skip
            improving = free & (gain < 0)
            draw = hashed_uniform(fold_in(fold_in(seed, count), rows.number), (), gain.dtype)
            best = jnp.where(improving, gain, jnp.inf).argmin()
            alone = jnp.arange(gain.size).reshape(gain.shape) == best
            chosen = improving & ((draw < hopping.fraction) | alone)
            new = jnp.where(chosen, goal, labels)
            return new, hopping._replace(gain=gain, goal=goal), ~improving.any()

        def fewer(now, rest):
            labels, cells, _, existing = now
            new, left = _tidied(terms, rows, labels, existing, fixed, giving)
            new, left, _ = _joined(
                terms, new, cells, left, fixed, giving, rest & (left == existing).all()
            )
            return jax.lax.cond(
                (left == existing).all(), lambda: now, lambda: _Reached(new, *evaluate(new), left)
            )

        # One body for all phases, so that there is but one evaluation in it to be compiled.
        def step(state, count):
            now, phase, hopping = state
            proposals = (
                lambda: (now.labels, hopping, False),
                lambda: (follow(now.labels, now.existing), hopping, False),
                lambda: hop(now, hopping, count),
            )
            new, hopping, nothing = jax.lax.switch(phase, proposals)
            tried = _Reached(new, *evaluate(new), now.existing)
            better = (tried.value < now.value) | (phase == _TIDYING)
            before = hopping.fraction
            # One row that does not pay although its difference says so: rounding, at the optimum.
            over = (phase == _HOPPING) & (nothing | (~better & (before < 1e-6)))
            fraction = jnp.where(better, jnp.minimum(1, 2 * before), before / 4)
            now = jax.tree.map(lambda a, b: jnp.where(better, a, b), tried, now)
            changed = jnp.asarray(False)
            if giving is not None:
                left = jax.lax.cond(phase == _SLIDING, lambda: now, lambda: fewer(now, over))
                changed = (left.existing != now.existing).any()
                now, over = left, over & ~changed
            anew = changed | (phase != _HOPPING)
            hopping = hopping._replace(fraction=jnp.where(anew, 1.0, fraction), fresh=better | anew)
            values = now.value, now.existing.sum().astype(dtype)
            values = jax.tree.map(lambda v: jnp.where(phase == _TIDYING, jnp.nan, v), values)
            phase = jnp.where((phase == _SLIDING) & better, _SLIDING, phase + 1)
            return (now, jnp.minimum(phase, _HOPPING), hopping), over, values

        none = jnp.zeros(labels.shape, dtype)
        cells, value = jax.tree.map(jnp.zeros_like, jax.eval_shape(evaluate, labels))
        now = _Reached(labels, cells, value, active)
        hopping = _Hopping(jnp.asarray(1.0, dtype), none, labels, jnp.asarray(True))
        room = empty_trace(TRACE, dtype), empty_trace(TRACE, dtype)
        start = now, jnp.asarray(_TIDYING), hopping
        result = iterate(step, start, max_iter, count=-1, trace=room)
        return result.state[0].labels, *result.trace, result.n_iter, result.done

    seeds = fold_in(seed, jnp.arange(labels.shape[0]))
    return ReassignmentResult(*jax.lax.map(run, (labels, seeds)))
