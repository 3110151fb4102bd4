"""Fits of one data set: what the terminal, files and the page show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.batch import tables
from nrprob.batch.fits import Fit
from nrprob.data.preparation.record import Say, as_option
from nrprob.statistics.single_feature import single_feature

if TYPE_CHECKING:
    from nrprob.batch.evidence import Tested

__all__ = ["FitResult"]


@dataclass
class FitResult:
    """One data set and the fits of it, the first of which matters.

    ``known`` names the labelings that were known, and ``measured`` (n, m) holds numbers that were.
    ``files`` hold what is kept, and ``origin`` what is to be said of the data and of the command;
    ``tested`` is what tests of the first fit found, where they were asked for. ``say`` writes an
    argument where the user can change it.
    """

    title: str
    table: tables.Table
    known: Sequence[str]
    fits: list[Fit]
    files: list[Path] = field(default_factory=list)
    origin: dict[str, Any] = field(default_factory=dict)
    measured: np.ndarray | None = None
    tested: Tested | None = None
    say: Say = as_option

    @cached_property
    def alert(self) -> str:
        """Which feature alone determines the clusters, and what to do; empty if none does."""
        labels, table = self.fits[0].labels, self.table
        if labels.ndim > 1:
            return ""
        fitted, prepared = labels >= 0, self.origin.get("prepared", {})
        feature = single_feature(
            table.X if fitted.all() else table.X[fitted], labels[fitted], table.feature_names,
            prepared.get("indicators"), prepared.get("scales"),
        )  # fmt: skip
        if feature is None:
            return ""
        how = "" if table.feature_names is None else f" with {self.say('drop', [feature.column])}"
        return f"{feature}; drop the column{how}, or name it as known"
