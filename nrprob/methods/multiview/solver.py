"""Solver of `nrprob.MDLMultiView`: annealed codes of several views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob import codelength
from nrprob.engines.hash_rng import fold_in, hashed_noise, hashed_uniform
from nrprob.engines.optimise.iterate import empty_trace, iterate
from nrprob.engines.programs import jit_by_size
from nrprob.methods.multiview import joint_cells
from nrprob.methods.multiview.joint_cells import NEVER
from nrprob.statistics.rows import Dense, Rows
from nrprob.statistics.xlogx import xlogx

CAPACITY = 1024  # steps that a trace may have; the last entry is always that of the last step
SMOOTHING = 0.5  # added to every cell while annealing, or none that empties could be filled again
_PRECISION = jax.lax.Precision.HIGHEST
_NOISE = 1e-3  # of the centres at every temperature, in units of the view's deviation


class Numbers(NamedTuple):
    """Numbers that `solve_multiview` reads.

    Attributes
    ----------
    columns : (V, p) 1 at the features of a view and 0 elsewhere
    first : (V,) number of the first cluster of a view, among those that are no padding
    weights : (V,) of the logarithms of the scales
    low, high : bounds of the scales
    per_cluster : whether every cluster has a scale of its own
    cooling : ratio of successive temperatures
    top : the highest temperature
    n_anneal, n_steps, max_iter : steps that cool, steps at a temperature, most steps after
    """

    columns: Any
    first: Any
    weights: Any
    low: Any
    high: Any
    per_cluster: Any
    cooling: Any
    top: Any
    n_anneal: Any
    n_steps: Any
    max_iter: Any


class Runs(NamedTuple):
    """What sets the runs of one call apart.

    Attributes
    ----------
    seed : (S,)
    active : (S, V) numbers of clusters
    start : (S,) first temperatures
    constant : (S,) nats that depend on the numbers of clusters alone
    """

    seed: Any
    active: Any
    start: Any
    constant: Any


class MultiviewSolution(NamedTuple):
    """All runs of one compiled program, S of them, along the first axis.

    Attributes
    ----------
    labels : (S, B, r, V)
    objective : (S,) complete length, in nats of the scaled rows, in float64
    partition : (S,) length of the labels at their own frequencies
    distance : (S,) length of the distances, without constants
    converged : (S,) whether the labels came to rest
    n_iter : (S,) number of E-steps, of all runs side by side
    trace : (S, CAPACITY) sum of partition and distance, NaN beyond the last
    mass : (S, K) of the clusters of all views, in float64
    centres : (S, K, p) means, 0 beside the features of the cluster's view
    scales : (S, K)
    """

    labels: jax.Array
    objective: jax.Array
    partition: jax.Array
    distance: jax.Array
    converged: jax.Array
    n_iter: jax.Array
    trace: jax.Array
    mass: jax.Array
    centres: jax.Array
    scales: jax.Array


@dataclass(frozen=True)
class Design:
    """What a program is compiled for.

    The statistics of a row are the features of all views, the squared norms of the views, and 1;
    `Numbers.columns` is 1 at the features of a view and 0 elsewhere.

    Attributes
    ----------
    sizes : clusters of every view, the most that any run has
    groups : views whose labels are coded jointly
    e_step : see `MDLMultiView`
    """

    sizes: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    e_step: str

    def clusters(self, v: int) -> slice:
        """Clusters of a view among those of all views."""
        start = sum(self.sizes[:v])
        return slice(start, start + self.sizes[v])

    def norm(self, v: int) -> int:
        """Column of the squared norms of a view, counted from the end."""
        return v - len(self.sizes) - 1


class Codes(NamedTuple):
    """Codes of one run: ``coef`` (K, p) of the lengths of rows in clusters; a log table a group."""

    coef: jax.Array
    tables: tuple[jax.Array, ...]


class Counts(NamedTuple):
    """Statistics (K, p) of the clusters, and masses of the cells of every group, of one run."""

    cells: jax.Array
    joint: tuple[jax.Array, ...]


class Coder:
    """Rows, and the codes of one run of them.

    Attributes
    ----------
    x : (n, p) statistics of the rows, padding included
    mass : (n,)
    place : (K,) of the clusters among those that are no padding, by which they draw
    """

    def __init__(self, design: Design, numbers: Numbers, rows: Rows):
        assert isinstance(rows.x, Dense)
        self.design, self.numbers = design, numbers
        self.x = rows.x.x.reshape(-1, rows.x.n_statistics)
        self.mass = rows.mass.reshape(-1)
        place = [numbers.first[v] + np.arange(k) for v, k in enumerate(design.sizes)]
        self.place = jnp.minimum(jnp.concatenate(place), sum(design.sizes) - 1)

    def scales(self, cells: jax.Array, v: int) -> tuple[jax.Array, ...]:
        """Masses (K_v,), centres (K_v, d), sums of squared distances (K_v,) and scales (K_v,)."""
        numbers = self.numbers
        own = cells[self.design.clusters(v)]
        n, sums = own[:, -1], own * numbers.columns[v]
        filled = n > 0
        centres = jnp.where(filled[:, None], sums / jnp.where(filled, n, 1)[:, None], 0)
        r = jnp.maximum(own[:, self.design.norm(v)] - (centres * sums).sum(1), 0)
        low, high = numbers.low.astype(n.dtype), numbers.high.astype(n.dtype)
        each = jnp.where(filled, jnp.clip(r / jnp.where(filled, n, 1), low, high), 1)
        common = jnp.clip(r.sum() / n.sum(), low, high)
        return n, centres, r, jnp.where(numbers.per_cluster, each, common)

    def codes(self, counts: Counts, active: jax.Array, smoothing: Any) -> Codes:
        """M-step: the codes that are best for the counts."""
        design, coef, exists = self.design, [], []
        unit = np.eye(counts.cells.shape[1], dtype=counts.cells.dtype)
        for v, k in enumerate(design.sizes):
            _, centres, _, s = self.scales(counts.cells, v)
            w = self.numbers.weights[v]
            real = np.arange(k) < active[v]
            constant = jnp.where(real, w * ((centres**2).sum(1) / s + jnp.log(s)), -NEVER)
            distance = (w / s)[:, None] * (unit[design.norm(v)] - 2 * centres)
            coef.append(distance + constant[:, None] * unit[-1])
            exists.append(real)
        tables = []
        for group, n in zip(design.groups, counts.joint, strict=True):
            real = exists[group[0]]
            for v in group[1:]:
                real = real[..., None] & exists[v]
            n = jnp.where(real, n + smoothing, 0)
            table = jnp.log(jnp.where(n > 0, n, 1) / n.sum())
            tables.append(jnp.where(n > 0, table, NEVER))
        return Codes(jnp.concatenate(coef), tuple(tables))

    def _scores(self, codes: Codes) -> list[jax.Array]:
        """Minus the lengths (K_v, n) of the rows in the clusters of every view."""
        cost = jnp.matmul(codes.coef, self.x.T, precision=_PRECISION)
        return [-cost[self.design.clusters(v)] for v in range(len(self.design.sizes))]

    def _by_group(self, codes: Codes, assign: Callable) -> list[jax.Array]:
        """Memberships (K_v, n) of all views, from ``assign(group, table)`` for every group."""
        members: list[Any] = [None] * len(self.design.sizes)
        for group, table in zip(self.design.groups, codes.tables, strict=True):
            for v, own in zip(group, assign(group, table), strict=True):
                members[v] = own
        return members

    def cells(self, members: list[jax.Array]) -> jax.Array:
        """Statistics (K, p) of the clusters of all views, from masses (K_v, n)."""
        return jnp.matmul(jnp.concatenate(members), self.x, precision=_PRECISION)

    def masses(self, ones: list[jax.Array]) -> tuple[list, tuple]:
        """Masses of one-hot memberships, and of the cells of every group."""
        groups = self.design.groups
        joint = [joint_cells.count([ones[v] for v in group], self.mass) for group in groups]
        return [one * self.mass for one in ones], tuple(joint)

    def mean_field_step(
        self, codes: Codes, temperature: jax.Array
    ) -> tuple[jax.Array, list, tuple]:
        """Free energy at the codes, and the masses that clusters and cells are expected to have.

        The free energy includes what the smoothing of the tables adds to the objective that the
        next codes minimise.
        """
        scores, mass = self._scores(codes), self.mass
        tops = [joint_cells.top(s) for s in scores]
        factors = [jnp.exp((s - top) / temperature) for s, top in zip(scores, tops, strict=True)]
        free = -(mass * sum(tops)).sum()
        joint = []

        def assign(group, table):
            nonlocal free
            weights = jnp.exp((table - table.max()) / temperature)
            totals, members, cells = joint_cells.expect(weights, [factors[v] for v in group], mass)
            free = free - (mass * (temperature * jnp.log(totals) + table.max())).sum()
            free = free - SMOOTHING * jnp.where(table > NEVER, table, 0).sum()
            joint.append(cells)
            return members

        members = self._by_group(codes, assign)
        return free, members, tuple(joint)

    def stochastic_step(
        self, codes: Codes, temperature: jax.Array, seed: jax.Array
    ) -> tuple[list, tuple]:
        """Draw a cell for every row; masses of clusters and cells.

        The draws only guide a search, so that the cheap generator will do.
        """
        factors = [jnp.exp((s - joint_cells.top(s)) / temperature) for s in self._scores(codes)]
        u = hashed_uniform(seed, (len(factors), self.mass.size), self.mass.dtype)

        def assign(group, table):
            weights = jnp.exp((table - table.max()) / temperature)
            return joint_cells.draw(weights, [factors[v] for v in group], u[np.asarray(group)])

        return self.masses(self._by_group(codes, assign))

    def best_step(self, codes: Codes) -> tuple[list, tuple, jax.Array]:
        """Give every row the cell that costs least; masses, and labels (V, n)."""
        scores = self._scores(codes)

        def assign(group, table):
            return joint_cells.best(table, [scores[v] for v in group])

        ones = self._by_group(codes, assign)
        labels = jnp.stack([one.argmax(0) for one in ones]).astype(jnp.int32)
        return *self.masses(ones), labels

    def lengths(self, counts: Counts) -> tuple[jax.Array, jax.Array]:
        """Length of the labels, and of the distances without constants."""
        total = counts.cells[self.design.clusters(0), -1].sum()
        partition = sum(xlogx(total) - xlogx(n).sum() for n in counts.joint)
        distance = jnp.zeros_like(total)
        for v, w in enumerate(self.numbers.weights):
            n, _, r, s = self.scales(counts.cells, v)
            distance = distance + w * (n * (jnp.log(s) - 1) + r / s).sum()
        return partition, distance

    def completion(self, counts: Counts) -> jax.Array:
        """What the distances of `lengths` need to be a complete code."""
        numbers, rest = self.numbers, jnp.zeros((), counts.cells.dtype)
        for v, w in enumerate(numbers.weights):
            n = counts.cells[self.design.clusters(v), -1]
            # One code for the whole view, or one for every cluster.
            whole = jnp.where(np.arange(n.size) == 0, n.sum(), 0)
            coded = jnp.where(numbers.per_cluster, n, whole)
            complexity = codelength.exponential_complexity(
                coded, numbers.low, numbers.high, shape=w, clamped=True
            )
            rest = rest + w * n.sum() + complexity.sum()
        return rest

    def start(self, seed: jax.Array, active: jax.Array) -> Counts:
        """Counts of equal clusters around rows drawn at random."""
        dtype, sizes = self.mass.dtype, self.design.sizes
        total = self.mass.sum()
        # There is one known group, so that padding comes last.
        at = jnp.floor(hashed_uniform(fold_in(seed, 1), (sum(sizes),), dtype)[self.place] * total)
        cells = self.x[at.astype(jnp.int32)]
        joint = [jnp.ones([sizes[v] for v in group], dtype) for group in self.design.groups]
        norms, shares = [], []
        for v, k in enumerate(sizes):
            # The scale is that of the whole view, which is 1.
            norms.append(np.tile(np.eye(cells.shape[1])[self.design.norm(v)], (k, 1)))
            shares.append(jnp.where(np.arange(k) < active[v], total / active[v].astype(dtype), 0))
        cells = (cells + np.concatenate(norms).astype(dtype)) * jnp.concatenate(shares)[:, None]
        return Counts(cells, tuple(joint))


@jit_by_size("design")
def solve_multiview(
    rows: Rows, numbers: Numbers, runs: Runs, *, design: Design
) -> MultiviewSolution:
    """Anneal many runs side by side, and end each at labels that no row wants to leave.

    ``runs`` holds, of every run, its ``seed``, its numbers of clusters ``active`` (S, V), the
    temperature ``start`` that it does not exceed, and ``constant``, what its complete length has
    besides that of labels and distances.
    """
    dtype = rows.mass.dtype
    n_runs, active = runs.active.shape[0], runs.active
    real = rows.mass.reshape(-1) > 0
    features, coder = numbers.columns.sum(0), Coder(design, numbers, rows)

    def step(state, i):
        counts, old = state
        annealing = i < numbers.n_anneal
        level = i // numbers.n_steps
        fresh = annealing & (i % numbers.n_steps == 0)
        top = numbers.top * numbers.cooling ** -level.astype(dtype)

        def one(counts, labels, active, seed, start):
            temperature = jnp.minimum(start, top)
            if design.e_step == "mean-field":
                noise = hashed_noise(fold_in(fold_in(seed, 3), i), counts.cells.shape, dtype)
                noise = noise[coder.place]
                moved = _NOISE * fresh * noise * features * counts.cells[:, -1:]
                counts = counts._replace(cells=counts.cells + moved)
            smoothing = jnp.where(annealing, SMOOTHING, 0).astype(dtype)
            codes = coder.codes(counts, active, smoothing)

            def anneal():
                if design.e_step == "mean-field":
                    members, joint = coder.mean_field_step(codes, temperature)[1:]
                else:
                    now = fold_in(fold_in(seed, 2), i)
                    members, joint = coder.stochastic_step(codes, temperature, now)
                return members, joint, labels

            members, joint, labels = jax.lax.cond(annealing, anneal, lambda: coder.best_step(codes))
            counts = Counts(coder.cells(members), joint)
            return counts, labels, sum(coder.lengths(counts))

        counts, labels, length = jax.vmap(one)(counts, old, active, runs.seed, runs.start)
        done = ~annealing & jnp.all((labels == old) | ~real, (1, 2))
        return (counts, labels), done, length

    start = jax.vmap(coder.start)(runs.seed, active)
    nowhere = jnp.full((n_runs, len(design.sizes), rows.mass.size), -1, jnp.int32)
    result = iterate(
        step, (start, nowhere), numbers.n_anneal + numbers.max_iter,
        done=jnp.zeros(n_runs, bool), trace=empty_trace(CAPACITY, dtype, n_runs),
    )  # fmt: skip
    labels = result.state[1]

    # The results, in float64.
    wide = _in_float64(rows, numbers.columns)
    exact = Coder(design, jax.tree.map(_wide, numbers), wide)

    def evaluate(labels):
        ones = [
            (np.arange(k)[:, None] == labels[v]).astype(jnp.float64)
            for v, k in enumerate(design.sizes)
        ]
        members, joint = exact.masses(ones)
        counts = Counts(exact.cells(members), joint)
        views = [exact.scales(counts.cells, v) for v in range(len(ones))]
        mass, centres, _, scales = zip(*views, strict=True)
        each = [jnp.broadcast_to(s, n.shape) for s, n in zip(scales, mass, strict=True)]
        parts = *exact.lengths(counts), exact.completion(counts)
        return *parts, *map(jnp.concatenate, (mass, centres, each))

    partition, distance, rest, *codes = jax.lax.map(evaluate, labels)
    labels = jnp.moveaxis(labels, 1, 2).reshape(n_runs, *rows.mass.shape, -1)
    objective = partition + distance + rest + runs.constant
    n_iter = jnp.full(n_runs, result.n_iter)
    return MultiviewSolution(
        labels, objective, partition, distance, result.done, n_iter, result.trace.T, *codes
    )


def _wide(value: jax.Array) -> jax.Array:
    real = jnp.issubdtype(value.dtype, jnp.floating)
    return value.astype(jnp.float64) if real else value


def _in_float64(rows: Rows, columns: jax.Array) -> Rows:
    """Rows in float64, with squared norms that are exact for it."""
    assert isinstance(rows.x, Dense)
    x = rows.x.x.astype(jnp.float64)
    norms = jnp.matmul(x**2, columns.T.astype(jnp.float64), precision=_PRECISION)
    n_views = norms.shape[-1]
    x = jnp.concatenate([x[..., : -n_views - 1], norms, x[..., -1:]], -1)
    return replace(rows, x=Dense(x), mass=rows.mass.astype(jnp.float64))
