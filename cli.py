"""Command line of showerstack: ``python cli.py --help``.

Each command parses its arguments, calls one function of a package and prints what it returns. Packages are imported
inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import io
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from showers.execution.failures import told
from showers.execution.progress import bar
from showers.execution.terminal import PlainConsole
from showers.schema import InputError, task_named

CONTINUES = ("simulate", "features", "stack", "predict", "demo", "download", "convert")
"""Commands that keep finished parts: given again after an interruption, they go on."""


class Expanding(TyperCommand):
    """A command in whose paths ``~`` is the home folder, also where the shell leaves it (``--run=~/runs/a``)."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command."""
        for name, given in ctx.params.items():
            if isinstance(given, Path):
                ctx.params[name] = given.expanduser()
            elif isinstance(given, list | tuple):
                ctx.params[name] = [one.expanduser() if isinstance(one, Path) else one for one in given]
        return super().invoke(ctx)


class App(typer.Typer):
    """The commands and what is common to them."""

    def command(self, *names: Any, **options: Any) -> Any:
        """Register a function as a command."""
        return super().command(*names, **{"cls": Expanding, **options})


class Commands(TyperGroup):
    """All commands; the one place where what leaves a command becomes a line and an exit code."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run a command; what the user can mend is told in one line with exit code 2."""

        def interrupted() -> str:
            done = ctx.invoked_subcommand in CONTINUES
            return "interrupted: " + ("give the same command again to go on" if done else "nothing was changed")

        with told(interrupted):
            return super().invoke(ctx)


