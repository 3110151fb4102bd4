"""Test the clusters against one-component null models, and for low-density gaps."""

from __future__ import annotations

from typing import Any

import numpy as np

from nrprob.data.validation import ITERATIONS, check_number, check_random_state
from nrprob.evidence.folds import prepare_folds
from nrprob.evidence.held_out import NULL_MODELS, assign_folds, cross_fit
from nrprob.evidence.inputs import as_density_estimator, labels_of_fit
from nrprob.evidence.low_density_gap import combined_p_value, has_discrete_values
from nrprob.evidence.p_values import one_sided_t_test
from nrprob.evidence.progress import progress_bar
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
    r"""Test for more structure than one elliptical distribution per known group, and for gaps.

    Clusterers return clusters of noise, too. This test fits the clusters to four fifths of the
    samples. On the held-out fifth it compares their density :math:`q_K` with the density
    :math:`q_1` of a one-component null model, by the gain

    .. math:: g_i = \ln \frac{q_K(x_i) + q_1(x_i)}{2 q_1(x_i)}

    of sample :math:`x_i`. Student's t test of the mean gain gives ``p_structure_``. A second test
    counts held-out samples in a low-density gap between clusters and on its two sides, which gives
    ``p_gap_``.

    Parameters
    ----------
    estimator : clusterer
        Fitted or not. Clones are fitted; the estimator itself is not changed. If it was fitted to
        as many samples, the result uses its cluster labels. `ConditionalMixture` and `MixtureEM`
        (gaussian features, no known groups) predict held-out samples by their own density, and may
        have ``n_clusters="auto"``; each refit then chooses the number. The clusters of any other
        estimator are described by a Gaussian mixture with one covariance, after subtracting the
        means of the known groups.
    X : array-like or frame of shape (n_samples, n_features)
        Continuous features. `ConditionalMixture` takes categorical, ordered and count columns and
        missing values as well.
    known : array-like, optional
        Known labels, 1-D, or one labeling per column; every combination of labels is a group.
        Labels from an earlier clustering are treated like given ones. The p-value does not account
        for their estimation.
    random_state : int, RandomState instance or None, default=None
        Determines the folds and the initial values of all fits.
    n_folds : int, default=5
        Number of folds, stratified by known group. From 2 to 100.
    n_splits : int, default=3
        Number of random splits into folds, over which gains are averaged. More splits reduce the
        dependence on the seed. Each takes ``2 n_folds`` fits, half of them of one cluster. From 1
        to 1000.
    n_init : int, default=12
        Restarts of a fit, if the estimator has not fewer.
    alpha : float, default=0.05
        Significance level of the sentence. From 0 to 1.
    verbose : int, default=0
        Whether to show a progress bar.

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
        If features are counts, binary or have few values, and the estimator has no density of such
        features; if known structure is not labels; or if known groups have too few samples.

    See Also
    --------
    n_clusters : Choose the number of clusters by held-out log-likelihood.
    confidence : Bootstrap confidences of samples and clusters.

    Notes
    -----
    *Algorithm.* For every split and every fold:

    1. Fit the estimator with K clusters and with one cluster to the other folds.
    2. Fit the null models to the residuals of the same samples.
    3. Evaluate the log densities of the samples of the fold.
    4. Choose a direction, a gap and two sides by the training samples; count held-out samples.

    Gains are averaged over splits. The cost is ``2 n_splits n_folds`` fits of the estimator.

    *Validity of* ``p_structure_``. Fits are independent of the samples that they are evaluated on.
    If :math:`q_1` is the density of the samples, the expected gain is minus a Kullback-Leibler
    divergence, whatever the clusters are. The mixture bounds the gain from below by -ln 2, so that
    a few badly predicted samples do not outweigh all gains. If fits are stable, the mean held-out
    gain over folds is asymptotically normal, with the variance of the samples' gains (Bayle et al.,
    2020). The mean of several splits has the same limit.

    *Null models.* :math:`q_1` is estimated, and clusters could compensate for errors of the
    estimate. So the clusters have to beat several null models, and the largest p-value counts. This
    is a test at the same level that at least one null model is right (Berger, 1982). The null
    models are the estimator with one cluster, and a Gaussian with the covariance of the mixture.
    The Gaussian is needed because clusters along the longest axis compensate for a shrunk
    covariance. Flexible clusters have to beat Gaussians and t distributions with estimated
    covariances, too, one or one per known group (Ledoit and Wolf, 2004). Clusters are flexible with
    free weights, t errors, a small cluster, more than two clusters, or a covariance other than
    "tied".

    *Mixed and incomplete tables.* These tests also serve `ConditionalMixture` if ``X`` has discrete
    columns or missing values, and if group effects are fitted with the clusters, as for small
    groups. The kinds of columns, the form of the group effects, the shares and the location effects
    are those of a fit to all samples, and both densities have them. The density of a held-out
    sample has the covariance :math:`\Sigma + S_z`, with the posterior covariance :math:`S_z` of the
    effect of its group. Null models are:

    - one cluster of the estimator;
    - Gaussians and t distributions of the numbers, as above and after a power transformation of
      every column, times the discrete columns of one cluster;
    - one cluster in which every discrete column has a regression on the numbers and on the discrete
      columns before it;
    - every discrete column in the place of the clusters, without a search: numbers are shifted by
      it, and all other columns depend on it alone.

    The level of the test was measured for some kinds of tables (``benchmarks/evidence_mixed.py``).
    For others there is no p-value; ``withheld_`` says why, and ``gain_by_rival_`` has the gains.
    Gaps are counted in samples without missing numbers.

    *Validity of* ``p_gap_``. The training samples determine a direction, from all other clusters to
    one, and a gap with two sides of equal width. If a known group has a single mode along the
    direction, one of the sides has at most the density of the gap. Let s held-out samples lie on
    that side and v in the gap. Given s + v, s is then at most binomial, with the share of the width
    of the side. The smaller of both sides is at most s. The sum over known groups has an exact
    p-value for every fold. The folds of a split are combined as if they were independent, which is
    right for the means, and for the variances if fits are stable. Splits are combined by the mean
    of their normal scores, as if this mean had the variance of one score.

    *Cluster labels.* The clusters of every fold are matched one to one to ``estimator.labels_``,
    with the largest number of common samples. If the estimator was not fitted to as many samples,
    they are matched to the clusters of the first fold. If a fold has more clusters than the fit,
    each additional one takes the label with which it shares most samples; without a fit, it takes a
    new label. No p-value depends on the labels.

    *Copies.* Samples that agree in all features and in their known group count as one sample in the
    folds, the fits and both p-values. A copy brings no new information. Samples that agree because
    values are rounded are not copies. Rounding is recognised by pairs of samples that differ by one
    step in the feature with the most distinct values, and agree in all others: there are more of
    them than of equal samples. Copies of samples with a single rounded feature may therefore stay
    undetected.

    *Limits.* Stability of the fits is assumed, not verified; it is doubtful if clusters nearly
    coincide. The level was measured by simulation (``benchmarks/evidence.py``). Uniform, skewed or
    curved groups are not elliptical, so a small ``p_structure_`` alone does not imply clusters. A
    small ``p_gap_`` implies clusters or a strongly curved group. A large ``p_structure_`` is no
    evidence for one component. Clusters with a common covariance may predict worse than null models
    with one covariance per group. Full covariances of `MixtureEM` need many samples to predict
    better than one component.

    References
    ----------
    Bayle, P., Bayle, A., Janson, L. and Mackey, L. (2020). Cross-validation confidence intervals
    for test error. Advances in Neural Information Processing Systems 33.

    Berger, R. L. (1982). Multiparameter hypothesis testing and acceptance sampling. Technometrics
    24, 295-300.

    Ledoit, O. and Wolf, M. (2004). A well-conditioned estimator for large-dimensional covariance
    matrices. Journal of Multivariate Analysis 88, 365-411. doi:10.1016/S0047-259X(03)00096-4

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ConditionalMixture, evidence
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 6 * sought
    >>> result = evidence.test(ConditionalMixture(2), X, known=known, n_splits=1, random_state=0)
    >>> result.p_structure_ < 0.001
    True
    """
    check_number("n_folds", n_folds, low=2, high=100, integer=True)
    check_number("n_splits", n_splits, low=1, high=1000, integer=True)
    check_number("n_init", n_init, low=1, high=ITERATIONS, integer=True)
    check_number("alpha", alpha, low=0, high=1)
    density = as_density_estimator(estimator)
    random = check_random_state(random_state)
    samples, groups, fits = prepare_folds(density, X, known, n_folds, n_init, random)
    copies, n = samples.copies, len(samples.rows)
    copies.warn_if_many()
    description: dict[str, Any] = {
        "groups_": groups[copies.set_index], "group_names_": samples.names,
        "distinct_": copies.first, "n_folds": n_folds, "n_splits": n_splits,
        "n_init": fits.n_init, "alpha": alpha,
    }  # fmt: skip
    if fits.n_clusters == 1:
        return _one_cluster(n, description)
    # Labels of a fit to the same samples, from 0 on.
    reference, fit_labels = None, labels_of_fit(estimator, n)
    if fit_labels is not None:
        fit_labels, reference = np.unique(fit_labels[copies.first], return_inverse=True)
    # Held-out gains and counts of every split.
    bar = progress_bar("testing", n_splits * n_folds, verbose)
    with few_threads(len(groups)), bar as advance:
        splits = [
            cross_fit(
                fits, groups, assign_folds(groups, n_folds, random), random, advance, reference
            )
            for _ in range(n_splits)
        ]
    # Intersection-union test: the largest p-value of all null models.
    null_models = max((split.gain for split in splits), key=len)
    gains = {
        name: np.mean([split.gain.get(name, _first(split.gain)) for split in splits], axis=0)
        for name in null_models
    }
    p_by_null = {name: one_sided_t_test(gain)[1] for name, gain in gains.items()}
    best_null = max(null_models, key=lambda name: p_by_null[name])
    t, p = one_sided_t_test(gains[best_null])
    # Gap test, unless values are discrete.
    first = splits[0]
    counts = [split.counts for split in splits]
    discrete = any(has_discrete_values(*pairs) for split in splits for pairs in split.pairs)
    p_gap = None if discrete or not first.counts else combined_p_value(counts)
    n_clusters = np.concatenate([split.n_clusters for split in splits])
    if (n_clusters == 1).all():
        p = p_gap = 1.0
    labels = first.labels if fit_labels is None else fit_labels[first.labels]
    withheld = fits.why_unmeasured
    return Evidence(
        None if withheld else p, None if withheld else p_gap, t, gains[best_null][copies.set_index],
        best_null, {} if withheld else p_by_null, labels[copies.set_index],
        first.score[copies.set_index], first.gap_width, np.array(counts),
        n_clusters=int(np.bincount(n_clusters).argmax()), withheld_=withheld,
        gain_by_rival_={name: float(gain.mean()) for name, gain in gains.items()}, **description,
    )  # fmt: skip


def _first(gain: dict[str, np.ndarray]) -> np.ndarray:
    return next(iter(gain.values()))


test.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it by its name


def _one_cluster(n: int, description: dict[str, Any]) -> Evidence:
    """Result for one cluster, without fits."""
    zeros, null_model = np.zeros(n), next(iter(NULL_MODELS))
    no_counts = np.zeros((0, description["n_folds"], 3))
    return Evidence(
        1.0, 1.0, 0.0, zeros, null_model, {null_model: 1.0}, zeros.astype(int), zeros, 0.0,
        no_counts, n_clusters=1, withheld_="", gain_by_rival_={null_model: 0.0}, **description,
    )  # fmt: skip
