"""Choose the number of clusters by held-out log-likelihood."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import _num_samples

from nrprob.data.labels import read_labels
from nrprob.data.storage.stored import refuse_stored
from nrprob.data.validation import ITERATIONS, check_number, check_random_state
from nrprob.estimator.base import fit_context
from nrprob.estimator.density import TableDensityEstimator
from nrprob.estimator.parameters import check_parameters
from nrprob.evidence.folds import prepare_folds
from nrprob.evidence.held_out import assign_folds, split_fold
from nrprob.evidence.p_values import mixed_gain, one_sided_t_test
from nrprob.evidence.progress import progress_bar
from nrprob.exceptions import short_repr, warn
from nrprob.settings import few_threads

if TYPE_CHECKING:
    import pandas as pd

AUTO = "auto"
# The search stops after this many successive numbers that are worse than a smaller number.
_PATIENCE = 2


@dataclass(frozen=True, eq=False)
class NumberOfClusters:
    """Held-out log-likelihood by number of clusters: the result of `n_clusters`.

    Attributes
    ----------
    n_clusters_ : int
        Number with the highest mean held-out log-likelihood; the smallest such number if several
        are equal. 1 if several clusters gain nothing over a null model.
    tried_ : ndarray of shape (n_tried,)
        Candidate numbers that were fitted, ascending.
    log_likelihood_ : ndarray of shape (n_tried, n_samples)
        Held-out log-likelihood of every sample in nats, by candidate, averaged over splits. An
        additive constant is left out, which is the same for all candidates. Exact copies of a
        sample have the same value.
    gain_ : ndarray of shape (n_samples,) or None
        Log-likelihood gain in nats over the null model with the smallest mean gain. The gain
        compares two densities: the mixture, with weights 1/2, of the best clusters and the null
        model, and the null model alone. None if 1 is not a candidate.
    distinct_ : ndarray of shape (n_distinct,)
        Index of the first sample of every set of exact copies. Means and standard errors are over
        these samples.

    See Also
    --------
    n_clusters : Returns this result.
    test : Test the clusters.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ConditionalMixture, evidence
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 6 * sought
    >>> model = ConditionalMixture()
    >>> result = evidence.n_clusters(model, X, known=known, candidates=(1, 2, 3), random_state=0)
    >>> result
    <NumberOfClusters: 2 (of 1, 2, 3)>
    >>> result.table.below_best.round(1).tolist()
    [0.3, 0.0, 0.0]
    """

    n_clusters_: int
    tried_: np.ndarray
    log_likelihood_: np.ndarray
    gain_: np.ndarray | None
    distinct_: np.ndarray

    def __repr__(self) -> str:
        candidates = ", ".join(map(str, self.tried_))
        return f"<NumberOfClusters: {self.n_clusters_} (of {candidates})>"

    @property
    def table(self) -> pd.DataFrame:
        """Held-out log-likelihood by number of clusters.

        Columns are the mean log-likelihood per sample, its difference from the best number, and the
        standard error of this difference over samples. A set of copies counts as one sample.
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

    @property
    def smallest_within_error(self) -> int:
        """Smallest number of clusters within one standard error of the best log-likelihood."""
        table = self.table
        return int(table.index[table["below_best"] <= table["standard_error"]].min())


