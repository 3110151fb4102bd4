"""Significance tests and confidences of one fit, for its page and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.evidence import Confidence, Evidence, confidence, test

__all__ = ["Tested", "tested"]


@dataclass(frozen=True)
class Tested:
    """What `nrprob.evidence` says of a fit.

    Attributes
    ----------
    evidence : of its clusters; None where rows or method have no test
    confidence : of its rows, with ``rows_``; None where that was withheld, or there is none
    said : what was found, or why nothing was, in sentences
    """

    evidence: Evidence | None
    confidence: Confidence | None
    said: tuple[str, ...]

    @property
    def summary(self) -> Mapping[str, Any]:
        """What `result.json` says of it."""
        result: dict[str, Any] = {"evidence": {"said": list(self.said)}}
        if self.evidence is not None:
            result["evidence"]["p_structure"] = self.evidence.p_structure_
            result["evidence"]["p_gap"] = self.evidence.p_gap_
        if self.confidence is not None:
            clusters = np.asarray(self.confidence.clusters_, float)
            result["confidence"] = [None if np.isnan(c) else c for c in clusters.tolist()]
        return result


def tested(
    estimator: Any,
    X: Any,
    known: np.ndarray | None,
    *,
    alpha: float = 0.05,
    evidence: Evidence | None = None,
    alert: str = "",
) -> Tested:
    """Test the clusters that an estimator finds, and ask how sure rows are.

    Parameters
    ----------
    estimator : fitted to ``X``; it is left as it is. The results use its cluster labels, and its
        seed is that of the tests
    X : array of shape (n_samples, n_features)
    known : array or None
    alpha : level of the test
    evidence : of the clusters, where they are tested already
    alert : `FitResult.alert` of its clusters, for which confidence is withheld
    """
    given = {"known": known, "random_state": estimator.get_params().get("random_state")}
    try:
        result = evidence or test(estimator, X, alpha=alpha, **given)
    except (TypeError, ValueError) as error:
        return Tested(None, None, (f"these clusters have no test: {error}",))
    alone = "confidence withheld: one feature determines the clusters"
    if alert:
        return Tested(result, None, (str(result), alone))
    try:
        sure = confidence(estimator, X, evidence=result, **given)
    except (TypeError, ValueError) as error:
        return Tested(result, None, (str(result), f"confidence withheld: {error}"))
    if sure.rows_ is None:
        why = "confidence withheld: no evidence of clusters"
        over = result.p_structure_ > result.alpha
        return Tested(result, None, (str(result), why if over else alone))
    return Tested(result, sure, (str(result), str(sure).partition(" (")[0]))
