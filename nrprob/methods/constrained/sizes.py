"""Assignment of components to clusters whose sizes have limits, by integer programming."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from nrprob.links import InfeasibleConstraints

_SECONDS = 30.0  # that one assignment may take


@dataclass(frozen=True)
class SizeLimits:
    """Least and largest number of rows of every cluster: definition 5.5 of Yin (2007).

    Attributes
    ----------
    mass : (n_nodes,) rows of every component
    edges : (e, 2) components that must be apart
    low, high : int
    """

    mass: np.ndarray
    edges: np.ndarray
    low: int
    high: int

    def met(self, sizes: np.ndarray) -> bool:
        """Whether clusters of these sizes are within the limits."""
        return bool(sizes.min() >= self.low and sizes.max() <= self.high)

    def check(self, k: int) -> None:
        """Refuse limits that no ``k`` clusters can have, whatever else holds."""
        n = int(self.mass.sum())
        given = f"got min_size={self.low} and max_size={self.high} for {n} rows in {k} cluster(s)"
        if self.low > self.high:
            raise InfeasibleConstraints(f"min_size exceeds max_size; {given}; lower min_size")
        if self.low * k > n:
            raise InfeasibleConstraints(f"there are too few rows; {given}; lower min_size")
        if self.high * k < n:
            raise InfeasibleConstraints(f"there are too many rows; {given}; raise max_size")
        if self.mass.max() > self.high:
            raise InfeasibleConstraints(
                f"{self.mass.max()} rows must go together; {given}; raise max_size or remove "
                "must-links"
            )

    def assign(self, cost: np.ndarray) -> np.ndarray:
        """Clusters (n_nodes,) of least total ``cost`` (n_nodes, k) among those within the limits.

        Raises
        ------
        InfeasibleConstraints
            If there is none.
        ValueError
            If none was found in time.
        """
        n, k = cost.shape
        clusters = sparse.eye_array(k)
        once = sparse.kron(sparse.eye_array(n), np.ones((1, k)), "csr")
        size = sparse.kron(self.mass[None].astype(float), clusters, "csr")
        limits = [LinearConstraint(once, 1, 1), LinearConstraint(size, self.low, self.high)]
        if len(self.edges):
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
        given = f"got min_size={self.low} and max_size={self.high} for {k} cluster(s)"
        if result.status == 2:
            raise InfeasibleConstraints(
                "no clusters within the limits on sizes keep the other constraints, too; "
                f"{given}; widen the limits or remove constraints"
            )
        if result.x is None:
            raise ValueError(
                f"no clusters within the limits on sizes were found in {_SECONDS:g} s; {given}; "
                "widen the limits"
            )
        return result.x.reshape(n, k).argmax(1)
