"""Annotated data: their rows and known structure, and the results that a fit writes."""

import dataclasses
import json
import re
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from typer.testing import CliRunner

from nrprob import (
    CCIB,
    IBSI,
    ConditionalMixture,
    CrossPartition,
    MDLMultiView,
    MixtureEM,
    annotate,
    evidence,
    explore,
    prepare,
    recommend,
    rows_of,
)
from nrprob.batch import tables
from nrprob.cli import app
from nrprob.data.annotated import describe_counts
from nrprob.evidence import Evidence
from nrprob.successive import Exploration

anndata = pytest.importorskip("anndata")

FIT = {"n_clusters": 2, "n_init": 2, "random_state": 0}


@pytest.fixture
def cells():
    """Counts with batch and type effects on different genes; an embedding, and raw counts."""
    rng = np.random.default_rng(0)
    batch, kind = rng.integers(2, size=(2, 60))
    rate = np.exp(np.outer(batch, [1, 1, 0, 0]) + np.outer(kind, [0, 0, 2, 0]))
    counts = rng.poisson(rate).astype(np.float32)
    obs = pd.DataFrame(
        {
            "batch": pd.Categorical(np.array(["x", "y"])[batch]),
            "donor": rng.integers(3, size=60),
            "depth": rng.normal(size=60),
        },
        index=[f"cell {i}" for i in range(60)],
    )
    adata = anndata.AnnData(sparse.csr_matrix(np.log1p(counts)), obs=obs)
    adata.var_names = [*"abcd"]
    adata.layers["counts"] = sparse.csr_matrix(counts)
    adata.obsm["X_pca"] = rng.normal(size=(60, 3)) + 5 * kind[:, None] + 3 * batch[:, None]
    return adata


def same(model, rows, labels, X, known):
    """Fits of annotated data and of arrays have equal results and predictions."""
    expected = clone(model).fit(rows, known=labels)
    result = clone(model).fit(X, known=known)
    np.testing.assert_array_equal(result.labels_, expected.labels_)
    assert result.objective_ == expected.objective_
    predicted = result.predict(X, known=known)
    np.testing.assert_array_equal(predicted, expected.predict(rows, known=labels))


def test_rows_and_what_is_known_of_them(cells):
    batch = cells.obs["batch"].to_numpy()
    log, counts, pca = cells.X, cells.layers["counts"], cells.obsm["X_pca"]
    same(CCIB(**FIT), log, batch, cells, "batch")
    same(CCIB(**FIT), log, batch, cells, cells.obs["batch"])
    same(CCIB(**FIT), counts, batch, rows_of(cells, layer="counts"), "batch")
    two = cells.obs[["batch", "donor"]]
    same(CCIB(**FIT), counts, two, rows_of(cells, layer="counts"), ["batch", "donor"])
    embedded = rows_of(cells, obsm="X_pca")
    same(ConditionalMixture(**FIT), pca, batch, embedded, "batch")
    # Labels and numbers form a design.
    both = ["batch", "depth"]
    same(ConditionalMixture(**FIT), pca, cells.obs[both], embedded, both)
    with pytest.raises(ValueError, match="floats in 'depth' and labels in 'batch'"):
        IBSI(**FIT, gamma=1.0).fit(rows_of(cells, layer="counts"), known=both)


def test_a_part_of_the_cells_and_a_file(cells, tmp_path):
    part = cells[cells.obs["donor"] < 2]
    batch = part.obs["batch"].to_numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(CCIB(**FIT), cells.X[(cells.obs["donor"] < 2).to_numpy()], batch, part, "batch")
    cells.write_h5ad(tmp_path / "cells.h5ad")
    stored = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    same(CCIB(**FIT), cells.X, cells.obs["batch"].to_numpy(), stored, "batch")
    stored.file.close()


@pytest.mark.slow
@pytest.mark.contract
def test_subsets_may_be_a_column_of_cells(cells):
    result = CrossPartition(2, random_state=0).fit(rows_of(cells, layer="counts"), subsets="batch")
    expected = clone(result).fit(cells.layers["counts"], subsets=cells.obs["batch"].to_numpy())
    np.testing.assert_array_equal(result.labels_, expected.labels_)


