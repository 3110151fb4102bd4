"""Search for clusters of residuals after subtracting known structure.

This module prepares the arrays of the search, and the calls of the compiled program that searches.
Sizes: n rows, m features.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import gammaln

from nrprob.data.design import Design
from nrprob.data.labels import factorize
from nrprob.engines.optimise import solve
from nrprob.engines.placement import device_of, on_cpu
from nrprob.estimator.base import Clusterer
from nrprob.estimator.calls import at_once
from nrprob.methods.conditional.coordinates import Coordinates
from nrprob.methods.conditional.em import Hyperparameters
from nrprob.methods.conditional.solver import solve_residuals
from nrprob.methods.conditional.task import WEIGHTS, ResidualTask, lay_out


class ResidualSearch(Clusterer):
    """Mixin of `ConditionalMixture` for the search with subtracted group effects."""

    # Parameters and fitted state of the estimator.
    balance: float
    covariance: str
    errors: str
    nu: float
    ridge: float
    warm_up: bool
    weights: str
    n_clusters: Any
    shrinkage_: float
    _coordinates: Coordinates
    _removal: Any
    _n_restarts: Any

    def _check_left(self, design: Design, dof: float, square: float, before: float) -> None:
        """Raise ValueError if residuals are 0, or if fewer degrees of freedom remain than clusters.

        Parameters
        ----------
        design : known structure
        dof : residual degrees of freedom
        square : mean square of the residuals
        before : mean square of the rows before regression on the known structure
        """
        n, k = design.n_samples, self.n_clusters
        if k > max(dof, 1):
            raise ValueError(
                f"n_clusters={k} is more than the {dof} residual degrees of freedom; got "
                f"n_samples={n} and known structure of rank {self._removal.rank}; lower "
                "n_clusters, or pass more rows or fewer groups"
            )
        if dof < 1 or square <= 1e-28 * max(before, 1e-300):
            none = design.kind == "nothing"
            what = "all rows are alike" if none else "known explains X completely"
            raise ValueError(
                f"{what}, so there is nothing to cluster; got residuals of 0 for n_samples={n}; "
                "pass other features, or known structure of fewer groups"
            )

    def _search_groups(self, design: Design) -> Design:
        """Derive groups for the initial values from the known structure.

        Some restarts start from k-means within every group, and a warm-up makes the shares of the
        clusters equal in every group. The groups are the known groups if there are any. For soft
        memberships, they are the most probable groups. For continuous covariates, they are
        quantiles of the first principal component. For additive labelings, they are the
        combinations of labels, or the labels of one labeling if combinations are small.
        """
        n = design.n_samples
        if design.memberships is not None:
            return _number_groups(design.memberships.argmax(1))
        if design.columns is None:
            return design
        if design.kind != "labels":
            # Parts of equal size along the first principal component of the columns.
            columns = design.matrix[:, 1:]
            direction = np.linalg.svd(columns - columns.mean(0), full_matrices=False)[2][0]
            rank = (columns @ direction).argsort(kind="stable").argsort(kind="stable")
            parts = int(np.clip(n // (5 * self.n_clusters), 1, 5))
            return _number_groups(rank * parts // n)
        product = _number_groups(design.labelings)
        if self.balance > 0 or product.n_groups * 5 * self.n_clusters <= n:
            return product
        sizes = design.labelings.max(0) + 1
        enough = sizes * 5 * self.n_clusters <= n
        best = int(np.where(enough, sizes, -sizes).argmax())
        return Design.from_groups(design.labelings[:, best], int(sizes[best]))

    def _lay_out(self, r, dof, design, fixed, dtype, init, rounding, weights) -> ResidualTask:
        """Compute the coordinates of residuals, and arrange them for the solver.

        The method also sets the coordinates of the fit.

        Parameters
        ----------
        r : (n, m) residuals
        dof : residual degrees of freedom
        design : known structure
        fixed : (n,) classes of labelled rows, else -1; None without labels
        dtype : floating-point type of the fit
        init : (n,) labels that replace the first initial labels; None without them
        rounding : (m,) variances of the rounding errors of the columns
        weights : (n,) weights of the rows; None if all are 1
        """
        coordinates, y = Coordinates.from_residuals(
            r, dof, self.covariance, self.ridge, rounding, weights
        )
        self._coordinates = coordinates
        self.shrinkage_ = coordinates.shrinkage
        uniform = self.balance > 0 or self.weights == "by_group"
        free = WEIGHTS["uniform" if uniform else self.weights]
        groups = self._search_groups(design)
        return lay_out(
            self, coordinates, y, groups, fixed, np.asarray(free), dtype, init=init, weights=weights
        )

    def _solver_calls(self, task: ResidualTask) -> list[solve.SolverCall]:
        """Calls of the compiled program, one per error distribution."""
        data = task.data
        k = self.n_clusters if data.active is None else len(data.active)
        # On a CPU, restarts run one after another. A single restart fits into the cache, and does
        # not wait for slower ones; ten parallel restarts took 1.8 times as long.
        slots = data.mass.size
        nbytes = 10 * k * slots * data.y.dtype.itemsize
        side = 1 if on_cpu(data) else at_once(self._n_restarts, nbytes, device_of(data))
        calls = []
        for errors in ("gaussian", "t"):
            if self.errors not in (errors, "auto"):
                continue
            hyperparameters = task.hyperparameters._replace(
                constant=np.asarray(self._log_constant(task.hyperparameters, errors))
            )
            static = {
                "n_clusters": k, "warm_up": bool(self.warm_up), "covariance": self.covariance,
                "robust": errors == "t", "side_by_side": side,
                "n_leaders": task.n_leaders,
            }  # fmt: skip
            size = 3 * data.y.nbytes + nbytes * side + 16 * slots * self._n_restarts
            arrays = data, hyperparameters, task.starts, task.warm, task.fixed, task.sample
            calls.append(solve.SolverCall(solve_residuals, arrays, tuple(static.items()), size))
        return calls

    def _log_constant(self, hyperparameters: Hyperparameters, errors: str) -> float:
        """Constant part of the log likelihood: normalising constants, and -log K per row.

        The constant of a row is multiplied by the residual degrees of freedom. ``errors`` is the
        error distribution.
        """
        d, dof = float(hyperparameters.d), float(hyperparameters.dof)
        normaliser = -d / 2 * math.log(2 * math.pi)
        if errors == "t":
            nu = float(self.nu)
            normaliser = gammaln((nu + d) / 2) - gammaln(nu / 2) - d / 2 * math.log(nu * math.pi)
        return dof * (normaliser - math.log(self.n_clusters))


def _number_groups(codes: np.ndarray) -> Design:
    """`Design` of groups with the codes (n,); groups are renumbered in the order of appearance."""
    codes, names = factorize(codes)
    return Design.from_groups(codes, len(names))
