"""One of two processes with different rows: python half_of_the_rows.py NUMBER PORT."""

import json
import sys
import warnings

import jax
import numpy as np

number, port = int(sys.argv[1]), sys.argv[2]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, number)

import nrprob  # noqa: E402
from nrprob import CCIB, ConditionalMixture  # noqa: E402

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
n, d, k = 1200, 4, 3
known, sought = rng.integers(3, size=n), rng.integers(k, size=n)
X = rng.normal(size=(n, d)) + 4 * rng.normal(size=(3, d))[known]
X = (X + 3.0 * np.eye(k, d)[sought]).astype(np.float32)
own = slice(0, 500) if number == 0 else slice(500, n)
out = []
for model in (
    CCIB(k, cooling=2.0, n_init=2, random_state=0),
    ConditionalMixture(k, n_init=6, random_state=0),
):
    model.fit(nrprob.stored(X[own], processes=True), known=known[own])
    out.append((model.labels_.tolist(), model.objective_))
# Even without a seed, all processes have equal initial values.
model = ConditionalMixture(k, n_init=4).fit(nrprob.stored(X[own], processes=True), known=known[own])
out.append(model.start_table_.objective.tolist())
# A discrete column, and effects that are fitted with the clusters.
flag = rng.random(n) < 0.2 + 0.6 * (sought == 0)
table = np.column_stack([X, flag])
model = ConditionalMixture(k, n_init=4, effects="random", random_state=0)
model.fit(nrprob.stored(table[own], processes=True), known=known[own])
out.append((model.labels_.tolist(), model.objective_, list(model.columns_.values())))
print(json.dumps(out))
