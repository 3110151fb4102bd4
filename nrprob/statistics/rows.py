r"""Samples in blocks: cell statistics from memberships, and the transposed map for gradients.

Sample x has the statistics s(x), a vector, and the mass W(x, c) in cluster c. A *cell* is a pair of
a known group z and a cluster c, and z(x) is the known group of sample x. All engines use two linear
maps. `cells` sums the statistics of the samples of every cell. `adjoint` computes the gradient with
respect to the masses from the gradient g with respect to the statistics of the cells:

.. math:: S_{zc} = \sum_{x \in z} W(x, c) \, s(x) \quad \text{(cells)}, \qquad
    G(x, c) = g_{z(x) c} \cdot s(x) \quad \text{(adjoint)}.

Samples are sorted by known group and cut into blocks within one group, padded with samples of mass
0. `cells` is then one batched matrix product over blocks and one segment sum, and `adjoint` is its
transpose. The cost of both maps does not depend on the number of groups. The last statistic of
every sample is 1, and the sum of the ones is the mass of the cell.

Shapes: n samples, in B blocks of r samples; S restarts; K clusters; m features and p statistics of
a sample; ``groups`` known groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap
from scipy import sparse

from nrprob.trees import node

_PRECISION = jax.lax.Precision.HIGHEST
_ENTRIES = 4096  # sparse entries per chunk
_VECTOR_BYTES = 32  # width of vector instructions; an incomplete vector of columns is slow
# Number of products per step up to which compilation takes longer than the run.
SMALL_STEP = 1 << 15
_LOG_ZERO = -1e300  # finite logarithm of 0, so that differences are finite


def _of_blocks(values: jax.Array, group: jax.Array) -> jax.Array:
    """Return values (B, ...) of blocks: for every block, the value of the known group of the block.

    ``values`` (groups, ...) are the values of the groups, and ``group`` (B,) is the known group of
    every block. Plain indexing takes longer to trace.
    """
    indexed = jnp.asarray(values).at[jnp.asarray(group)]
    return indexed.get(mode="promise_in_bounds", wrap_negative_indices=False)


def _safe_log(a: jax.Array) -> jax.Array:
    """Natural logarithm of non-negative entries; the result is 0 where an entry is 0."""
    return jnp.log(jnp.where(a > 0, a, 1))


@node
class Dense:
    """Statistics of the samples as an array ``x`` of shape (B, r, p)."""

    x: jax.Array

    @property
    def n_statistics(self) -> int:
        """Number of statistics of a sample, including its mass."""
        return self.x.shape[-1]

    def cells(self, w: jax.Array, group: jax.Array, n_groups: int) -> jax.Array:
        """Sum the statistics over the samples of every cell: shape (groups, S, K, p).

        ``w`` (B, r, S, K) are the masses, and ``group`` (B,) is the known group of every block.
        """
        b, r, s, k = w.shape
        t = jnp.einsum("brk,brp->bkp", w.reshape(b, r, s * k), self.x, precision=_PRECISION)
        if n_groups == 1:
            t = t.sum(0, keepdims=True)
        else:
            t = jax.ops.segment_sum(t, group, n_groups, indices_are_sorted=True)
        return t.reshape(n_groups, s, k, -1)

    def adjoint(self, g: jax.Array, group: jax.Array) -> jax.Array:
        """Products (B, r, S, K) of coefficients ``g`` (groups, S, K, p) and sample statistics.

        As a linear map of ``g``, it is the transpose of `cells`.
        """
        n_groups, s, k, p = g.shape
        g = g.reshape(n_groups, s * k, p)
        if n_groups == 1:
            out = jnp.einsum("brp,kp->brk", self.x, g[0], precision=_PRECISION)
        else:
            out = jnp.einsum("brp,bkp->brk", self.x, _of_blocks(g, group), precision=_PRECISION)
        return out.reshape(*self.x.shape[:2], s, k)

    def log_cells(self, log_w: jax.Array, group: jax.Array, n_groups: int) -> jax.Array:
        """Logarithm (groups, S, K, p) of ``cells(exp(log_w))``, without underflow.

        ``log_w`` (B, r, S, K) are log masses. Statistics must be non-negative.
        """
        b, r, s, k = log_w.shape
        log_x = jnp.where(self.x > 0, jnp.log(jnp.where(self.x > 0, self.x, 1)), _LOG_ZERO)

        # Running maximum and sum of exponentials over the samples of a block.
        def add(carry, row):
            top, total = carry
            w, x = row
            value = w[:, :, None] + x[:, None]
            new = jnp.maximum(top, jax.lax.stop_gradient(value))
            return (new, total * jnp.exp(top - new) + jnp.exp(value - new)), None

        shape = b, s * k, self.n_statistics
        start = jnp.full(shape, _LOG_ZERO, log_w.dtype), jnp.zeros(shape, log_w.dtype)
        rows = jnp.moveaxis(log_w.reshape(b, r, s * k), 1, 0), jnp.moveaxis(log_x, 1, 0)
        (top, total), _ = jax.lax.scan(add, start, rows)
        # Combine the blocks of every group.
        highest = jax.ops.segment_max(top, group, n_groups)
        total = jax.ops.segment_sum(total * jnp.exp(top - highest[group]), group, n_groups)
        return (_safe_log(total) + highest).reshape(n_groups, s, k, -1)

    def scatter(self, mass: jax.Array, centre: jax.Array, group: jax.Array) -> jax.Array:
        """Weighted sums of squares (p,) of the statistics about ``centre`` (groups, p), in float64.

        ``mass`` (B, r) are the masses of the samples, and ``centre`` has one centre per group.
        """
        square = mass[..., None] * (self.x - _of_blocks(centre, group)[:, None]) ** 2
        return square.sum(1).astype(jnp.float64).sum(0)


@jax.custom_jvp
@sequential_vmap  # a batched product would need much memory
def _sparse_matmul(value, column, start, dense):
    """Product of a matrix in compressed sparse rows and a dense matrix.

    Only the dense matrix has a derivative. See `_padded_sparse_matmul` for the arguments.
    """
    from jax.experimental.sparse import BCSR

    return BCSR((value, column, start), shape=(start.shape[0] - 1, dense.shape[0])) @ dense


@_sparse_matmul.defjvp
def _multiply_jvp(primals, tangents):
    # The sparse factor is data: only the dense factor has a derivative.
    *rows, dense = primals
    return _sparse_matmul(*rows, dense), _sparse_matmul(*rows, tangents[-1])


def _has_products() -> bool:
    """Whether JAX runs on a CPU, and has matrix products of compressed sparse rows."""
    try:
        from jax.experimental.sparse import BCSR  # noqa: F401
    except ImportError:  # jax.experimental.sparse may be absent
        return False
    default = jax.config.jax_default_device  # a device, the name of a platform, or None
    return (getattr(default, "platform", default) or jax.default_backend()) == "cpu"


def _padded_sparse_matmul(
    value: jax.Array, column: jax.Array, start: jax.Array, dense: jax.Array
) -> jax.Array:
    """Product of a sparse matrix and a dense matrix.

    The sparse matrix has the values ``value`` (entries,) in the columns ``column`` (entries,).
    ``start`` (rows + 1,) is the position of the first entry of each row, followed by the number of
    entries. The columns of ``dense`` are padded to whole vector instructions.
    """
    k = dense.shape[1]
    full = jnp.pad(dense, ((0, 0), (0, -k % (_VECTOR_BYTES // dense.dtype.itemsize))))
    return _sparse_matmul(value, column, start, full)[:, :k]


@node
class ByCell:
    """Non-zero statistics of the samples, sorted by pair of known group and statistic.

    ``row`` (entries,) is the index of the sample of each entry, and ``value`` (entries,) its value.
    """

    row: jax.Array
    value: jax.Array
    start: jax.Array  # position of the first entry of each pair, then the number of entries


@node
class Sparse:
    """Statistics of the samples as a sparse matrix.

    The non-zero entries, in the order of the samples, are cut into chunks: the arrays ``row``,
    ``column`` and ``value`` have the shape (chunks, entries). They are the sample, the statistic
    and the value of every entry. Padding entries have the value 0. If the samples are sharded over
    devices, the arrays of all shards are concatenated, and indices refer to the shard. On a CPU,
    the entries are also stored by known group and statistic (``by_cell``): products of compressed
    sparse rows take a half to a quarter of the time of scattered sums.
    """

    row: jax.Array
    column: jax.Array
    value: jax.Array
    start: jax.Array  # position of the first entry of each sample, then the number of entries
    by_cell: ByCell | None
    shape: tuple[int, int] = field(metadata={"static": True})  # r and p

    @property
    def n_statistics(self) -> int:
        """Number of statistics of a sample, including its mass."""
        return self.shape[-1]

    def cells(self, w: jax.Array, group: jax.Array, n_groups: int) -> jax.Array:
        """Sum the statistics over the samples of every cell; see `Dense.cells`."""
        b, r, s, k = w.shape
        p, by_cell = self.n_statistics, self.by_cell
        w = w.reshape(b * r, s * k)

        def add(total, entries):
            row, column, value = entries
            cell = group[row // r] * p + column
            return total.at[cell].add(w[row] * value[:, None]), None

        if (
            by_cell is not None
            and self._use_compressed_rows(w)
            and by_cell.start.size == n_groups * p + 1
        ):
            total = _padded_sparse_matmul(by_cell.value, by_cell.row, by_cell.start, w)
        else:
            total = jnp.zeros((n_groups * p, s * k), w.dtype)
            total, _ = jax.lax.scan(add, total, (self.row, self.column, self.value))
        return jnp.moveaxis(total.reshape(n_groups, p, s, k), 1, -1)

    def _use_compressed_rows(self, dense: jax.Array) -> bool:
        """Whether products with ``dense`` use compressed sparse rows; the dtypes must agree."""
        return self.by_cell is not None and dense.dtype == self.value.dtype

    def adjoint(self, g: jax.Array, group: jax.Array) -> jax.Array:
        """Products (B, r, S, K) of coefficients and sample statistics; see `Dense.adjoint`."""
        b, (r, p) = group.shape[0], self.shape
        n_groups, s, k, _ = g.shape
        g = jnp.moveaxis(g, -1, 1).reshape(n_groups * p, s * k)

        def add(total, entries):
            row, column, value = entries
            cell = group[row // r] * p + column
            return total.at[row].add(g[cell] * value[:, None], indices_are_sorted=True), None

        if self._use_compressed_rows(g):
            cell = self.column if n_groups == 1 else group[self.row // r] * p + self.column
            total = _padded_sparse_matmul(self.value.reshape(-1), cell.reshape(-1), self.start, g)
        else:
            total = jnp.zeros((b * r, s * k), g.dtype)
            total, _ = jax.lax.scan(add, total, (self.row, self.column, self.value))
        return total.reshape(b, r, s, k)

    def log_cells(self, log_w: jax.Array, group: jax.Array, n_groups: int) -> jax.Array:
        """Logarithm (groups, S, K, p) of ``cells(exp(log_w))``; see `Dense.log_cells`."""
        b, r, s, k = log_w.shape
        p = self.n_statistics
        log_w = log_w.reshape(b * r, s * k)

        def values(entries):
            row, column, value = entries
            log_x = jnp.where(value > 0, jnp.log(jnp.where(value > 0, value, 1)), _LOG_ZERO)
            return group[row // r] * p + column, log_w[row] + log_x[:, None]

        def highest(top, entries):
            cell, value = values(entries)
            return top.at[cell].max(jax.lax.stop_gradient(value)), None

        def add(total, entries):
            cell, value = values(entries)
            return total.at[cell].add(jnp.exp(value - top[cell])), None

        entries = self.row, self.column, self.value
        top = jnp.full((n_groups * p, s * k), _LOG_ZERO, log_w.dtype)
        top, _ = jax.lax.scan(highest, top, entries)
        total, _ = jax.lax.scan(add, jnp.zeros_like(top), entries)
        return jnp.moveaxis((_safe_log(total) + top).reshape(n_groups, p, s, k), 1, -1)

    def scatter(self, mass: jax.Array, centre: jax.Array, group: jax.Array) -> jax.Array:
        """Weighted sums of squares (p,) of the statistics; see `Dense.scatter`.

        ``centre`` (groups, p) must be the means of the groups, or 0.
        """
        p, n_groups = self.n_statistics, centre.shape[0]
        flat = mass.reshape(-1)
        square = (flat[self.row] * self.value**2).astype(jnp.float64)
        total = jnp.zeros(p, square.dtype).at[self.column.reshape(-1)].add(square.reshape(-1))
        weight = jax.ops.segment_sum(mass.sum(1), group, n_groups).astype(jnp.float64)
        centre = centre.astype(jnp.float64)
        return total - (weight[:, None] * centre**2).sum(0)


@node
class Rows:
    """Samples of one fit, in blocks.

    Attributes
    ----------
    x : statistics of the samples: `Dense`, `Sparse` or another class with the same methods
    mass : (B, r) masses of the samples; 0 on padding
    number : (B, r) index of every sample in the user's data, from which random numbers are hashed
    group : (B,) known group of every block
    share : (B, r, groups) probabilities p(group | sample) if the known structure is soft; blocks
        then mix groups. None if every sample has one known group
    n_groups : number of known groups
    """

    x: Any
    mass: jax.Array
    number: jax.Array
    group: jax.Array
    share: jax.Array | None
    n_groups: int = field(metadata={"static": True})

    def cells(self, w: jax.Array) -> jax.Array:
        """Statistics (groups, S, K, p) of all cells, for masses ``w`` (B, r, S, K)."""
        if self.share is None:
            return self.x.cells(w, self.group, self.n_groups)
        return jnp.concatenate(
            [
                self.x.cells(w * self.share[:, :, l, None, None], self.group, 1)
                for l in range(self.n_groups)
            ]
        )

    def adjoint(self, g: jax.Array) -> jax.Array:
        """Products (B, r, S, K) of coefficients ``g`` (groups, S, K, p) and sample statistics.

        As a linear map of ``g``, it is the transpose of `cells`.
        """
        if self.share is None:
            return self.x.adjoint(g, self.group)
        return sum(
            self.share[:, :, l, None, None] * self.x.adjoint(g[l : l + 1], self.group)
            for l in range(self.n_groups)
        )

    def totals(self) -> jax.Array:
        """Sums (groups, p) of the statistics over the samples of every known group."""
        return self.cells(self.mass[..., None, None])[:, 0, 0]

    def scatter(self, centre: jax.Array) -> jax.Array:
        """Weighted sums of squares (p,) of the statistics about ``centre`` (groups, p).

        ``centre`` has the mean of every group, or 0.
        """
        return jnp.maximum(self._raw_scatter(centre), 0)

    def _raw_scatter(self, centre: jax.Array) -> jax.Array:
        """Compute `scatter` without setting negative rounding errors to 0.

        Unlike `scatter`, the result is exactly a sum over samples.
        """
        if self.share is None:
            return self.x.scatter(self.mass, centre, self.group)
        centre = centre[:, None]
        return sum(
            self.x.scatter(self.mass * self.share[:, :, l], centre[l], self.group)
            for l in range(self.n_groups)
        )


def cluster_means(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Means (k, m) of k clusters, from ``sums`` (k, m) over their samples and ``sizes`` (k,).

    An empty cluster has the mean of all samples, which is finite. A caller that assigns new samples
    to the nearest mean must therefore exclude empty clusters.
    """
    sizes = np.asarray(sizes, float)[:, None]
    means = np.empty(sums.shape)
    means[:] = sums.sum(0) / (sizes.sum() or 1)
    return np.divide(sums, sizes, out=means, where=sizes > 0)