@pytest.mark.slow
@pytest.mark.contract
def test_all_that_takes_rows_takes_annotated_data(cells):
    pca, batch = rows_of(cells, obsm="X_pca"), cells.obs["batch"].to_numpy()
    plain = cells.obsm["X_pca"]
    model = recommend(pca, known="batch", n_clusters=2)
    assert isinstance(model, ConditionalMixture)
    model.set_params(n_init=2, random_state=0).fit(pca, known="batch")
    assert model.score(pca, known="batch") == model.score(plain, known=batch) == model.score(pca)
    assert (model.predict(pca) == model.predict(plain, known=batch)).all()
    result = evidence.test(model, pca, known="batch", random_state=0)
    expected = evidence.test(model, plain, known=batch, random_state=0)
    assert result.p_structure_ == expected.p_structure_
    searched = explore(
        pca, ConditionalMixture(**FIT), known="batch", n_clusterings=1, random_state=0
    )
    other = explore(plain, ConditionalMixture(**FIT), known=batch, n_clusterings=1, random_state=0)
    np.testing.assert_array_equal(searched.labels_, other.labels_)
    views = [rows_of(cells, layer="counts"), pca]
    both = MDLMultiView(2, n_init=2, random_state=0).fit([cells.layers["counts"].toarray(), plain])
    cells.layers["counts"] = cells.layers["counts"].toarray()
    again = clone(both).fit(views)
    assert again.objective_ == both.objective_
    ready = prepare(rows_of(cells, layer="counts"), known="batch")
    fewer = prepare(rows_of(cells, layer="counts"), drop=["b", "d"])
    assert fewer.feature_names_ == [*"ac"]
    np.testing.assert_array_equal(fewer.X, ready.X[:, [0, 2]])
    assert ready.feature_names_ == [*"abcd"] and ready.known.tolist() == batch.tolist()
    mixture = MixtureEM(**FIT, features="gaussian").fit(pca)
    np.testing.assert_array_equal(mixture.predict(pca), mixture.labels_)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(known="bach"), "known names a column that X does not have; got 'bach', and X has"),
        (dict(known=["batch", "batch"]), "must name each column only once"),
        (dict(known=["x"] * 3), "column that X does not have; got 'x'"),
    ],
)
def test_names_that_are_not_there(cells, arguments, message):
    with pytest.raises(ValueError, match=message):
        CCIB(**FIT).fit(cells, **arguments)


def test_gaps_in_what_is_known_are_told_by_name(cells):
    cells.obs["batch"] = cells.obs["batch"].where(np.arange(60) != 7)
    for known in ("batch", ["donor", "batch"]):
        with pytest.raises(ValueError, match="found NaN or None in column 'batch'; drop those"):
            CCIB(**FIT).fit(cells, known=known)


def test_rows_that_are_not_there(cells):
    with pytest.raises(ValueError, match="layer must name .* got 'raw', and adata has 'counts'"):
        rows_of(cells, layer="raw")
    with pytest.raises(ValueError, match="got layer='counts' and obsm='X_pca'; pass only"):
        rows_of(cells, layer="counts", obsm="X_pca")
    with pytest.raises(TypeError, match="adata must be annotated data; got ndarray"):
        rows_of(np.zeros((3, 2)), layer="counts")
    empty = anndata.AnnData(obs=cells.obs)
    with pytest.raises(ValueError, match="annotated data have no X; got X=None"):
        CCIB(**FIT).fit(empty, known="batch")
    mixed = cells.obs["batch"][::-1]
    with pytest.raises(ValueError, match="known must have its rows in the order of X"):
        CCIB(**FIT).fit(cells, known=mixed)
    with pytest.raises(ValueError, match="y must have its rows in the order of X"):
        CCIB(**FIT).fit(cells, cells.obs["donor"][::-1], known="batch")


def test_columns_of_one_name_are_told_apart(cells):
    cells.var_names = ["a", "b", "a", "a-1"]
    counts = cells.layers["counts"].toarray()
    ready = prepare(rows_of(cells, layer="counts"), drop="b")
    assert ready.feature_names_ == ["a", "a-2", "a-1"]
    np.testing.assert_array_equal(ready.X.toarray(), counts[:, [0, 2, 3]])
    cells.layers["counts"] = counts
    np.testing.assert_array_equal(prepare(rows_of(cells, layer="counts")).X, counts)
    with pytest.raises(ValueError, match=r"must be a table of numbers; got shape \(60, 0\)"):
        prepare(cells, drop=["a", "b", "a-1", "a-2"])


