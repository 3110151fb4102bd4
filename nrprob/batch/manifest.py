"""The manifest of a run folder: the SHA-256 of every file outside of the subfolder ``cells``.

The names of files in ``cells`` contain their digests (`nrprob.files`). For every other file,
``manifest.json`` holds the digest. A writer first adds the digests of new files to the manifest,
then replaces the files, and finally removes the old digests. If a writer is killed in between,
every file has either its old or its new content, and both match the manifest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nrprob.batch.formats import MANIFEST, PLAN
from nrprob.exceptions import InputError
from nrprob.files import locked, make_folder, refuse_link, write_atomically

__all__ = ["changed_files", "lock_folder", "read_file", "write_files"]


def lock_folder(folder: Path) -> Path:
    """Folder of the locks of a run folder."""
    return folder / "locks"


def _hash_content(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class _Manifest:
    """Contents of ``manifest.json``.

    ``files`` has the digests of finished files by file name, and ``announced`` the digests of files
    that are being written.
    """

    files: dict[str, str] = field(default_factory=dict)
    announced: dict[str, str] = field(default_factory=dict)

    def dumps(self) -> bytes:
        """Content of ``manifest.json``, which ends with a digest of the rest."""
        content = {"format": 1, "files": self.files, "announced": self.announced}
        seal = _hash_content(json.dumps(content, sort_keys=True).encode())
        return json.dumps({**content, "sha256": seal}, indent=1).encode()

    def has_content(self, name: str, content: bytes) -> bool:
        """Whether the manifest has the digest of ``content`` for the file ``name``."""
        return _hash_content(content) in (self.files.get(name), self.announced.get(name))


def _change_error(path: Path) -> InputError:
    return InputError(
        f"a file of the run was changed after it was written; {path}; run the model file again"
    )


def _read_manifest(folder: Path) -> tuple[_Manifest, bytes]:
    """Read the manifest of a run folder; return it, and the content of its file."""
    path = folder / MANIFEST
    refuse_link(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the manifest of a run; {path}: {error.strerror}; run the model file again"
        ) from error
    try:
        values = json.loads(content)
        manifest = _Manifest(dict(values["files"]), dict(values["announced"]))
        names = [*manifest.files, *manifest.announced]
        # Content that differs only in spaces was changed, too.
        good = manifest.dumps() == content and all(Path(name).name == name for name in names)
    except (ValueError, KeyError, TypeError, RecursionError):
        good = False
    if not good:
        raise _change_error(path)
    return manifest, content


def _read_checked(folder: Path, name: str) -> tuple[bytes, bool]:
    """Read a file; return its content, and whether the content matches the manifest.

    Another process may write the file and the manifest at the same time, so a mismatch counts only
    if the manifest has not changed meanwhile.
    """
    while True:
        manifest, before = _read_manifest(folder)
        refuse_link(folder / name)
        content = (folder / name).read_bytes()
        if manifest.has_content(name, content):
            return content, True
        # While the manifest is unchanged, it lists all contents that a file may have.
        if _read_manifest(folder)[1] == before:
            return content, False


def read_file(folder: Path, name: str) -> bytes:
    """Read a file of a run folder.

    Raises InputError if the file, or the manifest, was changed after it was written, or is a
    symbolic link; OSError if the file cannot be read.
    """
    content, fits = _read_checked(folder, name)
    if not fits:
        raise _change_error(folder / name)
    return content


def changed_files(folder: Path, without: Collection[str] = ()) -> list[Path]:
    """Files of a run folder that were changed after they were written.

    Deleted files, and files named in ``without``, are left out. Raises InputError if the manifest
    was changed, or a file is a symbolic link.
    """
    changed = []
    for name in _read_manifest(folder)[0].files:
        if name in without:
            continue
        with contextlib.suppress(FileNotFoundError):
            if not _read_checked(folder, name)[1]:
                changed.append(folder / name)
    return changed


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write each file atomically; ``contents`` has the contents by file name.

    In a run folder, the manifest is updated. A folder is a run folder if it has a file
    ``plan.json``, or if one is written now. Raises InputError if a file cannot be written, or is a
    symbolic link.
    """
    if PLAN not in contents and not (folder / PLAN).exists():
        _write_all(folder, contents)
        return
    refuse_link(lock_folder(folder))
    make_folder(lock_folder(folder))
    with locked(lock_folder(folder) / "manifest.lock"):
        manifest = _settle(folder)
        manifest.announced = {name: _hash_content(content) for name, content in contents.items()}
        write_atomically(folder / MANIFEST, manifest.dumps())
        _write_all(folder, contents)
        files = manifest.files | manifest.announced
        present = {name: files[name] for name in sorted(files) if (folder / name).exists()}
        write_atomically(folder / MANIFEST, _Manifest(present).dumps())


def _write_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    for name, content in contents.items():
        write_atomically(folder / name, content)


def _settle(folder: Path) -> _Manifest:
    """Return the manifest of a run folder, to which a writer adds new files.

    If a killed process has written an announced file completely, the file counts as finished. A
    damaged manifest counts as empty.
    """
    try:
        manifest, _ = _read_manifest(folder)
    except InputError:
        return _Manifest()
    for name, digest in manifest.announced.items():
        path = folder / name
        if path.is_file() and _hash_content(path.read_bytes()) == digest:
            manifest.files[name] = digest
    return manifest
