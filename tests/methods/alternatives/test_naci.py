"""NACI agrees with its definitions, an exhaustive greedy search, and published results."""

import warnings

import numpy as np
import pytest
from scipy.cluster.hierarchy import cut_tree, fcluster, is_valid_linkage
from scipy.spatial.distance import cdist
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

from nrprob import NACI, DegenerateClusterWarning
from nrprob.datasets import load, make_planar_shapes
from nrprob.exceptions import DataUnavailable
from nrprob.known import Memberships
from nrprob.methods.alternatives import naci
from nrprob.metrics import pair_f_measure


def same(a, b):
    return adjusted_rand_score(a, b) == 1


# The objective in plain NumPy, from its definition


def members(labels):
    """One column of 0 and 1 for every cluster."""
    return (labels[:, None] == np.unique(labels)).astype(float)


def information(labels, known):
    """I(C;Z): squared differences between the joint distribution and the product of margins."""
    joint = members(labels).T @ members(known) / len(labels)
    return ((joint - joint.sum(1, keepdims=True) * joint.sum(0)) ** 2).sum()


def data_information(labels, potentials):
    """I(C;X) = T_in + T_all - 2 T_btw of the potentials G(x_l - x_m, 2 sigma^2)."""
    n, member = len(labels), members(labels)
    share = member.mean(0)
    inside = np.trace(member.T @ potentials @ member) / n**2
    everywhere = (share**2).sum() * potentials.sum() / n**2
    between = share @ (member.T @ potentials).sum(1) / n**2
    return inside + everywhere - 2 * between


class Objective:
    """J, with the bandwidth and the known labelings."""

    def __init__(self, X, sigma, known, eta):
        self.potentials = np.exp(-cdist(X, X, "sqeuclidean") / (4 * sigma**2))
        rows = np.arange(len(X))
        self.start = data_information(rows, self.potentials)
        self.known = [(e, z, information(rows, z)) for e, z in zip(eta, known, strict=True)]

    def data(self, labels):
        return data_information(labels, self.potentials) / self.start

    def reference(self, labels):
        return [information(labels, z) / start for _, z, start in self.known]

    def __call__(self, labels):
        shares = self.reference(labels)
        return self.data(labels) - sum(e * s for (e, *_), s in zip(self.known, shares, strict=True))

    def current(self, labels):
        """Gains are divided by the information of these labels."""
        return data_information(labels, self.potentials), [
            information(labels, z) for _, z, _ in self.known
        ]


def exhaustive(objective, n, current=False):
    """Merge the pair of clusters with the largest gain, by exhaustive search; labels after every
    merge."""
    labels = np.arange(n)
    result = [labels]
    while len(np.unique(labels)) > 1:
        names = np.unique(labels)
        best, chosen = -np.inf, None
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                joined = np.where(labels == b, a, labels)
                if current:
                    (x, zs), (new, news) = objective.current(labels), objective.current(joined)
                    gain = (new - x) / x - sum(
                        e * (after - before) / before
                        for (e, *_), before, after in zip(objective.known, zs, news, strict=True)
                    )
                else:
                    gain = objective(joined) - objective(labels)
                if gain > best + 1e-13:
                    best, chosen = gain, joined
        labels = chosen
        result.append(labels)
    return result


def replayed(linkage):
    """Labels after every merge."""
    n = len(linkage) + 1
    members = {i: [i] for i in range(n)}
    labels = np.arange(n)
    yield labels.copy()
    for m, (a, b, *_) in enumerate(linkage):
        members[n + m] = members.pop(int(a)) + members.pop(int(b))
        labels[members[n + m]] = n + m
        yield labels.copy()


