"""Tables whose samples lie in known groups, for tests of conditional mixtures."""

import numpy as np
import pandas as pd


def flag_table(seed=0, n=300):
    """Numbers that carry the clusters, an irrelevant flag, and a known site."""
    rng = np.random.default_rng(seed)
    cluster, site = rng.integers(2, size=n), rng.choice(["x", "y"], n)
    frame = pd.DataFrame(rng.normal(size=(n, 4)), columns=[*"abcd"])
    frame[["a", "b"]] += 4.0 * cluster[:, None]
    frame["flag"] = rng.random(n) < 0.3
    frame["site"] = site
    return frame, cluster


def turned_shares(seed=0, n=450, n_groups=3):
    """Clusters whose shares differ between known groups, which have effects of their own."""
    rng = np.random.default_rng(seed)
    groups = np.arange(n) % n_groups
    share = np.array([np.roll([0.7, 0.2, 0.1], z) for z in range(n_groups)])
    cluster = (rng.random((n, 1)) > share[groups].cumsum(1)[:, :-1]).sum(1)
    centres = 3.5 / np.sqrt(2) * np.eye(3, 4)
    effects = rng.normal(size=(n_groups, 4))
    return centres[cluster] + effects[groups] + rng.normal(size=(n, 4)), groups, cluster, effects


def one_batch_only(seed, n=300):
    """Two batches with a shift; one of three cell types occurs in the first batch only."""
    rng = np.random.default_rng(seed)
    batch = np.repeat([0, 1], n)
    kind = [rng.choice(3, n, p=[0.35, 0.25, 0.4]), rng.choice(3, n, p=[0.3, 0.7, 0])]
    kind = np.concatenate(kind)
    centres, shift = np.zeros((3, 10)), np.zeros((2, 10))
    centres[1, :3] = centres[2, 3:6] = 3
    shift[1, [1, 4, 7, 8]] = [2.5, -2.5, 2.5, 2.5]
    return centres[kind] + shift[batch] + rng.normal(size=(2 * n, 10)), batch, kind
