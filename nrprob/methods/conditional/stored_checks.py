"""Checks of parameters and columns of stored rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from nrprob.data.storage.blocks import Blocks
from nrprob.exceptions import short_repr, warn
from nrprob.methods.conditional.streaming import take_rows

_KIND_ROWS = 1000  # rows by which columns of two values are recognised


def check_in_memory(model: Any) -> None:
    """Refuse parameters that stored rows do not support."""
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
    """Whether the user names columns, by a list or a single name."""
    return value != "auto" if isinstance(value, str) else len(value) > 0


def warn_discrete(model: Any, blocks: Blocks, n: int) -> None:
    """Warn of columns of two values, which stored rows take for numbers.

    ``blocks`` are of raw rows, of which a sample is read.
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
            f"{two.size} column(s) of the stored rows have two values, such as column {two[0]}, "
            "and are taken for numbers, so that such a column may determine the clusters; pass an "
            "array, whose columns of two values are categorical, or categorical=[]"
        )
