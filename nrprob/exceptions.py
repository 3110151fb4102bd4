"""Warnings and errors of several modules, and the formatting of their messages."""

import numbers
import sys
import warnings
from typing import Any

__all__ = [
    "DataUnavailable", "DegenerateClusterWarning", "InputError", "SingleFeatureWarning", "one_line",
    "short_repr", "warn",
]  # fmt: skip

_SHORT = 60  # maximum number of characters of a value in a message


class DegenerateClusterWarning(UserWarning):
    """Warning of a clustering with fewer non-empty clusters, or less structure, than requested.

    Estimators also issue this warning for clusters of one or two samples if there are 50 or more
    samples per cluster. The fit has not failed: the estimator is fitted, ``n_clusters_`` is the
    number of clusters with samples, and no value is NaN.

    Examples
    --------
    >>> import warnings
    >>> from nrprob import DegenerateClusterWarning
    >>> with warnings.catch_warnings():  # if fewer clusters than requested are unacceptable
    ...     warnings.simplefilter("error", DegenerateClusterWarning)
    """


class SingleFeatureWarning(UserWarning):
    """Warning of clusters that one discrete feature, such as a boolean column, determines."""


class InputError(ValueError):
    """Error for invalid user input: a command line, a model file or a data file.

    The message has one line per mistake; the command line prints it without a traceback.
    """


class DataUnavailable(InputError):
    """Error for a data set that is not on this machine and cannot be downloaded.

    The message says how to get the data set.
    """


def one_line(error: BaseException) -> str:
    """Type and message of an error as one line of text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def short_repr(value: Any) -> str:
    """Short representation of a value for messages.

    Arrays and long values are represented by their type and size.
    """
    name = type(value).__name__
    shape = getattr(value, "shape", None)
    # NumPy's scalars also have a shape, but are formatted as numbers.
    if isinstance(shape, tuple) and not hasattr(value, "as_integer_ratio"):
        return f"{name} of shape {shape}"
    if isinstance(value, str | bytes) and len(value) > _SHORT:
        return f"{value[:_SHORT]!r} and {len(value) - _SHORT} more characters"
    try:
        text = str(value) if isinstance(value, numbers.Number) else repr(value)
    except Exception:  # an integer of too many digits, or an object whose repr raises
        text = ""
    if text.isprintable() and 0 < len(text) <= 2 * _SHORT and "array(" not in text:
        return text
    if isinstance(value, int):
        return "a huge integer"
    return f"{name} of {len(value)} entries" if hasattr(value, "__len__") else f"{name} object"


# Modules between the origin of a warning and the user's own line.
_INSIDE = ("nrprob", "sklearn", "contextlib")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points to the line of the user's code that called the package."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _is_inside(frame.f_globals):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def warnings_are_ignored() -> bool:
    """Whether no warning would be shown or recorded, as with ``warnings.simplefilter("ignore")``.

    Estimators then skip computations that only serve a warning.
    """
    return bool(warnings.filters) and warnings.filters[0] == ("ignore", None, Warning, None, 0)


def _is_inside(scope: dict) -> bool:
    return str(scope.get("__name__")).partition(".")[0] in _INSIDE
