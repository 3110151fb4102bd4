"""Assignment of components to clusters under size limits, by integer programming.

There are n_nodes must-link components and k clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from nrprob.links import InfeasibleConstraints

_SECONDS = 30.0  # time limit of one assignment


@dataclass(frozen=True)
class SizeLimits:
    """Minimum and maximum number of rows per cluster: definition 5.5 of Yin (2007).

    Attributes
    ----------
    mass : (n_nodes,) number of rows of every must-link component
    edges : (e, 2) e pairs of cannot-linked components
    low, high : int, minimum and maximum number of rows per cluster
    """

    mass: np.ndarray
    edges: np.ndarray
    low: int
    high: int

    def within_limits(self, sizes: np.ndarray) -> bool:
        """Whether the sizes of all clusters are within the limits."""
        return bool(sizes.min() >= self.low and sizes.max() <= self.high)

    def check_feasible(self, k: int) -> None:
        """Raise InfeasibleConstraints if the limits contradict ``k`` clusters or the must-links.

        The check is not exhaustive: `assign_components` may still find no assignment.
        """
        n = int(self.mass.sum())
        got = f"got min_size={self.low} and max_size={self.high} for {n} rows in {k} cluster(s)"
        if self.low > self.high:
            raise InfeasibleConstraints(f"min_size exceeds max_size; {got}; lower min_size")
        if self.low * k > n:
            raise InfeasibleConstraints(f"there are too few rows; {got}; lower min_size")
        if self.high * k < n:
            raise InfeasibleConstraints(f"there are too many rows; {got}; raise max_size")
        if self.mass.max() > self.high:
            raise InfeasibleConstraints(
                f"{self.mass.max()} rows must share a cluster; {got}; raise max_size or remove "
                "must-links"
            )

    def assign_components(self, cost: np.ndarray) -> np.ndarray:
        """Return the clusters (n_nodes,) that minimise the total ``cost`` (n_nodes, k).

        Raises
        ------
        InfeasibleConstraints
            If no assignment satisfies the limits and the cannot-links.
        ValueError
            If the solver finds no assignment within its time limit.
        """
        n, k = cost.shape
        # Binary variables, one per component and cluster: each component is in one cluster.
        clusters = sparse.eye_array(k)
        once = sparse.kron(sparse.eye_array(n), np.ones((1, k)), "csr")
        size = sparse.kron(self.mass[None].astype(float), clusters, "csr")
        limits = [LinearConstraint(once, 1, 1), LinearConstraint(size, self.low, self.high)]
        if len(self.edges):
            # Cannot-linked components: a cluster has at most one of the two.
            line = np.repeat(np.arange(len(self.edges)), 2)
            ends = sparse.csr_array((np.ones(line.size), (line, self.edges.ravel())))
            ends.resize((len(self.edges), n))
            limits.append(LinearConstraint(sparse.kron(ends, clusters, "csr"), 0, 1))
        result = milp(
            cost.ravel() - cost.min(),
            constraints=limits,
            integrality=np.ones(n * k),
            bounds=Bounds(0, 1),
            options={"time_limit": _SECONDS},
        )
        got = f"got min_size={self.low} and max_size={self.high} for {k} cluster(s)"
        if result.status == 2:
            raise InfeasibleConstraints(
                "no clusters satisfy both the size limits and the other constraints; "
                f"{got}; widen the limits or remove constraints"
            )
        if result.x is None:
            raise ValueError(
                f"the solver found no clusters within the size limits in {_SECONDS:g} s; {got}; "
                "widen the limits"
            )
        return result.x.reshape(n, k).argmax(1)
