r"""Target distribution of MCMC over the labels of several views, from their description length.

The target is the joint distribution of the labels z_v of n samples in V views and of a forest over
the views,

.. math:: p(z_1, ..., z_V, forest) \propto \exp(-L), \qquad
    L = \sum_v F_v(z_v) + W(z_1, ..., z_V, forest) + Y(z_1),

where F_v is the length of the features of view v, W the length of the labels and Y the length of
the known classes; see `nrprob.methods.mdl.informed_length`. Features have complete codes. Known
classes are coded as additional features of the first view. Known groups have effects in continuous
views, which are sampled with the labels; see `nrprob.methods.mdl.group_effects`.

View v has K_v slots: the possible labels in a state of the sampler. If the number of clusters is
selected, a partition into k clusters has k! labelings with the labels 1 to k. The partition has
K_v!/(K_v - k)! states of the sampler. The target therefore divides exp(-L) by the number of sets of
k slots. The states of a partition then have the same total probability as its k! labelings.

The *cost* of a label is the increase of L if a sample gets this label, given the labels of all
other samples. The labels of one sample in all views have a joint cost. On the forest, the joint
cost is a sum of node costs (V, K) and edge costs (V, K, K). For the code by one table, the joint
cost is a sum of node costs and the cost of a cell. A cell is a combination of clusters of all
views. Words are code words; see `nrprob.methods.mdl.label_codes`. A unit of the first view is a
must-link component. K is the largest K_v; G is a number of known groups, p a number of statistics,
and C the number of units of the first view, each of at most M samples. P and T are numbers of
values of grids.
"""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.sample.target import Target, sum_cells
from nrprob.methods.mdl.group_effects import (
    code_of,
    effect_length,
    sample_effects,
    subtract_effects,
)
from nrprob.methods.mdl.pair_words import PairWords
from nrprob.trees import node

IMPOSSIBLE = 1e30  # cost of a label that a sample cannot have; finite, so that sums are numbers
_STATIC: dict[str, Any] = {"static": True}


def choose_category(logits: jax.Array, u: jax.Array) -> jax.Array:
    """Sample one of K categories with unnormalised log probabilities ``logits`` (K,).

    The uniform variate ``u`` is transformed by the inverse distribution function.
    """
    sums = jnp.cumsum(jnp.exp(logits - logits.max()))
    return jnp.minimum((sums <= u * sums[-1]).sum(), logits.size - 1).astype(jnp.int32)


class Counts(NamedTuple):
    """Sufficient statistics of the labels of samples in V views.

    Attributes
    ----------
    cells : for every view, sums (G, K_v, p) of the statistics of samples, by known group and
        cluster
    sizes : (V, K) numbers of samples in the clusters of every view
    words : (G, K) numbers of code words of the first view, by known group and cluster; G is 1
        unless words are coded given the known groups
    pairs : (V, V, K, K) for every two views, numbers of samples by cluster of the first and cluster
        of the second; empty unless the code is a forest
    joint : (cells,) numbers of samples by combination of clusters, one of each view; empty unless
        the code is a table
    """

    cells: tuple[jax.Array, ...]
    sizes: jax.Array
    words: jax.Array
    pairs: jax.Array
    joint: jax.Array


class Costs(NamedTuple):
    """Costs of the labels of one sample: increases of the description length by each label.

    Attributes
    ----------
    nodes : (V, K) costs of the features in each cluster of every view; for roots of the forest,
        also of the label
    edges : (V, K, K) costs of the label (last axis) in every view, given the label in the parent
        view (second axis)
    cells : (cells,) costs of the labels in all views if the code is a table, without ``nodes``;
        empty for other codes
    word : (K,) costs of the code word of the first view as if there were no pairs, a part of
        ``nodes``
    """

    nodes: jax.Array
    edges: jax.Array
    cells: jax.Array
    word: jax.Array


class Parameters(NamedTuple):
    """Hyperparameters and effects of known groups, which are sampled together with the labels.

    Attributes
    ----------
    prior : (V,) index of the hyperparameters of every continuous view in its grid
    effects : (V, G, d) effects of the G known groups, for the largest number d of features of a
        view; (V, 0, 0) without effects
    scale : (V,) index of the standard deviation of the effects of every view in its grid
    """

    prior: jax.Array
    effects: jax.Array
    scale: jax.Array


