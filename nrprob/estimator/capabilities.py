"""Inputs of an estimator, and how its fits are run: one record on its class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["KINDS", "Capabilities"]

# Types of known structure: one or several labelings, soft `nrprob.known.Memberships`, and
# continuous covariates, alone or in a frame with labels.
KINDS = ("labels", "memberships", "continuous")


@dataclass(frozen=True)
class Capabilities:
    """Inputs of the `fit` of an estimator, and how batch runs schedule it.

    A class lists what differs from the defaults. `nrprob.batch.registry`, the command line and the
    tests of the contract read this record. It does not include parameters and solvers, which the
    constructor of the class declares (`nrprob.estimator.parameters`).

    Attributes
    ----------
    known : kinds of known structure that `fit` takes, of `KINDS`; empty if it takes none
    known_as : keyword of `fit` and `predict` for the known structure
    singleton_groups : whether each sample may be a known group of its own
    labels : whether `fit` uses partial labels ``y``
    weights : whether `fit` takes ``sample_weight``
    predicts_classes : whether `predict` returns the classes of ``y``; False if clusters are not
        tied to classes
    pairs : whether `fit` takes ``must_link`` and ``cannot_link``
    views : whether `fit` takes a list of tables, one for each view of the samples
    finds_number : whether the number of clusters may be "auto"
    mixed : whether X may be a frame with text, and may have missing values
    sparse : whether X may be a sparse matrix under the default parameters
    nonnegative : whether X must not have negative values
    squares : whether fits square the features, so that `fit` refuses features whose squares
        overflow or vanish
    alone : whether a batch run fits each estimator in a program of its own
    arrays : largest arrays of a fit, each a product of n samples, m features, k clusters,
        r restarts, d draws and s samples in tables of all pairs; see `nrprob.batch.cost`
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
    alone: bool = False
    arrays: tuple[str, ...] = ("nkr",)

    def keywords(self, known: Any) -> dict[str, Any]:
        """Known structure as a keyword of `fit`; empty if there is none."""
        return {self.known_as: known} if self.known and known is not None else {}
