"""Store compiled programs on disk, so that later processes need not compile them again."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

__all__ = ["cache"]

# Programs that compile in less time are not stored.
SECONDS = 0.1


def default_folder() -> Path:
    """Default folder of the cache, named after the machine, the compiler and this package.

    Programs that were compiled on another machine, or by another compiler, may crash. Programs of
    another version of this package would only take space.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    versions = [metadata.version(package) for package in ("jaxlib", "nrprob")]
    return base / "nrprob" / "-".join(["jax", platform.node() or "host", *versions])


def set_environment(seconds: float = SECONDS) -> None:
    """Set the environment variables by which JAX, imported later, stores compiled programs.

    JAX stores programs whose compilation took at least ``seconds``. Settings of the user take
    precedence; ``JAX_COMPILATION_CACHE_DIR=`` disables the cache.
    """
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(default_folder()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(seconds))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def cache(path: str | os.PathLike[str] | None = None) -> Path:
    """Store compiled programs in a folder, from which later processes load them.

    The first fit of a process to arrays of a new shape spends most of its time on tracing and
    compilation. With the cache, such a fit takes a fraction of this time. The function enables
    JAX's persistent cache for the whole process, including other uses of JAX; importing nrprob does
    not enable the cache. Programs of nrprob are stored in a subfolder, and are loaded without
    tracing. The command line enables the cache by default, in the default folder.

    Parameters
    ----------
    path : path-like, optional
        The folder, which is created if necessary. The default folder is below ``XDG_CACHE_HOME`` or
        ``~/.cache``, and is named after the machine and the versions of jaxlib and nrprob. Do not
        share the folder between different machines, nor with users whom you do not trust: programs
        in the folder are executed. The folder grows without limit; you may delete its files at any
        time.

    Returns
    -------
    pathlib.Path
        The folder.

    Raises
    ------
    TypeError, nrprob.exceptions.InputError
        If ``path`` is not a path, or the folder cannot be created.

    Examples
    --------
    >>> import nrprob
    >>> folder = nrprob.cache("programs")
    >>> folder.name, folder.is_dir()
    ('programs', True)
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    from nrprob.files import as_path, make_folder

    folder = default_folder() if path is None else as_path(path, "path").expanduser().resolve()
    make_folder(folder)
    # JAX fixes the location of its cache at the first compilation.
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SECONDS)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder
