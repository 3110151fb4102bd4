"""Conditional mixtures on new samples: corrected tables, optima, unseen groups, warnings."""

import warnings

import jax
import numpy as np
import pandas as pd
import pytest
from grouped_tables import flag_table, one_batch_only, turned_shares
from scipy.stats import multivariate_normal
from sklearn.base import clone

import nrprob
from nrprob import ConditionalMixture
from nrprob.exceptions import DegenerateClusterWarning
from nrprob.methods.conditional.joint import JointState
from nrprob.methods.conditional.joint_fit import _distinct_clusters, make_problem
from nrprob.methods.conditional.joint_search import Ends, Form, Problem
from nrprob.methods.conditional.new_groups import NewGroups, lay_out_new_groups
from nrprob.methods.conditional.regression import fit_groups_and_clusters
from nrprob.methods.conditional.table_data import TableData
from nrprob.metrics import adjusted_rand_index
from nrprob.statistics.groups import describe_single_groups, shares_differ

FEW = {"n_init": 12, "random_state": 0}
pytestmark = [
    pytest.mark.filterwarnings("ignore:two solutions:UserWarning"),
    pytest.mark.filterwarnings("ignore:shares of clusters differ:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*lie in one known group only"),
]


def group_differences(X, groups, cluster):
    """Root mean square deviation of group means within the same true cluster."""
    deviations = []
    for c in np.unique(cluster):
        present = np.unique(groups[cluster == c])
        means = np.array([X[(cluster == c) & (groups == z)].mean(0) for z in present])
        if len(present) > 1:
            deviations.append(means - means.mean(0))
    return np.sqrt(np.mean(np.concatenate(deviations) ** 2))


@pytest.fixture(scope="module")
def mixed():
    frame, _ = flag_table()
    frame.loc[::7, "a"] = np.nan
    frame.index = [f"row {i}" for i in range(len(frame))]
    return frame, ConditionalMixture(2, **FEW).fit(frame, known="site")


@pytest.fixture(scope="module")
def unequal():
    X, groups, cluster, _ = turned_shares()
    return X, groups, cluster, ConditionalMixture(3, **FEW).fit(X, known=groups)


# Corrected table


def test_a_corrected_table_loses_the_group_effects_and_keeps_its_level(unequal):
    X, groups, _, model = unequal
    before = X.copy()
    corrected = model.transform(X, known=groups)
    np.testing.assert_array_equal(X, before)
    np.testing.assert_allclose(corrected.mean(0), X.mean(0))
    shift = X - corrected
    for z in range(3):
        np.testing.assert_allclose(shift[groups == z], shift[groups == z][:1].repeat(150, 0))
    difference = model.effects_ - model.effects_[0]
    np.testing.assert_allclose(shift[:3] - shift[0], difference[groups[:3]], atol=1e-12)


def test_without_known_groups_a_table_is_returned_unchanged(mixed, unequal):
    X, groups, _, model = unequal
    unchanged = model.transform(X)
    np.testing.assert_array_equal(unchanged, X)
    assert unchanged is not X and model.transform(X.astype(np.float32)).dtype == np.float32
    with pytest.raises(ValueError, match="did not occur in fit"):
        model.transform(X[:2], known=[0, 7])
    frame, model = mixed
    features = frame.drop(columns="site")
    pd.testing.assert_frame_equal(model.transform(features), features)


def test_a_corrected_frame_keeps_discrete_columns_and_missing_values(mixed):
    frame, model = mixed
    corrected = model.transform(frame)
    assert [*corrected.columns] == [*model.get_feature_names_out()] == [*"abcd", "flag"]
    assert corrected.index.equals(frame.index)
    pd.testing.assert_series_equal(corrected["flag"], frame["flag"])
    assert (corrected["a"].isna() == frame["a"].isna()).all()
    codes = (frame["site"] != frame["site"].iloc[0]).to_numpy(int)
    effects = model.effects_ - np.bincount(codes) @ model.effects_ / len(codes)
    expected = frame[[*"abcd"]] - effects[codes]
    pd.testing.assert_frame_equal(corrected[[*"abcd"]], expected)
    other = clone(model).fit_transform(frame, known="site")
    pd.testing.assert_frame_equal(other, corrected)


