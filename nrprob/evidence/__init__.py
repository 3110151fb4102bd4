"""Significance tests, choice of the number of clusters, and bootstrap confidences.

- `test` returns two p-values. ``p_structure_`` tests whether clusters predict held-out samples
  better than one elliptical distribution per known group. ``p_gap_`` tests for low-density gaps
  between clusters.
- `n_clusters` chooses the number of clusters by held-out log-likelihood.
- `confidence` returns the bootstrap probability that a sample belongs to its cluster.

`test` accepts any clusterer. If an estimator implements
`nrprob.estimator.density.DensityEstimator`, the functions use its density.
"""

from nrprob.evidence.bootstrap import Confidence, confidence
from nrprob.evidence.model_selection import NumberOfClusters, n_clusters
from nrprob.evidence.record import Evidence
from nrprob.evidence.structure import test

__all__ = ["test", "Evidence", "n_clusters", "NumberOfClusters", "confidence", "Confidence"]
