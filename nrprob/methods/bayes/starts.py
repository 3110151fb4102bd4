"""Initial partitions of MCMC chains: dispersed, from runs on a subsample, or given as labels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.data.design import Design
from nrprob.data.labels import factorize
from nrprob.data.validation import check_choice
from nrprob.engines.sample.chains import (
    ChainState,
    PartitionKernel,
    begin_at,
    default_kernel,
    dispersed,
)
from nrprob.engines.sample.checkpoints import CheckpointedChains
from nrprob.exceptions import short_repr
from nrprob.methods.bayes.joint_target import JointKernel, JointTarget
from nrprob.methods.bayes.model import MixtureModel
from nrprob.methods.bayes.predictive import most_probable_clusters

WORDS = ("auto", "dispersed", "subsample")
SUBSAMPLE = 4000  # number of samples in the subsample
MANY = 20_000  # number of samples above which "auto" is "subsample"
_PART = 4096  # number of samples that one call of a compiled program assigns to clusters


def check_init(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is one of `WORDS`, or labels of one or more partitions.

    ``name`` is the name of the parameter in the message.
    """
    if isinstance(value, str):
        check_choice(name, value, WORDS, "or labels")
        return
    try:
        shape = np.shape(value)
    except ValueError:  # a list of lists of different lengths
        shape = ()
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(
            f"{name} must be a word or labels, (n_samples,) or (n_starts, n_samples); got "
            f"{short_repr(value)}; pass one of {', '.join(WORDS)}, or the labels of clusterings"
        )


def read_labels(init: Any, n: int, n_chains: int, max_clusters: int) -> np.ndarray:
    """Initial labels (n_chains, n) of ``n`` samples, from the partitions in ``init``.

    ``init`` has the shape (n,) or (n_starts, n). Chains use its partitions in turn.
    """
    labelings = np.atleast_2d(np.asarray(init))
    if labelings.shape[1] != n:
        raise ValueError(
            f"init must label each of {n} rows; got shape {np.shape(init)}; pass one labeling of "
            "the rows of X, or several in rows"
        )
    codes = [factorize(labels) for labels in labelings]
    if (largest := max(len(names) for _, names in codes)) > max_clusters:
        raise ValueError(
            f"init must have at most max_clusters different labels; got {largest} and "
            f"max_clusters={max_clusters}; raise max_clusters, or merge clusters"
        )
    return np.stack([codes[c % len(codes)][0] for c in range(n_chains)]).astype(np.int32)


def labels_by_subsample(
    model: MixtureModel,
    X: np.ndarray,
    codes: np.ndarray,
    n_classes: int,
    max_clusters: int,
    design: Design,
    *,
    n_steps: int,
    n_split_merge: int,
    n_chains: int,
    key: jax.Array,
    random: np.random.RandomState,
) -> np.ndarray:
    """Initial labels (n_chains, n) of all samples ``X`` (n, d), from chains on a subsample.

    The chains begin dispersed. After ``n_steps`` iterations, each sample outside the subsample
    joins its most probable cluster. The subsample contains at least one sample of each known group.
    Samples with a known class are chosen first, up to half of the subsample. ``codes`` (n,) are the
    classes, -1 where unknown, and ``design`` is the known structure.
    """
    n = len(X)
    classed = np.flatnonzero(codes >= 0)
    classed = random.permutation(classed)[: SUBSAMPLE // 2]
    representatives = np.empty(0, int)
    if design.n_groups > 1:
        representatives = np.unique(design.codes, return_index=True)[1]
    first = np.union1d(classed, representatives)
    others = np.setdiff1d(np.arange(n), first, assume_unique=True)
    more = random.choice(others, min(max(SUBSAMPLE - len(first), 0), len(others)), replace=False)
    some = np.union1d(first, more)
    largest = min(max_clusters, len(some))
    target = model.target(X[some], codes[some], n_classes, largest, design.take_rows(some))
    kernel: Any = default_kernel(len(some), n_split_merge)
    names: tuple[str, ...] = ("labels",)
    if isinstance(target, JointTarget):
        kernel = JointKernel(kernel.block, kernel.n_split_merge, kernel.n_launch)
        names += target.names
    chains = CheckpointedChains(kernel, target, dispersed(kernel, target, key, n_chains))
    chains.advance(n_steps, 0)
    draw = {name: chains.states.draw[name] for name in names}
    labels = np.empty((n_chains, n), np.int32)
    labels[:, some] = np.asarray(draw["labels"])[:, : len(some)]
    rest = np.setdiff1d(np.arange(n), some, assume_unique=True)
    for begin in range(0, len(rest), _PART):
        part = rest[begin : begin + _PART]
        wide = np.pad(part, (0, _PART - len(part)), mode="edge")  # one program for all blocks
        rows = model.new_rows(X[wide], n_classes, design.take_rows(wide))
        clusters = np.asarray(most_probable_clusters(target, draw, rows))
        labels[:, part] = clusters[:, : len(part)]
    return labels


def begin_at_labels(
    kernel: PartitionKernel, target: Any, labels: np.ndarray, key: jax.Array
) -> ChainState:
    """Initial states of the chains, given the initial labels (n_chains, n) of n samples."""
    n_chains, n = labels.shape
    wide = np.pad(labels, ((0, 0), (0, target.x.shape[0] - n)))
    return begin_at(kernel, target, jnp.asarray(wide), jax.random.split(key, n_chains))
