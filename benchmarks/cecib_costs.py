"""Costs of cross-entropy clustering: agreement with classes, and the number of clusters.

Three costs are compared on eight data sets with labels of a tenth of the rows: the default, the
published cost without a charge for parameters, and the default with a code of the labels, L h + log
C, in place of N h. Here N is the number of rows of a cluster, L the number of its labelled rows, h
the entropy of their classes, and C the complexity of the code. `--planted` reports planted Gaussian
clusters instead. The script needs the data sets of the paper (NRPROB_DATA).
"""

from __future__ import annotations

from common import console, header, show  # isort: skip  (pins BLAS before numpy)

import argparse
import contextlib
import warnings

import jax.numpy as jnp
import numpy as np
from cecib import rows_of
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from nrprob import CECIB
from nrprob.batch.splits import sample_labels
from nrprob.codelength import multinomial_complexity
from nrprob.methods.cec.costs import LabelCost
from nrprob.metrics import normalized_mutual_information as nmi

SETS = (
    "ecoli", "glass", "cecib_authors_iris", "cecib_authors_segmentation", "user_knowledge",
    "vertebral", "wine", "breast_cancer",
)  # fmt: skip
LABELS = {"labeling": "class", "score": "all", "draw": "rows", "wrong": 0.0, "fraction": 0.1}
PLANTED = {"n": 250, "columns": 4, "n_clusters": 10, "min_cluster_fraction": 0.03}


def data_of(name):
    """Rows and classes; ten principal components of breast cancer."""
    if name == "breast_cancer":
        X, classes = load_breast_cancer(return_X_y=True)
        return PCA(10).fit_transform(StandardScaler().fit_transform(X)), classes
    X, classes = rows_of(name)
    return X, np.unique(classes, return_inverse=True)[1]


@contextlib.contextmanager
def coded_labels(n_classes, n_labels):
    """Replace the cost of labels N h by the code L h + log C."""
    published = LabelCost._cell_cost
    table = jnp.asarray(multinomial_complexity(n_classes, np.arange(n_labels + 1)))

    def coded(self, mass, labelled, sum_xlogx):
        index = jnp.clip(jnp.rint(labelled).astype(int), 0, n_labels)
        return published(self, labelled, labelled, sum_xlogx) + table[index]

    LabelCost._cell_cost = coded
    try:
        yield
    finally:
        LabelCost._cell_cost = published


def fit(X, y, n_classes, seed, cost):
    """A fit with one of the three costs."""
    penalty = None if cost == "published" else "code"
    model = CECIB(2 * n_classes, penalty=penalty, random_state=seed)
    if cost != "code of labels":
        return model.fit(X, y)
    import jax

    jax.clear_caches()  # programs of the other cost
    with coded_labels(n_classes, int((y >= 0).sum())):
        model.fit(X, y)
    jax.clear_caches()
    return model


def compare_costs(seeds, costs):
    """Print mean NMI and numbers of clusters."""
    rows, means = [], {cost: [] for cost in costs}
    for name in SETS:
        X, classes = data_of(name)
        n_classes = np.unique(classes).size
        row = [name, str(n_classes)]
        for cost in costs:
            results = []
            for seed in seeds:
                y = sample_labels(classes, LABELS, (0, seed)).y
                model = fit(X, y, n_classes, seed, cost)
                off = abs(model.n_clusters_ - n_classes)
                results.append((nmi(model.labels_, classes), model.n_clusters_, off))
            score, clusters, off = np.mean(results, axis=0)
            means[cost].append((score, off))
            row.append(f"{score:.3f} ({clusters:.1f})")
        rows.append(tuple(row))
    total = {cost: np.mean(values, axis=0) for cost, values in means.items()}
    rows.append(("mean NMI", "", *(f"{total[cost][0]:.3f}" for cost in costs)))
    rows.append(("mean error of K", "", *(f"{total[cost][1]:.2f}" for cost in costs)))
    show("NMI with the classes (number of clusters)", ("", "classes", *costs), rows)


def planted_clusters(n_sets, spread):
    """Print how often the planted number of clusters is returned, and compare the costs."""
    rows = []
    for covariance in ("full", "diag"):
        for k in (1, 3, 6):
            exact, lower = 0, 0
            for seed in range(n_sets):
                rng = np.random.default_rng([seed, k])
                truth = np.arange(PLANTED["n"]) % k
                centres = spread * rng.normal(size=(k, PLANTED["columns"]))
                X = centres[truth] + rng.normal(size=(len(truth), PLANTED["columns"]))
                given = {
                    "covariance": covariance,
                    "min_cluster_fraction": PLANTED["min_cluster_fraction"],
                }
                model = CECIB(PLANTED["n_clusters"], random_state=seed, **given).fit(X)
                # The planted partition, improved by moves and mergers only.
                planted = CECIB(PLANTED["n_clusters"], init=truth, n_init=1, **given).fit(X)
                exact += model.n_clusters_ == k
                lower += model.objective_ <= planted.objective_ + 1e-6
            rows.append((covariance, str(k), f"{exact} of {n_sets}", f"{lower} of {n_sets}"))
    columns = ("covariance", "planted", "exact number", "cost at most that from the planted")
    show(f"planted clusters, centres with standard deviation {spread:g}", columns, rows)


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:20", help="samples of labels, as first:end")
    parser.add_argument("--code", action="store_true", help="include the code of the labels")
    parser.add_argument("--planted", type=int, default=0, help="number of planted data sets")
    options = parser.parse_args()
    header("costs of cross-entropy clustering")
    warnings.filterwarnings("ignore")  # a column of Vertebral is the sum of two others
    if options.planted:
        for spread in (12.5**0.5, 12.5):
            planted_clusters(options.planted, spread)
        return
    first, end = map(int, options.seeds.split(":"))
    costs = ("default", "published", *(("code of labels",) if options.code else ()))
    compare_costs(range(first, end), costs)
    console.print("labels of a tenth of the rows")


if __name__ == "__main__":
    main()
