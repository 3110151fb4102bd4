"""The page of a report in text and in a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from made_up_results import METHODS, WANTED, make_model, make_run, table
from pages import Page, page_of

from nrprob.batch import fit_files, write_report
from nrprob.batch.fit_result import FitResult
from nrprob.batch.fits import Fit
from nrprob.batch.report import fit_page, template
from nrprob.batch.report.fit_page import Chapter
from nrprob.batch.schema import ModelFile
from nrprob.batch.tables import Table
from nrprob.exceptions import InputError
from nrprob.plotting.style import contrast_ratio


def test_the_page_says_which_labels_were_told(tmp_path):
    text = page_of(write_report(make_run(tmp_path / "a", make_model(**WANTED)))).text
    text = " ".join(text.split())
    told = "partition_1 of 5 % or 20 % of every class, sampled for every run and the same for"
    assert f"{told} all methods (not given to plain); measures compare the other rows" in text
    # The table of all measures has separate points of the curve.
    assert (
        "ours, partial_labels.fraction\xa0=\xa00.05" in text
        or "partial_labels.fraction = 0.05" in text
    )
    model = make_model(partial_labels={"labeling": "partition_1", "per_class": 3, "score": "all"})
    text = page_of(write_report(make_run(tmp_path / "b", model))).text
    assert "partition_1 of 3 rows of every class" in text
    assert "measures compare all rows" in text
    text = page_of(write_report(make_run(tmp_path / "c", make_model()))).text
    assert "Target labels" not in text


def test_wrong_labels_and_those_of_some_classes_are_said():
    partial = {"labeling": "partition_1", "fraction": [0.1, 0.3], "draw": "rows"}
    more = partial | {"wrong": [0, 0.25], "classes": 2}
    text, plain = (
        template.describe_labels(ModelFile(**make_model(partial_labels=w))) for w in (more, partial)
    )
    assert text.startswith("partition_1 of 10 % or 30 % of all rows, sampled for every run")
    assert "from 2 classes only; 0 % or 25 % of these labels are wrong" in text
    assert "classes" not in plain and "wrong" not in plain


def test_a_table_of_ratios_says_what_they_are_of(tmp_path):
    published = {"ours / plain": {"seconds": {"mean": 2.0}}}
    model = make_model(tables=[table(published, measures=["seconds"], methods=["ours / plain"])])
    page = write_report(make_run(tmp_path, model)).read_text()
    assert "Ours: 3 data sets" in page
    assert "No fit of this table is finished" not in page


FULL = make_model(
    description="First.\n\nSecond <b>.",
    source="A book, section 5",
    tables=[
        table(
            {
                "ours": {"accuracy": {"mean": 2.0}, "distance": {"mean": 9.0}},
                "theirs": {"accuracy": {"mean": 0.5250, "range": 0.1}},
                "ours / plain": {"seconds": {"mean": 1.5}},
            },
            name="Table <1>",
            caption="What & what",
            statistics=["mean", "range"],
        ),
        {"name": "Table 2", "settings": [{"where": {"dims": [12, 4]}}, {"note": "all data"}]},
    ],
    figures=[
        {
            "name": "Figure 1",
            "caption": "a & b",
            "x": "dims.0",
            "x_label": "columns at $1 each, $",
            "y": "accuracy",
            "log_x": True,
        },
        {"name": "Figure 2", "x": "dims", "y": "seconds"},
    ],
)


def test_the_page_of_a_run(tmp_path):
    folder = make_run(tmp_path / "run", FULL)
    path = write_report(folder)
    assert path == folder / "report.html"
    page = page_of(path)
    text = " ".join(page.text.split())
    for part in (
        "A <title> & more", "Second <b>.", "A book, section 5", "24 of 24", "Table <1>",
        "What & what.", "published only", "ratio of means", "1 ▼ worse, 0 ≈ within 2 SE, 1 ▲",
        "mean of 2 settings", "all data", "24 of 24", "12 fits: did not converge <after> 3 steps",
        "numpy 2.0", "2005-05-01 12:30 UTC", "0.525 published", "a host", "float64",
    ):  # fmt: skip
        assert part in text, part
    assert "are missing" not in text
    # The text contains everything that the plot shows.
    assert text.count("▼worse") == 3  # in the legend, in the table, and for the best
    alt = page.images[0]
    assert alt.startswith("accuracy against columns at $1 each, $. ours: ")
    assert "ours (published): 2.000 at 4" in alt
    assert len(page.images) == 2


def test_what_is_missing_or_mixed_is_said(tmp_path):
    keep = lambda cell: cell.case == 0 and (cell.method == "ours" or cell.repeat == 0)  # noqa: E731
    folder = make_run(
        tmp_path, FULL, keep=keep, numpy=lambda cell: "2.0" if cell.method == "ours" else "2.1"
    )
    text = " ".join(page_of(write_report(folder)).text.split())
    assert "16 of 24 fits are missing (plain 10, ours 6)" in text
    assert "2 of 6 fits" in text
    assert "not finished: 0 of 6 fits" in text
    assert "different versions: numpy 2.0 (6 fits), 2.1 (2 fits)" in text


def test_a_data_file_may_be_gone(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("a,b\n" + "1,2\n3,4\n" * 5)
    model = {"data": {"file": str(file)}, "methods": METHODS}
    value = lambda cell: {"NMI of b": 0.5}  # noqa: E731
    folder = make_run(tmp_path / "run", model, value)
    others = "the data have changed since the fit; 10 rows for 4 labels"
    assert f"not on this page: {others}" in page_of(write_report(folder)).text
    file.unlink()
    page = page_of(write_report(folder))
    assert "not on this page: no such data file" in page.text
    assert page.captions[0].startswith("All results")
    assert "NMI of b" in page.text


def test_a_folder_of_folders(tmp_path):
    for name in ("part 10", "part 9", "part 1"):
        make_run(tmp_path / name, make_model(title=f"Title of {name}"))
    make_run(tmp_path / "part 11", make_model(title=""), keep=lambda cell: False)
    (tmp_path / "something else").mkdir()
    page = page_of(write_report(tmp_path, tmp_path / "new" / "page.html"))
    parts = re.findall(r"Title of part \d+", page.text)
    assert parts == [f"Title of part {i}" for i in (1, 9, 10)] * 2  # contents, then sections
    assert "24 of 24 fits are missing" in page.text
    assert "part 11" in page.text


def test_an_existing_folder_as_the_place(tmp_path):
    folder = make_run(tmp_path / "run", make_model())
    assert write_report(folder, tmp_path) == tmp_path / "report.html"


@pytest.mark.parametrize("inside", [False, True])
def test_nothing_to_report(tmp_path, inside):
    with pytest.raises(InputError, match=r"no results here; .*; name a folder") as caught:
        write_report(tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    make_run(tmp_path / "run" if inside else tmp_path, make_model(), keep=lambda cell: False)
    with pytest.raises(InputError, match=r"no fit is finished yet; .* 0 of 24 fits; run"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("inside", [False, True])
def test_a_damaged_file_stops_a_report(tmp_path, inside):
    folder = make_run(tmp_path / "run", make_model())
    path = next((folder / "cells").glob("*.nc"))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(InputError, match=rf"cannot read a result file; .*{path.name}"):
        write_report(tmp_path if inside else folder)
    assert not [*tmp_path.glob("**/report.html")]


def test_an_unwritable_place(tmp_path):
    folder = make_run(tmp_path / "run", make_model())
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the output folder"):
        write_report(folder, tmp_path / "file" / "page.html")


STYLE = (Path(template.__file__).parent / "base.html.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_colours_of_pages_are_read_in_light_in_dark_and_on_paper(place):
    block = re.findall(r":root \{([^}]*)\}", STYLE)[place]
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]+)", block))
    on = [(name, "paper") for name in ("ink", "soft", "link", "worse", "within", "reached")]
    on += [("ink", "tint"), ("soft", "tint"), ("ink", "alert"), ("link", "tint")]
    for text, ground in on:
        if text in colours:  # links are useless on paper
            assert contrast_ratio(colours[text], colours[ground]) >= 4.5, (text, ground)


# in a browser

OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars"
)


def in_browser(path, folder, *options):
    """Result of opening a file in a browser."""
    result = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    if not any(result):
        pytest.skip("no Chromium or Chrome on this machine")
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [next(filter(None, result)), *OPTIONS.split(), profile, *options, path.as_uri()]
    return subprocess.run(
        command, check=True, capture_output=True, timeout=100, text=True, encoding="utf-8"
    ).stdout


# Pages have no scripts; copies get one, to query the browser about their layout.
ASK = """<script>addEventListener("load", () => {
  const images = [...document.images];
  const over = [...document.querySelectorAll("table, img")].filter(one =>
    one.getBoundingClientRect().right > innerWidth + 1
    && getComputedStyle(one.closest(".scroll") ?? one).overflowX == "visible");
  const found = {
    page: document.documentElement.scrollWidth, window: innerWidth, over: over.length,
    tables: document.querySelectorAll("table").length,
    drawn: images.filter(i => i.complete && i.naturalWidth > 100).length,
    small: images.filter(i => i.closest(".wide") && i.offsetParent
      && i.width < Math.min(i.naturalWidth, 760)).length,
    hidden: images.filter(i => !i.offsetParent).length,
  };
  parent.postMessage([name, found], "*");
});</script></body>"""
LISTEN = """<html><body><script>const all = {}; addEventListener("message", e => {
  all[e.data[0]] = e.data[1]; document.documentElement.dataset.found = JSON.stringify(all);
});</script>"""
# Windows have a minimum width, so pages are in frames; 700 pixels are the width of A4 between
# margins.
WIDTHS = {"phone": 400, "screen": 1200, "paper": 700}


def frames(page, folder):
    """Layout of a page in frames of different widths, the last of them printed."""
    shown = page.replace("<details>", "<details open>").replace("</body>", ASK)
    (folder / "shown.html").write_text(shown, encoding="utf-8")
    assert "@media print" in page
    (folder / "paper.html").write_text(shown.replace("@media print", "@media all"), "utf-8")
    frame = '<iframe name="{}" src="{}.html" width="{}" height="800" style="border: 0"></iframe>'
    every = [frame.format(n, "paper" if n == "paper" else "shown", w) for n, w in WIDTHS.items()]
    (folder / "frames.html").write_text(LISTEN + "".join(every) + "</body></html>", "utf-8")
    dom = in_browser(folder / "frames.html", folder, "--dump-dom")
    result = re.search(r'data-found="([^"]*)"', dom)[1]
    return json.loads(result.replace("&quot;", '"'))


SITES = [f"Experiment_2010_site_Freiburg_batch_number_{i}" for i in range(30)]


def chapter(n_clusters, title=""):
    """A fit's part of a page, with names of some length."""
    rng = np.random.default_rng(n_clusters)
    X, labels = rng.normal(size=(240, 5)), np.arange(240) % n_clusters
    labelings = {"site": np.array(SITES)[rng.integers(30, size=240)], "type": labels % 2}
    names = [f"feature_of_{'a_long_' * 4}name_{j}" for j in range(5)]
    fits = [
        Fit("ConditionalMixture", "ConditionalMixture", {"n_init": 3}, labels, 1.0,
            n_clusters=n_clusters, scores={"NMI of site": 0.5}),
        Fit("IB", "IB", {}, labels[::-1], 1.0, n_clusters=n_clusters, scores={"NMI of site": 0.2}),
    ]  # fmt: skip
    run = FitResult(title, Table(X, names, labelings), ["site"], fits)
    page_part = Chapter(run)
    page_part.add_clusters(fit_files.draw_clusters(page_part, "png"), "summary.png")
    return page_part


