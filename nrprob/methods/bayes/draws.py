"""Thin and pool draws of several chains."""

from __future__ import annotations

from typing import Any

import numpy as np

from nrprob.engines.sample.target import Target
from nrprob.statistics.rows import padded_count

MAX_DRAWS = 512  # largest number of draws that predictions and point estimates use
MAX_LABELS = 20_000_000  # largest number of labels, over all draws, that point estimates use
_MIN_ROOM = 10  # least number of slots for clusters, so that most fits share compiled programs


def thin_indices(n_chains: int, n_draws: int, limit: int) -> np.ndarray:
    """Positions of evenly spaced draws of a chain.

    All chains together have at most ``limit`` of these draws, but each has at least one.
    """
    count = min(max(limit // n_chains, 1), n_draws)
    return np.linspace(0, n_draws - 1, count).round().astype(int)


def thin_draws(draws: np.ndarray, limit: int) -> np.ndarray:
    """Thin draws (chain, draw, ...) to the evenly spaced positions of `thin_indices`."""
    return draws[:, thin_indices(draws.shape[0], draws.shape[1], limit)]


def pool_draws(draws: np.ndarray, limit: int) -> np.ndarray:
    """Thin draws (chain, draw, ...) by `thin_draws`, and join all chains to (S, ...)."""
    return thin_draws(draws, limit).reshape(-1, *draws.shape[2:])


def pad_draws(draws: dict[str, np.ndarray], target: Target) -> dict[str, np.ndarray]:
    """Pad labels, clusters and scale weights (S, n) of S draws to the n' samples of ``target``."""
    result = {**draws, "labels": draws["labels"].astype(np.int32)}
    for name in result.keys() & {"labels", "clusters", "scale_weight"}:
        pad = target.x.shape[0] - result[name].shape[1]
        result[name] = np.pad(result[name], ((0, 0), (0, pad)), mode="edge")
    return result


def compact_draws(draws: dict[str, np.ndarray], target: Any) -> tuple[dict[str, np.ndarray], Any]:
    """Renumber the labels of each draw from 0, and remove empty slots from the target.

    Chains need many slots. Predictions only need slots for the occupied clusters of a draw, and one
    slot for a new cluster. Returns the changed draws and target.
    """
    result = pad_draws(draws, target)
    labels, n_slots = result["labels"], target.n_slots
    n_largest = 0
    for draw in labels:  # a loop, since indices of all draws would take too much memory
        is_occupied = np.bincount(draw, minlength=n_slots) > 0
        n_largest = max(n_largest, int(is_occupied.sum()))
        draw[:] = (is_occupied.cumsum() - 1)[draw]
    room = padded_count(max(n_largest + 1, _MIN_ROOM), target.x.size)
    return result, target.with_room(min(room, n_slots))


def cluster_shares(draws: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Shares (n, k) of samples in k reference clusters, averaged over draws.

    In one draw, entry (i, c) is the share of samples of reference cluster c in the cluster of
    sample i. The result is the mean over ``draws`` (S, n) of labels. ``labels`` (n,) are the
    reference clusters.
    """
    onehot = np.eye(labels.max() + 1)[labels]
    total = np.zeros(onehot.shape)
    for draw in draws:
        table = np.zeros((int(draw.max()) + 1, onehot.shape[1]))
        np.add.at(table, draw, onehot)
        size = table.sum(1, keepdims=True)
        total += (table / np.where(size > 0, size, 1))[draw]
    return total / draws.shape[0]
