"""An example of a new family of features: Poisson counts, as described in CONTRIBUTING.

A count y with mean m costs m - y log m. The logarithm of y! is omitted, since it does not depend on
the clustering.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from nrprob.statistics import families, links
from nrprob.statistics.costs import SeparableCost
from nrprob.statistics.features import raise_where
from nrprob.statistics.xlogx import safe_log, xlogx


def counts(read, x):
    """Raw counts are their own statistics."""
    raise_where(x, lambda v: v < 0, "features='poisson' needs counts", "set features='gaussian'")
    return x


POISSON = families.Family(
    "poisson",
    # T draws of a feature in rows of mass w cost -T log(T / w), summed over features.
    cost=SeparableCost(lambda x: -xlogx(x), lambda total, w: total * safe_log(w)),
    statistics=counts,
    fit=lambda x: families.FeatureMap("poisson"),
    # The means sum to the counts for all clusters, and are omitted.
    row_constant=lambda x: np.asarray(x.sum(1), float).reshape(-1),
    constant=lambda rows: rows.totals()[:, :-1].sum().astype(jnp.float64),
    scale=lambda rows: rows.totals()[:, :-1].sum() / rows.mass.sum(),
    # The loss of a count at the linear predictor eta is exp(eta) - y eta.
    link=replace(links.log, base=lambda y: 0 * y[:, 0], scale=lambda varying, base: varying),
)
families.register_family(POISSON)
