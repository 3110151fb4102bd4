"""Cross-partition clustering with automatic choice of the number of clusters and of ``eta``.

The number of clusters is the number of themes, which `nrprob.methods.crosspartition.themes`
estimates. Shapes: n rows, m features, V subsets.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import clone

from nrprob.data.validation import check_random_state
from nrprob.exceptions import warn
from nrprob.methods.crosspartition.inputs import read_counts, read_subsets, row_masses
from nrprob.methods.crosspartition.themes import (
    MAX_THEMES,
    ThemeLabels,
    ThemeRows,
    choose_number,
    is_shared,
    sort_labels,
    warn_of_lost_gain,
)

_N_FOLDS = 5  # number of folds of the features
_ETAS = (1.5, 1.0, 0.6, 0.3)  # exponents that are compared, in order


def fit_number(estimator: Any, X: Any, y: Any, subsets: Any) -> Any:
    """Select the number of clusters by held-out features; fit with the largest suitable ``eta``.

    An ``eta`` is suitable if every subset has rows in every cluster. In addition, the gain of the
    clusters must not be significantly smaller than the gain of the themes.

    Parameters
    ----------
    estimator : `CrossPartition` with ``n_clusters="auto"``
    X, y, subsets : arguments of its `fit`

    Returns
    -------
    CrossPartition
        The fitted estimator of the selected number of themes.
    """
    import pandas as pd

    model = clone(estimator).set_params(n_clusters=1)
    counts, _ = model._check_input(X, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the final fit warns
        data = model.prepare(X, y, subsets=subsets).theme_rows
    if read_subsets(subsets, counts.shape[0]).design.n_groups == 1:
        raise ValueError(
            "n_clusters='auto' needs at least two subsets; got one; pass subsets, or a number of "
            "clusters"
        )
    if counts.shape[1] == 1:
        raise ValueError(
            "n_clusters='auto' needs at least two features, some of which are held out; got one; "
            "pass a number of clusters"
        )
    random = check_random_state(estimator.random_state)
    folds = _feature_folds(estimator, counts, data.share, random)
    k, scores = choose_number(folds, data.mass, random)
    if k == MAX_THEMES:
        warn(
            "the selected number of themes is the largest that 'auto' compares, so more themes may "
            f"fit better; got {k}; pass a larger n_clusters"
        )
    search = ThemeLabels(data, k, random)
    labels = tuple(search.find(n) for n in range(2, k + 1))
    themes = labels[-1] if labels else np.zeros(len(data.mass), int)
    fits = []
    for eta in _ETAS if isinstance(estimator.eta, str) else (float(estimator.eta),):
        model = clone(estimator)
        model.set_params(n_clusters=k, eta=eta, random_state=estimator.random_state)
        model._start_labels = labels
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, y, subsets=subsets)
        shared = is_shared(data.share, model.labels_, k)
        fits.append((shared, -model.objective_, model, caught))
        if shared and not data.loses_gain(model.labels_, themes):
            break
    else:
        # No fit recovers the themes. Prefer fits whose clusters all subsets share, then the fit
        # with the largest gain.
        _, _, model, caught = max(fits, key=lambda fit: fit[:2])
    for warning in caught:
        warn(str(warning.message), warning.category)
    warn_of_lost_gain(
        data, model.labels_, themes, "the themes that determine their number", "try another variant"
    )
    model.theme_labels_ = sort_labels(themes, data.mass)
    model.theme_scores_ = pd.DataFrame(scores)
    del model._start_labels
    return model


def _feature_folds(
    estimator: Any, counts: Any, share: np.ndarray, random: np.random.RandomState
) -> list[tuple[ThemeRows, ThemeRows]]:
    """Split the features into folds; return a pair of records for every fold.

    The first record has the rows without the features of the fold, and the second record has the
    rows with these features alone. ``counts`` (n, m) are the counts, and ``share`` (n, V) is
    p(w|x). There are 5 folds, or m folds if there are fewer than 5 features.
    """

    def select(features: np.ndarray) -> ThemeRows:
        rows, totals = read_counts(counts[:, np.flatnonzero(features)])
        return ThemeRows(rows, row_masses(totals, estimator.row_weights), share)

    m = counts.shape[1]
    fold = random.permutation(m) % min(_N_FOLDS, m)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows may have no counts in a fold
        return [(select(fold != f), select(fold == f)) for f in range(fold.max() + 1)]