@pytest.mark.parametrize("kind", ["covariates", "additive", "many columns"])
def test_a_corrected_table_has_the_residuals_of_a_regression(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)) + 3 * rng.integers(2, size=(60, 1))
    if kind == "covariates":
        known, design = rng.normal(size=(60, 2)), None
        design = np.column_stack([np.ones(60), known])
    elif kind == "additive":
        known = rng.integers(3, size=(60, 2))
        design = np.column_stack([known[:, [j]] == range(3) for j in range(2)]).astype(float)
    else:
        X = np.column_stack([X, rng.normal(size=(60, 60))])
        known = np.arange(60) % 3
        design = (known[:, None] == range(3)).astype(float)
    model = ConditionalMixture(2, multi="additive", effects="subtract", **FEW).fit(X, known=known)
    corrected = model.transform(X, known=known)
    fit = design @ np.linalg.lstsq(design, X, rcond=None)[0]
    np.testing.assert_allclose(corrected, X - fit + X.mean(0), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
def test_clusters_stay_where_they_are_in_a_corrected_table(seed):
    X, batch, kind = one_batch_only(seed)
    model = ConditionalMixture(3, **FEW).fit(X, known=batch)
    assert model.effects_kind_ == "random"
    assert group_differences(model.transform(X, known=batch), batch, kind) < 0.06
    subtracted = clone(model).set_params(effects="subtract")
    with pytest.warns(UserWarning, match="joint fit of group effects"):
        subtracted.fit(X, known=batch)
    with pytest.warns(UserWarning, match="subtracting group means moves clusters"):
        corrected = subtracted.transform(X, known=batch)
    assert group_differences(corrected, batch, kind) > 0.3


# Missing values of new samples


def test_missing_values_of_new_samples_are_integrated_out(unequal):
    X, groups, _, model = unequal
    rows = X[:6].copy()
    rows[0, 1] = rows[1, 2] = rows[1, 3] = np.nan
    for x, z, p in zip(rows, groups, model.predict_proba(rows, known=groups[:6]), strict=False):
        seen = np.flatnonzero(~np.isnan(x))
        covariance = model.covariance_[np.ix_(seen, seen)]
        density = [
            multivariate_normal((model.effects_[z] + centre)[seen], covariance).pdf(x[seen])
            for centre in model.means_
        ]
        expected = model.shares_[z] * density
        np.testing.assert_allclose(p, expected / expected.sum(), rtol=1e-6, atol=1e-12)


# Optima


@pytest.mark.parametrize("effects", ["subtract", "auto"])
def test_optima_are_the_best_distinct_restarts(unequal, effects):
    X, groups, _, model = unequal
    if effects == "subtract":
        with pytest.warns(UserWarning, match="joint fit of group effects"):
            model = clone(model).set_params(effects="subtract").fit(X, known=groups)
    optima, restarts = model.optima_, model.restarts_
    labels, gap = optima.labels.values, optima.gap.values
    assert gap[0] == 0 and (np.diff(gap) >= 0).all() and len(gap) <= 10
    assert (labels[0] == model.labels_).all()
    assert optima.objective.values[0] == model.objective_
    for row, sizes in zip(labels, optima.cluster_sizes.values, strict=True):
        assert (np.bincount(row, minlength=3) == sizes).all()
    for row, value in zip(restarts.labels.values, restarts.objective.values, strict=True):
        index = [adjusted_rand_index(row, other) for other in labels]
        better = optima.objective.values <= value
        # Another restart is an optimum, or like a better one.
        assert max(np.array(index)[better]) >= 0.8
    for i in range(len(labels)):
        assert all(adjusted_rand_index(labels[i], labels[j]) < 0.8 for j in range(i))
    assert model.objective_margin_ == (gap[1] if len(gap) > 1 else np.inf)


def test_restarts_of_a_mixed_table_are_listed_with_their_starts(mixed):
    _, model = mixed
    table = model.start_table_
    assert len(table) == 12 and not table["warmed_up"].any()
    assert set(table["coordinates"]) == {"numbers", "discrete"}  # "both" is the third kind
    assert set(table["start"]) == {"plain", "aligned"} and set(table["metric"]) == {0.0, 0.5, 1.0}
    np.testing.assert_allclose(table["objective"].min(), model.objective_)


# Warnings


def test_independent_shares_do_not_differ_and_turned_shares_do():
    rng = np.random.default_rng(0)
    false = sum(
        shares_differ(rng.multinomial(450, np.outer([0.5, 0.3, 0.2], [0.2, 0.8]).ravel())[None]
                      .reshape(3, 2))
        for _ in range(500)
    )  # fmt: skip
    assert false <= 4  # a level of 1e-4 gives five with a probability of 1e-9
    assert shares_differ(np.array([[70, 20, 10], [10, 70, 20], [20, 10, 70]]))
    assert not shares_differ(np.array([[70, 20, 10]]))
    assert not shares_differ(10**6 * np.array([[50, 50], [51, 49]]))


def test_what_tables_of_groups_and_clusters_show_is_reported():
    model = ConditionalMixture(3, effects="subtract")
    model.effects_kind_ = "subtract"
    with pytest.warns(UserWarning, match="the median known group has 3 samples"):
        assert not model._warn_groups(np.ones((20, 3), int), "")
    assert model._warn_groups(np.full((20, 3), 10), "")
    turned = np.array([[70, 20, 10], [10, 70, 20], [20, 10, 70]])
    with pytest.warns(UserWarning, match="effects='auto', which subtracts group means of rows"):
        model.set_params(effects="auto")._warn_groups(turned, "group means of rows")
    with pytest.warns(DegenerateClusterWarning, match="lie in one known group only"):
        model._warn_groups(np.array([[50, 50, 40], [50, 50, 0]]), "")
    with pytest.warns(DegenerateClusterWarning, match="the clusters are nearly equal"):
        model._warn_equal_clusters(0.96)


@pytest.mark.slow
def test_subtracted_means_that_contain_clusters_are_reported(unequal, tmp_path):
    X = unequal[0][:60]
    small = np.arange(60) // 3
    with pytest.warns(UserWarning, match="the median known group has 3 samples"):
        ConditionalMixture(3, effects="subtract", n_init=4).fit(X, known=small)
    with pytest.warns(UserWarning, match="effects='auto', which subtracts group means with errors"):
        ConditionalMixture(3, errors="t", n_init=4).fit(X, known=small)
    X, batch, _ = one_batch_only(0, 150)
    np.save(tmp_path / "rows.npy", X)
    with pytest.warns(UserWarning, match="auto', which subtracts group means of stored rows"):
        ConditionalMixture(3, **FEW).fit(nrprob.stored(tmp_path / "rows.npy"), known=batch)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([[122, 5], [0, 100], [0, 90]], "1 cluster(s) lie in one known group only, such as"),
        ([[1, 40], [121, 60]], "only (at least 95 % of their samples), such as cluster 0;"),
        ([[93, 60], [7, 60]], ""),  # fewer than 95 %
        ([[100, 850], [0, 50]], ""),  # the group has 95 % of all samples
        ([[97, 830], [3, 110]], ""),  # the share of the group is almost as large
        ([[3, 40], [0, 40]], ""),  # too few samples
        ([[90, 80]], ""),
        ([[90, 0], [90, 0]], ""),
    ],
)
def test_clusters_that_are_nearly_in_one_group_are_described(table, said):
    text = describe_single_groups(np.array(table))
    assert said in text and bool(text) == bool(said)


