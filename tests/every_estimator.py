"""One small instance of every estimator, and of variants that compute in another way.

A method in the list of `nrprob.methods` is included in the contract tests automatically.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from nrprob.batch.registry import METHODS


@dataclass(frozen=True)
class Entry:
    """One estimator, with parameters for our contract and for scikit-learn's checks."""

    ours: Any
    theirs: Any


QUICK = {"n_init": 2, "random_state": 0}
# Parameters of an estimator that differ from 3 clusters, two restarts and a seed, in our contract.
OURS = {
    "cmbc": {"binarize": 0.0, "max_iter": 20},
    "condens": {"n_init_base": 2},
    "mixture": {"covariance": "diag"},
    "mdl_mixture": {
        "covariance": "tied",
        "num_warmup": 2,
        "num_samples": 8,
        "num_chains": 2,
        "num_split_merge": 0,
    },
    "cross_partition": {"tol": 1e-4},
    "residual-spectral": {"damp": "none", "members": 1},
    "conditional-mixture": {"n_init": 4, "whitening_exponents": (0.0,)},
    "dec_kmeans": {"lam": 0.1},
}
# The same for scikit-learn's checks: parameters that differ from two restarts.
THEIRS = {
    "ibsi": {"n_clusters": 4},
    "cmbc": {"binarize": 0.0, "max_iter": 50, "tol": 1e-4},
    "condens": {"n_init_base": 2},
    "mixture": {"random_state": 0},
    "mdl_mixture": {
        "energy": "nml",
        "num_split_merge": 2,
        "num_warmup": 50,
        "num_samples": 50,
        "num_chains": 2,
        "variance_floor": 0.2,
    },
    "cross_partition": {"n_init": 1, "max_iter": 50},
    "cecib": {"n_clusters": 3},
    "residual-spectral": {"members": 2},
    "conditional-mixture": {
        "n_init": 1,
        "whitening_exponents": (0.5,),
        "aligned": False,
        "warm_up": False,
    },
    "mdl_constrained": {"n_init": 4},
    "cop_kmeans": {"n_init": 4},
    "partition_kmeans": {"n_init": 4},
    "semi_supervised_spectral": {"n_init": 4},
}


def _make(name, defaults, changes):
    """An estimator with the default parameters that it has, and 1 for required parameters."""
    method = METHODS[name]
    parameters = {key: value for key, value in defaults.items() if key in method.parameters}
    return method.load()(**dict.fromkeys(method.required, 1.0) | parameters | changes)


# Keys are the names of the registry.
ENTRIES = {
    name: Entry(
        _make(name, {"n_clusters": 3, **QUICK}, OURS.get(name, {})),
        _make(name, {"n_init": 2}, THEIRS.get(name, {})),
    )
    for name in METHODS
}


# Variants that compute in another way: the name of the method, and its parameters.
KINDS = {
    "ccib of models": ("ccib", {"multi": "additive"}),
    "condens of adjusted rows": ("condens", {"extension": "adjusted"}),
    "ib that merges": ("ib", {"solver": "agglomerative"}),
    "ib that splits": ("ib", {"solver": "split"}),
    "naci of present information": ("naci", {"normaliser": "current"}),
    "naci of a sample": ("naci", {"approx": "subsample", "n_subsample": 20}),
}


def every_kind():
    """Name of the method and one estimator, for all methods and their variants."""
    kinds = {name: (name, {}) for name in ENTRIES} | KINDS
    return {
        kind: (name, clone(ENTRIES[name].ours).set_params(**parameters))
        for kind, (name, parameters) in kinds.items()
    }


def few_rows(name, scale=1.0):
    """Rows (60, 4) of three clusters for a method, in float32, and their known structure."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    X = rng.normal(size=(60, 4)) + 6 * np.eye(4)[labels]
    if METHODS[name].capabilities.nonnegative:
        X = np.maximum(X, 0)
    known = METHODS[name].capabilities.keywords(rng.integers(2, size=60))
    return (X * scale).astype(np.float32), known
