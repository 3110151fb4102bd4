"""Warnings and errors that are this package's own; all others are scikit-learn's or Python's."""

import sys
import warnings

__all__ = [
    "DataUnavailable", "DegenerateClusterWarning", "InputError", "SingleFeatureWarning", "one_line",
    "warn",
]  # fmt: skip


class DegenerateClusterWarning(UserWarning):
    """A clustering has fewer non-empty clusters, or less structure, than was asked for.

    Estimators also issue it for clusters of one or two samples if there are 50 or more samples per
    cluster. It is a result and not a failure: the estimator is fitted, ``n_clusters_`` says how
    many clusters hold rows, and no value is NaN.

    Examples
    --------
    >>> import warnings
    >>> from nrprob import DegenerateClusterWarning
    >>> with warnings.catch_warnings():  # where fewer clusters than asked for will not do
    ...     warnings.simplefilter("error", DegenerateClusterWarning)
    """


class SingleFeatureWarning(UserWarning):
    """One discrete feature, such as a boolean column, determines the clusters."""


class InputError(ValueError):
    """What a person wrote (a command line, a model file, a data file) cannot be used.

    Its message is one line for that person; the command line prints it without a traceback.
    """


class DataUnavailable(InputError):
    """A data set is neither on this machine nor to be had; says how to get it."""


def one_line(error: BaseException) -> str:
    """What kind of error it is, and what it says, without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


# Whose calls lie between what warns and the user's own line.
_INSIDE = ("nrprob", "sklearn", "contextlib")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called the package, however deep within it the cause is found."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _inside(frame.f_globals):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _inside(scope: dict) -> bool:
    return str(scope.get("__name__")).partition(".")[0] in _INSIDE
