"""Bootstrap confidences of samples and clusters, from refits to resampled data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone

from nrprob.data.frames import take_out
from nrprob.data.validation import ITERATIONS, check_flag, check_number, check_random_state
from nrprob.estimator.density import LabelInitialised
from nrprob.evidence.held_out import conditioned, refit
from nrprob.evidence.inputs import labels_of_fit, testable
from nrprob.evidence.progress import shown
from nrprob.evidence.record import Evidence
from nrprob.evidence.structure import test
from nrprob.exceptions import SingleFeatureWarning, short_repr
from nrprob.settings import few_threads
from nrprob.statistics.groups import cross_table
from nrprob.statistics.single_feature import single_feature


@dataclass(frozen=True, eq=False)
class Confidence:
    """How sure rows and clusters are; see `confidence`.

    ``str(confidence)`` says it in a sentence.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        The clusters that this is about.
    rows_ : ndarray of shape (n_samples,) or None
        Probability that a row is in the cluster that it has; None where that is withheld.
    clusters_ : ndarray of shape (n_clusters,) or None
        Its mean over the rows of every cluster; NaN for a cluster without rows.
    membership_ : ndarray of shape (n_samples, n_clusters) or None
        Probabilities of all clusters, of which ``rows_`` are those of ``labels_``.
    jaccard_ : ndarray of shape (n_clusters,) or None
        How much of a cluster refits find again: rows in both, of rows in either; the mean.
    evidence_ : Evidence or None
        The test on which it depends whether there is anything to be sure of; None if the answer was
        forced for rows that cannot be tested, or one feature determines the clusters.
    withheld_ : str
        Why nothing is said; empty where something is.
    n_resamples : int

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ResidualMixture, evidence
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 6 * sought
    >>> found = evidence.confidence(ResidualMixture(2), X, known=known, random_state=0)
    >>> found.withheld_, found.rows_.shape
    ('', (100,))
    >>> bool(found.clusters_.min() > 0.9 and found.jaccard_.min() > 0.9)
    True
    """

    labels_: np.ndarray
    rows_: np.ndarray | None
    clusters_: np.ndarray | None
    membership_: np.ndarray | None
    jaccard_: np.ndarray | None
    evidence_: Evidence | None
    withheld_: str
    n_resamples: int

    @property
    def summary(self) -> str:
        """How many rows are expected to be right, in a sentence."""
        if self.rows_ is None or self.clusters_ is None:
            return f"no confidence: {self.withheld_}"
        least = int(np.nanargmin(self.clusters_))
        return (
            f"{100 * self.rows_.mean():.0f} % of the rows are expected to be in the right cluster, "
            f"{100 * self.clusters_[least]:.0f} % in cluster {least}, the least certain "
            f"({self.n_resamples} resamples; {self.evidence_ or 'whether there are any: no test'})"
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
    r"""Probability of every row that its cluster is right, if there are clusters.

    Memberships of one fit take its centres for granted, and are too sure where clusters overlap.
    Here rows are drawn with replacement within every known group, and fitted from fresh starts and
    from the clusters themselves; of the best fit b to each resample the memberships of all rows are
    taken, and its clusters have the names of those with which they share most rows:

    .. math:: \text{confidence}_i = \frac{1}{B} \sum_b p_b(c_i \mid x_i)

    Fresh starts alone take a poor optimum for doubt, and the clusters alone take none.

    Where there are no clusters, no such number means anything: two halves of a cloud seem sure. So
    it is withheld if `nrprob.evidence.test` finds nothing. It is also withheld if one discrete
    feature, such as a boolean column, determines the clusters: refits find that feature again,
    whatever the other features say. Exact copies of a sample are resampled together, as one sample;
    see `nrprob.evidence.test`. A resample has rows several times, on
    which full covariances of `MixtureEM` may collapse where rows are few; raise its ``reg_covar``.

    Parameters
    ----------
    estimator : ResidualMixture or MixtureEM
        As in `nrprob.evidence.test`. The clusters in question are its ``labels_`` if it was fitted
        to as many rows, else those of a clone that is fitted to X.
    X : array-like of shape (n_samples, n_features)
        Real numbers or measurements.
    known : array-like, optional
        As in `nrprob.evidence.test`.
    evidence : Evidence, optional
        What `nrprob.evidence.test` said of these rows; by default it is asked.
    force : bool, default=False
        Whether to answer even if there is no evidence of clusters, one feature determines them, or
        there is no test for rows as these: counts, zeros and ones, columns of few values.
    random_state : int, RandomState instance or None, default=None
        Determines resamples, starts and the test.
    n_resamples : int, default=25
        Number of resamples, B, from 2 to 10**6.
    n_init : int, default=6
        Restarts of every refit, that from the clusters among them, if the estimator has not fewer.
    verbose : int, default=0
        Whether a bar shows how many of the resamples are done.

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
        As `nrprob.evidence.test`.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ResidualMixture, evidence
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 8 * sought
    >>> found = evidence.confidence(ResidualMixture(2), X, known=known, random_state=0)
    >>> bool(found.rows_.mean() > 0.99)
    True
    """
    check_number("n_resamples", n_resamples, low=2, high=ITERATIONS, integer=True)
    check_number("n_init", n_init, low=1, high=ITERATIONS, integer=True)
    if evidence is not None and not isinstance(evidence, Evidence):
        raise TypeError(
            f"evidence must be what nrprob.evidence.test returns; got {short_repr(evidence)}; "
            "pass that, or leave it out"
        )
    check_flag("force", force)
    rows, codes, _, copies = testable(estimator, X, known, any_values=force)
    if not isinstance(estimator, LabelInitialised):
        raise TypeError(
            "confidence needs a clusterer that can start from clusters; got "
            f"{type(estimator).__name__}; use ResidualMixture, or MixtureEM if nothing is known"
        )
    n = len(rows)
    random = check_random_state(random_state)
    reference: Any = estimator
    if labels_of_fit(estimator, n) is None:
        reference = clone(estimator).set_params(random_state=random.randint(2**31 - 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SingleFeatureWarning)  # the answer says it
            reference.fit(rows, **conditioned(codes))
    labels = reference.labels_
    feature = None if force else single_feature(take_out(X, known)[0], labels)
    if feature is not None:
        withheld = (
            f"{feature}; drop this column, or pass it as known; force=True gives the confidence "
            "all the same"
        )
        return Confidence(labels, None, None, None, None, evidence, withheld, n_resamples)
    if evidence is None:
        seed = random.randint(2**31 - 1)
        try:
            evidence = test(reference, X, known=known, random_state=seed, verbose=verbose)
        except ValueError:
            if not force:
                raise
    else:
        copies.warn_if_many()
    if evidence is not None and not force and evidence.p_structure_ > evidence.alpha:
        withheld = f"{evidence}; pass force=True to have it all the same"
        return Confidence(labels, None, None, None, None, evidence, withheld, n_resamples)
    k = reference.membership_.shape[1]
    bare = clone(reference).set_params(n_clusters=k, n_init=min(n_init, reference.n_init))
    groups = np.zeros(n, int) if codes is None else codes
    membership, jaccard = np.zeros((n, k)), np.zeros(k)
    with few_threads(n), shown("resampling", n_resamples, verbose) as done:
        for _ in range(n_resamples):
            drawn = copies.first[_resample(groups[copies.first], random)]
            seed = random.randint(2**31 - 1)
            fits = [
                refit(bare, rows, codes, drawn, random_state=seed, **settings)
                for settings in bare.settings_from_labels(labels[drawn])
            ]
            best = min(fits, key=lambda fit: fit.objective_)
            result = best.predict_proba(rows, **conditioned(codes))
            table = cross_table(labels, result.argmax(1), (k, k))
            names = linear_sum_assignment(table, maximize=True)[1]
            membership += result[:, names] / n_resamples
            either = table.sum(1) + table.sum(0)[names] - table[np.arange(k), names]
            jaccard += table[np.arange(k), names] / np.maximum(either, 1) / n_resamples
            done()
    sure = membership[np.arange(n), labels]
    sizes = np.bincount(labels, minlength=k)
    with np.errstate(invalid="ignore"):
        clusters = np.bincount(labels, sure, k) / sizes
    return Confidence(labels, sure, clusters, membership, jaccard, evidence, "", n_resamples)


def _resample(groups: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Numbers (n,) of rows, with replacement, as many of every group as it has."""
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    drawn = order[first + (random.rand(groups.size) * np.repeat(sizes, sizes)).astype(int)]
    return np.sort(drawn)
