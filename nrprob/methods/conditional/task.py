"""Input of the search for clusters of residuals.

The input consists of the residuals, the initial labels, and the subsample of the rows with which
successive halving begins. Sizes: n rows in B blocks of r rows, p coordinates, S restarts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nrprob.data.design import Design
from nrprob.data.labels import factorize
from nrprob.data.validation import check_random_state
from nrprob.engines.optimise import solve
from nrprob.methods.conditional.coordinates import Coordinates
from nrprob.methods.conditional.em import Hyperparameters, Residuals
from nrprob.methods.conditional.solver import Sample
from nrprob.methods.conditional.starts import (
    make_starts,
    name_classes,
    schedule_starts,
    stratified_sample,
)
from nrprob.statistics.rows import Layout, active_mask, bucket_size, make_layout, padded_count
from nrprob.statistics.weighted import scale_rows, total_weight

# For every value of the parameter `weights`, one entry per fit to run: whether the cluster weights
# are free (fitted).
WEIGHTS = {"uniform": (False,), "free": (True,), "auto": (False, True)}
_TRIES = 4  # k-means runs per initial labeling, from which distinct labelings are selected
# Data sets with more rows x coordinates x clusters are searched by successive halving.
_LARGE = 1 << 18
_FEW, _EACH = 4096, 256  # rows of the sample: in all or per cluster, the larger
_LEAD, _ONE_IN = 3, 10  # restarts that continue after the sample: 1 in 10, but at least 3


@dataclass
class ResidualTask:
    """Task of a fit to residuals: data, settings, initial labels and program calls.

    Attributes
    ----------
    data : residuals in the coordinates of the fit, in blocks
    hyperparameters : settings of the program
    layout : position of every row in the blocks
    design : groups for initial values: some restarts start from k-means within every group, and a
        warm-up makes the shares of the clusters equal in every group
    fixed : (B, r) classes of labelled rows, else -1; None without labels
    sample : subsample for successive halving; None if all restarts use all rows
    starts : (S, B, r) initial labels of all rows, or of the subsample if there is one
    warm : (S,) whether a warm-up comes first
    n_leaders : maximum number of restarts that continue with all rows after the subsample
    weights : (n,) weights of the rows; None if all are 1
    joint : rows, design, labels and weights for joint fits of effects and clusters; None if joint
        fits are not possible
    source : input of the task: table, known structure, and classes of labelled rows
    is_coarse : whether rounding errors are a large part of the residuals of a column
    initial : (n,) initial labels of the user; None without them
    calls : calls of the compiled program, one per error distribution
    """

    data: Residuals
    hyperparameters: Hyperparameters
    layout: Layout
    design: Design
    fixed: np.ndarray | None
    sample: Sample | None = None
    starts: np.ndarray = field(default_factory=lambda: np.empty(0))
    warm: np.ndarray = field(default_factory=lambda: np.empty(0))
    n_leaders: int = 0
    calls: list[solve.SolverCall] = field(default_factory=list)
    joint: tuple[Any, ...] | None = None
    source: tuple[Any, ...] = ()
    is_coarse: bool = False
    initial: np.ndarray | None = None
    weights: np.ndarray | None = None


def count_leaders(n_init: int) -> int:
    """Maximum number of restarts that successive halving continues after the subsample.

    Of ``n_init`` restarts, one in ten continues, but at least three.
    """
    return max(_LEAD, -(-n_init // _ONE_IN))


def encode_init(labels: Any, n: int, k: int) -> np.ndarray:
    """Encode the parameter ``init`` as integers (n,) below ``k``.

    Raises
    ------
    ValueError
        If there is not one label per row, or if there are more than ``k`` distinct labels.
    """
    labels = np.asarray(labels)
    if labels.shape == (n,):
        codes, names = factorize(labels)
        if len(names) <= k:
            return codes
    raise ValueError(
        f"init must have one label for each of {n} rows, and at most n_clusters={k} distinct "
        f"labels; got shape {labels.shape} with {np.unique(labels).size} distinct labels; pass one "
        "labeling"
    )


def lay_out(
    model: Any,
    coordinates: Coordinates,
    y: np.ndarray,
    design: Design,
    fixed: np.ndarray | None,
    free: np.ndarray,
    dtype: Any,
    mass: np.ndarray | None = None,
    seed: int | None = None,
    init: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> ResidualTask:
    """Arrange residuals in blocks, compute initial labels, and draw the subsample.

    Parameters
    ----------
    model : the `ConditionalMixture`, for its parameters
    coordinates : coordinates of the residuals
    y : (n, p) residuals in these coordinates
    design : groups for initial values, as in `ResidualTask`
    fixed : (n,) classes of labelled rows, else -1; None without labels
    free : (1,) or (2,) for every fit to run, whether the weights of the clusters are fitted
    dtype : floating-point type of the fit; the search on the subsample uses float32
    mass : (n,) masses if the rows are a subsample of stored rows; else None
    seed : random seed of the initial labels; by default from the model's ``random_state``
    init : (n,) labels that replace the first initial labels
    weights : (n,) weights of the rows; None if all are 1
    """
    n, p = y.shape
    k, dof, total = model.n_clusters, coordinates.dof, total_weight(n, weights)
    n_groups = padded_count(design.n_groups, y.size)  # a single group is padded as well
    pad = bucket_size(p, 256) - p
    log_scale = float(np.log(coordinates.variances).sum())
    rounding = np.pad(coordinates.rounding, (0, pad))
    in_dtype = {
        "d": p, "n": total, "nu0": coordinates.nu0, "dof": dof, "s0": coordinates.s0,
        "tol": model.tol, "kappa": model.balance, "nu": model.nu,
        "rounding": rounding if model.covariance == "tied" else np.diagonal(rounding),
    }  # fmt: skip

    def arrange_rows(chosen: np.ndarray, mass: np.ndarray, dtype: Any) -> ResidualTask:
        """Make the task of a fit to the rows with the indices ``chosen``, without initial labels.

        ``mass`` are the masses of these rows.
        """
        layout = make_layout(design.codes[chosen], n_groups)
        data = Residuals(
            layout.to_blocks(np.pad(y[chosen], ((0, 0), (0, pad))).astype(dtype)),
            layout.to_blocks(mass.astype(dtype)),
            layout.block_group,
            (np.bincount(design.codes, weights, minlength=n_groups) * (dof / total)).astype(dtype),
            np.pad(1 / coordinates.variances, (0, pad)).astype(dtype),
            active_mask(k, y.size),
        )
        floor = 1e-6 if np.dtype(dtype) == np.float32 else 1e-9
        hyperparameters = Hyperparameters(
            free=free,
            **{name: np.asarray(value, dtype) for name, value in in_dtype.items()},
            floor=np.asarray(floor, dtype),
            log_scale=np.asarray(log_scale),
            log_det=np.asarray(log_scale + 2 * p * math.log(coordinates.scale)),
            constant=np.asarray(0.0),
            max_iter=np.asarray(model.max_iter, np.int32),
        )
        blocked_fixed = None if fixed is None else layout.to_blocks(fixed[chosen], -1)
        return ResidualTask(data, hyperparameters, layout, design, blocked_fixed, weights=weights)

    # 1. All rows. Their masses add up to the residual degrees of freedom.
    is_sample = mass is not None
    chosen = np.arange(n)
    if mass is None:
        mass = scale_rows(np.full(n, dof / total), weights)
    if seed is None:
        seed = check_random_state(model.random_state).randint(2**31 - 1)
    rng = np.random.default_rng(seed)
    task = search_task = arrange_rows(chosen, mass, dtype)
    # 2. Sample for successive halving, stratified by group and class.
    n_leaders = min(count_leaders(model._n_restarts), model._n_restarts)
    is_large = y.size * k > _LARGE
    if model.successive_halving and is_large and not is_sample:
        strata = design.codes
        if fixed is not None:
            strata = factorize(np.column_stack([strata, fixed]))[0]
        chosen, times = stratified_sample(strata, max(_FEW, _EACH * k), rng)
        search_task = arrange_rows(chosen, mass[chosen] * times, np.float32)
        slots = search_task.layout.to_blocks(task.layout.slot[chosen].astype(np.int32))
        task.sample, task.n_leaders = (
            Sample(search_task.data, search_task.hyperparameters, search_task.fixed, slots),
            n_leaders,
        )
    # 3. Initial labels, and the order in which the restarts use them.
    maps = [coordinates.metric_map(y, metric, k, weights) for metric in model.whitening_exponents]
    n_each, restarts = schedule_starts(
        model._n_restarts, len(maps) * (1 + model.aligned) * (1 + model.warm_up)
    )
    starts = make_starts(
        y[chosen], search_task.layout, n_groups if design.n_groups > 1 else 1, maps, k, n_each, rng,
        aligned=model.aligned, tries=1 if is_large or is_sample else _TRIES,
        fixed=None if fixed is None else fixed[chosen],
        weights=None if weights is None else weights[chosen],
    )  # fmt: skip
    task.warm = restarts >= len(starts)
    starts = starts[restarts % len(starts)]
    if init is not None:
        initial = init[chosen]
        starts[0] = initial if fixed is None else name_classes(initial[None], fixed[chosen], k)[0]
        task.warm[0] = False
    starts = search_task.layout.to_blocks(starts.T.astype(np.int32))
    task.starts = np.moveaxis(starts, -1, 0)
    return task
