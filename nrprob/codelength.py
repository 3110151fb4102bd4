r"""Description lengths of labels, distances and continuous values, in nats.

A description length is minus the log of a probability; a code is complete if its Kraft sum is 1.
The length of data x under the normalised maximum likelihood (NML) code of a model class is

.. math:: L(x) = -\max_\theta \log p(x | \theta)
    + \log \sum_y \max_\theta p(y | \theta),

where the second term is the *parametric complexity* of the class, an integral for continuous data.
Lengths of continuous data omit the precision, which is the same for every model.

Functions with an argument ``n``, a number of symbols, distances or values, accept arrays and work
elementwise. `exponential_complexity` and `exponential_length` also accept JAX arrays, traced or
not, and do not check the values of these arrays. Compiled programs can look up multinomial
complexities in a table, which `multinomial_table` computes in advance.

References
----------
J. Rissanen (1996), "Fisher information and stochastic complexity", IEEE Transactions on Information
Theory 42(1), doi:10.1109/18.481776. P. Kontkanen and P. Myllymaki (2007), "A linear-time algorithm
for computing the multinomial stochastic complexity", Information Processing Letters 103(6),
doi:10.1016/j.ipl.2007.04.003.
"""

from __future__ import annotations

import math
from math import e
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.special import xlogy

from nrprob.data.validation import (
    ITERATIONS,
    LARGEST,
    as_array,
    as_number,
    check_choice,
    check_entries,
    check_not_masked,
    check_rows,
)
from nrprob.exceptions import short_repr
from nrprob.information import _log_base

__all__ = [
    "exponential_complexity",
    "exponential_length",
    "gaussian_complexity",
    "gaussian_length",
    "kmeans_length",
    "kraft_sum",
    "maximum_likelihood_length",
    "multinomial_complexity",
    "multinomial_table",
    "nml_length",
    "two_part_length",
]

Table = NDArray[np.float64]


# Checks and helpers


def _is_traced(*values: Any) -> bool:
    return any(isinstance(v, jax.Array) for v in values)


def _as_float_array(value: ArrayLike, name: str) -> Table:
    array = as_array(value, name)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} must hold real numbers; got dtype {array.dtype}; convert it to floats first"
        )
    array = array.astype(np.float64)
    if np.isnan(array).any():
        raise ValueError(
            f"{name} must not contain NaN; got {array.size} values; remove missing values"
        )
    return array


def _as_integers(value: ArrayLike, name: str, low: int = 0) -> Table:
    array = _as_float_array(value, name)
    if not np.isfinite(array).all() or (array != np.round(array)).any() or (array < low).any():
        raise ValueError(
            f"{name} must be a whole number from {low}; got {_first_invalid(array, low)}; "
            "pass a count"
        )
    return array


def _first_invalid(array: Table, low: int) -> float:
    flat = array.ravel()
    good = np.isfinite(flat) & (flat == np.round(flat)) & (flat >= low)
    return float(flat[~good][0])


def _check_counts(counts: ArrayLike) -> Table:
    array = _as_float_array(counts, "counts")
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"counts must be one number per symbol; got shape {array.shape}; pass a list of counts"
        )
    if not np.isfinite(array).all() or (array < 0).any():
        raise ValueError(f"counts must be finite and not negative; got {array.min()}; count again")
    if (array > LARGEST).any():
        raise ValueError(f"counts must be at most {LARGEST}; got {array.max()}; count again")
    return array


def _format_value(array: Any) -> str:
    """Format a number or an array for a message."""
    return short_repr(array.item() if np.ndim(array) == 0 else array)


def _check_bounds(low: Any, high: Any, name: str) -> tuple[Any, Any]:
    if _is_traced(low, high):
        return low, high
    low, high = _as_float_array(low, name), _as_float_array(high, name)
    if not ((low > 0) & (low < high) & (high < np.inf)).all():
        raise ValueError(
            f"{name} must satisfy 0 < low < high; got low={_format_value(low)} and "
            f"high={_format_value(high)}; choose a range that the data can have"
        )
    return low, high


