"""Validate options against the parameters of a method before JAX is loaded.

Error messages name command-line options in place of parameters.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nrprob.batch.registry import METHODS, refuse_unknown, require_all
from nrprob.exceptions import InputError

__all__ = [
    "FEATURES",
    "OF_NUMBERS",
    "RECOMMENDED",
    "check_at_least",
    "check_one_of",
    "check_parameters",
    "check_rows",
    "in_options",
    "needed_by",
    "parameters_of",
]

RECOMMENDED = ("ccib", "residual-mixture", "residual-spectral", "mixture")  # what auto may choose
OF_NUMBERS = ("ccib", "residual-mixture", "residual-spectral")  # who models numbers that are known
FEATURES = ("auto", "multinomial", "bernoulli", "gaussian")

_OPTIONS = {
    "n_clusters": "--k",
    "max_clusters": "--k",
    "n_init": "--n-init",
    "n_clusterings": "--n-clusterings",
    "random_state": "--seed",
    "features": "--features",
    "solver": "--solver",
}
_WORDS = ("features", "solver")  # of English, unless they are written as parameters
_PARAMETER = re.compile(rf"(--set )?\b({'|'.join(_OPTIONS)})\b(=?)(?=(\w|['\"])?)")
_TO_DENSE = re.compile(
    r"pass X\.toarray\(\)|(\. )Use '\.toarray\(\)' to convert to a dense numpy array"
)


def in_options(text: str) -> str:
    """A message in terms of the command line: options for parameters, files for arrays."""
    dense = "store the rows as a dense matrix"
    text = _TO_DENSE.sub(lambda result: "; " * bool(result[1]) + dense, text)
    return _PARAMETER.sub(_as_option, text)


def _as_option(result: re.Match[str]) -> str:
    at_set, name, equals, value = result.groups()
    if name in _WORDS and not (at_set or equals):
        return result[0]
    return _OPTIONS[name] + " " * bool(equals and value)


def parameters_of(place: str) -> list[str]:
    """Names of the parameters of an estimator, ``module:class``, whose module is not imported.

    They are the annotated attributes of its class, and of those that it derives from, where these
    are decorated; see `nrprob.estimator.parameters.constructor`.
    """
    return sorted(_fields(*place.split(":")))


def needed_by(place: str) -> list[str]:
    """Names of the parameters that have no default, otherwise as `parameters_of`."""
    return sorted(name for name, default in _fields(*place.split(":")).items() if not default)


@functools.cache
def _source(module: str) -> ast.Module:
    """The source of a module, which is found without it."""
    spec = importlib.util.find_spec(module)
    read = getattr(spec and spec.loader, "get_source", None)
    return ast.parse((read and read(module)) or "")


def _fields(module: str, name: str) -> dict[str, bool]:
    """Parameters of an estimator, and whether each has a default."""
    imported: dict[str, str] = {}
    fields: dict[str, bool] = {}
    for node in _source(module).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nrprob"):
            imported |= {alias.asname or alias.name: f"{node.module}" for alias in node.names}
        if not isinstance(node, ast.ClassDef) or node.name != name:
            continue
        for base in node.bases:
            if isinstance(base, ast.Name):
                fields = _fields(imported.get(base.id, module), base.id) | fields
        for line in node.body if node.decorator_list else ():
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                if line.target.id[0] != "_" and "ClassVar" not in ast.unparse(line.annotation):
                    fields[line.target.id] = line.value is not None
    return fields


def check_parameters(method: str | None, parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that the method lacks, or what they cannot be.

    Parameters
    ----------
    method : short name; None where it is chosen by the data
    parameters : of the estimator, by name

    Raises
    ------
    nrprob.exceptions.InputError
        In terms of the options.
    """
    names = RECOMMENDED if method is None else (method,)
    who = "the methods of --method auto have" if method is None else f"{method} has"
    taken = sorted({name for one in names for name in parameters_of(METHODS[one].place)})
    for name in parameters if taken else ():  # without their source nothing is known of them
        refuse_unknown(
            name, taken, f"{who} no such parameter; {_OPTIONS.get(name, f'--set {name}')}"
        )
    if method is not None:
        one = METHODS[method]
        require_all(needed_by(one.place), parameters, one.class_name, "--set ")
    if "n_init" in parameters:
        check_at_least(1, parameters["n_init"], "--n-init")
    solvers = list(dict.fromkeys(s for one in names for s in METHODS[one].solvers))
    if "solver" in parameters:
        check_one_of(solvers, parameters["solver"], "--solver")
    if "features" in parameters:
        check_one_of(FEATURES, parameters["features"], "--features")


def check_at_least(least: int, value: Any, option: str) -> None:
    """Refuse what is no whole number, or a smaller one."""
    if type(value) is not int or value < least:
        raise InputError(
            f"{option} is a whole number from {least}; got {value}; pass for example {option} 3"
        )


def check_one_of(choices: Sequence[str], value: Any, option: str) -> None:
    """Refuse what is none of some words."""
    refuse_unknown(str(value), choices, f"there is no such {option[2:]}; {option} {value}")


def check_rows(number: int | str | None, n: int, default: int = 2) -> None:
    """Refuse more clusters than rows, unless their number is to be found."""
    wanted = default if number is None else number
    if isinstance(wanted, int) and n < wanted:
        given = f"--k {number}" if number else f"{default} clusters, which is the default,"
        rows = "1 row" if n == 1 else f"{n} rows"
        raise InputError(
            f"there are fewer rows than clusters; {given} for {rows}; ask for fewer, or give more "
            "rows"
        )
