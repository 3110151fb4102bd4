"""Clusters that one discrete feature determines: which functions warn, and for which data."""

import json
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
from pages import page_of
from scipy import sparse
from scipy.stats import entropy
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris, load_wine
from typer.testing import CliRunner

from nrprob import (
    CCIB,
    ConditionalMixture,
    MixtureEM,
    ResidualSpectral,
    evidence,
    explore,
    information,
    metrics,
    prepare,
    recommend,
)
from nrprob.cli import app
from nrprob.datasets import make_binary_partitions
from nrprob.exceptions import SingleFeatureWarning
from nrprob.statistics.single_feature import single_feature

RNG = np.random.default_rng(0)
TWO = np.repeat([0, 1], 100)
NOISE = RNG.normal(size=(200, 3))


def flagged(n=300, shift=0):
    """Two clusters 4 standard deviations apart, a boolean column of 30 %, and a known site.

    The boolean column shifts three numeric columns.
    """
    rng = np.random.default_rng(0)
    planted, site = rng.integers(2, size=(2, n))
    X = rng.normal(size=(n, 4))
    X[:, 0] += 4 * planted
    X += 3 * np.outer(site, [0, 1, 1, 0])
    frame = pd.DataFrame(X, columns=[*"abcd"])
    frame = frame.assign(vip=rng.random(n) < 0.3, site=np.array(["n", "s"])[site])
    frame[["b", "c", "d"]] += shift * frame[["vip"]].to_numpy()
    return frame, planted


@pytest.fixture(scope="module")
def fitted():
    """The example above, and the warnings of `fit`."""
    frame, planted = flagged(shift=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what `prepare` does to a boolean column
        model = recommend(frame, known="site", n_clusters=2)
    # The binary column and the numbers that it shifts determine the clusters.
    model.set_params(categorical=[], effects="subtract", random_state=0)
    with pytest.warns(SingleFeatureWarning) as caught:
        model.fit(frame, known="site")
    return frame, planted, model, [str(warning.message) for warning in caught]


def test_a_fit_warns_of_the_flag_that_hides_the_planted_clusters(fitted):
    frame, planted, model, messages = fitted
    assert isinstance(model, ConditionalMixture)
    assert metrics.normalized_mutual_information(model.labels_, planted) < 0.05
    assert metrics.normalized_mutual_information(model.labels_, frame["vip"]) > 0.95
    cluster = round(model.labels_[frame["vip"]].mean())
    said = [message for message in messages if "determines the clusters" in message]
    assert len(said) == 1
    assert said[0].startswith(f"cluster {cluster} is vip = true: ")
    assert said[0].endswith("; drop this column, or pass it as known")


def test_confidence_is_withheld(fitted):
    frame, _, model, _ = fitted
    with warnings.catch_warnings():
        warnings.simplefilter("error", SingleFeatureWarning)  # the printed result mentions it
        sure = evidence.confidence(model, frame, known="site", random_state=0)
    assert sure.samples_ is None and sure.clusters_ is None
    assert " is vip = true: " in sure.withheld_ and "drop this column" in sure.withheld_
    assert str(sure).startswith("no confidence: cluster ")


@pytest.mark.slow
@pytest.mark.contract
def test_without_the_flag_nothing_is_said():
    frame, planted = flagged()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SingleFeatureWarning)
        model = ConditionalMixture(2, n_init=6, random_state=0)
        model.fit(frame.drop(columns="vip"), known="site")
    assert metrics.normalized_mutual_information(model.labels_, planted) > 0.7


@pytest.fixture
def invoke(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.slow
@pytest.mark.contract
def test_the_terminal_and_the_page_say_it_first(invoke, tmp_path, monkeypatch):
    quick = partial(evidence.test, n_splits=1, n_folds=2, n_init=2)
    monkeypatch.setattr("nrprob.batch.fit_result.test", quick)
    frame, planted = flagged()
    frame.assign(vip=planted == 1).to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "out"
    options = ["--known", "site", "--test", "--no-plot", "--out", out]
    result = invoke("fit", tmp_path / "rows.csv", *options)
    assert result.exit_code == 0, result.output
    first = result.stdout.splitlines()[0]
    assert first.startswith("warning: cluster ") and " is vip = true: " in first
    assert "--drop vip" in first and "name it as known" in first
    assert "vip =" not in result.stderr  # one warning is enough
    assert "expected to be in the right cluster" not in result.stdout
    assert "confidence withheld: one feature determines the clusters" in result.stdout
    told = json.loads((out / "result.json").read_text())
    assert told["warnings"][0] in first and "confidence" not in told
    assert "confidence" not in pd.read_csv(out / "labels.csv")
    words = " ".join(page_of(out / "report.html").text.split())
    before, _, after = words.partition(f"Warning: {told['warnings'][0]}.")
    assert after and "Question" not in before and "cloud" not in before


@pytest.mark.slow
@pytest.mark.contract
def test_explore_says_it_first(invoke, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(120, 2)), columns=[*"ab"])
    kind = rng.integers(3, size=120)
    frame["a"] += 9 * kind
    frame.assign(kind=np.array([*"pqr"])[kind]).to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "out"
    options = ["--k", "3", "--n-clusterings", "1", "--no-plot", "--out", out]
    result = invoke("explore", tmp_path / "rows.csv", *options)
    assert result.exit_code == 0, result.output
    first = result.stdout.splitlines()[0]
    assert first.startswith("warning: clustering 1: cluster ") and " is kind = " in first
    assert "--drop kind" in first and "kind =" not in result.stderr
    assert json.loads((out / "result.json").read_text())["clusterings"][0]["warnings"][0] in first
    words = " ".join(page_of(out / "report.html").text.split())
    assert "determines the clusters" in words.partition("Question")[0]


