"""One cycle of cross-partition clustering: four steps, each of which lowers a term of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.statistics.rows import Rows

_SEEN = 500.0  # logs of sums between minus this and this have lost nothing


class Counts(NamedTuple):
    """What a cycle looks at.

    Attributes
    ----------
    rows : statistics p(y|x), masses p(x), and subsets as known groups
    eta : exponent of the geometric mean over subsets
    """

    rows: Rows
    eta: Any


class Fields(NamedTuple):
    """What follows from memberships, in logs; ``p`` counts the statistics of a row.

    Attributes
    ----------
    projected : (V, S, K, p) log p(y|c,w)
    feature : (S, K, p) log p*(c|y)
    weight : (S, K) log p*(c)
    centroid : (S, K, p) log p*(y|c); 0 for features that no row has
    values : (S, 3) H(Y|C,W), the term of the step to p*(c|y), and H*(Y|C)
    """

    projected: jax.Array
    feature: jax.Array
    weight: jax.Array
    centroid: jax.Array
    values: jax.Array


# One for every value of a cycle.
TERMS = ("CP1", "CP2", "CP*1", "CP*2")


@dataclass(frozen=True)
class Cycle:
    """The update of CP and its variants; see `CrossPartition`.

    Attributes
    ----------
    feature_prior : whether p*(c) enters the features' step (CP_I, CP_III)
    row_prior : whether p(c) enters the rows' step (CP_II, CP_III)
    """

    feature_prior: bool
    row_prior: bool

    def fields(
        self, counts: Counts, active: jax.Array, log_weight: jax.Array, log_q: jax.Array
    ) -> Fields:
        """Features' side of a cycle, from log p*(c) (S, K) and log p(c|x) (B, r, S, K)."""
        rows, totals = counts.rows, counts.rows.totals()
        is_feature = jnp.arange(totals.shape[1]) < totals.shape[1] - 1
        totals_of_subsets = totals[:, -1]
        share = totals.sum(0) * is_feature  # p(y)
        occurs = share > 0
        log_share = jnp.log(jnp.where(occurs, share, 1))
        present = (totals > 0) & is_feature
        log_q = jnp.where(active, log_q, 0)

        projected, entropies = _projections(rows, log_q, present)
        entropies = jnp.where(active, entropies, 0).sum((0, 2))
        weights = jnp.where(present, totals_of_subsets[:, None], 0)
        mean = counts.eta * jnp.einsum("vp,vskp->skp", weights, projected)
        if self.feature_prior:
            mean = mean + log_weight[..., None]
        mean = jnp.where(active[:, None], mean, -jnp.inf)
        total = jax.nn.logsumexp(mean, 1, keepdims=True)
        feature = mean - total
        joint = jnp.where(occurs, feature + log_share, -jnp.inf)
        weight = jax.nn.logsumexp(joint, -1)
        centroid = jnp.where(
            active[:, None] & occurs, joint - jnp.where(active, weight, 0)[..., None], 0
        )
        masses = jnp.exp(jnp.where(active[:, None], joint, -jnp.inf))
        values = jnp.stack(
            [
                entropies,
                -jnp.where(occurs, share * total[:, 0], 0).sum(-1),
                -(masses * centroid).sum((1, 2)),
            ],
            -1,
        )
        return Fields(projected, feature, weight, centroid, values)

    def __call__(self, counts: Counts, active: jax.Array) -> Callable[..., Any]:
        """Make the update; see `nrprob.engines.orbits`."""
        rows = counts.rows
        log_mass = _log_mass(rows)

        def update(state, log_q, beta):
            found = self.fields(counts, active, state, log_q)
            everywhere = jnp.zeros_like(rows.group)
            log_r = beta[:, None] * rows.x.adjoint(found.centroid[None], everywhere)
            if self.row_prior:
                log_r = log_r + jax.nn.logsumexp(
                    log_mass[..., None, None] + jnp.where(active, log_q, 0), (0, 1)
                )
            masked = jnp.where(active, log_r, -jnp.inf)
            first = -(rows.mass[..., None] * jax.nn.logsumexp(masked, -1)).sum((0, 1))
            entropy, second, third = found.values.T
            values = jnp.stack([first, entropy, second, third], -1)
            return found.weight if self.feature_prior else state, log_r, values

        return update


@partial(jax.jit, static_argnames="cycle")
def fields(counts, active, carry, *, cycle):
    """What follows from memberships that were found; see `Cycle.fields`."""
    return cycle.fields(counts, active, *carry)


def _log_mass(rows: Rows) -> jax.Array:
    real = rows.mass > 0
    return jnp.where(real, jnp.log(jnp.where(real, rows.mass, 1)), -jnp.inf)


def _projections(rows: Rows, log_q: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log p(y|c,w) (V, S, K, p), and p(c,w) H(Y|c,w) (V, S, K).

    ``present`` (V, p) says which features occur in which subset; the others get the log 0, and
    carry no weight. Where a sum of p(x|c,w) p(y|x) underflows, all are taken in logs: those of
    features that a cluster hardly has are multiplied by beta, and decide where rows go.
    """
    log_w = _log_mass(rows)[..., None, None] + log_q
    group, n = (rows.group, rows.n_groups)
    if rows.share is not None:
        group, n = jnp.zeros_like(rows.group), 1
    parts = _parts(rows, log_w)
    tops = [jax.ops.segment_max(part.max(1), group, n) for part in parts]
    top = jax.lax.stop_gradient(jnp.concatenate(tops))[..., None]
    raised = [
        part - jax.lax.stop_gradient(t[group][:, None]) + _SEEN
        for part, t in zip(parts, tops, strict=True)
    ]
    total = jnp.concatenate([rows.x.cells(jnp.exp(part), group, n) for part in raised])
    size = jnp.log(total[..., -1:])
    present = present[:, None, None]
    ok = total > jnp.exp(-_SEEN)
    log_p = jnp.where(present & ok, jnp.log(jnp.where(ok, total, 1)) - size, 0)
    plogp = (jnp.where(present, total, 0) / total[..., -1:] * log_p).sum(-1)
    entropy = -jnp.exp(size - _SEEN + top)[..., 0] * plogp

    def in_logs(log_p):
        exact = jnp.concatenate([rows.x.log_cells(part, group, n) for part in raised])
        return jnp.where(present & ~ok, exact - size, log_p)

    return jax.lax.cond(jnp.any(present & ~ok), in_logs, lambda log_p: log_p, log_p), entropy


def _parts(rows: Rows, log_w: jax.Array) -> list[jax.Array]:
    """Log masses of the rows: of all subsets where they are hard, else of one after the other."""
    if rows.share is None:
        return [log_w]
    shares = jnp.moveaxis(rows.share, -1, 0)
    logs = jnp.where(shares > 0, jnp.log(jnp.where(shares > 0, shares, 1)), -jnp.inf)
    return [log_w + log_share[..., None, None] for log_share in logs]
