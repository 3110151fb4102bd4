"""`CrossPartition("auto")` on simulated counts: number of themes, and recovery of the themes.

Counts have five themes shared by three subsets, and stronger clusters within subsets. A set is
exact if the number is 5, and recovered if the labels are the themes. The counts 700 and 400 are the
salient and the non-salient setting of the source. Sizes "B/B" and "B/nB" are balanced. "search"
counts sets in which the path starts at the themes.
"""

from __future__ import annotations

from common import header, show

# isort: split
import argparse
import warnings

import numpy as np

from nrprob import CrossPartition
from nrprob.datasets import make_cross_partition
from nrprob.metrics import adjusted_rand_index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one set of one setting")
    parser.add_argument("--seeds", type=int, default=10, help="sets per setting")
    parser.add_argument("--first", type=int, default=100, help="first seed")
    parser.add_argument(
        "--counts", type=int, nargs="+", default=[700, 400], help="counts of themes"
    )
    options = parser.parse_args()
    header("number of themes")
    targets = ("B/B",) if options.quick else ("B/B", "B/nB", "nB/B")
    rows = []
    for count in options.counts:
        for target in targets:
            numbers, etas, scores, starts = [], [], [], []
            for seed in range(
                options.first, options.first + (1 if options.quick else options.seeds)
            ):
                X, labels = make_cross_partition(target, count, random_state=seed)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = CrossPartition("auto", random_state=seed)
                    model.fit(X, subsets=labels[:, 1])
                numbers.append(model.n_clusters_)
                etas.append(model.eta_)
                scores.append(adjusted_rand_index(labels[:, 0], model.labels_))
                starts.append(adjusted_rand_index(labels[:, 0], model.theme_labels_))
            rows.append(
                (
                    count, target, f"{np.mean(np.array(numbers) == 5):.0%}",
                    f"{np.mean(np.array(starts) == 1):.0%}",
                    f"{np.mean(np.array(scores) == 1):.0%}", f"{np.mean(scores):.2f}",
                    " ".join(map(str, numbers)), " ".join(f"{eta:g}" for eta in etas),
                )
            )  # fmt: skip
    columns = ("count", "sizes", "exact", "search", "recovered", "ARI", "numbers of themes", "eta")
    show("Themes shared by three subsets; 5 are correct", columns, rows)


if __name__ == "__main__":
    main()
