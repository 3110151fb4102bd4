"""The house: what may import what, and how long a file may be."""

import ast
import re

import pytest
from code_lines import PACKAGE, code_lines

METHODS = PACKAGE / "methods"
FAMILIES = sorted(path.name for path in METHODS.iterdir() if (path / "__init__.py").is_file())
# family -> families that it may import, and why.
KNOWS = {
    "ensemble": {"bottleneck", "mixture"},  # two of its bases are called by name
}
# From the ground up: a floor imports nothing from those above it.
FLOORS = (
    {"exceptions", "settings", "annotated", "frames", "validation", "files", "scheduler", "trees"},
    {"information", "codelength", "known", "labels", "colouring"},
    {"links", "metrics", "plotting", "posterior", "statistics"},
    {"preparation", "storage"},
    {"engines"},
    {"estimator"},
    {"methods"},
    {"evidence"},
    {"advice"},
    {"successive"},
    {"batch"},
    {"cli"},
)


def imported(path):
    """Modules of the package that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nrprob"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("nrprob"))


@pytest.mark.parametrize("family", FAMILIES)
def test_families_know_nothing_of_each_other(family):
    found = {
        name.split(".")[2]
        for path in (METHODS / family).rglob("*.py")
        for name in imported(path)
        if name.startswith("nrprob.methods.")
    }
    assert found - {family} == KNOWS.get(family, set())


def test_imports_go_one_way():
    above = {
        name: set().union(*FLOORS[i + 1 :]) for i, floor in enumerate(FLOORS) for name in floor
    }
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        names = {name.split(".")[1] for name in imported(path) if "." in name}
        wrong = names & above.get(own, set())
        if own == "methods" or path == PACKAGE / "estimator" / "number.py":
            wrong -= {"evidence"}  # within `fit`
        assert not wrong, f"{path.relative_to(PACKAGE)} imports {wrong}"


def test_a_base_asks_nothing_of_its_children_by_name():
    for path in (PACKAGE / "estimator").glob("*.py"):
        asked = re.findall(r"getattr\(self, \"(\w+)\"", path.read_text())
        assert not asked, f"{path.name} asks for {asked}"


def test_nodes_of_trees_are_of_one_making():
    # JAX takes trees of two classes of its own making for one another; see `nrprob.trees`.
    own = [path for path in PACKAGE.rglob("*.py") if "@jax.tree_util.register" in path.read_text()]
    others = [path for path in PACKAGE.rglob("*.py") if "register_pytree" in path.read_text()]
    assert not own
    assert others == [PACKAGE / "trees.py"]


def test_files_are_short():
    lines = {path: code_lines(path) for path in PACKAGE.rglob("*.py")}
    long = {str(path.relative_to(PACKAGE)): n for path, n in lines.items() if n > 350}
    assert not long
