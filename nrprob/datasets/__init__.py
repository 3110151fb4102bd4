"""Data sets with several known clusterings: generators from the source papers, and real data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nrprob.datasets.generators import (
    bayes_precision,
    make_binary_partitions,
    make_multinomial_2d,
)

if TYPE_CHECKING:
    from nrprob.datasets.cells import make_cell_counts
    from nrprob.datasets.informed_views import (
        InformedViews,
        make_essential_sources,
        make_informed_views,
    )
    from nrprob.datasets.loaders import DataSet, load
    from nrprob.datasets.mixtures import make_four_components
    from nrprob.datasets.shapes import make_planar_shapes
    from nrprob.datasets.subsets import (
        make_competing_pairs,
        make_cross_partition,
        make_oscillating_counts,
    )
    from nrprob.datasets.text_pairs import make_crossed_counts, make_dialect_counts
    from nrprob.datasets.views import make_gaussian_views

__all__ = [
    "DataSet",
    "InformedViews",
    "bayes_precision",
    "load",
    "make_binary_partitions",
    "make_cell_counts",
    "make_competing_pairs",
    "make_cross_partition",
    "make_crossed_counts",
    "make_dialect_counts",
    "make_essential_sources",
    "make_four_components",
    "make_gaussian_views",
    "make_informed_views",
    "make_multinomial_2d",
    "make_oscillating_counts",
    "make_planar_shapes",
]

# Imported on first access, since these modules import scipy.sparse.
_LAZY = {
    "DataSet": "loaders",
    "InformedViews": "informed_views",
    "load": "loaders",
    "make_cell_counts": "cells",
    "make_competing_pairs": "subsets",
    "make_cross_partition": "subsets",
    "make_crossed_counts": "text_pairs",
    "make_dialect_counts": "text_pairs",
    "make_essential_sources": "informed_views",
    "make_four_components": "mixtures",
    "make_gaussian_views": "views",
    "make_informed_views": "informed_views",
    "make_oscillating_counts": "subsets",
    "make_planar_shapes": "shapes",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"nrprob.datasets.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
