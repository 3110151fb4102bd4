"""Table of a joint fit, with its one-component fit and the design of its location effects.

Sizes: n samples, d numeric columns in the coordinates of the fit, m columns of the original table,
s design columns of location effects, L known groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from nrprob.data.design import Design
from nrprob.methods.conditional.coordinates import Coordinates
from nrprob.methods.conditional.discrete_coordinates import LocationDesign
from nrprob.methods.conditional.one_component import (
    OneComponent,
    effect_variance,
    fit_one_component,
)
from nrprob.methods.conditional.rounding import bound_rounding
from nrprob.methods.conditional.table import DiscreteColumn, take_rows
from nrprob.methods.conditional.units import Units
from nrprob.statistics.weighted import row_mean, total_weight


@dataclass
class TableData:
    """Table of a joint fit, and quantities that are computed from the table before the fit.

    Attributes
    ----------
    x : (n, d) numeric values in the coordinates of the fit, NaN where missing; None without numeric
        columns
    columns : discrete columns
    groups : (n,) known group of every sample
    n_groups : number of known groups, L
    labels : (n,) cluster of labelled samples, else -1; None without labels
    target : (d,) diagonal of the matrix to which covariances shrink, up to a factor; by default 1
    rounding : (d, d) covariance of the rounding errors of the numeric columns; by default 0, or a
        small multiple of the residual variances if columns depend linearly on each other
    nu0, tau0 : weight of the ridge, and prior variance of the group effects; estimated if None
    mass : (n,) weights of the samples; None if all are 1
    one_component : one-component fit to the numeric columns; None without numeric columns
    location : design of the location effects; None without numeric or without discrete columns
    """

    x: np.ndarray | None
    columns: list[DiscreteColumn]
    groups: np.ndarray
    n_groups: int
    labels: np.ndarray | None = None
    target: np.ndarray | None = None
    rounding: np.ndarray | None = None
    nu0: float | None = None
    tau0: float | None = None
    mass: np.ndarray | None = None
    one_component: OneComponent | None = field(init=False, default=None)
    location: LocationDesign | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.columns = [replace(column, mass=self.mass) for column in self.columns]
        if self.x is not None:
            known = self.groups, self.n_groups, self.mass
            self.one_component = fit_one_component(self.x, *known)
            self.rounding = bound_rounding(self.rounding, self.one_component.covariance)
            if self.columns:
                self.location = LocationDesign.learn(self.columns, *known)

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.groups)

    def cost_of_step(self, n_clusters: int) -> int:
        """Rough number of operations of an EM step.

        The number is n W K + 16 (P - 1) d^2, for n samples, W numeric columns and values of
        discrete columns, K clusters, P missing patterns and d numeric columns.
        """
        width, patterns = sum(column.n_values for column in self.columns), 0
        if self.x is not None:
            d = self.x.shape[1]
            width += d
            patterns = 16 * (len(np.unique(np.isnan(self.x), axis=0)) - 1) * d**2
        return self.n_samples * width * n_clusters + patterns

    @property
    def total(self) -> float:
        """Sum of the weights of the samples."""
        return total_weight(self.n_samples, self.mass)

    @property
    def group_sizes(self) -> np.ndarray:
        """Sums (L,) of the weights by known group."""
        return np.bincount(self.groups, self.mass, minlength=self.n_groups)

    @property
    def location_matrix(self) -> np.ndarray | None:
        """Design matrix (n, s) of the location effects; None without location effects."""
        return None if self.location is None else self.location(self.columns, self.groups)

    def impute(self) -> TableData:
        """Replace missing numbers by their expectations in the one-component model."""
        if self.one_component is None or self.x is None or not np.isnan(self.x).any():
            return self
        fit = self.one_component
        expected = fit.means[self.groups] + fit.completed
        return replace(self, x=np.where(np.isnan(self.x), expected, self.x))

    def take(self, indices: np.ndarray) -> TableData:
        """Return the table of the samples with the given indices; ``n_groups`` does not change."""
        columns = take_rows(self.columns, indices)
        x = None if self.x is None else self.x[indices]
        labels = None if self.labels is None else self.labels[indices]
        mass = None if self.mass is None else self.mass[indices]
        return replace(
            self, x=x, columns=columns, groups=self.groups[indices], labels=labels, mass=mass
        )


def complete_table(
    X: np.ndarray, design: Design, fixed: np.ndarray | None, mass: np.ndarray | None,
    coordinates: Coordinates,
) -> tuple[TableData, Units]:  # fmt: skip
    """Express a complete numeric table in the coordinates of the fit with subtracted means.

    Parameters
    ----------
    X : (n, m) the table, in units of its columns
    design : known groups
    fixed : (n,) classes of labelled samples, else -1; None without labels
    mass : (n,) weights of the samples; None if all are 1
    coordinates : coordinates of the fit with subtracted means

    Returns
    -------
    data : the table in the coordinates
    units : map from the columns to the coordinates
    """
    basis, back = coordinates.basis / coordinates.inflation, coordinates.back
    centre = row_mean(X, mass)
    one_component = fit_one_component(
        (X - centre) / coordinates.scale, design.codes, design.n_groups, mass
    )
    data = TableData(
        (X - centre) @ basis, [], design.codes, design.n_groups, fixed,
        target=1 / coordinates.variances, rounding=coordinates.rounding, nu0=coordinates.nu0,
        tau0=effect_variance(one_component, design.codes, mass), mass=mass,
    )  # fmt: skip
    log_det = -0.5 * float(np.log(coordinates.variances).sum())
    log_det -= basis.shape[1] * np.log(coordinates.scale)
    return data, Units(centre, basis, back, log_det)
