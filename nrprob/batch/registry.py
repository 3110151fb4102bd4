"""The methods by the short names that the command line and model files use.

Nothing is imported until a method is asked for, so that listing them is instant.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nrprob.exceptions import InputError

__all__ = [
    "METHODS",
    "Method",
    "check_parameters",
    "entry",
    "method",
    "missing_parameter",
    "nearest",
    "short_name",
]


@dataclass(frozen=True)
class Method:
    """Where an estimator is, what it takes, and what to tell a person who has to choose.

    Attributes
    ----------
    module, class_name : where it is
    purpose : what it finds, in a line
    solvers : names of its solvers where there is a choice; the first is the default
    takes_known, takes_wanted : whether `fit` takes ``known``, and labels ``y`` of some rows
    known_as : keyword by which `fit` and `predict` take what is known
    takes_pairs : whether `fit` takes ``must_link`` and ``cannot_link``
    takes_views : whether `fit` takes a list of tables, one for every view of the rows
    alone : whether each fit is a program of its own, which cannot run side by side with others
    """

    module: str
    class_name: str
    purpose: str
    solvers: tuple[str, ...]
    takes_known: bool = True
    takes_wanted: bool = True
    takes_pairs: bool = False
    takes_views: bool = False
    known_as: str = "known"
    alone: bool = False

    def load(self) -> type[Any]:
        """Class of the estimator."""
        return getattr(importlib.import_module(self.module), self.class_name)


METHODS = {
    "ccib": Method(
        "nrprob.methods.bottleneck.ccib",
        "CCIB",
        "clusters that are informative beyond the known groups, and mean the same in each of them",
        ("anneal", "sequential", "batched", "agglomerative"),
    ),
    "ibsi": Method(
        "nrprob.methods.bottleneck.ib",
        "IBSI",
        "clusters that are informative and, at a price gamma, independent of the known groups",
        ("anneal", "sequential", "batched", "agglomerative", "split"),
    ),
    "cmbc": Method(
        "nrprob.methods.cmbc.estimator",
        "CMBC",
        "clusters of binary rows, by a mixture that is kept from repeating the known groups",
        (),
    ),
    "condens": Method(
        "nrprob.methods.ensemble.condens",
        "CondEns",
        "clusters on which clusterings of every known group by itself agree; any base clusterer",
        (),
    ),
    "residual-spectral": Method(
        "nrprob.methods.residual.spectral",
        "ResidualSpectral",
        "clusters of sparse counts: what is left once the known groups' means are removed",
        (),
    ),
    "residual-mixture": Method(
        "nrprob.methods.residual.mixture",
        "ResidualMixture",
        "clusters of tables and images, by a mixture of what the known groups leave of the rows",
        (),
    ),
    "ib": Method(
        "nrprob.methods.bottleneck.ib",
        "IB",
        "clusters that keep what rows say about the features; told nothing, for comparison",
        ("anneal", "sequential", "batched", "agglomerative", "split"),
        takes_known=False,
    ),
    "mixture": Method(
        "nrprob.methods.mixture.em",
        "MixtureEM",
        "components of a mixture; with labels of some rows, a semi-supervised classifier",
        (),
        takes_known=False,
    ),
    "mdl_mixture": Method(
        "nrprob.methods.bayes.estimator",
        "MDLMixture",
        "a posterior over clusterings of every size; with labels of some rows, a classifier",
        (),
        takes_known=False,
        alone=True,
    ),
    "mdl_multiview": Method(
        "nrprob.methods.multiview.estimator",
        "MDLMultiView",
        "clusters of the same rows in several views at once, by description length",
        (),
        takes_known=False,
        takes_wanted=False,
        takes_views=True,
        alone=True,
    ),
    "mdl_constrained": Method(
        "nrprob.methods.constrained.mdl",
        "MDLConstrained",
        "clusters under pairs that must or must not be together, kept or only where they pay",
        (),
        takes_known=False,
        takes_pairs=True,
        alone=True,
    ),
    "cop_kmeans": Method(
        "nrprob.methods.constrained.cop_kmeans",
        "COPKMeans",
        "k-means that never violates a pair and gives up where it would have to; for comparison",
        (),
        takes_known=False,
        takes_pairs=True,
        alone=True,
    ),
    "cross_partition": Method(
        "nrprob.methods.crosspartition.estimator",
        "CrossPartition",
        "clusters of counts that all known groups share, though they differ more from each other",
        (),
        takes_wanted=False,
        known_as="subsets",
        alone=True,
    ),
}


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Advice for a name that is not among the candidates."""
    candidates = list(candidates)
    if not candidates:
        return "there are none"
    close = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(candidates)}"


def short_name(name: str) -> str:
    """Short name of a method as `METHODS` has it; case, and hyphens for underscores, do not matter.

    Raises
    ------
    nrprob.exceptions.InputError
        If there is no such method.
    """
    for spelling in (name.lower(), name.lower().replace("-", "_"), name.lower().replace("_", "-")):
        if spelling in METHODS:
            return spelling
    raise InputError(f"unknown method; {name!r}; {nearest(name.lower(), METHODS)}")


def method(name: str) -> Method:
    """Look a method up by its short name; see `short_name`."""
    return METHODS[short_name(name)]


def entry(estimator: type[Any]) -> tuple[str, Method]:
    """Short name and entry of an estimator's class."""
    return next((n, m) for n, m in METHODS.items() if m.class_name == estimator.__name__)


def check_parameters(estimator: type[Any], parameters: Iterable[str], where: str) -> None:
    """Refuse parameters that the estimator's constructor does not have; `where` names the place."""
    known = estimator._get_param_names()
    for name in parameters:
        if name not in known:
            raise InputError(
                f"{estimator.__name__} has no such parameter; {where}{name}; {nearest(name, known)}"
            )


def missing_parameter(estimator: type[Any], parameters: Iterable[str], where: str) -> InputError:
    """The error for parameters that have no default and were not given."""
    signature = inspect.signature(estimator).parameters.values()
    required = [p.name for p in signature if p.default is inspect.Parameter.empty]
    missing = [f"{where}{name}" for name in required if name not in parameters]
    return InputError(
        f"{estimator.__name__} needs a parameter that has no default; {', '.join(missing)}; add it"
    )
