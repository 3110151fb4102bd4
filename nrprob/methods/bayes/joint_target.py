"""Posterior over partitions and the variables that are sampled jointly with the partition.

A `JointTarget` consists of the code of labels and classes, a likelihood of continuous features, and
a tuple of updates. Each update is responsible for some variables, such as hyperparameters or scale
weights. An update defines the names and values of its variables, samples them given the
partition, and defines how the rest of the target depends on them. Conditioning a target on values
of variables returns a target with these values. Shapes and cells are defined in
`nrprob.methods.bayes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from nrprob.engines.programs import jit_by_size
from nrprob.engines.sample.chains import ChainState, CollapsedKernel, Draw
from nrprob.engines.sample.moves import gibbs, jumps, no_moves
from nrprob.engines.sample.split_merge import nothing_usual
from nrprob.engines.sample.target import Partition, Target, occupied, start
from nrprob.methods.bayes.weights import reweighted
from nrprob.trees import node


class Likelihood(Protocol):
    """Interface of marginal likelihoods of continuous features, given the partition.

    Attributes
    ----------
    hyperparameters : current values
    power : likelihood tempering exponent
    n_features : number of features d
    width : number of leading statistics that the scale weight of a sample multiplies
    """

    hyperparameters: Any

    @property
    def power(self) -> Any:
        """Likelihood tempering exponent."""

    @property
    def n_features(self) -> int:
        """Number of features d."""

    @property
    def width(self) -> int:
        """Number of leading statistics that the scale weight of a sample multiplies."""

    def with_hyperparameters(self, hyperparameters: Any) -> Any:
        """Return the likelihood with other hyperparameters."""

    def with_statistics(self, x: jax.Array) -> Any:
        """Return the likelihood for other statistics (n', p) of the samples."""

    def statistics(self, x: jax.Array, features: jax.Array) -> jax.Array:
        """Replace the features in statistics (b, p) by other features (b, d)."""

    def nats(self, cells: jax.Array) -> jax.Array:
        """Minus the log marginal likelihood of cells (groups, K, p)."""

    def partition_target(self, partition: Target) -> Target:
        """Add the code of the features to the code of labels and classes."""

    def gibbs_target(self, partition: Target, cells: jax.Array, key: jax.Array) -> Target:
        """Return the target of Gibbs sweeps, whose code length is a sum over clusters.

        The target may be conditional on parameters, which are sampled given ``cells`` with the
        random ``key``.
        """

    def uncoded_nats(self, x: jax.Array) -> jax.Array:
        """Nats (n',) of samples of scale weight 1 that the terms of `gibbs_target` omit.

        ``x`` (n', p) are the statistics of the samples.
        """

    def moments(self, cells: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Posterior means of centres (K, d) and of covariances, up to a linear map of the features.

        Covariances are (K, d, d), or variances (K, d) if features are independent. If all clusters
        share one covariance, the second result is None, and the centres are whitened by this
        covariance.
        """

    def draw_parameters(
        self, cells: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Sample the parameters given the partition, from their conjugate posterior.

        Returns
        -------
        means : (K, d) centres of the clusters
        covariances : (K, d, d), (K, d) variances of independent features, or (1, d, d) if all
            clusters share one
        effects : (L, d) offsets of L known groups, or coefficients of L covariates; None without
            known structure
        """

    def squared_distances(
        self, partition: Target, cells: jax.Array, labels: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Squared Mahalanobis distances (n',) of samples of weight 1 from their centres.

        Centres, covariances and known effects are sampled with the random ``key``.
        """

    def feature_costs(
        self, cells: jax.Array, x: jax.Array, group: jax.Array, weights: jax.Array | None = None
    ) -> jax.Array:
        """Minus the log predictive density (K, b) of new samples (b, p) in every cluster.

        With ``weights`` (G,), the result (K, G, b) has one entry for each of these scale weights.
        """

    def left_out_costs(
        self,
        partition: Target,
        cells: jax.Array,
        labels: jax.Array,
        weights: jax.Array | None = None,
    ) -> jax.Array:
        """Minus the log predictive density (K, b) of b samples in every cluster.

        The density of a sample is conditional on all other samples. ``cells`` are the statistics of
        all samples; ``partition`` and ``labels`` (b,) may contain a subset of the samples. With
        ``weights`` (G,), the result (K, G, b) has one entry for each of these scale weights.
        """


class JointUpdate:
    """Update of variables that are sampled jointly with the partition.

    The base class has no variables. A subclass overrides `draw`, `condition` and `resample`, and
    every other method whose default does not suit its variables. An update is immutable and belongs
    to a `JointTarget`; methods that change variables return another target.

    Attributes
    ----------
    names : names of the variables
    """

    names: ClassVar[tuple[str, ...]] = ()

    def draw(self, target: JointTarget) -> Draw:
        """Current values of the variables, by name."""
        return {}

    def condition(self, target: JointTarget, draw: Draw) -> JointTarget:
        """Condition the target on the values of the variables in a draw."""
        return target

    def resample(self, target: JointTarget, labels: jax.Array, key: jax.Array) -> JointTarget:
        """Sample the variables given the partition, and condition the target on them."""
        return target

    def maximise(self, target: JointTarget, labels: jax.Array) -> JointTarget:
        """Condition the target on the most probable values of the variables, given a partition."""
        return target

    def nats(self, target: JointTarget) -> Any:
        """Nats that the variables add to the description length of every partition."""
        return 0.0

    def with_room(self, n_slots: int) -> JointUpdate:
        """Return the update for partitions of at most ``n_slots`` clusters."""
        return self

    def gibbs_target(self, joint: JointTarget, target: Target) -> Target:
        """Return the target of Gibbs sweeps, given the ``target`` with all variables fixed.

        The result differs from ``target`` if a sweep samples the variables with the labels.
        """
        return target

    def after_gibbs(self, joint: JointTarget, state: Partition) -> JointTarget:
        """Condition the target on the variables that a Gibbs sweep sampled."""
        return joint

    def split_merge_target(self, target: Target) -> Target:
        """Return the target of split-merge moves, with the variables integrated out or fixed."""
        return target

    def transform_rows(self, rows: jax.Array) -> tuple[jax.Array, Any]:
        """Return transformed features (b, d) and the log Jacobian (b,) of the transformation."""
        return rows, 0.0

    def integrate(self, cost: Callable[..., Any], target: JointTarget) -> Callable[..., Any]:
        """Integrate the variables of a new sample, such as its weight, out of a predictive cost.

        ``cost()`` returns nats (..., b), and ``cost(weights)`` nats (..., G, b) for scale weights
        (G,). The result is a function that returns nats (..., b) if it is called without weights.
        """
        return cost


@node
class JointTarget:
    """Joint distribution of a partition of the samples and the variables of the updates.

    Attributes
    ----------
    partition : statistics of the samples, and the code of labels and classes
    likelihood : `Likelihood` of the features
    rows : (n', d) standardised features before the transformation; zeros on padding
    updates : updates in the order in which they run; the first one samples the hyperparameters
    """

    partition: Target
    likelihood: Any
    rows: jax.Array
    updates: tuple[Any, ...]

    @property
    def x(self) -> jax.Array:
        """Statistics (n', p) of the samples."""
        return self.partition.x

    @property
    def sizes(self) -> jax.Array:
        """Description length A(k) of the number of clusters, for every k (K + 1,)."""
        return self.partition.sizes

    @property
    def n_slots(self) -> int:
        """Number of slots for clusters, K."""
        return self.partition.n_slots

    @property
    def max_clusters(self) -> jax.Array:
        """Largest number of clusters that the target allows."""
        return self.partition.max_clusters

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variables that are sampled jointly with the partition."""
        return tuple(name for update in self.updates for name in update.names)

    def cells(self, labels: jax.Array) -> jax.Array:
        """Sums of statistics (groups, K, p) by known group and cluster, from labels (n',)."""
        return self.partition.cells(labels)

    def update_of(self, name: str) -> Any:
        """Return the update that samples the variable ``name``."""
        return next(update for update in self.updates if name in update.names)

    # Targets with other values

    def with_update(self, update: JointUpdate, **changes: Any) -> JointTarget:
        """Replace the update of the same variables by ``update``, and the fields in ``changes``."""
        updates = tuple(update if u.names == update.names else u for u in self.updates)
        return replace(self, updates=updates, **changes)

    def with_hyperparameters(self, hyperparameters: Any) -> JointTarget:
        """Condition the target on other hyperparameters."""
        return replace(self, likelihood=self.likelihood.with_hyperparameters(hyperparameters))

    def with_features(self, features: jax.Array) -> JointTarget:
        """Replace the transformed features (n', d) in all statistics."""
        x = self.likelihood.statistics(self.x, features)
        likelihood = self.likelihood.with_statistics(x)
        return replace(self, likelihood=likelihood, partition=replace(self.partition, x=x))

    def with_likelihood(self, likelihood: Likelihood) -> JointTarget:
        """Replace the likelihood, and recompute the statistics of the same features."""
        return replace(self, likelihood=likelihood).recompute_statistics()

    def recompute_statistics(self) -> JointTarget:
        """Recompute all statistics from ``rows``, under the current transformation."""
        return self.with_features(self.transform_rows(self.rows)[0])

    def with_weights(self, weight: jax.Array) -> JointTarget:
        """Replace the scale weights (n',) of the samples."""
        likelihood = self.likelihood
        x = reweighted(self.x, weight, likelihood.width)
        likelihood = likelihood.with_statistics(x).with_hyperparameters(likelihood.hyperparameters)
        return replace(self, likelihood=likelihood, partition=replace(self.partition, x=x))

    def with_room(self, n_slots: int) -> JointTarget:
        """Restrict the distribution to partitions with at most ``n_slots`` clusters."""
        updates = tuple(update.with_room(n_slots) for update in self.updates)
        return replace(self, partition=self.partition.with_room(n_slots), updates=updates)

    def transform_rows(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return transformed features (b, d), and the log Jacobian (b,) of the transformation."""
        log_jacobian = jnp.zeros(len(rows), rows.dtype)
        for update in self.updates:
            rows, more = update.transform_rows(rows)
            log_jacobian = log_jacobian + more
        return rows, log_jacobian

    # The partition

    def conditional(self) -> Target:
        """Return the distribution of the partition given all variables of the updates."""
        offset = sum(update.nats(self) for update in self.updates)
        return replace(self.likelihood.partition_target(self.partition), offset=offset)

    def length(self, cells: jax.Array) -> jax.Array:
        """Minus the log density of data, partition and all variables of the updates."""
        return self.conditional().length(cells)

    def gibbs_target(self, cells: jax.Array, key: jax.Array) -> Target:
        """Return the target of Gibbs sweeps, whose code length is a sum over clusters."""
        result = self.likelihood.gibbs_target(self.partition, cells, key)
        for update in self.updates:
            result = update.gibbs_target(self, result)
        return result

    def after_gibbs(self, state: Partition) -> JointTarget:
        """Condition the target on the variables that a Gibbs sweep sampled."""
        result = self
        for update in self.updates:
            result = update.after_gibbs(result, state)
        return result

    def split_merge_target(self) -> Target:
        """Return the target of split-merge moves.

        Some variables are integrated out; `resample` has to follow the moves.
        """
        result = self.conditional()
        for update in self.updates:
            result = update.split_merge_target(result)
        return result

    def shortest_length(self, labels: jax.Array) -> jax.Array:
        """Description length of a partition (n',) under the most probable values of all variables.

        The update of the hyperparameters may integrate some variables out instead.
        """
        first, *others = self.updates
        result = self
        for update in reversed(others):
            result = update.maximise(result, labels)
        return first.shortest_length(result, labels)

    # The variables of the updates

    def draw(self) -> Draw:
        """Current values of the variables, by name."""
        result: Draw = {}
        for update in self.updates:
            result |= update.draw(self)
        return result

    def condition(self, draw: Draw) -> JointTarget:
        """Condition the target on the variables of a draw."""
        result = self
        # Weights and transformations change the features that the hyperparameters describe, so
        # they come first.
        for update in reversed(self.updates):
            result = update.condition(result, draw)
        return result

    def resample(self, labels: jax.Array, key: jax.Array) -> JointTarget:
        """Run all updates: sample their variables given the partition and all other variables."""
        result = self
        for i, update_key in enumerate(jax.random.split(key, len(self.updates))):
            result = result.updates[i].resample(result, labels, update_key)
        return result

    # Predictive densities

    def feature_costs(self, cells: jax.Array, x: jax.Array, group: jax.Array) -> jax.Array:
        """Minus the log predictive density (K, b) of new samples in every cluster.

        ``x`` (b, p) are statistics that begin with features before the transformation, and
        ``group`` (b,) the known groups.
        """
        features, log_jacobian = self.transform_rows(x[:, : self.likelihood.n_features])
        x = self.likelihood.statistics(x, features)
        cost = partial(self.likelihood.feature_costs, cells, x, group)
        return self._integrate(cost)() - log_jacobian

    def joining(self, cells: jax.Array, x: jax.Array, group: jax.Array) -> jax.Array:
        """Increase (K, b) of the code length if samples (b, p) of groups (b,) join each cluster."""
        return self.feature_costs(cells, x, group) + self.partition.joining(cells, x, group)

    def left_out_costs(self, cells: jax.Array, labels: jax.Array) -> jax.Array:
        """Minus the log density (K, n') of the features of every sample in every cluster.

        The density of a sample is conditional on the features and the labels (n',) of all other
        samples.
        """
        cost = partial(self.likelihood.left_out_costs, self.partition, cells, labels)
        return self._integrate(cost)() - self.transform_rows(self.rows)[1]

    def _integrate(self, cost: Callable[..., Any]) -> Callable[..., Any]:
        for update in self.updates:
            cost = update.integrate(cost, self)
        return cost


@jit_by_size()
def begin_joint(target: JointTarget) -> JointTarget:
    """Condition the target on the initial values of the variables of its updates.

    Without this call, statistics and codes of a new target do not agree with the variables.
    """
    return target.condition(target.draw())


@dataclass(frozen=True)
class JointKernel(CollapsedKernel):
    """MCMC kernel: collapsed moves over partitions, followed by the updates of a `JointTarget`."""

    def begin(self, target: Any, labels: jax.Array, key: jax.Array) -> ChainState:
        """Initial state of one chain, given labels (n',) of n' samples with padding."""
        key, update_key = jax.random.split(key)
        target = target.resample(labels, update_key)
        return ChainState(_as_draw(target, labels), no_moves()._asdict(), key, nothing_usual())

    def begin_without_resampling(
        self, target: Any, labels: jax.Array, key: jax.Array
    ) -> ChainState:
        """Initial state of one chain, given labels (n',) and the initial values of all variables.

        Unlike `begin`, this method does not resample the variables, since a program that resamples
        them takes long to compile.
        """
        return ChainState(_as_draw(target, labels), no_moves()._asdict(), key, nothing_usual())

    def step(self, target: Any, state: ChainState) -> ChainState:
        """Make one iteration of one chain: a Gibbs sweep, split-merge moves, and all updates."""
        key, parameter_key, gibbs_key, jump_key, update_key = jax.random.split(state.rng_key, 5)
        target, labels = target.condition(state.draw), state.draw["labels"]
        sweep_target = target.gibbs_target(target.cells(labels), parameter_key)
        begin = start(sweep_target, labels)
        result, n_blocks, accepted = gibbs(sweep_target, begin, gibbs_key, self.block)
        target = target.after_gibbs(result)
        jump_target = target.split_merge_target()
        result, moves = jumps(
            jump_target, start(jump_target, result.labels), jump_key,
            n_split_merge=self.n_split_merge, n_launch=self.n_launch, usual=state.usual,
        )  # fmt: skip
        moves = moves._replace(gibbs=n_blocks, gibbs_accepted=accepted)
        target = target.resample(result.labels, update_key)
        return ChainState(_as_draw(target, result.labels), moves._asdict(), key, state.usual)


def _as_draw(target: JointTarget, labels: jax.Array) -> Draw:
    cells = target.cells(labels)
    return {
        "labels": labels,
        "n_clusters": occupied(cells).sum().astype(jnp.int32),
        "log_density": -target.length(cells),
        **target.draw(),
    }
