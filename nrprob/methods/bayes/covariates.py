"""Encode known structure for the sampler, as known groups or as columns with linear effects."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nrprob.data.design import Design
from nrprob.statistics.rows import padded_count

MAX_COLUMNS = 500  # largest number of columns with linear effects


def effects_width(design: Design) -> int:
    """Number of columns with linear effects, padded so that fits share compiled programs.

    Raises ValueError if there are more than `MAX_COLUMNS` columns.
    """
    columns = design.columns if design.memberships is None else design.memberships
    if columns is None:
        return 0
    if columns.shape[1] > MAX_COLUMNS:
        raise ValueError(
            f"known may have up to {MAX_COLUMNS} columns, of covariates, memberships or labels; "
            f"got {columns.shape[1]}; pass fewer, or set multi='product' if they are labels"
        )
    return padded_count(columns.shape[1], design.n_samples)


def with_linear_effects(design: Design, width: int) -> Design:
    """Encode known structure as groups, or as ``width`` columns with linear effects.

    Groups do not change. Memberships become columns. Columns are padded with zeros to ``width``.
    """
    columns, n_groups = design.columns, design.n_groups
    if design.memberships is not None:
        columns, n_groups = design.memberships, 1
    if columns is not None:
        columns = np.pad(columns, ((0, 0), (0, max(width - columns.shape[1], 0))))
    codes = design.codes.astype(np.int32)
    return replace(design, codes=codes, n_groups=n_groups, memberships=None, columns=columns)
