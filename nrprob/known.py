"""What a user may know beforehand, turned into arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np

from nrprob.exceptions import warn
from nrprob.frames import as_frame, is_frame, is_pandas, is_table, listed
from nrprob.validation import as_array

__all__ = ["Memberships"]


class Memberships:
    """Soft known structure: every row belongs to every known group with some probability.

    Parameters
    ----------
    probabilities : array-like of shape (n_samples, n_groups)
        p(group given row); rows sum to 1.

    Raises
    ------
    ValueError
        If an entry is negative or not finite, or a row does not sum to 1 within 1e-6.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import CCIB
    >>> from nrprob.known import Memberships
    >>> random = np.random.default_rng(0)
    >>> shares = random.dirichlet([0.3, 0.3], 40)
    >>> X = random.poisson(4.0, (40, 6)) + 3 * (shares[:, :1] > 0.5)
    >>> CCIB(2, random_state=0).fit(X, known=Memberships(shares)).labels_.shape
    (40,)
    """

    def __init__(self, probabilities: Any):
        z = plain(probabilities, "known memberships")
        if z.dtype.kind not in "biuf":
            raise ValueError(
                f"known memberships must be numbers; got dtype {z.dtype}; pass probabilities"
            )
        z = np.array(z, float)
        # Whose rows they are, where that is said: see `nrprob.frames.check_same_order`.
        self.index = probabilities.index if is_pandas(probabilities) else None
        if z.ndim != 2:
            raise ValueError(
                "known memberships must be a 2-D array of probabilities; "
                f"got {z.ndim} dimension(s); pass one row per sample and one column per group"
            )
        if not np.isfinite(z).all() or (z < 0).any() or (abs(z.sum(1) - 1) > 1e-6).any():
            raise ValueError(
                "known memberships must be probabilities; found a negative or missing entry, or a "
                "row that does not sum to 1; normalise the rows"
            )
        self.probabilities = z


@dataclass(frozen=True)
class Groups:
    """Known structure as arrays.

    Attributes
    ----------
    codes : int array of shape (n_samples,); all 0 where the structure is soft
    n_groups : int
    share : float array of shape (n_samples, n_groups) of soft memberships, or None
    """

    codes: np.ndarray
    n_groups: int
    share: np.ndarray | None = None

    @property
    def n_blocked(self) -> int:
        """Number of groups that rows can be sorted into."""
        return self.n_groups if self.share is None else 1


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of the rows of a fit, read once; see `read`.

    Attributes
    ----------
    kind : "nothing", "labels", "soft", "continuous", or "mixed": a frame of labels and of numbers
    n_samples : int
    given : what the user passed
    labelings : (n_samples, m) labels of "labels" and "mixed" as numbers, in the order of first
        appearance
    categories : of every labeling, the labels and their numbers
    """

    kind: str
    n_samples: int
    given: Any
    labelings: np.ndarray
    categories: list[dict[Any, int]] | None

    @property
    def modelled(self) -> bool:
        """Whether it holds numbers, of which a linear model makes use and nothing else does."""
        return self.kind in ("continuous", "mixed")

    @cached_property
    def product(self) -> tuple[np.ndarray, dict[tuple[int, ...], int]]:
        """Combinations (n_samples,) of labels, and the number of each that occurs."""
        if self.labelings.shape[1] == 1:
            codes = self.labelings[:, 0]
            return codes, {(c,): c for c in range(codes.max() + 1)}
        return factorize(self.labelings)

    @property
    def groups(self) -> Groups:
        """Groups of rows: of equal labels in all labelings, soft, or one that holds everything.

        Raises
        ------
        ValueError
            If the structure holds numbers.
        """
        if self.modelled:
            raise ValueError(_numbers(self.given))
        if self.kind == "labels":
            codes, combinations = self.product
            return Groups(codes, len(combinations))
        share = self.given.probabilities if self.kind == "soft" else None
        n_groups = 1 if share is None else share.shape[1]
        return Groups(np.zeros(self.n_samples, int), n_groups, share)

    def columns(self) -> np.ndarray:
        """Return ``labelings``; refuse what is no labels, and cannot be joined with others."""
        if self.kind == "soft":
            raise ValueError(_SOFT)
        if self.modelled:
            raise ValueError(_numbers(self.given))
        return self.labelings


