"""Normal equations of the Gaussian block: centres, location effects and group effects.

Sizes in shapes are as in `gaussian_block`: C cells, P patterns, L known groups, K clusters, d
numeric columns, s columns of the location design. In the shape k + s, k is the number K of
clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nrprob.statistics.matrices import inverse_and_log_det, symmetric_eigen, whitener

# Number of operations up to which normal equations are always solved by `solve_by_pattern`.
_FEW_OPERATIONS = 2e6
_PAIRS_PER_CELL = 64  # pairs (pattern, known group) per cell; see `Cells.has_few_pairs`
_GRADIENTS = 2  # conjugate gradient steps per M-step
_einsum = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
_dot = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


@dataclass(frozen=True)
class Cells:
    """Cells of a table: a cell has the samples of one missing pattern and one known group.

    Attributes
    ----------
    pattern, group : (C,) pattern and known group of every cell
    n_patterns, n_groups : numbers of patterns and of known groups
    """

    pattern: jax.Array
    group: jax.Array
    n_patterns: int
    n_groups: int

    def by_pattern(self, values: jax.Array) -> jax.Array:
        """Add up values (C, ...) of cells by pattern: (P, ...)."""
        return jax.ops.segment_sum(values, self.pattern, self.n_patterns)

    def by_group(self, values: jax.Array) -> jax.Array:
        """Add up values (C, ...) of cells by known group: (L, ...)."""
        return jax.ops.segment_sum(values, self.group, self.n_groups)

    def by_pair(self, values: jax.Array) -> jax.Array:
        """Arrange values (C, ...) of cells by pattern and known group: (P, L, ...)."""
        pair = self.pattern * self.n_groups + self.group
        sums = jax.ops.segment_sum(values, pair, self.n_patterns * self.n_groups)
        return sums.reshape(self.n_patterns, self.n_groups, *values.shape[1:])

    @property
    def has_few_pairs(self) -> bool:
        """Whether arrays over all pairs of a pattern and a known group are not much larger than C.

        Products of such arrays are then faster than sums of matrices over cells.
        """
        return self.n_patterns * self.n_groups <= _PAIRS_PER_CELL * len(self.pattern)


class NormalEquations(NamedTuple):
    """Normal equations of centres b, location effects B and group effects m of one M-step.

    In the coordinates of the equations, Sigma is the identity. [R, Q] are the memberships and the
    location design of the samples; there are k + s rows of [b; B].

    Attributes
    ----------
    cells : pattern and known group of every cell
    n_cell : (C,) masses of the cells
    f : (C, k + s) sums of [R, Q] by cell
    g : (P, k + s, k + s) sums of products of [R, Q] by pattern
    x, x_cell : (P, k + s, d) sums of products of [R, Q] and the values by pattern, and (C, d) sums
        of the values by cell
    a : (P, d, d) precisions of the observed columns of every pattern
    prior, spread : (d, d) prior precision and (L, d, d) posterior covariances of the group effects
    real : (d,) False for padding columns
    occupied : (L,) 1 if the known group has samples, else 0
    ridge : (k + s,) prior precisions of the rows of [b; B]
    gauge : (k + s, k + s) penalty that makes the solution with a flat prior unique
    jitter : addition to the diagonal of the equations
    free, m : whether the group effects are free; if not, their values (L, d)
    """

    cells: Cells
    n_cell: jax.Array
    f: jax.Array
    g: jax.Array
    x: jax.Array
    x_cell: jax.Array
    a: jax.Array
    prior: jax.Array
    spread: jax.Array
    real: jax.Array
    occupied: jax.Array
    ridge: jax.Array
    gauge: jax.Array
    jitter: jax.Array
    free: jax.Array
    m: jax.Array


class Solution(NamedTuple):
    """Solution (W, m) of the normal equations, or their right-hand side (X, Y).

    Attributes
    ----------
    rows : (k + s, d) the cluster centres b and the location effects B, W = [b; B]; or X
    m : (L, d) means of the group effects; or Y
    """

    rows: jax.Array
    m: jax.Array


def solve(equations: NormalEquations, begin: Solution) -> Solution:
    """Solve the normal equations, or improve the solution ``begin`` of the last M-step.

    `solve_by_pattern` solves the equations of small tables, and `factorise_complete` the equations
    of larger complete tables. For larger tables with missing values, `descend` approximates the
    solution. If the group effects are not free, the caller must ignore m of the result.
    """
    if solves_directly(equations):
        return solve_by_pattern(equations)
    if equations.cells.n_patterns > 1:
        return descend(equations, begin)
    y = equations.cells.by_group(equations.x_cell)
    right = Solution(equations.x[0], jnp.where(equations.free, y, equations.m))
    return factorise_complete(equations)(right)


def solves_directly(equations: NormalEquations) -> bool:
    """Whether `solve_by_pattern` should solve the normal equations.

    The function compares rough numbers of operations. The result is True for all small equations,
    which do not need a second compiled solver.
    """
    patterns, n_rows, d = equations.x.shape
    groups = equations.cells.n_groups
    direct = (n_rows * d) ** 3 + (patterns + groups * d) * (n_rows * d) ** 2
    complete = 100 * groups**3 + 4 * groups * d**3 + n_rows**3
    gradients = 2 * _GRADIENTS * patterns * n_rows * d**2 if patterns > 1 else 0
    return direct < max(_FEW_OPERATIONS, complete + gradients)


def factorise_complete(equations: NormalEquations) -> Callable[[Solution], Solution]:
    """Factorise the normal equations of the table as if no value were missing.

    Every :math:`A_p` is replaced by the identity. Elimination of W = [b; B] from

        G W + F' m = X,    F W + N m + m T^-1 = Y

    leaves a Sylvester equation of the group effects m (L, d),

        C m + m T^-1 = Y - F G^-1 X,    C = N - F G^-1 F'

    G are the sums of products of [R, Q] over all samples, plus the penalties on W. F are sums of
    [R, Q] by known group, N is the diagonal matrix of the masses of the known groups, and T the
    prior covariance of the group effects. X and Y are the right-hand side. With the eigenvalues and
    eigenvectors of C, the equation becomes a linear system of size d for every eigenvalue.

    Returns
    -------
    solve_factorised : function of the right-hand side (X, Y), which returns the solution (W, m). If
        the group effects are not free, the function returns m = Y
    """
    q = equations
    f, mass = q.cells.by_group(q.f), q.cells.by_group(q.n_cell)
    white, _ = whitener(q.g.sum(0) + q.gauge + jnp.diag(q.ridge + q.jitter))
    turned = _dot(f, white.T)
    c = jnp.diag(mass + 1 - q.occupied) - _dot(turned, turned.T)
    values, vectors = symmetric_eigen(c)
    eye = jnp.eye(len(q.prior), dtype=q.prior.dtype)
    inverse, _, _ = inverse_and_log_det(q.prior + jnp.maximum(values, 0)[:, None, None] * eye)

    def solve_factorised(right: Solution) -> Solution:
        x = _dot(white, right.rows)
        rest = _dot(vectors.T, right.m - _dot(turned, x))
        m = _dot(vectors, _einsum("zde,ze->zd", inverse, rest))
        m = jnp.where(q.free, m, right.m)
        return Solution(_dot(white.T, x - _dot(turned.T, m)), m)

    return solve_factorised


def descend(equations: NormalEquations, begin: Solution) -> Solution:
    """Take a few steps of the conjugate gradient method, preconditioned by `factorise_complete`.

    Every step improves the objective, so that EM remains monotone.

    Parameters
    ----------
    equations : normal equations of a table with missing values
    begin : solution of the last M-step, from which the steps begin
    """
    q, pattern, group = equations, equations.cells.pattern, equations.cells.group
    precondition = factorise_complete(equations)
    free = q.free.astype(q.g.dtype)

    few, n_rows = q.cells.has_few_pairs, len(q.ridge)

    def products(v: Solution) -> tuple[jax.Array, jax.Array]:
        """Products W A_p (P, k + s, d) by pattern p, and m_z A_p (C, d) by cell (p, z)."""
        # One product with all right-hand sides reads the precisions only once. The precisions are
        # symmetric; sums over their last axis need no transposed copy.
        right = jnp.concatenate([v.rows, v.m]) if few else v.rows
        both = jnp.swapaxes(
            _dot(q.a.reshape(-1, q.a.shape[-1]), right.T).reshape(*q.a.shape[:2], len(right)), 1, 2
        )
        if few:
            return both[:, :n_rows], both[pattern, n_rows + group]
        return both, _einsum("cd,cde->ce", v.m[group], q.a[pattern])

    def apply(v: Solution) -> Solution:
        """Left-hand sides of the normal equations for W and m; 0 for m if m is not free."""
        rows_a, moved = products(v)
        fitted = _einsum("cb,cbe->ce", q.f, rows_a[pattern])
        rows = _einsum("pab,pbe->ae", q.g, rows_a) + _dot(q.f.T, moved)
        rows = rows + (q.ridge + q.jitter)[:, None] * v.rows + _dot(q.gauge, v.rows)
        m = q.cells.by_group(fitted + q.n_cell[:, None] * moved) + _dot(v.m, q.prior)
        return Solution(rows, free * (m + (1 - q.occupied)[:, None] * v.m))

    def inner(a: Solution, b: Solution) -> jax.Array:
        return (a.rows * b.rows).sum() + (a.m * b.m).sum()

    def add(a: Solution, factor: jax.Array | float, b: Solution) -> Solution:
        return jax.tree.map(lambda a, b: a + factor * b, a, b)

    def ratio(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)

    def step(_, carry):
        v, rest, conditioned, direction = carry
        image = apply(direction)
        before = inner(rest, conditioned)
        length = ratio(before, inner(direction, image))
        v, rest = add(v, length, direction), add(rest, -length, image)
        conditioned = precondition(rest)
        factor = ratio(inner(rest, conditioned), before)
        return v, rest, conditioned, add(conditioned, factor, direction)

    if q.cells.has_few_pairs:
        total = _einsum("pzd,pde->ze", q.cells.by_pair(q.x_cell), q.a)
    else:
        total = q.cells.by_group(_einsum("cd,cde->ce", q.x_cell, q.a[pattern]))
    right = Solution(_einsum("pad,pde->ae", q.x, q.a), free * total)
    rest = add(right, -1.0, apply(begin))
    conditioned = precondition(rest)
    carry = begin, rest, conditioned, conditioned
    return jax.lax.fori_loop(0, _GRADIENTS, step, carry)[0]


def solve_by_pattern(equations: NormalEquations) -> Solution:
    """Solve the normal equations of a table with any missing patterns.

    After elimination of the group effects, the normal equations of [b; B] have the matrix

        H = sum_p G_p (x) A_p + blockdiag(0, lambda_B I (x) Sigma^-1) - sum_z M_z S_z M_z'

    where (x) is the Kronecker product, G_p are the sums of products of [R, Q] over pattern p, and
    lambda_B is the prior precision of the location effects. S_z is the posterior covariance of the
    effect of group z. A_p is the inverse of Sigma on the observed columns of pattern p. With F_zp,
    the sums of [R, Q] by group and pattern, M_z is sum_p F_zp (x) A_p.

    If the group effects are not free, the caller must ignore m of the result.
    """
    # In the index strings, a and b run over the k + s columns of [R, Q], and d to g over
    # numeric columns; p, c and z are pattern, cell and known group.
    q = equations
    n_rows, d = q.x.shape[1:]
    a_cell = q.a[q.cells.pattern]
    eye = jnp.eye(d, dtype=q.g.dtype)
    # 1. Matrix H and right-hand side of the normal equations, without group effects.
    h = _einsum("pab,pde->adbe", q.g, q.a)
    h = h + _einsum("ab,de->adbe", jnp.diag(q.ridge), eye)
    right = _einsum("pad,pde->ae", q.x, q.a)
    # 2. Eliminate the group effects.
    cross = q.cells.by_group(q.f[:, :, None, None] * a_cell[:, None])
    total = q.cells.by_group(_einsum("cd,cde->ce", q.x_cell, a_cell))
    free = q.free.astype(h.dtype)
    turned = _einsum("zade,zef->zadf", cross, q.spread)
    h = h - free * _einsum("zadf,zbgf->adbg", turned, cross)
    right = right - free * _einsum("zadf,zf->ad", turned, total)
    right = right - (1 - free) * _einsum("zade,ze->ad", cross, q.m)
    h = h + _einsum("ab,de->adbe", q.gauge, eye)
    # 3. Solve. A small ridge keeps padded columns, empty clusters and unidentified contrasts at
    #    0.
    size = n_rows * d
    h = h.reshape(size, size) + jnp.diag(jnp.tile(1 - q.real, n_rows) + q.jitter)
    inverse_root, _ = whitener(h)
    solution = inverse_root.T @ (inverse_root @ right.reshape(size))
    solution = solution.reshape(n_rows, d)
    # 4. Means of the group effects, given the solution.
    rest = total - _einsum("zade,ad->ze", cross, solution)
    return Solution(solution, _einsum("zde,ze->zd", q.spread, rest))
