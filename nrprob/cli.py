"""The command line: ``nrprob fit``, ``run``, ``check``, ``report`` and ``methods``.

Results go to the standard output, progress and complaints to the standard error. What a user can
mend is one line and exit code 2. Anything heavy is imported inside a command.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    import numpy as np

    from nrprob.batch.plan import Plan
    from nrprob.batch.runner import Outcome
    from nrprob.batch.single import Single

__all__ = ["app"]

app = typer.Typer(
    help="Find a clustering that is not the one you already know.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _console(stderr: bool = False) -> Console:
    # Made on use: a test or a caller may have replaced the standard streams since the import.
    return Console(stderr=stderr, soft_wrap=True)


@contextlib.contextmanager
def _progress(line: str) -> Iterator[None]:
    """Show a spinner, what is going on, and for how long; nothing where nobody watches."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = _console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(line, total=None)
        yield


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Have an interrupt arrive wherever it comes.

    Python forgets what is raised in finalizers and in callbacks of its garbage collection, of which
    JAX has one. An interrupt that was forgotten is sent again, when that is likely to be over.
    """
    told = sys.unraisablehook
    waiting: list[threading.Timer] = []

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            told(unraisable)
            return
        waiting.append(threading.Timer(0.1, _thread.interrupt_main))
        waiting[-1].daemon = True
        waiting[-1].start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = told
        for timer in waiting:
            timer.cancel()


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """What the user can mend ends as one line and exit code 2; a defect of ours keeps its trace."""
    try:
        with _interruptible():
            yield
    except (ValueError, TypeError) as error:
        if os.environ.get("NRPROB_TRACEBACK") or not _is_refusal(error):
            raise
        for line in str(error).strip().splitlines():
            _console(stderr=True).print(f"[bold red]error:[/] {escape(line)}", highlight=False)
        raise typer.Exit(2) from None


def _is_refusal(error: Exception) -> bool:
    """Say whether our code or scikit-learn's checks raised it, and not a library below."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_by = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return raised_by.split(".")[0] in ("nrprob", "sklearn")


def _show(run: Single) -> None:
    from rich import box
    from rich.table import Table

    from nrprob.batch.fits import cluster_sizes

    console = _console()
    if run.title:
        console.print(f"[bold]{escape(run.title)}[/]", highlight=False)
    rows, features = run.table.X.shape
    fit = run.fits[0]
    if fit.refusal:
        found = f"cannot keep its constraints: {fit.refusal}"
    else:
        views = [fit.labels] if fit.labels.ndim == 1 else fit.labels.T
        sizes = " and ".join(", ".join(map(str, cluster_sizes(view))) for view in views)
        found = (
            f"found {fit.n_clusters} clusters of {sizes} rows in {fit.seconds:.1f} s "
            f"(objective {fit.objective:.2f} nats)"
        )
    console.print(
        f"{rows} rows, {features} features; {escape(fit.title)} {escape(found)}", highlight=False
    )
    if fit.scores:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("agreement")
        for name in fit.scores:
            known = "\n(known)" if any(name.endswith(f" of {z}") for z in run.known) else ""
            # A name breaks before what it is about, so that many of them fit beside each other.
            head = escape(name).replace(" of ", "\nof ")
            table.add_column(f"{head}{known}", justify="right", no_wrap=True)
        for one in run.fits:
            # NaN is what a method does not have, such as views.
            shown = (f"{value:.3f}" if value == value else "–" for value in one.scores.values())
            table.add_row(escape(one.title), *shown)
        console.print(table)
    for one in run.fits:
        for message in one.warnings:
            _warn(f"{one.title}: {message.strip().splitlines()[0]}")
    for path in run.files:
        console.print(f"wrote {escape(str(path))}", highlight=False)


def _warn(line: str) -> None:
    _console(stderr=True).print(f"[yellow]warning:[/] {escape(line)}", highlight=False)


def _split(text: str, data: Path) -> tuple[Path, str]:
    """Split FILE:COLUMN; a bare COLUMN is one of DATA."""
    file, _, column = text.rpartition(":")
    if not column:
        from nrprob.exceptions import InputError

        raise InputError(f"a labeling is FILE:COLUMN; {text!r}; name the column after the colon")
    return (Path(file) if file else data), column


