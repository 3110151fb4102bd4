"""Iterate an update until convergence or a maximal number of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class IterationResult(NamedTuple):
    """Where a loop ended.

    Attributes
    ----------
    state : what the last step returned
    done : (...) of the last step
    n_iter : number of steps
    trace : what every step had to say, in the order of the steps
    """

    state: Any
    done: jax.Array
    n_iter: jax.Array
    trace: Any


def empty_trace(capacity: int, dtype: Any, *shape: int) -> jax.Array:
    """Room for a trace (capacity, ...): NaN, which is what it is beyond the last step."""
    return jnp.full((capacity, *shape), jnp.nan, dtype)


def record_values(trace: Any, values: Any, count: Any) -> Any:
    """Write ``values`` into the trace in the place ``count``; beyond its end, in the last one.

    Both are arrays, or structures of arrays that are alike.
    """

    def write(room, value):
        at = jnp.minimum(count, len(room) - 1)
        return jax.lax.dynamic_update_index_in_dim(room, jnp.asarray(value, room.dtype), at, 0)

    return jax.tree.map(write, trace, values)


def iterate(
    step: Callable[[Any, jax.Array], tuple[Any, Any, Any]],
    state: Any,
    max_iter: Any,
    *,
    done: Any = False,
    count: Any = 0,
    trace: Any = (),
) -> IterationResult:
    """Take steps until all are done.

    Under `jax.vmap`, loops that are done wait for the others, and keep what they have.

    Parameters
    ----------
    step : from a state, and the number of steps before, the next state; whether that is the last,
        as one truth value or an array of them, of which all have to be true; and what the trace
        gets, () where there is none
    state : the first one
    max_iter : the number of steps after which there are no more
    done : of the first state, in the shape of what ``step`` says
    count, trace : of the steps before the first: those of an earlier loop that this one goes on
        from, or 0 and `empty_trace`
    """

    def take(carry):
        state, _, count, trace = carry
        state, done, values = step(state, count)
        return state, done, count + 1, record_values(trace, values, count)

    def going(carry):
        return ~jnp.all(carry[1]) & (carry[2] < max_iter)

    start = state, jnp.asarray(done), jnp.asarray(count, jnp.int32), trace
    return IterationResult(*jax.lax.while_loop(going, take, start))


def map_restarts(run: Callable[..., Any], starts: Any, together: int) -> Any:
    """Results of ``run`` from every one of ``starts``, arrays with a leading axis of restarts.

    ``together`` of them run side by side, until the last of these is done: where a device is idle
    otherwise. With 1, every restart stops when it is done, and branches are taken or not.
    """
    return jax.lax.map(
        lambda start: run(*start), starts, batch_size=None if together == 1 else together
    )