@pytest.mark.parametrize(
    "model",
    [
        CCIB(2, features="gaussian", n_init=2, random_state=0),
        MixtureEM(2, covariance="diag", n_init=2, random_state=0),
        ConditionalMixture(2, categorical=[], n_init=2, random_state=0),
    ],
)
def test_recommended_estimators_warn(model):
    X = np.column_stack([NOISE, 9 * TWO])
    with pytest.warns(SingleFeatureWarning, match=r"cluster \d is column 3 = 9: .*drop this"):
        model.fit(X)


def test_a_discrete_column_of_the_conditional_mixture_does_not_capture_the_clusters():
    frame, planted = flagged()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SingleFeatureWarning)
        model = ConditionalMixture(2, n_init=12, random_state=0).fit(frame, known="site")
    assert metrics.normalized_mutual_information(model.labels_, planted) > 0.7
    assert metrics.normalized_mutual_information(model.labels_, frame["vip"]) < 0.05


def test_text_and_missing_values_are_values():
    text = np.where(TWO == 1, "yes", "no").astype(object)
    frame = pd.DataFrame(NOISE, columns=[*"abc"]).assign(answer=text)
    assert "is answer = " in str(single_feature(frame, TWO))
    frame["answer"] = [None if word == "yes" else word for word in text]
    assert "answer = missing" in str(single_feature(frame, TWO)) or "answer = no" in str(
        single_feature(frame, TWO)
    )


def test_counts_and_estimators_of_explore():
    X = np.column_stack([RNG.poisson(20, size=(200, 30)), 200 * TWO])
    model = ResidualSpectral(2, members=4, random_state=0)
    with pytest.warns(SingleFeatureWarning, match="cluster [01] is column 30 = 200"):
        model.fit(sparse.csr_array(X))

    class Plain(KMeans):
        def fit(self, X, y=None, *, known=None):
            return super().fit(X)

    with pytest.warns(SingleFeatureWarning, match="column 30 = 200"):
        explore(X, Plain(2, random_state=0), n_clusterings=1)


@pytest.mark.parametrize("n", [60, 400])
@pytest.mark.parametrize(("k", "v"), [(2, 2), (3, 4), (6, 3)])
def test_the_value_is_that_of_its_definition(n, k, v):
    rng = np.random.default_rng([n, k, v])
    labels = rng.integers(k, size=n)
    column = np.where(rng.random(n) < 0.95, labels % v, rng.integers(v, size=n))
    joint = np.zeros((k, v))
    np.add.at(joint, (labels, column), 1 / n)
    entropies = entropy(joint.sum(1)), entropy(joint.sum(0)), entropy(joint.ravel())
    chance = (k - 1) * (len(np.unique(column)) - 1) / (2 * n)
    expected = (sum(entropies[:2]) - entropies[2] - chance) / (entropies[0] - chance)
    X = np.column_stack([rng.normal(size=n), 5 - 3.3 * column])
    result = single_feature(X, labels)
    assert (result is None) == (expected <= 0.7)
    if result is not None:
        assert result.share == pytest.approx(expected)
        assert result == single_feature(sparse.csr_array(X), labels)


