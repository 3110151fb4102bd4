"""Simulated folders of results, without any compilation."""

import json
import math
from dataclasses import replace

import numpy as np
import xarray

from nrprob.batch.fits import Fit
from nrprob.batch.modelfile import read_model
from nrprob.batch.plan import expand
from nrprob.batch.store import CIRCUMSTANCES, Store, fits_to_dataset, netcdf_bytes

MEASURES = {
    "accuracy": {"metric": "matched_accuracy", "labeling": "partition_1"},
    "distance": {"metric": "variation_of_information", "labeling": "partition_1"},
    "old": {"metric": "purity", "labeling": "partition_0", "goal": "none"},
}
METHODS = [
    {"name": "ccib", "title": "ours", "n_clusters": 2},
    {"name": "ib", "title": "plain", "n_clusters": 2},
]


MADE = dict.fromkeys(MEASURES, 0.5)


def make_model(**changes):
    model = {
        "title": "A <title> & more",
        "data": {
            "generator": "make_binary_partitions",
            "parameters": {"n_samples": 20},
            "cases": [{"dims": [4, 4]}, {"dims": [12, 4]}],
            "repeats": 3,
        },
        "known": "partition_0",
        "runs": 2,
        "methods": METHODS,
        "measures": MEASURES,
    }
    return model | changes


def table(published, where=None, **more):
    setting = {"where": {"dims": [4, 4]} if where is None else where, "published": published}
    return {"name": "T", "settings": [setting], **more}


def measured(cell, value):
    """A simulated fit; ``value`` determines its measures and its seconds."""
    scores = dict(value(cell))
    return Fit(
        title=cell.method, method="CCIB", parameters={}, labels=np.arange(4) % 2, membership=None,
        objective=scores.pop("objective", 1.5), trace=np.empty(0), restarts=np.ones(2),
        n_clusters=2, converged=cell.run == 0, n_iter=3, seconds=scores.pop("seconds", 0.25),
        warnings=[] if cell.run == 0 else ["did not converge <after> 3 steps"], scores=scores,
        compile_seconds=4.0 if cell.method == "ours" else math.nan,
    )  # fmt: skip


def make_run(
    folder, model, value=None, keep=lambda cell: True, numpy=lambda cell: "2.0", **circumstances
):
    """A folder of results in the form of `nrprob run`; ``model`` is a model or its file."""
    value = value or random_value(0)
    origin = {} if isinstance(model, dict) else {"model_file": {str(model): ""}}
    plan = replace(expand(read_model(model)), origin=origin)
    store = Store(folder)
    store.open(plan)
    cells = [cell for batch in plan.batches for cell in batch.cells if keep(cell)]
    if cells:
        # A few files are faster to write, and `load` supports them.
        for version in dict.fromkeys(map(numpy, cells)):
            fits = {c: measured(c, value) for c in cells if numpy(c) == version}
            made = {
                "started": "2005-05-01T12:30:00+00:00", "host": "a host", "device": "1 x cpu",
                "versions": json.dumps({"numpy": version}), **circumstances,
            }  # fmt: skip
            store.write(plan.batches[0], netcdf_bytes(fits_to_dataset(fits, made)))
    return folder


def random_value(seed):
    rng = np.random.default_rng(seed)
    return lambda cell: {name: rng.random() for name in [*MEASURES, "seconds", "objective"]}


WANTED = {
    "partial_labels": {"labeling": "partition_1", "fraction": [0.05, 0.2]},
    "methods": [METHODS[0], METHODS[1] | {"use_labels": False}],
    "figures": [{"name": "F", "x": "partial_labels.fraction", "y": "accuracy"}],
}


def assert_same_results(one, other):
    """Compare results without their time and place."""
    drop = [name for name in CIRCUMSTANCES if name in one]
    xarray.testing.assert_identical(one.drop_vars(drop), other.drop_vars(drop))
