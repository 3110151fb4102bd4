"""Significance tests, the number of clusters, and confidences of clusterings.

`test` gives two p-values: whether clusters predict held-out samples better than one elliptical
distribution per known group, and whether there are low-density gaps between them. `n_clusters`
chooses the number of clusters by held-out log-likelihood. `confidence` gives bootstrap confidences
of samples and clusters.

`test` takes any clusterer. An estimator takes part with its own density if it implements
`nrprob.estimator.density.DensityEstimator`.
"""

from nrprob.evidence.bootstrap import Confidence, confidence
from nrprob.evidence.model_selection import NumberOfClusters, n_clusters
from nrprob.evidence.record import Evidence
from nrprob.evidence.structure import test

__all__ = ["test", "Evidence", "n_clusters", "NumberOfClusters", "confidence", "Confidence"]
