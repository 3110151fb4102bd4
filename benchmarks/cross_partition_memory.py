"""Memory and time of a path of splits on sparse counts, and a cycle vs SciPy's CSR.

The path goes to 16 clusters, with smoothing: rows have 1 % of the features, and without smoothing
clusters vanish. Thresholds are 2 GB, and SciPy's time for a cycle.

    python benchmarks/cross_partition_memory.py [--quick] [--smoothing 0.3]
"""

import argparse
import resource
import time
import warnings

import common
import numpy as np
from scipy import sparse
from scipy.special import logsumexp

from nrprob import CrossPartition
from nrprob.engines.optimise import limit_cycles
from nrprob.methods.crosspartition.estimator import VARIANTS
from nrprob.metrics import purity
from nrprob.settings import standard

N_SUBSETS, K, PER_ROW = 5, 16, 200


def counts(n_rows, n_features):
    """Counts with 16 themes and four stronger clusters per subset; and both labelings."""
    rng = np.random.default_rng(0)
    subset, theme = rng.integers(N_SUBSETS, size=n_rows), rng.integers(K, size=n_rows)
    own = 4 * subset + rng.integers(4, size=n_rows)
    blocks = np.array_split(rng.permutation(n_features // 2), K)
    other = np.array_split(n_features // 2 + rng.permutation(n_features // 2), 4 * N_SUBSETS)
    rows = np.repeat(np.arange(n_rows), PER_ROW)
    kind = rng.random(rows.size)
    columns = rng.integers(n_features, size=rows.size)
    for i, row in enumerate(rows):
        if kind[i] < 0.35:
            columns[i] = rng.choice(blocks[theme[row]])
        elif kind[i] < 0.85:
            columns[i] = rng.choice(other[own[row]])
    X = sparse.csr_array((np.ones(rows.size), (rows, columns)), shape=(n_rows, n_features))
    return X[:, np.flatnonzero(X.sum(0) > 0)], subset, theme


def scipy_cycle(parts, rows, mass, weights, log_share, log_q, beta, eta):
    """One cycle of plain CP; ``parts`` are the rows and indices of every subset."""
    mean = 0
    for (part, at), weight in zip(parts, weights, strict=True):
        log_r = np.log(mass[at])[:, None] + log_q[at]
        r = np.exp(log_r - logsumexp(log_r, axis=0))
        p = part.T @ r
        mean = mean + eta * weight * np.log(np.where(p > 0, p, 1))
    feature = mean - logsumexp(mean, axis=1, keepdims=True)
    joint = feature + log_share[:, None]
    centroid = joint - logsumexp(joint, axis=0)
    log_r = beta * (rows @ centroid)
    return log_r - logsumexp(log_r, axis=1, keepdims=True)


def main():
    """Print run times and the largest memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--smoothing", type=float, default=0.3, help="of the path")
    asked = parser.parse_args()
    common.header("Cross-partition clustering of sparse counts")
    X, subset, theme = counts(*(200, 2000) if asked.quick else (2000, 20000))
    n_cycles = 30
    model = CrossPartition(K, eta=0.6, tol=1e-6)
    with standard(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task = model.prepare(X, None, subsets=subset)
        mass = task.counts.rows.mass
        log_q = np.random.default_rng(0).normal(size=(*mass.shape, 1, K))
        log_q -= logsumexp(log_q, axis=-1, keepdims=True)

        def run(cycles):
            return limit_cycles.find_limit(
                VARIANTS["CP"], task.counts, mass, (np.zeros((1, K)), log_q), 3.0,
                np.ones(K, bool), tol=0.0, max_iter=cycles,
            )  # fmt: skip

        run(1)
        start = time.process_time()
        run(n_cycles)
        ours = (time.process_time() - start) / n_cycles
    rows, p_x = task.rows.tocsr(), task.mass
    names = np.unique(subset)
    parts = [(rows[subset == w], np.flatnonzero(subset == w)) for w in names]
    weights = [p_x[at].sum() for _, at in parts]
    with np.errstate(divide="ignore"):
        log_share = np.log(p_x @ rows)
    flat = task.layout.from_blocks(log_q)[:, 0]
    start = time.process_time()
    for _ in range(n_cycles):
        flat = scipy_cycle(parts, rows, p_x, weights, log_share, flat, 3.0, 0.6)
    theirs = (time.process_time() - start) / n_cycles
    print(
        f"a cycle: {1e3 * ours:.1f} ms of processor time, {1e3 * theirs:.1f} ms with SciPy, "
        f"{ours / theirs:.2f} of it (at most 1)"
    )
    model.set_params(smoothing=asked.smoothing)
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, subsets=subset)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{X.shape[0]} x {X.shape[1]}, {X.nnz} entries: {len(model.path_)} clusters, "
        f"{model.status_}, {model.n_iter_} cycles in {time.process_time() - start:.0f} s of "
        f"processor time, at most {peak:.2f} GiB (less than 2 GB); purity of themes "
        f"{purity(model.labels_, theme):.2f}"
    )
    for warning in caught:
        print(f"  {warning.message}")


if __name__ == "__main__":
    main()
