"""Entropy, mutual information and divergences of discrete distributions.

A distribution is a table of probabilities, with one axis per variable. `nrprob.metrics` compares
labels of samples directly.

References
----------
T. Cover and J. Thomas (2006), "Elements of Information Theory", 2nd edition, chapter 2.
"""

from __future__ import annotations

import math
from math import e

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr, xlogy

from nrprob.data.validation import as_array, as_number, check_flag

__all__ = [
    "category_utility",
    "conditional_entropy",
    "conditional_mutual_information",
    "entropy",
    "generalized_entropy",
    "joint_entropy",
    "js_divergence",
    "kl_divergence",
    "multi_information",
    "mutual_information",
    "quadratic_mutual_information",
    "variation_of_information",
]

Table = NDArray[np.float64]


def _check_probabilities(p: ArrayLike, name: str, ndim: int | None = None) -> tuple[Table, float]:
    """Validate probabilities; return them as float64, and the tolerance of their sum.

    ``name`` is the name of the argument, for messages, and ``ndim`` the required number of axes.
    """
    table = as_array(p, name)
    if table.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} must hold real numbers; got dtype {table.dtype}; convert it to floats first"
        )
    # Sums of float32 and float16 have larger rounding errors.
    tol = 1e-6 if table.dtype.kind == "f" and table.dtype.itemsize < 8 else 1e-9
    table = table.astype(np.float64)
    if ndim is not None and table.ndim != ndim:
        raise ValueError(
            f"{name} must have {ndim} axes, one per variable; got shape {table.shape}; "
            "sum out or add the missing variables"
        )
    if table.size == 0 or table.ndim == 0:
        raise ValueError(
            f"{name} must hold at least one probability on at least one axis; "
            f"got shape {table.shape}; pass a non-empty table"
        )
    if not np.isfinite(table).all():
        bad = int(np.count_nonzero(~np.isfinite(table)))
        raise ValueError(
            f"probabilities must be finite; got {bad} NaN or infinite entries in {name}; "
            "remove or replace them"
        )
    if table.min() < 0:
        raise ValueError(
            f"probabilities must be non-negative; the smallest entry of {name} is "
            f"{table.min():.6g}; clip rounding errors at 0 or pass probabilities, not scores"
        )
    return table, tol


def _probability_table(p: ArrayLike, name: str, ndim: int | None = None) -> Table:
    """Validate a probability table; return it as float64, divided by its sum."""
    table, tol = _check_probabilities(p, name, ndim)
    total = float(table.sum())
    if abs(total - 1.0) > tol:
        raise ValueError(
            f"{name} must sum to 1; its sum is {total:.9g}; divide counts by their total "
            "(labels can be compared with nrprob.metrics)"
        )
    # Without the division, an error within the tolerance may give negative information.
    return table / total


def _log_base(base: float) -> float:
    """Validate the base of the logarithm; return its natural logarithm."""
    base = as_number(base, "base")
    if not 1.0 < base < math.inf:
        raise ValueError(
            f"base must be a finite number above 1; got {base}; use 2 for bits, math.e for nats"
        )
    return math.log(base)


def _clip_at_zero(value: float) -> float:
    # All quantities are non-negative, so negative values are rounding errors. The maximum also
    # replaces -0.0 by 0.0.
    return max(0.0, float(value))


def entropy(p: ArrayLike, *, base: float = e) -> float:
    r"""Shannon entropy of one variable.

    .. math:: H(X) = -\sum_x p(x) \log p(x)

    Parameters
    ----------
    p : array-like of any shape
        Probabilities of the outcomes, one per entry; the shape is ignored.
    base : float, default=e
        Base of the logarithm: e for nats, 2 for bits.

    Returns
    -------
    float
        Between 0 and the logarithm of the number of outcomes.

    Raises
    ------
    ValueError
        If `p` is empty, negative or not finite, or does not sum to 1 (tolerance 1e-9; 1e-6 for
        float32), or if `base` is not above 1.
    TypeError
        If `p` does not hold real numbers.

    See Also
    --------
    joint_entropy : Entropy of several variables.
    nrprob.codelength.maximum_likelihood_length : Entropy of counts.

    Notes
    -----
    Gondek (2005), eq. (2.2.1), which uses base 2.

    Examples
    --------
    >>> from nrprob.information import entropy
    >>> entropy([0.5, 0.25, 0.25], base=2)
    1.5
    """
    return _clip_at_zero(entr(_probability_table(p, "p")).sum() / _log_base(base))


