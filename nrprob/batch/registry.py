"""Registry of methods by the names that the command line and model files use.

Our methods have short names; external estimators, in model files only, have import paths. Nothing
is imported until a method is requested, so that listing the methods is instant.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nrprob.exceptions import InputError, one_line

__all__ = [
    "METHODS", "PACKAGES", "Method", "Rival", "entry", "make_estimator", "method", "nearest",
    "refuse_unknown", "require_all", "short_name",
]  # fmt: skip


@dataclass(frozen=True)
class Method:
    """Where an estimator is, what it takes, and what to tell a person who has to choose.

    Attributes
    ----------
    place : module and class, as "module:class"
    purpose : what it finds, in a line
    solvers : names of its solvers where there is a choice; the first is the default
    takes_known, takes_wanted : whether `fit` takes ``known``, and labels ``y`` of some rows
    known_as : keyword by which `fit` and `predict` take what is known
    takes_pairs : whether `fit` takes ``must_link`` and ``cannot_link``
    takes_views : whether `fit` takes a list of tables, one for every view of the rows
    says_classes : whether `predict` says classes where `fit` was told some; else clusters are free
    finds_number : whether it finds the number of clusters itself, where it is told "auto" or none
    alone : whether each fit is a program of its own, which cannot run side by side with others
    takes_sparse : whether rows may be a sparse matrix
    arrays : its large arrays, each a product of n samples, m features, k clusters, r restarts,
        d draws and s samples of which all pairs are kept; see `nrprob.batch.cost`
    """

    place: str
    purpose: str
    solvers: tuple[str, ...] = ()
    takes_known: bool = True
    takes_wanted: bool = True
    takes_pairs: bool = False
    takes_views: bool = False
    known_as: str = "known"
    says_classes: bool = True
    finds_number: bool = False
    alone: bool = False
    takes_sparse: bool = False
    arrays: tuple[str, ...] = ("nkr",)

    def load(self) -> type[Any]:
        """Class of the estimator."""
        return pkgutil.resolve_name(self.place)

    @property
    def class_name(self) -> str:
        """Name of the class, which is not imported for it."""
        return self.place.partition(":")[2]


# Packages that rivals may come from, and how to install them.
PACKAGES = {"sklearn": "scikit-learn", "clustpy": "clustpy"}
# Those that keep a number for every pair of samples.
_OF_PAIRS = ("AffinityPropagation", "AgglomerativeClustering", "SpectralClustering")
# Those that keep a covariance for every cluster.
_COVARIANCES = {"GaussianMixture": ("kmm",), "BayesianGaussianMixture": ("kmm",)}


@dataclass(frozen=True)
class Rival(Method):
    """An estimator of another package, which is told nothing but the rows."""

    @property
    def path(self) -> str:
        """Its import path, which is its name."""
        return self.place.replace(":", ".")

    def load(self) -> type[Any]:
        """Class of the estimator.

        Raises
        ------
        nrprob.exceptions.InputError
            If its package is not installed, there is no such class, or it is no clusterer.
        """
        where = self.place.partition(":")[0]
        package = where.partition(".")[0]
        _require_installed(package, self.path)
        try:
            module = importlib.import_module(where)
        except Exception as error:  # of whatever a package does at its import
            missing = getattr(error, "name", None)
            if isinstance(error, ModuleNotFoundError) and f"{where}.".startswith(f"{missing}."):
                above, _, last = str(missing).rpartition(".")
                inside = getattr(importlib.import_module(above), "__path__", ())
                there = [m.name for m in pkgutil.iter_modules(inside) if m.name[0] != "_"]
                refuse_unknown(last, there, f"{above} has no such module; {self.path}")
            raise InputError(
                f"{where} cannot be imported; {one_line(error)}; install what it needs"
            ) from error
        result: Any = getattr(module, self.class_name, None)
        if not _clusters_rows(result, package):
            names = [n for n, one in vars(module).items() if _clusters_rows(one, package)]
            complaint = f"{where} has no such estimator that clusters rows; {self.class_name!r}"
            refuse_unknown(self.class_name, names, complaint)
        return result


def _require_installed(package: str, path: str) -> None:
    """Refuse a package that is not installed, and a folder of its name that would hide it.

    A folder beside a model file may be on the path of Python, and importing it runs its code.
    """
    if package in sys.modules:
        return
    try:
        installed = importlib.metadata.distribution(PACKAGES[package]).locate_file(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(
            f"{package} is not installed; {path}; run pip install {PACKAGES[package]}"
        ) from error
    spec = importlib.util.find_spec(package)
    for place in () if spec is None else spec.submodule_search_locations or ():
        here = os.path.realpath(place) == os.path.realpath(package)  # in the working folder
        if here and os.path.realpath(place) != os.path.realpath(str(installed)):
            raise InputError(
                f"{package} is hidden by a folder of its name; {place}; run the command in another "
                "folder"
            )


def _clusters_rows(result: Any, package: str) -> bool:
    """Whether this is an estimator of a package that can say clusters, and needs no labels."""
    from sklearn.base import BaseEstimator

    if not (inspect.isclass(result) and issubclass(result, BaseEstimator)):
        return False
    kind: Any = result
    says = {"fit_predict", "predict"} & {*dir(kind)} or "\n    labels_ " in (kind.__doc__ or "")
    if kind.__module__.partition(".")[0] != package or not (says and hasattr(kind, "fit")):
        return False
    _, *others = inspect.signature(kind.fit).parameters.values()
    needed = [one for one in others if one.default is one.empty and one.kind < one.VAR_POSITIONAL]
    return len(needed) <= 1


METHODS = {
    "ccib": Method(
        "nrprob.methods.bottleneck.ccib:CCIB",
        "clusters that are informative beyond the known groups, and mean the same in each of them",
        ("anneal", "sequential", "batched", "agglomerative"),
        takes_sparse=True,
    ),
    "ibsi": Method(
        "nrprob.methods.bottleneck.ib:IBSI",
        "clusters that are informative and, at a price gamma, independent of the known groups",
        ("anneal", "sequential", "batched", "agglomerative", "split"),
        takes_sparse=True,
    ),
    "cmbc": Method(
        "nrprob.methods.cmbc.estimator:CMBC",
        "clusters of binary rows, by a mixture that is kept from repeating the known groups",
        takes_sparse=True,
    ),
    "condens": Method(
        "nrprob.methods.ensemble.condens:CondEns",
        "clusters on which clusterings of every known group by itself agree; any base clusterer",
        takes_sparse=True,
    ),
    "residual-spectral": Method(
        "nrprob.methods.conditional.spectral:ResidualSpectral",
        "clusters of sparse counts: what is left once the known groups' means are removed",
        takes_sparse=True,
    ),
    "residual-mixture": Method(
        "nrprob.methods.conditional.mixture:ResidualMixture",
        "clusters of tables and images, by a mixture of what the known groups leave of the rows",
        finds_number=True,
    ),
    "ib": Method(
        "nrprob.methods.bottleneck.ib:IB",
        "clusters that keep what rows say about the features; told nothing, for comparison",
        ("anneal", "sequential", "batched", "agglomerative", "split"),
        takes_known=False,
        takes_sparse=True,
    ),
    "mixture": Method(
        "nrprob.methods.mixture.em:MixtureEM",
        "components of a mixture; with labels of some rows, a semi-supervised classifier",
        takes_known=False,
        finds_number=True,
    ),
    "mdl_mixture": Method(
        "nrprob.methods.bayes.estimator:MDLMixture",
        "a posterior over clusterings of every size; with labels of some rows, a classifier",
        finds_number=True,
        alone=True,
        takes_sparse=True,
        arrays=("nd", "dkm"),
    ),
    "mdl_multiview": Method(
        "nrprob.methods.multiview.estimator:MDLMultiView",
        "clusters of the same rows in several views at once, by description length",
        takes_known=False,
        takes_wanted=False,
        takes_views=True,
        finds_number=True,
        alone=True,
    ),
    "mdl_constrained": Method(
        "nrprob.methods.constrained.mdl:MDLConstrained",
        "clusters under pairs that must or must not be together, kept or only where they pay",
        takes_known=False,
        takes_pairs=True,
        alone=True,
    ),
    "cop_kmeans": Method(
        "nrprob.methods.constrained.cop_kmeans:COPKMeans",
        "k-means that never violates a pair and gives up where it would have to; for comparison",
        takes_known=False,
        takes_pairs=True,
        alone=True,
    ),
    "cross_partition": Method(
        "nrprob.methods.crosspartition.estimator:CrossPartition",
        "clusters of counts that all known groups share, though they differ more from each other",
        takes_wanted=False,
        known_as="subsets",
        alone=True,
        takes_sparse=True,
    ),
    "cecib": Method(
        "nrprob.methods.cec.estimator:CECIB",
        "normal clusters, as many as pay, steered by labels of which some may be wrong",
        ("batched", "sequential", "anneal"),
        takes_known=False,
        says_classes=False,
    ),
    "orthogonalization": Method(
        "nrprob.methods.alternatives.orthogonalization:Orthogonalization",
        "clusters of what is left of rows without the means of known groups; for comparison",
        takes_wanted=False,
        alone=True,
    ),
    "adft": Method(
        "nrprob.methods.alternatives.adft:ADFT",
        "clusters under the inverse of the metric behind the known groups; for comparison",
        takes_wanted=False,
        alone=True,
    ),
    "dec_kmeans": Method(
        "nrprob.methods.alternatives.dec_kmeans:DecKMeans",
        "two k-means clusterings at once, with orthogonal centres; for comparison",
        takes_wanted=False,
        alone=True,
    ),
    "conv_em": Method(
        "nrprob.methods.alternatives.conv_em:ConvEM",
        "two clusterings at once, of rows that are a centre of each, and noise; for comparison",
        takes_wanted=False,
        alone=True,
    ),
    "cami": Method(
        "nrprob.methods.alternatives.cami:CAMI",
        "two mixtures at once, at a price of what their clusters share; for comparison",
        takes_wanted=False,
        alone=True,
    ),
    "naci": Method(
        "nrprob.methods.alternatives.naci:NACI",
        "clusters of any shape that are unlike the known ones, with a tree of all merges",
        takes_wanted=False,
        alone=True,
        arrays=("ss", "nk"),
    ),
    "coala": Method(
        "nrprob.methods.alternatives.coala:COALA",
        "average linkage that keeps rows of a known group apart where it can; for comparison",
        takes_wanted=False,
        alone=True,
        arrays=("ss", "nk"),
    ),
    "constrained_mixture": Method(
        "nrprob.methods.cec.constrained_mixture:ConstrainedMixture",
        "components of a gaussian mixture under pairs, and labels, that are together or apart",
        takes_known=False,
        takes_pairs=True,
        alone=True,
    ),
    "partition_kmeans": Method(
        "nrprob.methods.cec.partition_kmeans:PartitionKMeans",
        "k-means in which labels of some rows count as further features; for comparison",
        takes_known=False,
    ),
    "semi_supervised_fcm": Method(
        "nrprob.methods.cec.fuzzy:SemiSupervisedFCM",
        "fuzzy c-means in which labels of some rows pull at memberships; for comparison",
        takes_known=False,
    ),
    "semi_supervised_spectral": Method(
        "nrprob.methods.cec.spectral:SemiSupervisedSpectral",
        "spectral clustering whose affinities are told of labels and pairs; for comparison",
        takes_known=False,
        takes_pairs=True,
        alone=True,
        arrays=("nn", "nkr"),
    ),
}


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Advice for a name that is not among the candidates."""
    candidates = list(candidates)
    if not candidates:
        return "there are none"
    if "," in name and {*name.split(",")} <= {*candidates}:
        return "these are several; give them one by one"
    close = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(candidates)}"


