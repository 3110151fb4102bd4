"""MDLMixture: Bayesian mixture with an unknown number of components, sampled by MCMC."""

from __future__ import annotations

import os
import time
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np

from nrprob.data.validation import (
    CLUSTERS,
    check_random_state,
)
from nrprob.engines.placement import small_steps_on_cpu
from nrprob.engines.sample.chains import PartitionKernel, default_kernel, dispersed
from nrprob.engines.sample.checkpoints import CheckpointedChains
from nrprob.estimator import parameters
from nrprob.estimator.capabilities import KINDS, Capabilities
from nrprob.exceptions import short_repr
from nrprob.methods.bayes import starts
from nrprob.methods.bayes.covariance_selection import choose_covariance, shortest_lengths
from nrprob.methods.bayes.draws import MAX_DRAWS, pool_draws
from nrprob.methods.bayes.feature_models import SampledGaussian
from nrprob.methods.bayes.inputs import SampledRows
from nrprob.methods.bayes.joint_target import JointKernel
from nrprob.methods.bayes.predictive import leave_one_out
from nrprob.methods.bayes.sampling import SampledChains
from nrprob.posterior.merging import LEAST_DIP, check_threshold
from nrprob.statistics.features import check_range

FLOORS = (0.1, 0.2, 0.4)
# Default number of split-merge proposals in an iteration, and the number of samples above which it
# decreases.
_N_SPLIT_MERGE, _MODERATE = 10, 30_000
_N_PILOT = 200  # iterations of pilot chains, the first half of which is warm-up
_SIZE = parameters.Number(1, CLUSTERS, integer=True, words=("auto",))
_POSITIVE = parameters.Number(1e-9, 1e9)
_POSITIVE_OR_AUTO = parameters.Number(1e-9, 1e9, words=("auto",))


