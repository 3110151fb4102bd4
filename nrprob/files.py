"""Files that appear whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

from nrprob.exceptions import InputError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name, and rename it once it is on the disk.

    Raises
    ------
    InputError
        If the folder cannot be written to.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with hidden.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        raise InputError(f"cannot write; {path}: {error.strerror}; check the folder") from error
