"""Restarts of the joint EM, which run in batches by one compiled program.

F is the objective that EM maximises; see `joint`. Sizes: n samples in B blocks of r samples (see
`joint`), K clusters, L known groups, d numeric columns, S restarts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.placement import on_cpu
from nrprob.engines.programs import jit_by_size
from nrprob.methods.conditional.discrete_block import (
    initial_discrete,
)
from nrprob.methods.conditional.gaussian_block import Effects, initial_gaussian
from nrprob.methods.conditional.joint import JointModel, JointState, Settings, Table
from nrprob.methods.conditional.shares import UNIFORM, initial_shares
from nrprob.statistics.rows import Layout

BATCH = 6  # restarts per call of the program
_TRIAL_STEPS = 24  # EM steps before hopeless restarts are left out
_INCREASES = 4.0  # a restart that needs more than this many times its last increase is hopeless
# Number of samples, with padding, or of entries of precision matrices, from which a CPU runs
# restarts one after another.
_LARGE = 1 << 14
_QUICKLY_COMPILED = 1 << 18  # size limit of `jit_by_size`
_WARM_UP_STEPS = 30  # maximum number of warm-up steps
_CERTAIN = 0.95  # membership of a sample in the cluster of its initial label


class Form(NamedTuple):
    """Form of the model of a fit: group effects, cluster shares and location effects.

    Attributes
    ----------
    held : whether group effects on numeric columns keep their initial values, the group means
    fixed : whether the prior of the group effects is flat
    absent : whether there are no group effects
    shares : UNIFORM, FREE or BY_GROUP
    location : whether there are location effects
    """

    held: Any
    fixed: Any
    absent: Any
    shares: Any = UNIFORM
    location: Any = False


class Ends(NamedTuple):
    """Final states of S restarts; every array has a leading axis of length S.

    Attributes
    ----------
    state : parameters, memberships and objective
    converged : whether the restart converged
    n_iter : number of EM steps after the warm-up
    trace : objective after every EM step, with the warm-up
    """

    state: JointState
    converged: Any
    n_iter: Any
    trace: Any

    @property
    def objective(self) -> np.ndarray:
        """Objective F (S,) of every restart."""
        return np.asarray(self.state.objective)

    def pick(self, i: int) -> Ends:
        """Return the final state of restart ``i``."""
        return jax.tree.map(lambda a: a[i], self)


@jit_by_size("n_clusters", "covariance", limit=_QUICKLY_COMPILED)
def run_restarts(
    table: Table,
    ridge: Any,
    tilt_ridge: Any,
    forms: Form,
    group_means: jax.Array | None,
    sigma: jax.Array | None,
    r: jax.Array,
    warm: jax.Array,
    max_iter: jax.Array,
    tol: jax.Array,
    noise: jax.Array,
    *,
    n_clusters: int,
    covariance: str,
) -> Ends:
    """Run EM from S initial memberships; every restart has its own form of the model.

    The call returns when all restarts have converged or have taken ``max_iter`` steps.

    Parameters
    ----------
    table, ridge, tilt_ridge, group_means, sigma : as in `Problem`
    forms : (S,) form of every restart
    r : (S, B, r, K) initial memberships
    warm : (S,) whether a warm-up with balanced memberships comes first
    max_iter : (S,) maximum number of EM steps after the warm-up
    tol : convergence criterion
    noise : share of noise
    n_clusters : number of clusters, K
    covariance : form of the error covariance: "tied", "diag" or "spherical"
    """
    n_groups = len(table.sizes)

    def run(form, r, warm, max_iter):
        """Run one restart."""
        effects = Effects(form.held, form.fixed, form.absent)
        located = table
        if table.numeric is not None:
            q = jnp.where(form.location, table.numeric.q, 0)
            located = table._replace(numeric=table.numeric._replace(q=q))
        model = JointModel(
            located, Settings(ridge, tilt_ridge, effects, form.shares, noise, tol), covariance
        )
        gaussian = discrete = None
        if table.numeric is not None:
            m = jnp.where(form.absent, 0.0, group_means)
            n_slopes = table.numeric.q.shape[-1]
            gaussian = initial_gaussian(n_clusters, n_slopes, m, sigma, ridge, table.numeric.real)
        if table.values is not None:
            discrete = initial_discrete(table.values, n_clusters, n_groups, tilt_ridge.scale)
        shares = initial_shares(n_groups, n_clusters, r.dtype)
        warm_up = jnp.where(warm, _WARM_UP_STEPS, 0)
        state = model.begin(r.swapaxes(1, 2), gaussian, discrete, shares, warm_up)
        result = model.run(state, max_iter)
        trace, quiet = result.trace
        state = result.state._replace(r=result.state.r.swapaxes(1, 2))
        return Ends(state, quiet.any(), result.state.n_iter, trace)

    return jax.vmap(run)(forms, r, warm, max_iter)


class Problem(NamedTuple):
    """Data, hyperparameters and settings of one fit, for its restarts.

    Attributes
    ----------
    table, layout : the samples in blocks, and the position of every sample in the blocks
    ridge, tilt_ridge : hyperparameters of the numeric and of the discrete block
    group_means : (L, d) initial group effects, which "subtract" retains; None without numeric
        columns
    sigma : (d, d) initial covariance; None without numeric columns
    n_clusters, covariance, tol, max_iter : settings of the fit
    """

    table: Table
    layout: Layout
    ridge: Any
    tilt_ridge: Any
    group_means: np.ndarray | None
    sigma: np.ndarray | None
    n_clusters: int
    covariance: str
    tol: float
    max_iter: int

    @property
    def sample_mass(self) -> np.ndarray:
        """Weights (n,) of the samples."""
        return self.layout.from_blocks(np.asarray(self.table.mass))

    @property
    def _is_large(self) -> bool:
        """Whether a CPU runs restarts one after another.

        The table then has many samples, or the precision matrices (d, d) of its missing patterns
        have many entries.
        """
        numeric = self.table.numeric
        n_entries = 0 if numeric is None else numeric.observed.size * len(numeric.real)
        return self.table.mass.size >= _LARGE or n_entries >= _LARGE

    def from_labels(self, labels: np.ndarray) -> np.ndarray:
        """Initial memberships (S, B, r, K) of S restarts, from initial labels (S, n).

        The membership of a sample is 0.95 + 0.05 / K in the cluster of its label, and 0.05 / K in
        every other cluster. If the table has target labels, the membership of a labelled sample in
        its target cluster is 1.
        """
        k = self.n_clusters
        hit = labels[..., None] == np.arange(k)
        r = _CERTAIN * hit + (1 - _CERTAIN) / k
        if self.table.label is not None:
            fixed = self.layout.from_blocks(self.table.label)[:, None]
            r = np.where(fixed >= 0, fixed == np.arange(k), r)
        return np.stack([self.layout.to_blocks(part) for part in r])

    def run(
        self, r: np.ndarray, forms: list[Form], warm: np.ndarray | None = None,
        max_iter: int | None = None, batch: int | None = None, noise: float = 0.0,
    ) -> Ends:  # fmt: skip
        """Run restarts; return their final states in the order of ``r``.

        Parameters
        ----------
        r : (S, B, r, K) initial memberships
        forms : form of the model of every restart
        warm : (S,) whether a warm-up comes first; by default there is no warm-up
        max_iter : maximum number of EM steps; by default ``max_iter`` of the problem
        batch : restarts per call of the compiled program; by default depends on the table's size
        noise : share of noise; ``table`` of the problem has the log noise densities
        """
        s = len(r)
        if batch is None:
            # In a batch, converged restarts, and restarts that only fill up the batch, take as long
            # as all others. This costs most on large tables.
            batch = 1 if self._is_large and on_cpu() else BATCH
        warm = np.zeros(s, bool) if warm is None else warm
        most = np.full(s, self.max_iter if max_iter is None else max_iter, np.int32)
        form = Form(*(np.array(column) for column in zip(*forms, strict=True)))
        ends = []
        # Restarts with a warm-up take longer, so they run in the same batches.
        order = np.argsort(warm, kind="stable")
        r, warm, most = r[order], warm[order], most[order]
        form = Form(*(a[order] for a in form))
        for start in range(0, s, batch):
            # All calls have the same shape: restarts that take no step fill up the last batch.
            pick = np.arange(start, start + batch)
            spare = pick >= s
            pick = np.minimum(pick, s - 1)
            ends.append(
                run_restarts(
                    self.table, self.ridge, self.tilt_ridge,
                    Form(*(a[pick] for a in form)), self.group_means, self.sigma,
                    r[pick], warm[pick] & ~spare, np.where(spare, 0, most[pick]),
                    np.asarray(self.tol), np.asarray(noise),
                    n_clusters=self.n_clusters, covariance=self.covariance,
                )
            )  # fmt: skip
        back = np.argsort(order)
        return jax.tree.map(
            lambda *parts: np.concatenate([*map(np.asarray, parts)])[:s][back], *ends
        )

    def leave_out_hopeless(self, r: np.ndarray, form: Form) -> np.ndarray:
        """Leave out initial memberships that are unlikely to lead to the largest objective.

        On a large table, all restarts take a few EM steps. A restart is hopeless if its objective
        would stay below the largest one even if it grew by several times its last increase. On a
        small table, no restart is left out.

        Parameters
        ----------
        r : (S, B, r, K) initial memberships
        form : form of the model of all restarts
        """
        if not self._is_large or len(r) == 1:
            return r
        ends = self.run(r, [form] * len(r), max_iter=_TRIAL_STEPS)
        middle = np.asarray(ends.trace)[:, _TRIAL_STEPS // 2 - 1]
        increase = np.nan_to_num(ends.objective - middle)  # NaN: converged before
        return r[ends.objective + _INCREASES * increase >= ends.objective.max()]

    def labels(self, ends: Ends) -> np.ndarray:
        """Labels (S, n) of the samples in every restart."""
        return np.stack([self.layout.from_blocks(r).argmax(1) for r in ends.state.r])
