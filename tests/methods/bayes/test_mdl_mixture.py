"""`MDLMixture` as an estimator."""

import io
import itertools
import pickle
import warnings

import jax
import numpy as np
import pytest
from bayes_models import coded_model, sampled_model
from partitions import all_partitions
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from slowly import slowly

from nrprob import DegenerateClusterWarning, MDLMixture, posterior
from nrprob.codelength import gaussian_length, multinomial_complexity, nml_length
from nrprob.datasets import make_four_components
from nrprob.engines.sample import checkpoints
from nrprob.engines.sample.target import start
from nrprob.exceptions import InputError
from nrprob.methods.bayes import student_t
from nrprob.methods.bayes.covariance_selection import (
    candidates,
    choose_covariance,
    shortest_lengths,
)
from nrprob.methods.bayes.draws import compact_draws, pad_draws
from nrprob.methods.bayes.predictive import class_probabilities, leave_one_out, log_densities
from nrprob.metrics import matched_accuracy
from nrprob.posterior.export import import_arviz
from nrprob.statistics.codes import normal_inverse_gamma, normal_nml

# The code whose program compiles fastest; `test_prior` tests others.
_FEW = {"num_warmup": 50, "num_samples": 50, "num_chains": 2, "num_split_merge": 2}
QUICK = {"energy": "nml", **_FEW}
LONG = {"num_warmup": 100, "num_samples": 200}
pytestmark = pytest.mark.filterwarnings(
    "ignore:the chains do not agree yet", "ignore:the effective sample size is small"
)


@pytest.fixture(scope="module")
def three():
    """Three clusters of rows; four rows of each have a class."""
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 20)
    X = np.asarray([[0, 0, 0], [5, 0, 1], [0, 6, 2]])[truth] + rng.normal(size=(60, 3))
    y = np.full(60, -1)
    y[::5] = truth[::5]
    return X, y, truth


@pytest.fixture(scope="module")
def fitted(three):
    X, y, _ = three
    return MDLMixture(6, **QUICK | LONG, random_state=0).fit(X, y)


@pytest.mark.slow
@pytest.mark.contract
def test_fitted_attributes(fitted, three):
    X, y, truth = three
    assert fitted.posterior_["labels"].dims == ("chain", "draw", "observation")
    assert fitted.posterior_["labels"].shape == (2, 200, 60)
    draws = fitted.posterior_
    for labels, number in (("components", "n_components"), ("labels", "n_clusters")):
        k = draws[number].values[0].tolist()
        sizes = [np.unique(z, return_counts=True)[1] for z in draws[labels].values[0]]
        # Of clusters, those below 3 samples do not count.
        assert [(n >= (3 if labels == "labels" else 1)).sum() for n in sizes] == k
    assert fitted.n_clusters_ == 3 and matched_accuracy(fitted.labels_, truth) > 0.95
    assert fitted.membership_.shape == (60, 3)
    np.testing.assert_allclose(fitted.membership_.sum(1), 1)
    assert (fitted.membership_.argmax(1) == fitted.labels_).mean() > 0.95
    assert fitted.objective_ == -fitted.posterior_["log_density"].values.max()
    assert fitted.objective_trace_.min() == fitted.objective_
    assert fitted.n_iter_ == 300 and fitted.n_features_in_ == 3
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert set(fitted.variance_floor_scores_) == {0.1, 0.2, 0.4}
    best = max(fitted.variance_floor_scores_, key=fitted.variance_floor_scores_.get)
    assert fitted.variance_floor_ == best
    assert set(fitted.r_hat_) == {"log_density", "n_clusters", "n_components"}
    kinds = {name.split("[")[0] for name in fitted.diagnostics_.index}
    assert {"log_density", "largest_share", "vi", "together", "vi_between_chains"} <= kinds
    every = [*fitted.diagnostics_["r_hat"], *fitted.r_hat_.values()]
    assert fitted.converged_ == (max(every) < 1.05)
    stats = fitted.sample_stats_
    assert (stats["split_accepted"] <= stats["split"]).all() and stats["gibbs"].min() > 0
    proba = fitted.predict_proba(X)
    np.testing.assert_allclose(proba.sum(1), 1)
    assert (fitted.predict(X) == truth).mean() > 0.95
    assert fitted.score(X) > fitted.score(X[:, ::-1]) + 1


def test_same_seed_same_draws_also_after_pickling(fitted, three):
    X, y, _ = three
    again = clone(fitted).fit(X, y)
    assert again.posterior_.equals(fitted.posterior_)
    other = clone(fitted).set_params(random_state=1).fit(X, y)
    assert not other.posterior_.equals(fitted.posterior_)
    loaded = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(loaded.predict_proba(X[:5]), fitted.predict_proba(X[:5]))
    assert loaded.extend(10).posterior_.sizes["draw"] == 210


