"""Measures, saved outputs, tables and figures of a report, as model files declare them."""

from __future__ import annotations

from pathlib import Path, PureWindowsPath
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, field_validator, model_validator

from nrprob.batch.formats import PICTURE
from nrprob.batch.splits import Strict

__all__ = [
    "OF_FEATURES", "OF_SPLIT", "Figure", "Measure", "Metric", "Report", "Save", "Setting",
    "Statistic", "Table",
]  # fmt: skip

Metric = Literal[
    "normalized_mutual_information", "matched_accuracy", "purity", "rand_index",
    "adjusted_rand_index", "jaccard_index", "fowlkes_mallows_index", "pair_f_measure",
    "variation_of_information", "matching_rate", "predictive_rate", "train_accuracy",
    "test_accuracy", "error", "dunn_index", "silhouette_width",
]  # fmt: skip
# Separation of the clusters in the features; these metrics need no labeling.
OF_FEATURES = ("dunn_index", "silhouette_width")
# Accuracies and error of class predictions; they need no labeling, since the split has one.
OF_SPLIT = ("train_accuracy", "test_accuracy", "error")
Statistic = Literal["mean", "min", "max", "range", "sd", "p"]
# Suffixes of plots; no other file of a run has one of them.
_PICTURES = (".png", ".pdf", ".svg", ".jpg")


class Measure(Strict):
    """Measure of a model file: a metric of the clusters, or an attribute of the fitted estimator.

    ``metric`` compares ``labeling`` with the clusters of ``view``, by default with the combinations
    of the clusters of all views. The views "highest" and "lowest" are the views with the highest
    and lowest value of the metric. The metric "matching_rate" compares two views without a
    labeling; "train_accuracy", "test_accuracy" and "error" use the classes of the split. The
    metrics "dunn_index" and "silhouette_width" compare the clusters of a view with the features,
    and are averaged over the views by default.
    ``attribute`` is a numeric attribute of fitted estimators, such as "tdl_", or an element of one:
    "n_clusters_.0". The measure is NaN for methods without this attribute. ``parameters`` are
    further arguments of the metric. ``goal`` states whether high or low values are better; "auto"
    depends on the metric.
    """

    metric: Metric | None = None
    labeling: str | None = None
    attribute: str | None = None
    view: Annotated[int, Field(ge=0, le=1_000)] | Literal["highest", "lowest"] | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    goal: Literal["high", "low", "none", "auto"] = "auto"

    @model_validator(mode="after")
    def _check_target(self) -> Measure:
        """Raise ValueError for a measure without metric or attribute, or with unsuitable keys."""
        if (self.metric is None) == (self.attribute is None):
            count = "both" if self.metric else "neither"
            raise ValueError(
                f"a measure has either metric or attribute; got {count}; set one of them"
            )
        name = self.metric or self.attribute
        takes_labeling = self.metric not in (None, "matching_rate", *OF_SPLIT, *OF_FEATURES)
        if takes_labeling and self.labeling is None:
            raise ValueError(f"{name} needs a labeling; got none; set labeling")
        if not takes_labeling and self.labeling is not None:
            raise ValueError(f"{name} takes no labeling; got {self.labeling!r}; leave labeling out")
        takes_view = takes_labeling or self.metric in OF_FEATURES
        if not takes_view and self.view is not None:
            raise ValueError(
                f"{name} does not compare a single view; got view = {self.view}; leave view out"
            )
        return self

    @property
    def direction(self) -> str:
        """Direction of better values: "high", "low" or "none".

        The result is ``goal``, or the direction of the metric if the goal is "auto".
        """
        if self.goal != "auto":
            return self.goal
        if self.metric in (None, "matching_rate"):
            return "none"
        return "low" if self.metric in ("variation_of_information", "error") else "high"


class Setting(Strict):
    """Group of rows of a table of a report: selected fits, and published values for comparison.

    ``where`` selects fits by values of parameters of the data or of the methods, or of elements of
    these parameters ("dims.0", "partial_labels.fraction", "split.labelled"). ``published`` has
    values by method, measure and statistic. The method "A / B" stands for the ratio of the means of
    two methods. The statistic "p" of this ratio is the p-value of a paired t-test of A and B.
    ``ids`` are ids of published values (`nrprob.batch.published.Published`) in the folder
    ``published`` beside the model file. `read_model` inserts these values into ``published``. The
    beginning of an id, up to a slash, names all values whose ids begin with it.
    """

    where: dict[str, Any] = Field(default_factory=dict)
    ids: list[str] = Field(default_factory=list)
    published: dict[str, dict[str, dict[Statistic, FiniteFloat]]] = Field(default_factory=dict)
    note: str = ""


class Table(Strict):
    """A table of a report: statistics of measures, by method, for every setting.

    ``methods`` and ``measures`` select methods and measures; by default, all are shown.
    """

    name: str
    caption: str = ""
    note: str = ""
    settings: list[Setting] = Field(default_factory=lambda: [Setting()], min_length=1)
    methods: list[str] = Field(default_factory=list)
    measures: list[str] = Field(default_factory=list)
    statistics: list[Statistic] = ["mean"]


class Figure(Strict):
    """A plot of a report: a measure ``y`` against a parameter ``x``, one line per method.

    ``x`` may also be an element of a parameter: "dims.0". With ``series``, the name of another
    parameter, every method has one line per value of this parameter. Published values come from the
    tables of the model file.
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


class Save(Strict):
    """Outputs of every fit to save, in addition to its measures."""

    labels: bool = True
    memberships: bool = False
    traces: bool = True


class Report(Strict):
    """Names of output files.

    ``out`` is the folder of the results, below the working directory. ``picture`` is the file name
    of the plot of clusters in this folder; empty for no plot. Only model files with one data set
    and one fit of every method have such a plot.
    """

    picture: str | None = PICTURE
    out: Path | None = None

    @field_validator("picture")
    @classmethod
    def _check_picture(cls, name: str | None) -> str | None:
        plain = not name or not set("/\\:\0") & set(name)
        if not plain or (name and Path(name).suffix not in _PICTURES):
            raise ValueError(
                f"a picture is a file in the folder of results; got {name!r}; set a file name "
                f"without a folder, which ends in {', '.join(_PICTURES)}"
            )
        return name

    @field_validator("out")
    @classmethod
    def _check_out(cls, out: Path | None) -> Path | None:
        """Refuse a folder outside of the working directory."""
        if out is None:
            return out
        # Parse the path as on Windows, where a drive or a backslash also leads to another folder.
        place = PureWindowsPath(out)
        if place.anchor or not place.parts or ".." in place.parts or "\0" in str(out):
            raise ValueError(
                f"results of a model file go to a folder below the working directory; got "
                f"{str(out)!r}; set a relative path without '..', or leave out empty and choose "
                "any folder with --out"
            )
        return out
