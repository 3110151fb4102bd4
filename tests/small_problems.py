"""Small data sets, and the terms of every method on them, for the tests of the engines."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.optimise.solve import Settings
from nrprob.methods.bottleneck import ccib, ib
from nrprob.statistics import families
from nrprob.statistics import terms as term_module
from nrprob.statistics.rows import Dense, make_layout, make_rows

FAMILIES = ("multinomial", "bernoulli", "gaussian")
# All data sets have one shape, to limit compilation: rows, features, known groups, clusters.
N, M, L, K = 60, 6, 3, 4
WEIGHT, GAMMA = 0.3, 2.0

cells_of = jax.jit(lambda rows, w: rows.cells(w))
adjoint_of = jax.jit(lambda rows, g: rows.adjoint(g))
score_of = jax.jit(term_module.membership_gradient)
# One program each, since separate operations would each be compiled.
residual_term = jax.jit(ccib.residual_term)
_pooled_term = partial(jax.jit, static_argnames="family")(
    lambda rows, family: families.feature_term(rows, family, by_group=False)
)


def blocks(rows, of):
    """Blocks of dense rows as records."""
    share = None if rows.share is None else rows.share[of]
    x = Dense(rows.x.x[of])
    return replace(
        rows, x=x, mass=rows.mass[of], number=rows.number[of], group=rows.group[of], share=share
    )


def feature_term(rows, family, *, by_group):
    return replace(_pooled_term(rows, family), by_group=by_group)


@partial(jax.jit, static_argnames="family")
def side_terms(rows, gamma, family):
    """Terms of the bottleneck with side information, with their weights."""
    side = ib.SideInformation(family)(
        rows, Settings(K, 1, method=ib.SideInformationParameters(gamma))
    )
    weights = side.weigh(jnp.ones(len(side.terms), gamma.dtype))
    return tuple(replace(t, weight=weights[i]) for i, t in enumerate(side.terms))


def features(family, seed=0, n=N, m=M):
    """Rows for a cost: proportions, values in [0, 1], or real numbers of any sign."""
    rng = np.random.default_rng(seed)
    centre = rng.integers(3, size=n)
    if family == "multinomial":
        p = rng.dirichlet(np.ones(m), 3)[centre]
        return np.stack([rng.multinomial(12, row) for row in p]) / 12
    if family == "bernoulli":
        p = rng.random((3, m))[centre]
        return 0.1 * p + 0.9 * (rng.random((n, m)) < p)
    return rng.normal(size=(n, m)) + rng.normal(size=(3, m))[centre]


def groups(seed=0, n=N, n_groups=L):
    """Unbalanced known groups in random order, each of them present."""
    rng = np.random.default_rng(seed + 100)
    z = rng.choice(n_groups, n, p=np.arange(1, n_groups + 1) / np.arange(1, n_groups + 1).sum())
    z[:n_groups] = np.arange(n_groups)
    return z


def masses(seed=0, n=N):
    return np.random.default_rng(seed + 200).uniform(0.2, 2.0, n)


def memberships(kind, seed=0, n=N, k=K, z=None):
    """Soft or hard memberships, some with empty cells or empty clusters."""
    rng = np.random.default_rng(seed + 300)
    if kind == "soft":
        return rng.dirichlet(np.ones(k), n)
    r = np.eye(k)[rng.integers(k, size=n)]
    if kind == "empty cells":  # cluster 1 has no row of group 0
        r = np.eye(k)[np.where((r.argmax(1) == 1) & (z == 0), 0, r.argmax(1))]
    if kind == "empty clusters":
        r = np.eye(k)[r.argmax(1) % (k - 2)]
    return r


def laid_out(x, z=None, n_groups=None, **kwargs):
    """Layout and rows of features ``x``, as JAX arrays."""
    z = np.zeros(x.shape[0], int) if z is None else z
    n_groups = int(z.max()) + 1 if n_groups is None else n_groups
    blocked = 1 if kwargs.get("share") is not None else n_groups
    layout = make_layout(z if blocked > 1 else np.zeros(x.shape[0], int), blocked)
    # jnp.asarray would compile a program for every shape.
    return layout, jax.device_put(make_rows(x, layout, n_groups, **kwargs))


def within_variance(x, z, mass):
    """Mean over features of the variance within groups, by which `reference` scales residuals."""
    scatter = 0.0
    for g in np.unique(z):
        inside = z == g
        mean = np.average(x[inside], axis=0, weights=mass[inside])
        scatter = scatter + mass[inside] @ (x[inside] - mean) ** 2
    return float((scatter / mass.sum()).mean())


def problem(kind, rows, family, x, z, mass):
    """Terms of a method, and the arguments with which `reference.objective` computes the same."""
    dtype = rows.mass.dtype

    def weighted(term, weight):
        weight = jax.device_put(np.asarray(weight, dtype))
        return term_module.Term(weight, term.constant, term.view, term.cost, term.by_group)

    if kind == "IB":
        return (feature_term(rows, family, by_group=False),), {"z": None}
    conditional = feature_term(rows, family, by_group=True)
    if kind == "CIB":
        return (conditional,), {"z": z}
    if kind == "marginal":
        coordination = weighted(feature_term(rows, family, by_group=False), WEIGHT)
        return (conditional, coordination), {
            "z": z,
            "coordination": "marginal",
            "weight": WEIGHT,
        }
    if kind == "residual":
        # The reference divides the residuals by the root of their mean variance.
        return (conditional, weighted(residual_term(rows), WEIGHT)), {
            "z": z,
            "coordination": "residual",
            "scale": "common",
            "weight": WEIGHT * within_variance(x, z, mass),
        }
    side = side_terms(rows, np.asarray(GAMMA, dtype), family)
    terms = tuple(weighted(t, t.weight) for t in side)
    return terms, {"z": z, "gamma": GAMMA}


KINDS = ("IB", "CIB", "marginal", "residual", "side")
