"""Parameters of the components of sampled partitions, and replicated data.

Given the partition and the hyperparameters of a draw, all priors are conjugate. So the parameters
are sampled independently for every draw. Shapes: S draws, K slots of components, L known groups or
covariates, n samples, d features; others as in `nrprob.methods.bayes`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.programs import jit_by_size
from nrprob.engines.sample.chains import Draw
from nrprob.methods.bayes.feature_models import BinaryFeatures, DiscreteFeatures, FixedGaussian
from nrprob.methods.bayes.full_covariance import SeparateCovariances
from nrprob.methods.bayes.hyperparameters import Hyperparameters
from nrprob.methods.bayes.joint_target import JointTarget
from nrprob.methods.bayes.model import FIXED_CLASS_CONCENTRATION, FIXED_CONCENTRATION, MixtureModel
from nrprob.methods.bayes.predictive import condition
from nrprob.methods.bayes.six_move_draws import log_gamma_variate
from nrprob.methods.bayes.student_t import VALUES, log_masses
from nrprob.statistics.codes import NormalWishart


class Parameters(NamedTuple):
    """Parameters of the components of S draws; entries of empty slots are arbitrary.

    Attributes
    ----------
    sizes : (S, K) numbers of samples
    weights : (S, K) mixture weights of the components; 0 in empty slots
    class_probs : (S, K, C) probabilities of the classes in every component; C may be 0
    means : (S, K, d) centres of continuous features, else None
    covariances : (S, K, d, d) covariances of continuous features, (S, K, d) variances of
        independent features, or (S, 1, d, d) if all components share one covariance; else None
    effects : (S, L, d) offsets of known groups, or coefficients of L covariates; None without known
        structure
    probabilities : (S, L, K, d) probabilities of counts or binary features in every component and
        every one of L known groups, L = 1 without groups; None for continuous features
    """

    sizes: Any
    weights: Any
    class_probs: Any
    means: Any = None
    covariances: Any = None
    effects: Any = None
    probabilities: Any = None


def gaussian_likelihood(features: FixedGaussian, m: int) -> SeparateCovariances:
    """Make the likelihood of ``m`` features under a conjugate prior with fixed hyperparameters."""
    freedom = 2 * features.shape - 2 or 1e-12
    values = (features.mean_precision, 1.0, 2 * features.scale / freedom, freedom)
    hyper = Hyperparameters(*(np.float64(value) for value in values))
    full = features.covariance != "diag"
    code = NormalWishart(
        hyper.centre_precision, hyper.variance, hyper.freedom, m, full, np.float64(1)
    )
    return SeparateCovariances(code, hyper)


def draw_parameters(
    model: MixtureModel, target: Any, draws: Draw, n_features: int, n_classes: int, key: jax.Array
) -> Parameters:
    """Sample the parameters of the components of S draws, for the features as in the target.

    Parameters
    ----------
    model : mixture model of the samples
    target : Target or JointTarget
        Distribution that was sampled.
    draws : ``labels`` (S, n') and variables sampled jointly with them
    n_features, n_classes : d, and the number of classes C
    key : random key
    """
    features, likelihood, concentration = model.features, None, 0.0
    if isinstance(features, FixedGaussian):
        likelihood = gaussian_likelihood(features, n_features)
    elif isinstance(features, DiscreteFeatures):
        assert features.concentration is not None
        concentration = features.concentration
    n_draws = len(draws["labels"])
    alpha = draws.get("concentration", np.full(n_draws, model.concentration or FIXED_CONCENTRATION))
    fixed = model.class_concentration or FIXED_CLASS_CONCENTRATION
    gamma = draws.get("class_concentration", np.full(n_draws, fixed))
    return _draw_parameters(
        target, draws, likelihood, alpha, gamma, np.float64(concentration),
        jax.random.split(key, n_draws), n_features=n_features, n_classes=n_classes,
        binary=isinstance(features, BinaryFeatures),
    )  # fmt: skip


@jit_by_size("n_features", "n_classes", "binary")
def _draw_parameters(
    target: Any,
    draws: Draw,
    likelihood: Any,
    alpha: jax.Array,
    class_alpha: jax.Array,
    concentration: jax.Array,
    keys: jax.Array,
    *,
    n_features: int,
    n_classes: int,
    binary: bool,
) -> Parameters:
    """Sample the parameters of all draws; see `draw_parameters`."""

    def of_draw(args):
        draw, alpha, class_alpha, key = args
        share_key, class_key, feature_key = jax.random.split(key, 3)
        given_draw = condition(target, draw)
        cells = given_draw.cells(draw["labels"])
        total = cells.sum(0)
        sizes = total[:, -1]
        # 1. Weights and class probabilities: Dirichlet.
        weights = _dirichlet(share_key, sizes + alpha, sizes > 0.5)
        counts = total[:, total.shape[1] - 1 - n_classes : -1]
        class_probs = _dirichlet(class_key, counts + class_alpha, True)
        result = Parameters(sizes, weights, class_probs)
        # 2. Parameters of the features.
        model = given_draw.likelihood if isinstance(given_draw, JointTarget) else likelihood
        if model is not None:
            means, covariances, effects = model.draw_parameters(cells, feature_key)
            return result._replace(means=means, covariances=covariances, effects=effects)
        by_group = target.terms[0].by_group and target.n_groups > 1
        counts = (cells if by_group else total[None])[..., :n_features]
        if binary:
            zeros = (cells if by_group else total[None])[..., -1:] - counts
            pair = jnp.stack([counts, zeros], -1) + concentration
            return result._replace(probabilities=_dirichlet(feature_key, pair, True)[..., 0])
        return result._replace(probabilities=_dirichlet(feature_key, counts + concentration, True))

    return jax.lax.map(of_draw, (draws, alpha, class_alpha, keys))


def _dirichlet(key: jax.Array, concentration: jax.Array, possible: Any) -> jax.Array:
    """Sample Dirichlet variates along the last axis; entries that are not ``possible`` are 0."""
    log_gamma = log_gamma_variate(key, concentration)
    return jax.nn.softmax(jnp.where(possible, log_gamma, -jnp.inf), axis=-1)


def replicate(
    parameters: Parameters,
    draws: dict[str, np.ndarray],
    labels: np.ndarray,
    group: np.ndarray,
    covariates: np.ndarray | None,
    totals: np.ndarray,
    *,
    binary: bool,
    given_labels: bool,
    rng: np.random.Generator,
) -> np.ndarray:
    """Sample new data (S, n, d) with the known structure of the samples.

    Parameters
    ----------
    parameters : parameters of S draws
    draws : variables of the draws by name; of these, ``inverse_df`` is used
    labels : (S, n) components of the samples
    group : (n,) known groups
    covariates : (n, Q) values of Q known covariates; None without covariates
    totals : (n,) numbers of tokens of the samples, for counts
    binary : whether features are binary
    given_labels : whether samples have the components ``labels``; if False, the components are
        sampled with the weights as probabilities
    rng : random number generator
    """
    s, n = labels.shape
    if not given_labels:
        below = np.cumsum(parameters.weights, 1)
        labels = (rng.random((s, n, 1)) > below[:, None]).sum(2).clip(max=below.shape[1] - 1)
    draw = np.arange(s)[:, None]
    if parameters.probabilities is not None:
        n_groups = parameters.probabilities.shape[1]
        p = parameters.probabilities[draw, group if n_groups > 1 else 0 * group, labels]
        if binary:
            return (rng.random(p.shape) < p).astype(float)
        p = p / p.sum(-1, keepdims=True)
        return rng.multinomial(totals.astype(int), p).astype(float)
    # 1. Centres, with the effects of the known structure.
    x = parameters.means[draw, labels]
    if parameters.effects is not None:
        effects = parameters.effects
        x = x + (effects[:, group] if covariates is None else covariates @ effects)
    # 2. Errors, with scale weights if they are t distributed.
    errors = rng.normal(size=x.shape)
    covariances = parameters.covariances
    if covariances.ndim == 3:
        errors = errors * np.sqrt(covariances)[draw, labels]
    else:
        roots = np.swapaxes(np.linalg.cholesky(covariances), 2, 3)
        correlated = errors @ roots[:, 0]
        # One component at a time: a root for every sample would take more memory than the data.
        for c in range(1, roots.shape[1]):
            correlated = np.where((labels == c)[..., None], errors @ roots[:, c], correlated)
        errors = correlated
    if "inverse_df" in draws:
        with np.errstate(divide="ignore"):  # 0 means Gaussian errors
            freedoms = 1 / draws["inverse_df"]
        below = np.cumsum(np.exp(log_masses(VALUES, freedoms)), 1)
        index = (rng.random((s, n, 1)) > below[:, None]).sum(2).clip(max=len(VALUES) - 1)
        errors = errors / np.sqrt(VALUES[index])[..., None]
    return x + errors
