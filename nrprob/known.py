"""What a user may know beforehand, turned into arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nrprob.data.frames import as_frame, is_frame, is_pandas, is_table, listed
from nrprob.data.labels import as_labels, factorize, plain, some
from nrprob.exceptions import short_repr, warn

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
                "known memberships must be numbers; got "
                f"{described(probabilities) if is_frame(probabilities) else f'dtype {z.dtype}'}; "
                "pass probabilities"
            )
        z = np.array(z, float)
        # Whose rows they are, where that is said: see `nrprob.data.frames.check_same_order`.
        self.index = probabilities.index if is_pandas(probabilities) else None
        if z.ndim != 2:
            raise ValueError(
                "known memberships must be a 2-D array of probabilities; "
                f"got {z.ndim} dimension(s); pass one row per sample and one column per group"
            )
        if not np.isfinite(z).all() or (z < 0).any() or (abs(z.sum(1) - 1) > 1e-6).any():
            raise ValueError(
                "known memberships must be probabilities; found a negative or missing entry, or a "
                f"row that does not sum to 1{_where(probabilities)}; normalise the rows"
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

    @property
    def where(self) -> str:
        """Which columns it is of, for a message: " in 'batch'", or nothing without names."""
        return _where(self.given)

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
                    f"{short_repr(tuple(c[i] for c in columns))}; drop such rows or fit again "
                    "with them"
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
                "known does not vary, so there is nothing to avoid; got constant columns only"
                f"{known.where}; leave known out"
            )
        dropped = [j for j, varies in enumerate(self._varies[:q]) if not varies]
        dropped += [q + j for j, names in enumerate(self.categories_ or []) if len(names) == 1]
        if dropped:
            names = names_of(known.given)
            if known.kind == "mixed":
                given = known.given.columns
                names = [*given[self._numbers], *given[~self._numbers]]
            warn(
                "known has constant columns, which say nothing; found columns "
                f"{[names[j] if names else j for j in dropped]}; they are ignored"
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
        name = repr(known.columns[column]) if is_frame(known) else column
        raise ValueError(
            "known must not contain NaN or infinity; "
            f"found {z[row, column]} at row {row}, column {name}; drop or impute such rows"
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
                    f"known has the label {short_repr(value)} at row {i}, which did not occur in "
                    f"fit; the fit had {some(names)}; drop such rows or fit again with them"
                )
            codes[i, j] = code
    return codes


def _length(given: int, n_samples: int) -> str:
    return (
        f"known has {given} labels for {n_samples} samples; "
        f"got inconsistent numbers of samples; pass one label per row of X"
    )


def _labelings(known: Any, n_samples: int) -> list[np.ndarray]:
    """Split ``known`` into 1-D arrays of labels, one per labeling; refuse what is not labels."""
    if is_table(known):
        known = as_frame(known).infer_objects()
        if _numeric(known).any():
            raise ValueError(_numbers(known))
        arrays = [np.asarray(known.iloc[:, j]) for j in range(known.shape[1])]
        wheres = [f" in column {name!r}" for name in known.columns]
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
        wheres = [f" in column {name!r}" for name in names_of(known)] or [""] * len(arrays)
    if not arrays:
        raise ValueError("known must hold a labeling; got a frame of no columns; leave known out")
    if len(arrays[0]) != n_samples:
        raise ValueError(_length(len(arrays[0]), n_samples))
    return [as_labels(array, where) for array, where in zip(arrays, wheres, strict=True)]


def names_of(known: Any) -> list[Any]:
    """Names of the columns that are known, where they have any."""
    if is_frame(known):
        return list(known.columns)
    name = known.name if is_pandas(known) else None
    return [] if name is None else [name]


def _where(known: Any) -> str:
    """Which columns are known, for a message; nothing of what has no names."""
    names = names_of(known)
    return f" in {listed(names)}" if names else ""


def described(known: Any) -> str:
    """What is known, for a message: "floats in 'age' beside labels in 'batch'", say."""
    if isinstance(known, Memberships):
        return "soft memberships"
    if not is_frame(known):
        return "a 2-D array of floats" if is_continuous(known) else "labels"
    numbers = _numeric(known)
    parts = (("floats", known.columns[numbers]), ("labels", known.columns[~numbers]))
    return " beside ".join(f"{what} in {listed(names)}" for what, names in parts if len(names))


_SOFT = "soft Memberships cannot be joined with other labelings; got Memberships; pass hard labels"
_REQUIRED = (
    "known is required to predict, because the model was fitted with it; got None; "
    "pass known= for the new rows"
)


def _numbers(known: Any) -> str:
    """What to say of numbers that are known where labels are needed."""
    what = "continuous known structure is"
    if is_frame(known) and not _numeric(known).all():
        what = "known structure of labels and numbers together is"
    return (
        f"{what} not supported by this estimator; got {described(known)}; pass labels "
        "(1-D of any type, or 2-D of integers or strings), or known.Memberships for "
        "probabilities, or use CCIB, ResidualMixture or ResidualSpectral"
    )
