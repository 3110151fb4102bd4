"""Numbers of clusters, label-invariant traces, convergence, relabelling and plots."""

import itertools
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from partitions import label_draws, noisy_draws, renamed, vi

from nrprob import MDLMixture
from nrprob.posterior import (
    align,
    chain_distances,
    coclustering,
    diagnose,
    label_free,
    n_clusters,
    plot_coclustering,
    plot_n_clusters,
    point_estimate,
    relabel,
    to_arviz,
)
from nrprob.posterior.export import import_arviz

seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


# ---- number of clusters -------------------------------------------------------------------------


def chains_of_k(rho, n_chains=4, n_draws=3000, seed=0):
    """Draws whose number of clusters, 2 or 3, is a chain that stays with probability rho."""
    random = np.random.default_rng(seed)
    k = np.empty((n_chains, n_draws), dtype=int)
    k[:, 0] = random.integers(2, 4, n_chains)
    for t in range(1, n_draws):
        stays = random.random(n_chains) < rho
        k[:, t] = np.where(stays, k[:, t - 1], random.integers(2, 4, n_chains))
    return np.arange(5) % k[..., None] * 7  # empty labels between occupied ones


def test_probabilities_of_k_and_their_errors():
    # The indicator has autocorrelation rho^t, hence ESS = S (1 - rho) / (1 + rho).
    for rho in (0.0, 0.8):
        draws = chains_of_k(rho)
        table = n_clusters(draws)
        assert list(table.index) == [2, 3] and table.index.name == "n_clusters"
        assert table["probability"].sum() == pytest.approx(1)
        ess = 12_000 * (1 - rho) / (1 + rho)
        np.testing.assert_allclose(table["ess"], ess, rtol=0.25)
        p = table["probability"]
        np.testing.assert_allclose(table["mcse"], np.sqrt(p * (1 - p) / table["ess"]))
        assert abs(p[2] - 0.5) < 4 * table["mcse"][2]


def test_one_number_of_clusters_and_few_draws():
    table = n_clusters(np.tile([0, 5, 5], (2, 10, 1)))
    assert table.loc[2, "probability"] == 1 and table.loc[2, "mcse"] == 0
    table = n_clusters([[0, 1], [1, 1]])
    assert table["probability"].tolist() == [0.5, 0.5]
    assert table["mcse"].isna().all()


def test_small_clusters_are_left_out_on_request():
    draws = np.tile([0, 0, 0, 1, 1, 2], (2, 10, 1))
    draws[:, :5] = np.arange(6)
    assert n_clusters(draws, min_size=2)["probability"].to_dict() == {1: 0.5, 2: 0.5}
    assert n_clusters(draws, min_size=1).equals(n_clusters(draws))
    assert n_clusters(draws, min_size=100)["probability"].to_dict() == {1: 1}  # the largest one
    with pytest.raises(ValueError, match="min_size must be at least 1; got 0; pass 1"):
        n_clusters(draws, min_size=0)


def test_counts_of_a_fit_or_container_are_its_own():
    labels = np.tile([0, 0, 0, 1, 1, 2], (2, 10, 1))
    counts = np.where(np.arange(10) < 4, 1, 2) * np.ones((2, 1))
    fit = MDLMixture()
    with pytest.raises(ValueError, match="posterior_; got MDLMixture.* pass a fitted MDLMixture"):
        n_clusters(fit)
    dims = ("chain", "draw", "observation")
    fit.posterior_ = xarray.Dataset({"labels": (dims, labels), "n_clusters": (dims[:2], counts)})
    container = to_arviz({"n_clusters": counts}, partition={"labels": labels})
    for draws in (fit, fit.posterior_, container, fit.posterior_.transpose()):
        table = n_clusters(draws)
        assert table["probability"].to_dict() == pytest.approx({1: 0.4, 2: 0.6})
        assert table["mcse"].notna().all() and table.index.dtype.kind == "i"
        assert n_clusters(draws, min_size=1)["probability"].to_dict() == {3: 1}
    np.testing.assert_array_equal(point_estimate(fit, random_state=0), labels[0, 0])
    bars = [patch.get_height() for patch in plot_n_clusters(fit).patches]
    assert bars == pytest.approx([0.4, 0.6])
    # A variable of another kind is not a number of clusters.
    averages = fit.posterior_.assign(n_clusters=fit.posterior_["n_clusters"] / 2)
    assert n_clusters(averages)["probability"].to_dict() == {3: 1}


