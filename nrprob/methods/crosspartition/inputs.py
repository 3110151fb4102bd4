"""Read and validate the inputs of cross-partition clustering: counts and subsets.

There are n rows x with counts of m features y, and V subsets w. A row is in one subset, or it has
probabilities p(w|x).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from nrprob.data.design import Design, DesignEncoder
from nrprob.data.frames import as_frame, describe_columns, float_columns, is_frame, is_table
from nrprob.data.labels import as_plain_array
from nrprob.exceptions import DegenerateClusterWarning, warn
from nrprob.information import mutual_information
from nrprob.known import Memberships
from nrprob.statistics.features import raise_where

_SAME = 1e-3  # subsets with less I(Y;W) in nats do not differ in their features
_SMALL, _FEW = 10**5, 0.1  # dense counts with more entries and fewer nonzeros become sparse
_MISSING = 0.5  # warn if a larger share of the features is missing from some subset


@dataclass(frozen=True)
class Subsets:
    """Assignment of the rows to V subsets, and the names of the subsets.

    Attributes
    ----------
    design : subset of every row, or probabilities p(w|x)
    names : (V,) labels of the subsets as the user passed them; 0, ..., V - 1 for probabilities
    """

    design: Design
    names: np.ndarray

    @property
    def share(self) -> np.ndarray:
        """Probabilities p(w|x) (n, V); one-hot if every row is in one subset."""
        design = self.design
        if design.memberships is None:
            return np.eye(design.n_groups)[design.codes]
        return design.memberships


def read_subsets(subsets: Any, n: int) -> Subsets:
    """Read subsets from labels (n,) or probabilities p(w|x) (n, V); None is a single subset.

    ``n`` is the number of rows.

    Raises
    ------
    ValueError
        If the number of labels differs from n, a label is missing, rows of probabilities do not
        sum to 1, or a subset has no weight.
    """
    try:
        subsets = as_frame(subsets) if is_table(subsets) else subsets
        if is_frame(subsets):
            _check_columns(subsets)
        if subsets is not None and not isinstance(subsets, Memberships):
            array = as_plain_array(subsets, "known")
            if array.ndim == 2 and (array.shape[1] > 1 or not is_frame(subsets)):
                subsets = array[:, 0] if array.shape[1] == 1 else Memberships(subsets)
        design = DesignEncoder().fit(subsets, n)
    except ValueError as error:
        raise ValueError(re.sub("^known", "subsets", str(error))) from None
    share = design.memberships
    if share is not None and not share.any(0).all():
        raise ValueError(
            f"every subset needs rows; got no probability for column "
            f"{int((~share.any(0)).argmax())} of subsets; leave it out"
        )
    if design.kind != "labels":
        return Subsets(design, np.arange(design.n_groups))
    names = np.empty(design.n_groups, object)
    names[:] = [label for (label,) in design.group_labels]
    typed = np.array(list(names))
    return Subsets(design, typed if typed.ndim == 1 and typed.dtype.kind in "biufUS" else names)


def _check_columns(frame: Any) -> None:
    """Raise ValueError unless a frame has one label column, or one numeric column per subset."""
    is_float = float_columns(frame)
    kinds = {getattr(dtype, "kind", "O") for dtype in frame.dtypes}
    if is_float.all() if len(is_float) == 1 else not kinds <= {*"biuf"}:
        got = describe_columns(frame.columns[is_float], frame.columns[~is_float])
        raise ValueError(
            "known must be one column of labels, or one column of probabilities per "
            f"group; got {got}; pass one of these"
        )


def read_counts(X: Any) -> tuple[Any, np.ndarray]:
    """Convert counts ``X`` (n, m) to distributions p(y|x) of the rows.

    The distribution of a row without counts is 0; the function warns of such rows.

    Returns
    -------
    rows : (n, m) p(y|x) in float64
    totals : (n,) sums of the counts of the rows, divided by the largest count of ``X``

    Raises
    ------
    ValueError
        If a count is negative.
    """
    raise_where(X, lambda v: v < 0, "features must be counts", "shift or drop such columns")
    X = X.astype(np.float64)
    X = X / (float(X.max()) or 1.0)
    totals = np.asarray(X.sum(1)).ravel()
    empty = np.flatnonzero(totals == 0)
    if empty.size:
        warn(
            f"row {empty[0]} has no counts; found {empty.size} such row(s), which have no weight "
            "and are assigned to the largest cluster; drop them"
        )
    scale = 1 / np.where(totals > 0, totals, 1)
    if not sparse.issparse(X) and X.size > _SMALL and np.count_nonzero(X) < _FEW * X.size:
        X = sparse.csr_array(X)
    if sparse.issparse(X):
        return sparse.csr_array(sparse.diags_array(scale) @ X), totals
    return X * scale[:, None], totals


def row_masses(totals: np.ndarray, weighting: str) -> np.ndarray:
    """Weights p(x) (n,) of rows with the sums ``totals`` (n,) of their counts.

    Rows have equal weights if ``weighting`` is "equal"; rows without counts have the weight 0.
    """
    mass = totals if weighting == "counts" else (totals > 0).astype(float)
    return mass / (mass.sum() or 1.0)


def warn_of_subsets(
    rows: Any, mass: np.ndarray, subsets: Subsets, subsets_given: bool, k: int
) -> None:
    """Warn of subsets that are uninformative or small, or that lack many features.

    Parameters
    ----------
    rows : (n, m) p(y|x)
    mass : (n,) p(x)
    subsets : the subsets
    subsets_given : whether the user passed subsets
    k : number of clusters

    Raises
    ------
    ValueError
        If every row is a separate subset.
    """

    def warn_degenerate(message: str) -> None:
        warn(message, DegenerateClusterWarning)

    share, names = subsets.share, subsets.names
    if share.shape[1] == 1:
        what = "subsets=None" if not subsets_given else "one subset for all rows"
        return warn_degenerate(
            f"there is one subset, so clusters need not be shared; got {what}; pass the subsets, "
            "or use IB"
        )
    if share.shape[1] == len(share) == subsets.design.n_hard_groups:
        raise ValueError(
            "every row has its own subset, so no cluster can be shared; got "
            f"{len(share)} subsets for as many rows; pass fewer subsets"
        )
    joint = (share * mass[:, None]).T @ rows
    if mutual_information(joint / joint.sum()) < _SAME:
        warn_degenerate(
            "the subsets do not differ in their features, so there is no structure to remove; got "
            f"less than {_SAME} nats of I(Y;W); IB gives the same clusters"
        )
    sizes = share.sum(0)
    if sizes.min() < k:
        small = names[int(sizes.argmin())]
        warn_degenerate(
            f"a subset with fewer rows than clusters cannot contain all clusters; got "
            f"{sizes.min():g} row(s) in subset {small!r} for n_clusters={k}; merge small subsets"
        )
    occurs = joint > 0
    missing = (occurs.any(0) & ~occurs.all(0)).sum() / max(occurs.any(0).sum(), 1)
    if missing > _MISSING:
        warn_degenerate(
            f"features of a single subset can form a separate cluster; got {missing:.0%} of "
            "the features missing from some subset; remove such features"
        )
