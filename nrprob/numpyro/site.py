"""The site of a partition in a NumPyro model, with its hyperparameters and its density."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from numpyro.distributions import constraints

from nrprob.data.validation import CLUSTERS, check_choice, check_flag
from nrprob.engines.sample.target import occupied
from nrprob.estimator.parameters import Number
from nrprob.exceptions import short_repr
from nrprob.methods.bayes.feature_models import SampledGaussian
from nrprob.methods.bayes.joint_target import JointTarget
from nrprob.methods.bayes.model import MixtureModel
from nrprob.settings import standard

COVARIANCES = ("diag", "full", "shrunk", "tied")
_MAX_CLUSTERS = 20  # largest number of clusters with "auto"
_CLUSTERS = Number(1, CLUSTERS, integer=True, words=("auto",))
_POSITIVE_OR_AUTO = Number(1e-9, 1e9, words=("auto",))
_N_NEIGHBOURS, _MAX_CANDIDATES = 20, 250  # neighbours of a sample, and candidates for them
_MARK = "nrprob_partition"  # key of partitions in the `infer` dictionaries of sites


class GridUniform(dist.Distribution):
    """Uniform distribution over the values (G,) of a grid.

    The declared support is the real line. The support has no effect, since HMC conditions on the
    value.
    """

    support = constraints.real
    pytree_data_fields = ("values",)

    def __init__(self, values: Any, *, validate_args: bool | None = None) -> None:
        self.values = jnp.asarray(values)
        super().__init__(validate_args=validate_args)

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Sample values of the grid."""
        return jax.random.choice(key, self.values, sample_shape)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Log probability of values of the grid."""
        return jnp.full(jnp.shape(value), -np.log(len(self.values)))


class Mixture(NamedTuple):
    """Settings of the mixture of a partition; `partition` defines them.

    A hyperparameter that is None is sampled.
    """

    covariance: str
    max_clusters: int
    unordered: bool
    concentration: float | None
    mean_precision: float | None
    variance_shape: float | None
    variance_scale: float | None


@dataclass(frozen=True)
class PartitionCall:
    """One call of `partition` in a run of a model.

    Attributes
    ----------
    target : distribution of the partition, given the rows and the current hyperparameters
    labels : (n,) current labels
    weights : (n, K) log weights of the labels, or None
    """

    target: JointTarget
    labels: jax.Array
    weights: jax.Array | None


_calls: ContextVar[list[PartitionCall] | None] = ContextVar("calls", default=None)


@contextmanager
def collect_calls() -> Iterator[list[PartitionCall]]:
    """Collect the calls of `partition`, in the order in which a model makes them."""
    result: list[PartitionCall] = []
    token = _calls.set(result)
    try:
        yield result
    finally:
        _calls.reset(token)


def partition_sites(trace: Any) -> list[dict[str, str]]:
    """For every partition in a trace, the names of its sites, by variable.

    The variables are the hyperparameters, "labels" and "density".
    """
    result: list[dict[str, str]] = []
    for name, site in trace.items():
        variable = site.get("infer", {}).get(_MARK)
        if variable == "labels":
            result.append({})
        if variable is not None:
            result[-1][variable] = name
    return result


def partition(
    name: str,
    rows: Any,
    *,
    covariance: str = "full",
    max_clusters: int | str = "auto",
    loc: Any = 0.0,
    scale: Any = 1.0,
    unordered: bool = False,
    concentration: float | str = "auto",
    mean_precision: float | str = "auto",
    variance_shape: float | str = "auto",
    variance_scale: float | str = "auto",
    also: Any = None,
) -> jax.Array:
    r"""Sample site of a partition of rows into Gaussian clusters, in a NumPyro model.

    The rows may depend on other sites, as residuals of a regression do. The site adds to the log
    density of the model

    .. math:: \Lambda(k) + \sum_{c=1}^k \left[\log \frac{\Gamma(n_c + \alpha)}{\Gamma(\alpha)}
        + \log m\left(\{(x_i - l) / t : z_i = c\}; h\right)\right] - n \sum_j \log t_j

    where :math:`x_i` are the n rows, z are the labels, k is the number of clusters, and :math:`n_c`
    are the sizes of the clusters. :math:`\alpha` is the concentration, m is the marginal likelihood
    of the rows of a cluster, h are the other hyperparameters, l is ``loc``, and :math:`t_j` is
    ``scale`` for feature j. The Notes of `nrprob.MDLMixture`, which has the same model, define
    :math:`\Lambda(k)` and the priors. `PartitionGibbs` samples the partition.

    Parameters
    ----------
    name : str
        Name of the site of the labels, and first part of the names of the other sites.
    rows : array-like of shape (n_samples, n_features)
        Rows, which may depend on other sites. If the rows are a transformation of data whose
        Jacobian depends on other sites, add its log determinant by `numpyro.factor`.
    covariance : {"diag", "full", "shrunk", "tied"}, default="full"
        Covariance of a cluster, as in `nrprob.MDLMixture`.
    max_clusters : int or "auto", default="auto"
        Largest number of clusters. "auto" is the smaller one of 20 and the number of rows.
    loc, scale : float or array-like of shape (n_features,), default=0 and 1
        Location and scale of the rows, on which the priors depend. If ``variance_scale`` is "auto",
        the expected variance of a feature within clusters is at most ``scale`` squared. Pass the
        means and standard deviations of the data, or standardise the data first. Location and scale
        may depend on other sites.
    unordered : bool, default=False
        Whether the prior treats clusters as a set, without labels; see `nrprob.MDLMixture`.
    concentration, mean_precision, variance_shape, variance_scale : float or "auto", default="auto"
        Hyperparameters, as in `nrprob.MDLMixture`. "auto" samples them. From 1e-9 to 1e9, and
        ``variance_shape`` above 1. Set both or neither of ``variance_shape`` and
        ``variance_scale``.
    also : array-like of shape (n_samples, max_clusters), optional
        Log weights of the labels, which may depend on other sites. For every row, the log weight of
        its label is added to the log density. An example is the log density of a response given
        the parameters of every cluster. See Notes.

    Returns
    -------
    labels : jax.Array of int of shape (n_samples,)
        Labels from 0 to ``max_clusters`` - 1. Functions of the labels may be sites of
        `numpyro.deterministic`. `PartitionGibbs` raises ValueError if the density of another site
        depends on the labels; pass ``also`` instead.

    Raises
    ------
    ValueError
        If a value is outside of its range, if rows are not a finite matrix of two rows or more, if
        JAX computes in single precision, or if the site is inside of a plate.

    See Also
    --------
    PartitionGibbs : Kernel of models with partitions.
    nrprob.MDLMixture : The mixture without other parameters.

    Notes
    -----
    The model also has the sites

    ==========================  ==========================================================
    site                        value
    ==========================  ==========================================================
    ``name_centre_precision``   kappa, precision of a cluster's mean, if it is not fixed
    ``name_variance``           s, expected variance within clusters, if it is not fixed
    ``name_freedom``            nu, degrees of freedom, if they are not fixed
    ``name_concentration``      concentration of cluster sizes, if it is not fixed
    ``name_common_covariance``  common covariance of clusters, with "shrunk"
    ``name_n_clusters``         number of clusters (deterministic)
    ``name_log_density``        log density of labels and rows (factor)
    ==========================  ==========================================================

    Hyperparameters are in units of ``scale``, and uniform on the grids of `nrprob.MDLMixture`. The
    label site has a uniform, masked distribution, since the factor includes the prior of the
    labels. So prior predictive draws of labels are not draws from the prior of the labels.
    `arviz.from_numpyro` treats a factor as an observed site; pass it ``log_likelihood=False``.

    Without ``also``, labels have no meaning across draws. With ``also``, label c refers to column c
    of the weights. Each of the K! / (K - k)! labelings of a partition with k of K clusters has the
    same prior probability. If the parameters of clusters have the same prior, a partition has the
    same posterior as with the parameters integrated out. An example is profile regression (Molitor
    et al., 2010), where clusters of covariates have different risks. A Gibbs sweep then updates one
    label after another, and there are no split-merge moves, so that chains mix more slowly.

    References
    ----------
    Molitor, J., Papathomas, M., Jerrett, M. and Richardson, S. (2010), "Bayesian profile regression
    with an application to the National Survey of Children's Health", Biostatistics 11 (3),
    doi:10.1093/biostatistics/kxq013.

    Escobar, M. D. and West, M. (1995), "Bayesian density estimation and inference using mixtures",
    Journal of the American Statistical Association 90 (430), doi:10.1080/01621459.1995.10476550.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> import numpyro
    >>> from numpyro import distributions as dist
    >>> from numpyro.infer.util import log_density
    >>> from nrprob.numpyro import partition
    >>> def model(X, t):
    ...     slope = numpyro.sample("slope", dist.Normal(0, 5))
    ...     partition("cluster", X - slope * t, covariance="tied", concentration=1,
    ...               mean_precision=0.1, variance_shape=2, variance_scale=0.5)
    >>> X, t = np.array([[0.0], [0.1], [2.0]]), np.array([[1.0], [0.0], [1.0]])
    >>> with jax.enable_x64(True):
    ...     for labels in [0, 0, 0], [0, 0, 1]:
    ...         values = {"slope": 0.1, "cluster": np.array(labels)}
    ...         log_p, _ = log_density(model, (X, t), {}, values)
    ...         print(round(float(log_p), 2))
    -9.11
    -9.3
    """
    rows, loc, scale = _check_rows(rows, loc, scale)
    n, d = rows.shape
    check_choice("covariance", covariance, COVARIANCES)
    check_flag("unordered", unordered)
    _CLUSTERS.check("max_clusters", max_clusters)
    largest = min(_MAX_CLUSTERS, n) if isinstance(max_clusters, str) else int(max_clusters)
    fixed = _check_hyperparameters(
        concentration=concentration, mean_precision=mean_precision, variance_shape=variance_shape,
        variance_scale=variance_scale,
    )  # fmt: skip
    if also is not None:
        also = _check_weights(also, (n, largest))
    with standard():
        mixture = Mixture(covariance, largest, bool(unordered), *fixed)
        template = jax.tree.map(jnp.asarray, _make_template(n, d, mixture))
        # 1. Sites of the labels and of the hyperparameters. Their densities are constants, since
        # the target includes the prior of the labels.
        prior = dist.DiscreteUniform(0, largest - 1).expand([n]).to_event(1).mask(False)
        labels = numpyro.sample(name, prior, infer={_MARK: "labels"})
        if labels.shape != (n,):
            raise ValueError(
                f"a partition cannot be in a plate; got labels of shape {labels.shape} for {n} "
                f"rows; call partition({short_repr(name)}, ...) outside of plates, once for each "
                "partition"
            )
        hyperparameters = {
            variable: numpyro.sample(f"{name}_{variable}", grid, infer={_MARK: variable})
            for variable, grid in _hyperparameter_priors(template).items()
        }
        # 2. Density of labels and rows given the hyperparameters.
        target = _with_rows(template, (rows - loc) / scale)
        target = target.condition({**target.draw(), **hyperparameters})
        cells = target.cells(pad_labels(labels, target))
        k = occupied(cells).sum()
        log_density = -target.length(cells) - n * jnp.log(jnp.broadcast_to(scale, d)).sum()
        if also is not None:
            log_density = log_density + jnp.take_along_axis(also, labels[:, None], 1).sum()
            # Labelings of a partition: K! / (K - k)!.
            log_density = log_density + gammaln(largest - k + 1.0) - gammaln(largest + 1.0)
        factor = dist.Unit(log_density)
        numpyro.sample(
            f"{name}_log_density", factor, obs=factor.sample(None),
            infer={"is_auxiliary": True, _MARK: "density"},
        )  # fmt: skip
        numpyro.deterministic(f"{name}_n_clusters", k)
    if (calls := _calls.get()) is not None:
        calls.append(PartitionCall(target, labels, also))
    return labels


def _check_rows(rows: Any, loc: Any, scale: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return rows (n, d), location and scale in double precision; check values if not traced."""
    if jnp.result_type(float) != jnp.float64:
        raise ValueError(
            "partition needs double precision; got JAX in single precision; call "
            "numpyro.enable_x64() before any array is made"
        )
    shape = np.shape(rows)
    if len(shape) != 2 or shape[0] < 2 or shape[1] < 1:
        raise ValueError(
            "rows must be a matrix (n_samples, n_features) of two rows or more; got shape "
            f"{shape}; reshape a single feature by rows[:, None]"
        )
    result = []
    for name, value in (("rows", rows), ("loc", loc), ("scale", scale)):
        if name != "rows" and np.shape(value) not in ((), (shape[1],)):
            raise ValueError(
                f"{name} must be a number or one number per feature; got shape {np.shape(value)} "
                f"for {shape[1]} features; pass an array of shape ({shape[1]},)"
            )
        array = jnp.asarray(value)
        if not jnp.issubdtype(array.dtype, jnp.number) or jnp.iscomplexobj(array):
            raise ValueError(
                f"{name} must be real numbers; got {short_repr(value)}; convert them to floats"
            )
        if not isinstance(array, jax.core.Tracer):
            _check_values(name, np.asarray(array))
        result.append(array.astype(jnp.float64))
    return result[0], result[1], result[2]


