"""Clusterings that are not redundant with the structure you already know.

Names load on first use (:pep:`562`): ``import nrprob`` compiles nothing, plots nothing and leaves
JAX's global configuration alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nrprob import codelength, datasets, information, known, metrics, plotting, posterior
    from nrprob.advice import recommend
    from nrprob.engines.sharding import sharded
    from nrprob.exceptions import DegenerateClusterWarning
    from nrprob.methods.bottleneck import IB, IBSI
    from nrprob.methods.cmbc import CMBC
    from nrprob.methods.conditional import CCIB
    from nrprob.methods.cop_kmeans import COPKMeans
    from nrprob.methods.ensemble import CondEns
    from nrprob.methods.mdl_constrained import MDLConstrained
    from nrprob.methods.mdl_mixture import MDLMixture
    from nrprob.methods.mdl_multiview import MDLMultiView
    from nrprob.methods.mixture import MixtureEM
    from nrprob.methods.residual_mixture import ResidualMixture
    from nrprob.methods.residual_spectral import ResidualSpectral
    from nrprob.successive import Exploration, explore

    __version__: str

# Public name -> the module that defines it.
_OBJECTS = {
    "IB": "nrprob.methods.bottleneck",
    "IBSI": "nrprob.methods.bottleneck",
    "CCIB": "nrprob.methods.conditional",
    "CMBC": "nrprob.methods.cmbc",
    "CondEns": "nrprob.methods.ensemble",
    "MixtureEM": "nrprob.methods.mixture",
    "MDLMultiView": "nrprob.methods.mdl_multiview",
    "MDLMixture": "nrprob.methods.mdl_mixture",
    "MDLConstrained": "nrprob.methods.mdl_constrained",
    "COPKMeans": "nrprob.methods.cop_kmeans",
    "ResidualSpectral": "nrprob.methods.residual_spectral",
    "ResidualMixture": "nrprob.methods.residual_mixture",
    "explore": "nrprob.successive",
    "recommend": "nrprob.advice",
    "Exploration": "nrprob.successive",
    "sharded": "nrprob.engines.sharding",
    "DegenerateClusterWarning": "nrprob.exceptions",
}
_MODULES = ("information", "codelength", "metrics", "datasets", "known", "posterior", "plotting")

__all__ = [
    "IB",
    "IBSI",
    "CCIB",
    "CMBC",
    "CondEns",
    "MixtureEM",
    "MDLMixture",
    "MDLMultiView",
    "MDLConstrained",
    "COPKMeans",
    "ResidualSpectral",
    "ResidualMixture",
    "explore",
    "Exploration",
    "recommend",
    "sharded",
    "DegenerateClusterWarning",
    "information",
    "codelength",
    "metrics",
    "datasets",
    "known",
    "posterior",
    "plotting",
    "__version__",
]


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("nrprob")
    except metadata.PackageNotFoundError:  # a checkout on the path that was never installed
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