def _to_base(value: Any, base: float) -> Any:
    """Convert lengths in nats to lengths in logarithms to ``base``; a scalar becomes a float."""
    unit = _log_base(base)
    if _is_traced(value):
        return value / unit
    value = np.asarray(value) / unit
    return float(value) if value.ndim == 0 else value


def _stirling_remainder(x: Any) -> Any:
    """Return log Gamma(x + 1) - x log x + x elementwise, without cancellation at large x."""
    xp = jnp if _is_traced(x) else np
    gammaln = jax.scipy.special.gammaln if _is_traced(x) else special.gammaln
    x = xp.asarray(x)
    large, small = xp.maximum(x, 16), xp.clip(x, 1e-30, 16)
    square = 1 / large**2
    series = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680))) / large
    direct = gammaln(small + 1) - small * xp.log(small) + small
    return xp.where(x < 16, direct, 0.5 * xp.log(2 * np.pi * large) + series)


# Codes of finitely many symbols


def kraft_sum(lengths: ArrayLike, *, base: float = e) -> float:
    r"""Kraft sum of code lengths: at most 1 for a prefix code, and 1 for a complete code.

    .. math:: \sum_s r^{-l(s)}

    where l(s) is the length of code word s, and r the size of the alphabet.

    Parameters
    ----------
    lengths : array-like
        Length of every code word, in units of ``base``; infinite for missing words.
    base : float, default=e
        Size r of the alphabet: e for lengths in nats, 2 for bits.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If `lengths` is empty or holds NaN, or `base` is not above 1.

    See Also
    --------
    nml_length : Length under a complete code.
    two_part_length : Length under a two-part code.

    Notes
    -----
    Yin (2007), eqs. (2.1) to (2.3). A prefix code with given lengths exists if and only if the sum
    is at most 1.

    Examples
    --------
    >>> from nrprob.codelength import kraft_sum
    >>> kraft_sum([1, 2, 2], base=2)
    1.0
    """
    array = _as_float_array(lengths, "lengths")
    if array.size == 0:
        raise ValueError("lengths must not be empty; got none; pass the length of every word")
    return math.fsum(np.exp(-_log_base(base) * array.ravel()))


def two_part_length(
    counts: ArrayLike, probabilities: ArrayLike, prior: ArrayLike, *, base: float = e
) -> Any:
    r"""Length of a two-part code: a hypothesis, then the sequence given the hypothesis.

    .. math:: L(h) = -\log P(h) - \sum_s n_s \log P(s|h)

    where P(h) is the prior probability of hypothesis h, and P(s|h) the probability of symbol s
    under h. Symbol s occurs n_s times in the sequence.

    Parameters
    ----------
    counts : array-like of shape (n_symbols,)
        Number n_s of occurrences of every symbol.
    probabilities : array-like of shape (n_symbols,) or (n_hypotheses, n_symbols)
        Probabilities P(s|h) of the symbols under the hypotheses.
    prior : float or array-like of shape (n_hypotheses,)
        Probabilities P(h) of the hypotheses; they must not sum to more than 1.
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float or ndarray of shape (n_hypotheses,)
        Length L(h) for every hypothesis. The length is infinite if P(h) is 0, or if the sequence
        has probability 0 under h.

    Raises
    ------
    ValueError
        If shapes do not agree, or probabilities are negative or do not sum to 1.

    See Also
    --------
    nml_length : Length under the normalised maximum likelihood code.
    maximum_likelihood_length : Length under the relative frequencies, without a hypothesis.

    Notes
    -----
    Yin (2007), eqs. (2.14) and (2.15).

    Examples
    --------
    >>> from nrprob.codelength import two_part_length
    >>> two_part_length([4, 4], [[0.5, 0.5], [0.9, 0.1]], [0.5, 0.5], base=2)
    array([ 9.        , 14.89572475])
    """
    n = _check_counts(counts)
    p, q = _as_float_array(probabilities, "probabilities"), _as_float_array(prior, "prior")
    if p.ndim not in (1, 2) or p.shape[-1] != n.size or p.shape[:-1] != q.shape:
        raise ValueError(
            "probabilities must have a column per symbol and a row per hypothesis; got shape "
            f"{p.shape} for {n.size} counts and prior of shape {q.shape}; make them agree"
        )
    if (p < 0).any() or (np.abs(p.sum(-1) - 1) > 1e-9).any():
        raise ValueError(
            "probabilities of every hypothesis must not be negative and sum to 1; got sums from "
            f"{p.sum(-1).min():.9g} to {p.sum(-1).max():.9g}; normalise them"
        )
    if (q < 0).any() or q.sum() > 1 + 1e-9:
        raise ValueError(
            f"prior must not be negative nor sum to more than 1; got {q.sum():.9g}; normalise it"
        )
    with np.errstate(divide="ignore"):
        return _to_base(-np.log(q) - xlogy(n, p).sum(-1), base)


