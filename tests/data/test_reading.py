"""Files as people have them: dialects, encodings, spreadsheets, and numbers written as text."""

import bz2
import gzip
import io
import lzma
import shlex
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nrprob.cli import app
from nrprob.data.reading.conversion import (
    Problem,
    ReadingRecord,
    TextSource,
    as_command_options,
    convert_texts,
)
from nrprob.data.reading.frames import read_frame
from nrprob.data.reading.number_text import analyse_texts, read_number
from nrprob.data.reading.options import parse_options
from nrprob.exceptions import InputError

COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def read(path, content=None, *, sep=None, decimal=None, encoding=None, na_values=(), sheet=None):
    """Frame and record of a file, which is written first if its content is given."""
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    record = ReadingRecord(has_options=True)
    options = parse_options(sep, decimal, encoding, na_values, sheet)
    return read_frame(path, options, record), record


def said(record):
    return "\n".join(record.notes + record.warnings)


@pytest.mark.parametrize(
    ("text", "point", "comma"),
    [
        ("12", 12, 12),
        ("-1.5", -1.5, None),
        ("1,5", None, 1.5),
        (".5", 0.5, None),
        (",5", None, 0.5),
        ("1e-3", 1e-3, 1e-3),
        ("1,5E2", None, 150),
        ("1,234", 1234, 1.234),
        ("1.234", 1.234, 1234),
        ("0,123", None, 0.123),  # thousands do not begin with a zero
        ("1234,567", None, 1234.567),
        ("1,234.5", 1234.5, None),
        ("1.234,5", None, 1234.5),
        ("1,234,567", 1234567, None),
        ("1 234,5", None, 1234.5),
        ("1\u00a0234", 1234, 1234),
        ("1'234.50", 1234.5, None),
        ("€ 1.234,50", None, 1234.5),
        ("$1,234.50", 1234.5, None),
        ("-$5", -5, -5),
        ("12 EUR", 12, 12),
        ("5 %", 5, 5),
        ("(12.5)", -12.5, None),
        ("\u22125", -5, -5),
        (" 7 ", 7, 7),
    ],
)
def test_texts_that_are_numbers(text, point, comma):
    assert read_number(text).values == (point, comma)


@pytest.mark.parametrize(
    "text",
    ["", "x", "1-2", "10:30", "1/2", "2020-01-01", "01.02.2020", "1,23,456", "1.2.3", "(5", "--5",
     "1 2", "$5 %", "12 kg", "1_000", "inf", "0x10", "1,234.567,8", "-", "."],
)  # fmt: skip
def test_texts_that_are_no_numbers(text):
    assert read_number(text) is None


@given(
    st.lists(st.floats(-1e6, 1e6).map(lambda v: round(v, 4)), min_size=2, max_size=8),
    st.sampled_from([".", ","]),
    st.booleans(),
    st.sampled_from(["{}", "{} %", "€ {}", "{} kr", " {} "]),
)
def test_numbers_in_any_notation_are_read_back(values, decimal, grouped, unit):
    values = [*values, 1234.56]  # a number whose notation is certain
    texts = [f"{v:{',' * grouped}.4f}" for v in values]
    swap = str.maketrans(".,", ",.")
    texts = [unit.format(t if decimal == "." else t.translate(swap)) for t in texts]
    frame = pd.DataFrame({"x": texts})
    record = ReadingRecord()
    result = convert_texts(frame, record, TextSource())
    np.testing.assert_array_equal(result["x"], values)
    assert record.notes and not record.warnings and not record.problems


