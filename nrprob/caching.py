"""Keep compiled programs on disk, so that a new process need not compile them again."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

__all__ = ["cache"]

# Programs that compile in less are not worth a file.
SECONDS = 0.1


def default_folder() -> Path:
    """Folder named after the machine and the compiler: what was compiled for others may crash."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"jax-{platform.node() or 'host'}-{metadata.version('jaxlib')}"
    return base / "nrprob" / name


def set_environment(seconds: float = SECONDS) -> None:
    """Have JAX keep programs that took so long to compile, once it is imported.

    What the user has set stands; ``JAX_COMPILATION_CACHE_DIR=`` keeps nothing.
    """
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(default_folder()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(seconds))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def cache(path: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs in a folder, from where every later process takes them.

    The first fit of a shape in a process is mostly compilation; from the cache it takes a fraction
    of that. This sets JAX's own persistent cache, for the whole process and whatever else uses JAX
    in it: import of nrprob alone never does. The command line has it on by default, in the same
    folder.

    Parameters
    ----------
    path : path-like, optional
        The folder, which is made if there is none. By default one below ``XDG_CACHE_HOME`` or
        ``~/.cache``, named after the machine and the version of jaxlib. Do not share one between
        unlike machines. It grows without limit; it may be emptied at any time.

    Returns
    -------
    pathlib.Path
        The folder.

    Raises
    ------
    TypeError, nrprob.exceptions.InputError
        If ``path`` is not a path, or the folder cannot be made.

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
    # What JAX compiled before has settled where it looks.
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SECONDS)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder
