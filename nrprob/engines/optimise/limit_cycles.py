"""Fixed points and limit cycles of an update that is not a descent.

A method gives ``make(data, active)``, which returns ``update(state, log_q, beta) -> (state, log_r,
values)`` for log memberships (B, r, 1, K), where ``active`` (K,) marks the clusters that exist. It
is an annealing's update in logarithms, since an update that is not a descent may bring memberships
far below the smallest float. ``state`` (..., K) holds logarithms of weights that the update carries
from cycle to cycle, and ``values`` (1, T) holds numbers for the trace.

Steps that no longer shrink belong to a limit cycle or to a slow passage. The orbit is followed to
distinguish the two, and a limit cycle is returned with its period and its width. Steps that shrink
along a line are summed at once. This longer step amplifies growing directions as well, so that
unstable points and limit cycles keep their nature; shorter steps would change it.
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
_FLOOR = -1e5  # of log memberships: of some copies, nothing bounds the difference
_WINDOWS = (32, 512)  # lengths of the first window in which steps are compared, and of the last
_ORBIT = 1024  # cycles of a supposed loop that are looked at
_DIRECTIONS = 16  # on which it is projected
_RETURN = 1e-6  # how near an orbit comes to where it was if its period is a whole number
_TRACE = 4096  # cycles that are kept
_BEND = 0.01  # of a step, across the one before, from which on an orbit is not taken for a line
_FARTHEST = 100  # steps that are summed up
_SETTLED = 1e-4  # change of a membership in a cycle below which that is done

Make = Callable[[Any, jax.Array], Callable[..., Any]]


class LimitResult(NamedTuple):
    """Where a run ended.

    Attributes
    ----------
    carry : state and log memberships
    status : "converged", "oscillating" or "max_iter"
    n_iter : cycles
    period : of a loop, in cycles; a whole number where the orbit comes back exactly, else NaN
    width : largest range that a membership has over a loop
    values : (cycles, T) trace
    """

    carry: Any
    status: str
    n_iter: int
    period: float
    width: float
    values: np.ndarray


def _normalised(log_q, active):
    """Log memberships, rows of which sum to 1, and none below the floor."""
    log_q = jax.nn.log_softmax(jnp.where(active, log_q, -jnp.inf))
    return jnp.where(active, jnp.maximum(log_q, _FLOOR), -jnp.inf)


def _advance(update, beta, step, active, carry):
    """One cycle: what it leads to, the values on the way, and the change of the whole step."""
    state, log_q = carry
    new_state, log_r, values = update(state, log_q, beta)
    target = jax.nn.log_softmax(jnp.where(active, log_r, -jnp.inf))
    new = _normalised((1 - step) * log_q + step * target, active)
    change = jnp.abs(jnp.exp(target) - jnp.exp(log_q)).max()
    for a, b in zip(jax.tree.leaves(new_state), jax.tree.leaves(state), strict=True):
        change = jnp.maximum(change, jnp.abs(jnp.exp(a) - jnp.exp(b)).max())
    return (new_state, new), values[0], change


def _compare(weight, step, last):
    """Ratio of a step to the one before, and the part of it that is across that.

    ``weight`` are the masses of the memberships: logs of tiny ones move far, and mean little.
    """
    before = (weight * last**2).sum()
    ratio = (weight * step * last).sum() / jnp.where(before > 0, before, 1)
    across = (weight * (step - ratio * last) ** 2).sum()
    length = (weight * step**2).sum()
    return ratio, jnp.sqrt(across / jnp.where(length > 0, length, 1)), before > 0


@jit_by_size("make")
def _run(data, carry, beta, step, active, mass, tol, most, *, make):
    """Cycles until memberships stand, or steps no longer shrink, or ``most`` are done."""
    update = make(data, active)
    values = jax.eval_shape(update, *carry, beta)[2]
    trace = jnp.full((_TRACE, values.shape[1]), jnp.nan, values.dtype)
    infinity = jnp.asarray(jnp.inf, carry[1].dtype)
    length = jnp.asarray(_WINDOWS[0])

    def moving(state):
        _, _, _, count, change, _, hits = state
        return (count < most) & (change > tol) & (hits < 2)

    def move(state):
        old, last, trace, count, _, (end, length, largest, before, bends), hits = state
        carry, values, change = _advance(update, beta, step, active, old)
        trace = jax.lax.dynamic_update_index_in_dim(trace, values, count % _TRACE, 0)
        moved = jax.tree.map(lambda a, b: jnp.where(active, a - b, 0), carry, old)
        weight = mass[..., None, None] * jnp.exp(carry[1])
        ratio, across, known = _compare(weight, moved[1], last)
        # What is left of a geometric series, as far as what is across stays small.
        ahead = ratio / jnp.clip(1 - ratio, 1 / _FARTHEST, None)
        ahead = jnp.where((ratio < 1) & (ahead > 2) & (ahead * across < 0.1), ahead, 0)
        ahead = jnp.where((change > tol) & (change < _SETTLED), ahead, 0)
        state, log_q = jax.tree.map(lambda a, d: a + ahead * d, carry, moved)
        carry = state, _normalised(log_q, active)
        last = jnp.where(ahead > 0, 0, moved[1])
        count, largest = count + 1, jnp.maximum(largest, change)
        bends = bends | known & ((ratio < 0) | (across > _BEND))
        over = count >= end
        stuck = (largest >= 0.9 * before) & (largest > 10 * tol) & bends
        hits = jnp.where(over, jnp.where(stuck, hits + 1, 0), hits)
        longer = jnp.minimum(2 * length, _WINDOWS[1])
        following = end + longer, longer, jnp.zeros_like(largest), largest, False
        window = tuple(
            jnp.where(over, new, old)
            for new, old in zip(following, (end, length, largest, before, bends), strict=True)
        )
        return carry, last, trace, count, change, window, hits

    window = length, length, 0 * length.astype(infinity.dtype), infinity, jnp.asarray(False)
    last = jnp.zeros_like(carry[1])
    start = carry, last, trace, jnp.asarray(0), infinity, window, jnp.asarray(0)
    carry, _, trace, count, change, _, hits = jax.lax.while_loop(moving, move, start)
    return carry, trace, count, change, hits >= 2


@jit_by_size("make")
def _follow(data, carry, beta, step, active, mass, *, make):
    """An orbit's projections (cycles, directions), and the largest range of a membership."""
    update = make(data, active)
    shape, dtype = carry[1].shape, carry[1].dtype
    directions = hashed_noise(fold_in(0, 2), (*shape, _DIRECTIONS), dtype) / np.sqrt(_DIRECTIONS)
    directions = jnp.where((mass > 0)[..., None, None, None], directions, 0)

    def move(carry, _):
        carry, low, high = carry
        carry, _, _ = _advance(update, beta, step, active, carry)
        q = jnp.exp(carry[1])
        seen = jnp.einsum("brsk,brskd->d", q, directions)
        return (carry, jnp.minimum(low, q), jnp.maximum(high, q)), seen

    q = jnp.exp(carry[1])
    (carry, low, high), seen = jax.lax.scan(move, (carry, q, q), length=_ORBIT)
    return carry, seen, jnp.where((mass > 0)[..., None, None], high - low, 0).max()