def test_names_of_classes_and_order_of_rows_do_not_matter(three):
    X, y, _ = three
    names = np.asarray(["b", "a", "c"], object)
    words = np.where(y < 0, -1, names[y])
    model = MDLMixture(6, random_state=0, variance_floor=0.2, **QUICK)
    plain, named = clone(model).fit(X, y), clone(model).fit(X, words)
    assert named.classes_.tolist() == ["a", "b", "c"]
    assert (names[plain.predict(X)] == named.predict(X)).all()


def test_extending_is_the_same_as_one_run(three):
    X, y, _ = three
    model = MDLMixture(6, random_state=3, variance_floor=0.2, thinning=2, **QUICK)
    whole = clone(model).set_params(num_samples=80).fit(X, y)
    parts = clone(model).set_params(num_samples=30).fit(X, y).extend(50)
    assert whole.posterior_.equals(parts.posterior_)
    assert whole.sample_stats_.equals(parts.sample_stats_)
    assert parts.n_iter_ == 50 + 160


def test_chains_that_have_warmed_up_know_what_is_usual(three):
    X, y, _ = three  # and the settings of other tests, whose programs are compiled
    model = MDLMixture(6, variance_floor=0.2, random_state=3, **QUICK)
    whole = clone(model).fit(X, y)
    usual = np.asarray(whole._run.states.usual)
    assert (usual == usual[0]).all()
    k, length = usual[0]
    assert k == whole.n_clusters_ == 3
    lengths = -whole.posterior_["log_density"].values
    assert lengths.min() <= length <= lengths.max()
    parts = clone(model).set_params(num_samples=10).fit(X, y).extend(QUICK["num_samples"] - 10)
    assert parts.posterior_.equals(whole.posterior_)
    np.testing.assert_array_equal(parts._run.states.usual, usual)
    # Without a warm-up, typical partitions are unknown.
    cold = clone(model).set_params(num_warmup=0, num_samples=10).fit(X, y)
    assert not np.isfinite(cold._run.states.usual).any()


def test_damaged_checkpoints_are_one_sentence(three, tmp_path):
    X, y, _ = three
    model = MDLMixture(6, random_state=3, variance_floor=0.2, **QUICK)
    model.set_params(checkpoint=tmp_path / "run").fit(X, y)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    first, last = sorted(name for name in whole if name.endswith(".npz"))
    blocks = dict(np.load(io.BytesIO(whole[last])))
    blocks["draws/labels"] = blocks["draws/labels"] * 0
    altered = io.BytesIO()
    np.savez(altered, **blocks)

    def refused(message, **changes):
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for name, content in (whole | changes).items():
            if content is not None:
                (folder / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"{message}.*; .*delete") as told:
            clone(model).set_params(checkpoint=folder).fit(X, y)
        assert "\n" not in str(told.value) and "pickle" not in str(told.value)

    for content in (whole[last][:-9], b"", whole[first], altered.getvalue(), b"junk"):
        refused(rf"cannot read a block of a run; .*{last}: .* fit the digest", **{last: content})
    refused("block-000001.npz: its name has no digest", **{last: None, "block-000001.npz": b""})
    refused(f"blocks of a run must be consecutive; .*{last} is number 0", **{first: None})
    twice = last.replace("000001", "000002")
    refused(rf"{twice}: its content does not fit the digest", **{twice: whole[last]})
    for content in (whole["run.json"][:-9], b"", b"\xff", b"3"):
        refused(r"cannot read the description of a run; .*run\.json", **{"run.json": content})
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot make the output folder; .*file"):
        clone(model).set_params(checkpoint=tmp_path / "file").fit(X, y)


def test_a_run_that_was_killed_goes_on_exactly(three, tmp_path, monkeypatch):
    X, y, _ = three
    model = MDLMixture(6, random_state=3, variance_floor=0.2, **QUICK | {"num_samples": 230})
    whole = clone(model).fit(X, y)
    model.set_params(checkpoint=tmp_path / "run")
    block, count = checkpoints.CheckpointedChains._run_block, itertools.count()

    def killed(self, *args):
        if next(count) == 2:
            raise KeyboardInterrupt
        return block(self, *args)

    monkeypatch.setattr(checkpoints.CheckpointedChains, "_run_block", killed)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.posterior_.sizes["draw"] == 100  # finished blocks are stored
    made = []
    monkeypatch.setattr(
        checkpoints.CheckpointedChains,
        "_run_block",
        lambda self, *args: made.append(args) or block(self, *args),
    )
    resumed = clone(model).fit(X, y)
    assert resumed.posterior_.equals(whole.posterior_)
    assert sum(n for n, _ in made) == 130
    # Another run is not stored in the same folder.
    with pytest.raises(ValueError, match=r"holds another run; it differs in data"):
        clone(model).fit(X + 1e-3 * X**2, y)
    with pytest.raises(ValueError, match=r"it differs in start"):
        clone(model).set_params(random_state=4).fit(X, y)
    with pytest.raises(ValueError, match="needs a seed"):
        clone(model).set_params(random_state=None).fit(X, y)
    longer = clone(model).set_params(num_samples=240).fit(X, y)
    assert longer.posterior_.sizes["draw"] == 240


