"""Initial partitions of chains: dispersed, from runs on a subsample, or given labels."""

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
from nrprob.methods.bayes.hyperparameters import PriorKernel
from nrprob.methods.bayes.model import MixtureCode, best_blocks

WORDS = ("auto", "dispersed", "subsample")
SOME = 4000  # rows that chains run on before they run on all
MANY = 20_000  # rows above which they do
_AT_ONCE = 4096  # rows that are assigned together


def check_init(name: str, value: Any) -> None:
    """Refuse what is neither a word nor labels."""
    if isinstance(value, str):
        check_choice(name, value, WORDS, "or labels")
        return
    try:
        shape = np.shape(value)
    except ValueError:  # lists of several lengths
        shape = ()
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(
            f"{name} must be a word or labels, (n_samples,) or (n_starts, n_samples); got "
            f"{short_repr(value)}; pass one of {', '.join(WORDS)}, or the labels of clusterings"
        )


def read_labels(init: Any, n: int, n_chains: int, most: int) -> np.ndarray:
    """Labels (n_chains, n) of the clusterings that chains start from, in turn."""
    given = np.atleast_2d(np.asarray(init))
    if given.shape[1] != n:
        raise ValueError(
            f"init must label each of {n} rows; got shape {np.shape(init)}; pass one labeling of "
            "the rows of X, or several in rows"
        )
    codes = [factorize(labels) for labels in given]
    if (largest := max(len(names) for _, names in codes)) > most:
        raise ValueError(
            f"init must have at most max_clusters different labels; got {largest} and "
            f"max_clusters={most}; raise max_clusters, or merge clusters"
        )
    return np.stack([codes[c % len(codes)][0] for c in range(n_chains)]).astype(np.int32)


def on_some_rows(
    code: MixtureCode,
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
    """Labels (n_chains, n) of all rows, from chains on some of them that start far apart.

    All other rows join the block in which they are most probable. Rows with a class are among the
    first, half of them at most, and so is one of each known group.
    """
    n = len(X)
    classed = np.flatnonzero(codes >= 0)
    classed = random.permutation(classed)[: SOME // 2]
    of_groups = np.empty(0, int)
    if design.n_groups > 1:
        of_groups = np.unique(design.codes, return_index=True)[1]
    first = np.union1d(classed, of_groups)
    others = np.setdiff1d(np.arange(n), first, assume_unique=True)
    more = random.choice(others, min(max(SOME - len(first), 0), len(others)), replace=False)
    some = np.union1d(first, more)
    most = min(max_clusters, len(some))
    target = code.target(X[some], codes[some], n_classes, most, design.take(some))
    kernel: Any = default_kernel(len(some), n_split_merge)
    if code.draws_prior:
        kernel = PriorKernel(kernel.block, kernel.n_split_merge, kernel.n_launch)
    chains = CheckpointedChains(kernel, target, dispersed(kernel, target, key, n_chains))
    chains.advance(n_steps, 0)
    names = ("labels", *(target.unknowns if code.draws_prior else ()))
    draw = {name: chains.states.draw[name] for name in names}
    labels = np.empty((n_chains, n), np.int32)
    labels[:, some] = np.asarray(draw["labels"])[:, : len(some)]
    rest = np.setdiff1d(np.arange(n), some, assume_unique=True)
    for start in range(0, len(rest), _AT_ONCE):
        at = rest[start : start + _AT_ONCE]
        wide = np.pad(at, (0, _AT_ONCE - len(at)), mode="edge")  # one program for all parts
        rows = code.new_rows(X[wide], n_classes, design.take(wide))
        labels[:, at] = np.asarray(best_blocks(target, draw, rows))[:, : len(at)]
    return labels


def started(kernel: PartitionKernel, target: Any, labels: np.ndarray, key: jax.Array) -> ChainState:
    """States of chains that start at labels (n_chains, n)."""
    n_chains, n = labels.shape
    wide = np.pad(labels, ((0, 0), (0, target.x.shape[0] - n)))
    return begin_at(kernel, target, jnp.asarray(wide), jax.random.split(key, n_chains))
