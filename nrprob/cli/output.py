"""Choose output folders; existing results are overwritten only with ``--force``."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from nrprob.cli.terminal import note
from nrprob.exceptions import InputError

__all__ = ["Force", "Out", "Place", "find_place", "remove_others", "require_own"]

Out = Annotated[
    Path | None,
    Option(
        help="Folder to write to; by default results, or one named after the time where that has "
        "results."
    ),
]
Force = Annotated[bool, Option("--force", help="Overwrite the results that --out has.")]

_DEFAULT = Path("results")


@dataclass
class Place:
    """Where the results of a fit or of an exploration go: a folder, or one instead of ``results``.

    Attributes
    ----------
    out : the folder that was asked for; None for none
    force : whether results in it are overwritten
    """

    out: Path | None
    force: bool

    @contextlib.contextmanager
    def claimed(self) -> Iterator[Path]:
        """Have the folder alone while results are computed and written.

        Nothing is left there if they are not.

        Raises
        ------
        nrprob.exceptions.InputError
            If it has results that are to stay, or another command is about to write there.
        """
        from nrprob.files import claimed

        folder, why = self.out or _DEFAULT, ""
        with contextlib.ExitStack() as stack:
            if not stack.enter_context(claimed(folder)):
                if self.out is not None:
                    raise InputError(
                        f"another command is about to write there; {folder}; wait for it, or "
                        "choose another with --out"
                    )
                why = "is what another command writes to"
            elif has_results(folder, self.force):
                _refuse(self.out, self.force)
                why = "has results, which stay"
            if why:
                stack.close()
                folder = stack.enter_context(_fresh())
            yield folder
        if why:
            note(f"{_DEFAULT} {why}; these go to {folder}")


def find_place(out: Path | None, force: bool, names: Collection[str]) -> Place:
    """Choose the folder for results, and try whether files of these names can be written there.

    Parameters
    ----------
    out : folder that was asked for
    force : whether results in it are overwritten
    names : of the files that are written

    Raises
    ------
    nrprob.exceptions.InputError
        If it cannot be written to, or has results that are to stay.
    """
    from nrprob.files import try_write

    _refuse(out, force)
    folder = out or _DEFAULT
    for name in names:
        # Next to a folder of results, another one will be made.
        try_write(Path(name) if out is None and has_results(folder, force) else folder / name)
    return Place(out, force)


def has_results(folder: Path, force: bool = False) -> bool:
    """Whether a folder has results that a fit may not overwrite."""
    from nrprob.batch.formats import PLAN, results_in

    return (folder / PLAN).exists() or (not force and bool(results_in(folder)))


def _refuse(out: Path | None, force: bool) -> None:
    """Refuse a folder that was asked for and has results that are to stay."""
    from nrprob.batch.formats import PLAN, results_in

    if out is None or not has_results(out, force):
        return
    if (out / PLAN).exists():
        raise InputError(
            f"the folder is that of a model file; {out / PLAN}; choose another with --out"
        )
    raise InputError(
        f"the folder has results; {results_in(out)[0]}; choose another with --out, or add --force "
        "to overwrite them"
    )


def require_own(folder: Path, force: bool) -> None:
    """Refuse a folder for the results of a model file that has others.

    Raises
    ------
    nrprob.exceptions.InputError
    """
    from nrprob.batch.formats import PLAN, results_in

    if not (folder / PLAN).exists() and not force and (there := results_in(folder)):
        raise InputError(
            f"the folder has results of something else; {there[0]}; choose another with --out, or "
            "add --force to overwrite them"
        )


def remove_others(folder: Path, written: Collection[Path]) -> None:
    """Remove results of earlier fits and explorations that have not been overwritten."""
    from nrprob.batch.formats import results_in

    for path in results_in(folder):
        if path not in written:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _fresh() -> Iterator[Path]:
    """A folder that was not there, named after the time; it goes again if it stays empty."""
    stem = f"{_DEFAULT}-{time.strftime('%Y-%m-%d-%H%M%S')}"
    for name in itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2))):
        folder = Path(name)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            break
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