def test_a_second_fit_of_the_same_shape_compiles_nothing(three, compilations):
    X, y, _ = three
    model = MDLMixture(6, random_state=0, **QUICK)
    clone(model).fit(X, y).predict(X)
    assert compilations
    compilations.clear()
    other = clone(model).set_params(num_samples=70, thinning=2, random_state=5)
    other.fit(X[::-1] * 2 + 1, y).predict(X[:40])
    assert not compilations


@pytest.mark.smoke
def test_arviz_reads_it(fitted, three):
    arviz = import_arviz()

    with pytest.warns(UserWarning, match="exports no pointwise log likelihood.*energy='nml'; pass"):
        data = fitted.to_arviz()
    assert data["partition"]["labels"].dims == ("chain", "draw", "observation")
    table = arviz.summary(data, var_names=["log_density", "n_clusters"])
    assert len(table) == 2 and np.isfinite(table["mean"]).all()
    stats = data["sample_stats"]
    share = stats["acceptance_gibbs"].values
    assert ((share > 0) & (share <= 1)).all()
    np.testing.assert_array_equal(stats["lp"], fitted.posterior_["log_density"])
    np.testing.assert_allclose(data["observed_data"]["X"], three[0])
    np.testing.assert_array_equal(data["observed_data"]["y"], three[1])
    # Code lengths of single samples are not a log likelihood.
    assert not hasattr(data, "log_likelihood")
    assert not hasattr(fitted.to_arviz(log_likelihood=False), "log_likelihood")
    with pytest.raises(ValueError, match="exports no pointwise log likelihood.*energy='nml'; pass"):
        fitted.to_arviz(log_likelihood=True)
    with pytest.raises(ValueError, match="must be one of 'auto' or a boolean; got 'yes'"):
        fitted.to_arviz(log_likelihood="yes")


@pytest.mark.parametrize("energy", slowly("nml", "conjugate"))
def test_without_labels_predictions_are_clusters(energy, three):
    X, _, truth = three
    model = MDLMixture(6, random_state=0, **QUICK | LONG | {"energy": energy})
    assert matched_accuracy(model.fit_predict(X), truth) > 0.93
    assert not hasattr(model, "classes_")
    assert (model.predict(X) == model.labels_).mean() > 0.93
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    assert model.predict_proba(X).shape == (60, model.n_clusters_)


@pytest.mark.slow
@pytest.mark.contract
def test_one_class_one_row_one_cluster(three):
    X, _, _ = three
    one = MDLMixture(6, random_state=0, **QUICK).fit(X, np.where(np.arange(60) < 9, 7, -1))
    assert (one.predict(X) == 7).all() and (one.predict_proba(X) == 1).all()
    single = MDLMixture(random_state=0, **QUICK).fit(X[:1], [4])
    assert single.n_clusters_ == 1 and single.predict(X[:2]).tolist() == [4, 4]
    whole = MDLMixture(1, random_state=0, **QUICK).fit(X)
    assert whole.n_clusters_ == 1 and (whole.posterior_["n_clusters"] == 1).all()
    assert whole.converged_


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize(("covariance", "d"), [("diag", 10), ("tied", 20)])
def test_rows_of_one_normal_cluster_are_one_cluster(covariance, d):
    # With centres that may be closer, less than 0.2 of the draws had one cluster.
    X = np.random.default_rng(0).normal(size=(200, d))
    settings = {"covariance": covariance, "num_warmup": 200, "num_samples": 150}
    k = MDLMixture(random_state=0, **settings).fit(X).posterior_["n_components"]
    assert (k == 1).mean() > 0.7


def test_new_rows_whose_squares_are_no_numbers_are_refused(fitted, three):
    far = np.where(np.arange(60)[:, None] == 7, 1e300, three[0])
    for call in (fitted.predict, fitted.predict_proba, fitted.score):
        with pytest.raises(ValueError, match="in the units of the fit"):
            call(far)


@pytest.mark.slow
@pytest.mark.contract
def test_constant_columns_and_scale_do_not_matter(three):
    X, y, _ = three
    model = MDLMixture(6, random_state=0, variance_floor=0.2, **QUICK)
    wide = np.concatenate([X * [1e-6, 1e5, 3] + [0, 1e6, 1], np.full((60, 1), 3.7)], 1)
    with pytest.warns(DegenerateClusterWarning, match=r"1 constant column\(s\).*column 3; drop"):
        scaled = clone(model).fit(wide, y)
    plain = clone(model).fit(X, y)
    # Rounding may change a chain; its draws then have the same distribution.
    assert (scaled.predict(wide) == plain.predict(X)).mean() > 0.95
    unit = np.log(1e-6 * 1e5 * 3)
    assert scaled.score(wide) == pytest.approx(plain.score(X) - unit, abs=0.1)
    length = scaled.posterior_["log_density"].values, plain.posterior_["log_density"].values
    assert abs(length[0].mean() - length[1].mean()) < 3
    with pytest.warns(DegenerateClusterWarning, match="3 constant"):
        alike = (
            clone(model).set_params(features="gaussian").fit(np.ones((20, 3)), np.tile([0, 1], 10))
        )
    assert np.isfinite(alike.predict_proba(np.ones((2, 3)))).all()


