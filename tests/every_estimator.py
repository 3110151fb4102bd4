"""One of every estimator, and of the kinds that compute in another way, with little to do.

A new estimator joins the tests of the contract by its line in `ENTRIES`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob import (
    CCIB,
    CMBC,
    IB,
    IBSI,
    CondEns,
    COPKMeans,
    CrossPartition,
    MDLConstrained,
    MDLMixture,
    MDLMultiView,
    MixtureEM,
    ResidualMixture,
    ResidualSpectral,
)
from nrprob.batch.registry import METHODS


@dataclass(frozen=True)
class Entry:
    """One estimator: as our own contract tries it, on three clusters, and as scikit-learn does."""

    ours: Any
    theirs: Any


QUICK = {"n_init": 2, "random_state": 0}
DRAWS = {"num_warmup": 4, "num_samples": 4, "num_chains": 2, "random_state": 0}
# Those that take known structure.
KNOWN = {
    "CCIB": CCIB(2, **QUICK),
    "CCIB of models": CCIB(2, multi="additive", **QUICK),
    "IBSI": IBSI(2, gamma=1.0, **QUICK),
    "CMBC": CMBC(2, **QUICK),
    "CondEns": CondEns(2, n_init_base=2, extension="adjusted", **QUICK),
    "ResidualMixture": ResidualMixture(2, metrics=(0.0,), n_init=8, random_state=0),
    "ResidualSpectral": ResidualSpectral(2, members=2, random_state=0),
}
ALL = KNOWN | {
    "IB": IB(2, **QUICK),
    "IB that merges": IB(2, solver="agglomerative"),
    "MixtureEM": MixtureEM(2, **QUICK),
    "MDLMixture": MDLMixture(max_clusters=4, variance_floor=0.2, **DRAWS),
    "MDLMixture of six moves": MDLMixture(
        max_clusters=4, variance_floor=0.2, kernel="six-move", **DRAWS
    ),
    "MDLMultiView": MDLMultiView(2, n_init=2, max_clusters=2, random_state=0),
    "MDLConstrained": MDLConstrained(2, **QUICK),
    "COPKMeans": COPKMeans(2, **QUICK),
    "CrossPartition": CrossPartition(2, max_iter=200, **QUICK),
}


_SAMPLED = {"num_warmup": 50, "num_samples": 50, "num_chains": 2, "variance_floor": 0.2}
# By the names of the registry.
ENTRIES = {
    "ib": Entry(IB(3, **QUICK), IB(n_init=2)),
    "ibsi": Entry(IBSI(3, gamma=1.0, **QUICK), IBSI(4, gamma=1.0, n_init=2)),
    "ccib": Entry(CCIB(3, **QUICK), CCIB(n_init=2)),
    "cmbc": Entry(
        CMBC(3, binarize=0.0, max_iter=20, **QUICK),
        CMBC(binarize=0.0, n_init=2, max_iter=50, tol=1e-4),
    ),
    "condens": Entry(CondEns(3, n_init_base=2, **QUICK), CondEns(n_init=2, n_init_base=2)),
    "mixture": Entry(MixtureEM(3, covariance="diag", **QUICK), MixtureEM(2, **QUICK)),
    "mdl_mixture": Entry(
        MDLMixture(num_warmup=2, num_samples=8, num_chains=2, random_state=0),
        MDLMixture(**_SAMPLED),
    ),
    "mdl_multiview": Entry(MDLMultiView(3, **QUICK), MDLMultiView(n_init=2)),
    "mdl_constrained": Entry(MDLConstrained(3, **QUICK), MDLConstrained(n_init=4)),
    "cop_kmeans": Entry(COPKMeans(3, **QUICK), COPKMeans(n_init=4)),
    "cross_partition": Entry(CrossPartition(3, **QUICK), CrossPartition(max_iter=500)),
    "residual-spectral": Entry(
        ResidualSpectral(3, damp="none", members=1, **QUICK),
        ResidualSpectral(members=2, n_init=2),
    ),
    "residual-mixture": Entry(
        ResidualMixture(3, n_init=4, metrics=(0.0,), random_state=0),
        ResidualMixture(n_init=1, metrics=(0.5,), aligned=False, warm_up=False),
    ),
}


def few_rows(name, scale=1.0):
    """Rows (60, 4) of three clusters that suit a method, in float32, and what is known of them."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    X = rng.normal(size=(60, 4)) + 6 * np.eye(4)[labels]
    if name in ("residual-spectral", "cross_partition"):
        X = np.maximum(X, 0)
    known = {METHODS[name].known_as: rng.integers(2, size=60)} if METHODS[name].takes_known else {}
    return (X * scale).astype(np.float32), known