# ---- label-free traces --------------------------------------------------------------------------


@settings(deadline=None)
@given(label_draws(), seeds)
def test_traces_are_their_definitions_and_ignore_names(draws, seed):
    random = np.random.default_rng(seed)
    n = draws.shape[1]
    reference = random.integers(0, n, n)
    pairs = random.integers(0, n, (3, 2))
    traces = label_free(draws, reference, pairs=pairs)
    for s, z in enumerate(draws):
        share = np.unique(z, return_counts=True)[1] / n
        assert traces["n_clusters"][0, s] == len(share)
        assert traces["entropy"][0, s] == pytest.approx(-sum(share * np.log(share)), abs=1e-12)
        assert traces["largest_share"][0, s] == share.max()
        assert traces["vi"][0, s] == pytest.approx(vi(reference, z), abs=1e-12)
        for i, j in pairs:
            assert traces[f"together[{i},{j}]"][0, s] == (z[i] == z[j])
    other = label_free(renamed(draws, random), renamed(reference, random), pairs=pairs)
    assert traces.keys() == other.keys()
    for name, trace in traces.items():
        np.testing.assert_array_equal(trace, other[name])


def test_chosen_pairs_vary():
    draws, _ = noisy_draws(n=60, noise=0.3, n_draws=100)
    traces = label_free(draws, pairs=12, random_state=0)
    chosen = [trace for name, trace in traces.items() if name.startswith("together")]
    assert len(chosen) == 12
    assert all(trace.shape == (2, 100) and 0 < trace.mean() < 1 for trace in chosen)
    again = label_free(draws, pairs=12, random_state=0)
    assert traces.keys() == again.keys()


def test_pairs_that_never_vary_are_not_chosen():
    draws = np.tile([0, 0, 1, 1, 2], (2, 20, 1))
    draws[:, ::2, 4] = 1  # only sample 4 is uncertain
    traces = label_free(draws, pairs=10, random_state=0)
    assert [n for n in traces if n.startswith("together")] == ["together[2,4]", "together[3,4]"]
    assert len(label_free(draws, pairs=0, random_state=0)) == 4


def test_traces_go_to_arviz():
    draws, _ = noisy_draws(n_draws=20)
    data = to_arviz(label_free(draws, random_state=0))
    assert data["posterior"]["vi"].shape == (2, 20)


# ---- convergence --------------------------------------------------------------------------------


def test_chains_that_agree_and_chains_that_do_not():
    draws, truth = noisy_draws(n_chains=4, n_draws=250, noise=0.4)
    table = diagnose(draws, truth, random_state=0)
    assert (table["r_hat"] < 1.02).all() and (table["ess_bulk"] > 500).all()
    assert list(table.columns) == ["mean", "sd", "mcse_mean", "ess_bulk", "ess_tail", "r_hat"]
    assert np.isfinite(table.to_numpy()).all()

    stuck = draws.copy()
    stuck[0] = stuck[0] // 2 * 0 + np.where(truth < 2, 0, truth)  # one chain joins two clusters
    table = diagnose(stuck, truth, random_state=0)
    assert table.loc["n_clusters", "r_hat"] > 1.5
    assert table.loc["vi", "r_hat"] > 1.3


@pytest.mark.smoke
def test_values_agree_with_arviz():
    arviz = import_arviz()

    draws, truth = noisy_draws(n_chains=3, n_draws=100)
    traces = label_free(draws, truth, random_state=0)
    table = diagnose(draws, truth, random_state=0)
    entropy = traces["entropy"]
    assert table.loc["entropy", "r_hat"] == pytest.approx(float(arviz.rhat(entropy)))
    assert table.loc["entropy", "ess_bulk"] == pytest.approx(float(arviz.ess(entropy)))
    tail = float(arviz.ess(entropy, method="tail", prob=(0.05, 0.95)))
    assert table.loc["entropy", "ess_tail"] == pytest.approx(tail)


def test_constant_quantities_and_frozen_chains():
    same = np.tile([0, 0, 1], (2, 50, 1))
    assert diagnose(same).empty
    frozen = same.copy()
    frozen[1] = [0, 1, 2]
    table = diagnose(frozen)
    assert np.isinf(table["r_hat"]).all()
    assert (table["ess_bulk"] < 10).all()