@given(st.lists(st.integers(1000, 999_999), min_size=1, max_size=6), st.integers(0, 3))
def test_ambiguous_thousands_are_never_decided_in_silence(values, case):
    """The other columns decide, or the separator of the file, with a warning; or nothing does."""
    texts = [f"{v:,}" for v in values]
    others = {0: [1.25], 1: ["1,5"], 2: ["a"], 3: [7]}[case] * len(values)
    record = ReadingRecord()
    result = convert_texts(pd.DataFrame({"x": texts, "y": others}), record, TextSource())["x"]
    if case < 2:
        expected = np.array(values) / (1000 if case else 1)
        np.testing.assert_array_equal(result, expected)
        assert len(record.warnings) == 1 and " in 'x' is read as" in record.warnings[0]
    else:
        assert result.tolist() == texts
        assert "may be decimal or separate thousands" in record.problems[0].got


@pytest.mark.parametrize(
    ("texts", "decimals"),
    [
        (["1,234", "5678"], ","),  # thousands would be separated in 5678, too
        (["1,234", "567"], ".,"),
        (["1.234", "1,234"], ""),
        (["1.5", "2,5"], ""),
        (["1,234", "0,5"], ","),
        (["1,234", "2.5"], "."),
    ],
)
def test_the_whole_column_decides(texts, decimals):
    assert analyse_texts(dict.fromkeys(texts, 1)).decimals == decimals


def test_columns_of_text_stay_text():
    frame = pd.DataFrame(
        {"code": ["01", "02", "10"], "word": ["NA", "None", "-"], "few": ["1,5", "x", "y"]}
    )
    record = ReadingRecord()
    result = convert_texts(frame, record, TextSource())
    assert result["code"].tolist() == ["01", "02", "10"]
    assert result["word"].isna().tolist() == [True, False, False]
    assert result["few"].tolist() == frame["few"].tolist()
    assert record.notes == ["read as missing values: 'NA' in 'word' (1)"] and not record.problems


EUROPEAN = "Nr;Länge (cm);Art;Preis;Anteil\r\n" + "".join(
    f"{i};{20 + i},{i % 10}5;{'Größe; XL' if i < 0 else 'Straße'};1.{200 + i},50 €;{i % 9},5 %\r\n"
    for i in range(1, 31)
)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_a_european_table_of_a_spreadsheet(tmp_path, encoding):
    frame, record = read(tmp_path / "a.csv", EUROPEAN.encode(encoding))
    assert list(frame) == ["Nr", "Länge (cm)", "Art", "Preis", "Anteil"]
    assert frame.loc[9].tolist() == [10, 30.05, "Straße", 1210.5, 1.5]
    text = said(record)
    for part in ("separated by semicolons", "decimal commas", "currency", "thousands", "percent"):
        assert part in text
    names = {"cp1252": "'Länge', 'Straße', '€'", "utf-16": "UTF-16", "utf-16-le": "UTF-16-LE"}
    assert names.get(encoding, "") in text
    assert len(record.warnings) == (encoding == "cp1252") and not record.problems
    # The options say the same.
    told, _ = read(tmp_path / "a.csv", sep="semicolon", decimal=",", encoding=encoding)
    pd.testing.assert_frame_equal(told, frame)
    assert record.units == {"Preis": "€", "Anteil": "%"}


def test_units_in_the_line_after_the_header_are_recorded(tmp_path):
    lines = ["a;b;c;d;e", "(kg);cm;;-;a text about the column"]
    lines += [f"{i};{i + 0.5};x;{i};{i} %" for i in (1, 5, 7)]
    frame, record = read(tmp_path / "a.csv", "\n".join(lines).encode())
    assert record.units == {"a": "kg", "b": "cm", "e": "%"} and len(frame) == 3


