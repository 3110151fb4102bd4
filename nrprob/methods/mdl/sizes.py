"""Assignment of must-link components to clusters of limited sizes, by integer programming.

A must-link component is a set of rows that must-links connect. There are n_nodes components and k
clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.linalg import toeplitz
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.special import gammaln, logsumexp, xlogy

from nrprob.codelength import multinomial_table
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
    may_be_empty : whether clusters may be empty although ``low`` is positive; True if the number of
        clusters is selected
    """

    mass: np.ndarray
    edges: np.ndarray
    low: int
    high: int
    may_be_empty: bool = False

    def violated_by(self, sizes: np.ndarray) -> np.ndarray:
        """Mask of the cluster sizes that violate the limits, an array of the shape of ``sizes``."""
        too_small = (sizes < self.low) & ((sizes > 0) | (not self.may_be_empty))
        return too_small | (sizes > self.high)

    def label_complexities(self, k: int) -> np.ndarray:
        r"""Log parametric complexities (k + 1,) of labels with 0 to k clusters within the limits.

        Entry K is log C for K clusters. C is a sum over all cluster sizes h within the limits:

        .. math:: C = \frac{N!}{N^N} \sum_{h_1 + \dots + h_K = N} \prod_j \frac{h_j^{h_j}}{h_j!}

        Here N is the number of rows; the method assumes that no rows are must-linked. If no
        partition into K clusters is within the limits, entry K is the complexity without limits.
        """
        n = len(self.mass)
        sizes = np.arange(n + 1)
        term = xlogy(sizes, sizes) - gammaln(sizes + 1)
        term[(sizes < self.low) | (sizes > self.high)] = -np.inf
        # Convolve in logs: total[m] is the sum for m rows in the clusters so far.
        total, shifted = term, toeplitz(term, np.full(n + 1, -np.inf))
        result = np.concatenate([[0.0], multinomial_table(k, n)])
        for clusters in range(1, k + 1):
            if clusters > 1:
                total = logsumexp(shifted + total, axis=1)
            if np.isfinite(total[n]):
                result[clusters] = total[n] + gammaln(n + 1) - xlogy(n, n)
        return result

    def check_feasible(self, k: int) -> None:
        """Raise InfeasibleConstraints if ``k`` clusters cannot satisfy limits and must-links.

        The check is not exhaustive: `assign_components` may still find no assignment.
        """
        n = int(self.mass.sum())
        if self.may_be_empty:
            k = min(k, n // max(self.low, 1)) or 1
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
        """Return the clusters (n_nodes,) of the components that minimise the total cost.

        ``cost`` (n_nodes, k) has the cost of every component in every cluster.

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
        n_variables = n * k
        if self.may_be_empty:
            # More binary variables: cluster j has between low and high rows, or none.
            n_variables += k
            once = sparse.hstack([once, sparse.csr_array((n, k))], "csr")
            below, above = (sparse.hstack([size, -b * clusters]) for b in (self.low, self.high))
            limits = [LinearConstraint(below, 0, np.inf), LinearConstraint(above, -np.inf, 0)]
        else:
            limits = [LinearConstraint(size, self.low, self.high)]
        limits.append(LinearConstraint(once, 1, 1))
        if len(self.edges):
            # Cannot-linked components: a cluster has at most one of the two.
            line = np.repeat(np.arange(len(self.edges)), 2)
            ends = sparse.csr_array((np.ones(line.size), (line, self.edges.ravel())))
            ends.resize((len(self.edges), n))
            apart = sparse.kron(ends, clusters, "csr")
            apart.resize((apart.shape[0], n_variables))
            limits.append(LinearConstraint(apart, 0, 1))
        result = milp(
            np.append(cost.ravel() - cost.min(), np.zeros(n_variables - n * k)),
            constraints=limits,
            integrality=np.ones(n_variables),
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
        return result.x[: n * k].reshape(n, k).argmax(1)
