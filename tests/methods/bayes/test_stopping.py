"""Chains that run until they have converged, or until a budget ends."""

import itertools
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from nrprob import MDLMixture
from nrprob.engines.sample import checkpoints
from nrprob.methods.bayes import sampling, stopping
from nrprob.methods.bayes.stopping import (
    CLUSTERS,
    MONITORED,
    count_discarded,
    describe_shortfall,
    diagnose_chains,
    has_converged,
    look_sizes,
    shortfalls,
)

QUICK = {
    "covariance": "diag", "mean_precision": 0.1, "variance_shape": 2.0, "variance_scale": 0.3,
    "num_warmup": 50, "num_split_merge": 2,
}  # fmt: skip
MISSING = pytest.mark.filterwarnings("ignore:the chains have not converged")


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 3)) + 5 * (np.arange(60) % 2)[:, None]


@pytest.fixture
def model():
    return MDLMixture(6, **QUICK, random_state=0)


def independent_draws(n_draws=500, n=8):
    """Draws of four chains that agree, of two clusters with random labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (4, n_draws, n)).astype(np.uint8)
    labels[..., :2] = 0, 1
    return {
        "labels": labels,
        "log_density": rng.normal(size=labels.shape[:2]),
        "n_clusters": np.full(labels.shape[:2], 2),
        "n_components": rng.integers(2, 4, labels.shape[:2]),
    }


def test_looks_double_up_to_the_budget():
    assert list(look_sizes(4500)) == [500, 1000, 2000, 4000, 4500]
    assert list(look_sizes(1000)) == [500, 1000]
    assert list(look_sizes(7)) == [7]


@pytest.mark.parametrize("thinning", [1, 3])
@pytest.mark.parametrize("n_warm", [0, 100, 500, 9000])
def test_half_of_the_run_is_warm_up_at_the_first_looks(n_warm, thinning):
    for n_draws in (500, 1000):
        discarded = count_discarded(n_draws, n_warm, thinning)
        iterations = n_warm + n_draws * thinning
        warm = n_warm + discarded * thinning
        assert warm == n_warm or abs(warm - iterations / 2) < thinning
        assert 0 <= discarded <= n_draws / 2
    assert count_discarded(16_000, n_warm, thinning) == count_discarded(1000, n_warm, thinning)


def test_quantities_that_agree_have_converged():
    draws = independent_draws()
    table = diagnose_chains(draws, np.arange(8) % 2)
    assert has_converged(table)
    # The number of clusters is constant and equal in all chains.
    assert table.loc["n_clusters", ["mean", "mcse_mean", "r_hat"]].tolist() == [2, 0, 1]
    assert table.loc["log_density", "mcse_mean"] == pytest.approx(1 / np.sqrt(2000), rel=0.2)
    share = np.stack([(draws["labels"] == c).mean(-1) for c in (0, 1)]).max(0)
    assert table.loc["largest_share", "mean"] == pytest.approx(share.mean())


def test_one_chain_elsewhere_is_not_convergence():
    draws = independent_draws()
    shifted = draws | {"log_density": draws["log_density"] + 1.0 * np.eye(4)[:, :1]}
    assert not has_converged(diagnose_chains(shifted, np.arange(8) % 2))
    stuck = draws | {"n_clusters": draws["n_clusters"] + np.eye(4, dtype=int)[:, :1]}
    table = diagnose_chains(stuck, np.arange(8) % 2)
    assert shortfalls(table.loc[list(MONITORED)])["n_clusters"] == np.inf
    assert not has_converged(table)


def test_clusters_may_converge_before_components():
    draws = independent_draws()
    apart = draws | {"n_components": draws["n_components"] + np.eye(4, dtype=int)[:, :1]}
    table = diagnose_chains(apart, np.arange(8) % 2)
    assert has_converged(table, CLUSTERS) and not has_converged(table)
    apart["log_density"] = draws["log_density"] + 1.0 * np.eye(4)[:, :1]
    assert not has_converged(diagnose_chains(apart, np.arange(8) % 2), CLUSTERS)


@pytest.mark.parametrize(
    ("quantity", "state"),
    [
        ("n_components", "clusters have converged, but the number of components has not"),
        ("n_clusters", "the chains have not converged"),
    ],
)
def test_the_warning_names_what_has_converged(rows, model, monkeypatch, quantity, state):
    def diagnose(draws, labels):
        table = diagnose_chains(independent_draws(), np.arange(8) % 2)
        table.loc[quantity, ["r_hat", "ess_bulk"]] = 1.03, 200
        return table

    monkeypatch.setattr(sampling, "diagnose_chains", diagnose)
    with pytest.warns(ConvergenceWarning, match=f"{state} after 30 draws .* R-hat 1.030"):
        model.set_params(max_samples=30, num_chains=2).fit(rows)
    assert not model.converged_


def test_chains_in_clusterings_of_equal_sizes_have_not_converged():
    """All quantities agree, but draws of different chains are far apart."""
    draws = independent_draws(n_draws=500, n=9)
    # Each chain keeps two of three groups of samples together.
    triples = np.asarray([[0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 0, 0]])
    draws["labels"] = np.repeat(np.repeat(triples, 3, 1)[:, None], 500, 1).astype(np.uint8)
    table = diagnose_chains(draws, np.zeros(9, int))
    assert (shortfalls(table.loc[list(MONITORED)]) <= 1).all()
    assert not has_converged(table)
    assert "inf times as far apart" in describe_shortfall(table)


@pytest.mark.parametrize(
    ("r_hat", "bulk", "tail", "factor"),
    [
        (1.005, 800, 200, 0.5),
        (1.005, 100, 200, 4),
        (1.03, 800, 200, 3),
        (1.005, 800, 20, 5),
        (np.nan, 800, 200, np.inf),
        (1.005, np.nan, 200, np.inf),
        (np.inf, 800, 200, np.inf),
    ],
)
def test_the_missing_factor_of_draws(r_hat, bulk, tail, factor):
    columns = {"ess_bulk": bulk, "ess_tail": tail, "r_hat": r_hat}
    table = pd.DataFrame(columns, index=["log_density"])
    assert shortfalls(table)["log_density"] == pytest.approx(factor)
    if np.isfinite(r_hat) and bulk == 800:  # tails count for the log density only
        other = shortfalls(table.set_axis(["vi"]))["vi"]
        assert other == pytest.approx(max(0.5, (r_hat - 1) / 0.01))


@pytest.mark.parametrize(
    ("r_hat", "times"), [(1.033, "3.3"), (1.13, "13"), (2.21, "120"), (21, "2,000")]
)
def test_the_missing_factor_is_printed_without_an_exponent(r_hat, times):
    table = diagnose_chains(independent_draws(), np.arange(8) % 2)
    table.loc["n_components", "r_hat"] = r_hat
    assert f"about {times} times as many draws" in describe_shortfall(table)


def fixed_run(r_hat, bulk, n_draws=300, n_chains=4):
    """A model with diagnostics of a fixed number of draws, without a fit."""
    model = MDLMixture(num_samples=n_draws, num_chains=n_chains)
    model._run, model._run_until = SimpleNamespace(n_draws=n_draws), False
    columns = {"r_hat": r_hat, "ess_bulk": 500.0}
    model.diagnostics_ = pd.DataFrame(columns, index=[*MONITORED, "entropy"])
    model.diagnostics_.loc["n_clusters", "ess_bulk"] = bulk
    return model


@pytest.mark.parametrize(
    ("r_hat", "bulk", "message"),
    [
        (1.01, 80, "the effective sample size is small .*; got a bulk ESS of 80 of n_clusters; dr"),
        (1.06, 80, "the chains do not agree yet; got R-hat of log_density 1.060"),
    ],
)
def test_fixed_runs_warn_of_few_effective_draws(r_hat, bulk, message):
    model = fixed_run(r_hat, bulk)
    with pytest.warns(ConvergenceWarning, match=message) as issued:
        model._check_convergence()
    assert len(issued) == 1 and model.converged_ == (r_hat < 1.05)


def test_long_fixed_runs_of_several_chains_do_not_warn():
    model = fixed_run(1.01, 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model._check_convergence()
        model._warn_one_chain()
    assert model.converged_
    with pytest.warns(ConvergenceWarning, match=r"one chain cannot .* num_chains=1; pass num_ch"):
        fixed_run(1.01, 100, n_chains=1)._warn_one_chain()


def test_one_draw_of_one_chain_is_warned_of(rows, model):
    with pytest.warns(ConvergenceWarning) as issued:
        model.set_params(num_samples=1, num_chains=1).fit(rows)
    messages = [str(w.message) for w in issued]
    assert any("one draw cannot be diagnosed; got 1 of each chain; go" in m for m in messages)
    assert any("one chain cannot show that another mode was missed" in m for m in messages)
    assert not any("nan" in m for m in messages) and not model.converged_


@pytest.mark.slow
@pytest.mark.contract
@MISSING
def test_a_run_stops_when_it_has_converged(rows, model):
    fitted = model.fit(rows)
    assert fitted.stopped_ == "converged" and fitted.converged_ and fitted.n_clusters_ == 2
    table = fitted.diagnostics_.loc[list(MONITORED)]
    assert (table["r_hat"] < 1.01).all() and (table["ess_bulk"] >= 400).all()
    n_draws = (fitted.n_iter_ - 50) // fitted.thinning
    assert n_draws in (500, 1000, 2000)
    # The draws are the last ones of a run of fixed length.
    fixed = clone(model).set_params(num_samples=n_draws).fit(rows)
    assert fixed.stopped_ == "num_samples" and fixed.posterior_.sizes["draw"] == n_draws
    kept = fitted.posterior_.sizes["draw"]
    assert kept == n_draws - count_discarded(n_draws, 50, 1)
    assert fitted.posterior_.equals(fixed.posterior_.isel(draw=slice(-kept, None)))
    assert fitted.sample_stats_.sizes["draw"] == fitted.objective_trace_.size == kept
    longer = clone(model).set_params(num_samples=n_draws + 100).fit(rows)
    extended = fitted.extend(100).posterior_
    assert extended.equals(longer.posterior_.isel(draw=slice(-kept - 100, None)))


def test_the_budget_of_draws(rows, model):
    model.set_params(max_samples=30, num_chains=2)
    with pytest.warns(
        ConvergenceWarning, match=r"30 draws of each chain \(max_samples\); got R-hat .*"
    ):
        model.fit(rows)
    assert model.stopped_ == "max_samples" and not model.converged_
    assert model.n_iter_ == 80


def test_a_run_until_convergence_shows_one_progress_bar(rows, model, monkeypatch, capsys):
    monkeypatch.setattr(stopping, "_FIRST_LOOK", 20)
    model.set_params(max_samples=40, num_chains=2, verbose=1)
    with pytest.warns(ConvergenceWarning, match="40 draws"):
        model.fit(rows)
    output = capsys.readouterr().out
    assert output.count("sampling,") == 1 and "━" in output
    assert "components" in output and "clusters" not in output


@MISSING
def test_the_budget_of_time_ends_after_the_first_block(rows, model):
    model.set_params(max_seconds=0, num_chains=2).fit(rows)
    assert model.stopped_ == "max_seconds" and model.n_iter_ == 150
    with pytest.raises(ValueError, match="max_seconds limits runs with num_samples='auto'"):
        clone(model).set_params(num_samples=10).fit(rows)


@MISSING
def test_an_interrupted_run_goes_on_exactly(rows, model, tmp_path, monkeypatch):
    model.set_params(max_samples=600, num_chains=2)
    whole = clone(model).fit(rows)
    block, count = checkpoints.CheckpointedChains._run_block, itertools.count()

    def interrupt_later(self, *args):
        if next(count) == 4:
            raise KeyboardInterrupt
        return block(self, *args)

    model.set_params(checkpoint=tmp_path / "run")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(checkpoints.CheckpointedChains, "_run_block", interrupt_later)
        model.fit(rows)
    assert model.stopped_ == "interrupted" and model.n_iter_ == 50 + 300
    resumed = clone(model).fit(rows)
    assert resumed.posterior_.equals(whole.posterior_) and resumed.stopped_ == whole.stopped_


@pytest.mark.slow
def test_a_limit_of_memory_is_named(rows, model, monkeypatch):
    monkeypatch.setattr(sampling, "_MAX_BYTES", 0)
    for rule in ("has_settled", "has_converged"):
        monkeypatch.setattr(sampling, rule, lambda *_: False)
    with pytest.warns(ConvergenceWarning, match=r"\(max_memory\); .* or raise thinning"):
        model.set_params(max_samples=2000, num_chains=2).fit(rows)
    assert model.stopped_ == "max_memory"
