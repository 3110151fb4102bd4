"""Record of the inputs of an estimator, and of how batch runs execute its fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["KINDS", "Capabilities"]

# Types of known structure: one or several labelings, soft `nrprob.known.Memberships`, and
# continuous covariates, alone or in a frame with labels.
KINDS = ("labels", "memberships", "continuous")


@dataclass(frozen=True)
class Capabilities:
    """Inputs that `fit` of an estimator takes, and how batch runs execute fits.

    A class passes the values that differ from the defaults. `nrprob.batch.registry`, the command
    line and the contract tests of estimators read this record. Parameters and solvers are not part
    of it: the constructor of the class declares them (`nrprob.estimator.parameters`).

    Attributes
    ----------
    known : types of known structure that `fit` takes, among `KINDS`; empty if `fit` takes none
    known_as : keyword of `fit` and `predict` for the known structure
    singleton_groups : whether every sample may be a separate known group
    labels : whether `fit` uses partial labels ``y``
    weights : whether `fit` takes ``sample_weight``
    predicts_classes : whether `predict` returns the classes of ``y`` as integers; False if clusters
        do not correspond to classes
    pairs : whether `fit` takes ``must_link`` and ``cannot_link``
    views : whether `fit` takes a list of tables, one for each view of the samples
    finds_number : whether the number of clusters may be "auto"
    mixed : whether X may be a frame with text, and may have missing values
    sparse : whether X may be a sparse matrix under the default parameters
    nonnegative : whether X must not have negative values
    squares : whether fits square the features, so that `fit` refuses features whose squares
        overflow or underflow
    votes : whether memberships are shares of the members of an ensemble that agree on a cluster
    alone : whether batch runs execute every fit separately, and not many fits in one program
    arrays : sizes of the largest arrays of a fit, from which `nrprob.batch.cost` estimates its
        memory. Every letter is a factor: n samples, m features, k clusters, r restarts, d posterior
        draws, s samples in a table of all pairs of samples. For example, "nkr" is an array of
        n k r numbers
    """

    known: tuple[str, ...] = ("labels",)
    known_as: str = "known"
    singleton_groups: bool = False
    labels: bool = True
    weights: bool = False
    predicts_classes: bool = True
    pairs: bool = False
    views: bool = False
    finds_number: bool = False
    mixed: bool = False
    sparse: bool = False
    nonnegative: bool = False
    squares: bool = True
    votes: bool = False
    alone: bool = False
    arrays: tuple[str, ...] = ("nkr",)

    def keywords(self, known: Any) -> dict[str, Any]:
        """Return ``known`` as a keyword of `fit`; empty if ``known`` is None or not accepted."""
        return {self.known_as: known} if self.known and known is not None else {}
