"""Registry of methods by their names on the command line and in model files.

Methods of this package have short names. External estimators, in model files only, have import
paths. A class is imported when its method is first used.
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

from nrprob.estimator.capabilities import Capabilities
from nrprob.exceptions import InputError, one_line
from nrprob.methods import ESTIMATORS

__all__ = [
    "METHODS", "PACKAGES", "ExternalMethod", "Method", "find_entry", "find_method",
    "make_estimator", "refuse_unknown", "require_all", "short_name", "suggest_name",
]  # fmt: skip


@dataclass(frozen=True)
class Method:
    """Entry of the registry: an estimator, whose class is imported on first use.

    Attributes
    ----------
    path : module and class, as "module:class"
    """

    path: str

    def load(self) -> type[Any]:
        """Import the class of the estimator."""
        return pkgutil.resolve_name(self.path)

    @property
    def class_name(self) -> str:
        """Name of the class, without an import."""
        return self.path.partition(":")[2]

    @property
    def capabilities(self) -> Capabilities:
        """Inputs of the estimator (`nrprob.estimator.capabilities`), as its class declares them."""
        return self.load().capabilities

    @property
    def purpose(self) -> str:
        """First line of the docstring of the class, without the full stop."""
        return (inspect.getdoc(self.load()) or "").partition("\n")[0].removesuffix(".")

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters of the constructor, in alphabetical order."""
        return self.load()._get_param_names()

    @property
    def required(self) -> list[str]:
        """Names of the parameters without a default."""
        parameters = inspect.signature(self.load()).parameters.items()
        return [name for name, parameter in parameters if parameter.default is parameter.empty]

    @property
    def defaults(self) -> dict[str, Any]:
        """Default values of the parameters of the constructor."""
        parameters = inspect.signature(self.load()).parameters.items()
        return {name: p.default for name, p in parameters if p.default is not p.empty}

    def words(self, parameter: str) -> list[str]:
        """Valid strings of a parameter of the constructor, from the annotation of the parameter."""
        from nrprob.estimator.parameters import parameter_checks

        cls: Any = self.load()
        declared = [getattr(c, "words", ()) for c in parameter_checks(cls).get(parameter, ())]
        return [word for words in declared for word in (words() if callable(words) else words)]


METHODS = {name: Method(path) for name, path in ESTIMATORS.items()}

# Packages of external estimators, and the names under which pip installs them.
PACKAGES = {"sklearn": "scikit-learn", "clustpy": "clustpy"}
# External estimators that store a value for each pair of samples.
_PAIRWISE = ("AffinityPropagation", "AgglomerativeClustering", "SpectralClustering")
# External estimators that store a covariance matrix for each cluster.
_COVARIANCES = {"GaussianMixture": ("kmm",), "BayesianGaussianMixture": ("kmm",)}


@dataclass(frozen=True)
class ExternalMethod(Method):
    """Entry of an estimator of another package, fitted on X only."""

    @property
    def import_path(self) -> str:
        """Import path of the class; the method has this path as its name."""
        return self.path.replace(":", ".")

    @property
    def capabilities(self) -> Capabilities:
        """Inputs of external estimators; the class is not imported."""
        quadratic = self.class_name in _PAIRWISE
        return Capabilities(
            known=(),
            labels=False,
            predicts_classes=False,
            alone=True,
            arrays=("nn",) if quadratic else ("nk", *_COVARIANCES.get(self.class_name, ())),
        )

    @property
    def defaults(self) -> dict[str, Any]:
        """Empty: the defaults of another package depend on its version."""
        return {}

    @property
    def purpose(self) -> str:
        """Text that names the package of the class; the class is not imported."""
        return f"of {PACKAGES[self.path.partition('.')[0]]}, fitted on X only; for comparison"

    def load(self) -> type[Any]:
        """Import the class of the estimator.

        Raises
        ------
        nrprob.exceptions.InputError
            If its package is not installed, the class does not exist, or it is not a clusterer.
        """
        module_name = self.path.partition(":")[0]
        package = module_name.partition(".")[0]
        _require_installed(package, self.import_path)
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # a package may raise anything at import
            missing = getattr(error, "name", None)
            absent = isinstance(error, ModuleNotFoundError)
            if absent and f"{module_name}.".startswith(f"{missing}."):
                parent, _, child = str(missing).rpartition(".")
                folders = getattr(importlib.import_module(parent), "__path__", ())
                modules = [m.name for m in pkgutil.iter_modules(folders) if m.name[0] != "_"]
                refuse_unknown(child, modules, f"{parent} has no such module; {self.import_path}")
            raise InputError(
                f"{module_name} cannot be imported; {one_line(error)}; install what it needs"
            ) from error
        result: Any = getattr(module, self.class_name, None)
        if not _is_clusterer(result, package):
            names = [n for n, value in vars(module).items() if _is_clusterer(value, package)]
            complaint = f"{module_name} has no such estimator that clusters rows; "
            refuse_unknown(self.class_name, names, f"{complaint}{self.class_name!r}")
        return result


