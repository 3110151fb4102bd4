"""The ledger: stored results against published values."""

import json
import math

import pytest
from made_up_results import make_run
from pages import page_of
from places import DOCS, MODELS
from typer.testing import CliRunner

from nrprob.batch.published import FOLDER
from nrprob.batch.report.averages import Value, judge
from nrprob.batch.report.ledger import make_ledger, write_ledger
from nrprob.batch.report.stored_results import store_results
from nrprob.cli import app
from nrprob.exceptions import InputError

# Means over three data sets: "ours" 0.8 with a standard error of 0.01, "plain" 0.6 without one.
PUBLISHED = """id,source,table,row,column,method,value,decimals,goal,data
"s/T 1/A/ours/acc, mean",s,T 1,A,"acc, mean",ours,0.80,2,higher,yes
"s/T 1/A/plain/acc, mean",s,T 1,A,"acc, mean",plain,0.7,2,higher,yes
"s/T 1/A/theirs/acc, mean",s,T 1,A,"acc, mean",theirs,0.82,2,higher,yes
"s/T 1/A/ours/seconds, mean",s,T 1,A,"seconds, mean",ours,9,0,none,yes
"s/T 1/A/rows, value",s,T 1,A,"rows, value",,20,0,none,yes
"s/T 1/B/ours/acc, mean",s,T 1,B,"acc, mean",ours,0.825,3,higher,yes
"s/T 1/B/plain/acc, mean",s,T 1,B,"acc, mean",plain,0.6,2,agree,yes
"s/T 2/A/ours/acc, mean",s,T 2,A,"acc, mean",ours,0.9,2,higher,no
"""
FILE = """
[data]
generator = "make_binary_partitions"
parameters = { n_samples = 20 }
repeats = 3
grid = { dims = [[4, 4], [12, 4]] }

[[methods]]
name = "ib"
title = "ours"
recommended = true
n_clusters = 2

[[methods]]
name = "ib"
title = "plain"
n_clusters = 2
n_init = 1

[measures]
acc = { metric = "matched_accuracy", labeling = "partition_1" }

[[tables]]
name = "T"
measures = ["acc", "seconds"]
[[tables.settings]]
where = { dims = [4, 4] }
ids = ["s/T 1/A"]
[[tables.settings]]
where = { dims = [12, 4] }
ids = ["s/T 1/B"]
"""


def measures(cell):
    spread = (cell.repeat - 1) * 0.01 * math.sqrt(3)
    return {"acc": 0.8 + spread if cell.method == "ours" else 0.6, "seconds": 1.0}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "models"
    (folder / FOLDER).mkdir(parents=True)
    (folder / FOLDER / "s.csv").write_text(PUBLISHED)
    (folder / "s-file.toml").write_text(FILE)
    return folder


@pytest.fixture
def run(folder, tmp_path):
    return make_run(tmp_path / "run", folder / "s-file.toml", measures)


def test_cells_and_settings_are_counted(folder, run):
    store_results(run, folder)
    ledger = make_ledger(folder)
    first, second = ledger.faithful
    # In row A, ours is equal, plain is below, and the third method has no fits. In row B, ours is
    # below by 2.5 standard errors, less than 2 sqrt(2), and plain agrees. Inputs are no cells.
    assert first.as_dict() == {
        "source": "s", "table": "T 1", "cells": 6, "no_data": 0, "regenerated": 5,
        "at_or_above": 2, "within_2_se": 1, "below": 1,
    }  # fmt: skip
    assert second.counts == [1, 1, 0, 0, 0, 0]
    # The recommended method is 2 standard errors below the best printed method of row A, and 2.5
    # below that of row B.
    (ours,) = ledger.ours
    assert ours.as_dict() == {
        "source": "s", "table": "T 1", "cells": 2, "no_data": 0, "regenerated": 2,
        "at_or_above": 0, "within_2_se": 1, "below": 1,
    }  # fmt: skip
    assert [(b.our_method, b.published_method, b.published) for b in ledger.best] == [
        ("ours", "theirs", 0.82), ("ours", "ours", 0.825),
    ]  # fmt: skip
    assert ledger.n_outdated == 0