def n_clusters(
    estimator: Any,
    X: Any,
    *,
    known: Any = None,
    candidates: Iterable[int] = range(1, 21),
    random_state: Any = None,
    n_folds: int = 5,
    n_splits: int = 1,
    n_init: int = 12,
    verbose: int = 0,
) -> NumberOfClusters:
    r"""Choose the number of clusters by held-out log-likelihood.

    The result is the number K that maximises

    .. math:: \frac{1}{n} \sum_i \log q_K^{(-f(i))}(x_i)

    Here n is the number of samples, and :math:`f(i)` is the fold of sample :math:`x_i`.
    :math:`q_K^{(-f)}` is the density of the fit with K clusters to all folds but f. If 1 is a
    candidate, the result is 1 if the best number of clusters gains nothing over one of the null
    models of `nrprob.evidence.test`.

    Parameters
    ----------
    estimator : ConditionalMixture or MixtureEM
        Fitted or unfitted estimator. Clones are fitted; ``n_clusters`` of the estimator is ignored.
    X : array-like or frame of shape (n_samples, n_features)
        Features, as in `nrprob.evidence.test`.
    known : array-like of shape (n_samples,) or (n_samples, n_labelings), optional
        Known labels, as in `nrprob.evidence.test`.
    candidates : iterable of int, default=range(1, 21)
        Candidate numbers, from 1 to 1000.
    random_state : int, RandomState instance or None, default=None
        Seed of the folds and of the initial values of all fits.
    n_folds : int, default=5
        Number of folds, stratified by known group. From 2 to 100.
    n_splits : int, default=1
        Number of random splits into folds, over which log-likelihoods are averaged. Each split
        takes ``n_folds`` fits per candidate. From 1 to 1000.
    n_init : int, default=12
        Number of restarts of a fit. A smaller ``n_init`` of the estimator takes precedence, except
        on mixed and incomplete tables. From 1 to 10**6.
    verbose : int, default=0
        Whether to show a progress bar.

    Returns
    -------
    NumberOfClusters

    Warns
    -----
    UserWarning
        If 5 % of the samples or more are exact copies of other samples, or if the largest candidate
        is chosen.

    Raises
    ------
    TypeError, ValueError
        In the same cases as `nrprob.evidence.test`, and if there are no candidates.

    See Also
    --------
    test : Test whether there are clusters at all.
    confidence : Bootstrap confidences of samples and clusters.

    Notes
    -----
    Candidates are fitted in ascending order. The search stops after two successive candidates with
    a lower log-likelihood than a smaller number. The search also stops before candidates that
    exceed the number of training samples minus the number of known groups. The cost is
    ``n_splits * n_folds`` fits per candidate.

    If 1 is a candidate, several clusters have to gain something over every null model of
    `nrprob.evidence.test`. Let q be the density of the clusters and :math:`q_1` the density of a
    null model. The gain of a sample x is :math:`\ln \frac{q(x) + q_1(x)}{2 q_1(x)}`.

    On mixed and incomplete tables, two clusters are first fitted to all samples. This fit
    determines the form of the group effects, the form of the cluster shares, and whether there are
    location effects. All candidates use these forms. Several clusters are chosen only if their mean
    gain exceeds its standard error.

    If clusters do not have the form of the model's components, several components describe one
    cluster better than one component. Heavy tails, skewness and curvature may therefore raise the
    number. Use `nrprob.evidence.test` to test for clusters. Exact copies of a sample count as one
    sample, as in `nrprob.evidence.test`.

    References
    ----------
    Smyth, P. (2000). Model selection for probabilistic clustering using cross-validated likelihood.
    Statistics and Computing 10, 63-72. doi:10.1023/A:1008940618127

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ConditionalMixture, evidence
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 8 * sought
    >>> evidence.n_clusters(ConditionalMixture(), X, known=known, random_state=0).n_clusters_
    2
    """
    check_number("n_folds", n_folds, low=2, high=100, integer=True)
    check_number("n_splits", n_splits, low=1, high=1000, integer=True)
    check_number("n_init", n_init, low=1, high=ITERATIONS, integer=True)
    candidates = _check_candidates(candidates)
    random = check_random_state(random_state)
    density = estimator
    if isinstance(estimator, TableDensityEstimator):
        # A fit of two clusters determines the form of the model for all candidates.
        density = clone(estimator).set_params(n_clusters=2)
    # Validate the samples, and draw the folds and the seeds of their fits.
    samples, groups, fits = prepare_folds(density, X, known, n_folds, n_init, random)
    copies, n = samples.copies, len(groups)
    copies.warn_if_many()
    splits = [assign_folds(groups, n_folds, random) for _ in range(n_splits)]
    seeds = random.randint(2**31 - 1, size=(n_splits, n_folds))
    folds = [
        (*split_fold(fold, f, groups), int(seed))
        for fold, seeds_of_split in zip(splits, seeds, strict=True)
        for f, seed in enumerate(seeds_of_split)
    ]

    def held_out_log_densities(k: int) -> np.ndarray:
        """Held-out log densities (n_models, n) of n samples, averaged over splits.

        The models are the fit with k clusters and, for k = 1, the other null models.
        """
        total: Any = 0.0
        for train, test, seed in folds:
            values = np.stack(fits.log_densities(k, train, test, seed))
            total = total + np.zeros((len(values), n))
            total[:, test] += values
        return total / n_splits

    evaluated: list[int] = []
    values: list[np.ndarray] = []
    null_values = np.zeros((0, n))
    # Fit the candidates, up to the degrees of freedom within known groups.
    largest = min(train.size for train, _, _ in folds) - groups.max() - 1
    bar = progress_bar("choosing the number of clusters", len(candidates), verbose)
    with few_threads(n), bar as advance:
        for k in candidates:
            if evaluated and k > largest:
                break
            log_densities = held_out_log_densities(k)
            null_values = log_densities if k == 1 else null_values
            evaluated.append(k)
            advance()
            values.append(log_densities[0])
            means = [float(v.mean()) for v in values]
            if len(means) - 1 - int(np.argmax(means)) >= _PATIENCE:
                break
    # Return one cluster if several clusters do not gain enough over every null model.
    best = int(np.argmax(means))
    gains = (mixed_gain(values[best] - null) for null in null_values)
    gain = min(gains, key=np.mean, default=None)
    if gain is not None and evaluated[best] > 1 and one_sided_t_test(gain)[0] <= fits.least_t:
        best = 0
    if len(candidates) > 1 and 1 < evaluated[best] == candidates[-1]:
        warn(
            "the largest candidate predicts held-out samples best, so more clusters may fit "
            f"better; got {evaluated[best]} clusters; pass larger candidates to evidence.n_clusters"
        )
    gain = None if gain is None else gain[copies.set_index]
    log_likelihood = np.array(values)[:, copies.set_index]
    return NumberOfClusters(
        evaluated[best], np.array(evaluated), log_likelihood, gain, copies.first
    )