def _check_weights(weights: Any, shape: tuple[int, int]) -> jax.Array:
    """Check the shape (n, K) of log weights of labels, and return them in double precision."""
    if np.shape(weights) != shape:
        raise ValueError(
            "also must be log weights of shape (n_samples, max_clusters); got shape "
            f"{np.shape(weights)} for {shape[0]} rows and {shape[1]} clusters; set max_clusters to "
            "the number of columns"
        )
    return jnp.asarray(weights).astype(jnp.float64)


def _check_values(name: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name} must be finite; got {(~np.isfinite(values)).sum()} values that are not; drop "
            "these samples, or impute their values"
        )
    if name == "scale" and (values <= 0).any():
        raise ValueError(
            f"scale must be positive; got {short_repr(values.min())}; drop constant features"
        )


def _check_hyperparameters(**values: Any) -> list[float | None]:
    """Check hyperparameters, and return them as numbers, or None for "auto"."""
    for name, value in values.items():
        _POSITIVE_OR_AUTO.check(name, value)
    result = {k: None if isinstance(v, str) else float(v) for k, v in values.items()}
    shape, scale = result["variance_shape"], result["variance_scale"]
    if (shape is None) != (scale is None):
        raise ValueError(
            "variance_shape and variance_scale are two numbers, or 'auto' both; got "
            f"{values['variance_shape']!r} and {values['variance_scale']!r}; set the other one as "
            "well"
        )
    if shape is not None and shape <= 1:
        raise ValueError(
            f"variance_shape must be above 1; got {values['variance_shape']!r}; raise it, or leave "
            "it at 'auto'"
        )
    return list(result.values())


