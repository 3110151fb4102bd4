"""One annealing step vs XLA's times for its unavoidable parts.

n=10,000 and 100,000, m=100, k=10, ten restarts, float32. Many steps run inside one compiled loop.
The parts are the two matrix products and the softmax at these shapes, each in such a loop, and each
in a separate program.
"""

from __future__ import annotations

from common import Time, arguments, console, counts, header, interleave, per_unit, show, verdict

# isort: split
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.optimise.anneal import normalise_masses, random_log_memberships, term_update
from nrprob.engines.optimise.solve import make_settings, weight_terms
from nrprob.methods.bottleneck.ccib import ConditionalBottleneck, ConditionalParameters
from nrprob.methods.bottleneck.ib import Bottleneck
from nrprob.statistics.rows import make_layout, make_rows

N_RESTARTS = 10
BARS = {"IB": 1.5, "CCIB": 3.0}
JUDGED = 100_000  # number of rows from which the thresholds hold


@partial(jax.jit, static_argnames=("build", "k"))
def prepare(rows, settings, *, build, k):
    """Terms with their weights, initial memberships, and a temperature after the first split."""
    terms, _, critical = weight_terms(build(rows, settings), rows)
    start = random_log_memberships(jnp.uint32(0), rows, N_RESTARTS, k)
    return terms, normalise_masses(start, rows.mass), jnp.full(N_RESTARTS, 2 * critical)


@jax.jit
def steps(terms, rows, w, beta, count):
    """``count`` steps. The data are arguments, since constants would be folded into the program."""
    update = term_update(terms, 1.0)

    def step(_, carry):
        w, change = carry
        new = normalise_masses(update.em_step((rows,), None, w, beta)[1], rows.mass)
        return new, jnp.abs(new - w).max()

    return jax.lax.fori_loop(0, count, step, (w, jnp.zeros((), w.dtype)))[1]


def stepper(x, known, build, settings, k):
    """Return a call of a number of steps."""
    layout = make_layout(known, int(known.max()) + 1)
    rows = jax.tree.map(jnp.asarray, make_rows(x, layout, int(known.max()) + 1))
    terms, w, beta = jax.block_until_ready(prepare(rows, settings, build=build, k=k))
    return lambda count: steps(terms, rows, w, beta, count).block_until_ready()


PARTS = {
    "statistics, W'X": lambda w, x, g: w.T @ x,
    "scores, X G": lambda w, x, g: x @ g,
    "softmax": lambda w, x, g: jax.nn.softmax(w.reshape(w.shape[0], N_RESTARTS, -1), -1),
}


def parts(n, m, k):
    """For each part, return a single call and a call that repeats it ``count`` times in a loop."""
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.random((n, N_RESTARTS * k), np.float32))
    x = jnp.asarray(rng.random((n, m), np.float32))
    g = jnp.asarray(rng.random((m, N_RESTARTS * k), np.float32))
    calls, loops = {}, {}
    for name, f in PARTS.items():
        alone = jax.jit(f)

        @jax.jit
        def loop(w, x, g, count, f=f):
            def body(i, carry):
                w, g, _ = carry
                # One entry changes, since an invariant body would be computed once, before the
                # loop.
                w, g = w.at[0, 0].set(1.0 / (i + 1)), g.at[0, 0].set(1.0 / (i + 1))
                return w, g, f(w, x, g)

            return jax.lax.fori_loop(0, count, body, (w, g, jnp.zeros_like(f(w, x, g))))[2]

        calls[name] = lambda alone=alone: alone(w, x, g).block_until_ready()
        loops[name] = lambda count, loop=loop: loop(w, x, g, count).block_until_ready()
    return calls, loops


def measure(n, m, k, few, many, repeats):
    """Print the times of the parts, and of the steps relative to them, at one size."""
    x, _ = counts(n, m, k)
    x /= x.sum(1, keepdims=True)
    known = np.random.default_rng(1).integers(10, size=n)
    settings = make_settings(
        np.float32, n_clusters=k, max_iter=1, method=ConditionalParameters(1.0)
    )
    both = ConditionalBottleneck("multinomial", "residual", True)
    alone, loops = parts(n, m, k)
    runs = {
        "IB": stepper(x, np.zeros(n, int), Bottleneck("multinomial"), settings, k),
        "CCIB": stepper(x, known, both, settings, k),
        **loops,
    }
    calls = {
        f"{name} {count}": lambda run=run, count=count: run(count)
        for name, run in runs.items()
        for count in (few, many)
    }
    calls |= alone
    interleave(calls, 1)
    times = interleave(calls, repeats)
    each = {
        name: per_unit(times[f"{name} {few}"], times[f"{name} {many}"], many - few) for name in runs
    }
    show(
        f"parts, n={n}, ms",
        ("part", "in a loop, wall", "in a loop, CPU", "alone, wall"),
        [
            (name, 1e3 * each[name].wall, 1e3 * each[name].cpu, 1e3 * times[name].wall)
            for name in PARTS
        ],
    )
    inside = Time(*(sum(each[name][i] for name in PARTS) for i in range(2)))
    outside = sum(times[name].wall for name in PARTS)
    show(
        f"steps, n={n}",
        ("method", "wall, ms", "CPU, ms", "over the parts in a loop", "CPU ratio",
         "over the parts alone", "bar", ""),
        [
            (
                name,
                1e3 * each[name].wall,
                1e3 * each[name].cpu,
                each[name].wall / inside.wall,
                each[name].cpu / inside.cpu,
                each[name].wall / outside,
                *(verdict(each[name].wall / outside, bar) if n >= JUDGED else ("", "")),
            )
            for name, bar in BARS.items()
        ],
    )  # fmt: skip


def main(quick: bool) -> None:
    m, k = (20, 4) if quick else (100, 10)
    header(f"step: one annealing step, m={m}, k={k}, {N_RESTARTS} restarts, float32")
    for n, few, many in ((4000, 2, 12),) if quick else ((10_000, 20, 120), (100_000, 2, 12)):
        measure(n, m, k, few, many, 2 if quick else 5)
    console.print(
        "In a loop both sides reuse their buffers: that is the figure to quote. A part alone "
        "writes its\nresult into a new buffer on every call, as one call of a user would. The bars "
        f"are stated for that, at n={JUDGED:,}."
    )


if __name__ == "__main__":
    main(arguments(__doc__).quick)