def test_columns_that_follow_from_others_are_left_out():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    shares = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    wide = np.column_stack([shares, X[:, 0], 3 - 1e5 * X[:, 0]])
    with pytest.warns(
        DegenerateClusterWarning, match=r"2 column\(s\) are linear .* column \d, \d; "
    ):
        kept = MDLMixture().prepare(wide, None).X
    assert kept.shape == (60, 4) and np.linalg.matrix_rank(kept) == 4
    # Nearly constant columns, or few rows, do not suffice; other models include the column again.
    nearly = np.column_stack([X, X[:, 0] + 1e-4 * rng.normal(size=60)])
    assert MDLMixture().prepare(nearly, None).X.shape[1] == 5
    assert MDLMixture(max_clusters=3).prepare(wide[:6], None).X.shape[1] == 6
    for settings in ({"covariance": "diag"}, {"energy": "nml"}, {"kernel": "six-move"}):
        assert MDLMixture(**settings).prepare(wide, None).X.shape[1] == 6


def test_far_away_rows_get_probabilities(fitted):
    far = np.asarray([[1e8, -1e8, 1e8], [1e3, 0, 0]])
    proba = fitted.predict_proba(far)
    np.testing.assert_allclose(proba.sum(1), 1)


def test_bad_input_is_refused(fitted, three):
    X, y, _ = three
    with pytest.raises(ValueError, match="NaN"):
        MDLMixture(**QUICK).fit(np.where(X > 5, np.nan, X))
    with pytest.raises(ValueError, match="max_clusters exceeds the number of rows; got max_cl"):
        MDLMixture(61, **QUICK).fit(X)
    with pytest.raises(ValueError, match="one label per row of X; got shape"):
        MDLMixture(**QUICK).fit(X, y[:5])
    with pytest.raises(ValueError, match="energy must be one of 'auto', 'nml', 'conjugate'; got"):
        MDLMixture(energy="mml").fit(X)
    fixed = {"mean_precision": 0.3, "variance_shape": 0.7, "variance_scale": 0.5}
    with pytest.raises(ValueError, match="variance_shape must be above 1 .* got 0.7; raise it"):
        MDLMixture(**_FEW, **fixed, covariance="tied").fit(X, known=y)
    with pytest.raises(ValueError, match="covariance='full' needs the conjugate prior"):
        MDLMixture(covariance="full", **QUICK).fit(X)
    with pytest.raises(ValueError, match="num_samples must be at least 1"):
        MDLMixture(num_samples=0).fit(X)
    with pytest.raises(ValueError, match="variance_floor must be at least 1e-06"):
        MDLMixture(variance_floor=0.0).fit(X)
    with pytest.raises(TypeError, match="checkpoint must be the path of a folder; got True"):
        MDLMixture(checkpoint=True).fit(X)
    with pytest.raises(ValueError, match="expecting 3 features"):
        fitted.predict(X[:, :2])


@pytest.mark.filterwarnings("default:the chains do not agree yet")
def test_chains_that_disagree_are_warned_of():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 2)) + 8 * rng.integers(0, 3, size=(300, 2))
    with pytest.warns(ConvergenceWarning, match="R-hat of log_density .* go on with extend"):
        model = MDLMixture(
            9, energy="nml", num_warmup=0, num_samples=8, num_split_merge=0, random_state=0
        ).fit(X)
    assert not model.converged_


@pytest.mark.parametrize(
    ("n_rows", "most", "expected"), [(100, "auto", 1), (20, "auto", 0), (100, 20, 0)]
)
def test_draws_at_the_default_number_of_components_are_warned_of(n_rows, most, expected):
    model = MDLMixture(most)
    model._max_clusters, model._n_rows = 20, n_rows
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        model._warn_most_components(np.repeat([[20, 19]], [5, 95], axis=1))
        assert not issued  # 5 % of the draws
        model._warn_most_components(np.repeat([[20, 19]], [6, 94], axis=1))
    assert len(issued) == expected


@pytest.mark.parametrize(
    ("changes", "share", "expected"),
    [
        ({}, 0.4, 1),
        ({}, 0.5, 0),
        ({"merge": None}, 0.4, 1),
        ({"merge": None, "kernel": "six-move"}, 0.4, 0),
    ],
)
def test_uncertain_numbers_of_clusters_are_warned_of(changes, share, expected):
    model = MDLMixture(**changes)
    # Without merging, all clusters count; otherwise, clusters of three samples or more.
    model.n_clusters_, model.n_major_clusters_ = (2, 9) if "merge" in changes else (9, 2)
    draws = np.where(np.arange(10) < 10 * share, 2, 3) * np.ones((4, 1), dtype=int)
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        model._warn_uncertain_number(draws)
    messages = [str(w.message) for w in issued]
    assert len(messages) == expected
    assert all("got 2 in labels_ and in 40 % of the draws; look" in m for m in messages)


