"""Prior of the number of components, vs enumeration of partitions under the targets."""

import jax
import numpy as np
import pytest
from bayes_models import coded_model, sampled_model
from partitions import all_partitions
from scipy.special import logsumexp

from nrprob import MDLMixture
from nrprob.methods.bayes.component_prior import prior_of_components
from nrprob.methods.bayes.concentrations import SIZE_VALUES
from nrprob.methods.bayes.model import FIXED_CONCENTRATION

N, K = 6, 4
Z = all_partitions(N)
Z = Z[Z.max(1) < K]


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def shares(lengths):
    """Probabilities of 1 to K components, from lengths (partitions, ...) in nats."""
    lengths = lengths.reshape(len(Z), -1)
    log_p = [logsumexp(-lengths[k == Z.max(1) + 1]) for k in range(1, K + 1)]
    return np.exp(log_p - logsumexp(log_p))


@pytest.mark.parametrize("unordered", [False, True])
@pytest.mark.parametrize("energy", ["nml", "conjugate"])
def test_enumeration_of_the_target_gives_the_prior(energy, unordered):
    """Without features, the target is the prior of partitions."""
    target = coded_model(energy, unordered=unordered).target(np.empty((N, 0)), np.full(N, -1), 0, K)
    labels = np.pad(Z, ((0, 0), (0, target.x.shape[0] - N))).astype(np.int32)
    lengths = jax.jit(jax.vmap(lambda z: target.length(target.cells(z))))(labels)
    grid = None if energy == "nml" else [FIXED_CONCENTRATION]
    prior = prior_of_components(N, K, concentrations=grid, unordered=unordered)
    np.testing.assert_allclose(prior, shares(np.asarray(lengths)), rtol=1e-9)


@pytest.mark.parametrize("unordered", [False, True])
def test_enumeration_with_a_sampled_concentration(unordered):
    model = sampled_model("diag", concentration=None, unordered=unordered, shape=2.0, scale=0.5)
    target = model.target(np.empty((N, 0)), np.full(N, -1), 0, K)
    labels = np.pad(Z, ((0, 0), (0, target.x.shape[0] - N))).astype(np.int32)

    @jax.jit
    @jax.vmap
    def lengths_of(z):
        def length(value):
            now = target.condition(target.draw() | {"concentration": value})
            return now.length(now.cells(z))

        return jax.vmap(length)(SIZE_VALUES)

    prior = prior_of_components(N, K, concentrations=SIZE_VALUES, unordered=unordered)
    np.testing.assert_allclose(prior, shares(np.asarray(lengths_of(labels))), rtol=1e-9)


@pytest.mark.parametrize("concentration", [1e-9, 0.03, 1.0, 40.0, 1e9])
def test_many_samples_and_extreme_concentrations(concentration):
    """Two components, of which one may never be occupied, vs the urn scheme."""
    n = 5000
    later = np.log1p(-concentration / (2 * concentration + np.arange(1, n)))
    prior = prior_of_components(n, 2, concentrations=[concentration], unordered=True)
    # The first sample occupies a component; the others all avoid the other component with the
    # probability exp(sum of ``later``).
    assert prior[2] / prior[1] == pytest.approx(-np.expm1(later.sum()), rel=1e-9)


def test_more_components_than_samples_have_no_probability():
    for grid in ([1.0], None):
        prior = prior_of_components(3, 5, concentrations=grid, unordered=True)
        assert (prior[:3] > 0).all()
        assert (prior[3:] == 0).all()
        assert prior.sum() == pytest.approx(1)


def test_empty_components_leave_the_parametric_complexity():
    """The complexity of two labels and two samples is log(5 / 2)."""
    prior = prior_of_components(2, 2, concentrations=None, unordered=True, allows_empty=True)
    np.testing.assert_allclose(prior, [5 / 7, 2 / 7])


@pytest.mark.parametrize(
    ("settings", "concentrations"),
    [
        ({}, SIZE_VALUES),
        ({"concentration": 3}, [3.0]),
        ({"energy": "nml"}, None),
        ({"features": "multinomial"}, [1.0]),
        ({"mean_precision": 0.3, "variance_shape": 2, "variance_scale": 1,
          "covariance": "diag"}, [1.0]),
        ({"kernel": "six-move", "energy": "conjugate"}, [1.0]),
    ],
)  # fmt: skip
def test_the_prior_follows_the_parameters(settings, concentrations):
    expected = prior_of_components(12, 12, concentrations=concentrations, unordered=False)
    assert MDLMixture(**settings).prior_n_clusters(12).equals(expected)


def test_many_samples_tend_to_a_poisson_law():
    prior = MDLMixture(4, concentration=5).prior_n_clusters(10**6)
    np.testing.assert_allclose(prior / prior[1], [1, 1 / 2, 1 / 6, 1 / 24], rtol=1e-4)


def test_the_number_of_samples_is_needed_before_fit():
    with pytest.raises(ValueError, match="not fitted"):
        MDLMixture().prior_n_clusters()
    with pytest.raises(ValueError, match="n_samples"):
        MDLMixture().prior_n_clusters(0)
