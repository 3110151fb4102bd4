"""Conditional mixture: clusters after removing group effects, with one common covariance."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from functools import partial
from typing import Annotated, Any

import jax
import numpy as np
from scipy import sparse
from scipy.special import entr, logsumexp

from nrprob.data.design import Design, DesignEncoder
from nrprob.data.validation import ITERATIONS, check_random_state
from nrprob.estimator import parameters
from nrprob.estimator.base import Clusterer
from nrprob.estimator.calls import collect_restarts, solution_memberships
from nrprob.estimator.capabilities import KINDS, Capabilities
from nrprob.estimator.weights import WeightedMixin, entries_with_weight
from nrprob.evidence.model_selection import AutoClustersMixin
from nrprob.exceptions import short_repr, warnings_are_ignored
from nrprob.methods.conditional.em import Hyperparameters
from nrprob.methods.conditional.group_spreads import warn_of_group_spreads
from nrprob.methods.conditional.joint_fit import fit_table
from nrprob.methods.conditional.joint_search import Form
from nrprob.methods.conditional.optima import OptimaMixin
from nrprob.methods.conditional.outliers import check_noise
from nrprob.methods.conditional.prediction import PredictionMixin
from nrprob.methods.conditional.regression import fit_removal
from nrprob.methods.conditional.rounding import is_coarse, rounding_variances
from nrprob.methods.conditional.separate_covariances import warn_of_separate_covariances
from nrprob.methods.conditional.solver import Fit
from nrprob.methods.conditional.subtraction import ResidualSearch
from nrprob.methods.conditional.table_fit import TableInput, TableTask
from nrprob.methods.conditional.table_starts import start_kinds
from nrprob.methods.conditional.task import WEIGHTS, encode_init
from nrprob.statistics.groups import cross_table
from nrprob.statistics.weighted import scale_rows, total_weight

COVARIANCES = ("tied", "diag", "spherical")
ERRORS = ("gaussian", "t", "auto")
EFFECTS = ("auto", "subtract", "fixed", "random")
_N_INIT, _N_INIT_MIXED = 60, 72  # default numbers of restarts: complete numeric, other tables


def _check_columns(name: str, value: Any) -> None:
    if isinstance(value, str) or (np.ndim(value) == 1 and not isinstance(value, dict)):
        return
    raise TypeError(
        f"{name} must be 'auto', or names or positions of columns; got {short_repr(value)}; pass a "
        "list of names or positions"
    )


def _check_location(name: str, value: Any) -> None:
    if not isinstance(value, bool | np.bool_) and value != "auto":
        raise ValueError(
            f"{name} must be True, False or 'auto'; got {short_repr(value)}; pass one of these"
        )


@parameters.constructor
class ConditionalMixture(
    WeightedMixin, PredictionMixin, OptimaMixin, ResidualSearch, AutoClustersMixin, Clusterer
):
    r"""Mixture model of a table given known groups, p(x | cluster, known group).

    The recommended estimator for tables and images with known structure. Columns may be numeric,
    categorical, ordered or counts, and values may be missing. The numeric columns of sample i are

    .. math:: x_i = a_{z_i} + b_{c_i} + B^T q_i + e_i, \qquad e_i \sim N(0, \Sigma)

    with the effect :math:`a_z` of known group z and the centre :math:`b_c` of cluster c. B are the
    location effects of the discrete columns, which are coded as :math:`q_i`.

    The log odds of a categorical column are the sum of a cluster effect and a group effect, without
    interaction. An ordered or count column has a free marginal distribution, which clusters and
    groups tilt exponentially. A discrete column that is independent of all other columns does not
    improve the objective, and therefore cannot determine the clusters.

    ``effects`` sets how group effects are estimated. With "subtract", they are the means of the
    groups. For a complete numeric table of n samples in L groups, the estimator then minimises, in
    nats of the whole data set,

    .. math:: -\frac{n-L}{n} \sum_i \log \sum_c \pi_c\, p(r_i | b_c, \Sigma)
        + \nu_0\, D\left[N(0, s_0 I) \,\|\, N(0, \Sigma)\right]
        + \kappa \frac{n-L}{n} \sum_z n_z D\left[p(c|z) \,\|\, 1/K\right]

    over centres, :math:`\Sigma`, the variance :math:`s_0` and, if they are free, the weights
    :math:`\pi_c` (else 1/K). Here :math:`r_i` is the residual about the group mean times
    :math:`\sqrt{n/(n - L)}`, p a normal or t density, and D the Kullback-Leibler divergence. The
    second term is a ridge; its weight is
    :math:`\nu_0 = \lambda \min((n - L) \rho / (1 - \rho), 2d)` with the intensity
    :math:`\rho` of Ledoit and Wolf, d columns and the factor :math:`\lambda` (``ridge``). The bound
    is needed since clusters can make residuals spherical although the errors are not. The last
    term, with the weight :math:`\kappa` (``balance``), favours equal cluster shares p(c|z) in every
    known group z of :math:`n_z` rows.

    If all values of a numeric column j are multiples of a step :math:`h_j`, the column was rounded.
    For rounded columns, the objective contains one more term,
    :math:`\frac{n-L}{2} \mathrm{tr}(\Sigma^{-1} Q)` with :math:`Q = \mathrm{diag}(h_j^2 / 12)`.
    Without this term, clusters could coincide with single values of the column, and the error
    variance of the column could approach 0.

    With "random" effects :math:`a_z \sim N(0, T)`, variational EM fits group effects and clusters
    jointly. The EM maximises a lower bound F of the log likelihood, in which missing values are
    integrated out. The variational posterior of an effect is :math:`q(a_z) = N(m_z, S_z)`. Joint
    fits are better if cluster shares differ between groups, or if groups are small. The mean of a
    group then contains a part of the differences between clusters, which "subtract" would remove.

    The common covariance :math:`\Sigma` is fitted because the direction of the largest variance
    within groups (such as size) often does not separate clusters. K-means of residuals would split
    the samples along this direction.

    Parameters
    ----------
    n_clusters : int or "auto", default=2
        Number of clusters, K. "auto" selects the number with the best predictive density on
        held-out rows, by `nrprob.evidence.n_clusters`; known structure must then be labels.
    covariance : {"tied", "diag", "spherical"}, default="tied"
        Form of :math:`\Sigma`, which all clusters share: a full matrix ("tied"), a diagonal matrix
        ("diag"), or a multiple of the identity ("spherical"). "diag" and "spherical" need fewer
        rows.
    errors : {"gaussian", "t", "auto"}, default="gaussian"
        Distribution of the errors: normal, or multivariate t for data with outliers. "auto" fits
        both distributions and selects the fit with the smaller objective. "auto" takes about five
        times as long as "gaussian".
    nu : float, default=8.0
        Degrees of freedom of t errors; lower values tolerate stronger outliers. From 2.001 to
        10**9.
    effects : {"auto", "subtract", "fixed", "random"}, default="auto"
        Method for the effects of the known groups. "subtract" subtracts the means of the groups.
        "random" and "fixed" fit the effects jointly with the clusters: "random" with a normal
        prior, "fixed" with a flat prior.

        "auto" selects "random" if F is larger than with "subtract" by more than 1.5 margins. For d
        numeric columns, a margin is
        :math:`\frac{1}{2} \min(K - 1, d) (\sum_z \log n_z - \max_z \log n_z)` nats. The sum and the
        maximum are over groups of at least ten samples. "auto" also selects "subtract" if unequal
        weights of the clusters, common to all groups, explain the gain. If the median group has
        fewer than 20 samples, "auto" never subtracts. Covariates, ``errors`` other than "gaussian"
        and ``balance`` require "subtract"; "auto" then selects "subtract". The effects of groups on
        discrete columns are fitted with the clusters in every case.
    categorical, ordered : "auto" or sequence of str or int, default="auto"
        Names or positions of categorical and of ordered columns; an empty sequence for none. "auto"
        derives the type of a column from its values. Text, booleans, unordered categories and
        columns of two values are categorical. Ordered categories, and numbers with 3 to 12 distinct
        values, are ordered. Whole numbers with 13 to 50 distinct values, the smallest 0 and the
        largest at most 100, are counts. The model treats counts like ordered columns. Numbers with
        three or more distinct values are numeric if there are fewer than five samples per value, on
        average. An array with at least 32 ordered or count columns is assumed to hold images. The
        ordered and count columns, and binary columns whose smaller value is 0, are then numeric.
        The same rule applies to a frame with at least 32 count columns.
    location : "auto" or bool, default="auto"
        Whether to fit location effects: within clusters, the means of the numeric columns depend on
        the discrete columns. "auto" fits location effects if they raise F by more than their
        effective degrees of freedom.
    noise : float or "auto", default=0.0
        Share of a noise component for outliers, which are samples far from all clusters; at most
        0.2. Samples with a noise probability above 0.5 are set aside: the clusters are then fitted
        again, without these samples. In known group z, the noise density of the numeric columns is
        :math:`N(\mu_z, 9 S)`. Here :math:`\mu_z` is the mean of the group, and S the covariance of
        the residuals with the ridge of the fit. The noise probabilities of a discrete column are
        its marginal in the group.

        "auto" uses noise with a share of 0.02 if this improves the objective by more than
        max(10, n/10) nats. The exceptions are tables with a numeric, ordered or count column whose
        rounding errors are more than a quarter of its residual variance. Rare values of such a
        column resemble noise, so "auto" uses no noise. With 0, there is no noise, and `fit` warns
        if "auto" would set samples aside. Rows of `nrprob.stored` require 0. Refits of
        `nrprob.evidence` have no noise.
    weights : {"auto", "uniform", "free", "by_group"}, default="auto"
        Weights of the clusters. "uniform" weights favour clusters of similar size. "free" weights
        detect minority clusters, but may prefer a few outliers to the actual clusters. "by_group"
        fits cluster shares for every known group, with a Dirichlet prior; this requires effects
        that are fitted jointly. With ``balance``, weights are uniform. "auto" selects as follows.

        - A fit with shares by group and random effects has to meet three conditions. F exceeds F
          with "subtract" by more than 1.5 margins (see ``effects``) plus
          :math:`\frac{1}{2} (K - 1) \sum_z \log n_z` nats. The mean entropy of the memberships is
          lower by more than log(K)/10 or by more than 30 %. The gain over common free weights
          exceeds the penalty on the additional parameters. If ``effects`` is "random" or "fixed",
          or if the median group has fewer than 20 samples, only the gain over common shares counts.
        - A fit with free weights and subtracted means also has to meet two conditions. The
          objective is lower than with uniform weights by more than (K - 1)/2 log n nats. The mean
          entropy of the memberships is lower by more than log(K)/10, or the clusters are almost the
          same (adjusted Rand index above 0.8).
        - Otherwise, weights are uniform.
    balance : float, default=0.0
        Weight :math:`\kappa` of the penalty on unequal cluster shares within known groups. Raise it
        if you know that clusters are equally frequent in every group; ``np.inf`` makes the shares
        equal. Continuous or soft known structure, "free" weights and weights "by_group" require 0.
        At most 10**9, or infinite.
    ridge : float, default=3.0
        Factor of the Ledoit-Wolf ridge. Raise it for few rows and many columns; lower it if the
        errors vary much more in one direction than in others. 0 means no ridge. At most 10**9.
    whitening_exponents : sequence of {float, "kurtosis"}, default=(0, 0.5, 1)
        Metrics of the k-means that initialises the restarts. Along each principal axis, residuals
        are divided by their standard deviation to the power of the exponent, from 0 (unchanged) to
        1 (whitened). The entry "kurtosis" uses the n_clusters - 1 directions of the smallest
        kurtosis (FOBI); tables with discrete columns or missing values ignore this entry. At most
        100 entries.
    aligned : bool, default=True
        Whether some restarts start from k-means within every known group, with clusters matched
        between groups. Tables with discrete columns or missing values ignore this parameter: such
        restarts are used if known groups have at least five samples per cluster, on average.
    warm_up : bool, default=True
        Whether every initial value is used a second time, after a warm-up of at most 30 EM steps.
        In a warm-up, the cluster shares are equal in every known group. Tables with discrete
        columns or missing values ignore this parameter, and always use warm-ups.
    successive_halving : bool, default=True
        Whether to search large data sets (n x columns x K above 262,144) by successive halving:

        1. All restarts take ten EM steps in float32 on a subsample, after warm-ups of at most ten
           steps. The subsample has 4096 rows, or 256 per cluster if this is more, and is stratified
           by known group.
        2. The best tenth of the restarts, by the objective on all rows, take twenty further steps
           on all rows. At least 3 restarts continue, and their clusters are distinct (adjusted Rand
           index below 0.95).
        3. The best two run to convergence. The other restarts stop unconverged.

        For tables with discrete columns or missing values, all steps are in float64, and warm-ups
        have up to 30 steps. Step 1 imputes missing numbers by their expectations in a model of one
        component. The best three distinct restarts of the subsample run to convergence. With M
        patterns of missing values and d numeric columns, 16 (M - 1) d**2 adds to the size. Data
        sets of at most 4096 rows are their own subsample. The result has at most three restarts,
        and ``init`` need not be among them; pass False to run all restarts to the end.
    init : array-like of shape (n_samples,), optional
        Initial labels, which replace the first of the other initial values.
    multi : {"product", "additive"}, default="product"
        How several known labelings are combined. With "product", every combination of labels is a
        group. With "additive", the effects of the labelings add up; they are fitted by least
        squares. Prefer "additive" if combinations have few rows.
    n_init : int or "auto", default="auto"
        Number of restarts per error distribution; the restart of the smallest objective is
        retained. "auto" means 60 for complete numeric tables, and 72 for tables with discrete
        columns or missing values. The restarts alternate between all combinations of whitening
        exponent, type of k-means (all rows, or within groups) and warm-up: 12 combinations by
        default. If there are numeric and discrete columns, k-means also alternates between the
        numeric columns, the discrete columns, and both. At most 10**6.
    max_iter : int, default=300
        Maximum number of EM steps per restart, without its warm-up; at most 10**6.
    tol : float, default=1e-3
        A restart has converged when memberships and objective (in nats) change by less than
        ``tol`` in an EM step.
    random_state : int, RandomState instance or None, default=None
        Seed of the initial values.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        p(cluster given row).
    means_ : ndarray of shape (n_clusters, n_numeric)
        Centres of the clusters in the numeric columns, in units of X, relative to the effects of
        the groups.
    covariance_ : ndarray of shape (n_numeric, n_numeric)
        Covariance of the errors; for t errors, nu / (nu - 2) :math:`\Sigma`. The covariance is
        singular if the residuals do not vary in all directions of X, or if they were projected (see
        Notes).
    effects_ : ndarray of shape (n_groups, n_numeric) or (n_coefficients, n_numeric)
        Effects of the known groups, in the order in which the groups first appear. The effects
        include the mean of the whole table. For continuous or additive known structure:
        coefficients of the linear model, the constant first.
    effects_kind_ : {"subtract", "fixed", "random"}
        How the effects were estimated.
    effects_covariance_ : ndarray of shape (n_numeric, n_numeric)
        Covariance T of the effects. The attribute exists for effects that were fitted jointly, and
        for tables with discrete columns or missing values.
    effects_gain_ : float
        F of the best joint fit of effects and clusters less F with subtracted means, in nats; 0 for
        fixed effects, and if there was no joint fit.
    shares_ : ndarray of shape (n_groups, n_clusters)
        Shares of the clusters by known group.
    tables_ : dict of pandas.DataFrame
        For every discrete column, the probabilities of its values by cluster, averaged over groups.
    location_ : pandas.DataFrame or None
        Location effects B on the numeric columns; None if the fit has none.
    columns_ : dict
        Type of every column: "number", "categorical", "ordered", "count" or "constant".
    n_missing_ : ndarray of shape (n_features,)
        Number of missing values of every column.
    noise_ : float
        Share of noise in the model; 0 without noise.
    noise_gain_ : float
        Improvement of the objective by noise, in nats; 0 for ``noise=0``. The objectives with and
        without noise are both the best of 20 EM steps from the five best distinct optima, with
        subtracted group means.
    noise_probability_ : ndarray of shape (n_samples,)
        Probability that a sample is noise; only for rows in memory. ``membership_`` is conditional
        on not being noise.
    outliers_ : ndarray of shape (n_samples,)
        Whether a sample was set aside as an outlier; only for rows in memory. An outlier has the
        label of its nearest cluster. In every known group, at least the sample of the smallest
        noise probability is not set aside.
    decisions_ : dict
        Quantities that determined the choice of location effects, group effects and shares: gains
        and thresholds in nats, and mean entropies of the memberships divided by log(K).
    objective_ : float
        Minimised objective in nats, ``penalty_ - log_likelihood_``; for joint fits, it is -F in
        units of X. Compare it only between fits of the same ``effects_kind_``.
    log_likelihood_ : float
        Log likelihood. For complete numeric tables with subtracted means: sum over the residuals,
        times (n - L)/n. Otherwise: sum over the samples, at the posterior means of the effects.
    penalty_ : float
        Part of the objective due to priors and penalties: ridge, balance, rounding errors and, for
        joint fits, the priors of effects and shares.
    weights_ : ndarray of shape (n_clusters,)
        Weights :math:`\pi_c` of the clusters.
    shrinkage_ : float
        Shrinkage intensity of Ledoit and Wolf for the residuals; only for complete numeric tables.
    errors_ : {"gaussian", "t"}
        Error distribution of the selected model.
    n_components_ : int
        Dimension of the coordinates in which the residuals were fitted.
    objective_margin_ : float
        Difference in nats between ``objective_`` and the objective of the best restart with
        different clusters (adjusted Rand index below 0.8); infinite if all restarts agree.
    optima_ : xarray.Dataset
        Distinct optima among the restarts, the best first, at most ten. The adjusted Rand index
        between any two of them is below 0.8. ``gap`` is the objective of an optimum less the
        objective of the best one, in nats. ``cluster_sizes`` and ``labels`` describe its clusters.
    start_table_ : pandas.DataFrame
        One row per restart: type of initial values, objective, convergence and number of EM steps.
    <restarts_>
    <n_clusters_>
    number_ : nrprob.evidence.NumberOfClusters
        Selection of the number of clusters; only for ``n_clusters="auto"``.
    objective_trace_ : ndarray
        Objective of the best restart after every EM step, without its warm-up. The trace has the
        first 511 steps and the last. For finite ``balance``, it never increases by more than the
        error of the balancing sweeps.
    <n_iter_>
    <converged_>
    <n_features_in_>
    <feature_names_in_>
    <classes_>

    Warns
    -----
    DegenerateClusterWarning
        If a known group has a single row; if all samples of a cluster are in one known group; or if
        the memberships of a sample are nearly equal for all clusters, on average over the samples.
    nrprob.exceptions.SingleFeatureWarning
        If one discrete feature y, such as a boolean column, determines the clusters c: the ratio
        I(c; y) / H(c) of mutual information and entropy is above 0.7. With three or more clusters,
        also if y determines one of them.
    UserWarning
        If measurements are skewed, so that their logarithms form Gaussian clusters better (see
        ``log`` of `nrprob.prepare`); if the objectives of two solutions with different clusters
        differ by less than 1 nat; if a covariance matrix per cluster fits a complete numeric table
        much better and changes the clusters; if the samples of some known groups of such a table
        vary twice as much as samples of other groups, or do not vary within clusters; if clusters
        depend strongly on a known covariate, whose effect may not be linear; if there are outliers,
        and ``noise=0``; if cluster shares differ between known groups; if means of small groups are
        subtracted, or if subtracted means contain a part of the differences between clusters; if
        the proportion of missing values differs significantly between clusters; or if a new sample
        has a value that did not occur in `fit`.

    See Also
    --------
    ResidualSpectral : Clusters of counts, such as text, after removing known structure.
    MDLMixture : Bayesian mixture with an unknown number of components.
    CCIB : Information bottleneck conditional on known structure.
    nrprob.evidence.test : Significance test of the fitted clusters.

    Notes
    -----
    The algorithm has these steps:

    1. Regress X on the known structure by least squares; inflate the residuals.
    2. Compute coordinates in which the ridged covariance of the residuals is the identity.
    3. Initialise restarts by k-means of all rows and by k-means within each known group, in several
       metrics. Clusters of different groups are matched by their centres.
    4. Run EM from every initial value, and for some of them after a balanced warm-up. E-step:
       memberships, with scaling iterations if ``balance`` > 0. M-step: centres, :math:`\Sigma`,
       :math:`s_0` and weights.
    5. Retain the restart of the smallest objective.

    Joint fits of effects and clusters start from the result of step 5, from k-means of the
    residuals, and from a fit without known groups.

    With p coordinates, an EM step costs :math:`O(n p K + p^3)`, and :math:`O(n p^2)` more for t
    errors. The memory is :math:`O(n (p + K))` per parallel restart. With M different
    patterns of missing values, a step costs :math:`O(M p^3)` more, and restarts need
    :math:`O(M p^2)` more memory. EM never increases the objective.

    The ridge and the metric of exponent 0 depend on the units of the columns: standardise columns
    of different units. If residuals vary in more than (n - L)/2 directions, ``covariance="tied"``
    projects them on their first min(30, (n - L)/2) principal components.

    Known structure may be labels, several labelings, `nrprob.known.Memberships` or continuous
    covariates. New rows need the same type of known structure. If known structure is not labels,
    groups are derived from it for the initial values of ``aligned``. Tables with discrete columns
    or missing values require labels, normal errors, ``balance=0``, and ``multi="product"`` for
    several labelings.

    Rows of `nrprob.stored` are fitted by EM steps over all rows. The initial parameters come from a
    subsample of :math:`2^{13}` rows or more in memory. With discrete columns, "auto" chooses
    effects and shares by this subsample; otherwise it subtracts group means. With discrete columns
    or joint effects, only the best optimum of the subsample is continued. ``restarts_`` and
    ``optima_`` then have one entry, and ``objective_margin_`` is an estimate from the subsample.
    Location effects, missing values, noise, ``balance`` and ``init`` need all rows in memory.

    The rounding step of a column is the median difference between consecutive distinct values. A
    column with very unequal differences counts as not rounded. So does a column whose
    :math:`h_j^2 / 12` is below 0.001 of its residual variance. Fits of stored rows have no
    correction for rounding. In mixed or incomplete tables and joint fits, numeric columns that
    depend linearly on each other, such as copies, have a rounding variance of at least 1e-6 of
    their residual variance.

    Values are assumed to be missing at random, given the observed values and the known group. The
    objectives of normal and t errors are comparable, because both are densities of the same
    residuals with the same weights.

    References
    ----------
    H. P. Friedman and J. Rubin (1967), "On some invariant criteria for grouping data", Journal of
    the American Statistical Association 62, doi:10.1080/01621459.1967.10500923. The determinant
    criterion is the limit of hard memberships.

    O. Ledoit and M. Wolf (2004), "A well-conditioned estimator for large-dimensional covariance
    matrices", Journal of Multivariate Analysis 88, doi:10.1016/S0047-259X(03)00096-4.

    G. J. McLachlan and D. Peel (1998), "Robust cluster analysis via mixtures of multivariate
    t-distributions", Advances in Pattern Recognition, for t errors.

    L. Chizat, G. Peyré, B. Schmitzer and F.-X. Vialard (2018), "Scaling algorithms for unbalanced
    optimal transport problems", Mathematics of Computation 87, doi:10.1090/mcom/3303, for the
    balance.

    L. A. Hunt and M. A. Jorgensen (1999), "Mixture model clustering using the MULTIMIX program",
    Australian and New Zealand Journal of Statistics 41, doi:10.1111/1467-842X.00071, for location
    effects of categorical columns.

    J. D. Banfield and A. E. Raftery (1993), "Model-based Gaussian and non-Gaussian clustering",
    Biometrics 49, doi:10.2307/2532201, for mixtures with a noise component.

    T. P. Minka (2000), "Estimating a Dirichlet distribution", for shares by group.

    J.-F. Cardoso (1989), "Source separation using higher order moments", IEEE International
    Conference on Acoustics, Speech, and Signal Processing, for FOBI.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ConditionalMixture
    >>> rng = np.random.default_rng(0)
    >>> known, hidden = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 6 * hidden
    >>> model = ConditionalMixture(2, random_state=0).fit(X, known=known)
    >>> agreement = (model.labels_ == hidden).mean()
    >>> bool(max(agreement, 1 - agreement) > 0.95)
    True
    """

    n_clusters: parameters.ClustersOrAuto = 2
    _: KW_ONLY
    covariance: Annotated[str, parameters.Choice(COVARIANCES)] = "tied"
    errors: Annotated[str, parameters.Choice(ERRORS)] = "gaussian"
    nu: Annotated[float, parameters.Number(2.001, 1e9)] = 8.0
    effects: Annotated[str, parameters.Choice(EFFECTS)] = "auto"
    categorical: Annotated[Any, parameters.Checked(_check_columns)] = "auto"
    ordered: Annotated[Any, parameters.Checked(_check_columns)] = "auto"
    location: Annotated[Any, parameters.Checked(_check_location)] = "auto"
    noise: Annotated[Any, parameters.Checked(check_noise)] = 0.0
    weights: Annotated[str, parameters.Choice((*WEIGHTS, "by_group"))] = "auto"
    balance: Annotated[float, parameters.Number(0, 1e9, infinite=True)] = 0.0
    ridge: Annotated[float, parameters.Number(0, 1e9)] = 3.0
    whitening_exponents: tuple[float, ...] = (0.0, 0.5, 1.0)
    aligned: parameters.Flag = True
    warm_up: parameters.Flag = True
    successive_halving: parameters.Flag = True
    init: Any = None
    multi: parameters.Combination = "product"
    n_init: Annotated[Any, parameters.Number(1, ITERATIONS, integer=True, words=("auto",))] = "auto"
    max_iter: parameters.Count = 300
    tol: parameters.Tolerance = 1e-3
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    capabilities = Capabilities(known=KINDS, weights=True, finds_number=True, mixed=True)
    _rarely_finite = ("objective_margin_",)
    _warns_of_single_feature = True

    # Input

    def check_parameters(self):
        """Raise ValueError for parameter values that are invalid for every table."""
        super().check_parameters()
        exponents = self.whitening_exponents
        if isinstance(exponents, str) or np.ndim(exponents) != 1 or len(exponents) == 0:
            raise ValueError(
                "whitening_exponents must be a sequence of numbers from 0 to 1 or 'kurtosis'; got "
                f"{short_repr(exponents)}; pass for example (0, 0.5, 1)"
            )
        if len(exponents) > 100:
            raise ValueError(
                "whitening_exponents must have at most 100 entries; got "
                f"{len(exponents)}; pass fewer"
            )
        for exponent in exponents:
            if exponent == "kurtosis":
                continue
            self._check_number("whitening_exponents", exponent, low=0, high=1)
        if self.balance > 0 and self.weights in ("free", "by_group"):
            raise ValueError(
                "balance favours equal cluster shares and needs uniform weights; got "
                f"balance={self.balance} and weights={self.weights!r}; leave one of them out"
            )
        joint = self.effects in ("fixed", "random") or self.weights == "by_group"
        if joint and (self.balance > 0 or self.errors != "gaussian"):
            raise ValueError(
                "group effects that are fitted with the clusters need errors='gaussian' and "
                f"balance=0; got errors={self.errors!r} and balance={self.balance}; pass "
                "effects='subtract', and weights other than 'by_group'"
            )
        if self.weights == "by_group" and self.effects == "subtract":
            raise ValueError(
                "weights='by_group' needs group effects that are fitted with the clusters, since "
                "group means contain the shares; got effects='subtract'; pass effects='random'"
            )

    @property
    def _n_restarts(self) -> int:
        return _N_INIT if self.n_init == "auto" else self.n_init

    @property
    def _n_table_restarts(self) -> int:
        """Number of restarts of a mixed or incomplete table."""
        return _N_INIT_MIXED if self.n_init == "auto" else self.n_init

    def prepare(self, X, y, known=None, sample_weight=None) -> Any:
        """Check the input, and return the task of the fit, which `_lay_out_fit` makes."""
        self.check_parameters()
        self._check_one_device()
        table = replace(self._read_table(X, reset=True), mass=sample_weight)
        n = table.n_samples
        self._check_size(n)
        fixed = self._target_clusters(y, n)
        self._encoder = DesignEncoder(self.multi)
        design = self._encoder.fit(known, n, sample_weight)
        self._check_groups(design)
        self._fitted, self._units, self._columns = None, None, table.columns
        self._is_balanced = self.balance > 0
        initial = None
        if self.init is not None:
            labels = entries_with_weight(self, np.asarray(self.init))
            initial = encode_init(labels, n, self.n_clusters)
        return self._lay_out_fit(table, design, fixed, initial)

    def _lay_out_fit(self, table: TableInput, design: Design, fixed, initial) -> Any:
        """Make the task of a fit: a `TableTask` or a `ResidualTask`.

        A mixed or incomplete table has a `TableTask`. For a complete numeric table, the method
        subtracts the effects of the known structure, and makes a `ResidualTask`. ``fixed`` (n,) are
        the classes of labelled samples, else -1. ``initial`` (n,) are initial labels. Either of the
        two may be None.
        """
        if table.plain is None:
            return self._prepare_table(table, design, fixed, initial)
        X = table.plain
        r, self._removal = fit_removal(X, design, table.mass)
        if self.balance > 0 and design.kind not in ("nothing", "labels"):
            raise ValueError(
                f"balance needs known groups; got balance={self.balance} and {design.description}; "
                "set balance=0, or pass labels"
            )
        dof = total_weight(len(X), table.mass) - self._removal.rank
        square = float(np.mean(np.square(X, dtype=np.float64)))
        self._check_left(design, dof, float(np.mean(r**2)), square)
        variances = scale_rows(r**2, table.mass).sum(0) / dof
        rounding = rounding_variances(X, variances)
        task = self._lay_out(r, dof, design, fixed, X.dtype, initial, rounding, table.mass)
        task.source, task.initial = (table, design, fixed), initial
        task.is_coarse = is_coarse(rounding, variances)
        task.calls = self._solver_calls(task)
        if self._fits_effects(design):
            task.joint = X, design, fixed, table.mass
        return task

    def _fits_effects(self, design: Design) -> bool:
        """Whether joint fits of group effects and clusters are possible.

        Raises ValueError if the parameters require a joint fit, and there are no known groups.
        """
        groups = design.kind == "labels" and design.columns is None and design.n_groups > 1
        if not groups and (self.effects in ("fixed", "random") or self.weights == "by_group"):
            raise ValueError(
                "group effects that are fitted with the clusters need known groups; got "
                f"{design.description} and multi={self.multi!r}; pass labels, or "
                "effects='subtract'"
            )
        simple = self.errors == "gaussian" and self.balance == 0
        return groups and simple and self.n_clusters > 1

    def compute(self, task: Any) -> list[Any]:
        """Compute the results of a task; see `Clusterer.compute`.

        `fit_table` fits mixed and incomplete tables. Compiled programs fit the residuals of
        complete numeric tables.
        """
        if not isinstance(task, TableTask):
            return super().compute(task)
        return [
            fit_table(
                task.data, self.n_clusters, self._choices(), covariance=self.covariance,
                ridge=self.ridge, n_init=self._n_table_restarts,
                tol=self.tol, max_iter=self.max_iter, successive_halving=self.successive_halving,
                rng=np.random.default_rng(
                    check_random_state(self.random_state).randint(2**31 - 1)
                ),
                initial=task.initial,
                set_aside=partial(self._has_table_noise, task) if task.seeks_noise else None,
            )
        ]  # fmt: skip

    @property
    def _takes_stored(self) -> bool:
        return True

    def _fit_stored(self, rows, y, known=None):
        if self.init is not None:
            raise ValueError(
                "init requires rows in memory; got init and stored rows; leave init out"
            )
        from nrprob.methods.conditional.stored import fit_mixture

        # An earlier fit of rows in memory has set these attributes.
        for name in ("noise_probability_", "outliers_"):
            self.__dict__.pop(name, None)
        return fit_mixture(self, rows, y, known)

    def _validate(self, X, *, reset: bool):
        if sparse.issparse(X):
            raise TypeError(
                "Sparse input is not supported, since residuals of sparse rows are dense; got a "
                "sparse matrix; pass X.toarray(), or use ResidualSpectral for counts"
            )
        X = np.asarray(X) if isinstance(X, jax.Array) else X
        return self._check_rows(X, reset=reset, ensure_all_finite="allow-nan")

    def _check_magnitude(self, X, *, reset: bool) -> None:
        super()._check_magnitude(np.nan_to_num(X), reset=reset)

    def _check_groups(self, design: Design) -> None:
        sizes = np.bincount(design.codes)
        single = int((sizes == 1).sum())
        if design.kind == "labels" and 0 < single < design.n_samples:
            self._warn_degenerate(
                f"{single} known group(s) have a single member, whose residual is 0, so it carries "
                "no information about the clusters; got group sizes down to 1; merge small groups "
                "if such rows matter"
            )
        else:
            super()._check_groups(design)

    # Results

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        others = self._set_aside(task, result)
        if others is None:
            self._finish(task, result)
        else:
            # The clusters are fitted again, without the outliers and without noise.
            self._finish(others, self.compute(others))
            self._restore(task)
        return self

    def _finish(self, task, result) -> None:
        """Set all fitted attributes except those that describe noise."""
        if isinstance(task, TableTask):
            self._finish_table(task, result[0])
            self._start_kinds = start_kinds(task.data, self.n_clusters, self._start_exponents)
        else:
            self._start_kinds = None
            self._finish_numbers(task, result)
        self._set_objective_margin(self._restarts.labels)
        entropy = entr(self.membership_).sum(1).mean() / np.log(max(self.n_clusters, 2))
        self._warn_equal_clusters(float(entropy))
        self._shares_differ = False
        if self._encoder.has_columns_:
            return
        weights = task.table.mass if isinstance(task, TableTask) else task.weights
        table = cross_table(
            task.design.codes, self.labels_, (task.design.n_groups, self.n_clusters), weights
        )
        simple = self.errors == "gaussian" and self.balance == 0
        reason = f"group means with errors={self.errors!r} and balance={self.balance:g}"
        means_suffice = self._warn_groups(table, "" if simple else reason)
        self._warn_joint()
        if means_suffice and simple and not warnings_are_ignored():
            if not isinstance(task, TableTask):
                if task.joint is not None:
                    data, _, problem, held = self._held_fit(*task.joint)
                    self._warn_gain(data, problem, held, Form(False, False, False))
            elif task.data.x is not None:
                decision = result[0]
                form = decision.form._replace(held=False)
                self._warn_gain(task.data, decision.problem, decision.end, form)
        numeric = not isinstance(task, TableTask) and weights is None
        if numeric and self.errors_ == "gaussian" and not warnings_are_ignored():
            residuals = task.source[0].cells - self.effects_[task.design.codes]
            warn_of_separate_covariances(residuals, self.labels_, self.n_clusters)
            warn_of_group_spreads(residuals, self.labels_, task.design.codes)

    def _finish_numbers(self, task, result) -> None:
        """Set the fitted attributes of a complete numeric table."""
        restarts, best = collect_restarts(result, task.layout)
        self._store_results(
            restarts,
            membership=solution_memberships(best, task.layout, self.n_clusters),
            trace=best.trace,
            n_iter=best.n_iter,
        )
        kinds = [dict(call.static)["robust"] for call in task.calls]
        robust = kinds[next(i for i, solution in enumerate(result) if solution is best)]
        self._search_restarts = restarts
        self._steps = np.concatenate([solution.fit.steps for solution in result])
        self._freed = [bool(solution.fit.free) for solution in result]
        self._set_parameters(best.fit, task.hyperparameters, robust, task.design.n_groups)
        self._set_subtraction(task.design)
        if task.joint is not None and self.effects != "subtract":
            self._fit_joint(*task.joint)

    def _set_subtraction(self, design: Design) -> None:
        """Set the fitted attributes of joint fits to their values for subtracted group means."""
        self.effects_kind_, self.effects_gain_, self.decisions_ = "subtract", 0.0, {}
        self.shares_ = np.tile(self.weights_, (design.n_groups, 1))
        self.columns_ = {} if self._columns is None else self._columns.kinds
        self.n_missing_ = np.zeros(self.n_features_in_, int)
        self.tables_, self.location_ = {}, None

    def _set_parameters(
        self, fit: Fit, hyperparameters: Hyperparameters, robust: bool, n_groups: int
    ) -> None:
        """Set the fitted attributes that follow from the parameters of the best restart."""
        self.log_likelihood_, self.penalty_ = float(fit.log_likelihood), float(fit.penalty)
        self.errors_ = "t" if robust else "gaussian"
        log_weights = np.asarray(fit.log_weights[: self.n_clusters], np.float64)
        self.weights_ = np.exp(log_weights - logsumexp(log_weights))
        self._log_weights = log_weights
        coordinates = self._coordinates
        p = coordinates.basis.shape[1]
        self._centres = np.asarray(fit.centres[: self.n_clusters, :p], np.float64)
        sigma = np.asarray(fit.covariance, np.float64)
        self._sigma = sigma[:p, :p] if sigma.ndim == 2 else np.diag(sigma[:p])
        self._offset = np.asarray(fit.offset[: self.n_clusters, :n_groups], np.float64)
        # `_common` is the constant part of the log densities in the coordinates of the fit,
        # including -log K. `_log_unit` converts log densities to units of X.
        self._common = self._log_constant(hyperparameters, self.errors_) / float(
            hyperparameters.dof
        )
        self._common -= 0.5 * np.linalg.slogdet(self._sigma)[1]
        self._log_unit = 0.5 * float(hyperparameters.log_det)
        self.means_ = self._centres @ coordinates.back / coordinates.inflation
        heavier = self.nu / (self.nu - 2) if robust else 1.0
        self.covariance_ = heavier * coordinates.back.T @ self._sigma @ coordinates.back
        self.effects_, self._level = self._removal.effects, self._removal.level
        self.n_components_ = p
