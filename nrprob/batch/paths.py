"""Names of the parameters of a fit, and of places in them: "n_init", "dims.0", "split.test"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["FLAT", "look_up", "root"]

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
