"""Peak memory of a large sparse fit: 20,000 x 50,000 counts with 2 million entries, in float32.

CCIB with ten clusters, five known groups and ten restarts. The words of each row come from the
block of its hidden cluster, from the block of its known group, and from all words.
"""

from __future__ import annotations

from common import Time, arguments, console, header, show, timed, verdict

# isort: split
import resource

import numpy as np
from scipy import sparse
from sklearn.metrics import adjusted_rand_score

from nrprob import CCIB

BAR = 4.0  # GB


def documents(n: int, m: int, draws: int, k: int, groups: int, seed: int = 0):
    """CSR counts, hidden labels and known labels."""
    rng = np.random.default_rng(seed)
    hidden, known = rng.integers(k, size=n), rng.integers(groups, size=n)
    third = m // 4

    def words(labels, n_blocks, first):
        block = third // n_blocks
        inside = rng.integers(block, size=(n, draws // 4))
        return first + labels[:, None] * block + inside

    column = np.hstack(
        [
            words(hidden, k, 0),
            words(known, groups, third),
            rng.integers(m, size=(n, draws - 2 * (draws // 4))),
        ]
    )
    row = np.repeat(np.arange(n), draws)
    x = sparse.csr_array((np.ones(row.size, np.float32), (row, column.ravel())), shape=(n, m))
    x.sum_duplicates()
    x.indices, x.indptr = x.indices.astype(np.int32), x.indptr.astype(np.int32)
    return x, hidden, known


def peak() -> float:
    """Largest resident set of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main(quick: bool) -> None:
    n, m = (2000, 5000) if quick else (20_000, 50_000)
    header(f"sparse memory: {n} x {m}, float32")
    x, hidden, known = documents(n, m, 101, 10, 5)
    before = peak()
    model = CCIB(10, random_state=0, verbose=1)
    time: Time = timed(lambda: model.fit(x, known=known))
    show(
        f"CCIB, {x.nnz} entries, ten restarts",
        ("", "GB", "bar", ""),
        [
            ("peak of the process", peak(), *verdict(peak(), BAR)),
            ("before the fit", before, "", ""),
        ],
    )
    console.print(
        f"{time.wall:.1f} s wall, {time.cpu:.1f} s CPU, {model.n_iter_} updates of the last "
        f"chunk of restarts; adjusted Rand index with the hidden labels "
        f"{adjusted_rand_score(hidden, model.labels_):.3f}, with the known ones "
        f"{adjusted_rand_score(known, model.labels_):.3f}"
    )


if __name__ == "__main__":
    main(arguments(__doc__).quick)