@pytest.mark.filterwarnings("default:the chains do not agree yet")
def test_chains_in_different_clusterings_of_one_length_are_warned_of():
    """Four clusters on a square, which two clusters divide in two ways, since columns are
    exchangeable."""
    corner = np.arange(80)[:, None] // [1, 2] % 2
    half = np.random.default_rng(0).normal(size=(80, 2)) + 4 * corner
    X = np.concatenate([half, half[:, ::-1]])
    model = MDLMixture(2, variance_floor=0.2, random_state=1, **QUICK | {"num_chains": 4})
    with pytest.warns(ConvergenceWarning, match=r"at most inf \(together\[.*look at diagnostics_"):
        model.fit(X)
    last = model.posterior_["labels"].values[:, -1]
    ways = [[matched_accuracy(z, X[:, d] > 2) > 0.9 for d in (0, 1)] for z in last]
    assert all(sum(way) == 1 for way in ways) and 0 < sum(way[0] for way in ways) < 4
    # The length and the number of clusters do not show this.
    assert max(model.r_hat_.values()) < 1.05
    assert not model.converged_
    table = model.diagnostics_
    assert table.loc["log_density", "r_hat"] == model.r_hat_["log_density"]
    assert np.isinf(table["r_hat"]).any() and table.loc["vi_between_chains", "r_hat"] > 1.5


# Comparison with the definitions


def _small(energy, n_classes=2):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(6, 2)) * [1, 2]
    X = (X - X.mean(0)) / X.std(0)
    codes = np.asarray([0, -1, 1, 1, -1, 0]) if n_classes else np.full(6, -1)
    model = coded_model(energy)
    with jax.enable_x64(True):
        return X, codes, model, model.target(X, codes, n_classes, 3)


def _nml_length(X, codes, labels, n, spread):
    """Description length of a partition, from its definition; ``n`` and ``spread`` of the fit."""
    total = 0.0
    for c in np.unique(labels):
        rows, m = X[labels == c], codes[labels == c]
        total -= len(rows) * np.log(len(rows) / n)
        for d in range(X.shape[1]):
            bounds = 0.2, spread[d] / 2, spread[d]
            total += gaussian_length(len(rows), rows[:, d].var(), *bounds)
        total += nml_length([(m == 0).sum(), (m == 1).sum()])
    k = len(np.unique(labels))
    return total + multinomial_complexity(k, n) - np.log(np.arange(1, k + 1)).sum()


def test_the_length_is_the_definition():
    X, codes, _, target = _small("nml")
    for labels in ([0, 0, 0, 0, 0, 0], [0, 1, 2, 1, 0, 2], [1, 1, 1, 0, 0, 0]):
        with jax.enable_x64(True):
            wide = np.pad(np.asarray(labels, np.int32), (0, target.x.shape[0] - 6))
            result = float(start(target, wide).length)
        expected = _nml_length(X, codes, np.asarray(labels), 6, np.ptp(X, axis=0))
        assert result == pytest.approx(expected, rel=1e-10)


def test_predictives_are_normalised_under_the_conjugate_prior_only():
    """Densities of a row given others, integrated over all possible rows."""
    x = np.linspace(-4000, 4000, 800_001)
    rows = np.stack([x, x * x, np.ones_like(x)], 1)

    def mass(code, others):
        own = np.asarray([others.sum(), (others**2).sum(), len(others)])
        return np.exp(float(code(own)) - np.asarray(code(own + rows))).sum() * (x[1] - x[0])

    others = np.random.default_rng(0).normal(size=10)
    with jax.enable_x64(True):
        conjugate = normal_inverse_gamma(20, 1, kappa=0.3, shape=2.0, scale=0.5)
        nml = normal_nml(20, [0.2], [2.5], [5.0])
        for n in (2, 10):
            assert mass(conjugate, others[:n]) == pytest.approx(1, abs=1e-6)
        result = [mass(nml, scale * others[:n]) for n in (2, 10) for scale in (0.5, 5.0)]
    assert all(0.005 < abs(total - 1) < 0.11 for total in result)
    assert all(0.96 < total < 1.02 for total in result[2:])


