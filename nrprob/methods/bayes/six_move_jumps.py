"""Jumps between numbers of components: split and combine, birth and death.

All jumps are Metropolis-Hastings-Green moves on unlabelled components. Proposals of new parameters
do not depend on the old parameters, so the Jacobian is 1. Probabilities of classes are integrated
out here and resampled by the next moves. Under the conjugate prior, all parameters are integrated
out, and the acceptance ratio has marginal likelihoods.

A split replaces component j by components a and b. Component a uses the slot of j. There are k
components before the split. Component j has n_j rows and c_j units of weight, of G units in total.
The log acceptance ratio of the split is the sum of

- *evidence*: E(a) + E(b) - E(j). For "nml", E is the log of likelihood times prior density over
  proposal density of a component's parameters. For "conjugate", E is the log marginal likelihood of
  the component;
- *number*: A(k) - A(k + 1);
- *weights* ("nml"): log Z - n_j log c_j + log(k / (G - k)). The units c_a of a are sampled with the
  probability c_a^n_a (c_j - c_a)^n_b / Z, and there are (G - k) / k times as many compositions of
  G units into k + 1 parts as into k parts;
- *choice*: log of the probability of choosing the reverse combination over the probability of
  choosing the split.

The acceptance ratio of a combination is the inverse, with sampled parameters of the merged
component.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.sample.split_merge import draw_pair_of_rows
from nrprob.methods.bayes.six_move_draws import (
    Box,
    cell_moments,
    draw_means,
    draw_scales,
    draw_transfer,
    invert_cumulative,
    log_evidence,
)
from nrprob.methods.bayes.six_move_target import Conjugate, Mixture, MixtureTarget


class LogRatio(NamedTuple):
    """Terms of the log acceptance ratio of a split; see the module docstring."""

    evidence: jax.Array
    number: jax.Array
    weights: jax.Array
    choice: jax.Array


def log_ratio(terms: LogRatio) -> jax.Array:
    """Log acceptance ratio of a split; the log ratio of a combination is its negative."""
    return terms.evidence + terms.number + terms.weights + terms.choice


class Jump(NamedTuple):
    """State after a proposed jump, and whether the jump was accepted.

    Attributes
    ----------
    mixture, cells : next state, and statistics (K, p) of its components
    split : whether the proposal was a split or birth
    accepted : whether the proposal was accepted
    """

    mixture: Mixture
    cells: jax.Array
    split: jax.Array
    accepted: jax.Array


class _Pair(NamedTuple):
    """The two components that a jump merges, or the component that it splits.

    Attributes
    ----------
    a, b : slots to merge, or slot a to split into a and b
    split : whether the proposal is a split
    members : (n',) mask of the rows of the components
    upper : (n',) mask of the members that are in b when a and b are separate
    halves : (2, p) statistics of a and b when they are separate
    """

    a: jax.Array
    b: jax.Array
    split: jax.Array
    members: jax.Array
    upper: jax.Array
    halves: jax.Array


class _Parameters(NamedTuple):
    """Means (m, d) and log scales (m, d) of the features of m components."""

    means: jax.Array
    log_scales: jax.Array


def describe_components(target: MixtureTarget, cells: jax.Array, key: jax.Array) -> _Parameters:
    """Means and log scales (m, d) of m components with statistics ``cells`` (m, p).

    For "nml", means and log scales are sampled. For "conjugate", they are maximum-likelihood
    estimates, which only serve to choose splits.
    """
    m = cell_moments(cells, target.n_features)
    if isinstance(target.prior, Box):
        scale_key, mean_key = jax.random.split(key)
        t = draw_scales(scale_key, m, target.prior)
        return _Parameters(draw_means(mean_key, m, t, target.prior), t)
    return _Parameters(m.mean, 0.5 * jnp.log(jnp.maximum(m.squares / jnp.maximum(m.n, 1), 1e-30)))


def _log_marginals(target: MixtureTarget, cells: jax.Array, log_scales: jax.Array) -> jax.Array:
    """Terms E (m,) of the log ratio, for components with statistics (m, p).

    For "conjugate" these are log marginal likelihoods; for "nml" they depend on ``log_scales``.
    """
    if isinstance(target.prior, Box):
        m = cell_moments(cells, target.n_features)
        features = log_evidence(m, log_scales, target.prior).sum(-1)
        return features - target.classes(cells)
    return -sum(term.cost(cells) for term in target.partition.terms)


def _propose_exchange(
    target: MixtureTarget, mixture: Mixture, cells: jax.Array, pair: _Pair, key: jax.Array
) -> tuple[Mixture, jax.Array, LogRatio, _Parameters, jax.Array]:
    """Propose parameters and weights for a split or merge, and evaluate the log ratio.

    Returns
    -------
    mixture, cells : proposed state, and statistics (K, p) of its components
    terms : terms of the log ratio of the split, or of the reverse of the merge; the caller sets
        *choice*
    merged : parameters of the merged component
    means : (K, d) means of the state in which a and b are separate
    """
    part_key, draw_key = jax.random.split(key)
    three = jnp.concatenate([pair.halves.sum(0)[None], pair.halves])
    slots = jnp.stack([pair.a, pair.a, pair.b])
    new = jnp.stack([~pair.split, pair.split, pair.split])[:, None]
    sampled = describe_components(target, three, draw_key)
    old = _Parameters(mixture.means[slots], mixture.log_scales[slots])
    result = jax.tree.map(lambda u, v: jnp.where(new, u, v), sampled, old)
    e = _log_marginals(target, three, result.log_scales)
    k = mixture.active.sum() - jnp.where(pair.split, 0, 1)  # number of components after a merge
    sizes = target.sizes
    number = sizes[k] - sizes[jnp.minimum(k + 1, target.max_clusters)]
    n = three[:, -1]
    total = mixture.parts[pair.a] + jnp.where(pair.split, 0, mixture.parts[pair.b])
    parts, weights = mixture.parts, jnp.zeros_like(number)
    if isinstance(target.prior, Box):
        u = jax.random.uniform(part_key, (), total.dtype)
        c, log_z = draw_transfer(target.x.shape[0], total, n[1], n[2], u)
        weights = log_z - n[0] * jnp.log(total) + jnp.log(k / jnp.maximum(target.grid - k, 1))
        parts = parts.at[pair.a].set(jnp.where(pair.split, c, total))
        parts = parts.at[pair.b].set(jnp.where(pair.split, total - c, 0))

    def put_components(values, three):
        first = jnp.where(pair.split, three[1], three[0])
        return values.at[pair.a].set(first).at[pair.b].set(three[2])

    labels = jnp.where(pair.split & pair.members & pair.upper, pair.b, mixture.labels)
    labels = jnp.where(~pair.split & pair.members, pair.a, labels)
    after = mixture._replace(
        labels=labels,
        active=mixture.active.at[pair.b].set(pair.split),
        parts=parts,
        means=put_components(mixture.means, result.means),
        log_scales=put_components(mixture.log_scales, result.log_scales),
    )
    three = three.at[2].multiply(pair.split)
    two_means = mixture.means.at[pair.a].set(result.means[1]).at[pair.b].set(result.means[2])
    terms = LogRatio(e[1] + e[2] - e[0], number, weights, jnp.zeros_like(number))
    merged = _Parameters(result.means[0], result.log_scales[0])
    return after, put_components(cells, three), terms, merged, two_means


def _accept_or_reject(
    before: Any, after: Any, split: Any, terms: LogRatio, possible: Any, u: Any
) -> Jump:
    ratio = log_ratio(terms)
    accept = possible & (jnp.log(u) < jnp.where(split, ratio, -ratio))
    mixture, cells = jax.tree.map(lambda new, old: jnp.where(accept, new, old), after, before)
    return Jump(mixture, cells, split, accept)


def _choose_active(active: jax.Array, u: jax.Array) -> jax.Array:
    """Choose one of the active slots (K,) at random, by a uniform variate ``u``."""
    order = jnp.cumsum(active)
    return jnp.argmax(active & (order > jnp.floor(u * order[-1]))).astype(jnp.int32)


def _nearest_component(means: jax.Array, active: jax.Array, slot: jax.Array) -> jax.Array:
    """Active slot other than ``slot`` with the nearest mean, by Euclidean distance."""
    away = jnp.square(means - means[slot]).sum(-1)
    other = active & (jnp.arange(active.size) != slot)
    return jnp.argmin(jnp.where(other, away, jnp.inf)).astype(jnp.int32)


def _feature_column(target: MixtureTarget, which: jax.Array) -> jax.Array:
    """Values (n',) of feature ``which`` of all rows; a product is faster than indexing."""
    d = target.n_features
    return target.x[:, :d] @ (jnp.arange(d) == which).astype(target.x.dtype)


def _free_slot(active: jax.Array) -> jax.Array:
    return jnp.argmin(active).astype(jnp.int32)


def _up_probability(k: jax.Array, most: jax.Array) -> jax.Array:
    """Probability of proposing a split or birth, given ``k`` components of at most ``most``."""
    return jnp.where(k <= 1, 1.0, jnp.where(k >= most, 0.0, 0.5))


def pivot_move(target: MixtureTarget, mixture: Mixture, cells: jax.Array, key: jax.Array) -> Jump:
    """Split or combine as published (Yin, 2007, 4.8.4), with the corrected acceptance ratio.

    Split: choose a component at random, and divide its rows at a pivot in the feature with the
    largest scale. The pivot is uniform on mean +- scale. Combine: choose a component at random, and
    join it with the component of the nearest mean. Let rho be the share of pivots that give the
    same division, and up(k) the probability of proposing a split of one of k components. m (0, 1 or
    2) is the number of halves whose nearest component is the other half. The term *choice* is the
    log of ``[(1 - up(k + 1)) m / (k + 1)] / [up(k) rho / k]``; Yin (2007, 4.9) has 1 instead of
    this ratio.
    """
    draw_key, exchange_key = jax.random.split(key)
    active, most = mixture.active, target.max_clusters
    dtype = mixture.means.dtype
    u = jax.random.uniform(draw_key, (4,), dtype)
    now = active.sum()
    split = u[0] < _up_probability(now, most)
    a = _choose_active(active, u[1])
    b = jnp.where(split, _free_slot(active), _nearest_component(mixture.means, active, a))
    real = target.mass > 0
    in_a, in_b = real & (mixture.labels == a), real & (mixture.labels == b)
    members = jnp.where(split, in_a, in_a | in_b)

    widest = jnp.argmax(mixture.log_scales[a])
    middle, reach = mixture.means[a, widest], jnp.exp(mixture.log_scales[a, widest])
    pivot = middle + reach * (2 * u[2] - 1)
    upper = jnp.where(split, _feature_column(target, widest) > pivot, in_b)
    sides = jnp.stack([members & ~upper, members & upper])
    halves = sides.astype(dtype) @ target.x
    pair = _Pair(a, b, split, members, upper, halves)
    after, cells_after, terms, merged, means = _propose_exchange(
        target, mixture, cells, pair, exchange_key
    )

    # The reverse move also uses the feature with the largest scale of the merged component.
    widest = jnp.argmax(merged.log_scales)
    middle, reach = merged.means[widest], jnp.exp(merged.log_scales[widest])
    values = _feature_column(target, widest)
    most_of = jnp.where(sides, values, -jnp.inf).max(1)
    least_of = jnp.where(sides, values, jnp.inf).min(1)
    order = most_of[0] < least_of[1]
    below = jnp.where(order, most_of[0], most_of[1])
    above = jnp.where(order, least_of[1], least_of[0])
    gap = jnp.minimum(above, middle + reach) - jnp.maximum(below, middle - reach)
    both = (halves[:, -1] > 0.5).all()
    rho = jnp.where(both, jnp.maximum(gap, 0) / (2 * reach), 0)
    open_ = active.at[b].set(True)
    mutual = (
        0.0
        + (_nearest_component(means, open_, a) == b)
        + (_nearest_component(means, open_, b) == a)
    )

    k = jnp.where(split, now, now - 1)
    up, down = _up_probability(k, most), 1 - _up_probability(k + 1, most)
    possible = (a != b) & (rho > 0) & (mutual > 0) & (k >= 1) & (k < most)
    rho, mutual = jnp.where(possible, rho, 1), jnp.where(possible, mutual, 1)
    choice = jnp.log(down * mutual * k / (jnp.maximum(up, 0.5) * rho * (k + 1)))
    terms = terms._replace(choice=jnp.where(possible, choice, 0))
    return _accept_or_reject((mixture, cells), (after, cells_after), split, terms, possible, u[3])


def launched_move(
    target: MixtureTarget, mixture: Mixture, cells: jax.Array, key: jax.Array, n_launch: int
) -> Jump:
    """Split or combine the components of two rows i and j, chosen independently of the state.

    A split assigns each other row of the component to the half of i or of j, independently, with
    probabilities from a launch state. The term *choice* is minus the log of the product of these
    probabilities. Both directions use the same launch state, which depends on i, j and the rows of
    the two components only. With probability 1/2 it results from ``n_launch`` passes of hard
    assignments that start from i and j. Otherwise all rows except j are with i in the launch state,
    and rows near j are likely to join j. Unlike the halves of `pivot_move`, these halves may
    overlap.
    """
    draw_key, exchange_key = jax.random.split(key)
    size, dtype = target.x.shape[0], target.x.dtype
    u = jax.random.uniform(draw_key, (size + 6,), dtype, jnp.finfo(dtype).tiny)
    noise = jnp.log(u[6:]) - jnp.log1p(-u[6:])  # logistic
    i, j = draw_pair_of_rows(target.partition, u[:4])
    row = jnp.arange(size)
    a = mixture.labels[i]
    split = mixture.labels[j] == a
    b = jnp.where(split, _free_slot(mixture.active), mixture.labels[j]).astype(a.dtype)
    in_b = (mixture.labels == b) & ~split
    members = (target.mass > 0) & ((mixture.labels == a) | in_b)
    rest = members & (row != i) & (row != j)
    rows = jnp.where(members[:, None], target.x, 0)

    def halves_of(upper):
        upper = (upper | (row == j)) & (row != i)
        return upper, jnp.stack([~upper, upper]).astype(dtype) @ rows

    def odds(halves):
        """Log odds (n',) that rows join b rather than a, given statistics (2, p) of a and b."""
        cost = target.partition.joining(halves[None], target.x, jnp.zeros_like(row))
        return cost[0] - cost[1]

    joined = u[4] < 0.5
    halves = jnp.where(joined, halves_of(jnp.zeros_like(in_b))[1], target.x[jnp.stack([i, j])])
    halves = jax.lax.fori_loop(
        0, jnp.where(joined, 0, n_launch), lambda _, halves: halves_of(odds(halves) > 0)[1], halves
    )
    logit = odds(halves)
    upper, halves = halves_of(jnp.where(split, noise < logit, in_b))
    log_q = jnp.where(rest, jax.nn.log_sigmoid(jnp.where(upper, logit, -logit)), 0).sum()
    pair = _Pair(a, b, split, members, upper, halves)
    after, cells_after, terms, _, _ = _propose_exchange(target, mixture, cells, pair, exchange_key)
    possible = (i != j) & ~(split & (mixture.active.sum() >= target.max_clusters))
    terms = terms._replace(choice=-log_q)
    return _accept_or_reject((mixture, cells), (after, cells_after), split, terms, possible, u[5])


def birth_move(target: MixtureTarget, mixture: Mixture, cells: jax.Array, key: jax.Array) -> Jump:
    """Birth or death of an empty component ("nml" only).

    The parameters of the new component are sampled from the base distribution, which cancels in the
    ratio. The new component takes units of weight from another component, chosen at random. With m
    empty components after the birth, the term *choice* is the log of ``(1 - up(k + 1)) / (up(k)
    m)``. The choice of the other component cancels, since it is one of k in both directions.
    """
    uniform_key, draw_key = jax.random.split(key)
    active, most = mixture.active, target.max_clusters
    dtype = mixture.means.dtype
    u = jax.random.uniform(uniform_key, (5,), dtype)
    now = active.sum()
    birth = u[0] < _up_probability(now, most)
    empty = active & (cells[:, -1] < 0.5)
    dying = _choose_active(empty, u[1])
    b = jnp.where(birth, _free_slot(active), dying)
    others = active & (jnp.arange(target.n_slots) != b)
    a = _choose_active(others, u[2])
    k = others.sum()
    n_empty = jnp.where(birth, empty.sum() + 1, empty.sum())
    possible = (k >= 1) & (k < most) & (birth | empty.any())

    n = cells[a, -1]
    total = mixture.parts[a] + jnp.where(birth, 0, mixture.parts[b])
    c, log_z = draw_transfer(target.x.shape[0], total, n, jnp.zeros_like(n), u[3])
    sizes = target.sizes
    number = sizes[k] - sizes[jnp.minimum(k + 1, most)]
    weights = log_z - n * jnp.log(total) + jnp.log(k / jnp.maximum(target.grid - k, 1))
    up, down = _up_probability(k, most), 1 - _up_probability(k + 1, most)
    choice = jnp.log(down / (jnp.maximum(up, 0.5) * jnp.maximum(n_empty, 1)))
    zero = jnp.zeros_like(number)
    terms = LogRatio(zero, *(jnp.where(possible, v, 0) for v in (number, weights, choice)))
    sampled = describe_components(target, jnp.zeros_like(cells[:1]), draw_key)
    parts = mixture.parts.at[a].set(jnp.where(birth, c, total))
    after = mixture._replace(
        active=active.at[b].set(birth),
        parts=parts.at[b].set(jnp.where(birth, total - c, 0)),
        means=mixture.means.at[b].set(sampled.means[0]),
        log_scales=mixture.log_scales.at[b].set(sampled.log_scales[0]),
    )
    return _accept_or_reject((mixture, cells), (after, cells), birth, terms, possible, u[4])


def single_move(target: MixtureTarget, mixture: Mixture, cells: jax.Array, key: jax.Array) -> Jump:
    """Birth or death of a component of a single row.

    Birth: row i leaves its component a, which has other rows, and becomes a component. The
    parameters of a do not change under "nml". Row i is chosen with the probability w_i / W: w_i is
    the inverse of its density in a, and W the sum of w over all rows that may leave. So one
    proposal considers all rows, and prefers outliers. Death: one of the s components of a single
    row dies. Its row joins component c, which has other rows, with a probability r_c that is nearly
    proportional to the density of the row in c. The term *choice* of a birth is the log of
    ``[(1 - up(k + 1)) r_a / s] / [up(k) w_i / W]``, with s after the birth and w before it.
    """
    uniform_key, draw_key = jax.random.split(key)
    active, most, d = mixture.active, target.max_clusters, target.n_features
    x, full = target.x, isinstance(target.prior, Box)
    u = jax.random.uniform(uniform_key, (6,), x.dtype)
    now = active.sum()
    birth = u[0] < _up_probability(now, most)
    slots, row = jnp.arange(target.n_slots), jnp.arange(x.shape[0])
    single = active & (jnp.abs(cells[:, -1] - 1) < 0.5)
    dying = _choose_active(single, u[1])
    b = jnp.where(birth, _free_slot(active), dying)
    leaver = jnp.argmax((mixture.labels == dying) & (target.mass > 0))

    def where_to(rest, i):
        """Log probabilities (K,) that row i joins each component of the other rows.

        ``rest`` (K, p) are the statistics of the components without row i.
        """
        if full:
            log_r = _plug_in(target, mixture, rest) @ x[i]
        else:
            log_r = -target.partition.joining(rest[None], x[i][None], jnp.zeros(1, int))[:, 0]
        return jax.nn.log_softmax(jnp.where(rest[:, -1] > 0.5, log_r, -jnp.inf))

    without = jnp.where((slots == b)[:, None], 0, cells)
    log_r = where_to(without, leaver)
    goes = jnp.minimum((jnp.cumsum(jnp.exp(log_r)) <= u[2]).sum(), target.n_slots - 1)
    goes = jnp.where(jnp.isfinite(log_r[goes]), goes, jnp.argmax(log_r))

    # The state with fewer components: the state before a birth, or the state after a death.
    together = jnp.where(birth, cells, without + (slots == goes)[:, None] * x[leaver])
    labels = jnp.where(~birth & (row == leaver), goes.astype(mixture.labels.dtype), mixture.labels)
    member = (slots[:, None] == labels).astype(x.dtype)
    log_w = -((_plug_in(target, mixture, together).T @ member) * x.T).sum(0)
    company = (target.mass > 0) & ((together[:, -1] @ member) > 1.5)
    log_w = jnp.where(company, log_w, -jnp.inf)
    log_w = log_w - jnp.where(company.any(), log_w.max(), 0)
    w = jnp.exp(log_w)
    i = jnp.where(birth, invert_cumulative(w, u[3]), leaver)
    a = jnp.where(birth, mixture.labels[i], goes).astype(mixture.labels.dtype)

    rest = together - (slots == a)[:, None] * x[i]
    rest = jnp.where(rest[:, -1:] > 0.5, rest, 0)
    apart = rest + (slots == b)[:, None] * x[i]
    r = where_to(rest, i)[a]
    n_single = (jnp.abs(apart[:, -1] - 1) < 0.5).sum()
    k = jnp.where(birth, now, now - 1)
    up, down = _up_probability(k, most), 1 - _up_probability(k + 1, most)
    choice = jnp.log(down / (jnp.maximum(up, 0.5) * jnp.maximum(n_single, 1)))
    choice = choice + r + jnp.log(w.sum()) - log_w[i]
    possible = (k >= 1) & (k < most) & company[i] & (birth | single.any())

    three = jnp.stack([together[a], rest[a], x[i]])
    sampled = describe_components(target, three, draw_key)
    new = jnp.where(birth, sampled.log_scales[2], mixture.log_scales[b])
    parts, weights = mixture.parts, jnp.zeros_like(r)
    means, log_scales = mixture.means, mixture.log_scales
    if full:
        t, mean = log_scales[a], means[a]
        away = jnp.square((x[i, :d] - mean) * jnp.exp(-t))
        density = -(0.5 * away + t + 0.5 * jnp.log(2 * jnp.pi)).sum()
        classes = -target.classes(three)
        alone = log_evidence(cell_moments(three[2:], d), new[None], target.box).sum()
        evidence = alone - density + classes[1] + classes[2] - classes[0]
        total = parts[a] + jnp.where(birth, 0, parts[b])
        n = three[0, -1]
        c, log_z = draw_transfer(x.shape[0], total, n - 1, jnp.ones_like(n), u[4])
        weights = log_z - n * jnp.log(total) + jnp.log(k / jnp.maximum(target.grid - k, 1))
        parts = parts.at[a].set(jnp.where(birth, c, total))
        parts = parts.at[b].set(jnp.where(birth, total - c, 0))
    else:
        e = _log_marginals(target, three, sampled.log_scales)
        evidence = e[1] + e[2] - e[0]
        which = jnp.where(birth, 1, 0)
        means = means.at[a].set(sampled.means[which])
        log_scales = log_scales.at[a].set(sampled.log_scales[which])
    sizes = target.sizes
    number = sizes[k] - sizes[jnp.minimum(k + 1, most)]
    after = Mixture(
        jnp.where(birth & (row == i), b, labels).astype(labels.dtype),
        active.at[b].set(birth),
        parts,
        means.at[b].set(sampled.means[2]),
        log_scales.at[b].set(new),
        mixture.class_probs,
    )
    terms = LogRatio(evidence, number, weights, choice)
    result = jnp.where(birth, apart, together)
    return _accept_or_reject((mixture, cells), (after, result), birth, terms, possible, u[5])


def _plug_in(target: MixtureTarget, mixture: Mixture, cells: jax.Array) -> jax.Array:
    """Coefficients (K, p) of the log density of a row in each component, from estimates.

    The parameters that the sampler integrates out are estimated from the statistics ``cells``
    (K, p). The weights of the components are the numbers of their rows.
    """
    d = target.n_features
    n = cells[:, -1]
    a = target.class_concentration + cells[:, 2 * d : 2 * d + target.n_classes]
    means, t = mixture.means, mixture.log_scales
    if isinstance(target.prior, Conjugate):
        prior, m = target.prior, cell_moments(cells, d)
        means = m.n * m.mean / (prior.kappa + m.n)
        rate = prior.scale + 0.5 * (m.squares + prior.kappa * means * m.mean)
        t = 0.5 * jnp.log(rate / (prior.shape + 0.5 * m.n))
    probs = a / a.sum(-1, keepdims=True)
    return target.coefficients(Mixture(mixture.labels, n > 0.5, n, means, t, probs))
