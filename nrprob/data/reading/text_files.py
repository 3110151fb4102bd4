"""Open text files: compression and encoding.

The module imports no package that loads slowly, so that errors in names are reported quickly.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from nrprob.exceptions import InputError, short_repr

__all__ = [
    "COMPRESSED", "detect_compression", "detect_encoding", "format_of", "open_binary",
    "open_text",
]  # fmt: skip

COMPRESSED = (".gz", ".bz2", ".xz", ".zip")
# First bytes of compressed files.
_MAGIC = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\0": "xz", b"PK\x03\x04": "zip",
          b"\x28\xb5\x2f\xfd": "zst"}  # fmt: skip
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
_WESTERN = "cp1252"
_CHUNK = 2**20
_MAX_WORDS = 3  # maximum number of words in a warning about the encoding


def format_of(path: Path) -> str:
    """Suffix of a file name without the suffix of a compression, in lower case, such as ".csv".

    A compressed file is a text file. If its name has no suffix of a text format, the result is
    ".csv".
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        inner = suffixes[-2] if len(suffixes) > 1 else ""
        return inner if inner in (".csv", ".tsv", ".txt", ".tab") else ".csv"
    return suffixes[-1] if suffixes else ""


def detect_compression(path: Path) -> str:
    """Compression of a file by its first bytes: "gz", "bz2", "xz", "zip" or "" without one."""
    with path.open("rb") as file:
        head = file.read(8)
    name = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")
    if name == "zst":
        raise InputError(
            f"files compressed by Zstandard cannot be read; {path}; decompress the file with zstd"
        )
    return name


@contextmanager
def open_binary(path: Path, compression: str) -> Iterator[IO[bytes]]:
    """Open the decompressed content of a file."""
    if compression == "zip":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            names = [name for name in names if not name.startswith("__MACOSX")]
            if len(names) != 1:
                listed = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
                raise InputError(
                    f"a ZIP archive must hold one table; {path} holds {listed or 'no file'}; "
                    "extract the table, or give the archive the suffix of its format"
                )
            with archive.open(names[0]) as member:
                yield member
        return
    opener = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}.get(compression, open)
    with opener(path, "rb") as file:  # type: ignore[operator]
        yield file


@contextmanager
def open_text(path: Path, compression: str, encoding: str) -> Iterator[IO[str]]:
    """Open a text file, and keep its line ends, as the module csv requires."""
    with open_binary(path, compression) as file:
        yield io.TextIOWrapper(file, encoding, newline="")


def detect_encoding(path: Path, compression: str) -> tuple[str, str]:
    """Return the encoding of a text file, and a sentence about it, which is empty for UTF-8.

    The encoding is UTF-16 or UTF-32 if the file begins with the byte order mark of this encoding.
    Without a mark, the encoding is UTF-16 if about every second byte is zero, and UTF-8 if the
    whole file is valid UTF-8. All other files count as Windows-1252, the encoding of Western
    Europe. Languages are not guessed: statistics of letters fail on tables of few words.

    Raises
    ------
    InputError
        If the content is not text of these encodings.
    """
    with open_binary(path, compression) as file:
        head = file.read(2**12)
    for mark, name in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return name, "" if name == "utf-8-sig" else f"the text is encoded as {name.upper()}"
    if b"\0" in head:
        # Letters of Western languages have a zero byte in UTF-16.
        zeros = [head[i::2].count(b"\0") / max(1, len(head) // 2) for i in range(2)]
        if max(zeros) > 0.4 and min(zeros) < 0.1:
            name = "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
            return name, f"the text is encoded as {name.upper()}"
        raise InputError(
            f"the file is not a text file; {path} has zero bytes; give the file the suffix of its "
            "format, or name the encoding with --encoding"
        )
    if _is_valid(path, compression, "utf-8"):
        return "utf-8", ""
    if not _is_valid(path, compression, _WESTERN):
        raise InputError(
            f"the encoding of the text is unknown; {path} is neither UTF-8 nor {_WESTERN}; name "
            "the encoding with --encoding, for example --encoding mac_roman"
        )
    words: dict[str, None] = {}
    with open_text(path, compression, _WESTERN) as text:
        for line in text:
            words |= dict.fromkeys(re.findall(r"[^\W\d_]*[^\x00-\x7f][^\W\d_]*", line))
            if len(words) >= _MAX_WORDS:
                break
    shown = ", ".join(short_repr(word) for word in list(words)[:_MAX_WORDS])
    return _WESTERN, (
        f"the text is no UTF-8, and is read as {_WESTERN} (Western European): {shown}; if these "
        "words are wrong, name the encoding with --encoding, for example --encoding cp1250"
    )


def _is_valid(path: Path, compression: str, encoding: str) -> bool:
    """Whether the whole content of a file can be decoded."""
    decoder = codecs.getincrementaldecoder(encoding)()
    with open_binary(path, compression) as file:
        try:
            while chunk := file.read(_CHUNK):
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True
