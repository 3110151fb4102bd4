"""Test the clusters against one-component null models, and for low-density gaps."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from nrprob.data.validation import ITERATIONS, check_number, check_random_state
from nrprob.evidence import low_density_gap
from nrprob.evidence.held_out import RIVALS, folds, hold_out
from nrprob.evidence.inputs import as_density, labels_of_fit, testable
from nrprob.evidence.p_values import one_sided
from nrprob.evidence.progress import shown
from nrprob.evidence.record import Evidence
from nrprob.settings import few_threads


def test(
    estimator: Any,
    X: Any,
    *,
    known: Any = None,
    random_state: Any = None,
    n_folds: int = 5,
    n_splits: int = 3,
    n_init: int = 12,
    alpha: float = 0.05,
    verbose: int = 0,
) -> Evidence:
    r"""Test whether there is more in the rows than one elliptical cloud per known group, and gaps.

    Every clusterer returns clusters, also of noise. This one fits four fifths of the rows and asks
    of the others whether the clusters q_K predict them better than one cloud q_1 does, by

    .. math:: g_i = \ln \frac{q_K(x_i) + q_1(x_i)}{2 q_1(x_i)}

    whose mean over the rows is tested by Student's t (``p_structure_``). And it counts held-out
    rows in a valley between clusters and on its two sides (``p_gap_``), where the fits say that
    one is.

    Parameters
    ----------
    estimator : clusterer
        Fitted or not; it is left as it is, and clones of it are fitted. If it was fitted to as many
        samples, the result uses its cluster labels. `ResidualMixture` and `MixtureEM` (gaussian
        features, nothing known) predict rows by their own density, and may have
        ``n_clusters="auto"``: the number is found anew in each fit. Of any other, the clusters that
        it makes of real rows are described by clouds of one covariance about their centres, once
        the means of known groups are taken off.
    X : array-like of shape (n_samples, n_features)
        Real numbers or measurements.
    known : array-like, optional
        Known labels, 1-D, or one labeling per column: every combination of labels is a group.
        Labels that were found before are taken like all others, as if they had been given; what
        that does to the p-value of a later round is not accounted for.
    random_state : int, RandomState instance or None, default=None
        Determines the folds and the starts of all fits.
    n_folds : int, default=5
        Parts that the rows are divided into, every known group alike; from 2 to 100.
    n_splits : int, default=3
        Divisions that are averaged; one takes ``2 n_folds`` fits, half of them of one cluster.
    n_init : int, default=12
        Restarts of a fit, if the estimator has not fewer. In the cases of
        ``benchmarks/evidence.py``, 60 found no more.
    alpha : float, default=0.05
        p-value up to which the sentence says that there is structure.
    verbose : int, default=0
        Whether a bar shows how many of the fits are done.

    Returns
    -------
    Evidence

    Warns
    -----
    UserWarning
        If 5 % of the samples or more are exact copies of other samples.

    Raises
    ------
    TypeError
        If the estimator is no clusterer with ``n_clusters``, or ``X`` is sparse.
    ValueError
        If that cannot be tested: counts, zeros and ones, columns of few values; structure other
        than labels; known groups of too few rows.

    Notes
    -----
    *Why this is a p-value.* Fits are independent of the rows that they are tried on. If q_1 is the
    density of these, the mean of g is minus a Kullback-Leibler divergence, whatever the clusters
    are. The mixture bounds g from below by -ln 2, so that clusters which fit too sharply cannot
    drown what they gain. The mean of held-out losses over folds is asymptotically normal about its
    conditional mean, with the variance of the rows', if fits are stable (Bayle et al., 2020); the
    mean of several splits has the same limit.

    *The gap.* From the rows of a fit come a direction, from all other clusters to one, a valley and
    two equally wide sides along it. If the rows of a known group have one peak in that direction,
    the density is on one of the sides nowhere higher than in the valley. Of rows held out, s on
    that side and v in the valley, s is then at most binomial given s + v, with the share of its
    width, and the smaller of the two sides no larger. Groups may differ in the side. The sum over
    groups has an exact p-value for every fold. That of the folds of a split is taken as if they
    were independent, which their fits are not: conditional means are right, and the spread if fits
    are stable, as above. Splits are merged by the mean of their normal scores, taken for as wide as
    one of them; it is narrower, however they depend on each other, if they are normal together.

    *Cluster labels.* The clusters of every fold are matched to ``estimator.labels_`` if the
    estimator was fitted to as many samples, else to the clusters of the first fold: one to one,
    with the largest number of common samples. If a fold has more clusters than the fit, each
    additional one takes the label with which it shares most samples; without a fit, it takes a new
    label. No p-value depends on the labels.

    *Copies.* Samples that agree in all features and in their known group are one sample in the
    folds, the fits and both p-values, since a copy brings no new information. Samples that agree
    because values are rounded are not copies. Rounding is recognised by pairs of samples that
    differ by one step in the feature with the most distinct values, and agree in all others: there
    are more of them than of equal samples. Copies of samples with a single rounded feature may
    therefore stay undetected.

    *What is heuristic.* Stability is not verified, and is doubtful where clusters and cloud nearly
    coincide. And q_1 is an estimate: clusters could mend its mistakes and be no clusters. So they
    have to beat several clouds, and the largest p-value counts, which is a test at the same level
    that *one* of them is right (Berger, 1982): the estimator's own fit of one cluster, of the same
    regularisation; a normal cloud with the covariance that the clusters have together, since a
    covariance that is shrunk is mended by clusters along its longest axis; and, where clusters are
    able to follow more than one such cloud does (free weights or t errors, three clusters or more,
    one of few rows, covariances that are not "tied"), normal and t clouds of fitted degrees of
    freedom, with one covariance or one for every known group. The level was measured
    (``benchmarks/evidence.py``).

    *What it does not say.* Uniform, skewed or bent groups are no elliptical clouds either, so a
    small ``p_structure_`` does not mean clusters; a gap does, or a curve with two horns. A large
    one is no evidence of one cloud: where groups spread along different directions, clouds of their
    own may describe them better than clusters of one covariance, which then stay unseen though they
    are there; and full covariances of `MixtureEM` take many rows to predict better than one cloud.

    References
    ----------
    Bayle, Bayle, Janson and Mackey (2020), Cross-validation confidence intervals for test error;
    Berger (1982), the largest p-value of several; Ledoit and Wolf (2004).

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ResidualMixture, evidence
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 6 * sought
    >>> found = evidence.test(ResidualMixture(2), X, known=known, n_splits=1, random_state=0)
    >>> found.p_structure_ < 0.001
    True
    """
    check_number("n_folds", n_folds, low=2, high=100, integer=True)
    check_number("n_splits", n_splits, low=1, high=1000, integer=True)
    check_number("n_init", n_init, low=1, high=ITERATIONS, integer=True)
    check_number("alpha", alpha, low=0, high=1)
    fitted = estimator
    estimator = as_density(estimator)
    samples = testable(estimator, X, known, n_folds)
    copies, n = samples.copies, len(samples.rows)
    copies.warn_if_many()
    rows, codes = samples.distinct()
    groups = np.zeros(len(rows), int) if codes is None else codes
    n_init = min(n_init, estimator.n_init)
    made: dict[str, Any] = {
        "groups_": groups[copies.of], "group_names_": samples.names, "distinct_": copies.first,
        "n_folds": n_folds, "n_splits": n_splits, "n_init": n_init, "alpha": alpha,
    }  # fmt: skip
    if estimator.n_clusters == 1:
        none = np.zeros(n)
        no_counts = np.zeros((0, n_folds, 3))
        made["n_clusters"] = 1
        return Evidence(1.0, 1.0, 0.0, none, *_OWN, none.astype(int), none, 0.0, no_counts, **made)
    reference, fit_labels = None, labels_of_fit(fitted, n)
    if fit_labels is not None:
        fit_labels, reference = np.unique(fit_labels[copies.first], return_inverse=True)
    random = check_random_state(random_state)
    bare = clone(estimator)
    bar = shown("testing", n_splits * n_folds, verbose)
    with few_threads(len(rows)), bar as done:
        splits = [
            hold_out(
                bare, rows, codes, folds(groups, n_folds, random), n_init, random, done, reference
            )
            for _ in range(n_splits)
        ]
    tried = list(RIVALS)[: max(split.n_rivals for split in splits)]
    gains = dict(zip(tried, np.mean([split.gain for split in splits], axis=0), strict=False))
    p_by_rival = {name: one_sided(gain)[1] for name, gain in gains.items()}
    rival = max(tried, key=lambda name: p_by_rival[name])
    t, p = one_sided(gains[rival])
    first = splits[0]
    counts = [split.counts for split in splits]
    lattice = any(low_density_gap.tied(*own) for split in splits for own in split.pairs)
    p_gap = None if lattice else low_density_gap.p_value(counts)
    numbers = np.concatenate([split.numbers for split in splits])
    made["n_clusters"] = int(np.bincount(numbers).argmax())
    if (numbers == 1).all():
        p = p_gap = 1.0
    labels = first.labels if fit_labels is None else fit_labels[first.labels]
    return Evidence(
        p, p_gap, t, gains[rival][copies.of], rival, p_by_rival, labels[copies.of],
        first.place[copies.of], first.valley, np.array(counts), **made,
    )  # fmt: skip


test.__test__ = False  # type: ignore[attr-defined]  # pytest takes every test* for its own

_OWN = next(iter(RIVALS)), {next(iter(RIVALS)): 1.0}
