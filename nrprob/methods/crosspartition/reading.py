"""What a path of splits says: its levels in plain arrays, and why it came to an early end."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from nrprob.engines import orbits, splitting
from nrprob.information import mutual_information
from nrprob.methods.crosspartition.cycle import Counts, Cycle
from nrprob.statistics.rows import Layout

TERMS = ("CP1", "CP2", "CP*1", "CP*2")


class Granularity(NamedTuple):
    """The clusters at one level of the hierarchy, the largest first.

    Attributes
    ----------
    n_clusters : number K of them
    beta : inverse temperature
    critical_beta : inverse temperature from which on the split that led here was possible
    membership : (n_samples, K) p(c|x)
    weights : (K,) p(c)
    parents : (K,) cluster of the level before that shares most with each; 0 for K = 1
    information : I(C;Y), in nats
    """

    n_clusters: int
    beta: float
    critical_beta: float
    membership: np.ndarray
    weights: np.ndarray
    parents: np.ndarray
    information: float

    @property
    def labels(self) -> np.ndarray:
        """Cluster (n_samples,) of every row."""
        return self.membership.argmax(1)


def granularities(
    path: splitting.Path, layout: Layout, mass: np.ndarray, rows: Any
) -> tuple[list[Granularity], np.ndarray]:
    """All levels, and the order of the last one's clusters among the columns of the path."""
    found: list[Granularity] = []
    for k, level in enumerate(path.levels, 1):
        q = np.exp(layout.collect(np.asarray(level.carry[1]))[:, 0, :k])
        q = q / q.sum(1, keepdims=True)
        weights = mass @ q
        q[mass == 0] = weights
        order = np.argsort(-weights, kind="stable")
        q, weights = q[:, order], weights[order]
        joint = (mass[:, None] * q).T @ rows
        parents = np.zeros(k, int)
        if found:
            parents = ((mass[:, None] * q).T @ found[-1].membership).argmax(1)
        information = mutual_information(joint / joint.sum())
        found.append(Granularity(k, level.beta, level.critical, q, weights, parents, information))
    return found, order


@partial(jax.jit, static_argnames="cycle")
def _fields(counts, active, carry, *, cycle):
    return cycle.fields(counts, active, *carry)


def describe(
    cycle: Cycle, counts: Counts, level: splitting.Level, order: np.ndarray
) -> dict[str, np.ndarray]:
    """Logs of what the features' side of a cycle says at a level, its clusters in ``order``."""
    active = np.arange(level.carry[1].shape[-1]) < order.size
    found = jax.device_get(_fields(counts, active, level.carry, cycle=cycle))
    return {
        "projected": found.projected[:, 0, order, :],
        "feature": found.feature[0, order],
        "weight": found.weight[0, order],
        "centroid": found.centroid[0, order],
    }


def verdict(path: splitting.Path) -> tuple[str, str]:
    """Status of a path, and a sentence on what stopped it; "" where nothing did."""
    if path.complete:
        return orbits.CONVERGED, ""
    wanted = len(path.levels) + 1
    tried = [t for t in path.trials if t.n_clusters == wanted]
    last = tried[-1]
    if last.growth < splitting.ROUNDING:
        what = "the rows of every cluster are alike"
        if wanted == 2:
            what = "all subsets and rows are alike in the features that they share"
        return splitting.MERGED, what
    span = f"from beta={tried[0].beta:.4g} to {last.beta:.4g}"
    for status, told in (
        (orbits.OSCILLATING, "the update looped"),
        (splitting.VANISHED, "a cluster vanished"),
        (splitting.MERGED, "clusters merged again"),
        (orbits.UNFINISHED, "the update did not converge within max_iter"),
    ):
        some = [t for t in tried if t.status == status]
        if len(some) * 2 >= len(tried) or status == last.status:
            if status == orbits.OSCILLATING:
                told += (
                    f" with a period of {some[-1].period:.3g} and a range of {some[-1].width:.2g}"
                )
            return status, f"{told} {span}"
    return last.status, f"nothing split {span}"
