"""Is it real: whether there is anything in the rows beyond what is known, how much, and how sure.

`test` asks whether a clusterer's clusters describe rows that it has not seen better than one cloud
per known group does, and whether there are gaps between them, and answers by an `Evidence`: two
p-values, a sentence and a picture. `n_clusters` chooses their number, by rows held out as well, and
`confidence` says how sure every row and every cluster is, by refits to resampled rows.

Another clusterer takes part with its own density if it implements
`nrprob.estimator.density.DensityEstimator`.
"""

from nrprob.evidence.certainty import Confidence, confidence
from nrprob.evidence.model_selection import NumberOfClusters, n_clusters
from nrprob.evidence.record import Evidence
from nrprob.evidence.structure import test

__all__ = ["test", "Evidence", "n_clusters", "NumberOfClusters", "confidence", "Confidence"]
