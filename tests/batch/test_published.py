"""Published values that model files name by their ids."""

import csv
import math
import re

import pytest
from places import MODELS, PUBLISHED

from nrprob.batch.modelfile import read_model
from nrprob.batch.published import FOLDER, GOALS, read_published, select_published
from nrprob.exceptions import InputError

HEAD = "id,source,table,row,column,method,value,decimals,goal,data\n"
ROWS = (
    'a/Table 1/K = 2/CCIB/"error, mean"',
    'a/Table 1/K = 2/CCIB/"error, sd"',
    'a/Table 1/K = 2/IB/"error, mean"',
    'a/Table 1/K = 20/IB/"error, mean"',
)


def line(id, value=0.5, decimals=2, goal="lower", data="yes"):
    source, table, row, method, column = id.split("/")
    name = f'"{id.replace(chr(34), "")}"'
    return f"{name},{source},{table},{row},{column},{method},{value},{decimals},{goal},{data}\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / FOLDER).mkdir()
    lines = [line(name, (i + 1) / 10) for i, name in enumerate(ROWS)]
    (tmp_path / FOLDER / "a.csv").write_text(HEAD + "".join(lines))
    return tmp_path


def read(folder, setting, methods=()):
    methods = methods or '[[methods]]\nname = "ib"\ntitle = "IB"\nn_clusters = 3\n'
    text = f"""
        [data]
        loader = "iris"
        {methods}
        [measures]
        error = {{ metric = "purity", labeling = "species" }}
        [[tables]]
        name = "Table 1"
        [[tables.settings]]
        {setting}
    """
    path = folder / "model.toml"
    path.write_text(text)
    return read_model(path)


def test_an_id_or_its_beginning_names_values(folder):
    entries = read_published(folder / FOLDER)
    ids = ["a/Table 1/K = 2/CCIB/error, sd"]
    assert [p.value for p in select_published(ids, entries, "ids")] == [0.2]
    # "K = 2" is not the beginning of "K = 20", since a beginning ends at a slash.
    assert [p.value for p in select_published(["a/Table 1/K = 2"], entries, "ids")] == [
        0.1, 0.2, 0.3,
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"tables.0.ids = 'a/Table 1/K = 3'; did you mean 'a/Tab"):
        select_published(["a/Table 1/K = 3"], entries, "tables.0.ids")


def test_settings_get_the_values_that_they_name(folder):
    model = read(folder, 'ids = ["a/Table 1/K = 2"]\npublished.IB = { error = { mean = 0.7 } }')
    published = model.tables[0].settings[0].published
    assert published["CCIB"] == {"error": {"mean": 0.1, "sd": 0.2}}
    assert published["IB"] == {"error": {"mean": 0.7}}  # a value in the file has precedence


def test_a_method_has_the_values_of_its_name_in_the_source(folder):
    methods = "".join(
        f'[[methods]]\nname = "ib"\nn_clusters = 3\ntitle = "{title}"\n{rest}\n'
        for title, rest in (("IB", ""), ("IB, undamped", 'printed = "IB"'))
    )
    model = read(folder, 'ids = ["a/Table 1/K = 20"]', methods)
    published = model.tables[0].settings[0].published
    assert published == {title: {"error": {"mean": 0.4}} for title in ("IB", "IB, undamped")}


def test_values_of_other_measures_are_skipped(folder):
    path = folder / FOLDER / "a.csv"
    path.write_text(path.read_text() + line('a/Table 1/K = 2/IB/"runs, mean"'))
    model = read(folder, 'ids = ["a/Table 1/K = 2/IB"]')
    assert model.tables[0].settings[0].published == {"IB": {"error": {"mean": 0.3}}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (HEAD + 2 * line(ROWS[0]), "two rows have the id 'a/Table 1/K = 2/CCIB/error, mean'"),
        (HEAD + line(ROWS[0], goal="high"), "line 2 has an invalid value"),
        (HEAD + line(ROWS[0], data="maybe"), "line 2 has an invalid value"),
        (HEAD + line(ROWS[0], decimals=-1), "line 2 has an invalid value"),
        (HEAD + line(ROWS[0], value="nan"), "line 2 has an invalid value"),
        (HEAD + line(ROWS[0], value="low"), "could not convert string to float"),
        (HEAD + "a,b\n", "line 2 has not 10 columns"),
        ("id,value\n", "the columns are not id, source"),
    ],
)
def test_a_damaged_table_is_refused(folder, content, reason):
    (folder / FOLDER / "a.csv").write_text(content)
    with pytest.raises(InputError, match=re.escape(reason)) as error:
        read(folder, 'ids = ["a"]')
    assert str(folder / FOLDER / "a.csv") in str(error.value)


def test_a_file_without_ids_reads_no_table(folder):
    (folder / FOLDER / "a.csv").write_text("damaged")
    assert read(folder, "").tables[0].settings[0].published == {}


def test_ids_of_the_package_are_unique_and_name_their_places():
    entries = read_published(MODELS / FOLDER)
    assert {p.source for p in entries.values()} == {
        "gondek2005", "yin2007", "dang2010", "marx", "smieja2017",
    }  # fmt: skip
    for entry in entries.values():
        places = (entry.source, entry.table, entry.row, entry.method, entry.column)
        # Inputs of an experiment have no method.
        assert entry.id == "/".join(filter(None, places)) and entry.row
        assert entry.method or entry.goal == "none"
        assert entry.statistic and entry.measure and entry.goal in GOALS


def test_tables_of_the_package_have_all_printed_values():
    """The table of a source has every value of its transcription, or the value in per cent."""
    if not PUBLISHED.is_dir():
        pytest.skip(f"no transcription of the printed tables: {PUBLISHED} is not there")
    sources = {"000": "gondek2005", "001": "smieja2017", "002": "dang2010", "003": "marx",
               "004": "yin2007"}  # fmt: skip
    values = {}
    for entry in read_published(MODELS / FOLDER).values():
        values.setdefault((entry.source, entry.table), []).append(entry.value)
    for path in sorted(PUBLISHED.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                table = row["table"].replace("text of", "section").replace("text", "section")
                if re.match(r"\d", table):
                    table = f"Table {table}"
                source = sources[row["seed_file"][:3]]
                if row["value"] == "NA" or row["stat"] in ("low", "high"):
                    continue  # ends of a printed range
                if table in ("Table 8.7", "Table 8.8") and row["setting"] == "K = 2":
                    continue  # they follow from two exchanged rows of another table
                value = float(row["value"])
                same = (value, value / 100, 1 + value / 100)
                table = {"Section 4.10": "section 4.10"}.get(table, table)
                close = [
                    math.isclose(v, s, abs_tol=1e-9) or v == s
                    for v in values[source, table] for s in same
                ]  # fmt: skip
                assert any(close), (source, table, row["setting"], row["method"], value)
