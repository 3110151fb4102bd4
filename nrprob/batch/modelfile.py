"""Model files: one run, described in TOML.

A file names its data, what is known about them, a method with its parameters, and what to report::

    title = "Even, odd, and what else?"
    known = "parity"

    [data]
    loader = "digits"
    keep = { digit = [4, 5, 6, 7] }

    [data.labelings.parity]
    of = "digit"
    groups = { even = [4, 6], odd = [5, 7] }

    [method]
    name = "ccib"
    n_clusters = 2

    [report]
    metrics = ["normalized_mutual_information"]

Keys that do not exist are refused, with the place and the nearest right one.
"""

from __future__ import annotations

import tomllib
import typing
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nrprob.batch import registry
from nrprob.exceptions import InputError

__all__ = ["Data", "Labeling", "MethodSpec", "ModelFile", "Report", "read_model"]

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
    # of a generator
    parameters: dict[str, Any] = Field(default_factory=dict)
    seed: int | None = 0
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
        return self


class MethodSpec(BaseModel):
    """A method by its short name; every other key is a parameter of its estimator."""

    model_config = ConfigDict(extra="allow")

    name: str
    title: str | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the estimator; the text "none" stands for None, which TOML lacks."""
        extra = self.model_extra or {}
        return {key: None if value == "none" else value for key, value in extra.items()}


class Report(_Strict):
    """What to print and to write."""

    metrics: list[Metric] = ["normalized_mutual_information", "matched_accuracy"]
    compare: list[str] | None = None
    picture: str | None = "summary.png"
    out: Path | None = None


class ModelFile(_Strict):
    """One run."""

    title: str = ""
    data: Data
    known: str | list[str] = Field(default_factory=list)
    method: MethodSpec
    contrast: list[MethodSpec] = Field(default_factory=list)
    report: Report = Field(default_factory=Report)

    @property
    def known_names(self) -> list[str]:
        """Names of the known labelings, none, one or several."""
        return [self.known] if isinstance(self.known, str) else self.known


def _fields_at(path: tuple[Any, ...]) -> list[str]:
    """Keys that are legal in the table at `path`."""
    at: Any = ModelFile
    for key in path:
        if isinstance(at, type) and issubclass(at, BaseModel):
            if key not in at.model_fields:
                return []
            at = at.model_fields[key].annotation
        else:  # dict[str, Model] and list[Model]: the type of their values
            arguments = typing.get_args(at)
            at = arguments[-1] if arguments else None
    return list(at.model_fields) if isinstance(at, type) and issubclass(at, BaseModel) else []


def _explain(error: Any) -> str:
    path = tuple(error["loc"])
    dotted = ".".join(str(key) for key in path)
    if error["type"] == "extra_forbidden":
        return f"unknown key; {dotted}; {registry.nearest(str(path[-1]), _fields_at(path[:-1]))}"
    if error["type"] == "missing":
        return f"a required key is missing; {dotted}; add it"
    if error["type"] == "literal_error":
        choices = typing.get_args(Metric)
        return f"unknown value; {dotted} = {error['input']!r}; " + registry.nearest(
            str(error["input"]), choices
        )
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{dotted}: {message}"
    return f"a value does not fit; {dotted} = {error['input']!r}; {message[0].lower()}{message[1:]}"


def read_model(path: Path | str) -> ModelFile:
    """Read and check a model file.

    Parameters
    ----------
    path : Path or str
        A TOML file.

    Returns
    -------
    ModelFile
        What it says, checked as far as that is possible without loading data or estimators.

    Raises
    ------
    nrprob.exceptions.InputError
        With one line per mistake, each naming its place.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot read the model file; {path}: {error.strerror}; check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"a model file is UTF-8 text; {path}: {error}; check the path") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"this is not TOML; {path}: {error}; correct that line") from error
    try:
        model = ModelFile.model_validate(content)
    except ValidationError as error:
        lines = [_explain(e) for e in error.errors()]
        raise InputError("\n".join(f"{path}: {line}" for line in lines)) from error
    for spec in [model.method, *model.contrast]:
        registry.method(spec.name)
    if model.data.file is not None and not model.data.file.is_absolute():
        # Relative to the model file, so that the pair can be moved together.
        model.data.file = path.parent / model.data.file
    return model
