"""Point estimate of a partition: the minimiser of the posterior expected loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from nrprob.data.validation import ITERATIONS, MOST, check_flag, check_number, check_random_state
from nrprob.posterior.draws import Draws, as_draws, as_labels, canonical
from nrprob.posterior.losses import Loss, as_loss, distances
from nrprob.posterior.search import CellSearch, PairSearch, Search
from nrprob.posterior.similarity import similarity

__all__ = ["estimate", "given_or_estimated", "point_estimate"]

_SEARCH_DRAWS = 256
"""Number of draws for the search from each start; the best starts are refined on all draws."""
_CANDIDATES = 64
"""Number of draws, and of cuts of each dendrogram, that are candidate starts (approximate)."""
_IMPROVED = 4
"""Number of starts for which moves of whole clusters are tried."""
_REFINED = 2
"""Number of starts refined on all draws."""
_PAIR_SAMPLES = 5000
"""Maximum number of samples for which all co-clustering probabilities are computed."""
_ALONE = 3000
"""Maximum number of samples that `_set_apart` merges with each other."""
_MEMORY = 2**30
"""Approximate maximum size of the tables of a search, in bytes."""


def _dendrogram_cuts(together: np.ndarray, levels: np.ndarray) -> list[np.ndarray]:
    """Cut dendrograms of the co-clustering probabilities ``together`` into ``levels`` clusters.

    The dendrograms are average and complete linkages of the distances 1 - ``together``.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    apart = squareform(1 - together, checks=False)
    trees = [linkage(apart, method) for method in ("average", "complete")]
    return [fcluster(tree, k, "maxclust") for tree in trees for k in levels]


