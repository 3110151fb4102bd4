"""Families of features: the cell cost, statistics, validation and link function of a feature type.

Shapes: n samples of m features. Some attributes of `Family` are optional. A method that needs such
an attribute passes its name to `get_family`, which raises ValueError for families without it.
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
    """Map from raw features to statistics, fitted by `fit_features`.

    Attributes
    ----------
    features : name of the family
    threshold : values above the threshold become 1, all other values 0; None for no binarisation
    centre : (m,) mean that is subtracted from Gaussian features; None for sparse features and other
        families
    scale : divisor of Gaussian features: the square root of the mean variance of the features
    """

    features: str
    threshold: float | None = None
    centre: np.ndarray | None = None
    scale: float = 1.0

    def __call__(self, x: Any) -> Any:
        """Return the statistics (n, m) of raw features ``x`` (n, m); sparse arrays stay sparse.

        Raises
        ------
        ValueError
            If values are outside the domain of the family.
        """
        if self.threshold is not None:
            return features.binarise(x, self.threshold)
        return get_family(self.features).statistics(self, x)


@dataclass(frozen=True)
class Family:
    """Model of one type of features.

    Attributes
    ----------
    name : value of the parameter ``features`` of estimators
    cost : cell cost; see `nrprob.statistics.costs`
    statistics : function ``(feature_map, x) -> (n, m)`` of raw features ``x``; raises ValueError
        for values outside the domain of the family
    fit : function ``x -> FeatureMap``; weights (n,) of the samples are an optional second argument
    row_constant : function ``statistics -> (n,)``: the part of the objective per sample that does
        not depend on the partition
    constant : compiled function from `Rows` to the sum of ``row_constant`` over all samples
    scale : compiled function from `Rows` to the order of magnitude of the leading curvature of the
        cost with one cluster; curvatures that are tiny relative to it count as rounding errors
    link : link function of generalised linear models; None if the family has no such models
    """

    name: str
    cost: Cost
    statistics: Callable[[FeatureMap, Any], Any]
    fit: Callable[..., FeatureMap]
    row_constant: Callable[[Any], np.ndarray] = lambda x: np.zeros(x.shape[0])
    constant: Callable[[Rows], jax.Array] = lambda rows: jnp.zeros((), jnp.float64)
    scale: Callable[[Rows], jax.Array] = lambda rows: jnp.ones((), jnp.float64)
    link: Link | None = None


_FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> None:
    """Register a family as a value of the parameter ``features``.

    ``features="auto"`` selects among the families of this package only.

    Parameters
    ----------
    family : Family

    Raises
    ------
    ValueError
        If another family has this name.
    """
    if _FAMILIES.setdefault(family.name, family) is not family:
        raise ValueError(
            f"names of families must be unique; got {family.name!r} twice; choose another name"
        )


def family_names() -> tuple[str, ...]:
    """Names of all families."""
    return tuple(_FAMILIES)


def get_family(name: str, needed: str = "") -> Family:
    """Return the family ``name``; ``needed`` names an attribute that the family must have.

    Raises
    ------
    ValueError
        If no family has this name, or if the family lacks the attribute.
    """
    if name not in _FAMILIES:
        raise ValueError(
            f"features must be the name of a family; got {name!r}; choose from {family_names()}"
        )
    family = _FAMILIES[name]
    if needed and getattr(family, needed) is None:
        others = [other.name for other in _FAMILIES.values() if getattr(other, needed) is not None]
        raise missing_property_error(name, needed, others)
    return family


def missing_property_error(name: str, what: str, others: Any) -> ValueError:
    """Make the error for a family that lacks an attribute which a method needs.

    ``name`` is the family, ``what`` the attribute, and ``others`` are families that have it.
    """
    return ValueError(
        f"features={name!r} has no {what}, which this method needs; choose features= from "
        f"{', '.join(map(repr, others))}"
    )


def fit_features(
    x: Any, name: str, binarize: float | None, weights: np.ndarray | None = None
) -> FeatureMap:
    """Fit the feature map of the family ``name`` to samples ``x`` (n, m).

    The name "auto" selects the family by the values. If ``binarize`` is not None, features are
    binarised at this threshold, and the family is "bernoulli". ``weights`` (n,) are weights of the
    samples.
    """
    if binarize is not None:
        return FeatureMap("bernoulli", float(binarize))
    family = get_family(feature_types.guess_features(x) if name == "auto" else name)
    return family.fit(x) if weights is None else family.fit(x, weights)


def sum_of_squares(rows: Rows) -> jax.Array:
    """Sum of the squares of all features over all samples, weighted by the sample masses."""
    centre = jnp.zeros((rows.n_groups, rows.x.n_statistics), rows.mass.dtype)
    return rows.scatter(centre)[:-1].sum()


def half_squares(x: Any) -> np.ndarray:
    """Half the sum of squares (n,) of the features of every sample."""
    square = x.multiply(x) if sparse.issparse(x) else x * x
    return 0.5 * np.asarray(square.sum(1)).reshape(-1)


def feature_term(rows: Rows, name: str, *, by_group: bool) -> Term:
    """Make the term of the conditional entropy of the features, given the clusters.

    With ``by_group``, the entropy is conditioned on the clusters and the known groups.
    ``name`` is the family of the features.
    """
    family = get_family(name)
    weight = jnp.ones((), rows.mass.dtype)
    return Term(weight, family.constant(rows), None, family.cost, by_group, family.scale(rows))


register_family(
    Family(
        "multinomial",
        costs.multinomial_cost,
        lambda feature_map, x: features.to_proportions(x),
        lambda x, weights=None: FeatureMap("multinomial"),
        link=links.log,
    )
)
register_family(
    Family(
        "bernoulli",
        costs.bernoulli_cost,
        lambda feature_map, x: features.check_unit_interval(x),
        lambda x, weights=None: FeatureMap("bernoulli"),
        scale=lambda rows: jnp.ones((), jnp.float64) * rows.x.n_statistics,
        link=links.logit,
    )
)
register_family(
    Family(
        "gaussian",
        costs.gaussian_cost,
        lambda feature_map, x: features.standardise(x, feature_map.centre, feature_map.scale),
        lambda x, weights=None: FeatureMap(
            "gaussian", None, *features.fit_centre_and_scale(x, weights)
        ),
        row_constant=half_squares,
        constant=lambda rows: 0.5 * sum_of_squares(rows),
        scale=lambda rows: sum_of_squares(rows) / rows.mass.sum(),
        link=links.identity,
    )
)
