"""Files are written completely or not at all, sealed, and read with checks."""

import io
import os
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest
import scipy.sparse

from nrprob import files
from nrprob.exceptions import InputError


def test_nothing_stays_of_a_write_that_is_interrupted(tmp_path, monkeypatch):
    def interrupted(number):
        assert len(list(tmp_path.iterdir())) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(tmp_path / "a", b"content")
    assert not list(tmp_path.iterdir())


def test_what_is_being_written_is_named_after_its_writer(tmp_path):
    result = []
    threads = [
        threading.Thread(target=lambda: result.append(files._hidden_path(tmp_path / "a.nc")))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
        thread.join()
    name, host, process, *_ = result[0].name.rsplit(".", 4)
    assert (name, host, process) == (".a.nc", files._host_name(), str(os.getpid()))
    assert result[0] != files._hidden_path(tmp_path / "a.nc")


def test_only_what_dead_writers_left_is_removed(tmp_path, monkeypatch):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stays = [files._hidden_path(tmp_path / "mine"), tmp_path / ".a.b.c.d.e", tmp_path / "a.nc"]
    goes = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: gone.pid)
        goes.append(files._hidden_path(tmp_path / "dead"))
        patched.setattr(files, "_host_name", lambda: "elsewhere")
        stays.append(files._hidden_path(tmp_path / "other host"))
        goes.append(files._hidden_path(tmp_path / "other host, long ago"))
    for path in stays + goes:
        path.touch()
    for path in (goes[1], stays[1]):
        os.utime(path, (0, 0))
    files.remove_left_over(tmp_path)
    assert set(tmp_path.iterdir()) == set(stays)


def test_places_are_tried_without_a_trace(tmp_path):
    (tmp_path / "a file").write_text("kept")
    for place in ("a", "a file", "new/folders/a"):
        files.try_write(tmp_path / place)
    assert [p.name for p in tmp_path.iterdir()] == ["a file"]
    assert (tmp_path / "a file").read_text() == "kept"
    for place in (tmp_path, tmp_path / "a file" / "a", tmp_path / ("x" * 300) / "a"):
        with pytest.raises(InputError, match=r"cannot write; .*; check the folder"):
            files.try_write(place)


def test_nothing_is_written_through_a_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path, lock = tmp_path / "a", tmp_path / "a.lock"
    for hidden in (path, tmp_path / files._CLAIM):
        files._hidden_path(hidden).symlink_to(victim)  # as if the name had been guessed
    files.write_atomically(path, b"content")
    files.try_write(path)
    with files.claimed(tmp_path) as alone:
        assert alone
    assert path.read_bytes() == b"content"
    path.unlink()
    for link in (path, lock, files.sealed(path, b"mine")):
        link.symlink_to(victim)
        for use in (
            lambda at: files.write_atomically(at, b"content"),
            files.try_write,
            files.check_seal,
            lambda at: files.locked(at).__enter__(),
        ):
            with pytest.raises(InputError, match=rf"links; {link} points to {victim}; delete the"):
                use(link)
    assert victim.read_text() == "mine"


def test_every_flipped_bit_breaks_the_seal(tmp_path):
    content = np.random.default_rng(0).bytes(40)
    path = files.sealed(tmp_path / "a.nc", content, "key")
    path.write_bytes(content)
    assert files.is_sealed(path) and files.check_seal(path, "key") == content
    damaged = [content[:-1], b"", bytes(40), content + b"\0"]
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for other in damaged:
        path.write_bytes(other)
        with pytest.raises(ValueError, match="does not fit the digest"):
            files.check_seal(path, "key")
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not fit the digest"):
        files.check_seal(path, "another key")
    with pytest.raises(ValueError, match="has no digest"):
        files.check_seal(path.rename(tmp_path / "a.nc"), "key")


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def claiming(*shape):
    """An archive of an array that consists of the header only."""
    header, file = io.BytesIO(), io.BytesIO()
    described = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("X.npy", header.getvalue())
    return file.getvalue()


def other_archive():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("note.txt", "no array")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is no NPZ archive"),
        (b"junk", "it is no NPZ archive"),
        (npz(X=np.eye(3))[:-30], "it is no NPZ archive"),
        (claiming(10**6, 10**5), r"X\.npy claims 800000000000 bytes that are not there"),
        (claiming(2, 3), r"X\.npy claims 48 bytes"),
        (npz(X=np.array([1, "a"], object)), "holds Python objects, which are not read"),
        (other_archive(), "magic string"),
    ],
    # Archives contain the time of their creation: as names they would differ between workers.
    ids=["empty", "junk", "cut off", "huge claim", "small claim", "objects", "no array"],
)
def test_damaged_archives_are_one_sentence(tmp_path, content, message):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"cannot read it; .*a\.npz: .*{message}.*; mend") as told:
        with files.reading(path, "it", "mend"):
            files.read_npz(path)
    assert "\n" not in str(told.value) and "allow_pickle" not in str(told.value)


def test_flipped_bits_of_an_archive_change_nothing_in_silence(tmp_path):
    X = np.random.default_rng(0).normal(size=(5, 4))
    content = npz(X=X, y=np.arange(3))
    path = tmp_path / "a.npz"
    refused = 0
    for bit in np.random.default_rng(1).integers(8 * len(content), size=200):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            with files.reading(path, "it", "mend"):
                arrays = files.read_npz(path)
        except InputError:
            refused += 1
        else:  # one bit of an unread part, or of a name
            for name, array in (("X", X), ("y", np.arange(3))):
                assert name not in arrays or np.array_equal(arrays[name], array)
    assert refused > 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": [0, 3]}, "must be < 3"),
        ({"indices": [0, -1]}, "must be >= 0|negative"),
        ({"shape": [10**12, 3]}, "index pointer size"),
        ({"data": ["a", "b"]}, "holds no numbers"),
        ({"data": [1j, 2j]}, "holds no numbers"),
        ({"format": b"xyz"}, "xyz"),
    ],
)
def test_damaged_sparse_matrices_are_one_sentence(tmp_path, changes, message):
    path = tmp_path / "a.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(np.eye(2, 3)))
    assert (files.read_sparse(path).toarray() == np.eye(2, 3)).all()
    np.savez(path, **(files.read_npz(path) | {k: np.asarray(v) for k, v in changes.items()}))
    with pytest.raises(InputError, match=rf"cannot read it; .*({message})"):
        with files.reading(path, "it", "mend"):
            files.read_sparse(path)
