"""Compile programs of small data quickly, and programs of large data with full optimisation."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jaxlib

from nrprob.engines.placement import on_cpu

# Elements of the largest array up to which compilation takes longer than the run.
_SMALL_SIZE = 1 << 14
_RELEASE = tuple(int(part) for part in jaxlib.__version__.split(".")[:2])


def _fast_compile_options() -> dict[str, Any] | None:
    options: dict[str, Any] = {}
    # Level 1 of LLVM takes up to a quarter less time than level 3, and programs of small data run
    # as fast. The user's own settings take precedence.
    if not jax.config.read("jax_disable_most_optimizations"):
        options["xla_backend_optimization_level"] = 1
    # The older fusion emitters compile in half the time. Programs of small data run about as fast,
    # programs of large data up to a third slower. XLA raises for unknown options, and later
    # releases have one kind of emitter only.
    if (0, 8) <= _RELEASE < (0, 11):
        options["xla_cpu_use_fusion_emitters"] = False
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in options.items() if name not in flags} or None


_FAST_OPTIONS = _fast_compile_options()


def compiler_options_for(*arrays: Any, limit: int = _SMALL_SIZE) -> dict[str, Any] | None:
    """Compiler options of a program with these arrays as input; None for the defaults of XLA.

    Arrays of at most ``limit`` elements are small.
    """
    sizes = [getattr(leaf, "size", 1) for leaf in jax.tree.leaves(arrays)]
    small = max(sizes, default=0) <= limit
    return _FAST_OPTIONS if small and on_cpu(arrays) else None


class SizedJit:
    """A function compiled as by `jax.jit`, with compiler options chosen by the size of its data."""

    def __init__(
        self, function: Callable[..., Any], static_argnames: tuple[str, ...], limit: int
    ) -> None:
        functools.update_wrapper(self, function)
        self._limit = limit
        self._static = frozenset(static_argnames)
        jit = functools.partial(jax.jit, function, static_argnames=static_argnames)
        self._optimised = jit()
        self._fast = jit(compiler_options=_FAST_OPTIONS) if _FAST_OPTIONS else self._optimised

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for the size of the arguments."""
        return self._select(args, kwargs)(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower the program for these arguments, as the method ``lower`` of `jax.jit` functions."""
        return self._select(args, kwargs).lower(*args, **kwargs)

    def _select(self, args: Any, kwargs: dict[str, Any]) -> Any:
        traced = args, [value for name, value in kwargs.items() if name not in self._static]
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(traced)):
            return self._optimised  # part of another program, whose options apply
        return (
            self._optimised
            if compiler_options_for(traced, limit=self._limit) is None
            else self._fast
        )

    def _cache_size(self) -> int:
        """Number of compiled programs."""
        variants = {id(jitted): jitted for jitted in (self._optimised, self._fast)}
        return sum(jitted._cache_size() for jitted in variants.values())


def jit_by_size(
    *static_argnames: str, limit: int = _SMALL_SIZE
) -> Callable[[Callable[..., Any]], SizedJit]:
    """Decorate a function: `jax.jit` with these static arguments and options chosen by size.

    Data whose largest array has at most ``limit`` elements are small, and their program is compiled
    quickly. Use a higher limit for programs that take long to compile.
    """
    return functools.partial(SizedJit, static_argnames=static_argnames, limit=limit)
