"""Partitions as sites of NumPyro models.

`partition` adds a Gaussian mixture with an unknown number of components to a NumPyro model. Its
rows may depend on other sites of the model, for example as residuals of a regression.
`PartitionGibbs` samples all sites jointly: the continuous sites by NUTS, and the partition with its
hyperparameters by the moves of `nrprob.MDLMixture`.
"""

from nrprob.numpyro.kernel import PartitionGibbs
from nrprob.numpyro.site import partition

__all__ = ["PartitionGibbs", "partition"]
