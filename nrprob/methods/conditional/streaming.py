"""Contributions of blocks of stored rows to a conditional mixture: moments and EM steps.

Sizes: ``size`` rows per block with padding, m features, p coordinates, L known groups, K clusters,
S restarts. Several functions have the static arguments ``covariance`` (form of the covariance),
``robust`` (whether errors have a t distribution), ``k`` (number of clusters) and ``labelled``
(whether some rows are labelled).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.data.storage.stored import Chunk
from nrprob.methods.conditional.em import Hyperparameters, Model, Parameters, Residuals, Sums
from nrprob.methods.conditional.solver import RestartEM
from nrprob.statistics.xlogx import xlogx


class Raw(NamedTuple):
    """Rows of a block of stored rows, with known groups and labels.

    Attributes
    ----------
    x : (size, m) features or (size, p) coordinates, 0 on padding
    real : (size,) 1 for rows, 0 on padding
    number, codes : (size,) position of every row among all rows, and known group of every row
    fixed : (size,) classes of labelled rows, else -1
    """

    x: Any
    real: Any
    number: Any
    codes: Any
    fixed: Any


def lay_out_chunk(chunk: Chunk) -> Raw:
    """Convert a chunk of stored rows to `Raw`."""
    real = chunk.is_row.astype(chunk.x.dtype)
    fixed = chunk.arrays.get("fixed", np.full(len(real), -1, np.int32))
    return Raw(chunk.x, real, chunk.number, chunk.arrays["codes"], fixed)


@partial(jax.jit, static_argnames="n_groups")
def group_sums(block: Raw, mean: jax.Array, n_groups: int) -> tuple[jax.Array, jax.Array]:
    """Sums (L, m) of the rows of a block less ``mean`` (m,) by known group, and row counts (L,)."""
    x = (block.x.astype(jnp.float64) - mean) * block.real[:, None]
    sizes = jax.ops.segment_sum(block.real.astype(jnp.float64), block.codes, n_groups)
    return jax.ops.segment_sum(x, block.codes, n_groups), sizes


def _block_residuals(block: Raw, effects: jax.Array) -> jax.Array:
    """Residuals (size, m) of the rows of a block about the group effects (L, m), in float64."""
    r = block.x.astype(jnp.float64) - effects[block.codes]
    return r * block.real[:, None]


@partial(jax.jit, static_argnames="columns")
def residual_products(
    block: Raw, effects: jax.Array, columns: tuple[int, ...] | None = None
) -> tuple[jax.Array, jax.Array]:
    """Sums over a block: products (m, m) of residuals, and fourth powers of the norms of residuals.

    The residuals are the rows less the effects (L, m) of the known groups. ``columns`` are the
    positions of the columns to use; by default all.
    """
    r = _block_residuals(block, effects)
    if columns is not None:
        r = r[:, np.array(columns, int)]
    return r.T @ r, ((r**2).sum(1) ** 2).sum()


@jax.jit
def to_coordinates(block: Raw, effects: jax.Array, basis: jax.Array) -> Raw:
    """Subtract the group effects (L, m), and map the residuals to coordinates by a basis (m, p)."""
    return block._replace(x=(_block_residuals(block, effects) @ basis).astype(block.x.dtype))


def take_rows(block: Raw, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Select the rows of a block whose positions among all rows are in ``indices``.

    Returns
    -------
    number : positions of the selected rows
    x : features of the selected rows
    """
    number, x = np.asarray(block.number), np.asarray(block.x)
    selected = np.isin(number, indices) & (np.asarray(block.real) > 0)
    return number[selected], x[selected]


class Common(NamedTuple):
    """Arrays that the EM steps of all restarts share.

    Attributes
    ----------
    hyperparameters : hyperparameters in the floating-point type of the rows
    row_mass : mass of a row, equal for all rows
    inverse_scale : (p,) inverse variances 1 / D, as in `Residuals`
    scatter : sums over all rows of (p, p) products or (p,) squares of coordinates, times the mass
    free : whether the weights of the clusters are fitted
    """

    hyperparameters: Hyperparameters
    row_mass: Any
    inverse_scale: Any
    scatter: Any
    free: Any


def _block_model(block: Raw, common: Common, covariance: str, robust: bool, k: int) -> Model:
    """`Model` for the EM steps on a block; its total mass and scatter are sums over all rows."""
    h = common.hyperparameters
    n = h.dof  # the masses of all rows are equal, and add up to dof
    mass = block.real * common.row_mass
    data = Residuals(
        block.x[None], mass[None], jnp.zeros(1, jnp.int32), n[None], common.inverse_scale, None
    )
    return Model(data, h, covariance, robust, k, common.free, n, common.scatter)


_STATIC = ("covariance", "robust", "k", "labelled")


def _model_and_mask(block, common, covariance, robust, k, labelled):
    """`Model` for the EM steps on a block, and the mask (K, size) of its labelled rows.

    The mask is -inf for clusters that the label of a row excludes, else 0; None without labels.
    """
    model = _block_model(block, common, covariance, robust, k)
    return model, RestartEM(model, block.fixed if labelled else None).mask


