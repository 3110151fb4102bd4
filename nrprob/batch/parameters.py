"""Look up, compare and format parameters by name, with paths into lists ("dims.0")."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["FLAT", "as_text", "describe", "look_up", "root", "shared", "varying"]

# Tables whose values are parameters by their whole names, "split.test", since methods have
# parameters of the tables' names.
FLAT = ("split", "constraints")


def root(path: str) -> str:
    """Name of the parameter that a path begins with."""
    name = path.split(".")[0]
    return path if "." in path and name in FLAT else name


def look_up(parameters: Mapping[str, Any], path: str) -> Any:
    """Value of a parameter, or of a place in it ("dims.0"); None where there is none."""
    if path in parameters:
        return parameters[path]
    name, *places = path.split(".")
    value: Any = parameters.get(name)
    for place in places:
        try:
            value = value[place if isinstance(value, Mapping) else int(place)]
        except (TypeError, ValueError, IndexError, KeyError):
            return None
    return value


def shared(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Parameters that all settings have, with the same values."""
    first = settings[0]
    return {k: v for k, v in first.items() if all(k in s and s[k] == v for s in settings)}


def varying(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the parameters that differ between settings, or that only some of them have."""
    same = shared(settings)
    return [*dict.fromkeys(name for s in settings for name in s if name not in same)]


def as_text(value: Any) -> str:
    """Write a value as TOML would have it, and None as "none"."""
    return "none" if value is None else json.dumps(value, default=str)


def describe(parameters: Mapping[str, Any]) -> str:
    """Parameters in words: "dims = [4, 4], beta = 0.5"."""
    texts = {k: v if isinstance(v, str) else as_text(v) for k, v in parameters.items()}
    return ", ".join(f"{k} = {v}" for k, v in texts.items())
