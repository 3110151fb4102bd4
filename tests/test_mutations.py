"""Whether the fast tests notice what they are there to notice."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_mutation_is_caught():
    command = [sys.executable, str(Path(__file__).parent / "mutations" / "check.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
