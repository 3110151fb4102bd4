"""Store compiled programs on disk, and load them without tracing.

JAX's persistent cache saves only the compilation by XLA. Before a process can look up a program in
this cache, it has to trace and lower the program, which takes longer than the compilation of most
programs of small data. In the store of this module, the name of a file is a hash of everything that
determines a program: the sources of this package, versions, settings of JAX, the function, its
static arguments, and the types of the arrays. The store is a folder below the folder of JAX's
cache, and exists only if JAX's cache is enabled.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import pickle
import platform
import threading
import zlib
from collections.abc import Callable, Hashable
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any

import jax
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from nrprob.files import write_atomically

# A digest of the sources of this package and the versions of these libraries is part of a name. A
# program that depends on other functions or classes, such as the user's own, is not stored.
_LIBRARIES = ("jax", "jaxlib", "numpy", "numpyro", "optax", "scipy")
_COVERED = {"nrprob", "builtins", "collections", "copyreg", "functools", "operator", *_LIBRARIES}
# Settings that do not affect programs.
_IRRELEVANT = ("cache", "log", "traceback", "default_device", "platform", "profiler", "dump")
_ROOT = Path(__file__).parents[1]
_STORAGE_ERRORS = (
    OSError,
    NotImplementedError,
    TypeError,
    ValueError,
    pickle.PicklingError,
    jax.errors.JaxRuntimeError,
)
# File names of programs that JAX may have read from its cache. XLA cannot serialise programs that
# were read.
_not_new: set[str] = set()


class NotStorableError(Exception):
    """Error for a program that depends on something that the name of its file cannot describe."""


def folder() -> Path | None:
    """Folder of the stored programs; None if JAX's cache is off, or in a debug mode of JAX."""
    config = jax.config
    cache = config.jax_compilation_cache_dir
    if not cache or "://" in cache or not config.jax_enable_compilation_cache:
        return None
    if config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs:
        return None
    return Path(cache) / "nrprob"


def type_of(leaf: Any) -> Hashable:
    """Shape, dtype and weak typing of the argument ``leaf``, which determine its program."""
    if isinstance(leaf, np.ndarray):
        return leaf.shape, leaf.dtype, False
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, jax.typeof(leaf).weak_type
    return (), type(leaf), True


def only_device(leaves: list[Any]) -> jax.Device | None:
    """Return the default device if it holds all JAX arrays among ``leaves``; else None."""
    default = jax.config.jax_default_device
    device = default if isinstance(default, jax.Device) else jax.local_devices(backend=default)[0]
    for leaf in leaves:
        if isinstance(leaf, jax.Array) and leaf.devices() != {device}:
            return None
    return device


def load_or_compile(
    lower: Callable[[], jax.stages.Lowered],
    function: Callable[..., Any],
    variant: Any,
    device: jax.Device,
) -> jax.stages.Compiled:
    """Load a program from the store, or compile and store it.

    Parameters
    ----------
    lower : function without arguments that lowers the program, as `jax.jit` functions do
    function : function that the program computes
    variant : picklable object that, with ``function`` and the settings, determines the program
    device : device that runs the program

    Raises
    ------
    NotStorableError
        If ``function`` or ``variant`` refer to functions or classes outside of this package and the
        libraries that it builds on.
    """
    path = _path_of(function, variant, device)
    try:
        return _load(path, device)
    except FileNotFoundError:
        pass
    except Exception:  # for example, a damaged file
        path.unlink(missing_ok=True)
    compiled, is_new = _compile(lower())
    if not is_new:
        _not_new.add(path.name)
    if path.name not in _not_new:
        # For example, the disk is full. The program is usable without its file.
        with contextlib.suppress(*_STORAGE_ERRORS):
            _store(path, compiled)
    return compiled


def _compile(lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled, bool]:
    """Compile a program, and return it and whether XLA compiled it in this call.

    If XLA did not, the program comes from JAX's persistent cache or from memory. A program in
    memory may also have come from the persistent cache.
    """
    thread, events = threading.get_ident(), []

    def listen(event: str, *_: Any, **__: Any) -> None:
        if threading.get_ident() == thread:
            events.append(event)

    jax.monitoring.register_event_listener(listen)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        compiled = lowered.compile()
    finally:
        jax.monitoring.unregister_event_listener(listen)
        jax.monitoring.unregister_event_duration_listener(listen)
    was_compiled = "/jax/core/compile/backend_compile_duration" in events
    return compiled, was_compiled and "/jax/compilation_cache/cache_hits" not in events


def _load(path: Path, device: jax.Device) -> jax.stages.Compiled:
    program, inputs, outputs = pickle.loads(zlib.decompress(path.read_bytes()))
    _find_lapack()
    tree_in, tree_out = jax.tree.structure(inputs), jax.tree.structure(outputs)
    return deserialize_and_load(
        program, tree_in, tree_out, backend=device.client, execution_devices=[device]
    )


@functools.cache
def _find_lapack() -> None:
    # JAX looks for the functions of LAPACK when it first lowers a program that calls one. A loaded
    # program that calls LAPACK crashes if JAX has not done so.
    jax.jit(jax.lax.linalg.cholesky).lower(np.eye(1, dtype=np.float32))


def _store(path: Path, compiled: jax.stages.Compiled) -> None:
    program, tree_in, tree_out = serialize(compiled)
    # Tree structures with classes of this package cannot be pickled, but trees can.
    trees = [jax.tree.unflatten(tree, range(tree.num_leaves)) for tree in (tree_in, tree_out)]
    content = zlib.compress(pickle.dumps((program, *trees)), level=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def _path_of(function: Callable[..., Any], variant: Any, device: jax.Device) -> Path:
    root = folder()
    if root is None:
        raise NotStorableError("the persistent cache of JAX is off")
    if not _is_covered(function):
        raise NotStorableError(f"{function.__module__}.{function.__qualname__}")
    names = function.__module__, function.__qualname__
    kind = device.platform, device.device_kind, device.client.platform_version
    stream = io.BytesIO()
    pickler = _CoveredPickler(stream, protocol=4)
    pickler.fast = True  # references to equal objects would depend on the history of the process
    try:
        pickler.dump((_digest_of_sources(), _settings(), kind, names, variant))
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise NotStorableError(str(error)) from error
    return root / hashlib.sha256(stream.getvalue()).hexdigest()


def _is_covered(obj: Any) -> bool:
    return (obj.__module__ or "").partition(".")[0] in _COVERED and "<" not in obj.__qualname__


class _CoveredPickler(pickle.Pickler):
    """Pickler that raises for functions and classes whose source the digest does not cover."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)) and not _is_covered(obj):
            raise NotStorableError(f"{obj.__module__}.{obj.__qualname__}")
        return NotImplemented


def _settings() -> list[tuple[str, str]]:
    names = [name for name in jax.config.values if not any(w in name for w in _IRRELEVANT)]
    return [(name, repr(getattr(jax.config, name, None))) for name in sorted(names)]


@functools.cache
def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(_ROOT.rglob("*.py")):
        digest.update(str(path.relative_to(_ROOT)).encode())
        digest.update(path.read_bytes())
    for library in _LIBRARIES:
        digest.update(f"{library} {metadata.version(library)}".encode())
    digest.update(os.environ.get("XLA_FLAGS", "").encode())
    digest.update(_processor_features())
    return digest.hexdigest()


def _processor_features() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return next((line for line in lines if line.startswith((b"flags", b"Features"))), b"")