def maximum_likelihood_length(counts: ArrayLike, *, base: float = e) -> float:
    r"""Length of a sequence under its relative frequencies, without the cost of the frequencies.

    .. math:: -\sum_s n_s \log \frac{n_s}{N}

    where symbol s occurs n_s times in a sequence of N symbols.

    Parameters
    ----------
    counts : array-like of shape (n_symbols,)
        Number of occurrences of every symbol.
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float
        N times the entropy of the relative frequencies.

    Raises
    ------
    ValueError
        If counts are negative or not finite.

    See Also
    --------
    nml_length : Complete code, with the parametric complexity.
    nrprob.information.entropy : Entropy of probabilities.

    Notes
    -----
    Yin (2007), eq. (2.12) without its factor. This length is one of the two terms of `nml_length`.

    Examples
    --------
    >>> from nrprob.codelength import maximum_likelihood_length
    >>> maximum_likelihood_length([4, 4], base=2)
    8.0
    """
    n = _check_counts(counts)
    total = n.sum()
    present = n[n > 0]
    return _to_base(max(0.0, float(present @ np.log(total / present))), base)


def _log_ratios(n: Table, k: int) -> Table:
    """Log ratios (k, *n.shape) of the sums C of `multinomial_complexity`.

    Row j >= 1 is the log of C(j + 1, n) / C(j, n). Row 0 is log C(1, n) = 0.
    """
    if k > ITERATIONS:
        raise ValueError(
            f"k must be at most {ITERATIONS} with the exact form; got {k}; lower it, or use an "
            "asymptotic form of multinomial_complexity"
        )
    check_entries("the table of complexities", k * max(n.size, 1), "lower k, or pass fewer n")
    out = np.zeros((k, *n.shape))
    if k > 1:
        positive = np.maximum(n, 1)
        # C(2, n) = 1 + Q(n) with Ramanujan's Q, an incomplete gamma function.
        ratio = 1 + np.exp(_stirling_remainder(positive)) * special.gammaincc(positive, positive)
        ratio = np.where(n > 0, ratio, 1.0)
        out[1] = np.log(ratio)
        for j in range(1, k - 1):
            # C(j + 2) = C(j + 1) + (n / j) C(j), divided by C(j + 1), which damps rounding errors
            # and cannot overflow.
            ratio = 1 + n / (j * ratio)
            out[j + 1] = np.log(ratio)
    return out


def multinomial_table(k: int, n: ArrayLike) -> Table:
    r"""Parametric complexities of multinomials with 1 to ``k`` symbols, in nats.

    Parameters
    ----------
    k : int
        Largest number of symbols.
    n : int or array-like
        Lengths of the sequences.

    Returns
    -------
    ndarray of shape (k, ...), the shape of ``n`` after k
        Row j - 1 is ``multinomial_complexity(j, n)``.

    Raises
    ------
    ValueError
        If `k` is not a whole number from 1 to 10**6, `n` is not a whole number from 0, or the table
        has more than 2**30 entries.

    See Also
    --------
    multinomial_complexity : Complexity for one number of symbols, by several formulas.
    nml_length : Length of a sequence, with its complexity.

    Examples
    --------
    >>> from nrprob.codelength import multinomial_table
    >>> multinomial_table(2, 10).round(4)
    array([0.    , 1.5391])
    """
    size = int(_as_integers(as_number(k, "k"), "k", 1))
    return np.cumsum(_log_ratios(_as_integers(n, "n"), size), 0)


