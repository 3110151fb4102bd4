"""Messages about invalid values: one short sentence, without the values of arrays."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import sparse

from nrprob import (
    IB,
    CrossPartition,
    MixtureEM,
    batch,
    cache,
    codelength,
    datasets,
    evidence,
    explore,
    metrics,
    plotting,
    posterior,
    prepare,
    sharded,
    stored,
)
from nrprob.exceptions import InputError, short_repr
from nrprob.files import as_path
from nrprob.plotting.style import as_axes, check_axes

LABELS = np.arange(24) % 2
X = np.random.default_rng(0).normal(size=(24, 3))
DRAWS = np.stack([LABELS, LABELS[::-1]])


class Broken:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (np.float64(0.5), "0.5"),
        ("a\nb", r"'a\nb'"),
        (None, "None"),
        ([1, 2], "[1, 2]"),
        (X, "ndarray of shape (24, 3)"),
        ([X], "list of 1 entries"),
        (list(range(100)), "list of 100 entries"),
        ("x" * 100, f"'{'x' * 60}' and 40 more characters"),
        (10**400, "a huge integer"),
        (Broken(), "Broken object"),
    ],
)
def test_values_in_messages_are_short(value, text):
    assert short_repr(value) == text


def test_an_integer_of_more_digits_than_python_prints():
    assert short_repr(10**5000) == "a huge integer"


PICTURES = {
    "plot_annealing": lambda ax: plotting.plot_annealing(IB(), ax),
    "plot_by_n_clusters": lambda ax: plotting.plot_by_n_clusters(IB(), ax),
    "plot_contingency": lambda ax: plotting.plot_contingency(LABELS, LABELS, ax),
    "plot_hierarchy": lambda ax: plotting.plot_hierarchy(IB(), ax),
    "plot_members": lambda ax: plotting.plot_members(IB(), ax=ax),
    "plot_residuals": lambda ax: plotting.plot_residuals(X, LABELS, axes=[ax, ax]),
    "plot_alternatives": lambda ax: plotting.plot_alternatives(X, LABELS, axes=[ax]),
    "plot_top_features": lambda ax: plotting.plot_top_features(X, LABELS, axes=[ax, ax]),
    "plot_centroids": lambda ax: plotting.plot_centroids(X, LABELS, LABELS, axes=[ax] * 3),
    "plot_coclustering": lambda ax: posterior.plot_coclustering(DRAWS, ax=ax),
    "plot_n_clusters": lambda ax: posterior.plot_n_clusters(DRAWS, ax),
    "ClusterPath.plot": lambda ax: posterior.cluster_path(DRAWS, X).plot(ax),
}


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_refuses_what_are_no_axes(name):
    with pytest.raises(TypeError, match="ax.* must be a matplotlib Axes .* got 'ax'; pass"):
        PICTURES[name]("ax")


def test_axes_that_cannot_be_drawn_in():
    figure = Figure()
    solid, axes = figure.add_subplot(1, 2, 1, projection="3d"), figure.add_subplot(1, 2, 2)
    check_axes(axes)
    check_axes(None)
    with pytest.raises(TypeError, match="got 3d axes"):
        check_axes(solid)
    with pytest.raises(ValueError, match="got the same Axes twice"):
        as_axes([axes, axes], 2)
    axes.remove()
    with pytest.raises(ValueError, match="axes that were removed"):
        check_axes(axes)


@pytest.mark.parametrize("name", ["plot_annealing", "plot_hierarchy", "plot_members"])
@pytest.mark.parametrize("model", [IB(), IB, None, "IB", X])
def test_pictures_of_a_fit_refuse_everything_else(name, model):
    with pytest.raises(TypeError, match="model must be .*, fitted; got .*; fit it first"):
        getattr(plotting, name)(model)


HUGE = 2**31 - 1
REFUSED = {
    "table of complexities": lambda: codelength.multinomial_table(2**31, 5),
    "many complexities": lambda: codelength.multinomial_complexity(10**6, np.arange(10**4)),
    "k-means": lambda: codelength.kmeans_length(X, LABELS, n_clusters=HUGE),
    "align": lambda: posterior.align(DRAWS, n_components=HUGE),
    "point estimate": lambda: posterior.point_estimate(DRAWS, n_init=10**9),
    "binary partitions": lambda: datasets.make_binary_partitions(10**8, [2000]),
    "clusters": lambda: datasets.make_binary_partitions(10, [2], HUGE),
    "patterns": lambda: datasets.bayes_precision(HUGE, HUGE),
    "cells": lambda: datasets.make_cell_counts(HUGE),
    "views": lambda: datasets.make_gaussian_views(HUGE),
    "informed views": lambda: datasets.make_informed_views(10, n_views=HUGE, n_features=HUGE),
    "multinomials": lambda: datasets.make_multinomial_2d(HUGE, 2, 2),
    "dialects": lambda: datasets.make_dialect_counts(np.ones((24, 3)), LABELS, HUGE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_more_than_fits_into_memory_is_refused_before_it_is_made(name):
    with pytest.raises(ValueError, match=r"; .*\d") as caught:
        REFUSED[name]()
    assert "\n" not in str(caught.value)


SPEC = {"data": {"loader": "iris"}, "methods": [{"name": "ib", "n_clusters": 2}]}
WRONG = {
    "one dimension": (
        lambda: metrics.silhouette_width(X[:, 0], LABELS),
        "Reshape your data, .* 1D",
    ),
    "complex": (lambda: metrics.silhouette_width(X + 1j, LABELS), "Complex data not supported"),
    "number": (lambda: codelength.kraft_sum([1.0], base=np.ones(3)), r"ndarray of shape \(3,\)"),
    "seed": (lambda: posterior.relabel(DRAWS, random_state=X), r"got ndarray of shape \(24, 3\)"),
    "word": (lambda: metrics.mean_dissimilarity(DRAWS, measure=X), r"got ndarray of shape"),
    "ragged": (lambda: posterior.relabel(DRAWS, [[1], [1, 2]]), "rows of different lengths"),
    "overflow": (lambda: metrics.vector_quantization_error(X * 1e300, LABELS), "squares overflow"),
    "labels": (lambda: codelength.kmeans_length(X, [None, *LABELS[1:]]), "labels must be of one"),
    "variance": (lambda: codelength.gaussian_length(5, -1, 0.1, 2, 3), "variance must be finite"),
    "total": (lambda: codelength.exponential_length(5, np.inf, 0.1, 2), "total must be finite"),
    "range": (lambda: codelength.gaussian_complexity(5, [2, 2], 1, 1), r"low=ndarray of shape"),
    "data set": (lambda: datasets.load(["iris"]), "must be a string; got"),
    "classes": (lambda: datasets.make_crossed_counts(X**2, LABELS, 0, [1]), "must list classes"),
    "dropped": (lambda: prepare(X, drop=3), "drop must be a list of column names; got 3"),
    "known": (lambda: prepare(X, known={"a": LABELS}), "known has no rows for 24 rows of X"),
    "devices": (lambda: sharded("cpu").__enter__(), "devices must be a list of JAX's devices"),
    "title": (lambda: plotting.plot_contingency(LABELS, LABELS, labels_name=X), "must be a string"),
    "surrogate": (
        lambda: plotting.plot_contingency(LABELS, LABELS, labels_name="\udcff"),
        "surrogate characters",
    ),
    "names": (lambda: plotting.plot_centroids(X, LABELS, LABELS, None, "abc"), "a list or an"),
    "cluster": (lambda: plotting.plot_top_features(X, LABELS, clusters=[[0]]), "got .0.; leave"),
    "evidence": (
        lambda: evidence.confidence(MixtureEM(2), X, evidence=X),
        "a result of nrprob.evidence.test",
    ),
    "folder": (lambda: batch.load(X), r"folder must be a path; got ndarray of shape \(24, 3\)"),
    "report": (lambda: batch.write_report("a\nb"), "without control characters"),
    "model file": (lambda: batch.read_model(X), r"must be a path; got ndarray of shape"),
    "entry": (lambda: batch.read_model(SPEC | {"known": X}), r"known.str = ndarray of"),
    "condition": (
        lambda: batch.run(SPEC, only=[3]),
        "only must list conditions",
    ),
    "rows": (lambda: stored("x" * 5000 + ".npy"), "and 4944 more characters"),
    "scheduler": (lambda: stored(X, scheduler=np.inf), "a scheduler is an address, .* got inf"),
    "sparse": (lambda: stored(sparse.csr_array(X)), "an Arrow dataset, .* got csr_array"),
    "one name": (
        lambda: prepare(pd.DataFrame(X), known=pd.DataFrame(X, columns=list("aab"))),
        "known must have columns of different names; got 'a' more",
    ),
    "explored": (lambda: explore(X, CrossPartition(2)), "takes no known structure"),
    "no rows": (lambda: explore(np.empty((0, 5))), "X must have rows; got none"),
    "cache": (lambda: cache("a\0b"), "without control characters"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_a_sentence(name):
    call, message = WRONG[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    lines = str(caught.value).split("\n")
    assert re.search(message, lines[0]) and all(len(line) < 400 for line in lines)
    assert len(lines) == 1 or isinstance(caught.value, InputError)


def test_paths():
    assert as_path("a/b", "path") == as_path(Path("a/b"), "path") == Path("a/b")
    for path in ("a\0", "x" * 256, "a/" * 4000, "\udcff"):
        with pytest.raises(InputError, match="path must be a path of UTF-8 text"):
            as_path(path, "path")
    for path in (3, b"a", None, [Path()]):
        with pytest.raises(TypeError, match="path must be a path; got"):
            as_path(path, "path")
