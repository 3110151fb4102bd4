"""Checks of the parameters of a fit to stored rows."""

from __future__ import annotations

from typing import Any

from nrprob.exceptions import short_repr
from nrprob.methods.conditional.columns import Columns


def check_in_memory(model: Any) -> None:
    """Raise ValueError for parameters of ``model`` that need all rows in memory."""
    needs = {
        "balance": (model.balance > 0, "balance=0"),
        "noise": (model.noise != 0, "noise=0"),
        "location": (model.location is True, "location=False"),
    }
    for name, (refused, remedy) in needs.items():
        if refused:
            raise ValueError(
                f"{name} needs all rows in memory; got {name}={short_repr(getattr(model, name))} "
                f"and stored rows; set {remedy}, or pass an array"
            )


def fits_table(model: Any, columns: Columns) -> bool:
    """Whether a fit to a table with these ``columns`` needs the joint EM.

    The joint EM is needed if there are discrete columns, or if group effects are fitted with the
    clusters.
    """
    joint = model.effects in ("fixed", "random") or model.weights == "by_group"
    return joint or not columns.is_numeric
