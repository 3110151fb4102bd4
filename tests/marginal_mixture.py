r"""Labelled Gaussian mixture with known size in NumPyro, with the clusters of rows summed out.

This is the baseline of `nrprob.MDLMixture`: weights :math:`w \sim \mathrm{Dir}(a, \dots, a)`, and
for every component j the feature variances :math:`s_{jd}^2 \sim \mathrm{InvGamma}(\text{shape},
\text{scale})`, means :math:`\mu_{jd} \sim N(0, s_{jd}^2 / \kappa)` and probabilities of the classes
:math:`\pi_j \sim \mathrm{Dir}(b, \dots, b)`. A row with class y, or without one, has the likelihood

.. math:: f(x, y) = \sum_j w_j N(x; \mu_j, s_j^2)\, \pi_{jy}, \quad f(x) = \sum_j w_j N(x; \mu_j,
   s_j^2),

which is Yin (2007), eq. (4.4), with the class inside of the sum over components. NUTS samples it.

A partition of ``MDLMixture(energy="conjugate")`` with exactly K blocks has the same distribution as
the clusters of this model, *given that no component is empty*: the blocks of a partition are not
empty, and all k! permutations of labels are one partition. `log_none_empty` is the log probability
of this condition given parameters, which weights their draws; `draw_labels` samples the clusters.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import unconstrain_fn

from nrprob.settings import standard

MOST = 12  # maximum number of components for sums over 2^K subsets


class Prior(NamedTuple):
    """Hyperparameters, with the names of `nrprob.MDLMixture`."""

    concentration: float = 1.0
    class_concentration: float = 0.5
    mean_precision: float = 0.3
    variance_shape: float = 2.0
    variance_scale: float = 0.5


class Parameters(NamedTuple):
    """Draws (S, ...) of ``weights`` (K,), ``means`` and ``variances`` (K, d), ``classes`` (K, C).

    Without classes there is one, of probability 1.
    """

    weights: jax.Array
    means: jax.Array
    variances: jax.Array
    classes: jax.Array


class Run(NamedTuple):
    """Result of NUTS: draws (chains, draws, ...), and the number of divergent transitions."""

    parameters: Parameters
    n_divergent: int


def log_parts(parameters: Parameters, X: jax.Array, codes: jax.Array) -> jax.Array:
    """Log density (n, K) of rows (n, d) with classes (n,), -1 where unknown, and components."""
    weights, means, variances, classes = parameters
    squares = (X[:, None] - means) ** 2 / variances + jnp.log(2 * np.pi * variances)
    known = jnp.where(codes[:, None] >= 0, jnp.log(classes).T[jnp.maximum(codes, 0)], 0)
    return jnp.log(weights) - 0.5 * squares.sum(-1) + known


def marginal_model(
    X: jax.Array, codes: jax.Array, *, n_components: int, n_classes: int, prior: Prior
) -> None:
    """NumPyro model of rows (n, d), with classes (n,) that are -1 where unknown."""
    k, d = n_components, X.shape[1]
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(k, prior.concentration)))
    gamma = dist.InverseGamma(prior.variance_shape, prior.variance_scale)
    variances = numpyro.sample("variances", gamma.expand([k, d]).to_event(2))
    normal = dist.Normal(0, jnp.sqrt(variances / prior.mean_precision))
    means = numpyro.sample("means", normal.to_event(2))
    classes = jnp.ones((k, 1))
    if n_classes:
        each = dist.Dirichlet(jnp.full((k, n_classes), prior.class_concentration))
        classes = numpyro.sample("classes", each.to_event(1))
    parts = log_parts(Parameters(weights, means, variances, classes), X, codes)
    numpyro.factor("rows", jax.nn.logsumexp(parts, -1).sum())


def sample_marginal_mixture(
    X: Any,
    y: Any,
    n_components: int,
    *,
    prior: Prior | None = None,
    num_warmup: int = 500,
    num_samples: int = 1000,
    num_chains: int = 4,
    random_state: int = 0,
) -> Run:
    """Sample the parameters of the mixture by NUTS.

    Chains start at the clusters of one k-means run each: components of a mixture switch rarely, and
    a random start may keep two of them in one cluster forever. Every call compiles.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Standardised features, as in the prior of `MDLMixture`.
    y : array-like of int of shape (n_samples,)
        Classes from 0, -1 where unknown.
    n_components : int
    prior : Prior, optional
        By default the value of `MDLMixture`.
    num_warmup, num_samples, num_chains : int
    random_state : int

    Returns
    -------
    Run

    Raises
    ------
    ValueError
        If rows and classes do not match each other or the number of components, or are not finite.
    """
    from sklearn.cluster import KMeans

    X, y = _checked(X, y, n_components)
    prior = Prior() if prior is None else prior
    n_classes = int(y.max(initial=-1)) + 1
    starts = []
    for chain in range(num_chains):
        model = KMeans(n_components, n_init=1, random_state=random_state + chain).fit(X)
        starts.append(_moments(X, model.labels_, n_components, max(n_classes, 1)))
    start: Any = [np.stack(a) for a in zip(*starts, strict=True)]
    begin = dict(zip(Parameters._fields, start, strict=True))
    if not n_classes:
        del begin["classes"]
    with standard():
        settings = {"n_components": n_components, "n_classes": n_classes, "prior": prior}
        rows = jnp.asarray(X), jnp.asarray(y)
        # NumPyro starts from values on the whole real line.
        free = jax.vmap(lambda values: unconstrain_fn(marginal_model, rows, settings, values))(
            jax.tree.map(jnp.asarray, begin)
        )
        runs = MCMC(
            NUTS(marginal_model),
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=num_chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        if num_chains == 1:
            free = jax.tree.map(lambda a: a[0], free)
        runs.run(jax.random.PRNGKey(random_state), *rows, init_params=free, **settings)
        result = runs.get_samples(group_by_chain=True)
        if not n_classes:
            result["classes"] = jnp.ones((num_chains, num_samples, n_components, 1))
        divergent = int(runs.get_extra_fields()["diverging"].sum())
        return Run(Parameters(*(result[name] for name in Parameters._fields)), divergent)


def _checked(X: Any, y: Any, n_components: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = np.asarray(X, np.float64), np.asarray(y)
    if X.ndim != 2 or 0 in X.shape or not np.isfinite(X).all():
        raise ValueError(
            f"X has to be a finite table; got shape {X.shape}; remove or fill what is not a number"
        )
    if y.shape != X.shape[:1] or y.dtype.kind not in "iu" or y.min() < -1:
        raise ValueError(
            f"y holds one class per row, from 0, or -1; got shape {y.shape} and dtype {y.dtype} "
            f"for {X.shape[0]} rows; number the classes"
        )
    if not 1 <= n_components <= X.shape[0]:
        raise ValueError(
            f"there have to be 1 to {X.shape[0]} components for as many rows; got {n_components}; "
            "choose fewer"
        )
    return X, y.astype(np.int32)


def _moments(X: np.ndarray, labels: np.ndarray, k: int, n_classes: int) -> Parameters:
    """Initial parameters of given clusters, well inside their ranges."""
    one = np.eye(k)[labels].T
    size = one.sum(1, keepdims=True)
    means = one @ X / np.maximum(size, 1)
    variances = one @ X**2 / np.maximum(size, 1) - means**2
    weights = (size[:, 0] + 1) / (size.sum() + k)
    classes = np.full((k, n_classes), 1 / n_classes)
    return Parameters(weights, means, np.maximum(variances, 0.01), classes)


# Summaries of draws


@jax.jit
def log_likelihood(parameters: Parameters, X: jax.Array, codes: jax.Array) -> jax.Array:
    """Log likelihood (S,) of the rows, with their clusters summed out."""
    return jax.lax.map(
        lambda p: jax.nn.logsumexp(log_parts(p, X, codes), -1).sum(), parameters, batch_size=64
    )


@jax.jit
def log_none_empty(parameters: Parameters, X: jax.Array, codes: jax.Array) -> jax.Array:
    r"""Log probability (S,) that every component has a row, given parameters and rows.

    By inclusion and exclusion of the sets of components that are empty,
    :math:`\sum_E (-1)^{|E|} \prod_i p(z_i \notin E)`. Accurate unless the probability is itself
    within rounding, 1e-13 or so, of zero.

    Raises
    ------
    ValueError
        If there are too many components to sum over 2^K subsets.
    """
    k = parameters.weights.shape[-1]
    if k > MOST:
        raise ValueError(
            f"all subsets of the components are summed; got {k} components; use at most {MOST}"
        )
    full = np.array(list(product([True, False], repeat=k)))  # components that may have rows
    sign = jnp.asarray((-1.0) ** (~full).sum(1))

    def one(p):
        log_p = jax.nn.log_softmax(log_parts(p, X, codes), -1)
        allowed = jnp.where(full[:, None], log_p, -jnp.inf)
        total = jax.nn.logsumexp(allowed, -1).sum(-1)
        return jnp.log(jnp.clip((sign * jnp.exp(total)).sum(), 0, 1))

    return jax.lax.map(one, parameters)


@jax.jit
def draw_labels(key: jax.Array, parameters: Parameters, X: jax.Array, codes: jax.Array):
    """Clusters (S, n) of the rows given draws of the parameters; components may stay empty."""
    keys = jax.random.split(key, parameters.weights.shape[0])
    return jax.lax.map(
        lambda a: jax.random.categorical(a[0], log_parts(a[1], X, codes)),
        (keys, parameters),
        batch_size=64,
    )


@jax.jit
def class_probabilities(
    parameters: Parameters, X: jax.Array, log_weights: jax.Array | None = None
) -> jax.Array:
    r"""p(class | row), averaged over draws: :math:`\sum_s u_s f_s(x, y) / \sum_s u_s f_s(x)`.

    Yin (2007), eq. (4.7), where :math:`u_s` is the weight of draw s, 1 by default.

    Parameters
    ----------
    parameters : Parameters of arrays (S, ...)
    X : (b, d) new rows
    log_weights : (S,), such as `log_none_empty` of the rows that the draws were made from

    Returns
    -------
    (b, C)
    """
    n_classes = parameters.classes.shape[-1]
    u = jnp.zeros(parameters.weights.shape[0]) if log_weights is None else log_weights

    def one(a):
        p, weight = a
        codes = jnp.repeat(jnp.arange(n_classes), X.shape[0])
        parts = log_parts(p, jnp.tile(X, (n_classes, 1)), codes)
        return weight + jax.nn.logsumexp(parts, -1).reshape(n_classes, -1)

    log_p = jax.nn.logsumexp(jax.lax.map(one, (parameters, u)), 0)
    return jax.nn.softmax(log_p, 0).T