@pytest.mark.parametrize(
    ("content", "columns", "notes"),
    [
        ("a,b\n1,2\n\n3,4\n,\n", {"a": [1, 3], "b": [2, 4]}, ["1 empty row left out"]),
        ("# by me, 2020\n# x\na,b\n1,2\n3,4\n", {"a": [1, 3], "b": [2, 4]}, ["2 comment lines"]),
        ("##v1\n#chr\tat\nc1\t10\nc2\t15\n", {"chr": ["c1", "c2"], "at": [10, 15]}, ["tabs"]),
        ("Report;;\n;;\na;b;c\n1;2;3\n4;5;6\n", {"a": [1, 4], "b": [2, 5], "c": [3, 6]},
         ["a line before the header is skipped: 'Report'"]),
        ("a;b;c\n(kg);(cm);\n1;2;x\n5;6;y\n8;6;x\n",
         {"a": [1, 5, 8], "b": [2, 6, 6], "c": ["x", "y", "x"]}, ["units and is skipped: (kg), "]),
        ("a,b\n1,2,\n3,4,\n", {"a": [1, 3], "b": [2, 4]}, ["without a name and without values"]),
        ("a,b,\n1,2,\n3,4,\n", {"a": [1, 3], "b": [2, 4]}, ["without a name and without values"]),
        ("a,a,b\n1,2,3\n4,5,6\n", {"a (1)": [1, 4], "a (2)": [2, 5], "b": [3, 6]}, ["numbered"]),
        ('"a, b","c;d"\n"x, y",1\n"z;w",3\n', {"a, b": ["x, y", "z;w"], "c;d": [1, 3]}, []),
        ("a, b\n1, 2\n3, \"4\"\n", {"a": [1, 3], "b": [2, 4]}, []),
        ("x y  z\n1 2   3\n4 5 6\n", {"x": [1, 4], "y": [2, 5], "z": [3, 6]}, ["spaces"]),
        ("sep=|\na|b\n1|2\n", {"a": [1], "b": [2]}, ["vertical bars"]),
        ("a,b\r1,2\r3,4\r", {"a": [1, 3], "b": [2, 4]}, []),
        ("a,b\n1,?\n3,4\nn/a,-\n", {"a": [1, 3, None], "b": [None, 4, None]},
         ["'n/a' in 'a' (1)", "'?' in 'b' (1)", "'-' in 'b' (1)"]),
        ("a,b,c\n1,-,x\n-,n/a,y\n3,u,-\n4,u,x\n", {"a": [1, None, 3, 4],
         "b": ["-", None, "u", "u"], "c": ["x", "y", "-", "x"]},
         ["'n/a' in 'b' (1)", "'-' in 'b', 'c' is kept as a category; pass --na-values=- if it"]),
        ("5.1,3.5,u\n4.9,3.0,u\n4.7,3.2,u\n",
         {"column 1": [5.1, 4.9, 4.7], "column 2": [3.5, 3.0, 3.2], "column 3": ["u"] * 3},
         ["the file has no header"]),
        ("1,5;2\n1,5;3\n", {"column 1": [1.5, 1.5], "column 2": [2, 3]}, ["no header"]),
        ("0,1\n5,2\n3,4\n", {"0": [5, 3], "1": [2, 4]}, []),
        ("a,b,c\n1,2,3\n1,2\n3,4,5\n", {"a": [1, 1, 3], "b": [2, 2, 4], "c": [3, None, 5]},
         ["of 3 values, line 3 has 2"]),
        ("a;b\n1.234;2,5\n5.678;1\n", {"a": [1234, 5678], "b": [2.5, 1]},
         ["1.234 in 'a' is read as 1234, since 'b' has decimal commas; pass --decimal ."]),
        ("a;b;c\n1.234;2,5;0,5\n5.678;1;1\n", {"a": [1234, 5678], "b": [2.5, 1], "c": [0.5, 1]},
         ["1.234 in 'a' is read as 1234, since 'c', 'b' have decimal commas"]),
        ("a;b\n1.234;2\n5.678;1\n", {"a": [1.234, 5.678], "b": [2, 1]},
         ["points in 'a' are read as decimal points, but could separate thousands"]),
        ("a;b\n547;1\n2.593;2\n-3.049;x\n", {"a": [547, 2593, -3049], "b": ["1", "2", "x"]},
         ["2.593 in 'a' is read as 2593, since the columns are separated by semicolons"]),
        ("a;b\n547;1\n2.593;2\n1049;3\n", {"a": [547, 2.593, 1049], "b": [1, 2, 3]},
         ["separated by semicolons"]),
        ("a;b\n547;1\n2.593;2\n3.049;0.25\n", {"a": [547, 2.593, 3.049], "b": [1, 2, 0.25]},
         ["points in 'a' are read as decimal points, but could separate thousands"]),
        ('a,b\n"1,234",2\n"5,678",1\n', {"a": [1234, 5678], "b": [2, 1]},
         ["1,234 in 'a' is read as 1234, since the columns are separated by commas"]),
        ("day,x\n2020-01-01,1\n2020-01-02,2\n", {"day": ["2020-01-01", "2020-01-02"], "x": [1, 2]},
         []),
    ],
)  # fmt: skip
def test_ordinary_files(tmp_path, content, columns, notes):
    frame, record = read(tmp_path / "a.csv", content)
    pd.testing.assert_frame_equal(frame, pd.DataFrame(columns), check_dtype=False)
    assert not record.problems
    assert all(note in said(record) for note in notes), said(record)
    assert bool(notes) == bool(said(record))


def test_names_of_rows_without_a_header(tmp_path):
    frame, record = read(tmp_path / "a.txt", '"x" "y"\n"r1" 3 4\n"r2" 5 6\n')  # as R writes
    assert frame.index.tolist() == ["r1", "r2"] and frame["y"].tolist() == [4, 6]
    assert "the first names the row" in said(record)
    frame, record = read(tmp_path / "b.csv", ",x\nr1,3\nr2,4\n")  # as pandas writes
    assert frame.index.tolist() == ["r1", "r2"] and not said(record)


@pytest.mark.parametrize(
    ("content", "got", "options"),
    [
        ("a,b\n" + "1,2\n" * 9 + "12a,3\n", "'12a' (line 11) among the numbers in 'a'",
         {"na-values": ["12a"]}),
        ("a;b\n" + "1,5;2\n" * 4 + "\n2.5;3\n", "'2.5' (line 7), '1,5' (lines 2, 3, 4, ...)",
         {"drop": ["a"]}),
        ("a;b\n" + "2.796,57;2\n" * 3 + "3.075,61;2\n7449.80;3\n",
         "'7449.80' (line 6), '2.796,57' (lines 2, 3, 4)", {"drop": ["a"]}),
        ("a;b\n" + "".join(f"{i}.25;2\n" for i in range(9)) + "2,5;1\n" * 10,
         "'0.25' (line 2), '1.25' (line 3), '2.25' (line 4), '3.25' (line 5), ..., '2,5' (lines 11",
         {"drop": ["a"]}),
        ("a;b\n" + "1,234;2\n" * 2 + "1.234;3\n", "'1.234' (line 4), '1,234' (lines 2, 3)",
         {"drop": ["a"]}),
        ("a,b\n5 %,1\n6,2\n", "numbers of several units in 'a': '6' (line 3), '5 %' (line 2)",
         {"drop": ["a"]}),
        ("a\tb\n1,234\t2\n5,678\t3\n", "1,234 in 'a', whose comma may be decimal or separate",
         {"decimal": [","]}),
    ],
)  # fmt: skip
def test_columns_that_are_not_clear_are_named_with_their_lines(tmp_path, content, got, options):
    frame, record = read(tmp_path / "a.csv", content)
    (problem,) = record.problems
    assert got in problem.got and problem.options == options and problem.columns == ["a"]
    assert frame["a"].map(type).eq(str).all()


def test_the_user_decides(tmp_path):
    path = tmp_path / "a.csv"
    frame, record = read(path, "a\tb\n1,234\t2\n5,678\t-9\n", decimal=",", na_values=["-9"])
    assert frame["a"].tolist() == [1.234, 5.678] and frame["b"].isna().tolist() == [False, True]
    assert not record.problems and not record.warnings
    assert read(path, decimal="point")[0]["a"].tolist() == [1234, 5678]
    frame, record = read(path, "a;b\n2.5;1\n1.5;2\n", decimal=",")
    assert "without decimal commas: '2.5' (line 2), '1.5' (line 3)" in record.problems[0].got
    assert list(read(path, "a;b,c\n2;1,3\n", sep=",")[0]) == ["a;b", "c"]
    for wrong in ({"sep": "ab"}, {"decimal": "x"}, {"encoding": "none"}):
        with pytest.raises(InputError, match=f"--{next(iter(wrong))}"):
            read(path, **wrong)