def multinomial_complexity(
    k: ArrayLike,
    n: ArrayLike,
    *,
    form: Literal["exact", "asymptotic", "szpankowski", "printed"] = "exact",
    base: float = e,
) -> Any:
    r"""Parametric complexity of sequences of ``n`` symbols from an alphabet of ``k`` symbols.

    .. math:: \log C(K, N), \qquad C(K, N) = \sum_{h_1 + \dots + h_K = N}
        \frac{N!}{\prod_j h_j!} \prod_j \left(\frac{h_j}{N}\right)^{h_j}

    where K is the number of different symbols, N the length of the sequence, and h_j the number of
    occurrences of symbol j in the sequence.

    Parameters
    ----------
    k : int or array-like
        Number of symbols, from 1.
    n : int or array-like, broadcast against ``k``
        Length of the sequence, from 0.
    form : {"exact", "asymptotic", "szpankowski", "printed"}, default="exact"
        "exact" is the logarithm of the sum. "asymptotic" is Rissanen's form,
        :math:`\frac{K-1}{2} \log \frac{N}{2\pi} + \log \frac{\pi^{K/2}}{\Gamma(K/2)}`, accurate for
        K much smaller than N. "szpankowski" is accurate to order 1/N. "printed" omits the second
        term of Rissanen's form, as Table 3.3 of Yin (2007) does.
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float or ndarray

    Raises
    ------
    ValueError
        If `k` or `n` are not whole numbers in their range, for an asymptotic form at ``n=0``, or
        for an unknown `form`.

    See Also
    --------
    multinomial_table : Complexities of 1 to k symbols.
    nml_length : Length of a sequence, with its complexity.

    Notes
    -----
    The exact form takes O(K) operations. C(2, N) = 1 + Q(N), where Q is Ramanujan's function.
    C(K + 2, N) = C(K + 1, N) + (N/K) C(K, N), by Kontkanen and Myllymäki (2007). The asymptotic
    form is eq. (2.20) of Yin (2007) with the Fisher integral of the multinomial; "szpankowski" is
    from Szpankowski (1998).

    Examples
    --------
    >>> from nrprob.codelength import multinomial_complexity
    >>> round(multinomial_complexity(2, 10), 4)
    1.5391
    """
    size, length = np.broadcast_arrays(_as_integers(k, "k", 1), _as_integers(n, "n"))
    check_choice("form", form, ("exact", "asymptotic", "szpankowski", "printed"))
    if form == "exact":
        values = np.zeros(size.shape)
        ratios = np.cumsum(_log_ratios(length, int(size.max())), 0) if size.size else values[None]
        values = np.take_along_axis(ratios, size.astype(int)[None] - 1, 0)[0]
        return _to_base(values, base)
    if (length == 0).any():
        raise ValueError(f'form={form!r} needs n above 0; got 0; use form="exact"')
    half = size / 2
    if form == "szpankowski":
        # Gamma(K/2) / Gamma(K/2 - 1/2) is 0 for K = 1.
        ratio = np.where(size > 1, np.exp(special.gammaln(half) - special.gammaln(half - 0.5)), 0)
        values = (
            (half - 0.5) * np.log(length / 2)
            + 0.5 * math.log(math.pi)
            - special.gammaln(half)
            + math.sqrt(2) * size * ratio / (3 * np.sqrt(length))
            + ((3 + size * (size - 2) * (2 * size + 1)) / 36 - (size * ratio) ** 2 / 9) / length
        )
        return _to_base(values, base)
    values = (half - 0.5) * np.log(length / (2 * math.pi))
    if form == "asymptotic":
        values = values + half * math.log(math.pi) - special.gammaln(half)
    return _to_base(values, base)