def _value(text: str) -> Any:
    """Value of --set: TOML where it is, else the text as it stands."""
    if text.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text.lower()]
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _wanted(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Partial labels as integers with -1 where unknown, and the names of the classes."""
    import numpy as np
    import pandas as pd

    unknown = pd.isna(values) | np.isin(np.asarray(values, dtype=str), ("", "-1", "-1.0"))
    # A column of whole numbers with gaps is read as real numbers: 1.0 is the class "1".
    known = np.asarray(values)[~unknown]
    names = np.asarray([f"{v:g}" if isinstance(v, float) else str(v) for v in known])
    classes, codes = np.unique(names, return_inverse=True)
    y = np.full(len(values), -1)
    y[~unknown] = codes
    return y, classes.tolist()


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(help="Rows: a CSV, TSV, Parquet or NPZ file.")],
    known: Annotated[
        list[str] | None,
        typer.Option(
            help="What is known, FILE:COLUMN (FILE:KEY for NPZ; COLUMN alone is one of DATA). "
            "Repeat for several labelings."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="Wanted labels of some rows, FILE:COLUMN; empty or -1 where unknown."),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(help="A labeling to compare the result with, FILE:COLUMN; never used to fit."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="See `nrprob methods`; auto looks at the data, and says why.")
    ] = "auto",
    k: Annotated[
        int | None,
        typer.Option(
            "--k", help="Number of clusters, 2 by default; the most, where it is sampled."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("results"),
    columns: Annotated[
        str | None, typer.Option(help="Feature columns, separated by commas; default all numeric.")
    ] = None,
    drop: Annotated[
        str | None, typer.Option(help="Columns to leave out, separated by commas.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="auto, multinomial, bernoulli or gaussian.")
    ] = None,
    solver: Annotated[
        str | None, typer.Option(help="anneal, sequential, batched or agglomerative.")
    ] = None,
    n_init: Annotated[int | None, typer.Option(help="Number of restarts.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the run repeatable.")] = 0,
    standardize: Annotated[
        bool, typer.Option(help="Give every feature mean 0 and standard deviation 1.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other parameter of the method."),
    ] = None,
    picture: Annotated[bool, typer.Option(help="Draw summary.png.")] = True,
) -> None:
    """Cluster the rows of a file, beyond what is known about them."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    with _one_line_errors():
        from nrprob.batch import fits, plan, registry, single, sources, tables
        from nrprob.exceptions import InputError
        from nrprob.files import try_write

        chosen = None if method.lower() == "auto" else registry.method(method)
        parameters: dict[str, Any] = {"random_state": seed}
        if chosen is not None and hasattr(chosen.load()(), "max_clusters"):
            parameters |= {} if k is None else {"max_clusters": k}
        else:
            parameters["n_clusters"] = 2 if k is None else k
        given = {"features": features, "solver": solver, "n_init": n_init}
        parameters |= {name: value for name, value in given.items() if value is not None}
        for setting in settings or []:
            name, equals, text = setting.partition("=")
            if not equals:
                raise InputError(f"a setting is NAME=VALUE; --set {setting}; add the value")
            parameters[name.strip()] = _value(text.strip())
        plan.check_seed(parameters["random_state"], "--seed")
        if known and chosen and not chosen.takes_known:
            raise InputError(
                f"{method} takes no known structure; --known {known[0]}; "
                "use --method auto, or --compare to see how they agree"
            )

        shown = "summary.png" if picture else None
        for name in single.names(shown):
            try_write(out / name)
        with _progress(f"reading {data.name}"):
            places = {
                role: [_split(text, data) for text in texts]
                for role, texts in (
                    ("known", known or []),
                    ("labels", [labels] if labels else []),
                    ("compare", compare or []),
                )
            }
            everything = [place for group in places.values() for place in group]
            inside = [column for file, column in everything if _same(file, data)]
            table = tables.read(
                data,
                columns=_listed(columns),
                drop=[*_listed(drop), *inside] if data.suffix != ".npz" else _listed(drop),
            )
            sources.require_numbers(table)
            if standardize:
                from sklearn.preprocessing import StandardScaler

                table.X = StandardScaler(with_mean=not hasattr(table.X, "nnz")).fit_transform(
                    table.X
                )

            n = table.X.shape[0]
            known_arrays, names = [], []
            for file, column in places["known"]:
                values = _checked(tables.read_column(file, column), n, f"--known {column}")
                # A float matrix is continuous known structure: what to do is the method's business.
                if values.ndim == 1:
                    values = tables.as_labels(values, f"--known {column}")
                    names.append(column if column not in table.labelings else f"{file}:{column}")
                    table.labelings[names[-1]] = values
                known_arrays.append(values)
            for file, column in places["compare"]:
                values = _checked(tables.read_column(file, column), n, f"--compare {column}")
                name = column if column not in table.labelings else f"{file}:{column}"
                table.labelings[name] = tables.as_labels(values, f"--compare {column}")
            y = None
            for file, column in places["labels"]:
                y, classes = _wanted(
                    _checked(tables.read_column(file, column), n, f"--labels {column}")
                )
        if table.left_out:
            _console(stderr=True).print(
                f"note: not numeric and left out: {escape(', '.join(table.left_out))}",
                highlight=False,
            )
        if y is not None:
            legend = ", ".join(f"{c} = {escape(name)}" for c, name in enumerate(classes))
            _console(stderr=True).print(f"note: wanted classes: {legend}", highlight=False)
        if len(known_arrays) > 1 and any(z.ndim > 1 for z in known_arrays):
            raise InputError(
                "several --known have to be labelings, one column each; one of them is a matrix; "
                "give the matrix alone"
            )

        known_array = sources.known_array(known_arrays)
        if chosen is None:
            from nrprob.advice import recommend

            model = recommend(table.X, known=known_array, y=y, n_clusters=parameters["n_clusters"])
            method, chosen = registry.entry(type(model))
            parameters = model.get_params(deep=False) | parameters
            _console(stderr=True).print(f"note: {escape(model.reason_)}", highlight=False)
        with _progress(f"fitting {chosen.class_name}"):
            fitted = fits.fit_method(method, parameters, table.X, known_array, y=y, where="--set ")
        fits.score(fitted, table.labelings, fits.default_measures([*table.labelings]))
        result = single.Single("", table, names, [fitted])
        with _progress("writing the results"):
            single.save(result, out, shown)
        _show(result)


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _checked(values: np.ndarray, n: int, what: str) -> np.ndarray:
    if len(values) != n:
        from nrprob.exceptions import InputError

        raise InputError(
            f"{what} does not go with the data; {len(values)} values for {n} rows; "
            "give one value per row, in the same order"
        )
    return values


_Files = Annotated[list[Path], typer.Argument(help="Model files (TOML).", metavar="FILE...")]


def _devices(text: str | None) -> list[Any]:
    """Devices that --devices names: numbers, or a platform and how many of its devices."""
    import jax

    from nrprob.exceptions import InputError

    if text is None:
        return jax.devices()
    if all(part.strip().isdigit() for part in text.split(",")):
        found = {device.id: device for device in jax.devices()}
        wanted = [int(part) for part in text.split(",")]
        missing = [str(i) for i in wanted if i not in found]
        if missing:
            raise InputError(
                f"no such device; --devices {text}; there are {', '.join(map(str, found))}"
            )
        return [found[i] for i in dict.fromkeys(wanted)]
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


class _Bar:
    """Progress of a batch run: a bar with the time left, or now and then a line."""

    def __init__(self, title: str):
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        self._title = title
        self._console = _console(stderr=True)
        # The text at the end is the first to give way where the terminal is narrow.
        rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        columns = (
            TextColumn("[bold]{task.fields[title]}", table_column=Column(no_wrap=True)),
            BarColumn(20, table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            # Fits of different methods take different times: look far back.
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            TextColumn("left; {task.description}", table_column=rest),
        )
        self._bar = Progress(
            *columns, console=self._console, speed_estimate_period=600, expand=True
        )
        self._began = self._said = time.monotonic()
        self._done = self._total = self._before = 0

    def __enter__(self) -> _Bar:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def start(self, total: int, finished: int) -> None:
        self._total, self._done, self._before = total, finished, finished
        self._task = self._bar.add_task(
            "compiling", total=total, completed=finished, title=self._title
        )
        if finished:
            self.say(f"{finished} of {total} fits had been finished before")

    def advance(self, cells: int, what: str) -> None:
        self._done += cells
        self._bar.update(self._task, advance=cells, description=what)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._said > 30:
            self._said = now
            new = max(self._done - self._before, 1)
            left = (now - self._began) / new * (self._total - self._done)
            self.say(f"{self._done} of {self._total} fits, about {left:.0f} s left")

    def say(self, line: str) -> None:
        self._console.print(f"{escape(self._title)}: {escape(line)}", highlight=False)


@app.command()
def run(
    files: _Files,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to; with several files, one folder in it for each."),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(help="Numbers (0,1), or a platform and how many (cpu, gpu:4). Default: all."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Only fits with this method, table, repeat, run, or parameter; repeat to narrow.",
        ),
    ] = None,
) -> None:
    """Do what model files say, or go on with it: what is finished is not done again."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    with _one_line_errors():
        from nrprob.batch import runner

        plans = _checked_plans(files)
        chosen = _devices(devices)
        failed = False
        folders = []
        for path, plan in plans:
            folder = out / path.stem if out and len(files) > 1 else out
            folder = folder or runner.default_folder(plan.model, path) or Path("results")
            runner.try_out(plan, folder, only or ())
            folders.append(folder)
        for (path, plan), folder in zip(plans, folders, strict=True):
            try:
                with _Bar(path.stem) as bar:
                    result = runner.run_plan(
                        plan, folder, devices=chosen, only=only or (), progress=bar
                    )
            except KeyboardInterrupt:
                _console(stderr=True).print(
                    "interrupted; what is finished is kept, and the same command goes on with it"
                )
                raise typer.Exit(130) from None
            failed |= bool(result.failed)
            _conclude(plan, result)
        if failed:
            raise typer.Exit(1)


def _checked_plans(files: list[Path]) -> list[tuple[Path, Plan]]:
    """Plans of all files: a mistake in the last should not wait for the first to finish."""
    from nrprob.batch import modelfile, plan, runner
    from nrprob.exceptions import InputError

    plans, wrong = [], []
    for path in files:
        try:
            one = plan.expand(modelfile.read_model(path))
            for reason, count in runner.check(one.model, one).items():
                _warn(f"{path}: {count} of {len(one.cells)} fits will be skipped; {reason}")
            plans.append((path, one))
        except InputError as error:
            lines = str(error).splitlines()
            wrong += [line if line.startswith(str(path)) else f"{path}: {line}" for line in lines]
    if wrong:
        raise InputError("\n".join(wrong))
    return plans


def _conclude(plan: Plan, result: Outcome) -> None:
    """Say what a run did; of a single one, what it found."""
    from nrprob.batch import runner
    from nrprob.batch.single import read, save

    for reason, count in result.failed.items():
        _warn(f"{count} fits failed: {reason}")
    dataset = runner.finish(result.folder)
    if not dataset.sizes.get("cell"):
        return
    if plan.model.single and not result.skipped and not result.failed:
        one = read(plan, dataset)
        with _progress("writing the results"):
            save(one, result.folder, plan.model.report.picture)
        _show(one)
        return
    _console().print(
        f"{escape(plan.model.title or str(result.folder))}: {result.finished} fits done, "
        f"{result.found} found done, {result.compiled} programs compiled; "
        f"{escape(str(result.folder / 'results.nc'))}; "
        f"see `nrprob report {escape(str(result.folder))}`",
        highlight=False,
    )


@app.command()
def check(files: _Files) -> None:
    """Check model files: keys, names, data and parameters; nothing is fitted or written."""
    with _one_line_errors():
        for path, plan in _checked_plans(files):
            sets = len({(c.case, c.repeat) for c in plan.cells})
            _console().print(
                f"{escape(str(path))}: good; {len(plan.cells)} fits on {sets} data sets",
                highlight=False,
            )


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(help="What `nrprob run` wrote to, or a folder of such folders.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write; report.html in FOLDER by default.")
    ] = None,
) -> None:
    """Write results as one HTML page: tables beside published values, figures, timing."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    with _one_line_errors():
        from nrprob.batch.report import write_report

        with _progress("writing the report"):
            path = write_report(folder, out)
        _console().print(f"wrote {escape(str(path))}", highlight=False)


@app.command()
def methods() -> None:
    """List the methods: what each is for, and its solvers (the first is the default)."""
    from rich.table import Table

    from nrprob.batch.registry import METHODS

    table = Table()
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("class", no_wrap=True)
    table.add_column("finds")
    table.add_column("--known", no_wrap=True)
    table.add_column("solvers")
    for name, one in METHODS.items():
        known = "yes" if one.takes_known else "no"
        table.add_row(name, one.class_name, one.purpose, known, ", ".join(one.solvers))
    Console().print(table)


def _version(wanted: bool) -> None:
    if wanted:
        import nrprob

        typer.echo(f"nrprob {nrprob.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Find a clustering that is not the one you already know."""


if __name__ == "__main__":
    app()
