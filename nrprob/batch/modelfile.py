"""Model files: what to run, described in TOML.

A file names its data, what is known about them, methods with their parameters, and what to
measure::

    title = "Even, odd, and what else?"
    known = "parity"

    [data]
    loader = "digits"
    keep = { digit = [4, 5, 6, 7] }

    [data.labelings.parity]
    of = "digit"
    groups = { even = [4, 6], odd = [5, 7] }

    [[methods]]
    name = "ccib"
    n_clusters = 2

It may ask for many data sets and many settings: ``data.cases`` lists parameters of the data that
belong together, ``grid`` (of the data, of a method) lists values to combine, ``data.repeats`` draws
as many data sets of every case, and ``runs`` fits every one of them as many times, with seeds of
their own. A method's parameter may be taken from the data: ``n_clusters = "data.n_clusters"``.

``wanted`` tells methods the sought labels of some rows.

``tables`` and ``figures`` say how a report sets the results out, beside published values where
there are some. Keys that do not exist are refused, with the place and the nearest right one.
"""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nrprob.batch import registry
from nrprob.exceptions import InputError

__all__ = [
    "Data",
    "Figure",
    "Labeling",
    "Measure",
    "MethodSpec",
    "ModelFile",
    "Report",
    "Setting",
    "Table",
    "Wanted",
    "look_up",
    "read_model",
]

Metric = Literal[
    "normalized_mutual_information",
    "matched_accuracy",
    "purity",
    "rand_index",
    "jaccard_index",
    "fowlkes_mallows_index",
    "pair_f_measure",
    "variation_of_information",
]
Statistic = Literal["mean", "min", "max", "range"]
# Measured of every fit, whatever a file says.
BUILT_IN = ("seconds", "objective", "n_clusters")
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Labeling(_Strict):
    """A labeling derived from another one by putting its values into named groups."""

    of: str
    groups: dict[str, list[Any]]


class Data(_Strict):
    """Where rows come from, which of them are kept, and how they are labelled."""

    loader: str | None = None
    generator: str | None = None
    file: Path | None = None
    # of a generator or a loader
    parameters: dict[str, Any] = Field(default_factory=dict)
    cases: list[dict[str, Any]] = Field(default_factory=list)
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    # of a generator
    seed: int = 0
    repeats: Count = 1
    # of a file
    columns: list[str] = Field(default_factory=list)
    drop: list[str] = Field(default_factory=list)
    label_columns: list[str] = Field(default_factory=list)
    # of any
    image_shape: tuple[int, int] | None = None
    keep: dict[str, list[Any]] = Field(default_factory=dict)
    labelings: dict[str, Labeling] = Field(default_factory=dict)
    standardize: bool = False
    binarize: float | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Data:
        sources = [s for s in ("loader", "generator", "file") if getattr(self, s) is not None]
        if len(sources) != 1:
            given = ", ".join(sources) or "none"
            raise ValueError(f"data come from one source; {given}; give loader, generator or file")
        if self.repeats > 1 and self.generator is None:
            raise ValueError(
                f"only a generator can draw other data; repeats = {self.repeats}; "
                "use runs to fit the same data several times"
            )
        if self.file is not None and (self.parameters or self.cases or self.grid):
            raise ValueError("a file has no parameters; got some; leave them out")
        return self


class Wanted(_Strict):
    """Labels of some rows that methods are told: what `fit` takes as ``y``.

    The rows are a share of every class (``fraction``) or as many of each (``per_class``); several
    numbers make a learning curve. Every run draws rows of its own, the same for all methods.
    ``score`` says which rows the measures are of.
    """

    labeling: str
    fraction: list[Share] = Field(default_factory=list)
    per_class: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    score: Literal["unlabelled", "all"] = "unlabelled"

    @field_validator("fraction", "per_class", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]

    @model_validator(mode="after")
    def _one_amount(self) -> Wanted:
        if bool(self.fraction) == bool(self.per_class):
            given = "both" if self.fraction else "neither"
            raise ValueError(
                f"it takes either fraction or per_class; got {given}; say how many rows are told"
            )
        return self

    @property
    def amounts(self) -> list[dict[str, Any]]:
        """What is told in each point of the learning curve."""
        name = "fraction" if self.fraction else "per_class"
        return [
            {"labeling": self.labeling, name: value, "score": self.score}
            for value in dict.fromkeys(getattr(self, name))
        ]


