"""Number of clusters by held-out log-likelihood."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import _num_samples

from nrprob.data.storage.stored import refuse_stored
from nrprob.data.validation import ITERATIONS, check_number, check_random_state
from nrprob.estimator.base import fitting, read_labels
from nrprob.estimator.parameters import check_parameters
from nrprob.evidence.held_out import (
    RIVALS,
    conditioned,
    folds,
    log_rivals,
    parts,
    refit,
    residual_scale,
)
from nrprob.evidence.inputs import testable
from nrprob.evidence.p_values import mixed_gain
from nrprob.evidence.progress import shown
from nrprob.exceptions import short_repr
from nrprob.settings import few_threads

if TYPE_CHECKING:
    import pandas as pd

AUTO = "auto"
_PATIENCE = 2  # numbers in a row that do worse than one before, after which no more are tried


@dataclass(frozen=True, eq=False)
class NumberOfClusters:
    """Log-likelihood of rows held out, by number of clusters; see `n_clusters`.

    Attributes
    ----------
    n_clusters_ : int
        The number of the largest log-likelihood, the smaller of equal ones.
    tried_ : ndarray of shape (n_tried,)
        Numbers of clusters.
    log_likelihood_ : ndarray of shape (n_tried, n_samples)
        In nats, of every row by fits that have not seen it, but for what all numbers have in
        common; the mean over splits. Copies of a sample have its value.
    gain_ : ndarray of shape (n_samples,) or None
        Nats that the half-and-half mixture of the best of several clusters and of a cloud gains
        over that cloud, the one over which it gains least; None if one cluster was not tried.
    distinct_ : ndarray of shape (n_distinct,)
        Index of the first sample of every set of exact copies. Means and standard errors are over
        these samples.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ResidualMixture, evidence
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 6 * sought
    >>> model = ResidualMixture()
    >>> found = evidence.n_clusters(model, X, known=known, candidates=(1, 2, 3), random_state=0)
    >>> found
    <NumberOfClusters: 2 (of 1, 2, 3)>
    >>> found.table.below_best.round(1).tolist()
    [0.3, 0.0, 0.0]
    """

    n_clusters_: int
    tried_: np.ndarray
    log_likelihood_: np.ndarray
    gain_: np.ndarray | None
    distinct_: np.ndarray

    def __repr__(self) -> str:
        tried = ", ".join(map(str, self.tried_))
        return f"<NumberOfClusters: {self.n_clusters_} (of {tried})>"

    @property
    def table(self) -> pd.DataFrame:
        """Mean log-likelihood per row, how far it is below the best, and that one's standard error.

        The standard error is of the mean difference of rows. Copies of a sample count as one.
        """
        import pandas as pd

        values = self.log_likelihood_[:, self.distinct_]
        best = values[int(np.flatnonzero(self.tried_ == self.n_clusters_)[0])]
        below = best - values
        columns = {
            "log_likelihood": values.mean(1),
            "below_best": below.mean(1),
            "standard_error": below.std(1, ddof=1) / np.sqrt(below.shape[1]),
        }
        return pd.DataFrame(columns, index=pd.Index(self.tried_, name="n_clusters"))


def n_clusters(
    estimator: Any,
    X: Any,
    *,
    known: Any = None,
    candidates: Iterable[int] = range(1, 11),
    random_state: Any = None,
    n_folds: int = 5,
    n_splits: int = 1,
    n_init: int = 12,
    verbose: int = 0,
) -> NumberOfClusters:
    """Choose the number of clusters that predicts rows best which the fit has not seen.

    One cluster is a possible answer. Several have to gain something over each of the clouds that
    they have to beat in `nrprob.evidence.test`, t and normal, with one covariance or one for every
    known group: half-and-half with the clusters, it has to predict rows better than alone. Numbers
    are tried in ascending order, until two in a row did worse than a smaller one.

    Clusters of another form than the model's are described better by several of its own, so heavy
    tails, skewness and bends may be cut in parts. Whether there are clusters at all is for
    `nrprob.evidence.test` to say. As there, exact copies of a sample count as one.

    Parameters
    ----------
    estimator : ResidualMixture or MixtureEM
        As in `nrprob.evidence.test`; its ``n_clusters`` does not matter.
    X : array-like of shape (n_samples, n_features)
        Real numbers or measurements.
    known : array-like, optional
        As in `nrprob.evidence.test`.
    candidates : iterable of int, default=range(1, 11)
        Numbers of clusters to try, from 1 to 1000.
    random_state : int, RandomState instance or None, default=None
        Determines the folds and the starts of all fits.
    n_folds : int, default=5
        Parts that the rows are divided into, every known group alike; from 2 to 100.
    n_splits : int, default=1
        Divisions that are averaged; each takes ``n_folds`` fits for every number.
    n_init : int, default=12
        Restarts of a fit, if the estimator has not fewer.
    verbose : int, default=0
        Whether a bar shows how many of the numbers were tried.

    Returns
    -------
    NumberOfClusters

    Warns
    -----
    UserWarning
        If 5 % of the samples or more are exact copies of other samples.

    Raises
    ------
    TypeError, ValueError
        As `nrprob.evidence.test`, and if there are no candidates.

    References
    ----------
    Smyth (2000), Model selection for probabilistic clustering using cross-validated likelihood.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ResidualMixture, evidence
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 8 * sought
    >>> evidence.n_clusters(ResidualMixture(), X, known=known, random_state=0).n_clusters_
    2
    """
    check_number("n_folds", n_folds, low=2, high=100, integer=True)
    check_number("n_splits", n_splits, low=1, high=1000, integer=True)
    check_number("n_init", n_init, low=1, high=ITERATIONS, integer=True)
    if not isinstance(candidates, Iterable) or isinstance(candidates, str | bytes | Mapping):
        raise TypeError(
            "candidates must be numbers of clusters; got "
            f"{short_repr(candidates)}; pass for example range(1, 11)"
        )
    given = list(candidates)
    for k in given:
        check_number("candidates", k, low=1, high=1000, integer=True)
    if not given:
        raise ValueError("candidates must have a number; got none; pass for example range(1, 11)")
    samples = testable(estimator, X, known, n_folds)
    copies = samples.copies
    copies.warn_if_many()
    rows, codes = samples.distinct()
    groups = np.zeros(len(rows), int) if codes is None else codes
    random = check_random_state(random_state)
    bare = clone(estimator).set_params(n_init=min(n_init, estimator.n_init))
    splits = [folds(groups, n_folds, random) for _ in range(n_splits)]
    seeds = random.randint(2**31 - 1, size=(n_splits, n_folds))
    tried: list[int] = []
    values: list[np.ndarray] = []
    clouds = np.zeros((0, len(rows)))
    rows_by_fold = [
        (parts(fold, f, groups), int(seed))
        for fold, own in zip(splits, seeds, strict=True)
        for f, seed in enumerate(own)
    ]

    def held_out(k: int) -> np.ndarray:
        """Sums (models, n) of log densities: of the clusters and, for one, of other clouds."""
        out = np.zeros((len(RIVALS) if k == 1 else 1, len(rows)))
        model = bare.set_params(n_clusters=k)
        for (seen, new), seed in rows_by_fold:
            fitted = refit(model, rows, codes, seen, random_state=seed)
            scale = residual_scale(groups, seen)[new]
            out[0, new] += fitted.log_density_of(rows[new], **conditioned(codes, new), scale=scale)
            if k == 1:
                y = fitted.residuals_of(rows, **conditioned(codes))
                wide = y[new] * scale[:, None]
                out[1:, new] += log_rivals(fitted, y[seen], groups[seen], wide, groups[new], True)
        return out / n_splits

    with few_threads(len(rows)), shown("trying numbers", len(set(given)), verbose) as done:
        most = min(seen.size for (seen, _), _ in rows_by_fold) - groups.max() - 1
        for k in sorted(set(given)):
            if tried and k > most:
                break  # than rows that are free
            result = held_out(int(k))
            clouds = result if k == 1 else clouds
            tried.append(int(k))
            done()
            values.append(result[0])
            means = [float(v.mean()) for v in values]
            if len(means) - 1 - int(np.argmax(means)) >= _PATIENCE:
                break
    best = int(np.argmax(means))
    gain = min((mixed_gain(values[best] - cloud) for cloud in clouds), key=np.mean, default=None)
    if gain is not None and tried[best] > 1 and gain.mean() <= 0:
        best = 0
    gain = None if gain is None else gain[copies.of]
    log_likelihood = np.array(values)[:, copies.of]
    return NumberOfClusters(tried[best], np.array(tried), log_likelihood, gain, copies.first)


class AutoClustersMixin:
    """For a `Clusterer` that is a `DensityEstimator`: ``n_clusters="auto"``.

    `fit` chooses the number of clusters by `n_clusters`, and fits a clone with this number.
    """

    n_clusters: Any
    random_state: Any
    verbose: int
    number_: NumberOfClusters

    @property
    def _many_clusters(self) -> bool:
        return self.n_clusters == AUTO or self.n_clusters > 2

    def check_parameters(self) -> None:
        """Refuse parameters that are invalid for all data, and ``"auto"`` outside of `fit`."""
        super().check_parameters()  # type: ignore[misc]
        if self.n_clusters == AUTO:
            raise ValueError(
                "n_clusters='auto' is resolved by fit, for samples in memory only; got it "
                "elsewhere; pass a number of clusters"
            )

    def _fit(self, X, y, **known):
        if self.n_clusters != AUTO:
            return super()._fit(X, y, **known)  # type: ignore[misc]
        check_parameters(self)
        refuse_stored(X, "n_clusters='auto'")
        if y is not None and (read_labels(y, _num_samples(X))[1] >= 0).any():
            raise ValueError(
                "n_clusters='auto' cannot use target labels; got y; pass a number of clusters, or "
                "leave y out"
            )
        with fitting(self):
            seed, verbose = self.random_state, self.verbose
            self.number_ = n_clusters(self, X, random_state=seed, verbose=verbose, **known)
            chosen = self.number_.n_clusters_
            model = clone(self).set_params(n_clusters=chosen, random_state=self.random_state)
            model.fit(X, **known)
            parameters = model.get_params(deep=False)
            for name, value in vars(model).items():
                if name not in parameters:
                    setattr(self, name, value)
        return self
