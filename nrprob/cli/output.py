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

from nrprob.cli.terminal import print_note
from nrprob.exceptions import InputError

__all__ = [
    "DEFAULT_FOLDER", "Force", "Out", "OutputFolder", "find_output", "remove_others",
    "require_model_folder",
]  # fmt: skip

Out = Annotated[
    Path | None,
    Option(help="Output folder; by default results, or results-TIME if results exist there."),
]
Force = Annotated[bool, Option("--force", help="Overwrite existing results in the output folder.")]

DEFAULT_FOLDER = Path("results")


@dataclass
class OutputFolder:
    """Output folder of a fit or an exploration.

    Attributes
    ----------
    out : requested folder; None for ``results``, or for a new folder if ``results`` has results
    force : whether existing results are overwritten
    """

    out: Path | None
    force: bool

    @contextlib.contextmanager
    def claim_folder(self) -> Iterator[Path]:
        """Lock the folder while results are computed and written; yield its path.

        A failed computation leaves nothing in the folder.

        Raises
        ------
        nrprob.exceptions.InputError
            If the folder has results, or another command writes to it.
        """
        from nrprob.files import claimed

        folder, why = self.out or DEFAULT_FOLDER, ""
        with contextlib.ExitStack() as stack:
            if not stack.enter_context(claimed(folder)):
                if self.out is not None:
                    raise InputError(
                        f"another command writes to the output folder; {folder}; wait until that "
                        "command ends, or choose another folder with --out"
                    )
                why = "is in use by another command"
            elif has_results(folder, self.force):
                _refuse_existing(self.out, self.force)
                why = "has results already"
            if why:
                stack.close()
                folder = stack.enter_context(_create_folder())
            yield folder
        if why:
            print_note(f"{DEFAULT_FOLDER} {why}; the new results go to {folder}")


def find_output(out: Path | None, force: bool, names: Collection[str]) -> OutputFolder:
    """Choose the output folder, and check that files can be written there.

    Parameters
    ----------
    out : requested folder; None for the default
    force : whether existing results are overwritten
    names : names of the files that the command writes

    Raises
    ------
    nrprob.exceptions.InputError
        If the folder is not writable, or has results.
    """
    from nrprob.files import try_write

    _refuse_existing(out, force)
    folder = out or DEFAULT_FOLDER
    for name in names:
        # If the default folder has results, `claim_folder` makes another folder next to it.
        try_write(Path(name) if out is None and has_results(folder, force) else folder / name)
    return OutputFolder(out, force)


def has_results(folder: Path, force: bool = False) -> bool:
    """Whether a folder has results that a fit must not overwrite.

    If ``force`` is True, results of fits may be overwritten, but not results of a model file.
    """
    from nrprob.batch.formats import PLAN, results_in

    return (folder / PLAN).exists() or (not force and bool(results_in(folder)))


def _refuse_existing(out: Path | None, force: bool) -> None:
    """Raise InputError if the requested folder has results that must not be overwritten."""
    from nrprob.batch.formats import PLAN, results_in

    if out is None or not has_results(out, force):
        return
    if (out / PLAN).exists():
        raise InputError(
            f"the folder has results of a model file; {out / PLAN}; choose another folder with "
            "--out"
        )
    raise InputError(
        f"the folder has results; {results_in(out)[0]}; choose another folder with --out, or add "
        "--force to overwrite the results"
    )


def require_model_folder(folder: Path, force: bool) -> None:
    """Check that the folder of a model file has no results of another command.

    Raises
    ------
    nrprob.exceptions.InputError
        If the folder has such results, and ``force`` is False.
    """
    from nrprob.batch.formats import PLAN, results_in

    if not (folder / PLAN).exists() and not force and (existing := results_in(folder)):
        raise InputError(
            f"the folder has results of another command; {existing[0]}; choose another folder with "
            "--out, or add --force to overwrite the results"
        )


def remove_others(folder: Path, written: Collection[Path]) -> None:
    """Remove result files of earlier fits and explorations from a folder.

    The files in ``written`` stay, since the present command has written them.
    """
    from nrprob.batch.formats import results_in

    for path in results_in(folder):
        if path not in written:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _create_folder() -> Iterator[Path]:
    """Create a folder named after the current time; yield it, and remove it if it stays empty."""
    stem = f"{DEFAULT_FOLDER}-{time.strftime('%Y-%m-%d-%H%M%S')}"
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
