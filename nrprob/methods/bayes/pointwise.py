r"""Pointwise log likelihood of drawn partitions, for leave-one-out cross-validation.

With z the labels of a draw, h its hyperparameters, and -i for "without sample i",

    ell_i = log p(x_i, y_i | x_-i, y_-i, z_-i, h)
          = log sum_c p(c | z_-i, h) p(x_i | x_-i, z_-i, c, h) p(y_i | y_-i, z_-i, c, h),

where c runs over the components that hold other samples and over a new one. The last factor is 1
where sample i has no class. The label of sample i itself is summed out: given its label, a sample
of a separated cluster never visits the labels on which the importance weights 1 / p(x_i | ...) of
leave-one-out cross-validation are large, so that their average has no variance and is wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from nrprob.engines.programs import jit_by_size
from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.target import Target, occupied
from nrprob.methods.bayes.model import MixtureCode

_BLOCK = 1024  # samples at a time, so that memory does not grow with samples times components


def unavailable(code: MixtureCode) -> str:
    """Why there is no pointwise log likelihood, and for which setting; "" where there is one."""
    missing = "it is not implemented for {}"
    tempered = "importance weights need the powered density and the score needs the plain density"
    needs = (
        ("features", code.features, ("gaussian",), missing.format("counts and binary features")),
        ("energy", code.energy, ("conjugate",), "exponentiated code lengths are not normalised"),
        ("covariance", code.covariance, ("diag", "full"), missing.format("shared covariances")),
        ("likelihood_power", code.power, (1,), tempered),
        ("errors", code.errors, ("gaussian",), missing.format("t-distributed errors")),
        ("transformation", code.transformation, ("identity",), missing.format("transformations")),
    )
    for name, used, allowed, reason in needs:
        if used not in allowed:
            return f"{reason}; got {name}={used!r}"
    return ""


@jit_by_size()
def pointwise_log_likelihood(target: Any, draws: Draw) -> jax.Array:
    """Log likelihood ell (S, n') of every sample under every draw, its own label summed out.

    Parameters
    ----------
    target : Target or PriorTarget
        Whose code length of features is a sum over clusters, each a conjugate marginal likelihood
        with a likelihood power of 1.
    draws : ``labels`` (S, n') and the hyperparameters drawn with them
    """

    def one(draw):
        given = target.given(draw) if len(draw) > 1 else target
        return _of_draw(getattr(given, "plain", given), draw["labels"])

    return jax.lax.map(one, draws)


def _of_draw(target: Target, labels: jax.Array) -> jax.Array:
    """Log likelihood (n',) under one draw.

    Terms of the target are the code lengths of the features, of the labels and, if there are
    classes, of the classes.
    """
    all_terms, label_term = target, replace(target, terms=target.terms[1:2])
    cells = target.cells(labels)
    here = occupied(cells)
    k, slots = here.sum(), jnp.arange(target.n_slots)[:, None]
    free = (slots == jnp.argmin(here)) & ~here[:, None]

    def of_block(block):
        x, own = block
        mine = cells[0, own]
        alone = mine[:, -1] < 1.5
        is_own = slots == own
        # Components without the sample. Its own component is the new one if nobody else is in it.
        others = k - alone
        opens = (is_own & alone) | (free & ~alone)
        number = target.sizes[others + opens]
        possible = (here[:, None] | opens) & jnp.isfinite(number)

        def log_sum(part):
            # A component gains the sample; its own one already has it.
            joins = part.joining(cells, x, jnp.zeros(len(x), jnp.int32))
            stays = sum(term.cost(mine) - term.cost(mine - x) for term in part.terms)
            nats = jnp.where(is_own, stays, joins) + number
            return jax.nn.logsumexp(jnp.where(possible, -nats, -jnp.inf), axis=0)

        return log_sum(all_terms) - log_sum(label_term)

    n = len(labels)
    size = min(n, _BLOCK)
    blocks = jax.tree.map(
        lambda a: jnp.pad(a, ((0, -n % size), *[(0, 0)] * (a.ndim - 1))).reshape(
            -1, size, *a.shape[1:]
        ),
        (target.x, labels),
    )
    return jax.lax.map(of_block, blocks).reshape(-1)[:n]
