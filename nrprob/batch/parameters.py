"""Look up, compare and format parameters, which are dictionaries from names to values.

A *path* is the name of a parameter, or the name and the position of an element, joined by a dot.
For example, "dims.0" is the first element of ``dims``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "FLAT",
    "as_text",
    "describe_parameters",
    "look_up",
    "root_name",
    "shared_parameters",
    "varying_parameters",
]

# Tables of a model file whose entries are parameters with dotted names, such as "split.test".
FLAT = ("split", "constraints")


def root_name(path: str) -> str:
    """Return the name of the parameter to which a path leads: "dims" for "dims.0".

    Names of parameters in the tables `FLAT` have a dot themselves, such as "split.test".
    """
    name = path.split(".")[0]
    return path if "." in path and name in FLAT else name


def look_up(parameters: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path such as "dims" or "dims.0"; None if the path leads nowhere."""
    if path in parameters:
        return parameters[path]
    name, *keys = path.split(".")
    value: Any = parameters.get(name)
    for key in keys:
        try:
            value = value[key if isinstance(value, Mapping) else int(key)]
        except (TypeError, ValueError, IndexError, KeyError):
            return None
    return value


def shared_parameters(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters that have equal values in all dictionaries of ``settings``."""
    first = settings[0]
    return {k: v for k, v in first.items() if all(k in s and s[k] == v for s in settings)}


def varying_parameters(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the parameters that differ between, or are missing in, ``settings``."""
    same = shared_parameters(settings)
    return [*dict.fromkeys(name for s in settings for name in s if name not in same)]


def as_text(value: Any) -> str:
    """Write a value as text: None as "none", and other values as JSON.

    Except for tables, this JSON is also valid TOML.
    """
    return "none" if value is None else json.dumps(value, default=str)


def describe_parameters(parameters: Mapping[str, Any]) -> str:
    """Write parameters as one line of text, such as "dims = [4, 4], beta = 0.5"."""
    texts = {k: v if isinstance(v, str) else as_text(v) for k, v in parameters.items()}
    return ", ".join(f"{k} = {v}" for k, v in texts.items())
