"""Sums, means and counts of rows by group, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse


def group_sums(x: Any, codes: np.ndarray, n_groups: int = 0) -> np.ndarray:
    """Sums (groups, m) of rows (n, m), which may be sparse, in float64."""
    n, size = len(codes), max(n_groups, codes.max(initial=-1) + 1)
    member = sparse.csr_array((np.ones(n), (codes, np.arange(n))), shape=(size, n))
    sums = member @ x
    return np.asarray(sums.toarray() if sparse.issparse(sums) else sums)


def group_means(x: Any, codes: np.ndarray, n_groups: int = 0) -> np.ndarray:
    """Means (groups, m) of rows (n, m), which may be sparse; 0/0 where a group has no row."""
    return group_sums(x, codes, n_groups) / np.bincount(codes, minlength=n_groups)[:, None]


def cross_table(one: np.ndarray, other: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Numbers of rows in group i of one labeling (n,) and group j of another."""
    return np.bincount(one * shape[1] + other, minlength=shape[0] * shape[1]).reshape(shape)


def merge_small_groups(
    names: Sequence[str], codes: np.ndarray, most: int
) -> tuple[list[str], np.ndarray]:
    """At most so many groups, the smallest of more as one: their names, and the codes (n,)."""
    if len(names) <= most:
        return [*names], codes
    kept = np.sort(np.argsort(-np.bincount(codes), kind="stable")[: most - 1])
    place = np.full(len(names), most - 1)
    place[kept] = np.arange(most - 1)
    return [*(names[g] for g in kept), f"{len(names) - most + 1} others"], place[codes]