@lru_cache(maxsize=64)
def _make_template(n: int, d: int, mixture: Mixture) -> Any:
    """Distribution of a partition of n samples with d features that are all 0, as NumPy arrays."""
    features = SampledGaussian(
        covariance=mixture.covariance,
        mean_precision=mixture.mean_precision,
        shape=mixture.variance_shape,
        scale=mixture.variance_scale,
    )
    model = MixtureModel(
        features=features, concentration=mixture.concentration, unordered=mixture.unordered
    )
    # The call may be part of a program that JAX traces.
    with jax.ensure_compile_time_eval(), standard():
        target = model.target(np.zeros((n, d)), np.full(n, -1), 0, mixture.max_clusters)
        return jax.device_get(target)


def _hyperparameter_priors(template: JointTarget) -> dict[str, dist.Distribution]:
    """Prior distributions of the sampled hyperparameters, by name."""
    first, *others = template.updates
    grids = {**first.grid._asdict(), **{update.names[0]: update.values for update in others}}
    result: dict[str, dist.Distribution] = {
        variable: GridUniform(values) for variable, values in grids.items() if len(values) > 1
    }
    for variable in template.names:
        if variable not in grids:  # its density is part of the target
            result[variable] = dist.Delta(template.draw()[variable], event_dim=2).mask(False)
    return result


