"""Checks of a fit to stored rows: parameters, and columns with two values."""

from __future__ import annotations

from typing import Any

import numpy as np

from nrprob.data.storage.blocks import Blocks
from nrprob.exceptions import short_repr, warn
from nrprob.methods.conditional.streaming import take_rows

_KIND_ROWS = 1000  # size of the sample of rows in which columns with two values are detected


def check_in_memory(model: Any) -> None:
    """Raise ValueError for parameters of ``model`` that need all rows in memory."""
    needs = {
        "balance": (model.balance > 0, "balance=0"),
        "noise": (model.noise != 0, "noise=0"),
        "effects": (model.effects in ("fixed", "random"), "effects='subtract'"),
        "weights": (model.weights == "by_group", "weights='auto'"),
        "location": (model.location is True, "location=False"),
        # Stored columns are numeric.
        "categorical": (_names_columns(model.categorical), "categorical=[]"),
        "ordered": (_names_columns(model.ordered), "ordered=[]"),
    }
    for name, (refused, remedy) in needs.items():
        if refused:
            raise ValueError(
                f"{name} needs all rows in memory; got {name}={short_repr(getattr(model, name))} "
                f"and stored rows; set {remedy}, or pass an array"
            )


def _names_columns(value: Any) -> bool:
    """Whether the parameter ``categorical`` or ``ordered`` names columns."""
    return value != "auto" if isinstance(value, str) else len(value) > 0


def warn_discrete(model: Any, blocks: Blocks, n: int) -> None:
    """Warn of columns with two values: fits to stored rows treat all columns as numeric.

    Parameters
    ----------
    model : the estimator
    blocks : blocks of the stored rows
    n : number of stored rows
    """
    if not isinstance(model.categorical, str):
        return
    indices = np.random.default_rng(0).choice(n, min(n, _KIND_ROWS), replace=False)
    indices = np.sort(indices).astype(np.uint32)
    rows = np.concatenate([x for _, x in blocks.map_blocks(take_rows, indices)])
    if not len(rows):
        return  # another process has the sample
    edge = (rows == rows.min(0)) | (rows == rows.max(0))
    two = np.flatnonzero(edge.all(0) & (np.ptp(rows, 0) > 0))
    if two.size:
        warn(
            f"{two.size} column(s) of the stored rows have two values and are treated as numeric, "
            f"so that one of them may determine the clusters; got column {two[0]} for example; "
            "pass an array, in which such columns are categorical, or categorical=[] to accept this"
        )