@parameters.constructor
class MDLMixture(SampledChains):
    r"""Bayesian mixture with an unknown number of components.

    MCMC samples partitions of the samples into components. Some samples may have known classes. A
    partition into k components has the description length

    .. math:: L = A(k) + \sum_{j=1}^k \phi(\text{component}_j)

    and the posterior probability proportional to :math:`e^{-L}`, for every k up to
    ``max_clusters``. Here A(k) is a function of the number of components, and :math:`\phi` the code
    length of the features, the classes and the size of a component. If components share one
    covariance, their features have a joint code length instead of a sum. The parameters of the
    components are integrated out. Under the default ``energy="conjugate"``, :math:`\phi` is minus
    the log marginal likelihood, so that :math:`e^{-L}` is prior times likelihood. Predictions
    average over the draws. A cluster is one component, or several components that are not separated
    by a dip of the density; see ``merge``.

    Parameters
    ----------
    max_clusters : int or "auto", default="auto"
        Largest number of components. "auto" is 20, or the number of samples if that is less. With
        "auto", `fit` warns if more than 5 % of the draws have 20 components.
    kernel : {"collapsed", "six-move"}, default="collapsed"
        Sampler. "collapsed" samples partitions with the parameters of components integrated out.
        "six-move" also samples the parameters, by the moves of Yin (2007) with corrected acceptance
        probabilities. With "six-move" and ``energy="nml"``, parameters are uniform within bounds,
        and components may be empty.
    energy : {"auto", "nml", "conjugate"}, default="auto"
        Code of a component. "conjugate" has conjugate priors; both kernels then sample from the
        same posterior if ``mean_precision``, ``variance_shape`` and ``variance_scale`` are numbers
        and ``covariance="diag"``. "nml" is normalised maximum likelihood of the features, of the
        classes and of the component labels; Gaussian features are independent, with bounded
        parameters. "auto" is "nml" with ``kernel="six-move"``, and otherwise "conjugate".
    covariance : {"auto", "diag", "full", "shrunk", "tied"}, default="auto"
        Covariance of a component. "diag" and "full": one for each component. "shrunk": one for each
        component, shrunk to a common covariance. "tied": one for all components; continuous
        features with ``known`` need it. All but "diag" need ``energy="conjugate"`` and
        ``kernel="collapsed"``. "auto" is "tied" with ``known``, and "diag" if no other is
        available. Otherwise "auto" compares the description lengths of partitions by EM under
        "diag", "tied", and "full" or "shrunk". "auto" chooses "full" or "shrunk" only if the length
        is shorter than under "diag" and "tied" by more than 3 nats. With m features, "auto"
        compares "shrunk" instead of "full" if m is 11 to 30 or if there are fewer than m (m + 1)
        samples, and neither if m is above 30.
    likelihood_power : float, default=1.0
        Likelihood tempering exponent of continuous features. Values below 1 allow clusters that are
        not quite Gaussian, and keep skew clusters from being split into components; see Notes.
        Needs ``energy="conjugate"`` and ``kernel="collapsed"``. From 0.01 to 1.
    errors : {"gaussian", "t"}, default="gaussian"
        Distribution of continuous features about the centre of a component. With "gaussian",
        outliers become separate components. With "t", each sample has a latent scale weight, and
        the degrees of freedom are sampled; this takes about twice the time. Needs
        ``energy="conjugate"`` and ``kernel="collapsed"``. The choice of ``covariance="auto"``
        assumes Gaussian errors.
    transformation : {"identity", "yeo-johnson"}, default="identity"
        Transformation after which continuous features are Gaussian within components. With
        "yeo-johnson" each feature has a lambda, which is sampled, so that components may be skew in
        the same way; see Notes. Needs ``energy="conjugate"`` and ``kernel="collapsed"``.
    variance_floor : float or "auto", default="auto"
        Smallest standard deviation of a component, in units of the standard deviation of all
        samples (``energy="nml"``). The floor acts as a prior: the posterior depends on the floor.
        "auto" is the value of 0.1, 0.2 and 0.4 with the largest leave-one-out probability of the
        classes ``y``, or 0.2 with fewer than two classes. From 1e-6 to 100.
    concentration : float or "auto", default="auto"
        Concentration of the symmetric Dirichlet prior of component sizes (``energy="conjugate"``).
        Large values favour components of similar size. "auto" samples it. If no hyperparameter is
        sampled, as for counts or ``kernel="six-move"``, "auto" is 1. From 1e-9 to 1e9.
    class_concentration : float or "auto", default="auto"
        Concentration of the symmetric Dirichlet prior of the classes of a component. Near 0, each
        component has one class; 1e-6 suits classes without errors. "auto" samples it, so that it
        adapts to wrong classes. If no hyperparameter is sampled, "auto" is 0.5. From 1e-9 to 1e9.
    mean_precision : float or "auto", default="auto"
        Precision :math:`\kappa` of the prior of a component's mean: the prior counts as
        :math:`\kappa` samples. "auto" samples it. From 1e-9 to 1e9.
    variance_shape, variance_scale : float or "auto", default="auto"
        Inverse-gamma prior of the variances of a component, in units of the variances of all
        samples; two numbers, or "auto" for both. "auto" samples them. With ``kernel="six-move"``,
        "auto" is 2 for the shape, 0.5 for the scale and 0.3 for ``mean_precision``. From 1e-9 to
        1e9. With the collapsed kernel, the shape must be above 1 if ``mean_precision`` is "auto",
        or ``covariance`` is "shrunk" or "tied".
    features : {"auto", "gaussian", "multinomial", "bernoulli"}, default="auto"
        Type of the features: continuous, counts (the tokens of each sample), or binary. "auto"
        detects it from the values; it is "gaussian" if ``kernel`` or ``covariance`` is not at its
        default.
    feature_concentration : float, default=0.5
        Concentration of the Dirichlet prior of the probabilities of counts or binary features
        (``energy="conjugate"``). From 1e-9 to 1e9.
    coordination_weight : float or "auto", default="auto"
        With ``known`` and counts or binary features: weight of a second code of the features, of
        each cluster pooled over all known groups. The second code makes a cluster similar in all
        groups; see Notes. From 0 to 1e6.
    multi : {"product", "additive"}, default="product"
        How several known labelings combine: each combination of labels is a group, or, for
        continuous features, the effects of the labelings add up.
    unordered : bool, default=False
        Whether the prior treats components as a set, without labels. With False, as published, a
        partition of k components costs log k! nats for the labels, a factor 1 / k! as in a Poisson
        prior of mean 1 on k (Nobile and Fearnside, 2007). With True all k have about the same prior
        probability. With few samples, True often gives components of a single sample, and predicted
        classes are slightly more accurate.
    num_warmup : int, default=500
        Warm-up iterations (burn-in) of each chain; at most 1e8.
    num_samples : int or "auto", default="auto"
        Draws of each chain; at most 1e8. "auto" runs the chains until they have converged, or until
        ``max_samples`` or ``max_seconds``; see Notes. Pass an integer for a fixed run time.
    max_samples : int, default=16000
        Largest number of draws of each chain if ``num_samples="auto"``. If these draws would take
        more than 1 GB, the limit is the number of draws that take 1 GB, but at least 1,000. At most
        1e8.
    max_seconds : float, optional
        Time limit of `fit` in seconds, if ``num_samples="auto"``. `fit` always finishes the warm-up
        and about the first 100 draws. With a time limit, the result depends on the speed of the
        machine. At most 1e9.
    num_chains : int, default=4
        Number of chains, at most 10,000. With one chain, `fit` warns, since one chain cannot show
        that another mode was missed.
    init : {"auto", "dispersed", "subsample"} or array-like, default="auto"
        Initial partitions of the chains. "dispersed": one chain with a single component, another
        with ``max_clusters`` random components, and so on. "subsample" runs dispersed chains on
        4,000 samples for ``num_warmup`` iterations, and assigns each other sample to its most
        probable component. "auto" is "subsample" above 20,000 samples, and otherwise "dispersed".
        Up to 4,000 samples, "subsample" is the same as "dispersed". An array (n_samples,) or
        (n_starts, n_samples) of labels gives the initial partitions, which chains use in turn.
        R-hat is uninformative if all chains start at the same partition: pass several.
    thinning : int, default=1
        Iterations from one draw to the next; at most 1e6.
    num_split_merge : int or "auto", default="auto"
        Split and merge proposals in an iteration. "auto" is 10; above 30,000 samples the number
        decreases in inverse proportion. Proposals that would surely be rejected are not evaluated,
        which leaves the posterior unchanged. At most 10,000.
    block : int or "auto", default="auto"
        Samples whose labels a Gibbs move of the collapsed kernel updates together; 1 is the usual
        sweep. The block size does not change the posterior, but rejected blocks cost time;
        ``sample_stats_`` counts the rejected blocks. "auto" grows with the square root of the
        number of samples.
    prediction_rule : {"joint", "cond"}, default="joint"
        How `predict` averages over draws. "joint" weights each draw by its density of the features,
        which is Bayes' rule; "cond" is the plain average of p(y | x, draw).
    merge : {"dip", None}, default="dip"
        How components become clusters. "dip" merges components that are not separated by a dip of
        the density (`nrprob.posterior.clusters`), since clusters that are not Gaussian have several
        components. Components whose most frequent classes differ never merge. Components of counts
        or binary features merge by the probability that they exchange samples. With None, each
        component is a cluster.
    dip : float, default=0.5
        With ``merge="dip"``, two clusters are separate if the density between them falls below
        ``dip`` times their peaks. With 0.5, two equal Gaussian clusters are separate if their means
        are 3.3 standard deviations apart. Look at `nrprob.posterior.cluster_path` of the fit before
        changing it. Leave it at 0.5 for counts and binary features. From 0.001 to 1.
    loss : {"vi", "binder"}, default="vi"
        Loss whose posterior expectation ``labels_`` minimises.
    checkpoint : path-like, optional
        Folder to save the run in. `fit` with the same arguments resumes an interrupted run, with
        the result of an uninterrupted run.
    random_state : int, RandomState instance or None, default=None
        Seed of the random numbers; a number makes the result reproducible.
    verbose : int, default=0
        Above 0, show a progress bar.

    Attributes
    ----------
    posterior_ : xarray.Dataset
        Draws, over chain, draw and observation: ``components``, the labels of the sampled
        components, and their number ``n_components``; ``labels``, the labels of the clusters after
        merging; ``n_clusters``, the number of clusters of at least max(3, 0.02 n) samples, or of
        all clusters with ``merge=None``; ``log_density`` (the negative description length in nats),
        the sampled hyperparameters, and the parameters with ``kernel="six-move"``. With
        ``errors="t"``, the latent ``scale_weight`` that multiplies the precision of each sample
        (small for outliers), and ``inverse_df``, the reciprocal of the degrees of freedom (0 for
        Gaussian errors). With ``transformation="yeo-johnson"``, ``yeo_johnson_lambda`` of the
        features that vary. With ``covariance="shrunk"``, ``common_covariance``.
    sample_stats_ : xarray.Dataset
        Numbers of proposed and accepted moves of each type since the previous draw.
    labels_ : ndarray of shape (n_samples,)
        Point estimate: the partition into clusters of least expected loss. Its labels are not
        classes; `predict` returns classes. `fit` warns if most draws have another number of
        clusters.
    membership_ : ndarray of shape (n_samples, n_clusters_)
        Entry (i, c) is the share of samples of cluster c of ``labels_`` among the samples that are
        in the same cluster as sample i, averaged over the draws. The clusters are the clusters of
        the point estimate: with a single cluster in ``labels_``, every entry is 1, even if many
        draws have several clusters. `nrprob.posterior.coclustering` has no such limit.
    classes_ : ndarray of shape (n_classes,)
        Sorted classes in ``y`` of `fit`, if there were any.
    n_clusters_ : int
        Number of clusters of ``labels_``.
    n_major_clusters_ : int
        Number of clusters of ``labels_`` of at least max(3, 0.02 n) samples, and at least 1.
    objective_ : float
        Shortest description length of all draws, in nats, for the standardised features.
    objective_trace_ : ndarray of shape (n_draws,)
        Description lengths of the draws of one chain: the chain that has ``objective_``.
    r_hat_ : dict of str to float
        Rank-normalised R-hat of the description length and of the numbers of clusters and of
        components.
    diagnostics_ : pandas.DataFrame
        Mean, standard deviation, MCSE, effective sample sizes and R-hat of label-invariant
        quantities. The first rows use all draws: ``log_density``, ``n_clusters``, ``n_components``,
        the share of samples in the largest cluster (``largest_share``), and the variation of
        information to ``labels_`` (``vi``). Other rows of `nrprob.posterior.diagnose`, such as
        whether two samples share a cluster, use at most 256 evenly spaced draws of each chain. The
        row ``vi_between_chains`` has the mean variation of information between draws of different
        chains. Its `r_hat` is the square root of the ratio of this mean to the mean within chains
        (see `nrprob.posterior.chain_distances`).
    converged_ : bool
        Whether the chains agree; otherwise `fit` warns. With ``num_samples="auto"``, whether the
        stopping rule holds (see Notes); otherwise, whether all R-hat are below 1.05. With a fixed
        number of draws, `fit` also warns if a bulk effective sample size is below 100; this does
        not change ``converged_``. Agreement does not prove convergence: all chains may have missed
        the same mode.
    stopped_ : str
        Reason why sampling ended: "converged", "max_samples", "max_seconds"; "max_memory" if the
        limit of 1 GB ended the run before ``max_samples`` draws; "num_samples" after a fixed number
        of draws; or "interrupted" if the user interrupted `fit`.
    energy_, covariance_ : str
        Values in use, after "auto" is resolved.
    covariance_lengths_ : dict of str to float
        Shortest description lengths, in nats, by which ``covariance="auto"`` chose.
    variance_floor_ : float
        Value in use (``energy="nml"``).
    variance_floor_scores_ : dict of float to float
        Leave-one-out log probability of the classes, by which ``variance_floor="auto"`` chose.
    n_iter_ : int
        Iterations of each chain, including the warm-up.
    n_features_in_ : int

    See Also
    --------
    nrprob.posterior : Summaries of draws of partitions.
    nrprob.numpyro.partition : The mixture as a site of a NumPyro model.
    nrprob.MixtureEM : Mixture with a fixed number of components, by maximum likelihood.
    nrprob.ConditionalMixture : Point estimate of the model with ``known``.

    Notes
    -----
    *Prior.* There are n samples, of which :math:`n_j` are in component j, and d features. The
    partition z, an unordered set of k components, has the prior probability

    .. math:: p(z) \propto e^{\Lambda(k)} \prod_{j=1}^k
        \frac{\Gamma(n_j + \alpha)}{\Gamma(\alpha)}, \qquad
        \Lambda(k) = \log \frac{\Gamma(k \alpha)}{\Gamma(n + k \alpha)} + u \log k!, \quad k \leq K,

    where u is 1 if ``unordered`` and otherwise 0, :math:`\alpha` is ``concentration``, and K is
    ``max_clusters``. The table lists all priors of the model, with identity matrix I:

    ============================  =======================================  =======================
    quantity                      prior given the hyperparameters          hyperparameter, grid
    ============================  =======================================  =======================
    partition z                   Lambda(k) + sum log Gamma ratios, above  alpha: 0.1 to 100, 31
                                                                           values; 1 for counts,
                                                                           binary and six-move
    classes of a component        Dirichlet(beta) probabilities            beta: 0.001 to 3, 8
                                                                           values; 0.5 if alpha is
                                                                           not sampled
    mean of a component           N(0, S / kappa)                          kappa: 1e-10 to 1, 321
                                                                           values
    covariance S, "full", "tied"  inverse-Wishart(d + 1 + nu, nu s I)      nu: 1 to 50, 81 values
    variance of a feature,        inverse-gamma(1 + nu / 2, nu s / 2)      nu: 1 to 50, 81 values
    "diag"
    covariance, "shrunk"          inverse-Wishart(f, f S), f = d + 1 + nu  nu: 1 to 500, 97 values
    common covariance S,          Wishart(d + 2), mean s I
    "shrunk"
    expected variance s           uniform on its grid                      1e-8 to 1, 257 values
                                                                           ("shrunk": 129)
    offset of a known group,      N(0, S / omega)                          omega: 1e-10 to 3.2, 337
    coefficients of a covariate                                            values
    lambda of a feature           uniform on its grid                      -2 to 4, 121 values
    scale weight of a sample      gamma(f / 2, f / 2) on 16 values         f: 1.5 to 64, infinity;
                                                                           12 values
    probabilities of counts or    Dirichlet(a) in each component, and in   a: 0.5
    of a binary feature           each known group
    six-move, "conjugate"         the prior of "diag"                      kappa 0.3, shape 2,
                                                                           scale 0.5
    energy="nml"                  no prior: normalised maximum likelihood  ``variance_floor``
                                  of labels, classes and features
    ============================  =======================================  =======================

    Here alpha, beta, kappa, nu, s and omega are uniform on grids of even steps in logarithms. A
    number for a parameter of the constructor replaces its grid. ``mean_precision`` is kappa,
    ``variance_shape`` 1 + nu / 2, and ``variance_scale`` nu s / 2. Units are standard deviations of
    all samples. The grid of kappa ends at 1, the unit-information prior of Kass and Wasserman
    (1995). With a larger kappa, several components could have nearly the same centre.

    *Number of components.* `prior_n_clusters` gives its prior distribution. The sum of p(z) over
    partitions into k components is :math:`Q_k / (k!)^{1 - u}`, where :math:`Q_k` is the probability
    that no component of k is empty. As n grows, :math:`Q_k` tends to 1: the number of components is
    Poisson with mean 1, truncated to 1 to K, or uniform if ``unordered``. A mixture of finite
    mixtures (Miller and Harrison, 2018) has a prior :math:`p_K(m)` on the number m of components,
    some of which may be empty. Its coefficient of k occupied components is

    .. math:: V(k) = \sum_{m \geq k} p_K(m) \frac{m!}{(m - k)!}
        \frac{\Gamma(m \alpha)}{\Gamma(n + m \alpha)}.

    The prior here has the term m = k alone, with :math:`p_K(m) \propto 1 / m!`, or constant if
    ``unordered``. So the prior here is a mixture of finite mixtures, with :math:`\alpha` uniform on
    its grid, given that no component is empty. Under ``energy="nml"``, :math:`Q_k` is the share of
    labelings without empty components in the normalised maximum likelihood of k labels. The label
    code is asymptotically equal to the code with a Dirichlet prior of concentration 0.5.

    *Algorithm.* One iteration of the collapsed kernel:

    1. A Gibbs sweep updates labels in blocks, accepted by the Metropolis-Hastings rule. With
       ``covariance="tied"``, the sweep conditions on a covariance and offsets, which are sampled
       first. With ``errors="t"``, label and scale weight of a sample are sampled together.
    2. Split-merge moves, after Jain and Neal (2004). If there are known groups, two clusters also
       swap their samples in one group. The concentration is integrated out of the acceptance
       probabilities. If hyperparameters are sampled, splits of Gaussian components begin with
       2-means and hard EM on the samples of a component, or with a random division of these
       samples. Merges prefer overlapping components.
    3. Griddy-Gibbs updates of kappa, nu, s and omega; Metropolis updates of the lambdas; Gibbs
       updates of the scale weights, the degrees of freedom and the concentrations.

    An iteration costs O(n k d) operations under "diag", and O(n k d^2) otherwise. Memory is O(n d)
    under "diag", otherwise at most O(n d^2), plus the labels of all draws.

    *Stopping rule.* With ``num_samples="auto"``, `fit` examines the chains after 500, 1,000, 2,000,
    4,000, ... draws. `fit` stops if the log density, the numbers of clusters and of components, the
    share of the largest cluster and the variation of information to ``labels_`` have
    rank-normalised R-hat below 1.01 and bulk effective sample sizes of at least 400, and the log
    density a tail effective sample size of 100 (Vehtari et al., 2021). In addition, the value
    `r_hat` of ``vi_between_chains`` in ``diagnostics_`` must be below 1.05. A quantity that is
    equal in all draws has converged. Up to 1,000 draws, the first half of all iterations counts as
    warm-up, so ``posterior_`` may have fewer draws. The checks are few, so that they bias the
    result little. If a limit ends the run, `fit` warns and names the quantity that is farthest from
    convergence.

    *Preprocessing.* Continuous features are standardised on the samples of `fit`; constant features
    are dropped. Features that depend linearly on others are dropped as well if there are more
    samples than features and the model may have correlations within clusters (``covariance`` is not
    "diag", and ``energy="conjugate"``).

    *Common covariance.* With ``covariance="shrunk"``, the covariance of a cluster is
    inverse-Wishart with f = d + 1 + nu degrees of freedom and scale f S. The common covariance S is
    Wishart with d + 2 degrees of freedom and mean s I. S, s and nu (1 to 500) are sampled. With a
    large nu, the covariances of the clusters are similar.

    *Tempering.* With ``likelihood_power`` below 1 the posterior is a generalised posterior, after
    the coarsened posterior of Miller and Dunson (2019): frequencies of draws are not probabilities
    under the model. The exponent does not apply to the code of the labels, so that a low exponent
    favours few clusters: compare the number of clusters along exponents from 0.5 to 1. The exponent
    does not apply to the predictive density of new samples either.

    *Student t errors.* With ``errors="t"`` the covariance S of sample i is divided by :math:`w_i
    \sim \mathrm{Gamma}(f / 2, f / 2)`, on 16 values from 0.007 to 3.5, so that the sample is t
    distributed with f degrees of freedom. Description lengths include samples, partition and
    weights; predictions sum over the possible weights of new samples.

    *Transformation.* With ``transformation="yeo-johnson"`` each feature is replaced by its
    transform (Yeo and Johnson, 2000) with the lambda :math:`\lambda`,

    .. math:: t(x) = \frac{(1 + x)^\lambda - 1}{\lambda} \quad (x \geq 0), \qquad
        t(x) = -\frac{(1 - x)^{2 - \lambda} - 1}{2 - \lambda} \quad (x < 0),

    shifted to mean 0 and scaled to variance 1; :math:`\lambda = 1` leaves the standardised feature
    unchanged. Densities and description lengths include the Jacobian, so they refer to the original
    features. Compare models with and without a transformation by `score`.

    *Known structure.* With ``known`` and continuous features, sample i of group g and cluster c is

    .. math:: x_i = a_g + b_c + e_i, \quad e_i \sim N(0, S), \quad b_c \sim N(0, S / \kappa), \quad
        a_g \sim N(0, S / \omega),

    where :math:`a_g`, :math:`b_c` and :math:`e_i` are the offset of the group, the centre of the
    cluster and the error. S, all centres and all offsets are integrated out. Known structure may
    also be numeric: :math:`t_i` are standardised covariates, memberships, or indicators of several
    labelings with ``multi="additive"``. Then :math:`A' t_i` replaces :math:`a_g`, and the row of A
    for each covariate is :math:`N(0, S / \omega)`. `ConditionalMixture` has the same model.

    With ``known``, counts and binary features have the description length

    .. math:: L = \sum_{c, g} \phi(\text{cluster } c \text{ in group } g)
        + \gamma \sum_c \phi(\text{cluster } c) + \phi(\text{labels}),

    where :math:`\gamma` is ``coordination_weight``. The first sum is the objective of `CCIB`
    (Gondek, 2005, eq. 4.10) plus the code of the parameters of each pair of cluster and group. The
    data are counted :math:`1 + \gamma` times, so that the posterior is a generalised posterior
    unless :math:`\gamma` is 0. The value "auto" is the weight at which the partition into the known
    groups saves, in the second sum, half of the code length of its labels, but at most 0.3. So
    clusters that repeat the known groups never improve the objective.

    *Normalised maximum likelihood.* With :math:`m_j` labelled samples in cluster j, of which
    :math:`m_{jc}` have class c, the code "nml" is

    .. math:: \phi = -n_j \log \frac{n_j}{n} + \sum_d \left[\frac{n_j}{2} \log 2 \pi s_{jd}^2
        + \frac{n_j v_{jd}}{2 s_{jd}^2} + PC_d(n_j)\right]
        - \sum_c m_{jc} \log \frac{m_{jc}}{m_j} + \log C(|c|, m_j), \quad
        A(k) = \log C(k, n) - u \log k!

    where :math:`n_j` is the size of cluster j, :math:`v_{jd}` the variance of feature d in it, and
    :math:`s_{jd}` the standard deviation clipped to the floor and half the range of the feature.
    PC is `nrprob.codelength.gaussian_complexity`, and C the parametric complexity of the
    multinomial with :math:`|c|` classes or k labels. Yin (2007) has one complexity for all sizes
    (4.21), and acceptance ratios (4.28) to (4.36) that do not leave the distribution invariant.
    `nrprob.engines.sample.moves` describes the moves used here.

    References
    ----------
    Yin, K. (2007), "Inferring informed clustering problems with minimum description length
    principle", PhD thesis, chapter 4: the objective is eq. (4.22), predictions are eqs. (4.7) and
    (4.9).

    Miller, J. W. and Harrison, M. T. (2018), "Mixture models with a prior on the number of
    components", Journal of the American Statistical Association 113 (521),
    doi:10.1080/01621459.2016.1255636.

    Jain, S. and Neal, R. M. (2004), "A split-merge Markov chain Monte Carlo procedure for the
    Dirichlet process mixture model", Journal of Computational and Graphical Statistics 13 (1),
    doi:10.1198/1061860043001.

    Vehtari, A., Gelman, A., Simpson, D., Carpenter, B. and Buerkner, P.-C. (2021),
    "Rank-normalization, folding, and localization: an improved R-hat for assessing convergence of
    MCMC", Bayesian Analysis 16 (2), doi:10.1214/20-BA1221.

    Yeo, I.-K. and Johnson, R. A. (2000), "A new family of power transformations to improve
    normality or symmetry", Biometrika 87 (4), doi:10.1093/biomet/87.4.954.

    Miller, J. W. and Dunson, D. B. (2019), "Robust Bayesian inference via coarsening", Journal of
    the American Statistical Association 114 (527), doi:10.1080/01621459.2018.1469995.

    Kass, R. E. and Wasserman, L. (1995), "A reference Bayesian test for nested hypotheses and its
    relationship to the Schwarz criterion", Journal of the American Statistical Association 90
    (431).

    Nobile, A. and Fearnside, A. T. (2007), "Bayesian finite mixtures with an unknown number of
    components: the allocation sampler", Statistics and Computing 17 (2).

    Gondek, D. (2005), "Non-redundant clustering", PhD thesis, Brown University, eq. (4.10).

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import MDLMixture
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(30, 2)), rng.normal(6, 1, size=(30, 2))])
    >>> y = np.full(60, -1)
    >>> y[[0, 30]] = 0, 1
    >>> model = MDLMixture(energy="nml", num_samples=200, num_warmup=100, random_state=0).fit(X, y)
    >>> model.predict([[0, 0], [6, 6]]).tolist()
    [0, 1]
    """

    max_clusters: Annotated[int | str, _SIZE] = "auto"
    _: KW_ONLY
    kernel: Annotated[str, parameters.Choice(("collapsed", "six-move"))] = "collapsed"
    energy: Annotated[str, parameters.Choice(("auto", "nml", "conjugate"))] = "auto"
    covariance: Annotated[str, parameters.Choice(("auto", "diag", "full", "shrunk", "tied"))] = (
        "auto"
    )
    likelihood_power: Annotated[float, parameters.Number(0.01, 1)] = 1.0
    errors: Annotated[str, parameters.Choice(("gaussian", "t"))] = "gaussian"
    transformation: Annotated[str, parameters.Choice(("identity", "yeo-johnson"))] = "identity"
    variance_floor: Annotated[float | str, parameters.Number(1e-6, 100, words=("auto",))] = "auto"
    concentration: Annotated[float | str, _POSITIVE_OR_AUTO] = "auto"
    class_concentration: Annotated[float | str, _POSITIVE_OR_AUTO] = "auto"
    mean_precision: Annotated[float | str, _POSITIVE_OR_AUTO] = "auto"
    variance_shape: Annotated[float | str, _POSITIVE_OR_AUTO] = "auto"
    variance_scale: Annotated[float | str, _POSITIVE_OR_AUTO] = "auto"
    features: parameters.Features = "auto"
    feature_concentration: Annotated[float, _POSITIVE] = 0.5
    coordination_weight: Annotated[Any, parameters.Number(0, 1e6, words=("auto",))] = "auto"
    multi: parameters.Combination = "product"
    unordered: parameters.Flag = False
    num_warmup: Annotated[int, parameters.Number(0, 10**8, integer=True)] = 500
    num_samples: Annotated[
        int | str, parameters.Number(1, 10**8, integer=True, words=("auto",))
    ] = "auto"
    max_samples: Annotated[int, parameters.Number(1, 10**8, integer=True)] = 16_000
    max_seconds: Annotated[float | None, parameters.Number(0, 1e9, optional=True)] = None
    num_chains: Annotated[int, parameters.Number(1, 10_000, integer=True)] = 4
    init: Annotated[Any, parameters.Checked(starts.check_init)] = "auto"
    thinning: parameters.Count = 1
    num_split_merge: Annotated[
        int | str, parameters.Number(0, 10_000, integer=True, words=("auto",))
    ] = "auto"
    block: Annotated[int | str, _SIZE] = "auto"
    prediction_rule: Annotated[str, parameters.Choice(("joint", "cond"))] = "joint"
    merge: Annotated[str | None, parameters.Choice(("dip",), optional=True)] = "dip"
    dip: Annotated[float, parameters.Number(LEAST_DIP, 1)] = 0.5
    loss: Annotated[str, parameters.Choice(("vi", "binder"))] = "vi"
    checkpoint: Any = None
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    # Parameters

    capabilities = Capabilities(
        known=KINDS, finds_number=True, sparse=True, alone=True, arrays=("nd", "dkm")
    )
    _many_clusters = True
    _keeps_interrupted = True
    _small_remedy = "remove samples that are outliers, or fit continuous features with errors='t'"

    def check_parameters(self):
        """Raise TypeError or ValueError if parameters are invalid, whatever the data are."""
        super().check_parameters()
        if not isinstance(self.checkpoint, str | os.PathLike | None):
            raise TypeError(
                f"checkpoint must be the path of a folder; got {short_repr(self.checkpoint)}; "
                "pass its name"
            )
        needs = {
            f"covariance={self.covariance!r}": self.covariance in ("full", "shrunk", "tied"),
            f"likelihood_power={self.likelihood_power!r}": self.likelihood_power < 1,
            f"errors={self.errors!r}": self.errors != "gaussian",
            f"transformation={self.transformation!r}": self.transformation != "identity",
        }
        for what in (name for name, needed in needs.items() if needed):
            if self.energy == "nml" or self.kernel != "collapsed":
                raise ValueError(
                    f"{what} needs the conjugate prior and the collapsed kernel; got "
                    f"energy={self.energy!r} and kernel={self.kernel!r}; set energy='conjugate' "
                    "and kernel='collapsed', or leave it at its default"
                )
        if self.max_seconds is not None and not isinstance(self.num_samples, str):
            raise ValueError(
                f"max_seconds limits runs with num_samples='auto'; got {self.max_seconds!r} with "
                f"num_samples={self.num_samples!r}; leave one of them at its default"
            )
        shape = None if isinstance(self.variance_shape, str) else float(self.variance_shape)
        if (shape is None) != isinstance(self.variance_scale, str):
            raise ValueError(
                "variance_shape and variance_scale are two numbers, or 'auto' both; got "
                f"{self.variance_shape!r} and {self.variance_scale!r}; set the other one as well"
            )

    def fit(self, X, y=None, *, known=None):
        """Sample partitions of the samples in ``X``.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Samples; a sparse matrix is made dense. Samples to be predicted may be included, with -1
            in ``y``, which improves the predictions.
        y : array-like of shape (n_samples,), optional
            Classes, -1 where unknown.
        known : array-like, optional
            Known structure on which the clusters are conditioned: labels of known groups, or
            several labelings (see ``multi``). With continuous features, the effects of group and
            cluster of a sample add up. With counts or binary features, each pair of a group and a
            cluster has separate probabilities. Continuous features also allow covariates with
            linear effects, floats (n_samples, n_covariates); a frame of labels and of floats; and
            `nrprob.known.Memberships`. If ``X`` is a frame, ``known`` may name columns of ``X``.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If data and parameters are incompatible; the message names a remedy.
        """
        return self._fit(X, y, known=known)

    def prepare(self, X, y, known=None) -> SampledRows:
        """Check and standardise the input of `fit`; see `Clusterer.prepare`."""
        self.check_parameters()
        self._check_one_device()
        X = self._validate_rows(X, reset=True)
        check_range(X)
        n = X.shape[0]
        codes = self._read_classes(y, n)
        most = min(20, n) if isinstance(self.max_clusters, str) else int(self.max_clusters)
        if most > n:
            raise ValueError(
                f"max_clusters exceeds the number of rows; got max_clusters={most} and "
                f"n_samples={n}; lower it, or pass more rows"
            )
        self._read_features(X)
        if self.merge is not None:
            check_threshold(self.dip, self._merging_rule())
        self._max_clusters = most
        return SampledRows(self._standardise(X), codes, self._encode_known(known, n))

    def compute(self, task):
        """Run the chains; see `Clusterer.compute`."""
        deadline = time.monotonic() + (np.inf if self.max_seconds is None else self.max_seconds)
        with small_steps_on_cpu():
            self._begin_chains(task)
            self._run_until, self._draws_of_fit = isinstance(self.num_samples, str), 10**9
            self._run_chains(None if self._run_until else int(self.num_samples), deadline)
        return []

    def finish(self, task, result):
        """Return the estimator, whose attributes `compute` has set; see `Clusterer.finish`."""
        return self

    def _begin_chains(self, task: SampledRows) -> None:
        X, codes = task.X, task.codes
        n_classes = int(codes.max(initial=-1)) + 1
        random = check_random_state(self.random_state)
        keys = [jax.random.PRNGKey(random.randint(2**31 - 1)) for _ in range(2)]
        if self.checkpoint is not None and self.random_state is None:
            raise ValueError(
                "a run with checkpoint needs a seed; got random_state=None; set random_state to a "
                "number"
            )

        self.energy_ = self._resolve_energy()
        self.covariance_ = self._choose_covariance(task, n_classes, random)
        floor = 0.2 if isinstance(self.variance_floor, str) else float(self.variance_floor)
        floored = self.energy_ == "nml" and self._features.features == "gaussian"
        if floored and isinstance(self.variance_floor, str) and n_classes > 1:
            floor = self._choose_floor(X, codes, n_classes, keys[1])
        if floored:
            self.variance_floor_ = floor
        self._n_classes, self._n_rows = n_classes, X.shape[0]
        self._mixture = self._mixture_model(self._feature_model(floor))
        self._target = self._mixture.target(X, codes, n_classes, self._max_clusters, task.design)
        kernel, target = self._make_kernel(X.shape[0]), self._target  # type: tuple[Any, Any]
        if self.kernel == "six-move":
            from nrprob.methods.bayes.six_move import SixMoveKernel

            kernel = SixMoveKernel(n_split_merge=self._count_proposals(X.shape[0]))
            target = self._mixture.mixture_target(X, codes, n_classes, self._max_clusters)
        labels = self._initial_labels(task, n_classes, keys[1], random)
        if labels is None:
            states = dispersed(kernel, target, keys[0], int(self.num_chains))
        else:
            states = starts.begin_at_labels(kernel, target, labels, keys[0])
        folder = None if self.checkpoint is None else Path(self.checkpoint)
        self._run = CheckpointedChains(kernel, target, states, int(self.thinning), folder)
        self._target = jax.device_get(self._target)

    def _initial_labels(
        self, task: SampledRows, n_classes: int, key: jax.Array, random: np.random.RandomState
    ) -> np.ndarray | None:
        """Initial labels (num_chains, n) of the chains; None for dispersed partitions."""
        n, n_chains = len(task.X), int(self.num_chains)
        if not isinstance(self.init, str):
            return starts.read_labels(self.init, n, n_chains, self._max_clusters)
        subsample = self.init == "subsample" or (self.init == "auto" and n > starts.MANY)
        if not subsample or n <= starts.SUBSAMPLE:
            return None
        return starts.labels_by_subsample(
            self._mixture, task.X, task.codes, n_classes, self._max_clusters, task.design,
            n_steps=int(self.num_warmup), n_split_merge=self._count_proposals(starts.SUBSAMPLE),
            n_chains=n_chains, key=key, random=random,
        )  # fmt: skip

    def _count_proposals(self, n: int) -> int:
        """Number of split and merge proposals in an iteration, for ``n`` samples."""
        if not isinstance(self.num_split_merge, str):
            return int(self.num_split_merge)
        return int(np.clip(_N_SPLIT_MERGE * _MODERATE // n, 1, _N_SPLIT_MERGE))

    def _make_kernel(self, n: int) -> PartitionKernel:
        """Make the collapsed MCMC kernel over partitions of ``n`` samples."""
        kernel: Any = default_kernel(n, self._count_proposals(n))
        if isinstance(self._feature_model(0.2), SampledGaussian):
            kernel = JointKernel(kernel.block, kernel.n_split_merge, kernel.n_launch)
        if isinstance(self.block, str):
            return kernel
        # With all samples in one block, no sample is outside, and all would join one new cluster.
        return replace(kernel, block=min(int(self.block), max(n // 2, 1)))

    def _choose_covariance(
        self, task: SampledRows, n_classes: int, random: np.random.RandomState
    ) -> str:
        """Choose the covariance model; see the parameter ``covariance``."""
        if not task.X.size:  # all features are constant
            return "diag"
        if self.covariance != "auto":
            return self.covariance
        continuous = self._features.features == "gaussian"
        if not continuous or self.energy_ == "nml" or self.kernel != "collapsed":
            return "diag"
        if task.design.has_structure:
            return "tied"
        model = self._mixture_model(self._sampled_gaussian("diag", "gaussian"))
        self.covariance_lengths_ = shortest_lengths(
            model, task.X, task.codes, n_classes, self._max_clusters, random
        )
        return choose_covariance(self.covariance_lengths_)

    def _choose_floor(
        self, X: np.ndarray, codes: np.ndarray, n_classes: int, key: jax.Array
    ) -> float:
        """Choose the value of `FLOORS` with the largest leave-one-out probability of the classes.

        `FLOORS` are candidates of ``variance_floor``, the smallest standard deviation.
        """
        kernel, scores = self._make_kernel(X.shape[0]), {}
        for floor in FLOORS:
            model = self._mixture_model(self._feature_model(floor))
            target = model.target(X, codes, n_classes, self._max_clusters)
            pilot = CheckpointedChains(
                kernel, target, dispersed(kernel, target, key, int(self.num_chains))
            )
            pilot.advance(_N_PILOT // 2, _N_PILOT // 2)
            draws = pool_draws(pilot.all_draws()["labels"], MAX_DRAWS)
            scores[floor] = float(leave_one_out(target, draws).sum())
        self.variance_floor_scores_ = scores
        return max(scores, key=lambda floor: scores[floor])