class MethodSpec(BaseModel):
    """A method by its short name; every other key is a parameter of its estimator.

    ``grid`` lists values of parameters to combine; ``title`` names the method in reports and in
    published values; ``runs`` replaces the file's; ``wanted = false`` keeps the file's wanted
    labels from it. ``where`` holds parameters of the data that it is for, or alternatives of them.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    title: str = ""
    note: str = ""
    runs: Count | None = None
    wanted: bool = True
    where: list[dict[str, Any]] = Field(default_factory=list)
    grid: dict[str, list[Any]] = Field(default_factory=dict)

    @field_validator("where", mode="before")
    @classmethod
    def _alternatives(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]

    @field_validator("name")
    @classmethod
    def _exists(cls, name: str) -> str:
        registry.method(name)
        return name

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the estimator as the file gives them, those of the grid left out."""
        return dict(self.model_extra or {})

    @property
    def label(self) -> str:
        """Title, or else the name of the class."""
        return self.title or registry.method(self.name).class_name


class Measure(_Strict):
    """Agreement of the clusters with a labeling of the data.

    ``goal`` says which values are better; "none" where that is not the question.
    """

    metric: Metric
    labeling: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    goal: Literal["high", "low", "none", "auto"] = "auto"

    @property
    def better(self) -> str:
        """The goal, with "auto" resolved by the metric."""
        if self.goal != "auto":
            return self.goal
        return "low" if self.metric == "variation_of_information" else "high"


class Save(_Strict):
    """What to keep of every fit, beside its measures."""

    labels: bool = True
    memberships: bool = False
    traces: bool = True


class Setting(_Strict):
    """Some cells of the results, and what was published for them.

    ``where`` holds values of parameters, of the data or of the methods, or of places in them
    ("dims.0", "wanted.fraction"). ``published`` goes from
    method to measure to statistic to value; "A / B" as a method is the ratio of two means.
    """

    where: dict[str, Any] = Field(default_factory=dict)
    published: dict[str, dict[str, dict[Statistic, float]]] = Field(default_factory=dict)
    note: str = ""


class Table(_Strict):
    """A table of a report."""

    name: str
    caption: str = ""
    note: str = ""
    settings: list[Setting] = Field(default_factory=lambda: [Setting()], min_length=1)
    methods: list[str] = Field(default_factory=list)
    measures: list[str] = Field(default_factory=list)
    statistics: list[Statistic] = ["mean"]


class Figure(_Strict):
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


class Report(_Strict):
    """What to draw of a single run, and where results go."""

    picture: str | None = "summary.png"
    out: Path | None = None


class ModelFile(_Strict):
    """What to run."""

    title: str = ""
    description: str = ""
    source: str = ""
    data: Data
    known: str | list[str] = Field(default_factory=list)
    wanted: Wanted | None = None
    methods: list[MethodSpec] = Field(min_length=1)
    runs: Count = 1
    measures: dict[str, Measure] = Field(default_factory=dict)
    save: Save = Field(default_factory=Save)
    tables: list[Table] = Field(default_factory=list)
    figures: list[Figure] = Field(default_factory=list)
    report: Report = Field(default_factory=Report)

    @property
    def known_names(self) -> list[str]:
        """Names of the known labelings, none, one or several."""
        return [self.known] if isinstance(self.known, str) else self.known

    @property
    def measure_names(self) -> list[str]:
        """Names of all measures, those of every fit included."""
        return [*self.measures, *BUILT_IN]

    @property
    def single(self) -> bool:
        """Whether there is one data set and one fit of every method."""
        data = self.data
        grids = [data.grid, *(m.grid for m in self.methods)]
        runs = {self.runs, *(m.runs or self.runs for m in self.methods)}
        one = data.repeats == 1 and runs == {1} and len(data.cases) <= 1 and not any(grids)
        return one and (self.wanted is None or len(self.wanted.amounts) == 1)

    @model_validator(mode="after")
    def _names_agree(self) -> ModelFile:
        titles = [m.label for m in self.methods]
        twice = {t for t in titles if titles.count(t) > 1}
        if twice:
            raise ValueError(
                f"methods need different titles; {', '.join(sorted(twice))}; give each a title"
            )
        for name in self.measures:
            if name in BUILT_IN:
                raise ValueError(f"measures.{name}: this name is taken; {name}; choose another")
        for i, method in enumerate(self.methods):
            if self.wanted and method.wanted and not registry.method(method.name).takes_wanted:
                raise ValueError(
                    f"methods.{i}: {method.name} takes no wanted labels; got those of "
                    f"{self.wanted.labeling!r}; set wanted = false there, or use another method"
                )
        for where, used, right in self._references():
            if used not in right:
                raise ValueError(
                    f"{where}: there is nothing of that name; {used!r}; "
                    + registry.nearest(used, right)
                )
        return self

    def _references(self) -> typing.Iterator[tuple[str, str, list[str]]]:
        """(place, name, names that are right there) of all names in tables and figures."""
        titles = [m.label for m in self.methods]
        parameters = self._parameter_names()
        of_data = [*self.data.parameters, *self.data.grid, *(n for c in self.data.cases for n in c)]
        for i, spec in enumerate(self.methods):
            for used in (name for one in spec.where for name in one):
                yield f"methods.{i}.where", used.split(".")[0], [*dict.fromkeys(of_data)]
        for i, table in enumerate(self.tables):
            at = f"tables.{i}"
            published = [m for s in table.settings for m in s.published]
            for name in table.methods:
                yield f"{at}.methods", name, [*titles, *published]
            for name in table.measures:
                yield f"{at}.measures", name, self.measure_names
            for j, setting in enumerate(table.settings):
                for name in setting.where:
                    yield f"{at}.settings.{j}.where", name.split(".")[0], parameters
                for method, measures in setting.published.items():
                    for name in measures:
                        place = f"{at}.settings.{j}.published.{method}"
                        yield place, name, self.measure_names
        for i, figure in enumerate(self.figures):
            at = f"figures.{i}"
            yield f"{at}.x", figure.x.split(".")[0], parameters
            yield f"{at}.y", figure.y, self.measure_names
            if figure.series is not None:
                yield f"{at}.series", figure.series.split(".")[0], parameters
            for name in figure.where:
                yield f"{at}.where", name.split(".")[0], parameters
            published = [m for t in self.tables for s in t.settings for m in s.published]
            for name in figure.methods:
                yield f"{at}.methods", name, [*titles, *published]

    def _parameter_names(self) -> list[str]:
        data = self.data
        names: dict[str, None] = dict.fromkeys([*data.parameters, *data.grid])
        for case in data.cases:
            names |= dict.fromkeys(case)
        for method in self.methods:
            names |= dict.fromkeys([*method.parameters, *method.grid])
        if self.wanted is not None:
            names["wanted"] = None
        return list(names)


