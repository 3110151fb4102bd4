"""Residuals, initial labels and the sample for successive halving, laid out for one fit."""

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

# Whether each fit estimates the clusters' weights, by the parameter `weights`.
WEIGHTS = {"uniform": (False,), "free": (True,), "auto": (False, True)}
_TRIES = 4  # k-means for every start, of which different ones are taken
_LARGE = 1 << 18  # rows x columns x clusters above which restarts are halved successively
_FEW, _EACH = 4096, 256  # rows of the sample: at least, and for every cluster
_LEAD, _ONE_IN = 3, 10  # restarts that survive the sample: at least, and one of how many


@dataclass
class ResidualTask:
    """Residuals laid out for one fit, and its program calls.

    Attributes
    ----------
    data : residuals in the coordinates of the program
    hyperparameters : settings of the program
    layout : position of every row
    design : known groups, by which starts are aligned and balanced
    fixed : (B, r) classes of labelled rows, else -1; None without labels
    sample : rows for the first round of successive halving, or None
    starts : (S, B, r) initial labels, of the sample's rows if there is a sample
    warm : (S,) which starts are warmed up
    n_leaders : maximum number of restarts that survive the sample
    weights : (n,) weights of the rows; None if all are 1
    joint : rows, design and labels for fits of effects with the clusters, where these are possible
    source : table, known structure and classes of labelled samples, of which the task is made
    is_coarse : whether rounding errors are a large part of the residuals of a column
    initial : (n,) initial labels of the user
    calls : program calls, one per error distribution
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
    """Maximum number of restarts that survive the first round of successive halving."""
    return max(_LEAD, -(-n_init // _ONE_IN))


def start_from(labels: Any, n: int, k: int) -> np.ndarray:
    """Initial labels (n,) as integers below ``k``; ValueError if they do not fit."""
    labels = np.asarray(labels)
    if labels.shape == (n,):
        codes, names = factorize(labels)
        if len(names) <= k:
            return codes
    raise ValueError(
        f"init must have a label for each of {n} rows, and n_clusters={k} different ones at most; "
        f"got shape {labels.shape} with {np.unique(labels).size} labels; pass one labeling"
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
    """Lay out rows, starts, and the sample for successive halving.

    Parameters
    ----------
    model : a `ConditionalMixture`, of which parameters are read
    coordinates : coordinates
    y : (n, p) residuals in them
    design : groups by which initial values are aligned and balanced
    fixed : (n,) classes of labelled rows, else -1; None where there are none
    free : whether weights are fitted, of every fit that is made
    dtype : of the search; the sample is searched in float32
    mass : (n,) weights of rows that are a sample themselves; None if all weights are equal
    seed : of the starts; by default drawn from the model's ``random_state``
    init : (n,) labels in place of the first start
    weights : (n,) weights of the rows; None if all are 1
    """
    n, p = y.shape
    k, dof, total = model.n_clusters, coordinates.dof, total_weight(n, weights)
    n_groups = padded_count(design.n_groups, y.size)  # padded for one group as well
    pad = bucket_size(p, 256) - p
    log_scale = float(np.log(coordinates.variances).sum())
    rounding = np.pad(coordinates.rounding, (0, pad))
    narrow = {
        "d": p, "n": total, "nu0": coordinates.nu0, "dof": dof, "s0": coordinates.s0,
        "tol": model.tol, "kappa": model.balance, "nu": model.nu,
        "rounding": rounding if model.covariance == "tied" else np.diagonal(rounding),
    }  # fmt: skip

    def laid_out(chosen: np.ndarray, mass: np.ndarray, dtype: Any) -> ResidualTask:
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
            **{name: np.asarray(value, dtype) for name, value in narrow.items()},
            floor=np.asarray(floor, dtype),
            log_scale=np.asarray(log_scale),
            log_det=np.asarray(log_scale + 2 * p * math.log(coordinates.scale)),
            constant=np.asarray(0.0),
            max_iter=np.asarray(model.max_iter, np.int32),
        )
        places = None if fixed is None else layout.to_blocks(fixed[chosen], -1)
        return ResidualTask(data, hyperparameters, layout, design, places, weights=weights)

    part = mass is not None
    chosen = np.arange(n)
    if mass is None:
        mass = scale_rows(np.full(n, dof / total), weights)
    if seed is None:
        seed = check_random_state(model.random_state).randint(2**31 - 1)
    rng = np.random.default_rng(seed)
    task = few = laid_out(chosen, mass, dtype)
    n_leaders = min(count_leaders(model._n_restarts), model._n_restarts)
    many = y.size * k > _LARGE
    if model.successive_halving and many and not part:
        strata = design.codes
        if fixed is not None:
            strata = factorize(np.column_stack([strata, fixed]))[0]
        chosen, times = stratified_sample(strata, max(_FEW, _EACH * k), rng)
        few = laid_out(chosen, mass[chosen] * times, np.float32)
        place = few.layout.to_blocks(task.layout.slot[chosen].astype(np.int32))
        task.sample, task.n_leaders = (
            Sample(few.data, few.hyperparameters, few.fixed, place),
            n_leaders,
        )
    maps = [coordinates.metric_map(y, metric, k, weights) for metric in model.whitening_exponents]
    n_each, restarts = schedule_starts(
        model._n_restarts, len(maps) * (1 + model.aligned) * (1 + model.warm_up)
    )
    starts = make_starts(
        y[chosen], few.layout, n_groups if design.n_groups > 1 else 1, maps, k, n_each, rng,
        aligned=model.aligned, tries=1 if many or part else _TRIES,
        fixed=None if fixed is None else fixed[chosen],
        weights=None if weights is None else weights[chosen],
    )  # fmt: skip
    task.warm = restarts >= len(starts)
    starts = starts[restarts % len(starts)]
    if init is not None:
        initial = init[chosen]
        starts[0] = initial if fixed is None else name_classes(initial[None], fixed[chosen], k)[0]
        task.warm[0] = False
    starts = few.layout.to_blocks(starts.T.astype(np.int32))
    task.starts = np.moveaxis(starts, -1, 0)
    return task