def _period(seen: np.ndarray) -> float | None:
    """Period of an orbit (cycles, directions); None if it goes somewhere or dies away.

    A whole number where the orbit returns to its end; else the mean time between crossings of its
    mean, along the direction in which it is widest.
    """
    back = np.abs(seen[-2::-1] - seen[-1]).max(1) < _RETURN
    if back.any():  # at once, if it has come to rest
        return float(back.argmax() + 1) if not back[0] else None
    centred = seen - seen.mean(0)
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
    """Run to a fixed point, or until it is known that there will be none.

    Parameters
    ----------
    make, data : the update, and what it looks at
    mass : (B, r) masses of the rows, 0 on padding
    carry : state and log memberships to start from
    beta : inverse temperature
    active : (K,) clusters that exist
    step : part of a step in log memberships that is taken; the fixed points are the same for all
    tol : largest change of a membership in a whole step at which it has converged
    max_iter : most cycles, but for the last orbit
    """
    dtype = mass.dtype
    tol = max(tol, 8 * float(np.finfo(dtype).eps))
    numbers = np.full(1, beta, dtype), np.asarray(step, dtype), active
    done, values = 0, []
    status, period, width = UNFINISHED, np.nan, 0.0
    while done < max_iter:
        carry, trace, count, change, stuck = _run(
            data, carry, *numbers, mass, np.asarray(tol, dtype), max_iter - done, make=make
        )
        values.append(np.roll(np.asarray(trace), -int(count), 0)[-min(int(count), _TRACE) :])
        done += int(count)
        if change <= tol:
            status = CONVERGED
        if not stuck or change <= tol:
            break
        carry, seen, widest = _follow(data, carry, *numbers, mass, make=make)
        done += _ORBIT
        result = _period(np.asarray(seen, float))
        if result is not None:
            status, period, width = OSCILLATING, result, float(widest)
            break
    return LimitResult(carry, status, done, period, width, np.concatenate(values)[-_TRACE:])
