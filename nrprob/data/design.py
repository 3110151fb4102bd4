"""Encode known structure: groups, soft memberships, or columns of a linear model.

Shapes: n samples, m known labelings, q columns of a linear model. Labels, and combinations of
labels, are numbered; these integers are their codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from nrprob.data.frames import (
    as_frame,
    describe_columns,
    float_columns,
    is_pandas,
    is_table,
    quote_names,
)
from nrprob.data.labels import as_labels, as_plain_array, factorize, list_examples
from nrprob.exceptions import short_repr, warn
from nrprob.known import Memberships

# Numbers with decimals are refused as labels if they have more distinct values than this, and more
# than half as many as there are rows.
_MOST_FLOAT_LABELS = 20


@dataclass(frozen=True, eq=False)
class Design:
    """Known structure of n samples as arrays.

    Attributes
    ----------
    kind : "nothing", "labels", "soft" (memberships), "continuous" (covariates) or "mixed" (labels
        and covariates)
    codes : int array of shape (n,)
        Known group of every sample. All 0 if ``memberships`` or ``columns`` hold the structure.
    n_groups : int
        Number of known groups.
    memberships : float array of shape (n, n_groups), or None
        Probability of every known group, for every sample. None unless known groups are soft.
    columns : float array of shape (n, q), or None
        Columns of a linear model with additive effects, without the constant column. None if the
        design has no linear model.
    labelings : int array of shape (n, m)
        Codes of the labels of every labeling, numbered by first appearance.
    group_labels : list of tuple
        Labels of every group: one label per labeling.
    covariate_names, label_names : names of the known columns; empty if they have no names
    """

    kind: str
    codes: np.ndarray
    n_groups: int
    memberships: np.ndarray | None
    columns: np.ndarray | None
    labelings: np.ndarray
    group_labels: Sequence[tuple[Any, ...]] = ()
    covariate_names: list[Any] = field(default_factory=list)
    label_names: list[Any] = field(default_factory=list)

    @classmethod
    def from_groups(
        cls, codes: np.ndarray, n_groups: int = 1, columns: np.ndarray | None = None
    ) -> Design:
        """Make a design from known groups, or from columns of a linear model.

        ``codes`` (n,) are the known groups as integers, and ``n_groups`` is the number of groups.
        If ``columns`` (n, q) are passed, ``codes`` must be 0.
        """
        kind = "continuous" if columns is not None else "labels" if n_groups > 1 else "nothing"
        labelings = codes[:, None] if kind == "labels" else np.empty((len(codes), 0), int)
        return cls(kind, codes, n_groups, None, columns, labelings)

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.codes)

    @property
    def n_hard_groups(self) -> int:
        """Number of known groups if every sample belongs to one group; 1 for soft memberships."""
        return self.n_groups if self.memberships is None else 1

    @property
    def has_structure(self) -> bool:
        """Whether there are several groups, or columns of a linear model."""
        return self.n_groups > 1 or self.columns is not None

    @cached_property
    def matrix(self) -> Any:
        """Design matrix of a regression on the known structure; None for hard groups.

        The matrix is ``memberships`` (n, n_groups), or has a constant column followed by
        ``columns``, and then the shape (n, 1 + q).
        """
        if self.columns is None:
            return self.memberships
        return np.concatenate([np.ones((self.n_samples, 1)), self.columns], 1)

    @property
    def description(self) -> str:
        """Type of the known structure, and the names of the known columns, for messages."""
        return _describe_kind(self.kind, self.covariate_names, self.label_names)

    @property
    def where(self) -> str:
        """Text that names the known columns in a message, such as " in 'batch'".

        The text is empty if the columns have no names.
        """
        return _format_where(self.covariate_names + self.label_names)

    def take_rows(self, indices: np.ndarray) -> Design:
        """Return the design of the samples with the given ``indices``."""
        names = "codes", "memberships", "columns", "labelings"
        arrays = {name: getattr(self, name) for name in names}
        return replace(self, **{k: a[indices] for k, a in arrays.items() if a is not None})


class _Input(NamedTuple):
    """Known structure as the user passed it, split into memberships, covariates and labels."""

    memberships: np.ndarray | None = None
    covariates: np.ndarray | None = None
    labels: Sequence[np.ndarray] = ()
    covariate_names: Sequence[Any] = ()
    label_names: Sequence[Any] = ()
    is_float: np.ndarray = np.zeros(0, bool)  # mask of the columns of a frame that hold covariates

    @property
    def kind(self) -> str:
        if self.memberships is not None:
            return "soft"
        if self.covariates is not None:
            return "mixed" if len(self.labels) else "continuous"
        return "labels" if len(self.labels) else "nothing"

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "groups": 0 if self.memberships is None else self.memberships.shape[1],
            "columns": 0 if self.covariates is None else self.covariates.shape[1],
            "labelings": len(self.labels),
        }

    @property
    def description(self) -> str:
        return _describe_kind(self.kind, self.covariate_names, self.label_names)


class DesignEncoder:
    """Encode known structure as a `Design`; `transform` encodes known structure of new samples.

    Labels are numbered in the order of their first appearance, so renaming labels has no effect.
    With ``multi="product"``, a group is a combination of labels that occurs in the data. With
    ``multi="additive"``, every label has an indicator column in a linear model. Continuous
    covariates become standardised columns, which come before the indicators; together with
    covariates, labels always have indicator columns.

    Parameters
    ----------
    multi : {"product", "additive"}, optional
        How labelings combine in an estimator with a linear model. By default the estimator has no
        linear model: labelings combine as with "product", and `fit` refuses covariates.
    min_additive : int, default=1
        With ``multi="additive"``, fewer labelings than this number become groups instead of
        indicator columns, unless there are covariates.
    drop_first : bool, default=True
        Whether to omit the column of the first label of every labeling.

    Attributes
    ----------
    categories_ : list of dict
        Labels of every labeling and their codes.
    has_columns_ : bool
        Whether the design has columns of a linear model instead of groups.
    """

    categories_: list[dict[Any, int]]
    has_columns_: bool

    def __init__(self, multi: str | None = None, *, min_additive: int = 1, drop_first: bool = True):
        self.multi, self.min_additive, self.drop_first = multi, min_additive, drop_first

    def fit(self, known: Any, n_samples: int, weights: np.ndarray | None = None) -> Design:
        """Learn the encoding of the user's known structure ``known``, and return its design.

        The encoding consists of the known groups, or of the columns of a linear model. Mean and
        scale of covariates are weighted by the sample weights ``weights`` (n,), if passed.

        Raises
        ------
        ValueError
            If lengths differ, a value is missing or infinite, no column varies, or the estimator
            does not accept covariates.
        """
        source = _read_known(known, n_samples)
        if self.multi is None and source.covariates is not None:
            raise ValueError(_unsupported_message(source.kind, source.description))
        if self.multi is not None and len(source.labels) == 1:
            _check_discrete(source.labels[0], _format_where(source.label_names))
        coded = [factorize(labels) for labels in source.labels]
        labelings = np.stack([codes for codes, _ in coded], 1) if coded else _no_labels(n_samples)
        return self._learn_groups(
            source, labelings, [categories for _, categories in coded], weights
        )

    def fit_labelings(
        self, labelings: np.ndarray, categories: list[dict[Any, int]], names: Sequence[Any]
    ) -> Design:
        """Learn the encoding of known labelings that are already integers; see `fit`.

        ``labelings`` (n, m) are the codes of the labels. For every labeling, ``categories`` has a
        dictionary from labels to codes, and ``names`` has the name of the labeling.
        """
        return self._learn_groups(
            _Input(labels=list(labelings.T), label_names=names), labelings, categories
        )

    def _learn_groups(
        self,
        source: _Input,
        labelings: np.ndarray,
        categories: list[dict[Any, int]],
        weights: np.ndarray | None = None,
    ) -> Design:
        """Learn the groups, or the columns of a linear model, and return the design.

        ``source`` is the known structure as the user passed it, and ``labelings`` (n, m) are its
        labels as codes. For every labeling, ``categories`` maps labels to codes.
        """
        self._kind, self._sizes, self._is_float = source.kind, source.sizes, source.is_float
        self.categories_ = categories
        names = [list(labels) for labels in categories]
        # With one labeling, every label is a group. With several, a group is a combination of
        # labels that occurs.
        codes, self._groups = None, np.arange(sum(map(len, names)))[:, None]
        if len(names) > 1:
            codes, groups = factorize(labelings)
            self._groups = np.array(list(groups), int)
        self._group_labels = [
            tuple(labels[c] for labels, c in zip(names, group, strict=True))
            for group in self._groups.tolist()
        ]
        additive = self.multi == "additive" and len(names) >= max(self.min_additive, 1)
        self.has_columns_ = source.covariates is not None or additive
        if self.has_columns_:
            self._learn_columns(source, labelings, weights)
        return self._make_design(source, labelings, codes)

    def _learn_columns(
        self, source: _Input, labelings: np.ndarray, weights: np.ndarray | None
    ) -> None:
        """Learn mean and scale of the covariates, and which columns of the linear model vary.

        See `_learn_groups` for the arguments.
        """
        z, q = self._raw_columns(source, labelings), self._sizes["columns"]
        self._centre, self._scale = np.zeros(z.shape[1]), np.ones(z.shape[1])
        self._centre[:q], self._scale[:q] = z[:, :q].mean(0), z[:, :q].std(0)
        if weights is not None:
            shares = weights / weights.sum()
            self._centre[:q] = shares @ z[:, :q]
            self._scale[:q] = np.sqrt(shares @ (z[:, :q] - self._centre[:q]) ** 2)
        # The tolerance is relative to the values, since the mean of equal values has rounding
        # errors.
        self._varies = np.ones(z.shape[1], bool)
        self._varies[:q] = self._scale[:q] > 1e-12 * abs(z[:, :q]).max(0)
        constant = [*~self._varies[:q], *(len(labels) == 1 for labels in self.categories_)]
        names = [*source.covariate_names, *source.label_names]
        if all(constant):
            raise ValueError(
                "known does not vary, so that it has no effect; got only constant columns"
                f"{_format_where(names)}; leave known out"
            )
        if any(constant):
            columns = [names[j] if names else j for j in np.flatnonzero(constant).tolist()]
            warn(f"known has constant columns, which have no effect; got {columns}; drop them")

    def transform(self, known: Any, n_samples: int, new_groups: bool = False) -> Design:
        """Encode the known structure of new samples with the encoding of `fit`.

        With ``new_groups``, groups that did not occur in `fit` are allowed, and are numbered after
        the groups of `fit`.

        Raises
        ------
        ValueError
            If ``known`` is passed only to `transform` or only to `fit`; if it has another type or
            number of columns than in `fit`; or if it contains a group that did not occur in `fit`.
        """
        if known is None and self._kind != "nothing":
            raise ValueError(
                "known is required to predict, because the model was fitted with it; got None; "
                "pass known= for the new rows"
            )
        if known is not None and self._kind == "nothing":
            raise ValueError(
                "known was given to predict but not to fit; got known for a model without known "
                "structure; leave known out, or fit with known="
            )
        # The known structure must have the type and the number of columns that it had in `fit`.
        source = _read_known(known, n_samples, self._is_float)
        if source.kind != self._kind or (
            self._kind == "mixed" and not np.array_equal(source.is_float, self._is_float)
        ):
            what, remedy = _KINDS[self._kind]
            raise ValueError(
                f"known must be {what}, as it was in fit; got {source.description}; {remedy}"
            )
        for what, size in source.sizes.items():
            if size != self._sizes[what]:
                raise ValueError(
                    f"known has {size} {what}; the fit had {self._sizes[what]}; "
                    f"pass the same {what} in the same order"
                )
        # Encode labels by the categories of `fit`, and number their combinations.
        pairs = zip(source.labels, self.categories_, strict=True)
        coded = [_look_up(labels, categories, new_groups) for labels, categories in pairs]
        labelings = np.stack(coded, 1) if coded else _no_labels(n_samples)
        codes = self._number_combinations(labelings) if new_groups else None
        return self._make_design(source, labelings, codes)

    def combine_labelings(self, labelings: np.ndarray) -> np.ndarray:
        """Return the known groups (n,) of samples, as codes, from label codes (n, m).

        Raises
        ------
        ValueError
            If a combination did not occur in `fit`.
        """
        if labelings.shape[1] == 1:
            return labelings[:, 0]
        n_groups = len(self._groups)
        codes = self._number_combinations(labelings)
        if (codes >= n_groups).any():
            row = int((codes >= n_groups).argmax())
            pairs = zip(self.categories_, labelings[row], strict=True)
            raise ValueError(
                f"known has a combination of labels at row {row} that did not occur in fit; got "
                f"{short_repr(tuple(list(labels)[c] for labels, c in pairs))}; drop such rows or "
                "fit again with them"
            )
        return codes

    def _number_combinations(self, labelings: np.ndarray) -> np.ndarray:
        """Return the known groups (n,) of samples, as codes, from label codes (n, m).

        Combinations of labels that did not occur in `fit` get the next codes.
        """
        if labelings.shape[1] == 1:
            return labelings[:, 0]
        return factorize(np.concatenate([self._groups, labelings]))[0][len(self._groups) :]

    def _make_design(
        self, source: _Input, labelings: np.ndarray, codes: np.ndarray | None
    ) -> Design:
        """Make the design of samples from encoded ``labelings`` (n, m) and from ``source``.

        ``source`` is the known structure as the user passed it. ``codes`` (n,) are the known
        groups, or None to compute them.
        """
        columns, n_groups = None, max(self._sizes["groups"], 1)
        if self.has_columns_:
            z = self._raw_columns(source, labelings)
            scale = np.where(self._varies, self._scale, 1)
            columns = ((z - self._centre) / scale)[:, self._varies]
        if self.has_columns_ or self._kind != "labels":
            codes = np.zeros(len(labelings), int)
        else:
            n_groups = len(self._groups)
            codes = self.combine_labelings(labelings) if codes is None else codes
        return Design(
            self._kind, codes, n_groups, source.memberships, columns, labelings,
            self._group_labels, list(source.covariate_names), list(source.label_names),
        )  # fmt: skip

    def _raw_columns(self, source: _Input, labelings: np.ndarray) -> np.ndarray:
        """Columns (n, q) of the linear model before scaling: covariates, then label indicators."""
        parts = [] if source.covariates is None else [source.covariates]
        for codes, labels in zip(labelings.T, self.categories_, strict=True):
            parts.append((codes[:, None] == np.arange(self.drop_first, len(labels))).astype(float))
        return np.concatenate(parts, 1)


_KINDS = {
    "labels": ("labels", "pass labels"),
    "soft": ("Memberships", "wrap the probabilities in known.Memberships"),
    "continuous": ("continuous", "pass a 2-D array or a frame of floats"),
    "mixed": ("a frame of labels and floats", "pass the same columns"),
}


def covariates_of(known: Any, n_samples: int) -> tuple[np.ndarray | None, list[Any]]:
    """Return the covariates (n_samples, q) in the user's ``known``, or None, and their names."""
    source = _read_known(known, n_samples)
    if source.covariates is None:
        return None, []
    return source.covariates, [*(source.covariate_names or range(source.covariates.shape[1]))]


