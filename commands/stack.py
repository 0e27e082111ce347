"""Commands that train and use runs: stack, predict, demo, reproduce, check, learners, export, pretrain."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from showerstack.commands.app import (
    Configured,
    JsonOption,
    OutputFormat,
    OverwriteOption,
    Protocol,
    StrictOption,
    TaskName,
    app,
    claimed,
    console,
    given_options,
    listed,
    refuse_unused,
)
from showerstack.commands.config_file import file_of, from_file
from showerstack.runtime.context import Context, bar
from showerstack.runtime.errors import InputError, need
from showerstack.showers.nuclei import groups_asked
from showerstack.showers.schema import COMPOSITION, task_named
from showerstack.stacking.options import (
    DeviceOption,
    LearnersOption,
    RunOptions,
    SchedulerOption,
    SeedOption,
    ShowerOptions,
    TableOptions,
    WorkersOption,
)

LOG = logging.getLogger(__name__)


@app.command(cls=Configured)
def stack(
    context: typer.Context,
    options: RunOptions,
    showers: ShowerOptions,
    table: TableOptions,
    strict: StrictOption = False,
    *,
    output: OutputFormat,
) -> None:
    """Train base learners and the stack on out-of-fold predictions, predict the test set, score, report.

    Example: [bold]python cli.py stack --task gamma --data data --run runs/gamma --preset quick[/bold]

    Any table: [bold]python cli.py stack --table wine.csv --label quality --run runs/wine[/bold]

    As another run: [bold]python cli.py stack --config runs/gamma/config.toml --seed 2 --run runs/gamma-2[/bold]
    """
    chosen = vars(options) | vars(showers) | vars(table) | from_file(context)
    if not options.run or not Path(options.run).name:  # as on the command line, whatever the file says
        raise InputError("say where the run goes: --run FOLDER")
    from showerstack.models.registry import spec

    for name in options.learners or ():
        spec(name)  # a mistyped name is told before anything slow is imported
    if options.learners and not any(spec(name).pretrained for name in options.learners):
        refuse_unused(context, f"with --learners {','.join(options.learners)}", ("weights",))
    of_table = bool(chosen["table"])
    if not of_table:
        refuse_unused(context, "without --table", vars(table))
    else:
        refuse_unused(context, "with --table", (*vars(showers), "strict"))
        if not chosen["label"]:
            raise InputError("say which column of the table holds the classes: --label COLUMN")
    for name in vars(showers if of_table else table):
        del chosen[name]
    need("train", "report", what="stack")
    from showerstack.report.outcome import outcome
    from showerstack.runtime.processes import process_began
    from showerstack.stacking.config import StackConfig, TableConfig
    from showerstack.stacking.training.train import stack as train

    try:
        config = TableConfig(**chosen) if of_table else StackConfig(**chosen)
    except InputError as error:
        raise InputError(f"{file_of(context)}: {error}" if file_of(context) else str(error)) from None
    began = process_began()
    train(config, output.context(began=began), strict=strict)
    result = outcome(config.run, config.data if isinstance(config, StackConfig) else None, bars=output.bars)
    output.show(lambda: result.shown, lambda: result.content)


@app.command()
def predict(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="Dataset folder, folder of measured runs, or table; no label is read.")],
    out: Annotated[Path, typer.Option(help="File to write, e.g. predictions.npz; for runs a folder.")],
    run: Annotated[Path | None, typer.Option(help="Finished run folder.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="In place of a run: any-array, a first look without any training.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Of a first look; default: that of the folder's name.")] = None,
    groups: Annotated[
        str | None,
        typer.Option(help="Of a first look: mass groups that there are, such as proton,iron; default: five."),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="A first look at showers unlike all that the weights have seen, too.")
    ] = False,
    device: DeviceOption = "auto",
    features: Annotated[Path | None, typer.Option(help="The feature table; default: beside the data.")] = None,
    no_table: Annotated[
        bool, typer.Option("--no-table", help="Compute features in memory and keep no table of them.")
    ] = False,
    separator: Annotated[str | None, typer.Option(help="Column separator of a text table.")] = None,
    scheduler: SchedulerOption = None,
    strict: StrictOption = False,
    overwrite: OverwriteOption = False,
    *,
    output: OutputFormat,
) -> None:
    """Predict new, unlabelled events with a finished run, or with what export made of one (onnxruntime alone).

    The models of a run are opened in this program, and their libraries' parsers may crash on a hostile file: take the
    run of a stranger as what export made of it.

    Example: [bold]python cli.py predict --run runs/gamma --data data/gamma_test --out new.npz[/bold]
    """
    if (run is None) == (weights is None):
        raise InputError("give --run, or --weights any-array for a first look without training")
    if run is None:
        from showerstack.stacking.prediction.first_look import first_look

        refuse_unused(context, "with --weights", ("no_table", "separator", "scheduler", "strict"))
        asked = task_named(task or data.resolve().name.partition("_")[0])
        if groups is not None:
            refuse_unused(context, f"with --task {asked.name}", () if asked == COMPOSITION else ("groups",))
            asked = groups_asked(groups)
        look = first_look(
            data, asked, output.context(device=device), weights=str(weights), features=features,
            elsewhere=out.with_name(f"{out.name}.features"), anyway=anyway,
        )  # fmt: skip
        claimed(context, out)
        look.write(out)
        output.show(
            lambda: f"wrote {out}", lambda: {"out": out, "events": look.n_events, "remarks": list(look.remarks)}
        )
        return
    refuse_unused(context, "with --run", ("task", "groups", "anyway"))
    if scheduler:
        refuse_unused(context, "with --scheduler", ("no_table",))
    if given_options(context) & {"separator", "device", "features", "no_table", "scheduler"}:
        from showerstack.stacking.export.exported import open_run

        if open_run(run, whole=False).of_table:
            refuse_unused(context, "with a run on a table", ("device", "features", "no_table", "scheduler"))
        else:
            refuse_unused(context, "with a run on showers", ("separator",))
    from showerstack.showers.archives.folders import unlabelled_in
    from showerstack.stacking.export.exported import open_run
    from showerstack.stacking.prediction.predict import predict as predict_events

    runs = unlabelled_in(data)
    if runs and out.suffix:
        raise InputError(f"{data} holds {len(runs)} runs, which get a file each: --out must be a folder, not {out}")
    if len({one.name for one in runs}) < len(runs):
        raise InputError(f"{data} holds two runs of one name: predict its folders one by one")
    if runs:
        refuse_unused(context, "with a folder of runs", ("features",))
    claimed(context, *(out / f"{one.name}.npz" for one in runs), *([] if runs else [out]))
    model, content = open_run(run), list[dict[str, Any]]()
    ctx = output.context(device=device, scheduler=scheduler)
    for place, file in [(one, out / f"{one.name}.npz") for one in runs] or [(data, out)]:
        stream = predict_events(
            model, place, ctx, features=features, elsewhere=file.with_name(f"{file.name}.features"), no_table=no_table,
            separator=separator, strict=strict,
        )  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        stream.write(file)
        content.append({"out": file, "events": stream.n_events, "remarks": list(stream.remarks)})
    written = "\n".join(f"wrote {one['out']}" for one in content)
    output.show(lambda: written, lambda: content if runs else content[0])


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for data and runs.")] = Path("demo"),
    train: Annotated[int, typer.Option(min=500, help="Training showers for each task, under the test's cuts.")] = 8_000,
    test: Annotated[int, typer.Option(min=200, help="Test showers for each task.")] = 8_000,
    seed: SeedOption = 1,
    workers: WorkersOption = None,
) -> None:
    """Run everything on the embedded simulation: simulate, features, stack, predict, verify, report, for both tasks.

    Example: [bold]python cli.py demo --train 5000 --test 2000[/bold]
    """
    need("train", "report", what="demo")
    from showerstack.report.outcome import run_demo

    ctx = Context(bars=bar, workers=workers)
    run_demo(out, n_train=train, n_test=test, seed=seed, console=console, ctx=ctx)


@app.command()
def reproduce(
    task: Annotated[TaskName, typer.Option(help="Which benchmark.")] = "composition",
    protocol: Annotated[Protocol, typer.Option(help="Whose rules and splits.")] = "2026",
    out: Annotated[Path, typer.Option(help="Folder that gets everything.")] = Path("result"),
    raw: Annotated[Path | None, typer.Option(help="Folder of raw archives; default: downloaded.")] = None,
    hours: Annotated[
        float | None, typer.Option(help="Time for all seeds together; default: 8, with --simulated no limit.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, equal but for their seed.")] = 5,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Archives of the embedded simulation instead of the public ones.")
    ] = False,
    showers: Annotated[int, typer.Option(min=1000, help="With --simulated: showers of each mode.")] = 60_000,
    learners: LearnersOption = None,
    base_url: Annotated[str | None, typer.Option(help="Another address with the raw archives.")] = None,
    workers: WorkersOption = None,
) -> None:
    """From nothing to a number that can be published: archives, conversion, runs, scores, submission, RESULT.md.

    After an interruption the same command continues. RESULT.md says what each stage took.

    Example: [bold]python cli.py reproduce --task composition --protocol 2026 --out result --hours 8[/bold]

    Without a network: [bold]python cli.py reproduce --simulated --out result[/bold]
    """
    need("train", "report", what="reproduce")
    from showerstack.report.reproduce import Reproduction, over_events_and_seeds
    from showerstack.report.reproduce import reproduce as reproduced

    wanted = Reproduction(
        task_named(task), protocol, out, raw, simulated=showers if simulated else None,
        hours=hours or (None if simulated else 8.0), seeds=seeds, preset="quick" if simulated else "good",
        learners=learners, base_url=base_url,
    )  # fmt: skip
    file, scores = reproduced(wanted, Context(bars=bar, workers=workers))
    mean, low, high = over_events_and_seeds(scores)
    console.print(f"{len(scores)} seeds: {mean:.4g} [{low:.4g}, {high:.4g}]; wrote {file}", soft_wrap=True)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="Run, feature table or dataset folder.")],
    *,
    output: OutputFormat,
) -> None:
    """Compare every file of a finished folder with its checksums; exit code 1 and a line for each that differs.

    This shows damage and mix-ups, not forgery: whoever can replace a file can replace its checksum too.

    Example: [bold]python cli.py check runs/composition[/bold]
    """
    from showerstack.report.doctor.soundness import check_folder

    kind, problems = check_folder(folder, bars=output.bars)
    output.show(
        lambda: "\n".join(problems) or f"{folder} is a sound {kind}",
        lambda: {"folder": folder, "kind": kind, "sound": not problems, "problems": problems},
    )
    if problems:
        raise typer.Exit(1)


@app.command()
def learners(as_json: JsonOption = False) -> None:
    """List the base learners: inputs, parameters, source.

    Example: [bold]python cli.py learners[/bold]
    """
    from showerstack.models.registry import listing, rows

    OutputFormat(as_json=as_json).show(listing, rows)


@app.command()
def export(
    out: Annotated[Path, typer.Option(help="New folder for the ONNX files and export.json.")],
    run: Annotated[
        Path | None, typer.Argument(help="Your own finished run: its models are opened in this process.")
    ] = None,
    named: Annotated[Path | None, typer.Option("--run", metavar="RUN", help="RUN.")] = None,
    learners: Annotated[
        str | None, typer.Option(help="Comma-separated names; default: those that the run predicts with.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            help="Dataset folder or table: 10,000 events through run and files; 1,000 of the training always."
        ),
    ] = None,
    *,
    output: OutputFormat,
) -> None:
    """Write the fits of a run as ONNX files: feature columns (and grids) in, log-probabilities out.

    export.json beside them names columns with units, and says how fits are averaged, combined and decided. What has no
    ONNX form is named with the reason.

    Example: [bold]python cli.py export runs/gamma --out gamma-onnx --check data/gamma_test[/bold]
    """
    run, more = run or named, run and named
    if run is None or more:
        raise InputError("say which run, once: python cli.py export RUN --out FOLDER")
    need("train", "export", *(("onnx",) if check else ()), what="export")
    from showerstack.showers.schema import EXPORT_FILE
    from showerstack.stacking.export.writer import export_run

    result = export_run(run, out, listed(learners), check, bars=output.bars)
    for name, reason in result.refused.items():
        LOG.warning("not exported: %s: %s", name, reason)
    lines = [f"{name}: {n} files" for name, n in result.written.items()]
    if result.largest_difference is not None:
        lines.append(f"largest difference of a probability from the run: {result.largest_difference:.1e}")
    for runtime, found in result.in_others.items():
        answers = (f"{name} {one if isinstance(one, str) else f'{one:.1e}'}" for name, one in found.items())
        lines.append(f"largest difference of a log-probability in {runtime}: {', '.join(answers)}")
    lines.append(f"wrote {out / EXPORT_FILE}")
    content = {
        "out": out,
        "files": result.written,
        "refused": result.refused,
        "largest_difference_in_probability": result.largest_difference,
        "largest_difference_in_other_runtimes": result.in_others,
    }
    output.show(lambda: "\n".join(lines), lambda: content)


@app.command()
def pretrain(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder of plan, state and weights; an interrupted run is continued.")],
    showers: Annotated[int, typer.Option(min=1, help="Approximate number of showers to simulate.")] = 10_000_000,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed; default 1, or one whose showers the weights do not know.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that simulate showers during the training.")] = 1,
    scheduler: SchedulerOption = None,
    device: DeviceOption = "auto",
    batch_size: Annotated[
        int, typer.Option(min=1, help="Showers per step; the learning rate is scaled with it.")
    ] = 512,
    threads: Annotated[int, typer.Option(min=1, help="Numerical threads of the training.")] = 1,
    start: Annotated[
        str | None,
        typer.Option(
            help="Weights to start from: 'random', 'shipped' (KASCADE's), 'any-array', a folder or .safetensors file; "
            "default: any-array with --array, else random."
        ),
    ] = None,
    array: Annotated[
        Path | None,
        typer.Option(help="Another array than KASCADE: stations.parquet of station lists, or a dataset folder."),
    ] = None,
    any_array: Annotated[
        bool, typer.Option("--any-array", help="Draw another array for every block of showers, instead of one.")
    ] = False,
    depth: Annotated[
        float | None,
        typer.Option(help="Its vertical atmospheric depth, g/cm2, where its card does not say; default: KASCADE's."),
    ] = None,
) -> None:
    """Pretrain the shower network on simulated showers that are drawn on the fly, from randomised worlds.

    The weights, with a card that says how they were made, are what the learner [bold]pretrained[/bold] starts from:
    stack --weights takes them.

    Example: [bold]python cli.py pretrain --out runs/pretraining --showers 20000000[/bold]

    Own array: [bold]python cli.py pretrain --array mine/gamma_train/stations.parquet --out runs/mine-weights[/bold]
    """
    need("train", what="pretrain")
    from showerstack.models.pretraining.learner import PretrainedLearner
    from showerstack.models.pretraining.train import PretrainSettings
    from showerstack.models.pretraining.train import pretrain as run
    from showerstack.models.pretraining.weights import ANY, RELEASED, hash_of, next_seed, weights_file
    from showerstack.models.registry import device_for
    from showerstack.runtime.files import hash_file
    from showerstack.showers.archives.station_lists import array_in
    from showerstack.showers.array import KASCADE
    from showerstack.showers.simulation.ground import standing_at

    if array is None:
        refuse_unused(context, "without --array", ("depth",))
    if any_array:
        refuse_unused(context, "with --any-array", ("array",))
    if scheduler:
        refuse_unused(context, "with --scheduler", ("workers",))
    stations = None if any_array else KASCADE if array is None else standing_at(array_in(array), depth)
    start = start or ("random" if array is None else ANY)
    start = "" if start == "random" else start if start in RELEASED else str(weights_file(Path(start)))
    seed = next_seed(start) if seed is None else seed
    settings = PretrainSettings.of_batches(
        batch_size, start, showers=showers, seed=seed, start_sha256=hash_of(start), array=stations
    )
    where = device_for(PretrainedLearner, device)
    file = run(out, settings, workers=workers, threads=threads, device=where, scheduler=scheduler, bars=bar)
    console.print(f"wrote {file}, SHA-256 {hash_file(file)}", soft_wrap=True)
