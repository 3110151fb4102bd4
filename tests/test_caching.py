"""Compiled programs are stored for later processes, if the user wants this."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nrprob import caching
from nrprob.exceptions import InputError

FIT = """
import numpy as np, nrprob, nrprob.caching
nrprob.caching.SECONDS = 0.0  # store all programs, on fast machines too
{}
nrprob.DecKMeans(2, n_init=1, random_state=0).fit(np.eye(6)[:, :4])  # calls LAPACK
"""


def fitted(statement, tmp_path, **variables):
    """Files that a fit in a separate process leaves below a separate home folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    kept |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"} | variables
    subprocess.run([sys.executable, "-c", FIT.format(statement)], check=True, env=kept)
    return {path for path in tmp_path.rglob("*-cache")}


@pytest.mark.slow
@pytest.mark.contract
def test_programs_are_kept_when_asked_and_found_again(tmp_path):
    assert not fitted("", tmp_path)
    kept = fitted("nrprob.cache()", tmp_path)
    assert kept and all(path.parent == next(iter(kept)).parent for path in kept)
    assert fitted("nrprob.cache()", tmp_path) == kept
    # Also after something was compiled without the cache.
    other = tmp_path / "other"
    late = "import jax; jax.jit(lambda x: x + 1)(1.0); nrprob.cache(" + repr(str(other)) + ")"
    assert any(path.is_relative_to(other) for path in fitted(late, tmp_path))


def test_the_command_line_keeps_programs_and_heeds_what_is_set(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
    caching.set_environment()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "mine"
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    caching.set_environment()
    folder = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    assert folder == caching.default_folder() and folder.parent == tmp_path / "nrprob"
    assert not folder.exists()
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert caching.default_folder() != folder


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the output folder; .*below"):
        caching.cache(tmp_path / "file" / "below")
    with pytest.raises(TypeError, match="path must be a path; got 3; pass a string"):
        caching.cache(3)
