"""Model-file tables of what is sampled for every run: labels, a split, pairs of rows.

Each table stands for one or several *amounts*, the points of a learning curve. The sampling itself
is in `nrprob.batch.draws`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

__all__ = ["MOST_FITS", "Constraints", "Split", "Strict", "Wanted"]

MOST_FITS = 100_000  # of one file: to list them takes half a gigabyte
MOST_AMOUNTS = 1_000  # points of learning curves
Share = Annotated[float, Field(gt=0, lt=1)]
Part = Annotated[float, Field(ge=0, lt=1)]
Number = Annotated[int, Field(ge=0, le=10_000_000)]
Wrong = Literal["none", "coin", "bias"]
_ROUNDING = 1e-9


class Strict(BaseModel):
    """A table of a model file; keys that it does not have are refused."""

    model_config = ConfigDict(extra="forbid")


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _points(table: BaseModel, names: Sequence[str], cases: Sequence[BaseModel]) -> Iterator[dict]:
    """Values of ``names``: what a case says, combined with what the table lists for the others.

    Raises
    ------
    ValueError
        If these are too many.
    """
    combined = [
        [[said[name]] if name in said else getattr(table, name) for name in names]
        for said in [case.model_dump(exclude_none=True) for case in cases] or [{}]
    ]
    count = sum(math.prod(map(len, lists)) for lists in combined)
    if count > MOST_AMOUNTS:
        raise ValueError(
            f"{' x '.join(names)} are too many; got {count} combinations; list at most "
            f"{MOST_AMOUNTS}"
        )
    for lists in combined:
        for values in itertools.product(*lists):
            yield dict(zip(names, values, strict=True))


def _distinct(amounts: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    for amount in amounts:
        if amount not in result:
            result.append(amount)
    return result


class Wanted(Strict):
    """Labels of some rows that methods are told: what `fit` takes as ``y``.

    The rows are a share of every class (``fraction``) or as many of each (``per_class``), or, with
    ``draw = "rows"``, a share of all rows whatever their class; several numbers make a learning
    curve. Of these labels, a share is ``wrong``. With ``classes``, only so many classes have any.
    Every run draws rows of its own, the same for all methods. ``score`` says which rows the
    measures are of. An empty cell in this column of the data file is an unknown label: its row is
    fitted, and neither drawn nor scored.
    """

    labeling: str
    fraction: list[Share] = Field(default_factory=list)
    per_class: list[Number] = Field(default_factory=list)
    draw: Literal["classes", "rows"] = "classes"
    wrong: list[Part] = Field(default_factory=list)
    classes: Annotated[int, Field(ge=2, le=1_000)] | None = None
    score: Literal["unlabelled", "all"] = "unlabelled"

    _lists = field_validator("fraction", "per_class", "wrong", mode="before")(_listed)

    @model_validator(mode="after")
    def _one_amount(self) -> Wanted:
        if bool(self.fraction) == bool(self.per_class):
            given = "both" if self.fraction else "neither"
            raise ValueError(
                f"it takes either fraction or per_class; got {given}; say how many rows are told"
            )
        if self.draw == "rows" and self.per_class:
            raise ValueError(
                "per_class is of every class; got draw = 'rows'; set fraction, or leave draw out"
            )
        return self

    @property
    def amounts(self) -> list[dict[str, Any]]:
        """What is told in each point of the learning curve."""
        names = ("fraction" if self.fraction else "per_class", *(["wrong"] if self.wrong else []))
        drawn = self.model_dump(include={"draw", "classes"}, exclude_defaults=True)
        return _distinct(
            {"labeling": self.labeling, **point, **drawn, "score": self.score}
            for point in _points(self, names, ())
        )


class SplitCase(Strict):
    """Shares that belong together."""

    labelled: Share | None = None
    unlabelled: Part | None = None
    test: Part | None = None


class Split(Strict):
    """Rows in three parts: fitted with their label, fitted without it, and kept for a test.

    Shares are of all rows, and may be lists, which are combined with each other and with ``cases``;
    without ``test``, it is what the others leave. ``told = false`` hides the labels from methods,
    which are then known only to who draws pairs and names clusters after classes. ``standardize``
    gives every feature mean 0 and standard deviation 1 on the rows that are fitted.
    """

    labeling: str
    labelled: list[Share] = Field(default_factory=list)
    unlabelled: list[Part] = [0.0]
    test: list[Part] = Field(default_factory=list)
    cases: list[SplitCase] = Field(default_factory=list)
    told: bool = True
    standardize: bool = False

    _lists = field_validator("labelled", "unlabelled", "test", mode="before")(_listed)

    @model_validator(mode="after")
    def _shares_fit(self) -> Split:
        if not self.labelled and not (self.cases and all(c.labelled for c in self.cases)):
            raise ValueError(
                "it needs a share of rows whose label is known; got none; set labelled"
            )
        for amount in self.amounts:
            parts = {name: amount[name] for name in ("labelled", "unlabelled", "test")}
            if sum(parts.values()) > 1 + _ROUNDING or parts["test"] < 0:
                given = ", ".join(f"{name} = {share:g}" for name, share in parts.items())
                raise ValueError(f"shares of the rows exceed 1; got {given}; lower one of them")
        return self

    @property
    def amounts(self) -> list[dict[str, Any]]:
        """Shares of each point of the learning curve."""
        table = self.model_copy(update={"test": self.test or [None]})
        points = _points(table, ("labelled", "unlabelled", "test"), self.cases)
        return _distinct(map(self._whole, points))

    def _whole(self, shares: Mapping[str, Any]) -> dict[str, Any]:
        test = shares["test"]
        if test is None:
            test = round(1 - shares["labelled"] - shares["unlabelled"], 9)
        return {
            "labeling": self.labeling,
            **shares,
            "test": test,
            "standardize": self.standardize,
        }


class PairsCase(Strict):
    """Settings of pairs that belong together."""

    pairs: Number | None = None
    wrong: Wrong | None = None
    share: Annotated[float, Field(ge=0, le=1)] | None = None


class Constraints(Strict):
    """Pairs of rows that methods are told must, or must not, share a cluster.

    ``pairs`` of them are drawn at random, and are what the labeling says, but for a ``share`` of
    them of which a coin decides ("coin"), or which link rows of the last two classes ("bias"); see
    `nrprob.links.draw_pairs`. Lists are combined with each other and with ``cases``.
    With a split, the rows are those whose label is known, and the labeling is the split's.
    """

    labeling: str | None = None
    pairs: list[Number] = Field(default_factory=list)
    wrong: list[Wrong] = ["none"]
    share: list[Annotated[float, Field(ge=0, le=1)]] = [0.4]
    cases: list[PairsCase] = Field(default_factory=list)

    _lists = field_validator("pairs", "wrong", "share", mode="before")(_listed)

    @model_validator(mode="after")
    def _some(self) -> Constraints:
        if not self.pairs and not (self.cases and all(c.pairs is not None for c in self.cases)):
            raise ValueError("it needs a number of pairs; got none; set pairs")
        return self

    @property
    def amounts(self) -> list[dict[str, Any]]:
        """How pairs are drawn in each point of the learning curve."""
        return _distinct(
            {name: value for name, value in point.items() if name != "share" or _has_wrong(point)}
            for point in _points(self, ("pairs", "wrong", "share"), self.cases)
        )


def _has_wrong(point: Mapping[str, Any]) -> bool:
    return point["wrong"] != "none"