def joint_entropy(p: ArrayLike, *, base: float = e) -> float:
    r"""Joint entropy of several variables.

    .. math:: H(X_1, \dots, X_n) = -\sum p(x_1, \dots, x_n) \log p(x_1, \dots, x_n)

    Parameters
    ----------
    p : array-like of shape (d_1, ..., d_n)
        Joint probabilities, one axis per variable.
    base : float, default=e
        Base of the logarithm: e for nats, 2 for bits.

    Returns
    -------
    float
        At least the entropy of any variable, at most the sum of all entropies.

    Raises
    ------
    ValueError, TypeError
        As for `entropy`.

    See Also
    --------
    entropy : Entropy of one variable.
    multi_information : Sum of the entropies minus the joint entropy.

    Notes
    -----
    Gondek (2005), eq. (2.2.2).

    Examples
    --------
    >>> from nrprob.information import joint_entropy
    >>> joint_entropy([[0.25, 0.25], [0.25, 0.25]], base=2)
    2.0
    """
    return _clip_at_zero(entr(_probability_table(p, "p")).sum() / _log_base(base))


def conditional_entropy(joint: ArrayLike, *, base: float = e) -> float:
    r"""Conditional entropy of X, the variable of axis 0, given Y, the variable of axis 1.

    .. math:: H(X \mid Y) = -\sum_{x,y} p(x, y) \log p(x \mid y) = H(X, Y) - H(Y)

    Parameters
    ----------
    joint : array-like of shape (n_x, n_y)
        Joint probabilities.
    base : float, default=e
        Base of the logarithm: e for nats, 2 for bits.

    Returns
    -------
    float
        Exactly 0 if Y determines X; at most H(X).

    Raises
    ------
    ValueError, TypeError
        As for `entropy`; also if `joint` does not have two axes.

    See Also
    --------
    entropy : Entropy without conditioning.
    mutual_information : Entropy minus conditional entropy.

    Notes
    -----
    Gondek (2005), eq. (2.2.3), which lacks the minus sign.

    Examples
    --------
    >>> from nrprob.information import conditional_entropy
    >>> conditional_entropy([[0.25, 0.25], [0.5, 0.0]], base=2)  # of axis 0, given axis 1
    0.6887218755408672
    """
    p = _probability_table(joint, "joint", 2)
    return _clip_at_zero((xlogy(p, p.sum(0)) - xlogy(p, p)).sum() / _log_base(base))


def mutual_information(joint: ArrayLike, *, base: float = e) -> float:
    r"""Mutual information of two variables.

    .. math:: I(X; Y) = \sum_{x,y} p(x, y) \log \frac{p(x, y)}{p(x) p(y)}

    Parameters
    ----------
    joint : array-like of shape (n_x, n_y)
        Joint probabilities.
    base : float, default=e
        Base of the logarithm: e for nats, 2 for bits.

    Returns
    -------
    float
        Between 0 and min(H(X), H(Y)); symmetric.

    Raises
    ------
    ValueError, TypeError
        As for `entropy`; also if `joint` does not have two axes.

    See Also
    --------
    conditional_mutual_information : Mutual information given a third variable.
    multi_information : Mutual information of any number of variables.

    Notes
    -----
    Gondek (2005), eq. (2.3.1).

    Examples
    --------
    >>> from nrprob.information import mutual_information
    >>> mutual_information([[0.5, 0.0], [0.0, 0.5]], base=2)
    1.0
    """
    return _clip_at_zero(
        _multi_information(_probability_table(joint, "joint", 2)) / _log_base(base)
    )


