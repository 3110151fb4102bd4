"""One of every estimator, and of the kinds that compute in another way, with little to do."""

from nrprob import (
    CCIB,
    CMBC,
    IB,
    IBSI,
    CondEns,
    COPKMeans,
    MDLConstrained,
    MDLMixture,
    MDLMultiView,
    MixtureEM,
    ResidualMixture,
    ResidualSpectral,
)

QUICK = {"n_init": 2, "random_state": 0}
DRAWS = {"num_warmup": 4, "num_samples": 4, "num_chains": 2, "random_state": 0}
# Those that take known structure.
KNOWN = {
    "CCIB": CCIB(2, **QUICK),
    "CCIB of models": CCIB(2, multi="additive", **QUICK),
    "IBSI": IBSI(2, gamma=1.0, **QUICK),
    "CMBC": CMBC(2, **QUICK),
    "CondEns": CondEns(2, n_init_base=2, extension="adjusted", **QUICK),
    "ResidualMixture": ResidualMixture(2, metrics=(0.0,), n_init=8, random_state=0),
    "ResidualSpectral": ResidualSpectral(2, members=2, random_state=0),
}
ALL = KNOWN | {
    "IB": IB(2, **QUICK),
    "IB that merges": IB(2, solver="agglomerative"),
    "MixtureEM": MixtureEM(2, **QUICK),
    "MDLMixture": MDLMixture(max_clusters=4, variance_floor=0.2, **DRAWS),
    "MDLMixture of six moves": MDLMixture(
        max_clusters=4, variance_floor=0.2, kernel="six-move", **DRAWS
    ),
    "MDLMultiView": MDLMultiView(2, n_init=2, max_clusters=2, random_state=0),
    "MDLConstrained": MDLConstrained(2, **QUICK),
    "COPKMeans": COPKMeans(2, **QUICK),
}
