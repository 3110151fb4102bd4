"""Density estimators that choose the number of clusters themselves."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone
from sklearn.utils.validation import _num_samples

from nrprob.data.storage.stored import refuse_stored
from nrprob.estimator.base import fitting, read_labels
from nrprob.estimator.parameters import check_parameters

AUTO = "auto"


class NumberMixin:
    """For a `Clusterer` that is a `nrprob.evidence.held_out.Density`: ``n_clusters="auto"``.

    The fit is that of a clone with the number that `nrprob.evidence.n_clusters` finds.
    """

    n_clusters: Any
    random_state: Any
    verbose: int
    number_: Any

    @property
    def _many_clusters(self) -> bool:
        return self.n_clusters == AUTO or self.n_clusters > 2

    def check_parameters(self) -> None:
        """Refuse parameters that are wrong whatever the data, and a number yet to be found."""
        super().check_parameters()  # type: ignore[misc]
        if self.n_clusters == AUTO:
            raise ValueError(
                "n_clusters='auto' is found by fit, of rows in memory; got it elsewhere; pass a "
                "number"
            )

    def _fit(self, X, y, **given):
        if self.n_clusters != AUTO:
            return super()._fit(X, y, **given)  # type: ignore[misc]
        from nrprob.evidence.number import n_clusters

        check_parameters(self)
        refuse_stored(X, "n_clusters='auto'")
        if y is not None and (read_labels(y, _num_samples(X))[1] >= 0).any():
            raise ValueError(
                "n_clusters='auto' does not look at wanted labels; got y; pass a number of "
                "clusters, or leave y out"
            )
        with fitting(self):
            seed, verbose = self.random_state, self.verbose
            self.number_ = n_clusters(self, X, random_state=seed, verbose=verbose, **given)
            chosen = self.number_.n_clusters_
            model = clone(self).set_params(n_clusters=chosen, random_state=self.random_state)
            model.fit(X, **given)
            parameters = model.get_params(deep=False)
            for name, value in vars(model).items():
                if name not in parameters:
                    setattr(self, name, value)
        return self
