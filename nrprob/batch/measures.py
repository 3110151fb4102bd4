"""Measures, tables and figures of a report, as model files declare them."""

from __future__ import annotations

from pathlib import Path, PureWindowsPath
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, field_validator, model_validator

from nrprob.batch.formats import PICTURE
from nrprob.batch.supervision import Strict

__all__ = ["OF_SPLIT", "Figure", "Measure", "Metric", "Report", "Setting", "Statistic", "Table"]

Metric = Literal[
    "normalized_mutual_information", "matched_accuracy", "purity", "rand_index",
    "adjusted_rand_index", "jaccard_index", "fowlkes_mallows_index", "pair_f_measure",
    "variation_of_information", "matching_rate", "predictive_rate", "train_accuracy",
    "test_accuracy", "error",
]  # fmt: skip
# Of the classes of a split, which say what they are of.
OF_SPLIT = ("train_accuracy", "test_accuracy", "error")
Statistic = Literal["mean", "min", "max", "range", "sd", "p"]
# By the names of their files; none is that of another file of a run.
_PICTURES = (".png", ".pdf", ".svg", ".jpg")


class Measure(Strict):
    """Agreement of the clusters with a labeling of the data, or something a fit found.

    ``metric`` compares clusters with ``labeling``: those of ``view``, or else the combinations of
    all views; "highest" and "lowest" are views by the value. "matching_rate" compares two
    views and takes no labeling; "train_accuracy", "test_accuracy" and "error" are about the classes
    of the file's split. ``attribute`` is a number that fitted estimators have, such as "tdl_", or a
    place in one: "n_clusters_.0". What a method does not have is not measured. ``goal`` says which
    values are better; "none" where that is not the question.
    """

    metric: Metric | None = None
    labeling: str | None = None
    attribute: str | None = None
    view: Annotated[int, Field(ge=0, le=1_000)] | Literal["highest", "lowest"] | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    goal: Literal["high", "low", "none", "auto"] = "auto"

    @model_validator(mode="after")
    def _one_kind(self) -> Measure:
        if (self.metric is None) == (self.attribute is None):
            given = "both" if self.metric else "neither"
            raise ValueError(
                f"it takes either metric or attribute; got {given}; say what to measure"
            )
        needs = self.metric is not None and self.metric not in ("matching_rate", *OF_SPLIT)
        if needs != (self.labeling is not None):
            what = self.metric or self.attribute
            raise ValueError(
                f"{what} needs a labeling; got none; set labeling"
                if needs
                else f"{what} takes no labeling; got {self.labeling!r}; leave it out"
            )
        if self.view is not None and self.metric in (None, "matching_rate", *OF_SPLIT):
            raise ValueError(
                f"{self.metric or self.attribute} is not about one view; got view = {self.view}; "
                "leave it out"
            )
        return self

    @property
    def better(self) -> str:
        """The goal, with "auto" resolved by the metric."""
        if self.goal != "auto":
            return self.goal
        if self.metric in (None, "matching_rate"):
            return "none"
        return "low" if self.metric in ("variation_of_information", "error") else "high"


class Setting(Strict):
    """Some cells of the results, and what was published for them.

    ``where`` holds values of parameters, of the data or of the methods, or of places in them
    ("dims.0", "wanted.fraction", "split.labelled"). ``published`` goes from
    method to measure to statistic to value; "A / B" as a method is the ratio of two means, and its
    "p" is that of a paired t-test of A and B.
    """

    where: dict[str, Any] = Field(default_factory=dict)
    published: dict[str, dict[str, dict[Statistic, FiniteFloat]]] = Field(default_factory=dict)
    note: str = ""


class Table(Strict):
    """A table of a report."""

    name: str
    caption: str = ""
    note: str = ""
    settings: list[Setting] = Field(default_factory=lambda: [Setting()], min_length=1)
    methods: list[str] = Field(default_factory=list)
    measures: list[str] = Field(default_factory=list)
    statistics: list[Statistic] = ["mean"]


class Figure(Strict):
    """A plot of a report: a measure against a parameter, one line per method.

    ``x`` is a parameter, or a place in one: "dims.0". ``series`` is a parameter that tells lines
    of one method apart. Published values are drawn where the file's tables have them.
    """

    name: str
    caption: str = ""
    x: str
    x_label: str = ""
    y: str
    series: str | None = None
    methods: list[str] = Field(default_factory=list)
    where: dict[str, Any] = Field(default_factory=dict)
    log_x: bool = False


class Report(Strict):
    """What to draw of a single run, and where results go.

    ``picture`` is the name of a file in the folder of results, or empty for none. ``out`` is a
    folder below the working directory.
    """

    picture: str | None = PICTURE
    out: Path | None = None

    @field_validator("picture")
    @classmethod
    def _stays_in_its_folder(cls, name: str | None) -> str | None:
        plain = not name or not set("/\\:\0") & set(name)
        if not plain or (name and Path(name).suffix not in _PICTURES):
            raise ValueError(
                f"a picture is a file of the folder of results; got {name!r}; give a name alone, "
                f"which ends in {', '.join(_PICTURES)}"
            )
        return name

    @field_validator("out")
    @classmethod
    def _stays_below(cls, out: Path | None) -> Path | None:
        if out is None:
            return out
        # On Windows, a drive or a backslash leads elsewhere, too.
        place = PureWindowsPath(out)
        if place.anchor or not place.parts or ".." in place.parts or "\0" in str(out):
            raise ValueError(
                f"results of a model file go to a folder below the working directory; got "
                f"{str(out)!r}; give a relative path without '..', or leave it out and choose "
                "any folder with --out"
            )
        return out