@partial(jax.jit, static_argnames=_STATIC)
def block_e_step(
    block: Raw, every: Parameters, common: Common, **static: Any
) -> tuple[Sums, jax.Array]:
    """E-step on a block for S restarts: sufficient statistics, and free energies (S,).

    ``every`` are the parameters of the restarts.
    """

    def one_restart(t):
        model, mask = _model_and_mask(block, common, **static)
        result = model.evaluate_rows(
            t, jnp.zeros((static["k"], 1), block.x.dtype), None, None, mask
        )
        return result.sums, result.free

    return jax.lax.map(one_restart, every)


@partial(jax.jit, static_argnames=_STATIC)
def assign_rows(
    block: Raw, every: Parameters, common: Common, **static: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Assign the rows of a block to the clusters of S restarts with parameters ``every``.

    Returns
    -------
    number : (size,) positions among all rows
    labels : (size, S) labels, -1 on padding
    membership : (size, K, S) memberships
    """

    def one_restart(t):
        model, mask = _model_and_mask(block, common, **static)
        w = model.e_step(t, jnp.zeros((static["k"], 1), block.x.dtype), None, mask)[0]
        labels = jnp.where(block.real > 0, w.argmax(0), -1).astype(jnp.int32)
        return labels, w / jnp.maximum(w.sum(0), 1e-30)

    labels, w = jax.lax.map(one_restart, every)
    return block.number, labels.T, w.T


def restart_labels(block: Raw, every: Parameters, common: Common, soft: bool, **static: Any) -> Any:
    """Positions, labels (size,) and memberships (size, K) of the rows of a block, for one restart.

    Unless ``soft``, the memberships are None.
    """
    number, labels, w = assign_rows(block, every, common, **static)
    return number, labels[:, 0], np.asarray(w)[:, :, 0] if soft else None


@partial(jax.jit, static_argnames=(*_STATIC, "n_groups"))
def contingency_tables(
    block: Raw, every: Parameters, common: Common, n_groups: int, **static: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Entropies and contingency tables of the rows of a block, for S = 1 or 2 restarts.

    Returns
    -------
    entropy : (S,) sums over rows of the entropy of the memberships
    table : (K, K) numbers of rows by cluster in the first and cluster in the last restart
    by_group : (L, K) numbers of rows by known group and cluster in the first restart
    """
    _, labels, w = assign_rows(block, every, common, **static)
    hits = (labels[:, None] == jnp.arange(static["k"])[:, None]).astype(jnp.float64)
    entropy = -(block.real[:, None, None] * xlogx(w.astype(jnp.float64))).sum((0, 1))
    by_group = jax.ops.segment_sum(hits[:, :, 0], block.codes, n_groups)
    return entropy, hits[:, :, 0].T @ hits[:, :, -1], by_group


@partial(jax.jit, static_argnames=("covariance", "robust", "k"))
def global_m_step(
    result: Sums, old: Parameters, free: jax.Array, common: Common, constant: jax.Array,
    covariance: str, robust: bool, k: int,
) -> tuple[Parameters, jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """M-step of S restarts from sums over all rows.

    Parameters
    ----------
    result : sufficient statistics of all rows
    old : parameters of the E-step
    free : (S,) free energies of the E-step
    common : arrays that all restarts share
    constant : constant part of the objective
    covariance, robust, k : static arguments

    Returns
    -------
    new : new parameters
    objective, penalty : (S,) objective and penalty of the old parameters
    change : (S,) largest change of a centre, in standard deviations, plus the largest change of a
        log weight
    """
    p = old.b.shape[-1]
    none = jnp.zeros(1, common.inverse_scale.dtype)
    row = Raw(jnp.zeros((1, p), none.dtype), none, none, none.astype(jnp.int32), none)
    model = _block_model(row, common, covariance, robust, k)
    model.h = model.h._replace(constant=constant)

    def one_restart(result, old, free):
        objective, penalty = model.objective_value(
            old, jnp.zeros((1, k, 1)), jnp.zeros((k, 1)), free
        )
        new = model.m_step(result, old.s0)
        shift = new.b - old.b
        scaled = shift * new.precision if new.precision.ndim == 1 else shift @ new.precision
        far = jnp.sqrt(jnp.maximum((scaled * shift).sum(-1), 0)).max()
        return new, objective, penalty, far + jnp.abs(new.log_weights - old.log_weights).max()

    return jax.vmap(one_restart)(result, old, free)


@partial(jax.jit, static_argnames="covariance")
def block_scatter(block: Raw, covariance: str) -> jax.Array:
    """Sums over the rows of a block of the products (p, p) of coordinates.

    Unless the covariance is "tied", the sums are over squares (p,).
    """
    if covariance == "tied":
        return jnp.matmul(block.x.T, block.x, precision=jax.lax.Precision.HIGHEST)
    return (block.x * block.x).sum(0)
