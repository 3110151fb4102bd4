"""JAX pytree nodes: a compiled program never runs with the fields of another class."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from nrprob.statistics import codes
from nrprob.trees import node


def _class(i):
    fields = {"__annotations__": {"x": float}, "plus": lambda self: self.x + i}
    return node(type(f"Plus{i}", (), fields))


def test_every_class_has_a_program_of_its_own():
    # A table of programs compares seven bits of hashes before it compares trees, so some of 40
    # classes may be confused: of 150 made by `jax.tree_util.register_dataclass` 22 were.
    made = [_class(i) for i in range(40)]
    run = jax.jit(lambda x: x.plus())
    assert [float(run(cls(np.float32(0)))) for cls in made] == list(range(40))
    structures = [jax.tree.structure(cls(0.0)) for cls in made]
    assert all(a != b for a, b in itertools.combinations(structures, 2))


def test_codes_with_the_same_numbers_are_not_the_same():
    one = codes.normal_inverse_wishart(8, 1, kappa=0.3, nu=4.0, scale=1.0)
    gamma = codes.normal_inverse_gamma(8, 1, kappa=0.3, shape=2.0, scale=0.5)
    assert jax.tree.structure(one) != jax.tree.structure(gamma)
    assert jax.tree.structure(one) == jax.tree.structure(dataclasses.replace(one, kappa=1.0))


def test_static_fields_are_structure_and_the_others_leaves():
    @node
    class Line:
        """A line."""

        slope: float
        name: str = dataclasses.field(metadata={"static": True})
        height: float = 0.0

    line = Line(2.0, "a", 1.0)
    assert jax.tree.leaves(line) == [2.0, 1.0]
    assert jax.tree.structure(line) == jax.tree.structure(Line(3.0, "a"))
    assert jax.tree.structure(line) != jax.tree.structure(Line(2.0, "b", 1.0))
    assert jax.tree.map(lambda v: 2 * v, line) == Line(4.0, "a", 2.0)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(line)]
    assert paths == [".slope", ".height"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        line.slope = 1.0
