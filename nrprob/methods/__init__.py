"""Clustering methods: one subpackage per family; only `ensemble` imports other subpackages."""

# Short name of every estimator, as in model files and on the command line -> module and class.
# The public names of `nrprob`, the registry and the contract tests follow from this table.
ESTIMATORS = {
    "ccib": "nrprob.methods.bottleneck.ccib:CCIB",
    "ibsi": "nrprob.methods.bottleneck.ib:IBSI",
    "cmbc": "nrprob.methods.cmbc.estimator:CMBC",
    "condens": "nrprob.methods.ensemble.condens:CondEns",
    "residual-spectral": "nrprob.methods.conditional.spectral:ResidualSpectral",
    "conditional-mixture": "nrprob.methods.conditional.estimator:ConditionalMixture",
    "ib": "nrprob.methods.bottleneck.ib:IB",
    "mixture": "nrprob.methods.mixture.em:MixtureEM",
    "mdl_mixture": "nrprob.methods.bayes.estimator:MDLMixture",
    "mdl_multiview": "nrprob.methods.mdl.multiview:MDLMultiView",
    "mdl_constrained": "nrprob.methods.mdl.constrained:MDLConstrained",
    "cop_kmeans": "nrprob.methods.mdl.cop_kmeans:COPKMeans",
    "cross_partition": "nrprob.methods.crosspartition.estimator:CrossPartition",
    "cecib": "nrprob.methods.cec.estimator:CECIB",
    "orthogonalization": "nrprob.methods.alternatives.orthogonalization:Orthogonalization",
    "adft": "nrprob.methods.alternatives.adft:ADFT",
    "dec_kmeans": "nrprob.methods.alternatives.dec_kmeans:DecKMeans",
    "conv_em": "nrprob.methods.alternatives.conv_em:ConvEM",
    "cami": "nrprob.methods.alternatives.cami:CAMI",
    "naci": "nrprob.methods.alternatives.naci:NACI",
    "coala": "nrprob.methods.alternatives.coala:COALA",
    "constrained_mixture": "nrprob.methods.cec.constrained_mixture:ConstrainedMixture",
    "partition_kmeans": "nrprob.methods.cec.partition_kmeans:PartitionKMeans",
    "semi_supervised_fcm": "nrprob.methods.cec.fuzzy:SemiSupervisedFCM",
    "semi_supervised_spectral": "nrprob.methods.cec.spectral:SemiSupervisedSpectral",
}