def conditional_mutual_information(joint_xyz: ArrayLike, *, base: float = e) -> float:
    r"""Conditional mutual information of the first two variables given the third.

    .. math:: I(X; Y \mid Z) = H(X, Z) + H(Y, Z) - H(X, Y, Z) - H(Z)

    Parameters
    ----------
    joint_xyz : array-like of shape (n_x, n_y, n_z)
        Joint probabilities.
    base : float, default=e
        Base of the logarithm: e for nats, 2 for bits.

    Returns
    -------
    float
        Between 0 and min(H(X|Z), H(Y|Z)); symmetric in X and Y.

    Raises
    ------
    ValueError, TypeError
        As for `entropy`; also if `joint_xyz` does not have three axes.

    See Also
    --------
    mutual_information : Mutual information without conditioning.
    conditional_entropy : Entropy given a variable.

    Notes
    -----
    Gondek (2005), eq. (2.3.5).

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob.information import conditional_mutual_information
    >>> same, other = np.diag([0.25, 0.25]), [[0.0, 0.25], [0.25, 0.0]]
    >>> exclusive_or = np.stack([same, other], axis=2)
    >>> conditional_mutual_information(exclusive_or, base=2)
    1.0
    """
    p = _probability_table(joint_xyz, "joint_xyz", 3)
    xz, yz, z = p.sum(1, keepdims=True), p.sum(0, keepdims=True), p.sum((0, 1), keepdims=True)
    terms = (xlogy(p, p) - xlogy(p, xz)) + (xlogy(p, z) - xlogy(p, yz))
    return _clip_at_zero(terms.sum() / _log_base(base))


def _multi_information(p: Table) -> float:
    """Multi-information in nats of a validated table, one axis per variable."""
    axes = range(p.ndim)
    # Differences of logarithms: the product of the marginals could underflow. Entries p = 0
    # contribute 0.
    terms = xlogy(p, p)
    for axis in axes:
        terms = terms - xlogy(p, p.sum(tuple(a for a in axes if a != axis), keepdims=True))
    return float(terms.sum())


def multi_information(joint: ArrayLike, *, base: float = e) -> float:
    r"""Multi-information (total correlation) of any number of variables.

    .. math:: I(X_1; \dots; X_n) = \sum_i H(X_i) - H(X_1, \dots, X_n)

    Parameters
    ----------
    joint : array-like of shape (d_1, ..., d_n)
        Joint probabilities, one axis per variable.
    base : float, default=e
        Base of the logarithm: e for nats, 2 for bits.

    Returns
    -------
    float
        Non-negative; 0 for independent variables only; the mutual information for n = 2.

    Raises
    ------
    ValueError, TypeError
        As for `entropy`.

    See Also
    --------
    mutual_information : Mutual information of two variables.
    joint_entropy : Entropy of several variables.

    Notes
    -----
    Gondek (2005), eq. (2.3.4).

    Examples
    --------
    >>> from nrprob.information import multi_information
    >>> multi_information([[0.5, 0.0], [0.0, 0.5]], base=2)
    1.0
    """
    return _clip_at_zero(_multi_information(_probability_table(joint, "joint")) / _log_base(base))


def kl_divergence(p: ArrayLike, q: ArrayLike, *, base: float = e) -> float:
    r"""Kullback-Leibler divergence of `p` from `q`.

    .. math:: D(p \,\|\, q) = \sum_x p(x) \log \frac{p(x)}{q(x)}

    Parameters
    ----------
    p, q : array-like of the same shape
        Probabilities of the same outcomes.
    base : float, default=e
        Base of the logarithm: e for nats, 2 for bits.

    Returns
    -------
    float
        Non-negative; 0 for p = q only; `inf` if p(x) > 0 and q(x) = 0 for some x. Not symmetric.

    Raises
    ------
    ValueError, TypeError
        As for `entropy`, for either argument; also if the shapes differ.

    See Also
    --------
    js_divergence : Symmetric divergence of several distributions.
    mutual_information : Divergence of a joint distribution from independence.

    Notes
    -----
    Gondek (2005), eq. (2.3.6). The divergence violates the triangle inequality (misprinted as
    "equality" in the source).

    Examples
    --------
    >>> from nrprob.information import kl_divergence
    >>> round(kl_divergence([0.5, 0.5], [0.9, 0.1]), 4)
    0.5108
    >>> kl_divergence([0.5, 0.5], [1.0, 0.0])
    inf
    """
    p_table, q_table = _probability_table(p, "p"), _probability_table(q, "q")
    if p_table.shape != q_table.shape:
        raise ValueError(
            f"p and q must have the same shape; got {p_table.shape} and {q_table.shape}; "
            "pass a probability for every outcome in both"
        )
    return _clip_at_zero(
        (xlogy(p_table, p_table) - xlogy(p_table, q_table)).sum() / _log_base(base)
    )