@dataclass(frozen=True)
class Layout:
    """Positions of n samples in blocks.

    Attributes
    ----------
    n_blocks : number of blocks, a multiple of ``n_shards``
    n_rows : number of samples of a block, including padding
    slot : (n,) position of every sample among the padded samples of all blocks
    block_group : (n_blocks,) known group of every block
    n_shards : number of equal parts of the blocks, one per device
    n_spare : number of empty blocks at the end, which make ``n_blocks`` a multiple of ``n_shards``
    """

    n_blocks: int
    n_rows: int
    slot: np.ndarray
    block_group: np.ndarray
    n_shards: int = 1
    n_spare: int = 0

    @property
    def n_slots(self) -> int:
        """Number of positions for samples, without spare blocks."""
        return (self.n_blocks - self.n_spare) * self.n_rows

    def to_blocks(self, values: np.ndarray, fill: Any = 0) -> np.ndarray:
        """Arrange values (n, ...) as (n_blocks, n_rows, ...), with ``fill`` on padding."""
        out = np.full((self.n_blocks * self.n_rows, *values.shape[1:]), fill, values.dtype)
        out[self.slot] = values
        return out.reshape(self.n_blocks, self.n_rows, *values.shape[1:])

    def from_blocks(self, values: np.ndarray) -> np.ndarray:
        """Values (n, ...) in the user's order, from an array (n_blocks, n_rows, ...)."""
        return values.reshape(self.n_blocks * self.n_rows, *values.shape[2:])[self.slot]


