"""Relabel every draw to match one reference partition, to summarise components."""

from __future__ import annotations

from typing import Any

import numpy as np

from nrprob.data.validation import MOST, check_entries, check_number
from nrprob.posterior.draws import Draws, as_draws, read_draws
from nrprob.posterior.estimates import given_or_estimated

__all__ = ["align", "relabel"]


def _match_clusters(draws: Draws, codes: np.ndarray) -> list[np.ndarray]:
    """Match each cluster of every draw to a cluster of the reference partition, or to -1.

    The assignment maximises the number of samples in matched clusters of both partitions. Clusters
    that share no sample are not matched.
    """
    from scipy.optimize import linear_sum_assignment

    result = []
    for _, _, first, counts in draws.crossed(codes):
        for low, high in zip(first, first[1:], strict=False):
            table = counts[low:high]
            rows, columns = linear_sum_assignment(table, maximize=True)
            match = np.full(high - low, -1)
            shared = table[rows, columns] > 0
            match[rows[shared]] = columns[shared]
            result.append(match)
    return result


def relabel(draws: Any, reference: Any = None, *, random_state: Any = None) -> np.ndarray:
    """Relabel the clusters of every draw to match the clusters of one reference partition.

    Parameters
    ----------
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Cluster labels, which may switch between draws.
    reference : array of int of shape (n_samples,), optional
        Partition with the reference labels; `point_estimate` by default.
    random_state : int, RandomState instance or None, default=None
        Seed of the search for a reference.

    Returns
    -------
    ndarray of the shape of `draws`, int64
        The same partitions with other labels. The labels agree with the reference on as many
        samples as a one-to-one matching of clusters allows (an assignment problem per draw). A
        cluster without a match, or one that shares no sample with its match, gets a label from
        ``max(reference) + 1`` on. These labels have no meaning across draws.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If shapes do not match.

    See Also
    --------
    align : The same matching as permutations of components, for the parameters of a mixture.

    References
    ----------
    Papastamoulis & Iliopoulos (2010), "An artificial allocations based solution to the label
    switching problem in Bayesian analysis of mixtures of distributions", JCGS 19; Stephens (2000),
    "Dealing with label switching in mixture models", JRSS B 62, for the problem.

    Examples
    --------
    >>> from nrprob.posterior import relabel
    >>> relabel([[4, 4, 4, 9, 9], [7, 7, 5, 2, 2]], reference=[0, 0, 0, 1, 1])
    array([[0, 0, 0, 1, 1],
           [0, 0, 2, 1, 1]])
    """
    checked = as_draws(draws)
    names = given_or_estimated(checked, reference, "reference", random_state)
    values, codes = np.unique(names, return_inverse=True)
    values = values.astype(np.int64)
    result = np.empty(checked.codes.shape, dtype=np.int64)
    for row, z, match in zip(result, checked.codes, _match_clusters(checked, codes), strict=True):
        named = values[match]
        extra = match < 0
        named[extra] = values[-1] + 1 + np.arange(extra.sum())
        row[:] = named[z]
    return result.reshape(*checked.batch, checked.n_samples)


def align(
    draws: Any,
    reference: Any = None,
    *,
    n_components: int | None = None,
    random_state: Any = None,
) -> np.ndarray:
    """Permutations that put the components of every draw into the order of a reference partition.

    Parameters
    ----------
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Labels that are positions of components, 0 to ``n_components - 1``.
    reference : array of int of shape (n_samples,), optional
        Partition to align with; `point_estimate` by default. Entry j of a permutation refers to
        the cluster with the j-th smallest label.
    n_components : int, optional
        Number of components per draw, including empty ones; by default the largest label + 1.
    random_state : int, RandomState instance or None, default=None
        Seed of the search for a reference.

    Returns
    -------
    ndarray of shape (chain, draw, n_components) or (draw, n_components), int64
        Entry j is the component of the draw that matches cluster j of the reference, as in
        `relabel`. Components without a match fill the other entries: first the entries after the
        clusters of the reference, then the entries of unmatched clusters. Components with samples
        precede empty components.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If shapes do not match, a label is not a position of a component, or the reference has more
        clusters than there are components.

    Examples
    --------
    Reorder means of shape (draw, component) by the reference's clusters:

    >>> import numpy as np
    >>> from nrprob.posterior import align
    >>> labels = np.array([[0, 0, 1, 1], [1, 1, 0, 0]])
    >>> means = np.array([[-3.0, 5.0], [5.1, -2.9]])
    >>> np.take_along_axis(means, align(labels, reference=[0, 0, 1, 1]), axis=-1)
    array([[-3. ,  5. ],
           [-2.9,  5.1]])
    """
    labels = read_draws(draws)
    checked = as_draws(labels)
    labels = labels.reshape(checked.codes.shape).astype(np.int64)
    if n_components is None:
        n_components = int(labels.max()) + 1
    check_number("n_components", n_components, low=1, high=MOST, integer=True)
    width = int(n_components)
    check_entries("the result", checked.n_draws * width, "lower n_components")
    if labels.min() < 0 or labels.max() >= width:
        raise ValueError(
            "labels must be positions of components; got labels from "
            f"{labels.min()} to {labels.max()} for {width} components; "
            "use relabel for arbitrary names, or raise n_components"
        )
    names = given_or_estimated(checked, reference, "reference", random_state)
    values, codes = np.unique(names, return_inverse=True)
    k = len(values)
    if k > width:
        raise ValueError(
            f"the reference has more clusters than there are components; got {k} for {width}; "
            "raise n_components or pass max_clusters to point_estimate"
        )
    result = np.empty((checked.n_draws, width), dtype=np.int64)
    for row, z, code, match in zip(
        result, labels, checked.codes, _match_clusters(checked, codes), strict=True
    ):
        component = np.empty(len(match), dtype=np.int64)
        component[code] = z  # component index of each cluster of this draw
        row[:] = -1
        row[match[match >= 0]] = component[match >= 0]
        empty = np.setdiff1d(np.arange(width), component)
        rest = np.concatenate([component[match < 0], empty])
        places = np.flatnonzero(row < 0)
        row[np.concatenate([places[places >= k], places[places < k]])] = rest
    return result.reshape(*checked.batch, width)
