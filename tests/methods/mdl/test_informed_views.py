"""Clustering of several views with known groups, pairs, labels and unknown numbers of clusters."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

from nrprob import MDLMultiView
from nrprob.datasets import make_essential_sources, make_informed_views
from nrprob.links import InfeasibleConstraints

ROUND = {"covariance": "isotropic", "n_init": 3, "random_state": 0}


@pytest.fixture(scope="module")
def data():
    return make_informed_views(120, n_features=4, separation=3.0, random_state=0)


def agreement(model, data):
    return adjusted_rand_score(data.clusters[:, 0], model.alternatives_[:, 0])


def test_all_that_is_known_is_used(data):
    model = MDLMultiView("auto", **ROUND)
    model.fit(data.views, data.y, known=data.known, must_link=data.must_link)
    assert model.n_clusters_ == (3, 3) and agreement(model, data) > 0.9
    assert (model.alternatives_[data.must_link[:, 0], 0]
            == model.alternatives_[data.must_link[:, 1], 0]).all()  # fmt: skip
    assert model.uninformative_views_ == model.unlinked_views_ == []
    assert (model.words_saved_ > 10).all() and np.isfinite(model.known_dependence_)
    # Groups that are four standard deviations apart hide the clusters.
    assert agreement(clone(model).fit(data.views), data) < 0.7
    again = pickle.loads(pickle.dumps(model))
    predicted = again.predict(data.views, known=data.known)
    assert (predicted == model.alternatives_).mean() > 0.95
    assert again.predict([x[:1] for x in data.views], known=["new"]).shape == (1, 2)
    with pytest.raises(ValueError, match="known is required to predict"):
        model.predict(data.views)


def test_fit_warns_where_the_number_is_the_largest_allowed(data):
    """The first view has three clusters; its number is selected, the other number is given."""
    for limit, expected in ((2, True), (4, False)):
        model = MDLMultiView(("auto", 2), max_clusters=limit, **ROUND)
        with warnings.catch_warnings(record=True) as issued:
            warnings.simplefilter("always")
            model.fit(data.views, data.y, known=data.known)
        messages = [str(w.message) for w in issued]
        assert any("of view 0 is the largest allowed" in m for m in messages) == expected
        assert not any("view 1" in m for m in messages)


def test_hard_pairs_hold_whatever_they_cost(data):
    rng, clusters = np.random.default_rng(3), data.clusters[:, 0]
    pairs = rng.permutation(len(clusters)).reshape(-1, 2)
    same = clusters[pairs[:, 0]] == clusters[pairs[:, 1]]
    cannot, must = pairs[same][:6], pairs[~same][:6]  # all of them are wrong
    model = MDLMultiView(3, **ROUND).fit(data.views, must_link=must, cannot_link=cannot)
    labels = model.alternatives_[:, 0]
    assert (labels[must[:, 0]] == labels[must[:, 1]]).all()
    assert (labels[cannot[:, 0]] != labels[cannot[:, 1]]).all()
    soft = clone(model).set_params(constraints="soft")
    soft.fit(data.views, must_link=must, cannot_link=cannot)
    wrong = soft.alternatives_[cannot, 0]
    assert (wrong[:, 0] == wrong[:, 1]).any()


def test_an_annealed_and_a_searched_fit_have_one_objective(data):
    model = MDLMultiView(3, n_init=3, random_state=0).fit(data.views)
    searched = clone(model).set_params(view_gain=True).fit(data.views)
    assert model.objective_ == pytest.approx(searched.objective_)
    assert model.words_saved_ == pytest.approx(searched.words_saved_)
    assert (searched.view_gain_ > 0).all() and not hasattr(model, "view_gain_")


def test_nothing_known_in_disguise_changes_nothing(data):
    model = MDLMultiView("auto", **ROUND)
    plain = clone(model).fit(data.views).objective_
    n = len(data.views[0])
    unlabelled = clone(model).fit(data.views, np.full(n, -1))
    itself = clone(model).fit(data.views, must_link=np.array([[3, 3]]))
    assert unlabelled.objective_ == pytest.approx(plain)
    # Pairs are coded with a forest instead of a table, which costs a few nats.
    assert abs(itself.objective_ - plain) < 10


def test_order_of_samples_and_units_of_views_change_no_length(data):
    order = np.random.default_rng(0).permutation(len(data.views[0]))
    position = np.argsort(order)
    model = MDLMultiView(("auto", 3), **ROUND)
    one = clone(model).fit(data.views, data.y, known=data.known, must_link=data.must_link)
    two = clone(model).fit(
        [x[order] for x in data.views],
        data.y[order],
        known=data.known[order],
        must_link=position[data.must_link],
    )
    assert one.objective_ == pytest.approx(two.objective_)
    assert adjusted_rand_score(one.alternatives_[order, 0], two.alternatives_[:, 0]) == 1


@pytest.mark.parametrize("features", ["bernoulli", "multinomial"])
def test_discrete_views_with_known_groups(features):
    rng, n = np.random.default_rng(0), 160
    z, groups = rng.integers(2, size=n), rng.integers(2, size=n)
    logit = 3 * (z[:, None] == (np.arange(12) % 2)) - 1.5 + 3 * (groups[:, None] - 0.5)
    x = (rng.random((n, 12)) < 1 / (1 + np.exp(-logit))).astype(float)
    if features == "multinomial":
        x = rng.poisson(np.exp(0.7 * logit)).astype(float)
    model = MDLMultiView("auto", features=features, n_init=3, random_state=0)
    model.fit([x], known=groups)
    assert model.n_clusters_ == (2,)
    assert adjusted_rand_score(z, model.alternatives_[:, 0]) > 0.8
    assert (model.predict([x], known=groups) == model.alternatives_).mean() > 0.95
    with pytest.raises(ValueError, match=r"features=.* needs .*; got .* in view 0"):
        model.fit([x - 0.5], known=groups)


def test_copies_are_warned_about(data):
    x = data.views[0]
    copy = x @ np.random.default_rng(0).normal(size=(4, 4))
    with pytest.warns(UserWarning, match="share their errors .*canonical correlation 1.00 .*stack"):
        MDLMultiView("auto", covariance="full", n_init=2, random_state=0).fit([x, copy])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        MDLMultiView("auto", **ROUND).fit(data.views, known=data.known)


def test_views_without_clusters_and_without_links_are_reported(data):
    rng, n = np.random.default_rng(1), len(data.views[0])
    alone = 5 * rng.integers(2, size=n)[:, None] + rng.normal(size=(n, 2))
    views = [*data.views, rng.normal(size=(n, 3)), alone]
    model = MDLMultiView("auto", **ROUND).fit(views, known=data.known)
    assert model.n_clusters_ == (3, 3, 1, 2)
    assert model.uninformative_views_ == [2]
    assert model.unlinked_views_ == [2, 3]
    assert model.words_saved_[2:] == pytest.approx([0, 0], abs=3)


def test_bad_input_is_refused(data):
    def refuse(match, error=ValueError, y=None, known=None, cannot=None, **parameters):
        with pytest.raises(error, match=match):
            MDLMultiView(**{"n_clusters": 2, "n_init": 1, **parameters}).fit(
                data.views, y, known=known, cannot_link=cannot
            )

    refuse("features must be one of", features="poisson")
    refuse("one per view; got 3 for 2", features=("gaussian",) * 3)
    refuse("covariance must be one of", covariance="tied")
    refuse("sigma='cluster' takes no known groups", known=data.known, sigma="cluster")
    refuse("known_words='given' takes must-links", known=data.known, cannot=[[0, 1]],
           known_words="given")  # fmt: skip
    refuse("cannot", InfeasibleConstraints, cannot=[[0, 1], [1, 2], [0, 2]])
    refuse("cannot_link must not link a row to itself", cannot=[[0, 0]])
    refuse("one label per row", y=[0, 1])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2000, 2001])
def test_no_source_of_the_essential_data_is_redundant(seed):
    data = make_essential_sources(random_state=seed)
    known = {"known": data.known, "must_link": data.must_link}
    model = MDLMultiView(2, n_init=8, random_state=seed)

    def score(views, y, **known):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the factors that are no clusters
            return agreement(clone(model).fit(views, y, **known), data)

    assert score(data.views, data.y, **known) > 0.9
    assert score(data.views[:1], data.y, **known) < 0.2
    assert score(data.views[1:], data.y, **known) < 0.2
    assert score(data.views, None, **known) < 0.2
    assert score(data.views, data.y, known=data.known) < 0.2
    assert score(data.views, data.y, must_link=data.must_link) < 0.2


@pytest.mark.slow
def test_soft_pairs_protect_from_wrong_ones():
    scores = []
    for seed in range(2100, 2104):
        data = make_informed_views(
            n_features=4, separation=2.6, wrong_links=1 / 3, random_state=seed
        )
        models = [
            MDLMultiView("auto", constraints=constraints, **ROUND).fit(
                data.views, known=data.known, must_link=pairs
            )
            for constraints, pairs in (("soft", data.must_link), ("soft", None))
        ]
        scores.append([agreement(model, data) for model in models])
    soft, without = np.mean(scores, 0)
    assert soft > without - 0.02
