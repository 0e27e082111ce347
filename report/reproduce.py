"""A published result from nothing: archives, conversion, runs of several seeds, scores, submission, and ``RESULT.md``.

Energies have no submission, since the public benchmark takes none.

Every step keeps what it has finished, so the same command goes on after an interruption. No choice looks at test
labels: the submission is the run of the first seed, whatever the others reach. That run alone has a report and a model
card. What each stage cost is added up over all interruptions.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from showerstack.report.card import write_card
from showerstack.report.public.submission import write_submission
from showerstack.report.run_page import write_report
from showerstack.runtime.context import Context
from showerstack.runtime.cost import cpu_seconds, in_words
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path, read_json, write_json
from showerstack.runtime.logs import logging_to
from showerstack.scoring.metrics.level import LEVEL, LEVEL_TEXT
from showerstack.scoring.score import score_file
from showerstack.scoring.tasks import scoring_of
from showerstack.showers.archives.convert import convert
from showerstack.showers.archives.download import download_raw
from showerstack.showers.dataset import Dataset
from showerstack.showers.protocols import modes_of
from showerstack.showers.schema import MANIFEST_FILE, PREDICTIONS_FILE, Task
from showerstack.showers.simulation.raw import simulate_raw
from showerstack.stacking.config import StackConfig
from showerstack.stacking.prediction.run import Run
from showerstack.stacking.training.train import stack

LOG = logging.getLogger(__name__)

RESULT_FILE = "RESULT.md"
STAGES_FILE = "stages.json"
SUBMISSION = "submission"
NOTED_EVERY_S = 10.0
"""How often the cost of the stage at work is written."""


@dataclass(frozen=True)
class Reproduction:
    """What is to be made."""

    task: Task
    protocol: str
    out: Path
    raw: Path | None = None
    """Folder of the archives; None downloads them to ``out/raw`` (or simulates them there)."""
    simulated: int | None = None
    """Events of each mode from the embedded simulation, in place of the public archives."""
    base_url: str | None = None
    """Another address with the archives."""
    hours: float | None = None
    """For all seeds together; None: no limit."""
    seeds: int = 5
    preset: str = "good"
    learners: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.raw is not None and self.simulated is not None:
            raise InputError("--raw names archives, --simulated makes them: choose one")
        if self.base_url is not None and (self.raw is not None or self.simulated is not None):
            raise InputError("--base-url is where archives are downloaded from: leave out --raw and --simulated")
        if self.hours is not None and self.hours <= 0:
            raise InputError(f"--hours {self.hours:g}: expected a time above 0")


@dataclass(frozen=True)
class Score:
    """The protocol's metric of one seed on the test set."""

    seed: int
    value: float
    low: float
    high: float
    """Confidence interval over test events."""
    shipped: str
    config_hash: str
    wall_s: float


@dataclass
class Stages:
    """What each stage of a result has cost so far, in a file that survives interruptions."""

    file: Path
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Stage to ``wall_s`` and ``cpu_s``."""

    @classmethod
    def open(cls, folder: Path) -> Stages:
        """Read what earlier calls have used."""
        file = folder / STAGES_FILE
        return cls(file, read_json(file) if file.exists() else {})

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add what the block uses, child processes included, to a stage.

        It is written every :data:`NOTED_EVERY_S`, so that a kill loses no more; what a refused one used is left out.
        """
        before, wall, cpu = self.seconds.copy(), time.perf_counter(), cpu_seconds()
        start, over = before.get(name, {"wall_s": 0.0, "cpu_s": 0.0}), threading.Event()

        def note() -> None:
            used = {"wall_s": time.perf_counter() - wall, "cpu_s": cpu_seconds() - cpu}
            self.seconds[name] = {key: start[key] + value for key, value in used.items()}
            write_json(self.file, self.seconds)

        def note_often() -> None:
            while not over.wait(NOTED_EVERY_S):
                with suppress(OSError, InputError):  # told at the end of the stage
                    if self.file.parent.exists():
                        note()

        noting, is_refused = threading.Thread(target=note_often, daemon=True), False
        noting.start()
        try:
            yield
        except InputError:
            is_refused = True
            raise
        finally:
            over.set()
            noting.join()
            if not is_refused:
                note()
            elif self.file.exists():
                self.seconds = before
                write_json(self.file, before)

    @property
    def wall_s(self) -> float:
        """Of the runs alone, to which the time limit applies."""
        return sum(cost["wall_s"] for name, cost in self.seconds.items() if name.startswith(RUNS))

    def lines(self) -> list[str]:
        """Return a table: stage, processor time, wall time."""
        total = {key: sum(cost[key] for cost in self.seconds.values()) for key in ("cpu_s", "wall_s")}
        rows = [*self.seconds.items(), ("all", total)]
        head = ["| stage | processor time | wall time |", "|---|---:|---:|"]
        return head + [f"| {name} | {c['cpu_s']:,.0f} s | {c['wall_s']:,.0f} s |" for name, c in rows]


