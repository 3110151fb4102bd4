"""Write the H5AD file of the data with the clusters in ``obs``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from nrprob.cli.output import DEFAULT_FOLDER
from nrprob.cli.terminal import print_warning
from nrprob.exceptions import InputError

if TYPE_CHECKING:
    from nrprob.cli.data import LoadedData

__all__ = ["WriteH5ad", "check_annotated_file", "write_annotated_file"]

WriteH5ad = Annotated[
    bool,
    Option("--write-h5ad", help="Also write labels.h5ad: the H5AD file with the clusters in obs."),
]


def check_annotated_file(data: Path, is_written: bool, out: Path | None, force: bool) -> None:
    """Raise InputError if ``labels.h5ad`` is to be written without an H5AD file as ``data``.

    InputError is also raised if ``data`` is the file ``labels.h5ad`` of the output folder ``out``
    (None for the default folder), which a fit removes with ``force``.
    """
    from nrprob.batch.formats import ANNOTATED

    if is_written and data.suffix.lower() != ".h5ad":
        raise InputError(
            f"--write-h5ad needs an H5AD file; got {data}; leave --write-h5ad out, since "
            "labels.csv has the clusters of other files"
        )
    folder = out or DEFAULT_FOLDER
    if force and data.name == ANNOTATED and data.parent.resolve() == folder.resolve():
        raise InputError(
            f"the data file is a result in the output folder; {data}; choose another folder with "
            "--out"
        )


def write_annotated_file(
    data: Path, folder: Path, model: Any, loaded: LoadedData, names: Sequence[Sequence[str]]
) -> list[Path]:
    """Write ``labels.h5ad`` to ``folder``; return its path, or nothing if it cannot be written.

    Parameters
    ----------
    data : the H5AD file of the data
    folder : output folder
    model : fitted estimator or Exploration
    loaded : the rows of the fit
    names : for every clustering, names of its clusters; empty for numbers
    """
    import anndata
    import numpy as np

    from nrprob.batch.formats import ANNOTATED
    from nrprob.data.annotated import annotate_rows

    path = folder / ANNOTATED
    hidden = path.with_name(f".{ANNOTATED}.part")
    try:
        cells = anndata.read_h5ad(data)
        left_out = loaded.origin["prepared"]["rows_left_out"]
        annotate_rows(cells, model, np.setdiff1d(np.arange(cells.n_obs), left_out), names=names)
        # A complete file replaces an earlier one.
        cells.write_h5ad(hidden)
        hidden.replace(path)
    except (OSError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        print_warning(f"{ANNOTATED} was not written; {reason}; labels.csv has the clusters")
        return []
    finally:
        with contextlib.suppress(OSError):
            hidden.unlink()
    return [path]
