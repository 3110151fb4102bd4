"""Represent an ensemble of labelings by indicators of the labels.

A member of the ensemble is a labeling of all n samples. A sample has one indicator per label of
every member, p indicators in total. An indicator is 1 if the sample has this label, else 0. A
consensus clustering minimises the within-cluster scatter of the indicators. The consensus thereby
maximises its quadratic mutual information with the members; see `nrprob.CondEns`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse


def stack_indicators(columns: np.ndarray, classes: Sequence[np.ndarray]) -> sparse.csr_array:
    """Sparse indicators (n, p) of labels ``columns`` (n, members).

    Labels that are not in ``classes`` have no indicator: their entries are 0.

    Parameters
    ----------
    columns : (n, members) labels, one column per member
    classes : sorted labels of every member; each label has one column of indicators
    """
    n, members = columns.shape
    sizes = np.array([len(labels) for labels in classes])
    codes = [np.searchsorted(k, c) for k, c in zip(classes, columns.T, strict=True)]
    positions = np.minimum(np.stack(codes, 1), sizes - 1) + np.cumsum(sizes) - sizes
    ones = (np.concatenate(classes)[positions] == columns).astype(float).ravel()
    ends = np.arange(0, ones.size + 1, members)
    return sparse.csr_array((ones, positions.ravel(), ends), shape=(n, sizes.sum()))


def centroid_scores(x: sparse.csr_array, centres: np.ndarray, holds_rows: np.ndarray) -> np.ndarray:
    """Scores (n, k) of k clusters for n samples with indicators ``x`` (n, p).

    The cluster with the nearest centroid has the largest score. ``centres`` (k, p) are the
    centroids. Empty clusters, where ``holds_rows`` (k,) is False, have the score -inf.
    """
    scores = np.asarray(x @ centres.T) - 0.5 * (centres**2).sum(1)
    return np.where(holds_rows, scores, -np.inf)
