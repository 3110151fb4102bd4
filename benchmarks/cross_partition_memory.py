"""What a path of splits takes on sparse counts, and a cycle beside the same one with SciPy's CSR.

python benchmarks/cross_partition_memory.py
"""

import resource
import time
import warnings

import numpy as np
from scipy import sparse
from scipy.special import logsumexp

from nrprob import CrossPartition
from nrprob.engines import orbits
from nrprob.methods.crosspartition.estimator import VARIANTS
from nrprob.settings import standard

N_ROWS, N_FEATURES, N_SUBSETS, K, PER_ROW = 2000, 20000, 5, 16, 200


def counts():
    """Counts of 16 themes, and of four stronger clusters in every subset."""
    rng = np.random.default_rng(0)
    subset, theme = rng.integers(N_SUBSETS, size=N_ROWS), rng.integers(K, size=N_ROWS)
    own = 4 * subset + rng.integers(4, size=N_ROWS)
    blocks = np.array_split(rng.permutation(N_FEATURES // 2), K)
    other = np.array_split(N_FEATURES // 2 + rng.permutation(N_FEATURES // 2), 4 * N_SUBSETS)
    rows = np.repeat(np.arange(N_ROWS), PER_ROW)
    kind = rng.random(rows.size)
    columns = rng.integers(N_FEATURES, size=rows.size)
    for i, row in enumerate(rows):
        if kind[i] < 0.35:
            columns[i] = rng.choice(blocks[theme[row]])
        elif kind[i] < 0.85:
            columns[i] = rng.choice(other[own[row]])
    X = sparse.csr_array((np.ones(rows.size), (rows, columns)), shape=(N_ROWS, N_FEATURES))
    return X, subset


def scipy_cycle(parts, rows, mass, weights, log_share, log_q, beta, eta):
    """One cycle of plain CP; ``parts`` are the rows and places of every subset."""
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
    """Print seconds and the largest memory."""
    X, subset = counts()
    X = X[:, np.flatnonzero(X.sum(0) > 0)]
    n_cycles = 30
    model = CrossPartition(K, eta=0.6, tol=1e-6)
    with standard(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task = model.prepare(X, None, subsets=subset)
        mass = task.counts.rows.mass
        log_q = np.random.default_rng(0).normal(size=(*mass.shape, 1, K))
        log_q -= logsumexp(log_q, axis=-1, keepdims=True)

        def run(cycles):
            return orbits.settle(
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
    flat = task.layout.collect(log_q)[:, 0]
    start = time.process_time()
    for _ in range(n_cycles):
        flat = scipy_cycle(parts, rows, p_x, weights, log_share, flat, 3.0, 0.6)
    theirs = (time.process_time() - start) / n_cycles
    print(f"a cycle: {1e3 * ours:.1f} ms of processor time, {1e3 * theirs:.1f} ms with SciPy")
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, subsets=subset)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{X.shape[0]} x {X.shape[1]}, {X.nnz} entries: {len(model.path_)} clusters, "
        f"{model.status_}, {model.n_iter_} cycles in {time.process_time() - start:.0f} s of "
        f"processor time, at most {peak:.2f} GiB"
    )
    for warning in caught:
        print(f"  {warning.message}")


if __name__ == "__main__":
    main()