@pytest.mark.parametrize("kind", ["runs", "fit", "exploration"])
def test_pages_in_a_browser(kind, tmp_path):
    if kind == "runs":
        text = write_report(make_run(tmp_path / "run", FULL)).read_text(encoding="utf-8")
    elif kind == "fit":
        text = fit_page.write_page([chapter(20)])
    else:
        text = fit_page.write_page([chapter(3, "clustering 1"), chapter(4, "clustering 2")])
    for name, one in frames(text, tmp_path).items():
        assert one["window"] == WIDTHS[name]
        # Browsers shrink wide pages by half for printing, such as tables of many statistics.
        wide = 2 if (kind, name) == ("runs", "paper") else 1
        assert one["page"] <= wide * one["window"] and (wide > 1 or not one["over"]), name
        # Wide plots are hidden instead of shrinking to an unreadable size, except on paper.
        assert not one["small"] or name == "paper"
        assert (one["hidden"] > 0) == (name == "phone" and kind != "runs")
        assert one["tables"] == Page(text).tables
        assert one["drawn"] == {"runs": 2, "fit": 1, "exploration": 2}[kind]


def test_a_page_on_paper(tmp_path):
    if shutil.which("pdftotext") is None:
        pytest.skip("no pdftotext on this machine")
    page = tmp_path / "page.html"
    page.write_text(fit_page.write_page([chapter(4)]), encoding="utf-8")
    in_browser(page, tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}", "--no-pdf-header-footer")
    command = ["pdftotext", "-layout", tmp_path / "page.pdf", "-"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    sheets = [" ".join(sheet.split()) for sheet in told.split("\f")]
    for row in page_of(page).cells:
        if row[0].startswith("Experiment"):
            line = " ".join(row)
            assert any(line in sheet for sheet in sheets), line
    for caption in page_of(page).captions:
        assert any(" ".join(caption.split()) in sheet for sheet in sheets), caption
