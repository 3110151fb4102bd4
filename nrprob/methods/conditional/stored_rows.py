"""Stored rows of a conditional mixture: types of columns, group means, and subsamples in memory.

Sizes: n chosen rows, m columns, L known groups.
"""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np

from nrprob.data.column_kinds import CONSTANT, DISCRETE
from nrprob.data.storage.blocks import Blocks, gather_bytes
from nrprob.data.storage.stored import Survey
from nrprob.exceptions import short_repr
from nrprob.methods.conditional.columns import Columns
from nrprob.methods.conditional.streaming import group_sums, take_rows
from nrprob.methods.conditional.table_blocks import distinct_in_block

_KIND_ROWS = 1 << 13  # rows from which the types of the columns are inferred
_MOST_DISTINCT = 1000  # number of values at which a discrete column is refused


def collect_rows(
    seen: Survey, blocks: Blocks, chosen: np.ndarray, *arrays: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Collect chosen rows of a stored table in memory, from all processes of a distributed fit.

    Parameters
    ----------
    seen : statistics of the first pass over the rows
    blocks : blocks of the rows
    chosen : positions of the chosen rows among the rows of this process, ascending
    *arrays : arrays with one entry per chosen row

    Returns
    -------
    rows : (n, m) the chosen rows, process by process
    *arrays : for each of the given arrays, the arrays of all processes, concatenated
    """
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
    """Means (L, m) of the columns of stored rows by known group, and sizes (L,) of the groups."""
    mean = seen.moments.mean
    sums, sizes = blocks.map_sum(partial(group_sums, n_groups=seen.design.n_groups), mean)
    return mean + sums / np.maximum(sizes, 1)[:, None], sizes


def learn_columns(model: Any, seen: Survey, blocks: Blocks) -> Columns:
    """Infer the types of the columns from a subsample, and read all values of discrete columns.

    Columns that are discrete or constant in the subsample are read completely. Values that do not
    occur in the subsample are appended to the subsample. The types are then inferred as for a table
    in memory.

    Raises
    ------
    ValueError
        If a discrete column has too many values.
    """
    n = seen.n_samples
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.choice(n, min(n, _KIND_ROWS), replace=False))
    (sample,) = collect_rows(seen, blocks, chosen)
    settings = model.categorical, model.ordered
    of_sample = Columns.learn(seen.source.as_table(sample), *settings).columns
    candidates = [j for j, c in enumerate(of_sample) if c.kind in (*DISCRETE, CONSTANT)]
    step = partial(distinct_in_block, positions=tuple(candidates), most=_MOST_DISTINCT)
    parts = list(blocks.map_blocks(step)) if candidates else []
    if seen.rows.processes:
        parts = [part for sent in gather_bytes(pickle.dumps(parts)) for part in pickle.loads(sent)]
    others = {
        j: np.setdiff1d(np.concatenate(values), sample[:, j])
        for j, values in zip(candidates, zip(*parts, strict=True), strict=True)
    }
    size = max(map(len, others.values()), default=0)
    more = np.resize(sample, (size, sample.shape[1]))
    for j, values in others.items():
        more[: len(values), j] = values
    columns = Columns.learn(seen.source.as_table(np.concatenate([sample, more])), *settings)
    for column in columns.discrete:
        # Every block returned at most this many values of a column, so that some may be absent.
        if len(column.values) >= _MOST_DISTINCT:
            raise ValueError(
                f"discrete columns of stored rows must have fewer than {_MOST_DISTINCT} values; "
                f"got more in column {short_repr(column.name)}; merge values, or leave the column "
                "out of categorical and ordered"
            )
    return columns
