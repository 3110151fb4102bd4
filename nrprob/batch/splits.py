"""Sample target labels, splits of the rows and pairs of rows, as tables of a model file define.

A table defines one or several *amounts*: the points of a learning curve, such as shares of labelled
rows. An amount is a dictionary of settings. The sampling functions take the labels (n,) of all n
rows and one amount; their ``seed`` is the seed of the data set and the index of the run. All
methods of a run therefore get equal labelled rows, parts and pairs. A *class* is a value of the
labeling that the table names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from nrprob.exceptions import InputError

__all__ = [
    "MAX_FITS", "PARTS", "Constraints", "Parts", "Split", "Strict", "TargetLabels", "PartialLabels",
    "sample_labels", "sample_pairs", "split_rows",
]  # fmt: skip

MAX_FITS = 100_000  # maximum number of fits of one file, whose list takes half a gigabyte
MAX_AMOUNTS = 1_000  # maximum number of points of learning curves
# Integers that stand for the parts of a split in results; 0 is a dropped row.
PARTS = {"labelled": 1, "unlabelled": 2, "test": 3}
# Minimum share of rows in the classes with labels, if only some classes have labels.
LEAST_SHARE = 0.3
_ROUNDING = 1e-9


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


_Listed = BeforeValidator(_as_list)
Fraction = Annotated[float, Field(gt=0, lt=1)]
FractionOrZero = Annotated[float, Field(ge=0, lt=1)]
FractionOrOne = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[int, Field(ge=0, le=10_000_000)]
Fractions = Annotated[list[Fraction], _Listed]
FractionsOrZero = Annotated[list[FractionOrZero], _Listed]
Numbers = Annotated[list[Number], _Listed]
Wrong = Literal["none", "coin", "bias"]


class Strict(BaseModel):
    """Base class of the tables of a model file, in which unknown keys raise an error."""

    model_config = ConfigDict(extra="forbid")


def _combine(
    table: BaseModel, names: Sequence[str], cases: Sequence[BaseModel] = ()
) -> list[dict[str, Any]]:
    """List all combinations of the values of a table's keys ``names``, as dictionaries.

    The table has a list of values for every key. With ``cases``, the combinations are formed once
    for every case, whose values replace lists of the table.
    """
    combined = [
        [[case[name]] if name in case else getattr(table, name) for name in names]
        for case in [case.model_dump(exclude_none=True) for case in cases] or [{}]
    ]
    count = sum(math.prod(map(len, lists)) for lists in combined)
    if count > MAX_AMOUNTS:
        raise ValueError(
            f"{' x '.join(names)} are too many; got {count} combinations; list at most "
            f"{MAX_AMOUNTS}"
        )
    points = itertools.chain.from_iterable(itertools.product(*lists) for lists in combined)
    return [dict(zip(names, values, strict=True)) for values in points]


def _distinct(amounts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [amount for i, amount in enumerate(amounts) if amount not in amounts[:i]]


class PartialLabels(Strict):
    """Target labels of some rows, which `fit` takes as ``y``.

    The labelled rows are a fraction of every class (``fraction``), or a number of rows of every
    class (``per_class``). With ``draw = "rows"``, the labelled rows are a fraction of all rows.
    Lists define a learning curve. A fraction ``wrong`` of the labels is wrong. With ``classes``,
    only this number of classes has labels. ``score`` states which rows the measures compare. A row
    with an empty entry in the column ``labeling`` of the data file has an unknown class. Such a row
    is fitted, but neither labelled nor scored.
    """

    labeling: str
    fraction: Fractions = Field(default_factory=list)
    per_class: Numbers = Field(default_factory=list)
    draw: Literal["classes", "rows"] = "classes"
    wrong: FractionsOrZero = Field(default_factory=list)
    classes: Annotated[int, Field(ge=2, le=1_000)] | None = None
    score: Literal["unlabelled", "all"] = "unlabelled"

    @model_validator(mode="after")
    def _check_amount(self) -> PartialLabels:
        """Refuse both or neither of ``fraction`` and ``per_class``."""
        if bool(self.fraction) == bool(self.per_class):
            count = "both" if self.fraction else "neither"
            raise ValueError(
                f"either fraction or per_class is needed; got {count}; set one of them"
            )
        if self.draw == "rows" and self.per_class:
            raise ValueError(
                "per_class is a number of rows of every class; got draw = 'rows', which ignores "
                "classes; set fraction, or leave draw out"
            )
        return self

    @property
    def amounts(self) -> list[dict[str, Any]]:
        """List the settings of the labels, one dictionary per point of the learning curve."""
        names = ("fraction" if self.fraction else "per_class", *(["wrong"] if self.wrong else []))
        settings = self.model_dump(include={"draw", "classes"}, exclude_defaults=True)
        return _distinct(
            [
                {"labeling": self.labeling, **point, **settings, "score": self.score}
                for point in _combine(self, names)
            ]
        )


class SplitCase(Strict):
    """One case of a `Split`: shares that replace the lists of the table."""

    labelled: Fraction | None = None
    unlabelled: FractionOrZero | None = None
    test: FractionOrZero | None = None


class Split(Strict):
    """Split of the rows in three parts: fitted with labels, fitted without labels, and test rows.

    ``labelled``, ``unlabelled`` and ``test`` list the shares of the parts among all rows. Every
    combination of listed values is one split. With ``cases``, the combinations are formed once for
    every entry, which replaces some of the lists by single values. Without ``test``, all rows that
    are not fitted are test rows.
    ``use_labels = false`` withholds the labels from methods; pairs and the matching of clusters to
    classes still use them. ``standardize`` gives every feature mean 0 and standard deviation 1 on
    the fitted rows.
    """

    labeling: str
    labelled: Fractions = Field(default_factory=list)
    unlabelled: FractionsOrZero = [0.0]
    test: FractionsOrZero = Field(default_factory=list)
    cases: list[SplitCase] = Field(default_factory=list)
    use_labels: bool = True
    standardize: bool = False

    @model_validator(mode="after")
    def _check_shares(self) -> Split:
        """Refuse a split without labelled rows, and shares that exceed 1."""
        if not self.labelled and not (self.cases and all(c.labelled for c in self.cases)):
            raise ValueError("a share of labelled rows is needed; got none; set labelled")
        for amount in self.amounts:
            parts = {name: amount[name] for name in PARTS}
            if sum(parts.values()) > 1 + _ROUNDING or parts["test"] < 0:
                shares = ", ".join(f"{name} = {share:g}" for name, share in parts.items())
                raise ValueError(f"shares of the rows exceed 1; got {shares}; lower one of them")
        return self

    @property
    def amounts(self) -> list[dict[str, Any]]:
        """List the shares of the parts, one dictionary per point of the learning curve."""
        table = self.model_copy(update={"test": self.test or [None]})
        points = _combine(table, [*PARTS], self.cases)
        for point in points:
            if point["test"] is None:
                point["test"] = round(1 - point["labelled"] - point["unlabelled"], 9)
        return _distinct(
            [
                {"labeling": self.labeling, **point, "standardize": self.standardize}
                for point in points
            ]
        )


class PairsCase(Strict):
    """One case of `Constraints`: settings of the pairs that replace the lists of the table."""

    pairs: Number | None = None
    wrong: Wrong | None = None
    share: FractionOrOne | None = None


class Constraints(Strict):
    """Must-link and cannot-link pairs of rows.

    ``pairs`` is the number of random pairs. With ``wrong = "none"``, all pairs agree with the
    labeling. With "coin", a ``share`` of the pairs is must-link or cannot-link at random; with
    "bias", a ``share`` of the pairs links rows of the last two classes; see
    `nrprob.links.draw_pairs`. Every combination of listed values is one setting. With ``cases``,
    the combinations are formed once for every entry, which replaces some of the lists. With a
    `Split`, pairs join labelled rows, and the labeling is the labeling of the split.
    """

    labeling: str | None = None
    pairs: Numbers = Field(default_factory=list)
    wrong: Annotated[list[Wrong], _Listed] = ["none"]
    share: Annotated[list[FractionOrOne], _Listed] = [0.4]
    cases: list[PairsCase] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_pairs(self) -> Constraints:
        if not self.pairs and not (self.cases and all(c.pairs is not None for c in self.cases)):
            raise ValueError("a number of pairs is needed; got none; set pairs")
        return self

    @property
    def amounts(self) -> list[dict[str, Any]]:
        """List the settings of the pairs, one dictionary per point of the learning curve."""
        points = _combine(self, ("pairs", "wrong", "share"), self.cases)
        for point in points:
            if point["wrong"] == "none":
                del point["share"]
        return _distinct(points)


@dataclass(frozen=True)
class TargetLabels:
    """Sampled target labels of n rows.

    Attributes
    ----------
    y : (n,) int, class of every labelled row, as a position among the sorted labels; some classes
        are wrong if wrong labels were requested. -1 for rows without a label
    labelled : (n,) bool, whether a row has a label
    scored : (n,) bool, whether measures compare the row
    """

    y: np.ndarray
    labelled: np.ndarray
    scored: np.ndarray


def sample_labels(
    labels: np.ndarray, amount: Mapping[str, Any], seed: tuple[int, int]
) -> TargetLabels:
    """Sample target labels: choose the labelled rows, class by class or from all rows.

    One random stream permutes the rows of every class, or all rows, and the first rows are
    labelled. With more labels, rows that were labelled therefore stay labelled. A second stream
    makes labels wrong, with equal probability of every other class. If ``amount`` has a number of
    ``classes``, a third stream chooses the classes with labels. The chosen classes contain at least
    a share `LEAST_SHARE` of the rows, or are the largest classes.

    If a fraction of every class is to be labelled, at least one row of every class with labels is
    labelled. Rows whose label is empty text are neither labelled nor scored.

    Raises InputError if all rows, or all rows of a class, would be labelled, or if there are too
    few classes.
    """
    from nrprob.data.labels import are_blank  # which imports SciPy

    known = ~are_blank(labels)
    codes = np.full(labels.size, -1)
    classes, codes[known] = np.unique(labels[known], return_inverse=True)
    candidates = np.arange(classes.size)
    if "classes" in amount:
        candidates = _sample_classes(codes[known], amount, np.random.default_rng((*seed, 2)))
    # Choose the labelled rows: from all rows, or class by class.
    random = np.random.default_rng(seed)
    if amount.get("draw") == "rows":
        count = max(round(amount["fraction"] * known.sum()), 1)
        if count >= known.sum():
            raise InputError(
                f"partial_labels: no row is left without a label; {count} of {known.sum()} rows "
                "have one; ask for fewer"
            )
        chosen = [random.permutation(np.flatnonzero(np.isin(codes, candidates)))[:count]]
    else:
        chosen = []
        for c in candidates:
            members = np.flatnonzero(codes == c)
            count = amount.get("per_class")
            if count is None:
                count = max(round(amount["fraction"] * members.size), 1)
            if count >= members.size:
                raise InputError(
                    "partial_labels: a class has no row left without a label; "
                    f"{count} labelled rows, and {amount['labeling']} = {classes[c]} has "
                    f"{members.size}; ask for fewer, or leave the class out with data.keep"
                )
            chosen.append(random.permutation(members)[:count])
    labelled = np.zeros(codes.size, bool)
    labelled[np.concatenate(chosen)] = True
    y = np.where(labelled, codes, -1)
    if amount.get("wrong"):
        _make_wrong(y, amount["wrong"], classes.size, np.random.default_rng((*seed, 1)))
    return TargetLabels(y, labelled, known if amount["score"] == "all" else known & ~labelled)


def _sample_classes(
    codes: np.ndarray, amount: Mapping[str, Any], random: np.random.Generator
) -> np.ndarray:
    """Sample the classes whose rows get labels; return them as sorted integers.

    ``codes`` (n,) are the classes of the rows as integers. ``amount`` has, as "classes", the number
    of classes to sample.
    """
    sizes = np.bincount(codes)
    if amount["classes"] > sizes.size:
        raise InputError(
            f"partial_labels: there are fewer classes; labels of {amount['classes']} classes, and "
            f"{amount['labeling']} has {sizes.size}; lower partial_labels.classes"
        )
    largest = np.argsort(-sizes, kind="stable")[: amount["classes"]]
    threshold = min(LEAST_SHARE * codes.size, sizes[largest].sum())
    for _ in range(1000):  # rejection sampling: many classes have too many subsets to list
        candidates = random.choice(sizes.size, largest.size, replace=False)
        if sizes[candidates].sum() >= threshold:
            return np.sort(candidates)
    return largest


def _make_wrong(y: np.ndarray, share: float, n_classes: int, random: np.random.Generator) -> None:
    """Change the labels of a random ``share`` of the labelled rows to another class, in place.

    ``y`` (n,) are classes from 0 to ``n_classes - 1``, or -1 for rows without a label.
    """
    if n_classes < 2:
        raise InputError(
            f"partial_labels: a single class has no wrong labels; got wrong = {share:g}; leave it "
            "out"
        )
    order = random.permutation(np.flatnonzero(y >= 0))
    shifts = random.integers(1, n_classes, order.size)
    count = round(share * order.size)
    y[order[:count]] = (y[order[:count]] + shifts[:count]) % n_classes


@dataclass(frozen=True)
class Parts:
    """Split of n rows into labelled, unlabelled, test and dropped rows.

    Attributes
    ----------
    codes : (n,) class of every row, as a position among the sorted labels
    part : (n,) part of every row, a value of `PARTS`; 0 for dropped rows
    """

    codes: np.ndarray
    part: np.ndarray

    def mask(self, *names: str) -> np.ndarray:
        """Boolean mask (n,) of the rows in the named parts."""
        return np.isin(self.part, [PARTS[name] for name in names])

    @property
    def fitted(self) -> np.ndarray:
        """Boolean mask (n,) of the fitted rows, which are labelled or unlabelled."""
        return self.mask("labelled", "unlabelled")

    @property
    def y(self) -> np.ndarray:
        """Classes (n_fitted,) of the fitted rows as integers, -1 for rows without a label."""
        return np.where(self.mask("labelled"), self.codes, -1)[self.fitted]


def split_rows(labels: np.ndarray, amount: Mapping[str, Any], seed: tuple[int, int]) -> Parts:
    """Split rows into labelled, unlabelled and test rows.

    One seed permutes the rows, and the first row of every class moves to the front. Labelled rows
    come from the front, then unlabelled rows; test rows come from the end. If the shares change,
    most rows stay in their part; scikit-learn's splitters do not guarantee this.

    Raises InputError if there are fewer labelled rows than classes.
    """
    classes, codes = np.unique(labels, return_inverse=True)
    n = codes.size
    n_labelled = round(amount["labelled"] * n)
    n_fitted = round((amount["labelled"] + amount["unlabelled"]) * n)
    n_test = min(round(amount["test"] * n), n - n_fitted)
    if n_labelled < classes.size:
        raise InputError(
            "split: every class needs a row with a label; split.labelled = "
            f"{amount['labelled']:g} is {n_labelled} of {n} rows, and {amount['labeling']} has "
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


def sample_pairs(
    labels: np.ndarray, rows: np.ndarray, amount: Mapping[str, Any], seed: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Sample must-links and cannot-links, as the keyword arguments of `fit` with these names.

    ``labels`` are the classes of the fitted rows. Both rows of a pair are among ``rows``, which are
    indices of fitted rows. The pairs are integer arrays (n_pairs, 2).
    """
    from nrprob.links import draw_pairs

    # The split has the same seed, so pairs use another stream.
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((*seed, 1))))
    wrong = {name: amount[name] for name in ("wrong", "share") if name in amount}
    try:
        pairs = draw_pairs(labels[rows], amount["pairs"], random_state=random, **wrong)
    except ValueError as error:
        raise InputError(f"constraints: {error}") from error
    return dict(zip(("must_link", "cannot_link"), (rows[ends] for ends in pairs), strict=True))
