"""Are copies of a word from different texts in one cluster?

Rows are keywords of five texts, and columns are the words near them. Pairs of rows of different
texts with the same word should be together, and all other pairs apart. The measure is the Jaccard
index over such pairs, among the words that occur in at least two texts, for every number of
clusters. Random clusters would have about 0.013.

The algorithm is deterministic, so one run is enough. Means over 2 to 16 clusters: CP with eta 0.6
and smoothing 0.3 has 0.0174, with all 16 clusters; without smoothing 0.0130, up to 7 clusters, at
which it ends; IB 0.0036, since its clusters are the texts; IB-SI 0.0128 with gamma 0.25 and with
0.5.

    NRPROB_DATA=... python benchmarks/cross_partition_words.py [n_clusters] [method ...]
"""

import sys
import time
import warnings

import numpy as np

from nrprob import IB, IBSI, CrossPartition
from nrprob.datasets import load
from nrprob.metrics import normalized_mutual_information

ROUGH = {"solver": "split", "features": "multinomial", "tol": 1e-2, "max_iter": 10}


def smoothed(n_clusters, **parameters):
    """Rows with weights within their text, and an approximate path."""
    return CrossPartition(n_clusters, tol=1e-4, max_iter=300, **parameters)


METHODS = {
    "CP, eta=1": lambda k: CrossPartition(k, eta=1.0, tol=1e-5, max_iter=1000),
    "CP, eta=0.6": lambda k: CrossPartition(k, eta=0.6, tol=1e-5, max_iter=1000),
    "CP, eta=0.3": lambda k: CrossPartition(k, eta=0.3, tol=1e-5, max_iter=1000),
    "CP, eta=0.3, smoothing=0.2": lambda k: smoothed(k, eta=0.3, smoothing=0.2),
    "CP, eta=0.6, smoothing=0.1": lambda k: smoothed(k, smoothing=0.1),
    "CP, eta=0.6, smoothing=0.2": lambda k: smoothed(k, smoothing=0.2),
    "CP, eta=0.6, smoothing=0.3": lambda k: smoothed(k, smoothing=0.3),
    "CP, eta=0.6, smoothing=0.4": lambda k: smoothed(k, smoothing=0.4),
    "CP, eta=1, smoothing=0.3": lambda k: smoothed(k, eta=1.0, smoothing=0.3),
    "IB": lambda k: IB(k, **ROUGH),
    "IB-SI, gamma=0.25": lambda k: IBSI(k, gamma=0.25, **ROUGH),
    "IB-SI, gamma=0.5": lambda k: IBSI(k, gamma=0.5, **ROUGH),
    "IB-SI, gamma=1": lambda k: IBSI(k, gamma=1.0, **ROUGH),
    "IB-SI, gamma=2": lambda k: IBSI(k, gamma=2.0, **ROUGH),
}


def cross_subset_jaccard(labels, subset, word):
    """Jaccard index over pairs of rows of different subsets that have a word."""
    rows = np.flatnonzero(word != "")
    i, j = (rows[at] for at in np.triu_indices(rows.size, 1))
    i, j = i[subset[i] != subset[j]], j[subset[i] != subset[j]]
    together, same = labels[i] == labels[j], word[i] == word[j]
    return (together & same).sum() / (together | same).sum()


def main():
    """Print the index for every number of clusters, its mean, and how the path ended."""
    n_clusters = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    data = load("scripture_keywords")
    subset = data.labelings["tradition"]
    word = np.where(data.labelings["shared_keyword"] == "nan", "", data.labelings["shared_keyword"])
    word = word.astype(str)
    word[word == "nan"] = ""
    in_all = np.all([data.X[subset == w].sum(0) > 0 for w in np.unique(subset)], axis=0)
    X = data.X[:, np.flatnonzero(in_all)]
    print(f"{X.shape[0]} rows, {X.shape[1]} features that all texts have")
    for name, make in METHODS.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        start = time.process_time()
        model = make(n_clusters)
        given = {} if isinstance(model, IB) else {"known": subset}
        if isinstance(model, CrossPartition):
            given = {"subsets": subset}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, **given)
        result = [cross_subset_jaccard(level.labels, subset, word) for level in model.path_[1:]]
        text = normalized_mutual_information(model.labels_, subset)
        print(
            f"{name}: {len(model.path_)} clusters ({model.status_}), mean {np.mean(result):.4f}, "
            f"NMI of texts {text:.2f}, {time.process_time() - start:.0f} s;",
            *(f"{value:.3f}" for value in result),
            flush=True,
        )


if __name__ == "__main__":
    main()
