"""One of every estimator, and of the kinds that compute in another way, with little to do.

A new estimator joins the tests of the contract by its line in `ENTRIES`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from nrprob import (
    ADFT,
    CAMI,
    CCIB,
    CECIB,
    CMBC,
    COALA,
    IB,
    IBSI,
    NACI,
    CondEns,
    ConstrainedMixture,
    ConvEM,
    COPKMeans,
    CrossPartition,
    DecKMeans,
    MDLConstrained,
    MDLMixture,
    MDLMultiView,
    MixtureEM,
    Orthogonalization,
    PartitionKMeans,
    ResidualMixture,
    ResidualSpectral,
    SemiSupervisedFCM,
    SemiSupervisedSpectral,
)
from nrprob.batch.registry import METHODS


@dataclass(frozen=True)
class Entry:
    """One estimator: as our own contract tries it, on three clusters, and as scikit-learn does."""

    ours: Any
    theirs: Any


QUICK = {"n_init": 2, "random_state": 0}
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
        MDLMixture(
            covariance="tied",
            num_warmup=2,
            num_samples=8,
            num_chains=2,
            num_split_merge=0,
            random_state=0,
        ),
        MDLMixture(energy="nml", num_split_merge=2, **_SAMPLED),
    ),
    "mdl_multiview": Entry(MDLMultiView(3, **QUICK), MDLMultiView(n_init=2)),
    "mdl_constrained": Entry(MDLConstrained(3, **QUICK), MDLConstrained(n_init=4)),
    "cop_kmeans": Entry(COPKMeans(3, **QUICK), COPKMeans(n_init=4)),
    "cross_partition": Entry(CrossPartition(3, tol=1e-4, **QUICK), CrossPartition(max_iter=50)),
    "cecib": Entry(CECIB(3, **QUICK), CECIB(3, n_init=2)),
    "naci": Entry(NACI(3, random_state=0), NACI()),
    "coala": Entry(COALA(3, random_state=0), COALA()),
    "constrained_mixture": Entry(ConstrainedMixture(3, **QUICK), ConstrainedMixture(n_init=2)),
    "partition_kmeans": Entry(PartitionKMeans(3, **QUICK), PartitionKMeans(n_init=4)),
    "semi_supervised_fcm": Entry(SemiSupervisedFCM(3, **QUICK), SemiSupervisedFCM(n_init=2)),
    "semi_supervised_spectral": Entry(
        SemiSupervisedSpectral(3, **QUICK), SemiSupervisedSpectral(n_init=4)
    ),
    "residual-spectral": Entry(
        ResidualSpectral(3, damp="none", members=1, **QUICK),
        ResidualSpectral(members=2, n_init=2),
    ),
    "residual-mixture": Entry(
        ResidualMixture(3, n_init=4, whitening_exponents=(0.0,), random_state=0),
        ResidualMixture(n_init=1, whitening_exponents=(0.5,), aligned=False, warm_up=False),
    ),
    "orthogonalization": Entry(Orthogonalization(3, **QUICK), Orthogonalization(n_init=2)),
    "adft": Entry(ADFT(3, **QUICK), ADFT(n_init=2)),
    "dec_kmeans": Entry(DecKMeans(3, lam=0.1, **QUICK), DecKMeans(n_init=2)),
    "conv_em": Entry(ConvEM(3, **QUICK), ConvEM(n_init=2)),
    "cami": Entry(CAMI(3, **QUICK), CAMI(n_init=2)),
}


# Kinds that compute in another way: the name of the method, and its parameters.
KINDS = {
    "ccib of models": ("ccib", {"multi": "additive"}),
    "condens of adjusted rows": ("condens", {"extension": "adjusted"}),
    "ib that merges": ("ib", {"solver": "agglomerative"}),
    "ib that splits": ("ib", {"solver": "split"}),
    "naci of present information": ("naci", {"normaliser": "current"}),
    "naci of a sample": ("naci", {"approx": "subsample", "n_subsample": 20}),
}


def every_kind():
    """Name of the method, and one estimator, of all of them and of their other kinds."""
    kinds = {name: (name, {}) for name in ENTRIES} | KINDS
    return {
        kind: (name, clone(ENTRIES[name].ours).set_params(**parameters))
        for kind, (name, parameters) in kinds.items()
    }


def few_rows(name, scale=1.0):
    """Rows (60, 4) of three clusters that suit a method, in float32, and what is known of them."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    X = rng.normal(size=(60, 4)) + 6 * np.eye(4)[labels]
    if name in ("residual-spectral", "cross_partition"):
        X = np.maximum(X, 0)
    known = METHODS[name].capabilities.keywords(rng.integers(2, size=60))
    return (X * scale).astype(np.float32), known
