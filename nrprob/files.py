"""Write files atomically, and detect damaged files before they are used.

If the path of a file is a symbolic link, nothing is written through the link, and no sealed file is
read through it.

The name of a *sealed* file ends with a digest of its content. The file is written under a hidden
name and then renamed, so that the final name never exists without the complete content. If the
content is damaged later, it no longer agrees with the digest.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import platform
import re
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from nrprob.exceptions import InputError, short_repr

__all__ = [
    "as_path",
    "check_seal",
    "claimed",
    "digest",
    "is_sealed",
    "locked",
    "make_folder",
    "read_npz",
    "read_sparse",
    "reading",
    "refuse_link",
    "remove_left_over",
    "sealed",
    "try_write",
    "write_atomically",
]

# Exceptions that NumPy, SciPy, pandas, h5py, gzip and zip raise for damaged files.
_DAMAGE = (
    OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError,
    MemoryError, AssertionError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
# Patterns of their messages, and replacements that a user without knowledge of the reader
# understands.
_PLAINLY: tuple[tuple[str, Any], ...] = (
    (r"'utf-8' codec can't decode byte (\w+) in position (\d+).*",
     r"its text must be saved as UTF-8; byte \1 at position \2 is of another encoding"),
    (r".*Expected (\d+) fields in line (\d+), saw (\d+)", r"line \2 has \3 values for \1 columns"),
    (r".*EOF inside string starting at row (\d+)",
     lambda result: f"a quotation mark in line {int(result[1]) + 1} is not closed"),
    (r".*file signature not found.*", "it is no HDF5 file"),
    (r"File is not a zip file", "it is no ZIP archive"),
)  # fmt: skip
_DAY = 86400.0
_HIDDEN = ".nrprob"  # suffix of the hidden names of files that are being written
_CLAIM = "claim"  # beginning of the hidden name of a file that claims a folder
_RATIO = 1100  # largest compression ratio of a deflated file


def as_path(value: Any, name: str) -> Path:
    """Convert the argument ``name`` to a path.

    Raises
    ------
    TypeError
        If ``value`` is not a path.
    InputError
        If no file can have this name.
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise TypeError(f"{name} must be a path; got {short_repr(value)}; pass a string or a Path")
    text = os.fspath(value)
    # Other libraries accept paths in UTF-8 only. Control characters would break lines of messages.
    good = re.fullmatch(r"[^\0-\x1f\ud800-\udfff]{0,4000}", text)
    if not good or any(len(part.encode()) > 255 for part in re.split(r"[/\\]", text)):
        raise InputError(
            f"{name} must be a path of UTF-8 text without control characters, in parts of at most "
            f"255 bytes; got {short_repr(text)}; pass another path"
        )
    return Path(text)


def _host_name() -> str:
    """Name of this host, with the number of its namespace of process numbers.

    Containers have separate namespaces, in which one number may denote different processes.
    """
    host = re.sub(r"\W+", "-", platform.node())[:60]
    with contextlib.suppress(OSError):
        return f"{host}-{os.stat('/proc/self/ns/pid').st_ino}"
    return f"{host}-"


def _hidden_path(path: Path) -> Path:
    """Hidden name of a file while it is written; it contains host, process and thread."""
    who = f"{_host_name()}.{os.getpid()}.{threading.get_native_id()}"
    return path.with_name(f".{path.name}.{who}{_HIDDEN}")


def _is_left_over(path: Path) -> bool:
    """Whether a hidden file was left by a process that has ended.

    The process is looked up if it ran on this host. Files that are older than a day, of any host,
    count as left over as well.
    """
    _, host, pid, *_ = path.name.rsplit(".", 4)
    try:
        if time.time() - path.stat().st_mtime > _DAY:
            return True
        if host == _host_name() and os.name != "nt":  # on Windows, signal 0 would end the process
            os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        pass  # the process runs under another user, or the file was removed
    return False


