r"""Gaussian block of the conditional mixture: centres, group and location effects, covariance.

The model of the numeric values of sample i in known group z, given its cluster c, is

.. math:: x_i = a_z + b_c + B^T q_i + e_i, \quad e_i \sim N(0, \Sigma), \quad a_z \sim N(0, T)

with group effects a, centres b, and location effects B of the discrete columns, coded as q. The
variational posterior of a group effect is :math:`N(m_z, S_z)`.

Missing values are integrated out. For a pattern p of observed columns, :math:`A_p` is the inverse
of :math:`\Sigma` on these columns, padded with zeros. All densities and sums depend on a sample
through :math:`A_p`. Samples with the same pattern and the same known group form a *cell*, and sums
over samples are computed by cell.

Sizes in shapes: B blocks of r samples, C cells, P patterns, L known groups, K clusters, d numeric
columns, s columns of q. The mass of a sample is its weight. F is the objective of `joint`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.methods.conditional.normal_equations import Cells, NormalEquations, Solution, solve
from nrprob.methods.conditional.precisions import Precisions, compute_precisions
from nrprob.statistics.matrices import inverse_and_log_det

_JITTER = 1e-9  # relative addition to diagonals that may be singular
_einsum = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
_dot = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


class Numbers(NamedTuple):
    """Numeric columns of a table, in B blocks of r samples of one cell.

    The samples of a cell have the same pattern of observed columns and the same known group.

    Attributes
    ----------
    x : (B, r, d) values; 0 for missing values and on padding
    q : (B, r, s) design of the location effects; s may be 0
    observed : (P, d) 1 if the column is observed in the pattern, else 0
    missing : (P, r) positions of the missing columns of every pattern, padded with the number d
    pattern : (C,) pattern of every cell
    real : (d,) False for padding columns
    """

    x: jax.Array
    q: jax.Array
    observed: jax.Array
    missing: jax.Array
    pattern: jax.Array
    real: jax.Array


class Constants(NamedTuple):
    """Weighted sums over samples that do not depend on the clusters.

    x are the numeric values, and q is the design of the location effects. With noise, the mass of a
    sample is multiplied by the probability that the sample is not noise.

    Attributes
    ----------
    n_cell : (C,) total mass of every cell
    x_cell, q_cell : (C, d) sums of x and (C, s) sums of q by cell
    xx, xq, qq : (P, d, d), (P, d, s), (P, s, s) sums of products of x and q by pattern
    n_pattern : (P,) total mass of every pattern
    """

    n_cell: jax.Array
    x_cell: jax.Array
    q_cell: jax.Array
    xx: jax.Array
    xq: jax.Array
    qq: jax.Array
    n_pattern: jax.Array


class Sums(NamedTuple):
    """Sums over samples for the M-step, weighted by the memberships in K clusters.

    Attributes
    ----------
    n : (C, K) mass by cell and cluster
    x : (C, K, d) sums of the observed numeric values by cell and cluster
    q : (P, K, s) sums of the design of the location effects by pattern and cluster
    constants : sums that do not depend on the clusters
    """

    n: jax.Array
    x: jax.Array
    q: jax.Array
    constants: Constants


class Ridge(NamedTuple):
    """Hyperparameters of the Gaussian block.

    Sigma is the covariance of the errors, and T the prior covariance of the group effects.

    Attributes
    ----------
    nu0 : weight of the ridge of Sigma, in samples
    nu_t, tau0 : weight (in groups) and scale of the prior of T
    location : prior precision lambda_B of the location effects
    target : (d,) diagonal of the matrix to which Sigma and T shrink, up to a factor
    rounding : (d, d) covariance Q of the rounding errors of the numeric columns
    """

    nu0: jax.Array
    nu_t: jax.Array
    tau0: jax.Array
    location: jax.Array
    target: jax.Array
    rounding: jax.Array


class Gaussian(NamedTuple):
    """Parameters of the Gaussian block: K clusters, L known groups, d numeric columns.

    Attributes
    ----------
    b : (K, d) cluster centres
    slopes : (s, d) location effects B of s design columns
    m, s : (L, d) posterior means and (L, d, d) covariances of the group effects
    log_det_s : (L,) log determinants of ``s``
    sigma, t : (d, d) covariance of the errors, and prior covariance of the group effects
    s0 : variance towards which the ridge shrinks
    """

    b: jax.Array
    slopes: jax.Array
    m: jax.Array
    s: jax.Array
    log_det_s: jax.Array
    sigma: jax.Array
    t: jax.Array
    s0: jax.Array


class Effects(NamedTuple):
    """Form of the group effects. JAX traces the attributes, so all forms use one program.

    Attributes
    ----------
    held : whether the posterior means m of the effects keep their initial values, the group means
        ("subtract")
    fixed : whether the prior of the group effects is flat
    absent : whether there are no group effects
    """

    held: jax.Array
    fixed: jax.Array
    absent: jax.Array


class GaussianBlock:
    """E-step, M-step and objective of the numeric columns.

    Parameters
    ----------
    data : numeric columns
    mass : (B, r) weights of the samples, 0 on padding
    cell : (B,) cell of every block of samples
    group : (C,) known group of every cell
    sizes : (L,) total masses of the known groups
    ridge : hyperparameters
    effects : form of the group effects
    covariance : form of the error covariance: "tied", "diag" or "spherical"
    """

    def __init__(
        self, data: Numbers, mass: jax.Array, cell: jax.Array, group: jax.Array,
        sizes: jax.Array, ridge: Ridge, effects: Effects, covariance: str,
    ):  # fmt: skip
        self.data, self.mass, self.cell, self.group = data, mass, cell, group
        self.cells = Cells(data.pattern, group, len(data.observed), len(sizes))
        self.ridge, self.effects, self.covariance = ridge, effects, covariance
        self.block_pattern, self.block_group = data.pattern[cell], group[cell]
        self.real = data.real.astype(data.x.dtype)
        self.d = self.real.sum()
        self.constants = self._constant_sums(mass)
        self.occupied = (sizes > 0).astype(data.x.dtype)

    def _by_cell(self, values: jax.Array) -> jax.Array:
        """Add up values (B, ...) of blocks by cell: (C, ...)."""
        return jax.ops.segment_sum(values, self.cell, len(self.group))

    def _constant_sums(self, mass: jax.Array) -> Constants:
        """Compute `Constants` from the masses (B, r) of the samples."""
        x, q = self.data.x, self.data.q
        n_patterns = len(self.data.observed)

        def by_pattern(a, b):
            products = _einsum("br,bri,brj->bij", mass, a, b)
            return jax.ops.segment_sum(products, self.block_pattern, n_patterns)

        n_cell = self._by_cell(mass.sum(1))
        return Constants(
            n_cell,
            self._by_cell(_einsum("br,brd->bd", mass, x)),
            self._by_cell(_einsum("br,brs->bs", mass, q)),
            by_pattern(x, x),
            by_pattern(x, q),
            by_pattern(q, q),
            self.cells.by_pattern(n_cell),
        )

    def sums(self, r: jax.Array, noisy: jax.Array) -> Sums:
        """Sums for the M-step, from memberships times masses ``r`` (B, K, rows).

        Without noise, memberships sum to 1, and the constant sums need no update. ``noisy`` tells
        whether there is noise.
        """
        constants = jax.lax.cond(
            noisy, lambda r: self._constant_sums(r.sum(1)), lambda r: self.constants, r
        )
        return Sums(
            self._by_cell(r.sum(2)),
            self._by_cell(_einsum("bkr,brd->bkd", r, self.data.x)),
            self.cells.by_pattern(self._by_cell(_einsum("bkr,brs->bks", r, self.data.q))),
            constants,
        )

    def precisions(self, theta: Gaussian) -> Precisions:
        """Compute `Precisions` from the covariance matrices of ``theta``."""
        return compute_precisions(theta.sigma, theta.t, self.data.observed, self.data.missing)

    def log_density(self, theta: Gaussian, precisions: Precisions) -> jax.Array:
        """Expected log densities (B, K, r) of the observed numeric values, given the cluster.

        The expectation is over the posterior of the group effects and over rounding errors. The
        result is the log density at the posterior means, less tr(A_p (S_z + Q)) / 2. A_p is the
        precision of the observed columns, S_z the posterior covariance of the group effect, and Q
        the covariance of the rounding errors.
        """
        a, log_det = precisions.observed, precisions.log_det_observed
        x = (
            self.data.x
            - theta.m[self.block_group][:, None]
            - _einsum("brs,sd->brd", self.data.q, theta.slopes)
        )
        seen = self.data.observed[self.block_pattern]
        x = x * seen[:, None]
        if len(a) == 1:
            turned = _einsum("brd,de->bre", x, a[0])
        else:
            turned = _einsum("brd,bde->bre", x, a[self.block_pattern])
        # Sum by a product with ones. XLA would compute an ordinary sum once per cluster.
        ones = jnp.ones(x.shape[-1], x.dtype)
        square = _einsum("brd,d->br", turned * x, ones)
        length = _einsum("kd,pde,ke->pk", theta.b, a, theta.b)[self.block_pattern]
        linear = _einsum("brd,kd->bkr", turned, theta.b)
        quadratic = square[:, None] - 2 * linear + length[..., None]
        uncertain, pattern = theta.s + self.ridge.rounding, self.data.pattern
        if self.cells.has_few_pairs:
            loss = _einsum("pde,zde->pz", a, uncertain)[pattern, self.group]
        else:
            loss = _einsum("cde,cde->c", a[pattern], uncertain[self.group])
        unit = seen.sum(1) * math.log(2 * math.pi) + log_det[self.block_pattern]
        unit = unit + loss[self.cell]
        return -0.5 * (quadratic + unit[:, None, None])

    def m_step(
        self, sums: Sums, theta: Gaussian, precisions: Precisions
    ) -> tuple[Gaussian, Precisions]:
        """Update the parameters: first the effects and centres, then Sigma, then T."""
        theta = self._locations(sums, theta, precisions)
        theta = self._error_covariance(sums, theta, precisions)
        theta = self._effect_covariance(theta)
        precisions = self.precisions(theta)
        # The variance s0 that maximises the ridge term has a closed form.
        return theta._replace(s0=self.d / self._target_trace(precisions.sigma)), precisions

    def _locations(self, sums: Sums, theta: Gaussian, precisions: Precisions) -> Gaussian:
        """Update centres, location effects and group effects, by generalised least squares.

        The normal equations are in coordinates in which Sigma is the identity. In units of the
        columns, differences of large precisions would lose all digits if columns are nearly
        linearly dependent.
        """
        c, k = sums.constants, theta.b.shape[0]
        s, d = theta.slopes.shape
        white = precisions.white
        root = _dot(theta.sigma, white.T)  # white @ root is the identity
        a = precisions.projections * (self.real[:, None] * self.real)
        held, absent = self.effects.held, self.effects.absent
        # 1. Sums F of [R, Q] by cell, and sums G of products of [R, Q] by pattern, where R are the
        #    memberships and Q is the location design. Sums of products of [R, Q] and the values.
        f = jnp.concatenate([sums.n, c.q_cell], 1)
        g = jnp.concatenate(
            [
                jnp.concatenate([jax.vmap(jnp.diag)(self.cells.by_pattern(sums.n)), sums.q], 2),
                jnp.concatenate([jnp.swapaxes(sums.q, 1, 2), c.qq], 2),
            ],
            1,
        )
        x = jnp.concatenate([self.cells.by_pattern(sums.x), jnp.swapaxes(c.xq, 1, 2)], 1)
        x, x_cell = _dot(x, white.T), _dot(c.x_cell, white.T)
        # 2. Ridge of the location effects. With a flat prior, a constant can move between group
        #    effects and centres, and a penalty on the sum of the centres makes the solution unique.
        gauge = jnp.concatenate([jnp.ones(k), jnp.zeros(s)]).astype(g.dtype)
        scale = jnp.where(self.effects.fixed & ~held & ~absent, c.n_cell.sum() / k, 0.0)
        ridge = jnp.concatenate([jnp.zeros(k), jnp.full(s, self.ridge.location)]).astype(g.dtype)
        # 3. Posterior covariances of the group effects: S_z = (T^-1 + Lambda_z)^-1, where Lambda_z
        #    is the sum of A_p over the samples of the group.
        prior = jnp.where(self.effects.fixed, jnp.diag(1 - self.real), precisions.t)
        prior = _dot(_dot(root.T, prior), root)
        if self.cells.has_few_pairs:
            weight = _einsum("pz,pde->zde", self.cells.by_pair(c.n_cell), a)
        else:
            weight = self.cells.by_group(c.n_cell[:, None, None] * a[self.data.pattern])
        loose = (1 - self.occupied)[:, None, None] * jnp.eye(d, dtype=g.dtype)
        spread, log_det, _ = inverse_and_log_det(prior + weight + loose)
        # 4. Solve. The means m of the group effects are free, held at their values, or absent.
        equations = NormalEquations(
            self.cells, c.n_cell, f, g, x, x_cell, a, prior, spread, self.real, self.occupied,
            ridge, scale * gauge[:, None] * gauge, _JITTER * c.n_cell.sum() / k,
            ~(held | absent), jnp.where(absent, 0.0, _dot(theta.m, white.T)),
        )  # fmt: skip
        rows = _dot(jnp.concatenate([theta.b, theta.slopes]), white.T)
        m = jnp.where(equations.free, _dot(theta.m, white.T), equations.m)
        solution, m = solve(equations, Solution(rows, m))
        # 5. Back to units of the columns.
        m = jnp.where(equations.free, _dot(m * self.occupied[:, None], root.T), theta.m)
        m = jnp.where(absent, 0.0, m)
        spread = jnp.where(absent, 0.0, _dot(_dot(root, spread), root.T))
        solution = _dot(solution, root.T)
        return theta._replace(
            b=solution[:k], slopes=solution[k:], m=m, s=spread,
            log_det_s=precisions.log_det_sigma - log_det,
        )  # fmt: skip

    def scatter(self, sums: Sums, theta: Gaussian) -> jax.Array:
        """Expected scatter (P, d, d) of the residuals of observed values, by pattern.

        The scatter includes the posterior covariance of the group effects and rounding errors.
        """
        c, b, slopes = sums.constants, theta.b, theta.slopes
        m = theta.m[self.group]
        # 1. The scatter is the sum of x x' less Z + Z', where Z is a sum of products r v'. The
        #    vectors v are the centres, location effects and group effects.
        n = self.cells.by_pattern(sums.n)
        rows = self.cells.by_pattern(sums.x) - 0.5 * n[..., None] * b
        rows = rows - _einsum("pks,sd->pkd", sums.q, slopes)
        of_q = jnp.swapaxes(c.xq, 1, 2) - 0.5 * _einsum("pst,td->psd", c.qq, slopes)
        fit = _einsum("ck,kd->cd", sums.n, b) + _einsum("cs,sd->cd", c.q_cell, slopes)
        left = c.x_cell - fit - 0.5 * c.n_cell[:, None] * m
        rows, vectors = [rows, of_q], [b, slopes]
        if few := self.cells.has_few_pairs:
            rows, vectors = [*rows, self.cells.by_pair(left)], [*vectors, theta.m]
        z = _einsum("pad,ae->pde", jnp.concatenate(rows, 1), jnp.concatenate(vectors))
        # 2. The posterior covariance of the group effects adds to the scatter, and so do rounding
        #    errors.
        if few:
            uncertain = _einsum("pz,zde->pde", self.cells.by_pair(c.n_cell), theta.s)
        else:
            z = z + self.cells.by_pattern(left[:, :, None] * m[:, None])
            uncertain = self.cells.by_pattern(c.n_cell[:, None, None] * theta.s[self.group])
        uncertain = uncertain + c.n_pattern[:, None, None] * self.ridge.rounding
        result = c.xx - z - jnp.swapaxes(z, 1, 2)
        seen = self.data.observed
        return (result + uncertain) * seen[:, :, None] * seen[:, None, :]

    def _error_covariance(self, sums: Sums, theta: Gaussian, precisions: Precisions) -> Gaussian:
        """Update Sigma from the expected scatter of the complete residuals, and the ridge.

        Complete residuals include the residuals of missing values.
        """
        n = sums.constants.n_pattern
        total = precisions.complete_scatter(self.scatter(sums, theta), n)
        # Back to units of the columns; see `_locations`.
        root = _dot(theta.sigma, precisions.white.T)
        total = _dot(_dot(root, total), root.T)
        total = 0.5 * (total + total.T)
        total = total + self.ridge.location * _einsum("sd,se->de", theta.slopes, theta.slopes)
        # Restrict the scatter to the form of Sigma.
        if self.covariance != "tied":
            variances = jnp.diagonal(total)
            if self.covariance == "spherical":
                share = jnp.where(self.real > 0, variances / self.ridge.target, 0).sum() / self.d
                variances = share * self.ridge.target
            total = jnp.diag(variances)
        real = self.real[:, None] * self.real
        target = jnp.diag(self.ridge.target)
        sigma = (total + self.ridge.nu0 * theta.s0 * target) / (n.sum() + self.ridge.nu0)
        floor = _JITTER * (jnp.diagonal(sigma) * self.real).sum() / self.d
        eye = jnp.eye(len(sigma), dtype=sigma.dtype)
        return theta._replace(sigma=jnp.where(real > 0, sigma + floor * eye, eye))

    def _target_trace(self, matrix: jax.Array) -> jax.Array:
        """Trace of the product of a matrix (d, d) and the diagonal target matrix of the ridge."""
        return (jnp.diagonal(matrix) * self.ridge.target * self.real).sum()

    def _effect_covariance(self, theta: Gaussian) -> Gaussian:
        """Update T from the expected second moments of the group effects, with the prior of T."""
        moments = theta.s + theta.m[:, :, None] * theta.m[:, None, :]
        total = _einsum("z,zde->de", self.occupied, moments)
        target = self.ridge.tau0 * jnp.diag(self.ridge.target)
        t = (total + self.ridge.nu_t * target) / (self.occupied.sum() + self.ridge.nu_t)
        real = self.real[:, None] * self.real
        t = jnp.where(real > 0, t, jnp.eye(len(t), dtype=t.dtype))
        estimated = ~(self.effects.fixed | self.effects.absent)
        return theta._replace(t=jnp.where(estimated, t, theta.t))

    def penalty(self, theta: Gaussian, precisions: Precisions) -> jax.Array:
        """Part of the objective F that is added to the sum of the log densities.

        The part is the sum of the log priors, less the Kullback-Leibler divergences of the
        posteriors of the group effects from their priors. If group effects have a flat prior, the
        entropies of the posteriors are added instead.
        """
        ridge, d, real = self.ridge, self.d, self.real
        log_det_target = jnp.where(real > 0, jnp.log(ridge.target), 0).sum()
        # Ridge of Sigma, and prior of the location effects.
        trace = self._target_trace(precisions.sigma)
        value = (
            -0.5
            * ridge.nu0
            * (precisions.log_det_sigma - log_det_target + theta.s0 * trace - d * jnp.log(theta.s0))
        )
        slopes = theta.slopes
        value -= 0.5 * ridge.location * _einsum("sd,de,se->", slopes, precisions.sigma, slopes)

        # Group effects: Kullback-Leibler divergence of N(m_z, S_z) from N(0, T), and prior of T.
        square = _einsum("zd,de,ze->z", theta.m, precisions.t, theta.m)
        shrunken = _einsum("de,zde->z", precisions.t, theta.s)
        width = len(real)
        divergence = 0.5 * (shrunken + square - width + precisions.log_det_t - theta.log_det_s)
        prior = (
            0.5
            * ridge.nu_t
            * (
                precisions.log_det_t
                - log_det_target
                + ridge.tau0 * self._target_trace(precisions.t)
            )
        )
        random = -(self.occupied * divergence).sum() - prior
        fixed = (self.occupied * 0.5 * (theta.log_det_s + d)).sum()
        effects = jnp.where(self.effects.fixed, fixed, random)
        return value + jnp.where(self.effects.absent, 0.0, effects)


def initial_gaussian(
    n_clusters: int, n_slopes: int, m: Any, sigma: Any, ridge: Ridge, real: Any
) -> Gaussian:
    """Parameters before the first M-step; centres and location effects are 0.

    Parameters
    ----------
    n_clusters, n_slopes : numbers of clusters, K, and of design columns of location effects, s
    m : (L, d) initial group effects
    sigma : (d, d) initial covariance of the errors
    ridge : hyperparameters
    real : (d,) False for padding columns
    """
    n_groups, d = m.shape
    eye = jnp.eye(d, dtype=m.dtype)
    both = real[:, None] & real
    sigma = jnp.where(both, sigma, eye)
    # The variance of the ridge is updated by the first M-step.
    s0 = (jnp.diagonal(sigma) * real / ridge.target).sum() / real.sum()
    t = jnp.where(both, ridge.tau0 * jnp.diag(ridge.target), eye)
    return Gaussian(
        jnp.zeros((n_clusters, d), m.dtype), jnp.zeros((n_slopes, d), m.dtype), m,
        jnp.zeros((n_groups, d, d), m.dtype), jnp.zeros(n_groups, m.dtype), sigma, t, s0,
    )  # fmt: skip
