"""Iterations and k-means, compared with plain Python."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nrprob.engines.optimise import kmeans
from nrprob.engines.optimise.iterate import empty_trace, iterate, map_restarts, record_values
from nrprob.settings import standard

ROOM = 6
LANES = 3
levels = st.lists(st.integers(0, 40), min_size=LANES, max_size=LANES)


@pytest.fixture(autouse=True)
def wide():
    with standard():
        yield


def fall(state, count):
    """Decrease every lane by the number of steps including this one, down to 0."""
    state = jnp.maximum(state - count - 1, 0)
    return state, state == 0, state.astype(float)


@jax.jit
def fallen(state, max_iter):
    return iterate(fall, state, max_iter, done=state == 0, trace=empty_trace(ROOM, float, LANES))


@jax.jit
def fallen_in_turn(state, first, max_iter):
    begun = iterate(fall, state, first, done=state == 0, trace=empty_trace(ROOM, float, LANES))
    return iterate(
        fall, begun.state, max_iter, done=begun.done, count=begun.n_iter, trace=begun.trace
    )


@partial(jax.jit, static_argnames="together")
def fallen_apart(state, max_iter, together):
    def run(one):
        return iterate(fall, one, max_iter, done=one == 0, trace=empty_trace(ROOM, float))

    return map_restarts(run, (state,), together)


def expected(state, max_iter):
    """State, done, number of steps and trace of `fallen`, by a loop in Python."""
    state, count, trace = np.array(state), 0, np.full((ROOM, LANES), np.nan)
    while not (state == 0).all() and count < max_iter:
        state = np.maximum(state - count - 1, 0)
        trace[min(count, ROOM - 1)] = state
        count += 1
    return state, state == 0, count, trace


@given(levels, st.integers(0, 12))
@settings(max_examples=50, deadline=None)
def test_iterate_is_a_loop(state, max_iter):
    result = fallen(np.array(state), max_iter)
    for a, b in zip(result, expected(state, max_iter), strict=True):
        np.testing.assert_array_equal(a, b)


@given(levels, st.integers(0, 12), st.integers(0, 12))
@settings(max_examples=50, deadline=None)
def test_a_loop_goes_on_where_another_ended(state, first, max_iter):
    first = min(first, max_iter)
    result = fallen_in_turn(np.array(state), first, max_iter)
    for a, b in zip(result, fallen(np.array(state), max_iter), strict=True):
        np.testing.assert_array_equal(a, b)


@given(levels, st.integers(0, 12))
@settings(max_examples=50, deadline=None)
def test_restarts_are_the_same_side_by_side_and_one_after_another(state, max_iter):
    result = [fallen_apart(np.array(state), max_iter, together) for together in (1, 2, LANES)]
    for other in result[1:]:
        jax.tree.map(np.testing.assert_array_equal, result[0], other)
    for lane, level in enumerate(state):
        alone = expected([level] * LANES, max_iter)
        assert result[0].state[lane] == alone[0][0]
        assert result[0].n_iter[lane] == alone[2]  # it is not counted while it waits
        np.testing.assert_array_equal(result[0].trace[lane], alone[3][:, 0])


def test_a_trace_may_be_several_and_none():
    room = {"a": empty_trace(2, jnp.float32), "b": empty_trace(3, float, 2)}
    result = record_values(room, {"a": 1, "b": np.array([2.0, 3.0])}, 5)
    np.testing.assert_array_equal(result["a"], [np.nan, 1])
    np.testing.assert_array_equal(result["b"], [[np.nan] * 2, [np.nan] * 2, [2, 3]])
    assert result["a"].dtype == np.float32
    assert iterate(lambda x, _: (x + 1, x > 3, ()), 0, 10).trace == ()


N, D, K = 20, 2, 4


@jax.jit
def farthest(x, room):
    """k-means++ that selects the row of the largest weight."""

    def distance(centre):
        return ((x - centre) ** 2).sum(1)

    return kmeans.kmeans_plus_plus(lambda j, w: x[w.argmax()], distance, room, jnp.ones(len(x)))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_plus_plus_weighs_rows_by_the_distance_to_the_nearest_centre(seed):
    x = np.random.default_rng(seed).normal(size=(N, D))
    centres, nearest = farthest(x, np.zeros((K, D)))
    chosen = [0]
    while len(chosen) < K:
        away = ((x[:, None] - x[chosen]) ** 2).sum(2).min(1)
        chosen.append(int(away.argmax()))
    np.testing.assert_array_equal(centres, x[chosen])
    np.testing.assert_allclose(nearest, ((x[:, None] - x[chosen]) ** 2).sum(2).min(1))


@jax.jit
def clustered(x, centres, max_iter):
    def assign(centres):
        return ((x[:, None] - centres) ** 2).sum(2).argmin(1)

    def means(labels, centres):
        hit = (labels[:, None] == jnp.arange(K)).astype(x.dtype)
        size = hit.sum(0)[:, None]
        return jnp.where(size > 0, hit.T @ x / jnp.maximum(size, 1), centres)

    return kmeans.lloyd_iterations(assign, means, centres, max_iter)


@given(st.integers(0, 2**32 - 1), st.integers(0, 20))
@settings(max_examples=30, deadline=None)
def test_lloyd_goes_down_and_ends_where_nothing_moves(seed, max_iter):
    rng = np.random.default_rng(seed)
    x, first = rng.normal(size=(N, D)), rng.normal(size=(K, D))

    def scatter(steps):
        centres, labels = clustered(x, first, steps)
        return float(((x - np.asarray(centres)[labels]) ** 2).sum())

    assert scatter(max_iter + 1) <= scatter(max_iter) + 1e-9
    centres, labels = map(np.asarray, clustered(x, first, 1000))
    for c in np.unique(labels):
        np.testing.assert_allclose(centres[c], x[labels == c].mean(0))
    assert (((x[:, None] - centres) ** 2).sum(2).argmin(1) == labels).all()