def test_what_a_fit_writes(cells, tmp_path):
    batch = cells.obs["batch"].copy()
    model = CCIB(**FIT).fit(cells, known="batch")
    assert annotate(cells, model) is None
    annotate(cells, model, key_added="again")
    cells.write_h5ad(tmp_path / "cells.h5ad")
    read = anndata.read_h5ad(tmp_path / "cells.h5ad")
    for adata in (cells, read):
        np.testing.assert_array_equal(adata.obs["nrprob"].astype(int), model.labels_)
        assert list(adata.obs["again"].cat.categories) == ["0", "1"]
        np.testing.assert_array_equal(adata.obsm["nrprob_membership"], model.membership_)
        told = adata.uns["nrprob"]
        assert told["method"] == "CCIB" and told["params"]["n_clusters"] == 2
        assert told["objective"] == pytest.approx(model.objective_, rel=1e-12)
    result = explore(
        rows_of(cells, obsm="X_pca"), ConditionalMixture(**FIT), n_clusterings=2, random_state=0
    )
    annotate(cells, result, key_added="found")
    for r in (0, 1):
        np.testing.assert_array_equal(cells.obs[f"found_{r + 1}"].astype(int), result.labels_[:, r])
    assert cells.uns["found"]["reason"] == result.reason_
    cells.write_h5ad(tmp_path / "cells.h5ad")
    told = anndata.read_h5ad(tmp_path / "cells.h5ad").uns["found"]
    assert told["params"]["n_clusterings"] == 2 and told["params"]["random_state"] == 0
    assert told["clusterings"]["2"]["params"]["n_init"] == 2
    assert told["clusterings"]["2"]["objective"] == result.estimators_[1].objective_
    model.labels_ = np.where(np.arange(60) == 3, -1, model.labels_)
    annotate(cells, model)
    assert cells.obs["nrprob"].isna().tolist() == [i == 3 for i in range(60)]
    # No other column is overwritten.
    with pytest.raises(ValueError, match=r"got 'batch', and adata has obs\['batch'\] already"):
        annotate(cells, model, key_added="batch")
    cells.uns["mine"] = {"method": "by hand"}
    with pytest.raises(ValueError, match=r"adata has uns\['mine'\] already"):
        annotate(cells, model, key_added="mine", copy=True)
    with pytest.raises(ValueError, match="must be a name; got ''"):
        annotate(cells, model, key_added="")
    assert cells.obs["batch"].equals(batch) and "mine" not in cells.obs


def test_results_replace_earlier_results_and_nothing_else(cells, tmp_path):
    model = CCIB(**FIT).fit(cells, known="batch")
    annotate(cells, model)
    cells.write_h5ad(tmp_path / "cells.h5ad")
    cells = anndata.read_h5ad(tmp_path / "cells.h5ad")
    result = explore(
        rows_of(cells, obsm="X_pca"), ConditionalMixture(**FIT), n_clusterings=2, random_state=0
    )
    cells.obs["nrprob_1"] = "mine"
    with pytest.raises(ValueError, match=r"adata has obs\['nrprob_1'\] already"):
        annotate(cells, result)
    assert "nrprob" in cells.obs and (cells.obs["nrprob_1"] == "mine").all()
    del cells.obs["nrprob_1"]
    annotate(cells, result)
    # The memberships and the column of the earlier fit do not belong to the new result.
    assert "nrprob" not in cells.obs and "nrprob_membership" not in cells.obsm
    annotate(cells, model)
    assert "nrprob_1" not in cells.obs and "nrprob" in cells.obs


def test_a_copy_is_written_to_where_one_is_asked_for(cells):
    model = CCIB(**FIT).fit(cells, known="batch")
    copied = annotate(cells, model, copy=True)
    assert "nrprob" not in cells.obs and "nrprob" not in cells.uns
    assert "nrprob_membership" not in cells.obsm
    np.testing.assert_array_equal(copied.obs["nrprob"].astype(int), model.labels_)
    assert copied.uns["nrprob"]["method"] == "CCIB"


