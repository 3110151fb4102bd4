"""Notebooks run, and their stored output is complete: in order, without errors or warnings."""

import json
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import pytest

from nrprob.exceptions import DataUnavailable

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def _code(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def _source(cell):
    return "".join(cell["source"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_stored_as_it_ran(path):
    cells = _code(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [out for cell in cells for out in cell["outputs"]]
    assert outputs
    assert not [out for out in outputs if out["output_type"] == "error"]
    assert not [out for out in outputs if out.get("name") == "stderr"]
    drawn = [out for out in outputs if "image/png" in out.get("data", {})]
    assert len(drawn) == sum(
        "plt.subplots" in _source(c) or "plot_" in _source(c)
        for c in cells
        if "import" not in _source(c)
    )


@pytest.fixture
def double_precision_as_before():
    """A notebook may set JAX to double precision."""
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, monkeypatch, tmp_path, double_precision_as_before):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: None)
    namespace = {"__name__": "notebook"}
    for number, cell in enumerate(_code(path), 1):
        code = compile(_source(cell), f"{path.name}, cell {number}", "exec")
        try:
            exec(code, namespace)
        except DataUnavailable as error:
            pytest.skip(str(error))
    plt.close("all")
