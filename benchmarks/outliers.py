"""Samples that are far from all clusters: simulated tables, and joined real tables.

Every simulated table has 300 samples, six correlated columns, and three known groups with effects.
Scores are adjusted Rand indices without the far samples. Rows of one real table stand beside random
rows of another one; classes of the first are known, and classes of the second are sought. Their
scores are NMI, next to k-means of residuals. Odd seeds rotate the columns at random, so that coarse
columns cannot be seen. With ``--numbers``, columns of few values are taken for numbers there.
"""

from __future__ import annotations

from common import console, header, show, verdict

# isort: split
import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from realdata_pairs import Pair, residual_kmeans, standardised

# Design: shares of the clusters, their distance in standard deviations, and the errors.
DESIGNS: dict[str, tuple[tuple[float, ...], float, str]] = {
    "halves": ((0.5, 0.5), 4, "normal"),
    "thirds": ((1 / 3,) * 3, 4, "normal"),
    "90/10": ((0.9, 0.1), 5, "normal"),
    "95/5": ((0.95, 0.05), 5, "normal"),
    "thirds, skewed": ((1 / 3,) * 3, 4, "skewed"),
    "halves, 3 % far": ((0.5, 0.5), 4, "far"),
    "90/10, 3 % far": ((0.9, 0.1), 5, "far"),
    "halves, 1.5 % far in one column": ((0.5, 0.5), 4, "one column"),
    "halves, t(3) errors": ((0.5, 0.5), 5, "t"),
    "thirds, t(3) errors": ((1 / 3,) * 3, 5, "t"),
}
# Lowest mean scores with noise="auto".
BARS = {
    "halves, 3 % far": 0.85,
    "90/10, 3 % far": 0.85,
    "halves, t(3) errors": 0.75,
    "thirds, t(3) errors": 0.75,
}
# Table and labeling that is known, table and labeling that is sought.
JOINED = (
    ("segmentation_2310", "class", "ecoli", "class"),
    ("ecoli", "class", "segmentation_2310", "class"),
    ("wine", "cultivar", "pendigits", "digit"),
    ("pendigits", "digit", "iris", "species"),
    ("glass", "type", "wine", "cultivar"),
    ("vertebral", "class3", "segmentation_2310", "class"),
    ("user_knowledge", "UNS", "ecoli", "class"),
    ("iris", "species", "vertebral", "class3"),
)
LEAST_CLASS, MOST_ROWS = 15, 400
WORST = -0.05  # least difference of NMI from k-means of residuals


