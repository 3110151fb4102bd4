"""Validate options against the parameters of a method, before the data are read.

Error messages name command-line options in place of parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nrprob.batch.registry import METHODS, refuse_unknown, require_all
from nrprob.exceptions import InputError

__all__ = [
    "RECOMMENDED",
    "check_at_least",
    "check_choice",
    "check_n_clusters",
    "check_parameters",
    "in_options",
    "in_options_of_explore",
]

# Methods among which --method auto chooses.
RECOMMENDED = ("ccib", "conditional-mixture", "residual-spectral", "mixture")

_OPTIONS = {
    "n_clusters": "--k",
    "max_clusters": "--k",
    "n_init": "--n-init",
    "n_clusterings": "--n-clusterings",
    "random_state": "--seed",
    "features": "--features",
    "solver": "--solver",
}
# Names that are also English words; a message means the parameter only after "--set" or before "=".
_ENGLISH = ("features", "solver")
_PARAMETER = re.compile(rf"(--set )?\b({'|'.join(_OPTIONS)})\b(=?)(?=(\w|['\"])?)")
_TO_DENSE = re.compile(
    r"pass X\.toarray\(\)|(\. )Use '\.toarray\(\)' to convert to a dense numpy array"
)


def in_options(text: str) -> str:
    """Rewrite a message for the command line: name options instead of parameters and arrays."""
    dense = "store the rows as a dense matrix"
    text = _TO_DENSE.sub(lambda match: "; " * bool(match[1]) + dense, text)
    text = text.replace("log='auto' of nrprob.prepare", "--log auto")
    text = text.replace("compare both in optima_, ", "")  # results have no such attribute
    return _PARAMETER.sub(_name_option, text)


def in_options_of_explore(text: str) -> str:
    """Rewrite a message for `nrprob explore`, which has no option for the number of restarts."""
    return in_options(text.replace("raise n_init", "try another random_state"))


def _name_option(match: re.Match[str]) -> str:
    """Return the text that replaces a match of `_PARAMETER` in a message: the option."""
    prefix, name, equals, value = match.groups()
    if name in _ENGLISH and not (prefix or equals):
        return match[0]
    return _OPTIONS[name] + " " * bool(equals and value)


def check_parameters(name: str | None, parameters: Mapping[str, Any]) -> None:
    """Check the names and values of parameters of a method.

    Parameters
    ----------
    name : short name of the method; None for --method auto
    parameters : parameters of the estimator, by name

    Raises
    ------
    nrprob.exceptions.InputError
        If the method lacks a parameter, a required one is missing, or a value is invalid. The
        message names the option.
    """
    if "n_init" in parameters:
        check_at_least(1, parameters["n_init"], "--n-init")
    candidates = [METHODS[key] for key in (RECOMMENDED if name is None else (name,))]
    subject = "the methods of --method auto have" if name is None else f"{name} has"
    for parameter in parameters:
        if parameter != "random_state":  # every method has this parameter
            available = sorted({key for method in candidates for key in method.parameters})
            option = _OPTIONS.get(parameter, f"--set {parameter}")
            able = [] if parameter in available else _methods_with(parameter, parameters[parameter])
            hint = f"{option} is a parameter of {', '.join(able)}" if able else ""
            refuse_unknown(parameter, available, f"{subject} no such parameter; {option}", hint)
    if name is not None:
        require_all(METHODS[name].required, parameters, METHODS[name].class_name, "--set ")
    for parameter in ("solver", "features"):
        if parameter in parameters:
            words = dict.fromkeys(w for method in candidates for w in method.words(parameter))
            check_choice([*words], parameters[parameter], _OPTIONS[parameter])


def _methods_with(parameter: str, value: Any) -> list[str]:
    """Short names of the methods that have a parameter and, if it is a choice, allow its value."""
    able = {name: method for name, method in METHODS.items() if parameter in method.parameters}
    words = {name: method.words(parameter) for name, method in able.items()}
    return [name for name in able if not words[name] or value in words[name]]


def check_at_least(lowest: int, value: Any, option: str) -> None:
    """Raise InputError if the value of an option is not an integer, or is below ``lowest``."""
    if type(value) is not int or value < lowest:
        raise InputError(
            f"{option} must be an integer of at least {lowest}; got {value}; pass for example "
            f"{option} 3"
        )


def check_choice(choices: Sequence[str], value: Any, option: str) -> None:
    """Raise InputError if the value of an option is not among the choices."""
    refuse_unknown(str(value), choices, f"there is no such {option[2:]}; {option} {value}")


def check_n_clusters(n_clusters: int | str | None, n_samples: int, default: int = 2) -> None:
    """Raise InputError if there are more clusters than samples, unless ``n_clusters`` is "auto".

    ``default`` is the number of clusters if ``n_clusters`` is None.
    """
    requested = default if n_clusters is None else n_clusters
    if isinstance(requested, int) and n_samples < requested:
        option = f"--k {n_clusters}" if n_clusters else f"{default} clusters, which is the default,"
        rows = "1 row" if n_samples == 1 else f"{n_samples} rows"
        raise InputError(
            f"there are fewer rows than clusters; got {option} for {rows}; ask for fewer clusters, "
            "or pass more rows"
        )
