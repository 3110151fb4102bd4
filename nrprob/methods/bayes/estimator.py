"""The MDL-coupled MCMC: a posterior over clusterings, and the classifier that averages over it."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from nrprob.data.validation import (
    CLUSTERS,
    check_random_state,
)
from nrprob.engines.placement import small_steps_on_cpu
from nrprob.engines.sample.chains import PartitionKernel, default_kernel, dispersed
from nrprob.engines.sample.checkpoints import CheckpointedChains
from nrprob.estimator import parameters
from nrprob.estimator.capabilities import KINDS, Capabilities
from nrprob.exceptions import short_repr, warn
from nrprob.methods.bayes import starts
from nrprob.methods.bayes.covariance_selection import choose_covariance, shortest_lengths
from nrprob.methods.bayes.draws import (
    MAX_DRAWS,
    MAX_LABELS,
    cluster_shares,
    compare_chains,
    pool_draws,
)
from nrprob.methods.bayes.feature_models import (
    BinaryFeatures,
    BoundedGaussian,
    CountFeatures,
    FeatureModel,
    SampledGaussian,
)
from nrprob.methods.bayes.inputs import Inputs, SampledRows
from nrprob.methods.bayes.joint_target import JointKernel
from nrprob.methods.bayes.model import MixtureModel
from nrprob.methods.bayes.predictive import leave_one_out
from nrprob.settings import standard
from nrprob.statistics.features import check_range

FLOORS = (0.1, 0.2, 0.4)
_N_SPLIT_MERGE, _MODERATE = 10, 30_000  # proposals in an iteration, up to so many samples
_N_PILOT = 200  # iterations of pilot chains, the first half of which is warm-up
_FIXED_PRIOR = 0.3, 2.0, 0.5  # of "auto" with kernel="six-move"
_DIMS = {
    "labels": ("observation",),
    "weights": ("cluster",),
    "active": ("cluster",),
    "means": ("cluster", "feature"),
    "scales": ("cluster", "feature"),
    "class_probs": ("cluster", "class"),
    "common_covariance": ("feature", "feature_2"),
    "scale_weight": ("observation",),
    "yeo_johnson_lambda": ("feature",),
}
_SIZE = parameters.Number(1, CLUSTERS, integer=True, words=("auto",))
_POSITIVE = parameters.Number(1e-9, 1e9)
_POSITIVE_OR_AUTO = parameters.Number(1e-9, 1e9, words=("auto",))


@parameters.constructor
class MDLMixture(Inputs):
    r"""Posterior over clusterings of every size, from description length, with few labels or none.

    A partition of the rows into k blocks has the description length

    .. math:: L = A(k) + \sum_{j=1}^k \phi(\text{block}_j)

    and is drawn with probability proportional to :math:`e^{-L}`, for every k up to
    ``max_clusters``. Predictions average over the draws, which is the Bayes-optimal classifier.

    Parameters
    ----------
    max_clusters : int or "auto", default="auto"
        Most clusters; "auto" is 20, or the number of rows if that is less.
    kernel : {"collapsed", "six-move"}, default="collapsed"
        "collapsed" samples partitions, the parameters of whose clusters are coded. "six-move"
        samples parameters as well, by the moves of Yin (2007) with corrected acceptance; its
        "nml" has parameters uniform within the bounds, and clusters that may be empty.
    energy : {"auto", "nml", "conjugate"}, default="auto"
        Code of a cluster. "nml" is normalised maximum likelihood of normal features within bounds,
        of classes and of cluster labels; its features are independent within a cluster.
        "conjugate" has a prior for each, and both kernels then have the same target. "auto" is
        "nml" with ``kernel="six-move"``, and else "conjugate".
    covariance : {"auto", "diag", "full", "shrunk", "tied"}, default="auto"
        Of a cluster's features: of its own without or with dependence between columns, of its own
        but shrunk to one that clusters have in common, or one of all clusters, which is the one
        that can tell what is known. All but "diag" need ``energy="conjugate"`` and
        ``kernel="collapsed"``. "auto" is "tied" where something is known, "diag" where there is no
        choice, and else the one under which partitions that EM finds, or classes lead to, have the
        shortest description. Of those with covariances of their own, "full" has its say up to 10
        columns m, and "shrunk" from 11 to 30, or where there are fewer than m (m + 1) rows; they
        have to be shorter than the others by 3 nats.
    likelihood_power : float, default=1.0
        Power, from .01 to 1, that the density of real features given their clusters is raised to.
        Below 1 clusters need not be quite of the shape that is assumed, and kinds that are not
        normal are not cut into pieces that are; see Notes. Needs ``energy="conjugate"`` and
        ``kernel="collapsed"``.
    errors : {"gaussian", "t"}, default="gaussian"
        Law of real features about the centre of their cluster. Under "gaussian", rows that lie far
        out are clusters of their own; under "t" they need not be: every row has a scale that is
        drawn, and how far rows stray is drawn as well. Costs about twice as much, and needs
        ``energy="conjugate"`` and ``kernel="collapsed"``. "auto" of ``covariance`` looks at normal
        errors in any case.
    transformation : {"identity", "yeo-johnson"}, default="identity"
        What columns of real features are normal after, within clusters. With "yeo-johnson" every
        column has a power that is drawn, so that clusters may be skew, as far as those of a column
        are skew alike; see Notes. Needs ``energy="conjugate"`` and ``kernel="collapsed"``.
    variance_floor : float or "auto", default="auto"
        Smallest standard deviation of a cluster, in units of that of all rows (``energy="nml"``).
        "auto" takes the one of .1, .2 and .4 under which the labels of `fit` are most probable when
        each is left out in turn, or .2 without labels. The posterior depends on it: it is a prior.
        A number is from 1e-6 to 100.
    concentration : float or "auto", default="auto"
        Of the symmetric Dirichlet prior of cluster sizes (``energy="conjugate"``, as all to
        follow); from 1e-9 to 10**9, as all to follow. Clusters are of like size where it is large.
        "auto" draws it from .1 to 100 (31 values, even in logarithms); where no other number of the
        prior is drawn, as with counts or ``kernel="six-move"``, "auto" stands for 1.
    class_concentration : float or "auto", default="auto"
        Of the symmetric Dirichlet prior of the classes of a cluster. Near 0 every cluster is of one
        class; 1e-6 is for labels that are right. "auto" draws it from .001 to 3 (8 values), so that
        it is as small as the labels are clean; where no other number of the prior is drawn, as with
        counts or ``kernel="six-move"``, "auto" stands for .5.
    mean_precision : float or "auto", default="auto"
        Rows that the prior of a cluster's mean counts for. "auto" draws it beside the partition,
        from 1e-10 to 1 (321 values, even in logarithms).
    variance_shape, variance_scale : float or "auto", default="auto"
        Of the inverse-gamma prior of a cluster's variances, in units of those of all rows; two
        numbers, or "auto" for both. "auto" draws the shape from 1.5 to 26 (81 values, even in
        logarithms of the shape less 1), and the mean of the prior from 1e-8 to 1 (257 values, even
        in logarithms). Numbers are from 1e-9 to 10**9, and shapes above 1 unless
        ``mean_precision`` is a number as well. With ``kernel="six-move"``, which draws none of the
        three, "auto" stands for .3, 2 and .5.
    features : {"auto", "gaussian", "multinomial", "bernoulli"}, default="auto"
        What the features are: real numbers, counts (each row's tokens are coded, as many as there
        are), or zeros and ones. "auto" looks at the values, or is "gaussian" where ``kernel`` or
        ``covariance`` are not their defaults, which the others need.
    feature_concentration : float, default=0.5
        Of the symmetric Dirichlet prior of a cell's probabilities of counts, or of zeros and ones
        (``energy="conjugate"``).
    coordination_weight : float or "auto", default="auto"
        With ``known``, and counts or zeros and ones: the weight of the code of clusters without
        regard to the known groups, which makes their names mean the same in all groups; see Notes.
        From 0 to 10**6.
    multi : {"product", "additive"}, default="product"
        How several known labelings combine: every combination of labels is a group, or, for real
        features, the contributions of labelings add up.
    unordered : bool, default=False
        Whether the names of clusters are not sent. With False, as published, a clustering of k
        clusters pays log k! for them, which is a prior that falls with k as a Poisson law of mean 1
        does (Nobile and Fearnside, 2007). True weighs all numbers of clusters about alike: with few
        rows, a few of these then often are clusters of their own, and classes of new rows are
        predicted a little better.
    num_warmup, num_samples : int, default=500 and 1000
        Steps that are dropped, and draws that are kept, of every chain; at most 10**8.
    num_chains : int, default=4
        Chains, at most 10,000.
    init : {"auto", "dispersed", "subsample"} or array-like, default="auto"
        Initial partitions of the chains. "dispersed" starts them far apart: one chain with all rows
        in one cluster, another with ``max_clusters`` clusters, and so on. "subsample" runs the
        dispersed chains on 4,000 rows for ``num_warmup`` iterations, and assigns every other row to
        its most probable cluster. "auto" is "subsample" above 20,000 rows; up to 4,000 rows
        "subsample" is "dispersed". An array (n_samples,) or (n_starts, n_samples) of labels starts
        the chains from these partitions in turn. R-hat of chains that start alike says little:
        pass several different partitions.
    thinning : int, default=1
        Steps from one draw to the next; at most 10**6.
    num_split_merge : int or "auto", default="auto"
        Proposals in a step to split or to merge clusters; at most 10,000. Each takes several looks
        at the rows of one cluster or two: "auto" is 10 up to 30,000 rows, and as many less as there
        are more rows. Of 128 rows and more, after the warm-up, nine splits in ten are refused
        unseen where chains found nothing to split, and merges accordingly: it changes the time,
        not the posterior.
    block : int or "auto", default="auto"
        Rows that a Gibbs move of the collapsed kernel visits together; 1 is the usual sweep, of
        which all are accepted. "auto" grows with the square root of the number of rows, whatever
        the columns: .84 are then accepted on iris (4 columns), and .67 on wine (13). A refused
        block costs time, never exactness; ``sample_stats_`` has the counts.
    prediction_rule : {"joint", "cond"}, default="joint"
        How `predict` averages over draws. "joint" weights each draw by its density of the row's
        features, which is Bayes' rule; "cond" takes the plain average of p(y | x, draw).
    loss : {"vi", "binder"}, default="vi"
        Loss whose expectation ``labels_`` minimise.
    checkpoint : path-like, optional
        Folder to save the run in as it goes. `fit` with the same arguments takes up a run that was
        interrupted and gives what it would have given.
    random_state : int, RandomState instance or None, default=None
        Seed.
    verbose : int, default=0
        Above 0, show a progress bar.

    Attributes
    ----------
    posterior_ : xarray.Dataset
        Draws, over chain, draw and observation: ``labels`` (not comparable between draws, because
        of label switching), ``n_clusters``, ``log_density`` (the negative description length in
        nats), the hyperparameters that are sampled, and the parameters if the kernel samples them.
        With ``errors="t"``, the latent ``scale_weight`` that multiplies the precision of each row
        (small for outliers), and the degrees of freedom ``df``. With
        ``transformation="yeo-johnson"``, ``yeo_johnson_lambda`` of the columns that vary.
    sample_stats_ : xarray.Dataset
        For every draw, how many moves of each kind were proposed and accepted on the way to it.
    labels_ : ndarray of shape (n_samples,)
        Point estimate: the partition of least expected loss. Not the classes; see `predict`.
    membership_ : ndarray of shape (n_samples, n_clusters_)
        Mean share of a row's block that lies in each cluster of ``labels_``.
    classes_ : ndarray of shape (n_classes,)
        The sorted classes of `fit`, if there were any.
    n_clusters_ : int
        Clusters of ``labels_``.
    objective_ : float
        Shortest description length that was met, in nats of the standardised rows.
    objective_trace_ : ndarray of shape (num_samples,)
        Description lengths of the chain that met it.
    r_hat_ : dict of str to float
        Rank-normalised R-hat of the description length and of the number of clusters.
    diagnostics_ : pandas.DataFrame
        `nrprob.posterior.diagnose` of 256 draws of every chain at even steps (fewer where there are
        very many rows): of the description length, and of quantities that names of clusters leave
        alone, as the largest share, the distance to ``labels_``, and whether two rows are together,
        for ten pairs. The row
        ``vi_between_chains`` compares chains with each other: its mean is that of the variation of
        information between draws of different chains, and its `r_hat` the root of the ratio to that
        of draws of one chain (see `nrprob.posterior.chain_distances`).
    converged_ : bool
        Whether all R-hat, of both, are below 1.05; warned of otherwise. That chains agree is
        necessary only: all of them may have missed the same clusterings, which no draws can show.
    energy_, covariance_ : str
        Those in use; "diag" also where features are no real numbers.
    covariance_lengths_ : dict of str to float
        Shortest descriptions that the choice of the covariance was made by, in nats.
    variance_floor_ : float
        The one in use (``energy="nml"``).
    variance_floor_scores_ : dict of float to float
        Leave-one-out log probability of the labels under each, where it was chosen.
    n_iter_ : int
        Steps of every chain.
    n_features_in_ : int

    See Also
    --------
    nrprob.posterior : Summaries of draws of partitions.
    nrprob.MixtureEM : One clustering by maximum likelihood.

    Notes
    -----
    Yin (2007), chapter 4. Real features are centred, and scaled to unit variance, on the rows of
    `fit`; constant ones are dropped. So are, where clusters may have correlations and rows are more
    than columns, those that are linear combinations of others, as the last of shares that add up to
    1 is. With ``covariance="diag"`` features are independent within a cluster, so that a class
    whose features are correlated takes several clusters.

    With ``energy="conjugate"``, a cluster's mean is N(0, S / kappa) given its covariance S, kappa
    being ``mean_precision``, and S inverse-Wishart, whose diagonal is inverse-gamma of
    ``variance_shape`` and ``variance_scale``. What is "auto" of these three has a uniform prior on
    its grid, and is drawn given the partition, the last two also together, since they trade off
    with each other: ``posterior_`` has it. Grids are wide, so that a row that is out by ten
    thousand times what is within clusters, or known groups as far apart, leave other clusters as
    they are. But kappa ends at 1, the unit-information prior of Kass and Wasserman (1995): where
    centres may lie closer together, rows of one cluster fall into several. ``concentration``
    is drawn as well: under 1, the uniform law of sizes, a cluster of three rows beside large ones
    is as probable as one of half of all rows. Splits and merges are proposed and accepted with it
    integrated out.

    With ``covariance="shrunk"``, the covariance of a cluster is inverse-Wishart with f degrees of
    freedom and scale f S, and the common covariance S is Wishart with d + 2 degrees of freedom, its
    mean a multiple of the identity. S, that multiple and f, from d + 2 to d + 501, are drawn: with
    f large covariances are alike. ``posterior_`` has S as ``common_covariance``, and lengths are
    those of rows, partition and S together.

    With ``likelihood_power`` below 1 this is a *generalised* posterior, after Miller and Dunson
    (2019), whose power 1 / (1 + n / alpha) says that data are taken for no more than roughly of the
    model: shares of draws are no probabilities under it. Labels are coded in full, so that under a
    low power a clustering cannot pay for its names any more: in .5 to 1, look at the path of the
    number of clusters. New rows are predicted with their full density.

    With ``errors="t"`` the covariance S of row i about its centre is divided by

    .. math:: w_i \sim \mathrm{Gamma}(f / 2, f / 2)

    so that the row is t distributed with f degrees of freedom. The law of :math:`w_i` is taken on
    16 values from .007 to 3.5, each a factor of 1.5 from the next, and f is one of eleven values
    from 1.5 to 64, or infinite, which is the normal law; both are drawn, lengths are those of rows,
    partition and scales together, and predictions sum over the scales of new rows.

    With ``transformation="yeo-johnson"`` rows are all this after the transform of Yeo and Johnson
    (2000) of every column, with the column's power :math:`\lambda`,

    .. math:: t(x) = \frac{(1 + x)^\lambda - 1}{\lambda} \quad (x \geq 0), \qquad
        t(x) = -\frac{(1 - x)^{2 - \lambda} - 1}{2 - \lambda} \quad (x < 0),

    shifted and scaled to unit variance on the rows of `fit`. Powers are drawn from 121 values from
    -2 to 4, all as probable, of which 1 leaves a column as it is. Lengths and densities have the
    slopes of the transforms in them, so that they are those of the rows as they came. As with other
    numbers that are drawn, lengths leave out what the choice itself costs, log 121 a column:
    `score` compares with columns as they came.

    With ``known``, row i of group g and cluster c is

    .. math:: x_i = a_g + b_c + e_i, \quad e_i \sim N(0, S), \quad b_c \sim N(0, S / \kappa), \quad
        a_g \sim N(0, S / \omega),

    the model of `ResidualMixture`, with S, all centres and all offsets integrated out and
    :math:`\omega` drawn as :math:`\kappa` is: a posterior in the strict sense over clusterings that
    say what the groups do not.

    Of numbers :math:`t_i` that are known of the row (standardised), of shares in groups, and of
    indicators of the labels of several labelings with ``multi="additive"``, it is
    :math:`A' t_i` in place of :math:`a_g`, the coefficients of every number from
    :math:`N(0, S / \omega)`.

    Counts, and zeros and ones, have with ``known`` the description length

    .. math:: L = \sum_{c, z} \phi(\text{rows of } c \text{ in group } z)
        + \lambda \sum_c \phi(\text{rows of } c) + \phi(\text{labels})

    every part of which is a complete code. The first sum is the objective of `CCIB` (Gondek, 2005,
    eq. 4.10) with the parameters of every cell paid for. The data are counted 1 + lambda times, so
    that this is a *generalised* posterior: lambda is a learning rate, and shares of draws are no
    probabilities unless it is 0. "auto" is the weight at which the known groups, told as clusters,
    would gain in the second sum half of what telling them costs, so that repeating them never pays;
    at most .3.

    With n rows, n_j in block j, m_j of them with a class, the code "nml" is

    .. math:: \phi = -n_j \log \frac{n_j}{n} + \sum_d \left[\frac{n_j}{2} \log 2 \pi s_{jd}^2
        + \frac{n_j v_{jd}}{2 s_{jd}^2} + PC_d(n_j)\right]
        - \sum_c m_{jc} \log \frac{m_{jc}}{m_j} + \log C(|c|, m_j), \quad
        A(k) = \log C(k, n) - \log k!

    where :math:`s_{jd}` is the standard deviation, not below the floor nor above half the range of
    the feature, PC is `nrprob.codelength.gaussian_complexity` and C that of the multinomial. The
    thesis has one complexity for all sizes (4.21), and acceptance ratios (4.28) to (4.36) that do
    not leave its distribution invariant; `nrprob.engines.sample.moves` has ours.

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
    num_samples: Annotated[int, parameters.Number(1, 10**8, integer=True)] = 1000
    num_chains: Annotated[int, parameters.Number(1, 10_000, integer=True)] = 4
    init: Annotated[Any, parameters.Checked(starts.check_init)] = "auto"
    thinning: parameters.Count = 1
    num_split_merge: Annotated[
        int | str, parameters.Number(0, 10_000, integer=True, words=("auto",))
    ] = "auto"
    block: Annotated[int | str, _SIZE] = "auto"
    prediction_rule: Annotated[str, parameters.Choice(("joint", "cond"))] = "joint"
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
        """Refuse parameters that are wrong whatever the data."""
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
                    f"{what} has a code under the conjugate prior only; got "
                    f"energy={self.energy!r} and kernel={self.kernel!r}; set energy='conjugate' "
                    "and kernel='collapsed', or leave it at its default"
                )
        shape = None if isinstance(self.variance_shape, str) else float(self.variance_shape)
        if (shape is None) != isinstance(self.variance_scale, str):
            raise ValueError(
                "variance_shape and variance_scale are two numbers, or 'auto' both; got "
                f"{self.variance_shape!r} and {self.variance_scale!r}; set the other one as well"
            )
        drawn = isinstance(self.mean_precision, str) or self.covariance in ("shrunk", "tied")
        if shape is not None and shape <= 1 and drawn and self.kernel == "collapsed":
            raise ValueError(
                "variance_shape must be above 1 where other numbers of the prior are drawn; got "
                f"{self.variance_shape!r}; raise it, or set mean_precision to a number"
            )

    def fit(self, X, y=None, *, known=None):
        """Sample clusterings of the rows of ``X``.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows, which are made dense. Rows to be predicted may be among them, without their label:
            they help.
        y : array-like of shape (n_samples,), optional
            Classes, -1 where unknown.
        known : array-like, optional
            Labels of a grouping that is known, or several of them (see ``multi``). A row of real
            numbers is the sum of what its group and its cluster contribute, and of noise; of
            others, every cell of a group and a cluster has probabilities of its own. So clusters
            say what the groups do not. With real features also floats (n_samples, q), in which
            rows are linear, a frame of labels and of floats, or `nrprob.known.Memberships`, by
            which rows are averages of groups. Names of columns, if ``X`` is a frame.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data do not fit the parameters; the message says what to change.
        """
        return self._fit(X, y, known=known)

    def prepare(self, X, y, known=None) -> SampledRows:
        """Check the input and standardise it; see `Clusterer.prepare`."""
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
        self._max_clusters = most
        return SampledRows(self._standardise(X), codes, self._encode_known(known, n))

    def compute(self, task):
        """Sample; see `Clusterer.compute`."""
        with small_steps_on_cpu():
            self._begin_chains(task)
            self._sample(int(self.num_warmup), int(self.num_samples))
        return []

    def finish(self, task, result):
        """Return the estimator: what is drawn is summarised as it is drawn."""
        return self

    def extend(self, num_samples):
        """Go on sampling where `fit` or `extend` ended.

        Parameters
        ----------
        num_samples : int
            Further draws of every chain.

        Returns
        -------
        self
            With the draws of all runs; the same as if `fit` had made as many at once.
        """
        check_is_fitted(self, "_run")
        self._check_number("num_samples", num_samples, low=1, high=10**8, integer=True)
        with standard(), small_steps_on_cpu():
            self._sample(int(self.num_warmup), self._run.n_draws + int(num_samples))
        return self

    def _sampled_gaussian(self, covariance: str, errors: str) -> SampledGaussian:
        """Gaussian features whose hyperparameters are sampled unless they are numbers."""
        return SampledGaussian(
            covariance=covariance,
            mean_precision=_float_or_none(self.mean_precision),
            shape=_float_or_none(self.variance_shape),
            scale=_float_or_none(self.variance_scale),
            power=float(self.likelihood_power),
            errors=errors,
            transformation=self.transformation,
        )

    def _feature_model(self, floor: float) -> FeatureModel:
        """Model of the features of a cluster."""
        discrete = {"multinomial": CountFeatures, "bernoulli": BinaryFeatures}
        if (make := discrete.get(self._features.features)) is not None:
            concentration = float(self.feature_concentration)
            return make(
                concentration=concentration if self.energy_ == "conjugate" else None,
                coordination=_float_or_none(self.coordination_weight),
            )
        if self.energy_ == "nml":
            return BoundedGaussian(floor=floor)
        features = self._sampled_gaussian(self.covariance_, self.errors)
        return features.fix_prior(_FIXED_PRIOR if self.kernel == "six-move" else None)

    def _mixture_model(self, features: FeatureModel) -> MixtureModel:
        """Settings of the model that is sampled."""
        return MixtureModel(
            features=features,
            concentration=_float_or_none(self.concentration),
            class_concentration=_float_or_none(self.class_concentration),
            unordered=bool(self.unordered),
        )

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

        self.energy_ = self.energy
        if self.energy == "auto":
            self.energy_ = "conjugate" if self.kernel == "collapsed" else "nml"
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
        """Initial labels (num_chains, n); None for dispersed ones."""
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
        """Splits and merges that are proposed in an iteration."""
        if isinstance(self.num_split_merge, str):
            return int(np.clip(_N_SPLIT_MERGE * _MODERATE // n, 1, _N_SPLIT_MERGE))
        return int(self.num_split_merge)

    def _make_kernel(self, n: int) -> PartitionKernel:
        """Collapsed moves."""
        kernel: Any = default_kernel(n, self._count_proposals(n))
        if isinstance(self._feature_model(0.2), SampledGaussian):
            kernel = JointKernel(kernel.block, kernel.n_split_merge, kernel.n_launch)
        if isinstance(self.block, str):
            return kernel
        # A block of all samples would always come back as one cluster.
        return replace(kernel, block=min(int(self.block), max(n // 2, 1)))

    def _choose_covariance(
        self, task: SampledRows, n_classes: int, random: np.random.RandomState
    ) -> str:
        """The covariance to use; see the parameter."""
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
        """Floor under which the labels are most probable, each left out in turn."""
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

    def _sample(self, num_warmup: int, num_draws: int) -> None:
        try:
            self._run.advance(num_warmup, num_draws, verbose=self.verbose)
        finally:
            # The draws so far are kept if the user interrupts.
            if self._run.n_draws:
                self._summarise()

    # Results

    def _summarise(self) -> None:
        import xarray

        from nrprob.posterior import point_estimate

        draws, moves = self._run.all_draws(), self._run.all_moves()
        for name in draws.keys() & {n for n, dims in _DIMS.items() if dims == ("observation",)}:
            draws[name] = draws[name][..., : self._n_rows]
        for name in draws.keys() & {n for n, dims in _DIMS.items() if dims[0] == "cluster"}:
            draws[name] = draws[name][:, :, : self._max_clusters]  # other slots are never in use
        self.posterior_ = xarray.Dataset(
            {name: (("chain", "draw", *_DIMS.get(name, ())), a) for name, a in draws.items()}
        )
        swaps = "swap" in moves and moves["swap"].any()  # of known groups only
        idle = () if swaps else ("swap", "swap_accepted")
        self.sample_stats_ = xarray.Dataset(
            {name: (("chain", "draw"), a) for name, a in moves.items() if name not in idle}
        )
        lengths = -draws["log_density"]
        best = np.unravel_index(lengths.argmin(), lengths.shape)
        self.objective_ = float(lengths[best])
        self.objective_trace_ = lengths[best[0]]
        self.n_iter_ = self._run.n_warm + self._run.n_draws * self._run.thinning
        flat = pool_draws(draws["labels"], int(np.clip(MAX_LABELS // self._n_rows, 64, MAX_DRAWS)))
        labels = point_estimate(
            flat, loss=self.loss, max_clusters=self._max_clusters, random_state=0
        )
        self.labels_ = np.unique(labels, return_inverse=True)[1]
        self.n_clusters_ = int(self.labels_.max()) + 1
        self.membership_ = cluster_shares(flat, self.labels_)
        self._warn_small_clusters(np.bincount(self.labels_))
        self._check_convergence(draws)

    def _check_convergence(self, draws: dict[str, np.ndarray]) -> None:
        self.r_hat_, table = compare_chains(draws, self.labels_)
        self.diagnostics_ = table
        every = {**table["r_hat"], **self.r_hat_}
        self.converged_ = all(r < 1.05 for r in every.values())
        if not self.converged_:
            worst = max(every, key=lambda name: every[name])
            both = ", ".join(f"{name} {r:.3f}" for name, r in self.r_hat_.items())
            warn(
                f"the chains do not agree yet; got R-hat of {both}, and at most {every[worst]:.3f} "
                f"({worst}), after {self._run.n_draws} draws; look at diagnostics_, and go on with "
                "extend, or raise num_warmup and num_samples",
                ConvergenceWarning,
            )


def _float_or_none(value: Any) -> float | None:
    """A number, or None for "auto"."""
    return None if isinstance(value, str) else float(value)
