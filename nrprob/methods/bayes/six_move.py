"""Six-move sampler of mixtures with their parameters (Yin, 2007, section 4.8), corrected.

An iteration makes the published moves, with acceptance probabilities that leave the distribution of
a `MixtureTarget` invariant. "nml" and "conjugate" are the two distributions of `six_move_target`. A
*row* is a sample. The weight of a component under "nml" is a number of *units*, divided by the
total number of units G.

1. Weights given labels. "nml" pairs components at random and samples the division of units within
   each pair from its exact conditional distribution. (The published step arranges the components on
   a line and moves every boundary between two components by +1 or -1 unit. A component between two
   boundaries then gains or loses 0 or 2 units, so that its number of units stays odd or stays
   even.) "conjugate" samples all weights from a Dirichlet distribution.
2. Labels of all rows given all other variables. "conjugate" proposes labels for blocks of rows.
   "conjugate" rejects a proposal that empties a component. The rejection is valid since the
   proposal does not depend on the current labels.
3. Death and rebirth ("nml"). Components of at most one row propose new parameters from the base
   distribution. The acceptance probability is the ratio of likelihoods, not the new likelihood
   alone.
4. Split and combine, and birth and death of components without rows or with one row; see
   `six_move_jumps`.
5. Means and scales given labels. "conjugate" samples them from their conditional distribution.
   "nml" restricts them to a box. "nml" proposes from a distribution that is close to the
   conditional one, and accepts by the Metropolis-Hastings rule.
6. Probabilities of the classes, from Dirichlet distributions.

Move 4 integrates out the class probabilities, and for "conjugate" also weights, means and scales.
The integration is valid because moves 1, 5 and 6 resample these parameters before any other move
uses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.sample.chains import ChainState, Draw, PartitionKernel
from nrprob.engines.sample.uniforms import draw_categories, normal, uniform
from nrprob.methods.bayes.six_move_draws import (
    Box,
    cell_moments,
    draw_means,
    draw_scales,
    draw_transfer,
    log_evidence,
    log_gamma_variate,
)
from nrprob.methods.bayes.six_move_jumps import (
    birth_move,
    describe_components,
    launched_move,
    pivot_move,
    single_move,
)
from nrprob.methods.bayes.six_move_target import (
    Mixture,
    MixtureTarget,
    log_joint,
    make_mixture_target,
)

__all__ = ["SixMoveKernel", "log_joint", "make_mixture_target"]

_PARTS = 16  # blocks of rows whose proposed labels are accepted or rejected together


@dataclass(frozen=True)
class SixMoveKernel(PartitionKernel):
    """Sampler of mixtures with their parameters, for a `MixtureTarget`.

    Attributes
    ----------
    n_split_combine : proposals of `pivot_move` per iteration
    n_split_merge : proposals of `launched_move` per iteration
    n_birth_death : proposals of `birth_move` per iteration; "conjugate" has none
    n_single : proposals of `single_move` per iteration
    n_launch : passes of hard assignments that lead to the launch state of `launched_move`
    """

    n_split_combine: int = 1
    n_split_merge: int = 3
    n_birth_death: int = 1
    n_single: int = 3
    n_launch: int = 3

    def begin(self, target: MixtureTarget, labels: jax.Array, key: jax.Array) -> ChainState:
        """Initial state of one chain with labels (n',), without empty components."""
        return _begin(target, labels, key)

    def step(self, target: MixtureTarget, state: ChainState) -> ChainState:
        """Make one iteration of one chain, and return the next state."""
        key, now = jax.random.split(state.rng_key)
        mixture, cells, moves = self._sweep_once(target, _as_mixture(target, state.draw), now)
        return ChainState(_as_draw(target, mixture, cells), moves, key)

    def _sweep_once(self, target: MixtureTarget, mixture: Mixture, key: jax.Array):
        keys = jax.random.split(key, 6)
        moves = _no_moves()
        full = isinstance(target.prior, Box)
        if full:
            cells = target.cells(mixture.labels)
            mixture = mixture._replace(parts=share_units(target, mixture, cells, keys[0]))
        mixture, accepted, proposed = draw_labels(target, mixture, keys[1])
        cells = target.cells(mixture.labels)
        moves |= {"gibbs": proposed, "gibbs_accepted": accepted}
        if full:
            mixture, proposed, accepted = rebirth_components(target, mixture, cells, keys[2])
            moves |= {"rebirth": proposed, "rebirth_accepted": accepted}
        else:
            fitted = describe_components(target, cells, keys[2])
            mixture = mixture._replace(means=fitted.means, log_scales=fitted.log_scales)
        pivot, launched, birth, single = jax.random.split(keys[3], 4)
        launch = partial(launched_move, n_launch=self.n_launch)
        kinds = [
            ("pivot", pivot_move, self.n_split_combine, pivot),
            ("launched", launch, self.n_split_merge, launched),
            ("empty", birth_move, self.n_birth_death if full else 0, birth),
            ("single", single_move, self.n_single, single),
        ]
        for name, move, count, move_key in kinds:
            mixture, cells, counts = _repeat_jump(target, move, mixture, cells, move_key, count)
            moves |= {f"{name}_{key}": value for key, value in counts.items()}
        moves |= _sum_jumps(moves)
        if full:
            mixture, proposed, accepted = draw_normals(target, mixture, cells, keys[4])
            moves |= {"normals": proposed, "normals_accepted": accepted}
            probs = draw_classes(target, cells, keys[5])
            return mixture._replace(class_probs=probs), cells, moves
        return complete_mixture(target, mixture.labels, cells, keys[4]), cells, moves


@jax.jit  # compiled even if the caller is not a compiled program
def _begin(target: MixtureTarget, labels: jax.Array, key: jax.Array) -> ChainState:
    key, now = jax.random.split(key)
    labels = jnp.where(target.mass > 0, labels, 0).astype(jnp.int32)
    cells = target.cells(labels)
    mixture = complete_mixture(target, labels, cells, now)
    return ChainState(_as_draw(target, mixture, cells), _no_moves(), key)


_JUMPS = ("split", "split_accepted", "merge", "merge_accepted")


def _no_moves() -> Draw:
    names = [*_JUMPS]
    for kind in ("pivot", "launched", "empty", "single"):
        names += [f"{kind}_{name}" for name in _JUMPS]
    for kind in ("gibbs", "rebirth", "normals"):
        names += [kind, f"{kind}_accepted"]
    return {name: jnp.zeros((), jnp.int32) for name in names}


def _sum_jumps(moves: Draw) -> Draw:
    """Sums of the counts of pivot moves and of launched moves, by direction and acceptance."""
    return {name: moves[f"pivot_{name}"] + moves[f"launched_{name}"] for name in _JUMPS}


def _repeat_jump(target, move, mixture, cells, key, count):
    """Propose a split-merge or birth-death move ``count`` times.

    Returns the mixture, the cells, and the numbers of proposals and acceptances by direction.
    """

    def once(t, carry):
        mixture, cells, counts = carry
        jump = move(target, mixture, cells, jax.random.fold_in(key, t))
        up, down = jump.split, ~jump.split
        now = jnp.stack([up, up & jump.accepted, down, down & jump.accepted])
        return jump.mixture, jump.cells, counts + now

    counts = jnp.zeros(4, jnp.int32)
    if count:
        mixture, cells, counts = jax.lax.fori_loop(0, count, once, (mixture, cells, counts))
    return mixture, cells, dict(zip(_JUMPS, counts, strict=True))


# Full conditional distributions


def share_units(
    target: MixtureTarget, mixture: Mixture, cells: jax.Array, key: jax.Array
) -> jax.Array:
    """Move 1 of "nml": resample the units of weight (K,) within random pairs of components."""
    order_key, unit_key = jax.random.split(key)
    slots = target.n_slots
    dtype = mixture.parts.dtype
    u = jnp.where(mixture.active, uniform(order_key, (slots,), dtype), 2)
    earlier = (u < u[:, None]) | ((u == u[:, None]) & np.tri(slots, slots, -1, bool))
    rank = earlier.sum(1)
    v = uniform(unit_key, (slots,), dtype)
    n = cells[:, -1]

    def share_pair(pair, parts):
        a, b = (jnp.argmax(rank == 2 * pair + side) for side in (0, 1))
        total = parts[a] + parts[b]
        c, _ = draw_transfer(target.x.shape[0], total, n[a], n[b], v[pair])
        return parts.at[a].set(c).at[b].set(total - c)

    return jax.lax.fori_loop(0, mixture.active.sum() // 2, share_pair, mixture.parts)


def draw_labels(
    target: MixtureTarget, mixture: Mixture, key: jax.Array
) -> tuple[Mixture, jax.Array, jax.Array]:
    """Move 2 of the sampler: sample labels.

    Returns the new state, and the numbers of accepted and of proposed blocks.
    """
    x = target.x
    log_p = target.coefficients(mixture) @ x.T
    log_p = jnp.where(mixture.active[:, None], log_p, -jnp.inf)
    categories = draw_categories(log_p, uniform(key, x.shape[:1], x.dtype))
    labels = jnp.where(target.mass > 0, categories, 0)
    if isinstance(target.prior, Box):
        single = jnp.ones((), jnp.int32)
        return mixture._replace(labels=labels), single, single
    slots = jnp.arange(target.n_slots)[:, None]
    old, new = ((slots == z) * target.mass for z in (mixture.labels, labels))
    n = x.shape[0]
    parts = min(_PARTS, n)
    wide = -(-n // parts)
    # Adjacent rows, which are often similar, are in different blocks, so that the proposal of a
    # block rarely empties a component.
    change = jnp.pad(new - old, ((0, 0), (0, wide * parts - n)))
    change = change.reshape(-1, wide, parts).sum(1).T

    def accept_part(counts, change):
        good = ((counts + change > 0.5) | ~mixture.active).all()
        return counts + jnp.where(good, change, 0), good

    good = jax.lax.scan(accept_part, old.sum(1), change)[1]
    labels = jnp.where(jnp.tile(good, wide)[:n], labels, mixture.labels)
    return mixture._replace(labels=labels), good.sum().astype(jnp.int32), jnp.int32(parts)


def rebirth_components(
    target: MixtureTarget, mixture: Mixture, cells: jax.Array, key: jax.Array
) -> tuple[Mixture, jax.Array, jax.Array]:
    """Propose new parameters for components of at most one row: move 3 of the six-move kernel.

    Returns the new state, and the numbers of proposals and of acceptances.
    """
    normal_key, class_key, accept_key = jax.random.split(key, 3)
    nobody = jnp.zeros_like(cells)
    fresh = describe_components(target, nobody, normal_key)
    new = mixture._replace(
        means=fresh.means,
        log_scales=fresh.log_scales,
        class_probs=draw_classes(target, nobody, class_key),
    )
    now, then = ((target.coefficients(m) * cells).sum(-1) for m in (mixture, new))
    tries = mixture.active & (cells[:, -1] < 1.5)
    u = uniform(accept_key, now.shape, now.dtype)
    accept = tries & (jnp.log(u) < then - now)
    chosen = jax.tree.map(lambda a, b: jnp.where(accept[:, None], a, b), new[3:], mixture[3:])
    return Mixture(*mixture[:3], *chosen), _count_true(tries), _count_true(accept)


def draw_normals(
    target: MixtureTarget, mixture: Mixture, cells: jax.Array, key: jax.Array
) -> tuple[Mixture, jax.Array, jax.Array]:
    """Move 5 of the sampler under "nml": propose mean and scale of each feature and component.

    Returns the new state, and the numbers of proposals and of acceptances.
    """
    scale_key, mean_key, accept_key = jax.random.split(key, 3)
    m = cell_moments(cells, target.n_features)
    t = draw_scales(scale_key, m, target.box)
    new, old = (log_evidence(m, v, target.box) for v in (t, mixture.log_scales))
    means = draw_means(mean_key, m, t, target.box)
    u = uniform(accept_key, t.shape, t.dtype)
    accept = jnp.log(u) < new - old
    tries = jnp.broadcast_to(mixture.active[:, None], t.shape)
    mixture = mixture._replace(
        means=jnp.where(accept, means, mixture.means),
        log_scales=jnp.where(accept, t, mixture.log_scales),
    )
    return mixture, _count_true(tries), _count_true(tries & accept)


def draw_classes(target: MixtureTarget, cells: jax.Array, key: jax.Array) -> jax.Array:
    """Move 6: sample the probabilities (K, C) of the classes in each component."""
    d = target.n_features
    counts = cells[:, 2 * d : 2 * d + target.n_classes]
    return jax.nn.softmax(log_gamma_variate(key, target.class_concentration + counts), -1)


def complete_mixture(
    target: MixtureTarget, labels: jax.Array, cells: jax.Array, key: jax.Array
) -> Mixture:
    """Sample the parameters of a mixture without empty components, given labels (n',).

    "conjugate" samples all parameters from their conditional distribution. "nml" samples means and
    scales from the proposal distributions of move 5, and class probabilities as in move 6. The
    units of weight are nearly proportional to the numbers of rows.
    """
    active = cells[:, -1] > 0.5
    if isinstance(target.prior, Box):
        normal_key, class_key = jax.random.split(key)
        result = describe_components(target, cells, normal_key)
        parts = _apportion_units(cells[:, -1], active, target.grid)
        probs = draw_classes(target, cells, class_key)
        return Mixture(labels, active, parts, result.means, result.log_scales, probs)
    prior, d, c = target.prior, target.n_features, target.n_classes
    gamma_key, mean_key = jax.random.split(key)
    m = cell_moments(cells, d)
    slots = cells.shape[0]
    weight = jnp.where(active, prior.concentration + cells[:, -1], 1)
    counts = target.class_concentration + cells[:, 2 * d : 2 * d + c]
    shape = jnp.broadcast_to(prior.shape + 0.5 * m.n, (slots, d))
    log_g = log_gamma_variate(gamma_key, jnp.concatenate([weight[:, None], counts, shape], 1))
    parts = jax.nn.softmax(jnp.where(active, log_g[:, 0], -jnp.inf))
    shrink = prior.kappa + m.n
    rate = prior.scale + 0.5 * (m.squares + prior.kappa * m.n / shrink * m.mean**2)
    t = 0.5 * (jnp.log(rate) - log_g[:, 1 + c :])
    noise = normal(mean_key, (slots, d), t.dtype)
    means = m.n * m.mean / shrink + jnp.exp(t) / jnp.sqrt(shrink) * noise
    return Mixture(labels, active, parts, means, t, jax.nn.softmax(log_g[:, 1 : 1 + c], -1))


def _apportion_units(n: jax.Array, active: jax.Array, grid: jax.Array) -> jax.Array:
    """Units of weight (K,) of active components, nearly proportional to the numbers of rows ``n``.

    Each active component has at least 1 unit of ``grid`` units in total.
    """
    spare = grid - active.sum()
    parts = jnp.where(active, 1 + jnp.floor(spare * n / jnp.maximum(n.sum(), 1)), 0)
    return parts.at[jnp.argmax(parts)].add(grid - parts.sum())


def _count_true(flags: jax.Array) -> jax.Array:
    return flags.sum().astype(jnp.int32)


# Draws


def _as_draw(target: MixtureTarget, mixture: Mixture, cells: jax.Array) -> Draw:
    if isinstance(target.prior, Box):
        length = target.length(mixture, cells)
    else:
        length = target.partition.length(cells[None])
    return {
        "labels": mixture.labels,
        "n_clusters": _count_true(mixture.active),
        "log_density": -length,
        "weights": jnp.where(mixture.active, mixture.parts / target.grid, 0),
        "means": mixture.means,
        "scales": jnp.exp(mixture.log_scales),
        "class_probs": mixture.class_probs,
        "active": mixture.active,
    }


def _as_mixture(target: MixtureTarget, draw: Draw) -> Mixture:
    parts = draw["weights"] * target.grid
    if isinstance(target.prior, Box):
        parts = jnp.round(parts)
    log_scales = jnp.log(draw["scales"])
    return Mixture(
        draw["labels"], draw["active"], parts, draw["means"], log_scales, draw["class_probs"]
    )