def read(known: Any, n_samples: int) -> Known:
    """Read what a user passes as ``known``; what has been read is returned as it is.

    Raises
    ------
    ValueError
        If lengths differ, or a label is missing.
    """
    if isinstance(known, Known):
        return known
    none = np.empty((n_samples, 0), int)
    if known is None:
        return Known("nothing", n_samples, None, none, None)
    if is_table(known):
        known = as_frame(known)
    if isinstance(known, Memberships):
        if len(known.probabilities) != n_samples:
            raise ValueError(_length(len(known.probabilities), n_samples))
        return Known("soft", n_samples, known, none, None)
    if is_continuous(known):
        return Known("continuous", n_samples, known, none, None)
    numbers = _numeric(known)
    labels = known.loc[:, ~numbers] if numbers.any() else known
    encoded = [factorize(column) for column in _labelings(labels, n_samples)]
    codes = np.stack([codes for codes, _ in encoded], 1)
    kind = "mixed" if numbers.any() else "labels"
    return Known(kind, n_samples, known, codes, [categories for _, categories in encoded])


class KnownEncoder:
    """Turns the known structure of new rows into `Groups`, as it was done in the fit.

    Groups are numbered in the order in which they first appear, so that renaming them changes
    nothing at all downstream. Several labelings are combined to their product: a group is a
    combination of labels that occurs.
    """

    categories_: list[dict[Any, int]] | None

    def fit(self, known: Any, n_samples: int) -> Groups:
        """Learn the categories of ``known``, read or not, and encode it; see `Known.groups`."""
        known = read(known, n_samples)
        groups = known.groups
        self.soft_, self.n_groups_ = known.kind == "soft", groups.n_groups
        self.categories_ = known.categories
        if self.categories_ is not None:
            self.combinations_ = known.product[1]
        return groups

    def transform(self, known: Any, n_samples: int) -> Groups:
        """Encode the known structure of new rows with the categories learnt in `fit`.

        Raises
        ------
        ValueError
            If ``known`` is missing where the fit had one, superfluous where it had none, or holds a
            group that did not occur in the fit.
        """
        if self.soft_:
            if not isinstance(known, Memberships):
                raise ValueError(
                    "known must be Memberships, as it was in fit; "
                    f"got {type(known).__name__}; wrap the probabilities in known.Memberships"
                )
            soft = read(known, n_samples).groups
            if soft.n_groups != self.n_groups_:
                raise ValueError(
                    f"known has {soft.n_groups} groups; the fit had {self.n_groups_}; "
                    "pass the same columns"
                )
            return soft
        if self.categories_ is None:
            if known is not None:
                raise ValueError(
                    "known was given to predict but not to fit; the model has no use for it; "
                    "leave it out, or fit with known="
                )
            return Groups(np.zeros(n_samples, int), 1)
        if known is None:
            raise ValueError(_REQUIRED)
        columns = _labelings(known, n_samples)
        codes = _look_up(columns, self.categories_)
        groups = np.empty(n_samples, int)
        for i, row in enumerate(codes.tolist()):
            code = self.combinations_.get(tuple(row))
            if code is None:
                raise ValueError(
                    f"known has a combination of labels at row {i} that did not occur in fit; got "
                    f"{tuple(c[i] for c in columns)!r}; drop such rows or fit again with them"
                )
            groups[i] = code
        return Groups(groups, len(self.combinations_))


