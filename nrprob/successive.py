"""One non-redundant clustering after another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import _num_samples

from nrprob import information, metrics
from nrprob.advice import recommend
from nrprob.exceptions import warn
from nrprob.storage.stored import refuse_stored
from nrprob.validation import MOST, check_number, check_random_state, check_same_order

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
    evidence_ : list
        The test of every clustering; empty where ``n_clusterings`` was given, since then none is
        tested.
    rejected_ : object or None
        The estimator at which a test stopped the search; None where none was made.
    failure_ : BaseException or None
        What ended the search before all clusterings were found; None where nothing did.
    """

    labels_: np.ndarray
    estimators_: list[Any]
    known_: np.ndarray
    evidence_: list[Any] = field(default_factory=list)
    rejected_: Any = None
    failure_: BaseException | None = None

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
    n_clusters: int | None = None,
    n_clusterings: int | None = None,
    known: Any = None,
    rule: str = "valley",
    alpha: float = 0.05,
    n_null: int = 99,
    random_state: Any = None,
) -> Exploration:
    """Find clusterings one after another, each new with respect to all before it.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n_samples, n_features)
    estimator : estimator or "auto", default="auto"
        Anything whose ``fit(X, known=...)`` avoids known labels; "auto" is what `recommend` says,
        asked anew for every clustering.
    n_clusters : int, optional
        Number of clusters of every clustering; None leaves the estimator's.
    n_clusterings : int
        How many clusterings to find. Choosing the number by a test is not available yet.
    known : array-like, optional
        Labels that are known already, 1-D or one labeling per column.
    rule, alpha, n_null
        Reserved for the test that decides when to stop; without it they have no effect.
    random_state : int, RandomState instance or None, default=None
        Seeds the estimators, where they have the parameter.

    Returns
    -------
    Exploration

    Raises
    ------
    ValueError
        If ``n_clusterings`` is missing or below 1; or whatever the first fit raises.
    TypeError
        If ``n_clusterings`` is no integer, or ``estimator`` no estimator.

    Warns
    -----
    UserWarning
        If a later fit fails or is interrupted (:class:`KeyboardInterrupt`). The clusterings that
        were found before are returned, and ``failure_`` is what was raised.

    Examples
    --------
    >>> from nrprob import explore
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, truth = make_binary_partitions(200, (8, 6, 4), random_state=0)
    >>> explore(X, n_clusters=2, n_clusterings=3, random_state=0).labels_.shape
    (200, 3)
    """
    refuse_stored(X, "explore")
    if n_clusterings is None:
        raise ValueError(
            "n_clusterings must be given; got None; a test that says when to stop is not available "
            "yet, so pass the number of clusterings to find"
        )
    check_number("n_clusterings", n_clusterings, low=1, high=MOST, integer=True)
    if isinstance(estimator, str):
        if estimator != "auto":
            raise ValueError(
                f"estimator must be 'auto' or an estimator; got {estimator!r}; pass an instance"
            )
    elif not isinstance(estimator, BaseEstimator):
        raise TypeError(
            f"estimator must be an estimator; got {type(estimator).__name__}; pass an instance"
        )
    check_same_order(X, known=known)
    random = check_random_state(random_state)
    n = _num_samples(X)
    start = _codes(known, n)
    seen = start
    estimators: list[Any] = []
    failure: BaseException | None = None

    def find() -> Any:
        told = seen if seen.shape[1] else None
        if isinstance(estimator, str):
            model = recommend(X, known=told, n_clusters=n_clusters)
        else:
            model = clone(estimator)
        parameters = model.get_params(deep=False)
        if n_clusters is not None:
            model.set_params(n_clusters=n_clusters)
        if "random_state" in parameters and (
            random_state is not None or parameters["random_state"] is None
        ):
            model.set_params(random_state=int(random.randint(2**31 - 1)))
        return model.fit(X, known=told)

    while len(estimators) < n_clusterings:
        try:
            model = find()
        except (Exception, KeyboardInterrupt) as error:
            if not estimators:
                raise
            failure = error
            warn(
                f"clustering {len(estimators) + 1} of {n_clusterings} failed; "
                f"got {type(error).__name__}: {error}; those found before are returned"
            )
            break
        estimators.append(model)
        seen = np.concatenate([seen, model.labels_[:, None]], 1)
    return Exploration(seen[:, start.shape[1] :], estimators, start, failure_=failure)


def _codes(known: Any, n: int) -> np.ndarray:
    """Known labelings as integer columns, so that found ones can join them."""
    from nrprob.known import read

    return read(known, n).columns()