def js_divergence(ps: ArrayLike, weights: ArrayLike | None = None, *, base: float = e) -> float:
    r"""Weighted Jensen-Shannon divergence of several distributions.

    .. math:: JS_w = H\left(\sum_i w_i p_i\right) - \sum_i w_i H(p_i)

    where p_i are the distributions, w_i their weights, and H is the entropy.

    Parameters
    ----------
    ps : array-like of shape (n_distributions, n_outcomes)
        One distribution per row.
    weights : array-like of shape (n_distributions,), default=None
        Weights summing to 1; equal weights if None.
    base : float, default=e
        Base of the logarithm: e for nats, 2 for bits.

    Returns
    -------
    float
        Between 0 and the entropy of the weights.

    Raises
    ------
    ValueError, TypeError
        As for `entropy`, for each row and for `weights`; also if the number of weights is not the
        number of rows.

    See Also
    --------
    kl_divergence : Divergence of one distribution from another.
    mutual_information : The same quantity for joint distributions.

    Notes
    -----
    The divergence is the mutual information of two variables: the index of a distribution, sampled
    by `weights`, and an outcome sampled from this distribution. Gondek (2005), eq. (6.3.13), uses
    it as the cost of merging clusters.

    Examples
    --------
    >>> from nrprob.information import js_divergence
    >>> js_divergence([[1.0, 0.0], [0.0, 1.0]], base=2)
    1.0
    """
    rows, tol = _check_probabilities(ps, "ps", 2)
    totals = rows.sum(1)
    worst = int(np.argmax(np.abs(totals - 1.0)))
    if abs(totals[worst] - 1.0) > tol:
        raise ValueError(
            f"every row of ps must sum to 1; row {worst} sums to {totals[worst]:.9g}; "
            "divide each row by its sum"
        )
    w = (
        np.full(len(rows), 1.0 / len(rows))
        if weights is None
        else _probability_table(weights, "weights", 1)
    )
    if len(w) != len(rows):
        raise ValueError(
            f"weights must have one entry per row of ps; got {len(w)} weights and {len(rows)} "
            "rows; pass matching lengths"
        )
    joint = w[:, None] * (rows / totals[:, None])
    return _clip_at_zero(_multi_information(joint) / _log_base(base))


def generalized_entropy(p: ArrayLike, s: float) -> float:
    r"""Structural entropy of degree `s`; the Shannon entropy in bits for s = 1.

    .. math:: H^s(X) = \frac{\sum_x p(x)^s - 1}{2^{1-s} - 1}

    Parameters
    ----------
    p : array-like of any shape
        Probabilities of the outcomes.
    s : float
        Degree, above 0.

    Returns
    -------
    float
        Non-negative. A fair coin has entropy 1 at every degree. The limit s -> 1 is the Shannon
        entropy in bits. H^2 is twice the Gini impurity.

    Raises
    ------
    ValueError, TypeError
        As for `entropy`; also if `s` is not positive and finite.

    See Also
    --------
    entropy : Shannon entropy.
    quadratic_mutual_information : Information for s = 2.

    Notes
    -----
    Gondek (2005), eqs. (2.4.1) and (2.4.2), after Havrda and Charvat (1967). His eq. (3.6.2) is the
    same quantity if its sum runs over clusters instead of clusterings.

    Examples
    --------
    >>> from nrprob.information import generalized_entropy
    >>> generalized_entropy([0.5, 0.5], 2)
    1.0
    """
    s = as_number(s, "s")
    if not 0.0 < s < math.inf:
        raise ValueError(
            f"the degree s must be a positive finite number; got {s}; use s=1 for bits or "
            "s=2 for the quadratic entropy"
        )
    table = _probability_table(p, "p")
    if s == 1.0:
        return _clip_at_zero(entr(table).sum() / math.log(2.0))
    table = table[table > 0]
    if abs(s - 1.0) < 0.5:
        # Numerator and denominator vanish at s = 1; expm1 keeps their ratio accurate.
        numerator = (table * np.expm1((s - 1.0) * np.log(table))).sum()
    else:
        numerator = (table**s - table).sum()
    return _clip_at_zero(numerator / math.expm1((1.0 - s) * math.log(2.0)))