@pytest.mark.parametrize("format", ["csv", "xlsx"])
def test_texts_that_the_user_declares_missing_are_counted(tmp_path, format):
    rows = [["a", "b", "c"], ["k.A.", "x", -9], [2, "k.A.", -9], ["?", "k.A.", -9], ["", "y", -9]]
    content = "\n".join(",".join(map(str, row)) for row in rows)
    if format == "xlsx":
        pytest.importorskip("python_calamine")
        content = spreadsheet({"sheet": rows})
    path = tmp_path / f"a.{format}"
    path.write_bytes(content if format == "xlsx" else content.encode())
    for na_values, note in [
        (["k.A."], "'k.A.' in 'a' (1), 'b' (2); '?' in 'a' (1)"),
        (["k.A.", "-9", "u"], "'k.A.' in 'a' (1), 'b' (2); '-9' in 'c' (4); '?' in 'a' (1)"),
    ]:
        frame, record = read(path, na_values=na_values)
        assert record.notes == [f"read as missing values: {note}"] and not record.problems
        assert frame["b"].isna().sum() == 2


CELLS = st.sampled_from(
    ["a", "Äß", "é b", "x;y", "p,q", "t\tu", 'say "x"', "v|w", "it's", "two\nlines"]
)
# More than three decimals, which no separator of thousands can be.
FLOATS = st.integers(-(10**9), 10**9).map(lambda k: k + 0.123456)


@given(
    st.lists(st.tuples(CELLS, FLOATS, st.integers(-9, 9)), min_size=3, max_size=9),
    st.sampled_from([(",", "."), (";", ","), (";", "."), ("\t", "."), ("\t", ","), ("|", ",")]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
    st.sampled_from([*COMPRESS, ".zip"]),
    st.sets(st.integers(0, 2), max_size=2),
)
def test_frames_are_read_back(tmp_path_factory, rows, dialect, encoding, suffix, missing):
    """A frame that is written in any dialect is read back, and the dialect is said."""
    separator, decimal = dialect
    frame = pd.DataFrame(rows, columns=["größe", "x", "n"])
    frame.loc[list(missing), "x"] = np.nan
    text = frame.to_csv(index=False, sep=separator, decimal=decimal).encode(encoding)
    path = tmp_path_factory.mktemp("rows") / f"rows.csv{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("rows.csv", text)
    else:
        path.write_bytes(COMPRESS[suffix](text))
    result, record = read(path)
    pd.testing.assert_frame_equal(result, frame, check_dtype=False, rtol=1e-14)
    assert ("separated by" in said(record)) == (separator != ",")
    assert ("decimal commas" in said(record)) == (decimal == ",")
    assert (len(record.warnings) > 0) == (encoding == "cp1252")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,\x81\n", "neither UTF-8 nor cp1252; name the encoding"),
        (b"a,b\n1,\0\n", "not a text file"),
        (b"\x28\xb5\x2f\xfd....", "Zstandard"),
        ("a,b\n1,2\n1,2,3,4\n", "line 3 has 4 values for 2 columns"),
        ("a,b\n", "no rows"),
        ("\n\n", "nothing in it"),
    ],
)
def test_files_that_are_refused(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "a.csv", content)


def test_an_archive_of_several_files_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.csv", "a\n1\n")
        archive.writestr("b.csv", "a\n1\n")
    with pytest.raises(InputError, match="must hold one table; .* holds a.csv, b.csv"):
        read(tmp_path / "a.zip")


