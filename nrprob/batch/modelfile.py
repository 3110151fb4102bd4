"""Read and check model files (TOML).

A model file names its data, the known structure, methods with their parameters, and measures. It
may also request random target labels, splits and pairs of rows, and tables and figures of a report.
Most settings may have lists of values; see docs/model-files.md. An unknown key raises an error that
names the key and the nearest valid key.
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
from nrprob.batch.published import insert_published
from nrprob.batch.schema import BUILT_IN, MAX_DEPTH, ModelFile
from nrprob.exceptions import InputError, short_repr
from nrprob.files import as_path, refuse_link

__all__ = ["default_folder", "read_model"]

MAX_BYTES = 2**18  # maximum size of a model file
MAX_ERRORS = 20  # maximum number of reported errors of one file


def _valid_keys(path: tuple[Any, ...]) -> list[str]:
    """List the valid keys of one table of a model file; empty if ``path`` leads to no table.

    ``path`` has the keys and list indices that lead to the table, such as ("methods", 0).
    """
    table: Any = ModelFile
    for key in path:
        if isinstance(table, type) and issubclass(table, BaseModel):
            if key not in table.model_fields:
                return []
            table = table.model_fields[key].annotation
            if isinstance(table, types.UnionType):  # Model | None
                table = typing.get_args(table)[0]
        else:  # dict[str, Model] and list[Model]: the type of their values
            arguments = typing.get_args(table)
            table = arguments[-1] if arguments else None
    is_model = isinstance(table, type) and issubclass(table, BaseModel)
    return list(table.model_fields) if is_model else []


def _explain_error(error: Any) -> str:
    """Translate an error of pydantic into a message of one line: problem, key, value, remedy."""
    path = tuple(error["loc"])
    # pydantic appends "[key]" to the path of a dictionary's key
    path = path[:-1] if path and path[-1] == "[key]" else path
    dotted = ".".join(str(key) for key in path)
    if error["type"] == "extra_forbidden":
        return (
            f"unknown key; {dotted}; {registry.suggest_name(str(path[-1]), _valid_keys(path[:-1]))}"
        )
    if error["type"] == "missing":
        return f"a required key is missing; {dotted}; add it"
    value = short_repr(error["input"])
    if error["type"] == "literal_error":
        choices = error["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        nearest = registry.suggest_name(str(error["input"]), choices)
        return f"unknown value; {dotted} = {value}; {nearest}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{dotted}: {message}" if dotted else message
    return f"a value does not fit; {dotted} = {value}; {message[0].lower()}{message[1:]}"


def _read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise InputError if it is invalid, too large or too deeply nested."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(
                f"a model file has at most {MAX_BYTES} bytes; {path} has more; move data to a "
                "separate file"
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
        raise InputError(f"values are nested too deeply; {path}; flatten them") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"this is not TOML; {path}: {error}; correct that line") from error
    except InputError:
        raise
    except ValueError as error:  # Python cannot read integers of more than 4,300 digits
        raise InputError(
            f"an integer has at most 64 bits; {path} has an integer of thousands of digits; use a "
            "smaller integer"
        ) from error


# Strings and comments of TOML; an open string ends at the end of its line or the file.
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
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}")


def _refuse_nesting(text: str, path: Path) -> None:
    """Raise InputError if the keys or values of a TOML file are nested too deeply.

    ``text`` is the content of the file ``path``. Parsing deeply nested text takes long, or
    overflows the stack. The depth of a dotted key is its number of dots. The depth of a value is
    the number of open brackets around it. Strings and comments do not count.
    """
    bare = _OPAQUE.sub("s", text)
    depth = deepest = 0
    for bracket in re.findall(r"[][{}]", bare):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH or _LONG_KEY.search(bare):
        raise InputError(
            f"keys and values are nested at most {MAX_DEPTH} levels deep; {path} has more; flatten "
            "them"
        )


def read_model(source: Path | str | Mapping[str, Any]) -> ModelFile:
    """Read and check a model file.

    Parameters
    ----------
    source : Path, str or mapping
        A TOML file, or the contents of one.

    Returns
    -------
    ModelFile
        The contents, after all checks that need neither data nor estimators.

    Raises
    ------
    nrprob.exceptions.InputError
        If the file cannot be read or is invalid. The message has one line per error, with the key.

    See Also
    --------
    nrprob.batch.run : Run a model file.
    nrprob.batch.load : Results of a run.

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
        content, name, folder = _read_toml(path), str(path), path.parent
    names = content.get("measures", {})
    measures = {*(names if isinstance(names, Mapping) else ()), *BUILT_IN, "infeasible"}
    content = insert_published(content, folder, measures)
    try:
        model = ModelFile.model_validate(content)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        lines = [_explain_error(e) for e in errors[:MAX_ERRORS]]
        if len(errors) > MAX_ERRORS:
            lines.append(f"{len(errors) - MAX_ERRORS} further errors are not shown")
        raise InputError("\n".join(f"{name}: {line}" for line in lines)) from error
    if model.data.file is not None and not model.data.file.is_absolute():
        # The path is relative to the model file, so that both files can be moved together.
        model.data.file = folder / model.data.file
    return model


def default_folder(model: ModelFile, path: Path | str) -> Path:
    """Default folder of the results of a model file, below the working directory.

    ``path`` is the path of the model file. If the file does not set ``report.out``, the folder has
    the name of the file. Raises InputError if the folder or one of its parents is a symbolic link.
    """
    folder = model.report.out or Path("results") / Path(path).stem
    for place in (folder, *folder.parents):
        refuse_link(place, "name another folder with --out, which may be anywhere")
    return folder
