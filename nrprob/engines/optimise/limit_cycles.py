"""Fixed points and limit cycles of an update that is not a descent.

A method supplies ``make(data, active)``, which returns ``update(state, log_q, beta) -> (state,
log_r, values)``. A *cycle* is one such update of K clusters of B blocks of r rows. The update works
in logarithms, since memberships may be less than the smallest float. The symbols are:

- ``data``: data of the update; ``active`` (K,): mask of the clusters that exist;
- ``log_q`` and ``log_r`` (B, r, 1, K): log memberships before and after the update;
- ``state`` (..., K): logarithms of weights, which pass from cycle to cycle;
- ``carry``: the pair of ``state`` and ``log_q``;
- ``beta``: inverse temperature; ``mass`` (B, r): masses of the rows;
- ``values`` (1, T): T quantities to record in the trace.

Algorithm:

1. Iterate until the change of memberships is at most ``tol`` (a fixed point). Also stop if, in two
   successive windows of many cycles, the largest change has not shrunk.
2. If steps of the log memberships shrink geometrically along a line, replace them by one step to
   the limit of their series. This longer step amplifies growing directions as well, so an unstable
   fixed point stays unstable.
3. If changes do not shrink, follow the orbit for 1,024 cycles and project it on random directions.
   If the orbit is recurrent, return it as a limit cycle, with its period and its *width*, the
   largest range of a membership over the cycle. Otherwise continue with step 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.hash_rng import fold_in, hashed_noise
from nrprob.engines.programs import jit_by_size

CONVERGED, OSCILLATING, UNFINISHED = "converged", "oscillating", "max_iter"
_LOG_FLOOR = -1e5  # lower bound of log memberships, which may otherwise decrease without limit
_WINDOWS = (32, 512)  # lengths in cycles of the first and the last window of step 1
_ORBIT = 1024  # cycles of an orbit that is tested for recurrence
_N_DIRECTIONS = 16  # random projections of an orbit
_RECURRENCE_TOL = 1e-6  # maximum distance of the projections of two points that count as equal
_TRACE = 4096  # length of the trace in cycles
_BEND = 0.01  # an orbit is no line if the orthogonal part of a step exceeds this share
_MAX_EXTRAPOLATION = 100  # maximum number of steps that are summed
_EXTRAPOLATION_CHANGE = 1e-4  # change of a membership below which steps are extrapolated

Make = Callable[[Any, jax.Array], Callable[..., Any]]


class LimitResult(NamedTuple):
    """Result of `find_limit`.

    Attributes
    ----------
    carry : final state and log memberships
    status : "converged", "oscillating" or "max_iter"
    n_iter : number of cycles
    period : period of a limit cycle, an integer if the orbit returns exactly; else NaN
    width : largest range of a membership over a limit cycle
    values : (cycles, T) trace of the last cycles, at most 4,096; cycles of step 3 are left out
    """

    carry: Any
    status: str
    n_iter: int
    period: float
    width: float
    values: np.ndarray


def _normalise_logs(log_q, active):
    """Normalise log memberships: the memberships of a row sum to 1, and no log is below -1e5."""
    log_q = jax.nn.log_softmax(jnp.where(active, log_q, -jnp.inf))
    return jnp.where(active, jnp.maximum(log_q, _LOG_FLOOR), -jnp.inf)


def _run_cycle(update, beta, step, active, carry):
    """Run one cycle of ``update``; its step in log memberships is multiplied by ``step``.

    Returns the new ``carry``; the values for the trace; and the largest change of a membership or
    weight by the undamped step.
    """
    state, log_q = carry
    new_state, log_r, values = update(state, log_q, beta)
    target = jax.nn.log_softmax(jnp.where(active, log_r, -jnp.inf))
    new = _normalise_logs((1 - step) * log_q + step * target, active)
    change = jnp.abs(jnp.exp(target) - jnp.exp(log_q)).max()
    for a, b in zip(jax.tree.leaves(new_state), jax.tree.leaves(state), strict=True):
        change = jnp.maximum(change, jnp.abs(jnp.exp(a) - jnp.exp(b)).max())
    return (new_state, new), values[0], change


def _compare_steps(weight, step, last):
    """Compare the change ``step`` of the log memberships with the previous change ``last``.

    Returns the regression coefficient of ``step`` on ``last``; the norm of the residual of this
    regression, relative to the norm of ``step``; and whether ``last`` is not 0. Log memberships are
    weighted by ``weight``, the masses of the rows in the clusters. Without weights, tiny
    memberships, whose logarithms change a lot, would dominate.
    """
    before = (weight * last**2).sum()
    ratio = (weight * step * last).sum() / jnp.where(before > 0, before, 1)
    across = (weight * (step - ratio * last) ** 2).sum()
    length = (weight * step**2).sum()
    return ratio, jnp.sqrt(across / jnp.where(length > 0, length, 1)), before > 0


@jit_by_size("make")
def _run_cycles(data, carry, beta, step, active, mass, tol, max_iter, *, make):
    """Run cycles until memberships are constant, or changes no longer shrink; at most ``max_iter``.

    The factory ``make`` makes the update, and ``step`` is the damping factor. Returns the final
    ``carry``; the trace; the number of cycles; the last change of memberships; and whether changes
    no longer shrink.
    """
    update = make(data, active)
    values = jax.eval_shape(update, *carry, beta)[2]
    trace = jnp.full((_TRACE, values.shape[1]), jnp.nan, values.dtype)
    infinity = jnp.asarray(jnp.inf, carry[1].dtype)
    length = jnp.asarray(_WINDOWS[0])

    def continues(state):
        _, _, _, count, change, _, hits = state
        return (count < max_iter) & (change > tol) & (hits < 2)

    def take_cycle(state):
        old, last, trace, count, _, (end, length, largest, before, bends), hits = state
        # One cycle, and its step relative to the last one.
        carry, values, change = _run_cycle(update, beta, step, active, old)
        trace = jax.lax.dynamic_update_index_in_dim(trace, values, count % _TRACE, 0)
        moved = jax.tree.map(lambda a, b: jnp.where(active, a - b, 0), carry, old)
        weight = mass[..., None, None] * jnp.exp(carry[1])
        ratio, across, known = _compare_steps(weight, moved[1], last)
        # Remainder of the geometric series of steps, while its orthogonal part stays small.
        ahead = ratio / jnp.clip(1 - ratio, 1 / _MAX_EXTRAPOLATION, None)
        ahead = jnp.where((ratio < 1) & (ahead > 2) & (ahead * across < 0.1), ahead, 0)
        ahead = jnp.where((change > tol) & (change < _EXTRAPOLATION_CHANGE), ahead, 0)
        state, log_q = jax.tree.map(lambda a, d: a + ahead * d, carry, moved)
        carry = state, _normalise_logs(log_q, active)
        # An extrapolated step has no direction to compare the next step with.
        last = jnp.where(ahead > 0, 0, moved[1])
        count, largest = count + 1, jnp.maximum(largest, change)
        # At the end of a window, test whether the changes of a curved orbit have stopped shrinking,
        # twice in a row.
        bends = bends | known & ((ratio < 0) | (across > _BEND))
        over = count >= end
        stuck = (largest >= 0.9 * before) & (largest > 10 * tol) & bends
        hits = jnp.where(over, jnp.where(stuck, hits + 1, 0), hits)
        longer = jnp.minimum(2 * length, _WINDOWS[1])
        next_window = end + longer, longer, jnp.zeros_like(largest), largest, False
        window = tuple(
            jnp.where(over, new, old)
            for new, old in zip(next_window, (end, length, largest, before, bends), strict=True)
        )
        return carry, last, trace, count, change, window, hits

    window = length, length, 0 * length.astype(infinity.dtype), infinity, jnp.asarray(False)
    last = jnp.zeros_like(carry[1])
    start = carry, last, trace, jnp.asarray(0), infinity, window, jnp.asarray(0)
    carry, _, trace, count, change, _, hits = jax.lax.while_loop(continues, take_cycle, start)
    return carry, trace, count, change, hits >= 2


@jit_by_size("make")
def _follow_orbit(data, carry, beta, step, active, mass, *, make):
    """Run a fixed number of cycles from ``carry``; see `_run_cycles` for the arguments.

    Returns the final ``carry``; projections (cycles, directions) of the memberships
    on random directions; and the largest range of a membership over all cycles.
    """
    update = make(data, active)
    shape, dtype = carry[1].shape, carry[1].dtype
    directions = hashed_noise(fold_in(0, 2), (*shape, _N_DIRECTIONS), dtype)
    directions = directions / np.sqrt(_N_DIRECTIONS)
    directions = jnp.where((mass > 0)[..., None, None, None], directions, 0)

    def take_cycle(carry, _):
        carry, low, high = carry
        carry, _, _ = _run_cycle(update, beta, step, active, carry)
        q = jnp.exp(carry[1])
        projected = jnp.einsum("brsk,brskd->d", q, directions)
        return (carry, jnp.minimum(low, q), jnp.maximum(high, q)), projected

    q = jnp.exp(carry[1])
    (carry, low, high), projected = jax.lax.scan(take_cycle, (carry, q, q), length=_ORBIT)
    return carry, projected, jnp.where((mass > 0)[..., None, None], high - low, 0).max()


def _orbit_period(projected: np.ndarray) -> float | None:
    """Period of a projected orbit (cycles, directions); None if the orbit drifts or decays.

    If an earlier point of the orbit equals the last point, the period is the number of cycles
    between these points.
    Otherwise the period is the mean number of cycles between two upward crossings of the mean by
    the first principal component of the orbit.
    """
    returned = np.abs(projected[-2::-1] - projected[-1]).max(1) < _RECURRENCE_TOL
    if returned.any():  # a period of 1 is a fixed point
        return float(returned.argmax() + 1) if not returned[0] else None
    centred = projected - projected.mean(0)
    wave = centred @ np.linalg.svd(centred, full_matrices=False)[2][0]
    crossings = np.flatnonzero((wave[:-1] < 0) & (wave[1:] >= 0))
    first, second = (np.ptp(half) for half in np.array_split(wave, 2))
    if crossings.size < 3 or not 0.9 < second / first < 1.1:
        return None
    return float(np.diff(crossings).mean())


def find_limit(
    make: Make,
    data: Any,
    mass: jax.Array,
    carry: Any,
    beta: float,
    active: np.ndarray,
    *,
    step: float = 1.0,
    tol: float,
    max_iter: int,
) -> LimitResult:
    """Run cycles of an update to a fixed point or a limit cycle.

    Parameters
    ----------
    make, data : factory of the update, and its data
    mass : (B, r) masses of the rows, 0 on padding
    carry : initial state and log memberships (B, r, 1, K)
    beta : inverse temperature
    active : (K,) clusters that exist
    step : damping factor of steps in log memberships; it does not change the fixed points
    tol : largest change of a membership by an undamped step at which the run has converged
    max_iter : maximum number of cycles; following the last orbit may exceed it
    """
    dtype = mass.dtype
    tol = max(tol, 8 * float(np.finfo(dtype).eps))
    parameters = np.full(1, beta, dtype), np.asarray(step, dtype), active
    done, values = 0, []
    status, period, width = UNFINISHED, np.nan, 0.0
    while done < max_iter:
        carry, trace, count, change, stuck = _run_cycles(
            data, carry, *parameters, mass, np.asarray(tol, dtype), max_iter - done, make=make
        )
        values.append(np.roll(np.asarray(trace), -int(count), 0)[-min(int(count), _TRACE) :])
        done += int(count)
        if change <= tol:
            status = CONVERGED
        if not stuck or change <= tol:
            break
        carry, projected, widest = _follow_orbit(data, carry, *parameters, mass, make=make)
        done += _ORBIT
        recurrence = _orbit_period(np.asarray(projected, float))
        if recurrence is not None:
            status, period, width = OSCILLATING, recurrence, float(widest)
            break
    return LimitResult(carry, status, done, period, width, np.concatenate(values)[-_TRACE:])
