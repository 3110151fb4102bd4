"""Where a command writes: never over what is there already, unless it is told to."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from nrprob.cli.terminal import note
from nrprob.exceptions import InputError

__all__ = ["Force", "Out", "Place", "find_place"]

Out = Annotated[
    Path | None,
    Option(
        help="Folder to write to; by default results, or one named after the time where that has "
        "results."
    ),
]
Force = Annotated[bool, Option("--force", help="Overwrite the results that --out has.")]

_DEFAULT = "results"


@dataclass
class Place:
    """A folder that results go to, and earlier results in it, which are to be overwritten."""

    folder: Path
    earlier: list[Path]

    def remove_others(self, written: Collection[Path]) -> None:
        """Remove those of the earlier results that have not been overwritten."""
        for path in self.earlier:
            if path not in written:
                path.unlink(missing_ok=True)


def find_place(
    out: Path | None, force: bool, names: Collection[str], others: Collection[str] = ()
) -> Place:
    """Choose the folder for results, and try whether it can be written to.

    Parameters
    ----------
    out : folder that was asked for
    force : whether results in it are overwritten
    names : of the files that are written
    others : patterns of files that are results as well

    Raises
    ------
    nrprob.exceptions.InputError
        If it cannot be written to, or has results that are to stay.
    """
    from nrprob.files import try_write

    folder = Path(_DEFAULT) if out is None else out
    found = (path for name in [*names, *others] for path in sorted(folder.glob(name)))
    earlier = [path for path in found if path.is_file()]
    if earlier and not force:
        if out is not None:
            raise InputError(
                f"the folder has results; {earlier[0]}; choose another with --out, or add --force "
                "to overwrite them"
            )
        folder, earlier = _fresh(), []
        note(f"{_DEFAULT} has results, which stay; these go to {folder}")
    for name in names:
        try_write(folder / name)
    return Place(folder, earlier)


def _fresh() -> Path:
    """A folder that is not there yet, named after the time."""
    stem = f"{_DEFAULT}-{time.strftime('%Y-%m-%d-%H%M%S')}"
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path, names) if not path.exists())
