"""Schema of a model file: tables, types and consistency checks."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator, model_validator

from nrprob.batch import registry
from nrprob.batch.measures import OF_SPLIT, Figure, Measure, Report, Save, Table
from nrprob.batch.parameters import FLAT, root_name
from nrprob.batch.splits import MAX_FITS, Constraints, PartialLabels, Split, Strict

__all__ = ["MAX_DEPTH", "MAX_SEED", "SAMPLING", "SELECTORS", "Data", "MethodSpec", "ModelFile"]

# Measures of every fit.
BUILT_IN = ("seconds", "objective", "n_clusters")
MAX_COLUMNS = 100_000  # maximum number of principal components, or of pixels per side
MAX_TABLES = 1_000  # maximum number of methods, tables or figures
# NumPy's generators accept seeds below 2**32; the number of the repeat is added to the seed.
MAX_SEED = 4_000_000_000
MAX_DEPTH = 16  # maximum number of levels of keys and values; the schema itself has 8
MAX_KEY = 200  # maximum number of characters of a key
Count = Annotated[int, Field(ge=1, le=MAX_FITS)]
Size = Annotated[int, Field(ge=1, le=MAX_COLUMNS)]
# The number of parameters is limited, since every data set and fit has a copy of its parameters.
Parameters = Annotated[dict[str, Any], Field(max_length=100)]
# Lists of values to combine; an empty list would have no combination.
Grid = Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(max_length=100)]
# Parameters of any data that select rows.
SELECTORS = ("rows", "keep")
# Tables of labels, splits and pairs to sample for every run.
SAMPLING = ("partial_labels", "split", "constraints")


class Labeling(Strict):
    """A labeling of a model file, made by merging values of another labeling.

    ``of`` is the name of the other labeling. ``groups`` maps the name of every group to the values
    of ``of`` that the group merges.
    """

    of: str
    groups: dict[str, list[Any]]


class Data(Strict):
    """Data of a model file: source, parameters, selected rows, labelings and transformations.

    The source is a ``loader`` (a name for `nrprob.datasets.load`), a ``generator`` (a function of
    `nrprob.datasets`) or a ``file``. ``parameters`` are arguments of the loader or generator. Every
    entry of ``cases``, combined with every combination of the lists in ``grid``, gives a data set.
    ``repeats`` is the number of data sets per combination; their seeds begin at ``seed``.

    ``columns`` names the features of a file, ``label_columns`` its labelings, and ``drop`` columns
    to leave out. ``rows`` is the range of selected rows; its end is not included. ``keep`` maps
    labelings to the labels whose rows are kept. ``views`` divides the columns into views, and
    ``image_shape`` is the height and width of rows that are images. ``binarize`` is a threshold.
    ``components`` is the number of principal components, or the share of the variance that the
    components must explain.
    """

    loader: str | None = None
    generator: str | None = None
    file: Path | None = None
    # Keys of a generator or a loader.
    parameters: Parameters = Field(default_factory=dict)
    cases: list[Parameters] = Field(default_factory=list)
    grid: Grid = Field(default_factory=dict)
    # Keys of a generator.
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    repeats: Count = 1
    # Keys of a file.
    columns: list[str] = Field(default_factory=list)
    label_columns: list[str] = Field(default_factory=list)
    # Keys of a file or a loader.
    drop: list[str] = Field(default_factory=list)
    # Keys of any source.
    image_shape: tuple[Size, Size] | None = None
    rows: tuple[int, int] | None = None
    keep: dict[str, list[Any]] = Field(default_factory=dict)
    views: list[Any] = Field(default_factory=list)
    labelings: dict[str, Labeling] = Field(default_factory=dict)
    standardize: bool = False
    binarize: FiniteFloat | None = None
    tfidf: bool = False
    components: int | float | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Data:
        """Refuse several sources of data, and keys that do not apply to the source."""
        sources = [s for s in ("loader", "generator", "file") if getattr(self, s) is not None]
        if len(sources) != 1:
            names = ", ".join(sources) or "none"
            raise ValueError(f"data must have one source; {names}; set loader, generator or file")
        if self.repeats > 1 and self.generator is None:
            raise ValueError(
                f"only a generator can sample several data sets; repeats = {self.repeats}; "
                "use runs to fit the same data several times"
            )
        others = [name for name in self.parameter_names if name not in SELECTORS]
        if self.file is not None and others:
            raise ValueError(
                f"a file has no parameters; got {others[0]}; leave it out, or vary "
                f"{' or '.join(SELECTORS)}"
            )
        for name in ("views", "image_shape"):
            if self.components is not None and getattr(self, name):
                raise ValueError(
                    "principal components are not columns of the data; got components = "
                    f"{self.components} and {name}; leave one of them out"
                )
        if self.drop and self.generator is not None:
            raise ValueError(
                f"columns of a generator have no names; got drop = {self.drop}; leave drop out"
            )
        return self

    @model_validator(mode="after")
    def _check_selections(self) -> Data:
        """Refuse invalid values of ``rows`` and ``keep``, also in cases and grids."""
        for name in SELECTORS:
            if name in self.parameters:
                raise ValueError(f"{name} is no parameter; got parameters.{name}; set data.{name}")
        varied = [*self.cases, *({k: v} for k, values in self.grid.items() for v in values)]
        for case in [{name: getattr(self, name) for name in SELECTORS}, *varied]:
            rows, keep = case.get("rows"), case.get("keep", {})
            is_range = isinstance(rows, list | tuple) and all(type(r) is int for r in rows)
            if rows is not None and not (is_range and len(rows) == 2 and 0 <= rows[0] < rows[1]):
                raise ValueError(
                    f"rows must be [first, end], where end is the row after the last; got "
                    f"{rows!r}; pass two ascending integers, counted from 0"
                )
            if not (isinstance(keep, dict) and all(isinstance(v, list) for v in keep.values())):
                raise ValueError(
                    f"keep must map labelings to lists of values; got {keep!r}; write "
                    "keep = { labeling = [value, ...] }"
                )
        return self

    @field_validator("components", mode="before")
    @classmethod
    def _check_components(cls, value: Any) -> Any:
        is_share = isinstance(value, float) and 0 < value < 1
        if value is None or is_share or (type(value) is int and 1 <= value <= MAX_COLUMNS):
            return value
        raise ValueError(
            f"components must be a number from 1 to {MAX_COLUMNS}, or a share between 0 and 1; got "
            f"{value!r}; set such a number or share"
        )

    @field_validator("views")
    @classmethod
    def _check_views(cls, views: list[Any]) -> list[Any]:
        """Raise ValueError unless every view is a number of columns or a list of column names."""
        are_counts = all(type(view) is int and view > 0 for view in views)
        are_names = all(
            isinstance(view, list) and view and all(isinstance(name, str) for name in view)
            for view in views
        )
        if not (are_counts or are_names):
            raise ValueError(
                f"views must be numbers of adjacent columns, or lists of column names; got "
                f"{views!r}; write numbers or lists"
            )
        return views

    @property
    def parameter_names(self) -> list[str]:
        """Names of all parameters of the data, from ``parameters``, ``grid`` and ``cases``."""
        in_cases = (name for case in self.cases for name in case)
        return [*dict.fromkeys([*self.parameters, *self.grid, *in_cases])]


class MethodSpec(BaseModel):
    """Method of a model file, with parameters of its estimator.

    ``name`` is the short name of the method, or the import path of an external estimator. Keys that
    are not fields of this class are parameters of the estimator. ``grid`` lists values of
    parameters; the method is fitted with all their combinations. ``title`` names the method in
    reports and in published values; ``printed`` is the name of the method in published values, if
    it differs from ``title``. ``recommended`` marks the method that the ledger compares with the
    best published method. ``runs`` overrides ``runs`` of the file. With ``use_labels = false``, the
    method gets neither target labels nor the labels of a split. ``where`` restricts the method to
    data sets with these parameters. If ``where`` is a list of tables, a data set must match one of
    them. Reports show ``note`` after the title.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    title: str = ""
    printed: str = ""
    recommended: bool = False
    note: str = ""
    runs: Count | None = None
    use_labels: bool = True
    where: list[dict[str, Any]] = Field(default_factory=list)
    grid: Grid = Field(default_factory=dict)

    @field_validator("where", mode="before")
    @classmethod
    def _list_alternatives(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return registry.short_name(name)

    @model_validator(mode="after")
    def _check_parameters(self) -> MethodSpec:
        """Refuse too many parameters, and parameters that would write files."""
        if len(self.parameters) > 100:
            raise ValueError(
                f"a method has at most 100 parameters; got {len(self.parameters)}; leave some out"
            )
        if "checkpoint" in {*self.parameters, *self.grid}:
            # Results are written to the folder of the run only.
            raise ValueError(
                "a model file must not name files to write; got checkpoint; leave checkpoint out, "
                "since an interrupted run is resumed anyway"
            )
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the estimator that the file sets, without the lists in ``grid``."""
        return dict(self.model_extra or {})

    @property
    def label(self) -> str:
        """Title of the method; the class name of the estimator if the file sets no title."""
        return self.title or registry.find_method(self.name).class_name


class ModelFile(Strict):
    """Contents of a model file.

    ``source`` names the publication of the experiment. ``known`` names the known labelings.
    ``partial_labels``, ``split`` and ``constraints`` define the target labels, splits and pairs of
    rows that are sampled for every run. ``runs`` is the number of runs of every method, which
    differ in their seeds. ``measures`` maps names to measures, and ``save`` lists the outputs to
    save. ``tables``, ``figures`` and ``report`` define the report.
    """

    title: str = ""
    description: str = ""
    source: str = ""
    data: Data
    known: str | list[str] = Field(default_factory=list)
    partial_labels: PartialLabels | None = None
    split: Split | None = None
    constraints: Constraints | None = None
    methods: list[MethodSpec] = Field(min_length=1, max_length=MAX_TABLES)
    runs: Count = 1
    measures: dict[str, Measure] = Field(default_factory=dict)
    save: Save = Field(default_factory=Save)
    tables: list[Table] = Field(default_factory=list, max_length=MAX_TABLES)
    figures: list[Figure] = Field(default_factory=list, max_length=MAX_TABLES)
    report: Report = Field(default_factory=Report)

    @property
    def known_names(self) -> list[str]:
        """Names of the known labelings."""
        return [self.known] if isinstance(self.known, str) else self.known

    @property
    def titles(self) -> list[str]:
        """Titles of the methods."""
        return [method.label for method in self.methods]

    @property
    def sampling(self) -> dict[str, PartialLabels | Split | Constraints]:
        """Tables ``partial_labels``, ``split`` and ``constraints`` that the file has, by name."""
        tables = {name: getattr(self, name) for name in SAMPLING}
        return {name: table for name, table in tables.items() if table is not None}

    def goal(self, measure: str) -> str:
        """Direction of better values of a measure: "high", "low" or "none"."""
        return self.measures[measure].direction if measure in self.measures else "none"

    @property
    def measure_names(self) -> list[str]:
        """Names of the measures that the file declares, and of the measures of every fit."""
        return [*self.measures, *self.built_in]

    @property
    def built_in(self) -> tuple[str, ...]:
        """Names of the measures that every fit has, although the file does not declare them."""
        return BUILT_IN if self.constraints is None else (*BUILT_IN, "infeasible")

    @property
    def predicts(self) -> bool:
        """Whether a measure compares predictions with the classes of the split."""
        metrics = {measure.metric for measure in self.measures.values()}
        return self.split is not None and bool(metrics & {*OF_SPLIT})

    @property
    def classes(self) -> str | None:
        """Name of the labeling of ``constraints``, or else of ``split``; None without either."""
        labeling = None if self.constraints is None else self.constraints.labeling
        return labeling or (None if self.split is None else self.split.labeling)

    @property
    def is_single(self) -> bool:
        """Whether the file declares a single run: one data set and one fit of every method."""
        data = self.data
        grids = [data.grid, *(m.grid for m in self.methods)]
        runs = {self.runs, *(m.runs or self.runs for m in self.methods)}
        is_one_set = data.repeats == 1 and len(data.cases) <= 1 and not any(grids)
        amounts = [table.amounts for table in self.sampling.values()]
        return is_one_set and runs == {1} and all(len(points) == 1 for points in amounts)

    @model_validator(mode="before")
    @classmethod
    def _check_content(cls, content: Any) -> Any:
        _check_values(content, "", 0)
        return content

    @model_validator(mode="after")
    def _check_consistency(self) -> ModelFile:
        """Raise ValueError for duplicate or unknown names, and for contradictory tables."""
        twice = {title for title, times in Counter(self.titles).items() if times > 1}
        if twice:
            raise ValueError(
                f"methods need different titles; {', '.join(sorted(twice))}; give each a title"
            )
        for name in self.measures:
            if name in self.built_in:
                raise ValueError(
                    f"measures.{name}: every fit has a measure of this name; {name}; choose "
                    "another name"
                )
        # Methods that get labels must take labels.
        labels = self.partial_labels or (
            self.split if self.split is not None and self.split.use_labels else None
        )
        for i, method in enumerate(self.methods):
            if (
                labels
                and method.use_labels
                and not registry.find_method(method.name).capabilities.labels
            ):
                raise ValueError(
                    f"methods.{i}: {method.name} takes no target labels; got labels of "
                    f"{labels.labeling!r}; set use_labels = false there, or use another method"
                )
        # Tables must not contradict each other, and references must name something that exists.
        self._check_sampling()
        self._check_measures()
        for where, names, candidates in self._references():
            for name in names:
                complaint = f"{where}: unknown name; {name!r}"
                registry.refuse_unknown(name, candidates, complaint)
        return self

    def _check_sampling(self) -> None:
        """Raise ValueError if labels, split, pairs and views conflict, or no method takes them."""
        if self.partial_labels is not None and self.split is not None:
            raise ValueError(
                "partial_labels and split both choose the labelled rows; got both tables; leave "
                "one of them out"
            )
        if self.constraints is not None:
            if self.classes is None:
                raise ValueError("constraints: pairs need a labeling; got none; set labeling")
            labeling = self.constraints.labeling
            if self.split is not None and labeling not in (None, self.split.labeling):
                raise ValueError(
                    f"constraints.labeling: the split has another labeling; got {labeling!r}; "
                    "leave labeling out"
                )
        names = [spec.name for spec in self.methods]
        for table, is_used, flag in (
            ("constraints", self.constraints is not None, "pairs"),
            ("data.views", bool(self.data.views), "views"),
        ):
            if not is_used:
                continue
            able = [name for name, m in registry.METHODS.items() if getattr(m.capabilities, flag)]
            if not {*able} & {*names}:
                raise ValueError(
                    f"{table}: no method of the file takes {flag}; got {', '.join(names)}; use one "
                    f"of {', '.join(able)}"
                )

    def _check_measures(self) -> None:
        """Raise ValueError for measures that need a split or test rows if the file has none."""
        for name, measure in self.measures.items():
            if measure.metric not in OF_SPLIT:
                continue
            if self.split is None:
                raise ValueError(
                    f"measures.{name}: {measure.metric} needs a split; got no split; add a table "
                    "split"
                )
            needs_test = measure.metric != "train_accuracy"
            if needs_test and any(amount["test"] <= 0 for amount in self.split.amounts):
                raise ValueError(
                    f"measures.{name}: {measure.metric} needs test rows; got a split without test "
                    "rows; lower split.labelled or split.unlabelled"
                )

    def _references(self) -> Iterator[tuple[str, Iterable[str], list[str]]]:
        """Yield the references of methods, tables and figures to names.

        Every item has the key in the file, the names that it refers to, and the valid names.
        """
        parameters = self._parameter_names()
        published = [[m for s in table.settings for m in s.published] for table in self.tables]
        for i, spec in enumerate(self.methods):
            names = [name.split(".")[0] for case in spec.where for name in case]
            yield f"methods.{i}.where", names, self.data.parameter_names
        for i, table in enumerate(self.tables):
            place = f"tables.{i}"
            yield f"{place}.methods", table.methods, [*self.titles, *published[i]]
            yield f"{place}.measures", table.measures, self.measure_names
            for j, setting in enumerate(table.settings):
                yield f"{place}.settings.{j}.where", map(root_name, setting.where), parameters
                for method, measures in setting.published.items():
                    published_place = f"{place}.settings.{j}.published.{method}"
                    yield published_place, measures, self.measure_names
        for i, figure in enumerate(self.figures):
            place = f"figures.{i}"
            yield f"{place}.x", [root_name(figure.x)], parameters
            yield f"{place}.y", [figure.y], self.measure_names
            if figure.series is not None:
                yield f"{place}.series", [root_name(figure.series)], parameters
            yield f"{place}.where", map(root_name, figure.where), parameters
            yield f"{place}.methods", figure.methods, [*self.titles, *chain(*published)]

    def _parameter_names(self) -> list[str]:
        names: dict[str, None] = dict.fromkeys(self.data.parameter_names)
        for method in self.methods:
            names |= dict.fromkeys([*method.parameters, *method.grid])
        for name, table in self.sampling.items():
            keys = [f"{name}.{key}" for amount in table.amounts for key in amount]
            names |= dict.fromkeys(keys if name in FLAT else [name])
        return list(names)


def _check_values(content: Any, place: str, depth: int) -> None:
    """Raise ValueError for keys and values that no table of a model file allows, such as NaN.

    ``place`` is the key of ``content`` in the file, for the message. ``depth`` is the number of
    tables and lists that enclose ``content``.
    """
    if isinstance(content, Mapping | list | tuple):
        if depth > MAX_DEPTH:
            raise ValueError(
                f"keys and values are nested at most {MAX_DEPTH} levels deep; got more in "
                f"{place.split('.')[0]}; flatten them"
            )
        items = content.items() if isinstance(content, Mapping) else enumerate(content)
        for key, value in items:
            if isinstance(key, str) and not (key.isprintable() and len(key) <= MAX_KEY):
                raise ValueError(
                    f"a key has at most {MAX_KEY} printable characters; got "
                    f"{key[:MAX_KEY]!r}{'...' * (len(key) > MAX_KEY)}; choose another"
                )
            _check_values(value, f"{place}.{key}" if place else f"{key}", depth + 1)
    elif isinstance(content, int) and not -(2**63) <= content < 2**63:
        raise ValueError(
            f"an integer has at most 64 bits; got {content.bit_length() + 1} bits in {place}; use "
            "a smaller integer"
        )
    elif isinstance(content, float) and math.isnan(content):
        raise ValueError(f"a value is not a number; {place} = nan; choose a number")
    elif isinstance(content, datetime.date | datetime.time):
        raise ValueError(f"no key takes a date or time; {place} = {content}; write it as text")
