"""Run folders: changes are detected, and nothing is written outside."""

import contextlib
import json
import os
import random
import threading
import warnings
from pathlib import Path

import pytest
import xarray
from typer.testing import CliRunner

from nrprob import batch
from nrprob.batch import executor, manifest, store
from nrprob.batch.formats import MANIFEST
from nrprob.batch.plan import Experiment, expand, find_differences
from nrprob.cli import app
from nrprob.exceptions import InputError

DATA = {
    "generator": "make_binary_partitions",
    "parameters": {"n_samples": 30, "dims": [4, 4], "p_noise": 0.1},
    "repeats": 2,
}
# Fits that compile nothing.
METHOD = {"name": "cop_kmeans", "n_clusters": 2}
SINGLE = """
[data]
generator = "make_binary_partitions"
parameters = { n_samples = 30, dims = [4, 4], p_noise = 0.1 }
[report]
picture = "a.png"
[[methods]]
name = "cop_kmeans"
"""
SWEEP = {"data": DATA, "methods": [METHOD], "runs": 2}


MODELS = Path(__file__).resolve().parents[2] / "models"


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Contents of two finished run folders: a run of several fits, and a single run."""
    place = tmp_path_factory.mktemp("kept")
    batch.run(SWEEP, place / "sweep")
    batch.write_report(place / "sweep")
    (place / "single.toml").write_text(SINGLE)
    done = invoke("run", place / "single.toml", "--out", place / "single")
    assert done.exit_code == 0, done.output
    return {name: contents(place / name) for name in ("sweep", "single")}


def contents(folder):
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in paths}


def restore(files, folder):
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture
def sweep(kept, tmp_path):
    """A finished run of several fits."""
    return restore(kept["sweep"], tmp_path / "sweep")


@pytest.fixture
def single(kept, tmp_path):
    """A finished run of one fit."""
    return restore(kept["single"], tmp_path / "single")


# changes


def test_of_a_hundred_changed_bytes_each_is_detected_and_its_file_named(kept, single):
    files, before, chance = kept["single"], batch.load(single), random.Random(0)
    paths = [path for path, content in files.items() if content]  # locks are empty
    assert {*FILES, "result.json"} == {path.name for path in paths if path.suffix != ".nc"} | {
        "results.nc"
    }
    for number in range(100):
        path = paths[number % len(paths)]
        content = bytearray(files[path])
        content[chance.randrange(len(content))] ^= chance.randrange(1, 256)
        (single / path).write_bytes(content)
        with warnings.catch_warnings(), pytest.raises((InputError, UserWarning)) as caught:
            warnings.simplefilter("error")
            batch.load(single)
        assert str(single / path) in str(caught.value) and "\n" not in str(caught.value)
        (single / path).write_bytes(files[path])
    xarray.testing.assert_identical(batch.load(single), before)


def test_parameters_of_a_plan_that_was_changed_label_no_results(sweep):
    path = sweep / "plan.json"
    path.write_text(path.read_text().replace('"p_noise": 0.1', '"p_noise": 0.3'))
    for use in (batch.load, batch.write_report):
        with pytest.raises(InputError, match=r"was changed .*plan\.json; run the model file again"):
            use(sweep)
    again = batch.run(SWEEP, sweep)
    assert {*again["p_noise"].values} == {0.1}
    xarray.testing.assert_identical(batch.load(sweep), again)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('"p_noise": 0.1', '"p_noise": 0.3', "case.p_noise is 0.1 in the result and 0.3 in"),
        ('"n_clusters": 2', '"n_clusters": 3', "parameters.n_clusters is 2 in the result and 3"),
        ('"seed": 0', '"seed": 1', "seed is 0 in the result and 1 in the plan"),
        ('"random_state": 1', '"random_state": 7', "random_state is 1 in the result and 7 in"),
        ('"name": "cop_kmeans"', '"name": "ib"', 'method is "cop_kmeans" in the result and "ib"'),
    ],
)
def test_results_say_themselves_what_they_were_computed_with(sweep, old, new, what):
    # As if a manifest had been written for another plan.
    content = (sweep / "plan.json").read_text()
    start = content.index('"cells"')
    changed = content[:start] + content[start:].replace(old, new)
    assert changed != content
    manifest.write_files(sweep, {"plan.json": changed.encode()})
    with pytest.raises(
        InputError, match=r"a result does not belong to the plan; .*; run"
    ) as caught:
        batch.load(sweep)
    assert what in str(caught.value) and str(sweep / "cells") in str(caught.value)


@pytest.mark.parametrize("name", sorted(path.stem for path in MODELS.glob("*.toml")))
def test_a_stored_plan_has_the_same_identities(name):
    try:
        plan = expand(batch.read_model(MODELS / f"{name}.toml"))
    except InputError as error:
        assert "no such data file" in str(error)
        pytest.skip(str(error))
    stored = json.loads(plan.dumps())
    cells = [Experiment(**cell) for cell in stored["cells"]][:: len(plan.cells) // 20 + 1]
    identities = {cell.id: cell.identity for cell in plan.cells}
    assert not [*find_differences(type(plan.model)(**stored["model"]), cells, identities)]


def test_fits_that_a_plan_does_not_name_are_missing_and_not_dropped_in_silence(sweep):
    results = batch.load(sweep)
    name = str(results["cell"].values[0])
    content = (sweep / "plan.json").read_text().replace(name, name[::-1])
    manifest.write_files(sweep, {"plan.json": content.encode()})
    with pytest.warns(UserWarning, match="the run is not finished; 1 of 4 fits are missing in"):
        assert batch.load(sweep).sizes["cell"] == 3


def test_files_of_cells_without_what_they_were_computed_with_are_refused(sweep):
    (part, *_) = store.Store(sweep).parts()
    content = store.netcdf_bytes(store._read_netcdf(part).drop_vars("identity"))
    part.unlink()
    other = store.sealed(part.with_name(f"{part.name[:20]}.nc"), content)
    other.write_bytes(content)
    for use in (batch.load, lambda folder: batch.run(SWEEP, folder)):
        with pytest.raises(InputError, match=rf"a result file; .*{other.name}.*identity.*; delete"):
            use(sweep)


def test_fits_under_the_name_of_another_are_refused(sweep):
    (part,) = store.Store(sweep).parts()
    results = store._read_netcdf(part)
    content = store.netcdf_bytes(results.assign_coords(cell=results["cell"].values[::-1]))
    part.unlink()
    other = store.sealed(part.with_name(f"{part.name[:20]}.nc"), content)
    other.write_bytes(content)
    with pytest.raises(InputError, match=rf"{other.name}: the identity .* to another fit; delete"):
        batch.load(sweep)


def test_a_deleted_file_of_cells_is_reported_and_computed_again(sweep):
    before = batch.load(sweep)
    for part in store.Store(sweep).parts():
        part.unlink()
    with pytest.warns(UserWarning, match="the run is not finished; 4 of 4 fits are missing"):
        assert not batch.load(sweep).sizes
    again = batch.run(SWEEP, sweep)
    xarray.testing.assert_equal(again["labels"], before["labels"])


def test_a_run_without_its_manifest_is_refused_until_it_is_run_again(sweep):
    (sweep / MANIFEST).unlink()
    for use in (batch.load, batch.write_report):
        with pytest.raises(InputError, match=r"cannot read the manifest .*; run the model file"):
            use(sweep)
    xarray.testing.assert_identical(batch.run(SWEEP, sweep), batch.load(sweep))


@pytest.mark.parametrize("name", [MANIFEST, "plan.json", "notes.json"])
@pytest.mark.parametrize("runs", [1, 2])
def test_the_same_command_mends_what_it_knows(single, tmp_path, name, runs):
    before = contents(single)
    (single / name).write_bytes(before[Path(name)].replace(b'"', b"'", 1))
    with pytest.raises(InputError, match="run the model file again"):
        batch.load(single)
    (tmp_path / "model.toml").write_text(f"runs = {runs}\n{SINGLE}")
    done = invoke("run", tmp_path / "model.toml", "--out", single)
    assert done.exit_code == 0, done.output
    assert batch.load(single).sizes["cell"] == runs
    # Files of a single run are removed if there are several fits.
    others = {"labels.csv", "result.json"} if runs == 2 else set()
    assert {path.name for path in contents(single) if path.suffix in (".csv", ".json")} == {
        path.name for path in before if path.suffix in (".csv", ".json")
    } - others
    assert ("has results of other fits" in done.stderr) == (runs == 2)


@pytest.mark.parametrize("name", ["report.html", "labels.csv", "a.png", "results.nc"])
def test_pages_that_were_changed_are_named_and_written_again(single, tmp_path, name):
    (single / name).write_bytes(b"changed")
    said = f"files of the run were changed after they were written; {single / name}; do not rely"
    result = invoke("report", single)
    assert result.exit_code == 0 and said in result.stderr.replace("\n", " ")
    (tmp_path / "single.toml").write_text(SINGLE)
    result = invoke("run", tmp_path / "single.toml", "--out", single)
    assert result.exit_code == 0, result.output
    assert (said in result.stderr) == (name != "report.html")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch.load(single)
    assert (single / name).read_bytes() != b"changed"


def test_a_picture_that_was_changed_is_on_no_page(single):
    (single / "a.png").write_bytes(b"changed")
    with pytest.warns(UserWarning, match="a.png"):
        page = batch.write_report(single).read_text()
    assert "not on this page: a file of the run was changed" in page


# writers


def test_a_run_may_be_killed_at_any_write(kept, tmp_path, monkeypatch):
    """After each of its writes, `load` can read a run folder, and the next run completes it."""
    write, left = manifest.write_atomically, 0

    def killed(path, content):
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        write(path, content)

    plan = expand(batch.read_model(SWEEP | {"title": "another plan"}))

    def write_again(folder):
        place = store.Store(folder)
        place.open(plan)
        place.note(skipped={"a reason": 1}, failed={})
        return place.gather()

    for number in range(20):
        folder = restore(kept["sweep"], tmp_path / str(number))
        left = number
        with monkeypatch.context() as patched:
            patched.setattr(manifest, "write_atomically", killed)
            with contextlib.suppress(KeyboardInterrupt):
                write_again(folder)
                break
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert batch.load(folder).sizes["cell"] == 4
            assert write_again(folder).attrs["title"] == "another plan"
        assert not manifest.changed_files(folder)
    assert number == 9  # of the plan, the notes, the results, each between two of the manifest


def test_what_others_write_meanwhile_is_no_damage(tmp_path):
    """Readers never see a file that does not match, and no digest of a writer is lost."""
    manifest.write_files(tmp_path, {"plan.json": b"0"})
    writing, failures = 3, []

    def write(number):
        nonlocal writing
        for i in range(6):
            both = {"plan.json": bytes([number, i]), f"{number}.html": bytes([i])}
            manifest.write_files(tmp_path, both)
        writing -= 1

    def read():
        while writing:
            try:
                manifest.read_file(tmp_path, "plan.json")
                assert not manifest.changed_files(tmp_path)
            except Exception as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=write, args=(i,)) for i in range(3)]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    listed = json.loads((tmp_path / MANIFEST).read_text())
    assert {*listed["files"]} == {"plan.json", "0.html", "1.html", "2.html"}
    assert not listed["announced"] and not manifest.changed_files(tmp_path)


# links


def linked(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return rf"symbolic links; {path} points to {target}; delete the link"


FILES = ("plan.json", MANIFEST, "notes.json", "results.nc", "report.html", "labels.csv", "a.png")


@pytest.mark.parametrize("name", [*FILES, "cells", "locks"])
def test_nothing_is_written_through_a_link(tmp_path, monkeypatch, name):
    monkeypatch.setattr(executor.Executor, "fit", lambda *_: pytest.fail("fitted"))
    victim = tmp_path / "victim"
    victim.write_text("mine") if "." in name else victim.mkdir()
    said = linked(tmp_path / "run" / name, victim)
    (tmp_path / "single.toml").write_text(SINGLE)
    with pytest.raises(InputError, match=said):
        batch.run(tmp_path / "single.toml", tmp_path / "run")
    result = invoke("run", tmp_path / "single.toml", "--out", tmp_path / "run", "--force")
    assert result.exit_code == 2
    assert str(tmp_path / "run" / name) in result.stderr and "symbolic links" in result.stderr
    assert victim.read_text() == "mine" if "." in name else not [*victim.iterdir()]
    assert [path.name for path in (tmp_path / "run").iterdir()] == [name]


@pytest.mark.parametrize("name", [*FILES[:5], "cells", "locks", "a file of cells", "a lock"])
def test_nothing_is_read_or_resumed_through_a_link(sweep, tmp_path, name):
    path = sweep / name
    if name == "a file of cells":
        (path, *_) = store.Store(sweep).parts()
    elif name == "a lock":
        (path, *_) = (sweep / "locks").iterdir()
        path.write_text("mine")
    victim = path.rename(tmp_path / path.name)
    said = linked(path, victim)
    before = contents(tmp_path)
    with pytest.raises(InputError, match=said):
        batch.run(SWEEP, sweep)
    if "lock" not in name:
        for use in (batch.load, batch.write_report):
            with pytest.raises(InputError, match=said):
                use(sweep)
    assert contents(tmp_path) == before


def test_a_page_is_not_written_through_a_link(sweep, tmp_path):
    (tmp_path / "victim").write_text("mine")
    (sweep / "report.html").unlink()
    said = linked(sweep / "report.html", tmp_path / "victim")
    for use in (batch.write_report, lambda folder: batch.write_report(folder, folder)):
        with pytest.raises(InputError, match=said):
            use(sweep)
    assert invoke("report", sweep).exit_code == 2
    assert (tmp_path / "victim").read_text() == "mine"


def test_places_that_the_user_names_may_be_links(sweep, tmp_path):
    (tmp_path / "folder").symlink_to(sweep)
    (tmp_path / "page.html").symlink_to(tmp_path / "elsewhere.html")
    assert batch.run(SWEEP, tmp_path / "folder").sizes["cell"] == 4
    assert batch.load(tmp_path / "folder").sizes["cell"] == 4
    batch.write_report(tmp_path / "folder", tmp_path / "page.html")
    assert (tmp_path / "elsewhere.html").is_file() and (tmp_path / "page.html").is_symlink()
    assert invoke("report", sweep, "--out", tmp_path / "page.html", "--force").exit_code == 0


def test_a_fit_writes_through_no_link(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n" + "0,1\n3,2\n5,9\n8,8\n" * 5)
    (tmp_path / "victim").write_text("mine")
    said = linked(tmp_path / "out" / "labels.csv", tmp_path / "victim")
    result = invoke("fit", tmp_path / "rows.csv", "--force", "--out", tmp_path / "out")
    assert result.exit_code == 2 and said in result.stderr.replace("\n", "")
    assert (tmp_path / "victim").read_text() == "mine"


# valid paths in a model file


@pytest.mark.parametrize(
    "out", ["/tmp/x", "..", "../x", "a/../../x", "C:x", "C:\\x", "\\x", "a\\..\\x", ".", "", "a\0b"]
)
def test_a_model_file_names_no_folder_elsewhere(out):
    spec = {"data": DATA, "methods": [METHOD], "report": {"out": out}}
    with pytest.raises(InputError, match=r"report\.out: .* the working directory; got .*--out"):
        batch.read_model(spec)


def test_the_folder_of_a_model_file_is_below_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "one.toml").write_text(SINGLE.replace("picture", 'out = "a/b"\npicture'))
    os.symlink("elsewhere", "a")
    with pytest.raises(InputError, match=r"links; a points to elsewhere; name another .* --out"):
        batch.run("one.toml")
    result = invoke("run", "one.toml")
    assert result.exit_code == 2 and "a points to elsewhere; name another folder" in result.stderr
    assert not [*(tmp_path / "elsewhere").iterdir()]
    assert batch.run("one.toml", out=tmp_path / "a").sizes["cell"] == 1  # valid paths for the user
    os.unlink("a")
    assert batch.run("one.toml").sizes["cell"] == 1 and (tmp_path / "a" / "b").is_dir()


def test_a_model_file_whose_name_is_the_folder_above_is_refused(tmp_path):
    (tmp_path / "...toml").write_text(SINGLE)
    with pytest.raises(InputError, match=r"results are named after the model file; .*; rename it"):
        batch.read_model(tmp_path / "...toml")