class DesignEncoder:
    """Turns known structure, of the fit or of new rows, into the columns of a linear model.

    Continuous columns are standardised. Labelings become one column of 0 and 1 per category but the
    first, so that their effects add up. The first column is 1 throughout; of a frame that has both,
    numbers come before labelings.
    """

    categories_: list[dict[Any, int]] | None
    _numbers: np.ndarray  # which columns of a frame hold numbers; none where it has no others

    def fit(self, known: Any, n_samples: int) -> np.ndarray:
        """Learn centre, scale and categories; returns the columns (n_samples, 1 + q).

        Raises
        ------
        ValueError
            If lengths differ, a value is missing or infinite, or no column varies.
        """
        known = read(known, n_samples)
        self.categories_, self._numbers = known.categories, np.zeros(0, bool)
        if known.kind == "mixed":
            self._numbers = _numeric(known.given)
        parts = []
        if known.modelled:
            given = known.given.loc[:, self._numbers] if known.kind == "mixed" else known.given
            parts.append(_covariates(given, n_samples))
        self.n_columns_ = parts[0].shape[1] if parts else 0
        if known.kind != "continuous":
            if known.kind == "soft":
                raise ValueError(_SOFT)
            parts.append(self._indicators(known.labelings))
        z = np.concatenate(parts, 1)
        q, width = self.n_columns_, z.shape[1]
        self._centre, self._scale = np.zeros(width), np.ones(width)
        self._centre[:q], self._scale[:q] = z[:, :q].mean(0), z[:, :q].std(0)
        # Relative to the values, because the mean of equal ones is off by rounding.
        self._varies = np.ones(width, bool)
        self._varies[:q] = self._scale[:q] > 1e-12 * abs(z[:, :q]).max(0)
        if not self._varies.any():
            raise ValueError(
                "known does not vary, so there is nothing to avoid; got constant columns only; "
                "leave known out"
            )
        dropped = [j for j, varies in enumerate(self._varies[:q]) if not varies]
        dropped += [j for j, names in enumerate(self.categories_ or []) if len(names) == 1]
        if dropped:
            warn(
                f"known has constant columns, which say nothing; found columns {dropped}; "
                "they are ignored"
            )
        return self._design(z)

    def transform(self, known: Any, n_samples: int) -> np.ndarray:
        """Columns (n_samples, 1 + q) of new rows, with what was learnt in `fit`.

        Raises
        ------
        ValueError
            If ``known`` is missing, or of another kind or number of columns than in the fit.
        """
        if known is None:
            raise ValueError(_REQUIRED)
        if self._numbers.any():
            return self._design(self._both(known, n_samples))
        if self.categories_ is not None:
            columns = _labelings(known, n_samples)
            return self._design(self._indicators(_look_up(columns, self.categories_)))
        if not is_continuous(known):
            raise ValueError(
                "known must be continuous, as it was in fit; "
                f"got {type(known).__name__}; pass a 2-D array of floats"
            )
        z = _covariates(known, n_samples)
        if z.shape[1] != self.n_columns_:
            raise ValueError(
                f"known has {z.shape[1]} columns; the fit had {self.n_columns_}; "
                "pass the same ones in the same order"
            )
        return self._design(z)

    def _both(self, known: Any, n_samples: int) -> np.ndarray:
        known = as_frame(known) if is_table(known) else known
        if not is_frame(known) or known.shape[1] != len(self._numbers):
            raise ValueError(
                f"known must be a frame of {len(self._numbers)} columns, as it was in fit; got "
                f"{type(known).__name__} of shape {np.shape(known)}; pass the same columns"
            )
        z = _covariates(known.loc[:, self._numbers], n_samples)
        columns = _labelings(known.loc[:, ~self._numbers], n_samples)
        assert self.categories_ is not None
        return np.concatenate([z, self._indicators(_look_up(columns, self.categories_))], 1)

    def _design(self, z: np.ndarray) -> np.ndarray:
        z = ((z - self._centre) / np.where(self._varies, self._scale, 1))[:, self._varies]
        return np.concatenate([np.ones((len(z), 1)), z], 1)

    def _indicators(self, codes: np.ndarray) -> np.ndarray:
        assert self.categories_ is not None
        sizes = [len(names) for names in self.categories_]
        parts = [codes[:, j, None] == np.arange(1, size) for j, size in enumerate(sizes)]
        return np.concatenate(parts, 1).astype(float)


def is_continuous(known: Any) -> bool:
    """Whether ``known`` is a table of floats: a 2-D array, or a frame of no other columns."""
    if known is None or isinstance(known, Memberships):
        return False
    if is_table(known):
        numbers = _numeric(as_frame(known))
        return bool(numbers.size and numbers.all())
    array = plain(known, "known")
    return array.ndim == 2 and array.dtype.kind == "f" and array.size > 0


def _numeric(known: Any) -> np.ndarray:
    """Which columns of a frame hold floats; none of what is no frame."""
    if not is_frame(known):
        return np.zeros(1, bool)
    kinds = [getattr(dtype, "kind", "O") for dtype in known.infer_objects().dtypes]
    return np.array([kind == "f" for kind in kinds], bool)


def _covariates(known: Any, n_samples: int) -> np.ndarray:
    """Columns of floats (n_samples, q); refuses what is missing."""
    if is_table(known):
        known = as_frame(known)
    if hasattr(known, "to_numpy"):
        z = known.to_numpy(np.float64, na_value=np.nan)
    else:
        z = plain(known, "known").astype(np.float64)
    if len(z) != n_samples:
        raise ValueError(_length(len(z), n_samples))
    if not np.isfinite(z).all():
        row, column = np.argwhere(~np.isfinite(z))[0]
        raise ValueError(
            "known must not contain NaN or infinity; "
            f"found {z[row, column]} at row {row}, column {column}; drop or impute such rows"
        )
    return z


def _look_up(columns: list[np.ndarray], categories: list[dict[Any, int]]) -> np.ndarray:
    """Codes (n, labelings) of labels, by the categories learnt in a fit."""
    if len(columns) != len(categories):
        raise ValueError(
            f"known has {len(columns)} labelings; the fit had {len(categories)}; "
            "pass the same ones in the same order"
        )
    codes = np.empty((len(columns[0]), len(columns)), int)
    for j, (column, names) in enumerate(zip(columns, categories, strict=True)):
        for i, value in enumerate(column.tolist()):
            code = names.get(value)
            if code is None:
                raise ValueError(
                    f"known has the label {value!r} at row {i}, which did not occur in fit; "
                    f"the fit had {some(names)}; drop such rows or fit again with them"
                )
            codes[i, j] = code
    return codes