@pytest.mark.parametrize("rule", ["joint", "cond"])
def test_predictions_are_the_definition(rule):
    X, codes, model, target = _small("nml")
    draws = np.asarray([[0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 2, 0], [2, 2, 2, 2, 2, 2]])
    new = np.asarray([[0.3, -0.2], [1.5, 1.0]])
    spread = np.ptp(X, axis=0)
    log_p = np.empty((3, 2, 2))  # draw, row, class
    sizes = np.asarray(target.sizes)
    for s, labels in enumerate(draws):
        k = len(set(labels.tolist()))

        def block_length(rows, classes):
            fixed = np.zeros(len(rows), int)
            own = _nml_length(rows, classes, fixed, 6, spread)
            return own - multinomial_complexity(1, 6)

        for i, x in enumerate(new):
            for c in range(2):
                ways = []
                for b in set(labels.tolist()):
                    rows, classes = X[labels == b], codes[labels == b]
                    joined = block_length(np.vstack([rows, x]), np.append(classes, c))
                    ways.append(block_length(rows, classes) - joined)
                if k < 3:
                    alone = block_length(x[None], np.asarray([c]))
                    ways.append(-alone - (sizes[k + 1] - sizes[k]))
                log_p[s, i, c] = logsumexp(ways)
    if rule == "cond":
        log_p -= logsumexp(log_p, axis=2, keepdims=True)
    expected = np.exp(logsumexp(log_p, axis=0))
    expected /= expected.sum(1, keepdims=True)
    with jax.enable_x64(True):
        wide = np.pad(draws, ((0, 0), (0, target.x.shape[0] - 6))).astype(np.int32)
        result = class_probabilities(target, {"labels": wide}, 3, model.new_rows(new, 2), rule=rule)
    np.testing.assert_allclose(result, expected, rtol=1e-10)


@pytest.mark.parametrize(("covariance", "errors"), [("diag", "gaussian"), *slowly(("tied", "t"))])
def test_predictions_need_room_for_one_cluster_more_than_draws_have(covariance, errors):
    X = np.random.default_rng(4).normal(size=(12, 2))
    model, none = sampled_model(covariance, errors=errors, unordered=False), np.full(12, -1)
    names = np.asarray([[7, 7, 3, 3, 19, 7], [0, 1, 2, 4, 5, 0]])
    labels = names[:, np.arange(12) % 6]
    with jax.enable_x64(True):
        target = model.target(X, none, 0, 20)
        beside = {n: np.stack([v, v]) for n, v in target.draw().items()}
        if errors == "t":
            beside["scale_weight"] = np.repeat(student_t.VALUES[[[11], [14]]], 12, 1)
        draws = {"labels": labels.astype(np.uint8), **beside}
        few, less = compact_draws(draws, target)
        assert (target.n_slots, less.n_slots) == (20, 10)
        assert (few["labels"][0, :6] == [1, 1, 0, 0, 2, 1]).all()
        rows = model.new_rows(X[:8] + 1, 0)
        expected = log_densities(target, pad_draws(draws, target), 2, rows)
        np.testing.assert_allclose(log_densities(less, few, 2, rows), expected, rtol=1e-12)
        draws["labels"] = np.tile(np.arange(12), (2, 1))
        assert compact_draws(draws, target)[1].n_slots == 20


def test_predictive_densities_integrate_to_one():
    _, _, model, target = _small("conjugate")
    draws = np.asarray([[0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 2, 0], [2, 2, 2, 2, 2, 2]], np.int32)
    t = np.linspace(-6, 6, 121)  # tails are heavy
    rows = np.stack(np.meshgrid(np.sinh(t), np.sinh(t)), -1).reshape(-1, 2)
    area = np.outer(np.cosh(t), np.cosh(t)).reshape(-1) * (t[1] - t[0]) ** 2
    with jax.enable_x64(True):
        wide = np.pad(draws, ((0, 0), (0, target.x.shape[0] - 6)))
        for n_draws in (1, 3):
            x = model.new_rows(rows, 2)
            result = np.asarray(log_densities(target, {"labels": wide}, n_draws, x))
            assert (area * np.exp(result)).sum() == pytest.approx(1, abs=1e-3)


def test_leave_one_out_is_the_ratio_of_evidences():
    """log p(class | all else) is the log ratio of the evidences with and without that class."""
    X, codes, model, target = _small("conjugate")
    z = all_partitions(6)
    z = z[z.max(1) < 3]
    wide = np.pad(z, ((0, 0), (0, target.x.shape[0] - 6))).astype(np.int32)

    def lengths(target):
        return np.asarray(jax.vmap(lambda labels: start(target, labels).length)(wide))

    with jax.enable_x64(True):
        own = lengths(target)
        p = np.exp(-own - logsumexp(-own))
        at = np.random.default_rng(0).choice(len(z), 200_000, p=p)
        result = np.asarray(leave_one_out(target, wide[at]))
        for i in (0, 2):
            less = codes.copy()
            less[i] = -1
            without = lengths(model.target(X, less, 2, 3))
            assert result[i] == pytest.approx(logsumexp(-own) - logsumexp(-without), abs=0.01)
    assert result[1] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "energy"), [("collapsed", "conjugate"), ("six-move", "nml")])
