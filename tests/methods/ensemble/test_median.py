"""Median partitions are the best of all partitions of small sets."""

import itertools

import numpy as np
import pytest

from nrprob import median_partition


def information(a, b, entropy):
    """I(a; b) for Shannon's entropy in nats, or the quadratic entropy."""
    joint = np.array([[np.mean((a == x) & (b == y)) for y in set(b)] for x in set(a)])

    def h(p):
        p = p[p > 0]
        return 2 * (1 - (p**2).sum()) if entropy == "quadratic" else -(p * np.log(p)).sum()

    within = sum(row.sum() * h(row / row.sum()) for row in joint)
    return h(joint.sum(0)) - within


def total(labels, labelings, entropy):
    return sum(information(np.asarray(labels), c, entropy) for c in labelings.T)


@pytest.mark.parametrize("entropy", ["quadratic", "shannon"])
@pytest.mark.parametrize("seed", range(3))
def test_no_partition_shares_more_information(entropy, seed):
    labelings = np.random.default_rng(seed).integers(0, 3, (8, 4))
    labels = median_partition(labelings, 2, entropy=entropy, random_state=0)
    # Without loss of generality, the first sample is in the first cluster.
    best = max(
        total((0, *rest), labelings, entropy) for rest in itertools.product((0, 1), repeat=7)
    )
    assert total(labels, labelings, entropy) == pytest.approx(best)
    # Names of labels and the order of the labelings are irrelevant.
    text = np.array([["b", "a", "c"][c] for c in labelings.ravel()]).reshape(8, 4)[:, ::-1]
    other = median_partition(text, 2, entropy=entropy, random_state=0)
    assert total(other, labelings, entropy) == pytest.approx(best)


def test_the_median_of_equal_labelings_is_theirs():
    labels = np.array([0, 2, 1, 1, 0, 2, 2])
    for entropy in ("quadratic", "shannon"):
        median = median_partition(np.tile(labels[:, None], 3), 3, entropy=entropy, random_state=0)
        assert len({*zip(labels.tolist(), median.tolist(), strict=True)}) == 3


def test_invalid_input_is_refused():
    with pytest.raises(ValueError, match=r"one column per labeling; got shape \(3,\)"):
        median_partition([0, 1, 1], 2)
    with pytest.raises(ValueError, match="entropy must be 'quadratic' or 'shannon'; got 'gini'"):
        median_partition([[0], [1]], 2, entropy="gini")
    with pytest.raises(ValueError, match="labelings must have no missing values; found NaN"):
        median_partition([[0, 1], [None, 1]], 2)
    for name, value in [("n_init", -np.inf), ("max_iter", 0), ("n_clusters", 3), ("n_init", 2.5)]:
        numbers = {"n_clusters": 2, name: value}
        with pytest.raises((ValueError, TypeError), match=f"{name} must be"):
            median_partition([[0, 1], [1, 0]], **numbers)
