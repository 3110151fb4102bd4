r"""Trees that merge the components of a draw, by dips of the density or exchange probabilities.

`nrprob.posterior.merge_trees` defines the dip between two components. Centres and covariances of
the components are posterior means, given the partition and the hyperparameters of a draw.

The dip is not defined for counts and binary features. With z the labels of a draw and x the
features, the exchange probability of components a and b is

    p_ab = mean of p(z_i = b | z_-i, x) over the samples i of a.

Here p(z_i = b | z_-i, x) is the probability of component b given all other samples, among the
components that exist in the draw. Two components merge if max(p_ab, p_ba) is large; see
`nrprob.posterior.merge_trees.trees_by_exchange`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.programs import jit_by_size
from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.target import Target, occupied
from nrprob.methods.bayes.draws import compact_draws
from nrprob.methods.bayes.joint_target import JointTarget
from nrprob.methods.bayes.pointwise import left_out_costs
from nrprob.posterior.components import trees_of_rows
from nrprob.posterior.draws import Draws, as_draws
from nrprob.posterior.merge_trees import Components, MergeTrees, trees_by_dip, trees_by_exchange

_BLOCK = 256  # draws that one call of a compiled program evaluates


def build_merge_trees(
    target: Any,
    draws: dict[str, np.ndarray],
    n_rows: int,
    n_features: int,
    n_classes: int,
    *,
    covariance: str,
    continuous: bool,
) -> MergeTrees:
    """Make the merge trees of all draws of a fit.

    Parameters
    ----------
    target : Target or JointTarget
        Distribution that was sampled, of ``n_rows`` samples with ``n_features`` features.
    draws : dict of array of shape (chain, draw, ...)
        ``labels`` (chain, draw, n) of components, and the variables of a `JointTarget`.
    n_classes : number of observed classes
        Components whose most frequent classes differ never merge.
    covariance : covariance model of the components
    continuous : whether features are continuous
    """
    components = as_draws(draws["labels"])
    x = np.asarray(target.x)[:n_rows]
    classes = x[:, -1 - n_classes : -1] if n_classes else np.zeros((n_rows, 1))
    codes = np.where(classes.any(1), classes.argmax(1), -1)
    if continuous and not isinstance(target, JointTarget):
        return trees_of_rows(components, x[:, :n_features], covariance, codes)
    names = target.names if isinstance(target, JointTarget) else ()
    flat = {name: draws[name].reshape(-1, *draws[name].shape[2:]) for name in names}
    flat["labels"] = components.codes
    program = component_moments if continuous else exchange_sums
    parts = _evaluate_in_blocks(program, target, flat, components)
    if continuous:
        means, covariances = parts
        return trees_by_dip(components, Components(means, covariances), codes)
    return trees_by_exchange(components, parts, codes)


def _evaluate_in_blocks(
    program: Any, target: Any, draws: dict[str, np.ndarray], components: Draws
) -> Any:
    """Evaluate ``program(target, draws)`` in blocks of draws.

    The results have the shape (S, K, ...), for S draws and K slots. The function returns arrays
    with one row per occupied component, in the order of the draws.
    """
    draws, target = compact_draws(draws, target)
    n_draws, parts = len(draws["labels"]), []
    for start in range(0, n_draws, _BLOCK):
        # All blocks have one size, so that they share one program.
        which = np.minimum(np.arange(start, start + _BLOCK), n_draws - 1)
        result = program(target, {name: a[which] for name, a in draws.items()})
        k = components.n_clusters[start : start + _BLOCK]
        n_slots = jax.tree.leaves(result)[0].shape[1]
        listed = np.arange(n_slots) < k[:, None]
        parts.append(jax.tree.map(lambda a, m=listed: np.asarray(a)[: len(m)][m], result))
    return jax.tree.map(lambda *a: np.concatenate(a), *parts)


@jit_by_size()
def component_moments(target: JointTarget, draws: Draw) -> tuple[jax.Array, jax.Array | None]:
    """Posterior means (S, K, d) and covariances of the components of S draws.

    `nrprob.methods.bayes.joint_target.Likelihood.moments` defines them.
    """

    def moments(draw):
        given_draw = target.condition(draw)
        return given_draw.likelihood.moments(given_draw.cells(draw["labels"]))

    return jax.lax.map(moments, draws)


@jit_by_size()
def exchange_sums(target: Target, draws: Draw) -> jax.Array:
    """Sums of exchange probabilities (S, K, K) of S draws with K slots for components.

    Entry (s, a, b) is the sum of p(z_i = b | z_-i, x) over the samples i of component a in draw s.
    """
    return jax.lax.map(lambda draw: _exchange_sums(target, draw["labels"]), draws)


def _exchange_sums(target: Target, labels: jax.Array) -> jax.Array:
    cells = target.cells(labels)
    is_own = labels == jnp.arange(target.n_slots)[:, None]
    nats = left_out_costs(target, cells, labels)
    # If a component has one sample only, this sample would open it as a new component.
    is_occupied = occupied(cells)
    k, alone = is_occupied.sum(), cells.sum(0)[labels, -1] < 1.5
    opens = target.sizes[k] - target.sizes[jnp.maximum(k - 1, 1)]
    nats = nats + jnp.where(is_own & alone, opens, 0)
    p = jax.nn.softmax(jnp.where(is_occupied[:, None], -nats, -jnp.inf), axis=0)
    return (is_own * target.x[:, -1]) @ p.T
