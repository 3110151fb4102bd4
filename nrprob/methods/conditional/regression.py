"""Residuals after regression on the known structure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.known import DesignEncoder, Groups, Known, KnownEncoder
from nrprob.statistics.groups import group_means


@dataclass(frozen=True)
class Removal:
    """Known structure as a linear model of the rows, fitted by least squares.

    Attributes
    ----------
    encoder : turns ``known`` of new rows into groups, or into the columns of the model
    effects : (groups, m) means of the known groups, or coefficients (columns, m) of the model
    rank : degrees of freedom that the model takes from every feature
    design : whether ``encoder`` makes columns; else it makes groups
    """

    encoder: KnownEncoder | DesignEncoder
    effects: np.ndarray
    rank: int
    design: bool

    def __call__(self, x: np.ndarray, known: Any) -> np.ndarray:
        """Residuals (n, m) of new rows, by the effects that were fitted."""
        return x - fitted(self.effects, self.encoder.transform(known, len(x)))


def remove(
    x: np.ndarray, known: Known, multi: str = "product"
) -> tuple[np.ndarray, Removal, Groups | None]:
    """Take from the rows what a linear model of the known structure says of them.

    Labels: the mean of the row's group. Several labelings: of its combination of labels
    (``multi="product"``), or a sum of one effect per labeling (``multi="additive"``), by least
    squares. `nrprob.known.Memberships`: one mean per group, mixed by the memberships, by least
    squares. Floats: a constant and one slope per column. None: the mean of all rows.

    Parameters
    ----------
    x : ndarray of shape (n, m)
    known : Known
    multi : {"product", "additive"}

    Returns
    -------
    residuals : ndarray of shape (n, m), float64
    removal : Removal
        Does the same for new rows, with what was fitted.
    groups : Groups or None
        The known groups; None where the model is a sum of effects or of slopes.
    """
    x = np.asarray(x, np.float64)
    n = len(x)
    if known.modelled or (known.kind == "labels" and multi == "additive"):
        columns = DesignEncoder()
        design = columns.fit(known, n)
        effects, rank = _least_squares(design, x)
        return x - design @ effects, Removal(columns, effects, rank, True), None
    encoder = KnownEncoder()
    groups = encoder.fit(known, n)
    if groups.share is not None:
        effects, rank = _least_squares(groups.share, x)
    else:
        effects = group_means(x, groups.codes, groups.n_groups)
        # A second pass takes off what rounding left of large means.
        effects += group_means(x - effects[groups.codes], groups.codes, groups.n_groups)
        rank = groups.n_groups
    return x - fitted(effects, groups), Removal(encoder, effects, rank, False), groups


def fitted(effects: np.ndarray, known: Groups | np.ndarray) -> np.ndarray:
    """What known groups, or the columns of a model, explain by effects (groups, m)."""
    if isinstance(known, np.ndarray):
        return known @ effects
    return effects[known.codes] if known.share is None else known.share @ effects


def _least_squares(design: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, int]:
    effects, _, rank, _ = np.linalg.lstsq(design, x, rcond=None)
    return effects, int(rank)