def test_columns_of_a_table_go_by_their_own_names():
    rng = np.random.default_rng(0)
    kind = np.repeat([*"pqrs"], 30)
    frame = pd.DataFrame({"x": rng.normal(size=120), "kind": kind})
    ready = prepare(frame, categories="indicators", standardize=True)
    one = np.searchsorted([*"pqrs"], kind)
    for labels, values in ((one, ("s",)), (one // 2, ("r", "s")), (one == 2, ("r",))):
        for indicators in (ready.indicators_, None):
            result = single_feature(ready.X, labels, ready.feature_names_, indicators)
            assert (result.column, result.values) == ("kind", values)
            assert result.share == pytest.approx(1)
    frame = frame.assign(sex=np.where(np.arange(120) % 3, "f", "m"), **{"a=b": np.arange(120) % 2})
    ready = prepare(frame, categories="indicators")
    rare = 1 + (frame["sex"] == "m").to_numpy()
    result = single_feature(ready.X, rare, ready.feature_names_, ready.indicators_)
    assert (result.column, result.cluster, result.values) == ("sex", 2, ("m",))
    # An equals sign in the name of a numeric column is not a value.
    result = single_feature(ready.X, frame["a=b"], ready.feature_names_, ready.indicators_)
    assert (result.column, result.values) == ("a=b", ("1",))


def test_values_are_in_the_units_of_the_table():
    flag = np.where(TWO, 30.0, 10.0)
    X = np.column_stack([NOISE, (flag - flag.mean()) / flag.std()])
    scales = {"d": (flag.mean(), flag.std())}
    result = single_feature(X, TWO, [*"abcd"], scales=scales)
    assert str(result).startswith("cluster 1 is d = 30: this one feature determines the clusters")


def test_large_tables_are_sampled_by_cluster():
    rng = np.random.default_rng(0)
    labels = (rng.random(60_000) < 0.01).astype(int)
    flag = labels ^ (rng.random(60_000) < 1e-3)
    X = np.column_stack([rng.normal(size=60_000), flag, np.arange(60_000) % 2]).astype(np.float32)
    result = single_feature(X, labels)
    joint = metrics.contingency(labels, flag) / 60_000
    exact = information.mutual_information(joint) / entropy(joint.sum(1))
    assert result.column == "column 1" and result.share == pytest.approx(exact, abs=0.03)
    assert single_feature(X[:, [0, 2]], labels) is None
    assert single_feature(sparse.csr_array(X), labels) == result


def ordinary():
    """Data and labels without a single feature that determines them, by name."""
    rng = np.random.default_rng(1)
    for name, data in (("iris", load_iris()), ("wine", load_wine())):
        X = (data.data - data.data.mean(0)) / data.data.std(0)
        yield f"{name}, classes", X, data.target
        for k in (2, 3, 5):
            yield f"{name}, {k}", X, KMeans(k, n_init=2, random_state=0).fit_predict(X)
    far = NOISE + 12 * TWO[:, None]
    yield "a flag that did not win", np.column_stack([far, rng.random(200) < 0.3]), TWO
    yield "a continuous column", np.column_stack([NOISE, 50 * TWO + rng.random(200)]), TWO
    yield "one cluster", np.column_stack([NOISE, TWO]), 0 * TWO
    yield (
        "a value that occurs once",
        np.column_stack([NOISE, np.eye(200)[0]]),
        np.eye(200, dtype=int)[0],
    )
    rounded = np.round(far[::5, :1], 0)
    yield "few rows of a rounded column", rounded, TWO[::5]
    counts = rng.poisson(np.where(TWO, 1, 8)[:, None], size=(200, 1))
    yield "counts", np.column_stack([counts, rng.poisson(3, size=(200, 5))]), TWO
    yield "many clusters of few rows", rng.integers(19, size=(60, 2)), rng.integers(20, size=60)
    for dims in ((3, 3), (8, 6, 4)):
        for p_noise in (0.0, 0.03, 0.1):
            X, truth = make_binary_partitions(200, dims, p_noise=p_noise, random_state=3)
            yield f"binary, {dims}, {p_noise}", X, truth[:, -1]
            model = CCIB(2, n_init=2, random_state=0).fit(X, known=truth[:, 0])
            yield f"binary, {dims}, {p_noise}, fitted", X, model.labels_


def test_nothing_is_said_of_ordinary_clusters():
    blamed = {name: str(result) for name, X, y in ordinary() if (result := single_feature(X, y))}
    assert not blamed


def test_binary_columns_one_of_which_is_the_clusters():
    X = np.column_stack([RNG.integers(2, size=(200, 3)), TWO])
    assert single_feature(X, TWO).column == "column 3"


def test_two_values_determine_one_of_three_clusters():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 3))
    flag = rng.random(300) < 0.35
    half = X[:, 0] > 0
    X = np.column_stack([X, flag])
    feature = single_feature(X, np.where(flag, 2, half))
    assert feature.one_of_several and feature.cluster == 2 and feature.share == pytest.approx(1)
    assert "cluster 2 is column 3 = 1: this one feature determines this cluster" in str(feature)
    # Two binary columns with four combinations as clusters, and an uninformative one.
    other = rng.random(300) < 0.5
    assert single_feature(np.column_stack([X, other]), np.where(flag, 2 + other, half)) is None
    assert single_feature(X, np.digitize(X[:, 0], [-0.4, 0.4])) is None


def test_integers_that_a_mixture_takes_for_counts_have_no_test():
    X = np.round(170 + 8 * RNG.normal(size=(60, 3)))
    with pytest.raises(
        ValueError, match="would model these samples as multinomial features.*set features"
    ):
        evidence.test(MixtureEM(2), X)
