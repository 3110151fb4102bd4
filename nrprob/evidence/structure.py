"""Test clusters against models without clusters, and test for low-density gaps."""

from __future__ import annotations

from typing import Any

import numpy as np

from nrprob.data.validation import ITERATIONS, check_number, check_random_state
from nrprob.evidence.folds import prepare_folds
from nrprob.evidence.held_out import NULL_MODELS, assign_folds, cross_fit
from nrprob.evidence.inputs import as_density_estimator, labels_of_fit
from nrprob.evidence.low_density_gap import combined_p_value, has_discrete_values
from nrprob.evidence.p_values import one_sided_t_test
from nrprob.evidence.pair_gaps import density_between_pairs
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
    r"""Test clusters against models without clusters, and test for low-density gaps.

    Clusterers return clusters even if the data have no clusters. This function tests two null
    hypotheses:

    - ``p_structure_``: every known group has one elliptical distribution;
    - ``p_gap_``: there is no low-density gap between clusters.

    Both tests use held-out samples. With ``n_folds=5``, the clusters and the null models (models
    without clusters) are fitted to four fifths of the samples, and evaluated on the last fifth. The
    gain of a held-out sample :math:`x_i` in nats is

    .. math:: g_i = \ln \frac{q_K(x_i) + q_1(x_i)}{2 q_1(x_i)}

    Here :math:`q_K` is the density of the fitted clusters, and :math:`q_1` the density of a fitted
    null model. A one-sided t-test of the mean gain gives ``p_structure_``. Gains above 10 nats
    count as 10. The second test compares the number of held-out samples in a low-density gap with
    the numbers on both sides of the gap. This comparison gives ``p_gap_``.

    Parameters
    ----------
    estimator : clusterer
        Fitted or unfitted clusterer. Clones are fitted; the estimator itself does not change. If it
        was fitted to ``n_samples`` samples, the result uses its cluster labels.
        `ConditionalMixture` and `MixtureEM` (Gaussian features, no known groups) are tested with
        the densities that they define. These two may have ``n_clusters="auto"``. On complete
        numeric tables, each refit then chooses the number. For any other estimator, the density is
        a Gaussian mixture about the clusters. This mixture has one covariance, and the means of the
        known groups are subtracted.
    X : array-like or frame of shape (n_samples, n_features)
        Continuous features. `ConditionalMixture` also accepts categorical, ordered and count
        columns, and missing values.
    known : array-like of shape (n_samples,) or (n_samples, n_labelings), optional
        Known labels, one labeling per column. Every combination of labels is one known group.
        Labels from an earlier clustering count as exact: p-values ignore their estimation error.
    random_state : int, RandomState instance or None, default=None
        Seed of the folds and of the initial values of all fits.
    n_folds : int, default=5
        Number of folds, stratified by known group. From 2 to 100.
    n_splits : int, default=3
        Number of random splits into folds, over which gains are averaged. More splits reduce the
        dependence on the seed. Each split takes ``2 * n_folds`` fits, half of them with one
        cluster. From 1 to 1000.
    n_init : int, default=12
        Number of restarts of a fit. A smaller ``n_init`` of the estimator takes precedence, except
        on mixed and incomplete tables. From 1 to 10**6.
    alpha : float, default=0.05
        Significance level that the summary sentence of the result uses. From 0 to 1.
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
        If the estimator is not a clusterer with a parameter ``n_clusters``, if its `fit` takes no
        ``known`` although known groups are passed, or if ``X`` is sparse.
    ValueError
        If features are counts, binary or have few values, and the estimator has no density of such
        features. Also if known structure is not labels, or if known groups have too few samples.

    See Also
    --------
    n_clusters : Choose the number of clusters by held-out log-likelihood.
    confidence : Bootstrap confidences of samples and clusters.

    Notes
    -----
    *Algorithm.* For every split and every fold:

    1. Fit the estimator with K clusters and with one cluster to the samples of the other folds.
    2. Fit the other null models to the residuals of the same samples.
    3. Evaluate the log densities of the held-out samples of the fold.
    4. Choose a direction, a gap and its two sides by the training samples. Count the held-out
       samples in the gap and on its sides.

    Gains are averaged over splits. The cost is ``2 * n_splits * n_folds`` fits of the estimator.

    *Validity of* ``p_structure_``. Fits do not use the samples on which they are evaluated. If
    :math:`q_1` is the true density, the expected gain is minus a Kullback-Leibler divergence,
    :math:`-\mathrm{KL}(q_1 \| (q_K + q_1) / 2)`. So the expected gain is at most 0. The mixture
    with weights 1/2 bounds every gain from below by -ln 2. A few badly predicted samples therefore
    do not outweigh all other gains. A fit is called stable if it changes little when one training
    sample is replaced. If fits are stable, the mean gain over folds is asymptotically normal (Bayle
    et al., 2020). The sample variance of the gains estimates its variance. The mean over several
    splits has the same limit.

    *Null models.* :math:`q_1` is estimated, and clusters could merely correct its errors. Clusters
    therefore have to beat several null models, and ``p_structure_`` is the largest p-value. This
    intersection-union test has the same level for the hypothesis that at least one null model is
    true (Berger, 1982). Two null models always apply: the estimator with one cluster, and a
    Gaussian with the covariance of the mixture. The second is needed since clusters along the
    longest axis can correct a shrunk covariance. Flexible clusters also have to beat Gaussian and t
    distributions with shrunk covariances (Ledoit and Wolf, 2004). The covariance is common to all
    known groups, or each group has its own. Clusters are flexible with free weights, t errors, a
    small cluster, more than two clusters, or a covariance other than "tied".

    *Mixed and incomplete tables.* `ConditionalMixture` has a second test for two kinds of tables.
    The first are tables with discrete columns or missing values. The second are tables whose group
    effects are fitted jointly with the clusters, such as tables with small known groups. A fit to
    all samples determines the column types and the forms of the group effects and cluster shares.
    The same fit determines whether there are location effects, which are effects of discrete
    columns on numeric columns. All refits use these choices, with K clusters and with one. For a
    held-out sample of the known group z, the covariance within clusters is :math:`\Sigma + S_z`.
    Here :math:`\Sigma` is the covariance of the model, and :math:`S_z` the posterior covariance of
    the effect of group z. The null models are:

    - one cluster of the estimator;
    - Gaussian and t distributions of the numeric columns, times the probability of the discrete
      columns in one cluster. The distributions are fitted as above, and again after a power
      transformation of every numeric column;
    - one skewed distribution of the numeric columns, times the same probability, if no value is
      missing and there are more than four training samples per numeric column. The distribution is
      a linear map of independent components (Hyvarinen, 1999). A power transformation of every
      component (Yeo and Johnson, 2000) gives a Gaussian;
    - one cluster with a regression for every discrete column. The regression predicts this column
      from the numeric columns and the preceding discrete columns;
    - for every discrete column, a mixture whose components are the values of this column. The
      component shifts the numeric columns, and the other discrete columns depend on it alone.

    The level of this test was measured for some kinds of tables (``benchmarks/evidence_mixed.py``).
    For all other tables, p-values are withheld: ``withheld_`` states the reason, and
    ``gain_by_null_model_`` has the gains. With ``n_clusters="auto"``, the fit to all samples
    chooses the number of clusters, and p-values are withheld, too. The gap test uses only samples
    without missing numeric values.

    *Validity of* ``p_gap_``. The training samples determine a discriminant direction, from all
    other clusters to one. They also determine a gap along it, and two sides of equal width. If a
    known group has a single mode along the direction, one of the sides has at most the density of
    the gap. Let s be the number of held-out samples on that side, and v the number in the gap. Let
    w be the width of the side, relative to side and gap together. Given s + v, the distribution of
    s is bounded by the binomial distribution with s + v trials and probability w. The smaller count
    of both sides is at most s, so the bound holds for the smaller count. Counts are summed over
    known groups, and every fold has a valid p-value. The folds of a split are combined as if they
    were independent. This assumption does not change the mean of the total count, nor its variance
    if fits are stable. The p-values of the splits are converted to normal scores. Their mean is
    compared with the distribution of a single score, which has at least the variance of the mean.

    *Cluster labels.* The clusters of every fold are matched one to one to ``estimator.labels_``, by
    the largest number of common samples. If the estimator was not fitted to ``n_samples`` samples,
    the clusters of every fold are matched to the clusters of the first fold. A fold may have more
    clusters than the fitted estimator. Each additional cluster then gets the label with which it
    shares most samples. Without a fitted estimator, an additional cluster gets a new label. No
    p-value depends on the labels.

    *Copies.* Samples that agree in all features and in their known group count as one sample, since
    a copy brings no new information. Folds, fits and both p-values count copies in this way.
    Samples that agree because values are rounded are not copies. Rounding is recognised by pairs of
    neighbours: samples with successive values of the feature with the most distinct values, which
    agree in all other features. With rounding, there are more such pairs than pairs of equal
    samples. Copies may therefore stay undetected if ``X`` has a single feature and its values are
    rounded.

    *Limits.* Stability of the fits is assumed, not verified. Stability is doubtful if clusters
    nearly coincide. The level was measured by simulation (``benchmarks/evidence.py``). Uniform,
    skewed or curved groups are not elliptical, so a small ``p_structure_`` alone does not imply
    clusters. A small ``p_gap_`` implies clusters or a strongly curved group. A large
    ``p_structure_`` is no evidence for one component. Clusters with one covariance may predict
    worse than null models with one covariance per group. Full covariances of `MixtureEM` need many
    samples to predict better than one component.

    References
    ----------
    Bayle, P., Bayle, A., Janson, L. and Mackey, L. (2020). Cross-validation confidence intervals
    for test error. Advances in Neural Information Processing Systems 33.

    Berger, R. L. (1982). Multiparameter hypothesis testing and acceptance sampling. Technometrics
    24, 295-300.

    Hyvarinen, A. (1999). Fast and robust fixed-point algorithms for independent component analysis.
    IEEE Transactions on Neural Networks 10, 626-634.

    Ledoit, O. and Wolf, M. (2004). A well-conditioned estimator for large-dimensional covariance
    matrices. Journal of Multivariate Analysis 88, 365-411. doi:10.1016/S0047-259X(03)00096-4

    Yeo, I.-K. and Johnson, R. A. (2000). A new family of power transformations to improve normality
    or symmetry. Biometrika 87, 954-959.

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
    # Labels of the fitted estimator, renumbered from 0 on.
    reference, fit_labels = None, labels_of_fit(estimator, n)
    if fit_labels is not None:
        fit_labels, reference = np.unique(fit_labels[copies.first], return_inverse=True)
    # Cross-fit every split: held-out gains, and counts about the gap.
    bar = progress_bar("testing", n_splits * n_folds, verbose)
    with few_threads(len(groups)), bar as advance:
        splits = [
            cross_fit(
                fits,
                groups,
                assign_folds(groups, n_folds, random),
                random,
                advance,
                reference,
                count_pairs=s == 0,
            )
            for s in range(n_splits)
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
    # Gap test, unless values are discrete along the direction of a fold.
    first = splits[0]
    counts = [split.counts for split in splits]
    discrete = any(has_discrete_values(*pairs) for split in splits for pairs in split.pairs)
    p_gap = None if discrete or not first.counts else combined_p_value(counts)
    n_clusters = np.concatenate([split.n_clusters for split in splits])
    if (n_clusters == 1).all():
        p = p_gap = 1.0
    # Labels and scores of the first split; copies get the values of their first copy.
    labels = first.labels if fit_labels is None else fit_labels[first.labels]
    gap_cluster = first.gap_cluster
    if fit_labels is not None and gap_cluster is not None:
        gap_cluster = int(fit_labels[gap_cluster])
    withheld = fits.why_unmeasured
    # Labels agree between the folds of a split, but not between splits.
    between = None if discrete else density_between_pairs(first.between, fit_labels)
    return Evidence(
        None if withheld else p, None if withheld else p_gap, t, gains[best_null][copies.set_index],
        best_null, {} if withheld else p_by_null, labels[copies.set_index],
        first.score[copies.set_index], first.gap_width, np.array(counts),
        n_clusters=int(np.bincount(n_clusters).argmax()), withheld_=withheld,
        gain_by_null_model_={name: float(gain.mean()) for name, gain in gains.items()},
        gap_cluster_=gap_cluster, density_between_=between, **description,
    )  # fmt: skip


def _first(gain: dict[str, np.ndarray]) -> np.ndarray:
    return next(iter(gain.values()))


test.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it by its name


def _one_cluster(n: int, description: dict[str, Any]) -> Evidence:
    """Build the result for an estimator with one cluster, without any fit."""
    zeros, null_model = np.zeros(n), next(iter(NULL_MODELS))
    no_counts = np.zeros((0, description["n_folds"], 3))
    return Evidence(
        1.0, 1.0, 0.0, zeros, null_model, {null_model: 1.0}, zeros.astype(int), zeros, 0.0,
        no_counts, n_clusters=1, withheld_="", gain_by_null_model_={null_model: 0.0}, **description,
    )  # fmt: skip