def test_a_single_chain_is_compared_with_itself():
    draws, truth = noisy_draws(n_chains=1, n_draws=400)
    table = diagnose(draws[0], truth, random_state=0)
    assert (table["r_hat"] < 1.05).all()
    drifting = draws[0].copy()
    drifting[200:, :20] = 99
    assert diagnose(drifting, truth, random_state=0).loc["largest_share", "r_hat"] > 1.5


def test_chains_are_as_far_apart_as_their_draws():
    draws, _ = noisy_draws(n=7, k=3, n_chains=3, n_draws=5, noise=1.0)
    expected = np.empty((3, 3))
    for a, b in itertools.product(range(3), repeat=2):
        pairs = [(i, j) for i, j in itertools.product(range(5), repeat=2) if a != b or i != j]
        expected[a, b] = np.mean([vi(draws[a, i], draws[b, j]) for i, j in pairs])
    np.testing.assert_allclose(chain_distances(draws), expected, atol=1e-12)
    # For one chain, its halves; the middle draw of an odd number is in neither.
    halves = chain_distances(draws[:1, [0, 1, 4, 2, 3]])
    np.testing.assert_allclose(halves, chain_distances(draws[0][[[0, 1], [2, 3]]]))
    assert np.isnan(chain_distances(draws[:, :1])).all()
    assert np.isnan(chain_distances(draws[0, :1])).all()


def test_long_chains_are_compared_at_even_steps():
    draws, truth = noisy_draws(n_chains=4, n_draws=250, noise=0.4)
    far = chain_distances(draws)
    assert far.shape == (4, 4) and abs(far.mean() / far.diagonal().mean() - 1) < 0.05
    draws[2, 125:] = truth  # a chain that comes to rest is nearer to itself
    assert chain_distances(draws)[2, 2] < 0.8 * far[2, 2]


def test_extra_traces():
    draws, truth = noisy_draws(n_draws=50)
    energy = np.random.default_rng(0).normal(size=(2, 50))
    table = diagnose(draws, truth, extra={"energy": energy}, random_state=0)
    assert table.loc["energy", "mean"] == pytest.approx(energy.mean())
    with pytest.raises(ValueError, match=r"'energy' has shape \(50,\) for draws of shape"):
        diagnose(draws, truth, extra={"energy": energy[0]})
    energy[0, 0] = np.inf
    with pytest.raises(ValueError, match="'energy' has 1 values that are not"):
        diagnose(draws, truth, extra={"energy": energy})


# ---- relabelling --------------------------------------------------------------------------------


@settings(deadline=None)
@given(label_draws(), seeds)
def test_relabelling_keeps_the_most_names_and_the_partition(draws, seed):
    random = np.random.default_rng(seed)
    n = draws.shape[1]
    reference = random.integers(0, 3, n) * 5 - 3
    result = relabel(draws, reference)
    assert result.shape == draws.shape
    names = np.unique(reference)
    for z, new in zip(draws, result, strict=True):
        np.testing.assert_array_equal(z[:, None] == z, new[:, None] == new)
        own, codes = np.unique(z, return_inverse=True)
        slots = [*names, *[None] * len(own)]
        best = (
            max(
                sum(slots[p[c]] == r for c, r in zip(codes, reference, strict=True))
                for p in itertools.permutations(range(len(slots)), len(own))
            )
            if len(own) <= 3
            else None
        )
        if best is not None:
            assert np.sum(new == reference) == best
        for name in np.unique(new):  # a label of the reference only if a sample is shared
            if name in names:
                assert np.any((new == name) & (reference == name))
        extra = np.setdiff1d(new, names)
        np.testing.assert_array_equal(extra, names[-1] + 1 + np.arange(len(extra)))
    np.testing.assert_array_equal(relabel(reference[None], reference)[0], reference)
    # Equal overlaps may be broken either way, but not by labels.
    other = relabel(renamed(draws, random), reference)
    np.testing.assert_array_equal(result, other)


@settings(deadline=None)
@given(label_draws(), seeds)
def test_permutations_do_what_relabelling_does(draws, seed):
    random = np.random.default_rng(seed)
    n = draws.shape[1]
    reference = np.unique(random.integers(0, 3, n), return_inverse=True)[1]
    width = max(int(draws.max()), int(reference.max())) + 3
    order = align(draws, reference, n_components=width)
    assert order.shape == (len(draws), width)
    np.testing.assert_array_equal(
        np.sort(order, axis=1), np.tile(np.arange(width), (len(draws), 1))
    )
    k = reference.max() + 1
    aligned = np.take_along_axis(np.argsort(order, axis=1), draws, axis=1)
    named = relabel(draws, reference)
    np.testing.assert_array_equal(
        np.where(named < k, named, -1), np.where(aligned < k, aligned, -1)
    )