def nml_length(counts: ArrayLike, *, base: float = e) -> float:
    r"""Length of a sequence under the normalised maximum likelihood code of a multinomial.

    .. math:: \log C(K, N) - \sum_s n_s \log \frac{n_s}{N}

    where N is the length of the sequence, K the number of different symbols, and n_s the number of
    occurrences of symbol s. log C is the parametric complexity; see `multinomial_complexity`.

    Parameters
    ----------
    counts : array-like of int of shape (n_symbols,)
        Counts of all K symbols, including symbols that do not occur.
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If counts are not whole numbers from 0.

    See Also
    --------
    maximum_likelihood_length : The second term of the length.
    multinomial_complexity : The first term of the length.

    Notes
    -----
    Yin (2007), eqs. (2.19) and (2.27). The Kraft sum over all sequences of N symbols is 1.

    Examples
    --------
    >>> from nrprob.codelength import nml_length
    >>> round(nml_length([4, 4], base=2), 3)  # maximum_likelihood_length, and the complexity
    10.086
    """
    n = _as_integers(_check_counts(counts), "counts")
    length = maximum_likelihood_length(n) + multinomial_complexity(n.size, n.sum())
    return _to_base(length, base)


# Codes of distances and of continuous values


def exponential_complexity(
    n: Any,
    low: Any,
    high: Any,
    *,
    shape: Any = 1.0,
    clamped: bool = False,
    form: Literal["exact", "asymptotic"] = "exact",
    base: float = e,
) -> Any:
    r"""Parametric complexity of ``n`` squared distances under an exponential density.

    .. math:: \log \frac{N^N e^{-N}}{\Gamma(N)} + \log \log \frac{s_{high}}{s_{low}}

    where every squared distance r has the density :math:`s^{-1} e^{-r/s}`, and the scale s lies
    between the bounds :math:`s_{low}` and :math:`s_{high}`. N is the product of the number ``n`` of
    distances and ``shape``. The maximum likelihood estimate of s is the mean of the squared
    distances.

    Parameters
    ----------
    n : float or array-like
        Number of distances.
    low, high : float or array-like
        Bounds of the scale s, in units of squared distance; only their ratio matters.
    shape : float or array-like, default=1.0
        1 for the exponential density of squared distances. Half the dimension of the vectors if
        the distances are lengths of vectors with an isotropic normal density.
    clamped : bool, default=False
        Whether the code also covers data whose mean squared distance is outside the bounds. The
        scale of such data is the nearest bound. The complexity is then log(1 + exp(c)), where c is
        the expression above. This complexity is non-negative, and 0 for ``n=0``.
    form : {"exact", "asymptotic"}, default="exact"
        "asymptotic" is the form of Yin (2007), which is larger than the exact form by about
        1/(12 N).
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float or array

    Raises
    ------
    ValueError
        Unless ``0 < low < high``, if `n` is negative, if `shape` is not positive, or for an unknown
        `form`.

    See Also
    --------
    exponential_length : Length of distances, with this complexity.
    gaussian_complexity : Complexity of normal values.

    Notes
    -----
    Yin (2007), eq. (2.35), is the asymptotic form. Without bounds the complexity is infinite.

    Examples
    --------
    >>> from nrprob.codelength import exponential_complexity
    >>> round(exponential_complexity(100, 0.01, 10.0), 3)
    3.315
    """
    low, high = _check_bounds(low, high, "sigma range")
    check_choice("form", form, ("exact", "asymptotic"))
    xp = jnp if _is_traced(n, low, high, shape) else np
    if xp is np:
        n, shape = _as_float_array(n, "n"), _as_float_array(shape, "shape")
        if not ((n >= 0) & (n <= LARGEST)).all() or not ((shape > 0) & (shape <= LARGEST)).all():
            raise ValueError(
                "n must not be negative, shape must be positive, and both be no larger than "
                f"{LARGEST}; got n={_format_value(n)} and shape={_format_value(shape)}; "
                "pass the number of distances"
            )
    total = xp.asarray(n * shape)
    positive = xp.where(total > 0, total, 1)
    if form == "exact":
        mode = xp.log(positive) - _stirling_remainder(positive)
    else:
        mode = 0.5 * xp.log(positive / (2 * np.pi))
    value = mode + xp.log(xp.log(high / low))
    if clamped:
        value = xp.logaddexp(value, 0.0)
    return _to_base(xp.where(total > 0, value, 0.0), base)