def _check_candidates(candidates: Iterable[int]) -> list[int]:
    """Validate the candidates; return them in ascending order without repeats."""
    if not isinstance(candidates, Iterable) or isinstance(candidates, str | bytes | Mapping):
        raise TypeError(
            "candidates must be an iterable of numbers of clusters; got "
            f"{short_repr(candidates)}; pass for example range(1, 21)"
        )
    listed = list(candidates)
    for k in listed:
        check_number("candidates", k, low=1, high=1000, integer=True)
    if not listed:
        raise ValueError("candidates must not be empty; got none; pass for example range(1, 21)")
    return sorted({int(k) for k in listed})


class AutoClustersMixin:
    """Mixin for a clusterer with a density, which then accepts ``n_clusters="auto"``.

    With "auto", `fit` chooses the number of clusters by `nrprob.evidence.n_clusters`, fits a clone
    with this number, and copies the fitted attributes of the clone.
    """

    n_clusters: Any
    random_state: Any
    verbose: int
    number_: NumberOfClusters

    @property
    def _many_clusters(self) -> bool:
        return self.n_clusters == AUTO or self.n_clusters > 2

    def check_parameters(self) -> None:
        """Raise an error for invalid parameters, and for ``n_clusters="auto"`` outside of `fit`."""
        super().check_parameters()  # type: ignore[misc]
        if self.n_clusters == AUTO:
            raise ValueError(
                "only fit to samples in memory can choose n_clusters; got n_clusters='auto' in "
                "another call; pass a number of clusters"
            )

    def _fit(self, X, y, *, sample_weight=None, **known):
        if self.n_clusters != AUTO:
            return super()._fit(  # type: ignore[misc]
                X, y, sample_weight=sample_weight, **known
            )
        check_parameters(self)
        if sample_weight is not None:
            raise ValueError(
                "n_clusters='auto' cannot use sample weights; got sample_weight; "
                "pass a number of clusters, or leave the weights out"
            )
        refuse_stored(X, "n_clusters='auto'")
        if y is not None and (read_labels(y, _num_samples(X))[1] >= 0).any():
            raise ValueError(
                "n_clusters='auto' cannot use target labels; got y; pass a number of clusters, or "
                "leave y out"
            )
        with fit_context(self):
            seed, verbose = self.random_state, self.verbose
            self.number_ = n_clusters(self, X, random_state=seed, verbose=verbose, **known)
            chosen = self.number_.n_clusters_
            model = clone(self).set_params(n_clusters=chosen, random_state=self.random_state)
            model.fit(X, **known)
            parameters = model.get_params(deep=False)
            for name, value in vars(model).items():
                if name not in parameters:
                    setattr(self, name, value)
            smallest = self.number_.smallest_within_error
            if 1 < smallest < chosen:
                below, error = self.number_.table.loc[smallest, ["below_best", "standard_error"]]
                warn(
                    f"{smallest} clusters predict held-out samples nearly as well as {chosen}; got "
                    f"a difference of {below:.2g} nats per sample with a standard error of "
                    f"{error:.2g}; compare both, with n_clusters={smallest} for the other"
                )
        return self