def test_the_evidence_of_an_exploration_is_written(cells, tmp_path):
    random = np.random.default_rng(0)
    model = ConditionalMixture(**FIT).fit(cells.obsm["X_pca"])
    own = Evidence(
        0.01, None, 2.5, random.normal(size=60), "one", {"one": 0.01}, model.labels_,
        random.normal(size=60), 0.5, np.zeros((1, 5, 3)), np.zeros(60, int), ["all rows"], 5, 1, 2,
        0.05, 2, np.arange(60),
    )  # fmt: skip
    labels, asked = model.labels_[:, None], {"criterion": "gap", "known": ["batch", "donor"]}
    known = np.zeros((60, 0), int)
    rejected = model, dataclasses.replace(own, p_structure_=0.5)
    result = Exploration(labels, [model], known, [own], rejected, reason_="enough", params_=asked)
    annotate(cells, result)
    cells.write_h5ad(tmp_path / "cells.h5ad")
    told = anndata.read_h5ad(tmp_path / "cells.h5ad").uns["nrprob"]
    assert told["method"] == "Exploration" and told["reason"] == "enough"
    assert told["params"] == {"criterion": "gap", "known": "['batch', 'donor']"}
    first = told["clusterings"]["1"]
    assert first["method"] == "ConditionalMixture" and first["params"]["n_clusters"] == 2
    assert first["evidence"]["p_structure"] == 0.01 and first["evidence"]["null_model"] == "one"
    assert "p_gap" not in first["evidence"] and first["evidence"]["summary"] == str(own)
    assert told["rejected"]["evidence"]["p_structure"] == 0.5


def test_what_cannot_be_written(cells):
    model = CCIB(**FIT).fit(cells, known="batch")
    with pytest.raises(
        ValueError, match="got a fit of 60 rows for 10 rows; pass the data of the fit"
    ):
        annotate(cells[:10], model)
    with pytest.raises(TypeError, match="model must be fitted; got CCIB without labels_"):
        annotate(cells, CCIB(2))
    with pytest.raises(TypeError, match="adata must be annotated data; got ndarray"):
        annotate(model.labels_, model)


@pytest.fixture
def invoke(cells, tmp_path, monkeypatch):
    """The command that fits a file of cells, with its files and messages."""
    monkeypatch.setenv("COLUMNS", "200")
    cells.obs["batch"] = cells.obs["batch"].where(np.arange(60) != 7)
    cells.write_h5ad(tmp_path / "cells.h5ad")

    def fit(*options):
        out = ["--force", "--no-plot", "--out", str(tmp_path / "out"), "--n-init", "2"]
        arguments = ["fit", str(tmp_path / "cells.h5ad"), *options, *out]
        done = CliRunner().invoke(app, arguments)
        if done.exit_code:
            lines = done.stderr.splitlines()
            return [line for line in lines if not line.startswith("this command settles it")][-1]
        labels = pd.read_csv(tmp_path / "out" / "labels.csv")
        return labels, json.loads((tmp_path / "out" / "result.json").read_text())

    return fit


@pytest.mark.parametrize("missing", ["drop", "keep"])
def test_clusters_are_written_to_obs(cells, invoke, tmp_path, missing):
    known = ["--known", "batch", "--missing", "drop"] if missing == "drop" else []
    options = [*known, "--obsm", "X_pca", "--names", "low,high", "--k", "2", "--write-h5ad"]
    labels, _ = invoke(*options)
    path = tmp_path / "out" / "labels.h5ad"
    written, source = (anndata.read_h5ad(p) for p in (path, tmp_path / "cells.h5ad"))
    np.testing.assert_array_equal(written.X.toarray(), source.X.toarray())
    pd.testing.assert_frame_equal(written.obs[source.obs.columns], source.obs)
    clusters = written.obs["nrprob"]
    assert clusters.cat.categories.tolist() == ["low", "high"]
    by_name = labels.set_index("row")["cluster_name"]
    assert len(by_name) == (59 if missing == "drop" else 60)
    assert clusters.dropna().to_dict() == by_name.to_dict()
    membership = written.obsm["nrprob_membership"]
    np.testing.assert_array_equal(np.isnan(membership).any(1), clusters.isna())
    np.testing.assert_allclose(
        np.nanmax(membership[clusters.notna()], axis=1), labels["membership"], atol=1e-6
    )
    assert written.uns["nrprob"]["method"] == "ConditionalMixture"
    # A later fit without the option removes the file, which has other clusters.
    invoke(*options[:-1])
    assert not path.exists()