RUNS = "runs"
"""First word of the stages that train."""


class _Notes(logging.Handler):
    """Notes what is logged; a remark once, however many runs repeat it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.steps, self.remarks = list[str](), list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Note one record."""
        notes, line = self.remarks if record.levelno >= logging.WARNING else self.steps, record.getMessage()
        if line not in notes:
            notes.append(line)


def reproduce(plan: Reproduction, ctx: Context = Context()) -> tuple[Path, list[Score]]:
    """Do all steps, or what is left of them; return ``RESULT.md``, which is written, and the scores by seed.

    With a time limit every seed gets an equal share of it. A seed that would begin after the limit is left out, the
    first one never. What interrupted calls used counts.
    """
    task, out = plan.task, Path(plan.out)
    raw, stages = plan.raw or out / "raw", Stages.open(out)
    if plan.raw is None:
        with stages.stage("archives"):
            if plan.simulated is not None:
                modes = modes_of(plan.protocol, task)
                simulate_raw(task, raw, plan.simulated, workers=ctx.workers, modes=modes, bars=ctx.bars)
            else:
                download_raw(task, raw, plan.protocol, base_url=plan.base_url, bars=ctx.bars)
    notes = _Notes()
    with logging_to(notes, level=min(logging.INFO, LOG.getEffectiveLevel())):
        return _do_steps(plan, raw, stages, notes, ctx)


def _do_steps(plan: Reproduction, raw: Path, stages: Stages, notes: _Notes, ctx: Context) -> tuple[Path, list[Score]]:
    """Do all steps but the archives."""
    task, out = plan.task, Path(plan.out)
    data = out / "data"
    with stages.stage("conversion"):
        convert(raw, data, task, protocol=plan.protocol, ctx=ctx)
    flow = notes.steps.copy()
    limit = None if plan.hours is None else f"{max(1, round(plan.hours * 60 / plan.seeds))}m"
    runs: list[Path] = []
    scores: list[Score] = []
    for seed in range(1, plan.seeds + 1):
        run = out / "runs" / f"{task.name}-seed-{seed}"
        is_late = plan.hours is not None and stages.wall_s > 3600 * plan.hours
        if runs and is_late and not (run / MANIFEST_FILE).exists():
            LOG.warning("%d of %d seeds are left out: the time is up", plan.seeds - len(runs), plan.seeds)
            break
        config = StackConfig(
            task=task.name, data=data, run=run, preset=plan.preset, seed=seed, time_limit=limit,
            learners=plan.learners, workers=ctx.workers,
        )  # fmt: skip
        with stages.stage(f"{RUNS}: seed {seed}"):
            stack(config, ctx)
        runs.append(run)
        with stages.stage("scores"):
            scores.append(_score(plan, data, run, seed))
        metric = _interval(scores[-1].value, scores[-1].low, scores[-1].high)
        LOG.info("seed %d: %s %s", seed, scoring_of(task).metric_words, metric)
    with stages.stage("report and submission"):
        if not ((out / SUBMISSION).exists() or (task.target and Run.open(runs[0]).card.exists())):
            write_report(runs[0], data, bars=ctx.bars)
            write_card(runs[0])
            if not task.target:  # the public benchmark takes none
                write_submission(runs[:1], SUBMISSION, data=data, out=out)
    file = out / RESULT_FILE
    with atomic_path(file) as temporary:
        lines = _result_text(plan, data, runs, scores, [*flow, *notes.remarks], stages)
        temporary.write_text(lines, encoding="utf-8")
    for line in stages.lines()[2:]:
        LOG.info(" ".join(line.strip("| ").replace(" |", ",").split()))
    return file, scores


def _score(plan: Reproduction, data: Path, run: Path, seed: int) -> Score:
    task = plan.task
    metrics = score_file(run / PREDICTIONS_FILE, data, task, protocol=plan.protocol)
    value, interval = scoring_of(task).headline(metrics)
    assert interval is not None
    manifest = Run.open(run).manifest
    wall_s = sum(step.wall_s for step in manifest.steps)
    return Score(seed, value, interval.low, interval.high, manifest.shipped, manifest.config_hash, wall_s)


