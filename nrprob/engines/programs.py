"""Compile programs of small data quickly, and programs of large data with full optimisation."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jaxlib

from nrprob.engines import stored_programs
from nrprob.engines.placement import on_cpu

# If the largest array has at most this number of elements, compilation takes longer than the run.
_SMALL_SIZE = 1 << 14
_RELEASE = tuple(int(part) for part in jaxlib.__version__.split(".")[:2])


def _fast_compile_options() -> dict[str, Any] | None:
    options: dict[str, Any] = {}
    # Compilation at level 1 of LLVM takes up to a quarter less time than at level 3, and programs
    # of small data run as fast. The user's own settings take precedence.
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

    Options for a quick compilation are returned if no array has more than ``limit`` elements.
    """
    sizes = [getattr(leaf, "size", 1) for leaf in jax.tree.leaves(arrays)]
    small = max(sizes, default=0) <= limit
    return _FAST_OPTIONS if small and on_cpu(arrays) else None


class SizedJit:
    """A function compiled as by `jax.jit`, with compiler options chosen by the size of its data.

    Where JAX's persistent cache is enabled, programs are stored in its folder and loaded without
    tracing; see `nrprob.engines.stored_programs`.
    """

    _all: weakref.WeakSet[SizedJit] = weakref.WeakSet()

    def __init__(
        self, function: Callable[..., Any], static_argnames: tuple[str, ...], limit: int
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._limit = limit
        self._static = frozenset(static_argnames)
        self._positions = {
            i
            for i, name in enumerate(inspect.signature(function).parameters)
            if name in self._static
        }
        jit = functools.partial(jax.jit, function, static_argnames=static_argnames)
        self._optimised = jit()
        self._fast = jit(compiler_options=_FAST_OPTIONS) if _FAST_OPTIONS else self._optimised
        self._stored: dict[Any, Callable[..., Any]] = {}
        SizedJit._all.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program that is compiled for the size and the types of the arguments."""
        arrays, named = self._traced_arguments(args, kwargs)
        leaves, tree = jax.tree.flatten((arrays, named))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self._optimised(*args, **kwargs)  # part of another program, whose options apply
        jitted = self._for_size(leaves)
        if stored_programs.folder() is None:
            return jitted(*args, **kwargs)
        static = (
            tuple(args[i] for i in self._positions if i < len(args)),
            tuple((name, value) for name, value in kwargs.items() if name in self._static),
        )
        device = stored_programs.only_device(leaves)
        types = tuple(map(stored_programs.type_of, leaves))
        precision = jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision
        signature = tree, types, static, device, jitted is self._fast, precision
        program = self._stored.get(signature)
        if program is None:
            program = jitted
            if device is not None:
                variant = jax.tree.unflatten(tree, types), static, jitted is self._fast
                with contextlib.suppress(stored_programs.NotStorableError):
                    program = stored_programs.load_or_compile(
                        lambda: jitted.lower(*args, **kwargs), self._function, variant, device
                    )
            self._stored[signature] = program
        return jitted(*args, **kwargs) if program is jitted else program(*arrays, **named)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower the program for these arguments, as the method ``lower`` of `jax.jit` functions."""
        leaves = jax.tree.leaves(self._traced_arguments(args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self._optimised.lower(*args, **kwargs)
        return self._for_size(leaves).lower(*args, **kwargs)

    def _traced_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        return (
            [a for i, a in enumerate(args) if i not in self._positions],
            {name: value for name, value in kwargs.items() if name not in self._static},
        )

    def _for_size(self, leaves: list[Any]) -> Any:
        small = compiler_options_for(leaves, limit=self._limit) is not None
        return self._fast if small else self._optimised

    def _cache_size(self) -> int:
        """Number of compiled programs."""
        variants = {id(jitted): jitted for jitted in (self._optimised, self._fast)}
        loaded = sum(program not in variants.values() for program in self._stored.values())
        return loaded + sum(jitted._cache_size() for jitted in variants.values())

    @classmethod
    def forget(cls) -> None:
        """Release loaded programs of all `SizedJit` functions, which `jax.clear_caches` keeps."""
        for function in cls._all:
            function._stored.clear()


def jit_by_size(
    *static_argnames: str, limit: int = _SMALL_SIZE
) -> Callable[[Callable[..., Any]], SizedJit]:
    """Decorate a function: `jax.jit`, with compiler options that the size of the data determines.

    Data whose largest array has at most ``limit`` elements are small, and their program is compiled
    quickly. Use a higher limit for programs that take long to compile.
    """
    return functools.partial(SizedJit, static_argnames=static_argnames, limit=limit)