def spreadsheet(sheets):
    """An XLSX file with these sheets: lists of rows of texts, numbers and empty cells."""
    content = io.BytesIO()
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    links = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    with zipfile.ZipFile(content, "w") as archive:
        books = relations = types = ""
        for i, (name, rows) in enumerate(sheets.items(), 1):
            lines = ""
            for r, row in enumerate(rows, 1):
                cells = ""
                for c, value in zip("ABCDEF", row, strict=False):
                    if isinstance(value, str):
                        cells += f'<c r="{c}{r}" t="inlineStr"><is><t>{value}</t></is></c>'
                    elif value is not None:
                        cells += f'<c r="{c}{r}"><v>{value}</v></c>'
                lines += f'<row r="{r}">{cells}</row>'
            archive.writestr(
                f"xl/worksheets/sheet{i}.xml",
                f'<worksheet xmlns="{main}"><sheetData>{lines}</sheetData></worksheet>',
            )
            books += f'<sheet name="{name}" sheetId="{i}" r:id="r{i}"/>'
            relations += (
                f'<Relationship Id="r{i}" Type="{links}/worksheet" '
                f'Target="worksheets/sheet{i}.xml"/>'
            )
        head = '<?xml version="1.0" encoding="UTF-8"?>'
        archive.writestr(
            "xl/workbook.xml",
            f'{head}<workbook xmlns="{main}" xmlns:r="{links}"><sheets>{books}</sheets></workbook>',
        )
        of_package = f'<Relationships xmlns="{package}/relationships">'
        archive.writestr(
            "xl/_rels/workbook.xml.rels", f"{head}{of_package}{relations}</Relationships>"
        )
        archive.writestr(
            "_rels/.rels",
            f'{head}{of_package}<Relationship Id="r1" Type="{links}/officeDocument" '
            'Target="xl/workbook.xml"/></Relationships>',
        )
        archive.writestr(
            "[Content_Types].xml",
            f'{head}<Types xmlns="{package}/content-types">{types}</Types>',
        )
    return content.getvalue()


def test_spreadsheets(tmp_path):
    pytest.importorskip("python_calamine")
    rows = [
        ["Report"], [], ["a", "b", "c"], [1, 2.5, "x"], [3, "n/a", "y"], [], [4, 0.125, "y"],
    ]  # fmt: skip
    path = tmp_path / "a.xlsx"
    frame, record = read(path, spreadsheet({"empty": [], "data": rows, "more": [["z"], [1]]}))
    expected = {"a": [1, 3, 4], "b": [2.5, None, 0.125], "c": ["x", "y", "y"]}
    pd.testing.assert_frame_equal(frame, pd.DataFrame(expected), check_dtype=False)
    for part in ("'data' is read; --sheet", "'Report'", "'n/a' in 'b' (1)", "1 empty row"):
        assert part in said(record)
    assert read(path, sheet="more")[0].to_dict("list") == {"z": [1]}
    assert read(path, sheet="3")[0].to_dict("list") == {"z": [1]}
    with pytest.raises(InputError, match="no such sheet; --sheet x; .* has 'empty', 'data', 'm"):
        read(path, sheet="x")
    # The lines of a message are lines of the sheet.
    _, record = read(path, spreadsheet({"a": [["a", "b"], *[[i, i] for i in range(9)], ["1x", 2]]}))
    assert record.problems[0].got == "'1x' (line 11) among the numbers in 'a'"


def error_of_fit(path, *arguments):
    """The error that ``nrprob fit`` prints, as one line."""
    result = CliRunner().invoke(app, ["fit", str(path), "--k", "2", *arguments])
    assert result.exit_code == 2 and result.stderr.startswith("error: "), result.output
    return " ".join(result.stderr.split())


