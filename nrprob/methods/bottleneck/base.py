"""Parameters that all bottlenecks have: of the features, of the solver, and of its temperatures."""

from __future__ import annotations

import numpy as np

from nrprob.estimator.base import row_means
from nrprob.estimator.linear import FeatureParameters, ScoreMixin
from nrprob.estimator.terms import SOLVERS, Descent, TermEstimator


class BottleneckEstimator(FeatureParameters, ScoreMixin, TermEstimator):
    """Clusterer that charges I(C;X)/beta for what clusters keep of the rows."""

    _keeps_rows = True
    _solvers: tuple[str, ...] = SOLVERS

    @property
    def _takes_sparse(self) -> bool:
        # Sequential reassignment takes sparse counts, but not every sparse matrix.
        return self.solver in ("anneal", "agglomerative", "split")

    @property
    def _unit(self) -> str:
        return f"the best restart of solver={self.solver!r}"

    def check_parameters(self) -> None:
        """Refuse parameters that are wrong whatever the data."""
        self._check_common()
        self._check_number("noise", self.noise, low=0, high=10)
        self._check_number("cooling", self.cooling, low=1.01, high=1e6)
        if isinstance(self.quench, str):
            self._check_choice("quench", self.quench, ("auto",), "or a number")
        else:
            self._check_number("quench", self.quench, low=1, high=1e5)
        self._check_choice("solver", self.solver, self._solvers)
        self._check_features()

    def _check_beta(self) -> None:
        if self.beta is not None:
            self._check_number("beta", self.beta, low=1e-9, high=1e12, infinite=True)

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