def _read_known(known: Any, n_samples: int, was_float: np.ndarray | None = None) -> _Input:
    """Split the user's ``known`` into memberships, covariates and labels.

    ``was_float`` masks the columns that were covariates in `fit`, for new samples.

    Raises
    ------
    ValueError
        If lengths differ, or a value is missing, infinite, or not a label.
    """
    if known is None:
        return _Input()
    if isinstance(known, Memberships):
        _check_length(len(known.probabilities), n_samples)
        return _Input(known.probabilities)
    if not is_table(known):
        return _read_array(known, n_samples)
    frame = as_frame(known).infer_objects()
    if not frame.shape[1]:
        raise ValueError("known must hold a labeling; got a frame without columns; leave known out")
    _check_length(len(frame), n_samples)
    is_float = float_columns(frame, was_float)
    names, label_names = list(frame.columns[is_float]), list(frame.columns[~is_float])
    covariates = None
    if names:
        covariates = frame.loc[:, is_float].to_numpy(np.float64, na_value=np.nan)
        _check_finite(covariates, names)
    labels = [
        as_labels(np.asarray(frame.iloc[:, j]), f" in column {frame.columns[j]!r}")
        for j in np.flatnonzero(~is_float)
    ]
    return _Input(None, covariates, labels, names, label_names, is_float)


