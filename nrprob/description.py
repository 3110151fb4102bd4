"""Describe clusters in sentences: means of numbers, and shares of values."""

from __future__ import annotations

from typing import Any

from nrprob.data.frames import extract_known, is_frame
from nrprob.data.preparation.prepare import as_indicators
from nrprob.data.validation import MOST, check_number
from nrprob.plotting.groups import adjust_for, distinct_labels, feature_texts, read_rows
from nrprob.statistics.table_units import TableUnits
from nrprob.statistics.top_features import find_top_features

__all__ = ["describe_clusters"]


def describe_clusters(
    X: Any, labels: Any, known: Any = None, *, n_columns: int = 5
) -> dict[Any, str]:
    """Describe every cluster by the columns in which it differs most from all other samples.

    The description of a numeric column is its mean in the cluster and, in parentheses, the mean of
    all samples. The description of a text or boolean column is the share of a value. Columns are
    sorted by the difference from all other samples in pooled standard deviations, adjusted for
    known structure as in `nrprob.plotting.plot_top_features`. Differences below 0.3 are left out.
    Missing values count neither in means nor in shares.

    Clusterers maximise such differences, so large differences are no evidence of clusters.

    Parameters
    ----------
    X : array, sparse matrix or frame of shape (n_samples, n_features)
        The data in units of your choice, such as the table before `prepare`.
    labels : array of shape (n_samples,)
        Clusters.
    known : array-like, optional
        Known structure: one or several labelings, continuous covariates, or both in a frame. For a
        frame ``X``, also names of its columns.
    n_columns : int, default=5
        Maximum number of columns of a description, at least 1.

    Returns
    -------
    dict
        Description of every cluster, by label, in the order of the sorted labels.

    Raises
    ------
    ValueError
        If shapes do not match, or if there are fewer than two clusters.

    See Also
    --------
    nrprob.plotting.plot_top_features : Plot the same differences.
    prepare : Prepare a table for a fit.

    Examples
    --------
    >>> import pandas as pd
    >>> from nrprob import describe_clusters
    >>> frame = pd.DataFrame({"height": [1.5, 1.6, 1.8, 1.9], "smoker": ["no", "no", "yes", "no"]})
    >>> describe_clusters(frame, [0, 0, 1, 1])[1]
    'height: 1.85 (1.70 overall); smoker: yes 50 % (25 %)'
    """
    check_number("n_columns", n_columns, low=1, high=MOST, integer=True)
    X, known = extract_known(X, known)
    names, units = None, TableUnits()
    if is_frame(X):
        ready = as_indicators(X)
        X, names = ready.X, ready.feature_names_
        units = TableUnits(ready.indicators_, symbols=ready.units_)
    rows, design, _ = read_rows(X, known)
    names = feature_texts(names, None, rows.shape[1])
    values, codes = distinct_labels(labels, "labels", rows.shape[0])
    if len(values) < 2:
        raise ValueError(
            f"labels must have two clusters or more; got {len(values)}; pass labels of several "
            "clusters"
        )
    result = find_top_features(
        rows, codes, range(len(values)), *adjust_for(design), n_nearest=0
    )  # fmt: skip
    return {
        label: result.describe(i, names, units, n_columns)
        for i, label in enumerate(values.tolist())
    }
