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
their own. A method's parameter may be taken from the data: ``n_clusters = "data.n_clusters"``. A
method may be an estimator of another package, by its import path: ``"sklearn.cluster.KMeans"``.

``wanted`` tells methods the sought labels of some rows. ``split`` has them fit some rows, with or
without their labels, and tests them on others. ``constraints`` tells them pairs of rows.

``tables`` and ``figures`` say how a report sets the results out, beside published values where
there are some. Keys that do not exist are refused, with the place and the nearest right one.
"""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from nrprob.batch import registry
from nrprob.batch.schema import DEEPEST, ModelFile
from nrprob.exceptions import InputError, short_repr
from nrprob.files import as_path, refuse_link

__all__ = ["default_folder", "read_model"]

LARGEST_FILE = 2**18  # bytes
MOST_ERRORS = 20  # lines of mistakes in one file
MOST_SHOWN = 200  # characters of a wrong value


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
        return f"unknown value; {dotted} = {short_repr(error['input'])}; " + registry.nearest(
            str(error["input"]), choices
        )
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{dotted}: {message}" if dotted else message
    given = short_repr(error["input"])
    return f"a value does not fit; {dotted} = {given}; {message[0].lower()}{message[1:]}"


def _content(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise InputError(
                f"a model file has at most {LARGEST_FILE} bytes; {path} has more; put data in a "
                "file of their own"
            )
        text = content.decode("utf-8")
        _refuse_nesting(text, path)
        return tomllib.loads(text)
    except OSError as error:
        raise InputError(
            f"cannot read the model file; {path}: {error.strerror}; check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"a model file is UTF-8 text; {path}: {error}; check the path") from error
    except RecursionError as error:
        raise InputError(f"its values are nested too deeply; {path}; flatten them") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"this is not TOML; {path}: {error}; correct that line") from error
    except InputError:
        raise
    except ValueError as error:  # Python reads no integer of more than 4,300 digits
        raise InputError(
            f"a whole number takes at most 64 bits; {path} has one of thousands of digits; choose "
            "a smaller one"
        ) from error


# Strings and comments of TOML; a string that is not closed goes to the end of its line or the file.
_OPAQUE = re.compile(
    "|".join(
        (
            r'"""(?:[^"\\]|\\.|"(?!""))*+(?:"{3,5}|\\?\Z)?',
            r"'''(?:[^']|'(?!''))*+(?:'{3,5})?",
            r'"(?:\\.|[^"\\\n])*+"?',
            r"'[^'\n]*+'?",
            r"#[^\n]*+",
        )
    ),
    re.DOTALL,
)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEEPEST}}}")


def _refuse_nesting(text: str, path: Path) -> None:
    """Refuse deep keys and values before they are parsed, which takes long or overflows the stack.

    The depth is counted without strings and comments: of dotted keys by their dots, of values by
    their brackets.
    """
    bare = _OPAQUE.sub("s", text)
    depth = deepest = 0
    for bracket in re.findall(r"[][{}]", bare):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > DEEPEST or _LONG_KEY.search(bare):
        raise InputError(
            f"keys and values are nested at most {DEEPEST} levels deep; {path} has more; flatten "
            "them"
        )


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

    Examples
    --------
    >>> from nrprob import batch
    >>> spec = {"data": {"loader": "iris"}, "methods": [{"name": "ib", "n_clusters": 3}]}
    >>> batch.read_model(spec).runs
    1
    """
    if isinstance(source, Mapping):
        content, name, folder = dict(source), "the model", Path()
    else:
        path = as_path(source, "a model file")
        if not path.stem.strip("."):
            raise InputError(
                f"results are named after the model file; {path} would name no folder; rename it"
            )
        content, name, folder = _content(path), str(path), path.parent
    try:
        model = ModelFile.model_validate(content)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        lines = [_explain(e) for e in errors[:MOST_ERRORS]]
        if len(errors) > MOST_ERRORS:
            lines.append(f"{len(errors) - MOST_ERRORS} more mistakes are not shown")
        raise InputError("\n".join(f"{name}: {line}" for line in lines)) from error
    if model.data.file is not None and not model.data.file.is_absolute():
        # Relative to the model file, so that the pair can be moved together.
        model.data.file = folder / model.data.file
    return model


def default_folder(model: ModelFile, path: Path | str) -> Path:
    """Where results go unless the user says where: a folder below the working directory.

    Raises
    ------
    nrprob.exceptions.InputError
        If a symbolic link leads elsewhere.
    """
    folder = model.report.out or Path("results") / Path(path).stem
    for place in (folder, *folder.parents):
        refuse_link(place, "name another folder with --out, which may be anywhere")
    return folder
