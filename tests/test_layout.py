"""Layout of the package: allowed imports, lengths of files, and names."""

import ast
import re
from collections import Counter

import numpy as np
import pytest
from code_lines import PACKAGE, code_lines
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

METHODS = PACKAGE / "methods"
FAMILIES = sorted(path.name for path in METHODS.iterdir() if (path / "__init__.py").is_file())
# family -> families that it may import, and why.
KNOWS = {
    "ensemble": {"bottleneck", "mixture"},  # two of its bases are called by name
}
# Layers from the bottom up: a layer imports nothing from those above it.
FLOORS = (
    {"exceptions", "settings", "files", "scheduler", "trees"},
    {"known", "data"},
    {"information", "codelength", "colouring"},
    {"links", "metrics", "plotting", "posterior", "statistics"},
    {"description"},
    {"engines"},
    {"estimator"},
    {"evidence"},
    {"methods"},
    {"numpyro"},
    {"advice"},
    {"successive"},
    {"batch"},
    {"cli"},
)


def imported(path):
    """Modules of the package that a file imports, at any place."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nrprob"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("nrprob"))


@pytest.mark.parametrize("family", FAMILIES)
def test_families_know_nothing_of_each_other(family):
    result = {
        name.split(".")[2]
        for path in (METHODS / family).rglob("*.py")
        for name in imported(path)
        if name.startswith("nrprob.methods.")
    }
    assert result - {family} == KNOWS.get(family, set())


def test_imports_go_one_way():
    above = {
        name: set().union(*FLOORS[i + 1 :]) for i, floor in enumerate(FLOORS) for name in floor
    }
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        names = {name.split(".")[1] for name in imported(path) if "." in name}
        wrong = names & above.get(own, set())
        assert not wrong, f"{path.relative_to(PACKAGE)} imports {wrong}"


def modules():
    """Every module of the package by its name; a folder has the name of its ``__init__``."""
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in PACKAGE.rglob("*.py")
    }


def loops(graph):
    """Strongly connected components of a mapping node -> nodes."""
    nodes = sorted(graph)
    edges = np.array([[other in graph[node] for other in nodes] for node in nodes])
    _, component = connected_components(csr_matrix(edges), connection="strong")
    groups = [
        [n for n, own in zip(nodes, component, strict=True) if own == c] for c in {*component}
    ]
    return sorted(group for group in groups if len(group) > 1)


def test_loops_of_imports_are_found():
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": {"e"}, "e": set()}
    assert loops(graph) == [["b", "c"]]
    assert loops(graph | {"e": {"a"}}) == [["a", "b", "c", "d", "e"]]


def test_no_module_imports_itself_by_way_of_others():
    # Imports within functions and for type checkers count. The package itself loads all names
    # lazily.
    known = modules()
    graph = {
        name: {other if other in known else other.rpartition(".")[0] for other in imported(path)}
        & known.keys() - {name, "nrprob"}
        for name, path in known.items()
        if name != "nrprob"
    }
    assert not loops(graph)


def test_a_base_asks_nothing_of_its_children_by_name():
    for path in (PACKAGE / "estimator").glob("*.py"):
        asked = re.findall(r"getattr\(self, \"(\w+)\"", path.read_text())
        assert not asked, f"{path.name} asks for {asked}"


# Vague words; a binding is named after its content.
VAGUE = {
    *("anew", "at", "beside", "drawn", "each", "found", "given", "here", "kept", "made"),
    *("numbers", "of", "one", "own", "there", "told", "tried", "wanted", "whole"),
}
# Keys of model files, which become attributes of the same name.
KEYS = {"of"}
# Basenames that several families may share, since each family has the same parts.
PARTS_OF_A_FAMILY = {"__init__", "base", "solver", "estimator", "inputs"}


def bound(path):
    """Names that a file defines: variables, arguments, functions, classes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def test_no_name_is_vague():
    vague = {
        str(path.relative_to(PACKAGE)): names
        for path in PACKAGE.rglob("*.py")
        if (names := {name for name in bound(path) if name.lstrip("_") in VAGUE})
        and not (path.parent.name == "batch" and names <= KEYS)
    }
    assert not vague


def test_functions_are_named_by_more_than_a_word():
    # Special methods are Python's own names.
    names = [
        node.name.strip("_")
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__")
    ]
    single = [name for name in names if "_" not in name]
    assert len(single) <= 0.45 * len(names), f"{len(single)} of {len(names)} names are one word"


def test_families_do_not_repeat_a_basename():
    count = Counter(path.stem for path in METHODS.rglob("*.py"))
    assert not {name for name, n in count.items() if n > 2} - PARTS_OF_A_FAMILY


def test_nodes_of_trees_are_of_one_making():
    # JAX may confuse trees of two classes registered by itself; see `nrprob.trees`.
    own = [path for path in PACKAGE.rglob("*.py") if "@jax.tree_util.register" in path.read_text()]
    others = [path for path in PACKAGE.rglob("*.py") if "register_pytree" in path.read_text()]
    assert not own
    assert others == [PACKAGE / "trees.py"]


def test_files_are_short():
    lines = {path: code_lines(path) for path in PACKAGE.rglob("*.py")}
    long = {str(path.relative_to(PACKAGE)): n for path, n in lines.items() if n > 350}
    assert not long