def refuse_unknown(name: str, candidates: Collection[str], complaint: str) -> None:
    """Refuse a name that is not among the candidates; says which of them is the nearest.

    Raises
    ------
    nrprob.exceptions.InputError
        That begins with the complaint.
    """
    if name not in candidates:
        raise InputError(f"{complaint}; {nearest(name, candidates)}")


def require_all(needed: Iterable[str], given: Collection[str], who: str, where: str) -> None:
    """Refuse to make an estimator without parameters that have no default.

    Raises
    ------
    nrprob.exceptions.InputError
        That names those that are not given, after ``where`` parameters are given.
    """
    if missing := [f"{where}{name}" for name in needed if name not in given]:
        raise InputError(
            f"{who} needs a parameter that has no default; {', '.join(missing)}; add it"
        )


def short_name(name: str) -> str:
    """Short name of a method as `METHODS` has it; case, and hyphens for underscores, do not matter.

    Raises
    ------
    nrprob.exceptions.InputError
        If there is no such method. That of a rival is its import path, and may not be there.
    """
    if "." in name:
        if not re.fullmatch(rf"({'|'.join(PACKAGES)})(\.[A-Za-z]\w*)+", name, re.ASCII):
            allowed = " or ".join(f"{package}." for package in PACKAGES)
            raise InputError(
                f"estimators from elsewhere are those below {allowed}, and no others; got "
                f"{name!r}; name a class of these packages, or a method of `nrprob methods`"
            )
        return name
    for spelling in (name.lower(), name.lower().replace("-", "_"), name.lower().replace("_", "-")):
        if spelling in METHODS:
            return spelling
    raise InputError(f"unknown method; {name!r}; {nearest(name.lower(), METHODS)}")


