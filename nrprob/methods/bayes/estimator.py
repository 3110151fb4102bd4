"""The MDL-coupled MCMC: a posterior over clusterings, and the classifier that averages over it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from nrprob.engines.chains import PartitionKernel, default_kernel, dispersed
from nrprob.engines.checkpoints import CheckpointedChains
from nrprob.engines.sample import Target
from nrprob.estimator import parameters
from nrprob.estimator.base import Clusterer, read_labels
from nrprob.exceptions import warn
from nrprob.methods.bayes.code import (
    MixtureCode,
    class_probabilities,
    cluster_probabilities,
    density_of_rows,
    leave_one_out,
    log_densities,
    mixture_probabilities,
)
from nrprob.methods.bayes.draws import (
    AVERAGED,
    ENTRIES,
    agreement,
    block_shares,
    padded,
    pooled,
)
from nrprob.settings import standard
from nrprob.statistics.features import check_range
from nrprob.validation import (
    LARGEST,
    MOST,
    check_random_state,
    check_rows,
)

FLOORS = (0.1, 0.2, 0.4)
_PILOT = 200  # steps, of which the first half is not used
_DIMS = {
    "labels": ("sample",),
    "weights": ("cluster",),
    "active": ("cluster",),
    "means": ("cluster", "feature"),
    "scales": ("cluster", "feature"),
    "class_probs": ("cluster", "class"),
}
_SIZE = parameters.Number(1, MOST, integer=True, words=("auto",))
_POSITIVE = parameters.Number(1e-9, 1e9)


@dataclass
class SampledRows:
    """Checked input of one fit: standardised rows (n, d), and their classes (n,), -1 for none."""

    X: np.ndarray
    codes: np.ndarray
    calls: tuple = ()  # what is sampled goes on, and is no single call


@parameters.constructor
class MDLMixture(Clusterer):
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
    energy : {"nml", "conjugate"}, default="nml"
        Code of a cluster. "nml" is normalised maximum likelihood of normal features within bounds,
        of classes and of cluster labels. "conjugate" has a prior for each, and both kernels then
        have the same target.
    covariance : {"diag", "full"}, default="diag"
        Of a cluster's features; "full" needs ``energy="conjugate"`` and ``kernel="collapsed"``.
    variance_floor : float or "auto", default="auto"
        Smallest standard deviation of a cluster, in units of that of all rows (``energy="nml"``).
        "auto" takes the one of .1, .2 and .4 under which the labels of `fit` are most probable when
        each is left out in turn, or .2 without labels. The posterior depends on it: it is a prior.
        A number is from 1e-6 to 100.
    concentration : float, default=1.0
        Of the symmetric Dirichlet prior of cluster sizes (``energy="conjugate"``, as all to
        follow); from 1e-9 to 10**9, as all to follow.
    class_concentration : float, default=0.5
        Of the symmetric Dirichlet prior of the classes of a cluster.
    mean_precision : float, default=0.3
        Rows that the prior of a cluster's mean counts for.
    variance_shape, variance_scale : float, default=2.0 and 0.5
        Of the inverse-gamma prior of a cluster's variances, in units of those of all rows.
    unordered : bool, default=True
        Whether the names of clusters are not sent. With False, as published, a clustering of k
        clusters pays log k! for them, which is a prior that favours few: numbers of clusters are
        then found with fewer rows, and classes of new rows predicted a little worse.
    num_warmup, num_samples : int, default=500 and 1000
        Steps that are dropped, and draws that are kept, of every chain; at most 10**8.
    num_chains : int, default=4
        Chains, at most 10,000; they start far from each other.
    thinning : int, default=1
        Steps from one draw to the next; at most 10**6.
    num_split_merge : int, default=5
        Proposals in a step to split or to merge clusters; at most 10,000.
    block : int or "auto", default="auto"
        Rows that a Gibbs move of the collapsed kernel visits together; 1 is the usual sweep, of
        which all are accepted. "auto" grows with the square root of the number of rows, whatever
        the columns: .84 are then accepted on iris (4 columns), and .67 on wine (13). A refused
        block costs time, never exactness; ``sample_stats_`` has the counts.
    rule : {"joint", "cond"}, default="joint"
        Whether a prediction weighs draws by how well they predict the row's features, as Bayes'
        rule has it, or takes their plain average.
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
        Draws, over chain, draw and sample: ``labels`` (names differ between draws), ``n_clusters``,
        ``length`` in nats, and the parameters if the kernel samples them.
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
    Yin (2007), chapter 4. Features are centred, and scaled to unit variance, on the rows of `fit`;
    constant ones are dropped. Features are independent within a cluster, so that a class whose
    features are correlated takes several clusters, unless ``covariance="full"``.

    With n rows, n_j in block j, m_j of them with a class, the code "nml" is

    .. math:: \phi = -n_j \log \frac{n_j}{n} + \sum_d \left[\frac{n_j}{2} \log 2 \pi s_{jd}^2
        + \frac{n_j v_{jd}}{2 s_{jd}^2} + PC_d(n_j)\right]
        - \sum_c m_{jc} \log \frac{m_{jc}}{m_j} + \log C(|c|, m_j), \quad
        A(k) = \log C(k, n) - \log k!

    where :math:`s_{jd}` is the standard deviation, not below the floor nor above half the range of
    the feature, PC is `nrprob.codelength.gaussian_complexity` and C that of the multinomial. The
    thesis has one complexity for all sizes (4.21), and acceptance ratios (4.28) to (4.36) that do
    not leave its distribution invariant; `nrprob.engines.sample` has ours.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import MDLMixture
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(30, 2)), rng.normal(6, 1, size=(30, 2))])
    >>> y = np.full(60, -1)
    >>> y[[0, 30]] = 0, 1
    >>> model = MDLMixture(num_samples=200, num_warmup=100, random_state=0).fit(X, y)
    >>> model.predict([[0, 0], [6, 6]]).tolist()
    [0, 1]
    """

    max_clusters: Annotated[int | str, _SIZE] = "auto"
    _: KW_ONLY
    kernel: Annotated[str, parameters.Choice(("collapsed", "six-move"))] = "collapsed"
    energy: Annotated[str, parameters.Choice(("nml", "conjugate"))] = "nml"
    covariance: Annotated[str, parameters.Choice(("diag", "full"))] = "diag"
    variance_floor: Annotated[float | str, parameters.Number(1e-6, 100, words=("auto",))] = "auto"
    concentration: Annotated[float, _POSITIVE] = 1.0
    class_concentration: Annotated[float, _POSITIVE] = 0.5
    mean_precision: Annotated[float, _POSITIVE] = 0.3
    variance_shape: Annotated[float, _POSITIVE] = 2.0
    variance_scale: Annotated[float, _POSITIVE] = 0.5
    unordered: parameters.Flag = True
    num_warmup: Annotated[int, parameters.Number(0, 10**8, integer=True)] = 500
    num_samples: Annotated[int, parameters.Number(1, 10**8, integer=True)] = 1000
    num_chains: Annotated[int, parameters.Number(1, 10_000, integer=True)] = 4
    thinning: parameters.Count = 1
    num_split_merge: Annotated[int, parameters.Number(0, 10_000, integer=True)] = 5
    block: Annotated[int | str, _SIZE] = "auto"
    rule: Annotated[str, parameters.Choice(("joint", "cond"))] = "joint"
    loss: Annotated[str, parameters.Choice(("vi", "binder"))] = "vi"
    checkpoint: Any = None
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    # Parameters

    _many_clusters = True
    _keeps_interrupted = True

    def check_parameters(self):
        """Refuse parameters that are wrong whatever the data."""
        super().check_parameters()
        if not isinstance(self.checkpoint, str | os.PathLike | None):
            raise TypeError(
                f"checkpoint must be the path of a folder; got {self.checkpoint!r}; pass its name"
            )
        if self.covariance == "full" and (self.energy, self.kernel) != ("conjugate", "collapsed"):
            raise ValueError(
                "covariance='full' has a code under the conjugate prior only; got "
                f"energy={self.energy!r} and kernel={self.kernel!r}; set energy='conjugate' and "
                "kernel='collapsed', or covariance='diag'"
            )

    def fit(self, X, y=None):  # type: ignore[override]
        """Sample clusterings of the rows of ``X``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows. Rows to be predicted may be among them, without their label: they help.
        y : array-like of shape (n_samples,), optional
            Classes, -1 where unknown.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data do not fit the parameters; the message says what to change.
        """
        return self._fit(X, y)

    def prepare(self, X, y, known=None) -> SampledRows:
        """Check the input and standardise it; see `Clusterer.prepare`."""
        self.check_parameters()
        self._check_one_device()
        X = check_rows(X, partial(validate_data, self, reset=True), dtype=np.float64)
        check_range(X)
        n = X.shape[0]
        codes = self._codes(y, n)
        most = min(20, n) if isinstance(self.max_clusters, str) else int(self.max_clusters)
        if most > n:
            raise ValueError(
                f"max_clusters exceeds the number of rows; got max_clusters={most} and "
                f"n_samples={n}; lower it, or pass more rows"
            )
        self._standardise(X)
        self._max_clusters = most
        return SampledRows(self._scaled(X), codes)

    def compute(self, task):
        """Sample; see `Clusterer.compute`."""
        self._begin(task.X, task.codes)
        self._sample(int(self.num_warmup), int(self.num_samples))
        return []

    def finish(self, task, found):
        """Return the estimator: what is drawn is summarised as it is drawn."""
        return self

    def fit_predict(self, X, y=None):
        """Sample clusterings and return the point estimate ``labels_``; see `fit`."""
        return self.fit(X, y).labels_

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
        with standard():
            self._sample(int(self.num_warmup), self._run.n_draws + int(num_samples))
        return self

    def _codes(self, y: Any, n: int) -> np.ndarray:
        if y is None:
            return np.full(n, -1, np.int32)
        classes, codes = read_labels(y, n)
        if classes.size:
            self.classes_ = classes
        return codes

    def _standardise(self, X: np.ndarray) -> None:
        mean, sd = X.mean(0), X.std(0)
        # Rounding leaves a trace of the size of the numbers themselves.
        constant = sd <= 1e-10 * np.maximum(np.abs(X).max(0), np.finfo(float).tiny)
        if X.shape[0] > 1 and constant.any():
            which = ", ".join(map(str, np.flatnonzero(constant)[:5]))
            self._degenerate(
                f"{constant.sum()} constant column(s) say nothing of clusters and are left out; "
                f"got column {which}{', ...' if constant.sum() > 5 else ''}; drop them"
            )
        self._kept = np.flatnonzero(~constant)
        self._mean, self._sd = mean[self._kept], sd[self._kept]

    def _scaled(self, X: np.ndarray) -> np.ndarray:
        return (X[:, self._kept] - self._mean) / self._sd

    def _code(self, floor: float) -> MixtureCode:
        return MixtureCode(
            self.energy,
            self.covariance,
            floor,
            float(self.concentration),
            float(self.class_concentration),
            float(self.mean_precision),
            float(self.variance_shape),
            float(self.variance_scale),
            bool(self.unordered),
        )

    def _begin(self, X: np.ndarray, codes: np.ndarray) -> None:
        n_classes = int(codes.max(initial=-1)) + 1
        random = check_random_state(self.random_state)
        keys = [jax.random.PRNGKey(random.randint(2**31 - 1)) for _ in range(2)]
        if self.checkpoint is not None and self.random_state is None:
            raise ValueError(
                "a run that is to be taken up again needs a seed; got random_state=None with "
                "checkpoint; set random_state to a number"
            )

        floor = 0.2 if isinstance(self.variance_floor, str) else float(self.variance_floor)
        if isinstance(self.variance_floor, str) and self.energy == "nml" and n_classes > 1:
            floor = self._choose_floor(X, codes, n_classes, keys[1])
        if self.energy == "nml":
            self.variance_floor_ = floor
        self._n_classes, self._n_rows = n_classes, X.shape[0]
        self._used = self._code(floor)
        self._partition = self._used.target(X, codes, n_classes, self._max_clusters)
        kernel, target = self._kernel(X.shape[0]), self._partition  # type: tuple[Any, Any]
        if self.kernel == "six-move":
            from nrprob.methods.bayes.six_move import SixMoveKernel

            kernel = SixMoveKernel(n_split_merge=int(self.num_split_merge))
            target = self._used.mixture_target(X, codes, n_classes, self._max_clusters)
        states = dispersed(kernel, target, keys[0], int(self.num_chains))
        folder = None if self.checkpoint is None else Path(self.checkpoint)
        self._run = CheckpointedChains(kernel, target, states, int(self.thinning), folder)
        self._partition = jax.device_get(self._partition)

    def _kernel(self, n: int) -> PartitionKernel:
        """Collapsed moves."""
        kernel = default_kernel(n, int(self.num_split_merge))
        if isinstance(self.block, str):
            return kernel
        # A block of all rows would always come back as one cluster.
        return replace(kernel, block=min(int(self.block), max(n // 2, 1)))

    def _choose_floor(
        self, X: np.ndarray, codes: np.ndarray, n_classes: int, key: jax.Array
    ) -> float:
        """Floor under which the labels are most probable, each left out in turn."""
        kernel, scores = self._kernel(X.shape[0]), {}
        for floor in FLOORS:
            target = self._code(floor).target(X, codes, n_classes, self._max_clusters)
            pilot = CheckpointedChains(
                kernel, target, dispersed(kernel, target, key, int(self.num_chains))
            )
            pilot.advance(_PILOT // 2, _PILOT // 2)
            draws = pooled(pilot.all_draws()["labels"], AVERAGED)
            scores[floor] = float(leave_one_out(target, draws).sum())
        self.variance_floor_scores_ = scores
        return max(scores, key=lambda floor: scores[floor])

    def _sample(self, num_warmup: int, num_draws: int) -> None:
        try:
            self._run.advance(num_warmup, num_draws, verbose=self.verbose)
        finally:
            # What was finished is kept if the user interrupts.
            if self._run.n_draws:
                self._summarise()

    # Results

    def _summarise(self) -> None:
        import xarray

        from nrprob.posterior import point_estimate

        draws, moves = self._run.all_draws(), self._run.all_moves()
        draws["labels"] = draws["labels"][..., : self._n_rows]
        self.posterior_ = xarray.Dataset(
            {name: (("chain", "draw", *_DIMS.get(name, ())), a) for name, a in draws.items()}
        )
        self.sample_stats_ = xarray.Dataset(
            {name: (("chain", "draw"), a) for name, a in moves.items() if "swap" not in name}
        )
        lengths = draws["length"]
        best = np.unravel_index(lengths.argmin(), lengths.shape)
        self.objective_ = float(lengths[best])
        self.objective_trace_ = lengths[best[0]]
        self.n_iter_ = self._run.n_warm + self._run.n_draws * self._run.thinning
        flat = pooled(draws["labels"], int(np.clip(ENTRIES // self._n_rows, 64, AVERAGED)))
        labels = point_estimate(
            flat, loss=self.loss, max_clusters=self._max_clusters, random_state=0
        )
        self.labels_ = np.unique(labels, return_inverse=True)[1]
        self.n_clusters_ = int(self.labels_.max()) + 1
        self.membership_ = block_shares(flat, self.labels_)
        self._check_convergence(draws)

    def _check_convergence(self, draws: dict[str, np.ndarray]) -> None:
        self.r_hat_, table = agreement(draws, self.labels_)
        self.diagnostics_ = table
        every = {**table["r_hat"], **self.r_hat_}
        self.converged_ = all(r < 1.05 for r in every.values())
        if not self.converged_:
            most = max(every, key=lambda name: every[name])
            both = ", ".join(f"{name} {r:.3f}" for name, r in self.r_hat_.items())
            warn(
                f"the chains do not agree yet; got R-hat of {both}, and at most {every[most]:.3f} "
                f"({most}), after {self._run.n_draws} draws; look at diagnostics_, and go on with "
                "extend, or raise num_warmup and num_samples",
                ConvergenceWarning,
            )

    def to_arviz(self, *, log_likelihood=True):
        """Draws, statistics of the moves, log likelihood and data, as ArviZ reads them.

        Parameters
        ----------
        log_likelihood : bool, default=True
            Whether to work out the log density of every row under every draw: as many numbers as
            there are labels, eight bytes each.

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
            Posterior; ``sample_stats`` with the shares of accepted moves of every kind (NaN where
            none was proposed); the log density of every row (with its class) given the other rows
            of its block, which `arviz.loo` takes; the standardised data.

        Notes
        -----
        With ``energy="nml"`` these log densities are differences of code lengths, whose
        exponentials do not add up to 1 over all rows that there might be: per feature, to between
        .93 and 1.11 given two other rows, and to between .96 and 1.02 given ten. The more columns
        and the smaller the clusters, the less does `arviz.loo` mean; with ``energy="conjugate"``
        they are normalised.

        Rows are along the dimension ``sample``, a name that `arviz.extract` wants for itself: pass
        it ``combined=False``.
        """
        check_is_fitted(self)
        from nrprob.posterior import to_arviz

        stats: dict[str, np.ndarray] = {"lp": -self.posterior_["length"].values}
        for name in self.sample_stats_:
            done = f"{name}_accepted"
            if done in self.sample_stats_:
                tried = self.sample_stats_[name].values
                share = self.sample_stats_[done].values / np.where(tried > 0, tried, 1)
                stats[f"acceptance_{name}"] = np.where(tried > 0, share, np.nan)
        posterior = {str(name): v.values for name, v in self.posterior_.items()}
        target = self._partition
        density = {}
        if log_likelihood:
            labels = posterior["labels"].reshape(-1, self._n_rows)
            with standard():
                found = np.asarray(density_of_rows(target, padded(labels, target)))
            found = found[:, : self._n_rows].reshape(posterior["labels"].shape)
            density = {"rows": found}
        x = np.asarray(target.x)[: self._n_rows]
        observed: dict[str, np.ndarray] = {"X": x[:, : self._kept.size]}
        if self._n_classes:
            classes = x[:, -1 - self._n_classes : -1]
            observed["y"] = np.where(classes.any(1), classes.argmax(1), -1)
        dims = {str(name): list(map(str, v.dims[2:])) for name, v in self.posterior_.items()}
        return to_arviz(
            posterior,
            sample_stats=stats,
            log_likelihood=density,
            observed_data=observed,
            coords={"sample": range(self._n_rows), "feature": self._kept.tolist()},
            dims=dims | {"rows": ["sample"], "X": ["sample", "feature"], "y": ["sample"]},
        )

    # New rows

    def predict_proba(self, X):  # type: ignore[override]
        r"""Probabilities of the classes, averaged over the draws.

        .. math:: p(y | x, D) = \frac{\sum_s p(x, y | s)}{\sum_s p(x | s)}

        (``rule="joint"``; "cond" averages p(y | x, s)), where p(x, y | s) is the sum over the
        blocks of a draw, and a new one, of what joining them costs, exponentiated. Yin (2007), eqs.
        (4.7) and (4.9), whose denominator is p(x | D).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns are ``classes_``. Without classes in `fit`, those of the clusters ``labels_``.
        """
        return self._over_draws(X, self._probabilities)

    def score(self, X, y=None):
        r"""Mean log predictive density of new rows; higher is better.

        .. math:: \frac{1}{n} \sum_i \log \frac{1}{S} \sum_s \sum_b p(b | s) p(x_i | b, s)

        over the draws s and their blocks b, a new one among them. With ``energy="nml"``, p(x | b,
        s) is ``exp(-l)``, l being what the row adds to the code length of the block's features: no
        density, but as good for comparisons with the same ``energy``. Constant columns do not
        count.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        float
            In nats per row.
        """
        found = self._over_draws(X, log_densities)
        return float(found.mean() - np.log(self._sd).sum())  # they are those of scaled rows

    def _over_draws(self, X: Any, call: Callable[..., Any]) -> np.ndarray:
        """Return ``call(target, draws, n_draws, x)`` of new rows, whose statistics are x."""
        check_is_fitted(self)
        X = check_rows(X, partial(validate_data, self, reset=False), dtype=np.float64)
        X = self._scaled(X)
        if not abs(X).max(initial=0) < LARGEST:
            raise ValueError(
                f"new rows must lie within {LARGEST} standard deviations of those of the fit, or "
                f"squares leave float64; got a distance of {abs(X).max():.3g}; pass them in the "
                "units of the fit"
            )
        draws = pooled(self.posterior_["labels"].values, AVERAGED)
        with standard():
            target = self._partition
            n_draws = len(draws)
            draws = np.pad(padded(draws, target), ((0, max(AVERAGED - n_draws, 0)), (0, 0)))
            x = self._used.statistics(X, np.full(X.shape[0], -1), self._n_classes)
            x = np.concatenate([x, np.ones((X.shape[0], 1))], 1)
            parts = []
            for i in range(0, X.shape[0], 1024):
                part = x[i : i + 1024]
                # Parts of few sizes, so that programs for other numbers of rows serve again.
                wide = np.pad(part, ((0, -len(part) % 64), (0, 0)), mode="edge")
                found = np.asarray(call(target, draws, n_draws, wide))
                parts.append(found[: len(part)])
        return np.concatenate(parts)

    def _probabilities(
        self, target: Target, draws: np.ndarray, n_draws: int, x: np.ndarray
    ) -> jax.Array:
        if self._n_classes and self.kernel == "six-move" and self.energy == "nml":
            return self._from_parameters(x)
        if self._n_classes:
            return class_probabilities(target, draws, n_draws, x, rule=self.rule)
        reference = np.zeros((target.x.shape[0], self.n_clusters_))
        reference[np.arange(self._n_rows), self.labels_] = 1
        return cluster_probabilities(target, draws, n_draws, x, reference, rule=self.rule)

    def _from_parameters(self, x: np.ndarray) -> jax.Array:
        """As the parameters that were drawn say, where they are not coded."""
        draws = {name: pooled(v.values, AVERAGED) for name, v in self.posterior_.items()}
        n_draws = len(draws.pop("labels"))
        pad = max(AVERAGED - n_draws, 0)
        wide = {
            name: np.concatenate([a, np.repeat(a[-1:], pad, axis=0)])
            for name, a in draws.items()
            if name in ("weights", "means", "scales", "class_probs", "active")
        }
        features = x[:, : self._kept.size]
        return mixture_probabilities(wide, n_draws, features, rule=self.rule)

    def predict(self, X):  # type: ignore[override]
        """Most probable class; without classes in `fit`, the most probable cluster of ``labels_``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        at = self.predict_proba(X).argmax(1)
        return self.classes_[at] if self._n_classes else at