def category_utility(joint: ArrayLike, *, per_cluster: bool = False) -> float:
    r"""Category utility: gain in the probability of guessing Y correctly when X is known.

    .. math:: U(X; Y) = \sum_x p(x) \sum_y p(y \mid x)^2 - \sum_y p(y)^2

    Parameters
    ----------
    joint : array-like of shape (n_x, n_y)
        Joint probabilities; axis 0 is the clustering.
    per_cluster : bool, default=False
        Whether to divide by the number of clusters of positive probability, as in the score of
        Gluck and Corter (1985) for partitions.

    Returns
    -------
    float
        Between 0 and 1 - sum_y p(y)^2, a difference of probabilities. Not symmetric in X and Y.

    Raises
    ------
    ValueError, TypeError
        As for `entropy`; also if `joint` does not have two axes.

    See Also
    --------
    quadratic_mutual_information : Twice this quantity.
    mutual_information : Information in nats.

    Notes
    -----
    Y is guessed by sampling: from p(y|x) if X is known, else from p(y). Gondek (2005), section 3.6,
    names this quantity without a formula.

    Examples
    --------
    >>> from nrprob.information import category_utility
    >>> round(category_utility([[0.4, 0.1], [0.1, 0.4]]), 4)
    0.18
    """
    check_flag("per_cluster", per_cluster)
    p = _probability_table(joint, "joint", 2)
    p_y = p.sum(0)
    p = p[p.sum(1) > 0]
    p_x = p.sum(1, keepdims=True)
    # An equivalent sum of squares, which is never negative, and exactly 0 under independence.
    utility = float((p_x * (p / p_x - p_y) ** 2).sum())
    return utility / len(p) if per_cluster else utility


def quadratic_mutual_information(joint: ArrayLike) -> float:
    r"""Quadratic mutual information of X and Y, the variables of axes 0 and 1.

    .. math:: I^2(X; Y) = H^2(Y) - \sum_x p(x) H^2(Y \mid x)

    where H^2 is the structural entropy of degree 2, see `generalized_entropy`.

    Parameters
    ----------
    joint : array-like of shape (n_x, n_y)
        Joint probabilities.

    Returns
    -------
    float
        Between 0 and H^2(Y). Not symmetric in X and Y.

    Raises
    ------
    ValueError, TypeError
        As for `entropy`; also if `joint` does not have two axes.

    See Also
    --------
    category_utility : Half of this quantity.
    generalized_entropy : The entropy H^2, for s = 2.

    Notes
    -----
    The formula is eq. (3.6.3) of Gondek (2005) at s = 2. Gondek does not define the conditional
    entropy of this equation; here it is the expectation of H^2(Y | x) over x. Then I^2 is twice
    `category_utility`. Kernel methods use the same name for another quantity, the squared distance
    sum (p(x, y) - p(x) p(y))^2.

    Examples
    --------
    >>> from nrprob.information import quadratic_mutual_information
    >>> quadratic_mutual_information([[0.5, 0.0], [0.0, 0.5]])
    1.0
    """
    return 2.0 * category_utility(joint)


def variation_of_information(joint: ArrayLike, *, base: float = e) -> float:
    r"""Variation of information, a distance between two variables.

    .. math:: VI(X, Y) = H(X \mid Y) + H(Y \mid X)

    Parameters
    ----------
    joint : array-like of shape (n_x, n_y)
        Joint probabilities.
    base : float, default=e
        Base of the logarithm: e for nats, 2 for bits.

    Returns
    -------
    float
        Exactly 0 if each variable determines the other; at most H(X) + H(Y), its value under
        independence. Symmetric; the triangle inequality holds.

    Raises
    ------
    ValueError, TypeError
        As for `entropy`; also if `joint` does not have two axes.

    See Also
    --------
    mutual_information : Information of two variables.
    conditional_entropy : The two terms of this distance.

    Notes
    -----
    Gondek (2005), eqs. (3.4.1) and (3.4.2).

    Examples
    --------
    >>> from nrprob.information import variation_of_information
    >>> variation_of_information([[0.25, 0.25], [0.25, 0.25]], base=2)
    2.0
    """
    p = _probability_table(joint, "joint", 2)
    given_y = xlogy(p, p.sum(0)) - xlogy(p, p)
    given_x = xlogy(p, p.sum(1, keepdims=True)) - xlogy(p, p)
    return _clip_at_zero((given_x + given_y).sum() / _log_base(base))