def problem(seed, n=18, d=2, n_labelings=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.integers(3, size=(n, n_labelings))


@pytest.mark.parametrize(("seed", "eta"), [(0, (0.2,)), (1, (0.3, 0.1)), (2, ())])
def test_every_merge_is_that_of_an_exhaustive_search(seed, eta):
    X, known = problem(seed, n_labelings=len(eta))
    given = {"known": known} if eta else {}
    model = NACI(3, eta=eta if eta else 0.2, refine=False).fit(X, **given)
    objective = Objective(X, model.bandwidth_, known.T, eta)
    expected = exhaustive(objective, len(X))
    steps = list(replayed(model.linkage_))
    assert all(same(a, b) for a, b in zip(steps, expected, strict=True))
    # And adds the difference of the objective, computed from scratch.
    values = [objective(labels) for labels in steps]
    np.testing.assert_allclose(model.objective_path_, values, atol=1e-12)
    np.testing.assert_allclose(model.merge_gains_, np.diff(values), atol=1e-12)
    np.testing.assert_allclose(model.qmi_data_path_, [objective.data(s) for s in steps], atol=1e-12)
    expected = np.reshape([objective.reference(s) for s in steps], (len(X), len(eta)))
    np.testing.assert_allclose(model.qmi_reference_path_, expected, atol=1e-12)
    assert model.merge_gains_.sum() == pytest.approx(sum(eta) - 1)
    assert model.objective_ == pytest.approx(-objective(model.labels_))
    assert same(model.labels_, steps[-3])
    np.testing.assert_allclose(model.objective_trace_, -model.objective_path_[[*range(16), 15]])


@pytest.mark.parametrize("n_labelings", [1, 2])
def test_gains_may_be_divided_by_the_present_information(n_labelings):
    X, known = problem(7, 14, n_labelings=n_labelings)
    model = NACI(2, normaliser="current", refine=False).fit(X, known=known)
    objective = Objective(X, model.bandwidth_, known.T, [0.2] * n_labelings)
    expected = exhaustive(objective, len(X), current=True)
    steps = list(replayed(model.linkage_))
    # The last merges divide the remaining information by almost 0.
    assert all(same(a, b) for a, b in zip(steps[:-2], expected[:-2], strict=True))
    np.testing.assert_allclose(
        model.objective_path_, [objective(labels) for labels in steps], atol=1e-12
    )


def test_the_tree_is_scipys():
    X, labels = make_planar_shapes(90, n_clusters=3, random_state=1)
    model = NACI(3, refine=False).fit(X, known=labels[:, 0])
    assert is_valid_linkage(model.linkage_)
    finer = None
    for k in (9, 5, 3, 2, 1):
        cut = model.cut(k, refine=False)
        assert same(cut, fcluster(model.linkage_, k, "maxclust"))
        assert same(cut, cut_tree(model.linkage_, k)[:, 0])
        assert same(cut, NACI(k, refine=False).fit(X, known=labels[:, 0]).labels_)
        assert [np.flatnonzero(cut == c)[0] for c in range(k)] == sorted(
            np.flatnonzero(cut == c)[0] for c in range(k)
        )
        if finer is not None:
            assert all(len(np.unique(cut[finer == c])) == 1 for c in np.unique(finer))
        finer = cut
    assert (model.cut(3, refine=False) == model.labels_).all()
    assert 2 <= model.objective_path_.size - model.objective_path_.argmax() <= 4
    with pytest.raises(ValueError, match="n_clusters must be at least 1 and at most 90"):
        model.cut(91)


def test_no_single_move_is_left_that_helps():
    X, known = problem(3, 60)
    model = NACI(3).fit(X, known=known)
    merged = NACI(3, refine=False).fit(X, known=known)
    objective = Objective(X, model.bandwidth_, known.T, [0.2])
    value = objective(model.labels_)
    assert model.n_moves_ > 0 and model.objective_ < merged.objective_
    assert model.objective_ == pytest.approx(-value)
    assert same(model.cut(3), model.labels_) and same(model.cut(3, refine=False), merged.labels_)
    for i in range(60):
        for c in range(3):
            moved = model.labels_.copy()
            moved[i] = c
            assert len(np.unique(moved)) < 3 or objective(moved) <= value + 1e-12
    with pytest.warns(UserWarning, match="the moves of single rows did not converge; .* max_iter"):
        assert NACI(3, max_iter=1).fit(X, known=known).n_moves_ == 1


def test_groupings_are_tried_where_merges_went_wrong():
    assert [len(naci._all_groupings(n, k)) for n, k in ((4, 1), (4, 2), (5, 3), (8, 4))] == [
        1, 7, 25, 1701,
    ]  # fmt: skip
    # One of the data sets on which the four blobs are joined crosswise.
    X, labels = make_planar_shapes(160, random_state=1)
    known, sought = labels.T
    merged = NACI(2, bandwidth_scale=1.0, refine=False).fit(X, known=known)
    model = NACI(2, bandwidth_scale=1.0).fit(X, known=known)
    assert pair_f_measure(merged.labels_, sought) < 0.6
    assert same(model.labels_, sought) and model.objective_ < merged.objective_
    assert same(model.cut(2), sought) and same(model.cut(2, refine=False), merged.labels_)


def test_what_changes_nothing():
    X, labels = make_planar_shapes(60, random_state=0)
    known = labels[:, 0]
    model = NACI(2, refine=False).fit(X, known=known)

    def again(X, known, **parameters):
        return NACI(2, refine=False).set_params(**parameters).fit(X, known=known)

    assert (again(X, np.array(["b", "a"])[known]).labels_ == model.labels_).all()
    order = np.random.default_rng(0).permutation(60)
    assert same(again(X[order], known[order]).labels_, model.labels_[order])
    moved = again(1e3 * X - 7, known)
    assert (moved.labels_ == model.labels_).all()
    assert moved.bandwidth_ == pytest.approx(1e3 * model.bandwidth_)
    assert moved.objective_ == pytest.approx(model.objective_)
    given = again(X, known, bandwidth=model.bandwidth_)
    np.testing.assert_allclose(given.merge_gains_, model.merge_gains_)
    # Two copies of a labeling at half the weight are one.
    twice = again(X, np.stack([known, known], 1), eta=[0.15, 0.05])
    np.testing.assert_allclose(twice.merge_gains_, model.merge_gains_, atol=1e-12)
    narrow = again(X.astype(np.float32), known)
    assert (narrow.labels_ == model.labels_).all()
    np.testing.assert_allclose(narrow.objective_path_, model.objective_path_, atol=1e-5)
    # With eta=0, the known labels have no influence.
    free = again(X, known, eta=0.0)
    assert (free.linkage_ == again(X, None).linkage_).all()
    np.testing.assert_allclose(free.objective_path_, free.qmi_data_path_)


def test_rules_of_the_width():
    X, _ = problem(0, 50, 3)
    s = np.sqrt(np.var(X, axis=0, ddof=1).mean())
    for rule, terms in (("seed", 7), ("normal", 5)):
        width = s * (4 / (50 * terms)) ** (1 / 7)
        model = NACI(bandwidth=rule, bandwidth_scale=1.3).fit(X)
        assert model.bandwidth_ == pytest.approx(1.3 * width)
    assert NACI(bandwidth=0.7).fit(X).bandwidth_ == pytest.approx(0.7)
    # At the bandwidth of the largest contrast, the rows have most information about themselves.
    model = NACI(bandwidth="contrast", bandwidth_scale=7.0).fit(X)
    centring = np.eye(50) - 1 / 50

    def information(width):
        potentials = np.exp(-cdist(X, X, "sqeuclidean") / (4 * width**2))
        return np.trace(np.linalg.matrix_power(potentials @ centring, 2))

    widths = model.bandwidth_ * np.geomspace(0.1, 10, 41)
    assert np.argmax([information(width) for width in widths]) == 20
    moved = NACI(bandwidth="contrast").fit(50 * X - 7)
    assert moved.bandwidth_ == pytest.approx(50 * model.bandwidth_, rel=1e-4)
    assert NACI(bandwidth="contrast").fit([[0.0], [1.0]]).labels_.tolist() == [0, 1]


def test_the_weight_of_the_best_shares_is_chosen():
    X, labels = make_planar_shapes(60, n_clusters=3, random_state=0)
    known = np.stack([labels[:, 0], np.arange(60) % 2], 1)
    model = NACI(3, eta="auto").fit(X, known=known)
    fits = [NACI(3, eta=eta).fit(X, known=known) for eta in (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)]
    objective = Objective(X, model.bandwidth_, [], [])
    data = np.array([objective.data(fit.labels_) for fit in fits])
    shared = np.array(
        [sum(information(fit.labels_, z) / information(z, z) for z in known.T) for fit in fits]
    )
    worth = data / data.max() - shared
    (best,) = (fit for fit in fits if (fit.eta_ == model.eta_).all())
    # Fits may be equal up to the last digits.
    assert worth[fits.index(best)] == pytest.approx(worth.max(), abs=1e-6)
    assert model.eta_.shape == (2,)
    assert (model.labels_ == best.labels_).all() and (model.linkage_ == best.linkage_).all()
    assert (model.cut(4) == best.cut(4)).all()
    np.testing.assert_array_equal(model.objective_path_, best.objective_path_)
    # Without a penalty, there is nothing to choose.
    assert NACI(2, eta="auto").fit(X).eta_.shape == (0,)
    assert not NACI(1, eta="auto").fit(X, known=known).labels_.any()


@pytest.mark.smoke
def test_new_rows_get_the_posterior_of_the_windows():
    X, known = problem(5, 40)
    model = NACI(3).fit(X, known=known)
    new = np.random.default_rng(0).normal(size=(9, 2))
    density = np.exp(-cdist(new, X, "sqeuclidean") / (2 * model.bandwidth_**2))
    expected = density @ np.eye(3)[model.labels_] / density.sum(1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(new), expected, atol=1e-12)
    assert (model.predict(new) == expected.argmax(1)).all()
    # Far away all densities are 0, and still one is the largest.
    far = model.predict_proba([[1e6, 0.0], [0.0, -1e9]])
    assert np.isfinite(far).all() and (far.max(1) == 1).all()
    assert model.predict([[1e6, 0.0]])[0] == model.labels_[X[:, 0].argmax()]


def test_a_sample_stands_for_many_rows():
    X, labels = make_planar_shapes(600, random_state=0)
    with pytest.warns(UserWarning, match="a table of all pairs would take 3 MB; got n_samples=600"):
        model = NACI(2, max_exact=500, n_subsample=100, random_state=0).fit(X, known=labels[:, 0])
    assert pair_f_measure(model.labels_, labels[:, 1]) == 1
    assert model.merged_samples_.shape == (100,) and model.linkage_.shape == (99, 4)
    assert np.bincount(labels[model.merged_samples_, 0]).tolist() == [50, 50]
    assert model.labels_[0] == 0 and model.cut(5).shape == (600,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explicit = NACI(2, approx="subsample", n_subsample=100, random_state=0)
        assert (explicit.fit(X, known=labels[:, 0]).labels_ == model.labels_).all()
        assert (explicit.predict(X) == explicit.labels_).mean() > 0.99


def test_rows_alike_and_few():
    X, labels = make_planar_shapes(40, random_state=0)
    twice = NACI(2).fit(np.repeat(X, 2, 0), known=np.repeat(labels[:, 0], 2))
    assert same(twice.labels_, np.repeat(labels[:, 1], 2))
    two = NACI(2).fit([[0.0], [1.0]])
    assert two.labels_.tolist() == [0, 1] and two.linkage_.shape == (1, 4)
    one = NACI(1).fit(X, known=labels[:, 0])
    assert not one.labels_.any() and one.objective_ == pytest.approx(0, abs=1e-12)
    every = NACI(40).fit(X, known=labels[:, 0])
    assert every.objective_ == pytest.approx(0.2 - 1) and every.n_clusters_ == 40
    with pytest.warns(DegenerateClusterWarning, match="a constant labeling, which is ignored"):
        constant = NACI(2).fit(X, known=np.zeros(40))
    assert (constant.linkage_ == NACI(2).fit(X).linkage_).all()
    with pytest.warns(DegenerateClusterWarning, match="every row has its own known group"):
        NACI(2).fit(X, known=np.arange(40))


def test_what_is_refused_and_what_is_warned_of():
    X, labels = make_planar_shapes(40, random_state=0)
    z = labels[:, 0]
    cases = [
        (NACI(2, eta=[0.1, 0.2]), {"known": z}, "got 2 for 1 labeling"),
        (NACI(2, eta=[0.1, -0.2]), {"known": labels}, "eta must be at least 0"),
        (NACI(2, eta="most"), {}, "eta must be one of 'auto' or a number"),
        (NACI(2, bandwidth=0.0), {}, "bandwidth must be at least"),
        (NACI(2, bandwidth="wide"), {}, "bandwidth must be one of 'seed', 'normal'"),
        (
            NACI(2, bandwidth=1e12),
            {},
            "the bandwidth is so large that it does not distinguish rows",
        ),
        (NACI(2, approx="nystrom"), {}, "approx must be one of 'subsample' or None"),
        (NACI(4, approx="subsample", n_subsample=3), {}, "n_subsample=3 for n_clusters=4"),
        (NACI(41), {}, "n_clusters=41 is more than the number of rows; got n_samples=40;"),
        (NACI(2), {"known": X}, "continuous known structure is not supported"),
        (NACI(2), {"known": Memberships(np.eye(2)[z])}, "soft Memberships"),
        (NACI(2), {"known": z[:-1]}, "pass one label per row"),
        (NACI(2), {"y": z[:-1]}, "y must hold one label per row"),
    ]
    for model, given, message in cases:
        with pytest.raises(ValueError, match=message):
            model.fit(X, **given)
    with pytest.raises(ValueError, match="all features are constant, so the bandwidth is"):
        NACI(2).fit(np.ones((5, 2)))
    with pytest.warns(UserWarning, match="most rows do not interact, and only the known labels"):
        NACI(2, bandwidth=1e-3).fit(X, known=z)


# Recovery

SHAPES = {
    "Syn1": ("blobs", 800, 2),
    "Syn2": ("blobs", 600, 3),
    "Syn3": ("crescents", 800, 2),
    "Syn4": ("rings", 800, 2),
    "moons": ("moons", 800, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_the_alternative_of_the_published_shapes_is_found(name):
    shape, n, k = SHAPES[name]
    scores = {1.0: [], 1.5: []}
    for seed in range(20):
        X, labels = make_planar_shapes(n, shape, k, random_state=seed)
        for scale, result in scores.items():
            model = NACI(k, bandwidth_scale=scale).fit(X.astype(np.float32), known=labels[:, 0])
            result.append(pair_f_measure(model.labels_, labels[:, 1]))
    assert np.mean(scores[1.5]) >= 0.99
    assert np.mean(scores[1.0]) >= 0.97


@pytest.mark.slow
def test_poses_of_three_people_are_found_without_looking_at_them():
    try:
        data = load("cmu_faces_32x30")
    except DataUnavailable as error:
        pytest.skip(str(error))
    person, pose = data.labelings["person"], data.labelings["pose"]
    scores = []
    for seed in range(20):
        chosen = np.random.default_rng(seed).choice(np.unique(person), 3, replace=False)
        rows = np.isin(person, chosen) & (pose != "up")
        X = PCA(0.9, svd_solver="full").fit_transform(data.X[rows].astype(float))
        model = NACI(3, bandwidth="contrast", eta="auto").fit(X, known=person[rows])
        scores.append(pair_f_measure(model.labels_, pose[rows]))
    assert np.mean(scores) >= 0.70
