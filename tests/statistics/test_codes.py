"""Cell codes: lengths are minus log probabilities, and join costs are differences."""

import itertools

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from nrprob.codelength import gaussian_length, nml_length
from nrprob.statistics import codes


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


# One program per code and shape, since separate operations would each be compiled.
_length = jax.jit(lambda code, cell: code(cell))


@jax.jit
def _join(code, cells, new):
    prepared = jax.tree.map(lambda a: a[..., None], code.prepare_join(cells.T))
    return code.join_costs(prepared, new.T)


def _count_code(n_symbols, n_max, concentration, **options):
    tables = codes.count_tables(n_symbols, n_max, concentration)
    return codes.CountCode(*tables, 0, n_symbols, **options)


@pytest.mark.parametrize("concentration", [None, 0.5, 2.0])
def test_probabilities_of_all_sequences_sum_to_one(concentration):
    code = _count_code(3, 5, concentration)
    words = np.asarray(list(itertools.product(range(3), repeat=5)))
    counts = (words[..., None] == np.arange(3)).sum(1)
    lengths = _length(code, np.concatenate([counts, np.ones((len(counts), 1))], 1))
    lengths = np.asarray(lengths)
    assert logsumexp(-lengths) == pytest.approx(0, abs=1e-12)
    if concentration is None:
        assert float(lengths[7]) == pytest.approx(nml_length(counts[7]))


@pytest.mark.parametrize("concentration", [None, 0.7])
def test_probabilities_of_all_binary_rows_sum_to_one(concentration):
    code = codes.BinaryCode(*codes.count_tables(2, 3, concentration), 0, 2)
    rows = np.asarray(list(itertools.product((0, 1), repeat=6))).reshape(-1, 3, 2)
    cell = np.concatenate([rows.sum(1), np.full((len(rows), 1), 3)], 1)
    assert logsumexp(-np.asarray(_length(code, cell))) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("concentration", [None, 1.0, 0.3])
@pytest.mark.parametrize("unordered", [True, False])
def test_label_code_is_that_of_the_labels(concentration, unordered):
    n, most = 6, 3
    code, sizes = codes.label_code(n, most, concentration=concentration, unordered=unordered)
    assert sizes[0] == np.inf
    for k in range(1, most + 1):
        words = np.asarray(list(itertools.product(range(k), repeat=n)))
        counts = (words[..., None] == np.arange(k)).sum(1)
        lengths = np.asarray(_length(code, counts[..., None])).sum(1) + sizes[k]
        # Over all labelings: 1, or all permutations of labels for the cost of one.
        names = np.log(np.arange(1, k + 1)).sum() if unordered else 0
        assert logsumexp(-lengths) == pytest.approx(names, abs=1e-11)
        if concentration is None and not unordered:
            assert lengths[-1] == pytest.approx(nml_length(counts[-1]))


def _moments(X):
    return np.concatenate([X.sum(0), (X * X).sum(0), [len(X)]])


def test_normal_nml_is_the_code_of_every_feature():
    X = np.random.default_rng(0).normal(size=(9, 3)) * [1, 0.01, 30]
    low, high, width = np.full(3, 0.2), np.full(3, 2.0), np.asarray([4.0, 5.0, 6.0])
    code = codes.normal_nml(12, low, high, width)
    for n in (0, 1, 2, 9):
        part = X[:n]
        v = part.var(0) if n else np.zeros(3)
        expected = gaussian_length(n, v, low, high, width).sum() if n else 0
        assert float(_length(code, _moments(part))) == pytest.approx(expected, rel=1e-9)


def test_normal_inverse_gamma_is_the_product_of_predictions():
    X = np.random.default_rng(1).normal(size=(6, 2)) * 2 + 1
    kappa, a, b = 0.3, 2.0, 0.5
    code = codes.normal_inverse_gamma(8, 2, kappa=kappa, shape=a, scale=b)
    total = 0.0
    for d in range(2):
        k, m, shape, scale = kappa, 0.0, a, b
        for x in X[:, d]:
            spread = np.sqrt(scale * (k + 1) / (shape * k))
            total -= stats.t.logpdf(x, 2 * shape, m, spread)
            scale += 0.5 * k * (x - m) ** 2 / (k + 1)
            m, k, shape = (k * m + x) / (k + 1), k + 1, shape + 0.5
    assert float(_length(code, _moments(X))) == pytest.approx(total, rel=1e-10)
    assert float(_length(code, np.zeros(5))) == 0


