"""Find non-redundant clusterings one after another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import _num_samples

from nrprob import information, metrics
from nrprob.advice import recommend
from nrprob.data.design import DesignEncoder
from nrprob.data.frames import column_names, is_table, take_out
from nrprob.data.preparation.prepare import Prepared, prepared
from nrprob.data.storage.stored import refuse_stored
from nrprob.data.validation import (
    MOST,
    check_choice,
    check_number,
    check_random_state,
)
from nrprob.evidence.inputs import (
    TooFewRows,
    as_density_estimator,
    check_accepts_known,
    validate_samples,
)
from nrprob.evidence.record import Evidence
from nrprob.evidence.structure import test
from nrprob.exceptions import short_repr, warn
from nrprob.statistics.single_feature import warn_of_single_feature

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Exploration:
    """What `explore` found.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples, n_clusterings)
        The clusterings, in the order in which they were found.
    estimators_ : list
        The fitted estimators, one per clustering.
    known_ : ndarray of shape (n_samples, n_known)
        What was known at the start, as codes.
    evidence_ : list of nrprob.evidence.Evidence
        The test of every clustering of ``labels_``; empty where ``n_clusterings`` was given, since
        then none is tested.
    rejected_ : tuple or None
        The fitted estimator at which the test stopped the search, and its evidence; None where the
        first clustering is that already, or nothing was tested.
    reason_ : str
        Why the search ended.
    failure_ : BaseException or None
        What ended the search before all clusterings were found; None where nothing did.
    prepared_ : Prepared or None
        What `prepare` made of the rows, if they were a frame.
    params_ : dict
        What was asked for: the arguments of `explore`, of ``known`` the names of columns.

    Examples
    --------
    >>> from nrprob import explore
    >>> from sklearn.datasets import load_iris
    >>> found = explore(load_iris().data, n_clusters=3, n_clusterings=2, random_state=0)
    >>> found.labels_.shape
    (150, 2)
    >>> found.table.shape
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
        """Mutual information between all labelings, known and found, in nats.

        The diagonal holds their entropies. Independent labelings of n rows with k and l clusters
        have about (k - 1)(l - 1) / 2n nats by chance.
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
    """Find clusterings one after another, each new with respect to all before it.

    Parameters
    ----------
    X : array-like, sparse matrix or frame of shape (n_samples, n_features)
        A frame goes through `prepare`, and what that did is said in warnings.
    estimator : estimator or "auto", default="auto"
        Anything whose ``fit(X, known=...)`` avoids known labels; "auto" is what `recommend` says,
        asked anew for every clustering.
    n_clusters : int or "auto", optional
        Number of clusters of every clustering; None leaves the estimator's. "auto" finds it anew
        for each, and in every refit of a test; see `ResidualMixture`.
    n_clusterings : int, optional
        How many clusterings to find. By default as many as a test says: one after another until
        `nrprob.evidence.test` no longer finds more than a cloud per known group, what was found
        before being known. The first is returned whatever the test says of it, with its evidence.
        That needs rows of real numbers, and is sharpest for `ResidualMixture`, which `recommend`
        takes for them.
    known : array-like, optional
        Labels that are known already, 1-D or one labeling per column; of a frame, also names of its
        columns.
    criterion : {"structure", "gap"}, default="structure"
        The test that every clustering has to pass. "structure" rejects the one-component null
        model: one elliptical density per known group. "gap" rejects the absence of a low-density
        gap between clusters; overlapping clusters have no gap, and neither have uniform, skewed or
        bent groups.
    alpha : float, default=0.05
        p-value up to which the search goes on. A clustering is tested only if all before it passed,
        so that one that is not there is added with this probability at most, as far as the test
        keeps its level; see `nrprob.evidence.test`.
    random_state : int, RandomState instance or None, default=None
        Seeds the estimators, where they have the parameter.

    Returns
    -------
    Exploration

    Raises
    ------
    ValueError
        If ``n_clusterings`` is below 1, or missing where there is no test: for counts and zeros and
        ones; or whatever the first fit raises.
    TypeError
        If ``n_clusterings`` is no integer, or ``estimator`` no estimator.

    Warns
    -----
    UserWarning
        Of what `prepare` did to a frame; or if a later fit fails or is interrupted
        (:class:`KeyboardInterrupt`). The clusterings that were found before are returned, and
        ``failure_`` is what was raised.
    nrprob.exceptions.SingleFeatureWarning
        If one discrete feature y, such as a boolean column, determines the clusters c, or one of
        three or more clusters: I(c; y) / H(c) above 0.7.

    Examples
    --------
    >>> from nrprob import explore
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, truth = make_binary_partitions(200, (8, 6, 4), random_state=0)
    >>> explore(X, n_clusters=2, n_clusterings=3, random_state=0).labels_.shape
    (200, 3)
    """
    refuse_stored(X, "explore")
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
    params = {
        "estimator": estimator, "n_clusters": n_clusters, "n_clusterings": n_clusterings,
        "known": column_names(known) or None, "criterion": criterion, "alpha": alpha,
        "random_state": random_state,
    }  # fmt: skip
    ready = prepared(X, known=known) if is_table(X) else None
    if ready is not None:
        for line in [*(f"note: {line}" for line in ready.notes), *ready.warnings]:
            warn(line)
        X, known = ready.frame, ready.known
    X, known = take_out(X, known)
    random = check_random_state(random_state)
    n = _num_samples(X)
    if not n:
        raise ValueError("X must have rows; got none; pass a table that has some")
    start, words = _columns(known, n)
    seen = start
    estimators: list[Any] = []
    failure: BaseException | None = None

    def choose(told: np.ndarray | None) -> Any:
        if isinstance(estimator, str):
            fixed = None if isinstance(n_clusters, str) else n_clusters
            model = recommend(np.asarray(X) if ready else X, known=told, n_clusters=fixed)
        else:
            model = clone(estimator)
        parameters = model.get_params(deep=False)
        if n_clusters is not None:
            model.set_params(n_clusters=n_clusters)
        if "random_state" in parameters and (
            random_state is not None or parameters["random_state"] is None
        ):
            model.set_params(random_state=int(random.randint(2**31 - 1)))
        return model

    tests: list[Any] = []
    asked_for = "1 clustering was" if n_clusterings == 1 else f"{n_clusterings} clusterings were"
    rejected, reason = None, f"{asked_for} asked for"
    while n_clusterings is None or len(estimators) < n_clusterings:
        number = len(estimators) + 1
        try:
            told = seen if seen.shape[1] else None
            model, evidence, over = choose(told), None, False
            if n_clusterings is None and not estimators:
                _check_testable(model, X, told)
            model.fit(X, **({} if told is None else {"known": told}))
            if not getattr(model, "_warns_of_single_feature", False):
                warn_of_single_feature(X, model.labels_)
            if n_clusterings is None:
                seed = random.randint(2**31 - 1)
                named = words if words.shape[1] else None
                evidence = test(model, X, known=named, alpha=alpha, random_state=seed)
                over = _p_value(evidence, criterion) > alpha
        except (Exception, KeyboardInterrupt) as error:
            if not estimators:
                raise
            if isinstance(error, TooFewRows):
                reason = f"clustering {number} cannot be tested: {error}"
                break
            failure = error
            of = "" if n_clusterings is None else f" of {n_clusterings}"
            reason = f"clustering {number} failed: {type(error).__name__}: {error}"
            warn(
                f"clustering {number}{of} failed; got {type(error).__name__}: {error}; those found "
                "before are returned"
            )
            break
        if over:
            reason = f"clustering {number}: {evidence}"
        if over and estimators:
            rejected = model, evidence
            break
        estimators.append(model)
        if evidence is not None:
            tests.append(evidence)
        seen = np.concatenate([seen, model.labels_[:, None]], 1)
        cluster = np.char.add(f"{number}: ", model.labels_.astype(str))
        words = np.column_stack([words, cluster])
        if over:
            break
    labels = seen[:, start.shape[1] :]
    return Exploration(labels, estimators, start, tests, rejected, failure, reason, ready, params)


def _p_value(evidence: Evidence, criterion: str) -> float:
    """p-value of the test that a criterion names."""
    if criterion == "structure":
        return evidence.p_structure_
    if evidence.p_gap_ is None:
        raise ValueError(
            "n_clusterings is required where no test of a gap is possible; got discrete values; "
            "pass a number, or criterion='structure'"
        )
    return evidence.p_gap_


def _check_testable(model: Any, X: Any, known: Any) -> None:
    """Refuse what no test can stop, before anything is fitted."""
    try:
        validate_samples(as_density_estimator(model), X, known)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"n_clusterings must be given where no test says when to stop; got None: {error}"
        ) from error


def _columns(known: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Known labelings as integer columns, so that found ones can join them, and their words."""
    encoder = DesignEncoder("product")
    design = encoder.fit(known, n)
    if design.kind not in ("nothing", "labels"):
        raise ValueError(
            "explore joins what is known with what it finds, which are labels; got "
            f"{design.description}; cut them into groups, or fit ResidualMixture or CCIB"
        )
    codes = design.labelings
    names = [
        np.array([str(label) for label in categories])[own]
        for own, categories in zip(codes.T, encoder.categories_, strict=True)
    ]
    return codes, np.array(names, str).T.reshape(n, -1)
