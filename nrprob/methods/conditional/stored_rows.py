"""Stored rows of a conditional mixture: their columns, known groups and samples in memory."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np

from nrprob.data.column_kinds import MOST_VALUES
from nrprob.data.storage.blocks import Blocks, gather_bytes
from nrprob.data.storage.stored import Survey
from nrprob.methods.conditional.columns import Columns
from nrprob.methods.conditional.streaming import group_sums, take_rows
from nrprob.methods.conditional.table_blocks import distinct_in_block

_KIND_ROWS = 1 << 13  # rows by which the kinds of the columns are inferred
_MOST_CANDIDATES = 4 * MOST_VALUES  # values in these rows, up to which a column may be discrete
_MOST_DISTINCT = 1000  # values that are collected of a column


def collect_rows(
    seen: Survey, blocks: Blocks, chosen: np.ndarray, *arrays: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Rows at positions ``chosen`` (sorted), with ``arrays`` beside them, of all processes."""
    indices = (chosen + seen.first).astype(np.uint32)
    parts = list(blocks.map_blocks(take_rows, indices))
    order = np.concatenate([number for number, _ in parts])
    rows = np.concatenate([x for _, x in parts])[np.argsort(order)]
    result: tuple[np.ndarray, ...] = (rows, *arrays)
    if seen.rows.processes:
        gathered = [pickle.loads(sent) for sent in gather_bytes(pickle.dumps(result))]
        result = tuple(np.concatenate(arrays) for arrays in zip(*gathered, strict=True))
    return result


def mean_by_group(seen: Survey, blocks: Blocks) -> tuple[np.ndarray, np.ndarray]:
    """Means (L, m) of the columns by known group, and sizes (L,) of the groups."""
    mean = seen.moments.mean
    sums, sizes = blocks.map_sum(partial(group_sums, n_groups=seen.design.n_groups), mean)
    return mean + sums / np.maximum(sizes, 1)[:, None], sizes


def learn_columns(model: Any, seen: Survey, blocks: Blocks) -> Columns:
    """Kinds of the columns by a sample of the rows, and all values of the discrete ones.

    Columns of few values in the sample are read whole. Their other values are added to the sample,
    by which all kinds are inferred as for a table in memory.
    """
    n = seen.n_samples
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.choice(n, min(n, _KIND_ROWS), replace=False))
    (sample,) = collect_rows(seen, blocks, chosen)
    distinct = [np.unique(column) for column in sample.T]
    candidates = [j for j, values in enumerate(distinct) if len(values) <= _MOST_CANDIDATES]
    step = partial(distinct_in_block, positions=tuple(candidates), most=_MOST_DISTINCT)
    parts = list(blocks.map_blocks(step)) if candidates else []
    if seen.rows.processes:
        parts = [part for sent in gather_bytes(pickle.dumps(parts)) for part in pickle.loads(sent)]
    others = {
        j: np.setdiff1d(np.concatenate(values), distinct[j])
        for j, values in zip(candidates, zip(*parts, strict=True), strict=True)
    }
    size = max(map(len, others.values()), default=0)
    more = np.resize(sample, (size, sample.shape[1]))
    for j, values in others.items():
        more[: len(values), j] = values
    table = seen.source.as_table(np.concatenate([sample, more]))
    return Columns.learn(table, model.categorical, model.ordered)
