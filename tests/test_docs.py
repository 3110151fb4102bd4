"""The pages under docs/: their model files are ones that can be read."""

import re
import tomllib

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