def simulated(
    name: str, seed: int, n: int = 300, d: int = 6, n_groups: int = 3
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Samples (n, d), known groups, clusters, and which samples are far (n,)."""
    shares, apart, errors = DESIGNS[name]
    rng = np.random.default_rng(seed)
    k = len(shares)
    cluster, known = rng.choice(k, n, p=shares), rng.integers(n_groups, size=n)
    e = rng.normal(size=(n, d))
    if errors == "skewed":
        e = (rng.gamma(4, size=(n, d)) - 4) / 2
    if errors == "t":
        e /= np.sqrt(rng.chisquare(3, size=(n, 1)) / 3)
    # Clusters lie at the corners of a simplex.
    x = apart / np.sqrt(2) * np.eye(d)[cluster] + e
    far = np.zeros(n, bool)
    if errors == "far":
        far[rng.permutation(n)[: round(0.03 * n)]] = True
        x[far] += 10 * rng.normal(size=(far.sum(), d))
    if errors == "one column":
        far[rng.permutation(n)[: round(0.015 * n)]] = True
        x[far, -1] += rng.uniform(8, 30, size=far.sum())
    mix = np.eye(d) + 0.5 * rng.normal(size=(d, d))
    return x @ mix + 3 * rng.normal(size=(n_groups, d))[known], known, cluster, far


def joined(seed: int) -> Iterator[Pair]:
    """Pairs of classes of two real tables whose rows stand side by side."""
    from nrprob.datasets import load

    rng = np.random.default_rng(seed)

    def rows(name: str, labeling: str) -> tuple[np.ndarray, np.ndarray]:
        data = load(name)
        X, labels = (
            standardised(data.X),
            np.unique(data.labelings[labeling], return_inverse=True)[1],
        )
        chosen = np.flatnonzero(np.bincount(labels)[labels] >= LEAST_CLASS)
        chosen = rng.permutation(chosen)[:MOST_ROWS]
        return X[chosen], labels[chosen]

    for first, known, second, target in JOINED:
        (a, z), (b, c) = rows(first, known), rows(second, target)
        n = min(len(a), len(b))
        X = standardised(np.hstack([a[:n], b[:n]]))
        if seed % 2:
            X = X @ np.linalg.qr(rng.normal(size=(X.shape[1],) * 2))[0]
        name = f"{first.split('_')[0]} > {second.split('_')[0]}"
        yield Pair(name, X, z[:n], c[:n], np.unique(c[:n]).size, random=True)


def fits(X: Any, known: Any, k: int, **settings: Any) -> dict[str, Any]:
    """Fits without and with noise."""
    from nrprob import ConditionalMixture

    return {
        noise: ConditionalMixture(k, noise=noise, random_state=0, **settings).fit(X, known=known)
        for noise in (0.0, "auto")
    }


def simulated_tables(seeds: range, names: list[str]) -> list[Any]:
    """Show scores of the simulated tables; return the bars."""
    from nrprob.metrics import adjusted_rand_index

    rows, bars = [], []
    for name in names:
        scores, flagged, taken, gains = [], [], 0, []
        for seed in seeds:
            X, known, cluster, far = simulated(name, seed)
            both = fits(X, known, len(DESIGNS[name][0]))
            scores.append(
                [adjusted_rand_index(m.labels_[~far], cluster[~far]) for m in both.values()]
            )
            auto = both["auto"]
            taken += auto.noise_ > 0
            gains.append(auto.noise_gain_)
            flagged.append(
                [auto.outliers_[part].mean() if part.any() else 0 for part in (far, ~far)]
            )
        plain, noisy = np.mean(scores, 0)
        least = np.min(np.diff(scores)[:, 0])
        hit, wrong = np.mean(flagged, 0)
        rows.append(
            (name, plain, noisy, least, np.median(gains), f"{taken}/{len(seeds)}", hit, wrong)
        )
        if name in BARS:
            bars.append((name, noisy, *verdict(noisy, BARS[name], at_least=True)))
    columns = (
        "design",
        "noise=0",
        "auto",
        "worst change",
        "gain",
        "taken",
        "far set aside",
        "others",
    )
    show(f"Simulated tables, mean ARI, {len(seeds)} seeds", columns, rows)
    return bars


def joined_tables(seeds: list[int], **settings: Any) -> list[Any]:
    """Show scores of the joined tables; return the bars."""
    from nrprob.metrics import normalized_mutual_information

    rows, unrotated = [], []
    for seed in seeds:
        for pair in joined(seed):
            rival = normalized_mutual_information(residual_kmeans(pair, 0), pair.target)
            both = fits(pair.X, pair.known, pair.n_clusters, **settings)
            scores = [normalized_mutual_information(m.labels_, pair.target) for m in both.values()]
            auto = both["auto"]
            n_discrete = sum(kind not in ("number", "constant") for kind in auto.columns_.values())
            rows.append(
                (f"{seed} {pair.name}", str(len(pair.X)), str(n_discrete), rival, *scores,
                 scores[1] - rival, auto.noise_gain_, str(auto.noise_), str(auto.outliers_.sum()),
                 auto.effects_kind_)
            )  # fmt: skip
            console.print(*rows[-1])
            if seed % 2 == 0:
                unrotated.append(scores[1] - rival)
    means = [float(np.mean([row[j] for row in rows])) for j in (3, 4, 5, 6)]
    rows.append(("mean", "", "", *means, "", "", "", ""))
    columns = (
        "seed, pair", "n", "discrete", "k-means", "noise=0", "auto", "less k-means", "gain",
        "share", "set aside", "effects",
    )  # fmt: skip
    show("Joined tables, NMI", columns, rows)
    if not unrotated:
        return []
    worst = min(unrotated)
    return [("worst unrotated pair", worst, *verdict(worst, WORST, at_least=True))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed of two designs")
    parser.add_argument("--seeds", type=int, default=20, help="simulated tables per design")
    parser.add_argument("--joined", type=int, nargs="*", default=[12, 14, 13], metavar="SEED")
    parser.add_argument("--numbers", action="store_true", help="take all columns for numbers")
    parser.add_argument("--only", nargs="*", choices=list(DESIGNS), help="simulated designs")
    options = parser.parse_args()
    header("Samples that are far from all clusters")
    names = list(DESIGNS) if options.only is None else options.only
    seeds = range(1 if options.quick else options.seeds)
    names = names[:2] if options.quick else names
    bars = simulated_tables(seeds, names) if names else []
    if options.joined and not options.quick:
        settings = {"categorical": [], "ordered": []} if options.numbers else {}
        bars += joined_tables(options.joined, **settings)
    show("Bars", ("what", "value", "bar", ""), bars)


if __name__ == "__main__":
    main()