def test_four_components_are_found(kernel, energy):
    """From dispersed chains, which agree in all label-invariant quantities."""
    X, truth = make_four_components(500, random_state=0)
    truth = truth[:, 0]
    y = np.where(np.random.default_rng(0).random(500) < 0.1, truth, -1)
    model = MDLMixture(
        20, kernel=kernel, energy=energy, variance_floor=0.2, unordered=False,
        num_warmup=300 if kernel == "collapsed" else 700,
        num_samples=1000 if kernel == "collapsed" else 600, random_state=0,
    ).fit(X, y)  # fmt: skip
    k = model.posterior_["n_clusters"].values
    assert (k == 4).mean() > 0.5 and model.n_clusters_ == 4
    assert matched_accuracy(model.labels_, truth) > 0.94
    # The usual threshold is 1.01. The full-state kernel needs longer chains under this prior.
    assert max(model.r_hat_.values()) < (1.1 if kernel == "six-move" else 1.03)
    stats = model.sample_stats_
    split, merge = (float(stats[f"{move}_accepted"].sum()) for move in ("split", "merge"))
    assert abs(split - merge) <= 5 * np.sqrt(split + merge) + 16


@pytest.mark.slow
@pytest.mark.contract
def test_both_kernels_have_one_target_under_the_conjugate_prior(three):
    X, y, _ = three
    runs = {"num_warmup": 200, "num_samples": 1000, "num_chains": 4, "random_state": 0}
    runs["merge"] = None
    numbers = {"mean_precision": 0.3, "variance_shape": 2.0, "variance_scale": 0.5}
    models = [
        MDLMixture(6, kernel=kernel, energy="conjugate", covariance="diag", **numbers, **runs).fit(
            X, y
        )
        for kernel in ("collapsed", "six-move")
    ]
    a, b = (posterior.n_clusters(m.posterior_["labels"].values) for m in models)
    for k in (3, 4, 5):
        error = np.hypot(a.loc[k, "mcse"], b.loc[k, "mcse"])
        assert abs(a.loc[k, "probability"] - b.loc[k, "probability"]) < 4 * error + 0.005
    proba = [m.predict_proba(X) for m in models]
    np.testing.assert_allclose(*proba, atol=0.1)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("energy", ["nml", "conjugate"])
def test_the_six_moves_classify_and_go_on(energy, three):
    X, y, truth = three
    few = QUICK | LONG | {"energy": energy}
    model = MDLMixture(6, kernel="six-move", random_state=0, variance_floor=0.2, **few).fit(X, y)
    assert (model.predict(X) == truth).mean() > 0.95
    assert model.posterior_["means"].dims == ("chain", "draw", "cluster", "feature")
    assert pickle.loads(pickle.dumps(model)).extend(10).posterior_.sizes["draw"] == 210
    data = model.to_arviz()
    assert data["parameters"]["weights"].shape == (2, 200, 6)
    again = clone(model).set_params(num_samples=150).fit(X, y).extend(50)
    assert again.posterior_.equals(model.posterior_)


# Known groups, and the choice of the covariance


@pytest.fixture(scope="module")
def planted():
    """Rows (90, 3) of two distant known groups and three clusters in both."""
    rng = np.random.default_rng(3)
    known, truth = np.arange(90) % 2, np.arange(90) // 30
    mixed = rng.normal(size=(90, 3)) @ [[1, 0.8, 0], [0, 0.6, 0], [0, 0, 1]]
    return mixed + 9 * known[:, None] + 5 * np.eye(3)[truth], known, truth


@pytest.fixture(scope="module")
def apart(planted):
    X, known, _ = planted
    chains = {"num_warmup": 100, "num_samples": 100, "num_chains": 2, "num_split_merge": 4}
    return MDLMixture(6, random_state=0, **chains).fit(X, known=known)


@pytest.mark.slow
@pytest.mark.contract
def test_clusters_say_what_known_groups_do_not(apart, planted):
    X, known, truth = planted
    assert (apart.energy_, apart.covariance_) == ("conjugate", "tied")
    assert apart.n_clusters_ == 3 and matched_accuracy(apart.labels_, truth) > 0.95
    # New rows of both groups join the clusters of similar rows of their group.
    assert matched_accuracy(apart.predict(X[::-1], known=known[::-1]), truth[::-1]) > 0.95
    moved = X - 9 * known[:, None]
    assert (apart.predict(moved, known=0 * known) == apart.predict(X, known=known)).mean() > 0.9
    assert apart.score(X, known=known) > apart.score(X, known=1 - known) + 3
    log_likelihood = apart.to_arviz(log_likelihood=True)["log_likelihood"]["X"]
    assert log_likelihood.shape == (2, 100, 90) and np.isfinite(log_likelihood).all()
    assert log_likelihood.mean() < apart.score(X, known=known)  # of samples that are in the fit


@pytest.mark.slow
@pytest.mark.contract
def test_what_is_known_is_checked(apart, planted):
    X, known, _ = planted
    with pytest.raises(ValueError, match="clusters of continuous features share one covariance"):
        MDLMixture(energy="nml").fit(X, known=known)
    with pytest.raises(ValueError, match="clusters of continuous features share one covariance"):
        MDLMixture(covariance="full").fit(X, known=known)
    with pytest.raises(ValueError, match="every row has its own known group"):
        MDLMixture().fit(X, known=np.arange(90))
    with pytest.raises(ValueError, match="required"):
        apart.predict(X)
    with pytest.raises(ValueError, match="did not occur in fit"):
        apart.predict(X, known=known + 1)


