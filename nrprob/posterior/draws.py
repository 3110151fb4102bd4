"""Check draws of labels, and number their clusters so that label switching has no effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from nrprob.data.validation import as_array
from nrprob.exceptions import short_repr

__all__ = [
    "Draws",
    "as_draws",
    "as_labels",
    "as_pairs",
    "by_dims",
    "canonical",
    "check_positions",
    "read_counts",
    "read_draws",
]

_BLOCK = 2**22
"""Maximum number of entries of a temporary array."""


@dataclasses.dataclass(frozen=True)
class Draws:
    """Weighted partitions of the same samples.

    Attributes
    ----------
    codes : ndarray of shape (n_draws, n_samples), int32
        Clusters of each draw, numbered from 0 in order of first appearance.
    weights : ndarray of shape (n_draws,)
        Weights of the draws, non-negative with sum 1.
    batch : tuple of int
        Lengths of the axes before the samples: (chain, draw) or (draw,).
    """

    codes: np.ndarray
    weights: np.ndarray
    batch: tuple[int, ...]

    @property
    def n_draws(self) -> int:
        """Number of draws over all chains."""
        return self.codes.shape[0]

    @property
    def n_samples(self) -> int:
        """Number of samples of each partition."""
        return self.codes.shape[1]

    @cached_property
    def n_clusters(self) -> np.ndarray:
        """Numbers of clusters (n_draws,) of the draws."""
        return self.codes.max(axis=1).astype(np.int64) + 1

    @cached_property
    def offsets(self) -> np.ndarray:
        """Index of each draw's first cluster in the list of all clusters, shape (n_draws + 1,).

        The list has the clusters of one draw after the other. The last entry is the length of
        the list.
        """
        return np.concatenate([[0], np.cumsum(self.n_clusters)])

    def ids(self, low: int = 0, high: int | None = None) -> np.ndarray:
        """Indices (high - low, n_samples) of the clusters of all samples in some draws.

        An index is a position in the list of the clusters of draws ``low`` to ``high - 1``.
        """
        high = self.n_draws if high is None else high
        start = self.offsets[low:high] - self.offsets[low]
        return self.codes[low:high] + start[:, None]

    @cached_property
    def sizes(self) -> np.ndarray:
        """Sizes of all clusters of all draws, shape (offsets[-1],)."""
        return np.concatenate([np.bincount(row) for row in self.codes])

    def blocks(self, n_entries: int) -> list[tuple[int, int]]:
        """Divide the draws into ranges (start, stop) of at most `n_entries` labels each.

        If a single draw has more labels, every range has one draw.
        """
        step = max(1, n_entries // self.n_samples)
        return [(a, min(a + step, self.n_draws)) for a in range(0, self.n_draws, step)]

    def crossed(self, codes: np.ndarray) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """Contingency tables of every draw and one partition, in blocks of draws.

        Parameters
        ----------
        codes : ndarray of int of shape (n_samples,)
            Clusters 0 .. k-1 of the partition.

        Yields
        ------
        a, b : int
            Range of draws of the block.
        first : ndarray of shape (b - a + 1,)
            Index of each draw's first cluster in the list of the clusters of the block.
        counts : ndarray of shape (n_listed, k)
            Numbers of samples in both a cluster of a draw and a cluster of the partition.
        """
        k = int(codes.max()) + 1
        # A draw has n_samples labels, and a table of at most widest * k counts; neither may exceed
        # the limit of a block.
        widest = int(self.n_clusters.max())
        step = min(_BLOCK, max(self.n_samples, _BLOCK * self.n_samples // (k * widest)))
        for a, b in self.blocks(step):
            first = self.offsets[a : b + 1] - self.offsets[a]
            cells = self.ids(a, b) * k + codes
            counts = np.bincount(cells.ravel(), minlength=int(first[-1]) * k)
            yield a, b, first, counts.reshape(-1, k)

    def distinct(self) -> Draws:
        """The distinct partitions of positive total weight, in order of first appearance."""
        places: dict[bytes, int] = {}
        which = np.array([places.setdefault(row.tobytes(), len(places)) for row in self.codes])
        weights = np.bincount(which, self.weights)
        first = np.unique(which, return_index=True)[1]
        positive = weights > 0
        return Draws(self.codes[first[positive]], weights[positive], (int(positive.sum()),))

    def thinned(self, n_draws: int) -> Draws:
        """Select at most `n_draws` partitions, evenly spaced in the cumulative weight."""
        if self.n_draws <= n_draws:
            return self
        steps = (np.arange(n_draws) + 0.5) / n_draws
        ladder = np.cumsum(self.weights)
        taken = np.searchsorted(ladder / ladder[-1], steps)
        which, counts = np.unique(taken, return_counts=True)
        return Draws(self.codes[which], counts / n_draws, (len(which),))


def canonical(labels: np.ndarray) -> np.ndarray:
    """Number the clusters of each row of labels from 0 in order of first appearance.

    Parameters
    ----------
    labels : ndarray of shape (n_draws, n_samples), integer

    Returns
    -------
    ndarray of shape (n_draws, n_samples), int32
    """
    n_draws, n = labels.shape
    low, high = int(labels.min()), int(labels.max())
    codes = np.empty(labels.shape, dtype=np.int32)
    if high - low >= 4 * n + 64:  # a table of labels would be mostly empty
        for s, row in enumerate(labels):
            _, first, inverse = np.unique(row, return_index=True, return_inverse=True)
            codes[s] = np.argsort(np.argsort(first))[inverse]
        return codes
    width = high - low + 1
    step = max(1, 2**22 // max(width, n))
    backwards = np.arange(n - 1, -1, -1)
    for a in range(0, n_draws, step):
        names = labels[a : a + step].astype(np.int64) - low
        rows = np.arange(len(names))[:, None]
        first = np.full((len(names), width), n)
        first[rows, names[:, ::-1]] = backwards  # the last write to an index stays
        rank = np.empty_like(first)
        rank[rows, np.argsort(first, axis=1, kind="stable")] = np.arange(width)
        codes[a : a + step] = rank[rows, names]
    return codes


def by_dims(values: Any, what: str, n_events: int | None = None) -> np.ndarray:
    """Return values as an array with the axes (chain, draw, *events) or (draw, *events).

    In a DataArray, the names of the dimensions determine the axes. Other arrays are not changed.

    Parameters
    ----------
    values : array or DataArray
    what : str
        Name of the values in messages.
    n_events : int, optional
        Required number of dimensions of a DataArray besides chain and draw; any number by default.
    """
    dims = getattr(values, "dims", None)
    if dims is None:
        return as_array(values, what)
    batch = [name for name in ("chain", "draw") if name in dims]
    events = [name for name in dims if name not in batch]
    if "draw" not in dims or n_events not in (None, len(events)):
        others = "others" if n_events is None else f"{n_events} of other names"
        raise ValueError(
            f"dimensions of {what} are 'draw', perhaps 'chain', and {others}; got {tuple(dims)}; "
            "rename them, or pass .values with the axes in the order (chain, draw, ...)"
        )
    return np.asarray(values.transpose(*batch, *events))


def _draws_of_fit(draws: Any) -> Any:
    """Return the draws of a fitted estimator, a Dataset; return other input unchanged."""
    if isinstance(draws, type) or not hasattr(draws, "get_params"):
        return draws
    if not hasattr(draws, "posterior_"):
        raise ValueError(
            f"an estimator must have draws in posterior_; got {short_repr(draws)} without draws; "
            "pass a fitted MDLMixture, or an array of labels"
        )
    return draws.posterior_


def read_counts(draws: Any) -> np.ndarray | None:
    """Variable ``n_clusters`` (chain, draw) of a fit or a container.

    The result is None if the variable is absent, or does not hold integers.
    """
    draws = _draws_of_fit(draws)
    group = getattr(draws, "posterior", draws)
    if "n_clusters" not in getattr(group, "data_vars", ()):
        return None
    variable = group["n_clusters"]
    if "draw" not in variable.dims or not {"chain", "draw"} >= set(variable.dims):
        return None
    counts = np.atleast_2d(by_dims(variable, "n_clusters", 0))
    is_integer = (
        counts.size > 0 and counts.dtype.kind in "iuf" and np.all(counts == np.rint(counts))
    )
    return counts.astype(np.int64) if is_integer else None


def _labels_variable(draws: Any) -> Any:
    """Return the labels of a fit, InferenceData, DataTree or Dataset, or other input unchanged."""
    draws = _draws_of_fit(draws)
    where, group = "draws", draws
    for name in ("posterior", "partition"):  # a group "partition" takes precedence
        if len(getattr(getattr(draws, name, None), "data_vars", ())):
            where, group = f"draws.{name}", getattr(draws, name)
    if not hasattr(group, "data_vars") or not len(group.data_vars):
        if hasattr(draws, "groups") or hasattr(draws, "data_vars"):
            raise ValueError(
                "a container of draws has a group 'partition' or 'posterior'; got "
                f"{type(draws).__name__} without any variable there; pass the array of labels"
            )
        return draws
    names = list(group.data_vars)
    if len(names) > 1 and "labels" not in names:
        raise ValueError(
            "a container of draws has a variable 'labels', or one variable only; got "
            f"{', '.join(map(repr, names))}; pass the labels, as in {where}[{names[0]!r}]"
        )
    return group["labels" if "labels" in names else names[0]]


def _as_integers(array: np.ndarray, what: str) -> np.ndarray:
    if array.dtype == bool:
        return array.astype(np.int8)
    # Integers are often stored as floats: in files, and in arrays with missing values.
    is_integer = array.dtype.kind == "f" and bool(
        np.all(np.isfinite(array) & (array == np.rint(array)))
    )
    if array.dtype.kind not in "iu" and not is_integer:
        raise TypeError(
            f"{what} must be integers; got dtype {array.dtype}; "
            "encode other labels with numpy.unique(..., return_inverse=True) or pandas.factorize, "
            "or sample labels from probabilities with draw_labels"
        )
    if is_integer or array.dtype == np.uint64:
        if np.abs(array).max(initial=0) < 2**62:
            return array.astype(np.int64)
        # Differences of labels are int64, so labels outside this range are replaced by their ranks.
        return np.unique(array, return_inverse=True)[1].reshape(array.shape)
    return array


def read_draws(draws: Any) -> np.ndarray:
    """Read integer labels from an array or a container; the number of axes is not checked."""
    what = "draws of labels"
    return _as_integers(by_dims(_labels_variable(draws), what, 1), what)


def as_draws(draws: Any, weights: Any = None) -> Draws:
    """Check draws of labels and their weights, and convert them to `Draws`.

    Parameters
    ----------
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Labels, which are arbitrary within each draw. Containers of labels are read as described in
        `nrprob.posterior`.
    weights : array of shape (chain, draw) or (draw,), optional
        Non-negative weights of the draws, any scale; equal by default.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If `draws` has other axes or is empty, or `weights` does not match it.
    """
    labels = read_draws(draws)
    if labels.ndim not in (2, 3):
        raise ValueError(
            "draws of labels have the axes (chain, draw, observation) or (draw, observation); "
            f"got shape {labels.shape}; "
            + ("pass labels[None] for a single draw" if labels.ndim == 1 else "reshape them")
        )
    if labels.size == 0:
        raise ValueError(
            f"draws of labels must not be empty; got shape {labels.shape}; "
            "pass at least one draw of at least one sample"
        )
    batch = labels.shape[:-1]
    codes = canonical(labels.reshape(-1, labels.shape[-1]))
    if weights is None:
        return Draws(codes, np.full(len(codes), 1 / len(codes)), batch)
    values = by_dims(weights, "weights of draws", 0)
    if values.dtype.kind not in "biuf":
        raise TypeError(
            f"weights of draws must be numbers; got dtype {values.dtype}; "
            "convert them to floats first"
        )
    values = values.astype(float)
    if values.shape != batch:
        raise ValueError(
            f"weights must have one entry per draw; got shape {values.shape} for draws of shape "
            f"{batch}; pass the axes of the draws without the samples"
        )
    if not (np.all(np.isfinite(values)) and values.min() >= 0 and values.sum() > 0):
        raise ValueError(
            "weights must be finite, non-negative and not all 0; "
            f"got values from {values.min()} to {values.max()}; exponentiate log weights first"
        )
    values = values.ravel() / values.max()  # their sum may overflow
    return Draws(codes, values / values.sum(), batch)


def as_labels(labels: Any, n_samples: int, what: str) -> np.ndarray:
    """Check one partition of `n_samples` samples; returns its integer labels unchanged."""
    array = _as_integers(as_array(labels, what), what)
    if array.shape != (n_samples,):
        raise ValueError(
            f"{what} must have one label per sample; got shape {array.shape} for draws of "
            f"{n_samples} samples; pass an array of shape ({n_samples},)"
        )
    return array


def as_pairs(pairs: Any, n_samples: int) -> np.ndarray:
    """Check positions of pairs of samples, and return them as an array (n_pairs, 2)."""
    array = as_array(pairs, "pairs")
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        raise ValueError(
            f"pairs must be an integer array of shape (n_pairs, 2); got dtype {array.dtype} and "
            f"shape {array.shape}; pass positions of samples"
        )
    return check_positions(array, n_samples, "pairs")


def check_positions(array: np.ndarray, n_samples: int, what: str) -> np.ndarray:
    """Return an array; raise ValueError unless its entries are positions of `n_samples` samples.

    ``what`` is the name of the array in the message.
    """
    if array.size and not (array.min() >= 0 and array.max() < n_samples):
        raise ValueError(
            f"{what} must be positions of samples; got {array.min()} to {array.max()} for "
            f"{n_samples} samples; count from 0"
        )
    return array
