"""Clusterings that are not redundant with the structure you already know.

Names load on first use (:pep:`562`): ``import nrprob`` compiles nothing, imports no plotting
library and does not change JAX's global configuration. Type checkers read the names in
``__init__.pyi``, which ``python tests/public_names.py`` writes.
"""

from __future__ import annotations

import importlib
from typing import Any

from nrprob.methods import ESTIMATORS

# Public name -> the module that defines it.
_OBJECTS = {
    **{name: module for module, _, name in (path.partition(":") for path in ESTIMATORS.values())},
    "explore": "nrprob.successive",
    "recommend": "nrprob.advice",
    "Exploration": "nrprob.successive",
    "median_partition": "nrprob.methods.ensemble.median",
    "describe_clusters": "nrprob.description",
    "prepare": "nrprob.data.preparation.prepare",
    "rows_of": "nrprob.data.annotated",
    "annotate": "nrprob.data.annotated",
    "sharded": "nrprob.engines.sharding",
    "stored": "nrprob.data.storage.stored",
    "cache": "nrprob.caching",
    "DegenerateClusterWarning": "nrprob.exceptions",
}
_MODULES = (
    "information",
    "codelength",
    "metrics",
    "datasets",
    "known",
    "evidence",
    "posterior",
    "plotting",
    "numpyro",
)

__all__ = [*_OBJECTS, *_MODULES, "__version__"]


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("nrprob")
    except metadata.PackageNotFoundError:  # a source folder on the path that was never installed
        return "0+unknown"


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        value = _version()
    elif name in _MODULES:
        value = importlib.import_module(f"nrprob.{name}")
    elif name in _OBJECTS:
        value = getattr(importlib.import_module(_OBJECTS[name]), name)
    else:
        raise AttributeError(f"module 'nrprob' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
