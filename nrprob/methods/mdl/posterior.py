"""Posterior of the cluster labels of several views, defined by a description length.

A view has d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from nrprob.data.frames import check_same_order, extract_known
from nrprob.data.validation import MOST, check_random_state
from nrprob.engines.placement import small_steps_on_cpu
from nrprob.engines.sample.chains import begin_at
from nrprob.engines.sample.checkpoints import CheckpointedChains, progress_bar
from nrprob.exceptions import warn
from nrprob.methods.mdl.complete_codes import (
    EFFECT_SCALES,
    GAUSSIAN_PRIORS,
    make_views_target,
)
from nrprob.methods.mdl.informed_fit import initial_labels
from nrprob.methods.mdl.informed_views import InformedTask, InformedViews
from nrprob.methods.mdl.view_kernel import ViewsKernel
from nrprob.posterior import diagnose, to_arviz
from nrprob.settings import standard
from nrprob.statistics.groups import group_means

if TYPE_CHECKING:
    import pandas as pd
    import xarray

_LARGEST_R_HAT, _SMALLEST_ESS = 1.05, 100
_VARIES = 1e-6  # smallest ratio of the standard deviations within groups and over all samples
_DIMS = {
    "labels": ("view", "observation"),
    "parents": ("view",),
    "n_clusters": ("view",),
    "hyperparameters": ("view", "hyperparameter"),
    "effects": ("view", "group", "feature"),
    "effect_scale": ("view",),
}


@dataclass
class ViewPosterior:
    """Draws from the posterior of the labels of several views.

    Attributes
    ----------
    draws : xarray.Dataset
        All results have ``labels`` (chain, draw, view, observation); ``n_clusters`` (chain, draw,
        view), the number of clusters with samples; and ``log_density`` (chain, draw), minus the
        description length in nats, for features in units of X. If labels are coded by a forest,
        ``parents`` (chain, draw, view) has the parent of every view, -1 for roots. With continuous
        views, ``hyperparameters`` (chain, draw, view, hyperparameter) refers to standardised
        features. With known groups and continuous views, there are ``effects`` (chain, draw, view,
        group, feature) and ``effect_scale`` (chain, draw, view). Effects are relative to the mean
        over samples, in units of X, and NaN beyond the features of a view. ``effect_scale`` is the
        standard deviation of the effects on standardised features.
    sample_stats : xarray.Dataset
        Numbers of proposed and of accepted moves since the previous draw, each of shape (chain,
        draw).
    diagnostics : pandas.DataFrame
        Result of `nrprob.posterior.diagnose` for the labels of every view. Further rows are for the
        log density, the edges of the forest, and the standard deviations of the effects of known
        groups.
    converged : bool
        Whether R-hat is below 1.05 and the bulk ESS at least 100, for all quantities in
        ``diagnostics``.
    """

    draws: xarray.Dataset
    sample_stats: xarray.Dataset
    diagnostics: pd.DataFrame
    converged: bool

    def labels(self, view: int = 0) -> xarray.DataArray:
        """Labels (chain, draw, observation) of one view, for the functions of `nrprob.posterior`.

        Parameters
        ----------
        view : int, default=0
            Index of the view.
        """
        return self.draws["labels"].isel(view=view)

    def to_arviz(self) -> Any:
        """Convert the draws to the container type of the installed ArviZ.

        See `nrprob.posterior.to_arviz`. Labels of all views are in the group ``partition``. Pass
        ``labels(view)`` to functions of `nrprob.posterior`, which need the labels of one view.
        """
        posterior = {str(name): a for name, a in self.draws.items() if name != "labels"}
        stats = {str(name): a for name, a in self.sample_stats.items()}
        labels = {"labels": self.draws["labels"]}
        return to_arviz(posterior, partition=labels, sample_stats=stats)


class SampledViews(InformedViews):
    """Base class of multi-view clusterers that sample the posterior of the labels."""

    def sample_posterior(
        self, X, y=None, *, known=None, must_link=None, cannot_link=None,
        num_samples=1000, num_warmup=500, num_chains=4, thinning=1, random_state=None,
    ) -> ViewPosterior:  # fmt: skip
        r"""Sample the posterior of the labels of all views.

        .. math:: p(z_1, ..., z_V, forest \mid X) \propto \exp(-L)

        where z_v are the labels of view v, and the forest is part of the code of the labels. The
        description length L is the objective of the fit, with complete codes only. Binary features,
        counts, labels, pairs and classes have the same codes as in `fit`. Labels that are coded by
        a forest are sampled together with the forest. Clusters of continuous features have normal
        distributions; their parameters have conjugate priors and are integrated out. Covariances
        are full for ``covariance="full"`` and "full_cluster", and diagonal for other values. The
        method does not need a fit, and does not change a fitted model.

        Parameters
        ----------
        X, y, must_link, cannot_link : as in `fit`
        known : array-like of shape (n_samples,) or (n_samples, n_labelings), optional
            Known groups. Binary features and counts have separate frequencies in every group. In
            continuous views, every group shifts all clusters by an effect, which is sampled.
        num_samples : int, default=1000
            Number of draws of every chain.
        num_warmup : int, default=500
            Number of warm-up iterations of every chain, before the first draw.
        num_chains : int, default=4
            Number of chains, from different initial labels. At most 1000.
        thinning : int, default=1
            Number of iterations from one draw to the next.
        random_state : int, RandomState instance or None, default=None
            Seed; None uses the ``random_state`` of the estimator.

        Returns
        -------
        ViewPosterior
            Draws, counts of moves and diagnostics. If the user interrupts sampling, the result has
            the draws so far.

        Raises
        ------
        InfeasibleConstraints
            A ValueError, if no clustering satisfies the hard constraints.
        ValueError
            If the data do not fit the parameters; the message says what to change.

        Warns
        -----
        ConvergenceWarning
            If the chains disagree, or if there are too few effective draws.

        See Also
        --------
        nrprob.posterior.point_estimate : Point estimate of a partition from draws of labels.
        MDLMixture : Bayesian mixture of a single view.

        Notes
        -----
        The posterior is a distribution over unordered partitions: the probability of a partition is
        the sum over its labelings. With a given number of clusters K, clusters may be empty, and a
        partition into k clusters has K! / (K - k)! labelings. With "auto", numbers of clusters from
        1 to ``max_clusters`` have equal prior probabilities, and a partition into k clusters has k!
        labelings. ``log_density`` belongs to a single labeling. ``dependent="auto"`` is the same as
        True.
        ``sigma``, ``geometry``, ``scale_range`` and ``centre_code`` have no effect.

        Conjugate priors, for standardised features: the mean of a cluster has the prior
        :math:`N(0, \Sigma / \kappa)`, and its covariance an inverse-Wishart distribution of mean
        :math:`v I` with :math:`d + 1 + f` degrees of freedom. :math:`\kappa`, v and f are sampled
        from a grid. Features are standardised within known groups. The effect of a known group in a
        continuous view has the prior :math:`N(0, \tau^2 I)`, and :math:`\tau` is sampled from a
        grid, too.

        An iteration samples the labels of every sample jointly in all views; moves must-linked
        samples together; proposes to split, merge or redivide clusters of a random view; samples
        the forest; and samples effects and hyperparameters. With K_v clusters and d_v features in
        view v, and K the largest K_v, an iteration takes time
        :math:`O(n (V^2 K^2 + \sum_v K_v d_v))`.

        References
        ----------
        S. Jain and R. M. Neal (2004), "A split-merge Markov chain Monte Carlo procedure for the
        Dirichlet process mixture model", Journal of Computational and Graphical Statistics 13(1),
        doi:10.1198/1061860043001. D. B. Dahl (2005), "Sequentially-allocated merge-split sampler
        for conjugate and nonconjugate Dirichlet process mixture models", technical report, Texas
        A&M University.

        Examples
        --------
        >>> import numpy as np
        >>> from nrprob import MDLMultiView
        >>> from nrprob.posterior import n_clusters
        >>> z = np.repeat([0, 1], 30)
        >>> views = [np.eye(2)[z] @ np.ones((2, 4)) * z[:, None] for _ in range(2)]
        >>> model = MDLMultiView("auto", features="bernoulli", max_clusters=3)
        >>> posterior = model.sample_posterior(views, num_samples=500, random_state=0)
        >>> posterior.labels(1).shape
        (4, 500, 60)
        >>> int(n_clusters(posterior.labels(1))["probability"].idxmax())
        2
        """
        for name, value, low, high in (
            ("num_samples", num_samples, 1, MOST), ("num_warmup", num_warmup, 0, MOST),
            ("num_chains", num_chains, 1, 1000), ("thinning", thinning, 1, MOST),
        ):  # fmt: skip
            self._check_number(name, value, low=low, high=high, integer=True)
        random = check_random_state(self.random_state if random_state is None else random_state)
        check_same_order(X, y=y)
        X, known = extract_known(X, known)
        # A copy prepares the data, so that a fitted model does not change. A fit with view gains
        # is never annealed, so that its task has the scaled views and all side information.
        model = clone(self).set_params(view_gain=True)
        with standard(), small_steps_on_cpu():
            task = model.prepare(X, y, known, must_link=must_link, cannot_link=cannot_link)
            chains, units = model._start_chains(task, int(num_chains), int(thinning), random)
            with progress_bar(self.verbose) as report:
                try:
                    chains.advance(int(num_warmup), int(num_samples), report=report)
                except KeyboardInterrupt:
                    if not chains.n_draws:
                        raise
                    warn(
                        f"sampling was interrupted; got {chains.n_draws} of {num_samples} draws; "
                        "call sample_posterior again for all draws"
                    )
        return _summarise_chains(chains, units, model._group_names)

    def _start_chains(
        self, task: InformedTask, num_chains: int, thinning: int, random: np.random.RandomState
    ) -> tuple[CheckpointedChains, dict[int, np.ndarray]]:
        """Make chains whose initial labels are computed as for the restarts of a fit.

        Returns
        -------
        chains : chains before the first iteration
        units : for every continuous view, by index, the units (d,) of the standardised features:
            differences in X that correspond to a difference of 1
        """
        kinds, tables = task.kinds, list(task.tables)
        continuous = [v for v, kind in enumerate(kinds) if kind == "gaussian"]
        constant, n, units = 0.0, len(tables[0]), dict[int, np.ndarray]()
        for v in continuous:
            scale = tables[v].std(0)
            scale[scale == 0] = 1
            within = (tables[v] - group_means(tables[v], task.groups)[task.groups]).std(0)
            # Features that the groups determine keep their scale over all samples.
            scale = np.where(within > _VARIES * scale, within, scale)
            tables[v], units[v] = tables[v] / scale, scale * self._views[v].scale
            constant += n * float(np.log(units[v]).sum())
        length = self._length(task, bool(self.dependent))
        labels = np.stack(initial_labels(length, num_chains, random, task.classes)).swapaxes(1, 2)
        target = make_views_target(
            length, tables, kinds, task.groups,
            full=self._covariance in ("full", "full_cluster"), constant=constant,
        )  # fmt: skip
        kernel = ViewsKernel()
        keys = jax.random.split(jax.random.PRNGKey(random.randint(2**31 - 1)), num_chains)
        states = begin_at(kernel, target, jnp.asarray(labels), keys)
        return CheckpointedChains(kernel, target, states, thinning), units


def _summarise_chains(
    chains: CheckpointedChains, units: dict[int, np.ndarray], group_names: list[str]
) -> ViewPosterior:
    """Collect the draws and diagnostics of chains, and warn if the chains have not converged.

    ``units`` has the units (d,) of the standardised features of continuous views; see
    `SampledViews._start_chains`. ``group_names`` are the names of the known groups.
    """
    import pandas as pd
    import xarray

    draws, target = chains.all_draws(), chains.target
    prior, scale = draws.pop("prior"), draws.pop("effect_scale")
    effects = draws.pop("effects")
    has_effects = [grid is not None for grid in target.effect_scales]
    continuous = [grid is not None for grid in target.priors]
    if any(continuous):
        values = np.where(np.array(continuous)[:, None], GAUSSIAN_PRIORS[prior], np.nan)
        draws["hyperparameters"] = values
    if any(has_effects):
        # Effects relative to the mean over samples, in units of X.
        shares = np.bincount(target.views[0].group) / target.n_samples
        effects = effects - np.einsum("g,...gd->...d", shares, effects)[..., None, :]
        for v, has_effect in enumerate(has_effects):
            d = len(units[v]) if has_effect else 0
            effects[:, :, v, :, :d] *= units[v] if d else 1
            effects[:, :, v, :, d:] = np.nan
        draws["effects"] = effects
        draws["effect_scale"] = np.where(has_effects, EFFECT_SCALES[scale], np.nan)
    has_forest = target.code == "forest" and target.n_views > 1
    if not has_forest:
        del draws["parents"]
    data = xarray.Dataset(
        {name: (("chain", "draw", *_DIMS.get(name, ())), a) for name, a in draws.items()}
    )
    if any(continuous):
        data = data.assign_coords(hyperparameter=["kappa", "variance", "freedom"])
    if any(has_effects):
        data = data.assign_coords(group=group_names)
    moves = chains.all_moves()
    idle = {name for name, a in moves.items() if not a.any()}
    stats = xarray.Dataset(
        {name: (("chain", "draw"), a) for name, a in moves.items() if name not in idle}
    )
    extra = {"log_density": draws["log_density"]}
    if has_forest:
        extra |= _edge_traces(draws["parents"])
    extra |= {
        f"effect_scale[{v}]": draws["effect_scale"][..., v]
        for v, has_effect in enumerate(has_effects) if has_effect
    }  # fmt: skip
    parts = []
    for v in range(target.n_views):
        table = diagnose(
            draws["labels"][:, :, v], pairs=5, extra=extra if v == 0 else None, random_state=0
        )
        names = [name if name in extra else f"{name} (view {v})" for name in table.index]
        parts.append(table.set_axis(pd.Index(names, name="quantity")))
    table = pd.concat(parts)
    enough = (table["r_hat"] < _LARGEST_R_HAT) & (table["ess_bulk"] >= _SMALLEST_ESS)
    if not enough.all():
        worst = table["r_hat"].fillna(np.inf).idxmax()
        warn(
            f"the chains have not converged; got R-hat of at most {table['r_hat'][worst]:.3f} "
            f"({worst}) and {table['ess_bulk'].min():.0f} effective draws at least, after "
            f"{chains.n_draws} draws; look at diagnostics, and raise num_warmup and num_samples",
            ConvergenceWarning,
        )
    return ViewPosterior(data, stats, table, bool(enough.all()))


def _edge_traces(parents: np.ndarray) -> dict[str, np.ndarray]:
    """Traces (chain, draw) of the edges of the forest, by name of the edge.

    A trace is 1 if one of two views is the parent of the other, and 0 if not. ``parents`` (chain,
    draw, view) are the parents of the views.
    """
    n_views = parents.shape[2]
    return {
        f"edge[{u},{v}]": ((parents[..., v] == u) | (parents[..., u] == v)).astype(float)
        for u in range(n_views)
        for v in range(u + 1, n_views)
    }
