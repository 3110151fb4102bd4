"""Families of features: cost, encoding, validation and link of each.

A function that needs more than `Family` provides refuses a family that lacks it, by `get_family`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from nrprob.data import feature_types
from nrprob.statistics import costs, features, links
from nrprob.statistics.costs import Cost
from nrprob.statistics.links import Link
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Term


@dataclass(frozen=True)
class FeatureMap:
    """How raw rows become statistics; made by `fit_features`, reused for new rows.

    Attributes
    ----------
    features : name of the family
    threshold : features above it count as 1; None leaves them
    centre : (m,) subtracted, or None
    scale : divisor of gaussian features, the root of their mean variance
    """

    features: str
    threshold: float | None = None
    centre: np.ndarray | None = None
    scale: float = 1.0

    def __call__(self, x: Any) -> Any:
        """Return the statistics (n, m) of raw rows, in their own kind of array.

        Raises
        ------
        ValueError
            If values do not fit the model of the features.
        """
        if self.threshold is not None:
            return features.binarise(x, self.threshold)
        return get_family(self.features).statistics(self, x)


@dataclass(frozen=True)
class Family:
    """What there is to know of a kind of features.

    Attributes
    ----------
    name : value of the parameter ``features``
    cost : of a cell, from the sum of its rows' statistics; see `nrprob.statistics.costs`
    statistics : statistics (n, m) of raw rows, given a `FeatureMap`; raises on rows that are none
    fit : the `FeatureMap` of raw rows
    row_constant : what a row (n,) of statistics adds to the objective in any cell, beside its cost
    constant : the sum of these over all rows, compiled
    scale : size of the curvature if nothing were explained, compiled
    link : of generalised linear models; None where there are none
    """

    name: str
    cost: Cost
    statistics: Callable[[FeatureMap, Any], Any]
    fit: Callable[[Any], FeatureMap]
    row_constant: Callable[[Any], np.ndarray] = lambda x: np.zeros(x.shape[0])
    constant: Callable[[Rows], jax.Array] = lambda rows: jnp.zeros((), jnp.float64)
    scale: Callable[[Rows], jax.Array] = lambda rows: jnp.ones((), jnp.float64)
    link: Link | None = None


_FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> None:
    """Make a family known by its name, as a value of the parameter ``features``.

    "auto" chooses among the families of this package only.

    Parameters
    ----------
    family : Family

    Raises
    ------
    ValueError
        If another family has the name.
    """
    if _FAMILIES.setdefault(family.name, family) is not family:
        raise ValueError(
            f"there is a family of this name; got {family.name!r}; choose another name"
        )


def family_names() -> tuple[str, ...]:
    """Names of all families."""
    return tuple(_FAMILIES)


def get_family(name: str, needed: str = "") -> Family:
    """Family of a name; ``needed`` is an attribute that it has to have.

    Raises
    ------
    ValueError
        If there is none, or it lacks what is needed.
    """
    if name not in _FAMILIES:
        raise ValueError(f"no such family of features; got {name!r}; choose from {family_names()}")
    family = _FAMILIES[name]
    if needed and getattr(family, needed) is None:
        others = [other.name for other in _FAMILIES.values() if getattr(other, needed) is not None]
        raise missing_property_error(name, needed, others)
    return family


def missing_property_error(name: str, what: str, others: Any) -> ValueError:
    """Return the error for a family that does not have what a method needs."""
    return ValueError(
        f"features={name!r} has no {what}, which this method needs; choose features= from "
        f"{', '.join(map(repr, others))}"
    )


def fit_features(x: Any, name: str, binarize: float | None) -> FeatureMap:
    """Choose and fit the model of the features; "auto" looks at the values."""
    if binarize is not None:
        return FeatureMap("bernoulli", float(binarize))
    return get_family(feature_types.guess_features(x) if name == "auto" else name).fit(x)


def sum_of_squares(rows: Rows) -> jax.Array:
    """Sum of the squares of all features."""
    centre = jnp.zeros((rows.n_groups, rows.x.n_statistics), rows.mass.dtype)
    return rows.scatter(centre)[:-1].sum()


def half_squares(x: Any) -> np.ndarray:
    """Half the sum of the squares (n,) of rows."""
    square = x.multiply(x) if sparse.issparse(x) else x * x
    return 0.5 * np.asarray(square.sum(1)).reshape(-1)


def feature_term(rows: Rows, name: str, *, by_group: bool) -> Term:
    """Conditional entropy of the features given the clusters (and the known groups)."""
    family = get_family(name)
    one = jnp.ones((), rows.mass.dtype)
    return Term(one, family.constant(rows), None, family.cost, by_group, family.scale(rows))


register_family(
    Family(
        "multinomial",
        costs.multinomial_cost,
        lambda read, x: features.to_proportions(x),
        lambda x: FeatureMap("multinomial"),
        link=links.log,
    )
)
register_family(
    Family(
        "bernoulli",
        costs.bernoulli_cost,
        lambda read, x: features.check_unit_interval(x),
        lambda x: FeatureMap("bernoulli"),
        scale=lambda rows: jnp.ones((), jnp.float64) * rows.x.n_statistics,
        link=links.logit,
    )
)
register_family(
    Family(
        "gaussian",
        costs.gaussian_cost,
        lambda read, x: features.standardise(x, read.centre, read.scale),
        lambda x: FeatureMap("gaussian", None, *features.fit_centre_and_scale(x)),
        row_constant=half_squares,
        constant=lambda rows: 0.5 * sum_of_squares(rows),
        scale=lambda rows: sum_of_squares(rows) / rows.mass.sum(),
        link=links.identity,
    )
)
