"""Conditional mixtures of stored (out-of-core) rows: every EM step is a sum over blocks of rows.

The group means need one pass over all rows, and the covariance of the residuals needs another pass.
An EM step of all active restarts needs one pass. The restarts begin on a subsample of the rows in
memory. n is the number of rows of the subsample, S the number of restarts.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.data.design import Design
from nrprob.data.labels import factorize
from nrprob.data.storage.blocks import Blocks
from nrprob.data.storage.stored import Stored, Survey, survey_rows
from nrprob.engines.optimise.iterate import map_restarts
from nrprob.estimator.base import Restarts, fit_context
from nrprob.estimator.stored import check_survey, collect_labels, start_seed
from nrprob.methods.conditional.coordinates import Coordinates
from nrprob.methods.conditional.em import Hyperparameters, Model, Parameters, Residuals
from nrprob.methods.conditional.regression import Removal
from nrprob.methods.conditional.solver import Fit, RestartEM, distinct_leaders, free_weights_improve
from nrprob.methods.conditional.starts import stratified_sample
from nrprob.methods.conditional.stored_checks import check_in_memory, fits_table
from nrprob.methods.conditional.stored_rows import collect_rows, learn_columns, mean_by_group
from nrprob.methods.conditional.stored_table import fit_stored_table
from nrprob.methods.conditional.streaming import (
    Common,
    block_e_step,
    block_scatter,
    contingency_tables,
    global_m_step,
    lay_out_chunk,
    residual_products,
    restart_labels,
    to_coordinates,
)  # fmt: skip
from nrprob.methods.conditional.task import WEIGHTS, ResidualTask, count_leaders, lay_out
from nrprob.settings import standard

_ROWS = 1 << 15  # rows of a block
_FEW, _EACH = 1 << 13, 1 << 9  # rows of the subsample: in all or per cluster, the larger
_SAMPLE_STEPS = 20  # EM steps on the subsample, and of the warm-up before them
_LEADER_PASSES = 10  # EM steps on all rows of the leaders, the best restarts of the subsample
_FINALISTS = 2  # restarts that run to convergence
_MAX_COLUMNS = 2048  # largest number of columns, whose matrix of products has to fit into memory


@partial(jax.jit, static_argnames=("covariance", "robust", "k", "warm_up"))
def _run_on_sample(
    task: tuple[Residuals, Hyperparameters, jax.Array, jax.Array, jax.Array | None],
    free: jax.Array,
    covariance: str,
    robust: bool,
    k: int,
    warm_up: bool,
) -> Parameters:
    """Parameters of all restarts after some EM steps on the subsample.

    ``task`` has the residuals of the subsample, the settings, the initial labels, whether a restart
    has a warm-up, and the classes of labelled rows. ``warm_up`` is True if any restart has a
    warm-up. The other arguments are as in `Model`.
    """
    data, hyperparameters, starts, warm, fixed = task
    restart_em = RestartEM(Model(data, hyperparameters, covariance, robust, k, free), fixed)

    def run_restart(labels, warm):
        return restart_em.warm_up(
            labels, warm if warm_up else None, _SAMPLE_STEPS, hyperparameters.max_iter
        ).t

    return map_restarts(run_restart, (starts.reshape(len(starts), -1), warm), 1)


@partial(jax.jit, static_argnames=("covariance", "robust", "k"))
def _at_sample(
    data: Residuals, hyperparameters: Hyperparameters, fixed: jax.Array | None, every: Parameters,
    free: jax.Array, covariance: str, robust: bool, k: int,
) -> jax.Array:  # fmt: skip
    """Labels (S, n) of the n rows of the subsample, given the parameters ``every`` of S restarts.

    The other arguments are as in `RestartEM` and `Model`.
    """
    restart_em = RestartEM(Model(data, hyperparameters, covariance, robust, k, free), fixed)
    none = jnp.zeros((k, restart_em.model.n_groups), data.y.dtype)
    return jax.lax.map(
        lambda t: restart_em.model.row_labels(restart_em.resume_from(t, none).w), every
    )


class Ends(NamedTuple):
    """States of S restarts with one error distribution and one type of cluster weights.

    Attributes
    ----------
    t : parameters of the restarts; every array has a leading axis of length S
    objective, penalty : (S,) the maximised objective, and the penalty that it contains
    done, n_iter : (S,) whether the restart has converged, and its number of EM steps on all rows
    trace : minimised objective of the best active restart after every pass over the rows
    """

    t: Parameters
    objective: np.ndarray
    penalty: np.ndarray
    done: np.ndarray
    n_iter: np.ndarray
    trace: list[float]


class _Search:
    """A search by successive halving, for one error distribution and one type of cluster weights.

    Parameters
    ----------
    model : the `ConditionalMixture`
    blocks : blocks of all rows, in the coordinates of the fit
    task : the subsample and the initial labels
    common : arrays that the EM steps of all restarts share
    errors : error distribution, "gaussian" or "t"
    """

    def __init__(self, model: Any, blocks: Blocks, task: ResidualTask, common: Common, errors: str):
        self.model, self.blocks, self.task, self.common = model, blocks, task, common
        self.k = model.n_clusters
        self.robust = errors == "t"
        self.constant = jnp.asarray(model._log_constant(task.hyperparameters, errors))
        self.kind = {"covariance": model.covariance, "robust": self.robust, "k": self.k}
        self.static = self.kind | {"labelled": task.fixed is not None}

    def __call__(self, extra: Parameters | None) -> Ends:
        """Run all restarts on the subsample, and continue the best restarts on all rows.

        The parameters ``extra``, unless they are None, replace the result of the last restart on
        the subsample.
        """
        model, task, common = self.model, self.task, self.common
        hyperparameters = task.hyperparameters._replace(constant=self.constant)
        arrays = task.data, hyperparameters, task.starts, task.warm, task.fixed
        every = _run_on_sample(arrays, common.free, warm_up=bool(model.warm_up), **self.kind)
        every = jax.tree.map(np.array, every)
        if extra is not None:
            every = jax.tree.map(lambda a, b: np.concatenate([a[:-1], b[None]]), every, extra)
        s = len(every.s0)
        ends = Ends(
            every, np.full(s, -np.inf), np.zeros(s), np.zeros(s, bool), np.zeros(s, int), []
        )
        self._evaluate_objective(ends)
        n_leaders = count_leaders(s)
        on = self._distinct_leaders(ends, range(s), n_leaders)
        self._run_em(ends, on, min(_LEADER_PASSES, model.max_iter))
        on = self._distinct_leaders(ends, on, _FINALISTS)
        self._run_em(ends, on, model.max_iter)
        # Rounding errors of EM steps may lower the objective of a finalist. Bound the objectives of
        # all other restarts, so that a finalist is the best restart.
        behind = np.delete(np.arange(s), on)
        most = np.nextafter(ends.objective[on].max(), -np.inf)
        ends.objective[behind] = np.minimum(ends.objective[behind], most)
        return ends

    def sample_labels(self, every: Parameters) -> np.ndarray:
        """Labels (S, n) of the n rows of the subsample for S restarts with parameters ``every``."""
        task = self.task
        result = _at_sample(
            task.data, task.hyperparameters, task.fixed, every, self.common.free, **self.kind
        )
        shape = -1, *task.data.mass.shape
        return np.stack([task.layout.from_blocks(row) for row in np.asarray(result).reshape(shape)])

    def _distinct_leaders(self, ends: Ends, among: Iterable[int], most: int) -> list[int]:
        """Indices of at most ``most`` restarts with distinct clusters, the best first.

        ``among`` are the indices of the restarts to select from.
        """
        result, some = self.sample_labels(ends.t), list(among)
        real = jnp.ones(result.shape[1], bool)
        lead, exists = distinct_leaders(
            jnp.asarray(result[some]), jnp.asarray(ends.objective[some]), real, self.k, most
        )
        return [some[i] for i in np.asarray(lead)[np.asarray(exists)]]

    def _em_pass(self, every: Parameters) -> tuple[Parameters, np.ndarray, np.ndarray, np.ndarray]:
        """Take one EM step of all restarts on all rows.

        Returns
        -------
        after : new parameters
        objective, penalty : (S,) objective and penalty of the old parameters ``every``
        change : (S,) change of the parameters, as in `global_m_step`
        """
        add = partial(block_e_step, **self.static)
        dtype = self.common.inverse_scale.dtype
        narrow = jax.tree.map(lambda a: np.asarray(a, dtype), every)
        result, free = self.blocks.map_sum(add, narrow, self.common)
        out = global_m_step(result, every, free, self.common, self.constant, **self.kind)
        return tuple(jax.tree.map(np.asarray, part) for part in out)  # type: ignore[return-value]

    def _evaluate_objective(self, ends: Ends) -> None:
        """Compute objective and penalty of all restarts on all rows, and store them in ``ends``."""
        _, objective, penalty, _ = self._em_pass(ends.t)
        ends.objective[:], ends.penalty[:] = objective, penalty

    def _run_em(self, ends: Ends, on: list[int], most: int) -> None:
        """Take EM steps on all rows for the restarts with the indices ``on``, and update ``ends``.

        The steps end when all these restarts have converged, or after ``most`` steps.
        """
        on = [i for i in on if not ends.done[i]]
        every = jax.tree.map(lambda a: a[on], ends.t)
        # `ends` receives the parameters before an M-step, whose objective the pass has computed.
        rounding = np.finfo(self.common.inverse_scale.dtype).eps
        seen = 0
        while on and seen <= most:
            new, objective, penalty, moved = self._em_pass(every)
            for j, i in enumerate(on):
                gain = objective[j] - ends.objective[i]
                limit = max(self.model.tol, rounding * abs(objective[j]))
                if seen and ends.n_iter[i] and gain <= limit and moved[j] <= self.model.tol:
                    ends.done[i] = True
                ends.objective[i], ends.penalty[i] = objective[j], penalty[j]
                for a, b in zip(jax.tree.leaves(ends.t), jax.tree.leaves(every), strict=True):
                    a[i] = b[j]
                ends.n_iter[i] += seen > 0
            ends.trace.append(float(-ends.objective[on].max()))
            if self.model.verbose:
                print(f"pass {seen} over the rows: objective {-ends.objective.max():.6g} nats")
            unfinished = [j for j, i in enumerate(on) if not ends.done[i]]
            on = [on[j] for j in unfinished]
            every = jax.tree.map(lambda a, unfinished=unfinished: a[unfinished], new)
            seen += 1


def fit_mixture(model: Any, rows: Stored, y: Any, known: Any) -> Any:
    """Fit a `nrprob.ConditionalMixture` to stored rows.

    Parameters
    ----------
    model : the unfitted estimator, which receives the fitted attributes
    rows : the stored rows
    y, known : target labels and known structure, as in `fit`
    """
    model.check_parameters()
    model._check_one_device()
    check_in_memory(model)
    if model.multi != "product" and not (known is None or isinstance(known, str)):
        raise ValueError(
            f"labelings of stored rows need multi='product'; got multi={model.multi!r}; set "
            "multi='product', or pass one labeling"
        )
    with fit_context(model), standard(), survey_rows(rows, known, y) as seen:
        fixed = check_survey(model, seen)
        m = len(seen.moments.mean)
        if m > _MAX_COLUMNS:
            raise ValueError(
                f"stored rows may have at most {_MAX_COLUMNS} columns; got {m}; pass fewer columns"
            )
        model._encoder = seen.encoder
        model._check_groups(seen.design)
        arrays = {"codes": seen.design.codes.astype(np.int32)}
        if fixed is not None:
            arrays["fixed"] = fixed.astype(np.int32)
        rows_in_blocks = seen.make_blocks(_ROWS, lay_out_chunk, arrays)
        columns = learn_columns(model, seen, rows_in_blocks)
        if fits_table(model, columns):
            return fit_stored_table(model, seen, rows_in_blocks, columns, fixed)
        blocks, coordinates = _set_coordinates(model, seen, rows_in_blocks)
        task, common = _prepare_sample(model, seen, blocks, coordinates, fixed)
        fits: list[tuple[_Search, Ends, bool]] = []
        for errors in ("gaussian", "t"):
            if model.errors in (errors, "auto"):
                fits.append(_best_weights(model, blocks, task, common, errors, WEIGHTS))
        return _store_result(model, seen, blocks, task, fits)


def _set_coordinates(model: Any, seen: Survey, blocks: Blocks) -> tuple[Blocks, Coordinates]:
    """Subtract group means, and map the residuals to the coordinates of the fit.

    The group means and the coordinates become attributes of ``model``.

    Returns
    -------
    blocks : blocks of all rows in the coordinates
    coordinates : map from the residuals to the coordinates
    """
    n, moments, n_groups = seen.n_all, seen.moments, seen.design.n_groups
    effects, _ = mean_by_group(seen, blocks)
    model._removal = Removal(effects, n_groups, moments.mean)
    model._is_balanced = False
    model.noise_ = model.noise_gain_ = 0.0
    model._fitted, model._units, model._columns = None, None, None
    square, fourth = blocks.map_sum(residual_products, effects)
    before = float((moments.square.sum() / n + (moments.mean**2).sum()) / len(square))
    dof = n - n_groups
    model._check_left(seen.design, dof, float(np.trace(square)) / (n * len(square)), before)
    if n <= 2 * len(square):
        raise ValueError(
            f"the number of stored rows must be more than twice the number of columns; got {n} "
            f"rows and {len(square)} columns; pass an array"
        )
    coordinates = Coordinates.from_moments(
        square, float(fourth), n, dof, model.covariance, model.ridge
    )
    model._coordinates, model.shrinkage_ = coordinates, coordinates.shrinkage
    return blocks.transform_blocks(to_coordinates, effects, coordinates.basis), coordinates


def _prepare_sample(
    model: Any, seen: Survey, blocks: Blocks, coordinates: Coordinates, fixed: np.ndarray | None
) -> tuple[ResidualTask, Common]:  # fmt: skip
    """Draw the subsample; compute its initial labels, and the arrays that all EM steps share.

    ``fixed`` has one entry per stored row: the class of a labelled row, else -1. None without
    labels.
    """
    seed = start_seed(model, seen)
    rng = np.random.default_rng(seed)
    n, k, dtype = seen.n_all, model.n_clusters, seen.source.dtype
    strata = seen.design.codes
    if fixed is not None:
        strata = factorize(np.column_stack([strata, fixed]))[0]
    size = max(_FEW, _EACH * k) * seen.n_samples // n
    chosen, times = stratified_sample(strata, max(size, 1), rng)
    labels = None if fixed is None else fixed[chosen]
    y, codes, times = collect_rows(seen, blocks, chosen, seen.design.codes[chosen], times)
    few = Design.from_groups(codes, seen.design.n_groups)
    task = lay_out(
        model, coordinates, y.astype(np.float64), few, labels, np.asarray([False]), dtype,
        times * (coordinates.dof / times.sum()), seed,
    )  # fmt: skip
    # Clusters are not padded, since programs over many rows run much longer than they compile.
    task.data = task.data._replace(active=None)
    width = task.data.y.shape[-1] - y.shape[1]
    if width:
        p = y.shape[1]
        task.data = task.data._replace(
            y=task.data.y[..., :p], inverse_scale=task.data.inverse_scale[:p]
        )
        rounding = task.hyperparameters.rounding
        task.hyperparameters = task.hyperparameters._replace(
            rounding=rounding[(slice(p),) * rounding.ndim]
        )
    squares = blocks.map_sum(partial(block_scatter, covariance=model.covariance)) * (
        coordinates.dof / n
    )
    row_mass = np.asarray(coordinates.dof / n, dtype)
    free = np.asarray(False)
    return task, Common(
        task.hyperparameters, row_mass, task.data.inverse_scale, squares.astype(dtype), free
    )


def _best_weights(
    model: Any, blocks: Blocks, task: ResidualTask, common: Common, errors: str,
    weights: dict[str, tuple[bool, ...]],
) -> tuple[_Search, Ends, bool]:  # fmt: skip
    """Search with equal weights of the clusters, with free (fitted) weights, or with both.

    The parameter ``weights`` of the model determines the searches. After two searches,
    `free_weights_improve` selects one of them. The search with free weights has the best restart
    with equal weights among its initial values.

    Parameters
    ----------
    model, blocks, task, common, errors : as in `_Search`
    weights : for every value of the model's parameter, whether the searches have free weights

    Returns
    -------
    search : the selected search
    ends : restarts of the selected search
    free : whether the selected search has free weights
    """
    best: tuple[_Search, Ends, bool] | None = None
    for free in weights[model.weights]:
        search = _Search(model, blocks, task, common._replace(free=np.asarray(free)), errors)
        if best is None:
            best = search, search(None), free
            continue
        _, equal, _ = best
        best_equal = equal.objective.argmax()
        extra = jax.tree.map(lambda a, i=best_equal: a[i], equal.t)
        ends = search(extra)
        best_free = ends.objective.argmax()
        both = jax.tree.map(
            lambda a, b, i=best_equal, j=best_free: np.stack([a[i], b[j]]), equal.t, ends.t
        )
        entropy, table, _ = blocks.map_sum(
            partial(contingency_tables, n_groups=task.design.n_groups, **search.static),
            both,
            search.common,
        )
        n = table.sum()
        gain = ends.objective[best_free] - equal.objective[best_equal]
        if bool(free_weights_improve(gain, entropy / n, jnp.asarray(table), model.n_clusters, n)):
            best = search, ends, True
    assert best is not None
    return best


def _store_result(
    model: Any, seen: Survey, blocks: Blocks, task: ResidualTask,
    fits: list[tuple[_Search, Ends, bool]],
) -> Any:  # fmt: skip
    """Set the fitted attributes of the model.

    ``fits`` has one entry per error distribution: the result of `_best_weights`.
    """
    chosen = int(np.argmax([ends.objective.max() for _, ends, _ in fits]))
    search, ends, free = fits[chosen]
    index = int(ends.objective.argmax())
    best = jax.tree.map(lambda a: a[index : index + 1], ends.t)
    dtype = search.common.inverse_scale.dtype
    narrow = jax.tree.map(lambda a: np.asarray(a, dtype), best)
    every_row = partial(restart_labels, soft=seen.rows.membership, **search.static)
    labels, membership = collect_labels(
        seen, blocks.map_blocks(every_row, narrow, search.common), model.n_clusters
    )
    table = blocks.map_sum(
        partial(contingency_tables, n_groups=seen.design.n_groups, **search.static),
        narrow,
        search.common,
    )[2]
    objective = np.concatenate([-e.objective for _, e, _ in fits])
    done = np.concatenate([e.done for _, e, _ in fits])
    model._store_results(
        Restarts(None, objective, done), labels=labels, sizes=table.sum(0), membership=membership,
        trace=np.array(ends.trace), n_iter=ends.n_iter[index],
    )  # fmt: skip
    model._steps = np.concatenate([e.n_iter for _, e, _ in fits])
    model._freed = [f for _, _, f in fits]
    t, objective_value, penalty = (
        jax.tree.map(lambda a: a[0], best),
        ends.objective[index],
        ends.penalty[index],
    )
    none = np.zeros((model.n_clusters, seen.design.n_groups))
    fit = Fit(
        objective_value + penalty,
        penalty,
        t.b,
        t.sigma,
        none,
        t.log_weights,
        ends.n_iter,
        free,  # type: ignore[arg-type]
    )
    model._search_restarts, model._start_kinds = model._restarts, None
    model._set_parameters(fit, task.hyperparameters, search.robust, seen.design.n_groups)
    model._set_subtraction(seen.design)
    model._warn_groups(table.astype(int), "group means of stored rows", "pass effects='random'")
    model._set_objective_margin(np.concatenate([s.sample_labels(e.t) for s, e, _ in fits]))
    return model
