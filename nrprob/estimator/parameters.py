"""Constructors written as lists of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

from nrprob.estimator import docs

Estimator = TypeVar("Estimator")


@dataclass_transform(eq_default=False)
def parameters(cls: type[Estimator]) -> type[Estimator]:
    """Make the annotated attributes of an estimator's class the parameters of its constructor.

    It stores them unchanged, as scikit-learn's conventions ask, and those after a line
    ``_: KW_ONLY`` are given by name. Comparison and text stay those of scikit-learn. A line
    ``<name>`` of the docstring becomes the entry of `nrprob.estimator.docs.SHARED`.
    """
    cls = dataclass(eq=False, repr=False, match_args=False)(cls)
    if cls.__doc__:
        cls.__doc__ = docs.filled(cls.__doc__, cls)
    return cls
