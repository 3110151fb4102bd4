"""Estimators whose objective is a sum of terms over cells, with their common solvers.

Shapes: n rows, k clusters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import sparse
from scipy.special import logsumexp

from nrprob.engines import placement, sharding
from nrprob.engines.optimise import merge, solve
from nrprob.engines.optimise.polish import build_terms, polish_labels
from nrprob.estimator.calls import (
    collect_restarts,
    padded_n_clusters,
    restart_calls,
    solution_memberships,
)
from nrprob.estimator.linear import LinearClusterer, Task
from nrprob.links import cluster_order
from nrprob.statistics import families
from nrprob.statistics.costs import SeparableCost
from nrprob.statistics.rows import Dense, Rows, Sparse, bucket_size

_MOST_ELEMENTS = 1 << 25  # largest number of entries of rows that a local search copies
SOLVERS = ("anneal", "sequential", "batched", "agglomerative")


class Descent(NamedTuple):
    """Options of the minimisation of a sum of terms.

    Attributes
    ----------
    solver : one of `SOLVERS`
    beta : final inverse temperature; infinite to end with hard labels
    compression : weight of the cluster entropy H(C). The free energy has the part
        (compression H(C) - H(C|X)) / beta, for clusters C and samples X. The weight is 1 in an
        information bottleneck, and 0 in EM
    damped : whether annealing shortens its steps, as an objective that is not concave needs
    quench, cooling, noise, tol : see `nrprob.engines.optimise.solve.Settings`
    """

    solver: str = "anneal"
    beta: float = np.inf
    compression: float = 1.0
    damped: bool = False
    quench: float = 1.0
    cooling: float = 1.15
    noise: float = 1e-3
    tol: float = 1e-4

    @property
    def compressed(self) -> bool:
        """Whether the objective of hard labels has the term compression n H(C) / beta."""
        return self.compression > 0 and bool(np.isfinite(self.beta))


def _widen(array: Any) -> Any:
    """Convert an array to NumPy, and floats to float64."""
    array = np.asarray(array)
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array


class TermEstimator(LinearClusterer):
    """Clusterer whose objective is a sum of terms over cells, as in `nrprob.statistics`.

    In addition to the methods of `LinearClusterer`, a subclass defines

    ``_problem(task)``
        Return a hashable function ``build`` that makes the terms, and the record of traced
        parameters that it reads; see `nrprob.engines.optimise.solve`.
    ``_descent()``
        Return the options of the minimisation. This method is called before and after ``_problem``;
        all options except the solver may depend on the results of ``_problem``.
    """

    # Whether a local search improves hard labels; a parameter of some subclasses.
    polish: bool = False
    # Attributes for the weights of the terms, in order; "" for a weight that is not stored.
    _weight_names: tuple[str, ...] = ()

    def _problem(self, task: Task) -> tuple[solve.Build, Any]:
        raise NotImplementedError

    def _descent(self) -> Descent:
        raise NotImplementedError

    @property
    def _separable(self) -> bool:
        """Whether the costs of all terms apply to the statistics themselves, not to a view."""
        return True

    def _row_masses(self, task: Task) -> np.ndarray | None:
        """Masses (n_samples,) of the rows, by default their weights; None if all are 1."""
        return task.weights

    def _initial_memberships(self, task: Task, n_clusters: int) -> np.ndarray | None:
        """Initial log memberships of an annealing; None for random initial memberships.

        Their shape is (blocks, rows per block, n_clusters), the arrangement of ``task.rows``.
        """
        return None

    # Fitting

    def prepare(self, X, y, known=None, sample_weight=None) -> Task:
        """Validate the input, arrange the rows in blocks, and define the runs of the solver."""
        self.check_parameters()
        task = self._read_task(X, y, known, sample_weight)
        self._check_size_of(task, self._descent().solver)
        mass = self._row_masses(task)
        self._total_mass = float(len(task.design.codes) if mass is None else mass.sum())
        task.lay_out(mass, self._one_is_few)
        task.build, parameters = self._problem(task)
        self._minimised = descent = self._descent()
        self._check_sparse(task, descent.solver)
        task.settings = solve.make_settings(
            task.x.dtype,
            n_clusters=self.n_clusters,
            max_iter=self.max_iter,
            method=parameters,
            **{name: getattr(descent, name) for name in solve.FLOATS},
        )
        task.share_among_devices()
        if descent.solver != "agglomerative":
            task.calls = self._calls(task)
        return task

    def _calls(self, task: Task) -> list[solve.SolverCall]:
        """Runs of the compiled solver for all restarts. The runs differ only in the seed."""
        rows, layout, descent = task.rows, task.layout, self._minimised
        n_clusters = padded_n_clusters(rows, layout, self.n_clusters)
        n_elements = (
            rows.mass.size // layout.n_shards * n_clusters * 5
            + rows.n_groups * n_clusters * (rows.x.n_statistics * 8)
        )
        static = {"build": task.build, "n_clusters": n_clusters}
        solver: Any = solve.solve_reassign
        if descent.solver == "anneal":
            solver = solve.solve_anneal
            task.settings = task.settings._replace(init=self._initial_memberships(task, n_clusters))
            static |= {
                "damped": descent.damped,
                "soft": bool(np.isfinite(descent.beta)),
            }
        else:
            static |= {"solver": descent.solver, "compressed": descent.compressed}
        return restart_calls(
            solver, static, rows, layout, task.fixed, [task.settings],
            n_init=self.n_init, random_state=self.random_state, n_elements=n_elements,
            stepwise=descent.solver == "sequential",
        )  # fmt: skip

    def compute(self, task: Task) -> list[solve.Solution]:
        """Run the solver; with ``solver="agglomerative"``, merge clusters."""
        return super().compute(task) if task.calls else [self._merge_rows(task)]

    def _merge_rows(self, task: Task) -> solve.Solution:
        """Merge clusters greedily, from one cluster per row down to ``n_clusters``."""
        x, rows, settings, fixed = task.x, task.rows, task.settings, task.fixed
        layout, design, build = task.layout, task.design, task.build
        n, m = x.shape
        cluster = np.arange(n)
        classes = np.full(n, -1)
        if fixed is not None:
            # Labelled rows of one class start as one cluster, numbered by its first row.
            for c in range(fixed.max() + 1):
                members = np.flatnonzero(fixed == c)
                cluster[members] = members[0]
                classes[members[0]] = c
        # Sum the weighted statistics of the initial clusters, by known group.
        used, cluster = np.unique(cluster, return_inverse=True)
        classes = classes[used]
        size = max(bucket_size(used.size, 8192), 2)
        p = rows.x.n_statistics
        cells = np.zeros((rows.n_groups, 1, size, p), x.dtype)
        dense = np.asarray(x.toarray() if sparse.issparse(x) else x)
        mass = np.ones(n) if task.weights is None else task.weights
        weighted = dense * mass.astype(dense.dtype)[:, None]
        np.add.at(cells[:, 0, :, :m], (design.codes, cluster), weighted)
        np.add.at(cells[:, 0, :, -1], (design.codes, cluster), mass)
        alive = np.arange(size) < used.size
        classes = np.concatenate([classes, np.full(size - used.size, -1)])
        compressed = self._minimised.compressed
        # Merge all pairs that may merge, and derive the linkage from costs and pairs.
        merged = solve.solve_merge(
            rows, settings, cells, alive, classes, build=build, compressed=compressed
        )
        pairs, costs = np.asarray(merged.pairs), np.asarray(merged.costs, float)
        allowed = np.isfinite(costs)
        pairs, costs = pairs[allowed], costs[allowed]
        sizes = np.bincount(cluster, minlength=used.size)
        self.linkage_ = merge.linkage_matrix(pairs, costs, sizes)
        self.merge_costs_ = costs
        # Cut the hierarchy at n_clusters, give labelled clusters the codes of their classes, and
        # evaluate the objective of the labels.
        labels = merge.cut_merges(pairs, used.size, self.n_clusters)
        if fixed is not None:
            order = cluster_order(labels, classes[: used.size], labels.max() + 1)
            labels = np.argsort(order)[labels]
        labels = layout.to_blocks(labels[cluster].astype(np.int32))
        result = solve.evaluate_labels(
            rows, settings, labels, None if fixed is None else layout.to_blocks(fixed, -1),
            build=build, n_clusters=max(self.n_clusters, 2), compressed=compressed,
        )  # fmt: skip
        result = jax.device_get(result)
        steps = max(used.size - self.n_clusters, 0)
        lost = np.concatenate([[0.0], np.cumsum(costs[:steps])])
        trace = result.objective[0] - lost[-1] + lost
        return result._replace(n_iter=np.asarray(max(steps, 1)), trace=trace)

    def _check_size_of(self, task: Task, solver: str) -> None:
        """Raise an error if the input is too large for the solver, or has soft memberships."""
        x, design = task.x, task.design
        if design.memberships is not None and solver != "anneal":
            raise ValueError(
                f"solver={solver!r} needs known labels; got soft Memberships; use solver='anneal'"
            )
        if solver == "agglomerative":
            size = design.n_groups * x.shape[0] * x.shape[1]
            if x.shape[0] > 20000 or size > 2e8:
                raise ValueError(
                    "solver='agglomerative' needs too much memory, since it stores statistics of "
                    f"every row in every known group; got {x.shape[0]} rows, {x.shape[1]} columns "
                    f"and {design.n_groups} groups; use solver='anneal' or 'sequential'"
                )

    @property
    def _sums_features(self) -> bool:
        """Whether the costs of cells are sums over features, as sweeps over sparse rows need."""
        cost = families.get_family(self._features.features).cost
        return isinstance(cost, SeparableCost) and self._separable

    def _check_sparse(self, task: Task, solver: str) -> None:
        """Raise an error for sparse rows that the solver cannot process with this objective."""
        if not sparse.issparse(task.x):
            return
        if solver == "batched" or (solver == "sequential" and not self._sums_features):
            raise ValueError(
                f"solver={solver!r} cannot take sparse X with this objective; got "
                f"features={self._features.features!r}; use solver='anneal'"
                + ("" if solver == "batched" else ", or coordination='marginal' with counts")
                + ", or pass a dense array"
            )

    def _device_mesh(self, X):
        solver, mesh = self._descent().solver, sharding.active_mesh()
        if solver != "anneal" and mesh is not None:
            raise ValueError(
                f"solver={solver!r} cannot shard rows over devices; got {mesh.size} device(s) "
                "from nrprob.sharded; use solver='anneal', or call fit outside of nrprob.sharded"
            )
        return super()._device_mesh(X) if solver == "anneal" else None

    # Results

    def finish(self, task: Task, result: list[solve.Solution]):
        """Set the fitted attributes; see `Clusterer.finish`."""
        if self._polishes(task):
            result = self._polish(task, result)
        restarts, best = collect_restarts(result, task.layout)
        fit, n_empty = best.fit, task.rows.n_groups - task.design.n_groups
        critical = fit.critical_beta
        if np.isnan(critical):
            critical = partial(solve.first_split_beta, task.rows, task.settings, build=task.build)
        self._keep_costs(
            fit.slope[: len(fit.slope) - n_empty], fit.log_prior, task.x.shape[1],
            beta=fit.beta, critical=critical,
        )  # fmt: skip
        self._keep_weights(fit.weights)
        self._store_results(
            restarts,
            membership=solution_memberships(best, task.layout, self.n_clusters),
            trace=best.trace,
            n_iter=best.n_iter,
            nothing_left=self._nothing_left(task.design.has_structure),
        )
        return self

    @property
    def hard_objective(self) -> bool:  # type: ignore[override]
        """Whether no move of one sample lowers the objective at ``labels_``."""
        descent = self._descent()
        is_hard = descent.solver != "anneal" or bool(np.isinf(descent.beta))
        return self.polish and is_hard and descent.solver in SOLVERS

    def _objective_at(self, task: Task, labels: np.ndarray) -> float:
        result = solve.evaluate_labels(
            task.rows, task.settings, task.layout.to_blocks(labels.astype(np.int32)), None,
            build=task.build, n_clusters=max(self.n_clusters, 2),
            compressed=self._minimised.compressed,
        )  # fmt: skip
        return float(result.objective[0])

    def _polishes(self, task: Task) -> bool:
        """Whether a local search improves the hard labels of the best restart."""
        rows = task.rows
        return (
            self.hard_objective
            and isinstance(rows, Rows)
            and not isinstance(rows, sharding.ShardedRows)
            and rows.share is None
            and task.design.columns is None
            and (isinstance(rows.x, Dense) or (isinstance(rows.x, Sparse) and self._sums_features))
            and sum(array.size for array in jax.tree.leaves(rows.x)) <= _MOST_ELEMENTS
        )

    def _polish(self, task: Task, result: list[solve.Solution]) -> list[solve.Solution]:
        """Improve the labels of the best restart by a local search, in float64."""
        best = min(result, key=lambda solution: solution.objective.min())
        restart = int(best.objective.argmin())
        labels = best.labels[..., restart]
        rows = jax.tree.map(_widen, task.rows)
        terms = build_terms(rows, task.settings, build=task.build)
        terms = tuple(
            replace(term, weight=np.float64(weight))
            for term, weight in zip(terms, best.fit.weights, strict=False)
        )
        compressed = self._minimised.compressed
        if compressed:
            terms = solve.add_compression_term(
                terms, rows, task.settings.compression / task.settings.beta
            )
        fixed = None if task.fixed is None else task.layout.to_blocks(task.fixed, -1)
        movable = np.ones(labels.shape, bool) if fixed is None else fixed < 0
        n_clusters = padded_n_clusters(task.rows, task.layout, self.n_clusters)
        with placement.small_steps_on_cpu():
            new = polish_labels(terms, rows, labels, movable, n_clusters, self.n_clusters)
        if (new == labels)[np.asarray(rows.mass) > 0].all():
            return result
        polished = solve.evaluate_labels(
            task.rows, task.settings, new, fixed,
            build=task.build, n_clusters=n_clusters, compressed=compressed,
        )  # fmt: skip
        polished = jax.device_get(polished)
        objective, all_labels = best.objective.copy(), best.labels.copy()
        objective[restart], all_labels[..., restart] = polished.objective[0], new
        changed = polished._replace(
            labels=all_labels,
            objective=objective,
            converged=best.converged,
            n_iter=best.n_iter,
            trace=np.append(best.trace[~np.isnan(best.trace)], polished.objective[0]),
            fit=polished.fit._replace(critical_beta=best.fit.critical_beta),
        )
        return [changed if solution is best else solution for solution in result]

    def _keep_weights(self, weights: np.ndarray) -> None:
        for name, value in zip(self._weight_names, weights, strict=False):
            if name:
                setattr(self, name, float(value))

    # New rows

    def _mixture_scores(self, cost: np.ndarray) -> np.ndarray:
        """Scores (n,) of rows from their costs ``cost`` (n, k) in all clusters.

        With hard labels, the score is minus the smallest cost. With soft memberships, the score
        is the log-sum-exp of minus the costs over the clusters, at the inverse temperature of the
        objective.
        """
        beta, compression = self._minimised.beta, self._minimised.compression
        if np.isinf(beta) or np.isinf(self.beta_):
            # The objective of hard labels has the term compression n H(C)/beta, where n H(C) is
            # n log(n) less the sum of n_c log(n_c) over clusters of size n_c. The costs contain the
            # derivative of the second part. Add the derivative of n log(n).
            cost = cost + compression * (1 + np.log(self._total_mass)) / beta
            return np.where(np.isfinite(self._log_prior), -cost, -np.inf).max(1)
        log_prior = self._log_prior - compression * np.log(self._total_mass)
        return logsumexp(log_prior - beta * cost, axis=1) / beta
