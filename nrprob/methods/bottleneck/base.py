"""Parameters that all bottlenecks have: of the features, of the solver, and of its temperatures."""

from __future__ import annotations

import numpy as np

from nrprob.estimator.base import row_means
from nrprob.estimator.linear import FeatureParameters, ScoreMixin
from nrprob.estimator.terms import Descent, TermEstimator


class BottleneckEstimator(FeatureParameters, ScoreMixin, TermEstimator):
    """Clusterer that charges I(C;X)/beta for what clusters keep of the rows."""

    _keeps_rows = True

    @property
    def _takes_sparse(self) -> bool:
        # Sequential reassignment takes sparse counts, but not every sparse matrix.
        return self.solver in ("anneal", "agglomerative", "split")

    @property
    def _unit(self) -> str:
        return f"the best restart of solver={self.solver!r}"

    def _free(
        self, beta: float | None = None, information: bool = True, quench: float = 100.0
    ) -> Descent:
        """Return the descent of the parameters; ``quench`` is what "auto" stands for."""
        return Descent(
            solver=self.solver,
            beta=np.inf if beta is None else float(beta),
            information=bool(information),
            quench=quench if isinstance(self.quench, str) else float(self.quench),
            cooling=float(self.cooling),
            noise=float(self.noise),
            tol=float(self.tol),
        )

    def finish(self, task, found):
        """Set the fitted attributes; see `Clusterer.finish`."""
        super().finish(task, found)
        self.cluster_centers_ = row_means(task.X, self.membership_)
        return self