def _require_installed(package: str, import_path: str) -> None:
    """Raise InputError if a package is not installed, or if a folder of the same name hides it.

    The working folder may be on Python's path, and an import would run the code of such a folder.
    """
    if package in sys.modules:
        return
    try:
        installed = importlib.metadata.distribution(PACKAGES[package]).locate_file(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(
            f"{package} is not installed; {import_path}; run pip install {PACKAGES[package]}"
        ) from error
    spec = importlib.util.find_spec(package)
    for folder in () if spec is None else spec.submodule_search_locations or ():
        local = os.path.realpath(folder) == os.path.realpath(package)  # in the working folder
        if local and os.path.realpath(folder) != os.path.realpath(str(installed)):
            raise InputError(
                f"{package} is hidden by a folder of its name; {folder}; run the command in "
                "another folder"
            )


def _is_clusterer(value: Any, package: str) -> bool:
    """Whether ``value`` is a class of ``package`` whose instances cluster without labels."""
    from sklearn.base import BaseEstimator

    if not (inspect.isclass(value) and issubclass(value, BaseEstimator)):
        return False
    cls: Any = value
    labels = {"fit_predict", "predict"} & {*dir(cls)} or "\n    labels_ " in (cls.__doc__ or "")
    if cls.__module__.partition(".")[0] != package or not (labels and hasattr(cls, "fit")):
        return False
    _, *arguments = inspect.signature(cls.fit).parameters.values()
    required = [a for a in arguments if a.default is a.empty and a.kind < a.VAR_POSITIONAL]
    return len(required) <= 1


def suggest_name(name: str, candidates: Iterable[str]) -> str:
    """Advice for a name that is not a candidate: the nearest candidate, or all candidates."""
    candidates = list(candidates)
    if not candidates:
        return "there are none"
    if "," in name and {*name.split(",")} <= {*candidates}:
        return "these are several names; pass each name separately"
    close = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(candidates)}"


def refuse_unknown(name: str, candidates: Collection[str], complaint: str, hint: str = "") -> None:
    """Raise an error for a name that is not among the candidates, and suggest the nearest one.

    Raises
    ------
    nrprob.exceptions.InputError
        If the name is unknown. The message begins with ``complaint``, and ends with ``hint``.
    """
    if name not in candidates:
        end = f"; {hint}" * bool(hint)
        raise InputError(f"{complaint}; {suggest_name(name, candidates)}{end}")


def require_all(required: Iterable[str], available: Collection[str], who: str, where: str) -> None:
    """Raise an error if required parameters of an estimator are missing.

    Raises
    ------
    nrprob.exceptions.InputError
        If a required parameter is not available. The message names the estimator as ``who``, and
        the missing parameters, each after the prefix ``where``.
    """
    if missing := [f"{where}{name}" for name in required if name not in available]:
        raise InputError(
            f"{who} needs a parameter that has no default; {', '.join(missing)}; add it"
        )


def short_name(name: str) -> str:
    """Return the key of a method in `METHODS`; case, hyphens and underscores do not matter.

    The name of an external estimator is its import path, which is returned unchanged. The function
    does not check that the class exists.

    Raises
    ------
    nrprob.exceptions.InputError
        If there is no such method, or the import path is not below one of `PACKAGES`.
    """
    if "." in name:
        if not re.fullmatch(rf"({'|'.join(PACKAGES)})(\.[A-Za-z]\w*)+", name, re.ASCII):
            allowed = " or ".join(f"{package}." for package in PACKAGES)
            raise InputError(
                f"an external estimator must be a class below {allowed}; got {name!r}; "
                "name a class of these packages, or a method of `nrprob methods`"
            )
        return name
    for spelling in (name.lower(), name.lower().replace("-", "_"), name.lower().replace("_", "-")):
        if spelling in METHODS:
            return spelling
    raise InputError(f"unknown method; {name!r}; {suggest_name(name.lower(), METHODS)}")


def find_method(name: str) -> Method:
    """Return the entry of a method by its short name, or of an external estimator by its path."""
    name = short_name(name)
    if name in METHODS:
        return METHODS[name]
    module, _, class_name = name.rpartition(".")
    return ExternalMethod(f"{module}:{class_name}")


def find_entry(estimator: type[Any]) -> tuple[str, Method]:
    """Return the short name and the registry entry of the class ``estimator``."""
    return next((n, m) for n, m in METHODS.items() if m.class_name == estimator.__name__)


def make_estimator(name: str, parameters: Mapping[str, Any], where: str = "") -> Any:
    """Construct an estimator by its name.

    If an external estimator has no parameter ``random_state``, the value is ignored.

    Parameters
    ----------
    name : str
        Short name, or import path.
    parameters : mapping
        Parameters of the constructor.
    where : str, default=""
        Prefix of parameter names in messages, such as ``"methods.0."``.

    Raises
    ------
    nrprob.exceptions.InputError
        If the constructor does not have a parameter, or requires one that is missing; or if an
        external estimator may not take a value (`nrprob.batch.allowed`).
    """
    result = find_method(name)
    cls, names = result.load(), result.parameters
    external = isinstance(result, ExternalMethod)
    if external and "random_state" not in names:
        parameters = {key: v for key, v in parameters.items() if key != "random_state"}
    for parameter in parameters:
        complaint = f"{cls.__name__} has no such parameter; {where}{parameter}"
        if parameter == "n_clusters" and parameter not in names and "n_components" in names:
            raise InputError(f"{complaint}; did you mean 'n_components'?")
        refuse_unknown(parameter, names, complaint)
    require_all(result.required, parameters, cls.__name__, where)
    if external:
        from nrprob.batch.allowed import check_allowed  # imports NumPy, which is slow

        check_allowed(cls, parameters, where)
    return cls(**parameters)
