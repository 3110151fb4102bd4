"""Crossed counts: every row is a sum of given rows, or respelt, and the labelings are crossed."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics import normalized_mutual_info_score as nmi

from nrprob.datasets import make_crossed_counts, make_dialect_counts


@pytest.fixture(scope="module")
def articles():
    """Every row has a separate term, so a sum shows its rows."""
    labels = np.repeat(np.array(["a", "b", "c", "d", "e"]), [30, 20, 10, 25, 15])
    return sparse.csr_array(np.diag(np.arange(1, 101))), labels


@pytest.mark.parametrize(("n_known", "n_sought"), [(1, 1), (3, 2)])
def test_rows_are_sums_of_rows_of_their_classes(articles, n_known, n_sought):
    counts, labels = articles
    X, codes = make_crossed_counts(
        counts, labels, ["a", "b"], ["d", "e"], n_known=n_known, n_sought=n_sought, random_state=0
    )
    # The maximum number: 10 + 6 triples of known classes, 12 + 7 pairs of sought classes.
    assert len(codes) == (40 if n_known == 1 else 16) and X.shape == (len(codes), 100)
    assert X.dtype == counts.dtype
    for row, (z, c) in zip(X.toarray(), codes, strict=True):
        used = np.flatnonzero(row)
        assert (row[used] == used + 1).all()
        assert sorted(labels[used]) == ["a", "b"][z : z + 1] * n_known + [["d", "e"][c]] * n_sought
    assert (np.bincount(X.indices, minlength=100) <= 1).all()  # no row is used twice


def test_rows_serve_again_only_when_all_have_served(articles):
    counts, labels = articles
    X, codes = make_crossed_counts(counts, labels, ["a", "b"], ["c"], 100, random_state=1)
    served = np.bincount(X.indices, minlength=100)
    assert (served[:50] == 2).all() and (served[50:60] == 10).all() and served[60:].sum() == 0
    again, same = make_crossed_counts(counts, labels, ["a", "b"], ["c"], 100, random_state=1)
    other, _ = make_crossed_counts(counts, labels, ["a", "b"], ["c"], 100, random_state=2)
    assert (again != X).nnz == 0 and (same == codes).all() and (other != X).nnz > 0


def test_labelings_are_independent(articles):
    counts, labels = articles
    _, codes = make_crossed_counts(counts, labels, ["a", "b"], ["d", "e"], 4000, random_state=0)
    assert nmi(*codes.T) < 0.01
    share = np.bincount(codes[:, 0]) / 4000
    np.testing.assert_allclose(share, [0.6, 0.4], atol=0.02)  # as many as the classes have rows


def test_dialects_drop_and_respell_by_word():
    rng = np.random.default_rng(0)
    counts, labels = rng.poisson(2.0, (60, 40)), rng.integers(3, size=60)
    counts[0] = 0
    X, codes = make_dialect_counts(counts, labels, 3, random_state=4)
    assert X.shape == (59, 160)  # the row without a word is dropped
    assert (codes[:, 1] == labels[1:]).all() and set(codes[:, 0]) == {0, 1, 2}
    X = X.toarray().reshape(59, 4, 40)
    for d in range(3):
        spoken, meant = X[codes[:, 0] == d], counts[1:][codes[:, 0] == d]
        common, own = spoken[:, 0], spoken[:, 1 + d]
        assert spoken.sum() == common.sum() + own.sum()  # no spelling of another dialect
        # A word is absent, common or respelt in the whole dialect.
        for word in range(40):
            kinds = [(part[:, word] == meant[:, word]).all() for part in (common, own)]
            assert sum(kinds) == 1 or (common[:, word] + own[:, word] == 0).all()
    # 40 words in three dialects: 0.3 absent, 0.21 respelt, within five standard deviations.
    assert abs((X.sum((0, 1)) / counts.sum(0)).mean() - 0.7) < 5 * np.sqrt(0.21 / 120)
    whole, _ = make_dialect_counts(counts[1:], labels[1:], dropped=0.0, respelt=0.0)
    assert (whole.toarray()[:, :40] == counts[1:]).all()


def test_pairs_refuse_what_cannot_be(articles):
    counts, labels = articles
    cases = [
        (lambda: make_crossed_counts(counts, labels, ["a"], ["a"]), "different classes"),
        (lambda: make_crossed_counts(counts, labels, ["a"], ["x"]), "too few rows"),
        (lambda: make_crossed_counts(counts, labels, ["a"], ["c"], n_sought=11), "too few rows"),
        (lambda: make_crossed_counts(counts, labels, [], ["c"]), "at least one"),
        (lambda: make_crossed_counts(counts, labels[:-1], ["a"], ["b"]), "one per row"),
        (lambda: make_crossed_counts(-counts, labels, ["a"], ["b"]), "not negative"),
        (lambda: make_crossed_counts(counts, labels, ["a"], ["b"], 0), "n_samples must be"),
        (lambda: make_dialect_counts(counts, labels, dropped=1.5), "dropped must lie"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
