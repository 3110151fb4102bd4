"""The pages under docs/: links have targets, examples run, and model files can be read."""

import ast
import doctest
import importlib
import inspect
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import pandas as pd
import pytest
import typer
from jax.experimental.compilation_cache import compilation_cache
from pages import page_of
from places import DOCS, ROOT, TESTS
from typer.testing import CliRunner

import nrprob
from nrprob.batch.modelfile import read_model
from nrprob.cli import app

PAGE = (DOCS / "model-files.md").read_text(encoding="utf-8")


def test_the_model_file_of_the_page_is_valid():
    text = "".join(re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S))
    content = tomllib.loads(text)
    content["known"] = "partition_0"
    model = read_model(content)
    assert model.tables[0].settings[0].published["another method"]
    assert not model.is_single


def test_every_key_is_on_the_page():
    from nrprob.batch.measures import Figure, Measure, Save, Setting, Table
    from nrprob.batch.schema import Data, ModelFile

    for kind in (ModelFile, Data, Measure, Save, Setting, Table, Figure):
        for key in kind.model_fields:
            assert re.search(rf"\b{key}\b", PAGE), f"{kind.__name__}.{key}"


def test_the_page_of_the_command_line_lists_every_option_of_every_command():
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    listed = set()
    for options, commands in re.findall(r"^\| (`--[^|]+) \| ([a-z, ]+) \|", page, re.M):
        names = re.findall(r"`(--[a-z0-9-]+)`", options)
        listed |= {(command, name) for command in commands.split(", ") for name in names}
    commands = typer.main.get_command(app).commands
    assert listed == {
        (command, name)
        for command, entry in commands.items()
        for option in entry.params
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("--")
    }
    general = {"--install-completion", "--help"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", page)) <= general | {n for _, n in listed}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (DOCS / target).is_file(), target


def test_tests_and_files_of_the_errata_exist():
    page = (DOCS / "errata.md").read_text(encoding="utf-8")
    files = [(path.as_posix(), path.read_text(encoding="utf-8")) for path in TESTS.rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    assert len(named) == page.count("::") > 40  # none is written in another way
    for file, name in named:
        holding = [text for path, text in files if path.endswith(f"/{file}")]
        assert any(f"def {name}(" in text for text in holding), f"{file}::{name}"
    for file in re.findall(r"`(models/[^`]+)`", page):
        assert (ROOT / file).is_file(), file


def test_settings_of_the_errata_are_accepted():
    page = (DOCS / "errata.md").read_text(encoding="utf-8")
    parameters = set()
    for code in re.findall(r"`([\w.]+(?:\([^`]*\))?)`", page):
        name = code.split("(")[0].removeprefix("nrprob.")
        if not (code.startswith("nrprob.") or name in nrprob.__all__):
            continue
        module, _, attribute = name.rpartition(".")
        holder = importlib.import_module(f"nrprob.{module}") if module else nrprob
        made = getattr(holder, attribute)
        if "(" not in code:
            continue
        given = {k.arg: ast.literal_eval(k.value) for k in ast.parse(code).body[0].value.keywords}
        assert set(given) <= set(inspect.signature(made).parameters), code
        if inspect.isclass(made):
            made(**given).check_parameters()
            parameters |= set(inspect.signature(made).parameters)
    for name in re.findall(r"`(\w+)=[^`]*`", page):
        assert name in parameters, name


def test_every_public_name_has_a_page():
    listed = set(re.findall(r"^   (\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.M))
    assert listed == {name for name in nrprob.__all__ if name != "__version__"} | {"batch"}


# Statements of the text next to the examples.
CLAIMS = {
    "is-it-real": lambda result, sure, model, **_: (
        result.p_structure_ < 0.001
        and result.p_gap_ < 0.05
        and sure.samples_.mean() > 0.95
        and model.n_clusters_ == 2
    ),
    "few-labels": lambda few, some, species, majority, **_: (
        (majority[some[:6]] == species[some[:6]]).sum() >= 4  # wrong labels that are outvoted
        and few.n_clusters_ >= 3
    ),
    "views-and-pairs": lambda believed, wrong, **_: (
        believed["accepted"][~wrong].mean() > 0.9 and not believed["accepted"][wrong].any()
    ),
    "one-after-another": lambda X, result, both, **_: (
        result.labels_.shape == both.shape == (len(X), 2)
    ),
    # with tolerance for the noise of R-hat itself
    "posterior": lambda sampled, posterior, draws, **_: (
        sampled.converged_ and posterior.diagnose(draws, random_state=0)["r_hat"].max() < 1.05
    ),
    "start": lambda model, metrics, parity, result, **_: (
        "ConditionalMixture" in model.reason_
        and metrics.normalized_mutual_information(model.labels_, parity) < 0.01
        and result.p_structure_ > 0.05
    ),
}
TEXTS = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))}
# A page that shows the output of commands has a test for the commands and the code together.
PAGES = [page for page, text in TEXTS.items() if "```python" in text and "```console" not in text]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_of_pages_run(page, tmp_path, monkeypatch):
    """Run the blocks one after the other, as a reader would."""
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    for block in re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S
    ):
        exec(block, scope)
    assert CLAIMS.get(page.stem, lambda **_: True)(**scope)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["command-line", "one-after-another", "start"])