@pytest.mark.parametrize("model", [nrprob.ResidualSpectral(3, members=1), nrprob.CCIB(3, n_init=3)])
def test_counts_whose_cluster_is_in_one_group_are_reported(model):
    rng = np.random.default_rng(0)
    known, sought = np.arange(300) % 3, np.arange(300) // 3 % 2
    sought = np.where((known == 2) & (np.arange(300) > 90), 2, sought)
    rates = 1 + 8 * (np.arange(30) // 10 == sought[:, None])
    rates = rates + 2 * (np.arange(30) % 3 == known[:, None])
    X = rng.poisson(rates).astype(float)
    model = model.set_params(random_state=0)
    with pytest.warns(DegenerateClusterWarning, match="lie in one known group only"):
        model.fit(X, known=known)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DegenerateClusterWarning)
        model.fit(X, known=rng.integers(2, size=300))


@pytest.mark.slow
def test_clusters_in_one_group_are_reported():
    X, batch, _ = one_batch_only(0, 150)
    with pytest.warns(DegenerateClusterWarning, match="lie in one known group only"):
        model = ConditionalMixture(3, **FEW).fit(X, known=batch)
    assert model.effects_kind_ == "random"


# Unseen groups


@pytest.fixture(scope="module")
def many_groups():
    """Eight groups of a mixed table, whose fit has random effects."""
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(8), 40)
    cluster = rng.integers(2, size=320)
    effects = rng.normal(size=(8, 3))
    x = np.outer(cluster, [4.0, 3.0, 0.0]) + effects[groups] + rng.normal(size=(320, 3))
    frame = pd.DataFrame(x, columns=[*"abc"])
    odds = 1.5 * (2 * cluster - 1) + 0.7 * rng.normal(size=8)[groups]
    frame["flag"] = rng.random(320) < 1 / (1 + np.exp(-odds))
    rating = (rng.random((320, 1)) > np.array([[0.3, 0.6], [0.1, 0.3]])[cluster]).sum(1)
    frame["rating"] = rating.astype(float)
    frame.loc[::9, "b"] = np.nan
    settings = FEW | {"effects": "random", "weights": "by_group", "location": False, "tol": 0.1}
    model = ConditionalMixture(2, **settings)
    return frame, groups, model.fit(frame, known=groups)


