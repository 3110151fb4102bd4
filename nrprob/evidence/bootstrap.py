"""Bootstrap confidences of samples and clusters, from refits to resampled data."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from nrprob.data.copies import Copies
from nrprob.data.frames import extract_known
from nrprob.data.validation import ITERATIONS, check_flag, check_number, check_random_state
from nrprob.estimator.density import LabelInitialised, TableDensityEstimator
from nrprob.evidence.held_out import known_argument, refit_subset
from nrprob.evidence.inputs import labels_of_fit, table_samples, validate_samples
from nrprob.evidence.progress import progress_bar
from nrprob.evidence.record import Evidence
from nrprob.evidence.structure import test
from nrprob.exceptions import SingleFeatureWarning, short_repr
from nrprob.settings import few_threads
from nrprob.statistics.groups import cross_table
from nrprob.statistics.single_feature import single_feature


@dataclass(frozen=True, eq=False)
class Confidence:
    """Result of `nrprob.evidence.confidence`; ``str(confidence)`` returns a summary sentence.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Cluster labels that are assessed.
    samples_ : ndarray of shape (n_samples,) or None
        Bootstrap probability that a sample belongs to its cluster. None if withheld.
    clusters_ : ndarray of shape (n_clusters,) or None
        Mean of ``samples_`` over the samples of every cluster; NaN for an empty cluster. None if
        withheld.
    membership_ : ndarray of shape (n_samples, n_clusters) or None
        Bootstrap probabilities of all clusters: ``samples_[i]`` is ``membership_[i, labels_[i]]``.
        None if withheld.
    jaccard_ : ndarray of shape (n_clusters,) or None
        Stability of every cluster (Hennig, 2007): the mean, over refits, of the Jaccard index of
        the cluster and the matched cluster of the refit. The Jaccard index of two sets is the size
        of their intersection divided by the size of their union. None if withheld.
    evidence_ : Evidence or None
        Significance test that decides whether the confidence is withheld. None if no test was
        passed, and `confidence` computed none. `confidence` computes no test if one feature
        determines the clusters, or if the samples have no test and ``force=True``.
    withheld_ : str
        Reason why the confidence is withheld; empty if it is not.
    n_resamples : int
        Number of bootstrap resamples.

    See Also
    --------
    confidence : Returns this result.
    test : Returns ``evidence_``.

    References
    ----------
    Hennig, C. (2007). Cluster-wise assessment of cluster stability. Computational Statistics and
    Data Analysis 52, 258-271. doi:10.1016/j.csda.2006.11.025

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ConditionalMixture, evidence
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 6 * sought
    >>> result = evidence.confidence(ConditionalMixture(2), X, known=known, random_state=0)
    >>> result.withheld_, result.samples_.shape
    ('', (100,))
    >>> bool(result.clusters_.min() > 0.9 and result.jaccard_.min() > 0.9)
    True
    """

    labels_: np.ndarray
    samples_: np.ndarray | None
    clusters_: np.ndarray | None
    membership_: np.ndarray | None
    jaccard_: np.ndarray | None
    evidence_: Evidence | None
    withheld_: str
    n_resamples: int

    @classmethod
    def without_values(
        cls, labels: np.ndarray, evidence: Evidence | None, reason: str, n_resamples: int
    ) -> Confidence:
        """Build a result without confidences; ``reason`` states why they are withheld."""
        return cls(labels, None, None, None, None, evidence, reason, n_resamples)

    @property
    def summary(self) -> str:
        """Summary in one sentence.

        The sentence states the expected share of correctly assigned samples, or why the confidence
        is withheld.
        """
        if self.samples_ is None or self.clusters_ is None:
            return f"no confidence: {self.withheld_}"
        lowest = int(np.nanargmin(self.clusters_))
        return (
            f"{100 * self.samples_.mean():.0f} % of the samples are expected to be in the right "
            f"cluster, {100 * self.clusters_[lowest]:.0f} % in cluster {lowest}, the least certain "
            f"({self.n_resamples} resamples; {self.evidence_ or 'without a significance test'})"
        )

    def __str__(self) -> str:
        return self.summary

    def __repr__(self) -> str:
        return f"<Confidence: {self.summary}>"


def confidence(
    estimator: Any,
    X: Any,
    *,
    known: Any = None,
    evidence: Evidence | None = None,
    force: bool = False,
    random_state: Any = None,
    n_resamples: int = 25,
    n_init: int = 6,
    verbose: int = 0,
) -> Confidence:
    r"""Bootstrap probability that every sample is in the right cluster.

    The membership probabilities of one fit ignore the uncertainty of the parameters. These
    probabilities are too high where clusters overlap. This function averages membership
    probabilities over refits to bootstrap resamples:

    .. math:: \text{confidence}_i = \frac{1}{B} \sum_{b=1}^B p_b(c_i \mid x_i)

    Here :math:`c_i` is the cluster of sample :math:`x_i` in the assessed labels, and B the number
    of resamples. :math:`p_b` is the membership probability of the refit to resample b. The clusters
    of every refit are matched to the assessed clusters.

    Parameters
    ----------
    estimator : ConditionalMixture or MixtureEM
        Fitted or unfitted estimator. If it was fitted to ``n_samples`` samples, its ``labels_``
        are assessed. Otherwise, a clone is fitted to ``X``, and the labels of the clone are
        assessed.
    X : array-like or frame of shape (n_samples, n_features)
        Features, as in `nrprob.evidence.test`.
    known : array-like of shape (n_samples,) or (n_samples, n_labelings), optional
        Known labels, as in `nrprob.evidence.test`.
    evidence : Evidence, optional
        Result of `nrprob.evidence.test` for these samples. By default, the test is computed.
    force : bool, default=False
        Whether to return the confidence even if the test is not significant, if one feature
        determines the clusters, or if the features have no test. Without ``force``, the confidence
        is withheld in the first two cases, and ValueError is raised in the third.
    random_state : int, RandomState instance or None, default=None
        Seed of the resamples, of the initial values and of the test.
    n_resamples : int, default=25
        Number of resamples, B. More resamples reduce the Monte Carlo error. From 2 to 10**6.
    n_init : int, default=6
        Number of restarts of every refit. A smaller ``n_init`` of the estimator takes precedence,
        except on mixed and incomplete tables. From 1 to 10**6.
    verbose : int, default=0
        Whether to show a progress bar.

    Returns
    -------
    Confidence

    Warns
    -----
    UserWarning
        If 5 % of the samples or more are exact copies of other samples.

    Raises
    ------
    TypeError, ValueError
        In the same cases as `nrprob.evidence.test`.

    See Also
    --------
    test : Test whether there are clusters at all.
    n_clusters : Choose the number of clusters.

    Notes
    -----
    For every resample:

    1. Draw samples with replacement within every known group. A set of exact copies counts as one
       sample; see `nrprob.evidence.test`.
    2. Fit from new initial values and from the assessed clusters, and keep the better fit. New
       initial values alone would count poor local optima as uncertainty. The assessed clusters
       alone would hide other optima.
    3. Match the clusters of the fit to the assessed clusters, one to one, by the largest number of
       common samples.
    4. Add the membership probabilities of all samples to the mean.

    The cost is B fits, or 2 B fits for `MixtureEM`.

    The confidence is withheld if `nrprob.evidence.test` is not significant, since the two halves of
    one Gaussian have high confidences, too. The confidence is also withheld if one discrete
    feature, such as a boolean column, determines the clusters. All refits would then return the
    values of this feature, whatever the other features contain.

    A resample contains some samples several times. The full covariances of `MixtureEM` may
    therefore collapse if there are few samples; raise ``reg_covar`` to prevent this.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ConditionalMixture, evidence
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 8 * sought
    >>> result = evidence.confidence(ConditionalMixture(2), X, known=known, random_state=0)
    >>> bool(result.samples_.mean() > 0.99)
    True
    """
    check_number("n_resamples", n_resamples, low=2, high=ITERATIONS, integer=True)
    check_number("n_init", n_init, low=1, high=ITERATIONS, integer=True)
    if evidence is not None and not isinstance(evidence, Evidence):
        raise TypeError(
            "evidence must be a result of nrprob.evidence.test; got "
            f"{short_repr(evidence)}; pass such a result, or leave it out"
        )
    check_flag("force", force)
    random = check_random_state(random_state)
    source = _prepare_resamples(estimator, X, known, n_init, force, random)
    copies, groups, labels, k = source.copies, source.groups, source.labels, source.n_clusters
    n = len(labels)
    # Withhold the confidence if one feature determines the clusters.
    feature = None if force else single_feature(extract_known(X, known)[0], labels)
    if feature is not None:
        reason = (
            f"{feature}; drop this column, or pass it as known; force=True returns the confidence "
            "nevertheless"
        )
        return Confidence.without_values(labels, evidence, reason, n_resamples)
    # Withhold the confidence if the clusters are not significant.
    if evidence is None:
        seed = random.randint(2**31 - 1)
        try:
            evidence = test(source.reference, X, known=known, random_state=seed, verbose=verbose)
        except ValueError:
            if not force:
                raise
    else:
        copies.warn_if_many()
    if evidence is not None and not force and not evidence.supports_clusters:
        reason = f"{evidence}; force=True returns the confidence nevertheless"
        return Confidence.without_values(labels, evidence, reason, n_resamples)
    # Average membership probabilities and Jaccard indices over refits to resamples.
    membership, jaccard = np.zeros((n, k)), np.zeros(k)
    bar = progress_bar("resampling", n_resamples, verbose)
    with few_threads(n), bar as advance:
        for _ in range(n_resamples):
            # Stratified bootstrap resample of the distinct samples.
            resample = copies.first[_resample_within_groups(groups[copies.first], random)]
            # Membership probabilities of all samples, with matched labels.
            probability = source.membership_of(resample, random.randint(2**31 - 1))
            table = cross_table(labels, probability.argmax(1), (k, k))
            matched = linear_sum_assignment(table, maximize=True)[1]
            membership += probability[:, matched] / n_resamples
            # Jaccard index of every cluster and the matched cluster: intersection over union.
            both = table[np.arange(k), matched]
            either = table.sum(1) + table.sum(0)[matched] - both
            jaccard += both / np.maximum(either, 1) / n_resamples
            advance()
    by_sample = membership[np.arange(n), labels]
    with np.errstate(invalid="ignore"):
        by_cluster = np.bincount(labels, by_sample, k) / np.bincount(labels, minlength=k)
    return Confidence(labels, by_sample, by_cluster, membership, jaccard, evidence, "", n_resamples)


class _Resamples(NamedTuple):
    """Assessed clusters of n samples, and a function that refits them to a resample.

    Attributes
    ----------
    reference : estimator that `nrprob.evidence.test` tests
    labels : (n,) assessed cluster labels
    n_clusters : number K of clusters
    groups : (n,) known groups as integers
    copies : sets of exact copies among the samples
    membership_of : function from the indices of a resample and a seed to the membership
        probabilities (n, K) of all samples under the fit to this resample
    """

    reference: Any
    labels: np.ndarray
    n_clusters: int
    groups: np.ndarray
    copies: Copies
    membership_of: Callable[[np.ndarray, int], np.ndarray]


def _prepare_resamples(
    estimator: Any, X: Any, known: Any, n_init: int, force: bool, random: np.random.RandomState
) -> _Resamples:
    """Validate the samples, and prepare the assessed clusters and their refits.

    `confidence` describes the arguments, except ``random``, the source of seeds.
    """
    # Mixed and incomplete tables, and tables with effects that are fitted with the clusters.
    refits = None
    if isinstance(estimator, TableDensityEstimator):
        seed = copy.deepcopy(random).randint(2**31 - 1)
        refits = estimator.table_refits(X, known=known, seed=seed)
    if refits is not None:
        copies = table_samples(refits, extract_known(X, known)[1], 1).copies

        def refit_table(resample: np.ndarray, seed: int) -> np.ndarray:
            labels = refits.labels
            return refits.fit(resample, refits.n_clusters, n_init, seed, labels).membership

        return _Resamples(
            estimator, refits.labels, refits.n_clusters, refits.groups, copies, refit_table
        )
    # Complete numeric tables: refit the estimator itself.
    rows, codes, _, copies = validate_samples(estimator, X, known, allow_discrete=force)
    if not isinstance(estimator, LabelInitialised):
        raise TypeError(
            "confidence needs a clusterer that can start from labels; got "
            f"{type(estimator).__name__}; use ConditionalMixture, or MixtureEM without known groups"
        )
    n = len(rows)
    # The assessed clusters come from the fitted estimator, or from a clone that is fitted to X.
    reference: Any = estimator
    if labels_of_fit(estimator, n) is None:
        reference = estimator.clone_for_tests().set_params(random_state=random.randint(2**31 - 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SingleFeatureWarning)  # see withheld_
            reference.fit(rows, **known_argument(codes))
    labels, k = reference.labels_, reference.membership_.shape[1]
    unfitted = reference.clone_for_tests()
    unfitted.set_params(n_clusters=k, n_init=min(n_init, unfitted.n_init))

    def refit(resample: np.ndarray, seed: int) -> np.ndarray:
        """Fit a resample from the assessed clusters and from new initial values.

        Returns the memberships (n, K) of all samples under the fit with the better objective.
        """
        fits = [
            refit_subset(unfitted, rows, codes, resample, random_state=seed, **settings)
            for settings in unfitted.settings_from_labels(labels[resample])
        ]
        best = min(fits, key=lambda fit: fit.objective_)
        return best.predict_proba(rows, **known_argument(codes))

    groups = np.zeros(n, int) if codes is None else codes
    return _Resamples(reference, labels, k, groups, copies, refit)


def _resample_within_groups(groups: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Draw samples with replacement within known groups; return their indices, ascending.

    ``groups`` (n,) are the known groups of n samples as integers. Every group keeps its size.
    """
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    indices = order[first + (random.rand(groups.size) * np.repeat(sizes, sizes)).astype(int)]
    return np.sort(indices)
