"""Whether the fast tests detect the errors that they should detect.

The complete check takes two minutes: ``python tests/mutations/check.py``. This file tests that the
check can run.
"""

import subprocess

import pytest
from mutations import check


@pytest.mark.parametrize("patch", check.PATCHES, ids=lambda p: p.stem)
def test_mutations_break_the_code_there_is(patch):
    command = ["git", "apply", "--check", str(patch)]
    done = subprocess.run(command, cwd=check.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert check.catchers(patch)
    for test in check.catchers(patch):
        file, name = test.split("::")
        assert f"def {name}(" in (check.ROOT / file).read_text()
