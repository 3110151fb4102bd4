"""Values that a model file may pass to an external estimator: numbers, booleans, fixed words.

A model file is untrusted data. Paths, import paths, callables and other estimators could make a
package read, write or run something. Such values are refused before the estimator is constructed.
The allowed words of a parameter are the words that scikit-learn declares for the parameter. An
estimator without declarations takes no words.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from nrprob.data.validation import ITERATIONS, LARGEST, check_number
from nrprob.exceptions import InputError

__all__ = ["check_allowed"]

MAX_JOBS = 64  # maximum number of threads or processes of one fit
MAX_VIEWS = 100  # maximum length of a list of numbers of clusters, one number per view


def check_allowed(kind: type[Any], parameters: Mapping[str, Any], where: str = "") -> None:
    """Raise InputError for values that a model file must not pass to an external estimator.

    Parameters
    ----------
    kind : type
        Class of the estimator.
    parameters : mapping
        Parameters by name; None is always allowed.
    where : str, default=""
        Prefix of parameter names in messages.

    Raises
    ------
    nrprob.exceptions.InputError
        If a value is not a number, boolean or allowed word, or if a number is too large. The
        message names the parameter.
    """
    declared = getattr(kind, "_parameter_constraints", {})
    for name, value in parameters.items():
        place, rules = f"{where}{name}", declared.get(name)
        if value is None or isinstance(value, bool):
            continue
        if isinstance(rules, list):
            words = {word for rule in rules for word in getattr(rule, "options", ())}
            counts = any(Integral in (rule, getattr(rule, "type", None)) for rule in rules)
        else:  # the class has no declarations
            words, counts, rules = set(), True, []
            if isinstance(value, list) and len(value) <= MAX_VIEWS and {*map(type, value)} == {int}:
                for number in value:
                    _check_bounds(place, name, number, counts)
                continue
        if isinstance(value, int | float):
            _check_bounds(place, name, value, counts)
        elif not (isinstance(value, str) and value in words):
            choices = sorted(word for word in words if isinstance(word, str))
            numeric = counts or any(isinstance(getattr(r, "type", None), type) for r in rules)
            advice = "pass a number" if numeric else f"leave {name} out"
            advice = f"choose from {', '.join(choices)}" if choices else advice
            short = isinstance(value, str) and len(value) <= 60
            shown = repr(value) if short else f"a {type(value).__name__}"
            raise InputError(
                f"{kind.__name__} takes numbers, booleans and fixed words only; {place} = "
                f"{shown}; {advice}"
            )


def _check_bounds(place: str, name: str, value: float, counts: bool) -> None:
    """Raise InputError for a number outside of bounds that hold for all estimators.

    ``place`` names the parameter in the message, and ``counts`` states whether the parameter is a
    count, such as a number of clusters. The estimator checks its own bounds later.
    """
    low, high = -LARGEST, LARGEST
    if name == "n_jobs":
        low, high = -MAX_JOBS, MAX_JOBS
    elif counts and isinstance(value, int) and name != "random_state":
        low, high = 0, ITERATIONS
    try:
        check_number(place, value, low=low, high=high)
    except ValueError as error:
        raise InputError(str(error)) from None
