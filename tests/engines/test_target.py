"""Lengths of partitions of which two clusters change, and targets with few occupied slots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bayes_models import coded_model, sampled_model
from slowly import slowly

from nrprob.data.design import Design
from nrprob.engines.sample.target import map_slots, occupied, pack_slots, replace_two, start
from nrprob.engines.sample.uniforms import normal, uniform


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


N, K = 12, 6
GROUP = np.arange(N) % 2
# Energy, covariance, errors, transformation, power, and whether there are known groups.
KINDS = {
    "nml": ("nml", "diag", "gaussian", "identity", 1.0, True),
    "t errors, transformed": ("conjugate", "full", "t", "yeo-johnson", 0.5, False),
    "tied": ("conjugate", "tied", "t", "identity", 1.0, True),
}
LATER = {
    "shrunk": ("conjugate", "shrunk", "gaussian", "identity", 0.8, False),
    "diag": ("conjugate", "diag", "gaussian", "yeo-johnson", 1.0, False),
}


def made(energy, covariance, errors, transformation, power, grouped):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2)) + 2 * (np.arange(N) % 3)[:, None]
    model = coded_model("nml", unordered=False)
    if energy != "nml":
        model = sampled_model(
            covariance, class_concentration=None, unordered=False, errors=errors,
            transformation=transformation, power=power,
        )  # fmt: skip
    design = Design.from_groups(GROUP, 2) if grouped else Design.from_groups(0 * GROUP)
    target = model.target((X - X.mean(0)) / X.std(0), rng.integers(-1, 2, N), 2, K, design)
    return target if energy == "nml" else target.conditional()


@pytest.mark.parametrize("kind", [*KINDS, *slowly(*LATER)])
def test_a_length_changes_by_what_two_clusters_add(kind):
    """A split, a merge and an exchange change the length as for the new cells."""
    target = made(*(KINDS | LATER)[kind])
    n = target.x.shape[0]
    labels = np.pad(np.random.default_rng(1).integers(0, 4, N), (0, n - N)).astype(np.int32)
    real = np.arange(n) < N
    even = np.arange(n) % 2 == 0
    exchanged = np.select([labels == 2, labels == 3], [3, 2], labels)
    cases = {  # changed clusters, and labels after the change
        "split": (1, 5, np.where(real & (labels == 1) & even, 5, labels)),
        "merge": (0, 3, np.where(labels == 3, 0, labels)),
        "exchange": (2, 3, np.where(even, labels, exchanged)),
    }

    @jax.jit
    def both(target, labels, a, b, after):
        cells = target.cells(after)
        result = replace_two(target, start(target, labels), a, b, cells[:, jnp.stack([a, b])])
        return result, (cells, target.length(cells))

    for name, (a, b, after) in cases.items():
        assert (after != labels).any(), name
        result, expected = both(target, labels, a, b, after.astype(np.int32))
        for one, other in zip(result, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-9, err_msg=name)


def cells_of(sizes):
    """Cells (2, K, 3) with these numbers of rows."""
    x = np.random.default_rng(0).normal(size=(2, len(sizes), 2)) * (np.asarray(sizes) > 0)[:, None]
    return jnp.asarray(np.concatenate([x, np.stack([sizes, 0 * sizes])[..., None]], -1))


@pytest.mark.parametrize(
    ("n_slots", "last"), [(n, last) for n in (5, 12, 43) for last in (-1, 0, 6, 42) if last < n]
)
def test_slots_are_looked_at_up_to_the_last_that_is_in_use(n_slots, last):
    sizes = np.zeros(n_slots)
    sizes[: last + 1 : 3] = sizes[last] = 2 if last >= 0 else 0
    cells = cells_of(sizes)
    looked = []

    def of(part):
        jax.debug.callback(lambda: looked.append(part.shape[1]))
        return 1 + part[0, :, :2]

    result = np.asarray(map_slots(of, cells, jnp.asarray(sizes > 0), 2))
    jax.effects_barrier()
    np.testing.assert_array_equal(result[: last + 1], 1 + cells[0, : last + 1, :2])
    part = looked[0] if looked else 0
    if n_slots > 10:  # terms, of which only necessary ones are evaluated
        assert part < n_slots / 2
        assert sum(looked) <= max(last + part, 0)
        assert (result[last + part + 1 :] == 0).all()


def test_parts_of_chains_side_by_side_are_those_of_each():
    sizes = np.asarray([[1.0] + [0] * 19, [0] * 12 + [3.0] + [0] * 7, [1.0] * 20])
    cells = jnp.stack([cells_of(s) for s in sizes])

    def of(cells):
        result = map_slots(lambda part: jnp.exp(part[0, :, :2]), cells, occupied(cells), 2)
        return jnp.where(occupied(cells)[:, None], result, 0)

    result = jax.jit(jax.vmap(of))(cells)
    expected = np.where(sizes[..., None] > 0, np.exp(cells[:, 0, :, :2]), 0)
    np.testing.assert_allclose(result, expected, rtol=1e-14)


def test_packed_clusters_have_the_first_slots():
    target = made(*KINDS["nml"])
    labels = np.full(target.x.shape[0], 1, np.int32)
    labels[:N] = [4, 1, 1, 5, 4, 1, 5, 5, 4, 4, 1, 1]
    state = jax.jit(start)(target, labels)
    result = jax.jit(pack_slots)(state)
    np.testing.assert_array_equal(result.labels[:N], [1, 0, 0, 2, 1, 0, 2, 2, 1, 1, 0, 0])
    np.testing.assert_allclose(result.cells, target.cells(result.labels))
    np.testing.assert_allclose(result.length, target.length(result.cells), rtol=1e-12)


def test_numbers_drawn_along_one_axis_are_the_same():
    key = jax.random.PRNGKey(3)
    for ours, jaxs in ((uniform, jax.random.uniform), (normal, jax.random.normal)):
        np.testing.assert_array_equal(ours(key, (3, 5)), jaxs(key, (3, 5)))
        assert ours(key, (), jnp.float32).shape == ()