def test_without_stored_results_nothing_is_regenerated(folder):
    ledger = make_ledger(folder)
    assert [tally.counts for tally in ledger.faithful] == [[6, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]]
    assert [tally.counts for tally in ledger.ours] == [[2, 0, 0, 0, 0, 0]]
    (folder / FOLDER / "s.csv").unlink()
    with pytest.raises(InputError, match="there are no published values"):
        make_ledger(folder)


def test_outdated_results_are_not_used(folder, run):
    store_results(run, folder)
    (folder / "s-file.toml").write_text(FILE.replace("n_init = 1", "n_init = 2"))
    ledger = make_ledger(folder)
    # Two settings with two measures.
    assert ledger.n_outdated == 4 and ledger.faithful[0].regenerated == 3
    (folder / "s-file.toml").unlink()
    ledger = make_ledger(folder)
    assert ledger.n_outdated == 8 and ledger.faithful[0].regenerated == 0


def test_the_method_with_the_printed_name_is_faithful(folder, tmp_path):
    text = FILE.replace('title = "plain"', 'title = "plain"\nprinted = "ours"')
    (folder / "s-file.toml").write_text(text)
    store_results(make_run(tmp_path / "run", folder / "s-file.toml", measures), folder)
    ledger = make_ledger(folder)
    entry = ledger.tables[0].groups[0].rows[0].entries["acc", "mean"]
    assert entry.ours.value == pytest.approx(0.6) and entry.mark == "worse"
    assert {best.our_method for best in ledger.best} == {"ours"}


@pytest.mark.parametrize(
    ("ours", "published", "decimals", "mark"),
    [
        (0.604, 0.6, 2, "reached"), (0.596, 0.6, 2, "reached"), (0.62, 0.6, 2, "within"),
        (0.57, 0.6, 2, "worse"), (5.4, 5, 0, "reached"), (5.6, 5, 0, "worse"),
        (0.624, 0.6, 2, "within"), (0.626, 0.6, 2, "worse"), (5.51, 5, 0, "within"),
    ],
)  # fmt: skip
def test_values_that_should_agree_have_two_sides(ours, published, decimals, mark):
    value = Value(ours, 0.01, 3, 1, "data sets")
    assert judge(value, published, "agree", decimals) == mark


def test_the_page_and_the_numbers_are_written(folder, run, tmp_path):
    store_results(run, folder)
    page, numbers = write_ledger(make_ledger(folder), tmp_path / "out")
    content = json.loads(numbers.read_text())
    assert content["faithful"][0]["regenerated"] == 5 and content["n_outdated"] == 0
    assert content["ours"][0]["below"] == 1
    text = " ".join(page_of(page).text.split())
    assert "s, T 1" in text and "0.800 ± 0.010" in text and "0.82 published" in text
    assert "outdated" not in text


def test_the_command_stores_and_compares(folder, run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    arguments = ["ledger", str(folder), "--store", str(run), "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "wrote 8 results to" in result.output
    rows = [line.split() for line in result.output.splitlines()]
    assert ["s", "7", "1", "5", "2", "1", "1"] in rows  # both printed tables
    assert ["all", "2", "0", "2", "0", "1", "1"] in rows
    assert (out / "report.html").is_file() and (out / "ledger.json").is_file()
    missing = CliRunner().invoke(app, ["ledger", str(tmp_path / "none")])
    assert missing.exit_code == 2


def test_the_page_of_the_documentation_has_the_present_numbers():
    ledger = make_ledger(MODELS)
    assert ledger.n_outdated == 0
    text = (DOCS / "ledger.md").read_text()
    for tallies in (ledger.faithful, ledger.ours):
        for source in {tally.source for tally in tallies}:
            counts = [tally.counts for tally in tallies if tally.source == source]
            sums = [str(sum(column)) for column in zip(*counts, strict=True)]
            assert f"| {source} | {' | '.join(sums)} |" in text, (source, sums)
