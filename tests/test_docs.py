"""The pages under docs/: links lead somewhere, examples run, and model files can be read."""

import re
import tomllib

import pytest
from places import DOCS

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


@pytest.mark.slow
def test_what_the_page_on_evidence_shows_is_so():
    page = (DOCS / "is-it-real.md").read_text(encoding="utf-8")
    scope: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
        exec(block, scope)
    assert scope["found"].p_structure_ < 0.001 and scope["found"].p_gap_ < 0.05
    assert scope["sure"].rows_.mean() > 0.95
    assert scope["model"].n_clusters_ == 2