def exponential_length(
    n: Any, total: Any, low: Any, high: Any, *, shape: Any = 1.0, base: float = e
) -> Any:
    r"""Length of squared distances under the NML code of an exponential density.

    .. math:: w \left(n \log s + \frac{R}{s}\right) + PC, \qquad
        s = \min(\max(R/n, s_{low}), s_{high})

    where R is the sum of n squared distances, s the scale, w the argument ``shape``, and PC the
    parametric complexity.

    Parameters
    ----------
    n : float or array-like
        Number of distances.
    total : float or array-like
        Sum R of the squared distances.
    low, high, shape, base
        Arguments of `exponential_complexity`, which gives PC with ``clamped=True``: bounds s_low
        and s_high of the scale, the factor w, and the base of the logarithm.

    Returns
    -------
    float or array
        The length; 0 for ``n=0``. For ``shape=1``, the length is minus the log of a normalised
        density of the squared distances. For other shapes, it is minus the log of a density of
        vectors with these squared lengths, up to a constant.

    Raises
    ------
    ValueError
        As for `exponential_complexity`.

    See Also
    --------
    exponential_complexity : The parametric complexity PC.
    kmeans_length : Length of rows given a k-means clustering.

    Notes
    -----
    Yin (2007), eqs. (2.32) and (3.9), extended to all sums of distances by clamping.

    Examples
    --------
    >>> from nrprob.codelength import exponential_length
    >>> round(exponential_length(100, 80.0, 0.01, 10.0), 2)
    81.04
    """
    complexity = exponential_complexity(n, low, high, shape=shape, clamped=True)
    xp = jnp if _is_traced(n, total, low, high, shape) else np
    if xp is np:
        total, low, high = (
            _as_float_array(total, "total"),
            _as_float_array(low, "low"),
            _as_float_array(high, "high"),
        )
        shape = _as_float_array(shape, "shape")
        if not ((total >= 0) & np.isfinite(total)).all():
            raise ValueError(
                f"total must be finite and not negative; got {_format_value(total)}; pass a sum of "
                "squared distances"
            )
    n, total = xp.asarray(n), xp.asarray(total)
    s = xp.clip(total / xp.where(n > 0, n, 1), low, high)
    return _to_base(shape * xp.where(n > 0, n * xp.log(s) + total / s, 0.0) + complexity, base)


def gaussian_complexity(
    n: ArrayLike, low: ArrayLike, high: ArrayLike, mean_range: ArrayLike, *, base: float = e
) -> Any:
    r"""Parametric complexity of ``n`` values under a normal density with bounded parameters.

    .. math:: \log R + \frac12 \log \frac{n}{2\pi} + \log\left[\frac{F}{a} + \frac{1-F}{b}
        + 2 A \left(\frac1a - \frac1b\right)\right], \qquad
        F = P(\chi^2_{n-1} \le n), \quad
        A = \frac{(n/2)^{(n-1)/2} e^{-n/2}}{\Gamma((n-1)/2)}

    where means lie in an interval of length R, and standard deviations are clamped to [a, b]. F is
    the probability P that :math:`\chi^2_{n-1}`, a chi-squared variable with n - 1 degrees of
    freedom, is at most n. A is an abbreviation.

    Parameters
    ----------
    n : int or array-like
        Number of values.
    low, high : float or array-like
        Bounds a and b of the standard deviation.
    mean_range : float or array-like
        Length R of the interval of means.
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float or ndarray
        The complexity; 0 for ``n=0``. The total length of a single value is log R, as under a
        uniform code.

    Raises
    ------
    ValueError
        Unless ``0 < low < high``, if `mean_range` is not positive, or `n` is not a whole number.

    See Also
    --------
    gaussian_length : Length of values, with this complexity.
    exponential_complexity : Complexity of squared distances.

    Notes
    -----
    Derived for this package. Yin (2007) does not bound the parameters of this class of densities;
    without bounds, the complexity is infinite.

    Examples
    --------
    >>> from nrprob.codelength import gaussian_complexity
    >>> round(gaussian_complexity(100, 0.1, 10.0, 20.0), 3)
    8.488
    """
    _check_bounds(low, high, "sigma range")
    n, width = _as_integers(n, "n"), _as_float_array(mean_range, "mean_range")
    a, b = _as_float_array(low, "low"), _as_float_array(high, "high")
    if not ((width > 0) & (width < np.inf)).all():
        raise ValueError(
            f"mean_range must be positive; got {_format_value(width)}; pass the range of the data"
        )
    several = np.maximum(n, 2)
    inside = np.where(n > 1, special.gammainc((several - 1) / 2, several / 2), 1.0)
    log_mode = (several - 1) / 2 * np.log(several / 2) - several / 2
    mode = np.where(n > 1, np.exp(log_mode - special.gammaln((several - 1) / 2)), 0.0)
    scale = inside / a + (1 - inside) / b + 2 * mode * (1 / a - 1 / b)
    value = np.log(width) + 0.5 * np.log(np.maximum(n, 1) / (2 * np.pi)) + np.log(scale)
    return _to_base(np.where(n > 0, value, 0.0), base)


