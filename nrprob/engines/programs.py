"""Compiled programs: for small data in little time, for large data as well as XLA can."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jaxlib

from nrprob.engines.placement import on_cpu

# Elements of the largest array, up to which compilation of a program is what one waits for.
_FEW = 1 << 14
_RELEASE = tuple(int(part) for part in jaxlib.__version__.split(".")[:2])


def _quickly() -> dict[str, Any] | None:
    options: dict[str, Any] = {}
    # The first of LLVM's levels takes up to a quarter less time than the third, and of small data
    # programs are as fast. Who asked for less, or in words of XLA's own, is left with that.
    if not jax.config.read("jax_disable_most_optimizations"):
        options["xla_backend_optimization_level"] = 1
    # The emitters of fusions that came before compile in half of the time, and of small data
    # programs are about as fast (of large ones slower by up to a third). XLA refuses an option that
    # it does not know; later releases have no other emitters.
    if (0, 8) <= _RELEASE < (0, 11):
        options["xla_cpu_use_fusion_emitters"] = False
    own = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in options.items() if name not in own} or None


_QUICKLY = _quickly()


def compiler_options_for(*arrays: Any) -> dict[str, Any] | None:
    """What XLA is told when it compiles a program that takes these arrays; None for nothing."""
    sizes = [getattr(leaf, "size", 1) for leaf in jax.tree.leaves(arrays)]
    few = max(sizes, default=0) <= _FEW
    return _QUICKLY if few and on_cpu(arrays) else None


class SizedJit:
    """A function as `jax.jit` makes it, of which XLA compiles small programs quickly."""

    def __init__(self, function: Callable[..., Any], static_argnames: tuple[str, ...]) -> None:
        functools.update_wrapper(self, function)
        self._static = frozenset(static_argnames)
        make = functools.partial(jax.jit, function, static_argnames=static_argnames)
        self._well = make()
        self._quickly = make(compiler_options=_QUICKLY) if _QUICKLY else self._well

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        return self._of(args, kwargs)(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """See `jax.stages.Wrapped`."""
        return self._of(args, kwargs).lower(*args, **kwargs)

    def _of(self, args: Any, kwargs: dict[str, Any]) -> Any:
        given = args, [value for name, value in kwargs.items() if name not in self._static]
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(given)):
            return self._well  # a part of another program, which was told
        return self._well if compiler_options_for(given) is None else self._quickly

    def _cache_size(self) -> int:
        """Number of programs that it has compiled."""
        both = {id(one): one for one in (self._well, self._quickly)}
        return sum(one._cache_size() for one in both.values())


def jit_by_size(*static_argnames: str) -> Callable[[Callable[..., Any]], SizedJit]:
    """Compile a function, some of whose arguments are static, as befits the size of the others."""
    return functools.partial(SizedJit, static_argnames=static_argnames)