def test_normal_inverse_wishart_is_the_product_of_predictions():
    m = 3
    X = np.random.default_rng(2).normal(size=(7, m)) @ np.random.default_rng(3).normal(size=(m, m))
    kappa, nu, scale = 0.4, 5.0, 1.3
    code = codes.normal_inverse_wishart(8, m, kappa=kappa, nu=nu, scale=scale)
    total, k, df, mean, matrix = 0.0, kappa, nu, np.zeros(m), scale * np.eye(m)
    for x in X:
        shape = matrix * (k + 1) / (k * (df - m + 1))
        total -= stats.multivariate_t.logpdf(x, mean, shape, df - m + 1)
        matrix = matrix + k / (k + 1) * np.outer(x - mean, x - mean)
        mean, k, df = (k * mean + x) / (k + 1), k + 1, df + 1
    upper = np.triu_indices(m)
    cell = np.concatenate([X.sum(0), (X.T @ X)[upper], [len(X)]])
    assert float(_length(code, cell)) == pytest.approx(total, rel=1e-10)
    # nu = m + 1 + 2, scale = 2 * 0.65
    traced = codes.NormalWishart(kappa, 0.65, 2.0, m, True, 1.0)
    matched = codes.normal_inverse_wishart(8, m, kappa=kappa, nu=m + 3.0, scale=1.3)
    assert float(_length(traced, cell)) == pytest.approx(float(_length(matched, cell)), rel=1e-10)
    apart = codes.NormalWishart(kappa, 0.65, 2.0, m, False, 1.0)
    by_column = codes.normal_inverse_gamma(8, m, kappa=kappa, shape=2.0, scale=0.65)
    wide = np.concatenate([X.sum(0), (X**2).sum(0), [len(X)]])
    assert float(_length(apart, wide)) == pytest.approx(float(_length(by_column, wide)), rel=1e-10)
    # One feature: the inverse-gamma prior with half the parameters.
    one = codes.normal_inverse_wishart(8, 1, kappa=0.3, nu=4.0, scale=1.0)
    gamma = codes.normal_inverse_gamma(8, 1, kappa=0.3, shape=2.0, scale=0.5)
    cell = _moments(X[:, :1])
    assert float(_length(one, cell)) == pytest.approx(float(_length(gamma, cell)), rel=1e-12)


@pytest.mark.parametrize("power", [1.0, 0.6])
@pytest.mark.parametrize("full", [True, False])
def test_the_table_of_log_gamma_functions_changes_no_length(full, power):
    rng = np.random.default_rng(5)
    code = codes.NormalWishart(0.4, 0.65, 2.0, 3, full, power)
    tabulated = code.with_table(7)
    X = rng.normal(size=(7, 3))
    products = [np.outer(x, x)[np.triu_indices(3)] if full else x**2 for x in X]
    rows = np.concatenate([X, products, np.ones((7, 1))], 1)
    cells = np.cumsum(rows, 0) - rows  # of 0 to 6 samples
    np.testing.assert_allclose(tabulated(cells), code(cells), rtol=1e-12)
    costs = [
        c.join_costs([a[..., None] for a in c.prepare_join(cells.T)], rows.T)
        for c in (code, tabulated)
    ]
    np.testing.assert_allclose(costs[1], costs[0], rtol=1e-12)
    own = np.diagonal(costs[1])  # sample i joins the cell of the samples before it
    np.testing.assert_allclose(own, np.asarray(code(cells + rows) - code(cells)), rtol=1e-10)


def _all_codes():
    classes = codes.CountCode(*codes.count_tables(2, 9), 4, 6, single=True)
    return {
        "classes, nml": classes,
        "classes, prior": codes.CountCode(*codes.count_tables(2, 9, 0.5), 4, 6, single=True),
        "counts": codes.CountCode(*codes.count_tables(2, 60), 4, 6),
        "binary": codes.BinaryCode(*codes.count_tables(2, 9, 0.5), 4, 6),
        "labels": codes.label_code(9, 3)[0],
        "normal, nml": codes.normal_nml(9, [0.1, 0.9], [1.0, 1.1], [3.0, 3.0]),
        "normal, prior": codes.normal_inverse_gamma(9, 2, kappa=0.3, shape=2.0, scale=0.5),
        "one normal, prior": codes.normal_inverse_wishart(9, 1, kappa=0.3, nu=2.0, scale=0.5),
    }


@pytest.mark.parametrize("name", list(_all_codes()))
def test_joining_is_the_difference_of_two_lengths(name):
    code = _all_codes()[name]
    rng = np.random.default_rng(4)
    X, sides = rng.normal(size=(8, 2)), rng.integers(0, 2, 8)
    rows = np.concatenate([X, X * X, np.eye(2)[sides], np.ones((8, 1))], 1)
    rows[3, 4:6] = 0  # a row without a class
    if name == "one normal, prior":
        rows = rows[:, [0, 2, 6]]
    cells = np.stack([rows[:4].sum(0), rows[4:6].sum(0), 0 * rows[0]])
    new = rows[6:8]
    # Lengths of all cells without a new row, and with either.
    lengths = np.asarray(_length(code, np.stack([cells, cells + new[0], cells + new[1]], 1)))
    expected = lengths[:, 1:] - lengths[:, :1]
    np.testing.assert_allclose(_join(code, cells, new), expected, atol=1e-12)


def test_tables_that_would_take_forever_are_refused():
    with pytest.raises(ValueError, match="takes too long; got 100000 different symbols"):
        codes.count_tables(100_000, 1_000_000)