def gaussian_length(
    n: ArrayLike,
    variance: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    mean_range: ArrayLike,
    *,
    base: float = e,
) -> Any:
    r"""Length of ``n`` values under the NML code of a normal density with bounded parameters.

    .. math:: \frac n2 \log 2 \pi s^2 + \frac{n v}{2 s^2} + PC, \qquad
        s = \min(\max(\sqrt v, a), b)

    where v is the variance of the n values, a and b bound the standard deviation s, and PC is the
    parametric complexity.

    Parameters
    ----------
    n : int or array-like
        Number of values.
    variance : float or array-like
        Variance v of the values, the mean squared deviation from their mean.
    low, high, mean_range, base
        Arguments of `gaussian_complexity`, which gives PC: bounds a and b of s, the length of the
        interval of means, and the base of the logarithm.

    Returns
    -------
    float or ndarray
        Length, valid if the mean of the values lies in the interval of means.

    Raises
    ------
    ValueError
        As for `gaussian_complexity`.

    See Also
    --------
    gaussian_complexity : The parametric complexity PC.
    exponential_length : Length of squared distances.

    Examples
    --------
    >>> from nrprob.codelength import gaussian_length
    >>> round(gaussian_length(100, 2.0, 0.1, 10.0, 20.0), 2)
    185.04
    """
    complexity = gaussian_complexity(n, low, high, mean_range)
    n, v = _as_float_array(n, "n"), _as_float_array(variance, "variance")
    if not ((v >= 0) & np.isfinite(v)).all():
        raise ValueError(
            f"variance must be finite and not negative; got {_format_value(v)}; pass a mean square"
        )
    s = np.clip(np.sqrt(v), low, high)
    length = n * np.log(s * math.sqrt(2 * math.pi)) + n * v / (2 * s**2) + complexity
    return _to_base(length, base)


