"""Information measures agree with sums written out by hand, and satisfy their laws."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nrprob import information as info

TOL = 1e-12
quick = settings(deadline=None, max_examples=60)


@st.composite
def tables(draw, ndim=2, side=4):
    """Joint tables with exact zeros, whole empty rows, and entries of very different size."""
    shape = draw(st.tuples(*[st.integers(1, side)] * ndim))
    weight = st.one_of(st.just(0.0), st.integers(1, 9).map(float), st.floats(1e-300, 1.0))
    w = draw(hnp.arrays(np.float64, shape, elements=weight))
    assume(w.sum() > 1e-3)
    return w / w.sum()


@st.composite
def laws(draw, n, min_size=2, max_size=5):
    """`n` distributions over one set of outcomes."""
    size = draw(st.integers(min_size, max_size))
    w = draw(hnp.arrays(np.float64, (n, size), elements=st.integers(0, 9).map(float)))
    assume((w.sum(1) > 0).all())
    return w / w.sum(1, keepdims=True)


def brute_entropy(p):
    return -sum(v * math.log(v) for v in np.ravel(p) if v > 0)


def brute_information(joint):
    total = 0.0
    for i, j in np.ndindex(*joint.shape):
        if joint[i, j] > 0:
            ratio = math.log(joint[i, j]) - math.log(joint[i].sum()) - math.log(joint[:, j].sum())
            total += joint[i, j] * ratio
    return total


# --- values -------------------------------------------------------------------------------------


def test_fair_coin_has_one_bit():
    assert info.entropy([0.5, 0.5], base=2) == 1.0
    assert info.entropy([0.5, 0.5]) == pytest.approx(math.log(2), abs=1e-15)
    assert info.joint_entropy(np.full((2, 2), 0.25), base=2) == 2.0


def test_certainty_has_none_and_no_negative_zero():
    for p in ([1.0], [0.0, 1.0], [[0.0, 0.0], [1.0, 0.0]]):
        value = info.entropy(p)
        assert value == 0.0 and math.copysign(1.0, value) == 1.0


def test_hand_computed_joint_table():
    # x is a fair coin; y repeats it, but a head is misread half of the time.
    joint = np.array([[0.5, 0.0], [0.25, 0.25]])
    assert info.entropy(joint.sum(1), base=2) == 1.0
    assert info.conditional_entropy(joint.T, base=2) == pytest.approx(0.5, abs=TOL)
    assert info.conditional_entropy(joint, base=2) == pytest.approx(0.688721875540867, abs=TOL)
    assert info.mutual_information(joint, base=2) == pytest.approx(0.311278124459133, abs=TOL)
    assert info.variation_of_information(joint, base=2) == pytest.approx(1.188721875540867, abs=TOL)
    # Guessing y in proportion: 0.75^2 + 0.25^2 without x, (1 + 1/2) / 2 with it.
    assert info.category_utility(joint) == pytest.approx(0.125, abs=TOL)
    assert info.category_utility(joint, per_cluster=True) == pytest.approx(0.0625, abs=TOL)
    assert info.quadratic_mutual_information(joint) == pytest.approx(0.25, abs=TOL)


def test_exclusive_or_is_seen_only_jointly():
    xor = np.zeros((2, 2, 2))
    for x, y in itertools.product(range(2), repeat=2):
        xor[x, y, x ^ y] = 0.25
    assert info.mutual_information(xor.sum(2)) == pytest.approx(0.0, abs=TOL)
    assert info.conditional_mutual_information(xor, base=2) == pytest.approx(1.0, abs=TOL)
    assert info.multi_information(xor, base=2) == pytest.approx(1.0, abs=TOL)


def test_divergence_is_infinite_only_outside_the_support():
    assert info.kl_divergence([0.5, 0.5], [1.0, 0.0]) == math.inf
    assert info.kl_divergence([1.0, 0.0], [0.5, 0.5]) == pytest.approx(math.log(2), abs=TOL)
    assert info.kl_divergence([1.0, 0.0], [1.0, 0.0]) == 0.0


def test_disjoint_distributions_differ_by_the_entropy_of_the_weights():
    assert info.js_divergence(np.eye(3)) == pytest.approx(math.log(3), abs=TOL)
    weights = [0.5, 0.25, 0.25]
    assert info.js_divergence(np.eye(3), weights, base=2) == pytest.approx(1.5, abs=TOL)
    assert info.js_divergence(np.eye(2), [1.0, 0.0]) == 0.0


def test_tiny_probabilities_do_not_underflow():
    joint = np.array([[1.0 - 2e-300, 1e-300], [1e-300, 0.0]])
    assert info.mutual_information(joint) < 1e-290
    diagonal = np.array([[1.0, 0.0], [0.0, 1e-300]])
    assert info.mutual_information(diagonal) == pytest.approx(-1e-300 * math.log(1e-300), rel=1e-9)
    assert info.conditional_mutual_information(diagonal[:, :, None]) == pytest.approx(
        info.mutual_information(diagonal), rel=1e-9
    )


def test_results_are_python_floats():
    joint = np.full((2, 2), 0.25)
    results = [
        info.entropy([1.0]),
        info.joint_entropy(joint),
        info.conditional_entropy(joint),
        info.mutual_information(joint),
        info.conditional_mutual_information(joint[:, :, None]),
        info.multi_information(joint),
        info.kl_divergence([1.0], [1.0]),
        info.js_divergence(np.eye(2)),
        info.generalized_entropy([0.5, 0.5], 2),
        info.quadratic_mutual_information(joint),
        info.category_utility(joint),
        info.variation_of_information(joint),
    ]
    assert [type(r) for r in results] == [float] * len(results)


# --- against brute force ------------------------------------------------------------------------


@quick
@given(tables(2))
def test_two_variables_against_loops(joint):
    h, h_x, h_y = (brute_entropy(p) for p in (joint, joint.sum(1), joint.sum(0)))
    assert info.entropy(joint.sum(1)) == pytest.approx(h_x, abs=TOL)
    assert info.joint_entropy(joint) == pytest.approx(h, abs=TOL)
    assert info.conditional_entropy(joint) == pytest.approx(h - h_y, abs=TOL)
    assert info.mutual_information(joint) == pytest.approx(brute_information(joint), abs=TOL)
    assert info.variation_of_information(joint) == pytest.approx(2 * h - h_x - h_y, abs=TOL)


@quick
@given(tables(3, side=3))
def test_three_variables_against_loops(p):
    given_z = 0.0
    for z in range(p.shape[2]):
        mass = p[:, :, z].sum()
        if mass > 0:
            given_z += mass * brute_information(p[:, :, z] / mass)
    assert info.conditional_mutual_information(p) == pytest.approx(given_z, abs=TOL)
    marginals = (p.sum((1, 2)), p.sum((0, 2)), p.sum((0, 1)))
    total = sum(map(brute_entropy, marginals)) - brute_entropy(p)
    assert info.multi_information(p) == pytest.approx(total, abs=TOL)


@quick
@given(laws(3), laws(1, min_size=3, max_size=3))
def test_divergences_against_their_definitions(ps, weights):
    w = weights[0]
    mixture = brute_entropy(w @ ps) - sum(v * brute_entropy(p) for v, p in zip(w, ps, strict=True))
    assert info.js_divergence(ps, w) == pytest.approx(mixture, abs=TOL)
    p, q = ps[:2]
    direct = 0.0
    for a, b in zip(p, q, strict=True):
        if a > 0:
            direct += a * math.log(a / b) if b > 0 else math.inf
    assert info.kl_divergence(p, q) == pytest.approx(direct, abs=TOL)


@quick
@given(tables(1, side=6), st.floats(0.05, 6.0))
def test_generalized_entropy_against_its_definition(p, s):
    assume(abs(s - 1) > 1e-3)
    direct = (sum(v**s for v in p if v > 0) - 1) / (2 ** (1 - s) - 1)
    assert info.generalized_entropy(p, s) == pytest.approx(direct, abs=1e-11, rel=1e-11)


@quick
@given(tables(2))
def test_quadratic_information_against_its_definition(joint):
    def h2(p):
        return 2 * (1 - sum(v * v for v in p))

    rows = [row for row in joint if row.sum() > 0]
    direct = h2(joint.sum(0)) - sum(row.sum() * h2(row / row.sum()) for row in rows)
    assert info.quadratic_mutual_information(joint) == pytest.approx(direct, abs=TOL)
    guess = sum(row.sum() * sum((row / row.sum()) ** 2) for row in rows) - sum(joint.sum(0) ** 2)
    assert info.category_utility(joint) == pytest.approx(guess, abs=TOL)
    # I^2 is twice the category utility.
    assert direct == pytest.approx(2 * guess, abs=TOL)
    per_cluster = info.category_utility(joint, per_cluster=True)
    assert per_cluster == pytest.approx(guess / len(rows), abs=TOL)


# --- laws ---------------------------------------------------------------------------------------


@quick
@given(tables(2))
def test_bounds(joint):
    h_x, h_y = info.entropy(joint.sum(1)), info.entropy(joint.sum(0))
    mutual = info.mutual_information(joint)
    assert 0 <= h_x <= math.log(joint.shape[0]) + TOL
    assert 0 <= mutual <= min(h_x, h_y) + TOL
    assert max(h_x, h_y) - TOL <= info.joint_entropy(joint) <= h_x + h_y + TOL
    assert 0 <= info.conditional_entropy(joint) <= h_x + TOL
    assert 0 <= info.variation_of_information(joint) <= h_x + h_y + TOL
    quadratic = info.quadratic_mutual_information(joint)
    assert 0 <= quadratic <= info.generalized_entropy(joint.sum(0), 2) + TOL


@quick
@given(tables(2))
def test_chain_rules_of_two(joint):
    h, h_y = info.joint_entropy(joint), info.entropy(joint.sum(0))
    h_x_given_y, h_y_given_x = info.conditional_entropy(joint), info.conditional_entropy(joint.T)
    assert h == pytest.approx(h_y + h_x_given_y, abs=TOL)
    assert info.mutual_information(joint) == pytest.approx(h_y - h_y_given_x, abs=TOL)
    assert info.variation_of_information(joint) == pytest.approx(h_x_given_y + h_y_given_x, abs=TOL)
    assert info.multi_information(joint) == info.mutual_information(joint)


@quick
@given(tables(3, side=3))
def test_chain_rules_of_three(p):
    n_x, n_y, n_z = p.shape
    together = info.mutual_information(p.reshape(n_x, n_y * n_z))
    first = info.mutual_information(p.sum(1))
    rest = info.conditional_mutual_information(p)
    assert together == pytest.approx(first + rest, abs=TOL)
    total = info.mutual_information(p.sum(2)) + info.mutual_information(p.reshape(-1, n_z))
    assert info.multi_information(p) == pytest.approx(total, abs=TOL)


@quick
@given(tables(3, side=3))
def test_orthogonality_gap_is_the_interaction(p):
    # I(C,Z;X) - I(C;X) - I(Z;X) = I(C;Z|X) - I(C;Z), for axes C, Z, X.
    gap = (
        info.mutual_information(p.reshape(-1, p.shape[2]))
        - info.mutual_information(p.sum(1))
        - info.mutual_information(p.sum(0))
    )
    interaction = info.conditional_mutual_information(p) - info.mutual_information(p.sum(2))
    assert gap == pytest.approx(interaction, abs=TOL)


@quick
@given(tables(2))
def test_information_is_the_divergence_from_independence(joint):
    product = np.outer(joint.sum(1), joint.sum(0))
    # Products of marginals below the smallest double would make the divergence infinite.
    assume(product[joint > 0].min() > 0)
    assert info.kl_divergence(joint, product) == pytest.approx(
        info.mutual_information(joint), abs=TOL
    )


@quick
@given(laws(1), laws(1))
def test_independence_has_no_information(p, q):
    joint = np.outer(p[0], q[0])
    assert info.mutual_information(joint) == pytest.approx(0.0, abs=TOL)
    assert info.quadratic_mutual_information(joint) == pytest.approx(0.0, abs=TOL)
    assert info.variation_of_information(joint) == pytest.approx(
        info.entropy(p[0]) + info.entropy(q[0]), abs=TOL
    )


@quick
@given(tables(2), st.data())
def test_a_channel_cannot_add_information(joint, data):
    n = joint.shape[1]
    w = data.draw(hnp.arrays(np.float64, (n, 3), elements=st.integers(0, 9).map(float)))
    assume((w.sum(1) > 0).all())
    channel = w / w.sum(1, keepdims=True)
    assert info.mutual_information(joint @ channel) <= info.mutual_information(joint) + TOL
    quadratic = info.quadratic_mutual_information
    assert quadratic(channel.T @ joint.T) <= quadratic(joint.T) + TOL


@quick
@given(tables(3, side=3))
def test_triangle_inequality(p):
    vi = info.variation_of_information
    xy, yz, xz = p.sum(2), p.sum(0), p.sum(1)
    assert vi(xz) <= vi(xy) + vi(yz) + TOL


@quick
@given(laws(1), st.data())
def test_equal_variables_are_at_distance_exactly_zero(p, data):
    joint = np.diag(p[0])[data.draw(st.permutations(range(p.shape[1])))]
    assert info.variation_of_information(joint) == 0.0
    assert info.conditional_entropy(joint) == 0.0
    assert info.mutual_information(joint) == pytest.approx(info.entropy(p[0]), abs=TOL)


@quick
@given(tables(2), st.data())
def test_labels_do_not_matter(joint, data):
    rows = data.draw(st.permutations(range(joint.shape[0])))
    columns = data.draw(st.permutations(range(joint.shape[1])))
    shuffled = joint[np.ix_(rows, columns)]
    for f in (
        info.joint_entropy,
        info.conditional_entropy,
        info.mutual_information,
        info.variation_of_information,
        info.quadratic_mutual_information,
    ):
        assert f(shuffled) == pytest.approx(f(joint), abs=TOL)
    for f in (info.joint_entropy, info.mutual_information, info.variation_of_information):
        assert f(joint.T) == pytest.approx(f(joint), abs=TOL)


@quick
@given(tables(2))
def test_impossible_outcomes_do_not_matter(joint):
    padded = np.pad(joint, ((0, 1), (1, 0)))
    for f in (
        info.joint_entropy,
        info.conditional_entropy,
        info.mutual_information,
        info.variation_of_information,
        info.quadratic_mutual_information,
    ):
        assert f(padded) == pytest.approx(f(joint), abs=TOL)
    assert info.category_utility(padded, per_cluster=True) == pytest.approx(
        info.category_utility(joint, per_cluster=True), abs=TOL
    )


@quick
@given(tables(2), st.floats(1.1, 50.0))
def test_base_is_a_change_of_unit(joint, base):
    for f in (info.entropy, info.conditional_entropy, info.mutual_information):
        assert f(joint, base=base) * math.log(base) == pytest.approx(f(joint), abs=TOL)


@quick
@given(tables(2))
def test_divergence_of_conditional_rows_is_the_information(joint):
    joint = joint[joint.sum(1) > 1e-200]
    joint = joint / joint.sum()
    p_x = joint.sum(1)
    rows = joint / p_x[:, None]
    assert info.js_divergence(rows, p_x) == pytest.approx(info.mutual_information(joint), abs=TOL)


@quick
@given(laws(2))
def test_default_weights_are_equal(ps):
    value = info.js_divergence(ps)
    assert value == pytest.approx(info.js_divergence(ps, [0.5, 0.5]), abs=TOL)
    assert 0 <= value <= math.log(2) + TOL
    middle = ps.mean(0)
    halves = (info.kl_divergence(ps[0], middle) + info.kl_divergence(ps[1], middle)) / 2
    assert value == pytest.approx(halves, abs=TOL)


# --- the generalized entropy --------------------------------------------------------------------


def test_generalized_entropy_tends_to_bits():
    p = [0.5, 0.25, 0.125, 0.125]
    assert info.generalized_entropy(p, 1) == 1.75
    for step in (1e-3, 1e-6, 1e-9, 1e-12, 1e-15):
        for s in (1 - step, 1 + step):
            # The slope at s = 1 is below 2 for this p.
            assert info.generalized_entropy(p, s) == pytest.approx(1.75, abs=2 * step + 1e-14)


@quick
@given(st.floats(1e-3, 30.0))
def test_generalized_entropy_of_a_fair_coin_is_one(s):
    assert info.generalized_entropy([0.5, 0.5], s) == pytest.approx(1.0, abs=1e-11)


@quick
@given(tables(1, side=6))
def test_quadratic_entropy_is_twice_the_gini_impurity(p):
    assert info.generalized_entropy(p, 2) == pytest.approx(2 * (1 - (p**2).sum()), abs=TOL)


def test_generalized_entropy_at_extreme_degrees():
    p = [0.5, 0.5 - 1e-300, 1e-300, 0.0]
    # The number of possible outcomes minus one, and one unless the outcome is certain.
    assert info.generalized_entropy(p, 1e-9) == pytest.approx(2.0, abs=1e-5)
    assert info.generalized_entropy(p, 1e4) == pytest.approx(1.0, abs=TOL)
    assert info.generalized_entropy([1.0, 0.0], 0.3) == 0.0
    # The smallest double still counts as one more possible outcome.
    assert info.generalized_entropy([1.0, 5e-324], 1e-9) == pytest.approx(1.0, abs=1e-5)


# --- valid and invalid input -------------------------------------------------------------------


def test_tolerance_follows_the_precision():
    p32 = np.full(3, 1 / 3, np.float32)
    assert info.entropy(p32) == pytest.approx(math.log(3), abs=1e-6)
    off = np.array([0.5, 0.5 + 5e-7])
    assert info.entropy(off.astype(np.float32)) == pytest.approx(math.log(2), abs=1e-6)
    with pytest.raises(ValueError, match="must sum to 1"):
        info.entropy(off)
    with pytest.raises(ValueError, match="must sum to 1"):
        info.entropy(np.array([0.5, 0.5 + 3e-6], np.float32))


def test_float32_independence_is_not_negative():
    rng = np.random.default_rng(0)
    for _ in range(20):
        p, q = rng.dirichlet(np.ones(7)), rng.dirichlet(np.ones(5))
        joint = np.outer(p, q).astype(np.float32)
        assert 0 <= info.mutual_information(joint) < 1e-12
        assert 0 <= info.conditional_mutual_information(joint[:, :, None]) < 1e-12


ONE = (info.entropy, info.joint_entropy, info.multi_information)
TWO = (
    info.conditional_entropy,
    info.mutual_information,
    info.quadratic_mutual_information,
    info.category_utility,
    info.variation_of_information,
)


@pytest.mark.parametrize("f", ONE + TWO, ids=lambda f: f.__name__)
def test_bad_tables_are_refused(f):
    good = np.full((2, 2), 0.25)
    with pytest.raises(ValueError, match=r"non-negative; the smallest entry of \w+ is -0\.25; "):
        f(good * [[1, 1], [3, -1]])
    with pytest.raises(ValueError, match=r"must sum to 1; its sum is 4; divide"):
        f(good * 4)
    with pytest.raises(ValueError, match=r"must be finite; got 1 NaN"):
        f(np.where(np.eye(2, k=1), np.nan, good))
    with pytest.raises(ValueError, match="must be finite"):
        f(np.where(np.eye(2, k=1), np.inf, good))
    with pytest.raises(ValueError, match=r"at least one probability .*; got shape \(2, 0\)"):
        f(np.zeros((2, 0)))
    with pytest.raises(TypeError, match="real numbers; got dtype complex128"):
        f(good + 0j)


@pytest.mark.parametrize("f", TWO, ids=lambda f: f.__name__)
def test_wrong_number_of_axes_is_refused(f):
    with pytest.raises(ValueError, match=r"2 axes, one per variable; got shape \(2,\)"):
        f([0.5, 0.5])


def test_other_refusals():
    with pytest.raises(ValueError, match=r"3 axes, one per variable; got shape \(1, 1\)"):
        info.conditional_mutual_information([[1.0]])
    with pytest.raises(ValueError, match=r"got shape \(\)"):
        info.entropy(1.0)
    with pytest.raises(ValueError, match=r"same shape; got \(2,\) and \(3,\)"):
        info.kl_divergence([0.5, 0.5], [0.5, 0.5, 0.0])
    with pytest.raises(ValueError, match="q must sum to 1"):
        info.kl_divergence([0.5, 0.5], [0.5, 0.6])
    with pytest.raises(ValueError, match="row 1 sums to 0.9"):
        info.js_divergence([[0.5, 0.5], [0.5, 0.4]])
    with pytest.raises(ValueError, match="got 3 weights and 2 rows"):
        info.js_divergence(np.eye(2), [0.5, 0.5, 0.0])
    with pytest.raises(ValueError, match="weights must sum to 1"):
        info.js_divergence(np.eye(2), [1, 1])
    for s in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="degree s must be a positive finite number; got"):
            info.generalized_entropy([1.0], s)
    for base in (1, 0.5, -2, math.nan, math.inf):
        with pytest.raises(ValueError, match="base must be a finite number above 1; got"):
            info.entropy([1.0], base=base)
