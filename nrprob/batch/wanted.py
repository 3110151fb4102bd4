"""Which rows of a data set have their wanted label told to the methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.exceptions import InputError

__all__ = ["WantedLabels", "draw"]


@dataclass(frozen=True)
class WantedLabels:
    """Wanted labels of some rows.

    Attributes
    ----------
    y : (n,) number of the class, in the order of the sorted labels, and -1 where it is not told
    rows : (n,) bool, where it is told
    scored : (n,) bool, rows that measures are of
    """

    y: np.ndarray
    rows: np.ndarray
    scored: np.ndarray


def draw(labels: np.ndarray, wanted: Mapping[str, Any], seed: tuple[int, int]) -> WantedLabels:
    """Draw the rows whose wanted label is told, class by class.

    One seed draws one order of the rows of every class, of which the first are taken: with more
    labels, those rows stay that had one before.

    Parameters
    ----------
    labels : array of shape (n_samples,)
        The wanted labeling.
    wanted : mapping
        ``labeling``, for messages; ``fraction`` of the rows of every class, rounded but at least
        one, or their number ``per_class``; ``score``, see `nrprob.batch.modelfile.Wanted`.
    seed : tuple of int
        Of the data set, and of the run.

    Raises
    ------
    nrprob.exceptions.InputError
        If a class would have no row left without a label.
    """
    classes, codes = np.unique(labels, return_inverse=True)
    random = np.random.default_rng(seed)
    rows = np.zeros(codes.size, bool)
    for c, name in enumerate(classes):
        members = np.flatnonzero(codes == c)
        count = wanted.get("per_class")
        if count is None:
            count = max(round(wanted["fraction"] * members.size), 1)
        if count >= members.size:
            raise InputError(
                f"a class has no row left to find; wanted labels of {count} rows, and "
                f"{wanted['labeling']} = {name} has {members.size}; ask for fewer, or leave the "
                "class out with data.keep"
            )
        rows[random.permutation(members)[:count]] = True
    scored = np.ones_like(rows) if wanted["score"] == "all" else ~rows
    return WantedLabels(np.where(rows, codes, -1), rows, scored)
