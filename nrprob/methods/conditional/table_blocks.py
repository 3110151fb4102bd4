"""Blocks of stored tables: their layout, and the sums over samples of one EM step.

The samples of a stored block are arranged in B smaller blocks of r samples of one known group. No
value is missing. Other sizes: d numeric columns; J discrete columns with W values in all; K
clusters.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.methods.conditional.joint import JointModel, JointState, Settings, Statistics, Table
from nrprob.methods.conditional.streaming import Raw
from nrprob.statistics.rows import make_layout
from nrprob.statistics.xlogx import xlogx


class TableBlock(NamedTuple):
    """Samples of a stored block, sorted by known group.

    Attributes
    ----------
    x : (B, r, d) numeric values in the coordinates of the fit
    codes : (B, r, J) position of the value of every discrete column among the W values of all
        discrete columns; W on padding
    mass : (B, r) 1 for samples, 0 on padding
    number : (B, r) position of every sample among all samples
    label : (B, r) cluster of labelled samples, else -1
    cell : (B,) known group of every smaller block
    """

    x: Any
    codes: Any
    mass: Any
    number: Any
    label: Any
    cell: Any


class TableFormat(NamedTuple):
    """Settings for the conversion of raw rows to a `TableBlock`.

    Attributes
    ----------
    numeric, discrete : positions of the numeric and of the discrete columns
    centre, scale : origin (d,) and unit of the coordinates of the numeric columns
    values : sorted values of every discrete column
    n_cells : number of known groups with padding
    """

    numeric: tuple[int, ...]
    discrete: tuple[int, ...]
    centre: np.ndarray
    scale: float
    values: tuple[np.ndarray, ...]
    n_cells: int

    @property
    def width(self) -> int:
        """Number W of values of all discrete columns."""
        return sum(map(len, self.values))


def distinct_in_block(block: Raw, positions: tuple[int, ...], most: int) -> list[np.ndarray]:
    """Distinct values in a block of the columns at ``positions``: one array per column.

    Every array has at most the ``most`` smallest values.
    """
    x = np.asarray(block.x)[np.asarray(block.real) > 0]
    return [np.unique(x[:, j])[:most] for j in positions]


def to_table_block(block: Raw, form: TableFormat) -> TableBlock:
    """Convert the rows of a block to a `TableBlock` in float64."""
    x = np.asarray(block.x, np.float64)
    groups = np.asarray(block.codes)
    layout = make_layout(groups, form.n_cells)
    codes = np.empty((len(x), len(form.discrete)), np.int32)
    first = 0
    for i, (j, values) in enumerate(zip(form.discrete, form.values, strict=True)):
        codes[:, i] = first + np.searchsorted(values, x[:, j]).clip(max=len(values) - 1)
        first += len(values)
    codes[np.asarray(block.real) == 0] = form.width
    scaled = (x[:, list(form.numeric)] - form.centre) / form.scale
    return TableBlock(
        layout.to_blocks(scaled), layout.to_blocks(codes, form.width),
        layout.to_blocks(np.asarray(block.real, np.float64)),
        layout.to_blocks(np.asarray(block.number)), layout.to_blocks(np.asarray(block.fixed), -1),
        layout.block_group,
    )  # fmt: skip


@partial(jax.jit, static_argnames="width")
def count_values(block: TableBlock, width: int) -> jax.Array:
    """Numbers (W,) of samples of a block with every value of every discrete column.

    ``width`` is W, the number of values of all discrete columns.
    """
    ones = jnp.ones(block.codes.size)
    return jax.ops.segment_sum(ones, block.codes.reshape(-1), width + 1)[:width]


def _fill_template(block: TableBlock, template: Table) -> Table:
    """Make the `Table` of a block; ``template`` has the arrays that all blocks share."""
    numeric, values = template.numeric, template.values
    if numeric is not None:
        spare = len(numeric.real) - block.x.shape[2]
        x = jnp.pad(block.x, ((0, 0), (0, 0), (0, spare)))
        numeric = numeric._replace(x=x, q=jnp.zeros((*x.shape[:2], 0), x.dtype))
    if values is not None:
        width = jnp.arange(len(values.column))
        indicators = sum(
            (block.codes[..., j, None] == width).astype(block.mass.dtype)
            for j in range(block.codes.shape[2])
        )
        values = values._replace(indicators=indicators)
    label = None if template.label is None else block.label
    return template._replace(
        numeric=numeric, values=values, mass=block.mass, cell=block.cell,
        log_noise=jnp.zeros_like(block.mass), label=label,
    )  # fmt: skip


def _memberships(model: JointModel, state: JointState) -> tuple[jax.Array, jax.Array]:
    """Memberships (B, K, r) and log densities (B, r) of samples, given the parameters ``state``."""
    log_joint = model.log_joint(state)
    log_density = jax.nn.logsumexp(log_joint, axis=1)
    return jnp.exp(log_joint - log_density[:, None]), log_density


@partial(jax.jit, static_argnames="covariance")
def block_e_step(
    block: TableBlock, template: Table, settings: Settings, state: JointState, covariance: str
) -> tuple[Statistics, jax.Array, jax.Array]:
    """E-step on a block: sums for the M-step, log likelihood, and sum of membership entropies.

    ``template``, ``settings``, ``state`` and ``covariance`` are as in `full_m_step`.
    """
    model = JointModel(_fill_template(block, template), settings, covariance)
    r, log_density = _memberships(model, state)
    entropy = -(xlogx(r) * block.mass[:, None]).sum()
    return model.statistics(r), (block.mass * log_density).sum(), entropy


@partial(jax.jit, static_argnames=("covariance", "soft"))
def block_labels(
    block: TableBlock, template: Table, settings: Settings, state: JointState, covariance: str,
    soft: bool,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:  # fmt: skip
    """Assign the samples of a block to clusters, given the parameters ``state``.

    Returns
    -------
    number : (B, r) positions among all samples
    labels : (B, r) labels, -1 on padding
    membership : (B, r, K) memberships; None unless ``soft``
    """
    model = JointModel(_fill_template(block, template), settings, covariance)
    r, _ = _memberships(model, state)
    labels = jnp.where(block.mass > 0, r.argmax(1), -1)
    return block.number, labels, r.swapaxes(1, 2) if soft else None


@partial(jax.jit, static_argnames="covariance")
def full_m_step(
    statistics: Statistics, log_likelihood: jax.Array, template: Table, settings: Settings,
    state: JointState, covariance: str,
) -> tuple[JointState, jax.Array, jax.Array]:  # fmt: skip
    """M-step from sums over all samples.

    Parameters
    ----------
    statistics, log_likelihood : sums of `block_e_step` over all blocks
    template : `Table` with the arrays that all blocks share
    settings : settings of the EM
    state : parameters of the E-step
    covariance : form of the error covariance: "tied", "diag" or "spherical"

    Returns
    -------
    new : new parameters
    objective : objective of the parameters ``state``
    change : largest change of a centre (in standard deviations), of the probability of a value, or
        of a share
    """
    model = JointModel(template, settings, covariance)
    objective = log_likelihood + model.penalty(state)
    new = model.update(statistics, state)
    change = jnp.abs(jnp.exp(new.shares.log_share) - jnp.exp(state.shares.log_share)).max()
    if model.gaussian is not None:
        shift = new.gaussian.b - state.gaussian.b
        far = ((shift @ new.precisions.sigma) * shift).sum(1)
        change = jnp.maximum(change, jnp.sqrt(jnp.maximum(far, 0)).max())
    if model.discrete is not None:
        tables = [jnp.exp(model.discrete.log_table(s.discrete)) for s in (state, new)]
        change = jnp.maximum(change, jnp.abs(tables[1] - tables[0]).max())
    return new, objective, change
