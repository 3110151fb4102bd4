"""Gibbs kernel of NumPyro models with partitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import jax
from numpyro import handlers
from numpyro.infer import HMC, HMCGibbs, init_to_sample
from numpyro.infer.inspect import get_dependencies
from numpyro.util import is_prng_key

from nrprob.data.validation import check_number
from nrprob.engines.sample.chains import Draw, default_kernel
from nrprob.exceptions import short_repr
from nrprob.methods.bayes.joint_target import JointKernel
from nrprob.numpyro.labelled import resample_labelled
from nrprob.numpyro.site import PartitionCall, collect_calls, pad_labels, partition_sites
from nrprob.settings import standard

_UNKNOWN = "sites of partitions"  # replaces the names of these sites until a model has run


class PartitionGibbs(HMCGibbs):
    """Kernel of NumPyro models with partitions: NUTS within Gibbs.

    One iteration samples every partition and its hyperparameters given all other sites, by a Gibbs
    sweep, split-merge moves and griddy-Gibbs updates. If `partition` received log weights ``also``,
    there are no split-merge moves. Then the inner kernel samples the other sites given the
    partitions and hyperparameters. Both steps leave the joint posterior invariant.

    Parameters
    ----------
    inner_kernel : numpyro.infer.HMC or numpyro.infer.NUTS
        Kernel of the other sites, made from the model.
    num_split_merge : int, default=10
        Number of split and merge proposals for each partition in an iteration. From 0 to 10,000.

    Raises
    ------
    TypeError
        If ``inner_kernel`` is not an HMC or NUTS kernel of a model.
    ValueError
        When sampling begins: if the model has no partition, if a partition is in a context that
        scales or masks its density, or if the density of another site depends on the labels of a
        partition. In such a model, the Gibbs step would not sample the labels from their full
        conditional.

    See Also
    --------
    partition : Site of a partition.
    numpyro.infer.HMCGibbs : The base class.

    Notes
    -----
    Several chains need ``chain_method="parallel"``, ``"sequential"`` or `jax.vmap`;
    ``"vectorized"`` is unavailable, as for every `numpyro.infer.HMCGibbs`.

    References
    ----------
    Neal, R. M. (2000), "Markov chain sampling methods for Dirichlet process mixture models",
    Journal of Computational and Graphical Statistics 9 (2), doi:10.1080/10618600.2000.10474879.

    Jain, S. and Neal, R. M. (2004), "A split-merge Markov chain Monte Carlo procedure for the
    Dirichlet process mixture model", Journal of Computational and Graphical Statistics 13 (1),
    doi:10.1198/1061860043001.

    Examples
    --------
    The response has two clusters 4 units apart, and a slope of 1.

    >>> import jax
    >>> import numpy as np
    >>> import numpyro
    >>> from numpyro import distributions as dist
    >>> from numpyro.infer import MCMC, NUTS
    >>> from nrprob.numpyro import PartitionGibbs, partition
    >>> rng = np.random.default_rng(0)
    >>> t = rng.normal(size=(40, 1))
    >>> y = t + 4 * (np.arange(40)[:, None] % 2) + 0.3 * rng.normal(size=(40, 1))
    >>> def model(t, y):
    ...     slope = numpyro.sample("slope", dist.Normal(0, 5))
    ...     partition("cluster", y - slope * t, scale=y.std(), max_clusters=5)
    >>> with jax.enable_x64(True):
    ...     mcmc = MCMC(PartitionGibbs(NUTS(model)), num_warmup=200, num_samples=200,
    ...                 progress_bar=False)
    ...     mcmc.run(jax.random.PRNGKey(0), t, y)
    >>> draws = {name: np.asarray(value) for name, value in mcmc.get_samples().items()}
    >>> bool(abs(draws["slope"].mean() - 1) < 0.2)
    True
    >>> int(np.median(draws["cluster_n_clusters"]))
    2
    """

    def __init__(self, inner_kernel: HMC, *, num_split_merge: int = 10) -> None:
        if not isinstance(inner_kernel, HMC) or inner_kernel.model is None:
            raise TypeError(
                "inner_kernel must be an HMC or NUTS kernel of a model; got "
                f"{short_repr(inner_kernel)}; pass NUTS(model)"
            )
        check_number("num_split_merge", num_split_merge, low=0, high=10_000, integer=True)
        super().__init__(inner_kernel, self._resample_all, [_UNKNOWN])
        self._user_kernel = inner_kernel
        self._num_split_merge = int(num_split_merge)
        self._site_names: list[dict[str, str]] = []
        self._model_arguments: tuple[tuple, dict[str, Any]] = ((), {})

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        """Find the sites of partitions, and make the initial state of a chain."""
        if not is_prng_key(rng_key):
            raise ValueError(
                "PartitionGibbs needs one random key; got several, as by "
                "chain_method='vectorized'; pass chain_method=jax.vmap to MCMC"
            )
        with self._arguments(model_args, model_kwargs):
            self._site_names = self._find_sites()
            names = [
                name
                for sites in self._site_names
                for variable, name in sites.items()
                if variable != "density"
            ]
            super().__init__(self._user_kernel, self._resample_all, names)
            return super().init(rng_key, num_warmup, init_params, model_args, model_kwargs)

    def sample(self, state, model_args, model_kwargs):
        """Make one iteration of a chain."""
        with self._arguments(model_args, model_kwargs):
            return super().sample(state, model_args, model_kwargs)

    @contextmanager
    def _arguments(self, args: tuple, kwargs: dict[str, Any] | None) -> Iterator[None]:
        """Pass the arguments of the model to the Gibbs step; `HMCGibbs` does not pass them."""
        self._model_arguments = args, kwargs or {}
        try:
            yield
        finally:
            self._model_arguments = (), {}

    def _find_sites(self) -> list[dict[str, str]]:
        """For every partition in the model, the names of its sites by variable.

        Raises ValueError if the model has no partition, or if `PartitionGibbs` cannot sample it.
        """
        model, (args, kwargs) = self._user_kernel.model, self._model_arguments
        seeded = handlers.substitute(handlers.seed(model, 0), substitute_fn=init_to_sample)
        trace = handlers.trace(seeded).get_trace(*args, **kwargs)
        result = partition_sites(trace)
        if not result:
            raise ValueError(
                "PartitionGibbs needs a model with a partition; got a model without one; call "
                "nrprob.numpyro.partition in the model, or sample with the inner kernel"
            )
        upstream = get_dependencies(model, args, kwargs)["prior_dependencies"]
        for sites in result:
            labels, density = sites["labels"], sites["density"]
            _check_density(trace[density], labels)
            users = [name for name, names in upstream.items() if labels in names]
            if users := [name for name in users if name not in (labels, density)]:
                raise ValueError(
                    f"the density of no other site may depend on the labels of a partition; got "
                    f"{', '.join(users)}, which depends on {labels}; pass the log density "
                    "for every label as also= to partition"
                )
        return result

    def _resample_all(
        self, rng_key: jax.Array, gibbs_sites: dict[str, Any], hmc_sites: dict[str, Any]
    ) -> dict[str, jax.Array]:
        """Sample all partitions and their hyperparameters, given the other sites."""
        args, kwargs = self._model_arguments
        kwargs = {name: value for name, value in kwargs.items() if name != "_gibbs_sites"}
        # 1. Run the model to get the rows and the current labels of every partition.
        values = {**hmc_sites, **gibbs_sites}
        model = handlers.substitute(handlers.seed(self._user_kernel.model, 0), data=values)
        with handlers.block(), collect_calls() as calls:
            model(*args, **kwargs)
        # 2. Sample one partition after the other. Rows do not depend on labels, so partitions are
        # independent given the other sites.
        result: dict[str, jax.Array] = {}
        for i, (call, sites) in enumerate(zip(calls, self._site_names, strict=True)):
            draw = self._resample_partition(call, jax.random.fold_in(rng_key, i))
            for variable in sites.keys() & draw.keys():
                name = sites[variable]
                value = draw[variable]
                if variable == "labels":
                    value = value[: len(call.labels)]
                result[name] = value.astype(gibbs_sites[name].dtype)
        return result

    def _resample_partition(self, call: PartitionCall, key: jax.Array) -> Draw:
        """Sample a partition and its hyperparameters in one iteration; return their values."""
        plain = default_kernel(len(call.labels), self._num_split_merge)
        kernel = JointKernel(**asdict(plain))
        with standard():
            labels = pad_labels(call.labels, call.target)
            if call.weights is not None:
                return resample_labelled(call.target, labels, call.weights, key)
            # Begin with the current hyperparameters.
            state = kernel.begin_without_resampling(call.target, labels, key)
            return kernel.step(call.target, state).draw


def _check_density(site: dict[str, Any], labels: str) -> None:
    """Raise ValueError if a handler changes the density of a partition.

    ``site`` is the site of the density in a trace, and ``labels`` the name of the label site.
    """
    if site["scale"] is not None or type(site["fn"]).__name__ != "Unit":
        raise ValueError(
            f"handlers may not scale or mask the density of a partition; got {labels} in such a "
            "handler or in a subsampled plate; call partition outside of it"
        )