def _initial_partitions(draws: Draws, together: np.ndarray | None, max_clusters: int) -> np.ndarray:
    """Distinct partitions (n_candidates, n_samples) that are candidate starts of the search.

    Candidates are one cluster, some of the draws, and cuts of dendrograms if ``together`` is given.
    """
    n = draws.n_samples
    most = min(max_clusters, n, max(_CANDIDATES // 2, int(1.5 * draws.n_clusters.max()) + 2))
    levels = np.unique(np.linspace(1, most, min(most, _CANDIDATES)).astype(int))
    allowed = draws.codes[draws.n_clusters <= max_clusters]
    some = allowed[:: max(1, len(allowed) // _CANDIDATES)]
    cuts = []
    if together is not None and n > 1:
        cuts = [canonical(cut[None]) for cut in _dendrogram_cuts(together, levels)]
    single = np.zeros((1, n), dtype=np.int32)
    every = np.concatenate([single, some, *cuts])
    every = every[every.max(axis=1) < max_clusters]
    return every[np.sort(np.unique(every, axis=0, return_index=True)[1])]


def _max_search_draws(draws: Draws, n_clusters: int) -> int:
    """Number of draws that fit into memory in a search for about `n_clusters` clusters."""
    cells = float(draws.n_clusters.mean()) * 2 * (n_clusters + 4)
    return max(8, int(_MEMORY / (20 * draws.n_samples + 12 * cells)))


def _set_apart(
    codes: np.ndarray, draws: Draws, loss: Loss, random: np.random.RandomState
) -> np.ndarray:
    """Improve a partition under the pair loss by moving samples into new clusters.

    1. Remove samples of the partition ``codes`` (n_samples,) from their clusters, one at a time,
       while this lowers the loss. Each removed sample is then a separate cluster.

    2. Join removed samples, at most `_ALONE` of them, to common clusters where this lowers the
       loss.

    Returns the new partition. Step 2 needs co-clustering probabilities only for pairs of removed
    samples; a matrix for all pairs of samples would not fit into memory.
    """
    z, alone = np.array(codes, dtype=np.int64), []
    for c in range(int(z.max()) + 1):
        rows = np.flatnonzero(z == c)
        codes_of_cluster = np.ascontiguousarray(draws.codes[:, rows])
        cost = np.full(len(rows), loss.merge_cost * len(rows))
        for s, row in enumerate(codes_of_cluster):
            cost -= 2 * draws.weights[s] * np.bincount(row)[row]
        cost += 2 - loss.merge_cost  # without the pair of a sample with itself
        free = np.ones(len(rows), dtype=bool)
        while free.sum() > 1:
            worst = int(np.where(free, cost, -np.inf).argmax())
            if cost[worst] <= 1e-11 * draws.n_samples:
                break
            free[worst] = False
            alone.append(rows[worst])
            together = draws.weights @ (codes_of_cluster == codes_of_cluster[:, worst, None])
            cost -= loss.merge_cost - 2 * together
    if alone:
        taken = np.sort(alone)[:_ALONE]
        some = Draws(canonical(draws.codes[:, taken]), draws.weights, draws.batch)
        search = PairSearch(similarity(some, equal=False), loss, len(taken), random)
        search.start(np.arange(len(taken)))
        search.sweep()
        z[np.sort(alone)] = int(z.max()) + 1 + np.arange(len(alone))
        z[taken] = draws.n_samples + search.z
    return canonical(z[None])[0]


def estimate(
    draws: Draws, loss: Loss, max_clusters: int, n_init: int, random: np.random.RandomState
) -> tuple[np.ndarray, float]:
    """Search for the partition of least expected loss; return its clusters and its expected loss.

    Clusters are numbered from 0 in order of first appearance.
    """
    draws = draws.distinct()
    most = min(max_clusters, int(draws.n_clusters.max()))
    few = draws.thinned(min(_SEARCH_DRAWS, _max_search_draws(draws, most)))
    by_pairs = loss.pairs and draws.n_samples <= _PAIR_SAMPLES
    # The pair loss makes uncertain samples singletons. With many samples, a search with that many
    # clusters is slow, so `_set_apart` makes the singletons after the search.
    narrow = loss.pairs and not by_pairs and max_clusters >= draws.n_samples
    widest = most + 4 if narrow else max_clusters

    def risk(codes: np.ndarray, over: Draws) -> float:
        return float(distances(codes, over, loss) @ over.weights)

    # The pair loss depends only on the co-clustering matrix, which is fast to compute for all
    # draws. For the dendrograms of other searches, the matrix of some draws is enough.
    over = draws if by_pairs else few
    together = None
    if draws.n_samples <= _PAIR_SAMPLES:
        together = similarity(over, equal=bool(np.ptp(over.weights) == 0))
    candidates = _initial_partitions(few, together, widest)
    ranked = candidates[np.argsort([risk(c, few) for c in candidates], kind="stable")]
    starts: list[np.ndarray] = [*ranked[: (n_init + 1) // 2]]
    nowhere = np.full(draws.n_samples, -1)
    starts += [nowhere] * (n_init - len(starts))

    def refine(search: Search, starts: list[np.ndarray], move: str) -> list[np.ndarray]:
        """Apply one type of move to every start; returns the distinct results, the best first."""
        result = {}
        for start in starts:
            search.start(start)
            search.allocate()
            getattr(search, move)()
            codes = canonical(search.z[None])[0]
            result[codes.tobytes()] = codes
        return sorted(result.values(), key=lambda codes: risk(codes, over))

    search: Search
    if by_pairs:
        assert together is not None
        search = PairSearch(together, loss, max_clusters, random)
    else:
        search = CellSearch(few, loss, widest, random)
    finalists = refine(search, starts, "sweep")
    finalists = refine(search, finalists[:_IMPROVED], "improve")
    if over is not draws:
        finalists = finalists[:_REFINED]
        over = draws.thinned(_max_search_draws(draws, max(int(c.max()) + 1 for c in finalists)))
        finalists += refine(CellSearch(over, loss, widest, random), finalists, "sweep")
    if narrow:
        finalists.sort(key=lambda codes: risk(codes, draws))
        finalists += [_set_apart(codes, draws, loss, random) for codes in finalists[:_REFINED]]
    finalists.append(ranked[0])
    values = [risk(codes, draws) for codes in finalists]
    best = int(np.argmin(values))
    return finalists[best].astype(np.int64), values[best]


def given_or_estimated(
    draws: Draws, labels: Any, what: str, random_state: Any, loss: Loss | None = None
) -> np.ndarray:
    """Check ``labels`` (n_samples,); if None, return the point estimate under the loss.

    The default loss is the variation of information.
    """
    n = draws.n_samples
    if labels is not None:
        return as_labels(labels, n, what)
    loss = as_loss("vi", 1.0, n) if loss is None else loss
    return estimate(draws, loss, n, 10, check_random_state(random_state))[0]


def point_estimate(
    draws: Any,
    loss: str = "vi",
    *,
    split_cost: float = 1.0,
    max_clusters: int | None = None,
    weights: Any = None,
    n_init: int = 10,
    random_state: Any = None,
    return_loss: bool = False,
) -> Any:
    r"""Partition of least posterior expected loss.

    .. math:: \hat c = \operatorname{arg\,min}_c \sum_s w_s L(c, z^{(s)})

    Here :math:`z^{(s)}` are the draws, :math:`w_s` their weights, and L is the loss.

    Parameters
    ----------
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Cluster labels, which may switch between draws.
    loss : {"vi", "binder"}, default="vi"
        Variation of information or pair loss; see `expected_loss`. "binder" tends to keep small
        clusters separate that "vi" joins.
    split_cost : float in (0, 2), default=1.0
        Cost of separating two samples that belong together; the cost of joining two samples that
        belong apart is ``2 - split_cost``. Values above 1 give fewer clusters.
    max_clusters : int, optional
        Maximum number of clusters of the estimate; no limit by default. The estimate may have more
        clusters than any draw.
    weights : array of shape (chain, draw) or (draw,), optional
        Weights of the draws, of any scale; equal by default.
    n_init : int, default=10
        Number of starts of the search. One half of the starts are the best of the draws and of the
        cuts of dendrograms. The other half are made by assigning the samples one by one in random
        order.
    random_state : int, RandomState instance or None, default=None
        Seed of the random orders of samples and clusters.
    return_loss : bool, default=False
        Also return the expected loss.

    Returns
    -------
    labels : ndarray of shape (n_samples,), int64
        Clusters 0, 1, ... in order of first appearance.
    loss : float
        Expected loss of the estimate, exact over all draws; only with `return_loss`.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If `draws` has other axes or is empty, or a parameter is outside its range.

    Notes
    -----
    The search minimises the expected loss itself, not a bound from the co-clustering matrix P. The
    starts of the search are the best of the draws and of the cuts of the average and complete
    linkages of 1 - P, and random sequential allocations. Moves of single samples improve all
    starts. For the best four, the search also joins clusters, and dissolves clusters and reassigns
    their samples, until the loss no longer falls. No search of this type can prove that its result
    is optimal.

    "binder" uses P of all draws. With more than 256 distinct draws, the starts of "vi" use 256
    evenly spaced draws (fewer if hundreds of clusters would need too much memory). The two best
    results are refined by moves of single samples over all draws (as many as fit into about 1 GiB),
    and compared over all draws. Above 5,000 samples, P is not computed. Then there are no linkages,
    and "binder" uses the same search as "vi". If `max_clusters` is None, this search for "binder"
    allows four clusters more than any draw has. After the search, samples become singletons where
    this lowers the loss, and singletons are merged where this lowers the loss.

    References
    ----------
    Wade & Ghahramani (2018), Bayesian Analysis 13; Rastelli & Friel (2018), "Optimal Bayesian
    estimators for latent variable cluster models", Statistics and Computing 28; Dahl, Johnson &
    Mueller (2022), JCGS 31 (sequential allocation, sweeps and dissolved clusters).

    Examples
    --------
    >>> from nrprob.posterior import point_estimate
    >>> point_estimate([[0, 0, 1, 1], [5, 5, 2, 2], [0, 0, 0, 1]], random_state=0)
    array([0, 0, 1, 1])
    """
    check_number("n_init", n_init, low=1, high=ITERATIONS, integer=True)
    if max_clusters is not None:
        check_number("max_clusters", max_clusters, low=1, high=MOST, integer=True)
    check_flag("return_loss", return_loss)
    checked = as_draws(draws, weights)
    table = as_loss(loss, split_cost, checked.n_samples)
    n = checked.n_samples
    most = n if max_clusters is None else min(n, int(max_clusters))
    codes, value = estimate(checked, table, most, int(n_init), check_random_state(random_state))
    return (codes, value) if return_loss else codes