def kmeans_length(
    X: ArrayLike,
    labels: ArrayLike,
    *,
    n_clusters: int | None = None,
    geometry: Literal["exp", "gaussian"] = "exp",
    centre_code: Literal["none", "half_log"] = "none",
    low: float | None = None,
    high: float | None = None,
    base: float = e,
) -> float:
    r"""Description length of rows by their labels and their distances from the cluster means.

    .. math:: \log C(K, N) - \sum_k n_k \log \frac{n_k}{N}
        + w N \left(1 + \log \frac{R}{N}\right) + PC_\sigma

    where N rows are in K clusters of sizes n_k. R is the sum of the squared distances of the rows
    from their cluster means. :math:`\log C` is the multinomial complexity,
    :math:`PC_\sigma` the parametric complexity of the scale R/N, and w a factor that depends on
    ``geometry``.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Rows.
    labels : array-like of shape (n_samples,)
        Cluster label of every row.
    n_clusters : int, optional
        Number K of clusters; None for the number of distinct labels.
    geometry : {"exp", "gaussian"}, default="exp"
        "exp" encodes squared distances by an exponential density, w = 1, as in Yin (2007).
        "gaussian" encodes rows by an isotropic Gaussian density, w = n_features / 2. For two
        features, "exp" and "gaussian" are equal.
    centre_code : {"none", "half_log"}, default="none"
        "half_log" adds a cost of :math:`\frac12 \log \frac{N}{2\pi}` (at least 0) for each of the
        K n_features coordinates of the cluster means. Use "half_log" to compare numbers of
        clusters. With "none", too many clusters have the shortest length if there are many
        features.
    low, high : float, optional
        Bounds of R/N. By default, ``high`` is the mean squared distance of the rows from the mean
        of all rows, and ``low`` is 1e-3 times this distance. R/N is clamped to at least ``low``.
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float
        Description length, up to a constant that does not depend on the labels.

    Raises
    ------
    ValueError
        If rows and labels have different lengths; if `X` is not finite; if all rows are equal and a
        bound is None; or if an option is unknown.

    See Also
    --------
    exponential_length : Length of the distances.
    nml_length : Length of the labels.

    Notes
    -----
    Yin (2007), eq. (2.36), whose symbol r stands for squared distances here.

    Examples
    --------
    >>> from nrprob.codelength import kmeans_length
    >>> X = [[0.0], [0.1], [0.2], [5.0], [5.1], [5.3]]
    >>> kmeans_length(X, [0, 0, 0, 1, 1, 1]) < kmeans_length(X, [0, 1, 0, 1, 0, 1])
    True
    """
    from sklearn.utils import check_array, check_consistent_length, column_or_1d

    x = check_rows(X, check_array, dtype=np.float64, input_name="X")
    check_not_masked(labels, "labels")
    if np.iscomplexobj(labels):  # scikit-learn's message contains the values
        raise ValueError(
            "labels must not be complex; got complex numbers; pass integers or strings"
        )
    labels = column_or_1d(as_array(labels, "labels"))
    check_consistent_length(x, labels)
    check_choice("geometry", geometry, ("exp", "gaussian"))
    check_choice("centre_code", centre_code, ("none", "half_log"))
    # Codes and sizes of the clusters.
    n, d = x.shape
    try:
        codes, counts = np.unique(labels, return_inverse=True, return_counts=True)[1:]
    except TypeError:
        raise TypeError(
            "labels must be of one type; got values that have no order; pass integers or strings"
        ) from None
    k = counts.size
    if n_clusters is not None:
        k = int(_as_integers(as_number(n_clusters, "n_clusters"), "n_clusters", 1))
    if k < counts.size:
        raise ValueError(
            f"n_clusters must not be below the number of labels; got {k} for {counts.size} labels; "
            "raise it"
        )
    # Bounds of the scale, from the mean squared distance to the mean of all rows.
    x = x - x.mean(0)
    spread = float((x**2).sum() / n)
    if spread == 0 and (low is None or high is None):
        raise ValueError(
            "X has no variance, and so no range of distances; got equal rows; pass low and high"
        )
    low = 1e-3 * spread if low is None else as_number(low, "low")
    high = spread if high is None else as_number(high, "high")
    # Mean squared distance R/N to the cluster means, and the total length.
    centres = np.zeros((counts.size, d))
    np.add.at(centres, codes, x)
    mean_distance = float(((x - (centres / counts[:, None])[codes]) ** 2).sum() / n)
    w = 1.0 if geometry == "exp" else d / 2
    length = (
        maximum_likelihood_length(counts)
        + multinomial_complexity(k, n)
        + w * n * (1 + math.log(max(mean_distance, low)))
        + exponential_complexity(n, low, high, shape=w)
    )
    if centre_code == "half_log":
        length += 0.5 * k * d * max(math.log(n / (2 * math.pi)), 0.0)
    return _to_base(length, base)
