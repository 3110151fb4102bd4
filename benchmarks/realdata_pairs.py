"""Pairs of labelings of real tables, images and pages: one is known, the other is sought.

`tabular_pairs` yields them for any estimator. `nrprob.datasets.load` reads the data, so NRPROB_DATA
names their folder. `fresh_pairs` yields pairs that need no download.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import common  # noqa: F401  # isort: skip  (pins BLAS before numpy)

import numpy as np

# Data set, known labeling, sought labeling.
TABULAR = (
    ("penguins", "species", "sex"),
    ("penguins", "sex", "species"),
    ("crabs", "species", "sex"),
    ("crabs", "sex", "species"),
    ("cmu_faces_32x30", "person", "pose"),
    ("cmu_faces_32x30", "pose", "person"),
    ("cmu_faces_32x30", "person", "eyes"),
    ("webkb", "university", "page_type"),
    ("webkb", "page_type", "university"),
    # A speaker has one sex, which is determined by the known labels, so it cannot be found beyond
    # them.
    ("vowel", "speaker", "vowel"),
    ("vowel", "vowel", "speaker"),
)
# No method can solve these; they are run for information, and excluded from all means.
HOPELESS = (("vowel", "speaker", "sex"),)
# Simulated cells: effects of types and batches on the genes.
CELLS: dict[str, dict[str, float]] = {
    "plain": {"type_effect": 1.0, "batch_effect": 0.5},
    "hard": {"type_effect": 0.7, "batch_effect": 1.0, "marker_fraction": 0.05, "mixing": 0.0},
}


class Pair(NamedTuple):
    """Prepared rows (n, m), the known labels (n,), the sought labels (n,), and their number.

    ``form`` is the type of columns: measured "columns", "components" of images or pages, or
    "counts". ``random`` states whether another seed gives other data.
    """

    name: str
    X: Any
    known: np.ndarray
    target: np.ndarray
    n_clusters: int
    form: str = "columns"
    random: bool = False


def standardised(X: Any) -> np.ndarray:
    """Columns of mean 0 and variance 1, without constant columns."""
    X = np.asarray(X, float)
    spread = X.std(0)
    return (X[:, spread > 0] - X.mean(0)[spread > 0]) / spread[spread > 0]


def leading_components(images: Any, share: float = 0.9) -> np.ndarray:
    """Principal components of images, as many as explain a share of the variance."""
    from sklearn.decomposition import PCA

    return PCA(share, svd_solver="full").fit_transform(np.asarray(images, float))


def on_the_sphere(counts: Any, n_components: int = 30) -> np.ndarray:
    """Rows of counts by tf-idf, reduced by a singular value decomposition to length 1."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.preprocessing import normalize

    weighted = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    reduced = TruncatedSVD(n_components, algorithm="arpack", random_state=0).fit_transform(weighted)
    return normalize(reduced)


@cache
def prepared(name: str) -> tuple[np.ndarray, dict[str, np.ndarray], str]:
    """Prepared rows of a data set, its labelings, and the form of the rows."""
    from scipy import sparse

    from nrprob.datasets import load

    data = load(name)
    if sparse.issparse(data.X):
        return on_the_sphere(data.X), data.labelings, "components"
    if data.image_shape is not None:
        return leading_components(data.X), data.labelings, "components"
    return standardised(data.X), data.labelings, "columns"


def tabular_pairs(pairs: tuple[tuple[str, str, str], ...] = TABULAR) -> Iterator[Pair]:
    """Prepare the pairs of a list of (data set, known labeling, sought labeling)."""
    for name, known, target in pairs:
        X, labelings, form = prepared(name)
        short = name.split("_")[-2] if name.startswith("cmu") else name
        z, c = labelings[known], labelings[target]
        yield _pair(f"{short} {known} > {target}", X, z, c, form)


def _pair(
    name: str, X: Any, known: np.ndarray, target: np.ndarray, form: str, random: bool = False
) -> Pair:
    return Pair(name, X, known, target, np.unique(target).size, form, random)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    from nrprob.datasets import load

    data = load("digits")
    return np.asarray(data.X, float), data.labelings["digit"]


def digit_shapes() -> Pair:
    """Images of four digits: parity is known, straight or round strokes are sought."""
    X, digit = _digits()
    kept = np.isin(digit, (4, 5, 6, 7))
    digit = digit[kept]
    X = leading_components(X[kept])
    # Every combination is one digit, so the two labelings are crossed.
    return _pair("digits parity > shape", X, digit % 2, np.isin(digit, (5, 6)) * 1, "components")


def digit_couples(seed: int, n_digits: int = 5) -> Iterator[Pair]:
    """Pairs of images of the first digits, next to each other and superimposed.

    The first digit is known, the second is sought. No image is used twice.
    """
    X, digit = _digits()
    of = np.flatnonzero(digit < n_digits)
    first, second = np.random.default_rng(seed).permutation(of)[: of.size // 2 * 2].reshape(2, -1)
    known, target = digit[first], digit[second]
    for name, images in (
        ("digits left > right", np.hstack([X[first], X[second]])),
        ("digits over > under", np.maximum(X[first], X[second])),
        # The sought digit has half the ink of the known one.
        ("digits dark > faint", np.maximum(X[first], X[second] / 2)),
    ):
        yield _pair(name, leading_components(images), known, target, "components", True)


def joined_tables(seed: int) -> Iterator[Pair]:
    """Rows of iris joined with random rows of wine: the classes of one of them are known."""
    from nrprob.datasets import load

    iris, wine = load("iris"), load("wine")
    at = np.random.default_rng(seed).permutation(len(wine.X))[: len(iris.X)]
    X = standardised(np.hstack([iris.X, wine.X[at]]))
    species, cultivar = iris.labelings["species"], wine.labelings["cultivar"][at]
    yield _pair("iris > wine", X, species, cultivar, "columns", True)
    yield _pair("wine > iris", X, cultivar, species, "columns", True)


def cells(seed: int) -> Iterator[Pair]:
    """Counts of genes in cells: batches are known, types are sought."""
    from nrprob.datasets import make_cell_counts

    for i, (name, effects) in enumerate(CELLS.items()):
        X, labels = make_cell_counts(1000, 1000, random_state=100 * seed + i, **effects)
        yield _pair(f"cells, {name}", X, *labels.T, "counts", True)


def fresh_pairs(seed: int) -> Iterator[Pair]:
    """Pairs from data of scikit-learn, and from simulated counts; the same for one seed."""
    yield digit_shapes()
    yield from digit_couples(seed)
    yield from joined_tables(seed)
    yield from cells(seed)


def residual_kmeans(pair: Pair, seed: int) -> np.ndarray:
    """The baseline: subtract the mean of every known group, and run k-means."""
    from sklearn.cluster import KMeans

    z = np.unique(pair.known, return_inverse=True)[1]
    sums = np.zeros((z.max() + 1, pair.X.shape[1]))
    np.add.at(sums, z, pair.X)
    residuals = pair.X - (sums / np.bincount(z)[:, None])[z]
    return KMeans(pair.n_clusters, n_init=10, random_state=seed).fit_predict(residuals)
