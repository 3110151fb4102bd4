"""Complete codes of the features and labels of several views, for the sampler of the labels.

The lengths of a complete code are negative logarithms of a probability distribution. For a
description length L, exp(-L) is proportional to a posterior only if all codes are complete. Binary
features and counts are coded by normalised maximum likelihood, as in fits. Fits use codes of
continuous features that are not complete: these codes charge half a logarithm per parameter, or fit
scales to all samples. The sampler uses normal clusters with conjugate priors instead, and
integrates out the parameters of the clusters. Known groups shift all clusters of a continuous view.

n samples have labels in V views; a view has d features. A *slot* is one of the K possible labels of
a view; slots may be empty.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln, xlogy

from nrprob.codelength import multinomial_table
from nrprob.engines.sample.target import Target
from nrprob.methods.mdl.count_tables import one_hot
from nrprob.methods.mdl.informed_length import InformedLength
from nrprob.methods.mdl.label_forests import forest_choice
from nrprob.methods.mdl.pair_words import compile_words
from nrprob.methods.mdl.view_target import ViewsTarget
from nrprob.statistics.codes import (
    MAX_TABLE_STEPS,
    BinaryCode,
    CellCode,
    CodeTerm,
    CountCode,
    NormalWishart,
    code_term,
    count_tables,
)
from nrprob.statistics.gaussians import second_moments

# Hyperparameters of Gaussian clusters, for features of unit variance within groups: the number of
# samples that the prior of a mean counts for, the prior mean of the variance, and its degrees of
# freedom.
_GRIDS = np.logspace(-3, 0, 7), np.logspace(-3, 0, 13), np.array([1.0, 3.0, 10.0, 30.0])
GAUSSIAN_PRIORS = np.stack([grid.ravel() for grid in np.meshgrid(*_GRIDS, indexing="ij")], 1)
# Standard deviations of the effects of known groups, for features of unit variance within groups.
EFFECT_SCALES = np.logspace(-2, 1, 13)


def make_view(
    x: np.ndarray, kind: str, k: int, groups: np.ndarray, classes: np.ndarray | None, *, full: bool
) -> Target:
    """Make the target distribution that codes the features of one view given the labels.

    The code of the labels is not part of this target.

    Parameters
    ----------
    x : (n, d) features
    kind : type of the features, "gaussian", "bernoulli" or "multinomial"
    k : number K of slots, the possible labels
    groups : (n,) known group of every sample; for binary features and counts, every pair of a
        cluster and a group has a separate code
    classes : (n,) known classes that the clusters encode, -1 if unknown; None without classes
    full : whether the covariances of continuous features are full; if False, diagonal
    """
    (n, d), n_groups = x.shape, int(groups.max()) + 1
    statistics = [x]
    if kind == "gaussian":
        statistics.append(second_moments(x, "full" if full else "diag"))
        kappa, variance, freedom = GAUSSIAN_PRIORS[0]
        code: CellCode = NormalWishart(kappa, variance, freedom, d, full, np.asarray(1.0))
    elif kind == "bernoulli":
        code = BinaryCode(*count_tables(2, n), 0, d)
    else:
        total = round(x.sum())
        if d * (total + 1) > MAX_TABLE_STEPS:
            raise ValueError(
                "an exact table of complexities takes too long; got a view of counts with "
                f"{d} features and a total of {total}; leave out features or samples"
            )
        code = CountCode(*count_tables(d, total), 0, d)
    terms: list[CodeTerm] = [code_term(code, by_group=n_groups > 1 and kind != "gaussian")]
    if classes is not None:
        n_classes, first = int(classes.max()) + 1, sum(s.shape[1] for s in statistics)
        tables = count_tables(n_classes, int((classes >= 0).sum()))
        terms.append(code_term(CountCode(*tables, first, first + n_classes, True)))
        statistics.append(one_hot(classes, n_classes))
    rows = np.concatenate([*statistics, np.ones((n, 1))], 1).astype(np.float64)
    target = Target(
        tuple(terms), np.zeros(k + 1), rows, groups.astype(np.int32), None, np.float64(1), n_groups
    )
    return jax.tree.map(jnp.asarray, target)


def make_views_target(
    length: InformedLength, tables: list[np.ndarray], kinds: tuple[str, ...], groups: np.ndarray,
    *, full: bool, constant: float,
) -> ViewsTarget:  # fmt: skip
    """Make the target distribution of the sampler from the description length and data of a fit.

    Labels, pairs and classes are coded as in ``length``.

    Parameters
    ----------
    length : description length that a fit minimises
    tables : features (n, d) of every view
    kinds : for every view, type of the features: "gaussian", "bernoulli" or "multinomial"
    groups : (n,) known group of every sample
    full : whether the covariances of continuous features are full; if False, diagonal
    constant : part of the description length that does not depend on the labels
    """
    side, n, n_views = length.target, length.n, length.n_views
    k = max(length.sizes)
    sizes, used = np.array(length.sizes), np.array(length.counts_used)
    units = [np.flatnonzero(side.unit == c) for c in range(side.n_units)]
    unit_size = np.array([samples.size for samples in units])
    members = np.full((side.n_units, int(unit_size.max())), n)
    for row, samples in zip(members, units, strict=True):
        row[: samples.size] = samples
    count = np.arange(n + 2)
    complexity = np.concatenate([np.zeros((1, n + 2)), multinomial_table(k, count)])
    # Number of clusters of the code, for every number of clusters with samples.
    code_sizes = np.where(used[:, None], np.maximum(np.arange(k + 1), 1), sizes[:, None])
    root_charge = xlogy(n, n) + complexity[code_sizes, n]
    word_group = np.zeros(n, int) if side.groups is None else side.groups
    n_words = np.bincount(word_group[side.first])
    root_charge[0] = sum(complexity[code_sizes[0], n] for n in n_words)
    if side.words is None:
        root_charge[0] += xlogy(n_words, n_words).sum()
    # Log number of sets of slots that the clusters with samples may occupy.
    slots, occupied = sizes[:, None], np.minimum(np.arange(k + 1), sizes[:, None])
    slot_charge = gammaln(slots + 1) - gammaln(occupied + 1) - gammaln(slots - occupied + 1)
    slot_charge = np.where(used[:, None], slot_charge, 0.0)
    code, table_charge = length.code, np.zeros(1)
    if code == "table" and n_views == 1:
        code = "forest"
    if code == "table":
        table = multinomial_table(int(sizes.prod()), n)
        table_charge = np.concatenate([[0.0], xlogy(n, n) + table])
    constant += float(np.log(sizes[used]).sum())
    continuous = [kind == "gaussian" for kind in kinds]
    constant += sum(continuous) * float(np.log(len(GAUSSIAN_PRIORS)))
    priors = tuple(jnp.asarray(GAUSSIAN_PRIORS) if is_grid else None for is_grid in continuous)
    has_effects = [is_grid and bool(groups.any()) for is_grid in continuous]
    constant += sum(has_effects) * float(np.log(len(EFFECT_SCALES)))
    scales = tuple(jnp.asarray(EFFECT_SCALES) if is_grid else None for is_grid in has_effects)
    constant += forest_choice(n_views) if code == "forest" else 0.0
    views = tuple(
        make_view(x, kind, size, groups, side.classes if v == 0 else None, full=full)
        for v, (x, kind, size) in enumerate(zip(tables, kinds, length.sizes, strict=True))
    )
    arrays = {
        "unit": side.unit, "word_group": word_group, "members": members, "unit_size": unit_size,
        "sizes": sizes, "used": used, "x_log_x": xlogy(count, count), "complexity": complexity,
        "root_charge": root_charge, "slot_charge": slot_charge, "table_charge": table_charge,
        "constant": np.float64(constant),
    }  # fmt: skip
    return ViewsTarget(
        views=views, priors=priors, effect_scales=scales, pair_words=compile_words(side.words),
        n_word_groups=n_words.size, code=code,
        **{name: jnp.asarray(array) for name, array in arrays.items()},
    )  # fmt: skip
