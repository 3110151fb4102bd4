"""One cycle of cross-partition clustering: four steps, each of which lowers one term.

The distributions p(...) are over rows x, features y, clusters c and subsets w; `CrossPartition`
gives their equations. A star marks distributions that follow from the memberships p*(c|y) of
features. H(.|.) is the conditional entropy of the random variables C (cluster), Y (feature) and W
(subset).

Sizes: B blocks of r rows, p statistics of a row (m features, padding, and 1), V subsets, S runs
that are updated in parallel, K clusters. A block has rows of one subset only, unless rows have
probabilities p(w|x).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.programs import jit_by_size
from nrprob.statistics.rows import Rows

_TINY = 1e-250  # smaller weights are summed in log space
_LOG_RANGE = 500.0  # masses are scaled to exp(500), and sums below exp(-500) recomputed as logs


class Counts(NamedTuple):
    """Input of a cycle.

    Attributes
    ----------
    rows : rows in blocks; their statistics are p(y|x), their masses p(x), and their known groups
        the subsets
    eta : exponent of the geometric mean over subsets
    smoothing : weight l of the smoothed rows (1 - l) p(y|x) + l p(y|w)
    """

    rows: Rows
    eta: Any
    smoothing: Any


class Fields(NamedTuple):
    """Log distributions that follow from the memberships p(c|x) of the rows.

    Attributes
    ----------
    projected : (V, p, S, K) log p(y|c,w)
    feature : (p, S, K) log p*(c|y)
    weight : (S, K) log p*(c)
    centroid : (p, S, K) log p*(y|c); 0 for features without counts
    values : (S, 3) the terms that the steps for p(y|c,w), p*(c|y) and p*(y|c) lower: H(Y|C,W),
        minus the mean log normaliser of p*(c|y), and H(Y|C) under p*
    """

    projected: jax.Array
    feature: jax.Array
    weight: jax.Array
    centroid: jax.Array
    values: jax.Array


# Names of the four terms that the steps for p(c|x), p(y|c,w), p*(c|y) and p*(y|c) lower.
TERMS = ("CP1", "CP2", "CP*1", "CP*2")


@dataclass(frozen=True)
class Cycle:
    """Update of the memberships by one cycle, for all variants of `CrossPartition`.

    Attributes
    ----------
    feature_prior : whether p*(c) enters the step for p*(c|y), as in the variants "I" and "III"
    row_prior : whether p(c) enters the step for p(c|x), as in the variants "II" and "III"
    """

    feature_prior: bool
    row_prior: bool

    def feature_step(
        self,
        counts: Counts,
        totals: jax.Array,
        active: jax.Array,
        log_weight: jax.Array,
        log_q: jax.Array,
    ) -> Fields:
        """First three steps of a cycle: compute p(y|c,w), p*(c|y) and p*(y|c).

        Clusters are the last axis of all arrays, and sums over features are matrix products;
        otherwise XLA transposes arrays and recomputes logarithms.

        Parameters
        ----------
        counts : input of the cycle
        totals : (V, p) for every subset, statistics times masses, summed over the rows
        active : (K,) False for padded clusters
        log_weight : (S, K) log p*(c) of the previous cycle
        log_q : (B, r, S, K) log p(c|x)
        """
        is_feature = jnp.arange(totals.shape[1]) < totals.shape[1] - 1
        share = totals.sum(0) * is_feature  # p(y)
        occurs = (share > 0)[:, None, None]
        log_share = jnp.log(jnp.where(share > 0, share, 1))[:, None, None]
        log_q = jnp.where(active, log_q, 0)

        # p(y|c,w), and its geometric mean over subsets.
        projected, entropy = _project_clusters(
            counts, log_q, _subset_profiles(totals) * is_feature, active
        )
        mean = counts.eta * jnp.einsum("v,vpsk->psk", totals[:, -1], projected)
        if self.feature_prior:
            mean = mean + log_weight
        # p*(c|y): normalise over clusters.
        mean = jnp.where(active, mean, -jnp.inf)
        top = jax.lax.stop_gradient(mean.max(-1, keepdims=True))
        raised = jnp.exp(mean - top)
        total = jnp.einsum("psk,k->ps", raised, active.astype(raised.dtype))[..., None]
        member = raised / total
        total = jnp.log(total) + top
        feature = mean - total
        # p*(c), summed in log space if it underflows.
        size = jnp.einsum("psk,p->sk", member, share)
        weight = jax.lax.cond(
            jnp.any(active & (size < _TINY)),
            lambda: jax.nn.logsumexp(jnp.where(occurs, feature + log_share, -jnp.inf), 0),
            lambda: jnp.log(jnp.where(active, size, 1)),
        )
        weight = jnp.where(active, weight, -jnp.inf)
        # p*(y|c) by Bayes' rule, and the terms of the steps.
        centroid = feature + log_share - jnp.where(active, weight, 0)
        centroid = jnp.where(active & occurs, centroid, 0)
        cross = jnp.einsum("psk,psk->s", member * share[:, None, None], centroid)
        values = jnp.stack([entropy, -jnp.einsum("p,ps->s", share, total[..., 0]), -cross], -1)
        return Fields(projected, feature, weight, centroid, values)

    def __call__(self, counts: Counts, active: jax.Array) -> Callable[..., Any]:
        """Return the function that performs one cycle, for `nrprob.engines.optimise.limit_cycles`.

        The arguments of this function are the state log p*(c) (S, K), the log memberships log
        p(c|x) (B, r, S, K) and inverse temperatures (S,). The function returns the new state, new
        log memberships and the four `TERMS` (S, 4). ``active`` (K,) is False for padded clusters.
        """
        rows, smoothing = counts.rows, counts.smoothing
        log_mass, totals = _log_mass(rows), rows.totals()
        profile = _subset_profiles(totals)[:, :-1]

        def update(state, log_q, beta):
            result = self.feature_step(counts, totals, active, state, log_q)
            # p(c|x) from the centroids, with smoothed rows.
            everywhere = jnp.zeros_like(rows.group)
            log_r = rows.x.adjoint(jnp.moveaxis(result.centroid, 0, -1)[None], everywhere)
            common = jnp.einsum("vp,psk->vsk", profile, result.centroid[:-1])
            log_r = (1 - smoothing) * log_r + smoothing * _expand_to_rows(rows, common)
            log_r = beta[:, None] * log_r
            if self.row_prior:
                log_r = log_r + jax.nn.logsumexp(
                    log_mass[..., None, None] + jnp.where(active, log_q, 0), (0, 1)
                )
            masked = jnp.where(active, log_r, -jnp.inf)
            first = -(rows.mass[..., None] * jax.nn.logsumexp(masked, -1)).sum((0, 1))
            entropy, second, third = result.values.T
            values = jnp.stack([first, entropy, second, third], -1)
            return result.weight if self.feature_prior else state, log_r, values

        return update


@jit_by_size("cycle")
def compute_fields(counts, active, carry, *, cycle):
    """Log distributions (`Fields`) that follow from the memberships p(c|x) of the rows.

    ``carry`` is the pair of log p*(c) (S, K) and log p(c|x) (B, r, S, K). ``active`` (K,) is False
    for padded clusters, and ``cycle`` the variant of the update.
    """
    return cycle.feature_step(counts, counts.rows.totals(), active, *carry)


def _subset_profiles(totals: jax.Array) -> jax.Array:
    """Compute p(y|w) (V, p) from the ``totals`` (V, p) of the subsets; 0 for empty subsets."""
    mass = totals[:, -1:]
    return totals / jnp.where(mass > 0, mass, 1)


def _log_mass(rows: Rows) -> jax.Array:
    real = rows.mass > 0
    return jnp.where(real, jnp.log(jnp.where(real, rows.mass, 1)), -jnp.inf)


def _expand_to_rows(rows: Rows, values: jax.Array) -> jax.Array:
    """Expand values (V, S, K) of subsets to rows (B, r, S, K).

    A row with probabilities p(w|x) of the subsets gets the mean of their values.
    """
    if rows.share is None:
        return values[rows.group][:, None]
    return jnp.einsum("brv,vsk->brsk", rows.share, values)


def _project_clusters(
    counts: Counts, log_q: jax.Array, profile: jax.Array, active: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Compute log p(y|c,w) (V, p, S, K) and H(Y|C,W) (S,).

    ``log_q`` (B, r, S, K) is log p(c|x), and ``profile`` (V, p) is p(y|w). For a feature that is
    absent from a subset, the result is 0 instead of the logarithm, and the feature has no weight.
    Sums of p(x|c,w) p(y|x) that underflow are recomputed in log space, because the inverse
    temperature multiplies the logarithms of rare features. With smoothing, these logarithms are
    bounded.
    """
    rows, smoothing = counts.rows, counts.smoothing
    log_w = _log_mass(rows)[..., None, None] + log_q
    group, n = (rows.group, rows.n_groups)
    if rows.share is not None:
        group, n = jnp.zeros_like(rows.group), 1
    # Divide the masses p(x|c,w) by their maximum in each subset, against underflow.
    parts = _subset_log_masses(rows, log_w)
    tops = [jax.lax.stop_gradient(jax.ops.segment_max(part.max(1), group, n)) for part in parts]
    usual = [jnp.where(jnp.isfinite(t), t, 0) for t in tops]  # subsets may be empty
    raised = [part - t[group][:, None] + _LOG_RANGE for part, t in zip(parts, usual, strict=True)]

    def sum_parts(sum_cells, change):
        result = jnp.concatenate([sum_cells(change(part), group, n) for part in raised])
        return jnp.moveaxis(result, -1, 1)

    # Sum over rows, smooth, and normalise.
    total = sum_parts(rows.x.cells, jnp.exp)
    mass_totals = total[:, -1:]
    profile = profile[..., None, None]
    total = (1 - smoothing) * total + smoothing * profile * mass_totals
    size = jnp.log(mass_totals)
    ok = total > jnp.exp(-_LOG_RANGE)
    missing = (profile > 0) & ~ok
    # Absent features and the masses, which are the last statistic, get the log 0.
    ok = ok & (profile > 0)
    log_p = jnp.where(ok, jnp.log(jnp.where(ok, total, 1)) - size, 0)
    # Repeat sums that underflow in log space.
    log_p = jax.lax.cond(
        jnp.any(missing),
        lambda log_p: jnp.where(
            missing, sum_parts(rows.x.log_cells, lambda part: part) - size, log_p
        ),
        lambda log_p: log_p,
        log_p,
    )
    scale = jnp.where(active, jnp.exp(jnp.concatenate(tops) - _LOG_RANGE), 0)
    return log_p, -(scale * jnp.einsum("vpsk,vpsk->vsk", total, log_p)).sum((0, 2))


def _subset_log_masses(rows: Rows, log_w: jax.Array) -> list[jax.Array]:
    """List of log masses (B, r, S, K) of the rows in the clusters.

    If every row is in one subset, the list has the single array ``log_w`` (B, r, S, K). If rows
    have probabilities p(w|x), the list has one array per subset w: ``log_w`` plus log p(w|x).
    """
    if rows.share is None:
        return [log_w]
    shares = jnp.moveaxis(rows.share, -1, 0)
    logs = jnp.where(shares > 0, jnp.log(jnp.where(shares > 0, shares, 1)), -jnp.inf)
    return [log_w + log_share[..., None, None] for log_share in logs]
