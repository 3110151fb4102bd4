"""Gaussian views with known groups, must-links and partial labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nrprob.data.validation import check_entries, check_number, check_random_state
from nrprob.datasets.generators import RandomState, _check_fraction, _positive_int
from nrprob.datasets.sizes import dense_size, register_size

__all__ = ["InformedViews", "make_essential_sources", "make_informed_views"]

# Factors of `make_essential_sources`, in the order of the columns of `_cross_factors`.
FACTORS = ("answer", "first", "second", "pairs", "labels", "groups")
REPLICATES = 3  # samples per combination of the six factors
ESSENTIAL_LABELS, ESSENTIAL_LINKS = 10, 15
GROUP_EFFECT = 6.0


class InformedViews(NamedTuple):
    """Views of the same samples, and side information about their clusters.

    Pairs and labels refer to the clusters of the first view.

    Attributes
    ----------
    views : list of ndarray of shape (n_samples, n_features)
        Features of every view.
    known : ndarray of shape (n_samples,), dtype int64
        Known group of every sample, from 0.
    must_link : ndarray of shape (n_pairs, 2), dtype int64
        Pairs of samples that should share a cluster.
    y : ndarray of shape (n_samples,), dtype int64
        Partial labels: the cluster of a labelled sample, and -1 for all other samples.
    clusters : ndarray of shape (n_samples, n_views), dtype int64
        True cluster of every sample in every view.

    See Also
    --------
    make_informed_views : Views with a common clustering.
    make_essential_sources : Views in which no source of information is redundant.

    Examples
    --------
    >>> from nrprob.datasets import make_informed_views
    >>> make_informed_views(random_state=0)._fields
    ('views', 'known', 'must_link', 'y', 'clusters')
    """

    views: list[NDArray[np.float64]]
    known: NDArray[np.int64]
    must_link: NDArray[np.int64]
    y: NDArray[np.int64]
    clusters: NDArray[np.int64]


@register_size(
    lambda n_samples, n_views, n_features, **_: dense_size(n_samples, n_views * n_features)
)
def make_informed_views(
    n_samples: int = 160,
    n_clusters: int = 3,
    *,
    n_views: int = 2,
    n_features: int = 4,
    separation: float = 2.2,
    n_groups: int = 2,
    group_shift: float = 4.0,
    n_must_link: int = 15,
    n_labels: int = 10,
    wrong_links: float = 0.0,
    random_state: RandomState = None,
) -> InformedViews:
    r"""Simulate Gaussian views of common clusters, with known groups, must-links and labels.

    Sample i of cluster :math:`z_i` and known group :math:`g_i` has in view v the features

    .. math::

        x_{iv} = s\, m_v(z_i) + \delta \left(g_i - \tfrac{L-1}{2}\right) u_v + e_{iv},
        \qquad e_{iv} \sim N(0, I),

    where s is the ``separation``, :math:`\delta` the ``group_shift``, L the number of groups, and
    :math:`u_v` a random direction of length 1. The vector :math:`m_v(c)` with entries 0 and 1 is
    called the corner of cluster c. On the first K - 1 features, the corners of the K clusters are
    the origin and the unit vectors, in random order per view; further features have random entries.
    Clusters and groups are independent, and as equal in size as possible.

    Each view alone is weak evidence, and several views together are strong evidence. Without the
    known groups, the effect of the groups hides the clusters. Pairs and labels help little.

    Parameters
    ----------
    n_samples : int, default=160
        Number of samples.
    n_clusters : int, default=3
        Number of clusters K.
    n_views : int, default=2
        Number of views. The clusters of all views are equal.
    n_features : int, default=4
        Number of features of every view, at least K - 1.
    separation : float, default=2.2
        Difference of the means of two clusters, in standard deviations, on features on which their
        corners differ.
    n_groups : int, default=2
        Number of known groups; 1 for no known structure.
    group_shift : float, default=4.0
        Distance of the means of groups g and g + 1 in every view, in standard deviations.
    n_must_link : int, default=15
        Number of must-links, at most ``n_samples``. The first samples of the pairs are distinct.
    n_labels : int, default=10
        Number of labelled samples, at most ``n_samples``.
    wrong_links : float, default=0.0
        Share of the must-links, rounded to a number of pairs, that join different clusters. Other
        must-links join samples of one cluster.
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers. For one seed, the noise does not depend on
        ``separation`` and ``group_shift``.

    Returns
    -------
    InformedViews
        Views, known groups, must-links, partial labels, and true clusters.

    Raises
    ------
    ValueError
        If a size is out of bounds, ``n_features`` is less than ``n_clusters - 1``,
        ``separation`` or ``group_shift`` is negative or not finite, ``wrong_links`` is not a
        fraction, or must-links within (or between) clusters do not exist.
    TypeError
        If a size is not an integer.

    See Also
    --------
    make_essential_sources : Views in which no source of information is redundant.
    make_gaussian_views : Two classes in several views with partly permuted rows.
    nrprob.MDLMultiView : Clustering of several views.

    References
    ----------
    The design is a choice of this package.

    Examples
    --------
    >>> from nrprob.datasets import make_informed_views
    >>> data = make_informed_views(random_state=0)
    >>> [x.shape for x in data.views], data.must_link.shape, (data.y >= 0).sum().item()
    ([(160, 4), (160, 4)], (15, 2), 10)
    """
    n, k = _positive_int(n_samples, "n_samples"), _positive_int(n_clusters, "n_clusters")
    n_views = _positive_int(n_views, "n_views")
    n_features = _positive_int(n_features, "n_features")
    check_entries("X", n * n_views * n_features, "lower n_samples, n_views or n_features")
    for name, value, low in (
        ("n_clusters", k, 1),
        ("n_groups", n_groups, 1),
        ("n_must_link", n_must_link, 0),
        ("n_labels", n_labels, 0),
    ):
        check_number(name, value, low=low, high=n, integer=True)
    if n_features < k - 1:
        raise ValueError(
            f"n_features must be at least n_clusters - 1; got {n_features} for {k} clusters; "
            "raise n_features or lower n_clusters"
        )
    check_number("separation", separation, low=0, high=1e30)
    check_number("group_shift", group_shift, low=0, high=1e30)
    n_wrong = round(_check_fraction(wrong_links, "wrong_links") * n_must_link)
    if n_wrong and k == 1:
        raise ValueError(
            f"wrong must-links join two clusters; got wrong_links={wrong_links} for one cluster; "
            "pass 0, or raise n_clusters"
        )
    if n_must_link > n_wrong and n < 2 * k:
        raise ValueError(
            f"must-links need clusters of two samples or more; got {n} samples in {k} clusters; "
            "raise n_samples, or pass n_must_link=0"
        )
    rng = check_random_state(random_state)

    clusters = rng.permutation(np.arange(n) % k)
    groups = rng.permutation(np.arange(n) % n_groups)
    views = []
    for _ in range(n_views):
        # Shuffled rows assign the corners to the clusters in random order.
        further = rng.randint(2, size=(k, n_features - k + 1))
        corners = rng.permutation(np.hstack([np.eye(k, k - 1, -1), further]))
        direction = rng.normal(size=n_features)
        direction /= np.linalg.norm(direction)
        shift = group_shift * (groups - (n_groups - 1) / 2)
        noise = rng.normal(size=(n, n_features))
        views.append(separation * corners[clusters] + shift[:, None] * direction + noise)
    must_link = _sample_links(clusters, int(n_must_link), n_wrong, rng)
    y = np.full(n, -1)
    labelled = rng.choice(n, n_labels, replace=False)
    y[labelled] = clusters[labelled]
    return InformedViews(views, groups, must_link, y, np.tile(clusters[:, None], n_views))


def _sample_links(
    clusters: NDArray[np.int64], n_pairs: int, n_wrong: int, rng: np.random.RandomState
) -> NDArray[np.int64]:
    """Sample must-links (n_pairs, 2), of which the first ``n_wrong`` join different clusters.

    ``clusters`` (n,) are the clusters of the samples.
    """
    n = clusters.size
    first = rng.choice(n, n_pairs, replace=False)
    # Samples in the order of their clusters; cluster c starts at position start[c].
    order = np.argsort(clusters, kind="stable")
    position = np.argsort(order, kind="stable")[first]
    sizes = np.bincount(clusters)
    start, size = (np.cumsum(sizes) - sizes)[clusters[first]], sizes[clusters[first]]
    wrong = np.arange(n_pairs) < n_wrong
    # A partner within the cluster is 1 to size - 1 steps ahead, circularly within the cluster. A
    # partner outside is 0 to n - size - 1 steps after the end of the cluster, circularly.
    steps = rng.randint(0, np.where(wrong, n - size, np.maximum(size - 1, 1)), size=n_pairs)
    inside = start + (position - start + 1 + steps) % size
    outside = (start + size + steps) % n
    return np.stack([first, order[np.where(wrong, outside, inside)]], axis=1).astype(np.int64)


@register_size(lambda **_: dense_size(REPLICATES * 2 ** len(FACTORS), 8))
def make_essential_sources(*, random_state: RandomState = None) -> InformedViews:
    r"""Simulate two views in which no source of information about the clusters is redundant.

    Six binary factors are fully crossed, with three samples per combination. The factor a, the
    answer, defines the clusters; the factors :math:`e_1, e_2, p, l` and g are its competitors. In
    the first view, feature j of sample i is

    .. math::

        x_{ij} = d_j \left(f_{ij} - \tfrac12\right) + 6\, \sigma_j \left(g_i - \tfrac12\right)
        + e_{ij}, \qquad f_i = (a_i, e_{1i}, p_i, l_i),

    with random signs :math:`\sigma_j`. In the second view, :math:`e_2` replaces :math:`e_1`. The
    distances :math:`d_j` are 4 for a, :math:`\sqrt{16.3}` for p and l, and :math:`\sqrt{18.5}` for
    :math:`e_1` and :math:`e_2`. The competitors with such distances fit slightly better than the
    answer. The noise :math:`e_{ij}` is standard normal, and its regression on the six factors is
    subtracted.

    Every source of information excludes a competitor that no other source excludes: the first view
    excludes :math:`e_2`, the second view :math:`e_1`, the must-links p, the labels l, and the known
    groups g. 15 disjoint must-links join samples that differ in p and agree in all other factors.
    10 labels are the answer of samples with :math:`e_1 = e_2 = p = g = a`.

    Parameters
    ----------
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers.

    Returns
    -------
    InformedViews
        Two views of 192 samples in four features, with two groups; ``clusters`` is the answer in
        both columns.

    See Also
    --------
    make_informed_views : Views with a common clustering, and random pairs and labels.
    nrprob.MDLMultiView : Clustering of several views.

    Notes
    -----
    The number of clusters is to be given: two in every view. The features contain the crossed
    competitors, and an estimated number of clusters counts their combinations.

    References
    ----------
    The design is a choice of this package.

    Examples
    --------
    >>> from nrprob.datasets import make_essential_sources
    >>> data = make_essential_sources(random_state=0)
    >>> [x.shape for x in data.views], data.must_link.shape, (data.y >= 0).sum().item()
    ([(192, 4), (192, 4)], (15, 2), 10)
    """
    rng = check_random_state(random_state)
    factors = _cross_factors(rng)
    answer, first, second, pairs, labels, groups = factors.T
    n = len(factors)
    # The signs of crossed factors and the constant are orthogonal, with squared length n.
    signs = np.column_stack([np.ones(n), 2 * factors - 1])
    distances = np.sqrt([16, 16 + 2.5, 16 + 0.3, 16 + 0.3])
    views = []
    for competitor in (first, second):
        features = np.stack([answer, competitor, pairs, labels], axis=1) - 0.5
        effect = GROUP_EFFECT * rng.choice([-1, 1], 4)
        noise = rng.normal(size=(n, 4))
        noise -= signs @ (signs.T @ noise) / n
        views.append(distances * features + (groups - 0.5)[:, None] * effect + noise)

    # Samples in the order of all factors but p, then by p: three pairs per block of six.
    blocks = np.lexsort((pairs, groups, labels, second, first, answer)).reshape(-1, 2, REPLICATES)
    candidates = blocks.transpose(0, 2, 1).reshape(-1, 2)
    must_link = candidates[rng.choice(len(candidates), ESSENTIAL_LINKS, replace=False)]
    equal = (factors[:, [1, 2, 3, 5]] == answer[:, None]).all(axis=1)
    labelled = rng.choice(np.flatnonzero(equal), ESSENTIAL_LABELS, replace=False)
    y = np.full(n, -1)
    y[labelled] = answer[labelled]
    return InformedViews(
        views, groups, must_link.astype(np.int64), y, np.stack([answer, answer], axis=1)
    )


def _cross_factors(rng: np.random.RandomState) -> NDArray[np.int64]:
    """Values (n, 6) of the six binary `FACTORS`, in random order.

    Every combination of values occurs `REPLICATES` times.
    """
    code = rng.permutation(REPLICATES * 2 ** len(FACTORS)) // REPLICATES
    return code[:, None] >> np.arange(len(FACTORS)) & 1
