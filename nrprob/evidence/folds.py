"""Choose how a table is refitted: by the estimator itself, or by its model of mixed tables."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

from nrprob.data.frames import extract_known
from nrprob.estimator.density import TableDensityEstimator
from nrprob.evidence.held_out import ResidualFolds
from nrprob.evidence.inputs import Samples, table_samples, validate_samples
from nrprob.evidence.table_folds import TableFolds


class PreparedFolds(NamedTuple):
    """Validated samples, and the function that fits an estimator to training folds.

    Attributes
    ----------
    samples : validated samples
    groups : (n_distinct,) known groups of the distinct samples, as integers
    fits : function that fits the estimator to training folds of the distinct samples
    """

    samples: Samples
    groups: np.ndarray
    fits: ResidualFolds | TableFolds


def check_samples(density: Any, X: Any, known: Any) -> None:
    """Raise an error for samples without a significance test, before anything is fitted.

    Tables that a `TableDensityEstimator` tests by refits of its table model are not checked.
    """
    tables = isinstance(density, TableDensityEstimator)
    if not tables or density.is_tested_by_residuals(X, known=known):
        validate_samples(density, X, known)


def prepare_folds(
    density: Any, X: Any, known: Any, n_folds: int, n_init: int, random: np.random.RandomState
) -> PreparedFolds:
    """Validate samples, and prepare the refits of an estimator with a density.

    Parameters
    ----------
    density : unfitted or fitted estimator with a density of samples
    X : (n_samples, n_features) table
    known : known labels, or None
    n_folds : number of folds
    n_init : largest number of restarts of a fit
    random : random state, which stays unchanged; a copy supplies the seed of a fit to all samples
    """
    refits = None
    if isinstance(density, TableDensityEstimator):
        # A copy of the generator: the folds do not depend on whether this fit is needed.
        seed = copy.deepcopy(random).randint(2**31 - 1)
        refits = density.table_refits(X, known=known, seed=seed)
    # Complete numeric tables with subtracted group means are refitted by the estimator itself.
    if refits is None:
        samples = validate_samples(density, X, known, n_folds)
        rows, codes = samples.without_copies()
        groups = np.zeros(len(rows), int) if codes is None else codes
        unfitted = density.clone_for_tests()
        fits = ResidualFolds(unfitted, rows, codes, min(n_init, unfitted.n_init))
        return PreparedFolds(samples, groups, fits)
    # Other tables are refitted with the settings that the fit to all samples chose.
    samples = table_samples(refits, extract_known(X, known)[1], n_folds)
    first = samples.copies.first
    table_fits = TableFolds(refits, first, n_init, density.n_clusters == "auto")
    return PreparedFolds(samples, refits.groups[first], table_fits)