def test_an_unseen_group_of_known_samples_has_their_effect(many_groups):
    frame, groups, model = many_groups
    # The training groups under other labels, two at a time so that padding differs.
    for names in ([0, 1], [2, 3, 4, 5, 6, 7]):
        rows = np.isin(groups, names)
        new = model.transform(frame[rows], known=groups[rows] + 100, unseen="estimate")[[*"abc"]]
        old = model.transform(frame[rows], known=groups[rows])[[*"abc"]]
        deviation = np.sqrt(np.diag(model.covariance_))
        assert (np.abs(new - old).max() < 0.1 * deviation).all()
        again = model.predict(frame[rows], known=groups[rows] + 100, unseen="estimate")
        assert (again == model.labels_[rows]).mean() > 0.97


def test_a_single_sample_of_an_unseen_group_has_the_prior(many_groups):
    frame, _, model = many_groups
    rows = frame.head(12)
    alone = 100 + np.arange(12)
    p = model.predict_proba(rows, known=alone, unseen="estimate")
    density = model.score_samples(rows, known=alone, unseen="estimate")
    fitted, units = model._fitted, model._units
    share = fitted.concentration / fitted.concentration.sum()
    covariance = model.covariance_ + model.effects_covariance_
    flags = model._columns.discrete[0].values.tolist()
    for i, row in enumerate(rows.itertuples()):
        x = np.array([row.a, row.b, row.c])
        seen = np.flatnonzero(~np.isnan(x))
        centres = units.centre + fitted.b @ units.back
        value = share * [
            multivariate_normal(b[seen], covariance[np.ix_(seen, seen)]).pdf(x[seen])
            for b in centres
        ]
        odds = np.exp(fitted.discrete.beta[:, :2])
        flag = (odds / odds.sum(1, keepdims=True))[:, flags.index(row.flag)]
        column = fitted.data.columns[1]
        tilt = fitted.discrete.alpha[2 : 2 + column.n_values]
        tilt = np.exp(tilt + fitted.discrete.slope[:, [1]] * column.standard_scores)
        value = value * flag * (tilt / tilt.sum(1, keepdims=True))[:, int(row.rating)]
        np.testing.assert_allclose(density[i], np.log(value.sum()), rtol=1e-6)
        np.testing.assert_allclose(p[i], value / value.sum(), rtol=1e-6)


def test_unseen_groups_do_not_depend_on_each_other_or_on_order(many_groups):
    frame, groups, model = many_groups
    rng = np.random.default_rng(0)
    rows = np.flatnonzero(np.isin(groups, [1, 4]))[::5]
    known = np.where(groups[rows] == 1, 100, 4)  # one unseen group and one of the fit
    together = model.predict_proba(frame.iloc[rows], known=known, unseen="estimate")
    order = rng.permutation(len(rows))
    shuffled = model.predict_proba(frame.iloc[rows[order]], known=known[order], unseen="estimate")
    np.testing.assert_allclose(shuffled, together[order], atol=1e-8)
    first = known == 100
    separate = model.predict_proba(frame.iloc[rows[first]], known=known[first], unseen="estimate")
    np.testing.assert_allclose(separate, together[first], atol=1e-8)
    rest = model.predict_proba(frame.iloc[rows[~first]], known=known[~first])
    np.testing.assert_allclose(rest, together[~first])


def test_steps_of_unseen_groups_raise_their_objective(many_groups):
    frame, groups, model = many_groups
    samples = model._locate(model._fitted, *model._read_new(frame, groups + 100, "estimate"))

    @jax.jit
    def objectives(problem, m):
        steps = NewGroups(*problem)

        def step(state, _):
            state, _, _ = steps.step(state, 0)
            return state, steps.objective(state)

        return jax.lax.scan(step, steps.begin(m), length=30)[1]

    with jax.enable_x64(True):
        problem, starts, _ = lay_out_new_groups(
            samples.fitted, samples.x, samples.columns, samples.codes - 8
        )
        values = np.asarray(objectives(problem, starts[0]))[:, :8]
    assert (np.diff(values, axis=0) > -1e-6).all()
    assert (values[-1] - values[0] > 1).any()


