"""Thin and pool draws of several chains, and compare the chains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.engines.sample.target import Target
from nrprob.statistics.rows import padded_count

if TYPE_CHECKING:
    import pandas as pd

AVERAGED = 512  # draws that predictions and point estimates look at
ENTRIES = 20_000_000  # labels that are looked at
_ROOM = 10  # clusters for which there is room at least, so that most fits share their programs
_COMPARED = 256  # draws of every chain that the chains are compared by


def thinned(draws: np.ndarray, most: int) -> np.ndarray:
    """Draws (chain, draw, ...), evenly thinned to at most ``most``, and at least one of a chain."""
    each = min(max(most // draws.shape[0], 1), draws.shape[1])
    return draws[:, np.linspace(0, draws.shape[1] - 1, each).round().astype(int)]


def pooled(draws: np.ndarray, most: int) -> np.ndarray:
    """Thinned draws (chain, draw, ...) of all chains as (S, ...)."""
    return thinned(draws, most).reshape(-1, *draws.shape[2:])


def padded(draws: dict[str, np.ndarray], target: Target) -> dict[str, np.ndarray]:
    """Draws whose labels and precisions (S, n) of rows are also of the padding of ``target``."""
    result = {**draws, "labels": draws["labels"].astype(np.int32)}
    for name in result.keys() & {"labels", "scale_weight"}:
        pad = target.x.shape[0] - result[name].shape[1]
        result[name] = np.pad(result[name], ((0, 0), (0, pad)), mode="edge")
    return result


def compact(draws: dict[str, np.ndarray], target: Any) -> tuple[dict[str, np.ndarray], Any]:
    """Draws as of `padded`, renumbered from 0 on, and a target with room for one cluster more.

    Chains need room for many clusters; predictions are for those that there are, and a new one.
    """
    result = padded(draws, target)
    labels, n_slots = result["labels"], target.n_slots
    n_most = 0
    for draw in labels:  # one by one: indices of all at once would take more memory than draws
        there = np.bincount(draw, minlength=n_slots) > 0
        n_most = max(n_most, int(there.sum()))
        draw[:] = (there.cumsum() - 1)[draw]
    room = padded_count(max(n_most + 1, _ROOM), target.x.size)
    return result, target.with_room(min(room, n_slots))


def block_shares(draws: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Mean share (n, k) of a row's block, in draws (S, n), that lies in clusters of ``labels``."""
    one = np.eye(labels.max() + 1)[labels]
    total = np.zeros(one.shape)
    for draw in draws:
        table = np.zeros((int(draw.max()) + 1, one.shape[1]))
        np.add.at(table, draw, one)
        size = table.sum(1, keepdims=True)
        total += (table / np.where(size > 0, size, 1))[draw]
    return total / draws.shape[0]


def agreement(
    draws: dict[str, np.ndarray], labels: np.ndarray
) -> tuple[dict[str, float], pd.DataFrame]:
    """How well the chains agree: R-hat of length and number of clusters, and of what has no names.

    The table is that of `nrprob.posterior.diagnose` about the clustering ``labels`` (n,), with the
    distance between chains in place of that within them as one more row.
    """
    from nrprob.posterior import chain_distances, diagnose
    from nrprob.posterior.convergence import r_hat

    n_chains = len(draws["log_density"])
    most = int(np.clip(ENTRIES // labels.size, 16 * n_chains, _COMPARED * n_chains))
    some, log_density = (thinned(draws[name], most) for name in ("labels", "log_density"))
    table = diagnose(some, labels, extra={"log_density": log_density}, random_state=0)
    far = chain_distances(some)
    within, between = far.diagonal().mean(), far[~np.eye(len(far), dtype=bool)].mean()
    if between > 0:
        ratio = np.sqrt(between / within) if within > 0 else np.inf
        table.loc["vi_between_chains", ["mean", "r_hat"]] = between, ratio
    return {name: r_hat(draws[name].astype(float)) for name in ("log_density", "n_clusters")}, table