def _read_array(known: Any, n_samples: int) -> _Input:
    """Read ``known`` as labels, or as covariates if it is a 2-D array of floats."""
    array = as_plain_array(known, "known")
    if array.ndim == 2 and array.dtype.kind == "c":
        raise ValueError(_unsupported_message("continuous", f"dtype {array.dtype}"))
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(
            f"known must be 1-D labels or a 2-D array of labelings; got shape {array.shape}; "
            "pass one label per row of X"
        )
    _check_length(len(array), n_samples)
    if array.ndim == 2 and array.dtype.kind == "f":
        covariates = array.astype(np.float64)
        _check_finite(covariates, range(array.shape[1]))
        return _Input(covariates=covariates)
    name = known.name if is_pandas(known) else None
    names = [] if name is None else [name]
    where = f" in column {name!r}" if names else ""
    columns = [array] if array.ndim == 1 else list(array.T)
    return _Input(labels=[as_labels(column, where) for column in columns], label_names=names)


def _check_discrete(array: np.ndarray, where: str) -> None:
    """Raise ValueError if labels (n,) look like a covariate: many distinct numbers with decimals.

    ``where`` names the column, for the message.
    """
    if array.dtype.kind != "f" or not np.isfinite(array).all() or (array == array.round()).all():
        return
    n_values = len(np.unique(array))
    if n_values > max(_MOST_FLOAT_LABELS, len(array) / 2):
        raise ValueError(
            f"known labels must repeat; got {n_values} distinct numbers for {len(array)} rows"
            f"{where}; pass a covariate as a 2-D array of one column, such as known[:, None], or "
            "as a frame"
        )


