"""Contributions of blocks to a conditional mixture: moments, coordinates and EM steps."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.data.storage.stored import Chunk
from nrprob.methods.conditional.em import Hyperparameters, Model, Parameters, Residuals, Sums
from nrprob.methods.conditional.solver import Climb
from nrprob.statistics.xlogx import xlogx


class Raw(NamedTuple):
    """Rows of a block, with their known structure.

    Attributes
    ----------
    x : (size, m), 0 on padding
    real : (size,) 0 on padding
    number, codes : (size,) index among all rows, and known group
    fixed : (size,) target class, else -1
    """

    x: Any
    real: Any
    number: Any
    codes: Any
    fixed: Any


def lay_out_chunk(chunk: Chunk) -> Raw:
    """Lay out the rows of a chunk."""
    real = chunk.is_row.astype(chunk.x.dtype)
    fixed = chunk.arrays.get("fixed", np.full(len(real), -1, np.int32))
    return Raw(chunk.x, real, chunk.number, chunk.arrays["codes"], fixed)


@partial(jax.jit, static_argnames="n_groups")
def group_sums(block: Raw, mean: jax.Array, n_groups: int) -> tuple[jax.Array, jax.Array]:
    """Sums of the rows of every known group about ``mean`` (m,), and numbers of rows."""
    x = (block.x.astype(jnp.float64) - mean) * block.real[:, None]
    sizes = jax.ops.segment_sum(block.real.astype(jnp.float64), block.codes, n_groups)
    return jax.ops.segment_sum(x, block.codes, n_groups), sizes


def _block_residuals(block: Raw, effects: jax.Array) -> jax.Array:
    """Residuals (size, m) about the effects (L, m) of the known groups, in float64."""
    r = block.x.astype(jnp.float64) - effects[block.codes]
    return r * block.real[:, None]


@partial(jax.jit, static_argnames="columns")
def residual_products(
    block: Raw, effects: jax.Array, columns: tuple[int, ...] | None = None
) -> tuple[jax.Array, jax.Array]:
    """Products (m, m) of residuals, and the sum of the fourth powers of their lengths.

    ``columns`` are positions of columns; by default all.
    """
    r = _block_residuals(block, effects)
    if columns is not None:
        r = r[:, np.array(columns, int)]
    return r.T @ r, ((r**2).sum(1) ** 2).sum()


@jax.jit
def to_coordinates(block: Raw, effects: jax.Array, basis: jax.Array) -> Raw:
    """Rows in coordinates, in the type of the rows."""
    return block._replace(x=(_block_residuals(block, effects) @ basis).astype(block.x.dtype))


def take_rows(block: Raw, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices and rows of a block that are among ``indices`` (sorted)."""
    number, x = np.asarray(block.number), np.asarray(block.x)
    selected = np.isin(number, indices) & (np.asarray(block.real) > 0)
    return number[selected], x[selected]


class Common(NamedTuple):
    """Arrays that the steps of all restarts share.

    Attributes
    ----------
    hyperparameters : in the type of the rows
    row_mass : mass of a row
    inverse_scale : (p,)
    scatter : sums of products or squares of all rows
    free : whether weights are fitted
    """

    hyperparameters: Hyperparameters
    row_mass: Any
    inverse_scale: Any
    scatter: Any
    free: Any


def _block_model(block: Raw, common: Common, covariance: str, robust: bool, k: int) -> Model:
    """EM steps on a block."""
    h = common.hyperparameters
    n = h.dof  # masses are dof in all, and equal
    mass = block.real * common.row_mass
    data = Residuals(
        block.x[None], mass[None], jnp.zeros(1, jnp.int32), n[None], common.inverse_scale, None
    )
    return Model(data, h, covariance, robust, k, common.free, n, common.scatter)


_STATIC = ("covariance", "robust", "k", "labelled")


def _model_and_mask(block, common, covariance, robust, k, labelled):
    """EM steps on a block, and the clusters that labels exclude for its rows."""
    model = _block_model(block, common, covariance, robust, k)
    return model, Climb(model, block.fixed if labelled else None).mask


@partial(jax.jit, static_argnames=_STATIC)
def block_e_step(
    block: Raw, every: Parameters, common: Common, **static: Any
) -> tuple[Sums, jax.Array]:
    """Sufficient statistics of a block for all restarts, and their free energies (S,)."""

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
    """Indices, labels (size, S) and memberships (size, K, S) of a block's rows."""

    def one_restart(t):
        model, mask = _model_and_mask(block, common, **static)
        w = model.e_step(t, jnp.zeros((static["k"], 1), block.x.dtype), None, mask)[0]
        labels = jnp.where(block.real > 0, w.argmax(0), -1).astype(jnp.int32)
        return labels, w / jnp.maximum(w.sum(0), 1e-30)

    labels, w = jax.lax.map(one_restart, every)
    return block.number, labels.T, w.T


def restart_labels(block: Raw, every: Parameters, common: Common, soft: bool, **static: Any) -> Any:
    """`assign_rows` of one restart; memberships (size, K) are left out unless ``soft``."""
    number, labels, w = assign_rows(block, every, common, **static)
    return number, labels[:, 0], np.asarray(w)[:, :, 0] if soft else None


@partial(jax.jit, static_argnames=(*_STATIC, "n_groups"))
def contingency_tables(
    block: Raw, every: Parameters, common: Common, n_groups: int, **static: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Entropies (2,) of two restarts, their table (K, K), and groups by the first (L, K)."""
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
    """M-step, with objective and penalty of the old parameters, and the change of parameters.

    The change is the largest one of a centre, in standard deviations, or of a log weight.
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
    """Sums of products, or of squares, of rows."""
    if covariance == "tied":
        return jnp.matmul(block.x.T, block.x, precision=jax.lax.Precision.HIGHEST)
    return (block.x * block.x).sum(0)
