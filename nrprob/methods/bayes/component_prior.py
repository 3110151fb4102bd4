r"""Prior distribution of the number of components.

Let V(k) be a function of the number k of components, and alpha the Dirichlet concentration. A
partition z of n samples into k components of sizes n_j has the prior probability

    p(z) = V(k) prod_j w(n_j) / Z,    w(m) = Gamma(m + alpha) / Gamma(alpha),

where Z normalises. The sum of V(k) prod_j w(n_j) over all partitions into k components is V(k) B(n,
k), where B is the partial Bell polynomial of the weights w. For V(k) = Gamma(k alpha) / Gamma(n + k
alpha), the sum is Q(k) / k!. Q(k) is the probability that n samples of a mixture with k components
and Dirichlet(alpha) weights leave no component empty. All terms of the recursion for Q in
`log_all_occupied` are positive, so the recursion is numerically stable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln, logsumexp

from nrprob.codelength import multinomial_table

if TYPE_CHECKING:
    import pandas as pd


def log_all_occupied(n: int, max_components: int, concentration: float) -> np.ndarray:
    r"""Log probability that all components hold a sample, under Dirichlet weights.

    :math:`Q_k(n)` is the probability that n samples leave none of k components empty. Each of the k
    components can be the last to receive its first sample. The m samples before this first sample
    occupy all k - 1 other components. The factors after :math:`Q_{k-1}(m)` are the probability that
    m samples avoid one component, and the probability that the next sample is in the avoided
    component:

    .. math:: Q_k(n) = \sum_{m < n} k \, Q_{k-1}(m)
        \frac{\Gamma((k - 1) \alpha + m) \, \Gamma(k \alpha)}{\Gamma((k - 1) \alpha) \,
        \Gamma(k \alpha + m)} \, \frac{\alpha}{k \alpha + m}, \qquad Q_1(n) = 1.

    Parameters
    ----------
    n : int
        Number of samples, at least 1.
    max_components : int
        Largest number of components K.
    concentration : float
        Dirichlet concentration :math:`\alpha` of each weight.

    Returns
    -------
    ndarray of shape (K,)
        Log probabilities for k = 1 to K; minus infinity for k > n.
    """
    before = np.arange(n)  # number m of samples before the last component is occupied
    log_q = np.where(np.arange(n + 1) > 0, 0.0, -np.inf)  # Q_1 of 0 to n samples
    result = [0.0]
    for k in range(2, max_components + 1):
        # Log probability that the first m samples are not in one particular component of k.
        ratios = np.log1p(-concentration / (k * concentration + before[:-1]))
        log_avoided = np.concatenate([[0.0], ratios.cumsum()])
        first = np.log(concentration) - np.log(k * concentration + before)
        log_q[1:] = np.logaddexp.accumulate(np.log(k) + log_q[:-1] + log_avoided + first)
        log_q[0] = -np.inf
        result.append(log_q[-1])
    return np.asarray(result)


def log_all_occupied_nml(n: int, max_components: int) -> np.ndarray:
    r"""Log probability that all components hold a sample, under normalised maximum likelihood.

    The sum :math:`D_k` of :math:`\prod_j (n_j / n)^{n_j}` over the labelings that use all k labels,
    with :math:`n_j` samples of label j, satisfies :math:`(n - k) D_k = k (D_{k+2} + 2 D_{k+1})`,
    with :math:`D_1 = 1` and :math:`D_{n+1} = 0`. The ratios :math:`D_{k+1} / D_k` are therefore a
    continued fraction. The generating function of :math:`D_k n^n / n!` is :math:`(T / (1 - T))^k`,
    with Euler's tree function T; its derivative gives the recursion.

    Parameters
    ----------
    n : int
        Number of samples, at least 1.
    max_components : int
        Largest number of components K.

    Returns
    -------
    ndarray of shape (K,)
        Log probabilities :math:`\log D_k - \log C(k, n)` for k = 1 to K, with the parametric
        complexity :math:`\log C(k, n)`; minus infinity for k > n.
    """
    ratios = np.zeros(max(n, max_components))  # D_{k+1} / D_k at index k - 1
    ratio = 0.0
    for k in range(n - 1, 0, -1):
        ratio = (n - k) / (k * (2 + ratio))
        ratios[k - 1] = ratio
    with np.errstate(divide="ignore"):
        log_d = np.concatenate([[0.0], np.log(ratios[: max_components - 1]).cumsum()])
    return log_d - multinomial_table(max_components, n)


def prior_of_components(
    n: int,
    max_components: int,
    *,
    concentrations: np.ndarray | None,
    unordered: bool,
    allows_empty: bool = False,
) -> pd.Series:
    """Prior distribution of the number of components of ``n`` samples.

    Parameters
    ----------
    n : int
        Number of samples.
    max_components : int
        Largest number of components.
    concentrations : ndarray of shape (G,) or None
        Grid of the concentration, which is integrated out, or an array of one fixed value. None for
        normalised maximum likelihood of the labels.
    unordered : bool
        Whether the prior omits the factor 1 / k! for k components.
    allows_empty : bool, default=False
        Whether components may be empty, as for "nml" with ``kernel="six-move"``.

    Returns
    -------
    pandas.Series
        Probability of each number of components (index ``n_components``).
    """
    import pandas as pd

    if concentrations is not None:
        grid = [log_all_occupied(n, max_components, float(value)) for value in concentrations]
        log_p = logsumexp(grid, axis=0)
    elif allows_empty:
        log_p = -multinomial_table(max_components, n)
    else:
        log_p = log_all_occupied_nml(n, max_components)
    k = np.arange(1, max_components + 1)
    if not unordered:
        log_p = log_p - gammaln(k + 1)
    index = pd.Index(k, name="n_components")
    return pd.Series(np.exp(log_p - logsumexp(log_p)), index=index, name="probability")