def look_up(parameters: Mapping[str, Any], path: str) -> Any:
    """Value of a parameter, or of a place in it ("dims.0"); None where there is none."""
    name, *places = path.split(".")
    value: Any = parameters.get(name)
    for place in places:
        try:
            value = value[place if isinstance(value, Mapping) else int(place)]
        except (TypeError, ValueError, IndexError, KeyError):
            return None
    return value


def _fields_at(path: tuple[Any, ...]) -> list[str]:
    """Keys that are legal in the table at `path`."""
    at: Any = ModelFile
    for key in path:
        if isinstance(at, type) and issubclass(at, BaseModel):
            if key not in at.model_fields:
                return []
            at = at.model_fields[key].annotation
            if isinstance(at, types.UnionType):  # Model | None
                at = typing.get_args(at)[0]
        else:  # dict[str, Model] and list[Model]: the type of their values
            arguments = typing.get_args(at)
            at = arguments[-1] if arguments else None
    return list(at.model_fields) if isinstance(at, type) and issubclass(at, BaseModel) else []


def _explain(error: Any) -> str:
    path = tuple(error["loc"])
    # pydantic marks keys of dictionaries by a last place of its own
    path = path[:-1] if path and path[-1] == "[key]" else path
    dotted = ".".join(str(key) for key in path)
    if error["type"] == "extra_forbidden":
        return f"unknown key; {dotted}; {registry.nearest(str(path[-1]), _fields_at(path[:-1]))}"
    if error["type"] == "missing":
        return f"a required key is missing; {dotted}; add it"
    if error["type"] == "literal_error":
        choices = error["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        return f"unknown value; {dotted} = {error['input']!r}; " + registry.nearest(
            str(error["input"]), choices
        )
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{dotted}: {message}" if dotted else message
    return f"a value does not fit; {dotted} = {error['input']!r}; {message[0].lower()}{message[1:]}"


def _content(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read the model file; {path}: {error.strerror}; check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"a model file is UTF-8 text; {path}: {error}; check the path") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"this is not TOML; {path}: {error}; correct that line") from error


def read_model(source: Path | str | Mapping[str, Any]) -> ModelFile:
    """Read and check a model file.

    Parameters
    ----------
    source : Path, str or mapping
        A TOML file, or what one would contain.

    Returns
    -------
    ModelFile
        What it says, checked as far as that is possible without loading data or estimators.

    Raises
    ------
    nrprob.exceptions.InputError
        With one line per mistake, each naming its place.
    """
    if isinstance(source, Mapping):
        content, name, folder = dict(source), "the model", Path()
    else:
        path = Path(source)
        content, name, folder = _content(path), str(path), path.parent
    try:
        model = ModelFile.model_validate(content)
    except ValidationError as error:
        lines = [_explain(e) for e in error.errors()]
        raise InputError("\n".join(f"{name}: {line}" for line in lines)) from error
    if model.data.file is not None and not model.data.file.is_absolute():
        # Relative to the model file, so that the pair can be moved together.
        model.data.file = folder / model.data.file
    return model
