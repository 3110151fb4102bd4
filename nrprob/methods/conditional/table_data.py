"""A checked table with its one-component fit and the design of its location effects."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from nrprob.methods.conditional.discrete_coordinates import LocationDesign
from nrprob.methods.conditional.one_component import OneComponent, fit_one_component
from nrprob.methods.conditional.table import DiscreteColumn, take_rows


@dataclass
class TableData:
    """A checked table.

    Attributes
    ----------
    x : (n, d) numbers in the coordinates of the fit, NaN where missing; None where there are none
    columns : discrete columns
    groups : (n,) known group of every sample
    n_groups : int
    labels : (n,) cluster of labelled samples, else -1; None where no sample has a label
    target : (d,) diagonal that covariances shrink to, up to a factor; by default 1
    rounding : (d, d) covariance of rounding errors of the numbers; by default 0
    nu0, tau0 : weight of the ridge, and variance of the group effects; by default estimated
    one_component : one-component fit of the numbers
    location : design of the location effects
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
    one_component: OneComponent | None = field(init=False, default=None)
    location: LocationDesign | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.x is not None:
            self.one_component = fit_one_component(self.x, self.groups, self.n_groups)
            if self.columns:
                self.location = LocationDesign.learn(self.columns, self.groups, self.n_groups)

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.groups)

    @property
    def location_matrix(self) -> np.ndarray | None:
        """Design (n, s) of the location effects."""
        return None if self.location is None else self.location(self.columns, self.groups)

    def take(self, indices: np.ndarray) -> TableData:
        """Return the table of some samples, with the known groups of all."""
        columns = take_rows(self.columns, indices)
        x = None if self.x is None else self.x[indices]
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, x=x, columns=columns, groups=self.groups[indices], labels=labels)
