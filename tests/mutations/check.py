"""Check that the fast tests catch every mutation of the package that is kept here.

Each ``*.patch`` breaks one thing and names the test that has to fail for it, on a line
``Caught by: tests/test_x.py::test_y``. It is applied to a copy of the package, on which that test
runs. ``python tests/mutations/check.py [NAME ...]`` takes parts of the patches' names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATCHES = sorted(HERE.glob("*.patch"))


def run_tests(folder: Path, tests: list[str]) -> int:
    """Exit status of pytest on the package in ``folder``; 1 where a test failed."""
    # `python -m` puts the working directory first on the path, before any installation.
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}"]
    done = subprocess.run(
        [*command, *(str(ROOT / test) for test in tests)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        print(done.stdout[-2000:], done.stderr[-2000:])
    return done.returncode


def mutated(patch: Path | None, folder: Path) -> bool:
    """Copy the package to ``folder`` and apply a patch; returns whether it applies."""
    shutil.copytree(ROOT / "nrprob", folder / "nrprob", ignore=shutil.ignore_patterns("*.pyc"))
    if patch is None:
        return True
    done = subprocess.run(["git", "apply", str(patch)], cwd=folder, check=False)
    return done.returncode == 0


def catchers(patch: Path | None) -> list[str]:
    """Return the tests that a patch names, or those that any patch names."""
    named = (re.findall(r"^Caught by: (\S+)$", p.read_text(), re.M) for p in PATCHES)
    of_each = dict(zip(PATCHES, named, strict=True))
    return of_each[patch] if patch else sorted({t for tests in of_each.values() for t in tests})


def verdict(patch: Path | None) -> tuple[bool, str]:
    """Whether the tests see a mutation, or pass without one (None); and the same in words."""
    with tempfile.TemporaryDirectory() as folder:
        if not mutated(patch, Path(folder)):
            return False, "DOES NOT APPLY"
        status = run_tests(Path(folder), catchers(patch))
    words = {0: "NOT CAUGHT" if patch else "pass", 1: "caught" if patch else "FAIL"}
    return status == (1 if patch else 0), words.get(status, f"NOT RUN (pytest exits with {status})")


def main(names: list[str]) -> int:
    """Report on every patch; returns 1 if one is not caught or does not apply."""
    patches = [p for p in PATCHES if not names or any(n in p.name for n in names)]
    failed = not patches
    for patch in [None, *patches]:
        good, words = verdict(patch)
        print(f"{patch.stem if patch else 'the tests without a mutation'}: {words}", flush=True)
        failed |= not good
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