def test_many_columns_are_not_multiplied_to_choose_a_covariance():
    X = np.random.default_rng(0).normal(size=(20, 31))
    model = sampled_model("diag")
    with jax.enable_x64(True):
        result = shortest_lengths(model, X, np.full(20, -1), 0, 2, np.random.RandomState(0))
    assert list(result) == ["diag", "tied"] and np.isfinite(list(result.values())).all()


@pytest.mark.parametrize("covariance", ["diag", "tied", "full"])
def test_the_covariance_is_that_of_the_rows(covariance):
    """With 300 rows in three columns, since their descriptions are shortest."""
    rng = np.random.default_rng(1)
    turns = {
        "diag": [np.diag(s) for s in ([1, 0.2, 0.5], [0.3, 1, 0.4], [0.8, 0.8, 1.5])],
        "tied": [rng.normal(size=(3, 3))] * 3,
        "full": list(rng.normal(size=(3, 3, 3))),
    }
    truth = np.arange(300) % 3
    X = np.stack([rng.normal(size=3) @ turns[covariance][c] for c in truth])
    X = X + 5 * np.eye(3)[truth]
    model = sampled_model("diag")
    with jax.enable_x64(True):
        result = shortest_lengths(
            model, (X - X.mean(0)) / X.std(0), np.full(300, -1), 0, 8, np.random.RandomState(0)
        )
    assert min(result, key=result.get) == choose_covariance(result) == covariance


def test_covariances_of_their_own_have_to_be_clearly_shorter():
    alike = {"diag": 140.0, "tied": 135.0}
    assert choose_covariance(alike | {"full": 132.1}) == "tied"
    assert choose_covariance(alike | {"full": 131.9}) == "full"
    assert choose_covariance(alike | {"full": 131.9, "shrunk": 130.0}) == "shrunk"
    assert choose_covariance({"diag": 134.9, "tied": 135.0, "full": 140.0}) == "diag"
    assert choose_covariance({"full": 1.0}) == "full"


def test_of_few_rows_or_many_columns_covariances_are_shrunk():
    """Rows are few if there are fewer than parameters of two covariances."""
    own = {(n, m): candidates(n, m)[2:] for n, m in ((89, 9), (90, 9), (109, 10), (5000, 11))}
    assert list(own.values()) == [("shrunk",), ("full",), ("shrunk",), ("shrunk",)]
    assert candidates(5000, 31) == ("diag", "tied")


@pytest.mark.slow
@pytest.mark.contract
def test_partitions_by_classes_are_among_those_that_are_described():
    """For any number of clusters, and few rows in the clusters of EM."""
    rng = np.random.default_rng(3)
    truth = np.arange(24) % 3
    X = rng.normal(size=(24, 4)) + 2.5 * np.eye(4)[truth]
    X = (X - X.mean(0)) / X.std(0)
    model = sampled_model("diag")
    with jax.enable_x64(True):
        result = {
            most: shortest_lengths(model, X, truth, 3, most, np.random.RandomState(0))["tied"]
            for most in (2, 3)
        }
        target = sampled_model("tied").target(X, truth, 3, 3)
        labels = np.pad(truth, (0, target.x.shape[0] - 24)).astype(np.int32)
        own = float(target.shortest_length(jax.numpy.asarray(labels)))
    assert result[3] <= own + 1e-9 < result[2]


@pytest.mark.slow
@pytest.mark.contract
def test_covariances_that_depart_from_a_common_one_are_shrunk_to_it():
    """With 240 rows in 12 columns, separate covariances are poorly estimated."""
    rng = np.random.default_rng(0)
    truth, common = np.arange(240) % 3, rng.normal(size=(12, 12)) / np.sqrt(12) + np.eye(12)
    X = rng.normal(size=(3, 12))[truth] @ common.T * 1.5
    for c in range(3):
        own = np.eye(12) + 0.4 * rng.normal(size=(12, 12)) / np.sqrt(12)
        X[truth == c] += rng.normal(size=(80, 12)) @ own @ common.T
    model = sampled_model("diag")
    with jax.enable_x64(True):
        result = shortest_lengths(
            model, (X - X.mean(0)) / X.std(0), np.full(240, -1), 0, 3, np.random.RandomState(0)
        )
        assert list(result) == ["diag", "tied", "shrunk"]
        assert min(result, key=result.get) == "shrunk"
        # If a column depends on others, the density has no mode.
        X = np.c_[X[:30], X[:30, 0] + X[:30, 1]]
        X = (X - X.mean(0)) / X.std(0)
        result = shortest_lengths(model, X, np.full(30, -1), 0, 2, np.random.RandomState(0))
    assert list(result) == ["diag", "tied"]
