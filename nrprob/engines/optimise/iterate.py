"""Iterate an update until convergence or a maximum number of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class IterationResult(NamedTuple):
    """Result of `iterate`.

    Attributes
    ----------
    state : state after the last step
    done : whether the state has converged, as returned by the step: a boolean or an array
    n_iter : number of steps
    trace : values recorded by the steps, in their order
    """

    state: Any
    done: jax.Array
    n_iter: jax.Array
    trace: Any


def empty_trace(capacity: int, dtype: Any, *shape: int) -> jax.Array:
    """Array (capacity, *shape) of NaN for a trace; entries beyond the last step stay NaN."""
    return jnp.full((capacity, *shape), jnp.nan, dtype)


def record_values(trace: Any, values: Any, count: Any) -> Any:
    """Write ``values`` into the trace at position ``count``; at its last position if it is full.

    Trace and values are arrays, or trees of arrays with the same structure.
    """

    def record_array(rows, value):
        position = jnp.minimum(count, len(rows) - 1)
        value = jnp.asarray(value, rows.dtype)
        return jax.lax.dynamic_update_index_in_dim(rows, value, position, 0)

    return jax.tree.map(record_array, trace, values)


def iterate(
    step: Callable[[Any, jax.Array], tuple[Any, Any, Any]],
    state: Any,
    max_iter: Any,
    *,
    done: Any = False,
    count: Any = 0,
    trace: Any = (),
) -> IterationResult:
    """Take steps until all elements of ``done`` are true.

    Under `jax.vmap`, loops that have converged keep their state until all loops have converged.

    Parameters
    ----------
    step : ``(state, count) -> (state, done, values)`` with the number ``count`` of earlier steps;
        ``done`` is a boolean or an array of booleans. ``values`` go to the trace; they are () if
        the step records nothing
    state : initial state
    max_iter : maximum number of steps
    done : whether the initial state has converged, in the shape of ``done`` that ``step`` returns
    count, trace : number of earlier steps and trace of these steps, to continue an earlier loop. In
        a new loop, 0 and `empty_trace`
    """

    def take_step(carry):
        state, _, count, trace = carry
        state, done, values = step(state, count)
        return state, done, count + 1, record_values(trace, values, count)

    def continues(carry):
        return ~jnp.all(carry[1]) & (carry[2] < max_iter)

    start = state, jnp.asarray(done), jnp.asarray(count, jnp.int32), trace
    return IterationResult(*jax.lax.while_loop(continues, take_step, start))


def map_restarts(run: Callable[..., Any], starts: Any, together: int) -> Any:
    """Call ``run`` for every restart, and stack the results along a leading axis of restarts.

    ``starts`` are the arguments of ``run``: a tree of arrays with a leading axis of restarts.
    ``together`` restarts run in parallel until the last of them has converged. Several restarts in
    parallel help if one restart leaves a device idle. With 1, each restart stops when it has
    converged, and evaluates only one branch of a conditional.
    """
    return jax.lax.map(
        lambda start: run(*start), starts, batch_size=None if together == 1 else together
    )