@node
class ViewsTarget:
    """Joint distribution of the labels of n samples in V views, and of the forest over the views.

    Attributes
    ----------
    views : for every view, the target of its features, with the statistics of all samples
    priors : for every continuous view, grid (P, 3) of the hyperparameters kappa, variance and
        freedom of its clusters; None for other views
    effect_scales : for every view, grid (T,) of the standard deviation of the effects of known
        groups; None for views without effects
    unit : (n,) unit (must-link component) of every sample in the first view
    word_group : (n,) known group of every sample if words are coded given the groups, else 0
    members : (C, M) samples of every unit, padded with n
    unit_size : (C,) number of samples of every unit
    sizes : (V,) number K_v of slots (possible labels) of every view
    used : (V,) whether the number of clusters of the view is selected
    x_log_x : (n + 2,) table of x log x for x = 0, 1, ...
    complexity : (K + 1, n + 2) parametric complexities of multinomials, by number of symbols and
        number of words
    root_charge : (V, K + 1) part of the length of the labels of a root that depends only on the
        number of clusters, for every number
    slot_charge : (V, K + 1) log number of sets of k out of K_v slots, for every number of clusters
        k; 0 if the number of clusters is given
    table_charge : for every number of cells, the part of the length of the labels under one table
        that depends only on this number
    pair_words : code words of the first view under pairs; None without cannot-links and soft pairs
    constant : part of the length that does not depend on the labels
    n_word_groups : number of known groups if words are coded given the groups, else 1
    code : joint code of the labels: "table", "forest" or "independent"
    """

    views: tuple[Target, ...]
    priors: tuple[jax.Array | None, ...]
    effect_scales: tuple[jax.Array | None, ...]
    unit: jax.Array
    word_group: jax.Array
    members: jax.Array
    unit_size: jax.Array
    sizes: jax.Array
    used: jax.Array
    x_log_x: jax.Array
    complexity: jax.Array
    root_charge: jax.Array
    slot_charge: jax.Array
    table_charge: jax.Array
    pair_words: PairWords | None
    constant: jax.Array
    n_word_groups: int = field(metadata=_STATIC)
    code: str = field(metadata=_STATIC)

    @property
    def n_views(self) -> int:
        """Number V of views."""
        return len(self.views)

    @property
    def n_samples(self) -> int:
        """Number n of samples."""
        return self.unit.shape[0]

    @property
    def largest(self) -> int:
        """Largest number K of slots of a view."""
        return max(view.n_slots for view in self.views)

    def unit_labels(self, z: jax.Array) -> jax.Array:
        """Labels (C,) of the must-link components in the first view, from labels z (V, n)."""
        return z[0, self.members[:, 0]]

    def cell_labels(self) -> np.ndarray:
        """Labels (cells, V) of all cells, which are combinations of one slot per view."""
        sizes = tuple(view.n_slots for view in self.views)
        return np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), 1)

    def cell_of(self, labels: jax.Array) -> jax.Array:
        """Indices (...) of the cells with the labels (V, ...); see `cell_labels`."""
        cell = jnp.zeros(labels.shape[1:], labels.dtype)
        for view, z in zip(self.views, labels, strict=True):
            cell = cell * view.n_slots + z
        return cell

    # Hyperparameters

    def _view_at(self, v: int, prior: jax.Array) -> Target:
        term, *others = self.views[v].terms
        kappa, variance, freedom = prior
        cost: Any = term.cost
        cost = replace(cost, kappa=kappa, variance=variance, freedom=freedom)
        return replace(self.views[v], terms=(replace(term, cost=cost), *others))

    def begin_parameters(self, key: jax.Array) -> Parameters:
        """Initial values of hyperparameters, effects and scales of effects in one chain.

        The effects of known groups are the deviations of the group means from the total mean, times
        a random number in [0, 1). Hyperparameters and scales are in the middle of their grids.
        """
        prior = jnp.asarray([0 if grid is None else len(grid) // 2 for grid in self.priors])
        scale = jnp.asarray([0 if grid is None else len(grid) // 2 for grid in self.effect_scales])
        dims = [
            0 if grid is None else code_of(view).n_features
            for view, grid in zip(self.views, self.effect_scales, strict=True)
        ]
        n_groups = self.views[0].n_groups if any(dims) else 0
        effects = jnp.zeros((self.n_views, n_groups, max(dims)))
        for v, d in enumerate(dims):
            if d:
                view, zeros = self.views[v], jnp.zeros(self.n_samples, jnp.int32)
                sums = sum_cells(view, view.x, view.group, zeros)[:, 0]
                means = sums[:, :d] / jnp.maximum(sums[:, -1:], 1)
                part = jax.random.uniform(jax.random.fold_in(key, v))
                effects = effects.at[v, :, :d].set(part * (means - view.x[:, :d].mean(0)))
        return Parameters(prior, effects, scale)

    def with_parameters(self, parameters: Parameters) -> ViewsTarget:
        """Target of the labels given hyperparameters and effects.

        The effects are subtracted from the features.
        """
        target = self.with_priors(parameters.prior)
        views = tuple(
            view if grid is None else subtract_effects(view, parameters.effects[v])
            for v, (view, grid) in enumerate(zip(target.views, self.effect_scales, strict=True))
        )
        return replace(target, views=views)

    def effect_lengths(self, parameters: Parameters) -> jax.Array:
        """Minus the log prior density of the effects of known groups in all views."""
        total = jnp.zeros(())
        for v, (view, grid) in enumerate(zip(self.views, self.effect_scales, strict=True)):
            if grid is not None:
                scale, d = grid[parameters.scale[v]], code_of(view).n_features
                total = total + effect_length(parameters.effects[v], scale, d)
        return total

    def sample_parameters(self, z: jax.Array, parameters: Parameters, key: jax.Array) -> Parameters:
        """Sample hyperparameters, effects and scales of effects, given labels z (V, n)."""
        u = jax.random.uniform(key, (self.n_views,))
        prior = self.with_parameters(parameters).sample_priors(z, parameters.prior, u)
        target, (_, effects, scale) = self.with_priors(prior), parameters
        for v, (view, grid) in enumerate(zip(target.views, self.effect_scales, strict=True)):
            if grid is not None:
                d = code_of(view).n_features
                sampled, index = sample_effects(
                    view, z[v], effects[v, :, :d], scale[v], grid, jax.random.fold_in(key, v)
                )
                effects, scale = effects.at[v, :, :d].set(sampled), scale.at[v].set(index)
        return Parameters(prior, effects, scale)

    def with_priors(self, index: jax.Array) -> ViewsTarget:
        """Target given the hyperparameters of the views, by their indices (V,) in the grids."""
        views = tuple(
            view if grid is None else self._view_at(v, grid[index[v]])
            for v, (view, grid) in enumerate(zip(self.views, self.priors, strict=True))
        )
        return replace(self, views=views)

    def sample_priors(self, z: jax.Array, index: jax.Array, u: jax.Array) -> jax.Array:
        """Sample indices (V,) of the hyperparameters of all views, given labels z (V, n).

        ``index`` (V,) are the current indices, and ``u`` (V,) uniform variates.
        """
        for v, (view, grid) in enumerate(zip(self.views, self.priors, strict=True)):
            if grid is not None:
                cells = view.cells(z[v])
                lengths = jax.vmap(lambda prior: self._view_at(v, prior).length(cells))(grid)  # noqa: B023
                index = index.at[v].set(choose_category(-lengths, u[v]))
        return index

    # Counts

    def count(self, z: jax.Array, present: jax.Array, worded: jax.Array) -> Counts:
        """Sufficient statistics of the labels z (V, n) of some samples and of some code words.

        ``present`` (n,) is a mask of the samples, and ``worded`` (C,) a mask of the units of the
        first view whose code words are counted.
        """
        k, z = self.largest, jnp.maximum(z, 0)
        cells = tuple(
            sum_cells(view, jnp.where(present[:, None], view.x, 0), view.group, labels)
            for view, labels in zip(self.views, z, strict=True)
        )
        onehot = ((z[..., None] == jnp.arange(k)) & present[:, None]).astype(jnp.float64)
        groups = self.word_group[self.members[:, 0]]
        words = jnp.zeros((self.n_word_groups, k), jnp.int32)
        words = words.at[groups, self.unit_labels(z)].add(worded.astype(jnp.int32))
        pairs, joint = jnp.zeros(0, jnp.int32), jnp.zeros(0, jnp.int32)
        if self.code == "table":
            joint = jnp.zeros(len(self.cell_labels()), jnp.int32)
            joint = joint.at[self.cell_of(z)].add(present.astype(jnp.int32))
        elif self.code == "forest":
            pairs = jnp.round(jnp.einsum("uia,vib->uvab", onehot, onehot)).astype(jnp.int32)
        sizes = jnp.round(onehot.sum(1)).astype(jnp.int32)
        return Counts(cells, sizes, words, pairs, joint)

    def count_all(self, z: jax.Array) -> Counts:
        """Sufficient statistics of the labels z (V, n) of all samples."""
        everything = jnp.ones(self.n_samples, bool)
        return self.count(z, everything, jnp.ones(self.members.shape[0], bool))

    def change_counts(
        self, counts: Counts, samples: jax.Array, labels: jax.Array, words: jax.Array, weight: Any
    ) -> Counts:
        """Sufficient statistics after M samples with their labels are added or removed.

        Parameters
        ----------
        counts : sufficient statistics before the change
        samples : (M,) indices of the samples
        labels : (M, V) labels of the samples in all views
        words : (M,) whether a code word of the first view is added or removed with the sample
        weight : (M,) 1 to add a sample, -1 to remove a sample, 0 for padding
        """
        # Arrays of indicators replace scatters, which are loops on a CPU.
        onehot = (labels[..., None] == jnp.arange(self.largest)).astype(jnp.int32)  # (M, V, K)
        signed = onehot * weight[:, None, None]
        cells = []
        for v, (view, before) in enumerate(zip(self.views, counts.cells, strict=True)):
            group = view.group[samples][:, None] == jnp.arange(view.n_groups)
            change = signed[:, v, : view.n_slots].astype(view.x.dtype)
            x = view.x[samples]
            after = before + jnp.einsum("mg,mk,mp->gkp", group.astype(x.dtype), change, x)
            # The statistics of an emptied cell are exactly 0.
            cells.append(jnp.where(after[..., -1:] > 0.5, after, 0))
        group = self.word_group[samples][:, None] == jnp.arange(self.n_word_groups)
        worded = signed[:, 0] * words[:, None]
        new_words = counts.words + (group[..., None] * worded[:, None]).sum(0, jnp.int32)
        pairs, joint = counts.pairs, counts.joint
        if self.code == "table":
            cell = self.cell_of(labels.T)[:, None] == jnp.arange(joint.size)
            joint = joint + (cell * weight[:, None]).sum(0, jnp.int32)
        elif self.code == "forest":
            both = signed[:, :, None, :, None] * onehot[:, None, :, None]
            pairs = pairs + both.sum(0, jnp.int32)
        return Counts(
            tuple(cells), counts.sizes + signed.sum(0, jnp.int32), new_words, pairs, joint
        )

    def n_clusters(self, sizes: jax.Array) -> jax.Array:
        """Numbers (V,) of clusters that the code has words for, from cluster ``sizes`` (V, K)."""
        return jnp.where(self.used, (sizes > 0).sum(1), self.sizes)

    # Lengths

    def _growth(self, counts: jax.Array) -> jax.Array:
        """Increase of x log x if x increases by 1, for integer arrays x = ``counts``."""
        return self.x_log_x[counts + 1] - self.x_log_x[counts]

    def costs(
        self, counts: Counts, parents: jax.Array, i: jax.Array, word: jax.Array, taken: jax.Array
    ) -> Costs:
        """Costs of the labels of sample ``i``, given the labels of all other samples.

        Parameters
        ----------
        counts : sufficient statistics of all other samples
        parents : (V,) parents of the views in the forest, -1 for roots
        i : index of the sample
        word : whether the label of the sample in the first view needs a code word
        taken : (K,) mask of the clusters of the first view that cannot-links exclude
        """
        k, v = self.largest, np.arange(self.n_views)
        features = jnp.stack([
            jnp.pad(
                view.joining(cells, view.x[i][None], view.group[i][None])[:, 0],
                (0, k - view.n_slots), constant_values=IMPOSSIBLE,
            )
            for view, cells in zip(self.views, counts.cells, strict=True)
        ])  # fmt: skip
        before = self.n_clusters(counts.sizes)
        opened = (counts.sizes == 0) & self.used[:, None]
        after = before[:, None] + opened  # (V, K) numbers of clusters
        slots = self.slot_charge[v[:, None], after] - self.slot_charge[v, before][:, None]
        nodes = features + slots
        nodes = nodes.at[0].add(jnp.where(taken, IMPOSSIBLE, 0.0))
        free_word = -self._growth(counts.words[self.word_group[i]]) * word
        edges, cells = jnp.zeros((self.n_views, k, k)), jnp.zeros(0)
        if self.code == "table":
            labels = self.cell_labels()
            product = after[v, labels].prod(1)
            cells = self.table_charge[product] - self.table_charge[before.prod()]
            return Costs(nodes, edges, cells - self._growth(counts.joint), jnp.zeros(k))
        roots = (-self._growth(counts.sizes)).at[0].set(free_word)
        roots = roots + self.root_charge[v[:, None], after]
        roots = roots - self.root_charge[v, before][:, None]
        nodes = nodes + jnp.where(parents[:, None] < 0, roots, 0.0)
        if self.code == "forest":
            above = counts.sizes[parents]  # (V, K) sizes of the clusters of the parent
            edges = self._growth(above)[:, :, None] - self._growth(counts.pairs[parents, v])
            # Complexity of the labels given the parent, for every number of clusters.
            now = self.complexity[after[:, None], above[:, :, None]]
            grown = self.complexity[after[:, None], above[:, :, None] + 1]
            old = self.complexity[before[:, None], above].sum(1)[:, None, None]
            edges = edges + grown - now + now.sum(1, keepdims=True) - old
        return Costs(nodes, edges, cells, free_word)

    def root_lengths(self, counts: Counts, word_length: jax.Array) -> jax.Array:
        """Lengths (V,) of the labels of every view as a root, coded without other views.

        ``word_length`` is the result of `word_length` for the first view.
        """
        number = self.n_clusters(counts.sizes)
        free = -self.x_log_x[counts.sizes].sum(1)
        charge = self.root_charge[np.arange(self.n_views), number]
        return free.at[0].set(word_length) + charge

    def edge_lengths(self, counts: Counts) -> jax.Array:
        """Lengths (V, V) of the labels of a view (last axis) given the labels of its parent."""
        number = self.n_clusters(counts.sizes)
        parent = self.x_log_x[counts.sizes].sum(1)[:, None]
        complexity = self.complexity[number[None, :, None], counts.sizes[:, None]].sum(2)
        return parent - self.x_log_x[counts.pairs].sum((2, 3)) + complexity

    def word_length(self, z: jax.Array, counts: Counts) -> jax.Array:
        """Length of the code words of the first view, without the parts in ``root_charge``.

        z (V, n) are the labels of all samples, and ``counts`` their sufficient statistics.
        """
        if self.pair_words is None:
            return -self.x_log_x[counts.words].sum()
        return self.pair_words.length(self.unit_labels(z))

    def length(self, z: jax.Array, parents: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Description length of labels z (V, n) and a forest, and minus the log target density.

        The second result also has the terms of ``slot_charge``. ``parents`` (V,) is the forest.
        """
        counts = self.count_all(z)
        total = self.constant + sum(
            view.length(cells) for view, cells in zip(self.views, counts.cells, strict=True)
        )
        number, v = self.n_clusters(counts.sizes), np.arange(self.n_views)
        if self.code == "table":
            total = total - self.x_log_x[counts.joint].sum() + self.table_charge[number.prod()]
        else:
            parts = self.root_lengths(counts, self.word_length(z, counts))
            if self.code == "forest":
                parts = jnp.where(parents < 0, parts, self.edge_lengths(counts)[parents, v])
            total = total + parts.sum()
        return total, total + self.slot_charge[v, number].sum()
