"""The commands ``nrprob run`` and ``nrprob check``: execute or only validate model files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from nrprob.cli.data import command_line
from nrprob.cli.output import remove_others, require_model_folder
from nrprob.cli.single import show_fit
from nrprob.cli.terminal import (
    get_console,
    in_one_line,
    print_note,
    print_result,
    print_warning,
    show_spinner,
)
from nrprob.exceptions import InputError

if TYPE_CHECKING:
    from nrprob.batch.plan import Plan
    from nrprob.batch.runner import Outcome

__all__ = ["check", "run"]

_Files = Annotated[list[Path], Argument(help="Model files (TOML).", metavar="FILE...")]
_Large = Annotated[
    bool, Option("--allow-large", help="Allow fits that need more memory than the machine has.")
]


@in_one_line()
def run(
    files: _Files,
    out: Annotated[
        Path | None,
        Option(help="Output folder; several files get one subfolder each."),
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite results of a fit in --out.")] = False,
    devices: Annotated[
        str | None,
        Option(
            help="Devices: numbers (0,1), a platform (cpu), or a platform and a count (gpu:4). "
            "Default: all."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            help="Compute only fits with this value of method, table, repeat, run or a parameter; "
            "repeatable.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        Option(
            "--quick",
            help="Compute a fifth of the data sets or, with one data set, of the runs.",
        ),
    ] = False,
    scheduler: Annotated[
        str | None,
        Option(
            metavar="ADDRESS",
            help="Address of a dask cluster for the fits; local: processes on this machine.",
        ),
    ] = None,
    allow_large: _Large = False,
) -> None:
    """Run model files; a run that was interrupted is resumed, without repeating finished fits."""
    # Check all files and output folders before the first fit.
    plans = _read_plans(files)
    folders = _result_folders(plans, out)
    for folder in folders.values():
        require_model_folder(folder, force)
    plans = _check_plans(plans, allow_large)
    from nrprob.batch import preflight, runner
    from nrprob.batch.cluster import connect
    from nrprob.batch.formats import results_in
    from nrprob.cli.progress import Bar

    chosen = None if scheduler else _select_devices(devices)
    failed = False
    for path, plan in plans:
        preflight.try_out(plan, folders[path], only or (), quick)
    # A folder may have files of a single run with other fits; the new results replace them.
    outdated = {folders[path] for path, plan in plans if _is_of_another(plan, folders[path])}
    for path, folder in folders.items():
        if folder in outdated:
            names = ", ".join(file.name for file in results_in(folder))
            print_note(f"{folder} has results of other fits; the results of {path} replace {names}")
    # Run the plans one after another; an interrupt keeps finished fits.
    try:
        with connect(scheduler, devices) as client:
            for path, plan in plans:
                with Bar(path.stem) as bar:
                    result = runner.run_plan(
                        plan,
                        folders[path],
                        devices=chosen,
                        only=only or (),
                        quick=quick,
                        progress=bar,
                        scheduler=client,
                    )
                failed |= bool(result.failed)
                written = _report_results(plan, result)
                if folders[path] in outdated and (written or not plan.model.is_single):
                    remove_others(folders[path], written)
    except KeyboardInterrupt:
        get_console(stderr=True).print(
            "interrupted; finished fits are kept; repeat the command to resume the run"
        )
        raise typer.Exit(130) from None
    if failed:
        raise typer.Exit(1)


@in_one_line()
def check(files: _Files, allow_large: _Large = False) -> None:
    """Validate model files: keys, names, data and parameters, without a fit."""
    from nrprob.batch.cost import estimate

    plans = _read_plans(files)
    for path, plan in plans:
        print_result(f"{path}: {estimate(plan)}")
    _check_plans(plans, allow_large)
    for path, plan in plans:
        sets = len({(c.case, c.repeat) for c in plan.cells})
        print_result(f"{path}: valid; {len(plan.cells)} fits on {sets} data sets")


def _read_plans(files: list[Path]) -> list[tuple[Path, Plan]]:
    """Read and expand model files; return pairs of the path and the plan.

    The checks read only the names of columns, and import no package that loads slowly.
    """
    from nrprob.batch import formats, modelfile, plan

    plans, wrong = [], list[str]()
    for path in files:
        with _collect_errors(wrong, path):
            entry = plan.expand(modelfile.read_model(path))
            if (data := entry.model.data).file is not None:
                names = [*data.columns, *data.drop] if formats.is_table(data.file) else []
                available = formats.column_names(data.file)
                formats.require_columns([*names, *data.label_columns], available, data.file)
            plans.append((path, entry))
    if wrong:
        raise InputError("\n".join(wrong))
    return plans


def _check_plans(plans: list[tuple[Path, Plan]], allow_large: bool) -> list[tuple[Path, Plan]]:
    """Check data and estimators of all plans before the first plan runs.

    Returns the pairs of the path and the plan, with the provenance of the results in the plan.
    """
    _check_files(plans, allow_large)
    from nrprob.batch import preflight
    from nrprob.batch.provenance import with_provenance

    checked, wrong = [], list[str]()
    for path, entry in plans:
        with _collect_errors(wrong, path):
            for reason, count in preflight.check(entry, allow_large=allow_large).items():
                print_warning(
                    f"{path}: {count} of {len(entry.cells)} fits will be skipped; {reason}"
                )
            checked.append((path, with_provenance(entry, path, command_line())))
    if wrong:
        raise InputError("\n".join(wrong))
    for path, entry in checked:
        for name, print_line in (("notes", print_note), ("warnings", print_warning)):
            for line in entry.origin.get("prepared", {}).get(name, []):
                print_line(f"{path}: {line}" if len(checked) > 1 else line)
    return checked


def _check_files(plans: list[tuple[Path, Plan]], allow_large: bool) -> None:
    """Raise InputError if data cannot be read, or are too large unless ``allow_large``.

    The function imports no package that loads slowly.
    """
    from nrprob.batch.cost import refuse_large
    from nrprob.batch.inputs import load_selected

    wrong: list[str] = []
    for path, entry in plans:
        with _collect_errors(wrong, path):
            if not allow_large:
                refuse_large(entry, methods=False)
            if entry.model.data.file is not None:
                load_selected(entry.model, entry.cells[0].data)
    if wrong:
        raise InputError("\n".join(wrong))


@contextlib.contextmanager
def _collect_errors(wrong: list[str], path: Path) -> Iterator[None]:
    """Append an InputError raised inside the ``with`` to ``wrong``, with the path of the file.

    The errors of all files can then be reported together.
    """
    try:
        yield
    except InputError as error:
        lines = str(error).splitlines()
        wrong += [line if line.startswith(str(path)) else f"{path}: {line}" for line in lines]


def _result_folders(plans: list[tuple[Path, Plan]], out: Path | None) -> dict[Path, Path]:
    """Return the output folder of every model file by its path; check that it is writable."""
    from nrprob.batch.modelfile import default_folder
    from nrprob.files import try_write

    folders: dict[Path, Path] = {}
    for path, plan in plans:
        folder = out / path.stem if out and len(plans) > 1 else out
        folder = folder or default_folder(plan.model, path)
        for other, taken in folders.items():
            if other != path and taken.resolve() == folder.resolve():
                raise InputError(
                    f"two model files have the same output folder; {other} and {path}: "
                    f"{folder}; rename one, or run each by itself with --out"
                )
        try_write(folder / "plan.json")
        folders[path] = folder
    return folders


def _is_of_another(plan: Plan, folder: Path) -> bool:
    """Whether a folder has files of ``nrprob fit`` that belong to other fits than ``plan``.

    Runs of model files with one data set and one fit of every method also write such files.
    """
    from nrprob.batch.formats import PAGE, PLAN, results_in
    from nrprob.batch.store import read_plan

    if not results_in(folder) or not (folder / PLAN).exists():
        return bool(results_in(folder))
    try:
        before = read_plan(folder)
    except InputError:
        # The plan was changed, and the run writes it again. The folder of a plan with several fits
        # has no file of a single run but the page.
        return not plan.model.is_single and results_in(folder) != [folder / PAGE]
    return before.model.is_single and {cell.id for cell in before.cells} != {
        cell.id for cell in plan.cells
    }


def _select_devices(text: str | None) -> list[Any] | None:
    """Return the devices of JAX that the text of --devices names by numbers, or by platform.

    The result is None without this option.
    """
    if text is None:
        return None
    import jax

    if all(part.strip().isdigit() for part in text.split(",")):
        result = {str(device.id): device for device in jax.devices()}
        requested = dict.fromkeys(str(int(part)) for part in text.split(","))
        if not requested.keys() <= result.keys():
            raise InputError(
                f"no such device; --devices {text}; choose from devices {', '.join(result)}"
            )
        return [result[i] for i in requested]
    name, _, number = text.partition(":")
    try:
        devices = jax.devices(name)
    except RuntimeError as error:
        raise InputError(
            f"no such device; --devices {text}; JAX sees {jax.devices()[0].platform}"
        ) from error
    if number and (not number.isdigit() or not 0 < int(number) <= len(devices)):
        raise InputError(
            f"the number of devices is invalid; --devices {text}; choose from 1 to {len(devices)}"
        )
    return devices[: int(number)] if number else devices


def _report_results(plan: Plan, result: Outcome) -> list[Path]:
    """Print a summary of a run and write the report; return the paths of the written files.

    For a model file with one data set and one fit of every method, a finished run also writes the
    files of ``nrprob fit``.
    """
    from nrprob.batch.fit_files import save_fit
    from nrprob.batch.fit_result import plan_result
    from nrprob.batch.report import write_report
    from nrprob.batch.store import Store

    for reason, count in result.failed.items():
        print_warning(f"{count} fits failed: {reason}")
    dataset = Store(result.folder).gather()
    if not dataset.sizes.get("cell"):
        return []
    if plan.model.is_single and dataset.sizes["cell"] == len(plan.cells):
        fit = plan_result(plan, dataset)
        with show_spinner("writing the results"):
            save_fit(fit, result.folder, plan.model.report.picture)
        show_fit(fit)
        return fit.files
    print_result(
        f"{plan.model.title or result.folder}: {result.finished} fits done, "
        f"{result.reused} done before, {result.compiled} programs compiled; "
        f"{result.folder / 'results.nc'}"
    )
    with show_spinner("writing the report"):
        page = write_report(result.folder)
    print_result(f"wrote {page}")
    return [page]
