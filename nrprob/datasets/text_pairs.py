"""Text counts with two crossed clusterings, from labelled documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from nrprob.data.labels import as_plain_array, check_hashable
from nrprob.data.validation import check_entries, check_random_state, check_rows
from nrprob.datasets.generators import RandomState, _check_fraction, _positive_int
from nrprob.datasets.sizes import Size, register_size, sparse_size
from nrprob.exceptions import short_repr
from nrprob.metrics.partitions import _encode_labels

__all__ = ["make_crossed_counts", "make_dialect_counts"]

_DTYPES = (np.float64, np.float32, np.int64, np.int32)  # sums do not overflow


def _crossed_size(X: Any, n_samples: int | None, **_: Any) -> Size:
    n, m = sparse.csr_array(X).shape
    n = n if n_samples is None else n_samples
    return sparse_size(n, m, n * m)


@register_size(_crossed_size)
def make_crossed_counts(
    X: Any,
    labels: Any,
    known: Sequence[Any],
    sought: Sequence[Any],
    n_samples: int | None = None,
    *,
    n_known: int = 1,
    n_sought: int = 1,
    random_state: RandomState = None,
) -> tuple[sparse.csr_array, NDArray[np.int64]]:
    """Make rows with two independent labelings, as sums of labelled rows.

    A new row is the sum of ``n_known`` rows of one class of ``known`` and ``n_sought`` rows of one
    class of ``sought``. Classes are sampled in proportion to their numbers of rows. One pass over
    the classes uses a row at most once; rows are used again only if there are further passes.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n_rows, n_features)
        Counts, such as counts of words in documents.
    labels : array-like of shape (n_rows,)
        Class of every row.
    known, sought : sequences of labels
        Two disjoint families of classes.
    n_samples : int, optional
        Number of new rows; None for the maximum number without using a row twice.
    n_known, n_sought : int, default=1
        Numbers of rows of each family that are summed; a larger number makes the labeling of this
        family more prominent.
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers.

    Returns
    -------
    X : scipy.sparse.csr_array of shape (n_samples, n_features)
        Counts, with the dtype and columns of the input.
    labels : ndarray of shape (n_samples, 2), dtype int64
        Positions of the two classes in ``known`` (column 0) and ``sought`` (column 1).

    Raises
    ------
    ValueError
        If counts are negative, lengths differ, a class is repeated, or a class has fewer rows than
        are summed.
    TypeError
        If a number is not an integer.

    See Also
    --------
    make_dialect_counts : Counts with a labeling and random dialects.
    nrprob.datasets.load : Real data sets, with labelled texts.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob.datasets import make_crossed_counts
    >>> counts = np.repeat(np.eye(4, dtype=int), 10, axis=0)
    >>> topic = np.repeat(["tea", "coffee", "chess", "go"], 10)
    >>> X, labels = make_crossed_counts(counts, topic, ["tea", "coffee"], ["chess", "go"])
    >>> X.shape, labels.shape
    ((20, 4), (20, 2))
    """
    X, labels, _ = _check_counts(X, labels)
    known, sought = _check_classes(known, "known"), _check_classes(sought, "sought")
    both = [*known, *sought]
    if len(set(both)) < len(both):
        raise ValueError(
            "known and sought must be different classes; "
            f"got known={short_repr(known)} and sought={short_repr(sought)}; name every class once"
        )
    # Rows of the classes of both families, with enough rows per class.
    rng = check_random_state(random_state)
    sides = []
    for name, classes, parts in (("known", known, n_known), ("sought", sought, n_sought)):
        parts = _positive_int(parts, f"n_{name}")
        if len(classes) == 0:
            raise ValueError(f"{name} must name classes; got none; pass at least one")
        members = [np.flatnonzero(labels == c) for c in classes]
        for c, rows in zip(classes, members, strict=True):
            if rows.size < parts:
                raise ValueError(
                    f"class {short_repr(c)} of {name} has too few rows; got {rows.size}, and "
                    f"{parts} are summed; leave it out or lower n_{name}"
                )
        sides.append((members, parts))
    if n_samples is None:
        n_samples = min(sum(rows.size // parts for rows in m) for m, parts in sides)
    n_samples = _positive_int(n_samples, "n_samples")
    check_entries("the chosen rows", n_samples * (sides[0][1] + sides[1][1]), "lower n_samples")
    # Sum the sampled rows of both families.
    total, columns = None, []
    for members, parts in sides:
        chosen, codes = _draw_tuples(members, parts, n_samples, rng)
        columns.append(codes)
        for rows in chosen.T:
            part = X[rows]
            total = part if total is None else total + part
    return sparse.csr_array(total), np.stack(columns, 1)


def _dialect_size(X: Any, n_dialects: int, **_: Any) -> Size:
    n, m = sparse.csr_array(X).shape
    return sparse_size(n, m * (1 + n_dialects), n * m, n_dialects * m)


@register_size(_dialect_size)
def make_dialect_counts(
    X: Any,
    labels: Any,
    n_dialects: int = 4,
    *,
    dropped: float = 0.3,
    respelt: float = 0.3,
    random_state: RandomState = None,
) -> tuple[sparse.csr_array, NDArray[np.int64]]:
    """Rewrite rows in random dialects, which drop some words and respell others.

    Dialects are assigned to the rows in equal numbers, independently of their labels.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n_samples, n_features)
        Counts of words.
    labels : array-like of shape (n_samples,)
        Class of every row.
    n_dialects : int, default=4
        Number of dialects.
    dropped : float, default=0.3
        Probability that a dialect lacks a word.
    respelt : float, default=0.3
        Probability that a dialect has a separate spelling of a word.
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers.

    Returns
    -------
    X : scipy.sparse.csr_array of shape (n_samples, n_features * (1 + n_dialects))
        Common words, then the spellings of every dialect. Rows without any word are dropped.
    labels : ndarray of shape (n_samples, 2), dtype int64
        Dialect (column 0), and position of the row's label among the sorted labels (column 1).

    Raises
    ------
    ValueError
        If counts are negative, lengths differ, or a probability is not in [0, 1].

    See Also
    --------
    make_crossed_counts : Sums of rows of two families of classes.
    nrprob.datasets.load : Real data sets, with labelled texts.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob.datasets import make_dialect_counts
    >>> topics = np.repeat([0, 1], 30)
    >>> counts = np.random.default_rng(0).poisson(3.0, (60, 40))
    >>> X, dialects = make_dialect_counts(counts, topics, random_state=0)
    >>> X.shape, dialects.shape
    ((60, 200), (60, 2))
    """
    X, _, codes = _check_counts(X, labels)
    n_dialects = _positive_int(n_dialects, "n_dialects")
    dropped, respelt = _check_fraction(dropped, "dropped"), _check_fraction(respelt, "respelt")
    rng = check_random_state(random_state)
    n, m = X.shape
    check_entries("the vocabularies of all dialects", n_dialects * m, "lower n_dialects")
    dialect = rng.permutation(np.arange(n) % n_dialects)
    lacks = rng.random_sample((n_dialects, m)) < dropped
    respells = rng.random_sample((n_dialects, m)) < respelt
    entries = X.tocoo()
    row, word = entries.coords
    spoken = dialect[row]
    stays = ~lacks[spoken, word]
    column = np.where(respells[spoken, word], word + m * (1 + spoken), word)
    counts = sparse.csr_array(
        (entries.data[stays], (row[stays], column[stays])), shape=(n, m * (1 + n_dialects))
    )
    has_words = np.diff(counts.indptr) > 0
    return counts[has_words], np.stack([dialect, codes], 1)[has_words].astype(np.int64)


def _check_counts(X: Any, labels: Any) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    """Validate counts and labels.

    Returns the counts, the labels as an array, and the position of every label among the sorted
    distinct labels.
    """
    from sklearn.utils import check_array

    X = sparse.csr_array(check_rows(X, check_array, accept_sparse="csr", dtype=_DTYPES))
    labels = as_plain_array(labels, "labels")
    if labels.shape != (X.shape[0],):
        raise ValueError(
            f"labels must be one per row of X; got shape {labels.shape} for {X.shape[0]} rows; "
            "pass a 1-D array of that length"
        )
    codes = _encode_labels(labels, "labels")
    if X.nnz and not (np.isfinite(X.data) & (X.data >= 0)).all():
        raise ValueError(
            f"X must hold finite counts, not negative; got {X.data.min()} as the least entry; "
            "pass raw counts"
        )
    return X, labels, codes


def _check_classes(classes: Any, name: str) -> list[Any]:
    """Validate the argument ``name``, a family of classes; return a list of hashable labels."""
    values = classes.tolist() if isinstance(classes, np.ndarray) else classes
    if not isinstance(values, list | tuple | set | frozenset):
        raise TypeError(
            f"{name} must list classes; got {short_repr(classes)}; pass a list of labels"
        )
    values = list(values)
    check_hashable(np.fromiter(values, object, len(values)), f" in {name}")
    return values


def _draw_tuples(
    members: list[np.ndarray], parts: int, n_samples: int, rng: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Sample ``n_samples`` tuples of ``parts`` rows; all rows of a tuple have the same class.

    ``members`` has the indices of the rows of every class. Returns indices (n_samples, parts) of
    rows, and the class (n_samples,) of every tuple as a position in ``members``.
    """
    rows, codes, n = [], [], 0
    while n < n_samples:
        # One pass over all rows; further passes if more tuples are needed.
        tuples, classes = [], []
        for c, member in enumerate(members):
            n_tuples = member.size // parts
            tuples.append(rng.permutation(member)[: n_tuples * parts].reshape(n_tuples, parts))
            classes.append(np.full(n_tuples, c))
        order = rng.permutation(sum(map(len, tuples)))
        rows.append(np.concatenate(tuples)[order])
        codes.append(np.concatenate(classes)[order])
        n += order.size
    return np.concatenate(rows)[:n_samples], np.concatenate(codes)[:n_samples].astype(np.int64)
