"""Base class of the information bottleneck estimators: features, solver and temperatures."""

from __future__ import annotations

import numpy as np

from nrprob.data.storage.stored import Survey, survey_rows
from nrprob.engines import sharding
from nrprob.estimator.base import fit_context, row_means
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.linear import FeatureParameters, ScoreMixin, Task
from nrprob.estimator.stored import fit_terms
from nrprob.estimator.terms import Descent, TermEstimator
from nrprob.settings import standard


class BottleneckEstimator(FeatureParameters, ScoreMixin, TermEstimator):
    """Base class of clusterers whose objective contains a compression term.

    The term is [alpha H(C) - H(C|X)] / beta, with the entropy H, clusters C, rows X, the inverse
    temperature beta and the compression alpha. With alpha = 1, the term is I(C;X) / beta, with the
    mutual information I.
    """

    capabilities = Capabilities(known=("labels", "memberships"), sparse=True)

    _keeps_rows = True

    @property
    def _takes_sparse(self) -> bool:
        # With other solvers, sparse rows must be counts, so the estimator claims no sparse support.
        return self.solver in ("anneal", "agglomerative", "split")

    @property
    def _unit(self) -> str:
        return f"the best restart of solver={self.solver!r}"

    def _make_descent(
        self, beta: float | None = None, compression: float = 1.0, quench: float = 100.0
    ) -> Descent:
        """Return the settings of the solver.

        Parameters
        ----------
        beta : fixed inverse temperature; None to anneal it to infinity
        compression : weight alpha of H(C)
        quench : value that replaces the parameter ``quench`` if this is "auto"
        """
        return Descent(
            solver=self.solver,
            beta=np.inf if beta is None else float(beta),
            compression=float(compression),
            quench=quench if isinstance(self.quench, str) else float(self.quench),
            cooling=float(self.cooling),
            noise=float(self.noise),
            tol=float(self.tol),
        )

    @property
    def _takes_stored(self) -> bool:
        return self.solver == "anneal" and not self._descent().damped

    def _fit_stored(self, rows, y, known=None):
        if self.solver != "anneal":
            raise ValueError(
                f"stored rows need solver='anneal'; got solver={self.solver!r}; use that solver, "
                "or pass rows in memory"
            )
        if self._descent().damped:
            raise ValueError(
                f"{type(self).__name__} with damped=True needs rows in memory; got stored rows; "
                "pass an array, or use CCIB or IB"
            )
        if sharding.active_mesh() is not None:
            raise ValueError(
                "stored rows are processed on one device; got a fit within nrprob.sharded; "
                "fit outside of it, or pass rows in memory"
            )
        with fit_context(self), standard(), survey_rows(rows, known, y) as seen:
            return fit_terms(self, seen)

    def stored_task(self, survey: Survey, fixed: np.ndarray | None) -> Task:
        """Task of a fit to `nrprob.stored` rows: their known groups, and an empty array of rows.

        ``survey`` describes the stored rows. ``fixed`` (n,) are the classes of the n rows, -1 where
        unknown; None without labels.
        """
        self._encoder = survey.encoder
        self._check_groups(survey.design)
        x = np.empty((0, len(survey.moments.mean)), survey.source.dtype)
        return Task(None, x, fixed, survey.design)

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        super().finish(task, result)
        w = self.membership_ if task.weights is None else self.membership_ * task.weights[:, None]
        self.cluster_centers_ = row_means(task.X, w)
        return self