def digest(path: Path) -> str:
    """SHA-256 of the content of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_link(path: Path, advice: str = "delete the link") -> None:
    """Check that a path is not a symbolic link, whose target may belong to somebody else.

    Raises
    ------
    InputError
        If the path is a link; ``advice`` ends the message.
    """
    if os.path.islink(path):
        raise InputError(
            f"results are neither written nor read through symbolic links; {path} points to "
            f"{os.readlink(path)}; {advice}"
        )


def _create_exclusively(path: Path) -> IO[bytes]:
    """Create a file and open it; delete an existing file, and follow no symbolic link."""
    path.unlink(missing_ok=True)
    return open(path, "xb")


def remove_left_over(folder: Path) -> None:
    """Remove hidden files that killed processes have left in a folder.

    Hidden files of running processes stay, unless they are older than a day.
    """
    for path in folder.glob(f".*.*.*.*{_HIDDEN}"):
        if _is_left_over(path):
            with contextlib.suppress(OSError):
                path.unlink()


def try_write(path: Path) -> None:
    """Check that a file can be written at this path; the check leaves no file behind.

    Raises
    ------
    InputError
        If the path is a folder or a symbolic link, or if a parent folder cannot be made or written
        to.
    """
    refuse_link(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        place = path
        while not place.parent.exists():
            place = place.parent
        hidden = _hidden_path(place)
        _create_exclusively(hidden).close()
        hidden.unlink()
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot write; {path}: {error.strerror}; check the folder")


def make_folder(out: Path) -> None:
    """Make a folder for results, unless it exists."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the output folder; {out}: {error.strerror}; choose another"
        ) from error


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Claim a folder for this process inside the ``with``; the folder is made if necessary.

    Yields False if another process has claimed the folder, else True. If two processes claim a
    folder at the same moment, both may get False. At the end, folders that this function has made
    are removed if they are empty.
    """
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder)
    mark = _hidden_path(folder / _CLAIM)
    try:
        _create_exclusively(mark).close()
        remove_left_over(folder)
        yield set(folder.glob(f".{_CLAIM}.*{_HIDDEN}")) == {mark}
    finally:
        with contextlib.suppress(OSError):
            mark.unlink()
            for path in new:
                path.rmdir()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a hidden name, and rename it when its content is on the disk.

    Raises
    ------
    InputError
        If the folder cannot be written to, or the path is a symbolic link.
    """
    refuse_link(path)
    hidden = _hidden_path(path)
    try:
        with _create_exclusively(hidden) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:  # also after an interrupt
        with contextlib.suppress(OSError):
            hidden.unlink()


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock of the operating system on the file ``path`` inside the ``with``.

    The operating system releases the lock when the process ends. Yields True with the lock. Yields
    False if another process holds the lock and ``wait`` is False.

    Raises
    ------
    InputError
        If the path is a symbolic link.
    """
    from filelock import FileLock, Timeout

    refuse_link(path)  # FileLock truncates the file that it opens
    lock = FileLock(path)
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _file_digest(content: bytes, key: str) -> str:
    return hashlib.sha256(key.encode() + content).hexdigest()


def sealed(path: Path, content: bytes, key: str = "") -> Path:
    """Return the name of a sealed file: ``block.npz`` becomes ``block-<digest>.npz``.

    Parameters
    ----------
    path : Path
        Path of the file without the digest.
    content : bytes
        Content of the file.
    key : str
        Text that enters the digest, such as the identity of the run to which the file belongs. The
        seal is valid only for readers with the same text.
    """
    return path.with_name(f"{path.stem}-{_file_digest(content, key)}{path.suffix}")


def is_sealed(path: Path) -> bool:
    """Whether the name of a file ends in a digest."""
    return re.fullmatch(r".*-[0-9a-f]{64}", path.stem) is not None


def check_seal(path: Path, key: str = "") -> bytes:
    """Read a sealed file, and check its digest; `sealed` explains ``key``.

    Raises
    ------
    ValueError
        If the content does not agree with the digest in the name, or the name has no digest.
    InputError
        If the path is a symbolic link.
    OSError
        If the file cannot be read.
    """
    refuse_link(path)
    content = path.read_bytes()
    if not is_sealed(path):
        raise ValueError("its name has no digest of its content")
    if path.stem[-64:] != _file_digest(content, key):
        raise ValueError("its content does not fit the digest in its name")
    return content


@contextlib.contextmanager
def reading(path: Path, what: str, advice: str) -> Iterator[None]:
    """Context that converts errors of reading a damaged file to an InputError of one sentence.

    Parameters
    ----------
    path : Path
        The file.
    what : str
        Noun for the file in the message, such as "a result file".
    advice : str
        End of the message: what to do if the file cannot be read.
    """
    try:
        yield
    except InputError:
        raise
    except _DAMAGE as error:
        reason = " ".join(str(error).split("\n", 1)[0].split()) or type(error).__name__
        for words, plainly in _PLAINLY:
            reason = re.sub(words, plainly, reason)
        raise InputError(f"cannot read {what}; {path}: {reason}; {advice}") from error


def read_npz(file: Path | IO[bytes]) -> dict[str, np.ndarray]:
    """Read the arrays of an NPZ file.

    Before an array is allocated, its declared size is compared with the size of the file.

    Raises
    ------
    ValueError, OSError, zipfile.BadZipFile, zlib.error
        If the file is damaged, or holds anything but arrays of numbers and texts.
    """
    if not zipfile.is_zipfile(file):
        raise ValueError("it is no NPZ archive")
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            with archive.open(member) as stored:
                _check_header(stored, member)
    if not isinstance(file, Path):
        file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def read_sparse(path: Path) -> Any:
    """Read a sparse matrix from a file of `scipy.sparse.save_npz`, as a `scipy.sparse.csr_array`.

    Raises
    ------
    ValueError, OSError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error
        If the file is damaged, or does not hold a matrix of numbers.
    """
    import scipy.sparse

    read_npz(path)
    X = scipy.sparse.csr_array(scipy.sparse.load_npz(path))
    X.check_format()  # invalid indices would read memory outside of the matrix
    if X.dtype.kind not in "biuf":
        raise ValueError(f"a matrix of type {X.dtype} holds no numbers")
    return X


def _check_header(stored: IO[bytes], member: zipfile.ZipInfo) -> None:
    """Raise ValueError if an array holds objects, or its declared size disagrees with the file."""
    read: Any = np.lib.format.read_array_header_1_0
    if np.lib.format.read_magic(stored) != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stored)
    if dtype.hasobject:
        raise ValueError(f"{member.filename} holds Python objects, which are not read")
    claimed, n_bytes = math.prod(shape) * dtype.itemsize, member.file_size - stored.tell()
    if claimed != n_bytes or member.file_size > _RATIO * member.compress_size:
        raise ValueError(f"{member.filename} claims {claimed} bytes that are not there")
