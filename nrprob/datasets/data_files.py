"""Files of real data sets: the user's folder, downloads, and errors for damaged files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nrprob.exceptions import DataUnavailable, InputError
from nrprob.files import reading

__all__ = ["DataSet", "data_folder", "download_file", "reading_data", "search_clause"]


@dataclass(repr=False)
class DataSet:
    """Data set: features of rows, and labelings of the rows.

    The ``repr`` states the name, the shape, and the number of groups of every labeling.

    Attributes
    ----------
    X : ndarray or scipy.sparse.csr_array of shape (n_samples, n_features)
        Features of the rows; a sparse array for counts.
    labelings : dict of str to ndarray of shape (n_samples,)
        Labels of the rows, integers or text.
    feature_names : list of str or None
        Names of the features.
    image_shape : tuple of int or None
        Height and width, if a row is an image.
    name : str
        Name of the data set; `load` sets it.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob.datasets import DataSet
    >>> data = DataSet(np.eye(2), {"half": np.array([0, 1])})
    >>> data
    <DataSet: X of shape (2, 2); labelings: half (2 groups)>
    >>> data.labelings
    {'half': array([0, 1])}
    """

    X: Any
    labelings: dict[str, np.ndarray] = field(default_factory=dict)
    feature_names: list[str] | None = None
    image_shape: tuple[int, int] | None = None
    name: str = ""

    def __repr__(self) -> str:
        text = f"X of shape {np.shape(self.X)}"
        if self.image_shape is not None:
            text += f" (images of {' x '.join(map(str, self.image_shape))})"
        sizes = {name: len({*np.asarray(z).tolist()}) for name, z in self.labelings.items()}
        groups = [f"{name} ({k} group{'s' * (k != 1)})" for name, k in sizes.items()]
        text += f"; labelings: {', '.join(groups)}" * bool(groups)
        return f"<{' '.join(filter(None, ['DataSet', self.name]))}: {text}>"


def data_folder() -> Path | None:
    """Folder that the environment variable ``NRPROB_DATA`` names."""
    folder = os.environ.get("NRPROB_DATA")
    return Path(folder) if folder else None


def search_clause() -> str:
    """Clause of error messages that states in which folder nrprob searched for data."""
    root = data_folder()
    if root is None:
        return "NRPROB_DATA is not set"
    if not root.is_dir():
        return f"NRPROB_DATA = {root} is not a directory"
    return f"NRPROB_DATA = {root} has no such folder"


@contextlib.contextmanager
def reading_data(path: Path) -> Iterator[None]:
    """Context that converts errors of reading the file ``path`` to an InputError of one line.

    Such errors occur if the file is damaged or missing.
    """
    try:
        with reading(path, "a file of the data set", "get it again"):
            yield
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise InputError(f"a file of the data set is missing; {path}; restore it") from error
        raise


def download_file(name: str, url: str, sha256: str, *, file: str, wrong: str, offline: str) -> Path:
    """Download a file with a checksum, unless it is in the cache.

    Parameters
    ----------
    name : str
        Name of the data set.
    url, sha256 : str
        Address, and SHA-256 of the content.
    file : str
        Name of the file in the cache.
    wrong : str
        End of the error message "the downloaded file is not ...", in which ``{}`` stands for the
        address.
    offline : str
        Remedy if there is no network connection, for the message.

    Returns
    -------
    Path
        The file in the cache.

    Raises
    ------
    nrprob.exceptions.DataUnavailable
        If the file cannot be downloaded.
    nrprob.exceptions.InputError
        If the downloaded file has another checksum.
    """
    try:
        import pooch
    except ImportError:
        raise DataUnavailable(
            f"{name} is not on this machine; {search_clause()}, and downloads need pooch, which is "
            "not installed; run pip install 'nrprob[data]'"
        ) from None
    try:
        folder = pooch.os_cache("nrprob")
        return Path(pooch.retrieve(url, known_hash=f"sha256:{sha256}", fname=file, path=folder))
    except ValueError as error:  # another checksum
        what = " ".join(f"{url}: {error}".split())
        raise InputError(f"the downloaded file is not {wrong.format(what)}") from error
    except OSError as error:
        raise DataUnavailable(
            f"{name} could not be downloaded ({type(error).__name__}); {search_clause()}, and at "
            f"{url}; {offline}"
        ) from error
