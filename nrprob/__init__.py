"""Clusterings that are not redundant with the structure you already know.

Names load on first use (:pep:`562`): ``import nrprob`` compiles nothing, plots nothing and leaves
JAX's global configuration alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nrprob import (
        codelength,
        datasets,
        evidence,
        information,
        known,
        metrics,
        plotting,
        posterior,
    )
    from nrprob.advice import recommend
    from nrprob.caching import cache
    from nrprob.data.annotated import annotate, rows_of
    from nrprob.data.preparation.prepare import prepare
    from nrprob.data.storage.stored import stored
    from nrprob.engines.sharding import sharded
    from nrprob.exceptions import DegenerateClusterWarning
    from nrprob.methods.alternatives.adft import ADFT
    from nrprob.methods.alternatives.cami import CAMI
    from nrprob.methods.alternatives.coala import COALA
    from nrprob.methods.alternatives.conv_em import ConvEM
    from nrprob.methods.alternatives.dec_kmeans import DecKMeans
    from nrprob.methods.alternatives.naci import NACI
    from nrprob.methods.alternatives.orthogonalization import Orthogonalization
    from nrprob.methods.bayes.estimator import MDLMixture
    from nrprob.methods.bottleneck.ccib import CCIB
    from nrprob.methods.bottleneck.ib import IB, IBSI
    from nrprob.methods.cec.constrained_mixture import ConstrainedMixture
    from nrprob.methods.cec.estimator import CECIB
    from nrprob.methods.cec.fuzzy import SemiSupervisedFCM
    from nrprob.methods.cec.partition_kmeans import PartitionKMeans
    from nrprob.methods.cec.spectral import SemiSupervisedSpectral
    from nrprob.methods.cmbc.estimator import CMBC
    from nrprob.methods.conditional.mixture import ResidualMixture
    from nrprob.methods.conditional.spectral import ResidualSpectral
    from nrprob.methods.constrained.cop_kmeans import COPKMeans
    from nrprob.methods.constrained.mdl import MDLConstrained
    from nrprob.methods.crosspartition.estimator import CrossPartition
    from nrprob.methods.ensemble.condens import CondEns
    from nrprob.methods.mixture.em import MixtureEM
    from nrprob.methods.multiview.estimator import MDLMultiView
    from nrprob.successive import Exploration, explore

    __version__: str

# Public name -> the module that defines it.
_OBJECTS = {
    "IB": "nrprob.methods.bottleneck.ib",
    "IBSI": "nrprob.methods.bottleneck.ib",
    "CCIB": "nrprob.methods.bottleneck.ccib",
    "CMBC": "nrprob.methods.cmbc.estimator",
    "CondEns": "nrprob.methods.ensemble.condens",
    "MixtureEM": "nrprob.methods.mixture.em",
    "MDLMultiView": "nrprob.methods.multiview.estimator",
    "MDLMixture": "nrprob.methods.bayes.estimator",
    "MDLConstrained": "nrprob.methods.constrained.mdl",
    "COPKMeans": "nrprob.methods.constrained.cop_kmeans",
    "CrossPartition": "nrprob.methods.crosspartition.estimator",
    "CECIB": "nrprob.methods.cec.estimator",
    "NACI": "nrprob.methods.alternatives.naci",
    "COALA": "nrprob.methods.alternatives.coala",
    "ConstrainedMixture": "nrprob.methods.cec.constrained_mixture",
    "PartitionKMeans": "nrprob.methods.cec.partition_kmeans",
    "SemiSupervisedFCM": "nrprob.methods.cec.fuzzy",
    "SemiSupervisedSpectral": "nrprob.methods.cec.spectral",
    "ResidualSpectral": "nrprob.methods.conditional.spectral",
    "ResidualMixture": "nrprob.methods.conditional.mixture",
    "Orthogonalization": "nrprob.methods.alternatives.orthogonalization",
    "ADFT": "nrprob.methods.alternatives.adft",
    "DecKMeans": "nrprob.methods.alternatives.dec_kmeans",
    "ConvEM": "nrprob.methods.alternatives.conv_em",
    "CAMI": "nrprob.methods.alternatives.cami",
    "explore": "nrprob.successive",
    "recommend": "nrprob.advice",
    "Exploration": "nrprob.successive",
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
)

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
    "CrossPartition",
    "CECIB",
    "NACI",
    "COALA",
    "ConstrainedMixture",
    "PartitionKMeans",
    "SemiSupervisedFCM",
    "SemiSupervisedSpectral",
    "ResidualSpectral",
    "ResidualMixture",
    "Orthogonalization",
    "ADFT",
    "DecKMeans",
    "ConvEM",
    "CAMI",
    "explore",
    "Exploration",
    "recommend",
    "prepare",
    "rows_of",
    "annotate",
    "sharded",
    "stored",
    "cache",
    "DegenerateClusterWarning",
    "information",
    "codelength",
    "metrics",
    "datasets",
    "known",
    "evidence",
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