def _with_rows(template: JointTarget, rows: jax.Array) -> JointTarget:
    """Replace the features of the template by rows (n, d), which may depend on other sites."""
    pad = template.x.shape[0] - len(rows)
    partners = jnp.pad(_find_neighbours(jax.lax.stop_gradient(rows)), ((0, pad), (0, 0)))
    target = replace(
        template,
        rows=jnp.pad(rows, ((0, pad), (0, 0))),
        partition=replace(template.partition, partners=partners),
    )
    return target.recompute_statistics()


def _find_neighbours(rows: jax.Array) -> jax.Array:
    """Indices (n, q) of nearest neighbours of rows (n, d), among at most 250 evenly spaced rows."""
    n = len(rows)
    count = min(n, _MAX_CANDIDATES)
    candidates = np.linspace(0, n - 1, count).round().astype(int)
    square = jnp.square(rows).sum(1)
    distance = square[candidates] - 2 * rows @ rows[candidates].T
    distance = jnp.where(candidates == np.arange(n)[:, None], jnp.inf, distance)
    # XLA sorts numbers in double precision several times as slowly as in single precision.
    _, nearest = jax.lax.top_k(-distance.astype(jnp.float32), min(_N_NEIGHBOURS, count - 1))
    return jnp.asarray(candidates, jnp.int32)[nearest]


def pad_labels(labels: jax.Array, target: JointTarget) -> jax.Array:
    """Pad labels (n,) to the samples of the target (n',)."""
    return jnp.pad(labels.astype(jnp.int32), (0, target.x.shape[0] - len(labels)))
