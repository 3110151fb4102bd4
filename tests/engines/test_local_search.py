"""Local search: its differences, limits and certificate, checked from scratch."""

import cec_reference as reference
import numpy as np
import pytest

from nrprob import CECIB
from nrprob.engines.optimise.descents import (
    DescentStart,
    PartitionLimits,
    descend,
    descend_subsets,
    improve_by_chains,
)
from nrprob.engines.optimise.local_search import LocalSearch, SearchProblem
from nrprob.engines.optimise.split_proposals import propose_splits
from nrprob.methods.cec.solver import Objective
from nrprob.settings import standard

N, D, K = 28, 2, 5
pytestmark = pytest.mark.contract  # compilation takes longer than computation


def overlapping(seed):
    """Rows of three clusters that overlap, and some labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D)) + 2 * rng.normal(size=(3, D))[np.arange(N) % 3]
    return X, np.where(rng.random(N) < 0.3, np.arange(N) % 2, -1)


@pytest.fixture
def problem():
    """Search problem of the published cost of CEC-IB, its layout, and its objective in NumPy."""
    X, y = overlapping(0)
    model = CECIB(4, covariance="diag", penalty=None, min_cluster_fraction=0.1)
    with standard():
        task = model.prepare(X, y)
        parameters = task.settings.method
        terms = Objective("diag", True).terms(task.rows, parameters)
        mass = np.asarray(task.rows.mass).reshape(-1)
        features = task.layout.to_blocks(task.prepared.x).reshape(len(mass), -1)
        limits = PartitionLimits(parameters.smallest, parameters.least, 1e-9 * N, np.int32(100))
        search = SearchProblem(terms, task.rows, features, None, mass > 0, 4, K, limits)
        yield (
            search,
            task.layout,
            lambda labels: reference.terms(X, labels, y, covariance="diag", reg=1e-3).sum(),
        )


def random_labels(seed, k=4):
    return np.random.default_rng(seed).integers(k, size=N).astype(np.int32)


def start_of(problem, layout, labels, *, merging=False, most=4):
    slots = layout.to_blocks(labels).reshape(-1)
    return DescentStart(slots, problem.movable, np.ones(K, bool), np.int32(most), np.bool_(merging))


def one(start):
    return DescentStart(*(np.asarray(part)[None] for part in start))


def in_order(layout, problem, labels):
    return layout.from_blocks(np.asarray(labels).reshape(problem.rows.mass.shape))


def test_a_descent_ends_where_no_allowed_move_or_merger_lowers_the_objective(problem):
    problem, layout, objective = problem
    for seed in range(4):
        start = start_of(problem, layout, random_labels(seed), merging=True)
        end = descend(problem.terms, problem.rows, one(start), problem.limits)
        labels = in_order(layout, problem, end.labels[0])
        assert bool(end.converged[0])
        value, sizes = objective(labels), np.bincount(labels, minlength=4)
        constant = value - float(end.costs.sum())
        assert sizes[sizes > 0].min() >= 3
        for i in range(N):
            for c in range(4):
                moved = np.where(np.arange(N) == i, c, labels)
                after = np.bincount(moved)
                if after[after > 0].min() >= 3:
                    assert objective(moved) > value - 1e-7
        merges = np.asarray(end.merges[0])
        for a in range(4):
            for b in range(a + 1, 4):
                if sizes[a] and sizes[b]:
                    union = objective(np.where(labels == b, a, labels))
                    assert union - value == pytest.approx(merges[a, b], abs=1e-8)
                    assert merges[a, b] > -1e-7
                else:
                    assert merges[a, b] == np.inf
        # The costs of the clusters sum to the objective, but for a constant.
        other = descend(
            problem.terms, problem.rows,
            one(start_of(problem, layout, random_labels(seed + 9))), problem.limits,
        )  # fmt: skip
        labels = in_order(layout, problem, other.labels[0])
        assert objective(labels) - float(other.costs.sum()) == pytest.approx(constant, abs=1e-8)


def test_chains_change_the_objective_by_what_they_say(problem):
    problem, layout, objective = problem
    improved = 0
    for seed in range(6):
        start = start_of(problem, layout, random_labels(seed))
        end = descend(problem.terms, problem.rows, one(start), problem.limits)
        start = start._replace(labels=np.asarray(end.labels[0]))
        chains, change = improve_by_chains(
            problem.terms, problem.rows, start, problem.limits, np.int32(N), n_chains=30
        )
        before, after = (in_order(layout, problem, z) for z in (start.labels, chains))
        value, sizes = objective(after), np.bincount(after)
        assert value - objective(before) == pytest.approx(float(change), abs=1e-8)
        assert change <= 0 and sizes[sizes > 0].min() >= 3
        # Neither a descent nor chains improve the result.
        again = start._replace(labels=np.asarray(chains))
        end = descend(problem.terms, problem.rows, one(again), problem.limits)
        assert (np.asarray(end.labels[0]) == chains)[problem.movable].all()
        _, more = improve_by_chains(
            problem.terms, problem.rows, again, problem.limits, np.int32(N), n_chains=30
        )
        assert more == 0
        if change < 0:
            # No single move improved the start, so chains moved several rows.
            improved += 1
            assert (before != after).sum() > 1
    assert improved > 1


def test_single_moves_come_before_chains(problem):
    problem, layout, objective = problem
    start = start_of(problem, layout, random_labels(2))
    chains, change = improve_by_chains(
        problem.terms, problem.rows, start, problem.limits, np.int32(1), n_chains=1
    )
    before, after = (in_order(layout, problem, z) for z in (start.labels, chains))
    assert change < -1 and objective(after) - objective(before) == pytest.approx(float(change))
    end = descend(
        problem.terms, problem.rows, one(start._replace(labels=np.asarray(chains))), problem.limits
    )
    assert (np.asarray(end.labels[0]) == chains)[problem.movable].all()


def test_clusters_that_are_not_allowed_are_dissolved(problem):
    problem, layout, _ = problem
    start = start_of(problem, layout, random_labels(3))
    start = start._replace(allowed=np.arange(K) != 2)
    end = descend(problem.terms, problem.rows, one(start), problem.limits)
    labels = in_order(layout, problem, end.labels[0])
    assert 2 not in labels and bool(end.converged[0])
    # Rows that may not move stay, and so does their cluster.
    fixed = start._replace(movable=problem.movable & (start.labels != 2))
    end = descend(problem.terms, problem.rows, one(fixed), problem.limits)
    stays = in_order(layout, problem, start.labels) == 2
    assert (in_order(layout, problem, end.labels[0])[stays] == 2).all()


def test_subsets_of_rows_descend_like_all_rows_of_which_others_are_fixed(problem):
    problem, layout, _ = problem
    labels = random_labels(5, 3)
    slots = layout.to_blocks(labels).reshape(-1)
    inside = (slots < 2) & problem.movable
    start = DescentStart(slots, inside, np.arange(K) < 2, np.int32(K), np.bool_(False))
    whole = descend(problem.terms, problem.rows, one(start), problem.limits)
    n = len(slots)
    index = np.pad(np.flatnonzero(inside), (0, n - inside.sum()), constant_values=n)
    part = DescentStart(
        np.append(slots, 1)[index], np.append(inside, False)[index], np.ones(2, bool),
        np.int32(2), np.bool_(False),
    )  # fmt: skip
    subset = descend_subsets(
        problem.terms, problem.rows, index[None].astype(np.int32), one(part), problem.limits
    )
    np.testing.assert_allclose(subset.costs[0], whole.costs[0][:2], rtol=1e-10)
    assert (subset.labels[0][: inside.sum()] == whole.labels[0][index[: inside.sum()]]).all()


def test_every_step_of_a_search_lowers_the_objective_and_is_repeatable(problem):
    problem, layout, objective = problem
    results = []
    for _ in range(2):
        search = LocalSearch(problem)
        start = search.descend([layout.to_blocks(random_labels(7)).reshape(-1)])[0]
        end = search.improve(start)
        assert (np.diff(search.trace) < -float(problem.limits.tolerance)).all()
        results.append(in_order(layout, problem, end.labels))
        # The search has tried every step at its end.
        steps = (search._split, search._divide_pairs, search._dissolve, search._chain)
        tried = [new.value for step in (*steps, search._split_and_merge) for new in step(end)]
        assert len(tried) > 3 and min(tried) > end.value - 1e-7
    assert (results[0] == results[1]).all()
    assert objective(results[0]) < objective(in_order(layout, problem, start.labels)) + 1e-9


def test_proposals_separate_two_clusters_and_have_large_enough_sides():
    rng = np.random.default_rng(0)
    truth = np.arange(60) % 5 == 0
    x = rng.normal(size=(60, 3)) + 8 * truth[:, None] * [0, 1, 0]
    ones = np.ones(60)
    sides = propose_splits(x, ones, None, 2.0)
    assert any((side == truth).all() or (side != truth).all() for side in sides)
    # A tight cluster within a wide one.
    wide = np.where(truth[:, None], 0.05, 3.0) * rng.normal(size=(60, 3))
    sides = propose_splits(wide, ones, None, 2.0)
    assert any((side | ~truth).all() or (~side | ~truth).all() for side in sides)
    for floor in (2.0, 25.0):
        for side in propose_splits(x, ones, np.where(truth, 1, 0), floor):
            assert min(side.sum(), (~side).sum()) >= floor
    assert propose_splits(np.zeros((4, 2)), np.ones(4), None, 1.0) != []