def _length(given: int, n_samples: int) -> str:
    return (
        f"known has {given} labels for {n_samples} samples; "
        f"got inconsistent numbers of samples; pass one label per row of X"
    )


def some(values: Any) -> str:
    """The first few of the values, for a message."""
    shown = [repr(v) for v, _ in zip(values, range(5), strict=False)]
    return ", ".join(shown) + (", ..." if len(values) > 5 else "")


def _labelings(known: Any, n_samples: int) -> list[np.ndarray]:
    """Split ``known`` into 1-D arrays of labels, one per labeling; refuse what is not labels."""
    if is_table(known):
        known = as_frame(known).infer_objects()
        columns = [known.iloc[:, j] for j in range(known.shape[1])]
        if _numeric(known).any():
            raise ValueError(_numbers(known))
        arrays = [np.asarray(c) for c in columns]
    else:
        array = plain(known, "known")
        if array.ndim == 2 and array.dtype.kind in "fc":
            raise ValueError(_numbers(known))
        if array.ndim not in (1, 2) or array.size == 0:
            raise ValueError(
                f"known must be 1-D labels or a 2-D array of labelings; got shape {array.shape}; "
                "pass one label per row of X"
            )
        arrays = [array] if array.ndim == 1 else list(array.T)
    if not arrays:
        raise ValueError("known must hold a labeling; got a frame of no columns; leave known out")
    for array in arrays:
        if len(array) != n_samples:
            raise ValueError(_length(len(array), n_samples))
        if is_missing(array):
            raise ValueError(
                "known labels must be non-missing; found NaN or None; "
                "drop those rows or give them a group of their own"
            )
        _check_hashable(array)
    return arrays


_SOFT = "soft Memberships cannot be joined with other labelings; got Memberships; pass hard labels"
_REQUIRED = (
    "known is required to predict, because the model was fitted with it; got None; "
    "pass known= for the new rows"
)


def _numbers(known: Any) -> str:
    """What to say of numbers that are known where labels are needed."""
    what, got = "continuous known structure is", "a 2-D array of floats"
    if is_frame(known):
        numbers = _numeric(known)
        got = f"floats in {listed(known.columns[numbers])}"
        if not numbers.all():
            what = "known structure of labels and numbers together is"
            got += f" beside labels in {listed(known.columns[~numbers])}"
    return (
        f"{what} not supported by this estimator; got {got}; pass labels "
        "(1-D of any type, or 2-D of integers or strings), or known.Memberships for "
        "probabilities, or use CCIB, ResidualMixture or ResidualSpectral"
    )


def plain(values: Any, name: str) -> np.ndarray:
    """Labels or numbers as an array that holds what was passed, not what NumPy makes of it.

    Objects that are all numbers, with fractions, are floats; a list of numbers and text, of which
    NumPy would make text only, is an array of objects.

    Raises
    ------
    ValueError
        If entries are masked, or rows have different lengths.
    """
    array = as_array(values, name)
    if array.dtype.kind in "US" and not isinstance(values, np.ndarray):
        objects = np.asarray(values, object)
        return array if len({type(v) for v in objects.flat}) == 1 else objects
    if array.dtype.kind != "O" or not all(isinstance(v, Real) for v in array.flat):
        return array
    fractions = any(isinstance(v, float | np.floating) for v in array.flat)
    return array.astype(float) if fractions else array


def is_missing(array: np.ndarray) -> bool:
    """Whether an array of labels holds NaN, NaT, None or the like."""
    if array.dtype.kind in "fc":
        return bool(np.isnan(array).any())
    if array.dtype.kind == "O":
        import pandas as pd

        return bool(pd.isna(array).any())
    return array.dtype.kind in "mM" and bool(np.isnat(array).any())


def _check_hashable(array: np.ndarray) -> None:
    if array.dtype.kind != "O":
        return
    try:
        set(array.tolist())
    except TypeError as error:
        raise ValueError(
            f"known labels must be numbers, text or the like; got objects that cannot be compared "
            f"({error}); pass one number or text per row"
        ) from None


def factorize(array: np.ndarray) -> tuple[np.ndarray, dict[Any, int]]:
    """Code values, or rows of values, by order of first appearance: codes, and who has which."""
    if array.dtype.kind == "O":
        categories: dict[Any, int] = {}
        codes = np.array([categories.setdefault(v, len(categories)) for v in array.tolist()], int)
        return codes, categories
    values, first, codes = np.unique(array, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.argsort(order)
    names = values[order].tolist()
    if array.ndim == 2:
        names = [tuple(name) for name in names]
    return rank[codes.reshape(-1)], {name: i for i, name in enumerate(names)}