def test_errors_of_a_sheet_that_was_not_asked_for_name_the_other_sheets(tmp_path):
    pytest.importorskip("python_calamine")
    path = tmp_path / "a.xlsx"
    info = [["Info", "Day"], ["x", "2020-01-01"], ["y", "2020-01-02"], ["z", "2020-01-03"]]
    path.write_bytes(spreadsheet({"about": info, "data": [["a", "b"], [1, 2], [3, 4]]}))
    others = "('about', 'data'), of which 'about' is read; --sheet chooses another"
    arguments = ["--out", str(tmp_path / "out")]
    for more in (["--known", "b"], ["--drop", "b"], ["--drop", "Day"], []):
        assert others in error_of_fit(path, *arguments, *more)
    assert "--sheet" not in error_of_fit(path, *arguments, "--sheet", "about", "--known", "b")


def test_errors_of_missing_columns_doubt_the_separator_of_the_user(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("name;a;b\n" + "".join(f"x{i};{i},5;{i % 3},25 %\n" for i in range(9)))
    doubt = "--sep is probably wrong, since semicolons separate the columns better than commas;"
    assert doubt in error_of_fit(path, "--sep", ",", "--known", "b")
    assert "--sep" not in error_of_fit(path, "--known", "c")
    assert "--sep" not in error_of_fit(path, "--sep", ";", "--known", "c")
    path.write_text("a\n1\n2\n")
    assert "--sep" not in error_of_fit(path, "--sep", ";", "--known", "c")


def test_options_that_settle_problems_are_quoted():
    problems = [
        Problem("", "", ["a b"], {"drop": ["a b"]}),
        Problem("", "", ["c"], {"na-values": ["n, d", "-9"]}),
        Problem("", "", ["d"], {"drop": ["d", "a b"]}),
    ]
    text = as_command_options(problems)
    assert shlex.split(text) == ["--drop", "a b,d", "--na-values=-9", "--na-values", "n, d"]


def test_all_problems_are_one_answer_and_one_command_settles_them(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    rows = [f"2020-01-{i + 10};{i},5;{i % 4};{i % 3};{'A' if i % 2 else 'B'}" for i in range(12)]
    rows[3] = "2020-02-01;n.d.;;;A"
    path.write_text("day;size;n;m;group\n" + "\n".join(rows) + "\n")
    arguments = ["fit", str(path), "--known", "group", "--method", "ccib"]
    monkeypatch.setattr("sys.argv", ["nrprob", *arguments])
    monkeypatch.setenv("COLUMNS", "500")

    answer = CliRunner().invoke(app, arguments).stderr
    for part in ("dates in 'day'", "'n.d.' (line 5) among the numbers in 'size'", "in 'n'"):
        assert part in answer
    # Every column has one advice, whose alternatives are joined by "or".
    for advice in (
        "leave cells without a number empty, or pass --na-values n.d., or leave the column out "
        "with --drop size",
        "convert dates to numbers, or leave the column out with --drop day",
    ):
        assert f"; {advice}" in answer
    command = answer.partition("this command settles it: ")[2].strip()
    assert not (tmp_path / "results").exists()

    # The fit itself is not part of this test.
    def stop(*arguments, **keywords):
        raise InputError("the data are ready; got none; stop")

    monkeypatch.setattr("nrprob.batch.fits.fit_method", stop)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert "the data are ready" in str(result.exception), result.output


def test_counts_of_cells_are_found():
    anndata = pytest.importorskip("anndata")
    from nrprob.data.annotated import describe_counts, rows_of

    counts = np.random.default_rng(0).poisson(2.0, (6, 3)).astype(float)
    cells = anndata.AnnData(np.log1p(counts))
    assert (
        describe_counts(cells)
        == "X holds no raw counts, but values that were transformed or normalised"
    )
    cells.raw = anndata.AnnData(counts)
    assert "raw.X holds counts" in describe_counts(cells)
    cells.layers["raw counts"] = counts
    assert "layer 'raw counts' holds counts: --layer 'raw counts'" in describe_counts(
        cells, as_options=True
    )
    assert describe_counts(rows_of(cells, layer="raw counts")) == ""
