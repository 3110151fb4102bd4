"""Data sets with several known clusterings: drawn from the models of the source papers, or real."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nrprob.datasets.generators import (
    bayes_precision,
    make_binary_partitions,
    make_multinomial_2d,
)

if TYPE_CHECKING:
    from nrprob.datasets.loaders import DataSet, load

__all__ = ["DataSet", "bayes_precision", "load", "make_binary_partitions", "make_multinomial_2d"]

_LOADERS = ("DataSet", "load")


def __getattr__(name: str) -> Any:
    if name not in _LOADERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("nrprob.datasets.loaders"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