def over_events_and_seeds(scores: list[Score]) -> tuple[float, float, float]:
    """Return the mean over seeds and its confidence interval over test events and seeds.

    The half width over events is the mean of the seeds' (they share the test set); that over seeds is Student's t times
    the standard error of the mean. Independent, they add in quadrature. With one seed only events count.
    """
    from scipy.stats import t as student

    n, mean = len(scores), statistics.fmean(score.value for score in scores)
    seeds = 0.0
    if n > 1:
        seeds = float(student.ppf(0.5 + LEVEL / 2, n - 1)) * statistics.stdev(score.value for score in scores) / n**0.5
    below = statistics.fmean(score.value - score.low for score in scores)
    above = statistics.fmean(score.high - score.value for score in scores)
    return mean, max(0.0, mean - (below**2 + seeds**2) ** 0.5), mean + (above**2 + seeds**2) ** 0.5


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.4g} [{low:.4g}, {high:.4g}]"


def _result_text(
    plan: Reproduction, data: Path, runs: list[Path], scores: list[Score], remarks: list[str], stages: Stages
) -> str:
    task, manifest = plan.task, Run.open(runs[0]).manifest
    sets = {split: Dataset.open(data / f"{task.name}_{split}", labels=False) for split in ("train", "test")}
    mean, low, high = over_events_and_seeds(scores)
    simulated = "generator" in sets["test"].source and str(sets["test"].source["generator"]).startswith("showers.")
    where = "**archives of the embedded simulation: not a result on the public data**" if simulated else "raw archives"
    lines = [
        f"# {task.name}, protocol {plan.protocol}: {scoring_of(task).metric_words} {_interval(mean, low, high)}",
        "",
        f"Mean of {len(scores)} seed(s) and its {LEVEL_TEXT} interval over test events and seeds, on {where}.",
        "",
        f"| seed | score, {LEVEL_TEXT} over test events | used | time of all steps | configuration |",
        "|---:|---|---|---:|---|",
        *(
            f"| {s.seed} | {_interval(s.value, s.low, s.high)} | {s.shipped} | {in_words(s.wall_s)} | "
            f"`{s.config_hash[:16]}` |"
            for s in scores
        ),
        "",
        "## Protocol and data",
        "",
        f"- Protocol {plan.protocol}, modes {', '.join(map(str, sets['test'].source['modes']))}; the raw predictions "
        "are scored where the protocol forbids decision rules.",
        *(
            f"- {split}: {len(dataset):,} events, {int(dataset.usable.sum()):,} of them usable; fingerprint "
            f"`{dataset.fingerprint()}`"
            for split, dataset in sets.items()
        ),
        f"- Raw archives (names, lengths and checksums of all members): `{sets['test'].source['raw']}`",
        f"- Showers put into both sets by the protocol's split: {sets['test'].source['showers_in_both_splits']}",
        *(f"- {line}" for line in remarks),
        "",
        "## Choices, all made without test labels",
        "",
        f"- Preset `{plan.preset}`, {manifest.config.folds or 'preset'} folds; time limit of a seed: "
        f"{manifest.config.time_limit or 'none'}.",
        f"- Learners: {', '.join(manifest.finished)}.",
        f"- Pool `{manifest.pool.chosen}`, chosen out-of-fold; used: {scores[0].shipped} ({manifest.gate.reason}).",
        f"- Scored on: {manifest.judged.on}, {manifest.judged.events:,} events.",
        *([] if task.target else ["- The submission is the run of seed 1, whatever the other seeds reach."]),
        "",
        "## Cost",
        "",
        *stages.lines(),
        "",
        *_training_lines(runs),
        "",
        "## Versions",
        "",
        *(f"- {name} {version}" for name, version in manifest.versions.items()),
        f"- version {manifest.stacking_version} of stacking, {manifest.features_version} of the features",
        "",
        "## Checking it",
        "",
        "In the folder of the code, with the path of this folder for `RESULT`:",
        "",
        "```",
        *(f"python cli.py check RESULT/{run.relative_to(plan.out)}" for run in runs),
        f"python cli.py verify RESULT/{(runs[0] / PREDICTIONS_FILE).relative_to(plan.out)} --data RESULT/data "
        f"--protocol {plan.protocol}",
        "```",
        "",
        *([] if task.target else [f"`{SUBMISSION}/` holds what is handed in."]),
        "The run of seed 1 has a report and a model card; those of another are written by `python cli.py report RUN "
        "--data RESULT/data`.",
        "",
    ]
    return "\n".join(lines)


def _training_lines(runs: list[Path]) -> list[str]:
    """Return a table of the steps of all runs: processor time by step and learner, most first."""
    cpu_s: dict[str, float] = {}
    for run in runs:
        for step in Run.open(run).manifest.steps:
            name = f"{step.step} {step.learner or ''}".strip()
            cpu_s[name] = cpu_s.get(name, 0.0) + step.cpu_s
    rows = sorted(cpu_s.items(), key=lambda row: -row[1])
    head = ["| step of the runs | processor time |", "|---|---:|"]
    return head + [f"| {name} | {seconds:,.1f} s |" for name, seconds in rows if seconds >= 0.05]
