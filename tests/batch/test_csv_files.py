"""CSV files: spreadsheets evaluate no text cell, and all cells are read back unchanged."""

import csv
import io
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nrprob.batch import formats
from nrprob.batch.formats import with_labelings, write_csv
from nrprob.batch.tables import read_contents
from nrprob.cli import app
from nrprob.data.reading.conversion import ReadingRecord
from nrprob.data.reading.formulas import escape, unescape

HOSTILE = [
    "=1+1", "@SUM(A1)", "+1+cmd|' /C calc'!A0", "-2+3", "\t=1+1", "\r=1+1", "a\r=1+1", "'=1+1",
    "''@x", "'", "-", "it's", 'say "=1"', "a,=1", "a\n=1", "-1.5e",
]  # fmt: skip
TEXTS = st.text(
    st.one_of(
        st.sampled_from("=+-@\t\r\n'\",;1.e "),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    ),
    max_size=8,
)


def read_csv(path):
    """Contents of a file; columns that are mostly numbers stay text."""
    return read_contents(path, record=ReadingRecord())


def dangerous(cell):
    """Whether a spreadsheet may evaluate a cell of a file."""
    return re.match(r"[=+\-@\t\r]", cell) and not re.fullmatch(r"[+-]?\d+(\.\d*)?(e-?\d+)?", cell)


def cells(text):
    """Cells of a CSV file, also for a reader that ends rows at carriage returns."""
    rows = csv.reader(io.StringIO(text, newline=""))
    return [cell for row in rows for cell in row]


@given(TEXTS, TEXTS)
def test_escaping_can_be_undone(one, other):
    assert unescape(escape(one)) == one
    assert (escape(one) == escape(other)) == (one == other)
    assert not dangerous(escape(one))


@pytest.mark.parametrize(
    "value", ["-1.5", "+2", "-.5", "-1e-3", -1.5, -2, None, "plain", "'quoted'"]
)
def test_numbers_and_harmless_texts_stay_as_they_are(value):
    assert escape(value) is value


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=5))
@example("=head", HOSTILE)
def test_what_was_written_is_read_back(tmp_path_factory, head, texts):
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    # Text that looks like a missing value or a number is not text in a file without types.
    texts = [f"x{t}" if t.strip().lower() in _MISSING or _is_number(t) else t for t in texts]
    numbers = -1.5 - np.arange(len(texts) + 1)
    text = write_csv({"number": numbers, f"{head}_": [*texts, "word"]})
    assert not [cell for cell in cells(text) if dangerous(cell)]
    path.write_text(text, newline="")
    frame = read_csv(path)
    assert list(frame) == formats.column_names(path) == ["number", f"{head}_"]
    np.testing.assert_array_equal(frame["number"], numbers)
    assert frame[f"{head}_"].tolist() == [*texts, "word"]


_MISSING = {"", "#n/a", "n/a", "na", "nan", "-nan", "null", "none", "#na", "<na>", "1.#ind",
            "-1.#ind", "1.#qnan", "-1.#qnan", "#n/a n/a"}  # fmt: skip


def _is_number(text):
    return not np.isnan(pd.to_numeric(text, errors="coerce"))


@pytest.fixture
def hostile(tmp_path):
    """A table with hostile names of columns, groups and rows."""
    rng = np.random.default_rng(0)
    known, sought = np.arange(60) % 2, np.arange(60) // 2 % 2
    X = rng.normal(size=(60, 2)) - 9 * sought[:, None] + 5 * known[:, None]
    frame = pd.DataFrame(X, columns=["=x", "-y"])
    frame["=known"] = np.array(["=HYPERLINK(1)", "+1+1"])[known]
    frame["@other"] = np.array(["\t=1", "-2+3"])[sought]
    frame.index = pd.Index([f"@{i}" for i in range(60)])
    frame.to_csv(tmp_path / "rows.csv")
    return tmp_path / "rows.csv"


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("command", ["fit", "explore"])
def test_no_written_cell_is_a_formula(hostile, tmp_path, command):
    own = ["--n-clusterings", "1"] if command == "explore" else ["--n-init", "2"]
    options = ["--known", "=known", "--compare", "@other", "--out", tmp_path / "out", *own]
    given = [command, hostile, *options, "--no-plot", "--seed", "0"]
    result = CliRunner().invoke(app, [str(argument) for argument in given])
    assert result.exit_code == 0, result.output
    path = tmp_path / "out" / "labels.csv"
    written = path.read_text()
    assert "'=HYPERLINK(1)" in written and "'@59" in written
    assert not [cell for cell in cells(written) if dangerous(cell)]
    frame, source = read_csv(path), pd.read_csv(hostile)
    for name in ("=known", "@other"):
        assert frame[name].tolist() == source[name].tolist()
    assert frame["row"].tolist() == source["Unnamed: 0"].tolist()
    # The result is a valid data file.
    again = ["fit", path, "--columns", list(frame)[1], "--known", "=known"]
    again += ["--compare", "@other", "--n-init", "2", "--no-plot", "--out", tmp_path / "again"]
    result = CliRunner().invoke(app, [str(argument) for argument in again])
    assert result.exit_code == 0, result.output
    frame = read_csv(tmp_path / "again" / "labels.csv")
    assert frame["=known"].tolist() == source["=known"].tolist()


def test_labelings_replace_no_column_of_a_result():
    columns = {"cluster": [0, 1], "row": [1, 2]}
    labelings = {"cluster": ["a", "b"], "cluster (data)": ["c", "d"], "site": ["n", "s"]}
    result = with_labelings(columns, labelings)
    assert result["cluster"] == [0, 1] and result["site"] == ["n", "s"]
    assert len(result) == 5 and ["a", "b"] in result.values() and ["c", "d"] in result.values()