def bucket_size(size: int, limit: int) -> int:
    """Round ``size`` up to 1 or 1.5 times a power of two.

    Arrays of similar sizes then share a compiled program. Sizes above ``limit`` are not rounded,
    since a run with such arrays takes longer than the compilation.
    """
    if size > limit:
        return size
    power = 1 << max(int(size) - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and size <= power * 3 // 4 else power


def padded_count(count: int, unit_cost: int) -> int:
    """Round ``count``, a number of clusters or groups, up to the next of 5, 10, 20, 40, ...

    Fits with similar numbers then share a compiled program. A step of the program takes
    ``unit_cost`` products per cluster or group. The number is not rounded if a step with the
    rounded number would take more than `SMALL_STEP` products: the run then takes longer than the
    compilation.
    """
    mask = active_mask(count, unit_cost)
    return count if mask is None else mask.size


def active_mask(count: int, unit_cost: int) -> np.ndarray | None:
    """Mask (padded_count,) of the ``count`` clusters that are not padding; see `padded_count`.

    The result is None if the number of clusters is not rounded.
    """
    full = 5 << max(-(-int(count) // 5) - 1, 0).bit_length()
    return np.arange(full) < count if full * unit_cost <= SMALL_STEP else None


def coarse_bucket(size: int, least: int) -> int:
    """Round ``size`` up to ``least`` times a power of 4.

    Sizes above 4096 are rounded by `bucket_size` instead.

    Small problems of similar sizes share compiled programs.
    """
    if size > 4096:
        return bucket_size(size, 65536)
    return least * 4 ** max(0, math.ceil(math.log(max(size, 1) / least, 4) - 1e-9))


def pad_columns(x: np.ndarray, least: int = 0) -> np.ndarray:
    """Append columns of zeros to ``x`` (n, m).

    The new number of columns is at least ``least``, and is rounded up by `coarse_bucket`. Arrays
    with similar numbers of columns then share a compiled program.
    """
    return np.pad(x, ((0, 0), (0, coarse_bucket(max(x.shape[1], least), 4) - x.shape[1])))


def make_layout(
    codes: np.ndarray, n_groups: int, n_shards: int = 1, least_rows: int = 16
) -> Layout:
    """Sort samples by known group ``codes`` (n,), and cut them into blocks within one group.

    The shapes depend only on the rounded number of samples and on the number of groups, not on the
    sizes of the groups. The position of a sample does not depend on ``n_shards``. A block has at
    least ``least_rows`` samples with padding, a power of 2.
    """
    n_samples = codes.size
    n_padded = bucket_size(n_samples, 65536)
    # Size and number of blocks. Large blocks multiply faster; small blocks have less padding.
    n_rows = max(n_padded / (12 * n_groups), least_rows)
    n_rows = int(np.clip(1 << int(np.log2(n_rows)), least_rows, 4096))
    n_blocks = -(-n_padded // n_rows) + n_groups
    n_spare = -n_blocks % n_shards
    n_blocks += n_spare
    # Position of every sample: blocks of its group, then the order within the group.
    order = np.argsort(codes, kind="stable")
    sizes = np.bincount(codes, minlength=n_groups)
    blocks = -(-sizes // n_rows)
    first_row, first_block = np.cumsum(sizes) - sizes, np.cumsum(blocks) - blocks
    by_group = codes[order]
    slot = np.empty(n_samples, np.int64)
    slot[order] = first_block[by_group] * n_rows + np.arange(n_samples) - first_row[by_group]
    # Known group of every block; empty blocks at the end belong to the last group.
    block_group = np.full(n_blocks, n_groups - 1, np.int32)
    used = np.repeat(np.arange(n_groups, dtype=np.int32), blocks)
    block_group[: used.size] = used
    return Layout(n_blocks, n_rows, slot, block_group, n_shards, n_spare)


def make_rows(
    x: Any,
    layout: Layout,
    n_groups: int,
    *,
    share: np.ndarray | None = None,
    mass: np.ndarray | None = None,
) -> Rows:
    """Make `Rows`: arrange features ``x`` (n, m) in the blocks of a layout.

    ``x`` is a NumPy array, a SciPy sparse array or a JAX array. With at most 16,384 samples and
    1,023 features, columns of zeros round up the number of columns to a few sizes. ``share``
    (n, n_groups) are probabilities of soft known groups. ``mass`` (n,) are weights of the samples.
    """
    n, m = x.shape
    p = bucket_size(m + 1, 1024 if n <= 16384 else 1)
    dtype = np.dtype(x.dtype)
    shape = layout.n_blocks, layout.n_rows, p
    statistics: Dense | Sparse
    if sparse.issparse(x):
        statistics = _sparse_statistics(x, layout, p, 1 if share is not None else n_groups)
    elif isinstance(x, jax.Array):
        statistics = Dense(_scatter_rows(x, layout.slot, shape))
    else:
        flat = np.zeros((shape[0] * shape[1], p), dtype)
        flat[layout.slot, :m] = x
        flat[layout.slot, -1] = 1
        statistics = Dense(flat.reshape(shape))
    mass = np.ones(n, dtype) if mass is None else np.asarray(mass, dtype)
    if share is not None:
        share = layout.to_blocks(np.asarray(share, dtype))
    number = layout.to_blocks(np.arange(n, dtype=np.uint32))
    return Rows(statistics, layout.to_blocks(mass), number, layout.block_group, share, n_groups)


@partial(jax.jit, static_argnames="shape")
def _scatter_rows(x: jax.Array, slot: jax.Array, shape: tuple[int, int, int]) -> jax.Array:
    """Move samples ``x`` (n, m) to their positions ``slot`` (n,) in blocks, on their device."""
    flat = jnp.zeros((shape[0] * shape[1], shape[2]), x.dtype).at[slot, : x.shape[1]].set(x)
    return flat.at[slot, -1].set(1).reshape(shape)


def _sparse_statistics(x: Any, layout: Layout, p: int, n_groups: int) -> Sparse:
    """Make the `Sparse` statistics of samples ``x`` (n, m), p per sample; the last one is 1."""
    # Append the mass, and sort the samples by position.
    n = x.shape[0]
    ones = sparse.csr_array((np.ones(n, x.dtype), (np.arange(n), np.full(n, p - 1))), shape=(n, p))
    x = sparse.csr_array((x.data, x.indices, x.indptr), shape=(n, p)) + ones
    x = x[np.argsort(layout.slot)]
    # Sample indices and numbers of entries are relative to the shard.
    n_rows = layout.n_blocks // layout.n_shards * layout.n_rows
    counts = np.zeros((layout.n_shards, n_rows), np.int64)
    counts.reshape(-1)[np.sort(layout.slot)] = np.diff(x.indptr)
    start = np.pad(counts.cumsum(1), ((0, 0), (1, 0)))
    row = np.repeat(np.tile(np.arange(n_rows, dtype=np.int32), layout.n_shards), counts.ravel())
    # Pad the entries of every shard to whole chunks.
    sizes = start[:, -1]
    entries = min(coarse_bucket(int(sizes.max()), 256), _ENTRIES)
    size = -(-bucket_size(int(sizes.max()), 1 << 16) // entries) * entries
    real = np.arange(size) < sizes[:, None]

    def pad_entries(values, fill=0):
        out = np.full(real.shape, fill, values.dtype)
        out[real] = values
        return out

    def sort_by_cell():
        shard = np.repeat(np.arange(layout.n_shards), sizes)
        block = shard * (layout.n_blocks // layout.n_shards) + row // layout.n_rows
        group = layout.block_group[block] if n_groups > 1 else 0
        cell = (shard * n_groups + group) * p + x.indices
        # The entries are sorted by sample. Transposing sorts them by cell, in linear time.
        shape = n, layout.n_shards * n_groups * p
        transposed = sparse.csr_array((np.arange(x.nnz), cell, x.indptr), shape=shape).tocsc()
        order = transposed.data
        start = np.diff(transposed.indptr).reshape(layout.n_shards, -1).cumsum(1)
        return ByCell(
            pad_entries(row[order]).ravel(),
            pad_entries(x.data[order]).ravel(),
            np.pad(start, ((0, 0), (1, 0))).astype(np.int32).ravel(),
        )

    return Sparse(
        pad_entries(row, n_rows - 1).reshape(-1, entries),
        pad_entries(x.indices.astype(np.int32), p - 1).reshape(-1, entries),
        pad_entries(x.data).reshape(-1, entries),
        start.astype(np.int32).ravel(),
        sort_by_cell() if _has_products() else None,
        (layout.n_rows, p),
    )