def test_clusterings_are_written_to_obs(cells, invoke, tmp_path):
    invoke("--obsm", "X_pca", "--k", "2")  # writes cells.h5ad and the output folder
    arguments = ["explore", str(tmp_path / "cells.h5ad"), "--obsm", "X_pca", "--n-clusterings", "2"]
    out = ["--write-h5ad", "--no-plot", "--out", str(tmp_path / "second")]
    done = CliRunner().invoke(app, [*arguments, *out])
    assert done.exit_code == 0, done.output
    assert "second/labels.h5ad" in done.stdout.replace("\n", "")
    obs = anndata.read_h5ad(tmp_path / "second" / "labels.h5ad").obs
    labels = pd.read_csv(tmp_path / "second" / "labels.csv")
    for r in (1, 2):
        assert obs[f"nrprob_{r}"].astype(int).tolist() == labels[f"clustering_{r}"].tolist()


def test_entries_of_the_user_are_not_overwritten(cells, invoke, tmp_path):
    cells.obs["nrprob"] = "mine"
    cells.write_h5ad(tmp_path / "cells.h5ad")
    _, result = invoke("--obsm", "X_pca", "--write-h5ad")
    assert result["n_clusters"] == 2
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == [
        "labels.csv", "report.html", "result.json"
    ]  # fmt: skip


