"""Reassign single rows: hard labels, improved by exact differences of the objective.

- `reassign_sequentially` processes the rows one by one in random order, and moves each to the
  cluster of least cost. The sequential information bottleneck and Hartigan's k-means do the same.
- `reassign_batched` moves many rows at once, and moves fewer rows after a step that did not lower
  the objective. The differences of all rows are evaluated in one array operation.

Both functions may remove small clusters; see
`nrprob.engines.optimise.differences.remove_small_clusters`. F is the objective.

Shapes: B blocks of r rows, S restarts, K clusters, p statistics of a row. The argument ``fixed``
(B, r) has the labels of labelled rows, and -1 for all other rows. The argument ``active`` (K,) is
False for clusters that are padding.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.hash_rng import fold_in, hashed_uniform
from nrprob.engines.optimise.differences import (
    label_cells,
    move_differences,
    remove_small_clusters,
)
from nrprob.engines.optimise.iterate import empty_trace, iterate
from nrprob.engines.optimise.sequential_sweeps import make_sweep
from nrprob.statistics.costs import SeparableCost
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Term, Terms, membership_gradient, objective, one_hot


class ReassignmentResult(NamedTuple):
    """Final hard partitions, restarts on the first axis.

    Attributes
    ----------
    labels : (S, B, r) clusters of the rows
    trace : (S, TRACE) objective after every sweep or step, NaN beyond the last
    active : (S, TRACE) number of clusters after every sweep or step
    n_iter : (S,) number of sweeps or steps
    converged : (S,) whether the last sweep or step moved no row
    """

    labels: jax.Array
    trace: jax.Array
    active: jax.Array
    n_iter: jax.Array
    converged: jax.Array


TRACE = 1024  # length of the trace; if it is full, its last entry is the last sweep
_REMOVING, _ALL_ROWS, _SOME_ROWS = range(3)  # phases of `reassign_batched`


class _Partition(NamedTuple):
    """A hard partition of the rows.

    Attributes
    ----------
    labels : (B, r) clusters of the rows
    cells : (groups, 1, K, p) statistics of the cells
    value : objective
    existing : (K,) whether a cluster exists
    """

    labels: jax.Array
    cells: jax.Array
    value: jax.Array
    existing: jax.Array


class _MoveProposal(NamedTuple):
    """State of the phase that moves a random fraction of the rows.

    Attributes
    ----------
    fraction : fraction of the improving rows that move
    change, target : (B, r) change of F by the best move of every row, and the cluster that the row
        joins by this move
    outdated : whether ``change`` and ``target`` must be recomputed
    """

    fraction: jax.Array
    change: jax.Array
    target: jax.Array
    outdated: jax.Array


def balanced_random_labels(
    seed: jax.Array, rows: Rows, fixed: jax.Array | None, active: jax.Array
) -> jax.Array:
    """Random labels (B, r), for clusters of equal size; labelled rows keep their label.

    ``fixed`` (B, r) are the labels of labelled rows, -1 for all other rows. ``active`` (K,) is
    False for clusters that are padding.
    """
    order = hashed_uniform(fold_in(seed, rows.number), (), rows.mass.dtype)
    order = jnp.where(rows.mass > 0, order, 2.0).reshape(-1)
    rank = jnp.argsort(jnp.argsort(order))
    labels = (rank % active.sum()).astype(jnp.int32).reshape(rows.mass.shape)
    return labels if fixed is None else jnp.where(fixed >= 0, fixed, labels)


def assign_empty_rows(
    terms: Terms, rows: Rows, labels: jax.Array, n_clusters: int, fixed: jax.Array | None
) -> jax.Array:
    """Labels (S, B, r) after moving rows that have no counts to the largest cluster.

    A row has no counts if all its features are 0. Terms for counts do not depend on such rows, so
    reassignment leaves them at their initial label.
    """
    if any(_uses_mass(term) for term in terms):
        return labels
    features = jnp.arange(rows.x.n_statistics) < rows.x.n_statistics - 1
    ones = jnp.broadcast_to(features.astype(rows.mass.dtype), (rows.n_groups, 1, 1, features.size))
    empty = rows.adjoint(ones)[:, :, 0, 0] <= 0  # proportions of all other rows sum to 1
    if fixed is not None:
        empty = empty & (fixed < 0)
    mass = jnp.where(empty, 0, rows.mass)
    sizes = jax.lax.map(
        lambda restart: one_hot(restart[..., None], mass, n_clusters).sum((0, 1, 2)), labels
    )
    largest = sizes.argmax(-1).astype(labels.dtype)[:, None, None]
    return jnp.where(empty & (rows.mass > 0), largest, labels)


def _uses_mass(term: Term) -> bool:
    """Whether a term depends on rows whose features are all 0."""
    return not isinstance(term.cost, SeparableCost) or term.cost.uses_mass or term.view is not None


def _remove_clusters(terms, rows, labels, active, fixed, min_mass):
    """Call `remove_small_clusters`; without ``min_mass``, return labels and clusters unchanged."""
    if min_mass is None:
        return labels, active
    return remove_small_clusters(terms, rows, labels, active, fixed, min_mass)


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
    min_mass: jax.Array | None = None,
) -> ReassignmentResult:
    """Sweep over the rows in random order until a complete sweep moves no row.

    A sweep processes the rows one by one: remove the row from its cell, evaluate the change of F
    for all clusters, and add the row to the best one. A sweep costs O(n K p) for n rows. If
    costs are concave and homogeneous of degree 1, a row that is alone in its cluster stays there.
    Cell statistics are recomputed from the labels after every sweep, to limit rounding errors.
    ``labels`` (S, B, r) are initial labels. With ``min_mass``, clusters of smaller mass are removed
    before the first sweep and after every sweep.
    """
    free = rows.mass.reshape(-1) > 0
    if fixed is not None:
        free = free & (fixed.reshape(-1) < 0)
    mass, number = rows.mass.reshape(-1), rows.number.reshape(-1)
    shape = rows.mass.shape
    init_state, run_visits = make_sweep(terms, rows)

    def run_restart(start):
        labels, seed = start

        def sweep(state, count):
            labels, active, cells = state
            # Random order of the free rows; fixed rows and padding come last.
            priority = hashed_uniform(fold_in(fold_in(seed, count), number), (), mass.dtype)
            order = jnp.argsort(jnp.where(free, priority, 2.0))
            before = labels[order]

            def move_all():
                return run_visits(order, before, free.sum(), active, init_state(cells))[1]

            # Before the first sweep, small clusters are removed without processing rows.
            sweeping = min_mass is None or count >= 0
            after = (
                move_all() if min_mass is None else jax.lax.cond(sweeping, move_all, lambda: before)
            )
            at_rest = sweeping & (after == before).all()
            labels = labels.at[order].set(after, unique_indices=True).reshape(shape)
            # Remove small clusters.
            labels, new_active = _remove_clusters(terms, rows, labels, active, fixed, min_mass)
            at_rest = at_rest & (new_active == active).all()
            cells = label_cells(rows, labels, n_clusters)
            values = objective(terms, cells)[0], new_active.sum().astype(mass.dtype)
            values = jax.tree.map(lambda v: jnp.where(sweeping, v, jnp.nan), values)
            return (labels.reshape(-1), new_active, cells), at_rest, values

        trace = empty_trace(TRACE, mass.dtype)
        start = labels.reshape(-1), active, label_cells(rows, labels, n_clusters)
        count = 0 if min_mass is None else -1
        result = iterate(sweep, start, max_iter, count=count, trace=(trace, trace))
        return result.state[0].reshape(shape), *result.trace, result.n_iter, result.done

    seeds = fold_in(seed, jnp.arange(labels.shape[0]))
    return ReassignmentResult(*jax.lax.map(run_restart, (labels, seeds)))


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
    min_mass: jax.Array | None = None,
) -> ReassignmentResult:
    """Move many rows at once, and back off if the objective does not decrease.

    1. Move all rows to the cluster of least dF/dW while the exact objective decreases. W are the
       masses of the rows in the clusters. A step takes one matrix product.
    2. Compute the exact change of F for all moves of single rows. Move a random fraction f of the
       improving rows, including the row with the best move. If the objective decreases, f is
       doubled. Otherwise the moves are undone, f is divided by 4, and the same changes are used
       again.
    3. Stop when no move of a single row lowers F: this is a local optimum, like the result of
       `reassign_sequentially`.

    Small clusters are removed between these phases if ``min_mass`` is given. ``labels`` (S, B, r)
    are initial labels. A step costs O(n K p) for n rows of p statistics.
    """
    free = rows.mass > 0
    if fixed is not None:
        free = free & (fixed < 0)
    dtype = rows.mass.dtype
    eps = jnp.finfo(dtype).eps

    def evaluate(labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        cells = label_cells(rows, labels, n_clusters)
        return cells, objective(terms, cells)[0]

    def move_all_rows(labels, existing):
        w = one_hot(labels[..., None], rows.mass, n_clusters)
        cost = jnp.where(existing, membership_gradient(terms, rows, w)[:, :, 0], jnp.inf)
        return jnp.where(free, cost.argmin(-1).astype(labels.dtype), labels)

    def best_moves(labels, cells, existing):
        change = jnp.where(existing, move_differences(terms, rows, labels, cells), jnp.inf)
        # Changes below the rounding error of the cells' costs count as 0.
        sizes = [jnp.abs(t.weight) * jnp.abs(t.cost(t.cells(cells))).max() for t in terms]
        best_change = change.min(-1) + 2 * eps * functools.reduce(jnp.add, sizes)
        return best_change, change.argmin(-1).astype(labels.dtype)

    def run_restart(start):
        labels, seed = start

        def move_some_rows(current, proposal, count):
            labels, cells, _, existing = current
            change, target = jax.lax.cond(
                proposal.outdated,
                best_moves,
                lambda *_: (proposal.change, proposal.target),
                labels, cells, existing,
            )  # fmt: skip
            # A random subset of the improving rows moves, and always the best one.
            improving = free & (change < 0)
            draw = hashed_uniform(fold_in(fold_in(seed, count), rows.number), (), change.dtype)
            best = jnp.where(improving, change, jnp.inf).argmin()
            is_best = jnp.arange(change.size).reshape(change.shape) == best
            chosen = improving & ((draw < proposal.fraction) | is_best)
            new = jnp.where(chosen, target, labels)
            return new, proposal._replace(change=change, target=target), ~improving.any()

        def reduce_clusters(current):
            labels, _, _, existing = current
            new, remaining = _remove_clusters(terms, rows, labels, existing, fixed, min_mass)
            return jax.lax.cond(
                (remaining == existing).all(),
                lambda: current,
                lambda: _Partition(new, *evaluate(new), remaining),
            )

        # All phases share one body, so that the objective is compiled once.
        def take_step(state, count):
            current, phase, proposal = state
            moves_of_phase = (
                lambda: (current.labels, proposal, False),
                lambda: (move_all_rows(current.labels, current.existing), proposal, False),
                lambda: move_some_rows(current, proposal, count),
            )
            # Propose moves, evaluate them exactly, and keep them if F decreases.
            new, proposal, no_move = jax.lax.switch(phase, moves_of_phase)
            candidate = _Partition(new, *evaluate(new), current.existing)
            better = (candidate.value < current.value) | (phase == _REMOVING)
            before = proposal.fraction
            # If not even the best row improves F, its negative change is a rounding error.
            over = (phase == _SOME_ROWS) & (no_move | (~better & (before < 1e-6)))
            # Double the fraction after a success, divide it by 4 after a failure.
            fraction = jnp.where(better, jnp.minimum(1, 2 * before), before / 4)
            current = jax.tree.map(lambda a, b: jnp.where(better, a, b), candidate, current)
            changed = jnp.asarray(False)
            if min_mass is not None:
                reduced = jax.lax.cond(
                    phase == _ALL_ROWS, lambda: current, lambda: reduce_clusters(current)
                )
                changed = (reduced.existing != current.existing).any()
                current, over = reduced, over & ~changed
            # A removed cluster invalidates the proposal.
            reset = changed | (phase != _SOME_ROWS)
            proposal = proposal._replace(
                fraction=jnp.where(reset, 1.0, fraction), outdated=better | reset
            )
            values = current.value, current.existing.sum().astype(dtype)
            values = jax.tree.map(lambda v: jnp.where(phase == _REMOVING, jnp.nan, v), values)
            phase = jnp.where((phase == _ALL_ROWS) & better, _ALL_ROWS, phase + 1)
            return (current, jnp.minimum(phase, _SOME_ROWS), proposal), over, values

        no_change = jnp.zeros(labels.shape, dtype)
        cells, value = jax.tree.map(jnp.zeros_like, jax.eval_shape(evaluate, labels))
        current = _Partition(labels, cells, value, active)
        proposal = _MoveProposal(jnp.asarray(1.0, dtype), no_change, labels, jnp.asarray(True))
        trace = empty_trace(TRACE, dtype), empty_trace(TRACE, dtype)
        start = current, jnp.asarray(_REMOVING), proposal
        result = iterate(take_step, start, max_iter, count=-1, trace=trace)
        return result.state[0].labels, *result.trace, result.n_iter, result.done

    seeds = fold_in(seed, jnp.arange(labels.shape[0]))
    return ReassignmentResult(*jax.lax.map(run_restart, (labels, seeds)))
