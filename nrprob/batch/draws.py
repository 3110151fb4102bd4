"""Sample what differs between runs: labelled rows, train/test splits, pairs of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.data.labels import are_blank
from nrprob.exceptions import InputError

__all__ = ["PARTS", "Parts", "WantedLabels", "divide", "draw", "pairs_of"]

# What a row is in results; 0 is a row that is left out.
PARTS = {"labelled": 1, "unlabelled": 2, "test": 3}
# Share of the rows that the classes which have labels shall hold, where only some classes have.
LEAST_SHARE = 0.3


@dataclass(frozen=True)
class WantedLabels:
    """Wanted labels of some rows.

    Attributes
    ----------
    y : (n,) number of the class, in the order of the sorted labels, or of another one if the label
        is wrong, and -1 where none is told
    rows : (n,) bool, where it is told
    scored : (n,) bool, rows that measures are of
    """

    y: np.ndarray
    rows: np.ndarray
    scored: np.ndarray


def draw(labels: np.ndarray, wanted: Mapping[str, Any], seed: tuple[int, int]) -> WantedLabels:
    """Draw the rows whose wanted label is told, class by class or from all of them.

    One seed draws one order of the rows of every class, or of all rows, of which the first are
    taken: with more labels, those rows stay that had one before. In another order labels become
    wrong, every other class being as likely. Neither this nor the classes that have labels at all
    depends on the other numbers.

    Parameters
    ----------
    labels : array of shape (n_samples,)
        The wanted labeling. Rows whose label is empty text are neither drawn nor scored.
    wanted : mapping
        ``labeling``, for messages; ``fraction`` of the rows of every class, rounded but at least
        one, or their number ``per_class``; ``score``, see `nrprob.batch.supervision.Wanted`. If
        they are there, ``draw`` as "rows" takes the fraction of all rows, at most all that the
        ``classes`` have, which are drawn among those sets of so many classes that hold three tenths
        of the rows, or are the largest; ``wrong`` is the share of wrong labels, rounded.
    seed : tuple of int
        Of the data set, and of the run.

    Raises
    ------
    nrprob.exceptions.InputError
        If a class, or all rows, would have no row left without a label, or the labeling has fewer
        classes than are asked for.
    """
    there = ~are_blank(labels)
    codes = np.full(labels.size, -1)
    classes, codes[there] = np.unique(labels[there], return_inverse=True)
    chosen = np.arange(classes.size)
    if "classes" in wanted:
        chosen = _some_classes(codes[there], wanted, np.random.default_rng((*seed, 2)))
    random = np.random.default_rng(seed)
    rows = np.zeros(codes.size, bool)
    if wanted.get("draw") == "rows":
        count = max(round(wanted["fraction"] * there.sum()), 1)
        if count >= there.sum():
            raise InputError(
                f"wanted: no row is left to find; wanted labels of {count} of {there.sum()} rows; "
                "ask for fewer"
            )
        rows[random.permutation(np.flatnonzero(np.isin(codes, chosen)))[:count]] = True
        chosen = chosen[:0]
    for c in chosen:
        name, members = classes[c], np.flatnonzero(codes == c)
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
    scored = there if wanted["score"] == "all" else there & ~rows
    y = np.where(rows, codes, -1)
    if wanted.get("wrong"):
        _make_wrong(y, wanted["wrong"], classes.size, np.random.default_rng((*seed, 1)))
    return WantedLabels(y, rows, scored)


def _some_classes(
    codes: np.ndarray, wanted: Mapping[str, Any], random: np.random.Generator
) -> np.ndarray:
    """Draw the numbers of the classes that have labels."""
    sizes = np.bincount(codes)
    if wanted["classes"] > sizes.size:
        raise InputError(
            f"wanted: there are fewer classes; wanted labels of {wanted['classes']}, and "
            f"{wanted['labeling']} has {sizes.size}; lower wanted.classes"
        )
    largest = np.argsort(-sizes, kind="stable")[: wanted["classes"]]
    least = min(LEAST_SHARE * codes.size, sizes[largest].sum())
    for _ in range(1000):  # of many classes there are too many sets to list
        chosen = random.choice(sizes.size, largest.size, replace=False)
        if sizes[chosen].sum() >= least:
            return np.sort(chosen)
    return largest


def _make_wrong(y: np.ndarray, share: float, n_classes: int, random: np.random.Generator) -> None:
    """Give a share of the labelled rows another class."""
    if n_classes < 2:
        raise InputError(
            f"wanted: a single class has no wrong labels; got wrong = {share:g}; leave it out"
        )
    order = random.permutation(np.flatnonzero(y >= 0))
    others = random.integers(1, n_classes, order.size)
    count = round(share * order.size)
    y[order[:count]] = (y[order[:count]] + others[:count]) % n_classes


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