def test_files_that_cannot_be_annotated(invoke, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n3,4\n")
    done = CliRunner().invoke(app, ["fit", str(table), "--write-h5ad", "--out", str(tmp_path)])
    assert done.exit_code == 2 and "--write-h5ad needs an H5AD file; got" in done.stderr
    invoke("--obsm", "X_pca", "--write-h5ad")
    file = tmp_path / "out" / "labels.h5ad"
    options = ["--obsm", "X_pca", "--force", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["fit", str(file), *options])
    assert done.exit_code == 2 and "the data file is a result in the output folder" in done.stderr
    assert file.exists()


def test_cells_at_the_command_line(cells, invoke):
    drop = ["--known", "batch", "--missing", "drop"]
    labels, told = invoke(*drop, "--layer", "counts", "--method", "ccib", "--drop", "d")
    kept = cells[np.arange(60) != 7]
    rows = kept.layers["counts"].toarray()[:, :3]
    expected = CCIB(**FIT).fit(sparse.csr_matrix(rows), known=kept.obs["batch"].to_numpy())
    np.testing.assert_array_equal(labels["cluster"], expected.labels_)
    assert labels["row"].tolist() == kept.obs_names.tolist()
    assert labels["batch"].tolist() == kept.obs["batch"].tolist()
    assert told["prepared"]["features"] == [*"abc"]
    labels, told = invoke(*drop, "--known", "depth", "--obsm", "X_pca")
    assert told["method"] == "ConditionalMixture" and told["n_features"] == 3
    assert told["prepared"]["known"] == ["batch", "depth"] and len(labels) == 59
    labels, told = invoke("--known", "batch", "--obsm", "X_pca", "--drop", "X_pca_1")
    assert told["prepared"]["features"] == ["X_pca_0", "X_pca_2"]


@pytest.mark.parametrize("command", [False, True])
def test_raw_counts_and_the_fitted_part_are_named(cells, tmp_path, command):
    cells.layers["counts"] = sparse.csr_matrix(5 * (np.random.default_rng(0).random((60, 4)) < 0.4))
    cells.write_h5ad(tmp_path / "cells.h5ad")

    def say(layer=None, obsm=None):
        if not command:
            X = rows_of(cells, layer=layer, obsm=obsm) if layer or obsm else cells
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                reason = recommend(X, known="batch", n_clusters=2).reason_
            return " ".join([*(str(w.message) for w in caught), reason])
        chosen = {"--layer": layer, "--obsm": obsm}
        options = [word for pair in chosen.items() if pair[1] for word in pair]
        arguments = [
            "fit",
            tmp_path / "cells.h5ad",
            "--known",
            "batch",
            *options,
            "--no-plot",
            "--force",
        ]
        result = CliRunner().invoke(app, [*map(str, arguments), "--out", str(tmp_path / "out")])
        assert result.exit_code == 0, result.output
        return " ".join(result.stderr.split())

    text, select = say(), "--layer counts" if command else "nrprob.rows_of(adata, layer='counts')"
    assert f"layer 'counts' holds counts: {select}" in text
    assert "layer 'counts' holds counts: ResidualSpectral" in (text := say(layer="counts"))
    assert "no raw counts" not in text
    assert "obsm 'X_pca' is a table of continuous features" in say(obsm="X_pca")


def test_an_embedding_is_named_if_many_genes_are_dense():
    cells = anndata.AnnData(np.random.default_rng(0).normal(size=(6, 120)))
    assert "obsm" not in describe_counts(cells)
    cells.obsm["X_umap"] = np.zeros((6, 2))
    assert "obsm" not in describe_counts(cells)
    cells.obsm["X_my harmony"] = np.zeros((6, 3))
    text = "obsm 'X_my harmony' holds an embedding: --obsm 'X_my harmony' fits it instead of all "
    assert f"{text}120 genes" in describe_counts(cells, as_options=True)
    cells.obsm["X_pca"] = np.zeros((6, 3))
    select = "nrprob.rows_of(adata, obsm='X_pca') selects it"
    with pytest.warns(UserWarning, match=re.escape(select)):
        assert type(recommend(cells, n_clusters=2)).__name__ == "ConditionalMixture"
    assert describe_counts(rows_of(cells, obsm="X_pca")) == ""
    assert "obsm" not in describe_counts(cells[:, :50])
    cells.X = sparse.csr_matrix(cells.X)
    assert "obsm" not in describe_counts(cells)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--known", "bach"], "cells.h5ad has no such column; 'bach'; did you mean 'batch'?"),
        (
            ["--known", "batch", "--missing", "error"],
            "got missing values: 1 in known 'batch' (1 of 60 rows); --missing drop",
        ),
        (["--layer", "count"], "cells.h5ad has no such layer; 'count'; did you mean 'counts'?"),
        (["--obsm", "X_pcs"], "cells.h5ad has no such obsm; 'X_pcs'; did you mean 'X_pca'?"),
        (["--layer", "counts", "--obsm", "X_pca"], "got --layer and --obsm; leave one of them out"),
        (["--obsm", "X_pca", "--drop", "a"], "no such column; 'a'; choose from X_pca_0, X_pca_1"),
        (["--k", "auto", "--layer", "counts"], "cluster principal components: --obsm X_pca"),
        (["--drop", "e"], "cells.h5ad has no such column; 'e'; choose from a, b, c, d"),
        (
            ["--feature-names", "a"],
            "have names already; got --feature-names a; leave the option out",
        ),
    ],
)
def test_cells_that_do_not_serve(invoke, options, message):
    assert message in invoke(*options)


def test_cells_of_a_model_file(cells, tmp_path):
    cells.write_h5ad(tmp_path / "cells.h5ad")
    result = tables.read_table(tmp_path / "cells.h5ad", labelings=["batch"], drop=["b"])
    np.testing.assert_array_equal(result.X.toarray(), cells.X.toarray()[:, [0, 2, 3]])
    assert result.feature_names == ["a", "c", "d"]
    assert result.labelings["batch"].tolist() == cells.obs["batch"].tolist()
    assert result.row_names.tolist() == cells.obs_names.tolist()


def test_the_package_does_without_anndata(tmp_path):
    """The package is not imported, and the message says how to install it."""
    (tmp_path / "cells.h5ad").touch()
    code = f"""
import sys
from pathlib import Path
from nrprob import CCIB, annotate, rows_of
from nrprob.batch.formats import check_file
assert "anndata" not in sys.modules
sys.modules["anndata"] = None
try:
    check_file(Path({str(tmp_path / "cells.h5ad")!r}))
except ValueError as error:
    assert "needs anndata" in str(error) and "nrprob[cells]" in str(error), error
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
