"""Clusterings that are not redundant with known groups, sampled."""

import jax
import numpy as np
import pytest

from nrprob.codelength import nml_length
from nrprob.datasets import make_binary_partitions
from nrprob.engines import sample
from nrprob.engines.checkpoints import sample_partitions
from nrprob.methods.bottleneck.conditional_code import conditional_code
from nrprob.metrics import matched_accuracy, normalized_mutual_information
from nrprob.posterior import point_estimate

RUN = {"num_warmup": 150, "num_samples": 100, "num_chains": 4, "random_state": 0}


def topics(n=120, tokens=30, seed=0):
    """Documents whose words are governed by a known group and, as strongly, by a wanted one."""
    rng = np.random.default_rng(seed)
    known, wanted = rng.integers(0, 2, n), rng.integers(0, 3, n)
    p = np.ones((2, 3, 12))
    for a in range(2):
        p[a, :, 6 * a : 6 * a + 3] += 8
    for b in range(3):
        p[:, b, 3 + b :: 6] += 4
    p /= p.sum(-1, keepdims=True)
    X = np.asarray([rng.multinomial(tokens, p[a, b]) for a, b in zip(known, wanted, strict=True)])
    return X, known, wanted


def test_the_length_is_the_definition():
    X, known, wanted = topics(n=20)
    target = conditional_code(X, known=known, max_clusters=4, coordination_weight=0.3)
    with jax.enable_x64(True):
        wide = np.pad(wanted, (0, target.x.shape[0] - 20)).astype(np.int32)
        found = float(jax.jit(lambda z: sample.start(target, z).length)(wide))
    expected = nml_length(np.bincount(wanted)) - np.log(6)
    for c in range(3):
        expected += 0.3 * nml_length(X[wanted == c].sum(0))
        for z in range(2):
            cell = X[(wanted == c) & (known == z)]
            expected += nml_length(cell.sum(0)) if len(cell) else 0
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_what_is_new_is_found_with_its_number_of_clusters():
    X, known, wanted = topics()
    draws = sample_partitions(conditional_code(X, known=known, max_clusters=8), **RUN)
    assert draws["labels"].dims == ("chain", "draw", "sample")
    assert np.bincount(draws["n_clusters"].values.ravel()).argmax() == 3
    labels = point_estimate(draws["labels"].values, random_state=0)
    assert matched_accuracy(labels, wanted) > 0.8
    assert normalized_mutual_information(labels, known) < 0.1
    # WantedLabels nothing, the same code finds what governs the words altogether.
    plain = sample_partitions(conditional_code(X, max_clusters=8), **RUN)
    told = point_estimate(plain["labels"].values, random_state=0)
    assert normalized_mutual_information(told, known) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["nml", "conjugate"])
def test_binary_features(prior):
    X, truth = make_binary_partitions(80, (8, 6), random_state=0)
    target = conditional_code(X, known=truth[:, 0], max_clusters=5, prior=prior)
    draws = sample_partitions(target, **RUN)
    labels = point_estimate(draws["labels"].values, random_state=0)
    assert matched_accuracy(labels, truth[:, 1]) > 0.85


@pytest.mark.slow
def test_real_features_and_a_seed():
    rng = np.random.default_rng(0)
    known, wanted = rng.integers(0, 2, (2, 60))
    X = np.stack([8 * known, 5 * wanted], 1) + rng.normal(size=(60, 2))
    X = np.concatenate([X, np.full((60, 1), 3.0)], 1)
    target = conditional_code(X, known=known, max_clusters=5, features="gaussian")
    draws, again = (sample_partitions(target, **RUN) for _ in range(2))
    assert draws.equals(again)
    labels = point_estimate(draws["labels"].values, random_state=0)
    assert matched_accuracy(labels, wanted) > 0.9


def test_bad_input_is_refused():
    X, known, _ = topics(n=20)
    with pytest.raises(ValueError, match="whole numbers; got fractions"):
        conditional_code(X / 7, known=known, features="multinomial")
    with pytest.raises(ValueError, match="prior must be one of 'nml', 'conjugate'; got 'flat'"):
        conditional_code(X, prior="flat")
    with pytest.raises(ValueError, match="from 1 to the number of rows; got 21"):
        conditional_code(X, max_clusters=21)
    with pytest.raises(ValueError, match="must be 'auto' or a number from 0; got -1"):
        conditional_code(X, known=known, coordination_weight=-1)
    with pytest.raises(ValueError, match="continuous known structure"):
        conditional_code(X, known=np.random.default_rng(0).normal(size=(20, 2)))
