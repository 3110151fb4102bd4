"""Clusterings that are not redundant with known groups, as a distribution: a complete code."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import check_array

from nrprob.engines.sample import Target, make_target
from nrprob.known import read as read_known
from nrprob.settings import standard
from nrprob.statistics.codes import (
    BinaryCode,
    CellCode,
    CountCode,
    code_term,
    count_tables,
    label_code,
    normal_inverse_gamma,
    normal_nml,
)
from nrprob.statistics.families import fit_features, lacking
from nrprob.statistics.groups import group_sums
from nrprob.validation import check_choice

__all__ = ["conditional_code"]


def conditional_code(
    X: Any,
    *,
    known: Any = None,
    max_clusters: int = 10,
    features: str = "auto",
    prior: str = "nml",
    concentration: float = 1.0,
    coordination_weight: float | str = "auto",
    scale: float = 1.0,
) -> Target:
    r"""Description length of rows given known groups and clusters to be found, for sampling.

    .. math:: L = \sum_{c, z} \ell(\text{rows of } c \text{ in group } z)
        + \lambda \sum_c \ell(\text{rows of } c) + \ell(\text{labels})

    Every :math:`\ell` is a complete code: with it, ``exp(-L)`` is a distribution over clusterings
    of every size. The first sum is the objective of `nrprob.CCIB`, with the parameters of every
    cell paid for; names mean the same in all groups because of the second.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Counts (each row's as they are: they are what is coded), zeros and ones, or real numbers,
        which are standardised.
    known : array-like, optional
        Known labels of the rows, or several labelings, whose product is taken. Without it, only the
        labels and the first sum, over clusters, are coded.
    max_clusters : int, default=10
        Most clusters.
    features : {"auto", "multinomial", "bernoulli", "gaussian"}, default="auto"
        Model of the features; "auto" looks at the values, as every estimator does.
    prior : {"nml", "conjugate"}, default="nml"
        Normalised maximum likelihood, or conjugate priors.
    concentration : float, default=1.0
        Of the symmetric Dirichlet priors (``prior="conjugate"``).
    coordination_weight : float or "auto", default="auto"
        The weight :math:`\lambda`. The data are then counted 1 + lambda times: what is sampled is a
        *generalised* posterior, with lambda a learning rate, and not a Bayesian one unless it is 0.
        "auto" is the weight at which the second sum gains from the known groups half of what
        telling them as clusters costs, so that repeating them never pays; at most 0.3.
    scale : float, default=1.0
        Factor of L; other than 1, a tempered distribution.

    Returns
    -------
    nrprob.engines.sample.Target
        For `nrprob.engines.checkpoints.sample_partitions`.

    Raises
    ------
    ValueError
        If an option is unknown, a number out of its range, or the data do not fit the features.

    Notes
    -----
    Gondek (2005), eq. (4.10), has the information that CCIB maximises; codes are those of
    `nrprob.statistics.codes`.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob.engines.checkpoints import sample_partitions
    >>> from nrprob.methods.bottleneck.conditional_code import conditional_code
    >>> rng = np.random.default_rng(0)
    >>> known, new = rng.integers(0, 2, (2, 60))
    >>> rate = 1 + 5 * np.stack([known == 0, known == 1, new == 0, new == 1], axis=1)
    >>> X = rng.poisson(rate)
    >>> target = conditional_code(X, known=known, max_clusters=5)
    >>> draws = sample_partitions(target, num_warmup=100, num_samples=100, random_state=0)
    >>> int(np.median(draws["n_clusters"]))
    2
    """
    check_choice("prior", prior, ("nml", "conjugate"))
    for name, value in (("concentration", concentration), ("scale", scale)):
        if not 0 < value < np.inf:
            raise ValueError(f"{name} must be positive and finite; got {value}; choose another")
    if coordination_weight != "auto" and not (
        not isinstance(coordination_weight, str) and 0 <= coordination_weight < np.inf
    ):
        raise ValueError(
            "coordination_weight must be 'auto' or a number from 0; got "
            f"{coordination_weight!r}; choose another"
        )
    X = check_array(X, accept_sparse="csr", dtype=np.float64)
    if sparse.issparse(X):
        X = X.toarray()
    n, m = X.shape
    if not 1 <= max_clusters <= n:
        raise ValueError(
            f"max_clusters must be from 1 to the number of rows; got {max_clusters} for {n} rows; "
            "choose another"
        )
    read = fit_features(X, features, None)
    x = np.asarray(read(X), float)
    groups = read_known(known, n).groups
    if groups.share is not None:
        raise ValueError(
            "known must be labels, since cells are sampled that hold whole rows; got soft "
            "memberships or numbers; pass labels"
        )
    conjugate = None if prior == "nml" else float(concentration)
    code: CellCode
    if read.features == "multinomial":
        x = X  # not the proportions: the nats are those of all counts
        if (x != np.round(x)).any():
            raise ValueError(
                "counts are coded as they are, in whole numbers; got fractions; pass raw counts"
            )
        code = CountCode(*count_tables(m, int(x.sum()), conjugate), 0, m)
    elif read.features == "bernoulli":
        code = BinaryCode(*count_tables(2, n + 1, conjugate), 0, m)
    elif read.features != "gaussian":
        raise lacking(read.features, "code", ("multinomial", "bernoulli", "gaussian"))
    else:
        sd = x.std(0)
        keep = sd > 0
        x, m = (x[:, keep] - x[:, keep].mean(0)) / sd[keep], int(keep.sum())
        if prior == "nml":
            width = np.ptp(x, axis=0)
            code = normal_nml(n + 1, np.minimum(0.2, 0.4 * width), width / 2, width)
        else:
            code = normal_inverse_gamma(n + 1, m, kappa=0.3, shape=2.0, scale=0.5)
        x = np.concatenate([x, x * x], 1)
    labels, sizes = label_code(n, max_clusters, concentration=conjugate)
    terms = [code_term(code, by_group=groups.n_groups > 1), code_term(labels)]
    with standard():
        if groups.n_groups > 1 and coordination_weight != 0:
            weight = coordination_weight
            if isinstance(weight, str):
                weight = _weight(code, np.column_stack([x, np.ones(n)]), groups.codes)
            terms.append(code_term(code, weight=float(weight)))
        return make_target(terms, sizes, x, group=groups.codes, scale=scale)


def _weight(code: CellCode, x: np.ndarray, group: np.ndarray) -> float:
    """Weight at which the known groups gain half of their own entropy."""
    cells = group_sums(x, group)
    gain = float(code(cells.sum(0))) - float(code(cells).sum())
    size = cells[:, -1]
    entropy = float(size @ np.log(size.sum() / size))
    return min(0.3, 0.5 * entropy / gain) if gain > 0 else 0.3
