"""Write constructors of estimators from annotated parameters, and check parameter values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, dataclass_transform, get_type_hints

import numpy as np

from nrprob.codelength import exponential_complexity
from nrprob.data.validation import (
    CLUSTERS,
    ITERATIONS,
    LARGEST,
    check_choice,
    check_flag,
    check_number,
    check_verbosity,
)
from nrprob.estimator import docs
from nrprob.exceptions import short_repr
from nrprob.statistics import families

Estimator = TypeVar("Estimator")


class Number(NamedTuple):
    """Annotation of a parameter whose value is a number or, in some cases, a word.

    The number lies between ``low`` and ``high``, both included. With ``integer``, it must be an
    integer; with ``infinite``, infinity is allowed as well. The value may also be one of ``words``
    and, with ``optional``, None.
    """

    low: float
    high: float
    integer: bool = False
    infinite: bool = False
    words: tuple[str, ...] = ()
    optional: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError or TypeError unless the parameter ``name`` may have this value."""
        if self.optional and value is None:
            return
        if self.words and isinstance(value, str):
            check_choice(
                name, value, self.words, "or an integer" if self.integer else "or a number"
            )
        else:
            check_number(
                name, value, low=self.low, high=self.high,
                integer=self.integer, infinite=self.infinite,
            )  # fmt: skip


class Choice(NamedTuple):
    """Annotation of a parameter whose value is one of ``words`` or, with ``optional``, None.

    ``words`` may be a function without arguments that returns the words.
    """

    words: tuple[str, ...] | Callable[[], tuple[str, ...]]
    optional: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless the parameter ``name`` may have this value."""
        if self.optional and value is None:
            return
        words = self.words() if callable(self.words) else self.words
        check_choice(name, value, words, "or None" if self.optional else "")


class Checked(NamedTuple):
    """Annotation of a parameter whose value is checked by a function.

    The function ``check(name, value)`` raises an error if the parameter ``name`` may not have the
    value.
    """

    check: Callable[[str, Any], None]


def _check_scale_range(name: str, value: Any) -> None:
    bounds = np.asarray(value, dtype=object)
    if bounds.shape != (2,):
        raise ValueError(f"{name} must be two numbers; got {short_repr(value)}; pass (low, high)")
    for bound in bounds.tolist():
        check_number(name, bound, low=1e-12, high=1e12)
    exponential_complexity(1, *bounds.tolist())  # raises for bounds in the wrong order


def _refuse_auto(name: str, value: Any) -> None:
    if isinstance(value, str) and value == "auto":
        raise ValueError(
            f"{name}='auto' needs a density, by which held-out rows are scored; got an estimator "
            "without a density; pass a number, or use ConditionalMixture or MixtureEM for "
            "continuous features"
        )


# Annotations of parameters that several estimators share.
Clusters = Annotated[int, Checked(_refuse_auto), Number(1, CLUSTERS, integer=True)]
ClustersOrAuto = Annotated[Any, Number(1, CLUSTERS, integer=True, words=("auto",))]
Count = Annotated[int, Number(1, ITERATIONS, integer=True)]
Tolerance = Annotated[float, Number(0, 1)]
Flag = Annotated[bool, Checked(check_flag)]
Verbosity = Annotated[int, Checked(check_verbosity)]
Features = Annotated[str, Choice(lambda: ("auto", *families.family_names()))]
Threshold = Annotated[float | None, Number(-LARGEST, LARGEST, optional=True)]
Temperature = Annotated[float | None, Number(1e-9, 1e12, infinite=True, optional=True)]
Cooling = Annotated[float, Number(1.01, 1e6)]
Noise = Annotated[float, Number(0, 10)]
Combination = Annotated[str, Choice(("product", "additive"))]
ScaleRange = Annotated[tuple[float, float], Checked(_check_scale_range)]


@dataclass_transform(eq_default=False)
def constructor(cls: type[Estimator]) -> type[Estimator]:
    """Write the constructor of an estimator from the annotated attributes of its class.

    This class decorator works like `dataclasses.dataclass`, but comparison and ``repr`` of
    scikit-learn remain. The constructor stores parameters unchanged, as scikit-learn requires.
    Parameters after a line ``_: KW_ONLY`` are keyword-only. Lines ``<name>`` of the docstring are
    replaced by shared entries; see `nrprob.estimator.docs`.
    """
    cls = dataclass(eq=False, repr=False, match_args=False)(cls)
    types = get_type_hints(cls)  # without the ranges, for signatures
    cls.__init__.__annotations__.update(
        {name: types[name] for name in cls.__init__.__annotations__ if name in types}
    )
    if cls.__doc__:
        cls.__doc__ = docs.fill_shared_entries(cls.__doc__, cls)
    return cls


@cache
def parameter_checks(cls: Any) -> dict[str, tuple[Any, ...]]:
    """Annotations (`Number`, `Choice` or `Checked`) of the parameters of a class, by name."""
    hints = get_type_hints(cls, include_extras=True)
    names = getattr(cls, "__dataclass_fields__", ())
    return {name: getattr(hints[name], "__metadata__", ()) for name in names}


def check_parameters(estimator: Any) -> None:
    """Check the values of all parameters of an estimator against their annotations."""
    for name, checks in parameter_checks(type(estimator)).items():  # type: ignore[arg-type]
        for declared in checks:
            declared.check(name, getattr(estimator, name))
