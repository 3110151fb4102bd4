"""Precision on the generators of Gondek (2005): defaults, Bayes classifier, published values.

The "known" partition is given to the method, and the "sought" one is hidden. Values are means over
20 data sets with their standard errors. The published column is the best of all methods printed for
the setting (Gondek 2005, Tables 8.1 to 8.21 and 8.34 to 8.45).
"""

import time

import numpy as np
from common import arguments, header, show

from nrprob import CCIB
from nrprob.datasets import bayes_precision, make_binary_partitions, make_multinomial_2d
from nrprob.metrics import matched_accuracy

ROWS = {2: 200, 3: 450, 4: 800}
DRAWS = {2: 400, 3: 700, 4: 1100}
# (clusters, columns of the known partition): best published precision.
BINARY = {
    (2, 4): 0.9755,
    (2, 10): 0.9791,
    (2, 30): 0.9728,
    (2, 100): 0.9663,
    (3, 4): 0.8814,
    (3, 30): 0.8531,
    (3, 100): 0.7734,
    (4, 4): 0.7736,
    (4, 30): 0.7801,
    (4, 100): 0.7197,
}
# (clusters, orthogonality): best published precision.
PLANE = {
    (2, 1): 1.0,
    (2, 0.75): 0.8509,
    (2, 0.5): 0.7556,
    (2, 0.25): 0.7178,
    (3, 1): 0.8487,
    (3, 0.75): 0.6066,
    (3, 0.5): 0.5250,
    (3, 0.25): 0.4695,
    (4, 1): 0.6823,
    (4, 0.5): 0.4199,
}


def cell(make, k, sets):
    start = time.perf_counter()
    result = []
    for seed in range(sets):
        X, labels = make(seed)
        model = CCIB(k, random_state=seed).fit(X, known=labels[:, 0])
        result.append(matched_accuracy(model.labels_, labels[:, 1]))
    error = np.std(result, ddof=1) / np.sqrt(sets)
    return np.mean(result), error, (time.perf_counter() - start) / sets


def main():
    quick = arguments(__doc__).quick
    sets = 3 if quick else 20
    header("precision with the defaults")
    columns = ("set", "CCIB", "s.e.", "best published", "Bayes", "s per set")
    rows = []
    for (k, m), published in BINARY.items():
        mean, error, seconds = cell(
            lambda seed, k=k, m=m: make_binary_partitions(ROWS[k], (m, 4), k, random_state=seed),
            k,
            sets,
        )
        bayes = bayes_precision(4, k)
        rows.append((f"binary K={k}, {m} + 4", mean, error, published, bayes, seconds))
        if quick and k == 2:
            break
    for (k, alpha), published in PLANE.items():
        mean, error, seconds = cell(
            lambda seed, k=k, alpha=alpha: make_multinomial_2d(
                ROWS[k], k, DRAWS[k], orthogonality=alpha, random_state=seed
            ),
            k,
            sets,
        )
        rows.append((f"plane K={k}, alpha={alpha}", mean, error, published, "", seconds))
        if quick:
            break
    show(f"means over {sets} sets", columns, rows)


if __name__ == "__main__":
    main()
