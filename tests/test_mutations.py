"""Whether the fast tests notice what they are there to notice.

Trying it takes two minutes: ``python tests/mutations/check.py``. Here it is made sure that it can.
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
