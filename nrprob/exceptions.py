"""Warnings and errors that are this package's own; all others are scikit-learn's or Python's."""

__all__ = ["DataUnavailable", "DegenerateClusterWarning", "InputError"]


class DegenerateClusterWarning(UserWarning):
    """A clustering has fewer non-empty clusters, or less structure, than was asked for.

    It is a result and not a failure: the estimator is fitted, ``n_clusters_`` says how many
    clusters hold rows, and no value is NaN.
    """


class InputError(ValueError):
    """What a person wrote (a command line, a model file, a data file) cannot be used.

    Its message is one line for that person; the command line prints it without a traceback.
    """


class DataUnavailable(InputError):
    """A data set is neither on this machine nor to be had; says how to get it."""
