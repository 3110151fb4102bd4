"""Annealed restarts of `nrprob.MDLMultiView` for given numbers of clusters.

All restarts of one coding of the labels run in one compiled program. There are n rows and V views,
and a view has d features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from nrprob.data.validation import check_random_state
from nrprob.engines.optimise import solve
from nrprob.estimator.calls import at_once
from nrprob.methods.mdl.annealing import (
    SMOOTHING,
    Design,
    MultiviewParameters,
    MultiviewSolution,
    Runs,
    solve_multiview,
)
from nrprob.methods.mdl.configurations import CELLS, Configuration, sum_of_critical_temperatures
from nrprob.methods.mdl.feature_lengths import IsotropicLengths
from nrprob.methods.mdl.informed_length import InformedLength
from nrprob.methods.mdl.informed_search import InformedSearch, SearchResult
from nrprob.methods.mdl.label_forests import root_length
from nrprob.methods.mdl.view_estimator import ViewClusterer
from nrprob.methods.mdl.views import Views, feature_columns
from nrprob.statistics.rows import active_mask, bucket_size, padded_count

# Initial temperatures of the restarts in turn, in units of 1.2 times the sum of the critical
# temperatures of the views.
STARTS = (1.0, 0.4, 0.16)
_END = 0.05  # final temperature of annealing, before hard assignments
_FEW_ROWS, _IMPROVED = 50, 3  # up to 50 rows, all restarts are improved; otherwise three


class AnnealedRestarts(ViewClusterer):
    """Base class of multi-view clusterers with annealed restarts, run by a compiled program."""

    def _solver_parameters(
        self, task: Views, starts: np.ndarray, largest: Sequence[int]
    ) -> MultiviewParameters:
        """Settings of the compiled solver that all runs share.

        ``starts`` are initial temperatures, which the restarts use in a cycle, and ``largest`` has
        the largest number of clusters of every view.
        """
        dtype = task.rows.mass.dtype
        # At lower temperatures, probabilities of the rarest cells underflow.
        rarest = -math.log(SMOOTHING / (task.n + SMOOTHING * math.prod(largest)))
        end = max(_END, rarest / (80 if dtype == np.float32 else 600))
        top = starts.max()
        levels = max(math.ceil(math.log(top / end) / math.log(self.cooling)), 1)
        low, high = map(float, self.scale_range)
        return MultiviewParameters(
            columns=feature_columns(self.view_sizes_, task.rows.x.n_statistics, dtype),
            first=np.cumsum([0, *largest[:-1]], dtype=np.int32),
            weights=self._weights.astype(dtype),
            low=np.asarray(low, dtype),
            high=np.asarray(high, dtype),
            per_cluster=np.asarray(self.sigma == "cluster"),
            cooling=np.asarray(self.cooling, dtype),
            top=np.asarray(top, dtype),
            n_anneal=np.asarray(self.n_steps * levels, np.int32),
            n_steps=np.asarray(self.n_steps, np.int32),
            max_iter=np.asarray(self.max_iter, np.int32),
        )

    def _solver_calls(
        self,
        task: Views,
        configurations: list[Configuration],
        largest: tuple[int, ...],
        settings: MultiviewParameters,
        starts: np.ndarray,
    ) -> list[solve.SolverCall]:
        """Make calls of the compiled solver for all restarts of all configurations.

        All configurations code the labels in the same way, jointly or separately. Memory limits the
        number of runs per call.

        Parameters
        ----------
        task : input and layout of the rows
        configurations : numbers of clusters and coding
        largest : largest number of clusters of every view
        settings : settings that all runs share
        starts : initial temperatures, which the restarts use in a cycle
        """
        n, dtype, n_init = task.n, task.rows.mass.dtype, self.n_init
        total = len(configurations) * n_init
        # One run per configuration and restart.
        random = check_random_state(self.random_state)
        runs = Runs(
            seed=random.randint(2**31 - 1, size=total).astype(np.uint32),
            active=np.repeat(np.asarray([c.sizes for c in configurations], np.int32), n_init, 0),
            start=np.tile(np.resize(starts, n_init), len(configurations)).astype(dtype),
            constant=np.repeat(
                [c.constant_length(n, self._coded_sizes) for c in configurations], n_init
            ),
        )
        # Split the runs into calls that fit into memory.
        sizes = self._padded_sizes(task, largest) if len(configurations) == 1 else largest
        table = math.prod(sizes[:-1]) if configurations[0].dependent and len(largest) > 2 else 0
        nbytes = task.rows.mass.size * (6 * sum(sizes) + 2 * table) * dtype.itemsize
        size = at_once(total, nbytes)
        data = sum(a.nbytes for a in jax.tree.leaves(task.rows))
        static = (("design", Design(sizes, configurations[0].view_groups, self.e_step)),)
        return [
            solve.SolverCall(
                solve_multiview,
                (
                    task.rows,
                    settings,
                    Runs(*(values[first : first + size] for values in runs)),
                ),
                static,
                data + nbytes * size,
            )
            for first in range(0, total, size)
        ]

    def _padded_sizes(self, task: Views, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Pad the numbers of clusters of all views, so that few distinct programs are compiled."""
        few, jointly = tuple(padded_count(k, 1) for k in sizes), any(self._coding_choices())
        cells, p = math.prod(few) if jointly else 0, task.rows.x.n_statistics
        entries = [task.layout.n_slots * max(p, cells // size) for size in few]
        if all(active_mask(k, e) is not None for k, e in zip(sizes, entries, strict=True)):
            return few
        few = tuple(max(bucket_size(k, 64), 2) for k in sizes)
        return sizes if task.n > 16384 or (jointly and math.prod(few) > CELLS) else few

    def _start_temperatures(self, scaled: list[np.ndarray]) -> np.ndarray:
        """Initial temperatures, which restarts use in a cycle, from ``scaled`` rows (n, d) by view.

        If there are more restarts than temperatures, the cycle begins again.
        """
        if not isinstance(self.start, str):
            return np.ravel(np.asarray(self.start, float))
        return 1.2 * sum_of_critical_temperatures(scaled, self._weights) * np.asarray(STARTS)

    # Results

    def _improve_annealed(
        self, lengths: Sequence[InformedLength], task: Views, result: Sequence[MultiviewSolution]
    ) -> list[tuple[InformedLength, SearchResult, list[SearchResult]]]:
        """Improve the shortest annealed restarts of every configuration by local search.

        With several configurations, the search starts from one restart of each configuration.

        Parameters
        ----------
        lengths : for every configuration, the function that computes description lengths
        task : input and settings of the annealed restarts
        result : solutions of the annealed restarts, one element per call

        Returns
        -------
        For every configuration, its element of ``lengths``, the shortest result, and the results of
        all restarts. The traces of the results have the steps of the annealing only.
        """
        every: MultiviewSolution = jax.tree.map(lambda *runs: np.concatenate(runs), *result)
        labels = [task.layout.from_blocks(z).astype(np.int64) for z in every.labels]
        task.n_iter = int(every.n_iter.max())
        count = self.n_init if task.n <= _FEW_ROWS else _IMPROVED
        count, tol, runs = 1 if len(lengths) > 1 else count, 1e-9 * task.n, []
        for i, length in enumerate(lengths):
            results = []
            for j in range(i * self.n_init, (i + 1) * self.n_init):
                trace = every.trace[j].astype(float)
                trace = (trace[~np.isnan(trace)] + length.constant).tolist()
                total = length.total(labels[j])
                results.append(SearchResult(labels[j], total, trace, bool(every.converged[j])))
            search = InformedSearch(length, tol, self.max_iter)
            for j in np.argsort([run.total for run in results], kind="stable")[:count]:
                better = search.improve(results[j].labels, splits=False)
                if better.total < results[j].total - tol:
                    results[j] = results[j]._replace(labels=better.labels, total=better.total)
            runs.append((length, min(results, key=lambda run: run.total), results))
        return runs

    def _temperatures(self, task: Views, trace: np.ndarray, run: int) -> np.ndarray:
        """Temperature of every entry of the ``trace`` of one restart; 0 for hard assignments.

        ``run`` is the index of the restart.
        """
        settings, step = task.calls[0].arrays[1], np.arange(trace.size)
        falling = settings.top * self.cooling ** -(step // self.n_steps).astype(float)
        return np.where(step < settings.n_anneal, np.minimum(falling, self._starts(task)[run]), 0.0)

    def _starts(self, task: Views) -> np.ndarray:
        """Initial temperatures (n_init,) of the restarts of one configuration."""
        return np.concatenate([call.arrays[2].start for call in task.calls])[: self.n_init]


def published_parts(length: InformedLength, labels: np.ndarray) -> tuple[float, float]:
    """Description lengths in nats of labels (n, V) and of squared distances, as published.

    As in the tables of Yin (2007), labels are coded by their relative frequencies, and both lengths
    exclude parametric complexities. The length of the distances refers to the units of X, and
    excludes all other constants.
    """
    if length.code == "table":
        words = root_length(np.unique(labels, axis=0, return_counts=True)[1], 1)
    else:
        words = sum(root_length(np.bincount(column), 1) for column in labels.T)
    distances = length.constant
    for features, column in zip(length.features, labels.T, strict=True):
        assert isinstance(features, IsotropicLengths)
        model: Any = features.distances
        size, _, scatter = model.cluster_statistics(column[None])
        s = model.scales(size, scatter)
        distances += model.weight * float((size * (np.log(s) - 1) + scatter / s).sum())
    return float(words), distances