def method(name: str) -> Method:
    """Look a method up by its short name, or a rival by its import path; see `short_name`."""
    name = short_name(name)
    if name in METHODS:
        return METHODS[name]
    where, _, class_name = name.rpartition(".")
    return Rival(
        f"{where}:{class_name}",
        f"of {PACKAGES[name.partition('.')[0]]}, told nothing but the rows; for comparison",
        takes_known=False,
        takes_wanted=False,
        says_classes=False,
        alone=True,
        arrays=("nn",) if class_name in _OF_PAIRS else ("nk", *_COVARIANCES.get(class_name, ())),
    )


def entry(estimator: type[Any]) -> tuple[str, Method]:
    """Short name and entry of an estimator's class."""
    return next((n, m) for n, m in METHODS.items() if m.class_name == estimator.__name__)


def make_estimator(name: str, parameters: Mapping[str, Any], where: str = "") -> Any:
    """Estimator by its name; ``where`` tells the user where a wrong parameter stands.

    A rival without a random state is given none.

    Raises
    ------
    nrprob.exceptions.InputError
        If its constructor lacks a parameter that is given, or needs one that is not; if a value is
        none that a rival may be passed (`nrprob.batch.allowed`).
    """
    result = method(name)
    cls = result.load()
    needed, taken = inspect.signature(cls).parameters, cls._get_param_names()
    if isinstance(result, Rival) and "random_state" not in taken:
        parameters = {key: v for key, v in parameters.items() if key != "random_state"}
    for parameter in parameters:
        complaint = f"{cls.__name__} has no such parameter; {where}{parameter}"
        if parameter == "n_clusters" and parameter not in taken and "n_components" in taken:
            raise InputError(f"{complaint}; did you mean 'n_components'?")
        refuse_unknown(parameter, taken, complaint)
    without = [key for key, one in needed.items() if one.default is inspect.Parameter.empty]
    require_all(without, parameters, cls.__name__, where)
    if isinstance(result, Rival):
        from nrprob.batch.allowed import check_allowed  # which imports NumPy

        check_allowed(cls, parameters, where)
    return cls(**parameters)