def test_commands_of_pages_run(page, tmp_path, monkeypatch):
    """Run the commands one after the other, in a folder that only has the files of the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    scope: dict = {}
    ran = 0
    for language, block in re.findall(r"^```(python|sh)\n(.*?)^```", text, re.M | re.S):
        if language == "python":
            exec(block, scope)
            continue
        for line in block.splitlines():
            program, *arguments = shlex.split(line, comments=True)
            if program == "python":
                subprocess.run([sys.executable, *arguments], check=True)
            elif program == "nrprob":
                result = CliRunner().invoke(app, arguments)
                assert result.exit_code == 0, f"{line}\n{result.output}"
                ran += 1
    assert ran


# Beginnings of lines whose words do not depend on the result of a search.
STABLE = "note: ", "warning: ", "error: ", "this command", "wrote ", "row,"


def mask_numbers(line):
    return re.sub(r"\d+(\.\d+)?", "#", line)


def shown_and_printed(block, monkeypatch):
    """Lines below the command of a block, and lines that the command prints.

    Four spaces begin the continuation of a line.
    """
    command, *shown = re.sub(r"( \\)?\n {4}", " ", block).splitlines()
    program, *arguments = shlex.split(command.removeprefix("$ "))
    if program == "head":
        return shown, Path(arguments[-1]).read_text(encoding="utf-8").splitlines()
    assert program == "nrprob"
    monkeypatch.setattr("sys.argv", [program, *arguments])
    return shown, CliRunner().invoke(app, arguments).output.splitlines()


@pytest.mark.parametrize("n_blocks", [2, pytest.param(None, marks=pytest.mark.slow)])
def test_the_business_table_prints_the_lines_of_its_page(n_blocks, tmp_path, monkeypatch):
    """Run the code and the commands, and compare their notes and warnings.

    The first command ends before a fit.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    text = (DOCS / "business-table.md").read_text(encoding="utf-8")
    scope: dict = {}
    blocks = re.findall(r"^```(python|console)\n(.*?)^```", text, re.M | re.S)
    for language, block in blocks[:n_blocks]:
        if language == "python":
            exec(block, scope)
            continue
        shown, printed = shown_and_printed(block, monkeypatch)
        rest = map(mask_numbers, printed)
        for line in (mask_numbers(line) for line in shown if line.startswith(STABLE)):
            assert any(line == other for other in rest), (line, printed)
    if n_blocks is None:
        assert len(scope["result"]) == len(scope["customers"]) == scope["n"]
        # The page explains all sections of the report.
        for level, heading in page_of(Path("customers/report.html")).headings:
            assert level != 2 or f"\n| {heading}" in text or f" or {heading} |" in text, heading


def _examples():
    """Doctests of all public names."""
    holders = [nrprob, *(getattr(nrprob, m) for m in nrprob.__all__ if m.islower())]
    holders = [h for h in holders if inspect.ismodule(h)] + [
        importlib.import_module("nrprob.batch")
    ]
    finder, result = doctest.DocTestFinder(recurse=False), {}
    for holder in holders:
        for name in holder.__all__:
            thing = getattr(holder, name)
            if not inspect.ismodule(thing) and callable(thing):
                result[f"{holder.__name__}.{name}"] = finder.find(thing, name)[0]
    return result


EXAMPLES = _examples()


def runs(line):
    """Whether a line of an example executes something completely."""
    return not line.options.get(doctest.SKIP) and not line.source.startswith(("import ", "from "))


def test_every_public_name_has_an_example_that_runs():
    idle = {name for name, own in EXAMPLES.items() if not any(map(runs, own.examples))}
    assert not idle


@pytest.fixture
def programs_stay_where_they_are():
    """An example of `nrprob.cache` makes JAX store its programs elsewhere."""
    names = [name for name in jax.config.values if "compilation_cache_dir" in name]
    names += [name for name in jax.config.values if "persistent_cache_min" in name]
    before = {name: getattr(jax.config, name) for name in names}
    yield
    if {name: getattr(jax.config, name) for name in names} != before:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_docstrings_run(name, tmp_path, monkeypatch, programs_stay_where_they_are):
    run_example(name, tmp_path, monkeypatch)


# The slow tests run on a Python without an anndata for the newest pandas.
@pytest.mark.parametrize("name", ["nrprob.annotate", "nrprob.rows_of", "nrprob.cache"])
def test_examples_that_need_more_run(name, tmp_path, monkeypatch, programs_stay_where_they_are):
    run_example(name, tmp_path, monkeypatch)


def run_example(name, tmp_path, monkeypatch):
    if any("import anndata" in line.source for line in EXAMPLES[name].examples):
        pytest.importorskip("anndata")
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(
        EXAMPLES[name], out=said.append
    )
    assert not outcome.failed, "".join(said)


def test_the_page_on_cells_runs():
    """Blocks on annotated data, which the slow tests skip without anndata."""
    pytest.importorskip("anndata")
    text = (DOCS / "tables-and-cells.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    scope: dict = {"pd": pd}
    for block in blocks:
        if "import anndata" in block:
            exec(block, scope)
    adata, model = scope["adata"], scope["model"]
    assert adata.obs["new"].astype(int).tolist() == model.labels_.tolist()
    assert adata.uns["new"]["method"] == "CCIB"
