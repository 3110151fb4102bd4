"""What a model file may pass to an estimator of another package: numbers, booleans, fixed words.

A model file is untrusted data. Paths, import paths, callables and other estimators could make a
package read, write or run something, so that they are refused before the estimator is made. The
words that a parameter takes are those that scikit-learn declares for it; an estimator that declares
nothing takes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from nrprob.data.validation import ITERATIONS, LARGEST, check_number
from nrprob.exceptions import InputError

__all__ = ["check_allowed"]

JOBS = 64  # threads or processes of one fit
VIEWS = 100  # of a clustering in several views, each with its number of clusters


def check_allowed(kind: type[Any], parameters: Mapping[str, Any], where: str = "") -> None:
    """Refuse values that a model file may not pass, and counts without an upper bound.

    Parameters
    ----------
    kind : type
        Class of the estimator.
    parameters : mapping
        Parameters by name; None is taken by all.
    where : str, default=""
        Prefix that tells the user where a parameter stands.

    Raises
    ------
    nrprob.exceptions.InputError
        That names the parameter.
    """
    declared = getattr(kind, "_parameter_constraints", {})
    for name, value in parameters.items():
        place, rules = f"{where}{name}", declared.get(name)
        if value is None or isinstance(value, bool):
            continue
        if isinstance(rules, list):
            words = {word for rule in rules for word in getattr(rule, "options", ())}
            counts = any(Integral in (rule, getattr(rule, "type", None)) for rule in rules)
        else:  # nothing is declared
            words, counts, rules = set(), True, []
            if isinstance(value, list) and len(value) <= VIEWS and {*map(type, value)} == {int}:
                for number in value:
                    _check_bounds(place, name, number, counts)
                continue
        if isinstance(value, int | float):
            _check_bounds(place, name, value, counts)
        elif not (isinstance(value, str) and value in words):
            choices = sorted(word for word in words if isinstance(word, str))
            numbers = counts or any(isinstance(getattr(r, "type", None), type) for r in rules)
            advice = "pass a number" if numbers else "leave it out"
            advice = f"choose from {', '.join(choices)}" if choices else advice
            short = isinstance(value, str) and len(value) <= 60
            shown = repr(value) if short else f"a {type(value).__name__}"
            raise InputError(
                f"{kind.__name__} takes numbers, booleans and fixed words only; {place} = "
                f"{shown}; {advice}"
            )


def _check_bounds(place: str, name: str, value: float, counts: bool) -> None:
    """Refuse a number out of bounds; the estimator checks its own bounds as well."""
    low, high = -LARGEST, LARGEST
    if name == "n_jobs":
        low, high = -JOBS, JOBS
    elif counts and isinstance(value, int) and name != "random_state":
        low, high = 0, ITERATIONS
    try:
        check_number(place, value, low=low, high=high)
    except ValueError as error:
        raise InputError(str(error)) from None
