"""The pages under docs/: links lead somewhere, examples run, and model files can be read."""

import ast
import importlib
import inspect
import re
import tomllib

import pytest
from places import DOCS, ROOT, TESTS

import nrprob
from nrprob.batch.modelfile import read_model

PAGE = (DOCS / "model-files.md").read_text(encoding="utf-8")


def test_the_model_file_of_the_page_is_valid():
    text = "".join(re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S))
    content = tomllib.loads(text)
    content["known"] = "partition_0"
    model = read_model(content)
    assert model.tables[0].settings[0].published["another method"]
    assert not model.single


def test_every_key_is_on_the_page():
    from nrprob.batch.reported import Figure, Measure, Setting, Table
    from nrprob.batch.schema import Data, ModelFile, Save

    for kind in (ModelFile, Data, Measure, Save, Setting, Table, Figure):
        for key in kind.model_fields:
            assert re.search(rf"\b{key}\b", PAGE), f"{kind.__name__}.{key}"


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


@pytest.mark.slow
def test_what_the_page_on_evidence_shows_is_so():
    page = (DOCS / "is-it-real.md").read_text(encoding="utf-8")
    scope: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
        exec(block, scope)
    assert scope["found"].p_structure_ < 0.001 and scope["found"].p_gap_ < 0.05
    assert scope["sure"].rows_.mean() > 0.95
    assert scope["model"].n_clusters_ == 2
