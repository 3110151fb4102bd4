"""The groups of an exported posterior, and functions of the installed ArviZ that read them."""

import numpy as np
import pandas as pd
import pytest

from nrprob import MDLMixture, posterior
from nrprob.posterior.export import import_arviz

pytestmark = pytest.mark.filterwarnings(
    "ignore:the chains do not agree yet", "ignore:the effective sample size is small"
)
FEW = {"num_warmup": 40, "num_samples": 60, "num_chains": 2, "random_state": 0}


@pytest.fixture(scope="module")
def frame():
    """Samples (60, 2) of two clusters, far from standardised, and classes of some samples."""
    rng = np.random.default_rng(0)
    X = 100 + 30 * (rng.normal(size=(60, 2)) + 6 * (np.arange(60) % 2)[:, None])
    y = np.where(np.arange(60) < 6, np.array(["a", "b"])[np.arange(60) % 2], "-1")
    return pd.DataFrame(X, columns=["length", "width"]), y


@pytest.fixture(scope="module")
def model(frame):
    return MDLMixture(5, covariance="full", num_split_merge=3, **FEW).fit(*frame)


@pytest.fixture(scope="module")
def data(model):
    return model.to_arviz()


def test_groups_hold_what_their_names_say(model, data, frame):
    X, y = frame
    drawn = set(data["posterior"].data_vars)
    assert {"n_clusters", "n_components", "largest_share", "log_density", "freedom"} < drawn
    # Without known groups the precision of their offsets is not sampled.
    assert "group_precision" in model.posterior_ and "group_precision" not in drawn
    assert all(v.dims == ("chain", "draw") for v in data["posterior"].data_vars.values())
    assert set(data["partition"].data_vars) == {"labels", "components"}
    for name in ("labels", "components"):
        np.testing.assert_array_equal(data["partition"][name], model.posterior_[name])
    labels = model.posterior_["labels"].values
    share = [[np.bincount(z).max() / 60 for z in chain] for chain in labels]
    np.testing.assert_allclose(data["posterior"]["largest_share"], share)
    np.testing.assert_allclose(data["observed_data"]["X"], X)
    assert list(data["observed_data"]["feature"].values) == ["length", "width"]
    assert list(data["observed_data"]["y"].values) == list(y)
    # Log likelihood and data have one name, and are in the same units.
    density = data["log_likelihood"]["X"]
    assert density.dims == ("chain", "draw", "observation")
    under_the_truth = np.log(0.5) - 1 - np.log(2 * np.pi) - 2 * np.log(30)
    assert float(density.mean()) == pytest.approx(under_the_truth, abs=0.5)


def test_a_summary_has_a_row_for_each_quantity(data):
    table = import_arviz().summary(data)
    assert set(table.index) == set(data["posterior"].data_vars) and len(table) < 12


@pytest.mark.slow
@pytest.mark.contract
def test_functions_of_arviz_read_the_groups(data, frame, tmp_path):
    import matplotlib.pyplot as plt

    arviz = import_arviz()
    arviz.plot_trace(data)
    arviz.plot_rank(data)
    plt.close("all")
    assert arviz.extract(data)["n_clusters"].size == 120
    assert arviz.extract(data, group="partition")["labels"].size == 120 * 60
    data.to_netcdf(tmp_path / "draws.nc")
    stored = arviz.from_netcdf(tmp_path / "draws.nc")
    np.testing.assert_array_equal(stored["partition"]["labels"], data["partition"]["labels"])
    assert list(stored["observed_data"]["y"].values) == list(frame[1])
    estimates = [posterior.point_estimate(d, random_state=0) for d in (data, stored)]
    np.testing.assert_array_equal(*estimates)


@pytest.mark.slow
@pytest.mark.contract
def test_arviz_plots_replicated_data(model, frame):
    import matplotlib.pyplot as plt

    arviz = import_arviz()
    data = model.to_arviz(parameters=True, posterior_predictive=True)
    replicates = data["posterior_predictive"]["X"]
    assert replicates.dims == ("chain", "draw", "observation", "feature")
    # All have the units of the data.
    np.testing.assert_allclose(
        replicates.mean(("chain", "draw", "observation")), frame[0].mean(), rtol=0.1
    )
    weights, means = (data["parameters"][name] for name in ("weights", "means"))
    np.testing.assert_allclose(
        (weights * means).sum("component").mean(("chain", "draw")), frame[0].mean(), rtol=0.1
    )
    modern = int(arviz.__version__.split(".")[0]) >= 1
    (arviz.plot_ppc_dist if modern else arviz.plot_ppc)(data, var_names=["X"])
    plt.close("all")
    assert "posterior_predictive" not in model.to_arviz(log_likelihood=False)
    with pytest.raises(TypeError, match="parameters must be"):
        model.to_arviz(parameters="all")


@pytest.mark.slow
@pytest.mark.contract
def test_arviz_prefers_the_model_of_the_data():
    """Correlated clusters: a covariance per cluster predicts better than separate variances."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(120, 2)) @ [[1, 0.95], [0, 0.3]] + 9 * (np.arange(120) % 2)[:, None]
    fits = {
        c: MDLMixture(5, covariance=c, **FEW | {"num_samples": 200}).fit(X).to_arviz()
        for c in ("full", "diag")
    }
    assert import_arviz().compare(fits).index[0] == "full"
