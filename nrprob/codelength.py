"""Description lengths: what it takes to send labels, distances and numbers, in nats.

A length is minus the log of a probability; a code is complete if its Kraft sum is 1. The length of
data under a normalised maximum likelihood (NML) code is minus their largest log likelihood within a
class of models, plus the *parametric complexity* of the class: the log of what the largest
likelihoods of all data sum, or integrate, to. Lengths of real numbers leave out the precision,
which is the same for every model.

Functions of numbers of rows (``n``) and of summed statistics take arrays as well, and JAX's traced
ones (for `multinomial_complexity`, make a table first). Arguments are checked where they are known.
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


def _traced(*values: Any) -> bool:
    return any(isinstance(v, jax.Array) for v in values)


def _array(value: ArrayLike, name: str) -> Table:
    array = as_array(value, name)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} must hold real numbers; got dtype {array.dtype}; convert it to floats first"
        )
    array = array.astype(np.float64)
    if np.isnan(array).any():
        raise ValueError(f"{name} must not contain NaN; got {array.size} values; remove those")
    return array


def _sizes(value: ArrayLike, name: str, low: int = 0) -> Table:
    array = _array(value, name)
    if not np.isfinite(array).all() or (array != np.round(array)).any() or (array < low).any():
        raise ValueError(
            f"{name} must be a whole number from {low}; got {_first(array, low)}; pass a count"
        )
    return array


def _first(array: Table, low: int) -> float:
    flat = array.ravel()
    good = np.isfinite(flat) & (flat == np.round(flat)) & (flat >= low)
    return float(flat[~good][0])


def _counts(counts: ArrayLike) -> Table:
    array = _array(counts, "counts")
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"counts must be one number per symbol; got shape {array.shape}; pass a list of counts"
        )
    if not np.isfinite(array).all() or (array < 0).any():
        raise ValueError(f"counts must be finite and not negative; got {array.min()}; count again")
    if (array > LARGEST).any():
        raise ValueError(f"counts must be at most {LARGEST}; got {array.max()}; count again")
    return array


def _shown(array: Any) -> str:
    """A number, or an array, in a message."""
    return short_repr(array.item() if np.ndim(array) == 0 else array)


def _range(low: Any, high: Any, name: str) -> tuple[Any, Any]:
    if _traced(low, high):
        return low, high
    low, high = _array(low, name), _array(high, name)
    if not ((low > 0) & (low < high) & (high < np.inf)).all():
        raise ValueError(
            f"{name} must satisfy 0 < low < high; got low={_shown(low)} and high={_shown(high)}; "
            "choose a range that the data can have"
        )
    return low, high


def _out(value: Any, base: float) -> Any:
    """In units of ``base``; a float if it is a single number."""
    unit = _log_base(base)
    if _traced(value):
        return value / unit
    value = np.asarray(value) / unit
    return float(value) if value.ndim == 0 else value


def _stirling(x: Any) -> Any:
    """Return log Gamma(x + 1) - x log x + x: without the cancellation of these at large x."""
    xp = jnp if _traced(x) else np
    gammaln = jax.scipy.special.gammaln if _traced(x) else special.gammaln
    x = xp.asarray(x)
    large, small = xp.maximum(x, 16), xp.clip(x, 1e-30, 16)
    square = 1 / large**2
    series = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680))) / large
    direct = gammaln(small + 1) - small * xp.log(small) + small
    return xp.where(x < 16, direct, 0.5 * xp.log(2 * np.pi * large) + series)


# Codes of finitely many symbols


def kraft_sum(lengths: ArrayLike, *, base: float = e) -> float:
    r"""Kraft's sum of code lengths: at most 1 where a prefix code has them, 1 where none is wasted.

    .. math:: \sum_s r^{-l(s)}

    Parameters
    ----------
    lengths : array-like
        Length of every word, in units of ``base``; infinite for what cannot be said.
    base : float, default=e
        Size r of the alphabet: e for lengths in nats, 2 for bits.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If `lengths` is empty or holds NaN, or `base` is not above 1.

    Notes
    -----
    Yin (2007), eqs. (2.1) to (2.3). The sum is about lengths, not about words: 1, 10, 110 and 111
    are no prefix code, but one with these lengths exists.

    Examples
    --------
    >>> from nrprob.codelength import kraft_sum
    >>> kraft_sum([1, 2, 2], base=2)
    1.0
    """
    array = _array(lengths, "lengths")
    if array.size == 0:
        raise ValueError("lengths must not be empty; got none; pass the length of every word")
    return math.fsum(np.exp(-_log_base(base) * array.ravel()))


def two_part_length(
    counts: ArrayLike, probabilities: ArrayLike, prior: ArrayLike, *, base: float = e
) -> Any:
    r"""Length of a sequence that is sent after the hypothesis which encodes it.

    .. math:: L(h) = -\log P(h) - \sum_s n_s \log P(s|h)

    Parameters
    ----------
    counts : array-like of shape (n_symbols,)
        How often every symbol occurs.
    probabilities : array-like of shape (n_symbols,) or (n_hypotheses, n_symbols)
        Probabilities of the symbols under the hypotheses.
    prior : float or array-like of shape (n_hypotheses,)
        Probabilities of the hypotheses; they must not sum to more than 1.
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float or ndarray of shape (n_hypotheses,)
        Infinite where a hypothesis has no code word, or rules the sequence out.

    Raises
    ------
    ValueError
        If shapes do not agree, or probabilities are negative or do not sum to 1.

    Notes
    -----
    Yin (2007), eqs. (2.14) and (2.15).

    Examples
    --------
    >>> from nrprob.codelength import two_part_length
    >>> two_part_length([4, 4], [[0.5, 0.5], [0.9, 0.1]], [0.5, 0.5], base=2)
    array([ 9.        , 14.89572475])
    """
    n = _counts(counts)
    p, q = _array(probabilities, "probabilities"), _array(prior, "prior")
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
        return _out(-np.log(q) - xlogy(n, p).sum(-1), base)


def maximum_likelihood_length(counts: ArrayLike, *, base: float = e) -> float:
    r"""Length of a sequence under its own frequencies, which its receiver does not know.

    .. math:: -\sum_s n_s \log \frac{n_s}{N}

    Parameters
    ----------
    counts : array-like of shape (n_symbols,)
        How often every symbol occurs.
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float
        The entropy of the sequence, N times that of its frequencies.

    Raises
    ------
    ValueError
        If counts are negative or not finite.

    Notes
    -----
    Yin (2007), eq. (2.12) without its factor: the first term of `nml_length`.

    Examples
    --------
    >>> from nrprob.codelength import maximum_likelihood_length
    >>> maximum_likelihood_length([4, 4], base=2)
    8.0
    """
    n = _counts(counts)
    total = n.sum()
    present = n[n > 0]
    return _out(max(0.0, float(present @ np.log(total / present))), base)


def _log_ratios(n: Table, k: int) -> Table:
    """Log C(j + 1, n) / C(j, n) for j = 1 .. k - 1, and 0 before: shape (k, *n.shape)."""
    if k > ITERATIONS:
        raise ValueError(
            f"k must be at most {ITERATIONS} with the exact form; got {k}; lower it, or use an "
            "asymptotic form of multinomial_complexity"
        )
    check_entries("the table of complexities", k * max(n.size, 1), "lower k, or pass fewer n")
    out = np.zeros((k, *n.shape))
    if k > 1:
        some = np.maximum(n, 1)
        # C(2, n) = 1 + Q(n), Ramanujan's function, which is an incomplete gamma function.
        ratio = 1 + np.exp(_stirling(some)) * special.gammaincc(some, some)
        ratio = np.where(n > 0, ratio, 1.0)
        out[1] = np.log(ratio)
        for j in range(1, k - 1):
            # C(j + 2) = C(j + 1) + (n / j) C(j), divided by C(j + 1). Errors shrink from step to
            # step, and nothing overflows.
            ratio = 1 + n / (j * ratio)
            out[j + 1] = np.log(ratio)
    return out


def multinomial_table(k: int, n: ArrayLike) -> Table:
    r"""Parametric complexities of 1 to ``k`` symbols, in nats.

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
        If `k` is not a whole number from 1 to 10**6 or `n` not one from 0, or the table would have
        more than 2**30 entries.

    Examples
    --------
    >>> from nrprob.codelength import multinomial_table
    >>> multinomial_table(2, 10).round(4)
    array([0.    , 1.5391])
    """
    size = int(_sizes(as_number(k, "k"), "k", 1))
    return np.cumsum(_log_ratios(_sizes(n, "n"), size), 0)


def multinomial_complexity(
    k: ArrayLike,
    n: ArrayLike,
    *,
    form: Literal["exact", "asymptotic", "szpankowski", "printed"] = "exact",
    base: float = e,
) -> Any:
    r"""Parametric complexity of sequences of ``n`` symbols out of ``k``.

    .. math:: \log C(K, N), \qquad C(K, N) = \sum_{h_1 + \dots + h_K = N}
        \frac{N!}{\prod_j h_j!} \prod_j \left(\frac{h_j}{N}\right)^{h_j}

    Parameters
    ----------
    k : int or array-like
        Number of symbols, from 1.
    n : int or array-like, broadcast against ``k``
        Length of the sequence, from 0.
    form : {"exact", "asymptotic", "szpankowski", "printed"}, default="exact"
        "asymptotic" is Rissanen's, :math:`\frac{K-1}{2} \log \frac{N}{2\pi} +
        \log \frac{\pi^{K/2}}{\Gamma(K/2)}`, good for K far below N; "szpankowski" goes on to the
        order 1/N; "printed" leaves out the second term of Rissanen's, as the thesis's Table 3.3.
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float or ndarray

    Raises
    ------
    ValueError
        If `k` or `n` are not whole numbers in their range, if an asymptotic form is asked for at
        ``n=0``, or for another `form`.

    Notes
    -----
    Exact in O(K) operations, whatever N: C(2, N) = 1 + Q(N) with Ramanujan's Q, and Kontkanen and
    Myllymäki (2007), C(K + 2, N) = C(K + 1, N) + (N/K) C(K, N). The asymptotic form is eq. (2.20)
    of Yin (2007) with the Fisher integral of the multinomial; the finer one, Szpankowski (1998).

    Examples
    --------
    >>> from nrprob.codelength import multinomial_complexity
    >>> round(multinomial_complexity(2, 10), 4)
    1.5391
    """
    size, length = np.broadcast_arrays(_sizes(k, "k", 1), _sizes(n, "n"))
    check_choice("form", form, ("exact", "asymptotic", "szpankowski", "printed"))
    if form == "exact":
        values = np.zeros(size.shape)
        ratios = np.cumsum(_log_ratios(length, int(size.max())), 0) if size.size else values[None]
        values = np.take_along_axis(ratios, size.astype(int)[None] - 1, 0)[0]
        return _out(values, base)
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
        return _out(values, base)
    values = (half - 0.5) * np.log(length / (2 * math.pi))
    if form == "asymptotic":
        values = values + half * math.log(math.pi) - special.gammaln(half)
    return _out(values, base)


def nml_length(counts: ArrayLike, *, base: float = e) -> float:
    r"""Length of a sequence under the normalised maximum likelihood code of its counts.

    .. math:: \log C(K, N) - \sum_s n_s \log \frac{n_s}{N}

    Parameters
    ----------
    counts : array-like of int of shape (n_symbols,)
        How often every symbol occurs. Symbols that do not occur could have: they count for K.
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If counts are not whole numbers from 0.

    Notes
    -----
    Yin (2007), eqs. (2.19) and (2.27). The Kraft sum over all sequences of N symbols is 1.

    Examples
    --------
    >>> from nrprob.codelength import nml_length
    >>> round(nml_length([4, 4], base=2), 3)  # maximum_likelihood_length, and the complexity
    10.086
    """
    n = _sizes(_counts(counts), "counts")
    length = maximum_likelihood_length(n) + multinomial_complexity(n.size, n.sum())
    return _out(length, base)


# Codes of distances and of numbers


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
    r"""Parametric complexity of ``n`` squared distances whose mean lies between two bounds.

    Of the exponential density :math:`s^{-1} e^{-r/s}`, whose best scale s is the mean distance,

    .. math:: \log \frac{N^N e^{-N}}{\Gamma(N)} + \log \log \frac{s_{high}}{s_{low}}

    Parameters
    ----------
    n : float or array-like
        Number of distances.
    low, high : float or array-like
        Bounds of the scale, in units of squared distance; only their ratio matters.
    shape : float or array-like, default=1.0
        What a distance counts: 1 for the exponential density; half the dimension for the isotropic
        normal one, of whose vectors r is the squared length. N is ``shape * n``.
    clamped : bool, default=False
        Whether data with another mean distance may occur, and are sent with the scale at the bound
        that is nearest. The complexity is then log(1 + exp(.)) of the one above: never negative,
        and 0 for no data.
    form : {"exact", "asymptotic"}, default="exact"
        "asymptotic" is the form of the thesis, which is longer by about 1/(12 N).
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float or array

    Raises
    ------
    ValueError
        If not ``0 < low < high``, or `n` or `shape` is negative, or for another `form`.

    Notes
    -----
    Yin (2007), eq. (2.35), is the asymptotic form. Without bounds the complexity is infinite.

    Examples
    --------
    >>> from nrprob.codelength import exponential_complexity
    >>> round(exponential_complexity(100, 0.01, 10.0), 3)
    3.315
    """
    low, high = _range(low, high, "sigma range")
    check_choice("form", form, ("exact", "asymptotic"))
    xp = jnp if _traced(n, low, high, shape) else np
    if xp is np:
        n, shape = _array(n, "n"), _array(shape, "shape")
        if not ((n >= 0) & (n <= LARGEST)).all() or not ((shape > 0) & (shape <= LARGEST)).all():
            raise ValueError(
                "n must not be negative, shape must be positive, and both be no larger than "
                f"{LARGEST}; got n={_shown(n)} and shape={_shown(shape)}; pass the number of "
                "distances"
            )
    total = xp.asarray(n * shape)
    some = xp.where(total > 0, total, 1)
    if form == "exact":
        mode = xp.log(some) - _stirling(some)
    else:
        mode = 0.5 * xp.log(some / (2 * np.pi))
    value = mode + xp.log(xp.log(high / low))
    if clamped:
        value = xp.logaddexp(value, 0.0)
    return _out(xp.where(total > 0, value, 0.0), base)


def exponential_length(
    n: Any, total: Any, low: Any, high: Any, *, shape: Any = 1.0, base: float = e
) -> Any:
    r"""Length of squared distances under the complete code whose scale lies within bounds.

    .. math:: w \left(n \log s + \frac{R}{s}\right) + PC, \qquad
        s = \min(\max(R/n, s_{low}), s_{high})

    Parameters
    ----------
    n : float or array-like
        Number of distances.
    total : float or array-like
        Their sum R.
    low, high, shape, base
        As in `exponential_complexity`, which is the PC, clamped; w is ``shape``.

    Returns
    -------
    float or array
        0 for no data. For ``shape=1`` it is minus the log of a density of the distances, which
        integrates to 1; else that of a density of the vectors, up to a constant.

    Raises
    ------
    ValueError
        As for `exponential_complexity`.

    Notes
    -----
    Yin (2007), eqs. (2.32) and (3.9), with bounds that hold for every sum of distances.

    Examples
    --------
    >>> from nrprob.codelength import exponential_length
    >>> round(exponential_length(100, 80.0, 0.01, 10.0), 2)
    81.04
    """
    complexity = exponential_complexity(n, low, high, shape=shape, clamped=True)
    xp = jnp if _traced(n, total, low, high, shape) else np
    if xp is np:
        total, low, high = _array(total, "total"), _array(low, "low"), _array(high, "high")
        shape = _array(shape, "shape")
        if not ((total >= 0) & np.isfinite(total)).all():
            raise ValueError(
                f"total must be finite and not negative; got {_shown(total)}; pass a sum of "
                "squared distances"
            )
    n, total = xp.asarray(n), xp.asarray(total)
    s = xp.clip(total / xp.where(n > 0, n, 1), low, high)
    return _out(shape * xp.where(n > 0, n * xp.log(s) + total / s, 0.0) + complexity, base)


def gaussian_complexity(
    n: ArrayLike, low: ArrayLike, high: ArrayLike, mean_range: ArrayLike, *, base: float = e
) -> Any:
    r"""Parametric complexity of ``n`` numbers under a normal density within a box of parameters.

    .. math:: \log R + \frac12 \log \frac{n}{2\pi} + \log\left[\frac{F}{a} + \frac{1-F}{b}
        + 2 A \left(\frac1a - \frac1b\right)\right], \qquad
        F = P(\chi^2_{n-1} \le n), \quad
        A = \frac{(n/2)^{(n-1)/2} e^{-n/2}}{\Gamma((n-1)/2)}

    Parameters
    ----------
    n : int or array-like
        Number of numbers.
    low, high : float or array-like
        Bounds a, b to which the standard deviation is clamped.
    mean_range : float or array-like
        Length R of the interval that means come from.
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float or ndarray
        0 for ``n=0``. One number costs log R in all, as under a uniform code.

    Raises
    ------
    ValueError
        If not ``0 < low < high``, if `mean_range` is not positive, or `n` is no whole number.

    Notes
    -----
    This package's own: Yin (2007) has no bounds, and no finite complexity, for this class.

    Examples
    --------
    >>> from nrprob.codelength import gaussian_complexity
    >>> round(gaussian_complexity(100, 0.1, 10.0, 20.0), 3)
    8.488
    """
    _range(low, high, "sigma range")
    n, width = _sizes(n, "n"), _array(mean_range, "mean_range")
    a, b = _array(low, "low"), _array(high, "high")
    if not ((width > 0) & (width < np.inf)).all():
        raise ValueError(
            f"mean_range must be positive; got {_shown(width)}; pass the range of the data"
        )
    several = np.maximum(n, 2)
    inside = np.where(n > 1, special.gammainc((several - 1) / 2, several / 2), 1.0)
    log_mode = (several - 1) / 2 * np.log(several / 2) - several / 2
    mode = np.where(n > 1, np.exp(log_mode - special.gammaln((several - 1) / 2)), 0.0)
    scale = inside / a + (1 - inside) / b + 2 * mode * (1 / a - 1 / b)
    value = np.log(width) + 0.5 * np.log(np.maximum(n, 1) / (2 * np.pi)) + np.log(scale)
    return _out(np.where(n > 0, value, 0.0), base)


def gaussian_length(
    n: ArrayLike,
    variance: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    mean_range: ArrayLike,
    *,
    base: float = e,
) -> Any:
    r"""Length of ``n`` numbers under the complete normal code within a box of parameters.

    .. math:: \frac n2 \log 2 \pi s^2 + \frac{n v}{2 s^2} + PC, \qquad
        s = \min(\max(\sqrt v, a), b)

    Parameters
    ----------
    n : int or array-like
        Number of numbers.
    variance : float or array-like
        Their variance v about their mean, divided by n.
    low, high, mean_range, base
        As in `gaussian_complexity`, which is the PC.

    Returns
    -------
    float or ndarray
        Means are taken to lie in their range.

    Raises
    ------
    ValueError
        As for `gaussian_complexity`.

    Examples
    --------
    >>> from nrprob.codelength import gaussian_length
    >>> round(gaussian_length(100, 2.0, 0.1, 10.0, 20.0), 2)
    185.04
    """
    complexity = gaussian_complexity(n, low, high, mean_range)
    n, v = _array(n, "n"), _array(variance, "variance")
    if not ((v >= 0) & np.isfinite(v)).all():
        raise ValueError(
            f"variance must be finite and not negative; got {_shown(v)}; pass a mean square"
        )
    s = np.clip(np.sqrt(v), low, high)
    length = n * np.log(s * math.sqrt(2 * math.pi)) + n * v / (2 * s**2) + complexity
    return _out(length, base)


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
    r"""Length of rows that are sent as a cluster and a distance from its mean.

    .. math:: \log C(K, N) - \sum_k n_k \log \frac{n_k}{N}
        + w N \left(1 + \log \frac{R}{N}\right) + PC_\sigma

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Rows.
    labels : array-like of shape (n_samples,)
        Cluster of every row.
    n_clusters : int, optional
        K; None for the number of clusters that occur.
    geometry : {"exp", "gaussian"}, default="exp"
        "exp" codes squared distances by an exponential density, w = 1, as published. "gaussian"
        codes rows by an isotropic Gaussian density, w = n_features / 2. With two features the two
        are the same.
    centre_code : {"none", "half_log"}, default="none"
        "half_log" adds the usual price of K n_features coordinates, :math:`\frac12 \log
        \frac{N}{2\pi}` each (or 0), without which many features hide that clusters are too many.
        Use it to compare numbers of clusters.
    low, high : float, optional
        Bounds of the mean squared distance; by default 1e-3 times the one to the mean of all rows,
        and that itself. The distance R/N is taken to be at least ``low``.
    base : float, default=e
        Base of the logarithm.

    Returns
    -------
    float
        Up to a constant that depends on the data alone.

    Raises
    ------
    ValueError
        If rows and labels do not correspond, `X` is not finite or constant, or an option is
        unknown.

    Notes
    -----
    Yin (2007), eq. (2.36), in which r is a squared distance already.

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
    if np.iscomplexobj(labels):  # scikit-learn pastes the values into its message
        raise ValueError(
            "labels must not be complex; got complex numbers; pass integers or strings"
        )
    labels = column_or_1d(as_array(labels, "labels"))
    check_consistent_length(x, labels)
    check_choice("geometry", geometry, ("exp", "gaussian"))
    check_choice("centre_code", centre_code, ("none", "half_log"))
    n, d = x.shape
    try:
        codes, counts = np.unique(labels, return_inverse=True, return_counts=True)[1:]
    except TypeError:
        raise TypeError(
            "labels must be of one type; got values that have no order; pass integers or strings"
        ) from None
    k = counts.size
    if n_clusters is not None:
        k = int(_sizes(as_number(n_clusters, "n_clusters"), "n_clusters", 1))
    if k < counts.size:
        raise ValueError(
            f"n_clusters must not be below the number of labels; got {k} for {counts.size} labels; "
            "raise it"
        )
    x = x - x.mean(0)
    spread = float((x**2).sum() / n)
    if spread == 0 and (low is None or high is None):
        raise ValueError(
            "X has no variance, and so no range of distances; got equal rows; pass low and high"
        )
    low = 1e-3 * spread if low is None else as_number(low, "low")
    high = spread if high is None else as_number(high, "high")
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
    return _out(length, base)
