"""Label-invariant quantities of partitions, and convergence diagnostics of the chains."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import xlogy

from nrprob.data.validation import as_array, as_number, check_random_state
from nrprob.exceptions import short_repr
from nrprob.posterior.draws import Draws, as_draws, as_pairs, by_dims, canonical, read_counts
from nrprob.posterior.estimates import given_or_estimated
from nrprob.posterior.export import import_arviz
from nrprob.posterior.losses import as_loss, distances
from nrprob.posterior.similarity import similarity

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["chain_distances", "diagnose", "label_free", "n_clusters"]

_PAIR_SAMPLES = 500
"""Number of samples among which informative pairs are searched."""
_CHAIN_DRAWS = 64
"""Maximum number of draws per chain that are compared with each other."""
_COMPARED = 2**27
"""Maximum of the squared number of compared draws, times the number of samples."""


def _chains(draws: Draws) -> tuple[int, int]:
    return (1, *draws.batch) if len(draws.batch) == 1 else draws.batch  # type: ignore[return-value]


def effective_size(trace: np.ndarray, method: str) -> float:
    """Effective sample size of a trace of shape (chain, draw); NaN below 4 draws per chain.

    ``method`` is an argument of `arviz.ess`: "mean", "bulk" or "tail".
    """
    if trace.shape[1] < 4:
        return np.nan
    arviz = import_arviz()
    tails = {"prob": (0.05, 0.95)} if method == "tail" else {}  # no default in ArviZ 1
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return float(arviz.ess(np.asarray(trace, dtype=float), method=method, **tails))


def r_hat(trace: np.ndarray) -> float:
    """Rank-normalised split R-hat of a trace (chain, draw).

    A single chain is split into two chains. With fewer than 4 draws per chain, R-hat is NaN.
    """
    trace = np.asarray(trace, dtype=float)
    if len(trace) == 1:
        half = trace.shape[1] // 2
        trace = np.stack([trace[0, :half], trace[0, -half:]]) if half else trace
    if trace.shape[1] < 4:
        return np.nan
    if np.all(np.ptp(trace, axis=1) == 0):
        return np.inf if np.ptp(trace) > 0 else 1.0  # no chain moves
    arviz = import_arviz()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return float(arviz.rhat(trace, method="rank"))


def chain_distances(draws: Any, *, loss: str = "vi") -> np.ndarray:
    """Mean distances between the draws of each pair of chains, and within each chain.

    If chains have converged to one distribution, distances between chains equal distances within
    chains. Chains in different modes have larger distances from each other, even if their
    clusterings have similar sizes, log densities and distances to any third clustering.

    Parameters
    ----------
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Cluster labels, which may switch between draws. For a single chain, the halves are compared.
    loss : {"vi", "binder"}, default="vi"
        Distance between partitions; see `expected_loss`.

    Returns
    -------
    ndarray of shape (n_chains, n_chains)
        Symmetric; for a single chain, of shape (2, 2). The diagonal has the means over pairs of
        different draws of one chain. Means are over at most 64 evenly spaced draws of every chain
        (fewer with very many samples). With fewer than 2 draws per chain, the means are NaN.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If `draws` has other axes or is empty, or the loss is unknown.

    Examples
    --------
    >>> from nrprob.posterior import chain_distances
    >>> chain_distances([[[0, 0, 1, 1], [1, 1, 0, 0]], [[0, 1, 0, 1], [0, 1, 0, 1]]]).round(3)
    array([[0.   , 1.386],
           [1.386, 0.   ]])
    """
    checked = as_draws(draws)
    n = checked.n_samples
    table = as_loss(loss, 1.0, n)
    codes = checked.codes.reshape(*_chains(checked), n)
    if len(codes) == 1:
        half = codes.shape[1] // 2
        if not half:
            return np.full((2, 2), np.nan)
        codes = np.stack([codes[0, :half], codes[0, -half:]])
    n_chains, n_draws, _ = codes.shape
    if n_draws < 2:
        return np.full((n_chains, n_chains), np.nan)
    affordable = int((_COMPARED / n) ** 0.5 / n_chains)
    count = min(n_draws, _CHAIN_DRAWS, max(affordable, 2))
    some = codes[:, np.linspace(0, n_draws - 1, count).round().astype(int)].reshape(-1, n)
    every = Draws(some, np.full(len(some), 1 / len(some)), (len(some),))
    far = np.stack([distances(z, every, table) for z in some])
    mean = far.reshape(n_chains, count, n_chains, count).mean(axis=(1, 3))
    # The distance of a draw from itself is excluded.
    mean[np.diag_indices(n_chains)] *= count / (count - 1)
    return mean


def n_clusters(draws: Any, *, min_size: float | None = None) -> pd.DataFrame:
    r"""Posterior distribution of the number of clusters.

    The standard error of a probability p is :math:`\sqrt{p (1-p) / \mathrm{ESS}}`, where ESS is the
    effective sample size of the indicator that a draw has this number of clusters.

    Parameters
    ----------
    draws : fitted `nrprob.MDLMixture`, or array of int of shape (..., draw, observation)
        A fit, or cluster labels, which may switch between draws, perhaps with a first axis for the
        chain. A container of draws (see `nrprob.posterior`) may have a variable ``n_clusters``.
    min_size : float, optional
        Minimum size of the clusters that count; the largest cluster of a draw always counts. By
        default, the variable ``n_clusters`` of a fit or container is used. In a fit with
        ``merge="dip"``, this variable leaves out clusters of fewer than max(3, 0.02 n_samples)
        samples. If there is no such variable, the default is 1.

    Returns
    -------
    pandas.DataFrame
        One row for each sampled number of clusters, in increasing order (index ``n_clusters``);
        columns ``probability``, ``mcse`` and ``ess``. With fewer than 4 draws per chain, ``mcse``
        and ``ess`` cannot be estimated and are NaN.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If `draws` has other axes or is empty, or `min_size` is below 1.

    See Also
    --------
    clusters : Merge components at another dip; the result has the attribute ``probabilities``.
    plot_n_clusters : Plot of these probabilities.

    References
    ----------
    Vehtari, Gelman, Simpson, Carpenter & Buerkner (2021), "Rank-normalization, folding, and
    localization", Bayesian Analysis 16, for the effective sample size.

    Examples
    --------
    >>> from nrprob.posterior import n_clusters
    >>> n_clusters([[0, 0, 1], [5, 2, 2], [1, 1, 1], [0, 0, 3]])["probability"]
    n_clusters
    1    0.25
    2    0.75
    Name: probability, dtype: float64

    Without clusters of a single sample:

    >>> n_clusters([[0, 0, 1], [1, 1, 1]], min_size=2)["probability"].to_dict()
    {1: 1.0}
    """
    counts = read_counts(draws) if min_size is None else None
    if counts is not None:
        return count_probabilities(counts)
    smallest = 1 if min_size is None else as_number(min_size, "min_size")
    if not smallest >= 1:
        raise ValueError(
            f"min_size must be at least 1; got {short_repr(min_size)}; pass 1 to count all clusters"
        )
    checked = as_draws(draws)
    n_large = np.add.reduceat(checked.sizes >= smallest, checked.offsets[:-1], dtype=np.int64)
    return count_probabilities(np.maximum(n_large, 1).reshape(_chains(checked)))


def count_probabilities(trace: np.ndarray) -> pd.DataFrame:
    """Probabilities of the values of a trace (chain, draw) of counts; see `n_clusters`."""
    import pandas as pd

    values, rows = np.unique(trace), []
    for value in values:
        indicator = trace == value
        p = float(indicator.mean())
        ess = effective_size(indicator, "mean")
        rows.append({"probability": p, "mcse": float(np.sqrt(p * (1 - p) / ess)), "ess": ess})
    return pd.DataFrame(rows, index=pd.Index(values, name="n_clusters"))


def _informative_pairs(draws: Draws, n_pairs: int, random: np.random.RandomState) -> np.ndarray:
    """Choose at most ``n_pairs`` random pairs of samples, an array (n_chosen, 2) of positions.

    Candidates are pairs of at most `_PAIR_SAMPLES` random samples. The probability of a pair is
    proportional to the variance of its co-clustering indicator.
    """
    n = draws.n_samples
    rows = np.sort(random.permutation(n)[:_PAIR_SAMPLES])
    some = Draws(canonical(draws.codes[:, rows]), draws.weights, draws.batch)
    together = similarity(some, equal=True)
    i, j = np.triu_indices(len(rows), 1)
    variance = together[i, j] * (1 - together[i, j])
    open_ = np.flatnonzero(variance > 1e-12)
    if len(open_) > n_pairs:
        share = variance[open_] / variance[open_].sum()
        open_ = random.choice(open_, size=n_pairs, replace=False, p=share)
    return np.column_stack([rows[i[open_]], rows[j[open_]]])


def summarise_trace(trace: np.ndarray) -> dict[str, float]:
    """Mean, standard deviation, MCSE, ESS and R-hat of a trace (chain, draw); see `diagnose`.

    If all draws are equal, R-hat is 1 and the ESS are the number of draws.
    """
    sd = float(np.std(trace, ddof=1)) if np.ptp(trace) > 0 else 0.0
    return {
        "mean": float(np.mean(trace)),
        "sd": sd,
        "mcse_mean": sd / float(np.sqrt(effective_size(trace, "mean"))),
        "ess_bulk": effective_size(trace, "bulk"),
        "ess_tail": effective_size(trace, "tail"),
        "r_hat": r_hat(trace),
    }


def label_free(
    draws: Any,
    reference: Any = None,
    *,
    pairs: Any = 10,
    random_state: Any = None,
) -> dict[str, np.ndarray]:
    """Traces of label-invariant quantities of draws of partitions.

    Parameters
    ----------
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Cluster labels, which may switch between draws; without a chain axis the draws
        are one chain.
    reference : array of int of shape (n_samples,), optional
        Reference partition for distances; `point_estimate` by default.
    pairs : int or array of int of shape (n_pairs, 2), default=10
        Pairs of samples whose co-clustering is traced. An integer is the number of random pairs.
        Random pairs are chosen among the pairs that share a cluster in some draws, but not in all,
        with probabilities proportional to the variance of the co-clustering indicator. If there are
        fewer such pairs, all of them are traced. With very many samples, only pairs of a random
        subset of the samples are candidates.
    random_state : int, RandomState instance or None, default=None
        Seed for the pairs and for the search for a reference.

    Returns
    -------
    dict of str to ndarray of shape (chain, draw)
        ``n_clusters``, the number of clusters of any size; ``entropy`` of the cluster sizes in
        nats; ``largest_share``, the share of samples in the largest cluster; ``vi``, the variation
        of information to the reference in nats; ``together[i,j]``, 1 if samples i and j share a
        cluster, otherwise 0. `to_arviz` accepts this mapping.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If `draws` has other axes or is empty, or `reference` or `pairs` do not match it.

    Examples
    --------
    >>> from nrprob.posterior import label_free
    >>> traces = label_free([[0, 0, 1, 1], [5, 5, 5, 2]], [0, 0, 1, 1], pairs=[[0, 2]])
    >>> {name: trace.tolist() for name, trace in traces.items() if name != "vi"}
    ... # doctest: +NORMALIZE_WHITESPACE
    {'n_clusters': [[2, 2]], 'entropy': [[0.6931471805599453, 0.5623351446188083]],
     'largest_share': [[0.5, 0.75]], 'together[0,2]': [[0, 1]]}
    """
    checked = as_draws(draws)
    n, shape = checked.n_samples, _chains(checked)
    random = check_random_state(random_state)
    loss = as_loss("vi", 1.0, n)
    centre = given_or_estimated(checked, reference, "reference", random, loss)
    centre = canonical(centre[None])[0]
    if np.ndim(as_array(pairs, "pairs")) == 0:
        if not isinstance(pairs, (int, np.integer)) or isinstance(pairs, bool) or pairs < 0:
            raise ValueError(
                f"pairs is a number of at least 0, or an array of pairs; got {short_repr(pairs)}; "
                "pass 0 for none"
            )
        chosen = _informative_pairs(checked, int(pairs), random)
    else:
        chosen = as_pairs(pairs, n)

    share = checked.sizes / n
    first = checked.offsets[:-1]
    traces = {
        "n_clusters": checked.n_clusters,
        "entropy": np.maximum(-np.add.reduceat(xlogy(share, share), first), 0.0),
        "largest_share": np.maximum.reduceat(share, first),
        "vi": distances(centre, checked, loss),
    }
    for i, j in chosen:
        traces[f"together[{i},{j}]"] = (checked.codes[:, i] == checked.codes[:, j]).astype(np.int64)
    return {name: trace.reshape(shape) for name, trace in traces.items()}


def diagnose(
    draws: Any,
    reference: Any = None,
    *,
    pairs: Any = 10,
    extra: Mapping[str, Any] | None = None,
    random_state: Any = None,
) -> pd.DataFrame:
    """Convergence diagnostics of chains of partitions, by label-invariant quantities.

    Parameters
    ----------
    draws, reference, pairs, random_state
        See `label_free`.
    extra : mapping of str to array of shape (chain, draw), optional
        Further traces, such as the log posterior or the description length.

    Returns
    -------
    pandas.DataFrame
        One row per quantity that varies, with the columns of ``arviz.summary``: ``mean``, ``sd``,
        ``mcse_mean``, ``ess_bulk``, ``ess_tail`` and ``r_hat`` (rank-normalised; for a single
        chain, between its halves). Quantities that are equal in all draws have no variance and are
        omitted. ``r_hat`` is infinite if no chain moves and chains differ. With fewer than 4 draws
        per chain, all columns but ``mean`` and ``sd`` are NaN. For a single chain, ``r_hat`` needs
        8 draws.

    Raises
    ------
    TypeError
        If labels are not whole numbers, or `extra` is not a mapping.
    ValueError
        If `draws` has other axes or is empty, or other arguments do not match it.

    See Also
    --------
    chain_distances : How far chains are from each other, pair by pair.

    Notes
    -----
    Agreement of the chains is necessary for convergence, but not sufficient. Chains that have all
    missed the same clusterings agree in every quantity: use many chains with dispersed initial
    partitions.

    References
    ----------
    Vehtari, Gelman, Simpson, Carpenter & Buerkner (2021), "Rank-normalization, folding, and
    localization: an improved R-hat", Bayesian Analysis 16.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob.posterior import diagnose
    >>> draws = np.random.default_rng(0).integers(0, 3, (4, 200, 6))
    >>> table = diagnose(draws, pairs=3, random_state=0)
    >>> bool((table["r_hat"] < 1.05).all())
    True
    """
    import pandas as pd

    traces = label_free(draws, reference, pairs=pairs, random_state=random_state)
    shape = traces["n_clusters"].shape
    if extra is not None and not isinstance(extra, Mapping):
        raise TypeError(
            f"extra must be a mapping from names; got {type(extra).__name__}; pass a dict"
        )
    for name, values in (extra or {}).items():
        trace = by_dims(values, f"extra[{short_repr(name)}]", 0)
        if trace.size != shape[0] * shape[1] or trace.shape not in (shape, shape[1:]):
            raise ValueError(
                f"traces in extra have the axes (chain, draw); {short_repr(name)} has shape "
                f"{trace.shape} for draws of shape {shape}; give one number per draw"
            )
        if not np.all(np.isfinite(trace)):
            raise ValueError(
                f"traces in extra must be finite; {short_repr(name)} has "
                f"{int(np.sum(~np.isfinite(trace)))} values that are not; drop or clip them"
            )
        traces[name] = trace.reshape(shape)
    rows = {}
    for name, trace in traces.items():
        if np.ptp(trace) == 0:
            continue
        rows[name] = summarise_trace(trace)
    columns = ["mean", "sd", "mcse_mean", "ess_bulk", "ess_tail", "r_hat"]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns, dtype=float)
    return table.rename_axis("quantity")
