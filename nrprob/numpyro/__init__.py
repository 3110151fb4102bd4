"""Partitions as sites of NumPyro models.

`partition` adds a Gaussian mixture with an unknown number of components to a NumPyro model. The
samples of the mixture are rows of an array, which may depend on other sites of the model. For
example, the rows may be the residuals of a regression.
`PartitionGibbs` samples all sites jointly: the continuous sites by NUTS, and the partition with its
hyperparameters by the moves of `nrprob.MDLMixture`.
"""

from nrprob.numpyro.kernel import PartitionGibbs
from nrprob.numpyro.site import partition

__all__ = ["PartitionGibbs", "partition"]
