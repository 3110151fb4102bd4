"""Gibbs updates of labels that are not exchangeable, since each label has weights.

Shapes: n samples; n' samples with padding; K labels.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.target import Target, occupied, sum_cells
from nrprob.methods.bayes.joint_target import JointTarget


def resample_labelled(
    target: JointTarget, labels: jax.Array, weights: jax.Array, key: jax.Array
) -> Draw:
    """Sample labels (n',) with log weights (n, K), and then the hyperparameters; return the values.

    The K! / (K - k)! labelings of a partition into k clusters have equal prior probabilities.
    """
    parameter_key, sweep_key, swap_key, update_key = jax.random.split(key, 4)
    sweep_target = target.gibbs_target(target.cells(labels), parameter_key)
    labels = _sweep_rows(sweep_target, labels, weights, sweep_key)
    labels = _swap_labels(labels, weights, swap_key)
    return {"labels": labels, **target.resample(labels, update_key).draw()}


def _sweep_rows(target: Target, labels: jax.Array, weights: jax.Array, key: jax.Array) -> jax.Array:
    """Gibbs sweep: sample the label of every row given all other labels, in random order."""
    (n, n_labels), (order_key, draw_key) = weights.shape, jax.random.split(key)
    order = jax.random.permutation(order_key, n)
    # The weights of slots beyond the K labels are -inf, so that these slots stay empty.
    excess = ((0, 0), (0, target.n_slots - n_labels))
    weights = jnp.pad(weights, excess, constant_values=-jnp.inf)

    def update_row(j, carry):
        cells, labels = carry
        i = order[j]
        row, group = target.x[i][None], target.group[i][None]
        # 1. Remove the row, and set emptied cells to exactly 0.
        less = cells - sum_cells(target, row, group, labels[i][None])
        less = jnp.where(less[..., -1:] > 0.5, less, 0)
        # 2. Increase of the description length if the row joins each slot. A new cluster may take
        # any of the empty slots.
        is_occupied = occupied(less)
        k = is_occupied.sum()
        before = jnp.where(k > 0, target.sizes[k], 0)
        opening = target.sizes[jnp.minimum(k + 1, n_labels)] - before
        opening = opening + jnp.log(jnp.maximum(n_labels - k, 1))
        cost = target.joining(less, row, group)[:, 0] + jnp.where(is_occupied, 0, opening)
        # 3. Sample the label.
        row_key = jax.random.fold_in(draw_key, j)
        label = jax.random.categorical(row_key, weights[i] - target.scale * cost)
        label = label.astype(labels.dtype)
        return less + sum_cells(target, row, group, label[None]), labels.at[i].set(label)

    _, labels = jax.lax.fori_loop(0, n, update_row, (target.cells(labels), labels))
    return labels


def _swap_labels(labels: jax.Array, weights: jax.Array, key: jax.Array) -> jax.Array:
    """Propose K times to exchange two labels, which changes only the sum of the log weights."""
    n, n_labels = weights.shape
    members = jax.nn.one_hot(labels[:n], n_labels, dtype=weights.dtype)
    totals = members.T @ jnp.maximum(weights, -1e100)  # sums by cluster and label
    pair_key, accept_key = jax.random.split(key)
    pairs = jax.random.randint(pair_key, (n_labels, 2), 0, n_labels)
    log_u = jnp.log(jax.random.uniform(accept_key, (n_labels,)))

    def propose_swap(t, label_of):
        a, b = pairs[t, 0], pairs[t, 1]
        swapped = label_of.at[a].set(label_of[b]).at[b].set(label_of[a])

        def total(names):
            return jnp.take_along_axis(totals, names[:, None], 1).sum()

        return jnp.where(log_u[t] < total(swapped) - total(label_of), swapped, label_of)

    label_of = jax.lax.fori_loop(0, n_labels, propose_swap, jnp.arange(n_labels))
    return label_of[labels].astype(labels.dtype)
