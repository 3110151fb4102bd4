"""Run the chains of `nrprob.MDLMixture`, and summarise their draws."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from nrprob.engines.placement import small_steps_on_cpu
from nrprob.engines.sample.checkpoints import CheckpointedChains, Report, progress_bar
from nrprob.exceptions import warn
from nrprob.methods.bayes.draws import MAX_DRAWS, MAX_LABELS, cluster_shares, pool_draws
from nrprob.methods.bayes.model_settings import ModelSettings
from nrprob.methods.bayes.stopping import (
    CLUSTERS,
    MONITORED,
    count_discarded,
    describe_shortfall,
    diagnose_chains,
    has_converged,
    has_settled,
    look_sizes,
)
from nrprob.posterior.merge_trees import smallest_size
from nrprob.posterior.merging import check_threshold
from nrprob.settings import standard

_MAX_BYTES = 10**9  # largest size of all draws of a run with num_samples="auto"
_SMALLEST_ESS = 100  # effective sample size below which `fit` warns, after a fixed number of draws
_UNCERTAIN = 0.5  # probability of the number of clusters of `labels_` below which `fit` warns
_AT_LIMIT = 0.05  # share of draws with `max_clusters` components above which `fit` warns
_DIMS = {
    "components": ("observation",),
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


class SampledChains(ModelSettings):
    """The part of `nrprob.MDLMixture` that runs the chains and summarises their draws."""

    num_warmup: Any
    kernel: str
    num_chains: Any
    max_samples: Any
    merge: str | None
    dip: Any
    loss: str
    verbose: Any
    _max_clusters: int
    _run: CheckpointedChains
    _run_until: bool  # whether chains run until convergence
    _draws_of_fit: int  # draws of each chain in `fit`, without `extend`; 10**9 while `fit` runs
    _diagnosed: tuple[dict[str, np.ndarray], np.ndarray, Any] | None  # last result of `_diagnose`

    def extend(self, num_samples):
        """Continue sampling from the last state of `fit` or `extend`.

        Parameters
        ----------
        num_samples : int
            Further draws of every chain.

        Returns
        -------
        self
            The estimator with the draws of all runs, which are equal to the draws of one longer
            run.
        """
        check_is_fitted(self, "_run")
        self._check_number("num_samples", num_samples, low=1, high=10**8, integer=True)
        self._draws_of_fit = min(self._draws_of_fit, self._run.n_draws)
        with standard(), small_steps_on_cpu():
            self._run_chains(self._run.n_draws + int(num_samples))
        return self

    def _run_chains(self, num_draws: int | None, deadline: float = np.inf) -> None:
        """Run the chains to ``num_draws`` draws in total; if it is None, until convergence.

        At the ``deadline``, a value of `time.monotonic`, a run until convergence stops.
        """
        self.stopped_, self._diagnosed = "interrupted", None
        try:
            with progress_bar(self.verbose, "components") as report:
                if num_draws is None:
                    self.stopped_ = self._run_to_convergence(report, deadline)
                else:
                    self._run.advance(int(self.num_warmup), num_draws, report=report)
                    self.stopped_ = "num_samples"
        finally:
            # An interrupt by the user keeps the draws so far.
            if self._run.n_draws:
                self._summarise_draws()

    def _run_to_convergence(self, report: Report, deadline: float) -> str:
        """Run the chains until they converge or reach a limit; return why they stopped."""
        affordable = max(_MAX_BYTES // self._run.draw_bytes, 1000)
        for size in look_sizes(min(int(self.max_samples), affordable)):
            self._run.advance(int(self.num_warmup), size, report=report, deadline=deadline)
            if self._run.n_draws < size:
                return "max_seconds"
            draws = self._select_components(size)
            if has_settled(draws) and has_converged(self._diagnose(draws)[2]):
                return "converged"
            if time.monotonic() >= deadline:
                return "max_seconds"
        return "max_samples" if affordable >= int(self.max_samples) else "max_memory"

    def _select_draws(self, draws: dict[str, np.ndarray], n_draws: int) -> dict[str, np.ndarray]:
        """Select the draws after the warm-up, among the first ``n_draws`` draws.

        The arrays of the result have no padding of samples, and no surplus slots for components.
        """
        run = self._run
        in_fit = min(n_draws, self._draws_of_fit)  # `extend` discards no further draws
        first = count_discarded(in_fit, run.n_warm, run.thinning) if self._run_until else 0
        draws = {name: a[:, first:n_draws] for name, a in draws.items()}
        for name in draws.keys() & {n for n, dims in _DIMS.items() if dims == ("observation",)}:
            draws[name] = draws[name][..., : self._n_rows]
        for name in draws.keys() & {n for n, dims in _DIMS.items() if dims[0] == "cluster"}:
            draws[name] = draws[name][:, :, : self._max_clusters]  # other slots are always empty
        return draws

    def _select_components(self, n_draws: int) -> dict[str, np.ndarray]:
        """Select draws after the warm-up, and copy their labels to ``components``.

        ``components`` remain the labels of the components when ``labels`` are merged into clusters.
        """
        draws = self._select_draws(self._run.all_draws(), n_draws)
        return draws | {"components": draws["labels"], "n_components": draws["n_clusters"]}

    def _merge_components(self, draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Merge the components of draws into clusters; see the parameter ``merge``."""
        if self.merge is None:
            return draws
        trees = self._build_merge_trees(draws)
        threshold = check_threshold(self.dip, trees.rule)
        shape = draws["labels"].shape
        n_clusters = trees.count_clusters(threshold)[0].reshape(shape[:2])
        return draws | {
            "labels": trees.cut(threshold).codes.reshape(shape).astype(draws["labels"].dtype),
            "n_clusters": n_clusters,
        }

    def _diagnose(
        self, draws: dict[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], np.ndarray, Any]:
        """Merge the components of draws, and diagnose the chains.

        Returns the draws with merged clusters, the point estimate (n,) of the partition, and the
        table of diagnostics. A second call with the same number of draws returns the stored result.
        """
        from nrprob.posterior import point_estimate

        n_draws = draws["log_density"].shape[1]
        if self._diagnosed is None or self._diagnosed[0]["log_density"].shape[1] != n_draws:
            draws = self._merge_components(draws)
            labels = point_estimate(
                self._pool_labels(draws["labels"]),
                loss=self.loss, max_clusters=self._max_clusters, random_state=0,
            )  # fmt: skip
            labels = np.unique(labels, return_inverse=True)[1]
            self._diagnosed = draws, labels, diagnose_chains(draws, labels)
        return self._diagnosed

    def _pool_labels(self, labels: np.ndarray) -> np.ndarray:
        """Labels (S, n) of evenly spaced draws, for point estimates."""
        limit = np.clip(MAX_LABELS // self._n_rows, 64, MAX_DRAWS)
        return pool_draws(labels, int(limit))

    def _summarise_draws(self) -> None:
        import xarray

        n_draws = self._run.n_draws
        draws, self.labels_, self.diagnostics_ = self._diagnose(self._select_components(n_draws))
        self._diagnosed = None
        moves = self._select_draws(self._run.all_moves(), n_draws)
        self.posterior_ = xarray.Dataset(
            {name: (("chain", "draw", *_DIMS.get(name, ())), a) for name, a in draws.items()}
        )
        swaps = "swap" in moves and moves["swap"].any()  # only with known groups
        idle = () if swaps else ("swap", "swap_accepted")
        self.sample_stats_ = xarray.Dataset(
            {name: (("chain", "draw"), a) for name, a in moves.items() if name not in idle}
        )
        lengths = -draws["log_density"]
        best = np.unravel_index(lengths.argmin(), lengths.shape)
        self.objective_ = float(lengths[best])
        self.objective_trace_ = lengths[best[0]]
        self.n_iter_ = self._run.n_warm + self._run.n_draws * self._run.thinning
        sizes = np.bincount(self.labels_)
        self.n_clusters_ = len(sizes)
        self.n_major_clusters_ = max(int((sizes >= smallest_size(self._n_rows)).sum()), 1)
        self.membership_ = cluster_shares(self._pool_labels(draws["labels"]), self.labels_)
        self._warn_small_clusters(sizes)
        self._warn_most_components(draws["n_components"])
        self._warn_uncertain_number(draws["n_clusters"])
        self._check_convergence()
        self._warn_one_chain()

    def _warn_most_components(self, n_components: np.ndarray) -> None:
        """Warn if many draws have as many components as the default ``max_clusters`` allows."""
        share = (n_components == self._max_clusters).mean()
        bounded = isinstance(self.max_clusters, str) and self._max_clusters < self._n_rows
        if bounded and share > _AT_LIMIT:
            warn(
                "the largest number of components limits the draws; got "
                f"max_clusters={self._max_clusters} in {100 * share:.0f} % of them; raise "
                "max_clusters"
            )

    def _warn_uncertain_number(self, n_clusters: np.ndarray) -> None:
        """Warn if most draws have another number of clusters than the point estimate."""
        if self.merge is None and self.kernel == "six-move":
            return  # empty components count in the draws
        number = self.n_clusters_ if self.merge is None else self.n_major_clusters_
        share = (n_clusters == number).mean()
        if share < _UNCERTAIN:
            warn(
                f"most draws have another number of clusters than labels_; got {number} in labels_ "
                f"and in {100 * share:.0f} % of the draws; look at posterior.n_clusters of the fit"
            )

    def _warn_one_chain(self) -> None:
        if int(self.num_chains) == 1:
            warn(
                "one chain cannot show that another mode was missed; got num_chains=1; "
                "pass num_chains=4",
                ConvergenceWarning,
            )

    def _check_convergence(self) -> None:
        table = self.diagnostics_
        names = "log_density", "n_clusters", "n_components"
        self.r_hat_ = {name: float(table["r_hat"][name]) for name in names}
        n_draws = self._run.n_draws
        if self._run_until:
            self.converged_ = has_converged(table)
            if not self.converged_:
                raised = "max_samples or max_seconds"
                if self.stopped_ == "max_memory":  # thinning stores fewer draws per iteration
                    raised = "thinning"
                state, use = "the chains have not converged", "look at diagnostics_"
                if has_converged(table, CLUSTERS):
                    state = "clusters have converged, but the number of components has not"
                    use = "use the clusters"
                warn(
                    f"{state} after {n_draws} draws of each chain ({self.stopped_}); got "
                    f"{describe_shortfall(table)}; {use}, and go on with extend, or raise {raised}",
                    ConvergenceWarning,
                )
            return
        self.converged_ = bool((table["r_hat"] < 1.05).all())
        bulk = table.loc[list(MONITORED), "ess_bulk"]
        if np.isnan(self.r_hat_["log_density"]):
            few = "one draw" if n_draws == 1 else "so few draws"
            warn(
                f"{few} cannot be diagnosed; got {n_draws} of each chain; go on with extend, or "
                "pass num_samples='auto' or several hundred",
                ConvergenceWarning,
            )
        elif self.converged_ and bulk.min() < _SMALLEST_ESS:
            warn(
                f"the effective sample size is small after {n_draws} draws of each chain; got a "
                f"bulk ESS of {bulk.min():.0f} of {bulk.idxmin()}; draw more samples with extend, "
                f"until it is {_SMALLEST_ESS} or more",
                ConvergenceWarning,
            )
        elif not self.converged_:
            worst = table["r_hat"].fillna(np.inf).idxmax()
            both = ", ".join(f"{name} {r:.3f}" for name, r in self.r_hat_.items())
            warn(
                f"the chains do not agree yet; got R-hat of {both}, and at most "
                f"{table['r_hat'][worst]:.3f} ({worst}), after {n_draws} draws; look at "
                "diagnostics_, and go on with extend, or raise num_warmup and num_samples",
                ConvergenceWarning,
            )
