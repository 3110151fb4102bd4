"""What is drawn anew for every run: labels that are told, parts of the rows, pairs of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.exceptions import InputError

__all__ = ["PARTS", "Parts", "WantedLabels", "divide", "draw", "pairs_of"]

# What a row is in results; 0 is a row that is left out.
PARTS = {"labelled": 1, "unlabelled": 2, "test": 3}


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
        one, or their number ``per_class``; ``score``, see `nrprob.batch.supervision.Wanted`.
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
                f"wanted: a class has no row left to find; wanted labels of {count} rows, and "
                f"{wanted['labeling']} = {name} has {members.size}; ask for fewer, or leave the "
                "class out with data.keep"
            )
        rows[random.permutation(members)[:count]] = True
    scored = np.ones_like(rows) if wanted["score"] == "all" else ~rows
    return WantedLabels(np.where(rows, codes, -1), rows, scored)


@dataclass(frozen=True)
class Parts:
    """Rows in parts.

    Attributes
    ----------
    codes : (n,) number of every row's class, in the order of the sorted labels
    part : (n,) what a row is: a value of `PARTS`, or 0
    """

    codes: np.ndarray
    part: np.ndarray

    def rows(self, *names: str) -> np.ndarray:
        """Rows (n,), as bool, of the parts that are named."""
        return np.isin(self.part, [PARTS[name] for name in names])

    @property
    def fitted(self) -> np.ndarray:
        """Rows (n,), as bool, that `fit` gets."""
        return self.rows("labelled", "unlabelled")

    @property
    def y(self) -> np.ndarray:
        """Classes of the rows that are fitted, and -1 for those without a label."""
        return np.where(self.rows("labelled"), self.codes, -1)[self.fitted]


def divide(labels: np.ndarray, split: Mapping[str, Any], seed: tuple[int, int]) -> Parts:
    """Draw the parts of the rows.

    One seed draws one order of the rows, in which the first row of every class is moved to the
    front, so that each is among the labelled ones. These are taken from the front, then come those
    without a label; test rows are taken from the end. So with other shares most rows stay in their
    part: if labelled rows give way to unlabelled ones, the same rows are fitted.

    Parameters
    ----------
    labels : array of shape (n_samples,)
        Classes.
    split : mapping
        ``labeling``, for messages; shares ``labelled``, ``unlabelled`` and ``test`` of all rows,
        see `nrprob.batch.supervision.Split`.
    seed : tuple of int
        Of the data set, and of the run.

    Raises
    ------
    nrprob.exceptions.InputError
        If there are fewer labelled rows than classes.
    """
    classes, codes = np.unique(labels, return_inverse=True)
    n = codes.size
    n_labelled = round(split["labelled"] * n)
    n_fitted = round((split["labelled"] + split["unlabelled"]) * n)
    n_test = min(round(split["test"] * n), n - n_fitted)
    if n_labelled < classes.size:
        raise InputError(
            "split: every class needs a row with a label; split.labelled = "
            f"{split['labelled']:g} is {n_labelled} of {n} rows, and {split['labeling']} has "
            f"{classes.size} classes; raise it, or leave classes out with data.keep"
        )
    order = np.random.default_rng(seed).permutation(n)
    first = np.sort(np.unique(codes[order], return_index=True)[1])
    order = np.concatenate([order[first], np.delete(order, first)])
    part = np.zeros(n, np.int8)
    part[order[:n_labelled]] = PARTS["labelled"]
    part[order[n_labelled:n_fitted]] = PARTS["unlabelled"]
    part[order[n - n_test :]] = PARTS["test"]
    return Parts(codes, part)


def pairs_of(
    labels: np.ndarray, rows: np.ndarray, amount: Mapping[str, Any], seed: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Draw pairs of rows: what `fit` takes as ``must_link`` and ``cannot_link``.

    Parameters
    ----------
    labels : array of shape (n_samples,)
        Classes of the rows that are fitted.
    rows : array of int
        Those of them whose class is known.
    amount : mapping
        ``pairs``, ``wrong`` and ``share``, see `nrprob.batch.supervision.Constraints`.
    seed : tuple of int
        Of the data set, and of the run.

    Raises
    ------
    nrprob.exceptions.InputError
        If there are no pairs to draw.
    """
    from nrprob.links import draw_pairs

    # Another stream than that of the split, which has the same seed.
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((*seed, 1))))
    wrong = {name: amount[name] for name in ("wrong", "share") if name in amount}
    try:
        drawn = draw_pairs(labels[rows], amount["pairs"], random_state=random, **wrong)
    except ValueError as error:
        raise InputError(f"constraints: {error}") from error
    must_link, cannot_link = (rows[pairs] for pairs in drawn)
    return {"must_link": must_link, "cannot_link": cannot_link}