app = App(
    name="cli.py",
    cls=Commands,
    help="Composition and gamma scores of air showers from raw detector-array grids, honestly measured.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
console = PlainConsole()


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            console.print(f"showerstack {version('showerstack')}")
        except PackageNotFoundError:
            raise InputError("showerstack is not installed: run make env or pip install -e .") from None
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options of the program itself."""


class TaskName(StrEnum):
    """The benchmark's two tasks."""

    composition = "composition"
    gamma = "gamma"


class Device(StrEnum):
    """Where numerical work runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Model(StrEnum):
    """Hadronic interaction model of the simulation."""

    qgs = "qgs"
    epos = "epos"
    sibyll = "sibyll"
    mix = "mix"


class TrainCuts(StrEnum):
    """Selection of simulated training events."""

    none = "none"
    test = "test"


class Preset(StrEnum):
    """How much time a run may take."""

    quick = "quick"
    good = "good"
    best = "best"


SeedOption = Annotated[int, typer.Option(help="Same seed, same result.")]
DeviceOption = Annotated[Device, typer.Option(help="auto uses the GPU if one answers.")]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Processes; default: all cores.")]


@app.command()
def simulate(
    task: Annotated[TaskName | None, typer.Option(help="Which sets to make.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that gets {task}_train and {task}_test.")] = Path("data"),
    train: Annotated[int, typer.Option(min=1, help="Training events written.")] = 30_000,
    test: Annotated[int, typer.Option(min=1, help="Test events written (always under the test's cuts).")] = 12_000,
    seed: SeedOption = 1,
    model: Annotated[Model, typer.Option(help="Hadronic model; mix as in the benchmark's v2 protocol.")] = Model.mix,
    train_cuts: Annotated[TrainCuts, typer.Option(help="none as in v2, or the test's cuts.")] = TrainCuts.none,
    world: Annotated[str, typer.Option(help="default, harder, easier, or a TOML file of settings.")] = "default",
    reuse: Annotated[int, typer.Option(min=1, help="Throw each shower this often, at different cores.")] = 1,
    workers: WorkersOption = None,
    overwrite: Annotated[bool, typer.Option(help="Replace existing sets.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Write raw NPZ archives instead: TRAIN events a model.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare the world with the real data's facts instead.")] = (
        False
    ),
) -> None:
    """Simulate a training and a test set in the benchmark's file format.

    With --raw the public data's raw archives are written instead, with arrival times, all columns and no cuts.
    With --check nothing is written: every known fact of the real data is printed beside its simulated value, and the
    exit code is 1 if one is outside its tolerance.

    Example: [bold]python cli.py simulate --task gamma --out data --train 20000 --test 5000 --train-cuts test[/bold]
    """
    if check:
        from showers.simulation.settings import load_settings
        from showers.simulation.validation.check import realism, rendered

        facts = realism(load_settings(world), seed=seed, workers=workers, bars=bar)
        console.print(rendered(facts))
        raise typer.Exit(0 if facts["ok"].all() else 1)
    if task is None:
        raise InputError("say which sets to simulate: --task composition or --task gamma")
    if raw:
        from showers.simulation.raw import simulate_raw

        options = {"seed": seed, "world": world, "workers": workers, "reuse": reuse, "overwrite": overwrite}
        for file in simulate_raw(task_named(task), out, train, **options, bars=bar):
            console.print(f"wrote {file}", soft_wrap=True)
        return
    from showers.simulation import simulate as run

    folders = run(
        task_named(task),
        out,
        n_train=train,
        n_test=test,
        seed=seed,
        model=model.value,
        train_cuts=train_cuts.value,
        world=world,
        reuse=reuse,
        workers=workers,
        overwrite=overwrite,
        bars=bar,
    )
    for folder in folders:
        console.print(f"wrote {folder}", soft_wrap=True)


@app.command()
def features(
    dataset: Annotated[Path | None, typer.Argument(help="Dataset folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Feature table; default: DATASET.features.")] = None,
    device: DeviceOption = Device.auto,
    workers: WorkersOption = None,
    list_features: Annotated[bool, typer.Option("--list", help="List the features instead.")] = False,
    group: Annotated[str | None, typer.Option(help="With --list: only this group.")] = None,
    format: Annotated[str, typer.Option(help="With --list: table or md.")] = "table",
) -> None:
    """Build the feature table of a dataset, or list what is in one.

    Example: [bold]python cli.py features data/gamma_train[/bold]
    """
    from features.build import build_table
    from features.catalogue import listing

    if list_features:
        console.print(listing(group, format), soft_wrap=True)
        return
    if dataset is None:
        raise InputError("say which dataset folder: python cli.py features DATASET (or --list)")
    table = build_table(dataset, out, device=device.value, workers=workers, bars=bar)
    console.print(f"{len(table):,} events, {len(table.columns)} columns in {table.folder}", soft_wrap=True)


@app.command()
def stack(
    run: Annotated[Path, typer.Option(help="Run folder; a killed run is continued.")],
    task: Annotated[TaskName, typer.Option(help="Which task to train for.")] = TaskName.composition,
    data: Annotated[Path, typer.Option(help="Folder with {task}_train and {task}_test.")] = Path("data"),
    preset: Annotated[Preset, typer.Option(help="quick: minutes; good: an hour; best: as long as it takes.")] = (
        Preset.good
    ),
    learners: Annotated[str | None, typer.Option(help="Comma-separated names instead of the preset's.")] = None,
    folds: Annotated[int | None, typer.Option(min=2, help="Number of folds instead of the preset's.")] = None,
    seed: SeedOption = 1,
    device: DeviceOption = Device.auto,
    workers: WorkersOption = None,
    scheduler: Annotated[str | None, typer.Option(help="Dask scheduler, e.g. tcp://host:8786.")] = None,
    table: Annotated[Path | None, typer.Option(help="Train on this Parquet or CSV instead of showers.")] = None,
    label: Annotated[str | None, typer.Option(help="With --table: the column with the classes.")] = None,
    group: Annotated[str | None, typer.Option(help="With --table: rows equal here never span folds.")] = None,
    test_table: Annotated[Path | None, typer.Option(help="With --table: rows to predict.")] = None,
) -> None:
    """Train base learners and the stack on out-of-fold predictions, predict the test set, score, report.

    Example: [bold]python cli.py stack --task gamma --data data --run runs/gamma --preset quick[/bold]

    Any table: [bold]python cli.py stack --table wine.csv --label quality --run runs/wine[/bold]
    """
    names = None if learners is None else tuple(name.strip() for name in learners.split(",") if name.strip())
    from models.registry import spec

    for name in names or ():
        spec(name)  # a mistyped name is told before anything slow is imported
    options = {
        "run": run,
        "preset": preset.value,
        "learners": names,
        "folds": folds,
        "seed": seed,
        "device": device.value,
        "workers": workers,
        "scheduler": scheduler,
    }
    from report.outcome import show_outcome, show_table_outcome

    if table:
        from stacking.run.config import TableConfig
        from stacking.table import stack_table

        stack_table(TableConfig(table=table, label=label, group=group, test_table=test_table, **options), bars=bar)
        show_table_outcome(run, console=console)
        return
    from stacking.pipeline import stack as train
    from stacking.run.config import StackConfig

    train(StackConfig(task=task.value, data=data, **options), bars=bar)
    show_outcome(run, data, task_named(task), console=console, bars=bar)


@app.command()
def predict(
    run: Annotated[Path, typer.Option(help="Finished run folder.")],
    data: Annotated[Path, typer.Option(help="Dataset folder (or table); labels are neither needed nor read.")],
    out: Annotated[Path, typer.Option(help="File to write, e.g. predictions.npz.")],
    device: DeviceOption = Device.auto,
    anyway: Annotated[bool, typer.Option("--anyway", help="Even if the feature code has changed since.")] = False,
    trusted: Annotated[bool, typer.Option("--trusted", help="Your own run: open its models in this process.")] = False,
) -> None:
    """Predict new, unlabelled events with a finished run.

    The models of a run are opened in a limited process of their own: their libraries' parsers can crash on a damaged
    or hostile file. --trusted opens those of your own runs without it.

    Example: [bold]python cli.py predict --run runs/gamma --data data/gamma_test --out new.npz[/bold]
    """
    from stacking.output import predict_to_file

    predictions = predict_to_file(run, data, out, device=device.value, anyway=anyway, trusted=trusted, bars=bar)
    for remark in predictions.remarks:
        console.print(f"remark: {remark}", soft_wrap=True, markup=False)
    console.print(f"wrote {out}", soft_wrap=True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for data and runs.")] = Path("demo"),
    train: Annotated[int, typer.Option(min=500, help="Training showers a task, under the test's cuts.")] = 30_000,
    test: Annotated[int, typer.Option(min=200, help="Test showers a task.")] = 12_000,
    seed: SeedOption = 1,
    workers: WorkersOption = None,
) -> None:
    """Run everything on the embedded simulation: simulate, features, stack, predict, verify, report, for both tasks.

    Example: [bold]python cli.py demo --train 5000 --test 2000[/bold]
    """
    from report.demo import run_demo

    run_demo(out, n_train=train, n_test=test, seed=seed, workers=workers, console=console, bars=bar)


@app.command()
def learners() -> None:
    """List the base learners: inputs, parameters, source.

    Example: [bold]python cli.py learners[/bold]
    """
    from models.registry import listing

    console.print(listing())


@app.command()
def download(
    task: Annotated[TaskName, typer.Option(help="Which sets to fetch.")],
    out: Annotated[Path, typer.Option(help="Folder that gets {task}_train and {task}_test.")] = Path("data"),
    base_url: Annotated[str | None, typer.Option(help="Another place with the same layout.")] = None,
) -> None:
    """Fetch the public benchmark's own files (several GB); an interrupted download is continued.

    Example: [bold]python cli.py download --task gamma --out data[/bold]
    """
    from showers.archives.download import BUCKET
    from showers.archives.download import download as fetch_sets

    for folder in fetch_sets(task_named(task), out, base_url=base_url or BUCKET, bars=bar):
        console.print(f"complete: {folder}", soft_wrap=True)


@app.command()
def convert(
    raw: Annotated[Path, typer.Option(help="Folder with the raw NPZ files.")],
    out: Annotated[Path, typer.Option(help="Folder that gets {task}_train and {task}_test.")],
    task: Annotated[TaskName, typer.Option(help="Which sets to make.")] = TaskName.composition,
    protocol: Annotated[str, typer.Option(help="v2, or matched (QGSJet only, with age).")] = "v2",
) -> None:
    """Turn raw simulation files into dataset folders of either protocol.

    Example: [bold]python cli.py convert --raw raw --out data --protocol matched[/bold]
    """
    from showers.archives.convert import convert as write_sets

    for folder in write_sets(raw, out, task_named(task), protocol=protocol, bars=bar):
        console.print(f"wrote {folder}", soft_wrap=True)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run folders of one task; the first is compared.")],
    data: Annotated[Path, typer.Option(help="Folder with {task}_test.")] = Path("data"),
) -> None:
    """Compare finished runs: paired bootstrap of the difference, McNemar's table, where they differ.

    Example: [bold]python cli.py compare runs/a runs/b --data data[/bold]
    """
    from report.compare import compare as compared

    console.print(compared(runs, data))


@app.command()
def leaderboard(
    runs: Annotated[list[Path], typer.Argument(help="Scored run folders.")],
    data: Annotated[Path | None, typer.Option(help="Folder with the test sets, if they moved.")] = None,
) -> None:
    """Show runs beside the published systems, protocol by protocol.

    Example: [bold]python cli.py leaderboard runs/composition runs/gamma[/bold]
    """
    from report.public.leaderboard import leaderboard as standings

    console.print(standings(runs, data=data))


@app.command()
def submit(
    runs: Annotated[list[Path], typer.Argument(help="One run, or one of each task.")],
    name: Annotated[str, typer.Option(help="Name of the submission.")],
    data: Annotated[Path, typer.Option(help="Folder with the test sets.")] = Path("data"),
    out: Annotated[Path, typer.Option(help="Where submissions go.")] = Path("submissions"),
) -> None:
    """Write a checked submission folder for the public benchmark.

    Example: [bold]python cli.py submit runs/composition runs/gamma --name stack-1[/bold]
    """
    from report.public.submission import write_submission

    folder = write_submission(runs, name, data=data, out=out)
    console.print(f"wrote and checked {folder}", soft_wrap=True)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Finished run folder.")],
    data: Annotated[Path, typer.Option(help="Folder with {task}_test and its labels.")] = Path("data"),
) -> None:
    """Write RUN/report.html: the whole run on one page.

    Example: [bold]python cli.py report runs/composition --data data[/bold]
    """
    from report.html import write_report

    console.print(f"wrote {write_report(run, data, bars=bar)}", soft_wrap=True)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="Run, feature table or dataset folder.")],
) -> None:
    """Compare every file of a finished folder with its checksums; exit code 1 and a line for each that differs.

    This shows damage and mix-ups, not forgery: whoever can replace a file can replace its checksum too.

    Example: [bold]python cli.py check runs/composition[/bold]
    """
    from report.check import check_folder

    kind, problems = check_folder(folder, bars=bar)
    for problem in problems:
        console.print(problem, soft_wrap=True)
    if problems:
        raise typer.Exit(1)
    console.print(f"{folder} is a sound {kind}", soft_wrap=True)


@app.command()
def display(
    dataset: Annotated[Path, typer.Argument(help="Dataset folder; labels are not needed.")],
    event: Annotated[int, typer.Argument(min=0, help="Row of the event, from 0.")],
    out: Annotated[Path | None, typer.Option(help="File (.png, .svg, .pdf); default: event-N.png.")] = None,
) -> None:
    """Draw one event: both channels, fitted core, lateral distributions.

    Example: [bold]python cli.py display data/composition_test 7[/bold]
    """
    from report.display import draw_event

    console.print(f"wrote {draw_event(dataset, event, out or Path(f'event-{event}.png'))}", soft_wrap=True)


@app.command()
def doctor() -> None:
    """Say what this machine offers and what would be used.

    Example: [bold]python cli.py doctor[/bold]
    """
    from report.doctor import doctor as examine

    console.print(examine())


def main() -> None:
    """Run the command that the arguments name."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a name that the terminal's encoding lacks is no reason to stop
    # A polite end (kill, a batch system's time limit) cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app()


if __name__ == "__main__":
    main()