def test_unseen_groups_need_random_effects_in_memory(unequal, many_groups, mixed, tmp_path):
    frame, model = mixed
    assert model.effects_kind_ == "subtract"
    with pytest.raises(ValueError, match="unseen='estimate' needs a fit with random effects"):
        model.predict(frame, unseen="estimate")
    X, groups, _, model = unequal
    for ask in (model.predict, model.predict_proba, model.score_samples, model.transform):
        with pytest.raises(ValueError, match="did not occur in fit"):
            ask(X, known=groups + 1)
    with pytest.raises(ValueError, match="unseen must be one of"):
        model.predict(X, known=groups, unseen="guess")
    np.save(tmp_path / "rows.npy", X)
    with pytest.raises(ValueError, match="needs all samples of a group at once"):
        model.predict(nrprob.stored(tmp_path / "rows.npy"), known=groups, unseen="estimate")
    np.testing.assert_allclose(
        model.score(X, known=groups), model.score_samples(X, known=groups).mean()
    )


def test_restarts_with_equal_clusters_are_left_out_unless_there_are_no_others():
    rng = np.random.default_rng(0)
    data = TableData(rng.normal(size=(40, 2)), [], np.arange(40) % 2, 2)
    problem = make_problem(
        data, 2, covariance="tied", ridge=3.0, location=False, tol=1e-3, max_iter=10
    )
    labels = np.stack([np.arange(40) % 2, np.arange(40) // 20])
    memberships = problem.from_labels(labels)
    equal = np.full_like(memberships[:1], 0.5)
    r = np.concatenate([memberships, equal])
    objective = np.array([3.0, 1.0, 7.0])  # the largest where clusters are equal
    blank = dict.fromkeys(JointState._fields)
    state = JointState(**(blank | {"r": r, "objective": objective}))
    ends = Ends(state, np.ones(3, bool), np.arange(3), np.zeros((3, 1)))
    result = _distinct_clusters(problem, ends)
    assert (result.labels == labels).all() and result.objective.tolist() == [3.0, 1.0]
    assert float(result.best.state.objective) == 3.0
    only = jax.tree.map(lambda a: a[2:], ends)
    assert _distinct_clusters(problem, only).objective.tolist() == [7.0]


@pytest.mark.parametrize("is_large", [False, True])
def test_hopeless_restarts_of_large_tables_are_left_out(monkeypatch, is_large):
    rng = np.random.default_rng(0)
    data = TableData(rng.normal(size=(40, 2)), [], np.arange(40) % 2, 2)
    problem = make_problem(
        data, 2, covariance="tied", ridge=3.0, location=False, tol=1e-3, max_iter=10
    )
    trace = np.full((4, 30), np.nan)
    trace[:3, :24] = np.linspace([0, -80, -9], [10, -20, 8], 24).T
    trace[3, :7] = 3  # converged below the best
    objective = np.array([10.0, -20, 8, 3])

    def run(self, r, forms, max_iter):
        state = JointState(**(dict.fromkeys(JointState._fields) | {"objective": objective}))
        return Ends(state, np.ones(4, bool), np.full(4, max_iter), trace)

    monkeypatch.setattr(Problem, "_is_large", is_large)
    monkeypatch.setattr(Problem, "run", run)
    r = np.arange(4.0)[:, None, None, None] + np.zeros((4, 3, 2, 2))
    left = problem.leave_out_hopeless(r, Form(False, False, False))
    # The second restart would need 30 nats, but gained 31 in the last twelve steps.
    assert left[:, 0, 0, 0].tolist() == ([0, 1, 2] if is_large else [0, 1, 2, 3])


def test_effects_beside_clusters_are_those_of_an_additive_model():
    rng = np.random.default_rng(0)
    groups = np.arange(90) % 3
    share = np.array([np.roll([0.8, 0.15, 0.05], z) for z in range(3)])[groups]
    cluster = (rng.random((90, 1)) > share.cumsum(1)[:, :-1]).sum(1)
    rest, effects, centres = rng.normal(size=(90, 7)), rng.normal(size=(3, 7)), np.eye(3, 7)
    rest = rest - rest.mean(0)
    membership = np.eye(3)[cluster]
    estimate, clusters = fit_groups_and_clusters(rest, groups, 3, membership)
    # Adding effects and centres to the rows adds them to the estimates, up to the level.
    moved = rest + effects[groups] + centres[cluster]
    level = moved.mean(0)
    more, other = fit_groups_and_clusters(moved, groups, 3, membership)
    difference = more - estimate - effects
    np.testing.assert_allclose(difference, difference[:1].repeat(3, 0), atol=1e-12)
    difference = other - clusters - centres
    np.testing.assert_allclose(difference, difference[:1].repeat(3, 0), atol=1e-12)
    np.testing.assert_allclose(np.bincount(groups) @ more / 90, level, atol=1e-12)
    residual = moved - more[groups] - other[cluster]
    np.testing.assert_allclose(membership.T @ residual, 0, atol=1e-9)
