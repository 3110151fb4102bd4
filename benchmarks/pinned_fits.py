"""Fifty small fits whose results a refactoring must not change.

    python benchmarks/pinned_fits.py record before.json      # at the old state
    python benchmarks/pinned_fits.py compare before.json     # at the new one, on the same machine

The fits cover all estimators and their variants, in float64 with fixed seeds. Objectives must agree
to a relative 1e-9, labels of the fit and of `predict` exactly, and memberships to 1e-7. Results of
another machine differ by rounding, which annealing may amplify, so compare on the same machine.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
from scipy import sparse

import nrprob
from nrprob.datasets import make_binary_partitions
from nrprob.known import Memberships

RNG = np.random.default_rng(0)
N = 60
BINARY, LABELS = make_binary_partitions(N, (6, 4), random_state=0)
GROUPS = LABELS[:, 0]
OTHER = RNG.integers(0, 3, N)
CENTRES = np.array([[0, 0, 0, 0], [4, 0, 0, 2], [0, 4, 2, 0]])
REAL = RNG.normal(size=(N, 4)) + CENTRES[np.arange(N) % 3]
REAL[:, 3] += 3 * GROUPS
COUNTS = RNG.poisson(1 + 4 * np.eye(3)[np.arange(N) % 3] @ RNG.random((3, 12))).astype(float)
SPARSE = sparse.csr_array(COUNTS)
WANTED = np.where(RNG.random(N) < 0.2, np.arange(N) % 3, -1)
CONTINUOUS = RNG.normal(size=(N, 2))
SOFT = Memberships(np.eye(2)[GROUPS] * 0.8 + 0.1)
LINK = np.array([[0, 3], [3, 6], [1, 4]])
APART = np.array([[0, 1], [4, 5], [2, 7]])
QUICK = {"n_init": 2, "random_state": 0}
DRAWS = {"num_warmup": 20, "num_samples": 20, "num_chains": 2, "random_state": 0}


def fits() -> dict:
    """Name -> unfitted estimator, rows, and further arguments of `fit`."""
    both = np.stack([GROUPS, OTHER], 1)
    n = nrprob
    return {
        "IB": (n.IB(3, **QUICK), BINARY, {}),
        "IB, gaussian, labels": (n.IB(3, **QUICK), REAL, {"y": WANTED}),
        "IB, counts, soft": (n.IB(3, beta=20.0, **QUICK), COUNTS, {}),
        "IB, information distortion": (n.IB(3, beta=3.0, compression=0.0, **QUICK), REAL, {}),
        "IB, sequential, sparse": (n.IB(3, solver="sequential", **QUICK), SPARSE, {}),
        "IB, batched": (n.IB(3, solver="batched", **QUICK), REAL, {}),
        "IB, agglomerative": (n.IB(3, solver="agglomerative"), COUNTS, {"y": WANTED}),
        "IBSI": (n.IBSI(2, gamma=8.0, **QUICK), BINARY, {"known": GROUPS}),
        "IBSI, published": (n.IBSI(2, gamma=1.0, damped=False, **QUICK), REAL, {"known": GROUPS}),
        "IBSI, sequential": (n.IBSI(2, gamma=8.0, solver="sequential", **QUICK), BINARY,
                             {"known": GROUPS}),
        "CCIB": (n.CCIB(2, **QUICK), BINARY, {"known": GROUPS}),
        "CCIB, soft": (n.CCIB(3, **QUICK), REAL, {"known": SOFT}),
        "CCIB, marginal, sparse": (n.CCIB(3, **QUICK), SPARSE, {"known": GROUPS}),
        "CCIB, product": (n.CCIB(3, **QUICK), REAL, {"known": both}),
        "CCIB, sequential": (n.CCIB(3, solver="sequential", **QUICK), REAL, {"known": GROUPS}),
        "CCIB, batched": (n.CCIB(3, solver="batched", **QUICK), REAL, {"known": GROUPS}),
        "CCIB, agglomerative": (n.CCIB(3, solver="agglomerative"), REAL, {"known": GROUPS}),
        "CCIB, additive": (n.CCIB(3, multi="additive", **QUICK), REAL, {"known": both}),
        "CCIB, continuous, binary": (n.CCIB(2, **QUICK), BINARY, {"known": CONTINUOUS}),
        "CMBC": (n.CMBC(2, **QUICK), BINARY, {"known": GROUPS}),
        "CMBC, auto": (n.CMBC(2, strength="auto", **QUICK), BINARY, {"known": GROUPS}),
        "CMBC, printed": (n.CMBC(2, form="printed", update="batch", **QUICK), BINARY,
                          {"known": GROUPS}),
        "CMBC, partial": (n.CMBC(2, update="partial", max_iter=20, **QUICK), BINARY,
                          {"known": GROUPS}),
        "CMBC, exact, sum": (n.CMBC(2, update="exact", multi="additive", **QUICK), BINARY,
                             {"known": both}),
        "MixtureEM": (n.MixtureEM(3, **QUICK), REAL, {}),
        "MixtureEM, plain": (n.MixtureEM(3, covariance="diag", anneal=False, **QUICK), REAL,
                             {"y": WANTED}),
        "MixtureEM, counts": (n.MixtureEM(3, **QUICK), SPARSE, {"y": WANTED}),
        "MixtureEM, binary": (n.MixtureEM(2, weights="uniform", **QUICK), BINARY, {}),
        "CondEns": (n.CondEns(3, n_init_base=2, extension="adjusted", **QUICK), REAL,
                    {"known": GROUPS}),
        "CondEns, em": (n.CondEns(3, base="em", n_init_base=2, **QUICK), REAL,
                        {"known": GROUPS}),
        "ConditionalMixture": (
            n.ConditionalMixture(3, effects="subtract", n_init=24, random_state=0), REAL,
            {"known": GROUPS},
        ),
        "ConditionalMixture, t": (
            n.ConditionalMixture(3, errors="t", balance=1.0, n_init=24, random_state=0), REAL,
            {"known": both},
        ),
        "ResidualSpectral": (n.ResidualSpectral(3, members=3, **QUICK), SPARSE,
                             {"known": GROUPS}),
        "MDLMultiView": (n.MDLMultiView(2, **QUICK), [REAL[:, :2], REAL[:, 2:]], {}),
        "MDLMultiView, cluster": (n.MDLMultiView(2, sigma="cluster", geometry="exp", **QUICK),
                                  [REAL[:, :2], REAL[:, 2:]], {}),
        "MDLConstrained": (n.MDLConstrained(3, **QUICK), REAL,
                           {"must_link": LINK, "cannot_link": APART}),
        "MDLConstrained, soft": (n.MDLConstrained(3, constraints="soft", **QUICK), REAL,
                                 {"must_link": LINK, "cannot_link": APART}),
        "COPKMeans": (n.COPKMeans(3, **QUICK), REAL, {"must_link": LINK, "cannot_link": APART}),
        "Orthogonalization": (n.Orthogonalization(3, **QUICK), REAL, {"known": GROUPS}),
        "Orthogonalization, subspace": (n.Orthogonalization(3, variant="subspace", **QUICK), REAL,
                                        {"known": both}),
        "ADFT": (n.ADFT(3, base="kmeans", **QUICK), REAL, {"known": GROUPS}),
        "DecKMeans": (n.DecKMeans(3, **QUICK), REAL, {"known": GROUPS}),
        "ConvEM": (n.ConvEM(3, **QUICK), REAL, {"known": GROUPS}),
        "CAMI": (n.CAMI(3, **QUICK), REAL, {"known": GROUPS}),
        "NACI": (n.NACI(3), REAL, {"known": GROUPS}),
        "COALA": (n.COALA(3), REAL, {"known": both}),
        "MDLMixture": (n.MDLMixture(max_clusters=5, variance_floor=0.2, **DRAWS), REAL,
                       {"y": WANTED}),
        "MDLMixture, six moves": (n.MDLMixture(max_clusters=5, variance_floor=0.2,
                                               kernel="six-move", **DRAWS), REAL, {"y": WANTED}),
    }  # fmt: skip


def results(chosen: str = "") -> dict:
    """Name -> objective, labels, memberships and predicted labels."""
    jax.config.update("jax_enable_x64", False)  # the default, for any environment variables
    result = {}
    for name, (model, X, given) in fits().items():
        if chosen not in name:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, **given)
            new = {"known": given["known"]} if "known" in given else {}
            if isinstance(model, nrprob.MDLMultiView):
                new = {}
            predicted = model.predict(X, **new)
        labels = getattr(model, "alternatives_", model.labels_)
        result[name] = {
            "objective": getattr(model, "objective_", None),
            "labels": np.asarray(labels).tolist(),
            "membership": np.asarray(model.membership_).tolist()
            if isinstance(model.membership_, np.ndarray)
            else [np.asarray(m).tolist() for m in model.membership_],
            "predicted": np.asarray(predicted).tolist(),
        }
        print(f"{name}: {result[name]['objective']!r}", flush=True)
    return result


def differences(old: dict, new: dict) -> list[str]:
    """Differences between two results, in words."""
    said = []
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            said.append(f"{name}: only in one of the two")
            continue
        a, b = old[name], new[name]
        if a["objective"] is not None and not np.isclose(
            a["objective"], b["objective"], rtol=1e-9, atol=1e-9
        ):
            said.append(f"{name}: objective {a['objective']!r} became {b['objective']!r}")
        for what in ("labels", "predicted"):
            if not np.array_equal(a[what], b[what]):
                said.append(f"{name}: {what} differ")
        one, two = (json.dumps(x["membership"]) for x in (a, b))
        if one != two and not all(
            np.allclose(p, q, atol=1e-7)
            for p, q in zip(a["membership"], b["membership"], strict=True)
        ):
            said.append(f"{name}: memberships differ")
    return said


if __name__ == "__main__":
    todo, file = sys.argv[1], Path(sys.argv[2])
    if todo == "record":
        file.write_text(json.dumps(results()))
    else:
        before = json.loads(file.read_text())
        wrong = differences(before, results())
        print(*(wrong or [f"all {len(before)} fits are as before"]), sep="\n")
        sys.exit(bool(wrong))
