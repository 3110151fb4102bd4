"""Compiled solver of `nrprob.MDLMultiView`: minimise the description length of several views.

The views are divided into groups; the labels of the views of a group are coded jointly. A *cell* is
a combination of clusters, one of each view of a group. The statistics of a row are the features of
all views, the squared norm of the row in every view, and 1. The statistics of a cluster are the
sums over its rows, weighted by the masses of the rows. A *code* consists of the centres and scales
of the clusters and the shares of the cells; it determines the description length of every row.

Shapes: n rows, in B blocks of r rows; V views; p statistics of a row; K_v clusters of view v, and K
clusters in all, the sum of K_v over views. A *run* is one restart of one configuration (numbers of
clusters); S is the number of runs.
"""

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
from nrprob.methods.mdl import joint_cells
from nrprob.methods.mdl.joint_cells import NEVER
from nrprob.statistics.rows import Dense, Rows
from nrprob.statistics.xlogx import xlogx

CAPACITY = 1024  # number of entries of a trace; the last entry always belongs to the last step
SMOOTHING = 0.5  # added to every cell during annealing, so that empty cells can fill again
_PRECISION = jax.lax.Precision.HIGHEST
_NOISE = 1e-3  # perturbation of the centres, in units of the view's standard deviation


class MultiviewParameters(NamedTuple):
    """Settings of `solve_multiview` that all runs share.

    All settings are traced, so new values need no compilation.

    Attributes
    ----------
    columns : (V, p) for every view, 1 at the statistics that are features of the view, 0 elsewhere
    first : (V,) index of the first cluster of every view among the clusters of all views, without
        clusters that are padding
    weights : (V,) factor w of every view; a row with the squared distance r from its centre has the
        description length w (log s + r / s) at the scale s
    low, high : bounds of the scales s
    per_cluster : whether every cluster has a separate scale
    cooling : ratio of successive temperatures
    top : highest temperature
    n_anneal : number of annealing steps
    n_steps : number of annealing steps per temperature
    max_iter : maximum number of steps with hard assignments after annealing
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
    """Settings of `solve_multiview` that differ between S runs.

    Attributes
    ----------
    seed : (S,) seed of the random numbers of every run
    active : (S, V) number of clusters of every run in every view
    start : (S,) initial temperature of every run; the run keeps this temperature until the common
        schedule falls below it
    constant : (S,) part of the description length that depends only on the numbers of clusters
    """

    seed: Any
    active: Any
    start: Any
    constant: Any


class MultiviewSolution(NamedTuple):
    """Results of all S runs of one call of `solve_multiview`.

    Attributes
    ----------
    labels : (S, B, r, V) cluster of every row in every view; rows are in B blocks of r rows
    objective : (S,) complete description length of the scaled rows in nats, in float64
    partition : (S,) length of the labels in nats, coded by their relative frequencies
    distance : (S,) length of the squared distances in nats, without constants
    converged : (S,) whether the labels became stationary
    n_iter : (S,) number of E-steps, equal for all parallel runs
    trace : (S, 1024) sum of ``partition`` and ``distance`` after every step, NaN after the last
        step
    """

    labels: jax.Array
    objective: jax.Array
    partition: jax.Array
    distance: jax.Array
    converged: jax.Array
    n_iter: jax.Array
    trace: jax.Array


@dataclass(frozen=True)
class Design:
    """Static structure of a compiled `solve_multiview`.

    Attributes
    ----------
    sizes : for every view, the largest number of clusters over all runs
    groups : groups of views whose labels are coded jointly, as tuples of indices of views
    e_step : E-step of the annealing, "stochastic" or "mean-field"
    """

    sizes: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    e_step: str

    def cluster_slice(self, v: int) -> slice:
        """Slice of the clusters of view ``v`` in arrays over the clusters of all views."""
        start = sum(self.sizes[:v])
        return slice(start, start + self.sizes[v])

    def norm_column(self, v: int) -> int:
        """Negative index of the squared norm of view ``v`` among the statistics of a row."""
        return v - len(self.sizes) - 1


class Codes(NamedTuple):
    """Code of one run: coefficients of description lengths, and log frequencies of the cells.

    Attributes
    ----------
    coef : (K, p) coefficients of all clusters. The product with the statistics (p,) of a row is the
        description length of the features of the row in every cluster
    tables : for every group of jointly coded views v, u, ..., log shares (K_v, K_u, ...) of the
        cells
    """

    coef: jax.Array
    tables: tuple[jax.Array, ...]


class Counts(NamedTuple):
    """Sufficient statistics of the clusters and cells of one run.

    Attributes
    ----------
    cells : (K, p) statistics of the clusters of all views
    joint : for every group of jointly coded views v, u, ..., total masses (K_v, K_u, ...) of the
        rows in every cell
    """

    cells: jax.Array
    joint: tuple[jax.Array, ...]


class Coder:
    """E-steps and M-steps of one run, for given rows and settings.

    Attributes
    ----------
    x : (n, p) statistics of the rows, including rows that are padding
    mass : (n,) masses of the rows, 0 for padding
    positions : (K,) index of every cluster among the clusters that are not padding. The index
        selects random numbers, so that these numbers do not depend on padding
    """

    def __init__(self, design: Design, parameters: MultiviewParameters, rows: Rows):
        assert isinstance(rows.x, Dense)
        self.design, self.parameters = design, parameters
        self.x = rows.x.x.reshape(-1, rows.x.n_statistics)
        self.mass = rows.mass.reshape(-1)
        place = [parameters.first[v] + np.arange(k) for v, k in enumerate(design.sizes)]
        self.positions = jnp.minimum(jnp.concatenate(place), sum(design.sizes) - 1)

    def cluster_scales(self, cells: jax.Array, v: int) -> tuple[jax.Array, ...]:
        """Parameters of the clusters of view ``v``, from statistics ``cells`` (K, p) of all views.

        Returns
        -------
        n : (K_v,) masses
        centres : (K_v, p) centres, 0 for statistics that are not features of the view
        r : (K_v,) sums of the squared distances of the rows from the centres
        s : (K_v,) scales
        """
        parameters = self.parameters
        cells = cells[self.design.cluster_slice(v)]
        n, sums = cells[:, -1], cells * parameters.columns[v]
        filled = n > 0
        centres = jnp.where(filled[:, None], sums / jnp.where(filled, n, 1)[:, None], 0)
        r = jnp.maximum(cells[:, self.design.norm_column(v)] - (centres * sums).sum(1), 0)
        low, high = parameters.low.astype(n.dtype), parameters.high.astype(n.dtype)
        separate = jnp.where(filled, jnp.clip(r / jnp.where(filled, n, 1), low, high), 1)
        common = jnp.clip(r.sum() / n.sum(), low, high)
        return n, centres, r, jnp.where(parameters.per_cluster, separate, common)

    def m_step(self, counts: Counts, active: jax.Array, smoothing: Any) -> Codes:
        """M-step: compute the code of the shortest description, given the statistics ``counts``.

        ``active`` (V,) are the numbers of clusters of the views. ``smoothing`` is added to the mass
        of every cell.
        """
        design, coef, exists = self.design, [], []
        unit = np.eye(counts.cells.shape[1], dtype=counts.cells.dtype)
        # Length of a row in a cluster, w (|x - c|^2 / s + log s), is linear in its statistics.
        for v, k in enumerate(design.sizes):
            _, centres, _, s = self.cluster_scales(counts.cells, v)
            w = self.parameters.weights[v]
            real = np.arange(k) < active[v]
            constant = jnp.where(real, w * ((centres**2).sum(1) / s + jnp.log(s)), -NEVER)
            distance = (w / s)[:, None] * (unit[design.norm_column(v)] - 2 * centres)
            coef.append(distance + constant[:, None] * unit[-1])
            exists.append(real)
        # Log frequencies of the cells, smoothed; `NEVER` for padded clusters.
        tables = []
        for group, n in zip(design.groups, counts.joint, strict=True):
            real = exists[group[0]]
            for v in group[1:]:
                real = real[..., None] & exists[v]
            n = jnp.where(real, n + smoothing, 0)
            table = jnp.log(jnp.where(n > 0, n, 1) / n.sum())
            tables.append(jnp.where(n > 0, table, NEVER))
        return Codes(jnp.concatenate(coef), tuple(tables))

    def _cluster_scores(self, codes: Codes) -> list[jax.Array]:
        """For every view, minus the description lengths (K_v, n) of the rows in its clusters."""
        cost = jnp.matmul(codes.coef, self.x.T, precision=_PRECISION)
        return [-cost[self.design.cluster_slice(v)] for v in range(len(self.design.sizes))]

    def _by_group(self, codes: Codes, assign: Callable) -> list[jax.Array]:
        """Memberships of the rows, an array (K_v, n) for every view v.

        ``assign(group, table)`` computes the memberships for one group of jointly coded views, from
        the log shares ``table`` of its cells.
        """
        members: list[Any] = [None] * len(self.design.sizes)
        for group, table in zip(self.design.groups, codes.tables, strict=True):
            for v, membership in zip(group, assign(group, table), strict=True):
                members[v] = membership
        return members

    def cluster_statistics(self, members: list[jax.Array]) -> jax.Array:
        """Statistics (K, p) of the clusters of all views.

        ``members`` has an array (K_v, n) per view: for every cluster and row, the membership of the
        row times its mass.
        """
        return jnp.matmul(jnp.concatenate(members), self.x, precision=_PRECISION)

    def cell_masses(self, indicators: list[jax.Array]) -> tuple[list, tuple]:
        """Masses of the rows in clusters and in cells, for hard labels.

        ``indicators`` are one-hot labels (K_v, n), one array per view.

        Returns
        -------
        members : for every view, the mass (K_v, n) of every row in its cluster, 0 elsewhere
        joint : for every group of jointly coded views, the total masses of its cells
        """
        groups = self.design.groups
        joint = [
            joint_cells.count_cells([indicators[v] for v in group], self.mass) for group in groups
        ]
        return [indicator * self.mass for indicator in indicators], tuple(joint)

    def mean_field_step(
        self, codes: Codes, temperature: jax.Array
    ) -> tuple[jax.Array, list, tuple]:
        """Mean-field E-step: compute the probabilities of all cells of every row.

        Returns
        -------
        free : free energy, with the smoothing of the tables as in the objective of the next M-step
        members : for every view, expected masses (K_v, n) of the rows in the clusters
        joint : for every group of jointly coded views, expected total masses of its cells
        """
        # Boltzmann factors exp(score / temperature), relative to the best cluster of each row.
        scores, mass = self._cluster_scores(codes), self.mass
        tops = [joint_cells.leading_maximum(s) for s in scores]
        factors = [jnp.exp((s - top) / temperature) for s, top in zip(scores, tops, strict=True)]
        free = -(mass * sum(tops)).sum()
        joint = []

        def assign_expected(group, table):
            nonlocal free
            weights = jnp.exp((table - table.max()) / temperature)
            totals, members, cells = joint_cells.expected_cells(
                weights, [factors[v] for v in group], mass
            )
            free = free - (mass * (temperature * jnp.log(totals) + table.max())).sum()
            free = free - SMOOTHING * jnp.where(table > NEVER, table, 0).sum()
            joint.append(cells)
            return members

        members = self._by_group(codes, assign_expected)
        return free, members, tuple(joint)

    def stochastic_step(
        self, codes: Codes, temperature: jax.Array, seed: jax.Array
    ) -> tuple[list, tuple]:
        """Stochastic E-step: sample a cell for every row, and return masses as `cell_masses` does.

        The samples only guide a search, so a hash is good enough as random number generator.
        """
        factors = [
            jnp.exp((s - joint_cells.leading_maximum(s)) / temperature)
            for s in self._cluster_scores(codes)
        ]
        u = hashed_uniform(seed, (len(factors), self.mass.size), self.mass.dtype)

        def assign_sampled(group, table):
            weights = jnp.exp((table - table.max()) / temperature)
            return joint_cells.sample_cells(
                weights, [factors[v] for v in group], u[np.asarray(group)]
            )

        return self.cell_masses(self._by_group(codes, assign_sampled))

    def best_step(self, codes: Codes) -> tuple[list, tuple, jax.Array]:
        """Hard E-step: assign every row to the cell in which its description is shortest.

        Returns the two results of `cell_masses`, and labels (V, n).
        """
        scores = self._cluster_scores(codes)

        def assign_best(group, table):
            return joint_cells.maximise_cells(table, [scores[v] for v in group])

        indicators = self._by_group(codes, assign_best)
        labels = jnp.stack([indicator.argmax(0) for indicator in indicators]).astype(jnp.int32)
        return *self.cell_masses(indicators), labels

    def code_lengths(self, counts: Counts) -> tuple[jax.Array, jax.Array]:
        """Description lengths in nats of the labels, and of the squared distances.

        The second length excludes constants; `completion_length` returns the missing terms.
        """
        total = counts.cells[self.design.cluster_slice(0), -1].sum()
        partition = sum(xlogx(total) - xlogx(n).sum() for n in counts.joint)
        distance = jnp.zeros_like(total)
        for v, w in enumerate(self.parameters.weights):
            n, _, r, s = self.cluster_scales(counts.cells, v)
            distance = distance + w * (n * (jnp.log(s) - 1) + r / s).sum()
        return partition, distance

    def completion_length(self, counts: Counts) -> jax.Array:
        """Terms in nats that `code_lengths` leaves out.

        The terms are constants, and the parametric complexities of the scales.
        """
        parameters, rest = self.parameters, jnp.zeros((), counts.cells.dtype)
        for v, w in enumerate(parameters.weights):
            n = counts.cells[self.design.cluster_slice(v), -1]
            # One scale per view, or one per cluster.
            pooled = jnp.where(np.arange(n.size) == 0, n.sum(), 0)
            coded = jnp.where(parameters.per_cluster, n, pooled)
            complexity = codelength.exponential_complexity(
                coded, parameters.low, parameters.high, shape=w, clamped=True
            )
            rest = rest + w * n.sum() + complexity.sum()
        return rest

    def initial_counts(self, seed: jax.Array, active: jax.Array) -> Counts:
        """Initial statistics: clusters of a view have equal masses, and random rows as centres.

        ``active`` (V,) are the numbers of clusters of the views.
        """
        dtype, sizes = self.mass.dtype, self.design.sizes
        total = self.mass.sum()
        # All rows have the same known group, so that padding comes after all rows.
        index = jnp.floor(
            hashed_uniform(fold_in(seed, 1), (sum(sizes),), dtype)[self.positions] * total
        )
        cells = self.x[index.astype(jnp.int32)]
        joint = [jnp.ones([sizes[v] for v in group], dtype) for group in self.design.groups]
        norms, shares = [], []
        for v, k in enumerate(sizes):
            # The scale is 1, the standard deviation of the view.
            norms.append(np.tile(np.eye(cells.shape[1])[self.design.norm_column(v)], (k, 1)))
            shares.append(jnp.where(np.arange(k) < active[v], total / active[v].astype(dtype), 0))
        cells = (cells + np.concatenate(norms).astype(dtype)) * jnp.concatenate(shares)[:, None]
        return Counts(cells, tuple(joint))


@jit_by_size("design")
def solve_multiview(
    rows: Rows, parameters: MultiviewParameters, runs: Runs, *, design: Design
) -> MultiviewSolution:
    """Anneal many runs in parallel, then repeat hard assignments until no label changes.

    Parameters
    ----------
    rows : statistics and masses of the rows
    parameters : settings that all runs share
    runs : settings that differ between runs
    design : static structure of the program
    """
    dtype = rows.mass.dtype
    n_runs, active = runs.active.shape[0], runs.active
    real = rows.mass.reshape(-1) > 0
    features, coder = parameters.columns.sum(0), Coder(design, parameters, rows)

    def annealing_step(state, i):
        counts, old = state
        # Temperature of this step; after annealing, hard assignments.
        annealing = i < parameters.n_anneal
        level = i // parameters.n_steps
        fresh = annealing & (i % parameters.n_steps == 0)
        top = parameters.top * parameters.cooling ** -level.astype(dtype)

        def run_step(counts, labels, active, seed, start):
            temperature = jnp.minimum(start, top)
            if design.e_step == "mean-field":
                # Perturb the centres at every new temperature; equal clusters would never split.
                noise = hashed_noise(fold_in(fold_in(seed, 3), i), counts.cells.shape, dtype)
                noise = noise[coder.positions]
                perturbation = _NOISE * fresh * noise * features * counts.cells[:, -1:]
                counts = counts._replace(cells=counts.cells + perturbation)
            smoothing = jnp.where(annealing, SMOOTHING, 0).astype(dtype)
            codes = coder.m_step(counts, active, smoothing)

            def e_step():
                if design.e_step == "mean-field":
                    members, joint = coder.mean_field_step(codes, temperature)[1:]
                else:
                    key = fold_in(fold_in(seed, 2), i)
                    members, joint = coder.stochastic_step(codes, temperature, key)
                return members, joint, labels

            members, joint, labels = jax.lax.cond(annealing, e_step, lambda: coder.best_step(codes))
            counts = Counts(coder.cluster_statistics(members), joint)
            return counts, labels, sum(coder.code_lengths(counts))

        counts, labels, length = jax.vmap(run_step)(counts, old, active, runs.seed, runs.start)
        done = ~annealing & jnp.all((labels == old) | ~real, (1, 2))
        return (counts, labels), done, length

    start = jax.vmap(coder.initial_counts)(runs.seed, active)
    no_labels = jnp.full((n_runs, len(design.sizes), rows.mass.size), -1, jnp.int32)
    result = iterate(
        annealing_step, (start, no_labels), parameters.n_anneal + parameters.max_iter,
        done=jnp.zeros(n_runs, bool), trace=empty_trace(CAPACITY, dtype, n_runs),
    )  # fmt: skip
    labels = result.state[1]

    # Evaluate the final labels in float64.
    rows_64 = _float64_rows(rows, parameters.columns)
    exact = Coder(design, jax.tree.map(_float64_array, parameters), rows_64)

    def evaluate_labels(labels):
        indicators = [
            (np.arange(k)[:, None] == labels[v]).astype(jnp.float64)
            for v, k in enumerate(design.sizes)
        ]
        members, joint = exact.cell_masses(indicators)
        counts = Counts(exact.cluster_statistics(members), joint)
        return *exact.code_lengths(counts), exact.completion_length(counts)

    partition, distance, rest = jax.lax.map(evaluate_labels, labels)
    labels = jnp.moveaxis(labels, 1, 2).reshape(n_runs, *rows.mass.shape, -1)
    objective = partition + distance + rest + runs.constant
    n_iter = jnp.full(n_runs, result.n_iter)
    return MultiviewSolution(
        labels, objective, partition, distance, result.done, n_iter, result.trace.T
    )


def _float64_array(value: jax.Array) -> jax.Array:
    real = jnp.issubdtype(value.dtype, jnp.floating)
    return value.astype(jnp.float64) if real else value


def _float64_rows(rows: Rows, columns: jax.Array) -> Rows:
    """Convert rows to float64, and compute their squared norms in all views in float64.

    ``columns`` (V, p) are the indicators of `MultiviewParameters`.
    """
    assert isinstance(rows.x, Dense)
    x = rows.x.x.astype(jnp.float64)
    norms = jnp.matmul(x**2, columns.T.astype(jnp.float64), precision=_PRECISION)
    n_views = norms.shape[-1]
    x = jnp.concatenate([x[..., : -n_views - 1], norms, x[..., -1:]], -1)
    return replace(rows, x=Dense(x), mass=rows.mass.astype(jnp.float64))
