"""Text counts with two crossed clusterings, from joined or respelt labelled documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from nrprob.data.labels import check_hashable, plain
from nrprob.data.validation import check_entries, check_random_state, check_rows
from nrprob.datasets.generators import RandomState, _fraction, _positive_int
from nrprob.datasets.sizes import Size, sized, stored
from nrprob.exceptions import short_repr
from nrprob.metrics.partitions import _encode_labels

__all__ = ["make_crossed_counts", "make_dialect_counts"]

_TYPES = (np.float64, np.float32, np.int64, np.int32)  # whose sums do not overflow


def _crossed_size(X: Any, n_samples: int | None, **_: Any) -> Size:
    n, m = sparse.csr_array(X).shape
    n = n if n_samples is None else n_samples
    return stored(n, m, n * m)


@sized(_crossed_size)
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
    """Join random rows of two families of classes, so that the two labelings are independent.

    A row is the sum of ``n_known`` rows of one class of ``known`` and ``n_sought`` rows of one
    class of ``sought``. Which class it is follows the numbers of rows that the classes have. Every
    row of `X` serves once before any serves again.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n_rows, n_features)
        Counts, of documents for instance.
    labels : array-like of shape (n_rows,)
        Class of every row.
    known, sought : sequences of labels
        Two families of classes that have none in common.
    n_samples : int, optional
        Number of rows to make; None makes as many as are possible without using a row twice.
    n_known, n_sought : int, default=1
        Numbers of rows that are summed: more of the one make it the stronger.
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers.

    Returns
    -------
    X : scipy.sparse.csr_array of shape (n_samples, n_features)
        Counts, of the type of those given; all columns are kept.
    labels : ndarray of shape (n_samples, 2), dtype int64
        Places of the two classes in ``known`` (column 0) and ``sought`` (column 1).

    Raises
    ------
    ValueError
        If counts are negative, lengths differ, or a class occurs twice or has fewer rows than are
        summed.
    TypeError
        If a number is not an integer.

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
    X, labels, _ = _checked(X, labels)
    known, sought = _classes(known, "known"), _classes(sought, "sought")
    both = [*known, *sought]
    if len(set(both)) < len(both):
        raise ValueError(
            "known and sought must be different classes; "
            f"got known={short_repr(known)} and sought={short_repr(sought)}; name every class once"
        )
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
    total, columns = None, []
    for members, parts in sides:
        chosen, codes = _draw(members, parts, n_samples, rng)
        columns.append(codes)
        for rows in chosen.T:
            part = X[rows]
            total = part if total is None else total + part
    return sparse.csr_array(total), np.stack(columns, 1)


def _dialect_size(X: Any, n_dialects: int, **_: Any) -> Size:
    n, m = sparse.csr_array(X).shape
    return stored(n, m * (1 + n_dialects), n * m, n_dialects * m)


@sized(_dialect_size)
def make_dialect_counts(
    X: Any,
    labels: Any,
    n_dialects: int = 4,
    *,
    dropped: float = 0.3,
    respelt: float = 0.3,
    random_state: RandomState = None,
) -> tuple[sparse.csr_array, NDArray[np.int64]]:
    """Let every row be written in a random dialect, which lacks some words and respells others.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n_samples, n_features)
        Counts of words.
    labels : array-like of shape (n_samples,)
        Class of every row.
    n_dialects : int, default=4
        Number of dialects; rows are dealt evenly.
    dropped : float, default=0.3
        Probability that a dialect lacks a word.
    respelt : float, default=0.3
        Probability that it has a spelling of its own for a word that it has.
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers.

    Returns
    -------
    X : scipy.sparse.csr_array of shape (n_samples, n_features * (1 + n_dialects))
        The common words, then the spellings of every dialect. Rows that are left without a word
        are dropped.
    labels : ndarray of shape (n_samples, 2), dtype int64
        Dialect, and place of the row's label among the sorted labels.

    Raises
    ------
    ValueError
        If counts are negative, lengths differ or a probability is none.

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
    X, _, codes = _checked(X, labels)
    n_dialects = _positive_int(n_dialects, "n_dialects")
    dropped, respelt = _fraction(dropped, "dropped"), _fraction(respelt, "respelt")
    rng = check_random_state(random_state)
    n, m = X.shape
    check_entries("the vocabularies of all dialects", n_dialects * m, "lower n_dialects")
    dialect = rng.permutation(np.arange(n) % n_dialects)
    lacks = rng.random_sample((n_dialects, m)) < dropped
    own = rng.random_sample((n_dialects, m)) < respelt
    entries = X.tocoo()
    row, word = entries.coords
    speaks = dialect[row]
    stays = ~lacks[speaks, word]
    column = np.where(own[speaks, word], word + m * (1 + speaks), word)
    spoken = sparse.csr_array(
        (entries.data[stays], (row[stays], column[stays])), shape=(n, m * (1 + n_dialects))
    )
    some = np.diff(spoken.indptr) > 0
    return spoken[some], np.stack([dialect, codes], 1)[some].astype(np.int64)


def _checked(X: Any, labels: Any) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    """Counts, one label per row, and the places of these among the sorted labels."""
    from sklearn.utils import check_array

    X = sparse.csr_array(check_rows(X, check_array, accept_sparse="csr", dtype=_TYPES))
    labels = plain(labels, "labels")
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


def _classes(given: Any, name: str) -> list[Any]:
    """Classes as a list; none is the name of something that cannot be compared."""
    values = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(values, list | tuple | set | frozenset):
        raise TypeError(f"{name} must list classes; got {short_repr(given)}; pass a list of labels")
    values = list(values)
    check_hashable(np.fromiter(values, object, len(values)), f" in {name}")
    return values


def _draw(
    members: list[np.ndarray], parts: int, n_samples: int, rng: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n_samples, parts), each tuple of one class, and the classes (n_samples,)."""
    rows, codes, n = [], [], 0
    while n < n_samples:
        # One pass through all rows; a second one only where more are asked for.
        tuples, classes = [], []
        for c, member in enumerate(members):
            whole = member.size // parts
            tuples.append(rng.permutation(member)[: whole * parts].reshape(whole, parts))
            classes.append(np.full(whole, c))
        order = rng.permutation(sum(map(len, tuples)))
        rows.append(np.concatenate(tuples)[order])
        codes.append(np.concatenate(classes)[order])
        n += order.size
    return np.concatenate(rows)[:n_samples], np.concatenate(codes)[:n_samples].astype(np.int64)
