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


def main(names: list[str]) -> int:
    """Report on every patch; returns 1 if one is not caught or does not apply."""
    patches = sorted(
        p for p in HERE.glob("*.patch") if not names or any(n in p.name for n in names)
    )
    catchers = {p: re.findall(r"^Caught by: (\S+)$", p.read_text(), re.M) for p in patches}
    failed = not patches
    for patch in [None, *patches]:
        tests = catchers[patch] if patch else sorted({t for c in catchers.values() for t in c})
        with tempfile.TemporaryDirectory() as folder:
            if not mutated(patch, Path(folder)):
                result, good = "DOES NOT APPLY", False
            else:
                status = run_tests(Path(folder), tests)
                good = status == (0 if patch is None else 1)
                words = {0: "NOT CAUGHT" if patch else "pass", 1: "caught" if patch else "FAIL"}
                result = words.get(status, f"NOT RUN (pytest exits with {status})")
        print(f"{patch.stem if patch else 'the tests without a mutation'}: {result}", flush=True)
        failed |= not good
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