def _check_length(n_known: int, n_samples: int) -> None:
    if n_known != n_samples:
        raise ValueError(
            f"known has {n_known} labels for {n_samples} samples; "
            f"got inconsistent numbers of samples; pass one label per row of X"
        )


def _check_finite(covariates: np.ndarray, names: Sequence[Any]) -> None:
    if not np.isfinite(covariates).all():
        row, column = np.argwhere(~np.isfinite(covariates))[0]
        raise ValueError(
            f"known must not contain NaN or infinity; found {covariates[row, column]} at row "
            f"{row}, column {names[column]!r}; drop or impute such rows"
        )


def _look_up(
    labels: np.ndarray, categories: dict[Any, int], new_labels: bool = False
) -> np.ndarray:
    """Return the codes (n,) of ``labels`` (n,).

    ``categories`` maps the labels that occurred in `fit` to codes. With ``new_labels``, labels that
    did not occur in `fit` get the next codes.
    """
    if new_labels:
        unseen = dict.fromkeys(v for v in labels.tolist() if v not in categories)
        categories = categories | {v: len(categories) + i for i, v in enumerate(unseen)}
    codes = np.array([categories.get(label, -1) for label in labels.tolist()], int)
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        raise ValueError(
            f"known has the label {short_repr(labels.tolist()[row])} at row {row}, which did not "
            f"occur in fit; the fit had {list_examples(categories)}; drop such rows or fit again "
            "with them"
        )
    return codes


def _no_labels(n_samples: int) -> np.ndarray:
    return np.empty((n_samples, 0), int)


def _format_where(names: Sequence[Any]) -> str:
    return f" in {quote_names(names)}" if names else ""


def _describe_kind(kind: str, covariate_names: Sequence[Any], label_names: Sequence[Any]) -> str:
    if covariate_names or label_names:
        return describe_columns(covariate_names, label_names)
    return {"soft": "soft memberships", "continuous": "a 2-D array of floats"}.get(kind, kind)


def _unsupported_message(kind: str, description: str) -> str:
    """Message for covariates that an estimator cannot use."""
    what = "continuous known structure is"
    if kind == "mixed":
        what = "known structure of labels and covariates together is"
    return (
        f"{what} not supported by this estimator; got {description}; pass labels "
        "(1-D of any type, or 2-D of integers or strings), or known.Memberships for "
        "probabilities, or use CCIB, ConditionalMixture or ResidualSpectral"
    )
