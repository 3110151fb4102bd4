"""The README: its commands are marked, and its Python code runs."""

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["quickstart", "test", "docs"])
def test_commands_are_one_line_and_marked(name):
    result = re.search(rf"^<!-- command: {name} -->\n```sh\n(.+)\n```$", README, re.M)
    assert result, f"no command marked {name!r}"
    assert result[1].startswith("python3 -m venv .venv && ")


def test_pictures_and_pages_exist():
    assert len(README) < 6000
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


@pytest.mark.slow
def test_python_examples_run():
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    assert blocks
    scope: dict = {}
    for block in blocks:  # one after the other, as a reader would run them
        exec(block, scope)
    assert "ConditionalMixture" in scope["model"].reason_
    assert scope["model"].labels_.shape == scope["parity"].shape
    # None of the six wrong pairs of the 30 is accepted.
    accepted = scope["soft"].accepted_["accepted"].to_numpy()
    wrong, same = np.arange(30) < 6, scope["same"]
    assert accepted.sum() == 24 and not accepted[np.r_[wrong[same], wrong[~same]]].any()
