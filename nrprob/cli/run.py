"""The commands ``nrprob run`` and ``nrprob check``: run model files, or check them only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from nrprob.cli.data import command
from nrprob.cli.output import remove_others, require_own
from nrprob.cli.single import show
from nrprob.cli.terminal import console, in_one_line, note, say, warn, working
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
        Option(help="Folder to write to; with several files, one folder in it for each."),
    ] = None,
    force: Annotated[
        bool, Option("--force", help="Overwrite results of a fit that --out has.")
    ] = False,
    devices: Annotated[
        str | None,
        Option(help="Numbers (0,1), or a platform and how many (cpu, gpu:4). Default: all."),
    ] = None,
    only: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            help="Only fits with this method, table, repeat, run, or parameter; repeat to narrow.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        Option(
            metavar="ADDRESS",
            help="Of a dask cluster whose workers do the fits; local: processes on this machine.",
        ),
    ] = None,
    allow_large: _Large = False,
) -> None:
    """Do what model files say, or go on with it: what is finished is not done again."""
    plans = _read_plans(files)
    folders = _folders(plans, out)
    for folder in folders.values():
        require_own(folder, force)
    plans = _check_plans(plans, allow_large)
    from nrprob.batch import preflight, runner
    from nrprob.batch.cluster import connect
    from nrprob.batch.formats import results_in
    from nrprob.cli.progress import Bar

    chosen = None if scheduler else _devices(devices)
    failed = False
    for path, plan in plans:
        preflight.try_out(plan, folders[path], only or ())
    outdated = {folders[path] for path, plan in plans if _is_of_another(plan, folders[path])}
    for path, folder in folders.items():
        if folder in outdated:
            there = ", ".join(one.name for one in results_in(folder))
            note(f"{folder} has results of other fits; its {there} make way for those of {path}")
    try:
        with connect(scheduler, devices) as client:
            for path, plan in plans:
                with Bar(path.stem) as bar:
                    result = runner.run_plan(
                        plan,
                        folders[path],
                        devices=chosen,
                        only=only or (),
                        progress=bar,
                        scheduler=client,
                    )
                failed |= bool(result.failed)
                written = _conclude(plan, result)
                if folders[path] in outdated and (written or not plan.model.is_single):
                    remove_others(folders[path], written)
    except KeyboardInterrupt:
        console(stderr=True).print(
            "interrupted; what is finished is kept, and the same command goes on with it"
        )
        raise typer.Exit(130) from None
    if failed:
        raise typer.Exit(1)


@in_one_line()
def check(files: _Files, allow_large: _Large = False) -> None:
    """Check model files: keys, names, data and parameters; nothing is fitted or written."""
    from nrprob.batch.cost import estimate

    plans = _read_plans(files)
    for path, plan in plans:
        say(f"{path}: {estimate(plan)}")
    _check_plans(plans, allow_large)
    for path, plan in plans:
        sets = len({(c.case, c.repeat) for c in plan.cells})
        say(f"{path}: good; {len(plan.cells)} fits on {sets} data sets")


def _read_plans(files: list[Path]) -> list[tuple[Path, Plan]]:
    """Plans of all files, refused where that needs nothing heavy, and no data."""
    from nrprob.batch import formats, modelfile, plan

    plans, wrong = [], list[str]()
    for path in files:
        with _keeping(wrong, path):
            one = plan.expand(modelfile.read_model(path))
            if (data := one.model.data).file is not None:
                names = [*data.columns, *data.drop] if formats.is_table(data.file) else []
                there = formats.column_names(data.file)
                formats.require_columns([*names, *data.label_columns], there, data.file)
            plans.append((path, one))
    if wrong:
        raise InputError("\n".join(wrong))
    return plans


def _check_plans(plans: list[tuple[Path, Plan]], allow_large: bool) -> list[tuple[Path, Plan]]:
    """Try what needs data and estimators: a mistake in the last should not wait for the first.

    Returns the plans, which say where their results come from.
    """
    _check_files(plans, allow_large)
    from nrprob.batch import preflight
    from nrprob.batch.provenance import with_provenance

    checked, wrong = [], list[str]()
    for path, one in plans:
        with _keeping(wrong, path):
            for reason, count in preflight.check(one, allow_large=allow_large).items():
                warn(f"{path}: {count} of {len(one.cells)} fits will be skipped; {reason}")
            checked.append((path, with_provenance(one, path, command())))
    if wrong:
        raise InputError("\n".join(wrong))
    for path, one in checked:
        for name, tell in (("notes", note), ("warnings", warn)):
            for line in one.origin.get("prepared", {}).get(name, []):
                tell(f"{path}: {line}" if len(checked) > 1 else line)
    return checked


def _check_files(plans: list[tuple[Path, Plan]], allow_large: bool) -> None:
    """Refuse data that are too large, and files that do not serve, before heavy imports."""
    from nrprob.batch.cost import refuse_large
    from nrprob.batch.inputs import load_selected

    wrong: list[str] = []
    for path, one in plans:
        with _keeping(wrong, path):
            if not allow_large:
                refuse_large(one, methods=False)
            if one.model.data.file is not None:
                load_selected(one.model, one.cells[0].data)
    if wrong:
        raise InputError("\n".join(wrong))


@contextlib.contextmanager
def _keeping(wrong: list[str], path: Path) -> Iterator[None]:
    """Keep what is wrong with one file, to tell it with what is wrong with others."""
    try:
        yield
    except InputError as error:
        lines = str(error).splitlines()
        wrong += [line if line.startswith(str(path)) else f"{path}: {line}" for line in lines]


def _folders(plans: list[tuple[Path, Plan]], out: Path | None) -> dict[Path, Path]:
    """Folder of the results of every file, which can be written to."""
    from nrprob.batch.modelfile import default_folder
    from nrprob.files import try_write

    folders: dict[Path, Path] = {}
    for path, plan in plans:
        folder = out / path.stem if out and len(plans) > 1 else out
        folder = folder or default_folder(plan.model, path)
        for other, taken in folders.items():
            if other != path and taken.resolve() == folder.resolve():
                raise InputError(
                    f"two model files have the same folder of results; {other} and {path}: "
                    f"{folder}; rename one, or run each by itself with --out"
                )
        try_write(folder / "plan.json")
        folders[path] = folder
    return folders


def _is_of_another(plan: Plan, folder: Path) -> bool:
    """Whether a folder has files of a single fit or run, which is not what a plan asks for."""
    from nrprob.batch.formats import PAGE, PLAN, results_in
    from nrprob.batch.store import read_plan

    if not results_in(folder) or not (folder / PLAN).exists():
        return bool(results_in(folder))
    try:
        before = read_plan(folder)
    except InputError:  # that plan was changed, and is written again; several fits have one page
        return not plan.model.is_single and results_in(folder) != [folder / PAGE]
    return before.model.is_single and {cell.id for cell in before.cells} != {
        cell.id for cell in plan.cells
    }


def _devices(text: str | None) -> list[Any] | None:
    """Devices that --devices names: numbers, or a platform and how many of its devices."""
    if text is None:
        return None
    import jax

    if all(part.strip().isdigit() for part in text.split(",")):
        result = {str(device.id): device for device in jax.devices()}
        wanted = dict.fromkeys(str(int(part)) for part in text.split(","))
        if not wanted.keys() <= result.keys():
            raise InputError(f"no such device; --devices {text}; there are {', '.join(result)}")
        return [result[i] for i in wanted]
    name, _, number = text.partition(":")
    try:
        devices = jax.devices(name)
    except RuntimeError as error:
        raise InputError(
            f"no such device; --devices {text}; JAX sees {jax.devices()[0].platform}"
        ) from error
    if number and (not number.isdigit() or not 0 < int(number) <= len(devices)):
        raise InputError(
            f"a number of devices is wrong; --devices {text}; choose from 1 to {len(devices)}"
        )
    return devices[: int(number)] if number else devices


def _conclude(plan: Plan, result: Outcome) -> list[Path]:
    """Say what a run did; of a single one that is finished, what it found.

    That goes to files, of which those are returned that a fit has, too.
    """
    from nrprob.batch.fit_files import save_fit
    from nrprob.batch.fit_result import plan_result
    from nrprob.batch.report import write_report
    from nrprob.batch.store import Store

    for reason, count in result.failed.items():
        warn(f"{count} fits failed: {reason}")
    dataset = Store(result.folder).gather()
    if not dataset.sizes.get("cell"):
        return []
    if plan.model.is_single and dataset.sizes["cell"] == len(plan.cells):
        one = plan_result(plan, dataset)
        with working("writing the results"):
            save_fit(one, result.folder, plan.model.report.picture)
        show(one)
        return one.files
    say(
        f"{plan.model.title or result.folder}: {result.finished} fits done, "
        f"{result.reused} done before, {result.compiled} programs compiled; "
        f"{result.folder / 'results.nc'}"
    )
    with working("writing the report"):
        page = write_report(result.folder)
    say(f"wrote {page}")
    return [page]
