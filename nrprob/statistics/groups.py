"""Means of rows by group, in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse


def group_means(x: Any, codes: np.ndarray, n_groups: int = 0) -> np.ndarray:
    """Means (groups, m) of rows (n, m), which may be sparse; 0/0 where a group has no row."""
    n, sizes = len(codes), np.bincount(codes, minlength=n_groups)
    member = sparse.csr_array((np.ones(n), (codes, np.arange(n))), shape=(sizes.size, n))
    sums = member @ x
    return np.asarray(sums.toarray() if sparse.issparse(sums) else sums) / sizes[:, None]