def test_component_means_are_told_apart():
    # Two components whose labels switch half-way: raw means are equal, aligned means are not.
    truth = np.repeat([0, 1], 10)
    draws = np.stack([truth, 1 - truth] * 20).reshape(2, 20, 20)
    means = np.where(np.arange(40) % 2, 5.0, -5.0).reshape(2, 20, 1) * [1, -1]
    assert means.mean() == 0 and np.all(means.mean(axis=(0, 1)) == 0)
    order = align(draws, n_components=2, random_state=0)
    aligned = np.take_along_axis(means, order, axis=-1)
    np.testing.assert_array_equal(aligned.mean(axis=(0, 1)), [-5, 5])
    np.testing.assert_array_equal(
        relabel(draws, random_state=0), np.broadcast_to(truth, (2, 20, 20))
    )


# ---- pictures -----------------------------------------------------------------------------------


def test_heat_map_shows_every_probability_once():
    draws, truth = noisy_draws(n=30, k=3, n_draws=60)
    ax = plot_coclustering(draws, truth + 4)
    assert isinstance(ax, Axes)
    shown = ax.get_images()[0].get_array()
    np.testing.assert_allclose(np.sort(shown, axis=None), np.sort(coclustering(draws), axis=None))
    # Blocks on the diagonal are the clusters.
    assert all(shown[a : a + 10, a : a + 10].min() > 0.3 for a in (0, 10, 20))
    names = {t.get_text() for t in ax.get_yticklabels()}
    assert names == {f"cluster {c} (n = 10)" for c in (4, 5, 6)}
    assert len(ax.get_lines()) == 4


def test_heat_map_orders_by_the_point_estimate_and_draws_where_told():
    draws, _ = noisy_draws(n=20, k=2, n_draws=30)
    _, ax = plt.subplots()
    assert plot_coclustering(draws, ax=ax, random_state=0) is ax
    k = point_estimate(draws, random_state=0).max() + 1
    assert len(ax.get_yticklabels()) == k
    many = plot_coclustering(np.tile(np.repeat(np.arange(40), 2), (3, 1)), random_state=0)
    assert len(many.patches) == 40 and not many.get_lines()  # outlines instead of a grid
    assert len(many.get_yticklabels()) <= 24
    plot_coclustering([[0, 0], [1, 1]])  # a single cluster has no boundary


def test_bars_are_the_probabilities():
    draws = chains_of_k(0.5, n_draws=200)
    table = n_clusters(draws)
    ax = plot_n_clusters(draws)
    bars = [patch.get_height() for patch in ax.patches]
    np.testing.assert_allclose(bars, table["probability"])
    assert [t.get_text() for t in ax.texts] == [f"{p:.2f}" for p in table["probability"]]
    _, other = plt.subplots()
    assert plot_n_clusters([[0, 1], [0, 0]], other) is other  # too few draws for error bars


# ---- the rest -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: label_free(z, [0, 1]), "reference must have one label per sample"),
        (lambda z: chain_distances(z, loss="rand"), "loss must be one of .*; got 'rand'"),
        (lambda z: label_free(z, pairs=-1), "pairs is a number of at least 0, .*; got -1"),
        (lambda z: label_free(z, z[0], pairs=[[0, 9]]), "got 0 to 9 for 3 samples"),
        (lambda z: label_free(z, z[0], pairs=[0, 1]), r"shape \(n_pairs, 2\); got"),
        (lambda z: align(z, z[0], n_components="x"), "n_components must be an integer"),
        (lambda z: align(z, z[0], n_components=1), "got labels from 0 to 1 for 1 components"),
        (lambda z: align(z - 1, z[0]), "got labels from -1 to 0"),
        (lambda z: align(z, [0, 1, 2]), "more clusters than there are components; got 3 for 2"),
        (lambda z: relabel(z, [0.5, 1.0, 2.0]), "reference must be integers"),
        (lambda z: n_clusters(z[0]), "pass labels"),
        (lambda z: plot_n_clusters(z[0]), "pass labels"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(np.array([[0, 0, 1], [0, 1, 1]]))


def test_import_is_light():
    code = (
        "import sys, nrprob.posterior\n"
        "heavy = {'arviz', 'matplotlib', 'pandas', 'xarray', 'jax', 'sklearn'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
