"""Find several non-redundant clusterings, each conditioned on the earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import get_tags
from sklearn.utils.validation import _num_samples

from nrprob import information, metrics
from nrprob.advice import choose_estimator
from nrprob.data.copies import ignore_reported_copies
from nrprob.data.design import DesignEncoder
from nrprob.data.frames import column_names, extract_known, is_table
from nrprob.data.preparation.prepare import Prepared, prepare_table
from nrprob.data.storage.stored import refuse_stored
from nrprob.data.validation import (
    MOST,
    check_choice,
    check_number,
    check_random_state,
)
from nrprob.evidence.folds import check_samples
from nrprob.evidence.inputs import (
    TooFewRows,
    as_density_estimator,
    check_accepts_known,
    check_median_size,
)
from nrprob.evidence.record import Evidence
from nrprob.evidence.structure import test
from nrprob.exceptions import short_repr, warn
from nrprob.statistics.single_feature import warn_of_single_feature

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Exploration:
    """Result of `explore`: clusterings that are not redundant with each other.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples, n_clusterings)
        Clusterings in the order of the search, one per column.
    estimators_ : list of estimators
        Fitted estimator of every clustering.
    known_ : ndarray of shape (n_samples, n_known)
        Known labelings that `explore` received, as integers.
    evidence_ : list of nrprob.evidence.Evidence
        Significance test of every clustering. Empty if ``n_clusterings`` was passed, since
        `explore` then does no test.
    rejected_ : tuple (estimator, nrprob.evidence.Evidence) or None
        Fitted estimator and test of the clustering whose test ended the search; it is not in
        ``labels_``. None without tests. Also None if the test of the first clustering is not
        significant: the first clustering is always in ``labels_``.
    reason_ : str
        Why the search ended.
    failure_ : BaseException or None
        Exception of a later fit that ended the search; None otherwise.
    prepared_ : Prepared or None
        Result of `prepare` if ``X`` was a frame.
    params_ : dict
        Arguments of `explore`. The entry ``known`` has only the names of the columns.

    See Also
    --------
    explore : Returns this result.
    nrprob.plotting.plot_alternatives : Plot the clusterings.

    Examples
    --------
    >>> from nrprob import explore
    >>> from sklearn.datasets import load_iris
    >>> result = explore(load_iris().data, n_clusters=3, n_clusterings=2, random_state=0)
    >>> result.labels_.shape
    (150, 2)
    >>> result.table.shape
    (2, 2)
    """

    labels_: np.ndarray
    estimators_: list[Any]
    known_: np.ndarray
    evidence_: list[Any] = field(default_factory=list)
    rejected_: Any = None
    failure_: BaseException | None = None
    reason_: str = ""
    prepared_: Prepared | None = None
    params_: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> pd.DataFrame:
        """Mutual information in nats of every pair of labelings, known and new.

        The diagonal has the entropies of the labelings. The mutual information of independent
        labelings of n samples with k and l clusters is about ``(k - 1) (l - 1) / (2 n)`` nats by
        chance.
        """
        import pandas as pd

        columns = np.concatenate([self.known_, self.labels_], 1)
        names = [f"known {j + 1}" for j in range(self.known_.shape[1])]
        names += [f"found {j + 1}" for j in range(self.labels_.shape[1])]
        d = columns.shape[1]
        values = np.empty((d, d))
        for i in range(d):
            for j in range(i, d):
                joint = metrics.contingency(columns[:, i], columns[:, j]) / len(columns)
                values[i, j] = values[j, i] = information.mutual_information(joint)
        return pd.DataFrame(values, index=names, columns=names)


def explore(
    X: Any,
    estimator: Any = "auto",
    *,
    n_clusters: int | str | None = None,
    n_clusterings: int | None = None,
    known: Any = None,
    criterion: str = "structure",
    alpha: float = 0.05,
    random_state: Any = None,
) -> Exploration:
    """Find several clusterings, one after another, each conditioned on all earlier ones.

    Parameters
    ----------
    X : array-like, sparse matrix or frame of shape (n_samples, n_features)
        Features. A frame is first prepared by `prepare`, with warnings about the changes. Text and
        missing values are kept if the ``estimator`` accepts them. Otherwise, text becomes binary
        columns, and missing values raise ValueError.
    estimator : estimator or "auto", default="auto"
        Clusterer whose ``fit(X, known=...)`` conditions on known labels. With "auto", `recommend`
        chooses an estimator for every clustering.
    n_clusters : int or "auto", optional
        Number of clusters of every clustering. By default, ``n_clusters`` of the estimator. With
        "auto", every fit chooses the number, including the fits of the test; see
        `ConditionalMixture`.
    n_clusterings : int, optional
        Number of clusterings. By default, the search continues while `nrprob.evidence.test` is
        significant. The known groups of the test are the combinations of known labels and earlier
        clusterings. If the test withholds p-values, as for many mixed tables, the search continues
        while the clusters predict held-out samples better than every null model. For counts and
        binary features without a test, this number is required. The first clustering is returned
        even if its test is not significant.
    known : array-like of shape (n_samples,) or (n_samples, n_known), optional
        Known labels, one labeling per column. For a frame, also names of its columns.
    criterion : {"structure", "gap"}, default="structure"
        Test that every clustering has to pass. "structure" uses ``p_structure_``, whose null
        hypothesis is one elliptical distribution per known group. "gap" uses ``p_gap_``, whose null
        hypothesis is that there is no low-density gap between clusters. Overlapping clusters have
        no such gap. Uniform, skewed or curved groups have no gap either.
    alpha : float, default=0.05
        Significance level: the search continues while the p-value is at most ``alpha``. A
        clustering is tested only if all earlier clusterings passed. The probability of adding a
        spurious clustering is therefore at most ``alpha`` if the test keeps its level. From 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Seed of the tests, and of the estimators that have this parameter.

    Returns
    -------
    Exploration

    Raises
    ------
    ValueError
        If ``n_clusterings`` is below 1, or missing for data without a test, such as counts and
        binary features. Errors of the first fit are raised as well.
    TypeError
        If ``n_clusterings`` is not an integer, or ``estimator`` is not an estimator.

    Warns
    -----
    UserWarning
        States the changes of `prepare` to a frame. Also warns if a later fit fails or is
        interrupted (:class:`KeyboardInterrupt`). The result then holds the earlier clusterings, and
        ``failure_`` is the exception.
    nrprob.exceptions.SingleFeatureWarning
        If one discrete feature y, such as a boolean column, determines the clusters c, or one of
        three or more clusters. The criterion is I(c; y) / H(c) > 0.7, the mutual information
        divided by the entropy of the clusters.

    See Also
    --------
    recommend : Recommend an estimator.
    nrprob.evidence.test : Test the clusters of one clustering.

    Notes
    -----
    Clustering j is fitted with the known labels and clusterings 1 to j - 1 as known structure. The
    known groups of its test are the combinations of the same labels. These groups become smaller
    with every clustering. The search ends when the median size of these groups is below ten
    samples.

    Examples
    --------
    >>> from nrprob import explore
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, truth = make_binary_partitions(200, (8, 6, 4), random_state=0)
    >>> explore(X, n_clusters=2, n_clusterings=3, random_state=0).labels_.shape
    (200, 3)
    """
    return search_clusterings(
        X, estimator, n_clusters=n_clusters, n_clusterings=n_clusterings, known=known,
        criterion=criterion, alpha=alpha, random_state=random_state,
    )  # fmt: skip


def search_clusterings(
    X: Any, estimator: Any = "auto", *, n_clusters: int | str | None, n_clusterings: int | None,
    known: Any, criterion: str, alpha: float, random_state: Any,
    report: Callable[[str], None] = lambda line: None,
    announce: Callable[[str], None] = lambda line: None, notes: Sequence[str] | None = None,
) -> Exploration:  # fmt: skip
    """Find several clusterings; see `explore`.

    The function calls ``report`` with a description of the step before every fit and test, and
    ``announce`` with the result of every clustering. ``notes`` are the notes of `prepare` if the
    frame ``X`` is prepared already; None prepares it here.
    """
    refuse_stored(X, "explore")
    _check_arguments(estimator, n_clusters, n_clusterings, known, criterion, alpha)
    params = {
        "estimator": estimator, "n_clusters": n_clusters, "n_clusterings": n_clusterings,
        "known": column_names(known) or None, "criterion": criterion, "alpha": alpha,
        "random_state": random_state,
    }  # fmt: skip
    # Prepare a frame, and encode the known labelings.
    ready = _prepare_frame(X, known, estimator) if is_table(X) and notes is None else None
    if ready is not None:
        for line in [*(f"note: {line}" for line in ready.notes), *ready.warnings]:
            warn(line)
        X, known, notes = ready.frame, ready.known, ready.notes
    X, known = extract_known(X, known)
    random = check_random_state(random_state)
    n = _num_samples(X)
    if not n:
        raise ValueError("X must have rows; got none; pass a table with at least one row")
    initial, labels_as_text = _encode_labelings(known, n)
    labelings = initial
    estimators: list[Any] = []
    tests: list[Any] = []
    failure: BaseException | None = None
    rejected = None
    plural = "clustering was" if n_clusterings == 1 else "clusterings were"
    reason = f"{n_clusterings} {plural} requested"
    while n_clusterings is None or len(estimators) < n_clusterings:
        number = len(estimators) + 1
        total = "" if n_clusterings is None else f" of {n_clusterings}"
        report(f"fitting clustering {number}{total}")
        try:
            # Make the estimator, and check that its clusters can be tested.
            structure = labelings if labelings.shape[1] else None
            if isinstance(estimator, str):
                fixed = None if isinstance(n_clusters, str) else n_clusters
                model = choose_estimator(X, known=structure, n_clusters=fixed)
            else:
                model = clone(estimator)
            _set_parameters(model, n_clusters, random_state, random)
            if n_clusterings is None and not estimators:
                _check_has_test(model, X, structure)
            elif n_clusterings is None:
                # If groups that earlier clusterings define are small, their estimated effects
                # explain little. The next fit would return the same clusters again.
                _, combined = np.unique(labels_as_text, axis=0, return_inverse=True)
                check_median_size(np.ravel(combined))
            # Fit, conditioned on known labels and earlier clusterings.
            model.fit(X, **({} if structure is None else {"known": structure}))
            if not getattr(model, "_warns_of_single_feature", False):
                warn_of_single_feature(X, model.labels_)
            # Test. The combinations of the same labels are the known groups.
            evidence, is_last = None, False
            if n_clusterings is None:
                report(f"testing clustering {number} ({_describe_sizes(model.labels_)})")
                seed = random.randint(2**31 - 1)
                groups = labels_as_text if labels_as_text.shape[1] else None
                with ignore_reported_copies(notes or ()):
                    evidence = test(model, X, known=groups, alpha=alpha, random_state=seed)
                is_last = not _passes(evidence, criterion)
        except (Exception, KeyboardInterrupt) as error:
            if not estimators:
                raise
            if isinstance(error, TooFewRows):
                reason = f"clustering {number} cannot be tested: {error}"
                break
            failure = error
            reason = f"clustering {number} failed: {type(error).__name__}: {error}"
            warn(
                f"clustering {number}{total} failed; got {type(error).__name__}: {error}; earlier "
                "clusterings are returned"
            )
            break
        outcome = "" if n_clusterings is not None else f" passes the test of {criterion}"
        if is_last:
            outcome = f" does not pass the test of {criterion}, so the search ends"
        announce(f"clustering {number}{total} ({_describe_sizes(model.labels_)}){outcome}")
        # End the search at a clustering that is not significant; return it if it is the first.
        if is_last:
            reason = f"clustering {number}: {evidence}"
        if is_last and estimators:
            rejected = model, evidence
            break
        # Add the clustering to the known structure of the next fit.
        estimators.append(model)
        if evidence is not None:
            tests.append(evidence)
        labelings = np.concatenate([labelings, model.labels_[:, None]], 1)
        text = np.char.add(f"{number}: ", model.labels_.astype(str))
        labels_as_text = np.column_stack([labels_as_text, text])
        if is_last:
            break
    labels = labelings[:, initial.shape[1] :]
    return Exploration(labels, estimators, initial, tests, rejected, failure, reason, ready, params)


def _describe_sizes(labels: np.ndarray) -> str:
    """List the sizes of the clusters of a labeling."""
    return f"{', '.join(map(str, np.unique(labels, return_counts=True)[1]))} rows"


def _prepare_frame(X: Any, known: Any, estimator: Any) -> Prepared:
    """Prepare a frame; text becomes binary columns if the estimator accepts numbers only."""
    categories, missing = "keep", "keep"
    if not isinstance(estimator, str):
        tags = get_tags(estimator).input_tags
        if not (tags.categorical and tags.allow_nan):
            categories, missing = "indicators", "error"
    return prepare_table(
        X, known=known, categories=categories, missing=missing, say=_as_preparation
    )  # fmt: skip


def _as_preparation(option: str, value: Any) -> str:
    """Format an argument of `prepare` as a call, for messages to users of `explore`."""
    return f"prepare(X, {option}={value!r})"


def _check_arguments(
    estimator: Any, n_clusters: Any, n_clusterings: Any, known: Any, criterion: str, alpha: float
) -> None:
    """Raise an error for invalid arguments of `explore`."""
    if isinstance(n_clusters, str):
        check_choice("n_clusters", n_clusters, ("auto",), "or an integer")
    if n_clusterings is not None:
        check_number("n_clusterings", n_clusterings, low=1, high=MOST, integer=True)
    check_choice("criterion", criterion, ("structure", "gap"))
    check_number("alpha", alpha, low=0, high=1)
    if isinstance(estimator, str):
        if estimator != "auto":
            raise ValueError(
                f"estimator must be 'auto' or an estimator; got {short_repr(estimator)}; pass an "
                "instance"
            )
    elif not isinstance(estimator, BaseEstimator):
        raise TypeError(
            f"estimator must be an estimator; got {type(estimator).__name__}; pass an instance"
        )
    elif known is not None or n_clusterings != 1:
        check_accepts_known(estimator)


def _set_parameters(
    model: Any, n_clusters: int | str | None, random_state: Any, random: np.random.RandomState
) -> None:
    """Set the number of clusters and the seed of an unfitted estimator.

    The seed is drawn from ``random`` if the user passed ``random_state`` or the estimator has no
    seed.
    """
    parameters = model.get_params(deep=False)
    if n_clusters is not None:
        model.set_params(n_clusters=n_clusters)
    if "random_state" in parameters and (
        random_state is not None or parameters["random_state"] is None
    ):
        model.set_params(random_state=int(random.randint(2**31 - 1)))


def _passes(evidence: Evidence, criterion: str) -> bool:
    """Return whether a clustering passes the test ``criterion`` ("structure" or "gap")."""
    if criterion == "structure":
        return evidence.supports_clusters
    if evidence.p_gap_ is None:
        raise ValueError(
            "n_clusterings is required where low-density gaps cannot be tested; got discrete "
            "values; pass a number, or criterion='structure'"
        )
    return evidence.p_gap_ <= evidence.alpha


def _check_has_test(model: Any, X: Any, known: Any) -> None:
    """Raise ValueError for samples without a significance test, before anything is fitted."""
    try:
        check_samples(as_density_estimator(model), X, known)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"n_clusterings must be given where no test ends the search; got None: {error}"
        ) from error


def _encode_labelings(known: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Encode known labels of ``n`` samples, one labeling per column.

    Returns the labelings as integers, and the same labelings as text.
    """
    encoder = DesignEncoder("product")
    design = encoder.fit(known, n)
    if design.kind not in ("nothing", "labels"):
        raise ValueError(
            "known structure must be labels, since explore adds clusterings to it; got "
            f"{design.description}; cut covariates into groups, or fit ConditionalMixture or CCIB"
        )
    codes = design.labelings
    text = [
        np.array([str(label) for label in categories])[column]
        for column, categories in zip(codes.T, encoder.categories_, strict=True)
    ]
    return codes, np.array(text, str).T.reshape(n, -1)
